
/* kx_linear_fast.cu - products of halves (KXL_TF32: of floats rounded to tf32) on tensor cores, f32
 * sums in ascending columns: the same order whatever the tile, so a row's bits do not depend on how
 * many rows there are. A block makes KXL_BX rows of x by KXL_BW weight rows, a warp 16 KXL_MT by
 * 8 KXL_NT of it; 128 bytes of columns at a time through KXL_STAGES buffers, 16-byte chunk c of row
 * r at c ^ (r & 7). A fragment of 8 tf32 columns lies as one of 16 halves does: word for word. */
#undef KXL_THREADS
#undef KXL_BW
#undef KXL_BX
#undef KXL_OW
#undef KXL_STAGE
#undef KXL_P
#undef KXL_F
#undef KXL_T
#undef KXL_C16
#undef KXL_MMA
#define KXL_F(name) KXL_CAT(name, KXL_TAG)
#define KXL_THREADS (32u * KXL_WY * KXL_WX)
#define KXL_BX (16u * KXL_MT * KXL_WX)
#define KXL_BW (8u * KXL_NT * KXL_WY)
#define KXL_OW (KXL_BX * 128u)
#define KXL_STAGE (KXL_OW + KXL_BW * 128u)
#define KXL_P (KXL_BW + 8u)
/* type of an element of x and of the weights, how many 16 bytes hold */
#if KXL_TF32
#define KXL_T kx_u
#define KXL_C16 4u
#define KXL_MMA kx_mma_tf32_1688
#else
#define KXL_T unsigned short
#define KXL_C16 8u
#define KXL_MMA kx_mma_f16_16816
#endif

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

KX_DEV void KXL_F(kxl_fill)(unsigned char *sm, const struct kx_linear *a, const struct kxl_tile *w, kx_u row0, kx_u st)
{
    const kx_u k = KXL_K(a->k), row_bytes = KXL_UP16(k * (16u / KXL_C16)), tid = kx_tid();
    int ok;

    if ((k & (KXL_C16 - 1u)) == 0u) {
        KX_UNROLL
        for (kx_u i = tid; i < KXL_BX * 8u; i += KXL_THREADS) {
            const kx_u r = i >> 3, c = i & 7u, off = st * (8u * KXL_C16) + c * KXL_C16;

            ok = row0 + r < a->n && off < k;
            kx_cp16_if(sm + r * 128u + ((c ^ (r & 7u)) * 16u), (const KXL_T *)a->x + (unsigned long long)(ok ? row0 + r : 0u) * k + off, ok);
        }
    } else { /* rows of x not aligned */
        for (kx_u i = tid; i < KXL_BX * 8u * KXL_C16; i += KXL_THREADS) {
            const kx_u r = i / (8u * KXL_C16), c = i % (8u * KXL_C16), off = st * (8u * KXL_C16) + c;

            ok = row0 + r < a->n && off < k;
            *(KXL_T *)(sm + r * 128u + (((c / KXL_C16) ^ (r & 7u)) * 16u) + c % KXL_C16 * (16u / KXL_C16)) =
                ok ? ((const KXL_T *)a->x)[(unsigned long long)(row0 + r) * k + off] : (KXL_T)0;
        }
    }
    KX_UNROLL
    for (kx_u i = tid; i < KXL_BW * 8u; i += KXL_THREADS) {
        const kx_u r = i >> 3, c = i & 7u, off = st * 128u + c * 16u;
        const unsigned char *p = KXL_F(kxl_row)(a, w, r, row_bytes, &ok);

        kx_cp16_if(sm + KXL_OW + r * 128u + ((c ^ (r & 7u)) * 16u), p + off, ok && off < row_bytes);
    }
}

KX_KERNEL(KXL_NAME, KXL_THREADS, KXL_MINB, struct kx_linear, a)
{
    KX_DYN_SHARED(sm);
    const kx_u k = KXL_K(a.k), nst = (k + 8u * KXL_C16 - 1u) / (8u * KXL_C16), row0 = kx_by() * KXL_BX;
    const kx_u lane = kx_tid() & 31u, warp = kx_tid() >> 5;
    const kx_u x0 = warp / KXL_WY * (16u * KXL_MT), w0 = warp % KXL_WY * (8u * KXL_NT);
    struct kxl_tile w;
    float acc[KXL_MT][KXL_NT][4];

    kx_wait();
    kxl_tile_at(&a, kx_bx(), KXL_COLS, KXL_GEGLU, &w);
    KX_UNROLL
    for (int i = 0; i < KXL_MT * KXL_NT * 4; i++)
        acc[i / (KXL_NT * 4)][i / 4 % KXL_NT][i % 4] = 0.0f;
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
        KX_UNROLL
        for (int q = 0; q < 4; q++) {
            kx_u fx[KXL_MT][4], fw[KXL_NT][2];

            KX_UNROLL
            for (int i = 0; i < KXL_MT; i++) {
                const kx_u r = x0 + 16u * i + (lane & 15u);

                kx_ldm4(fx[i], now + r * 128u + (((2u * q + (lane >> 4)) ^ (r & 7u)) * 16u));
            }
            KX_UNROLL
            for (int j = 0; j < KXL_NT; j += 2) {
                const kx_u r = w0 + 8u * j + (lane >> 4) * 8u + (lane & 7u);
                kx_u f[4];

                kx_ldm4(f, now + KXL_OW + r * 128u + (((2u * q + (lane >> 3 & 1u)) ^ (r & 7u)) * 16u));
                fw[j][0] = f[0];
                fw[j][1] = f[1];
                fw[j + 1][0] = f[2];
                fw[j + 1][1] = f[3];
            }
#if KXL_TF32
            KX_UNROLL
            for (int i = 0; i < KXL_MT * 4; i++)
                fx[i / 4][i % 4] = kx_f2tf32(kx_i2f_bits((int)fx[i / 4][i % 4]));
            KX_UNROLL
            for (int j = 0; j < KXL_NT * 2; j++)
                fw[j / 2][j % 2] = kx_f2tf32(kx_i2f_bits((int)fw[j / 2][j % 2]));
#endif
            KX_UNROLL
            for (int i = 0; i < KXL_MT; i++) {
                KX_UNROLL
                for (int j = 0; j < KXL_NT; j++)
                    KXL_MMA(acc[i][j], fx[i], fw[j]);
            }
        }
    }
    kx_cp_wait(0);
    kx_sync();
    KX_UNROLL
    for (int i = 0; i < KXL_MT; i++) {
        KX_UNROLL
        for (int j = 0; j < KXL_NT; j++) {
            KX_UNROLL
            for (int h = 0; h < 2; h++) {
                float *p = (float *)sm + (x0 + 16u * i + 8u * h + (lane >> 2)) * KXL_P + w0 + 8u * j + 2u * (lane & 3u);

                p[0] = acc[i][j][2 * h];
                p[1] = acc[i][j][2 * h + 1];
            }
        }
    }
    kx_sync();
#if KXL_GEGLU
    for (kx_u i = kx_tid(); i < KXL_COLS * KXL_BX; i += KXL_THREADS) {
        const kx_u c = i % KXL_COLS, r = i / KXL_COLS;
        const float *v = (const float *)sm + r * KXL_P + (c >> 3) * 16u + (c & 7u);

        if (row0 + r < a.n && w.col0 + c < w.n)
            kxl_finish_geglu(&a, row0 + r, w.col0 + c, w.n, v[0], v[8]);
    }
#else
    kxl_finish_tile(&a, &w, (const float *)sm, KXL_P, row0, KXL_BX, KXL_BW, KXL_THREADS);
#endif
}
