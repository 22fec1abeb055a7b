/* sup_extract_relations.c - relations of a schema: types and the labels of their ends.
 *
 * A relation is an object, or TYPE, SOURCE::TYPE or SOURCE::TYPE::TARGET. The worker is asked for
 * each type once; which ends it may have is the plan's. Tests:
 * tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_build.h"

#include <string.h>

#define RELATION_WANT \
    "an object {\"type\", \"source\"?, \"target\"?} or a label SOURCE::TYPE::TARGET"

#define RELATION_FIELDS(X)                                                \
    X(R_TYPE, "type", STR, true, 1, IPC_EXTRACT_NAME_BYTES, 0, NULL)      \
    X(R_SOURCE, "source", STR, false, 1, IPC_EXTRACT_NAME_BYTES, 0, NULL) \
    X(R_TARGET, "target", STR, false, 1, IPC_EXTRACT_NAME_BYTES, 0, NULL) \
    X(R_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)                \
    X(R_DESCRIPTION, "description", STR, false, 0, IPC_EXTRACT_WORDING_BYTES, 0, NULL)

enum { RELATION_FIELDS(SUP_FIELD_ID) R_N };
static const struct sup_field of_relation[R_N] = {RELATION_FIELDS(SUP_FIELD_ROW)};

/* SOURCE::TYPE, SOURCE::TYPE::TARGET or TYPE. false: more colons than that. */
static bool split_label(struct sup_word t, struct sup_word part[3], unsigned *n)
{
    *n = 0;
    for (size_t from = 0;;) {
        const char *sep = memmem(t.s + from, t.n - from, "::", 2);
        size_t end = sep ? (size_t)(sep - t.s) : t.n;

        if (*n == 3)
            return false;
        part[(*n)++] = (struct sup_word){t.s + from, end - from};
        if (!sep)
            return true;
        from = end + 2;
    }
}

struct relation {
    struct sup_word type, source, target; /* s NULL = none */
    bool has_threshold;
    float threshold;
};

static bool end_of(struct sup_build *b, const char *field, const char *which, struct sup_word said,
                   struct sup_word *out)
{
    char name[SUP_BUILD_NAME];

    sup_build_in(name, field, which);
    if (said.s && out->s && (said.n != out->n || memcmp(said.s, out->s, said.n) != 0))
        return sup_build_wrong(b, name, "it contradicts the label that 'type' is written as");
    if (said.s)
        *out = said;
    return !out->s || !sup_build_blank(*out) ||
           sup_build_wrong(b, name, "an empty label, expected one with letters");
}

static bool read_relation(struct sup_build *b, json_t *j, const char *field, struct relation *r)
{
    struct sup_word part[3], said[2] = {{NULL, 0}, {NULL, 0}};
    struct sup_val v[R_N];
    unsigned n;

    memset(r, 0, sizeof(*r));
    if (json_is_object(j)) {
        if (!sup_build_object(b, of_relation, R_N, j, field, v))
            return false;
        r->type = sup_build_text(&v[R_TYPE]);
        said[0] = sup_build_text(&v[R_SOURCE]);
        said[1] = sup_build_text(&v[R_TARGET]);
        r->has_threshold = v[R_THRESHOLD].set;
        r->threshold = (float)v[R_THRESHOLD].f;
    } else {
        r->type = (struct sup_word){json_string_value(j), json_string_length(j)};
        if (r->type.n == 0 || r->type.n > IPC_EXTRACT_NAME_BYTES || strlen(r->type.s) != r->type.n)
            return sup_build_bad(b, field, j, RELATION_WANT);
    }
    if (!split_label(r->type, part, &n))
        return sup_build_wrong(b, field,
                               "more than two '::' in a label, expected SOURCE::TYPE::TARGET");
    if (n > 1)
        r->source = part[0];
    if (n > 2)
        r->target = part[2];
    r->type = part[n > 1];
    if (sup_build_blank(r->type))
        return sup_build_wrong(b, field, "an empty type, expected one with letters");
    return end_of(b, field, "source", said[0], &r->source) &&
           end_of(b, field, "target", said[1], &r->target);
}

/* Where entities are asked for, the ends of a relation are of their labels. */
static bool end_known(struct sup_build *b, struct sup_word label, const char *field,
                      const char *which)
{
    bool found = !label.s || b->msg->n_entities == 0;

    for (size_t i = 0; i < b->msg->n_entities && !found; i++)
        found = b->msg->entities[i]->name.len == label.n &&
                memcmp(b->msg->entities[i]->name.data, label.s, label.n) == 0;
    if (!found)
        sup_fail_set(b->f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': %s \"%.*s\" is no label of '%s'", field, which,
                     label.n < 60 ? (int)label.n : 60, label.s, b->labels_field);
    return found;
}

/* The type's index in the message, which has it once however many ends it is given. */
static size_t relation_idx(struct sup_build *b, json_t *types, const struct relation *r,
                           Ipc__ExtractRelation *rows)
{
    json_t *at = json_object_getn(types, r->type.s, r->type.n);
    size_t i = b->msg->n_relations;

    if (at)
        return (size_t)json_integer_value(at);
    ipc__extract_relation__init(&rows[i]);
    rows[i].name = sup_build_bytes(r->type);
    rows[i].has_threshold = r->has_threshold;
    rows[i].threshold = r->threshold;
    b->msg->n_relations++;
    return i;
}

static bool add_relation(struct sup_build *b, json_t *types, json_t *seen, json_t *list,
                         const struct relation *r, const char *field, Ipc__ExtractRelation *rows)
{
    size_t i = relation_idx(b, types, r, rows);
    struct sup_word none = {"", 0}, s = r->source.s ? r->source : none,
                    t = r->target.s ? r->target : none;
    json_t *row = sup_build_plan(b, list, NULL, json_object());
    char *key = sup_call_alloc(b->c, s.n + r->type.n + t.n + 4);
    struct sup_word whole = {key, s.n + r->type.n + t.n + 4};

    if (!row || !key)
        return sup_fail_no_memory(b->f);
    memcpy(key, s.s, s.n);
    memcpy(key + s.n, "::", 2);
    memcpy(key + s.n + 2, r->type.s, r->type.n);
    memcpy(key + s.n + 2 + r->type.n, "::", 2);
    memcpy(key + s.n + r->type.n + 4, t.s, t.n);
    if (rows[i].has_threshold != r->has_threshold || rows[i].threshold != r->threshold)
        return sup_build_wrong(b, field,
                               "its type has another threshold above, expected one for a type");
    if (json_object_setn_new_nocheck(types, r->type.s, r->type.n, json_integer((json_int_t)i)) !=
            0 ||
        json_object_set_new(row, "i", json_integer((json_int_t)i)) != 0)
        return sup_fail_no_memory(b->f);
    return sup_build_fresh(b, seen, whole, field) && sup_build_plan_text(b, row, "type", r->type) &&
           sup_build_plan_text(b, row, "source", r->source) &&
           sup_build_plan_text(b, row, "target", r->target);
}

bool sup_build_relations(struct sup_build *b, json_t *list, const char *field)
{
    json_t *plan = sup_build_plan(b, b->plan, "relations", json_array()), *types, *seen;
    size_t n = json_array_size(list);
    Ipc__ExtractRelation *rows = NULL;
    char one[SUP_BUILD_NAME];
    struct relation r;
    bool ok;

    if (!plan)
        return false;
    if (list && !json_is_array(list))
        return sup_build_bad(b, field, list, "an array of relations");
    if (n == 0)
        return true;
    types = json_object();
    seen = json_object();
    ok = (types && seen) || sup_fail_no_memory(b->f);
    ok = ok && sup_build_counted(b, field, n) &&
         (rows = sup_build_rows(b, n, sizeof(*rows), (void ***)&b->msg->relations)) != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        sup_build_at(one, field, i);
        ok = read_relation(b, json_array_get(list, i), one, &r) &&
             end_known(b, r.source, one, "source") && end_known(b, r.target, one, "target") &&
             add_relation(b, types, seen, plan, &r, one, rows);
    }
    json_decref(types);
    json_decref(seen);
    return ok;
}
