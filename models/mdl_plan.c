/* mdl_plan.c - what a model will hold on its device, listed before it is built.
 *
 * Phase one: a family names every weight and activation; each weight is found in
 * the file, its shape, values and type checked, and bytes are summed exactly.
 * Phase two builds them in that order. A failure in either leaves nothing behind.
 * Knows no family and no device. Always true: a slot is NULL or owns a live
 * object; only mdl_plan_free frees. Tests: tests/models/test_mdl_open.c
 */
#include "mdl_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum rc grow(void **arr, size_t n, size_t *cap, size_t size, struct rc_err *err)
{
    size_t c = *cap ? *cap * 2 : 64;
    void *p;

    if (n < *cap)
        return RC_OK;
    if (!(p = realloc(*arr, c * size)))
        return rc_fail(err, RC_NOMEM, "no memory for a list of %zu weights", c);
    *arr = p;
    *cap = c;
    return RC_OK;
}

/* The probe's look at a tensor: as mdl_file_take, without reading its values. */
static enum rc find(const struct mdl_file *f, const char *name, uint32_t n_dims,
                    const uint64_t *dims, const struct mdl_tensor **out, struct rc_err *err)
{
    const struct mdl_tensor *t = mdl_file_find(f, name);
    uint32_t i;

    if (!t)
        return rc_fail_what(err, RC_WEIGHT_ABSENT, name, "tensor '%s' is missing", name);
    for (i = 0; t->n_dims == n_dims && i < n_dims; i++)
        if (t->dims[i] != dims[i])
            break;
    if (t->n_dims != n_dims || i < n_dims)
        return rc_fail_what(err, RC_FORMAT, name,
                            "tensor '%s': shape [%" PRIu64 ",%" PRIu64 "] (%u dims), expected "
                            "[%" PRIu64 ",%" PRIu64 "] (%u dims)",
                            name, t->dims[0], t->n_dims > 1 ? t->dims[1] : 1, t->n_dims, dims[0],
                            n_dims > 1 ? dims[1] : 1, n_dims);
    *out = t;
    return RC_OK;
}

/* widened: its values are changed at load, so it becomes f32. */
static enum rc plan_one(struct mdl_plan *p, const char *name, unsigned use, uint32_t n_dims,
                        const uint64_t *dims, bool widened, struct be_weight **slot,
                        struct rc_err *err)
{
    const struct mdl_tensor *t = NULL;
    uint64_t n = 1;
    enum be_dtype as;
    enum rc rc;

    rc = p->be ? mdl_file_take(p->file, name, n_dims, dims, &t, err)
               : find(p->file, name, n_dims, dims, &t, err);
    if (rc != RC_OK)
        return rc;
    for (uint32_t i = 0; i < n_dims; i++)
        n *= dims[i]; /* as many as the file was found to hold */
    as = widened ? BE_F32 : t->dtype;
    if (p->be && !be_supports(p->be, as, use))
        return rc_fail_what(err, RC_UNSUPPORTED, name,
                            "tensor '%s': type %s cannot be used as %s on this backend", name,
                            be_dtype_name(t->dtype),
                            use & BE_USE_VECTOR  ? "a vector"
                            : use & BE_USE_EMBED ? "an embedding table"
                                                 : "a matrix");
    if ((rc = grow((void **)&p->w, p->n_w, &p->cap_w, sizeof(*p->w), err)) != RC_OK)
        return rc;
    p->w[p->n_w++] = (struct mdl_plan_weight){.t = t, .slot = slot, .use = use};
    /* a table that stays in the file takes no memory of ours */
    if (!(use & BE_USE_MAPPED))
        p->weight_bytes += use & BE_USE_VECTOR ? n * sizeof(float) : t->n_bytes;
    p->n_params += n;
    return RC_OK;
}

enum rc mdl_plan_weight(struct mdl_plan *p, const char *name, unsigned use, uint32_t n_dims,
                        uint64_t d0, uint64_t d1, float add, struct be_weight **slot,
                        struct rc_err *err)
{
    const uint64_t dims[2] = {d0, d1};
    enum rc rc = plan_one(p, name, use, n_dims, dims, add != 0, slot, err);

    if (rc == RC_OK)
        p->w[p->n_w - 1].add = add;
    return rc;
}

enum rc mdl_plan_mapped(struct mdl_plan *p, const char *name, uint64_t n,
                        float (*map)(float v, float arg), float arg, struct be_weight **slot,
                        struct rc_err *err)
{
    enum rc rc = plan_one(p, name, BE_USE_VECTOR, 1, &n, true, slot, err);

    if (rc == RC_OK) {
        p->w[p->n_w - 1].map = map;
        p->w[p->n_w - 1].map_arg = arg;
    }
    return rc;
}

enum rc mdl_plan_shaped(struct mdl_plan *p, const char *name, unsigned use, uint32_t n_dims,
                        const uint64_t *dims, uint64_t rows, uint64_t cols, struct be_weight **slot,
                        struct rc_err *err)
{
    enum rc rc = plan_one(p, name, use, n_dims, dims, false, slot, err);

    if (rc == RC_OK) {
        p->w[p->n_w - 1].rows = rows;
        p->w[p->n_w - 1].cols = cols;
    }
    return rc;
}

/* Bytes of n whole blocks' columns in every row of a matrix. */
static uint64_t columns_bytes(const struct mdl_tensor *t, uint32_t n_cols)
{
    uint32_t block = be_dtype_block(t->dtype);

    return t->n_bytes / (t->dims[1] / block) * (n_cols / block);
}

enum rc mdl_plan_columns(struct mdl_plan *p, const char *name, unsigned use, uint64_t d0,
                         uint64_t d1, uint32_t col0, uint32_t n_cols, struct be_weight **slot,
                         struct rc_err *err)
{
    enum rc rc = mdl_plan_weight(p, name, use, 2, d0, d1, 0, slot, err);
    struct mdl_plan_weight *w;
    uint32_t block;

    if (rc != RC_OK)
        return rc;
    w = &p->w[p->n_w - 1];
    block = be_dtype_block(w->t->dtype);
    if (n_cols == 0 || col0 > d1 || n_cols > d1 - col0 || col0 % block != 0 || n_cols % block != 0)
        return rc_fail_what(
            err, RC_UNSUPPORTED, name,
            "tensor '%s': columns %u to %" PRIu64 " of %" PRIu64 " are no whole blocks of %s (%u)",
            name, col0, (uint64_t)col0 + n_cols - 1, d1, be_dtype_name(w->t->dtype), block);
    w->col0 = col0;
    w->n_cols = n_cols;
    p->weight_bytes -= w->t->n_bytes - columns_bytes(w->t, n_cols);
    p->n_params -= d0 * (d1 - n_cols);
    return RC_OK;
}

/* The last planned weight, as n_parts of part_rows rows of its file's tensor each. */
static enum rc in_parts(struct mdl_plan *p, uint32_t n_parts, uint32_t part_rows,
                        struct be_weight **slots, struct rc_err *err)
{
    struct mdl_plan_weight first = p->w[--p->n_w];
    enum rc rc;

    first.n_rows = part_rows;
    for (uint32_t i = 0; i < n_parts; i++) {
        if ((rc = grow((void **)&p->w, p->n_w, &p->cap_w, sizeof(*p->w), err)) != RC_OK)
            return rc;
        first.slot = &slots[i];
        first.row0 = i * part_rows;
        p->w[p->n_w++] = first;
    }
    return RC_OK;
}

enum rc mdl_plan_split(struct mdl_plan *p, const char *name, unsigned use, uint64_t d0, uint64_t d1,
                       uint32_t n_parts, struct be_weight **slots, struct rc_err *err)
{
    enum rc rc = mdl_plan_weight(p, name, use, 2, d0, d1, 0, &slots[0], err);

    return rc == RC_OK ? in_parts(p, n_parts, (uint32_t)(d0 / n_parts), slots, err) : rc;
}

enum rc mdl_plan_turned(struct mdl_plan *p, const char *name, uint32_t n_dims, const uint64_t *dims,
                        uint32_t rows, uint32_t cols, uint32_t n_parts, struct be_weight **slots,
                        struct rc_err *err)
{
    enum rc rc = plan_one(p, name, BE_USE_LINEAR, n_dims, dims, false, &slots[0], err);
    struct mdl_plan_weight *w;

    if (rc != RC_OK)
        return rc;
    w = &p->w[p->n_w - 1];
    if (be_dtype_block(w->t->dtype) != 1)
        return rc_fail_what(err, RC_UNSUPPORTED, name, "tensor '%s': type %s cannot be transposed",
                            name, be_dtype_name(w->t->dtype));
    w->turn_rows = rows;
    w->turn_cols = cols;
    return in_parts(p, n_parts, (uint32_t)(dims[0] / n_parts), slots, err);
}

enum rc mdl_plan_vectors(struct mdl_plan *p, const char *name, uint32_t n_dims,
                         const uint64_t *dims, uint32_t n_parts, struct be_weight **slots,
                         struct rc_err *err)
{
    enum rc rc = plan_one(p, name, BE_USE_VECTOR, n_dims, dims, false, &slots[0], err);

    return rc == RC_OK ? in_parts(p, n_parts, (uint32_t)(dims[0] / n_parts), slots, err) : rc;
}

enum rc mdl_plan_tensor(struct mdl_plan *p, uint32_t rows, uint32_t cols, struct be_tensor **slot,
                        struct rc_err *err)
{
    uint64_t bytes;
    enum rc rc;

    if (__builtin_mul_overflow((uint64_t)rows * cols, sizeof(float), &bytes) ||
        __builtin_add_overflow(p->tensor_bytes, bytes, &bytes))
        return rc_fail(err, RC_LIMIT, "activations of %u x %u values are beyond any memory", rows,
                       cols);
    if ((rc = grow((void **)&p->t, p->n_t, &p->cap_t, sizeof(*p->t), err)) != RC_OK)
        return rc;
    p->t[p->n_t++] = (struct mdl_plan_tensor){.slot = slot, .rows = rows, .cols = cols};
    p->tensor_bytes = bytes;
    return RC_OK;
}

/* Bytes of the file's tensor that this weight is made of. */
static uint64_t part_bytes(const struct mdl_plan_weight *w)
{
    return w->n_rows > 0 ? w->t->n_bytes / w->t->dims[0] * w->n_rows : w->t->n_bytes;
}

void mdl_plan_quant(const struct mdl_plan *p, char *out, size_t cap)
{
    uint64_t bytes[64] = {0};
    size_t i, best = 0;

    for (i = 0; i < p->n_w; i++)
        if (!(p->w[i].use & BE_USE_VECTOR) && (unsigned)p->w[i].t->dtype < 64) {
            unsigned id = (unsigned)p->w[i].t->dtype;

            /* the table of token vectors is often of a better type than the rest */
            bytes[id] += p->w[i].use & BE_USE_EMBED ? 1 : part_bytes(&p->w[i]);
            if (bytes[id] > bytes[best])
                best = id;
        }
    snprintf(out, cap, "%s", be_dtype_name((uint32_t)best));
}

bool mdl_plan_is_quantized(const struct mdl_plan *p)
{
    for (size_t i = 0; i < p->n_w; i++)
        if (be_dtype_block(p->w[i].t->dtype) > 1)
            return true;
    return false;
}

enum rc mdl_plan_build_tensors(struct mdl_plan *p, struct rc_err *err)
{
    size_t i;
    enum rc rc;

    for (i = 0; i < p->n_t; i++)
        if ((rc = be_tensor_new(p->be, p->t[i].rows, p->t[i].cols, p->t[i].slot, err)) != RC_OK) {
            rc_wrap(err, "activations of %" PRIu64 " bytes", p->tensor_bytes);
            return rc;
        }
    return RC_OK;
}

/* f32 copy of a vector with `add` on every value, or mapped; the plan owns it because the
 * backend may borrow it. */
static enum rc widen(struct mdl_plan_weight *w, size_t n, struct rc_err *err)
{
    float *f;
    size_t i;

    if (!(w->owned = f = malloc(n * sizeof(float))))
        return rc_fail_what(err, RC_NOMEM, w->t->name, "tensor '%s': no memory for %zu values",
                            w->t->name, n);
    be_dtype_to_f32(w->t->dtype, w->t->data, f, n);
    for (i = 0; i < n; i++)
        f[i] = w->map ? w->map(f[i], w->map_arg) : f[i] + w->add;
    return RC_OK;
}

/* The taken columns of every row, packed; sizes were checked when they were planned. */
static enum rc take_columns(struct mdl_plan_weight *w, struct be_weight_desc *d, struct rc_err *err)
{
    uint32_t block = be_dtype_block(d->dtype), bytes = be_dtype_block_bytes(d->dtype);
    size_t row = d->n_bytes / d->n_rows, len = (size_t)(w->n_cols / block) * bytes, i;
    const uint8_t *src = (const uint8_t *)d->data + (size_t)(w->col0 / block) * bytes;
    uint8_t *dst;

    if (!(w->owned = dst = malloc(d->n_rows * len)))
        return rc_fail_what(err, RC_NOMEM, w->t->name, "tensor '%s': no memory for %u columns",
                            w->t->name, w->n_cols);
    for (i = 0; i < d->n_rows; i++)
        memcpy(dst + i * len, src + i * row, len);
    d->data = dst;
    d->n_cols = w->n_cols;
    d->n_bytes = d->n_rows * len;
    return RC_OK;
}

/* [turn_rows, turn_cols] to [turn_cols, turn_rows]; of values that are no blocks. */
static enum rc turn(struct mdl_plan_weight *w, struct be_weight_desc *d, struct rc_err *err)
{
    size_t size = be_dtype_block_bytes(d->dtype), rows = w->turn_rows, cols = w->turn_cols;
    const uint8_t *src = d->data;
    uint8_t *dst;

    if (!(w->owned = dst = malloc(d->n_bytes)))
        return rc_fail_what(err, RC_NOMEM, w->t->name, "tensor '%s': no memory for its transpose",
                            w->t->name);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy(dst + (c * rows + r) * size, src + (r * cols + c) * size, size);
    d->data = dst;
    d->n_rows = cols;
    d->n_cols = rows;
    return RC_OK;
}

static enum rc build_one(struct mdl_plan *p, struct mdl_plan_weight *w, struct rc_err *err)
{
    const struct mdl_tensor *t = w->t;
    struct be_weight_desc d = {.name = t->name,
                               .dtype = t->dtype,
                               .n_rows = t->n_dims == 1 ? 1 : t->dims[0],
                               .n_cols = t->n_dims == 1 ? t->dims[0] : t->dims[1],
                               .data = t->data,
                               .n_bytes = t->n_bytes,
                               .use = w->use};
    enum rc rc;

    if (w->rows > 0) {
        d.n_rows = w->rows;
        d.n_cols = w->cols;
    }
    if (w->n_rows > 0) {
        d.n_bytes = part_bytes(w);
        d.data = (const uint8_t *)t->data + w->row0 / w->n_rows * d.n_bytes;
        d.n_rows = w->n_rows;
        if (w->use & BE_USE_VECTOR) { /* of one dimension, or one row of two */
            d.n_cols = d.n_bytes / be_dtype_block_bytes(d.dtype);
            d.n_rows = 1;
        }
    }
    if (w->turn_rows > 0 && (rc = turn(w, &d, err)) != RC_OK)
        return rc;
    if (w->add != 0 || w->map) {
        size_t n = d.n_rows * d.n_cols;

        if ((rc = widen(w, n, err)) != RC_OK)
            return rc;
        d.dtype = BE_F32;
        d.data = w->owned;
        d.n_bytes = n * sizeof(float);
    }
    if (w->n_cols > 0 && (rc = take_columns(w, &d, err)) != RC_OK)
        return rc;
    return be_weight_new(p->be, &d, w->slot, err);
}

/* Counts what a weight occupies from now on. A backend that made its own layout
 * grew by about the tensor's size and looks rows up in there too; the file's pages
 * may go then. (Were one read all the same, the file would be asked again.) */
static void account(struct mdl_plan *p, const struct mdl_plan_weight *w, uint64_t grown)
{
    bool copied = grown >= part_bytes(w) || (w->use & (BE_USE_VECTOR | BE_USE_MAPPED)) || w->owned;

    p->resident_bytes += grown;
    if (w->turn_rows > 0) /* and so is a transpose */
        p->resident_bytes += part_bytes(w);
    if (w->n_cols > 0) /* the packed columns are ours */
        p->resident_bytes += columns_bytes(w->t, w->n_cols);
    if (!copied)
        p->resident_bytes += part_bytes(w);
    else
        mdl_file_drop(p->file, w->t);
}

enum rc mdl_plan_build_weights(struct mdl_plan *p, const struct mdl_opts *o, struct rc_err *err)
{
    uint64_t done = 0, total = 0;
    struct be_stats before, after;
    size_t i;
    enum rc rc;

    for (i = 0; i < p->n_w; i++)
        total += part_bytes(&p->w[i]);
    be_ctx_stats(p->be, &before);
    for (i = 0; i < p->n_w; i++) {
        if ((rc = build_one(p, &p->w[i], err)) != RC_OK) {
            rc_wrap(err, "building weight '%s'", p->w[i].t->name);
            return rc;
        }
        be_ctx_stats(p->be, &after);
        account(p, &p->w[i], after.weight_bytes - before.weight_bytes);
        before = after;
        done += part_bytes(&p->w[i]);
        if (o->progress)
            o->progress(o->progress_user, "weights", done, total);
    }
    return RC_OK;
}

void mdl_plan_free_tensors(struct mdl_plan *p)
{
    for (; p->n_t > 0; p->n_t--)
        if (*p->t[p->n_t - 1].slot)
            be_tensor_free(p->be, p->t[p->n_t - 1].slot);
    p->tensor_bytes = 0;
}

void mdl_plan_free(struct mdl_plan *p)
{
    size_t i;

    mdl_plan_free_tensors(p);
    for (i = p->n_w; i-- > 0;) {
        if (*p->w[i].slot)
            be_weight_free(p->be, p->w[i].slot);
        free(p->w[i].owned);
    }
    free(p->t);
    free(p->w);
    memset(p, 0, sizeof(*p));
}

enum rc mdl_ones_init(struct mdl_ones *o, struct be_ctx *be, uint32_t n, struct rc_err *err)
{
    struct be_weight_desc d = {.name = "ones",
                               .dtype = BE_F32,
                               .n_rows = 1,
                               .n_cols = n,
                               .n_bytes = n * sizeof(float),
                               .use = BE_USE_VECTOR};

    if (!be || o->w)
        return RC_OK;
    if (!o->v && !(o->v = malloc(n * sizeof(float))))
        return rc_fail(err, RC_NOMEM, "no memory for %u ones", n);
    for (uint32_t i = 0; i < n; i++)
        o->v[i] = 1;
    d.data = o->v;
    return be_weight_new(be, &d, &o->w, err);
}

void mdl_ones_deinit(struct mdl_ones *o, struct be_ctx *be)
{
    if (be)
        be_weight_free(be, &o->w);
    free(o->v);
    o->v = NULL;
}
