/* wrk_ext_pass.c - windows of all waiting Extract tasks, in micro-batches.
 *
 * A micro-batch takes windows of all tasks as long as their rows fit the pass; a window's bits do
 * not depend on its neighbours (mdl.h). How a pass ends is wrk_pass.c's: windows of one that was
 * ended are run again, and what was found in them is forgotten. Scores are read while the model
 * gives them; what reading comes to is its window's own.
 * Tests: tests/worker/test_wrk_engine_extract.c
 */
#include "wrk_ext_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct wrk_ext_room {
    uint32_t max_rows, width;
    struct mdl_extract_in in[WRK_EXTRACT_SEQS];
    struct wrk_reader reader[WRK_EXTRACT_SEQS];
    int32_t *ids;             /* [max_rows] */
    struct mdl_tok_stop stop; /* of the pass */
    uint32_t *words; /* [max_rows + WRK_EXTRACT_SEQS]: a window has at most as many as rows */
};

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
    r->stop = (struct mdl_tok_stop){wrk_pass_look, e};
    r->ids = calloc(r->max_rows, sizeof(*r->ids));
    r->words = calloc((size_t)r->max_rows + WRK_EXTRACT_SEQS, sizeof(*r->words));
    if (r->ids == NULL || r->words == NULL)
        return rc_fail(err, RC_NOMEM, "windows of %u rows", r->max_rows);
    return wrk_pass_init(e, WRK_EXTRACT_SEQS, err);
}

void wrk_extract_deinit(struct wrk_engine *e)
{
    if (e->extract == NULL)
        return;
    free(e->extract->ids);
    free(e->extract->words);
    free(e->extract);
    e->extract = NULL;
}

/* ---------------------------------------------------------------------- choosing */

static bool has(const struct wrk_task *t)
{
    return t->extract != NULL;
}

static struct wrk_ext_window *window_of(const struct wrk_engine *e, uint32_t pick)
{
    return e->pass.pick[pick].item;
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
static void choose(struct wrk_engine *e, struct wrk_task *t, uint32_t max_rows)
{
    struct wrk_extract *x = t->extract;
    struct wrk_pass *p = &e->pass;

    for (uint32_t i = x->next; i < x->n_windows && p->n < p->cap; i++) {
        struct wrk_ext_window *w = x->window[i];

        if (w->done) {
            x->next += i == x->next;
            continue;
        }
        if (!wrk_pass_fits(p, rows_of(x, w), max_rows) ||
            (p->n > 0 && (w->alone || window_of(e, 0)->alone)))
            return;
        wrk_pass_add(p, t, w, rows_of(x, w));
    }
}

static void put_back(struct wrk_pick *p, bool alone)
{
    struct wrk_ext_window *w = p->item;

    wrk_finds_deinit(&w->finds);
    w->alone = alone;
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

/* What reading a window's scores came to: its own failure, never the pass's, unless that was
 * stopped. */
static enum rc keep(struct wrk_ext_window *w, enum rc rc, const struct rc_err *why,
                    struct rc_err *err)
{
    if (rc == RC_CANCELLED)
        return rc_fail(err, rc, "%s", why->msg);
    if (rc != RC_OK) {
        w->failed = *why;
        wrk_finds_deinit(&w->finds);
    }
    return RC_OK;
}

static enum rc hear_classes(void *user, uint32_t seq, uint32_t prompt, const float *x,
                            struct rc_err *err)
{
    const struct wrk_engine *e = user;
    struct wrk_ext_room *r = e->extract;
    struct wrk_ext_window *w = window_of(e, seq);
    struct rc_err why = RC_ERR_INIT;

    if (w->failed.code != RC_OK)
        return RC_OK;
    if (!finite_all(x, r->in[seq].prompts[prompt].n_fields))
        return keep(w, no_number(&why), &why, err);
    return keep(w, wrk_read_classes(&r->reader[seq], prompt, x, &why), &why, err);
}

static enum rc hear_count(void *user, uint32_t seq, uint32_t prompt, const float *x, uint32_t count,
                          struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;

    return finite_all(x, MDL_EXTRACT_COUNTS)
               ? RC_OK
               : keep(window_of(user, seq), no_number(&why), &why, err);
}

static enum rc hear_spans(void *user, uint32_t seq, uint32_t prompt, uint32_t instance,
                          uint32_t field, const float *x, struct rc_err *err)
{
    const struct wrk_engine *e = user;
    struct wrk_ext_room *r = e->extract;
    struct wrk_ext_window *w = window_of(e, seq);
    struct rc_err why = RC_ERR_INIT;

    if (w->failed.code != RC_OK)
        return RC_OK;
    if (!isfinite(x[0])) /* the span of the first word: where one number is lost, all are */
        return keep(w, no_number(&why), &why, err);
    return keep(w, wrk_read_field(&r->reader[seq], prompt, instance, field, x, r->width, &why),
                &why, err);
}

/* ------------------------------------------------------------------------ a pass */

/* The i-th pick as a sequence; *rows, *words: room used so far. */
static void lay_out(struct wrk_engine *e, uint32_t i, uint32_t *rows, uint32_t *words)
{
    struct wrk_ext_room *r = e->extract;
    struct wrk_extract *x = e->pass.pick[i].task->extract;
    struct wrk_ext_window *w = window_of(e, i);
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
    r->reader[i] = (struct wrk_reader){.schema = s,
                                       .view = &w->view,
                                       .threshold = x->q->threshold,
                                       .out = &w->finds,
                                       .stop = &r->stop};
    *rows += r->in[i].n_ids;
    *words += r->in[i].n_words + 1;
    w->failed = RC_ERR_INIT;
}

static enum rc run(struct wrk_engine *e, struct rc_err *why)
{
    struct wrk_ext_room *r = e->extract;
    const struct mdl_extract_out out = {e, hear_classes, hear_count, hear_spans};
    uint32_t n = e->pass.n, rows = 0, words = 0;
    enum rc rc;

    for (uint32_t i = 0; i < n; i++)
        lay_out(e, i, &rows, &words);
    rc = mdl_extract(e->o.mdl, n, r->in, &out, why);
    for (uint32_t i = 0; i < n; i++)
        wrk_reader_deinit(&r->reader[i]);
    if (rc == RC_OK) {
        e->extracted.n_tokens += rows;
        e->extracted.n_windows += n;
        e->extracted.n_passes++;
    }
    return rc;
}

static enum rc give(struct wrk_engine *e, uint32_t i, struct rc_err *why)
{
    struct wrk_extract *x = e->pass.pick[i].task->extract;
    struct wrk_ext_window *w = window_of(e, i);

    if (w->done) /* another window of its input failed */
        return RC_OK;
    if (why->code == RC_OK)
        *why = w->failed;
    if (why->code == RC_OK && wrk_ext_window_done(x, w, why) == RC_OK)
        return RC_OK;
    return wrk_ext_item_failed(x, w->item, why);
}

static const struct wrk_pass_kind kind = {
    .doing = "extracting",
    .has = has,
    .choose = choose,
    .run = run,
    .put_back = put_back,
    .give = give,
};

enum rc wrk_extract_step(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *next;
    enum rc rc;

    if (e->extract == NULL)
        return RC_OK;
    if ((rc = wrk_pass_step(e, &kind, e->extract->max_rows, err)) != RC_OK)
        return rc;
    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        struct rc_err why = RC_ERR_INIT;

        next = t->next;
        if (!wrk_pass_waits(e, t, &kind) || t->extract->n_done < t->extract->n)
            continue;
        e->extracted.n_spans += t->extract->n_spans;
        rc = wrk_ext_send(e, t, &why);
        if ((rc = wrk_task_sent(e, t, rc, &why, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}
