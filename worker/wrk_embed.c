/* wrk_embed.c - Embed tasks: tokenized bit by bit, encoded in micro-batches.
 *
 * A micro-batch takes items of all waiting tasks, shortest first within a task, as
 * long as their rows fit the pass; a batch is never refused because of its sum,
 * only an item because of itself. Vectors come back in request order, and a row's
 * bits do not depend on its neighbours (be.h). Everything is bounded: items,
 * tokens, rows per step. Tests: tests/worker/test_wrk_engine_texts.c
 */
#include "wrk_engine_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 4096u
#define TOKENS_MAX (16u << 20) /* of one task */

struct item {
    uint64_t from; /* in ids */
    uint32_t n;
    uint32_t idx; /* in the request */
    bool truncated, done;
};

struct wrk_embed {
    uint32_t n, dim;
    uint32_t n_read; /* tokenized items */
    uint32_t n_done; /* vectors and failures */
    uint32_t next;   /* first item of order[] not yet encoded */
    bool per_item;
    struct mdl_ids ids;
    struct item *item;   /* by index */
    struct item **order; /* those to encode, shortest first */
    uint32_t n_order;
    float *out;         /* [n, dim] */
    struct rc_err *bad; /* err.item = index */
    uint32_t n_bad, cap_bad;
};

struct wrk_embed_pick {
    struct wrk_task *task;
    struct item *item;
};

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
    if (e->max_embed_seqs == 0 || e->info->embed_dim == 0)
        return rc_fail(err, RC_INTERNAL, "an embedding model without room for a sequence");
    if (e->embed_ids == NULL || e->embed_offsets == NULL || e->embed_out == NULL || e->pick == NULL)
        return rc_fail(err, RC_NOMEM, "embedding batch of %u sequences", e->max_embed_seqs);
    return RC_OK;
}

void wrk_embed_deinit(struct wrk_engine *e)
{
    free(e->embed_ids);
    free(e->embed_offsets);
    free(e->embed_out);
    free(e->pick);
}

void wrk_embed_free(struct wrk_embed **pm)
{
    struct wrk_embed *m = *pm;

    if (m == NULL)
        return;
    mdl_ids_deinit(&m->ids);
    free(m->item);
    free(m->order);
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

static enum rc embed_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Embed *q = t->frame->embed;
    struct wrk_embed *m;
    enum rc rc;

    if (!e->info->can_embed)
        return rc_fail_what(why, RC_UNSUPPORTED, "model", "this model makes no embeddings");
    if (q->n_inputs == 0)
        return rc_fail_what(why, RC_INVALID, "input", "no input to embed");
    if (q->n_inputs > ITEMS_MAX) {
        rc_fail_what(why, RC_TOO_LARGE, "input", "%zu inputs, at most %u", q->n_inputs, ITEMS_MAX);
        why->n = q->n_inputs;
        why->limit = ITEMS_MAX;
        return RC_TOO_LARGE;
    }
    if (q->dimensions != 0 && (rc = mdl_dims_check(e->o.mdl, q->dimensions, why)) != RC_OK)
        return rc;
    if ((t->embed = m = calloc(1, sizeof(*m))) == NULL)
        return rc_fail(why, RC_NOMEM, "embedding task");
    m->n = (uint32_t)q->n_inputs;
    m->dim = q->dimensions != 0 ? q->dimensions : e->info->embed_dim;
    m->per_item = q->per_item;
    m->item = calloc(m->n, sizeof(*m->item));
    m->order = calloc(m->n, sizeof(*m->order));
    m->out = calloc((size_t)m->n * m->dim, sizeof(float));
    if (m->item == NULL || m->order == NULL || m->out == NULL)
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
    if (n > e->info->max_input_tokens && !truncate) {
        rc_fail_what(why, RC_TOO_LARGE, "input", "%zu tokens, the model takes %u", n,
                     e->info->max_input_tokens);
        why->n = n;
        why->limit = e->info->max_input_tokens;
        return RC_TOO_LARGE;
    }
    if (n > e->info->max_input_tokens) {
        n = e->info->max_input_tokens;
        *truncated = true;
    }
    for (size_t i = 0; i < n; i++) {
        if (in->tokens[i] >= e->info->vocab_size)
            return rc_fail_what(why, RC_INVALID, "input", "token %zu is %u, the vocabulary has %u",
                                i, in->tokens[i], e->info->vocab_size);
        if ((rc = mdl_ids_push(&m->ids, (int32_t)in->tokens[i], why)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* A failure of one item: the task's, unless it asked for item errors. */
static enum rc item_failed(struct wrk_embed *m, uint32_t idx, struct rc_err *why)
{
    why->item = (int32_t)idx;
    if (!m->per_item)
        return why->code;
    if (m->n_bad == m->cap_bad) {
        uint32_t cap = m->cap_bad == 0 ? 8 : m->cap_bad * 2;
        struct rc_err *p = realloc(m->bad, cap * sizeof(*p));

        if (p == NULL)
            return rc_fail(why, RC_NOMEM, "item errors");
        m->bad = p;
        m->cap_bad = cap;
    }
    m->bad[m->n_bad++] = *why;
    m->item[idx].done = true;
    m->n_done++;
    return RC_OK;
}

static enum rc read_item(struct wrk_engine *e, struct wrk_task *t, uint32_t idx, struct rc_err *why)
{
    const Ipc__Embed *q = t->frame->embed;
    const Ipc__EmbedInput *in = q->inputs[idx];
    struct wrk_embed *m = t->embed;
    struct item *it = &m->item[idx];
    size_t from = m->ids.n;
    enum rc rc;

    if (in->is_tokens)
        rc = read_tokens(e, m, in, q->truncate, &it->truncated, why);
    else
        rc =
            mdl_embed_tokens(e->o.mdl, in->text.data != NULL ? (char *)in->text.data : "",
                             in->text.len, q->task_type, q->truncate, &it->truncated, &m->ids, why);
    if (rc == RC_OK && m->ids.n == from)
        rc = rc_fail_what(why, RC_INVALID, "input", "the input has no tokens");
    if (rc == RC_OK && m->ids.n - from > e->embed_rows) {
        rc = rc_fail_what(why, RC_LIMIT, "input", "%zu tokens, this worker's batch holds %u",
                          m->ids.n - from, e->embed_rows);
        why->n = m->ids.n - from;
        why->limit = e->embed_rows;
    }
    if (rc == RC_CANCELLED) /* the task's end, no fault of the item */
        return rc;
    if (rc != RC_OK) {
        m->ids.n = from;
        return item_failed(m, idx, why);
    }
    if (m->ids.n > TOKENS_MAX)
        return rc_fail_what(why, RC_TOO_LARGE, "input", "more than %u tokens in one request",
                            TOKENS_MAX);
    it->from = from;
    it->n = (uint32_t)(m->ids.n - from);
    it->idx = idx;
    m->order[m->n_order++] = it;
    return RC_OK;
}

static int shorter(const void *a, const void *b)
{
    const struct item *x = *(struct item *const *)a, *y = *(struct item *const *)b;

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
        size_t cost = t->frame->embed->inputs[idx]->text.len + 64;

        *budget -= cost < *budget ? cost : *budget;
        *why = RC_ERR_INIT;
        if ((rc = read_item(e, t, idx, why)) != RC_OK)
            return rc;
    }
    if (t->embed->n_read < t->embed->n)
        return RC_OK;
    qsort(t->embed->order, t->embed->n_order, sizeof(t->embed->order[0]), shorter);
    wrk_task_drop_frame(e, t);
    t->prepared = true;
    return RC_OK;
}

/* ------------------------------------------------------------------- encoding */

/* Of an Embed task, or of a Decide task that has texts to encode. */
static bool waits(const struct wrk_task *t)
{
    return t->embed != NULL && t->prepared;
}

/* Fills pick[] from all tasks, beginning with another one each time. */
static uint32_t choose(struct wrk_engine *e, uint32_t max_rows)
{
    uint32_t n_tasks = 0, skip, n = 0, rows = 0;

    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        n_tasks += waits(t);
    if (n_tasks == 0)
        return 0;
    skip = e->embed_turn++ % n_tasks;
    for (int round = 0; round < 2; round++) {
        uint32_t k = 0;

        for (struct wrk_task *t = e->tasks; t != NULL; t = t->next) {
            if (!waits(t) || (k++ < skip) != (round == 1))
                continue;
            while (t->embed->next < t->embed->n_order && n < e->max_embed_seqs) {
                struct item *it = t->embed->order[t->embed->next];

                if (n > 0 && rows + it->n > max_rows)
                    break; /* alone it always fits: read_item checked */
                rows += it->n;
                e->pick[n++] = (struct wrk_embed_pick){t, it};
                t->embed->next++;
            }
        }
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

static enum rc send_vectors(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    const struct wrk_embed *m = t->embed;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Vectors v = IPC__VECTORS__INIT;
    uint32_t *n_tokens = calloc(m->n, sizeof(*n_tokens));
    protobuf_c_boolean *cut = calloc(m->n, sizeof(*cut));
    Ipc__ItemError *errs = calloc(m->n_bad + 1, sizeof(*errs)), **ptr;
    Ipc__Error *why = calloc(m->n_bad + 1, sizeof(*why));
    enum rc rc = RC_NOMEM;

    ptr = calloc(m->n_bad + 1, sizeof(Ipc__ItemError *));
    if (n_tokens == NULL || cut == NULL || errs == NULL || ptr == NULL || why == NULL) {
        rc_fail(err, RC_NOMEM, "vectors");
        goto out;
    }
    for (uint32_t i = 0; i < m->n; i++) {
        n_tokens[i] = m->item[i].n;
        cut[i] = m->item[i].truncated;
    }
    for (uint32_t i = 0; i < m->n_bad; i++) {
        ipc_error_from(&why[i], &m->bad[i]);
        ipc__item_error__init(&errs[i]);
        errs[i].index = (uint32_t)m->bad[i].item;
        errs[i].error = &why[i];
        ptr[i] = &errs[i];
    }
    v.n = m->n;
    v.dim = m->dim;
    v.data.data = (uint8_t *)m->out;
    v.data.len = (size_t)m->n * m->dim * sizeof(float);
    v.n_n_tokens = m->n;
    v.n_tokens = n_tokens;
    v.n_truncated = m->n;
    v.truncated = cut;
    v.n_errors = m->n_bad;
    v.errors = ptr;
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_VECTORS;
    f.vectors = &v;
    rc = wrk_chan_send(e->o.chan, &f, err);
out:
    free(n_tokens);
    free(cut);
    free(errs);
    free(ptr);
    free(why);
    return rc;
}

/* Ends complete tasks, and those marked as failed by pick.item == NULL. */
static enum rc end_complete(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *next;
    enum rc rc;

    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        next = t->next;
        if (!waits(t) || t->embed->n_done < t->embed->n)
            continue;
        if (t->decide != NULL) {
            wrk_decide_embedded(e, t);
            continue;
        }
        rc = send_vectors(e, t, err);
        if (rc == RC_TOO_LARGE) {
            struct rc_err why = *err;

            rc = wrk_task_end(e, t, &why, err);
        } else if (rc == RC_OK) {
            rc = wrk_task_end(e, t, NULL, err);
        }
        if (rc != RC_OK)
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

static enum rc encode(struct wrk_engine *e, uint32_t n, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    uint32_t rows = 0, dim = e->info->embed_dim;
    enum rc rc = RC_OK, failed;

    for (uint32_t i = 0; i < n; i++) {
        const struct item *it = e->pick[i].item;

        e->embed_offsets[i] = rows;
        memcpy(e->embed_ids + rows, e->pick[i].task->embed->ids.ids + it->from,
               it->n * sizeof(int32_t));
        rows += it->n;
    }
    e->embed_offsets[n] = rows;
    failed = mdl_encode(e->o.mdl, n, e->embed_ids, e->embed_offsets, e->embed_out, &why);
    if (failed != RC_OK && (rc = wrk_engine_lost(e, &why, err)) != RC_OK)
        return rc;
    e->n_embed_tokens += failed == RC_OK ? rows : 0;
    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        struct wrk_task *t = e->pick[i].task;
        struct item *it = e->pick[i].item;

        if (t == NULL)
            continue;
        if (failed == RC_OK &&
            store(e->embed_out + (size_t)i * dim, dim,
                  t->embed->out + (size_t)it->idx * t->embed->dim, t->embed->dim)) {
            it->done = true;
            t->embed->n_done++;
            continue;
        }
        if (failed == RC_OK)
            rc_fail(&why, RC_INTERNAL, "the model computed a vector that is not finite");
        if (item_failed(t->embed, it->idx, &why) != RC_OK)
            rc = fail_task(e, n, t, &why, err);
        else
            memset(t->embed->out + (size_t)it->idx * t->embed->dim, 0,
                   t->embed->dim * sizeof(float));
    }
    return rc;
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
