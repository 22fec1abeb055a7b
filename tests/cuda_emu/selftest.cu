/* Kernels of the emulator's own tests, tests/backends/test_be_emu.c. Written as generated text
 * is, with its mistakes on purpose. */
struct kx_emu_test {
    kx_p in, out;
    kx_u n, mode;
};

/* out[i] = sum over the block, through shared memory and shuffles */
KX_KERNEL(kx_emu_sum, 128, 1, struct kx_emu_test, a)
{
    KX_SHARED float part[4];
    const float *in = (const float *)a.in;
    float v = in[kx_bx() * 128 + kx_tid()];
    int m;

    for (m = 16; m; m >>= 1)
        v += kx_shfl_xor_f(v, m);
    if (kx_tid() % 32 == 0)
        part[kx_tid() / 32] = v;
    if (a.mode != 1) /* mode 1: the barrier is forgotten */
        kx_sync();
    v = part[0] + part[1] + part[2] + part[3];
    if (kx_tid() == 0)
        ((float *)a.out)[kx_bx()] = v;
}

/* mode 0: thread 77 leaves before the barrier; 1: two barriers; 2: a lane leaves before a
 * shuffle; 3: lanes at different shuffles; 4: half a warp at a barrier, half at a shuffle */
KX_KERNEL(kx_emu_diverge, 128, 1, struct kx_emu_test, a)
{
    kx_u t = kx_tid();
    int v = (int)t;

    if (a.mode == 0) {
        if (t == 77)
            return;
        kx_sync();
    } else if (a.mode == 1) {
        if (t < 64)
            kx_sync();
        else
            kx_sync();
    } else if (a.mode == 2) {
        if (t == 40)
            return;
        v = kx_shfl_xor_i(v, 1);
    } else if (a.mode == 3) {
        if (t % 32 < 16)
            v = kx_shfl_xor_i(v, 1);
        else
            v = kx_shfl_xor_i(v, 2);
    } else {
        if (t % 32 < 16)
            kx_sync();
        else
            v = kx_shfl_xor_i(v, 1);
    }
    ((int *)a.out)[t] = v;
}

/* out[t] = in[t] through cp.async in two stages; mode 1: the second wait is forgotten; 2: the
 * last group is not committed; 3: the rows past n are zero */
KX_KERNEL(kx_emu_copy, 64, 1, struct kx_emu_test, a)
{
    KX_DYN_SHARED(sm);
    const kx_u *in = (const kx_u *)a.in;
    kx_u *out = (kx_u *)a.out, t = kx_tid(), i;

    if (a.mode == 3)
        kx_cp16_if(sm + 16 * t, in + 4 * t, t < a.n);
    else
        kx_cp16(sm + 16 * t, in + 4 * t);
    kx_cp_commit();
    kx_cp16(sm + 1024 + 16 * t, in + 256 + 4 * t);
    if (a.mode != 2)
        kx_cp_commit();
    kx_cp_wait(1);
    kx_sync();
    for (i = t; i < 256; i += 64)
        out[i] = ((const kx_u *)sm)[i];
    if (a.mode != 1)
        kx_cp_wait(0);
    kx_sync();
    for (i = t; i < 256; i += 64)
        out[256 + i] = ((const kx_u *)(sm + 1024))[i];
}

/* one warp; in: a registers, b registers, d of every lane in turn. mode: 0 s8 k32, 1 s8
 * k16, 2 f16, 3 floats made tf32 first, 4 as they are */
KX_KERNEL(kx_emu_mma, 32, 1, struct kx_emu_test, a)
{
    const kx_u *in = (const kx_u *)a.in + 10 * kx_tid();
    kx_u ra[4], rb[2], *out = (kx_u *)a.out + 4 * kx_tid();
    int d[4], i;
    float f[4];

    for (i = 0; i < 4; i++) {
        ra[i] = in[i];
        d[i] = (int)in[6 + i];
        f[i] = kx_i2f_bits(d[i]);
    }
    rb[0] = in[4];
    rb[1] = in[5];
    if (a.mode == 0)
        kx_mma_s8_16832(d, ra, rb);
    else if (a.mode == 1)
        kx_mma_s8_16816(d, ra, rb);
    else if (a.mode == 2)
        kx_mma_f16_16816(f, ra, rb);
#if KX_ARCH >= 800
    else {
        for (i = 0; i < 6 && a.mode == 3; i++)
            if (i < 4)
                ra[i] = kx_f2tf32(kx_i2f_bits((int)ra[i]));
            else
                rb[i - 4] = kx_f2tf32(kx_i2f_bits((int)rb[i - 4]));
        kx_mma_tf32_1688(f, ra, rb);
    }
#endif
    for (i = 0; i < 4; i++)
        out[i] = a.mode >= 2 ? (kx_u)kx_f2i_bits(f[i]) : (kx_u)d[i];
}

/* in: 4 matrices 8x8 of 16 bits; out: 4 registers a lane. mode 0 x4, 1 x4 trans, 2 x2, 3: a
 * row address off by 2, 4: a row address in global memory */
KX_KERNEL(kx_emu_ldm, 32, 1, struct kx_emu_test, a)
{
    KX_SHARED struct kx_u4 rows[33];
    kx_u t = kx_tid(), r[4] = {0, 0, 0, 0}, i;
    const unsigned char *p = (const unsigned char *)&rows[t];

    rows[t] = kx_ldg16((const struct kx_u4 *)a.in + t);
    kx_syncwarp();
    if (a.mode == 3 && t == 9)
        p += 2;
    if (a.mode == 4 && t == 9)
        p = (const unsigned char *)a.in;
    if (a.mode == 1)
        kx_ldm4t(r, p);
    else if (a.mode == 2)
        kx_ldm2(r, p);
    else
        kx_ldm4(r, p);
    for (i = 0; i < 4; i++)
        ((kx_u *)a.out)[4 * t + i] = r[i];
}

/* small functions, one per mode and thread */
KX_KERNEL(kx_emu_misc, 32, 1, struct kx_emu_test, a)
{
    const kx_u *in = (const kx_u *)a.in;
    kx_u t = kx_tid(), v = in[t], r = 0;
    KX_SHARED kx_u count;

    if (a.mode == 0)
        r = (kx_u)kx_shfl_i((int)v, 5);
    else if (a.mode == 1)
        r = kx_ballot((int)(v & 1));
    else if (a.mode == 2)
        r = (kx_u)kx_dp4a(v, in[(t + 1) % 32], -7);
    else if (a.mode == 3)
        r = kx_prmt(v, in[(t + 1) % 32], 0x7410);
    else if (a.mode == 4)
        r = kx_prmt(v, v, 0x7418);
    else if (a.mode == 5) {
        if (t == 0)
            count = 0;
        kx_syncwarp();
        kx_atomic_add_shared(&count, v);
        kx_syncwarp();
        r = count;
    } else if (a.mode == 6)
        r = kx_ldg16((const unsigned char *)a.in + 4).x;
    else if (a.mode == 7)
        r = ((const struct kx_u4 *)(a.in + 8))->y;
    else if (a.mode == 8)
        r = *(const kx_u *)(kx_p)(a.n + t);
    else if (a.mode == 9)
        r = v << a.n;
    else if (a.mode == 10)
        r = (kx_u)kx_rint(kx_i2f_bits((int)v));
    else if (a.mode == 11)
        r = KX_ARCH;
    ((kx_u *)a.out)[t] = r;
}

/* mode 0: writes past its dynamic shared memory; 1: reads shared memory nobody wrote */
KX_KERNEL(kx_emu_dynamic, 32, 1, struct kx_emu_test, a)
{
    KX_DYN_SHARED(sm);
    kx_u *w = (kx_u *)sm, t = kx_tid();

    if (a.mode == 0)
        w[a.n + t] = t;
    ((kx_u *)a.out)[t] = w[t];
}
