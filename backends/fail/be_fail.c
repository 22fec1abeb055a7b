/* be_fail.c - the fault-injecting backend, and the smallest example of one.
 *
 * A backend's context begins with struct be_ctx; its table has every operation.
 * This one owns a CPU context and hands calls on, objects unchanged, except those
 * the plan says must fail: they fail before the CPU backend sees them, so nothing
 * is half done. Never listed for users. Tests: tests/backends/test_be_fail.c
 */
#include "be_fail.h"

#include <stdlib.h>

struct fail_ctx {
    struct be_ctx base;
    struct be_ctx *cpu;
    struct be_fail_plan plan;
    uint64_t ops, allocs;
};

static struct fail_ctx *self(struct be_ctx *ctx)
{
    return (struct fail_ctx *)(void *)ctx;
}

static const struct fail_ctx *self_const(const struct be_ctx *ctx)
{
    return (const struct fail_ctx *)(const void *)ctx;
}

void be_fail_set(struct be_ctx *ctx, const struct be_fail_plan *plan)
{
    struct fail_ctx *f = self(ctx);

    f->plan = *plan;
    f->ops = f->allocs = 0;
}

void be_fail_counts(const struct be_ctx *ctx, uint64_t *out_ops, uint64_t *out_allocs)
{
    *out_ops = self_const(ctx)->ops;
    *out_allocs = self_const(ctx)->allocs;
}

static enum rc op_due(struct be_ctx *ctx, const char *op, struct rc_err *err)
{
    struct fail_ctx *f = self(ctx);
    uint64_t n = f->plan.n_op_fails ? f->plan.n_op_fails : 1;

    f->ops++;
    if (f->plan.op_at == 0 || f->ops < f->plan.op_at || f->ops - f->plan.op_at >= n)
        return RC_OK;
    return rc_fail(err, f->plan.op_rc != RC_OK ? f->plan.op_rc : RC_INTERNAL,
                   "injected fault: operation %llu, %s", (unsigned long long)f->ops, op);
}

static enum rc alloc_due(struct be_ctx *ctx, const char *what, struct rc_err *err)
{
    struct fail_ctx *f = self(ctx);

    f->allocs++;
    f->cpu->sealed = ctx->sealed;
    if (f->allocs != f->plan.alloc_at)
        return RC_OK;
    return rc_fail(err, RC_NOMEM, "injected fault: allocation %llu, %s",
                   (unsigned long long)f->allocs, what);
}

static void ctx_free(struct be_ctx **ctx)
{
    struct fail_ctx *f = self(*ctx);

    be_ctx_free(&f->cpu);
    free(f);
    *ctx = NULL;
}

static enum rc ctx_new(struct be_ctx **out, const struct be_opts *o, struct rc_err *err)
{
    struct fail_ctx *f = calloc(1, sizeof(*f));
    struct be_opts cpu = *o;
    enum rc rc;

    if (!f)
        return rc_fail(err, RC_NOMEM, "fail context: no memory");
    f->base.ops = &be_fail_ops;
    cpu.backend = "cpu";
    if ((rc = be_ctx_new(&f->cpu, &cpu, err)) != RC_OK) {
        free(f);
        return rc;
    }
    *out = &f->base;
    return RC_OK;
}

static void stats(const struct be_ctx *ctx, struct be_stats *out)
{
    be_ctx_stats(self_const(ctx)->cpu, out);
}

static bool refused(const struct fail_ctx *f, enum be_dtype t, unsigned use)
{
    return f->plan.refuse && t == f->plan.refuse_dtype && (use & f->plan.refuse_use);
}

static bool supports(const struct be_ctx *ctx, enum be_dtype t, unsigned use)
{
    const struct fail_ctx *f = self_const(ctx);

    return !refused(f, t, use) && be_supports(f->cpu, t, use);
}

static enum rc sync_(struct be_ctx *ctx, struct rc_err *err)
{
    enum rc rc = op_due(ctx, "sync", err);

    return rc != RC_OK ? rc : be_sync(self(ctx)->cpu, err);
}

static enum rc weight_new(struct be_ctx *ctx, const struct be_weight_desc *d,
                          struct be_weight **out, struct rc_err *err)
{
    enum rc rc;

    if (refused(self(ctx), d->dtype, d->use))
        return rc_fail_what(err, RC_UNSUPPORTED, d->name,
                            "tensor '%s': type %s refused by injected fault", d->name,
                            be_dtype_name((uint32_t)d->dtype));
    rc = alloc_due(ctx, d->name, err);
    return rc != RC_OK ? rc : be_weight_new(self(ctx)->cpu, d, out, err);
}

static void weight_free(struct be_ctx *ctx, struct be_weight **w)
{
    be_weight_free(self(ctx)->cpu, w);
}

static enum rc tensor_new(struct be_ctx *ctx, uint32_t cap_rows, uint32_t n_cols,
                          struct be_tensor **out, struct rc_err *err)
{
    enum rc rc = alloc_due(ctx, "tensor", err);

    return rc != RC_OK ? rc : be_tensor_new(self(ctx)->cpu, cap_rows, n_cols, out, err);
}

static void tensor_free(struct be_ctx *ctx, struct be_tensor **t)
{
    be_tensor_free(self(ctx)->cpu, t);
}

static enum rc tensor_write(struct be_ctx *ctx, struct be_tensor *t, uint32_t row, uint32_t n_rows,
                            const float *src, struct rc_err *err)
{
    enum rc rc = op_due(ctx, "tensor_write", err);

    return rc != RC_OK ? rc : be_tensor_write(self(ctx)->cpu, t, row, n_rows, src, err);
}

static enum rc tensor_read(struct be_ctx *ctx, const struct be_tensor *t, uint32_t row,
                           uint32_t n_rows, float *dst, struct rc_err *err)
{
    enum rc rc = op_due(ctx, "tensor_read", err);

    return rc != RC_OK ? rc : be_tensor_read(self(ctx)->cpu, t, row, n_rows, dst, err);
}

static const float *tensor_view(struct be_ctx *ctx, const struct be_tensor *t)
{
    return be_tensor_view(self(ctx)->cpu, t);
}

static enum rc kv_new(struct be_ctx *ctx, const struct be_kv_desc *d, struct be_kv **out,
                      struct rc_err *err)
{
    enum rc rc = alloc_due(ctx, "KV cache", err);

    return rc != RC_OK ? rc : be_kv_new(self(ctx)->cpu, d, out, err);
}

static void kv_free(struct be_ctx *ctx, struct be_kv **kv)
{
    be_kv_free(self(ctx)->cpu, kv);
}

#define OP(name)                                                                                  \
    static enum rc name(struct be_ctx *ctx, const struct be_##name##_args *a, struct rc_err *err) \
    {                                                                                             \
        enum rc rc = op_due(ctx, #name, err);                                                     \
                                                                                                  \
        return rc != RC_OK ? rc : be_##name(self(ctx)->cpu, a, err);                              \
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
OP(scale)
OP(pool)
OP(argmax)
OP(act)
OP(glu)
OP(affine)
OP(rope2d)
OP(unfold)
OP(conv1d)
OP(attention_local)
OP(attention_rel)
OP(spans)
#undef OP

static enum rc sample(struct be_ctx *ctx, const struct be_sample_args *a, struct rc_err *err)
{
    enum rc rc = op_due(ctx, "sample", err);

    return rc != RC_OK ? rc : be_fail_sample(a, err);
}

static void kstats(const struct be_ctx *ctx, struct be_kstats *out)
{
    *out = self_const(ctx)->plan.kstats;
}

const struct be_ops be_fail_ops = {
    .name = "fail",
    .ctx_new = ctx_new,
    .ctx_free = ctx_free,
    .stats = stats,
    .supports = supports,
    .sync = sync_,
    .weight_new = weight_new,
    .weight_free = weight_free,
    .tensor_new = tensor_new,
    .tensor_free = tensor_free,
    .tensor_write = tensor_write,
    .tensor_read = tensor_read,
    .tensor_view = tensor_view,
    .kv_new = kv_new,
    .kv_free = kv_free,
    .embed = embed,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .linear = linear,
    .rope = rope,
    .kv_write = kv_write,
    .attention = attention,
    .attention_packed = attention_packed,
    .gather = gather,
    .softcap = softcap,
    .scale = scale,
    .pool = pool,
    .argmax = argmax,
    .act = act,
    .glu = glu,
    .affine = affine,
    .rope2d = rope2d,
    .unfold = unfold,
    .conv1d = conv1d,
    .attention_local = attention_local,
    .attention_rel = attention_rel,
    .spans = spans,
    .sample = sample,
    .kstats = kstats,
};
