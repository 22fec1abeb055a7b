/* sup_http_priv.h - what the files of supervisor/http share; for them only.
 *
 * sup_http.c owns listeners, the sweep and shutdown; sup_http_conn.c reads, parses
 * and writes; sup_http_req.c is the handler's side; sup_http_out.c makes bytes of
 * answers; sup_http_route.c finds the handler; sup_http_trace.c reads the trace context;
 * sup_http_auth.c takes the key out of a head; sup_http_listen.c opens sockets.
 *
 * Rules all of them keep: user callbacks (handler, abort, drain) run from loop
 * callbacks only, never inside sup_reply or sup_stream_*; one request per
 * connection is in work; a connection's memory is freed in its close callback.
 */
#ifndef INFERD_SUP_HTTP_PRIV_H
#define INFERD_SUP_HTTP_PRIV_H

#include "sup_conf.h"
#include "sup_grant.h"
#include "sup_http.h"
#include "sup_http_parse.h"
#include "sup_log.h"
#include "sup_metrics.h"
#include "sup_spans.h"
#include "sup_trace.h"

#define SUP_DRAIN_BODY_BYTES 65536 /* body of a refused request worth reading */
#define SUP_READ_BYTES 65536       /* the loop's one read buffer */
#define SUP_AHEAD_BYTES 16384      /* pipelined bytes kept while a request is in work */
#define SUP_OUT_SOON_BYTES 65536   /* unsent bytes that are not held for the turn's end */
#define SUP_LINGER_MS 10000        /* after an early refusal: discard for so long, */
#define SUP_LINGER_QUIET_MS 2000   /* and no longer than this without a byte */
#define SUP_OVER_CONNS 64          /* connections beyond the limit that hear a 503 */
#define SUP_OVERDUE_GRACE_MS 10000
#define SUP_AUTH_WAIT_MS 5000 /* for an answer about a key */
#define SUP_EXTRA_BYTES 8192  /* headers set by a handler */
#define SUP_ID_BYTES 65
#define SUP_STATUS_CACHE 8

/* Cached series of one route. */
struct sup_route_stat {
    struct sup_series *seconds;
    struct {
        unsigned status;
        struct sup_series *n;
    } count[SUP_STATUS_CACHE];
};

struct sup_http {
    uv_loop_t *loop;
    const struct sup_conf *conf;
    struct sup_metrics *metrics;
    struct sup_spans *spans; /* or NULL */
    const struct sup_route *routes;
    size_t n_routes;
    struct sup_route_stat *stats; /* n_routes + 1; the last is "none" */
    struct sup_series *m_conns, *m_paused;
    void *user;
    struct sup_http_keys keys; /* ask NULL: nobody needs one */
    struct sup_grant *anonymous;
    bool (*early)(struct sup_req *r, void *user); /* or NULL */
    struct sup_hp_env env;

    uv_prepare_t turn_end;
    uv_timer_t sweep;
    uint64_t sweep_ms;
    struct sup_listener {
        uv_poll_t poll;
        struct sup_http *h;
        int fd; /* -1: not open */
        bool is_unix;
        bool resting; /* nothing accepted until the next sweep: descriptors or memory are short */
    } listeners[2];
    unsigned port;
    unsigned n_handles; /* ours that are open: listeners, prepare, timer */
    bool started, draining, stopped;
    void (*done)(void *);
    void *done_user;

    struct sup_conn *conns; /* all, newest first */
    size_t n_conns;
    struct sup_conn *dirty, **dirty_tail; /* to flush at the end of this turn */

    uint64_t rng;
    uint64_t date_s;
    char date[32];
    char rbuf[SUP_READ_BYTES];
};

enum sup_phase {
    SUP_P_IDLE, /* no byte of a request */
    SUP_P_HEAD,
    SUP_P_AUTH, /* head whole, its key is asked about; nothing is read */
    SUP_P_BODY,
    SUP_P_WORK,   /* with the handler */
    SUP_P_LINGER, /* answered and shut down; input is discarded */
    SUP_P_CLOSED, /* uv_close called */
};

struct sup_wr;

struct sup_conn {
    union {
        uv_stream_t stream;
        uv_handle_t handle;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } u;
    struct sup_http *h;
    struct sup_conn *prev, *next, *dirty_next;
    struct sup_hp hp;
    struct sup_req *req; /* from its head to its answer */
    char *ahead;         /* read, not parsed yet */
    uint32_t n_ahead;
    uint8_t phase; /* enum sup_phase */
    bool served, dirty, reading, eof, parsing, cut;
    bool close_after; /* when all is written */
    bool linger;      /* input may be unread then: do not reset the answer away */
    char *out;        /* answer bytes not handed to the kernel */
    size_t n_out, cap_out;
    struct sup_wr *wr; /* the one write libuv holds */
    size_t last_queue;
    uint64_t since_ms; /* of the phase */
    uint64_t quiet_ms; /* last byte taken by the client; in LINGER: given */
    uint64_t first_us; /* first byte of the request */
};

struct sup_req {
    struct sup_conn *conn; /* NULL: client gone, answers are dropped */
    struct sup_head head;
    struct sup_body body;
    size_t route; /* index; n_routes = none */
    const char *path, *tail;
    const char *query;       /* decoded: key NUL value NUL ... */
    uint32_t n_query;        /* pairs */
    uint8_t verdict;         /* enum sup_auth_is */
    struct sup_grant *grant; /* once verdict is OK */
    uint8_t fault;           /* answer with this once the body is read; enum sup_fault */
    bool is_head, is_options, streaming, chunked, paused;
    uint64_t start_us;
    uint64_t n_sent; /* body bytes queued */
    unsigned status;
    char *extra; /* header lines set by the handler */
    size_t n_extra;
    void (*abort_fn)(void *);
    void *abort_user;
    void (*drain_fn)(void *);
    void *drain_user;
    char id[SUP_ID_BYTES];
    struct sup_trace trace;
    struct sup_facts facts;
};

/* ---- sup_http_route.c */
/* Splits and decodes the head's target in place into path and query. */
bool sup_target_parse(struct sup_req *r);
/* Sets route and tail, or fault (NO_ROUTE, NO_METHOD) or is_options. */
void sup_route_find(const struct sup_http *h, struct sup_req *r);
/* "GET, HEAD, OPTIONS" for the request's path ("" when unknown). */
void sup_route_allow(const struct sup_http *h, const struct sup_req *r, char *out, size_t cap);

/* ---- sup_http_auth.c */
/* Takes the key out of c->req's head, wipes it there and asks. false: ASKED. */
bool sup_auth_ask(struct sup_conn *c);
/* The verdict is there: true = go on with the body. false: refused and answered. */
bool sup_auth_judge(struct sup_conn *c);

/* ---- sup_http_origin.c */
/* May a browser's page of this Origin ask? host: the request's, or NULL; allowed:
 * further origins, NULL-ended, "*" = all, or NULL. */
bool sup_origin_ok(const char *origin, const char *host, char *const *allowed);

/* ---- sup_http_listen.c: descriptors that listen, or an error */
enum rc sup_listen_tcp(const struct sup_conf *conf, int *out_fd, unsigned *out_port,
                       struct rc_err *err);
enum rc sup_listen_unix(const char *path, int *out_fd, struct rc_err *err);
void sup_listen_unlink(const char *path);

/* ---- sup_http_out.c */
/* Unsent bytes of a connection. */
size_t sup_out_pending(const struct sup_conn *c);
/* Appends; false and marks the connection cut when out of memory. */
bool sup_out_add(struct sup_conn *c, const void *data, size_t n);
/* Status line and headers. r NULL: a request that was not understood (id is made
 * up). n_body UINT64_MAX: length not known. */
void sup_out_head(struct sup_conn *c, const struct sup_req *r, const char *id, unsigned status,
                  const char *content_type, uint64_t n_body, bool chunked, const char *extra);
/* Writes now what the socket takes; no callbacks. false: the socket is broken. */
bool sup_out_write(struct sup_conn *c);
void sup_out_free(struct sup_conn *c);
/* The Date header's value, kept for a second. */
const char *sup_date(struct sup_http *h);
void sup_id_new(struct sup_http *h, char out[SUP_ID_BYTES]);
void sup_span_id_new(struct sup_http *h, uint8_t out[8]); /* never all zero */
uint64_t sup_noise(struct sup_http *h);

/* ---- sup_http_conn.c */
/* Takes one waiting connection: 0, or a negative errno (-EAGAIN: none waits). */
int sup_conn_accept(struct sup_http *h, int listen_fd, bool is_unix);
void sup_conn_dirty(struct sup_conn *c);
void sup_conn_enter(struct sup_conn *c, enum sup_phase phase);
/* The turn's end: write, then go on with what was waiting for that. */
void sup_conn_settle(struct sup_conn *c);
/* Ends it now; a request in work is aborted. */
void sup_conn_close(struct sup_conn *c);
void sup_conn_sweep(struct sup_conn *c, uint64_t now_ms);
/* Answers with a fault's JSON; close: the connection ends behind it. */
void sup_conn_fault(struct sup_conn *c, enum sup_fault f, bool close);
/* The answer of c->req is queued whole: count, log, free, go on. */
void sup_conn_answered(struct sup_conn *c, unsigned status);

/* ---- sup_http_trace.c: with the head read */
void sup_req_trace_read(struct sup_http *h, struct sup_req *r);
/* Its answer is over. */
void sup_req_trace_end(struct sup_http *h, const struct sup_req *r, const char *route,
                       unsigned status, uint64_t us);

/* ---- sup_http_req.c */
void sup_req_free(struct sup_req **r, struct sup_http *h);

/* ---- sup_http.c */
void sup_http_count(struct sup_http *h, size_t route, unsigned status, uint64_t start_us);
void sup_http_refused(struct sup_http *h, const char *reason);
void sup_http_conn_gone(struct sup_http *h, struct sup_conn *c);
uint64_t sup_now_us(void);

#endif
