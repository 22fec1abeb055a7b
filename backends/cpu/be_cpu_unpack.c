/* be_cpu_unpack.c - one row's values out of a packed matrix.
 *
 * A tied table is a linear's right side and is looked up by row too: read from the
 * packed bytes, the file's pages need not stay. The block's own bytes are put
 * together again and widened by the same function as ever, so a row has the same
 * bits either way. Plain C: a lookup is a few KiB. Layouts: be_cpu_pack.h.
 * Tests: tests/backends/test_be_cpu_linear.c (embedding_rows_are_exact)
 */
#include "be_cpu_pack.h"

#include <string.h>

/* n bytes of codes of row r, written 4 a chunk by spread(). */
static void gather(uint8_t *dst, const uint8_t *src, unsigned r, size_t n)
{
    for (size_t i = 0; i < n; i += 4)
        memcpy(dst + i, src + 8 * i + 4 * r, 4);
}

static void gather_bits(uint8_t *qh, const uint8_t *src, unsigned r)
{
    uint32_t bits = 0;

    for (unsigned i = 0; i < 32; i++)
        bits |= (uint32_t)(src[4 * r + i % 4] >> (i / 4) & 1) << i;
    memcpy(qh, &bits, 4);
}

static void block_32(enum be_dtype t, uint8_t *dst, const uint8_t *src, unsigned r)
{
    bool min = t == BE_Q4_1 || t == BE_Q5_1, five = t == BE_Q5_0 || t == BE_Q5_1;

    memcpy(dst, src + 2 * r, 2);
    dst += 2;
    src += 16;
    if (t == BE_Q8_0) {
        gather(dst, src, r, 32);
        return;
    }
    if (min) {
        memcpy(dst, src + 2 * r, 2);
        dst += 2;
        src += 16;
    }
    if (five) {
        gather_bits(dst, src + 128, r);
        dst += 4;
    }
    gather(dst, src, r, 16);
}

static void block_q45_k(uint8_t *dst, const uint8_t *src, unsigned r, bool five)
{
    uint8_t *s = dst + 4;

    memcpy(dst, src + 2 * r, 2);
    memcpy(dst + 2, src + 16 + 2 * r, 2);
    for (unsigned j = 0; j < 4; j++) {
        unsigned lo = src[32 + 8 * j + r], hi = src[32 + 8 * (j + 4) + r];
        unsigned mlo = src[96 + 16 * (j / 2) + 2 * r + j % 2];
        unsigned mhi = src[96 + 16 * (j / 2 + 2) + 2 * r + j % 2];

        s[j] = (uint8_t)(lo | (hi >> 4) << 6);
        s[j + 4] = (uint8_t)(mlo | (mhi >> 4) << 6);
        s[j + 8] = (uint8_t)((hi & 15u) | (mhi & 15u) << 4);
    }
    if (five)
        gather(dst + 16, src + 160, r, 32);
    gather(dst + (five ? 48 : 16), src + BE_CPU_Q45K_QS(five), r, 128);
}

static void block_q6_k(uint8_t *dst, const uint8_t *src, unsigned r)
{
    memcpy(dst + 208, src + 2 * r, 2);
    for (unsigned j = 0; j < 16; j++)
        dst[192 + j] = src[16 + 8 * j + r];
    gather(dst, src + BE_CPU_Q6K_QL, r, 128);
    gather(dst + 128, src + BE_CPU_Q6K_QH, r, 64);
}

void be_cpu_unpack(const struct be_weight *w, uint64_t row, size_t col, uint32_t n, float *out)
{
    size_t block = be_dtype_block(w->dtype), elem = be_dtype_block_bytes(w->dtype);
    const uint8_t *src = w->packed + (size_t)(row / BE_CPU_UNIT) * w->unit_bytes;
    unsigned r = (unsigned)(row % BE_CPU_UNIT);
    uint8_t raw[1024];

    if (block == 1) {
        for (uint32_t i = 0; i < n; i++)
            memcpy(raw + i * elem, src + ((col + i) * BE_CPU_UNIT + r) * elem, elem);
    } else {
        size_t group = w->unit_bytes / 2, n_blocks = (size_t)w->n_cols / block;

        src += r / BE_CPU_GROUP * group + col / block * (group / n_blocks);
        r %= BE_CPU_GROUP;
        if (w->dtype == BE_Q6_K)
            block_q6_k(raw, src, r);
        else if (block == 256)
            block_q45_k(raw, src, r, w->dtype == BE_Q5_K);
        else
            block_32(w->dtype, raw, src, r);
    }
    be_dtype_to_f32(w->dtype, raw, out, n);
}
