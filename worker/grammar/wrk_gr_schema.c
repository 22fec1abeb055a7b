/* wrk_gr_schema.c - JSON Schema to trees.
 *
 * One subschema at a time: references and combinations first, then values spelt out
 * (enum, const), then each type. A keyword that is not known or not enforced is refused
 * with its place: what is accepted is enforced. A schema that is referred to, or that
 * nests, becomes a rule of its own, found again by its address, so recursion costs
 * nothing. Source: JSON Schema 2020-12. Tests: tests/worker/test_wrk_gr_schema.c,
 * tests/fuzz/fuzz_gr_schema.c
 */
#include "wrk_gr_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct sc_word words[] = {
    /* say nothing about values */
    {"title", SC_K_NOTE, 0},
    {"description", SC_K_NOTE, 0},
    {"default", SC_K_NOTE, 0},
    {"examples", SC_K_NOTE, 0},
    {"deprecated", SC_K_NOTE, 0},
    {"readOnly", SC_K_NOTE, 0},
    {"writeOnly", SC_K_NOTE, 0},
    {"$schema", SC_K_NOTE, 0},
    {"$id", SC_K_NOTE, 0},
    {"$comment", SC_K_NOTE, 0},
    {"$defs", SC_K_NOTE, 0},
    {"definitions", SC_K_NOTE, 0},
    /* of any value */
    {"type", SC_K_ANY, 0},
    {"enum", SC_K_ANY, 0},
    {"const", SC_K_ANY, 0},
    {"anyOf", SC_K_ANY, 0},
    {"oneOf", SC_K_ANY, 0},
    {"allOf", SC_K_ANY, 0},
    {"$ref", SC_K_ANY, 0},
    /* of one type */
    {"properties", SC_K_TYPED, SC_OBJECT},
    {"required", SC_K_TYPED, SC_OBJECT},
    {"additionalProperties", SC_K_TYPED, SC_OBJECT},
    {"minProperties", SC_K_TYPED, SC_OBJECT},
    {"maxProperties", SC_K_TYPED, SC_OBJECT},
    {"items", SC_K_TYPED, SC_ARRAY},
    {"prefixItems", SC_K_TYPED, SC_ARRAY},
    {"minItems", SC_K_TYPED, SC_ARRAY},
    {"maxItems", SC_K_TYPED, SC_ARRAY},
    {"uniqueItems", SC_K_TYPED, SC_ARRAY},
    {"minLength", SC_K_TYPED, SC_STRING},
    {"maxLength", SC_K_TYPED, SC_STRING},
    {"pattern", SC_K_TYPED, SC_STRING},
    {"format", SC_K_TYPED, SC_STRING},
    {"minimum", SC_K_TYPED, SC_NUMBER},
    {"maximum", SC_K_TYPED, SC_NUMBER},
    {"exclusiveMinimum", SC_K_TYPED, SC_NUMBER},
    {"exclusiveMaximum", SC_K_TYPED, SC_NUMBER},
    {"multipleOf", SC_K_TYPED, SC_NUMBER},
    /* not enforced, so not accepted */
    {"not", SC_K_REFUSED, 0},
    {"if", SC_K_REFUSED, 0},
    {"then", SC_K_REFUSED, 0},
    {"else", SC_K_REFUSED, 0},
    {"contains", SC_K_REFUSED, 0},
    {"minContains", SC_K_REFUSED, 0},
    {"maxContains", SC_K_REFUSED, 0},
    {"patternProperties", SC_K_REFUSED, 0},
    {"propertyNames", SC_K_REFUSED, 0},
    {"dependentRequired", SC_K_REFUSED, 0},
    {"dependentSchemas", SC_K_REFUSED, 0},
    {"dependencies", SC_K_REFUSED, 0},
    {"unevaluatedItems", SC_K_REFUSED, 0},
    {"unevaluatedProperties", SC_K_REFUSED, 0},
    {"additionalItems", SC_K_REFUSED, 0},
    {"contentEncoding", SC_K_REFUSED, 0},
    {"contentMediaType", SC_K_REFUSED, 0},
    {"contentSchema", SC_K_REFUSED, 0},
    {"$anchor", SC_K_REFUSED, 0},
    {"$dynamicRef", SC_K_REFUSED, 0},
    {"$dynamicAnchor", SC_K_REFUSED, 0},
};

const struct sc_word *sc_word(const char *name)
{
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(words[i].name, name) == 0)
            return &words[i];
    return NULL;
}

void sc_fail(struct sc *c, enum rc rc, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    gr_fail(c->b, rc, "%s", text);
}

void sc_locate(const void *user, char *out, size_t cap)
{
    const struct sc *c = user;
    const struct sc_path *step[SC_DEPTH * 2 + 2], *p;
    size_t n = 0, at;

    for (p = c->path; p != NULL && n < sizeof(step) / sizeof(step[0]); p = p->up)
        step[n++] = p;
    at = (size_t)snprintf(out, cap, "schema at #");
    while (n-- > 0 && at + 1 < cap) {
        int k = step[n]->key != NULL ? snprintf(out + at, cap - at, "/%.40s", step[n]->key)
                                     : snprintf(out + at, cap - at, "/%zu", step[n]->idx);

        at += k > 0 ? (size_t)k : 0;
    }
}

/* --------------------------------------------------------------------- keywords */

static bool check_words(struct sc *c, json_t *s)
{
    const char *key;
    json_t *val;

    json_object_foreach(s, key, val)
    {
        const struct sc_word *w = sc_word(key);

        if (!gr_step(c->b, 1))
            return false;
        if (w == NULL && strncmp(key, "x-", 2) == 0)
            continue;
        if (w == NULL)
            sc_fail(c, RC_UNSUPPORTED, "keyword '%.60s' is not known", key);
        else if (w->kind == SC_K_REFUSED)
            sc_fail(c, RC_UNSUPPORTED, "keyword '%s' is not supported", key);
    }
    return c->b->rc == RC_OK;
}

static unsigned type_of_name(const char *s)
{
    static const char *const names[] = {"object",  "array",   "string", "number",
                                        "integer", "boolean", "null"};

    for (unsigned i = 0; s != NULL && i < 7; i++)
        if (strcmp(names[i], s) == 0)
            return 1u << i;
    return 0;
}

unsigned sc_types(struct sc *c, json_t *s)
{
    json_t *t = json_object_get(s, "type"), *val;
    unsigned types = 0;
    const char *key;

    if (t == NULL) {
        json_object_foreach(s, key, val)
        {
            const struct sc_word *w = sc_word(key);

            types |= w != NULL && w->kind == SC_K_TYPED ? w->types : 0;
        }
        return types != 0 ? types : SC_ALL;
    }
    for (size_t i = 0; i < (json_is_array(t) ? json_array_size(t) : 1); i++) {
        const char *name = json_string_value(json_is_array(t) ? json_array_get(t, i) : t);
        unsigned one = type_of_name(name);

        if (one == 0) {
            sc_fail(c, RC_INVALID,
                    "InvalidSchema: type '%.40s', expected object, array, string, "
                    "number, integer, boolean or null",
                    name != NULL ? name : "(no string)");
            return 0;
        }
        types |= one;
    }
    return types & SC_NUMBER ? types & ~(unsigned)SC_INTEGER : types;
}

/* ----------------------------------------------------------------------- bodies */

static uint32_t one_of_values(struct sc *c, json_t *s)
{
    json_t *list = json_object_get(s, "enum"), *v = json_object_get(s, "const");
    size_t n = v != NULL ? 1 : json_array_size(list);
    size_t cost = 1 + json_object_size(s) + json_array_size(json_object_get(s, "type"));
    struct gr_vec kids = {0};
    uint32_t node = 0;

    if (v == NULL && (!json_is_array(list) || n == 0)) {
        sc_fail(c, RC_INVALID, "InvalidSchema: 'enum' must be an array of at least one value");
        return 0;
    }
    if (n > SC_ENUM) {
        sc_fail(c, RC_TOO_LARGE, "'enum' has %zu values, at most %u", n, SC_ENUM);
        return 0;
    }
    for (size_t i = 0; i < n && c->b->rc == RC_OK; i++) {
        json_t *one = v != NULL ? v : json_array_get(list, i);
        uint32_t *p;

        if (!gr_step(c->b, cost) || !sc_holds(c, s, one) ||
            (p = gr_push(c->b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) == NULL)
            continue;
        *p = sc_literal(c, one);
    }
    if (c->b->rc == RC_OK && kids.n == 0)
        sc_fail(c, RC_INVALID, "no value of '%s' satisfies the rest of the schema",
                v != NULL ? "const" : "enum");
    if (c->b->rc == RC_OK)
        node = gr_alt(c->b, kids.p, kids.n);
    free(kids.p);
    return node;
}

static uint32_t of_type(struct sc *c, json_t *s, unsigned type)
{
    switch (type) {
    case SC_OBJECT:
        return sc_object(c, s);
    case SC_ARRAY:
        return sc_array(c, s);
    case SC_STRING:
        return sc_text(c, s);
    case SC_NUMBER:
        return sc_number(c, s);
    case SC_INTEGER:
        return sc_integer(c, s);
    case SC_BOOLEAN:
        return GR_ALT_OF(c->b, gr_str(c->b, "true"), gr_str(c->b, "false"));
    default:
        return gr_str(c->b, "null");
    }
}

static uint32_t by_types(struct sc *c, json_t *s)
{
    unsigned types = sc_types(c, s);
    uint32_t kids[8], n = 0;

    if (types == SC_ALL && json_object_get(s, "type") == NULL)
        return sc_value(c);
    for (unsigned t = 1; t <= SC_NULL && c->b->rc == RC_OK; t <<= 1)
        if ((types & t) != 0)
            kids[n++] = of_type(c, s, t);
    return c->b->rc == RC_OK ? gr_alt(c->b, kids, n) : 0;
}

/* The schema without one keyword, kept in made; NULL: nothing that constrains is left. */
static json_t *without(struct sc *c, json_t *s, const char *word)
{
    json_t *rest = json_copy(s), *val;
    const char *key;
    bool any = false;

    if (rest == NULL || json_array_append_new(c->made, rest) != 0) {
        sc_fail(c, RC_NOMEM, "no memory for a schema");
        return NULL;
    }
    json_object_del(rest, word);
    json_object_foreach(rest, key, val)
    {
        const struct sc_word *w = sc_word(key);

        any = any || (w != NULL && w->kind != SC_K_NOTE);
    }
    return any ? rest : NULL;
}

static void check_apart(struct sc *c, json_t *list)
{
    size_t n = json_array_size(list);

    for (size_t i = 0; i < n && c->b->rc == RC_OK; i++)
        for (size_t j = 0; j < n && gr_step(c->b, 10); j++)
            if (i != j && !sc_apart(c, json_array_get(list, i), json_array_get(list, j), 0))
                sc_fail(c, RC_UNSUPPORTED,
                        "what satisfies alternative %zu of 'oneOf' may satisfy %zu too, which "
                        "'oneOf' forbids and a grammar cannot: use 'anyOf', or tell them apart by "
                        "type or by a required property with a 'const'",
                        i, j);
}

static uint32_t any_of(struct sc *c, json_t *s, const char *word)
{
    json_t *list = json_object_get(s, word), *rest = without(c, s, word), *branch;
    struct gr_vec kids = {0};
    uint32_t node = 0, *p;
    size_t i;

    if (c->b->rc == RC_OK && (!json_is_array(list) || json_array_size(list) == 0))
        sc_fail(c, RC_INVALID, "InvalidSchema: '%s' must be an array of at least one schema", word);
    if (c->b->rc == RC_OK && strcmp(word, "oneOf") == 0)
        check_apart(c, list);
    json_array_foreach(list, i, branch)
    {
        const struct sc_path here = {c->path, word, 0};

        c->path = &here;
        if (rest != NULL && c->b->rc == RC_OK)
            branch = sc_merge(c, rest, branch);
        if (c->b->rc == RC_OK &&
            (p = gr_push(c->b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL) {
            uint32_t kid = sc_schema(c, branch, NULL, i);

            p = (uint32_t *)kids.p + kids.n - 1;
            *p = kid;
        }
        if (c->b->rc != RC_OK)
            break;
        c->path = here.up;
    }
    if (c->b->rc == RC_OK)
        node = gr_alt(c->b, kids.p, kids.n);
    free(kids.p);
    return node;
}

static bool combines(const json_t *s)
{
    return json_object_get(s, "$ref") != NULL || json_object_get(s, "allOf") != NULL ||
           json_object_get(s, "anyOf") != NULL || json_object_get(s, "oneOf") != NULL;
}

static uint32_t named(struct sc *c, json_t *s);

static uint32_t body(struct sc *c, json_t *s)
{
    json_t *ref = json_object_get(s, "$ref"), *rest, *target;

    if (!check_words(c, s))
        return 0;
    if (ref != NULL) {
        if (!json_is_string(ref)) {
            sc_fail(c, RC_INVALID, "InvalidSchema: '$ref' must be a string");
            return 0;
        }
        rest = without(c, s, "$ref");
        if (c->b->rc == RC_OK && rest == NULL)
            return (target = sc_resolve(c, json_string_value(ref))) != NULL ? named(c, target) : 0;
    }
    if (c->b->rc == RC_OK && (ref != NULL || json_object_get(s, "allOf") != NULL)) {
        json_t *whole = sc_merge(c, s, json_true());

        return whole != NULL ? named(c, whole) : 0;
    }
    if (c->b->rc != RC_OK)
        return 0;
    if (json_object_get(s, "anyOf") != NULL)
        return any_of(c, s, "anyOf");
    if (json_object_get(s, "oneOf") != NULL)
        return any_of(c, s, "oneOf");
    if (json_object_get(s, "const") != NULL || json_object_get(s, "enum") != NULL)
        return one_of_values(c, s);
    return by_types(c, s);
}

/* ------------------------------------------------------------------------- rules */

static struct sc_memo *memo_find(struct sc *c, const json_t *s)
{
    uint32_t at = (uint32_t)((uintptr_t)s >> 4) * 2654435761u & (c->memo_cap - 1);

    while (c->memo[at].schema != NULL && c->memo[at].schema != s)
        at = (at + 1) & (c->memo_cap - 1);
    return &c->memo[at];
}

static bool memo_room(struct sc *c)
{
    struct sc_memo *old = c->memo;
    uint32_t cap = c->memo_cap;

    if (c->n_memo * 2 < cap)
        return true;
    c->memo_cap = cap < 64 ? 64 : cap * 2;
    if ((c->memo = calloc(c->memo_cap, sizeof(*c->memo))) == NULL) {
        c->memo = old;
        c->memo_cap = cap;
        sc_fail(c, RC_NOMEM, "no memory for %u schemas", cap);
        return false;
    }
    for (uint32_t i = 0; i < cap; i++)
        if (old[i].schema != NULL)
            *memo_find(c, old[i].schema) = old[i];
    free(old);
    return true;
}

/* A call of the schema's own rule. */
static uint32_t named(struct sc *c, json_t *s)
{
    char name[64];
    struct sc_memo *m;
    uint32_t rule, node;

    if (!json_is_object(s))
        return sc_schema(c, s, NULL, 0);
    if (!memo_room(c))
        return 0;
    if ((m = memo_find(c, s))->schema == s)
        return gr_call(c->b, m->rule);
    sc_locate(c, name, sizeof(name));
    rule = gr_rule_new(c->b, name);
    if (c->b->rc != RC_OK)
        return 0;
    *m = (struct sc_memo){s, rule};
    c->n_memo++;
    if (++c->depth > SC_DEPTH) {
        sc_fail(c, RC_TOO_LARGE, "schemas are nested more than %u deep", SC_DEPTH);
        return 0;
    }
    node = body(c, s);
    c->depth--;
    if (c->b->rc != RC_OK)
        return 0;
    gr_rule(c->b, rule)->node = node;
    return gr_call(c->b, rule);
}

uint32_t sc_schema(struct sc *c, json_t *s, const char *key, size_t idx)
{
    const struct sc_path here = {c->path, key, idx};
    uint32_t node;

    if (c->b->rc != RC_OK)
        return 0;
    if (json_is_true(s))
        return sc_value(c);
    if (json_is_false(s))
        return gr_never(c->b);
    c->path = &here;
    if (!json_is_object(s)) {
        sc_fail(c, RC_INVALID, "InvalidSchema: expected an object or true or false");
        return 0;
    }
    node = combines(s) || (sc_types(c, s) & (SC_OBJECT | SC_ARRAY)) != 0 ? named(c, s) : body(c, s);
    if (c->b->rc == RC_OK)
        c->path = here.up; /* else it tells where */
    return node;
}

bool sc_too_deep(const char *text, size_t n)
{
    int depth = 0;
    bool in = false;

    for (size_t i = 0; i < n; i++) {
        if (in && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in = !in;
        else if (!in && (text[i] == '{' || text[i] == '['))
            depth++;
        else if (!in && (text[i] == '}' || text[i] == ']'))
            depth--;
        if (depth > 256)
            return true;
    }
    return false;
}

void gr_read_schema(struct gr_build *b, const char *text, size_t n, bool any_object)
{
    struct sc c = SC_INIT(b);
    uint32_t root = gr_rule_new(b, "the answer"), node = 0;
    json_error_t why;

    if (any_object) {
        node = sc_object_any(&c);
    } else if (sc_too_deep(text, n)) {
        gr_fail(b, RC_TOO_LARGE, "the schema's JSON is nested more than 256 deep");
    } else if ((c.root = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why)) ==
               NULL) {
        gr_fail(b, RC_INVALID, "InvalidSchema: %s", why.text);
    } else if ((c.made = json_array()) == NULL) {
        gr_fail(b, RC_NOMEM, "no memory for a schema");
    } else {
        b->locate = sc_locate;
        b->user = &c;
        node = json_is_object(c.root) ? named(&c, c.root) : sc_schema(&c, c.root, NULL, 0);
    }
    if (b->rc == RC_OK)
        gr_rule(b, root)->node = node;
    b->locate = NULL;
    json_decref(c.root);
    json_decref(c.made);
    free(c.memo);
}
