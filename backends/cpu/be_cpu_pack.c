/* be_cpu_pack.c - repacks weights at load into the layouts of be_cpu_pack.h.
 *
 * Moves bits, never values: codes and scales are those of the file, so products
 * stay exact. Each unit is packed by the thread that will read it (first touch).
 * Tests: tests/backends/test_be_cpu_linear.c (levels_agree_with_plain_c)
 */
#include "be_cpu_pack.h"

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

/* n codes of row r, 4 bytes per chunk, into lanes of 32-byte vectors. */
static void spread(uint8_t *dst, const uint8_t *src, size_t n, unsigned r)
{
    for (size_t c = 0; c < n / 4; c++)
        memcpy(dst + 32 * c + 4 * r, src + 4 * c, 4);
}

/* Bit i of qh is the fifth bit of value i = 4c + b: to bit c of byte b. */
static void spread_bits(uint8_t *dst, const uint8_t *qh, unsigned r)
{
    uint32_t bits;

    memcpy(&bits, qh, 4);
    for (unsigned b = 0; b < 4; b++) {
        unsigned v = 0;

        for (unsigned c = 0; c < 8; c++)
            v |= ((bits >> (4 * c + b)) & 1u) << c;
        dst[4 * r + b] = (uint8_t)v;
    }
}

static void block_32(enum be_dtype t, uint8_t *dst, const uint8_t *b, unsigned r)
{
    bool min = t == BE_Q4_1 || t == BE_Q5_1, five = t == BE_Q5_0 || t == BE_Q5_1;
    size_t at = 2;

    memcpy(dst + 2 * r, b, 2);
    dst += 16;
    if (t == BE_Q8_0) {
        spread(dst, b + 2, 32, r);
        return;
    }
    if (min) {
        memcpy(dst + 2 * r, b + 2, 2);
        dst += 16;
        at += 2;
    }
    if (five) {
        spread_bits(dst + 128, b + at, r);
        at += 4;
    }
    spread(dst, b + at, 16, r);
}

static void block_q45_k(uint8_t *dst, const uint8_t *b, unsigned r, bool five)
{
    const uint8_t *s = b + 4;

    memcpy(dst + 2 * r, b, 2);
    memcpy(dst + 16 + 2 * r, b + 2, 2);
    for (unsigned j = 0; j < 8; j++) {
        unsigned sc = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
        unsigned m =
            j < 4 ? s[j + 4] & 63u : (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;

        dst[32 + 8 * j + r] = (uint8_t)sc;
        dst[96 + 16 * (j / 2) + 2 * r + j % 2] = (uint8_t)m;
    }
    if (five)
        spread(dst + 160, b + 16, 32, r);
    spread(dst + BE_CPU_Q45K_QS(five), b + (five ? 48 : 16), 128, r);
}

static void block_q6_k(uint8_t *dst, const uint8_t *b, unsigned r)
{
    memcpy(dst + 2 * r, b + 208, 2);
    for (unsigned j = 0; j < 16; j++)
        dst[16 + 8 * j + r] = b[192 + j];
    spread(dst + BE_CPU_Q6K_QL, b, 128, r);
    spread(dst + BE_CPU_Q6K_QH, b + 128, 64, r);
}

static void pack_group(const struct be_weight *w, size_t g, uint8_t *dst)
{
    size_t nb = (size_t)w->n_cols / be_dtype_block(w->dtype);
    size_t in = be_dtype_block_bytes(w->dtype), out = be_cpu_group_block_bytes(w->dtype);

    for (size_t b = 0; b < nb; b++, dst += out) {
        for (unsigned r = 0; r < BE_CPU_GROUP; r++) {
            size_t row = g * BE_CPU_GROUP + r;
            const uint8_t *src = w->raw + row * w->row_bytes + b * in;

            if (row >= w->n_rows)
                break; /* our memory is zeroed */
            if (w->dtype == BE_Q6_K)
                block_q6_k(dst, src, r);
            else if (w->dtype == BE_Q4_K || w->dtype == BE_Q5_K)
                block_q45_k(dst, src, r, w->dtype == BE_Q5_K);
            else
                block_32(w->dtype, dst, src, r);
        }
    }
}

/* 16 rows side by side, one after the other: a unit fits the cache. */
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
