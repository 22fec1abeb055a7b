/* sup_cache.c - namespaces of the prompt cache, and the dealing of its budget.
 *
 * Fields of a namespace go in with their lengths, so no two lists of fields spell
 * the same bytes. Always true: sup_cache_deal's sum is at most the total. Tests:
 * tests/supervisor/test_sup_cache.c
 */
#include "sup_cache.h"

#include <sodium.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

enum rc sup_cache_secret_new(struct sup_cache_secret *out, struct rc_err *err)
{
    if (getrandom(out->bytes, sizeof(out->bytes), 0) != sizeof(out->bytes))
        return rc_fail(err, RC_INTERNAL, "no random secret: getrandom failed");
    return RC_OK;
}

static void add(crypto_generichash_state *h, const void *field, size_t n)
{
    uint8_t len[8];

    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)n >> (8 * i));
    crypto_generichash_update(h, len, sizeof(len));
    crypto_generichash_update(h, field, n);
}

void sup_cache_ns(uint8_t out[SUP_CACHE_NS_BYTES], const struct sup_cache_secret *s,
                  const char *tenant, const char *key, size_t n_key)
{
    static const char domain[] = "inferd prompt cache 1";
    crypto_generichash_state h;

    crypto_generichash_init(&h, s->bytes, sizeof(s->bytes), SUP_CACHE_NS_BYTES);
    add(&h, domain, sizeof(domain) - 1);
    add(&h, tenant, strlen(tenant));
    add(&h, n_key > 0 ? key : "", n_key);
    crypto_generichash_final(&h, out, SUP_CACHE_NS_BYTES);
}

void sup_cache_tenant(uint8_t out[SUP_CACHE_NS_BYTES], const struct sup_cache_secret *s,
                      const char *tenant)
{
    static const char domain[] = "inferd prompt cache tenant 1";
    crypto_generichash_state h;

    crypto_generichash_init(&h, s->bytes, sizeof(s->bytes), SUP_CACHE_NS_BYTES);
    add(&h, domain, sizeof(domain) - 1);
    add(&h, tenant, strlen(tenant));
    crypto_generichash_final(&h, out, SUP_CACHE_NS_BYTES);
}

/* Deals `left` in proportion to weight among those below their cap; returns what
 * nobody could take. */
static uint64_t deal(struct sup_cache_share *w, size_t n, uint64_t left, bool by_demand)
{
    for (size_t round = 0; round <= n && left > 0; round++) { /* each round fills someone */
        uint64_t given = 0;
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            if (w[i].bytes < w[i].cap_bytes)
                sum += by_demand ? (double)w[i].demand : 1.0;
        if (sum <= 0)
            break;
        for (size_t i = 0; i < n; i++) {
            double part = (by_demand ? (double)w[i].demand : 1.0) / sum * (double)left;
            uint64_t room = w[i].cap_bytes - w[i].bytes, give = room;

            if (room > 0 && part < (double)room)
                give = (uint64_t)part;
            if (give > left - given)
                give = left - given;
            w[i].bytes += give;
            given += give;
        }
        left -= given;
        if (given == 0)
            break;
    }
    return left;
}

void sup_cache_deal(struct sup_cache_share *w, size_t n, uint64_t total)
{
    uint64_t left;

    for (size_t i = 0; i < n; i++)
        w[i].bytes = total == 0 ? w[i].cap_bytes : 0;
    if (total == 0 || n == 0)
        return;
    left = deal(w, n, total / 2, false);
    left = deal(w, n, left + (total - total / 2), true);
    deal(w, n, left, false); /* nobody asks for it: evenly */
}
