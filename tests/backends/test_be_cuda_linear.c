/* test_be_cuda_linear.c - products on the (emulated) device against plain C: every
 * weight format, row class and epilogue; a row alone has the bits it has in a batch; int8 rows are
 * shared and made by the norm; what is refused. */
#include "cuda_test.h"

/* of the largest output: sums of up to 512 products in another order */
#define REL_MAX 2e-6
#define REL_F16 2e-3 /* compute = f16: weights and rows rounded to half */
/* compute = tf32, of the sum of |x w|: both factors are off by at most 2^-11 of themselves, a
 * product by 2^-10 + 2^-22; then two sums of k terms */
#define TF32(k) (0x1p-10 + 0x1p-22 + 2 * (k)*0x1p-23)

static struct be_ctx *cpu, *gpu;

static int setup(void **state)
{
    cuda_need();
    cpu = make_ctx("c", 1);
    gpu = cuda_ctx(true, true, NULL);
    return 0;
}

static int teardown(void **state)
{
    be_ctx_free(&cpu);
    be_ctx_free(&gpu);
    return 0;
}

#define MAX_N 80
struct prod {
    enum be_dtype t;
    uint32_t k, n_out[3], n_parts, rows;
    enum be_epi epi;
    bool bias;
};

struct data {
    float *x, *b[3];
    uint8_t *w[3];
};

static void data_init(struct data *d, const struct prod *p)
{
    size_t n;

    d->x = xcalloc((size_t)MAX_N * p->k, 4);
    fill(d->x, (size_t)MAX_N * p->k, 2);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        d->w[i] = random_blocks(p->t, p->n_out[i], p->k, &n);
        d->b[i] = xcalloc(p->n_out[i], 4);
        fill(d->b[i], p->n_out[i], 1);
    }
}

static void data_deinit(struct data *d, const struct prod *p)
{
    free(d->x);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        free(d->w[i]);
        free(d->b[i]);
    }
}

/* Rows row0 .. of x through the product; out[i] gets the parts. */
static void product(struct be_ctx *c, const struct prod *p, const struct data *d, uint32_t row0,
                    uint32_t rows, float *out[3])
{
    struct be_tensor *x = tensor(c, rows, p->k, d->x + (size_t)row0 * p->k), *o[3] = {NULL};
    struct be_weight *w[3] = {NULL}, *b[3] = {NULL};
    struct be_linear_args a = {.x = x, .n = rows, .n_parts = p->n_parts, .epi = p->epi};

    for (uint32_t i = 0; i < p->n_parts; i++) {
        float *start = xcalloc((size_t)rows * p->n_out[i], 4);

        for (size_t j = 0; j < (size_t)rows * p->n_out[i]; j++)
            start[j] = (float)(j % 7);
        a.part[i].w = w[i] = weight(c, p->t, p->n_out[i], p->k, d->w[i], BE_USE_LINEAR);
        if (p->bias)
            a.part[i].b = b[i] = vector(c, d->b[i], p->n_out[i]);
        a.part[i].out = o[i] = tensor(c, rows, p->n_out[i], start);
        free(start);
    }
    OK(be_linear(c, &a, err));
    for (uint32_t i = 0; i < (p->epi == BE_EPI_GEGLU ? 1 : p->n_parts); i++)
        out[i] = read_all(c, o[i], rows, p->n_out[i]);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        be_tensor_free(c, &o[i]);
        be_weight_free(c, &w[i]);
        be_weight_free(c, &b[i]);
    }
    be_tensor_free(c, &x);
}

static void close_to(const char *what, const float *got, const float *want, size_t n, double rel)
{
    double max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)want[i]));
    assert_near(what, got, want, n, rel * (max + 1), 0);
}

static void check(struct be_ctx *c, const struct prod *p, double rel)
{
    float *want[3] = {NULL}, *got[3] = {NULL};
    char what[64];
    struct data d;

    data_init(&d, p);
    product(cpu, p, &d, 0, p->rows, want);
    product(c, p, &d, 0, p->rows, got);
    for (int i = 0; i < 3 && want[i]; i++) {
        snprintf(what, sizeof(what), "%s rows %u epi %d part %d", be_dtype_name(p->t), p->rows,
                 (int)p->epi, i);
        close_to(what, got[i], want[i], (size_t)p->rows * p->n_out[i], rel);
        free(want[i]);
        free(got[i]);
    }
    data_deinit(&d, p);
}

static void formats(void **state)
{
    static const uint32_t rows[] = {1, 3, 9, 70};

    for (size_t i = 0; i < N_TYPES; i++)
        for (size_t r = 0; r < 4; r++) {
            struct prod p = {.t = all_types[i],
                             .k = 512,
                             .n_out = {37, 16, 5},
                             .n_parts = 3,
                             .rows = rows[r],
                             .bias = true};

            check(gpu, &p, REL_MAX);
        }
}

static void epilogues(void **state)
{
    static const enum be_dtype types[] = {BE_F32, BE_Q4_0, BE_Q6_K};

    for (size_t i = 0; i < 3; i++)
        for (int epi = BE_EPI_NONE; epi <= BE_EPI_GEGLU; epi++)
            for (uint32_t rows = 1; rows <= 12; rows += 11) {
                struct prod p = {.t = types[i],
                                 .k = 256,
                                 .n_out = {40, 40},
                                 .n_parts = epi == BE_EPI_GEGLU ? 2 : 1,
                                 .rows = rows,
                                 .epi = (enum be_epi)epi,
                                 .bias = epi != BE_EPI_GEGLU};

                check(gpu, &p, REL_MAX);
            }
}

static void odd_columns(void **state)
{
    static const struct {
        enum be_dtype t;
        uint32_t k;
    } cases[] = {{BE_F32, 1},    {BE_F32, 27},  {BE_BF16, 33},
                 {BE_F16, 1000}, {BE_Q5_1, 32}, {BE_Q4_K, 768}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (uint32_t rows = 1; rows <= 9; rows += 4) {
            struct prod p = {
                .t = cases[i].t, .k = cases[i].k, .n_out = {9}, .n_parts = 1, .rows = rows};

            check(gpu, &p, REL_MAX);
        }
}

static void alone(struct be_ctx *c, enum be_dtype t)
{
    static const uint32_t cuts[] = {1, 2, 8, 9, 40};
    struct prod p = {.t = t, .k = 512, .n_out = {33, 16}, .n_parts = 2, .rows = MAX_N};
    float *all[3] = {NULL};
    struct data d;

    data_init(&d, &p);
    product(c, &p, &d, 0, p.rows, all);
    for (size_t k = 0; k < 5; k++) {
        float *some[3] = {NULL};

        product(c, &p, &d, 7, cuts[k], some);
        for (int j = 0; j < 2; j++) {
            assert_same(be_dtype_name(p.t), some[j], all[j] + 7 * p.n_out[j], cuts[k] * p.n_out[j]);
            free(some[j]);
        }
    }
    free(all[0]);
    free(all[1]);
    data_deinit(&d, &p);
}

static void rows_alone(void **state)
{
    for (size_t i = 0; i < N_TYPES; i++)
        alone(gpu, all_types[i]);
}

static void half(void **state)
{
    static const enum be_dtype types[] = {BE_F32, BE_F16, BE_BF16, BE_Q8_0};
    struct be_ctx *c = cuda_ctx(true, true, "f16");

    for (size_t i = 0; i < 4; i++)
        for (uint32_t rows = 1; rows <= 70; rows += 23) {
            struct prod p = {.t = types[i], .k = 256, .n_out = {48}, .n_parts = 1, .rows = rows};

            check(c, &p, REL_F16);
        }
    be_ctx_free(&c);
}

/* Two products after each other, so that the second takes halves; its rows. */
static float *chained(const char *arch, const struct data *d, const struct prod *p, uint32_t rows)
{
    struct be_tensor *x, *h, *o;
    struct be_weight *w0, *w1, *b1;
    struct be_linear_args a = {.n = rows, .n_parts = 1};
    struct be_ctx *c;
    float *out;

    setenv("INFERD_EMU_ARCH", arch, 1);
    c = cuda_ctx(true, true, "f16");
    x = tensor(c, rows, p->k, d->x);
    h = tensor(c, rows, p->n_out[0], NULL);
    o = tensor(c, rows, p->n_out[1], NULL);
    w0 = weight(c, p->t, p->n_out[0], p->k, d->w[0], BE_USE_LINEAR);
    w1 = weight(c, p->t, p->n_out[1], p->n_out[0], d->w[1], BE_USE_LINEAR);
    b1 = vector(c, d->b[1], p->n_out[1]);
    a.x = x;
    a.part[0].w = w0;
    a.part[0].out = h;
    OK(be_linear(c, &a, err));
    a.x = h;
    a.epi = BE_EPI_GELU_ERF;
    a.part[0].w = w1;
    a.part[0].b = b1;
    a.part[0].out = o;
    OK(be_linear(c, &a, err));
    out = read_all(c, o, rows, p->n_out[1]);
    be_tensor_free(c, &x);
    be_tensor_free(c, &h);
    be_tensor_free(c, &o);
    be_weight_free(c, &w0);
    be_weight_free(c, &w1);
    be_weight_free(c, &b1);
    be_ctx_free(&c);
    unsetenv("INFERD_EMU_ARCH");
    return out;
}

/* sm_90 has a kernel of its own for many rows of halves, which copies by maps: the same bits as
 * sm_80's, as a row in little company has, also where tiles end in the middle. */
static void warpgroups_keep_the_bits(void **state)
{
    struct prod p = {.t = BE_F16, .k = 72, .n_out = {72, 272}, .n_parts = 2, .rows = MAX_N};
    float *all, *other, *few;
    struct data d;

    data_init(&d, &p);
    all = chained("90", &d, &p, MAX_N);
    other = chained("80", &d, &p, MAX_N);
    few = chained("90", &d, &p, 9);
    assert_same("sm_90 and sm_80", all, other, (size_t)MAX_N * p.n_out[1]);
    assert_same("80 rows and 9", few, all, 9 * (size_t)p.n_out[1]);
    free(all);
    free(other);
    free(few);
    data_deinit(&d, &p);
}

/* The bound, element by element, for f32 weights, whose products are no longer the exact ones;
 * the same bits as exact_f32 for other weights. */
static void one_tf32(struct be_ctx *c, const struct prod *p)
{
    float *want[3] = {NULL}, *got[3] = {NULL};
    uint32_t n = p->n_out[0], differ = 0;
    struct data d;

    data_init(&d, p);
    product(gpu, p, &d, 0, p->rows, want);
    product(c, p, &d, 0, p->rows, got);
    if (p->t != BE_F32)
        assert_same(be_dtype_name(p->t), got[0], want[0], p->rows * n);
    for (uint32_t i = 0; p->t == BE_F32 && i < p->rows * n; i++) {
        const float *x = d.x + (size_t)(i / n) * p->k, *w = (float *)(void *)d.w[0];
        double sum = 0, off = fabs((double)got[0][i] - want[0][i]);

        for (uint32_t j = 0; j < p->k; j++)
            sum += fabs((double)x[j] * w[(size_t)(i % n) * p->k + j]);
        if (!(off <= TF32(p->k) * sum))
            fail_msg("tf32 rows %u k %u element %u: %.9g, exact %.9g, allowed %g", p->rows, p->k, i,
                     got[0][i], want[0][i], TF32(p->k) * sum);
        differ += off > 0;
    }
    if (p->t == BE_F32)
        assert_true(differ > p->rows * n / 2);
    free(want[0]);
    free(got[0]);
    data_deinit(&d, p);
}

static void tf32(void **state)
{
    static const enum be_dtype types[] = {BE_F32, BE_F16, BE_BF16, BE_Q8_0};
    struct be_ctx *c = cuda_ctx(true, true, "tf32");

    for (size_t i = 0; i < 4; i++)
        for (uint32_t rows = 1; rows <= 70; rows += 23)
            one_tf32(c, &(struct prod){
                            .t = types[i], .k = 256, .n_out = {48}, .n_parts = 1, .rows = rows});
    one_tf32(c, &(struct prod){.t = BE_F32, .k = 27, .n_out = {9}, .n_parts = 1, .rows = 5});
    for (uint32_t rows = 1; rows <= 70; rows += 69)
        check(c,
              &(struct prod){.t = BE_F32,
                             .k = 256,
                             .n_out = {40, 40},
                             .n_parts = 2,
                             .rows = rows,
                             .epi = BE_EPI_GEGLU},
              REL_F16);
    alone(c, BE_F32);
    assert_string_equal(stats_of(c).f32_gemm, "tf32");
    be_ctx_free(&c);
}

/* norm, two products of its row (of both int8 forms), a product of something else, again
 * the first row: with fusions and without, the same bits; with them, fewer commands. */
static float *shared_rows(bool fuse, struct be_kstats *ks)
{
    struct be_ctx *c = cuda_ctx(fuse, false, NULL);
    size_t n;
    uint8_t *wk = random_blocks(BE_Q4_K, 64, 256, &n), *w0 = random_blocks(BE_Q4_0, 64, 256, &n);
    float x[3 * 256], ones[256], *out;
    struct be_tensor *tx, *th, *o;
    struct be_weight *a, *b, *v;

    fill(x, 3 * 256, 2);
    fill(ones, 256, 1);
    tx = tensor(c, 3, 256, x);
    th = tensor(c, 3, 256, NULL);
    o = tensor(c, 3, 64, NULL);
    a = weight(c, BE_Q4_K, 64, 256, wk, BE_USE_LINEAR);
    b = weight(c, BE_Q4_0, 64, 256, w0, BE_USE_LINEAR);
    v = vector(c, ones, 256);
    {
        struct be_rms_norm_args nrm = {.x = tx, .w = v, .out = th, .n = 3, .eps = 1e-6f};
        struct be_linear_args l = {.x = th, .n = 3, .n_parts = 1, .epi = BE_EPI_ADD};

        l.part[0].out = o;
        OK(be_rms_norm(c, &nrm, err));
        for (int i = 0; i < 4; i++) {
            l.part[0].w = i & 1 ? b : a;
            OK(be_linear(c, &l, err));
        }
        l.x = tx;
        OK(be_linear(c, &l, err));
        l.x = th;
        OK(be_linear(c, &l, err));
    }
    out = read_all(c, o, 3, 64);
    *ks = kstats_of(c);
    be_tensor_free(c, &tx);
    be_tensor_free(c, &th);
    be_tensor_free(c, &o);
    be_weight_free(c, &a);
    be_weight_free(c, &b);
    be_weight_free(c, &v);
    be_ctx_free(&c);
    free(wk);
    free(w0);
    return out;
}

static void fusions_change_nothing(void **state)
{
    struct be_kstats on, off;
    uint64_t seed = test_seed;
    float *a, *b;

    a = shared_rows(true, &on);
    test_seed = seed;
    b = shared_rows(false, &off);
    assert_same("fused", a, b, 3 * 64);
    assert_int_equal(off.fused, 0);
    assert_int_equal(on.fused, 3); /* by the norm; twice the same rows */
    assert_int_equal(on.dispatch[BE_KROUTE_BUCKET] + 3, off.dispatch[BE_KROUTE_BUCKET]);
    free(a);
    free(b);
}

/* The end of a layer of Gemma 4 and the beginning of the next: a gated product times a row of
 * another tensor, back to the stream's width, norm added to the stream, scale, norm, product.
 * Returns the next product, the stream and the gate. */
#define END_D 256u
static float *layer_end(bool fuse, const char *compute, uint32_t n, struct be_kstats *ks)
{
    struct be_ctx *c = cuda_ctx(fuse, false, compute);
    uint8_t *wg, *wp, *wq;
    float x[3 * END_D], v[END_D], *out = malloc(3 * 3 * END_D * sizeof(*out)), *part;
    struct be_tensor *stream, *ple, *gate, *t, *h, *q;
    struct be_weight *g, *p, *o, *norm[2];
    size_t bytes;

    fill(x, 3 * END_D, 2);
    stream = tensor(c, 3, END_D, x);
    fill(x, 3 * END_D, 1);
    ple = tensor(c, 3, END_D, x);
    gate = tensor(c, 3, 64, NULL);
    t = tensor(c, 3, END_D, NULL);
    h = tensor(c, 3, END_D, NULL);
    q = tensor(c, 3, END_D, NULL);
    wg = random_blocks(BE_Q4_0, 64, END_D, &bytes);
    wp = random_blocks(BE_Q4_0, END_D, 64, &bytes);
    wq = random_blocks(BE_Q8_0, END_D, END_D, &bytes);
    g = weight(c, BE_Q4_0, 64, END_D, wg, BE_USE_LINEAR);
    p = weight(c, BE_Q4_0, END_D, 64, wp, BE_USE_LINEAR);
    o = weight(c, BE_Q8_0, END_D, END_D, wq, BE_USE_LINEAR);
    for (int i = 0; i < 2; i++) {
        fill(v, END_D, 1);
        norm[i] = vector(c, v, END_D);
    }
    {
        struct be_linear_args l = {.x = stream, .n = n, .n_parts = 1, .epi = BE_EPI_GELU_TANH};
        struct be_scale_args mul = {.x = gate, .y = ple, .y_col = 64, .n = n, .scale = 0.7f};
        struct be_scale_args half = {.x = stream, .n = n, .scale = 0.55f};
        struct be_rms_norm_args add = {
            .x = t, .w = norm[0], .add = stream, .out = stream, .n = n, .eps = 1e-6f};
        struct be_rms_norm_args next = {.x = stream, .w = norm[1], .out = h, .n = n, .eps = 1e-5f};

        l.part[0].w = g;
        l.part[0].out = gate;
        OK(be_linear(c, &l, err));
        OK(be_scale(c, &mul, err));
        l = (struct be_linear_args){.x = gate, .n = n, .n_parts = 1, .epi = BE_EPI_NONE};
        l.part[0].w = p;
        l.part[0].out = t;
        OK(be_linear(c, &l, err));
        OK(be_rms_norm(c, &add, err));
        OK(be_scale(c, &half, err));
        OK(be_rms_norm(c, &next, err));
        l.x = h;
        l.part[0].w = o;
        l.part[0].out = q;
        OK(be_linear(c, &l, err));
    }
    memset(out, 0, 3 * 3 * END_D * sizeof(*out));
    part = read_all(c, q, n, END_D);
    memcpy(out, part, n * END_D * sizeof(*out));
    free(part);
    part = read_all(c, stream, n, END_D);
    memcpy(out + 3 * END_D, part, n * END_D * sizeof(*out));
    free(part);
    part = read_all(c, gate, n, 64);
    memcpy(out + 6 * END_D, part, n * 64 * sizeof(*out));
    free(part);
    *ks = kstats_of(c);
    for (int i = 0; i < 2; i++)
        be_weight_free(c, &norm[i]);
    be_weight_free(c, &g);
    be_weight_free(c, &p);
    be_weight_free(c, &o);
    be_tensor_free(c, &stream);
    be_tensor_free(c, &ple);
    be_tensor_free(c, &gate);
    be_tensor_free(c, &t);
    be_tensor_free(c, &h);
    be_tensor_free(c, &q);
    be_ctx_free(&c);
    free(wg);
    free(wp);
    free(wq);
    return out;
}

static void a_layers_end_is_the_same_fused(void **state)
{
    static const char *const compute[] = {NULL, "f16"};

    for (int i = 0; i < 2; i++)
        for (uint32_t n = 1; n <= 3; n += 2) {
            struct be_kstats on, off;
            uint64_t seed = test_seed, fewer;
            float *a, *b;

            a = layer_end(true, compute[i], n, &on);
            test_seed = seed;
            b = layer_end(false, compute[i], n, &off);
            assert_same("a layer's end", a, b, 9 * END_D);
            /* the scale, the second norm and its int8 form; of one row also the gate's scale and
             * two int8 forms */
            fewer = n == 1 ? 6 : 3;
            assert_int_equal(off.fused, 0);
            assert_int_equal(on.fused, fewer);
            assert_int_equal(on.dispatch[BE_KROUTE_BUCKET] + fewer, off.dispatch[BE_KROUTE_BUCKET]);
            free(a);
            free(b);
        }
}

/* Gate and up of two formats: one launch more than two products, and nothing touches the host. */
static void mixed_gate(void **state)
{
    static const uint32_t rows[] = {1, 3, 70};
    size_t n;
    uint8_t *w4 = random_blocks(BE_Q4_1, 25, 256, &n), *w8 = random_blocks(BE_Q8_0, 25, 256, &n);
    struct be_ctx *all[] = {cpu, gpu, cuda_ctx(true, true, "f16")};
    float x[MAX_N * 256], *out[3];

    fill(x, MAX_N * 256, 1);
    for (size_t r = 0; r < 3; r++) {
        for (int dev = 0; dev < 3; dev++) {
            struct be_ctx *c = all[dev];
            struct be_tensor *tx = tensor(c, MAX_N, 256, x), *to = tensor(c, MAX_N, 25, NULL);
            struct be_weight *a = weight(c, BE_Q8_0, 25, 256, w8, BE_USE_LINEAR);
            struct be_weight *b = weight(c, BE_Q4_1, 25, 256, w4, BE_USE_LINEAR);
            struct be_linear_args l = {.x = tx, .n = rows[r], .n_parts = 2, .epi = BE_EPI_GEGLU};
            struct be_kstats before, after;

            l.part[0].w = a;
            l.part[0].out = to;
            l.part[1].w = b;
            OK(be_sync(c, err));
            before = kstats_of(c);
            OK(be_linear(c, &l, err));
            OK(be_sync(c, err));
            after = kstats_of(c);
            if (dev > 0) {
                assert_int_equal(after.d2h_bytes, before.d2h_bytes);
                assert_int_equal(after.dispatch[BE_KROUTE_REFERENCE], 0);
                /* the int8 rows they share (a single row: each product makes its own), two
                 * products, the multiplication */
                assert_int_equal(after.dispatch[BE_KROUTE_BUCKET],
                                 before.dispatch[BE_KROUTE_BUCKET] + (rows[r] == 1 ? 3 : 4));
                assert_int_equal(after.slow_fallbacks, 0);
            }
            out[dev] = read_all(c, to, rows[r], 25);
            be_tensor_free(c, &tx);
            be_tensor_free(c, &to);
            be_weight_free(c, &a);
            be_weight_free(c, &b);
        }
        close_to("mixed gate", out[1], out[0], rows[r] * 25, REL_MAX);
        close_to("mixed gate of halves", out[2], out[0], rows[r] * 25, REL_F16);
        free(out[0]);
        free(out[1]);
        free(out[2]);
    }
    be_ctx_free(&all[2]);
    free(w4);
    free(w8);
}

static void refused(void **state)
{
    size_t n;
    uint8_t *w0 = random_blocks(BE_Q4_0, 8, 32, &n);
    struct be_tensor *x = tensor(gpu, 2, 32, NULL), *o = tensor(gpu, 2, 8, NULL);
    struct be_weight *a = weight(gpu, BE_Q4_0, 8, 32, w0, BE_USE_LINEAR);
    struct be_linear_args l = {.x = x, .n = 3, .n_parts = 1};
    struct be_weight_desc d = {
        .name = "w", .dtype = BE_Q4_0, .n_rows = 8, .n_cols = 33, .data = w0, .use = BE_USE_LINEAR};
    struct be_weight *none = NULL;

    l.part[0].w = a;
    l.part[0].out = o;
    FAILS(RC_INVALID, be_linear(gpu, &l, err));
    l.n = 2;
    l.part[0].out = x;
    FAILS(RC_INVALID, be_linear(gpu, &l, err));
    l.part[0].out = o;
    FAILS(RC_INVALID, be_weight_new(gpu, &d, &none, err));
    d.dtype = (enum be_dtype)99;
    FAILS(RC_UNSUPPORTED, be_weight_new(gpu, &d, &none, err));
    be_tensor_free(gpu, &x);
    be_tensor_free(gpu, &o);
    be_weight_free(gpu, &a);
    free(w0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats),
        cmocka_unit_test(epilogues),
        cmocka_unit_test(odd_columns),
        cmocka_unit_test(rows_alone),
        cmocka_unit_test(half),
        cmocka_unit_test(warpgroups_keep_the_bits),
        cmocka_unit_test(tf32),
        cmocka_unit_test(fusions_change_nothing),
        cmocka_unit_test(mixed_gate),
        cmocka_unit_test(refused),
        cmocka_unit_test(a_layers_end_is_the_same_fused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
