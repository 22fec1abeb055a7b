/* sup_extract_schema.c - what to find: a schema of the request to the worker's message.
 *
 * Beside the message a plan is made, with the names that the answer needs: indexes of an answer
 * count in the message's lists. Names are checked here, so that a worker meets none that is empty
 * or stands twice; what they cost in tokens is the worker's to say.
 * Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_build.h"

#include <stdio.h>
#include <string.h>

#define LABEL_WANT "a label or an object {\"name\", \"description\"?, \"threshold\"?, \"dtype\"?}"

#define SCHEMA_FIELDS(X)                                                                       \
    X(S_ENTITIES, "entities", ANY, false, 0, 0, 0, "an array of labels")                       \
    X(S_RELATIONS, "relations", ANY, false, 0, 0, 0, "an array of relations")                  \
    X(S_CLASSES, "classifications", ANY, false, 0, 0, 0, "an array of {\"name\", \"labels\"}") \
    X(S_STRUCTURES, "structures", OBJECT, false, 0, 0, 0, NULL)

#define LABEL_FIELDS(X)                                                                \
    X(L_NAME, "name", STR, true, 1, IPC_EXTRACT_NAME_BYTES, 0, NULL)                   \
    X(L_DESCRIPTION, "description", STR, false, 0, IPC_EXTRACT_WORDING_BYTES, 0, NULL) \
    X(L_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)                             \
    X(L_DTYPE, "dtype", ENUM, false, 0, 0, 0, "str|list")

#define CLASS_FIELDS(X)                                                         \
    X(C_NAME, "name", STR, true, 1, IPC_EXTRACT_NAME_BYTES, 0, NULL)            \
    X(C_LABELS, "labels", ANY, true, 0, 0, 0, "a non-empty array of labels")    \
    X(C_MULTI, "multi_label", BOOL, false, 0, 1, 0, NULL)                       \
    X(C_THRESHOLD, "threshold", NUM, false, 0, 1, 0.5, NULL)                    \
    X(C_ACTIVATION, "activation", ENUM, false, 0, 0, 0, "auto|sigmoid|softmax") \
    X(C_PROMPT, "prompt", STR, false, 0, IPC_EXTRACT_WORDING_BYTES, 0, NULL)    \
    X(C_EXAMPLES, "examples", ANY, false, 0, 0, 0, "an array of {\"input\", \"output\"}")

#define EXAMPLE_FIELDS(X)                                                 \
    X(E_INPUT, "input", STR, true, 1, IPC_EXTRACT_WORDING_BYTES, 0, NULL) \
    X(E_OUTPUT, "output", STR, true, 1, IPC_EXTRACT_NAME_BYTES, 0, NULL)

enum { SCHEMA_FIELDS(SUP_FIELD_ID) S_N };
enum { LABEL_FIELDS(SUP_FIELD_ID) L_N };
enum { CLASS_FIELDS(SUP_FIELD_ID) C_N };
enum { EXAMPLE_FIELDS(SUP_FIELD_ID) E_N };
static const struct sup_field of_schema[S_N] = {SCHEMA_FIELDS(SUP_FIELD_ROW)},
                              of_label[L_N] = {LABEL_FIELDS(SUP_FIELD_ROW)},
                              of_class[C_N] = {CLASS_FIELDS(SUP_FIELD_ROW)},
                              of_example[E_N] = {EXAMPLE_FIELDS(SUP_FIELD_ROW)};

/* ------------------------------------------------------------------ helpers */

/* Names of what is inside a field, for messages. */
void sup_build_at(char out[SUP_BUILD_NAME], const char *field, size_t i)
{
    if (field[0])
        snprintf(out, SUP_BUILD_NAME, "%.110s[%zu]", field, i);
    else
        out[0] = '\0';
}

void sup_build_in(char out[SUP_BUILD_NAME], const char *field, const char *key)
{
    snprintf(out, SUP_BUILD_NAME, "%.110s%s%.40s", field, field[0] ? "." : "", key);
}

ProtobufCBinaryData sup_build_bytes(struct sup_word t)
{
    return (ProtobufCBinaryData){t.n, (uint8_t *)(uintptr_t)t.s};
}

bool sup_build_wrong(struct sup_build *b, const char *field, const char *why)
{
    sup_fail_set(b->f, SUP_E_INVALID_REQUEST, field, "field '%s': %s", field, why);
    return false;
}

bool sup_build_bad(struct sup_build *b, const char *field, const json_t *got, const char *want)
{
    sup_field_bad(b->f, field, got, want);
    return false;
}

/* Rows of a message in one piece, and the list of pointers to them. */
void *sup_build_rows(struct sup_build *b, size_t n, size_t size, void ***list)
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
bool sup_build_counted(struct sup_build *b, const char *field, size_t n)
{
    if (n <= IPC_EXTRACT_LABELS - b->n_names) {
        b->n_names += (uint32_t)n;
        return true;
    }
    sup_fail_set(b->f, SUP_E_CONTENT_TOO_LARGE, field,
                 "field '%s': the schema has more than %u labels, fields and choices", field,
                 IPC_EXTRACT_LABELS);
    return false;
}

bool sup_build_blank(struct sup_word t)
{
    size_t i = 0;

    while (i < t.n && strchr(" \t\r\n", t.s[i]))
        i++;
    return i == t.n;
}

/* A name that is there, and for the first time in `seen` (an object). */
bool sup_build_fresh(struct sup_build *b, json_t *seen, struct sup_word name, const char *field)
{
    if (sup_build_blank(name))
        return sup_build_wrong(b, field, "an empty name, expected one with letters");
    if (json_object_getn(seen, name.s, name.n)) {
        sup_fail_set(b->f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': \"%.*s\" stands there twice, expected each name once", field,
                     name.n < 60 ? (int)name.n : 60, name.s);
        return false;
    }
    return json_object_setn_new_nocheck(seen, name.s, name.n, json_true()) == 0 ||
           sup_fail_no_memory(b->f);
}

static bool plan_name(struct sup_build *b, json_t *list, struct sup_word name)
{
    return json_array_append_new(list, json_stringn_nocheck(name.s, name.n)) == 0 ||
           sup_fail_no_memory(b->f);
}

/* A new list or object of the plan, below key of an object or at the end of a list. */
json_t *sup_build_plan(struct sup_build *b, json_t *in, const char *key, json_t *made)
{
    int failed = key ? json_object_set_new(in, key, made) : json_array_append_new(in, made);

    if (!made || failed) {
        sup_fail_no_memory(b->f);
        return NULL;
    }
    return made;
}

/* A key's text into the plan, where it is set. */
bool sup_build_plan_text(struct sup_build *b, json_t *in, const char *key, struct sup_word t)
{
    return !t.s || json_object_set_new(in, key, json_stringn_nocheck(t.s, t.n)) == 0 ||
           sup_fail_no_memory(b->f);
}

bool sup_build_object(struct sup_build *b, const struct sup_field *rows, size_t n, json_t *obj,
                      const char *field, struct sup_val *v)
{
    char prefix[SUP_BUILD_NAME + 2];

    snprintf(prefix, sizeof(prefix), "%s.", field);
    return (!b->strict || sup_fields_known(rows, n, NULL, obj, prefix, b->f)) &&
           sup_fields_read(rows, n, obj, prefix, v, b->f);
}

struct sup_word sup_build_text(const struct sup_val *v)
{
    return v->set ? (struct sup_word){v->s, v->n_bytes} : (struct sup_word){NULL, 0};
}

/* ------------------------------------------------------------------- labels */

/* A label of entities or classes: a string, or an object. */
static bool read_label(struct sup_build *b, json_t *j, const char *field, Ipc__ExtractField *out,
                       struct sup_word *name)
{
    struct sup_val v[L_N];

    ipc__extract_field__init(out);
    if (json_is_string(j)) {
        *name = (struct sup_word){json_string_value(j), json_string_length(j)};
        if (name->n == 0 || name->n > IPC_EXTRACT_NAME_BYTES || strlen(name->s) != name->n)
            return sup_build_bad(b, field, j, "a label of 1 to 512 bytes without NUL");
    } else if (!json_is_object(j)) {
        return sup_build_bad(b, field, j, LABEL_WANT);
    } else {
        if (!sup_build_object(b, of_label, L_N, j, field, v))
            return false;
        *name = sup_build_text(&v[L_NAME]);
        out->description = sup_build_bytes(sup_build_text(&v[L_DESCRIPTION]));
        out->has_threshold = v[L_THRESHOLD].set;
        out->threshold = (float)v[L_THRESHOLD].f;
        out->single = v[L_DTYPE].set && strcmp(v[L_DTYPE].s, "str") == 0;
    }
    out->name = sup_build_bytes(*name);
    return true;
}

static bool read_labels(struct sup_build *b, json_t *list, const char *field, json_t *names,
                        size_t *out_n, Ipc__ExtractField ***out)
{
    size_t n = json_array_size(list);
    json_t *seen = json_object();
    Ipc__ExtractField *rows;
    char one[SUP_BUILD_NAME];
    struct sup_word name;
    bool ok = seen || sup_fail_no_memory(b->f);

    ok = ok && sup_build_counted(b, field, n) &&
         (rows = sup_build_rows(b, n, sizeof(*rows), (void ***)out)) != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        sup_build_at(one, field, i);
        ok = read_label(b, json_array_get(list, i), one, &rows[i], &name) &&
             sup_build_fresh(b, seen, name, one) && plan_name(b, names, name);
    }
    json_decref(seen);
    *out_n = ok ? n : 0;
    return ok;
}

static bool read_entities(struct sup_build *b, json_t *list, const char *field)
{
    json_t *names = sup_build_plan(b, b->plan, "entities", json_array());

    if (!names)
        return false;
    if (list && !json_is_array(list))
        return sup_build_bad(b, field, list, "an array of labels");
    return json_array_size(list) == 0 ||
           read_labels(b, list, field, names, &b->msg->n_entities, &b->msg->entities);
}

/* ---------------------------------------------------------- classifications */

static bool read_examples(struct sup_build *b, json_t *list, const char *field,
                          Ipc__ExtractClasses *out)
{
    size_t n = json_array_size(list);
    Ipc__ExtractExample *rows;
    struct sup_val v[E_N];
    char one[SUP_BUILD_NAME];

    if (!json_is_array(list) || n > IPC_EXTRACT_EXAMPLES)
        return sup_build_bad(b, field, list, "an array of at most 64 {\"input\", \"output\"}");
    if (n == 0)
        return true;
    if (!(rows = sup_build_rows(b, n, sizeof(*rows), (void ***)&out->examples)))
        return false;
    for (size_t i = 0; i < n; i++) {
        json_t *j = json_array_get(list, i);

        sup_build_at(one, field, i);
        if (!json_is_object(j))
            return sup_build_bad(b, one, j, "an object {\"input\", \"output\"}");
        if (!sup_build_object(b, of_example, E_N, j, one, v))
            return false;
        ipc__extract_example__init(&rows[i]);
        rows[i].input = sup_build_bytes(sup_build_text(&v[E_INPUT]));
        rows[i].output = sup_build_bytes(sup_build_text(&v[E_OUTPUT]));
        out->n_examples++;
    }
    return true;
}

static bool read_class(struct sup_build *b, json_t *j, const char *field, json_t *seen,
                       json_t *list, Ipc__ExtractClasses *out)
{
    json_t *row = sup_build_plan(b, list, NULL, json_object()), *names;
    struct sup_val v[C_N];
    char inner[SUP_BUILD_NAME];

    if (!row || !(names = sup_build_plan(b, row, "labels", json_array())))
        return false;
    if (!json_is_object(j))
        return sup_build_bad(b, field, j, "an object {\"name\", \"labels\", \"multi_label\"?}");
    if (!sup_build_object(b, of_class, C_N, j, field, v))
        return false;
    sup_build_in(inner, field, "labels");
    if (json_array_size(v[C_LABELS].j) == 0)
        return sup_build_bad(b, inner, v[C_LABELS].j, of_class[C_LABELS].words);
    ipc__extract_classes__init(out);
    out->name = sup_build_bytes(sup_build_text(&v[C_NAME]));
    out->prompt = sup_build_bytes(sup_build_text(&v[C_PROMPT]));
    out->multi_label = v[C_MULTI].b;
    out->threshold = (float)v[C_THRESHOLD].f;
    if (v[C_ACTIVATION].set)
        out->activation = v[C_ACTIVATION].s[0] == 'a' ? 0 : v[C_ACTIVATION].s[1] == 'i' ? 1 : 2;
    if (!read_labels(b, v[C_LABELS].j, inner, names, &out->n_labels, &out->labels) ||
        !sup_build_plan_text(b, row, "name", sup_build_text(&v[C_NAME])))
        return false;
    sup_build_in(inner, field, "examples");
    if (v[C_EXAMPLES].set && !read_examples(b, v[C_EXAMPLES].j, inner, out))
        return false;
    sup_build_in(inner, field, "name");
    return sup_build_fresh(b, seen, sup_build_text(&v[C_NAME]), inner);
}

static bool read_classes(struct sup_build *b, json_t *list, const char *field)
{
    json_t *plan = sup_build_plan(b, b->plan, "classes", json_array()), *seen;
    size_t n = json_array_size(list);
    Ipc__ExtractClasses *rows = NULL;
    char one[SUP_BUILD_NAME];
    bool ok;

    if (!plan)
        return false;
    if (list && !json_is_array(list))
        return sup_build_bad(b, field, list, of_schema[S_CLASSES].words);
    if (n == 0)
        return true;
    seen = json_object();
    ok = seen || sup_fail_no_memory(b->f);
    ok = ok && sup_build_counted(b, field, n) &&
         (rows = sup_build_rows(b, n, sizeof(*rows), (void ***)&b->msg->classes)) != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        sup_build_at(one, field, i);
        ok = read_class(b, json_array_get(list, i), one, seen, plan, &rows[i]);
        b->msg->n_classes += ok;
    }
    json_decref(seen);
    return ok;
}

/* -------------------------------------------------------------------- whole */

/* What messages call the parts of the schema. */
static void name_parts(char field[S_N][SUP_BUILD_NAME], const char *name,
                       const struct sup_extract_words *words)
{
    for (size_t i = 0; i < S_N; i++)
        sup_build_in(field[i], name, of_schema[i].name);
    if (!words)
        return;
    snprintf(field[S_ENTITIES], SUP_BUILD_NAME, "%s", words->entities);
    snprintf(field[S_RELATIONS], SUP_BUILD_NAME, "%s", words->relations);
    snprintf(field[S_CLASSES], SUP_BUILD_NAME, "%s", words->classes);
}

bool sup_extract_schema(struct sup_call *c, json_t *obj, const char *name,
                        const struct sup_extract_words *words, bool strict, Ipc__ExtractSchema *msg,
                        json_t *plans, struct sup_fail *f)
{
    struct sup_build b = {.c = c, .f = f, .msg = msg, .strict = strict};
    struct sup_val v[S_N];
    char field[S_N][SUP_BUILD_NAME];

    name_parts(field, name, words);
    b.labels_field = words ? words->entities : of_schema[S_ENTITIES].name;
    ipc__extract_schema__init(msg);
    if (!json_is_object(obj))
        return sup_build_bad(&b, name, obj,
                             "an object with entities, relations, classifications or structures");
    if (!sup_build_object(&b, of_schema, S_N, obj, name, v) ||
        !(b.plan = sup_build_plan(&b, plans, NULL, json_object())) ||
        !read_entities(&b, v[S_ENTITIES].j, field[S_ENTITIES]) ||
        !sup_build_relations(&b, v[S_RELATIONS].j, field[S_RELATIONS]) ||
        !read_classes(&b, v[S_CLASSES].j, field[S_CLASSES]) ||
        !sup_build_records(&b, v[S_STRUCTURES].j, field[S_STRUCTURES]))
        return false;
    if (msg->n_entities || msg->n_relations || msg->n_classes || msg->n_records)
        return true;
    if (words)
        return sup_build_wrong(&b, name, "nothing to find, expected labels here or of relations");
    return sup_build_wrong(
        &b, name,
        "nothing to find, expected labels in at least one of entities, relations, "
        "classifications and structures (models here have no labels of their own)");
}
