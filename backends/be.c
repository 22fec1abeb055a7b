/* be.c - which backends are in this build, and the step from be.h to one of them.
 *
 * Knows the list of tables and nothing of any device. Arguments are checked by
 * the backend, which knows its tensors. "fail" (fail/be_fail.c) is left out of
 * be_names: it is for tests. Tests: tests/backends/test_be_dtype.c
 */
#include "be.h"

#include <string.h>

#include "be_impl.h"
#include "fail/be_fail.h"

static const struct be_ops *const backends[] = {&be_cpu_ops, &be_cuda_ops, NULL};
static const char *const names[] = {"cpu", "cuda", NULL};

const char *const *be_names(void)
{
    return names;
}

static void list_names(char *buf, size_t size)
{
    size_t len = 0;

    buf[0] = '\0';
    for (size_t i = 0; names[i] && len + strlen(names[i]) + 3 < size; i++) {
        if (i > 0) {
            memcpy(buf + len, ", ", 3);
            len += 2;
        }
        memcpy(buf + len, names[i], strlen(names[i]) + 1);
        len += strlen(names[i]);
    }
}

enum rc be_ctx_new(struct be_ctx **out, const struct be_opts *o, struct rc_err *err)
{
    char have[128];

    if (o->backend && strcmp(o->backend, be_fail_ops.name) == 0)
        return be_fail_ops.ctx_new(out, o, err);
    for (size_t i = 0; backends[i]; i++)
        if (o->backend && strcmp(o->backend, backends[i]->name) == 0)
            return backends[i]->ctx_new(out, o, err);
    list_names(have, sizeof(have));
    return rc_fail_what(err, RC_NOT_FOUND, "backend", "unknown backend '%s': this build has %s",
                        o->backend ? o->backend : "", have);
}

void be_ctx_free(struct be_ctx **ctx)
{
    if (ctx && *ctx)
        (*ctx)->ops->ctx_free(ctx);
}

void be_ctx_seal(struct be_ctx *ctx)
{
    if (ctx->ops->seal)
        ctx->ops->seal(ctx);
    ctx->sealed = true;
}

const char *be_ctx_backend(const struct be_ctx *ctx)
{
    return ctx->ops->name;
}

void be_ctx_stats(const struct be_ctx *ctx, struct be_stats *out)
{
    ctx->ops->stats(ctx, out);
}

uint64_t be_ctx_moved(const struct be_ctx *ctx)
{
    return __atomic_load_n(&ctx->moved, __ATOMIC_RELAXED);
}

/* One thread writes: no read-modify-write is needed, only a store that is not torn. */
static struct be_ctx *moving(struct be_ctx *ctx)
{
    __atomic_store_n(&ctx->moved, ctx->moved + 1, __ATOMIC_RELAXED);
    return ctx;
}

void be_ctx_kstats(const struct be_ctx *ctx, struct be_kstats *out)
{
    memset(out, 0, sizeof(*out));
    if (ctx->ops->kstats)
        ctx->ops->kstats(ctx, out);
}

char *be_ctx_report(const struct be_ctx *ctx)
{
    return ctx->ops->report ? ctx->ops->report(ctx) : NULL;
}

const char *be_kroute_name(enum be_kroute_kind k)
{
    static const char *const words[BE_KROUTE_COUNT] = {"jit",     "exact", "bucket",
                                                       "library", "hand",  "reference"};

    return (unsigned)k < BE_KROUTE_COUNT ? words[k] : "unknown";
}

bool be_can_sample(const struct be_ctx *ctx)
{
    return ctx->ops->sample != NULL;
}

bool be_can_towers(const struct be_ctx *ctx)
{
    return ctx->ops->attention_local && ctx->ops->scale;
}

enum rc be_sample(struct be_ctx *ctx, const struct be_sample_args *a, struct rc_err *err)
{
    if (!ctx->ops->sample)
        return rc_fail(err, RC_UNSUPPORTED, "backend '%s' does not sample", ctx->ops->name);
    return ctx->ops->sample(moving(ctx), a, err);
}

enum rc be_sync(struct be_ctx *ctx, struct rc_err *err)
{
    return ctx->ops->sync ? ctx->ops->sync(moving(ctx), err) : RC_OK;
}

enum rc be_weight_new(struct be_ctx *ctx, const struct be_weight_desc *d, struct be_weight **out,
                      struct rc_err *err)
{
    return ctx->ops->weight_new(moving(ctx), d, out, err);
}

void be_weight_free(struct be_ctx *ctx, struct be_weight **w)
{
    if (w && *w)
        ctx->ops->weight_free(ctx, w);
}

bool be_supports(const struct be_ctx *ctx, enum be_dtype t, unsigned use)
{
    return ctx->ops->supports(ctx, t, use);
}

enum rc be_tensor_new(struct be_ctx *ctx, uint32_t cap_rows, uint32_t n_cols,
                      struct be_tensor **out, struct rc_err *err)
{
    return ctx->ops->tensor_new(ctx, cap_rows, n_cols, out, err);
}

void be_tensor_free(struct be_ctx *ctx, struct be_tensor **t)
{
    if (t && *t)
        ctx->ops->tensor_free(ctx, t);
}

enum rc be_tensor_write(struct be_ctx *ctx, struct be_tensor *t, uint32_t row, uint32_t n_rows,
                        const float *src, struct rc_err *err)
{
    return ctx->ops->tensor_write(moving(ctx), t, row, n_rows, src, err);
}

enum rc be_tensor_read(struct be_ctx *ctx, const struct be_tensor *t, uint32_t row, uint32_t n_rows,
                       float *dst, struct rc_err *err)
{
    return ctx->ops->tensor_read(moving(ctx), t, row, n_rows, dst, err);
}

const float *be_tensor_view(struct be_ctx *ctx, const struct be_tensor *t)
{
    return ctx->ops->tensor_view(ctx, t);
}

enum rc be_kv_new(struct be_ctx *ctx, const struct be_kv_desc *d, struct be_kv **out,
                  struct rc_err *err)
{
    return ctx->ops->kv_new(ctx, d, out, err);
}

void be_kv_free(struct be_ctx *ctx, struct be_kv **kv)
{
    if (kv && *kv)
        ctx->ops->kv_free(ctx, kv);
}

uint64_t be_kv_page_bytes(const struct be_kv_desc *d, uint32_t cls)
{
    uint64_t sum = 0;
    /* bytes of 32 values; Q8_0 keeps a half scale for them */
    uint64_t elem32 = d->dtype == BE_F16    ? 64
                      : d->dtype == BE_F32  ? 128
                      : d->dtype == BE_Q8_0 ? 34
                                            : 0;

    if (cls >= d->n_classes || d->n_classes > BE_KV_CLASSES || !d->layers)
        return 0;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        uint64_t n;

        if (d->layers[i].cls != cls)
            continue;
        if (__builtin_mul_overflow((uint64_t)d->layers[i].n_kv_heads,
                                   (uint64_t)d->layers[i].head_dim, &n) ||
            __builtin_mul_overflow(n, (uint64_t)d->page_tokens * 2 * elem32, &n) ||
            __builtin_add_overflow(sum, n / 32, &sum))
            return 0;
    }
    return sum;
}

/* One line per operation: the table has them all, so there is no default. */
#define OP(name)                                                                                \
    enum rc be_##name(struct be_ctx *ctx, const struct be_##name##_args *a, struct rc_err *err) \
    {                                                                                           \
        return ctx->ops->name(moving(ctx), a, err);                                             \
    }
OP(embed)
OP(rms_norm)
OP(layer_norm)
OP(linear)
OP(rope)
OP(kv_write)
OP(attention)
OP(attention_packed)
OP(gather)
OP(softcap)
OP(pool)
OP(argmax)
#undef OP

/* And those that a backend may lack. */
#define OP(op)                                                                              \
    enum rc be_##op(struct be_ctx *ctx, const struct be_##op##_args *a, struct rc_err *err) \
    {                                                                                       \
        if (!ctx->ops->op)                                                                  \
            return rc_fail(err, RC_UNSUPPORTED, "backend '%s' has no operation '" #op "'",  \
                           ctx->ops->name);                                                 \
        return ctx->ops->op(moving(ctx), a, err);                                           \
    }
OP(scale)
OP(act)
OP(glu)
OP(affine)
OP(rope2d)
OP(unfold)
OP(conv1d)
OP(attention_local)
OP(attention_rel)
#undef OP
