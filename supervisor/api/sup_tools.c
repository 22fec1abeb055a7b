/* sup_tools.c - see sup_tools.h. Never looks into a schema; never renders. */
#include "sup_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sup_tools_refuse(const struct sup_gen *g, const char *field, struct sup_fail *f)
{
    sup_fail_set(f, SUP_E_INVALID_MODEL, field,
                 "model '%.100s' does not support tool calling (field '%s')", g->call.model, field);
    return false;
}

bool sup_tools_may(const struct sup_gen *g, const char *field, struct sup_fail *f)
{
    return g->call.can_call_tools || !g->call.known || sup_tools_refuse(g, field, f);
}

bool sup_tool_name_ok(const json_t *name)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const char *s = json_string_value(name);
    size_t n = json_string_length(name);

    return s && n > 0 && n <= SUP_TOOL_NAME && strspn(s, ok) == n;
}

bool sup_tools_text(struct sup_gen *g, const json_t *j, const char *field, size_t max,
                    ProtobufCBinaryData *out, struct sup_fail *f)
{
    char *text = json_dumps(j, JSON_COMPACT);
    size_t n = text ? strlen(text) : 0;

    if (text && n > max) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': got %zu bytes of JSON, expected at most %zu", field, n, max);
        free(text);
        return false;
    }
    out->data = text ? sup_call_alloc(&g->call, n + 1) : NULL;
    if (out->data) {
        memcpy(out->data, text, n);
        out->len = n;
    }
    free(text);
    return out->data ? true : sup_fail_no_memory(f);
}

/* --------------------------------------------------------------------- tools */

static bool read_tool(json_t *tool, size_t at, bool flat, json_t *to, struct sup_fail *f)
{
    json_t *fn = flat ? tool : json_object_get(tool, "function");
    json_t *type = json_object_get(tool, "type"), *params, *description, *mine;
    const char *in = flat ? "" : ".function";
    char name[80];

    snprintf(name, sizeof(name), "tools[%zu].type", at);
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0) {
        sup_field_bad(f, name, type, "\"function\"");
        return false;
    }
    snprintf(name, sizeof(name), "tools[%zu]%s.name", at, in);
    if (!sup_tool_name_ok(json_object_get(fn, "name"))) {
        sup_field_bad(f, name, json_object_get(fn, "name"),
                      "1 to 64 letters, digits, '_', '-' or '.'");
        return false;
    }
    description = json_object_get(fn, "description");
    snprintf(name, sizeof(name), "tools[%zu]%s.description", at, in);
    if (description && !json_is_null(description) && !json_is_string(description)) {
        sup_field_bad(f, name, description, "a string");
        return false;
    }
    params = json_object_get(fn, "parameters");
    snprintf(name, sizeof(name), "tools[%zu]%s.parameters", at, in);
    if (params && !json_is_null(params) && !json_is_object(params)) {
        sup_field_bad(f, name, params, "an object: a JSON Schema");
        return false;
    }
    mine = json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name",
                     json_object_get(fn, "name"));
    fn = json_object_get(mine, "function");
    if (!mine || (json_is_string(description) && json_object_set(fn, "description", description)) ||
        (json_is_object(params) && json_object_set(fn, "parameters", params)) ||
        json_array_append(to, mine) != 0) {
        json_decref(mine);
        return sup_fail_no_memory(f);
    }
    json_decref(mine);
    return true;
}

static bool put_tools(struct sup_gen *g, json_t *tools, bool flat, Ipc__Generate *q,
                      struct sup_fail *f)
{
    json_t *mine = json_array();
    bool ok = mine ? true : sup_fail_no_memory(f);
    json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool)
    {
        ok = ok && read_tool(tool, i, flat, mine, f);
    }
    ok = ok && sup_tools_text(g, mine, "tools", SUP_TOOLS_BYTES, &q->tools, f);
    json_decref(mine);
    return ok;
}

static bool is_tool(json_t *tools, bool flat, const char *name)
{
    json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool)
    {
        const char *s = json_string_value(
            json_object_get(flat ? tool : json_object_get(tool, "function"), "name"));

        if (s && strcmp(s, name) == 0)
            return true;
    }
    return false;
}

static bool named_choice(struct sup_gen *g, json_t *tools, json_t *choice, bool flat,
                         Ipc__Generate *q, struct sup_fail *f)
{
    const char *field = flat ? "tool_choice.name" : "tool_choice.function.name";
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *name = json_object_get(flat ? choice : json_object_get(choice, "function"), "name");

    if (!json_is_object(choice) || !type || strcmp(type, "function") != 0) {
        sup_field_bad(f, "tool_choice", choice, SUP_TOOL_CHOICES);
        return false;
    }
    if (!sup_tool_name_ok(name) || !is_tool(tools, flat, json_string_value(name))) {
        sup_field_bad(f, field, name, "the name of one of the tools");
        return false;
    }
    q->tool_choice = 2;
    q->tool_name = sup_call_strdup(&g->call, json_string_value(name));
    return q->tool_name ? true : sup_fail_no_memory(f);
}

static bool word_is(const json_t *j, const char *word)
{
    return json_is_string(j) && strcmp(json_string_value(j), word) == 0;
}

bool sup_tools_read(struct sup_gen *g, json_t *tools, json_t *choice, bool parallel, bool flat,
                    Ipc__Generate *q, struct sup_fail *f)
{
    bool some = tools && !(json_is_array(tools) && json_array_size(tools) == 0);

    /* tools that the request itself turns off change nothing and may pass */
    if (word_is(choice, "none") && (!tools || json_is_array(tools)))
        return true;
    if (!some && !choice)
        return true;
    if (!sup_tools_may(g, some ? "tools" : "tool_choice", f))
        return false;
    if (!some) {
        sup_field_bad(f, "tool_choice", choice, "'tools' beside it");
        return false;
    }
    if (!json_is_array(tools) || json_array_size(tools) > SUP_TOOLS_MAX) {
        sup_field_bad(f, "tools", tools, "an array of at most 128 tools");
        return false;
    }
    if (!put_tools(g, tools, flat, q, f))
        return false;
    q->one_call = !parallel;
    if (!choice || word_is(choice, "auto"))
        return true;
    if (word_is(choice, "required")) {
        q->tool_choice = 1;
        return true;
    }
    return named_choice(g, tools, choice, flat, q, f);
}

/* ------------------------------------------------------------------ thinking */

bool sup_thinking_read(struct sup_gen *g, const json_t *effort, const char *effort_field,
                       json_t *kwargs, Ipc__Generate *q, struct sup_fail *f)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    static const char in[] = "chat_template_kwargs.enable_thinking";
    const char *field = effort_field, *key;
    json_t *val;

    if (effort) {
        size_t i = 0;

        while (i < 6 && !word_is(effort, words[i]))
            i++;
        if (i == 6) {
            sup_field_bad(f, effort_field, effort,
                          "one of none, minimal, low, medium, high, xhigh");
            return false;
        }
        q->thinking = i > 1; /* none and minimal: no thinking */
    }
    json_object_foreach(kwargs, key, val)
    {
        if (strcmp(key, "enable_thinking") != 0) {
            sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "chat_template_kwargs",
                         "field 'chat_template_kwargs.%.60s': not supported by this server, only "
                         "enable_thinking is",
                         key);
            return false;
        }
        if (!json_is_boolean(val) && !json_is_null(val)) {
            sup_field_bad(f, in, val, "true or false");
            return false;
        }
        if (json_is_null(val))
            continue;
        q->thinking = json_is_true(val);
        field = in;
    }
    if (q->thinking && g->call.known && !g->call.can_think) {
        sup_fail_set(f, SUP_E_INVALID_MODEL, field,
                     "model '%.100s' does not think before it answers (field '%s')", g->call.model,
                     field);
        return false;
    }
    return true;
}

bool sup_tools_format(const Ipc__Generate *q, const char *format, struct sup_fail *f)
{
    const char *const fields[] = {"", format, format, "grammar", "regex"};
    const char *field = fields[q->grammar_kind < 5 ? q->grammar_kind : 0];

    if (!q->grammar_kind || !q->tool_choice)
        return true;
    sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, field,
                 "field '%s': not supported beside a 'tool_choice' that asks for a call: there is "
                 "no answer that could obey it",
                 field);
    return false;
}
