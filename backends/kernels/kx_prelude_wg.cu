/* kx_prelude_wg.cu - further words, for libraries of sm_90a only (wgmma).
 *
 * Matrices of a warpgroup (4 warps, ascending) from shared memory: d[64][256] += a[64][16]
 * b[256][16]. Descriptors name rows of 128 bytes in the 128-byte swizzle, 8 rows after each other, k
 * ascending in a row; kx_wg_desc takes the address of the first element, whose matrix begins at a
 * multiple of 1024; kx_wg_step moves it, all of it within shared memory. d[4 j + 2 h + e]: row 16 (warp & 3) + lane / 4 + 8 h, column 8 j + 2 (lane & 3) + e.
 * kx_wgmma_f16_n64: d[64][64] (+)= a[64][16] b[16][64], a from registers, a warp's 16 rows of it as mma.sync has them; b as
 * above, or (by_k) rows of 128 bytes ascending in k, 64 columns each: the address of row k, a multiple of 8. add 0: d is
 * overwritten. add and by_k are literals.
 * Asynchronous: fence before the first, commit, wait(n): all but the newest n committed groups are
 * done.
 *
 * Copies by the device's own engine: kx_tma_2d brings rows y .. y + rows - 1, columns x .. x + 63 of a map
 * (be_kargs.h) to dst, a multiple of 1024. A barrier (8 bytes of shared memory) counts phases: one
 * kx_mbar_expect(bytes) and that many bytes copied end a phase; kx_mbar_wait(parity of the phase, from 0).
 * kx_mbar_ready after the inits, then kx_sync. kx_proxy_fence, by all, then kx_sync: memory that threads
 * have used may be copied to again. */
KX_DEV unsigned char *kx_align1024(unsigned char *p) { return p + ((0u - (kx_u)__cvta_generic_to_shared(p)) & 1023u); }
KX_DEV kx_u kx_shared_addr_(const void *p) { return (kx_u)__cvta_generic_to_shared(p); }
KX_DEV void kx_proxy_fence(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
KX_DEV void kx_mbar_init(void *bar) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(kx_shared_addr_(bar)) : "memory"); }
KX_DEV void kx_mbar_ready(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
KX_DEV void kx_mbar_expect(void *bar, kx_u bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kx_shared_addr_(bar)), "r"(bytes) : "memory");
}
KX_DEV void kx_mbar_wait(void *bar, kx_u parity)
{
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done:}" ::"r"(kx_shared_addr_(bar)), "r"(parity) : "memory");
}
KX_DEV void kx_tma_2d(void *dst, const struct kx_tmap *map, void *bar, kx_u x, kx_u y, kx_u rows)
{
    (void)rows; /* of the map's box: for the emulated device */
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(kx_shared_addr_(dst)), "l"(map), "r"(kx_shared_addr_(bar)), "r"(x), "r"(y) : "memory");
}
KX_DEV unsigned long long kx_wg_desc(const void *p)
{
    /* bits 0: address / 16; 16: 1, not used; 32: bytes of 8 rows / 16; 62: swizzle of 128 bytes */
    return (unsigned long long)((kx_u)__cvta_generic_to_shared(p) >> 4 & 0x3fffu) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
KX_DEV unsigned long long kx_wg_step(unsigned long long d, kx_u bytes) { return (d >> 32 << 32) | ((kx_u)d + (bytes >> 4)); }
KX_DEV void kx_wg_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KX_DEV void kx_wg_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define kx_wg_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
KX_DEV void kx_wgmma_f16_n256(float *d, unsigned long long a, unsigned long long b)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, p, 1, 1, 0, 0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                   "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                   "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                   "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                   "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                   "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                   "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
                   "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(a), "l"(b));
}
KX_DEV void kx_wgmma_f16_n64_0(float *d, const kx_u *a, unsigned long long b, kx_u add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(0));
}
KX_DEV void kx_wgmma_f16_n64_1(float *d, const kx_u *a, unsigned long long b, kx_u add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(1));
}
#define kx_wgmma_f16_n64(d, a, b, add, by_k) kx_wgmma_f16_n64_##by_k(d, a, b, add)
