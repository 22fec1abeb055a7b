/* mdl_tok_norm.c - normalizers that look at one place at a time, and how a rewritten
 * text keeps track of the input.
 *
 * Every byte of a text knows the code points it came from. Replaced text takes the place
 * of the last character replaced; what stays keeps its own. BERT's normalizer, the
 * Unicode forms and SentencePiece's map have files of their own.
 * Source: encoders.md 2.3. Tests: tests/models/test_mdl_tok_parts.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

#include <stdlib.h>

/* -------------------------------------------------------------------- text */

/* Room for n more bytes and a NUL. */
static enum rc reserve(struct tok_text *t, bool with_src, size_t n, struct rc_err *err)
{
    size_t cap = t->cap ? 2 * t->cap : 256;

    /* 1 GiB of input may grow 64-fold in a normalizer, again and again */
    if (n > TOK_MAX_GROWN - t->n)
        return rc_bound(rc_fail(err, RC_TOO_LARGE,
                                "a normalized text of %zu bytes or more, at most %u", t->n + n,
                                TOK_MAX_GROWN),
                        t->n + n, TOK_MAX_GROWN, err);
    if (n + 1 <= t->cap - t->n)
        return RC_OK;
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
    return RC_OK;
}

enum rc tok_text_push(struct tok_text *t, bool with_src, const char *s, size_t n, uint32_t from,
                      uint32_t to, struct rc_err *err)
{
    enum rc rc = reserve(t, with_src, n, err);

    if (rc != RC_OK)
        return rc;
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

enum rc tok_text_copy(struct tok_text *t, bool with_src, const struct tok_text *in, size_t from,
                      size_t to, struct rc_err *err)
{
    enum rc rc = reserve(t, with_src, to - from, err);

    if (rc != RC_OK)
        return rc;
    if (to > from) {
        memcpy(t->s + t->n, in->s + from, to - from);
        if (with_src)
            memcpy(t->src + 2 * t->n, in->src + 2 * from, (to - from) * 2 * sizeof(*t->src));
    }
    t->n += to - from;
    t->s[t->n] = '\0';
    return RC_OK;
}

enum rc tok_text_char(const struct tok_text *t, size_t i, struct tok_run *r, uint32_t *cp,
                      size_t *len, struct rc_err *err)
{
    if (r && tok_stopped(r))
        return tok_stop_error(r);
    if (!(*len = tok_utf8(t->s + i, t->n - i, cp)))
        return rc_fail(err, RC_INTERNAL, "text is not UTF-8 inside the normalizer");
    return RC_OK;
}

enum rc tok_text_lower(const struct tok_text *in, size_t i, uint32_t cp, struct tok_text *out,
                       bool with_src, struct rc_err *err)
{
    char buf[4] = "i\xCC\x87"; /* the only lower case of two characters */
    size_t n = cp == 0x130 ? 3 : tok_utf8_put(buf, tok_lower(cp));

    return tok_text_push(out, with_src, buf, n, with_src ? in->src[2 * i] : 0,
                         with_src ? in->src[2 * i + 1] : 0, err);
}

void tok_text_deinit(struct tok_text *t)
{
    free(t->s);
    free(t->src);
    *t = (struct tok_text){0};
}

static void skip_char(struct tok_shift *s)
{
    uint32_t cp;

    if (s->at < s->in->n)
        s->at += tok_utf8(s->in->s + s->at, s->in->n - s->at, &cp);
}

enum rc tok_shift_put(struct tok_shift *s, uint32_t cp, ptrdiff_t change)
{
    char buf[4];
    size_t n = tok_utf8_put(buf, cp), at;

    if (!s->with_src || s->in->n == 0)
        return tok_text_push(s->out, false, buf, n, 0, 0, s->err);
    at = change > 0 && s->at ? s->at - 1 : s->at;
    if (at >= s->in->n)
        at = s->in->n - 1;
    const uint32_t *place = s->in->src + 2 * at;
    for (; change <= 0; change++)
        skip_char(s);
    return tok_text_push(s->out, true, buf, n, place[0], place[1], s->err);
}

/* ----------------------------------------------------------------- replace */

/* One-byte patterns (the space of Gemma's files) are the common case; besides, the
 * sanitizer's memmem looks at all that is left on every call. */
const char *tok_find(const char *s, size_t n, const char *pat, size_t n_pat)
{
    return n_pat == 1 ? memchr(s, pat[0], n) : memmem(s, n, pat, n_pat);
}

/* The next match at or behind i: bytes [*start, *end); false when there is none. */
static bool next_match(const struct tok_norm *k, const char *s, size_t n, size_t i, size_t *start,
                       size_t *end, struct tok_run *r)
{
    uint32_t cp;
    size_t len, count, j;

    if (k->pattern == TOK_PAT_LITERAL) {
        const char *hit = tok_find(s + i, n - i, k->from, k->n_from);
        *start = hit ? (size_t)(hit - s) : n;
        *end = *start + k->n_from;
        return hit;
    }
    for (; i < n && !(r && tok_stopped(r)); i = j) {
        bool line = s[i] == '\n' || s[i] == '\r' || s[i] == '\t';
        for (j = i, count = 0; j < n && (len = tok_utf8(s + j, n - j, &cp)) &&
                               (k->pattern == TOK_PAT_SPACES2 ? cp == ' ' : tok_is_space(cp)) &&
                               !(r && tok_stopped(r));
             j += len)
            count++;
        *start = i;
        *end = j;
        if (count > 1 || (count && k->pattern == TOK_PAT_BLANKS) ||
            (count && k->pattern == TOK_PAT_BLANKS2 && line))
            return true;
        if (count == 0) {
            if (!(len = tok_utf8(s + i, n - i, &cp)))
                return false;
            j = i + len;
        }
    }
    return false;
}

static enum rc norm_replace(const struct tok_norm *k, const struct tok_text *in,
                            struct tok_text *out, bool with_src, struct tok_run *r,
                            struct rc_err *err)
{
    size_t i = 0, start, end, last;
    enum rc rc = RC_OK;

    while (i < in->n && rc == RC_OK && next_match(k, in->s, in->n, i, &start, &end, r)) {
        if (r && tok_stopped(r))
            return tok_stop_error(r);
        if ((rc = tok_text_copy(out, with_src, in, i, start, err)) != RC_OK)
            return rc;
        last = 2 * (end - 1); /* all of it takes the place of the last character replaced */
        rc = tok_text_push(out, with_src, k->to, k->n_to, with_src ? in->src[last] : 0,
                           with_src ? in->src[last + 1] : 0, err);
        i = end;
    }
    if (r && r->stopped)
        return tok_stop_error(r);
    return rc == RC_OK ? tok_text_copy(out, with_src, in, i, in->n, err) : rc;
}

/* ------------------------------------------------------------------ others */

static enum rc norm_strip(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                          bool with_src, struct rc_err *err)
{
    size_t from = 0, to = in->n, len, i;
    uint32_t cp;

    while (k->left && from < to && (len = tok_utf8(in->s + from, to - from, &cp)) &&
           tok_is_space(cp))
        from += len;
    while (k->right && to > from) {
        for (i = to - 1; i > from && ((unsigned char)in->s[i] & 0xC0) == 0x80; i--)
            ;
        if (!tok_utf8(in->s + i, to - i, &cp) || !tok_is_space(cp))
            break;
        to = i;
    }
    return tok_text_copy(out, with_src, in, from, to, err);
}

static enum rc norm_prepend(const struct tok_norm *k, const struct tok_text *in,
                            struct tok_text *out, bool with_src, struct rc_err *err)
{
    enum rc rc;

    if (in->n == 0)
        return RC_OK;
    rc = tok_text_push(out, with_src, k->to, k->n_to, with_src ? in->src[0] : 0,
                       with_src ? in->src[1] : 0, err);
    return rc == RC_OK ? tok_text_copy(out, with_src, in, 0, in->n, err) : rc;
}

/* Lower case, or without accents. */
static enum rc norm_chars(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                          bool with_src, struct tok_run *r, struct rc_err *err)
{
    enum rc rc = RC_OK;
    uint32_t cp;

    for (size_t i = 0, len = 0; i < in->n && rc == RC_OK; i += len) {
        if ((rc = tok_text_char(in, i, r, &cp, &len, err)) != RC_OK)
            return rc;
        if (k->kind == TOK_NORM_LOWER)
            rc = tok_text_lower(in, i, cp, out, with_src, err);
        else if (!tok_is_mark(cp))
            rc = tok_text_copy(out, with_src, in, i, i + len, err);
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
    switch (k->kind) {
    case TOK_NORM_REPLACE:
        return norm_replace(k, in, out, with_src, r, err);
    case TOK_NORM_BERT:
        return tok_norm_bert(k, in, out, with_src, r, err);
    case TOK_NORM_PRECOMPILED:
        return tok_norm_precompiled(k, in, out, with_src, r, err);
    case TOK_NORM_STRIP:
        return norm_strip(k, in, out, with_src, err);
    case TOK_NORM_UNICODE:
        return tok_norm_unicode(k, in, out, with_src, r, err);
    case TOK_NORM_PREPEND:
        return norm_prepend(k, in, out, with_src, err);
    case TOK_NORM_LOWER:
    case TOK_NORM_ACCENTS:
        return norm_chars(k, in, out, with_src, r, err);
    }
    return rc_fail(err, RC_INTERNAL, "unknown normalizer");
}
