/* sup_extract_fields.c - structures of a schema: records, their fields, and the shorthand of both.
 *
 * A field is a word, "name::type::[a|b]::description", or an object with choices and patterns.
 * Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_build.h"

#include <string.h>

#define FIELDS_WANT "an object of fields, or an array of \"name::type::[a|b]::description\""

#define VALUE_FIELDS(X)                                                                \
    X(V_TYPE, "type", STR, false, 0, IPC_EXTRACT_NAME_BYTES, 0, NULL)                  \
    X(V_DTYPE, "dtype", STR, false, 0, IPC_EXTRACT_NAME_BYTES, 0, NULL)                \
    X(V_DESCRIPTION, "description", STR, false, 0, IPC_EXTRACT_WORDING_BYTES, 0, NULL) \
    X(V_CHOICES, "choices", ANY, false, 0, 0, 0, "a non-empty array of strings")       \
    X(V_THRESHOLD, "threshold", NUM, false, 0, 1, 0, NULL)                             \
    X(V_PATTERNS, "patterns", ANY, false, 0, 0, 0, "an array of at most 16 patterns")

#define PATTERN_FIELDS(X)                                                     \
    X(P_PATTERN, "pattern", STR, true, 1, IPC_EXTRACT_PATTERN_BYTES, 0, NULL) \
    X(P_MODE, "mode", ENUM, false, 0, 0, 0, "full|partial")                   \
    X(P_EXCLUDE, "exclude", BOOL, false, 0, 1, 0, NULL)                       \
    X(P_CASE, "case_sensitive", BOOL, false, 0, 1, 0, NULL)

enum { VALUE_FIELDS(SUP_FIELD_ID) V_N };
enum { PATTERN_FIELDS(SUP_FIELD_ID) P_N };
static const struct sup_field of_value[V_N] = {VALUE_FIELDS(SUP_FIELD_ROW)},
                              of_pattern[P_N] = {PATTERN_FIELDS(SUP_FIELD_ROW)};

static bool add_choices(struct sup_build *b, const struct sup_word *choice, size_t n,
                        const char *field, Ipc__ExtractField *out)
{
    json_t *seen = json_object();
    bool ok = seen && (out->choices = sup_call_alloc(b->c, n * sizeof(*out->choices))) != NULL;

    if (!ok)
        sup_fail_no_memory(b->f);
    ok = ok && sup_build_counted(b, field, n);
    for (size_t i = 0; ok && i < n; i++)
        if ((ok = sup_build_fresh(b, seen, choice[i], field)))
            out->choices[out->n_choices++] = sup_build_bytes(choice[i]);
    json_decref(seen);
    return ok;
}

static struct sup_word trimmed(struct sup_word t)
{
    while (t.n && strchr(" \t", t.s[0])) {
        t.s++;
        t.n--;
    }
    while (t.n && strchr(" \t", t.s[t.n - 1]))
        t.n--;
    return t;
}

static bool is_word(struct sup_word t, const char *word)
{
    return t.n == strlen(word) && memcmp(t.s, word, t.n) == 0;
}

/* [a|b|c] */
static bool short_choices(struct sup_build *b, struct sup_word t, const char *field,
                          Ipc__ExtractField *out)
{
    size_t n = 1, k = 0;
    struct sup_word *choice;

    for (size_t i = 0; i < t.n; i++)
        n += t.s[i] == '|';
    if (!(choice = sup_call_alloc(b->c, n * sizeof(*choice))))
        return sup_fail_no_memory(b->f);
    for (size_t from = 0, i = 0; i <= t.n; i++)
        if (i == t.n || t.s[i] == '|') {
            choice[k++] = trimmed((struct sup_word){t.s + from, i - from});
            from = i + 1;
        }
    return add_choices(b, choice, n, field, out);
}

/* What is behind the name in "name::str::[a|b]::description", in any order. */
static bool short_parts(struct sup_build *b, struct sup_word t, const char *field,
                        Ipc__ExtractField *out)
{
    bool typed = false, more = true;

    for (size_t from = 0; more;) {
        const char *sep = memmem(t.s + from, t.n - from, "::", 2);
        size_t end = sep ? (size_t)(sep - t.s) : t.n;
        struct sup_word part = trimmed((struct sup_word){t.s + from, end - from});

        more = sep != NULL;
        from = end + 2;
        if (is_word(part, "str") || is_word(part, "list")) {
            out->single = is_word(part, "str");
            typed = true;
        } else if (part.n >= 2 && part.s[0] == '[' && part.s[part.n - 1] == ']') {
            if (out->n_choices)
                return sup_build_wrong(b, field, "choices twice, expected them once");
            if (!short_choices(b, (struct sup_word){part.s + 1, part.n - 2}, field, out))
                return false;
            out->single = typed ? out->single : true;
        } else if (part.n) {
            out->description = sup_build_bytes(part);
        }
    }
    return true;
}

static bool read_pattern(struct sup_build *b, json_t *j, const char *field,
                         Ipc__ExtractPattern *out)
{
    struct sup_val v[P_N];

    ipc__extract_pattern__init(out);
    if (json_is_string(j)) {
        size_t n = json_string_length(j);

        if (n == 0 || n > IPC_EXTRACT_PATTERN_BYTES || strlen(json_string_value(j)) != n)
            return sup_build_bad(b, field, j, "a pattern of 1 to 1024 bytes");
        out->regex = sup_build_bytes((struct sup_word){json_string_value(j), n});
        return true;
    }
    if (!json_is_object(j))
        return sup_build_bad(b, field, j,
                             "a pattern or an object {\"pattern\", \"mode\"?, "
                             "\"exclude\"?, \"case_sensitive\"?}");
    if (!sup_build_object(b, of_pattern, P_N, j, field, v))
        return false;
    out->regex = sup_build_bytes(sup_build_text(&v[P_PATTERN]));
    out->search = v[P_MODE].set && v[P_MODE].s[0] == 'p';
    out->exclude = v[P_EXCLUDE].b;
    out->case_sensitive = v[P_CASE].b;
    return true;
}

static bool read_patterns(struct sup_build *b, json_t *list, const char *field,
                          Ipc__ExtractField *out)
{
    size_t n = json_array_size(list);
    Ipc__ExtractPattern *rows;
    char one[SUP_BUILD_NAME];

    if (!json_is_array(list) || n > IPC_EXTRACT_PATTERNS)
        return sup_build_bad(b, field, list, of_value[V_PATTERNS].words);
    if (n == 0)
        return true;
    if (!(rows = sup_build_rows(b, n, sizeof(*rows), (void ***)&out->patterns)))
        return false;
    for (size_t i = 0; i < n; i++) {
        sup_build_at(one, field, i);
        if (!read_pattern(b, json_array_get(list, i), one, &rows[i]))
            return false;
        out->n_patterns++;
    }
    return true;
}

static bool read_choices(struct sup_build *b, json_t *list, const char *field,
                         Ipc__ExtractField *out)
{
    size_t n = json_array_size(list);
    struct sup_word *choice;

    if (n == 0)
        return sup_build_bad(b, field, list, of_value[V_CHOICES].words);
    if (!(choice = sup_call_alloc(b->c, n * sizeof(*choice))))
        return sup_fail_no_memory(b->f);
    for (size_t i = 0; i < n; i++) {
        json_t *j = json_array_get(list, i);

        choice[i] = (struct sup_word){json_string_value(j), json_string_length(j)};
        if (choice[i].n == 0 || choice[i].n > IPC_EXTRACT_NAME_BYTES)
            return sup_build_bad(b, field, j, "strings of 1 to 512 bytes");
    }
    return add_choices(b, choice, n, field, out);
}

/* {"type": "list", ...}; any other type is one value. */
static bool value_object(struct sup_build *b, json_t *j, const char *field, Ipc__ExtractField *out)
{
    struct sup_val v[V_N];
    char inner[SUP_BUILD_NAME];
    const struct sup_val *type;

    if (!sup_build_object(b, of_value, V_N, j, field, v))
        return false;
    type = v[V_TYPE].set ? &v[V_TYPE] : &v[V_DTYPE];
    out->single = !type->set || strcmp(type->s, "list") != 0;
    out->description = sup_build_bytes(sup_build_text(&v[V_DESCRIPTION]));
    out->has_threshold = v[V_THRESHOLD].set;
    out->threshold = (float)v[V_THRESHOLD].f;
    sup_build_in(inner, field, "choices");
    if (v[V_CHOICES].set && !read_choices(b, v[V_CHOICES].j, inner, out))
        return false;
    sup_build_in(inner, field, "patterns");
    return !v[V_PATTERNS].set || read_patterns(b, v[V_PATTERNS].j, inner, out);
}

static bool add_field(struct sup_build *b, json_t *seen, json_t *list, struct sup_word name,
                      const char *field, Ipc__ExtractField *out)
{
    json_t *row;

    out->name = sup_build_bytes(name);
    if (name.n > IPC_EXTRACT_NAME_BYTES)
        return sup_build_wrong(b, field, "a name of more than 512 bytes");
    return sup_build_fresh(b, seen, name, field) &&
           (row = sup_build_plan(b, list, NULL, json_object())) &&
           sup_build_plan_text(b, row, "name", name) &&
           (json_object_set_new(row, "list", json_boolean(!out->single)) == 0 ||
            sup_fail_no_memory(b->f));
}

/* "fields": {NAME: SPEC} */
static bool map_fields(struct sup_build *b, json_t *map, const char *field, json_t *seen,
                       json_t *list, Ipc__ExtractRecord *out, Ipc__ExtractField *rows)
{
    char one[SUP_BUILD_NAME];
    const char *key;
    json_t *j;

    json_object_foreach(map, key, j)
    {
        Ipc__ExtractField *row = &rows[out->n_fields];
        struct sup_word name = {key, strlen(key)};

        sup_build_in(one, field, key);
        ipc__extract_field__init(row);
        row->single = true;
        if (json_is_string(j)) {
            if (!short_parts(b, (struct sup_word){json_string_value(j), json_string_length(j)}, one,
                             row))
                return false;
        } else if (json_is_object(j)) {
            if (!value_object(b, j, one, row))
                return false;
        } else {
            return sup_build_bad(b, one, j,
                                 "\"str\", \"list\", a hint, or an object {\"type\", ...}");
        }
        if (!add_field(b, seen, list, name, one, row))
            return false;
        out->n_fields++;
    }
    return true;
}

/* "fields": ["name::str::[a|b]::description"] */
static bool list_fields(struct sup_build *b, json_t *array, const char *field, json_t *seen,
                        json_t *list, Ipc__ExtractRecord *out, Ipc__ExtractField *rows)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        json_t *j = json_array_get(array, i);
        struct sup_word t = {json_string_value(j), json_string_length(j)};
        const char *sep = t.n ? memmem(t.s, t.n, "::", 2) : NULL;
        size_t end = sep ? (size_t)(sep - t.s) : t.n;
        char one[SUP_BUILD_NAME];

        sup_build_at(one, field, i);
        if (t.n == 0 || strlen(t.s) != t.n)
            return sup_build_bad(b, one, j, "a string \"name::type::[a|b]::description\"");
        ipc__extract_field__init(&rows[i]);
        if (sep && !short_parts(b, (struct sup_word){t.s + end + 2, t.n - end - 2}, one, &rows[i]))
            return false;
        if (!add_field(b, seen, list, trimmed((struct sup_word){t.s, end}), one, &rows[i]))
            return false;
        out->n_fields++;
    }
    return true;
}

static bool read_record(struct sup_build *b, json_t *spec, const char *field, json_t *list,
                        Ipc__ExtractRecord *out)
{
    json_t *fields = json_is_object(spec) ? json_object_get(spec, "fields") : spec, *seen;
    size_t n = json_is_array(fields) ? json_array_size(fields) : json_object_size(fields);
    Ipc__ExtractField *rows;
    bool ok;

    if (n == 0)
        return sup_build_bad(b, field, fields, FIELDS_WANT);
    if (!sup_build_counted(b, field, n) ||
        !(rows = sup_build_rows(b, n, sizeof(*rows), (void ***)&out->fields)))
        return false;
    if (!(seen = json_object()))
        return sup_fail_no_memory(b->f);
    ok = json_is_array(fields) ? list_fields(b, fields, field, seen, list, out, rows)
                               : map_fields(b, fields, field, seen, list, out, rows);
    json_decref(seen);
    return ok;
}

bool sup_build_records(struct sup_build *b, json_t *map, const char *field)
{
    json_t *plan = sup_build_plan(b, b->plan, "records", json_array()), *row, *list, *j;
    size_t n = json_object_size(map);
    Ipc__ExtractRecord *rows;
    char one[SUP_BUILD_NAME];
    const char *key;

    if (!plan)
        return false;
    if (n == 0)
        return true;
    if (!sup_build_counted(b, field, n) ||
        !(rows = sup_build_rows(b, n, sizeof(*rows), (void ***)&b->msg->records)))
        return false;
    json_object_foreach(map, key, j)
    {
        Ipc__ExtractRecord *out = &rows[b->msg->n_records];
        struct sup_word name = {key, strlen(key)};

        sup_build_in(one, field, key);
        if (sup_build_blank(name) || name.n > IPC_EXTRACT_NAME_BYTES)
            return sup_build_wrong(b, one, "expected a name of 1 to 512 bytes");
        ipc__extract_record__init(out);
        out->name = sup_build_bytes(name);
        if (!(row = sup_build_plan(b, plan, NULL, json_object())) ||
            !sup_build_plan_text(b, row, "name", name) ||
            !(list = sup_build_plan(b, row, "fields", json_array())) ||
            !read_record(b, j, one, list, out))
            return false;
        b->msg->n_records++;
    }
    return true;
}
