/* sup_keys_file.c - the text of keys.json, and keys as people see them.
 *
 *   {"version":1,"keys":[{"id":..,"tenant":..,"salt":HEX,"hash":HEX,...},...]}
 *
 * The file is ours, yet it is read like a stranger's: an unknown or missing field, a wrong
 * type, a number out of range or an id twice is an error with its place, and then nothing of
 * the file counts. Tests: tests/supervisor/test_sup_keys.c, tests/fuzz/fuzz_keys.c
 */
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "sup_grant.h"
#include "sup_keys.h"
#include "sup_vault_dir.h"

#define VERSION 1

enum kind { TEXT, NUM, FLAG, LIST, SCOPES, HEX };

/* Every field of a key. shown: people see it too. */
static const struct field {
    const char *name;
    enum kind kind;
    size_t off;
    bool shown, optional;
} fields[] = {
#define F(f) offsetof(struct sup_key, f)
    {"tenant", TEXT, F(tenant), true, false},
    {"name", TEXT, F(name), true, false},
    {"weight", NUM, F(weight), true, false},
    {"admin", FLAG, F(admin), true, false},
    {"models", LIST, F(models), true, false},
    {"endpoints", SCOPES, F(endpoints), true, false},
    {"created", NUM, F(created_s), true, false},
    {"expires", NUM, F(expires_s), true, false},
    {"revoked", NUM, F(revoked_s), true, false},
    {"rotated", NUM, F(rotated_s), true, false},
    {"old_until", NUM, F(old_until_s), true, false},
    {"requests_per_minute", NUM, F(requests_per_minute), true, false},
    {"tokens_per_minute", NUM, F(tokens_per_minute), true, false},
    {"concurrency", NUM, F(concurrency), true, false},
    {"tokens_per_day", NUM, F(tokens_per_day), true, false},
    {"cache_percent", NUM, F(cache_percent), true, false},
    {"salt", HEX, F(now.salt), false, false},
    {"hash", HEX, F(now.hash), false, false},
    {"old_salt", HEX, F(old.salt), false, true},
    {"old_hash", HEX, F(old.hash), false, true},
#undef F
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static bool is_u32(const struct field *f)
{
    return f->off == offsetof(struct sup_key, weight) ||
           f->off == offsetof(struct sup_key, cache_percent);
}

static uint64_t get_num(const struct sup_key *k, const struct field *f)
{
    const char *at = (const char *)k + f->off;

    return is_u32(f) ? *(const uint32_t *)(const void *)at : *(const uint64_t *)(const void *)at;
}

/* ------------------------------------------------------------------ reading */

static bool read_num(struct sup_key *k, const struct field *f, const json_t *v)
{
    char *at = (char *)k + f->off;
    json_int_t n = json_integer_value(v);

    if (!json_is_integer(v) || n < 0 || (is_u32(f) && n > UINT32_MAX))
        return false;
    if (is_u32(f))
        *(uint32_t *)(void *)at = (uint32_t)n;
    else
        *(uint64_t *)(void *)at = (uint64_t)n;
    return true;
}

static bool read_models(struct sup_key *k, const json_t *v)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v) || n > SUP_GRANT_MODELS)
        return false;
    if (n && !(k->models = calloc(n, sizeof(*k->models))))
        return false;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(v, i));

        if (!s || !(k->models[i] = strdup(s)))
            return false;
        k->n_models = i + 1;
    }
    return true;
}

static bool scope_bit(const char *word, uint32_t *bits)
{
#define X(id, bit, w, what)      \
    if (strcmp(word, w) == 0) {  \
        *bits |= SUP_SCOPE_##id; \
        return true;             \
    }
    SUP_SCOPES(X)
#undef X
    return false;
}

static bool read_scopes(struct sup_key *k, const json_t *v)
{
    if (!json_is_array(v))
        return false;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = json_string_value(json_array_get(v, i));

        if (!s || !scope_bit(s, &k->endpoints))
            return false;
    }
    return true;
}

static bool read_hex(uint8_t out[32], const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = 0;

    return s && strlen(s) == 64 && sodium_hex2bin(out, 32, s, 64, NULL, &n, NULL) == 0 && n == 32;
}

static bool read_field(struct sup_key *k, const struct field *f, const json_t *v)
{
    char *at = (char *)k + f->off;

    switch (f->kind) {
    case TEXT:
        return json_is_string(v) && (*(char **)(void *)at = strdup(json_string_value(v)));
    case NUM:
        return read_num(k, f, v);
    case FLAG:
        *(bool *)(void *)at = json_is_true(v);
        return json_is_boolean(v);
    case LIST:
        return read_models(k, v);
    case SCOPES:
        return read_scopes(k, v);
    case HEX:
        return read_hex((uint8_t *)at, v);
    }
    return false;
}

static bool id_ok(const char *s)
{
    return s && strlen(s) == SUP_KEY_ID_CHARS &&
           strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789") == SUP_KEY_ID_CHARS;
}

static enum rc read_key(struct sup_key *k, size_t i, const json_t *o, struct rc_err *err)
{
    const char *id = json_string_value(json_object_get(o, "id"));
    size_t n = 1;
    enum rc rc;

    if (!id_ok(id))
        return rc_fail(err, RC_FORMAT, "key %zu: field 'id': expected 12 small letters and digits",
                       i);
    memcpy(k->id, id, sizeof(k->id));
    for (size_t f = 0; f < N_FIELDS; f++) {
        const json_t *v = json_object_get(o, fields[f].name);

        if (!v && fields[f].optional)
            continue;
        if (!v || !read_field(k, &fields[f], v))
            return rc_fail(err, RC_FORMAT, "key '%s': field '%s': missing or malformed", id,
                           fields[f].name);
        n++;
    }
    if (n != json_object_size(o))
        return rc_fail(err, RC_FORMAT, "key '%s' has a field that this version does not know", id);
    if ((rc = sup_key_check(k, err)) != RC_OK) {
        rc_wrap(err, "key '%s'", id);
        return rc == RC_INVALID ? RC_FORMAT : rc;
    }
    return RC_OK;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct sup_key *)a)->id, ((const struct sup_key *)b)->id);
}

static enum rc read_all(struct sup_keys *k, const json_t *list, struct rc_err *err)
{
    size_t n = json_array_size(list);
    enum rc rc;

    if (n > SUP_KEYS_MAX)
        return rc_fail(err, RC_TOO_LARGE, "%zu keys, at most %u are kept", n, SUP_KEYS_MAX);
    if (n && !(k->key = calloc(n, sizeof(*k->key))))
        return rc_fail(err, RC_NOMEM, "no memory for %zu keys", n);
    k->cap = n;
    for (size_t i = 0; i < n; i++) {
        k->n = i + 1; /* what is half read is freed too */
        if ((rc = read_key(&k->key[i], i, json_array_get(list, i), err)) != RC_OK)
            return rc;
    }
    if (n)
        qsort(k->key, n, sizeof(*k->key), by_id);
    for (size_t i = 1; i < n; i++)
        if (strcmp(k->key[i - 1].id, k->key[i].id) == 0)
            return rc_fail(err, RC_FORMAT, "key '%s' is there twice", k->key[i].id);
    return RC_OK;
}

enum rc sup_keys_parse(struct sup_keys *out, const char *text, size_t n, struct rc_err *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    const json_t *list = json_object_get(root, "keys");
    struct sup_keys k = {0};
    enum rc rc;

    if (!root)
        rc = rc_fail(err, RC_FORMAT, "line %d, column %d: %.100s", why.line, why.column, why.text);
    else if (!json_is_object(root) || json_object_size(root) != 2 || !json_is_array(list))
        rc = rc_fail(err, RC_FORMAT, "expected an object of \"version\" and \"keys\"");
    else if (json_integer_value(json_object_get(root, "version")) != VERSION)
        rc = rc_fail(err, RC_FORMAT, "expected \"version\": %d", VERSION);
    else
        rc = read_all(&k, list, err);
    json_decref(root);
    if (rc == RC_OK)
        *out = k;
    else
        sup_keys_deinit(&k);
    return rc;
}

enum rc sup_keys_load(struct sup_keys *out, int dir_fd, const char *dir, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc = sup_vault_dir_read(dir_fd, SUP_VAULT_KEYS, SUP_KEYS_FILE_BYTES, &text, &n, err);

    if (rc == RC_OK && text && (rc = sup_keys_parse(out, text, n, err)) != RC_OK)
        rc_wrap(err, "%s/%s", dir, SUP_VAULT_KEYS);
    if (text)
        sodium_memzero(text, n);
    free(text);
    return rc;
}

/* ------------------------------------------------------------------ writing */

static void put_scopes(uint32_t bits, struct sup_json *o)
{
    const char *comma = "";

    sup_json_put(o, "[", 1);
#define X(id, bit, word, what)                    \
    if (bits & SUP_SCOPE_##id) {                  \
        sup_json_fmt(o, "%s\"%s\"", comma, word); \
        comma = ",";                              \
    }
    SUP_SCOPES(X)
#undef X
    sup_json_put(o, "]", 1);
}

static void put_field(const struct sup_key *k, const struct field *f, struct sup_json *o)
{
    const char *at = (const char *)k + f->off;
    char hex[65];

    sup_json_fmt(o, ",\"%s\":", f->name);
    switch (f->kind) {
    case TEXT:
        sup_json_quoted(o, *(char *const *)(const void *)at);
        break;
    case NUM:
        sup_json_u64(o, get_num(k, f));
        break;
    case FLAG:
        sup_json_str(o, *(const bool *)(const void *)at ? "true" : "false");
        break;
    case LIST:
        sup_json_put(o, "[", 1);
        for (size_t i = 0; i < k->n_models; i++) {
            sup_json_str(o, i ? "," : "");
            sup_json_quoted(o, k->models[i]);
        }
        sup_json_put(o, "]", 1);
        break;
    case SCOPES:
        put_scopes(k->endpoints, o);
        break;
    case HEX:
        sup_json_fmt(o, "\"%s\"", sodium_bin2hex(hex, sizeof(hex), (const uint8_t *)at, 32));
        break;
    }
}

void sup_keys_print(const struct sup_keys *keys, struct sup_json *o)
{
    sup_json_fmt(o, "{\"version\":%d,\"keys\":[", VERSION);
    for (size_t i = 0; i < keys->n; i++) {
        const struct sup_key *k = &keys->key[i];

        sup_json_fmt(o, "%s\n{\"id\":\"%s\"", i ? "," : "", k->id);
        for (size_t f = 0; f < N_FIELDS; f++)
            if (!fields[f].optional || k->old_until_s)
                put_field(k, &fields[f], o);
        sup_json_put(o, "}", 1);
    }
    sup_json_str(o, "\n]}\n");
}

void sup_key_json(const struct sup_key *k, uint64_t now_s, struct sup_json *o)
{
    sup_json_fmt(o, "{\"id\":\"%s\",\"state\":\"%s\"", k->id, sup_key_state(k, now_s));
    for (size_t f = 0; f < N_FIELDS; f++)
        if (fields[f].shown)
            put_field(k, &fields[f], o);
    sup_json_put(o, "}", 1);
}
