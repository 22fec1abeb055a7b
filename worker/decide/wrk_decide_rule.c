/* wrk_decide_rule.c - vectors to similarities, similarities to a verdict.
 *
 * Plain arithmetic, in a fixed order, so that an answer is the same bytes whatever ran beside
 * it. A similarity is no probability and is never made into one.
 * Tests: tests/worker/test_wrk_decide_rule.c
 */
#include "wrk_decide.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* 0 when there is none: not finite, or all zero. */
static double length_of(const float *v, uint32_t dim)
{
    double sum = 0;

    for (uint32_t i = 0; i < dim; i++)
        sum += (double)v[i] * (double)v[i];
    return isfinite(sum) && sum > 0 ? sqrt(sum) : 0;
}

enum rc wrk_unit(const float *v, uint32_t dim, float *out, struct rc_err *err)
{
    double len = length_of(v, dim);

    if (len == 0)
        return rc_fail(err, RC_INTERNAL, "a vector has no direction: it is 0 or not finite");
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (float)((double)v[i] / len);
    return RC_OK;
}

enum rc wrk_centroid(const float *v, uint32_t n, uint32_t dim, float *out, struct rc_err *err)
{
    double len[IPC_DECIDE_EXAMPLES], square = 0;

    assert(n >= 1 && n <= IPC_DECIDE_EXAMPLES);
    for (uint32_t k = 0; k < n; k++)
        if ((len[k] = length_of(v + (size_t)k * dim, dim)) == 0)
            return rc_fail(err, RC_INTERNAL, "a vector has no direction: it is 0 or not finite");
    for (uint32_t i = 0; i < dim; i++) {
        double sum = 0;

        for (uint32_t k = 0; k < n; k++)
            sum += (double)v[(size_t)k * dim + i] / len[k];
        out[i] = (float)(sum / n);
        square += (double)out[i] * (double)out[i];
    }
    if (!(square > 1e-12)) /* what rounding leaves of vectors that point away from each other */
        return rc_fail(err, RC_INTERNAL,
                       "the examples of a choice point away from each other: their centroid has "
                       "no direction");
    return wrk_unit(out, dim, out, err);
}

double wrk_cosine(const float *a, const float *b, uint32_t dim)
{
    double sum = 0;

    for (uint32_t i = 0; i < dim; i++)
        sum += (double)a[i] * (double)b[i];
    return sum > 1 ? 1 : sum < -1 ? -1 : sum;
}

static void abstain(struct wrk_verdict *v, enum wrk_decide_reason why)
{
    v->status = WRK_ABSTAINED;
    v->reason = why;
    v->n_chosen = 0;
}

void wrk_decide_choice(const double *s, uint32_t n, const struct wrk_accept *a,
                       struct wrk_verdict *v)
{
    uint32_t best = 0;
    double second = -1;

    memset(v, 0, sizeof(*v));
    for (uint32_t i = 1; i < n; i++)
        best = s[i] > s[best] ? i : best;
    for (uint32_t i = 0; i < n; i++)
        if (i != best && s[i] > second)
            second = s[i];
    v->margin = s[best] - second;
    v->status = WRK_SELECTED;
    v->chosen[0] = best;
    v->n_chosen = 1;
    if (v->margin <= WRK_DECIDE_TIE)
        abstain(v, WRK_TIE);
    else if (a->has_min_similarity && s[best] < a->min_similarity)
        abstain(v, WRK_LOW_SIMILARITY);
    else if (a->has_min_margin && v->margin < a->min_margin)
        abstain(v, WRK_LOW_MARGIN);
}

void wrk_decide_multi(const double *s, uint32_t n, const struct wrk_accept *a,
                      struct wrk_verdict *v)
{
    memset(v, 0, sizeof(*v));
    v->margin = 2;
    for (uint32_t i = 0; i < n; i++) {
        double d = fabs(s[i] - a->threshold[i]);

        if (d < v->margin)
            v->margin = d;
        if (s[i] >= a->threshold[i])
            v->chosen[v->n_chosen++] = i;
    }
    v->status = v->n_chosen > 0 ? WRK_SELECTED : WRK_EMPTY;
    if (a->has_min_margin && v->margin < a->min_margin)
        abstain(v, WRK_LOW_MARGIN);
}
