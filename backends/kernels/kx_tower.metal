/* kx_tower.metal - the kernels of eyes and ears for Metal: right and plain, not yet fast. Every
 * thread works alone; sums are taken in the order of be_ktower.h, so the bits are those of every other
 * device (but for rotation, whose angles Metal takes without f64).
 *
 * Threads (x, y): act glu affine conv1d column, row - unfold value, window - rope2d pair of the
 * row, row - attn_local head, row. */

KX_DEV void kxt_act(constant kx_act &a, kx_u x, kx_u y)
{
    ulong at = ulong(y) * a.k + x;
    float v;

    if (y >= a.n || x >= a.k)
        return;
    v = kx_act1(a.kind, kxr_get(a.x, a.x_t, at), a.lo, a.hi);
    kxr_put(a.out, a.out_t, at, a.add ? kxr_get(a.add, a.add_t, at) + v : v);
}
KX_DEV void kxt_glu(constant kx_glu &a, kx_u x, kx_u y)
{
    ulong from = ulong(y) * 2u * a.k + x;

    if (y < a.n && x < a.k)
        kxr_put(a.out, a.out_t, ulong(y) * a.k + x, kx_gate(kxr_get(a.x, a.x_t, from), kxr_get(a.x, a.x_t, from + a.k)));
}
KX_DEV void kxt_affine(constant kx_affine &a, kx_u x, kx_u y)
{
    ulong at = ulong(y) * a.k + x;
    float v;

    if (y >= a.n || x >= a.k)
        return;
    v = kxr_get(a.x, a.x_t, at) - KX_AT(const float, a.sub)[x];
    kxr_put(a.x, a.x_t, at, v * KX_AT(const float, a.mul)[x]);
}
/* The first half of a head's pairs turn by pos_x. */
KX_DEV void kxt_rope2d(constant kx_rope2d &a, kx_u x, kx_u y)
{
    kx_u pairs = a.head_dim / 4u, p = x % (2u * pairs), i = p % pairs;
    ulong at = (ulong(y) * a.n_heads + x / (2u * pairs)) * a.head_dim + p / pairs * (2u * pairs) + i;
    float u, v, s, c;

    if (y >= a.n || x >= a.n_heads * 2u * pairs)
        return;
    u = kxr_get(a.x, a.x_t, at);
    v = kxr_get(a.x, a.x_t, at + pairs);
    kx_sincos(kx_i2f(KX_AT(const int, p < pairs ? a.pos_x : a.pos_y)[y]) * kxr_f64(a.freq, i), &s, &c);
    kxr_put(a.x, a.x_t, at, kx_fma(u, c, -(v * s)));
    kxr_put(a.x, a.x_t, at + pairs, kx_fma(v, c, u * s));
}
/* Lines and columns in 64 bits: a window may begin before the picture. */
KX_DEV void kxt_unfold(constant kx_unfold &a, kx_u x, kx_u y)
{
    kx_u area = a.k_h * a.k_w, place = a.ch_first ? x % area : x / a.n_ch, ch = a.ch_first ? x / area : x % a.n_ch;
    long l = (long(a.line) + y / a.n_x) * a.stride_h - a.pad_h + place / a.k_w;
    long c = long(y % a.n_x) * a.stride_w - a.pad_w + place % a.k_w;
    float v = 0.0f;

    if (y >= a.n || x >= a.k)
        return;
    if (l >= 0 && c >= 0 && l < long(a.height) && c < long(a.width))
        v = kxr_get(a.x, a.x_t, (ulong(l - a.x_line) * a.width + ulong(c)) * a.n_ch + ch);
    kxr_put(a.out, a.out_t, ulong(y) * a.k + x, v);
}
KX_DEV void kxt_conv1d(constant kx_conv1d &a, kx_u x, kx_u y)
{
    float v = 0.0f;

    if (y >= a.n || x >= a.k)
        return;
    for (kx_u j = y + 1u < a.taps ? a.taps - 1u - y : 0u; j < a.taps; j++)
        v = kx_fma(KX_AT(const float, a.w)[ulong(x) * a.taps + j], kxr_get(a.x, a.x_t, ulong(y + j + 1u - a.taps) * a.k + x), v);
    kxr_put(a.out, a.out_t, ulong(y) * a.k + x, v);
}
/* Query q of the row times the head at element at of p. */
KX_DEV float kxt_dot(constant kx_attn_local &a, ulong q, kx_p p, kx_u t, ulong at)
{
    float lane[32];

    for (kx_u l = 0; l < 32u; l++) {
        lane[l] = 0.0f;
        for (kx_u i = l; i < a.head_dim; i += 32u)
            lane[l] = kx_fma(kxr_get(a.q, a.x_t, q + i) * KX_AT(const float, a.q_scale)[i], kxr_get(p, t, at + i), lane[l]);
    }
    return kxr_fold(lane);
}
KX_DEV void kxt_attn_local(constant kx_attn_local &a, kx_u x, kx_u y)
{
    kx_u n = y + 1u < a.n_keys ? y + 1u : a.n_keys;
    ulong wide = ulong(a.n_heads) * a.head_dim, head = ulong(x) * a.head_dim, row = ulong(y) * wide + head;
    float w[KX_LOCAL_KEYS], most = -kx_i2f_bits(0x7f800000), sum = 0.0f;

    if (y >= a.n || x >= a.n_heads)
        return;
    for (kx_u d = 0; d < n; d++) {
        float by_key = kxt_dot(a, row, a.k, a.x_t, ulong(y - d) * wide + head);

        w[d] = kx_local_score(by_key, kxt_dot(a, row, a.rel, a.rel_t, ulong(d) * wide + head), a.k_scale, a.cap);
        most = kx_max(most, w[d]);
    }
    for (kx_u d = 0; d < n; d++) {
        w[d] = kx_exp(w[d] - most);
        sum = sum + w[d];
    }
    for (kx_u i = 0; i < a.head_dim; i++) {
        float o = 0.0f;

        for (kx_u d = 0; d < n; d++)
            o = kx_fma(w[d], kxr_get(a.v, a.x_t, ulong(y - d) * wide + head + i), o);
        kxr_put(a.out, a.out_t, row + i, kx_div(o, sum));
    }
}
