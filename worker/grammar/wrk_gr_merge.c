/* wrk_gr_merge.c - schemas that must hold together, or never do.
 *
 * A merge takes keywords one by one: bounds become the tighter, types and enums what is
 * common, properties the union. Where the result is not determined by the two values
 * (two patterns, two anyOf, a closed object and one with more properties) it is refused
 * by the keyword's name. Tests: tests/worker/test_wrk_gr_schema.c
 */
#include "wrk_gr_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *sc_resolve(struct sc *c, const char *ref)
{
    json_t *at = c->root;
    const char *p = ref + 1;
    char part[512];

    if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/')) {
        sc_fail(c, RC_UNSUPPORTED,
                "'$ref' \"%.80s\": only references inside the schema (\"#/...\") "
                "are supported",
                ref);
        return NULL;
    }
    while (at != NULL && *p == '/') {
        size_t n = 0;

        for (p++; *p != '\0' && *p != '/' && n + 1 < sizeof(part); p++) {
            bool tilde = *p == '~' && (p[1] == '0' || p[1] == '1');

            part[n++] = tilde ? (p[1] == '0' ? '~' : '/') : *p;
            p += tilde;
        }
        part[n] = '\0';
        at = json_is_array(at) ? json_array_get(at, strtoul(part, NULL, 10))
                               : json_object_get(at, part);
    }
    if (at == NULL || *p != '\0') {
        sc_fail(c, RC_INVALID, "InvalidSchema: '$ref' \"%.80s\" leads nowhere", ref);
        return NULL;
    }
    return at;
}

/* ------------------------------------------------------------------------ merging */

static bool undetermined(struct sc *c, const char *word)
{
    sc_fail(c, RC_UNSUPPORTED,
            "schemas that must hold together both have '%s': that is not supported", word);
    return false;
}

static bool put(struct sc *c, json_t *out, const char *key, json_t *v)
{
    if (v != NULL && json_object_set_new(out, key, v) == 0)
        return c->b->rc == RC_OK;
    sc_fail(c, RC_NOMEM, "no memory for a schema");
    return false;
}

/* The same value: 1 and 1.0 are, whatever they stand in. */
static bool same(struct sc *c, json_t *a, json_t *b)
{
    const char *key;
    json_t *v;
    size_t i;
    int order = 1;

    if (json_is_number(a) && json_is_number(b))
        return json_equal(a, b) || (sc_compare(c, a, b, &order) && order == 0);
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        json_array_foreach(a, i, v) if (!same(c, v, json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b))
            return false;
        json_object_foreach(a, key, v)
        {
            json_t *w = json_object_get(b, key);

            if (w == NULL || !same(c, v, w))
                return false;
        }
        return true;
    }
    return json_equal(a, b);
}

/* Values of a that b has too. */
static json_t *common(struct sc *c, json_t *a, json_t *b)
{
    json_t *out, *x, *y;
    size_t i, j;

    if (!gr_step(c->b, (uint64_t)json_array_size(a) * json_array_size(b)))
        return NULL;
    out = json_array();
    json_array_foreach(a, i, x) json_array_foreach(b, j, y) if (same(c, x, y))
    {
        json_array_append(out, x);
        break;
    }
    return out;
}

static json_t *as_list(json_t *v)
{
    return json_is_array(v) ? json_incref(v) : json_pack("[O]", v);
}

/* Types of both; an integer is a number. */
static json_t *common_types(struct sc *c, json_t *a, json_t *b)
{
    json_t *x = as_list(a), *y = as_list(b), *out = common(c, x, y), *v;
    size_t i;

    for (int turn = 0; turn < 2; turn++) {
        json_t *from = turn ? y : x, *other = turn ? x : y;
        bool has_number = false, has_integer = false;

        json_array_foreach(other, i, v)
        {
            const char *s = json_string_value(v);

            has_number = has_number || (s != NULL && strcmp(s, "number") == 0);
            has_integer = has_integer || (s != NULL && strcmp(s, "integer") == 0);
        }
        json_array_foreach(from, i, v) if (has_number && !has_integer && json_is_string(v) &&
                                           strcmp(json_string_value(v), "integer") == 0)
            json_array_append(out, v);
    }
    json_decref(x);
    json_decref(y);
    return out;
}

/* What a and b say together. More parts make the list longer, never deeper: to free a deep value
 * takes as many calls as it has levels. */
static json_t *both(struct sc *c, json_t *a, json_t *b)
{
    json_t *list = json_object_size(a) == 1 ? json_object_get(a, "allOf") : NULL;

    if (!json_is_array(list))
        return json_pack("{s:[O,O]}", "allOf", a, b);
    if (!gr_step(c->b, json_array_size(list)) || (list = json_copy(list)) == NULL)
        return NULL;
    if (json_array_append(list, b) != 0) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:o}", "allOf", list);
}

static bool merge_properties(struct sc *c, json_t *out, json_t *a, json_t *b)
{
    json_t *all, *v, *old;
    const char *key;

    if (!json_is_object(a) || !json_is_object(b)) {
        sc_fail(c, RC_INVALID, "InvalidSchema: 'properties' must be an object");
        return false;
    }
    all = json_object();
    if (all == NULL || (gr_step(c->b, json_object_size(a)) && json_object_update(all, a) != 0))
        sc_fail(c, RC_NOMEM, "no memory for a schema");
    json_object_foreach(b, key, v)
    {
        json_t *one;

        if (!gr_step(c->b, 2))
            break;
        old = json_object_get(all, key);
        one = old != NULL ? both(c, old, v) : json_incref(v);
        if (one == NULL || json_object_set_new(all, key, one) != 0)
            sc_fail(c, RC_NOMEM, "no memory for a schema");
    }
    if (c->b->rc == RC_OK)
        return put(c, out, "properties", all);
    json_decref(all);
    return false;
}

static json_t *joined(struct sc *c, json_t *a, json_t *b)
{
    json_t *out, *v, *w;
    size_t i, j;

    if (!gr_step(c->b, (uint64_t)json_array_size(a) * json_array_size(b)))
        return NULL;
    out = json_copy(a);

    json_array_foreach(b, i, v)
    {
        bool known = false;

        json_array_foreach(a, j, w) known = known || json_equal(v, w);
        if (!known)
            json_array_append(out, v);
    }
    return out;
}

/* Is bound a at least as tight as b? */
static bool tighter(struct sc *c, const char *key, json_t *a, json_t *b)
{
    bool least = strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0;
    int order = 0;

    sc_compare(c, a, b, &order);
    return least ? order >= 0 : order <= 0;
}

/* Keyword key has two values; v is what out holds. */
static bool merge_word(struct sc *c, json_t *out, const char *key, json_t *v, json_t *w)
{
    if (json_equal(v, w))
        return true;
    if (strcmp(key, "type") == 0)
        return put(c, out, key, common_types(c, v, w));
    if (strcmp(key, "enum") == 0)
        return put(c, out, key, common(c, v, w));
    if (strcmp(key, "properties") == 0)
        return merge_properties(c, out, v, w);
    if (strcmp(key, "required") == 0)
        return put(c, out, key, joined(c, v, w));
    if (strcmp(key, "items") == 0)
        return put(c, out, key, both(c, v, w));
    if (strncmp(key, "min", 3) == 0 || strncmp(key, "max", 3) == 0 ||
        strncmp(key, "exclusiveM", 10) == 0)
        return (tighter(c, key, v, w) || put(c, out, key, json_incref(w))) && c->b->rc == RC_OK;
    return undetermined(c, key);
}

/* additionalProperties of one speaks of what the other calls properties. */
static bool check_closed(struct sc *c, json_t *a, json_t *b)
{
    json_t *add = json_object_get(a, "additionalProperties"), *v;
    const char *key;

    if (add == NULL || json_is_true(add))
        return true;
    json_object_foreach(json_object_get(b, "properties"), key, v)
    {
        if (!gr_step(c->b, 1))
            return false;
        if (json_object_get(json_object_get(a, "properties"), key) == NULL)
            return undetermined(c, "additionalProperties");
    }
    return true;
}

/* items of one speaks of what the other calls prefixItems. */
static bool check_tuple(struct sc *c, json_t *a, json_t *b)
{
    if (json_object_get(a, "prefixItems") != NULL && json_object_get(b, "prefixItems") == NULL &&
        json_object_get(b, "items") != NULL)
        return undetermined(c, "items");
    return true;
}

/* Everything of from into out. Notes go: they may differ and say nothing. */
static bool take(struct sc *c, json_t *out, json_t *from)
{
    const char *key;
    json_t *v;

    if (!check_closed(c, out, from) || !check_closed(c, from, out) || !check_tuple(c, out, from) ||
        !check_tuple(c, from, out))
        return false;
    json_object_foreach(from, key, v)
    {
        const struct sc_word *w = sc_word(key);
        json_t *old = json_object_get(out, key);

        if (!gr_step(c->b, 4))
            return false;
        if ((w != NULL && w->kind == SC_K_NOTE) || strncmp(key, "x-", 2) == 0 ||
            strcmp(key, "$ref") == 0 || strcmp(key, "allOf") == 0)
            continue;
        if (old == NULL ? !put(c, out, key, json_incref(v)) : !merge_word(c, out, key, old, v))
            return false;
    }
    return true;
}

/* One schema and all it refers to, into out. */
static bool gather(struct sc *c, json_t *out, json_t *s, unsigned depth)
{
    json_t *ref = json_object_get(s, "$ref"), *list = json_object_get(s, "allOf"), *part, *target;
    size_t i;

    if (depth > 32) {
        sc_fail(c, RC_UNSUPPORTED, "'$ref' and 'allOf' lead to each other without end");
        return false;
    }
    if (json_is_true(s))
        return true;
    if (!json_is_object(s)) {
        sc_fail(c, json_is_false(s) ? RC_UNSUPPORTED : RC_INVALID,
                "InvalidSchema: expected an object in 'allOf'");
        return false;
    }
    if (!gr_step(c->b, 20) || !take(c, out, s))
        return false;
    if (ref != NULL &&
        (!json_is_string(ref) || (target = sc_resolve(c, json_string_value(ref))) == NULL ||
         !gather(c, out, target, depth + 1)))
        return false;
    if (list != NULL && !json_is_array(list)) {
        sc_fail(c, RC_INVALID, "InvalidSchema: 'allOf' must be an array of schemas");
        return false;
    }
    json_array_foreach(list, i, part) if (!gather(c, out, part, depth + 1)) return false;
    return true;
}

json_t *sc_merge(struct sc *c, json_t *a, json_t *b)
{
    json_t *out = json_object();

    if (out == NULL || json_array_append_new(c->made, out) != 0) {
        sc_fail(c, RC_NOMEM, "no memory for a schema");
        return NULL;
    }
    return gather(c, out, a, 0) && gather(c, out, b, 0) ? out : NULL;
}

/* ----------------------------------------------------------------- never together */

static json_t *follow(struct sc *c, json_t *s)
{
    for (unsigned i = 0; i < 32 && c->b->rc == RC_OK; i++) {
        json_t *ref = json_object_get(s, "$ref");

        if (!json_is_string(ref))
            return s;
        s = sc_resolve(c, json_string_value(ref));
    }
    return NULL;
}

/* The values a schema lists, as a new array, or NULL. */
static json_t *values(json_t *s)
{
    json_t *v = json_object_get(s, "const"), *e = json_object_get(s, "enum");

    return v != NULL ? json_pack("[O]", v) : json_is_array(e) ? json_incref(e) : NULL;
}

static bool no_common_value(struct sc *c, json_t *a, json_t *b)
{
    json_t *x = values(a), *y = values(b), *z = NULL;
    bool apart = x != NULL && y != NULL && (z = common(c, x, y)) != NULL && json_array_size(z) == 0;

    json_decref(x);
    json_decref(y);
    json_decref(z);
    return apart;
}

static unsigned type_of(const json_t *v);

/* The values a lists, and none is of a type that b allows. */
static bool values_of_other_types(struct sc *c, json_t *a, json_t *b)
{
    json_t *list = values(a), *v;
    bool apart =
        list != NULL && json_object_get(b, "type") != NULL && gr_step(c->b, json_array_size(list));
    unsigned types = apart ? sc_types(c, b) : 0;
    size_t i;

    json_array_foreach(list, i, v) apart = apart && (type_of(v) & types) == 0;
    json_decref(list);
    return apart;
}

static bool is_required(json_t *s, const char *name)
{
    json_t *v;
    size_t i;

    json_array_foreach(json_object_get(s, "required"), i,
                       v) if (json_is_string(v) &&
                              strcmp(json_string_value(v), name) == 0) return true;
    return false;
}

static bool open_object(json_t *s)
{
    json_t *add = json_object_get(s, "additionalProperties");

    return (add != NULL && !json_is_false(add)) || json_object_get(s, "properties") == NULL;
}

/* Objects made for a: b asks for a property that they never have, or that they always
 * have with another value. */
static bool objects_apart(struct sc *c, json_t *a, json_t *b, unsigned depth)
{
    json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties"), *v;
    const char *key;
    size_t i, names = json_object_size(pa) + json_object_size(pb) + 1,
              asked = json_array_size(json_object_get(a, "required")) +
                      json_array_size(json_object_get(b, "required")) + 1;

    if (!gr_step(c->b, (uint64_t)names * asked))
        return false;
    if (!open_object(a))
        json_array_foreach(json_object_get(b, "required"), i,
                           v) if (json_is_string(v) &&
                                  json_object_get(pa, json_string_value(v)) == NULL &&
                                  !is_required(a, json_string_value(v))) return true;
    json_object_foreach(pb, key,
                        v) if (is_required(a, key) && json_object_get(pa, key) != NULL &&
                               sc_apart(c, json_object_get(pa, key), v, depth + 1)) return true;
    /* a closed b has no room for what a always writes */
    if (json_is_false(json_object_get(b, "additionalProperties")))
        json_array_foreach(json_object_get(a, "required"), i,
                           v) if (json_is_string(v) &&
                                  json_object_get(pb, json_string_value(v)) == NULL) return true;
    return false;
}

static bool apart_from_all(struct sc *c, json_t *a, json_t *list, bool first, unsigned depth)
{
    json_t *v;
    size_t i;

    json_array_foreach(list, i, v) if (!(first ? sc_apart(c, v, a, depth + 1)
                                               : sc_apart(c, a, v, depth + 1))) return false;
    return json_array_size(list) > 0;
}

bool sc_apart(struct sc *c, json_t *a, json_t *b, unsigned depth)
{
    unsigned ta, tb;

    a = follow(c, a);
    b = follow(c, b);
    if (!gr_step(c->b, 10) || depth > 8 || !json_is_object(a) || !json_is_object(b))
        return false;
    if (no_common_value(c, a, b) || values_of_other_types(c, a, b) ||
        values_of_other_types(c, b, a))
        return true;
    for (int turn = 0; turn < 2; turn++) {
        const char *word = turn ? "oneOf" : "anyOf";

        if (apart_from_all(c, b, json_object_get(a, word), true, depth) ||
            apart_from_all(c, a, json_object_get(b, word), false, depth))
            return true;
    }
    /* b without `type` holds for everything it does not speak of; a without one may be made
     * of anything when it only combines others */
    if (json_object_get(b, "type") == NULL ||
        (json_object_get(a, "type") == NULL && sc_types(c, a) == SC_ALL))
        return false;
    ta = sc_types(c, a);
    tb = sc_types(c, b);
    if ((ta & SC_NUMBER) != 0)
        ta |= SC_INTEGER;
    if ((tb & SC_NUMBER) != 0)
        tb |= SC_INTEGER;
    if ((ta & tb) == 0)
        return true;
    return (ta & tb) == SC_OBJECT && objects_apart(c, a, b, depth);
}

/* ------------------------------------------------------------------ one value */

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return SC_OBJECT;
    case JSON_ARRAY:
        return SC_ARRAY;
    case JSON_STRING:
        return SC_STRING;
    case JSON_INTEGER:
        return SC_NUMBER | SC_INTEGER;
    case JSON_REAL: {
        double d = json_real_value(v);

        return d == floor(d) ? SC_NUMBER | SC_INTEGER : SC_NUMBER;
    }
    case JSON_TRUE:
    case JSON_FALSE:
        return SC_BOOLEAN;
    case JSON_NULL:
        break;
    }
    return SC_NULL;
}

/* The number v against a bound; `excluded`: they may not be equal. */
static bool within(struct sc *c, json_t *v, json_t *bound, bool least, bool excluded)
{
    int order = 0;

    if (!sc_compare(c, v, bound, &order))
        return false;
    return order == 0 ? !excluded : (order > 0) == least;
}

/* The characters of v against a length. */
static bool long_enough(struct sc *c, json_t *v, json_t *bound, bool least)
{
    json_t *n = json_integer(gr_utf8_count(json_string_value(v), json_string_length(v)));
    bool ok = n != NULL && within(c, n, bound, least, false);

    if (n == NULL)
        sc_fail(c, RC_NOMEM, "no memory for a schema");
    json_decref(n);
    return ok;
}

bool sc_holds(struct sc *c, json_t *s, json_t *v)
{
    unsigned type = type_of(v);
    const char *key;
    json_t *w;
    bool ok = true;

    if (json_object_get(s, "type") != NULL && (sc_types(c, s) & type) == 0)
        return false;
    json_object_foreach(s, key, w)
    {
        const struct sc_word *word = sc_word(key);

        if (strcmp(key, "enum") == 0) {
            json_t *one;
            size_t i;
            bool in = false;

            if (json_object_get(s, "const") == NULL)
                continue;
            json_array_foreach(w, i, one) in = in || same(c, one, v);
            ok = ok && in;
        } else if (word == NULL || word->kind != SC_K_TYPED || (word->types & type) == 0) {
            continue;
        } else if (strcmp(key, "minLength") == 0 || strcmp(key, "maxLength") == 0) {
            ok = ok && long_enough(c, v, w, key[1] == 'i');
        } else if (strcmp(key, "minimum") == 0 || strcmp(key, "maximum") == 0) {
            ok = ok && within(c, v, w, key[1] == 'i', false);
        } else if (strcmp(key, "exclusiveMinimum") == 0 || strcmp(key, "exclusiveMaximum") == 0) {
            ok = ok && within(c, v, w, key[10] == 'i', true);
        } else {
            sc_fail(c, RC_UNSUPPORTED, "'%s' beside 'enum' or 'const' is not supported", key);
            return false;
        }
    }
    return ok && c->b->rc == RC_OK;
}
