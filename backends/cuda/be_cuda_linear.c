/* be_cuda_linear.c - be_linear on the device: out = epi(x W^T + b), up to three parts.
 *
 * Parts of one weight format are one launch. Which kernel is planned when the weight is loaded
 * (be_kplan.h), one for each class of rows (1, 2-8, 9-64, 65 and more); all give the same bits. For
 * quantized weights x is made int8 once, by the norm that wrote it when that norm is in this list,
 * and again only after x has changed. Tests: tests/backends/test_be_cuda_linear.c
 */
#include "be_cuda.h"

#include <string.h>

#define OWN_COLS 2048u /* measured: docs/performance.md */
#define MAX_CMDS 8u    /* quantize, and one launch per part */

/* Which int8 form a format multiplies; -1: floats. */
static int enc_of(enum be_dtype t)
{
    return be_dtype_block(t) == 32    ? (int)KX_ENC_Q8_0
           : be_dtype_block(t) == 256 ? (int)KX_ENC_Q8_K
                                      : -1;
}

/* compute = f16 keeps activations in f16, but for what is added to and for rows as wide as a
 * vocabulary: those are logits. */
static uint32_t out_type(const struct be_cuda_ctx *c, const struct be_tensor *out, enum be_epi epi)
{
    if (epi == BE_EPI_ADD)
        return out->type;
    return c->f16 && out->n_cols <= BE_CUDA_F16_COLS ? KX_F16 : KX_F32;
}

/* Every row class, alone and as a gated pair. Numerics other than exact have other bits: which of
 * them serves depends on the type of x and weight alone, never on the number of rows; the planner
 * has them for all classes of a weight or for none. */
enum rc be_cuda_linear_load(struct be_cuda_ctx *c, struct be_weight *w, struct rc_err *err)
{
    int enc = enc_of(w->stored);
    struct be_kplan_req r = {
        .op = BE_KOP_LINEAR, .wfmt = w->stored, .k = (uint32_t)w->n_cols, .n = (uint32_t)w->n_rows};

    for (int i = 0; i < BE_KNUM_COUNT * BE_KCLASS_COUNT * 2; i++) {
        int glu = i % 2, cls = i / 2 % BE_KCLASS_COUNT;
        struct be_cuda_fn *f = NULL;
        enum rc rc;

        r.numerics = (enum be_knum)(i / 2 / BE_KCLASS_COUNT);
        r.epi = glu ? BE_EPI_GEGLU : BE_EPI_NONE;
        r.rows = be_kplan_class_rows((enum be_kclass)cls);
        if ((r.numerics == BE_KNUM_FAST && !c->f16) || (r.numerics == BE_KNUM_TF32 && !c->tf32))
            continue;
        if ((rc = be_cuda_fn_plan(c, &r, &f, err)) != RC_OK) {
            rc_wrap(err, "tensor '%s'", w->name);
            return rc;
        }
        if (f->e->desc.numerics == r.numerics)
            w->lin[r.numerics][cls][glu] = f;
    }
    if (enc >= 0 && !c->act[enc].wanted) {
        c->act[enc].wanted = true;
        return be_cuda_act_reserve(c, 0, 0, err);
    }
    return RC_OK;
}

/* ------------------------------------------------------------- int8 rows of x */

struct act_at {
    cu_ptr xq, xd, xs;
};

static uint64_t act_bytes(unsigned enc, uint64_t n, uint64_t k, uint64_t off[3])
{
    off[0] = 0;
    off[1] = be_cuda_up(n * k);
    off[2] = off[1] + be_cuda_up(n * (k / (enc == KX_ENC_Q8_K ? 256 : 32)) * sizeof(float));
    return off[2] + be_cuda_up(n * (k / 32) * sizeof(int32_t));
}

static struct act_at act_at(const struct be_cuda_ctx *c, unsigned enc, uint32_t n, uint32_t k)
{
    uint64_t off[3];

    (void)act_bytes(enc, n, k, off);
    return (struct act_at){c->act[enc].mem.p + off[0], c->act[enc].mem.p + off[1],
                           c->act[enc].mem.p + off[2]};
}

enum rc be_cuda_act_reserve(struct be_cuda_ctx *c, uint32_t cap_rows, uint32_t n_cols,
                            struct rc_err *err)
{
    for (unsigned enc = 0; enc < 2; enc++) {
        struct be_cuda_act *a = &c->act[enc];
        uint64_t off[3], old = a->mem.n, want;
        enum rc rc;

        want = n_cols % (enc == KX_ENC_Q8_K ? 256 : 32) ? 0 : act_bytes(enc, cap_rows, n_cols, off);
        if (want > c->act_want[enc])
            c->act_want[enc] = want;
        want = c->act_want[enc];
        if (!a->wanted || want <= old)
            continue;
        /* as be_cpu: the old one goes first, and comes back when the larger cannot be had */
        be_cuda_settle(c);
        be_cuda_free(c, BE_CUDA_WORK, &a->mem);
        rc = be_cuda_alloc(c, BE_CUDA_WORK, want, &a->mem, "scratch for quantized rows", err);
        if (rc != RC_OK) {
            c->act_want[enc] = old;
            if (old > 0)
                (void)be_cuda_alloc(c, BE_CUDA_WORK, old, &a->mem, "", NULL);
            return rc;
        }
    }
    return RC_OK;
}

/* The norm that wrote x can write its int8 rows too, if nothing has used the buffer since. */
static bool fuse_norm(struct be_cuda_ctx *c, const struct be_tensor *x, unsigned enc, uint32_t n,
                      struct act_at at)
{
    struct be_cuda_act *a = &c->act[enc];
    struct kx_norm *norm;

    if (c->no_fuse || x->gen != c->list.gen || c->list.cmd[x->cmd].fn != c->k[BE_CK_RMS_NORM] ||
        (a->gen == c->list.gen && a->last_use > x->cmd))
        return false;
    norm = be_cuda_args(c, x->cmd);
    if (norm->n != n || norm->xq != 0 || (norm->w2 ? norm->out2 : norm->out) != x->mem.p)
        return false;
    norm->xq = at.xq;
    norm->xd = at.xd;
    norm->xs = at.xs;
    norm->enc = enc;
    return true;
}

/* own: the kernel that takes the row can make its int8 form: *out is then empty. */
static enum rc quantize(struct be_cuda_ctx *c, const struct be_tensor *x, unsigned enc, uint32_t n,
                        bool own, struct act_at *out, struct rc_err *err)
{
    struct be_cuda_act *a = &c->act[enc];
    struct act_at at = act_at(c, enc, n, x->n_cols);
    struct kx_quant q = {.x = x->mem.p,
                         .xq = at.xq,
                         .xd = at.xd,
                         .xs = at.xs,
                         .x_t = x->type,
                         .enc = enc,
                         .n = n,
                         .k = x->n_cols};
    uint64_t off[3];
    enum rc rc;

    *out = at;
    if (act_bytes(enc, n, x->n_cols, off) > a->mem.n)
        return rc_fail(err, RC_INTERNAL, "linear: scratch for quantized rows is too small");
    if (!c->no_fuse && a->gen == c->list.gen && a->x == x && a->version == x->version &&
        a->n == n) {
        c->ks.fused++;
        return RC_OK;
    }
    if (fuse_norm(c, x, enc, n, at)) {
        c->ks.fused++;
    } else if (own && !c->no_fuse) {
        *out = (struct act_at){0, 0, 0};
        c->ks.fused++;
        return RC_OK;
    } else if ((rc = be_cuda_push(c, c->k[BE_CK_QUANT], &q, err)) != RC_OK)
        return rc;
    a->x = x;
    a->version = x->version;
    a->n = n;
    a->gen = c->list.gen;
    a->last_use = c->list.n - 1;
    return RC_OK;
}

/* ------------------------------------------------------------------- products */

/* Has a product of all parts fewer tiles than the device has multiprocessors? */
static bool leaves_idle(const struct be_cuda_ctx *c, const struct be_linear_args *a,
                        const struct be_ksched *s)
{
    uint64_t tiles = 0;

    for (uint32_t i = 0; i < a->n_parts; i++)
        tiles += (a->part[i].w->n_rows + s->cols_tile - 1) / s->cols_tile;
    return tiles * ((a->n + s->rows_tile - 1) / s->rows_tile) < c->n_sm;
}

static struct be_cuda_fn *planned(const struct be_cuda_ctx *c, const struct be_linear_args *a,
                                  const struct be_weight *w)
{
    enum be_kclass cls = be_kplan_class(a->n);
    bool glu = a->epi == BE_EPI_GEGLU;
    struct be_cuda_fn *fast = w->lin[a->x->type == KX_F16 ? BE_KNUM_FAST : BE_KNUM_TF32][cls][glu];

    /* tf32, a few hundred rows: many small tiles are done before few large ones. The same bits. */
    if (fast && fast->e->desc.numerics == BE_KNUM_TF32 && cls == BE_KCLASS_BIG &&
        leaves_idle(c, a, &fast->e->sched))
        return w->lin[BE_KNUM_TF32][BE_KCLASS_MM][glu];
    return fast ? fast : w->lin[BE_KNUM_EXACT][cls][glu];
}

/* The run-time compiled winner of a single exact product or gated pair, else the planned one. */
static enum rc choose(struct be_cuda_ctx *c, const struct be_linear_args *a, uint32_t part,
                      uint32_t n_parts, struct be_cuda_fn **out, struct rc_err *err)
{
    struct be_weight *w = (struct be_weight *)a->part[part].w; /* remembers its winners */
    bool glu = a->epi == BE_EPI_GEGLU;
    struct be_cuda_fn *f = planned(c, a, w), *jit = NULL;
    enum rc rc;

    if (c->jit && f->e->desc.numerics == BE_KNUM_EXACT && (glu || n_parts == 1)) {
        if ((rc = be_cuda_jit_want(c, w, glu, err)) != RC_OK)
            return rc;
        jit = be_cuda_jit_fn(c, w, be_kplan_class(a->n), glu);
    }
    *out = jit ? jit : f;
    return RC_OK;
}

/* Some kernels take maps of the matrices beside the arguments. */
static enum rc push(struct be_cuda_ctx *c, struct be_cuda_fn *f, const struct kx_linear *k,
                    struct rc_err *err)
{
    struct kx_linear_wg wg;
    enum rc rc;

    if (f->e->args_bytes != sizeof(wg))
        return be_cuda_push(c, f, k, err);
    memset(&wg, 0, sizeof(wg)); /* commands are compared by their bytes */
    wg.a = *k;
    if ((rc = be_cuda_maps(c->d, &wg, err)) != RC_OK)
        return rc;
    return be_cuda_push(c, f, &wg, err);
}

/* Launches the parts listed, which share a weight format; out_t: the type of what they write. */
static enum rc launch(struct be_cuda_ctx *c, const struct be_linear_args *a, const uint32_t *part,
                      uint32_t n_parts, uint32_t out_t, struct rc_err *err)
{
    enum be_dtype t = a->part[part[0]].w->stored;
    unsigned fmt = be_cuda_fmt(t);
    int enc = enc_of(t);
    struct kx_linear k = {.x = a->x->mem.p,
                          .n = a->n,
                          .k = a->x->n_cols,
                          .n_parts = n_parts,
                          .epi = (kx_u)a->epi,
                          .x_t = a->x->type,
                          .out_t = out_t};
    struct be_cuda_fn *f = NULL;
    struct act_at at;
    enum rc rc;

    if (enc >= 0) {
        /* one short row of a single launch: making its int8 form in every block costs less than a
         * launch for it */
        if ((rc = quantize(c, a->x, (unsigned)enc, a->n,
                           a->n == 1 && n_parts == a->n_parts && a->x->n_cols <= OWN_COLS, &at,
                           err)) != RC_OK)
            return rc;
        k.xq = at.xq;
        k.xd = at.xd;
        k.xs = at.xs;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct be_weight *w = a->part[part[i]].w, *b = a->part[part[i]].b;
        const struct be_tensor *out = a->part[part[a->epi == BE_EPI_GEGLU ? 0 : i]].out;

        for (uint32_t j = 0; j < w->n_planes; j++)
            k.w[i][j] = w->plane[j].p;
        k.b[i] = b ? b->vec.p : 0;
        k.out[i] = out->mem.p;
        k.n_out[i] = (kx_u)w->n_rows;
    }
    if ((rc = choose(c, a, part[0], n_parts, &f, err)) != RC_OK ||
        (rc = push(c, f, &k, err)) != RC_OK)
        return rc;
    if (enc >= 0)
        c->act[enc].last_use = c->list.n - 1;
    c->ks.by_format[fmt]++;
    for (uint32_t i = 0; i < (a->epi == BE_EPI_GEGLU ? 1 : n_parts); i++)
        be_cuda_wrote(c, a->part[part[i]].out, k.out_t);
    return RC_OK;
}

static enum rc check(const struct be_linear_args *a, struct rc_err *err)
{
    enum rc rc;

    if (a->n_parts < 1 || a->n_parts > 3 || (unsigned)a->epi > BE_EPI_GEGLU ||
        (a->epi == BE_EPI_GEGLU && a->n_parts != 2))
        return rc_fail(err, RC_INVALID, "linear: %u parts with epilogue %d", a->n_parts,
                       (int)a->epi);
    if ((rc = be_cuda_check_tensor(a->x, "linear", "x", a->n, 0, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        const struct be_weight *w = a->part[i].w;

        if (!w || !(w->use & BE_USE_LINEAR))
            return rc_fail(err, RC_INVALID, "linear: part %u has no matrix loaded for linear", i);
        if (w->n_cols != a->x->n_cols)
            return rc_fail_what(err, RC_INVALID, w->name,
                                "linear: '%s' is [%llu,%llu] but x has %u columns", w->name,
                                (unsigned long long)w->n_rows, (unsigned long long)w->n_cols,
                                a->x->n_cols);
        if (a->part[i].b &&
            (rc = be_cuda_check_vec(a->part[i].b, "linear", "bias", w->n_rows, err)) != RC_OK)
            return rc;
        if (a->epi == BE_EPI_GEGLU && (w->n_rows != a->part[0].w->n_rows || a->part[i].b))
            return rc_fail_what(err, RC_INVALID, w->name,
                                "linear: gated parts must have equal rows and no bias");
        if (a->epi == BE_EPI_GEGLU && i > 0)
            continue;
        if ((rc = be_cuda_check_tensor(a->part[i].out, "linear", "out", a->n, (uint32_t)w->n_rows,
                                       err)) != RC_OK)
            return rc;
        if (a->part[i].out == a->x)
            return rc_fail(err, RC_INVALID, "linear: out is x");
    }
    return RC_OK;
}

/* Gate and up of two formats: no kernel takes both, so each product runs by itself, in f32, and a
 * third launch multiplies: the same roundings as in the kernels for pairs. */
static enum rc mixed_gate(struct be_cuda_ctx *c, const struct be_linear_args *a, struct rc_err *err)
{
    struct be_tensor *out = a->part[0].out;
    uint64_t half = be_cuda_up((uint64_t)out->cap_rows * out->n_cols * sizeof(float));
    struct be_tensor gate = {.cap_rows = out->cap_rows, .n_cols = out->n_cols}, up = gate;
    struct be_linear_args one = {.x = a->x, .n = a->n, .n_parts = 1, .epi = BE_EPI_GELU_TANH};
    struct kx_mul m = {.out = out->mem.p,
                       .n = (uint64_t)a->n * out->n_cols,
                       .x_t = KX_F32,
                       .y_t = KX_F32,
                       .out_t = out_type(c, out, a->epi)};
    uint32_t first = 0;
    enum rc rc;

    if (2 * half > c->pair.n) {
        be_cuda_settle(c);
        be_cuda_free(c, BE_CUDA_WORK, &c->pair);
        if ((rc = be_cuda_alloc(c, BE_CUDA_WORK, 2 * half, &c->pair, "gated products", err)) !=
            RC_OK)
            return rc;
    }
    m.x = gate.mem.p = c->pair.p;
    m.y = up.mem.p = c->pair.p + half;
    one.part[0].w = a->part[0].w;
    one.part[0].out = &gate;
    if ((rc = launch(c, &one, &first, 1, KX_F32, err)) != RC_OK)
        return rc;
    one.part[0].w = a->part[1].w;
    one.part[0].out = &up;
    one.epi = BE_EPI_NONE;
    if ((rc = launch(c, &one, &first, 1, KX_F32, err)) != RC_OK ||
        (rc = be_cuda_push(c, c->k[BE_CK_MUL], &m, err)) != RC_OK)
        return rc;
    be_cuda_wrote(c, out, m.out_t);
    return RC_OK;
}

/* Can part j go with part i: one format, output type and kernel, which is not made for the shape of
 * one of them? */
static bool joins(const struct be_cuda_ctx *c, const struct be_linear_args *a, uint32_t i,
                  uint32_t j)
{
    const struct be_weight *wi = a->part[i].w, *wj = a->part[j].w;
    const struct be_cuda_fn *f = planned(c, a, wi);

    if (i == j || a->epi == BE_EPI_GEGLU)
        return wi->stored == wj->stored;
    return wi->stored == wj->stored && f == planned(c, a, wj) && f->route == BE_KROUTE_BUCKET &&
           out_type(c, a->part[i].out, a->epi) == out_type(c, a->part[j].out, a->epi);
}

/* Parts that can go together do, in the order of the first of each. */
enum rc be_cuda_linear(struct be_ctx *ctx, const struct be_linear_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    bool done[3] = {false};
    enum rc rc;

    c->ops++;
    if ((rc = check(a, err)) != RC_OK || a->n == 0)
        return rc;
    if ((rc = be_cuda_room(c, MAX_CMDS, 0, "linear", err)) != RC_OK)
        return rc;
    if (a->epi == BE_EPI_GEGLU && a->part[0].w->stored != a->part[1].w->stored)
        return mixed_gate(c, a, err);
    for (uint32_t i = 0; i < a->n_parts; i++) {
        uint32_t part[3], n = 0;

        for (uint32_t j = i; j < a->n_parts; j++)
            if (!done[j] && joins(c, a, i, j)) {
                part[n++] = j;
                done[j] = true;
            }
        if (n > 0 &&
            (rc = launch(c, a, part, n, out_type(c, a->part[i].out, a->epi), err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}
