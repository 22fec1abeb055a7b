/* mdl_tok_json.c - a tokenizer from the text of a tokenizer.json.
 *
 * Each component ("type": ...) is looked up in a table of those we run; any
 * other is refused by name before anything is built. The truncation and padding
 * blocks are ignored: the server's own limits apply (encoders.md 2).
 * Tests: tests/models/test_mdl_tok_json.c, fuzz: tests/fuzz/fuzz_tok_json.c
 */
#include "mdl_tok_json.h"

#include <stdlib.h>

const char *tok_json_type(const json_t *j)
{
    const char *s = json_string_value(json_object_get(j, "type"));

    return s ? s : "(none)";
}

enum rc tok_json_refuse(struct rc_err *err, const char *part, const char *name, const char *why)
{
    char show[64];

    return rc_fail_what(err, RC_UNSUPPORTED, part, "tokenizer.json: %s '%s' is not supported%s%s",
                        part, mdl_show(show, sizeof(show), name, strlen(name)), *why ? ": " : "",
                        why);
}

bool tok_json_fixed(const json_t *j, char *out, uint32_t *n)
{
    size_t len = json_string_length(j);

    if (!json_is_string(j) || len > TOK_MAX_STR)
        return false;
    memcpy(out, json_string_value(j), len);
    *n = (uint32_t)len;
    return true;
}

bool tok_json_flag(const json_t *o, const char *key, bool otherwise)
{
    const json_t *j = json_object_get(o, key);

    return json_is_boolean(j) ? json_is_true(j) : otherwise;
}

/* ---------------------------------------------------------------- vocabulary */

struct pieces {
    struct tok_piece *p;
    uint32_t n, cap;
};

static enum rc piece_set(struct pieces *v, json_int_t id, const char *s, size_t n, uint8_t flags,
                         struct rc_err *err)
{
    char show[64];

    if (id < 0 || id >= TOK_MAX_IDS)
        return rc_fail(err, RC_FORMAT, "tokenizer.json: id %lld of '%s', expected 0 to %u",
                       (long long)id, mdl_show(show, sizeof(show), s, n), TOK_MAX_IDS - 1);
    if (id >= v->cap) {
        uint32_t cap = v->cap ? v->cap : 1024;
        while (cap <= id)
            cap *= 2;
        void *p = realloc(v->p, cap * sizeof(*v->p));
        if (!p)
            return rc_fail(err, RC_NOMEM, "tokenizer.json: no memory for %u pieces", cap);
        v->p = p;
        memset(v->p + v->cap, 0, (cap - v->cap) * sizeof(*v->p));
        v->cap = cap;
    }
    if (n > UINT32_MAX / 2)
        return rc_fail(err, RC_FORMAT, "tokenizer.json: a piece of %zu bytes", n);
    if (v->p[id].s && (v->p[id].n != n || memcmp(v->p[id].s, s, n) != 0))
        return rc_fail(err, RC_FORMAT,
                       "tokenizer.json: id %lld is given to two pieces, '%s' is one", (long long)id,
                       mdl_show(show, sizeof(show), s, n));
    v->p[id].s = s;
    v->p[id].n = (uint32_t)n;
    v->p[id].flags |= flags;
    if (id >= v->n)
        v->n = (uint32_t)id + 1;
    return RC_OK;
}

static int32_t find_str(const struct mdl_tok *t, const json_t *j)
{
    return json_is_string(j)
               ? tok_vocab_find(&t->vocab, json_string_value(j), json_string_length(j))
               : -1;
}

static enum rc load_vocab(struct mdl_tok *t, const json_t *root, bool list, struct rc_err *err)
{
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *added = json_object_get(root, "added_tokens"), *e;
    struct pieces v = {0};
    char show[64];
    const char *s;
    json_t *id;
    size_t i;
    enum rc rc = RC_OK;

    /* a list of pieces and scores, or an object of pieces and ids */
    if (list ? !json_is_array(vocab) : !json_is_object(vocab))
        return rc_fail(err, RC_FORMAT, "tokenizer.json: model.vocab is not %s",
                       list ? "a list" : "an object");
    json_object_foreach((json_t *)vocab, s, id)
    {
        if (!json_is_integer(id))
            rc = rc_fail(err, RC_FORMAT, "tokenizer.json: a piece without a whole id");
        else
            rc = piece_set(&v, json_integer_value(id), s, strlen(s), 0, err);
        if (rc != RC_OK)
            goto out;
    }
    json_array_foreach(vocab, i, e) /* Unigram: [piece, score] */
    {
        const json_t *p = json_array_get(e, 0);
        if (!json_is_string(p))
            rc = rc_fail(err, RC_FORMAT, "tokenizer.json: model.vocab: entry %zu is no piece", i);
        else
            rc = piece_set(&v, (json_int_t)i, json_string_value(p), json_string_length(p), 0, err);
        if (rc != RC_OK)
            goto out;
    }
    json_array_foreach(added, i, e)
    {
        const json_t *c = json_object_get(e, "content");
        const json_t *n = json_object_get(e, "id");
        if (!json_is_string(c) || !json_is_integer(n)) {
            rc = rc_fail(err, RC_FORMAT, "tokenizer.json: added token %zu has no id or content", i);
            goto out;
        }
        /* a special token is whatever the file calls so, and no merge makes one */
        rc = piece_set(&v, json_integer_value(n), json_string_value(c), json_string_length(c),
                       tok_json_flag(e, "special", false) ? TOK_SPECIAL | TOK_NO_JOIN : 0, err);
        if (rc != RC_OK)
            goto out;
    }
    rc = tok_vocab_build(&t->vocab, v.p, v.n, err);
    json_array_foreach(added, i, e)
    {
        s = json_string_value(json_object_get(e, "content"));
        int32_t want = (int32_t)json_integer_value(json_object_get(e, "id"));
        int32_t got = rc == RC_OK ? find_str(t, json_object_get(e, "content")) : want;
        const json_t *other = json_object_get(vocab, s); /* NULL for a list */
        if (rc == RC_OK && (got != want || (other && json_integer_value(other) != want)))
            rc = rc_fail(err, RC_FORMAT,
                         "tokenizer.json: added token '%s' has id %d, and another id elsewhere",
                         mdl_show(show, sizeof(show), s, strlen(s)), want);
    }
out:
    free(v.p);
    return rc;
}

/* A normalized added token is matched in normalized text, so it is normalized
 * like one. */
static enum rc add_normalized(struct mdl_tok *t, const char *s, size_t n, int32_t id,
                              unsigned flags, struct rc_err *err)
{
    struct tok_text a = {0}, b = {0}, x;
    enum rc rc = tok_text_push(&a, false, s, n, 0, 0, err);

    for (uint32_t i = 0; i < t->n_norms && rc == RC_OK; i++) {
        b.n = 0;
        rc = tok_norm_run(&t->norms[i], &a, &b, false, NULL, err);
        x = a;
        a = b;
        b = x;
    }
    if (rc == RC_OK)
        rc = tok_trie_add(&t->normed, a.s, a.n, id, flags, err);
    tok_text_deinit(&a);
    tok_text_deinit(&b);
    return rc;
}

static enum rc load_added(struct mdl_tok *t, const json_t *root, struct rc_err *err)
{
    const json_t *e;
    size_t i;
    enum rc rc = RC_OK;

    json_array_foreach(json_object_get(root, "added_tokens"), i, e)
    {
        const json_t *c = json_object_get(e, "content");
        int32_t id = (int32_t)json_integer_value(json_object_get(e, "id"));
        unsigned f = (tok_json_flag(e, "single_word", false) ? TOK_SINGLE_WORD : 0u) |
                     (tok_json_flag(e, "lstrip", false) ? TOK_LSTRIP : 0u) |
                     (tok_json_flag(e, "rstrip", false) ? TOK_RSTRIP : 0u);
        if (json_string_length(c) == 0)
            continue;
        if (tok_json_flag(e, "normalized", !tok_json_flag(e, "special", false)))
            rc = add_normalized(t, json_string_value(c), json_string_length(c), id, f, err);
        else
            rc = tok_trie_add(&t->raw, json_string_value(c), json_string_length(c), id, f, err);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* -------------------------------------------------------------------- models */

/* "a b" or ["a","b"]. */
static enum rc load_merge(struct mdl_tok *t, const json_t *e, size_t i, struct rc_err *err)
{
    const json_t *x = json_array_get(e, 0), *y = json_array_get(e, 1);
    const char *l = json_string_value(e), *r = l ? strchr(l, ' ') : NULL;

    if (r)
        return tok_bpe_merge_add(t, l, (size_t)(r - l), r + 1, strlen(r + 1), (uint32_t)i,
                                 "tokenizer.json", err);
    return tok_bpe_merge_add(t, json_string_value(x), json_string_length(x), json_string_value(y),
                             json_string_length(y), (uint32_t)i, "tokenizer.json", err);
}

static enum rc model_bpe(struct mdl_tok *t, const json_t *m, struct rc_err *err)
{
    const json_t *merges = json_object_get(m, "merges"), *e, *j;
    size_t i;
    enum rc rc;

    t->model = TOK_BPE;
    if ((j = json_object_get(m, "dropout")) && json_is_number(j) && json_number_value(j) > 0)
        return tok_json_refuse(err, "model BPE option", "dropout", "");
    if (json_string_length(json_object_get(m, "continuing_subword_prefix")))
        return tok_json_refuse(err, "model BPE option", "continuing_subword_prefix", "");
    j = json_object_get(m, "end_of_word_suffix");
    if (json_is_string(j) && !tok_json_fixed(j, t->bpe.suffix, &t->bpe.n_suffix))
        return tok_json_refuse(err, "model BPE option", "end_of_word_suffix", "over 64 bytes");
    t->bpe.ignore_merges = tok_json_flag(m, "ignore_merges", false);
    t->bpe.byte_fallback = tok_json_flag(m, "byte_fallback", false);
    if (t->bpe.byte_fallback && t->bpe.n_suffix)
        return tok_json_refuse(err, "model BPE option", "byte_fallback",
                               "beside end_of_word_suffix");
    t->bpe.fuse_unk = tok_json_flag(m, "fuse_unk", false);
    t->bpe.unk = find_str(t, json_object_get(m, "unk_token"));
    if (!json_is_array(merges) || json_array_size(merges) > TOK_MAX_IDS)
        return rc_fail(err, RC_FORMAT, "tokenizer.json: model.merges is no list of at most %u",
                       TOK_MAX_IDS);
    if ((rc = tok_bpe_merges_init(&t->bpe, json_array_size(merges), err)) != RC_OK)
        return rc;
    json_array_foreach(merges, i, e) if ((rc = load_merge(t, e, i, err)) != RC_OK) return rc;
    return RC_OK;
}

static enum rc model_wordpiece(struct mdl_tok *t, const json_t *m, struct rc_err *err)
{
    const json_t *max = json_object_get(m, "max_input_chars_per_word");

    t->model = TOK_WORDPIECE;
    t->wp.unk = find_str(t, json_object_get(m, "unk_token"));
    if (t->wp.unk < 0)
        return rc_fail(err, RC_FORMAT, "tokenizer.json: model.unk_token is not in the vocabulary");
    if (!tok_json_fixed(json_object_get(m, "continuing_subword_prefix"), t->wp.prefix,
                        &t->wp.n_prefix))
        return rc_fail(
            err, RC_FORMAT,
            "tokenizer.json: model.continuing_subword_prefix: at most 64 bytes expected");
    t->wp.max_chars = 100;
    if (json_is_integer(max)) {
        if (json_integer_value(max) < 1 || json_integer_value(max) > 10000)
            return rc_fail(err, RC_FORMAT,
                           "tokenizer.json: model.max_input_chars_per_word: 1 to 10000 expected");
        t->wp.max_chars = (uint32_t)json_integer_value(max);
    }
    return RC_OK;
}

static enum rc model_unigram(struct mdl_tok *t, const json_t *m, struct rc_err *err)
{
    const json_t *vocab = json_object_get(m, "vocab"), *unk = json_object_get(m, "unk_id"), *e;
    struct tok_unigram *u = &t->uni;
    size_t i, n = json_array_size(vocab);

    t->model = TOK_UNIGRAM;
    u->byte_fallback = tok_json_flag(m, "byte_fallback", false);
    if (n == 0)
        return rc_fail(err, RC_FORMAT, "tokenizer.json: model.vocab is no list of pieces");
    if (json_is_integer(unk)) {
        if (json_integer_value(unk) < 0 || json_integer_value(unk) >= (json_int_t)n)
            return rc_fail(err, RC_FORMAT,
                           "tokenizer.json: model.unk_id is %lld, the vocabulary has %zu",
                           (long long)json_integer_value(unk), n);
        u->unk = (int32_t)json_integer_value(unk);
    }
    if (!(u->scores = calloc(t->vocab.n_ids, sizeof(*u->scores))))
        return rc_fail(err, RC_NOMEM, "tokenizer.json: no memory for %zu scores", n);
    json_array_foreach(vocab, i, e)
    {
        const json_t *s = json_array_get(e, 1);
        double x = json_number_value(s);
        if (!json_is_number(s) || !(x - x == 0))
            return rc_fail(err, RC_FORMAT,
                           "tokenizer.json: the score of piece %zu is not a finite number", i);
        u->scores[i] = x;
    }
    return tok_unigram_init(t, (uint32_t)n, err);
}

static const struct tok_comp models[] = {
    {"BPE", model_bpe}, {"WordPiece", model_wordpiece}, {"Unigram", model_unigram}, {0}};

/* Files older than the "type" key are told by what they hold. */
static const char *model_type(const json_t *m)
{
    if (json_object_get(m, "type"))
        return tok_json_type(m);
    return json_object_get(m, "merges")                 ? "BPE"
           : json_is_array(json_object_get(m, "vocab")) ? "Unigram"
                                                        : "WordPiece";
}

static int32_t find_any(const struct mdl_tok *t, const char *const *names)
{
    for (; *names; names++) {
        int32_t id = tok_vocab_find(&t->vocab, *names, strlen(*names));
        if (id >= 0 && (t->vocab.flags[id] & TOK_SPECIAL))
            return id;
    }
    return -1;
}

/* ---------------------------------------------------------------------- load */

static enum rc load(struct mdl_tok *t, const json_t *root, struct rc_err *err)
{
    static const char *const ends[] = {"<eos>", "</s>", "[SEP]", NULL};
    const json_t *m = json_object_get(root, "model");
    const struct tok_comp *c = models;
    enum rc rc;

    if (!json_is_object(m))
        return rc_fail(err, RC_FORMAT, "tokenizer.json: there is no 'model' object");
    while (c->type && strcmp(c->type, model_type(m)) != 0)
        c++;
    if (!c->type)
        return tok_json_refuse(err, "model", model_type(m), "");
    if ((rc = tok_json_steps(t, root, err)) != RC_OK)
        return rc;
    if ((rc = load_vocab(t, root, c->load == model_unigram, err)) != RC_OK ||
        (rc = c->load(t, m, err)) != RC_OK || (rc = tok_spell_build(t, err)) != RC_OK)
        return rc;
    if (t->model == TOK_BPE && (rc = tok_bpe_init(t, err)) != RC_OK)
        return rc;
    if ((rc = load_added(t, root, err)) != RC_OK ||
        (rc = tok_json_post(t, json_object_get(root, "post_processor"), err)) != RC_OK)
        return rc;
    t->bos = t->single[0].n ? t->single[0].ids[0] : -1;
    t->eos = t->single[1].n ? t->single[1].ids[0] : find_any(t, ends);
    return RC_OK;
}

enum rc mdl_tok_from_json(struct mdl_tok **out, const char *json, size_t n_bytes,
                          struct rc_err *err)
{
    struct mdl_tok *t = tok_alloc();
    json_error_t je;
    json_t *root = NULL;
    enum rc rc;

    if (!t)
        return rc_fail(err, RC_NOMEM, "tokenizer.json: no memory");
    root = json_loadb(json, n_bytes, JSON_ALLOW_NUL, &je);
    if (!json_is_object(root))
        rc = rc_fail(err, RC_FORMAT, "tokenizer.json: %s (line %d)", root ? "no object" : je.text,
                     root ? 1 : je.line);
    else
        rc = load(t, root, err);
    json_decref(root);
    if (rc != RC_OK)
        mdl_tok_free(&t);
    else
        *out = t;
    return rc;
}
