/* be_cpu_attn_rel_ref.c - attention with disentangled positions in plain C: complete, never
 * clever, the oracle of the AVX2 one. Sums are in f64.
 * Tests: tests/backends/test_be_cpu_attn_rel.c */
#include <math.h>

#include "be_cpu_ref.h"

static double dot(const float *a, const float *b, uint32_t n)
{
    double s = 0;

    for (uint32_t i = 0; i < n; i++)
        s += (double)a[i] * b[i];
    return s;
}

/* The query at position i of its sequence; w [n_keys], acc [head_dim]. */
static void attn_vec(const struct be_cpu_attn *a, uint32_t i, const float *q, float *out, double *w,
                     double *acc)
{
    const struct be_cpu_rel *r = a->rel;
    size_t head = (size_t)a->kv_head * a->head_dim;
    double max = -INFINITY, sum = 0;

    for (uint32_t j = 0; j < a->n_keys; j++) {
        const float *k = a->k + j * a->ld_kv + head;
        size_t at = (size_t)r->rel[i + r->reach - j] * r->ld + head;

        w[j] = dot(q, k, a->head_dim);
        if (r->rk)
            w[j] += dot(q, r->rk + at, a->head_dim);
        if (r->rq)
            w[j] += dot(k, r->rq + at, a->head_dim);
        w[j] *= a->scale;
        max = w[j] > max || isnan(w[j]) ? w[j] : max;
    }
    for (uint32_t d = 0; d < a->head_dim; d++)
        acc[d] = 0;
    for (uint32_t j = 0; j < a->n_keys; j++) {
        const float *v = a->v + j * a->ld_kv + head;

        w[j] = exp(w[j] - max);
        sum += w[j];
        for (uint32_t d = 0; d < a->head_dim; d++)
            acc[d] += w[j] * v[d];
    }
    for (uint32_t d = 0; d < a->head_dim; d++)
        out[d] = (float)(acc[d] / sum);
}

void be_cpu_ref_attn_rel(const struct be_cpu_attn *a, void *scratch)
{
    for (uint32_t i = 0; i < a->n_rows; i++) {
        size_t at = (size_t)(a->row0 + i) * a->ld + (size_t)a->head0 * a->head_dim;
        double *acc = scratch;

        attn_vec(a, a->pos0 + i, a->q + at, a->out + at, acc + a->head_dim, acc);
    }
}
