/* sup_cost.c - prices by kind of task (see sup_cost.h).
 *
 * Change freely: the numbers in the header; docs/admission.md repeats them.
 * Tests: tests/supervisor/test_sup_cost.c
 */
#include "sup_cost.h"

#include <string.h>

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return b > 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t sup_cost_all(const struct sup_cost *c)
{
    return plus(c->prompt, c->answer);
}

static uint64_t of_bytes(uint64_t n)
{
    return n / SUP_COST_TEXT_BYTES + (n % SUP_COST_TEXT_BYTES != 0);
}

static uint64_t of_text(const ProtobufCBinaryData *t)
{
    return of_bytes(t->len);
}

static uint64_t of_generate(const Ipc__Generate *q)
{
    uint64_t n = plus(of_text(&q->prompt), q->n_prompt_tokens);

    n = plus(n, of_text(&q->tools));
    for (size_t i = 0; i < q->n_messages; i++) {
        const Ipc__ChatMessage *m = q->messages[i];

        n = plus(n, of_text(&m->content));
        n = plus(n, plus(of_text(&m->reasoning), of_text(&m->tool_calls)));
    }
    return n;
}

static uint64_t of_part(const Ipc__EmbedPart *p)
{
    if (!p->is_media)
        return of_text(&p->text);
    return strncmp(p->mime, "audio/", 6) == 0 ? SUP_COST_SOUND : SUP_COST_PICTURE;
}

static uint64_t of_embed(const Ipc__Embed *q)
{
    uint64_t n = 0;

    for (size_t i = 0; i < q->n_inputs; i++) {
        const Ipc__EmbedInput *in = q->inputs[i];

        n = plus(n, plus(of_text(&in->text), in->n_tokens));
        n = plus(n, of_text(&in->title));
        for (size_t k = 0; k < in->n_parts; k++)
            n = plus(n, of_part(in->parts[k]));
    }
    return n;
}

/* As pairs: a cross-encoder reads the query with each document. */
static uint64_t of_rerank(const Ipc__Rerank *q)
{
    uint64_t n = times(of_text(&q->query), q->n_documents);

    for (size_t i = 0; i < q->n_documents; i++)
        n = plus(n, of_text(&q->documents[i]));
    return n;
}

/* The schema goes before each text. */
static uint64_t of_extract(const Ipc__Extract *q)
{
    uint64_t schemas = 0, n = 0;

    for (size_t i = 0; i < q->n_schemas; i++)
        schemas = plus(schemas, of_bytes(ipc__extract_schema__get_packed_size(q->schemas[i])));
    for (size_t i = 0; i < q->n_inputs; i++)
        n = plus(n, of_text(&q->inputs[i]));
    if (q->n_schemas > 0)
        n = plus(n, times(schemas / q->n_schemas, q->n_inputs));
    return n;
}

static uint64_t of_decide(const Ipc__Decide *q)
{
    uint64_t n = 0;

    for (size_t i = 0; i < q->n_questions; i++)
        n = plus(n, of_bytes(ipc__decide_question__get_packed_size(q->questions[i])));
    for (size_t i = 0; i < q->n_inputs; i++)
        n = plus(n, of_text(&q->inputs[i]));
    return n;
}

static uint64_t of_task(const Ipc__Frame *f)
{
    switch (f->body_case) {
    case IPC__FRAME__BODY_GENERATE:
        return of_generate(f->generate);
    case IPC__FRAME__BODY_EMBED:
        return of_embed(f->embed);
    case IPC__FRAME__BODY_RERANK:
        return of_rerank(f->rerank);
    case IPC__FRAME__BODY_EXTRACT:
        return of_extract(f->extract);
    case IPC__FRAME__BODY_DECIDE:
        return of_decide(f->decide);
    case IPC__FRAME__BODY_TOKENIZE:
        return of_text(&f->tokenize->text) / SUP_COST_TEXT_WORK;
    case IPC__FRAME__BODY_DETOKENIZE:
        return f->detokenize->n_tokens / SUP_COST_TEXT_WORK;
    case IPC__FRAME__BODY_CHUNK:
        return of_text(&f->chunk->text) / SUP_COST_TEXT_WORK;
    case IPC__FRAME__BODY_ECHO:
        return 0;
    default: /* a kind without a row here: its bytes are a text */
        return of_bytes(ipc__frame__get_packed_size(f));
    }
}

struct sup_cost sup_cost_asked(const Ipc__Frame *task)
{
    struct sup_cost c = {.prompt = of_task(task)};

    if (c.prompt == 0)
        c.prompt = 1;
    if (task->body_case == IPC__FRAME__BODY_GENERATE)
        c.answer = times(task->generate->max_tokens, task->generate->n);
    return c;
}

static uint64_t sum(const uint32_t *v, size_t n)
{
    uint64_t s = 0;

    for (size_t i = 0; i < n; i++)
        s += v[i];
    return s;
}

bool sup_cost_told(const Ipc__Frame *f, struct sup_cost *out)
{
    struct sup_cost c = {0};

    switch (f->body_case) {
    case IPC__FRAME__BODY_DONE:
        c.prompt = f->done->prompt_tokens;
        c.answer = f->done->completion_tokens;
        c.cached = f->done->cached_tokens < c.prompt ? f->done->cached_tokens : c.prompt;
        break;
    case IPC__FRAME__BODY_VECTORS:
        c.prompt = sum(f->vectors->n_tokens, f->vectors->n_n_tokens) +
                   sum(f->vectors->n_media_tokens, f->vectors->n_n_media_tokens);
        break;
    case IPC__FRAME__BODY_SCORES:
        c.prompt = sum(f->scores->n_tokens, f->scores->n_n_tokens) + f->scores->query_tokens;
        break;
    case IPC__FRAME__BODY_EXTRACTED:
        for (size_t i = 0; i < f->extracted->n_items; i++)
            c.prompt += f->extracted->items[i]->n_tokens;
        break;
    case IPC__FRAME__BODY_DECIDED:
        c.prompt = f->decided->input_tokens;
        break;
    case IPC__FRAME__BODY_CHUNKS:
        c.prompt = f->chunks->n_tokens / SUP_COST_TEXT_WORK;
        break;
    default:
        return false;
    }
    if (c.prompt == 0)
        c.prompt = 1;
    *out = c;
    return true;
}
