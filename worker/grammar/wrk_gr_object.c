/* wrk_gr_object.c - objects and arrays.
 *
 * Properties are written in the schema's order, each at most once, those that are not
 * required may be left out; others (only when additionalProperties says so in words)
 * come behind them and never bear a declared name. Tests: tests/worker/test_wrk_gr_schema.c
 */
#include "wrk_gr_json.h"

#include <stdlib.h>
#include <string.h>

uint32_t sc_count(struct sc *c, json_t *s, const char *key, uint32_t def, bool least)
{
    json_t *v = json_object_get(s, key);
    double d = json_number_value(v);

    if (v == NULL)
        return def;
    if (!json_is_number(v) || !(d >= 0) || d != (double)(uint64_t)(d < 1e15 ? d : 0)) {
        if (json_is_number(v) && d >= 1e15 && !least)
            return GR_INF; /* no answer is as long */
        sc_fail(c, d >= 1e15 ? RC_TOO_LARGE : RC_INVALID,
                "InvalidSchema: '%s' must be a whole number from 0%s", key,
                least ? " to 1000000" : "");
        return def;
    }
    if (least && d > GR_COUNT_MAX) {
        sc_fail(c, RC_TOO_LARGE, "'%s' is %.0f, at most %u", key, d, GR_COUNT_MAX);
        return def;
    }
    return d >= GR_INF ? GR_INF : (uint32_t)d;
}

/* ----------------------------------------------------------------------- objects */

struct members {
    struct sc *c;
    json_t *schema, *props, *required, *add;
    struct gr_vec kids; /* as gr_members wants them */
    uint32_t n_required, n_all;
};

static bool is_required(const struct members *m, const char *name)
{
    json_t *v;
    size_t i;

    json_array_foreach(m->required, i, v)
    {
        gr_step(m->c->b, 1);
        if (strcmp(json_string_value(v), name) == 0)
            return true;
    }
    return false;
}

static void put(struct members *m, uint32_t v)
{
    uint32_t *p = gr_push(m->c->b, &m->kids, sizeof(*p), GR_NODES_MAX, "tree nodes");

    if (p != NULL)
        *p = v;
}

static void add_member(struct members *m, const char *name, uint32_t value, enum gr_member how)
{
    struct sc *c = m->c;
    json_t *key = json_string(name);
    uint32_t node;

    if (key == NULL)
        sc_fail(c, RC_NOMEM, "no memory for a property");
    if (c->b->rc != RC_OK) {
        json_decref(key);
        return;
    }
    if (gr_node(c->b, value)->cost > 24) { /* it is written twice: keep it small */
        uint32_t rule = gr_rule_new(c->b, "value");

        if (c->b->rc == RC_OK)
            gr_rule(c->b, rule)->node = value;
        value = gr_call(c->b, rule);
    }
    node = GR_SEQ_OF(c->b, c->calls ? sc_raw_key(c, name) : sc_literal(c, key), gr_str(c->b, ":"),
                     sc_space(c), value);
    json_decref(key);
    put(m, node);
    put(m, how);
    m->n_all++;
    m->n_required += how == GR_REQUIRED;
}

/* -------------------------------------------------- names that are not declared */

struct names {
    struct sc *c;
    const char **name;
    size_t *len;
};

/* Characters of a name that are written as they stand, except those of r. */
static uint32_t others(struct sc *c, const struct gr_range *r, uint32_t n)
{
    static const struct gr_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    struct gr_vec v = {0};
    uint32_t node;

    for (size_t i = 0; i < 3; i++) {
        uint32_t from = plain[i].lo;

        for (uint32_t k = 0; k <= n; k++) {
            uint32_t to = k < n ? r[k].lo : plain[i].hi + 1;
            struct gr_range *p;

            if (to > plain[i].hi + 1)
                to = plain[i].hi + 1;
            if (to > from &&
                (p = gr_push(c->b, &v, sizeof(*p), GR_NODES_MAX, "character ranges")) != NULL)
                *p = (struct gr_range){from, to - 1};
            if (k < n && r[k].hi + 1 > from)
                from = r[k].hi + 1;
        }
    }
    node = gr_set(c->b, v.p, v.n, false);
    free(v.p);
    return node;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What may follow `at` bytes that names[lo..hi) share, so that none of them results. */
static uint32_t no_name(struct names *w, size_t lo, size_t hi, size_t at, uint32_t rest)
{
    struct gr_build *b = w->c->b;
    struct gr_vec kids = {0}, used = {0};
    uint32_t *p, node = 0;
    struct gr_range *r;

    if (!gr_step(b, hi - lo))
        return 0;
    if (w->len[lo] > at && (p = gr_push(b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL)
        *p = gr_empty(b); /* the name may end here */
    for (size_t i = lo + (w->len[lo] == at), j; i < hi && b->rc == RC_OK; i = j) {
        size_t next = at;
        uint32_t ch = gr_utf8(w->name[i], w->len[i], &next), kid;

        for (j = i + 1; j < hi && memcmp(w->name[i] + at, w->name[j] + at, next - at) == 0; j++)
            ;
        if ((r = gr_push(b, &used, sizeof(*r), GR_NODES_MAX, "character ranges")) != NULL)
            *r = (struct gr_range){ch, ch};
        if (ch < 0x20 || ch == '"' || ch == '\\')
            continue; /* needs an escape, which other names are written without */
        kid = GR_SEQ_OF(b, gr_text(b, w->name[i] + at, next - at), no_name(w, i, j, next, rest));
        if ((p = gr_push(b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL)
            *p = kid;
    }
    if (b->rc == RC_OK && (p = gr_push(b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL)
        *p = GR_SEQ_OF(b, others(w->c, used.p, used.n), rest);
    if (b->rc == RC_OK)
        node = gr_alt(b, kids.p, kids.n);
    free(kids.p);
    free(used.p);
    return node;
}

static uint32_t other_name(struct members *m)
{
    struct sc *c = m->c;
    size_t n = json_object_size(m->props), i = 0;
    struct names w = {c, calloc(n + 1, sizeof(*w.name)), calloc(n + 1, sizeof(*w.len))};
    uint32_t any = gr_rep(c->b, others(c, NULL, 0), 0, GR_INF), node = 0;
    const char *key;
    json_t *val;

    if (w.name == NULL || w.len == NULL)
        sc_fail(c, RC_NOMEM, "no memory for %zu properties", n);
    if (c->b->rc == RC_OK)
        json_object_foreach(m->props, key, val)
        {
            if (strlen(key) > SC_KEY_BYTES)
                sc_fail(c, RC_TOO_LARGE,
                        "a property's name has %zu bytes, at most %u beside 'additionalProperties'",
                        strlen(key), SC_KEY_BYTES);
            w.name[i++] = key;
        }
    if (c->b->rc == RC_OK && n > 0) {
        qsort(w.name, n, sizeof(*w.name), by_text);
        for (i = 0; i < n; i++)
            w.len[i] = strlen(w.name[i]);
    }
    if (c->b->rc == RC_OK)
        node = n > 0 ? no_name(&w, 0, n, 0, any) : any;
    free(w.name);
    free(w.len);
    return GR_SEQ_OF(c->b, sc_quote(c), node, sc_quote(c));
}

/* ------------------------------------------------------------------ the whole */

static void read_members(struct members *m)
{
    struct sc *c = m->c;
    const struct sc_path here = {c->path, "properties", 0};
    const char *key;
    json_t *v;
    size_t i;

    c->path = &here;
    json_object_foreach(m->props, key, v)
    {
        bool needed = is_required(m, key);

        if (c->b->rc != RC_OK)
            return;
        if (json_is_false(v) && !needed)
            continue;
        add_member(m, key, sc_schema(c, v, key, 0), needed ? GR_REQUIRED : GR_OPTIONAL);
    }
    if (c->b->rc != RC_OK)
        return;
    c->path = here.up;
    json_array_foreach(m->required, i, v)
    {
        const char *name = json_string_value(v);

        if (json_object_get(m->props, name) != NULL)
            continue;
        if (json_is_false(m->add)) {
            sc_fail(c, RC_INVALID,
                    "property '%.60s' is required, not declared, and additionalProperties is false",
                    name);
            return;
        }
        add_member(m, name,
                   m->add != NULL ? sc_schema(c, m->add, "additionalProperties", 0) : sc_value(c),
                   GR_REQUIRED);
    }
}

static bool check_shape(struct members *m)
{
    struct sc *c = m->c;
    json_t *v;
    size_t i, j;

    if (m->props != NULL && !json_is_object(m->props))
        sc_fail(c, RC_INVALID, "InvalidSchema: 'properties' must be an object");
    if (m->required != NULL && !json_is_array(m->required))
        sc_fail(c, RC_INVALID, "InvalidSchema: 'required' must be an array of names");
    json_array_foreach(m->required, i, v)
    {
        if (!json_is_string(v)) {
            sc_fail(c, RC_INVALID, "InvalidSchema: 'required' must be an array of names");
            break;
        }
        for (j = 0; j < i && gr_step(c->b, 1); j++)
            if (json_equal(v, json_array_get(m->required, j)))
                sc_fail(c, RC_INVALID, "InvalidSchema: 'required' names '%.60s' twice",
                        json_string_value(v));
    }
    if (json_object_size(m->props) > SC_PROPERTIES || json_array_size(m->required) > SC_PROPERTIES)
        sc_fail(c, RC_TOO_LARGE, "an object has more than %u properties", SC_PROPERTIES);
    return c->b->rc == RC_OK;
}

/* minProperties and maxProperties, where what is written satisfies them anyhow. */
static void check_counts(struct members *m, bool others_too)
{
    struct sc *c = m->c;
    uint32_t min = sc_count(c, m->schema, "minProperties", 0, true),
             max = sc_count(c, m->schema, "maxProperties", GR_INF, false);

    if (min > m->n_required)
        sc_fail(c, RC_UNSUPPORTED,
                "'minProperties' is %u and %u are required: more is not enforced", min,
                m->n_required);
    if (max != GR_INF && (others_too || max < m->n_all))
        sc_fail(c, RC_UNSUPPORTED,
                "'maxProperties' is %u and more may be written: that is not enforced", max);
}

uint32_t sc_object(struct sc *c, json_t *s)
{
    struct members m = {.c = c,
                        .schema = s,
                        .props = json_object_get(s, "properties"),
                        .required = json_object_get(s, "required"),
                        .add = json_object_get(s, "additionalProperties")};
    bool others_too = (m.add != NULL && !json_is_false(m.add)) ||
                      (m.add == NULL && json_object_size(m.props) == 0 && m.required == NULL);
    uint32_t node = 0, value;

    if (!check_shape(&m))
        return 0;
    for (int i = 0; i < 3; i++)
        put(&m, 0);
    read_members(&m);
    if (c->b->rc == RC_OK)
        check_counts(&m, others_too);
    if (c->b->rc == RC_OK && others_too) {
        value = m.add != NULL ? sc_schema(c, m.add, "additionalProperties", 0) : sc_value(c);
        node = m.n_all > 0 || json_object_size(m.props) > 0 ? other_name(&m) : sc_string(c);
        put(&m, GR_SEQ_OF(c->b, node, gr_str(c->b, ":"), sc_space(c), value));
        put(&m, GR_MANY);
    }
    node = c->b->rc == RC_OK ? sc_braces(c, m.kids.p, m.kids.n) : 0;
    free(m.kids.p);
    return node;
}

/* ------------------------------------------------------------------------ arrays */

/* Items behind the first: a comma each. */
static uint32_t behind(struct sc *c, uint32_t item, uint32_t min, uint32_t max)
{
    return gr_rep(c->b, GR_SEQ_OF(c->b, sc_comma(c), item), min, max);
}

static uint32_t tuple(struct sc *c, json_t *list, uint32_t min, uint32_t max, uint32_t rest)
{
    struct gr_vec kids = {0};
    uint32_t n = 0, *p, node = 0;
    json_t *v;
    size_t i;
    const struct sc_path here = {c->path, "prefixItems", 0};

    c->path = &here;
    json_array_foreach(list, i, v)
    {
        uint32_t item;

        if (n == max || c->b->rc != RC_OK)
            break;
        item = sc_schema(c, v, NULL, i);
        if (c->b->rc != RC_OK)
            break;
        if (n++ > 0)
            item = GR_SEQ_OF(c->b, sc_comma(c), item);
        if ((p = gr_push(c->b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL)
            *p = item;
    }
    if (c->b->rc == RC_OK) {
        c->path = here.up;
        if (rest != GR_NONE && max > n &&
            (p = gr_push(c->b, &kids, sizeof(*p), GR_NODES_MAX, "tree nodes")) != NULL)
            *p = behind(c, rest, min > n ? min - n : 0, max == GR_INF ? GR_INF : max - n);
        else if (min > n)
            sc_fail(c, RC_INVALID, "'minItems' is %u, and only %u items are allowed", min, n);
    }
    if (c->b->rc == RC_OK)
        node = sc_brackets(c, n > 0 ? gr_seq(c->b, kids.p, kids.n) : GR_NONE, n == 0);
    free(kids.p);
    return node;
}

uint32_t sc_array(struct sc *c, json_t *s)
{
    json_t *items = json_object_get(s, "items"), *prefix = json_object_get(s, "prefixItems");
    uint32_t min = sc_count(c, s, "minItems", 0, true),
             max = sc_count(c, s, "maxItems", GR_INF, false), item = GR_NONE;
    bool any = items == NULL && prefix == NULL;

    if (json_is_true(json_object_get(s, "uniqueItems")))
        sc_fail(c, RC_UNSUPPORTED, "'uniqueItems' is not supported");
    if (json_is_array(items))
        sc_fail(c, RC_UNSUPPORTED, "'items' as a list is not supported: use 'prefixItems'");
    if (prefix != NULL && (!json_is_array(prefix) || json_array_size(prefix) == 0))
        sc_fail(c, RC_INVALID, "InvalidSchema: 'prefixItems' must be an array of schemas");
    if (c->b->rc == RC_OK && min > max)
        sc_fail(c, RC_INVALID, "'minItems' is %u and 'maxItems' %u", min, max);
    if (c->b->rc != RC_OK)
        return 0;
    if (any && min == 0 && max == GR_INF)
        return sc_array_any(c);
    if (items != NULL && !json_is_false(items))
        item = sc_schema(c, items, "items", 0);
    else if (any || (items == NULL && min > json_array_size(prefix)))
        item = sc_value(c);
    if (c->b->rc != RC_OK)
        return 0;
    if (prefix != NULL)
        return tuple(c, prefix, min, max, item);
    if (max == 0 || item == GR_NONE) {
        if (min > 0)
            sc_fail(c, RC_INVALID, "'minItems' is %u, and no items are allowed", min);
        return sc_brackets(c, GR_NONE, true);
    }
    return sc_brackets(
        c,
        GR_SEQ_OF(c->b, item,
                  behind(c, item, min > 1 ? min - 1 : 0, max == GR_INF ? GR_INF : max - 1)),
        min == 0);
}
