
/* kx_linear_mvf.cu - mat-vec, float weights, for KXL_ROWS rows at a time. A group of 8 lanes takes
 * one weight row, lane s the chunks of 8 columns c % 8 == s. Columns past the end count as
 * zeros, in the planes (be_klayout.c) and in the staged row. */
#ifndef KXL_MVF
#define KXL_MVF
#define KXL_AT(b, m) ((b) < (m) ? (b) : (m)-1u)
#if KXL_CODE == 4
#define KXL_STEPS 4
struct kxl_blk {
    struct kx_u4 q, q2;
};
#else
#define KXL_STEPS 8
struct kxl_blk {
    struct kx_u4 q;
};
#endif

/* Loads chunk c if the plane has it: a row of f32 may end in the middle of a chunk. */
KX_DEV void kxl_load(struct kxl_blk *w, const unsigned char *q, kx_u c, kx_u row_bytes)
{
#if KXL_CODE == 4
    struct kx_u4 z = {0u, 0u, 0u, 0u};

    w->q = kx_ldg16(q + c * 32u);
    w->q2 = z;
    if (c * 32u + 16u < row_bytes)
        w->q2 = kx_ldg16(q + c * 32u + 16u);
#else
    w->q = kx_ldg16(q + c * 16u);
#endif
}

KX_DEV float kxl_step(const struct kxl_blk *w, struct kx_f4 x0, struct kx_f4 x1, float acc)
{
#if KXL_CODE == 4
    acc = kx_fma(kxl_word(w->q.x, 0), x0.x, acc);
    acc = kx_fma(kxl_word(w->q.y, 0), x0.y, acc);
    acc = kx_fma(kxl_word(w->q.z, 0), x0.z, acc);
    acc = kx_fma(kxl_word(w->q.w, 0), x0.w, acc);
    acc = kx_fma(kxl_word(w->q2.x, 0), x1.x, acc);
    acc = kx_fma(kxl_word(w->q2.y, 0), x1.y, acc);
    acc = kx_fma(kxl_word(w->q2.z, 0), x1.z, acc);
    return kx_fma(kxl_word(w->q2.w, 0), x1.w, acc);
#else
    acc = kx_fma(kxl_word(w->q.x, 0), x0.x, acc);
    acc = kx_fma(kxl_word(w->q.x, 1), x0.y, acc);
    acc = kx_fma(kxl_word(w->q.y, 0), x0.z, acc);
    acc = kx_fma(kxl_word(w->q.y, 1), x0.w, acc);
    acc = kx_fma(kxl_word(w->q.z, 0), x1.x, acc);
    acc = kx_fma(kxl_word(w->q.z, 1), x1.y, acc);
    acc = kx_fma(kxl_word(w->q.w, 0), x1.z, acc);
    return kx_fma(kxl_word(w->q.w, 1), x1.w, acc);
#endif
}
#endif

KX_KERNEL(KXL_NAME, 128, 4, struct kx_linear, a)
{
    KX_DYN_SHARED(sm);
    const kx_u k = KXL_K(a.k), nb = (k + 7u) / 8u, cap = nb < KXL_CHUNK / 8u ? nb : KXL_CHUNK / 8u;
    const kx_u tid = kx_tid(), s = tid & 7u, row0 = kx_by() * KXL_ROWS;
    const kx_u rows = a.n - row0 < KXL_ROWS ? a.n - row0 : KXL_ROWS, row_bytes = KXL_UP16(k * KXL_CODE);
    const kx_u tiles = kxl_tiles(&a, KXL_COLS, KXL_GEGLU), per = (tiles + kx_gx() - 1u) / kx_gx();
    const kx_u t0 = kx_bx() * per, t1 = t0 + per < tiles ? t0 + per : tiles;
    /* row r: first halves of its chunks, then second halves */
    struct kx_f4 *xs = (struct kx_f4 *)sm;
    int staged = 0;

    for (kx_u t = t0; t < t1; t++) {
        struct kxl_tile w;
        struct kxl_blk blk[KXL_STEPS];
        const unsigned char *q;
        kx_u part, col, at, i, m;
        float acc[KXL_ROWS];

        KX_UNROLL
        for (int r = 0; r < KXL_ROWS; r++)
            acc[r] = 0.0f;
        kxl_tile_at(&a, t, KXL_COLS, KXL_GEGLU, &w);
#if KXL_GEGLU
        part = tid >> 4 & 1u;
        col = w.col0 + (tid >> 5) * 2u + (tid >> 3 & 1u);
#else
        part = w.part;
        col = w.col0 + (tid >> 3);
#endif
        at = col < w.n ? col : w.n - 1u;
        q = kxl_plane(&a, part, 0u) + (unsigned long long)at * row_bytes;
        for (kx_u c0 = 0u; c0 < nb; c0 += cap) {
            m = nb - c0 < cap ? nb - c0 : cap;
            KX_UNROLL
            for (int u = 0; u < KXL_STEPS; u++)
                if (8u * u < m)
                    kxl_load(&blk[u], q, c0 + KXL_AT(s + 8u * u, m), row_bytes);
            if (!staged || nb > cap) {
                if (staged)
                    kx_sync();
                else
                    kx_wait(); /* the first weights are on their way; x is another kernel's */
                for (kx_u r = 0u; r < rows; r++)
                    for (i = tid; i < m * 8u; i += 128u) {
                        const kx_u c = c0 * 8u + i;
                        const unsigned long long from = (unsigned long long)(row0 + r) * k + c;
                        float v = 0.0f;

                        if (c < k)
                            v = a.x_t == KX_F16 ? kx_h2f(((const unsigned short *)a.x)[from]) : ((const float *)a.x)[from];
                        ((float *)(xs + (r * 2u + (i >> 2 & 1u)) * cap + (i >> 3)))[i & 3u] = v;
                    }
                staged = 1;
                kx_sync();
            }
            kx_u b0 = 0u;

#if KXL_ROWS == 1
            /* whole batches: the next one's loads first, then sums without a branch between them */
            for (; b0 + 8u * KXL_STEPS <= m; b0 += 8u * KXL_STEPS) {
                struct kxl_blk cur[KXL_STEPS];

                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++)
                    cur[u] = blk[u];
                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++)
                    if (b0 + 8u * (KXL_STEPS + u) < m)
                        kxl_load(&blk[u], q, c0 + KXL_AT(b0 + s + 8u * (KXL_STEPS + u), m), row_bytes);
                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++) {
                    const kx_u b = b0 + s + 8u * u;

                    acc[0] = kxl_step(&cur[u], xs[b], xs[cap + b], acc[0]);
                }
            }
#endif
            for (;;) {
                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++) {
                    if (b0 + 8u * u < m) {
                        const kx_u b = KXL_AT(b0 + s + 8u * u, m);

                        KX_UNROLL
                        for (int r = 0; r < KXL_ROWS; r++)
                            if ((kx_u)r < rows) {
                                const float v = kxl_step(&blk[u], xs[2 * r * cap + b], xs[(2 * r + 1) * cap + b], acc[r]);

                                acc[r] = b0 + s + 8u * u < m ? v : acc[r];
                            }
                    }
                }
                b0 += 8u * KXL_STEPS;
                if (b0 >= m)
                    break;
                KX_UNROLL
                for (int u = 0; u < KXL_STEPS; u++)
                    if (b0 + 8u * u < m)
                        kxl_load(&blk[u], q, c0 + KXL_AT(b0 + s + 8u * u, m), row_bytes);
            }
        }
        {
            float v = 0.0f; /* lane r of a group finishes row r */

            KX_UNROLL
            for (int r = 0; r < KXL_ROWS; r++) {
                const float f = kxl_fold8(acc[r]);

                if (s == (kx_u)r)
                    v = f;
            }
            kxl_finish_mv(&a, part, row0 + s, col, w.n, v, KXL_GEGLU, s < rows);
        }
    }
}
