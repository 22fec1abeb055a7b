/* be_kref.h - the names of kx_prelude.cu for the CPU, and what executors share.
 *
 * Included by the executors (be_kref_<family>.c) so that kx_math.h and the arithmetic of
 * a kernel are the same text on host and device. Every function here gives the device's
 * bits, at the edges too: NaN, saturation, ties. Compiled with -ffp-contract=off.
 * Tests: tests/backends/test_be_kref.c
 */
#ifndef INFERD_BE_KREF_H
#define INFERD_BE_KREF_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "be_half.h"
#include "be_kargs.h"

#define KX_DEV static inline
#define KX_CONST static const
#define KX_UNROLL

/* A device address that is a host address here. */
#define KX_AT(type, p) ((type *)(uintptr_t)(p))

KX_DEV float kx_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
KX_DEV float kx_sqrt(float x)
{
    return sqrtf(x);
}
KX_DEV float kx_div(float a, float b)
{
    return a / b;
}
KX_DEV float kx_max(float a, float b)
{
    return fmaxf(a, b);
}
KX_DEV float kx_min(float a, float b)
{
    return fminf(a, b);
}
KX_DEV float kx_abs(float a)
{
    return fabsf(a);
}
/* half to even; saturates, NaN is 0, as the device's conversion does */
KX_DEV int kx_rint(float x)
{
    if (!(x == x))
        return 0;
    if (x >= 2147483648.0f)
        return INT_MAX;
    if (x <= -2147483648.0f)
        return INT_MIN;
    return (int)rintf(x);
}
KX_DEV float kx_round_away(float x)
{
    return roundf(x);
}
KX_DEV float kx_i2f(int i)
{
    return (float)i;
}
KX_DEV int kx_f2i_bits(float f)
{
    return (int)be_f32_to_bits(f);
}
KX_DEV float kx_i2f_bits(int i)
{
    return be_bits_to_f32((uint32_t)i);
}
KX_DEV double kx_dfma(double a, double b, double c)
{
    return fma(a, b, c);
}
KX_DEV double kx_drint(double x)
{
    return rint(x);
}
/* NaN becomes the device's one NaN, in both directions */
KX_DEV float kx_h2f(unsigned short h)
{
    float f = be_half_to_f32(h);

    return f == f ? f : be_bits_to_f32(0x7fffffffu);
}
KX_DEV unsigned short kx_f2h(float f)
{
    return f == f ? be_f32_to_half(f) : 0x7fffu;
}
KX_DEV kx_u kx_f2h2(float lo, float hi)
{
    return (kx_u)kx_f2h(lo) | (kx_u)kx_f2h(hi) << 16;
}
/* the device's word as the float it stands for: half away from 0 */
KX_DEV float kx_tf32(float f)
{
    return isfinite(f) ? be_bits_to_f32((be_f32_to_bits(f) + 0x1000u) & ~0x1fffu) : f;
}
KX_DEV float kx_bf2f(unsigned short h)
{
    return be_bf16_to_f32(h);
}
KX_DEV int kx_dp4a(kx_u a, kx_u b, int c)
{
    for (unsigned i = 0; i < 4; i++)
        c += (int8_t)(a >> (8 * i)) * (int8_t)(b >> (8 * i));
    return c;
}

#include "kx_math.h"

/* ---- shared by executors */

/* The slices of a sum folded as every kernel folds them (be_kargs.h). */
KX_DEV float kx_fold(const float s[KX_SLICES])
{
    float a[KX_SLICES], b[KX_SLICES];

    memcpy(a, s, sizeof(a));
    for (unsigned m = KX_SLICES / 2; m; m /= 2) {
        for (unsigned i = 0; i < KX_SLICES; i++)
            b[i] = a[i] + a[i ^ m];
        memcpy(a, b, sizeof(a));
    }
    return a[0];
}

/* Element i of an activation tensor of type t. */
KX_DEV float kx_act_get(kx_p p, kx_u t, uint64_t i)
{
    return t == KX_F16 ? kx_h2f(KX_AT(const unsigned short, p)[i]) : KX_AT(const float, p)[i];
}
KX_DEV void kx_act_put(kx_p p, kx_u t, uint64_t i, float v)
{
    if (t == KX_F16)
        KX_AT(unsigned short, p)[i] = kx_f2h(v);
    else
        KX_AT(float, p)[i] = v;
}

#endif
