/* mdl_tok_bert.c - BERT's normalizer and pre-tokenizer, and character classes.
 *
 * Source: encoders.md 2.3, 2.4. Works on one starter with its combining marks
 * at a time, so buffers stay small; canonical order never moves a mark across a
 * starter. Decompositions come from libutf8proc, classes from mdl_tok_chars.c.
 * Tests: tests/models/test_mdl_tok_bert.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

#include <stdlib.h>
#include <utf8proc.h>

struct ch {
    uint32_t cp, from, to; /* and the input's code points it came from */
    uint32_t order;        /* combining class << 24 | place: a stable sort */
    bool added;            /* not the first of its character's decomposition */
};

struct seg {
    struct ch *c;
    size_t n, cap;
};

static bool seg_push(struct seg *g, struct ch c)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 32;
        void *p = realloc(g->c, cap * sizeof(*g->c));
        if (!p)
            return false;
        g->c = p;
        g->cap = cap;
    }
    g->c[g->n++] = c;
    return true;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static int by_order(const void *a, const void *b)
{
    const struct ch *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order;
}

static enum rc put(struct tok_text *out, bool with_src, bool lower, uint32_t cp, uint32_t from,
                   uint32_t to, struct rc_err *err)
{
    char buf[8];
    size_t n;

    if (lower && cp == 0x130) { /* the only character with a longer lower case */
        memcpy(buf, "i\xCC\x87", 3);
        n = 3;
    } else {
        n = tok_utf8_put(buf, lower ? tok_lower(cp) : cp);
    }
    return tok_text_push(out, with_src, buf, n, from, to, err);
}

/* Sorts the marks of a segment, drops accents, lowers, writes. The reference
 * aligns by place: the k-th first-of-its-character takes the k-th character's
 * range, the others that of the character before them. */
static enum rc flush(const struct tok_norm *k, struct seg *g, struct tok_text *out, bool with_src,
                     struct rc_err *err)
{
    enum rc rc = RC_OK;
    size_t old = 0, i;

    if (g->n == 0)
        return RC_OK;
    if (with_src && g->n > 1) {
        /* ranges by place: keep the sources in input order aside */
        struct ch *src = malloc(g->n * sizeof(*src));
        struct ch base = g->c[0];
        size_t n_src = 0;
        if (!src)
            return rc_fail(err, RC_NOMEM, "no memory to normalize a text");
        for (i = 0; i < g->n; i++)
            if (!g->c[i].added)
                src[n_src++] = g->c[i];
        qsort(g->c, g->n, sizeof(*g->c), by_order);
        for (i = 0; i < g->n; i++) {
            const struct ch *place = &base; /* a segment may begin inside a character */
            if (!g->c[i].added)
                place = &src[old++];
            else if (old)
                place = &src[old - 1];
            g->c[i].from = place->from;
            g->c[i].to = place->to;
        }
        free(src);
    } else if (g->n > 1) {
        qsort(g->c, g->n, sizeof(*g->c), by_order);
    }
    for (i = 0; i < g->n && rc == RC_OK; i++)
        if (!tok_is_accent(g->c[i].cp))
            rc = put(out, with_src, k->lowercase, g->c[i].cp, g->c[i].from, g->c[i].to, err);
    g->n = 0;
    return rc;
}

/* One cleaned character into the current segment, decomposed. */
static enum rc decompose(const struct tok_norm *k, struct seg *g, uint32_t cp, uint32_t from,
                         uint32_t to, struct tok_text *out, bool with_src, struct rc_err *err)
{
    utf8proc_int32_t buf[32];
    int boundary = 0;
    utf8proc_ssize_t n;
    enum rc rc;

    n = tok_decomposes(cp, false)
            ? utf8proc_decompose_char((utf8proc_int32_t)cp, buf, 32, UTF8PROC_DECOMPOSE, &boundary)
            : 0;
    if (n < 1 || n > 32) {
        n = 1;
        buf[0] = (utf8proc_int32_t)cp;
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        uint32_t c = (uint32_t)buf[i], ccc = tok_combining(c);
        if (ccc == 0 && (rc = flush(k, g, out, with_src, err)) != RC_OK)
            return rc;
        if (g->n >= 1u << 24)
            return rc_fail(err, RC_TOO_LARGE, "more than 16777216 combining marks in a row");
        if (!seg_push(g, (struct ch){c, from, to, ccc << 24 | (uint32_t)g->n, i > 0}))
            return rc_fail(err, RC_NOMEM, "no memory to normalize a text");
    }
    return RC_OK;
}

enum rc tok_norm_bert(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                      bool with_src, struct tok_run *r, struct rc_err *err)
{
    struct seg g = {0};
    enum rc rc = RC_OK;
    uint32_t cp, from = 0, to = 0;

    for (size_t i = 0, len; i < in->n && rc == RC_OK; i += len) {
        if (r && tok_stopped(r)) {
            rc = tok_stop_error(r);
            break;
        }
        if (!(len = tok_utf8(in->s + i, in->n - i, &cp))) {
            rc = rc_fail(err, RC_INTERNAL, "text is not UTF-8 inside the normalizer");
            break;
        }
        if (with_src) {
            from = in->src[2 * i];
            to = in->src[2 * i + 1];
        }
        if (k->clean) {
            if (tok_is_control(cp))
                continue;
            if (tok_is_space(cp))
                cp = ' ';
        }
        bool pad = k->chinese && is_chinese(cp);
        if (!k->strip_accents) {
            if (pad)
                rc = put(out, with_src, false, ' ', from, to, err);
            if (rc == RC_OK)
                rc = put(out, with_src, k->lowercase, cp, from, to, err);
            if (rc == RC_OK && pad)
                rc = put(out, with_src, false, ' ', from, to, err);
            continue;
        }
        if (pad)
            rc = decompose(k, &g, ' ', from, to, out, with_src, err);
        if (rc == RC_OK)
            rc = decompose(k, &g, cp, from, to, out, with_src, err);
        if (rc == RC_OK && pad)
            rc = decompose(k, &g, ' ', from, to, out, with_src, err);
    }
    if (rc == RC_OK)
        rc = flush(k, &g, out, with_src, err);
    free(g.c);
    return rc;
}

bool tok_pre_bert(const char *s, size_t n, size_t *at, size_t *end)
{
    uint32_t cp;
    size_t i = *at, k;

    while (i < n && (k = tok_utf8(s + i, n - i, &cp)) && tok_is_space(cp))
        i += k;
    if (i >= n)
        return false;
    *at = i;
    while (i < n && (k = tok_utf8(s + i, n - i, &cp)) && !tok_is_space(cp)) {
        if (tok_is_bert_punct(cp)) {
            if (i == *at)
                i += k;
            break;
        }
        i += k;
    }
    *end = i;
    return i > *at;
}
