/* mdl_tok_encode.c - runs a tokenizer over a text.
 *
 * Added tokens are cut out of the raw text; each stretch between two is
 * normalized, cut again at normalized added tokens, cut into words and given to
 * the model; the template goes around it all. Stops as soon as the bound on
 * tokens is passed; on any error the caller's ids are as before.
 * Tests: tests/models/test_mdl_tok*.c, fuzz: tests/fuzz/fuzz_tok_encode.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

#define BLOCK_BYTES 4096

/* --------------------------------------------------------------------- ids */

void mdl_ids_deinit(struct mdl_ids *v)
{
    free(v->ids);
    free(v->offsets);
    *v = (struct mdl_ids){0};
}

static enum rc ids_reserve(struct mdl_ids *v, bool offsets, struct rc_err *err)
{
    size_t cap = v->n < v->cap ? v->cap : v->cap ? 2 * v->cap : 64;

    if (v->n < v->cap && (!offsets || v->offsets))
        return RC_OK;
    if (cap > SIZE_MAX / 16)
        return rc_fail(err, RC_NOMEM, "no memory for %zu tokens", v->n);
    if (offsets || v->offsets) {
        uint32_t *o = realloc(v->offsets, cap * 2 * sizeof(*o));
        if (!o)
            return rc_fail(err, RC_NOMEM, "no memory for %zu tokens", cap);
        if (!v->offsets)
            memset(o, 0, cap * 2 * sizeof(*o)); /* ids pushed before it was asked for */
        v->offsets = o;
    }
    int32_t *p = realloc(v->ids, cap * sizeof(*p));
    if (!p)
        return rc_fail(err, RC_NOMEM, "no memory for %zu tokens", cap);
    v->ids = p;
    v->cap = cap;
    return RC_OK;
}

enum rc mdl_ids_push(struct mdl_ids *v, int32_t id, struct rc_err *err)
{
    enum rc rc = ids_reserve(v, false, err);

    if (rc != RC_OK)
        return rc;
    if (v->offsets)
        v->offsets[2 * v->n] = v->offsets[2 * v->n + 1] = 0;
    v->ids[v->n++] = id;
    return RC_OK;
}

/* -------------------------------------------------------------------- text */

enum rc tok_text_push(struct tok_text *t, bool with_src, const char *s, size_t n, uint32_t from,
                      uint32_t to, struct rc_err *err)
{
    /* 1 GiB of input may grow 64-fold in a normalizer, again and again */
    if (n > TOK_MAX_GROWN - t->n)
        return rc_fail(err, RC_TOO_LARGE, "a normalized text of more than %u bytes", TOK_MAX_GROWN);
    if (n + 1 > t->cap - t->n) {
        size_t cap = t->cap ? 2 * t->cap : 256;
        while (cap - t->n < n + 1)
            cap *= 2;
        char *p = realloc(t->s, cap);
        if (p)
            t->s = p;
        uint32_t *q = with_src && p ? realloc(t->src, cap * 2 * sizeof(*q)) : NULL;
        if (q)
            t->src = q;
        if (!p || (with_src && !q))
            return rc_fail(err, RC_NOMEM, "no memory for a text of %zu bytes", cap);
        t->cap = cap;
    }
    if (n)
        memcpy(t->s + t->n, s, n);
    for (size_t i = 0; with_src && i < n; i++) {
        t->src[2 * (t->n + i)] = from;
        t->src[2 * (t->n + i) + 1] = to;
    }
    t->n += n;
    t->s[t->n] = '\0';
    return RC_OK;
}

void tok_text_deinit(struct tok_text *t)
{
    free(t->s);
    free(t->src);
    *t = (struct tok_text){0};
}

/* -------------------------------------------------------------------- emit */

enum rc tok_over(struct tok_run *r, size_t at_least)
{
    size_t n = r->out->n - r->base + at_least;
    enum rc rc;

    if (n <= r->flags->max_tokens)
        n = r->flags->max_tokens + 1;
    rc = rc_fail(r->err, RC_TOO_LARGE, "the text has at least %zu tokens, at most %zu are allowed",
                 n, r->flags->max_tokens);
    if (r->err) {
        r->err->n = n;
        r->err->limit = r->flags->max_tokens;
    }
    return rc;
}

enum rc tok_stop_error(struct tok_run *r)
{
    return rc_fail(r->err, RC_CANCELLED, "stopped while reading a text");
}

static enum rc push(struct tok_run *r, int32_t id, uint32_t from, uint32_t to)
{
    struct mdl_ids *v = r->out;
    enum rc rc;

    if (r->flags->max_tokens && v->n - r->base >= r->flags->max_tokens)
        return tok_over(r, 1);
    if ((v->n == v->cap || (r->flags->offsets && !v->offsets)) &&
        (rc = ids_reserve(v, r->flags->offsets, r->err)) != RC_OK)
        return rc;
    if (v->offsets) {
        v->offsets[2 * v->n] = from;
        v->offsets[2 * v->n + 1] = to;
    }
    v->ids[v->n++] = id;
    return RC_OK;
}

enum rc tok_emit(struct tok_run *r, int32_t id, size_t from, size_t to)
{
    const struct tok_text *c = r->cur;

    if (!r->flags->offsets || to <= from || to > c->n)
        return push(r, id, 0, 0);
    return push(r, id, c->src[2 * from], c->src[2 * (to - 1) + 1]);
}

/* ------------------------------------------------------------------- steps */

/* One-byte patterns (the space of Gemma's files) are the common case; besides, the
 * sanitizer's memmem looks at all that is left on every call. */
static const char *find(const char *s, size_t n, const char *pat, size_t n_pat)
{
    return n_pat == 1 ? memchr(s, pat[0], n) : memmem(s, n, pat, n_pat);
}

static enum rc norm_replace(const struct tok_norm *k, const struct tok_text *in,
                            struct tok_text *out, bool with_src, struct tok_run *r,
                            struct rc_err *err)
{
    enum rc rc = RC_OK;
    size_t i = 0, k0;
    const char *hit;

    while (i < in->n && rc == RC_OK) {
        if (r && tok_stopped(r))
            return tok_stop_error(r);
        hit = find(in->s + i, in->n - i, k->from, k->n_from);
        size_t stop = hit ? (size_t)(hit - in->s) : in->n;
        if (!with_src) {
            rc = tok_text_push(out, false, in->s + i, stop - i, 0, 0, err);
            i = stop;
        } else {
            for (; i < stop && rc == RC_OK && !(r && tok_stopped(r)); i++)
                rc =
                    tok_text_push(out, true, in->s + i, 1, in->src[2 * i], in->src[2 * i + 1], err);
        }
        if (r && r->stopped)
            return tok_stop_error(r);
        if (hit && rc == RC_OK) { /* all of it takes the range of the last character replaced */
            k0 = 2 * (stop + k->n_from - 1);
            rc = tok_text_push(out, with_src, k->to, k->n_to, with_src ? in->src[k0] : 0,
                               with_src ? in->src[k0 + 1] : 0, err);
            i = stop + k->n_from;
        }
    }
    return rc;
}

enum rc tok_norm_run(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                     bool with_src, struct tok_run *r, struct rc_err *err)
{
    enum rc rc;

    /* an empty result is still a string */
    if ((rc = tok_text_push(out, with_src, "", 0, 0, 0, err)) != RC_OK)
        return rc;
    return k->kind == TOK_NORM_BERT ? tok_norm_bert(k, in, out, with_src, r, err)
                                    : norm_replace(k, in, out, with_src, r, err);
}

static enum rc run_model(struct tok_run *r, size_t from, size_t to)
{
    return r->t->model == TOK_WORDPIECE ? tok_wordpiece_word(r, from, to)
                                        : tok_bpe_word(r, from, to);
}

static enum rc run_newlines(struct tok_run *r, size_t from, size_t to)
{
    const char *s = r->cur->s;
    enum rc rc = RC_OK;

    for (size_t i = from, j; i < to && rc == RC_OK; i = j) {
        bool nl = s[i] == '\n';
        for (j = i; j < to && (s[j] == '\n') == nl; j++)
            ;
        int32_t id = nl ? tok_vocab_find(&r->t->vocab, s + i, j - i) : -1;
        rc = id >= 0 ? tok_emit(r, id, i, j) : run_model(r, i, j);
    }
    return rc;
}

static enum rc run_split(struct tok_run *r, const struct tok_pre *p, size_t from, size_t to)
{
    const char *s = r->cur->s, *hit;
    enum rc rc = RC_OK;

    while (from < to && rc == RC_OK) {
        hit = find(s + from, to - from, p->pat, p->n_pat);
        size_t end = hit ? (size_t)(hit - s) + p->n_pat : to;
        rc = run_model(r, from, end);
        from = end;
    }
    return rc;
}

/* A normalized piece without added tokens: words, then the model. */
static enum rc run_words(struct tok_run *r, size_t from, size_t to)
{
    const struct mdl_tok *t = r->t;
    size_t at = from, end = 0;
    enum rc rc = RC_OK;

    if (from >= to)
        return RC_OK;
    if (t->n_pres == 0)
        return run_model(r, from, to);
    switch (t->pres[0].kind) {
    case TOK_PRE_NEWLINES:
        return run_newlines(r, from, to);
    case TOK_PRE_SPLIT_PREV:
        return run_split(r, &t->pres[0], from, to);
    case TOK_PRE_BERT:
        while (rc == RC_OK && tok_pre_bert(r->cur->s, to, &at, &end)) {
            rc = run_model(r, at, end);
            at = end;
        }
        return rc;
    }
    return rc_fail(r->err, RC_INTERNAL, "unknown pre-tokenizer");
}

/* Part of a stretch (or all of it). first_cp: its place in the input. */
static enum rc run_block(struct tok_run *r, const char *s, size_t n, uint32_t first_cp,
                         bool prefix_space)
{
    const struct mdl_tok *t = r->t;
    bool src = r->flags->offsets;
    struct tok_text *in = &r->a, *out = &r->b, *swap;
    enum rc rc;
    size_t i, k, from = 0, scan = 0;
    uint32_t cp, at = first_cp;

    in->n = out->n = 0;
    if (prefix_space && (rc = tok_text_push(in, src, " ", 1, at, at + 1, r->err)) != RC_OK)
        return rc;
    if (!src) {
        if ((rc = tok_text_push(in, false, s, n, 0, 0, r->err)) != RC_OK)
            return rc;
    } else {
        for (i = 0; i < n; i += k, at++) {
            k = tok_utf8(s + i, n - i, &cp);
            if (tok_stopped(r))
                return tok_stop_error(r);
            if ((rc = tok_text_push(in, true, s + i, k, at, at + 1, r->err)) != RC_OK)
                return rc;
        }
    }
    for (i = 0; i < t->n_norms; i++) {
        out->n = 0;
        if ((rc = tok_norm_run(&t->norms[i], in, out, src, r, r->err)) != RC_OK)
            return rc;
        swap = in;
        in = out;
        out = swap;
    }
    r->cur = in;
    if (in->n == 0)
        return RC_OK;
    for (;;) {
        struct tok_match m = tok_trie_next(&t->normed, &t->vocab, in->s, in->n, from, &scan,
                                           r->flags->parse_special, r);
        if (r->stopped)
            return tok_stop_error(r);
        if ((rc = run_words(r, from, m.start)) != RC_OK || m.id < 0)
            return rc;
        if ((rc = tok_emit(r, m.id, m.start, m.end)) != RC_OK)
            return rc;
        from = m.end;
    }
}

static uint32_t count_cps(const char *s, size_t n)
{
    uint32_t c = 0;

    for (size_t i = 0; i < n; i++)
        c += ((unsigned char)s[i] & 0xC0) != 0x80;
    return c;
}

/* Raw text between two added tokens. Where words end at a space whatever stands
 * around it, a long text is taken in blocks: it stops early when there are too
 * many tokens, and needs little memory. */
static enum rc run_stretch(struct tok_run *r, const char *s, size_t n, uint32_t first_cp,
                           bool prefix_space)
{
    const struct mdl_tok *t = r->t;
    bool blocks = t->n_pres && t->pres[0].kind == TOK_PRE_BERT && !t->normed.any &&
                  (t->n_norms == 0 || (t->n_norms == 1 && t->norms[0].kind == TOK_NORM_BERT));
    enum rc rc = RC_OK;

    for (size_t from = 0, to; from < n && rc == RC_OK; from = to) {
        to = n;
        if (blocks && n - from > BLOCK_BYTES) {
            const char *sp = memchr(s + from + BLOCK_BYTES, ' ', n - from - BLOCK_BYTES);
            to = sp ? (size_t)(sp - s) : n;
        }
        rc = run_block(r, s + from, to - from, first_cp, prefix_space && from == 0);
        if (r->flags->offsets)
            first_cp += count_cps(s + from, to - from);
    }
    return rc;
}

static enum rc run_text(struct tok_run *r, const char *s, size_t n)
{
    const struct mdl_tok *t = r->t;
    size_t from = 0, scan = 0;
    uint32_t at = 0, len;
    bool behind_token = true;
    enum rc rc;

    for (;;) {
        struct tok_match m =
            tok_trie_next(&t->raw, &t->vocab, s, n, from, &scan, r->flags->parse_special, r);
        if (r->stopped)
            return tok_stop_error(r);
        if (m.start > from) {
            rc = run_stretch(r, s + from, m.start - from, at, t->space_prefix && behind_token);
            if (rc != RC_OK)
                return rc;
            if (r->flags->offsets)
                at += count_cps(s + from, m.start - from);
            behind_token = false;
        }
        if (m.id < 0)
            return RC_OK;
        len = r->flags->offsets ? count_cps(s + m.start, m.end - m.start) : 0;
        if ((rc = push(r, m.id, at, at + len)) != RC_OK)
            return rc;
        behind_token = true;
        at += len;
        from = m.end;
    }
}

static enum rc check_utf8(const char *s, size_t n, struct rc_err *err)
{
    uint32_t cp;
    size_t k;

    for (size_t i = 0; i < n; i += k) {
        if (!(k = tok_utf8(s + i, n - i, &cp))) {
            enum rc rc =
                rc_fail(err, RC_INVALID, "the text is not UTF-8: bad byte at offset %zu", i);
            if (err)
                err->n = i;
            return rc;
        }
    }
    return RC_OK;
}

enum rc mdl_tok_encode(const struct mdl_tok *t, const char *text, size_t n_bytes,
                       const struct mdl_tok_flags *flags, struct mdl_ids *out, struct rc_err *err)
{
    struct tok_run r = {.t = t, .flags = flags, .out = out, .base = out->n, .err = err};
    enum rc rc;

    if (n_bytes > TOK_MAX_TEXT) {
        rc = rc_fail(err, RC_TOO_LARGE, "a text of %zu bytes, at most %u are allowed", n_bytes,
                     TOK_MAX_TEXT);
        if (err) {
            err->n = n_bytes;
            err->limit = TOK_MAX_TEXT;
        }
        return rc;
    }
    if ((rc = check_utf8(text, n_bytes, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; flags->add_special && i < t->n_prefix && rc == RC_OK; i++)
        rc = push(&r, t->prefix[i], 0, 0);
    if (rc == RC_OK)
        rc = run_text(&r, text, n_bytes);
    for (uint32_t i = 0; flags->add_special && i < t->n_suffix && rc == RC_OK; i++)
        rc = push(&r, t->suffix[i], 0, 0);
    if (rc != RC_OK)
        out->n = r.base;
    tok_text_deinit(&r.a);
    tok_text_deinit(&r.b);
    free(r.syms);
    free(r.heap);
    return rc;
}
