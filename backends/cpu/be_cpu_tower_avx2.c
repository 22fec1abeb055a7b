/* be_cpu_tower_avx2.c - kernels of eyes and ears with AVX2.
 *
 * Values past the last full vector go through the same vector code under a mask, so a value does
 * not depend on its place; sums run in an order fixed by the head's size.
 * Tests: tests/backends/test_be_cpu_tower.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <math.h>

#include "be_cpu_math_avx2.h"

/* z / (1 + exp(-y)) */
INLINE __m256 gate8(__m256 z, __m256 y)
{
    __m256 e = exp8(_mm256_xor_ps(y, SET8(-0.0f)));

    return _mm256_div_ps(z, _mm256_add_ps(SET8(1.0f), e));
}

/* min and max return their second operand for a NaN: x, as it should be. */
INLINE __m256 clamp8(__m256 x, __m256 lo, __m256 hi)
{
    return _mm256_min_ps(hi, _mm256_max_ps(lo, x));
}

INLINE void act_any(enum be_act_kind kind, const struct be_act_args *a, size_t i0, size_t i1)
{
    const float *x = a->x->data, *add = a->add ? a->add->data : NULL;
    __m256 lo = SET8(kind == BE_ACT_RELU ? 0 : a->lo), hi = SET8(a->hi);

    for (size_t i = i0; i < i1; i += 8) {
        __m256 z = load_n(x + i, i1 - i);

        if (kind == BE_ACT_RELU)
            z = _mm256_max_ps(lo, z);
        else if (kind == BE_ACT_SILU)
            z = gate8(z, z);
        else if (kind == BE_ACT_GELU_TANH)
            z = gelu_tanh8(z);
        else
            z = clamp8(z, lo, hi);
        if (add)
            z = _mm256_add_ps(load_n(add + i, i1 - i), z);
        store_n(a->out->data + i, i1 - i, z);
    }
}

void be_cpu_act_avx2(const struct be_act_args *a, size_t i0, size_t i1)
{
    switch (a->kind) {
    case BE_ACT_RELU:
        act_any(BE_ACT_RELU, a, i0, i1);
        break;
    case BE_ACT_SILU:
        act_any(BE_ACT_SILU, a, i0, i1);
        break;
    case BE_ACT_GELU_TANH:
        act_any(BE_ACT_GELU_TANH, a, i0, i1);
        break;
    case BE_ACT_CLAMP:
        act_any(BE_ACT_CLAMP, a, i0, i1);
        break;
    }
}

void be_cpu_glu_avx2(const struct be_glu_args *a, uint32_t r0, uint32_t r1)
{
    size_t n = a->out->n_cols;

    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x->data + (size_t)r * 2 * n;

        for (size_t i = 0; i < n; i += 8)
            store_n(a->out->data + r * n + i, n - i,
                    gate8(load_n(x + i, n - i), load_n(x + n + i, n - i)));
    }
}

/* Scores of one head of one row; u holds q * q_scale, readable to a multiple of 8. */
INLINE void scores(const struct be_attention_local_args *a, const float *u, size_t t, size_t at,
                   uint32_t n, float *w)
{
    size_t ld = a->q->n_cols;

    for (uint32_t d = 0; d < n; d++) {
        const float *k = a->k->data + (t - d) * ld + at, *rel = a->rel->data + d * ld + at;
        __m256 by_key = _mm256_setzero_ps(), by_place = by_key;

        for (uint32_t i = 0; i < a->head_dim; i += 8) {
            __m256 q = _mm256_loadu_ps(u + i);

            by_key = _mm256_fmadd_ps(q, load_n(k + i, a->head_dim - i), by_key);
            by_place = _mm256_fmadd_ps(q, load_n(rel + i, a->head_dim - i), by_place);
        }
        w[d] = hsum8(by_key) * a->k_scale + hsum8(by_place);
    }
}

/* Weights from scores: cap, softmax. w is readable and writable to a multiple of 8. */
INLINE void weights(const struct be_attention_local_args *a, uint32_t n, float *w)
{
    float max = -INFINITY, sum = 0;

    for (uint32_t d = 0; d < n; d += 8)
        _mm256_storeu_ps(
            w + d,
            _mm256_mul_ps(SET8(a->cap), tanh8(_mm256_div_ps(load_n(w + d, n - d), SET8(a->cap)))));
    for (uint32_t d = 0; d < n; d++)
        max = w[d] > max || isnan(w[d]) ? w[d] : max;
    for (uint32_t d = 0; d < n; d += 8)
        _mm256_storeu_ps(w + d, exp8(_mm256_sub_ps(_mm256_loadu_ps(w + d), SET8(max))));
    for (uint32_t d = 0; d < n; d++)
        sum += w[d];
    for (uint32_t d = 0; d < n; d++)
        w[d] /= sum;
}

static void local(const struct be_attention_local_args *a, size_t t, size_t h)
{
    float u[BE_CPU_MAX_HEAD + 8], w[BE_CPU_LOCAL_KEYS + 8];
    size_t ld = a->q->n_cols, at = h * a->head_dim;
    uint32_t n = t + 1 < a->n_keys ? (uint32_t)t + 1 : a->n_keys, dim = a->head_dim;

    for (uint32_t i = 0; i < dim; i += 8)
        _mm256_storeu_ps(u + i, _mm256_mul_ps(load_n(a->q->data + t * ld + at + i, dim - i),
                                              load_n(a->q_scale->vec + i, dim - i)));
    scores(a, u, t, at, n, w);
    weights(a, n, w);
    for (uint32_t i = 0; i < dim; i += 8) {
        __m256 o = _mm256_setzero_ps();

        for (uint32_t d = 0; d < n; d++)
            o = _mm256_fmadd_ps(SET8(w[d]), load_n(a->v->data + (t - d) * ld + at + i, dim - i), o);
        store_n(a->out->data + t * ld + at + i, dim - i, o);
    }
}

void be_cpu_attn_local_avx2(const struct be_attention_local_args *a, uint32_t r0, uint32_t r1)
{
    for (uint32_t t = r0; t < r1; t++)
        for (uint32_t h = 0; h < a->n_heads; h++)
            local(a, t, h);
}

#endif
