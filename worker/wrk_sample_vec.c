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

/* Compiler vectors: without them -ftrapping-math keeps a select from vectorising. */
typedef float vf __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t vi __attribute__((vector_size(LANES * sizeof(int32_t))));
#define INLINE static inline __attribute__((always_inline))

INLINE void load(vf *v, const float *x)
{
    memcpy(v, x, sizeof(*v));
}

/* v = mask ? a : b, lane by lane. */
INLINE void choose(vf *v, const vi *mask, const vf *a, const vf *b)
{
    *v = (vf)(((vi)*a & *mask) | ((vi)*b & ~*mask));
}

#define EXP_STEPS(lim)                                                         \
    k = CVT_INT(lim * 1.44269504088896341f - 0.5f); /* lim <= 0: to nearest */ \
    r = lim - CVT_F(k) * 0.693359375f;                                         \
    r = r + CVT_F(k) * 2.12194440e-4f;                                         \
    p = r * (1.0f / 720.0f) + 1.0f / 120.0f;                                   \
    p = p * r + 1.0f / 24.0f;                                                  \
    p = p * r + 1.0f / 6.0f;                                                   \
    p = p * r + 0.5f;                                                          \
    p = p * r + 1.0f;                                                          \
    p = p * r + 1.0f;                                                          \
    bits = (k + 127) << 23

/* In place, for values <= 0. */
INLINE void exp_lanes(vf *x)
{
    const vf least = {-87, -87, -87, -87, -87, -87, -87, -87};
    vi below = *x < least, k, bits;
    vf lim, r, p;

    choose(&lim, &below, &least, x);
#define CVT_INT(v) __builtin_convertvector(v, vi)
#define CVT_F(v) __builtin_convertvector(v, vf)
    EXP_STEPS(lim);
#undef CVT_INT
#undef CVT_F
    *x = (vf)((vi)(p * (vf)bits) & ~below);
}

float wrk_vec_exp1(float x)
{
    float lim = x < -87.0f ? -87.0f : x, r, p, scale;
    int32_t k, bits;

#define CVT_INT(v) (int32_t)(v)
#define CVT_F(v) (float)(v)
    EXP_STEPS(lim);
#undef CVT_INT
#undef CVT_F
    memcpy(&scale, &bits, sizeof(scale));
    return x < -87.0f ? 0.0f : p * scale;
}

CLONES bool wrk_vec_finite(const float *x, uint32_t n)
{
    const vi mask = {0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000,
                     0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000};
    vi bad = {0};
    uint32_t i = 0;
    bool ok = true;

    for (; i + LANES <= n; i += LANES) {
        vi v;

        memcpy(&v, x + i, sizeof(v));
        bad |= (v & mask) == mask;
    }
    for (int l = 0; l < LANES; l++)
        ok = ok && bad[l] == 0;
    for (; i < n; i++)
        ok = ok && isfinite(x[i]);
    return ok;
}

CLONES float wrk_vec_max(const float *x, uint32_t n)
{
    float m = x[0];
    uint32_t i = 0;

    if (n >= LANES) {
        vf best, v;

        load(&best, x);
        for (i = LANES; i + LANES <= n; i += LANES) {
            vi more;

            load(&v, x + i);
            more = v > best;
            choose(&best, &more, &v, &best);
        }
        for (int l = 0; l < LANES; l++)
            m = best[l] > m ? best[l] : m;
    }
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

CLONES uint32_t wrk_vec_find(const float *x, uint32_t n, float value)
{
    const vf want = {value, value, value, value, value, value, value, value};
    uint32_t i = 0;

    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        vi hit = {0};
        int32_t any = 0;

        for (int k = 0; k < 4; k++) {
            vf v;

            load(&v, x + i + k * LANES);
            hit |= v == want;
        }
        for (int l = 0; l < LANES; l++)
            any |= hit[l];
        if (any != 0)
            break;
    }
    for (; i < n; i++)
        if (x[i] == value)
            return i;
    return 0;
}

/* Lanes to double, in lane order. */
INLINE double total_of(const vf *lane)
{
    double t = 0;

    for (int l = 0; l < LANES; l++)
        t += (double)(*lane)[l];
    return t;
}

CLONES void wrk_vec_softmax(float *x, uint32_t n, float max, float t, double *out_total)
{
    double total = 0;
    uint32_t i = 0;

    while (i < n) {
        uint32_t end = i + WRK_VEC_BLOCK < n ? i + WRK_VEC_BLOCK : n;
        vf lane = {0}, v;

        for (; i + LANES <= end; i += LANES) {
            load(&v, x + i);
            v = (v - max) / t;
            exp_lanes(&v);
            memcpy(x + i, &v, sizeof(v));
            lane += v;
        }
        for (; i < end; i++) {
            x[i] = wrk_vec_exp1((x[i] - max) / t);
            lane[0] += x[i];
        }
        total += total_of(&lane);
    }
    *out_total = total;
}

CLONES double wrk_vec_sum_exp(const float *x, uint32_t n, float max)
{
    double total = 0;
    uint32_t i = 0;

    while (i < n) {
        uint32_t end = i + WRK_VEC_BLOCK < n ? i + WRK_VEC_BLOCK : n;
        vf lane = {0}, v;

        for (; i + LANES <= end; i += LANES) {
            load(&v, x + i);
            v = v - max;
            exp_lanes(&v);
            lane += v;
        }
        for (; i < end; i++)
            lane[0] += wrk_vec_exp1(x[i] - max);
        total += total_of(&lane);
    }
    return total;
}

CLONES double wrk_vec_sum_from(const float *x, uint32_t n, float least)
{
    double total = 0;
    uint32_t i = 0;

    while (i < n) {
        uint32_t end = i + WRK_VEC_BLOCK < n ? i + WRK_VEC_BLOCK : n;
        vf lane = {0}, v;

        for (; i + LANES <= end; i += LANES) {
            load(&v, x + i);
            lane += (vf)((vi)v & (v >= least));
        }
        for (; i < end; i++)
            lane[0] += x[i] >= least ? x[i] : 0.0f;
        total += total_of(&lane);
    }
    return total;
}

CLONES uint32_t wrk_vec_from(const float *x, uint32_t n, float least, uint32_t *out)
{
    uint32_t m = 0, i = 0;

    for (; i + LANES <= n; i += LANES) {
        vf v;
        vi hit;
        int32_t any = 0;

        load(&v, x + i);
        hit = v >= least;
        for (int l = 0; l < LANES; l++)
            any |= hit[l];
        for (int l = 0; any != 0 && l < LANES; l++)
            if (hit[l] != 0)
                out[m++] = i + (uint32_t)l;
    }
    for (; i < n; i++)
        if (x[i] >= least)
            out[m++] = i;
    return m;
}

CLONES void wrk_vec_mask(float *x, uint32_t n, const uint64_t *bits)
{
    const vi lane = {1, 2, 4, 8, 16, 32, 64, 128};
    const vf none = {-INFINITY, -INFINITY, -INFINITY, -INFINITY,
                     -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        int32_t b = (int32_t)(bits[i / 64] >> (i % 64) & 0xff);
        vi set = {b, b, b, b, b, b, b, b}, on;
        vf v;

        if (b == 0xff)
            continue;
        on = (set & lane) == lane;
        load(&v, x + i);
        choose(&v, &on, &v, &none);
        memcpy(x + i, &v, sizeof(v));
    }
    for (; i < n; i++)
        if ((bits[i / 64] >> (i % 64) & 1) == 0)
            x[i] = -INFINITY;
}
