/* sup_http.c - the server: listeners, the turn's end, the sweep, shutdown.
 *
 * Time limits are kept by one timer that looks at every connection now and then
 * (a quarter of the shortest limit, 10 ms to 1 s) instead of a timer each.
 * The prepare handle runs before the loop sleeps and writes what the turn queued.
 * Both are unreferenced: they keep no loop alive.
 * Tests: tests/supervisor/test_sup_http.c
 */
#include "sup_http.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "sup_http_priv.h"

#define ACCEPT_AT_ONCE 64 /* then others get their turn */
#define BODIES_AT_ONCE 16 /* largest bodies that may be in memory together */
#define FILES_AT_ONCE 2   /* the same, of those with files */

uint64_t sup_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

/* ------------------------------------------------------------------ metrics */

void sup_http_count(struct sup_http *h, size_t route, unsigned status, uint64_t start_us)
{
    struct sup_route_stat *s = &h->stats[route];
    const char *label = route < h->n_routes ? h->routes[route].route : "none";
    struct sup_series *n = NULL;
    char text[12];

    if (!s->seconds)
        s->seconds = sup_series(h->metrics, SUP_M_HTTP_SECONDS, label, NULL);
    for (size_t i = 0; i < SUP_STATUS_CACHE && !n; i++) {
        if (s->count[i].status == status) {
            n = s->count[i].n;
        } else if (s->count[i].status == 0) {
            snprintf(text, sizeof(text), "%u", status);
            s->count[i].n = sup_series(h->metrics, SUP_M_HTTP_REQUESTS, label, text);
            s->count[i].status = status;
            n = s->count[i].n;
        }
    }
    if (!n) {
        snprintf(text, sizeof(text), "%u", status);
        n = sup_series(h->metrics, SUP_M_HTTP_REQUESTS, label, text);
    }
    sup_series_add(n, 1);
    sup_series_observe(s->seconds, (double)(sup_now_us() - start_us) / 1e6);
}

void sup_http_refused(struct sup_http *h, const char *reason)
{
    sup_series_add(sup_series(h->metrics, SUP_M_HTTP_REFUSED, reason, NULL), 1);
}

/* ----------------------------------------------------------------- the loop */

static void on_turn_end(uv_prepare_t *p)
{
    struct sup_http *h = p->data;
    struct sup_conn *c;

    while ((c = h->dirty)) {
        h->dirty = c->dirty_next;
        if (!h->dirty)
            h->dirty_tail = &h->dirty;
        c->dirty = false;
        sup_conn_settle(c);
    }
}

static void maybe_done(struct sup_http *h)
{
    void (*done)(void *) = h->done;

    if (!done || !h->draining || h->n_conns || h->listeners[0].fd >= 0 || h->listeners[1].fd >= 0)
        return;
    h->done = NULL;
    if (!h->stopped)
        uv_unref((uv_handle_t *)&h->sweep);
    done(h->done_user);
}

static void on_connection(uv_poll_t *p, int status, int events)
{
    struct sup_listener *l = p->data;
    int e = 0;

    (void)events;
    for (int i = 0; i < ACCEPT_AT_ONCE && e == 0; i++) {
        e = status < 0 ? status : sup_conn_accept(l->h, l->fd, l->is_unix);
        if (e == -ECONNABORTED || e == -EINTR)
            e = 0;
    }
    if (e == 0 || e == -EAGAIN)
        return;
    /* Out of descriptors or memory. The backlog waits; turning the loop as fast as
     * it goes would starve those who are connected. */
    uv_poll_stop(p);
    l->resting = true;
    sup_http_refused(l->h, "accept");
}

static void listen_again(struct sup_listener *l)
{
    if (!l->resting || l->fd < 0 || uv_is_closing((uv_handle_t *)&l->poll))
        return;
    l->resting = false;
    uv_poll_start(&l->poll, UV_READABLE, on_connection);
}

static uint64_t sweep_every(const struct sup_conf *c)
{
    uint64_t ms = c->header_timeout_ms;

    ms = c->body_timeout_ms < ms ? c->body_timeout_ms : ms;
    ms = c->idle_timeout_ms < ms ? c->idle_timeout_ms : ms;
    ms = c->write_timeout_ms < ms ? c->write_timeout_ms : ms;
    ms /= 4;
    return ms < 10 ? 10 : ms > 1000 ? 1000 : ms;
}

static void on_sweep(uv_timer_t *t)
{
    struct sup_http *h = t->data;
    uint64_t now = uv_now(h->loop);

    for (struct sup_conn *c = h->conns, *next; c; c = next) {
        next = c->next; /* connections leave the list in close callbacks only */
        sup_conn_sweep(c, now);
    }
    for (int i = 0; i < 2; i++)
        listen_again(&h->listeners[i]);
    h->sweep_ms = sweep_every(h->conf); /* time-outs may have changed */
    uv_timer_set_repeat(t, h->sweep_ms);
    maybe_done(h);
}

void sup_http_conn_gone(struct sup_http *h, struct sup_conn *c)
{
    if (c->dirty) {
        struct sup_conn **at = &h->dirty;

        while (*at != c)
            at = &(*at)->dirty_next;
        *at = c->dirty_next;
        if (!*at)
            h->dirty_tail = at;
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    h->n_conns--;
    sup_series_set(h->m_conns, (double)h->n_conns);
    maybe_done(h);
}

/* ----------------------------------------------------------- start and stop */

enum rc sup_http_new(struct sup_http **out, uv_loop_t *loop, const struct sup_conf *conf,
                     struct sup_metrics *metrics, const struct sup_route *routes, void *user,
                     struct rc_err *err)
{
    struct sup_http *h = calloc(1, sizeof(*h));
    const uint64_t files = (conf->max_media_bytes + 2) / 3 * 4; /* in base64 */

    if (!h)
        return rc_fail(err, RC_NOMEM, "no memory for the HTTP server");
    if (sup_grant_anonymous(&h->anonymous, err) != RC_OK) {
        free(h);
        return RC_NOMEM;
    }
    h->loop = loop;
    h->conf = conf;
    h->metrics = metrics;
    h->routes = routes;
    h->user = user;
    while (routes[h->n_routes].path)
        h->n_routes++;
    h->stats = calloc(h->n_routes + 1, sizeof(*h->stats));
    if (!h->stats) {
        sup_grant_unref(&h->anonymous);
        free(h);
        return rc_fail(err, RC_NOMEM, "no memory for the table of routes");
    }
    h->env = (struct sup_hp_env){.max_header_bytes = conf->max_header_bytes,
                                 .max_body_bytes = conf->max_body_bytes,
                                 .max_file_bytes = files,
                                 .body_limit = conf->max_body_bytes * BODIES_AT_ONCE};
    if (h->env.body_limit < FILES_AT_ONCE * (conf->max_body_bytes + files))
        h->env.body_limit = FILES_AT_ONCE * (conf->max_body_bytes + files);
    h->listeners[0].fd = h->listeners[1].fd = -1;
    h->dirty_tail = &h->dirty;
    h->sweep_ms = sweep_every(conf);
    h->m_conns = sup_series(metrics, SUP_M_HTTP_CONNS, NULL, NULL);
    h->m_paused = sup_series(metrics, SUP_M_HTTP_STREAMS_PAUSED, NULL, NULL);
    if (getrandom(&h->rng, sizeof(h->rng), 0) != sizeof(h->rng))
        h->rng = sup_now_us() ^ (uint64_t)getpid() << 40; /* ids are no secrets */
    sup_date(h); /* libc reads /etc/localtime once, while it still may */
    *out = h;
    return RC_OK;
}

void sup_http_keys(struct sup_http *h, const struct sup_http_keys *keys)
{
    h->keys = *keys;
}

/* Hands a listening descriptor to the loop. */
static int adopt(struct sup_http *h, int which, int fd)
{
    struct sup_listener *l = &h->listeners[which];
    int e = uv_poll_init(h->loop, &l->poll, fd);

    if (e)
        return e;
    l->poll.data = l;
    l->h = h;
    l->fd = fd;
    l->is_unix = which == 1;
    h->n_handles++;
    return uv_poll_start(&l->poll, UV_READABLE, on_connection);
}

enum rc sup_http_start(struct sup_http *h, struct rc_err *err)
{
    int fds[2] = {-1, -1};
    enum rc rc = RC_OK;

    if (!*h->conf->host && !*h->conf->unix_socket)
        return rc_fail_what(err, RC_INVALID, "host",
                            "neither host nor unix_socket is set: nothing to listen on");
    if (*h->conf->host && (rc = sup_listen_tcp(h->conf, &fds[0], &h->port, err)) != RC_OK)
        return rc;
    if (*h->conf->unix_socket &&
        (rc = sup_listen_unix(h->conf->unix_socket, &fds[1], err)) != RC_OK) {
        if (fds[0] >= 0)
            close(fds[0]);
        return rc;
    }
    signal(SIGPIPE, SIG_IGN); /* libuv writes to sockets whose peers may be gone */
    uv_prepare_init(h->loop, &h->turn_end);
    uv_timer_init(h->loop, &h->sweep);
    h->turn_end.data = h->sweep.data = h;
    h->n_handles = 2;
    h->started = true;
    uv_prepare_start(&h->turn_end, on_turn_end);
    uv_timer_start(&h->sweep, on_sweep, h->sweep_ms, h->sweep_ms);
    uv_unref((uv_handle_t *)&h->turn_end);
    uv_unref((uv_handle_t *)&h->sweep);
    for (int i = 0; i < 2; i++) {
        int e = fds[i] >= 0 && rc == RC_OK ? adopt(h, i, fds[i]) : 0;

        if (e)
            rc = rc_fail(err, RC_IO, "listening: %s", uv_strerror(e));
        if (rc != RC_OK && fds[i] >= 0 && h->listeners[i].fd < 0)
            close(fds[i]);
    }
    if (rc != RC_OK)
        sup_http_stop(h);
    return rc;
}

void sup_http_early(struct sup_http *h, bool (*may)(struct sup_req *r, void *user))
{
    h->early = may;
}

unsigned sup_http_port(const struct sup_http *h)
{
    return h->port;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct sup_http *h = handle->data;

    h->n_handles--;
    maybe_done(h);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct sup_listener *l = handle->data;

    l->fd = -1;
    l->h->n_handles--;
    maybe_done(l->h);
}

static void close_listeners(struct sup_http *h)
{
    for (int i = 0; i < 2; i++) {
        struct sup_listener *l = &h->listeners[i];

        if (l->fd < 0 || uv_is_closing((uv_handle_t *)&l->poll))
            continue;
        uv_close((uv_handle_t *)&l->poll, on_listener_closed);
        close(l->fd); /* no longer polled; clients are refused from now on */
        if (l->is_unix)
            sup_listen_unlink(h->conf->unix_socket);
    }
}

void sup_http_drain(struct sup_http *h, void (*done)(void *), void *user)
{
    if (h->draining || h->stopped || !h->started)
        return;
    h->draining = true;
    h->done = done;
    h->done_user = user;
    close_listeners(h);
    for (struct sup_conn *c = h->conns; c; c = c->next) {
        if (c->phase != SUP_P_IDLE)
            continue;
        c->close_after = true; /* what is queued still goes out */
        sup_conn_dirty(c);
    }
    /* Keeps the loop alive, and calls done when nothing else would. */
    uv_ref((uv_handle_t *)&h->sweep);
    uv_timer_start(&h->sweep, on_sweep, 0, h->sweep_ms);
}

void sup_http_stop(struct sup_http *h)
{
    if (h->stopped || !h->started)
        return;
    h->stopped = true;
    close_listeners(h);
    for (struct sup_conn *c = h->conns; c; c = c->next)
        sup_conn_close(c);
    uv_close((uv_handle_t *)&h->turn_end, on_handle_closed);
    uv_close((uv_handle_t *)&h->sweep, on_handle_closed);
}

void sup_http_free(struct sup_http **hp)
{
    struct sup_http *h = *hp;

    if (!h)
        return;
    assert(h->n_conns == 0 && h->n_handles == 0); /* stop first, then let the loop run out */
    sup_grant_unref(&h->anonymous);
    free(h->stats);
    free(h);
    *hp = NULL;
}
