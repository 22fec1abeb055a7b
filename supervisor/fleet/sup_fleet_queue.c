/* sup_fleet_queue.c - who waits for a model, who is sent to its worker next, and who must
 * make room.
 *
 * Three lanes a slot, since they wait for different things: sequences of a decoder, passes
 * of an encoder, and work on texts alone. Each is a fair queue (sup_fair.h) with a window:
 * what the worker can run together and a little more, so that who comes next is decided
 * here, as late as possible, and no tenant fills the worker's own queue.
 *
 * Always true: a ticket that is counted in its slot is in one lane's queue, waiting exactly
 * while it is in the slot's list `waiting`; worker->out is the sum over its sent tickets.
 * Change freely: windows_of. Tests: tests/supervisor/test_sup_fleet_queue.c,
 * test_sup_fleet_policy.c (the windows), test_sup_fair.c (the order)
 */
#include "sup_fleet_impl.h"

#include "sup_cost.h"

#define ANSWER_GUESS 256 /* tokens of an answer that are charged before it is known */
#define PASS_ROWS 8192   /* of an encoder's pass, at most */
#define PASS_LEAST 2048  /* tokens that an encoder is given ahead in any case */

static enum fleet_lane lane_of(Ipc__Frame__BodyCase kind)
{
    switch (kind) {
    case IPC__FRAME__BODY_GENERATE:
        return LANE_SEQ;
    case IPC__FRAME__BODY_TOKENIZE:
    case IPC__FRAME__BODY_DETOKENIZE:
    case IPC__FRAME__BODY_CHUNK:
    case IPC__FRAME__BODY_ECHO:
        return LANE_TEXT;
    default:
        return LANE_PASS;
    }
}

static struct sup_window_most window_of(const struct worker *w, enum fleet_lane lane)
{
    const struct sup_conf *c = w->f->conf;
    const Ipc__Loaded *l = w->loaded;
    uint32_t seqs = l && l->max_seqs ? l->max_seqs : (uint32_t)c->max_seqs;
    uint64_t rows = l && l->ctx_tokens > c->batch_tokens ? l->ctx_tokens : c->batch_tokens;

    rows = rows < PASS_ROWS ? rows : PASS_ROWS;
    switch (lane) {
    case LANE_SEQ:
        return sup_window_seqs(seqs);
    case LANE_PASS:
        return sup_window_pass(rows * 2 > PASS_LEAST ? rows * 2 : PASS_LEAST);
    default:
        return sup_window_text();
    }
}

/* ---------------------------------------------------------------------- items */

bool queue_push(struct slot *s, struct sup_ticket *t, const struct sup_task *task)
{
    struct sup_cost c = sup_cost_asked(task->frame);
    uint64_t answer = c.answer;

    t->lane = lane_of(task->frame->body_case);
    t->units = c.prompt;
    if (t->lane == LANE_SEQ) {
        t->units = task->frame->generate->n;
        answer = answer < ANSWER_GUESS * t->units ? answer : ANSWER_GUESS * t->units;
    }
    c.answer = answer;
    return sup_fair_push(&s->lane[t->lane], &t->fair, task->tenant ? task->tenant : "default",
                         task->weight ? task->weight : 1, sup_cost_all(&c));
}

struct sup_ticket *queue_next(struct worker *w)
{
    static const enum fleet_lane order[FLEET_LANES] = {LANE_TEXT, LANE_SEQ, LANE_PASS};

    for (size_t i = 0; i < FLEET_LANES; i++) {
        struct sup_fair_item *it = sup_fair_first(&w->slot->lane[order[i]]);
        struct sup_window_most most;
        struct sup_fair_view v;
        struct sup_ticket *t;

        if (!it)
            continue;
        t = LNK_OF(it, struct sup_ticket, fair);
        most = window_of(w, order[i]);
        sup_fair_of(it, &v);
        if (sup_window_fits(&w->out_window[order[i]], t->units, v.n_taken, &most))
            return t;
    }
    return NULL;
}

static uint64_t units_in(const struct worker *w, const struct sup_ticket *t)
{
    struct sup_window_most most = window_of(w, t->lane);

    return t->units < most.each ? t->units : most.each;
}

void queue_sent(struct worker *w, struct sup_ticket *t)
{
    struct sup_window *out = &w->out_window[t->lane];

    if (t->fair.waiting)
        sup_fair_take(&t->slot->lane[t->lane], &t->fair);
    t->units_sent = units_in(w, t);
    out->units += t->units_sent;
    out->tasks++;
}

void queue_back(struct worker *w, struct sup_ticket *t)
{
    struct sup_window *out = &w->out_window[t->lane];

    FLEET_MUST(out->tasks > 0 && out->units >= t->units_sent);
    out->tasks--;
    out->units -= t->units_sent;
}

void queue_told(struct sup_ticket *t, const Ipc__Frame *f)
{
    struct sup_cost c;

    if (!sup_cost_told(f, &c))
        return;
    c.prompt -= c.cached; /* what was not computed took nothing from others */
    sup_fair_settle(&t->slot->lane[t->lane], &t->fair, sup_cost_all(&c));
}

void queue_leave(struct sup_ticket *t)
{
    sup_fair_leave(&t->slot->lane[t->lane], &t->fair);
}

void queue_deinit(struct slot *s)
{
    for (size_t i = 0; i < FLEET_LANES; i++)
        sup_fair_deinit(&s->lane[i]);
}

/* --------------------------------------------------------------------- places */

/* A tenant's tasks in all lanes, and the newest that waits in the lane where most do. */
struct places {
    const char *tenant;
    uint32_t weight;
    size_t n, n_waiting;
    struct sup_fair_item *newest;
};

static void places_of(const struct slot *s, const char *tenant, struct places *out)
{
    struct sup_fair_view v;

    *out = (struct places){.tenant = tenant};
    for (size_t i = 0; i < FLEET_LANES; i++) {
        if (!sup_fair_find(&s->lane[i], tenant, &v))
            continue;
        out->n += v.n_waiting + v.n_taken;
        out->weight = v.weight;
        if (v.n_waiting <= out->n_waiting)
            continue;
        out->n_waiting = v.n_waiting;
        out->newest = v.newest;
    }
}

static bool in_earlier_lane(const struct slot *s, size_t lane, const char *tenant)
{
    struct sup_fair_view v;

    for (size_t i = 0; i < lane; i++)
        if (sup_fair_find(&s->lane[i], tenant, &v))
            return true;
    return false;
}

/* Weights of all who have tasks here, less the one called `but`. */
static uint64_t weights(const struct slot *s, const char *but)
{
    const struct sup_fair_flow *at = NULL;
    struct sup_fair_view v;
    uint64_t sum = 0;

    for (size_t i = 0; i < FLEET_LANES; i++, at = NULL)
        while ((at = sup_fair_next(&s->lane[i], at, &v)))
            if (strcmp(v.tenant, but) != 0 && !in_earlier_lane(s, i, v.tenant))
                sum += v.weight;
    return sum;
}

/* Of those with more than their share and someone waiting, the one with most. */
static struct sup_fair_item *victim(const struct slot *s, const char *but, uint64_t max,
                                    uint64_t all)
{
    const struct sup_fair_flow *at = NULL;
    struct sup_fair_item *newest = NULL;
    struct sup_fair_view v;
    struct places p;
    size_t most = 0;

    for (size_t i = 0; i < FLEET_LANES; i++, at = NULL)
        while ((at = sup_fair_next(&s->lane[i], at, &v))) {
            if (strcmp(v.tenant, but) == 0)
                continue;
            places_of(s, v.tenant, &p);
            if (!p.newest || p.n <= most || p.n * all <= max * p.weight)
                continue;
            most = p.n;
            newest = p.newest;
        }
    return newest;
}

bool queue_make_room(struct sup_fleet *f, struct slot *s, const char *tenant, uint32_t weight)
{
    const uint64_t max = f->conf->max_queue;
    struct rc_err err = RC_ERR_INIT;
    struct sup_fair_item *newest;
    struct places mine;
    uint64_t all;

    places_of(s, tenant, &mine);
    all = weights(s, tenant) + weight;
    if ((mine.n + 1) * all > max * weight || !(newest = victim(s, tenant, max, all)))
        return false;
    rc_fail_what(&err, RC_BUSY, "max_queue",
                 "model '%s' has %u requests in work or waiting, the limit (max_queue), and this "
                 "was the newest of the tenant with most of them: try again later",
                 s->id, s->n_tasks);
    SUP_LOG(SUP_INFO, "queue_share", SUP_S("model", s->id), SUP_S("for", tenant));
    ticket_end(LNK_OF(newest, struct sup_ticket, fair), &err,
               sup_pace_again_ms(&s->pace, s->n_tasks));
    return true;
}
