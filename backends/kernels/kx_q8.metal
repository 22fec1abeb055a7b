/* kx_q8.metal - blocks of 32 and 256 values as int8: codes, sums of 32; returns the scale. What libraries that
 * quantize rows share. Bits: be_cpu_refq.c. */
#define KXR_FLT_MAX 3.402823466e+38f

KX_DEV float kxr_q8_0(const thread float *v, thread int *q, thread int *s)
{
    float m = 0.0f, id;
    bool bad = false;

    for (kx_u i = 0; i < 32u; i++) {
        bad = bad || !(kx_abs(v[i]) <= KXR_FLT_MAX);
        m = kx_max(m, kx_abs(v[i]));
    }
    m = kx_div(m, 127.0f);
    id = !bad && m != 0.0f ? kx_div(1.0f, m) : 0.0f;
    id = id <= KXR_FLT_MAX ? id : 0.0f;
    s[0] = 0;
    for (kx_u i = 0; i < 32u; i++) {
        q[i] = int(kx_round_away(bad ? 0.0f : v[i] * id));
        s[0] += q[i];
    }
    return bad ? kx_i2f_bits(0x7fc00000) : kx_h2f(kx_f2h(m));
}
KX_DEV float kxr_q8_k(const thread float *v, thread int *q, thread int *s)
{
    float m = 0.0f, big = 0.0f, is;
    bool bad = false, dead;

    for (kx_u i = 0; i < 256u; i++) {
        bad = bad || !(kx_abs(v[i]) <= KXR_FLT_MAX);
        if (kx_abs(v[i]) > m) {
            m = kx_abs(v[i]);
            big = v[i];
        }
    }
    is = kx_div(-127.0f, big);
    dead = bad || m == 0.0f || !(kx_abs(is) <= KXR_FLT_MAX);
    for (kx_u i = 0; i < 8u; i++)
        s[i] = 0;
    for (kx_u i = 0; i < 256u; i++) {
        int r = kx_rint(dead ? 0.0f : is * v[i]);

        q[i] = r > 127 ? 127 : r;
        s[i / 32u] += q[i];
    }
    return bad ? kx_i2f_bits(0x7fc00000) : dead ? 0.0f : kx_div(1.0f, is);
}

