/* be_cuda_stage.c - the host arrays of a list: ids, positions, page tables, tiles.
 *
 * Two pinned buffers take turns, so the next list is written while the device still
 * reads the last; on the device there is one, at a fixed address. Offsets follow from
 * the order and the sizes of requests alone, and a page table gets room for the next power of two,
 * so that a decode step has the offsets - and so the arguments - of the step before.
 * All layers of a pass ask for the same arrays: an equal array (compared in full) is shared.
 * Tests: tests/backends/test_be_cuda_cmd.c
 */
#include "be_cuda.h"

#include <string.h>

#define FIRST BE_CUDA_ALIGN /* offset 0 means none */
#define MIN_PAGES 16u

enum rc be_cuda_stage_init(struct be_cuda_ctx *c, struct rc_err *err)
{
    struct be_cuda_stage *s = &c->stage;
    enum rc rc;

    s->used = FIRST;
    for (int i = 0; i < 2; i++) {
        if ((rc = be_cuda_host_alloc(c, BE_CUDA_STAGE, &s->host[i], "staging", err)) != RC_OK)
            return rc;
        memset(s->host[i], 0, BE_CUDA_STAGE);
        if ((rc = be_cuda_do(c, c->d->event_new(&s->done[i], 2), "making an event", err)) != RC_OK)
            return rc;
    }
    return be_cuda_alloc(c, BE_CUDA_WORK, BE_CUDA_STAGE, &s->dev, "staging", err);
}

void be_cuda_stage_end(struct be_cuda_ctx *c)
{
    struct be_cuda_stage *s = &c->stage;

    for (int i = 0; i < 2; i++) {
        be_cuda_host_free(c, s->host[i]);
        if (s->done[i])
            (void)c->d->event_free(s->done[i]);
    }
    be_cuda_free(c, BE_CUDA_WORK, &s->dev);
    memset(s, 0, sizeof(*s));
}

void be_cuda_stage_reset(struct be_cuda_ctx *c)
{
    struct be_cuda_stage *s = &c->stage;

    s->cur ^= 1;
    s->used = FIRST;
    s->n_same = 0;
    s->n_tabs = 0;
    s->packed.off = 0;
    if (s->pending[s->cur]) {
        /* two lists ago: as a rule long done. An error shows at the next call. */
        (void)c->d->event_sync(s->done[s->cur]);
        s->pending[s->cur] = false;
    }
}

void *be_cuda_stage_take(struct be_cuda_ctx *c, uint32_t n_bytes, uint32_t *at)
{
    struct be_cuda_stage *s = &c->stage;

    if (n_bytes > BE_CUDA_STAGE - s->used)
        return NULL;
    *at = s->used;
    s->used += (uint32_t)be_cuda_up(n_bytes);
    return s->host[s->cur] + *at;
}

static enum rc full(const char *op, struct rc_err *err)
{
    return rc_fail(err, RC_INTERNAL, "%s: no room was kept for its indices", op);
}

enum rc be_cuda_stage_put(struct be_cuda_ctx *c, const void *src, uint64_t n_bytes, cu_ptr *out,
                          struct rc_err *err)
{
    struct be_cuda_stage *s = &c->stage;
    uint32_t at;
    void *p;

    for (uint32_t i = 0; i < s->n_same; i++)
        if (s->same[i].n_bytes == n_bytes &&
            memcmp(s->host[s->cur] + s->same[i].at, src, n_bytes) == 0) {
            *out = be_cuda_stage_addr(c, s->same[i].at);
            return RC_OK;
        }
    if (n_bytes > BE_CUDA_STAGE || !(p = be_cuda_stage_take(c, (uint32_t)n_bytes, &at)))
        return full("indices", err);
    memcpy(p, src, n_bytes);
    if (s->n_same < BE_CUDA_INTERNED) {
        s->same[s->n_same].at = at;
        s->same[s->n_same++].n_bytes = (uint32_t)n_bytes;
    }
    *out = be_cuda_stage_addr(c, at);
    return RC_OK;
}

/* ----------------------------------------------------------------- sequences */

static uint32_t room_pages(uint32_t n)
{
    uint32_t r = MIN_PAGES;

    while (r < n)
        r *= 2;
    return r;
}

/* Which positions of a sequence an operation touches. Positions are told to the device
 * from base on, a multiple of KX_SPLIT (so splits stay aligned) and of a page: what lies before a
 * window is then neither staged nor walked, however long the sequence is. */
struct span {
    uint32_t base, lo, end; /* end, lo: absolute pages */
};

static struct span span_of(const struct be_kv *kv, const struct be_seq *s, bool write,
                           uint32_t window)
{
    struct span p = {.lo = write ? s->pos0 : 0};

    if (!write && window > 0 && s->pos0 >= window)
        p.lo = s->pos0 - window + 1;
    p.base = write || window > 0 ? p.lo & ~(KX_SPLIT - 1) : 0;
    p.lo >>= kv->page_shift;
    p.end = (s->pos0 + s->n_rows + kv->page_tokens - 1) >> kv->page_shift;
    if (s->n_rows == 0)
        p.lo = p.end = p.base >> kv->page_shift;
    return p;
}

static uint32_t room_of(const struct be_kv *kv, const struct span *p)
{
    return room_pages(p->end - (p->base >> kv->page_shift));
}

static enum rc check_pages(const struct be_kv *kv, uint32_t cls, const struct be_seq *s,
                           const struct span *p, const char *op, struct rc_err *err)
{
    const int32_t *pages = s->pages[cls];

    if (p->lo < p->end && !pages)
        return rc_fail(err, RC_INVALID, "%s: no page table for class %u", op, cls);
    for (uint32_t i = p->lo; i < p->end; i++)
        if (pages[i] < 0 || (uint32_t)pages[i] >= kv->n_pages[cls])
            return rc_fail(err, RC_INVALID, "%s: page %d of position %u, expected 0..%u", op,
                           pages[i], i << kv->page_shift, kv->n_pages[cls] - 1);
    return RC_OK;
}

static struct kx_seq *tab_seqs(const struct be_cuda_ctx *c, const struct be_cuda_tab *t)
{
    return (struct kx_seq *)(void *)(c->stage.host[c->stage.cur] + t->seqs_at);
}

/* kv_write's kernel counts rows from the first sequence's on. */
static uint32_t first_row(const struct be_seq *seqs, uint32_t n_seqs, bool write)
{
    return write && n_seqs > 0 ? seqs[0].row0 : 0;
}

/* Is t the table of these sequences? Compared in full: the caller may have changed them. */
static bool same_tab(const struct be_cuda_ctx *c, const struct be_cuda_tab *t,
                     const struct be_kv *kv, uint32_t cls, const struct be_seq *seqs,
                     uint32_t n_seqs, bool write, uint32_t window)
{
    const struct kx_seq *k = tab_seqs(c, t);
    const int32_t *pages =
        (const int32_t *)(const void *)(c->stage.host[c->stage.cur] + t->pages_at);

    uint32_t first = first_row(seqs, n_seqs, write);

    if (t->kv != kv || t->cls != cls || t->n_seqs != n_seqs || t->write != write ||
        t->window != window)
        return false;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct be_seq *s = &seqs[i];
        struct span p = span_of(kv, s, write, window);

        if (k[i].row0 != s->row0 - first || k[i].n_rows != s->n_rows ||
            k[i].pos0 != s->pos0 - p.base)
            return false;
        if (p.lo < p.end &&
            (!s->pages[cls] || memcmp(pages + k[i].page0 + (p.lo - (p.base >> kv->page_shift)),
                                      s->pages[cls] + p.lo, (p.end - p.lo) * sizeof(int32_t)) != 0))
            return false;
    }
    return true;
}

static enum rc new_tab(struct be_cuda_ctx *c, const struct be_kv *kv, uint32_t cls,
                       const struct be_seq *seqs, uint32_t n_seqs, bool write, uint32_t window,
                       const char *op, struct be_cuda_tab **out, struct rc_err *err)
{
    struct be_cuda_stage *s = &c->stage;
    uint32_t slot = s->n_tabs < BE_CUDA_TABS ? s->n_tabs : s->next_tab++ % BE_CUDA_TABS;
    struct be_cuda_tab t = {
        .kv = kv, .cls = cls, .n_seqs = n_seqs, .write = write, .window = window};
    uint32_t first = first_row(seqs, n_seqs, write);
    uint64_t n_pages = 0;
    struct kx_seq *k;
    int32_t *pages;
    enum rc rc;

    for (uint32_t i = 0; i < n_seqs; i++) {
        struct span p = span_of(kv, &seqs[i], write, window);

        if ((rc = check_pages(kv, cls, &seqs[i], &p, op, err)) != RC_OK)
            return rc;
        n_pages += room_of(kv, &p);
    }
    if (n_pages * sizeof(int32_t) > BE_CUDA_STAGE ||
        !(k = be_cuda_stage_take(c, n_seqs * (uint32_t)sizeof(*k), &t.seqs_at)) ||
        !(pages = be_cuda_stage_take(c, (uint32_t)(n_pages * sizeof(int32_t)), &t.pages_at)))
        return full(op, err);
    memset(pages, 0xff, n_pages * sizeof(int32_t)); /* -1: let go */
    n_pages = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct be_seq *q = &seqs[i];
        struct span p = span_of(kv, q, write, window);

        k[i] = (struct kx_seq){q->row0 - first, q->n_rows, q->pos0 - p.base, (uint32_t)n_pages};
        if (p.lo < p.end)
            memcpy(pages + n_pages + (p.lo - (p.base >> kv->page_shift)), q->pages[cls] + p.lo,
                   (p.end - p.lo) * sizeof(int32_t));
        n_pages += room_of(kv, &p);
        if (q->row0 - first + q->n_rows > t.n_rows)
            t.n_rows = q->row0 - first + q->n_rows;
    }
    if (slot == s->n_tabs)
        s->n_tabs++;
    s->tab[slot] = t;
    *out = &s->tab[slot];
    return RC_OK;
}

uint64_t be_cuda_stage_seq_bytes(const struct be_kv *kv, const struct be_seq *seqs, uint32_t n_seqs,
                                 bool write, uint32_t window)
{
    uint64_t n = 0, rows = 0, last = 0;

    for (uint32_t i = 0; i < n_seqs; i++) {
        struct span p = span_of(kv, &seqs[i], write, window);

        n += (uint64_t)room_of(kv, &p) * sizeof(int32_t);
        rows += seqs[i].n_rows;
        if ((uint64_t)seqs[i].row0 + seqs[i].n_rows > last)
            last = (uint64_t)seqs[i].row0 + seqs[i].n_rows;
    }
    /* pages, sequences, row_seq, and tiles of one row each at worst, twice */
    return n + n_seqs * sizeof(struct kx_seq) + last * 4 + rows * 2 * sizeof(struct kx_qtile) +
           8 * BE_CUDA_ALIGN;
}

enum rc be_cuda_stage_seqs(struct be_cuda_ctx *c, const struct be_kv *kv, uint32_t cls,
                           const struct be_seq *seqs, uint32_t n_seqs, bool write, uint32_t window,
                           const char *op, struct be_cuda_tab **out, struct rc_err *err)
{
    struct be_cuda_stage *s = &c->stage;

    for (uint32_t i = 0; i < s->n_tabs; i++)
        if (same_tab(c, &s->tab[i], kv, cls, seqs, n_seqs, write, window)) {
            *out = &s->tab[i];
            return RC_OK;
        }
    return new_tab(c, kv, cls, seqs, n_seqs, write, window, op, out, err);
}

enum rc be_cuda_stage_row_seq(struct be_cuda_ctx *c, struct be_cuda_tab *t, cu_ptr *out,
                              struct rc_err *err)
{
    const struct kx_seq *k = tab_seqs(c, t);
    uint32_t *p;

    if (t->row_seq_at == 0) {
        if (!(p = be_cuda_stage_take(c, t->n_rows * 4, &t->row_seq_at)))
            return full("kv_write", err);
        for (uint32_t i = 0; i < t->n_seqs; i++)
            for (uint32_t r = 0; r < k[i].n_rows; r++)
                p[k[i].row0 + r] = i;
    }
    *out = be_cuda_stage_addr(c, t->row_seq_at);
    return RC_OK;
}

enum rc be_cuda_stage_tiles(struct be_cuda_ctx *c, struct be_cuda_tab *t, uint32_t rows, bool small,
                            uint32_t seq0, uint32_t seq1, cu_ptr *out, uint32_t *out_n,
                            struct rc_err *err)
{
    const struct kx_seq *k = tab_seqs(c, t);
    struct kx_qtile *q;
    uint32_t n = 0, at;

    for (uint32_t i = 0; i < t->n_tiles; i++)
        if (t->tiles[i].rows == rows && t->tiles[i].small == small && t->tiles[i].seq0 == seq0 &&
            t->tiles[i].seq1 == seq1) {
            *out = be_cuda_stage_addr(c, t->tiles[i].at);
            *out_n = t->tiles[i].n;
            return RC_OK;
        }
    for (uint32_t i = seq0; i < seq1; i++)
        if ((k[i].n_rows <= BE_CUDA_SMALL_ROWS) == small)
            n += (k[i].n_rows + rows - 1) / rows;
    if (n > BE_CUDA_STAGE / sizeof(*q) ||
        !(q = be_cuda_stage_take(c, n * (uint32_t)sizeof(*q), &at)))
        return full("attention", err);
    n = 0;
    for (uint32_t i = seq0; i < seq1; i++)
        for (uint32_t r = 0; (k[i].n_rows <= BE_CUDA_SMALL_ROWS) == small && r < k[i].n_rows;
             r += rows)
            q[n++] = (struct kx_qtile){i, k[i].row0 + r,
                                       k[i].n_rows - r < rows ? k[i].n_rows - r : rows, 0};
    if (t->n_tiles < BE_CUDA_TILES) {
        t->tiles[t->n_tiles].rows = rows;
        t->tiles[t->n_tiles].small = small;
        t->tiles[t->n_tiles].seq0 = seq0;
        t->tiles[t->n_tiles].seq1 = seq1;
        t->tiles[t->n_tiles].at = at;
        t->tiles[t->n_tiles++].n = n;
    }
    *out = be_cuda_stage_addr(c, at);
    *out_n = n;
    return RC_OK;
}
