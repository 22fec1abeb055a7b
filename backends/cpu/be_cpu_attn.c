/* be_cpu_attn.c - drivers of attention: over the paged cache, and inside packed
 * sequences.
 *
 * Work is cut into items of (sequence, block of query rows, KV head, some of its
 * query heads). A query vector's result depends on its own keys only - tiles of
 * keys begin at multiples of BE_CPU_KEYS from position 0 whatever the item - so
 * how items are cut is free to follow the shape of the call. Few rows over many keys
 * go to be_cpu_attn_split.c.
 * Tests: tests/backends/test_be_cpu_attn.c
 */
#include "be_cpu.h"

#include <stdatomic.h>

struct job {
    const struct be_cpu_ctx *c;
    struct be_cpu_attn base;
    const struct be_seq *seqs; /* cache */
    const uint32_t *offsets;   /* packed */
    uint32_t n_seqs, n_kv_heads;
    uint32_t group;       /* query heads per KV head */
    uint32_t block_rows;  /* of an item */
    uint32_t block_heads; /* of an item */
    size_t n_items, step; /* packed: items taken at once */
    _Atomic size_t next;  /* packed: the first that nobody has taken */
};

static bool is_split(const struct job *j, uint32_t s)
{
    return j->seqs && be_cpu_attn_can_split(j->c, &j->base, &j->seqs[s], j->group * j->n_kv_heads);
}

/* Rows that items are made of. */
static uint32_t seq_rows(const struct job *j, uint32_t s)
{
    if (is_split(j, s))
        return 0;
    return j->seqs ? j->seqs[s].n_rows : j->offsets[s + 1] - j->offsets[s];
}

static size_t seq_items(const struct job *j, uint32_t s)
{
    size_t blocks = (seq_rows(j, s) + (size_t)j->block_rows - 1) / j->block_rows;
    size_t splits = (j->group + j->block_heads - 1) / j->block_heads;

    return blocks * splits * j->n_kv_heads;
}

/* First block, last, second, last but one, ...: late rows of a causal prompt see
 * more keys, and threads take equal runs of this order. */
static uint32_t block_at(const struct job *j, uint32_t s, size_t i)
{
    size_t blocks = (seq_rows(j, s) + (size_t)j->block_rows - 1) / j->block_rows;

    if (!j->seqs)
        return (uint32_t)i;
    return (uint32_t)(i % 2 == 0 ? i / 2 : blocks - 1 - i / 2);
}

/* Item idx of sequence s. */
static void run_item(const struct job *j, uint32_t s, size_t idx, void *scratch)
{
    struct be_cpu_attn a = j->base;
    uint32_t splits = (j->group + j->block_heads - 1) / j->block_heads;
    uint32_t split = (uint32_t)(idx % splits), row;

    idx /= splits;
    a.kv_head = (uint32_t)(idx % j->n_kv_heads);
    row = block_at(j, s, idx / j->n_kv_heads) * j->block_rows;
    a.n_rows = seq_rows(j, s) - row < j->block_rows ? seq_rows(j, s) - row : j->block_rows;
    a.head0 = a.kv_head * j->group + split * j->block_heads;
    a.n_heads = j->group - split * j->block_heads;
    if (a.n_heads > j->block_heads)
        a.n_heads = j->block_heads;
    if (j->seqs) {
        a.row0 = j->seqs[s].row0 + row;
        a.pos0 = j->seqs[s].pos0 + row;
        a.pages = j->seqs[s].pages[a.layer->cls];
    } else {
        a.row0 = j->offsets[s] + row;
        a.pos0 = row;
        a.n_keys = seq_rows(j, s);
        a.k = j->base.k + j->offsets[s] * a.ld_kv;
        a.v = j->base.v + j->offsets[s] * a.ld_kv;
    }
    j->c->kern->attn(&a, scratch);
}

static void items_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;
    size_t first = 0;

    for (uint32_t s = 0; s < j->n_seqs && first < i1; s++) {
        size_t n = seq_items(j, s);

        for (size_t i = i0 > first ? i0 - first : 0; i < n && first + i < i1; i++)
            run_item(j, s, i, j->c->scratch + (size_t)thread * BE_CPU_SCRATCH);
        first += n;
    }
}

/* Items of packed sequences are alike in kind but not in work (windows are cut off at the
 * ends), and a thread may be held up: whoever is free takes the next. */
static void items_taken(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct job *j = arg;

    for (;;) {
        size_t i = atomic_fetch_add(&j->next, j->step);

        if (i >= j->n_items)
            return;
        items_range(j, thread, i, j->n_items - i < j->step ? j->n_items : i + j->step);
    }
}

/* Vectors of one item at most: as many as the kernel's scratch holds of one head. */
static uint32_t max_vecs(const struct job *j)
{
    uint32_t n;

    if (j->seqs)
        return BE_CPU_VECS;
    n = BE_CPU_SEQ_VALUES / ((j->base.head_dim + 15) / 16 * 16);
    return n < 1 ? 1 : n > BE_CPU_SEQ_VECS ? BE_CPU_SEQ_VECS : n;
}

/* Rows of an item, if no more than max, so that the sequences' last items are not short. */
static uint32_t even_rows(const struct job *j, uint32_t max)
{
    uint32_t longest = 1, blocks;

    for (uint32_t s = 0; s < j->n_seqs; s++)
        longest = seq_rows(j, s) > longest ? seq_rows(j, s) : longest;
    blocks = (longest + max - 1) / max;
    return (longest + blocks - 1) / blocks;
}

static void run(struct be_cpu_ctx *c, struct job *j)
{
    uint32_t max = max_vecs(j);
    size_t items = 0, vecs = 0;

    for (uint32_t s = 0; s < j->n_seqs; s++)
        vecs += (size_t)seq_rows(j, s) * j->n_kv_heads;
    /* With fewer (row, KV head) pairs than threads the group's heads are split. */
    j->block_heads = j->group < max ? j->group : max;
    if (vecs < c->n_threads && j->group > 1) {
        uint32_t splits = c->n_threads / (uint32_t)(vecs ? vecs : 1);

        j->block_heads = (j->block_heads + splits - 1) / splits;
    }
    j->block_rows = max / j->block_heads;
    /* Rows are spread over the threads before blocks are made large. */
    if (vecs / j->block_rows < c->n_threads) {
        size_t rows = vecs / (c->n_threads * (size_t)j->n_kv_heads);

        if (rows < 1)
            rows = 1;
        if (rows < j->block_rows)
            j->block_rows = (uint32_t)rows;
    }
    if (!j->seqs)
        j->block_rows = even_rows(j, j->block_rows);
    for (uint32_t s = 0; s < j->n_seqs; s++)
        items += seq_items(j, s);
    if (!j->seqs) {
        j->n_items = items;
        j->step = items / (16 * (size_t)c->n_threads) + 1;
        be_cpu_pool_run(c->pool, items < c->n_threads ? items : c->n_threads, 1, items_taken, j);
        return;
    }
    be_cpu_pool_run(c->pool, items, 1, items_range, j);
    for (uint32_t s = 0; s < j->n_seqs; s++)
        if (is_split(j, s))
            be_cpu_attn_split(c, &j->base, &j->seqs[s], j->group * j->n_kv_heads);
}

static enum rc check_heads(const char *op, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim,
                           struct rc_err *err)
{
    if (n_heads < 1 || n_kv_heads < 1 || head_dim < 1 || n_heads % n_kv_heads != 0 ||
        (uint64_t)n_heads * head_dim > 1u << 20)
        return rc_fail(err, RC_INVALID, "%s: %u query heads over %u KV heads of %u", op, n_heads,
                       n_kv_heads, head_dim);
    /* plain C sums one head in a thread's scratch, in f64 */
    if (head_dim > BE_CPU_SCRATCH / sizeof(double))
        return rc_fail(err, RC_INVALID, "%s: heads of %u, at most %zu", op, head_dim,
                       BE_CPU_SCRATCH / sizeof(double));
    return RC_OK;
}

enum rc be_cpu_attention(struct be_ctx *ctx, const struct be_attention_args *a, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    const struct be_cpu_kv_layer *l;
    struct job job;
    enum rc rc;

    c->ops++;
    if (!a->kv || a->layer >= a->kv->n_layers)
        return rc_fail(err, RC_INVALID, "attention: no layer %u", a->layer);
    l = &a->kv->layers[a->layer];
    if ((rc = check_heads("attention", a->n_heads, l->n_kv_heads, l->head_dim, err)) != RC_OK ||
        (rc = be_cpu_check(a->q, "attention", "q", 0, a->n_heads * l->head_dim, err)) != RC_OK ||
        (rc = be_cpu_check(a->out, "attention", "out", 0, a->n_heads * l->head_dim, err)) !=
            RC_OK ||
        (rc = be_cpu_check_seqs(a->seqs, a->n_seqs, a->q, "attention", err)) != RC_OK ||
        (rc = be_cpu_check_seqs(a->seqs, a->n_seqs, a->out, "attention", err)) != RC_OK)
        return rc;
    if (a->out == a->q)
        return rc_fail(err, RC_INVALID, "attention: out is q");
    job = (struct job){
        .c = c,
        .base = {.q = a->q->data,
                 .out = a->out->data,
                 .ld = a->q->n_cols,
                 .head_dim = l->head_dim,
                 .scale = a->scale,
                 .causal = true,
                 .window = a->window,
                 .kv = a->kv,
                 .layer = l},
        .seqs = a->seqs,
        .n_seqs = a->n_seqs,
        .n_kv_heads = l->n_kv_heads,
        .group = a->n_heads / l->n_kv_heads,
    };
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const struct be_seq *s = &a->seqs[i];
        uint32_t lo, hi;

        be_cpu_attn_range(&job.base, s->pos0, &lo, &hi);
        if (s->n_rows > 0 && (rc = be_cpu_check_pages(a->kv, l->cls, s, lo, s->pos0 + s->n_rows,
                                                      "attention", err)) != RC_OK)
            return rc;
    }
    run(c, &job);
    return RC_OK;
}

enum rc be_cpu_attention_packed(struct be_ctx *ctx, const struct be_attention_packed_args *a,
                                struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    uint32_t kv_cols, n = 0;
    struct job job;
    enum rc rc;

    c->ops++;
    if ((rc = check_heads("attention_packed", a->n_heads, a->n_kv_heads, a->head_dim, err)) !=
        RC_OK)
        return rc;
    if (a->radius < -1)
        return rc_fail(err, RC_INVALID, "attention_packed: radius %d", a->radius);
    for (uint32_t s = 0; s < a->n_seqs; s++)
        if (a->offsets[s] > a->offsets[s + 1])
            return rc_fail(err, RC_INVALID, "attention_packed: offsets %u, %u go down",
                           a->offsets[s], a->offsets[s + 1]);
    if (a->n_seqs > 0)
        n = a->offsets[a->n_seqs];
    kv_cols = a->n_kv_heads * a->head_dim;
    if ((rc = be_cpu_check(a->q, "attention_packed", "q", n, a->n_heads * a->head_dim, err)) !=
            RC_OK ||
        (rc = be_cpu_check(a->out, "attention_packed", "out", n, a->n_heads * a->head_dim, err)) !=
            RC_OK ||
        (rc = be_cpu_check(a->k, "attention_packed", "k", n, kv_cols, err)) != RC_OK ||
        (rc = be_cpu_check(a->v, "attention_packed", "v", n, kv_cols, err)) != RC_OK)
        return rc;
    if (a->out == a->q || a->out == a->k || a->out == a->v)
        return rc_fail(err, RC_INVALID, "attention_packed: out is an input");
    job = (struct job){
        .c = c,
        .base = {.q = a->q->data,
                 .out = a->out->data,
                 .ld = a->q->n_cols,
                 .head_dim = a->head_dim,
                 .scale = a->scale,
                 .radius = a->radius,
                 .k = a->k->data,
                 .v = a->v->data,
                 .ld_kv = kv_cols},
        .offsets = a->offsets,
        .n_seqs = a->n_seqs,
        .n_kv_heads = a->n_kv_heads,
        .group = a->n_heads / a->n_kv_heads,
    };
    run(c, &job);
    return RC_OK;
}
