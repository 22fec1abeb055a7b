/* mdl_tok_gguf.c - a tokenizer from GGUF metadata.
 *
 * "llama": pieces joined by score. "gemma4": pieces joined by the merges list,
 * newline stretches apart. Control, unknown and byte pieces are never made by a
 * join; control and unknown ones are special. Source: gemma.md 12.
 * "bert": WordPiece whose words begin with U+2581 and whose continuations carry
 * nothing. "t5": Unigram with its character map. "gpt2": BPE over bytes, which
 * tokenizer.ggml.pre names closer. All three give the ids of the
 * checkpoint's own tokenizer.json, where llama.cpp itself differs on decomposed
 * input (encoders.md 2.3, 11.1).
 * Tests: tests/models/test_mdl_tok_gguf.c, fuzz: tests/fuzz/fuzz_gguf.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

#define KEY(x) "tokenizer.ggml." x
#define SIGN "\xE2\x96\x81" /* U+2581 */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static const uint8_t flags_of[] = {
    [NORMAL] = 0,
    [UNKNOWN] = TOK_SPECIAL | TOK_NO_JOIN,
    [CONTROL] = TOK_SPECIAL | TOK_NO_JOIN,
    [USER_DEFINED] = 0,
    [UNUSED] = 0,
    [BYTE] = TOK_NO_JOIN,
};

/* What one tokenizer.ggml.model is made of. */
struct kind {
    const char *name;
    bool adds_bos, adds_eos; /* unless the file says otherwise */
    enum rc (*load)(struct mdl_tok *t, const struct mdl_file *f, size_t n, struct rc_err *err);
};

/* lstrip: the mask token takes the white space before it along, as in the own files of RoBERTa's
 * kind and of ModernBERT. */
static enum rc load_pieces(struct mdl_tok *t, const struct mdl_file *f, size_t n, bool lstrip,
                           struct rc_err *err)
{
    uint64_t mask = UINT64_MAX;
    struct tok_piece *p = calloc(n, sizeof(*p));
    uint8_t *types = calloc(n, 1);
    size_t len, n_types = 0;
    uint64_t type;
    enum rc rc = RC_OK;

    if (!p || !types) {
        rc = rc_fail(err, RC_NOMEM, "tokenizer: no memory for %zu pieces", n);
        goto out;
    }
    mdl_gguf_u64(f, KEY("mask_token_id"), &mask);
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
            rc = tok_trie_add(&t->raw, p[i].s, p[i].n, (int32_t)i,
                              lstrip && i == mask ? TOK_LSTRIP : 0, err);
out:
    free(p);
    free(types);
    return rc;
}

/* The score of every piece, to one of the two. */
static enum rc load_scores(const struct mdl_file *f, size_t n, float *out, double *out_wide,
                           struct rc_err *err)
{
    size_t n_scores = 0;
    double v;

    if (!out && !out_wide)
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for %zu scores", n);
    if (!mdl_gguf_arr(f, KEY("scores"), &n_scores) || n_scores != n)
        return rc_fail(err, RC_FORMAT, "GGUF: tokenizer.ggml.scores has %zu entries, expected %zu",
                       n_scores, n);
    for (size_t i = 0; i < n; i++) {
        if (!mdl_gguf_arr_f64(f, KEY("scores"), i, &v) || !(v - v == 0))
            return rc_fail(err, RC_FORMAT, "GGUF: the score of token %zu is not a finite number",
                           i);
        if (out)
            out[i] = (float)v;
        else
            out_wide[i] = v;
    }
    return RC_OK;
}

static enum rc load_merges(struct mdl_tok *t, const struct mdl_file *f, struct rc_err *err)
{
    size_t n = 0, len = 0;
    enum rc rc;

    t->model = TOK_BPE;
    if (!mdl_gguf_arr(f, KEY("merges"), &n) || n > TOK_MAX_IDS)
        return rc_fail(err, RC_FORMAT,
                       "GGUF: tokenizer.ggml.merges is absent or has over %u entries", TOK_MAX_IDS);
    if ((rc = tok_bpe_merges_init(&t->bpe, n, err)) != RC_OK)
        return rc;
    for (size_t i = 0; rc == RC_OK && i < n; i++) {
        const char *s = NULL, *r = NULL;

        if (mdl_gguf_arr_str(f, KEY("merges"), i, &s, &len) && len > 2)
            r = memchr(s + 1, ' ', len - 1);
        rc = r ? tok_bpe_merge_add(t, s, (size_t)(r - s), r + 1, len - (size_t)(r + 1 - s),
                                   (uint32_t)i, "GGUF", err)
               : tok_bpe_merge_add(t, NULL, 0, NULL, 0, (uint32_t)i, "GGUF", err);
    }
    return rc;
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

/* The first of some keys that is there; -1 when none is. */
static enum rc load_first(const struct mdl_tok *t, const struct mdl_file *f,
                          const char *const *keys, int32_t *out, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (*out = -1; *keys && *out < 0 && rc == RC_OK; keys++)
        rc = load_id(t, f, *keys, out, err);
    return rc;
}

/* ------------------------------------------------------------------- models */

static void sign_for_space(struct mdl_tok *t)
{
    t->norms[t->n_norms++] = (struct tok_norm){
        .kind = TOK_NORM_REPLACE, .from = " ", .to = SIGN, .n_from = 1, .n_to = 3};
}

static void space_for_sign(struct mdl_tok *t)
{
    memcpy(t->dec_from, SIGN, 3);
    t->n_dec_from = 3;
    t->dec_to[0] = ' ';
    t->n_dec_to = 1;
}

static enum rc finish_bpe(struct mdl_tok *t, const struct mdl_file *f, struct rc_err *err)
{
    enum rc rc;

    sign_for_space(t);
    space_for_sign(t);
    t->dec_bytes = true;
    t->bpe.byte_fallback = true;
    if ((rc = tok_spell_build(t, err)) != RC_OK || (rc = tok_bpe_init(t, err)) != RC_OK)
        return rc;
    return load_id(t, f, KEY("unknown_token_id"), &t->bpe.unk, err);
}

static enum rc load_llama(struct mdl_tok *t, const struct mdl_file *f, size_t n, struct rc_err *err)
{
    enum rc rc;

    t->model = TOK_SCORES;
    t->bpe.scores = malloc(n * sizeof(*t->bpe.scores));
    rc = load_scores(f, n, t->bpe.scores, NULL, err);
    t->space_prefix = true;
    mdl_gguf_bool(f, KEY("add_space_prefix"), &t->space_prefix);
    return rc == RC_OK ? finish_bpe(t, f, err) : rc;
}

static enum rc load_gemma4(struct mdl_tok *t, const struct mdl_file *f, size_t n,
                           struct rc_err *err)
{
    enum rc rc = load_merges(t, f, err);

    mdl_gguf_bool(f, KEY("add_space_prefix"), &t->space_prefix);
    t->pres[t->n_pres++].kind = TOK_PRE_NEWLINES;
    return rc == RC_OK ? finish_bpe(t, f, err) : rc;
}

static void pair_of(struct mdl_tok *t, int32_t first, int32_t sep, unsigned n_between)
{
    if (first < 0 || sep < 0)
        return;
    t->pair[0] = (struct tok_part){.ids = {first}, .n = 1};
    t->pair[1] = (struct tok_part){.ids = {sep, sep}, .n = n_between};
    t->pair[2] = (struct tok_part){.ids = {sep}, .n = 1};
    t->has_pair = true;
}

static enum rc load_bert(struct mdl_tok *t, const struct mdl_file *f, size_t n, struct rc_err *err)
{
    static const char *const firsts[] = {KEY("cls_token_id"), KEY("bos_token_id"), NULL};
    static const char *const seps[] = {KEY("seperator_token_id"), KEY("eos_token_id"), NULL};
    struct tok_norm *k = &t->norms[t->n_norms++];
    enum rc rc;

    *k =
        (struct tok_norm){.kind = TOK_NORM_BERT, .clean = true, .chinese = true, .lowercase = true};
    mdl_gguf_bool(f, KEY("normalizer.lowercase"), &k->lowercase);
    k->strip_accents = k->lowercase;
    mdl_gguf_bool(f, KEY("normalizer.strip_accents"), &k->strip_accents);
    t->pres[t->n_pres++].kind = TOK_PRE_BERT;
    t->model = TOK_WORDPIECE;
    t->wp.max_chars = 100;
    memcpy(t->wp.start, SIGN, 3);
    t->wp.n_start = 3;
    t->dec_wordpiece = t->dec_cleanup = t->dec_first = true;
    if ((rc = load_first(t, f, firsts, &t->bos, err)) != RC_OK ||
        (rc = load_first(t, f, seps, &t->eos, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("unknown_token_id"), &t->wp.unk, err)) != RC_OK)
        return rc;
    if (t->wp.unk < 0 && (t->wp.unk = tok_vocab_find(&t->vocab, "[UNK]", 5)) < 0)
        return rc_fail(err, RC_FORMAT,
                       "GGUF: tokenizer.ggml.unknown_token_id is absent, and there is no [UNK]");
    pair_of(t, t->bos, t->eos, 1);
    return tok_spell_build(t, err);
}

static enum rc load_charsmap(struct mdl_tok *t, const struct mdl_file *f, struct rc_err *err)
{
    const char *key = KEY("precompiled_charsmap");
    struct tok_norm *k = &t->norms[t->n_norms];
    uint8_t *bytes;
    size_t n = 0;
    uint64_t v = 0;
    enum rc rc = RC_OK;

    if (!mdl_gguf_arr(f, key, &n))
        return RC_OK;
    if (!(bytes = malloc(n + 1)))
        return rc_fail(err, RC_NOMEM, "tokenizer: no memory for a character map of %zu bytes", n);
    for (size_t i = 0; i < n && rc == RC_OK; i++) {
        if (!mdl_gguf_arr_u64(f, key, i, &v) || v > 0xFF)
            rc = rc_fail(err, RC_FORMAT, "GGUF: %s: entry %zu is no byte", key, i);
        bytes[i] = (uint8_t)v;
    }
    if (rc == RC_OK && (rc = tok_charsmap_new(&k->map, bytes, n, err)) == RC_OK) {
        k->kind = TOK_NORM_PRECOMPILED;
        t->n_norms++;
    }
    free(bytes);
    return rc;
}

static enum rc load_t5(struct mdl_tok *t, const struct mdl_file *f, size_t n, struct rc_err *err)
{
    struct tok_unigram *u = &t->uni;
    bool prefix = true, collapse = true;
    uint64_t type = NORMAL;
    enum rc rc;

    t->model = TOK_UNIGRAM;
    u->scores = calloc(n, sizeof(*u->scores));
    if ((rc = load_scores(f, n, NULL, u->scores, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        mdl_gguf_arr_u64(f, KEY("token_type"), i, &type);
        if (type == UNUSED) /* filling, up to a round number of rows */
            t->vocab.flags[i] |= TOK_NO_JOIN;
    }
    if ((rc = load_charsmap(t, f, err)) != RC_OK)
        return rc;
    mdl_gguf_bool(f, KEY("add_space_prefix"), &prefix);
    mdl_gguf_bool(f, KEY("remove_extra_whitespaces"), &collapse);
    if (collapse)
        t->pres[t->n_pres++] = (struct tok_pre){.kind = TOK_PRE_SPACES, .behavior = TOK_REMOVED};
    t->pres[t->n_pres++] = (struct tok_pre){.kind = TOK_PRE_METASPACE,
                                            .prepend = prefix ? TOK_ALWAYS : TOK_NEVER,
                                            .split = true,
                                            .pat = SIGN,
                                            .n_pat = 3};
    space_for_sign(t);
    t->dec_first = t->dec_metaspace = prefix;
    if ((rc = load_id(t, f, KEY("bos_token_id"), &t->bos, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("eos_token_id"), &t->eos, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("unknown_token_id"), &u->unk, err)) != RC_OK ||
        (rc = tok_spell_build(t, err)) != RC_OK)
        return rc;
    pair_of(t, t->bos, t->eos, 2);
    return tok_unigram_init(t, (uint32_t)n, err);
}

/* Byte-level BPE of encoders: all split words by GPT-2's expression. */
static const struct {
    const char *name;   /* tokenizer.ggml.pre */
    bool nfc, trim;     /* normalizes; offsets without white space */
    unsigned n_between; /* separators between the texts of a pair */
} byte_pres[] = {
    {"roberta-bpe", false, true, 2},
    {"modern-bert", true, false, 1},
};
#define N_BYTE_PRES (sizeof(byte_pres) / sizeof(byte_pres[0]))

static enum rc load_gpt2(struct mdl_tok *t, const struct mdl_file *f, size_t n, struct rc_err *err)
{
    static const char *const firsts[] = {KEY("cls_token_id"), KEY("bos_token_id"), NULL};
    static const char *const seps[] = {KEY("seperator_token_id"), KEY("eos_token_id"), NULL};
    const char *pre = "";
    size_t n_pre = 0, i = 0;
    char show[40];
    enum rc rc;

    mdl_gguf_str(f, KEY("pre"), &pre, &n_pre);
    while (i < N_BYTE_PRES &&
           (n_pre != strlen(byte_pres[i].name) || memcmp(pre, byte_pres[i].name, n_pre) != 0))
        i++;
    if (i == N_BYTE_PRES)
        return rc_fail_what(err, RC_UNSUPPORTED, KEY("pre"),
                            "GGUF: words of tokenizer 'gpt2' split as '%s' says are not supported "
                            "(only 'roberta-bpe' and 'modern-bert')",
                            mdl_show(show, sizeof(show), pre, n_pre));
    if (byte_pres[i].nfc)
        t->norms[t->n_norms++] = (struct tok_norm){.kind = TOK_NORM_UNICODE, .compose = true};
    t->pres[t->n_pres++] = (struct tok_pre){
        .kind = TOK_PRE_BYTES, .prepend = TOK_NEVER, .split = true, .regex = TOK_RE_GPT2};
    t->trim = byte_pres[i].trim;
    t->dec_lossy = true;
    if ((rc = load_merges(t, f, err)) != RC_OK ||
        (rc = load_first(t, f, firsts, &t->bos, err)) != RC_OK ||
        (rc = load_first(t, f, seps, &t->eos, err)) != RC_OK ||
        (rc = load_id(t, f, KEY("unknown_token_id"), &t->bpe.unk, err)) != RC_OK ||
        (rc = tok_spell_build(t, err)) != RC_OK)
        return rc;
    pair_of(t, t->bos, t->eos, byte_pres[i].n_between);
    return tok_bpe_init(t, err);
}

static const struct kind kinds[] = {
    {"llama", true, false, load_llama}, {"gemma4", true, false, load_gemma4},
    {"bert", true, true, load_bert},    {"t5", false, true, load_t5},
    {"gpt2", true, true, load_gpt2},
};

/* --------------------------------------------------------------------- load */

static enum rc load(struct mdl_tok *t, const struct mdl_file *f, struct rc_err *err)
{
    const struct kind *k = NULL;
    const char *model = "";
    size_t n_model = 0, n = 0;
    bool add_bos, add_eos, lstrip;
    char show[40];
    enum rc rc;

    mdl_gguf_str(f, KEY("model"), &model, &n_model);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (n_model == strlen(kinds[i].name) && memcmp(model, kinds[i].name, n_model) == 0)
            k = &kinds[i];
    if (!k)
        return rc_fail_what(
            err, RC_UNSUPPORTED, KEY("model"),
            "GGUF: tokenizer '%s' is not supported (only 'llama', 'gemma4', 'bert', "
            "'t5' and 'gpt2')",
            mdl_show(show, sizeof(show), model, n_model));
    if (!mdl_gguf_arr(f, KEY("tokens"), &n) || n == 0 || n > TOK_MAX_IDS)
        return rc_fail(err, RC_FORMAT, "GGUF: tokenizer.ggml.tokens: %zu entries, expected 1 to %u",
                       n, TOK_MAX_IDS);
    lstrip = k->load == load_t5 || k->load == load_gpt2;
    if ((rc = load_pieces(t, f, n, lstrip, err)) != RC_OK || (rc = k->load(t, f, n, err)) != RC_OK)
        return rc;
    if ((t->bos < 0 && (rc = load_id(t, f, KEY("bos_token_id"), &t->bos, err)) != RC_OK) ||
        (t->eos < 0 && (rc = load_id(t, f, KEY("eos_token_id"), &t->eos, err)) != RC_OK))
        return rc;
    add_bos = k->adds_bos;
    add_eos = k->adds_eos;
    mdl_gguf_bool(f, KEY("add_bos_token"), &add_bos);
    mdl_gguf_bool(f, KEY("add_eos_token"), &add_eos);
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
