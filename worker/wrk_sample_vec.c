/* wrk_sample_vec.c - loops shaped so that the compiler vectorises them.
 *
 * Eight independent accumulators per loop, combined in a fixed order: the result
 * is the same bits with and without vector units, and for a row whatever the
 * batch. No fma (-ffp-contract=off), so the AVX2 clone equals the plain one.
 * Source of exp: Cody & Waite 1980 range reduction, degree-6 Taylor on |r| <=
 * ln2/2. Tests: tests/worker/test_wrk_sample.c
 */
#include "wrk_sample_vec.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define CLONES __attribute__((target_clones("default", "avx2"), optimize("O3")))
#else
#define CLONES
#endif
#define LANES 8

static inline __attribute__((always_inline)) float exp_neg(float x)
{
    const float log2e = 1.44269504088896341f, hi = 0.693359375f, lo = -2.12194440e-4f;
    float lim = x < -87.0f ? -87.0f : x, k, r, p, scale;
    int32_t bits;

    k = (float)(int32_t)(lim * log2e - 0.5f); /* lim <= 0: rounds to nearest */
    r = lim - k * hi;
    r = r - k * lo;
    p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits = ((int32_t)k + 127) << 23;
    memcpy(&scale, &bits, sizeof(scale));
    return x < -87.0f ? 0.0f : p * scale;
}

float wrk_vec_exp1(float x)
{
    return exp_neg(x);
}

CLONES bool wrk_vec_finite(const float *x, uint32_t n)
{
    uint32_t bad = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t b;

        memcpy(&b, &x[i], sizeof(b));
        bad |= (b & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

CLONES float wrk_vec_max(const float *x, uint32_t n)
{
    float m[LANES];
    uint32_t i = 0;

    for (int l = 0; l < LANES; l++)
        m[l] = x[0];
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            m[l] = x[i + l] > m[l] ? x[i + l] : m[l];
    for (; i < n; i++)
        m[0] = x[i] > m[0] ? x[i] : m[0];
    for (int l = 1; l < LANES; l++)
        m[0] = m[l] > m[0] ? m[l] : m[0];
    return m[0];
}

uint32_t wrk_vec_find(const float *x, uint32_t n, float value)
{
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == value)
            return i;
    return 0;
}

/* Lanes to double, in lane order. */
static double total_of(const float *lane)
{
    double t = 0;

    for (int l = 0; l < LANES; l++)
        t += lane[l];
    return t;
}

CLONES void wrk_vec_softmax(float *x, uint32_t n, float max, float t, double *out_total)
{
    double total = 0;
    uint32_t i = 0;

    while (i < n) {
        uint32_t end = i + WRK_VEC_BLOCK < n ? i + WRK_VEC_BLOCK : n;
        float lane[LANES] = {0};

        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++) {
                x[i + l] = exp_neg((x[i + l] - max) / t);
                lane[l] += x[i + l];
            }
        for (; i < end; i++) {
            x[i] = exp_neg((x[i] - max) / t);
            lane[0] += x[i];
        }
        total += total_of(lane);
    }
    *out_total = total;
}

CLONES double wrk_vec_sum_exp(const float *x, uint32_t n, float max)
{
    double total = 0;
    uint32_t i = 0;

    while (i < n) {
        uint32_t end = i + WRK_VEC_BLOCK < n ? i + WRK_VEC_BLOCK : n;
        float lane[LANES] = {0};

        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += exp_neg(x[i + l] - max);
        for (; i < end; i++)
            lane[0] += exp_neg(x[i] - max);
        total += total_of(lane);
    }
    return total;
}

CLONES double wrk_vec_sum_from(const float *x, uint32_t n, float least)
{
    float lane[LANES] = {0};
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] >= least ? x[i + l] : 0.0f;
    for (; i < n; i++)
        lane[0] += x[i] >= least ? x[i] : 0.0f;
    return total_of(lane);
}
