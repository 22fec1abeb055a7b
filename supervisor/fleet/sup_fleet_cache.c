/* sup_fleet_cache.c - the prompt caches of the workers: their budgets, and what they tell.
 *
 * With prompt_cache_mb the server's budget is dealt out anew every few seconds, by
 * the prompt tokens each model was asked lately (sup_cache.h), and whenever a worker
 * comes or goes. Those are counted from answers that were checked (sup_fleet_task.c): what
 * a worker tells of itself in Stats is shown and decides nothing. Counters rise as in
 * sup_fleet_kernels.c. Change freely: how often, the table. Tests:
 * tests/supervisor/test_sup_fleet.c, tests/e2e/prompt_cache.py
 */
#include "sup_fleet_impl.h"

#include <stddef.h>

#include "sup_cache.h"

#define DEAL_EVERY_MS 5000

static const struct {
    enum sup_metric metric;
    const char *label;
    size_t at; /* of a uint64_t in Ipc__Stats */
} counters[] = {
#define AT(f) offsetof(Ipc__Stats, f)
    {SUP_M_CACHE_TOKENS, "hit", AT(cache_hit_tokens)},
    {SUP_M_CACHE_TOKENS, "miss", AT(cache_miss_tokens)},
    {SUP_M_CACHE_LOOKUPS, "all", AT(cache_lookups)},
    {SUP_M_CACHE_LOOKUPS, "hit", AT(cache_hits)},
    {SUP_M_CACHE_WINDOW, NULL, AT(cache_window_tokens)},
    {SUP_M_CACHE_PAGES, "inserted", AT(cache_inserted_pages)},
    {SUP_M_CACHE_PAGES, "denied", AT(cache_denied_pages)},
    {SUP_M_CACHE_PAGES, "evicted_space", AT(cache_evicted_space)},
    {SUP_M_CACHE_PAGES, "evicted_budget", AT(cache_evicted_budget)},
    {SUP_M_CACHE_PAGES, "evicted_window", AT(cache_evicted_windows)},
    {SUP_M_PARKED, NULL, AT(parked)},
#undef AT
};
_Static_assert(sizeof(counters) / sizeof(counters[0]) == FLEET_CACHE_COUNTERS,
               "room in struct worker");

void worker_cache(struct worker *w, const char *model, const Ipc__Stats *s)
{
    struct sup_metrics *m = w->f->metrics;

    for (size_t i = 0; i < FLEET_CACHE_COUNTERS; i++) {
        const uint64_t *now = (const uint64_t *)(const void *)((const char *)s + counters[i].at);

        worker_rise(m, counters[i].metric, model, counters[i].label, *now, &w->last_cache[i]);
    }
    sup_series_set(sup_series(m, SUP_M_CACHE_BYTES, model, "used"), (double)s->cache_bytes);
    sup_series_set(sup_series(m, SUP_M_CACHE_BYTES, model, "held"), (double)s->cache_held_bytes);
    sup_series_set(sup_series(m, SUP_M_CACHE_BYTES, model, "budget"),
                   (double)s->cache_budget_bytes);
}

void worker_cache_none(struct worker *w)
{
    struct sup_metrics *m = w->f->metrics;
    const char *id = w->slot->id;

    sup_series_set(sup_series(m, SUP_M_CACHE_BYTES, id, "used"), 0);
    sup_series_set(sup_series(m, SUP_M_CACHE_BYTES, id, "held"), 0);
    sup_series_set(sup_series(m, SUP_M_CACHE_BYTES, id, "budget"), 0);
}

static bool takes_part(const struct worker *w)
{
    return w->slot && w->state == SUP_W_RUNNING && w->loaded && w->loaded->can_generate;
}

uint64_t fleet_cache_first(const struct sup_fleet *f)
{
    uint64_t kv = f->conf->kv_mb << 20, total = f->conf->prompt_cache_mb << 20, n = 1;

    if (!f->conf->prompt_cache)
        return 0;
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next)
        n += takes_part(LNK_OF(l, struct worker, all));
    return total == 0 || total / n > kv ? kv : total / n;
}

void fleet_cache_deal(struct sup_fleet *f)
{
    struct sup_cache_share *share;
    size_t n = 0;

    f->cache_ms = fleet_now_ms(f);
    if (!f->conf->prompt_cache || f->conf->prompt_cache_mb == 0)
        return;
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next)
        n += takes_part(LNK_OF(l, struct worker, all));
    if (n == 0 || !(share = calloc(n, sizeof(*share))))
        return; /* the next time */
    n = 0;
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        struct worker *w = LNK_OF(l, struct worker, all);

        if (!takes_part(w))
            continue;
        share[n++] = (struct sup_cache_share){w->loaded->kv_bytes, w->cache_demand, 0};
        w->cache_demand /= 2; /* what was asked long ago fades */
    }
    sup_cache_deal(share, n, f->conf->prompt_cache_mb << 20);
    n = 0;
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        struct worker *w = LNK_OF(l, struct worker, all);
        uint64_t now;

        if (!takes_part(w))
            continue;
        now = share[n++].bytes;
        /* small changes are not worth a frame, unless the sum could come too high */
        if (now < w->cache_bytes || now - w->cache_bytes > w->cache_bytes / 16) {
            SUP_LOG(SUP_DEBUG, "prompt_cache_budget", SUP_S("model", w->slot->id),
                    SUP_I("bytes", now), SUP_I("before", w->cache_bytes));
            w->cache_bytes = now;
            worker_send_cache_budget(w, now);
        }
    }
    free(share);
}

void fleet_cache_tick(struct sup_fleet *f)
{
    if (fleet_now_ms(f) - f->cache_ms >= DEAL_EVERY_MS)
        fleet_cache_deal(f);
}
