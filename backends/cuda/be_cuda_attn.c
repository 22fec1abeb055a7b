/* be_cuda_attn.c - attention over the paged cache, and inside packed sequences, there
 * also with relative positions.
 *
 * Sequences with few new rows (a decode step, a verified draft) go to the split
 * kernels: their keys are shared out over blocks and the parts merged. Longer chunks go
 * to the one-pass kernels. Both give a row the same bits, so the choice is free. The number of
 * splits is rounded up to a power of two: a graph serves until the context has doubled.
 * Tests: tests/backends/test_be_cuda_attn.c
 */
#include "be_cuda.h"

#include <string.h>

#define PART_BYTES ((uint64_t)64 << 20) /* most memory for partial results */
#define MAX_RUNS 64u                    /* launches of split kernels of one operation */

static enum rc check_heads(const char *op, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim,
                           struct rc_err *err)
{
    if (n_heads < 1 || n_kv_heads < 1 || head_dim < 1 || n_heads % n_kv_heads != 0 ||
        (uint64_t)n_heads * head_dim > 1u << 20)
        return rc_fail(err, RC_INVALID, "%s: %u query heads over %u KV heads of %u", op, n_heads,
                       n_kv_heads, head_dim);
    return RC_OK;
}

static uint32_t tile_rows(const struct be_cuda_fn *f)
{
    return f->e->sched.rows_tile ? f->e->sched.rows_tile : 1;
}

static uint32_t pow2(uint32_t n)
{
    uint32_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

/* Bytes of the partial results of one row. */
static uint64_t part_row(const struct be_cuda_layer *l, uint32_t n_heads, uint32_t n_splits)
{
    return (uint64_t)n_heads * n_splits * (l->head_dim + 2ull) * sizeof(float);
}

/* At most PART_BYTES, or half of what a bounded workspace has left: with less room sequences go in
 * smaller runs or through the one-pass kernels, which give the same bits. */
static uint64_t part_cap(const struct be_cuda_ctx *c)
{
    uint64_t used = c->mem[BE_CUDA_WORK] - c->part.n, left;

    if (c->workspace_limit == 0)
        return PART_BYTES;
    left = c->workspace_limit > used ? (c->workspace_limit - used) / 2 : 0;
    left -= left % BE_CUDA_ALIGN;
    return left < PART_BYTES ? left : PART_BYTES;
}

/* While a model loads: room for its longest context, within part_cap. */
static enum rc reserve(struct be_cuda_ctx *c, const struct be_attention_args *a,
                       const struct be_cuda_layer *l, struct rc_err *err)
{
    uint64_t ctx = (uint64_t)a->kv->n_pages[l->cls] * a->kv->page_tokens, want;

    if (c->base.sealed)
        return RC_OK;
    if (a->window > 0 && ctx > (uint64_t)a->window + 2 * KX_SPLIT)
        ctx = (uint64_t)a->window + 2 * KX_SPLIT;
    if (ctx > INT32_MAX)
        ctx = INT32_MAX;
    want = a->q->cap_rows *
           (part_row(l, a->n_heads, pow2((uint32_t)((ctx + KX_SPLIT - 1) / KX_SPLIT))) +
            3 * BE_CUDA_ALIGN);
    if (want > part_cap(c))
        want = part_cap(c);
    /* one-pass kernels keep a row's sums here when out is f16 */
    if (c->f16 && want < (uint64_t)a->q->cap_rows * a->q->n_cols * sizeof(float))
        want = (uint64_t)a->q->cap_rows * a->q->n_cols * sizeof(float);
    if (want <= c->part.n)
        return RC_OK;
    be_cuda_settle(c);
    be_cuda_free(c, BE_CUDA_WORK, &c->part);
    return be_cuda_alloc(c, BE_CUDA_WORK, want, &c->part, "partial results of attention", err);
}

/* Sequences seq0 .. seq1 - 1, all short, rows row0 .. row1 - 1 without a gap. */
struct run {
    uint32_t seq0, seq1, row0, row1;
};

static bool is_small(const struct be_seq *s)
{
    return s->n_rows <= BE_CUDA_SMALL_ROWS;
}

/* The next run at or after seq *at of at most max_rows rows; false: no more. */
static bool next_run(const struct be_attention_args *a, uint32_t max_rows, uint32_t *at,
                     struct run *out)
{
    uint32_t i = *at;

    while (i < a->n_seqs && (!is_small(&a->seqs[i]) || a->seqs[i].n_rows == 0))
        i++;
    if (i == a->n_seqs)
        return false;
    *out = (struct run){.seq0 = i, .row0 = a->seqs[i].row0, .row1 = a->seqs[i].row0};
    for (; i < a->n_seqs && is_small(&a->seqs[i]); i++) {
        if (a->seqs[i].n_rows > 0 &&
            (a->seqs[i].row0 != out->row1 || out->row1 - out->row0 + a->seqs[i].n_rows > max_rows))
            break;
        out->row1 += a->seqs[i].n_rows;
    }
    out->seq1 = *at = i;
    return true;
}

/* Most splits a short sequence sees, counted as its table counts positions. */
static uint32_t splits(const struct be_cuda_ctx *c, const struct be_attention_args *a,
                       const struct be_cuda_tab *t)
{
    const struct kx_seq *k =
        (const struct kx_seq *)(const void *)(c->stage.host[c->stage.cur] + t->seqs_at);
    uint32_t n = 1;

    for (uint32_t i = 0; i < a->n_seqs; i++)
        if (is_small(&a->seqs[i]) && k[i].n_rows > 0) {
            uint32_t s = (k[i].pos0 + k[i].n_rows + KX_SPLIT - 1) / KX_SPLIT;

            n = s > n ? s : n;
        }
    return pow2(n);
}

static uint32_t type_bytes(uint32_t t)
{
    return t == KX_F16 ? 2 : 4;
}

static enum rc push_run(struct be_cuda_ctx *c, const struct be_attention_args *a,
                        const struct be_cuda_layer *l, struct be_cuda_tab *tab, struct kx_attn k,
                        const struct run *r, struct rc_err *err)
{
    uint64_t rows = r->row1 - r->row0, vecs = rows * a->n_heads * k.n_splits;
    uint64_t m = c->part.p, ld = be_cuda_up(vecs * sizeof(float)), first;
    cu_ptr tiles = 0;
    enum rc rc;

    rc = be_cuda_stage_tiles(c, tab, tile_rows(l->split), true, r->seq0, r->seq1, &tiles,
                             &k.n_tiles, err);
    if (rc != RC_OK)
        return rc;
    k.tiles = tiles;
    /* kernels count rows from the batch's first: addresses are moved down by the rows before */
    first = (uint64_t)r->row0 * a->n_heads * k.n_splits;
    k.n_rows = (kx_u)rows;
    k.part_m = m - first * sizeof(float);
    k.part_l = m + ld - first * sizeof(float);
    k.part_a = m + 2 * ld - first * sizeof(float) * l->head_dim;
    if ((rc = be_cuda_push(c, l->split, &k, err)) != RC_OK || k.n_splits == 1)
        return rc;
    k.part_m = m;
    k.part_l = m + ld;
    k.part_a = m + 2 * ld;
    k.out += (uint64_t)r->row0 * a->n_heads * l->head_dim * type_bytes(k.x_t);
    return be_cuda_push(c, c->merge, &k, err);
}

/* Short sequences; *fits false: they have to take the one-pass kernel. */
static enum rc push_small(struct be_cuda_ctx *c, const struct be_attention_args *a,
                          const struct be_cuda_layer *l, struct be_cuda_tab *tab, struct kx_attn k,
                          bool *fits, struct rc_err *err)
{
    uint32_t at = 0, n = 0, max_rows = UINT32_MAX;
    struct run r;
    enum rc rc = RC_OK;

    k.n_splits = splits(c, a, tab);
    if (k.n_splits > 1) {
        uint64_t room = c->part.n > 3 * BE_CUDA_ALIGN ? c->part.n - 3 * BE_CUDA_ALIGN : 0;

        room /= part_row(l, a->n_heads, k.n_splits);
        max_rows = room < UINT32_MAX ? (uint32_t)room : UINT32_MAX;
    }
    *fits = max_rows >= BE_CUDA_SMALL_ROWS;
    while (*fits && next_run(a, max_rows, &at, &r))
        *fits = ++n <= MAX_RUNS;
    at = 0;
    while (*fits && rc == RC_OK && next_run(a, max_rows, &at, &r))
        rc = push_run(c, a, l, tab, k, &r, err);
    return rc;
}

enum rc be_cuda_attention(struct be_ctx *ctx, const struct be_attention_args *a, struct rc_err *err)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    const struct be_cuda_layer *l;
    struct be_cuda_tab *tab = NULL;
    struct kx_attn k;
    cu_ptr tiles = 0;
    bool fits = true, any_small = false, any_long = false;
    enum rc rc;

    c->ops++;
    if (!a->kv || a->layer >= a->kv->n_layers)
        return rc_fail(err, RC_INVALID, "attention: no layer %u", a->layer);
    l = &a->kv->layers[a->layer];
    if ((rc = check_heads("attention", a->n_heads, l->n_kv_heads, l->head_dim, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->q, "attention", "q", 0, a->n_heads * l->head_dim, err)) !=
            RC_OK ||
        (rc = be_cuda_check_tensor(a->out, "attention", "out", 0, a->n_heads * l->head_dim, err)) !=
            RC_OK ||
        (rc = be_cuda_check_seqs(a->seqs, a->n_seqs, a->q, "attention", err)) != RC_OK ||
        (rc = be_cuda_check_seqs(a->seqs, a->n_seqs, a->out, "attention", err)) != RC_OK)
        return rc;
    if (a->out == a->q)
        return rc_fail(err, RC_INVALID, "attention: out is q");
    for (uint32_t i = 0; i < a->n_seqs; i++)
        if (a->seqs[i].n_rows > 0)
            *(is_small(&a->seqs[i]) ? &any_small : &any_long) = true;
    if ((rc = reserve(c, a, l, err)) != RC_OK ||
        (rc = be_cuda_room(c, 2 * MAX_RUNS + 2,
                           be_cuda_stage_seq_bytes(a->kv, a->seqs, a->n_seqs, false, a->window) +
                               2 * MAX_RUNS * BE_CUDA_ALIGN,
                           "attention", err)) != RC_OK ||
        (!any_small && !any_long) ||
        (rc = be_cuda_stage_seqs(c, a->kv, l->cls, a->seqs, a->n_seqs, false, a->window,
                                 "attention", &tab, err)) != RC_OK)
        return rc;
    k = (struct kx_attn){.kv = be_cuda_kv_args(a->kv, l),
                         .q = a->q->mem.p,
                         .out = a->out->mem.p,
                         .seqs = be_cuda_stage_addr(c, tab->seqs_at),
                         .pages = be_cuda_stage_addr(c, tab->pages_at),
                         .n_rows = tab->n_rows,
                         .n_heads = a->n_heads,
                         .n_splits = 1,
                         .window = a->window,
                         .x_t = a->q->type,
                         .scale = a->scale};
    if (any_small && (rc = push_small(c, a, l, tab, k, &fits, err)) != RC_OK)
        return rc;
    for (int small = 0; small < 2; small++) {
        if (small ? fits || !any_small : !any_long)
            continue;
        c->ks.decode_fallbacks += (unsigned)small;
        if ((rc = be_cuda_stage_tiles(c, tab, tile_rows(l->pass), small, 0, a->n_seqs, &tiles,
                                      &k.n_tiles, err)) != RC_OK)
            return rc;
        k.tiles = tiles;
        k.part_a = c->part.p;
        if (k.x_t == KX_F16 && (uint64_t)tab->n_rows * a->q->n_cols * sizeof(float) > c->part.n)
            return rc_fail(err, RC_INTERNAL, "attention: %u rows, more than when the model loaded",
                           tab->n_rows);
        if ((rc = be_cuda_push(c, l->pass, &k, err)) != RC_OK)
            return rc;
    }
    be_cuda_wrote(c, a->out, k.x_t);
    return RC_OK;
}

/* -------------------------------------------------------------------- packed */

static enum rc packed_fn(struct be_cuda_ctx *c, enum be_kop op, uint32_t head_dim, uint32_t type,
                         struct be_cuda_fn **out, struct rc_err *err)
{
    struct be_kplan_req r = {.op = op,
                             .act = type == KX_F16 ? BE_KACT_F16 : BE_KACT_F32,
                             .numerics = c->tf32 && type == KX_F32 ? BE_KNUM_TF32 : BE_KNUM_EXACT,
                             .head_dim = head_dim,
                             .open = true}; /* any number of heads */
    struct be_cuda_packed *p = NULL;
    enum rc rc;

    for (size_t i = 0; i < BE_CUDA_PACKED && !p; i++)
        if (!c->packed[i].fn || (c->packed[i].op == op && c->packed[i].head_dim == head_dim &&
                                 c->packed[i].type == type))
            p = &c->packed[i];
    if (p && p->fn) {
        *out = p->fn;
        return RC_OK;
    }
    if ((rc = be_cuda_fn_plan(c, &r, out, err)) != RC_OK)
        return rc;
    if (p)
        *p = (struct be_cuda_packed){op, head_dim, type, *out};
    return RC_OK;
}

/* Tiles of the sequences; the same for every layer of a pass. */
static enum rc packed_tiles(struct be_cuda_ctx *c, const struct be_attention_packed_args *a,
                            cu_ptr off, uint32_t rows, struct kx_attn_packed *k, struct rc_err *err)
{
    struct be_cuda_stage *s = &c->stage;
    struct kx_qtile *q;
    uint64_t n = 0;
    uint32_t at;

    if (s->packed.off != off || s->packed.n_seqs != a->n_seqs || s->packed.rows != rows) {
        for (uint32_t i = 0; i < a->n_seqs; i++)
            n += (a->offsets[i + 1] - a->offsets[i] + (uint64_t)rows - 1) / rows;
        if (n * sizeof(*q) > BE_CUDA_STAGE ||
            !(q = be_cuda_stage_take(c, (uint32_t)(n * sizeof(*q)), &at)))
            return rc_fail(err, RC_INTERNAL, "attention_packed: no room was kept for its tiles");
        s->packed.off = off;
        s->packed.n_seqs = a->n_seqs;
        s->packed.rows = rows;
        s->packed.at = at;
        s->packed.n = (uint32_t)n;
        for (uint32_t i = 0; i < a->n_seqs; i++)
            for (uint32_t r = a->offsets[i]; r < a->offsets[i + 1]; r += rows)
                *q++ = (struct kx_qtile){
                    i, r, a->offsets[i + 1] - r < rows ? a->offsets[i + 1] - r : rows, 0};
    }
    k->tiles = be_cuda_stage_addr(c, s->packed.at);
    k->n_tiles = s->packed.n;
    return RC_OK;
}

static enum rc check_packed(const char *op, const struct be_attention_packed_args *a, uint32_t n,
                            struct rc_err *err)
{
    uint32_t kv_cols = a->n_kv_heads * a->head_dim;
    enum rc rc;

    if (a->radius < -1)
        return rc_fail(err, RC_INVALID, "%s: radius %d", op, a->radius);
    for (uint32_t s = 0; s < a->n_seqs; s++)
        if (a->offsets[s] > a->offsets[s + 1])
            return rc_fail(err, RC_INVALID, "%s: offsets %u, %u go down", op, a->offsets[s],
                           a->offsets[s + 1]);
    if ((rc = be_cuda_check_tensor(a->q, op, "q", n, a->n_heads * a->head_dim, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->out, op, "out", n, a->n_heads * a->head_dim, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->k, op, "k", n, kv_cols, err)) != RC_OK ||
        (rc = be_cuda_check_tensor(a->v, op, "v", n, kv_cols, err)) != RC_OK)
        return rc;
    if (a->out == a->q || a->out == a->k || a->out == a->v)
        return rc_fail(err, RC_INVALID, "%s: out is an input", op);
    if (a->q->type != a->k->type || a->q->type != a->v->type)
        return rc_fail(err, RC_INVALID, "%s: q, k and v hold different types", op);
    return RC_OK;
}

static enum rc check_rel(const char *op, const struct be_attention_rel_args *a, struct rc_err *err)
{
    const struct be_tensor *const t[] = {a->rk, a->rq};
    uint32_t cols = a->n_heads * a->head_dim;
    enum rc rc;

    for (int i = 0; i < 2; i++) {
        if (!t[i])
            continue;
        if ((rc = be_cuda_check_tensor(t[i], op, i ? "rq" : "rk", a->n_rel, cols, err)) != RC_OK)
            return rc;
        if (t[i] == a->out || t[i]->type != a->q->type || (a->rk && t[i]->n_cols != a->rk->n_cols))
            return rc_fail(err, RC_INVALID, "%s: %s is out, or not of the type and width of %s", op,
                           i ? "rq" : "rk", i && a->rk ? "q and rk" : "q");
    }
    if (a->reach > 1u << 20)
        return rc_fail(err, RC_INVALID, "%s: a reach of %u, at most %u", op, a->reach, 1u << 20);
    for (uint32_t i = 0; i <= 2 * a->reach; i++)
        if (a->rel[i] < 0 || (uint32_t)a->rel[i] >= a->n_rel)
            return rc_fail(err, RC_INVALID, "%s: distance %d has vector %d of %u", op,
                           (int)i - (int)a->reach, a->rel[i], a->n_rel);
    for (uint32_t s = 0; s < a->n_seqs; s++)
        if (a->offsets[s + 1] > a->offsets[s] && a->offsets[s + 1] - a->offsets[s] - 1 > a->reach)
            return rc_fail(err, RC_INVALID, "%s: %u rows, with a reach of %u at most %u", op,
                           a->offsets[s + 1] - a->offsets[s], a->reach, a->reach + 1);
    return RC_OK;
}

/* rel: with relative positions, or NULL. */
static enum rc run_packed(struct be_cuda_ctx *c, const struct be_attention_packed_args *a,
                          const struct be_attention_rel_args *rel, struct rc_err *err)
{
    const char *op = rel ? "attention_rel" : "attention_packed";
    uint32_t n = a->n_seqs > 0 ? a->offsets[a->n_seqs] : 0;
    uint64_t rel_bytes = rel ? (2ull * rel->reach + 1) * sizeof(*rel->rel) : 0;
    struct be_cuda_fn *f = NULL;
    struct kx_attn_rel k;
    cu_ptr off = 0, at = 0;
    enum rc rc;

    c->ops++;
    if ((rc = check_heads(op, a->n_heads, a->n_kv_heads, a->head_dim, err)) != RC_OK ||
        (rc = check_packed(op, a, n, err)) != RC_OK ||
        (rel && (rc = check_rel(op, rel, err)) != RC_OK))
        return rc;
    rc = packed_fn(c, rel ? BE_KOP_ATTN_REL : BE_KOP_ATTN_PACKED, a->head_dim, a->q->type, &f, err);
    if (rc != RC_OK) {
        rc_wrap(err, "%s", op);
        return rc;
    }
    if ((rc = be_cuda_room(c, 1,
                           ((uint64_t)a->n_seqs + 1) * 4 + rel_bytes +
                               ((uint64_t)n / tile_rows(f) + a->n_seqs) * sizeof(struct kx_qtile) +
                               5 * BE_CUDA_ALIGN,
                           op, err)) != RC_OK ||
        n == 0 ||
        (rc = be_cuda_stage_put(c, a->offsets, ((uint64_t)a->n_seqs + 1) * 4, &off, err)) !=
            RC_OK ||
        (rel && (rc = be_cuda_stage_put(c, rel->rel, rel_bytes, &at, err)) != RC_OK))
        return rc;
    k = (struct kx_attn_rel){.p = {.q = a->q->mem.p,
                                   .k = a->k->mem.p,
                                   .v = a->v->mem.p,
                                   .out = a->out->mem.p,
                                   .off = off,
                                   .n_seqs = a->n_seqs,
                                   .n_heads = a->n_heads,
                                   .n_kv_heads = a->n_kv_heads,
                                   .head_dim = a->head_dim,
                                   .x_t = a->q->type,
                                   .q_stride = a->q->n_cols,
                                   .kv_stride = a->k->n_cols,
                                   .scale = a->scale,
                                   .radius = a->radius},
                             .rel = at};
    if (rel) {
        k.rk = rel->rk ? rel->rk->mem.p : 0;
        k.rq = rel->rq ? rel->rq->mem.p : 0;
        k.reach = rel->reach;
        k.rel_stride = rel->rk ? rel->rk->n_cols : rel->rq ? rel->rq->n_cols : 0;
    }
    /* the argument of a packed kernel is the first member */
    if ((rc = packed_tiles(c, a, off, tile_rows(f), &k.p, err)) != RC_OK ||
        (rc = be_cuda_push(c, f, &k, err)) != RC_OK)
        return rc;
    be_cuda_wrote(c, a->out, k.p.x_t);
    return RC_OK;
}

enum rc be_cuda_attention_packed(struct be_ctx *ctx, const struct be_attention_packed_args *a,
                                 struct rc_err *err)
{
    return run_packed(be_cuda(ctx), a, NULL, err);
}

enum rc be_cuda_attention_rel(struct be_ctx *ctx, const struct be_attention_rel_args *a,
                              struct rc_err *err)
{
    struct be_attention_packed_args p = {.q = a->q,
                                         .k = a->k,
                                         .v = a->v,
                                         .out = a->out,
                                         .offsets = a->offsets,
                                         .n_seqs = a->n_seqs,
                                         .n_heads = a->n_heads,
                                         .n_kv_heads = a->n_heads,
                                         .head_dim = a->head_dim,
                                         .scale = a->scale,
                                         .radius = -1};

    return run_packed(be_cuda(ctx), &p, a, err);
}
