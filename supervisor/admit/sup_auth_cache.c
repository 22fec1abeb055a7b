/* sup_auth_cache.c - good keys of the last minute; sup_auth_cache.h.
 *
 * A table of rows of ROW entries, the row chosen by the digest: bounded work and memory
 * without lists. Tests: tests/supervisor/test_sup_auth.c
 */
#include "sup_auth_cache.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define ROW 8u
#define ROWS (SUP_AUTH_CACHE / ROW)
#define HASH_STACK 4096 /* what the hash may have spilt */

struct entry {
    uint8_t digest[SUP_AUTH_DIGEST];
    struct sup_grant *grant; /* NULL = free */
    uint64_t since_ms;
};

struct sup_auth_cache {
    uint8_t secret[32];
    size_t n;
    struct entry e[ROWS][ROW];
};

enum rc sup_auth_cache_new(struct sup_auth_cache **out, struct rc_err *err)
{
    struct sup_auth_cache *c;

    if (sodium_init() < 0)
        return rc_fail(err, RC_INTERNAL, "libsodium cannot start");
    if (!(c = calloc(1, sizeof(*c))))
        return rc_fail(err, RC_NOMEM, "no memory for the cache of keys");
    randombytes_buf(c->secret, sizeof(c->secret));
    *out = c;
    return RC_OK;
}

void sup_auth_cache_free(struct sup_auth_cache **cp)
{
    struct sup_auth_cache *c = *cp;

    if (!c)
        return;
    sup_auth_cache_clear(c);
    sodium_memzero(c->secret, sizeof(c->secret));
    free(c);
    *cp = NULL;
}

void sup_auth_digest(const struct sup_auth_cache *c, const void *key, size_t n,
                     uint8_t out[SUP_AUTH_DIGEST])
{
    crypto_generichash(out, SUP_AUTH_DIGEST, key, n, c->secret, sizeof(c->secret));
    sodium_stackzero(HASH_STACK);
}

static void drop(struct sup_auth_cache *c, struct entry *e)
{
    sup_grant_unref(&e->grant);
    memset(e, 0, sizeof(*e));
    c->n--;
}

static struct entry *row_of(struct sup_auth_cache *c, const uint8_t *d)
{
    return c->e[(d[0] | (size_t)d[1] << 8) % ROWS];
}

struct sup_grant *sup_auth_cache_get(struct sup_auth_cache *c, const uint8_t d[SUP_AUTH_DIGEST],
                                     uint64_t now_ms)
{
    struct entry *row = row_of(c, d);

    for (size_t i = 0; i < ROW; i++) {
        if (!row[i].grant || sodium_memcmp(row[i].digest, d, SUP_AUTH_DIGEST) != 0)
            continue;
        if (now_ms - row[i].since_ms < SUP_AUTH_TTL_MS)
            return row[i].grant;
        drop(c, &row[i]);
    }
    return NULL;
}

void sup_auth_cache_put(struct sup_auth_cache *c, const uint8_t d[SUP_AUTH_DIGEST],
                        struct sup_grant *g, uint64_t now_ms)
{
    struct entry *row = row_of(c, d), *best = &row[0];

    for (size_t i = 0; i < ROW; i++) {
        if (row[i].grant && sodium_memcmp(row[i].digest, d, SUP_AUTH_DIGEST) == 0) {
            best = &row[i];
            break;
        }
        if (best->grant && (!row[i].grant || row[i].since_ms < best->since_ms))
            best = &row[i];
    }
    sup_grant_ref(g);
    if (best->grant)
        drop(c, best);
    memcpy(best->digest, d, SUP_AUTH_DIGEST);
    best->grant = g;
    best->since_ms = now_ms;
    c->n++;
}

void sup_auth_cache_clear(struct sup_auth_cache *c)
{
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < ROW; i++)
            if (c->e[r][i].grant)
                drop(c, &c->e[r][i]);
}

size_t sup_auth_cache_count(const struct sup_auth_cache *c)
{
    return c->n;
}
