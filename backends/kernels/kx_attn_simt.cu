/* kx_attn_simt.cu - attention in plain f32 arithmetic: exact, any device, any even
 * head_dim up to 512.
 *
 * The library defines, before this text: KX_SH(h) head_dim (a constant, or h, given at run
 * time), KX_SM rows of a block (16, 32, 64), KX_SN the most 64-column chunks of a head. 128
 * threads. Tiles of KX_ST keys; keys and values come through shared memory in chunks of
 * 64 columns. A score is one fma chain over ascending columns, a value one over ascending
 * keys. With hf queries and weights are rounded to half first, as the tensor cores
 * take them.
 */
#define KX_ST 32u
#define KX_SQ (KX_SM / 16u) /* score rows of a thread, 8 apart: neighbours in a warp meet neighbouring rows */
#define KX_SROW(i) ((kx_tid() >> 3 & 7u) + 8u * ((kx_tid() >> 6) * KX_SQ + (i)))
#define KX_SR (KX_SM / 8u)  /* value rows of a thread */
#define KX_SKW 68u          /* floats of a chunk's row */
#define KX_SPW 36u          /* floats of a row of weights */
#define KX_SQW(hd) (((hd) + 63u) / 64u * 64u + 4u)
/* shared floats: queries, a chunk, weights, factors of rows (three each) */
#define KX_S_CHUNK(hd) (KX_SM * KX_SQW(hd))
#define KX_S_P(hd) (KX_S_CHUNK(hd) + KX_ST * KX_SKW)
#define KX_S_C(hd) (KX_S_P(hd) + KX_SM * KX_SPW)

struct kx_sm {
    float s[KX_SQ][4];
    float a[KX_SR][KX_SN][4];
    float m[KX_SQ], l[KX_SQ], bm[KX_SQ], bl[KX_SQ];
    kx_u lo[KX_SQ], hi[KX_SQ];
    float *q, *t, *p, *c;
    kx_u hd, key0;
};
/* element types of keys: enum be_dtype */
#define KX_S_F32 0u
#define KX_S_F16 1u
#define KX_S_Q8 8u

/* hf: as a half would hold it */
KX_DEV float kx_sm_half(float x, int hf) { return hf ? kx_h2f(kx_f2h(x)) : x; }

/* Query rows, zeros behind head_dim and where there is no row. */
KX_DEV void kx_sm_open(const struct kx_av *v, struct kx_sm *s, unsigned char *sm, kx_u hd, int hf)
{
    kx_u w = KX_SQW(hd), c, i;

    s->q = (float *)sm;
    s->t = s->q + KX_S_CHUNK(hd);
    s->p = s->q + KX_S_P(hd);
    s->c = s->q + KX_S_C(hd);
    s->hd = hd;
    s->key0 = 0u;
    for (c = kx_tid(); c < KX_SM * w; c += 128u) {
        kx_u r = c / w, col = c % w;
        float x = 0.0f;

        if (kx_av_has(v, r) && col < hd) {
            kx_p at = kx_av_q(v, r, hd) + col;

            x = v->x_t == KX_F16 ? kx_h2f(((const unsigned short *)v->q)[at]) : ((const float *)v->q)[at];
        }
        s->q[c] = kx_sm_half(x, hf);
    }
    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        kx_av_span(v, KX_SROW(i), &s->lo[i], &s->hi[i]);
        s->bm[i] = KX_AT_NONE;
        s->bl[i] = 0.0f;
    }
}
KX_DEV void kx_sm_fresh(struct kx_sm *s)
{
    kx_u i, j;

    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        s->m[i] = KX_AT_NONE;
        s->l[i] = 0.0f;
    }
    KX_UNROLL
    for (i = 0u; i < KX_SR; i++) {
        KX_UNROLL
        for (j = 0u; j < KX_SN; j++) {
            s->a[i][j][0] = 0.0f;
            s->a[i][j][1] = 0.0f;
            s->a[i][j][2] = 0.0f;
            s->a[i][j][3] = 0.0f;
        }
    }
}
/* One element of a cached key or value. */
KX_DEV float kx_sm_get(const struct kx_av *v, kx_p base, kx_u key, kx_u col, kx_u hd, kx_u ty)
{
    kx_p page, slot;

    if (ty == KX_S_F32)
        return ((const float *)kx_av_row(v, base, key, hd * 4u))[col];
    if (ty == KX_S_F16)
        return kx_h2f(((const unsigned short *)kx_av_row(v, base, key, hd * 2u))[col]);
    page = kx_av_page(v, base, key);
    slot = kx_av_slot(v, key);
    return kx_sm_half(kx_i2f(((const signed char *)(page + slot * hd))[col]) *
                          kx_h2f(((const unsigned short *)(page + v->scales_at + slot * (hd / 32u) * 2u))[col / 32u]),
                      1);
}
/* Chunk ch of the tile's keys (or values) to shared memory; zeros where nothing is read. vec: rows begin
 * at multiples of 16 bytes. */
KX_DEV void kx_sm_chunk(const struct kx_av *v, struct kx_sm *s, kx_p base, kx_u ch, kx_u ty, int vec)
{
    kx_u c;

    kx_sync();
    if (vec) { /* a step is 8 keys */
        struct kx_u4 w[KX_ST / 8u], z = {0u, 0u, 0u, 0u};
        kx_u page[KX_ST / 16u], p = kx_tid() % 16u, row = kx_tid() / 16u;

        KX_UNROLL
        for (c = 0u; c < KX_ST / 16u; c++)
            page[c] = kx_av_page16(v, s->key0 + 16u * c);
        KX_UNROLL
        for (c = 0u; c < KX_ST / 8u; c++) {
            kx_u key = kx_av_clamp(v, s->key0 + row + 8u * c);

            w[c] = kx_ld16((const void *)(base + kx_av_off16(v, page[c / 2u], key, s->hd * 4u) + ch * 256u + p * 16u));
        }
        KX_UNROLL
        for (c = 0u; c < KX_ST / 8u; c++) {
            kx_u key = s->key0 + row + 8u * c;
            int ok = key >= v->klo && key < v->khi;

            *(struct kx_u4 *)(s->t + (row + 8u * c) * KX_SKW + p * 4u) = ok ? w[c] : z;
        }
    } else {
        for (c = kx_tid(); c < KX_ST * 64u; c += 128u) {
            kx_u row = c / 64u, col = ch * 64u + c % 64u, key = s->key0 + row;
            float x = 0.0f;

            if (key >= v->klo && key < v->khi && col < s->hd)
                x = kx_sm_get(v, base, key, col, s->hd, ty);
            s->t[row * KX_SKW + c % 64u] = x;
        }
    }
    kx_sync();
}
/* thread: rows KX_SROW(i), keys tid % 8 + 8 j */
KX_DEV void kx_sm_qk(const struct kx_av *v, struct kx_sm *s, kx_u t, kx_u ty, int vec)
{
    kx_u k0 = kx_tid() & 7u, w = KX_SQW(s->hd), ch, i, j, c;

    s->key0 = t * KX_ST;
    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        KX_UNROLL
        for (j = 0u; j < 4u; j++)
            s->s[i][j] = 0.0f;
    }
    for (ch = 0u; ch * 64u < s->hd; ch++) {
        kx_sm_chunk(v, s, v->k, ch, ty, vec);
        KX_UNROLL
        for (c = 0u; c < 16u; c++) {
            struct kx_f4 q[KX_SQ], k[4];

            KX_UNROLL
            for (i = 0u; i < KX_SQ; i++)
                q[i] = *(const struct kx_f4 *)(s->q + KX_SROW(i) * w + ch * 64u + c * 4u);
            KX_UNROLL
            for (j = 0u; j < 4u; j++)
                k[j] = *(const struct kx_f4 *)(s->t + (k0 + 8u * j) * KX_SKW + c * 4u);
            KX_UNROLL
            for (i = 0u; i < KX_SQ; i++) {
                KX_UNROLL
                for (j = 0u; j < 4u; j++) {
                    s->s[i][j] = kx_fma(q[i].x, k[j].x, s->s[i][j]);
                    s->s[i][j] = kx_fma(q[i].y, k[j].y, s->s[i][j]);
                    s->s[i][j] = kx_fma(q[i].z, k[j].z, s->s[i][j]);
                    s->s[i][j] = kx_fma(q[i].w, k[j].w, s->s[i][j]);
                }
            }
        }
    }
}
KX_DEV void kx_sm_mask(struct kx_sm *s, float scale)
{
    kx_u i, j;

    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        KX_UNROLL
        for (j = 0u; j < 4u; j++) {
            kx_u key = s->key0 + (kx_tid() & 7u) + 8u * j;

            s->s[i][j] = key >= s->lo[i] && key < s->hi[i] ? s->s[i][j] * scale : KX_AT_NONE;
        }
    }
}
/* Weights to shared memory; the eight threads of a row are one part of l each. */
KX_DEV void kx_sm_softmax(struct kx_sm *s, int hf)
{
    kx_u k0 = kx_tid() & 7u, i, j;

    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        float t = kx_max(kx_max(s->s[i][0], s->s[i][1]), kx_max(s->s[i][2], s->s[i][3])), mm, c, x;

        t = kx_max(t, kx_shfl_xor_f(t, 4));
        t = kx_max(t, kx_shfl_xor_f(t, 1));
        t = kx_max(t, kx_shfl_xor_f(t, 2));
        mm = kx_max(s->m[i], t);
        c = kx_at_corr(s->m[i], mm);
        x = mm == KX_AT_NONE ? 0.0f : mm; /* -inf - -inf is no number */
        s->m[i] = mm;
        s->l[i] = s->l[i] * c;
        KX_UNROLL
        for (j = 0u; j < 4u; j++) {
            float p = kx_at_exp(s->s[i][j] - x);

            s->l[i] = s->l[i] + p;
            s->p[KX_SROW(i) * KX_SPW + k0 + 8u * j] = kx_sm_half(p, hf);
        }
        if (k0 == 0u)
            s->c[KX_SROW(i)] = c;
    }
}
/* thread: rows tid / 16 + 8 i, columns 64 ch + 4 (tid % 16) */
KX_DEV void kx_sm_pv(const struct kx_av *v, struct kx_sm *s, kx_u ty, int vec)
{
    kx_u r0 = kx_tid() >> 4, c4 = (kx_tid() & 15u) * 4u, ch, i, k;

    KX_UNROLL
    for (ch = 0u; ch < KX_SN; ch++) {
        if (ch * 64u >= s->hd)
            break;
        kx_sm_chunk(v, s, v->v, ch, ty, vec);
        KX_UNROLL
        for (i = 0u; i < KX_SR; i++) {
            float c = s->c[r0 + 8u * i];

            s->a[i][ch][0] = s->a[i][ch][0] * c;
            s->a[i][ch][1] = s->a[i][ch][1] * c;
            s->a[i][ch][2] = s->a[i][ch][2] * c;
            s->a[i][ch][3] = s->a[i][ch][3] * c;
        }
        KX_UNROLL
        for (k = 0u; k < KX_ST; k += 4u) {
            struct kx_f4 x[4];
            kx_u j;

            KX_UNROLL
            for (j = 0u; j < 4u; j++)
                x[j] = *(const struct kx_f4 *)(s->t + (k + j) * KX_SKW + c4);
            KX_UNROLL
            for (i = 0u; i < KX_SR; i++) {
                struct kx_f4 p = *(const struct kx_f4 *)(s->p + (r0 + 8u * i) * KX_SPW + k);

                s->a[i][ch][0] = kx_fma(p.w, x[3].x, kx_fma(p.z, x[2].x, kx_fma(p.y, x[1].x, kx_fma(p.x, x[0].x, s->a[i][ch][0]))));
                s->a[i][ch][1] = kx_fma(p.w, x[3].y, kx_fma(p.z, x[2].y, kx_fma(p.y, x[1].y, kx_fma(p.x, x[0].y, s->a[i][ch][1]))));
                s->a[i][ch][2] = kx_fma(p.w, x[3].z, kx_fma(p.z, x[2].z, kx_fma(p.y, x[1].z, kx_fma(p.x, x[0].z, s->a[i][ch][2]))));
                s->a[i][ch][3] = kx_fma(p.w, x[3].w, kx_fma(p.z, x[2].w, kx_fma(p.y, x[1].w, kx_fma(p.x, x[0].w, s->a[i][ch][3]))));
            }
        }
    }
}
/* l of row i of this thread, all parts. */
KX_DEV float kx_sm_l(const struct kx_sm *s, kx_u i)
{
    float l = s->l[i];

    l = l + kx_shfl_xor_f(l, 4);
    l = l + kx_shfl_xor_f(l, 2);
    l = l + kx_shfl_xor_f(l, 1);
    return l;
}
/* Factors of a row for the threads that own its values: old, new, 1 / l, and in p which of both
 * there are (2: before, 1: now). */
KX_DEV void kx_sm_row(struct kx_sm *s, kx_u i, float wo, float wn, int what)
{
    kx_u r = KX_SROW(i);

    if ((kx_tid() & 7u) == 0u) {
        s->c[r] = wo;
        s->c[KX_SM + r] = wn;
        s->c[2u * KX_SM + r] = s->bl[i] == 0.0f ? 0.0f : kx_div(1.0f, s->bl[i]);
        s->p[r] = kx_i2f(what);
    }
}
/* The split joins those before (v->sums); after the last one all sums are in a. */
KX_DEV void kx_sm_fold(const struct kx_av *v, struct kx_sm *s, int last)
{
    kx_u i, j, ch;

    kx_sync();
    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        float l = kx_sm_l(s, i), wo = 0.0f, wn = 0.0f;
        int old = !(s->bl[i] == 0.0f), now = !(l == 0.0f); /* NaN counts */

        if (now && old) {
            kx_at_fold(&s->bm[i], &s->bl[i], s->m[i], l, &wo, &wn);
        } else if (now) {
            s->bm[i] = s->m[i];
            s->bl[i] = l;
        }
        kx_sm_row(s, i, wo, wn, old * 2 + now);
    }
    kx_sync();
    KX_UNROLL
    for (i = 0u; i < KX_SR; i++) {
        kx_u r = (kx_tid() >> 4) + 8u * i;
        int now = s->p[r] == 1.0f || s->p[r] == 3.0f, old = s->p[r] >= 2.0f;
        float wo = s->c[r], wn = s->c[KX_SM + r];

        if (kx_av_has(v, r) && (old || (now && !last))) {
            float *p = (float *)v->sums + kx_av_vec(v, r) * s->hd;

            KX_UNROLL
            for (ch = 0u; ch < KX_SN; ch++) {
                KX_UNROLL
                for (j = 0u; j < 4u; j++) {
                    kx_u col = ch * 64u + (kx_tid() & 15u) * 4u + j;

                    if (col < s->hd) {
                        float x = s->a[i][ch][j];

                        if (old)
                            x = now ? kx_fma(x, wn, p[col] * wo) : p[col];
                        if (last)
                            s->a[i][ch][j] = x;
                        else if (now)
                            p[col] = x;
                    }
                }
            }
        }
    }
}
/* Without splits: what was summed is all. */
KX_DEV void kx_sm_sum(struct kx_sm *s)
{
    kx_u i;

    kx_sync();
    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        s->bl[i] = kx_sm_l(s, i);
        kx_sm_row(s, i, 0.0f, 1.0f, 1);
    }
    kx_sync();
}
/* part: sums of split v->split to part_a, else the finished rows to out. */
KX_DEV void kx_sm_store(const struct kx_av *v, const struct kx_sm *s, int part)
{
    kx_u i, j, ch;

    KX_UNROLL
    for (i = 0u; i < KX_SR; i++) {
        kx_u r = (kx_tid() >> 4) + 8u * i;

        if (kx_av_has(v, r)) {
            kx_p vec = kx_av_vec(v, r);
            float inv = s->c[2u * KX_SM + r];

            KX_UNROLL
            for (ch = 0u; ch < KX_SN; ch++) {
                KX_UNROLL
                for (j = 0u; j < 4u; j++) {
                    kx_u col = ch * 64u + (kx_tid() & 15u) * 4u + j;

                    if (col < s->hd && part)
                        ((float *)v->part_a)[(vec * v->n_splits + v->split) * s->hd + col] = s->a[i][ch][j];
                    else if (col < s->hd)
                        kx_av_put(v, vec * s->hd + col, kx_at_done(s->a[i][ch][j], inv));
                }
            }
        }
    }
}
/* A split's state to part_*, or (it is the only one) the rows themselves. */
KX_DEV void kx_sm_split(const struct kx_av *v, struct kx_sm *s)
{
    kx_u i;

    kx_sm_sum(s);
    KX_UNROLL
    for (i = 0u; i < KX_SQ; i++) {
        kx_u r = KX_SROW(i);

        if ((kx_tid() & 7u) == 0u && v->n_splits > 1u && kx_av_has(v, r))
            kx_av_part(v, r, s->m[i], s->bl[i]);
    }
    kx_sm_store(v, s, v->n_splits > 1u);
}
