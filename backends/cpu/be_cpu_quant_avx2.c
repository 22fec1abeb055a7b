/* be_cpu_quant_avx2.c - activation rows to int8 blocks with AVX2; the same bits as
 * be_cpu_ref_quant_*. Tests: tests/backends/test_be_cpu_linear.c */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INF_BITS 0x7F800000

static inline __m256i abs_bits(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/* The largest of 8 non-negative integers: as bits of |x|, a NaN is the largest. */
static inline int32_t max8(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return _mm_cvtsi128_si32(m);
}

static inline int32_t sum8(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

static inline float bits_f32(int32_t v)
{
    float f;

    memcpy(&f, &v, 4);
    return f;
}

/* roundf: halves away from zero, exactly (x - trunc(x) has no rounding). */
static inline __m256i round_away(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 t = _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_andnot_ps(sign, _mm256_sub_ps(x, t));
    __m256 up = _mm256_cmp_ps(f, _mm256_set1_ps(0.5f), _CMP_GE_OQ);
    __m256 one = _mm256_or_ps(_mm256_and_ps(sign, x), _mm256_set1_ps(1.0f));

    return _mm256_cvtps_epi32(_mm256_add_ps(t, _mm256_and_ps(up, one)));
}

static inline __m256i pack32(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));

    return _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static inline void block_q8_0(const float *x, int8_t *q, float *out_d, int32_t *out_s)
{
    __m256 v[4];
    __m256i m = _mm256_setzero_si256(), c[4];
    int32_t amax;
    float d, id;

    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        m = _mm256_max_epi32(m, abs_bits(v[i]));
    }
    amax = max8(m);
    if (amax >= INF_BITS) {
        memset(q, 0, 32);
        *out_d = NAN;
        *out_s = 0;
        return;
    }
    d = bits_f32(amax) / 127.0f;
    id = d != 0 ? 1.0f / d : 0;
    if (!(id <= FLT_MAX))
        id = 0;
    for (int i = 0; i < 4; i++)
        c[i] = round_away(_mm256_mul_ps(v[i], _mm256_set1_ps(id)));
    _mm256_storeu_si256((__m256i *)q, pack32(c[0], c[1], c[2], c[3]));
    *out_s = sum8(_mm256_add_epi32(_mm256_add_epi32(c[0], c[1]), _mm256_add_epi32(c[2], c[3])));
    *out_d = _cvtsh_ss(_cvtss_sh(d, 0));
}

void be_cpu_quant_q8_0_avx2(struct be_cpu_act *a, uint32_t r0, uint32_t r1)
{
    uint32_t nb = a->n_cols / 32;

    for (uint32_t r = r0; r < r1; r++) {
        uint32_t start = r - r % BE_CPU_TILE, m = be_cpu_tile_rows(a->n, start);
        const float *x = a->x + (size_t)r * a->n_cols;

        for (uint32_t b = 0; b < nb; b++) {
            size_t at = (size_t)start * nb + (size_t)b * m + (r - start);

            block_q8_0(x + b * 32, a->q0 + at * 32, &a->d0[at], &a->s0[at]);
        }
    }
}

/* The first value whose magnitude has these bits. */
static inline float first_of(const float *x, int32_t amax)
{
    for (int i = 0; i < 256; i += 8) {
        __m256i eq = _mm256_cmpeq_epi32(abs_bits(_mm256_loadu_ps(x + i)), _mm256_set1_epi32(amax));
        int mask = _mm256_movemask_ps(_mm256_castsi256_ps(eq));

        if (mask)
            return x[i + __builtin_ctz((unsigned)mask)];
    }
    return 0;
}

static inline void block_q8_k(const float *x, int8_t *q, float *out_d, int16_t *bsum)
{
    __m256i m = _mm256_setzero_si256(), c[4];
    int32_t amax;
    float iscale;

    for (int i = 0; i < 256; i += 8)
        m = _mm256_max_epi32(m, abs_bits(_mm256_loadu_ps(x + i)));
    amax = max8(m);
    iscale = amax > 0 && amax < INF_BITS ? -127.0f / first_of(x, amax) : 0;
    if (amax >= INF_BITS || iscale == 0 || !(fabsf(iscale) <= FLT_MAX)) {
        memset(q, 0, 256);
        memset(bsum, 0, BE_CPU_BK * sizeof(*bsum));
        *out_d = amax >= INF_BITS ? NAN : 0;
        return;
    }
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 4; k++)
            c[k] =
                _mm256_min_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(
                                     _mm256_loadu_ps(x + 32 * i + 8 * k), _mm256_set1_ps(iscale))),
                                 _mm256_set1_epi32(127));
        _mm256_storeu_si256((__m256i *)(q + 32 * i), pack32(c[0], c[1], c[2], c[3]));
        bsum[2 * i] = (int16_t)sum8(_mm256_add_epi32(c[0], c[1]));
        bsum[2 * i + 1] = (int16_t)sum8(_mm256_add_epi32(c[2], c[3]));
        bsum[16 + i] = (int16_t)(bsum[2 * i] + bsum[2 * i + 1]);
    }
    *out_d = 1 / iscale;
}

void be_cpu_quant_q8_k_avx2(struct be_cpu_act *a, uint32_t r0, uint32_t r1)
{
    uint32_t nb = a->n_cols / 256;

    for (uint32_t r = r0; r < r1; r++) {
        uint32_t start = r - r % BE_CPU_TILE, m = be_cpu_tile_rows(a->n, start);
        const float *x = a->x + (size_t)r * a->n_cols;

        for (uint32_t b = 0; b < nb; b++) {
            size_t at = (size_t)start * nb + (size_t)b * m + (r - start);

            block_q8_k(x + b * 256, a->qk + at * 256, &a->dk[at], a->bk + at * BE_CPU_BK);
        }
    }
}

#endif
