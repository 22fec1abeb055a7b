/* kx_attn_rel_tf32.cu - disentangled attention with products of floats rounded to tf32 (behind kx_attn_mma.cu and
 * kx_attn_rel.cu): 64 rows of a block, tiles of 32 keys, head_dim 64.
 *
 * Rows of 256 bytes in 16-byte pieces, piece c of row r at c ^ (r & 7): ldmatrix, and the single words of values, meet no
 * bank twice. A thread rounds the pieces it copied itself once they have landed, before the barrier.
 *
 * Row i and key j of a block and tile are i - j + 32 in a window of 96 distances, three blocks of 32 vectors; block b
 * begins at distance d0 - 32 b, tile t takes t - 1, t and t + 1; t + 2 comes where t - 1 lay, behind the terms of t. A warp multiplies its 16 query rows by the 48 vectors of
 * rk that they can meet, and (two warps each) 16 keys by 80 of rq, into x, from where each score takes its own.
 */
#define KX_T_PLANE 8192u              /* 32 rows */
#define KX_T_KV(t) (((t)&1u) * 2u * KX_T_PLANE)
#define KX_T_RING(b) (4u * KX_T_PLANE + (kx_u)((b) + 1) % 3u * 2u * KX_T_PLANE)
#define KX_T_X (10u * KX_T_PLANE)
#define KX_T_WQ 52u                   /* floats of a row of x: of queries, of keys */
#define KX_T_WK 84u

struct kx_tr {
    kx_u q[8][4];
    unsigned char *sm;
    float *x;
};
KX_DEV kx_u kx_tr_at(kx_u row, kx_u c) { return row * 256u + ((c ^ (row & 7u)) << 4); }

KX_DEV void kx_tr_kv(const struct kx_av *v, struct kx_tr *f, kx_u t)
{
    unsigned char *dst = f->sm + KX_T_KV(t);
    kx_u c, p = kx_tid() & 15u;

    KX_UNROLL
    for (c = 0u; c < 32u; c += 8u) {
        kx_u row = c + (kx_tid() >> 4), key = t * 32u + row;
        int ok = key >= v->klo && key < v->khi;
        kx_p off = (kx_p)key * v->page_stride + p * 16u;

        kx_cp16_if(dst + kx_tr_at(row, p), (const void *)(v->k + off), ok);
        kx_cp16_if(dst + KX_T_PLANE + kx_tr_at(row, p), (const void *)(v->v + off), ok);
    }
}
KX_DEV void kx_tr_vectors(const struct kx_ar *r, struct kx_tr *f, int b)
{
    unsigned char *dst = f->sm + KX_T_RING(b);
    kx_u c, p = kx_tid() & 15u;

    KX_UNROLL
    for (c = 0u; c < 32u; c += 8u) {
        kx_u row = c + (kx_tid() >> 4);
        kx_p off = kx_ar_off(r, r->d0 - 32 * b + (int)row) + p * 16u;

        if (r->rk)
            kx_cp16(dst + kx_tr_at(row, p), (const void *)(r->rk + off));
        if (r->rq)
            kx_cp16(dst + KX_T_PLANE + kx_tr_at(row, p), (const void *)(r->rq + off));
    }
}
/* A thread's own pieces of two planes, rounded. */
KX_DEV void kx_tr_round(unsigned char *at, int first, int second)
{
    kx_u c, i, p = kx_tid() & 15u;

    KX_UNROLL
    for (i = 0u; i < 2u; i++) {
        if (!(i ? second : first))
            continue;
        KX_UNROLL
        for (c = 0u; c < 32u; c += 8u) {
            struct kx_u4 *w = (struct kx_u4 *)(at + i * KX_T_PLANE + kx_tr_at(c + (kx_tid() >> 4), p)), x = *w;

            x.x = kx_f2tf32(kx_i2f_bits((int)x.x));
            x.y = kx_f2tf32(kx_i2f_bits((int)x.y));
            x.z = kx_f2tf32(kx_i2f_bits((int)x.z));
            x.w = kx_f2tf32(kx_i2f_bits((int)x.w));
            *w = x;
        }
    }
}
KX_DEV void kx_tr_open(const struct kx_av *v, const struct kx_ar *r, struct kx_tr *f, unsigned char *sm)
{
    kx_u lane = kx_tid() & 31u, kk, i;

    f->sm = sm;
    f->x = (float *)(sm + KX_T_X);
    kx_tr_kv(v, f, 0u);
    kx_tr_vectors(r, f, -1);
    kx_tr_vectors(r, f, 0);
    kx_tr_vectors(r, f, 1);
    kx_cp_commit();
    KX_UNROLL
    for (i = 0u; i < 4u; i++) {
        kx_u row = (kx_tid() >> 5) * 16u + (lane >> 2) + 8u * (i & 1u);
        const float *q = (const float *)v->q + kx_av_q(v, row, 64u) + (lane & 3u) + 4u * (i >> 1);
        int has = kx_av_has(v, row);

        KX_UNROLL
        for (kk = 0u; kk < 8u; kk++)
            f->q[kk][i] = has ? kx_f2tf32(q[8u * kk]) : 0u;
    }
}
/* Tile t has landed, t + 1 is on its way. */
KX_DEV void kx_tr_stage(const struct kx_av *v, struct kx_am *s, const struct kx_ar *r, struct kx_tr *f, kx_u t)
{
    kx_cp_wait(0);
    kx_tr_round(f->sm + KX_T_KV(t), 1, 1);
    if (t == 0u) {
        kx_tr_round(f->sm + KX_T_RING(-1), r->rk != 0u, r->rq != 0u);
        kx_tr_round(f->sm + KX_T_RING(0), r->rk != 0u, r->rq != 0u);
    }
    kx_tr_round(f->sm + KX_T_RING((int)t + 1), r->rk != 0u, r->rq != 0u);
    kx_sync();
    if ((t + 1u) * 32u < v->khi)
        kx_tr_kv(v, f, t + 1u);
    s->key0 = t * 32u;
    s->skip = s->key0 >= s->whi;
    s->k = f->sm + KX_T_KV(t);
    s->v = s->k + KX_T_PLANE;
}
/* Two columns of 8 of d: 16 rows a by the 16 rows of b. */
KX_DEV void kx_tr_mma(float (*d)[4], const kx_u *a, const unsigned char *b, kx_u row0, kx_u kk)
{
    kx_u lane = kx_am_lane(), bf[4];

    kx_ldm4(bf, b + kx_tr_at(row0 + (lane & 7u) + (lane >> 4) * 8u, 2u * kk + (lane >> 3 & 1u)));
    kx_mma_tf32_1688(d[0], a, bf);
    kx_mma_tf32_1688(d[1], a, bf + 2);
}
KX_DEV void kx_tr_qk(struct kx_am *s, const struct kx_tr *f)
{
    kx_u j, kk;

    if (s->skip)
        return;
    KX_UNROLL
    for (j = 0u; j < 4u; j++) {
        s->s[0][j][0] = 0.0f;
        s->s[0][j][1] = 0.0f;
        s->s[0][j][2] = 0.0f;
        s->s[0][j][3] = 0.0f;
    }
    KX_UNROLL
    for (kk = 0u; kk < 8u; kk++) {
        KX_UNROLL
        for (j = 0u; j < 4u; j += 2u)
            kx_tr_mma(&s->s[0][j], f->q[kk], s->k, 8u * j, kk);
    }
}
/* Columns 8 j .. of 16 rows of x. */
KX_DEV void kx_tr_put(float *x, kx_u w, float (*d)[4], kx_u n)
{
    kx_u lane = kx_am_lane(), j;

    KX_UNROLL
    for (j = 0u; j < n; j++) {
        struct kx_f2 lo, hi;
        float *p = x + (lane >> 2) * w + 8u * j + 2u * (lane & 3u);

        lo.x = d[j][0];
        lo.y = d[j][1];
        hi.x = d[j][2];
        hi.y = d[j][3];
        *(struct kx_f2 *)p = lo;
        *(struct kx_f2 *)(p + 8u * w) = hi;
    }
}
/* Vectors w0 .. w0 + 15 of tile t's window. */
KX_DEV const unsigned char *kx_tr_window(const struct kx_tr *f, kx_u t, kx_u w0)
{
    return f->sm + KX_T_RING((int)t + 1 - (int)(w0 >> 5)) + (w0 & 16u) * 256u;
}
KX_DEV void kx_tr_rel(const struct kx_av *v, struct kx_am *s, const struct kx_ar *r, struct kx_tr *f, kx_u t)
{
    kx_u lane = kx_am_lane(), g = lane >> 2, warp = kx_tid() >> 5, j, e, kk;
    float d[6][4];

    if (r->rk && !s->skip) {
        float *x = f->x + warp * 16u * KX_T_WQ;

        KX_UNROLL
        for (j = 0u; j < 24u; j++)
            d[j >> 2][j & 3u] = 0.0f;
        KX_UNROLL
        for (kk = 0u; kk < 8u; kk++) {
            KX_UNROLL
            for (j = 0u; j < 3u; j++)
                kx_tr_mma(d + 2u * j, f->q[kk], kx_tr_window(f, t, 16u * (warp + j)), 0u, kk);
        }
        kx_tr_put(x, KX_T_WQ, d, 6u);
        kx_syncwarp();
        KX_UNROLL
        for (j = 0u; j < 4u; j++) {
            KX_UNROLL
            for (e = 0u; e < 4u; e++) {
                kx_u i = g + 8u * (e >> 1), key = 8u * j + 2u * (lane & 3u) + (e & 1u);

                s->s[0][j][e] = s->s[0][j][e] + x[i * KX_T_WQ + i + 32u - key];
            }
        }
    }
    kx_sync();
    if (r->rq) {
        const kx_u keys = (warp & 1u) * 16u, w0 = 16u - keys + (warp >> 1) * 48u;

        KX_UNROLL
        for (j = 0u; j < 24u; j++)
            d[j >> 2][j & 3u] = 0.0f;
        KX_UNROLL
        for (kk = 0u; kk < 8u; kk++) {
            kx_u af[4];

            kx_ldm4(af, s->k + kx_tr_at(keys + (lane & 15u), 2u * kk + (lane >> 4)));
            KX_UNROLL
            for (j = 0u; j < 3u; j++) {
                if (j < 2u || warp < 2u)
                    kx_tr_mma(d + 2u * j, af, kx_tr_window(f, t, w0 + 16u * j) + KX_T_PLANE, 0u, kk);
            }
        }
        kx_tr_put(f->x + keys * KX_T_WK + (warp >> 1) * 48u, KX_T_WK, d, 4u);
        if (warp < 2u)
            kx_tr_put(f->x + keys * KX_T_WK + 32u, KX_T_WK, d + 4, 2u);
    }
    kx_sync();
    if ((t + 1u) * 32u < v->khi)
        kx_tr_vectors(r, f, (int)t + 2);
    kx_cp_commit();
    if (!r->rq || s->skip)
        return;
    KX_UNROLL
    for (j = 0u; j < 4u; j++) {
        KX_UNROLL
        for (e = 0u; e < 4u; e++) {
            kx_u i = s->row + g + 8u * (e >> 1), key = 8u * j + 2u * (lane & 3u) + (e & 1u);

            s->s[0][j][e] = s->s[0][j][e] + f->x[key * KX_T_WK + i + 16u - (key & 15u)];
        }
    }
}
/* Of 8 keys the even ones come first, as the lanes hold their weights. */
KX_DEV void kx_tr_pv(struct kx_am *s)
{
    kx_u lane = kx_am_lane(), g = lane >> 2, i, j, e, kk;
    int same = s->c[0][0] == 1.0f && s->c[0][1] == 1.0f;

    if (s->skip)
        return;
    if (kx_ballot(same) != 0xffffffffu) {
        KX_UNROLL
        for (j = 0u; j < 8u; j++) {
            KX_UNROLL
            for (e = 0u; e < 4u; e++)
                s->a[0][j][e] = s->a[0][j][e] * s->c[0][e >> 1];
        }
    }
    KX_UNROLL
    for (kk = 0u; kk < 4u; kk++) {
        kx_u af[4], key = 8u * kk + 2u * (lane & 3u);

        af[0] = kx_f2tf32(s->s[0][kk][0]);
        af[1] = kx_f2tf32(s->s[0][kk][2]);
        af[2] = kx_f2tf32(s->s[0][kk][1]);
        af[3] = kx_f2tf32(s->s[0][kk][3]);
        KX_UNROLL
        for (j = 0u; j < 8u; j++) {
            kx_u bf[2];

            KX_UNROLL
            for (i = 0u; i < 2u; i++)
                bf[i] = *(const kx_u *)(s->v + kx_tr_at(key + i, 2u * j + (g >> 2)) + (g & 3u) * 4u);
            kx_mma_tf32_1688(s->a[0][j], af, bf);
        }
    }
}
