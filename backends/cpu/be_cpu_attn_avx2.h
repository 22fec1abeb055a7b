/* be_cpu_attn_avx2.h - private: what both AVX2 attentions do the same way. */
#ifndef INFERD_BE_CPU_ATTN_AVX2_H
#define INFERD_BE_CPU_ATTN_AVX2_H

#include <math.h>

#include "be_cpu.h"
#include "be_cpu_math_avx2.h"

#define STRIP 16u /* keys of one score kernel */
#define COLS 16u  /* of one value kernel */
#define GROUP 6u  /* vectors of one kernel */

/* CALL(r) with a constant, 1 <= r <= GROUP. */
#define BY_COUNT(r) \
    switch (r) {    \
    case 1:         \
        CALL(1);    \
        break;      \
    case 2:         \
        CALL(2);    \
        break;      \
    case 3:         \
        CALL(3);    \
        break;      \
    case 4:         \
        CALL(4);    \
        break;      \
    case 5:         \
        CALL(5);    \
        break;      \
    default:        \
        CALL(6);    \
        break;      \
    }

/* Where vector i of the item begins in q and out. */
static inline size_t vec_at(const struct be_cpu_attn *a, unsigned i)
{
    return (size_t)(a->row0 + i / a->n_heads) * a->ld +
           (size_t)(a->head0 + i % a->n_heads) * a->head_dim;
}

/* Largest of 8 lanes, none of which is NaN. */
static inline float hmax8(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

/* Scores of one vector's tile become weights; keys outside [b, e) get 0. Returns what earlier
 * sums must be scaled by. */
static inline float softmax_tile(float *s, uint32_t b, uint32_t e, float *m, float *l)
{
    const __m256 none = SET8(-INFINITY);
    const __m256i idx = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i from = _mm256_set1_epi32((int)b - 1), to = _mm256_set1_epi32((int)e);
    bool all = b == 0 && e == BE_CPU_KEYS;
    __m256 x[BE_CPU_KEYS / 8], top = none, sum = _mm256_setzero_ps();
    float max, f;

    for (unsigned i = 0; i < BE_CPU_KEYS / 8; i++) {
        x[i] = _mm256_loadu_ps(s + 8 * i);
        if (!all) {
            __m256i at = _mm256_add_epi32(idx, _mm256_set1_epi32(8 * (int)i));
            __m256i on = _mm256_and_si256(_mm256_cmpgt_epi32(at, from), _mm256_cmpgt_epi32(to, at));

            x[i] = _mm256_blendv_ps(none, x[i], _mm256_castsi256_ps(on));
        }
        top = _mm256_max_ps(x[i], top); /* of a NaN the second operand is left: top never is one */
    }
    max = hmax8(top);
    max = max > *m ? max : *m;
    if (max == -INFINITY) /* every score is -inf or NaN: let NaN show */
        max = 0;
    for (unsigned i = 0; i < BE_CPU_KEYS / 8; i++) {
        __m256 w = exp8(_mm256_sub_ps(x[i], SET8(max)));

        _mm256_storeu_ps(s + 8 * i, w);
        sum = _mm256_add_ps(sum, w);
    }
    f = _mm256_cvtss_f32(exp8(SET8(*m - max)));
    *l = *l * f + hsum8(sum);
    *m = max;
    return f;
}

static inline void transpose8(__m256 r[8])
{
    __m256 a[8], b[8];

    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xEE);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

#endif
