/* be_cpu_refq.c - int8 products in plain C: the quantizers of activations and the
 * dot of each block type.
 *
 * The contract all levels keep bit for bit (so the level never changes an
 * answer): per block an exact integer sum, then
 *   32-value types without minimum   acc = fma(dw * dx, (float)(sum - zero * s), acc)
 *   32-value types with minimum      acc = fma(dw * dx, (float)sum, acc)
 *                                    acc = fma(mw * dx, (float)s, acc)
 *   Q4_K, Q5_K                       acc = fma(dw * dx, (float)sum, acc)
 *                                    acc = fma(-(dmin * dx), (float)minsum, acc)
 *   Q6_K                             acc = fma(dw * dx, (float)sum, acc)
 * with s the sum of the activation's codes. Source: engine.md 2.4.
 * Tests: tests/backends/test_be_cpu_linear.c, test_be_dtype.c
 */
#include "be_cpu_ref.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "be_half.h"

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= FLT_MAX))
            return false;
    return true;
}

static void block_q8_0(const float *x, int8_t *q, float *out_d, int32_t *out_s)
{
    float amax = 0, d, id;
    int32_t s = 0;

    if (!all_finite(x, 32)) {
        memset(q, 0, 32);
        *out_d = NAN;
        *out_s = 0;
        return;
    }
    for (unsigned i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    d = amax / 127.0f;
    id = d != 0 ? 1.0f / d : 0;
    if (!(id <= FLT_MAX)) /* d below 2^-128: the block is zero in half anyway */
        id = 0;
    for (unsigned i = 0; i < 32; i++) {
        q[i] = (int8_t)roundf(x[i] * id);
        s += q[i];
    }
    *out_d = be_half_to_f32(be_f32_to_half(d));
    *out_s = s;
}

void be_cpu_ref_quant_q8_0(struct be_cpu_act *a, uint32_t r0, uint32_t r1)
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

static void block_q8_k(const float *x, int8_t *q, float *out_d, int16_t *bsum)
{
    float amax = 0, v = 0, iscale;

    memset(q, 0, 256);
    memset(bsum, 0, BE_CPU_BK * sizeof(*bsum));
    *out_d = 0;
    if (!all_finite(x, 256)) {
        *out_d = NAN;
        return;
    }
    for (unsigned i = 0; i < 256; i++) {
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            v = x[i];
        }
    }
    iscale = -127.0f / v;
    if (amax == 0 || !(fabsf(iscale) <= FLT_MAX))
        return;
    for (unsigned i = 0; i < 256; i++) {
        float r = rintf(iscale * x[i]);

        q[i] = (int8_t)(r > 127 ? 127 : r);
        bsum[i / 16] = (int16_t)(bsum[i / 16] + q[i]);
    }
    for (unsigned i = 0; i < 8; i++)
        bsum[16 + i] = (int16_t)(bsum[2 * i] + bsum[2 * i + 1]);
    *out_d = 1 / iscale;
}

void be_cpu_ref_quant_q8_k(struct be_cpu_act *a, uint32_t r0, uint32_t r1)
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

static int nib(const uint8_t *qs, unsigned i)
{
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int bit(const uint8_t *qh, unsigned i)
{
    return (qh[i / 8] >> (i % 8)) & 1;
}

/* Codes of a 32-value block; returns the zero point, -1 for a type with minimum. */
static int codes_32(enum be_dtype t, const uint8_t *b, int *q)
{
    for (unsigned i = 0; i < 32; i++) {
        switch (t) {
        case BE_Q4_0:
            q[i] = nib(b + 2, i);
            break;
        case BE_Q4_1:
            q[i] = nib(b + 4, i);
            break;
        case BE_Q5_0:
            q[i] = nib(b + 6, i) | bit(b + 2, i) << 4;
            break;
        case BE_Q5_1:
            q[i] = nib(b + 8, i) | bit(b + 4, i) << 4;
            break;
        default:
            q[i] = (int8_t)b[2 + i];
            break;
        }
    }
    return t == BE_Q4_0 ? 8 : t == BE_Q5_0 ? 16 : t == BE_Q8_0 ? 0 : -1;
}

static float step_32(enum be_dtype t, const uint8_t *b, const int8_t *x, float dx, int32_t s,
                     float acc)
{
    int q[32], zero = codes_32(t, b, q);
    int32_t sum = 0;

    for (unsigned i = 0; i < 32; i++)
        sum += q[i] * x[i];
    if (zero >= 0)
        return fmaf(be_load_half(b) * dx, (float)(sum - zero * s), acc);
    acc = fmaf(be_load_half(b) * dx, (float)sum, acc);
    return fmaf(be_load_half(b + 2) * dx, (float)s, acc);
}

static void scale_min(const uint8_t *s, unsigned j, int *sc, int *m)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *m = s[j + 4] & 63;
    } else {
        *sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *m = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

static float step_q45_k(const uint8_t *b, const int8_t *x, float dx, const int16_t *bsum, float acc,
                        bool five)
{
    const uint8_t *qs = five ? b + 48 : b + 16;
    int32_t sum = 0, minsum = 0;

    for (unsigned j = 0; j < 8; j++) {
        int32_t part = 0;
        int sc, m;

        scale_min(b + 4, j, &sc, &m);
        for (unsigned l = 0; l < 32; l++) {
            int v = qs[32 * (j / 2) + l], q = j % 2 ? v >> 4 : v & 15;

            if (five)
                q += ((b[16 + l] >> j) & 1) << 4;
            part += q * x[32 * j + l];
        }
        sum += sc * part;
        minsum += m * (bsum[2 * j] + bsum[2 * j + 1]);
    }
    acc = fmaf(be_load_half(b) * dx, (float)sum, acc);
    return fmaf(-(be_load_half(b + 2) * dx), (float)minsum, acc);
}

static float step_q6_k(const uint8_t *b, const int8_t *x, float dx, float acc)
{
    int32_t sum = 0;

    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, s = (i % 128) / 32, l = i % 32;
        int v = b[64 * half + 32 * (s & 1) + l], lo = s < 2 ? v & 15 : v >> 4;
        int hi = (b[128 + 32 * half + l] >> (2 * s)) & 3;

        sum += (int8_t)b[192 + i / 16] * ((lo | hi << 4) - 32) * x[i];
    }
    return fmaf(be_load_half(b + 208) * dx, (float)sum, acc);
}

float be_cpu_ref_dot(enum be_dtype t, const uint8_t *row, const struct be_cpu_act *a, uint32_t r)
{
    uint32_t bs = be_dtype_block(t), nb = a->n_cols / bs;
    uint32_t start = r - r % BE_CPU_TILE, m = be_cpu_tile_rows(a->n, start);
    float acc = 0;

    for (uint32_t b = 0; b < nb; b++, row += be_dtype_block_bytes(t)) {
        size_t at = (size_t)start * nb + (size_t)b * m + (r - start);

        if (bs == 32)
            acc = step_32(t, row, a->q0 + at * 32, a->d0[at], a->s0[at], acc);
        else if (t == BE_Q6_K)
            acc = step_q6_k(row, a->qk + at * 256, a->dk[at], acc);
        else
            acc = step_q45_k(row, a->qk + at * 256, a->dk[at], a->bk + at * BE_CPU_BK, acc,
                             t == BE_Q5_K);
    }
    return acc;
}
