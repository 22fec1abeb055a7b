/* sup_cache.h - whose prompts may share the prompt cache, and how much of it each worker gets.
 *
 * A namespace is a digest under a secret of this process, so nobody outside can name
 * or guess another's. Pure arithmetic and hashing. Page: docs/prompt-cache.md.
 * Tests: tests/supervisor/test_sup_cache.c
 */
#ifndef INFERD_SUP_CACHE_H
#define INFERD_SUP_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_CACHE_NS_BYTES 32

struct sup_cache_secret {
    uint8_t bytes[32];
};

/* A new secret. Errors: RC_INTERNAL. */
enum rc sup_cache_secret_new(struct sup_cache_secret *out, struct rc_err *err);
/* The namespace of a tenant's prompts, subdivided by a key of the client's (n_key 0:
 * none). A client's key never reaches another tenant's namespace. */
void sup_cache_ns(uint8_t out[SUP_CACHE_NS_BYTES], const struct sup_cache_secret *s,
                  const char *tenant, const char *key, size_t n_key);

/* The tenant alone, over all its namespaces: whom a bound counts for. */
void sup_cache_tenant(uint8_t out[SUP_CACHE_NS_BYTES], const struct sup_cache_secret *s,
                      const char *tenant);

struct sup_cache_share {
    uint64_t cap_bytes; /* the worker's KV cache */
    uint64_t demand;    /* prompt tokens it was asked lately */
    uint64_t bytes;     /* out: its budget, at most cap_bytes */
};
/* Deals total bytes out: half evenly, half by demand, and what someone cannot use to
 * the others. The sum is at most total; total 0 = everyone gets cap_bytes. */
void sup_cache_deal(struct sup_cache_share *w, size_t n, uint64_t total);

#endif
