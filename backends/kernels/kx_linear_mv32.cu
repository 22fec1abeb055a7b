
/* kx_linear_mv32.cu - mat-vec, blocks of 32 columns. A group of 8 lanes takes one weight row,
 * lane s the blocks b % 8 == s, so lane s is slice s and each load of a group is 128
 * consecutive bytes. Several steps of loads are in flight before the first is used; those of the
 * first batch are issued before the row is staged. */
#ifndef KXL_MV32
#define KXL_MV32
#define KXL_STEPS (KXL_CODE == 32 ? 4 : 8)
#define KXL_AT(b, m) ((b) < (m) ? (b) : (m)-1u)
struct kxl_blk {
    struct kx_u4 q;
#if KXL_CODE == 32
    struct kx_u4 q2;
#endif
    kx_u d;
#if KXL_BITS
    kx_u h;
#endif
};

KX_DEV void kxl_load(struct kxl_blk *w, const unsigned char *q, const unsigned char *d, const unsigned char *h, kx_u b)
{
    w->q = kx_ldg16(q + b * KXL_CODE);
#if KXL_CODE == 32
    w->q2 = kx_ldg16(q + b * KXL_CODE + 16u);
#endif
#if KXL_MIN
    w->d = kx_ldg4(d + b * 4u);
#else
    w->d = kx_ldg4(d + (b >> 1) * 4u) >> (b & 1u) * 16u;
#endif
#if KXL_BITS
    w->h = kx_ldg4(h + b * 4u);
#endif
}

#if KXL_CODE == 16
#if KXL_BITS
#define KXL_LO(w, q, j) (((q) & 0x0f0f0f0fu) | ((w)->h >> (j) & 0x01010101u) << 4)
#define KXL_HI(w, q, j) (((q) >> 4 & 0x0f0f0f0fu) | ((w)->h >> (4 + (j)) & 0x01010101u) << 4)
#else
#define KXL_LO(w, q, j) ((q) & 0x0f0f0f0fu)
#define KXL_HI(w, q, j) ((q) >> 4 & 0x0f0f0f0fu)
#endif
#endif

KX_DEV float kxl_step(const struct kxl_blk *w, struct kx_u4 x0, struct kx_u4 x1, float dx, int sx, float acc)
{
    int c = -(KXL_ZERO * sx);

#if KXL_CODE == 32
    c = kx_dp4a(w->q.x, x0.x, c);
    c = kx_dp4a(w->q.y, x0.y, c);
    c = kx_dp4a(w->q.z, x0.z, c);
    c = kx_dp4a(w->q.w, x0.w, c);
    c = kx_dp4a(w->q2.x, x1.x, c);
    c = kx_dp4a(w->q2.y, x1.y, c);
    c = kx_dp4a(w->q2.z, x1.z, c);
    c = kx_dp4a(w->q2.w, x1.w, c);
#else
    c = kx_dp4a(KXL_LO(w, w->q.x, 0), x0.x, c);
    c = kx_dp4a(KXL_HI(w, w->q.x, 0), x1.x, c);
    c = kx_dp4a(KXL_LO(w, w->q.y, 1), x0.y, c);
    c = kx_dp4a(KXL_HI(w, w->q.y, 1), x1.y, c);
    c = kx_dp4a(KXL_LO(w, w->q.z, 2), x0.z, c);
    c = kx_dp4a(KXL_HI(w, w->q.z, 2), x1.z, c);
    c = kx_dp4a(KXL_LO(w, w->q.w, 3), x0.w, c);
    c = kx_dp4a(KXL_HI(w, w->q.w, 3), x1.w, c);
#endif
    acc = kx_fma(kx_h2f((unsigned short)(w->d & 0xffffu)) * dx, kx_i2f(c), acc);
#if KXL_MIN
    acc = kx_fma(kx_h2f((unsigned short)(w->d >> 16)) * dx, kx_i2f(sx), acc);
#endif
    return acc;
}
#endif

KX_KERNEL(KXL_NAME, 128, KXL_BITS ? 3 : 4, struct kx_linear, a)
{
    KX_DYN_SHARED(sm);
    const kx_u nb = KXL_K(a.k) / 32u, cap = nb < 512u ? nb : 512u;
    const kx_u tid = kx_tid(), s = tid & 7u, row = kx_by();
    const kx_u tiles = kxl_tiles(&a, KXL_COLS, KXL_GEGLU), per = (tiles + kx_gx() - 1u) / kx_gx();
    const kx_u t0 = kx_bx() * per, t1 = t0 + per < tiles ? t0 + per : tiles;
    struct kx_u4 *lo = (struct kx_u4 *)sm, *hi = lo + cap;
    float *xd = (float *)(hi + cap);
    int *xs = (int *)(xd + cap);
    int staged = 0;

    kx_next();
    for (kx_u t = t0; t < t1; t++) {
        struct kxl_tile w;
        struct kxl_blk blk[KXL_STEPS];
        const unsigned char *q, *d, *h = 0;
        kx_u part, col, at, i, m;
        float acc = 0.0f;

        kxl_tile_at(&a, t, KXL_COLS, KXL_GEGLU, &w);
#if KXL_GEGLU
        part = tid >> 4 & 1u;
        col = w.col0 + (tid >> 5) * 2u + (tid >> 3 & 1u);
#else
        part = w.part;
        col = w.col0 + (tid >> 3);
#endif
        at = col < w.n ? col : w.n - 1u;
        q = kxl_plane(&a, part, 0u) + (unsigned long long)at * KXL_UP16(nb * KXL_CODE);
        d = kxl_plane(&a, part, 1u) + (unsigned long long)at * KXL_UP16(nb * (KXL_MIN ? 4u : 2u));
#if KXL_BITS
        h = kxl_plane(&a, part, 2u) + (unsigned long long)at * KXL_UP16(nb * 4u);
#endif
        for (kx_u c0 = 0u; c0 < nb; c0 += cap) {
            m = nb - c0 < cap ? nb - c0 : cap;
            KX_UNROLL
            for (int u = 0; u < KXL_STEPS; u++)
                if (8u * u < m)
                    kxl_load(&blk[u], q, d, h, c0 + KXL_AT(s + 8u * u, m));
            if (!staged || nb > cap) {
                if (staged)
                    kx_sync();
                else
                    kx_wait(); /* the first weights are on their way; x is another kernel's */
                for (i = tid; i < 2u * m; i += 128u)
                    (i & 1u ? hi : lo)[i >> 1] = kx_ld16((const unsigned char *)a.xq + (unsigned long long)row * KXL_K(a.k) + c0 * 32u + i * 16u);
                for (i = tid; i < m; i += 128u) {
                    xd[i] = ((const float *)a.xd)[(unsigned long long)row * nb + c0 + i];
                    xs[i] = ((const int *)a.xs)[(unsigned long long)row * nb + c0 + i];
                }
                staged = 1;
                kx_sync();
            }
            /* whole batches: the next one's loads first, then sums without a branch between them */
            kx_u b0 = 0u;

            for (; b0 + 8u * KXL_STEPS <= m; b0 += 8u * KXL_STEPS) {
                struct kxl_blk cur[KXL_STEPS];

                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++)
                    cur[u] = blk[u];
                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++)
                    if (b0 + 8u * (KXL_STEPS + u) < m)
                        kxl_load(&blk[u], q, d, h, c0 + KXL_AT(b0 + s + 8u * (KXL_STEPS + u), m));
                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++) {
                    const kx_u b = b0 + s + 8u * u;

                    acc = kxl_step(&cur[u], lo[b], hi[b], xd[b], xs[b], acc);
                }
            }
            KX_UNROLL
            for (int u = 0; u < KXL_STEPS; u++)
                if (b0 + 8u * u < m) {
                    const kx_u b = KXL_AT(b0 + s + 8u * u, m);
                    const float v = kxl_step(&blk[u], lo[b], hi[b], xd[b], xs[b], acc);

                    acc = b0 + s + 8u * u < m ? v : acc;
                }
        }
        kxl_finish_mv(&a, part, row, col, w.n, kxl_fold8(acc), KXL_GEGLU, s == 0u);
    }
}
