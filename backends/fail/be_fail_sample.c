/* be_fail_sample.c - drawing tokens "on the device" of the fault-injecting backend.
 *
 * The plain definition of be_sample, sorting everything, in f64: slow, and easy to check by
 * eye. Like a device it gives up some rows: those whose candidates are more than
 * BE_FAIL_SAMPLE_TOP, and those that are not finite. Tests: tests/backends/test_be_fail.c
 */
#include <math.h>
#include <stdlib.h>

#include "be_cpu.h"
#include "be_fail.h"

struct cand {
    float v;
    int32_t id;
    double w;
};

/* The larger value first; of equal ones the lower id. */
static int best_first(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;

    if (x->v != y->v)
        return x->v > y->v ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* c is sorted, best first. */
static int32_t draw(struct cand *c, uint32_t n, const struct be_sample_row *r)
{
    double total = 0, mass = 0, kept = 0, at = 0;
    uint32_t keep = r->top_k && r->top_k < n ? r->top_k : n, i;

    for (i = 0; i < keep; i++)
        total += c[i].w = exp(((double)c[i].v - (double)c[0].v) / (double)r->temperature);
    for (i = 0; i < keep && r->top_p < 1; i++)
        if ((mass += c[i].w) >= (double)r->top_p * total)
            keep = i + 1;
    if (keep > BE_FAIL_SAMPLE_TOP)
        return -1;
    for (i = 0; i < keep; i++)
        kept += c[i].w = c[i].w < (double)r->min_p ? 0 : c[i].w; /* the best weight is 1 */
    qsort(c, keep, sizeof(*c), by_id);
    for (i = 0; i < keep; i++)
        if (c[i].w > 0 && (at += c[i].w) > (double)r->u * kept)
            return c[i].id;
    return c[keep - 1].id;
}

enum rc be_fail_sample(const struct be_sample_args *a, struct rc_err *err)
{
    uint32_t n = a->x->n_cols;
    struct cand *c = malloc(n * sizeof(*c));

    if (!c)
        return rc_fail(err, RC_NOMEM, "sampling: no memory");
    for (uint32_t i = 0; i < a->n; i++) {
        const float *x = a->x->data + (size_t)i * n;
        bool finite = true;

        for (uint32_t j = 0; j < n; j++) {
            finite = finite && isfinite(x[j]);
            c[j] = (struct cand){x[j], (int32_t)j, 0};
        }
        if (finite)
            qsort(c, n, sizeof(*c), best_first);
        a->out_ids[i] = !finite ? -1
                        : a->rows[i].temperature == 0 || a->rows[i].top_k == 1
                            ? c[0].id
                            : draw(c, n, &a->rows[i]);
    }
    free(c);
    return RC_OK;
}
