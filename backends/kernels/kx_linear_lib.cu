
/* kx_linear_lib.cu - what all linear kernels share. The format's KXL_* words stand in front:
 * KXL_CODE bytes of codes per sub-block of 32 columns, KXL_BITS bytes of high bits, KXL_MIN 1 with
 * minimum, KXL_ZERO the zero point, KXL_SUPER 1 for superblocks of 256 columns. */
#define KXL_SEL(i, v0, v1, v2) ((i) == 0u ? (v0) : (i) == 1u ? (v1) : (v2))
#define KXL_UP16(x) (((x) + 15u) & ~15u)

/* A tile of columns: its part, the first column, the part's columns. Gated pairs share a tile. */
struct kxl_tile {
    kx_u part, col0, n;
};

KX_DEV kx_u kxl_tiles(const struct kx_linear *a, kx_u cols, int geglu)
{
    kx_u n = (a->n_out[0] + cols - 1u) / cols;

    if (geglu)
        return n;
    if (a->n_parts > 1u)
        n += (a->n_out[1] + cols - 1u) / cols;
    if (a->n_parts > 2u)
        n += (a->n_out[2] + cols - 1u) / cols;
    return n;
}

KX_DEV void kxl_tile_at(const struct kx_linear *a, kx_u tile, kx_u cols, int geglu, struct kxl_tile *t)
{
    const kx_u n0 = (a->n_out[0] + cols - 1u) / cols;
    kx_u n1;

    t->part = 0u;
    if (!geglu && tile >= n0) {
        n1 = (a->n_out[1] + cols - 1u) / cols;
        tile -= n0;
        t->part = 1u;
        if (tile >= n1) {
            tile -= n1;
            t->part = 2u;
        }
    }
    t->col0 = tile * cols;
    t->n = KXL_SEL(t->part, a->n_out[0], a->n_out[1], a->n_out[2]);
}

KX_DEV const unsigned char *kxl_plane(const struct kx_linear *a, kx_u part, kx_u i)
{
    if (i == 0u)
        return (const unsigned char *)KXL_SEL(part, a->w[0][0], a->w[1][0], a->w[2][0]);
    if (i == 1u)
        return (const unsigned char *)KXL_SEL(part, a->w[0][1], a->w[1][1], a->w[2][1]);
    if (i == 2u)
        return (const unsigned char *)KXL_SEL(part, a->w[0][2], a->w[1][2], a->w[2][2]);
    return (const unsigned char *)KXL_SEL(part, a->w[0][3], a->w[1][3], a->w[2][3]);
}

KX_DEV float kxl_bias(const struct kx_linear *a, kx_u part, kx_u col, float v)
{
    const float *b = (const float *)KXL_SEL(part, a->b[0], a->b[1], a->b[2]);

    return b ? v + b[col] : v;
}

KX_DEV void kxl_put(const struct kx_linear *a, kx_u part, unsigned long long at, float v)
{
    const kx_p out = KXL_SEL(part, a->out[0], a->out[1], a->out[2]);

    if (a->out_t == KX_F16)
        ((unsigned short *)out)[at] = kx_f2h(v);
    else
        ((float *)out)[at] = v;
}

/* Bias, function, addition, store of one element. */
KX_DEV void kxl_finish(const struct kx_linear *a, kx_u part, kx_u row, kx_u col, kx_u n_out, float v)
{
    const unsigned long long at = (unsigned long long)row * n_out + col;
    const kx_p out = KXL_SEL(part, a->out[0], a->out[1], a->out[2]);

    v = kxl_bias(a, part, col, v);
    if (a->epi == KX_EPI_GELU_ERF)
        v = kx_gelu_erf(v);
    else if (a->epi == KX_EPI_GELU_TANH)
        v = kx_gelu_tanh(v);
    else if (a->epi == KX_EPI_ADD)
        v = (a->out_t == KX_F16 ? kx_h2f(((const unsigned short *)out)[at]) : ((const float *)out)[at]) + v;
    kxl_put(a, part, at, v);
}

/* A gated pair: g the product of part 0, u of part 1. */
KX_DEV void kxl_finish_geglu(const struct kx_linear *a, kx_u row, kx_u col, kx_u n_out, float g, float u)
{
    g = kx_gelu_tanh(kxl_bias(a, 0u, col, g));
    u = kxl_bias(a, 1u, col, u);
    kxl_put(a, 0u, (unsigned long long)row * n_out + col, g * u);
}

#if KXL_CODE == 4 || (KXL_CODE == 2 && !KXL_BF16)
/* kx_gelu_erf for results kept in f16, as fast as the device can: erfc(a) = 1 / (1 + a1 a + .. + a6 a^6)^16 within
 * 3e-7 (Abramowitz and Stegun 7.1.28); the reciprocal is the device's own, so not the same bits everywhere. */
KX_DEV float kxl_gelu_erf(float z)
{
    float a = kx_abs(z) * 0.70710678f, p;

    p = kx_fma(a, 4.30638e-5f, 2.765672e-4f);
    p = kx_fma(p, a, 1.520143e-4f);
    p = kx_fma(p, a, 9.2705272e-3f);
    p = kx_fma(p, a, 4.22820123e-2f);
    p = kx_fma(p, a, 7.05230784e-2f);
    p = kx_fma(p, a, 1.0f);
    p = p * p;
    p = p * p;
    p = p * p;
    p = p * p;
    p = 0.5f * kx_min(kx_abs(z), 1.0e4f) * kx_rcp(p); /* min: infinity times 0 is NaN */
    return z < 0.0f ? -p : z - p;
}

/* Tensor-core products: a tile of sums in shared memory, row r at v + r * pitch, to one part of out by
 * a whole block. Results kept in f16 take their function from kxl_gelu_erf. */
KX_DEV void kxl_finish_tile(const struct kx_linear *a, const struct kxl_tile *w, const float *v, kx_u pitch, kx_u row0, kx_u rows, kx_u cols, kx_u threads)
{
    const float *b = (const float *)KXL_SEL(w->part, a->b[0], a->b[1], a->b[2]);
    unsigned short *out = (unsigned short *)KXL_SEL(w->part, a->out[0], a->out[1], a->out[2]);
    const struct kx_f4 none = {0.0f, 0.0f, 0.0f, 0.0f};

    if ((w->n & 3u) == 0u && a->epi != KX_EPI_ADD && a->out_t == KX_F16) {
        /* the usual case, 4 columns at a time */
        for (kx_u i = kx_tid(); i < rows * cols / 4u; i += threads) {
            const kx_u c = i % (cols / 4u) * 4u, r = i / (cols / 4u), col = w->col0 + c;
            struct kx_f4 s = *(const struct kx_f4 *)(v + r * pitch + c), t;
            struct kx_u2 o;

            if (row0 + r >= a->n || col >= w->n)
                continue;
            t = b ? *(const struct kx_f4 *)(b + col) : none;
            s.x = s.x + t.x;
            s.y = s.y + t.y;
            s.z = s.z + t.z;
            s.w = s.w + t.w;
            if (a->epi == KX_EPI_GELU_ERF) {
                s.x = kxl_gelu_erf(s.x);
                s.y = kxl_gelu_erf(s.y);
                s.z = kxl_gelu_erf(s.z);
                s.w = kxl_gelu_erf(s.w);
            } else if (a->epi == KX_EPI_GELU_TANH) {
                s.x = kx_gelu_tanh(s.x);
                s.y = kx_gelu_tanh(s.y);
                s.z = kx_gelu_tanh(s.z);
                s.w = kx_gelu_tanh(s.w);
            }
            o.x = kx_f2h2(s.x, s.y);
            o.y = kx_f2h2(s.z, s.w);
            *(struct kx_u2 *)(out + (unsigned long long)(row0 + r) * w->n + col) = o;
        }
        return;
    }
    for (kx_u i = kx_tid(); i < rows * cols; i += threads) {
        const kx_u c = i % cols, r = i / cols, col = w->col0 + c;
        float s = v[r * pitch + c];

        if (row0 + r >= a->n || col >= w->n)
            continue;
        if (a->epi == KX_EPI_GELU_ERF && a->out_t == KX_F16)
            kxl_put(a, w->part, (unsigned long long)(row0 + r) * w->n + col, kxl_gelu_erf(kxl_bias(a, w->part, col, s)));
        else
            kxl_finish(a, w->part, row0 + r, col, w->n, s);
    }
}
#endif

/* 8 lanes hold the 8 slices. */
KX_DEV float kxl_fold8(float v)
{
    v = v + kx_shfl_xor_f(v, 4);
    v = v + kx_shfl_xor_f(v, 2);
    return v + kx_shfl_xor_f(v, 1);
}

/* Last step of the mat-vec kernels: a lane that is `mine` has the sum of its row and column; with
 * gated pairs groups 0, 1 of a warp have part 0, groups 2, 3 part 1 of the same columns. All lanes. */
KX_DEV void kxl_finish_mv(const struct kx_linear *a, kx_u part, kx_u row, kx_u col, kx_u n_out, float v, int geglu, int mine)
{
    if (geglu) {
        const float u = kx_shfl_xor_f(v, 16);

        if (mine && (kx_tid() & 16u) == 0u && col < n_out)
            kxl_finish_geglu(a, row, col, n_out, v, u);
    } else if (mine && col < n_out) {
        kxl_finish(a, part, row, col, n_out, v);
        if (a->mul) { /* n is 1: this thread wrote it */
            const kx_p out = KXL_SEL(part, a->out[0], a->out[1], a->out[2]);
            const float y = a->mul_t == KX_F16 ? kx_h2f(((const unsigned short *)a->mul)[col]) : ((const float *)a->mul)[col];

            v = a->out_t == KX_F16 ? kx_h2f(((const unsigned short *)out)[col]) : ((const float *)out)[col];
            kxl_put(a, part, col, v * (a->mul_scale * y));
        }
    }
}

#if KXL_CODE > 4 || KXL_SUPER
/* Columns c .. c + 7 of x (n is 1); zeros from k on. */
KX_DEV void kxl_x8(const struct kx_linear *a, float *v, kx_u c, kx_u k)
{
    KX_UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = 0.0f;
    if (c >= k)
        return;
    if (a->x_t == KX_F16) {
        const struct kx_u4 h = *(const struct kx_u4 *)((const unsigned short *)a->x + c);
        const kx_u w[4] = {h.x, h.y, h.z, h.w};

        KX_UNROLL
        for (int i = 0; i < 4; i++) {
            v[2 * i] = kx_h2f((unsigned short)(w[i] & 0xffffu));
            v[2 * i + 1] = kx_h2f((unsigned short)(w[i] >> 16));
        }
    } else {
        const struct kx_f4 p = *(const struct kx_f4 *)((const float *)a->x + c);
        const struct kx_f4 q = *(const struct kx_f4 *)((const float *)a->x + c + 4u);

        v[0] = p.x;
        v[1] = p.y;
        v[2] = p.z;
        v[3] = p.w;
        v[4] = q.x;
        v[5] = q.y;
        v[6] = q.z;
        v[7] = q.w;
    }
}
/* Columns c0 .. of the row as int8 into shared memory, m sub-blocks of 32: sub-block b is lo[b],
 * hi[b] with the sum xs[b]; xd has one scale per 32 or 256. From codes, or made here. 128 threads. */
KX_DEV void kxl_stage(const struct kx_linear *a, kx_u row, kx_u k, kx_u c0, kx_u m, struct kx_u4 *lo, struct kx_u4 *hi, float *xd, int *xs)
{
    const kx_u per = KXL_SUPER ? 8u : 1u; /* sub-blocks of a scale */
    const kx_u tid = kx_tid();

    if (a->xq) {
        const unsigned char *xq = (const unsigned char *)a->xq + (unsigned long long)row * k + c0;
        const float *d = (const float *)a->xd + (unsigned long long)row * (k / (32u * per)) + c0 / (32u * per);
        const int *s = (const int *)a->xs + (unsigned long long)row * (k / 32u) + c0 / 32u;

        for (kx_u i = tid; i < 2u * m; i += 128u)
            (i & 1u ? hi : lo)[i >> 1] = kx_ld16(xq + i * 16u);
        for (kx_u i = tid; i < m / per; i += 128u)
            xd[i] = d[i];
        for (kx_u i = tid; i < m; i += 128u)
            xs[i] = s[i];
        return;
    }
    for (kx_u i = tid; i - (tid & 31u) < 4u * m; i += 128u) {
        struct kx_u2 q;
        float v[8], d;
        int s;

        kxl_x8(a, v, i < 4u * m ? c0 + i * 8u : k, k);
#if KXL_SUPER
        kx_q8_k(v, &q, &d, &s);
#else
        kx_q8_0(v, &q, &d, &s);
#endif
        if (i >= 4u * m)
            continue;
        *(struct kx_u2 *)((unsigned char *)((i & 2u ? hi : lo) + (i >> 2)) + (i & 1u) * 8u) = q;
        if ((i & 3u) == 0u)
            xs[i >> 2] = s;
        if (i % (4u * per) == 0u)
            xd[i / (4u * per)] = d;
    }
}
#endif

#if KXL_CODE <= 4
/* A float weight from the word that holds it, or from its upper half. */
KX_DEV float kxl_word(kx_u w, int hi)
{
#if KXL_CODE == 4
    return kx_i2f_bits((int)w);
#elif KXL_BF16
    return kx_i2f_bits((int)(hi ? w & 0xffff0000u : w << 16));
#else
    return kx_h2f((unsigned short)(hi ? w >> 16 : w & 0xffffu));
#endif
}
#endif
