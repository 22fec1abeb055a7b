/* be_cpu_math_avx2.h - private: elementary functions on 8 floats (AVX2, FMA), and the ends of rows.
 *
 * Errors against f64, measured by tests/backends (test_be_cpu_rows, _linear):
 *   exp8      <= 2 ulp for -87.3 <= x <= 88.3; below, 0; above, 2.3e38; exp8(0) = 1
 *   tanh8     <= 2e-7 absolute
 *   erf8      <= 3e-7 absolute
 *   sincos8   <= 2e-7 absolute for |x| <= 2^18; beyond, the caller uses libm
 * Range reduction and minimax forms as in Cephes (Moshier) and, for erf, a rational
 * fit on [-4, 4]. NaN gives NaN. Each lane by itself.
 */
#ifndef INFERD_BE_CPU_MATH_AVX2_H
#define INFERD_BE_CPU_MATH_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "be_cpu_inline.h"

#define SET8 _mm256_set1_ps

static inline __m256 exp8(__m256 x)
{
    const __m256 low = SET8(-87.3f);
    /* constants first: min and max return their second operand for a NaN */
    __m256 c = _mm256_min_ps(SET8(88.3f), _mm256_max_ps(low, x));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(c, SET8(1.44269504088896341f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, SET8(0.693359375f), c);
    __m256 p = SET8(1.9875691500e-4f);
    __m256i e;

    r = _mm256_fnmadd_ps(n, SET8(-2.12194440e-4f), r);
    p = _mm256_fmadd_ps(p, r, SET8(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, SET8(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, SET8(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, SET8(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, SET8(5.0000001201e-1f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r);
    p = _mm256_add_ps(p, SET8(1.0f));
    e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(e));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), p);
}

static inline __m256 tanh8(__m256 x)
{
    const __m256 sign = SET8(-0.0f);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 big = _mm256_sub_ps(
        SET8(1.0f),
        _mm256_div_ps(SET8(2.0f), _mm256_add_ps(exp8(_mm256_add_ps(a, a)), SET8(1.0f))));
    __m256 p = SET8(-5.70498872745e-3f);

    big = _mm256_or_ps(big, _mm256_and_ps(sign, x));
    p = _mm256_fmadd_ps(p, z, SET8(2.06390887954e-2f));
    p = _mm256_fmadd_ps(p, z, SET8(-5.37397155531e-2f));
    p = _mm256_fmadd_ps(p, z, SET8(1.33314422036e-1f));
    p = _mm256_fmadd_ps(p, z, SET8(-3.33332819422e-1f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    return _mm256_blendv_ps(big, p, _mm256_cmp_ps(a, SET8(0.625f), _CMP_LT_OQ));
}

static inline __m256 erf8(__m256 x)
{
    __m256 c = _mm256_min_ps(SET8(4.0f), _mm256_max_ps(SET8(-4.0f), x));
    __m256 z = _mm256_mul_ps(c, c), p = SET8(-2.72614225801306e-10f),
           q = SET8(-1.45660718464996e-05f);

    p = _mm256_fmadd_ps(p, z, SET8(2.77068142495902e-08f));
    p = _mm256_fmadd_ps(p, z, SET8(-2.10102402082508e-06f));
    p = _mm256_fmadd_ps(p, z, SET8(-5.69250639462346e-05f));
    p = _mm256_fmadd_ps(p, z, SET8(-7.34990630326855e-04f));
    p = _mm256_fmadd_ps(p, z, SET8(-2.95459980854025e-03f));
    p = _mm256_fmadd_ps(p, z, SET8(-1.60960333262415e-02f));
    q = _mm256_fmadd_ps(q, z, SET8(-2.13374055278905e-04f));
    q = _mm256_fmadd_ps(q, z, SET8(-1.68282697438203e-03f));
    q = _mm256_fmadd_ps(q, z, SET8(-7.37332916720468e-03f));
    q = _mm256_fmadd_ps(q, z, SET8(-1.42647390514189e-02f));
    return _mm256_div_ps(_mm256_mul_ps(c, p), q);
}

/* 0.5 z (1 + tanh(u)) = z / (1 + exp(-2u)), u = sqrt(2/pi) (z + 0.044715 z^3) */
static inline __m256 gelu_tanh8(__m256 z)
{
    __m256 c = _mm256_fmadd_ps(_mm256_mul_ps(z, z), SET8(0.044715f), SET8(1.0f));
    __m256 u2 = _mm256_mul_ps(_mm256_mul_ps(z, SET8(-2 * 0.79788456080286535588f)), c);

    return _mm256_div_ps(z, _mm256_add_ps(SET8(1.0f), exp8(u2)));
}

static inline __m256 gelu_erf8(__m256 z)
{
    __m256 e = erf8(_mm256_mul_ps(z, SET8(0.70710678118654752440f)));

    return _mm256_mul_ps(_mm256_mul_ps(z, SET8(0.5f)), _mm256_add_ps(e, SET8(1.0f)));
}

static inline void sincos8(__m256 x, __m256 *out_sin, __m256 *out_cos)
{
    __m256 k = _mm256_round_ps(_mm256_mul_ps(x, SET8(0.63661977236758134308f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i q = _mm256_cvtps_epi32(k);
    __m256 r = _mm256_fnmadd_ps(k, SET8(1.57079637050628662109375f), x);
    __m256 z, s, c, swap;
    __m256i neg_s, neg_c;

    /* pi/2 in three parts; the first difference is exact for |k| < 2^18 */
    r = _mm256_fnmadd_ps(k, SET8(-4.37113882867379e-8f), r);
    r = _mm256_fnmadd_ps(k, SET8(-1.71512451e-15f), r);
    z = _mm256_mul_ps(r, r);
    s = _mm256_fmadd_ps(SET8(-1.9515295891e-4f), z, SET8(8.3321608736e-3f));
    s = _mm256_fmadd_ps(s, z, SET8(-1.6666654611e-1f));
    s = _mm256_fmadd_ps(_mm256_mul_ps(s, z), r, r);
    c = _mm256_fmadd_ps(SET8(2.443315711809948e-5f), z, SET8(-1.388731625493765e-3f));
    c = _mm256_fmadd_ps(c, z, SET8(4.166664568298827e-2f));
    c = _mm256_fmadd_ps(_mm256_mul_ps(c, z), z, _mm256_fnmadd_ps(z, SET8(0.5f), SET8(1.0f)));
    swap = _mm256_castsi256_ps(_mm256_slli_epi32(q, 31)); /* odd quadrant */
    neg_s = _mm256_slli_epi32(_mm256_srli_epi32(q, 1), 31);
    neg_c = _mm256_slli_epi32(_mm256_srli_epi32(_mm256_add_epi32(q, _mm256_set1_epi32(1)), 1), 31);
    *out_sin = _mm256_xor_ps(_mm256_blendv_ps(s, c, swap), _mm256_castsi256_ps(neg_s));
    *out_cos = _mm256_xor_ps(_mm256_blendv_ps(c, s, swap), _mm256_castsi256_ps(neg_c));
}

/* Sum of 8 lanes in a fixed tree. */
static inline float hsum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

/* Lanes [0, n) on, n <= 8. */
static inline __m256i lanes8(uint32_t n)
{
    const __m256i idx = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), idx);
}

/* The first 8 of n values at p, those that are not there 0. */
INLINE __m256 load_n(const float *p, size_t n)
{
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes8((uint32_t)n));
}

INLINE void store_n(float *p, size_t n, __m256 v)
{
    if (n >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, lanes8((uint32_t)n), v);
}

#endif
