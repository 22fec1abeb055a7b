/* http_harness.h - a real server on loopback and raw client sockets, one thread.
 *
 * The client's sockets do not block; every wait turns the server's loop, so a test
 * is a plain sequence. Waits end on a condition; PATIENCE_MS only bounds a failure.
 */
#ifndef INFERD_HTTP_HARNESS_H
#define INFERD_HTTP_HARNESS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "sup_conf.h"
#include "sup_http.h"
#include "sup_metrics.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* a test takes what it needs */

#define PATIENCE_MS 20000
#define MAX_HELD 2048

struct held { /* a request kept by its handler */
    struct sup_req *req;
    struct rig *rig;
    int aborted, drained;
};

struct rig {
    uv_loop_t loop;
    struct sup_conf conf;
    struct sup_metrics *metrics;
    struct sup_http *http;
    int n_ok, n_hidden, n_aborted, n_done;
    size_t n_body;
    char path[512], tail[256], query[256], id[80], method[16];
    struct held held[MAX_HELD];
    int n_held;
};

static void h_ok(struct sup_req *r, void *user)
{
    struct rig *g = user;

    g->n_ok++;
    snprintf(g->path, sizeof(g->path), "%s", sup_req_path(r));
    snprintf(g->tail, sizeof(g->tail), "%s", sup_req_tail(r));
    snprintf(g->query, sizeof(g->query), "%s", sup_req_query(r, "q") ? sup_req_query(r, "q") : "-");
    snprintf(g->id, sizeof(g->id), "%s", sup_req_id(r));
    snprintf(g->method, sizeof(g->method), "%s", sup_req_method(r));
    sup_reply(r, 200, "text/plain", "fine", 4);
}

static void h_hidden(struct sup_req *r, void *user)
{
    ((struct rig *)user)->n_hidden++;
    sup_reply(r, 200, "text/plain", "hidden", 6);
}

static void h_echo(struct sup_req *r, void *user)
{
    struct rig *g = user;
    const char *b = sup_req_body(r, &g->n_body);

    g->n_ok++;
    sup_reply(r, 200, "application/octet-stream", b, g->n_body);
}

static void on_abort(void *user)
{
    struct held *h = user;

    h->aborted++;
    h->rig->n_aborted++;
    h->req = NULL;
}

static void on_drain(void *user)
{
    ((struct held *)user)->drained++;
}

static struct held *hold(struct sup_req *r, struct rig *g)
{
    struct held *h = &g->held[g->n_held];

    assert_true(g->n_held < MAX_HELD);
    g->n_held++;
    *h = (struct held){.req = r, .rig = g};
    return h;
}

static void h_wait(struct sup_req *r, void *user)
{
    sup_req_on_abort(r, on_abort, hold(r, user));
}

static void h_husk(struct sup_req *r, void *user)
{
    hold(r, user);
}

static void h_sse(struct sup_req *r, void *user)
{
    struct held *h = hold(r, user);

    sup_req_on_abort(r, on_abort, h);
    sup_req_set_header(r, "X-Two", "a\r\nInjected: b");
    sup_stream_start(r, 200, "text/event-stream", on_drain, h);
}

static void h_load(struct sup_req *r, void *user)
{
    h_ok(r, user);
}

static const struct sup_route rig_routes[] = {
    {"GET", "/healthz", h_ok, "healthz"},
    {"POST", "/echo", h_echo, "echo"},
    {"POST", "/files", h_echo, "files", true},
    {"GET", "/hidden", h_hidden, "hidden"},
    {"POST", "/hidden", h_hidden, "hidden"},
    {"GET", "/v1/models", h_ok, "models"},
    {"GET", "/v1/models/*", h_ok, "model"},
    {"POST", "/v1/models/load", h_load, "load"},
    {"DELETE", "/v1/models/*", h_ok, "model"},
    {"POST", "/wait", h_wait, "wait"},
    {"GET", "/husk", h_husk, "husk"},
    {"GET", "/sse", h_sse, "sse"},
    {0},
};

static struct rig *rig_new(void)
{
    struct rig *g = calloc(1, sizeof(*g));
    char *no_env[] = {NULL};
    char *argv[] = {"--port=0", "--access-log=false", "--log-level=error"};
    struct rc_err err = RC_ERR_INIT;
    int used;

    assert_int_equal(sup_conf_load(&g->conf, NULL, no_env, 3, argv, &used, &err), RC_OK);
    g->metrics = sup_metrics_new();
    uv_loop_init(&g->loop);
    return g;
}

static void rig_start(struct rig *g)
{
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(sup_http_new(&g->http, &g->loop, &g->conf, g->metrics, rig_routes, g, &err),
                     RC_OK);
    if (sup_http_start(g->http, &err) != RC_OK)
        fail_msg("start: %s", err.msg);
}

static void rig_free(struct rig *g)
{
    if (g->http) {
        sup_http_stop(g->http);
        uv_run(&g->loop, UV_RUN_DEFAULT);
        sup_http_free(&g->http);
    }
    assert_int_equal(uv_loop_close(&g->loop), 0);
    sup_metrics_free(&g->metrics);
    sup_conf_deinit(&g->conf);
    free(g);
}

static void turn(struct rig *g)
{
    uv_run(&g->loop, UV_RUN_NOWAIT);
}

static uint64_t now_ms(void)
{
    return uv_hrtime() / 1000000;
}

#define WAIT_FOR(g, cond)                                  \
    do {                                                   \
        uint64_t end_ = now_ms() + PATIENCE_MS;            \
        while (!(cond)) {                                  \
            turn(g);                                       \
            if (now_ms() > end_)                           \
                fail_msg("waited in vain for: %s", #cond); \
        }                                                  \
    } while (0)

struct client {
    int fd;
    char *in;
    size_t n, cap;
    bool closed, reset;
};

static struct client c_connect(struct rig *g, int rcvbuf)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)sup_http_port(g->http)),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct client c = {.fd = socket(AF_INET, SOCK_STREAM, 0)};

    assert_true(c.fd >= 0);
    if (rcvbuf)
        setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof(rcvbuf));
    assert_int_equal(connect(c.fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(fcntl(c.fd, F_SETFL, O_NONBLOCK), 0);
    c.cap = 65536;
    c.in = calloc(1, c.cap);
    return c;
}

static struct client c_open(struct rig *g)
{
    return c_connect(g, 0);
}

/* The kernel keeps little for a client that does not read. */
static struct client c_open_slow(struct rig *g)
{
    return c_connect(g, 4096);
}

static void c_free(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->in);
    c->in = NULL;
    c->fd = -1;
}

/* Reads what is there; c->in stays NUL-ended. */
static void c_read(struct client *c)
{
    ssize_t k;

    while (!c->closed) {
        if (c->cap - c->n < 32768) {
            c->in = realloc(c->in, c->cap *= 2);
            assert_non_null(c->in);
        }
        k = recv(c->fd, c->in + c->n, c->cap - c->n - 1, 0);
        if (k > 0) {
            c->n += (size_t)k;
        } else if (k == 0 || errno == ECONNRESET) {
            c->closed = true;
            c->reset = k < 0;
        } else {
            break;
        }
    }
    c->in[c->n] = '\0';
}

static void c_send(struct rig *g, struct client *c, const void *data, size_t n)
{
    size_t done = 0;
    uint64_t end = now_ms() + PATIENCE_MS;

    while (done < n && now_ms() < end) {
        ssize_t k = send(c->fd, (const char *)data + done, n - done, MSG_NOSIGNAL);

        if (k > 0)
            done += (size_t)k;
        else if (errno != EAGAIN)
            return; /* the test sees the close */
        else
            turn(g);
    }
}

static void c_text(struct rig *g, struct client *c, const char *s)
{
    c_send(g, c, s, strlen(s));
}

static int count(const char *hay, const char *needle)
{
    int n = 0;

    for (; (hay = strstr(hay, needle)); hay += strlen(needle))
        n++;
    return n;
}

#define READ_UNTIL(g, c, cond)                                                   \
    do {                                                                         \
        uint64_t end_ = now_ms() + PATIENCE_MS;                                  \
        for (c_read(c); !(cond); c_read(c)) {                                    \
            turn(g);                                                             \
            if (now_ms() > end_)                                                 \
                fail_msg("waited in vain for: %s; got: %.300s", #cond, (c)->in); \
        }                                                                        \
    } while (0)

static int status_of(const struct client *c)
{
    return c->n > 12 && memcmp(c->in, "HTTP/1.1 ", 9) == 0 ? atoi(c->in + 9) : 0;
}

/* The first answer is whole: head and Content-Length bytes. */
static bool answered(const struct client *c)
{
    const char *end = strstr(c->in, "\r\n\r\n"), *len = strstr(c->in, "Content-Length: ");

    if (!end)
        return false;
    if (!len || len > end)
        return true;
    return c->n >= (size_t)(end + 4 - c->in) + strtoul(len + 16, NULL, 10);
}

#endif
