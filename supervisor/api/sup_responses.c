/* sup_responses.c - POST /v1/responses, /ai/v1/responses: text and function tools.
 *
 * The items of `input` become the messages of a chat, checked here under the names the
 * client wrote; what chat and responses share stays with sup_gen_req.c, sup_tools.c and
 * sup_chat.c. Keeps nothing between requests: what would need it (store,
 * previous_response_id, ...) is refused by name. The answer is sup_responses_out.c's.
 * Tests: tests/supervisor/test_sup_api_responses.c, tests/e2e/openai_python.py
 */
#include "sup_responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sup_tools.h"

#define ITEMS_MAX 16384

#define RESP_FIELDS(X)                                                                       \
    SUP_GEN_FIELDS(X)                                                                        \
    X(INPUT, "input", ANY, true, 0, 0, 0, "a string or a non-empty array of items")          \
    X(INSTRUCTIONS, "instructions", STR, false, 0, 16777216, 0, NULL)                        \
    X(MAX_OUTPUT, "max_output_tokens", INT, false, 1, 2147483647, 0, NULL)                   \
    SUP_TOOL_FIELDS(X)                                                                       \
    X(TEXT, "text", OBJECT, false, 0, 0, 0, NULL)                                            \
    X(REASONING, "reasoning", OBJECT, false, 0, 0, 0, NULL)                                  \
    X(METADATA, "metadata", OBJECT, false, 0, 0, 0, NULL)                                    \
    X(TRUNCATION, "truncation", ENUM, false, 0, 0, 0, "disabled")                            \
    X(STORE, "store", REFUSE, false, 0, 0, 0, "responses are not kept: store must be false") \
    X(PREVIOUS, "previous_response_id", REFUSE, false, 0, 0, 0, "responses are not kept")    \
    X(CONVERSATION, "conversation", REFUSE, false, 0, 0, 0, "conversations are not kept")    \
    X(BACKGROUND, "background", REFUSE, false, 0, 0, 0, NULL)                                \
    X(PROMPT, "prompt", REFUSE, false, 0, 0, 0, "prompts are not kept")                      \
    X(MAX_CALLS, "max_tool_calls", REFUSE, false, 0, 0, 0, NULL)

enum {
#define X(id, name, type, req, min, max, def, words) RESP_##id,
    RESP_FIELDS(X)
#undef X
        RESP_N
};
_Static_assert(RESP_N <= SUP_FIELDS_MAX, "struct sup_val array of sup_call.c");

static const struct sup_field resp_fields[RESP_N] = {RESP_FIELDS(SUP_FIELD_ROW)};

/* ------------------------------------------------------------------------ input */

/* The messages made so far. */
struct talk {
    struct sup_gen *g;
    json_t *messages;
    json_t *calls;         /* of the last message, while calls follow each other */
    const json_t *thought; /* text of a reasoning item, for the message behind it */
};

static bool add_message(struct talk *t, json_t *m, struct sup_fail *f)
{
    if (m && t->thought &&
        strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0) {
        json_object_set(m, "reasoning_content", (json_t *)(uintptr_t)t->thought);
        t->thought = NULL;
    }
    t->calls = NULL;
    return m && json_array_append_new(t->messages, m) == 0 ? true : sup_fail_no_memory(f);
}

/* A text, or a list of parts whose texts stand in `text`; in: its name for messages. Made
 * of chat's parts; NULL and *f. */
static json_t *read_text(json_t *content, const char *in, struct sup_fail *f)
{
    static const char *const kinds[] = {"input_text", "output_text", "text"};
    json_t *parts, *p;
    char name[96];
    size_t i;

    if (json_is_string(content))
        return json_incref(content);
    if (!json_is_array(content) || json_array_size(content) == 0) {
        sup_field_bad(f, in, content, "a string or a non-empty array of content parts");
        return NULL;
    }
    if (!(parts = json_array()))
        sup_fail_no_memory(f);
    json_array_foreach(content, i, p)
    {
        const char *type = json_string_value(json_object_get(p, "type"));
        json_t *text = json_object_get(p, "text");
        bool known = false;

        for (size_t k = 0; type && k < 3; k++)
            known = known || strcmp(type, kinds[k]) == 0;
        snprintf(name, sizeof(name), "%s[%zu]%s", in, i, known ? ".text" : ".type");
        if (!known || !json_is_string(text)) {
            sup_field_bad(f, name, known ? text : json_object_get(p, "type"),
                          known ? "a string" : "\"input_text\" or \"output_text\"");
            json_decref(parts);
            return NULL;
        }
        if (parts && json_array_append_new(
                         parts, json_pack("{s:s,s:O}", "type", "text", "text", text)) != 0) {
            sup_fail_no_memory(f);
            json_decref(parts);
            return NULL;
        }
    }
    return parts;
}

static bool on_message(struct talk *t, json_t *item, const char *in, struct sup_fail *f)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    json_t *role = json_object_get(item, "role"), *text;
    bool known = false;
    char name[64];

    snprintf(name, sizeof(name), "%s.role", in);
    for (size_t i = 0; json_is_string(role) && i < 4; i++)
        known = known || strcmp(json_string_value(role), roles[i]) == 0;
    if (!known) {
        sup_field_bad(f, name, role, "one of user, assistant, system, developer");
        return false;
    }
    snprintf(name, sizeof(name), "%s.content", in);
    text = read_text(json_object_get(item, "content"), name, f);
    return text && add_message(t, json_pack("{s:O,s:o}", "role", role, "content", text), f);
}

/* The id that ties a call to its output; NULL and *f. */
static json_t *call_id(json_t *item, const char *in, struct sup_fail *f)
{
    json_t *id = json_object_get(item, "call_id");
    char name[64];

    if (json_is_string(id) && json_string_length(id) > 0 && json_string_length(id) <= SUP_CALL_ID &&
        strlen(json_string_value(id)) == json_string_length(id))
        return id;
    snprintf(name, sizeof(name), "%s.call_id", in);
    sup_field_bad(f, name, id, "a string of 1 to 256 bytes");
    return NULL;
}

static bool on_call(struct talk *t, json_t *item, const char *in, struct sup_fail *f)
{
    json_t *id = call_id(item, in, f), *fn = json_object_get(item, "name"),
           *args = json_object_get(item, "arguments"), *call;
    char name[64];

    if (!id || !sup_tools_may(t->g, in, f))
        return false;
    snprintf(name, sizeof(name), "%s.name", in);
    if (!sup_tool_name_ok(fn)) {
        sup_field_bad(f, name, fn, "1 to 64 letters, digits, '_', '-' or '.'");
        return false;
    }
    snprintf(name, sizeof(name), "%s.arguments", in);
    if (!json_is_string(args)) {
        sup_field_bad(f, name, args, "the JSON text of an object");
        return false;
    }
    call = json_pack("{s:O,s:{s:O,s:O}}", "id", id, "function", "name", fn, "arguments", args);
    if (!call)
        return sup_fail_no_memory(f);
    if (!t->calls) { /* calls in a row are of one message */
        json_t *calls = json_array();

        if (!add_message(t, json_pack("{s:s,s:o}", "role", "assistant", "tool_calls", calls), f)) {
            json_decref(call);
            return false;
        }
        t->calls = calls;
    }
    if (json_array_size(t->calls) >= SUP_TOOLS_MAX) {
        sup_field_bad(f, in, item, "at most 128 calls in a row");
        json_decref(call);
        return false;
    }
    return json_array_append_new(t->calls, call) == 0 ? true : sup_fail_no_memory(f);
}

static bool on_output(struct talk *t, json_t *item, const char *in, struct sup_fail *f)
{
    json_t *id = call_id(item, in, f), *text;
    char name[64];

    snprintf(name, sizeof(name), "%s.output", in);
    if (!id || !sup_tools_may(t->g, in, f) ||
        !(text = read_text(json_object_get(item, "output"), name, f)))
        return false;
    return add_message(
        t, json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", text), f);
}

/* What was thought goes with the message behind it; summaries alone say nothing. */
static bool on_reasoning(struct talk *t, json_t *item, const char *in, struct sup_fail *f)
{
    json_t *parts = json_object_get(item, "content");
    json_t *text = json_object_get(json_array_get(parts, 0), "text");
    char name[64];

    snprintf(name, sizeof(name), "%s.content", in);
    if (parts && !json_is_null(parts) &&
        (!json_is_array(parts) || json_array_size(parts) > 1 ||
         (json_array_size(parts) == 1 && !json_is_string(text)))) {
        sup_field_bad(f, name, parts, "an array of at most one part with a 'text'");
        return false;
    }
    t->thought = text;
    t->calls = NULL;
    return true;
}

static bool read_item(struct talk *t, json_t *item, size_t at, struct sup_fail *f)
{
    static const struct {
        const char *type;
        bool (*read)(struct talk *, json_t *, const char *, struct sup_fail *);
    } kinds[] = {{"message", on_message},
                 {"function_call", on_call},
                 {"function_call_output", on_output},
                 {"reasoning", on_reasoning}};
    json_t *type = json_object_get(item, "type");
    char in[32], name[48];

    snprintf(in, sizeof(in), "input[%zu]", at);
    if (!json_is_object(item)) {
        sup_field_bad(f, in, item, "an object");
        return false;
    }
    if (!type || json_is_null(type))
        return on_message(t, item, in, f);
    for (size_t i = 0; json_is_string(type) && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(json_string_value(type), kinds[i].type) == 0)
            return kinds[i].read(t, item, in, f);
    snprintf(name, sizeof(name), "%s.type", in);
    sup_field_bad(f, name, type, "one of message, function_call, function_call_output, reasoning");
    return false;
}

/* messages: filled from instructions and input. */
static bool read_input(struct sup_gen *g, const struct sup_val *v, json_t *messages,
                       struct sup_fail *f)
{
    struct talk t = {.g = g, .messages = messages};
    json_t *input = v[RESP_INPUT].j, *item;
    size_t i;

    if (v[RESP_INSTRUCTIONS].set &&
        !add_message(
            &t, json_pack("{s:s,s:O}", "role", "system", "content", v[RESP_INSTRUCTIONS].j), f))
        return false;
    if (json_is_string(input))
        return add_message(&t, json_pack("{s:s,s:O}", "role", "user", "content", input), f);
    if (!json_is_array(input) || json_array_size(input) == 0 ||
        json_array_size(input) > ITEMS_MAX) {
        sup_field_bad(f, "input", input, "a string or an array of 1 to 16384 items");
        return false;
    }
    json_array_foreach(input, i, item)
    {
        if (!read_item(&t, item, i, f))
            return false;
    }
    return true;
}

/* ----------------------------------------------------------------------- format */

/* text.format as chat's response_format, borrowed or new in *made; NULL: none. */
static bool read_format(const struct sup_val *v, json_t **made, struct sup_fail *f)
{
    json_t *format = json_object_get(v[RESP_TEXT].j, "format");
    json_t *type = json_object_get(format, "type"), *schema = json_object_get(format, "schema");
    const char *s = json_string_value(type);

    *made = NULL;
    if (!format || json_is_null(format) || (s && strcmp(s, "text") == 0))
        return true;
    if (v[SUP_G_RESPONSE_FORMAT].set) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "response_format",
                     "field 'response_format': got one beside 'text.format', expected only one");
        return false;
    }
    if (s && strcmp(s, "json_schema") == 0) {
        if (!json_is_object(schema)) {
            sup_field_bad(f, "text.format.schema", schema, "an object");
            return false;
        }
        *made = json_pack("{s:O,s:{s:O}}", "type", type, "json_schema", "schema", schema);
        return *made ? true : sup_fail_no_memory(f);
    }
    if (s && strcmp(s, "json_object") == 0) {
        *made = json_pack("{s:O}", "type", type);
        return *made ? true : sup_fail_no_memory(f);
    }
    sup_field_bad(f, "text.format.type", type, "one of text, json_object, json_schema");
    return false;
}

/* -------------------------------------------------------------------- the answer */

/* ,"key":value - as the client wrote it, or what stands for nothing. */
static void repeat(struct sup_json *o, const char *key, json_t *j, const char *none)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    sup_json_fmt(o, ",\"%s\":", key);
    sup_json_str(o, text ? text : none);
    if (j && !text)
        o->failed = true;
    free(text);
}

static bool write_tail(struct sup_resp *r, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_json *o = &r->tail;

    repeat(o, "instructions", v[RESP_INSTRUCTIONS].j, "null");
    repeat(o, "max_output_tokens", v[RESP_MAX_OUTPUT].j, "null");
    repeat(o, "metadata", v[RESP_METADATA].j, "{}");
    repeat(o, "parallel_tool_calls", v[RESP_PARALLEL].j, "true");
    sup_json_str(o, ",\"previous_response_id\":null");
    repeat(o, "reasoning", v[RESP_REASONING].j, "{\"effort\":null,\"summary\":null}");
    sup_json_str(o, ",\"store\":false");
    repeat(o, "temperature", v[SUP_G_TEMPERATURE].j, "0");
    repeat(o, "text", v[RESP_TEXT].j, "{\"format\":{\"type\":\"text\"}}");
    repeat(o, "tool_choice", v[RESP_TOOL_CHOICE].j, "\"auto\"");
    repeat(o, "tools", v[RESP_TOOLS].j, "[]");
    repeat(o, "top_p", v[SUP_G_TOP_P].j, "1");
    sup_json_str(o, ",\"truncation\":\"disabled\"");
    return o->failed ? sup_fail_no_memory(f) : true;
}

/* What these tables share with chat and responses do not have. */
static bool check_extras(const struct sup_val *v, struct sup_fail *f)
{
    const char *field = v[SUP_G_CHOICES].i != 1       ? "n"
                        : v[SUP_G_RETURN_TOKEN_IDS].b ? "return_token_ids"
                                                      : NULL;

    if (!field)
        return true;
    sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, field,
                 "field '%s': not supported by responses; chat completions have it", field);
    return false;
}

/* format: what the client calls a shape of JSON. */
static bool submit(struct sup_resp *r, const struct sup_val *v, json_t *messages,
                   const char *format, struct sup_fail *f)
{
    const struct sup_val *most =
        v[RESP_MAX_OUTPUT].set ? &v[RESP_MAX_OUTPUT] : &v[SUP_G_MAX_TOKENS];
    json_t *effort = json_object_get(v[RESP_REASONING].j, "effort");
    Ipc__Frame frame = IPC__FRAME__INIT;
    struct sup_gen *g = &r->g;
    Ipc__Generate *q;

    if (!(q = sup_gen_request(g, v, most->set ? most->i : 0, f)) ||
        !sup_tools_read(g, v[RESP_TOOLS].j, v[RESP_TOOL_CHOICE].j, v[RESP_PARALLEL].b, true, q,
                        f) ||
        !sup_thinking_read(g, json_is_null(effort) ? NULL : effort, "reasoning.effort",
                           v[RESP_KWARGS].j, q, f) ||
        !sup_tools_format(q, format, f) || !sup_chat_messages(g, messages, q, f))
        return false;
    frame.body_case = IPC__FRAME__BODY_GENERATE;
    frame.generate = q;
    return sup_gen_open(g, f) && sup_call_parts(&g->call, 1, f) &&
           sup_call_submit(&g->call, 0, &frame, f);
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_resp *r = (struct sup_resp *)c;
    struct sup_val mine[RESP_N];
    json_t *messages = json_array(), *format = NULL;
    bool ok;

    r->g.chat = true;
    r->g.n_prompts = 1;
    r->created = (int64_t)time(NULL);
    memcpy(mine, v, sizeof(mine));
    ok = messages ? true : sup_fail_no_memory(f);
    ok = ok && check_extras(v, f) && read_format(v, &format, f) &&
         read_input(&r->g, v, messages, f) && write_tail(r, v, f);
    if (format) {
        mine[SUP_G_RESPONSE_FORMAT].set = true;
        mine[SUP_G_RESPONSE_FORMAT].j = format;
    }
    /* packs what it borrows from messages */
    ok = ok && submit(r, mine, messages, format ? "text.format" : "response_format", f);
    json_decref(messages);
    json_decref(format);
    return ok;
}

const struct sup_call_ops sup_responses_ops = {
    .size = sizeof(struct sup_resp),
    .need = SUP_NEED_CHAT,
    .fields = resp_fields,
    .n_fields = RESP_N,
    .start = start,
    .frame = sup_resp_frame,
    .finish = sup_resp_finish,
    .deinit = sup_resp_deinit,
};
