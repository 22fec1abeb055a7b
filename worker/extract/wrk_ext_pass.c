/* wrk_ext_pass.c - windows of all waiting Extract tasks, in micro-batches.
 *
 * A micro-batch takes windows of all tasks as long as their rows fit the pass; a window's bits do
 * not depend on its neighbours (mdl.h). While a pass runs the channel is heard between layers: when
 * a task of it is cancelled or its time is over the pass ends, that task too, and the others'
 * windows are run again before those of tasks that came later. After a pass that failed its windows
 * are run one by one: only who fails alone has failed. Scores are read while the model gives them;
 * what reading comes to is its window's own.
 * Tests: tests/worker/test_wrk_engine_extract.c
 */
#include "wrk_ext_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_US 20000 /* between two looks around while a pass runs */

struct wrk_ext_room {
    uint32_t turn, n_in_pass, max_rows, width;
    struct wrk_ext_pick pick[WRK_EXTRACT_SEQS];
    struct mdl_extract_in in[WRK_EXTRACT_SEQS];
    struct wrk_reader reader[WRK_EXTRACT_SEQS];
    int32_t *ids;    /* [max_rows] */
    uint32_t *words; /* [max_rows + WRK_EXTRACT_SEQS]: a window has at most as many as rows */
};

static bool look(void *user);

enum rc wrk_extract_init(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_ext_room *r;

    if (!e->info->can_extract)
        return RC_OK;
    if ((e->extract = r = calloc(1, sizeof(*r))) == NULL)
        return rc_fail(err, RC_NOMEM, "an extracting engine");
    r->max_rows = mdl_encode_rows(e->o.mdl);
    if (r->max_rows < e->info->max_input_tokens)
        return rc_fail(err, RC_INTERNAL, "passes of %u rows for sequences of %u", r->max_rows,
                       e->info->max_input_tokens);
    r->width = e->info->span_words;
    r->ids = calloc(r->max_rows, sizeof(*r->ids));
    r->words = calloc((size_t)r->max_rows + WRK_EXTRACT_SEQS, sizeof(*r->words));
    if (r->ids == NULL || r->words == NULL)
        return rc_fail(err, RC_NOMEM, "windows of %u rows", r->max_rows);
    mdl_set_encode_stop(e->o.mdl, look, e);
    return RC_OK;
}

void wrk_extract_deinit(struct wrk_engine *e)
{
    if (e->extract == NULL)
        return;
    mdl_set_encode_stop(e->o.mdl, NULL, NULL);
    free(e->extract->ids);
    free(e->extract->words);
    free(e->extract);
    e->extract = NULL;
}

/* ---------------------------------------------------------------------- choosing */

static bool waits(const struct wrk_engine *e, const struct wrk_task *t)
{
    return t->extract != NULL && t->prepared && t != e->preparing;
}

static uint32_t rows_of(const struct wrk_extract *x, const struct wrk_ext_window *w)
{
    return (uint32_t)(wrk_ext_schema(x, w->item)->ids.n + w->view.ids.n);
}

static uint32_t words_of(const struct wrk_extract *x, const struct wrk_ext_window *w)
{
    return wrk_ext_schema(x, w->item)->n_prefix + (uint32_t)w->view.w.n;
}

/* Windows of one task, as long as they fit. */
static void choose_of(struct wrk_engine *e, struct wrk_task *t, uint32_t max_rows, uint32_t *n,
                      uint32_t *rows)
{
    struct wrk_ext_room *r = e->extract;
    struct wrk_extract *x = t->extract;

    for (uint32_t i = x->next; i < x->n_windows && *n < WRK_EXTRACT_SEQS; i++) {
        struct wrk_ext_window *w = x->window[i];

        if (w->done) {
            x->next += i == x->next;
            continue;
        }
        if (*n > 0 && (rows_of(x, w) > max_rows - *rows || w->alone || r->pick[0].window->alone))
            return;
        *rows += rows_of(x, w);
        r->pick[(*n)++] = (struct wrk_ext_pick){t, w};
        if (*rows >= max_rows) /* one window may be longer than a busy pass */
            return;
    }
}

static uint32_t choose(struct wrk_engine *e, uint32_t max_rows)
{
    uint32_t n_tasks = 0, skip, n = 0, rows = 0;
    bool again = false;

    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        again = again || (waits(e, t) && t->extract->again);
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        n_tasks += waits(e, t) && (!again || t->extract->again);
    if (n_tasks == 0)
        return 0;
    skip = e->extract->turn++ % n_tasks;
    for (int round = 0; round < 2; round++) {
        uint32_t k = 0;

        for (struct wrk_task *t = e->tasks; t != NULL && rows < max_rows; t = t->next)
            if (waits(e, t) && (!again || t->extract->again) && (k++ < skip) == (round == 1))
                choose_of(e, t, max_rows, &n, &rows);
    }
    return n;
}

/* ------------------------------------------------------------------------ ending */

/* Ends a task and takes its other windows out of this micro-batch. */
static enum rc fail_task(struct wrk_engine *e, uint32_t n, struct wrk_task *t,
                         const struct rc_err *why, struct rc_err *err)
{
    const struct rc_err mine = *why;

    for (uint32_t i = 0; i < n; i++)
        if (e->extract->pick[i].task == t)
            e->extract->pick[i].task = NULL;
    return wrk_task_end(e, t, &mine, err);
}

static bool is_over(const struct wrk_task *t)
{
    return t->cancelled || (t->deadline_us != 0 && t->deadline_us <= wrk_now_us());
}

/* Asked by the model between layers: shall the pass end? */
static bool look(void *user)
{
    struct wrk_engine *e = user;
    struct wrk_ext_room *r = e->extract;
    uint64_t now = wrk_now_us();
    enum rc rc;

    if (r->n_in_pass == 0 || now < e->pass_look_us)
        return false;
    e->pass_look_us = now + LOOK_US;
    rc = e->o.listen != NULL ? e->o.listen(e->o.listen_user, &e->pass_err) : RC_OK;
    if (rc != RC_OK && rc != RC_AGAIN) {
        e->pass_fatal = rc;
        return true;
    }
    for (uint32_t i = 0; i < r->n_in_pass; i++)
        if (is_over(r->pick[i].task))
            return true;
    return false;
}

/* Ends the tasks of the pass that are over; *ended: some were. */
static enum rc end_over(struct wrk_engine *e, uint32_t n, bool *ended, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        struct wrk_task *t = e->extract->pick[i].task;
        struct rc_err why = RC_ERR_INIT;

        if (t == NULL || !is_over(t))
            continue;
        if (t->cancelled)
            rc_fail(&why, RC_CANCELLED, "cancelled");
        else
            rc_fail(&why, RC_DEADLINE,
                    "the request's time was over while it was running: extracting");
        *ended = true;
        rc = fail_task(e, n, t, &why, err);
    }
    return rc;
}

/* ------------------------------------------------------------------------ hearing */

static bool finite_all(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static enum rc no_number(struct rc_err *why)
{
    return rc_fail(why, RC_INTERNAL, "the model computed a number that is not finite");
}

/* What reading a window's scores came to: its own failure, never the pass's. */
static enum rc keep(struct wrk_ext_window *w, enum rc rc, const struct rc_err *why)
{
    if (rc != RC_OK) {
        w->failed = *why;
        wrk_finds_deinit(&w->finds);
    }
    return RC_OK;
}

static enum rc hear_classes(void *user, uint32_t seq, uint32_t prompt, const float *x,
                            struct rc_err *err)
{
    struct wrk_ext_room *r = user;
    struct wrk_ext_window *w = r->pick[seq].window;
    struct rc_err why = RC_ERR_INIT;

    if (w->failed.code != RC_OK)
        return RC_OK;
    if (!finite_all(x, r->in[seq].prompts[prompt].n_fields))
        return keep(w, no_number(&why), &why);
    return keep(w, wrk_read_classes(&r->reader[seq], prompt, x, &why), &why);
}

static enum rc hear_count(void *user, uint32_t seq, uint32_t prompt, const float *x, uint32_t count,
                          struct rc_err *err)
{
    struct wrk_ext_room *r = user;
    struct rc_err why = RC_ERR_INIT;

    return finite_all(x, MDL_EXTRACT_COUNTS) ? RC_OK
                                             : keep(r->pick[seq].window, no_number(&why), &why);
}

static enum rc hear_spans(void *user, uint32_t seq, uint32_t prompt, uint32_t instance,
                          uint32_t field, const float *x, struct rc_err *err)
{
    struct wrk_ext_room *r = user;
    struct wrk_ext_window *w = r->pick[seq].window;
    struct rc_err why = RC_ERR_INIT;

    if (w->failed.code != RC_OK)
        return RC_OK;
    if (!isfinite(x[0])) /* the span of the first word: where one number is lost, all are */
        return keep(w, no_number(&why), &why);
    return keep(w, wrk_read_field(&r->reader[seq], prompt, instance, field, x, r->width, &why),
                &why);
}

/* ------------------------------------------------------------------------ a pass */

/* The i-th pick as a sequence; *rows, *words: room used so far. */
static void lay_out(struct wrk_engine *e, uint32_t i, uint32_t *rows, uint32_t *words)
{
    struct wrk_ext_room *r = e->extract;
    struct wrk_extract *x = r->pick[i].task->extract;
    struct wrk_ext_window *w = r->pick[i].window;
    const struct wrk_schema *s = wrk_ext_schema(x, w->item);
    int32_t *ids = r->ids + *rows;
    uint32_t *at = r->words + *words, k = 0;

    memcpy(ids, s->ids.ids, s->ids.n * sizeof(*ids));
    if (w->view.ids.n > 0)
        memcpy(ids + s->ids.n, w->view.ids.ids, w->view.ids.n * sizeof(*ids));
    for (; k < s->n_prefix; k++)
        at[k] = s->prefix[k];
    for (size_t j = 0; j <= w->view.w.n; j++)
        at[k + j] = (uint32_t)s->ids.n + w->view.row[j];
    r->in[i] = (struct mdl_extract_in){.ids = ids,
                                       .n_ids = rows_of(x, w),
                                       .marks = s->marks,
                                       .n_marks = s->n_marks,
                                       .prompts = s->ask,
                                       .n_prompts = s->n_prompts,
                                       .words = at,
                                       .n_words = words_of(x, w)};
    r->reader[i] = (struct wrk_reader){
        .schema = s, .view = &w->view, .threshold = x->q->threshold, .out = &w->finds};
    *rows += r->in[i].n_ids;
    *words += r->in[i].n_words + 1;
    w->failed = RC_ERR_INIT;
}

static enum rc run_pass(struct wrk_engine *e, uint32_t n, struct rc_err *why)
{
    struct wrk_ext_room *r = e->extract;
    const struct mdl_extract_out out = {r, hear_classes, hear_count, hear_spans};
    uint32_t rows = 0, words = 0;
    enum rc rc;

    for (uint32_t i = 0; i < n; i++) {
        lay_out(e, i, &rows, &words);
        r->pick[i].task->in_pass = true;
    }
    r->n_in_pass = n;
    e->pass_look_us = wrk_now_us() + LOOK_US;
    rc = mdl_extract(e->o.mdl, n, r->in, &out, why);
    r->n_in_pass = 0;
    for (uint32_t i = 0; i < n; i++) {
        r->pick[i].task->in_pass = false;
        wrk_reader_deinit(&r->reader[i]);
    }
    if (rc == RC_OK) {
        e->extracted.n_tokens += rows;
        e->extracted.n_windows += n;
        e->extracted.n_passes++;
    }
    return rc;
}

/* What a pass gave, or its failure, to its windows. */
static enum rc finish(struct wrk_engine *e, uint32_t n, enum rc failed, const struct rc_err *reason,
                      struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        struct wrk_ext_pick p = e->extract->pick[i];
        struct rc_err why = *reason;
        enum rc mine = failed;

        if (p.task == NULL)
            continue;
        p.task->extract->again = false;
        if (p.window->done) /* another window of its input failed */
            continue;
        if (mine == RC_OK && p.window->failed.code != RC_OK) {
            why = p.window->failed;
            mine = why.code;
        }
        if (mine == RC_OK)
            mine = wrk_ext_window_done(p.task->extract, p.window, &why);
        if (mine != RC_OK && wrk_ext_item_failed(p.task->extract, p.window->item, &why) != RC_OK)
            rc = fail_task(e, n, p.task, &why, err);
    }
    return rc;
}

/* The windows will be chosen again: what was found in them is forgotten. */
static void put_back(struct wrk_engine *e, uint32_t n, bool alone)
{
    for (uint32_t i = 0; i < n; i++) {
        struct wrk_ext_pick p = e->extract->pick[i];

        if (p.task == NULL)
            continue;
        wrk_finds_deinit(&p.window->finds);
        p.window->alone = alone;
        p.task->extract->again = true;
    }
}

static enum rc extract(struct wrk_engine *e, uint32_t n, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    bool ended = false;
    enum rc rc, failed = run_pass(e, n, &why);

    if (e->pass_fatal != RC_OK) {
        if (err != NULL)
            *err = e->pass_err;
        return e->pass_fatal;
    }
    if (failed != RC_OK && (rc = wrk_engine_lost(e, &why, err)) != RC_OK)
        return rc;
    if ((rc = end_over(e, n, &ended, err)) != RC_OK)
        return rc;
    if ((failed == RC_CANCELLED && ended) || (failed != RC_OK && n > 1)) {
        put_back(e, n, !ended);
        return RC_OK;
    }
    if (failed == RC_OK && mdl_guard(e->o.mdl, &why) != RC_OK) {
        /* the files changed while the pass read them: what it computed is nothing */
        for (uint32_t i = 0; i < n && rc == RC_OK; i++)
            if (e->extract->pick[i].task != NULL)
                rc = fail_task(e, n, e->extract->pick[i].task, &why, err);
        return rc;
    }
    return finish(e, n, failed, &why, err);
}

enum rc wrk_extract_step(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *next;
    uint32_t n;
    enum rc rc;

    if (e->extract == NULL)
        return RC_OK;
    if ((n = choose(e, e->extract->max_rows)) > 0 && (rc = extract(e, n, err)) != RC_OK)
        return rc;
    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        struct rc_err why = RC_ERR_INIT;

        next = t->next;
        if (!waits(e, t) || t->extract->n_done < t->extract->n)
            continue;
        e->extracted.n_spans += t->extract->n_spans;
        rc = wrk_ext_send(e, t, &why);
        if ((rc = wrk_task_sent(e, t, rc, &why, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}
