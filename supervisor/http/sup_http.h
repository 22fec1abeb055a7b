/* sup_http.h - HTTP/1.1 server on libuv and llhttp.
 *
 * Parses, enforces limits (head, body, idle, write, total), routes by table,
 * writes answers and SSE streams with back-pressure. Keep-alive, pipelining (a
 * connection's requests run one after the other), chunked bodies, Expect:
 * 100-continue, HEAD via GET, OPTIONS and 405 with Allow. Strict on smuggling:
 * CL+TE, two CLs, unknown transfer codings, bare LF, obs-fold are 400 + close.
 * Knows nothing of JSON meaning, models or workers. One thread (the loop's).
 * Tests: tests/supervisor/test_sup_http*.c, tests/e2e/http*.py, fuzz_http.c
 */
#ifndef INFERD_SUP_HTTP_H
#define INFERD_SUP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "rc.h"

struct sup_conf;
struct sup_grant;
struct sup_http;
struct sup_metrics;
struct sup_req;

typedef void (*sup_handler)(struct sup_req *req, void *user);

/* path: exact ("/healthz"), or ending in a slash-star ("/v1/models/" "*"): the rest is
 * sup_req_tail. route: metric label. */
struct sup_route {
    const char *method; /* "GET" "POST" "DELETE" */
    const char *path;
    sup_handler fn;
    const char *route;
    bool files; /* a body may hold max_media_bytes of files besides its max_body_bytes */
};

/* routes: array ended by {0}; borrowed. Listeners open in _start. */
enum rc sup_http_new(struct sup_http **out, uv_loop_t *loop, const struct sup_conf *conf,
                     struct sup_metrics *metrics, const struct sup_route *routes, void *user,
                     struct rc_err *err);
enum rc sup_http_start(struct sup_http *h, struct rc_err *err);
/* Bound TCP port (useful with port 0). */
unsigned sup_http_port(const struct sup_http *h);
/* Stops accepting, closes idle connections; running answers go on and their
 * connections close after them. done is called once, from the loop, when none is
 * left; then call _stop. */
void sup_http_drain(struct sup_http *h, void (*done)(void *), void *user);
/* Cuts everything now; abort callbacks run inside this call. */
void sup_http_stop(struct sup_http *h);
/* After _stop and the loop has run out (or when never started). */
void sup_http_free(struct sup_http **h);

/* ------------------------------------------------------------- one request
 * A request lives from its handler's call until exactly one of: sup_reply, the
 * end of a stream (sup_stream_end), or the abort callback. After that the pointer
 * is dead. No call below runs a callback or another request before it returns.
 * The end of a client's input while its request is in work counts as leaving. */
const char *sup_req_method(const struct sup_req *r);
const char *sup_req_path(const struct sup_req *r);                   /* percent-decoded, no query */
const char *sup_req_tail(const struct sup_req *r);                   /* behind the star, or "" */
const char *sup_req_query(const struct sup_req *r, const char *key); /* or NULL */
const char *sup_req_header(const struct sup_req *r, const char *lower_name);
/* Not NUL-ended. Borrowed until the handler returns: then the body is freed (n 0),
 * so that a request waiting for a model does not hold it. */
const char *sup_req_body(const struct sup_req *r, size_t *n_bytes);
/* 26 characters, unique; from X-Request-Id when that is sane (1 to 64 letters,
 * digits, '-', '_', '.'). In every log line
 * and in the X-Request-Id answer header. */
const char *sup_req_id(const struct sup_req *r);
/* What its sender may do; never NULL. Lives as long as the request: sup_grant_ref keeps it. */
struct sup_grant *sup_req_grant(const struct sup_req *r);
uint64_t sup_req_start_us(const struct sup_req *r); /* CLOCK_MONOTONIC */
/* Called once when the client leaves before the answer is complete; req dies
 * when it returns. Without one the request stays valid until it is answered, and
 * the answer goes nowhere. */
void sup_req_on_abort(struct sup_req *r, void (*fn)(void *user), void *user);

/* An extra answer header; call before reply / stream_start. Copied. Control bytes
 * in value become spaces; all together at most 8 KiB, more is dropped. */
void sup_req_set_header(struct sup_req *r, const char *name, const char *value);
/* Whole answer; body is copied. */
void sup_reply(struct sup_req *r, unsigned status, const char *content_type, const void *body,
               size_t n_bytes);
/* Chunked answer. write copies; returns false when the stream is above its high
 * mark: then stop producing until on_drain. A client that stays too slow is cut
 * (abort callback). */
void sup_stream_start(struct sup_req *r, unsigned status, const char *content_type,
                      void (*on_drain)(void *user), void *user);
bool sup_stream_write(struct sup_req *r, const void *data, size_t n_bytes);
void sup_stream_end(struct sup_req *r);

#endif
