/* sup_chat.c - POST /v1/chat/completions, /ai/v1/chat/completions, /ai/v1/generate.
 *
 * Messages and chat's own fields to a Generate frame; the answer is sup_gen.c's.
 * What this server cannot do (tools, images) is refused by name, never
 * silently dropped. The text of messages stays text: no control token can come
 * from it, the worker sees to that. Tests: tests/supervisor/test_sup_api_gen.c
 */
#include "sup_gen.h"

#include <stdio.h>
#include <string.h>

#define MESSAGES_MAX 16384

#define CHAT_FIELDS(X)                                                             \
    SUP_GEN_FIELDS(X)                                                              \
    X(MESSAGES, "messages", ANY, true, 0, 0, 0, "a non-empty array of messages")   \
    X(MAX_COMPLETION, "max_completion_tokens", INT, false, 1, 2147483647, 0, NULL) \
    X(LOGPROBS, "logprobs", BOOL, false, 0, 1, 0, NULL)                            \
    X(TOP_LOGPROBS, "top_logprobs", INT, false, 0, 20, 0, NULL)                    \
    X(TOOLS, "tools", ANY, false, 0, 0, 0, "an array")                             \
    X(TOOL_CHOICE, "tool_choice", ANY, false, 0, 0, 0, "\"none\"")                 \
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

static bool no_memory(struct sup_fail *f)
{
    sup_fail_set(f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the request");
    return false;
}

static bool no_tools(struct sup_fail *f, const char *field)
{
    sup_fail_set(f, SUP_E_INVALID_MODEL, field, "model does not support tool calling (field '%s')",
                 field);
    return false;
}

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
                         "model, expected \"text\"",
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
        return no_memory(f);
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
static const char *read_role(json_t *m, size_t at, struct sup_fail *f)
{
    static const char *const known[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"}};
    const char *role = json_string_value(json_object_get(m, "role"));
    char name[48];

    snprintf(name, sizeof(name), "messages[%zu].role", at);
    for (size_t i = 0; role && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(role, known[i][0]) == 0 &&
            json_string_length(json_object_get(m, "role")) == strlen(role))
            return known[i][1];
    if (role && (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0)) {
        sup_fail_set(f, SUP_E_INVALID_MODEL, name,
                     "field '%s': got \"%s\", but the model does not support tool calling", name,
                     role);
        return NULL;
    }
    sup_field_bad(f, name, json_object_get(m, "role"), "one of system, developer, user, assistant");
    return NULL;
}

static bool read_message(struct sup_gen *g, json_t *m, size_t at, Ipc__ChatMessage *out,
                         struct sup_fail *f)
{
    json_t *calls = json_object_get(m, "tool_calls");
    const char *role;
    char name[48];

    ipc__chat_message__init(out);
    if (!json_is_object(m)) {
        snprintf(name, sizeof(name), "messages[%zu]", at);
        sup_field_bad(f, name, m, "an object with 'role' and 'content'");
        return false;
    }
    if (!(role = read_role(m, at, f)))
        return false;
    if (calls && !json_is_null(calls) && !(json_is_array(calls) && json_array_size(calls) == 0)) {
        snprintf(name, sizeof(name), "messages[%zu].tool_calls", at);
        return no_tools(f, name);
    }
    out->role = (char *)(uintptr_t)role;
    return read_content(g, json_object_get(m, "content"), at, &out->content, f);
}

static bool read_messages(struct sup_gen *g, json_t *list, Ipc__Generate *q, struct sup_fail *f)
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
        return no_memory(f);
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

/* Tools that the request itself turns off ("none") change nothing and may pass. */
static bool check_tools(const struct sup_val *v, struct sup_fail *f)
{
    const struct sup_val *tools = &v[CHAT_TOOLS], *choice = &v[CHAT_TOOL_CHOICE];

    if (choice->set && !is_none(choice->j))
        return no_tools(f, "tool_choice");
    if (tools->set && !(json_is_array(tools->j) && json_array_size(tools->j) == 0) && !choice->set)
        return no_tools(f, "tools");
    if (v[CHAT_FUNCTION_CALL].set && !is_none(v[CHAT_FUNCTION_CALL].j))
        return no_tools(f, "function_call");
    if (v[CHAT_FUNCTIONS].set && json_array_size(v[CHAT_FUNCTIONS].j) && !v[CHAT_FUNCTION_CALL].set)
        return no_tools(f, "functions");
    return true;
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
    if (!check_tools(v, f) || !check_modalities(v, f))
        return false;
    if (!(q = sup_gen_request(g, v, most->set ? most->i : 0, f)) ||
        !read_messages(g, v[CHAT_MESSAGES].j, q, f))
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
