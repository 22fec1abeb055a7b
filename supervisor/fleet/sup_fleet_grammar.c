/* sup_fleet_grammar.c - what a worker tells of its grammars, as metrics.
 *
 * Counters are what came since the last Stats of the same worker, so a restart is no
 * step back. Page: docs/structured-output.md. Tests: tests/e2e/structured.py
 */
#include "sup_fleet_impl.h"

static void add_seconds(struct sup_series *s, uint64_t us, uint64_t *old)
{
    if (us > *old)
        sup_series_add(s, (double)(us - *old) * 1e-6);
    *old = us;
}

void worker_grammars(struct worker *w, const char *id, const Ipc__GrammarStats *s)
{
    struct sup_metrics *m = w->f->metrics;
    Ipc__GrammarStats *old = &w->last_grammar;

    worker_rise(m, SUP_M_GRAMMARS, id, "compiled", s->compiled, &old->compiled);
    worker_rise(m, SUP_M_GRAMMARS, id, "cached", s->cached, &old->cached);
    worker_rise(m, SUP_M_GRAMMARS, id, "refused", s->refused, &old->refused);
    add_seconds(sup_series(m, SUP_M_GRAMMAR_SECONDS, id, NULL), s->compile_us, &old->compile_us);
    worker_rise(m, SUP_M_GRAMMAR_MASKS, id, "hit", s->mask_hits, &old->mask_hits);
    worker_rise(m, SUP_M_GRAMMAR_MASKS, id, "miss", s->mask_misses, &old->mask_misses);
    worker_rise(m, SUP_M_GRAMMAR_MASKS, id, "cut", s->masks_cut, &old->masks_cut);
    add_seconds(sup_series(m, SUP_M_GRAMMAR_MASK_SECONDS, id, NULL), s->mask_us, &old->mask_us);
    sup_series_set(sup_series(m, SUP_M_GRAMMAR_BYTES, id, NULL), (double)s->bytes);
    old->bytes = s->bytes;
}

void worker_grammars_none(struct worker *w, const char *id)
{
    if (w->last_grammar.bytes)
        sup_series_set(sup_series(w->f->metrics, SUP_M_GRAMMAR_BYTES, id, NULL), 0);
    w->last_grammar.bytes = 0;
}
