/* be_cpu_weight.c - weights: what is borrowed, widened or repacked at load.
 *
 * Raw bytes stay the caller's. A norm weight or bias is widened to f32. The right
 * side of a linear is repacked when the level has a layout of its own for the
 * type; those bytes are ours and counted, and raw is not read again. Embedding rows
 * come from the packed bytes if there are any, else from raw.
 * Tests: tests/backends/test_be_cpu_linear.c
 */
#include "be_cpu.h"

#include <stdio.h>
#include <string.h>

bool be_cpu_supports(const struct be_ctx *ctx, enum be_dtype t, unsigned use)
{
    return be_dtype_known((uint32_t)t) &&
           (use == (BE_USE_EMBED | BE_USE_MAPPED) ||
            (use != 0 && (use & ~(unsigned)(BE_USE_LINEAR | BE_USE_EMBED | BE_USE_VECTOR)) == 0));
}

struct pack_job {
    const struct be_cpu_kern *kern;
    const struct be_weight *w;
};

static void pack_range(void *arg, unsigned thread, size_t u0, size_t u1)
{
    const struct pack_job *j = arg;

    j->kern->pack(j->w, u0, u1);
}

static enum rc check(const struct be_weight_desc *d, struct rc_err *err)
{
    uint64_t n_bytes;

    if (!be_dtype_known((uint32_t)d->dtype))
        return rc_fail_what(err, RC_UNSUPPORTED, d->name, "tensor '%s': type %u is not supported",
                            d->name, (unsigned)d->dtype);
    if (!be_cpu_supports(NULL, d->dtype, d->use))
        return rc_fail_what(err, RC_UNSUPPORTED, d->name, "tensor '%s': use 0x%x is not supported",
                            d->name, d->use);
    if (d->n_rows == 0 || d->n_cols == 0 || d->n_rows > INT32_MAX || d->n_cols > INT32_MAX)
        return rc_fail_what(err, RC_INVALID, d->name,
                            "tensor '%s': shape [%llu,%llu], expected 1..2^31-1 each", d->name,
                            (unsigned long long)d->n_rows, (unsigned long long)d->n_cols);
    if (!be_dtype_bytes(d->dtype, d->n_rows, d->n_cols, &n_bytes))
        return rc_fail_what(err, RC_INVALID, d->name,
                            "tensor '%s': %llu columns are no multiple of %s's block of %u",
                            d->name, (unsigned long long)d->n_cols, be_dtype_name(d->dtype),
                            be_dtype_block(d->dtype));
    if (n_bytes != d->n_bytes)
        return rc_fail_what(
            err, RC_INVALID, d->name, "tensor '%s': %llu bytes, expected %llu for %s [%llu,%llu]",
            d->name, (unsigned long long)d->n_bytes, (unsigned long long)n_bytes,
            be_dtype_name(d->dtype), (unsigned long long)d->n_rows, (unsigned long long)d->n_cols);
    if ((d->use & BE_USE_VECTOR) && d->n_rows != 1)
        return rc_fail_what(err, RC_INVALID, d->name, "vector '%s': %llu rows, expected 1", d->name,
                            (unsigned long long)d->n_rows);
    return RC_OK;
}

enum rc be_cpu_weight_new(struct be_ctx *ctx, const struct be_weight_desc *d,
                          struct be_weight **out, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct be_weight *w = NULL;
    size_t packed;
    enum rc rc;

    if ((rc = check(d, err)) != RC_OK)
        return rc;
    if ((rc = be_cpu_alloc(c, BE_CPU_MEM_WEIGHT, sizeof(*w), &w, d->name, err)) != RC_OK)
        return rc;
    snprintf(w->name, sizeof(w->name), "%s", d->name);
    w->dtype = d->dtype;
    w->n_rows = d->n_rows;
    w->n_cols = d->n_cols;
    w->use = d->use;
    w->raw = d->data;
    w->row_bytes = d->n_bytes / d->n_rows;
    w->unit_bytes = w->row_bytes * BE_CPU_UNIT;
    if (d->use & BE_USE_VECTOR) {
        w->vec_bytes = (size_t)d->n_cols * sizeof(float);
        if ((rc = be_cpu_alloc(c, BE_CPU_MEM_WEIGHT, w->vec_bytes, &w->vec, d->name, err)) != RC_OK)
            goto out;
        be_dtype_to_f32(d->dtype, d->data, w->vec, (size_t)d->n_cols);
    }
    packed = 0;
    if ((d->use & BE_USE_LINEAR) && !(c->openblas && d->dtype == BE_F32))
        packed = c->kern->pack_bytes(d->dtype, d->n_rows, d->n_cols);
    if (packed > 0) {
        struct pack_job job = {c->kern, w};
        size_t units = (size_t)(d->n_rows + BE_CPU_UNIT - 1) / BE_CPU_UNIT;

        w->packed_bytes = packed;
        if ((rc = be_cpu_alloc(c, BE_CPU_MEM_WEIGHT, packed, &w->packed, d->name, err)) != RC_OK)
            goto out;
        w->unit_bytes = packed / units;
        be_cpu_pool_run(c->pool, units, 16, pack_range, &job);
    }
    *out = w;
    w = NULL;
out:
    if (w)
        be_cpu_weight_free(ctx, &w);
    return rc;
}

void be_cpu_weight_free(struct be_ctx *ctx, struct be_weight **wp)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct be_weight *w = *wp;

    be_cpu_free(c, BE_CPU_MEM_WEIGHT, w->vec, w->vec_bytes);
    be_cpu_free(c, BE_CPU_MEM_WEIGHT, w->packed, w->packed_bytes);
    be_cpu_free(c, BE_CPU_MEM_WEIGHT, w, sizeof(*w));
    *wp = NULL;
}

enum rc be_cpu_check(const struct be_tensor *t, const char *op, const char *what, uint32_t n,
                     uint32_t n_cols, struct rc_err *err)
{
    if (!t)
        return rc_fail(err, RC_INVALID, "%s: %s is missing", op, what);
    if (n > t->cap_rows || (n_cols > 0 && n_cols != t->n_cols))
        return rc_fail(err, RC_INVALID, "%s: %s is [%u,%u], expected at least %u rows of %u", op,
                       what, t->cap_rows, t->n_cols, n, n_cols > 0 ? n_cols : t->n_cols);
    return RC_OK;
}

enum rc be_cpu_check_vec(const struct be_weight *w, const char *op, const char *what,
                         uint64_t n_cols, struct rc_err *err)
{
    if (!w)
        return rc_fail(err, RC_INVALID, "%s: %s is missing", op, what);
    if (!w->vec || w->n_cols != n_cols)
        return rc_fail_what(err, RC_INVALID, w->name,
                            "%s: %s '%s' is [%llu,%llu]%s, expected a vector of %llu", op, what,
                            w->name, (unsigned long long)w->n_rows, (unsigned long long)w->n_cols,
                            w->vec ? "" : " (not loaded as a vector)", (unsigned long long)n_cols);
    return RC_OK;
}
