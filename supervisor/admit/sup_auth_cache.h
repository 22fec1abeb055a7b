/* sup_auth_cache.h - keys that the vault has lately said yes to.
 *
 * Holds no key: an entry is a digest of one under a secret of this process, and the grant.
 * Only good keys are kept, so that guesses push nobody out. Bounded (SUP_AUTH_CACHE), each
 * entry for SUP_AUTH_TTL_MS, all forgotten when the vault's state changes. Pure but for
 * memory and the caller's clock. Tests: tests/supervisor/test_sup_auth.c
 */
#ifndef INFERD_SUP_AUTH_CACHE_H
#define INFERD_SUP_AUTH_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "sup_grant.h"

#define SUP_AUTH_CACHE 4096u
#define SUP_AUTH_TTL_MS 60000u
#define SUP_AUTH_DIGEST 32u

struct sup_auth_cache;

/* Errors: RC_NOMEM, RC_INTERNAL (no chance). */
enum rc sup_auth_cache_new(struct sup_auth_cache **out, struct rc_err *err);
void sup_auth_cache_free(struct sup_auth_cache **c);
/* The digest of a key; leaves nothing of it on the stack. */
void sup_auth_digest(const struct sup_auth_cache *c, const void *key, size_t n,
                     uint8_t out[SUP_AUTH_DIGEST]);
/* Borrowed until the next call; NULL: not there, or too old. */
struct sup_grant *sup_auth_cache_get(struct sup_auth_cache *c, const uint8_t d[SUP_AUTH_DIGEST],
                                     uint64_t now_ms);
/* Takes a reference of its own; the oldest of its row goes when the row is full. */
void sup_auth_cache_put(struct sup_auth_cache *c, const uint8_t d[SUP_AUTH_DIGEST],
                        struct sup_grant *g, uint64_t now_ms);
void sup_auth_cache_clear(struct sup_auth_cache *c);
size_t sup_auth_cache_count(const struct sup_auth_cache *c);

#endif
