/* wrk_embed.c - Embed tasks: tokenized bit by bit, encoded in micro-batches.
 *
 * A micro-batch takes items of all waiting tasks, shortest first within a task and items with
 * files behind the texts, as long as their rows fit the pass; a batch is never refused because of
 * its sum, only an item because of itself. Vectors come back in request order, and a row's bits do
 * not depend on its neighbours (be.h). Everything is bounded: items, tokens, rows per step.
 *
 * While a pass runs the channel is heard between layers: when a task of it is cancelled or its
 * time is over the pass ends, that task too, and the others' items are run again before those of
 * tasks that came later, so that nobody can hold up another again and again. After a pass that
 * failed its items are run again one by one: only who fails alone has failed.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c
 */
#include "wrk_embed_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_US 20000 /* between two looks around while a pass runs */

static bool look(void *user);

enum rc wrk_embed_init(struct wrk_engine *e, struct rc_err *err)
{
    if (!e->info->can_embed)
        return RC_OK;
    e->max_embed_seqs = mdl_encode_max_seqs(e->o.mdl);
    /* mdl_encode takes any number; a pass holds at least the longest input */
    e->embed_rows = e->o.batch_tokens > e->info->max_input_tokens ? e->o.batch_tokens
                                                                  : e->info->max_input_tokens;
    e->embed_ids = calloc(e->embed_rows, sizeof(*e->embed_ids));
    e->embed_offsets = calloc((size_t)e->max_embed_seqs + 1, sizeof(*e->embed_offsets));
    e->embed_out = calloc((size_t)e->max_embed_seqs * e->info->embed_dim, sizeof(float));
    e->pick = calloc(e->max_embed_seqs, sizeof(*e->pick));
    mdl_set_encode_stop(e->o.mdl, look, e);
    if (e->max_embed_seqs == 0 || e->info->embed_dim == 0)
        return rc_fail(err, RC_INTERNAL, "an embedding model without room for a sequence");
    if (e->embed_ids == NULL || e->embed_offsets == NULL || e->embed_out == NULL || e->pick == NULL)
        return rc_fail(err, RC_NOMEM, "embedding batch of %u sequences", e->max_embed_seqs);
    return RC_OK;
}

void wrk_embed_deinit(struct wrk_engine *e)
{
    if (e->info->can_embed)
        mdl_set_encode_stop(e->o.mdl, NULL, NULL);
    free(e->embed_ids);
    free(e->embed_offsets);
    free(e->embed_out);
    free(e->pick);
}

void wrk_embed_free(struct wrk_engine *e, struct wrk_embed **pm)
{
    struct wrk_embed *m = *pm;

    if (m == NULL)
        return;
    for (uint32_t i = 0; i < m->n_media_order; i++)
        wrk_embed_media_drop(e, m->media_order[i]);
    mdl_ids_deinit(&m->ids);
    free(m->item);
    free(m->order);
    free(m->media_order);
    free(m->task_type);
    free(m->out);
    free(m->bad);
    free(m);
    *pm = NULL;
}

const float *wrk_embed_vectors(const struct wrk_embed *m)
{
    return m->out;
}

uint32_t wrk_embed_tokens(const struct wrk_embed *m, uint32_t idx)
{
    return m->item[idx].n;
}

/* ------------------------------------------------------------------ preparing */

enum rc wrk_embed_asked(const struct wrk_engine *e, const char *identity, uint32_t dim,
                        struct rc_err *why)
{
    const char *have = e->info->identity;

    if (!e->info->can_embed)
        return rc_fail_what(why, RC_UNSUPPORTED, "model", "this model makes no embeddings");
    if (identity[0] != '\0' && strcmp(identity, have) != 0)
        return rc_fail_what(why, RC_CONFLICT, "model_identity",
                            "the request is for model identity '%.64s', loaded is '%.64s'",
                            identity, have);
    return dim != 0 ? mdl_dims_check(e->o.mdl, dim, why) : RC_OK;
}

static enum rc embed_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Embed *q = t->frame->embed;
    struct wrk_embed *m;
    enum rc rc;

    if ((rc = wrk_embed_asked(e, q->model_identity, q->dimensions, why)) != RC_OK)
        return rc;
    if (q->n_inputs == 0)
        return rc_fail_what(why, RC_INVALID, "input", "no input to embed");
    if (q->n_inputs > WRK_EMBED_ITEMS_MAX)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "input", "%zu inputs, at most %u",
                                     q->n_inputs, WRK_EMBED_ITEMS_MAX),
                        q->n_inputs, WRK_EMBED_ITEMS_MAX, why);
    if ((t->embed = m = calloc(1, sizeof(*m))) == NULL)
        return rc_fail(why, RC_NOMEM, "embedding task");
    m->n = (uint32_t)q->n_inputs;
    m->dim = q->dimensions != 0 ? q->dimensions : e->info->embed_dim;
    m->per_item = q->per_item;
    m->truncate = q->truncate;
    m->item = calloc(m->n, sizeof(*m->item));
    m->order = calloc(m->n, sizeof(*m->order));
    m->media_order = calloc(m->n, sizeof(*m->media_order));
    m->out = calloc((size_t)m->n * m->dim, sizeof(float));
    m->task_type = strdup(q->task_type);
    if (m->item == NULL || m->order == NULL || m->media_order == NULL || m->out == NULL ||
        m->task_type == NULL)
        return rc_fail(why, RC_NOMEM, "%u vectors of %u values", m->n, m->dim);
    return RC_OK;
}

static enum rc read_tokens(struct wrk_engine *e, struct wrk_embed *m, const Ipc__EmbedInput *in,
                           bool truncate, bool *truncated, struct rc_err *why)
{
    size_t n = in->n_tokens;
    enum rc rc;

    if (n == 0)
        return rc_fail_what(why, RC_INVALID, "input", "a list of no tokens");
    if (n > e->info->max_input_tokens && (!truncate || e->info->never_cuts))
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "input", "%zu tokens, the model takes %u",
                                     n, e->info->max_input_tokens),
                        n, e->info->max_input_tokens, why);
    if (n > e->info->max_input_tokens) {
        n = e->info->max_input_tokens;
        *truncated = true;
    }
    for (size_t i = 0; i < n; i++) {
        if (in->tokens[i] >= e->info->vocab_size)
            return rc_fail_what(why, RC_INVALID, "input", "token %zu is %u, the vocabulary has %u",
                                i, in->tokens[i], e->info->vocab_size);
        if (mdl_is_placeholder(e->o.mdl,
                               (int32_t)in->tokens[i])) /* would fail its neighbours too */
            return rc_fail_what(why, RC_INVALID, "input",
                                "token %zu is %u, which stands for a picture, a sound or a video; "
                                "give those as parts",
                                i, in->tokens[i]);
        if ((rc = mdl_ids_push(&m->ids, (int32_t)in->tokens[i], why)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

enum rc wrk_embed_item_failed(struct wrk_embed *m, uint32_t idx, const char *stage,
                              struct rc_err *why)
{
    why->item = (int32_t)idx;
    if (!m->per_item)
        return why->code;
    if (m->n_bad == m->cap_bad) {
        uint32_t cap = m->cap_bad == 0 ? 8 : m->cap_bad * 2;
        struct wrk_bad *p = realloc(m->bad, cap * sizeof(*p));

        if (p == NULL)
            return rc_fail(why, RC_NOMEM, "item errors");
        m->bad = p;
        m->cap_bad = cap;
    }
    m->bad[m->n_bad++] = (struct wrk_bad){*why, stage};
    m->item[idx].done = true;
    m->n_done++;
    return RC_OK;
}

enum rc wrk_embed_item_take(struct wrk_engine *e, struct wrk_embed *m, uint32_t idx, size_t from,
                            struct rc_err *why)
{
    struct wrk_item *it = &m->item[idx];

    if (m->ids.n == from)
        return rc_fail_what(why, RC_INVALID, "input", "the input has no tokens");
    if (m->ids.n - from > e->embed_rows)
        return rc_bound(rc_fail_what(why, RC_LIMIT, "input",
                                     "%zu tokens, this worker's batch holds %u", m->ids.n - from,
                                     e->embed_rows),
                        m->ids.n - from, e->embed_rows, why);
    it->from = from;
    it->n = (uint32_t)(m->ids.n - from);
    return RC_OK;
}

static enum rc read_item(struct wrk_engine *e, struct wrk_task *t, uint32_t idx, struct rc_err *why)
{
    const Ipc__Embed *q = t->frame->embed;
    const Ipc__EmbedInput *in = q->inputs[idx];
    struct wrk_embed *m = t->embed;
    struct wrk_item *it = &m->item[idx];
    size_t from = m->ids.n;
    bool has_media = false;
    enum rc rc;

    it->idx = idx;
    it->run_stage = WRK_STAGE_TEXT;
    if (in->n_parts > 0 || in->is_group) {
        rc = wrk_embed_parts_check(e, in, &has_media, why);
        if (rc == RC_OK && has_media) { /* made ready when its turn to be encoded comes */
            it->at = m->n_media_order;
            m->media_order[m->n_media_order++] = it;
            return RC_OK;
        }
        if (rc == RC_OK)
            rc = wrk_embed_parts_tokens(e, m, in, NULL, NULL, why);
    } else if (in->is_tokens) {
        rc = read_tokens(e, m, in, q->truncate, &it->truncated, why);
    } else {
        rc =
            mdl_embed_tokens(e->o.mdl, in->text.data != NULL ? (char *)in->text.data : "",
                             in->text.len, q->task_type, q->truncate, &it->truncated, &m->ids, why);
    }
    if (rc == RC_OK)
        rc = wrk_embed_item_take(e, m, idx, from, why);
    if (rc == RC_CANCELLED) /* the task's end, no fault of the item */
        return rc;
    if (rc != RC_OK) {
        m->ids.n = from;
        return wrk_embed_item_failed(m, idx, WRK_STAGE_TEXT, why);
    }
    if (m->ids.n > WRK_EMBED_TOKENS_MAX)
        return rc_fail_what(why, RC_TOO_LARGE, "input", "more than %u tokens in one request",
                            WRK_EMBED_TOKENS_MAX);
    m->order[m->n_order++] = it;
    return RC_OK;
}

static int shorter(const void *a, const void *b)
{
    const struct wrk_item *x = *(struct wrk_item *const *)a, *y = *(struct wrk_item *const *)b;

    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->idx < y->idx ? -1 : x->idx > y->idx;
}

enum rc wrk_embed_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                          struct rc_err *why)
{
    enum rc rc;

    if (t->embed == NULL && (rc = embed_open(e, t, why)) != RC_OK)
        return rc;
    while (t->embed->n_read<t->embed->n && * budget> 0) {
        uint32_t idx = t->embed->n_read++;
        const Ipc__EmbedInput *in = t->frame->embed->inputs[idx];
        size_t cost = in->text.len + 64;

        for (size_t i = 0; i < in->n_parts; i++)
            cost += in->parts[i]->text.len;
        *budget -= cost < *budget ? cost : *budget;
        *why = RC_ERR_INIT;
        if ((rc = read_item(e, t, idx, why)) != RC_OK)
            return rc;
    }
    if (t->embed->n_read < t->embed->n)
        return RC_OK;
    qsort(t->embed->order, t->embed->n_order, sizeof(t->embed->order[0]), shorter);
    for (uint32_t i = 0; i < t->embed->n_order; i++)
        t->embed->order[i]->at = i;
    if (t->embed->n_media_order == 0)
        wrk_task_drop_frame(e, t);
    t->prepared = true;
    return RC_OK;
}

/* ------------------------------------------------------------------- encoding */

/* An Embed task, or a Decide task that has texts to encode. One whose next file is just being
 * decoded has its turn later: it may end then. */
static bool waits(const struct wrk_engine *e, const struct wrk_task *t)
{
    return t->embed != NULL && t->prepared && t != e->preparing;
}

/* Picks of one task, as long as they fit. */
static void choose_of(struct wrk_engine *e, struct wrk_task *t, uint32_t max_rows, uint32_t *n,
                      uint32_t *rows)
{
    struct wrk_embed *m = t->embed;

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
        rc = wrk_embed_send(e, t, &why);
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

static enum rc run_pass(struct wrk_engine *e, uint32_t n, struct rc_err *why)
{
    struct mdl_encode_media *media = NULL;
    uint32_t rows = 0, n_media = 0, k = 0;
    enum rc rc;

    for (uint32_t i = 0; i < n; i++)
        n_media += e->pick[i].item->n_media;
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
    rc = mdl_encode_with(e->o.mdl, n, e->embed_ids, e->embed_offsets, media, n_media, e->embed_out,
                         why);
    e->n_in_pass = 0;
    for (uint32_t i = 0; i < n; i++)
        e->pick[i].task->in_pass = false;
    free(media);
    e->n_embed_tokens += rc == RC_OK ? rows : 0;
    return rc;
}

/* Vectors of a pass, or its failure, to their items. */
static enum rc finish(struct wrk_engine *e, uint32_t n, enum rc failed, struct rc_err *why,
                      struct rc_err *err)
{
    uint32_t dim = e->info->embed_dim;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        struct wrk_task *t = e->pick[i].task;
        struct wrk_item *it = e->pick[i].item;

        if (t == NULL)
            continue;
        t->embed->again = false;
        wrk_embed_media_drop(e, it);
        if (failed == RC_OK &&
            store(e->embed_out + (size_t)i * dim, dim,
                  t->embed->out + (size_t)it->idx * t->embed->dim, t->embed->dim)) {
            it->done = true;
            t->embed->n_done++;
            continue;
        }
        if (failed == RC_OK)
            rc_fail(why, RC_INTERNAL, "the model computed a vector that is not finite");
        if (wrk_embed_item_failed(t->embed, it->idx, it->run_stage, why) != RC_OK)
            rc = fail_task(e, n, t, why, err);
        else
            memset(t->embed->out + (size_t)it->idx * t->embed->dim, 0,
                   t->embed->dim * sizeof(float));
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

enum rc wrk_embed_step(struct wrk_engine *e, struct rc_err *err)
{
    uint32_t max_rows = e->embed_rows, n;
    enum rc rc;

    if (!e->info->can_embed)
        return RC_OK;
    if (wrk_batch_decoding(e) && max_rows > WRK_EMBED_BUSY)
        max_rows = WRK_EMBED_BUSY;
    if ((n = choose(e, max_rows)) > 0 && (rc = encode(e, n, err)) != RC_OK)
        return rc;
    return end_complete(e, err);
}
