/* sup_chat.c - POST /v1/chat/completions, /ai/v1/chat/completions, /ai/v1/generate.
 *
 * Messages and chat's own fields to a Generate frame; the answer is sup_gen.c's.
 * What this server or the model cannot do is refused by name, never
 * silently dropped; tools and thinking are sup_tools.c's. The text of messages stays text: no
 * control token can come from it, the worker sees to that. Tests:
 * tests/supervisor/test_sup_api_gen.c
 */
#include "sup_gen.h"
#include "sup_tools.h"

#include <stdio.h>
#include <string.h>

#define MESSAGES_MAX 16384

#define CHAT_FIELDS(X)                                                             \
    SUP_GEN_FIELDS(X)                                                              \
    X(MESSAGES, "messages", ANY, true, 0, 0, 0, "a non-empty array of messages")   \
    X(MAX_COMPLETION, "max_completion_tokens", INT, false, 1, 2147483647, 0, NULL) \
    X(LOGPROBS, "logprobs", BOOL, false, 0, 1, 0, NULL)                            \
    X(TOP_LOGPROBS, "top_logprobs", INT, false, 0, 20, 0, NULL)                    \
    SUP_TOOL_FIELDS(X)                                                             \
    X(EFFORT, "reasoning_effort", ANY, false, 0, 0, 0,                             \
      "one of none, minimal, low, medium, high, xhigh")                            \
    X(FUNCTIONS, "functions", ANY, false, 0, 0, 0, "an array")                     \
    X(FUNCTION_CALL, "function_call", ANY, false, 0, 0, 0, "\"none\"")             \
    X(MODALITIES, "modalities", ANY, false, 0, 0, 0, "[\"text\"]")                 \
    X(AUDIO, "audio", REFUSE, false, 0, 0, 0, NULL)                                \
    X(WEB_SEARCH, "web_search_options", REFUSE, false, 0, 0, 0, NULL)

enum {
#define X(id, name, type, req, min, max, def, words) CHAT_##id,
    CHAT_FIELDS(X)
#undef X
        CHAT_N
};
_Static_assert(CHAT_N <= SUP_FIELDS_MAX, "struct sup_val array of sup_call.c");

static const struct sup_field chat_fields[CHAT_N] = {CHAT_FIELDS(SUP_FIELD_ROW)};

/* Content of one message when it is a list of parts: text parts joined by newlines. */
static bool read_parts(struct sup_gen *g, json_t *parts, size_t at, ProtobufCBinaryData *out,
                       struct sup_fail *f)
{
    size_t n = json_array_size(parts), total = 0, i;
    char name[64];
    uint8_t *to;
    json_t *p;

    json_array_foreach(parts, i, p)
    {
        const char *type = json_string_value(json_object_get(p, "type"));
        json_t *text = json_object_get(p, "text");

        snprintf(name, sizeof(name), "messages[%zu].content[%zu]", at, i);
        if (!json_is_object(p) || !type) {
            sup_field_bad(f, name, p, "an object with a 'type'");
            return false;
        }
        if (strcmp(type, "text") != 0) {
            sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                         "field '%s': content part of type \"%.40s\" is not supported by this "
                         "model, expected \"text\" (pictures and sounds, inline or by URL, are "
                         "for embeddings)",
                         name, type);
            return false;
        }
        if (!json_is_string(text)) {
            snprintf(name, sizeof(name), "messages[%zu].content[%zu].text", at, i);
            sup_field_bad(f, name, text, "a string");
            return false;
        }
        total += json_string_length(text) + 1;
    }
    if (!(to = sup_call_alloc(&g->call, total)))
        return sup_fail_no_memory(f);
    out->data = to;
    json_array_foreach(parts, i, p)
    {
        json_t *text = json_object_get(p, "text");

        memcpy(to, json_string_value(text), json_string_length(text));
        to += json_string_length(text);
        if (i + 1 < n)
            *to++ = '\n';
    }
    out->len = (size_t)(to - out->data);
    return true;
}

static bool read_content(struct sup_gen *g, json_t *c, size_t at, ProtobufCBinaryData *out,
                         struct sup_fail *f)
{
    char name[48];

    if (json_is_string(c)) {
        out->data = (uint8_t *)(uintptr_t)json_string_value(c);
        out->len = json_string_length(c);
        return true;
    }
    if (json_is_array(c) && json_array_size(c) > 0)
        return read_parts(g, c, at, out, f);
    snprintf(name, sizeof(name), "messages[%zu].content", at);
    sup_field_bad(f, name, c, "a string or a non-empty array of content parts");
    return false;
}

/* The role as the worker knows it, or NULL and *f. */
static const char *read_role(const struct sup_gen *g, json_t *m, size_t at, struct sup_fail *f)
{
    static const char *const known[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"},
                                           {"tool", "tool"}};
    const char *role = json_string_value(json_object_get(m, "role"));
    char name[48];

    snprintf(name, sizeof(name), "messages[%zu].role", at);
    for (size_t i = 0; role && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(role, known[i][0]) == 0 &&
            json_string_length(json_object_get(m, "role")) == strlen(role))
            return i < 4 || sup_tools_may(g, name, f) ? known[i][1] : NULL;
    sup_field_bad(f, name, json_object_get(m, "role"),
                  "one of system, developer, user, assistant, tool");
    return NULL;
}

/* A call as a client repeats it: {"id", "type", "function": {"name", "arguments"}}. */
static bool check_call(json_t *call, const char *in, size_t i, struct sup_fail *f)
{
    json_t *id = json_object_get(call, "id"), *fn = json_object_get(call, "function");
    json_t *args = json_object_get(fn, "arguments");
    char name[96];

    snprintf(name, sizeof(name), "%s[%zu].id", in, i);
    if (!json_is_string(id) || json_string_length(id) == 0 ||
        json_string_length(id) > SUP_CALL_ID) {
        sup_field_bad(f, name, id, "a string of 1 to 256 bytes");
        return false;
    }
    snprintf(name, sizeof(name), "%s[%zu].function.name", in, i);
    if (!sup_tool_name_ok(json_object_get(fn, "name"))) {
        sup_field_bad(f, name, json_object_get(fn, "name"),
                      "1 to 64 letters, digits, '_', '-' or '.'");
        return false;
    }
    snprintf(name, sizeof(name), "%s[%zu].function.arguments", in, i);
    if (args && !json_is_string(args) && !json_is_object(args)) {
        sup_field_bad(f, name, args, "the JSON text of an object");
        return false;
    }
    return true;
}

static bool read_calls(struct sup_gen *g, json_t *calls, size_t at, Ipc__ChatMessage *out,
                       struct sup_fail *f)
{
    char name[48];
    json_t *call;
    size_t i;

    snprintf(name, sizeof(name), "messages[%zu].tool_calls", at);
    if (!calls || json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0))
        return true;
    if (!sup_tools_may(g, name, f))
        return false;
    if (!json_is_array(calls) || strcmp(out->role, "assistant") != 0 ||
        json_array_size(calls) > SUP_TOOLS_MAX) {
        sup_field_bad(f, name, calls, "an array of at most 128 calls, of an assistant's message");
        return false;
    }
    json_array_foreach(calls, i, call)
    {
        if (!check_call(call, name, i, f))
            return false;
    }
    return sup_tools_text(g, calls, name, SUP_TOOLS_BYTES, &out->tool_calls, f);
}

/* What only some roles have: calls, reasoning, whom a tool answers. */
static bool read_extras(struct sup_gen *g, json_t *m, size_t at, Ipc__ChatMessage *out,
                        struct sup_fail *f)
{
    json_t *thought = json_object_get(m, "reasoning_content"), *id;
    char name[48];

    if (!read_calls(g, json_object_get(m, "tool_calls"), at, out, f))
        return false;
    if (strcmp(out->role, "assistant") == 0 && thought && !json_is_null(thought)) {
        snprintf(name, sizeof(name), "messages[%zu].reasoning_content", at);
        if (!json_is_string(thought)) {
            sup_field_bad(f, name, thought, "a string");
            return false;
        }
        out->reasoning.data = (uint8_t *)(uintptr_t)json_string_value(thought);
        out->reasoning.len = json_string_length(thought);
    }
    if (strcmp(out->role, "tool") != 0)
        return true;
    id = json_object_get(m, "tool_call_id");
    snprintf(name, sizeof(name), "messages[%zu].tool_call_id", at);
    if (!json_is_string(id) || json_string_length(id) == 0 ||
        json_string_length(id) > SUP_CALL_ID ||
        strlen(json_string_value(id)) != json_string_length(id)) {
        sup_field_bad(f, name, id, "a string of 1 to 256 bytes: the id of the call it answers");
        return false;
    }
    out->tool_call_id = (char *)(uintptr_t)json_string_value(id);
    if (sup_tool_name_ok(json_object_get(m, "name")))
        out->name = (char *)(uintptr_t)json_string_value(json_object_get(m, "name"));
    return true;
}

static bool read_message(struct sup_gen *g, json_t *m, size_t at, Ipc__ChatMessage *out,
                         struct sup_fail *f)
{
    json_t *content = json_object_get(m, "content");
    const char *role;
    char name[48];

    ipc__chat_message__init(out);
    if (!json_is_object(m)) {
        snprintf(name, sizeof(name), "messages[%zu]", at);
        sup_field_bad(f, name, m, "an object with 'role' and 'content'");
        return false;
    }
    if (!(role = read_role(g, m, at, f)))
        return false;
    out->role = (char *)(uintptr_t)role;
    if (!read_extras(g, m, at, out, f))
        return false;
    if (out->tool_calls.len && (!content || json_is_null(content)))
        return true; /* calls alone are a message */
    return read_content(g, content, at, &out->content, f);
}

bool sup_chat_messages(struct sup_gen *g, json_t *list, Ipc__Generate *q, struct sup_fail *f)
{
    size_t n = json_array_size(list);
    Ipc__ChatMessage *rows;

    if (!json_is_array(list) || n == 0 || n > MESSAGES_MAX) {
        sup_field_bad(f, "messages", list, "an array of 1 to 16384 messages");
        return false;
    }
    rows = sup_call_alloc(&g->call, n * sizeof(*rows));
    q->messages = sup_call_alloc(&g->call, n * sizeof(*q->messages));
    if (!rows || !q->messages)
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < n; i++) {
        if (!read_message(g, json_array_get(list, i), i, &rows[i], f))
            return false;
        q->messages[i] = &rows[i];
    }
    q->n_messages = n;
    q->kind = 1;
    return true;
}

static bool is_none(json_t *j)
{
    return json_is_string(j) && strcmp(json_string_value(j), "none") == 0;
}

/* What came before tools: refused, unless the request itself turns it off. */
static bool check_functions(const struct sup_gen *g, const struct sup_val *v, struct sup_fail *f)
{
    const struct sup_val *list = &v[CHAT_FUNCTIONS], *call = &v[CHAT_FUNCTION_CALL];
    const char *field = call->set && !is_none(call->j)                        ? "function_call"
                        : list->set && json_array_size(list->j) && !call->set ? "functions"
                                                                              : NULL;

    if (!field)
        return true;
    if (!sup_tools_may(g, field, f))
        return false;
    sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, field,
                 "field '%s': not supported by this server; use 'tools' and 'tool_choice'", field);
    return false;
}

static bool check_modalities(const struct sup_val *v, struct sup_fail *f)
{
    json_t *m = v[CHAT_MODALITIES].j;

    if (m &&
        !(json_is_array(m) && json_array_size(m) == 1 && json_is_string(json_array_get(m, 0)) &&
          strcmp(json_string_value(json_array_get(m, 0)), "text") == 0)) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "modalities",
                     "field 'modalities': only [\"text\"] is supported by this server");
        return false;
    }
    return true;
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_gen *g = (struct sup_gen *)c;
    const struct sup_val *most =
        v[CHAT_MAX_COMPLETION].set ? &v[CHAT_MAX_COMPLETION] : &v[SUP_G_MAX_TOKENS];
    Ipc__Frame frame = IPC__FRAME__INIT;
    Ipc__Generate *q;

    g->chat = true;
    g->n_prompts = 1;
    g->logprobs = v[CHAT_LOGPROBS].b;
    g->top_logprobs = (uint32_t)v[CHAT_TOP_LOGPROBS].i;
    if (g->top_logprobs && !g->logprobs) {
        sup_field_bad(f, "top_logprobs", v[CHAT_TOP_LOGPROBS].j, "'logprobs': true beside it");
        return false;
    }
    if (!check_functions(g, v, f) || !check_modalities(v, f))
        return false;
    if (!(q = sup_gen_request(g, v, most->set ? most->i : 0, f)) ||
        !sup_tools_read(g, v[CHAT_TOOLS].j, v[CHAT_TOOL_CHOICE].j, v[CHAT_PARALLEL].b, false, q,
                        f) ||
        !sup_thinking_read(g, v[CHAT_EFFORT].j, "reasoning_effort", v[CHAT_KWARGS].j, q, f) ||
        !sup_tools_format(q, "response_format", f) ||
        !sup_chat_messages(g, v[CHAT_MESSAGES].j, q, f))
        return false;
    q->logprobs = g->logprobs;
    q->top_logprobs = g->top_logprobs;
    frame.body_case = IPC__FRAME__BODY_GENERATE;
    frame.generate = q;
    return sup_gen_open(g, f) && sup_call_parts(c, 1, f) && sup_call_submit(c, 0, &frame, f);
}

const struct sup_call_ops sup_chat_ops = {
    .size = sizeof(struct sup_gen),
    .need = SUP_NEED_CHAT,
    .fields = chat_fields,
    .n_fields = CHAT_N,
    .start = start,
    .frame = sup_gen_frame,
    .finish = sup_gen_finish,
    .deinit = sup_gen_deinit,
};
