
/* kx_linear.metal - the linear kernels for Metal: a SIMD group's lane takes one output element and
 * all its 8 slices, in the order of be_kargs.h, so the bits are those of every other device.
 * The format's KXL_* words stand in front (kx_linear_lib.cu). */
#define KXL_SEL(i, v0, v1, v2) ((i) == 0u ? (v0) : (i) == 1u ? (v1) : (v2))
#define KXL_UP16(x) (((x) + 15u) & ~15u)

KX_DEV const device uchar *kxl_plane(constant kx_linear &a, kx_u part, kx_u i, kx_u col, kx_u row_bytes)
{
    return KX_AT(const uchar, KXL_SEL(part, a.w[0][i], a.w[1][i], a.w[2][i])) + ulong(col) * row_bytes;
}

KX_DEV kx_u kxl_word(const device uchar *p)
{
    return kx_u(p[0]) | kx_u(p[1]) << 8 | kx_u(p[2]) << 16 | kx_u(p[3]) << 24;
}
KX_DEV float kxl_half(const device uchar *p)
{
    return kx_h2f(ushort(kx_u(p[0]) | kx_u(p[1]) << 8));
}

KX_DEV float kxl_x(kx_p x, kx_u t, ulong i)
{
    return t == KX_F16 ? kx_h2f(KX_AT(const ushort, x)[i]) : KX_AT(const float, x)[i];
}

#if KXL_QUANT
/* Block b of a row of x: its codes and sums of 32; returns the scale. Without codes they are made here. */
KX_DEV float kxl_act(constant kx_linear &a, kx_u row, kx_u b, thread int *x, thread int *xs)
{
    const kx_u n = KXL_SUPER ? 256u : 32u;
    float v[256];

    if (a.xq) {
        for (kx_u i = 0u; i < n; i++)
            x[i] = int(KX_AT(const char, a.xq)[ulong(row) * a.k + b * n + i]);
        for (kx_u j = 0u; j < n / 32u; j++)
            xs[j] = KX_AT(const int, a.xs)[ulong(row) * (a.k / 32u) + b * (n / 32u) + j];
        return KX_AT(const float, a.xd)[ulong(row) * (a.k / n) + b];
    }
    for (kx_u i = 0u; i < n; i++)
        v[i] = kxl_x(a.x, a.x_t, ulong(row) * a.k + b * n + i);
    return KXL_SUPER ? kxr_q8_k(v, x, xs) : kxr_q8_0(v, x, xs);
}
/* Code v of a sub-block, zero point taken off. */
KX_DEV int kxl_code(const device uchar *q, const device uchar *h, kx_u v)
{
#if KXL_CODE == 32
    return int(char(q[v]));
#else
    kx_u c = v < 16u ? q[v] & 15u : kx_u(q[v - 16u]) >> 4;
#if KXL_BITS == 4
    c |= (kxl_word(h) >> (8u * (v & 3u) + (v >> 2)) & 1u) << 4;
#elif KXL_BITS == 8
    c |= (kxl_word(h + 4u * (v >> 4)) >> (8u * (v & 3u) + 2u * (v >> 2 & 3u)) & 3u) << 4;
#endif
    return int(c) - KXL_ZERO;
#endif
}

/* Integer product of columns v0 .. v0 + n - 1 of a sub-block. */
KX_DEV int kxl_dot(const device uchar *q, const device uchar *h, const thread int *x, kx_u v0, kx_u n)
{
    int c = 0;

    for (kx_u v = v0; v < v0 + n; v++)
        c += kxl_code(q, h, v) * x[v];
    return c;
}
#else
KX_DEV float kxl_value(const device uchar *q, kx_u c)
{
#if KXL_CODE == 4
    return kx_i2f_bits(int(kxl_word(q + 4u * c)));
#elif KXL_BF16
    return kx_bf2f(ushort(kx_u(q[2u * c]) | kx_u(q[2u * c + 1u]) << 8));
#else
    return kxl_half(q + 2u * c);
#endif
}
#endif

/* rounded to 10 bits behind the point, half away from 0: Metal has no such products */
KX_DEV float kxl_tf32(float f)
{
    const kx_u v = kx_u(kx_f2i_bits(f));

    return (v & 0x7f800000u) == 0x7f800000u ? f : kx_i2f_bits(int(v + 0x1000u & ~0x1fffu));
}

/* x[row] . W[part][col]; tf32: of both rounded, floats only */
KX_DEV float kxl_sum(constant kx_linear &a, kx_u part, kx_u row, kx_u col, bool tf32)
{
    float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    const kx_u k = a.k;
#if !KXL_QUANT
    const device uchar *q = kxl_plane(a, part, 0u, col, KXL_UP16(k * KXL_CODE));

    for (kx_u c = 0u; c < (k + 7u & ~7u); c++) {
        const kx_u i = c >> 3 & 7u;
        /* columns past the end count as zeros */
        const float w = c < k ? kxl_value(q, c) : 0.0f;
        const float x = c < k ? kxl_x(a.x, a.x_t, ulong(row) * k + c) : 0.0f;

        s[i] = tf32 ? kx_fma(kxl_tf32(w), kxl_tf32(x), s[i]) : kx_fma(w, x, s[i]);
    }
#else
    const kx_u nb = k / 32u, nd = KXL_SUPER ? nb / 8u : nb;
    const device uchar *q = kxl_plane(a, part, 0u, col, nb * KXL_CODE);
    const device uchar *d = kxl_plane(a, part, 1u, col, KXL_UP16(nd * (KXL_MIN ? 4u : 2u)));
    const device uchar *h = q;
    int x[256], xs[8];
#if KXL_BITS
    h = kxl_plane(a, part, KXL_SUPER ? 3u : 2u, col, KXL_UP16(nb * KXL_BITS));
#endif
#if KXL_SUPER
    const device uchar *sub = kxl_plane(a, part, 2u, col, nd * 16u);

    for (kx_u b = 0u; b < nd; b++) {
        const float xd = kxl_act(a, row, b, x, xs);
        int sum = 0, low = 0;

        for (kx_u j = 0u; j < 8u; j++) {
            const kx_u i = 8u * b + j;
#if KXL_MIN
            sum += int(sub[16u * b + 2u * j]) * kxl_dot(q + 16u * i, h + KXL_BITS * i, x + 32u * j, 0u, 32u);
            low += int(sub[16u * b + 2u * j + 1u]) * xs[j];
#else
            sum += int(char(sub[16u * b + 2u * j])) * kxl_dot(q + 16u * i, h + KXL_BITS * i, x + 32u * j, 0u, 16u);
            sum += int(char(sub[16u * b + 2u * j + 1u])) * kxl_dot(q + 16u * i, h + KXL_BITS * i, x + 32u * j, 16u, 16u);
#endif
        }
        s[b & 7u] = kx_fma(kxl_half(d + (KXL_MIN ? 4u : 2u) * b) * xd, kx_i2f(sum), s[b & 7u]);
#if KXL_MIN
        s[b & 7u] = kx_fma(-(kxl_half(d + 4u * b + 2u) * xd), kx_i2f(low), s[b & 7u]);
#endif
    }
#else
    for (kx_u b = 0u; b < nb; b++) {
        const float xd = kxl_act(a, row, b, x, xs);
        const int sum = kxl_dot(q + KXL_CODE * b, h + KXL_BITS * b, x, 0u, 32u);

        s[b & 7u] = kx_fma(kxl_half(d + (KXL_MIN ? 4u : 2u) * b) * xd, kx_i2f(sum), s[b & 7u]);
#if KXL_MIN
        s[b & 7u] = kx_fma(kxl_half(d + 4u * b + 2u) * xd, kx_i2f(xs[0]), s[b & 7u]);
#endif
    }
#endif
#endif
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

KX_DEV float kxl_bias(constant kx_linear &a, kx_u part, kx_u col, float v)
{
    const kx_p b = KXL_SEL(part, a.b[0], a.b[1], a.b[2]);

    return b ? v + KX_AT(const float, b)[col] : v;
}

KX_DEV void kxl_put(constant kx_linear &a, kx_u part, ulong at, float v)
{
    const kx_p out = KXL_SEL(part, a.out[0], a.out[1], a.out[2]);

    if (a.out_t == KX_F16)
        KX_AT(ushort, out)[at] = kx_f2h(v);
    else
        KX_AT(float, out)[at] = v;
}

/* Element e of row: columns of all parts, one after the other. */
KX_DEV void kxl_element(constant kx_linear &a, kx_u e, kx_u row, bool tf32)
{
    kx_u part = 0u, n = a.n_out[0];
    float v;

    while (e >= n && part + 1u < a.n_parts) {
        e -= n;
        part++;
        n = KXL_SEL(part, a.n_out[0], a.n_out[1], a.n_out[2]);
    }
    if (e >= n || row >= a.n)
        return;
    v = kxl_bias(a, part, e, kxl_sum(a, part, row, e, tf32));
    if (a.epi == KX_EPI_GELU_ERF)
        v = kx_gelu_erf(v);
    else if (a.epi == KX_EPI_GELU_TANH)
        v = kx_gelu_tanh(v);
    else if (a.epi == KX_EPI_ADD) {
        const kx_p out = KXL_SEL(part, a.out[0], a.out[1], a.out[2]);

        v = (a.out_t == KX_F16 ? kx_h2f(KX_AT(const ushort, out)[ulong(row) * n + e]) : KX_AT(const float, out)[ulong(row) * n + e]) + v;
    }
    kxl_put(a, part, ulong(row) * n + e, v);
    if (a.mul) /* one row, one part */
        kxl_put(a, part, e, kxl_x(a.out[0], a.out_t, e) * (a.mul_scale * kxl_x(a.mul, a.mul_t, e)));
}

KX_DEV void kxl_gated(constant kx_linear &a, kx_u e, kx_u row, bool tf32)
{
    float g, u;

    if (e >= a.n_out[0] || row >= a.n)
        return;
    g = kx_gelu_tanh(kxl_bias(a, 0u, e, kxl_sum(a, 0u, row, e, tf32)));
    u = kxl_bias(a, 1u, e, kxl_sum(a, 1u, row, e, tf32));
    kxl_put(a, 0u, ulong(row) * a.n_out[0] + e, g * u);
}
