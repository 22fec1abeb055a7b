/* test_be_cpu_rows.c - norms, rope, gather, softcap, scale, pool, argmax: every level
 * against f64, edge sizes, aliasing, batch invariance. */
#include "be_test.h"

#define REL_NORM 1e-6
#define ABS_NORM 2e-6
#define ABS_ROPE 3e-7 /* times the pair's length; angles are f32 as in the reference */
#define ABS_TANH 4e-7 /* times cap */

static const uint32_t widths[] = {1, 2, 7, 8, 9, 31, 64, 384, 640, 1027};
#define N_WIDTHS (sizeof(widths) / sizeof(widths[0]))

static void rms_norm_matches(void **state)
{
    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t i = 0; c && i < N_WIDTHS; i++) {
            uint32_t k = widths[i], n = 13;
            float *x = xcalloc(n * k, 4), *w = xcalloc(k, 4), *add = xcalloc(n * k, 4);
            float *want = xcalloc(n * k, 4), *one = xcalloc(n * k, 4);
            struct be_tensor *tx, *ta, *to;
            struct be_weight *tw;
            struct be_rms_norm_args a = {.n = n, .eps = 1e-6f};

            fill(x, n * k, 5);
            fill(add, n * k, 2);
            fill(w, k, 2);
            memset(x + 3 * k, 0, k * 4); /* a row of zeros */
            a.x = tx = tensor(c, n, k, x);
            a.add = ta = tensor(c, n, k, add);
            a.out = to = tensor(c, n, k, NULL);
            a.w = tw = vector(c, w, k);
            for (uint32_t r = 0; r < n; r++) {
                double s = 0;

                for (uint32_t j = 0; j < k; j++)
                    s += (double)x[r * k + j] * x[r * k + j];
                for (uint32_t j = 0; j < k; j++)
                    want[r * k + j] =
                        (float)(add[r * k + j] + x[r * k + j] / sqrt(s / k + 1e-6f) * w[j]);
            }
            OK(be_rms_norm(c, &a, err));
            assert_near("rms_norm", be_tensor_view(c, to), want, n * k, ABS_NORM, REL_NORM);
            OK(be_tensor_read(c, to, 0, n, one, err));
            a.out = ta; /* out is add */
            OK(be_rms_norm(c, &a, err));
            assert_same("out is add", be_tensor_view(c, ta), one, n * k);
            OK(be_tensor_write(c, ta, 0, n, add, err));
            a.out = tx; /* out is x */
            OK(be_rms_norm(c, &a, err));
            assert_same("out is x", be_tensor_view(c, tx), one, n * k);
            for (uint32_t r = 0; r < n; r++) { /* each row alone */
                OK(be_tensor_write(c, tx, 0, 1, x + r * k, err));
                OK(be_tensor_write(c, ta, 0, 1, add + r * k, err));
                a.n = 1;
                a.out = to;
                OK(be_rms_norm(c, &a, err));
                assert_same("alone", be_tensor_view(c, to), one + r * k, k);
            }
            be_tensor_free(c, &tx);
            be_tensor_free(c, &ta);
            be_tensor_free(c, &to);
            be_weight_free(c, &tw);
            free(x);
            free(w);
            free(add);
            free(want);
            free(one);
        }
        be_ctx_free(&c);
    }
}

static void layer_norm_matches(void **state)
{
    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t i = 0; c && i < N_WIDTHS; i++) {
            uint32_t k = widths[i], n = 5;
            float *x = xcalloc(n * k, 4), *w = xcalloc(k, 4), *b = xcalloc(k, 4);
            float *add = xcalloc(n * k, 4), *want = xcalloc(n * k, 4), *one = xcalloc(n * k, 4);
            struct be_tensor *tx, *ta, *to;
            struct be_weight *tw, *tb;
            struct be_layer_norm_args a = {.n = n, .eps = 1e-5f};

            fill(x, n * k, 5);
            fill(add, n * k, 2);
            fill(w, k, 2);
            fill(b, k, 1);
            a.x = tx = tensor(c, n, k, x);
            a.add = ta = tensor(c, n, k, add);
            a.out = to = tensor(c, n, k, NULL);
            a.w = tw = vector(c, w, k);
            a.b = tb = vector(c, b, k);
            for (uint32_t r = 0; r < n; r++) {
                double m = 0, v = 0;

                for (uint32_t j = 0; j < k; j++)
                    m += x[r * k + j] + add[r * k + j];
                m /= k;
                for (uint32_t j = 0; j < k; j++)
                    v += (x[r * k + j] + add[r * k + j] - m) * (x[r * k + j] + add[r * k + j] - m);
                for (uint32_t j = 0; j < k; j++)
                    want[r * k + j] =
                        (float)((x[r * k + j] + add[r * k + j] - m) / sqrt(v / k + 1e-5f) * w[j] +
                                b[j]);
            }
            OK(be_layer_norm(c, &a, err));
            assert_near("layer_norm", be_tensor_view(c, to), want, k < 3 ? 0 : n * k, 1e-5, 1e-6);
            OK(be_tensor_read(c, to, 0, n, one, err));
            a.out = ta;
            OK(be_layer_norm(c, &a, err));
            assert_same("out is add", be_tensor_view(c, ta), one, n * k);
            OK(be_tensor_write(c, ta, 0, n, add, err));
            a.out = tx;
            OK(be_layer_norm(c, &a, err));
            assert_same("out is x", be_tensor_view(c, tx), one, n * k);
            OK(be_tensor_write(c, tx, 0, 1, x + 4 * k, err));
            OK(be_tensor_write(c, ta, 0, 1, add + 4 * k, err));
            a.n = 1;
            OK(be_layer_norm(c, &a, err));
            assert_same("alone", be_tensor_view(c, tx), one + 4 * k, k);
            be_tensor_free(c, &tx);
            be_tensor_free(c, &ta);
            be_tensor_free(c, &to);
            be_weight_free(c, &tw);
            be_weight_free(c, &tb);
            free(x);
            free(w);
            free(b);
            free(add);
            free(want);
            free(one);
        }
        be_ctx_free(&c);
    }
}

static void rope_turns_pairs(void **state)
{
    static const uint32_t dims[] = {2, 6, 16, 64, 88, 256, 512};
    static const int32_t pos[] = {0, 1, 2, 511, 4096, 32767, 131071};
    static const float thetas[] = {1e4f, 1e6f, 0};
    enum { N = 7, H = 3 };

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);

        for (size_t i = 0; c && i < sizeof(dims) / sizeof(dims[0]) * 6; i++) {
            uint32_t d = dims[i / 6], w = H * d;
            float theta = thetas[i % 3], factor = i % 3 == 1 ? 8 : 1;
            bool norm = i % 6 >= 3;
            float *x = xcalloc(N * w, 4), *nw = xcalloc(d, 4), *one = xcalloc(N * w, 4);
            struct be_tensor *tx;
            struct be_weight *tw;
            struct be_rope_args a = {.pos = pos,
                                     .n = N,
                                     .n_heads = H,
                                     .head_dim = d,
                                     .theta = theta,
                                     .factor = factor,
                                     .norm_eps = 1e-6f};

            fill(x, N * w, 3);
            fill(nw, d, 2);
            tw = vector(c, nw, d);
            a.x = tx = tensor(c, N, w, x);
            a.norm_w = norm ? tw : NULL;
            OK(be_rope(c, &a, err));
            OK(be_tensor_read(c, tx, 0, N, one, err));
            for (uint32_t r = 0; r < N * H; r++) {
                const float *in = x + r * d;
                float *out = one + r * d;
                double s = 0, f = 1;

                for (uint32_t j = 0; j < d; j++)
                    s += (double)in[j] * in[j];
                if (norm)
                    f = 1 / sqrt(s / d + 1e-6f);
                for (uint32_t j = 0; j < d / 2; j++) {
                    double u = in[j] * f * (norm ? nw[j] : 1);
                    double v = in[j + d / 2] * f * (norm ? nw[j + d / 2] : 1);
                    float freq =
                        theta > 0 ? 1.0f / powf(theta, (float)(2 * j) / (float)d) / factor : 0;
                    double ang = (double)((float)pos[r / H] * freq);
                    double tol = (fabs(u) + fabs(v)) * (ABS_ROPE + REL_NORM) + 1e-9;
                    double wu = u * cos(ang) - v * sin(ang), wv = v * cos(ang) + u * sin(ang);

                    if (!(fabs(out[j] - wu) <= tol && fabs(out[j + d / 2] - wv) <= tol))
                        fail_msg("%s rope dim %u theta %g pos %d pair %u: %.9g %.9g, expected "
                                 "%.9g %.9g",
                                 all_levels[l], d, (double)theta, pos[r / H], j, (double)out[j],
                                 (double)out[j + d / 2], wu, wv);
                }
            }
            OK(be_tensor_write(c, tx, 0, 1, x + 5 * w, err));
            a.pos = pos + 5;
            a.n = 1;
            OK(be_rope(c, &a, err));
            assert_same("alone", be_tensor_view(c, tx), one + 5 * w, w);
            be_tensor_free(c, &tx);
            be_weight_free(c, &tw);
            free(x);
            free(nw);
            free(one);
        }
        be_ctx_free(&c);
    }
}

/* n_pairs: the first pairs turn as they would in a whole rotation, the rest keep their
 * bits; the exponent's denominator stays the head's width. */
static void rope_may_turn_some_pairs(void **state)
{
    enum { N = 5, H = 2, D = 64, PAIRS = 8 };
    static const int32_t pos[N] = {0, 1, 77, 4096, 131071};

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);
        float x[N * H * D], part[N * H * D], whole[N * H * D];
        struct be_tensor *t;
        struct be_rope_args a = {
            .pos = pos, .n = N, .n_heads = H, .head_dim = D, .theta = 1e6f, .factor = 1};

        if (!c)
            break;
        fill(x, N * H * D, 3);
        a.x = t = tensor(c, N, H * D, x);
        OK(be_rope(c, &a, err));
        OK(be_tensor_read(c, t, 0, N, whole, err));
        OK(be_tensor_write(c, t, 0, N, x, err));
        a.n_pairs = PAIRS;
        OK(be_rope(c, &a, err));
        OK(be_tensor_read(c, t, 0, N, part, err));
        for (uint32_t h = 0; h < N * H; h++)
            for (uint32_t j = 0; j < D; j++) {
                uint32_t i = h * D + j;
                const float *want = j % (D / 2) < PAIRS ? whole : x;

                if (memcmp(&part[i], &want[i], sizeof(float)) != 0)
                    fail_msg("%s: head %u, element %u is %.9g, expected %.9g", all_levels[l], h, j,
                             (double)part[i], (double)want[i]);
            }
        a.n_pairs = D / 2 + 1;
        FAILS(RC_INVALID, be_rope(c, &a, err));
        be_tensor_free(c, &t);
        be_ctx_free(&c);
    }
}

/* x * (scale * y), y a slice of wider rows; or x * scale. */
static void scale_multiplies(void **state)
{
    enum { N = 9, K = 37, W = 101, AT = 50 };

    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);
        float x[N * K], y[N * W], want[N * K];
        struct be_tensor *tx, *ty;
        struct be_scale_args a = {.n = N, .scale = 0.7071f, .y_col = AT};

        if (!c)
            break;
        fill(x, N * K, 3);
        fill(y, N * W, 3);
        a.x = tx = tensor(c, N, K, x);
        a.y = ty = tensor(c, N, W, y);
        for (uint32_t i = 0; i < N * K; i++)
            want[i] = x[i] * (0.7071f * y[i / K * W + AT + i % K]);
        OK(be_scale(c, &a, err));
        assert_same("scale by a slice", be_tensor_view(c, tx), want, N * K);
        OK(be_tensor_write(c, tx, 0, N, x, err));
        a.y = NULL;
        a.n = N - 1; /* the last row stays */
        for (uint32_t i = 0; i < N * K; i++)
            want[i] = i < (N - 1) * K ? x[i] * 0.7071f : x[i];
        OK(be_scale(c, &a, err));
        assert_same("scale", be_tensor_view(c, tx), want, N * K);
        a.y = ty;
        a.y_col = W - K;
        OK(be_scale(c, &a, err));
        a.y_col = W - K + 1;
        FAILS(RC_INVALID, be_scale(c, &a, err));
        a.y_col = UINT32_MAX;
        FAILS(RC_INVALID, be_scale(c, &a, err));
        a.y_col = 0;
        a.y = tx;
        FAILS(RC_INVALID, be_scale(c, &a, err));
        a.n = N + 1;
        a.y = NULL;
        FAILS(RC_INVALID, be_scale(c, &a, err));
        be_tensor_free(c, &tx);
        be_tensor_free(c, &ty);
        be_ctx_free(&c);
    }
}

/* A mapped table gives the rows of an ordinary one, and holds no copy. */
static void a_mapped_table_is_only_read(void **state)
{
    static const int32_t ids[] = {6, 0, 3, 6};

    for (size_t i = 0; i < N_TYPES; i++) {
        struct be_ctx *c = make_ctx("auto", 1);
        enum { ROWS = 7, COLS = 512, N = 4 };
        struct be_stats before, after;
        size_t n_bytes;
        uint8_t *raw = random_blocks(all_types[i], ROWS, COLS, &n_bytes);
        struct be_embed_args a = {.ids = ids, .n = N, .scale = 16};
        struct be_tensor *t = tensor(c, N, COLS, NULL);
        struct be_weight *mapped, *plain;
        float want[N * COLS];

        be_ctx_stats(c, &before);
        mapped = weight(c, all_types[i], ROWS, COLS, raw, BE_USE_EMBED | BE_USE_MAPPED);
        be_ctx_stats(c, &after);
        assert_true(after.weight_bytes - before.weight_bytes < 512);
        plain = weight(c, all_types[i], ROWS, COLS, raw, BE_USE_EMBED);
        a.out = t;
        a.table = plain;
        OK(be_embed(c, &a, err));
        OK(be_tensor_read(c, t, 0, N, want, err));
        a.table = mapped;
        OK(be_embed(c, &a, err));
        assert_same("mapped", be_tensor_view(c, t), want, N * COLS);
        assert_false(be_supports(c, all_types[i], BE_USE_LINEAR | BE_USE_MAPPED));
        assert_false(be_supports(c, all_types[i], BE_USE_MAPPED));
        be_weight_free(c, &mapped);
        be_weight_free(c, &plain);
        be_tensor_free(c, &t);
        be_ctx_free(&c);
        free(raw);
    }
}

static void gather_and_its_errors(void **state)
{
    static const int32_t rows[] = {3, 0, 3, 1}, bad[] = {0, 4};
    struct be_ctx *c = make_ctx("auto", 1);
    float x[12];
    struct be_tensor *tx, *to;
    struct be_gather_args a = {.rows = rows, .n = 4};

    fill(x, 12, 1);
    a.x = tx = tensor(c, 4, 3, x);
    a.out = to = tensor(c, 4, 3, NULL);
    OK(be_gather(c, &a, err));
    for (int i = 0; i < 4; i++)
        assert_same("gather", be_tensor_view(c, to) + i * 3, x + rows[i] * 3, 3);
    a.rows = bad;
    a.n = 2;
    FAILS(RC_INVALID, be_gather(c, &a, err));
    a.out = tx;
    a.n = 1;
    FAILS(RC_INVALID, be_gather(c, &a, err));
    be_tensor_free(c, &tx);
    be_tensor_free(c, &to);
    be_ctx_free(&c);
}

static void softcap_is_tanh(void **state)
{
    for (size_t l = 0; l < N_LEVELS; l++) {
        struct be_ctx *c = make_ctx(all_levels[l], 2);
        enum { N = 3, K = 5001 };
        float *x, *one;
        struct be_tensor *t;
        struct be_softcap_args a = {.n = N, .cap = 30};

        if (!c)
            break;
        x = xcalloc(N * K, 4);
        one = xcalloc(N * K, 4);
        for (int i = 0; i < N * K; i++)
            x[i] = rndf() * (i % 3 == 0 ? 0.01f : i % 3 == 1 ? 50 : 400);
        x[7] = INFINITY;
        x[8] = -1e38f;
        a.x = t = tensor(c, N, K, x);
        OK(be_softcap(c, &a, err));
        OK(be_tensor_read(c, t, 0, N, one, err));
        for (int i = 0; i < N * K; i++) {
            double y = 30 * tanh((double)x[i] / 30);

            if (!(fabs(one[i] - y) <= ABS_TANH * 30 && fabs(one[i]) <= 30))
                fail_msg("%s softcap of %.9g: %.9g, expected %.9g", all_levels[l], (double)x[i],
                         (double)one[i], y);
        }
        OK(be_tensor_write(c, t, 0, 1, x + 2 * K, err));
        a.n = 1;
        OK(be_softcap(c, &a, err));
        assert_same("alone", be_tensor_view(c, t), one + 2 * K, K);
        a.cap = 0;
        FAILS(RC_INVALID, be_softcap(c, &a, err));
        be_tensor_free(c, &t);
        be_ctx_free(&c);
        free(x);
        free(one);
    }
}

static void pools_as_sentence_transformers(void **state)
{
    static const uint32_t offsets[] = {0, 1, 5, 12};
    enum { K = 100 };
    struct be_ctx *c = make_ctx("auto", 2);
    float x[12 * K], want[3 * K];
    struct be_tensor *tx, *to;
    struct be_pool_args a = {.offsets = offsets, .n_seqs = 3};
    static const uint32_t empty[] = {0, 0}, past[] = {0, 13};

    fill(x, 12 * K, 3);
    a.x = tx = tensor(c, 12, K, x);
    a.out = to = tensor(c, 3, K, NULL);
    for (int kind = BE_POOL_CLS; kind <= BE_POOL_LAST; kind++) {
        for (int s = 0; s < 3; s++) {
            for (int k = 0; k < K; k++) {
                double sum = 0, max = -INFINITY, wsum = 0, w = 0;
                uint32_t r0 = offsets[s], r1 = offsets[s + 1], n = r1 - r0;

                for (uint32_t r = r0; r < r1; r++) {
                    sum += x[r * K + k];
                    max = fmax(max, x[r * K + k]);
                    w += r - r0 + 1;
                    wsum += (r - r0 + 1.0) * x[r * K + k];
                }
                want[s * K + k] = (float)(kind == BE_POOL_CLS         ? x[r0 * K + k]
                                          : kind == BE_POOL_MAX       ? max
                                          : kind == BE_POOL_MEAN      ? sum / n
                                          : kind == BE_POOL_MEAN_SQRT ? sum / sqrt(n)
                                          : kind == BE_POOL_WEIGHTED  ? wsum / w
                                                                      : x[(r1 - 1) * K + k]);
            }
        }
        a.kind = (enum be_pool)kind;
        OK(be_pool(c, &a, err));
        assert_near("pool", be_tensor_view(c, to), want, 3 * K, 1e-7, 1e-7);
    }
    a.n_seqs = 1;
    a.offsets = empty;
    FAILS(RC_INVALID, be_pool(c, &a, err));
    a.offsets = past;
    FAILS(RC_INVALID, be_pool(c, &a, err));
    be_tensor_free(c, &tx);
    be_tensor_free(c, &to);
    be_ctx_free(&c);
}

static void argmax_takes_the_lowest_index(void **state)
{
    static const uint32_t ks[] = {1, 2, 8, 33, 1000, 100003};

    for (size_t l = 0; l < N_LEVELS; l++) {
        for (unsigned threads = 1; threads <= 3; threads++) {
            struct be_ctx *c = make_ctx(all_levels[l], threads);

            for (size_t i = 0; c && i < sizeof(ks) / sizeof(ks[0]); i++) {
                uint32_t k = ks[i];
                float *x = xcalloc(4 * k, 4);
                struct be_tensor *t;
                int32_t ids[4], want;
                struct be_argmax_args a = {.n = 4, .out_ids = ids};

                fill(x, 4 * k, 1);
                for (uint32_t j = 0; j < k; j++)
                    x[k + j] = 0.25f; /* all equal */
                for (uint32_t j = 0; j < k; j++)
                    x[2 * k + j] = NAN;
                for (uint32_t j = 0; j < k; j++)
                    x[3 * k + j] = j == k - 1 ? -INFINITY : NAN;
                if (k > 9) {
                    x[9] = x[k - 1] = 7;
                    x[4] = NAN;
                }
                a.x = t = tensor(c, 4, k, x);
                OK(be_argmax(c, &a, err));
                want = 0;
                for (uint32_t j = 0; j < k; j++)
                    if (x[j] > x[want])
                        want = (int32_t)j;
                assert_int_equal(ids[0], want);
                assert_int_equal(ids[1], 0);
                assert_int_equal(ids[2], 0);
                assert_int_equal(ids[3], k - 1);
                be_tensor_free(c, &t);
                free(x);
            }
            be_ctx_free(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_matches),
        cmocka_unit_test(layer_norm_matches),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(rope_may_turn_some_pairs),
        cmocka_unit_test(scale_multiplies),
        cmocka_unit_test(a_mapped_table_is_only_read),
        cmocka_unit_test(gather_and_its_errors),
        cmocka_unit_test(softcap_is_tanh),
        cmocka_unit_test(pools_as_sentence_transformers),
        cmocka_unit_test(argmax_takes_the_lowest_index),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
