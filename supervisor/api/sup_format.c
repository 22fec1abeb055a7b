/* sup_format.c - what shape an answer must have: response_format, grammar, regex.
 *
 * Looks at the fields' own form only; the worker compiles the text inside its sandbox
 * and under its bounds, and refuses what is wrong with it before anything is sent.
 * `grammar` or `regex` overrides `response_format`, as upstream does. Page:
 * docs/structured-output.md. Tests: tests/supervisor/test_sup_api_format.c
 */
#include "sup_gen.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_JSON = 1, KIND_SCHEMA = 2, KIND_GBNF = 3, KIND_REGEX = 4 }; /* Generate.grammar_kind */

static void put(Ipc__Generate *q, uint32_t kind, const char *text, size_t n)
{
    q->grammar_kind = kind;
    q->grammar.data = (uint8_t *)(uintptr_t)text;
    q->grammar.len = n;
}

/* The schema as text, in the call's memory. */
static bool put_schema(struct sup_gen *g, json_t *schema, Ipc__Generate *q, struct sup_fail *f)
{
    static const char field[] = "response_format.json_schema.schema";
    char *text = json_dumps(schema, JSON_COMPACT), *mine = NULL;
    size_t n = text ? strlen(text) : 0;

    if (text && n > SUP_FORMAT_BYTES) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': got a schema of %zu bytes, expected at most %d", field, n,
                     SUP_FORMAT_BYTES);
        free(text);
        return false;
    }
    if (!text || !(mine = sup_call_alloc(&g->call, n + 1))) {
        free(text);
        sup_fail_set(f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the request");
        return false;
    }
    memcpy(mine, text, n + 1);
    free(text);
    put(q, KIND_SCHEMA, mine, n);
    return true;
}

static bool read_schema(struct sup_gen *g, json_t *obj, Ipc__Generate *q, struct sup_fail *f)
{
    static const struct sup_field fields[] = {
        {"schema", SUP_FT_OBJECT, true, 0, 0, 0, NULL},
        {"name", SUP_FT_STR, false, 1, 64, 0, NULL},
        {"description", SUP_FT_STR, false, 0, 65536, 0, NULL},
        {"strict", SUP_FT_BOOL, false, 0, 1, 0, NULL}, /* a schema is always enforced whole */
    };
    struct sup_val v[4];

    if (!json_is_object(obj)) {
        sup_field_bad(f, "response_format.json_schema", obj, "an object with a 'schema'");
        return false;
    }
    return sup_fields_read(fields, 4, obj, "response_format.json_schema.", v, f) &&
           put_schema(g, v[0].j, q, f);
}

static bool read_format(struct sup_gen *g, json_t *obj, Ipc__Generate *q, struct sup_fail *f)
{
    json_t *type = json_object_get(obj, "type");
    const char *s = json_string_value(type);

    if (s && strcmp(s, "text") == 0)
        return true;
    if (s && strcmp(s, "json_schema") == 0)
        return read_schema(g, json_object_get(obj, "json_schema"), q, f);
    if (s && strcmp(s, "json_object") == 0) {
        put(q, KIND_JSON, NULL, 0);
        return true;
    }
    sup_field_bad(f, "response_format.type", type, "one of text, json_object, json_schema");
    return false;
}

bool sup_format_read(struct sup_gen *g, const struct sup_val *v, Ipc__Generate *q,
                     struct sup_fail *f)
{
    const struct sup_val *gbnf = &v[SUP_G_GRAMMAR], *regex = &v[SUP_G_REGEX],
                         *format = &v[SUP_G_RESPONSE_FORMAT];

    if (gbnf->set && regex->set) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "regex",
                     "field 'regex': got one beside 'grammar', expected only one of the two");
        return false;
    }
    if (format->set && !read_format(g, format->j, q, f))
        return false;
    if (gbnf->set && strcmp(gbnf->s, "json") == 0)
        put(q, KIND_JSON, NULL, 0);
    else if (gbnf->set)
        put(q, KIND_GBNF, gbnf->s, gbnf->n_bytes);
    else if (regex->set)
        put(q, KIND_REGEX, regex->s, regex->n_bytes);
    if (q->grammar_kind && v[SUP_G_IGNORE_EOS].b) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "ignore_eos",
                     "field 'ignore_eos': got true, expected false beside a grammar, which says "
                     "where the answer ends");
        return false;
    }
    return true;
}
