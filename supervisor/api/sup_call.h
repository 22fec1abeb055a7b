/* sup_call.h - one API request in work, from handler to last byte.
 *
 * What every model endpoint shares: admission (sup_call_admit.h), reading the body, finding the
 * model (looking at the disk once more before saying 404), deadlines, tickets,
 * errors in the right shape, SSE with heartbeats and back-pressure, and the client
 * that leaves. An endpoint embeds struct sup_call as its first member and supplies
 * a struct sup_call_ops; it never touches sup_req itself after it started.
 *
 * Always true: exactly one of reply, stream end or abort happens; tickets are
 * cancelled with it; the object is freed when no callback is on its stack and no
 * answer of the fleet (rescan, load) is awaited.
 * Tests: tests/supervisor/test_sup_api_call.c
 */
#ifndef INFERD_SUP_CALL_H
#define INFERD_SUP_CALL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "inferd.pb-c.h"
#include "sup_api_frame.h"
#include "sup_cost.h"
#include "sup_fields.h"
#include "sup_fleet.h"
#include "sup_json.h"
#include "sup_status.h"

struct sup_call;
struct sup_facts;
struct sup_front;
struct sup_grant;
struct sup_media_remote;
struct sup_req;
struct sup_tenant;
struct sup_ticket;

enum sup_need {
    SUP_NEED_ANY,
    SUP_NEED_GENERATE,
    SUP_NEED_CHAT,
    SUP_NEED_EMBED,
    SUP_NEED_RERANK, /* a cross-encoder or an embedder */
    SUP_NEED_EXTRACT,
};

struct sup_call_ops {
    size_t size; /* of the endpoint's object */
    enum sup_need need;
    bool raw_body; /* the body is not JSON; the model is named in query or header */
    bool frames;   /* the body may come with attachments (sup_api_frame.h) */
    /* Optional, where the model is not the field "model": its name out of the body. "": the call
     * runs without a model. NULL: *f. */
    const char *(*model_of)(struct sup_call *c, json_t *body, struct sup_fail *f);
    const struct sup_field *fields;
    size_t n_fields; /* at most SUP_FIELDS_MAX */
    /* Checks the values, builds frames, submits them. false: *f says why. */
    bool (*start)(struct sup_call *c, const struct sup_val *v, struct sup_fail *f);
    /* An answer frame of a part. May fail the call. */
    void (*frame)(struct sup_call *c, uint32_t part, const Ipc__Frame *fr);
    /* Every part has ended well: reply or end the stream. */
    void (*finish)(struct sup_call *c);
    void (*deinit)(struct sup_call *c); /* optional */
};

#define SUP_FIELDS_MAX 48
#define SUP_PARTS_MAX 128

/* One task of the call. */
struct sup_part {
    struct sup_call *call;
    struct sup_ticket *ticket; /* NULL when not running */
    uint32_t idx;

    /* private to sup_call_admit.c */
    struct sup_cost price;
    uint64_t charged; /* of its tenant, 0 once settled */
    uint64_t charged_unix_s;
    uint64_t n_deltas;
};

struct sup_call {
    const struct sup_call_ops *ops;
    struct sup_front *front;
    struct sup_req *req;  /* NULL once answered or left */
    enum sup_shape shape; /* of errors */
    json_t *body;         /* until start has returned */
    const char *model;    /* as the client wrote it; copied */
    const char *model_id; /* as the fleet knows it; copied */
    /* facts of the model, 0 when not known yet */
    uint32_t vocab_size, embed_dim, ctx_tokens;
    bool known, can_call_tools, can_think; /* known: the others are facts */
    bool can_embed_image, can_embed_sound, can_embed_groups;
    bool can_rerank, can_sparse;
    uint32_t token_dim;
    struct sup_api_frame frame; /* until start has returned; empty without attachments */
    uint64_t deadline_us;
    const struct sup_grant *grant; /* of whoever asks */
    uint64_t keep_ms;              /* where keep_set: how long the model stays loaded when idle */
    bool keep_set;
    struct sup_part *parts;
    uint32_t n_parts, n_left;
    bool got_frame; /* a worker has answered something */

    /* private to sup_call.c */
    struct sup_grant *grant_ref;
    struct sup_tenant *tenant;
    uint64_t charged;     /* by all parts */
    struct sup_cost used; /* of the parts that were settled, n_settled of them */
    uint32_t n_settled;
    char id[SUP_TASK_ID_BYTES];      /* the request's, for the record of what it used */
    struct sup_media_remote *remote; /* until start has returned */
    struct sup_blk *mem;
    uint32_t depth;
    bool waiting, rescanned, kept, streaming, paused, wrote, counted, timer_used;
    size_t n_body;
    uint64_t held_bytes; /* of front->held_bytes */
    uv_timer_t timer;
};

/* Handler of an endpoint: makes the call and runs it. */
void sup_call_run(struct sup_req *req, struct sup_front *front, const struct sup_call_ops *ops);

/* Zeroed memory that lives until the call ends, or until start returns when start
 * asked for it; NULL = none left. */
void *sup_call_alloc(struct sup_call *c, size_t n_bytes);
char *sup_call_strdup(struct sup_call *c, const char *s);

/* n bytes of files stay in memory until the call ends: against what all calls together
 * may hold. false: *f, to be tried again. */
bool sup_call_hold(struct sup_call *c, uint64_t n_bytes, struct sup_fail *f);

/* Before the first submit. false: *f. */
bool sup_call_parts(struct sup_call *c, uint32_t n, struct sup_fail *f);
bool sup_call_submit(struct sup_call *c, uint32_t part, Ipc__Frame *frame, struct sup_fail *f);

/* Answers; the call is over (c may be used until the callback returns). An out
 * that has `failed` becomes a 413. */
void sup_call_reply(struct sup_call *c, const struct sup_json *json);
void sup_call_reply_raw(struct sup_call *c, const char *type, const void *body, size_t n_bytes);
void sup_call_fail(struct sup_call *c, const struct sup_fail *f);

/* For the span of the request (sup_spans.h): what was done, with how many tokens. Before the
 * answer ends. NULL: the client has left. */
struct sup_facts *sup_call_facts(struct sup_call *c, const char *operation, uint64_t input_tokens);

/* SSE: _sse arms the heartbeat (headers go out with the first write, or after a
 * second of silence so that proxies keep the connection); _write sends bytes that
 * are whole events; _end ends the stream. */
void sup_call_sse(struct sup_call *c);
void sup_call_write(struct sup_call *c, const struct sup_json *events);
void sup_call_end(struct sup_call *c);

/* For answers without a call (lists, probes). */
void sup_reply_json(struct sup_req *req, unsigned status, struct sup_json *json);
void sup_reply_fail(struct sup_req *req, enum sup_shape shape, const struct sup_fail *f);
/* false: *f, 403. */
bool sup_model_allowed(const struct sup_grant *g, const char *model_id, struct sup_fail *f);
enum sup_shape sup_req_shape(const struct sup_req *req);
/* The only model that can do what is needed, for requests that name none; NULL: *f. Lives as
 * long as the call. */
const char *sup_call_only_model(struct sup_call *c, struct sup_fail *f);

/* load / unload: the fleet answers once, whether or not the client still waits. */
void sup_call_await(struct sup_call *c);
void sup_call_awaited(struct sup_call *c, const struct rc_err *err,
                      void (*then)(struct sup_call *c));
/* The same for a failure that has its code already. */
void sup_call_awaited_fail(struct sup_call *c, const struct sup_fail *f);

#endif
