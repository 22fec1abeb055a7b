/* sup_models_pull.c - POST /ai/v1/models/pull: an administrator fetches a model.
 *
 * Off unless allow_pull. The fetcher does the work (supervisor/fetch/sup_fetcher.h); here a
 * reference is read, progress becomes SSE, and the end an answer. A client that leaves stops
 * nothing. Tests: tests/e2e/pull_http.py
 */
#include "sup_endpoints.h"

#include <string.h>

#include "sup_auth.h"
#include "sup_conf.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_grant.h"
#include "sup_http.h"
#include "sup_link.h"
#include "sup_ref.h"

#define FIELDS(X)                                                \
    X(F_MODEL, "model", STR, true, 1, SUP_REF_MAX - 16, 0, NULL) \
    X(F_STREAM, "stream", BOOL, false, 0, 0, 0, NULL)            \
    X(F_AGAIN, "again", BOOL, false, 0, 0, 0, NULL)

enum { FIELDS(SUP_FIELD_ID) F_N };
static const struct sup_field fields[F_N] = {FIELDS(SUP_FIELD_ROW)};

struct pull {
    struct sup_call call; /* first */
    bool stream;
    struct sup_json out;
};

static const char *no_model(struct sup_call *c, json_t *body, struct sup_fail *f)
{
    return ""; /* what is asked for need not be here */
}

static void event(struct pull *p)
{
    struct sup_json o = {0};

    sup_json_str(&o, "data: ");
    if (!p->out.failed)
        sup_json_put(&o, p->out.p, p->out.n);
    sup_json_str(&o, "\n\n");
    sup_call_write(&p->call, &o);
    sup_json_deinit(&o);
    sup_json_deinit(&p->out);
}

static void on_progress(void *user, const struct sup_link_progress *now)
{
    struct pull *p = user;

    if (!p->stream)
        return;
    sup_json_str(&p->out, "{\"object\":\"model.pull\",\"status\":");
    sup_json_quoted(&p->out, now->stage);
    sup_json_str(&p->out, ",\"file\":");
    sup_json_quoted(&p->out, now->file);
    sup_json_fmt(&p->out,
                 ",\"files_done\":%u,\"files\":%u,\"completed\":%llu,\"total\":%llu,"
                 "\"bytes_per_s\":%llu}",
                 now->n, now->of, (unsigned long long)now->done_bytes,
                 (unsigned long long)now->total_bytes, (unsigned long long)now->bytes_per_s);
    event(p);
}

static void answer(struct sup_call *c)
{
    struct pull *p = (struct pull *)c;

    if (!p->stream) {
        sup_call_reply(c, &p->out);
        return;
    }
    event(p);
    sup_json_str(&p->out, "data: [DONE]\n\n");
    sup_call_write(c, &p->out);
    sup_call_end(c);
}

/* The other side's fault is told as such. */
static void failed(struct sup_fail *f, const struct rc_err *err)
{
    if (err->code == RC_IO || err->code == RC_STATE || err->code == RC_FORMAT ||
        err->code == RC_CRASHED)
        sup_fail_set(f, SUP_E_UPSTREAM_FAILURE, "model", "%s", err->msg);
    else
        sup_fail_rc(f, err, 0, false);
    if (f->code == SUP_E_MODEL_RESOURCE_BUSY)
        f->retry_ms = 1000;
}

static void on_done(void *user, struct sup_link_done *d)
{
    struct pull *p = user;
    struct sup_fail f;

    sup_json_deinit(&p->out);
    if (d->code != RC_OK) {
        failed(&f, &d->err);
        sup_call_awaited_fail(&p->call, &f);
        return;
    }
    if (!d->unchanged)
        sup_fleet_stale(p->call.front->fleet);
    sup_json_str(&p->out, "{\"object\":\"model.pull\",\"status\":\"success\",\"model\":");
    sup_json_quoted(&p->out, d->name);
    sup_json_str(&p->out, ",\"commit\":");
    sup_json_quoted(&p->out, d->type);
    sup_json_fmt(&p->out, ",\"bytes\":%llu,\"unchanged\":%s}", (unsigned long long)d->bytes,
                 d->unchanged ? "true" : "false");
    sup_call_awaited(&p->call, NULL, answer);
}

static void note_act(struct sup_call *c, const char *reference)
{
    const struct sup_grant *g = sup_req_grant(c->req);
    struct sup_json o = {0};

    sup_json_str(&o, "{\"reference\":");
    sup_json_quoted(&o, reference);
    sup_json_str(&o, ",\"tenant\":");
    sup_json_quoted(&o, g->tenant);
    sup_json_str(&o, ",\"request_id\":");
    sup_json_quoted(&o, sup_req_id(c->req));
    sup_json_put(&o, "}", 2); /* with its NUL */
    sup_auth_audit(c->front->auth, "model.pull", g->key_id, o.failed ? "{}" : o.p);
    sup_json_deinit(&o);
}

static bool reference_ok(const char *text, struct sup_fail *f)
{
    static struct sup_ref ref; /* large, and read only here */
    struct rc_err err = RC_ERR_INIT;

    if (sup_ref_parse(&ref, text, NULL, NULL, &err) != RC_OK) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "model", "field 'model': %.400s", err.msg);
        return false;
    }
    if (ref.kind == SUP_REF_FILE) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "model",
                     "field 'model': file: is for 'inferd pull' on the server's own machine");
        return false;
    }
    return true;
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct pull *p = (struct pull *)c;
    struct sup_link_cb cb = {on_progress, on_done, p};
    struct rc_err err = RC_ERR_INIT;
    uint64_t id;

    if (!c->front->conf->allow_pull) {
        sup_fail_set(f, SUP_E_FORBIDDEN, "",
                     "this server fetches no models: start it with --allow-pull, or use 'inferd "
                     "pull' on its machine");
        return false;
    }
    if (!reference_ok(v[F_MODEL].s, f))
        return false;
    note_act(c, v[F_MODEL].s);
    if (sup_link_pull(c->front->link, v[F_MODEL].s, v[F_AGAIN].set && v[F_AGAIN].b, &cb, &id,
                      &err) != RC_OK) {
        failed(f, &err);
        return false;
    }
    p->stream = v[F_STREAM].set && v[F_STREAM].b;
    c->deadline_us = 0; /* as long as it takes */
    sup_call_await(c);
    if (p->stream)
        sup_call_sse(c);
    return true;
}

static void no_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
}

static void deinit(struct sup_call *c)
{
    sup_json_deinit(&((struct pull *)c)->out);
}

const struct sup_call_ops sup_pull_ops = {.size = sizeof(struct pull),
                                          .fields = fields,
                                          .n_fields = F_N,
                                          .model_of = no_model,
                                          .start = start,
                                          .frame = no_frame,
                                          .deinit = deinit};
