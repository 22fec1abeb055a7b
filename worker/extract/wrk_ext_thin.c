/* wrk_ext_thin.c - of entities that overlap, the better ones.
 *
 * Best first, an entity stays when no place of it is taken yet. Takes time that grows with the
 * entities and with the text they are in, not with a square of either.
 * Tests: tests/worker/test_wrk_extract_read.c, test_wrk_extract_golden.c
 */
#include "wrk_extract.h"

#include <stdlib.h>

/* Takes the places [from, to), from < to, of a set of bits, if none of them is taken. */
static bool take(uint64_t *bits, uint32_t from, uint32_t to)
{
    uint32_t first = from / 64, last = (to - 1) / 64;
    uint64_t head = ~0ull << from % 64, tail = ~0ull >> (63 - (to - 1) % 64);

    for (uint32_t i = first; i <= last; i++)
        if ((bits[i] & (i == first ? head : ~0ull) & (i == last ? tail : ~0ull)) != 0)
            return false;
    for (uint32_t i = first; i <= last; i++)
        bits[i] |= (i == first ? head : ~0ull) & (i == last ? tail : ~0ull);
    return true;
}

struct ranked {
    struct wrk_entity e;
    size_t at; /* where it stood */
    bool out;
};

static int surest(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->e.span.score != y->e.span.score)
        return x->e.span.score > y->e.span.score ? -1 : 1;
    if (x->e.span.start != y->e.span.start)
        return x->e.span.start < y->e.span.start ? -1 : 1;
    if (x->e.span.end != y->e.span.end)
        return x->e.span.end < y->e.span.end ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int by_place(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

enum rc wrk_entities_thin(struct wrk_entity *e, size_t n, size_t *out_n, struct rc_err *err)
{
    struct ranked *r = malloc((n + 1) * sizeof(*r));
    uint32_t from = UINT32_MAX, to = 0;
    size_t left = 0;
    uint64_t *bits;

    for (size_t i = 0; i < n; i++) {
        from = e[i].span.start < from ? e[i].span.start : from;
        to = e[i].span.end > to ? e[i].span.end : to;
    }
    bits = calloc(n > 0 ? (to - from) / 64 + 1 : 1, sizeof(*bits));
    if (r == NULL || bits == NULL) {
        free(r);
        free(bits);
        return rc_fail(err, RC_NOMEM, "no memory for %zu entities", n);
    }
    for (size_t i = 0; i < n; i++)
        r[i] = (struct ranked){e[i], i, false};
    if (n > 1)
        qsort(r, n, sizeof(*r), surest);
    for (size_t i = 0; i < n; i++)
        r[i].out = !take(bits, r[i].e.span.start - from, r[i].e.span.end - from);
    if (n > 1)
        qsort(r, n, sizeof(*r), by_place);
    for (size_t i = 0; i < n; i++)
        if (!r[i].out)
            e[left++] = r[i].e;
    free(r);
    free(bits);
    *out_n = left;
    return RC_OK;
}
