/* be_cpu_flin_avx2.c - f32 products with packed F32, F16 or BF16 weights (AVX2).
 *
 * A unit is 16 outputs, two vectors; weights lie as [n_cols][16], so each output
 * is one chain of fma over k = 0, 1, ... in order. Tiles of 6 rows x 16 (12 sums
 * in registers), 2 or 1 rows x up to 4 units: every shape runs that same chain,
 * so a row's bits do not depend on the batch. Two-byte weights are widened
 * exactly in registers.
 * Tests: tests/backends/test_be_cpu_linear.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "be_cpu_inline.h"

/* Columns kept in L1 while all rows of the call pass: 16 x 384 f32 = 24 KiB. */
#define K_BLOCK 384u

INLINE __m256 widen(enum be_dtype t, const uint8_t *p, size_t idx)
{
    if (t == BE_F32)
        return _mm256_loadu_ps((const float *)(const void *)p + idx);
    if (t == BE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * idx)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * idx))), 16));
}

/* rows x (units * 16) sums over columns [k0, k1); first: start from zero, else go
 * on from out. The units' weights are unit_bytes apart. */
INLINE void tile(enum be_dtype t, const uint8_t *w, size_t unit_bytes, const float *x, size_t ldx,
                 size_t k0, size_t k1, unsigned rows, unsigned units, bool first, float *out,
                 size_t ld)
{
    __m256 acc[6][8];

    UNROLL
    for (unsigned i = 0; i < rows; i++)
        UNROLL
    for (unsigned j = 0; j < 2 * units; j++)
        acc[i][j] = first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + i * ld + 8 * j);
    UNROLL_4
    for (size_t k = k0; k < k1; k++) {
        __m256 wv[8];

        /* all weights, then one broadcast at a time: the other way round gcc keeps
         * six broadcasts and spills the sums */
        UNROLL
        for (unsigned j = 0; j < 2 * units; j++)
            wv[j] = widen(t, w + (j / 2) * unit_bytes, k * BE_CPU_UNIT + 8 * (j % 2));
        UNROLL
        for (unsigned i = 0; i < rows; i++) {
            __m256 xv = _mm256_set1_ps(x[i * ldx + k]);

            UNROLL
            for (unsigned j = 0; j < 2 * units; j++)
                acc[i][j] = _mm256_fmadd_ps(xv, wv[j], acc[i][j]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < rows; i++)
        UNROLL
    for (unsigned j = 0; j < 2 * units; j++)
        _mm256_storeu_ps(out + i * ld + 8 * j, acc[i][j]);
}

/* n rows (1 to 6) by nu units: as many units at once as registers hold. */
INLINE void tile_rows(enum be_dtype t, uint32_t n, const uint8_t *p, size_t ub, const float *x,
                      size_t ldx, size_t k0, size_t k1, unsigned nu, bool first, float *out,
                      size_t ld)
{
    unsigned u = 0;

#define TILE(rows, units)                   \
    for (; nu - u >= (units); u += (units)) \
    tile(t, p + u * ub, ub, x, ldx, k0, k1, rows, units, first, out + BE_CPU_UNIT * u, ld)
    switch (n) {
    case 1:
        TILE(1, 4);
        TILE(1, 1);
        break;
    case 2:
        TILE(2, 2);
        TILE(2, 1);
        break;
    case 3:
        TILE(3, 2);
        TILE(3, 1);
        break;
    case 4:
        TILE(4, 1);
        break;
    case 5:
        TILE(5, 1);
        break;
    default:
        TILE(6, 1);
        break;
    }
#undef TILE
}

INLINE void flin(enum be_dtype t, const struct be_weight *w, const struct be_cpu_act *a,
                 const uint8_t *p, unsigned nu, uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    const float *x = a->x + (size_t)r0 * a->n_cols;
    size_t ldx = a->n_cols, ub = w->unit_bytes;

    for (size_t k0 = 0; k0 < ldx; k0 += K_BLOCK) {
        size_t k1 = k0 + K_BLOCK < ldx ? k0 + K_BLOCK : ldx;
        bool first = k0 == 0;
        uint32_t i = 0, tiles = (nr + 5) / 6;

        /* even shares: 8 rows are 4 + 4, never 6 + 2 with idle registers */
        for (uint32_t left = tiles; left > 0; left--) {
            uint32_t n = (nr - i + left - 1) / left;

            tile_rows(t, n, p, ub, x + i * ldx, ldx, k0, k1, nu, first, out + i * ld, ld);
            i += n;
        }
    }
}

void be_cpu_flin_avx2(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                      uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    const uint8_t *p = w->packed + u0 * w->unit_bytes;

    if (w->dtype == BE_F32)
        flin(BE_F32, w, a, p, nu, r0, nr, out, ld);
    else if (w->dtype == BE_F16)
        flin(BE_F16, w, a, p, nu, r0, nr, out, ld);
    else
        flin(BE_BF16, w, a, p, nu, r0, nr, out, ld);
}

#endif
