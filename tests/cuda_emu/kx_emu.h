/* kx_emu.h - kx_prelude.cu for the host compiler.
 *
 * Force-included (gcc -x c -DKX_EMU -DKX_ARCH=750|800 -DKX_EMU_LIB=name -include kx_emu.h)
 * in front of a generated library, whose own prelude is empty under KX_EMU. Same names, same
 * results; a thread of the device is a fiber (emu_block.c), so every barrier and warp
 * function is a place where fibers change. Stricter than the device where the device
 * would be silent: a barrier or warp function not reached by all, a misaligned vector access,
 * a cp.async result read before its wait, a prmt selector with bit 3, each end the launch with
 * an error that names kernel, block and thread. Where the device promises less than we give: f16
 * and tf32 products are summed in f32, ascending k, each sum rounded to nearest (tensor cores truncate).
 * Tests: tests/backends/test_be_emu.c
 */
#ifndef INFERD_KX_EMU_H
#define INFERD_KX_EMU_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "be_half.h"
#include "emu_dev.h"

#define kx_p unsigned long long /* as be_kargs.h has them */
#define kx_u unsigned int

#define KX_EMU_STR_(x) #x
#define KX_EMU_STR(x) KX_EMU_STR_(x)
#define KX_EMU_CAT_(a, b) a##b
#define KX_EMU_CAT(a, b) KX_EMU_CAT_(a, b)
#define KX_EMU_SECTION KX_EMU_CAT(kxsh_, KX_EMU_LIB)

/* All static shared variables of a library lie in one section, poisoned before each block. */
extern unsigned char KX_EMU_CAT(__start_, KX_EMU_SECTION)[]
    __attribute__((weak, visibility("hidden")));
extern unsigned char KX_EMU_CAT(__stop_, KX_EMU_SECTION)[]
    __attribute__((weak, visibility("hidden")));

#define KX_DEV static inline __attribute__((unused))
#define KX_SHARED static __attribute__((section(KX_EMU_STR(KX_EMU_SECTION))))
#define KX_DYN_SHARED(name) static unsigned char *const name __attribute__((unused)) = kx_emu_dyn
#define KX_CONST static const __attribute__((unused))
#define KX_UNROLL

#define KX_KERNEL(name_, threads_, min_blocks_, type_, a_)                     \
    static void name_(const type_ a_);                                         \
    static void KX_EMU_CAT(name_, _emu_run)(const void *p_)                    \
    {                                                                          \
        type_ v_; /* aligned as the type wants it */                           \
                                                                               \
        memcpy(&v_, p_, sizeof(v_));                                           \
        name_(v_);                                                             \
    }                                                                          \
    static __attribute__((constructor)) void KX_EMU_CAT(name_, _emu_add)(void) \
    {                                                                          \
        static struct emu_kernel k_ = {KX_EMU_STR(name_),                                 \
                                       KX_EMU_STR(KX_EMU_LIB),                 \
                                       KX_EMU_CAT(name_, _emu_run),            \
                                       sizeof(type_),                          \
                                       (threads_),                             \
                                       KX_ARCH / 10,                           \
                                       KX_EMU_CAT(__start_, KX_EMU_SECTION),   \
                                       KX_EMU_CAT(__stop_, KX_EMU_SECTION),    \
                                       NULL};                                  \
        emu_register(&k_);                                                     \
    }                                                                          \
    static void name_(const type_ a_)

struct __attribute__((aligned(16))) kx_u4 {
    kx_u x, y, z, w;
};
struct __attribute__((aligned(8))) kx_u2 {
    kx_u x, y;
};
struct __attribute__((aligned(8))) kx_f2 {
    float x, y;
};
struct __attribute__((aligned(16))) kx_f4 {
    float x, y, z, w;
};

#define kx_tid() (kx_emu_cur->tid)
#define kx_bx() (kx_emu_blk.bx)
#define kx_by() (kx_emu_blk.by)
#define kx_bz() (kx_emu_blk.bz)
#define kx_gx() (kx_emu_blk.gx)

#define kx_wait() ((void)(kx_emu_waited = 1))
#define kx_sync() kx_emu_sync(__LINE__)
#define kx_syncwarp() kx_emu_warp(EMU_SYNCWARP, __LINE__, NULL, NULL, NULL, 0)

static inline int kx_emu_shfl_i(int op, int line, int v, int arg)
{
    int r;

    kx_emu_warp(op, line, &r, &v, NULL, arg);
    return r;
}
static inline float kx_emu_shfl_f(int op, int line, float v, int arg)
{
    float r;

    kx_emu_warp(op, line, &r, &v, NULL, arg);
    return r;
}
static inline kx_u kx_emu_ballot(int line, int p)
{
    kx_u r;

    kx_emu_warp(EMU_BALLOT, line, &r, &p, NULL, 0);
    return r;
}
#define kx_shfl_xor_f(v, m) kx_emu_shfl_f(EMU_SHFL_XOR, __LINE__, v, m)
#define kx_shfl_xor_i(v, m) kx_emu_shfl_i(EMU_SHFL_XOR, __LINE__, v, m)
#define kx_shfl_f(v, lane) kx_emu_shfl_f(EMU_SHFL, __LINE__, v, lane)
#define kx_shfl_i(v, lane) kx_emu_shfl_i(EMU_SHFL, __LINE__, v, lane)
#define kx_ballot(p) kx_emu_ballot(__LINE__, p)

#define kx_mma_s8_16832(d, a, b) kx_emu_warp(EMU_MMA_S8_16832, __LINE__, d, a, b, 0)
#define kx_mma_s8_16816(d, a, b) kx_emu_warp(EMU_MMA_S8_16816, __LINE__, d, a, b, 0)
#define kx_mma_f16_16816(d, a, b) kx_emu_warp(EMU_MMA_F16_16816, __LINE__, d, a, b, 0)
#if KX_ARCH >= 800
#define kx_mma_tf32_1688(d, a, b) kx_emu_warp(EMU_MMA_TF32_1688, __LINE__, d, a, b, 0)
#endif
#define kx_ldm4(r, p) kx_emu_warp(EMU_LDM4, __LINE__, r, p, NULL, 0)
#define kx_ldm4t(r, p) kx_emu_warp(EMU_LDM4T, __LINE__, r, p, NULL, 0)
#define kx_ldm2(r, p) kx_emu_warp(EMU_LDM2, __LINE__, r, p, NULL, 0)

KX_DEV int kx_popc(kx_u v)
{
    return __builtin_popcount(v);
}
KX_DEV kx_u kx_atomic_add_shared(kx_u *p, kx_u v)
{
    kx_u old = *p;

    *p = old + v;
    return old;
}
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
/* half to even; saturates, NaN gives 0, as the device does */
KX_DEV int kx_rint(float x)
{
    if (!(x == x))
        return 0;
    if (x >= 2147483648.0f)
        return INT32_MAX;
    if (x < -2147483648.0f)
        return INT32_MIN;
    return (int)nearbyintf(x);
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
    return nearbyint(x);
}
KX_DEV float kx_h2f(unsigned short h)
{
    return be_half_to_f32(h);
}
KX_DEV unsigned short kx_f2h(float f)
{
    return be_f32_to_half(f);
}
KX_DEV kx_u kx_f2h2(float lo, float hi)
{
    return (kx_u)kx_f2h(lo) | (kx_u)kx_f2h(hi) << 16;
}
#if KX_ARCH >= 800
/* NaN and infinities stay; a mantissa that overflows carries into the exponent */
KX_DEV kx_u kx_f2tf32(float f)
{
    kx_u v = be_f32_to_bits(f);

    return isfinite(f) ? (v + 0x1000u) & ~0x1fffu : v;
}
#endif
KX_DEV float kx_ex2(float x)
{
    return exp2f(x);
}
KX_DEV float kx_rcp(float x)
{
    return 1.0f / x;
}
KX_DEV float kx_bf2f(unsigned short h)
{
    return be_bf16_to_f32(h);
}
KX_DEV int kx_dp4a(kx_u a, kx_u b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int)(int8_t)(a >> i) * (int)(int8_t)(b >> i);
    return c;
}
KX_DEV kx_u kx_emu_prmt(kx_u a, kx_u b, kx_u sel, int line)
{
    uint64_t v = (uint64_t)b << 32 | a;
    kx_u r = 0;

    if (sel & 0x8888u)
        kx_emu_fail(EMU_E_ASSERT, "line %d: kx_prmt selector 0x%x has bit 3 of a nibble set", line,
                    sel);
    for (int i = 0; i < 4; i++)
        r |= (kx_u)(v >> 8 * (sel >> 4 * i & 7) & 0xFF) << 8 * i;
    return r;
}
#define kx_prmt(a, b, sel) kx_emu_prmt(a, b, sel, __LINE__)

static inline void kx_emu_aligned(const void *p, uintptr_t n, const char *what, int line)
{
    if ((uintptr_t)p & (n - 1))
        kx_emu_fail(EMU_E_ALIGN, "line %d: %s of address %p, not a multiple of %d", line, what, p,
                    (int)n);
}
static inline struct kx_u4 kx_emu_ldg16(const void *p, int line)
{
    struct kx_u4 v;

    kx_emu_aligned(p, 16, "kx_ldg16", line);
    memcpy(&v, p, sizeof(v));
    return v;
}
static inline struct kx_u2 kx_emu_ldg8(const void *p, int line)
{
    struct kx_u2 v;

    kx_emu_aligned(p, 8, "kx_ldg8", line);
    memcpy(&v, p, sizeof(v));
    return v;
}
static inline kx_u kx_emu_ldg4(const void *p, int line)
{
    kx_u v;

    kx_emu_aligned(p, 4, "kx_ldg4", line);
    memcpy(&v, p, sizeof(v));
    return v;
}
#define kx_ld16(p) kx_emu_ldg16(p, __LINE__)
#define kx_ldg16(p) kx_emu_ldg16(p, __LINE__)
#define kx_ldg8(p) kx_emu_ldg8(p, __LINE__)
#define kx_ldg4(p) kx_emu_ldg4(p, __LINE__)

/* sm_80: the destination is poison from the copy's issue until its group is waited for; sm_75:
 * plain copies. */
#define kx_cp16(dst, src) kx_emu_cp(dst, src, 16, 1, KX_ARCH >= 800, __LINE__)
#define kx_cp16_if(dst, src, p) kx_emu_cp(dst, src, 16, (p) != 0, KX_ARCH >= 800, __LINE__)
#define kx_cp4_if(dst, src, p) kx_emu_cp(dst, src, 4, (p) != 0, KX_ARCH >= 800, __LINE__)
#define kx_cp_commit() kx_emu_cp_commit()
#define kx_cp_wait(n) kx_emu_cp_wait(n)

/* sm_90a (emu_wg.c). A descriptor is the address. */
#if KX_ARCH >= 900
static inline unsigned char *kx_align1024(unsigned char *p)
{
    return p + (-(uintptr_t)p & 1023);
}
#define kx_proxy_fence() ((void)0)
#define kx_wg_fence() ((void)0)
#define kx_wg_commit() ((void)0)
#define kx_wg_wait(n) ((void)(n))
#define kx_wg_desc(p) ((unsigned long long)(uintptr_t)(p))
#define kx_wg_step(d, bytes) ((d) + (bytes))
#define kx_wgmma_f16_n256(d, a, b) kx_emu_wgmma_f16_n256(d, a, b, __LINE__)
/* As a warp's products of 8 columns each; the words of b from shared memory. */
static inline void kx_emu_wgmma_n64(float *d, const kx_u *a, unsigned long long b, kx_u n_add,
                                    int by_k, int line)
{
    unsigned g = (kx_emu_cur->tid & 31) / 4, t = kx_emu_cur->tid & 3;

    for (unsigned j = 0; j < 8; j++) {
        kx_u f[2];

        for (unsigned h = 0; h < 2; h++)
            f[h] = kx_emu_wg_pair(b, 8 * j + g, 2 * t + 8 * h, by_k, line);
        for (unsigned i = 0; i < 4 && !n_add; i++)
            d[4 * j + i] = 0;
        kx_emu_warp(EMU_MMA_F16_16816, line, d + 4 * j, a, f, 0);
    }
}
#define kx_wgmma_f16_n64(d, a, b, add, by_k) kx_emu_wgmma_n64(d, a, b, add, by_k, __LINE__)
#define kx_mbar_init(bar) kx_emu_mbar_init(bar, __LINE__)
#define kx_mbar_ready() ((void)0)
#define kx_mbar_expect(bar, bytes) kx_emu_mbar_expect(bar, bytes, __LINE__)
#define kx_mbar_wait(bar, parity) kx_emu_mbar_wait(bar, parity, __LINE__)
#define kx_tma_2d(dst, map, bar, x, y, rows) kx_emu_tma_2d(dst, map, bar, x, y, rows, __LINE__)
#endif

#endif
