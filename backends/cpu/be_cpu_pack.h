/* be_cpu_pack.h - private: the layouts that the vector kernels read.
 *
 * Quantized: BE_CPU_GROUP = 8 weight rows side by side, so that one 32-byte load
 * holds 4 neighbouring codes ("chunk") of each row and one broadcast of 4
 * activations serves 8 outputs. Per block, in this order (row r at lane r):
 *
 *   Q8_0          f16 d[8] | chunk 0..7
 *   Q4_0 Q5_0     f16 d[8] | nibbles 0..3 | bits        (bits: Q5 only)
 *   Q4_1 Q5_1     f16 d[8] | f16 m[8] | nibbles 0..3 | bits
 *       nibbles v: low = chunk v, high = chunk v + 4; bits: bit c of a byte is the
 *       fifth bit of that byte's value in chunk c
 *   Q4_K Q5_K     f16 d[8] | f16 dmin[8] | u8 sc[8][8] | u8 mn[4][8][2] |
 *                 bits c = 0..7 (Q5) | nibbles [4][8]
 *       sc[j][r]; mn[k][r] = minima 2k, 2k+1; nibbles [g][c]: low = sub-block 2g,
 *       high = 2g + 1, chunk c; bits c: bit j belongs to sub-block j
 *   Q6_K          f16 d[8] | i8 sc[16][8] | nibbles [2][2][8] | bits [2][8]
 *       nibbles [H][p][c]: low = quarter p, high = quarter p + 2 of half H; bits
 *       [H][c]: bits 2s, 2s+1 belong to quarter s
 *
 * Only Q4_K and Q5_K grow (32 bytes in 1152 or 1408): six-bit scales are spread to bytes.
 * F32, F16, BF16: BE_CPU_UNIT = 16 rows side by side, [n_cols][16] elements.
 * Rows past the end are zeros. Tests: tests/backends/test_be_cpu_linear.c
 */
#ifndef INFERD_BE_CPU_PACK_H
#define INFERD_BE_CPU_PACK_H

#include "be_cpu.h"

#define BE_CPU_Q45K_QS(five) (160u + ((five) ? 256u : 0u))
#define BE_CPU_Q6K_QL 144u
#define BE_CPU_Q6K_QH (144u + 1024u)

/* Bytes of one block of 8 rows. */
size_t be_cpu_group_block_bytes(enum be_dtype t);
size_t be_cpu_pack_bytes(enum be_dtype t, uint64_t n_rows, uint64_t n_cols);
void be_cpu_pack(const struct be_weight *w, size_t u0, size_t u1);
/* Values [col, col + n) of a row of a packed matrix: one whole block, or up to 256
 * values of a plain type. be_cpu_unpack.c */
void be_cpu_unpack(const struct be_weight *w, uint64_t row, size_t col, uint32_t n, float *out);

#endif
