/* be_half.h - IEEE half and bfloat16 to and from f32, in plain C.
 *
 * Exact: widening is lossless, narrowing rounds to nearest even like the F16C
 * instructions do, so a fast path that uses those gives the same bits. Shared by
 * the dtype table and the CPU backend. Tests: tests/backends/test_be_dtype.c
 */
#ifndef INFERD_BE_HALF_H
#define INFERD_BE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float be_bits_to_f32(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t be_f32_to_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float be_half_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 1023u;

    if (exp == 31) /* infinity, or NaN made quiet as the hardware does */
        return be_bits_to_f32(sign | 0x7F800000u | man << 13 | (man ? 0x400000u : 0));
    if (exp == 0) { /* zero or subnormal: man * 2^-24, exact in f32 */
        float f = (float)man * 0x1p-24f;

        return sign ? -f : f;
    }
    return be_bits_to_f32(sign | (exp + 112u) << 23 | man << 13);
}

static inline uint16_t be_f32_to_half(float f)
{
    uint32_t u = be_f32_to_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;

    if (a >= 0x7F800000u)
        return (uint16_t)(sign | 0x7C00u | (a > 0x7F800000u ? 0x200u | ((a >> 13) & 0x3FFu) : 0));
    if (a >= 0x477FF000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7C00u);
    if (a < 0x38800000u) { /* below 2^-14: adding 0.5 aligns the result's units */
        float r = be_bits_to_f32(a) + 0.5f;

        return (uint16_t)(sign | (be_f32_to_bits(r) - 0x3F000000u));
    }
    a += 0xFFFu + ((a >> 13) & 1u);
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

static inline float be_bf16_to_f32(uint16_t b)
{
    return be_bits_to_f32((uint32_t)b << 16);
}

static inline uint16_t be_load_u16(const void *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline float be_load_half(const void *p)
{
    return be_half_to_f32(be_load_u16(p));
}

#endif
