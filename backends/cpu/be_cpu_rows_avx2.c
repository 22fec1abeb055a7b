/* be_cpu_rows_avx2.c - row-wise operations with AVX2: epilogues, norms, rope,
 * softcap, argmax.
 *
 * Long sums run in f64 lanes, in an order fixed by the row's length. Elements past
 * the last full vector go through the same vector code under a mask, so a value
 * does not depend on its place. Tests: tests/backends/test_be_cpu_rows.c, _linear.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <math.h>

#include "be_cpu_math_avx2.h"

/* acc and acc1 are the linear's own buffers: readable to a multiple of 16. */
INLINE void epi_any(enum be_epi epi, const float *acc, const float *acc1, const float *bias,
                    float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 z = _mm256_loadu_ps(acc + i);

        if (bias)
            z = _mm256_add_ps(z, load_n(bias + i, n - i));
        if (epi == BE_EPI_GELU_ERF)
            z = gelu_erf8(z);
        else if (epi == BE_EPI_GELU_TANH)
            z = gelu_tanh8(z);
        else if (epi == BE_EPI_ADD)
            z = _mm256_add_ps(load_n(out + i, n - i), z);
        else if (epi == BE_EPI_GEGLU)
            z = _mm256_mul_ps(gelu_tanh8(z), _mm256_loadu_ps(acc1 + i));
        store_n(out + i, n - i, z);
    }
}

void be_cpu_epi_avx2(enum be_epi epi, const float *acc, const float *acc1, const float *bias,
                     float *out, uint32_t n)
{
    switch (epi) {
    case BE_EPI_NONE:
        epi_any(BE_EPI_NONE, acc, acc1, bias, out, n);
        break;
    case BE_EPI_GELU_ERF:
        epi_any(BE_EPI_GELU_ERF, acc, acc1, bias, out, n);
        break;
    case BE_EPI_GELU_TANH:
        epi_any(BE_EPI_GELU_TANH, acc, acc1, bias, out, n);
        break;
    case BE_EPI_ADD:
        epi_any(BE_EPI_ADD, acc, acc1, bias, out, n);
        break;
    case BE_EPI_GEGLU:
        epi_any(BE_EPI_GEGLU, acc, acc1, bias, out, n);
        break;
    }
}

INLINE __m256d low4(__m256 v)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}

INLINE __m256d high4(__m256 v)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}

INLINE double hsum4(__m256d a, __m256d b)
{
    __m256d s = _mm256_add_pd(a, b);
    __m128d h = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));

    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
}

/* Squares of floats are exact in f64, so fma and mul+add agree here. */
INLINE float rms_factor(const float *x, uint32_t n, float eps)
{
    __m256d a = _mm256_setzero_pd(), b = a;

    for (uint32_t i = 0; i < n; i += 8) {
        __m256 v = load_n(x + i, n - i);
        __m256d l = low4(v), h = high4(v);

        a = _mm256_fmadd_pd(l, l, a);
        b = _mm256_fmadd_pd(h, h, b);
    }
    return (float)(1 / sqrt(hsum4(a, b) / n + eps));
}

void be_cpu_rms_norm_avx2(const struct be_rms_norm_args *a, uint32_t r0, uint32_t r1)
{
    uint32_t n = a->x->n_cols;

    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x->data + (size_t)r * n, *w = a->w->vec;
        const float *add = a->add ? a->add->data + (size_t)r * n : NULL;
        float *out = a->out->data + (size_t)r * n;
        __m256 f = SET8(rms_factor(x, n, a->eps));

        for (uint32_t i = 0; i < n; i += 8) {
            __m256 y = _mm256_mul_ps(load_n(x + i, n - i), f);

            y = _mm256_mul_ps(y, load_n(w + i, n - i));
            if (add)
                y = _mm256_add_ps(load_n(add + i, n - i), y);
            store_n(out + i, n - i, y);
        }
    }
}

void be_cpu_layer_norm_avx2(const struct be_layer_norm_args *a, uint32_t r0, uint32_t r1)
{
    uint32_t n = a->x->n_cols;

    for (uint32_t r = r0; r < r1; r++) {
        const float *x = a->x->data + (size_t)r * n, *w = a->w->vec;
        const float *add = a->add ? a->add->data + (size_t)r * n : NULL;
        const float *b = a->b ? a->b->vec : NULL;
        float *out = a->out->data + (size_t)r * n;
        __m256d s = _mm256_setzero_pd(), t = s, mean, f;

        for (uint32_t i = 0; i < n; i += 8) {
            __m256 z = load_n(x + i, n - i);

            if (add)
                z = _mm256_add_ps(z, load_n(add + i, n - i));
            store_n(out + i, n - i, z);
            s = _mm256_add_pd(s, low4(z));
            t = _mm256_add_pd(t, high4(z));
        }
        mean = _mm256_set1_pd(hsum4(s, t) / n);
        s = t = _mm256_setzero_pd();
        for (uint32_t i = 0; i < n; i += 8) {
            __m256 z = load_n(out + i, n - i);
            __m256d l = _mm256_sub_pd(low4(z), mean), h = _mm256_sub_pd(high4(z), mean);

            if (n - i < 8) { /* lanes past the end are not values */
                __m256i m = lanes8(n - i);

                l = _mm256_and_pd(
                    l, _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(m))));
                h = _mm256_and_pd(
                    h, _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_extracti128_si256(m, 1))));
            }
            s = _mm256_fmadd_pd(l, l, s);
            t = _mm256_fmadd_pd(h, h, t);
        }
        f = _mm256_set1_pd(1 / sqrt(hsum4(s, t) / n + a->eps));
        for (uint32_t i = 0; i < n; i += 8) {
            __m256 z = load_n(out + i, n - i), y;
            __m128 l = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(low4(z), mean), f));
            __m128 h = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(high4(z), mean), f));

            y = _mm256_mul_ps(_mm256_set_m128(h, l), load_n(w + i, n - i));
            if (b)
                y = _mm256_add_ps(y, load_n(b + i, n - i));
            store_n(out + i, n - i, y);
        }
    }
}

/* cos and sin of pos * freq for half a head, f32 angles as in the reference. */
INLINE void angles(const struct be_cpu_rope *a, float pos, float *c, float *s)
{
    uint32_t half = a->head_dim / 2;

    for (uint32_t i = 0; i < half; i += 8) {
        __m256 x = _mm256_mul_ps(SET8(pos), load_n(a->freq + i, half - i)), vs, vc;
        __m256 far = _mm256_cmp_ps(_mm256_andnot_ps(SET8(-0.0f), x), SET8(262144.0f), _CMP_GT_OQ);

        sincos8(x, &vs, &vc);
        _mm256_storeu_ps(s + i, vs);
        _mm256_storeu_ps(c + i, vc);
        if (_mm256_movemask_ps(far) == 0)
            continue;
        for (uint32_t j = i; j < i + 8 && j < half; j++) {
            float ang = pos * a->freq[j];

            s[j] = sinf(ang);
            c[j] = cosf(ang);
        }
    }
}

INLINE void rope_head(const struct be_cpu_rope *a, float *x, const float *c, const float *s)
{
    uint32_t n = a->head_dim, half = n / 2;

    if (a->norm_w) {
        __m256 f = SET8(rms_factor(x, n, a->norm_eps));

        for (uint32_t i = 0; i < n; i += 8)
            store_n(x + i, n - i,
                    _mm256_mul_ps(_mm256_mul_ps(load_n(x + i, n - i), f),
                                  load_n(a->norm_w + i, n - i)));
    }
    if (!a->freq)
        return;
    for (uint32_t i = 0; i < half; i += 8) {
        __m256 u = load_n(x + i, half - i), v = load_n(x + half + i, half - i);
        __m256 vc = load_n(c + i, half - i), vs = load_n(s + i, half - i);

        store_n(x + i, half - i, _mm256_sub_ps(_mm256_mul_ps(u, vc), _mm256_mul_ps(v, vs)));
        store_n(x + half + i, half - i, _mm256_add_ps(_mm256_mul_ps(v, vc), _mm256_mul_ps(u, vs)));
    }
}

void be_cpu_rope_avx2(const struct be_cpu_rope *a, uint32_t r0, uint32_t r1)
{
    float c[BE_CPU_MAX_HEAD / 2 + 8], s[BE_CPU_MAX_HEAD / 2 + 8];

    for (uint32_t r = r0; r < r1; r++) {
        if (a->freq)
            angles(a, (float)a->pos[r], c, s);
        for (uint32_t h = 0; h < a->n_heads; h++)
            rope_head(a, a->x + ((size_t)r * a->n_heads + h) * a->ld_head, c, s);
    }
}

void be_cpu_softcap_avx2(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i += 8) {
        uint32_t left = n - i < 8 ? (uint32_t)(n - i) : 8;
        __m256 y = tanh8(_mm256_div_ps(load_n(x + i, left), SET8(cap)));

        store_n(x + i, left, _mm256_mul_ps(SET8(cap), y));
    }
}

/* Largest value first (a NaN never replaces it), then the first place that has it. */
int32_t be_cpu_argmax_avx2(const float *x, uint32_t n)
{
    __m256 m0 = SET8(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
    float lanes[8], best = -INFINITY;
    uint32_t i = 0;

    for (; n - i >= 32; i += 32) {
        m0 = _mm256_max_ps(_mm256_loadu_ps(x + i), m0);
        m1 = _mm256_max_ps(_mm256_loadu_ps(x + i + 8), m1);
        m2 = _mm256_max_ps(_mm256_loadu_ps(x + i + 16), m2);
        m3 = _mm256_max_ps(_mm256_loadu_ps(x + i + 24), m3);
    }
    _mm256_storeu_ps(lanes, _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3)));
    for (int k = 0; k < 8; k++)
        best = lanes[k] > best ? lanes[k] : best;
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    for (i = 0; i < n; i += 8) {
        uint32_t left = n - i < 8 ? n - i : 8;
        __m256 eq = _mm256_cmp_ps(load_n(x + i, left), SET8(best), _CMP_EQ_OQ);
        unsigned mask = (unsigned)_mm256_movemask_ps(eq) & ((1u << left) - 1u);

        if (mask)
            return (int32_t)(i + (uint32_t)__builtin_ctz(mask));
    }
    return 0;
}

#endif
