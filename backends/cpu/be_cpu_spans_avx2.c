/* be_cpu_spans_avx2.c - scores of spans with AVX2: tiles of four spans by three vectors.
 *
 * The sums of a and b of four spans stay in the first-level cache for a block of columns. Each
 * score is its own chain of sums, block after block, whatever tile it is in.
 * Tests: tests/backends/test_be_cpu_spans.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <math.h>

#include "be_cpu_math_avx2.h"

#define BLOCK 512
#define SPANS 4
#define VECS 3

INLINE void hinge(const float *a, const float *b, size_t n, float *h)
{
    for (size_t c = 0; c < n; c += 8)
        _mm256_store_ps(h + c,
                        _mm256_max_ps(_mm256_setzero_ps(),
                                      _mm256_add_ps(load_n(a + c, n - c), load_n(b + c, n - c))));
}

/* sum[s][q] = h[s] . g[q] over n columns. */
static void tile(const float (*h)[BLOCK], const float *const *g, size_t n, float sum[SPANS][VECS])
{
    __m256 acc[SPANS][VECS];

    for (int s = 0; s < SPANS; s++)
        for (int q = 0; q < VECS; q++)
            acc[s][q] = _mm256_setzero_ps();
    for (size_t c = 0; c < n; c += 8) {
        __m256 g0 = load_n(g[0] + c, n - c), g1 = load_n(g[1] + c, n - c),
               g2 = load_n(g[2] + c, n - c);

        for (int s = 0; s < SPANS; s++) {
            __m256 v = _mm256_load_ps(h[s] + c);

            acc[s][0] = _mm256_fmadd_ps(v, g0, acc[s][0]);
            acc[s][1] = _mm256_fmadd_ps(v, g1, acc[s][1]);
            acc[s][2] = _mm256_fmadd_ps(v, g2, acc[s][2]);
        }
    }
    for (int s = 0; s < SPANS; s++)
        for (int q = 0; q < VECS; q++)
            sum[s][q] = hsum8(acc[s][q]);
}

/* Spans of n_k lengths from k on that begin with word i. */
static void some(const struct be_spans_args *s, const float *a, const float *b, const float *g,
                 uint32_t i, uint32_t k, uint32_t n_k)
{
    size_t plane = (size_t)s->n * s->width;
    float *out = s->out + (size_t)i * s->width + k;
    float h[SPANS][BLOCK] __attribute__((aligned(32)));

    for (uint32_t q = 0; q < s->n_g; q++)
        for (uint32_t j = 0; j < n_k; j++)
            out[q * plane + j] = 0;
    for (size_t c = 0; c < s->n_cols; c += BLOCK) {
        size_t n = s->n_cols - c < BLOCK ? s->n_cols - c : BLOCK;

        for (uint32_t j = 0; j < SPANS; j++) /* the last span stands in for those that are not */
            hinge(a + (size_t)i * s->n_cols + c,
                  b + (size_t)(i + k + (j < n_k ? j : n_k - 1)) * s->n_cols + c, n, h[j]);
        for (uint32_t q = 0; q < s->n_g; q += VECS) {
            uint32_t n_q = s->n_g - q < VECS ? s->n_g - q : VECS;
            const float *v[VECS];
            float sum[SPANS][VECS];

            for (uint32_t j = 0; j < VECS; j++)
                v[j] = g + (size_t)(q + (j < n_q ? j : n_q - 1)) * s->n_cols + c;
            tile(h, v, n, sum);
            for (uint32_t x = 0; x < n_q; x++)
                for (uint32_t j = 0; j < n_k; j++)
                    out[(q + x) * plane + j] += sum[j][x];
        }
    }
}

void be_cpu_spans_avx2(const struct be_spans_args *s, const float *a, const float *b,
                       const float *g, uint32_t i0, uint32_t i1)
{
    size_t plane = (size_t)s->n * s->width;

    for (uint32_t i = i0; i < i1; i++) {
        uint32_t reach = s->n - i < s->width ? s->n - i : s->width;

        for (uint32_t k = 0; k < reach; k += SPANS)
            some(s, a, b, g, i, k, reach - k < SPANS ? reach - k : SPANS);
        for (uint32_t q = 0; q < s->n_g; q++)
            for (uint32_t k = reach; k < s->width; k++)
                s->out[q * plane + (size_t)i * s->width + k] = -INFINITY;
    }
}

#endif
