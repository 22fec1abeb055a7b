/* kx_prelude.cu - all that generated CUDA text may use beside plain C.
 *
 * Put in front of every library by kgen, after be_kargs.h. No #include, so NVRTC needs
 * no header path. The emulated driver of the tests (tests/cuda_emu/kx_emu.h) defines
 * the same names for the host compiler; generated text must therefore be valid C11 and
 * CUDA C++ at once: no templates, references, overloads, asm or built-in variables
 * (threadIdx ...) outside this file; casts from kx_p are written (const float *)a.x;
 * every array a kernel indexes at run time lies in shared or global memory; a barrier
 * is reached by all threads of the block, a warp function by all 32 lanes.
 *
 * Compiled with --fmad=false: a * b + c is rounded twice, kx_fma once. No fast math.
 */
#define KX_DEV static __device__ __forceinline__
#define KX_KERNEL(name, threads, min_blocks, type, a)                          \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks)          \
        name(const __grid_constant__ type a)
#define KX_SHARED __shared__
#define KX_DYN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define KX_CONST static __device__ __constant__ const
#define KX_UNROLL _Pragma("unroll")
#define KX_ARCH __CUDA_ARCH__

struct __align__(16) kx_u4 { kx_u x, y, z, w; };
struct __align__(8) kx_u2 { kx_u x, y; };
struct __align__(8) kx_f2 { float x, y; };
struct __align__(16) kx_f4 { float x, y, z, w; };

KX_DEV kx_u kx_tid(void) { return threadIdx.x; }
KX_DEV kx_u kx_bx(void) { return blockIdx.x; }
KX_DEV kx_u kx_by(void) { return blockIdx.y; }
KX_DEV kx_u kx_bz(void) { return blockIdx.z; }
KX_DEV kx_u kx_gx(void) { return gridDim.x; }
/* Launches that overlap, from sm_90: kx_wait comes before a kernel touches anything that another one wrote or will
 * write; weights may be asked for earlier. Behind it the next kernel may begin - not before: with more than two in
 * flight waiting blocks take the places of those at work, and whole models lost what chains of two gained. Text for
 * older devices carries both as comments, which be_cuda_mod.c turns into instructions where the device has them. What
 * other kernels wrote is never read through kx_ldg: that cache may hold what was there before the wait. */
#if __CUDA_ARCH__ >= 900
#define KX_OVERLAP
#else
#define KX_OVERLAP "//"
#endif
KX_DEV void kx_wait(void)
{
    asm volatile(KX_OVERLAP "griddepcontrol.wait;\n\t" KX_OVERLAP "griddepcontrol.launch_dependents;" ::: "memory");
}
KX_DEV void kx_sync(void) { __syncthreads(); }
KX_DEV void kx_syncwarp(void) { __syncwarp(); }
KX_DEV float kx_shfl_xor_f(float v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
KX_DEV int kx_shfl_xor_i(int v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
KX_DEV float kx_shfl_f(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
KX_DEV int kx_shfl_i(int v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
KX_DEV kx_u kx_ballot(int p) { return __ballot_sync(0xffffffffu, p); }
KX_DEV int kx_popc(kx_u v) { return __popc(v); }
KX_DEV kx_u kx_atomic_add_shared(kx_u *p, kx_u v) { return atomicAdd(p, v); }

KX_DEV float kx_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KX_DEV float kx_sqrt(float x) { return __fsqrt_rn(x); }
KX_DEV float kx_div(float a, float b) { return __fdiv_rn(a, b); }
KX_DEV float kx_max(float a, float b) { return fmaxf(a, b); }
KX_DEV float kx_min(float a, float b) { return fminf(a, b); }
KX_DEV float kx_abs(float a) { return fabsf(a); }
KX_DEV int kx_rint(float x) { return __float2int_rn(x); }    /* half to even */
KX_DEV float kx_round_away(float x) { return roundf(x); }    /* half away from 0 */
KX_DEV float kx_i2f(int i) { return __int2float_rn(i); }
KX_DEV int kx_f2i_bits(float f) { return __float_as_int(f); }
KX_DEV float kx_i2f_bits(int i) { return __int_as_float(i); }
KX_DEV double kx_dfma(double a, double b, double c) { return __fma_rn(a, b, c); }
KX_DEV double kx_drint(double x) { return rint(x); }
KX_DEV float kx_h2f(unsigned short h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
KX_DEV unsigned short kx_f2h(float f)
{
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
/* lo in the low half */
#if __CUDA_ARCH__ >= 800
KX_DEV kx_u kx_f2h2(float lo, float hi)
{
    kx_u h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(hi), "f"(lo));
    return h;
}
#else
KX_DEV kx_u kx_f2h2(float lo, float hi) { return (kx_u)kx_f2h(lo) | (kx_u)kx_f2h(hi) << 16; }
#endif
/* 2^x as fast as the device can (a few ulp; not the same bits everywhere): f16 results only */
KX_DEV float kx_ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* 1 / x within an ulp, the device's own bits: f16 results only */
KX_DEV float kx_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KX_DEV float kx_bf2f(unsigned short h) { return __int_as_float((int)((kx_u)h << 16)); }
/* c + sum of 4 signed x signed bytes; unsigned weights are below 128 */
KX_DEV int kx_dp4a(kx_u a, kx_u b, int c) { return __dp4a((int)a, (int)b, c); }
/* bytes of a,b by selector, as the PTX instruction prmt */
KX_DEV kx_u kx_prmt(kx_u a, kx_u b, kx_u sel) { return __byte_perm(a, b, sel); }

/* read-only global loads of what no kernel of a step writes: weights, tables, staging */
KX_DEV struct kx_u4 kx_ldg16(const void *p)
{
    struct kx_u4 v;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
KX_DEV struct kx_u4 kx_ld16(const void *p) { return *(const struct kx_u4 *)p; }
KX_DEV struct kx_u2 kx_ldg8(const void *p)
{
    struct kx_u2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
KX_DEV kx_u kx_ldg4(const void *p)
{
    kx_u v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

/* Global to shared, 16 bytes, asynchronous on sm_80 and later (plain copies before).
 * wait(n): all but the newest n committed groups have landed (kx_sync makes them
 * visible to the block). n is a literal. */
#if __CUDA_ARCH__ >= 800
KX_DEV void kx_cp16(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((kx_u)__cvta_generic_to_shared(dst)), "l"(src) : "memory");
}
/* copies 16 bytes if p, else writes zeros */
KX_DEV void kx_cp16_if(void *dst, const void *src, int p)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((kx_u)__cvta_generic_to_shared(dst)), "l"(src), "r"(p ? 16 : 0) : "memory");
}
/* the same for 4 bytes */
KX_DEV void kx_cp4_if(void *dst, const void *src, int p)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((kx_u)__cvta_generic_to_shared(dst)), "l"(src), "r"(p ? 4 : 0) : "memory");
}
KX_DEV void kx_cp_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define kx_cp_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
KX_DEV void kx_cp16(void *dst, const void *src) { *(struct kx_u4 *)dst = *(const struct kx_u4 *)src; }
KX_DEV void kx_cp16_if(void *dst, const void *src, int p)
{
    struct kx_u4 z = {0, 0, 0, 0};
    *(struct kx_u4 *)dst = p ? *(const struct kx_u4 *)src : z;
}
KX_DEV void kx_cp4_if(void *dst, const void *src, int p) { *(kx_u *)dst = p ? *(const kx_u *)src : 0u; }
KX_DEV void kx_cp_commit(void) {}
#define kx_cp_wait(n) ((void)(n))
#endif

/* Warp tile products, d += a b. Fragments as in the PTX manual for mma.sync (row.col). */
#if __CUDA_ARCH__ >= 800
KX_DEV void kx_mma_s8_16832(int *d, const kx_u *a, const kx_u *b)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KX_DEV void kx_mma_s8_16816(int *d, const kx_u *a, const kx_u *b) /* a[2], b[1] */
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
KX_DEV void kx_mma_f16_16816(float *d, const kx_u *a, const kx_u *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* f rounded to tf32 (10 bits behind the point, half away from 0) as a word of a fragment; products of
 * such words, one column each. Neither exists before sm_80: for kernels with min_arch 80. */
KX_DEV kx_u kx_f2tf32(float f)
{
    kx_u v;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(v) : "f"(f));
    return v;
}
KX_DEV void kx_mma_tf32_1688(float *d, const kx_u *a, const kx_u *b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
/* sm_75: the same products from the instructions it has (int8 sums are exact; the f16
 * product is taken as two k8 halves, ascending). */
KX_DEV void kx_mma_s8_8816_(int *d0, int *d1, kx_u a, kx_u b)
{
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(*d0), "+r"(*d1) : "r"(a), "r"(b));
}
KX_DEV void kx_mma_s8_16816(int *d, const kx_u *a, const kx_u *b)
{
    kx_mma_s8_8816_(&d[0], &d[1], a[0], b[0]);
    kx_mma_s8_8816_(&d[2], &d[3], a[1], b[0]);
}
KX_DEV void kx_mma_s8_16832(int *d, const kx_u *a, const kx_u *b)
{
    kx_mma_s8_16816(d, a, b);
    kx_mma_s8_16816(d, a + 2, b + 1);
}
KX_DEV void kx_mma_f16_1688_(float *d, kx_u a0, kx_u a1, kx_u b0)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b0));
}
KX_DEV void kx_mma_f16_16816(float *d, const kx_u *a, const kx_u *b)
{
    kx_mma_f16_1688_(d, a[0], a[1], b[0]);
    kx_mma_f16_1688_(d, a[2], a[3], b[1]);
}
#endif
/* 8x8 matrices of b16 from shared memory; p: this lane's row address (lanes 0-7 matrix
 * 0, 8-15 matrix 1 ...). */
KX_DEV void kx_ldm4(kx_u *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((kx_u)__cvta_generic_to_shared(p)));
}
KX_DEV void kx_ldm4t(kx_u *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((kx_u)__cvta_generic_to_shared(p)));
}
KX_DEV void kx_ldm2(kx_u *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"((kx_u)__cvta_generic_to_shared(p)));
}
