/* kx_attn_math.h - the formulas of attention that device and oracle share.
 *
 * The state of a query row over keys is (m, l, a): the largest score, the sum of
 * e^(s - m) and the same sum of values. l is kept as 8 partial sums (which key goes to
 * which: KX_AT_PART_*), folded as slices are (be_kargs.h) when it is read. A split begins
 * with (-inf, 0, 0); its state is folded into the row's with kx_at_fold, splits ascending.
 * l == 0 says: no key seen. Keys of a tile that a row does not see add 0 times their value: an
 * exact no-op for finite values.
 */
#define KX_AT_NONE kx_i2f_bits((int)0xff800000u) /* -inf */
/* key j of a tile, tensor cores: as a warp's lanes hold the scores */
#define KX_AT_PART_MMA(j) ((((j) >> 3) & 1u) * 4u + (((j) >> 1) & 3u))
/* the i-th key of part u */
#define KX_AT_KEY_MMA(u, i) (8u * (((u) >> 2) + 2u * ((i) >> 1)) + 2u * ((u)&3u) + ((i)&1u))
#define KX_AT_PART_SIMT(j) ((j)&7u)

/* e^x for x <= 0, -inf or NaN: the bits of kx_exp without what larger x needs (2^i cannot
 * overflow, and one rounding of a tiny result is that of two exact factors). */
KX_DEV float kx_at_exp(float x)
{
    float t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f, r, p;

    r = kx_fma(n, -0.693145752f, x);
    r = kx_fma(n, -1.42860677e-6f, r);
    p = kx_fma(r, 1.3888889e-3f, 8.3333333e-3f);
    p = kx_fma(p, r, 4.1666668e-2f);
    p = kx_fma(p, r, 1.6666667e-1f);
    p = kx_fma(p, r, 0.5f);
    p = kx_fma(p, r, 1.0f);
    p = kx_fma(p, r, 1.0f);
    p = p * kx_i2f_bits((int)(((kx_u)kx_f2i_bits(t) << 23) + 0x3f800000u));
    return x < -87.3f ? 0.0f : p;
}

/* factor of what was summed under max m when the max becomes mm; exactly 1 when it stays */
KX_DEV float kx_at_corr(float m, float mm)
{
    return m == mm ? 1.0f : kx_at_exp(m - mm);
}

#ifndef __METAL_VERSION__ /* where pointers name an address space */
/* A split's (m, l), l != 0, joins the row's (*bm, *bl), *bl != 0 (the first one is copied):
 * a row's sum becomes a * wn + its old one * wo. */
KX_DEV void kx_at_fold(float *bm, float *bl, float m, float l, float *wo, float *wn)
{
    float mm = kx_max(*bm, m);

    *wo = kx_at_corr(*bm, mm);
    *wn = kx_at_corr(m, mm);
    *bl = kx_fma(l, *wn, *bl * *wo);
    *bm = mm;
}
#endif

/* a / l; 0 where no key was seen (inv 0), whatever a is. */
KX_DEV float kx_at_done(float a, float inv) { return inv == 0.0f ? 0.0f : a * inv; }

/* Keys [lo, hi) that a row at position p sees. window 0: all up to p. */
KX_DEV kx_u kx_at_lo(kx_u p, kx_u window) { return window && p + 1u > window ? p + 1u - window : 0u; }
/* Packed rows of a sequence of n, radius -1: all. */
KX_DEV kx_u kx_at_lo_packed(kx_u p, int radius) { return radius >= 0 && p > (kx_u)radius ? p - (kx_u)radius : 0u; }
KX_DEV kx_u kx_at_hi_packed(kx_u p, int radius, kx_u n)
{
    return radius >= 0 && p + (kx_u)radius + 1u < n ? p + (kx_u)radius + 1u : n;
}
