/* sup_extract_schema.c - what to find: a schema of the request to the worker's message.
 *
 * Beside the message a plan is made, with the names that the answer needs: indexes of an answer
 * count in the message's lists. Names are checked here, so that a worker meets none that is empty
 * or stands twice; what they cost in tokens is the worker's to say.
 * Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 1024
#define TEXT_MAX_BYTES 65536
#define PATTERN_MAX_BYTES 1024
#define PATTERNS_MAX 16u
#define EXAMPLES_MAX 64u
#define FIELD_BYTES 160
#define LABEL_WANT "a label or an object {\"name\", \"description\"?, \"threshold\"?, \"dtype\"?}"
#define RELATION_WANT \
    "an object {\"type\", \"source\"?, \"target\"?} or a label SOURCE::TYPE::TARGET"
#define FIELDS_WANT "an object of fields, or an array of \"name::type::[a|b]::description\""

#define SCHEMA_FIELDS(X)                                                                       \
    X(S_ENTITIES, "entities", ANY, false, 0, 0, 0, "an array of labels")                       \
    X(S_RELATIONS, "relations", ANY, false, 0, 0, 0, "an array of relations")                  \
    X(S_CLASSES, "classifications", ANY, false, 0, 0, 0, "an array of {\"name\", \"labels\"}") \
    X(S_STRUCTURES, "structures", OBJECT, false, 0, 0, 0, NULL)

#define LABEL_FIELDS(X)                                                     \
    X(L_NAME, "name", STR, true, 1, NAME_MAX_BYTES, 0, NULL)                \
    X(L_DESCRIPTION, "description", STR, false, 0, TEXT_MAX_BYTES, 0, NULL) \
    X(L_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)                  \
    X(L_DTYPE, "dtype", ENUM, false, 0, 0, 0, "str|list")

#define RELATION_FIELDS(X)                                        \
    X(R_TYPE, "type", STR, true, 1, NAME_MAX_BYTES, 0, NULL)      \
    X(R_SOURCE, "source", STR, false, 1, NAME_MAX_BYTES, 0, NULL) \
    X(R_TARGET, "target", STR, false, 1, NAME_MAX_BYTES, 0, NULL) \
    X(R_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)        \
    X(R_DESCRIPTION, "description", STR, false, 0, TEXT_MAX_BYTES, 0, NULL)

#define CLASS_FIELDS(X)                                                         \
    X(C_NAME, "name", STR, true, 1, NAME_MAX_BYTES, 0, NULL)                    \
    X(C_LABELS, "labels", ANY, true, 0, 0, 0, "a non-empty array of labels")    \
    X(C_MULTI, "multi_label", BOOL, false, 0, 1, 0, NULL)                       \
    X(C_THRESHOLD, "threshold", NUM, false, 0, 1, 0.5, NULL)                    \
    X(C_ACTIVATION, "activation", ENUM, false, 0, 0, 0, "auto|sigmoid|softmax") \
    X(C_PROMPT, "prompt", STR, false, 0, TEXT_MAX_BYTES, 0, NULL)               \
    X(C_EXAMPLES, "examples", ANY, false, 0, 0, 0, "an array of {\"input\", \"output\"}")

#define EXAMPLE_FIELDS(X)                                      \
    X(E_INPUT, "input", STR, true, 1, TEXT_MAX_BYTES, 0, NULL) \
    X(E_OUTPUT, "output", STR, true, 1, NAME_MAX_BYTES, 0, NULL)

#define VALUE_FIELDS(X)                                                          \
    X(V_TYPE, "type", STR, false, 0, NAME_MAX_BYTES, 0, NULL)                    \
    X(V_DTYPE, "dtype", STR, false, 0, NAME_MAX_BYTES, 0, NULL)                  \
    X(V_DESCRIPTION, "description", STR, false, 0, TEXT_MAX_BYTES, 0, NULL)      \
    X(V_CHOICES, "choices", ANY, false, 0, 0, 0, "a non-empty array of strings") \
    X(V_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)                       \
    X(V_PATTERNS, "patterns", ANY, false, 0, 0, 0, "an array of at most 16 patterns")

#define PATTERN_FIELDS(X)                                             \
    X(P_PATTERN, "pattern", STR, true, 1, PATTERN_MAX_BYTES, 0, NULL) \
    X(P_MODE, "mode", ENUM, false, 0, 0, 0, "full|partial")           \
    X(P_EXCLUDE, "exclude", BOOL, false, 0, 1, 0, NULL)               \
    X(P_CASE, "case_sensitive", BOOL, false, 0, 1, 0, NULL)

enum { SCHEMA_FIELDS(SUP_FIELD_ID) S_N };
enum { LABEL_FIELDS(SUP_FIELD_ID) L_N };
enum { RELATION_FIELDS(SUP_FIELD_ID) R_N };
enum { CLASS_FIELDS(SUP_FIELD_ID) C_N };
enum { EXAMPLE_FIELDS(SUP_FIELD_ID) E_N };
enum { VALUE_FIELDS(SUP_FIELD_ID) V_N };
enum { PATTERN_FIELDS(SUP_FIELD_ID) P_N };
static const struct sup_field of_schema[S_N] = {SCHEMA_FIELDS(SUP_FIELD_ROW)},
                              of_label[L_N] = {LABEL_FIELDS(SUP_FIELD_ROW)},
                              of_relation[R_N] = {RELATION_FIELDS(SUP_FIELD_ROW)},
                              of_class[C_N] = {CLASS_FIELDS(SUP_FIELD_ROW)},
                              of_example[E_N] = {EXAMPLE_FIELDS(SUP_FIELD_ROW)},
                              of_value[V_N] = {VALUE_FIELDS(SUP_FIELD_ROW)},
                              of_pattern[P_N] = {PATTERN_FIELDS(SUP_FIELD_ROW)};

struct build {
    struct sup_call *c;
    struct sup_fail *f;
    Ipc__ExtractSchema *msg;
    json_t *plan;
    bool strict;
    uint32_t n_names;
};

struct text {
    const char *s;
    size_t n;
};

/* ------------------------------------------------------------------ helpers */

/* Names of what is inside a field, for messages. */
static void at_index(char out[FIELD_BYTES], const char *field, size_t i)
{
    snprintf(out, FIELD_BYTES, "%.110s[%zu]", field, i);
}

static void at_key(char out[FIELD_BYTES], const char *field, const char *key)
{
    snprintf(out, FIELD_BYTES, "%.110s.%.40s", field, key);
}

static ProtobufCBinaryData borrowed(struct text t)
{
    return (ProtobufCBinaryData){t.n, (uint8_t *)(uintptr_t)t.s};
}

static bool wrong(struct build *b, const char *field, const char *why)
{
    sup_fail_set(b->f, SUP_E_INVALID_REQUEST, field, "field '%s': %s", field, why);
    return false;
}

static bool wrong_value(struct build *b, const char *field, const json_t *got, const char *want)
{
    sup_field_bad(b->f, field, got, want);
    return false;
}

/* Rows of a message in one piece, and the list of pointers to them. */
static void *rows_of(struct build *b, size_t n, size_t size, void ***list)
{
    char *rows = sup_call_alloc(b->c, n * size);
    void **at = sup_call_alloc(b->c, n * sizeof(*at));

    if (!rows || !at) {
        sup_fail_no_memory(b->f);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        at[i] = rows + i * size;
    *list = at;
    return rows;
}

/* One more name of the schema. */
static bool counted(struct build *b, const char *field, size_t n)
{
    if (n <= SUP_EXTRACT_NAMES - b->n_names) {
        b->n_names += (uint32_t)n;
        return true;
    }
    sup_fail_set(b->f, SUP_E_CONTENT_TOO_LARGE, field,
                 "field '%s': the schema has more than %u labels, fields and choices", field,
                 SUP_EXTRACT_NAMES);
    return false;
}

static bool blank(struct text t)
{
    size_t i = 0;

    while (i < t.n && strchr(" \t\r\n", t.s[i]))
        i++;
    return i == t.n;
}

/* A name that is there, and for the first time in `seen` (an object). */
static bool fresh(struct build *b, json_t *seen, struct text name, const char *field)
{
    if (blank(name))
        return wrong(b, field, "an empty name, expected one with letters");
    if (json_object_getn(seen, name.s, name.n)) {
        sup_fail_set(b->f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': \"%.*s\" stands there twice, expected each name once", field,
                     name.n < 60 ? (int)name.n : 60, name.s);
        return false;
    }
    return json_object_setn_new_nocheck(seen, name.s, name.n, json_true()) == 0 ||
           sup_fail_no_memory(b->f);
}

static bool plan_name(struct build *b, json_t *list, struct text name)
{
    return json_array_append_new(list, json_stringn_nocheck(name.s, name.n)) == 0 ||
           sup_fail_no_memory(b->f);
}

/* A new list or object of the plan, below key of an object or at the end of a list. */
static json_t *plan_new(struct build *b, json_t *in, const char *key, json_t *made)
{
    int failed = key ? json_object_set_new(in, key, made) : json_array_append_new(in, made);

    if (!made || failed) {
        sup_fail_no_memory(b->f);
        return NULL;
    }
    return made;
}

/* A key's text into the plan, where it is set. */
static bool plan_text(struct build *b, json_t *in, const char *key, struct text t)
{
    return !t.s || json_object_set_new(in, key, json_stringn_nocheck(t.s, t.n)) == 0 ||
           sup_fail_no_memory(b->f);
}

static bool read_object(struct build *b, const struct sup_field *rows, size_t n, json_t *obj,
                        const char *field, struct sup_val *v)
{
    char prefix[FIELD_BYTES + 2];

    snprintf(prefix, sizeof(prefix), "%s.", field);
    return (!b->strict || sup_fields_known(rows, n, NULL, obj, prefix, b->f)) &&
           sup_fields_read(rows, n, obj, prefix, v, b->f);
}

static struct text text_of(const struct sup_val *v)
{
    return v->set ? (struct text){v->s, v->n_bytes} : (struct text){NULL, 0};
}

/* ------------------------------------------------------------------- labels */

/* A label of entities or classes: a string, or an object. */
static bool read_label(struct build *b, json_t *j, const char *field, Ipc__ExtractField *out,
                       struct text *name)
{
    struct sup_val v[L_N];

    ipc__extract_field__init(out);
    if (json_is_string(j)) {
        *name = (struct text){json_string_value(j), json_string_length(j)};
        if (name->n == 0 || name->n > NAME_MAX_BYTES || strlen(name->s) != name->n)
            return wrong_value(b, field, j, "a label of 1 to 1024 bytes without NUL");
    } else if (!json_is_object(j)) {
        return wrong_value(b, field, j, LABEL_WANT);
    } else {
        if (!read_object(b, of_label, L_N, j, field, v))
            return false;
        *name = text_of(&v[L_NAME]);
        out->description = borrowed(text_of(&v[L_DESCRIPTION]));
        out->has_threshold = v[L_THRESHOLD].set;
        out->threshold = (float)v[L_THRESHOLD].f;
        out->single = v[L_DTYPE].set && strcmp(v[L_DTYPE].s, "str") == 0;
    }
    out->name = borrowed(*name);
    return true;
}

static bool read_labels(struct build *b, json_t *list, const char *field, json_t *names,
                        size_t *out_n, Ipc__ExtractField ***out)
{
    size_t n = json_array_size(list);
    json_t *seen = json_object();
    Ipc__ExtractField *rows;
    char one[FIELD_BYTES];
    struct text name;
    bool ok = seen || sup_fail_no_memory(b->f);

    ok = ok && counted(b, field, n) && (rows = rows_of(b, n, sizeof(*rows), (void ***)out)) != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        at_index(one, field, i);
        ok = read_label(b, json_array_get(list, i), one, &rows[i], &name) &&
             fresh(b, seen, name, one) && plan_name(b, names, name);
    }
    json_decref(seen);
    *out_n = ok ? n : 0;
    return ok;
}

static bool read_entities(struct build *b, json_t *list, const char *field)
{
    json_t *names = plan_new(b, b->plan, "entities", json_array());

    if (!names)
        return false;
    if (list && !json_is_array(list))
        return wrong_value(b, field, list, "an array of labels");
    return json_array_size(list) == 0 ||
           read_labels(b, list, field, names, &b->msg->n_entities, &b->msg->entities);
}

/* ---------------------------------------------------------------- relations */

/* SOURCE::TYPE, SOURCE::TYPE::TARGET or TYPE. false: more colons than that. */
static bool split_label(struct text t, struct text part[3], unsigned *n)
{
    *n = 0;
    for (size_t from = 0;;) {
        const char *sep = memmem(t.s + from, t.n - from, "::", 2);
        size_t end = sep ? (size_t)(sep - t.s) : t.n;

        if (*n == 3)
            return false;
        part[(*n)++] = (struct text){t.s + from, end - from};
        if (!sep)
            return true;
        from = end + 2;
    }
}

struct relation {
    struct text type, source, target; /* s NULL = none */
    bool has_threshold;
    float threshold;
};

static bool end_of(struct build *b, const char *field, const char *which, struct text said,
                   struct text *out)
{
    char name[FIELD_BYTES];

    at_key(name, field, which);
    if (said.s && out->s && (said.n != out->n || memcmp(said.s, out->s, said.n) != 0))
        return wrong(b, name, "it contradicts the label that 'type' is written as");
    if (said.s)
        *out = said;
    return !out->s || !blank(*out) || wrong(b, name, "an empty label, expected one with letters");
}

static bool read_relation(struct build *b, json_t *j, const char *field, struct relation *r)
{
    struct text part[3], said[2] = {{NULL, 0}, {NULL, 0}};
    struct sup_val v[R_N];
    unsigned n;

    memset(r, 0, sizeof(*r));
    if (json_is_object(j)) {
        if (!read_object(b, of_relation, R_N, j, field, v))
            return false;
        r->type = text_of(&v[R_TYPE]);
        said[0] = text_of(&v[R_SOURCE]);
        said[1] = text_of(&v[R_TARGET]);
        r->has_threshold = v[R_THRESHOLD].set;
        r->threshold = (float)v[R_THRESHOLD].f;
    } else {
        r->type = (struct text){json_string_value(j), json_string_length(j)};
        if (r->type.n == 0 || r->type.n > NAME_MAX_BYTES || strlen(r->type.s) != r->type.n)
            return wrong_value(b, field, j, RELATION_WANT);
    }
    if (!split_label(r->type, part, &n))
        return wrong(b, field, "more than two '::' in a label, expected SOURCE::TYPE::TARGET");
    if (n > 1)
        r->source = part[0];
    if (n > 2)
        r->target = part[2];
    r->type = part[n > 1];
    if (blank(r->type))
        return wrong(b, field, "an empty type, expected one with letters");
    return end_of(b, field, "source", said[0], &r->source) &&
           end_of(b, field, "target", said[1], &r->target);
}

/* Where entities are asked for, the ends of a relation are of their labels. */
static bool end_known(struct build *b, struct text label, const char *field, const char *which)
{
    bool found = !label.s || b->msg->n_entities == 0;

    for (size_t i = 0; i < b->msg->n_entities && !found; i++)
        found = b->msg->entities[i]->name.len == label.n &&
                memcmp(b->msg->entities[i]->name.data, label.s, label.n) == 0;
    if (!found)
        sup_fail_set(b->f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': %s \"%.*s\" is no label of 'entities'", field, which,
                     label.n < 60 ? (int)label.n : 60, label.s);
    return found;
}

/* The type's index in the message, which has it once however many ends it is given. */
static size_t relation_idx(struct build *b, json_t *types, const struct relation *r,
                           Ipc__ExtractRelation *rows)
{
    json_t *at = json_object_getn(types, r->type.s, r->type.n);
    size_t i = b->msg->n_relations;

    if (at)
        return (size_t)json_integer_value(at);
    ipc__extract_relation__init(&rows[i]);
    rows[i].name = borrowed(r->type);
    rows[i].has_threshold = r->has_threshold;
    rows[i].threshold = r->threshold;
    b->msg->n_relations++;
    return i;
}

static bool add_relation(struct build *b, json_t *types, json_t *seen, json_t *list,
                         const struct relation *r, const char *field, Ipc__ExtractRelation *rows)
{
    size_t i = relation_idx(b, types, r, rows);
    struct text none = {"", 0}, s = r->source.s ? r->source : none,
                t = r->target.s ? r->target : none;
    json_t *row = plan_new(b, list, NULL, json_object());
    char *key = sup_call_alloc(b->c, s.n + r->type.n + t.n + 4);
    struct text whole = {key, s.n + r->type.n + t.n + 4};

    if (!row || !key)
        return sup_fail_no_memory(b->f);
    memcpy(key, s.s, s.n);
    memcpy(key + s.n, "::", 2);
    memcpy(key + s.n + 2, r->type.s, r->type.n);
    memcpy(key + s.n + 2 + r->type.n, "::", 2);
    memcpy(key + s.n + r->type.n + 4, t.s, t.n);
    if (rows[i].has_threshold != r->has_threshold || rows[i].threshold != r->threshold)
        return wrong(b, field, "its type has another threshold above, expected one for a type");
    if (json_object_setn_new_nocheck(types, r->type.s, r->type.n, json_integer((json_int_t)i)) !=
            0 ||
        json_object_set_new(row, "i", json_integer((json_int_t)i)) != 0)
        return sup_fail_no_memory(b->f);
    return fresh(b, seen, whole, field) && plan_text(b, row, "type", r->type) &&
           plan_text(b, row, "source", r->source) && plan_text(b, row, "target", r->target);
}

static bool read_relations(struct build *b, json_t *list, const char *field)
{
    json_t *plan = plan_new(b, b->plan, "relations", json_array()), *types, *seen;
    size_t n = json_array_size(list);
    Ipc__ExtractRelation *rows = NULL;
    char one[FIELD_BYTES];
    struct relation r;
    bool ok;

    if (!plan)
        return false;
    if (list && !json_is_array(list))
        return wrong_value(b, field, list, "an array of relations");
    if (n == 0)
        return true;
    types = json_object();
    seen = json_object();
    ok = (types && seen) || sup_fail_no_memory(b->f);
    ok = ok && counted(b, field, n) &&
         (rows = rows_of(b, n, sizeof(*rows), (void ***)&b->msg->relations)) != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        at_index(one, field, i);
        ok = read_relation(b, json_array_get(list, i), one, &r) &&
             end_known(b, r.source, one, "source") && end_known(b, r.target, one, "target") &&
             add_relation(b, types, seen, plan, &r, one, rows);
    }
    json_decref(types);
    json_decref(seen);
    return ok;
}

/* ---------------------------------------------------------- classifications */

static bool read_examples(struct build *b, json_t *list, const char *field,
                          Ipc__ExtractClasses *out)
{
    size_t n = json_array_size(list);
    Ipc__ExtractExample *rows;
    struct sup_val v[E_N];
    char one[FIELD_BYTES];

    if (!json_is_array(list) || n > EXAMPLES_MAX)
        return wrong_value(b, field, list, "an array of at most 64 {\"input\", \"output\"}");
    if (n == 0)
        return true;
    if (!(rows = rows_of(b, n, sizeof(*rows), (void ***)&out->examples)))
        return false;
    for (size_t i = 0; i < n; i++) {
        json_t *j = json_array_get(list, i);

        at_index(one, field, i);
        if (!json_is_object(j))
            return wrong_value(b, one, j, "an object {\"input\", \"output\"}");
        if (!read_object(b, of_example, E_N, j, one, v))
            return false;
        ipc__extract_example__init(&rows[i]);
        rows[i].input = borrowed(text_of(&v[E_INPUT]));
        rows[i].output = borrowed(text_of(&v[E_OUTPUT]));
        out->n_examples++;
    }
    return true;
}

static bool read_class(struct build *b, json_t *j, const char *field, json_t *seen, json_t *list,
                       Ipc__ExtractClasses *out)
{
    json_t *row = plan_new(b, list, NULL, json_object()), *names;
    struct sup_val v[C_N];
    char inner[FIELD_BYTES];

    if (!row || !(names = plan_new(b, row, "labels", json_array())))
        return false;
    if (!json_is_object(j))
        return wrong_value(b, field, j, "an object {\"name\", \"labels\", \"multi_label\"?}");
    if (!read_object(b, of_class, C_N, j, field, v))
        return false;
    at_key(inner, field, "labels");
    if (json_array_size(v[C_LABELS].j) == 0)
        return wrong_value(b, inner, v[C_LABELS].j, of_class[C_LABELS].words);
    ipc__extract_classes__init(out);
    out->name = borrowed(text_of(&v[C_NAME]));
    out->prompt = borrowed(text_of(&v[C_PROMPT]));
    out->multi_label = v[C_MULTI].b;
    out->threshold = (float)v[C_THRESHOLD].f;
    if (v[C_ACTIVATION].set)
        out->activation = v[C_ACTIVATION].s[0] == 'a' ? 0 : v[C_ACTIVATION].s[1] == 'i' ? 1 : 2;
    if (!read_labels(b, v[C_LABELS].j, inner, names, &out->n_labels, &out->labels) ||
        !plan_text(b, row, "name", text_of(&v[C_NAME])))
        return false;
    at_key(inner, field, "examples");
    if (v[C_EXAMPLES].set && !read_examples(b, v[C_EXAMPLES].j, inner, out))
        return false;
    at_key(inner, field, "name");
    return fresh(b, seen, text_of(&v[C_NAME]), inner);
}

static bool read_classes(struct build *b, json_t *list, const char *field)
{
    json_t *plan = plan_new(b, b->plan, "classes", json_array()), *seen;
    size_t n = json_array_size(list);
    Ipc__ExtractClasses *rows = NULL;
    char one[FIELD_BYTES];
    bool ok;

    if (!plan)
        return false;
    if (list && !json_is_array(list))
        return wrong_value(b, field, list, of_schema[S_CLASSES].words);
    if (n == 0)
        return true;
    seen = json_object();
    ok = seen || sup_fail_no_memory(b->f);
    ok = ok && counted(b, field, n) &&
         (rows = rows_of(b, n, sizeof(*rows), (void ***)&b->msg->classes)) != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        at_index(one, field, i);
        ok = read_class(b, json_array_get(list, i), one, seen, plan, &rows[i]);
        b->msg->n_classes += ok;
    }
    json_decref(seen);
    return ok;
}

/* --------------------------------------------------------------- structures */

static bool add_choices(struct build *b, const struct text *choice, size_t n, const char *field,
                        Ipc__ExtractField *out)
{
    json_t *seen = json_object();
    bool ok = seen && (out->choices = sup_call_alloc(b->c, n * sizeof(*out->choices))) != NULL;

    if (!ok)
        sup_fail_no_memory(b->f);
    ok = ok && counted(b, field, n);
    for (size_t i = 0; ok && i < n; i++)
        if ((ok = fresh(b, seen, choice[i], field)))
            out->choices[out->n_choices++] = borrowed(choice[i]);
    json_decref(seen);
    return ok;
}

static struct text trimmed(struct text t)
{
    while (t.n && strchr(" \t", t.s[0])) {
        t.s++;
        t.n--;
    }
    while (t.n && strchr(" \t", t.s[t.n - 1]))
        t.n--;
    return t;
}

static bool is_word(struct text t, const char *word)
{
    return t.n == strlen(word) && memcmp(t.s, word, t.n) == 0;
}

/* [a|b|c] */
static bool short_choices(struct build *b, struct text t, const char *field, Ipc__ExtractField *out)
{
    size_t n = 1, k = 0;
    struct text *choice;

    for (size_t i = 0; i < t.n; i++)
        n += t.s[i] == '|';
    if (!(choice = sup_call_alloc(b->c, n * sizeof(*choice))))
        return sup_fail_no_memory(b->f);
    for (size_t from = 0, i = 0; i <= t.n; i++)
        if (i == t.n || t.s[i] == '|') {
            choice[k++] = trimmed((struct text){t.s + from, i - from});
            from = i + 1;
        }
    return add_choices(b, choice, n, field, out);
}

/* What is behind the name in "name::str::[a|b]::description", in any order. */
static bool short_parts(struct build *b, struct text t, const char *field, Ipc__ExtractField *out)
{
    bool typed = false, more = true;

    for (size_t from = 0; more;) {
        const char *sep = memmem(t.s + from, t.n - from, "::", 2);
        size_t end = sep ? (size_t)(sep - t.s) : t.n;
        struct text part = trimmed((struct text){t.s + from, end - from});

        more = sep != NULL;
        from = end + 2;
        if (is_word(part, "str") || is_word(part, "list")) {
            out->single = is_word(part, "str");
            typed = true;
        } else if (part.n >= 2 && part.s[0] == '[' && part.s[part.n - 1] == ']') {
            if (out->n_choices)
                return wrong(b, field, "choices twice, expected them once");
            if (!short_choices(b, (struct text){part.s + 1, part.n - 2}, field, out))
                return false;
            out->single = typed ? out->single : true;
        } else if (part.n) {
            out->description = borrowed(part);
        }
    }
    return true;
}

static bool read_pattern(struct build *b, json_t *j, const char *field, Ipc__ExtractPattern *out)
{
    struct sup_val v[P_N];

    ipc__extract_pattern__init(out);
    if (json_is_string(j)) {
        size_t n = json_string_length(j);

        if (n == 0 || n > PATTERN_MAX_BYTES || strlen(json_string_value(j)) != n)
            return wrong_value(b, field, j, "a pattern of 1 to 1024 bytes");
        out->regex = borrowed((struct text){json_string_value(j), n});
        return true;
    }
    if (!json_is_object(j))
        return wrong_value(b, field, j,
                           "a pattern or an object {\"pattern\", \"mode\"?, "
                           "\"exclude\"?, \"case_sensitive\"?}");
    if (!read_object(b, of_pattern, P_N, j, field, v))
        return false;
    out->regex = borrowed(text_of(&v[P_PATTERN]));
    out->search = v[P_MODE].set && v[P_MODE].s[0] == 'p';
    out->exclude = v[P_EXCLUDE].b;
    out->case_sensitive = v[P_CASE].b;
    return true;
}

static bool read_patterns(struct build *b, json_t *list, const char *field, Ipc__ExtractField *out)
{
    size_t n = json_array_size(list);
    Ipc__ExtractPattern *rows;
    char one[FIELD_BYTES];

    if (!json_is_array(list) || n > PATTERNS_MAX)
        return wrong_value(b, field, list, of_value[V_PATTERNS].words);
    if (n == 0)
        return true;
    if (!(rows = rows_of(b, n, sizeof(*rows), (void ***)&out->patterns)))
        return false;
    for (size_t i = 0; i < n; i++) {
        at_index(one, field, i);
        if (!read_pattern(b, json_array_get(list, i), one, &rows[i]))
            return false;
        out->n_patterns++;
    }
    return true;
}

static bool read_choices(struct build *b, json_t *list, const char *field, Ipc__ExtractField *out)
{
    size_t n = json_array_size(list);
    struct text *choice;

    if (n == 0)
        return wrong_value(b, field, list, of_value[V_CHOICES].words);
    if (!(choice = sup_call_alloc(b->c, n * sizeof(*choice))))
        return sup_fail_no_memory(b->f);
    for (size_t i = 0; i < n; i++) {
        json_t *j = json_array_get(list, i);

        choice[i] = (struct text){json_string_value(j), json_string_length(j)};
        if (choice[i].n == 0 || choice[i].n > NAME_MAX_BYTES)
            return wrong_value(b, field, j, "strings of 1 to 1024 bytes");
    }
    return add_choices(b, choice, n, field, out);
}

/* {"type": "list", ...}; any other type is one value. */
static bool value_object(struct build *b, json_t *j, const char *field, Ipc__ExtractField *out)
{
    struct sup_val v[V_N];
    char inner[FIELD_BYTES];
    const struct sup_val *type;

    if (!read_object(b, of_value, V_N, j, field, v))
        return false;
    type = v[V_TYPE].set ? &v[V_TYPE] : &v[V_DTYPE];
    out->single = !type->set || strcmp(type->s, "list") != 0;
    out->description = borrowed(text_of(&v[V_DESCRIPTION]));
    out->has_threshold = v[V_THRESHOLD].set;
    out->threshold = (float)v[V_THRESHOLD].f;
    at_key(inner, field, "choices");
    if (v[V_CHOICES].set && !read_choices(b, v[V_CHOICES].j, inner, out))
        return false;
    at_key(inner, field, "patterns");
    return !v[V_PATTERNS].set || read_patterns(b, v[V_PATTERNS].j, inner, out);
}

static bool add_field(struct build *b, json_t *seen, json_t *list, struct text name,
                      const char *field, Ipc__ExtractField *out)
{
    json_t *row;

    out->name = borrowed(name);
    if (name.n > NAME_MAX_BYTES)
        return wrong(b, field, "a name of more than 1024 bytes");
    return fresh(b, seen, name, field) && (row = plan_new(b, list, NULL, json_object())) &&
           plan_text(b, row, "name", name) &&
           (json_object_set_new(row, "list", json_boolean(!out->single)) == 0 ||
            sup_fail_no_memory(b->f));
}

/* "fields": {NAME: SPEC} */
static bool map_fields(struct build *b, json_t *map, const char *field, json_t *seen, json_t *list,
                       Ipc__ExtractRecord *out, Ipc__ExtractField *rows)
{
    char one[FIELD_BYTES];
    const char *key;
    json_t *j;

    json_object_foreach(map, key, j)
    {
        Ipc__ExtractField *row = &rows[out->n_fields];
        struct text name = {key, strlen(key)};

        at_key(one, field, key);
        ipc__extract_field__init(row);
        row->single = true;
        if (json_is_string(j)) {
            if (!short_parts(b, (struct text){json_string_value(j), json_string_length(j)}, one,
                             row))
                return false;
        } else if (json_is_object(j)) {
            if (!value_object(b, j, one, row))
                return false;
        } else {
            return wrong_value(b, one, j,
                               "\"str\", \"list\", a hint, or an object {\"type\", ...}");
        }
        if (!add_field(b, seen, list, name, one, row))
            return false;
        out->n_fields++;
    }
    return true;
}

/* "fields": ["name::str::[a|b]::description"] */
static bool list_fields(struct build *b, json_t *array, const char *field, json_t *seen,
                        json_t *list, Ipc__ExtractRecord *out, Ipc__ExtractField *rows)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t *j = json_array_get(array, i);
        struct text t = {json_string_value(j), json_string_length(j)};
        const char *sep = t.n ? memmem(t.s, t.n, "::", 2) : NULL;
        size_t end = sep ? (size_t)(sep - t.s) : t.n;
        char one[FIELD_BYTES];

        at_index(one, field, i);
        if (t.n == 0 || strlen(t.s) != t.n)
            return wrong_value(b, one, j, "a string \"name::type::[a|b]::description\"");
        ipc__extract_field__init(&rows[i]);
        if (sep && !short_parts(b, (struct text){t.s + end + 2, t.n - end - 2}, one, &rows[i]))
            return false;
        if (!add_field(b, seen, list, trimmed((struct text){t.s, end}), one, &rows[i]))
            return false;
        out->n_fields++;
    }
    return true;
}

static bool read_record(struct build *b, json_t *spec, const char *field, json_t *list,
                        Ipc__ExtractRecord *out)
{
    json_t *fields = json_is_object(spec) ? json_object_get(spec, "fields") : spec, *seen;
    size_t n = json_is_array(fields) ? json_array_size(fields) : json_object_size(fields);
    Ipc__ExtractField *rows;
    bool ok;

    if (n == 0)
        return wrong_value(b, field, fields, FIELDS_WANT);
    if (!counted(b, field, n) || !(rows = rows_of(b, n, sizeof(*rows), (void ***)&out->fields)))
        return false;
    if (!(seen = json_object()))
        return sup_fail_no_memory(b->f);
    ok = json_is_array(fields) ? list_fields(b, fields, field, seen, list, out, rows)
                               : map_fields(b, fields, field, seen, list, out, rows);
    json_decref(seen);
    return ok;
}

static bool read_records(struct build *b, json_t *map, const char *field)
{
    json_t *plan = plan_new(b, b->plan, "records", json_array()), *row, *list, *j;
    size_t n = json_object_size(map);
    Ipc__ExtractRecord *rows;
    char one[FIELD_BYTES];
    const char *key;

    if (!plan)
        return false;
    if (n == 0)
        return true;
    if (!counted(b, field, n) || !(rows = rows_of(b, n, sizeof(*rows), (void ***)&b->msg->records)))
        return false;
    json_object_foreach(map, key, j)
    {
        Ipc__ExtractRecord *out = &rows[b->msg->n_records];
        struct text name = {key, strlen(key)};

        at_key(one, field, key);
        if (blank(name) || name.n > NAME_MAX_BYTES)
            return wrong(b, one, "expected a name of 1 to 1024 bytes");
        ipc__extract_record__init(out);
        out->name = borrowed(name);
        if (!(row = plan_new(b, plan, NULL, json_object())) || !plan_text(b, row, "name", name) ||
            !(list = plan_new(b, row, "fields", json_array())) ||
            !read_record(b, j, one, list, out))
            return false;
        b->msg->n_records++;
    }
    return true;
}

/* -------------------------------------------------------------------- whole */

bool sup_extract_schema(struct sup_call *c, json_t *obj, const char *prefix, bool strict,
                        Ipc__ExtractSchema *msg, json_t *plans, struct sup_fail *f)
{
    struct build b = {.c = c, .f = f, .msg = msg, .strict = strict};
    struct sup_val v[S_N];
    char name[4][FIELD_BYTES], whole[FIELD_BYTES];

    for (size_t i = 0; i < 4; i++)
        snprintf(name[i], sizeof(name[i]), "%s%s", prefix, of_schema[i].name);
    snprintf(whole, sizeof(whole), "%.*s", (int)strlen(prefix) - 1, prefix);
    ipc__extract_schema__init(msg);
    if (!json_is_object(obj))
        return wrong_value(&b, whole, obj,
                           "an object with entities, relations, classifications or structures");
    if ((strict && !sup_fields_known(of_schema, S_N, NULL, obj, prefix, f)) ||
        !sup_fields_read(of_schema, S_N, obj, prefix, v, f) ||
        !(b.plan = plan_new(&b, plans, NULL, json_object())) ||
        !read_entities(&b, v[S_ENTITIES].j, name[S_ENTITIES]) ||
        !read_relations(&b, v[S_RELATIONS].j, name[S_RELATIONS]) ||
        !read_classes(&b, v[S_CLASSES].j, name[S_CLASSES]) ||
        !read_records(&b, v[S_STRUCTURES].j, name[S_STRUCTURES]))
        return false;
    if (msg->n_entities || msg->n_relations || msg->n_classes || msg->n_records)
        return true;
    return wrong(&b, whole,
                 "nothing to find, expected labels in at least one of entities, relations, "
                 "classifications and structures (models here have no labels of their own)");
}
