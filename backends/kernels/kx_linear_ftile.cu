
/* kx_linear_ftile.cu - mat-mat, float weights, exact f32. A block makes KXL_BW weight rows by
 * KXL_BX rows of x with 8 warps; warp s takes slice s of the whole tile: of each 64 columns that are
 * staged the 8 from 8 s on, so nothing staged is read twice. A lane holds KXL_TX by KXL_TW sums, its
 * rows 4 and 8 apart; staged rows are padded by 16 bytes, so 8 rows meet 8 different banks. At the
 * end the 8 slices are folded through shared memory. */
#undef KXL_BW
#undef KXL_BX
#undef KXL_WP
#undef KXL_XP
#undef KXL_OX
#undef KXL_STAGE
#undef KXL_P
#undef KXL_F
#undef KXL_CW
#undef KXL_NW
#undef KXL_NX
#define KXL_F(name) KXL_CAT(name, KXL_TAG)
#define KXL_BW (8u * KXL_TW)
#define KXL_BX (4u * KXL_TX)
#define KXL_WP (64u * KXL_CODE + 16u)
#define KXL_XP 272u
#define KXL_OX (KXL_BW * KXL_WP)
#define KXL_STAGE (KXL_OX + KXL_BX * KXL_XP)
/* a row of the tile of one slice, in floats */
#define KXL_P (KXL_BW + 8u)

KX_DEV const unsigned char *KXL_F(kxl_row)(const struct kx_linear *a, const struct kxl_tile *w, kx_u r, kx_u row_bytes, int *ok)
{
#if KXL_GEGLU
    const kx_u part = r >> 3 & 1u, col = w->col0 + (r >> 4) * 8u + (r & 7u);
#else
    const kx_u part = w->part, col = w->col0 + r;
#endif
    *ok = col < w->n;
    return kxl_plane(a, part, 0u) + (unsigned long long)(*ok ? col : 0u) * row_bytes;
}

/* What a thread copies of each stage: the same 16 bytes of some rows of w and of x, step rows apart. */
#define KXL_CW (4u * KXL_CODE) /* pieces of a row of w, of x: 16 */
#define KXL_NW (KXL_BW * KXL_CW / 256u)
#define KXL_NX (KXL_BX / 16u)
struct KXL_F(kxl_from) {
    const unsigned char *w[KXL_NW];
    const float *x;
    kx_u ok; /* bits: rows that are there, of w from 0, of x from 16 */
};

KX_DEV void KXL_F(kxl_from_at)(struct KXL_F(kxl_from) *f, const struct kx_linear *a, const struct kxl_tile *w, kx_u row0)
{
    const kx_u k = KXL_K(a->k), row_bytes = KXL_UP16(k * KXL_CODE), tid = kx_tid();
    int ok;

    f->ok = 0u;
    KX_UNROLL
    for (kx_u i = 0u; i < KXL_NW; i++) {
        f->w[i] = KXL_F(kxl_row)(a, w, tid / KXL_CW + i * (256u / KXL_CW), row_bytes, &ok) + tid % KXL_CW * 16u;
        f->ok |= (kx_u)ok << i;
    }
    f->x = (const float *)a->x + (unsigned long long)(row0 + (tid >> 4)) * k + (tid & 15u) * 4u;
    KX_UNROLL
    for (kx_u i = 0u; i < KXL_NX; i++)
        f->ok |= (kx_u)(row0 + (tid >> 4) + 16u * i < a->n) << (16u + i);
}

/* Columns 64 st .. to a stage; past the end zeros. Rows of x that are halves or whose width is
 * no multiple of 4 go through registers. */
KX_DEV void KXL_F(kxl_fill)(unsigned char *sm, const struct kx_linear *a, struct KXL_F(kxl_from) *f, kx_u row0, kx_u st)
{
    const kx_u k = KXL_K(a->k), row_bytes = KXL_UP16(k * KXL_CODE), tid = kx_tid();
    const int in_w = st * 64u * KXL_CODE + tid % KXL_CW * 16u < row_bytes, in_x = st * 64u + (tid & 15u) * 4u < k;

    KX_UNROLL
    for (kx_u i = 0u; i < KXL_NW; i++) {
        kx_cp16_if(sm + (tid / KXL_CW + i * (256u / KXL_CW)) * KXL_WP + tid % KXL_CW * 16u, f->w[i], in_w && (f->ok >> i & 1u));
        f->w[i] += 64u * KXL_CODE;
    }
    if (a->x_t == KX_F32 && (k & 3u) == 0u) {
        KX_UNROLL
        for (kx_u i = 0u; i < KXL_NX; i++)
            kx_cp16_if(sm + KXL_OX + ((tid >> 4) + 16u * i) * KXL_XP + (tid & 15u) * 16u, f->x + (unsigned long long)(16u * i) * k, in_x && (f->ok >> (16u + i) & 1u));
        f->x += 64u;
    } else {
        for (kx_u i = tid; i < KXL_BX * 64u; i += 256u) {
            const kx_u r = i >> 6, c = st * 64u + (i & 63u);
            const unsigned long long at = (unsigned long long)(row0 + r) * k + c;
            float v = 0.0f;

            if (row0 + r < a->n && c < k)
                v = a->x_t == KX_F16 ? kx_h2f(((const unsigned short *)a->x)[at]) : ((const float *)a->x)[at];
            *(float *)(sm + KXL_OX + r * KXL_XP + (i & 63u) * 4u) = v;
        }
    }
}

/* 4 weights from shared memory. */
KX_DEV struct kx_f4 KXL_F(kxl_w4)(const unsigned char *p)
{
#if KXL_CODE == 4
    return *(const struct kx_f4 *)p;
#else
    const struct kx_u2 v = *(const struct kx_u2 *)p;
    struct kx_f4 f;

    f.x = kxl_word(v.x, 0);
    f.y = kxl_word(v.x, 1);
    f.z = kxl_word(v.y, 0);
    f.w = kxl_word(v.y, 1);
    return f;
#endif
}

KX_KERNEL(KXL_NAME, 256, KXL_MINB, struct kx_linear, a)
{
    KX_DYN_SHARED(sm);
    const kx_u k = KXL_K(a.k), nst = (k + 63u) / 64u, row0 = kx_by() * KXL_BX;
    const kx_u s = kx_tid() >> 5, lx = kx_tid() >> 3 & 3u, lw = kx_tid() & 7u;
    struct KXL_F(kxl_from) from;
    struct kxl_tile w;
    float acc[KXL_TX][KXL_TW];
    float *part = (float *)sm, *tile = part + 8u * 16u * KXL_P;

    kx_wait();
    kxl_tile_at(&a, kx_bx(), KXL_COLS, KXL_GEGLU, &w);
    KXL_F(kxl_from_at)(&from, &a, &w, row0);
    KX_UNROLL
    for (int i = 0; i < KXL_TX; i++) {
        KX_UNROLL
        for (int j = 0; j < KXL_TW; j++)
            acc[i][j] = 0.0f;
    }
    for (kx_u st = 0u; st < KXL_STAGES - 1u; st++) {
        if (st < nst)
            KXL_F(kxl_fill)(sm + st * KXL_STAGE, &a, &from, row0, st);
        kx_cp_commit();
    }
    for (kx_u st = 0u; st < nst; st++) {
        const unsigned char *now = sm + st % KXL_STAGES * KXL_STAGE;
        const kx_u next = st + KXL_STAGES - 1u;

        kx_cp_wait(KXL_STAGES - 2);
        kx_sync();
        if (next < nst)
            KXL_F(kxl_fill)(sm + next % KXL_STAGES * KXL_STAGE, &a, &from, row0, next);
        kx_cp_commit();
        if (st * 64u + s * 8u < k) {
            KX_UNROLL
            for (int h = 0; h < 2; h++) {
                struct kx_f4 fw[KXL_TW];

                KX_UNROLL
                for (int j = 0; j < KXL_TW; j++)
                    fw[j] = KXL_F(kxl_w4)(now + (8u * j + lw) * KXL_WP + (s * 8u + 4u * h) * KXL_CODE);
                KX_UNROLL
                for (int i = 0; i < KXL_TX; i++) {
                    const struct kx_f4 x = *(const struct kx_f4 *)(now + KXL_OX + (4u * i + lx) * KXL_XP + (s * 8u + 4u * h) * 4u);

                    KX_UNROLL
                    for (int j = 0; j < KXL_TW; j++)
                        acc[i][j] = kx_fma(fw[j].x, x.x, acc[i][j]);
                    KX_UNROLL
                    for (int j = 0; j < KXL_TW; j++)
                        acc[i][j] = kx_fma(fw[j].y, x.y, acc[i][j]);
                    KX_UNROLL
                    for (int j = 0; j < KXL_TW; j++)
                        acc[i][j] = kx_fma(fw[j].z, x.z, acc[i][j]);
                    KX_UNROLL
                    for (int j = 0; j < KXL_TW; j++)
                        acc[i][j] = kx_fma(fw[j].w, x.w, acc[i][j]);
                }
            }
        }
    }
    kx_cp_wait(0);
    /* 16 rows of x at a time: all slices to shared memory, then their fold to the tile */
    KX_UNROLL
    for (int b = 0; b < KXL_TX / 4; b++) {
        kx_sync();
        KX_UNROLL
        for (int i = 0; i < 4; i++) {
            KX_UNROLL
            for (int j = 0; j < KXL_TW; j++)
                part[(s * 16u + 4u * i + lx) * KXL_P + 8u * j + lw] = acc[4 * b + i][j];
        }
        kx_sync();
        for (kx_u i = kx_tid(); i < 16u * KXL_BW; i += 256u) {
            const float *p = part + i / KXL_BW * KXL_P + i % KXL_BW;

            tile[(16u * b + i / KXL_BW) * KXL_P + i % KXL_BW] =
                ((p[0] + p[64u * KXL_P]) + (p[32u * KXL_P] + p[96u * KXL_P])) +
                ((p[16u * KXL_P] + p[80u * KXL_P]) + (p[48u * KXL_P] + p[112u * KXL_P]));
        }
    }
    kx_sync();
    for (kx_u i = kx_tid(); i < KXL_COLS * KXL_BX; i += 256u) {
        const kx_u c = i % KXL_COLS, r = i / KXL_COLS;

        if (row0 + r < a.n && w.col0 + c < w.n) {
#if KXL_GEGLU
            const float *v = tile + r * KXL_P + (c >> 3) * 16u + (c & 7u);

            kxl_finish_geglu(&a, row0 + r, w.col0 + c, w.n, v[0], v[8]);
#else
            kxl_finish(&a, w.part, row0 + r, w.col0 + c, w.n, tile[r * KXL_P + c]);
#endif
        }
    }
}
