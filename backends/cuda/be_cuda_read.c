/* be_cuda_read.c - what crosses back to the host: tensors, arg-max, samples.
 *
 * The only places that wait for the device: pending commands are launched, the result
 * follows them on the stream into pinned memory, one synchronisation, a copy.
 * Tests: tests/backends/test_be_cuda_rows.c, test_be_cuda_cmd.c
 */
#include "be_cuda.h"

#include <string.h>

#include "be_half.h"

static enum rc check_rows(const struct be_tensor *t, uint32_t row, uint32_t n_rows,
                          struct rc_err *err)
{
    if (row > t->cap_rows || n_rows > t->cap_rows - row)
        return rc_fail(err, RC_INVALID, "rows %u..%llu of a tensor with %u rows", row,
                       (unsigned long long)row + n_rows, t->cap_rows);
    return RC_OK;
}

/* n <= BE_CUDA_READ bytes at src, after all that is pending, in c->read. */
static enum rc fetch(struct be_cuda_ctx *c, cu_ptr src, uint64_t n, struct rc_err *err)
{
    enum rc rc;

    if ((rc = be_cuda_flush(c, err)) != RC_OK || (rc = be_cuda_enter(c, err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->d2h(c->read, src, n, c->stream), "reading results", err)) !=
            RC_OK)
        return rc;
    c->ks.d2h_bytes += n;
    return be_cuda_wait(c, err);
}

enum rc be_cuda_tensor_read(struct be_ctx *ctx, const struct be_tensor *t, uint32_t row,
                            uint32_t n_rows, float *dst, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    uint64_t n = (uint64_t)n_rows * t->n_cols, first = (uint64_t)row * t->n_cols;
    uint64_t elem = t->type == KX_F16 ? 2 : 4, step = BE_CUDA_READ / elem;
    enum rc rc = check_rows(t, row, n_rows, err);

    if (rc == RC_OK && n == 0)
        return be_cuda_enter(c, err);
    for (uint64_t at = 0; rc == RC_OK && at < n; at += step) {
        uint64_t m = n - at < step ? n - at : step;

        rc = fetch(c, t->mem.p + (first + at) * elem, m * elem, err);
        if (rc == RC_OK && elem == 4)
            memcpy(dst + at, c->read, m * 4);
        else if (rc == RC_OK)
            be_dtype_to_f32(BE_F16, c->read, dst + at, m);
    }
    return rc;
}

/* Off the token path: waits for what uses the tensor, then copies. */
enum rc be_cuda_tensor_write(struct be_ctx *ctx, struct be_tensor *t, uint32_t row, uint32_t n_rows,
                             const float *src, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    uint64_t n = (uint64_t)n_rows * t->n_cols, first = (uint64_t)row * t->n_cols, step;
    enum rc rc = check_rows(t, row, n_rows, err);

    if (rc != RC_OK || (rc = be_cuda_flush(c, err)) != RC_OK ||
        (rc = be_cuda_enter(c, err)) != RC_OK || n == 0)
        return rc;
    if (row == 0 && t->version == 0 && n_rows == t->cap_rows)
        t->type = KX_F32;
    step = BE_CUDA_READ / 4;
    for (uint64_t at = 0; rc == RC_OK && at < n; at += step) {
        uint64_t m = n - at < step ? n - at : step, elem = t->type == KX_F16 ? 2 : 4;

        /* c->read is free: every read has ended when it returned, and so does this */
        if (elem == 4)
            memcpy(c->read, src + at, m * 4);
        for (uint64_t i = 0; elem == 2 && i < m; i++) {
            uint16_t h = be_f32_to_half(src[at + i]);

            memcpy(c->read + 2 * i, &h, sizeof(h));
        }
        c->ks.h2d_bytes += m * elem;
        rc = be_cuda_do(c, c->d->h2d(t->mem.p + (first + at) * elem, c->read, m * elem, c->stream),
                        "writing a tensor", err);
        if (rc == RC_OK)
            rc = be_cuda_wait(c, err);
    }
    t->version++;
    return rc;
}

/* --------------------------------------------------------------- picking tokens */

/* Scratch of both, made with the context so that neither allocates: the ids of at most
 * PICK_ROWS rows, then what the kernels want for as many rows as fit. */
#define PICK_ROWS 1024u
#define PICK_BYTES (8u << 20)
#define ARGMAX_PARTS 128u

static uint32_t parts_of(uint32_t k)
{
    uint32_t p = k > UINT32_MAX - 4096 ? ARGMAX_PARTS : KX_ARGMAX_PARTS(k);

    return p > ARGMAX_PARTS ? ARGMAX_PARTS : p;
}

enum rc be_cuda_pick_init(struct be_cuda_ctx *c, struct rc_err *err)
{
    _Static_assert(PICK_BYTES >= PICK_ROWS * (4 + sizeof(struct kx_best) * ARGMAX_PARTS) &&
                       PICK_BYTES >= PICK_ROWS * 4 + KX_SAMPLE_SCRATCH(KX_SAMPLE_COLS),
                   "scratch for at least one row");
    return be_cuda_alloc(c, BE_CUDA_WORK, PICK_BYTES, &c->pick, "scratch for picking tokens", err);
}

enum rc be_cuda_argmax(struct be_ctx *ctx, const struct be_argmax_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    enum rc rc;

    c->ops++;
    if ((rc = be_cuda_check_tensor(a->x, "argmax", "x", a->n, 0, err)) != RC_OK)
        return rc;
    if (a->x->n_cols > INT32_MAX)
        return rc_fail(err, RC_INVALID, "argmax: %u columns", a->x->n_cols);
    for (uint32_t r = 0; r < a->n; r += PICK_ROWS) {
        uint32_t n = a->n - r < PICK_ROWS ? a->n - r : PICK_ROWS;
        struct kx_argmax k = {.x = a->x->mem.p +
                                   (uint64_t)r * a->x->n_cols * (a->x->type == KX_F16 ? 2 : 4),
                              .out = c->pick.p,
                              .n = n,
                              .k = a->x->n_cols,
                              .x_t = a->x->type,
                              .part = c->pick.p + PICK_ROWS * 4,
                              .parts = parts_of(a->x->n_cols)};

        if ((rc = be_cuda_room(c, 2, 0, "argmax", err)) != RC_OK ||
            (rc = be_cuda_push(c, c->k[BE_CK_ARGMAX_PART], &k, err)) != RC_OK ||
            (rc = be_cuda_push(c, c->k[BE_CK_ARGMAX], &k, err)) != RC_OK ||
            (rc = fetch(c, c->pick.p, (uint64_t)n * 4, err)) != RC_OK)
            return rc;
        memcpy(a->out_ids + r, c->read, (size_t)n * 4);
    }
    return RC_OK;
}

static struct kx_sample_row sample_row(const struct be_sample_row *r)
{
    return (struct kx_sample_row){.inv_temperature = r->temperature > 0 ? 1 / r->temperature : 0,
                                  .top_p = r->top_p,
                                  .min_p = r->min_p,
                                  .u = r->u,
                                  .top_k = r->top_k};
}

/* Rows in groups that fit the scratch, one after the other on the stream; one wait. */
static enum rc push_sample(struct be_cuda_ctx *c, const struct be_sample_args *a, uint32_t first,
                           uint32_t n, struct rc_err *err)
{
    uint32_t k = a->x->n_cols, group, at = 0;
    uint64_t row = k <= KX_SAMPLE_COLS ? KX_SAMPLE_SCRATCH(k) : 16, elem;
    struct kx_sample_row *rows;
    enum rc rc;

    row = (row + 15) & ~(uint64_t)15;
    group = (uint32_t)((PICK_BYTES - PICK_ROWS * 4) / row);
    elem = a->x->type == KX_F16 ? 2 : 4;
    if ((rc = be_cuda_room(c, 2 * (n / group + 1), n * sizeof(*rows) + BE_CUDA_ALIGN, "sample",
                           err)) != RC_OK)
        return rc;
    if (!(rows = be_cuda_stage_take(c, n * (uint32_t)sizeof(*rows), &at)))
        return rc_fail(err, RC_INTERNAL, "sample: no room was kept for its rows");
    for (uint32_t i = 0; i < n; i++)
        rows[i] = sample_row(&a->rows[first + i]);
    for (uint32_t r = 0; r < n; r += group) {
        struct kx_sample s = {.x = a->x->mem.p + (uint64_t)(first + r) * k * elem,
                              .rows = be_cuda_stage_addr(c, at) + r * sizeof(*rows),
                              .out = c->pick.p + (uint64_t)r * 4,
                              .scratch = c->pick.p + PICK_ROWS * 4,
                              .n = n - r < group ? n - r : group,
                              .k = k,
                              .x_t = a->x->type,
                              .scratch_row = row};

        if ((rc = be_cuda_push(c, c->k[BE_CK_SAMPLE_PART], &s, err)) != RC_OK ||
            (rc = be_cuda_push(c, c->k[BE_CK_SAMPLE], &s, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

enum rc be_cuda_sample(struct be_ctx *ctx, const struct be_sample_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    enum rc rc;

    c->ops++;
    if ((rc = be_cuda_check_tensor(a->x, "sample", "x", a->n, 0, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n; i++)
        if (!(a->rows[i].temperature >= 0) || !(a->rows[i].u >= 0 && a->rows[i].u < 1))
            return rc_fail(err, RC_INVALID, "sample: row %u has temperature %g and draw %g", i,
                           (double)a->rows[i].temperature, (double)a->rows[i].u);
    for (uint32_t r = 0; r < a->n; r += PICK_ROWS) {
        uint32_t n = a->n - r < PICK_ROWS ? a->n - r : PICK_ROWS;

        if ((rc = push_sample(c, a, r, n, err)) != RC_OK ||
            (rc = fetch(c, c->pick.p, (uint64_t)n * 4, err)) != RC_OK)
            return rc;
        memcpy(a->out_ids + r, c->read, (size_t)n * 4);
    }
    return RC_OK;
}
