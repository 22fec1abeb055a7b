/* sup_fields.c - a request body against a table of fields (see sup_fields.h).
 *
 * Mechanism only: which fields an endpoint has stands in its own file; reading the
 * body is sup_body.c. Messages quote at most a few bytes of a value and never a long
 * text. Tests: tests/supervisor/test_sup_api_fields.c, tests/fuzz/fuzz_api.c
 */
#include "sup_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------- messages */

/* A value in a few words: short ones as they stand, long ones by size. */
static void describe(const json_t *v, char *out, size_t cap)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        snprintf(out, cap, "an object");
        return;
    case JSON_ARRAY:
        snprintf(out, cap, json_array_size(v) ? "an array of %zu" : "an empty array",
                 json_array_size(v));
        return;
    case JSON_STRING:
        if (json_string_length(v) == 0)
            snprintf(out, cap, "an empty string");
        else if (json_string_length(v) > 40 ||
                 strlen(json_string_value(v)) != json_string_length(v))
            snprintf(out, cap, "a string of %zu bytes", json_string_length(v));
        else
            snprintf(out, cap, "\"%s\"", json_string_value(v));
        return;
    case JSON_INTEGER:
        snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return;
    case JSON_REAL:
        snprintf(out, cap, "%.17g", json_real_value(v));
        if (strlen(out) > 12)
            snprintf(out, cap, "%g", json_real_value(v));
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        snprintf(out, cap, json_is_true(v) ? "true" : "false");
        return;
    case JSON_NULL:
        break;
    }
    snprintf(out, cap, "null");
}

void sup_field_bad(struct sup_fail *f, const char *field, const json_t *got, const char *expected)
{
    char is[96];

    describe(got, is, sizeof(is));
    if (!field[0])
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "", "request body: got %s, expected %s", is,
                     expected);
    else
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field, "field '%s': got %s, expected %s", field, is,
                     expected);
}

static void expectation(const struct sup_field *d, char *out, size_t cap)
{
    switch (d->type) {
    case SUP_FT_STR:
        if (d->min > 0)
            snprintf(out, cap, "a non-empty string of at most %.0f bytes", d->max);
        else
            snprintf(out, cap, "a string of at most %.0f bytes", d->max);
        return;
    case SUP_FT_INT:
        if (d->max >= 9e18)
            snprintf(out, cap, "an integer of at most 64 bits");
        else
            snprintf(out, cap, "an integer from %.0f to %.0f", d->min, d->max);
        return;
    case SUP_FT_NUM:
        snprintf(out, cap, "a number from %g to %g", d->min, d->max);
        return;
    case SUP_FT_BOOL:
        snprintf(out, cap, "true or false");
        return;
    case SUP_FT_ENUM:
        snprintf(out, cap, "one of %s", d->words);
        return;
    case SUP_FT_OBJECT:
        snprintf(out, cap, "an object");
        return;
    case SUP_FT_ANY:
    case SUP_FT_REFUSE:
        break;
    }
    snprintf(out, cap, "%s", d->words ? d->words : "a value");
}

/* ------------------------------------------------------------------- values */

static bool word_of(const char *words, const char *s)
{
    size_t n = strlen(s);

    for (const char *p = words; n; p++) {
        size_t len = strcspn(p, "|");

        if (len == n && memcmp(p, s, n) == 0)
            return true;
        p += len;
        if (!*p)
            break;
    }
    return false;
}

static bool read_int(const struct sup_field *d, const json_t *j, struct sup_val *v)
{
    if (json_is_integer(j)) {
        v->i = json_integer_value(j);
    } else if (json_is_real(j)) {
        double r = json_real_value(j);

        if (!(fabs(r) <= 9007199254740992.0) || r != floor(r))
            return false;
        v->i = (int64_t)r;
    } else {
        return false;
    }
    return (double)v->i >= d->min && (double)v->i <= d->max;
}

static bool read_one(const struct sup_field *d, json_t *j, struct sup_val *v)
{
    switch (d->type) {
    case SUP_FT_STR:
    case SUP_FT_ENUM:
        if (!json_is_string(j))
            return false;
        v->s = json_string_value(j);
        v->n_bytes = json_string_length(j);
        if (strlen(v->s) != v->n_bytes)
            return false;
        if (d->type == SUP_FT_ENUM)
            return word_of(d->words, v->s);
        return (double)v->n_bytes >= d->min && (double)v->n_bytes <= d->max;
    case SUP_FT_INT:
        return read_int(d, j, v);
    case SUP_FT_NUM:
        if (!json_is_number(j))
            return false;
        v->f = json_number_value(j);
        return v->f >= d->min && v->f <= d->max;
    case SUP_FT_BOOL:
        v->b = json_is_true(j);
        return json_is_boolean(j);
    case SUP_FT_OBJECT:
        return json_is_object(j);
    case SUP_FT_ANY:
    case SUP_FT_REFUSE:
        break;
    }
    return true;
}

bool sup_fields_read(const struct sup_field *fields, size_t n_fields, json_t *obj,
                     const char *prefix, struct sup_val *vals, struct sup_fail *f)
{
    char name[128], want[160];

    for (size_t k = 0; k < n_fields; k++) {
        const struct sup_field *d = &fields[k];
        struct sup_val *v = &vals[k];
        json_t *j = json_object_get(obj, d->name);

        *v = (struct sup_val){.b = d->def != 0, .i = (int64_t)d->def, .f = d->def};
        snprintf(name, sizeof(name), "%s%s", prefix, d->name);
        expectation(d, want, sizeof(want));
        if (!j || json_is_null(j)) {
            if (!d->required)
                continue;
            sup_fail_set(f, SUP_E_INVALID_REQUEST, name, "field '%s': missing, expected %s", name,
                         want);
            return false;
        }
        if (d->type == SUP_FT_REFUSE && !json_is_false(j)) {
            sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, name,
                         "field '%s': not supported by this server%s%s", name, d->words ? "; " : "",
                         d->words ? d->words : "");
            return false;
        }
        if (!read_one(d, j, v)) {
            sup_field_bad(f, name, j, want);
            return false;
        }
        v->set = true;
        v->j = j;
    }
    return true;
}

bool sup_fields_known(const struct sup_field *rows, size_t n_rows, const char *also, json_t *obj,
                      const char *prefix, struct sup_fail *f)
{
    char name[160];
    const char *key;
    json_t *value;

    json_object_foreach(obj, key, value)
    {
        size_t i = 0;

        while (i < n_rows && strcmp(rows[i].name, key) != 0)
            i++;
        if (i < n_rows || (also && strcmp(also, key) == 0))
            continue;
        snprintf(name, sizeof(name), "%s%.100s", prefix, key);
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name, "field '%s': not a field of this %s", name,
                     prefix[0] ? "object" : "request");
        return false;
    }
    return true;
}

bool sup_identity_read(const struct sup_val *v, char **out, struct sup_fail *f)
{
    const char *s = json_string_value(v->j);

    if (!v->set)
        return true;
    if (!s || json_string_length(v->j) != 64 || strspn(s, "0123456789abcdef") != 64) {
        sup_field_bad(f, "model_identity", v->j, SUP_IDENTITY_WANT);
        return false;
    }
    *out = (char *)(uintptr_t)s;
    return true;
}

uint32_t *sup_ids_read(json_t *array, const char *field, uint32_t vocab_size, size_t *n_ids,
                       struct sup_fail *f)
{
    const int64_t last = vocab_size ? (int64_t)vocab_size - 1 : INT32_MAX;
    size_t n = json_array_size(array), i;
    uint32_t *ids;
    char name[128], want[96];
    json_t *j;

    if (!json_is_array(array) || n == 0) {
        sup_field_bad(f, field, array, "a non-empty array of token ids");
        return NULL;
    }
    ids = malloc(n * sizeof(*ids));
    if (!ids) {
        sup_fail_set(f, SUP_E_MODEL_RESOURCE_BUSY, field, "no memory for %zu token ids", n);
        return NULL;
    }
    json_array_foreach(array, i, j)
    {
        if (!json_is_integer(j) || json_integer_value(j) < 0 || json_integer_value(j) > last) {
            snprintf(name, sizeof(name), "%s[%zu]", field, i);
            snprintf(want, sizeof(want), "a token id from 0 to %lld", (long long)last);
            sup_field_bad(f, name, j, want);
            free(ids);
            return NULL;
        }
        ids[i] = (uint32_t)json_integer_value(j);
    }
    *n_ids = n;
    return ids;
}

bool sup_model_name_ok(const char *name, size_t n)
{
    size_t part = 0; /* where the current part starts */

    if (n == 0 || n > SUP_NAME_MAX)
        return false;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && name[i] != '/') {
            if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F || name[i] == '\\')
                return false;
            continue;
        }
        if (i == part || (i - part == 1 && name[part] == '.') ||
            (i - part == 2 && name[part] == '.' && name[part + 1] == '.'))
            return false;
        part = i + 1;
    }
    return true;
}
