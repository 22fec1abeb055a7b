/* sup_call.c - one API request in work (see sup_call.h).
 *
 * Must never: touch c->req after it was answered, or free a call that is on the
 * stack. Callbacks may come from inside our own calls (a stream write that cuts a
 * slow client calls abort; a resumed ticket may deliver at once), so every entry
 * is enter/leave and only the outermost leave destroys.
 * Change freely: messages. Change with care: enter, leave, destroy.
 * Tests: tests/supervisor/test_sup_api_call.c
 */
#include "sup_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sup_call_admit.h"
#include "sup_conf.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_grant.h"
#include "sup_http.h"
#include "sup_keep.h"
#include "sup_media.h"
#include "sup_media_remote.h"
#include "sup_metrics.h"
#include "sup_pass.h"
#include "sup_spans.h"

#define FIRST_HEARTBEAT_MS 1000
#define HEARTBEAT_MS 15000
/* largest bodies and sets of files that calls may hold together while they wait */
#define BODIES_HELD 16
#define MEDIA_HELD 4

struct sup_blk {
    struct sup_blk *next;
    max_align_t data[];
};

/* Rows that every model endpoint has. */
enum { ALL_TIMEOUT, ALL_KEEP, ALL_MODEL, ALL_N };
static const struct sup_field all_fields[ALL_N] = {
    {"timeout_ms", SUP_FT_INT, false, 1, SUP_TIMEOUT_MAX_MS, 0, NULL},
    {"keep_alive", SUP_FT_ANY, false, 0, 0, 0, NULL},
    {"model", SUP_FT_STR, true, 1, SUP_NAME_MAX, 0, NULL}, /* last: not where ops->model_of is */
};

/* ------------------------------------------------------------- life and death */

static void enter(struct sup_call *c)
{
    c->depth++;
}

static void cancel_all(struct sup_call *c)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        struct sup_part *p = &c->parts[i];

        if (!p->ticket)
            continue;
        sup_admit_end(p, false, sup_ticket_started(p->ticket));
        sup_ticket_cancel(&p->ticket);
    }
}

/* Frees what was allocated after `keep`. */
static void free_mem(struct sup_call *c, const struct sup_blk *keep)
{
    while (c->mem != keep) {
        struct sup_blk *next = c->mem->next;

        free(c->mem);
        c->mem = next;
    }
}

static void hold(struct sup_call *c, uint64_t n)
{
    struct sup_front *front = c->front;

    if (n == c->held_bytes)
        return;
    front->held_bytes += n - c->held_bytes;
    c->held_bytes = n;
    sup_series_set(sup_series(front->metrics, SUP_M_HELD_BYTES, NULL, NULL),
                   (double)front->held_bytes);
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h->data);
}

static void destroy(struct sup_call *c)
{
    cancel_all(c);
    sup_admit_record(c);
    sup_media_remote_free(&c->remote);
    if (c->ops->deinit)
        c->ops->deinit(c);
    json_decref(c->body);
    c->body = NULL;
    sup_api_frame_deinit(&c->frame);
    free_mem(c, NULL);
    free(c->parts);
    hold(c, 0);
    sup_admit_over(c->front, &c->tenant);
    sup_grant_unref(&c->grant_ref);
    if (c->counted)
        c->front->active--;
    if (c->timer_used)
        uv_close((uv_handle_t *)&c->timer, on_timer_closed);
    else
        free(c);
}

static void leave(struct sup_call *c)
{
    if (--c->depth == 0 && !c->req && !c->waiting)
        destroy(c);
}

static void on_abort(void *user)
{
    struct sup_call *c = user;

    enter(c);
    c->req = NULL;
    cancel_all(c);
    if (c->remote) { /* nobody calls for it any more */
        sup_media_remote_free(&c->remote);
        c->waiting = false;
    }
    leave(c);
}

void *sup_call_alloc(struct sup_call *c, size_t n)
{
    struct sup_blk *b;

    if (n > SIZE_MAX - sizeof(*b))
        return NULL;
    b = calloc(1, sizeof(*b) + n);
    if (!b)
        return NULL;
    b->next = c->mem;
    c->mem = b;
    return b->data;
}

char *sup_call_strdup(struct sup_call *c, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = sup_call_alloc(c, n);

    return copy ? memcpy(copy, s, n) : NULL;
}

/* -------------------------------------------------------------------- answers */

/* /v1/rerank is no route of OpenAI's; its clients read "message" beside "error". */
enum sup_shape sup_req_shape(const struct sup_req *req)
{
    const char *path = sup_req_path(req);

    if (strcmp(path, "/rerank") == 0)
        return SUP_SHAPE_TEI;
    return strncmp(path, "/v1/", 4) == 0 && strcmp(path, "/v1/rerank") != 0 ? SUP_SHAPE_OPENAI
                                                                            : SUP_SHAPE_FLAT;
}

void sup_reply_json(struct sup_req *req, unsigned status, struct sup_json *json)
{
    struct sup_fail f;

    if (json->failed) {
        sup_fail_set(&f, SUP_E_CONTENT_TOO_LARGE, "", "the answer is over the limit of %u bytes",
                     SUP_JSON_MAX);
        sup_reply_fail(req, sup_req_shape(req), &f);
    } else {
        sup_reply(req, status, "application/json", json->p, json->n);
    }
    sup_json_deinit(json);
}

void sup_reply_fail(struct sup_req *req, enum sup_shape shape, const struct sup_fail *f)
{
    struct sup_json out = {0};
    unsigned status = sup_fail_http(f);
    char tmp[24];

    if (f->retry_ms) {
        snprintf(tmp, sizeof(tmp), "%u", (f->retry_ms + 999) / 1000);
        sup_req_set_header(req, "Retry-After", tmp);
    } else if (status == 409 || status >= 500) {
        /* the official clients try 409 and 5xx again unless told not to */
        sup_req_set_header(req, "x-should-retry", "false");
    }
    sup_fail_json(f, shape, &out);
    if (out.failed)
        sup_reply(req, status, "application/json", "{}", 2);
    else
        sup_reply(req, status, "application/json", out.p, out.n);
    sup_json_deinit(&out);
}

static struct sup_req *req_take(struct sup_call *c)
{
    struct sup_req *req = c->req;

    if (!c->streaming)
        sup_admit_headers(c->front, c->grant, req);
    c->req = NULL;
    return req;
}

void sup_call_reply_raw(struct sup_call *c, const char *type, const void *body, size_t n)
{
    if (c->req)
        sup_reply(req_take(c), 200, type, body, n);
}

void sup_call_reply(struct sup_call *c, const struct sup_json *json)
{
    struct sup_fail f;

    if (!json->failed) {
        sup_call_reply_raw(c, "application/json", json->p, json->n);
        return;
    }
    sup_fail_set(&f, SUP_E_CONTENT_TOO_LARGE, "", "the answer is over the limit of %u bytes",
                 SUP_JSON_MAX);
    sup_call_fail(c, &f);
}

void sup_call_fail(struct sup_call *c, const struct sup_fail *f)
{
    struct sup_json out = {0};

    enter(c);
    cancel_all(c);
    if (c->req && !c->streaming) {
        sup_reply_fail(req_take(c), c->shape, f);
    } else if (c->req) {
        sup_json_str(&out, "event: error\ndata: ");
        sup_fail_json(f, c->shape, &out);
        sup_json_str(&out, "\n\n");
        if (!out.failed)
            sup_stream_write(c->req, out.p, out.n);
        if (c->req)
            sup_stream_end(req_take(c));
        sup_json_deinit(&out);
    }
    leave(c);
}

struct sup_facts *sup_call_facts(struct sup_call *c, const char *operation, uint64_t input_tokens)
{
    struct sup_facts *f;

    if (!c->req)
        return NULL;
    f = sup_req_facts(c->req);
    f->operation = operation;
    f->input_tokens = input_tokens;
    snprintf(f->model, sizeof(f->model), "%s", c->model_id);
    return f;
}

/* ------------------------------------------------------------------------ SSE */

static void pause_all(struct sup_call *c, bool paused)
{
    c->paused = paused;
    for (uint32_t i = 0; i < c->n_parts && c->paused == paused; i++)
        if (c->parts[i].ticket)
            sup_ticket_pause(c->parts[i].ticket, paused);
}

static void on_drain(void *user)
{
    struct sup_call *c = user;

    enter(c);
    if (c->req && c->paused)
        pause_all(c, false);
    leave(c);
}

static void stream_open(struct sup_call *c)
{
    if (c->streaming)
        return;
    c->streaming = true;
    sup_admit_headers(c->front, c->grant, c->req);
    sup_req_set_header(c->req, "Cache-Control", "no-cache");
    sup_req_set_header(c->req, "X-Accel-Buffering", "no");
    sup_stream_start(c->req, 200, "text/event-stream; charset=utf-8", on_drain, c);
}

static void send_bytes(struct sup_call *c, const void *p, size_t n)
{
    if (!c->req)
        return;
    stream_open(c);
    if (!c->req)
        return;
    c->wrote = true;
    if (!sup_stream_write(c->req, p, n) && c->req && !c->paused)
        pause_all(c, true);
}

static void on_heartbeat(uv_timer_t *t)
{
    static const char comment[] = ": waiting\n\n";
    struct sup_call *c = t->data;

    enter(c);
    if (c->req) {
        if (!c->wrote && !c->paused)
            send_bytes(c, comment, sizeof(comment) - 1);
        c->wrote = false;
        uv_timer_start(t, on_heartbeat, HEARTBEAT_MS, 0);
    }
    leave(c);
}

void sup_call_sse(struct sup_call *c)
{
    uv_timer_init(&c->front->loop, &c->timer);
    c->timer.data = c;
    c->timer_used = true;
    uv_timer_start(&c->timer, on_heartbeat, FIRST_HEARTBEAT_MS, 0);
}

void sup_call_write(struct sup_call *c, const struct sup_json *events)
{
    struct sup_fail f;

    if (events->failed) {
        sup_fail_set(&f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the next event");
        sup_call_fail(c, &f);
    } else if (events->n) {
        send_bytes(c, events->p, events->n);
    }
}

void sup_call_end(struct sup_call *c)
{
    if (c->req)
        sup_stream_end(req_take(c));
}

/* ---------------------------------------------------------------------- tasks */

static void on_frame(void *user, const Ipc__Frame *fr)
{
    struct sup_part *p = user;
    struct sup_call *c = p->call;

    enter(c);
    c->got_frame = true;
    sup_admit_frame(p, fr);
    sup_pass_note(c->front, c->model_id, fr);
    if (c->req)
        c->ops->frame(c, p->idx, fr);
    leave(c);
}

/* A task that failed before any frame on a model that failed to load met the
 * model's own fault: a malformed file is not a bad request. */
static bool load_failed(struct sup_call *c)
{
    struct sup_model_view v;

    return !c->got_frame && sup_fleet_find(c->front->fleet, c->model_id, &v) &&
           (strcmp(v.state, "failed") == 0);
}

static void on_end(void *user, const struct rc_err *err, uint32_t retry_ms)
{
    struct sup_part *p = user;
    struct sup_call *c = p->call;
    struct sup_fail f;
    /* a task that ran until its time was over has used what it was given to read */
    bool used = err && err->code == RC_DEADLINE && p->ticket && sup_ticket_started(p->ticket);

    enter(c);
    p->ticket = NULL;
    sup_admit_end(p, err == NULL, used);
    c->n_left--;
    if (err)
        sup_pass_failed(c->front, c->model_id, err);
    if (!c->req) {
        /* already answered: another part failed */
    } else if (err) {
        sup_fail_rc(&f, err, retry_ms, load_failed(c));
        sup_call_fail(c, &f);
    } else if (c->n_left == 0) {
        c->ops->finish(c);
    }
    leave(c);
}

bool sup_call_hold(struct sup_call *c, uint64_t n, struct sup_fail *f)
{
    const struct sup_conf *conf = c->front->conf;
    const uint64_t max = BODIES_HELD * conf->max_body_bytes + MEDIA_HELD * conf->max_media_bytes;

    if (n > max || c->front->held_bytes > max - n) {
        sup_fail_set(
            f, SUP_E_MODEL_RESOURCE_BUSY, "",
            "files and bodies of %llu bytes are in work, this request's %llu would be over "
            "the limit of %llu: try again later",
            (unsigned long long)c->front->held_bytes, (unsigned long long)n,
            (unsigned long long)max);
        return false;
    }
    hold(c, c->held_bytes + n);
    return true;
}

bool sup_call_parts(struct sup_call *c, uint32_t n, struct sup_fail *f)
{
    struct sup_part *parts = calloc(n, sizeof(*parts));

    if (!parts)
        return sup_fail_no_memory(f);
    for (uint32_t i = 0; i < n; i++) {
        parts[i].call = c;
        parts[i].idx = i;
    }
    c->parts = parts;
    c->n_parts = c->n_left = n;
    return true;
}

bool sup_call_submit(struct sup_call *c, uint32_t part, Ipc__Frame *frame, struct sup_fail *f)
{
    const struct sup_task t = {
        .model = c->model_id,
        .req_id = sup_req_id(c->req),
        .frame = frame,
        .deadline_us = c->deadline_us,
        .tenant = c->grant->tenant,
        .weight = c->grant->weight,
        .keep_alive = c->keep_set ? &c->keep_ms : NULL,
        .on_frame = on_frame,
        .on_end = on_end,
        .user = &c->parts[part],
    };
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    if (!sup_admit_charge(&c->parts[part], frame, f))
        return false;
    if ((rc = sup_fleet_submit(c->front->fleet, &t, &c->parts[part].ticket, &err)) == RC_OK)
        return true;
    c->parts[part].ticket = NULL;
    sup_admit_end(&c->parts[part], false, false);
    if (rc == RC_BUSY)
        sup_admit_refused(c, "queue");
    err.code = rc;
    sup_fail_refused(f, &err);
    if (rc == RC_BUSY)
        f->retry_ms = sup_fleet_again_ms(c->front->fleet, c->model_id);
    return false;
}

/* ---------------------------------------------------------------------- start */

/* Why m is of no use, or NULL. */
static const char *lacks(enum sup_need need, const Ipc__Loaded *m)
{
    switch (need) {
    case SUP_NEED_ANY:
        return NULL;
    case SUP_NEED_CHAT:
        if (m->can_generate && !m->has_chat_template)
            return "has no chat template (completions work)";
        /* fall through */
    case SUP_NEED_GENERATE:
        return m->can_generate ? NULL : "does not generate text";
    case SUP_NEED_EMBED:
        return m->can_embed && !m->can_rerank ? NULL : "does not make embeddings";
    case SUP_NEED_RERANK:
        return m->can_rerank || m->can_embed ? NULL : "does not score documents against a query";
    case SUP_NEED_EXTRACT:
        return m->can_extract ? NULL : "does not extract";
    }
    return NULL;
}

static bool can_do(struct sup_call *c, const Ipc__Loaded *m, struct sup_fail *f)
{
    const char *why;

    if (!m)
        return true; /* not probed yet: the worker will say */
    c->vocab_size = m->vocab_size;
    c->embed_dim = m->embed_dim;
    c->ctx_tokens = m->ctx_tokens;
    c->known = true;
    c->can_call_tools = m->can_call_tools;
    c->can_think = m->can_think;
    c->can_embed_image = m->can_embed_image;
    c->can_embed_sound = m->can_embed_sound;
    c->can_embed_groups = m->can_embed_groups;
    c->can_rerank = m->can_rerank;
    c->can_sparse = m->can_embed_sparse;
    c->token_dim = m->token_dim;
    if (!(why = lacks(c->ops->need, m)))
        return true;
    sup_fail_set(f, SUP_E_INVALID_MODEL, "model", "model '%.100s' %s", c->model, why);
    return false;
}

struct only {
    enum sup_need need;
    const char *id;
    unsigned n;
    const struct sup_grant *grant;
    bool exact; /* those that were made for it, where others can do it too */
};

static void count_able(void *user, const struct sup_model_view *v)
{
    struct only *o = user;

    if (!v->info || lacks(o->need, v->info) || !sup_grant_model(o->grant, v->id) ||
        (o->exact && !v->info->can_rerank))
        return;
    o->id = v->id;
    o->n++;
}

const char *sup_call_only_model(struct sup_call *c, struct sup_fail *f)
{
    struct only o = {.need = c->ops->need,
                     .grant = sup_req_grant(c->req),
                     .exact = c->ops->need == SUP_NEED_RERANK};
    const char *id;

    sup_fleet_each(c->front->fleet, count_able, &o);
    if (o.n == 1) {
        if (!(id = sup_call_strdup(c, o.id)))
            sup_fail_no_memory(f);
        return id;
    }
    sup_fail_set(f, SUP_E_INVALID_REQUEST, "model",
                 "field 'model': missing, and %u models here were made for this task, expected a "
                 "model's id",
                 o.n);
    return NULL;
}

static void not_found(struct sup_call *c, struct sup_fail *f)
{
    sup_fail_set(f, SUP_E_MODEL_NOT_FOUND, "model", "model '%.100s' not found", c->model);
}

static void on_rescan(void *user);
static void on_remote(struct sup_call *c, const struct sup_fail *f);

/* The body's tree, or its files, outlive the handler. */
static bool keep_body(struct sup_call *c, struct sup_fail *f)
{
    if (c->kept)
        return true;
    c->kept = sup_call_hold(c, c->n_body, f);
    return c->kept && (sup_api_frame_own(&c->frame) || sup_fail_no_memory(f));
}

/* Files of other machines, where the endpoint takes files at all. */
static bool fetch_remote(struct sup_call *c, struct sup_fail *f)
{
    if (!c->ops->frames || c->remote)
        return true;
    if (!sup_media_remote_start(&c->remote, c, on_remote, f))
        return false;
    c->waiting = c->remote != NULL;
    return !c->waiting || keep_body(c, f);
}

/* With the body read and the model named: find it, check all fields, start. */
static bool go(struct sup_call *c, struct sup_fail *f)
{
    struct sup_val v[SUP_FIELDS_MAX];
    struct sup_model_view m;
    struct sup_blk *keep;
    bool ok, none = c->ops->model_of && !*c->model;

    if (!none && !sup_model_name_ok(c->model, strlen(c->model))) {
        not_found(c, f);
        return false;
    }
    if (!none && !sup_fleet_find(c->front->fleet, c->model, &m)) {
        if (c->rescanned) {
            not_found(c, f);
            return false;
        }
        if (!keep_body(c, f))
            return false;
        /* it may have been put there a moment ago */
        c->rescanned = c->waiting = true;
        sup_fleet_rescan(c->front->fleet, on_rescan, c);
        return true;
    }
    if (!(c->model_id = sup_call_strdup(c, none ? "" : m.id)))
        return sup_fail_no_memory(f);
    if (!none && (!sup_model_allowed(sup_req_grant(c->req), m.id, f) || !can_do(c, m.info, f)))
        return false;
    if (!fetch_remote(c, f))
        return false;
    if (c->waiting)
        return true;
    if (c->body && !sup_fields_read(c->ops->fields, c->ops->n_fields, c->body, "", v, f))
        return false;
    keep = c->mem;
    ok = c->ops->start(c, v, f);
    /* the frames are packed: a long stream does not hold on to its prompt */
    free_mem(c, keep);
    json_decref(c->body);
    c->body = NULL;
    sup_api_frame_deinit(&c->frame);
    if (c->remote)
        hold(c, c->held_bytes - sup_media_remote_held(c->remote));
    sup_media_remote_free(&c->remote);
    if (c->kept)
        hold(c, c->held_bytes - c->n_body);
    return ok;
}

static void on_remote(struct sup_call *c, const struct sup_fail *f)
{
    struct sup_fail mine;

    enter(c);
    c->waiting = false;
    if (c->req && f)
        sup_call_fail(c, f);
    else if (c->req && !go(c, &mine))
        sup_call_fail(c, &mine);
    leave(c);
}

static void on_rescan(void *user)
{
    struct sup_call *c = user;
    struct sup_fail f;

    enter(c);
    c->waiting = false;
    if (c->req && !go(c, &f))
        sup_call_fail(c, &f);
    leave(c);
}

static bool read_keep(struct sup_call *c, const json_t *field, struct sup_fail *f)
{
    return sup_keep_read(field, sup_req_header(c->req, "x-keep-alive"),
                         c->front->conf->keep_alive_max_s, &c->keep_set, &c->keep_ms, f);
}

static bool read_json(struct sup_call *c, bool framed, uint64_t *timeout_ms, struct sup_fail *f)
{
    struct sup_val v[ALL_N];
    const char *body;
    size_t n;

    body = sup_req_body(c->req, &n);
    c->n_body = n;
    if (framed) {
        if (!sup_api_frame_read(&c->frame, body, n, f))
            return false;
        body = c->frame.meta;
        n = c->frame.n_meta;
    }
    if (!(c->body = sup_body_parse(body, n, f)))
        return false;
    if (!sup_fields_read(all_fields, c->ops->model_of ? ALL_MODEL : ALL_N, c->body, "", v, f))
        return false;
    c->model = c->ops->model_of ? c->ops->model_of(c, c->body, f) : v[ALL_MODEL].s;
    if (!c->model)
        return false;
    *timeout_ms = v[ALL_TIMEOUT].set ? (uint64_t)v[ALL_TIMEOUT].i : 0;
    return read_keep(c, v[ALL_KEEP].j, f);
}

static bool read_raw(struct sup_call *c, struct sup_fail *f)
{
    c->model = sup_req_query(c->req, "model");
    if (!c->model)
        c->model = sup_req_header(c->req, "x-model");
    if (c->model && c->model[0] && strlen(c->model) <= SUP_NAME_MAX)
        return read_keep(c, NULL, f);
    sup_fail_set(
        f, SUP_E_INVALID_REQUEST, "model",
        "query 'model' or header 'X-Model': missing, empty or too long, expected a model's "
        "id");
    return false;
}

static bool prepare(struct sup_call *c, struct sup_fail *f)
{
    const char *type = sup_req_header(c->req, "content-type");
    char plain[SUP_MIME_BYTES] = "";
    uint64_t timeout_ms = 0;
    bool framed =
        type && sup_mime_plain(type, strlen(type), plain) && strcmp(plain, SUP_FRAME_TYPE) == 0;

    if (framed && !c->ops->frames) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_MEDIA_TYPE, "Content-Type",
                     "header 'Content-Type': this endpoint takes no attachments, expected "
                     "application/json");
        return false;
    }
    if (type && strncasecmp(type, "multipart/", 10) == 0) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_MEDIA_TYPE, "Content-Type",
                     "header 'Content-Type': multipart bodies are not accepted, expected "
                     "application/json");
        return false;
    }
    if (!(c->ops->raw_body ? read_raw(c, f) : read_json(c, framed, &timeout_ms, f)))
        return false;
    if (!sup_admit_deadline(c, timeout_ms, f))
        return false;
    if (!(c->model = sup_call_strdup(c, c->model)))
        return sup_fail_no_memory(f);
    return go(c, f);
}

void sup_call_run(struct sup_req *req, struct sup_front *front, const struct sup_call_ops *ops)
{
    struct sup_grant *grant = sup_req_grant(req);
    struct sup_tenant *tenant = NULL;
    struct sup_call *c;
    struct sup_fail f;

    if (!sup_admit_server(front, grant, &f) || !sup_admit_begin(front, grant, &tenant, &f)) {
        sup_admit_refuse(front, req, &f);
        return;
    }
    c = calloc(1, ops->size);
    if (!c) {
        sup_admit_over(front, &tenant);
        sup_fail_no_memory(&f);
        sup_admit_refuse(front, req, &f);
        return;
    }
    c->grant = c->grant_ref = sup_grant_ref(grant);
    c->tenant = tenant;
    c->ops = ops;
    c->front = front;
    c->req = req;
    c->shape = sup_req_shape(req);
    c->counted = true;
    front->active++;
    sup_req_on_abort(req, on_abort, c);
    enter(c);
    if (!prepare(c, &f))
        sup_call_fail(c, &f);
    leave(c);
}

/* ---------------------------------------------------------------- load, unload */

/* What was asked goes on; only this client stops waiting for it. */
static void on_late(uv_timer_t *t)
{
    struct sup_call *c = t->data;
    struct sup_fail f;

    enter(c);
    if (c->req) {
        sup_fail_set(&f, SUP_E_DEADLINE_EXCEEDED, "",
                     "the request's time was over while it waited for model '%.100s' to be loaded "
                     "or unloaded, which goes on",
                     c->model);
        sup_call_fail(c, &f);
    }
    leave(c);
}

void sup_call_await(struct sup_call *c)
{
    uint64_t now = uv_hrtime() / 1000;

    c->waiting = true;
    if (!c->deadline_us)
        return;
    uv_timer_init(&c->front->loop, &c->timer);
    c->timer.data = c;
    c->timer_used = true;
    uv_timer_start(&c->timer, on_late, c->deadline_us > now ? (c->deadline_us - now) / 1000 : 0, 0);
}

void sup_call_awaited(struct sup_call *c, const struct rc_err *err,
                      void (*then)(struct sup_call *c))
{
    struct sup_model_view v;
    struct sup_fail f;

    enter(c);
    c->waiting = false;
    if (c->timer_used)
        uv_timer_stop(&c->timer);
    if (c->req && err) {
        sup_fail_rc(&f, err, 0, true);
        if (sup_fleet_find(c->front->fleet, c->model_id, &v) && sup_code_http(f.code) == 503)
            f.retry_ms = v.retry_in_ms ? (uint32_t)v.retry_in_ms : 1000;
        sup_call_fail(c, &f);
    } else if (c->req) {
        then(c);
    }
    leave(c);
}

void sup_call_awaited_fail(struct sup_call *c, const struct sup_fail *f)
{
    enter(c);
    c->waiting = false;
    if (c->timer_used)
        uv_timer_stop(&c->timer);
    if (c->req)
        sup_call_fail(c, f);
    leave(c);
}
