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
    for (uint32_t i = 0; m->item != NULL && i < m->n; i++)
        wrk_item_drop_tokens(&m->item[i]);
    e->token_bytes -= m->begun ? m->token_bytes : 0;
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

enum rc wrk_identity_check(const struct wrk_engine *e, const char *asked, struct rc_err *why)
{
    if (asked[0] != '\0' && strcmp(asked, e->info->identity) != 0)
        return rc_fail_what(why, RC_CONFLICT, "model_identity",
                            "the request is for model identity '%.64s', loaded is '%.64s'", asked,
                            e->info->identity);
    return RC_OK;
}

enum rc wrk_embed_asked(const struct wrk_engine *e, const char *identity, uint32_t dim,
                        struct rc_err *why)
{
    enum rc rc;

    if (!e->info->can_embed)
        return rc_fail_what(why, RC_UNSUPPORTED, "model", "this model makes no embeddings");
    if ((rc = wrk_identity_check(e, identity, why)) != RC_OK)
        return rc;
    return dim != 0 ? mdl_dims_check(e->o.mdl, dim, why) : RC_OK;
}

enum rc wrk_embed_open(struct wrk_task *t, const struct wrk_embed_ask *q, struct rc_err *why)
{
    bool dense = (q->outputs & IPC_OUT_DENSE) != 0;
    struct wrk_embed *m;

    if (q->n > WRK_EMBED_ITEMS_MAX)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "input", "%u inputs, at most %u", q->n,
                                     WRK_EMBED_ITEMS_MAX),
                        q->n, WRK_EMBED_ITEMS_MAX, why);
    if ((t->embed = m = calloc(1, sizeof(*m))) == NULL)
        return rc_fail(why, RC_NOMEM, "embedding task");
    m->n = q->n;
    m->dim = dense ? q->dim : 0;
    m->outputs = q->outputs;
    m->first = q->first;
    m->per_item = q->per_item;
    m->truncate = q->truncate;
    m->item = calloc(m->n, sizeof(*m->item));
    m->order = calloc(m->n, sizeof(*m->order));
    m->media_order = calloc(m->n, sizeof(*m->media_order));
    m->out = dense ? calloc((size_t)m->n * m->dim, sizeof(float)) : NULL;
    m->task_type = strdup(q->task_type);
    if (m->item == NULL || m->order == NULL || m->media_order == NULL ||
        (dense && m->out == NULL) || m->task_type == NULL)
        return rc_fail(why, RC_NOMEM, "%u vectors of %u values", m->n, m->dim);
    return RC_OK;
}

static enum rc embed_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Embed *q = t->frame->embed;
    struct wrk_embed_ask ask = {.dim = q->dimensions != 0 ? q->dimensions : e->info->embed_dim,
                                .outputs = q->outputs != 0 ? q->outputs : IPC_OUT_DENSE,
                                .first = WRK_NO_ITEM,
                                .per_item = q->per_item,
                                .truncate = q->truncate,
                                .task_type = q->task_type};
    enum rc rc;

    if ((rc = wrk_embed_asked(e, q->model_identity, q->dimensions, why)) != RC_OK ||
        (rc = wrk_outputs_check(e, ask.outputs, "outputs", why)) != RC_OK)
        return rc;
    if (q->n_inputs == 0)
        return rc_fail_what(why, RC_INVALID, "input", "no input to embed");
    ask.n = q->n_inputs < UINT32_MAX ? (uint32_t)q->n_inputs : UINT32_MAX;
    return wrk_embed_open(t, &ask, why);
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
    why->stage = stage;
    if (!m->per_item || idx == m->first)
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

/* Tokens of an input of an Embed (or Decide) task; *later: its files are read when its turn comes.
 */
static enum rc input_tokens(struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                            bool *later, struct rc_err *why)
{
    const Ipc__Embed *q = t->frame->embed;
    const Ipc__EmbedInput *in = q->inputs[it->idx];
    struct wrk_embed *m = t->embed;
    enum rc rc;

    if (in->n_parts > 0 || in->is_group) {
        if ((rc = wrk_embed_parts_check(e, in, later, why)) != RC_OK)
            return rc;
        if (*later && m->outputs != IPC_OUT_DENSE)
            return rc_fail_what(why, RC_UNSUPPORTED, "input",
                                "inputs with files have dense vectors only");
        return *later ? RC_OK : wrk_embed_parts_tokens(e, m, in, NULL, NULL, why);
    }
    if (in->is_tokens)
        return read_tokens(e, m, in, q->truncate, &it->truncated, why);
    return mdl_embed_tokens(e->o.mdl, in->text.data != NULL ? (char *)in->text.data : "",
                            in->text.len, q->task_type, q->truncate, &it->truncated, &m->ids, why);
}

/* Longer than the workspace allows, though not than the model does: a matter of memory, for good
 * (engine.md 4.3, EB-3). Any other failure stays what it is. */
static enum rc too_long(const struct wrk_engine *e, enum rc rc, struct rc_err *why)
{
    const struct mdl_info *i = e->info;
    uint64_t n = why->n, need = n * i->token_work_bytes;

    if (rc != RC_TOO_LARGE || why->limit != i->max_input_tokens || n > i->full_input_tokens ||
        i->full_input_tokens == i->max_input_tokens)
        return rc;
    return rc_bound(rc_fail_what(why, RC_LIMIT, "workspace_mb",
                                 "an input of %llu tokens needs %llu bytes of workspace, "
                                 "workspace_mb allows %llu: inputs of %u tokens",
                                 (unsigned long long)n, (unsigned long long)need,
                                 (unsigned long long)i->work_bytes_allowed, i->max_input_tokens),
                    need, i->work_bytes_allowed, why);
}

static enum rc read_item(struct wrk_engine *e, struct wrk_task *t, uint32_t idx, struct rc_err *why)
{
    struct wrk_embed *m = t->embed;
    struct wrk_item *it = &m->item[idx];
    size_t from = m->ids.n;
    bool later = false;
    enum rc rc;

    it->idx = idx;
    it->run_stage = IPC_STAGE_TEXT_RUN;
    rc = t->rerank != NULL ? wrk_rerank_tokens(e, t, idx, &it->truncated, why)
                           : input_tokens(e, t, it, &later, why);
    rc = too_long(e, rc, why);
    if (rc == RC_OK && later) { /* made ready when its turn to be encoded comes */
        it->at = m->n_media_order;
        m->media_order[m->n_media_order++] = it;
        return RC_OK;
    }
    if (rc == RC_OK && (rc = wrk_embed_item_take(e, m, idx, from, why)) == RC_OK)
        rc = wrk_tokens_count(e, t, it, why);
    if (rc == RC_CANCELLED) /* the task's end, no fault of the item */
        return rc;
    if (rc != RC_OK) {
        m->ids.n = from;
        it->n = 0;
        return wrk_embed_item_failed(m, idx, IPC_STAGE_TEXT_RUN, why);
    }
    if (m->ids.n > WRK_EMBED_TOKENS_MAX)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, t->rerank != NULL ? "documents" : "input",
                                     "more than %u tokens in one request", WRK_EMBED_TOKENS_MAX),
                        m->ids.n, WRK_EMBED_TOKENS_MAX, why);
    m->order[m->n_order++] = it;
    return RC_OK;
}

/* The first one, then by length. */
static int shorter(const void *a, const void *b)
{
    const struct wrk_item *x = *(struct wrk_item *const *)a, *y = *(struct wrk_item *const *)b;

    if (x->goes_first != y->goes_first)
        return x->goes_first ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->idx < y->idx ? -1 : x->idx > y->idx;
}

static size_t cost_of(const struct wrk_task *t, uint32_t idx)
{
    const Ipc__EmbedInput *in;
    size_t cost = 64;

    if (t->rerank != NULL)
        return cost + wrk_rerank_item_bytes(t, idx);
    in = t->frame->embed->inputs[idx];
    cost += in->text.len;
    for (size_t i = 0; i < in->n_parts; i++)
        cost += in->parts[i]->text.len;
    return cost;
}

enum rc wrk_embed_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                          struct rc_err *why)
{
    enum rc rc;

    if (t->embed == NULL &&
        (rc = t->kind == IPC__FRAME__BODY_RERANK ? wrk_rerank_open(e, t, why)
                                                 : embed_open(e, t, why)) != RC_OK)
        return rc;
    while (t->embed->n_read<t->embed->n && * budget> 0) {
        uint32_t idx = t->embed->n_read++;
        size_t cost = cost_of(t, idx);

        *budget -= cost < *budget ? cost : *budget;
        *why = RC_ERR_INIT;
        if ((rc = read_item(e, t, idx, why)) != RC_OK) {
            wrk_rerank_explain(t, why);
            return rc;
        }
    }
    if (t->embed->n_read < t->embed->n)
        return RC_OK;
    if (t->embed->first != WRK_NO_ITEM)
        t->embed->item[t->embed->first].goes_first = true;
    qsort(t->embed->order, t->embed->n_order, sizeof(t->embed->order[0]), shorter);
    for (uint32_t i = 0; i < t->embed->n_order; i++)
        t->embed->order[i]->at = i;
    if (t->embed->n_media_order == 0)
        wrk_task_drop_frame(e, t);
    t->prepared = true;
    return RC_OK;
}
