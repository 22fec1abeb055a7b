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
struct sup_facts;
struct sup_spans;
struct sup_trace;

typedef void (*sup_handler)(struct sup_req *req, void *user);

/* path: exact ("/healthz"), or ending in a slash-star ("/v1/models/" "*"): the rest is
 * sup_req_tail. route: metric label. */
struct sup_route {
    const char *method; /* "GET" "POST" "DELETE" */
    const char *path;
    sup_handler fn;
    const char *route;
    bool files;     /* a body may hold max_media_bytes of files besides its max_body_bytes */
    uint32_t scope; /* bit of enum sup_scope that its sender's grant must have; 0 = none */
    bool admin;     /* its sender must be an administrator */
    bool open;      /* answered without a key */
};

/* Whether a request's sender is known. X(id, label of the metric) */
#define SUP_AUTHS(X)                                         \
    X(OK, "ok")                                              \
    X(NO_KEY, "no_key")   /* and one is asked for */         \
    X(BAD_KEY, "bad_key") /* unknown, or revoked */          \
    X(EXPIRED, "expired")                                    \
    X(SCOPE, "scope") /* known, but may not do this */       \
    X(BUSY, "busy")   /* whoever knows the keys is silent */ \
    X(ASKED, "asked") /* the answer comes later */

enum sup_auth_is {
#define X(id, label) SUP_AUTH_##id,
    SUP_AUTHS(X)
#undef X
        SUP_AUTH_COUNT
};

/* Who knows the keys (supervisor/admit/sup_auth.c). Asked when a request's head is whole
 * and before its body is read. */
struct sup_http_keys {
    /* key: n bytes as the client sent them, 0 = none; wiped when this returns. OK: *grant is
     * set, one reference is the caller's. ASKED: sup_req_known comes later, never inside. */
    enum sup_auth_is (*ask)(void *user, struct sup_req *r, const char *key, size_t n,
                            struct sup_grant **grant);
    /* The client of an ASKED request left. */
    void (*forget)(void *user, struct sup_req *r);
    /* Answers r at once with why it is refused (sup_reply). user: as handlers get it. */
    void (*refuse)(struct sup_req *r, void *user, enum sup_auth_is why);
    void *user;
};

/* routes: array ended by {0}; borrowed. Listeners open in _start. */
enum rc sup_http_new(struct sup_http **out, uv_loop_t *loop, const struct sup_conf *conf,
                     struct sup_metrics *metrics, const struct sup_route *routes, void *user,
                     struct rc_err *err);
/* Requests become spans there; before _start, NULL = none. Borrowed. */
void sup_http_spans(struct sup_http *h, struct sup_spans *spans);
enum rc sup_http_start(struct sup_http *h, struct rc_err *err);
/* Before _start. Without it nobody needs a key and each request has the anonymous grant. */
void sup_http_keys(struct sup_http *h, const struct sup_http_keys *keys);
/* Before _start: asked of a request with a large or unsized body when its sender is known and
 * before the body is read. false: it was answered (sup_reply), and the connection ends. */
void sup_http_early(struct sup_http *h, bool (*may)(struct sup_req *r, void *user));
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
/* What the sender may do; never NULL, lives as long as the request (sup_grant_ref keeps it
 * longer). The anonymous one where no key is asked for. */
struct sup_grant *sup_req_grant(const struct sup_req *r);
/* For whoever knows the keys: the answer to an ASKED request. grant: with OK only, one
 * reference moves in. */
void sup_req_known(struct sup_req *r, enum sup_auth_is verdict, struct sup_grant *grant);
uint64_t sup_req_start_us(const struct sup_req *r); /* CLOCK_MONOTONIC */
/* The trace it is part of (sup_trace.h), or NULL; the well-formed tracestate, or "". */
const struct sup_trace *sup_req_trace(const struct sup_req *r);
const char *sup_req_tracestate(const struct sup_req *r);
/* What the request's span tells besides (sup_spans.h): to be filled before the answer ends. */
struct sup_facts *sup_req_facts(struct sup_req *r);
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
