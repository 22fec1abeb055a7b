/* mdl_tok_pair.c - two texts in one sequence, for cross-encoders.
 *
 * Both are encoded alone, the longer one is cut first, the template goes around and
 * between them. Source: encoders.md 2.6. Tests: tests/models/test_mdl_tok_parts.c
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
    return rc_bound(rc_fail(err, RC_TOO_LARGE,
                            "the two texts have at least %zu tokens, at most %zu are allowed", n,
                            max),
                    n, max, err);
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

/* One of the texts alone. bound > 0: not more tokens than that, *more says that there are. */
static enum rc encode_one(const struct mdl_tok *t, const char *s, size_t n, size_t bound,
                          const struct mdl_tok_flags *flags, bool *more, struct mdl_ids *out,
                          struct rc_err *err)
{
    struct mdl_tok_flags f = *flags;

    f.add_special = false;
    f.max_tokens = bound;
    out->n = 0;
    return tok_encode_first(t, s, n, &f, more, out, err);
}

enum rc mdl_tok_encode_pair(const struct mdl_tok *t, const char *a, size_t n_a, const char *b,
                            size_t n_b, const struct mdl_tok_flags *flags, bool truncate,
                            bool *truncated, struct mdl_ids *out, struct rc_err *err)
{
    const size_t max = flags->max_tokens, base = out->n;
    const size_t fixed = (size_t)t->pair[0].n + t->pair[1].n + t->pair[2].n;
    struct mdl_ids va = {0}, vb = {0};
    size_t keep_a, keep_b;
    bool more_a, more_b;
    enum rc rc;

    if (!t->has_pair)
        return rc_fail(err, RC_UNSUPPORTED, "the tokenizer has no template for two texts");
    if (max && fixed > max)
        return too_many(fixed, max, err);
    /* one more than fits says as much as all of a long text ... */
    const size_t room = max - fixed, bound = max ? room + 1 : 0;
    if ((rc = encode_one(t, a, n_a, bound, flags, &more_a, &va, err)) != RC_OK ||
        (rc = encode_one(t, b, n_b, bound, flags, &more_b, &vb, err)) != RC_OK)
        goto out;
    if (max && !truncate && va.n + vb.n > room) {
        rc = too_many(va.n + vb.n + fixed, max, err);
        goto out;
    }
    /* ... but of which of two is longer, to whom the odd token goes */
    if ((more_a || more_b) && va.n == vb.n && room % 2 &&
        ((rc = encode_one(t, a, n_a, 0, flags, &more_a, &va, err)) != RC_OK ||
         (rc = encode_one(t, b, n_b, 0, flags, &more_b, &vb, err)) != RC_OK))
        goto out;
    keep_a = va.n;
    keep_b = vb.n;
    if (max)
        longest_first(room, &keep_a, &keep_b);
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
