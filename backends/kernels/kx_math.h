/* kx_math.h - the functions whose bits must not depend on who computes them.
 *
 * The same text stands in the generated libraries (after kx_prelude.cu) and is
 * compiled into the CPU executor (be_kref.h defines KX_DEV kx_fma ... first), so device
 * and oracle agree bit for bit. Only + - * kx_fma, comparisons and bit casts: no libm.
 */
/* e^x: x = n ln 2 + r, |r| <= ln2/2; degree-6 polynomial (Taylor coefficients; its
 * truncation 1.2e-7 is relative), exact powers of two. x < -87.3 gives 0, x > 88.7 infinity, NaN
 * stays. */
KX_DEV float kx_exp(float x)
{
    /* to the nearest integer by adding 1.5 * 2^23, half to even: conversions are slow on devices */
    float t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f, r, p;
    int i = kx_f2i_bits(t) - 0x4B400000;

    if (x < -87.3f)
        return 0.0f;
    if (x > 88.7f)
        return kx_i2f_bits(0x7f800000);
    if (!(x == x))
        return x;
    r = kx_fma(n, -0.693145752f, x);
    r = kx_fma(n, -1.42860677e-6f, r);
    p = kx_fma(r, 1.3888889e-3f, 8.3333333e-3f);
    p = kx_fma(p, r, 4.1666668e-2f);
    p = kx_fma(p, r, 1.6666667e-1f);
    p = kx_fma(p, r, 0.5f);
    p = kx_fma(p, r, 1.0f);
    p = kx_fma(p, r, 1.0f);
    /* two factors: 2^i alone may be out of range at the ends */
    return p * kx_i2f_bits((i / 2 + 127) << 23) * kx_i2f_bits((i - i / 2 + 127) << 23);
}

/* sin and cos of x, |x| <= 2^31 (beyond: NaN), to within 0.51 units in the last place: x = n pi/2 + r,
 * |r| <= pi/4, Taylor to r^13 and r^14 (truncation below 1e-13). Metal has no f64: there pi/2 comes
 * in three f32 parts, good to 2e-7 for |x| < 2^17. */
#ifndef __METAL_VERSION__
KX_DEV void kx_sincos(float x, float *out_s, float *out_c)
{
    double n, r, z, s, c;
    float fs, fc;
    int k;

    if (!(kx_abs(x) <= 2147483648.0f)) {
        *out_s = *out_c = kx_i2f_bits(0x7fc00000);
        return;
    }
    n = kx_drint((double)x * 0.63661977236758134308);
    r = kx_dfma(n, -1.5707963267948966192, (double)x);
    r = kx_dfma(n, -6.1232339957367658868e-17, r);
    z = r * r;
    s = kx_dfma(z, 1.6059043836821613341e-10, -2.5052108385441718775e-8);
    s = kx_dfma(z, s, 2.7557319223985892511e-6);
    s = kx_dfma(z, s, -1.9841269841269841253e-4);
    s = kx_dfma(z, s, 8.3333333333333332177e-3);
    s = kx_dfma(z, s, -1.6666666666666665741e-1);
    s = kx_dfma(z * s, r, r);
    c = kx_dfma(z, -1.1470745597729724714e-11, 2.0876756987868100187e-9);
    c = kx_dfma(z, c, -2.7557319223985888276e-7);
    c = kx_dfma(z, c, 2.4801587301587301566e-5);
    c = kx_dfma(z, c, -1.3888888888888889419e-3);
    c = kx_dfma(z, c, 4.1666666666666664354e-2);
    c = kx_dfma(z, c, -0.5);
    c = kx_dfma(z, c, 1.0);
    fs = (float)s;
    fc = (float)c;
    k = (int)n & 3;
    *out_s = k == 0 ? fs : k == 1 ? fc : k == 2 ? -fs : -fc;
    *out_c = k == 0 ? fc : k == 1 ? -fs : k == 2 ? -fc : fs;
}
#else
KX_DEV void kx_sincos(float x, thread float *out_s, thread float *out_c)
{
    float n, r, z, s, c;
    int k;

    if (!(kx_abs(x) <= 2147483648.0f)) {
        *out_s = *out_c = kx_i2f_bits(0x7fc00000);
        return;
    }
    k = kx_rint(x * 0.636619772f);
    n = kx_i2f(k);
    r = kx_fma(n, -1.57079637f, x);
    r = kx_fma(n, 4.37113883e-8f, r);
    r = kx_fma(n, 1.71512451e-15f, r);
    z = r * r;
    s = kx_fma(z, 2.75573188e-6f, -1.98412701e-4f);
    s = kx_fma(z, s, 8.33333377e-3f);
    s = kx_fma(z, s, -1.66666672e-1f);
    s = kx_fma(z * s, r, r);
    c = kx_fma(z, 2.48015876e-5f, -1.38888892e-3f);
    c = kx_fma(z, c, 4.16666679e-2f);
    c = kx_fma(z, c, -0.5f);
    c = kx_fma(z, c, 1.0f);
    k &= 3;
    *out_s = k == 0 ? s : k == 1 ? c : k == 2 ? -s : -c;
    *out_c = k == 0 ? c : k == 1 ? -s : k == 2 ? -c : s;
}
#endif

/* tanh: odd polynomial near 0 (|x| < 0.6), else 1 - 2 / (e^2|x| + 1); both within 2e-7 of the value.
 * Coefficients: Chebyshev fit of (tanh(sqrt t) / sqrt t - 1) / t on [0, 0.4]. */
KX_DEV float kx_tanh(float x)
{
    float a = kx_abs(x), t, p;

    if (a < 0.6f) {
        t = x * x;
        p = kx_fma(t, 2.2695016e-3f, -8.3231871e-3f);
        p = kx_fma(p, t, 2.1762503e-2f);
        p = kx_fma(p, t, -5.3958462e-2f);
        p = kx_fma(p, t, 1.3333300e-1f);
        p = kx_fma(p, t, -3.3333333e-1f);
        return kx_fma(p * t, x, x);
    }
    p = 1.0f - kx_div(2.0f, kx_exp(2.0f * a) + 1.0f);
    return x < 0.0f ? -p : p;
}

/* erf: x P(x^2) for |x| < 1, else 1 - e^Q(|x|), 1 from 4 on; within 2e-7 of the value.
 * Coefficients: Chebyshev fits of erf(sqrt t) / sqrt t on [0, 1] and of ln erfc on [1, 4]. */
KX_DEV float kx_erf(float x)
{
    float a = kx_abs(x), t, p;

    if (a < 1.0f) {
        t = x * x;
        p = kx_fma(t, -9.6670446e-6f, 1.1265959e-4f);
        p = kx_fma(p, t, -8.4840804e-4f);
        p = kx_fma(p, t, 5.2210318e-3f);
        p = kx_fma(p, t, -2.6865431e-2f);
        p = kx_fma(p, t, 1.1283782e-1f);
        p = kx_fma(p, t, -3.7612638e-1f);
        p = kx_fma(p, t, 1.1283792f);
        return p * x;
    }
    p = 1.0f;
    if (a < 4.0f || !(a == a)) {
        p = kx_fma(a, 1.6371514e-6f, -4.6058043e-5f);
        p = kx_fma(p, a, 5.9680563e-4f);
        p = kx_fma(p, a, -4.7595963e-3f);
        p = kx_fma(p, a, 2.6421136e-2f);
        p = kx_fma(p, a, -1.1008008e-1f);
        p = kx_fma(p, a, -6.3182605e-1f);
        p = kx_fma(p, a, -1.1302334f);
        p = kx_fma(p, a, 3.2013805e-4f);
        p = 1.0f - kx_exp(p);
    }
    return x < 0.0f ? -p : p;
}

KX_DEV float kx_gelu_erf(float z)
{
    return 0.5f * z * (1.0f + kx_erf(z * 0.70710678f));
}

KX_DEV float kx_gelu_tanh(float z)
{
    return 0.5f * z * (1.0f + kx_tanh(0.79788456f * kx_fma(0.044715f * z, z * z, z)));
}
