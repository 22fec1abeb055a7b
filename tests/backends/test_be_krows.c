/* test_be_krows.c - the executor of the row kernels against plain f64 references and the
 * CPU backend's own quantizers; kx_exp and kx_sincos over dense sweeps.
 *
 * Bounds: norms 2e-6 of the row's largest value (f32 sums of at most 4096 columns), f16
 * outputs half a unit more, rope 3e-7, quantized codes and scales exact.
 */
#include "be_krows_test.h"

#include <float.h>

static const uint32_t widths[] = {1, 3, 33, 640, 1152, 2560, 8192, 8968};
static const uint32_t counts[] = {0, 1, 7};

/* ----------------------------------------------------------------------- int8 */

/* What the CPU backend's block_q8_0 and block_q8_k say, from engine.md 2.4. */
static void q8_want(const float *x, uint32_t enc, int8_t *q, float *d)
{
    uint32_t n = enc == KX_ENC_Q8_0 ? 32 : 256;
    float amax = 0, v = 0;
    bool bad = false;

    for (uint32_t i = 0; i < n; i++) {
        bad = bad || !isfinite(x[i]);
        if (fabsf(x[i]) > amax) {
            amax = fabsf(x[i]);
            v = x[i];
        }
        q[i] = 0;
    }
    *d = bad ? NAN : 0;
    if (bad || amax == 0)
        return;
    if (enc == KX_ENC_Q8_0) {
        float s = amax / 127.0f, id = 1.0f / s;

        *d = be_half_to_f32(be_f32_to_half(s));
        for (uint32_t i = 0; i < n && isfinite(id); i++)
            q[i] = (int8_t)roundf(x[i] * id);
    } else {
        float is = -127.0f / v;

        for (uint32_t i = 0; i < n && isfinite(is); i++)
            q[i] = (int8_t)fminf(127, rintf(is * x[i]));
        *d = isfinite(is) ? 1 / is : 0;
    }
}

static void check_q8(const float *x, uint32_t enc, const int8_t *q, const float *d,
                     const int32_t *s, uint32_t r, uint32_t k)
{
    uint32_t n = enc == KX_ENC_Q8_0 ? 32 : 256;

    for (uint32_t b = 0; b < k / n; b++) {
        int8_t wq[256];
        float wd;

        q8_want(x + b * n, enc, wq, &wd);
        expect((double)d[b], (double)wd, 0, "scale", r, b);
        for (uint32_t i = 0; i < n; i++)
            expect(q[b * n + i], wq[i], 0, "code", r, b * n + i);
        for (uint32_t i = 0; i < n; i += 32) {
            int32_t sum = 0;

            for (uint32_t j = 0; j < 32; j++)
                sum += wq[i + j];
            expect(s[(b * n + i) / 32], sum, 0, "sum of codes", r, b * n + i);
        }
    }
}

/* rows with one special value each */
static void spoil(void *x, uint32_t t, uint32_t n, uint32_t k)
{
    static const float odd[] = {0, -0.0f, NAN, INFINITY, -INFINITY, 1e-40f, FLT_MAX, 1e-30f};

    for (uint32_t r = 0; r < n; r++) {
        float v = odd[r % N_OF(odd)];

        if (r % N_OF(odd) < 2 || v == 1e-40f)
            for (uint32_t c = 0; c < k; c++)
                kx_act_put(at(x), t, (size_t)r * k + c, v);
        else if (v == v || r > 0)
            kx_act_put(at(x), t, (size_t)r * k + rnd() % k, v);
    }
}

static void quantized_rows_are_those_of_the_cpu(void **state)
{
    static const uint32_t ks[] = {32, 96, 256, 512, 640, 2560};

    for (unsigned i = 0; i < N_OF(ks) * 2 * 2 * 2; i++) {
        uint32_t k = ks[i % N_OF(ks)], t = i / N_OF(ks) % 2, enc = i / N_OF(ks) / 2 % 2, n = 33;
        void *x = values(t, (size_t)n * k, 3);
        int8_t *q = values(KX_F32, (size_t)n * k / 4, 0);
        float *d = values(KX_F32, (size_t)n * k / 32, 0);
        int32_t *s = values(KX_F32, (size_t)n * k / 32, 0);
        struct kx_quant a = {at(x), at(q), at(d), at(s), t, enc, n, k};
        float *row = xcalloc(k, sizeof(*row));

        if (i >= N_OF(ks) * 4)
            spoil(x, t, n, k);
        if (enc == KX_ENC_Q8_0 || k % 256 == 0) {
            run("kx_quant", &a);
            for (uint32_t r = 0; r < n; r++) {
                uint32_t per = enc == KX_ENC_Q8_0 ? 32 : 256;

                for (uint32_t c = 0; c < k; c++)
                    row[c] = kx_act_get(at(x), t, (size_t)r * k + c);
                check_q8(row, enc, q + (size_t)r * k, d + r * (k / per), s + r * (k / 32), r, k);
            }
            check_margin(q, 1, (size_t)n * k);
            check_margin(d, 4, (size_t)n * k / (enc == KX_ENC_Q8_0 ? 32 : 256));
            check_margin(s, 4, (size_t)n * k / 32);
        }
        free(row), free(s), free(d), free(q), free(x);
    }
}

/* ---------------------------------------------------------------------- norms */

struct norm_case {
    uint32_t n, k, x_t, add_t, out_t;
    bool add, alias, layer, bias;
};

static void norm_row(const struct norm_case *c, const void *x, const void *add, const float *w,
                     const float *b, uint32_t r, double eps, double *out)
{
    double mean = 0, sq = 0;
    size_t o = (size_t)r * c->k;

    for (uint32_t i = 0; i < c->k; i++) {
        out[i] = act(x, c->x_t, o + i);
        if (c->layer && c->add)
            out[i] = (double)((float)out[i] + kx_act_get(at(add), c->add_t, o + i));
        mean += c->layer ? out[i] / c->k : 0;
    }
    for (uint32_t i = 0; i < c->k; i++)
        sq += (out[i] - mean) * (out[i] - mean);
    for (uint32_t i = 0; i < c->k; i++) {
        out[i] = (out[i] - mean) / sqrt(sq / c->k + eps) * (double)w[i];
        if (c->layer && c->bias)
            out[i] += (double)b[i];
        if (!c->layer && c->add)
            out[i] += act(add, c->add_t, o + i);
    }
}

static void norm_case(const struct norm_case *c)
{
    size_t all = (size_t)c->n * c->k;
    void *x = values(c->x_t, all, 2), *add = values(c->add_t, all, 2);
    void *out = c->alias ? x : values(c->out_t, all, 0);
    float *w = values(KX_F32, c->k, 1.5f), *b = values(KX_F32, c->k, 1);
    double *want = xcalloc(all, sizeof(*want));
    struct kx_norm a = {.x = at(x),
                        .w = at(w),
                        .out = at(out),
                        .n = c->n,
                        .k = c->k,
                        .x_t = c->x_t,
                        .add_t = c->add_t,
                        .out_t = c->out_t,
                        .eps = 1e-6f};

    a.add = c->add ? at(add) : 0;
    a.b = c->bias ? at(b) : 0;
    for (uint32_t r = 0; r < c->n; r++)
        norm_row(c, x, add, w, b, r, (double)a.eps, want + (size_t)r * c->k);
    run(c->layer ? "kx_layer_norm" : "kx_rms_norm", &a);
    for (size_t i = 0; i < all; i++)
        expect(act(out, c->out_t, i), want[i],
               c->out_t == KX_F16 ? 6e-4 * (1 + fabs(want[i])) : 2e-6 * (4 + fabs(want[i])), "norm",
               (uint32_t)(i / c->k), (uint32_t)(i % c->k));
    check_margin(out, elem(c->out_t), all);
    if (!c->alias)
        free(out);
    free(want), free(b), free(w), free(add), free(x);
}

static void norms_follow_their_formula(void **state)
{
    for (unsigned i = 0; i < N_OF(widths) * N_OF(counts) * 32; i++) {
        unsigned bits = i / (N_OF(widths) * N_OF(counts));
        struct norm_case c = {.k = widths[i % N_OF(widths)],
                              .n = counts[i / N_OF(widths) % N_OF(counts)],
                              .x_t = bits & 1,
                              .add_t = bits >> 1 & 1,
                              .out_t = bits >> 2 & 1,
                              .add = bits >> 3 & 1,
                              .layer = bits >> 4 & 1,
                              .bias = bits >> 2 & 1};

        c.alias = c.x_t == c.out_t;
        norm_case(&c);
    }
}

/* The norm's own int8 output is what kx_quant makes of its stored output, and out may be left
 * out. */
static void fused_quantization_equals_the_separate_one(void **state)
{
    for (unsigned i = 0; i < 8; i++) {
        uint32_t k = i & 1 ? 2560 : 512, n = 5, enc = i >> 1 & 1, t = i >> 2 & 1;
        size_t all = (size_t)n * k;
        void *x = values(t, all, 2), *out = values(t, all, 0);
        float *w = values(KX_F32, k, 1);
        int8_t *q[3];
        float *d[3];
        int32_t *s[3];

        spoil(x, t, n, k);
        for (int j = 0; j < 3; j++) {
            q[j] = values(KX_F32, all / 4, 0);
            d[j] = values(KX_F32, all / 32, 0);
            s[j] = values(KX_F32, all / 32, 0);
        }
        for (int j = 0; j < 2; j++) { /* with out, without */
            struct kx_norm a = {.x = at(x),
                                .w = at(w),
                                .out = j ? 0 : at(out),
                                .n = n,
                                .k = k,
                                .x_t = t,
                                .out_t = t,
                                .eps = 1e-6f,
                                .xq = at(q[j]),
                                .xd = at(d[j]),
                                .xs = at(s[j]),
                                .enc = enc};

            run("kx_rms_norm", &a);
        }
        run("kx_quant", &(struct kx_quant){at(out), at(q[2]), at(d[2]), at(s[2]), t, enc, n, k});
        for (int j = 0; j < 2; j++) {
            assert_memory_equal(q[j], q[2], all);
            assert_memory_equal(d[j], d[2], all / 32 * 4);
            assert_memory_equal(s[j], s[2], all / 32 * 4);
        }
        for (int j = 0; j < 3; j++)
            free(q[j]), free(d[j]), free(s[j]);
        free(w), free(out), free(x);
    }
}

/* A row's bits do not depend on how many rows share the call. */
static void rows_do_not_know_each_other(void **state)
{
    uint32_t k = 1152, n = 7;
    float *x = values(KX_F32, (size_t)n * k, 2), *w = values(KX_F32, k, 1);
    float *all = values(KX_F32, (size_t)n * k, 0), *one = values(KX_F32, k, 0);
    struct kx_norm a = {.x = at(x), .w = at(w), .out = at(all), .n = n, .k = k, .eps = 1e-5f};

    x[3] = NAN; /* row 0 only */
    run("kx_rms_norm", &a);
    for (uint32_t r = 1; r < n; r++) {
        struct kx_norm b = a;

        b.x = at(x + (size_t)r * k);
        b.out = at(one);
        b.n = 1;
        run("kx_rms_norm", &b);
        assert_memory_equal(one, all + (size_t)r * k, k * sizeof(float));
    }
    for (uint32_t c = 0; c < k; c++)
        assert_true(isnan(all[c]));
    free(one), free(all), free(w), free(x);
}

/* ------------------------------------------------------------------------ rope */

struct rope_case {
    uint32_t n, heads, hd, t;
    bool norm, turn;
};

static double *make_freq(uint32_t hd, float theta)
{
    double *f = xcalloc(hd / 2, sizeof(*f));

    for (uint32_t i = 0; i < hd / 2; i++)
        f[i] = (double)(1.0f / powf(theta, (float)(2 * i) / (float)hd));
    return f;
}

static void rope_want(const struct rope_case *c, const void *x, size_t o, int32_t pos,
                      const float *w, const double *freq, double eps, double *out)
{
    uint32_t half = c->hd / 2;
    double sq = 0;

    for (uint32_t i = 0; i < c->hd; i++) {
        out[i] = act(x, c->t, o + i);
        sq += out[i] * out[i];
    }
    for (uint32_t i = 0; c->norm && i < c->hd; i++)
        out[i] = out[i] / sqrt(sq / c->hd + eps) * (double)w[i];
    for (uint32_t i = 0; c->turn && i < half; i++) {
        double angle = (double)((float)pos * (float)freq[i]), u = out[i], v = out[i + half];

        out[i] = u * cos(angle) - v * sin(angle);
        out[i + half] = v * cos(angle) + u * sin(angle);
    }
}

static void rope_case(const struct rope_case *c)
{
    static const int32_t some[] = {0, 1, 8191, 131071, 77, 2147483647, 1000003};
    size_t all = (size_t)c->n * c->heads * c->hd;
    void *x = values(c->t, all, 2);
    float *w = values(KX_F32, c->hd, 1.2f);
    double *freq = make_freq(c->hd, 1e4f), *want = xcalloc(all, sizeof(*want));
    struct kx_rope a = {.x = at(x),
                        .pos = at(some),
                        .w = c->norm ? at(w) : 0,
                        .freq = c->turn ? at(freq) : 0,
                        .n = c->n,
                        .n_heads = c->heads,
                        .head_dim = c->hd,
                        .x_t = c->t,
                        .eps = 1e-6f};

    for (size_t h = 0; h < (size_t)c->n * c->heads; h++)
        rope_want(c, x, h * c->hd, some[h / c->heads], w, freq, 1e-6, want + h * c->hd);
    run("kx_rope", &a);
    for (size_t i = 0; i < all; i++)
        expect(act(x, c->t, i), want[i], c->t == KX_F16 ? 1e-3 * (1 + fabs(want[i])) : 1e-6, "rope",
               (uint32_t)(i / c->heads / c->hd), (uint32_t)(i % (c->heads * c->hd)));
    check_margin(x, elem(c->t), all);
    free(want), free(freq), free(w), free(x);
}

static void rope_follows_its_formula(void **state)
{
    static const uint32_t dims[] = {2, 6, 64, 80, 128, 256, 512};

    for (unsigned i = 0; i < N_OF(dims) * 2 * 3; i++)
        rope_case(&(struct rope_case){.n = 7,
                                      .heads = 1 + i % 4,
                                      .hd = dims[i % N_OF(dims)],
                                      .t = i / N_OF(dims) % 2,
                                      .norm = i / N_OF(dims) / 2 != 0,
                                      .turn = i / N_OF(dims) / 2 != 1});
}

/* -------------------------------------------------------------------- kv cache */

struct cache {
    struct kx_kv kv;
    uint8_t *base;
    size_t n_bytes, v_at;
};

#define N_PAGES 5u
static void cache_init(struct cache *c, uint32_t dtype, uint32_t heads, uint32_t hd)
{
    uint32_t page_tokens = 16, row = dtype == 0 ? 4 * hd : dtype == 1 ? 2 * hd : hd;
    uint64_t codes = (uint64_t)heads * page_tokens * row;
    uint64_t stride = (codes + (dtype == 8 ? codes / 16 : 0) + 255) / 256 * 256;

    c->n_bytes = 2 * N_PAGES * stride;
    c->v_at = N_PAGES * stride;
    c->base = aligned_alloc(256, c->n_bytes);
    assert_non_null(c->base);
    memset(c->base, POISON, c->n_bytes);
    c->kv = (struct kx_kv){at(c->base),
                           at(c->base + c->v_at),
                           stride,
                           (uint32_t)codes,
                           dtype,
                           page_tokens,
                           heads,
                           hd,
                           0};
}

/* Element d of (page, slot, head) of values or keys. */
static double cache_get(const struct cache *c, bool v, uint32_t page, uint32_t slot, uint32_t h,
                        uint32_t d)
{
    const uint8_t *p = c->base + (v ? c->v_at : 0) + page * c->kv.page_stride;
    size_t o = ((size_t)h * c->kv.page_tokens + slot) * c->kv.head_dim + d;

    if (c->kv.dtype == 8)
        return (double)be_load_half(p + c->kv.scales_at + o / 32 * 2) * (int8_t)p[o];
    return act(p, c->kv.dtype == 1 ? KX_F16 : KX_F32, o);
}

/* two sequences: rows 0..4 from position 14 (over a page's end), rows 5..6 from 0 */
static const struct kx_seq two_seqs[] = {{0, 5, 14, 0}, {5, 2, 0, 2}};
static const int32_t two_pages[] = {3, 1, 4};
static const uint32_t seq_of[] = {0, 0, 0, 0, 0, 1, 1};

static void kv_case(uint32_t dtype, uint32_t heads, uint32_t hd, uint32_t t)
{
    struct cache c;
    size_t width = (size_t)heads * hd, written = 0;
    void *k = values(t, 7 * width, 2), *v = values(t, 7 * width, 2);
    struct kx_kv_write a = {.k = at(k),
                            .v = at(v),
                            .seqs = at(two_seqs),
                            .pages = at(two_pages),
                            .row_seq = at(seq_of),
                            .n = 7,
                            .x_t = t};

    cache_init(&c, dtype, heads, hd);
    a.kv = c.kv;
    run("kx_kv_write", &a);
    for (uint32_t i = 0; i < 2 * 7 * width; i++) {
        bool is_v = i >= 7 * width;
        uint32_t r = (uint32_t)(i % (7 * width) / width), col = (uint32_t)(i % width);
        uint32_t p = r < 5 ? 14 + r : r - 5, page = r < 5 ? (uint32_t)two_pages[p / 16] : 4;
        double x = act(is_v ? v : k, t, i % (7 * width));

        expect(cache_get(&c, is_v, page, p % 16, col / hd, col % hd), x,
               dtype == 8   ? 2 / 127.0
               : dtype == 1 ? 1e-3
                            : 0,
               "cache", r, col);
    }
    for (size_t i = 0; i < c.n_bytes; i++)
        written += c.base[i] != POISON;
    assert_true(written <= 2 * 7 *
                               (width * (dtype == 0   ? 4
                                         : dtype == 1 ? 2
                                                      : 1) +
                                (dtype == 8 ? width / 16 : 0)));
    free(c.base), free(k), free(v);
}

static void keys_and_values_land_in_their_slots(void **state)
{
    kv_case(BE_F32, 1, 64, KX_F32);
    kv_case(BE_F32, 3, 6, KX_F16);
    kv_case(BE_F16, 2, 100, KX_F32);
    kv_case(BE_F16, 4, 256, KX_F16);
    kv_case(BE_F16, 1, 1, KX_F32);
    kv_case(BE_Q8_0, 4, 64, KX_F32);
    kv_case(BE_Q8_0, 1, 512, KX_F16);
    kv_case(BE_Q8_0, 3, 96, KX_F32);
}

/* A page that a windowed class has let go is not written. */
static void a_page_let_go_is_skipped(void **state)
{
    static const int32_t none[] = {-1, 1, 4};
    struct cache c;
    float *k = values(KX_F32, 7 * 64, 2);
    struct kx_kv_write a = {.k = at(k),
                            .v = at(k),
                            .seqs = at(two_seqs),
                            .pages = at(none),
                            .row_seq = at(seq_of),
                            .n = 2};

    cache_init(&c, BE_F16, 1, 64);
    a.kv = c.kv;
    run("kx_kv_write", &a);
    for (size_t i = 0; i < c.n_bytes; i++)
        assert_int_equal(c.base[i], POISON);
    free(c.base), free(k);
}

/* rope of q, rope of k and the write in one launch: the bits of three. */
static void fused_rope_equals_the_separate_ones(void **state)
{
    for (unsigned i = 0; i < 6; i++) {
        uint32_t t = i & 1, dtype = (const uint32_t[]){0, 1, 8}[i / 2], hd = 64, qh = 4, kh = 2;
        struct cache c[2];
        void *q[2], *k[2], *v = values(t, 7 * kh * hd, 2);
        float *w = values(KX_F32, hd, 1), *kw = values(KX_F32, hd, 1);
        double *freq = make_freq(hd, 1e6f);
        int32_t pos[7] = {14, 15, 16, 17, 18, 0, 1};
        struct kx_rope_kv a[2];

        q[0] = values(t, 7 * qh * hd, 2), q[1] = values(t, 7 * qh * hd, 0);
        k[0] = values(t, 7 * kh * hd, 2), k[1] = values(t, 7 * kh * hd, 0);
        memcpy(q[1], q[0], 7 * qh * hd * 4);
        memcpy(k[1], k[0], 7 * kh * hd * 4);
        for (int j = 0; j < 2; j++) {
            cache_init(&c[j], dtype, kh, hd);
            a[j] = (struct kx_rope_kv){
                .q = {at(q[j]), at(pos), at(w), at(freq), 7, qh, hd, t, 1e-6f, 0},
                .k = {at(k[j]), at(pos), at(kw), at(freq), 7, kh, hd, t, 1e-5f, 0},
                .w = {c[j].kv, at(k[j]), at(v), at(two_seqs), at(two_pages), at(seq_of), 7, t}};
        }
        run("kx_rope_kv", &a[0]);
        run("kx_rope", &a[1].q);
        run("kx_rope", &a[1].k);
        run("kx_kv_write", &a[1].w);
        assert_memory_equal(q[0], q[1], 7 * qh * hd * elem(t));
        assert_memory_equal(k[0], k[1], 7 * kh * hd * elem(t));
        assert_memory_equal(c[0].base, c[1].base, c[0].n_bytes);
        for (int j = 0; j < 2; j++)
            free(q[j]), free(k[j]), free(c[j].base);
        free(freq), free(kw), free(w), free(v);
    }
}

/* ------------------------------------------------------------------- functions */

static void kx_sincos_is_within_an_ulp(void **state)
{
    double worst = 0;
    float s, c;

    for (uint32_t i = 0; i < 400000; i++) {
        float x = i < 200000 ? (float)i * 0.01f - 1000 : (float)rnd() * (rnd() & 1 ? 1 : -1e-3f);
        double es, ec;

        kx_sincos(x, &s, &c);
        es = fabs((double)s - sin((double)x));
        ec = fabs((double)c - cos((double)x));
        worst = es > worst ? es : worst;
        worst = ec > worst ? ec : worst;
    }
    if (worst > 3.1e-8) /* half a unit in the last place of values below 1 */
        fail_msg("kx_sincos is off by %g, expected at most 3.1e-8", worst);
    kx_sincos(INFINITY, &s, &c);
    assert_true(isnan(s) && isnan(c));
    kx_sincos(NAN, &s, &c);
    assert_true(isnan(s) && isnan(c));
    kx_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
}

static void kx_exp_is_within_its_bound(void **state)
{
    double worst = 0;

    for (uint32_t i = 0; i < 400000; i++) {
        float x = -87.3f + (float)i * (175.9f / 400000);
        double want = exp((double)x), e = fabs((double)kx_exp(x) - want) / want;

        worst = e > worst ? e : worst;
    }
    if (worst > 3e-7)
        fail_msg("kx_exp is off by %g, expected at most 3e-7", worst);
    assert_true(kx_exp(-88) == 0 && kx_exp(-INFINITY) == 0 && isinf(kx_exp(INFINITY)));
    assert_true(isnan(kx_exp(NAN)) && kx_exp(0) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantized_rows_are_those_of_the_cpu),
        cmocka_unit_test(norms_follow_their_formula),
        cmocka_unit_test(fused_quantization_equals_the_separate_one),
        cmocka_unit_test(rows_do_not_know_each_other),
        cmocka_unit_test(rope_follows_its_formula),
        cmocka_unit_test(keys_and_values_land_in_their_slots),
        cmocka_unit_test(a_page_let_go_is_skipped),
        cmocka_unit_test(fused_rope_equals_the_separate_ones),
        cmocka_unit_test(kx_sincos_is_within_an_ulp),
        cmocka_unit_test(kx_exp_is_within_its_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
