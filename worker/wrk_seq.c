/* wrk_seq.c - a sequence's pages: from admission to its end, parked in between.
 *
 * A sequence begins with the longest prefix the prompt cache can restore. While an
 * earlier one computes more of the same prefix it waits for that (single flight)
 * instead of computing it too. It reserves its prompt and the next AHEAD tokens of its
 * answer, not the whole of max_tokens; when it comes to the end of that and the
 * pool is promised away, the youngest sequence is parked: its pages go to the prompt
 * cache, and it is continued, before anyone new is admitted, by what the cache still
 * has and by computing the rest again. Who was parked twice reserves all it may need
 * and is never parked again, so everybody ends.
 *
 * Always true: a sequence without a table is parked; a parked one is in no pass; one
 * that waits for another waits for an older one, so nobody waits in a circle.
 * What is shared, waited for or parked never shows in an answer. Tests:
 * tests/worker/test_wrk_engine.c
 */
#include "wrk_engine_impl.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD 256u     /* tokens of an answer reserved at a time */
#define PARKED_MOST 2u /* times */
#define VAIN_MOST 2u   /* waits for another that brought nothing: it left, or the cache is full */

/* Rows it may come to have; the last token is never fed back, so it takes no room. */
static uint32_t most_rows(const struct wrk_gen *g)
{
    return g->n_prompt + g->max_new - 1;
}

static uint32_t rows_to_reserve(const struct wrk_seq *s)
{
    uint32_t most = most_rows(&s->task->gen);

    return s->n_parked >= PARKED_MOST || most - s->n_fill < AHEAD ? most : s->n_fill + AHEAD;
}

/* ------------------------------------------------------------- the prompt cache */

struct wrk_text wrk_seq_text(const struct wrk_seq *s)
{
    return (struct wrk_text){s->task->gen.prompt.ids, s->answer, s->task->gen.n_prompt};
}

int32_t wrk_seq_token(const struct wrk_seq *s, uint32_t row)
{
    struct wrk_text t = wrk_seq_text(s);

    return wrk_text_at(&t, row);
}

static bool caches(const struct wrk_engine *e, const struct wrk_gen *g)
{
    return g->cached && e->radix.budget_bytes > 0 && g->n_prompt >= e->o.cache_min_tokens;
}

/* Echo with log-probabilities needs every row of the prompt. */
static bool may_skip(const struct wrk_engine *e, const struct wrk_gen *g)
{
    return caches(e, g) && !(g->echo && g->logprobs);
}

/* Rows that need not be computed; at least the one that tells the next token is. */
static uint32_t rows_to_match(const struct wrk_seq *s)
{
    return s->n_new > 0 ? s->n_fill : s->n_fill - 1;
}

static void keep(struct wrk_engine *e, struct wrk_seq *s)
{
    struct wrk_text t = wrk_seq_text(s);

    if (caches(e, &s->task->gen))
        wrk_radix_insert(&e->radix, s->task->gen.ns, &s->task->gen.owner, &t, s->pos, &s->table,
                         true);
    s->n_kept = s->pos;
}

/* Someone waits for rows this sequence has now. */
static bool awaited(const struct wrk_engine *e, const struct wrk_seq *s)
{
    for (uint32_t i = 0; i < e->o.max_seqs; i++)
        if (e->seq[i].task != NULL && e->seq[i].awaits == s->serial &&
            e->seq[i].await_rows <= s->pos)
            return true;
    return false;
}

void wrk_seq_filled(struct wrk_engine *e, struct wrk_seq *s)
{
    uint32_t stride = wrk_radix_stride(&e->radix);

    if (s->n_new > 0 && s->pos == s->n_fill)
        s->decoding = true; /* goes on where it was parked */
    if (s->pos == s->n_fill || s->pos / stride > s->n_kept / stride || awaited(e, s))
        keep(e, s);
}

static uint32_t same_tokens(const struct wrk_gen *a, const struct wrk_gen *b)
{
    uint32_t n = wrk_least(a->n_prompt, b->n_prompt), i = 0;

    while (i < n && a->prompt.ids[i] == b->prompt.ids[i])
        i++;
    return i;
}

/* Finds an older sequence that is computing more of this one's prefix than it has. */
static void find_leader(const struct wrk_engine *e, struct wrk_seq *s)
{
    const struct wrk_gen *g = &s->task->gen;
    uint32_t page = e->pages.page_tokens, best = s->pos;

    for (uint32_t i = 0; i < e->o.max_seqs; i++) {
        const struct wrk_seq *l = &e->seq[i];
        uint32_t rows;

        if (l->task == NULL || l->serial >= s->serial || l->parked || l->n_new > 0 ||
            !caches(e, &l->task->gen) || memcmp(l->task->gen.ns, g->ns, WRK_NS_BYTES) != 0)
            continue;
        rows = wrk_least(same_tokens(g, &l->task->gen), rows_to_match(s));
        rows -= rows % page;
        if (rows > l->pos && rows > best && rows >= e->o.cache_min_tokens) {
            best = rows;
            s->awaits = l->serial;
            s->await_rows = rows;
        }
    }
}

static bool leads(const struct wrk_engine *e, uint64_t serial, uint32_t rows)
{
    for (uint32_t i = 0; i < e->o.max_seqs; i++)
        if (e->seq[i].task != NULL && e->seq[i].serial == serial)
            return !e->seq[i].parked && e->seq[i].n_new == 0 && e->seq[i].pos < rows;
    return false;
}

static void begin(struct wrk_engine *e, struct wrk_seq *s, uint32_t lost)
{
    s->begun = true;
    s->decoding = s->n_new > 0 && s->pos == s->n_fill; /* goes on where it was parked */
    if (s->counted)                                    /* it was parked in between */
        return;
    s->counted = true;
    if (caches(e, &s->task->gen))
        wrk_radix_count(&e->radix, s->task->gen.n_prompt, s->pos, lost);
    if (s->out.index == 0)
        s->task->gen.n_cached = s->pos;
}

bool wrk_seq_ready(struct wrk_engine *e, struct wrk_seq *s)
{
    struct wrk_prefix p = {.n = 0};
    struct wrk_text t;
    uint32_t lost = 0;

    if (s->task == NULL || s->parked)
        return false;
    if (s->begun)
        return true;
    if (s->awaits != 0 && leads(e, s->awaits, s->await_rows))
        return false;
    if (may_skip(e, &s->task->gen)) { /* what came in since it was admitted */
        uint32_t before = s->pos;

        t = wrk_seq_text(s);
        wrk_radix_match(&e->radix, s->task->gen.ns, &t, rows_to_match(s), &p, &lost);
        if (p.n > s->table.n_prefix && wrk_table_rebase(&s->table, &e->pages, &p, NULL) == RC_OK)
            s->pos = p.n * e->pages.page_tokens;
        s->n_vain += s->awaits != 0 && s->pos == before;
        s->awaits = 0;
        if (s->n_vain < VAIN_MOST)
            find_leader(e, s);
        if (s->awaits != 0)
            return false;
    }
    begin(e, s, lost);
    return true;
}

/* ------------------------------------------------------------------ open, close */

/* Pages for a new sequence or a parked one, beginning with what the cache has. RC_BUSY: not now. */
static enum rc take_pages(struct wrk_engine *e, struct wrk_seq *s, struct rc_err *why)
{
    const struct wrk_gen *g = &s->task->gen;
    struct wrk_text t = wrk_seq_text(s);
    struct wrk_prefix p = {.n = 0};
    enum rc rc;

    if (may_skip(e, g))
        wrk_radix_match(&e->radix, g->ns, &t, rows_to_match(s), &p, NULL);
    rc = wrk_table_open(&s->table, &e->pages, most_rows(g), rows_to_reserve(s), &p, why);
    if (rc == RC_BUSY &&
        p.n > 0) { /* a prefix's windows come on top: the cache makes nobody wait */
        p.n = 0;
        rc = wrk_table_open(&s->table, &e->pages, most_rows(g), rows_to_reserve(s), &p, why);
    }
    if (rc != RC_OK)
        return rc;
    s->pos = s->n_kept = p.n * e->pages.page_tokens;
    s->begun = s->parked = s->decoding = false;
    return RC_OK;
}

static enum rc counts_open(struct wrk_engine *e, struct wrk_seq *s, const struct wrk_gen *g,
                           struct rc_err *err)
{
    uint64_t most = (uint64_t)g->n_prompt + g->max_new;
    enum rc rc;

    if (!wrk_sampling_has_penalty(&g->sampling))
        return RC_OK;
    rc = wrk_counts_init(&s->counts,
                         most < e->info->vocab_size ? (uint32_t)most : e->info->vocab_size, err);
    for (uint32_t i = 0; rc == RC_OK && i < g->n_prompt; i++)
        wrk_counts_add(&s->counts, g->prompt.ids[i], false);
    return rc;
}

static enum rc run_open(struct wrk_engine *e, struct wrk_seq *s, const struct wrk_gen *g,
                        struct rc_err *err)
{
    enum rc rc;

    if (g->grammar == NULL)
        return RC_OK;
    rc = wrk_gr_run_init(&s->run, e->shapes.store, g->grammar, err);
    return rc == RC_OK ? wrk_gr_run_prepare(&s->run, err) : rc;
}

enum rc wrk_seq_open(struct wrk_engine *e, struct wrk_seq *s, struct wrk_task *t,
                     struct rc_err *why)
{
    struct wrk_gen *g = &t->gen;
    enum rc rc;

    s->task = t;
    s->n_fill = g->n_prompt;
    if ((rc = take_pages(e, s, why)) != RC_OK) {
        memset(s, 0, sizeof(*s));
        return rc;
    }
    e->n_seqs++;
    s->serial = ++e->serial;
    s->out.tok = mdl_tok_get(e->o.mdl);
    s->out.stops = &g->stops;
    s->out.talk = &g->talk;
    s->out.task = t->id;
    s->out.index = g->n_started;
    s->out.n_top = g->n_top;
    s->out.stream = g->stream;
    s->out.logprobs = g->logprobs;
    s->out.ids_wanted = g->ids_wanted;
    wrk_rng_seed(&s->rng, g->sampling.seed + g->n_started);
    s->answer = malloc((size_t)g->max_new * sizeof(*s->answer));
    rc = s->answer != NULL ? wrk_out_init(&s->out, g->max_new, why)
                           : rc_fail(why, RC_NOMEM, "an answer of %u tokens", g->max_new);
    if (rc != RC_OK || (rc = counts_open(e, s, g, why)) != RC_OK ||
        (rc = run_open(e, s, g, why)) != RC_OK) {
        wrk_seq_close(e, s);
        return rc;
    }
    g->n_started++;
    if (g->start_us == 0)
        g->start_us = wrk_now_us();
    return RC_OK;
}

void wrk_seq_finish(struct wrk_engine *e, struct wrk_seq *s)
{
    keep(e, s);
    wrk_seq_close(e, s);
}

void wrk_seq_close(struct wrk_engine *e, struct wrk_seq *s)
{
    wrk_table_close(&s->table, &e->pages);
    wrk_counts_deinit(&s->counts);
    wrk_out_deinit(&s->out);
    wrk_gr_run_deinit(&s->run);
    free(s->answer);
    memset(s, 0, sizeof(*s));
    e->n_seqs--;
    wrk_radix_trim(&e->radix);
}

/* --------------------------------------------------------------------- parking */

static void park(struct wrk_engine *e, struct wrk_seq *s)
{
    keep(e, s);
    if (s->n_new > 0)
        s->n_fill = s->decoding ? s->pos : s->n_fill;
    wrk_table_close(&s->table, &e->pages);
    wrk_radix_trim(&e->radix);
    s->pos = s->n_kept = 0;
    s->parked = true;
    s->decoding = false;
    s->n_draft = 0;
    s->awaits = 0;
    s->n_parked++;
    e->n_parked++;
}

static struct wrk_seq *youngest(struct wrk_engine *e)
{
    struct wrk_seq *v = NULL;

    for (uint32_t i = 0; i < e->o.max_seqs; i++) {
        struct wrk_seq *s = &e->seq[i];

        if (s->task != NULL && !s->parked && s->n_parked < PARKED_MOST &&
            (v == NULL || s->serial > v->serial))
            v = s;
    }
    return v;
}

void wrk_seq_grow(struct wrk_engine *e, struct wrk_seq *s, uint32_t n)
{
    uint32_t most = most_rows(&s->task->gen);

    n = wrk_least(n, most - s->pos);
    while (!s->parked && s->pos + n > s->table.n_tokens) {
        uint32_t to = most - s->pos - n < AHEAD ? most : s->pos + n + AHEAD;
        struct wrk_seq *v;

        if (wrk_table_grow(&s->table, &e->pages, to, NULL) == RC_OK)
            return;
        /* there is one: who was parked too often has all it may need, and is not here */
        if ((v = youngest(e)) == NULL)
            return;
        park(e, v);
    }
}

static struct wrk_seq *oldest_parked(struct wrk_engine *e)
{
    struct wrk_seq *v = NULL;

    for (uint32_t i = 0; e->n_seqs > 0 && i < e->o.max_seqs; i++)
        if (e->seq[i].task != NULL && e->seq[i].parked &&
            (v == NULL || e->seq[i].serial < v->serial))
            v = &e->seq[i];
    return v;
}

bool wrk_seq_unpark(struct wrk_engine *e, struct wrk_seq **failed, struct rc_err *why)
{
    struct wrk_seq *s;
    enum rc rc = RC_OK;

    *failed = NULL;
    while ((s = oldest_parked(e)) != NULL && (rc = take_pages(e, s, why)) == RC_OK)
        ;
    if (s != NULL && rc != RC_BUSY)
        *failed = s;
    return s == NULL;
}
