/* wrk_kstats.h - how operations reached a device, as JSON and as a message.
 * Tests: tests/worker/test_wrk_device.c
 */
#ifndef INFERD_WRK_KSTATS_H
#define INFERD_WRK_KSTATS_H

#include <jansson.h>

#include "be.h"
#include "inferd.pb-c.h"

/* The plain counters of struct be_kstats, spelt alike there, in the message and in JSON. */
#define WRK_KSTATS(X)    \
    X(missing_artifacts) \
    X(wiring_failures)   \
    X(decode_fallbacks)  \
    X(slow_fallbacks)    \
    X(fused)             \
    X(graph_captures)    \
    X(graph_replays)     \
    X(graph_evictions)   \
    X(stream_steps)      \
    X(syncs)             \
    X(h2d_bytes)         \
    X(d2h_bytes)         \
    X(jit_compiles)      \
    X(jit_failures)      \
    X(jit_hits)          \
    X(jit_misses)        \
    X(jit_corrupt)       \
    X(jit_stores)        \
    X(jit_evictions)     \
    X(jit_quarantined)   \
    X(jit_active)        \
    X(hot_compiles)

/* {"dispatch":{"bucket":343,...},"by_format":{"Q4_K":...},"missing_artifacts":0,...} with
 * every route, and the formats that were used. NULL when out of memory. */
json_t *wrk_kstats_json(const struct be_kstats *k);

/* A message and the arrays it points to. */
struct wrk_kstats_msg {
    Ipc__KernelStats m;
    struct be_kstats k;
};
void wrk_kstats_msg(struct wrk_kstats_msg *out, const struct be_ctx *be);

#endif
