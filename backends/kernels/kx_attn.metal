/* kx_attn.metal - attention for Metal: a SIMD group is one (query row, head), a lane a
 * key of the tile for the scores and every 32nd column for the values. Sums are taken in the
 * order of kx_attn_math.h and the tile sizes of the device kernels, so one pass and splits
 * give the same bits. Right and plain, not yet fast.
 *
 * A kernel says with literals: keys of a tile, their type, whether products are of halves
 * (hf), whether parts of l are those of tensor cores (mma), whether e^x is by 2^x (base2).
 */
struct kx_mv {
    kx_p q, out, k, v, part_m, part_l, part_a;
    const device int *pages; /* paged */
    kx_p page_stride;
    kx_u scales_at, page_tokens, kv_head, hd, row, head, n_heads, q_ld, kv_ld, first, lo, hi, split, n_splits, x_t;
    float scale;
};
struct kx_ms {
    float s[2], a[16], m, l, bm, bl, b[16];
    kx_u key0;
};

KX_DEV float kx_atm_x(kx_p p, kx_u t, ulong i)
{
    return t == KX_F16 ? kx_h2f(KX_AT(const ushort, p)[i]) : KX_AT(const float, p)[i];
}
KX_DEV float kx_atm_half(float x, bool hf) { return hf ? kx_h2f(kx_f2h(x)) : x; }
/* Column c of the key (or value) at position p. type: enum be_dtype; packed rows are x_t. */
KX_DEV float kx_atm_kv(thread const kx_mv &v, kx_p plane, kx_u p, kx_u c, kx_u type, bool packed)
{
    kx_p page;
    ulong at;

    if (packed)
        return kx_atm_x(plane, v.x_t, ulong(v.first + p) * v.kv_ld + v.kv_head * v.hd + c);
    page = plane + kx_p(kx_u(v.pages[p / v.page_tokens])) * v.page_stride;
    at = (ulong(v.kv_head) * v.page_tokens + p % v.page_tokens) * v.hd + c;
    if (type == 0u)
        return KX_AT(const float, page)[at];
    if (type == 1u)
        return kx_h2f(KX_AT(const ushort, page)[at]);
    return kx_atm_half(float(int(KX_AT(const char, page)[at])) * kx_h2f(KX_AT(const ushort, page + v.scales_at)[at / 32u]), true);
}
KX_DEV bool kx_atm_open(thread kx_mv &v, constant kx_attn &a, uint3 at, kx_u rows_tile)
{
    const device kx_qtile *t = KX_AT(const kx_qtile, a.tiles) + at.x / rows_tile;
    const device kx_seq *s = KX_AT(const kx_seq, a.seqs) + t->seq;
    kx_u r = at.x % rows_tile, p;

    if (r >= t->n)
        return false;
    p = s->pos0 + (t->r0 + r - s->row0);
    v.q = a.q;
    v.out = a.out;
    v.k = a.kv.k;
    v.v = a.kv.v;
    v.part_m = a.part_m;
    v.part_l = a.part_l;
    v.part_a = a.part_a;
    v.pages = KX_AT(const int, a.pages) + s->page0;
    v.page_stride = a.kv.page_stride;
    v.scales_at = a.kv.scales_at;
    v.page_tokens = a.kv.page_tokens;
    v.hd = a.kv.head_dim;
    v.row = t->r0 + r;
    v.head = at.y;
    v.kv_head = at.y / (a.n_heads / a.kv.n_kv_heads);
    v.n_heads = a.n_heads;
    v.q_ld = a.n_heads * v.hd;
    v.kv_ld = 0u;
    v.first = 0u;
    v.lo = kx_at_lo(p, a.window);
    v.hi = p + 1u;
    v.split = at.z;
    v.n_splits = a.n_splits;
    v.x_t = a.x_t;
    v.scale = a.scale;
    return true;
}
KX_DEV bool kx_atm_open_packed(thread kx_mv &v, constant kx_attn_packed &a, uint3 at, kx_u rows_tile)
{
    const device kx_qtile *t = KX_AT(const kx_qtile, a.tiles) + at.x / rows_tile;
    const device kx_u *off = KX_AT(const kx_u, a.off) + t->seq;
    kx_u r = at.x % rows_tile, p;

    if (r >= t->n)
        return false;
    p = t->r0 + r - off[0];
    v.q = a.q;
    v.out = a.out;
    v.k = a.k;
    v.v = a.v;
    v.part_m = v.part_l = v.part_a = 0u;
    v.pages = KX_AT(const int, a.off);
    v.page_stride = 0u;
    v.scales_at = 0u;
    v.page_tokens = 1u;
    v.hd = a.head_dim;
    v.row = t->r0 + r;
    v.head = at.y;
    v.kv_head = at.y / (a.n_heads / a.n_kv_heads);
    v.n_heads = a.n_heads;
    v.q_ld = a.q_stride;
    v.kv_ld = a.kv_stride;
    v.first = off[0];
    v.lo = kx_at_lo_packed(p, a.radius);
    v.hi = kx_at_hi_packed(p, a.radius, off[1] - off[0]);
    v.split = 0u;
    v.n_splits = 1u;
    v.x_t = a.x_t;
    v.scale = a.scale;
    return true;
}
KX_DEV void kx_atm_row(thread kx_ms &s)
{
    s.bm = KX_AT_NONE;
    s.bl = 0.0f;
    for (kx_u i = 0u; i < 16u; i++)
        s.b[i] = 0.0f;
}
KX_DEV void kx_atm_fresh(thread kx_ms &s)
{
    s.m = KX_AT_NONE;
    s.l = 0.0f;
    for (kx_u i = 0u; i < 16u; i++)
        s.a[i] = 0.0f;
}
KX_DEV bool kx_atm_sees(thread const kx_mv &v, kx_u p) { return p >= v.lo && p < v.hi; }
/* Lane: keys lane and lane + 32 of the tile. */
KX_DEV void kx_atm_qk(thread const kx_mv &v, thread kx_ms &s, kx_u lane, kx_u tile, kx_u type, bool packed, bool hf)
{
    for (kx_u i = 0u; i < 2u; i++) {
        kx_u j = lane + 32u * i, p = s.key0 + j;

        s.s[i] = 0.0f;
        if (j >= tile || !kx_atm_sees(v, p))
            continue;
        for (kx_u c = 0u; c < v.hd; c++)
            s.s[i] = kx_fma(kx_atm_half(kx_atm_x(v.q, v.x_t, ulong(v.row) * v.q_ld + v.head * v.hd + c), hf),
                            kx_atm_kv(v, v.k, p, c, type, packed), s.s[i]);
    }
}
/* The chain of each score goes on with the terms of relative positions. */
KX_DEV void kx_atm_rel(thread const kx_mv &v, constant kx_attn_rel &a, thread kx_ms &s, kx_u lane, kx_u tile)
{
    kx_u row = v.row - v.first;

    for (kx_u i = 0u; i < 2u; i++) {
        kx_u j = lane + 32u * i, p = s.key0 + j;
        ulong at;

        if (j >= tile || !kx_atm_sees(v, p))
            continue;
        at = ulong(KX_AT(const kx_u, a.rel)[row + a.reach - p]) * a.rel_stride + v.head * v.hd;
        for (kx_u c = 0u; c < v.hd; c++) {
            if (a.rk)
                s.s[i] = kx_fma(kx_atm_x(v.q, v.x_t, ulong(v.row) * v.q_ld + v.head * v.hd + c), kx_atm_x(a.rk, v.x_t, at + c), s.s[i]);
            if (a.rq)
                s.s[i] = kx_fma(kx_atm_kv(v, v.k, p, c, 0u, true), kx_atm_x(a.rq, v.x_t, at + c), s.s[i]);
        }
    }
}
KX_DEV void kx_atm_mask(thread const kx_mv &v, thread kx_ms &s, kx_u lane, kx_u tile, bool base2)
{
    float scale = base2 ? v.scale * 1.44269504f : v.scale;

    for (kx_u i = 0u; i < 2u; i++) {
        kx_u j = lane + 32u * i;

        s.s[i] = j < tile && kx_atm_sees(v, s.key0 + j) ? s.s[i] * scale : KX_AT_NONE;
    }
}
KX_DEV float kx_atm_exp(float x, bool base2) { return base2 ? precise::exp2(x) : kx_at_exp(x); }
KX_DEV void kx_atm_softmax(thread kx_ms &s, kx_u lane, kx_u tile, bool mma, bool base2, bool hf)
{
    float t = kx_max(s.s[0], s.s[1]), mm, c, x;

    for (ushort d = 16; d > 0; d /= 2)
        t = kx_max(t, simd_shuffle_xor(t, d));
    mm = kx_max(s.m, t);
    c = s.m == mm ? 1.0f : kx_atm_exp(s.m - mm, base2);
    x = mm == KX_AT_NONE ? 0.0f : mm;
    s.m = mm;
    s.l = s.l * c;
    for (kx_u i = 0u; i < 2u; i++)
        s.s[i] = kx_atm_exp(s.s[i] - x, base2);
    for (kx_u j = 0u; j < tile; j++) { /* lanes of one part hold the same l */
        float p = simd_shuffle(j < 32u ? s.s[0] : s.s[1], ushort(j % 32u));

        if ((mma ? KX_AT_PART_MMA(j) : KX_AT_PART_SIMT(j)) == (lane & 7u))
            s.l = s.l + p;
    }
    for (kx_u i = 0u; i < 2u; i++)
        s.s[i] = kx_atm_half(s.s[i], hf);
    for (kx_u i = 0u; i < 16u; i++)
        s.a[i] = s.a[i] * c;
}
KX_DEV void kx_atm_pv(thread const kx_mv &v, thread kx_ms &s, kx_u lane, kx_u tile, kx_u type, bool packed)
{
    for (kx_u j = 0u; j < tile; j++) {
        float p = simd_shuffle(j < 32u ? s.s[0] : s.s[1], ushort(j % 32u));

        if (!kx_atm_sees(v, s.key0 + j))
            continue;
        for (kx_u i = 0u; i < 16u; i++)
            if (lane + 32u * i < v.hd)
                s.a[i] = kx_fma(p, kx_atm_kv(v, v.v, s.key0 + j, lane + 32u * i, type, packed), s.a[i]);
    }
}
KX_DEV float kx_atm_l(float l)
{
    l = l + simd_shuffle_xor(l, ushort(4));
    l = l + simd_shuffle_xor(l, ushort(2));
    return l + simd_shuffle_xor(l, ushort(1));
}
/* (m, l, a) joins the row: kx_at_fold. */
KX_DEV void kx_atm_join(thread kx_ms &s, float m, float l)
{
    float wo, wn, mm;

    if (l == 0.0f)
        return;
    if (s.bl == 0.0f) {
        s.bm = m;
        s.bl = l;
        for (kx_u i = 0u; i < 16u; i++)
            s.b[i] = s.a[i];
        return;
    }
    mm = kx_max(s.bm, m);
    wo = kx_at_corr(s.bm, mm);
    wn = kx_at_corr(m, mm);
    s.bl = kx_fma(l, wn, s.bl * wo);
    s.bm = mm;
    for (kx_u i = 0u; i < 16u; i++)
        s.b[i] = kx_fma(s.a[i], wn, s.b[i] * wo);
}
KX_DEV void kx_atm_put(kx_p out, kx_u t, ulong at, float x)
{
    if (t == KX_F16)
        KX_AT(ushort, out)[at] = kx_f2h(x);
    else
        KX_AT(float, out)[at] = x;
}
KX_DEV void kx_atm_store(thread const kx_mv &v, thread const kx_ms &s, kx_u lane)
{
    float inv = s.bl == 0.0f ? 0.0f : kx_div(1.0f, s.bl);

    for (kx_u i = 0u; i < 16u; i++)
        if (lane + 32u * i < v.hd)
            kx_atm_put(v.out, v.x_t, (ulong(v.row) * v.n_heads + v.head) * v.hd + lane + 32u * i, kx_at_done(s.b[i], inv));
}
/* The split's state to part_*, or (it is the only one) the row itself. */
KX_DEV void kx_atm_split(thread const kx_mv &v, thread kx_ms &s, kx_u lane)
{
    ulong at = (ulong(v.row) * v.n_heads + v.head) * v.n_splits + v.split;
    float l = kx_atm_l(s.l);

    if (v.n_splits == 1u) {
        kx_atm_join(s, s.m, l);
        kx_atm_store(v, s, lane);
        return;
    }
    if (lane == 0u) {
        KX_AT(float, v.part_m)[at] = s.m + 0.0f;
        KX_AT(float, v.part_l)[at] = l;
    }
    for (kx_u i = 0u; i < 16u; i++)
        if (lane + 32u * i < v.hd)
            KX_AT(float, v.part_a)[at * v.hd + lane + 32u * i] = s.a[i];
}
/* Split i of a row (merge kernel) to a. */
KX_DEV void kx_atm_part(constant kx_attn &a, thread kx_ms &s, ulong vec, kx_u i, kx_u lane)
{
    ulong at = vec * a.n_splits + i;
    float l = KX_AT(const float, a.part_l)[at];

    if (l == 0.0f)
        return;
    for (kx_u c = 0u; c < 16u; c++)
        if (lane + 32u * c < a.kv.head_dim)
            s.a[c] = KX_AT(const float, a.part_a)[at * a.kv.head_dim + lane + 32u * c];
    kx_atm_join(s, KX_AT(const float, a.part_m)[at], l);
}
