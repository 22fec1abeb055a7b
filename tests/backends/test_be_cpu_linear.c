/* test_be_cpu_linear.c - be_linear and be_embed: every type and level against f64
 * products of the exact values, and the equality contract bit for bit. */
#include "be_test.h"

/* What level "c" may differ from the exact product: f32 rounding of a long sum;
 * for quantized types also the activation's int8 rounding (checked against the
 * activation's own largest value). Other levels are compared with level "c":
 *   F32 F16 BF16      REL_F32 of sum |x w|
 *   all block types   0: same bits (be_cpu_refq.c) */
#define REL_F32 3e-6
#define REL_INT8 0.012

struct lin {
    uint32_t n, k, m; /* rows, columns, outputs */
};

static const struct lin shapes[] = {
    {1, 256, 1},  {1, 256, 8},   {2, 256, 17},  {3, 512, 16},   {7, 256, 33},    {8, 768, 5},
    {9, 256, 64}, {24, 256, 40}, {33, 512, 31}, {241, 256, 19}, {25, 1280, 100},
};

static void run_linear(struct be_ctx *c, enum be_dtype t, const void *w, const struct lin *s,
                       const float *x, const float *bias, enum be_epi epi, float *out)
{
    struct be_tensor *tx = tensor(c, s->n, s->k, x), *to = tensor(c, s->n, s->m, out);
    struct be_weight *tw = weight(c, t, s->m, s->k, w, BE_USE_LINEAR);
    struct be_weight *tb = bias ? vector(c, bias, s->m) : NULL;
    struct be_linear_args a = {.x = tx, .n = s->n, .n_parts = 1, .epi = epi};

    a.part[0].w = tw;
    a.part[0].b = tb;
    a.part[0].out = to;
    OK(be_linear(c, &a, err));
    OK(be_tensor_read(c, to, 0, s->n, out, err));
    be_weight_free(c, &tw);
    be_weight_free(c, &tb);
    be_tensor_free(c, &tx);
    be_tensor_free(c, &to);
}

/* Exact product with the f32 values of w; also sum |x w| for tolerances. */
static void exact(enum be_dtype t, const uint8_t *w, const struct lin *s, const float *x, double *y,
                  double *mag)
{
    uint64_t row_bytes = 0;
    float *v = xcalloc(s->k, sizeof(float));

    assert_true(be_dtype_bytes(t, 1, s->k, &row_bytes));
    for (uint32_t j = 0; j < s->m; j++) {
        be_dtype_to_f32(t, w + j * row_bytes, v, s->k);
        for (uint32_t i = 0; i < s->n; i++) {
            double a = 0, b = 0;

            for (uint32_t k = 0; k < s->k; k++) {
                a += (double)x[i * s->k + k] * v[k];
                b += fabs((double)v[k]);
            }
            y[i * s->m + j] = a;
            mag[i * s->m + j] = b;
        }
    }
    free(v);
}

static void products_match_the_exact_values(void **state)
{
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t t = 0; t < N_TYPES; t++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            const struct lin *s = &shapes[i];
            bool plain = be_dtype_block(all_types[t]) == 1;
            size_t n_bytes, n_out = (size_t)s->n * s->m;
            uint8_t *w = random_blocks(all_types[t], s->m, s->k, &n_bytes);
            float *x = xcalloc((size_t)s->n * s->k, 4), *out = xcalloc(n_out, 4);
            double *y = xcalloc(n_out, 8), *mag = xcalloc(n_out, 8);

            fill(x, (size_t)s->n * s->k, 1);
            exact(all_types[t], w, s, x, y, mag);
            run_linear(c, all_types[t], w, s, x, NULL, BE_EPI_NONE, out);
            for (size_t o = 0; o < n_out; o++)
                if (!(fabs(out[o] - y[o]) <= (plain ? REL_F32 : REL_INT8 * 0.5) * mag[o]))
                    fail_msg("%s [%u,%u]x%u at %zu: %.9g, expected %.9g",
                             be_dtype_name(all_types[t]), s->m, s->k, s->n, o, (double)out[o],
                             y[o]);
            free(w);
            free(x);
            free(out);
            free(y);
            free(mag);
        }
    }
    be_ctx_free(&c);
}

static void levels_agree_with_plain_c(void **state)
{
    struct be_ctx *ref = make_ctx("c", 1);

    for (size_t l = 1; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t t = 0; c && t < N_TYPES; t++) {
            for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
                const struct lin *s = &shapes[i];
                size_t n_bytes, n_out = (size_t)s->n * s->m;
                uint8_t *w = random_blocks(all_types[t], s->m, s->k, &n_bytes);
                float *x = xcalloc((size_t)s->n * s->k, 4);
                float *a = xcalloc(n_out, 4), *b = xcalloc(n_out, 4);

                fill(x, (size_t)s->n * s->k, 3);
                run_linear(ref, all_types[t], w, s, x, NULL, BE_EPI_NONE, b);
                run_linear(c, all_types[t], w, s, x, NULL, BE_EPI_NONE, a);
                if (be_dtype_block(all_types[t]) == 1)
                    assert_near(be_dtype_name(all_types[t]), a, b, n_out, REL_F32 * s->k, 0);
                else
                    assert_same(be_dtype_name(all_types[t]), a, b, n_out);
                free(w);
                free(x);
                free(a);
                free(b);
            }
        }
        be_ctx_free(&c);
    }
    be_ctx_free(&ref);
}

static void odd_columns_work_for_plain_types(void **state)
{
    static const uint32_t ks[] = {1, 2, 3, 7, 9, 31, 65, 129};
    static const enum be_dtype types[] = {BE_F32, BE_F16, BE_BF16};

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 1);

        for (size_t t = 0; c && t < 3; t++) {
            for (size_t i = 0; i < sizeof(ks) / sizeof(ks[0]); i++) {
                struct lin s = {5, ks[i], 19};
                size_t n_bytes;
                uint8_t *w = random_blocks(types[t], s.m, s.k, &n_bytes);
                float x[5 * 129], out[5 * 19] = {0};
                double y[5 * 19], mag[5 * 19];

                fill(x, 5 * s.k, 1);
                exact(types[t], w, &s, x, y, mag);
                run_linear(c, types[t], w, &s, x, NULL, BE_EPI_NONE, out);
                for (size_t o = 0; o < 5 * 19; o++)
                    assert_true(fabs(out[o] - y[o]) <= REL_F32 * mag[o]);
                free(w);
            }
        }
        be_ctx_free(&c);
    }
}

/* One row alone, the same row in batches of 2..33, threads 1 to 4: same bits. */
static void a_row_never_depends_on_its_batch(void **state)
{
    static const uint32_t batches[] = {2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 25, 31, 33, 250};
    const uint32_t k = 512, m = 50, max = 250;

    for (size_t l = 0; l < N_LEVELS; l++) {
        for (size_t t = 0; t < N_TYPES; t++) {
            size_t n_bytes;
            struct be_ctx *c = make_ctx(all_levels[l], 1);
            uint8_t *w;
            float *x, *one, *out;

            if (!c)
                break;
            w = random_blocks(all_types[t], m, k, &n_bytes);
            x = xcalloc((size_t)max * k, 4);
            one = xcalloc((size_t)max * m, 4);
            out = xcalloc((size_t)max * m, 4);
            fill(x, (size_t)max * k, 2);
            for (uint32_t r = 0; r < (l == 0 ? 33 : max); r++) {
                struct lin s = {1, k, m};

                run_linear(c, all_types[t], w, &s, x + r * k, NULL, BE_EPI_NONE, one + r * m);
            }
            be_ctx_free(&c);
            for (unsigned threads = 1; threads <= 4; threads++) {
                c = make_ctx(all_levels[l], threads);
                for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
                    struct lin s = {batches[b], k, m};

                    if (l == 0 && s.n > 33)
                        continue; /* plain C: slow, and has one loop */
                    run_linear(c, all_types[t], w, &s, x, NULL, BE_EPI_NONE, out);
                    assert_same(be_dtype_name(all_types[t]), out, one, (size_t)s.n * m);
                }
                be_ctx_free(&c);
            }
            free(w);
            free(x);
            free(one);
            free(out);
        }
    }
}

/* The vector levels' plain products are one chain of fma over the columns, whatever tile, unit or
 * thread an output falls into: every tail of rows, outputs and columns has these very bits. */
static void a_plain_product_is_one_chain_at_every_tail(void **state)
{
    enum { MAX_N = 49, MAX_M = 65, MAX_K = 401 };
    static const enum be_dtype types[] = {BE_F32, BE_F16, BE_BF16};
    static const uint32_t ms[] = {1, 15, 16, 17, 31, 32, 33, 48, 49, MAX_M};
    static const uint32_t ks[] = {1, 3, 4, 5, 66, MAX_K};
    float *x = xcalloc(MAX_N * MAX_K, 4), *v = xcalloc(MAX_K, 4);
    float *want = xcalloc(MAX_N * MAX_M, 4), *out = xcalloc(MAX_N * MAX_M, 4);

    fill(x, MAX_N * MAX_K, 2);
    for (size_t l = 1; l < N_LEVELS; l++) {
        for (size_t i = 0; i < 3 * 10 * 6; i++) {
            enum be_dtype t = types[i % 3];
            uint32_t m = ms[i / 3 % 10], k = ks[i / 30];
            struct be_ctx *c = make_ctx(all_levels[l], (unsigned)(i / 3 + l) % 4 + 1);
            struct be_tensor *tx, *to;
            struct be_weight *w;
            struct be_linear_args a = {.n_parts = 1};
            size_t n_bytes;
            uint8_t *raw;

            if (!c)
                break;
            raw = random_blocks(t, m, k, &n_bytes);
            for (uint32_t j = 0; j < m; j++) {
                be_dtype_to_f32(t, raw + j * (n_bytes / m), v, k);
                for (uint32_t r = 0; r < MAX_N; r++) {
                    float sum = 0;

                    for (uint32_t d = 0; d < k; d++)
                        sum = fmaf(x[r * k + d], v[d], sum);
                    want[r * m + j] = sum;
                }
            }
            a.x = tx = tensor(c, MAX_N, k, x);
            a.part[0].w = w = weight(c, t, m, k, raw, BE_USE_LINEAR);
            a.part[0].out = to = tensor(c, MAX_N, m, NULL);
            for (a.n = 1; a.n <= MAX_N; a.n++) {
                OK(be_linear(c, &a, err));
                OK(be_tensor_read(c, to, 0, a.n, out, err));
                assert_same(be_dtype_name(t), out, want, (size_t)a.n * m);
            }
            be_weight_free(c, &w);
            be_tensor_free(c, &tx);
            be_tensor_free(c, &to);
            be_ctx_free(&c);
            free(raw);
        }
    }
    free(x);
    free(v);
    free(want);
    free(out);
}

/* OpenBLAS on request: used only if it keeps the contract, and then right. */
static void openblas_keeps_the_contract_or_is_not_used(void **state)
{
    struct be_opts o = {.backend = "cpu", .n_threads = 1, .f32_gemm = "openblas"};
    const uint32_t k = 384, m = 50, n = 61;
    struct be_ctx *c = NULL;
    struct be_stats st;
    size_t n_bytes;
    uint8_t *w = random_blocks(BE_F32, m, k, &n_bytes);
    float *x = xcalloc(n * k, 4), *one = xcalloc(n * m, 4), *out = xcalloc(n * m, 4);
    double *y = xcalloc(n * m, 8), *mag = xcalloc(n * m, 8);

    fill(x, n * k, 1);
    exact(BE_F32, w, &(struct lin){n, k, m}, x, y, mag);
    for (unsigned threads = 1; threads <= 3; threads++) {
        o.n_threads = threads;
        OK(be_ctx_new(&c, &o, err));
        be_ctx_stats(c, &st);
        print_message("[ note     ] f32_gemm: %s\n", st.f32_gemm);
        assert_true(strcmp(st.f32_gemm, "openblas (self-check passed)") == 0 ||
                    strncmp(st.f32_gemm, "own (OPENBLAS FAILED: ", 22) == 0);
        for (uint32_t r = 0; threads == 1 && r < n; r++) {
            struct lin s = {1, k, m};

            run_linear(c, BE_F32, w, &s, x + r * k, NULL, BE_EPI_NONE, one + r * m);
        }
        for (uint32_t b = 2; b <= n; b += b < 30 ? 1 : 31) {
            struct lin s = {b, k, m};

            run_linear(c, BE_F32, w, &s, x, NULL, BE_EPI_NONE, out);
            assert_same("openblas", out, one, b * m);
        }
        be_ctx_free(&c);
    }
    for (uint32_t i = 0; i < n * m; i++)
        assert_true(fabs(one[i] - y[i]) <= REL_F32 * mag[i]);
    o.f32_gemm = "mkl";
    FAILS(RC_INVALID, be_ctx_new(&c, &o, err));
    free(w);
    free(x);
    free(one);
    free(out);
    free(y);
    free(mag);
}

static double gelu(double z, bool erf_form)
{
    return erf_form ? 0.5 * z * (1 + erf(z / sqrt(2)))
                    : 0.5 * z * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}

/* Identity matrix: the epilogue alone, on values from tiny to huge. */
static void epilogues_match_their_formula(void **state)
{
    enum { N = 64, M = 43 };
    float *eye = xcalloc(M * M, 4), *x = xcalloc(N * M, 4), *out = xcalloc(N * M, 4);
    float *bias = xcalloc(M, 4), *add = xcalloc(N * M, 4);

    for (int i = 0; i < M; i++)
        eye[i * M + i] = 1;
    for (int i = 0; i < N * M; i++)
        x[i] = rndf() * (i % 5 == 0 ? 1e-3f : i % 5 == 1 ? 40 : 6);
    fill(bias, M, 1);
    fill(add, N * M, 4);
    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (int epi = BE_EPI_NONE; c && epi <= BE_EPI_ADD; epi++) {
            struct lin s = {N, M, M};

            memcpy(out, add, N * M * 4);
            run_linear(c, BE_F32, eye, &s, x, bias, (enum be_epi)epi, out);
            for (int i = 0; i < N * M; i++) {
                double z = x[i] + bias[i % M];
                double y = epi == BE_EPI_GELU_ERF    ? gelu(z, true)
                           : epi == BE_EPI_GELU_TANH ? gelu(z, false)
                           : epi == BE_EPI_ADD       ? add[i] + z
                                                     : z;

                if (!(fabs(out[i] - y) <= 4e-7 * fmax(1, fabs(z))))
                    fail_msg("%s epilogue %d of %.9g: %.9g, expected %.9g", all_levels[l], epi, z,
                             (double)out[i], y);
            }
        }
        be_ctx_free(&c);
    }
    free(eye);
    free(x);
    free(out);
    free(bias);
    free(add);
}

/* Three parts of three types; gated parts of two types. Same as one by one. */
static void parts_share_rows_and_nothing_else(void **state)
{
    enum { N = 11, K = 512 };
    static const enum be_dtype types[3] = {BE_Q5_0, BE_Q4_K, BE_BF16};
    static const uint32_t m[3] = {64, 17, 40};
    float *x = xcalloc(N * K, 4), *gated = xcalloc(N * 64, 4);

    fill(x, N * K, 2);
    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 3);
        struct be_linear_args a = {.n = N, .n_parts = 3};
        struct be_tensor *tx, *out[3];
        struct be_weight *w[3];
        uint8_t *raw[3], *raw_up;
        float *y[3], *up = xcalloc(N * 64, 4);
        size_t n_bytes;

        if (!c) {
            free(up);
            break;
        }
        a.x = tx = tensor(c, N, K, x);
        for (int i = 0; i < 3; i++) {
            struct lin s = {N, K, m[i]};

            raw[i] = random_blocks(types[i], m[i], K, &n_bytes);
            y[i] = xcalloc(N * m[i], 4);
            run_linear(c, types[i], raw[i], &s, x, NULL, BE_EPI_NONE, y[i]);
            a.part[i].w = w[i] = weight(c, types[i], m[i], K, raw[i], BE_USE_LINEAR);
            a.part[i].out = out[i] = tensor(c, N, m[i], NULL);
        }
        OK(be_linear(c, &a, err));
        for (int i = 0; i < 3; i++)
            assert_same("part", be_tensor_view(c, out[i]), y[i], N * m[i]);

        struct lin s = {N, K, 64};
        struct be_weight *wu;

        raw_up = random_blocks(BE_F32, 64, K, &n_bytes);
        run_linear(c, BE_F32, raw_up, &s, x, NULL, BE_EPI_NONE, up);
        wu = weight(c, BE_F32, 64, K, raw_up, BE_USE_LINEAR);
        a.n_parts = 2;
        a.epi = BE_EPI_GEGLU;
        a.part[1].w = wu;
        a.part[1].out = NULL;
        OK(be_linear(c, &a, err));
        for (int i = 0; i < N * 64; i++)
            gated[i] = (float)(gelu(y[0][i], false) * up[i]);
        assert_near("geglu", be_tensor_view(c, out[0]), gated, N * 64, 1e-6, 1e-6);

        be_weight_free(c, &wu);
        be_tensor_free(c, &tx);
        for (int i = 0; i < 3; i++) {
            be_weight_free(c, &w[i]);
            be_tensor_free(c, &out[i]);
            free(raw[i]);
            free(y[i]);
        }
        free(raw_up);
        free(up);
        be_ctx_free(&c);
    }
    free(x);
    free(gated);
}

static void extreme_codes_do_not_overflow(void **state)
{
    const struct lin s = {9, 512, 24};
    struct be_ctx *ref = make_ctx("c", 1);

    for (size_t l = 1; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 1);

        for (size_t t = 0; c && t < N_TYPES; t++) {
            for (int kind = 0; kind < 4; kind++) {
                static const uint8_t bytes[4] = {0xFF, 0x80, 0x7F, 0x00};
                size_t n_bytes;
                uint8_t *w = random_blocks(all_types[t], s.m, s.k, &n_bytes);
                uint32_t bb = be_dtype_block_bytes(all_types[t]);
                float x[9 * 512], a[9 * 24] = {0}, b[9 * 24] = {0};

                if (be_dtype_block(all_types[t]) == 1) {
                    free(w);
                    continue;
                }
                for (size_t o = 0; o < n_bytes; o += bb) {
                    uint16_t h = 0x2E66;

                    memset(w + o, bytes[kind], bb);
                    memcpy(w + o + (all_types[t] == BE_Q6_K ? 208 : 0), &h, 2);
                    if (bb == 20 || bb == 24 || bb == 144 || bb == 176)
                        memcpy(w + o + 2, &h, 2);
                }
                for (int i = 0; i < 9 * 512; i++)
                    x[i] = i % 9 < 5 ? 1.0f : i / 512 % 2 ? -1.0f : 1.0f;
                run_linear(ref, all_types[t], w, &s, x, NULL, BE_EPI_NONE, b);
                run_linear(c, all_types[t], w, &s, x, NULL, BE_EPI_NONE, a);
                assert_same(be_dtype_name(all_types[t]), a, b, s.n * s.m);
                x[700] = NAN;
                run_linear(c, all_types[t], w, &s, x, NULL, BE_EPI_NONE, a);
                for (uint32_t i = 0; i < s.n * s.m; i++)
                    assert_true(isnan(a[i]) == (i / s.m == 1));
                free(w);
            }
        }
        be_ctx_free(&c);
    }
    be_ctx_free(&ref);
}

static void embedding_rows_are_exact(void **state)
{
    static const int32_t ids[] = {0, 6, 6, 3, 1};

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t t = 0; c && t < N_TYPES; t++) {
            size_t n_bytes;
            uint8_t *raw = random_blocks(all_types[t], 7, 256, &n_bytes);
            struct be_weight *w =
                weight(c, all_types[t], 7, 256, raw, BE_USE_EMBED | BE_USE_LINEAR);
            float base[5 * 256], want[5 * 256], v[256];
            struct be_tensor *out;
            struct be_embed_args a = {.table = w, .ids = ids, .n = 5, .scale = 3.5f};
            static const int32_t bad[2][1] = {{-1}, {7}};

            fill(base, 5 * 256, 1);
            a.out = out = tensor(c, 5, 256, base);
            for (int i = 0; i < 5; i++) {
                be_dtype_to_f32(all_types[t], raw + (size_t)ids[i] * (n_bytes / 7), v, 256);
                for (int k = 0; k < 256; k++)
                    want[i * 256 + k] = 3.5f * v[k];
            }
            OK(be_embed(c, &a, err));
            assert_same(be_dtype_name(all_types[t]), be_tensor_view(c, out), want, 5 * 256);
            OK(be_tensor_write(c, out, 0, 5, base, err));
            a.accumulate = true;
            OK(be_embed(c, &a, err));
            for (int k = 0; k < 5 * 256; k++)
                want[k] = base[k] + want[k];
            assert_same("accumulate", be_tensor_view(c, out), want, 5 * 256);
            for (int i = 0; i < 2; i++) {
                a.ids = bad[i];
                a.n = 1;
                FAILS(RC_INVALID, be_embed(c, &a, err));
            }
            be_weight_free(c, &w);
            be_tensor_free(c, &out);
            free(raw);
        }
        be_ctx_free(&c);
    }
}

/* A tied table: rows come out of the packed bytes with the bits of the file, whose
 * pages may be gone by then. Level "c" packs nothing and reads the file. */
static void a_packed_table_needs_no_file(void **state)
{
    enum { ROWS = 37, COLS = 768 };

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t t = 0; c && t < N_TYPES; t++) {
            uint32_t cols = be_dtype_block(all_types[t]) == 1 ? COLS - 3 : COLS;
            size_t n_bytes;
            uint8_t *raw = random_blocks(all_types[t], ROWS, cols, &n_bytes);
            float *want = xcalloc((size_t)ROWS * cols, sizeof(float));
            struct be_weight *w =
                weight(c, all_types[t], ROWS, cols, raw, BE_USE_EMBED | BE_USE_LINEAR);
            struct be_tensor *out = tensor(c, ROWS, cols, NULL);
            int32_t ids[ROWS];
            struct be_embed_args a = {.table = w, .ids = ids, .n = ROWS, .scale = 1, .out = out};

            for (uint32_t i = 0; i < ROWS; i++) {
                ids[i] = (int32_t)i;
                be_dtype_to_f32(all_types[t], raw + i * (n_bytes / ROWS), want + i * cols, cols);
            }
            if (strcmp(all_levels[l], "c") != 0)
                memset(raw, 0x5A, n_bytes);
            OK(be_embed(c, &a, err));
            assert_same(be_dtype_name(all_types[t]), be_tensor_view(c, out), want, ROWS * cols);
            be_weight_free(c, &w);
            be_tensor_free(c, &out);
            free(want);
            free(raw);
        }
        be_ctx_free(&c);
    }
}

static void wrong_shapes_are_refused(void **state)
{
    struct be_ctx *c = make_ctx("auto", 1);
    float v[64] = {0};
    struct be_weight *w = weight(c, BE_F32, 4, 8, v, BE_USE_LINEAR);
    struct be_weight *b = vector(c, v, 5);
    struct be_tensor *x = tensor(c, 3, 8, NULL), *x9 = tensor(c, 3, 9, NULL);
    struct be_tensor *out = tensor(c, 2, 4, NULL), *sq = tensor(c, 3, 4, NULL);
    struct be_linear_args a = {.x = x, .n = 3, .n_parts = 1};
    struct be_weight_desc d = {.name = "t",
                               .dtype = BE_Q4_0,
                               .n_rows = 1,
                               .n_cols = 33,
                               .data = v,
                               .n_bytes = 18,
                               .use = BE_USE_LINEAR};
    struct be_weight *none = NULL;

    a.part[0].w = w;
    a.part[0].out = out;
    FAILS(RC_INVALID, be_linear(c, &a, err)); /* out has 2 rows */
    a.n = 2;
    OK(be_linear(c, &a, err));
    a.n = 0;
    OK(be_linear(c, &a, err));
    a.n = 2;
    a.x = x9;
    FAILS(RC_INVALID, be_linear(c, &a, err));
    a.x = x;
    a.part[0].b = b;
    FAILS(RC_INVALID, be_linear(c, &a, err));
    a.part[0].b = NULL;
    a.epi = BE_EPI_GEGLU;
    FAILS(RC_INVALID, be_linear(c, &a, err));
    a.epi = BE_EPI_NONE;
    a.n_parts = 4;
    FAILS(RC_INVALID, be_linear(c, &a, err));
    FAILS(RC_INVALID, be_weight_new(c, &d, &none, err)); /* no multiple of 32 */
    d.n_cols = 32;
    d.n_bytes = 17;
    FAILS(RC_INVALID, be_weight_new(c, &d, &none, err));
    d.n_bytes = 18;
    d.use = 64;
    FAILS(RC_UNSUPPORTED, be_weight_new(c, &d, &none, err));
    d.use = BE_USE_LINEAR;
    d.dtype = (enum be_dtype)10;
    FAILS(RC_UNSUPPORTED, be_weight_new(c, &d, &none, err));
    assert_null(none);
    be_weight_free(c, &w);
    be_weight_free(c, &b);
    be_tensor_free(c, &x);
    be_tensor_free(c, &x9);
    be_tensor_free(c, &out);
    be_tensor_free(c, &sq);
    be_ctx_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_the_exact_values),
        cmocka_unit_test(levels_agree_with_plain_c),
        cmocka_unit_test(odd_columns_work_for_plain_types),
        cmocka_unit_test(a_row_never_depends_on_its_batch),
        cmocka_unit_test(a_plain_product_is_one_chain_at_every_tail),
        cmocka_unit_test(openblas_keeps_the_contract_or_is_not_used),
        cmocka_unit_test(epilogues_match_their_formula),
        cmocka_unit_test(parts_share_rows_and_nothing_else),
        cmocka_unit_test(extreme_codes_do_not_overflow),
        cmocka_unit_test(embedding_rows_are_exact),
        cmocka_unit_test(a_packed_table_needs_no_file),
        cmocka_unit_test(wrong_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
