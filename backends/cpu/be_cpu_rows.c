/* be_cpu_rows.c - drivers of the operations that treat each row by itself: embed,
 * norms, rope by one and by two positions, gather, softcap, scale, pool, argmax.
 *
 * Checks every shape and index before anything is written, then splits rows over
 * the pool. Small calls stay on the caller's thread: a join costs a microsecond.
 * Tests: tests/backends/test_be_cpu_rows.c, _tower.c
 */
#include "be_cpu.h"

#include <math.h>
#include <string.h>

struct job {
    const struct be_cpu_kern *kern;
    const void *args;
    struct be_cpu_rope rope;
};

#define RANGE(op, type)                                                      \
    static void op##_range(void *arg, unsigned thread, size_t i0, size_t i1) \
    {                                                                        \
        const struct job *j = arg;                                           \
        const type *a = j->args;                                             \
                                                                             \
        j->kern->op(a, (uint32_t)i0, (uint32_t)i1);                          \
    }
RANGE(embed, struct be_embed_args)
RANGE(rms_norm, struct be_rms_norm_args)
RANGE(layer_norm, struct be_layer_norm_args)
RANGE(rope, struct be_cpu_rope)

enum rc be_cpu_embed(struct be_ctx *ctx, const struct be_embed_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    enum rc rc;

    c->ops++;
    if (!a->table || !(a->table->use & BE_USE_EMBED))
        return rc_fail(err, RC_INVALID, "embed: table is not loaded for embedding");
    if ((rc = be_cpu_check(a->out, "embed", "out", a->n, (uint32_t)a->table->n_cols, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->ids[i] < 0 || (uint64_t)a->ids[i] >= a->table->n_rows)
            return rc_fail(err, RC_INVALID, "embed: id %d, expected 0..%llu", a->ids[i],
                           (unsigned long long)a->table->n_rows - 1);
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(a->out->n_cols), embed_range, &job);
    return RC_OK;
}

enum rc be_cpu_rms_norm(struct be_ctx *ctx, const struct be_rms_norm_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "rms_norm", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "rms_norm", "out", a->n, a->x->n_cols, err)) != RC_OK ||
        (a->add &&
         (rc = be_cpu_check(a->add, "rms_norm", "add", a->n, a->x->n_cols, err)) != RC_OK) ||
        (rc = be_cpu_check_vec(a->w, "rms_norm", "w", a->x->n_cols, err)) != RC_OK)
        return rc;
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(a->x->n_cols), rms_norm_range, &job);
    return RC_OK;
}

enum rc be_cpu_layer_norm(struct be_ctx *ctx, const struct be_layer_norm_args *a,
                          struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "layer_norm", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "layer_norm", "out", a->n, a->x->n_cols, err)) != RC_OK ||
        (a->add &&
         (rc = be_cpu_check(a->add, "layer_norm", "add", a->n, a->x->n_cols, err)) != RC_OK) ||
        (rc = be_cpu_check_vec(a->w, "layer_norm", "w", a->x->n_cols, err)) != RC_OK ||
        (a->b && (rc = be_cpu_check_vec(a->b, "layer_norm", "b", a->x->n_cols, err)) != RC_OK))
        return rc;
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(a->x->n_cols), layer_norm_range, &job);
    return RC_OK;
}

/* theta^(-2i/head_dim) / factor in f32, as the reference has it; 0 for pairs that do not
 * turn, whose cosine is 1 exactly. A model uses one or two settings, so the table is made
 * once and found again. */
static const float *frequencies(struct be_cpu_ctx *c, float theta, float factor, uint32_t head_dim,
                                uint32_t n_pairs)
{
    struct be_cpu_freq *t;

    for (size_t i = 0; i < sizeof(c->freq) / sizeof(c->freq[0]); i++) {
        t = &c->freq[i];
        if (t->head_dim == head_dim && t->n_pairs == n_pairs && t->theta == theta &&
            t->factor == factor)
            return t->f;
    }
    t = &c->freq[c->next_freq++ % (sizeof(c->freq) / sizeof(c->freq[0]))];
    *t = (struct be_cpu_freq){
        .theta = theta, .factor = factor, .head_dim = head_dim, .n_pairs = n_pairs};
    for (uint32_t i = 0; i < n_pairs; i++)
        t->f[i] = 1.0f / powf(theta, (float)(2 * i) / (float)head_dim) / factor;
    return t->f;
}

enum rc be_cpu_rope_op(struct be_ctx *ctx, const struct be_rope_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = &job.rope};
    enum rc rc;

    c->ops++;
    if (a->head_dim < 2 || a->head_dim % 2 != 0 || a->head_dim > BE_CPU_MAX_HEAD ||
        a->n_heads < 1 || a->n_heads > (1u << 20) / a->head_dim)
        return rc_fail(err, RC_INVALID, "rope: %u heads of %u, expected an even size up to %d",
                       a->n_heads, a->head_dim, BE_CPU_MAX_HEAD);
    if (!(a->theta >= 0) || (a->theta > 0 && !(a->factor > 0)))
        return rc_fail(err, RC_INVALID, "rope: theta %g and factor %g, expected positive",
                       (double)a->theta, (double)a->factor);
    if (a->n_pairs > a->head_dim / 2)
        return rc_fail(err, RC_INVALID, "rope: %u pairs turn, a head of %u has %u", a->n_pairs,
                       a->head_dim, a->head_dim / 2);
    if ((rc = be_cpu_check(a->x, "rope", "x", a->n, a->n_heads * a->head_dim, err)) != RC_OK ||
        (a->norm_w &&
         (rc = be_cpu_check_vec(a->norm_w, "rope", "norm_w", a->head_dim, err)) != RC_OK))
        return rc;
    if (a->theta == 0 && !a->norm_w)
        return RC_OK;
    job.rope = (struct be_cpu_rope){
        .pos = a->pos,
        .x = a->x->data,
        .n_heads = a->n_heads,
        .head_dim = a->head_dim,
        .ld_head = a->head_dim,
        .norm_w = a->norm_w ? a->norm_w->vec : NULL,
        .norm_eps = a->norm_eps,
        .freq = a->theta > 0 ? frequencies(c, a->theta, a->factor, a->head_dim,
                                           a->n_pairs ? a->n_pairs : a->head_dim / 2)
                             : NULL,
    };
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(2ull * a->x->n_cols), rope_range, &job);
    return RC_OK;
}

/* Both halves of every head turn as heads of their own. */
static void rope2d_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;
    const struct be_cpu_rope *half = j->args;

    j->kern->rope(&half[0], (uint32_t)i0, (uint32_t)i1);
    j->kern->rope(&half[1], (uint32_t)i0, (uint32_t)i1);
}

enum rc be_cpu_rope2d(struct be_ctx *ctx, const struct be_rope2d_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    uint32_t dim = a->head_dim / 2;
    struct be_cpu_rope half[2];
    struct job job = {.kern = c->kern, .args = half};
    enum rc rc;

    c->ops++;
    if (a->head_dim < 4 || a->head_dim % 4 != 0 || a->head_dim > BE_CPU_MAX_HEAD ||
        a->n_heads < 1 || a->n_heads > (1u << 20) / a->head_dim)
        return rc_fail(err, RC_INVALID, "rope2d: %u heads of %u, expected a multiple of 4 up to %d",
                       a->n_heads, a->head_dim, BE_CPU_MAX_HEAD);
    if (!(a->theta > 0))
        return rc_fail(err, RC_INVALID, "rope2d: theta %g, expected positive", (double)a->theta);
    if ((rc = be_cpu_check(a->x, "rope2d", "x", a->n, a->n_heads * a->head_dim, err)) != RC_OK)
        return rc;
    half[0] = (struct be_cpu_rope){
        .pos = a->pos_x,
        .x = a->x->data,
        .n_heads = a->n_heads,
        .head_dim = dim,
        .ld_head = a->head_dim,
        .freq = frequencies(c, a->theta, 1, dim, dim / 2),
    };
    half[1] = half[0];
    half[1].pos = a->pos_y;
    half[1].x += dim;
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(2ull * a->x->n_cols), rope2d_range, &job);
    return RC_OK;
}

enum rc be_cpu_gather(struct be_ctx *ctx, const struct be_gather_args *a, struct rc_err *err)
{
    enum rc rc;

    be_cpu(ctx)->ops++;
    if ((rc = be_cpu_check(a->x, "gather", "x", 0, 0, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "gather", "out", a->n, a->x->n_cols, err)) != RC_OK)
        return rc;
    if (a->out == a->x)
        return rc_fail(err, RC_INVALID, "gather: out is x");
    for (uint32_t i = 0; i < a->n; i++)
        if (a->rows[i] < 0 || (uint32_t)a->rows[i] >= a->x->cap_rows)
            return rc_fail(err, RC_INVALID, "gather: row %d of %u", a->rows[i], a->x->cap_rows);
    for (uint32_t i = 0; i < a->n; i++)
        memcpy(a->out->data + (size_t)i * a->x->n_cols,
               a->x->data + (size_t)a->rows[i] * a->x->n_cols, a->x->n_cols * sizeof(float));
    return RC_OK;
}

struct softcap_job {
    const struct be_cpu_kern *kern;
    float *x;
    size_t n;
    float cap;
};

static void softcap_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct softcap_job *j = arg;
    size_t a = i0 * BE_CPU_PIECE, b = i1 * BE_CPU_PIECE;

    if (b > j->n)
        b = j->n;
    j->kern->softcap(j->x + a, b - a, j->cap);
}

enum rc be_cpu_softcap(struct be_ctx *ctx, const struct be_softcap_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct softcap_job job = {.kern = c->kern, .cap = a->cap};
    enum rc rc;

    c->ops++;
    if (!(a->cap > 0))
        return rc_fail(err, RC_INVALID, "softcap: cap %g, expected positive", (double)a->cap);
    if ((rc = be_cpu_check(a->x, "softcap", "x", a->n, 0, err)) != RC_OK)
        return rc;
    job.x = a->x->data;
    job.n = (size_t)a->n * a->x->n_cols;
    be_cpu_pool_run(c->pool, (job.n + BE_CPU_PIECE - 1) / BE_CPU_PIECE, 4, softcap_range, &job);
    return RC_OK;
}

static void scale_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct be_scale_args *a = ((const struct job *)arg)->args;
    size_t k = a->x->n_cols;

    for (size_t r = i0; r < i1; r++) {
        float *x = a->x->data + r * k;
        const float *y = a->y ? a->y->data + r * a->y->n_cols + a->y_col : NULL;

        for (size_t i = 0; i < k; i++)
            x[i] *= y ? a->scale * y[i] : a->scale;
    }
}

enum rc be_cpu_scale(struct be_ctx *ctx, const struct be_scale_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.args = a};
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "scale", "x", a->n, 0, err)) != RC_OK ||
        (a->y && (rc = be_cpu_check(a->y, "scale", "y", a->n, 0, err)) != RC_OK))
        return rc;
    if (a->y == a->x)
        return rc_fail(err, RC_INVALID, "scale: y is x");
    if (a->y && (a->y_col > a->y->n_cols || a->y->n_cols - a->y_col < a->x->n_cols))
        return rc_fail(err, RC_INVALID, "scale: columns %u.. of %u, x has %u", a->y_col,
                       a->y->n_cols, a->x->n_cols);
    be_cpu_pool_run(c->pool, a->n, be_cpu_grain_rows(a->x->n_cols), scale_range, &job);
    return RC_OK;
}

#define POOL_COLS 64u

/* Columns [c0, c0 + n) of one sequence, rows in order, sums in f64. */
static void pool_cols(const struct be_pool_args *a, uint32_t r0, uint32_t r1, uint32_t c0,
                      uint32_t n, float *out)
{
    double acc[POOL_COLS] = {0}, div = 1;
    size_t ld = a->x->n_cols;
    const float *x = a->x->data + c0;

    for (uint32_t r = r0; r < r1; r++) {
        const float *row = x + r * ld;
        double w = a->kind == BE_POOL_WEIGHTED ? (double)(r - r0 + 1) : 1;

        if (a->kind == BE_POOL_MAX) {
            for (uint32_t i = 0; i < n; i++)
                acc[i] = r == r0 || row[i] > acc[i] ? row[i] : acc[i];
            continue;
        }
        for (uint32_t i = 0; i < n; i++)
            acc[i] += w * row[i];
    }
    if (a->kind == BE_POOL_MEAN)
        div = r1 - r0;
    else if (a->kind == BE_POOL_MEAN_SQRT)
        div = sqrt((double)(r1 - r0));
    else if (a->kind == BE_POOL_WEIGHTED)
        div = 0.5 * (double)(r1 - r0) * ((double)(r1 - r0) + 1);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(acc[i] / div);
}

static void pool_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct be_pool_args *a = ((const struct job *)arg)->args;
    size_t ld = a->x->n_cols;

    for (size_t s = i0; s < i1; s++) {
        uint32_t r0 = a->offsets[s], r1 = a->offsets[s + 1];
        float *out = a->out->data + s * ld;

        if (a->kind == BE_POOL_CLS || a->kind == BE_POOL_LAST) {
            uint32_t r = a->kind == BE_POOL_CLS ? r0 : r1 - 1;

            memcpy(out, a->x->data + r * ld, ld * sizeof(float));
            continue;
        }
        for (uint32_t c = 0; c < ld; c += POOL_COLS)
            pool_cols(a, r0, r1, c, ld - c < POOL_COLS ? (uint32_t)ld - c : POOL_COLS, out + c);
    }
}

enum rc be_cpu_pool_op(struct be_ctx *ctx, const struct be_pool_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .args = a};
    enum rc rc;

    c->ops++;
    if ((unsigned)a->kind > BE_POOL_LAST)
        return rc_fail(err, RC_INVALID, "pool: kind %d", (int)a->kind);
    if ((rc = be_cpu_check(a->x, "pool", "x", 0, 0, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "pool", "out", a->n_seqs, a->x->n_cols, err)) != RC_OK)
        return rc;
    if (a->out == a->x)
        return rc_fail(err, RC_INVALID, "pool: out is x");
    for (uint32_t s = 0; s < a->n_seqs; s++)
        if (a->offsets[s] >= a->offsets[s + 1] || a->offsets[s + 1] > a->x->cap_rows)
            return rc_fail(err, RC_INVALID, "pool: sequence %u is rows %u..%u of %u", s,
                           a->offsets[s], a->offsets[s + 1], a->x->cap_rows);
    be_cpu_pool_run(c->pool, a->n_seqs, be_cpu_grain_rows(16ull * a->x->n_cols), pool_range, &job);
    return RC_OK;
}

/* A row is searched in pieces by all threads; the lowest index wins on ties, so
 * the answer does not depend on the cut. */
struct argmax_job {
    const struct be_cpu_kern *kern;
    const float *x;
    uint32_t n_cols;
    float best[BE_CPU_MAX_THREADS];
    int32_t idx[BE_CPU_MAX_THREADS];
};

static void argmax_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct argmax_job *j = arg;
    int32_t at = j->kern->argmax(j->x + i0, (uint32_t)(i1 - i0));

    j->idx[thread] = (int32_t)i0 + at;
    j->best[thread] = j->x[i0 + (size_t)at];
}

enum rc be_cpu_argmax(struct be_ctx *ctx, const struct be_argmax_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct argmax_job job = {.kern = c->kern};
    enum rc rc;

    c->ops++;
    if ((rc = be_cpu_check(a->x, "argmax", "x", a->n, 0, err)) != RC_OK)
        return rc;
    if (a->x->n_cols > INT32_MAX)
        return rc_fail(err, RC_INVALID, "argmax: %u columns", a->x->n_cols);
    job.n_cols = a->x->n_cols;
    for (uint32_t i = 0; i < a->n; i++) {
        int32_t best = -1;

        job.x = a->x->data + (size_t)i * job.n_cols;
        for (unsigned t = 0; t < c->n_threads; t++)
            job.idx[t] = -1;
        be_cpu_pool_run(c->pool, job.n_cols, 4 * BE_CPU_GRAIN, argmax_range, &job);
        for (unsigned t = 0; t < c->n_threads; t++)
            if (job.idx[t] >= 0 && !isnan(job.best[t]) && (best < 0 || job.best[t] > job.x[best]))
                best = job.idx[t];
        a->out_ids[i] = best < 0 ? 0 : best;
    }
    return RC_OK;
}
