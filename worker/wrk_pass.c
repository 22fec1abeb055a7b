/* wrk_pass.c - one pass of an encoder: choosing, running, ending.
 *
 * While a pass runs the channel is heard between layers: when a task of it is cancelled or its
 * time is over the pass ends, that task too, and the others' items are run again before those of
 * tasks that came later, so that nobody can hold up another again and again. After a pass that
 * failed its items are run again one by one: only who fails alone has failed. Knows tasks, and
 * nothing of what their items are.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c, test_wrk_engine_rerank.c,
 * test_wrk_engine_extract.c
 */
#include "wrk_engine_impl.h"

#include <stdlib.h>

#define LOOK_US 20000 /* between two looks around while a pass runs */

enum rc wrk_pass_init(struct wrk_engine *e, uint32_t cap, struct rc_err *err)
{
    e->pass.cap = cap;
    if ((e->pass.pick = calloc(cap, sizeof(*e->pass.pick))) == NULL)
        return rc_fail(err, RC_NOMEM, "passes of %u sequences", cap);
    mdl_set_encode_stop(e->o.mdl, wrk_pass_look, e);
    return RC_OK;
}

void wrk_pass_deinit(struct wrk_engine *e)
{
    if (e->pass.cap > 0)
        mdl_set_encode_stop(e->o.mdl, NULL, NULL);
    free(e->pass.pick);
    e->pass = (struct wrk_pass){0};
}

/* ---------------------------------------------------------------------- choosing */

bool wrk_pass_waits(const struct wrk_engine *e, const struct wrk_task *t,
                    const struct wrk_pass_kind *k)
{
    return k->has(t) && t->prepared && t != e->preparing;
}

bool wrk_pass_fits(const struct wrk_pass *p, uint32_t n_rows, uint32_t max_rows)
{
    return p->n == 0 || (p->n_rows < max_rows && n_rows <= max_rows - p->n_rows);
}

void wrk_pass_add(struct wrk_pass *p, struct wrk_task *t, void *item, uint32_t n_rows)
{
    p->pick[p->n++] = (struct wrk_pick){t, item};
    p->n_rows += n_rows;
}

/* Fills pick[] from all tasks, beginning with another one each time. */
static void choose(struct wrk_engine *e, const struct wrk_pass_kind *k, uint32_t max_rows)
{
    struct wrk_pass *p = &e->pass;
    uint32_t n_tasks = 0, skip;
    bool again = false;

    p->n = p->n_rows = 0;
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        again = again || (wrk_pass_waits(e, t, k) && t->again);
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        n_tasks += wrk_pass_waits(e, t, k) && (!again || t->again);
    if (n_tasks == 0)
        return;
    skip = p->turn++ % n_tasks;
    for (int round = 0; round < 2; round++) {
        uint32_t i = 0;

        for (struct wrk_task *t = e->tasks; t != NULL; t = t->next)
            if (wrk_pass_waits(e, t, k) && (!again || t->again) && (i++ < skip) == (round == 1))
                k->choose(e, t, max_rows);
    }
}

/* ------------------------------------------------------------------------ ending */

static bool is_over(const struct wrk_task *t)
{
    return t->cancelled || (t->deadline_us != 0 && t->deadline_us <= wrk_now_us());
}

bool wrk_pass_look(void *user)
{
    struct wrk_engine *e = user;
    struct wrk_pass *p = &e->pass;
    uint64_t now = wrk_now_us();
    enum rc rc;

    if (p->n_running == 0 || now < p->look_us)
        return false;
    p->look_us = now + LOOK_US;
    rc = e->o.listen != NULL ? e->o.listen(e->o.listen_user, &p->err) : RC_OK;
    if (rc != RC_OK && rc != RC_AGAIN) {
        p->fatal = rc;
        return true;
    }
    for (uint32_t i = 0; i < p->n_running; i++)
        if (is_over(p->pick[i].task))
            return true;
    return false;
}

/* Ends a task and takes its other picks out of this pass. */
static enum rc fail_task(struct wrk_engine *e, struct wrk_task *t, const struct rc_err *why,
                         struct rc_err *err)
{
    struct rc_err mine = *why;

    for (uint32_t i = 0; i < e->pass.n; i++)
        if (e->pass.pick[i].task == t)
            e->pass.pick[i].task = NULL;
    wrk_decide_explain(t, &mine);
    wrk_rerank_explain(t, &mine);
    return wrk_task_end(e, t, &mine, err);
}

/* Ends the tasks of the pass that are over; *ended: some were. */
static enum rc end_over(struct wrk_engine *e, const struct wrk_pass_kind *k, bool *ended,
                        struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < e->pass.n && rc == RC_OK; i++) {
        struct wrk_task *t = e->pass.pick[i].task;
        struct rc_err why = RC_ERR_INIT;

        if (t == NULL || !is_over(t))
            continue;
        if (t->cancelled)
            rc_fail(&why, RC_CANCELLED, "cancelled");
        else
            rc_fail(&why, RC_DEADLINE, "the request's time was over while it was running: %s",
                    k->doing);
        *ended = true;
        rc = fail_task(e, t, &why, err);
    }
    return rc;
}

/* The files changed while the pass read them: what it computed is nothing. */
static enum rc fail_all(struct wrk_engine *e, const struct rc_err *why, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < e->pass.n && rc == RC_OK; i++)
        if (e->pass.pick[i].task != NULL)
            rc = fail_task(e, e->pass.pick[i].task, why, err);
    return rc;
}

static void put_back(struct wrk_engine *e, const struct wrk_pass_kind *k, bool alone)
{
    for (uint32_t i = 0; i < e->pass.n; i++)
        if (e->pass.pick[i].task != NULL) {
            e->pass.pick[i].task->again = true;
            k->put_back(&e->pass.pick[i], alone);
        }
}

/* What the pass gave, or its failure, to its items. */
static enum rc give(struct wrk_engine *e, const struct wrk_pass_kind *k,
                    const struct rc_err *failed, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < e->pass.n && rc == RC_OK; i++) {
        struct wrk_task *t = e->pass.pick[i].task;
        struct rc_err why = *failed;

        if (t == NULL)
            continue;
        t->again = false;
        if (k->give(e, i, &why) != RC_OK)
            rc = fail_task(e, t, &why, err);
    }
    return rc;
}

static enum rc run(struct wrk_engine *e, const struct wrk_pass_kind *k, struct rc_err *why)
{
    struct wrk_pass *p = &e->pass;
    enum rc rc;

    for (uint32_t i = 0; i < p->n; i++)
        p->pick[i].task->in_pass = true;
    p->n_running = p->n;
    p->look_us = wrk_now_us() + LOOK_US;
    rc = k->run(e, why);
    p->n_running = 0;
    for (uint32_t i = 0; i < p->n; i++)
        p->pick[i].task->in_pass = false;
    return rc;
}

enum rc wrk_pass_step(struct wrk_engine *e, const struct wrk_pass_kind *k, uint32_t max_rows,
                      struct rc_err *err)
{
    struct wrk_pass *p = &e->pass;
    struct rc_err why = RC_ERR_INIT;
    bool ended = false;
    enum rc rc, failed;

    choose(e, k, max_rows);
    if (p->n == 0)
        return RC_OK;
    failed = run(e, k, &why);
    if (p->fatal != RC_OK) {
        if (err != NULL)
            *err = p->err;
        return p->fatal;
    }
    if (failed != RC_OK && (rc = wrk_engine_lost(e, &why, err)) != RC_OK)
        return rc;
    if ((rc = end_over(e, k, &ended, err)) != RC_OK)
        return rc;
    if ((failed == RC_CANCELLED && ended) || (failed != RC_OK && p->n > 1)) {
        put_back(e, k, !ended);
        return RC_OK;
    }
    if (failed == RC_OK && mdl_guard(e->o.mdl, &why) != RC_OK)
        return fail_all(e, &why, err);
    return give(e, k, &why, err);
}
