/* sup_fleet.c - the fleet's public door and its turns.
 *
 * Keeps the sorted list of models in step with the disk, starts what is wanted in
 * the order it was wanted, probes what is new, answers questions about it all.
 *
 * Always true: the list is sorted by id; a slot with living tickets, a worker or
 * promises is never freed; promised callbacks are called from the deferred turn.
 * The clock ticks fast while tasks or loads are in work, slowly otherwise; no
 * timer is armed per task. Tests: tests/supervisor/test_sup_fleet.c, tests/fault/ */
#include "sup_fleet_impl.h"

#include <unistd.h>

static void on_tick(uv_timer_t *t);
static void on_kick(uv_idle_t *h);

/* --------------------------------------------------------------- deferred turn */

void fleet_kick(struct sup_fleet *f)
{
    if (f->kicked)
        return;
    f->kicked = true;
    uv_idle_start(&f->kick, on_kick);
}

void fleet_pump_later(struct sup_fleet *f)
{
    f->pump_wanted = true;
    fleet_kick(f);
}

void fleet_tick_fast(struct sup_fleet *f)
{
    if (f->tick_fast)
        return;
    f->tick_fast = true;
    uv_timer_start(&f->tick, on_tick, FLEET_TICK_FAST_MS, FLEET_TICK_FAST_MS);
}

/* Moves promised calls to the next turn; err NULL is success. */
void fleet_promise(struct sup_fleet *f, struct lnk *list, const struct rc_err *err)
{
    while (!lnk_empty(list)) {
        struct done_cb *d = LNK_OF(list->next, struct done_cb, lnk);

        lnk_del(&d->lnk);
        if (err)
            d->err = *err;
        lnk_push(&f->done, &d->lnk);
        fleet_kick(f);
    }
}

static struct done_cb *promise_new(void (*with_err)(void *, const struct rc_err *),
                                   void (*plain)(void *), void *user)
{
    struct done_cb *d = calloc(1, sizeof(*d));

    if (d) {
        d->with_err = with_err;
        d->plain = plain;
        d->user = user;
        d->err = RC_ERR_INIT;
        lnk_init(&d->lnk);
    }
    return d;
}

static void keep_promises(struct sup_fleet *f)
{
    while (!lnk_empty(&f->done)) {
        struct done_cb *d = LNK_OF(f->done.next, struct done_cb, lnk);

        lnk_del(&d->lnk);
        if (d->with_err)
            d->with_err(d->user, d->err.code == RC_OK ? NULL : &d->err);
        if (d->plain)
            d->plain(d->user);
        free(d);
    }
}

static void on_kick(uv_idle_t *h)
{
    struct sup_fleet *f = h->data;

    f->kicked = false;
    uv_idle_stop(&f->kick);
    ticket_turns(f);
    keep_promises(f);
    if (f->pump_wanted) {
        f->pump_wanted = false;
        fleet_pump(f);
    }
    if (f->draining)
        fleet_drain_step(f);
}

/* --------------------------------------------------------------------- demand */

static bool may_start(const struct sup_fleet *f, const struct slot *s)
{
    bool forced = !lnk_empty(&s->loaders);

    switch (s->state) {
    case SUP_SLOT_ABSENT:
        return true;
    case SUP_SLOT_COOLING:
        return forced || fleet_now_ms(f) >= s->until_ms;
    case SUP_SLOT_FAILED:
        return forced || (!s->permanent && fleet_now_ms(f) >= s->until_ms);
    default:
        return false;
    }
}

/* First wanted, first started; one that must wait for room holds up the later ones,
 * or a large model would starve behind small ones. */
void fleet_pump(struct sup_fleet *f)
{
    if (f->draining || !f->scanned)
        return;
    for (struct lnk *l = f->demand.next, *next; l != &f->demand; l = next) {
        struct slot *s = LNK_OF(l, struct slot, demand);

        next = l->next;
        if ((s->n_suspects + s->n_waiting == 0 && lnk_empty(&s->loaders)) ||
            s->state == SUP_SLOT_READY || s->state == SUP_SLOT_BUSY)
            slot_unwant(s);
        else if (!s->listed)
            continue; /* the scan that is on its way decides */
        else if (may_start(f, s) && !slot_start(f, s))
            break;
    }
}

/* --------------------------------------------------------------------- models */

static struct slot *slot_exact(const struct sup_fleet *f, const char *id, size_t n)
{
    size_t lo = 0, hi = f->n_slots;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const char *other = f->slot[mid]->id;
        int c = strncmp(other, id, n);

        if (c == 0 && other[n] == '\0')
            return f->slot[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

struct slot *fleet_slot(const struct sup_fleet *f, const char *id)
{
    size_t n = strlen(id);
    char with[SUP_ID_MAX + 8];
    struct slot *s;

    if (n > SUP_ID_MAX)
        return NULL;
    if ((s = slot_exact(f, id, n)) && (s->listed || s->refs || s->w))
        return s;
    snprintf(with, sizeof(with), "%s.gguf", id);
    return slot_exact(f, with, n + 5) ? slot_exact(f, with, n + 5) : s;
}

static void preload_done(void *user, const struct rc_err *err)
{
    struct sup_fleet *f = user;

    (void)err; /* logged where it failed */
    f->preloads--;
}

static void preload(struct sup_fleet *f, char **list)
{
    for (char **p = list; p && *p; p++) {
        struct rc_err err = RC_ERR_INIT;

        f->preloads++;
        if (sup_fleet_load(f, *p, preload_done, f, &err) != RC_OK) {
            f->preloads--;
            SUP_LOG(SUP_ERROR, "preload_failed", SUP_S("model", *p), SUP_S("error", err.msg));
        }
    }
}

static bool forgettable(const struct sup_fleet *f, const struct slot *s)
{
    return !s->listed && !s->refs && !s->w && lnk_empty(&s->loaders) && lnk_empty(&s->unloaders) &&
           (!f->probe || f->probe->probing != s) &&
           (!s->gone_ms || fleet_now_ms(f) - s->gone_ms >= FLEET_GONE_MS);
}

static void forget_gone(struct sup_fleet *f)
{
    size_t kept = 0;

    for (size_t i = 0; i < f->n_slots; i++) {
        struct slot *s = f->slot[i];

        if (forgettable(f, s)) {
            f->by_state[s->state]--;
            sup_series_set(f->m_state[s->state], (double)f->by_state[s->state]);
            slot_free(s);
        } else {
            f->slot[kept++] = s;
        }
    }
    f->n_slots = kept;
}

/* As a client may name it: with or without .gguf. */
static bool pinned(const struct sup_fleet *f, const char *id)
{
    for (char **p = f->conf->pin; p && *p; p++) {
        size_t n = strlen(*p);

        if (strncmp(id, *p, n) == 0 && (id[n] == '\0' || strcmp(id + n, ".gguf") == 0))
            return true;
    }
    return false;
}

static void model_seen(struct sup_fleet *f, const Ipc__CtlModel *m)
{
    struct slot *s;

    if (m->identity.len != SUP_IDENTITY_BYTES || !sup_id_valid(m->id))
        return;
    s = slot_exact(f, m->id, strlen(m->id));
    if (!s && (f->n_slots >= FLEET_SLOTS_MAX || !(s = slot_new(f, m->id))))
        return;
    if (s->label != s->id)
        slot_metrics(f, s, s->id);
    s->listed = true;
    s->gone_ms = 0;
    s->pinned = pinned(f, s->id);
    s->is_dir = m->is_dir;
    s->bytes = m->bytes;
    memcpy(s->identity, m->identity.data, SUP_IDENTITY_BYTES);
}

void fleet_models(struct sup_fleet *f, const Ipc__CtlModels *m)
{
    bool first = !f->scanned;
    uint64_t now = fleet_now_ms(f);

    f->scanning = false;
    f->scanned = true;
    f->scan_ms = now;
    for (size_t i = 0; i < f->n_slots; i++) {
        if (f->slot[i]->listed)
            f->slot[i]->gone_ms = now ? now : 1;
        f->slot[i]->listed = false;
    }
    for (size_t i = 0; i < m->n_models; i++)
        model_seen(f, m->models[i]);
    for (size_t i = 0; i < f->n_slots; i++)
        slot_files_changed(f, f->slot[i]);
    forget_gone(f);
    if (first) {
        f->first_scan_ms = fleet_now_ms(f);
        SUP_LOG(SUP_INFO, "models_found", SUP_I("n", f->n_slots), SUP_B("truncated", m->truncated));
        preload(f, f->conf->preload);
        preload(f, f->conf->pin);
    }
    fleet_promise(f, &f->scanners, NULL);
    fleet_pump_later(f);
    fleet_probe_next(f);
}

void sup_fleet_stale(struct sup_fleet *f)
{
    f->stale = true;
}

void fleet_scan(struct sup_fleet *f)
{
    if (f->scanning || f->draining)
        return;
    if (f->scanned && !f->stale && fleet_now_ms(f) - f->scan_ms < FLEET_SCAN_GAP_MS) {
        f->scan_wanted = true;
        fleet_tick_fast(f);
        return;
    }
    f->scan_wanted = f->stale = false;
    f->scanning = true;
    ctl_scan(f);
}

void sup_fleet_rescan(struct sup_fleet *f, void (*done)(void *user), void *user)
{
    struct done_cb *d = promise_new(NULL, done, user);
    bool fresh = f->scanned && !f->stale && fleet_now_ms(f) - f->scan_ms < FLEET_SCAN_GAP_MS;

    if (!d) {
        done(user); /* out of memory: the list is as fresh as it gets */
        return;
    }
    if (f->draining || (fresh && !f->scanning)) {
        lnk_push(&f->done, &d->lnk);
        fleet_kick(f);
        return;
    }
    lnk_push(&f->scanners, &d->lnk);
    fleet_scan(f);
}

/* One at a time, and only while no load runs: a look never delays a request. */
void fleet_probe_next(struct sup_fleet *f)
{
    if (f->probe || f->draining || f->by_state[SUP_SLOT_STARTING] + f->by_state[SUP_SLOT_LOADING])
        return;
    for (size_t i = 0; i < f->n_slots; i++) {
        struct slot *s = f->slot[i];

        if (!s->listed || s->w ||
            (s->probed && memcmp(s->probe_identity, s->identity, SUP_IDENTITY_BYTES) == 0))
            continue;
        if (!(f->probe = worker_new(f, s, true)))
            return;
        fleet_tick_fast(f);
        ctl_spawn(f, f->probe->req, s->id, true);
        return;
    }
    f->looked = true;
}

/* A fresh server knows what its models are before it calls itself started, unless
 * looking takes long: a folder of hundreds must not hold up the requests. */
static bool looking(const struct sup_fleet *f)
{
    return !f->looked && fleet_now_ms(f) - f->first_scan_ms < FLEET_LOOK_MS;
}

/* ---------------------------------------------------------------------- views */

static void view_of(const struct sup_fleet *f, const struct slot *s, struct sup_model_view *v)
{
    uint64_t now = fleet_now_ms(f);
    bool waits = s->state == SUP_SLOT_COOLING || (s->state == SUP_SLOT_FAILED && !s->permanent);

    *v = (struct sup_model_view){
        .id = s->id,
        .state = sup_slot_state_name(s->state),
        .info = s->info,
        .bytes = s->bytes,
        .active_tasks = s->n_tasks,
        .last_error = s->last_err.code    ? s->last_err.msg
                      : s->probe_err.code ? s->probe_err.msg
                                          : "",
        .retry_in_ms = waits && s->until_ms > now ? s->until_ms - now : 0,
        .pid = s->w ? s->w->pid : 0,
        .loads = s->loads,
        .deaths = s->deaths,
        .load_done = s->load_done,
        .load_total = s->load_total,
        .loaded_unix_s = s->w && s->w->loaded ? s->loaded_unix_s : 0,
    };
}

void sup_fleet_each(struct sup_fleet *f, void (*fn)(void *user, const struct sup_model_view *v),
                    void *user)
{
    for (size_t i = 0; i < f->n_slots; i++) {
        struct sup_model_view v;

        if (!f->slot[i]->listed && !f->slot[i]->w)
            continue;
        view_of(f, f->slot[i], &v);
        fn(user, &v);
    }
}

void sup_fleet_each_worker(struct sup_fleet *f,
                           void (*fn)(void *user, const struct sup_worker_view *v), void *user)
{
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        const struct worker *w = LNK_OF(l, struct worker, all);
        const struct slot *s = w->slot ? w->slot : w->probing;
        struct sup_worker_view v = {.pid = w->pid, .layers = w->layers, .n = w->n_layers};

        if (!s || w->exited)
            continue;
        v.model = s->id;
        fn(user, &v);
    }
}

bool sup_fleet_find(struct sup_fleet *f, const char *id, struct sup_model_view *out)
{
    struct slot *s = fleet_slot(f, id);

    if (!s || (!s->listed && !s->w))
        return false;
    view_of(f, s, out);
    return true;
}

bool sup_fleet_started(const struct sup_fleet *f)
{
    return f->scanned && f->preloads == 0 && !f->ctl_dead && !looking(f);
}

bool sup_fleet_ready(const struct sup_fleet *f, const char **why)
{
    const char *reason = NULL;

    if (f->draining)
        reason = "the server is shutting down";
    else if (f->ctl_dead)
        reason = "the launcher is gone";
    else if (!f->scanned)
        reason = "the models directory has not been read yet";
    else if (f->preloads)
        reason = "models are being preloaded";
    else if (looking(f))
        reason = "models are being looked at";
    for (const struct lnk *l = f->workers.next; !reason && l != &f->workers; l = l->next) {
        const struct worker *w = LNK_OF(l, struct worker, all);

        if (w->n_sent && worker_stands(w, fleet_now_ms(f)))
            reason = "a worker with work in hand stands still";
    }
    if (reason && why)
        *why = reason;
    return !reason;
}

/* ---------------------------------------------------------------- load, unload */

static enum rc slot_for_order(struct slot **out, struct sup_fleet *f, const char *id,
                              struct rc_err *err)
{
    struct slot *s = fleet_slot(f, id);

    if (f->draining)
        return rc_fail(err, RC_UNLOADING, "the server is shutting down");
    if (!s || (!s->listed && !s->w))
        return rc_fail_what(err, RC_NOT_FOUND, "model", "there is no such model");
    *out = s;
    return RC_OK;
}

enum rc sup_fleet_load(struct sup_fleet *f, const char *id,
                       void (*done)(void *user, const struct rc_err *err), void *user,
                       struct rc_err *err)
{
    struct slot *s = NULL;
    struct done_cb *d;
    enum rc rc = slot_for_order(&s, f, id, err);

    if (rc != RC_OK)
        return rc;
    if (!(d = promise_new(done, NULL, user)))
        return rc_fail(err, RC_NOMEM, "no memory to load a model");
    if (s->state == SUP_SLOT_READY || s->state == SUP_SLOT_BUSY) {
        lnk_push(&f->done, &d->lnk);
        fleet_kick(f);
        return RC_OK;
    }
    lnk_push(&s->loaders, &d->lnk);
    if (s->state != SUP_SLOT_STARTING && s->state != SUP_SLOT_LOADING)
        slot_want(f, s);
    fleet_tick_fast(f);
    return RC_OK;
}

static void unload_now(struct sup_fleet *f, struct slot *s)
{
    struct rc_err err = RC_ERR_INIT;

    rc_fail(&err, RC_UNLOADING, "model '%s' was unloaded on request", s->id);
    switch (s->state) {
    case SUP_SLOT_STARTING:
    case SUP_SLOT_LOADING:
        slot_set(f, s, SUP_SLOT_DRAINING, "asked");
        worker_kill(s->w, "asked");
        slot_end_waiting(f, s, &err, 1);
        break;
    case SUP_SLOT_READY:
    case SUP_SLOT_BUSY:
        slot_drain(f, s, "asked");
        break;
    case SUP_SLOT_COOLING: /* there is nothing to let go of; who waits is tried again, as after a
                              drain */
        slot_set(f, s, SUP_SLOT_ABSENT, "asked");
        s->last_err = RC_ERR_INIT;
        s->failures = 0;
        if (s->n_suspects + s->n_waiting > 0 || !lnk_empty(&s->loaders))
            slot_want(f, s);
        fleet_promise(f, &s->unloaders, NULL);
        break;
    case SUP_SLOT_FAILED:
        slot_set(f, s, SUP_SLOT_ABSENT, "asked");
        s->last_err = RC_ERR_INIT;
        s->failures = 0;
        /* fall through */
    case SUP_SLOT_ABSENT:
        slot_end_waiting(f, s, &err, 1);
        fleet_promise(f, &s->unloaders, NULL);
        break;
    default:
        break;
    }
}

enum rc sup_fleet_unload(struct sup_fleet *f, const char *id,
                         void (*done)(void *user, const struct rc_err *err), void *user,
                         struct rc_err *err)
{
    struct slot *s = NULL;
    struct done_cb *d;
    enum rc rc = slot_for_order(&s, f, id, err);

    if (rc != RC_OK)
        return rc;
    if (!(d = promise_new(done, NULL, user)))
        return rc_fail(err, RC_NOMEM, "no memory to unload a model");
    lnk_push(&s->unloaders, &d->lnk);
    unload_now(f, s);
    return RC_OK;
}

/* ----------------------------------------------------------------------- time */

static void tick_workers(struct sup_fleet *f, uint64_t now)
{
    uint64_t probe_ms = f->conf->load_timeout_s * 1000;

    if (probe_ms > FLEET_PROBE_MAX_MS)
        probe_ms = FLEET_PROBE_MAX_MS;
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        struct worker *w = LNK_OF(l, struct worker, all);

        if (w->closed && !w->exited && now - w->closed_ms >= FLEET_CLOSED_WAIT_MS)
            worker_kill(w, "exit");
        if (w->probing && !w->killed && now - w->born_ms >= probe_ms)
            worker_kill(w, "hang");
    }
}

static bool wants_fast(const struct sup_fleet *f)
{
    return f->n_tasks || f->probe || f->scan_wanted || !lnk_empty(&f->demand) || f->draining ||
           f->by_state[SUP_SLOT_STARTING] || f->by_state[SUP_SLOT_LOADING] ||
           f->by_state[SUP_SLOT_DRAINING] || f->by_state[SUP_SLOT_COOLING];
}

/* What a worker said while this process stood still is not read yet: that time is not
 * held against it. */
static void slept(struct sup_fleet *f, uint64_t now)
{
    uint64_t gap = now - f->tick_ms;

    f->tick_ms = now;
    if (gap < 2 * FLEET_TICK_SLOW_MS)
        return;
    SUP_LOG(SUP_WARN, "front_slept", SUP_I("ms", gap));
    for (struct lnk *l = f->workers.next; l != &f->workers; l = l->next) {
        struct worker *w = LNK_OF(l, struct worker, all);

        w->heard_ms = w->heard_ms + gap < now ? w->heard_ms + gap : now;
        w->moved_ms = w->moved_ms + gap < now ? w->moved_ms + gap : now;
    }
}

static void on_tick(uv_timer_t *t)
{
    struct sup_fleet *f = t->data;
    uint64_t now = fleet_now_ms(f);

    slept(f, now);
    for (size_t i = 0; i < f->n_slots; i++)
        slot_tick(f, f->slot[i]);
    tick_workers(f, now);
    fleet_cache_tick(f);
    if ((f->scan_wanted && now - f->scan_ms >= FLEET_SCAN_GAP_MS) ||
        (f->scanned && now - f->scan_ms >= FLEET_SCAN_EVERY_MS))
        fleet_scan(f);
    fleet_probe_next(f);
    if (f->tick_fast && !wants_fast(f)) {
        f->tick_fast = false;
        uv_timer_start(&f->tick, on_tick, FLEET_TICK_SLOW_MS, FLEET_TICK_SLOW_MS);
    }
    if (f->draining)
        fleet_drain_step(f);
}

/* ---------------------------------------------------------------- birth, drain */

enum rc sup_fleet_new(struct sup_fleet **out, uv_loop_t *loop, int ctl_fd,
                      const struct sup_conf *conf, struct sup_metrics *metrics,
                      void (*on_stop)(void *user), void *user, struct rc_err *err)
{
    struct sup_fleet *f = calloc(1, sizeof(*f));
    enum rc rc;

    if (!f)
        return rc_fail(err, RC_NOMEM, "no memory for the fleet");
    f->loop = loop;
    f->conf = conf;
    f->metrics = metrics;
    f->on_stop = on_stop;
    f->user = user;
    f->ledger.limit[SUP_TIER_HOST] = conf->memory_mb ? conf->memory_mb << 20 : sup_memory_limit();
    f->ledger.limit[SUP_TIER_DEVICE] =
        conf->device_memory_mb ? conf->device_memory_mb << 20 : UINT64_MAX;
    lnk_init(&f->demand);
    lnk_init(&f->scanners);
    lnk_init(&f->workers);
    lnk_init(&f->turns);
    lnk_init(&f->done);
    for (int i = 0; i < SUP_SLOT_N; i++)
        f->m_state[i] =
            sup_series(metrics, SUP_M_WORKERS, sup_slot_state_name((enum sup_slot_state)i), NULL);
    fleet_ledger_show(f);
    if ((rc = ctl_open(f, ctl_fd, err)) != RC_OK) {
        free(f);
        return rc;
    }
    uv_idle_init(loop, &f->kick);
    uv_timer_init(loop, &f->tick);
    f->kick.data = f->tick.data = f;
    f->n_handles += 2;
    f->tick_fast = true;
    f->tick_ms = fleet_now_ms(f);
    uv_timer_start(&f->tick, on_tick, FLEET_TICK_FAST_MS, FLEET_TICK_FAST_MS);
    fleet_scan(f);
    *out = f;
    return RC_OK;
}

static void fleet_closed(uv_handle_t *h)
{
    struct sup_fleet *f = h->data;

    if (--f->n_handles > 0)
        return;
    if (f->drain_done)
        f->drain_done(f->drain_user);
}

/* Called again and again until nothing is left. */
void fleet_drain_step(struct sup_fleet *f)
{
    if (f->freed || (!lnk_empty(&f->workers) && !f->ctl_dead) || !lnk_empty(&f->turns) ||
        !lnk_empty(&f->done))
        return;
    f->freed = true;
    FLEET_MUST(f->ctl_dead || sup_claim_is_zero(&f->ledger.used));
    uv_close((uv_handle_t *)&f->kick, fleet_closed);
    uv_close((uv_handle_t *)&f->tick, fleet_closed);
    uv_close((uv_handle_t *)&f->ctl_poll, fleet_closed);
}

void sup_fleet_end_tasks(struct sup_fleet *f)
{
    f->refusing = true;
    tickets_end_all(f);
}

void sup_fleet_drain(struct sup_fleet *f, void (*done)(void *), void *user)
{
    struct rc_err err = RC_ERR_INIT;

    if (f->draining)
        return;
    f->draining = true;
    f->drain_done = done;
    f->drain_user = user;
    rc_fail(&err, RC_UNLOADING, "the server is shutting down");
    for (size_t i = 0; i < f->n_slots; i++) {
        struct slot *s = f->slot[i];

        slot_end_waiting(f, s, &err, 1);
        if (s->state == SUP_SLOT_READY || s->state == SUP_SLOT_BUSY) {
            slot_drain(f, s, "shutdown");
        } else if (s->state == SUP_SLOT_STARTING || s->state == SUP_SLOT_LOADING) {
            slot_set(f, s, SUP_SLOT_DRAINING, "shutdown");
            worker_kill(s->w, "asked");
        }
        fleet_promise(f, &s->unloaders, &err);
    }
    if (f->probe)
        worker_kill(f->probe, "asked");
    fleet_promise(f, &f->scanners, NULL);
    fleet_tick_fast(f);
    fleet_kick(f);
}

void sup_fleet_free(struct sup_fleet **pf)
{
    struct sup_fleet *f = *pf;

    if (!f)
        return;
    *pf = NULL;
    ctl_close(f);
    close(f->ctl_fd);
    for (size_t i = 0; i < f->n_slots; i++)
        slot_free(f->slot[i]);
    free(f->slot);
    free(f->table);
    free(f->free_idx);
    free(f->gen);
    free(f);
}
