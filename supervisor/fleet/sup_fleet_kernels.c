/* sup_fleet_kernels.c - a worker's counts of kernels, as metrics.
 *
 * The worker tells running totals of its own life; a metric's counter outlives workers, so
 * the rise since the last message is added. Counts that fall are a worker that lies or
 * wraps: nothing is added. Lists are foreign: what is longer than the tables is ignored.
 * Change freely: the tables. The order of routes and formats is the protocol's
 * (proto/inferd.proto, KernelStats). Tests: tests/supervisor/test_sup_fleet.c
 */
#include "sup_fleet_impl.h"

#include <stddef.h>

static const char *const routes[] = {"jit", "exact", "bucket", "library", "hand", "reference"};
static const char *const formats[] = {"F32",  "F16",  "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                      "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16"};
_Static_assert(sizeof(routes) / sizeof(routes[0]) == FLEET_ROUTES, "a count for each route");
_Static_assert(sizeof(formats) / sizeof(formats[0]) == FLEET_FORMATS, "a count for each format");

static const struct {
    enum sup_metric metric;
    const char *label; /* the second; NULL = the metric has one */
    size_t at;         /* of a uint64_t in Ipc__KernelStats */
} counters[] = {
#define AT(f) offsetof(Ipc__KernelStats, f)
    {SUP_M_KERNEL_FALLBACKS, "missing_artifact", AT(missing_artifacts)},
    {SUP_M_KERNEL_FALLBACKS, "wiring", AT(wiring_failures)},
    {SUP_M_KERNEL_FALLBACKS, "decode", AT(decode_fallbacks)},
    {SUP_M_KERNEL_FALLBACKS, "slow", AT(slow_fallbacks)},
    {SUP_M_KERNEL_FUSED, NULL, AT(fused)},
    {SUP_M_DEVICE_STEPS, "captured", AT(graph_captures)},
    {SUP_M_DEVICE_STEPS, "replayed", AT(graph_replays)},
    {SUP_M_DEVICE_STEPS, "streamed", AT(stream_steps)},
    {SUP_M_DEVICE_GRAPH_EVICTIONS, NULL, AT(graph_evictions)},
    {SUP_M_DEVICE_SYNCS, NULL, AT(syncs)},
    {SUP_M_DEVICE_COPIES, "to_device", AT(h2d_bytes)},
    {SUP_M_DEVICE_COPIES, "from_device", AT(d2h_bytes)},
    {SUP_M_JIT, "compiled", AT(jit_compiles)},
    {SUP_M_JIT, "failed", AT(jit_failures)},
    {SUP_M_JIT, "hot_compile", AT(hot_compiles)},
    {SUP_M_JIT_CACHE, "hit", AT(jit_hits)},
    {SUP_M_JIT_CACHE, "miss", AT(jit_misses)},
    {SUP_M_JIT_CACHE, "corrupt", AT(jit_corrupt)},
    {SUP_M_JIT_CACHE, "store", AT(jit_stores)},
    {SUP_M_JIT_CACHE, "eviction", AT(jit_evictions)},
#undef AT
};
_Static_assert(sizeof(counters) / sizeof(counters[0]) == FLEET_COUNTERS, "room in struct worker");

void worker_rise(struct sup_metrics *m, enum sup_metric id, const char *model, const char *label,
                 uint64_t now, uint64_t *last)
{
    if (now > *last)
        sup_series_add(sup_series(m, id, model, label), (double)(now - *last));
    *last = now;
}

void worker_kernels(struct worker *w, const char *model, const Ipc__KernelStats *k)
{
    struct sup_metrics *m = w->f->metrics;
    struct worker_kernels *last = &w->last_kernels;

    for (size_t i = 0; i < FLEET_ROUTES && i < k->n_dispatch; i++)
        worker_rise(m, SUP_M_KERNEL_DISPATCHES, model, routes[i], k->dispatch[i], &last->route[i]);
    for (size_t i = 0; i < FLEET_FORMATS && i < k->n_by_format; i++)
        worker_rise(m, SUP_M_KERNEL_PRODUCTS, model, formats[i], k->by_format[i], &last->format[i]);
    for (size_t i = 0; i < FLEET_COUNTERS; i++)
        worker_rise(m, counters[i].metric, model, counters[i].label,
                    *(const uint64_t *)(const void *)((const char *)k + counters[i].at),
                    &last->counter[i]);
    sup_series_set(sup_series(m, SUP_M_JIT_KERNELS, model, "active"), (double)k->jit_active);
    sup_series_set(sup_series(m, SUP_M_JIT_KERNELS, model, "quarantined"),
                   (double)k->jit_quarantined);
}
