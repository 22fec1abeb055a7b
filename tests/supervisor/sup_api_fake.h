/* sup_api_fake.h - a fake HTTP request and a fake fleet for the tests of the API.
 *
 * Implements the functions of sup_http.h and sup_fleet.h that supervisor/api/
 * calls. A request records what was answered; the fleet records frames and lets
 * the test play answers. Every use of a dead request, of a dead ticket or of a
 * second answer aborts. Include in exactly one .c per program.
 */
#ifndef SUP_API_FAKE_H
#define SUP_API_FAKE_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "sup_api.h"
#include "sup_call.h"
#include "sup_conf.h"
#include "sup_endpoints.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_gen.h"
#include "sup_grant.h"
#include "sup_http.h"
#include "sup_metrics.h"
#include "sup_quota.h"
#include "sup_spans.h"

#define FAKE_CHECK(x)                                               \
    do {                                                            \
        if (!(x)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                \
        }                                                           \
    } while (0)

struct fake_kv {
    char name[64], value[256];
};

struct sup_req {
    const char *method, *path, *tail;
    const char *query_model;
    struct fake_kv in[4], out[12];
    unsigned n_in, n_out;
    const char *body;
    size_t n_body;
    void (*abort_fn)(void *);
    void *abort_user;
    void (*drain_fn)(void *);
    void *drain_user;
    unsigned status;
    char type[96];
    struct sup_json answer;
    bool streaming, full, cut_on_write, done;
    unsigned writes;
    struct sup_grant *grant; /* NULL: T.grant */
    struct sup_facts facts;
};

struct sup_ticket {
    struct sup_task task;
    Ipc__Frame *frame;
    char *model;
    bool dead, paused, cancelled, started;
};

struct sup_fleet {
    struct sup_model_view models[6];
    unsigned n_models;
    struct sup_model_view hidden; /* appears with the next rescan */
    struct sup_ticket tickets[160];
    unsigned n_tickets, n_cancelled, n_rescans;
    enum rc refuse;     /* of the next submit */
    unsigned refuse_at; /* after this many submits */
    uint32_t again_ms;  /* what a full queue says; 0 = 1000 */
    void (*rescan_done)(void *);
    void *rescan_user;
    bool hold_rescan, not_ready, not_started;
    void (*load_done)(void *, const struct rc_err *);
    void *load_user;
    enum rc load_rc;
    char load_id[64];
    unsigned n_loads, n_unloads;
};

/* ------------------------------------------------------------------------ http */

const char *sup_req_method(const struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return r->method;
}
const char *sup_req_path(const struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return r->path;
}
const char *sup_req_tail(const struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return r->tail ? r->tail : "";
}
const char *sup_req_query(const struct sup_req *r, const char *key)
{
    FAKE_CHECK(!r->done);
    return strcmp(key, "model") == 0 ? r->query_model : NULL;
}
const char *sup_req_header(const struct sup_req *r, const char *name)
{
    FAKE_CHECK(!r->done);
    for (unsigned i = 0; i < r->n_in; i++)
        if (strcmp(r->in[i].name, name) == 0)
            return r->in[i].value;
    return NULL;
}
const char *sup_req_body(const struct sup_req *r, size_t *n)
{
    FAKE_CHECK(!r->done);
    *n = r->n_body;
    return r->body;
}
/* nobody asks whose a key is here */
void sup_req_known(struct sup_req *r, enum sup_auth_is verdict, struct sup_grant *g)
{
    (void)r, (void)verdict, (void)g;
    FAKE_CHECK(false);
}
const char *sup_req_id(const struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return "abcdefghijklmnopqrstuvwxyz";
}
uint64_t sup_req_start_us(const struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return 5000000;
}
struct sup_facts *sup_req_facts(struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return &r->facts;
}
void sup_req_on_abort(struct sup_req *r, void (*fn)(void *), void *user)
{
    FAKE_CHECK(!r->done);
    r->abort_fn = fn;
    r->abort_user = user;
}
void sup_req_set_header(struct sup_req *r, const char *name, const char *value)
{
    FAKE_CHECK(!r->done && !r->streaming && r->n_out < 12);
    snprintf(r->out[r->n_out].name, sizeof(r->out[0].name), "%s", name);
    snprintf(r->out[r->n_out].value, sizeof(r->out[0].value), "%s", value);
    r->n_out++;
}
void sup_reply(struct sup_req *r, unsigned status, const char *type, const void *body, size_t n)
{
    FAKE_CHECK(!r->done && !r->streaming);
    r->status = status;
    snprintf(r->type, sizeof(r->type), "%s", type);
    sup_json_put(&r->answer, body, n);
    r->done = true;
}
void sup_stream_start(struct sup_req *r, unsigned status, const char *type,
                      void (*on_drain)(void *), void *user)
{
    FAKE_CHECK(!r->done && !r->streaming);
    r->streaming = true;
    r->status = status;
    snprintf(r->type, sizeof(r->type), "%s", type);
    r->drain_fn = on_drain;
    r->drain_user = user;
}
bool sup_stream_write(struct sup_req *r, const void *data, size_t n)
{
    FAKE_CHECK(!r->done && r->streaming && n > 0);
    r->writes++;
    sup_json_put(&r->answer, data, n);
    if (r->cut_on_write) { /* far too slow: the client is cut inside the call */
        r->abort_fn(r->abort_user);
        r->done = true;
        return false;
    }
    return !r->full;
}
void sup_stream_end(struct sup_req *r)
{
    FAKE_CHECK(!r->done && r->streaming);
    r->done = true;
}

/* ----------------------------------------------------------------------- fleet */

static inline void fake_bury(struct sup_ticket *t)
{
    t->dead = true;
    ipc__frame__free_unpacked(t->frame, NULL);
    free(t->model);
    t->frame = NULL;
    t->model = NULL;
}

enum rc sup_fleet_submit(struct sup_fleet *f, const struct sup_task *t, struct sup_ticket **out,
                         struct rc_err *err)
{
    struct sup_ticket *k = &f->tickets[f->n_tickets];
    uint8_t *buf;
    size_t n;

    if (f->refuse && f->n_tickets >= f->refuse_at)
        return rc_fail(err, f->refuse, "refused by the fake: %s", rc_text(f->refuse));
    FAKE_CHECK(f->n_tickets < sizeof(f->tickets) / sizeof(f->tickets[0]));
    f->n_tickets++;
    n = ipc__frame__get_packed_size(t->frame);
    buf = malloc(n + 1);
    ipc__frame__pack(t->frame, buf);
    memset(k, 0, sizeof(*k));
    k->task = *t;
    k->task.frame = NULL;
    k->frame = ipc__frame__unpack(NULL, n, buf);
    k->model = strdup(t->model);
    free(buf);
    FAKE_CHECK(k->frame);
    *out = k;
    return RC_OK;
}
uint32_t sup_fleet_again_ms(struct sup_fleet *f, const char *model)
{
    FAKE_CHECK(model && *model);
    return f->again_ms ? f->again_ms : 1000;
}
void sup_ticket_cancel(struct sup_ticket **t)
{
    if (!t || !*t)
        return;
    FAKE_CHECK(!(*t)->dead);
    (*t)->cancelled = true;
    fake_bury(*t);
    *t = NULL;
}
bool sup_ticket_started(const struct sup_ticket *t)
{
    FAKE_CHECK(!t->dead);
    return t->started;
}
void sup_ticket_pause(struct sup_ticket *t, bool paused)
{
    FAKE_CHECK(!t->dead);
    t->paused = paused;
}
void sup_fleet_each_worker(struct sup_fleet *f, void (*fn)(void *, const struct sup_worker_view *),
                           void *user)
{
    static const struct sup_layer_view layers[] = {{"seccomp", "a filter", true},
                                                   {"landlock", "no \"such\" thing", false}};

    for (unsigned i = 0; i < f->n_models; i++)
        fn(user, &(struct sup_worker_view){f->models[i].id, 7, layers, 2});
}
void sup_fleet_each(struct sup_fleet *f, void (*fn)(void *, const struct sup_model_view *),
                    void *user)
{
    for (unsigned i = 0; i < f->n_models; i++)
        fn(user, &f->models[i]);
}
bool sup_fleet_find(struct sup_fleet *f, const char *id, struct sup_model_view *out)
{
    for (unsigned i = 0; i < f->n_models; i++)
        if (strcmp(f->models[i].id, id) == 0) {
            *out = f->models[i];
            return true;
        }
    return false;
}
static inline void fake_rescan_end(struct sup_fleet *f)
{
    void (*done)(void *) = f->rescan_done;

    f->rescan_done = NULL;
    if (f->hidden.id) {
        f->models[f->n_models++] = f->hidden;
        f->hidden.id = NULL;
    }
    done(f->rescan_user);
}
void sup_fleet_stale(struct sup_fleet *f)
{
    (void)f;
}

void sup_fleet_rescan(struct sup_fleet *f, void (*done)(void *), void *user)
{
    f->n_rescans++;
    f->rescan_done = done;
    f->rescan_user = user;
    if (!f->hold_rescan)
        fake_rescan_end(f);
}
enum rc sup_fleet_load(struct sup_fleet *f, const char *id,
                       void (*done)(void *, const struct rc_err *), void *user, struct rc_err *err)
{
    if (f->load_rc)
        return rc_fail(err, f->load_rc, "refused by the fake");
    f->n_loads++;
    snprintf(f->load_id, sizeof(f->load_id), "%s", id);
    f->load_done = done;
    f->load_user = user;
    return RC_OK;
}
enum rc sup_fleet_unload(struct sup_fleet *f, const char *id,
                         void (*done)(void *, const struct rc_err *), void *user,
                         struct rc_err *err)
{
    enum rc rc = sup_fleet_load(f, id, done, user, err);

    f->n_unloads += rc == RC_OK;
    return rc;
}
bool sup_fleet_started(const struct sup_fleet *f)
{
    return !f->not_started;
}
bool sup_fleet_ready(const struct sup_fleet *f, const char **why)
{
    if (f->not_ready)
        *why = "the first scan is not finished";
    return !f->not_ready;
}

/* ----------------------------------------------------------------- the stage */

static struct {
    struct sup_front front;
    struct sup_conf conf;
    struct sup_fleet fleet;
    struct sup_req req;
    struct sup_grant *grant; /* anonymous; a test may set its limits */
    Ipc__Loaded gemma, minilm, eg2, ranker, m3, gliner;
} T;

struct sup_grant *sup_req_grant(const struct sup_req *r)
{
    FAKE_CHECK(!r->done);
    return r->grant ? r->grant : T.grant;
}

static inline void fake_setup(void)
{
    memset(&T, 0, sizeof(T));
    sup_api_init();
    uv_loop_init(&T.front.loop);
    T.front.conf = &T.conf;
    sup_front_layers(T.front.launcher);
    T.front.fleet = &T.fleet;
    T.front.metrics = sup_metrics_new();
    T.front.quota = sup_quota_new(SUP_TENANTS_MAX);
    FAKE_CHECK(sup_grant_anonymous(&T.grant, NULL) == RC_OK);
    T.conf.sandbox = (char *)"strict";
    T.conf.require_auth = (char *)"auto";
    T.conf.vault_dir = (char *)"";
    T.conf.max_concurrent_requests = 64;
    T.conf.request_timeout_ms = 60000;
    T.conf.max_tokens_default = 256;
    T.conf.max_embed_inputs = 8;
    T.conf.max_body_bytes = 1 << 20;
    T.conf.max_media_bytes = 1 << 20;
    T.conf.max_queue = 64;
    T.conf.backend = (char *)(uintptr_t) "cpu";
    ipc__loaded__init(&T.gemma);
    T.gemma.family = (char *)(uintptr_t) "gemma3";
    T.gemma.quant = (char *)(uintptr_t) "Q4_K";
    T.gemma.can_generate = T.gemma.has_chat_template = true;
    T.gemma.ctx_tokens = 8192;
    T.gemma.vocab_size = 1000;
    ipc__loaded__init(&T.minilm);
    T.minilm.family = (char *)(uintptr_t) "bert";
    T.minilm.quant = (char *)(uintptr_t) "F32";
    T.minilm.can_embed = true;
    T.minilm.embed_dim = 4;
    T.minilm.vocab_size = 500;
    T.fleet.models[0] = (struct sup_model_view){
        .id = "gemma", .state = "ready", .info = &T.gemma, .bytes = 10, .last_error = ""};
    T.fleet.models[1] = (struct sup_model_view){
        .id = "org/minilm", .state = "absent", .info = &T.minilm, .bytes = 20, .last_error = ""};
    ipc__loaded__init(&T.eg2);
    T.eg2.family = (char *)(uintptr_t) "embeddinggemma2";
    T.eg2.quant = (char *)(uintptr_t) "BF16";
    T.eg2.can_embed = T.eg2.can_embed_image = T.eg2.can_embed_sound = T.eg2.can_embed_groups = true;
    T.eg2.embed_dim = 4;
    T.eg2.vocab_size = 500;
    T.fleet.models[2] = (struct sup_model_view){
        .id = "eg2", .state = "absent", .info = &T.eg2, .bytes = 30, .last_error = ""};
    ipc__loaded__init(&T.ranker);
    T.ranker.family = (char *)(uintptr_t) "deberta";
    T.ranker.can_rerank = true;
    T.ranker.ctx_tokens = 512;
    T.ranker.vocab_size = 500;
    T.fleet.models[3] = (struct sup_model_view){
        .id = "ranker", .state = "absent", .info = &T.ranker, .bytes = 40, .last_error = ""};
    ipc__loaded__init(&T.m3);
    T.m3.family = (char *)(uintptr_t) "bert";
    T.m3.can_embed = T.m3.can_embed_sparse = true;
    T.m3.embed_dim = T.m3.token_dim = 4;
    T.m3.ctx_tokens = 8192;
    T.m3.vocab_size = 500;
    T.fleet.models[4] = (struct sup_model_view){
        .id = "m3", .state = "absent", .info = &T.m3, .bytes = 50, .last_error = ""};
    ipc__loaded__init(&T.gliner);
    T.gliner.family = (char *)(uintptr_t) "gliner2";
    T.gliner.can_extract = true;
    T.gliner.ctx_tokens = 4096;
    T.gliner.vocab_size = 500;
    T.fleet.models[5] = (struct sup_model_view){
        .id = "gliner", .state = "absent", .info = &T.gliner, .bytes = 60, .last_error = ""};
    T.fleet.n_models = 2; /* a test that wants the others says so */
}

static inline void fake_req_reset(void)
{
    sup_json_deinit(&T.req.answer);
    memset(&T.req, 0, sizeof(T.req));
}

/* Ends what is left and checks that nothing stays behind. */
static inline void fake_teardown(void)
{
    if (T.req.abort_fn && !T.req.done) {
        T.req.abort_fn(T.req.abort_user);
        T.req.done = true;
    }
    if (T.fleet.rescan_done)
        fake_rescan_end(&T.fleet);
    sup_passes_deinit(&T.front.passes);
    FAKE_CHECK(T.front.active == 0 && T.front.held_bytes == 0);
    for (unsigned i = 0; i < T.fleet.n_tickets; i++)
        FAKE_CHECK(T.fleet.tickets[i].dead);
    uv_run(&T.front.loop, UV_RUN_NOWAIT);
    FAKE_CHECK(uv_loop_close(&T.front.loop) == 0);
    fake_req_reset();
    sup_metrics_free(&T.front.metrics);
    sup_quota_free(&T.front.quota);
    FAKE_CHECK(T.grant->refs == 1);
    sup_grant_unref(&T.grant);
}

static inline void fake_header(const char *name, const char *value)
{
    snprintf(T.req.in[T.req.n_in].name, 64, "%s", name);
    snprintf(T.req.in[T.req.n_in].value, 256, "%s", value);
    T.req.n_in++;
}

static inline const char *fake_out_header(const char *name)
{
    for (unsigned i = 0; i < T.req.n_out; i++)
        if (strcmp(T.req.out[i].name, name) == 0)
            return T.req.out[i].value;
    return NULL;
}

static inline sup_handler fake_route(const char *method, const char *path)
{
    for (const struct sup_route *r = sup_api_routes; r->method; r++) {
        size_t n = strlen(r->path);

        if (strcmp(r->method, method) != 0)
            continue;
        if (strcmp(r->path, path) == 0)
            return r->fn;
        if (n > 1 && r->path[n - 1] == '*' && strncmp(r->path, path, n - 1) == 0) {
            T.req.tail = path + n - 1;
            return r->fn;
        }
    }
    return NULL;
}

static inline void fake_send_bytes(const char *method, const char *path, const char *body, size_t n)
{
    sup_handler fn = fake_route(method, path);

    FAKE_CHECK(fn);
    T.req.method = method;
    T.req.path = path;
    T.req.body = body;
    T.req.n_body = n;
    fn(&T.req, &T.front);
}

static inline void fake_post(const char *path, const char *body)
{
    fake_send_bytes("POST", path, body, strlen(body));
}

static inline struct sup_ticket *fake_ticket(unsigned i)
{
    FAKE_CHECK(i < T.fleet.n_tickets && !T.fleet.tickets[i].dead);
    return &T.fleet.tickets[i];
}

static inline void fake_play(unsigned i, const Ipc__Frame *fr)
{
    struct sup_ticket *t = fake_ticket(i);

    t->task.on_frame(t->task.user, fr);
}

static inline void fake_end(unsigned i, const struct rc_err *err, uint32_t retry_ms)
{
    struct sup_ticket *t = &T.fleet.tickets[i];

    if (t->dead)
        return;
    t->task.on_end(t->task.user, err, retry_ms);
    fake_bury(t); /* it may be asked until then */
}

static inline void fake_fail(unsigned i, enum rc rc, const char *msg, uint32_t retry_ms)
{
    struct rc_err err = RC_ERR_INIT;

    rc_fail(&err, rc, "%s", msg);
    fake_end(i, &err, retry_ms);
}

static inline void fake_delta(unsigned i, uint32_t index, const char *text, uint32_t finish)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Delta d = IPC__DELTA__INIT;

    d.index = index;
    d.text.data = (uint8_t *)(uintptr_t)text;
    d.text.len = strlen(text);
    d.finish = finish;
    fr.body_case = IPC__FRAME__BODY_DELTA;
    fr.delta = &d;
    fake_play(i, &fr);
}

static inline void fake_done(unsigned i, uint32_t prompt, uint32_t completion, uint32_t cached)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Done d = IPC__DONE__INIT;

    d.prompt_tokens = prompt;
    d.completion_tokens = completion;
    d.cached_tokens = cached;
    d.queue_us = 1000;
    d.prefill_us = 2000;
    d.decode_us = 4000;
    fr.body_case = IPC__FRAME__BODY_DONE;
    fr.done = &d;
    fake_play(i, &fr);
    fake_end(i, NULL, 0);
}

/* The answer as text, "created" set to 0. Borrowed until the next call. */
static inline const char *fake_answer(void)
{
    static char *text;
    const char *from;
    char *to;

    free(text);
    text = malloc(T.req.answer.n + 1);
    FAKE_CHECK(text);
    if (T.req.answer.n)
        memcpy(text, T.req.answer.p, T.req.answer.n);
    text[T.req.answer.n] = '\0';
    for (from = to = text; *from;) {
        if (strncmp(from, "\"created\":", 10) == 0) {
            memmove(to, "\"created\":0", 11);
            to += 11;
            from += 10;
            from += strspn(from, "0123456789");
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    return text;
}

#endif
