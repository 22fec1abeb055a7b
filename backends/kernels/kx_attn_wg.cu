/* kx_attn_wg.cu - attention inside packed sequences with wgmma: head_dim 64, exactly sm_90.
 *
 * The library defines KX_WR, rows of a block (128), before this text. A warpgroup takes 64 rows, its
 * queries and weights from registers, 64 keys a tile from a ring of KX_WS stages (keys, then
 * values, rows of 128 bytes in the swizzle wgmma reads). Behind a tile's scores the products with the values of the tile
 * before are asked for: they run while the weights are made. Stage t + 2 goes where t - 2 lay, which nobody reads behind
 * the barrier of t.
 *
 * Scores, weights and the parts of l lie in lanes as those of kx_attn_mma.cu: l is summed in the
 * same order. A negative scale turns the queries' signs, so the largest product is the largest
 * score.
 */
#define KX_WT 64u
#define KX_WS 4u
#define KX_W_PLANE (KX_WT * 128u)
#define KX_W_STAGE (2u * KX_W_PLANE)
#define KX_W_PIECES (256u / KX_WR) /* of keys, and of values, that a thread copies of a tile */

struct kx_aw {
    float s[32], a[32];
    float m[2], l[2][2], c[2];
    kx_u q[16], p[16]; /* queries; weights whose products are to come */
    kx_u lo, hi;     /* keys that both rows see */
    kx_u key0;       /* of the tile at hand */
    float scale;
    kx_p k, to_v, step; /* where this thread's next key lies; from there to its value, and 32 keys on */
    unsigned char *dst;
    unsigned long long ring, tile, values; /* as wgmma names them; values of the weights in p */
};
KX_DEV kx_u kx_aw_row(kx_u h) { return (kx_tid() >> 5) * 16u + ((kx_tid() & 31u) >> 2) + 8u * h; }

KX_DEV kx_u kx_aw_at(kx_u key0) { return (key0 / KX_WT & (KX_WS - 1u)) * KX_W_STAGE; }
/* The next tile on its way: this thread's pieces of two keys; zeros outside [klo, khi). */
KX_DEV void kx_aw_begin(const struct kx_av *v, struct kx_aw *s, kx_u key0)
{
    unsigned char *dst = s->dst + kx_aw_at(key0);
    kx_u i;

    KX_UNROLL
    for (i = 0u; i < KX_W_PIECES; i++) {
        kx_u key = key0 + (kx_tid() >> 3) + KX_WR / 4u * i;
        int ok = key >= v->klo && key < v->khi;

        kx_cp16_if(dst + KX_WR * 32u * i, (const void *)s->k, ok);
        kx_cp16_if(dst + KX_W_PLANE + KX_WR * 32u * i, (const void *)(s->k + s->to_v), ok);
        s->k += s->step;
    }
    kx_cp_commit();
}
KX_DEV void kx_aw_open(const struct kx_av *v, struct kx_aw *s, unsigned char *sm)
{
    kx_u t = kx_tid() & 3u, turn = v->scale < 0.0f ? 0x80008000u : 0u, first = v->klo / KX_WT * KX_WT, r = kx_tid() >> 3, p = kx_tid() & 7u, lo, hi, i, h;
    unsigned char *ring = kx_align1024(sm);

    s->ring = kx_wg_desc(ring);
    s->dst = ring + r * 128u + ((p ^ (r & 7u)) << 4);
    s->k = v->k + (kx_p)(first + r) * v->page_stride + p * 16u;
    s->to_v = v->v - v->k;
    s->step = KX_WR / 4u * v->page_stride;
    s->key0 = first - KX_WT;
    kx_aw_begin(v, s, first);
    kx_aw_begin(v, s, first + KX_WT);
    /* a scale of 0 must not meet the infinity of what is masked */
    s->scale = kx_max(kx_abs(v->scale) * 1.44269504f, 1e-30f);
    KX_UNROLL
    for (h = 0u; h < 2u; h++) {
        const kx_u *q = (const kx_u *)((const unsigned short *)v->q + kx_av_q(v, kx_aw_row(h), 64u)) + t;
        int has = kx_av_has(v, kx_aw_row(h));

        kx_av_span(v, kx_aw_row(h), &lo, &hi);
        s->lo = h > 0u && s->lo > lo ? s->lo : lo;
        s->hi = h > 0u && s->hi < hi ? s->hi : hi;
        KX_UNROLL
        for (i = 0u; i < 8u; i++)
            s->q[4u * (i >> 1) + 2u * (i & 1u) + h] = has ? q[4u * i] ^ turn : 0u;
        s->m[h] = KX_AT_NONE;
        s->l[h][0] = 0.0f;
        s->l[h][1] = 0.0f;
    }
    KX_UNROLL
    for (i = 0u; i < 32u; i++)
        s->a[i] = 0.0f;
}
/* The next tile has landed, the two behind it are on their way. */
KX_DEV void kx_aw_stage(const struct kx_av *v, struct kx_aw *s)
{
    kx_cp_wait(1);
    kx_proxy_fence();
    kx_sync();
    s->key0 += KX_WT;
    s->tile = kx_wg_step(s->ring, kx_aw_at(s->key0));
    kx_aw_begin(v, s, s->key0 + 2u * KX_WT);
}
KX_DEV void kx_aw_pv(struct kx_aw *s)
{
    kx_u kk;

    kx_wg_fence();
    KX_UNROLL
    for (kk = 0u; kk < 4u; kk++)
        kx_wgmma_f16_n64(s->a, s->p + 4u * kk, kx_wg_step(s->values, 2048u * kk), 1, 1);
    kx_wg_commit();
}
KX_DEV void kx_aw_qk(struct kx_aw *s, int first)
{
    kx_u kk;

    kx_wg_fence();
    KX_UNROLL
    for (kk = 0u; kk < 4u; kk++)
        kx_wgmma_f16_n64(s->s, s->q + 4u * kk, kx_wg_step(s->tile, 32u * kk), kk > 0u, 0);
    kx_wg_commit();
    if (first) {
        kx_wg_wait(0);
    } else {
        kx_aw_pv(s);
        kx_wg_wait(1);
    }
}
KX_DEV void kx_aw_mask(const struct kx_av *v, struct kx_aw *s)
{
    kx_u i, key = s->key0 + 2u * (kx_tid() & 3u), lo[2], hi[2];

    if (s->lo <= s->key0 && s->hi >= s->key0 + KX_WT)
        return;
    kx_av_span(v, kx_aw_row(0u), &lo[0], &hi[0]);
    kx_av_span(v, kx_aw_row(1u), &lo[1], &hi[1]);
    KX_UNROLL
    for (i = 0u; i < 32u; i++) {
        kx_u at = key + 8u * (i >> 2) + (i & 1u), h = i >> 1 & 1u;

        s->s[i] = at >= lo[h] && at < hi[h] ? s->s[i] : KX_AT_NONE;
    }
}
/* Weights are 2^(s scale - m scale), in one step where the second term is so small that its own rounding moves nothing;
 * the rows of a warp are of one sequence, so they may decide together. */
KX_DEV void kx_aw_softmax(struct kx_aw *s)
{
    float x[2];
    int small = 1;
    kx_u i, j, h;

    KX_UNROLL
    for (h = 0u; h < 2u; h++) {
        float t = KX_AT_NONE, mm;

        KX_UNROLL
        for (j = 0u; j < 8u; j++)
            t = kx_max(t, kx_max(s->s[4u * j + 2u * h], s->s[4u * j + 2u * h + 1u]));
        t = kx_max(t, kx_shfl_xor_f(t, 1));
        t = kx_max(t, kx_shfl_xor_f(t, 2));
        mm = kx_max(s->m[h], t);
        x[h] = mm == KX_AT_NONE ? 0.0f : mm; /* -inf - -inf is no number */
        s->c[h] = s->m[h] == mm ? 1.0f : kx_ex2(s->m[h] * s->scale - x[h] * s->scale);
        s->m[h] = mm;
        small = small && kx_abs(x[h] * s->scale) < 65536.0f;
    }
    if (kx_ballot(small) == 0xffffffffu) {
        x[0] = x[0] * s->scale;
        x[1] = x[1] * s->scale;
        KX_UNROLL
        for (i = 0u; i < 32u; i++)
            s->s[i] = kx_ex2(kx_fma(s->s[i], s->scale, -x[i >> 1 & 1u]));
    } else {
        KX_UNROLL
        for (i = 0u; i < 32u; i++)
            s->s[i] = kx_ex2((s->s[i] - x[i >> 1 & 1u]) * s->scale);
    }
    KX_UNROLL
    for (h = 0u; h < 2u; h++) {
        s->l[h][0] = s->l[h][0] * s->c[h];
        s->l[h][1] = s->l[h][1] * s->c[h];
        KX_UNROLL
        for (j = 0u; j < 8u; j++) {
            s->l[h][j & 1u] = s->l[h][j & 1u] + s->s[4u * j + 2u * h];
            s->l[h][j & 1u] = s->l[h][j & 1u] + s->s[4u * j + 2u * h + 1u];
        }
    }
}
/* The weights to p, once the products with those before are done. */
KX_DEV void kx_aw_keep(struct kx_aw *s, int first)
{
    kx_u i;

    if (!first)
        kx_wg_wait(0);
    if (!first && kx_ballot(s->c[0] == 1.0f && s->c[1] == 1.0f) != 0xffffffffu) {
        KX_UNROLL
        for (i = 0u; i < 32u; i++)
            s->a[i] = s->a[i] * s->c[i >> 1 & 1u];
    }
    KX_UNROLL
    for (i = 0u; i < 16u; i++)
        s->p[i] = kx_f2h2(s->s[2u * i], s->s[2u * i + 1u]);
    s->values = kx_wg_step(s->tile, KX_W_PLANE);
}
KX_DEV void kx_aw_store(const struct kx_av *v, struct kx_aw *s)
{
    kx_u j, h;

    kx_aw_pv(s);
    kx_wg_wait(0);
    KX_UNROLL
    for (h = 0u; h < 2u; h++) {
        float l = s->l[h][0] + s->l[h][1], inv;

        l = l + kx_shfl_xor_f(l, 2);
        l = l + kx_shfl_xor_f(l, 1);
        inv = l == 0.0f ? 0.0f : kx_div(1.0f, l);
        if (kx_av_has(v, kx_aw_row(h))) {
            kx_u *out = (kx_u *)((unsigned short *)v->out + kx_av_vec(v, kx_aw_row(h)) * 64u) + (kx_tid() & 3u);

            KX_UNROLL
            for (j = 0u; j < 8u; j++)
                out[4u * j] = kx_f2h2(kx_at_done(s->a[4u * j + 2u * h], inv), kx_at_done(s->a[4u * j + 2u * h + 1u], inv));
        }
    }
}
