/* sup_tokens.c - POST /ai/v1/tokenize, /ai/v1/detokenize, /ai/v1/echo.
 *
 * The small tasks of a worker. Echo is the null task: the body travels through the
 * worker and comes back as it was; it measures the way, and shows that a model's
 * worker answers. Tests: tests/supervisor/test_sup_api_models.c
 */
#include "sup_endpoints.h"

#include <stdlib.h>

#include "sup_call.h"

/* Its answer is up to seventeen times as large, and all clients wait while it is
 * written. */
#define TEXT_MAX (1u << 20)

struct tokens {
    struct sup_call call;
    struct sup_json out;
};

static void deinit(struct sup_call *c)
{
    sup_json_deinit(&((struct tokens *)c)->out);
}

static void finish(struct sup_call *c)
{
    sup_call_reply(c, &((struct tokens *)c)->out);
}

static bool submit(struct sup_call *c, Ipc__Frame *fr, struct sup_fail *f)
{
    return sup_call_parts(c, 1, f) && sup_call_submit(c, 0, fr, f);
}

/* -------------------------------------------------------------------- tokenize */

#define TOKENIZE_FIELDS(X)                                           \
    X(TEXT, "text", ANY, true, 0, 0, 0, "a string")                  \
    X(ADD_SPECIAL, "add_special_tokens", BOOL, false, 0, 1, 1, NULL) \
    X(PARSE_SPECIAL, "parse_special", BOOL, false, 0, 1, 1, NULL)

enum {
#define X(id, name, type, req, min, max, def, words) TOK_##id,
    TOKENIZE_FIELDS(X)
#undef X
        TOK_N
};
static const struct sup_field tokenize_fields[TOK_N] = {TOKENIZE_FIELDS(SUP_FIELD_ROW)};

static bool tokenize_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    Ipc__Tokenize q = IPC__TOKENIZE__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;
    json_t *text = v[TOK_TEXT].j;

    if (!json_is_string(text)) {
        sup_field_bad(f, "text", text, "a string");
        return false;
    }
    if (json_string_length(text) > TEXT_MAX) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "text",
                     "field 'text': got a string of %zu bytes, expected at most %u",
                     json_string_length(text), TEXT_MAX);
        return false;
    }
    q.text.data = (uint8_t *)(uintptr_t)json_string_value(text);
    q.text.len = json_string_length(text);
    q.add_special = v[TOK_ADD_SPECIAL].b;
    q.parse_special = v[TOK_PARSE_SPECIAL].b;
    fr.body_case = IPC__FRAME__BODY_TOKENIZE;
    fr.tokenize = &q;
    return submit(c, &fr, f);
}

static void tokenize_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_json *o = &((struct tokens *)c)->out;
    const Ipc__Tokens *t = fr->tokens;

    if (fr->body_case != IPC__FRAME__BODY_TOKENS)
        return;
    sup_json_str(o, "{\"model\":");
    sup_json_quoted(o, c->model);
    sup_json_fmt(o, ",\"count\":%zu,\"tokens\":[", t->n_ids);
    for (size_t i = 0; i < t->n_ids; i++) {
        if (i)
            sup_json_put(o, ",", 1);
        sup_json_u64(o, t->ids[i]);
    }
    sup_json_str(o, "],\"pieces\":[");
    for (size_t i = 0; i < t->n_pieces; i++) {
        sup_json_str(o, i ? ",\"" : "\"");
        sup_json_text(o, t->pieces[i].data, t->pieces[i].len);
        sup_json_put(o, "\"", 1);
    }
    sup_json_str(o, "],\"offsets\":[");
    for (size_t i = 0; i + 1 < t->n_offsets; i += 2) {
        sup_json_str(o, i ? ",[" : "[");
        sup_json_u64(o, t->offsets[i]);
        sup_json_put(o, ",", 1);
        sup_json_u64(o, t->offsets[i + 1]);
        sup_json_put(o, "]", 1);
    }
    sup_json_str(o, "]}");
}

const struct sup_call_ops sup_tokenize_ops = {
    .size = sizeof(struct tokens),
    .fields = tokenize_fields,
    .n_fields = TOK_N,
    .start = tokenize_start,
    .frame = tokenize_frame,
    .finish = finish,
    .deinit = deinit,
};

/* ------------------------------------------------------------------ detokenize */

#define DETOKENIZE_FIELDS(X)                                                  \
    X(TOKENS, "tokens", ANY, true, 0, 0, 0, "a non-empty array of token ids") \
    X(SKIP_SPECIAL, "skip_special_tokens", BOOL, false, 0, 1, 0, NULL)

enum {
#define X(id, name, type, req, min, max, def, words) DETOK_##id,
    DETOKENIZE_FIELDS(X)
#undef X
        DETOK_N
};
static const struct sup_field detokenize_fields[DETOK_N] = {DETOKENIZE_FIELDS(SUP_FIELD_ROW)};

static bool detokenize_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    Ipc__Detokenize q = IPC__DETOKENIZE__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;
    uint32_t *ids;
    bool ok;

    if (!(ids = sup_ids_read(v[DETOK_TOKENS].j, "tokens", c->vocab_size, &q.n_tokens, f)))
        return false;
    q.tokens = ids;
    q.skip_special = v[DETOK_SKIP_SPECIAL].b;
    fr.body_case = IPC__FRAME__BODY_DETOKENIZE;
    fr.detokenize = &q;
    ok = submit(c, &fr, f);
    free(ids);
    return ok;
}

static void detokenize_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_json *o = &((struct tokens *)c)->out;

    if (fr->body_case != IPC__FRAME__BODY_TEXT)
        return;
    sup_json_str(o, "{\"model\":");
    sup_json_quoted(o, c->model);
    sup_json_str(o, ",\"text\":\"");
    sup_json_text(o, fr->text->text.data, fr->text->text.len);
    sup_json_str(o, "\"}");
}

const struct sup_call_ops sup_detokenize_ops = {
    .size = sizeof(struct tokens),
    .fields = detokenize_fields,
    .n_fields = DETOK_N,
    .start = detokenize_start,
    .frame = detokenize_frame,
    .finish = finish,
    .deinit = deinit,
};

/* ------------------------------------------------------------------------ echo */

static bool echo_start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    Ipc__Echo q = IPC__ECHO__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;
    const char *body = sup_req_body(c->req, &q.data.len);

    q.data.data = (uint8_t *)(uintptr_t)body;
    fr.body_case = IPC__FRAME__BODY_ECHO;
    fr.echo = &q;
    return submit(c, &fr, f);
}

static void echo_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    if (fr->body_case == IPC__FRAME__BODY_ECHOED)
        sup_json_put(&((struct tokens *)c)->out, fr->echoed->data.data, fr->echoed->data.len);
}

static void echo_finish(struct sup_call *c)
{
    struct sup_json *o = &((struct tokens *)c)->out;

    if (o->failed)
        sup_call_reply(c, o);
    else
        sup_call_reply_raw(c, "application/octet-stream", o->p, o->n);
}

const struct sup_call_ops sup_echo_ops = {
    .size = sizeof(struct tokens),
    .raw_body = true,
    .start = echo_start,
    .frame = echo_frame,
    .finish = echo_finish,
    .deinit = deinit,
};
