/* sup_fleet_check.c - the tables of legal frames and the limits inside them.
 *
 * Must never trust a count, an index, a float or a string that came from a worker. What is said of
 * texts (vectors, scores, spans, pieces) is judged in sup_fleet_check_texts.c, of a text that it
 * writes in sup_fleet_check_gen.c.
 * Change with care: loosening a row widens what a hijacked worker can do to the
 * front and to clients. Tests: tests/supervisor/test_sup_fleet_check.c */
#include "sup_fleet_check_impl.h"

#include <stdlib.h>
#include <string.h>

#include "ipc.h"

#define PROMPT_MAX_BYTES 4096
#define VOCAB_MAX (1u << 24)
#define LAYERS_MAX 64

#define LIVE (SUP_W_LOADING | SUP_W_RUNNING | SUP_W_DRAINING)
#define TASKS (SUP_W_RUNNING | SUP_W_DRAINING)
#define TALK (SUP_W_STARTING | LIVE)

static const struct {
    Ipc__Frame__BodyCase body;
    const char *name;
    unsigned about_worker; /* legal with task 0 in these states */
    unsigned about_task;   /* legal with a task number in these states */
} rows[] = {
    /* message                        about the worker  about a task */
    {IPC__FRAME__BODY_READY, "Ready", SUP_W_STARTING, 0},
    {IPC__FRAME__BODY_PROGRESS, "Progress", SUP_W_LOADING, 0},
    {IPC__FRAME__BODY_LOADED, "Loaded", SUP_W_LOADING, 0},
    {IPC__FRAME__BODY_DELTA, "Delta", 0, TASKS},
    {IPC__FRAME__BODY_DONE, "Done", 0, TASKS},
    {IPC__FRAME__BODY_VECTORS, "Vectors", 0, TASKS},
    {IPC__FRAME__BODY_SCORES, "Scores", 0, TASKS},
    {IPC__FRAME__BODY_EXTRACTED, "Extracted", 0, TASKS},
    {IPC__FRAME__BODY_CHUNKS, "Chunks", 0, TASKS},
    {IPC__FRAME__BODY_DECIDED, "Decided", 0, TASKS},
    {IPC__FRAME__BODY_TOKENS, "Tokens", 0, TASKS},
    {IPC__FRAME__BODY_TEXT, "Text", 0, TASKS},
    {IPC__FRAME__BODY_ECHOED, "Echoed", 0, TASKS},
    {IPC__FRAME__BODY_ERROR, "Error", TALK, TASKS},
    {IPC__FRAME__BODY_LOG, "Log", TALK, TASKS},
    {IPC__FRAME__BODY_STATS, "Stats", LIVE, 0},
    {IPC__FRAME__BODY_BEAT, "Beat", LIVE, 0},
};

static bool text_ok(const char *s, size_t max)
{
    size_t n = strnlen(s, max + 1);

    return n <= max && ipc_utf8_valid(s, n);
}

/* "", or 64 digits as clients compare and pin them. */
bool sup_identity_ok(const char *s)
{
    size_t n = strspn(s, "0123456789abcdef");

    return s[n] == '\0' && (n == 0 || n == 64);
}

static enum rc check_loaded(const Ipc__Loaded *l, struct rc_err *err)
{
    if (!text_ok(l->family, SUP_W_NAME_BYTES) || !text_ok(l->arch, SUP_W_NAME_BYTES) ||
        !text_ok(l->backend, SUP_W_NAME_BYTES) || !text_ok(l->kernels, SUP_W_NAME_BYTES) ||
        !text_ok(l->quant, SUP_W_NAME_BYTES) || !text_ok(l->device, SUP_W_NAME_BYTES) ||
        !text_ok(l->compute, SUP_W_NAME_BYTES) || !text_ok(l->default_prompt, PROMPT_MAX_BYTES) ||
        !text_ok(l->note, PROMPT_MAX_BYTES))
        return sup_bad(err, "Loaded: a name is too long or not UTF-8");
    if (!sup_identity_ok(l->model_identity))
        return sup_bad(err, "Loaded: an identity of other than 64 hexadecimal digits");
    if (l->vocab_size == 0 || l->vocab_size > VOCAB_MAX)
        return rc_fail(err, RC_FORMAT, "Loaded: vocab_size %u", l->vocab_size);
    if (l->embed_dim > SUP_DIM_MAX || (l->can_embed && l->embed_dim == 0))
        return rc_fail(err, RC_FORMAT, "Loaded: embed_dim %u", l->embed_dim);
    if (l->token_dim > SUP_DIM_MAX)
        return rc_fail(err, RC_FORMAT, "Loaded: token_dim %u", l->token_dim);
    if (l->ctx_tokens == 0 && !l->probe_only)
        return sup_bad(err, "Loaded: ctx_tokens 0");
    return RC_OK;
}

static enum rc check_ready(const Ipc__Ready *r, struct rc_err *err)
{
    if (r->n_sandbox > LAYERS_MAX)
        return sup_bad(err, "Ready: too many layers");
    for (size_t i = 0; i < r->n_sandbox; i++)
        if (!text_ok(r->sandbox[i]->name, SUP_W_NAME_BYTES) ||
            !text_ok(r->sandbox[i]->detail, PROMPT_MAX_BYTES))
            return sup_bad(err, "Ready: a layer's text is too long or not UTF-8");
    return RC_OK;
}

enum rc sup_check_frame(const Ipc__Frame *f, enum sup_worker_state state, struct rc_err *err)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].body != f->body_case)
            continue;
        if (!((f->task ? rows[i].about_task : rows[i].about_worker) & state))
            return rc_fail(err, RC_STATE, "%s about %s is not legal now", rows[i].name,
                           f->task ? "a task" : "the worker");
        /* also what an Error, a Log or a field nobody knows may carry: it would be
         * unpacked again and again at the cost of all clients */
        if (rows[i].about_worker && protobuf_c_message_get_packed_size(&f->base) > IPC_INLINE_MAX)
            return rc_fail(err, RC_FORMAT, "%s: larger than it may be", rows[i].name);
        switch (f->body_case) {
        case IPC__FRAME__BODY_READY:
            return check_ready(f->ready, err);
        case IPC__FRAME__BODY_LOADED:
            return check_loaded(f->loaded, err);
        case IPC__FRAME__BODY_PROGRESS:
            return text_ok(f->progress->stage, SUP_W_NAME_BYTES)
                       ? RC_OK
                       : sup_bad(err, "Progress: stage is too long or not UTF-8");
        default:
            return RC_OK;
        }
    }
    return rc_fail(err, RC_STATE, "message %d is not for a worker to send", (int)f->body_case);
}

/* ------------------------------------------------------------------ answers */

static uint32_t code_points(const ProtobufCBinaryData *d)
{
    uint32_t n = 0;

    for (size_t i = 0; i < d->len; i++)
        n += (d->data[i] & 0xc0) != 0x80;
    return n;
}

static bool asked_extract(struct sup_asked *a, const Ipc__Extract *q)
{
    Ipc__Extract shape = *q; /* all but the texts */
    size_t n;

    a->n = (uint32_t)q->n_inputs;
    shape.n_inputs = 0;
    n = ipc__extract__get_packed_size(&shape);
    if (!(a->shape = malloc(n + 1)) || !(a->n_units = calloc(q->n_inputs + 1, sizeof(*a->n_units))))
        return false;
    a->n_shape = ipc__extract__pack(&shape, a->shape);
    for (size_t i = 0; i < q->n_inputs; i++)
        a->n_units[i] = q->byte_offsets ? (uint32_t)q->inputs[i].len : code_points(&q->inputs[i]);
    return true;
}

void sup_asked_deinit(struct sup_asked *a)
{
    free(a->finished);
    free(a->shape);
    free(a->n_units);
    a->finished = NULL;
    a->shape = NULL;
    a->n_units = NULL;
}

void sup_asked_again(struct sup_asked *a)
{
    a->n_tokens = a->n_deltas = a->answer_bytes = 0;
    if (a->finished)
        memset(a->finished, 0, (a->n + 63) / 64 * sizeof(*a->finished));
}

bool sup_asked_from(struct sup_asked *a, const Ipc__Frame *q)
{
    memset(a, 0, sizeof(*a));
    a->kind = q->body_case;
    a->n = 1;
    if (q->body_case == IPC__FRAME__BODY_GENERATE) {
        a->n = q->generate->n ? q->generate->n : 1;
        a->max_tokens = q->generate->max_tokens;
        a->top_logprobs = q->generate->top_logprobs;
        a->logprobs = q->generate->logprobs;
        a->echo = q->generate->echo;
        a->tools = q->generate->tools.len > 0;
        a->stream = q->generate->stream;
        a->cached = q->generate->cache_ns.len > 0;
        /* a token is made of one byte at least; a few are added */
        a->n_prompt = q->generate->n_prompt_tokens + q->generate->prompt.len + 8;
    } else if (q->body_case == IPC__FRAME__BODY_EMBED) {
        a->n = (uint32_t)q->embed->n_inputs;
        a->outputs = q->embed->outputs != 0 ? q->embed->outputs : IPC_OUT_DENSE;
    } else if (q->body_case == IPC__FRAME__BODY_RERANK) {
        a->n = (uint32_t)q->rerank->n_documents;
    } else if (q->body_case == IPC__FRAME__BODY_EXTRACT) {
        return asked_extract(a, q->extract);
    } else if (q->body_case == IPC__FRAME__BODY_CHUNK) {
        a->n = q->chunk->max_chunks;
        a->max_tokens = q->chunk->target_tokens;
        a->n_bytes = code_points(&q->chunk->text);
    } else if (q->body_case == IPC__FRAME__BODY_DECIDE) {
        const Ipc__Decide *d = q->decide;

        a->n = (uint32_t)d->n_inputs;
        a->dimensions = d->dimensions;
        for (size_t i = 0; i < d->n_questions && i < IPC_DECIDE_QUESTIONS; i++) {
            a->n_choices[a->n_questions] = (uint8_t)d->questions[i]->n_choices;
            a->multi[a->n_questions++] = d->questions[i]->kind == 2;
        }
    } else if (q->body_case == IPC__FRAME__BODY_ECHO) {
        a->n_bytes = q->echo->data.len;
    }
    return true;
}

static enum rc check_tokens(const Ipc__Tokens *t, uint32_t vocab, struct rc_err *err)
{
    if (!sup_tokens_ok(t->ids, t->n_ids, vocab))
        return sup_bad(err, "Tokens: a token is outside the vocabulary");
    if ((t->n_pieces && t->n_pieces != t->n_ids) ||
        (t->n_offsets && t->n_offsets / 2 != t->n_ids) || t->n_offsets % 2)
        return sup_bad(err, "Tokens: the lists have different lengths");
    for (size_t i = 0; i + 1 < t->n_offsets; i += 2)
        if (t->offsets[i] > t->offsets[i + 1])
            return sup_bad(err, "Tokens: an offset ends before it begins");
    return RC_OK;
}

static const struct {
    Ipc__Frame__BodyCase asked, answer;
    bool last;
} answers[] = {
    {IPC__FRAME__BODY_GENERATE, IPC__FRAME__BODY_DELTA, false},
    {IPC__FRAME__BODY_GENERATE, IPC__FRAME__BODY_DONE, true},
    {IPC__FRAME__BODY_EMBED, IPC__FRAME__BODY_VECTORS, true},
    {IPC__FRAME__BODY_RERANK, IPC__FRAME__BODY_SCORES, true},
    {IPC__FRAME__BODY_EXTRACT, IPC__FRAME__BODY_EXTRACTED, true},
    {IPC__FRAME__BODY_CHUNK, IPC__FRAME__BODY_CHUNKS, true},
    {IPC__FRAME__BODY_DECIDE, IPC__FRAME__BODY_DECIDED, true},
    {IPC__FRAME__BODY_TOKENIZE, IPC__FRAME__BODY_TOKENS, true},
    {IPC__FRAME__BODY_DETOKENIZE, IPC__FRAME__BODY_TEXT, true},
    {IPC__FRAME__BODY_ECHO, IPC__FRAME__BODY_ECHOED, true},
};

enum rc sup_check_answer(struct sup_asked *a, const Ipc__Frame *f, const Ipc__Loaded *model,
                         bool *out_last, struct rc_err *err)
{
    uint32_t vocab = model ? model->vocab_size : 0;

    if (f->body_case == IPC__FRAME__BODY_ERROR) {
        *out_last = true;
        return RC_OK; /* its text is cleaned by ipc_error_to */
    }
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        if (answers[i].asked != a->kind || answers[i].answer != f->body_case)
            continue;
        *out_last = answers[i].last;
        switch (f->body_case) {
        case IPC__FRAME__BODY_DELTA:
            return sup_check_delta(a, f->delta, model, err);
        case IPC__FRAME__BODY_DONE:
            return sup_check_done(a, f->done, model, err);
        case IPC__FRAME__BODY_VECTORS:
            return sup_check_vectors(a, f->vectors, model, err);
        case IPC__FRAME__BODY_SCORES:
            return sup_check_scores(a, f->scores, model, err);
        case IPC__FRAME__BODY_EXTRACTED:
            return sup_check_extracted(a, f->extracted, err);
        case IPC__FRAME__BODY_CHUNKS:
            return sup_check_chunks(a, f->chunks, err);
        case IPC__FRAME__BODY_DECIDED:
            return sup_check_decided(a, f->decided, model, err);
        case IPC__FRAME__BODY_TOKENS:
            return check_tokens(f->tokens, vocab, err);
        case IPC__FRAME__BODY_TEXT:
            return ipc_utf8_valid(f->text->text.data, f->text->text.len)
                       ? RC_OK
                       : sup_bad(err, "Text: not UTF-8");
        default:
            return f->echoed->data.len == a->n_bytes ? RC_OK
                                                     : sup_bad(err, "Echoed: another length");
        }
    }
    return rc_fail(err, RC_STATE, "answer %d to task kind %d", (int)f->body_case, (int)a->kind);
}
