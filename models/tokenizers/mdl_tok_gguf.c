/* mdl_tok_gguf.c - a tokenizer from GGUF metadata.
 *
 * "llama": pieces joined by score. "gemma4": pieces joined by the merges list,
 * newline stretches apart. Control, unknown and byte pieces are never made by a
 * join; control and unknown ones are special. Source: gemma.md 12.
 * Tests: tests/models/test_mdl_tok_gguf.c, fuzz: tests/fuzz/fuzz_gguf.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

#define KEY(x) "tokenizer.ggml." x

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static const uint8_t flags_of[] = {
    [NORMAL] = 0,
    [UNKNOWN] = TOK_SPECIAL | TOK_NO_JOIN,
    [CONTROL] = TOK_SPECIAL | TOK_NO_JOIN,
    [USER_DEFINED] = 0,
    [UNUSED] = 0,
    [BYTE] = TOK_NO_JOIN,
};

static enum rc load_pieces(struct mdl_tok *t, const struct mdl_file *f, size_t n,
                           struct rc_err *err)
{
    struct tok_piece *p = calloc(n, sizeof(*p));
    uint8_t *types = calloc(n, 1);
    size_t len, n_types = 0;
    uint64_t type;
    enum rc rc = RC_OK;

    if (!p || !types) {
        rc = rc_fail(err, RC_NOMEM, "tokenizer: no memory for %zu pieces", n);
        goto out;
    }
    if (!mdl_gguf_arr(f, KEY("token_type"), &n_types) || n_types != n) {
        rc = rc_fail(err, RC_FORMAT,
                     "GGUF: tokenizer.ggml.token_type has %zu entries, expected %zu", n_types, n);
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        if (!mdl_gguf_arr_str(f, KEY("tokens"), i, &p[i].s, &len) || len > TOK_PIECE_LIMIT ||
            !mdl_gguf_arr_u64(f, KEY("token_type"), i, &type) || type < NORMAL || type > BYTE) {
            rc = rc_fail(err, RC_FORMAT,
                         "GGUF: token %zu: a string of at most %d bytes and a type from 1 to 6 "
                         "expected",
                         i, TOK_PIECE_LIMIT);
            goto out;
        }
        p[i].n = (uint32_t)len;
        p[i].flags = flags_of[type];
        types[i] = (uint8_t)type;
    }
    if ((rc = tok_vocab_build(&t->vocab, p, (uint32_t)n, err)) != RC_OK)
        goto out;
    for (size_t i = 0; i < n && rc == RC_OK; i++)
        if (types[i] == CONTROL || types[i] == USER_DEFINED || types[i] == UNKNOWN)
            rc = tok_trie_add(&t->raw, p[i].s, p[i].n, (int32_t)i, 0, err);
out:
    free(p);
    free(types);
    return rc;
}

static enum rc load_scores(struct mdl_tok *t, const struct mdl_file *f, size_t n,
                           struct rc_err *err)
{
    size_t n_scores = 0;
    double v;

    t->model = TOK_SCORES;
    t->bpe.scores = malloc(n * sizeof(*t->bpe.scores));
    if (!t->bpe.scores)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %zu scores", n);
    if (!mdl_gguf_arr(f, KEY("scores"), &n_scores) || n_scores != n)
        return rc_fail(err, RC_FORMAT, "GGUF: tokenizer.ggml.scores has %zu entries, expected %zu",
                       n_scores, n);
    for (size_t i = 0; i < n; i++) {
        if (!mdl_gguf_arr_f64(f, KEY("scores"), i, &v) || !(v - v == 0))
            return rc_fail(err, RC_FORMAT, "GGUF: the score of token %zu is not a finite number",
                           i);
        t->bpe.scores[i] = (float)v;
    }
    return RC_OK;
}

static enum rc load_merges(struct mdl_tok *t, const struct mdl_file *f, struct rc_err *err)
{
    char buf[2 * MDL_PIECE_MAX];
    size_t n = 0, len = 0;
    const char *s = NULL, *sp;
    enum rc rc;

    t->model = TOK_BPE;
    if (!mdl_gguf_arr(f, KEY("merges"), &n) || n > TOK_MAX_IDS)
        return rc_fail(err, RC_FORMAT,
                       "GGUF: tokenizer.ggml.merges is absent or has over %u entries", TOK_MAX_IDS);
    if ((rc = tok_bpe_merges_init(&t->bpe, n, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        int32_t a = -1, b = -1, id = -1;
        if (mdl_gguf_arr_str(f, KEY("merges"), i, &s, &len) && len > 2 && len < sizeof(buf) &&
            (sp = memchr(s + 1, ' ', len - 1))) {
            size_t nl = (size_t)(sp - s), nr = len - nl - 1;
            a = tok_vocab_find(&t->vocab, s, nl);
            b = tok_vocab_find(&t->vocab, sp + 1, nr);
            memcpy(buf, s, nl);
            memcpy(buf + nl, sp + 1, nr);
            id = tok_vocab_find(&t->vocab, buf, nl + nr);
        }
        if (a < 0 || b < 0 || id < 0)
            return rc_fail(err, RC_FORMAT, "GGUF: merge %zu does not join two pieces into a third",
                           i);
        if (!(t->vocab.flags[id] & TOK_NO_JOIN))
            tok_bpe_merge_add(&t->bpe, (uint32_t)a, (uint32_t)b, (uint32_t)i, (uint32_t)id);
    }
    return RC_OK;
}

/* Id under key, -1 when absent. */
static enum rc load_id(const struct mdl_tok *t, const struct mdl_file *f, const char *key,
                       int32_t *out, struct rc_err *err)
{
    uint64_t v;

    *out = -1;
    if (!mdl_gguf_u64(f, key, &v))
        return RC_OK;
    if (v >= t->vocab.n_ids)
        return rc_fail_what(err, RC_FORMAT, key, "GGUF: %s is %llu, the vocabulary has %u", key,
                            (unsigned long long)v, t->vocab.n_ids);
    *out = (int32_t)v;
    return RC_OK;
}

static enum rc load(struct mdl_tok *t, const struct mdl_file *f, struct rc_err *err)
{
    const char *model = "";
    size_t n_model = 0, n = 0;
    bool scores, add_bos = true, add_eos = false;
    char show[40];
    enum rc rc;

    mdl_gguf_str(f, KEY("model"), &model, &n_model);
    scores = n_model == 5 && memcmp(model, "llama", 5) == 0;
    if (!scores && (n_model != 6 || memcmp(model, "gemma4", 6) != 0))
        return rc_fail_what(err, RC_UNSUPPORTED, KEY("model"),
                            "GGUF: tokenizer '%s' is not supported (only 'llama' and 'gemma4')",
                            mdl_show(show, sizeof(show), model, n_model));
    if (!mdl_gguf_arr(f, KEY("tokens"), &n) || n == 0 || n > TOK_MAX_IDS)
        return rc_fail(err, RC_FORMAT, "GGUF: tokenizer.ggml.tokens: %zu entries, expected 1 to %u",
                       n, TOK_MAX_IDS);
    t->space_prefix = scores;
    mdl_gguf_bool(f, KEY("add_space_prefix"), &t->space_prefix);
    mdl_gguf_bool(f, KEY("add_bos_token"), &add_bos);
    mdl_gguf_bool(f, KEY("add_eos_token"), &add_eos);
    t->norms[0] = (struct tok_norm){
        .kind = TOK_NORM_REPLACE, .from = " ", .to = "\xE2\x96\x81", .n_from = 1, .n_to = 3};
    t->n_norms = 1;
    if (!scores)
        t->pres[t->n_pres++].kind = TOK_PRE_NEWLINES;
    t->dec_bytes = true;
    memcpy(t->dec_from, "\xE2\x96\x81", 3);
    t->n_dec_from = 3;
    memcpy(t->dec_to, " ", 1);
    t->n_dec_to = 1;
    t->bpe.byte_fallback = true;
    if ((rc = load_pieces(t, f, n, err)) != RC_OK ||
        (rc = scores ? load_scores(t, f, n, err) : load_merges(t, f, err)) != RC_OK ||
        (rc = tok_spell_build(t, err)) != RC_OK || (rc = tok_bpe_init(t, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("bos_token_id"), &t->bos, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("eos_token_id"), &t->eos, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("unknown_token_id"), &t->bpe.unk, err)) != RC_OK)
        return rc;
    if (add_bos && t->bos >= 0)
        t->single[0].ids[t->single[0].n++] = t->bos;
    if (add_eos && t->eos >= 0)
        t->single[1].ids[t->single[1].n++] = t->eos;
    return RC_OK;
}

enum rc mdl_tok_from_gguf(struct mdl_tok **out, const struct mdl_file *f, struct rc_err *err)
{
    struct mdl_tok *t = tok_alloc();
    enum rc rc;

    if (!t)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory");
    rc = load(t, f, err);
    if (rc != RC_OK)
        mdl_tok_free(&t);
    else
        *out = t;
    return rc;
}
