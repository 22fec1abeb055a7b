/* sup_fleet_decide.c - decisions and their prototypes, as metrics.
 *
 * Results are counted from answers that were checked; what a worker tells of its prototype sets
 * is shown and decides nothing. Counters rise as in sup_fleet_kernels.c.
 * Page: docs/decisions.md. Tests: tests/supervisor/test_sup_fleet.c, tests/e2e/decisions.py
 */
#include "sup_fleet_impl.h"

void sup_fleet_decided(struct sup_metrics *m, const char *id, const Ipc__Decided *d)
{
    static const char *const words[] = {"selected", "tie", "min_similarity", "min_margin"};

    for (size_t i = 0; i < d->n_answers; i++) {
        const Ipc__DecidedAnswer *a = d->answers[i];

        sup_series_add(
            sup_series(m, SUP_M_DECISIONS, id, a->status == 2 ? "empty" : words[a->reason]), 1);
    }
}

void worker_protos(struct worker *w, const char *id, const Ipc__Stats *s)
{
    struct sup_metrics *m = w->f->metrics;
    Ipc__Stats *old = &w->last_stats;

    if (s->proto_hits + s->proto_fills + s->proto_waits == 0)
        return;
    worker_rise(m, SUP_M_PROTO_EVENTS, id, "hit", s->proto_hits, &old->proto_hits);
    worker_rise(m, SUP_M_PROTO_EVENTS, id, "fill", s->proto_fills, &old->proto_fills);
    worker_rise(m, SUP_M_PROTO_EVENTS, id, "wait", s->proto_waits, &old->proto_waits);
    sup_series_set(sup_series(m, SUP_M_PROTO_SETS, id, NULL), s->proto_sets);
    sup_series_set(sup_series(m, SUP_M_PROTO_BYTES, id, NULL), (double)s->proto_bytes);
    old->proto_bytes = s->proto_bytes;
}

void worker_protos_none(struct worker *w, const char *id)
{
    if (!w->last_stats.proto_bytes)
        return;
    sup_series_set(sup_series(w->f->metrics, SUP_M_PROTO_SETS, id, NULL), 0);
    sup_series_set(sup_series(w->f->metrics, SUP_M_PROTO_BYTES, id, NULL), 0);
    w->last_stats.proto_bytes = 0;
}
