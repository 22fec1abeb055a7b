/* sup_secrets_file.c - the text of credentials.json.
 *
 *   {"version":1,"credentials":[{"origin":..,"created":..,"rotated":..,"nonce":HEX,"sealed":BASE64}]}
 *
 * Read like a stranger's: an unknown or missing field, a wrong type, a length out of range or
 * an origin twice is an error with its place. Tests: tests/supervisor/test_sup_secrets.c,
 * tests/fuzz/fuzz_secrets.c
 */
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "sup_secrets.h"
#include "sup_vault_dir.h"

#define VERSION 1
#define N_FIELDS 5

static bool read_num(uint64_t *out, const json_t *v)
{
    *out = (uint64_t)json_integer_value(v);
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

static bool read_nonce(uint8_t out[SUP_SECRET_NONCE], const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = 0;

    return s && strlen(s) == 2 * SUP_SECRET_NONCE &&
           sodium_hex2bin(out, SUP_SECRET_NONCE, s, strlen(s), NULL, &n, NULL) == 0 &&
           n == SUP_SECRET_NONCE;
}

static bool read_box(struct sup_sealed *r, const json_t *v)
{
    const char *s = json_string_value(v);
    const size_t max = SUP_SECRET_BYTES + SUP_SECRET_TAG;

    if (!s || strlen(s) > (max + 2) / 3 * 4 || !(r->box = malloc(max)))
        return false;
    return sodium_base642bin(r->box, max, s, strlen(s), NULL, &r->n_box, NULL,
                             sodium_base64_VARIANT_ORIGINAL) == 0 &&
           r->n_box > SUP_SECRET_TAG;
}

static enum rc read_row(struct sup_sealed *r, size_t i, const json_t *o, struct rc_err *err)
{
    const char *origin = json_string_value(json_object_get(o, "origin"));
    char plain[SUP_ORIGIN_MAX];

    if (!origin || strlen(origin) >= SUP_ORIGIN_MAX ||
        sup_origin_parse(plain, origin, NULL) != RC_OK || strcmp(plain, origin) != 0)
        return rc_fail(err, RC_FORMAT,
                       "credential %zu: field 'origin': expected scheme://host:port", i);
    if (!(r->origin = strdup(origin)))
        return rc_fail(err, RC_NOMEM, "no memory for a credential");
    if (!read_num(&r->created_s, json_object_get(o, "created")) ||
        !read_num(&r->rotated_s, json_object_get(o, "rotated")) ||
        !read_nonce(r->nonce, json_object_get(o, "nonce")) ||
        !read_box(r, json_object_get(o, "sealed")) || json_object_size(o) != N_FIELDS)
        return rc_fail(err, RC_FORMAT,
                       "the credential for %s: a field is missing, malformed or "
                       "unknown",
                       origin);
    return RC_OK;
}

static int by_origin(const void *a, const void *b)
{
    return strcmp(((const struct sup_sealed *)a)->origin, ((const struct sup_sealed *)b)->origin);
}

static enum rc read_all(struct sup_secrets *s, const json_t *list, struct rc_err *err)
{
    size_t n = json_array_size(list);
    enum rc rc;

    if (n > SUP_SECRETS_MAX)
        return rc_fail(err, RC_TOO_LARGE, "%zu credentials, at most %u are kept", n,
                       SUP_SECRETS_MAX);
    if (n && !(s->row = calloc(n, sizeof(*s->row))))
        return rc_fail(err, RC_NOMEM, "no memory for %zu credentials", n);
    for (size_t i = 0; i < n; i++) {
        s->n = i + 1; /* what is half read is freed too */
        if ((rc = read_row(&s->row[i], i, json_array_get(list, i), err)) != RC_OK)
            return rc;
    }
    if (n)
        qsort(s->row, n, sizeof(*s->row), by_origin);
    for (size_t i = 1; i < n; i++)
        if (strcmp(s->row[i - 1].origin, s->row[i].origin) == 0)
            return rc_fail(err, RC_FORMAT, "%s is there twice", s->row[i].origin);
    return RC_OK;
}

enum rc sup_secrets_parse(struct sup_secrets *out, const char *text, size_t n, struct rc_err *err)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    const json_t *list = json_object_get(root, "credentials");
    struct sup_secrets s = {0};
    enum rc rc;

    if (!root)
        rc = rc_fail(err, RC_FORMAT, "line %d, column %d: %.100s", why.line, why.column, why.text);
    else if (json_object_size(root) != 2 || !json_is_array(list) ||
             json_integer_value(json_object_get(root, "version")) != VERSION)
        rc = rc_fail(err, RC_FORMAT, "expected an object of \"version\": %d and \"credentials\"",
                     VERSION);
    else
        rc = read_all(&s, list, err);
    json_decref(root);
    if (rc == RC_OK)
        *out = s;
    else
        sup_secrets_deinit(&s);
    return rc;
}

enum rc sup_secrets_load(struct sup_secrets *out, int dir_fd, const char *dir, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc =
        sup_vault_dir_read(dir_fd, SUP_VAULT_SECRETS, SUP_SECRETS_FILE_BYTES, &text, &n, err);

    if (rc == RC_OK && text && (rc = sup_secrets_parse(out, text, n, err)) != RC_OK)
        rc_wrap(err, "%s/%s", dir, SUP_VAULT_SECRETS);
    free(text);
    return rc;
}

void sup_secrets_print(const struct sup_secrets *s, struct sup_json *o)
{
    char hex[2 * SUP_SECRET_NONCE + 1];

    sup_json_fmt(o, "{\"version\":%d,\"credentials\":[", VERSION);
    for (size_t i = 0; i < s->n; i++) {
        const struct sup_sealed *r = &s->row[i];

        sup_json_fmt(o, "%s\n{\"origin\":", i ? "," : "");
        sup_json_quoted(o, r->origin);
        sup_json_str(o, ",\"created\":");
        sup_json_u64(o, r->created_s);
        sup_json_str(o, ",\"rotated\":");
        sup_json_u64(o, r->rotated_s);
        sup_json_fmt(o, ",\"nonce\":\"%s\",\"sealed\":\"",
                     sodium_bin2hex(hex, sizeof(hex), r->nonce, sizeof(r->nonce)));
        sup_json_base64(o, r->box, r->n_box);
        sup_json_str(o, "\"}");
    }
    sup_json_str(o, "\n]}\n");
}
