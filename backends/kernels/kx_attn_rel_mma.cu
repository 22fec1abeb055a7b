/* kx_attn_rel_mma.cu - the position terms on tensor cores (behind kx_attn_mma.cu and kx_attn_rel.cu), 64 rows of a
 * block and 64 keys of a tile.
 *
 * Row i and key j of a block and tile are i - j + 64 in the window of distances: 16 rows of either meet 80 of it. So a
 * warp multiplies its 16 query rows by 80 vectors of rk, and 16 keys by 80 of rq, into x [64, KX_ARX], from where each
 * score takes its own. The window moves by 64 from tile to tile: half of its vectors, KX_KT of rk and of rq, are new.
 */
#define KX_ARX 84u
#define KX_ARX_BYTES (KX_MROWS * KX_ARX * 4u)

/* Block b of vectors, distances from d0 - 64 b on; blocks t and t + 1 are the window of tile t. */
KX_DEV void kx_ar_begin(const struct kx_ar *r, unsigned char *ring, kx_u b)
{
    unsigned char *dst = ring + (b & 1u) * 2u * KX_TILE_BYTES;
    kx_u c;

    KX_UNROLL
    for (c = 0u; c < KX_KT * KX_HC; c += 128u) {
        kx_u row = c / KX_HC + kx_tid() / KX_HC, p = kx_tid() % KX_HC;
        kx_p off = kx_ar_off(r, r->d0 - (int)(b * KX_KT) + (int)row) + p * 16u;

        if (r->rk)
            kx_cp16(dst + kx_am_at(row, p), (const void *)(r->rk + off));
        if (r->rq)
            kx_cp16(dst + KX_TILE_BYTES + kx_am_at(row, p), (const void *)(r->rq + off));
    }
    kx_cp_commit();
}
/* 16 rows of x: rows row0 .. of a, times 80 vectors from w0 (a multiple of 16) of tile t's window on. */
KX_DEV void kx_ar_band(float *x, const unsigned char *a, kx_u row0, const unsigned char *ring, kx_u t, kx_u w0)
{
    kx_u lane = kx_am_lane(), brow = (lane & 7u) + (lane >> 4) * 8u, bc = lane >> 3 & 1u, j, kk;
    float d[10][4];

    KX_UNROLL
    for (j = 0u; j < 10u; j++) {
        d[j][0] = 0.0f;
        d[j][1] = 0.0f;
        d[j][2] = 0.0f;
        d[j][3] = 0.0f;
    }
    KX_UNROLL
    for (kk = 0u; kk < KX_HD / 16u; kk++) {
        kx_u af[4];

        kx_ldm4(af, a + kx_am_at(row0 + (lane & 15u), 2u * kk + (lane >> 4)));
        KX_UNROLL
        for (j = 0u; j < 5u; j++) {
            kx_u at = w0 + 16u * j, b = at < KX_KT ? t + 1u : t, bf[4];

            kx_ldm4(bf, ring + (b & 1u) * 2u * KX_TILE_BYTES + kx_am_at(at % KX_KT + brow, 2u * kk + bc));
            kx_mma_f16_16816(d[2u * j], af, bf);
            kx_mma_f16_16816(d[2u * j + 1u], af, bf + 2);
        }
    }
    KX_UNROLL
    for (j = 0u; j < 10u; j++) {
        struct kx_f2 lo, hi;
        float *p = x + (lane >> 2) * KX_ARX + 8u * j + 2u * (lane & 3u);

        lo.x = d[j][0];
        lo.y = d[j][1];
        hi.x = d[j][2];
        hi.y = d[j][3];
        *(struct kx_f2 *)p = lo;
        *(struct kx_f2 *)(p + 8u * KX_ARX) = hi;
    }
}
/* Behind kx_am_qk: both terms to the scores; then the next tile's vectors on their way. */
KX_DEV void kx_ar_mma(const struct kx_av *v, struct kx_am *s, const struct kx_ar *r, const unsigned char *sq, unsigned char *ring, float *x, kx_u t)
{
    kx_u lane = kx_am_lane(), g = lane >> 2, jj, e, warp16 = (kx_tid() >> 5) * 16u;
    float *mine = x + warp16 * KX_ARX;

    if (r->rk && !s->skip) {
        kx_ar_band(mine, sq, s->row, ring, t, s->row);
        kx_syncwarp();
        KX_UNROLL
        for (jj = 0u; jj < KX_KT / 8u; jj++) {
            KX_UNROLL
            for (e = 0u; e < 4u; e++) {
                kx_u i = g + 8u * (e >> 1), j = 8u * jj + 2u * (lane & 3u) + (e & 1u);

                s->s[0][jj][e] = s->s[0][jj][e] + mine[i * KX_ARX + i + 64u - j];
            }
        }
    }
    kx_sync();
    if (r->rq)
        kx_ar_band(mine, s->k, warp16, ring + KX_TILE_BYTES, t, 48u - warp16);
    kx_sync();
    if ((t + 1u) * KX_KT < v->khi)
        kx_ar_begin(r, ring, t + 2u);
    if (r->rq && !s->skip) {
        KX_UNROLL
        for (jj = 0u; jj < KX_KT / 8u; jj++) {
            KX_UNROLL
            for (e = 0u; e < 4u; e++) {
                kx_u i = s->row + g + 8u * (e >> 1), j = 8u * jj + 2u * (lane & 3u) + (e & 1u);

                s->s[0][jj][e] = s->s[0][jj][e] + x[j * KX_ARX + i + 16u - (j & 15u)];
            }
        }
    }
}
