/* kx_attn_mma.cu - attention on tensor cores: f16 products, f32 sums.
 *
 * The library defines, before this text: KX_HD head_dim, KX_KT keys of a tile, KX_MT 16-row
 * tiles of a warp, KX_CW warps that share rows (each takes HD / CW columns of the
 * result), KX_KS keys of a stage of split kernels, KX_AT_FAST (e^x by the device's 2^x).
 * 128 threads. In both kernels a score is one chain of products over head_dim, a value one
 * chain over the tile's keys, and l the sum of kx_attn_math.h: so they give the same bits.
 *
 * Shared rows of halves are cut in 16-byte pieces, piece c of row r at c ^ (r & 7): ldmatrix
 * and cp.async then meet no bank twice.
 */
#define KX_HB (KX_HD * 2u)
#define KX_HC (KX_HD / 8u)
#define KX_MROWS (16u * KX_MT * (4u / KX_CW))
#define KX_NB (KX_HD / KX_CW / 8u)
#define KX_TILE_BYTES (KX_KT * KX_HB)
/* keys as int8: codes, then scales */
#define KX_RAW_BYTES(keys) ((keys) * KX_HD + (keys) * (KX_HD / 16u))
#define KX_SC 260u /* floats between rows of scores: 16 bytes more than a multiple of 128 */

#if KX_AT_FAST
#define KX_AT_SCALE(s) ((s) * 1.44269504f)
#define KX_AT_EXP(x) kx_ex2(x)
#else
#define KX_AT_SCALE(s) (s)
#define KX_AT_EXP(x) kx_at_exp(x)
#endif

KX_DEV kx_u kx_am_at(kx_u row, kx_u c) { return row * KX_HB + ((c ^ (row & 7u)) << 4); }

/* Query rows as halves, zeros where there is none. */
KX_DEV void kx_am_q(const struct kx_av *v, unsigned char *sq, kx_u rows)
{
    kx_u c;

    for (c = kx_tid(); c < rows * KX_HC; c += 128u) {
        kx_u i = c / KX_HC, p = c % KX_HC;
        struct kx_u4 w = {0u, 0u, 0u, 0u};

        if (kx_av_has(v, i)) {
            kx_p at = kx_av_q(v, i, KX_HD) + p * 8u;

            if (v->x_t == KX_F16) {
                w = kx_ld16((const unsigned short *)v->q + at);
            } else {
                struct kx_u4 x = kx_ld16((const float *)v->q + at), y = kx_ld16((const float *)v->q + at + 4u);

                w.x = kx_f2h2(kx_i2f_bits((int)x.x), kx_i2f_bits((int)x.y));
                w.y = kx_f2h2(kx_i2f_bits((int)x.z), kx_i2f_bits((int)x.w));
                w.z = kx_f2h2(kx_i2f_bits((int)y.x), kx_i2f_bits((int)y.y));
                w.w = kx_f2h2(kx_i2f_bits((int)y.z), kx_i2f_bits((int)y.w));
            }
        }
        *(struct kx_u4 *)(sq + kx_am_at(i, p)) = w;
    }
}

/* n keys from key0 on their way into dst; those outside [klo, khi) are zeros. two: values
 * too, into dst + bytes of n keys; a page is looked up once for both. */
KX_DEV void kx_am_cp(const struct kx_av *v, unsigned char *dst, kx_p base, kx_u key0, kx_u n, int two)
{
    kx_u page[4], c; /* of each 16 keys; a step of the loop stays inside of 16 */

    KX_UNROLL
    for (c = 0u; c < n / 16u; c++)
        page[c] = kx_av_page16(v, key0 + 16u * c);
    KX_UNROLL
    for (c = 0u; c < n * KX_HC; c += 128u) {
        kx_u row = c / KX_HC + kx_tid() / KX_HC, p = kx_tid() % KX_HC, key = key0 + row;
        int ok = key >= v->klo && key < v->khi;
        kx_p off = kx_av_off16(v, page[c / KX_HC / 16u], key, KX_HB) + p * 16u;

        kx_cp16_if(dst + kx_am_at(row, p), (const void *)(base + off), ok);
        if (two)
            kx_cp16_if(dst + n * KX_HB + kx_am_at(row, p), (const void *)(v->v + off), ok);
    }
}
/* The same for int8 keys, as they are; outside of [klo, khi) what was there stays. */
KX_DEV void kx_am_cp_q8(const struct kx_av *v, unsigned char *dst, kx_p base, kx_u key0, kx_u n, int two)
{
    kx_u page[5], c, at = kx_tid() * 16u, key = key0 + at / (KX_HD / 16u), scales;
    int far = kx_tid() / (KX_HD / 16u) >= 16u; /* head_dim 64: a step is 32 keys */

    KX_UNROLL
    for (c = 0u; c < n / 16u; c++)
        page[c] = kx_av_page16(v, key0 + 16u * c);
    page[n / 16u] = 0u;
    /* scales of neighbouring keys share 16 bytes */
    scales = at < n * (KX_HD / 16u) && key + (KX_HD < 256u ? 256u / KX_HD : 1u) > v->klo && key < v->khi;
    if (scales) {
        kx_p off = kx_av_off16(v, kx_av_page16(v, key & ~15u), key, KX_HD / 16u) + v->scales_at + at % (KX_HD / 16u);

        kx_cp16(dst + n * KX_HD + at, (const void *)(base + off));
        if (two)
            kx_cp16(dst + KX_RAW_BYTES(n) + n * KX_HD + at, (const void *)(v->v + off));
    }
    KX_UNROLL
    for (c = 0u; c < n * (KX_HD / 16u); c += 128u) {
        kx_u row = c / (KX_HD / 16u) + kx_tid() / (KX_HD / 16u), p = kx_tid() % (KX_HD / 16u);
        kx_u g = c / (KX_HD / 16u) / 16u;

        key = key0 + row;
        if (key >= v->klo && key < v->khi) {
            kx_p off = kx_av_off16(v, far ? page[g + 1u] : page[g], key, KX_HD) + p * 16u;

            kx_cp16(dst + (c + kx_tid()) * 16u, (const void *)(base + off));
            if (two)
                kx_cp16(dst + KX_RAW_BYTES(n) + (c + kx_tid()) * 16u, (const void *)(v->v + off));
        }
    }
}
/* code b of w, exact: 2^23 + (code + 128) as bits */
KX_DEV float kx_am_code(kx_u w, kx_u b)
{
    return kx_i2f_bits((int)kx_prmt(w ^ 0x80808080u, 0x4B000000u, 0x7440u | b)) - 8388736.0f;
}
KX_DEV kx_u kx_am_pair(kx_u w, kx_u b, float d) { return kx_f2h2(kx_am_code(w, b) * d, kx_am_code(w, b + 1u) * d); }
/* int8 keys to halves: code * scale, rounded once. */
KX_DEV void kx_am_widen(const struct kx_av *v, unsigned char *dst, const unsigned char *raw, kx_u key0, kx_u n)
{
    kx_u c;

    for (c = kx_tid(); c < n * (KX_HD / 16u); c += 128u) {
        kx_u row = c / (KX_HD / 16u), p = c % (KX_HD / 16u), key = key0 + row;
        struct kx_u4 x = {0u, 0u, 0u, 0u}, y = {0u, 0u, 0u, 0u};

        if (key >= v->klo && key < v->khi) {
            struct kx_u4 w = *(const struct kx_u4 *)(raw + c * 16u);
            float d = kx_h2f(*(const unsigned short *)(raw + n * KX_HD + row * (KX_HD / 16u) + (p >> 1) * 2u));

            x.x = kx_am_pair(w.x, 0u, d);
            x.y = kx_am_pair(w.x, 2u, d);
            x.z = kx_am_pair(w.y, 0u, d);
            x.w = kx_am_pair(w.y, 2u, d);
            y.x = kx_am_pair(w.z, 0u, d);
            y.y = kx_am_pair(w.z, 2u, d);
            y.z = kx_am_pair(w.w, 0u, d);
            y.w = kx_am_pair(w.w, 2u, d);
        }
        *(struct kx_u4 *)(dst + kx_am_at(row, 2u * p)) = x;
        *(struct kx_u4 *)(dst + kx_am_at(row, 2u * p + 1u)) = y;
    }
}

/* ---- one pass: a warp owns 16 KX_MT rows and walks all their tiles */

struct kx_am {
    float s[KX_MT][KX_KT / 8u][4]; /* scores, then weights of a tile */
    float a[KX_MT][KX_NB][4];
    float m[KX_MT][2], l[KX_MT][2][2], c[KX_MT][2];
    float bm[KX_MT][2], bl[KX_MT][2]; /* of the splits before */
    kx_u lo[KX_MT][2], hi[KX_MT][2];
    kx_u row, ch;    /* first row of the warp; first 16-byte piece of its columns */
    kx_u wlo, whi;   /* keys that some row of the warp sees */
    kx_u key0, skip; /* of the tile at hand */
    const unsigned char *k, *v;
};
KX_DEV kx_u kx_am_lane(void) { return kx_tid() & 31u; }

KX_DEV void kx_am_open(const struct kx_av *v, struct kx_am *s)
{
    kx_u warp = kx_tid() >> 5, last = v->n * v->gp, hi0, i, h;

    s->row = warp / KX_CW * (16u * KX_MT);
    s->ch = warp % KX_CW * (KX_HC / KX_CW);
    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (h = 0u; h < 2u; h++) {
            kx_av_span(v, s->row + 16u * i + 8u * h + (kx_am_lane() >> 2), &s->lo[i][h], &s->hi[i][h]);
            s->bm[i][h] = KX_AT_NONE;
            s->bl[i][h] = 0.0f;
        }
    }
    kx_av_span(v, s->row, &s->wlo, &hi0);
    last = last < v->m0 + s->row + 16u * KX_MT ? last : v->m0 + s->row + 16u * KX_MT;
    s->whi = hi0 ? kx_av_hi(v, v->pos0 + (last - 1u) / v->gp) : 0u;
    s->key0 = 0u;
    s->skip = 1u;
}
KX_DEV void kx_am_fresh(struct kx_am *s)
{
    kx_u i, h, j;

    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (h = 0u; h < 2u; h++) {
            s->m[i][h] = KX_AT_NONE;
            s->l[i][h][0] = 0.0f;
            s->l[i][h][1] = 0.0f;
        }
        KX_UNROLL
        for (j = 0u; j < KX_NB; j++) {
            s->a[i][j][0] = 0.0f;
            s->a[i][j][1] = 0.0f;
            s->a[i][j][2] = 0.0f;
            s->a[i][j][3] = 0.0f;
        }
    }
}
/* Tile t has landed and t + 1 is on its way. sm: two tiles of keys and values; int8 ones
 * first their halves, then two raw tiles. */
KX_DEV void kx_am_begin(const struct kx_av *v, unsigned char *sm, kx_u t, int q8)
{
    if (q8)
        kx_am_cp_q8(v, sm + 2u * KX_TILE_BYTES + (t & 1u) * 2u * KX_RAW_BYTES(KX_KT), v->k, t * KX_KT, KX_KT, 1);
    else
        kx_am_cp(v, sm + (t & 1u) * 2u * KX_TILE_BYTES, v->k, t * KX_KT, KX_KT, 1);
    kx_cp_commit();
}
KX_DEV void kx_am_stage(const struct kx_av *v, struct kx_am *s, unsigned char *sm, kx_u t, int q8)
{
    kx_cp_wait(0);
    kx_sync();
    if ((t + 1u) * KX_KT < v->khi)
        kx_am_begin(v, sm, t + 1u, q8);
    s->key0 = t * KX_KT;
    s->skip = s->key0 >= s->whi || s->key0 + KX_KT <= s->wlo;
    s->k = sm;
    if (q8) {
        const unsigned char *raw = sm + 2u * KX_TILE_BYTES + (t & 1u) * 2u * KX_RAW_BYTES(KX_KT);

        kx_am_widen(v, sm, raw, s->key0, KX_KT);
        kx_am_widen(v, sm + KX_TILE_BYTES, raw + KX_RAW_BYTES(KX_KT), s->key0, KX_KT);
        kx_sync();
    } else {
        s->k = sm + (t & 1u) * 2u * KX_TILE_BYTES;
    }
    s->v = s->k + KX_TILE_BYTES;
}
KX_DEV void kx_am_qk(struct kx_am *s, const unsigned char *sq)
{
    kx_u lane = kx_am_lane(), i, j, kk;
    kx_u arow = s->row + (lane & 15u), brow = (lane & 7u) + (lane >> 4) * 8u, bc = lane >> 3 & 1u;

    if (s->skip)
        return;
    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (j = 0u; j < KX_KT / 8u; j++) {
            s->s[i][j][0] = 0.0f;
            s->s[i][j][1] = 0.0f;
            s->s[i][j][2] = 0.0f;
            s->s[i][j][3] = 0.0f;
        }
    }
    KX_UNROLL
    for (kk = 0u; kk < KX_HD / 16u; kk++) {
        kx_u af[KX_MT][4];

        KX_UNROLL
        for (i = 0u; i < KX_MT; i++)
            kx_ldm4(af[i], sq + kx_am_at(arow + 16u * i, 2u * kk + (lane >> 4)));
        KX_UNROLL
        for (j = 0u; j < KX_KT / 16u; j++) {
            kx_u bf[4];

            kx_ldm4(bf, s->k + kx_am_at(16u * j + brow, 2u * kk + bc));
            KX_UNROLL
            for (i = 0u; i < KX_MT; i++) {
                kx_mma_f16_16816(s->s[i][2u * j], af[i], bf);
                kx_mma_f16_16816(s->s[i][2u * j + 1u], af[i], bf + 2);
            }
        }
    }
}
KX_DEV void kx_am_mask(struct kx_am *s, float scale)
{
    kx_u i, j, e, key = s->key0 + 2u * (kx_am_lane() & 3u);

    if (s->skip)
        return;
    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        int all = s->lo[i][0] <= s->key0 && s->lo[i][1] <= s->key0 && s->hi[i][0] >= s->key0 + KX_KT &&
                  s->hi[i][1] >= s->key0 + KX_KT;

        KX_UNROLL
        for (j = 0u; j < KX_KT / 8u; j++) {
            KX_UNROLL
            for (e = 0u; e < 4u; e++)
                s->s[i][j][e] = s->s[i][j][e] * scale;
        }
        if (all)
            continue;
        KX_UNROLL
        for (j = 0u; j < KX_KT / 8u; j++) {
            KX_UNROLL
            for (e = 0u; e < 4u; e++) {
                kx_u at = key + 8u * j + (e & 1u);

                s->s[i][j][e] = at >= s->lo[i][e >> 1] && at < s->hi[i][e >> 1] ? s->s[i][j][e] : KX_AT_NONE;
            }
        }
    }
}
KX_DEV void kx_am_softmax(struct kx_am *s)
{
    kx_u i, j, h;

    if (s->skip)
        return;
    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (h = 0u; h < 2u; h++) {
            float t = KX_AT_NONE, mm, x;

            KX_UNROLL
            for (j = 0u; j < KX_KT / 8u; j++)
                t = kx_max(t, kx_max(s->s[i][j][2u * h], s->s[i][j][2u * h + 1u]));
            t = kx_max(t, kx_shfl_xor_f(t, 1));
            t = kx_max(t, kx_shfl_xor_f(t, 2));
            mm = kx_max(s->m[i][h], t);
            s->c[i][h] = s->m[i][h] == mm ? 1.0f : KX_AT_EXP(s->m[i][h] - mm);
            s->m[i][h] = mm;
            s->l[i][h][0] = s->l[i][h][0] * s->c[i][h];
            s->l[i][h][1] = s->l[i][h][1] * s->c[i][h];
            x = mm == KX_AT_NONE ? 0.0f : mm; /* -inf - -inf is no number */
            KX_UNROLL
            for (j = 0u; j < KX_KT / 8u; j++) {
                s->s[i][j][2u * h] = KX_AT_EXP(s->s[i][j][2u * h] - x);
                s->s[i][j][2u * h + 1u] = KX_AT_EXP(s->s[i][j][2u * h + 1u] - x);
                s->l[i][h][j & 1u] = s->l[i][h][j & 1u] + s->s[i][j][2u * h];
                s->l[i][h][j & 1u] = s->l[i][h][j & 1u] + s->s[i][j][2u * h + 1u];
            }
        }
    }
}
KX_DEV void kx_am_pv(struct kx_am *s)
{
    kx_u lane = kx_am_lane(), i, j, e, kk;
    kx_u vrow = lane & 15u, vc = s->ch + (lane >> 4);
    int same = 1;

    if (s->skip)
        return;
    KX_UNROLL
    for (i = 0u; i < KX_MT; i++)
        same = same && s->c[i][0] == 1.0f && s->c[i][1] == 1.0f;
    if (kx_ballot(same) != 0xffffffffu) {
        KX_UNROLL
        for (i = 0u; i < KX_MT; i++) {
            KX_UNROLL
            for (j = 0u; j < KX_NB; j++) {
                KX_UNROLL
                for (e = 0u; e < 4u; e++)
                    s->a[i][j][e] = s->a[i][j][e] * s->c[i][e >> 1];
            }
        }
    }
    KX_UNROLL
    for (kk = 0u; kk < KX_KT / 16u; kk++) {
        kx_u af[KX_MT][4];

        KX_UNROLL
        for (i = 0u; i < KX_MT; i++) {
            af[i][0] = kx_f2h2(s->s[i][2u * kk][0], s->s[i][2u * kk][1]);
            af[i][1] = kx_f2h2(s->s[i][2u * kk][2], s->s[i][2u * kk][3]);
            af[i][2] = kx_f2h2(s->s[i][2u * kk + 1u][0], s->s[i][2u * kk + 1u][1]);
            af[i][3] = kx_f2h2(s->s[i][2u * kk + 1u][2], s->s[i][2u * kk + 1u][3]);
        }
        KX_UNROLL
        for (j = 0u; j < KX_NB / 2u; j++) {
            kx_u bf[4];

            kx_ldm4t(bf, s->v + kx_am_at(16u * kk + vrow, vc + 2u * j));
            KX_UNROLL
            for (i = 0u; i < KX_MT; i++) {
                kx_mma_f16_16816(s->a[i][2u * j], af[i], bf);
                kx_mma_f16_16816(s->a[i][2u * j + 1u], af[i], bf + 2);
            }
        }
    }
}
/* l of a row's half-tile, all parts (in every lane of the row). */
KX_DEV float kx_am_l(const struct kx_am *s, kx_u i, kx_u h)
{
    float l = s->l[i][h][0] + s->l[i][h][1];

    l = l + kx_shfl_xor_f(l, 2);
    return l + kx_shfl_xor_f(l, 1);
}
/* The split joins those before, whose sums lie in v->sums; after the last one all
 * sums are in a. */
KX_DEV void kx_am_fold(const struct kx_av *v, struct kx_am *s, int last)
{
    kx_u i, j, h, lane = kx_am_lane();

    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (h = 0u; h < 2u; h++) {
            kx_u r = s->row + 16u * i + 8u * h + (lane >> 2);
            float l = kx_am_l(s, i, h), wo = 1.0f, wn = 0.0f;
            int old = !(s->bl[i][h] == 0.0f), now = !(l == 0.0f); /* NaN counts */

            if (now && old) {
                kx_at_fold(&s->bm[i][h], &s->bl[i][h], s->m[i][h], l, &wo, &wn);
            } else if (now) {
                s->bm[i][h] = s->m[i][h];
                s->bl[i][h] = l;
            }
            if (kx_av_has(v, r) && (old || (now && !last))) {
                struct kx_u2 *p = (struct kx_u2 *)((float *)v->sums + kx_av_vec(v, r) * KX_HD + s->ch * 8u + 2u * (lane & 3u));

                KX_UNROLL
                for (j = 0u; j < KX_NB; j++) {
                    struct kx_u2 w;
                    float x = s->a[i][j][2u * h], y = s->a[i][j][2u * h + 1u];

                    if (old) {
                        w = p[4u * j];
                        x = now ? kx_fma(x, wn, kx_i2f_bits((int)w.x) * wo) : kx_i2f_bits((int)w.x);
                        y = now ? kx_fma(y, wn, kx_i2f_bits((int)w.y) * wo) : kx_i2f_bits((int)w.y);
                    }
                    if (last) {
                        s->a[i][j][2u * h] = x;
                        s->a[i][j][2u * h + 1u] = y;
                    } else if (now) {
                        w.x = (kx_u)kx_f2i_bits(x);
                        w.y = (kx_u)kx_f2i_bits(y);
                        p[4u * j] = w;
                    }
                }
            }
        }
    }
}
/* Without splits: what was summed is all. */
KX_DEV void kx_am_sum(struct kx_am *s)
{
    kx_u i, h;

    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (h = 0u; h < 2u; h++)
            s->bl[i][h] = kx_am_l(s, i, h);
    }
}
KX_DEV void kx_am_store(const struct kx_av *v, const struct kx_am *s)
{
    kx_u i, j, h, lane = kx_am_lane();

    KX_UNROLL
    for (i = 0u; i < KX_MT; i++) {
        KX_UNROLL
        for (h = 0u; h < 2u; h++) {
            kx_u r = s->row + 16u * i + 8u * h + (lane >> 2);

            if (kx_av_has(v, r)) {
                kx_p at = kx_av_vec(v, r) * KX_HD + s->ch * 8u + 2u * (lane & 3u);
                float inv = s->bl[i][h] == 0.0f ? 0.0f : kx_div(1.0f, s->bl[i][h]);

                KX_UNROLL
                for (j = 0u; j < KX_NB; j++)
                    kx_av_put2(v, at + 8u * j, kx_at_done(s->a[i][j][2u * h], inv), kx_at_done(s->a[i][j][2u * h + 1u], inv));
            }
        }
    }
}

/* ---- split: four warps share 16 rows and the 256 keys of one split. Stages of KX_KS keys
 * go through a ring: all K stages, then all V stages. Warps share the keys of a stage for
 * the scores, its columns for the values. */

struct kx_as {
    float a[KX_HD / 32u][4];
    kx_u first, n; /* stages that hold keys of the block */
    const unsigned char *t; /* stage at hand, as halves */
};
/* A row of scores later holds weights as halves, the tiles' factors and 1 / l. */
#define KX_AS_C(sc, row, tile) ((float *)((sc) + (row) * (KX_SC * 4u) + 512u))[tile]
#define KX_AS_INV(sc, row) ((float *)((sc) + (row) * (KX_SC * 4u) + 576u))[0]
#define KX_AS_SCORES 16640u /* 16 rows of them */
#define KX_AS_BYTES(q8) ((q8) ? KX_RAW_BYTES(KX_KS) : KX_KS * KX_HB)

/* Stage i of the ring: K stages 0 .. n - 1, then V. */
KX_DEV void kx_as_begin(const struct kx_av *v, const struct kx_as *s, unsigned char *ring, kx_u i, int q8)
{
    if (i < 2u * s->n) {
        kx_u key0 = (s->first + (i < s->n ? i : i - s->n)) * KX_KS;
        unsigned char *dst = ring + i % KX_NS * KX_AS_BYTES(q8);

        if (q8)
            kx_am_cp_q8(v, dst, i < s->n ? v->k : v->v, key0, KX_KS, 0);
        else
            kx_am_cp(v, dst, i < s->n ? v->k : v->v, key0, KX_KS, 0);
    }
    kx_cp_commit();
}
KX_DEV void kx_as_open(const struct kx_av *v, struct kx_as *s, unsigned char *ring, int q8)
{
    kx_u j;

    s->first = v->klo / KX_KS;
    s->n = (v->khi + KX_KS - 1u) / KX_KS - s->first;
    KX_UNROLL
    for (j = 0u; j < KX_HD / 32u; j++) {
        s->a[j][0] = 0.0f;
        s->a[j][1] = 0.0f;
        s->a[j][2] = 0.0f;
        s->a[j][3] = 0.0f;
    }
    KX_UNROLL
    for (j = 0u; j + 1u < KX_NS; j++)
        kx_as_begin(v, s, ring, j, q8);
}
/* Stage i has landed, those behind it are on their way. */
KX_DEV void kx_as_stage(const struct kx_av *v, struct kx_as *s, unsigned char *ring, kx_u i, int q8)
{
    kx_cp_wait(KX_NS - 2);
    kx_sync();
    kx_as_begin(v, s, ring, i + KX_NS - 1u, q8);
    s->t = ring + i % KX_NS * KX_AS_BYTES(q8);
    if (q8) {
        unsigned char *dst = ring + KX_NS * KX_AS_BYTES(1);

        kx_am_widen(v, dst, s->t, (s->first + (i < s->n ? i : i - s->n)) * KX_KS, KX_KS);
        kx_sync();
        s->t = dst;
    }
}
/* Scores of K stage i into sc [16, KX_SC], counted from the split's first key. */
KX_DEV void kx_as_qk(const struct kx_av *v, const struct kx_as *s, const unsigned char *sq, unsigned char *sc, kx_u i,
                     float scale)
{
    kx_u lane = kx_am_lane(), warp = kx_tid() >> 5, j, kp;
    kx_u key0 = (s->first + i) * KX_KS - v->split * KX_SPLIT;
    float d[KX_KS / 32u][4];

    KX_UNROLL
    for (j = 0u; j < KX_KS / 32u; j++) {
        d[j][0] = 0.0f;
        d[j][1] = 0.0f;
        d[j][2] = 0.0f;
        d[j][3] = 0.0f;
    }
    KX_UNROLL
    for (kp = 0u; kp < KX_HD / 32u; kp++) {
        kx_u a0[4], a1[4], bf[4];

        kx_ldm4(a0, sq + kx_am_at(lane & 15u, 4u * kp + (lane >> 4)));
        kx_ldm4(a1, sq + kx_am_at(lane & 15u, 4u * kp + 2u + (lane >> 4)));
        KX_UNROLL
        for (j = 0u; j < KX_KS / 32u; j++) {
            kx_ldm4(bf, s->t + kx_am_at((4u * j + warp) * 8u + (lane & 7u), 4u * kp + (lane >> 3)));
            kx_mma_f16_16816(d[j], a0, bf);
            kx_mma_f16_16816(d[j], a1, bf + 2);
        }
    }
    KX_UNROLL
    for (j = 0u; j < KX_KS / 32u; j++) {
        float *p = (float *)sc + (lane >> 2) * KX_SC + key0 + (4u * j + warp) * 8u + 2u * (lane & 3u);

        p[0] = d[j][0] * scale;
        p[1] = d[j][1] * scale;
        p[8u * KX_SC] = d[j][2] * scale;
        p[8u * KX_SC + 1u] = d[j][3] * scale;
    }
}
/* All scores of the split to weights; 8 threads of a row, one per part of l. */
KX_DEV void kx_as_softmax(const struct kx_av *v, unsigned char *sc)
{
    kx_u r = kx_tid() >> 3, u = kx_tid() & 7u, lo, hi, t, i;
    float s[32], c[KX_SPLIT / KX_KT], mx[KX_SPLIT / KX_KT], m = KX_AT_NONE, l = 0.0f;

    kx_sync();
    kx_av_span(v, r, &lo, &hi);
    KX_UNROLL
    for (t = 0u; t < KX_SPLIT / KX_KT; t++) {
        float x = KX_AT_NONE, mm;

        KX_UNROLL
        for (i = 0u; i < KX_KT / 8u; i++) {
            kx_u at = t * KX_KT + KX_AT_KEY_MMA(u, i), key = v->split * KX_SPLIT + at;
            float y = ((const float *)sc)[r * KX_SC + at];

            y = key >= lo && key < hi ? y : KX_AT_NONE;
            s[t * (KX_KT / 8u) + i] = y;
            x = kx_max(x, y);
        }
        x = kx_max(x, kx_shfl_xor_f(x, 4));
        x = kx_max(x, kx_shfl_xor_f(x, 1));
        x = kx_max(x, kx_shfl_xor_f(x, 2));
        mm = kx_max(m, x);
        c[t] = m == mm ? 1.0f : KX_AT_EXP(m - mm);
        m = mm;
        mx[t] = mm == KX_AT_NONE ? 0.0f : mm;
    }
    kx_syncwarp(); /* the row's scores are read */
    KX_UNROLL
    for (t = 0u; t < KX_SPLIT / KX_KT; t++) {
        l = l * c[t];
        KX_UNROLL
        for (i = 0u; i < KX_KT / 8u; i++) {
            float p = KX_AT_EXP(s[t * (KX_KT / 8u) + i] - mx[t]);

            l = l + p;
            ((unsigned short *)(sc + r * (KX_SC * 4u)))[t * KX_KT + KX_AT_KEY_MMA(u, i)] = kx_f2h(p);
        }
        if (u == 0u)
            KX_AS_C(sc, r, t) = c[t];
    }
    l = l + kx_shfl_xor_f(l, 4);
    l = l + kx_shfl_xor_f(l, 2);
    l = l + kx_shfl_xor_f(l, 1);
    if (u == 0u) {
        KX_AS_INV(sc, r) = l == 0.0f ? 0.0f : kx_div(1.0f, l);
        if (kx_av_has(v, r) && v->n_splits > 1u)
            kx_av_part(v, r, m, l);
    }
}
/* Values of V stage i - n. */
KX_DEV void kx_as_pv(const struct kx_av *v, struct kx_as *s, const unsigned char *sc, kx_u i)
{
    kx_u lane = kx_am_lane(), warp = kx_tid() >> 5, t, j, kk, g = lane >> 2;
    kx_u key0 = (s->first + i - s->n) * KX_KS - v->split * KX_SPLIT;

    KX_UNROLL
    for (t = 0u; t < KX_KS / KX_KT; t++) {
        float c0 = KX_AS_C(sc, g, key0 / KX_KT + t), c1 = KX_AS_C(sc, g + 8u, key0 / KX_KT + t);

        KX_UNROLL
        for (j = 0u; j < KX_HD / 32u; j++) {
            s->a[j][0] = s->a[j][0] * c0;
            s->a[j][1] = s->a[j][1] * c0;
            s->a[j][2] = s->a[j][2] * c1;
            s->a[j][3] = s->a[j][3] * c1;
        }
        KX_UNROLL
        for (kk = 0u; kk < KX_KT / 16u; kk++) {
            kx_u af[4], bf[4];

            kx_ldm4(af, sc + (lane & 15u) * (KX_SC * 4u) + (key0 + t * KX_KT + 16u * kk) * 2u + (lane >> 4) * 16u);
            KX_UNROLL
            for (j = 0u; j < KX_HD / 64u; j++) {
                kx_ldm4t(bf, s->t + kx_am_at(t * KX_KT + 16u * kk + (lane & 15u), warp * (KX_HC / 4u) + 2u * j + (lane >> 4)));
                kx_mma_f16_16816(s->a[2u * j], af, bf);
                kx_mma_f16_16816(s->a[2u * j + 1u], af, bf + 2);
            }
        }
    }
}
KX_DEV void kx_as_store(const struct kx_av *v, const struct kx_as *s, const unsigned char *sc)
{
    kx_u lane = kx_am_lane(), col = (kx_tid() >> 5) * (KX_HD / 4u) + 2u * (lane & 3u), j, h;

    KX_UNROLL
    for (h = 0u; h < 2u; h++) {
        kx_u r = (lane >> 2) + 8u * h;

        if (kx_av_has(v, r)) {
            kx_p vec = kx_av_vec(v, r);

            KX_UNROLL
            for (j = 0u; j < KX_HD / 32u; j++) {
                float x = s->a[j][2u * h], y = s->a[j][2u * h + 1u];

                if (v->n_splits == 1u) {
                    float inv = KX_AS_INV(sc, r);

                    kx_av_put2(v, vec * KX_HD + col + 8u * j, kx_at_done(x, inv), kx_at_done(y, inv));
                } else {
                    struct kx_u2 w;

                    w.x = (kx_u)kx_f2i_bits(x);
                    w.y = (kx_u)kx_f2i_bits(y);
                    *(struct kx_u2 *)((float *)v->part_a + (vec * v->n_splits + v->split) * KX_HD + col + 8u * j) = w;
                }
            }
        }
    }
}
