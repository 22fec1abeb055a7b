
/* kx_linear_mv256.cu - mat-vec, superblocks of 256 columns. A group of 8 lanes takes one weight
 * row; lane s multiplies sub-block s of each of 8 superblocks, then the integer sums are
 * exchanged so that lane s holds those of superblock s, which belongs to slice s. */
#ifndef KXL_MV256
#define KXL_MV256
struct kxl_blk {
    struct kx_u4 q;
    kx_u sc;
#if KXL_BITS == 4
    kx_u h;
#elif KXL_BITS == 8
    struct kx_u2 h;
#endif
};

/* s: sub-block, b: superblock */
KX_DEV void kxl_load(struct kxl_blk *w, const unsigned char *q, const unsigned char *sub, const unsigned char *h, kx_u b, kx_u s)
{
    w->q = kx_ldg16(q + b * 128u + s * 16u);
    w->sc = kx_ldg4(sub + b * 16u + (s >> 1) * 4u) >> (s & 1u) * 16u;
#if KXL_BITS == 4
    w->h = kx_ldg4(h + b * 32u + s * 4u);
#elif KXL_BITS == 8
    w->h = kx_ldg8(h + b * 64u + s * 8u);
#endif
}

/* word j: low nibbles are columns 4j .. 4j + 3, high ones 16 + 4j .. ; Q6_K: 4 (q - 32), signed */
#if KXL_BITS == 8
#define KXL_LO(w, q, j) ((((q) << 2 & 0x3c3c3c3cu) | ((w)->h.x << (6 - 2 * (j)) & 0xc0c0c0c0u)) ^ 0x80808080u)
#define KXL_HI(w, q, j) ((((q) >> 2 & 0x3c3c3c3cu) | ((w)->h.y << (6 - 2 * (j)) & 0xc0c0c0c0u)) ^ 0x80808080u)
#elif KXL_BITS == 4
#define KXL_LO(w, q, j) (((q) & 0x0f0f0f0fu) | ((w)->h >> (j) & 0x01010101u) << 4)
#define KXL_HI(w, q, j) (((q) >> 4 & 0x0f0f0f0fu) | ((w)->h >> (4 + (j)) & 0x01010101u) << 4)
#else
#define KXL_LO(w, q, j) ((q) & 0x0f0f0f0fu)
#define KXL_HI(w, q, j) ((q) >> 4 & 0x0f0f0f0fu)
#endif

/* The sub-block's share of the superblock's integer sum. */
KX_DEV int kxl_sub(const struct kxl_blk *w, struct kx_u4 x0, struct kx_u4 x1)
{
    int c = 0, e = 0;

    c = kx_dp4a(KXL_LO(w, w->q.x, 0), x0.x, c);
    c = kx_dp4a(KXL_LO(w, w->q.y, 1), x0.y, c);
    c = kx_dp4a(KXL_LO(w, w->q.z, 2), x0.z, c);
    c = kx_dp4a(KXL_LO(w, w->q.w, 3), x0.w, c);
    e = kx_dp4a(KXL_HI(w, w->q.x, 0), x1.x, e);
    e = kx_dp4a(KXL_HI(w, w->q.y, 1), x1.y, e);
    e = kx_dp4a(KXL_HI(w, w->q.z, 2), x1.z, e);
    e = kx_dp4a(KXL_HI(w, w->q.w, 3), x1.w, e);
#if KXL_MIN
    return (int)(w->sc & 0xffu) * (c + e);
#else
    return (int)(signed char)(w->sc & 0xffu) * c + (int)(signed char)(w->sc >> 8 & 0xffu) * e;
#endif
}

/* p[u] of 8 lanes: lane s returns the sum over the lanes of p[s]. */
KX_DEV int kxl_scatter8(int *p, kx_u s)
{
    KX_UNROLL
    for (int i = 0; i < 4; i++) {
        const int give = s & 4u ? p[i] : p[i + 4], keep = s & 4u ? p[i + 4] : p[i];

        p[i] = keep + kx_shfl_xor_i(give, 4);
    }
    KX_UNROLL
    for (int i = 0; i < 2; i++) {
        const int give = s & 2u ? p[i] : p[i + 2], keep = s & 2u ? p[i + 2] : p[i];

        p[i] = keep + kx_shfl_xor_i(give, 2);
    }
    return (s & 1u ? p[1] : p[0]) + kx_shfl_xor_i(s & 1u ? p[0] : p[1], 1);
}
#endif

KX_KERNEL(KXL_NAME, 128, 4, struct kx_linear, a)
{
    KX_DYN_SHARED(sm);
    const kx_u nb = KXL_K(a.k) / 256u, cap = nb < 64u ? nb : 64u;
    const kx_u tid = kx_tid(), s = tid & 7u, row = kx_by();
    const kx_u tiles = kxl_tiles(&a, KXL_COLS, KXL_GEGLU), per = (tiles + kx_gx() - 1u) / kx_gx();
    const kx_u t0 = kx_bx() * per, t1 = t0 + per < tiles ? t0 + per : tiles;
    struct kx_u4 *lo = (struct kx_u4 *)sm, *hi = lo + cap * 8u;
    float *xd = (float *)(hi + cap * 8u);
    int *xs = (int *)(xd + cap);
    int staged = 0;

    for (kx_u t = t0; t < t1; t++) {
        struct kxl_tile w;
        const unsigned char *q, *d, *sub, *h = 0;
        kx_u part, col, at, m;
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
        q = kxl_plane(&a, part, 0u) + (unsigned long long)at * (nb * 128u);
        d = kxl_plane(&a, part, 1u) + (unsigned long long)at * KXL_UP16(nb * (KXL_MIN ? 4u : 2u));
        sub = kxl_plane(&a, part, 2u) + (unsigned long long)at * (nb * 16u);
#if KXL_BITS
        h = kxl_plane(&a, part, 3u) + (unsigned long long)at * (nb * 8u * KXL_BITS);
#endif
        for (kx_u c0 = 0u; c0 < nb; c0 += cap) {
            m = nb - c0 < cap ? nb - c0 : cap;
            for (kx_u b0 = 0u; b0 < m; b0 += 8u) {
                struct kxl_blk blk[8];
                int p[8];
#if KXL_MIN
                int n[8];
#endif
                kx_u dd = 0u;

                /* no branch between the loads, or the sums, of 8 whole superblocks */
                if (b0 + 8u <= m) {
                    KX_UNROLL
                    for (int u = 0; u < 8; u++)
                        kxl_load(&blk[u], q, sub, h, c0 + b0 + u, s);
                } else {
                    KX_UNROLL
                    for (int u = 0; u < 8; u++)
                        if (b0 + u < m)
                            kxl_load(&blk[u], q, sub, h, c0 + b0 + u, s);
                }
                if (b0 + s < m) {
#if KXL_MIN
                    dd = kx_ldg4(d + (c0 + b0 + s) * 4u);
#else
                    dd = kx_ldg4(d + ((c0 + b0 + s) >> 1) * 4u) >> ((c0 + b0 + s) & 1u) * 16u;
#endif
                }
                if (b0 == 0u && (!staged || nb > cap)) {
                    if (staged)
                        kx_sync();
                    else
                        kx_wait(); /* the first weights are on their way; x is another kernel's */
                    kxl_stage(&a, row, KXL_K(a.k), c0 * 256u, 8u * m, lo, hi, xd, xs);
                    staged = 1;
                    kx_sync();
                }
                if (b0 + 8u <= m) {
                    KX_UNROLL
                    for (int u = 0; u < 8; u++) {
                        const kx_u j = (b0 + u) * 8u + s;

                        p[u] = kxl_sub(&blk[u], lo[j], hi[j]);
#if KXL_MIN
                        n[u] = (int)(blk[u].sc >> 8 & 0xffu) * xs[j];
#endif
                    }
                } else {
                    KX_UNROLL
                    for (int u = 0; u < 8; u++) {
                        const kx_u j = (b0 + u) * 8u + s;

                        p[u] = 0;
#if KXL_MIN
                        n[u] = 0;
#endif
                        if (b0 + u < m) {
                            p[u] = kxl_sub(&blk[u], lo[j], hi[j]);
#if KXL_MIN
                            n[u] = (int)(blk[u].sc >> 8 & 0xffu) * xs[j];
#endif
                        }
                    }
                }
                p[0] = kxl_scatter8(p, s);
#if KXL_MIN
                n[0] = kxl_scatter8(n, s);
#endif
                if (b0 + s < m) {
                    const float dx = xd[b0 + s];

#if KXL_MIN
                    acc = kx_fma(kx_h2f((unsigned short)(dd & 0xffffu)) * dx, kx_i2f(p[0]), acc);
                    acc = kx_fma(-(kx_h2f((unsigned short)(dd >> 16)) * dx), kx_i2f(n[0]), acc);
#else
                    acc = kx_fma(kx_h2f((unsigned short)(dd & 0xffffu)) * dx, kx_i2f(p[0]) * 0.25f, acc);
#endif
                }
            }
        }
        kxl_finish_mv(&a, part, row, col, w.n, kxl_fold8(acc), KXL_GEGLU, s == 0u);
    }
}
