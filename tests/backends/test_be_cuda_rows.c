/* test_be_cuda_rows.c - embed, norms, rope, gather, softcap, pool, arg-max on the
 * (emulated) device against plain C; aliasing; rows alone; what is refused. */
#include "cuda_test.h"

#define ABS 4e-6
#define REL 2e-6

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

/* Runs the same calls on both and compares what is left in t[n_t - 1]. */
struct run {
    struct be_ctx *c;
    struct be_tensor *t[4];
    struct be_weight *w[2];
};

static void run_free(struct run *r)
{
    for (int i = 0; i < 4; i++)
        be_tensor_free(r->c, &r->t[i]);
    for (int i = 0; i < 2; i++)
        be_weight_free(r->c, &r->w[i]);
}

static void compare(const char *what, struct run r[2], int t, uint32_t n, uint32_t k)
{
    float *want = read_all(cpu, r[0].t[t], n, k), *got = read_all(gpu, r[1].t[t], n, k);

    assert_near(what, got, want, (size_t)n * k, ABS, REL);
    free(want);
    free(got);
}

static void embed(void **state)
{
    const int32_t ids[5] = {3, 0, 8, 3, 1};

    for (size_t i = 0; i < N_TYPES; i++) {
        uint32_t k = be_dtype_block(all_types[i]) == 256 ? 512 : 96;
        size_t n;
        uint8_t *blocks = random_blocks(all_types[i], 9, k, &n);
        struct run r[2] = {{.c = cpu}, {.c = gpu}};

        for (int j = 0; j < 2; j++) {
            struct be_embed_args a = {.ids = ids, .n = 5, .scale = 1.75f};

            a.table = r[j].w[0] = weight(r[j].c, all_types[i], 9, k, blocks, BE_USE_EMBED);
            a.out = r[j].t[0] = tensor(r[j].c, 6, k, NULL);
            OK(be_embed(r[j].c, &a, err));
            a.accumulate = true;
            a.scale = 1;
            a.ids = ids + 1;
            a.n = 3;
            OK(be_embed(r[j].c, &a, err));
        }
        compare(be_dtype_name(all_types[i]), r, 0, 5, k);
        run_free(&r[0]);
        run_free(&r[1]);
        free(blocks);
    }
}

static const uint32_t widths[] = {1, 7, 64, 384, 640, 1027, 9000};

static void norms(void **state)
{
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        uint32_t k = widths[i], n = 3;
        float *x = xcalloc(n * k, 4), *add = xcalloc(n * k, 4), *w = xcalloc(k, 4),
              *b = xcalloc(k, 4);

        fill(x, n * k, 5);
        fill(add, n * k, 2);
        fill(w, k, 2);
        fill(b, k, 2);
        /* out: own, x, add, none of them with no add */
        for (int alias = 0; alias < 4; alias++)
            for (int layer = 0; layer < 2; layer++) {
                struct run r[2] = {{.c = cpu}, {.c = gpu}};
                int at = alias == 3 ? 2 : alias == 0 ? 2 : alias - 1;

                for (int j = 0; j < 2; j++) {
                    struct be_ctx *c = r[j].c;
                    struct be_rms_norm_args a = {.n = n, .eps = 1e-6f};
                    struct be_layer_norm_args la = {.n = n, .eps = 1e-6f};

                    r[j].t[0] = tensor(c, n, k, x);
                    r[j].t[1] = tensor(c, n, k, add);
                    r[j].t[2] = tensor(c, n, k, NULL);
                    a.x = la.x = r[j].t[0];
                    a.add = la.add = alias == 3 ? NULL : r[j].t[1];
                    a.out = la.out = r[j].t[at];
                    a.w = la.w = r[j].w[0] = vector(c, w, k);
                    la.b = r[j].w[1] = vector(c, b, k);
                    if (layer)
                        OK(be_layer_norm(c, &la, err));
                    else
                        OK(be_rms_norm(c, &a, err));
                }
                compare(layer ? "layer_norm" : "rms_norm", r, at, n, k);
                run_free(&r[0]);
                run_free(&r[1]);
            }
        free(x);
        free(add);
        free(w);
        free(b);
    }
}

static void rope(void **state)
{
    static const struct {
        uint32_t heads, dim;
        float theta;
        bool norm;
    } cases[] = {{4, 64, 10000, true}, {1, 256, 1e6f, false}, {3, 2, 100, true}, {2, 96, 0, true}};
    const int32_t pos[4] = {0, 1, 777, 131071};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t k = cases[i].heads * cases[i].dim;
        float x[4 * 256], w[256];
        struct run r[2] = {{.c = cpu}, {.c = gpu}};

        fill(x, 4 * k, 3);
        fill(w, 256, 2);
        for (int j = 0; j < 2; j++) {
            struct be_rope_args a = {.pos = pos,
                                     .n = 4,
                                     .n_heads = cases[i].heads,
                                     .head_dim = cases[i].dim,
                                     .theta = cases[i].theta,
                                     .factor = 2,
                                     .norm_eps = 1e-6f};

            a.x = r[j].t[0] = tensor(r[j].c, 4, k, x);
            if (cases[i].norm)
                a.norm_w = r[j].w[0] = vector(r[j].c, w, cases[i].dim);
            OK(be_rope(r[j].c, &a, err));
        }
        compare("rope", r, 0, 4, k);
        run_free(&r[0]);
        run_free(&r[1]);
    }
}

/* A table on the host: the rows of an ordinary one, in one piece or in several. */
static void embed_from_the_host(void **state)
{
    enum { ROWS = 40, COLS = 4096, N = 130 };
    int32_t ids[N];

    for (int i = 0; i < N; i++)
        ids[i] = i * 7 % ROWS;
    for (size_t i = 0; i < N_TYPES; i++) {
        uint32_t k = i % 2 ? COLS : 512, n_ids = i % 2 ? N : 3;
        size_t n;
        uint8_t *blocks = random_blocks(all_types[i], ROWS, k, &n);
        struct run r[2] = {{.c = cpu}, {.c = gpu}};

        for (int j = 0; j < 2; j++) {
            struct be_embed_args a = {.ids = ids, .n = n_ids, .scale = 16};
            struct be_stats before, after;

            be_ctx_stats(r[j].c, &before);
            a.table = r[j].w[0] =
                weight(r[j].c, all_types[i], ROWS, k, blocks, BE_USE_EMBED | BE_USE_MAPPED);
            be_ctx_stats(r[j].c, &after);
            assert_true(after.weight_bytes - before.weight_bytes < 512);
            a.out = r[j].t[0] = tensor(r[j].c, N, k, NULL);
            OK(be_embed(r[j].c, &a, err));
            a.accumulate = true;
            a.scale = 0.5f;
            OK(be_embed(r[j].c, &a, err));
        }
        compare("embed from the host", r, 0, n_ids, k);
        run_free(&r[0]);
        run_free(&r[1]);
        free(blocks);
    }
}

/* The first pairs turn, the rest keep their bits. */
static void rope_of_some_pairs(void **state)
{
    enum { N = 3, H = 2, D = 512 };
    static const int32_t pos[N] = {0, 77, 4096};
    float *x = xcalloc(N * H * D, 4), *got;
    struct run r[2] = {{.c = cpu}, {.c = gpu}};

    fill(x, N * H * D, 2);
    for (int j = 0; j < 2; j++) {
        struct be_rope_args a = {.pos = pos,
                                 .n = N,
                                 .n_heads = H,
                                 .head_dim = D,
                                 .theta = 1e6f,
                                 .factor = 1,
                                 .n_pairs = 64};

        a.x = r[j].t[0] = tensor(r[j].c, N, H * D, x);
        OK(be_rope(r[j].c, &a, err));
    }
    compare("rope of some pairs", r, 0, N, H * D);
    got = read_all(gpu, r[1].t[0], N, H * D);
    for (uint32_t i = 0; i < N * H * D; i++)
        if (i % (D / 2) >= 64)
            assert_memory_equal(&got[i], &x[i], 4);
    free(got);
    free(x);
    run_free(&r[0]);
    run_free(&r[1]);
}

static void scale(void **state)
{
    static const uint32_t cols[][3] = {{256, 1024, 512}, {37, 101, 50}, {8, 64, 16}, {1, 1, 0}};

    for (size_t i = 0; i < 4; i++) {
        uint32_t k = cols[i][0], w = cols[i][1], n = 9;
        float *x = xcalloc(n * k, 4), *y = xcalloc(n * w, 4);
        struct run r[2] = {{.c = cpu}, {.c = gpu}};

        fill(x, n * k, 3);
        fill(y, n * w, 3);
        for (int j = 0; j < 2; j++) {
            struct be_scale_args a = {.n = n, .scale = 0.7071f, .y_col = cols[i][2]};

            a.x = r[j].t[0] = tensor(r[j].c, n, k, x);
            a.y = r[j].t[1] = tensor(r[j].c, n, w, y);
            OK(be_scale(r[j].c, &a, err));
            a.y = NULL;
            a.n = n - 1;
            OK(be_scale(r[j].c, &a, err));
            a.y = r[j].t[1];
            a.y_col = w - k + 1;
            FAILS(RC_INVALID, be_scale(r[j].c, &a, err));
            a.y = a.x;
            FAILS(RC_INVALID, be_scale(r[j].c, &a, err));
        }
        compare("scale", r, 0, n, k);
        run_free(&r[0]);
        run_free(&r[1]);
        free(x);
        free(y);
    }
}

static void gather_softcap_pool(void **state)
{
    const int32_t rows[3] = {4, 0, 4};
    const uint32_t offsets[4] = {0, 1, 4, 9};
    float x[9 * 70];

    fill(x, 9 * 70, 40);
    for (int kind = 0; kind <= BE_POOL_LAST; kind++) {
        struct run r[2] = {{.c = cpu}, {.c = gpu}};

        for (int j = 0; j < 2; j++) {
            struct be_ctx *c = r[j].c;
            struct be_gather_args g = {.rows = rows, .n = 3};
            struct be_softcap_args s = {.n = 2, .cap = 30};
            struct be_pool_args p = {.offsets = offsets, .n_seqs = 3, .kind = (enum be_pool)kind};

            g.x = p.x = r[j].t[0] = tensor(c, 9, 70, x);
            g.out = s.x = r[j].t[1] = tensor(c, 3, 70, NULL);
            p.out = r[j].t[2] = tensor(c, 3, 70, NULL);
            OK(be_gather(c, &g, err));
            OK(be_softcap(c, &s, err));
            OK(be_pool(c, &p, err));
        }
        compare("gather, softcap", r, 1, 3, 70);
        compare("pool", r, 2, 3, 70);
        run_free(&r[0]);
        run_free(&r[1]);
    }
}

static void argmax(void **state)
{
    static const uint32_t ks[] = {1, 70, 2048, 2049, 9000};

    for (size_t i = 0; i < 5; i++) {
        uint32_t k = ks[i], n = 5;
        float *x = xcalloc(n * k, 4);
        int32_t ids[2][5];

        fill(x, n * k, 3);
        x[k + k / 2] = x[k + k - 1] = 50; /* a tie: the lower wins */
        for (uint32_t j = 0; j < k; j++)
            x[2 * k + j] = j == k / 3 ? -INFINITY : NAN;
        for (uint32_t j = 0; j < k; j++)
            x[3 * k + j] = NAN;
        for (int j = 0; j < 2; j++) {
            struct be_ctx *c = j ? gpu : cpu;
            struct be_tensor *t = tensor(c, n, k, x);
            struct be_argmax_args a = {.x = t, .n = n, .out_ids = ids[j]};

            OK(be_argmax(c, &a, err));
            be_tensor_free(c, &t);
        }
        assert_memory_equal(ids[0], ids[1], sizeof(ids[0]));
        free(x);
    }
}

/* A row has the same bits whoever shares its launch. */
static void rows_alone(void **state)
{
    enum { N = 6, K = 1027 };
    float *x = xcalloc(N * K, 4), *w = xcalloc(K, 4), *all, *one;
    struct be_tensor *t, *o;
    struct be_weight *v;
    struct be_rms_norm_args a = {.n = N, .eps = 1e-6f};

    fill(x, N * K, 5);
    fill(w, K, 2);
    a.x = t = tensor(gpu, N, K, x);
    a.out = o = tensor(gpu, N, K, NULL);
    a.w = v = vector(gpu, w, K);
    OK(be_rms_norm(gpu, &a, err));
    all = read_all(gpu, o, N, K);
    a.n = 1;
    for (int i = 0; i < N; i++) {
        OK(be_tensor_write(gpu, t, 0, 1, x + i * K, err));
        OK(be_rms_norm(gpu, &a, err));
        one = read_all(gpu, o, 1, K);
        assert_same("alone", one, all + i * K, K);
        free(one);
    }
    be_tensor_free(gpu, &t);
    be_tensor_free(gpu, &o);
    be_weight_free(gpu, &v);
    free(all);
    free(x);
    free(w);
}

static void refused(void **state)
{
    float w8[8] = {0};
    const int32_t bad[1] = {9}, neg[1] = {-1};
    struct be_tensor *t = tensor(gpu, 4, 8, NULL), *wide = tensor(gpu, 4, 16, NULL);
    struct be_weight *v = vector(gpu, w8, 8), *e = weight(gpu, BE_F32, 1, 8, w8, BE_USE_EMBED);
    struct be_embed_args em = {.table = e, .ids = bad, .n = 1, .out = t};
    struct be_rms_norm_args rn = {.x = t, .w = v, .out = wide, .n = 4};
    struct be_gather_args g = {.x = t, .out = t, .rows = bad, .n = 1};
    struct be_softcap_args s = {.x = t, .n = 5, .cap = 1};
    struct be_rope_args ro = {.x = t, .n = 1, .n_heads = 1, .head_dim = 7, .theta = 1, .factor = 1};
    struct be_kv_write_args kw = {0};

    FAILS(RC_INVALID, be_embed(gpu, &em, err));
    em.ids = neg;
    FAILS(RC_INVALID, be_embed(gpu, &em, err));
    em.table = v;
    FAILS(RC_INVALID, be_embed(gpu, &em, err));
    FAILS(RC_INVALID, be_rms_norm(gpu, &rn, err));
    rn.out = t;
    rn.w = e;
    FAILS(RC_INVALID, be_rms_norm(gpu, &rn, err));
    FAILS(RC_INVALID, be_gather(gpu, &g, err));
    FAILS(RC_INVALID, be_softcap(gpu, &s, err));
    FAILS(RC_INVALID, be_rope(gpu, &ro, err));
    FAILS(RC_INVALID, be_kv_write(gpu, &kw, err));
    FAILS(RC_INVALID, be_tensor_read(gpu, t, 3, 2, w8, err));
    assert_null(be_tensor_view(gpu, t));
    be_tensor_free(gpu, &t);
    be_tensor_free(gpu, &wide);
    be_weight_free(gpu, &v);
    be_weight_free(gpu, &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed),
        cmocka_unit_test(norms),
        cmocka_unit_test(rope),
        cmocka_unit_test(argmax),
        cmocka_unit_test(rows_alone),
        cmocka_unit_test(refused),
        cmocka_unit_test(embed_from_the_host),
        cmocka_unit_test(rope_of_some_pairs),
        cmocka_unit_test(scale),
        cmocka_unit_test(gather_softcap_pool),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
