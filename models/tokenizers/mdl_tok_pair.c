/* mdl_tok_pair.c - two texts in one sequence, for cross-encoders.
 *
 * Both are encoded alone, the longer one is cut first, the template goes around and
 * between them. Source: encoders.md 2.6. Tests: tests/models/test_mdl_tok_golden.c
 */
#include "mdl_tok_impl.h"

/* Lengths that fit into `room`: the longer text gives first; when both are longer than
 * half, each gets half, an odd token goes to the longer one. */
static void longest_first(size_t room, size_t *n_a, size_t *n_b)
{
    bool swap = *n_a > *n_b;
    size_t *less = swap ? n_b : n_a, *more = swap ? n_a : n_b;

    if (*n_a + *n_b <= room)
        return;
    *more = *less > room ? *less : *less > room - *less ? *less : room - *less;
    if (*less + *more > room) {
        *less = room / 2;
        *more = *less + room % 2;
    }
}

static enum rc too_many(size_t n, size_t max, struct rc_err *err)
{
    enum rc rc = rc_fail(err, RC_TOO_LARGE,
                         "the two texts have at least %zu tokens, at most %zu are allowed", n, max);

    if (err) {
        err->n = n;
        err->limit = max;
    }
    return rc;
}

static enum rc put_part(struct mdl_ids *out, const struct tok_part *p, bool offsets,
                        struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < p->n && rc == RC_OK; i++)
        rc = tok_ids_put(out, p->ids[i], 0, 0, offsets, err);
    return rc;
}

static enum rc put_text(struct mdl_ids *out, const struct mdl_ids *v, size_t n, bool offsets,
                        struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (size_t i = 0; i < n && rc == RC_OK; i++)
        rc = tok_ids_put(out, v->ids[i], offsets ? v->offsets[2 * i] : 0,
                         offsets ? v->offsets[2 * i + 1] : 0, offsets, err);
    return rc;
}

/* One of the texts. bound > 0: more tokens are an error of the pair, `beside` of its tokens
 * being elsewhere. */
static enum rc encode_one(const struct mdl_tok *t, const char *s, size_t n, size_t bound,
                          size_t beside, const struct mdl_tok_flags *flags, struct mdl_ids *out,
                          struct rc_err *err)
{
    struct mdl_tok_flags f = *flags;
    struct rc_err e = RC_ERR_INIT;
    enum rc rc;

    f.add_special = false;
    f.max_tokens = bound;
    rc = mdl_tok_encode(t, s, n, &f, out, &e);
    if (rc == RC_TOO_LARGE && bound && e.limit == bound)
        return too_many(e.n + beside, flags->max_tokens, err);
    if (rc != RC_OK && err)
        *err = e;
    return rc;
}

enum rc mdl_tok_encode_pair(const struct mdl_tok *t, const char *a, size_t n_a, const char *b,
                            size_t n_b, const struct mdl_tok_flags *flags, bool truncate,
                            bool *truncated, struct mdl_ids *out, struct rc_err *err)
{
    const size_t max = flags->max_tokens, base = out->n;
    const size_t fixed = (size_t)t->pair[0].n + t->pair[1].n + t->pair[2].n;
    struct mdl_ids va = {0}, vb = {0};
    size_t keep_a, keep_b;
    enum rc rc;

    if (!t->has_pair)
        return rc_fail(err, RC_UNSUPPORTED, "the tokenizer has no template for two texts");
    if (max && fixed >= max)
        return too_many(fixed + 1, max, err);
    const size_t bound = max && !truncate ? max - fixed : 0;
    if ((rc = encode_one(t, a, n_a, bound, fixed, flags, &va, err)) != RC_OK ||
        (rc = encode_one(t, b, n_b, bound, fixed, flags, &vb, err)) != RC_OK)
        goto out;
    keep_a = va.n;
    keep_b = vb.n;
    if (max && !truncate && va.n + vb.n > bound) {
        rc = too_many(va.n + vb.n + fixed, max, err);
        goto out;
    }
    if (max)
        longest_first(max - fixed, &keep_a, &keep_b);
    if ((rc = put_part(out, &t->pair[0], flags->offsets, err)) != RC_OK ||
        (rc = put_text(out, &va, keep_a, flags->offsets, err)) != RC_OK ||
        (rc = put_part(out, &t->pair[1], flags->offsets, err)) != RC_OK ||
        (rc = put_text(out, &vb, keep_b, flags->offsets, err)) != RC_OK ||
        (rc = put_part(out, &t->pair[2], flags->offsets, err)) != RC_OK)
        goto out;
    if (truncated)
        *truncated = keep_a < va.n || keep_b < vb.n;
out:
    if (rc != RC_OK)
        out->n = base;
    mdl_ids_deinit(&va);
    mdl_ids_deinit(&vb);
    return rc;
}
