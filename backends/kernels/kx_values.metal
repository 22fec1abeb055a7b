/* kx_values.metal - values of activation rows, sums over 32 lanes and f64 tables, for the libraries
 * of rows and of towers. */

KX_DEV float kxr_get(kx_p x, kx_u t, ulong i)
{
    return t == KX_F16 ? kx_h2f(KX_AT(const ushort, x)[i]) : KX_AT(const float, x)[i];
}
KX_DEV void kxr_put(kx_p x, kx_u t, ulong i, float v)
{
    if (t == KX_F16)
        KX_AT(ushort, x)[i] = kx_f2h(v);
    else
        KX_AT(float, x)[i] = v;
}
KX_DEV float kxr_round(float v, kx_u t)
{
    return t == KX_F16 ? kx_h2f(kx_f2h(v)) : v;
}
/* 32 lanes as a butterfly. */
KX_DEV float kxr_fold(const thread float *v)
{
    float a[32], b[32];

    for (kx_u i = 0; i < 32u; i++)
        a[i] = v[i];
    for (kx_u m = 16u; m; m /= 2u) {
        for (kx_u i = 0; i < 32u; i++)
            b[i] = a[i] + a[i ^ m];
        for (kx_u i = 0; i < 32u; i++)
            a[i] = b[i];
    }
    return a[0];
}
/* An f64 that holds an f32 (be_kargs.h, kx_rope). */
KX_DEV float kxr_f64(kx_p p, kx_u i)
{
    kx_u lo = KX_AT(const kx_u, p)[2u * i], hi = KX_AT(const kx_u, p)[2u * i + 1u];
    int e = int(hi >> 20 & 0x7ffu) - 896;

    if (e <= 0)
        return 0.0f;
    return kx_i2f_bits(int((hi & 0x80000000u) | kx_u(e) << 23 | (hi & 0xfffffu) << 3 | lo >> 29));
}
