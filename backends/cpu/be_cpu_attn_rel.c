/* be_cpu_attn_rel.c - driver of attention with disentangled relative positions (DeBERTa).
 *
 * Work is cut into items of (head, sequence, block of query rows), heads outermost: what a
 * thread lays out for a head serves all sequences. A query vector's result depends on its own
 * sequence only, so how items are cut is free to follow the shape of the call; which kernel
 * computes a sequence is not, and follows its own length (choose_longest).
 * Tests: tests/backends/test_be_cpu_attn_rel.c
 */
#include <stdatomic.h>

#include "be_cpu.h"

#define MIN_ROWS 8u /* of an item, where scratch is short */

struct job {
    const struct be_cpu_ctx *c;
    const struct be_attention_rel_args *a;
    struct be_cpu_attn base;
    struct be_cpu_rel rel;
    size_t n_blocks, n_items, step; /* blocks of all sequences; items taken at once */
    _Atomic size_t next;            /* the first that nobody has taken */
};

static uint32_t seq_rows(const struct job *j, uint32_t s)
{
    return j->a->offsets[s + 1] - j->a->offsets[s];
}

static uint32_t seq_blocks(const struct job *j, uint32_t s)
{
    return (seq_rows(j, s) + j->rel.rows - 1) / j->rel.rows;
}

static void run_item(const struct job *j, struct be_cpu_rel *rel, uint32_t head, uint32_t s,
                     uint32_t block, void *scratch)
{
    struct be_cpu_attn a = j->base;
    uint32_t row = block * j->rel.rows, first = j->a->offsets[s];

    a.rel = rel;
    a.head0 = a.kv_head = head;
    a.n_keys = seq_rows(j, s);
    a.n_rows = a.n_keys - row < j->rel.rows ? a.n_keys - row : j->rel.rows;
    a.row0 = first + row;
    a.pos0 = row;
    a.k += first * a.ld_kv;
    a.v += first * a.ld_kv;
    j->c->kern->attn_rel(&a, scratch);
}

/* Blocks [b0, b1) of a head. */
static void blocks_range(const struct job *j, struct be_cpu_rel *rel, uint32_t head, size_t b0,
                         size_t b1, void *scratch)
{
    size_t first = 0;

    for (uint32_t s = 0; s < j->a->n_seqs && first < b1; s++) {
        size_t n = seq_blocks(j, s);

        for (size_t i = b0 > first ? b0 - first : 0; i < n && first + i < b1; i++)
            run_item(j, rel, head, s, (uint32_t)i, scratch);
        first += n;
    }
}

static void items_taken(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct job *j = arg;
    struct be_cpu_rel rel = j->rel;
    void *scratch = j->c->scratch + (size_t)thread * BE_CPU_SCRATCH;

    for (;;) {
        size_t i = atomic_fetch_add(&j->next, j->step), end = i + j->step;

        if (end > j->n_items)
            end = j->n_items;
        if (i >= end)
            return;
        while (i < end) {
            size_t head = i / j->n_blocks, b0 = i % j->n_blocks;
            size_t b1 = j->n_blocks - b0 < end - i ? j->n_blocks : b0 + (end - i);

            blocks_range(j, &rel, (uint32_t)head, b0, b1, scratch);
            i += b1 - b0;
        }
    }
}

/* Columns of places that a sequence of n rows meets: runs of equal rel. */
static uint32_t runs(const struct be_attention_rel_args *a, uint32_t n)
{
    const int32_t *mid = a->rel + a->reach;
    uint32_t runs = 1;

    for (int32_t x = 1; x < (int32_t)n; x++)
        runs += (mid[x] != mid[x - 1]) + (mid[-x] != mid[1 - x]);
    return runs;
}

/* The fast kernel's tables have to fit the scratch; a longer sequence goes to plain C, whose last
 * bits differ. So the bound is the map's and the head's alone, with the fewest rows of an item:
 * a sequence takes one way by itself and beside any other. */
static void choose_longest(struct job *j, uint32_t longest)
{
    const struct be_attention_rel_args *a = j->a;
    const int32_t *mid = a->rel + a->reach;
    struct be_cpu_rel most = {.rows = MIN_ROWS, .n_cols = 1, .longest = 1};

    while (most.longest <= longest &&
           be_cpu_rel_floats(&most, a->head_dim) <= BE_CPU_SCRATCH / sizeof(float)) {
        int32_t x = (int32_t)most.longest++;

        if (most.longest <= longest)
            most.n_cols += (mid[x] != mid[x - 1]) + (mid[-x] != mid[1 - x]);
    }
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        uint32_t n = seq_rows(j, s);

        if (n < most.longest && n > j->rel.longest)
            j->rel.longest = n;
    }
    j->rel.n_cols = runs(a, j->rel.longest);
}

/* Rows of an item: as many as the scratch holds, fewer where threads would stand idle, and even
 * shares of the longest sequence. */
static void choose_rows(struct job *j, uint32_t longest)
{
    uint32_t dim = j->a->head_dim, wide = (dim + 15) / 16 * 16, blocks;
    size_t vecs = (size_t)j->a->offsets[j->a->n_seqs] * j->a->n_heads;
    struct be_cpu_rel *r = &j->rel;

    r->rows =
        BE_CPU_SEQ_VALUES / wide < BE_CPU_SEQ_VECS ? BE_CPU_SEQ_VALUES / wide : BE_CPU_SEQ_VECS;
    while (r->rows > MIN_ROWS && be_cpu_rel_floats(r, dim) > BE_CPU_SCRATCH / sizeof(float))
        r->rows /= 2;
    while (r->rows > 4 * MIN_ROWS && vecs / r->rows < 2 * (size_t)j->c->n_threads)
        r->rows /= 2;
    blocks = (longest + r->rows - 1) / r->rows;
    r->rows = (longest + blocks - 1) / blocks;
}

static enum rc check_shapes(const struct be_attention_rel_args *a, struct rc_err *err)
{
    const char *op = "attention_rel";
    uint32_t cols, n = a->n_seqs > 0 ? a->offsets[a->n_seqs] : 0;
    enum rc rc;

    if (a->n_heads < 1 || a->head_dim < 1 || a->head_dim > BE_CPU_MAX_HEAD ||
        a->n_heads > (1u << 20) / a->head_dim)
        return rc_fail(err, RC_INVALID, "%s: %u heads of %u, expected a size up to %d", op,
                       a->n_heads, a->head_dim, BE_CPU_MAX_HEAD);
    cols = a->n_heads * a->head_dim;
    if ((rc = be_cpu_check(a->q, op, "q", n, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->k, op, "k", n, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->v, op, "v", n, cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, op, "out", n, cols, err)) != RC_OK ||
        (a->rk && (rc = be_cpu_check(a->rk, op, "rk", a->n_rel, cols, err)) != RC_OK) ||
        (a->rq && (rc = be_cpu_check(a->rq, op, "rq", a->n_rel, cols, err)) != RC_OK))
        return rc;
    if (a->out == a->q || a->out == a->k || a->out == a->v || a->out == a->rk || a->out == a->rq)
        return rc_fail(err, RC_INVALID, "%s: out is one of its inputs", op);
    return RC_OK;
}

static enum rc check_seqs(const struct be_attention_rel_args *a, uint32_t *longest,
                          struct rc_err *err)
{
    const char *op = "attention_rel";

    /* plain C keeps a head and a score for each key in a thread's scratch */
    uint32_t most = BE_CPU_SCRATCH / sizeof(double) - BE_CPU_MAX_HEAD;

    *longest = 0;
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        uint32_t n = a->offsets[s + 1] - a->offsets[s];

        if (a->offsets[s] > a->offsets[s + 1])
            return rc_fail(err, RC_INVALID, "%s: offsets %u, %u go down", op, a->offsets[s],
                           a->offsets[s + 1]);
        if (n > most || (n > 0 && n - 1 > a->reach))
            return rc_fail(err, RC_INVALID, "%s: %u rows, with a reach of %u at most %u", op, n,
                           a->reach, a->reach < most ? a->reach + 1 : most);
        *longest = n > *longest ? n : *longest;
    }
    return RC_OK;
}

/* Places as far as the longest sequence reaches. */
static enum rc check_rel(const struct be_attention_rel_args *a, uint32_t longest,
                         struct rc_err *err)
{
    uint32_t first = a->reach - (longest - 1), n = 2 * longest - 1;

    for (uint32_t i = 0; i < n; i++) {
        int32_t at = a->rel[first + i];

        if (at < 0 || (uint32_t)at >= a->n_rel)
            return rc_fail(err, RC_INVALID, "attention_rel: place %d of distance %lld, of %u", at,
                           (long long)first + i - a->reach, a->n_rel);
    }
    return RC_OK;
}

enum rc be_cpu_attention_rel(struct be_ctx *ctx, const struct be_attention_rel_args *a,
                             struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    size_t cols = (size_t)a->n_heads * a->head_dim;
    struct job job = {.c = c, .a = a};
    uint32_t longest;
    enum rc rc;

    c->ops++;
    if ((rc = check_seqs(a, &longest, err)) != RC_OK || (rc = check_shapes(a, err)) != RC_OK)
        return rc;
    if (longest == 0)
        return RC_OK;
    if ((rc = check_rel(a, longest, err)) != RC_OK)
        return rc;
    job.base = (struct be_cpu_attn){.q = a->q->data,
                                    .out = a->out->data,
                                    .ld = cols,
                                    .head_dim = a->head_dim,
                                    .scale = a->scale,
                                    .radius = -1,
                                    .k = a->k->data,
                                    .v = a->v->data,
                                    .ld_kv = cols,
                                    .n_heads = 1};
    job.rel.rk = a->rk ? a->rk->data : NULL;
    job.rel.rq = a->rq ? a->rq->data : NULL;
    job.rel.ld = cols;
    job.rel.rel = a->rel;
    job.rel.reach = a->reach;
    job.rel.head = UINT32_MAX;
    choose_longest(&job, longest);
    choose_rows(&job, longest);
    for (uint32_t s = 0; s < a->n_seqs; s++)
        job.n_blocks += seq_blocks(&job, s);
    job.n_items = job.n_blocks * a->n_heads;
    job.step = job.n_items / (16 * (size_t)c->n_threads) + 1;
    be_cpu_pool_run(c->pool, job.n_items < c->n_threads ? job.n_items : c->n_threads, 1,
                    items_taken, &job);
    return RC_OK;
}
