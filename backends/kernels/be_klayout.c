/* be_klayout.c - how a weight lies in device memory.
 *
 * A file's blocks mix codes and scales, so no two loads of a warp are aligned. On the device a
 * row is taken apart into planes, each dense and 16-byte aligned, in the order of the columns.
 * Every plane is [n_rows, row_bytes]; what a row lacks to a multiple of 16 bytes is zero.
 * Repacking (kx_repack_<format>) is exact and loses nothing.
 *
 * A sub-block is 32 consecutive columns, a superblock 256.
 *
 *   F32 F16 BF16  0: the values
 *   Q8_0          0: 32 int8 a sub-block            1: half d a sub-block
 *   Q4_0          0: 16 bytes a sub-block (nibbles) 1: half d
 *   Q4_1          0: nibbles                        1: half d, half m
 *   Q5_0 Q5_1     0: nibbles                        1: as Q4_0, Q4_1   2: u32 (fifth bits)
 *   Q4_K          0: nibbles   1: half d, half dmin a superblock
 *                 2: 16 bytes a superblock: of sub-block j the scale in byte 2j, the minimum in
 *                    byte 2j + 1 (6 bits each)
 *   Q5_K          as Q4_K; 3: u32 a sub-block (fifth bits)
 *   Q6_K          0: nibbles (low 4 bits)           1: half d a superblock
 *                 2: 16 int8 a superblock, one scale per 16 columns
 *                 3: 2 u32 a sub-block (bits 4 and 5)
 *
 *   nibbles     byte i (0..15) of a sub-block: column i low, column 16 + i high
 *   fifth bits  bit 8 (v % 4) + v / 4 is that of column v of the sub-block: shifted right by j,
 *               bit 0 of each byte belongs to the columns 4j .. 4j + 3
 *   Q6_K bits   word h, bits 8 (v % 4) + 2 (v / 4) and the next: column 16 h + v: shifted right
 *               by 2j, two bits of each byte belong to the columns 16h + 4j .. 16h + 4j + 3
 * Tests: tests/backends/test_be_klinear.c
 */
#include "be_kir.h"

#include <string.h>

static bool plane(struct be_klayout *l, uint64_t bytes)
{
    bytes = (bytes + 15) / 16 * 16;
    if (bytes > UINT32_MAX)
        return false;
    l->row_bytes[l->n_planes++] = (uint32_t)bytes;
    return true;
}

bool be_klayout_get(enum be_dtype t, uint32_t k, struct be_klayout *out)
{
    struct be_klayout l = {0};
    uint64_t sub = k / 32, super = k / 256;
    bool ok = false;

    if (k == 0 || !be_dtype_known(t) || k % be_dtype_block(t) != 0)
        return false;
    switch (t) {
    case BE_F32:
        ok = plane(&l, (uint64_t)k * 4);
        break;
    case BE_F16:
    case BE_BF16:
        ok = plane(&l, (uint64_t)k * 2);
        break;
    case BE_Q8_0:
        ok = plane(&l, k) && plane(&l, sub * 2);
        break;
    case BE_Q4_0:
        ok = plane(&l, sub * 16) && plane(&l, sub * 2);
        break;
    case BE_Q4_1:
        ok = plane(&l, sub * 16) && plane(&l, sub * 4);
        break;
    case BE_Q5_0:
        ok = plane(&l, sub * 16) && plane(&l, sub * 2) && plane(&l, sub * 4);
        break;
    case BE_Q5_1:
        ok = plane(&l, sub * 16) && plane(&l, sub * 4) && plane(&l, sub * 4);
        break;
    case BE_Q4_K:
        ok = plane(&l, sub * 16) && plane(&l, super * 4) && plane(&l, super * 16);
        break;
    case BE_Q5_K:
        ok = plane(&l, sub * 16) && plane(&l, super * 4) && plane(&l, super * 16) &&
             plane(&l, sub * 4);
        break;
    case BE_Q6_K:
        ok = plane(&l, sub * 16) && plane(&l, super * 2) && plane(&l, super * 16) &&
             plane(&l, sub * 8);
        break;
    }
    if (ok)
        *out = l;
    return ok;
}
