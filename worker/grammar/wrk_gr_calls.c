/* wrk_gr_calls.c - calls of tools, as Gemma 4 writes them.
 *
 * call:NAME{key:value,...} and the mark that ends a call, again and again behind the mark
 * that begins one unless only one is wanted. The object is the function's parameters by
 * the same trees as a JSON answer's, spelled differently: strings stand raw between two
 * quote marks, declared keys are bare, there is no white space. Marks are bytes that UTF-8
 * never has (wrk_parse.h), so no other grammar meets them. What may stand around calls is
 * wrk_gr_talk.c's. Source: gemma.md 13.2. Tests: tests/worker/test_wrk_gr_calls.c
 */
#include "wrk_gr_json.h"

#include <stdlib.h>
#include <string.h>

#include "wrk_parse.h"

uint32_t gr_mark(struct gr_build *b, uint32_t m)
{
    const char byte = (char)(WRK_MARK_BYTE + m);

    return gr_text(b, &byte, 1);
}

uint32_t sc_quote(struct sc *c)
{
    return c->calls ? gr_mark(c->b, WRK_MARK_QUOTE) : gr_str(c->b, "\"");
}

/* A character of a string: all but U+0000, as it stands. */
uint32_t sc_raw_char(struct sc *c)
{
    return gr_set(c->b, &(struct gr_range){1, 0x10ffff}, 1, false);
}

/* A key is bare unless it would be read as something else. */
static bool is_bare(const char *key)
{
    return key[0] != '\0' && strpbrk(key, ":,{}[] \t\r\n") == NULL;
}

static void put(struct sc *c, struct gr_vec *v, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *p = gr_push(c->b, v, 1, 4 * WRK_GR_TEXT_MAX, "bytes of literal text");

        if (p == NULL)
            return;
        *p = s[i];
    }
}

static void put_string(struct sc *c, struct gr_vec *v, const char *s, size_t n)
{
    const char quote = (char)(WRK_MARK_BYTE + WRK_MARK_QUOTE);

    put(c, v, &quote, 1);
    put(c, v, s, n);
    put(c, v, &quote, 1);
}

/* A value spelt out; its nesting is bounded by that of the tools' JSON. */
static void put_value(struct sc *c, struct gr_vec *v, json_t *value)
{
    char *text;
    const char *key;
    json_t *kid;
    size_t i;

    if (json_is_string(value)) {
        put_string(c, v, json_string_value(value), json_string_length(value));
    } else if (json_is_array(value)) {
        put(c, v, "[", 1);
        json_array_foreach(value, i, kid)
        {
            put(c, v, ",", i > 0);
            put_value(c, v, kid);
        }
        put(c, v, "]", 1);
    } else if (json_is_object(value)) {
        put(c, v, "{", 1);
        i = 0;
        json_object_foreach(value, key, kid)
        {
            put(c, v, ",", i++ > 0);
            if (is_bare(key))
                put(c, v, key, strlen(key));
            else
                put_string(c, v, key, strlen(key));
            put(c, v, ":", 1);
            put_value(c, v, kid);
        }
        put(c, v, "}", 1);
    } else if ((text = json_dumps(value, JSON_ENCODE_ANY)) != NULL) {
        put(c, v, text, strlen(text));
        free(text);
    } else {
        gr_fail(c->b, RC_NOMEM, "no memory for a value");
    }
}

static uint32_t as_text(struct sc *c, struct gr_vec *v)
{
    uint32_t node = c->b->rc == RC_OK ? gr_text(c->b, v->p, v->n) : 0;

    free(v->p);
    return node;
}

uint32_t sc_raw_key(struct sc *c, const char *key)
{
    struct gr_vec v = {0};

    if (is_bare(key))
        return gr_str(c->b, key);
    put_string(c, &v, key, strlen(key));
    return as_text(c, &v);
}

uint32_t sc_raw_literal(struct sc *c, const json_t *value)
{
    struct gr_vec v = {0};

    put_value(c, &v, (json_t *)(uintptr_t)value);
    return as_text(c, &v);
}

/* The arguments of a function: an object, whatever else its schema allows. */
static uint32_t arguments(struct sc *c, json_t *params)
{
    json_t *type = json_object_get(params, "type"), *mine = params;

    if (params == NULL || json_is_null(params) ||
        (json_is_object(params) && json_object_size(params) == 0))
        return gr_str(c->b, "{}");
    if (!json_is_object(params) ||
        (type != NULL &&
         !(json_is_string(type) && strcmp(json_string_value(type), "object") == 0))) {
        sc_fail(c, RC_INVALID, "InvalidSchema: a function's parameters must have type 'object'");
        return 0;
    }
    if (type == NULL &&
        ((mine = json_copy(params)) == NULL || json_array_append_new(c->made, mine) != 0 ||
         json_object_set_new(mine, "type", json_string("object")) != 0)) {
        sc_fail(c, RC_NOMEM, "no memory for a schema");
        return 0;
    }
    c->root = params;
    return sc_schema(c, mine, "parameters", 0);
}

static uint32_t one_tool(struct sc *c, json_t *tool, size_t i)
{
    json_t *fn = json_object_get(tool, "function");
    const struct sc_path list = {NULL, "tools", 0}, at = {&list, NULL, i},
                         here = {&at, "function", 0};
    const char *name = json_string_value(json_object_get(fn, "name"));
    uint32_t node;

    if (name == NULL || !wrk_call_name_ok(name, strlen(name))) {
        sc_fail(c, RC_INVALID, "tools[%zu] has no name of letters, digits, '_', '.' or '-'", i);
        return 0;
    }
    c->path = &here;
    node = GR_SEQ_OF(c->b, gr_str(c->b, name), arguments(c, json_object_get(fn, "parameters")));
    if (c->b->rc == RC_OK) /* else it tells where */
        c->path = NULL;
    return node;
}

static uint32_t calls(struct sc *c, json_t *tools, const char *only, bool one)
{
    struct gr_vec kids = {0};
    uint32_t node = 0, rule, *p;
    json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));

        if (c->b->rc != RC_OK || (only[0] != '\0' && (name == NULL || strcmp(name, only) != 0)))
            continue;
        node = one_tool(c, tool, i);
        if ((p = gr_push(c->b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL)
            *p = node;
    }
    if (c->b->rc == RC_OK && kids.n == 0)
        sc_fail(c, RC_INVALID, "none of the tools is called '%.64s'", only);
    if (c->b->rc != RC_OK) {
        free(kids.p);
        return 0;
    }
    rule = gr_rule_new(c->b, "call");
    node = GR_SEQ_OF(c->b, gr_str(c->b, "call:"), gr_alt(c->b, kids.p, kids.n),
                     gr_mark(c->b, WRK_MARK_CALL_END));
    free(kids.p);
    if (c->b->rc != RC_OK)
        return 0;
    gr_rule(c->b, rule)->node = node;
    node = gr_call(c->b, rule);
    return one ? node
               : GR_SEQ_OF(c->b, node,
                           gr_rep(c->b, GR_SEQ_OF(c->b, gr_mark(c->b, WRK_MARK_CALL), node), 0,
                                  WRK_CALLS_MAX - 1));
}

uint32_t gr_calls(struct gr_build *b, const char *text, size_t n, const char *only, bool one)
{
    struct sc c = SC_INIT(b);
    json_t *tools = NULL;
    json_error_t why;
    uint32_t node = 0;

    c.calls = b->raw = true;
    if (sc_too_deep(text, n)) {
        gr_fail(b, RC_TOO_LARGE, "the tools' JSON is nested more than 256 deep");
    } else if ((tools = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why)) == NULL) {
        gr_fail(b, RC_INVALID, "InvalidSchema: %s", why.text);
    } else if ((c.made = json_array()) == NULL) {
        gr_fail(b, RC_NOMEM, "no memory for a schema");
    } else {
        b->locate = sc_locate;
        b->user = &c;
        node = calls(&c, tools, only, one);
    }
    b->locate = NULL;
    b->raw = false;
    json_decref(tools);
    json_decref(c.made);
    free(c.memo);
    return node;
}
