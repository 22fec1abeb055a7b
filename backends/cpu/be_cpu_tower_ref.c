/* be_cpu_tower_ref.c - kernels of eyes and ears in plain C: complete, never clever, the oracle
 * of the AVX2 ones. Long sums are in f64. Tests: tests/backends/test_be_cpu_tower.c */
#include "be_cpu_ref.h"

#include <math.h>

static float one(const struct be_act_args *a, float x)
{
    double z = x;

    switch (a->kind) {
    case BE_ACT_RELU:
        return x < 0 ? 0 : x;
    case BE_ACT_SILU:
        return (float)(z / (1 + exp(-z)));
    case BE_ACT_GELU_TANH:
        return be_cpu_ref_gelu_tanh(x);
    case BE_ACT_CLAMP:
        return x < a->lo ? a->lo : x > a->hi ? a->hi : x;
    }
    return x;
}

void be_cpu_ref_act(const struct be_act_args *a, size_t i0, size_t i1)
{
    const float *add = a->add ? a->add->data : NULL;

    for (size_t i = i0; i < i1; i++) {
        float y = one(a, a->x->data[i]);

        a->out->data[i] = add ? add[i] + y : y;
    }
}

void be_cpu_ref_glu(const struct be_glu_args *a, uint32_t r0, uint32_t r1)
{
    size_t n = a->out->n_cols;

    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x->data + (size_t)r * 2 * n;

        for (size_t i = 0; i < n; i++)
            a->out->data[r * n + i] = (float)(x[i] / (1 + exp(-(double)x[n + i])));
    }
}

/* One head of one row. */
static void local(const struct be_attention_local_args *a, size_t t, size_t h)
{
    size_t ld = a->q->n_cols, at = h * a->head_dim, n = t + 1 < a->n_keys ? t + 1 : a->n_keys;
    const float *q = a->q->data + t * ld + at;
    double w[BE_CPU_LOCAL_KEYS], max = -INFINITY, sum = 0;

    for (size_t d = 0; d < n; d++) {
        const float *k = a->k->data + (t - d) * ld + at, *rel = a->rel->data + d * ld + at;
        double by_key = 0, by_place = 0;

        for (size_t i = 0; i < a->head_dim; i++) {
            double u = (double)q[i] * a->q_scale->vec[i];

            by_key += u * k[i];
            by_place += u * rel[i];
        }
        w[d] = a->cap * tanh((by_key * a->k_scale + by_place) / a->cap);
        max = w[d] > max || isnan(w[d]) ? w[d] : max;
    }
    for (size_t d = 0; d < n; d++) {
        w[d] = exp(w[d] - max);
        sum += w[d];
    }
    for (size_t i = 0; i < a->head_dim; i++) {
        double o = 0;

        for (size_t d = 0; d < n; d++)
            o += w[d] * a->v->data[(t - d) * ld + at + i];
        a->out->data[t * ld + at + i] = (float)(o / sum);
    }
}

void be_cpu_ref_attn_local(const struct be_attention_local_args *a, uint32_t r0, uint32_t r1)
{
    for (uint32_t t = r0; t < r1; t++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            local(a, t, h);
}
