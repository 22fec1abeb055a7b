/* be_cuda_rows.c - the operations that treat each row by itself: embed, norms, rope,
 * KV write, gather, softcap, scale, pool.
 *
 * Each checks what be_cpu checks, in the same words, puts its host arrays into
 * staging and appends one command. rope(q), rope(k) and kv_write in a row become one.
 * Tests: tests/backends/test_be_cuda_rows.c
 */
#include "be_cuda.h"

#include <math.h>
#include <string.h>

#define STAGE_INTS(n) ((uint64_t)(n)*4 + 2 * BE_CUDA_ALIGN)

/* compute = f16: new rows are f16, but what is written over an input keeps its type
 * (rows of two sizes would run into each other). */
static uint32_t out_type(const struct be_cuda_ctx *c, const struct be_tensor *out,
                         const struct be_tensor *x, const struct be_tensor *add)
{
    if (out == x || out == add)
        return out->type;
    return c->f16 && out->n_cols <= BE_CUDA_F16_COLS ? KX_F16 : KX_F32;
}

/* Rows r0 .. r0 + n - 1 of a table that stays on the host: as f32 into staging, which the
 * kernel then takes for the table. */
static enum rc embed_mapped(struct be_cuda_ctx *c, const struct be_embed_args *a, uint32_t r0,
                            uint32_t n, uint32_t row_bytes, struct rc_err *err)
{
    const struct be_weight *t = a->table;
    size_t raw = t->n_cols / be_dtype_block(t->dtype) * be_dtype_block_bytes(t->dtype);
    struct kx_embed k = {.n = n,
                         .k = a->out->n_cols,
                         .scale = a->scale,
                         .accumulate = a->accumulate,
                         .out_t = out_type(c, a->out, a->accumulate ? a->out : NULL, NULL)};
    int32_t *ids;
    uint32_t at, ids_at;
    uint8_t *p;
    enum rc rc;

    if ((rc = be_cuda_room(c, 1, (uint64_t)n * row_bytes + STAGE_INTS(n) + BE_CUDA_ALIGN, "embed",
                           err)) != RC_OK)
        return rc;
    if (!(p = be_cuda_stage_take(c, n * row_bytes, &at)) ||
        !(ids = be_cuda_stage_take(c, n * 4, &ids_at)))
        return rc_fail(err, RC_INTERNAL, "embed: no room was kept for %u rows", n);
    for (uint32_t i = 0; i < n; i++) {
        be_dtype_to_f32(t->dtype, t->mapped + (size_t)a->ids[r0 + i] * raw,
                        (float *)(void *)(p + (size_t)i * row_bytes), t->n_cols);
        ids[i] = (int32_t)i;
    }
    k.w[0] = be_cuda_stage_addr(c, at);
    k.ids = be_cuda_stage_addr(c, ids_at);
    k.out = a->out->mem.p + (uint64_t)r0 * k.k * (k.out_t == KX_F16 ? 2 : 4);
    if ((rc = be_cuda_push(c, t->embed, &k, err)) == RC_OK)
        be_cuda_wrote(c, a->out, k.out_t);
    return rc;
}

/* In as many pieces as staging takes: a decode step is one. */
static enum rc embed_from_host(struct be_cuda_ctx *c, const struct be_embed_args *a,
                               struct rc_err *err)
{
    uint32_t most, n;
    struct be_klayout l;
    enum rc rc = RC_OK;

    if (!be_klayout_get(BE_F32, a->out->n_cols, &l))
        return rc_fail(err, RC_INTERNAL, "embed: rows of %u values have no layout", a->out->n_cols);
    most = BE_CUDA_STAGE / 4 / l.row_bytes[0];
    for (uint32_t r = 0; r < a->n && rc == RC_OK; r += n) {
        n = a->n - r < most ? a->n - r : most;
        rc = embed_mapped(c, a, r, n, l.row_bytes[0], err);
    }
    return rc;
}

enum rc be_cuda_embed(struct be_ctx *ctx, const struct be_embed_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_embed k = {.n = a->n, .scale = a->scale, .accumulate = a->accumulate};
    cu_ptr ids = 0;
    enum rc rc;

    c->ops++;
    if (!a->table || !(a->table->use & BE_USE_EMBED))
        return rc_fail(err, RC_INVALID, "embed: table is not loaded for embedding");
    if ((rc = be_cuda_check_tensor(a->out, "embed", "out", a->n, (uint32_t)a->table->n_cols,
                                   err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->ids[i] < 0 || (uint64_t)a->ids[i] >= a->table->n_rows)
            return rc_fail(err, RC_INVALID, "embed: id %d, expected 0..%llu", a->ids[i],
                           (unsigned long long)a->table->n_rows - 1);
    if (a->table->mapped)
        return embed_from_host(c, a, err);
    if ((rc = be_cuda_room(c, 1, STAGE_INTS(a->n), "embed", err)) != RC_OK || a->n == 0 ||
        (rc = be_cuda_stage_put(c, a->ids, (uint64_t)a->n * 4, &ids, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->table->n_planes; i++)
        k.w[i] = a->table->plane[i].p;
    k.ids = ids;
    k.out = a->out->mem.p;
    k.k = a->out->n_cols;
    k.out_t = out_type(c, a->out, a->accumulate ? a->out : NULL, NULL);
    if ((rc = be_cuda_push(c, a->table->embed, &k, err)) == RC_OK)
        be_cuda_wrote(c, a->out, k.out_t);
    return rc;
}

static struct kx_norm norm_args(const struct be_cuda_ctx *c, const struct be_tensor *x,
                                const struct be_tensor *add, const struct be_weight *w,
                                const struct be_weight *b, const struct be_tensor *out, uint32_t n,
                                float eps)
{
    return (struct kx_norm){.x = x->mem.p,
                            .add = add ? add->mem.p : 0,
                            .w = w->vec.p,
                            .b = b ? b->vec.p : 0,
                            .out = out->mem.p,
                            .n = n,
                            .k = x->n_cols,
                            .x_t = x->type,
                            .add_t = add ? add->type : 0,
                            .out_t = out_type(c, out, x, add),
                            .eps = eps};
}

/* The command before is the norm that wrote x, and nothing has been added to it. */
static struct kx_norm *norm_before(struct be_cuda_ctx *c, const struct be_tensor *x, uint32_t n)
{
    struct kx_norm *before;

    if (c->no_fuse || c->list.n == 0 || x->gen != c->list.gen || x->cmd != c->list.n - 1 ||
        c->list.cmd[x->cmd].fn != c->k[BE_CK_RMS_NORM])
        return NULL;
    before = be_cuda_args(c, x->cmd);
    return before->out == x->mem.p && before->n == n && !before->xq && !before->w2 ? before : NULL;
}

/* A norm of what a norm has just written: both become one. */
static bool fuse_norms(struct be_cuda_ctx *c, const struct be_rms_norm_args *a)
{
    struct kx_norm *first = norm_before(c, a->x, a->n);

    if (!first || a->add || a->out == a->x || a->x->n_cols > KX_NORM_TWICE ||
        a->x->n_cols % 8 != 0 || a->out->mem.p == first->x || a->out->mem.p == first->add)
        return false;
    first->w2 = a->w->vec.p;
    first->out2 = a->out->mem.p;
    first->out2_t = out_type(c, a->out, NULL, NULL);
    first->eps2 = a->eps;
    be_cuda_wrote(c, a->out, first->out2_t);
    c->ks.fused++;
    return true;
}

enum rc be_cuda_rms_norm(struct be_ctx *ctx, const struct be_rms_norm_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_norm k;
    enum rc rc;

    c->ops++;
    if ((rc = be_cuda_check_tensor(a->x, "rms_norm", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->out, "rms_norm", "out", a->n, a->x->n_cols, err)) != RC_OK ||
        (a->add && (rc = be_cuda_check_tensor(a->add, "rms_norm", "add", a->n, a->x->n_cols,
                                              err)) != RC_OK) ||
        (rc = be_cuda_check_vec(a->w, "rms_norm", "w", a->x->n_cols, err)) != RC_OK ||
        (rc = be_cuda_room(c, 1, 0, "rms_norm", err)) != RC_OK || a->n == 0)
        return rc;
    if (fuse_norms(c, a))
        return RC_OK;
    k = norm_args(c, a->x, a->add, a->w, NULL, a->out, a->n, a->eps);
    if ((rc = be_cuda_push(c, c->k[BE_CK_RMS_NORM], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->out, k.out_t);
    return rc;
}

enum rc be_cuda_layer_norm(struct be_ctx *ctx, const struct be_layer_norm_args *a,
                           struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_norm k;
    enum rc rc;

    c->ops++;
    if ((rc = be_cuda_check_tensor(a->x, "layer_norm", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->out, "layer_norm", "out", a->n, a->x->n_cols, err)) !=
            RC_OK ||
        (a->add && (rc = be_cuda_check_tensor(a->add, "layer_norm", "add", a->n, a->x->n_cols,
                                              err)) != RC_OK) ||
        (rc = be_cuda_check_vec(a->w, "layer_norm", "w", a->x->n_cols, err)) != RC_OK ||
        (a->b && (rc = be_cuda_check_vec(a->b, "layer_norm", "b", a->x->n_cols, err)) != RC_OK) ||
        (rc = be_cuda_room(c, 1, 0, "layer_norm", err)) != RC_OK || a->n == 0)
        return rc;
    k = norm_args(c, a->x, a->add, a->w, a->b, a->out, a->n, a->eps);
    if ((rc = be_cuda_push(c, c->k[BE_CK_LAYER_NORM], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->out, k.out_t);
    return rc;
}

/* ---------------------------------------------------------------- rope and cache */

/* theta^(-2i/head_dim) / factor in f32 (0 for pairs that do not turn), as be_cpu and the
 * reference have it, kept as f64. A model uses one or two settings; they are made by its self-test.
 */
static enum rc frequencies(struct be_cuda_ctx *c, float theta, float factor, uint32_t head_dim,
                           uint32_t n_pairs, cu_ptr *out, struct rc_err *err)
{
    double f[KX_ROPE_HEAD / 2];
    struct be_cuda_freq *t = NULL;
    enum rc rc;

    for (size_t i = 0; i < BE_CUDA_FREQS; i++) {
        if (c->freq[i].head_dim == 0)
            t = t ? t : &c->freq[i];
        else if (c->freq[i].head_dim == head_dim && c->freq[i].theta == theta &&
                 c->freq[i].factor == factor && c->freq[i].n_pairs == n_pairs) {
            *out = c->freq[i].mem.p;
            return RC_OK;
        }
    }
    if (!t) /* the addresses of all others may stand in a graph */
        return rc_fail(err, RC_UNSUPPORTED, "rope: more than %d settings of theta and factor",
                       BE_CUDA_FREQS);
    for (uint32_t i = 0; i < head_dim / 2; i++)
        f[i] = i < n_pairs ? 1.0f / powf(theta, (float)(2 * i) / (float)head_dim) / factor : 0;
    if ((rc = be_cuda_alloc(c, BE_CUDA_WORK, head_dim / 2 * sizeof(double), &t->mem,
                            "rotation frequencies", err)) != RC_OK)
        return rc;
    if ((rc = be_cuda_upload(c, t->mem.p, f, head_dim / 2 * sizeof(double), err)) != RC_OK) {
        be_cuda_free(c, BE_CUDA_WORK, &t->mem);
        return rc;
    }
    t->theta = theta;
    t->factor = factor;
    t->head_dim = head_dim;
    t->n_pairs = n_pairs;
    *out = t->mem.p;
    return RC_OK;
}

enum rc be_cuda_rope(struct be_ctx *ctx, const struct be_rope_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_rope k;
    cu_ptr freq = 0, pos = 0;
    enum rc rc;

    c->ops++;
    if (a->head_dim < 2 || a->head_dim % 2 != 0 || a->head_dim > KX_ROPE_HEAD || a->n_heads < 1 ||
        a->n_heads > (1u << 20) / a->head_dim)
        return rc_fail(err, RC_INVALID, "rope: %u heads of %u, expected an even size up to %u",
                       a->n_heads, a->head_dim, KX_ROPE_HEAD);
    if (!(a->theta >= 0) || (a->theta > 0 && !(a->factor > 0)))
        return rc_fail(err, RC_INVALID, "rope: theta %g and factor %g, expected positive",
                       (double)a->theta, (double)a->factor);
    if (a->n_pairs > a->head_dim / 2)
        return rc_fail(err, RC_INVALID, "rope: %u pairs turn, a head of %u has %u", a->n_pairs,
                       a->head_dim, a->head_dim / 2);
    if ((rc = be_cuda_check_tensor(a->x, "rope", "x", a->n, a->n_heads * a->head_dim, err)) !=
            RC_OK ||
        (a->norm_w &&
         (rc = be_cuda_check_vec(a->norm_w, "rope", "norm_w", a->head_dim, err)) != RC_OK))
        return rc;
    if ((a->theta == 0 && !a->norm_w) || a->n == 0)
        return RC_OK;
    if ((rc = be_cuda_room(c, 1, STAGE_INTS(a->n), "rope", err)) != RC_OK ||
        (a->theta > 0 &&
         ((rc = frequencies(c, a->theta, a->factor, a->head_dim,
                            a->n_pairs ? a->n_pairs : a->head_dim / 2, &freq, err)) != RC_OK ||
          (rc = be_cuda_stage_put(c, a->pos, (uint64_t)a->n * 4, &pos, err)) != RC_OK)))
        return rc;
    k = (struct kx_rope){.x = a->x->mem.p,
                         .pos = pos,
                         .w = a->norm_w ? a->norm_w->vec.p : 0,
                         .freq = freq,
                         .n = a->n,
                         .n_heads = a->n_heads,
                         .head_dim = a->head_dim,
                         .x_t = a->x->type,
                         .eps = a->norm_eps};
    if ((rc = be_cuda_push(c, c->k[BE_CK_ROPE], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->x, a->x->type);
    return rc;
}

/* The two commands before are the ropes of q and of this k, and maybe the one before those is the
 * norm of v: all become one. Returns how many are to go, 0: nothing is fused. */
static uint32_t fuse_rope(struct be_cuda_ctx *c, const struct kx_kv_write *w,
                          const struct be_tensor *v, struct kx_rope_kv *out)
{
    const struct kx_rope *n;
    const struct be_cuda_cmd *m = c->list.cmd + c->list.n;
    const struct kx_rope *q, *k;

    if (c->no_fuse || c->list.n < 2 || m[-1].fn != c->k[BE_CK_ROPE] || m[-2].fn != c->k[BE_CK_ROPE])
        return 0;
    q = be_cuda_args(c, c->list.n - 2);
    k = be_cuda_args(c, c->list.n - 1);
    if (k->x != w->k || q->x == k->x || q->x == v->mem.p || q->n != k->n || k->n != w->n ||
        q->pos != k->pos || q->freq != k->freq || q->head_dim != k->head_dim ||
        k->head_dim != w->kv.head_dim || k->n_heads != w->kv.n_kv_heads || q->x_t != k->x_t ||
        k->x_t != w->x_t)
        return 0;
    *out = (struct kx_rope_kv){.q = *q, .k = *k, .w = *w};
    if (c->list.n < 3 || m[-3].fn != c->k[BE_CK_ROPE])
        return 2;
    n = be_cuda_args(c, c->list.n - 3);
    if (n->x != w->v || n->freq || n->n != k->n || n->n_heads != k->n_heads ||
        n->head_dim != k->head_dim || n->x_t != k->x_t)
        return 2;
    out->v = *n;
    return 3;
}

enum rc be_cuda_check_seqs(const struct be_seq *seqs, uint32_t n_seqs, const struct be_tensor *t,
                           const char *op, struct rc_err *err)
{
    if (n_seqs > 0 && !seqs)
        return rc_fail(err, RC_INVALID, "%s: no sequences", op);
    if (n_seqs > BE_CUDA_SEQS)
        return rc_fail(err, RC_INVALID, "%s: %u sequences, at most %u", op, n_seqs, BE_CUDA_SEQS);
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct be_seq *s = &seqs[i];

        if (s->row0 > t->cap_rows || s->n_rows > t->cap_rows - s->row0)
            return rc_fail(err, RC_INVALID, "%s: sequence %u has rows %u..%llu of %u", op, i,
                           s->row0, (unsigned long long)s->row0 + s->n_rows, t->cap_rows);
        if (s->pos0 > INT32_MAX || s->n_rows > (uint32_t)INT32_MAX - s->pos0)
            return rc_fail(err, RC_INVALID, "%s: sequence %u ends past position 2^31", op, i);
    }
    return RC_OK;
}

/* Sequences whose rows follow each other without a gap: one launch, as the kernel takes every
 * row from the first to the last. */
static enum rc write_run(struct be_cuda_ctx *c, const struct be_kv_write_args *a,
                         const struct be_seq *seqs, uint32_t n_seqs, struct rc_err *err)
{
    const struct be_cuda_layer *l = &a->kv->layers[a->layer];
    uint64_t skip = (uint64_t)seqs[0].row0 * a->k->n_cols * (a->k->type == KX_F16 ? 2 : 4);
    struct be_cuda_tab *tab = NULL;
    struct kx_kv_write k;
    struct kx_rope_kv both;
    uint32_t fused;
    cu_ptr row_seq = 0;
    enum rc rc;

    if ((rc = be_cuda_stage_seqs(c, a->kv, l->cls, seqs, n_seqs, true, 0, "kv_write", &tab, err)) !=
            RC_OK ||
        tab->n_rows == 0 || (rc = be_cuda_stage_row_seq(c, tab, &row_seq, err)) != RC_OK)
        return rc;
    k = (struct kx_kv_write){.kv = be_cuda_kv_args(a->kv, l),
                             .k = a->k->mem.p + skip,
                             .v = a->v->mem.p + skip,
                             .seqs = be_cuda_stage_addr(c, tab->seqs_at),
                             .pages = be_cuda_stage_addr(c, tab->pages_at),
                             .row_seq = row_seq,
                             .n = tab->n_rows,
                             .x_t = a->k->type};
    if ((fused = fuse_rope(c, &k, a->v, &both)) == 0)
        return be_cuda_push(c, c->k[BE_CK_KV_WRITE], &k, err);
    be_cuda_pop(c, fused);
    c->ks.fused += fused;
    return be_cuda_push(c, c->k[BE_CK_ROPE_KV], &both, err);
}

/* Where the run that begins at sequence i ends. */
static uint32_t run_end(const struct be_seq *seqs, uint32_t i, uint32_t n_seqs)
{
    uint32_t row = seqs[i].row0 + seqs[i].n_rows;

    for (i++; i < n_seqs && seqs[i].row0 == row; i++)
        row += seqs[i].n_rows;
    return i;
}

enum rc be_cuda_kv_write(struct be_ctx *ctx, const struct be_kv_write_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    const struct be_cuda_layer *l;
    uint32_t width;
    enum rc rc;

    c->ops++;
    if (!a->kv || a->layer >= a->kv->n_layers)
        return rc_fail(err, RC_INVALID, "kv_write: no layer %u", a->layer);
    l = &a->kv->layers[a->layer];
    width = l->n_kv_heads * l->head_dim;
    if ((rc = be_cuda_check_tensor(a->k, "kv_write", "k", 0, width, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->v, "kv_write", "v", 0, width, err)) != RC_OK ||
        (rc = be_cuda_check_seqs(a->seqs, a->n_seqs, a->k, "kv_write", err)) != RC_OK ||
        (rc = be_cuda_check_seqs(a->seqs, a->n_seqs, a->v, "kv_write", err)) != RC_OK)
        return rc;
    if (a->k->type != a->v->type)
        return rc_fail(err, RC_INVALID, "kv_write: k and v hold different types");
    for (uint32_t i = 0, end; i < a->n_seqs; i = end) {
        end = run_end(a->seqs, i, a->n_seqs);
        if ((rc = be_cuda_room(c, 1, be_cuda_stage_seq_bytes(a->kv, a->seqs + i, end - i, true, 0),
                               "kv_write", err)) != RC_OK ||
            (rc = write_run(c, a, a->seqs + i, end - i, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* ---------------------------------------------------------------- other rows */

enum rc be_cuda_gather(struct be_ctx *ctx, const struct be_gather_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_gather k;
    cu_ptr rows = 0;
    enum rc rc;

    c->ops++;
    if ((rc = be_cuda_check_tensor(a->x, "gather", "x", 0, 0, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->out, "gather", "out", a->n, a->x->n_cols, err)) != RC_OK)
        return rc;
    if (a->out == a->x)
        return rc_fail(err, RC_INVALID, "gather: out is x");
    for (uint32_t i = 0; i < a->n; i++)
        if (a->rows[i] < 0 || (uint32_t)a->rows[i] >= a->x->cap_rows)
            return rc_fail(err, RC_INVALID, "gather: row %d of %u", a->rows[i], a->x->cap_rows);
    if ((rc = be_cuda_room(c, 1, STAGE_INTS(a->n), "gather", err)) != RC_OK || a->n == 0 ||
        (rc = be_cuda_stage_put(c, a->rows, (uint64_t)a->n * 4, &rows, err)) != RC_OK)
        return rc;
    k = (struct kx_gather){.x = a->x->mem.p,
                           .rows = rows,
                           .out = a->out->mem.p,
                           .n = a->n,
                           .k = a->x->n_cols,
                           .t = a->x->type};
    if ((rc = be_cuda_push(c, c->k[BE_CK_GATHER], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->out, a->x->type);
    return rc;
}

enum rc be_cuda_softcap(struct be_ctx *ctx, const struct be_softcap_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_softcap k;
    enum rc rc;

    c->ops++;
    if (!(a->cap > 0))
        return rc_fail(err, RC_INVALID, "softcap: cap %g, expected positive", (double)a->cap);
    if ((rc = be_cuda_check_tensor(a->x, "softcap", "x", a->n, 0, err)) != RC_OK ||
        (rc = be_cuda_room(c, 1, 0, "softcap", err)) != RC_OK || a->n == 0)
        return rc;
    k = (struct kx_softcap){
        .x = a->x->mem.p, .n = a->n, .k = a->x->n_cols, .t = a->x->type, .cap = a->cap};
    if ((rc = be_cuda_push(c, c->k[BE_CK_SOFTCAP], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->x, a->x->type);
    return rc;
}

/* What has just been written by a norm, or by a mat-vec of one part, is scaled as it is written. */
static bool fuse_scale(struct be_cuda_ctx *c, const struct be_scale_args *a)
{
    struct kx_norm *norm = a->y ? NULL : norm_before(c, a->x, a->n);
    struct be_cuda_cmd *m = c->list.cmd + c->list.n - 1;
    struct kx_linear *p;

    if (norm && norm->scale == 0 && a->scale != 0) {
        norm->scale = a->scale;
    } else {
        if (c->no_fuse || !a->y || a->n != 1 || a->x->gen != c->list.gen ||
            a->x->cmd != c->list.n - 1 || m->fn->e->desc.op != BE_KOP_LINEAR ||
            m->fn->e->desc.rows_class != BE_KROWS_1 || m->fn->e->desc.epi == BE_EPI_GEGLU)
            return false;
        p = be_cuda_args(c, a->x->cmd);
        if (p->n_parts != 1 || p->mul || p->epi == KX_EPI_ADD || p->out[0] != a->x->mem.p)
            return false;
        p->mul = a->y->mem.p + (uint64_t)a->y_col * (a->y->type == KX_F16 ? 2 : 4);
        p->mul_t = a->y->type;
        p->mul_scale = a->scale;
    }
    a->x->version++; /* as be_cuda_wrote */
    c->ks.fused++;
    return true;
}

enum rc be_cuda_scale(struct be_ctx *ctx, const struct be_scale_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_scale k;
    enum rc rc;

    c->ops++;
    if ((rc = be_cuda_check_tensor(a->x, "scale", "x", a->n, 0, err)) != RC_OK ||
        (a->y && (rc = be_cuda_check_tensor(a->y, "scale", "y", a->n, 0, err)) != RC_OK))
        return rc;
    if (a->y == a->x)
        return rc_fail(err, RC_INVALID, "scale: y is x");
    if (a->y && (a->y_col > a->y->n_cols || a->y->n_cols - a->y_col < a->x->n_cols))
        return rc_fail(err, RC_INVALID, "scale: columns %u.. of %u, x has %u", a->y_col,
                       a->y->n_cols, a->x->n_cols);
    if ((rc = be_cuda_room(c, 1, 0, "scale", err)) != RC_OK || a->n == 0)
        return rc;
    if (fuse_scale(c, a))
        return RC_OK;
    k = (struct kx_scale){.x = a->x->mem.p,
                          .y = a->y ? a->y->mem.p : 0,
                          .n = a->n,
                          .k = a->x->n_cols,
                          .x_t = a->x->type,
                          .y_t = a->y ? a->y->type : 0,
                          .y_k = a->y ? a->y->n_cols : 0,
                          .y_col = a->y ? a->y_col : 0,
                          .scale = a->scale};
    if ((rc = be_cuda_push(c, c->k[BE_CK_SCALE], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->x, a->x->type);
    return rc;
}

enum rc be_cuda_pool(struct be_ctx *ctx, const struct be_pool_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct kx_pool k;
    cu_ptr off = 0;
    enum rc rc;

    c->ops++;
    if ((unsigned)a->kind > BE_POOL_LAST)
        return rc_fail(err, RC_INVALID, "pool: kind %d", (int)a->kind);
    if ((rc = be_cuda_check_tensor(a->x, "pool", "x", 0, 0, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->out, "pool", "out", a->n_seqs, a->x->n_cols, err)) != RC_OK)
        return rc;
    if (a->out == a->x)
        return rc_fail(err, RC_INVALID, "pool: out is x");
    for (uint32_t s = 0; s < a->n_seqs; s++)
        if (a->offsets[s] >= a->offsets[s + 1] || a->offsets[s + 1] > a->x->cap_rows)
            return rc_fail(err, RC_INVALID, "pool: sequence %u is rows %u..%u of %u", s,
                           a->offsets[s], a->offsets[s + 1], a->x->cap_rows);
    if ((rc = be_cuda_room(c, 1, STAGE_INTS((uint64_t)a->n_seqs + 1), "pool", err)) != RC_OK ||
        a->n_seqs == 0 ||
        (rc = be_cuda_stage_put(c, a->offsets, ((uint64_t)a->n_seqs + 1) * 4, &off, err)) != RC_OK)
        return rc;
    k = (struct kx_pool){.x = a->x->mem.p,
                         .off = off,
                         .out = a->out->mem.p,
                         .n_seqs = a->n_seqs,
                         .k = a->x->n_cols,
                         .x_t = a->x->type,
                         .kind = (kx_u)a->kind,
                         .out_t = KX_F32}; /* vectors leave in f32 */
    if ((rc = be_cuda_push(c, c->k[BE_CK_POOL], &k, err)) == RC_OK)
        be_cuda_wrote(c, a->out, KX_F32);
    return rc;
}
