/* kx_attn_merge.cu - folds the splits of a row, ascending, as one-pass kernels do.
 *
 * A block of 128 threads is one (row, head) and 128 columns. m and l of up to 128
 * splits come at once; sums of 16 splits are on their way together.
 */
struct kx_mg {
    float bm, bl, a;
};
KX_DEV void kx_mg_splits(const struct kx_attn *a, struct kx_mg *s, kx_p vec, kx_u col, float *sm, float *sl)
{
    kx_u hd = a->kv.head_dim, s0, s1, i, j;

    s->bm = KX_AT_NONE;
    s->bl = 0.0f;
    s->a = 0.0f;
    for (s0 = 0u; s0 < a->n_splits; s0 += 128u) {
        kx_sync();
        s1 = a->n_splits - s0 < 128u ? a->n_splits - s0 : 128u;
        sm[kx_tid()] = KX_AT_NONE;
        sl[kx_tid()] = 0.0f;
        if (kx_tid() < s1) {
            sm[kx_tid()] = ((const float *)a->part_m)[vec * a->n_splits + s0 + kx_tid()];
            sl[kx_tid()] = ((const float *)a->part_l)[vec * a->n_splits + s0 + kx_tid()];
        }
        kx_sync();
        for (i = 0u; i < s1; i += 16u) {
            float x[16];

            KX_UNROLL
            for (j = 0u; j < 16u; j++) {
                x[j] = 0.0f;
                if (col < hd && !(sl[i + j] == 0.0f))
                    x[j] = ((const float *)a->part_a)[(vec * a->n_splits + s0 + i + j) * hd + col];
            }
            KX_UNROLL
            for (j = 0u; j < 16u; j++) {
                float l = sl[i + j], wo, wn;

                if (l == 0.0f)
                    continue;
                if (s->bl == 0.0f) {
                    s->bm = sm[i + j];
                    s->bl = l;
                    s->a = x[j];
                } else {
                    kx_at_fold(&s->bm, &s->bl, sm[i + j], l, &wo, &wn);
                    s->a = kx_fma(x[j], wn, s->a * wo);
                }
            }
        }
    }
}
KX_DEV void kx_mg_store(const struct kx_attn *a, const struct kx_mg *s, kx_p vec, kx_u col)
{
    float x = kx_at_done(s->a, s->bl == 0.0f ? 0.0f : kx_div(1.0f, s->bl));

    if (col >= a->kv.head_dim)
        return;
    if (a->x_t == KX_F16)
        ((unsigned short *)a->out)[vec * a->kv.head_dim + col] = kx_f2h(x);
    else
        ((float *)a->out)[vec * a->kv.head_dim + col] = x;
}
