/* mdl_tok_unicode.c - NFC, NFD, NFKC and NFKD, with places.
 *
 * Decompositions and pairs come from libutf8proc. The order of work is the reference's,
 * for it decides the places: characters are decomposed, each stretch of marks is sorted,
 * then the stream is composed; a character that swallows another also swallows its place.
 * Marks in a row are bounded. Tests: tests/models/test_mdl_tok_parts.c
 */
#include "mdl_tok_impl.h"

#include "mdl_tok_chars.h"

#include <stdlib.h>
#include <utf8proc.h>

#define MAX_MARKS (1u << 24)

struct ch {
    uint32_t cp, order; /* combining class << 24 | place: a stable sort */
    ptrdiff_t change;   /* see struct tok_shift */
};

struct chars {
    struct ch *c;
    size_t n, cap;
};

struct uni {
    const struct tok_norm *k;
    struct tok_shift to;
    struct chars marks;   /* decomposed, not yet sorted */
    struct chars blocked; /* marks behind the composing character */
    struct ch start;      /* the composing character */
    bool composing;
};

static enum rc push(struct chars *v, struct ch c, struct rc_err *err)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? 2 * v->cap : 32;
        void *p;

        if (v->n >= MAX_MARKS)
            return rc_bound(
                rc_fail(err, RC_TOO_LARGE, "more than %u combining marks in a row", MAX_MARKS),
                v->n + 1, MAX_MARKS, err);
        if (!(p = realloc(v->c, cap * sizeof(*v->c))))
            return rc_fail(err, RC_NOMEM, "no memory to normalize a text");
        v->c = p;
        v->cap = cap;
    }
    v->c[v->n++] = c;
    return RC_OK;
}

static int by_order(const void *a, const void *b)
{
    const struct ch *x = a, *y = b;

    return x->order < y->order ? -1 : x->order > y->order;
}

/* The character that a and b make; 0 none. */
static uint32_t pair(uint32_t a, uint32_t b)
{
    utf8proc_int32_t buf[2] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b};

    if (b < 0x300 || utf8proc_normalize_utf32(buf, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1)
        return 0;
    return tok_decomposes((uint32_t)buf[0], false) ? (uint32_t)buf[0] : 0;
}

static enum rc put_start(struct uni *u)
{
    enum rc rc = u->composing ? tok_shift_put(&u->to, u->start.cp, u->start.change) : RC_OK;

    for (size_t i = 0; i < u->blocked.n && rc == RC_OK; i++)
        rc = tok_shift_put(&u->to, u->blocked.c[i].cp, u->blocked.c[i].change);
    u->blocked.n = 0;
    u->composing = false;
    return rc;
}

static enum rc compose(struct uni *u, struct ch c)
{
    uint32_t ccc = c.order >> 24, made;
    bool blocked = u->blocked.n && u->blocked.c[u->blocked.n - 1].order >> 24 >= ccc;
    enum rc rc;

    if (!u->k->compose || (!u->composing && ccc))
        return tok_shift_put(&u->to, c.cp, c.change);
    if (u->composing && !blocked && (made = pair(u->start.cp, c.cp))) {
        u->start.cp = made;
        u->start.change += c.change - 1;
        return RC_OK;
    }
    if (ccc)
        return push(&u->blocked, c, u->to.err);
    if ((rc = put_start(u)) != RC_OK)
        return rc;
    u->start = c;
    u->composing = true;
    return RC_OK;
}

static enum rc sort_marks(struct uni *u)
{
    enum rc rc = RC_OK;

    if (u->marks.n > 1)
        qsort(u->marks.c, u->marks.n, sizeof(*u->marks.c), by_order);
    for (size_t i = 0; i < u->marks.n && rc == RC_OK; i++)
        rc = compose(u, u->marks.c[i]);
    u->marks.n = 0;
    return rc;
}

static enum rc decompose(struct uni *u, uint32_t cp)
{
    utf8proc_int32_t buf[32];
    utf8proc_ssize_t n = 0;
    int boundary = 0;
    enum rc rc = RC_OK;

    if (cp < 0xA0) /* a character that no form changes, and most are */
        return (rc = sort_marks(u)) == RC_OK ? compose(u, (struct ch){.cp = cp}) : rc;
    if (tok_decomposes(cp, u->k->compat))
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, buf, 32,
                                    UTF8PROC_DECOMPOSE |
                                        (u->k->compat ? UTF8PROC_COMPAT : (utf8proc_option_t)0),
                                    &boundary);
    if (n < 1 || n > 32) {
        n = 1;
        buf[0] = (utf8proc_int32_t)cp;
    }
    for (utf8proc_ssize_t i = 0; i < n && rc == RC_OK; i++) {
        uint32_t c = (uint32_t)buf[i], ccc = tok_combining(c);
        if (ccc == 0 && (rc = sort_marks(u)) != RC_OK)
            return rc;
        rc = push(&u->marks, (struct ch){c, ccc << 24 | (uint32_t)u->marks.n, i > 0}, u->to.err);
    }
    return rc;
}

enum rc tok_norm_unicode(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                         bool with_src, struct tok_run *r, struct rc_err *err)
{
    struct uni u = {.k = k, .to = {.in = in, .out = out, .with_src = with_src, .err = err}};
    enum rc rc = RC_OK;
    uint32_t cp;

    for (size_t i = 0, len = 0; i < in->n && rc == RC_OK; i += len)
        if ((rc = tok_text_char(in, i, r, &cp, &len, err)) == RC_OK)
            rc = decompose(&u, cp);
    if (rc == RC_OK && (rc = sort_marks(&u)) == RC_OK)
        rc = put_start(&u);
    free(u.marks.c);
    free(u.blocked.c);
    return rc;
}
