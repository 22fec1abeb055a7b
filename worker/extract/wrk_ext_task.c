/* wrk_ext_task.c - Extract tasks: checked and cut into windows bit by bit.
 *
 * A task's schemas become prompts first, then every text becomes words, windows and their tokens,
 * one window at a time as the step's budget allows. Everything is bounded: inputs, bytes, labels,
 * tokens of a window and of the task. The request's frame is kept to the end: names and texts are
 * read from there.
 * Tests: tests/worker/test_wrk_engine_extract.c
 */
#include "wrk_ext_impl.h"

#include <stdlib.h>
#include <string.h>

static const struct wrk_window_size window_size = {WRK_WINDOW_WORDS, WRK_WINDOW_OVERLAP};

const struct wrk_schema *wrk_ext_schema(const struct wrk_extract *x, uint32_t item)
{
    return x->schema[x->q->n_schema_of > 0 ? x->q->schema_of[item] : 0];
}

static void window_free(struct wrk_ext_window **pw)
{
    struct wrk_ext_window *w = *pw;

    if (w == NULL)
        return;
    wrk_view_deinit(&w->view);
    wrk_finds_deinit(&w->finds);
    free(w);
    *pw = NULL;
}

void wrk_extract_free(struct wrk_engine *e, struct wrk_task *t)
{
    struct wrk_extract *x = t->extract;

    if (x == NULL)
        return;
    for (uint32_t i = 0; i < x->n_windows; i++)
        window_free(&x->window[i]);
    for (uint32_t i = 0; x->item != NULL && i < x->n; i++)
        wrk_finds_deinit(&x->item[i].finds);
    for (size_t i = 0; x->schema != NULL && i < x->q->n_schemas; i++)
        wrk_schema_free(&x->schema[i]);
    wrk_words_deinit(&x->words);
    free(x->schema);
    free(x->item);
    free(x->window);
    free(x->bad);
    free(x);
    t->extract = NULL;
}

/* --------------------------------------------------------------------- schemas */

static enum rc check_request(const struct wrk_engine *e, const Ipc__Extract *q, struct rc_err *why)
{
    if (!e->info->can_extract)
        return rc_fail_what(why, RC_UNSUPPORTED, "model", "this model does not extract");
    if (q->model_identity[0] != '\0' && strcmp(q->model_identity, e->info->identity) != 0)
        return rc_fail_what(why, RC_CONFLICT, "model_identity",
                            "the request is for model identity '%.64s', loaded is '%.64s'",
                            q->model_identity, e->info->identity);
    if (q->n_inputs == 0)
        return rc_fail_what(why, RC_INVALID, "inputs", "no input to extract from");
    if (q->n_inputs > IPC_EXTRACT_INPUTS)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "inputs", "%zu inputs, at most %u",
                                     q->n_inputs, IPC_EXTRACT_INPUTS),
                        q->n_inputs, IPC_EXTRACT_INPUTS, why);
    if (q->n_schemas == 0 || q->n_schemas > IPC_EXTRACT_SCHEMAS)
        return rc_fail_what(why, RC_INVALID, "schema", "%zu schemas, expected 1 to %u",
                            q->n_schemas, IPC_EXTRACT_SCHEMAS);
    if (q->n_item_of != 0 && q->n_item_of != q->n_inputs)
        return rc_fail_what(why, RC_INVALID, "inputs", "%zu inputs have %zu names", q->n_inputs,
                            q->n_item_of);
    if (q->n_schema_of != 0 && q->n_schema_of != q->n_inputs)
        return rc_fail_what(why, RC_INVALID, "schema", "%zu inputs name %zu schemas", q->n_inputs,
                            q->n_schema_of);
    for (size_t i = 0; i < q->n_schema_of; i++)
        if (q->schema_of[i] >= q->n_schemas)
            return rc_fail_what(why, RC_INVALID, "schema", "input %zu names schema %u of %zu", i,
                                q->schema_of[i], q->n_schemas);
    if (!(q->threshold >= 0 && q->threshold <= 1))
        return rc_fail_what(why, RC_INVALID, "threshold", "threshold %g is outside 0 to 1",
                            (double)q->threshold);
    return RC_OK;
}

/* What one sequence may hold beside tokens (mdl.h). */
static enum rc check_size(const struct wrk_schema *s, struct rc_err *why)
{
    for (uint32_t i = 0; i < s->n_prompts; i++)
        if (!s->ask[i].is_classes && s->ask[i].n_fields > MDL_EXTRACT_WORDS)
            return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "schema",
                                         "%u labels or fields in one list, at most %u",
                                         s->ask[i].n_fields, MDL_EXTRACT_WORDS),
                            s->ask[i].n_fields, MDL_EXTRACT_WORDS, why);
    if (s->n_prefix > MDL_EXTRACT_WORDS - WRK_WINDOW_WORDS - 1)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "schema",
                                     "the schema's choices are spelled with %u words, at most %u",
                                     s->n_prefix, MDL_EXTRACT_WORDS - WRK_WINDOW_WORDS - 1),
                        s->n_prefix, MDL_EXTRACT_WORDS - WRK_WINDOW_WORDS - 1, why);
    return RC_OK;
}

static enum rc extract_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Extract *q = t->frame->extract;
    struct wrk_extract *x;
    enum rc rc;

    if ((rc = check_request(e, q, why)) != RC_OK)
        return rc;
    if ((t->extract = x = calloc(1, sizeof(*x))) == NULL)
        return rc_fail(why, RC_NOMEM, "an extraction");
    x->q = q;
    x->n = (uint32_t)q->n_inputs;
    x->schema = calloc(q->n_schemas, sizeof(*x->schema));
    x->item = calloc(x->n, sizeof(*x->item));
    if (x->schema == NULL || x->item == NULL)
        return rc_fail(why, RC_NOMEM, "an extraction from %u inputs", x->n);
    for (size_t i = 0; i < q->n_schemas; i++) {
        if ((rc = wrk_schema_check(q->schemas[i], why)) == RC_OK &&
            (rc = wrk_schema_new(&x->schema[i], q->schemas[i], mdl_tok_get(e->o.mdl), &e->stop,
                                 e->info->max_input_tokens - 1, why)) == RC_OK)
            rc = check_size(x->schema[i], why);
        if (rc != RC_OK && rc != RC_CANCELLED && q->n_schemas > 1)
            rc_wrap(why, "schema %zu", i);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* --------------------------------------------------------------------- windows */

/* What a window holds is of no more use. */
static void window_drop(struct wrk_extract *x, struct wrk_ext_window *w)
{
    x->n_held -= w->n_spans;
    w->n_spans = 0;
    w->done = true;
    wrk_finds_deinit(&w->finds);
    wrk_view_deinit(&w->view);
}

enum rc wrk_ext_item_failed(struct wrk_extract *x, uint32_t item, struct rc_err *why)
{
    why->item = (int32_t)item;
    why->stage = IPC_STAGE_TEXT_RUN;
    if (!x->q->per_item) {
        if (x->q->n_item_of > 0)
            why->item = (int32_t)x->q->item_of[item];
        return why->code;
    }
    if (x->item[item].failed)
        return RC_OK;
    if (x->n_bad == x->cap_bad) {
        uint32_t cap = x->cap_bad == 0 ? 8 : x->cap_bad * 2;
        struct rc_err *p = realloc(x->bad, cap * sizeof(*p));

        if (p == NULL)
            return rc_fail(why, RC_NOMEM, "item errors");
        x->bad = p;
        x->cap_bad = cap;
    }
    x->bad[x->n_bad++] = *why;
    x->item[item].failed = true;
    wrk_finds_deinit(&x->item[item].finds);
    for (uint32_t i = 0; i < x->item[item].n_windows; i++)
        window_drop(x, x->window[x->item[item].first + i]);
    x->n_done++;
    return RC_OK;
}

static enum rc add_window(struct wrk_extract *x, struct wrk_ext_window **out, struct rc_err *why)
{
    if (x->n_windows == x->cap_windows) {
        uint32_t cap = x->cap_windows ? 2 * x->cap_windows : 16;
        struct wrk_ext_window **p = realloc(x->window, cap * sizeof(struct wrk_ext_window *));

        if (p == NULL)
            return rc_fail(why, RC_NOMEM, "%u windows", cap);
        x->window = p;
        x->cap_windows = cap;
    }
    if ((*out = calloc(1, sizeof(**out))) == NULL)
        return rc_fail(why, RC_NOMEM, "a window");
    x->window[x->n_windows++] = *out;
    return RC_OK;
}

/* The next window of the input that is being read. */
static enum rc cut_window(struct wrk_engine *e, struct wrk_extract *x, uint32_t i,
                          struct rc_err *why)
{
    const ProtobufCBinaryData *in = &x->q->inputs[i];
    const char *text = in->data != NULL ? (const char *)in->data : "";
    const struct wrk_schema *s = wrk_ext_schema(x, i);
    uint32_t n_windows = wrk_windows((uint32_t)x->words.n, &window_size), first = 0, n = 0;
    size_t room = e->info->max_input_tokens - s->ids.n, at = 0, to = in->len;
    struct wrk_ext_window *w;
    enum rc rc = add_window(x, &w, why);

    if (rc != RC_OK)
        return rc;
    w->item = i;
    if (n_windows > 1) {
        wrk_window((uint32_t)x->words.n, &window_size, x->n_cut, &first, &n);
        at = x->words.w[first].at;
        to = x->words.w[first + n - 1].to;
    }
    x->n_cut++;
    x->item[i].n_windows++;
    rc = wrk_view_init(&w->view, text + at, to - at, n_windows > 1 ? window_size.words : 0,
                       mdl_tok_get(e->o.mdl), &e->stop, room, why);
    if (rc != RC_OK)
        return rc;
    if (n_windows > 1) {
        w->view.at0 = (uint32_t)at;
        w->view.point0 = x->words.w[first].start;
    }
    x->item[i].n_tokens += (uint32_t)(s->ids.n + w->view.ids.n);
    x->n_tokens += s->ids.n + w->view.ids.n;
    if (x->n_tokens > WRK_EXTRACT_TOKENS_MAX)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "inputs",
                                     "more than %u tokens in the windows of one request, schemas "
                                     "included",
                                     WRK_EXTRACT_TOKENS_MAX),
                        x->n_tokens, WRK_EXTRACT_TOKENS_MAX, why);
    return RC_OK;
}

/* The words of an input, then a window of it. */
static enum rc read_some(struct wrk_engine *e, struct wrk_extract *x, uint32_t i,
                         struct rc_err *why)
{
    const ProtobufCBinaryData *in = &x->q->inputs[i];
    enum rc rc;

    if (x->is_split)
        return cut_window(e, x, i, why);
    x->item[i].first = x->n_windows;
    x->n_cut = 0;
    if (in->len > IPC_EXTRACT_INPUT_BYTES)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "inputs", "a text of %zu bytes, at most %u",
                                     in->len, IPC_EXTRACT_INPUT_BYTES),
                        in->len, IPC_EXTRACT_INPUT_BYTES, why);
    rc = wrk_words_split(in->data != NULL ? (const char *)in->data : "", in->len, &e->stop,
                         &x->words, why);
    x->is_split = rc == RC_OK;
    return rc;
}

enum rc wrk_extract_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                            struct rc_err *why)
{
    struct wrk_extract *x;
    enum rc rc;

    if (t->extract == NULL) {
        if ((rc = extract_open(e, t, why)) != RC_OK)
            return rc;
        *budget -= t->frame_bytes < *budget ? t->frame_bytes : *budget;
    }
    x = t->extract;
    while (x->n_read<x->n && * budget> 0) {
        uint32_t i = x->n_read;
        size_t cost = x->is_split ? 4096 : x->q->inputs[i].len / 8 + 64;

        *budget -= cost < *budget ? cost : *budget;
        *why = RC_ERR_INIT;
        rc = read_some(e, x, i, why);
        if (rc == RC_CANCELLED) /* the task's end, no fault of the input */
            return rc;
        if (rc != RC_OK && (x->n_tokens > WRK_EXTRACT_TOKENS_MAX ||
                            (rc = wrk_ext_item_failed(x, i, why)) != RC_OK))
            return why->code;
        if (x->item[i].failed ||
            (x->is_split && x->n_cut == wrk_windows((uint32_t)x->words.n, &window_size))) {
            x->item[i].n_left = x->item[i].n_windows;
            x->is_split = false;
            x->n_read++;
        }
    }
    if (x->n_read == x->n) {
        wrk_words_deinit(&x->words);
        t->prepared = true;
    }
    return RC_OK;
}

/* --------------------------------------------------------------------- windows done */

static uint64_t count_spans(const struct wrk_finds *f)
{
    return f->n_entities + 2 * f->n_relations + f->n_values;
}

enum rc wrk_ext_window_done(struct wrk_extract *x, struct wrk_ext_window *w, struct rc_err *why)
{
    struct wrk_ext_item *it = &x->item[w->item];
    const ProtobufCBinaryData *in = &x->q->inputs[w->item];
    struct wrk_finds *finds;
    struct wrk_view *views;
    enum rc rc = RC_OK;

    w->done = true;
    w->n_spans = count_spans(&w->finds);
    x->n_held += w->n_spans;
    if (x->n_spans + x->n_held > IPC_EXTRACT_SPANS)
        return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "threshold",
                                     "more than %u spans found in one request; a higher threshold "
                                     "finds fewer",
                                     IPC_EXTRACT_SPANS),
                        x->n_spans + x->n_held, IPC_EXTRACT_SPANS, why);
    if (--it->n_left > 0)
        return RC_OK;
    finds = calloc(it->n_windows, sizeof(*finds));
    views = calloc(it->n_windows, sizeof(*views));
    if (finds == NULL || views == NULL)
        rc = rc_fail(why, RC_NOMEM, "%u windows", it->n_windows);
    for (uint32_t i = 0; rc == RC_OK && i < it->n_windows; i++) {
        struct wrk_ext_window *p = x->window[it->first + i];

        finds[i] = p->finds; /* theirs from here on; views are looked at only */
        p->finds = (struct wrk_finds){0};
        views[i] = p->view;
    }
    if (rc == RC_OK)
        rc = wrk_finds_merge(&it->finds, finds, views, it->n_windows, wrk_ext_schema(x, w->item),
                             in->data != NULL ? (const char *)in->data : "", in->len, x->q->flat,
                             why);
    for (uint32_t i = 0; i < it->n_windows; i++) {
        if (finds != NULL)
            wrk_finds_deinit(&finds[i]);
        window_drop(x, x->window[it->first + i]);
    }
    free(finds);
    free(views);
    if (rc != RC_OK)
        return rc;
    x->n_spans += count_spans(&it->finds); /* no more than the windows held */
    x->n_done++;
    return RC_OK;
}
