/* sup_fleet_task.c - tickets: from a submit to exactly one end.
 *
 * Knows frames and users' callbacks; when a worker exists is the slot's business.
 *
 * Always true: a ticket is in exactly one of: its slot's waiting or suspects list,
 * its worker's sent list, or ENDED and in none; its packed frame lives until something of
 * an answer is given to its reader, so that a crash before can be hidden: of a stream that is
 * its first frame, of a whole answer its last; on_end is called once, or never after a cancel; ends
 * with an error are called from the deferred turn only. Tests:
 * tests/supervisor/test_sup_fleet_queue.c */
#include "sup_fleet_impl.h"

#include <stdio.h>

#define IDX_BITS 24
#define RETRY_SOON_MS 1000
#define WORKER_LAG_US 200000 /* for a worker to end a task at its deadline: a step or two */

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

/* ---------------------------------------------------------------- the table */

static bool table_grow(struct sup_fleet *f)
{
    uint32_t n = f->n_table ? f->n_table * 2 : 256;
    struct sup_ticket **table;
    uint32_t *free_idx, *gen;

    if (n > FLEET_TASKS_MAX)
        return false;
    if (!(table = realloc(f->table, n * sizeof(*table))))
        return false;
    f->table = table;
    if (!(free_idx = realloc(f->free_idx, n * sizeof(*free_idx))))
        return false;
    f->free_idx = free_idx;
    if (!(gen = realloc(f->gen, n * sizeof(*gen))))
        return false;
    f->gen = gen;
    for (uint32_t i = n; i-- > f->n_table;) {
        table[i] = NULL;
        gen[i] = 0;
        free_idx[f->n_free++] = i;
    }
    f->n_table = n;
    return true;
}

static bool id_take(struct sup_fleet *f, struct sup_ticket *t)
{
    uint32_t idx;

    if (f->n_free == 0 && !table_grow(f))
        return false;
    idx = f->free_idx[--f->n_free];
    f->table[idx] = t;
    t->id = (uint64_t)++f->gen[idx] << IDX_BITS | idx;
    return true;
}

static struct sup_ticket *by_id(const struct sup_fleet *f, uint64_t id)
{
    uint32_t idx = (uint32_t)(id & ((1u << IDX_BITS) - 1));
    struct sup_ticket *t = idx < f->n_table ? f->table[idx] : NULL;

    return t && t->id == id ? t : NULL;
}

static void drop_held(struct sup_ticket *t)
{
    while (t->held) {
        struct held *h = t->held;

        t->held = h->next;
        ipc__frame__free_unpacked(h->frame, NULL);
        free(h);
    }
    t->held_tail = &t->held;
}

static void ticket_free(struct sup_ticket *t)
{
    struct sup_fleet *f = t->f;
    uint32_t idx = (uint32_t)(t->id & ((1u << IDX_BITS) - 1));

    lnk_del(&t->lnk);
    lnk_del(&t->turn);
    f->table[idx] = NULL;
    f->free_idx[f->n_free++] = idx;
    drop_held(t);
    t->slot->refs--;
    free(t->packed);
    sup_asked_deinit(&t->asked);
    free(t->end_err);
    free(t);
}

/* ------------------------------------------------------------------- counts */

static const char *result_word(enum rc code)
{
    switch (code) {
    case RC_OK:
        return "ok";
    case RC_CANCELLED:
        return "cancelled";
    case RC_DEADLINE:
        return "deadline";
    case RC_CRASHED:
        return "crashed";
    case RC_POISONED:
        return "poisoned";
    case RC_BUSY:
    case RC_UNLOADING:
        return "refused";
    default:
        return "error";
    }
}

/* The task is no longer in work or waiting, whatever its reader still does. */
static void uncount(struct sup_ticket *t, enum rc code)
{
    struct slot *s = t->slot;

    if (!t->counted)
        return;
    t->counted = false;
    queue_leave(t);
    s->n_tasks--;
    t->f->n_tasks--;
    s->used_ms = fleet_now_ms(t->f);
    sup_series_set(s->m_active, s->n_tasks);
    if (code == RC_OK) {
        sup_series_add(s->m_ok, 1);
        sup_pace_end(&s->pace, s->used_ms);
    } else {
        sup_series_add(sup_series(t->f->metrics, SUP_M_TASKS, s->label, result_word(code)), 1);
    }
}

static void count_answer(struct sup_ticket *t, const Ipc__Frame *f)
{
    struct slot *s = t->slot;
    uint64_t n = 0;

    queue_told(t, f);
    switch (f->body_case) {
    case IPC__FRAME__BODY_DELTA:
        if (!t->answered)
            sup_series_observe(s->m_ttft, (double)(now_us() - t->born_us) / 1e6);
        break;
    case IPC__FRAME__BODY_DONE:
        sup_series_add(s->m_prompt, f->done->prompt_tokens);
        sup_series_add(s->m_completion, f->done->completion_tokens);
        if (t->asked.cached)
            t->w->cache_demand += f->done->prompt_tokens;
        break;
    case IPC__FRAME__BODY_VECTORS:
        for (size_t i = 0; i < f->vectors->n_n_tokens; i++)
            n += f->vectors->n_tokens[i];
        sup_series_add(s->m_embed, (double)n);
        break;
    case IPC__FRAME__BODY_SCORES:
        for (size_t i = 0; i < f->scores->n_n_tokens; i++)
            n += f->scores->n_tokens[i];
        sup_series_add(s->m_embed, (double)(n + f->scores->query_tokens));
        break;
    case IPC__FRAME__BODY_EXTRACTED:
        for (size_t i = 0; i < f->extracted->n_items; i++)
            n += f->extracted->items[i]->n_tokens;
        sup_series_add(s->m_embed, (double)n);
        break;
    case IPC__FRAME__BODY_DECIDED:
        sup_series_add(s->m_embed, (double)f->decided->input_tokens);
        sup_fleet_decided(t->f->metrics, s->label, f->decided);
        break;
    default:
        break;
    }
}

/* -------------------------------------------------------------------- lists */

static void unlink_waiting(struct sup_ticket *t)
{
    struct slot *s = t->slot;

    lnk_del(&t->lnk);
    if (t->deaths > 0)
        s->n_suspects--;
    else
        s->n_waiting--;
    sup_series_set(s->m_waiters, (double)(s->n_suspects + s->n_waiting));
}

static void link_waiting(struct sup_ticket *t)
{
    struct slot *s = t->slot;

    t->state = TICKET_WAITING;
    t->w = NULL;
    lnk_push(t->deaths > 0 ? &s->suspects : &s->waiting, &t->lnk);
    if (t->deaths > 0)
        s->n_suspects++;
    else
        s->n_waiting++;
    sup_series_set(s->m_waiters, (double)(s->n_suspects + s->n_waiting));
}

/* Takes a ticket out of its worker; the caller looks after what that allows. */
static void unlink_sent(struct sup_ticket *t)
{
    struct worker *w = t->w;

    lnk_del(&t->lnk);
    w->n_sent--;
    queue_back(w, t);
    if (w->trial == t)
        w->trial = NULL;
    t->w = NULL;
}

/* A place in the worker has become free. */
static void after_sent(struct worker *w)
{
    struct slot *s = w->slot;

    if (w->state == SUP_W_DRAINING)
        worker_drain_step(w);
    if (!s)
        return;
    if (s->n_suspects + s->n_waiting > 0)
        ticket_pump(s);
    slot_busy(w->f, s);
}

/* Its time was over before its turn came: it never starts. */
static bool late(struct sup_ticket *t)
{
    struct rc_err err = RC_ERR_INIT;

    if (!t->deadline_us || t->deadline_us > now_us())
        return false;
    rc_fail(&err, RC_DEADLINE, "the request's time was over while it was queued");
    ticket_end(t, &err, 0);
    return true;
}

void ticket_pump(struct slot *s)
{
    struct worker *w = s->w;

    if (!w || w->state != SUP_W_RUNNING ||
        (s->state != SUP_SLOT_READY && s->state != SUP_SLOT_BUSY))
        return;
    while (worker_writable(w)) {
        struct lnk *first = s->suspects.next;
        unsigned deaths = s->n_suspects ? LNK_OF(first, struct sup_ticket, lnk)->deaths : 0;
        enum sup_turn turn = sup_poison_turn(w->n_sent, w->trial != NULL, s->n_suspects, deaths);
        struct sup_ticket *t = NULL;
        enum rc rc;

        if (turn == SUP_TURN_SUSPECT)
            t = LNK_OF(first, struct sup_ticket, lnk);
        else if (turn == SUP_TURN_ALL)
            t = queue_next(w);
        if (!t)
            break;
        if (late(t))
            continue;
        rc = worker_send_task(w, t);
        if (rc == RC_AGAIN) {
            worker_want_write(w);
            break;
        }
        if (rc == RC_CLOSED || rc == RC_IO)
            break; /* the poll reports its death; the ticket waits for the next one */
        if (rc != RC_OK) {
            struct rc_err err = RC_ERR_INIT;

            rc_fail(&err, rc, "the request could not be handed to the model's worker");
            ticket_end(t, &err, rc == RC_NOMEM ? RETRY_SOON_MS : 0);
            continue;
        }
        unlink_waiting(t);
        if (w->n_sent++ == 0)
            worker_watch(w);
        lnk_push(&w->sent, &t->lnk);
        queue_sent(w, t);
        t->state = TICKET_SENT;
        t->w = w;
        t->was_sent = true;
        if (turn == SUP_TURN_SUSPECT)
            w->trial = t;
    }
    slot_busy(w->f, s);
}

/* ----------------------------------------------------------------- delivery */

static void turn_later(struct sup_ticket *t)
{
    if (lnk_empty(&t->turn))
        lnk_push(&t->f->turns, &t->turn);
    fleet_kick(t->f);
}

/* False: the reader cancelled inside the callback and the ticket is gone. */
static bool give(struct sup_ticket *t, const Ipc__Frame *f)
{
    bool gone;

    t->in_callback = true;
    t->on_frame(t->user, f);
    t->in_callback = false;
    if ((gone = t->cancelled))
        ticket_free(t);
    return !gone;
}

static void finish(struct sup_ticket *t)
{
    void (*on_end)(void *, const struct rc_err *, uint32_t) = t->on_end;
    void *user = t->user;
    struct rc_err *err = t->end_err;
    uint32_t retry = t->retry_after_ms;

    t->end_err = NULL;
    t->in_callback = true; /* a cancel inside frees nothing */
    on_end(user, err, retry);
    ticket_free(t);
    free(err);
}

static bool hold(struct sup_ticket *t, Ipc__Frame **own, bool last)
{
    struct held *h = malloc(sizeof(*h));

    if (!h)
        return false;
    *h = (struct held){.frame = *own, .last = last};
    *own = NULL;
    *t->held_tail = h;
    t->held_tail = &h->next;
    return true;
}

static void deliver(struct sup_ticket *t, const Ipc__Frame *f, Ipc__Frame **own, bool last)
{
    struct rc_err err = RC_ERR_INIT;

    if (last) {
        t->state = TICKET_ENDED;
        uncount(t, RC_OK);
    }
    if (t->paused || t->held || !t->delivered) {
        if (hold(t, own, last)) {
            if (t->delivered && !t->paused)
                turn_later(t);
            return;
        }
        rc_fail(&err, RC_NOMEM, "no memory to keep an answer until its reader takes it");
        ticket_end(t, &err, 0);
        return;
    }
    if (give(t, f) && last)
        finish(t);
}

void ticket_answer(struct worker *w, const Ipc__Frame *f, Ipc__Frame **own)
{
    struct sup_ticket *t = by_id(w->f, f->task);
    struct rc_err err = RC_ERR_INIT;
    bool last = false;

    if (!t || t->state != TICKET_SENT)
        return; /* cancelled or ended while this was on its way */
    if (t->w != w) {
        rc_fail(&err, RC_STATE, "an answer to another worker's task");
        worker_breach(w, &err);
        return;
    }
    if (sup_check_answer(&t->asked, f, w->loaded, &last, &err) != RC_OK) {
        worker_breach(w, &err);
        return;
    }
    if (f->body_case != IPC__FRAME__BODY_ERROR)
        count_answer(t, f);
    t->answered = true;
    if (last || t->asked.kind != IPC__FRAME__BODY_GENERATE || t->asked.stream) {
        t->delivered = true;
        free(t->packed);
        t->packed = NULL;
    } /* else nobody has seen anything of it before it is whole */
    w->n_answered += last;
    if (last)
        unlink_sent(t);
    else if (w->trial == t)
        w->trial = NULL; /* acquitted: the next suspect may go */
    if (f->body_case == IPC__FRAME__BODY_ERROR) {
        ipc_error_to(&err, f->error);
        ticket_end(t, &err,
                   err.code == RC_BUSY || err.code == RC_NOMEM || err.code == RC_WEIGHT_IO ||
                           err.code == RC_UNLOADING
                       ? RETRY_SOON_MS
                       : 0);
    } else {
        deliver(t, f, own, last);
    }
    if (last || !w->trial)
        after_sent(w);
}

void ticket_end(struct sup_ticket *t, const struct rc_err *err, uint32_t retry_after_ms)
{
    struct worker *w = t->state == TICKET_SENT ? t->w : NULL;

    if (t->state == TICKET_WAITING)
        unlink_waiting(t);
    else if (w)
        unlink_sent(t);
    t->state = TICKET_ENDED;
    if (!t->delivered)
        drop_held(t);
    uncount(t, err->code);
    if (!t->end_err && !(t->end_err = malloc(sizeof(*err))))
        abort(); /* an end that cannot be told would hang a client for ever */
    *t->end_err = *err;
    t->retry_after_ms = retry_after_ms;
    SUP_LOG(SUP_INFO, "task_failed", SUP_S("model", t->slot->id), SUP_S("request_id", t->req_id),
            SUP_S("code", rc_name(err->code)), SUP_I("retry_after_ms", retry_after_ms));
    turn_later(t);
}

static bool give_held(struct sup_ticket *t)
{
    while (t->held && t->delivered && !t->paused) {
        struct held *h = t->held;
        Ipc__Frame *f = h->frame;
        bool last = h->last;

        if (!(t->held = h->next))
            t->held_tail = &t->held;
        free(h);
        if (!give(t, f)) {
            ipc__frame__free_unpacked(f, NULL);
            return false;
        }
        ipc__frame__free_unpacked(f, NULL);
        if (last) {
            finish(t);
            return false;
        }
    }
    return true;
}

void ticket_turns(struct sup_fleet *f)
{
    while (!lnk_empty(&f->turns)) {
        struct sup_ticket *t = LNK_OF(f->turns.next, struct sup_ticket, turn);

        lnk_del(&t->turn);
        if (!give_held(t))
            continue;
        /* still paused with answers kept: the end waits behind them */
        if (t->end_err && !t->held)
            finish(t);
    }
}

/* ------------------------------------------------------------- crash, expiry */

static void death_of(struct sup_fleet *f, struct sup_ticket *t, bool alone,
                     const struct rc_err *weight_err, uint32_t retry_after_ms)
{
    struct sup_presence p = {t->delivered, t->deaths, alone};
    struct rc_err err = RC_ERR_INIT;

    if (weight_err) {
        ticket_end(t, weight_err, RETRY_SOON_MS);
        return;
    }
    switch (sup_poison_judge(&p)) {
    case SUP_POISONED:
        rc_fail(&err, RC_POISONED,
                "the model's worker died %u times with this request in work; it is not tried again",
                t->deaths + 1);
        ticket_end(t, &err, 0);
        return;
    case SUP_CRASHED:
        rc_fail(&err, RC_CRASHED, "the model's worker died in the middle of the answer");
        ticket_end(t, &err, retry_after_ms);
        return;
    case SUP_RETRY:
        if (retry_after_ms > SUP_WAIT_SHORT_MS) {
            rc_fail(&err, RC_CRASHED, "the model's worker died, and has died often lately");
            ticket_end(t, &err, retry_after_ms);
            return;
        }
        unlink_sent(t);
        drop_held(t); /* the beginning of a whole answer */
        sup_asked_again(&t->asked);
        t->answered = false;
        t->deaths++;
        link_waiting(t);
        sup_series_add(sup_series(f->metrics, SUP_M_TASK_RETRIES, t->slot->label, NULL), 1);
        SUP_LOG(SUP_WARN, "task_retry", SUP_S("model", t->slot->id), SUP_S("request_id", t->req_id),
                SUP_I("deaths", t->deaths));
    }
}

void ticket_deaths(struct sup_fleet *f, struct slot *s, struct worker *w,
                   const struct rc_err *weight_err, uint32_t retry_after_ms)
{
    bool alone = w->n_sent == 1;

    while (!lnk_empty(&w->sent))
        death_of(f, LNK_OF(w->sent.next, struct sup_ticket, lnk), alone, weight_err,
                 retry_after_ms);
}

/* Where a request is when its time is over. What the worker does with a task that
 * it has not answered yet only the worker knows: it ends such a task itself, with
 * its own words, unless it cannot. */
static const char *phase_of(const struct sup_ticket *t)
{
    const struct slot *s = t->slot;

    if (t->state == TICKET_SENT)
        return t->answered ? "while it was running: its answer had begun"
                           : "while it was with the worker: queued or running, not answered yet";
    if (t->deaths)
        return "while it waited to be tried again: the worker had died";
    return s->state == SUP_SLOT_READY || s->state == SUP_SLOT_BUSY
               ? "while it was queued"
               : "while it waited for the model "
                 "to be loaded";
}

static void expire_list(struct lnk *head, uint64_t now)
{
    for (struct lnk *l = head->next, *next; l != head; l = next) {
        struct sup_ticket *t = LNK_OF(l, struct sup_ticket, lnk);
        struct worker *w = t->w;
        struct rc_err err = RC_ERR_INIT;

        next = l->next;
        /* a worker ends what it has by itself, and knows the phase best */
        if (!t->deadline_us || t->deadline_us + (w ? WORKER_LAG_US : 0) > now)
            continue;
        rc_fail(&err, RC_DEADLINE, "the request's time was over %s", phase_of(t));
        if (w)
            worker_send_cancel(w, t->id);
        ticket_end(t, &err, 0);
    }
}

void ticket_expire(struct sup_fleet *f, struct slot *s)
{
    uint64_t now = now_us();

    expire_list(&s->suspects, now);
    expire_list(&s->waiting, now);
    if (s->w && s->w->n_sent) {
        expire_list(&s->w->sent, now);
        after_sent(s->w);
    }
}

void tickets_end_all(struct sup_fleet *f)
{
    struct rc_err err = RC_ERR_INIT;

    rc_fail(&err, RC_UNLOADING, "the server is shutting down");
    for (uint32_t i = 0; i < f->n_table; i++) {
        struct sup_ticket *t = f->table[i];

        if (!t || t->state == TICKET_ENDED)
            continue;
        if (t->w)
            worker_send_cancel(t->w, t->id);
        ticket_end(t, &err, RETRY_SOON_MS);
    }
}

/* --------------------------------------------------------------- public door */

static enum rc pack(struct sup_ticket *t, const struct sup_task *task, struct rc_err *err)
{
    size_t n;

    task->frame->task = t->id;
    n = ipc__frame__get_packed_size(task->frame);
    if (n > IPC_BODY_MAX)
        return rc_fail(err, RC_TOO_LARGE, "the request takes %zu bytes, at most %llu can be passed",
                       n, (unsigned long long)IPC_BODY_MAX);
    if (!(t->packed = malloc(n ? n : 1)))
        return rc_fail(err, RC_NOMEM, "no memory for a request of %zu bytes", n);
    t->n_packed = n;
    ipc__frame__pack(task->frame, t->packed);
    if (!sup_asked_from(&t->asked, task->frame))
        return rc_fail(err, RC_NOMEM, "no memory for a request");
    if (t->asked.kind == IPC__FRAME__BODY_GENERATE &&
        !(t->asked.finished = calloc((t->asked.n + 63) / 64, sizeof(uint64_t))))
        return rc_fail(err, RC_NOMEM, "no memory for a request");
    return RC_OK;
}

static enum rc ticket_new(struct sup_ticket **out, struct sup_fleet *f, struct slot *s,
                          const struct sup_task *task, struct rc_err *err)
{
    struct sup_ticket *t = calloc(1, sizeof(*t));
    enum rc rc;

    if (!t)
        return rc_fail(err, RC_NOMEM, "no memory for a request");
    lnk_init(&t->lnk);
    lnk_init(&t->turn);
    t->f = f;
    t->slot = s;
    t->held_tail = &t->held;
    t->on_frame = task->on_frame;
    t->on_end = task->on_end;
    t->user = task->user;
    t->deadline_us = task->deadline_us;
    t->born_us = now_us();
    snprintf(t->req_id, sizeof(t->req_id), "%s", task->req_id ? task->req_id : "");
    if (!id_take(f, t)) {
        free(t);
        return rc_fail(err, RC_BUSY, "too many requests are in work");
    }
    s->refs++;
    if ((rc = pack(t, task, err)) != RC_OK) {
        ticket_free(t);
        return rc;
    }
    *out = t;
    return RC_OK;
}

/* The disk was looked at a moment ago and no newer look is on its way. */
static bool list_fresh(const struct sup_fleet *f)
{
    return f->scanned && !f->stale && !f->scanning &&
           fleet_now_ms(f) - f->scan_ms < FLEET_SCAN_GAP_MS;
}

/* What a new ticket finds: sent at once, waits, or is refused with a reason. */
static void place(struct sup_fleet *f, struct slot *s, struct sup_ticket *t)
{
    uint64_t now = fleet_now_ms(f), left = s->until_ms > now ? s->until_ms - now : 0;
    struct rc_err err = RC_ERR_INIT;

    if (!s->listed && !s->w) { /* its files are not there; a fresh look decides */
        if (list_fresh(f)) {
            slot_files_changed(f, s);
            return;
        }
        fleet_scan(f);
    }
    switch (s->state) {
    case SUP_SLOT_READY:
    case SUP_SLOT_BUSY:
        ticket_pump(s);
        return;
    case SUP_SLOT_COOLING:
        if (left <= SUP_WAIT_SHORT_MS)
            break;
        rc_fail(&err, RC_BUSY,
                "model '%s' recovers from crashes of its worker, try again in %llu s", s->id,
                (unsigned long long)(left + 999) / 1000);
        ticket_end(t, &err, (uint32_t)left);
        return;
    case SUP_SLOT_FAILED:
        if (!s->permanent && left > 0) {
            ticket_end(t, &s->last_err, (uint32_t)left);
            return;
        }
        if (s->permanent && !s->check_files) {
            if (list_fresh(f)) {
                ticket_end(t, &s->last_err, 0);
                return;
            }
            s->check_files = true; /* a fresh look decides */
            fleet_scan(f);
        }
        break;
    default:
        break;
    }
    slot_want(f, s);
}

enum rc sup_fleet_submit(struct sup_fleet *f, const struct sup_task *task, struct sup_ticket **out,
                         struct rc_err *err)
{
    struct slot *s = fleet_slot(f, task->model);
    struct sup_ticket *t = NULL;
    enum rc rc;

    if (f->draining || f->refusing)
        return rc_fail(err, RC_UNLOADING, "the server is shutting down");
    if (!s && sup_id_valid(task->model) && !list_fresh(f) && f->n_slots < FLEET_SLOTS_MAX)
        s = slot_new(f, task->model); /* it may have been put there a moment ago */
    if (!s || (!s->listed && !s->w && !s->gone_ms && list_fresh(f)))
        return rc_fail_what(err, RC_NOT_FOUND, "model", "there is no such model");
    if (s->n_tasks >= f->conf->max_queue &&
        (task->probe || !queue_make_room(f, s, task->tenant ? task->tenant : "default",
                                         task->weight ? task->weight : 1))) {
        rc_fail_what(err, RC_BUSY, "max_queue",
                     "model '%s' has %u requests in work or waiting, the limit (max_queue)", s->id,
                     s->n_tasks);
        sup_series_add(sup_series(f->metrics, SUP_M_TASKS, s->label, "refused"), 1);
        return RC_BUSY;
    }
    if ((rc = ticket_new(&t, f, s, task, err)) != RC_OK)
        return rc;
    if (!queue_push(s, t, task)) {
        ticket_free(t);
        return rc_fail(err, RC_NOMEM, "no memory for a request");
    }
    if (s->n_tasks == 0)
        sup_pace_begin(&s->pace, fleet_now_ms(f));
    if (!task->probe)
        s->keep_ms = task->keep_alive ? *task->keep_alive : UINT64_MAX;
    t->counted = true;
    s->n_tasks++;
    f->n_tasks++;
    sup_series_set(s->m_active, s->n_tasks);
    fleet_tick_fast(f);
    link_waiting(t);
    *out = t;
    place(f, s, t);
    return RC_OK;
}

uint32_t sup_fleet_again_ms(struct sup_fleet *f, const char *model)
{
    const struct slot *s = fleet_slot(f, model);

    return s ? sup_pace_again_ms(&s->pace, s->n_tasks) : SUP_AGAIN_MIN_MS;
}

void sup_ticket_cancel(struct sup_ticket **pt)
{
    struct sup_ticket *t = pt ? *pt : NULL;
    struct worker *w;

    if (!t)
        return;
    *pt = NULL;
    if (t->cancelled)
        return;
    w = t->state == TICKET_SENT ? t->w : NULL;
    if (w) {
        unlink_sent(t);
        worker_send_cancel(w, t->id);
    } else if (t->state == TICKET_WAITING) {
        unlink_waiting(t);
    }
    if (t->state != TICKET_ENDED)
        uncount(t, RC_CANCELLED);
    t->state = TICKET_ENDED;
    if (t->in_callback)
        t->cancelled = true; /* freed when the callback returns */
    else
        ticket_free(t);
    if (w)
        after_sent(w);
}

void sup_ticket_pause(struct sup_ticket *t, bool paused)
{
    if (t->paused == paused)
        return;
    t->paused = paused;
    if (!paused && (t->held || t->end_err))
        turn_later(t);
}

bool sup_ticket_started(const struct sup_ticket *t)
{
    return t->was_sent;
}

const Ipc__Loaded *sup_ticket_model(const struct sup_ticket *t)
{
    return t->was_sent ? t->slot->info : NULL;
}
