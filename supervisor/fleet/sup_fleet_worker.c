/* sup_fleet_worker.c - one worker process seen from the front: its channel, its
 * words, its stderr, its end.
 *
 * Knows libuv and frames. What a frame means for the model is the slot's business,
 * for a task the ticket's. Every frame passes sup_fleet_check first.
 *
 * Always true: a worker is in exactly one sup_worker_state; nothing it says counts
 * once it is DYING; its claim on the ledger lives as long as the process; the
 * object is freed after its handles have closed and the launcher said it exited.
 * Tests: tests/supervisor/test_sup_fleet.c, tests/fault/ */
#include "sup_fleet_impl.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAMES_PER_TURN 64
#define OUT_MAX 65536     /* control frames waiting for a worker that does not read */
#define LINES_BURST 100.0 /* stderr lines at once (a sanitizer's report), */
#define LINES_PER_S 5.0   /* and in the long run */
#define STDERR_CHUNK 4096

static void on_poll(uv_poll_t *p, int status, int events);
static void on_stderr(uv_poll_t *p, int status, int events);

struct worker *worker_new(struct sup_fleet *f, struct slot *s, bool probe)
{
    struct worker *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->f = f;
    w->slot = probe ? NULL : s;
    w->probing = probe ? s : NULL;
    w->state = SUP_W_SPAWNING;
    w->fd = w->err_fd = -1;
    w->req = ++f->next_req;
    w->out_tail = &w->out;
    w->err = RC_ERR_INIT;
    w->line_tokens = LINES_BURST;
    w->born_ms = fleet_now_ms(f);
    worker_watch(w);
    lnk_init(&w->sent);
    lnk_push(&f->workers, &w->all);
    return w;
}

static const char *model_of(const struct worker *w)
{
    return w->slot ? w->slot->id : w->probing ? w->probing->id : NULL;
}

/* ------------------------------------------------------------------ sending */

static void listen_for(struct worker *w, int events)
{
    if (w->fd >= 0 && !w->closed && events != w->poll_events) {
        w->poll_events = events;
        uv_poll_start(&w->poll, events, on_poll);
    }
}

bool worker_writable(const struct worker *w)
{
    return w->fd >= 0 && !w->closed && !w->out && !(w->poll_events & UV_WRITABLE);
}

void worker_want_write(struct worker *w)
{
    listen_for(w, UV_READABLE | UV_WRITABLE);
}

static void out_clear(struct worker *w)
{
    while (w->out) {
        struct out *o = w->out;

        w->out = o->next;
        free(o);
    }
    w->out_tail = &w->out;
    w->n_out = 0;
}

static void out_flush(struct worker *w)
{
    while (w->out) {
        struct out *o = w->out;
        enum rc rc = ipc_send_packed(w->fd, o->bytes, o->n, NULL, 0, NULL);

        if (rc == RC_AGAIN) {
            worker_want_write(w);
            return;
        }
        if (rc != RC_OK) { /* its death is reported by the poll */
            out_clear(w);
            return;
        }
        if (!(w->out = o->next))
            w->out_tail = &w->out;
        w->n_out--;
        free(o);
    }
}

static void send_control(struct worker *w, const Ipc__Frame *fr)
{
    size_t n = ipc__frame__get_packed_size(fr);
    struct out *o;

    if (w->fd < 0 || w->closed || w->state == SUP_W_DYING)
        return;
    if (w->n_out >= OUT_MAX || !(o = malloc(sizeof(*o) + n))) {
        worker_kill(w, "hang"); /* does not read, or we could not tell it to stop */
        return;
    }
    o->next = NULL;
    o->n = n;
    ipc__frame__pack(fr, o->bytes);
    *w->out_tail = o;
    w->out_tail = &o->next;
    w->n_out++;
    if (!(w->poll_events & UV_WRITABLE))
        out_flush(w);
}

enum rc worker_send_task(struct worker *w, const struct sup_ticket *t)
{
    return ipc_send_packed(w->fd, t->packed, t->n_packed, NULL, 0, NULL);
}

void worker_send_cancel(struct worker *w, uint64_t task)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Cancel c = IPC__CANCEL__INIT;

    fr.task = task;
    fr.body_case = IPC__FRAME__BODY_CANCEL;
    fr.cancel = &c;
    send_control(w, &fr);
}

void worker_send_cache_budget(struct worker *w, uint64_t bytes)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__CacheBudget b = IPC__CACHE_BUDGET__INIT;

    b.bytes = bytes;
    fr.body_case = IPC__FRAME__BODY_CACHE_BUDGET;
    fr.cache_budget = &b;
    send_control(w, &fr);
}

static unsigned level_of(const char *word)
{
    return (unsigned)sup_level_parse(word);
}

static uint32_t speculation_of(const char *word)
{
    static const char *const words[] = {"auto", "off", "lookup", "mtp"};
    uint32_t i = 0;

    while (i < 3 && strcmp(word, words[i]) != 0)
        i++;
    return i;
}

static void send_hello_load(struct worker *w)
{
    const struct sup_conf *c = w->f->conf;
    const struct sup_bytes *mine =
        &w->claim.tier[fleet_on_device(w->f) ? SUP_TIER_DEVICE : SUP_TIER_HOST];
    uint64_t all = fleet_limit(w->f), rest = mine->kv + mine->workspace;
    Ipc__Budgets b = IPC__BUDGETS__INIT;
    Ipc__Hello h = IPC__HELLO__INIT;
    Ipc__Load l = IPC__LOAD__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    b.weight_bytes = all == UINT64_MAX ? 0 : all > rest ? all - rest : 1; /* 0 = no limit told */
    b.kv_bytes = c->kv_mb << 20;
    b.workspace_bytes = c->workspace_mb << 20;
    b.threads = (uint32_t)c->threads;
    b.max_seqs = (uint32_t)c->max_seqs;
    b.ctx_tokens = (uint32_t)c->ctx_tokens;
    b.batch_tokens = (uint32_t)c->batch_tokens;
    b.embed_wait_ms = (uint32_t)c->embed_wait_ms;
    b.max_queue = sup_window_all((uint32_t)c->max_seqs);
    b.cache_bytes = w->cache_bytes = fleet_cache_first(w->f);
    b.cache_min_tokens = (uint32_t)c->prompt_cache_min_tokens;
    b.speculation = speculation_of(c->speculation);
    b.speculation_tokens = (uint32_t)c->speculation_tokens;
    h.version = IPC_VERSION;
    h.budgets = &b;
    h.log_level = level_of(c->log_level);
    h.backend = c->backend;
    h.kv_dtype = c->kv_dtype;
    h.cpu_level = c->cpu_level;
    h.f32_gemm = c->f32_gemm;
    fr.body_case = IPC__FRAME__BODY_HELLO;
    fr.hello = &h;
    send_control(w, &fr);
    l.probe_only = w->probing != NULL;
    ipc__frame__init(&fr);
    fr.body_case = IPC__FRAME__BODY_LOAD;
    fr.load = &l;
    send_control(w, &fr);
}

void worker_drain(struct worker *w)
{
    FLEET_MUST(w->state == SUP_W_RUNNING);
    w->state = SUP_W_DRAINING;
    worker_drain_step(w);
}

void worker_drain_step(struct worker *w)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Drain d = IPC__DRAIN__INIT;

    if (w->state != SUP_W_DRAINING || w->drain_sent || w->n_sent > 0)
        return;
    w->drain_sent = true;
    w->drain_ms = fleet_now_ms(w->f);
    fr.body_case = IPC__FRAME__BODY_DRAIN;
    fr.drain = &d;
    send_control(w, &fr);
}

void worker_kill(struct worker *w, const char *cause)
{
    if (!w->cause)
        w->cause = cause;
    w->killed = true;
    if (w->state == SUP_W_SPAWNING)
        return; /* killed when its pid is known */
    w->state = SUP_W_DYING;
    ctl_kill(w->f, w->pid);
}

/* --------------------------------------------------------------------- watch */

void worker_watch(struct worker *w)
{
    w->heard_ms = w->moved_ms = fleet_now_ms(w->f);
}

const char *worker_stands(const struct worker *w, uint64_t now)
{
    const struct sup_conf *c = w->f->conf;
    bool loads = w->state == SUP_W_LOADING;

    if (!loads && w->n_sent == 0)
        return NULL;
    if (w->beats && now - w->heard_ms >= c->silence_timeout_ms)
        return "no sign of life (silence_timeout_ms)";
    /* how long a load may take is load_timeout_s's to say */
    return !loads && now - w->moved_ms >= c->hang_timeout_s * 1000
               ? "its work does not go on (hang_timeout_s)"
               : NULL;
}

/* ---------------------------------------------------------------- receiving */

void worker_breach(struct worker *w, const struct rc_err *err)
{
    SUP_LOG(SUP_ERROR, "worker_protocol_breach", SUP_S("model", model_of(w)), SUP_I("pid", w->pid),
            SUP_S("error", err->msg));
    rc_fail(&w->err, RC_CRASHED, "the worker broke the protocol: %s", err->msg);
    worker_kill(w, "protocol");
}

static void log_text(struct worker *w, const char *event, enum sup_level level, const char *text)
{
    uint64_t now = fleet_now_ms(w->f);

    w->line_tokens += (double)(now - w->line_ms) / 1000.0 * LINES_PER_S;
    w->line_ms = now;
    if (w->line_tokens > LINES_BURST)
        w->line_tokens = LINES_BURST;
    if (w->line_tokens < 1.0) {
        w->lines_lost++;
        return;
    }
    w->line_tokens -= 1.0;
    SUP_LOG(level, event, SUP_S("model", model_of(w)), SUP_I("pid", w->pid), SUP_S("text", text),
            SUP_I("lines_lost", w->lines_lost));
    w->lines_lost = 0;
}

static void on_log(struct worker *w, const Ipc__Log *l)
{
    char text[1024];
    size_t n = l->message.len < sizeof(text) - 1 ? l->message.len : sizeof(text) - 1;

    for (size_t i = 0; i < n; i++) /* a NUL would hide what follows */
        text[i] = l->message.data[i] ? (char)l->message.data[i] : '?';
    text[n] = '\0';
    log_text(w, "worker_log", l->level <= SUP_ERROR ? (enum sup_level)l->level : SUP_INFO, text);
}

static void show_use(struct worker *w, double kv_bytes, double running, double waiting)
{
    struct sup_metrics *m = w->f->metrics;
    const char *id = model_of(w);

    sup_series_set(sup_series(m, SUP_M_KV_USED, id, NULL), kv_bytes);
    sup_series_set(sup_series(m, SUP_M_SEQS, id, "running"), running);
    sup_series_set(sup_series(m, SUP_M_SEQS, id, "waiting"), waiting);
}

static void show_gain(struct sup_metrics *m, const char *id, bool rests, double gain)
{
    sup_series_set(sup_series(m, SUP_M_SPEC_RESTING, id, NULL), rests);
    sup_series_set(sup_series(m, SUP_M_SPEC_GAIN, id, NULL), isfinite(gain) && gain > 0 ? gain : 0);
}

void worker_use_none(struct worker *w)
{
    if (!w->slot || !w->loaded)
        return;
    show_use(w, 0, 0, 0);
    if (w->loaded->can_generate)
        worker_cache_none(w);
    worker_grammars_none(w, model_of(w));
    worker_media_none(w, model_of(w));
    worker_protos_none(w, model_of(w));
    if (w->last_stats.spec_mode > 1)
        show_gain(w->f->metrics, model_of(w), false, 0);
}

static void show_speculation(struct worker *w, const char *id, const Ipc__Stats *s)
{
    struct sup_metrics *m = w->f->metrics;
    Ipc__Stats *old = &w->last_stats;

    worker_rise(m, SUP_M_SPEC_PASSES, id, NULL, s->spec_passes, &old->spec_passes);
    worker_rise(m, SUP_M_SPEC_TOKENS, id, "accepted", s->spec_accepted, &old->spec_accepted);
    worker_rise(m, SUP_M_SPEC_TOKENS, id, "rejected", s->spec_rejected, &old->spec_rejected);
    show_gain(m, id, s->spec_rests, (double)s->spec_gain);
}

static void on_stats(struct worker *w, const Ipc__Stats *s)
{
    struct sup_metrics *m = w->f->metrics;
    const char *id = model_of(w);
    Ipc__Stats *old = &w->last_stats;

    if (!w->slot)
        return;
    show_use(w, (double)s->kv_used_bytes, s->running, s->waiting);
    if (s->steps > old->steps)
        sup_series_add(sup_series(m, SUP_M_STEPS, id, NULL), (double)(s->steps - old->steps));
    if (s->hot_allocs > old->hot_allocs)
        sup_series_add(sup_series(m, SUP_M_HOT_ALLOCS, id, NULL),
                       (double)(s->hot_allocs - old->hot_allocs));
    if (s->device_sampled > old->device_sampled)
        sup_series_add(sup_series(m, SUP_M_DEVICE_TOKENS, id, NULL),
                       (double)(s->device_sampled - old->device_sampled));
    if (s->kernels)
        worker_kernels(w, id, s->kernels);
    if (w->loaded && w->loaded->can_generate)
        worker_cache(w, id, s);
    if (s->spec_mode > 1)
        show_speculation(w, id, s);
    if (s->grammar)
        worker_grammars(w, id, s->grammar);
    if (w->loaded && (w->loaded->can_embed_image || w->loaded->can_embed_sound))
        worker_media(w, id, s);
    worker_passes(w, id, s);
    worker_protos(w, id, s);
    old->steps = s->steps;
    old->hot_allocs = s->hot_allocs;
    old->device_sampled = s->device_sampled;
    old->spec_mode = s->spec_mode;
}

/* Out of memory: then they are not shown. */
static void keep_layers(struct worker *w, const Ipc__Ready *r)
{
    size_t n = r->n_sandbox, bytes = n * sizeof(*w->layers);
    char *text;

    for (size_t i = 0; i < n; i++)
        bytes += strlen(r->sandbox[i]->name) + strlen(r->sandbox[i]->detail) + 2;
    if (n == 0 || !(w->layers = malloc(bytes)))
        return;
    text = (char *)(w->layers + n);
    for (size_t i = 0; i < n; i++) {
        w->layers[i].holds = r->sandbox[i]->holds;
        w->layers[i].name = text;
        text = stpcpy(text, r->sandbox[i]->name) + 1;
        w->layers[i].detail = text;
        text = stpcpy(text, r->sandbox[i]->detail) + 1;
    }
    w->n_layers = n;
}

static void on_ready(struct worker *w, const Ipc__Ready *r)
{
    char missing[256] = "";

    if (r->version != IPC_VERSION) {
        rc_fail(&w->err, RC_UNSUPPORTED,
                "the worker speaks protocol %u, this server %u: install inferd and inferd-worker "
                "of one version",
                r->version, IPC_VERSION);
        worker_kill(w, "version");
        return;
    }
    keep_layers(w, r);
    for (size_t i = 0; i < r->n_sandbox; i++)
        if (!r->sandbox[i]->holds) {
            size_t n = strlen(missing);

            snprintf(missing + n, sizeof(missing) - n, "%s%s", n ? " " : "", r->sandbox[i]->name);
        }
    if (!w->probing)
        SUP_LOG(missing[0] ? SUP_WARN : SUP_INFO, "worker_sandboxed", SUP_S("model", model_of(w)),
                SUP_I("pid", w->pid), SUP_I("layers", r->n_sandbox), SUP_S("missing", missing));
    w->state = SUP_W_LOADING;
    w->beats = r->beat_ms != 0;
    worker_watch(w);
    send_hello_load(w);
    if (w->slot)
        slot_on_ready(w);
}

static void probe_ended(struct worker *w, const Ipc__Loaded *l, const struct rc_err *err)
{
    struct slot *s = w->probing;

    if (!s)
        return;
    s->probed = true;
    memcpy(s->probe_identity, w->identity, SUP_IDENTITY_BYTES);
    s->probe_err = err ? *err : RC_ERR_INIT;
    if (l)
        slot_info_set(s, l, w->identity);
    SUP_LOG(err ? SUP_WARN : SUP_INFO, "model_probed", SUP_S("model", s->id),
            SUP_S("family", l ? l->family : NULL), SUP_S("error", err ? err->msg : NULL));
    w->probing = NULL;
    if (!w->exited)
        worker_kill(w, "asked");
}

static void on_loaded(struct worker *w, const Ipc__Loaded *l)
{
    struct rc_err err = RC_ERR_INIT;

    if (l->probe_only != (w->probing != NULL)) {
        rc_fail(&err, RC_STATE, "Loaded: probe_only is not what was asked");
        worker_breach(w, &err);
    } else if (w->probing) {
        probe_ended(w, l, NULL);
    } else if (w->slot) {
        w->state = SUP_W_RUNNING;
        w->ready_ms = fleet_now_ms(w->f);
        slot_on_loaded(w, l);
    }
}

/* The worker gives up: the load failed, or its weights cannot be read any more. */
static void on_worker_error(struct worker *w, const Ipc__Error *e)
{
    ipc_error_to(&w->err, e);
    if (w->probing) {
        struct rc_err err = w->err;

        probe_ended(w, NULL, &err);
    } else if (w->state == SUP_W_STARTING || w->state == SUP_W_LOADING) {
        struct slot *s = w->slot;
        struct rc_err err = w->err;

        worker_kill(w, "asked");
        if (s)
            slot_fail(w->f, s, &err, "failed");
    } else {
        worker_kill(w, w->err.code == RC_WEIGHT_IO ? "weights" : "exit");
    }
}

static void on_frame(struct worker *w, Ipc__Frame **fr)
{
    struct rc_err err = RC_ERR_INIT;
    const Ipc__Frame *f = *fr;

    w->heard_ms = fleet_now_ms(w->f);
    if (f->body_case != IPC__FRAME__BODY_BEAT)
        w->moved_ms = w->heard_ms; /* sent by the thread that works */
    if (sup_check_frame(f, w->state, &err) != RC_OK) {
        worker_breach(w, &err);
        return;
    }
    switch (f->body_case) {
    case IPC__FRAME__BODY_READY:
        on_ready(w, f->ready);
        break;
    case IPC__FRAME__BODY_PROGRESS:
        if (w->slot) {
            w->slot->load_total = f->progress->total;
            w->slot->load_done =
                f->progress->done < f->progress->total ? f->progress->done : f->progress->total;
        }
        break;
    case IPC__FRAME__BODY_LOADED:
        on_loaded(w, f->loaded);
        break;
    case IPC__FRAME__BODY_LOG:
        on_log(w, f->log);
        break;
    case IPC__FRAME__BODY_STATS:
        on_stats(w, f->stats);
        break;
    case IPC__FRAME__BODY_BEAT:
        if (f->beat->moved != w->moved)
            w->moved_ms = w->heard_ms;
        w->moved = f->beat->moved;
        break;
    default:
        if (f->task == 0)
            on_worker_error(w, f->error);
        else
            ticket_answer(w, f, fr);
    }
}

/* True while there may be more. */
static bool receive_one(struct worker *w)
{
    ProtobufCMessage *m = NULL;
    struct rc_err err = RC_ERR_INIT;
    Ipc__Frame *fr;
    enum rc rc;

    /* Not even unpacked: a queue of large frames must not hold up the loop. */
    if (w->state == SUP_W_DYING) {
        uv_poll_stop(&w->poll);
        return false;
    }
    rc = ipc_recv(w->fd, &ipc__frame__descriptor, &m, NULL, NULL, &err);
    fr = (Ipc__Frame *)m;
    if (rc == RC_OK) {
        on_frame(w, &fr);
        if (fr) /* not taken over by a paused ticket */
            ipc__frame__free_unpacked(fr, NULL);
        return true;
    }
    if (rc == RC_AGAIN)
        return false;
    if (rc != RC_CLOSED)
        worker_breach(w, &err);
    if (rc == RC_FORMAT || rc == RC_TOO_LARGE)
        return true;
    if (!w->closed) {
        w->closed = true;
        w->closed_ms = fleet_now_ms(w->f);
        w->state = SUP_W_DYING;
        uv_poll_stop(&w->poll);
        fleet_tick_fast(w->f);
    }
    return false;
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    struct worker *w = p->data;

    if (events & UV_WRITABLE) {
        listen_for(w, UV_READABLE);
        out_flush(w);
        if (!w->out && w->slot && w->state == SUP_W_RUNNING)
            ticket_pump(w->slot);
    }
    for (int i = 0; i < FRAMES_PER_TURN && !w->closed && !w->exited; i++)
        if (!receive_one(w))
            break;
}

/* ------------------------------------------------------------------- stderr */

static void on_stderr_bytes(struct worker *w, const char *buf, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (buf[i] == '\n' || w->n_line == sizeof(w->line) - 1) {
            w->line[w->n_line] = '\0';
            if (w->n_line)
                log_text(w, "worker_stderr", SUP_WARN, w->line);
            w->n_line = 0;
            if (buf[i] == '\n')
                continue;
        }
        w->line[w->n_line++] = (unsigned char)buf[i] < 0x20 || buf[i] == 0x7F ? ' ' : buf[i];
    }
}

static bool stderr_read(struct worker *w)
{
    char buf[STDERR_CHUNK];
    ssize_t n = read(w->err_fd, buf, sizeof(buf));

    if (n > 0)
        on_stderr_bytes(w, buf, (size_t)n);
    return n > 0;
}

static void on_stderr(uv_poll_t *p, int status, int events)
{
    struct worker *w = p->data;

    if (!stderr_read(w) && !w->exited)
        uv_poll_stop(p); /* closed, or a spurious wake: read again at its end */
}

/* ------------------------------------------------------------- birth, death */

void worker_spawned(struct worker *w, uint32_t pid, const uint8_t *identity, int fd, int err_fd)
{
    w->pid = pid;
    w->fd = fd;
    w->err_fd = err_fd;
    w->state = SUP_W_STARTING;
    worker_watch(w);
    memcpy(w->identity, identity, SUP_IDENTITY_BYTES);
    if (uv_poll_init(w->f->loop, &w->poll, fd) == 0) {
        w->n_handles++;
        w->poll.data = w;
        listen_for(w, UV_READABLE);
    } else {
        worker_kill(w, "exit");
    }
    if (uv_poll_init(w->f->loop, &w->err_poll, err_fd) == 0) {
        w->err_poll.data = w;
        w->n_handles++;
        uv_poll_start(&w->err_poll, UV_READABLE, on_stderr);
    }
    if (!w->probing)
        SUP_LOG(SUP_INFO, "worker_started", SUP_S("model", model_of(w)), SUP_I("pid", pid));
    if (w->killed)
        worker_kill(w, w->cause);
}

static const char *death_cause(const struct worker *w)
{
    if (w->cause)
        return w->cause;
    if (w->err.code == RC_NOMEM)
        return "oom";
    return WIFSIGNALED(w->status) ? "signal" : "exit";
}

void worker_exited(struct worker *w, int status)
{
    struct slot *s = w->slot;
    struct rc_err err = RC_ERR_INIT;
    bool asked;

    /* its last words are still in the socket */
    if (w->fd >= 0 && !w->closed)
        for (int i = 0; i < 65536 && !w->closed && receive_one(w); i++)
            ;
    if (w->err_fd >= 0)
        for (int i = 0; i < 64 && stderr_read(w); i++)
            ;
    s = w->slot; /* a last Error may have detached it */
    w->exited = true;
    w->status = status;
    asked = w->drain_sent || (w->cause && strcmp(w->cause, "asked") == 0);
    w->cause = death_cause(w);
    w->state = SUP_W_DYING;
    if (!asked || !WIFEXITED(status))
        SUP_LOG(asked ? SUP_DEBUG : SUP_ERROR, "worker_exited", SUP_S("model", model_of(w)),
                SUP_I("pid", w->pid), SUP_S("cause", w->cause),
                SUP_I("exit", WIFEXITED(status) ? WEXITSTATUS(status) : -1),
                SUP_I("signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0),
                SUP_B("probe", w->probing != NULL));
    else
        SUP_LOG(SUP_INFO, "worker_exited", SUP_S("model", model_of(w)), SUP_I("pid", w->pid),
                SUP_S("cause", "asked"));
    if (w->probing) {
        if (w->err.code != RC_OK)
            err = w->err;
        else
            rc_fail(&err, RC_CRASHED, "the worker died while it looked at the model (%s)",
                    w->cause);
        probe_ended(w, NULL, &err);
    }
    if (s)
        slot_on_death(w->f, s, w);
    worker_bury(w);
}

static void on_closed(uv_handle_t *h)
{
    struct worker *w = h->data;

    if (--w->n_handles > 0)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->err_fd >= 0)
        close(w->err_fd);
    free(w);
}

void worker_bury(struct worker *w)
{
    struct sup_fleet *f = w->f;

    FLEET_MUST(w->n_sent == 0);
    lnk_del(&w->all);
    if (f->probe == w)
        f->probe = NULL;
    FLEET_MUST(sup_ledger_release(&f->ledger, &w->claim));
    fleet_ledger_show(f);
    out_clear(w);
    if (w->loaded)
        ipc__loaded__free_unpacked(w->loaded, NULL);
    free(w->layers);
    w->loaded = NULL;
    fleet_pump_later(f);
    if (f->draining)
        fleet_kick(f);
    if (w->n_handles == 0) { /* never had a process */
        free(w);
        return;
    }
    if (w->poll.data)
        uv_close((uv_handle_t *)&w->poll, on_closed);
    if (w->err_poll.data)
        uv_close((uv_handle_t *)&w->err_poll, on_closed);
}
