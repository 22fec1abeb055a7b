/* wrk_embed_pass.c - items of all waiting tasks, encoded in micro-batches.
 *
 * A micro-batch takes items of all waiting tasks, shortest first within a task and items with
 * files behind the texts, as long as their rows fit the pass; a batch is never refused because of
 * its sum, only an item because of itself. A row's bits do not depend on its neighbours (be.h).
 * How a pass ends is wrk_pass.c's.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c, test_wrk_engine_rerank.c
 */
#include "wrk_embed_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    if (i->can_sparse)
        e->embed_weights = calloc(e->embed_rows, sizeof(float));
    if (i->token_dim > 0)
        e->embed_vectors = calloc((size_t)e->embed_rows * i->token_dim, sizeof(float));
    if (e->embed_ids == NULL || e->embed_offsets == NULL || e->embed_out == NULL ||
        (i->can_sparse && e->embed_weights == NULL) ||
        (i->token_dim > 0 && e->embed_vectors == NULL))
        return rc_fail(err, RC_NOMEM, "embedding batch of %u sequences", e->max_embed_seqs);
    return wrk_pass_init(e, e->max_embed_seqs, err);
}

void wrk_embed_deinit(struct wrk_engine *e)
{
    free(e->embed_ids);
    free(e->embed_offsets);
    free(e->embed_out);
    free(e->embed_weights);
    free(e->embed_vectors);
}

/* ------------------------------------------------------------------- choosing */

/* An Embed or Rerank task, or a Decide task that has texts to encode. */
static bool has(const struct wrk_task *t)
{
    return t->embed != NULL;
}

static bool alone(const struct wrk_pick *p)
{
    return ((const struct wrk_item *)p->item)->alone;
}

/* Picks of one task, as long as they fit. */
static void choose(struct wrk_engine *e, struct wrk_task *t, uint32_t max_rows)
{
    struct wrk_embed *m = t->embed;
    struct wrk_pass *p = &e->pass;

    if (!wrk_tokens_begin(e, m))
        return;
    while (p->n < p->cap) {
        bool is_text = m->next < m->n_order;
        uint32_t *next = is_text ? &m->next : &m->media_next;
        struct wrk_item *it;

        if (!is_text && m->media_next == m->media_read)
            return;
        it = is_text ? m->order[m->next] : m->media_order[m->media_next];
        if (!it->done &&
            (!wrk_pass_fits(p, it->n, max_rows) || (p->n > 0 && (it->alone || alone(&p->pick[0])))))
            return; /* alone it always fits: wrk_embed_item_take checked */
        (*next)++;
        if (!it->done) /* done: its file could not be decoded */
            wrk_pass_add(p, t, it, it->n);
    }
}

/* -------------------------------------------------------------------- a pass */

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

static void put_back(struct wrk_pick *p, bool alone)
{
    struct wrk_embed *m = p->task->embed;
    struct wrk_item *it = p->item;
    uint32_t *next = it->media != NULL ? &m->media_next : &m->next;

    if (it->at < *next)
        *next = it->at;
    it->alone = alone;
}

/* What its rows gave, to its items; those encoded first go first. */
static enum rc take_rows(struct wrk_engine *e, struct rc_err *why)
{
    enum rc rc = RC_OK;

    for (int turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < e->pass.n && rc == RC_OK; i++) {
            struct wrk_pick *p = &e->pass.pick[i];
            struct wrk_item *it = p->item;

            if (it->goes_first == (turn == 0))
                rc = wrk_tokens_take(e, p->task, it, e->embed_offsets[i], wrk_pass_look, why);
        }
    return rc;
}

/* The picks' rows and files, one behind the other. */
static void lay_out(struct wrk_engine *e, struct mdl_encode_media *media)
{
    uint32_t rows = 0, k = 0;

    for (uint32_t i = 0; i < e->pass.n; i++) {
        const struct wrk_item *it = e->pass.pick[i].item;

        e->embed_offsets[i] = rows;
        memcpy(e->embed_ids + rows, e->pass.pick[i].task->embed->ids.ids + it->from,
               it->n * sizeof(int32_t));
        for (uint32_t j = 0; j < it->n_media; j++)
            media[k++] = (struct mdl_encode_media){rows + it->media_row[j], it->media[j]};
        rows += it->n;
    }
    e->embed_offsets[e->pass.n] = rows;
}

static enum rc run(struct wrk_engine *e, struct rc_err *why)
{
    struct mdl_encode_media *media = NULL;
    uint32_t n = e->pass.n, n_media = 0;
    unsigned outputs = 0;
    enum rc rc;

    for (uint32_t i = 0; i < n; i++) {
        n_media += ((const struct wrk_item *)e->pass.pick[i].item)->n_media;
        outputs |= e->pass.pick[i].task->embed->outputs;
    }
    if (n_media > 0 && (media = calloc(n_media, sizeof(*media))) == NULL)
        return rc_fail(why, RC_NOMEM, "media of a pass");
    lay_out(e, media);
    if ((outputs & ~IPC_OUT_DENSE) != 0) /* their models have no files */
        rc = mdl_encode_tokens(e->o.mdl, n, e->embed_ids, e->embed_offsets, e->embed_out,
                               (outputs & IPC_OUT_SPARSE) != 0 ? e->embed_weights : NULL,
                               (outputs & IPC_OUT_TOKENS) != 0 ? e->embed_vectors : NULL, why);
    else
        rc = mdl_encode_with(e->o.mdl, n, e->embed_ids, e->embed_offsets, media, n_media,
                             e->embed_out, why);
    free(media);
    if (rc != RC_OK)
        return rc;
    e->n_embed_tokens += e->embed_offsets[n];
    return take_rows(e, why);
}

static enum rc give(struct wrk_engine *e, uint32_t i, struct rc_err *why)
{
    struct wrk_embed *m = e->pass.pick[i].task->embed;
    struct wrk_item *it = e->pass.pick[i].item;

    wrk_embed_media_drop(e, it);
    if (why->code == RC_OK &&
        (m->out == NULL || store(e->embed_out + (size_t)i * e->encode_dim, e->encode_dim,
                                 m->out + (size_t)it->idx * m->dim, m->dim))) {
        it->done = true;
        m->n_done++;
        return RC_OK;
    }
    if (why->code == RC_OK)
        rc_fail(why, RC_INTERNAL, "the model computed a number that is not finite");
    wrk_item_drop_tokens(it);
    if (wrk_embed_item_failed(m, it->idx, it->run_stage, why) != RC_OK)
        return why->code;
    if (m->out != NULL)
        memset(m->out + (size_t)it->idx * m->dim, 0, m->dim * sizeof(float));
    return RC_OK;
}

static const struct wrk_pass_kind kind = {
    .doing = "embedding",
    .has = has,
    .choose = choose,
    .run = run,
    .put_back = put_back,
    .give = give,
};

/* -------------------------------------------------------------------- a step */

/* Ends complete Embed tasks; complete rounds of Decide tasks are theirs. */
static enum rc end_complete(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *next;
    enum rc rc;

    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        struct rc_err why = RC_ERR_INIT;

        next = t->next;
        if (!wrk_pass_waits(e, t, &kind) || t->embed->n_done < t->embed->n)
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

        if (!wrk_pass_waits(e, t, &kind) || t->again || m->n_media_order > 0 || t->decide != NULL)
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
        e->n_expected += wrk_pass_waits(e, t, &kind);
    e->n_embed_passes++;
}

enum rc wrk_embed_step(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t max_rows = e->embed_rows;
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
    if ((rc = wrk_pass_step(e, &kind, max_rows, err)) != RC_OK)
        return rc;
    if ((rc = end_complete(e, err)) == RC_OK && e->pass.n > 0)
        note_pass(e, from);
    return rc;
}
