/* be_cpu_attn_split.c - attention of few rows over many cached keys: threads share the
 * keys of one sequence.
 *
 * Work is cut into (KV head, some of its query heads, keys between two cuts); each writes
 * its sums to the context's buffer, then a second join merges them per query vector. Where
 * cuts lie and in which order they are merged is be_cpu_attn_cut's, the same as for an item
 * that walks all keys by itself: whether a sequence is split, and by how many threads, is
 * only a matter of speed (it is not where the buffer is too small).
 *
 * Source: split of the keys as in Dao et al. 2023 (Flash-Decoding).
 * Tests: tests/backends/test_be_cpu_attn.c
 */
#include "be_cpu.h"

struct split {
    struct be_cpu_ctx *c;
    struct be_cpu_attn item; /* all rows of the sequence */
    uint32_t n_heads, group;
    uint32_t cut, first, n;            /* cuts [first, first + n) */
    uint32_t block_heads, head_blocks; /* of a KV head */
};

/* False where the rows are cut differently, or not at all. */
static bool plan(struct split *p, const struct be_cpu_ctx *c, const struct be_cpu_attn *item,
                 const struct be_seq *s, uint32_t n_heads)
{
    uint32_t lo, lo1, hi;

    if (!c->parts || s->n_rows < 1 || item->head_dim % 8 != 0 || item->head_dim > BE_CPU_MAX_HEAD)
        return false;
    p->n_heads = n_heads;
    p->group = n_heads / item->layer->n_kv_heads;
    if ((uint64_t)s->n_rows * p->group > BE_CPU_VECS)
        return false;
    be_cpu_attn_range(item, s->pos0, &lo, &hi);
    p->cut = be_cpu_attn_cut(item, lo, hi);
    be_cpu_attn_range(item, s->pos0 + s->n_rows - 1, &lo1, &hi);
    if (p->cut == UINT32_MAX || p->cut != be_cpu_attn_cut(item, lo1, hi))
        return false;
    p->first = lo / p->cut;
    p->n = (hi - 1) / p->cut + 1 - p->first;
    return (uint64_t)p->n * s->n_rows * n_heads * BE_CPU_PART_COLS(item->head_dim) <=
           BE_CPU_PARTS / sizeof(float);
}

bool be_cpu_attn_can_split(const struct be_cpu_ctx *c, const struct be_cpu_attn *item,
                           const struct be_seq *s, uint32_t n_heads)
{
    struct split p;

    return plan(&p, c, item, s, n_heads);
}

/* Sums of a KV head's rows and heads begin here: [rows][group][cuts]. */
static float *parts_of(const struct split *p, uint32_t kv_head)
{
    return p->c->parts +
           (size_t)kv_head * p->item.n_rows * p->group * p->n * BE_CPU_PART_COLS(p->item.head_dim);
}

static void *scratch_of(const struct split *p, unsigned thread)
{
    return p->c->scratch + (size_t)thread * BE_CPU_SCRATCH;
}

/* Heads outermost: with few cuts threads part between heads. */
static void part_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct split *p = arg;
    size_t cols = BE_CPU_PART_COLS(p->item.head_dim);

    for (size_t i = i0; i < i1; i++) {
        uint32_t k = (uint32_t)(i % p->n), block = (uint32_t)(i / p->n % p->head_blocks);
        uint32_t head = block * p->block_heads;
        struct be_cpu_attn a = p->item;

        a.kv_head = (uint32_t)(i / p->n / p->head_blocks);
        a.head0 = a.kv_head * p->group + head;
        a.n_heads = p->group - head < p->block_heads ? p->group - head : p->block_heads;
        a.key0 = (p->first + k) * p->cut;
        a.key1 = a.key0 + p->cut < a.key0 ? UINT32_MAX : a.key0 + p->cut;
        a.ld_part = p->n * cols;
        a.n_rows =
            1; /* a row's heads lie side by side in the buffer, rows do not if heads are cut */
        for (uint32_t r = 0; r < p->item.n_rows; r++) {
            if (p->head_blocks == 1)
                a.n_rows = p->item.n_rows;
            a.row0 = p->item.row0 + r;
            a.pos0 = p->item.pos0 + r;
            a.part = parts_of(p, a.kv_head) + ((size_t)r * p->group + head) * a.ld_part + k * cols;
            p->c->kern->attn(&a, scratch_of(p, thread));
            if (p->head_blocks == 1)
                break;
        }
    }
}

static void merge_range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct split *p = arg;
    size_t cols = BE_CPU_PART_COLS(p->item.head_dim);

    for (size_t i = i0; i < i1; i++) {
        uint32_t row = (uint32_t)(i / p->n_heads), head = (uint32_t)(i % p->n_heads);
        struct be_cpu_attn a = p->item;

        a.row0 = p->item.row0 + row;
        a.n_rows = a.n_heads = 1;
        a.head0 = head;
        a.ld_part = p->n * cols;
        a.part =
            parts_of(p, head / p->group) + ((size_t)row * p->group + head % p->group) * a.ld_part;
        p->c->kern->attn_merge(&a, p->n, scratch_of(p, thread));
    }
}

void be_cpu_attn_split(struct be_cpu_ctx *c, const struct be_cpu_attn *item, const struct be_seq *s,
                       uint32_t n_heads)
{
    uint32_t kv_heads = item->layer->n_kv_heads, blocks = 1;
    struct split p = {.c = c, .item = *item};

    if (!plan(&p, c, item, s, n_heads))
        return;
    p.item.row0 = s->row0;
    p.item.n_rows = s->n_rows;
    p.item.pos0 = s->pos0;
    p.item.pages = s->pages[item->layer->cls];
    /* Below two cuts per thread the last, short one would leave a thread idle. Threads that
     * part between heads read the same keys, and two heads take as long as four. */
    while ((uint64_t)kv_heads * p.n * blocks < 2ull * c->n_threads && blocks < p.group)
        blocks++;
    p.block_heads = (p.group + blocks - 1) / blocks;
    p.head_blocks = (p.group + p.block_heads - 1) / p.block_heads;
    be_cpu_pool_run(c->pool, (size_t)kv_heads * p.head_blocks * p.n, 1, part_range, &p);
    be_cpu_pool_run(c->pool, (size_t)s->n_rows * n_heads, 1, merge_range, &p);
}
