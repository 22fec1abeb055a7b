/* be_cuda_kv.c - the paged key/value cache on the device.
 *
 * One region per class; a page holds, layer after layer, the keys and then the values
 * of page_tokens positions, head by head (kx_kv in be_kargs.h has the addresses; Q8_0 keeps its
 * scales behind the codes of the layer's keys, and again of its values).
 * Tests: tests/backends/test_be_cuda_attn.c
 */
#include "be_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum rc check_desc(const struct be_kv_desc *d, struct rc_err *err)
{
    if (d->dtype != BE_F16 && d->dtype != BE_F32 && d->dtype != BE_Q8_0)
        return rc_fail(err, RC_UNSUPPORTED, "KV cache of %s: expected F16, F32 or Q8_0",
                       be_dtype_name((uint32_t)d->dtype));
    if (d->page_tokens < 16 || d->page_tokens > 256 || (d->page_tokens & (d->page_tokens - 1)))
        return rc_fail(err, RC_INVALID, "page_tokens %u: expected a power of 2 in 16..256",
                       d->page_tokens);
    if (d->n_classes < 1 || d->n_classes > BE_KV_CLASSES || d->n_layers < 1 || d->n_layers > 4096)
        return rc_fail(err, RC_INVALID, "KV cache of %u layers in %u classes", d->n_layers,
                       d->n_classes);
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const struct be_kv_layer *l = &d->layers[i];

        /* widths of at most 2^20 keep every later product inside 64 bits */
        if (l->cls >= d->n_classes || l->n_kv_heads < 1 || l->head_dim < 1 ||
            (uint64_t)l->n_kv_heads * l->head_dim > 1u << 20)
            return rc_fail(err, RC_INVALID, "KV layer %u: class %u, %u heads of %u", i, l->cls,
                           l->n_kv_heads, l->head_dim);
        if (d->dtype == BE_Q8_0 && l->head_dim % 32 != 0)
            return rc_fail(err, RC_UNSUPPORTED,
                           "KV layer %u: heads of %u in Q8_0, expected a multiple of 32", i,
                           l->head_dim);
    }
    for (uint32_t c = 0; c < d->n_classes; c++)
        if (d->n_pages[c] > INT32_MAX)
            return rc_fail(err, RC_INVALID, "KV class %u: %u pages", c, d->n_pages[c]);
    return RC_OK;
}

/* The kernels of one layer; how many heads of queries share its keys is not known yet. */
static enum rc load_kernels(struct be_cuda_ctx *c, enum be_dtype dtype, uint32_t i,
                            struct be_cuda_layer *l, struct rc_err *err)
{
    struct be_kplan_req r = {.op = BE_KOP_ATTN,
                             .kv_dtype = dtype,
                             .head_dim = l->head_dim,
                             .kv_heads = l->n_kv_heads,
                             .open = true};
    enum rc rc;

    if ((rc = be_cuda_fn_plan(c, &r, &l->pass, err)) != RC_OK)
        goto out;
    r.split = true;
    if ((rc = be_cuda_fn_plan(c, &r, &l->split, err)) != RC_OK)
        goto out;
    r = (struct be_kplan_req){.op = BE_KOP_ATTN_MERGE, .head_dim = l->head_dim, .open = true};
    rc = be_cuda_fn_plan(c, &r, &c->merge, err);
out:
    if (rc != RC_OK)
        rc_wrap(err, "KV layer %u", i);
    return rc;
}

static void layout(struct be_kv *kv, const struct be_kv_desc *d, uint64_t end[BE_KV_CLASSES])
{
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const struct be_kv_layer *l = &d->layers[i];
        uint64_t values = (uint64_t)l->n_kv_heads * l->head_dim * d->page_tokens, bytes;
        struct be_cuda_layer *o = &kv->layers[i];

        bytes = d->dtype == BE_F32   ? values * 4
                : d->dtype == BE_F16 ? values * 2
                                     : values + values / 32 * 2;
        *o = (struct be_cuda_layer){.cls = l->cls,
                                    .n_kv_heads = l->n_kv_heads,
                                    .head_dim = l->head_dim,
                                    .scales_at = d->dtype == BE_Q8_0 ? (uint32_t)values : 0,
                                    .k_off = end[l->cls],
                                    .v_off = end[l->cls] + bytes};
        end[l->cls] += 2 * bytes;
    }
}

enum rc be_cuda_kv_new(struct be_ctx *ctx, const struct be_kv_desc *d, struct be_kv **out,
                       struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    uint64_t end[BE_KV_CLASSES] = {0};
    struct be_kv *kv;
    enum rc rc;

    if ((rc = check_desc(d, err)) != RC_OK)
        return rc;
    if (!(kv = calloc(1, sizeof(*kv))) ||
        !(kv->layers = calloc(d->n_layers, sizeof(*kv->layers)))) {
        rc = rc_fail(err, RC_NOMEM, "KV cache: no memory for %u layers", d->n_layers);
        goto out;
    }
    kv->n_layers = d->n_layers;
    kv->n_classes = d->n_classes;
    kv->page_tokens = d->page_tokens;
    kv->page_shift = (uint32_t)__builtin_ctz(d->page_tokens);
    kv->dtype = d->dtype;
    layout(kv, d, end);
    for (uint32_t i = 0; i < d->n_layers; i++)
        if ((rc = load_kernels(c, d->dtype, i, &kv->layers[i], err)) != RC_OK)
            goto out;
    for (uint32_t i = 0; i < d->n_classes; i++) {
        uint64_t n_bytes;

        kv->n_pages[i] = d->n_pages[i];
        kv->page_bytes[i] = be_kv_page_bytes(d, i);
        if (__builtin_mul_overflow(kv->page_bytes[i], (uint64_t)d->n_pages[i], &n_bytes) ||
            kv->page_bytes[i] != end[i]) {
            rc = rc_fail(err, RC_NOMEM, "KV class %u: %u pages do not fit any memory", i,
                         d->n_pages[i]);
            goto out;
        }
        if (n_bytes == 0)
            continue;
        if ((rc = be_cuda_alloc(c, BE_CUDA_KV, n_bytes, &kv->base[i], "KV cache", err)) != RC_OK)
            goto out;
        /* what was never written is masked, yet read: it must not be NaN */
        if ((rc = be_cuda_do(c, c->d->memset8(kv->base[i].p, 0, n_bytes, c->stream),
                             "clearing the KV cache", err)) != RC_OK)
            goto out;
    }
    if ((rc = be_cuda_wait(c, err)) != RC_OK)
        goto out;
    *out = kv;
    kv = NULL;
out:
    if (kv)
        be_cuda_kv_free(ctx, &kv);
    return rc;
}

void be_cuda_kv_free(struct be_ctx *ctx, struct be_kv **kvp)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct be_kv *kv = *kvp;

    be_cuda_settle(c);
    for (uint32_t i = 0; i < BE_KV_CLASSES; i++)
        be_cuda_free(c, BE_CUDA_KV, &kv->base[i]);
    free(kv->layers);
    free(kv);
    *kvp = NULL;
}

struct kx_kv be_cuda_kv_args(const struct be_kv *kv, const struct be_cuda_layer *l)
{
    return (struct kx_kv){
        .k = kv->base[l->cls].p + l->k_off,
        .v = kv->base[l->cls].p + l->v_off,
        .page_stride = kv->page_bytes[l->cls],
        .scales_at = l->scales_at,
        .dtype = (kx_u)kv->dtype,
        .page_tokens = kv->page_tokens,
        .n_kv_heads = l->n_kv_heads,
        .head_dim = l->head_dim,
    };
}
