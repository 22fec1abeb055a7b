/* sup_fleet_slot.c - the life of one model: absent, starting, loading, ready,
 * busy, draining, cooling, failed.
 *
 * Decides with sup_fleet_policy.c; acts through workers and tickets. Knows no
 * sockets. Every change of state goes through slot_set, which checks the edge.
 *
 * Always true: a slot has a worker exactly in STARTING, LOADING, READY, BUSY and
 * DRAINING; a worker that failed to load or breaks is let go before a next one is
 * started; a claim is taken from the ledger before a process is asked for.
 * Tests: tests/supervisor/test_sup_fleet.c, test_sup_fleet_policy.c, test_sup_fleet_random.c */
#include "sup_fleet_impl.h"

#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>

#define RETRY_SOON_MS 1000

void slot_set(struct sup_fleet *f, struct slot *s, enum sup_slot_state to, const char *reason)
{
    enum sup_slot_state from = s->state;
    bool quiet = (from == SUP_SLOT_READY && to == SUP_SLOT_BUSY) ||
                 (from == SUP_SLOT_BUSY && to == SUP_SLOT_READY);

    FLEET_MUST(sup_slot_edge_legal(from, to));
    f->by_state[from]--;
    f->by_state[to]++;
    sup_series_set(f->m_state[from], (double)f->by_state[from]);
    sup_series_set(f->m_state[to], (double)f->by_state[to]);
    s->state = to;
    if (!quiet)
        SUP_LOG(SUP_INFO, "model_state", SUP_S("model", s->id),
                SUP_S("from", sup_slot_state_name(from)), SUP_S("to", sup_slot_state_name(to)),
                SUP_S("reason", reason));
}

/* Names that clients made up must not fill the table of series. */
void slot_metrics(struct sup_fleet *f, struct slot *s, const char *label)
{
    s->label = label;
    s->m_active = sup_series(f->metrics, SUP_M_TASKS_ACTIVE, label, NULL);
    s->m_ok = sup_series(f->metrics, SUP_M_TASKS, label, "ok");
    s->m_waiters = sup_series(f->metrics, SUP_M_LOAD_WAITERS, label, NULL);
    s->m_ttft = sup_series(f->metrics, SUP_M_TTFT, label, NULL);
    s->m_prompt = sup_series(f->metrics, SUP_M_TOKENS, label, "prompt");
    s->m_completion = sup_series(f->metrics, SUP_M_TOKENS, label, "completion");
    s->m_embed = sup_series(f->metrics, SUP_M_TOKENS, label, "embed");
}

struct slot *slot_new(struct sup_fleet *f, const char *id)
{
    struct slot *s = calloc(1, sizeof(*s));
    size_t lo = 0, hi = f->n_slots;

    if (s && f->n_slots == f->cap_slots) {
        size_t cap = f->cap_slots ? f->cap_slots * 2 : 32;
        struct slot **p = realloc(f->slot, cap * sizeof(*p));

        if (p) {
            f->slot = p;
            f->cap_slots = cap;
        }
    }
    if (!s || f->n_slots == f->cap_slots || !(s->id = strdup(id))) {
        free(s);
        return NULL;
    }
    lnk_init(&s->waiting);
    lnk_init(&s->suspects);
    lnk_init(&s->demand);
    lnk_init(&s->loaders);
    lnk_init(&s->unloaders);
    s->last_err = s->probe_err = RC_ERR_INIT;
    s->keep_ms = UINT64_MAX;
    slot_metrics(f, s, "unknown");
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (strcmp(f->slot[mid]->id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(&f->slot[lo + 1], &f->slot[lo], (f->n_slots - lo) * sizeof(*f->slot));
    f->slot[lo] = s;
    f->n_slots++;
    f->by_state[SUP_SLOT_ABSENT]++;
    sup_series_set(f->m_state[SUP_SLOT_ABSENT], (double)f->by_state[SUP_SLOT_ABSENT]);
    return s;
}

void slot_free(struct slot *s)
{
    if (s->info)
        ipc__loaded__free_unpacked(s->info, NULL);
    lnk_del(&s->demand);
    queue_deinit(s);
    free(s->id);
    free(s);
}

static Ipc__Loaded *loaded_dup(const Ipc__Loaded *l)
{
    size_t n = ipc__loaded__get_packed_size(l);
    uint8_t *b = malloc(n + 1);
    Ipc__Loaded *copy = NULL;

    if (b) {
        ipc__loaded__pack(l, b);
        copy = ipc__loaded__unpack(NULL, n, b);
    }
    free(b);
    return copy;
}

void slot_info_set(struct slot *s, const Ipc__Loaded *l, const uint8_t *identity)
{
    Ipc__Loaded *copy = loaded_dup(l);

    if (!copy)
        return;
    if (s->info)
        ipc__loaded__free_unpacked(s->info, NULL);
    s->info = copy;
    memcpy(s->info_identity, identity, SUP_IDENTITY_BYTES);
}

/* ------------------------------------------------------------------- demand */

void slot_want(struct sup_fleet *f, struct slot *s)
{
    if (lnk_empty(&s->demand))
        lnk_push(&f->demand, &s->demand);
    fleet_pump_later(f);
}

void slot_unwant(struct slot *s)
{
    lnk_del(&s->demand);
    s->blocked_ms = 0;
}

void slot_end_waiting(struct sup_fleet *f, struct slot *s, const struct rc_err *err,
                      uint32_t retry_after_ms)
{
    struct rc_err copy = *err; /* may be one of the slot's own */

    while (!lnk_empty(&s->suspects))
        ticket_end(LNK_OF(s->suspects.next, struct sup_ticket, lnk), &copy, retry_after_ms);
    while (!lnk_empty(&s->waiting))
        ticket_end(LNK_OF(s->waiting.next, struct sup_ticket, lnk), &copy, retry_after_ms);
    fleet_promise(f, &s->loaders, &copy);
    slot_unwant(s);
}

/* ----------------------------------------------------------------- starting */

static void too_large(struct sup_fleet *f, struct slot *s, const struct sup_claim *c,
                      enum sup_tier t)
{
    struct rc_err err = RC_ERR_INIT;

    rc_fail(&err, RC_LIMIT,
            "model '%s' needs about %llu MiB of %s memory, all models together may use %llu MiB"
            " (%s)",
            s->id, (unsigned long long)(sup_claim_bytes(c, t) >> 20), sup_tier_name(t),
            (unsigned long long)(f->ledger.limit[t] >> 20),
            t == SUP_TIER_HOST ? "memory_mb" : "device_memory_mb");
    err.n = sup_claim_bytes(c, t);
    err.limit = f->ledger.limit[t];
    if (s->state == SUP_SLOT_FAILED)
        slot_set(f, s, SUP_SLOT_ABSENT, "tried again");
    slot_fail(f, s, &err, "failed");
}

bool slot_start(struct sup_fleet *f, struct slot *s)
{
    struct sup_claim c = fleet_estimate(f, s);
    struct rc_err err = RC_ERR_INIT;
    enum sup_tier tight = SUP_TIER_HOST;
    enum room room;
    struct worker *w;

    FLEET_MUST(s->w == NULL);
    if (sup_ledger_ask(&f->ledger, &c, &tight) == RC_LIMIT) {
        too_large(f, s, &c, tight);
        return true;
    }
    if ((room = fleet_make_room(f, &c)) == ROOM_PINNED) {
        rc_fail(&err, RC_LIMIT,
                "model '%s' finds no room beside the models that stay loaded (pin), whatever "
                "others do",
                s->id);
        SUP_LOG(SUP_WARN, "pinned_leave_no_room", SUP_S("model", s->id));
        slot_end_waiting(f, s, &err, 0);
        return true;
    }
    if (room != ROOM_NOW) {
        if (!s->blocked_ms)
            s->blocked_ms = fleet_now_ms(f);
        return false;
    }
    if (!(w = worker_new(f, s, false)))
        return false;
    FLEET_MUST(sup_ledger_reserve(&f->ledger, &c) == RC_OK);
    w->claim = c;
    fleet_ledger_show(f);
    w->load_ms = fleet_now_ms(f);
    s->w = w;
    s->load_done = s->load_total = 0;
    slot_unwant(s);
    slot_set(f, s, SUP_SLOT_STARTING, "wanted");
    fleet_tick_fast(f);
    ctl_spawn(f, w->req, s->id, false);
    return true;
}

void slot_on_ready(struct worker *w)
{
    slot_set(w->f, w->slot, SUP_SLOT_LOADING, "sandboxed");
}

/* Until when a model is not tried: the wait it was given, 0 once it may be or is loaded. */
static void show_wait(struct sup_fleet *f, struct slot *s, uint64_t wait_ms)
{
    sup_series_set(sup_series(f->metrics, SUP_M_RETRY_WAIT, s->label, NULL),
                   (double)wait_ms / 1000.0);
}

static double unix_now(void)
{
    struct timeval tv;

    gettimeofday(&tv, NULL);
    return (double)tv.tv_sec + (double)tv.tv_usec / 1e6;
}

void slot_on_loaded(struct worker *w, const Ipc__Loaded *l)
{
    struct sup_fleet *f = w->f;
    struct slot *s = w->slot;
    struct sup_claim now = fleet_measured(f, l);
    enum sup_tier t = SUP_TIER_HOST;
    double took = (double)(fleet_now_ms(f) - w->load_ms) / 1000.0;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    fleet_device_told(f, l->device_total_bytes);
    rc = sup_ledger_change(&f->ledger, &w->claim, &now, &t);
    fleet_ledger_show(f);
    if (rc != RC_OK || !(w->loaded = loaded_dup(l))) {
        if (rc == RC_LIMIT || rc == RC_BUSY)
            rc_fail(&err, rc,
                    "model '%s' takes %llu MiB, more than is left of %llu MiB of %s memory (%s)",
                    s->id, (unsigned long long)(sup_claim_bytes(&now, t) >> 20),
                    (unsigned long long)(f->ledger.limit[t] >> 20), sup_tier_name(t),
                    t == SUP_TIER_HOST ? "memory_mb" : "device_memory_mb");
        else
            rc_fail(&err, RC_NOMEM, "no memory for the facts of model '%s'", s->id);
        worker_kill(w, "asked");
        slot_fail(f, s, &err, "failed");
        return;
    }
    slot_info_set(s, l, w->identity);
    s->probed = true;
    memcpy(s->probe_identity, w->identity, SUP_IDENTITY_BYTES);
    s->probe_err = s->last_err = RC_ERR_INIT;
    if (s->failures || s->streak)
        show_wait(f, s, 0);
    s->failures = 0;
    s->loads++;
    s->used_ms = fleet_now_ms(f);
    s->loaded_unix_s = unix_now();
    sup_series_add(sup_series(f->metrics, SUP_M_MODEL_LOADS, s->label, "ok"), 1);
    sup_series_observe(sup_series(f->metrics, SUP_M_MODEL_LOAD_SECONDS, s->label, NULL), took);
    slot_set(f, s, SUP_SLOT_READY, "loaded");
    sup_pace_begin(&s->pace, fleet_now_ms(f)); /* who waited for the load says nothing of it */
    SUP_LOG(SUP_INFO, "model_loaded", SUP_S("model", s->id), SUP_I("pid", w->pid),
            SUP_S("family", l->family), SUP_S("quant", l->quant), SUP_S("kernels", l->kernels),
            SUP_I("weight_bytes", l->weight_bytes), SUP_F("seconds", took), SUP_S("note", l->note));
    fleet_cache_deal(f); /* before its first task: the others make room */
    fleet_promise(f, &s->loaders, NULL);
    ticket_pump(s);
}

void slot_busy(struct sup_fleet *f, struct slot *s)
{
    if (!s->w)
        return;
    if (s->state == SUP_SLOT_READY && s->w->n_sent > 0)
        slot_set(f, s, SUP_SLOT_BUSY, "task");
    else if (s->state == SUP_SLOT_BUSY && s->w->n_sent == 0) {
        slot_set(f, s, SUP_SLOT_READY, "idle");
        if (!lnk_empty(&f->demand))
            fleet_pump_later(f); /* someone may wait for this memory */
    }
}

/* ------------------------------------------------------------------- ending */

void slot_drain(struct sup_fleet *f, struct slot *s, const char *reason)
{
    if (s->w->state != SUP_W_RUNNING)
        return; /* dying already: its end is on the way */
    sup_series_add(sup_series(f->metrics, SUP_M_MODEL_UNLOADS, s->label, reason), 1);
    slot_set(f, s, SUP_SLOT_DRAINING, reason);
    fleet_tick_fast(f);
    worker_drain(s->w);
}

static void let_go(struct slot *s)
{
    struct worker *w = s->w;

    if (w) {
        worker_use_none(w); /* its last word may be old */
        w->slot = NULL;
        if (w->ready_ms && sup_deaths_forgiven(fleet_now_ms(w->f) - w->ready_ms, w->n_answered))
            s->streak = 0; /* also when it went as it was asked to */
    }
    s->w = NULL;
    s->loaded_unix_s = 0;
    s->keep_ms = UINT64_MAX;
}

void slot_fail(struct sup_fleet *f, struct slot *s, const struct rc_err *err, const char *result)
{
    uint64_t wait = 0;

    s->last_err = *err;
    s->permanent = sup_load_permanent(err->code);
    s->check_files = false;
    memcpy(s->fail_identity, s->w && s->w->pid ? s->w->identity : s->identity, SUP_IDENTITY_BYTES);
    s->failures++;
    if (!s->permanent)
        wait = sup_load_backoff_ms(s->failures);
    s->until_ms = fleet_now_ms(f) + wait;
    let_go(s);
    show_wait(f, s, wait);
    sup_series_add(sup_series(f->metrics, SUP_M_MODEL_LOADS, s->label, result), 1);
    SUP_LOG(SUP_ERROR, "model_load_failed", SUP_S("model", s->id),
            SUP_S("code", rc_name(err->code)), SUP_S("what", err->what), SUP_S("error", err->msg),
            SUP_B("permanent", s->permanent), SUP_I("retry_in_ms", wait));
    slot_set(f, s, SUP_SLOT_FAILED, rc_name(err->code));
    slot_end_waiting(f, s, &s->last_err, (uint32_t)wait);
    fleet_promise(f, &s->unloaders, NULL);
}

static void crashed(struct sup_fleet *f, struct slot *s, struct worker *w)
{
    bool weights = strcmp(w->cause, "weights") == 0 ||
                   (WIFSIGNALED(w->status) && WTERMSIG(w->status) == SIGBUS);
    bool loading = s->state == SUP_SLOT_STARTING || s->state == SUP_SLOT_LOADING;
    struct rc_err err = RC_ERR_INIT;
    uint64_t wait;

    s->deaths++;
    wait = sup_death_backoff_ms(++s->streak);
    s->until_ms = fleet_now_ms(f) + wait;
    show_wait(f, s, wait);
    sup_series_add(
        sup_series(f->metrics, SUP_M_WORKER_DEATHS, s->label, weights ? "signal" : w->cause), 1);
    if (weights)
        rc_fail(&err, RC_WEIGHT_IO, "the weights of model '%s' could not be read any more%s%s",
                s->id, w->err.code ? ": " : "", w->err.code ? w->err.msg : "");
    else if (WIFSIGNALED(w->status) && !w->killed)
        rc_fail(&err, RC_CRASHED, "the worker of model '%s' died of signal %d", s->id,
                WTERMSIG(w->status));
    else
        rc_fail(&err, RC_CRASHED, "the worker of model '%s' ended (%s, status %d)%s%s", s->id,
                w->cause, WIFEXITED(w->status) ? WEXITSTATUS(w->status) : 0,
                w->err.code ? ": " : "", w->err.code ? w->err.msg : "");
    s->last_err = err;
    slot_set(f, s, SUP_SLOT_COOLING, weights ? "weights" : w->cause);
    ticket_deaths(f, s, w, weights ? &err : NULL, (uint32_t)wait);
    if (loading)
        fleet_promise(f, &s->loaders, &err);
    if (wait > SUP_WAIT_SHORT_MS) {
        rc_fail(&err, RC_BUSY,
                "model '%s' recovers from crashes of its worker, try again in %llu s", s->id,
                (unsigned long long)(wait + 999) / 1000);
        slot_end_waiting(f, s, &err, (uint32_t)wait);
    }
    if (weights)
        fleet_scan(f);
}

void slot_on_death(struct sup_fleet *f, struct slot *s, struct worker *w)
{
    bool asked = w->drain_sent || strcmp(w->cause, "asked") == 0;

    if (strcmp(w->cause, "spawn") == 0 || strcmp(w->cause, "version") == 0) {
        /* listed a moment ago and gone now: it may come back as it was */
        if (w->err.code == RC_NOT_FOUND)
            rc_fail(&w->err, RC_WEIGHT_IO, "the files of model '%s' are gone", s->id);
        if (s->state == SUP_SLOT_DRAINING) { /* unloaded while it was being started */
            let_go(s);
            slot_set(f, s, SUP_SLOT_ABSENT, "gone");
        } else {
            slot_fail(f, s, &w->err, "failed");
        }
    } else if (s->state == SUP_SLOT_DRAINING && asked) {
        let_go(s);
        slot_set(f, s, SUP_SLOT_ABSENT, "gone");
    } else {
        let_go(s);
        crashed(f, s, w);
    }
    fleet_promise(f, &s->unloaders, NULL);
    if (s->n_suspects + s->n_waiting > 0 || !lnk_empty(&s->loaders))
        slot_want(f, s);
}

/* -------------------------------------------------------------------- files */

void slot_files_changed(struct sup_fleet *f, struct slot *s)
{
    struct rc_err err = RC_ERR_INIT;

    if (!s->listed && s->n_suspects + s->n_waiting > 0 && !s->w) {
        if (s->gone_ms && fleet_now_ms(f) - s->gone_ms < FLEET_GONE_MS) {
            rc_fail(&err, RC_WEIGHT_IO, "the files of model '%s' are gone", s->id);
            slot_end_waiting(f, s, &err, RETRY_SOON_MS);
        } else {
            rc_fail_what(&err, RC_NOT_FOUND, "model", "there is no such model");
            slot_end_waiting(f, s, &err, 0);
        }
    }
    if ((s->state == SUP_SLOT_READY || s->state == SUP_SLOT_BUSY) &&
        (!s->listed || memcmp(s->w->identity, s->identity, SUP_IDENTITY_BYTES) != 0))
        slot_drain(f, s, "changed");
    if (s->state == SUP_SLOT_FAILED && s->permanent) {
        s->check_files = false;
        if (!s->listed || memcmp(s->fail_identity, s->identity, SUP_IDENTITY_BYTES) != 0) {
            s->failures = 0;
            slot_set(f, s, SUP_SLOT_ABSENT, "files changed");
            fleet_pump_later(f);
        } else if (s->n_waiting + s->n_suspects > 0 && lnk_empty(&s->loaders)) {
            slot_end_waiting(f, s, &s->last_err, 0);
        }
    }
    if (s->info && memcmp(s->info_identity, s->identity, SUP_IDENTITY_BYTES) != 0 && !s->refs &&
        !s->w) {
        ipc__loaded__free_unpacked(s->info, NULL);
        s->info = NULL;
    }
}

/* --------------------------------------------------------------------- time */

/* True: it stands still and was killed. */
static bool tick_stands(struct slot *s, uint64_t now)
{
    struct worker *w = s->w;
    const char *why = w->killed ? NULL : worker_stands(w, now);

    if (why == NULL)
        return false;
    SUP_LOG(SUP_ERROR, "worker_hangs", SUP_S("model", s->id), SUP_I("pid", w->pid),
            SUP_S("why", why), SUP_I("silent_ms", now - w->heard_ms),
            SUP_I("still_ms", now - w->moved_ms));
    worker_kill(w, "hang");
    return true;
}

static void tick_loading(struct sup_fleet *f, struct slot *s, uint64_t now)
{
    struct worker *w = s->w;
    struct rc_err err = RC_ERR_INIT;

    if (s->state == SUP_SLOT_LOADING && tick_stands(s, now))
        return;
    if (now - w->load_ms < f->conf->load_timeout_s * 1000)
        return;
    rc_fail(&err, RC_DEADLINE, "loading model '%s' took longer than %llu s (load_timeout_s)", s->id,
            (unsigned long long)f->conf->load_timeout_s);
    worker_kill(w, "asked");
    slot_fail(f, s, &err, "timeout");
}

static void tick_running(struct sup_fleet *f, struct slot *s, uint64_t now)
{
    struct worker *w = s->w;

    if (!tick_stands(s, now) && s->state == SUP_SLOT_READY && s->n_tasks == 0 &&
        w->state == SUP_W_RUNNING &&
        now - s->used_ms >= sup_keep_ms(s->pinned, s->keep_ms, f->conf->keep_alive_s))
        slot_drain(f, s, "idle");
}

void slot_tick(struct sup_fleet *f, struct slot *s)
{
    uint64_t now = fleet_now_ms(f);
    struct rc_err err = RC_ERR_INIT;

    if (s->n_tasks)
        ticket_expire(f, s);
    switch (s->state) {
    case SUP_SLOT_STARTING:
    case SUP_SLOT_LOADING:
        tick_loading(f, s, now);
        break;
    case SUP_SLOT_READY:
    case SUP_SLOT_BUSY:
        tick_running(f, s, now);
        break;
    case SUP_SLOT_DRAINING:
        if (s->w->drain_sent && !s->w->killed && now - s->w->drain_ms >= FLEET_EXIT_WAIT_MS)
            worker_kill(s->w, "asked");
        else if (s->w->n_sent > 0)
            tick_running(f, s, now);
        break;
    case SUP_SLOT_COOLING:
        if (now >= s->until_ms && lnk_empty(&s->demand))
            slot_set(f, s, SUP_SLOT_ABSENT, "cooled");
        break;
    default:
        break;
    }
    if (!lnk_empty(&s->demand))
        fleet_pump_later(f); /* a back-off may be over */
    if (s->blocked_ms && now - s->blocked_ms >= FLEET_ROOM_WAIT_MS) {
        rc_fail(&err, RC_BUSY, "no memory for model '%s' while others are at work", s->id);
        slot_end_waiting(f, s, &err, RETRY_SOON_MS);
    }
}
