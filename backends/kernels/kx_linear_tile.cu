
/* kx_linear_tile.cu - mat-mat, quantized weights, int8 tensor cores.
 *
 * A block makes a tile of KXL_BW weight rows (columns of out) by KXL_BX rows of x, a warp
 * 16 KXL_MT by 8 KXL_NT of it. 256 columns of k at a time come through KXL_STAGES buffers of
 * shared memory; 16-byte chunks lie at chunk ^ (row & 7), so that ldmatrix meets no bank twice. A
 * lane keeps all 8 slices of its elements in registers: no sum leaves the lane and any k is
 * shared evenly. Weights are the 16-row operand: a lane unpacks the word it loads.
 * Integers become floats through the bits of 1.5 2^23 + i, exact below 2^22. */
#ifndef KXL_TILE
#define KXL_TILE
/* Scaled codes: superblocks divide each sum, 32-column blocks (whose products of two halves are never
 * subnormal, so a power of two changes no rounding) the folded sum. */
#if KXL_SUPER
#define KXL_DB 16u
#define KXL_FSCALE(v) (v)
#else
#define KXL_DB (KXL_MIN ? 32u : 16u)
#define KXL_FSCALE(v) (KXL_ASCALE * (v))
#endif
#define KXL_MAGIC 0x4b400000

/* Signed or small unsigned codes in bytes. p: word t of the sub-block's nibbles, h its high bits;
 * lo: columns 4t .., hi: columns 16 + 4t .. . Q4_0 16 (q - 8), Q5_0 8 (q - 16), Q6_K 4 (q - 32). */
#if KXL_BITS == 8
#define KXL_ALO(p, h, t, sign) ((((p) << 2 & 0x3c3c3c3cu) | ((h).x << (6u - 2u * (t)) & 0xc0c0c0c0u)) ^ (sign))
#define KXL_AHI(p, h, t, sign) ((((p) >> 2 & 0x3c3c3c3cu) | ((h).y << (6u - 2u * (t)) & 0xc0c0c0c0u)) ^ (sign))
#define KXL_ASCALE 0.25f
#elif KXL_BITS == 4 && KXL_ZERO
#define KXL_ALO(p, h, t, sign) ((((p) << 3 & 0x78787878u) | ((h) << (7u - (t)) & 0x80808080u)) ^ (sign))
#define KXL_AHI(p, h, t, sign) ((((p) >> 1 & 0x78787878u) | ((h) << (3u - (t)) & 0x80808080u)) ^ (sign))
#define KXL_ASCALE 0.125f
#elif KXL_BITS == 4
#define KXL_ALO(p, h, t, sign) (((p) & 0x0f0f0f0fu) | ((h) << (4u - (t)) & 0x10101010u))
#define KXL_AHI(p, h, t, sign) (((p) >> 4 & 0x0f0f0f0fu) | ((h) >> (t) & 0x10101010u))
#define KXL_ASCALE 1.0f
#elif KXL_ZERO
#define KXL_ALO(p, h, t, sign) (((p) << 4 & 0xf0f0f0f0u) ^ (sign))
#define KXL_AHI(p, h, t, sign) (((p) & 0xf0f0f0f0u) ^ (sign))
#define KXL_ASCALE 0.0625f
#else
#define KXL_ALO(p, h, t, sign) ((p) & 0x0f0f0f0fu)
#define KXL_AHI(p, h, t, sign) ((p) >> 4 & 0x0f0f0f0fu)
#define KXL_ASCALE 1.0f
#endif

#if KXL_SUPER
/* Scale of a sub-block, or (Q6_K) of its half e, in its two bytes. */
KX_DEV int kxl_scale(kx_u w, int e)
{
#if KXL_MIN
    return (int)(w & 0xffu);
#else
    return (int)(signed char)(w >> 8 * e & 0xffu);
#endif
}
#endif
#endif

/* The superblock's slice gets its sums. A wait for more groups than there are does nothing, but it
 * differs from case to case: without it compilers fold the cases into one that indexes acc at run
 * time, in local memory. */
#undef KXL_CASE
#undef KXL_SLICE
#define KXL_CASE(s_, low)                                        \
    case s_:                                                     \
        kx_cp_wait(8 + s_);                                      \
        KXL_F(kxl_scaled)(now, &l, st, sum, low, acc[s_]);       \
        break;
#define KXL_SLICE(low)                                           \
    switch (st & 7u) {                                           \
        KXL_CASE(0, low)                                         \
        KXL_CASE(1, low)                                         \
        KXL_CASE(2, low)                                         \
        KXL_CASE(3, low)                                         \
        KXL_CASE(4, low)                                         \
        KXL_CASE(5, low)                                         \
        KXL_CASE(6, low)                                         \
        KXL_CASE(7, low)                                         \
    }

#undef KXL_THREADS
#undef KXL_BW
#undef KXL_BX
#undef KXL_OQ
#undef KXL_OD
#undef KXL_OS
#undef KXL_OH
#undef KXL_OX
#undef KXL_OF
#undef KXL_OI
#undef KXL_STAGE
#undef KXL_F
#define KXL_F(name) KXL_CAT(name, KXL_TAG)
#define KXL_THREADS (32u * KXL_WY * KXL_WX)
#define KXL_BW (16u * KXL_MT * KXL_WY)
#define KXL_BX (8u * KXL_NT * KXL_WX)
/* a stage: codes, d, scales of sub-blocks, high bits, x, its scales, its sums */
#define KXL_OQ 0u
#define KXL_OD (KXL_BW * 8u * KXL_CODE)
#define KXL_OS (KXL_OD + KXL_BW * KXL_DB)
#define KXL_OH (KXL_OS + KXL_BW * (KXL_SUPER ? 16u : 0u))
#define KXL_OX (KXL_OH + KXL_BW * 8u * KXL_BITS)
#define KXL_OF (KXL_OX + KXL_BX * 256u)
#define KXL_OI (KXL_OF + KXL_BX * (KXL_SUPER ? 4u : 32u))
#define KXL_STAGE (KXL_OI + KXL_BX * (KXL_MIN ? 32u : 0u))

/* Row r of the tile's weights: its plane i, or a valid row and ok = 0 past the end. */
KX_DEV const unsigned char *KXL_F(kxl_row)(const struct kx_linear *a, const struct kxl_tile *w, kx_u i, kx_u r, kx_u row_bytes, int *ok)
{
#if KXL_GEGLU
    const kx_u part = r >> 3 & 1u, col = w->col0 + (r >> 4) * 8u + (r & 7u);
#else
    const kx_u part = w->part, col = w->col0 + r;
#endif
    *ok = col < w->n;
    return kxl_plane(a, part, i) + (unsigned long long)(*ok ? col : 0u) * row_bytes;
}

/* Columns 256 st .. of weights and activations to a stage, asynchronously. */
KX_DEV void KXL_F(kxl_fill)(unsigned char *sm, const struct kx_linear *a, const struct kxl_tile *w, kx_u row0, kx_u st)
{
    const kx_u k = KXL_K(a->k), nb = k / 32u, tid = kx_tid();
    const unsigned char *p;
    int ok;

    KX_UNROLL
    for (kx_u i = tid; i < KXL_BW * KXL_CODE / 2u; i += KXL_THREADS) {
        const kx_u r = i / (KXL_CODE / 2u), c = i % (KXL_CODE / 2u), off = st * 8u * KXL_CODE + c * 16u;

        p = KXL_F(kxl_row)(a, w, 0u, r, nb * KXL_CODE, &ok);
        kx_cp16_if(sm + KXL_OQ + r * (8u * KXL_CODE) + ((c ^ (r & 7u)) * 16u), p + off, ok && off < nb * KXL_CODE);
    }
    KX_UNROLL
    for (kx_u i = tid; i < KXL_BX * 16u; i += KXL_THREADS) {
        const kx_u r = i >> 4, c = i & 15u, off = st * 256u + c * 16u, row = row0 + r;

        ok = row < a->n && off < k;
        kx_cp16_if(sm + KXL_OX + r * 256u + ((c ^ (r & 7u)) * 16u), (const unsigned char *)a->xq + (unsigned long long)(ok ? row : 0u) * k + off, ok);
    }
#if KXL_SUPER
    KX_UNROLL
    for (kx_u r = tid; r < KXL_BW; r += KXL_THREADS) {
        p = KXL_F(kxl_row)(a, w, 1u, r, KXL_UP16(nb / 8u * (KXL_MIN ? 4u : 2u)), &ok);
        kx_cp16_if(sm + KXL_OD + r * 16u, p + (st * (KXL_MIN ? 4u : 2u) & ~15u), ok);
        p = KXL_F(kxl_row)(a, w, 2u, r, nb * 2u, &ok);
        kx_cp16_if(sm + KXL_OS + r * 16u, p + st * 16u, ok);
    }
    for (kx_u r = tid; r < KXL_BX; r += KXL_THREADS) {
        ok = row0 + r < a->n;
        kx_cp4_if(sm + KXL_OF + r * 4u, (const float *)a->xd + (unsigned long long)(ok ? row0 + r : 0u) * (nb / 8u) + st, ok);
    }
#if KXL_MIN
    for (kx_u i = tid; i < KXL_BX * 2u; i += KXL_THREADS) {
        ok = row0 + (i >> 1) < a->n;
        kx_cp16_if(sm + KXL_OI + i * 16u, (const int *)a->xs + (unsigned long long)(ok ? row0 + (i >> 1) : 0u) * nb + st * 8u + (i & 1u) * 4u, ok);
    }
#endif
#else
    for (kx_u i = tid; i < KXL_BW * (KXL_DB / 16u); i += KXL_THREADS) {
        const kx_u r = i / (KXL_DB / 16u), off = st * KXL_DB + i % (KXL_DB / 16u) * 16u, bytes = KXL_UP16(nb * (KXL_DB / 8u));

        p = KXL_F(kxl_row)(a, w, 1u, r, bytes, &ok);
        kx_cp16_if(sm + KXL_OD + i * 16u, p + off, ok && off < bytes);
    }
    for (kx_u i = tid; i < KXL_BX * 8u; i += KXL_THREADS) {
        const kx_u r = i >> 3, b = st * 8u + (i & 7u);
        unsigned long long at;

        ok = row0 + r < a->n && b < nb;
        at = ok ? (unsigned long long)(row0 + r) * nb + b : 0u;
        kx_cp4_if(sm + KXL_OF + ((i & 7u) * KXL_BX + r) * 4u, (const float *)a->xd + at, ok);
#if KXL_MIN
        kx_cp4_if(sm + KXL_OI + ((i & 7u) * KXL_BX + r) * 4u, (const int *)a->xs + at, ok);
#endif
    }
#endif
#if KXL_BITS
    for (kx_u i = tid; i < KXL_BW * (KXL_BITS / 2u); i += KXL_THREADS) {
        const kx_u r = i / (KXL_BITS / 2u), off = st * 8u * KXL_BITS + i % (KXL_BITS / 2u) * 16u, bytes = KXL_UP16(nb * KXL_BITS);

        p = KXL_F(kxl_row)(a, w, KXL_SUPER ? 3u : 2u, r, bytes, &ok);
        kx_cp16_if(sm + KXL_OH + i * 16u, p + off, ok && off < bytes);
    }
#endif
}

/* Where a lane reads in a stage: rows of weights and x for ldmatrix, with the chunk bits that
 * are exclusive-ored with the sub-block's; its rows' d, scales, high bits; its columns' scale and
 * sum. sign is 0x80808080, in a register so that masking and flipping are one instruction. */
struct KXL_F(kxl_lane) {
    kx_u w, wx, x, xx, d, s, h, f, i, sign;
};

KX_DEV void KXL_F(kxl_lane_at)(struct KXL_F(kxl_lane) *l, kx_u w0, kx_u x0, kx_u zero)
{
    const kx_u lane = kx_tid() & 31u, g = lane >> 2, t = lane & 3u;

#if KXL_CODE == 32
    l->w = KXL_OQ + (w0 + (lane & 15u)) * 256u;
    l->wx = ((lane & 7u) ^ (lane >> 4)) * 16u;
#else
    l->w = KXL_OQ + (w0 + (KXL_MT == 2 ? lane : lane & 15u)) * 128u;
    l->wx = (lane & 7u) * 16u;
#endif
    l->x = KXL_OX + (x0 + (KXL_NT == 2 ? (lane >> 4) * 8u : 0u) + (lane & 7u)) * 256u;
    l->xx = ((lane & 7u) ^ (lane >> 3 & 1u)) * 16u;
    l->d = KXL_OD + (w0 + g) * KXL_DB;
    l->s = KXL_OS + (w0 + g) * 16u;
    l->h = KXL_OH + (w0 + g) * 8u * KXL_BITS;
    l->f = KXL_OF + (x0 + 2u * t) * 4u;
    l->i = KXL_OI + (KXL_SUPER ? (x0 + g) * 32u + (t & 1u) * 16u : (x0 + 2u * t) * 4u);
    l->sign = 0x80808080u ^ zero;
}

/* Operands of sub-block j (0..7) of the stage: weights of the warp's rows, activations of its
 * rows of x. */
KX_DEV void KXL_F(kxl_frag_w)(const unsigned char *sm, const struct KXL_F(kxl_lane) *l, kx_u j, kx_u (*f)[4])
{
#if KXL_CODE == 32
    KX_UNROLL
    for (int mt = 0; mt < KXL_MT; mt++)
        kx_ldm4(f[mt], sm + l->w + 4096u * mt + (l->wx ^ j * 32u));
#else
    const kx_u t = kx_tid() & 3u;
    kx_u p[4];

#if KXL_MT == 2
    kx_ldm4(p, sm + l->w + (l->wx ^ j * 16u));
#else
    kx_ldm2(p, sm + l->w + (l->wx ^ j * 16u));
#endif
    KX_UNROLL
    for (int i = 0; i < 2 * KXL_MT; i++) {
#if KXL_BITS == 4
        const kx_u h = *(const kx_u *)(sm + l->h + 256u * i + j * 4u);
#elif KXL_BITS == 8
        const struct kx_u2 h = *(const struct kx_u2 *)(sm + l->h + 512u * i + j * 8u);
#endif
        f[i >> 1][i & 1] = KXL_ALO(p[i], h, t, l->sign);
        f[i >> 1][2 + (i & 1)] = KXL_AHI(p[i], h, t, l->sign);
        (void)t;
    }
#endif
}

KX_DEV void KXL_F(kxl_frag_x)(const unsigned char *sm, const struct KXL_F(kxl_lane) *l, kx_u j, kx_u (*f)[2])
{
#if KXL_NT == 2
    kx_u p[4];

    kx_ldm4(p, sm + l->x + (l->xx ^ j * 32u));
    f[0][0] = p[0];
    f[0][1] = p[1];
    f[1][0] = p[2];
    f[1][1] = p[3];
#else
    kx_ldm2(f[0], sm + l->x + (l->xx ^ j * 32u));
#endif
}

#if !KXL_SUPER
/* Block j of the stage to slice j. */
KX_DEV void KXL_F(kxl_block)(const unsigned char *sm, const struct KXL_F(kxl_lane) *l, kx_u j, float (*acc)[KXL_NT][4])
{
    kx_u fw[KXL_MT][4], fx[KXL_NT][2];
    float d[KXL_MT][2], m[KXL_MT][2];

    KXL_F(kxl_frag_w)(sm, l, j, fw);
    KXL_F(kxl_frag_x)(sm, l, j, fx);
    KX_UNROLL
    for (int i = 0; i < 2 * KXL_MT; i++) {
#if KXL_MIN
        const kx_u dm = *(const kx_u *)(sm + l->d + 256u * i + j * 4u);

        d[i >> 1][i & 1] = kx_h2f((unsigned short)(dm & 0xffffu));
        m[i >> 1][i & 1] = kx_h2f((unsigned short)(dm >> 16));
#else
        d[i >> 1][i & 1] = kx_h2f(*(const unsigned short *)(sm + l->d + 128u * i + j * 2u));
        (void)m;
#endif
    }
    KX_UNROLL
    for (int nt = 0; nt < KXL_NT; nt++) {
        const struct kx_u2 dx = *(const struct kx_u2 *)(sm + l->f + (j * KXL_BX + 8u * nt) * 4u);
        const float d0 = kx_i2f_bits((int)dx.x), d1 = kx_i2f_bits((int)dx.y);
#if KXL_MIN
        const struct kx_u2 s = *(const struct kx_u2 *)(sm + l->i + (j * KXL_BX + 8u * nt) * 4u);
        const float s0 = kx_i2f((int)s.x), s1 = kx_i2f((int)s.y);
#endif
        KX_UNROLL
        for (int mt = 0; mt < KXL_MT; mt++) {
            int c[4] = {KXL_MAGIC, KXL_MAGIC, KXL_MAGIC, KXL_MAGIC};

            kx_mma_s8_16832(c, fw[mt], fx[nt]);
            acc[mt][nt][0] = kx_fma(d[mt][0] * d0, kx_i2f_bits(c[0]) - 12582912.0f, acc[mt][nt][0]);
            acc[mt][nt][1] = kx_fma(d[mt][0] * d1, kx_i2f_bits(c[1]) - 12582912.0f, acc[mt][nt][1]);
            acc[mt][nt][2] = kx_fma(d[mt][1] * d0, kx_i2f_bits(c[2]) - 12582912.0f, acc[mt][nt][2]);
            acc[mt][nt][3] = kx_fma(d[mt][1] * d1, kx_i2f_bits(c[3]) - 12582912.0f, acc[mt][nt][3]);
#if KXL_MIN
            acc[mt][nt][0] = kx_fma(m[mt][0] * d0, s0, acc[mt][nt][0]);
            acc[mt][nt][1] = kx_fma(m[mt][0] * d1, s1, acc[mt][nt][1]);
            acc[mt][nt][2] = kx_fma(m[mt][1] * d0, s0, acc[mt][nt][2]);
            acc[mt][nt][3] = kx_fma(m[mt][1] * d1, s1, acc[mt][nt][3]);
#endif
        }
    }
}
#else
/* Integer sums of the stage's superblock. */
KX_DEV void KXL_F(kxl_super)(const unsigned char *sm, const struct KXL_F(kxl_lane) *l, int (*sum)[KXL_NT][4])
{
    KX_UNROLL
    for (int j = 0; j < 8; j++) {
        kx_u fw[KXL_MT][4], fx[KXL_NT][2], sc[2 * KXL_MT];

        KX_UNROLL
        for (int i = 0; i < 2 * KXL_MT; i++)
            sc[i] = *(const unsigned short *)(sm + l->s + 128u * i + 2u * j);
        KXL_F(kxl_frag_w)(sm, l, (kx_u)j, fw);
        KXL_F(kxl_frag_x)(sm, l, (kx_u)j, fx);
        KX_UNROLL
        for (int mt = 0; mt < KXL_MT; mt++) {
            KX_UNROLL
            for (int nt = 0; nt < KXL_NT; nt++) {
                int c[4] = {0, 0, 0, 0};
#if KXL_MIN
                kx_mma_s8_16832(c, fw[mt], fx[nt]);
#else
                int e[4] = {0, 0, 0, 0};

                kx_mma_s8_16816(c, fw[mt], fx[nt]);
                kx_mma_s8_16816(e, fw[mt] + 2, fx[nt] + 1);
#endif
                KX_UNROLL
                for (int i = 0; i < 4; i++) {
                    sum[mt][nt][i] += kxl_scale(sc[2 * mt + (i >> 1)], 0) * c[i];
#if !KXL_MIN
                    sum[mt][nt][i] += kxl_scale(sc[2 * mt + (i >> 1)], 1) * e[i];
#endif
                }
            }
        }
    }
}

#if KXL_MIN
/* Sums of minimum x sum of codes over the 8 sub-blocks: two products whose 8 columns are the
 * sub-blocks, since a sum of codes is 64 hi + lo, both bytes. */
KX_DEV void KXL_F(kxl_mins)(const unsigned char *sm, const struct KXL_F(kxl_lane) *l, int (*sum)[KXL_NT][4])
{
    const kx_u t = kx_tid() & 3u;
    kx_u m[KXL_MT][2];

    KX_UNROLL
    for (int i = 0; i < 2 * KXL_MT; i++) {
        const struct kx_u2 s = *(const struct kx_u2 *)(sm + l->s + 128u * i + (t & 1u) * 8u);

        m[i >> 1][i & 1] = kx_prmt(s.x, s.y, 0x7531u);
    }
    KX_UNROLL
    for (int nt = 0; nt < KXL_NT; nt++) {
        const struct kx_u4 s = *(const struct kx_u4 *)(sm + l->i + 256u * nt);
        kx_u lo = 0u, hi = 0u;

        if (t < 2u) {
            lo = (s.x & 63u) | (s.y & 63u) << 8 | (s.z & 63u) << 16 | (s.w & 63u) << 24;
            hi = (s.x >> 6 & 255u) | (s.y >> 6 & 255u) << 8 | (s.z >> 6 & 255u) << 16 | (s.w >> 6 & 255u) << 24;
        }
        KX_UNROLL
        for (int mt = 0; mt < KXL_MT; mt++) {
            int c[4] = {0, 0, 0, 0};

            kx_mma_s8_16816(sum[mt][nt], m[mt], &lo);
            kx_mma_s8_16816(c, m[mt], &hi);
            KX_UNROLL
            for (int i = 0; i < 4; i++)
                sum[mt][nt][i] += 64 * c[i];
        }
    }
}
#endif

/* acc += d dx sum, or with low -(dmin dx sum) */
KX_DEV void KXL_F(kxl_scaled)(const unsigned char *sm, const struct KXL_F(kxl_lane) *l, kx_u st, int (*sum)[KXL_NT][4], int low, float (*acc)[KXL_NT][4])
{
    KX_UNROLL
    for (int mt = 0; mt < KXL_MT; mt++) {
        KX_UNROLL
        for (int h = 0; h < 2; h++) {
            const unsigned char *p = sm + l->d + (16u * mt + 8u * h) * 16u;
#if KXL_MIN
            const kx_u dm = *(const kx_u *)(p + (st & 3u) * 4u);
            const float d = kx_h2f((unsigned short)(low ? dm >> 16 : dm & 0xffffu));
#else
            const float d = kx_h2f(*(const unsigned short *)(p + (st & 7u) * 2u));
#endif
            KX_UNROLL
            for (int nt = 0; nt < KXL_NT; nt++) {
                KX_UNROLL
                for (int e = 0; e < 2; e++) {
                    const float dx = *(const float *)(sm + l->f + (8u * nt + e) * 4u);
                    const float f = kx_i2f(sum[mt][nt][2 * h + e]);

                    if (low)
                        acc[mt][nt][2 * h + e] = kx_fma(-(d * dx), f, acc[mt][nt][2 * h + e]);
                    else
                        acc[mt][nt][2 * h + e] = kx_fma(d * dx, KXL_MIN ? f : f * KXL_ASCALE, acc[mt][nt][2 * h + e]);
                }
            }
        }
    }
}
#endif

KX_KERNEL(KXL_NAME, KXL_THREADS, KXL_MINB, struct kx_linear, a)
{
    KX_DYN_SHARED(sm);
    const kx_u k = KXL_K(a.k), nst = (k + 255u) / 256u, row0 = kx_by() * KXL_BX;
    const kx_u warp = kx_tid() >> 5, w0 = warp / KXL_WX * (16u * KXL_MT), x0 = warp % KXL_WX * (8u * KXL_NT);
    const kx_u g = kx_tid() >> 2 & 7u, t = kx_tid() & 3u;
    struct KXL_F(kxl_lane) l;
    struct kxl_tile w;
    float acc[8][KXL_MT][KXL_NT][4];

    /* n_parts is 1 to 3: a zero the compiler does not know of */
    KXL_F(kxl_lane_at)(&l, w0, x0, a.n_parts >> 8);
    kx_wait();
    kxl_tile_at(&a, kx_bx(), KXL_COLS, KXL_GEGLU, &w);
    KX_UNROLL
    for (int s = 0; s < 8; s++) {
        KX_UNROLL
        for (int i = 0; i < KXL_MT * KXL_NT * 4; i++)
            acc[s][i / (KXL_NT * 4)][i / 4 % KXL_NT][i % 4] = 0.0f;
    }
    for (kx_u st = 0u; st < KXL_STAGES - 1u; st++) {
        if (st < nst)
            KXL_F(kxl_fill)(sm + st * KXL_STAGE, &a, &w, row0, st);
        kx_cp_commit();
    }
    for (kx_u st = 0u; st < nst; st++) {
        const unsigned char *now = sm + st % KXL_STAGES * KXL_STAGE;
        const kx_u next = st + KXL_STAGES - 1u;

        kx_cp_wait(KXL_STAGES - 2);
        kx_sync();
        if (next < nst)
            KXL_F(kxl_fill)(sm + next % KXL_STAGES * KXL_STAGE, &a, &w, row0, next);
        kx_cp_commit();
#if KXL_SUPER
        {
            int sum[KXL_MT][KXL_NT][4];

            KX_UNROLL
            for (int i = 0; i < KXL_MT * KXL_NT * 4; i++)
                sum[i / (KXL_NT * 4)][i / 4 % KXL_NT][i % 4] = 0;
            KXL_F(kxl_super)(now, &l, sum);
            KXL_SLICE(0)
#if KXL_MIN
            KX_UNROLL
            for (int i = 0; i < KXL_MT * KXL_NT * 4; i++)
                sum[i / (KXL_NT * 4)][i / 4 % KXL_NT][i % 4] = 0;
            KXL_F(kxl_mins)(now, &l, sum);
            KXL_SLICE(1)
#endif
        }
#else
        KX_UNROLL
        for (int s = 0; s < 8; s++)
            if (st * 8u + s < k / 32u)
                KXL_F(kxl_block)(now, &l, (kx_u)s, acc[s]);
#endif
    }
    /* slices folded, the tile goes through shared memory so that stores are rows of out; one loop
     * with one copy of the functions */
    kx_cp_wait(0);
    kx_sync();
    KX_UNROLL
    for (int mt = 0; mt < KXL_MT; mt++) {
        KX_UNROLL
        for (int nt = 0; nt < KXL_NT; nt++) {
            KX_UNROLL
            for (int i = 0; i < 4; i++)
                ((float *)sm)[(x0 + 8u * nt + 2u * t + (i & 1)) * (KXL_BW + 4u) + w0 + 16u * mt + 8u * (i >> 1) + g] =
                    KXL_FSCALE(((acc[0][mt][nt][i] + acc[4][mt][nt][i]) + (acc[2][mt][nt][i] + acc[6][mt][nt][i])) +
                               ((acc[1][mt][nt][i] + acc[5][mt][nt][i]) + (acc[3][mt][nt][i] + acc[7][mt][nt][i])));
        }
    }
    kx_sync();
    for (kx_u i = kx_tid(); i < KXL_COLS * KXL_BX; i += KXL_THREADS) {
        const kx_u c = i % KXL_COLS, r = i / KXL_COLS;

        if (row0 + r < a.n && w.col0 + c < w.n) {
#if KXL_GEGLU
            const float *v = (const float *)sm + r * (KXL_BW + 4u) + (c >> 3) * 16u + (c & 7u);

            kxl_finish_geglu(&a, row0 + r, w.col0 + c, w.n, v[0], v[8]);
#else
            kxl_finish(&a, w.part, row0 + r, w.col0 + c, w.n, ((const float *)sm)[r * (KXL_BW + 4u) + c]);
#endif
        }
    }
}
