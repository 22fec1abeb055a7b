/* wrk_fill.c - prompts that are in the cache without having been computed, for measurements.
 *
 * What a decoded token costs behind 32K others does not depend on what those say, and
 * computing them takes minutes. So all but the last FILL_REST rows of a prompt get made-up
 * keys and values; these last are computed as ever, and the pages, windows and prompt cache
 * are as behind a real prompt. Only an engine with fill_prompts comes here; no server has one.
 * Tests: tests/worker/test_wrk_bench.c
 */
#include "wrk_engine_impl.h"

#define FILL_REST 16u

/* n rows of the sequence in slot i. */
static enum rc fill(struct wrk_engine *e, uint32_t i, uint32_t n, struct rc_err *err)
{
    struct wrk_seq *s = &e->seq[i];
    struct be_seq *p = &e->part[0];
    enum rc rc;

    e->n_parts = 1; /* first: whose task ends if this fails */
    e->part_seq[0] = i;
    if ((rc = wrk_table_hold(&s->table, &e->pages, s->pos, n, err)) != RC_OK)
        return rc;
    *p = (struct be_seq){.n_rows = n, .pos0 = s->pos};
    for (uint32_t c = 0; c < e->pages.n_classes; c++)
        p->pages[c] = s->table.entry[c];
    if ((rc = mdl_kv_fill(e->o.mdl, p, 1, n, err)) != RC_OK)
        return rc;
    s->pos += n;
    wrk_seq_filled(e, s);
    return RC_OK;
}

enum rc wrk_fill_prompts(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t most = wrk_least(e->pages.chunk, e->o.batch_tokens);
    enum rc rc;

    for (uint32_t i = 0; i < e->o.max_seqs; i++) {
        struct wrk_seq *s = &e->seq[i];

        if (!wrk_seq_ready(e, s))
            continue;
        while (!s->decoding && s->pos + FILL_REST < s->n_fill)
            if ((rc = fill(e, i, wrk_least(most, s->n_fill - FILL_REST - s->pos), err)) != RC_OK)
                return rc;
    }
    return RC_OK;
}
