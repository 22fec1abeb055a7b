
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
    }
}

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
