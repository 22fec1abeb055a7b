/* wrk_embed.c - the items of a task for the encoder: from its message to tokens.
 *
 * Items are tokenized bit by bit, sorted by length and then encoded by wrk_embed_pass.c; answers
 * come back in request order. Everything is bounded: items, tokens, rows per step.
 * Tests: tests/worker/test_wrk_engine_texts.c, test_wrk_engine_media.c
 */
#include "wrk_embed_impl.h"

#include <stdlib.h>
#include <string.h>

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
