/* mdl_tok_encode.c - runs a tokenizer over a text.
 *
 * Added tokens are cut out of the raw text; each stretch between two is
 * normalized, cut again at normalized added tokens, cut into words (mdl_tok_pre.c)
 * and given to the model; the template goes around it all. Stops as soon as the bound on
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

enum rc tok_ids_put(struct mdl_ids *v, int32_t id, uint32_t from, uint32_t to, bool offsets,
                    struct rc_err *err)
{
    enum rc rc;

    if ((v->n == v->cap || (offsets && !v->offsets)) &&
        (rc = ids_reserve(v, offsets, err)) != RC_OK)
        return rc;
    if (v->offsets) {
        v->offsets[2 * v->n] = from;
        v->offsets[2 * v->n + 1] = to;
    }
    v->ids[v->n++] = id;
    return RC_OK;
}

enum rc mdl_ids_push(struct mdl_ids *v, int32_t id, struct rc_err *err)
{
    return tok_ids_put(v, id, 0, 0, false, err);
}

/* -------------------------------------------------------------------- emit */

enum rc tok_over(struct tok_run *r, size_t at_least)
{
    size_t n = r->out->n - r->base + at_least;

    r->over = true;
    if (n <= r->flags->max_tokens)
        n = r->flags->max_tokens + 1;
    return rc_bound(rc_fail(r->err, RC_TOO_LARGE,
                            "the text has at least %zu tokens, at most %zu are allowed", n,
                            r->flags->max_tokens),
                    n, r->flags->max_tokens, r->err);
}

enum rc tok_stop_error(struct tok_run *r)
{
    return rc_fail(r->err, RC_CANCELLED, "stopped while reading a text");
}

static enum rc push(struct tok_run *r, int32_t id, uint32_t from, uint32_t to)
{
    if (r->flags->max_tokens && r->out->n - r->base >= r->flags->max_tokens)
        return tok_over(r, 1);
    return tok_ids_put(r->out, id, from, to, r->flags->offsets, r->err);
}

/* White space at the ends of s, in characters; the sign for it of byte-level pieces too. */
static void count_blanks(const char *s, size_t n, uint32_t *lead, uint32_t *trail)
{
    uint32_t cp;
    size_t k;

    *lead = *trail = 0;
    for (size_t i = 0; i < n && (k = tok_utf8(s + i, n - i, &cp)); i += k) {
        bool blank = cp == 0x120 || tok_is_space(cp);
        *trail = blank ? *trail + 1 : 0;
        if (*trail == 1 && i == 0)
            *lead = 1;
        else if (blank && *lead && *trail == *lead + 1)
            ++*lead;
    }
}

/* The reference takes white space off the places of a token, by what the token shows. */
static void trim(const struct tok_run *r, const char *s, size_t n, uint32_t *from, uint32_t *to)
{
    uint32_t lead, trail;
    bool first = r->out->n == r->start || *from == 0;

    count_blanks(s, n, &lead, &trail);
    if (first && r->t->trim_prefix && lead == 1)
        lead = 0;
    *from = lead < *to - *from ? *from + lead : *to;
    if (trail && *to >= trail)
        *to = *to - trail > *from ? *to - trail : *from;
}

enum rc tok_emit(struct tok_run *r, int32_t id, size_t from, size_t to)
{
    const struct tok_text *c = r->cur;
    uint32_t first, last, n;

    if (!r->flags->offsets || to <= from || to > c->n)
        return push(r, id, 0, 0);
    first = c->src[2 * from];
    last = c->src[2 * (to - 1) + 1];
    if (r->t->trim) {
        bool spelled = r->t->model != TOK_UNIGRAM;
        const char *s = spelled ? tok_vocab_at(&r->t->vocab, (uint32_t)id, &n) : c->s + from;
        trim(r, s, spelled ? n : to - from, &first, &last);
    }
    return push(r, id, first, last);
}

/* ----------------------------------------------------------------- stretches */

/* Part of a stretch (or all of it). first_cp: its place in the input. */
static enum rc run_block(struct tok_run *r, const char *s, size_t n, uint32_t first_cp,
                         bool prefix_space)
{
    const struct mdl_tok *t = r->t;
    bool src = r->src;
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
        if ((rc = tok_pre_run(r, from, m.start)) != RC_OK || m.id < 0)
            return rc;
        if ((rc = tok_emit(r, m.id, m.start, m.end)) != RC_OK)
            return rc;
        from = m.end;
    }
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
        if (r->src)
            first_cp += tok_count_chars(s + from, to - from);
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
            if (r->src)
                at += tok_count_chars(s + from, m.start - from);
            behind_token = false;
        }
        if (m.id < 0)
            return RC_OK;
        len = r->src ? tok_count_chars(s + m.start, m.end - m.start) : 0;
        uint32_t first = at, last = at + len;
        if (t->trim && r->flags->offsets)
            trim(r, s + m.start, m.end - m.start, &first, &last);
        if ((rc = push(r, m.id, first, last)) != RC_OK)
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

static enum rc encode(struct tok_run *r, const char *text, size_t n_bytes)
{
    const struct tok_part *around = r->t->single;
    enum rc rc;

    if (n_bytes > TOK_MAX_TEXT)
        return rc_bound(rc_fail(r->err, RC_TOO_LARGE, "a text of %zu bytes, at most %u are allowed",
                                n_bytes, TOK_MAX_TEXT),
                        n_bytes, TOK_MAX_TEXT, r->err);
    r->src = r->flags->offsets || r->t->need_src;
    if ((rc = check_utf8(text, n_bytes, r->err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; r->flags->add_special && i < around[0].n && rc == RC_OK; i++)
        rc = push(r, around[0].ids[i], 0, 0);
    r->start = r->out->n;
    if (rc == RC_OK)
        rc = run_text(r, text, n_bytes);
    for (uint32_t i = 0; r->flags->add_special && i < around[1].n && rc == RC_OK; i++)
        rc = push(r, around[1].ids[i], 0, 0);
    tok_text_deinit(&r->a);
    tok_text_deinit(&r->b);
    tok_text_deinit(&r->apart[0]);
    tok_text_deinit(&r->apart[1]);
    for (unsigned i = 0; i < 2 * TOK_MAX_STEPS; i++)
        tok_text_deinit(&r->pre[i]);
    free(r->path);
    free(r->syms);
    free(r->heap);
    return rc;
}

enum rc mdl_tok_encode(const struct mdl_tok *t, const char *text, size_t n_bytes,
                       const struct mdl_tok_flags *flags, struct mdl_ids *out, struct rc_err *err)
{
    struct tok_run r = {.t = t, .flags = flags, .out = out, .base = out->n, .err = err};
    enum rc rc = encode(&r, text, n_bytes);

    if (rc != RC_OK)
        out->n = r.base;
    return rc;
}

enum rc tok_encode_first(const struct mdl_tok *t, const char *text, size_t n_bytes,
                         const struct mdl_tok_flags *flags, bool *more, struct mdl_ids *out,
                         struct rc_err *err)
{
    struct tok_run r = {
        .t = t, .flags = flags, .out = out, .base = out->n, .err = err, .keep = true};
    enum rc rc = encode(&r, text, n_bytes);

    *more = rc == RC_TOO_LARGE && r.over;
    if (*more)
        return RC_OK;
    if (rc != RC_OK)
        out->n = r.base;
    return rc;
}
