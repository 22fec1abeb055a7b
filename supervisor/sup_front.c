/* sup_front.c - the front process: loop, listeners, fleet, metrics, and its end.
 *
 * Puts the rooms together; holds no policy but the order of start and drain:
 * limits, fleet (asks the launcher), listeners, sandbox, loop. On CtlStop readiness
 * turns false first, then the listeners close, streams get drain_grace_ms, what is
 * left ends with an error, workers are drained, and the process exits 0.
 *
 * Always true: no client byte is read before the sandbox is in place.
 * Tests: tests/supervisor/test_sup_front.c, tests/fault/, tests/e2e/ */
#include "sup_front.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sup_api.h"
#include "sup_auth.h"
#include "sup_call_admit.h"
#include "sup_conf.h"
#include "sup_fleet.h"
#include "sup_front_sandbox.h"
#include "sup_http.h"
#include "sup_link.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_quota.h"
#include "sup_quota_file.h"
#include "sup_spans.h"
#include "sup_role.h"

#define LAG_EVERY_MS 250
#define LAG_WINDOW 4      /* samples: "the last second" */
#define READY_LEAD_MS 500 /* between "not ready" and closed listeners, at most */
#define LAST_WORDS_MS 500 /* for errors to get out before connections are cut */
#define FDS_SPARE 128     /* 64 of them: connections over the limit that hear a 503 (http) */
#define FDS_PER_WORKER 4

struct front {
    struct sup_front pub;        /* first: handlers get it as user */
    struct sup_quota_file *days; /* NULL: what is used of a day is not kept */
    struct sup_conf conf;        /* pub.conf: this process's own, its live options change */
    uv_timer_t lag, grace;
    uint64_t lag_due_ms;
    double lags[LAG_WINDOW];
    unsigned n_lags;
    int statm_fd;
    long page_bytes;
    uint64_t cut_at_ms;
    bool http_done;
    struct sup_series *m_lag, *m_rss, *m_dropped;
};

static void watch_rss(struct front *f)
{
    char text[128];
    ssize_t n = f->statm_fd >= 0 ? pread(f->statm_fd, text, sizeof(text) - 1, 0) : -1;
    unsigned long long all, resident;

    if (n <= 0)
        return;
    text[n] = '\0';
    if (sscanf(text, "%llu %llu", &all, &resident) == 2)
        sup_series_set(f->m_rss, (double)resident * (double)f->page_bytes);
}

static void on_lag(uv_timer_t *t)
{
    struct front *f = t->data;
    uint64_t now = uv_hrtime() / 1000000;
    double worst = 0;

    f->lags[f->n_lags++ % LAG_WINDOW] =
        now > f->lag_due_ms ? (double)(now - f->lag_due_ms) / 1000.0 : 0;
    for (int i = 0; i < LAG_WINDOW; i++)
        worst = f->lags[i] > worst ? f->lags[i] : worst;
    sup_series_set(f->m_lag, worst);
    if (f->n_lags % (SUP_QUOTA_SAVE_MS / LAG_EVERY_MS) == 0)
        sup_quota_file_save(f->days, f->pub.quota, (uint64_t)time(NULL));
    if (f->n_lags % LAG_WINDOW == 0) {
        watch_rss(f);
        sup_series_set(f->m_dropped, (double)sup_log_dropped());
    }
    f->lag_due_ms = now + LAG_EVERY_MS;
    uv_timer_start(t, on_lag, LAG_EVERY_MS, 0);
}

/* -------------------------------------------------------------------- the end */

static void on_fleet_drained(void *user)
{
    struct front *f = user;

    SUP_LOG(SUP_INFO, "front_drained", SUP_B("clean", true));
    sup_auth_stop(f->pub.auth);
    sup_link_stop(f->pub.link);
    uv_close((uv_handle_t *)&f->lag, NULL);
    uv_close((uv_handle_t *)&f->grace, NULL);
}

static void on_http_drained(void *user)
{
    struct front *f = user;

    if (f->http_done)
        return;
    f->http_done = true;
    uv_timer_stop(&f->grace);
    sup_http_stop(f->pub.http);
    sup_fleet_drain(f->pub.fleet, on_fleet_drained, f);
}

static void on_last_words_over(uv_timer_t *t)
{
    struct front *f = t->data;

    sup_http_stop(f->pub.http); /* aborts cancel their tasks */
    on_http_drained(f);
}

static void on_grace_over(uv_timer_t *t)
{
    struct front *f = t->data;

    SUP_LOG(SUP_WARN, "streams_cut", SUP_I("active", f->pub.active),
            SUP_I("grace_ms", f->pub.conf->drain_grace_ms));
    sup_fleet_end_tasks(f->pub.fleet); /* each stream ends with an error event */
    uv_timer_start(t, on_last_words_over, LAST_WORDS_MS, 0);
}

static void on_lead_over(uv_timer_t *t)
{
    struct front *f = t->data;
    uint64_t now = uv_now(&f->pub.loop);

    uv_timer_start(t, on_grace_over, f->cut_at_ms > now ? f->cut_at_ms - now : 0, 0);
    sup_http_drain(f->pub.http, on_http_drained, f);
}

static void on_stop(void *user)
{
    struct front *f = user;
    uint64_t grace = f->pub.conf->drain_grace_ms, lead = grace / 4;

    if (f->pub.draining)
        return;
    f->pub.draining = true; /* readiness is false from here on */
    SUP_LOG(SUP_INFO, "draining", SUP_I("active", f->pub.active), SUP_I("grace_ms", grace));
    f->cut_at_ms = uv_now(&f->pub.loop) + grace;
    uv_timer_start(&f->grace, on_lead_over, lead < READY_LEAD_MS ? lead : READY_LEAD_MS, 0);
}

/* --------------------------------------------------------- a new configuration */

static void conf_told(struct front *f, const char *outcome)
{
    sup_series_add(sup_series(f->pub.metrics, SUP_M_CONF_RELOADS, outcome, NULL), 1);
}

static void conf_holds(struct front *f)
{
    sup_series_set(sup_series(f->pub.metrics, SUP_M_CONF_TIME, NULL, NULL), (double)time(NULL));
}

/* The launcher has judged it; requests that have begun go on under what they read. */
static void on_conf(void *user, const char *json, size_t n, const char *refused)
{
    struct front *f = user;
    struct sup_conf_changes what;
    struct rc_err err = RC_ERR_INIT;
    char names[1024];

    if (refused || sup_conf_take_live(&f->conf, json, n, &what, &err) != RC_OK) {
        if (!refused)
            SUP_LOG(SUP_ERROR, "conf_refused", SUP_S("what", err.what), SUP_S("error", err.msg));
        conf_told(f, "refused");
        return;
    }
    sup_log_init(sup_level_parse(f->conf.log_level));
    sup_spans_percent(f->pub.spans, (unsigned)f->conf.trace_percent);
    sup_conf_names(what.taken, what.n_taken, names, sizeof(names));
    SUP_LOG(SUP_INFO, "conf_reloaded", SUP_S("changed", names));
    conf_told(f, "ok");
    conf_holds(f);
}

/* ------------------------------------------------------------------ the start */

static enum rc listen_and_lock(struct front *f, struct rc_err *err)
{
    const struct sup_conf *c = f->pub.conf;
    struct sup_http_keys keys = sup_auth_keys(f->pub.auth);
    enum rc rc;

    sup_api_init();
    if ((rc = sup_http_new(&f->pub.http, &f->pub.loop, c, f->pub.metrics, sup_api_routes, &f->pub,
                           err)) != RC_OK)
        return rc;
    sup_http_spans(f->pub.http, f->pub.spans);
    keys.refuse = sup_api_refuse;
    sup_http_keys(f->pub.http, &keys);
    sup_http_early(f->pub.http, sup_admit_early);
    if ((rc = sup_http_start(f->pub.http, err)) != RC_OK ||
        (rc = sup_front_sandbox(c->sandbox, err)) != RC_OK)
        return rc;
    SUP_LOG(SUP_INFO, "listening", SUP_S("host", c->host),
            SUP_I("port", sup_http_port(f->pub.http)),
            SUP_S("unix_socket", c->unix_socket[0] ? c->unix_socket : NULL),
            SUP_S("models_dir", c->models_dir), SUP_S("version", INFERD_VERSION));
    return RC_OK;
}

/* Without it the server works, and forgets at its end what was used today. */
static void open_days(struct front *f)
{
    struct rc_err err = RC_ERR_INIT;

    if (f->pub.conf->vault_dir[0] &&
        sup_quota_file_open(&f->days, f->pub.conf->vault_dir, f->pub.quota, (uint64_t)time(NULL),
                            &err) != RC_OK)
        SUP_LOG(SUP_WARN, "quota_days_not_kept", SUP_S("error", err.msg));
}

static enum rc start(struct front *f, const struct sup_role_fds *fds, struct rc_err *err)
{
    const struct sup_conf *c = f->pub.conf;
    enum rc rc;

    sup_front_layers(f->pub.launcher);
    if ((rc = sup_front_limits(
             c->sandbox, c->max_connections + FDS_PER_WORKER * c->max_loaded_models + FDS_SPARE,
             err)) != RC_OK)
        return rc;
    if (uv_loop_init(&f->pub.loop) != 0 || !(f->pub.metrics = sup_metrics_new()) ||
        !(f->pub.quota = sup_quota_new(SUP_TENANTS_MAX)))
        return rc_fail(err, RC_NOMEM, "no memory for the loop");
    open_days(f);
    f->statm_fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    f->page_bytes = sysconf(_SC_PAGESIZE);
    f->m_lag = sup_series(f->pub.metrics, SUP_M_LOOP_LAG, NULL, NULL);
    f->m_rss = sup_series(f->pub.metrics, SUP_M_RSS, "front", NULL);
    f->m_dropped = sup_series(f->pub.metrics, SUP_M_LOG_DROPPED, NULL, NULL);
    uv_timer_init(&f->pub.loop, &f->lag);
    uv_timer_init(&f->pub.loop, &f->grace);
    f->lag.data = f->grace.data = f;
    f->pub.spans = sup_spans_new(&f->pub.loop, fds->peer[SUP_ROLE_TRACER],
                                 (unsigned)c->trace_percent, f->pub.metrics);
    if ((rc = sup_cache_secret_new(&f->pub.cache_secret, err)) != RC_OK ||
        (rc = sup_fleet_new(&f->pub.fleet, &f->pub.loop, fds->launcher, c, f->pub.metrics, on_stop,
                            f, err)) != RC_OK ||
        (rc = sup_auth_new(&f->pub.auth, &f->pub.loop, fds->peer[SUP_ROLE_VAULT], c, f->pub.metrics,
                           on_stop, f, err)) != RC_OK ||
        (rc = sup_link_new(&f->pub.link, &f->pub.loop, fds->peer[SUP_ROLE_FETCHER], f->pub.metrics,
                           on_stop, f, err)) != RC_OK ||
        (rc = listen_and_lock(f, err)) != RC_OK)
        return rc;
    sup_fleet_on_conf(f->pub.fleet, on_conf);
    conf_holds(f);
    f->lag_due_ms = uv_hrtime() / 1000000;
    on_lag(&f->lag);
    watch_rss(f);
    return RC_OK;
}

int sup_front_main(const struct sup_conf *conf, const struct sup_role_fds *fds)
{
    static struct front f; /* one per process; too large for a comfortable stack */
    struct rc_err err = RC_ERR_INIT;

    f.conf = *conf; /* memory after the fork: nobody else uses it in this process */
    f.pub.conf = &f.conf;
    f.statm_fd = -1;
    if (start(&f, fds, &err) != RC_OK) {
        SUP_LOG(SUP_ERROR, "front_start_failed", SUP_S("what", err.what), SUP_S("error", err.msg));
        return 1; /* the process ends: nothing needs to be put back */
    }
    uv_run(&f.pub.loop, UV_RUN_DEFAULT);
    sup_spans_flush(f.pub.spans);
    sup_http_free(&f.pub.http);
    sup_passes_deinit(&f.pub.passes);
    sup_fleet_free(&f.pub.fleet);
    sup_auth_free(&f.pub.auth);
    sup_link_free(&f.pub.link);
    sup_spans_free(&f.pub.spans);
    uv_run(&f.pub.loop, UV_RUN_NOWAIT);
    sup_metrics_free(&f.pub.metrics);
    sup_quota_file_save(f.days, f.pub.quota, (uint64_t)time(NULL));
    sup_quota_file_close(&f.days);
    sup_quota_free(&f.pub.quota);
    uv_loop_close(&f.pub.loop);
    if (f.statm_fd >= 0)
        close(f.statm_fd);
    return 0;
}
