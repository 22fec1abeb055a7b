/* be_cpu_pack_avx2.c - repacks weights at load into the layouts of be_cpu_pack.h.
 *
 * Moves bits, never values: codes and scales are those of the file, so products
 * stay exact. Each unit is packed by the thread that will read it (first touch).
 * Tests: tests/backends/test_be_cpu_linear.c (levels_agree_with_plain_c)
 */
#include "be_cpu_pack.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

size_t be_cpu_group_block_bytes(enum be_dtype t)
{
    size_t extra = t == BE_Q4_K || t == BE_Q5_K ? 32 : 0;

    return (size_t)be_dtype_block_bytes(t) * BE_CPU_GROUP + extra;
}

size_t be_cpu_pack_bytes(enum be_dtype t, uint64_t n_rows, uint64_t n_cols)
{
    size_t units = (size_t)((n_rows + BE_CPU_UNIT - 1) / BE_CPU_UNIT);
    size_t block = be_dtype_block(t), n_blocks = (size_t)n_cols / block;

    if (block == 1)
        return units * BE_CPU_UNIT * (size_t)n_cols * be_dtype_block_bytes(t);
    return units * 2 * n_blocks * be_cpu_group_block_bytes(t);
}

/* n bytes of codes (a multiple of 16) of each of 8 rows, 4 bytes per chunk, into
 * lanes of 32-byte vectors: 8 x 4 dwords are turned at a time. */
static void spread(uint8_t *dst, const uint8_t *const *src, size_t off, size_t n)
{
    for (size_t i = 0; i < n; i += 16, dst += 128) {
        __m256i r[4], a[4];

        for (unsigned k = 0; k < 4; k++)
            r[k] = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(src[k] + off + i))),
                _mm_loadu_si128((const __m128i *)(src[k + 4] + off + i)), 1);
        a[0] = _mm256_unpacklo_epi32(r[0], r[1]);
        a[1] = _mm256_unpackhi_epi32(r[0], r[1]);
        a[2] = _mm256_unpacklo_epi32(r[2], r[3]);
        a[3] = _mm256_unpackhi_epi32(r[2], r[3]);
        _mm256_storeu_si256((__m256i *)dst, _mm256_unpacklo_epi64(a[0], a[2]));
        _mm256_storeu_si256((__m256i *)(dst + 32), _mm256_unpackhi_epi64(a[0], a[2]));
        _mm256_storeu_si256((__m256i *)(dst + 64), _mm256_unpacklo_epi64(a[1], a[3]));
        _mm256_storeu_si256((__m256i *)(dst + 96), _mm256_unpackhi_epi64(a[1], a[3]));
    }
}

/* Bit i of qh is the fifth bit of value i = 4c + b: to bit c of byte b. */
static void spread_bits(uint8_t *dst, const uint8_t *qh, unsigned r)
{
    uint64_t bits = 0;

    /* nibble c of the 32 bits to byte c, then gather bit b of every byte */
    memcpy(&bits, qh, 4);
    bits = (bits | bits << 16) & 0x0000FFFF0000FFFFull;
    bits = (bits | bits << 8) & 0x00FF00FF00FF00FFull;
    bits = (bits | bits << 4) & 0x0F0F0F0F0F0F0F0Full;
    for (unsigned b = 0; b < 4; b++)
        dst[4 * r + b] =
            (uint8_t)((((bits >> b) & 0x0101010101010101ull) * 0x0102040810204080ull) >> 56);
}

/* 16-bit field at off of each row. */
static void halves(uint8_t *dst, const uint8_t *const *src, size_t off)
{
    for (unsigned r = 0; r < BE_CPU_GROUP; r++)
        memcpy(dst + 2 * r, src[r] + off, 2);
}

static void block_32(enum be_dtype t, uint8_t *dst, const uint8_t *const *src)
{
    bool min = t == BE_Q4_1 || t == BE_Q5_1, five = t == BE_Q5_0 || t == BE_Q5_1;
    size_t at = 2;

    halves(dst, src, 0);
    dst += 16;
    if (t == BE_Q8_0) {
        spread(dst, src, 2, 32);
        return;
    }
    if (min) {
        halves(dst, src, 2);
        dst += 16;
        at += 2;
    }
    if (five) {
        for (unsigned r = 0; r < BE_CPU_GROUP; r++)
            spread_bits(dst + 128, src[r] + at, r);
        at += 4;
    }
    spread(dst, src, at, 16);
}

static void block_q45_k(uint8_t *dst, const uint8_t *const *src, bool five)
{
    halves(dst, src, 0);
    halves(dst + 16, src, 2);
    for (unsigned r = 0; r < BE_CPU_GROUP; r++) {
        const uint8_t *s = src[r] + 4;

        for (unsigned j = 0; j < 8; j++) {
            unsigned sc = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
            unsigned m =
                j < 4 ? s[j + 4] & 63u : (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;

            dst[32 + 8 * j + r] = (uint8_t)sc;
            dst[96 + 16 * (j / 2) + 2 * r + j % 2] = (uint8_t)m;
        }
    }
    if (five)
        spread(dst + 160, src, 16, 32);
    spread(dst + BE_CPU_Q45K_QS(five), src, five ? 48 : 16, 128);
}

static void block_q6_k(uint8_t *dst, const uint8_t *const *src)
{
    halves(dst, src, 208);
    for (unsigned r = 0; r < BE_CPU_GROUP; r++)
        for (unsigned j = 0; j < 16; j++)
            dst[16 + 8 * j + r] = src[r][192 + j];
    spread(dst + BE_CPU_Q6K_QL, src, 0, 128);
    spread(dst + BE_CPU_Q6K_QH, src, 128, 64);
}

static void pack_group(const struct be_weight *w, size_t g, uint8_t *dst)
{
    static const uint8_t zeros[256]; /* stands in for rows past the end */
    size_t nb = (size_t)w->n_cols / be_dtype_block(w->dtype);
    size_t in = be_dtype_block_bytes(w->dtype), out = be_cpu_group_block_bytes(w->dtype);
    const uint8_t *src[BE_CPU_GROUP];
    size_t step[BE_CPU_GROUP];

    for (unsigned r = 0; r < BE_CPU_GROUP; r++) {
        size_t row = g * BE_CPU_GROUP + r;
        bool real = row < w->n_rows;

        src[r] = real ? w->raw + row * w->row_bytes : zeros;
        step[r] = real ? in : 0;
    }
    for (size_t b = 0; b < nb; b++, dst += out) {
        if (w->dtype == BE_Q6_K)
            block_q6_k(dst, src);
        else if (w->dtype == BE_Q4_K || w->dtype == BE_Q5_K)
            block_q45_k(dst, src, w->dtype == BE_Q5_K);
        else
            block_32(w->dtype, dst, src);
        for (unsigned r = 0; r < BE_CPU_GROUP; r++)
            src[r] += step[r];
    }
}

/* 16 rows side by side. */
static void pack_plain(const struct be_weight *w, size_t u, uint8_t *dst)
{
    size_t elem = be_dtype_block_bytes(w->dtype);

    for (unsigned r = 0; r < BE_CPU_UNIT; r++) {
        size_t row = u * BE_CPU_UNIT + r;
        const uint8_t *src = w->raw + row * w->row_bytes;

        if (row >= w->n_rows)
            return;
        if (elem == 4)
            for (size_t k = 0; k < w->n_cols; k++)
                memcpy(dst + (k * BE_CPU_UNIT + r) * 4, src + k * 4, 4);
        else
            for (size_t k = 0; k < w->n_cols; k++)
                memcpy(dst + (k * BE_CPU_UNIT + r) * 2, src + k * 2, 2);
    }
}

void be_cpu_pack(const struct be_weight *w, size_t u0, size_t u1)
{
    for (size_t u = u0; u < u1; u++) {
        uint8_t *dst = w->packed + u * w->unit_bytes;

        if (be_dtype_block(w->dtype) == 1) {
            pack_plain(w, u, dst);
        } else {
            pack_group(w, 2 * u, dst);
            pack_group(w, 2 * u + 1, dst + w->unit_bytes / 2);
        }
    }
}

#endif
