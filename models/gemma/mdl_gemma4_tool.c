/* mdl_gemma4_tool.c - Gemma 4's syntax for values, tool calls and tool declarations.
 *
 *   value        <|"|>text<|"|>  true  null  1.5  [a,b]  {key:value,key:value}
 *   call         <|tool_call>call:NAME{key:value}<tool_call|>
 *   declaration  <|tool>declaration:NAME{description:..,parameters:{properties:{..},
 *                required:[..],type:..}}<tool|>
 *
 * Keys go in alphabetical order without regard to case, nothing stands around separators.
 * Follows the reference template to the letter, also where it is odd: a property whose
 * name is a schema word (description, type, properties, required, nullable) is left out.
 * JSON comes from outside: kinds are checked, nesting is bounded.
 * Source: gemma.md 13.2. Tests: tests/models/test_mdl_gemma4_chat.c
 */
#include "mdl_gemma4_chat.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64
#define MAX_KEYS 4096

void g4_quoted(struct g4_chat *c, const char *s, size_t n)
{
    g4_token(c, G4_QUOTE);
    g4_text(c, s, n);
    g4_token(c, G4_QUOTE);
}

static void quoted(struct g4_chat *c, const json_t *s)
{
    g4_quoted(c, json_string_value(s), json_string_length(s));
}

/* ASCII letters raised; others as they are. */
static void upper(struct g4_chat *c, const char *s)
{
    for (; *s; s++) {
        char ch = (char)(*s >= 'a' && *s <= 'z' ? *s - 'a' + 'A' : *s);

        g4_text(c, &ch, 1);
    }
}

/* ------------------------------------------------------------------ values */

/* A float as Python writes it: fewest digits that read back, ".0" behind whole numbers, an
 * exponent below 1e-4 and from 1e16 on. */
static void put_real(struct g4_chat *c, double v)
{
    char e[32], out[48];
    int p, exp10, n;

    for (p = 0; p < 17; p++) {
        snprintf(e, sizeof(e), "%.*e", p, v);
        if (strtod(e, NULL) == v)
            break;
    }
    exp10 = atoi(strchr(e, 'e') + 1);
    if (exp10 < -4 || exp10 >= 16) {
        char *mark = strchr(e, 'e');

        *mark = '\0';
        snprintf(out, sizeof(out), "%se%c%02d", e, exp10 < 0 ? '-' : '+', abs(exp10));
    } else {
        n = snprintf(out, sizeof(out), "%.*f", p > exp10 ? p - exp10 : 1, v);
        if (n < 0 || (size_t)n >= sizeof(out))
            out[0] = '\0';
    }
    g4_str(c, out);
}

/* Keys of an object in the order the template takes them; caller frees. */
struct key {
    const char *name;
    size_t at;
};

static int key_cmp(const void *pa, const void *pb)
{
    const struct key *a = pa, *b = pb;
    const unsigned char *x = (const unsigned char *)a->name, *y = (const unsigned char *)b->name;

    for (; *x && *y; x++, y++) {
        int u = *x >= 'A' && *x <= 'Z' ? *x - 'A' + 'a' : *x;
        int v = *y >= 'A' && *y <= 'Z' ? *y - 'A' + 'a' : *y;

        if (u != v)
            return u - v;
    }
    if (*x || *y)
        return *x ? 1 : -1;
    return a->at < b->at ? -1 : a->at > b->at; /* sorting must not turn equals around */
}

static struct key *keys_of(struct g4_chat *c, const json_t *obj, size_t *n)
{
    void *it = json_object_iter((json_t *)(uintptr_t)obj);
    struct key *k;

    *n = 0;
    if (c->rc != RC_OK)
        return NULL;
    if (json_object_size(obj) > MAX_KEYS) {
        g4_fail_here(c, "an object of %zu keys, at most %d are allowed", json_object_size(obj),
                     MAX_KEYS);
        return NULL;
    }
    if (!(k = calloc(json_object_size(obj) + 1, sizeof(*k)))) {
        c->rc = rc_fail(c->o.err, RC_NOMEM, "no memory for the keys of an object");
        return NULL;
    }
    for (; it; it = json_object_iter_next((json_t *)(uintptr_t)obj, it), ++*n)
        k[*n] = (struct key){.name = json_object_iter_key(it), .at = *n};
    qsort(k, *n, sizeof(*k), key_cmp);
    return k;
}

static void value(struct g4_chat *c, const json_t *v, bool quote_keys, unsigned depth);

/* key:value,key:value */
static void pairs(struct g4_chat *c, const json_t *obj, bool quote_keys, unsigned depth)
{
    size_t n, i;
    struct key *k = keys_of(c, obj, &n);

    for (i = 0; i < n && c->rc == RC_OK; i++) {
        size_t was = g4_enter(c, k[i].name, 0);

        if (i > 0)
            g4_str(c, ",");
        if (quote_keys)
            g4_quoted(c, k[i].name, strlen(k[i].name));
        else
            g4_str(c, k[i].name);
        g4_str(c, ":");
        value(c, json_object_get(obj, k[i].name), quote_keys, depth);
        g4_leave(c, was);
    }
    free(k);
}

static void value(struct g4_chat *c, const json_t *v, bool quote_keys, unsigned depth)
{
    char num[32];
    size_t i, was;

    if (depth == MAX_DEPTH) {
        g4_fail_here(c, "a value is nested deeper than %d", MAX_DEPTH);
        return;
    }
    switch (json_typeof(v)) {
    case JSON_STRING:
        quoted(c, v);
        break;
    case JSON_OBJECT:
        g4_str(c, "{");
        pairs(c, v, quote_keys, depth + 1);
        g4_str(c, "}");
        break;
    case JSON_ARRAY:
        g4_str(c, "[");
        for (i = 0; i < json_array_size(v) && c->rc == RC_OK; i++) {
            was = g4_enter(c, NULL, i);
            if (i > 0)
                g4_str(c, ",");
            value(c, json_array_get(v, i), quote_keys, depth + 1);
            g4_leave(c, was);
        }
        g4_str(c, "]");
        break;
    case JSON_INTEGER:
        snprintf(num, sizeof(num), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        g4_str(c, num);
        break;
    case JSON_REAL:
        put_real(c, json_real_value(v));
        break;
    default:
        g4_str(c, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
    }
}

/* ------------------------------------------------------------------- calls */

static json_t *parse(struct g4_chat *c, const char *text, size_t n)
{
    json_error_t e;
    json_t *j;

    if (c->rc != RC_OK)
        return NULL;
    if (!(j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e)))
        g4_fail_here(c, "line %d: %s", e.line, e.text);
    return j;
}

static bool is_name(const json_t *s)
{
    return json_is_string(s) && json_string_length(s) > 0;
}

/* arguments given as text become the object they spell. */
static void settle_arguments(struct g4_chat *c, json_t *fn)
{
    json_t *a = json_object_get(fn, "arguments"), *parsed;

    if (json_is_string(a) && json_string_length(a) > 0) {
        parsed = json_loadb(json_string_value(a), json_string_length(a), 0, NULL);
        if (json_is_object(parsed)) {
            if (json_object_set_new(fn, "arguments", parsed) != 0)
                c->rc = rc_fail(c->o.err, RC_NOMEM, "no memory for the arguments of a call");
            return;
        }
        json_decref(parsed);
        g4_fail_here(c, "not the JSON text of an object");
    } else if (a && !json_is_null(a) && !json_is_object(a) && !json_is_string(a)) {
        g4_fail_here(c, "neither an object nor text");
    }
}

json_t *g4_calls_parse(struct g4_chat *c, const char *text, size_t n)
{
    json_t *calls = parse(c, text, n);
    size_t i;

    if (c->rc == RC_OK && (!json_is_array(calls) || json_array_size(calls) == 0))
        g4_fail_here(c, "expected an array of at least one call");
    for (i = 0; c->rc == RC_OK && i < json_array_size(calls); i++) {
        json_t *fn = json_object_get(json_array_get(calls, i), "function");
        size_t was = g4_enter(c, NULL, i);

        g4_enter(c, "function", 0);
        if (!is_name(json_object_get(fn, "name"))) {
            g4_fail_here(c, "it has no 'name'");
        } else {
            g4_enter(c, "arguments", 0);
            settle_arguments(c, fn);
        }
        g4_leave(c, was);
    }
    if (c->rc == RC_OK)
        return calls;
    json_decref(calls);
    return NULL;
}

void g4_call(struct g4_chat *c, const json_t *call, size_t i)
{
    const json_t *fn = json_object_get(call, "function"), *args = json_object_get(fn, "arguments");
    size_t was = g4_enter(c, NULL, i);

    g4_enter(c, "function", 0);
    g4_enter(c, "arguments", 0);
    g4_token(c, G4_CALL);
    g4_str(c, "call:");
    g4_str(c, json_string_value(json_object_get(fn, "name")));
    g4_str(c, "{");
    if (json_is_object(args))
        pairs(c, args, false, 0);
    g4_str(c, "}");
    g4_token(c, G4_CALL_END);
    g4_leave(c, was);
}

/* ------------------------------------------------------------- declarations */

/* What Jinja takes for true. */
static bool given(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_STRING:
        return json_string_length(v) > 0;
    case JSON_OBJECT:
        return json_object_size(v) > 0;
    case JSON_ARRAY:
        return json_array_size(v) > 0;
    case JSON_INTEGER:
        return json_integer_value(v) != 0;
    case JSON_REAL:
        return json_real_value(v) != 0;
    default:
        return json_is_true(v);
    }
}

static void description(struct g4_chat *c, const json_t *d)
{
    g4_str(c, "description:");
    g4_quoted(c, json_string_value(d), json_string_length(d));
}

static bool type_is(const json_t *schema, const char *word)
{
    const char *t = json_string_value(json_object_get(schema, "type"));

    return t && strcasecmp(t, word) == 0;
}

/* type:<|"|>STRING<|"|>; a list of types as Python writes it. */
static void type_of(struct g4_chat *c, const json_t *t)
{
    size_t i;

    g4_str(c, "type:");
    g4_token(c, G4_QUOTE);
    if (json_is_string(t))
        upper(c, json_string_value(t));
    if (json_is_array(t)) {
        g4_str(c, "[");
        for (i = 0; i < json_array_size(t); i++) {
            const char *s = json_string_value(json_array_get(t, i));

            g4_str(c, i > 0 ? ", '" : "'");
            upper(c, s ? s : "");
            g4_str(c, "'");
        }
        g4_str(c, "]");
    }
    g4_token(c, G4_QUOTE);
}

/* required:[<|"|>a<|"|>,<|"|>b<|"|>] */
static void required(struct g4_chat *c, const json_t *list)
{
    size_t i;

    g4_str(c, "required:[");
    for (i = 0; i < json_array_size(list); i++) {
        if (i > 0)
            g4_str(c, ",");
        quoted(c, json_array_get(list, i));
    }
    g4_str(c, "]");
}

static void properties(struct g4_chat *c, const json_t *props, unsigned depth);

static void item_type(struct g4_chat *c, const json_t *t)
{
    size_t i;

    if (!json_is_array(t)) {
        type_of(c, t);
        return;
    }
    g4_str(c, "type:[");
    for (i = 0; i < json_array_size(t); i++) {
        const char *s = json_string_value(json_array_get(t, i));

        if (i > 0)
            g4_str(c, ",");
        g4_token(c, G4_QUOTE);
        upper(c, s ? s : "");
        g4_token(c, G4_QUOTE);
    }
    g4_str(c, "]");
}

/* What an array holds. */
static void items(struct g4_chat *c, const json_t *it, unsigned depth)
{
    size_t n, i, done = 0, here = g4_enter(c, "items", 0);
    struct key *k = keys_of(c, it, &n);

    g4_str(c, "items:{");
    for (i = 0; i < n && c->rc == RC_OK; i++) {
        const json_t *v = json_object_get(it, k[i].name);
        size_t was;

        if (json_is_null(v))
            continue;
        was = g4_enter(c, k[i].name, 0);
        if (done++ > 0)
            g4_str(c, ",");
        if (strcmp(k[i].name, "properties") == 0) {
            g4_str(c, "properties:{");
            if (json_is_object(v))
                properties(c, v, depth + 1);
            g4_str(c, "}");
        } else if (strcmp(k[i].name, "required") == 0) {
            required(c, v);
        } else if (strcmp(k[i].name, "type") == 0) {
            item_type(c, v);
        } else {
            g4_str(c, k[i].name);
            g4_str(c, ":");
            value(c, v, true, depth + 1);
        }
        g4_leave(c, was);
    }
    g4_leave(c, here);
    g4_str(c, "}");
    free(k);
}

/* One property's schema: {description,enum|items,nullable,properties,required,type}. */
static void property(struct g4_chat *c, const json_t *v, unsigned depth)
{
    const json_t *sub = json_object_get(v, "items"), *list = json_object_get(v, "enum");
    size_t was;

    g4_str(c, "{");
    if (given(json_object_get(v, "description"))) {
        description(c, json_object_get(v, "description"));
        g4_str(c, ",");
    }
    if (type_is(v, "string") && given(list)) {
        was = g4_enter(c, "enum", 0);
        g4_str(c, "enum:");
        value(c, list, true, depth);
        g4_leave(c, was);
        g4_str(c, ",");
    } else if (type_is(v, "array") && json_is_object(sub) && given(sub)) {
        items(c, sub, depth);
        g4_str(c, ",");
    }
    if (given(json_object_get(v, "nullable")))
        g4_str(c, "nullable:true,");
    if (type_is(v, "object")) {
        const json_t *props = json_object_get(v, "properties");

        g4_str(c, "properties:{");
        was = json_is_object(props) ? g4_enter(c, "properties", 0) : c->n_where;
        properties(c, json_is_object(props) ? props : v, depth + 1);
        g4_leave(c, was);
        g4_str(c, "},");
        if (given(json_object_get(v, "required"))) {
            required(c, json_object_get(v, "required"));
            g4_str(c, ",");
        }
    }
    type_of(c, json_object_get(v, "type"));
    g4_str(c, "}");
}

static void properties(struct g4_chat *c, const json_t *props, unsigned depth)
{
    static const char *const words[] = {"description", "type", "properties", "required",
                                        "nullable"};
    size_t n, i, w, done = 0;
    struct key *k;

    if (depth == MAX_DEPTH) {
        g4_fail_here(c, "a schema is nested deeper than %d", MAX_DEPTH);
        return;
    }
    k = keys_of(c, props, &n);
    for (i = 0; i < n && c->rc == RC_OK; i++) {
        size_t was;

        for (w = 0; w < 5 && strcmp(k[i].name, words[w]) != 0; w++)
            ;
        if (w < 5)
            continue;
        if (done++ > 0)
            g4_str(c, ",");
        g4_str(c, k[i].name);
        g4_str(c, ":");
        was = g4_enter(c, k[i].name, 0);
        property(c, json_object_get(props, k[i].name), depth);
        g4_leave(c, was);
    }
    free(k);
}

static void parameters(struct g4_chat *c, const json_t *p)
{
    g4_str(c, ",parameters:{");
    if (given(json_object_get(p, "properties"))) {
        size_t was = g4_enter(c, "properties", 0);

        g4_str(c, "properties:{");
        properties(c, json_object_get(p, "properties"), 0);
        g4_str(c, "},");
        g4_leave(c, was);
    }
    if (given(json_object_get(p, "required"))) {
        required(c, json_object_get(p, "required"));
        g4_str(c, ",");
    }
    if (given(json_object_get(p, "type")))
        type_of(c, json_object_get(p, "type"));
    g4_str(c, "}");
}

static void response(struct g4_chat *c, const json_t *r)
{
    g4_str(c, ",response:{");
    if (given(json_object_get(r, "description"))) {
        description(c, json_object_get(r, "description"));
        g4_str(c, ",");
    }
    if (given(json_object_get(r, "type")))
        type_of(c, json_object_get(r, "type"));
    g4_str(c, "}");
}

static void declaration(struct g4_chat *c, const json_t *fn)
{
    g4_token(c, G4_TOOL);
    g4_str(c, "declaration:");
    g4_str(c, json_string_value(json_object_get(fn, "name")));
    g4_str(c, "{");
    description(c, json_object_get(fn, "description"));
    if (given(json_object_get(fn, "parameters")))
        parameters(c, json_object_get(fn, "parameters"));
    if (json_is_object(json_object_get(fn, "response")))
        response(c, json_object_get(fn, "response"));
    g4_str(c, "}");
    g4_token(c, G4_TOOL_END);
}

void g4_tools(struct g4_chat *c, const char *text, size_t n)
{
    size_t i, was = g4_enter(c, "tools", 0);
    json_t *tools = parse(c, text, n);

    if (c->rc == RC_OK && !json_is_array(tools))
        g4_fail_here(c, "expected an array");
    for (i = 0; c->rc == RC_OK && i < json_array_size(tools); i++) {
        const json_t *fn = json_object_get(json_array_get(tools, i), "function");
        const json_t *p = json_object_get(fn, "parameters");
        size_t list = g4_enter(c, NULL, i);

        g4_enter(c, "function", 0);
        if (!is_name(json_object_get(fn, "name")))
            g4_fail_here(c, "it has no 'name'");
        g4_enter(c, "parameters", 0);
        if (p && !json_is_null(p) && !json_is_object(p))
            g4_fail_here(c, "not an object");
        if (c->rc == RC_OK)
            declaration(c, fn);
        g4_leave(c, list);
    }
    g4_leave(c, was);
    json_decref(tools);
}
