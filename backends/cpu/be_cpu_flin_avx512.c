/* be_cpu_flin_avx512.c - f32 products with packed F32, F16 or BF16 weights (AVX-512).
 *
 * A unit is 16 outputs, one vector; weights lie as [n_cols][16], and each output is the chain of
 * fma over k = 0, 1, ... that be_cpu_flin_avx2.c runs: same bits. Tiles of up to 8 rows x 3 units,
 * 2 rows x 4 where there are few: up to 24 sums in registers, and half as many loads as products,
 * so that neither loads nor the latency of a sum hold up the two multipliers. More rows than 8 are
 * slower where rows lie 4 KiB apart: their lines share one set of the first-level cache. Tests:
 * tests/backends/test_be_cpu_linear.c
 */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "be_cpu_inline.h"

#define ROWS 8u /* of a tile, at most */

INLINE __m512 widen(enum be_dtype t, const uint8_t *p, size_t idx)
{
    if (t == BE_F32)
        return _mm512_loadu_ps((const float *)(const void *)p + idx);
    if (t == BE_F16)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * idx)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * idx))),
        16));
}

/* Sanitized builds have one tile for all sizes: what unrolling multiplies, they check (minutes). */
#ifdef BE_CPU_ONE_TILE
#define TILE_INLINE static __attribute__((noinline))
#undef UNROLL
#undef UNROLL_4
#define UNROLL
#define UNROLL_4
#else
#define TILE_INLINE INLINE
#endif

/* rows x (units * 16) outputs over all columns. The units' weights are unit_bytes apart. */
TILE_INLINE void tile(enum be_dtype t, const uint8_t *w, size_t unit_bytes, const float *x,
                      size_t ldx, unsigned rows, unsigned units, float *out, size_t ld)
{
    __m512 acc[ROWS][4];

    UNROLL
    for (unsigned i = 0; i < rows; i++)
        UNROLL
    for (unsigned j = 0; j < units; j++)
        acc[i][j] = _mm512_setzero_ps();
    UNROLL_4
    for (size_t k = 0; k < ldx; k++) {
        __m512 wv[4];

        UNROLL
        for (unsigned j = 0; j < units; j++)
            wv[j] = widen(t, w + j * unit_bytes, k * BE_CPU_UNIT);
        UNROLL
        for (unsigned i = 0; i < rows; i++) {
            __m512 xv = _mm512_set1_ps(x[i * ldx + k]);

            UNROLL
            for (unsigned j = 0; j < units; j++)
                acc[i][j] = _mm512_fmadd_ps(xv, wv[j], acc[i][j]);
        }
    }
    UNROLL
    for (unsigned i = 0; i < rows; i++)
        UNROLL
    for (unsigned j = 0; j < units; j++)
        _mm512_storeu_ps(out + i * ld + BE_CPU_UNIT * j, acc[i][j]);
}

/* n rows (1 to 8) by nu units: as many units at once as registers hold. */
INLINE void tile_rows(enum be_dtype t, uint32_t n, const uint8_t *p, size_t ub, const float *x,
                      size_t ldx, unsigned nu, float *out, size_t ld)
{
    unsigned u = 0;

#define TILE(rows, units)                   \
    for (; nu - u >= (units); u += (units)) \
    tile(t, p + u * ub, ub, x, ldx, rows, units, out + BE_CPU_UNIT * u, ld)
#define MANY(rows) \
    TILE(rows, 3); \
    TILE(rows, 1); \
    break
#define FEW(rows)  \
    TILE(rows, 4); \
    MANY(rows)
    switch (n) {
    case 1:
        FEW(1);
    case 2:
        FEW(2);
    case 3:
        MANY(3);
    case 4:
        MANY(4);
    case 5:
        MANY(5);
    case 6:
        MANY(6);
    case 7:
        MANY(7);
    default:
        MANY(8);
    }
#undef TILE
#undef FEW
#undef MANY
}

INLINE void flin(enum be_dtype t, const struct be_weight *w, const struct be_cpu_act *a,
                 const uint8_t *p, unsigned nu, uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    const float *x = a->x + (size_t)r0 * a->n_cols;
    uint32_t i = 0;

    /* even shares: 10 rows are 5 + 5, never 8 + 2 with idle registers */
    for (uint32_t left = (nr + ROWS - 1) / ROWS; left > 0; left--) {
        uint32_t n = (nr - i + left - 1) / left;

        tile_rows(t, n, p, w->unit_bytes, x + (size_t)i * a->n_cols, a->n_cols, nu, out + i * ld,
                  ld);
        i += n;
    }
}

void be_cpu_flin_avx512(const struct be_weight *w, const struct be_cpu_act *a, size_t u0,
                        unsigned nu, uint32_t r0, uint32_t nr, float *out, size_t ld)
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
