/* sup_http_conn.c - one client connection: read, parse, hand over, end.
 *
 * Requests of a connection run one after the other. While one is in work the
 * socket is still read, so that a client who leaves is noticed at once; what it
 * sends meanwhile is kept up to SUP_AHEAD_BYTES, then reading stops and the sweep
 * asks the kernel whether the peer hung up (its end of input may be hidden behind
 * what is not read; a reset is not). An end of input while a request is in
 * work counts as leaving: clients and proxies in use do not half-close, and a
 * closed laptop must free its slot within one decode step.
 *
 * Always true: bytes behind a refused request are never parsed; an early refusal
 * lingers (discards input for a while) so that the client can read it.
 * Tests: tests/supervisor/test_sup_http.c, test_sup_http_smuggle.c
 */
#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sup_http_priv.h"

static void resume(struct sup_conn *c);

void sup_conn_dirty(struct sup_conn *c)
{
    if (c->dirty)
        return;
    c->dirty = true;
    c->dirty_next = NULL;
    *c->h->dirty_tail = c;
    c->h->dirty_tail = &c->dirty_next;
}

void sup_conn_enter(struct sup_conn *c, enum sup_phase phase)
{
    c->phase = (uint8_t)phase;
    c->since_ms = uv_now(c->h->loop);
}

static void log_request(struct sup_conn *c, const char *id, const struct sup_req *r,
                        unsigned status)
{
    struct sup_http *h = c->h;
    size_t route = r ? r->route : h->n_routes;
    uint64_t start = r ? r->start_us : c->first_us;
    char trace_id[33], span_id[17];

    sup_http_count(h, route, status, start);
    if (r)
        sup_req_trace_end(h, r, route < h->n_routes ? h->routes[route].path : "none", status,
                          sup_now_us() - start);
    if (!h->conf->access_log)
        return;
    const struct sup_kv kv[] = {
        SUP_S("id", id),
        SUP_S("method", r ? sup_req_method(r) : "-"),
        SUP_S("route", route < h->n_routes ? h->routes[route].route : "none"),
        SUP_I("status", status),
        SUP_F("ms", (double)(sup_now_us() - start) / 1000),
        SUP_I("bytes", r ? r->n_sent : 0),
        SUP_S("tenant", r && r->grant ? r->grant->tenant : NULL),
        SUP_S("key_id", r && r->grant && r->grant->key_id[0] ? r->grant->key_id : NULL),
        SUP_S("trace_id", trace_id),
        SUP_S("span_id", span_id),
    };
    size_t n = sizeof(kv) / sizeof(kv[0]);

    if (r && sup_trace_is(&r->trace)) {
        sup_trace_hex(r->trace.trace_id, sizeof(r->trace.trace_id), trace_id);
        sup_trace_hex(r->trace.span_id, sizeof(r->trace.span_id), span_id);
    } else {
        n -= 2;
    }
    sup_log_kv(SUP_INFO, "http_request", kv, n);
}

/* Behind a whole answer, or one that nobody waits for. */
static void next_request(struct sup_conn *c)
{
    sup_conn_enter(c, SUP_P_IDLE);
    c->served = true;
    if (c->h->draining)
        c->close_after = true;
    if (c->n_ahead)
        c->linger = true; /* matters only if the connection ends here */
    sup_conn_dirty(c);
}

void sup_conn_answered(struct sup_conn *c, unsigned status)
{
    struct sup_req *r = c->req;

    log_request(c, r->id, r, status);
    c->req = NULL;
    sup_req_free(&r, c->h);
    next_request(c);
}

/* The request goes without the handler's answer. One with no abort callback is
 * left to its handler as a husk whose answer goes nowhere. */
static void retire(struct sup_conn *c, bool in_work, unsigned status)
{
    struct sup_req *r = c->req;

    c->req = NULL;
    log_request(c, r->id, r, status);
    if (in_work) {
        void (*fn)(void *) = r->abort_fn;

        sup_body_free(&r->body, &c->h->env);
        r->conn = NULL;
        if (!fn)
            return;
        fn(r->abort_user);
    }
    sup_req_free(&r, c->h);
}

void sup_conn_fault(struct sup_conn *c, enum sup_fault f, bool close)
{
    const struct sup_fault_row *row = &sup_fault_rows[f];
    struct sup_req *r = c->req;
    char body[320], extra[160] = "", allow[96], made_id[SUP_ID_BYTES];
    char again[96] = ",\"retryable\":false";
    const char *id = r ? r->id : made_id;
    int n;

    if (!r)
        sup_id_new(c->h, made_id);
    if (f == SUP_F_NO_METHOD) {
        sup_route_allow(c->h, r, allow, sizeof(allow));
        snprintf(extra, sizeof(extra), "Allow: %s\r\n", allow);
    } else if (row->status == 503) {
        snprintf(extra, sizeof(extra), "Retry-After: 1\r\n");
        snprintf(again, sizeof(again),
                 ",\"retryable\":true,\"reason\":\"%s\",\"retry_after_ms\":1000",
                 f == SUP_F_CONNECTIONS ? "inference_admission" : "inference_capacity");
    }
    n = snprintf(body, sizeof(body), "{\"error\":\"%s\",\"message\":\"%s\"%s}", row->code, row->msg,
                 again);
    if (close)
        c->close_after = c->linger = true;
    if (*row->reason)
        sup_http_refused(c->h, row->reason);
    sup_out_head(c, r, id, row->status, "application/json", (uint64_t)n, false, extra);
    if (!r || !r->is_head)
        sup_out_add(c, body, (size_t)n);
    if (r) {
        r->n_sent = (uint64_t)n;
        retire(c, c->phase == SUP_P_WORK, row->status);
    } else {
        log_request(c, id, NULL, row->status);
    }
    next_request(c);
}

/* ------------------------------------------------------------------ parsing */

static bool id_sane(const char *s)
{
    size_t n = strlen(s);

    if (n == 0 || n >= SUP_ID_BYTES)
        return false;
    for (; *s; s++) {
        if (!(*s >= 'a' && *s <= 'z') && !(*s >= 'A' && *s <= 'Z') && !(*s >= '0' && *s <= '9') &&
            *s != '-' && *s != '_' && *s != '.')
            return false;
    }
    return true;
}

/* The sender is known, or will be told that there is nothing here. */
static void body_begins(struct sup_conn *c)
{
    struct sup_req *r = c->req;
    bool has_body = r->head.chunked || r->head.content_length > 0;

    sup_conn_enter(c, SUP_P_BODY);
    if (r->head.expect == SUP_EXPECT_UNKNOWN) {
        sup_conn_fault(c, SUP_F_EXPECT, true);
    } else if (r->fault && has_body &&
               (r->head.chunked || r->head.expect ||
                r->head.content_length > SUP_DRAIN_BODY_BYTES)) {
        sup_conn_fault(c, r->fault, true);
    } else if (r->head.expect && has_body) {
        sup_out_add(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        sup_conn_dirty(c);
    }
}

static void on_head(struct sup_conn *c)
{
    struct sup_req *r = calloc(1, sizeof(*r));
    const char *id, *origin;

    if (!r) {
        sup_conn_fault(c, SUP_F_NOMEM, true);
        return;
    }
    sup_hp_head_take(&c->hp, &r->head);
    r->conn = c;
    r->route = c->h->n_routes;
    r->start_us = c->first_us;
    r->path = r->tail = r->query = "";
    c->req = r;
    id = sup_head_get(&r->head, "x-request-id");
    if (id && id_sane(id))
        memcpy(r->id, id, strlen(id) + 1);
    else
        sup_id_new(c->h, r->id);
    sup_req_trace_read(c->h, r);
    sup_conn_enter(c, SUP_P_BODY);
    if (!sup_target_parse(r)) {
        sup_conn_fault(c, SUP_F_TARGET, true);
        return;
    }
    sup_route_find(c->h, r);
    if (!sup_hp_body_may(&c->hp, &r->head,
                         r->route < c->h->n_routes && c->h->routes[r->route].files)) {
        sup_conn_fault(c, SUP_F_BODY_LONG, true);
        return;
    }
    origin = sup_head_get(&r->head, "origin");
    if (origin &&
        !sup_origin_ok(origin, sup_head_get(&r->head, "host"), c->h->conf->allowed_origins)) {
        r->fault = SUP_F_ORIGIN;
        r->is_options = false;
    }
    if (r->fault || r->is_options) {
        body_begins(c); /* of no interest to anyone: nobody is asked who sent it */
    } else if (!sup_auth_ask(c)) {
        sup_conn_enter(c, SUP_P_AUTH);
        uv_read_stop(&c->u.stream);
        c->reading = false;
    } else if (sup_auth_judge(c)) {
        body_begins(c);
    }
}

static void on_request(struct sup_conn *c)
{
    struct sup_http *h = c->h;
    struct sup_req *r = c->req;

    sup_hp_body_take(&c->hp, &r->body);
    sup_hp_reset(&c->hp);
    if (r->fault) {
        sup_conn_fault(c, r->fault, false);
        return;
    }
    if (r->is_options) {
        char allow[96], extra[128];

        sup_route_allow(h, r, allow, sizeof(allow));
        snprintf(extra, sizeof(extra), "Allow: %s\r\n", allow);
        sup_out_head(c, r, r->id, 204, NULL, 0, false, extra);
        sup_conn_answered(c, 204);
        return;
    }
    sup_conn_enter(c, SUP_P_WORK);
    h->routes[r->route].fn(r, h->user);
    if (c->phase != SUP_P_WORK) /* answered, or stopped */
        return;
    sup_body_free(&r->body, &h->env); /* a request that waits must not hold 16 MiB */
    if (c->eof)
        sup_conn_close(c);
}

static bool may_parse(const struct sup_conn *c)
{
    return c->phase < SUP_P_WORK && c->phase != SUP_P_AUTH && !c->cut &&
           (!c->close_after || c->phase != SUP_P_IDLE) && sup_out_pending(c) < SUP_OUT_SOON_BYTES;
}

/* Returns how many bytes were used; the rest waits for the request in work. */
static size_t parse(struct sup_conn *c, const char *data, size_t n)
{
    size_t i = 0, k;
    bool again = c->phase == SUP_P_BODY; /* without a body it is whole already */

    while (may_parse(c) && (i < n || again)) {
        if (c->phase == SUP_P_IDLE) {
            c->first_us = sup_now_us();
            sup_conn_enter(c, SUP_P_HEAD);
        }
        again = false;
        switch (sup_hp_feed(&c->hp, data + i, n - i, &k)) {
        case SUP_HP_MORE:
            break;
        case SUP_HP_HEAD:
            on_head(c);
            again = c->phase == SUP_P_BODY;
            break;
        case SUP_HP_DONE:
            on_request(c);
            break;
        case SUP_HP_BAD:
            sup_conn_fault(c, sup_hp_fault(&c->hp), true);
            break;
        }
        i += k;
    }
    return i;
}

/* ------------------------------------------------------------------ reading */

static void on_alloc(uv_handle_t *handle, size_t hint, uv_buf_t *buf)
{
    struct sup_conn *c = handle->data;

    (void)hint;
    *buf = uv_buf_init(c->h->rbuf, c->phase == SUP_P_WORK ? SUP_AHEAD_BYTES : SUP_READ_BYTES);
}

/* Bytes of a head may be a key: none is left behind in memory that is given back. */
static void ahead_free(struct sup_conn *c)
{
    if (c->ahead)
        sodium_memzero(c->ahead, c->n_ahead);
    free(c->ahead);
    c->ahead = NULL;
    c->n_ahead = 0;
}

static void stash(struct sup_conn *c, const char *data, size_t n)
{
    size_t had = c->n_ahead;
    char *q = malloc(had + n);

    if (!q) {
        c->cut = true;
        sup_conn_dirty(c);
        return;
    }
    if (had)
        memcpy(q, c->ahead, had);
    memcpy(q + had, data, n);
    ahead_free(c);
    c->ahead = q;
    c->n_ahead = (uint32_t)(had + n);
    if (c->n_ahead >= SUP_AHEAD_BYTES && c->reading) {
        uv_read_stop(&c->u.stream);
        c->reading = false;
    }
}

static void on_eof(struct sup_conn *c)
{
    c->eof = true;
    uv_read_stop(&c->u.stream);
    c->reading = false;
    if (c->phase == SUP_P_IDLE && (sup_out_pending(c) || c->n_ahead))
        return; /* settle ends it when all is answered */
    sup_conn_close(c);
}

static void take(struct sup_conn *c, const char *data, size_t n)
{
    size_t used;

    if (c->phase == SUP_P_LINGER) {
        c->quiet_ms = uv_now(c->h->loop);
        return;
    }
    if (c->close_after && c->phase == SUP_P_IDLE)
        return; /* answered; on its way out */
    if (c->n_ahead) {
        stash(c, data, n);
        return;
    }
    used = parse(c, data, n);
    if (used < n && c->phase != SUP_P_CLOSED && !(c->close_after && !c->req))
        stash(c, data + used, n - used);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct sup_conn *c = stream->data;
    bool body = c->phase == SUP_P_BODY;

    if (n == 0 || c->phase == SUP_P_CLOSED)
        return;
    if (n < 0) {
        if (n == UV_EOF)
            on_eof(c);
        else
            sup_conn_close(c);
        return;
    }
    take(c, buf->base, (size_t)n);
    /* All but the middle of a body may have been a head, with a key in it. */
    if (!body || c->phase != SUP_P_BODY)
        sodium_memzero(buf->base, (size_t)n);
}

static bool start_reading(struct sup_conn *c)
{
    if (c->reading || c->eof)
        return true;
    c->reading = uv_read_start(&c->u.stream, on_alloc, on_read) == 0;
    return c->reading;
}

/* What was read while a request was in work. */
static void resume(struct sup_conn *c)
{
    char *a = c->ahead;
    size_t n = c->n_ahead, used;

    c->ahead = NULL;
    c->n_ahead = 0;
    used = parse(c, a, n);
    if (used < n && c->phase != SUP_P_CLOSED && !(c->close_after && !c->req))
        stash(c, a + used, n - used);
    if (a)
        sodium_memzero(a, n);
    free(a);
    if (c->phase != SUP_P_CLOSED && c->n_ahead < SUP_AHEAD_BYTES && !start_reading(c))
        sup_conn_close(c);
}

/* ------------------------------------------------------------------- ending */

static void on_closed(uv_handle_t *handle)
{
    struct sup_conn *c = handle->data;

    sup_hp_deinit(&c->hp);
    sup_out_free(c);
    ahead_free(c);
    sup_http_conn_gone(c->h, c);
    free(c);
}

void sup_conn_close(struct sup_conn *c)
{
    bool in_work = c->phase == SUP_P_WORK;

    if (c->phase == SUP_P_CLOSED)
        return;
    if (c->phase == SUP_P_AUTH && c->req->verdict == SUP_AUTH_ASKED)
        c->h->keys.forget(c->h->keys.user, c->req);
    c->phase = SUP_P_CLOSED;
    if (c->req)
        retire(c, in_work, 499);
    uv_close(&c->u.handle, on_closed);
}

/* All is written. With unread input a plain close would reset the connection and
 * could destroy the answer before the client has read it. */
static void end_gently(struct sup_conn *c)
{
    uv_os_fd_t fd;

    if (!c->linger || c->eof || uv_fileno(&c->u.handle, &fd) != 0 || shutdown(fd, SHUT_WR) != 0) {
        sup_conn_close(c);
        return;
    }
    ahead_free(c);
    sup_hp_deinit(&c->hp);
    sup_conn_enter(c, SUP_P_LINGER);
    c->quiet_ms = c->since_ms;
    if (!start_reading(c))
        sup_conn_close(c);
}

static void maybe_drained(struct sup_conn *c)
{
    struct sup_req *r = c->req;

    if (!r || !r->paused || sup_out_pending(c) > c->h->conf->stream_buffer_bytes / 2)
        return;
    r->paused = false;
    if (r->drain_fn)
        r->drain_fn(r->drain_user);
}

void sup_conn_settle(struct sup_conn *c)
{
    if (c->phase == SUP_P_CLOSED)
        return;
    if (c->cut || !sup_out_write(c)) {
        sup_conn_close(c);
        return;
    }
    maybe_drained(c);
    if (c->phase == SUP_P_CLOSED || c->phase == SUP_P_LINGER)
        return;
    if (c->phase == SUP_P_IDLE && sup_out_pending(c) == 0) {
        if (c->close_after) {
            end_gently(c);
            return;
        }
        if (c->eof && !c->n_ahead) {
            sup_conn_close(c);
            return;
        }
    }
    if (c->phase == SUP_P_AUTH && c->req->verdict != SUP_AUTH_ASKED) {
        sup_conn_enter(c, SUP_P_BODY);
        if (sup_auth_judge(c))
            body_begins(c);
        resume(c);
    } else if (c->n_ahead && may_parse(c)) {
        resume(c);
    }
}

/* --------------------------------------------------------------- time limits */

/* Reading is stopped: ask the kernel. */
static bool hung_up(struct sup_conn *c)
{
    struct pollfd p = {.events = POLLRDHUP};

    return uv_fileno(&c->u.handle, &p.fd) == 0 && poll(&p, 1, 0) == 1 &&
           (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static bool sweep_writes(struct sup_conn *c, uint64_t now)
{
    size_t queue = c->wr ? uv_stream_get_write_queue_size(&c->u.stream) : 0;

    if (queue == 0)
        return false;
    if (queue != c->last_queue) {
        c->last_queue = queue;
        c->quiet_ms = now;
    }
    if (now - c->quiet_ms < c->h->conf->write_timeout_ms)
        return false;
    sup_http_refused(c->h, "write_timeout");
    sup_conn_close(c);
    return true;
}

/* Whoever knows the keys is silent. */
static void sweep_auth(struct sup_conn *c, uint64_t age)
{
    if (hung_up(c)) {
        sup_conn_close(c);
    } else if (age > SUP_AUTH_WAIT_MS && c->req->verdict == SUP_AUTH_ASKED) {
        c->h->keys.forget(c->h->keys.user, c->req);
        sup_req_known(c->req, SUP_AUTH_BUSY, NULL);
    }
}

static void sweep_work(struct sup_conn *c, uint64_t now)
{
    uint64_t total = c->h->conf->request_timeout_ms;

    if (!c->reading && !c->eof && hung_up(c)) {
        sup_conn_close(c);
    } else if (total && now - c->since_ms > total + SUP_OVERDUE_GRACE_MS) {
        /* Whoever answers keeps the deadline; this is for one who forgot. */
        if (!c->req->streaming) {
            sup_conn_fault(c, SUP_F_OVERDUE, true);
        } else {
            sup_http_refused(c->h, "request_timeout");
            sup_conn_close(c);
        }
    }
}

void sup_conn_sweep(struct sup_conn *c, uint64_t now)
{
    const struct sup_conf *conf = c->h->conf;
    uint64_t age = now - c->since_ms;

    if (c->phase == SUP_P_CLOSED || sweep_writes(c, now))
        return;
    switch (c->phase) {
    case SUP_P_IDLE:
        if (sup_out_pending(c) == 0 &&
            age > (c->served ? conf->idle_timeout_ms : conf->header_timeout_ms))
            sup_conn_close(c);
        break;
    case SUP_P_HEAD:
        if (age > conf->header_timeout_ms)
            sup_conn_fault(c, SUP_F_SLOW_HEAD, true);
        break;
    case SUP_P_AUTH:
        sweep_auth(c, age);
        break;
    case SUP_P_BODY:
        if (age > conf->body_timeout_ms)
            sup_conn_fault(c, SUP_F_SLOW_BODY, true);
        break;
    case SUP_P_WORK:
        sweep_work(c, now);
        break;
    case SUP_P_LINGER:
        if (age > SUP_LINGER_MS || now - c->quiet_ms > SUP_LINGER_QUIET_MS)
            sup_conn_close(c);
        break;
    }
}

/* ---------------------------------------------------------------- beginning */

static void conn_add(struct sup_http *h, struct sup_conn *c)
{
    c->h = h;
    c->u.handle.data = c;
    sup_hp_init(&c->hp, &h->env);
    sup_conn_enter(c, SUP_P_IDLE);
    c->first_us = sup_now_us();
    c->next = h->conns;
    if (h->conns)
        h->conns->prev = c;
    h->conns = c;
    h->n_conns++;
    sup_series_set(h->m_conns, (double)h->n_conns);
}

static int conn_open(struct sup_conn *c, int fd, bool is_unix)
{
    int e;

    if (is_unix)
        return uv_pipe_open(&c->u.pipe, fd);
    e = uv_tcp_open(&c->u.tcp, fd);
    if (e)
        return e;
    uv_tcp_nodelay(&c->u.tcp, 1);
    uv_tcp_keepalive(&c->u.tcp, 1, 60); /* finds peers that vanished from an idle stream */
    return 0;
}

/* Not uv_accept: when descriptors run out, libuv's loop around accept needs to open
 * a file, which a sandboxed process may not, and then never ends. */
int sup_conn_accept(struct sup_http *h, int listen_fd, bool is_unix)
{
    struct sup_conn *c = calloc(1, sizeof(*c)); /* first: a connection cannot be put back */
    int fd, e;

    if (!c)
        return -ENOMEM;
    fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        e = -errno;
        free(c);
        return e;
    }
    e = is_unix ? uv_pipe_init(h->loop, &c->u.pipe, 0) : uv_tcp_init(h->loop, &c->u.tcp);
    if (e) {
        close(fd);
        free(c);
        return e;
    }
    conn_add(h, c);
    e = conn_open(c, fd, is_unix);
    if (e)
        close(fd);
    if (e || h->draining || h->n_conns > h->conf->max_connections + SUP_OVER_CONNS) {
        sup_http_refused(h, "connections");
        sup_conn_close(c);
    } else if (h->n_conns > h->conf->max_connections) {
        sup_conn_fault(c, SUP_F_CONNECTIONS, true);
    } else if (!start_reading(c)) {
        sup_conn_close(c);
    }
    return 0;
}
