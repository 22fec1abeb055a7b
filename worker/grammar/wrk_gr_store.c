/* wrk_gr_store.c - programs and masks of one model, kept while they are useful.
 *
 * A program is found by its text; a mask by its program and where a run stands. Both
 * are counted in bytes and given up oldest first; what somebody uses stays. Nothing here
 * can change an answer: what is not found is computed again, to the same bits.
 * Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static uint64_t hash_bytes(const void *p, size_t n, uint64_t h)
{
    const uint8_t *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3ull;
    return h ^ h >> 31;
}

static void unlink_it(struct link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
}

static void link_last(struct link *ring, struct link *l)
{
    l->prev = ring->prev;
    l->next = ring;
    ring->prev->next = l;
    ring->prev = l;
}

/* ----------------------------------------------------------------------- masks */

static void entry_free(struct wrk_gr_store *s, struct wrk_gr_entry *e)
{
    struct wrk_gr_entry **at = &s->mask_slot[e->hash % MASK_SLOTS];

    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    unlink_it(&e->lru);
    e->of->n_masks--;
    s->mask_bytes -= e->bytes;
    free(e->key);
    free(e);
}

void gr_masks_trim(struct wrk_gr_store *s)
{
    struct link *l = s->masks.next;

    while (s->mask_bytes > WRK_GR_MASKS_BYTES && l != &s->masks) {
        struct wrk_gr_entry *e = (struct wrk_gr_entry *)l;

        l = l->next;
        if (e->refs == 0)
            entry_free(s, e);
    }
}

static struct wrk_gr_entry *mask_find(struct wrk_gr_store *s, const struct wrk_gr_held *h,
                                      uint64_t hash, uint32_t n_key)
{
    struct wrk_gr_entry *e = s->mask_slot[hash % MASK_SLOTS];

    while (e != NULL && (e->hash != hash || e->of != h || e->n_key != n_key ||
                         memcmp(e->key, s->words, n_key * sizeof(*e->key)) != 0))
        e = e->chain;
    return e;
}

static uint32_t count(const uint64_t *bits, uint32_t n_words)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcountll(bits[i]);
    return n;
}

/* The mask of the place in s->words, computed. */
static enum rc mask_make(struct wrk_gr_store *s, struct wrk_gr_held *h, uint64_t hash,
                         uint32_t n_key, struct wrk_gr_entry **out, struct rc_err *err)
{
    const struct wrk_gr_vocab *v = s->vocab;
    struct wrk_gr_entry *e;
    uint64_t from = now_us();
    uint32_t n, set;
    size_t bytes;
    bool list, cut;

    memset(s->bits, 0, v->n_words * sizeof(*s->bits));
    gr_mach_reset(&s->mach, h->prog);
    set = gr_mach_load(&s->mach, s->words);
    gr_mask_compute(&s->mach, set, v, s->bits);
    cut = s->mach.cut;
    s->stats.masks_cut += cut;
    n = count(s->bits, v->n_words);
    list = n < v->n_words; /* half of a row of bits */
    bytes = list ? ((size_t)n + 2) * sizeof(uint32_t) : v->n_words * sizeof(uint64_t);
    e = calloc(1, sizeof(*e) + bytes);
    if (e == NULL || (e->key = malloc(n_key * sizeof(*e->key))) == NULL) {
        free(e);
        return rc_fail(err, RC_NOMEM, "mask of %u tokens", n);
    }
    memcpy(e->key, s->words, n_key * sizeof(*e->key));
    if (list) {
        uint32_t *id = (uint32_t *)e->data;

        for (uint32_t w = 0; w < v->n_words; w++)
            for (uint64_t x = s->bits[w]; x != 0; x &= x - 1)
                *id++ = w * 64 + (uint32_t)__builtin_ctzll(x);
    } else {
        memcpy(e->data, s->bits, bytes);
    }
    e->of = h;
    e->hash = hash;
    e->n_key = n_key;
    e->n = n;
    e->list = list;
    e->cut = cut;
    e->bytes = sizeof(*e) + bytes + n_key * sizeof(*e->key);
    e->chain = s->mask_slot[hash % MASK_SLOTS];
    s->mask_slot[hash % MASK_SLOTS] = e;
    link_last(&s->masks, &e->lru);
    h->n_masks++;
    s->mask_bytes += e->bytes;
    s->stats.mask_us += now_us() - from;
    *out = e;
    return RC_OK;
}

enum rc gr_mask_get(struct wrk_gr_store *s, struct wrk_gr_held *h, uint32_t n_key,
                    struct wrk_gr_entry **out, struct rc_err *err)
{
    uint64_t hash = hash_bytes(s->words, n_key * sizeof(*s->words), (uint64_t)(uintptr_t)h);

    if ((*out = mask_find(s, h, hash, n_key)) == NULL) {
        s->stats.mask_misses++;
        return mask_make(s, h, hash, n_key, out, err);
    }
    s->stats.mask_hits++;
    unlink_it(&(*out)->lru);
    link_last(&s->masks, &(*out)->lru);
    return RC_OK;
}

/* -------------------------------------------------------------------- programs */

static void held_free(struct wrk_gr_store *s, struct wrk_gr_held *h)
{
    struct wrk_gr_held **at = &s->prog_slot[h->hash % PROG_SLOTS];
    struct link *l = s->masks.next;

    while (l != &s->masks && h->n_masks > 0) {
        struct wrk_gr_entry *e = (struct wrk_gr_entry *)l;

        l = l->next;
        if (e->of == h)
            entry_free(s, e);
    }
    while (*at != h)
        at = &(*at)->chain;
    *at = h->chain;
    unlink_it(&h->lru);
    s->prog_bytes -= h->bytes;
    wrk_gr_prog_free(&h->prog);
    free(h->text);
    free(h->start);
    free(h);
}

static void progs_trim(struct wrk_gr_store *s)
{
    struct link *l = s->progs.next;

    while (s->prog_bytes > WRK_GR_PROGS_BYTES && l != &s->progs) {
        struct wrk_gr_held *h = (struct wrk_gr_held *)l;

        l = l->next;
        if (h->refs == 0)
            held_free(s, h);
    }
}

static enum rc held_new(struct wrk_gr_store *s, struct wrk_gr_held **out, enum wrk_gr_kind kind,
                        const char *text, size_t n, struct rc_err *err)
{
    struct wrk_gr_held *h = calloc(1, sizeof(*h));
    enum rc rc;

    if (h == NULL || (h->text = malloc(n + 1)) == NULL) {
        free(h);
        return rc_fail(err, RC_NOMEM, "grammar of %zu bytes", n);
    }
    if ((rc = wrk_gr_compile(&h->prog, kind, text, n, err)) != RC_OK)
        goto fail;
    gr_mach_reset(&s->mach, h->prog);
    h->n_start = gr_mach_save(&s->mach, gr_mach_start(&s->mach), GR_INF, GR_INF, s->words);
    if (s->mach.cut) {
        rc = rc_fail(err, RC_TOO_LARGE,
                     "the grammar can begin in more than %u ways at once: make its alternatives "
                     "differ earlier",
                     GR_CONFIGS);
        goto fail;
    }
    if ((h->start = malloc(h->n_start * sizeof(*h->start))) == NULL) {
        rc = rc_fail(err, RC_NOMEM, "grammar of %zu bytes", n);
        goto fail;
    }
    memcpy(h->start, s->words, h->n_start * sizeof(*h->start));
    if (n > 0)
        memcpy(h->text, text, n);
    h->n_text = n;
    h->kind = kind;
    h->bytes = sizeof(*h) + n + wrk_gr_prog_bytes(h->prog) + h->n_start * sizeof(*h->start);
    *out = h;
    return RC_OK;
fail:
    wrk_gr_prog_free(&h->prog);
    free(h->text);
    free(h);
    return rc;
}

enum rc wrk_gr_hold(struct wrk_gr_store *s, struct wrk_gr_held **out, enum wrk_gr_kind kind,
                    const char *text, size_t n, struct rc_err *err)
{
    uint64_t hash = hash_bytes(text, n, 0xcbf29ce484222325ull + (uint64_t)kind), from = now_us();
    struct wrk_gr_held *h = s->prog_slot[hash % PROG_SLOTS];
    enum rc rc;

    while (h != NULL && (h->hash != hash || h->kind != kind || h->n_text != n ||
                         (n > 0 && memcmp(h->text, text, n) != 0)))
        h = h->chain;
    if (h == NULL) {
        rc = held_new(s, &h, kind, text, n, err);
        s->stats.compile_us += now_us() - from;
        if (rc != RC_OK) {
            s->stats.refused++;
            return rc;
        }
        s->stats.compiled++;
        progs_trim(s);
        if (s->prog_bytes + h->bytes > WRK_GR_USED_BYTES) {
            rc = rc_fail(err, RC_BUSY, "grammars in use take %zu MiB, at most %u",
                         s->prog_bytes >> 20, WRK_GR_USED_BYTES >> 20);
            wrk_gr_prog_free(&h->prog);
            free(h->text);
            free(h->start);
            free(h);
            return rc;
        }
        h->hash = hash;
        h->chain = s->prog_slot[hash % PROG_SLOTS];
        s->prog_slot[hash % PROG_SLOTS] = h;
        s->prog_bytes += h->bytes;
    } else {
        s->stats.prog_hits++;
        unlink_it(&h->lru);
    }
    link_last(&s->progs, &h->lru);
    h->refs++;
    progs_trim(s);
    *out = h;
    return RC_OK;
}

void wrk_gr_release(struct wrk_gr_store *s, struct wrk_gr_held **h)
{
    if (*h == NULL)
        return;
    (*h)->refs--;
    *h = NULL;
    progs_trim(s);
}

enum rc wrk_gr_store_new(struct wrk_gr_store **out, struct rc_err *err)
{
    struct wrk_gr_store *s = calloc(1, sizeof(*s));
    enum rc rc;

    if (s == NULL)
        return rc_fail(err, RC_NOMEM, "store of grammars");
    s->masks.prev = s->masks.next = &s->masks;
    s->progs.prev = s->progs.next = &s->progs;
    if ((rc = gr_mach_init(&s->mach, err)) != RC_OK) {
        free(s);
        return rc;
    }
    *out = s;
    return RC_OK;
}

void wrk_gr_store_free(struct wrk_gr_store **ps)
{
    struct wrk_gr_store *s = *ps;

    if (s == NULL)
        return;
    while (s->progs.next != &s->progs)
        held_free(s, (struct wrk_gr_held *)s->progs.next);
    gr_mach_deinit(&s->mach);
    free(s->bits);
    free(s);
    *ps = NULL;
}

enum rc wrk_gr_store_vocab(struct wrk_gr_store *s, const struct wrk_gr_vocab *v, struct rc_err *err)
{
    free(s->bits);
    if ((s->bits = calloc(v->n_words + 1, sizeof(*s->bits))) == NULL)
        return rc_fail(err, RC_NOMEM, "mask of %u tokens", v->n_vocab);
    s->vocab = v;
    return RC_OK;
}

struct wrk_gr_stats wrk_gr_stats_get(const struct wrk_gr_store *s)
{
    struct wrk_gr_stats out = s->stats;

    out.bytes = s->mask_bytes + s->prog_bytes + (s->vocab != NULL ? s->vocab->bytes : 0);
    return out;
}
