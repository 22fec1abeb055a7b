/* sup_models.c - the models: GET /v1/models, /v1/models/ID, /ai/v1/models, and
 * POST /ai/v1/models/load, /ai/v1/models/unload.
 *
 * A list looks at the disk first (the fleet bounds how often), so a model copied
 * into the folder appears without a restart. Load and unload answer when the
 * worker is there or gone; a client that leaves meanwhile stops nothing.
 * Tests: tests/supervisor/test_sup_api_models.c
 */
#include "sup_endpoints.h"

#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_auth.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_grant.h"

/* ----------------------------------------------------------------------- lists */

struct listing {
    struct sup_front *front;
    struct sup_req *req; /* NULL: the client left */
    void (*reply)(struct listing *l);
    char *id; /* of one model, else NULL */
    struct sup_json out;
    bool first;
    bool (*pick)(const Ipc__Loaded *m);
};

static bool can_embed(const Ipc__Loaded *m)
{
    return m->can_embed;
}

static bool can_generate(const Ipc__Loaded *m)
{
    return m->can_generate;
}

static bool can_rerank(const Ipc__Loaded *m)
{
    return m->can_rerank || m->token_dim > 0;
}

static bool can_extract(const Ipc__Loaded *m)
{
    return m->can_extract;
}

static void caps_json(const Ipc__Loaded *m, struct sup_json *o)
{
    const struct {
        bool has;
        const char *word;
    } caps[] = {
        {m->can_generate && m->has_chat_template, "chat"},
        {m->can_generate, "completions"},
        {m->can_call_tools, "tools"},
        {m->can_think, "thinking"},
        {m->can_embed, "embeddings"},
        {m->can_embed_groups, "embedding_groups"},
        {m->can_embed_sparse, "sparse"},
        {m->token_dim > 0, "late_interaction"},
        {m->can_rerank, "rerank"},
        {m->can_extract, "extraction"},
    };
    const char *sep = "";

    sup_json_str(o, "\"capabilities\":[");
    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
        if (!caps[i].has)
            continue;
        sup_json_str(o, sep);
        sup_json_quoted(o, caps[i].word);
        sep = ",";
    }
    sup_json_str(o, "],\"inputs\":[\"text\"");
    if (m->can_embed_image)
        sup_json_str(o, ",\"image\"");
    if (m->can_embed_sound)
        sup_json_str(o, ",\"audio\"");
    sup_json_str(o, "]");
}

static void info_json(const Ipc__Loaded *m, struct sup_json *o)
{
    sup_json_str(o, ",");
    caps_json(m, o);
    sup_json_str(o, ",\"family\":");
    sup_json_quoted(o, m->family);
    sup_json_str(o, ",\"quant\":");
    sup_json_quoted(o, m->quant);
    sup_json_fmt(o,
                 ",\"ctx_tokens\":%u,\"train_ctx_tokens\":%u,\"embed_dim\":%u,\"vocab_size\":%u,"
                 "\"n_params\":%llu,\"weight_bytes\":%llu",
                 m->ctx_tokens, m->train_ctx_tokens, m->embed_dim, m->vocab_size,
                 (unsigned long long)m->n_params, (unsigned long long)m->weight_bytes);
    if (*m->model_identity) {
        sup_json_str(o, ",\"model_identity\":");
        sup_json_quoted(o, m->model_identity);
    }
    if (*m->note) {
        sup_json_str(o, ",\"note\":");
        sup_json_quoted(o, m->note);
    }
    if (m->probe_only)
        return;
    sup_json_str(o, ",\"backend\":");
    sup_json_quoted(o, m->backend);
    sup_json_str(o, ",\"kernels\":");
    sup_json_quoted(o, m->kernels);
    sup_json_fmt(
        o,
        ",\"kv_bytes\":%llu,\"kv_ctx_bytes\":%llu,\"workspace_bytes\":%llu,\"max_seqs\":%u,"
        "\"threads\":%u",
        (unsigned long long)m->kv_bytes, (unsigned long long)m->kv_ctx_bytes,
        (unsigned long long)m->workspace_bytes, m->max_seqs, m->threads);
    if (!*m->device) /* the processor */
        return;
    sup_json_str(o, ",\"device\":");
    sup_json_quoted(o, m->device);
    sup_json_str(o, ",\"compute\":");
    sup_json_quoted(o, m->compute);
    sup_json_fmt(o, ",\"device_bytes\":%llu", (unsigned long long)m->device_bytes);
}

static void model_json(const struct sup_model_view *v, struct sup_json *o)
{
    sup_json_str(o, "{\"id\":");
    sup_json_quoted(o, v->id);
    sup_json_fmt(o, ",\"object\":\"model\",\"created\":%.0f,\"owned_by\":\"inferd\",\"state\":",
                 v->loaded_unix_s > 0 ? v->loaded_unix_s : 0.0);
    sup_json_quoted(o, v->state);
    sup_json_fmt(o, ",\"bytes\":%llu,\"active_tasks\":%u,\"pid\":%u,\"loads\":%llu,\"deaths\":%llu",
                 (unsigned long long)v->bytes, v->active_tasks, v->pid,
                 (unsigned long long)v->loads, (unsigned long long)v->deaths);
    if (v->load_total)
        sup_json_fmt(o, ",\"load_done\":%llu,\"load_total\":%llu", (unsigned long long)v->load_done,
                     (unsigned long long)v->load_total);
    if (v->last_error && v->last_error[0]) {
        sup_json_str(o, ",\"last_error\":");
        sup_json_quoted(o, v->last_error);
    }
    if (v->retry_in_ms)
        sup_json_fmt(o, ",\"retry_in_ms\":%llu", (unsigned long long)v->retry_in_ms);
    if (v->info)
        info_json(v->info, o);
    sup_json_str(o, "}");
}

static void add_model(void *user, const struct sup_model_view *v)
{
    struct listing *l = user;

    if (!sup_grant_model(sup_req_grant(l->req), v->id))
        return;
    if (!l->first)
        sup_json_put(&l->out, ",", 1);
    l->first = false;
    model_json(v, &l->out);
}

static void add_entry(void *user, const struct sup_model_view *v)
{
    struct listing *l = user;

    if (!v->info || !l->pick(v->info) || !sup_grant_model(sup_req_grant(l->req), v->id))
        return;
    if (!l->first)
        sup_json_put(&l->out, ",", 1);
    l->first = false;
    sup_json_quoted(&l->out, v->id);
    sup_json_str(&l->out, ":{");
    caps_json(v->info, &l->out);
    sup_json_put(&l->out, "}", 1);
}

static void each(struct listing *l, const char *before, const char *after,
                 void (*fn)(void *, const struct sup_model_view *))
{
    l->first = true;
    sup_json_str(&l->out, before);
    sup_fleet_each(l->front->fleet, fn, l);
    sup_json_str(&l->out, after);
}

static void reply_list(struct listing *l)
{
    each(l, "{\"object\":\"list\",\"data\":[", "]}", add_model);
    sup_reply_json(l->req, 200, &l->out);
}

/* Of this build; whether there is a GPU is known when a model asks for one. */
void sup_backends_json(struct sup_json *o)
{
    sup_json_str(o, "{\"native\":true,\"onnx\":false,\"metal\":false,\"mlx\":false,\"cuda\":true,"
                    "\"xla\":false,\"wasm\":false}");
}

static void reply_full(struct listing *l)
{
    each(l, "{\"object\":\"list\",\"data\":[", "]", add_model);
    sup_json_fmt(&l->out, ",\"allow_downloads\":%s,\"backends\":",
                 l->front->conf->allow_pull ? "true" : "false");
    sup_backends_json(&l->out);
    l->pick = can_embed;
    each(l, ",\"embedders\":{", "}", add_entry);
    l->pick = can_generate;
    each(l, ",\"generators\":{", "}", add_entry);
    l->pick = can_rerank;
    each(l, ",\"rerankers\":{", "}", add_entry);
    l->pick = can_extract;
    each(l, ",\"extractors\":{", "}", add_entry);
    sup_json_str(&l->out, ",\"chunkers\":{\"fixed\":{},\"fixed_bert\":{},\"fixed_bpe\":{}},"
                          "\"recognizers\":{},\"rewriters\":{},\"classifiers\":{},"
                          "\"readers\":{},\"transcribers\":{},\"deciders\":{}}");
    sup_reply_json(l->req, 200, &l->out);
}

static void reply_one(struct listing *l)
{
    struct sup_model_view v;
    struct sup_fail f;

    if (sup_model_name_ok(l->id, strlen(l->id)) && sup_fleet_find(l->front->fleet, l->id, &v)) {
        if (!sup_model_allowed(sup_req_grant(l->req), v.id, &f)) {
            sup_reply_fail(l->req, sup_req_shape(l->req), &f);
            return;
        }
        model_json(&v, &l->out);
        sup_reply_json(l->req, 200, &l->out);
        return;
    }
    sup_fail_set(&f, SUP_E_MODEL_NOT_FOUND, "model", "model '%.100s' not found", l->id);
    sup_reply_fail(l->req, sup_req_shape(l->req), &f);
}

static void on_left(void *user)
{
    struct listing *l = user;

    l->req = NULL; /* freed when the rescan ends */
}

static void on_fresh(void *user)
{
    struct listing *l = user;

    if (l->req)
        l->reply(l);
    free(l->id);
    sup_json_deinit(&l->out);
    free(l);
}

static void list(struct sup_req *req, struct sup_front *front, const char *id,
                 void (*reply)(struct listing *l))
{
    struct listing *l = calloc(1, sizeof(*l));
    struct sup_fail f;

    if (l && id)
        l->id = strdup(id);
    if (!l || (id && !l->id)) {
        free(l);
        sup_fail_set(&f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the list of models");
        sup_reply_fail(req, sup_req_shape(req), &f);
        return;
    }
    l->front = front;
    l->req = req;
    l->reply = reply;
    sup_req_on_abort(req, on_left, l);
    sup_fleet_rescan(front->fleet, on_fresh, l);
}

void sup_models_list(struct sup_req *req, void *user)
{
    list(req, user, NULL, reply_list);
}

void sup_models_full(struct sup_req *req, void *user)
{
    list(req, user, NULL, reply_full);
}

void sup_models_get(struct sup_req *req, void *user)
{
    list(req, user, sup_req_tail(req), reply_one);
}

/* ---------------------------------------------------------------- load, unload */

static void reply_state(struct sup_call *c)
{
    struct sup_model_view v;
    struct sup_json o = {0};

    sup_json_str(&o, "{\"object\":\"model.state\",\"model\":");
    sup_json_quoted(&o, c->model);
    sup_json_str(&o, ",\"state\":");
    sup_json_quoted(&o, sup_fleet_find(c->front->fleet, c->model_id, &v) ? v.state : "absent");
    sup_json_str(&o, "}");
    sup_call_reply(c, &o);
    sup_json_deinit(&o);
}

static void on_done(void *user, const struct rc_err *err)
{
    sup_call_awaited(user, err, reply_state);
}

/* For the audit log: who asked, and for which model. */
static void note_act(struct sup_call *c, const char *act)
{
    const struct sup_grant *g = sup_req_grant(c->req);
    struct sup_json o = {0};

    sup_json_str(&o, "{\"model\":");
    sup_json_quoted(&o, c->model_id);
    sup_json_str(&o, ",\"tenant\":");
    sup_json_quoted(&o, g->tenant);
    sup_json_str(&o, ",\"request_id\":");
    sup_json_quoted(&o, sup_req_id(c->req));
    sup_json_put(&o, "}", 2); /* with its NUL */
    sup_auth_audit(c->front->auth, act, g->key_id, o.failed ? "{}" : o.p);
    sup_json_deinit(&o);
}

static bool start_with(struct sup_call *c, const char *act, struct sup_fail *f,
                       enum rc (*ask)(struct sup_fleet *, const char *,
                                      void (*)(void *, const struct rc_err *), void *,
                                      struct rc_err *))
{
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    note_act(c, act);
    if (!sup_auth_audit_ok(c->front->auth)) {
        sup_fail_set(f, SUP_E_MODEL_UNAVAILABLE, "",
                     "the audit log cannot be written (disk full?), so acts of administrators are "
                     "refused; requests to models go on");
        return false;
    }
    sup_call_await(c);
    if ((rc = ask(c->front->fleet, c->model_id, on_done, c, &err)) == RC_OK)
        return true;
    c->waiting = false;
    err.code = rc;
    sup_fail_refused(f, &err);
    return false;
}

static bool load_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    return start_with(c, "model.load", f, sup_fleet_load);
}

static bool unload_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    return start_with(c, "model.unload", f, sup_fleet_unload);
}

static void no_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
}

const struct sup_call_ops sup_load_ops = {
    .size = sizeof(struct sup_call), .start = load_start, .frame = no_frame};
const struct sup_call_ops sup_unload_ops = {
    .size = sizeof(struct sup_call), .start = unload_start, .frame = no_frame};
