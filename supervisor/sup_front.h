/* sup_front.h - the process that talks to clients.
 *
 * Owns the loop, the listeners, the fleet and the metrics; after start it has no
 * right to open files, make processes or exec (its own sandbox, applied by
 * sup_front_main before the first listener accepts). Every handler gets a
 * struct sup_front * as its user pointer.
 */
#ifndef INFERD_SUP_FRONT_H
#define INFERD_SUP_FRONT_H

#include <stdbool.h>
#include <uv.h>

#include "sup_cache.h"
#include "sup_front_sandbox.h"
#include "sup_pass.h"

struct sup_auth;
struct sup_conf;
struct sup_fleet;
struct sup_http;
struct sup_link;
struct sup_metrics;
struct sup_quota;
struct sup_spans;
struct sup_role_fds;

struct sup_front {
    uv_loop_t loop;
    const struct sup_conf *conf;
    struct sup_metrics *metrics;
    struct sup_fleet *fleet;
    struct sup_http *http;
    struct sup_spans *spans; /* or NULL */
    struct sup_auth *auth;
    struct sup_link *link; /* to the fetcher */
    bool draining;
    struct sup_walls_layer launcher[SUP_FRONT_LAYERS]; /* which of the launcher's hold */
    struct sup_cache_secret cache_secret;
    struct sup_quota *quota;  /* of tenants */
    uint32_t active;          /* API requests in work, against max_concurrent_requests */
    struct sup_passes passes; /* that models have shown */
    uint64_t held_bytes;      /* of their files and waiting bodies: sup_call_hold */
};

/* Returns the process's exit status. */
int sup_front_main(const struct sup_conf *conf, const struct sup_role_fds *fds);

#endif
