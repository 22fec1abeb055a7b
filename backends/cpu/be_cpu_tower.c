/* be_cpu_tower.c - drivers of what eyes and ears need: activations, gates, affine
 * rows, convolution along time, attention over the last few rows. Rotation by two positions is
 * be_cpu_rows.c's.
 *
 * Checks every shape before anything is written, then splits rows over the pool. A row's
 * arithmetic never depends on the cut. Tests: tests/backends/test_be_cpu_tower.c
 */
#include "be_cpu.h"

#define CONV_TAPS 64 /* at most */

struct job {
    const struct be_cpu_kern *kern;
    const void *args;
    size_t n; /* of act: values */
};

static void act_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;
    const struct be_act_args *a = j->args;
    size_t b = i1 * BE_CPU_PIECE < j->n ? i1 * BE_CPU_PIECE : j->n;

    j->kern->act(a, i0 * BE_CPU_PIECE, b);
}

enum rc be_cpu_act(struct be_ctx *ctx, const struct be_act_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    enum rc rc;

    c->ops++;
    if ((unsigned)a->kind > BE_ACT_CLAMP)
        return rc_fail(err, RC_INVALID, "act: kind %d", (int)a->kind);
    if (a->kind == BE_ACT_CLAMP && !(a->lo <= a->hi))
        return rc_fail(err, RC_INVALID, "act: clamp to %g..%g", (double)a->lo, (double)a->hi);
    if ((rc = be_cpu_check(a->x, "act", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "act", "out", a->n, a->x->n_cols, err)) != RC_OK ||
        (a->add && (rc = be_cpu_check(a->add, "act", "add", a->n, a->x->n_cols, err)) != RC_OK))
        return rc;
    job.n = (size_t)a->n * a->x->n_cols;
    be_cpu_pool_run(c->pool, (job.n + BE_CPU_PIECE - 1) / BE_CPU_PIECE, 4, act_range, &job);
    return RC_OK;
}

static void glu_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;

    j->kern->glu(j->args, (uint32_t)i0, (uint32_t)i1);
}

enum rc be_cpu_glu(struct be_ctx *ctx, const struct be_glu_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "glu", "x", a->n, 0, err)) != RC_OK)
        return rc;
    if (a->x->n_cols % 2 != 0)
        return rc_fail(err, RC_INVALID, "glu: x has %u columns, expected twice those of out",
                       a->x->n_cols);
    if ((rc = be_cpu_check(a->out, "glu", "out", a->n, a->x->n_cols / 2, err)) != RC_OK)
        return rc;
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(a->x->n_cols), glu_range, &job);
    return RC_OK;
}

static void affine_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct be_affine_args *a = ((const struct job *)arg)->args;
    const float *sub = a->sub->vec, *mul = a->mul->vec;
    size_t n = a->x->n_cols;

    for (size_t r = i0; r < i1; r++) {
        float *x = a->x->data + r * n;

        for (size_t i = 0; i < n; i++)
            x[i] = (x[i] - sub[i]) * mul[i];
    }
}

enum rc be_cpu_affine(struct be_ctx *ctx, const struct be_affine_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.args = a};
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "affine", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cpu_check_vec(a->sub, "affine", "sub", a->x->n_cols, err)) != RC_OK ||
        (rc = be_cpu_check_vec(a->mul, "affine", "mul", a->x->n_cols, err)) != RC_OK)
        return rc;
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(a->x->n_cols), affine_range, &job);
    return RC_OK;
}

/* Columns are independent and taps run in order: the compiler may use any vectors. */
static void conv1d_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct be_conv1d_args *a = ((const struct job *)arg)->args;
    size_t n = a->x->n_cols;
    const float *w = a->w->vec;

    for (size_t t = i0; t < i1; t++) {
        float *out = a->out->data + t * n;

        for (size_t c = 0; c < n; c++)
            out[c] = 0;
        for (size_t j = 0; j < a->k; j++) {
            const float *x;

            if (t + j + 1 < a->k) /* before the first row */
                continue;
            x = a->x->data + (t + j + 1 - a->k) * n;
            for (size_t c = 0; c < n; c++)
                out[c] += w[c * a->k + j] * x[c];
        }
    }
}

enum rc be_cpu_conv1d(struct be_ctx *ctx, const struct be_conv1d_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.args = a};
    enum rc rc;

    c->ops++;
    if (a->k < 1 || a->k > CONV_TAPS)
        return rc_fail(err, RC_INVALID, "conv1d: %u taps, expected 1 to %d", a->k, CONV_TAPS);
    if ((rc = be_cpu_check(a->x, "conv1d", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "conv1d", "out", a->n, a->x->n_cols, err)) != RC_OK ||
        (rc = be_cpu_check_vec(a->w, "conv1d", "w", (uint64_t)a->x->n_cols * a->k, err)) != RC_OK)
        return rc;
    if (a->out == a->x)
        return rc_fail(err, RC_INVALID, "conv1d: out is x");
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows((uint64_t)a->x->n_cols * a->k), conv1d_range,
                    &job);
    return RC_OK;
}

static void local_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;

    j->kern->attn_local(j->args, (uint32_t)i0, (uint32_t)i1);
}

enum rc be_cpu_attention_local(struct be_ctx *ctx, const struct be_attention_local_args *a,
                               struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    const char *op = "attention_local";
    uint32_t cols;
    enum rc rc;

    c->ops++;
    if (a->head_dim < 1 || a->head_dim > BE_CPU_MAX_HEAD || a->n_heads < 1 ||
        a->n_heads > (1u << 20) / a->head_dim)
        return rc_fail(err, RC_INVALID, "%s: %u heads of %u, expected a size up to %d", op,
                       a->n_heads, a->head_dim, BE_CPU_MAX_HEAD);
    if (a->n_keys < 1 || a->n_keys > BE_CPU_LOCAL_KEYS || !(a->cap > 0))
        return rc_fail(err, RC_INVALID,
                       "%s: %u keys with cap %g, expected 1 to %d and a cap above 0", op, a->n_keys,
                       (double)a->cap, BE_CPU_LOCAL_KEYS);
    cols = a->n_heads * a->head_dim;
    if ((rc = be_cpu_check(a->q, op, "q", a->n, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->k, op, "k", a->n, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->v, op, "v", a->n, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->rel, op, "rel", a->n_keys, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, op, "out", a->n, cols, err)) != RC_OK ||
        (rc = be_cpu_check_vec(a->q_scale, op, "q_scale", a->head_dim, err)) != RC_OK)
        return rc;
    if (a->out == a->q || a->out == a->k || a->out == a->v || a->out == a->rel)
        return rc_fail(err, RC_INVALID, "%s: out is one of its inputs", op);
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows((uint64_t)cols * a->n_keys), local_range,
                    &job);
    return RC_OK;
}
