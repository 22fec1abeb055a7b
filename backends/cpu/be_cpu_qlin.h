/* be_cpu_qlin.h - the int8 products of 8 weight rows with a tile of quantized
 * activation rows, as text for two instruction sets.
 *
 * Included by be_cpu_qlin_avx2.c and be_cpu_qlin_avx512.c, which define QLIN_VNNI
 * (0: maddubs and madd, 1: vpdpbusd), and by nothing else. Lane r of every vector
 * is output r of the group, so an output's sums are exact integers per block and
 * one chain of fma over blocks: the contract of be_cpu_refq.c, the same for any
 * number of rows. Layouts: be_cpu_pack.h.
 *
 * Why 16-bit sums cannot overflow (AVX2): activation codes lie in -127..127 by the
 * quantizers. One maddubs adds two products: 4-bit codes give 15*127*2 = 3810, of
 * which 8 fit; 5-bit 7874, of which 4 fit; 6-bit 16002, of which 2 fit; 8-bit
 * |-128|*127*2 = 32512, one.
 */
#include <immintrin.h>
#include <string.h>

#include "be_cpu_inline.h"
#include "be_cpu_pack.h"

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256i four(const void *p)
{
    int32_t v;

    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE __m256 halves(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* 8 scales of 16 bits or less as pairs for madd (AVX2) or as lanes (VNNI). */
INLINE __m256i scale_lanes(__m256i s)
{
#if QLIN_VNNI
    return s;
#else
    return _mm256_or_si256(_mm256_and_si256(s, _mm256_set1_epi32(0xFFFF)),
                           _mm256_slli_epi32(s, 16));
#endif
}

/* sum over n chunks of w[c] (unsigned) times x + 4c, times scale. per16 = how many
 * maddubs results a 16-bit lane holds. */
INLINE __m256i dot_scaled(const __m256i *w, const int8_t *x, unsigned n, unsigned per16,
                          __m256i scale)
{
#if QLIN_VNNI
    __m256i a = _mm256_setzero_si256(), b = a;

    UNROLL
    for (unsigned c = 0; c < n; c += 2) {
        a = _mm256_dpbusd_epi32(a, w[c], four(x + 4 * c));
        b = _mm256_dpbusd_epi32(b, w[c + 1], four(x + 4 * c + 4));
    }
    return _mm256_mullo_epi32(_mm256_add_epi32(a, b), scale);
#else
    __m256i sum = _mm256_setzero_si256();

    UNROLL
    for (unsigned c = 0; c < n; c += per16) {
        __m256i a = _mm256_maddubs_epi16(w[c], four(x + 4 * c));

        UNROLL
        for (unsigned i = 1; i < per16; i++)
            a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w[c + i], four(x + 4 * (c + i))));
        a = _mm256_madd_epi16(a, scale);
        sum = c == 0 ? a : _mm256_add_epi32(sum, a);
    }
    return sum;
#endif
}

/* As dot_scaled, without scale. */
INLINE __m256i dot_plain(const __m256i *w, const int8_t *x, unsigned per16)
{
#if QLIN_VNNI
    __m256i a = _mm256_setzero_si256(), b = a;

    UNROLL
    for (unsigned c = 0; c < 8; c += 2) {
        a = _mm256_dpbusd_epi32(a, w[c], four(x + 4 * c));
        b = _mm256_dpbusd_epi32(b, w[c + 1], four(x + 4 * c + 4));
    }
    return _mm256_add_epi32(a, b);
#else
    return dot_scaled(w, x, 8, per16, _mm256_set1_epi16(1));
#endif
}

/* What a group's function is given: a tile of m rows. */
struct tile {
    const int8_t *q;
    const float *d;
    const int32_t *s;
    const int16_t *bk;
    size_t nb;
};

INLINE void prefetch(const uint8_t *p, size_t n)
{
    /* Streams of packed blocks: ask for what comes a few microseconds later. */
    for (size_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + 1536 + i, _MM_HINT_T0);
}

/* -------------------------------------------------------- blocks of 32 values */

INLINE void group_nib(const uint8_t *p, const struct tile *t, unsigned m, bool five, bool min,
                      __m256 *acc)
{
    const size_t bytes = 16u + (min ? 16u : 0u) + 128u + (five ? 32u : 0u);
    const __m256i low = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);
    const int32_t zero = min ? 0 : five ? 16 : 8;

    for (size_t b = 0; b < t->nb; b++, p += bytes) {
        const uint8_t *qs = p + (min ? 32 : 16);
        __m256 d = halves(p), mn = min ? halves(p + 16) : d;
        __m256i w[8];

        if (m == 1)
            prefetch(p, bytes);
        UNROLL
        for (unsigned v = 0; v < 4; v++) {
            __m256i raw = load(qs + 32 * v);

            w[v] = _mm256_and_si256(raw, low);
            w[v + 4] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), low);
        }
        if (five) {
            __m256i h = load(qs + 128);

            UNROLL
            for (unsigned c = 0; c < 8; c++) {
                __m256i s =
                    c < 4 ? _mm256_slli_epi16(h, 4 - (int)c) : _mm256_srli_epi16(h, (int)c - 4);

                w[c] = _mm256_or_si256(w[c], _mm256_and_si256(s, bit4));
            }
        }
        for (unsigned i = 0; i < m; i++) {
            size_t at = b * m + i;
            __m256i sum = dot_plain(w, t->q + at * 32, five ? 4 : 8);
            __m256 dx = _mm256_set1_ps(t->d[at]);

            if (!min) {
                sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(zero * t->s[at]));
                acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(sum), acc[i]);
            } else {
                acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(sum), acc[i]);
                acc[i] =
                    _mm256_fmadd_ps(_mm256_mul_ps(mn, dx), _mm256_set1_ps((float)t->s[at]), acc[i]);
            }
        }
    }
}

INLINE void group_q8_0(const uint8_t *p, const struct tile *t, unsigned m, __m256 *acc)
{
    for (size_t b = 0; b < t->nb; b++, p += 272) {
        __m256 d = halves(p);
        __m256i w[8];

        if (m == 1)
            prefetch(p, 272);
        UNROLL
        for (unsigned c = 0; c < 8; c++)
#if QLIN_VNNI
            w[c] = _mm256_xor_si256(load(p + 16 + 32 * c), _mm256_set1_epi8(-128));
#else
            w[c] = _mm256_abs_epi8(load(p + 16 + 32 * c));
#endif
        for (unsigned i = 0; i < m; i++) {
            size_t at = b * m + i;
            const int8_t *x = t->q + at * 32;
            __m256i sum;

#if QLIN_VNNI
            sum = _mm256_sub_epi32(dot_plain(w, x, 1), _mm256_set1_epi32(128 * t->s[at]));
#else
            /* |w| times x with w's sign: x is never -128, w may be */
            sum = _mm256_setzero_si256();
            UNROLL
            for (unsigned c = 0; c < 8; c++) {
                __m256i sx = _mm256_sign_epi8(four(x + 4 * c), load(p + 16 + 32 * c));
                __m256i pr =
                    _mm256_madd_epi16(_mm256_maddubs_epi16(w[c], sx), _mm256_set1_epi16(1));

                sum = _mm256_add_epi32(sum, pr);
            }
#endif
            acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(t->d[at])),
                                     _mm256_cvtepi32_ps(sum), acc[i]);
        }
    }
}

/* ------------------------------------------------------- blocks of 256 values */

INLINE __m256i eight_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE __m256i eight_i8(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE void group_q45_k(const uint8_t *p, const struct tile *t, unsigned m, bool five, __m256 *acc)
{
    const size_t bytes = 160u + (five ? 256u : 0u) + 1024u;
    const __m256i low = _mm256_set1_epi8(15), bit4 = _mm256_set1_epi8(16);

    for (size_t b = 0; b < t->nb; b++, p += bytes) {
        const uint8_t *qs = p + BE_CPU_Q45K_QS(five), *qh = p + 160;
        __m256i sum[BE_CPU_TILE];

        for (unsigned i = 0; i < m; i++)
            sum[i] = _mm256_setzero_si256();
        UNROLL
        for (unsigned j = 0; j < 8; j++) {
            __m256i scale = scale_lanes(eight_u8(p + 32 + 8 * j)), w[8];

            if (m == 1)
                prefetch(qs + 128 * j, 128);
            UNROLL
            for (unsigned c = 0; c < 8; c++) {
                __m256i raw = load(qs + 256 * (j / 2) + 32 * c);

                w[c] = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(raw, 4) : raw, low);
                if (five) {
                    __m256i h = load(qh + 32 * c);

                    h = j < 4 ? _mm256_slli_epi16(h, 4 - (int)j) : _mm256_srli_epi16(h, (int)j - 4);
                    w[c] = _mm256_or_si256(w[c], _mm256_and_si256(h, bit4));
                }
            }
            for (unsigned i = 0; i < m; i++)
                sum[i] = _mm256_add_epi32(sum[i], dot_scaled(w, t->q + (b * m + i) * 256 + 32 * j,
                                                             8, five ? 4 : 8, scale));
        }
        __m256 d = halves(p), dmin = halves(p + 16);
        for (unsigned i = 0; i < m; i++) {
            size_t at = b * m + i;
            const int16_t *bs = t->bk + at * BE_CPU_BK + 16;
            __m256 dx = _mm256_set1_ps(t->d[at]);
            __m256i mins = _mm256_setzero_si256();

            for (unsigned k = 0; k < 4; k++)
                mins = _mm256_add_epi32(mins,
                                        _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(
                                                              (const __m128i *)(p + 96 + 16 * k))),
                                                          four(bs + 2 * k)));
            acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(sum[i]), acc[i]);
            acc[i] = _mm256_fnmadd_ps(_mm256_mul_ps(dmin, dx), _mm256_cvtepi32_ps(mins), acc[i]);
        }
    }
}

INLINE void group_q6_k(const uint8_t *p, const struct tile *t, unsigned m, __m256 *acc)
{
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(0x30);

    for (size_t b = 0; b < t->nb; b++, p += 1680) {
        __m256i sum[BE_CPU_TILE];
        __m256 d = halves(p);

        for (unsigned i = 0; i < m; i++)
            sum[i] = _mm256_setzero_si256();
        for (unsigned h2 = 0; h2 < 4; h2++) { /* half, and half of a quarter */
            unsigned half = h2 / 2, c0 = 4 * (h2 % 2);
            const uint8_t *qh = p + BE_CPU_Q6K_QH + 256 * half + 32 * c0;

            if (m == 1)
                prefetch(p + 420 * h2, 420);
            UNROLL
            for (unsigned s = 0; s < 4; s++) {
                unsigned g = 8 * half + 2 * s + c0 / 4; /* scale of these 16 values */
                const uint8_t *ql = p + BE_CPU_Q6K_QL + 512 * half + 256 * (s % 2) + 32 * c0;
                __m256i scale = scale_lanes(eight_i8(p + 16 + 8 * g)), w[4];

                UNROLL
                for (unsigned c = 0; c < 4; c++) {
                    __m256i l = load(ql + 32 * c), h = load(qh + 32 * c);

                    l = _mm256_and_si256(s < 2 ? l : _mm256_srli_epi16(l, 4), low);
                    h = s == 0   ? _mm256_slli_epi16(h, 4)
                        : s == 1 ? _mm256_slli_epi16(h, 2)
                        : s == 2 ? h
                                 : _mm256_srli_epi16(h, 2);
                    w[c] = _mm256_or_si256(l, _mm256_and_si256(h, two));
                }
                for (unsigned i = 0; i < m; i++)
                    sum[i] = _mm256_add_epi32(
                        sum[i], dot_scaled(w, t->q + (b * m + i) * 256 + 16 * g, 4, 2, scale));
            }
        }
        for (unsigned i = 0; i < m; i++) {
            size_t at = b * m + i;
            const int16_t *bs = t->bk + at * BE_CPU_BK;
            __m256i off = _mm256_setzero_si256();

            for (unsigned k = 0; k < 8; k++) {
                __m128i even = _mm_loadl_epi64((const __m128i *)(p + 16 + 16 * k));
                __m128i odd = _mm_loadl_epi64((const __m128i *)(p + 24 + 16 * k));

                off = _mm256_add_epi32(
                    off, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(even, odd)),
                                           four(bs + 2 * k)));
            }
            sum[i] = _mm256_sub_epi32(sum[i], _mm256_slli_epi32(off, 5));
            acc[i] = _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(t->d[at])),
                                     _mm256_cvtepi32_ps(sum[i]), acc[i]);
        }
    }
}

/* ------------------------------------------------------------------ dispatch */

INLINE void group(enum be_dtype type, const uint8_t *p, const struct tile *t, unsigned m,
                  float *out, size_t ld)
{
    __m256 acc[BE_CPU_TILE];

    for (unsigned i = 0; i < m; i++)
        acc[i] = _mm256_setzero_ps();
    switch (type) {
    case BE_Q4_0:
        group_nib(p, t, m, false, false, acc);
        break;
    case BE_Q4_1:
        group_nib(p, t, m, false, true, acc);
        break;
    case BE_Q5_0:
        group_nib(p, t, m, true, false, acc);
        break;
    case BE_Q5_1:
        group_nib(p, t, m, true, true, acc);
        break;
    case BE_Q8_0:
        group_q8_0(p, t, m, acc);
        break;
    case BE_Q4_K:
        group_q45_k(p, t, m, false, acc);
        break;
    case BE_Q5_K:
        group_q45_k(p, t, m, true, acc);
        break;
    default:
        group_q6_k(p, t, m, acc);
        break;
    }
    for (unsigned i = 0; i < m; i++)
        _mm256_storeu_ps(out + i * ld, acc[i]);
}

/* One row keeps its sums in registers; the common prefill tile is unrolled. Kept
 * as separate functions per type so that each gets its own register allocation. */
#define GROUP_FN(type)                                                                          \
    static void group_fn_##type(const uint8_t *p, const struct tile *t, unsigned m, float *out, \
                                size_t ld)                                                      \
    {                                                                                           \
        if (m == 1)                                                                             \
            group(BE_##type, p, t, 1, out, ld);                                                 \
        else                                                                                    \
            group(BE_##type, p, t, m, out, ld);                                                 \
    }
GROUP_FN(Q4_0)
GROUP_FN(Q4_1)
GROUP_FN(Q5_0)
GROUP_FN(Q5_1)
GROUP_FN(Q8_0)
GROUP_FN(Q4_K)
GROUP_FN(Q5_K)
GROUP_FN(Q6_K)

typedef void group_fn(const uint8_t *, const struct tile *, unsigned, float *, size_t);

static group_fn *group_of(enum be_dtype t)
{
    switch (t) {
    case BE_Q4_0:
        return group_fn_Q4_0;
    case BE_Q4_1:
        return group_fn_Q4_1;
    case BE_Q5_0:
        return group_fn_Q5_0;
    case BE_Q5_1:
        return group_fn_Q5_1;
    case BE_Q8_0:
        return group_fn_Q8_0;
    case BE_Q4_K:
        return group_fn_Q4_K;
    case BE_Q5_K:
        return group_fn_Q5_K;
    default:
        return group_fn_Q6_K;
    }
}

static void qlin(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                 uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    group_fn *fn = group_of(w->dtype);
    bool k = be_dtype_block(w->dtype) == 256;
    size_t nb = a->n_cols / (k ? 256u : 32u), group_bytes = w->unit_bytes / 2;

    for (unsigned g = 0; g < 2 * nu; g++) {
        const uint8_t *p = w->packed + (2 * u0 + g) * group_bytes;

        for (uint32_t r = r0; r < r0 + nr; r += BE_CPU_TILE) {
            size_t at = (size_t)r * nb;
            struct tile t = {.nb = nb};

            t.q = k ? a->qk + at * 256 : a->q0 + at * 32;
            t.d = k ? a->dk + at : a->d0 + at;
            t.s = k ? NULL : a->s0 + at;
            t.bk = k ? a->bk + at * BE_CPU_BK : NULL;
            fn(p, &t, be_cpu_tile_rows(a->n, r), out + (r - r0) * ld + 8 * g, ld);
        }
    }
}
