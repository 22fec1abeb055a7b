/* sup_cmd_chat_set.c - see sup_cmd_chat_set.h.
 *
 * Always true: a value kept is one that the server's own table takes (sup_gen.h), as far
 * as that can be told without the model. What a schema, grammar or expression says is
 * the worker's to judge. Tests: tests/supervisor/test_sup_cli_set.c
 */
#include "sup_cmd_chat_set.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_file.h"
#include "sup_gen.h"
#include "sup_near.h"

const struct sup_chat_row sup_chat_rows[SUP_SET_COUNT] = {
#define X(f, flag, kind, arg, min, max, help) {#f, SUP_KIND_##kind, min, max, help},
    SUP_CHAT_SETTINGS(X)
#undef X
};

void sup_chat_set_deinit(struct sup_chat_set *s)
{
    for (int i = 0; i < SUP_SET_COUNT; i++) {
        json_decref(s->v[i]);
        s->v[i] = NULL;
    }
}

int sup_chat_set_find(const char *name, size_t n, struct rc_err *err)
{
    size_t least = SIZE_MAX;
    int best = 0;

    for (int i = 0; i < SUP_SET_COUNT; i++) {
        size_t d = sup_near(name, n, sup_chat_rows[i].name);

        if (d == 0)
            return i;
        if (d < least) {
            least = d;
            best = i;
        }
    }
    rc_fail(err, RC_INVALID, "no setting '%.*s'; did you mean '%s'?", (int)(n < 60 ? n : 60), name,
            sup_chat_rows[best].name);
    return -1;
}

static json_t *bad(int i, const char *value, struct rc_err *err, const char *want)
{
    rc_fail_what(err, RC_INVALID, sup_chat_rows[i].name, "%s: value '%.60s': expected %s",
                 sup_chat_rows[i].name, value, want);
    return NULL;
}

/* ------------------------------------------------------- one parser for each kind */

static json_t *number(int i, const char *value, struct rc_err *err)
{
    const struct sup_chat_row *r = &sup_chat_rows[i];
    const bool whole = r->kind == SUP_KIND_NUM;
    char want[80], *end;
    double v;

    errno = 0;
    v = strtod(value, &end);
    if (*value && strspn(value, "0123456789.-+eE") == strlen(value) && !*end && !errno &&
        isfinite(v) && v >= r->min && v <= r->max && (!whole || v == floor(v)))
        return whole ? json_integer((json_int_t)v) : json_real(v);
    snprintf(want, sizeof(want), "a %snumber from %.15g to %.15g", whole ? "whole " : "", r->min,
             r->max);
    return bad(i, value, err, want);
}

static json_t *flag(int i, const char *value, struct rc_err *err)
{
    if (strcmp(value, "true") == 0 || strcmp(value, "on") == 0)
        return json_true();
    if (strcmp(value, "false") == 0 || strcmp(value, "off") == 0)
        return json_false();
    return bad(i, value, err, "on or off");
}

/* A text as it stands, or JSON when it begins like a JSON text or list. */
static json_t *texts(int i, const char *value, struct rc_err *err)
{
    json_t *list = json_array(), *j = NULL;
    bool ok;

    if (*value == '[' || *value == '"')
        j = json_loads(value, JSON_DECODE_ANY, NULL);
    else
        j = json_string(value);
    if (json_is_array(j)) {
        json_decref(list);
        list = json_incref(j);
    } else {
        (void)json_array_append(list, j);
    }
    json_decref(j);
    ok = json_array_size(list) >= 1 && json_array_size(list) <= SUP_STOP_MAX;
    for (size_t k = 0; ok && k < json_array_size(list); k++) {
        size_t n = json_string_length(json_array_get(list, k)); /* 0 when it is no text */

        ok = n >= (size_t)sup_chat_rows[i].min && n <= (size_t)sup_chat_rows[i].max;
    }
    if (ok)
        return list;
    json_decref(list);
    return bad(i, value, err,
               "a text of 1 to 4096 bytes or a JSON list of at most 16, as [\"END\", \"\\n\\n\"]");
}

/* "5:-100, 7:2.5" */
static json_t *biases(int i, const char *value, struct rc_err *err)
{
    static const char want[] = "at most 1024 pairs ID:X of a token's number and -100 to 100, as "
                               "5:-100, 7:2.5";
    json_t *map = json_object();
    const char *at = value + strspn(value, " ,");
    char key[24];

    while (map && *at) {
        size_t n = strspn(at, "0123456789");
        unsigned long long id;
        char *end;
        double v;

        errno = 0;
        id = strtoull(at, &end, 10);
        if (n == 0 || errno || id > INT32_MAX || at[n] != ':')
            break;
        at += n + 1;
        v = strtod(at, &end);
        if (end == at || strspn(at, "0123456789.-+eE") < (size_t)(end - at) ||
            (*end && !strchr(" ,", *end)) || !(v >= sup_chat_rows[i].min) ||
            !(v <= sup_chat_rows[i].max))
            break;
        snprintf(key, sizeof(key), "%llu", id);
        if (json_object_set_new(map, key, json_real(v)) != 0 ||
            json_object_size(map) > SUP_BIAS_MAX)
            break;
        at = end + strspn(end, " ,");
        if (!*at)
            return map;
    }
    json_decref(map);
    return bad(i, value, err, want);
}

static json_t *file_text(int i, const char *value, struct rc_err *err)
{
    char *s = NULL;
    size_t n = 0;
    json_t *j = NULL;

    if (sup_file_read(value, SUP_FORMAT_BYTES, true, &s, &n, err) != RC_OK) {
        rc_wrap(err, "%s", sup_chat_rows[i].name);
        return NULL;
    }
    if (n == 0)
        bad(i, value, err, "a file that is not empty");
    else if (!(j = json_stringn(s, n)))
        rc_fail(err, RC_NOMEM, "out of memory");
    free(s);
    return j;
}

static json_t *format(int i, const char *value, struct rc_err *err)
{
    json_t *text, *schema, *j = NULL;
    json_error_t e;

    if (strcmp(value, "json") == 0)
        return json_pack("{s:s}", "type", "json_object");
    if (!(text = file_text(i, value, err)))
        return NULL;
    schema =
        json_loadb(json_string_value(text), json_string_length(text), JSON_REJECT_DUPLICATES, &e);
    if (!schema)
        rc_fail_what(err, RC_INVALID, sup_chat_rows[i].name,
                     "%s: value '%.60s': expected json or a file with a JSON Schema: line %d: %s",
                     sup_chat_rows[i].name, value, e.line, e.text);
    else if (!json_is_object(schema))
        bad(i, value, err, "json or a file with a JSON Schema that is an object");
    else if (!(j = json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema",
                             schema)))
        rc_fail(err, RC_NOMEM, "out of memory");
    json_decref(schema);
    json_decref(text);
    return j;
}

static json_t *expression(int i, const char *value, struct rc_err *err)
{
    json_t *j = *value && strlen(value) <= SUP_FORMAT_BYTES ? json_string(value) : NULL;

    return j ? j : bad(i, value, err, "a text in UTF-8 of 1 to 1048576 bytes");
}

/* What has a shape has one, and the shape says where it ends. */
static bool clash(const struct sup_chat_set *s, int i, const char *value, struct rc_err *err)
{
    static const int shapes[] = {SUP_SET_response_format, SUP_SET_grammar, SUP_SET_regex};
    bool shape = false, rest = json_is_true(s->v[SUP_SET_ignore_eos]);
    int other = -1;
    char want[120];

    for (int k = 0; k < 3; k++) {
        shape = shape || shapes[k] == i;
        if (shapes[k] != i && s->v[shapes[k]])
            other = shapes[k];
    }
    if (!shape && i != SUP_SET_ignore_eos)
        return false;
    if (other >= 0 && shape)
        snprintf(want, sizeof(want), "one shape for an answer; '%s' is set and would have to go",
                 sup_chat_rows[other].name);
    else if (shape ? rest : other >= 0)
        snprintf(want, sizeof(want), "no ignore_eos beside a shape ('%s'), which ends the answer",
                 sup_chat_rows[shape ? i : other].name);
    else
        return false;
    bad(i, value, err, want);
    return true;
}

static json_t *(*const parsers[])(int i, const char *value, struct rc_err *err) = {
    [SUP_KIND_REAL] = number,    [SUP_KIND_NUM] = number,      [SUP_KIND_FLAG] = flag,
    [SUP_KIND_LIST] = texts,     [SUP_KIND_BIAS] = biases,     [SUP_KIND_FORMAT] = format,
    [SUP_KIND_FILE] = file_text, [SUP_KIND_TEXT] = expression,
};

enum rc sup_chat_set_put(struct sup_chat_set *s, int i, const char *value, struct rc_err *err)
{
    struct rc_err mine = RC_ERR_INIT;
    json_t *j = NULL;

    if (strcmp(value, "default") != 0) {
        j = parsers[sup_chat_rows[i].kind](i, value, &mine);
        if (!j && mine.code == RC_OK)
            rc_fail(&mine, RC_NOMEM, "out of memory");
        if (j && !json_is_false(j) && clash(s, i, value, &mine)) {
            json_decref(j);
            j = NULL;
        }
        if (!j) {
            if (err)
                *err = mine;
            return mine.code;
        }
    }
    json_decref(s->v[i]);
    s->v[i] = j;
    return RC_OK;
}

const char *sup_chat_set_text(const struct sup_chat_set *s, int i, char out[64])
{
    const json_t *j = s->v[i];
    char *all;
    size_t n;

    if (!j) {
        memcpy(out, "default", sizeof("default"));
    } else if (json_is_real(j)) {
        snprintf(out, 64, "%.15g", json_real_value(j));
    } else if (json_is_boolean(j)) {
        snprintf(out, 64, "%s", json_is_true(j) ? "on" : "off");
    } else if (!(all = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII))) {
        memcpy(out, "?", sizeof("?")); /* out of memory */
    } else {
        n = strlen(all);
        if (n < 64)
            memcpy(out, all, n + 1);
        else
            snprintf(out, 64, "%.28s... (%zu bytes)", all, n);
        free(all);
    }
    return out;
}

uint64_t sup_chat_set_num(const struct sup_chat_set *s, int i, uint64_t fallback)
{
    json_int_t v = json_integer_value(s->v[i]);

    return s->v[i] && v >= 0 ? (uint64_t)v : fallback;
}

bool sup_chat_set_send(const struct sup_chat_set *s, json_t *body)
{
    for (int i = 0; i < SUP_SET_COUNT; i++)
        if (s->v[i] && json_object_set(body, sup_chat_rows[i].name, s->v[i]) != 0)
            return false;
    return true;
}
