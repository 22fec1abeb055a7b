/* be_cpu.c - the CPU backend's table, context and tensors.
 *
 * Chooses the level of kernels at run time and owns the pool and scratch. Scratch
 * grows only when a tensor is made (its rows may have to be quantized), so ops
 * allocate nothing. Tests: tests/backends/test_be_cpu_*.c
 */
#include "be_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_cpu_blas.h"

/* best first */
static const struct be_cpu_kern *const levels[] = {
#if defined(__x86_64__)
    &be_cpu_kern_avx512,
    &be_cpu_kern_avx2,
#endif
    &be_cpu_kern_c,
    NULL,
};

static enum rc choose_level(const char *want, const struct be_cpu_kern **out, struct rc_err *err)
{
    bool any = !want || strcmp(want, "auto") == 0;

    for (size_t i = 0; levels[i]; i++) {
        if (!any && strcmp(want, levels[i]->name) != 0)
            continue;
        if (be_cpu_has(levels[i]->name)) {
            *out = levels[i];
            return RC_OK;
        }
        if (!any)
            return rc_fail_what(err, RC_UNSUPPORTED, "cpu_level",
                                "cpu_level '%s': this processor lacks it", want);
    }
    return rc_fail_what(err, RC_UNSUPPORTED, "cpu_level",
                        "cpu_level '%s' is not in this build: expected auto, c, avx2 or avx512",
                        want);
}

static void ctx_free(struct be_ctx **ctx)
{
    struct be_cpu_ctx *c = be_cpu(*ctx);

    be_cpu_pool_free(&c->pool);
    be_cpu_free(c, BE_CPU_MEM_WORK, c->scratch, c->scratch_bytes);
    be_cpu_free(c, BE_CPU_MEM_WORK, c->parts, c->parts ? BE_CPU_PARTS : 0);
    be_cpu_free(c, BE_CPU_MEM_WORK, c->act, c->act_bytes);
    free(c);
    *ctx = NULL;
}

static enum rc ctx_new(struct be_ctx **out, const struct be_opts *o, struct rc_err *err)
{
    struct be_cpu_ctx *c;
    struct be_ctx *base;
    bool spin;
    enum rc rc;

    if (o->device != 0)
        return rc_fail_what(err, RC_NOT_FOUND, "device", "cpu has device 0 only, not %d",
                            o->device);
    if (o->n_threads > BE_CPU_MAX_THREADS)
        return rc_fail_what(err, RC_INVALID, "n_threads", "n_threads %u: expected at most %d",
                            o->n_threads, BE_CPU_MAX_THREADS);
    c = calloc(1, sizeof(*c));
    if (!c)
        return rc_fail(err, RC_NOMEM, "cpu context: no memory");
    c->base.ops = &be_cpu_ops;
    c->workspace_limit = o->workspace_bytes;
    base = &c->base;
    if ((rc = choose_level(o->cpu_level, &c->kern, err)) != RC_OK)
        goto out;
    c->n_threads = be_host_threads(o->n_threads, &spin);
    spin = spin && !o->no_spin;
    if ((rc = be_cpu_blas_choose(c, o->f32_gemm, err)) != RC_OK)
        goto out;
    c->scratch_bytes = (size_t)c->n_threads * BE_CPU_SCRATCH;
    if ((rc = be_cpu_alloc(c, BE_CPU_MEM_WORK, c->scratch_bytes, &c->scratch,
                           "scratch of the threads", err)) != RC_OK)
        goto out;
    if (c->n_threads > 1 && c->kern->attn_merge &&
        (rc = be_cpu_alloc(c, BE_CPU_MEM_WORK, BE_CPU_PARTS, &c->parts, "sums of split attention",
                           err)) != RC_OK)
        goto out;
    if ((rc = be_cpu_pool_new(&c->pool, c->n_threads, spin, err)) != RC_OK)
        goto out;
    *out = &c->base;
    base = NULL;
out:
    if (base)
        ctx_free(&base);
    return rc;
}

static void stats(const struct be_ctx *ctx, struct be_stats *out)
{
    const struct be_cpu_ctx *c = (const struct be_cpu_ctx *)(const void *)ctx;

    *out = (struct be_stats){
        .weight_bytes = c->mem[BE_CPU_MEM_WEIGHT],
        .kv_bytes = c->mem[BE_CPU_MEM_KV],
        .workspace_bytes = c->mem[BE_CPU_MEM_WORK],
        .hot_allocs = c->hot_allocs,
        .ops = c->ops,
        .n_threads = c->n_threads,
    };
    snprintf(out->kernels, sizeof(out->kernels), "%s", c->kern->name);
    snprintf(out->f32_gemm, sizeof(out->f32_gemm), "%s", c->f32_gemm);
}

/* ------------------------------------------------------------------- tensors */

/* Grows the shared buffer of quantized rows to what this shape may need. */
static enum rc act_reserve(struct be_cpu_ctx *c, uint64_t n_bytes, struct rc_err *err)
{
    uint64_t old = c->act_bytes;
    uint8_t *p = NULL;
    enum rc rc;

    if (n_bytes <= old)
        return RC_OK;
    /* The old block goes first: the bound is on what is held, not on the sum. If
     * the larger one cannot be had, the old size is taken again, so that what
     * exists keeps working. */
    be_cpu_free(c, BE_CPU_MEM_WORK, c->act, c->act_bytes);
    rc = be_cpu_alloc(c, BE_CPU_MEM_WORK, n_bytes, &p, "scratch for quantized rows", err);
    if (rc != RC_OK) {
        n_bytes = old;
        if (old == 0 || be_cpu_alloc(c, BE_CPU_MEM_WORK, old, &p, "", NULL) != RC_OK)
            n_bytes = 0;
    }
    c->act = p;
    c->act_bytes = (size_t)n_bytes;
    return rc;
}

static enum rc tensor_new(struct be_ctx *ctx, uint32_t cap_rows, uint32_t n_cols,
                          struct be_tensor **out, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct be_tensor *t = NULL;
    uint64_t n_bytes;
    enum rc rc;

    if (cap_rows == 0 || n_cols == 0)
        return rc_fail(err, RC_INVALID, "tensor of shape [%u,%u]: expected at least [1,1]",
                       cap_rows, n_cols);
    if (__builtin_mul_overflow((uint64_t)cap_rows * sizeof(float), (uint64_t)n_cols, &n_bytes))
        return rc_fail(err, RC_INVALID, "tensor of shape [%u,%u] is too large", cap_rows, n_cols);
    if ((rc = be_cpu_alloc(c, BE_CPU_MEM_WORK, sizeof(*t), &t, "tensor", err)) != RC_OK)
        return rc;
    t->cap_rows = cap_rows;
    t->n_cols = n_cols;
    t->n_bytes = (size_t)n_bytes;
    if ((rc = be_cpu_alloc(c, BE_CPU_MEM_WORK, n_bytes, &t->data, "tensor", err)) != RC_OK)
        goto out;
    if ((rc = act_reserve(c, be_cpu_act_bytes(cap_rows, n_cols), err)) != RC_OK)
        goto out;
    *out = t;
    t = NULL;
out:
    if (t) {
        be_cpu_free(c, BE_CPU_MEM_WORK, t->data, t->n_bytes);
        be_cpu_free(c, BE_CPU_MEM_WORK, t, sizeof(*t));
    }
    return rc;
}

static void tensor_free(struct be_ctx *ctx, struct be_tensor **t)
{
    struct be_cpu_ctx *c = be_cpu(ctx);

    be_cpu_free(c, BE_CPU_MEM_WORK, (*t)->data, (*t)->n_bytes);
    be_cpu_free(c, BE_CPU_MEM_WORK, *t, sizeof(**t));
    *t = NULL;
}

static enum rc check_rows(const struct be_tensor *t, uint32_t row, uint32_t n_rows,
                          struct rc_err *err)
{
    if (row > t->cap_rows || n_rows > t->cap_rows - row)
        return rc_fail(err, RC_INVALID, "rows %u..%llu of a tensor with %u rows", row,
                       (unsigned long long)row + n_rows, t->cap_rows);
    return RC_OK;
}

static enum rc tensor_write(struct be_ctx *ctx, struct be_tensor *t, uint32_t row, uint32_t n_rows,
                            const float *src, struct rc_err *err)
{
    enum rc rc = check_rows(t, row, n_rows, err);

    if (rc == RC_OK && n_rows > 0)
        memcpy(t->data + (size_t)row * t->n_cols, src, (size_t)n_rows * t->n_cols * sizeof(float));
    return rc;
}

static enum rc tensor_read(struct be_ctx *ctx, const struct be_tensor *t, uint32_t row,
                           uint32_t n_rows, float *dst, struct rc_err *err)
{
    enum rc rc = check_rows(t, row, n_rows, err);

    if (rc == RC_OK && n_rows > 0)
        memcpy(dst, t->data + (size_t)row * t->n_cols, (size_t)n_rows * t->n_cols * sizeof(float));
    return rc;
}

static const float *tensor_view(struct be_ctx *ctx, const struct be_tensor *t)
{
    return t->data;
}

const struct be_ops be_cpu_ops = {
    .name = "cpu",
    .ctx_new = ctx_new,
    .ctx_free = ctx_free,
    .stats = stats,
    .supports = be_cpu_supports,
    .weight_new = be_cpu_weight_new,
    .weight_free = be_cpu_weight_free,
    .tensor_new = tensor_new,
    .tensor_free = tensor_free,
    .tensor_write = tensor_write,
    .tensor_read = tensor_read,
    .tensor_view = tensor_view,
    .kv_new = be_cpu_kv_new,
    .kv_free = be_cpu_kv_free,
    .embed = be_cpu_embed,
    .rms_norm = be_cpu_rms_norm,
    .layer_norm = be_cpu_layer_norm,
    .linear = be_cpu_linear,
    .rope = be_cpu_rope_op,
    .kv_write = be_cpu_kv_write,
    .attention = be_cpu_attention,
    .attention_packed = be_cpu_attention_packed,
    .spans = be_cpu_spans,
    .gather = be_cpu_gather,
    .softcap = be_cpu_softcap,
    .scale = be_cpu_scale,
    .pool = be_cpu_pool_op,
    .argmax = be_cpu_argmax,
    .act = be_cpu_act,
    .glu = be_cpu_glu,
    .affine = be_cpu_affine,
    .rope2d = be_cpu_rope2d,
    .unfold = be_cpu_unfold,
    .conv1d = be_cpu_conv1d,
    .attention_local = be_cpu_attention_local,
    .attention_rel = be_cpu_attention_rel,
};
