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
    float n, r, p;
    int i;

    if (x < -87.3f)
        return 0.0f;
    if (x > 88.7f)
        return kx_i2f_bits(0x7f800000);
    if (!(x == x))
        return x;
    i = kx_rint(x * 1.44269504f);
    n = kx_i2f(i);
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
