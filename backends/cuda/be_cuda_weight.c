/* be_cuda_weight.c - weights: up through pinned buffers, then into planes.
 *
 * A file's blocks go to the device as they are and are taken apart there
 * (kx_repack_<type>) into the planes the kernels read (be_klayout). Floats are laid out while they
 * are copied; with compute = f16 they become f16 on the way. A norm weight or bias is widened to
 * f32. The caller's bytes are not needed after be_cuda_weight_new.
 * Tests: tests/backends/test_be_cuda_linear.c
 */
#include "be_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_half.h"

unsigned be_cuda_fmt(enum be_dtype t)
{
    static const enum be_dtype order[] = {
#define X(name, id, n, b) BE_##name,
        BE_DTYPE_MAP(X)
#undef X
    };
    unsigned i = 0;

    _Static_assert(sizeof(order) / sizeof(order[0]) <= BE_KSTAT_FORMATS, "a format has no place");
    while (i < sizeof(order) / sizeof(order[0]) && order[i] != t)
        i++;
    return i < sizeof(order) / sizeof(order[0]) ? i : BE_KSTAT_FORMATS;
}

bool be_cuda_supports(const struct be_ctx *ctx, enum be_dtype t, unsigned use)
{
    return be_dtype_known((uint32_t)t) &&
           (use == (BE_USE_EMBED | BE_USE_MAPPED) ||
            (use != 0 && (use & ~(unsigned)(BE_USE_LINEAR | BE_USE_EMBED | BE_USE_VECTOR)) == 0));
}

static enum rc check(const struct be_weight_desc *d, struct rc_err *err)
{
    uint64_t n_bytes;

    if (!be_dtype_known((uint32_t)d->dtype))
        return rc_fail_what(err, RC_UNSUPPORTED, d->name, "tensor '%s': type %u is not supported",
                            d->name, (unsigned)d->dtype);
    if (!be_cuda_supports(NULL, d->dtype, d->use))
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

/* ------------------------------------------------------------------- uploads */

static enum rc load_begin(struct be_cuda_ctx *c, struct rc_err *err)
{
    enum rc rc;

    for (int i = 0; i < 2; i++) {
        if (!c->load.host[i] && (rc = be_cuda_host_alloc(c, BE_CUDA_LOAD, &c->load.host[i],
                                                         "weight upload", err)) != RC_OK)
            return rc;
        if (!c->load.raw[i].p &&
            (rc = be_cuda_alloc(c, BE_CUDA_UPLOAD, BE_CUDA_LOAD, &c->load.raw[i], "weight upload",
                                err)) != RC_OK)
            return rc;
        if (!c->load.done[i] && (rc = be_cuda_do(c, c->d->event_new(&c->load.done[i], 2),
                                                 "making an event", err)) != RC_OK)
            return rc;
    }
    return be_cuda_enter(c, err);
}

void be_cuda_load_end(struct be_cuda_ctx *c)
{
    (void)be_cuda_wait(c, NULL); /* both buffers may still be read; an error shows later */
    for (int i = 0; i < 2; i++) {
        be_cuda_host_free(c, c->load.host[i]);
        be_cuda_free(c, BE_CUDA_UPLOAD, &c->load.raw[i]);
        if (c->load.done[i])
            (void)c->d->event_free(c->load.done[i]);
    }
    memset(&c->load, 0, sizeof(c->load));
}

/* The next pinned buffer, free to be written. */
static enum rc next_buffer(struct be_cuda_ctx *c, struct rc_err *err)
{
    c->load.cur ^= 1;
    if (!c->load.pending[c->load.cur])
        return RC_OK;
    c->load.pending[c->load.cur] = false;
    return be_cuda_do(c, c->d->event_sync(c->load.done[c->load.cur]), "uploading weights", err);
}

/* The buffer's first n bytes to dst; busy until they (and what follows up to done) ran. */
static enum rc send(struct be_cuda_ctx *c, cu_ptr dst, uint64_t n, struct rc_err *err)
{
    c->ks.h2d_bytes += n;
    return be_cuda_do(c, c->d->h2d(dst, c->load.host[c->load.cur], n, c->stream),
                      "uploading weights", err);
}

static enum rc sent(struct be_cuda_ctx *c, struct rc_err *err)
{
    enum rc rc = be_cuda_do(c, c->d->event_record(c->load.done[c->load.cur], c->stream),
                            "marking an upload", err);

    c->load.pending[c->load.cur] = rc == RC_OK;
    return rc;
}

enum rc be_cuda_upload(struct be_cuda_ctx *c, cu_ptr dst, const void *src, uint64_t n,
                       struct rc_err *err)
{
    const uint8_t *p = src;
    enum rc rc = load_begin(c, err);

    for (uint64_t at = 0; rc == RC_OK && at < n;) {
        uint64_t len = n - at < BE_CUDA_LOAD ? n - at : BE_CUDA_LOAD;

        if ((rc = next_buffer(c, err)) != RC_OK)
            return rc;
        memcpy(c->load.host[c->load.cur], p + at, len);
        if ((rc = send(c, dst + at, len, err)) == RC_OK)
            rc = sent(c, err);
        at += len;
    }
    return rc;
}

static enum rc upload_vec(struct be_cuda_ctx *c, const struct be_weight_desc *d, cu_ptr dst,
                          struct rc_err *err)
{
    uint64_t step = BE_CUDA_LOAD / sizeof(float) / 256 * 256; /* whole blocks of every type */
    uint32_t block = be_dtype_block(d->dtype), bytes = be_dtype_block_bytes(d->dtype);
    enum rc rc = load_begin(c, err);

    for (uint64_t at = 0; rc == RC_OK && at < d->n_cols; at += step) {
        uint64_t n = d->n_cols - at < step ? d->n_cols - at : step;

        if ((rc = next_buffer(c, err)) != RC_OK)
            return rc;
        be_dtype_to_f32(d->dtype, (const uint8_t *)d->data + at / block * bytes,
                        (float *)(void *)c->load.host[c->load.cur], n);
        if ((rc = send(c, dst + at * sizeof(float), n * sizeof(float), err)) == RC_OK)
            rc = sent(c, err);
    }
    return rc;
}

/* n values of a float row as the device keeps them. */
static enum rc store_row(const struct be_weight *w, const uint8_t *src, uint8_t *dst, uint64_t n,
                         struct rc_err *err)
{
    float f[256];

    if (w->stored == w->dtype) {
        memcpy(dst, src, n * be_dtype_block_bytes(w->dtype));
        return RC_OK;
    }
    for (uint64_t i = 0; i < n; i += 256) {
        uint64_t m = n - i < 256 ? n - i : 256;

        be_dtype_to_f32(w->dtype, src + i * be_dtype_block_bytes(w->dtype), f, m);
        for (uint64_t j = 0; j < m; j++) {
            uint16_t h = be_f32_to_half(f[j]);

            if ((h & 0x7fff) == 0x7c00 && f[j] - f[j] == 0)
                return rc_fail_what(err, RC_UNSUPPORTED, w->name,
                                    "tensor '%s': %g does not fit f16: use compute exact_f32",
                                    w->name, (double)f[j]);
            memcpy(dst + (i + j) * sizeof(h), &h, sizeof(h));
        }
    }
    return RC_OK;
}

/* Float rows, each padded with zeros to the plane's row. */
static enum rc upload_floats(struct be_cuda_ctx *c, struct be_weight *w, const uint8_t *src,
                             uint32_t row_bytes, struct rc_err *err)
{
    uint64_t raw = w->n_cols * be_dtype_block_bytes(w->dtype), step = BE_CUDA_LOAD / row_bytes;
    uint64_t used = w->n_cols * be_dtype_block_bytes(w->stored);
    enum rc rc;

    if (step == 0 || used > row_bytes)
        return rc_fail_what(err, RC_UNSUPPORTED, w->name,
                            "tensor '%s': rows of %u bytes, at most %u on this backend", w->name,
                            row_bytes, BE_CUDA_LOAD);
    for (uint64_t row = 0; row < w->n_rows; row += step) {
        uint64_t n = w->n_rows - row < step ? w->n_rows - row : step;
        uint8_t *p;

        if ((rc = next_buffer(c, err)) != RC_OK)
            return rc;
        p = c->load.host[c->load.cur];
        for (uint64_t i = 0; i < n; i++, p += row_bytes) {
            if ((rc = store_row(w, src + (row + i) * raw, p, w->n_cols, err)) != RC_OK)
                return rc;
            memset(p + used, 0, row_bytes - used);
        }
        if ((rc = send(c, w->plane[0].p + row * row_bytes, n * row_bytes, err)) != RC_OK ||
            (rc = sent(c, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc upload_blocks(struct be_cuda_ctx *c, struct be_weight *w, struct be_cuda_fn *f,
                             const uint8_t *src, struct rc_err *err)
{
    uint64_t raw = w->n_cols / be_dtype_block(w->dtype) * be_dtype_block_bytes(w->dtype);
    uint64_t step = BE_CUDA_LOAD / raw;
    struct kx_repack a = {.k = (kx_u)w->n_cols};
    enum rc rc;

    if (step == 0)
        return rc_fail_what(err, RC_UNSUPPORTED, w->name,
                            "tensor '%s': rows of %llu bytes, at most %u on this backend", w->name,
                            (unsigned long long)raw, BE_CUDA_LOAD);
    for (uint32_t i = 0; i < w->n_planes; i++)
        a.dst[i] = w->plane[i].p;
    for (uint64_t row = 0; row < w->n_rows; row += step) {
        uint64_t n = w->n_rows - row < step ? w->n_rows - row : step;

        if ((rc = next_buffer(c, err)) != RC_OK)
            return rc;
        memcpy(c->load.host[c->load.cur], src + row * raw, n * raw);
        a.src = c->load.raw[c->load.cur].p;
        a.row0 = (kx_u)row;
        a.n_rows = (kx_u)n;
        if ((rc = send(c, a.src, n * raw, err)) != RC_OK ||
            (rc = be_cuda_run(c, f, &a, err)) != RC_OK || (rc = sent(c, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* A table that stays where it is: rows go up as f32 when they are asked for. */
static enum rc mapped_new(struct be_cuda_ctx *c, struct be_weight *w,
                          const struct be_weight_desc *d, struct rc_err *err)
{
    struct be_kplan_req r = {
        .op = BE_KOP_EMBED, .wfmt = BE_F32, .k = (uint32_t)w->n_cols, .open = true};

    if (w->n_cols > BE_CUDA_MAPPED_COLS)
        return rc_fail_what(err, RC_UNSUPPORTED, w->name,
                            "tensor '%s': rows of %llu values, at most %u on this backend", w->name,
                            (unsigned long long)w->n_cols, BE_CUDA_MAPPED_COLS);
    w->mapped = d->data;
    return be_cuda_fn_plan(c, &r, &w->embed, err);
}

/* A matrix: its planes and the kernels that read them. */
static enum rc matrix_new(struct be_cuda_ctx *c, struct be_weight *w,
                          const struct be_weight_desc *d, struct rc_err *err)
{
    bool blocks = be_dtype_block(w->dtype) > 1;
    struct be_kplan_req r = {.wfmt = w->stored, .k = (uint32_t)w->n_cols, .open = true};
    struct be_cuda_fn *repack = NULL;
    struct be_klayout l;
    enum rc rc;

    if (!be_klayout_get(w->stored, (uint32_t)w->n_cols, &l) || (!blocks && l.n_planes != 1))
        return rc_fail_what(err, RC_UNSUPPORTED, w->name,
                            "tensor '%s': %s with %llu columns has no layout on this device",
                            w->name, be_dtype_name(w->stored), (unsigned long long)w->n_cols);
    if ((w->use & BE_USE_LINEAR) && (rc = be_cuda_linear_load(c, w, err)) != RC_OK)
        return rc;
    r.op = BE_KOP_EMBED;
    if ((w->use & BE_USE_EMBED) && (rc = be_cuda_fn_plan(c, &r, &w->embed, err)) != RC_OK)
        return rc;
    r.op = BE_KOP_REPACK;
    if (blocks && (rc = be_cuda_fn_plan(c, &r, &repack, err)) != RC_OK)
        return rc;
    for (; w->n_planes < l.n_planes; w->n_planes++)
        if ((rc = be_cuda_alloc(c, BE_CUDA_WEIGHT, w->n_rows * l.row_bytes[w->n_planes],
                                &w->plane[w->n_planes], w->name, err)) != RC_OK)
            return rc;
    if ((rc = load_begin(c, err)) != RC_OK)
        return rc;
    return blocks ? upload_blocks(c, w, repack, d->data, err)
                  : upload_floats(c, w, d->data, l.row_bytes[0], err);
}

enum rc be_cuda_weight_new(struct be_ctx *ctx, const struct be_weight_desc *d,
                           struct be_weight **out, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct be_weight *w = NULL;
    enum rc rc;

    if ((rc = check(d, err)) != RC_OK || (rc = be_cuda_enter(c, err)) != RC_OK)
        return rc;
    if (!(w = calloc(1, sizeof(*w))))
        return rc_fail_what(err, RC_NOMEM, d->name, "tensor '%s': no memory", d->name);
    snprintf(w->name, sizeof(w->name), "%s", d->name);
    w->dtype = w->stored = d->dtype;
    if (c->f16 && be_dtype_block(d->dtype) == 1)
        w->stored = BE_F16;
    w->n_rows = d->n_rows;
    w->n_cols = d->n_cols;
    w->use = d->use;
    if ((d->use & BE_USE_VECTOR) &&
        ((rc = be_cuda_alloc(c, BE_CUDA_WEIGHT, d->n_cols * sizeof(float), &w->vec, d->name,
                             err)) != RC_OK ||
         (rc = upload_vec(c, d, w->vec.p, err)) != RC_OK))
        goto out;
    if (d->use & BE_USE_MAPPED)
        rc = mapped_new(c, w, d, err);
    else if (d->use & (BE_USE_LINEAR | BE_USE_EMBED))
        rc = matrix_new(c, w, d, err);
    if (rc != RC_OK)
        goto out;
    *out = w;
    w = NULL;
out:
    if (w)
        be_cuda_weight_free(ctx, &w);
    return rc;
}

void be_cuda_weight_free(struct be_ctx *ctx, struct be_weight **wp)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct be_weight *w = *wp;

    be_cuda_settle(c);
    /* newest first: marks of shared chunks go back */
    for (uint32_t i = 4; i-- > 0;)
        be_cuda_free(c, BE_CUDA_WEIGHT, &w->plane[i]);
    be_cuda_free(c, BE_CUDA_WEIGHT, &w->vec);
    free(w);
    *wp = NULL;
}

enum rc be_cuda_check_tensor(const struct be_tensor *t, const char *op, const char *what,
                             uint32_t n, uint32_t n_cols, struct rc_err *err)
{
    if (!t)
        return rc_fail(err, RC_INVALID, "%s: %s is missing", op, what);
    if (n > t->cap_rows || (n_cols > 0 && n_cols != t->n_cols))
        return rc_fail(err, RC_INVALID, "%s: %s is [%u,%u], expected at least %u rows of %u", op,
                       what, t->cap_rows, t->n_cols, n, n_cols > 0 ? n_cols : t->n_cols);
    return RC_OK;
}

enum rc be_cuda_check_vec(const struct be_weight *w, const char *op, const char *what,
                          uint64_t n_cols, struct rc_err *err)
{
    if (!w)
        return rc_fail(err, RC_INVALID, "%s: %s is missing", op, what);
    if (!w->vec.p || w->n_cols != n_cols)
        return rc_fail_what(
            err, RC_INVALID, w->name, "%s: %s '%s' is [%llu,%llu]%s, expected a vector of %llu", op,
            what, w->name, (unsigned long long)w->n_rows, (unsigned long long)w->n_cols,
            w->vec.p ? "" : " (not loaded as a vector)", (unsigned long long)n_cols);
    return RC_OK;
}
