
/* kx_linear_mv32.cu - mat-vec, blocks of 32 columns. A group of 8 lanes takes one weight row,
 * lane s the blocks b % 8 == s, so lane s is slice s and each load of a group is 128
 * consecutive bytes. Several steps of loads are in flight before the first is used; those of the
 * first batch are issued before the row is staged. A product of few columns has a warp a column: four times
 * the blocks, and a quarter of the steps. */
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

/* The integer sum of a block. */
KX_DEV int kxl_dot(const struct kxl_blk *w, struct kx_u4 x0, struct kx_u4 x1, int sx)
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
    return c;
}
KX_DEV float kxl_step(const struct kxl_blk *w, struct kx_u4 x0, struct kx_u4 x1, float dx, int sx, float acc)
{
    acc = kx_fma(kx_h2f((unsigned short)(w->d & 0xffffu)) * dx, kx_i2f(kxl_dot(w, x0, x1, sx)), acc);
#if KXL_MIN
    acc = kx_fma(kx_h2f((unsigned short)(w->d >> 16)) * dx, kx_i2f(sx), acc);
#endif
    return acc;
}
#define KXL_FEW 160u  /* BE_KLIN_MV_FEW */
#define KXL_WIDE 4u /* BE_KLIN_MV_WIDE */
#define KXL_AHEAD 4
/* Lane l holds block b + l of a row: adds those of slice s in their order (lanes s, s + 8, s + 16, s + 24). */
KX_DEV float kxl_chain(const struct kxl_blk *w, struct kx_u4 x0, struct kx_u4 x1, float dx, int sx, kx_u s, kx_u b, kx_u nb, float acc)
{
    const float n = kx_i2f(kxl_dot(w, x0, x1, sx)), f = kx_h2f((unsigned short)(w->d & 0xffffu)) * dx;
#if KXL_MIN
    const float g = kx_h2f((unsigned short)(w->d >> 16)) * dx, p = kx_i2f(sx);
#endif

    KX_UNROLL
    for (int j = 0; j < 4; j++) {
        const int from = (int)(s + 8u * j);
        float y = kx_fma(kx_shfl_f(f, from), kx_shfl_f(n, from), acc);

#if KXL_MIN
        y = kx_fma(kx_shfl_f(g, from), kx_shfl_f(p, from), y);
#endif
        acc = b + (kx_u)from < nb ? y : acc;
    }
    return acc;
}
/* One row of x, few columns: a warp takes one, lane l its blocks l, l + 32 ..., which are of slice
 * l % 8. The codes come straight from memory: so little is done with each that staging them, and more
 * instructions than these, would take longer than the product. */
KX_DEV void kxl_few(const struct kx_linear *a, kx_u tid, kx_u nb)
{
    const kx_u lane = tid & 31u, s = tid & 7u;
    const unsigned char *q, *d, *h = 0;
    struct kxl_blk w[KXL_AHEAD];
    struct kxl_tile t;
    kx_u col, at;
    float acc = 0.0f;

    kxl_tile_at(a, kx_bx() / KXL_WIDE, 16u, 0, &t);
    col = t.col0 + kx_bx() % KXL_WIDE * (16u / KXL_WIDE) + (tid >> 5);
    at = col < t.n ? col : t.n - 1u;
    q = kxl_plane(a, t.part, 0u) + (unsigned long long)at * KXL_UP16(nb * KXL_CODE);
    d = kxl_plane(a, t.part, 1u) + (unsigned long long)at * KXL_UP16(nb * (KXL_MIN ? 4u : 2u));
#if KXL_BITS
    h = kxl_plane(a, t.part, 2u) + (unsigned long long)at * KXL_UP16(nb * 4u);
#endif
    KX_UNROLL
    for (int u = 0; u < KXL_AHEAD; u++)
        if (32u * u < nb)
            kxl_load(&w[u], q, d, h, KXL_AT(lane + 32u * u, nb));
    kx_wait();
    for (kx_u b0 = 0u; b0 < nb; b0 += 32u * KXL_AHEAD) {
        struct kxl_blk v[KXL_AHEAD];
        struct kx_u4 x0[KXL_AHEAD], x1[KXL_AHEAD];
        float dx[KXL_AHEAD];
        int sx[KXL_AHEAD];

        KX_UNROLL
        for (int u = 0; u < KXL_AHEAD; u++) {
            v[u] = w[u];
            if (b0 + 32u * u < nb) {
                const kx_u b = KXL_AT(b0 + lane + 32u * u, nb);

                x0[u] = kx_ld16((const unsigned char *)a->xq + b * 32u);
                x1[u] = kx_ld16((const unsigned char *)a->xq + b * 32u + 16u);
                dx[u] = ((const float *)a->xd)[b];
                sx[u] = ((const int *)a->xs)[b];
            }
            if (b0 + 32u * (KXL_AHEAD + u) < nb)
                kxl_load(&w[u], q, d, h, KXL_AT(b0 + lane + 32u * (KXL_AHEAD + u), nb));
        }
        KX_UNROLL
        for (int u = 0; u < KXL_AHEAD; u++)
            if (b0 + 32u * u < nb) {
                acc = kxl_chain(&v[u], x0[u], x1[u], dx[u], sx[u], s, b0 + 32u * u, nb, acc);
            }
    }
    kxl_finish_mv(a, t.part, 0u, col, t.n, kxl_fold8(acc), 0, lane == 0u);
}
/* Gate and up of column u, blocks l and l + 32 of either for lane l. */
KX_DEV void kxl_pair_load(const struct kx_linear *a, struct kxl_blk w[2][2], kx_u u, kx_u lane, kx_u nb)
{
    const kx_u at = u < a->n_out[0] ? u : a->n_out[0] - 1u;

    KX_UNROLL
    for (kx_u r = 0u; r < 2u; r++) {
        const unsigned char *q = kxl_plane(a, r, 0u) + (unsigned long long)at * KXL_UP16(nb * KXL_CODE);
        const unsigned char *d = kxl_plane(a, r, 1u) + (unsigned long long)at * KXL_UP16(nb * (KXL_MIN ? 4u : 2u));
        const unsigned char *h = 0;

#if KXL_BITS
        h = kxl_plane(a, r, 2u) + (unsigned long long)at * KXL_UP16(nb * 4u);
#endif
        kxl_load(&w[r][0], q, d, h, KXL_AT(lane, nb));
        if (nb > 32u)
            kxl_load(&w[r][1], q, d, h, KXL_AT(lane + 32u, nb));
    }
}
/* One row of x of 32 to 64 blocks: it stays in a warp's registers, lane l has blocks l and l + 32, while the columns
 * stream past it, one pair of weights at a time, the next pair on its way, the first while the kernel that makes x
 * still runs. Fewer blocks would leave lanes idle; products without a gate gained nothing by it. */
KX_DEV void kxl_stream(const struct kx_linear *a, kx_u tid, kx_u nb)
{
    const kx_u lane = tid & 31u, s = tid & 7u, units = a->n_out[0], step = kx_gx() * 4u;
    kx_u u = kx_bx() * 4u + (tid >> 5);
    struct kxl_blk w[2][2];
    struct kx_u4 x0[2], x1[2];
    float dx[2];
    int sx[2];

    if (u < units)
        kxl_pair_load(a, w, u, lane, nb);
    kx_wait();
    KX_UNROLL
    for (int i = 0; i < 2; i++) {
        const kx_u b = KXL_AT(lane + 32u * i, nb);

        x0[i] = kx_ld16((const unsigned char *)a->xq + b * 32u);
        x1[i] = kx_ld16((const unsigned char *)a->xq + b * 32u + 16u);
        dx[i] = ((const float *)a->xd)[b];
        sx[i] = ((const int *)a->xs)[b];
    }
    for (; u < units; u += step) {
        struct kxl_blk v[2][2];
        float acc[2];

        KX_UNROLL
        for (int i = 0; i < 4; i++)
            v[i / 2][i % 2] = w[i / 2][i % 2];
        if (u + step < units)
            kxl_pair_load(a, w, u + step, lane, nb);
        KX_UNROLL
        for (int r = 0; r < 2; r++) {
            acc[r] = 0.0f;
            KX_UNROLL
            for (int i = 0; i < 2; i++)
                if (32u * i < nb)
                    acc[r] = kxl_chain(&v[r][i], x0[i], x1[i], dx[i], sx[i], s, 32u * i, nb, acc[r]);
            acc[r] = kxl_fold8(acc[r]);
        }
        if (lane == 0u)
            kxl_finish_geglu(a, 0u, u, units, acc[0], acc[1]);
    }
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

#if KXL_GEGLU
    if (a.xq && nb >= 32u && nb <= 64u) {
        kxl_stream(&a, tid, nb);
        return;
    }
#else
    if (a.xq && tiles <= KXL_FEW) {
        kxl_few(&a, tid, nb);
        return;
    }
#endif
    for (kx_u t = t0; t < t1; t++) {
        struct kxl_tile w;
        struct kxl_blk blk[KXL_STEPS];
        const unsigned char *q, *d, *h = 0;
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
                kxl_stage(&a, row, KXL_K(a.k), c0 * 32u, m, lo, hi, xd, xs);
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
