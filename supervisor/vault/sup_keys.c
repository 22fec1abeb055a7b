/* sup_keys.c - making, finding and checking keys; sup_keys.h.
 *
 * The text of the file is sup_keys_file.c. Change with care: sup_keys_check, whose work must
 * not depend on what is known. Tests: tests/supervisor/test_sup_keys.c
 */
#include "sup_keys.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_grant.h"

#define HASH_STACK 4096 /* what the hash may have spilt */

void sup_key_deinit(struct sup_key *k)
{
    for (size_t i = 0; i < k->n_models; i++)
        free(k->models[i]);
    free(k->models);
    free(k->tenant);
    free(k->name);
    sodium_memzero(k, sizeof(*k));
}

void sup_keys_deinit(struct sup_keys *k)
{
    for (size_t i = 0; i < k->n; i++)
        sup_key_deinit(&k->key[i]);
    free(k->key);
    *k = (struct sup_keys){0};
}

/* The place of id, or where it would stand. */
static size_t place(const struct sup_keys *k, const char *id, bool *there)
{
    size_t lo = 0, hi = k->n;

    *there = false;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = strcmp(id, k->key[mid].id);

        if (d == 0) {
            *there = true;
            return mid;
        }
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

struct sup_key *sup_keys_find(const struct sup_keys *k, const char *id)
{
    bool there;
    size_t at = place(k, id, &there);

    return there ? &k->key[at] : NULL;
}

/* ------------------------------------------------------------------- checks */

static enum rc bad(struct rc_err *err, const char *field, const char *expected)
{
    return rc_fail_what(err, RC_INVALID, field, "%s: expected %s", field, expected);
}

static bool model_ok(const char *s)
{
    const char *star = strchr(s, '*');
    size_t n = strlen(s);

    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return n > 0 && n <= 255 && (!star || star == s + n - 1);
}

static bool name_ok(const char *s)
{
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return strlen(s) <= SUP_KEY_NAME_MAX;
}

static uint32_t all_scopes(void)
{
    uint32_t all = 0;

#define X(id, bit, word, what) all |= SUP_SCOPE_##id;
    SUP_SCOPES(X)
#undef X
    return all;
}

static enum rc check_limits(const struct sup_key *k, struct rc_err *err)
{
    const struct {
        const char *field;
        uint64_t v;
    } rows[] = {{"requests_per_minute", k->requests_per_minute},
                {"tokens_per_minute", k->tokens_per_minute},
                {"concurrency", k->concurrency},
                {"tokens_per_day", k->tokens_per_day}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].v > SUP_KEY_LIMIT_MAX)
            return bad(err, rows[i].field, "at most 1000000000000; 0 = no limit");
    if (k->cache_percent > 100)
        return bad(err, "cache_percent", "0 to 100");
    return RC_OK;
}

enum rc sup_key_check(const struct sup_key *k, struct rc_err *err)
{
    if (!k->tenant || !sup_grant_word(k->tenant, SUP_TENANT_MAX))
        return bad(err, "tenant", "1 to 63 letters, digits, '-', '_' or '.'");
    if (!k->name || !name_ok(k->name))
        return bad(err, "name", "at most 100 bytes without control characters");
    if (k->weight < 1 || k->weight > 1000)
        return bad(err, "weight", "1 to 1000");
    if (k->endpoints & ~all_scopes())
        return bad(err, "endpoints", "words that 'inferd keys create --help' lists");
    if (k->n_models > SUP_GRANT_MODELS)
        return bad(err, "models", "at most 64");
    for (size_t i = 0; i < k->n_models; i++)
        if (!model_ok(k->models[i]))
            return bad(err, "models",
                       "ids of 1 to 255 bytes, or beginnings of ids that end in the only '*'");
    return check_limits(k, err);
}

/* -------------------------------------------------------------- new secrets */

static void hash(uint8_t out[32], const uint8_t salt[32], const void *text, size_t n)
{
    crypto_generichash(out, 32, text, n, salt, 32);
    sodium_stackzero(HASH_STACK);
}

static void new_secret(struct sup_key *k, char text[SUP_KEY_TEXT])
{
    uint8_t secret[SUP_KEY_SECRET_BYTES];
    char word[44]; /* 43 letters */

    randombytes_buf(secret, sizeof(secret));
    randombytes_buf(k->now.salt, sizeof(k->now.salt));
    sodium_bin2base64(word, sizeof(word), secret, sizeof(secret),
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    snprintf(text, SUP_KEY_TEXT, SUP_KEY_PREFIX "%s_%s", k->id, word);
    hash(k->now.hash, k->now.salt, text, strlen(text));
    sodium_memzero(secret, sizeof(secret));
    sodium_memzero(word, sizeof(word));
}

static void new_id(char id[SUP_KEY_ID_CHARS + 1])
{
    static const char alphabet[] =
        "abcdefghijkmnpqrstuvwxyz23456789"; /* nothing that looks alike */

    for (size_t i = 0; i < SUP_KEY_ID_CHARS; i++)
        id[i] = alphabet[randombytes_uniform(sizeof(alphabet) - 1)];
    id[SUP_KEY_ID_CHARS] = '\0';
}

enum rc sup_keys_add(struct sup_keys *keys, struct sup_key *k, char text[SUP_KEY_TEXT],
                     struct rc_err *err)
{
    enum rc rc = sup_key_check(k, err);
    bool there;
    size_t at;

    if (rc != RC_OK)
        return rc;
    if (keys->n >= SUP_KEYS_MAX)
        return rc_fail(err, RC_LIMIT,
                       "there are %zu keys already, at most %u are kept: remove "
                       "revoked ones with 'inferd keys revoke --forget'",
                       keys->n, SUP_KEYS_MAX);
    if (keys->n == keys->cap) {
        size_t cap = keys->cap ? keys->cap * 2 : 16;
        struct sup_key *q = realloc(keys->key, cap * sizeof(*q));

        if (!q)
            return rc_fail(err, RC_NOMEM, "no memory for a key");
        keys->key = q;
        keys->cap = cap;
    }
    do {
        new_id(k->id);
        at = place(keys, k->id, &there);
    } while (there);
    new_secret(k, text);
    memmove(keys->key + at + 1, keys->key + at, (keys->n - at) * sizeof(*keys->key));
    keys->key[at] = *k;
    keys->n++;
    memset(k, 0, sizeof(*k));
    return RC_OK;
}

void sup_key_rotate(struct sup_key *k, uint64_t now_s, uint64_t grace_s, char text[SUP_KEY_TEXT])
{
    k->old = k->now;
    k->old_until_s = grace_s ? now_s + grace_s : 0;
    if (!grace_s)
        sodium_memzero(&k->old, sizeof(k->old));
    k->rotated_s = now_s;
    new_secret(k, text);
}

/* -------------------------------------------------------------------- check */

/* ID of "inf_ID_SECRET"; false: not of that form. */
static bool id_of(const char *text, size_t n, char id[SUP_KEY_ID_CHARS + 1])
{
    const size_t at = sizeof(SUP_KEY_PREFIX) - 1;

    if (n <= at + SUP_KEY_ID_CHARS || memcmp(text, SUP_KEY_PREFIX, at) != 0 ||
        text[at + SUP_KEY_ID_CHARS] != '_')
        return false;
    memcpy(id, text + at, SUP_KEY_ID_CHARS);
    id[SUP_KEY_ID_CHARS] = '\0';
    return true;
}

static bool matches(const struct sup_key_hash *h, const void *text, size_t n)
{
    uint8_t got[32];

    hash(got, h->salt, text, n);
    return sodium_memcmp(got, h->hash, sizeof(got)) == 0;
}

enum rc sup_keys_check(const struct sup_keys *keys, const void *text, size_t n, uint64_t now_s,
                       const struct sup_key **out, uint64_t *until_s)
{
    static const struct sup_key nobody; /* its hash of zeros is no text's */
    char id[SUP_KEY_ID_CHARS + 1] = "";
    const struct sup_key *k = id_of(text, n, id) ? sup_keys_find(keys, id) : NULL;
    const struct sup_key *look = k ? k : &nobody;
    /* both, whatever is found: time says nothing */
    bool now = matches(&look->now, text, n), old = matches(&look->old, text, n);

    if (!k || k->revoked_s || (!now && !(old && k->old_until_s)))
        return RC_NOT_FOUND;
    if (k->expires_s && now_s >= k->expires_s)
        return RC_DEADLINE;
    *until_s = k->expires_s;
    if (!now) {
        if (now_s >= k->old_until_s)
            return RC_DEADLINE;
        if (!*until_s || k->old_until_s < *until_s)
            *until_s = k->old_until_s;
    }
    *out = k;
    return RC_OK;
}

void sup_key_grant(const struct sup_key *k, uint64_t until_s, Ipc__Grant *out)
{
    ipc__grant__init(out);
    out->key_id = (char *)k->id;
    out->tenant = k->tenant;
    out->weight = k->weight;
    out->admin = k->admin;
    out->models = k->models;
    out->n_models = k->n_models;
    out->endpoints = k->endpoints;
    out->expires_unix_s = until_s;
    out->requests_per_minute = k->requests_per_minute;
    out->tokens_per_minute = k->tokens_per_minute;
    out->concurrency = k->concurrency;
    out->tokens_per_day = k->tokens_per_day;
    out->cache_percent = k->cache_percent;
}

const char *sup_key_state(const struct sup_key *k, uint64_t now_s)
{
    if (k->revoked_s)
        return "revoked";
    return k->expires_s && now_s >= k->expires_s ? "expired" : "active";
}
