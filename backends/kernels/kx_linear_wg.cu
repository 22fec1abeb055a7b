
/* kx_linear_wg.cu - products of halves with wgmma (exactly sm_90): f32 sums in ascending columns,
 * 16 at a time: the bits of kx_linear_fast.cu. A block takes tile after tile of 128 rows of x by 256
 * weight rows, each of its two warpgroups 64 rows. Both operands come from shared memory, 64
 * columns a stage, copied by the device's own engine (kx_tma_2d) in the swizzle wgmma reads.
 *
 * Four stages go round without regard to tiles: three are under way or waiting, also those of the
 * next tile while this one is finished in the buffer of its last. Stage t + 3 goes to the buffer of
 * t - 1 when both warpgroups have waited for the products of t - 1; those of t run meanwhile. */
#undef KXL_STAGE
#undef KXL_BARS
#undef KXL_BIAS
#define KXL_STAGE 49152u
#define KXL_BARS (4u * KXL_STAGE)
#define KXL_BIAS (KXL_BARS + 64u)

/* What is copied next: stage st of a tile, which begins at row0 of x, col0 of part. */
struct kxl_wg_next {
    kx_u st, tile, row0, col0, part;
};

KX_DEV void kxl_wg_tile(const struct kx_linear *a, kx_u tile, kx_u n_cols, struct kxl_tile *w, kx_u *row0)
{
    kxl_tile_at(a, tile % n_cols, 256u, 0, w);
    *row0 = tile / n_cols * 128u;
}

KX_DEV void kxl_wg_next_at(const struct kx_linear *a, kx_u n_cols, kx_u tile, struct kxl_wg_next *s)
{
    struct kxl_tile w;

    kxl_wg_tile(a, tile, n_cols, &w, &s->row0);
    s->col0 = w.col0;
    s->part = w.part;
    s->tile = tile;
    s->st = 0u;
}

/* One thread. Beyond the last tile nothing is copied and nobody waits. */
KX_DEV void kxl_wg_copy(unsigned char *sm, const struct kx_linear_wg *m, kx_u turn, kx_u n_cols, kx_u n_tiles, kx_u nst, struct kxl_wg_next *s)
{
    unsigned char *to = sm + (turn & 3u) * KXL_STAGE, *bar = sm + KXL_BARS + (turn & 3u) * 8u;
    const struct kx_tmap *w = s->part == 0u ? &m->w[0] : s->part == 1u ? &m->w[1] : &m->w[2];

    if (s->tile >= n_tiles)
        return;
    kx_mbar_expect(bar, KXL_STAGE);
    kx_tma_2d(to, &m->x, bar, s->st * 64u, s->row0, 128u);
    kx_tma_2d(to + 16384u, w, bar, s->st * 64u, s->col0, 256u);
    if (++s->st == nst)
        kxl_wg_next_at(&m->a, n_cols, s->tile + kx_gx(), s);
}

KX_KERNEL(KXL_NAME, 256, 1, struct kx_linear_wg, m)
{
    KX_DYN_SHARED(raw);
    unsigned char *const sm = kx_align1024(raw);
    const kx_u nst = (KXL_K(m.a.k) + 63u) / 64u, tid = kx_tid(), lane = tid & 31u, r0 = (tid >> 5) * 16u;
    const kx_u n_cols = kxl_tiles(&m.a, 256u, 0), n_tiles = (m.a.n + 127u) / 128u * n_cols;
    float *const bias = (float *)(sm + KXL_BIAS);
    struct kxl_wg_next next;
    kx_u turn = 0u;
    float acc[128];

    kxl_wg_next_at(&m.a, n_cols, kx_bx(), &next);
    if (tid == 0u) {
        for (kx_u i = 0u; i < 4u; i++)
            kx_mbar_init(sm + KXL_BARS + i * 8u);
        kx_mbar_ready();
        for (kx_u i = 0u; i < 3u; i++)
            kxl_wg_copy(sm, &m, i, n_cols, n_tiles, nst, &next);
    }
    kx_sync();
    for (kx_u tile = kx_bx(); tile < n_tiles; tile += kx_gx()) {
        unsigned char *spare;
        struct kxl_tile w;
        const float *b;
        float mine = 0.0f;
        kx_u row0;

        kxl_wg_tile(&m.a, tile, n_cols, &w, &row0);
        b = (const float *)KXL_SEL(w.part, m.a.b[0], m.a.b[1], m.a.b[2]);
        if (b && w.col0 + tid < w.n)
            mine = b[w.col0 + tid];
        KX_UNROLL
        for (int i = 0; i < 128; i++)
            acc[i] = 0.0f;
        for (kx_u st = 0u; st < nst; st++, turn++) {
            const unsigned char *now = sm + (turn & 3u) * KXL_STAGE, *x = now + (r0 & 64u) * 128u;

            kx_mbar_wait(sm + KXL_BARS + (turn & 3u) * 8u, turn >> 2 & 1u);
            kx_wg_fence();
            KX_UNROLL
            for (kx_u q = 0u; q < 4u; q++)
                kx_wgmma_f16_n256(acc, kx_wg_desc(x + 32u * q), kx_wg_desc(now + 16384u + 32u * q));
            kx_wg_commit();
            kx_wg_wait(1);
            kx_sync();
            if (tid == 0u)
                kxl_wg_copy(sm, &m, turn + 3u, n_cols, n_tiles, nst, &next);
        }
        kx_wg_wait(0);
        bias[tid] = mine;
        kx_sync();
        spare = sm + ((turn + 3u) & 3u) * KXL_STAGE; /* of the last stage */
        if ((w.n & 7u) == 0u && m.a.out_t == KX_F16 && (m.a.epi == KX_EPI_NONE || m.a.epi == KX_EPI_GELU_ERF)) {
            /* the usual case: halves, 128 columns at a time, rows of 272 bytes */
            unsigned short *out = (unsigned short *)KXL_SEL(w.part, m.a.out[0], m.a.out[1], m.a.out[2]);

            KX_UNROLL
            for (int half = 0; half < 2; half++) {
                unsigned char *const p = spare + (r0 + (lane >> 2)) * 272u + (lane & 3u) * 4u;
                const float *const t = bias + 128 * half + 2u * (lane & 3u);

                KX_UNROLL
                for (int j = 0; j < 16; j++) {
                    const struct kx_f2 v = *(const struct kx_f2 *)(t + 8 * j);

                    acc[64 * half + 4 * j] += v.x;
                    acc[64 * half + 4 * j + 1] += v.y;
                    acc[64 * half + 4 * j + 2] += v.x;
                    acc[64 * half + 4 * j + 3] += v.y;
                }
                if (m.a.epi == KX_EPI_GELU_ERF) {
                    KX_UNROLL
                    for (int j = 0; j < 64; j++)
                        acc[64 * half + j] = kxl_gelu_erf(acc[64 * half + j]);
                }
                KX_UNROLL
                for (int j = 0; j < 16; j++) {
                    *(kx_u *)(p + 16 * j) = kx_f2h2(acc[64 * half + 4 * j], acc[64 * half + 4 * j + 1]);
                    *(kx_u *)(p + 8 * 272 + 16 * j) = kx_f2h2(acc[64 * half + 4 * j + 2], acc[64 * half + 4 * j + 3]);
                }
                kx_sync();
                KX_UNROLL
                for (kx_u i = tid; i < 2048u; i += 256u) {
                    const kx_u r = i >> 4, c = (i & 15u) * 8u, col = w.col0 + 128u * half + c;

                    if (row0 + r < m.a.n && col < w.n)
                        *(struct kx_u4 *)(out + (unsigned long long)(row0 + r) * w.n + col) = *(const struct kx_u4 *)(spare + r * 272u + c * 2u);
                }
                kx_proxy_fence();
                kx_sync();
            }
        } else {
            KX_UNROLL
            for (int part = 0; part < 4; part++) { /* 64 columns at a time */
                struct kxl_tile t = w;

                t.col0 = w.col0 + 64u * part;
                KX_UNROLL
                for (int j = 0; j < 8; j++) {
                    float *p = (float *)spare + (r0 + (lane >> 2)) * 68u + 8u * j + 2u * (lane & 3u);
                    const int at = 32 * part + 4 * j;

                    p[0] = acc[at];
                    p[1] = acc[at + 1];
                    p[8 * 68] = acc[at + 2];
                    p[8 * 68 + 1] = acc[at + 3];
                }
                kx_sync();
                kxl_finish_tile(&m.a, &t, (const float *)spare, 68u, row0, 128u, 64u, 256u);
                kx_proxy_fence();
                kx_sync();
            }
        }
    }
}
