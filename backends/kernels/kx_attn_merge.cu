/* kx_attn_merge.cu - folds the splits of a row, ascending, as one-pass kernels do.
 *
 * A block of 128 threads is one (row, head) and 128 columns. m and l of up to 128
 * splits come at once, each thread finds the two factors of one of them (those of kx_at_fold: the
 * maximum before a split is that of all before it), and what is left of the chain is two fma a split.
 */
struct kx_mg {
    float bm, bl, a;
};
KX_DEV void kx_mg_splits(const struct kx_attn *a, struct kx_mg *s, kx_p vec, kx_u col, float *sm)
{
    kx_u hd = a->kv.head_dim, s0, s1, i, j, tid = kx_tid();
    float *sl = sm + 128, *so = sm + 256, *sn = sm + 384;

    s->bm = KX_AT_NONE;
    s->bl = 0.0f;
    s->a = 0.0f;
    for (s0 = 0u; s0 < a->n_splits; s0 += 128u) {
        float m = KX_AT_NONE, l = 0.0f, before = s->bm, mm;

        kx_sync();
        s1 = a->n_splits - s0 < 128u ? a->n_splits - s0 : 128u;
        if (tid < s1) {
            m = ((const float *)a->part_m)[vec * a->n_splits + s0 + tid];
            l = ((const float *)a->part_l)[vec * a->n_splits + s0 + tid];
        }
        sm[tid] = l == 0.0f ? KX_AT_NONE : m; /* a split without keys changes nothing */
        sl[tid] = l;
        kx_sync();
        for (i = 0u; i < tid && i < s1; i++)
            before = kx_max(before, sm[i]);
        mm = kx_max(before, m);
        so[tid] = kx_at_corr(before, mm);
        sn[tid] = kx_at_corr(m, mm);
        for (i = 0u; i < s1; i++)
            s->bm = kx_max(s->bm, sm[i]);
        kx_sync();
        for (i = 0u; i < s1; i += 32u) {
            float x[32];

            KX_UNROLL
            for (j = 0u; j < 32u; j++) {
                x[j] = 0.0f;
                if (col < hd && !(sl[i + j] == 0.0f))
                    x[j] = ((const float *)a->part_a)[(vec * a->n_splits + s0 + i + j) * hd + col];
            }
            KX_UNROLL
            for (j = 0u; j < 32u; j++) {
                float lj = sl[i + j];

                if (lj == 0.0f)
                    continue;
                s->a = s->bl == 0.0f ? x[j] : kx_fma(x[j], sn[i + j], s->a * so[i + j]);
                s->bl = s->bl == 0.0f ? lj : kx_fma(lj, sn[i + j], s->bl * so[i + j]);
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
