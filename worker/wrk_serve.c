/* wrk_serve.c - the table of legal messages and the loop around it.
 *
 * States of a worker: FRESH (only Hello), HELLOD (Load), READY and BUSY (tasks),
 * DRAINING (finishes, takes nothing). A message in a state its row does not name
 * ends the worker: a front that breaks the table cannot be trusted with the rest.
 * Must never block on anything but poll(): sends queue, steps are bounded.
 *
 * Always true: between two steps every waiting frame of the front (up to
 * FRAMES_PER_TURN) has been read, so a cancel takes effect within one step; while
 * answers wait for a slow front nothing steps and nothing is read.
 * Tests: tests/worker/test_wrk_serve.c
 */
#include "wrk_serve.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wrk_chan.h"
#include "wrk_engine.h"
#include "wrk_load.h"
#include "wrk_log.h"
#include "wrk_pulse.h"

#define QUEUE_DEFAULT 256u
#define WAIT_MS_MAX 50u /* of embed_wait_ms */
#define FRAMES_PER_TURN 64
#define STATS_US 100000u
#define PROGRESS_US 50000u

enum state {
    FRESH = 1,
    HELLOD = 2,
    READY = 4,
    BUSY = 8, /* READY with tasks */
    DRAINING = 16,
};

struct wrk {
    const struct wrk_serve_opts *o;
    struct wrk_chan chan;
    enum state state;
    bool stop; /* flush what waits, then exit with `status` */
    int status;
    Ipc__Frame *hello;       /* its words and budgets */
    struct be_ctx *be;       /* of a device, until the load takes it */
    struct rc_err no_device; /* why be is NULL though the words name a device */
    struct wrk_loaded model;
    struct wrk_engine *engine; /* NULL before the load */
    bool idle_told;            /* Stats were sent since the last step */
    struct wrk_pulse *pulse;
    uint64_t progress_us;
};

/* ------------------------------------------------------------------ loading */

/* Runs inside the load: tells how far it is, and ends at once if nobody waits. */
static void on_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    struct wrk *w = user;
    struct pollfd p = {.fd = w->chan.fd, .events = 0};
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Progress m = IPC__PROGRESS__INIT;
    uint64_t now = wrk_now_us();

    wrk_pulse_moved(w->pulse);
    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0)
        _exit(WRK_EXIT_OK);
    if (now - w->progress_us < PROGRESS_US && done < total)
        return;
    w->progress_us = now;
    m.stage = (char *)stage;
    m.done = done;
    m.total = total;
    f.body_case = IPC__FRAME__BODY_PROGRESS;
    f.progress = &m;
    wrk_chan_send(&w->chan, &f, NULL); /* a failure shows at the next send */
    wrk_chan_flush(&w->chan, NULL);
}

static void loaded_from_info(Ipc__Loaded *l, const struct mdl_info *i)
{
    l->family = (char *)i->family;
    l->arch = (char *)i->arch;
    l->quant = (char *)i->quant;
    l->can_generate = i->can_generate;
    l->can_embed = i->can_embed;
    l->has_chat_template = i->has_chat_template;
    l->can_call_tools = i->can_call_tools;
    l->can_think = i->can_think;
    l->ctx_tokens = i->ctx_tokens;
    l->train_ctx_tokens = i->train_ctx_tokens;
    l->embed_dim = i->embed_dim;
    l->vocab_size = i->vocab_size;
    l->n_params = i->n_params;
    l->weight_bytes = i->weight_bytes;
    l->kv_bytes = i->kv_bytes;
    l->kv_ctx_bytes = i->kv_ctx_bytes;
    l->workspace_bytes = i->workspace_bytes;
    l->default_prompt = (char *)i->default_prompt;
    l->note = (char *)i->note;
    l->model_identity = (char *)i->identity;
    l->can_embed_image = i->can_embed_image;
    l->can_embed_sound = i->can_embed_sound;
    l->can_embed_groups = i->can_embed_groups;
    l->can_rerank = i->can_rerank;
    l->can_extract = i->can_extract;
    l->can_embed_sparse = i->can_sparse;
    l->token_dim = i->token_dim;
}

static enum rc send_loaded(struct wrk *w, const Ipc__Loaded *l, struct rc_err *err)
{
    Ipc__Frame f = IPC__FRAME__INIT;

    f.body_case = IPC__FRAME__BODY_LOADED;
    f.loaded = (Ipc__Loaded *)l;
    return wrk_chan_send(&w->chan, &f, err);
}

static enum rc probe(struct wrk *w, struct rc_err *why, struct rc_err *err)
{
    Ipc__Loaded l = IPC__LOADED__INIT;
    struct mdl_info info;
    enum rc rc;

    memset(&info, 0, sizeof(info));
    if ((rc = mdl_probe(&info, w->o->root_fd, why)) != RC_OK)
        return rc;
    loaded_from_info(&l, &info);
    l.probe_only = true;
    return send_loaded(w, &l, err);
}

static enum rc drain_channel(struct wrk *w, struct rc_err *err);

/* The engine reads a long text: cancels and new tasks are heard, and Stats told, all
 * the same. */
static enum rc listen_meanwhile(void *user, struct rc_err *err)
{
    struct wrk *w = user;
    enum rc rc = drain_channel(w, err);

    wrk_pulse_moved(w->pulse);
    return rc == RC_OK || rc == RC_AGAIN ? wrk_engine_stats(w->engine, STATS_US, err) : rc;
}

/* The device is the command line's; what the front believes must be the same. */
static enum rc check_device(const struct wrk *w, struct rc_err *why)
{
    const char *mine = wrk_device_backend(&w->o->device), *asked = w->hello->hello->backend;

    if (asked[0] != '\0' && strcmp(asked, mine) != 0)
        return rc_fail_what(why, RC_INVALID, "backend",
                            "the front asks for backend '%.32s', this worker was started for '%s'",
                            asked, mine);
    if (wrk_device_is_cpu(&w->o->device) || w->be != NULL)
        return RC_OK;
    *why = w->no_device;
    rc_wrap(why, "backend '%s'", mine);
    return why->code;
}

static enum rc load(struct wrk *w, struct rc_err *why)
{
    const Ipc__Hello *h = w->hello->hello;
    const Ipc__Budgets none = IPC__BUDGETS__INIT, *b = h->budgets != NULL ? h->budgets : &none;
    const struct wrk_load_opts o = {
        .be = w->be,
        .kv_dtype = h->kv_dtype,
        .cpu_level = h->cpu_level,
        .f32_gemm = h->f32_gemm,
        .weight_bytes = b->weight_bytes,
        .kv_bytes = b->kv_bytes,
        .workspace_bytes = b->workspace_bytes,
        .n_threads = b->threads != 0 ? b->threads : w->o->n_threads,
        .no_spin = w->o->no_spin,
        .max_seqs = b->max_seqs,
        .ctx_tokens = b->ctx_tokens,
        .batch_tokens = b->batch_tokens,
        .spec = (enum wrk_spec_mode)b->speculation,
        .spec_most = b->speculation_tokens,
        .seal = w->o->sandbox == WRK_SANDBOX_STRICT,
        .progress = on_progress,
        .user = w,
    };
    struct wrk_engine_opts e = {.chan = &w->chan,
                                .max_queue = b->max_queue != 0 ? b->max_queue : QUEUE_DEFAULT};
    enum rc rc = check_device(w, why);

    if (rc != RC_OK)
        return rc;
    if (b->speculation > WRK_SPEC_MTP || b->speculation_tokens > WRK_SPEC_MOST)
        return rc_fail(why, RC_INVALID,
                       "speculation %u with %u tokens, expected 0 to %u with at most %u",
                       b->speculation, b->speculation_tokens, WRK_SPEC_MTP, WRK_SPEC_MOST);
    w->be = NULL; /* taken, whatever comes */
    if ((rc = wrk_load(&w->model, w->o->root_fd, &o, why)) != RC_OK)
        return rc;
    e.listen = listen_meanwhile;
    e.listen_user = w;
    e.has_root = true;
    e.root_fd = w->o->root_fd;
    e.mdl = w->model.mdl;
    e.be = w->model.be;
    e.cache_bytes = b->cache_bytes;
    e.cache_min_tokens = b->cache_min_tokens;
    e.drafter = w->model.drafter;
    e.spec_most = w->model.spec_most;
    e.max_seqs = w->model.max_seqs;
    e.batch_tokens = w->model.batch_tokens;
    e.embed_wait_ms = b->embed_wait_ms < WAIT_MS_MAX ? b->embed_wait_ms : WAIT_MS_MAX;
    return wrk_engine_new(&w->engine, &e, why);
}

/* What was decided about kernels, into the front's log: it explains a speed. */
static void log_report(const struct wrk *w)
{
    char *text = be_ctx_report(w->model.be), *save = NULL;

    for (char *s = text ? strtok_r(text, "\n", &save) : NULL; s; s = strtok_r(NULL, "\n", &save))
        wrk_log("jit: %s", s);
    free(text);
}

static enum rc tell_loaded(struct wrk *w, struct rc_err *err)
{
    const struct mdl_info *i = mdl_info_get(w->model.mdl);
    Ipc__Loaded l = IPC__LOADED__INIT;
    struct be_stats s;

    memset(&s, 0, sizeof(s));
    be_ctx_stats(w->model.be, &s);
    loaded_from_info(&l, i);
    l.backend = (char *)wrk_device_backend(&w->o->device);
    l.kernels = s.kernels;
    l.device = s.device;
    l.device_bytes = s.device_bytes;
    l.device_total_bytes = s.device_total_bytes;
    l.host_bytes = s.device_bytes != 0 ? wrk_engine_bytes(w->engine) : 0;
    if (!wrk_device_is_cpu(&w->o->device))
        l.compute = (char *)(w->o->device.compute ? w->o->device.compute : "exact_f32");
    l.weight_bytes = s.weight_bytes;
    l.kv_bytes = s.kv_bytes;
    l.workspace_bytes = s.workspace_bytes + wrk_engine_bytes(w->engine);
    l.max_seqs = w->model.max_seqs;
    l.threads = s.n_threads;
    return send_loaded(w, &l, err);
}

/* ----------------------------------------------------------------- handlers
 * A handler that keeps the frame writes NULL to *f. */

static enum rc on_hello(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    const Ipc__Hello *h = (*f)->hello;

    if (h->version != IPC_VERSION)
        return rc_fail(err, RC_STATE,
                       "the front speaks protocol %u, this worker %u: install "
                       "inferd and inferd-worker of one version",
                       h->version, IPC_VERSION);
    w->hello = *f;
    *f = NULL;
    w->state = HELLOD;
    return RC_OK;
}

static enum rc on_load(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    enum rc rc;

    wrk_pulse_work(w->pulse, true);
    if ((*f)->load->probe_only)
        rc = probe(w, &why, err);
    else if ((rc = load(w, &why)) == RC_OK)
        w->state = READY;
    if (w->state == READY)
        wrk_pulse_watch(w->pulse, w->model.be);
    if (rc == RC_CLOSED)
        return rc;
    if (rc != RC_OK) {
        w->stop = true; /* it said why: exit status 0 */
        return wrk_chan_error(&w->chan, 0, &why, err);
    }
    if (w->state != READY)
        return RC_OK;
    log_report(w);
    return tell_loaded(w, err);
}

static enum rc on_task(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    Ipc__Frame *mine = *f;

    *f = NULL;
    return wrk_engine_submit(w->engine, mine, err);
}

static enum rc on_echo(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    Ipc__Frame out = IPC__FRAME__INIT;

    out.task = (*f)->task;
    out.body_case = IPC__FRAME__BODY_ECHOED;
    out.echoed = (*f)->echo;
    return wrk_chan_send(&w->chan, &out, err);
}

static enum rc on_cancel(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    return w->engine != NULL ? wrk_engine_cancel(w->engine, (*f)->task, err) : RC_OK;
}

static enum rc on_cache_budget(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    (void)err;
    if (w->engine != NULL)
        wrk_engine_cache_budget(w->engine, (*f)->cache_budget->bytes);
    w->idle_told = false; /* the front hears what came of it */
    return RC_OK;
}

static enum rc on_drain(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    (void)f;
    (void)err;
    w->state = DRAINING;
    return RC_OK;
}

static const struct wrk_cmd {
    Ipc__Frame__BodyCase body;
    const char *name;
    unsigned while_state;
    enum rc (*run)(struct wrk *w, Ipc__Frame **f, struct rc_err *err);
} wrk_cmds[] = {
    /* message                      allowed while                      handler */
    {IPC__FRAME__BODY_HELLO, "Hello", FRESH, on_hello},
    {IPC__FRAME__BODY_LOAD, "Load", HELLOD, on_load},
    {IPC__FRAME__BODY_GENERATE, "Generate", READY | BUSY, on_task},
    {IPC__FRAME__BODY_EMBED, "Embed", READY | BUSY, on_task},
    {IPC__FRAME__BODY_RERANK, "Rerank", READY | BUSY, on_task},
    {IPC__FRAME__BODY_EXTRACT, "Extract", READY | BUSY, on_task},
    {IPC__FRAME__BODY_DECIDE, "Decide", READY | BUSY, on_task},
    {IPC__FRAME__BODY_TOKENIZE, "Tokenize", READY | BUSY, on_task},
    {IPC__FRAME__BODY_DETOKENIZE, "Detokenize", READY | BUSY, on_task},
    {IPC__FRAME__BODY_CHUNK, "Chunk", READY | BUSY, on_task},
    {IPC__FRAME__BODY_ECHO, "Echo", HELLOD | READY | BUSY, on_echo},
    {IPC__FRAME__BODY_CANCEL, "Cancel", READY | BUSY | DRAINING, on_cancel},
    {IPC__FRAME__BODY_CACHE_BUDGET, "CacheBudget", READY | BUSY | DRAINING, on_cache_budget},
    {IPC__FRAME__BODY_DRAIN, "Drain", HELLOD | READY | BUSY | DRAINING, on_drain},
};

static enum state state_of(const struct wrk *w)
{
    return w->state == READY && wrk_engine_busy(w->engine) ? BUSY : w->state;
}

static const char *state_name(enum state s)
{
    return s == FRESH    ? "fresh"
           : s == HELLOD ? "hello'd"
           : s == READY  ? "ready"
           : s == BUSY   ? "busy"
                         : "draining";
}

static enum rc dispatch(struct wrk *w, Ipc__Frame **f, struct rc_err *err)
{
    for (size_t i = 0; i < sizeof(wrk_cmds) / sizeof(wrk_cmds[0]); i++) {
        const struct wrk_cmd *c = &wrk_cmds[i];

        if (c->body != (*f)->body_case)
            continue;
        if ((c->while_state & state_of(w)) == 0)
            return rc_fail(err, RC_STATE, "message %s is not legal while %s", c->name,
                           state_name(state_of(w)));
        return c->run(w, f, err);
    }
    return rc_fail(err, RC_STATE, "message %d is not for a worker", (int)(*f)->body_case);
}

/* --------------------------------------------------------------------- loop */

/* Reads what waits; RC_AGAIN = nothing more. */
static enum rc drain_channel(struct wrk *w, struct rc_err *err)
{
    for (int i = 0; i < FRAMES_PER_TURN && !w->stop && !wrk_chan_waiting(&w->chan); i++) {
        Ipc__Frame *f = NULL;
        enum rc rc = wrk_chan_recv(&w->chan, &f, err);

        if (rc != RC_OK)
            return rc;
        rc = dispatch(w, &f, err);
        if (f != NULL)
            ipc__frame__free_unpacked(f, NULL);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* Milliseconds poll may sleep: none while there is work to do now, until the next Stats while
 * the last are older than the last step, else for ever. */
static int patience(const struct wrk *w, bool work)
{
    if (work)
        return (int)wrk_engine_rest_ms(w->engine);
    return w->engine != NULL && !w->idle_told ? (int)(STATS_US / 1000) : -1;
}

static enum rc turn(struct wrk *w, bool work, struct rc_err *err)
{
    enum rc rc;

    if (work) {
        w->idle_told = false;
        wrk_pulse_moved(w->pulse);
        if ((rc = wrk_engine_step(w->engine, err)) != RC_OK)
            return rc;
        return wrk_engine_stats(w->engine, STATS_US, err);
    }
    if (w->engine != NULL && !w->idle_told && !wrk_chan_waiting(&w->chan)) {
        w->idle_told = true;
        return wrk_engine_stats(w->engine, 0, err);
    }
    return RC_OK;
}

static bool has_work(const struct wrk *w)
{
    return w->engine != NULL && !w->stop && !wrk_chan_waiting(&w->chan) &&
           wrk_engine_busy(w->engine);
}

static enum rc loop(struct wrk *w, struct rc_err *err)
{
    enum rc rc;

    while (!w->stop || wrk_chan_waiting(&w->chan)) {
        bool blocked = wrk_chan_waiting(&w->chan);
        struct pollfd p = {.fd = w->chan.fd, .events = blocked ? POLLOUT : POLLIN};
        int n;

        wrk_pulse_work(w->pulse, blocked || (w->engine != NULL && wrk_engine_busy(w->engine)));
        n = poll(&p, 1, blocked ? -1 : patience(w, has_work(w)));

        if (n < 0 && errno != EINTR)
            return rc_fail(err, RC_IO, "poll: %s", strerror(errno));
        if (blocked) {
            if ((rc = wrk_chan_flush(&w->chan, err)) != RC_OK && rc != RC_AGAIN)
                return rc;
            continue;
        }
        if (n > 0 && (rc = drain_channel(w, err)) != RC_OK && rc != RC_AGAIN)
            return rc;
        if ((n == 0 || has_work(w)) && (rc = turn(w, has_work(w), err)) != RC_OK)
            return rc;
        if (w->state == DRAINING && (w->engine == NULL || !wrk_engine_busy(w->engine)))
            w->stop = true;
    }
    return RC_OK;
}

static enum rc send_ready(struct wrk *w, const struct wrk_sandbox_report *r, struct rc_err *err)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Ready ready = IPC__READY__INIT;
    Ipc__Layer layers[WRK_LAYERS_MAX], *ptr[WRK_LAYERS_MAX];

    for (size_t i = 0; i < r->n; i++) {
        ipc__layer__init(&layers[i]);
        layers[i].name = (char *)r->layer[i].name;
        layers[i].holds = r->layer[i].holds;
        layers[i].detail = (char *)r->layer[i].detail;
        ptr[i] = &layers[i];
    }
    ready.version = IPC_VERSION;
    ready.pid = (uint32_t)getpid();
    ready.beat_ms = WRK_BEAT_MS;
    ready.n_sandbox = r->n;
    ready.sandbox = ptr;
    f.body_case = IPC__FRAME__BODY_READY;
    f.ready = &ready;
    return wrk_chan_send(&w->chan, &f, err);
}

/* Maps what ended the loop to an exit status; says why unless it is expected. */
static int ended(struct wrk *w, enum rc rc, const struct rc_err *err)
{
    if (rc == RC_OK || rc == RC_CLOSED)
        return w->status;
    wrk_log("ends: %s: %s", rc_name(rc), err->msg);
    wrk_chan_flush(&w->chan, NULL); /* what tasks were told, as far as it goes */
    return rc == RC_STATE || rc == RC_FORMAT || rc == RC_TOO_LARGE ? WRK_EXIT_PROTOCOL
                                                                   : WRK_EXIT_FAULT;
}

int wrk_serve(const struct wrk_serve_opts *o)
{
    struct wrk w = {.o = o, .state = FRESH, .idle_told = true, .no_device = RC_ERR_INIT};
    struct wrk_sandbox_report report;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    rc = wrk_device_enter(
        &o->device,
        &(struct wrk_enter){o->sandbox, o->channel_fd, o->root_fd, o->n_threads, o->no_spin},
        &report, &w.be, &w.no_device, &err);
    if (rc != RC_OK) {
        wrk_log("%s", err.msg);
        return WRK_EXIT_SANDBOX;
    }
    if ((rc = wrk_chan_init(&w.chan, o->channel_fd, &err)) == RC_OK &&
        (rc = wrk_pulse_start(&w.pulse, o->channel_fd, &err)) == RC_OK &&
        (rc = send_ready(&w, &report, &err)) == RC_OK)
        rc = loop(&w, &err);
    w.status = ended(&w, rc, &err);
    wrk_pulse_stop(&w.pulse);
    wrk_engine_free(&w.engine);
    wrk_unload(&w.model);
    be_ctx_free(&w.be);
    if (w.hello != NULL)
        ipc__frame__free_unpacked(w.hello, NULL);
    wrk_chan_deinit(&w.chan);
    return w.status;
}
