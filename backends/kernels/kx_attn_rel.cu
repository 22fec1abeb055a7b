/* kx_attn_rel.cu - the position terms of disentangled attention: q_i . rk[d] + k_j . rq[d], d = rel[i - j + reach].
 *
 * A block's rows and a tile of keys span but few distances i - j. Their vectors are laid out by distance, not by
 * d: then no index is looked up per score. Distances that no row of the sequence has are those at the end of the table;
 * what they give is masked.
 */
struct kx_ar {
    kx_p rk, rq, rel; /* of the head; rk, rq 0: no such term */
    kx_p ld;          /* bytes between two vectors */
    int reach, d0;    /* d0: the block's first row is at this position */
};
KX_DEV void kx_ar_open(struct kx_ar *r, const struct kx_attn_rel *a, const struct kx_av *v, kx_u head, kx_u es)
{
    const kx_p at = (kx_p)head * a->p.head_dim * es;

    r->rk = a->rk ? a->rk + at : 0u;
    r->rq = a->rq ? a->rq + at : 0u;
    r->rel = a->rel;
    r->ld = (kx_p)a->rel_stride * es;
    r->reach = (int)a->reach;
    r->d0 = (int)v->pos0;
}
/* From rk (or rq) to the vector of a distance. */
KX_DEV kx_p kx_ar_off(const struct kx_ar *r, int distance)
{
    int d = distance < -r->reach ? -r->reach : distance;

    d = d > r->reach ? r->reach : d;
    return (kx_p)((const kx_u *)r->rel)[d + r->reach] * r->ld;
}

#ifdef KX_SM
/* ---- plain arithmetic: the score's chain of sums goes on, column by column, first q . rk */
#define KX_ARW (KX_SM + KX_ST - 1u) /* distances of a block and a tile */
/* shared floats behind those of kx_attn_simt.cu: a chunk of rk, a chunk of rq */
#define KX_S_REL(hd) (KX_S_C(hd) + 3u * KX_SM)

/* Chunk ch of the vectors at plane (0: zeros), by distance, from the one of row 0 and the tile's last key. */
KX_DEV void kx_ar_chunk(const struct kx_av *v, const struct kx_sm *s, const struct kx_ar *r, float *dst, kx_p plane, kx_u ch, int vec)
{
    const int first = r->d0 - (int)s->key0 - (int)(KX_ST - 1u);
    kx_u c;

    for (c = kx_tid(); vec && c < KX_ARW * 16u; c += 128u) {
        struct kx_u4 x = {0u, 0u, 0u, 0u};

        if (plane)
            x = kx_ld16((const void *)(plane + kx_ar_off(r, first + (int)(c / 16u)) + ch * 256u + c % 16u * 16u));
        *(struct kx_u4 *)(dst + c / 16u * KX_SKW + c % 16u * 4u) = x;
    }
    for (c = kx_tid(); !vec && c < KX_ARW * 64u; c += 128u) {
        kx_u col = ch * 64u + c % 64u;
        float x = 0.0f;

        if (plane && col < s->hd) {
            kx_p at = plane + kx_ar_off(r, first + (int)(c / 64u));

            x = v->x_t == KX_F16 ? kx_h2f(((const unsigned short *)at)[col]) : ((const float *)at)[col];
        }
        dst[c / 64u * KX_SKW + c % 64u] = x;
    }
}
/* Behind kx_sm_qk, whose last chunk of keys still lies there. Rows and keys of a thread are 8 apart, so its 4 KX_SQ
 * scores meet KX_SQ + 3 distances. */
KX_DEV void kx_ar_simt(const struct kx_av *v, struct kx_sm *s, const struct kx_ar *r, kx_u ty, int vec)
{
    kx_u k0 = kx_tid() & 7u, w = KX_SQW(s->hd), ch, i, j, c;
    float *rk = s->q + KX_S_REL(s->hd), *rq = rk + KX_ARW * KX_SKW;
    kx_u at = (KX_SROW(0u) + 7u - k0) * KX_SKW; /* of row 0 and key 3 */

    for (ch = 0u; ch * 64u < s->hd; ch++) {
        if (s->hd > 64u)
            kx_sm_chunk(v, s, v->k, ch, ty, vec);
        kx_ar_chunk(v, s, r, rk, r->rk, ch, vec);
        kx_ar_chunk(v, s, r, rq, r->rq, ch, vec);
        kx_sync();
        KX_UNROLL
        for (c = 0u; c < 16u; c++) {
            struct kx_f4 q[KX_SQ], k[4], x[KX_SQ + 3u], y[KX_SQ + 3u];

            KX_UNROLL
            for (i = 0u; i < KX_SQ; i++)
                q[i] = *(const struct kx_f4 *)(s->q + KX_SROW(i) * w + ch * 64u + c * 4u);
            KX_UNROLL
            for (j = 0u; j < 4u; j++)
                k[j] = *(const struct kx_f4 *)(s->t + (k0 + 8u * j) * KX_SKW + c * 4u);
            KX_UNROLL
            for (i = 0u; i < KX_SQ + 3u; i++) {
                x[i] = *(const struct kx_f4 *)(rk + at + 8u * i * KX_SKW + c * 4u);
                y[i] = *(const struct kx_f4 *)(rq + at + 8u * i * KX_SKW + c * 4u);
            }
            KX_UNROLL
            for (i = 0u; i < KX_SQ; i++) {
                KX_UNROLL
                for (j = 0u; j < 4u; j++) {
                    const struct kx_f4 xx = x[i + 3u - j], yy = y[i + 3u - j];

                    s->s[i][j] = kx_fma(k[j].x, yy.x, kx_fma(q[i].x, xx.x, s->s[i][j]));
                    s->s[i][j] = kx_fma(k[j].y, yy.y, kx_fma(q[i].y, xx.y, s->s[i][j]));
                    s->s[i][j] = kx_fma(k[j].z, yy.z, kx_fma(q[i].z, xx.z, s->s[i][j]));
                    s->s[i][j] = kx_fma(k[j].w, yy.w, kx_fma(q[i].w, xx.w, s->s[i][j]));
                }
            }
        }
    }
}
#endif
