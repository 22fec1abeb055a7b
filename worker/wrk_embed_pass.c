/* wrk_embed_pass.c - items of all waiting tasks, encoded in micro-batches.
 *
 * A micro-batch takes items of all waiting tasks, shortest first within a task and items with
 * files behind the texts, as long as their rows fit the pass; a batch is never refused because of
 * its sum, only an item because of itself. A row's bits do not depend on its neighbours (be.h).
 *
 * While a pass runs the channel is heard between layers: when a task of it is cancelled or its
 * time is over the pass ends, that task too, and the others' items are run again before those of
 * tasks that came later, so that nobody can hold up another again and again. After a pass that
 * failed its items are run again one by one: only who fails alone has failed.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c, test_wrk_engine_rerank.c
 */
#include "wrk_embed_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_US 20000 /* between two looks around while a pass runs */

static bool look(void *user);

enum rc wrk_embed_init(struct wrk_engine *e, struct rc_err *err)
{
    const struct mdl_info *i = e->info;

    if (!i->can_embed && !i->can_rerank)
        return RC_OK;
    e->encode_dim = mdl_encode_dim(e->o.mdl);
    e->max_embed_seqs = mdl_encode_max_seqs(e->o.mdl);
    e->embed_rows = mdl_encode_rows(e->o.mdl);
    if (e->max_embed_seqs == 0 || e->encode_dim == 0 || e->embed_rows < i->max_input_tokens)
        return rc_fail(err, RC_INTERNAL, "passes of %u rows in %u sequences, inputs of %u tokens",
                       e->embed_rows, e->max_embed_seqs, i->max_input_tokens);
    e->embed_ids = calloc(e->embed_rows, sizeof(*e->embed_ids));
    e->embed_offsets = calloc((size_t)e->max_embed_seqs + 1, sizeof(*e->embed_offsets));
    e->embed_out = calloc((size_t)e->max_embed_seqs * e->encode_dim, sizeof(float));
    e->pick = calloc(e->max_embed_seqs, sizeof(*e->pick));
    if (i->can_sparse)
        e->embed_weights = calloc(e->embed_rows, sizeof(float));
    if (i->token_dim > 0)
        e->embed_vectors = calloc((size_t)e->embed_rows * i->token_dim, sizeof(float));
    mdl_set_encode_stop(e->o.mdl, look, e);
    if (e->embed_ids == NULL || e->embed_offsets == NULL || e->embed_out == NULL ||
        e->pick == NULL || (i->can_sparse && e->embed_weights == NULL) ||
        (i->token_dim > 0 && e->embed_vectors == NULL))
        return rc_fail(err, RC_NOMEM, "embedding batch of %u sequences", e->max_embed_seqs);
    return RC_OK;
}

void wrk_embed_deinit(struct wrk_engine *e)
{
    if (e->encode_dim > 0)
        mdl_set_encode_stop(e->o.mdl, NULL, NULL);
    free(e->embed_ids);
    free(e->embed_offsets);
    free(e->embed_out);
    free(e->embed_weights);
    free(e->embed_vectors);
    free(e->pick);
}

/* ------------------------------------------------------------------- encoding */

/* An Embed or Rerank task, or a Decide task that has texts to encode. One whose next file is just
 * being decoded has its turn later: it may end then. */
static bool waits(const struct wrk_engine *e, const struct wrk_task *t)
{
    return t->embed != NULL && t->prepared && t != e->preparing;
}

/* Picks of one task, as long as they fit. */
static void choose_of(struct wrk_engine *e, struct wrk_task *t, uint32_t max_rows, uint32_t *n,
                      uint32_t *rows)
{
    struct wrk_embed *m = t->embed;

    if (!wrk_tokens_begin(e, m))
        return;
    while (*n < e->max_embed_seqs) {
        bool is_text = m->next < m->n_order;
        uint32_t *next = is_text ? &m->next : &m->media_next;
        struct wrk_item *it;

        if (!is_text && m->media_next == m->media_read)
            return;
        it = is_text ? m->order[m->next] : m->media_order[m->media_next];
        if (!it->done && *n > 0 &&
            (*rows + it->n > max_rows || it->alone || e->pick[0].item->alone))
            return; /* alone it always fits: wrk_embed_item_take checked */
        (*next)++;
        if (it->done) /* its file could not be decoded */
            continue;
        *rows += it->n;
        e->pick[(*n)++] = (struct wrk_embed_pick){t, it};
    }
}

/* Fills pick[] from all tasks, beginning with another one each time. */
static uint32_t choose(struct wrk_engine *e, uint32_t max_rows)
{
    uint32_t n_tasks = 0, skip, n = 0, rows = 0;
    bool again = false;

    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        again = again || (waits(e, t) && t->embed->again);
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        n_tasks += waits(e, t) && (!again || t->embed->again);
    if (n_tasks == 0)
        return 0;
    skip = e->embed_turn++ % n_tasks;
    for (int round = 0; round < 2; round++) {
        uint32_t k = 0;

        for (struct wrk_task *t = e->tasks; t != NULL; t = t->next)
            if (waits(e, t) && (!again || t->embed->again) && (k++ < skip) == (round == 1))
                choose_of(e, t, max_rows, &n, &rows);
    }
    return n;
}

/* Cuts to dim values and, if that cut something, brings back to length 1. */
static bool store(const float *v, uint32_t full, float *out, uint32_t dim)
{
    double sum = 0;
    float scale;

    for (uint32_t i = 0; i < dim; i++) {
        if (!isfinite(v[i]))
            return false;
        sum += (double)v[i] * (double)v[i];
    }
    scale = dim < full && sum > 0 ? (float)(1 / sqrt(sum)) : 1;
    for (uint32_t i = 0; i < dim; i++)
        out[i] = scale == 1 ? v[i] : v[i] * scale;
    return true;
}

/* Ends complete Embed tasks; complete rounds of Decide tasks are theirs. */
static enum rc end_complete(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *next;
    enum rc rc;

    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        struct rc_err why = RC_ERR_INIT;

        next = t->next;
        if (!waits(e, t) || t->embed->n_done < t->embed->n)
            continue;
        if (t->decide != NULL) {
            wrk_decide_embedded(e, t);
            continue;
        }
        e->n_answered++;
        rc = t->rerank != NULL ? wrk_rerank_send(e, t, &why) : wrk_embed_send(e, t, &why);
        if ((rc = wrk_task_sent(e, t, rc, &why, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* Ends a task and takes its other picks out of this micro-batch. */
static enum rc fail_task(struct wrk_engine *e, uint32_t n, struct wrk_task *t,
                         const struct rc_err *why, struct rc_err *err)
{
    struct rc_err mine = *why;

    for (uint32_t i = 0; i < n; i++)
        if (e->pick[i].task == t)
            e->pick[i].task = NULL;
    wrk_decide_explain(t, &mine);
    wrk_rerank_explain(t, &mine);
    return wrk_task_end(e, t, &mine, err);
}

/* ---------------------------------------------------------------- a pass that ends early */

static bool is_over(const struct wrk_task *t)
{
    return t->cancelled || (t->deadline_us != 0 && t->deadline_us <= wrk_now_us());
}

/* Asked by the model between layers: shall the pass end? */
static bool look(void *user)
{
    struct wrk_engine *e = user;
    uint64_t now = wrk_now_us();
    enum rc rc;

    if (e->n_in_pass == 0 || now < e->pass_look_us)
        return false;
    e->pass_look_us = now + LOOK_US;
    rc = e->o.listen != NULL ? e->o.listen(e->o.listen_user, &e->pass_err) : RC_OK;
    if (rc != RC_OK && rc != RC_AGAIN) {
        e->pass_fatal = rc;
        return true;
    }
    for (uint32_t i = 0; i < e->n_in_pass; i++)
        if (is_over(e->pick[i].task))
            return true;
    return false;
}

/* The item will be chosen again. */
static void put_back(struct wrk_embed *m, struct wrk_item *it, bool alone)
{
    uint32_t *next = it->media != NULL ? &m->media_next : &m->next;

    if (it->at < *next)
        *next = it->at;
    m->again = true;
    it->alone = alone;
}

/* Ends the tasks of the pass that are over; *ended: some were. */
static enum rc end_over(struct wrk_engine *e, uint32_t n, bool *ended, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        struct wrk_task *t = e->pick[i].task;
        struct rc_err why = RC_ERR_INIT;

        if (t == NULL || !is_over(t))
            continue;
        if (t->cancelled)
            rc_fail(&why, RC_CANCELLED, "cancelled");
        else
            rc_fail(&why, RC_DEADLINE,
                    "the request's time was over while it was running: embedding");
        *ended = true;
        rc = fail_task(e, n, t, &why, err);
    }
    return rc;
}

/* -------------------------------------------------------------------- a pass */

/* What its rows gave, to its items; those encoded first go first. */
static enum rc take_rows(struct wrk_engine *e, uint32_t n, struct rc_err *why)
{
    enum rc rc = RC_OK;

    for (int turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < n && rc == RC_OK; i++)
            if (e->pick[i].item->goes_first == (turn == 0))
                rc = wrk_tokens_take(e, e->pick[i].task, e->pick[i].item, e->embed_offsets[i], look,
                                     why);
    return rc;
}

static enum rc run_pass(struct wrk_engine *e, uint32_t n, struct rc_err *why)
{
    struct mdl_encode_media *media = NULL;
    uint32_t rows = 0, n_media = 0, k = 0;
    unsigned outputs = 0;
    enum rc rc;

    for (uint32_t i = 0; i < n; i++) {
        n_media += e->pick[i].item->n_media;
        outputs |= e->pick[i].task->embed->outputs;
    }
    if (n_media > 0 && (media = calloc(n_media, sizeof(*media))) == NULL)
        return rc_fail(why, RC_NOMEM, "media of a pass");
    for (uint32_t i = 0; i < n; i++) {
        const struct wrk_item *it = e->pick[i].item;

        e->embed_offsets[i] = rows;
        memcpy(e->embed_ids + rows, e->pick[i].task->embed->ids.ids + it->from,
               it->n * sizeof(int32_t));
        for (uint32_t j = 0; j < it->n_media; j++)
            media[k++] = (struct mdl_encode_media){rows + it->media_row[j], it->media[j]};
        rows += it->n;
        e->pick[i].task->in_pass = true;
    }
    e->embed_offsets[n] = rows;
    e->n_in_pass = n;
    e->pass_look_us = wrk_now_us() + LOOK_US;
    if ((outputs & ~WRK_OUT_DENSE) != 0) /* their models have no files */
        rc = mdl_encode_tokens(e->o.mdl, n, e->embed_ids, e->embed_offsets, e->embed_out,
                               (outputs & WRK_OUT_SPARSE) != 0 ? e->embed_weights : NULL,
                               (outputs & WRK_OUT_TOKENS) != 0 ? e->embed_vectors : NULL, why);
    else
        rc = mdl_encode_with(e->o.mdl, n, e->embed_ids, e->embed_offsets, media, n_media,
                             e->embed_out, why);
    e->n_embed_tokens += rc == RC_OK ? rows : 0;
    if (rc == RC_OK)
        rc = take_rows(e, n, why);
    e->n_in_pass = 0;
    for (uint32_t i = 0; i < n; i++)
        e->pick[i].task->in_pass = false;
    free(media);
    return rc;
}

/* Vectors of a pass, or its failure, to their items. */
static enum rc finish(struct wrk_engine *e, uint32_t n, enum rc failed, struct rc_err *why,
                      struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        struct wrk_task *t = e->pick[i].task;
        struct wrk_item *it = e->pick[i].item;
        struct wrk_embed *m = t != NULL ? t->embed : NULL;

        if (t == NULL)
            continue;
        m->again = false;
        wrk_embed_media_drop(e, it);
        if (failed == RC_OK &&
            (m->out == NULL || store(e->embed_out + (size_t)i * e->encode_dim, e->encode_dim,
                                     m->out + (size_t)it->idx * m->dim, m->dim))) {
            it->done = true;
            m->n_done++;
            continue;
        }
        if (failed == RC_OK)
            rc_fail(why, RC_INTERNAL, "the model computed a number that is not finite");
        wrk_item_drop_tokens(it);
        if (wrk_embed_item_failed(m, it->idx, it->run_stage, why) != RC_OK)
            rc = fail_task(e, n, t, why, err);
        else if (m->out != NULL)
            memset(m->out + (size_t)it->idx * m->dim, 0, m->dim * sizeof(float));
    }
    return rc;
}

/* The files changed while the pass read them: what it computed is nothing. */
static enum rc fail_all(struct wrk_engine *e, uint32_t n, const struct rc_err *why,
                        struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++)
        if (e->pick[i].task != NULL)
            rc = fail_task(e, n, e->pick[i].task, why, err);
    return rc;
}

static enum rc encode(struct wrk_engine *e, uint32_t n, struct rc_err *err)
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
        for (uint32_t i = 0; i < n; i++)
            if (e->pick[i].task != NULL)
                put_back(e->pick[i].task->embed, e->pick[i].item, !ended);
        return RC_OK;
    }
    if (failed == RC_OK && mdl_guard(e->o.mdl, &why) != RC_OK)
        return fail_all(e, n, &why, err);
    return finish(e, n, failed, &why, err);
}

/* Clients that were just answered send their next text in a moment; a pass with it costs little
 * more than one without. So a pass waits while fewer tasks are here than the last one ended or left
 * behind, but no longer than that one took, nor than the configuration says, and never when it
 * would be full, when anything else is to do, or when no pass has just ended. */
static bool waits_for_more(struct wrk_engine *e, uint32_t max_rows, uint64_t now)
{
    uint64_t most = (uint64_t)e->o.embed_wait_ms * 1000, rows = 0;
    uint32_t n_tasks = 0, n_items = 0;

    if (most > e->pass_us)
        most = e->pass_us;
    if (most == 0 || e->n_seqs > 0 || now >= e->pass_end_us + most)
        return false;
    e->wait_until_us = e->pass_end_us + most;
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next) {
        const struct wrk_embed *m = t->embed;

        if (!waits(e, t) || m->again || m->n_media_order > 0 || t->decide != NULL)
            return false;
        n_tasks++;
        for (uint32_t i = m->next; i < m->n_order && rows < max_rows; i++, n_items++)
            rows += m->order[i]->n;
    }
    return n_tasks > 0 && n_tasks < e->n_expected && rows < max_rows && n_items < e->max_embed_seqs;
}

/* Waits, or has waited: counted once. */
static bool hold(struct wrk_engine *e, uint32_t max_rows)
{
    uint64_t now;

    if (e->o.embed_wait_ms == 0 || e->tasks == NULL)
        return false;
    now = wrk_now_us();
    if (waits_for_more(e, max_rows, now)) {
        if (e->wait_from_us == 0)
            e->wait_from_us = now;
        return true;
    }
    if (e->wait_from_us != 0) {
        e->n_embed_waits++;
        /* everybody may have gone meanwhile, and somebody come much later */
        e->embed_wait_us += (now < e->wait_until_us ? now : e->wait_until_us) - e->wait_from_us;
        e->wait_from_us = 0;
    }
    return false;
}

/* What the next pass may wait for. */
static void note_pass(struct wrk_engine *e, uint64_t from)
{
    e->pass_end_us = wrk_now_us();
    e->pass_us = e->pass_end_us - from;
    e->n_expected = e->n_answered;
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        e->n_expected += waits(e, t);
    e->n_embed_passes++;
}

enum rc wrk_embed_step(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t max_rows = e->embed_rows, n;
    uint64_t from;
    enum rc rc;

    if (e->encode_dim == 0)
        return RC_OK;
    if (wrk_batch_decoding(e) && max_rows > WRK_EMBED_BUSY)
        max_rows = WRK_EMBED_BUSY;
    if (hold(e, max_rows))
        return RC_OK;
    e->n_answered = 0;
    from = wrk_now_us();
    if ((n = choose(e, max_rows)) > 0 && (rc = encode(e, n, err)) != RC_OK)
        return rc;
    if ((rc = end_complete(e, err)) == RC_OK && n > 0)
        note_pass(e, from);
    return rc;
}
