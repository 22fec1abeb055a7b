/* sup_pressure.c - requests waiting and running, KV cache in use (see sup_pressure.h).
 *
 * Requests in work are counted by the front at once; how many of them decode comes from
 * the worker about once a second. What does not decode yet waits: in the front, for a load,
 * or in the worker. Of a model that does not generate everything in work counts as running
 * once it is loaded: one pass takes many texts together.
 * Tests: tests/supervisor/test_sup_pressure.c
 */
#include "sup_pressure.h"

#include <stdbool.h>
#include <string.h>

#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_metrics.h"

struct sums {
    struct sup_metrics *m;
    double waiting, running, kv; /* kv: of the fullest cache */
};

static double at_most(double a, double b)
{
    return a < b ? a : b;
}

static void show_model(void *user, const struct sup_model_view *v)
{
    struct sums *s = user;
    bool loaded = strcmp(v->state, "ready") == 0 || strcmp(v->state, "busy") == 0;
    double active = v->active_tasks, running = 0, kv = 0;

    if (v->loads == 0 && v->active_tasks == 0)
        return; /* thousands may lie on disk: no series for what was never used */
    if (loaded && v->info && v->info->can_generate) {
        running = at_most(active, sup_series_value(sup_series(s->m, SUP_M_SEQS, v->id, "running")));
        if (v->info->kv_bytes)
            kv = at_most(1, sup_series_value(sup_series(s->m, SUP_M_KV_USED, v->id, NULL)) /
                                (double)v->info->kv_bytes);
        sup_series_set(sup_series(s->m, SUP_M_KV_RATIO, v->id, NULL), kv);
    } else if (loaded) {
        running = active;
    }
    sup_series_set(sup_series(s->m, SUP_M_REQ_RUNNING, v->id, NULL), running);
    sup_series_set(sup_series(s->m, SUP_M_REQ_WAITING, v->id, NULL), active - running);
    s->running += running;
    s->waiting += active - running;
    s->kv = kv > s->kv ? kv : s->kv;
}

void sup_pressure_show(struct sup_front *front)
{
    struct sums s = {.m = front->metrics};

    sup_fleet_each(front->fleet, show_model, &s);
    sup_series_set(sup_series(s.m, SUP_M_VLLM_WAITING, NULL, NULL), s.waiting);
    sup_series_set(sup_series(s.m, SUP_M_VLLM_RUNNING, NULL, NULL), s.running);
    sup_series_set(sup_series(s.m, SUP_M_VLLM_KV, NULL, NULL), s.kv);
    sup_series_set(sup_series(s.m, SUP_M_VLLM_KV_OLD, NULL, NULL), s.kv);
}
