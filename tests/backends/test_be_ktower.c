/* test_be_ktower.c - the executor of the kernels of eyes and ears against the CPU backend's plain
 * C, in both types of rows; rows that share a call do not know each other.
 *
 * Bounds: the CPU sums in f64, the kernels in f32 with elementary functions of 2e-7. Rows of f16
 * hold 11 bits: half a unit of the last is 2^-11 of the value.
 */
#include "be_krows_test.h"

#include "be_ktower.h"

#define TOL 4e-6
#define TOL_F16 5e-4

static void run_tower(const char *name, const void *args)
{
    const struct be_kentry *e = be_kcat_find(name);
    struct rc_err err = RC_ERR_INIT;
    struct be_kir ir;

    assert_non_null(e);
    assert_int_equal(be_kfam_tower.build(e, &ir, &err), RC_OK);
    if (be_kir_verify(&ir, &be_ktarget_sm75, &err) != RC_OK ||
        be_kir_verify(&ir, &be_ktarget_metal3, &err) != RC_OK)
        fail_msg("%s", err.msg);
    if (be_kfam_tower.run(&ir, args, &err) != RC_OK)
        fail_msg("%s: %s", name, err.msg);
}

/* Rows of a tensor of type t for the kernel, and the same values for the CPU. */
struct both {
    void *dev;
    float *f;
};

static struct both make(uint32_t t, size_t n, float scale)
{
    struct both b = {.dev = values(t, n, scale), .f = xcalloc(n, sizeof(float))};

    for (size_t i = 0; i < n; i++)
        b.f[i] = kx_act_get(at(b.dev), t, i);
    return b;
}

static void drop(struct both *b)
{
    free(b->dev);
    free(b->f);
}

/* What the kernel wrote against a tensor of the CPU; nothing behind it. */
static void agrees(const char *what, struct be_ctx *c, const struct be_tensor *want,
                   const void *got, uint32_t t, uint32_t rows, uint32_t cols)
{
    float *w = xcalloc((size_t)rows * cols, sizeof(*w));

    OK(be_tensor_read(c, want, 0, rows, w, err));
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        expect(act(got, t, i), (double)w[i],
               (t == KX_F16 ? TOL_F16 : TOL) * (1 + fabs((double)w[i])), what, (uint32_t)(i / cols),
               (uint32_t)(i % cols));
    check_margin(got, elem(t), (size_t)rows * cols);
    free(w);
}

/* ------------------------------------------------------------ act, glu, affine */

static void act_case(struct be_ctx *c, uint32_t n, uint32_t k, uint32_t t, int kind, int place)
{
    size_t all = (size_t)n * k;
    struct both x = make(t, all, 6), y = make(t, all, 1);
    void *out = place & 1 ? x.dev : values(t, all, 0);
    struct kx_act a = {.x = at(x.dev),
                       .add = place & 2 ? at(y.dev) : 0,
                       .out = at(out),
                       .n = n,
                       .k = k,
                       .x_t = t,
                       .add_t = t,
                       .out_t = t,
                       .kind = (uint32_t)kind,
                       .lo = -0.25f,
                       .hi = 0.5f};
    struct be_tensor *tx = tensor(c, n, k, x.f), *ty = tensor(c, n, k, y.f);
    struct be_act_args b = {.x = tx,
                            .add = place & 2 ? ty : NULL,
                            .out = tx,
                            .n = n,
                            .kind = (enum be_act_kind)kind,
                            .lo = a.lo,
                            .hi = a.hi};

    OK(be_act(c, &b, err));
    run_tower("kx_act", &a);
    agrees("act", c, tx, out, t, n, k);
    if (!(place & 1))
        free(out);
    be_tensor_free(c, &tx);
    be_tensor_free(c, &ty);
    drop(&x);
    drop(&y);
}

static void activations_agree(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {3, 7}, {5, 411}};
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t i = 0; i < N_OF(shapes) * 2; i++)
        for (int kind = BE_ACT_RELU; kind <= BE_ACT_CLAMP; kind++)
            for (int place = 0; place < 4; place++)
                act_case(c, shapes[i / 2][0], shapes[i / 2][1], i % 2, kind, place);
    be_ctx_free(&c);
}

static void values_that_are_not_finite(void **state)
{
    const float in[8] = {NAN, -1e30f, 1e30f, -0.0f, INFINITY, -INFINITY, 88, -100};
    float out[8];

    for (uint32_t kind = BE_ACT_RELU; kind <= BE_ACT_CLAMP; kind++) {
        struct kx_act a = {.x = at(in),
                           .out = at(out),
                           .n = 1,
                           .k = 8,
                           .kind = kind,
                           .lo = -INFINITY,
                           .hi = INFINITY};

        run_tower("kx_act", &a);
        assert_true(isnan(out[0]));
        assert_true(out[2] == in[2] && out[4] == INFINITY && out[6] == in[6]);
        assert_true(kind == BE_ACT_CLAMP ? out[5] == -INFINITY && out[7] == -100
                                         : fabsf(out[7]) < 1e-30f);
    }
}

static void gates_and_affine_rows_agree(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {4, 13}, {33, 72}};
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t i = 0; i < N_OF(shapes) * 2; i++) {
        uint32_t n = shapes[i / 2][0], k = shapes[i / 2][1], t = i % 2;
        size_t all = (size_t)n * k;
        struct both x = make(t, 2 * all, 5), y = make(t, all, 3);
        float *u = values(KX_F32, k, 1), *v = values(KX_F32, k, 1);
        void *out = values(t, all, 0);
        struct be_tensor *tx = tensor(c, n, 2 * k, x.f), *to = tensor(c, n, k, NULL),
                         *ty = tensor(c, n, k, y.f);
        struct be_weight *wu = vector(c, u, k), *wv = vector(c, v, k);

        OK(be_glu(c, &(struct be_glu_args){.x = tx, .out = to, .n = n}, err));
        run_tower("kx_glu", &(struct kx_glu){at(x.dev), at(out), n, k, t, t});
        agrees("glu", c, to, out, t, n, k);
        OK(be_affine(c, &(struct be_affine_args){.x = ty, .sub = wu, .mul = wv, .n = n}, err));
        run_tower("kx_affine", &(struct kx_affine){at(y.dev), at(u), at(v), n, k, t, 0});
        agrees("affine", c, ty, y.dev, t, n, k);
        be_weight_free(c, &wu);
        be_weight_free(c, &wv);
        be_tensor_free(c, &tx);
        be_tensor_free(c, &to);
        be_tensor_free(c, &ty);
        free(out), free(v), free(u);
        drop(&x);
        drop(&y);
    }
    be_ctx_free(&c);
}

/* -------------------------------------------------------------------- rotation */

static void rotation_by_column_and_row_agrees(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 4}, {9, 3, 16}, {40, 2, 72}, {5, 12, 64}};
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t s = 0; s < N_OF(shapes) * 2; s++) {
        uint32_t n = shapes[s / 2][0], heads = shapes[s / 2][1], dim = shapes[s / 2][2], t = s % 2;
        struct both x = make(t, (size_t)n * heads * dim, 2);
        struct be_tensor *tx = tensor(c, n, heads * dim, x.f);
        double freq[18];
        int32_t px[40], py[40];
        struct be_rope2d_args b = {.x = tx,
                                   .pos_x = px,
                                   .pos_y = py,
                                   .n = n,
                                   .n_heads = heads,
                                   .head_dim = dim,
                                   .theta = 100};

        for (uint32_t r = 0; r < n; r++) {
            px[r] = (int32_t)(rnd() % 60);
            py[r] = (int32_t)(rnd() % 60);
        }
        for (uint32_t i = 0; i < dim / 4; i++)
            freq[i] = (double)(1.0f / powf(100, (float)(2 * i) / (float)(dim / 2)));
        OK(be_rope2d(c, &b, err));
        run_tower("kx_rope2d",
                  &(struct kx_rope2d){at(x.dev), at(px), at(py), at(freq), n, heads, dim, t});
        agrees("rope2d", c, tx, x.dev, t, n, heads * dim);
        be_tensor_free(c, &tx);
        drop(&x);
    }
    be_ctx_free(&c);
}

/* --------------------------------------------------------------------- windows */

struct fold_case {
    uint32_t w, h, ch, k_h, k_w, s_h, s_w, p_h, p_w, x_line, line, n_lines;
    bool ch_first;
};

static void fold_case(struct be_ctx *c, const struct fold_case *f, uint32_t t)
{
    uint32_t lines = f->h - f->x_line, n_x = (f->w + 2 * f->p_w - f->k_w) / f->s_w + 1;
    uint32_t n = f->n_lines * n_x, k = f->k_h * f->k_w * f->ch;
    struct both x = make(t, (size_t)lines * f->w * f->ch, 1);
    void *out = values(t, (size_t)n * k, 0);
    struct be_tensor *tx = tensor(c, lines, f->w * f->ch, x.f), *to = tensor(c, n, k, NULL);
    struct kx_unfold a = {.x = at(x.dev),
                          .out = at(out),
                          .n = n,
                          .k = k,
                          .x_t = t,
                          .out_t = t,
                          .width = f->w,
                          .height = f->h,
                          .n_ch = f->ch,
                          .x_line = f->x_line,
                          .k_h = f->k_h,
                          .k_w = f->k_w,
                          .stride_h = f->s_h,
                          .stride_w = f->s_w,
                          .pad_h = f->p_h,
                          .pad_w = f->p_w,
                          .ch_first = f->ch_first,
                          .line = f->line,
                          .n_x = n_x};
    struct be_unfold_args b = {.x = tx,
                               .out = to,
                               .width = f->w,
                               .height = f->h,
                               .n_ch = f->ch,
                               .x_line = f->x_line,
                               .k_h = f->k_h,
                               .k_w = f->k_w,
                               .stride_h = f->s_h,
                               .stride_w = f->s_w,
                               .pad_h = f->p_h,
                               .pad_w = f->p_w,
                               .ch_first = f->ch_first,
                               .line = f->line,
                               .n_lines = f->n_lines};

    OK(be_unfold(c, &b, err));
    run_tower("kx_unfold", &a);
    agrees("unfold", c, to, out, t, n, k);
    be_tensor_free(c, &tx);
    be_tensor_free(c, &to);
    free(out);
    drop(&x);
}

static void windows_are_those_of_a_convolution(void **state)
{
    static const struct fold_case cases[] = {
        {8, 9, 1, 3, 3, 2, 2, 1, 1, 0, 0, 5, true},
        {4, 7, 5, 3, 3, 2, 2, 1, 1, 3, 2, 2, true},
        {4, 7, 5, 3, 3, 2, 2, 1, 1, 0, 0, 4, false},
        {6, 3, 2, 1, 6, 1, 1, 0, 0, 0, 0, 3, false},
        {5, 1, 3, 2, 2, 1, 3, 4, 2, 0, 0, 7, true},
        {2, 3, 1, 1, 2, 1, 1, 0, 0, 1, UINT32_MAX, 4, false}, /* behind the picture */
    };
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t i = 0; i < N_OF(cases) * 2; i++)
        fold_case(c, &cases[i / 2], i % 2);
    be_ctx_free(&c);
}

static void convolutions_along_rows_agree(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 1}, {3, 5, 5}, {40, 33, 5}, {70, 8, 64}};
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t s = 0; s < N_OF(shapes) * 2; s++) {
        uint32_t n = shapes[s / 2][0], k = shapes[s / 2][1], taps = shapes[s / 2][2], t = s % 2;
        struct both x = make(t, (size_t)n * k, 1);
        float *w = values(KX_F32, (size_t)k * taps, 0.5f);
        void *out = values(t, (size_t)n * k, 0);
        struct be_tensor *tx = tensor(c, n, k, x.f), *to = tensor(c, n, k, NULL);
        struct be_weight *tw = vector(c, w, (uint64_t)k * taps);

        OK(be_conv1d(c, &(struct be_conv1d_args){.x = tx, .out = to, .w = tw, .n = n, .k = taps},
                     err));
        run_tower("kx_conv1d", &(struct kx_conv1d){at(x.dev), at(w), at(out), n, k, taps, t, t, 0});
        agrees("conv1d", c, to, out, t, n, k);
        be_weight_free(c, &tw);
        be_tensor_free(c, &tx);
        be_tensor_free(c, &to);
        free(out), free(w);
        drop(&x);
    }
    be_ctx_free(&c);
}

/* ------------------------------------------------------------------- attention */

static void local_case(struct be_ctx *c, uint32_t n, uint32_t heads, uint32_t dim, uint32_t n_keys,
                       float cap, uint32_t t)
{
    uint32_t wide = heads * dim;
    struct both q = make(t, (size_t)n * wide, 1), k = make(t, (size_t)n * wide, 1),
                v = make(t, (size_t)n * wide, 1), rel = make(t, (size_t)n_keys * wide, 1);
    float *u = values(KX_F32, dim, 1);
    void *out = values(t, (size_t)n * wide, 0);
    struct be_tensor *tq = tensor(c, n, wide, q.f), *tk = tensor(c, n, wide, k.f),
                     *tv = tensor(c, n, wide, v.f), *tr = tensor(c, n_keys, wide, rel.f),
                     *to = tensor(c, n, wide, NULL);
    struct be_weight *tu = vector(c, u, dim);
    struct be_attention_local_args b = {.q = tq,
                                        .k = tk,
                                        .v = tv,
                                        .rel = tr,
                                        .out = to,
                                        .q_scale = tu,
                                        .n = n,
                                        .n_heads = heads,
                                        .head_dim = dim,
                                        .n_keys = n_keys,
                                        .k_scale = 1.3132f,
                                        .cap = cap};
    struct kx_attn_local a = {at(q.dev), at(k.dev), at(v.dev), at(rel.dev), at(u), at(out), n,
                              heads,     dim,       n_keys,    t,           t,     t,       1.3132f,
                              cap,       0};

    OK(be_attention_local(c, &b, err));
    run_tower("kx_attn_local", &a);
    agrees("attn_local", c, to, out, t, n, wide);
    be_weight_free(c, &tu);
    be_tensor_free(c, &tq);
    be_tensor_free(c, &tk);
    be_tensor_free(c, &tv);
    be_tensor_free(c, &tr);
    be_tensor_free(c, &to);
    free(out), free(u);
    drop(&q);
    drop(&k);
    drop(&v);
    drop(&rel);
}

static void attention_over_the_last_rows_agrees(void **state)
{
    static const uint32_t shapes[][4] = {
        {1, 1, 1, 1}, {30, 2, 16, 12}, {17, 3, 40, 12}, {70, 1, 128, 64}, {5, 2, 512, 3}};
    struct be_ctx *c = make_ctx("c", 1);

    for (size_t s = 0; s < N_OF(shapes) * 2; s++)
        local_case(c, shapes[s / 2][0], shapes[s / 2][1], shapes[s / 2][2], shapes[s / 2][3],
                   s % 3 == 0 ? 2 : 50, s % 2);
    be_ctx_free(&c);
}

/* A row's bits stay when a later row is not finite, and when rows before its keys are left out. */
static void rows_do_not_know_later_or_far_rows(void **state)
{
    enum { N = 40, DIM = 24, KEYS = 7, AT = 20 };
    float *q = values(KX_F32, N * DIM, 1), *rel = values(KX_F32, KEYS * DIM, 1),
          *u = values(KX_F32, DIM, 1), all[N * DIM], less[N * DIM];
    struct kx_attn_local a = {.q = at(q),
                              .k = at(q),
                              .v = at(q),
                              .rel = at(rel),
                              .q_scale = at(u),
                              .out = at(all),
                              .n = N,
                              .n_heads = 1,
                              .head_dim = DIM,
                              .n_keys = KEYS,
                              .k_scale = 1,
                              .cap = 50};

    run_tower("kx_attn_local", &a);
    for (uint32_t i = 0; i < DIM; i++) {
        q[(AT + 1) * DIM + i] = NAN;
        q[(AT - KEYS) * DIM + i] = NAN;
    }
    a.out = at(less);
    run_tower("kx_attn_local", &a);
    assert_memory_equal(all + AT * DIM, less + AT * DIM, DIM * sizeof(float));
    assert_true(isnan(less[(AT + 1) * DIM]) && isnan(less[(AT - 1) * DIM]));
    free(u), free(rel), free(q);
}

/* Numbers no host may send are refused by the executor, not read past. */
static void nonsense_is_refused(void **state)
{
    static const struct kx_attn_local keys = {.n = 1, .n_heads = 1, .head_dim = 8, .n_keys = 65};
    static const struct kx_rope2d odd = {.n = 1, .n_heads = 1, .head_dim = 6};
    static const struct kx_unfold fold = {.n = 1, .k = 5, .k_h = 1, .k_w = 2, .n_ch = 2, .n_x = 1};
    const struct {
        const char *name;
        const void *args;
    } bad[] = {{"kx_attn_local", &keys}, {"kx_rope2d", &odd}, {"kx_unfold", &fold}};

    for (size_t i = 0; i < N_OF(bad); i++) {
        struct be_kir ir;

        OK(be_kfam_tower.build(be_kcat_find(bad[i].name), &ir, err));
        assert_int_equal(be_kfam_tower.run(&ir, bad[i].args, NULL), RC_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_agree),
        cmocka_unit_test(values_that_are_not_finite),
        cmocka_unit_test(gates_and_affine_rows_agree),
        cmocka_unit_test(rotation_by_column_and_row_agrees),
        cmocka_unit_test(windows_are_those_of_a_convolution),
        cmocka_unit_test(convolutions_along_rows_agree),
        cmocka_unit_test(attention_over_the_last_rows_agrees),
        cmocka_unit_test(rows_do_not_know_later_or_far_rows),
        cmocka_unit_test(nonsense_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
