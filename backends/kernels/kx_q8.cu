/* kx_q8.cu - eight columns a lane as int8: what libraries that quantize rows share.
 *
 * Four lanes hold a block of 32, a warp one of 256; all lanes of the warp take part. Bits: be_cpu_refq.c.
 */
#define KX_FLT_MAX 3.402823466e+38f

KX_DEV struct kx_u2 kx_pack8(const int *c)
{
    struct kx_u2 q;
    q.x = ((kx_u)c[0] & 255u) | ((kx_u)c[1] & 255u) << 8 | ((kx_u)c[2] & 255u) << 16 | (kx_u)c[3] << 24;
    q.y = ((kx_u)c[4] & 255u) | ((kx_u)c[5] & 255u) << 8 | ((kx_u)c[6] & 255u) << 16 | (kx_u)c[7] << 24;
    return q;
}
/* Four lanes hold a block of 32 (be_cpu_refq.c, block_q8_0): a lane's codes, the block's scale
 * and sum of codes. */
KX_DEV void kx_q8_0(const float *v, struct kx_u2 *q, float *d, int *s)
{
    float m = 0.0f, id;
    int c[8], bad;
    KX_UNROLL
    for (int i = 0; i < 8; i++)
        m = kx_abs(v[i]) <= KX_FLT_MAX ? kx_max(m, kx_abs(v[i])) : kx_i2f_bits(0x7f800000);
    m = kx_max(m, kx_shfl_xor_f(m, 1));
    m = kx_max(m, kx_shfl_xor_f(m, 2));
    bad = !(m <= KX_FLT_MAX);
    m = kx_div(m, 127.0f);
    id = m != 0.0f ? kx_div(1.0f, m) : 0.0f;
    if (!(id <= KX_FLT_MAX))
        id = 0.0f;
    *s = 0;
    KX_UNROLL
    for (int i = 0; i < 8; i++) {
        c[i] = (int)kx_round_away(bad ? 0.0f : v[i] * id);
        *s += c[i];
    }
    *s += kx_shfl_xor_i(*s, 1);
    *s += kx_shfl_xor_i(*s, 2);
    *q = kx_pack8(c);
    *d = bad ? kx_i2f_bits(0x7fc00000) : kx_h2f(kx_f2h(m));
}
/* A warp holds a block of 256 (block_q8_k); *s as above, of 32 columns. */
KX_DEV void kx_q8_k(const float *v, struct kx_u2 *q, float *d, int *s)
{
    float m = 0.0f, w, big = 0.0f, is;
    int c[8], bad = 0, dead;
    kx_u who;
    KX_UNROLL
    for (int i = 0; i < 8; i++) {
        if (!(kx_abs(v[i]) <= KX_FLT_MAX))
            bad = 1;
        else if (kx_abs(v[i]) > m) {
            m = kx_abs(v[i]);
            big = v[i];
        }
    }
    w = bad ? kx_i2f_bits(0x7f800000) : m;
    w = kx_max(w, kx_shfl_xor_f(w, 16));
    w = kx_max(w, kx_shfl_xor_f(w, 8));
    w = kx_max(w, kx_shfl_xor_f(w, 4));
    w = kx_max(w, kx_shfl_xor_f(w, 2));
    w = kx_max(w, kx_shfl_xor_f(w, 1));
    bad = !(w <= KX_FLT_MAX);
    who = kx_ballot(m == w);
    big = kx_shfl_f(big, kx_popc((who & (0u - who)) - 1u) & 31);
    is = kx_div(-127.0f, big);
    dead = bad || w == 0.0f || !(kx_abs(is) <= KX_FLT_MAX);
    *s = 0;
    KX_UNROLL
    for (int i = 0; i < 8; i++) {
        const int r = kx_rint(dead ? 0.0f : is * v[i]);
        c[i] = r > 127 ? 127 : r;
        *s += c[i];
    }
    *s += kx_shfl_xor_i(*s, 1);
    *s += kx_shfl_xor_i(*s, 2);
    *q = kx_pack8(c);
    *d = bad ? kx_i2f_bits(0x7fc00000) : dead ? 0.0f : kx_div(1.0f, is);
}
