/* Operations of eyes and ears against f64 sums written out, on every level this processor has;
 * with any number of threads the same bits; shapes that do not fit are refused. */
#include "be_impl.h"
#include "be_test.h"

#define TOL 3e-6 /* f32 arithmetic and elementary functions of 2e-7 */

static bool missing[N_LEVELS]; /* levels this processor lacks */

static struct be_ctx *each(size_t i)
{
    const char *level = all_levels[i % N_LEVELS];

    return missing[i % N_LEVELS] ? NULL : make_ctx(level, i < N_LEVELS ? 1 : 3);
}

/* Runs `op` on every level, alone and with three threads: near `want`, and the same bits
 * whatever the threads. */
typedef void run_fn(struct be_ctx *c, const void *arg, float *out);

static void everywhere(const char *what, run_fn *op, const void *arg, const float *want, size_t n,
                       double abs_tol, double rel_tol)
{
    float *out = xcalloc(n, sizeof(*out)), *one = xcalloc(N_LEVELS * n, sizeof(*one));

    for (size_t i = 0; i < 2 * N_LEVELS; i++) {
        struct be_ctx *c = each(i);

        if (!c)
            continue;
        memset(out, 0, n * sizeof(*out));
        op(c, arg, out);
        assert_near(what, out, want, n, abs_tol, rel_tol);
        if (i < N_LEVELS)
            memcpy(one + i * n, out, n * sizeof(*out));
        else
            assert_same(what, out, one + (i - N_LEVELS) * n, n);
        be_ctx_free(&c);
    }
    free(out);
    free(one);
}

/* ----------------------------------------------------------- activations */

struct act_case {
    uint32_t n, cols;
    enum be_act_kind kind;
    bool add, in_place;
    const float *x, *y;
};

static void run_act(struct be_ctx *c, const void *arg, float *out)
{
    const struct act_case *t = arg;
    struct be_tensor *x = tensor(c, t->n, t->cols, t->x), *y = tensor(c, t->n, t->cols, t->y);
    struct be_tensor *o = t->in_place ? x : tensor(c, t->n, t->cols, NULL);
    struct be_act_args a = {.x = x,
                            .add = t->add ? y : NULL,
                            .out = o,
                            .n = t->n,
                            .kind = t->kind,
                            .lo = -0.25f,
                            .hi = 0.5f};

    OK(be_act(c, &a, err));
    OK(be_tensor_read(c, o, 0, t->n, out, err));
    if (o != x)
        be_tensor_free(c, &o);
    be_tensor_free(c, &x);
    be_tensor_free(c, &y);
}

static double act_of(enum be_act_kind kind, double x)
{
    switch (kind) {
    case BE_ACT_RELU:
        return x > 0 ? x : 0;
    case BE_ACT_SILU:
        return x / (1 + exp(-x));
    case BE_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
        return x < -0.25 ? -0.25 : x > 0.5 ? 0.5 : x;
    }
}

static void activations_agree(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {3, 7}, {5, 411}, {70, 64}};

    for (size_t s = 0; s < 4; s++)
        for (int kind = BE_ACT_RELU; kind <= BE_ACT_CLAMP; kind++)
            for (int how = 0; how < 4; how++) {
                size_t n = (size_t)shapes[s][0] * shapes[s][1];
                float *x = xcalloc(n, sizeof(*x)), *y = xcalloc(n, sizeof(*y));
                float *want = xcalloc(n, sizeof(*want));
                const struct act_case t = {.n = shapes[s][0],
                                           .cols = shapes[s][1],
                                           .kind = (enum be_act_kind)kind,
                                           .add = how & 1,
                                           .in_place = how & 2,
                                           .x = x,
                                           .y = y};

                fill(x, n, 6);
                fill(y, n, 1);
                for (size_t i = 0; i < n; i++)
                    want[i] = (float)(act_of(t.kind, x[i]) + (t.add ? y[i] : 0));
                everywhere("act", run_act, &t, want, n, TOL, TOL);
                free(x);
                free(y);
                free(want);
            }
}

static void nan_stays_and_open_bounds_do_not_clamp(void **state)
{
    const float in[9] = {NAN, -1e30f, 1e30f, 0, -1, 1, INFINITY, -INFINITY, NAN};

    for (size_t i = 0; i < N_LEVELS; i++) {
        struct be_ctx *c = each(i);
        struct be_act_args a = {.n = 1, .kind = BE_ACT_CLAMP, .lo = -INFINITY, .hi = INFINITY};
        struct be_tensor *x;
        float out[9];

        if (!c)
            continue;
        a.x = a.out = x = tensor(c, 1, 9, in);
        OK(be_act(c, &a, err));
        OK(be_tensor_read(c, x, 0, 1, out, err));
        assert_near("clamp", out, in, 9, 0, 0);
        a.lo = -2;
        a.hi = 2;
        OK(be_act(c, &a, err));
        OK(be_tensor_read(c, x, 0, 1, out, err));
        assert_true(isnan(out[0]) && isnan(out[8]) && out[1] == -2 && out[2] == 2 && out[5] == 1);
        a.lo = 3;
        FAILS(RC_INVALID, be_act(c, &a, err));
        be_tensor_free(c, &x);
        be_ctx_free(&c);
    }
}

/* ------------------------------------------------------------ gate, affine */

struct rows_case {
    uint32_t n, cols;
    const float *x, *u, *v;
};

static void run_glu(struct be_ctx *c, const void *arg, float *out)
{
    const struct rows_case *t = arg;
    struct be_tensor *x = tensor(c, t->n, 2 * t->cols, t->x), *o = tensor(c, t->n, t->cols, NULL);
    struct be_glu_args a = {.x = x, .out = o, .n = t->n};

    OK(be_glu(c, &a, err));
    OK(be_tensor_read(c, o, 0, t->n, out, err));
    FAILS(RC_INVALID, be_glu(c, &(struct be_glu_args){.x = o, .out = o, .n = t->n}, err));
    be_tensor_free(c, &x);
    be_tensor_free(c, &o);
}

static void run_affine(struct be_ctx *c, const void *arg, float *out)
{
    const struct rows_case *t = arg;
    struct be_tensor *x = tensor(c, t->n, t->cols, t->x);
    struct be_weight *u = vector(c, t->u, t->cols), *v = vector(c, t->v, t->cols);
    struct be_affine_args a = {.x = x, .sub = u, .mul = v, .n = t->n};

    OK(be_affine(c, &a, err));
    OK(be_tensor_read(c, x, 0, t->n, out, err));
    a.n++;
    FAILS(RC_INVALID, be_affine(c, &a, err));
    be_weight_free(c, &u);
    be_weight_free(c, &v);
    be_tensor_free(c, &x);
}

static void gates_and_affine_rows_agree(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {4, 13}, {33, 72}};

    for (size_t s = 0; s < 3; s++) {
        uint32_t n = shapes[s][0], k = shapes[s][1];
        float *x = xcalloc(2 * (size_t)n * k, sizeof(*x)), *want = xcalloc((size_t)n * k, 4);
        float *u = xcalloc(k, sizeof(*u)), *v = xcalloc(k, sizeof(*v));
        const struct rows_case t = {.n = n, .cols = k, .x = x, .u = u, .v = v};

        fill(x, 2 * (size_t)n * k, 5);
        fill(u, k, 1);
        fill(v, k, 1);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < k; i++)
                want[r * k + i] =
                    (float)(x[r * 2 * k + i] / (1 + exp(-(double)x[r * 2 * k + k + i])));
        everywhere("glu", run_glu, &t, want, (size_t)n * k, TOL, TOL);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t i = 0; i < k; i++)
                want[r * k + i] = (float)(((double)x[r * k + i] - u[i]) * v[i]);
        everywhere("affine", run_affine, &t, want, (size_t)n * k, TOL, TOL);
        free(x);
        free(want);
        free(u);
        free(v);
    }
}

/* --------------------------------------------------------------- rotation */

struct turn_case {
    uint32_t n, heads, dim;
    const float *x;
    const int32_t *px, *py;
};

static void run_turn(struct be_ctx *c, const void *arg, float *out)
{
    const struct turn_case *t = arg;
    struct be_tensor *x = tensor(c, t->n, t->heads * t->dim, t->x);
    struct be_rope2d_args a = {.x = x,
                               .pos_x = t->px,
                               .pos_y = t->py,
                               .n = t->n,
                               .n_heads = t->heads,
                               .head_dim = t->dim,
                               .theta = 100};

    OK(be_rope2d(c, &a, err));
    OK(be_tensor_read(c, x, 0, t->n, out, err));
    a.theta = 0;
    FAILS(RC_INVALID, be_rope2d(c, &a, err));
    a.theta = 100;
    a.head_dim += 2;
    FAILS(RC_INVALID, be_rope2d(c, &a, err));
    a.head_dim = t->dim;
    a.n_heads++;
    FAILS(RC_INVALID, be_rope2d(c, &a, err));
    be_tensor_free(c, &x);
}

static void rotation_by_column_and_row_agrees(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 4}, {9, 3, 16}, {40, 2, 72}, {5, 12, 64}};

    for (size_t s = 0; s < 4; s++) {
        uint32_t n = shapes[s][0], heads = shapes[s][1], dim = shapes[s][2], q = dim / 4;
        size_t all = (size_t)n * heads * dim;
        float *x = xcalloc(all, sizeof(*x)), *want = xcalloc(all, sizeof(*want));
        int32_t px[40], py[40];
        const struct turn_case t = {.n = n, .heads = heads, .dim = dim, .x = x, .px = px, .py = py};

        fill(x, all, 2);
        for (uint32_t r = 0; r < n; r++) {
            px[r] = (int32_t)(rnd() % 60);
            py[r] = (int32_t)(rnd() % 60);
        }
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t h = 0; h < heads * 2; h++) { /* halves of heads */
                size_t at = (size_t)r * heads * dim + (size_t)h * dim / 2;

                for (uint32_t i = 0; i < q; i++) {
                    double f = pow(100, -(double)i / q), ang = f * (h % 2 ? py[r] : px[r]);
                    double u = x[at + i], v = x[at + q + i];

                    want[at + i] = (float)(u * cos(ang) - v * sin(ang));
                    want[at + q + i] = (float)(v * cos(ang) + u * sin(ang));
                }
            }
        /* angles are f32, as in the reference: 60 rad are known to 4e-6 */
        everywhere("rope2d", run_turn, &t, want, all, 2e-5, 0);
        free(x);
        free(want);
    }
}

/* ----------------------------------------------------------- convolutions */

struct fold_case {
    uint32_t w, h, ch, k_h, k_w, s_h, s_w, p_h, p_w, x_line, line, n_lines;
    bool ch_first, lines;
    const float *x; /* the whole picture */
};

static uint32_t fold_n_x(const struct fold_case *t)
{
    return (t->w + 2 * t->p_w - t->k_w) / t->s_w + 1;
}

static void run_unfold(struct be_ctx *c, const void *arg, float *out)
{
    const struct fold_case *t = arg;
    uint32_t rows = t->h - t->x_line, cols = t->k_h * t->k_w * t->ch;
    const float *from = t->x + (size_t)t->x_line * t->w * t->ch;
    struct be_tensor *x =
        t->lines ? tensor(c, rows, t->w * t->ch, from) : tensor(c, rows * t->w, t->ch, from);
    struct be_tensor *o = tensor(c, t->n_lines * fold_n_x(t) + 1, cols, NULL);
    struct be_unfold_args a = {.x = x,
                               .out = o,
                               .width = t->w,
                               .height = t->h,
                               .n_ch = t->ch,
                               .x_line = t->x_line,
                               .k_h = t->k_h,
                               .k_w = t->k_w,
                               .stride_h = t->s_h,
                               .stride_w = t->s_w,
                               .pad_h = t->p_h,
                               .pad_w = t->p_w,
                               .ch_first = t->ch_first,
                               .line = t->line,
                               .n_lines = t->n_lines,
                               .out_row = 1};

    OK(be_unfold(c, &a, err));
    OK(be_tensor_read(c, o, 1, t->n_lines * fold_n_x(t), out, err));
    a.out_row = 2;
    FAILS(RC_INVALID, be_unfold(c, &a, err));
    a.out_row = UINT32_MAX;
    FAILS(RC_INVALID, be_unfold(c, &a, err));
    a.out_row = 0;
    a.height = 1u << 24; /* lines that x does not hold */
    a.line = 1u << 22;
    FAILS(RC_INVALID, be_unfold(c, &a, err));
    a.stride_w = 0;
    FAILS(RC_INVALID, be_unfold(c, &a, err));
    be_tensor_free(c, &x);
    be_tensor_free(c, &o);
}

static void windows_are_those_of_a_convolution(void **state)
{
    static const struct fold_case cases[] = {
        {.w = 8, .h = 9, .ch = 1, 3, 3, 2, 2, 1, 1, 0, 0, 5, true, true},
        {.w = 8, .h = 9, .ch = 1, 3, 3, 2, 2, 1, 1, 0, 2, 2, false, false},
        {.w = 4, .h = 7, .ch = 5, 3, 3, 2, 2, 1, 1, 3, 2, 2, true, false}, /* a slice */
        {.w = 4, .h = 7, .ch = 5, 3, 3, 2, 2, 1, 1, 0, 0, 4, false, true},
        {.w = 6, .h = 3, .ch = 2, 1, 6, 1, 1, 0, 0, 0, 0, 3, false, false}, /* lines flattened */
        {.w = 5, .h = 1, .ch = 3, 2, 2, 1, 3, 4, 2, 0, 0, 7, true, true},   /* mostly margin */
    };

    for (size_t s = 0; s < sizeof(cases) / sizeof(*cases); s++) {
        struct fold_case t = cases[s];
        size_t n = (size_t)t.w * t.h * t.ch, cols = (size_t)t.k_h * t.k_w * t.ch;
        size_t rows = (size_t)t.n_lines * fold_n_x(&t);
        float *x = xcalloc(n, sizeof(*x)), *want = xcalloc(rows * cols, sizeof(*want));

        fill(x, n, 1);
        t.x = x;
        for (size_t r = 0; r < rows; r++)
            for (uint32_t ky = 0; ky < t.k_h; ky++)
                for (uint32_t kx = 0; kx < t.k_w; kx++)
                    for (uint32_t c = 0; c < t.ch; c++) {
                        long y = (long)(t.line + r / fold_n_x(&t)) * t.s_h - t.p_h + ky;
                        long px = (long)(r % fold_n_x(&t)) * t.s_w - t.p_w + kx;
                        size_t at = t.ch_first ? ((size_t)c * t.k_h + ky) * t.k_w + kx
                                               : ((size_t)ky * t.k_w + kx) * t.ch + c;

                        if (y >= 0 && y < (long)t.h && px >= 0 && px < (long)t.w)
                            want[r * cols + at] = x[((size_t)y * t.w + (size_t)px) * t.ch + c];
                    }
        everywhere("unfold", run_unfold, &t, want, rows * cols, TOL, TOL);
        free(x);
        free(want);
    }
}

/* The number of a line does not wrap around: what lies behind the picture is 0. */
static void lines_behind_the_picture_are_zeros(void **state)
{
    for (size_t i = 0; i < 2 * N_LEVELS; i++) {
        struct be_ctx *c = each(i);
        struct be_unfold_args a = {.width = 2,
                                   .height = 3,
                                   .n_ch = 1,
                                   .x_line = 1,
                                   .k_h = 1,
                                   .k_w = 2,
                                   .stride_h = 1,
                                   .stride_w = 1,
                                   .line = UINT32_MAX,
                                   .n_lines = 4};
        struct be_tensor *x, *o;
        float out[8] = {0};

        if (!c)
            continue;
        a.x = x = tensor(c, 2, 2, (const float[]){1, 2, 3, 4});
        a.out = o = tensor(c, 4, 2, (const float[]){9, 9, 9, 9, 9, 9, 9, 9});
        OK(be_unfold(c, &a, err));
        OK(be_tensor_read(c, o, 0, 4, out, err));
        for (size_t k = 0; k < 8; k++)
            assert_true(out[k] == 0);
        be_tensor_free(c, &x);
        be_tensor_free(c, &o);
        be_ctx_free(&c);
    }
}

struct conv_case {
    uint32_t n, cols, k;
    const float *x, *w;
};

static void run_conv1d(struct be_ctx *c, const void *arg, float *out)
{
    const struct conv_case *t = arg;
    struct be_tensor *x = tensor(c, t->n, t->cols, t->x), *o = tensor(c, t->n, t->cols, NULL);
    struct be_weight *w = vector(c, t->w, (uint64_t)t->cols * t->k);
    struct be_conv1d_args a = {.x = x, .out = o, .w = w, .n = t->n, .k = t->k};

    OK(be_conv1d(c, &a, err));
    OK(be_tensor_read(c, o, 0, t->n, out, err));
    a.out = x;
    FAILS(RC_INVALID, be_conv1d(c, &a, err));
    a.out = o;
    a.k++;
    FAILS(RC_INVALID, be_conv1d(c, &a, err));
    be_weight_free(c, &w);
    be_tensor_free(c, &x);
    be_tensor_free(c, &o);
}

static void convolution_along_time_looks_back_only(void **state)
{
    static const uint32_t shapes[][3] = {{1, 1, 1}, {3, 9, 5}, {60, 40, 5}, {20, 8, 64}};

    for (size_t s = 0; s < 4; s++) {
        uint32_t n = shapes[s][0], cols = shapes[s][1], k = shapes[s][2];
        float *x = xcalloc((size_t)n * cols, 4), *w = xcalloc((size_t)cols * k, 4);
        float *want = xcalloc((size_t)n * cols, 4);
        const struct conv_case t = {.n = n, .cols = cols, .k = k, .x = x, .w = w};

        fill(x, (size_t)n * cols, 1);
        fill(w, (size_t)cols * k, 1);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t c = 0; c < cols; c++) {
                double sum = 0;

                for (uint32_t j = 0; j < k; j++)
                    if (r + j + 1 >= k)
                        sum += (double)w[c * k + j] * x[(r + j + 1 - k) * cols + c];
                want[r * cols + c] = (float)sum;
            }
        everywhere("conv1d", run_conv1d, &t, want, (size_t)n * cols, TOL, TOL);
        free(x);
        free(w);
        free(want);
    }
}

/* -------------------------------------------------------------- attention */

struct local_case {
    uint32_t n, heads, dim, keys;
    const float *q, *k, *v, *rel, *scale;
    float cap;
};

static void run_local(struct be_ctx *c, const void *arg, float *out)
{
    const struct local_case *t = arg;
    uint32_t cols = t->heads * t->dim;
    struct be_tensor *q = tensor(c, t->n, cols, t->q), *k = tensor(c, t->n, cols, t->k);
    struct be_tensor *v = tensor(c, t->n, cols, t->v), *o = tensor(c, t->n, cols, NULL);
    struct be_tensor *rel = tensor(c, t->keys, cols, t->rel);
    struct be_weight *scale = vector(c, t->scale, t->dim);
    struct be_attention_local_args a = {.q = q,
                                        .k = k,
                                        .v = v,
                                        .rel = rel,
                                        .out = o,
                                        .q_scale = scale,
                                        .n = t->n,
                                        .n_heads = t->heads,
                                        .head_dim = t->dim,
                                        .n_keys = t->keys,
                                        .k_scale = 1.9f,
                                        .cap = t->cap};

    OK(be_attention_local(c, &a, err));
    OK(be_tensor_read(c, o, 0, t->n, out, err));
    a.out = q;
    FAILS(RC_INVALID, be_attention_local(c, &a, err));
    a.out = o;
    a.n_keys++;
    FAILS(RC_INVALID, be_attention_local(c, &a, err));
    a.n_keys = 0;
    FAILS(RC_INVALID, be_attention_local(c, &a, err));
    a.n_keys = t->keys;
    a.cap = 0;
    FAILS(RC_INVALID, be_attention_local(c, &a, err));
    be_weight_free(c, &scale);
    be_tensor_free(c, &q);
    be_tensor_free(c, &k);
    be_tensor_free(c, &v);
    be_tensor_free(c, &o);
    be_tensor_free(c, &rel);
}

static void local_reference(const struct local_case *t, uint32_t r, uint32_t h, float *out)
{
    size_t ld = (size_t)t->heads * t->dim, at = (size_t)h * t->dim;
    double score[64], max = -1e300, sum = 0;
    uint32_t n = r + 1 < t->keys ? r + 1 : t->keys;

    for (uint32_t d = 0; d < n; d++) {
        double s = 0;

        for (uint32_t i = 0; i < t->dim; i++)
            s += (double)t->q[r * ld + at + i] * t->scale[i] *
                 ((double)1.9f * t->k[(r - d) * ld + at + i] + t->rel[d * ld + at + i]);
        score[d] = t->cap * tanh(s / t->cap);
        max = score[d] > max ? score[d] : max;
    }
    for (uint32_t d = 0; d < n; d++)
        sum += score[d] = exp(score[d] - max);
    for (uint32_t i = 0; i < t->dim; i++) {
        double o = 0;

        for (uint32_t d = 0; d < n; d++)
            o += score[d] / sum * t->v[(r - d) * ld + at + i];
        out[r * ld + at + i] = (float)o;
    }
}

static void local_attention_agrees(void **state)
{
    static const uint32_t shapes[][4] = {
        {1, 1, 1, 1}, {5, 2, 12, 3}, {30, 2, 16, 12}, {40, 8, 128, 12}, {70, 1, 20, 64}};

    for (size_t s = 0; s < 5; s++) {
        struct local_case t = {
            .n = shapes[s][0], .heads = shapes[s][1], .dim = shapes[s][2], .keys = shapes[s][3]};
        size_t cols = (size_t)t.heads * t.dim, n = t.n * cols;
        float *q = xcalloc(n, 4), *k = xcalloc(n, 4), *v = xcalloc(n, 4), *want = xcalloc(n, 4);
        float *rel = xcalloc(t.keys * cols, 4), *scale = xcalloc(t.dim, 4);

        t.cap = s % 2 ? 5 : 50;
        fill(q, n, 1);
        fill(k, n, 1);
        fill(v, n, 1);
        fill(rel, t.keys * cols, 1);
        fill(scale, t.dim, 0.4f);
        t.q = q;
        t.k = k;
        t.v = v;
        t.rel = rel;
        t.scale = scale;
        for (uint32_t r = 0; r < t.n; r++)
            for (uint32_t h = 0; h < t.heads; h++)
                local_reference(&t, r, h, want);
        everywhere("attention_local", run_local, &t, want, n, TOL, TOL);
        free(q);
        free(k);
        free(v);
        free(want);
        free(rel);
        free(scale);
    }
}

/* A row by itself at the start of its own call has the bits it has among others. */
static void rows_do_not_depend_on_those_after_them(void **state)
{
    const uint32_t n = 24, cols = 32;
    float *x = xcalloc(n * cols, 4), *all = xcalloc(n * cols, 4), *few = xcalloc(n * cols, 4);
    float *rel = xcalloc(12 * cols, 4), *scale = xcalloc(16, 4);
    struct local_case t = {.n = n,
                           .heads = 2,
                           .dim = 16,
                           .keys = 12,
                           .q = x,
                           .k = x,
                           .v = x,
                           .rel = rel,
                           .scale = scale,
                           .cap = 50};

    fill(x, n * cols, 1);
    fill(rel, 12 * cols, 1);
    fill(scale, 16, 1);
    for (size_t i = 0; i < 2 * N_LEVELS; i++) {
        struct be_ctx *c = each(i);

        if (!c)
            continue;
        t.n = n;
        run_local(c, &t, all);
        t.n = 13;
        run_local(c, &t, few);
        assert_same("attention_local", few, all, 13 * cols);
        be_ctx_free(&c);
    }
    free(x);
    free(all);
    free(few);
    free(rel);
    free(scale);
}

/* A backend without them says so, before and when asked. */
static void a_backend_may_have_none_of_them(void **state)
{
    static const struct be_ops none = {.name = "bare"};
    struct be_ctx bare = {.ops = &none};
    struct be_opts o = {.backend = "fail", .n_threads = 1};
    struct be_ctx *c = make_ctx("c", 1), *f = NULL;
    struct be_tensor *x;
    struct be_act_args a = {.n = 1, .kind = BE_ACT_RELU};

    OK(be_ctx_new(&f, &o, err));
    assert_true(be_can_towers(c) && be_can_towers(f));
    x = tensor(f, 1, 3, (const float[]){-1, 2, -3});
    a.x = a.out = x;
    OK(be_act(f, &a, err));
    assert_true(be_tensor_view(f, x)[0] == 0 && be_tensor_view(f, x)[1] == 2);
    be_tensor_free(f, &x);
    be_ctx_free(&f);
    be_ctx_free(&c);
    assert_false(be_can_towers(&bare));
    FAILS(RC_UNSUPPORTED, be_act(&bare, &a, err));
    FAILS(RC_UNSUPPORTED, be_glu(&bare, NULL, err));
    FAILS(RC_UNSUPPORTED, be_affine(&bare, NULL, err));
    FAILS(RC_UNSUPPORTED, be_rope2d(&bare, NULL, err));
    FAILS(RC_UNSUPPORTED, be_unfold(&bare, NULL, err));
    FAILS(RC_UNSUPPORTED, be_conv1d(&bare, NULL, err));
    FAILS(RC_UNSUPPORTED, be_attention_local(&bare, NULL, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_agree),
        cmocka_unit_test(nan_stays_and_open_bounds_do_not_clamp),
        cmocka_unit_test(gates_and_affine_rows_agree),
        cmocka_unit_test(rotation_by_column_and_row_agrees),
        cmocka_unit_test(windows_are_those_of_a_convolution),
        cmocka_unit_test(lines_behind_the_picture_are_zeros),
        cmocka_unit_test(convolution_along_time_looks_back_only),
        cmocka_unit_test(local_attention_agrees),
        cmocka_unit_test(rows_do_not_depend_on_those_after_them),
        cmocka_unit_test(a_backend_may_have_none_of_them),
    };

    for (size_t i = 0; i < N_LEVELS; i++) {
        struct be_ctx *c = make_ctx(all_levels[i], 1);

        missing[i] = !c;
        be_ctx_free(&c);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
