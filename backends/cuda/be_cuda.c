/* be_cuda.c - the CUDA backend's table, context and tensors.
 *
 * All that starts threads or opens files happens in ctx_new: the driver, the primary
 * context, the driver's PTX compiler (the rows library is loaded there), so that a sandbox
 * may close behind it. A sticky error of the device loses the context: from then on
 * every call fails with what happened, and only a new process helps.
 * Tests: tests/backends/test_be_cuda_*.c, on the emulated driver of tests/cuda_emu
 */
#include "be_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_kart.h"

/* CUdevice_attribute */
#define ATTR_SM_COUNT 16
#define ATTR_MAJOR 75
#define ATTR_MINOR 76

enum rc be_cuda_do(struct be_cuda_ctx *c, int code, const char *doing, struct rc_err *err)
{
    struct rc_err e = RC_ERR_INIT;
    enum rc rc;

    if (code == 0)
        return RC_OK;
    rc = be_cuda_check(c->d, code, doing, &e);
    if (be_cuda_sticky(code) && !c->lost) {
        c->lost = true;
        snprintf(c->lost_why, sizeof(c->lost_why), "%.250s", e.msg);
    }
    if (err)
        *err = e;
    return rc;
}

enum rc be_cuda_enter(struct be_cuda_ctx *c, struct rc_err *err)
{
    if (c->lost)
        return rc_fail_what(err, RC_INTERNAL, "device", "the device context is lost: %s",
                            c->lost_why);
    return be_cuda_do(c, c->d->ctx_set(c->cu), "making the context current", err);
}

static void ctx_free(struct be_ctx **ctx)
{
    struct be_cuda_ctx *c = be_cuda(*ctx);

    if (c->cu) {
        /* of a lost context every call below fails, and frees nothing there is */
        if (be_cuda_enter(c, NULL) == RC_OK)
            (void)c->d->stream_sync(c->stream);
        be_cuda_graphs_end(c);
        be_cuda_jit_free(c);
        be_cuda_load_end(c);
        be_cuda_stage_end(c);
        be_cuda_host_free(c, c->read);
        be_cuda_mod_end(c);
        be_cuda_mem_end(c);
        if (c->stream)
            (void)c->d->stream_free(c->stream);
        (void)c->d->primary_release(c->device);
    }
    be_cuda_list_end(c);
    free(c);
    *ctx = NULL;
}

static enum rc choose_device(struct be_cuda_ctx *c, int device, struct rc_err *err)
{
    int n = 0, dev = 0, major = 0, minor = 0, sms = 0;
    char name[64] = "";
    enum rc rc;

    if ((rc = be_cuda_do(c, c->d->device_count(&n), "counting devices", err)) != RC_OK)
        return rc;
    if (n == 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "device", "CUDA: there is no device");
    if (device < 0 || device >= n)
        return rc_fail_what(err, RC_NOT_FOUND, "device", "cuda has devices 0..%d, not %d", n - 1,
                            device);
    if ((rc = be_cuda_do(c, c->d->device_get(&dev, device), "opening the device", err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->device_name(name, sizeof(name), dev), "naming the device",
                         err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->device_mem(&c->device_total, dev), "asking the device", err)) !=
            RC_OK ||
        (rc = be_cuda_do(c, c->d->device_attr(&major, ATTR_MAJOR, dev), "asking the device",
                         err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->device_attr(&minor, ATTR_MINOR, dev), "asking the device",
                         err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->device_attr(&sms, ATTR_SM_COUNT, dev), "asking the device",
                         err)) != RC_OK)
        return rc;
    c->device = dev;
    c->arch = (uint32_t)(major * 10 + minor);
    c->n_sm = (uint32_t)sms;
    snprintf(c->device_name, sizeof(c->device_name), "%.32s (sm_%u, driver %d.%d)", name, c->arch,
             c->d->version / 1000, c->d->version % 1000 / 10);
    if (c->arch < 75)
        return rc_fail_what(err, RC_UNSUPPORTED, "device",
                            "%s is too old: sm_75 (Turing, 2018) or newer is expected",
                            c->device_name);
    return RC_OK;
}

static enum rc choose_compute(struct be_cuda_ctx *c, const char *want, struct rc_err *err)
{
    if (!want || strcmp(want, "exact_f32") == 0)
        return RC_OK;
    c->f16 = strcmp(want, "f16") == 0;
    c->tf32 = strcmp(want, "tf32") == 0;
    if (!c->f16 && !c->tf32)
        return rc_fail_what(err, RC_INVALID, "compute",
                            "compute '%s': expected exact_f32, tf32 or f16", want);
    return RC_OK;
}

static enum rc check_compute(const struct be_cuda_ctx *c, struct rc_err *err)
{
    if (c->tf32 && c->arch < 80)
        return rc_fail_what(
            err, RC_UNSUPPORTED, "compute",
            "compute 'tf32' needs sm_80 (Ampere, 2020) or newer, %s has no tf32: use "
            "exact_f32 or f16",
            c->device_name);
    return RC_OK;
}

/* Debugging: INFERD_CUDA_FUSE=0 keeps operations apart, INFERD_CUDA_GRAPHS=0 launches
 * kernel by kernel. Results have the same bits. */
static bool is_off(const char *name)
{
    const char *v = getenv(name);

    return v && strcmp(v, "0") == 0;
}

/* Launches of a list overlap on sm_90 and later, with a driver that captures such launches in
 * graphs (12.3). Debugging: INFERD_CUDA_OVERLAP=0 keeps them apart; results have the same bits. */
static bool can_overlap(const struct be_cuda_ctx *c)
{
    return !is_off("INFERD_CUDA_OVERLAP") && c->arch >= 90 && c->d->launch_ex &&
           c->d->version >= 12030;
}

static enum rc ctx_open(struct be_cuda_ctx *c, const struct be_opts *o, struct rc_err *err)
{
    struct be_cuda_drv *d = NULL;
    enum rc rc;

    if ((rc = choose_compute(c, o->compute, err)) != RC_OK ||
        (rc = be_cuda_drv_open(&d, err)) != RC_OK)
        return rc;
    c->d = d;
    if ((rc = choose_device(c, o->device, err)) != RC_OK || (rc = check_compute(c, err)) != RC_OK)
        return rc;
    c->overlap = can_overlap(c);
    if ((rc = be_cuda_do(c, d->primary_retain(&c->cu, c->device), "opening the context", err)) !=
            RC_OK ||
        (rc = be_cuda_enter(c, err)) != RC_OK ||
        (rc = be_cuda_do(c, d->stream_new(&c->stream, 1), "making a stream", err)) != RC_OK ||
        (rc = be_kart_verify(err)) != RC_OK || (rc = be_cuda_mod_init(c, err)) != RC_OK ||
        (rc = be_cuda_list_init(c, err)) != RC_OK || (rc = be_cuda_graphs_init(c, err)) != RC_OK ||
        (rc = be_cuda_stage_init(c, err)) != RC_OK ||
        (rc = be_cuda_host_alloc(c, BE_CUDA_READ, &c->read, "results", err)) != RC_OK)
        return rc;
    if ((rc = be_cuda_pick_init(c, err)) != RC_OK)
        return rc;
    return be_cuda_jit_new(c, o, err);
}

static enum rc ctx_new(struct be_ctx **out, const struct be_opts *o, struct rc_err *err)
{
    struct be_cuda_ctx *c = calloc(1, sizeof(*c));
    struct be_ctx *base;
    enum rc rc;

    if (!c)
        return rc_fail(err, RC_NOMEM, "cuda context: no memory");
    base = &c->base;
    c->base.ops = &be_cuda_ops;
    c->workspace_limit = o->workspace_bytes;
    c->no_fuse = is_off("INFERD_CUDA_FUSE");
    c->no_graphs = is_off("INFERD_CUDA_GRAPHS");
    if ((rc = ctx_open(c, o, err)) == RC_OK)
        *out = base;
    else
        ctx_free(&base);
    return rc;
}

static void seal(struct be_ctx *ctx)
{
    struct be_cuda_ctx *c = be_cuda(ctx);

    be_cuda_jit_seal(c);
    be_cuda_load_end(c);
}

static void stats(const struct be_ctx *ctx, struct be_stats *out)
{
    const struct be_cuda_ctx *c = (const struct be_cuda_ctx *)(const void *)ctx;

    *out = (struct be_stats){
        .weight_bytes = c->mem[BE_CUDA_WEIGHT],
        .kv_bytes = c->mem[BE_CUDA_KV],
        .workspace_bytes = c->mem[BE_CUDA_WORK],
        .hot_allocs = c->hot_allocs,
        .ops = c->ops,
        .n_threads = 1,
        .device_bytes = c->device_bytes,
        .device_total_bytes = c->device_total,
    };
    snprintf(out->kernels, sizeof(out->kernels), "sm_%u", c->arch);
    snprintf(out->f32_gemm, sizeof(out->f32_gemm), "%s",
             c->f16    ? "f16"
             : c->tf32 ? "tf32"
                       : "exact_f32");
    snprintf(out->device, sizeof(out->device), "%s", c->device_name);
}

static char *report(const struct be_ctx *ctx)
{
    return be_cuda_jit_report((const struct be_cuda_ctx *)(const void *)ctx);
}

static void kstats(const struct be_ctx *ctx, struct be_kstats *out)
{
    const struct be_cuda_ctx *c = (const struct be_cuda_ctx *)(const void *)ctx;

    *out = c->ks;
    be_cuda_jit_stats(c, out);
}

static enum rc sync(struct be_ctx *ctx, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    enum rc rc = be_cuda_flush(c, err);

    return rc == RC_OK ? be_cuda_wait(c, err) : rc;
}

/* ------------------------------------------------------------------- tensors */

static enum rc tensor_new(struct be_ctx *ctx, uint32_t cap_rows, uint32_t n_cols,
                          struct be_tensor **out, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct be_tensor *t = NULL;
    uint64_t n_bytes;
    enum rc rc;

    if (cap_rows == 0 || n_cols == 0)
        return rc_fail(err, RC_INVALID, "tensor of shape [%u,%u]: expected at least [1,1]",
                       cap_rows, n_cols);
    if (__builtin_mul_overflow((uint64_t)cap_rows * sizeof(float), (uint64_t)n_cols, &n_bytes))
        return rc_fail(err, RC_INVALID, "tensor of shape [%u,%u] is too large", cap_rows, n_cols);
    if (!(t = calloc(1, sizeof(*t))))
        return rc_fail(err, RC_NOMEM, "tensor: no memory");
    t->cap_rows = cap_rows;
    t->n_cols = n_cols;
    if ((rc = be_cuda_alloc(c, BE_CUDA_WORK, n_bytes, &t->mem, "tensor", err)) != RC_OK ||
        (rc = be_cuda_do(c, c->d->memset8(t->mem.p, 0, n_bytes, c->stream), "clearing a tensor",
                         err)) != RC_OK ||
        (rc = be_cuda_act_reserve(c, cap_rows, n_cols, err)) != RC_OK)
        goto out;
    *out = t;
    t = NULL;
out:
    if (t) {
        be_cuda_free(c, BE_CUDA_WORK, &t->mem);
        free(t);
    }
    return rc;
}

static void tensor_free(struct be_ctx *ctx, struct be_tensor **t)
{
    struct be_cuda_ctx *c = be_cuda(ctx);

    be_cuda_settle(c);
    be_cuda_free(c, BE_CUDA_WORK, &(*t)->mem);
    free(*t);
    *t = NULL;
}

/* Device memory is not the host's to look at. */
static const float *tensor_view(struct be_ctx *ctx, const struct be_tensor *t)
{
    return NULL;
}

const struct be_ops be_cuda_ops = {
    .name = "cuda",
    .ctx_new = ctx_new,
    .ctx_free = ctx_free,
    .seal = seal,
    .report = report,
    .stats = stats,
    .kstats = kstats,
    .supports = be_cuda_supports,
    .sync = sync,
    .weight_new = be_cuda_weight_new,
    .weight_free = be_cuda_weight_free,
    .tensor_new = tensor_new,
    .tensor_free = tensor_free,
    .tensor_write = be_cuda_tensor_write,
    .tensor_read = be_cuda_tensor_read,
    .tensor_view = tensor_view,
    .kv_new = be_cuda_kv_new,
    .kv_free = be_cuda_kv_free,
    .embed = be_cuda_embed,
    .rms_norm = be_cuda_rms_norm,
    .layer_norm = be_cuda_layer_norm,
    .linear = be_cuda_linear,
    .rope = be_cuda_rope,
    .kv_write = be_cuda_kv_write,
    .attention = be_cuda_attention,
    .attention_packed = be_cuda_attention_packed,
    .attention_rel = be_cuda_attention_rel,
    .gather = be_cuda_gather,
    .softcap = be_cuda_softcap,
    .scale = be_cuda_scale,
    .pool = be_cuda_pool,
    .argmax = be_cuda_argmax,
    .sample = be_cuda_sample,
};
