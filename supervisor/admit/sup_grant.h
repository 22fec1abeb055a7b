/* sup_grant.h - what the sender of a request may do, and how much.
 *
 * Made by the vault's answer about a key, or the anonymous one where no key is
 * asked for. Immutable once made and counted, so that a request keeps the grant it
 * came in with while keys are reloaded. Knows no key and no secret.
 * Tests: tests/supervisor/test_sup_grant.c
 */
#ifndef INFERD_SUP_GRANT_H
#define INFERD_SUP_GRANT_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"
#include "vault.pb-c.h"

/* Kinds of work a key can be narrowed to. Listing models, probes and status need none.
 * X(id, bit, word in `inferd keys create --endpoints`, what it covers) */
#define SUP_SCOPES(X)                                                                \
    X(GENERATE, 0, "generate", "chat/completions, completions, responses, generate") \
    X(EMBED, 1, "embed", "embed, embeddings")                                        \
    X(RERANK, 2, "rerank", "rerank")                                                 \
    X(EXTRACT, 3, "extract", "extract, recognize, classify")                         \
    X(DECIDE, 4, "decide", "decisions")                                              \
    X(TOKENS, 5, "tokens", "tokenize, detokenize, chunk")                            \
    X(WATCH, 6, "watch", "metrics, security")

enum sup_scope {
#define X(id, bit, word, what) SUP_SCOPE_##id = 1u << (bit),
    SUP_SCOPES(X)
#undef X
};

#define SUP_GRANT_MODELS 64
#define SUP_TENANT_MAX 63 /* bytes: letters, digits, '-', '_', '.' */
#define SUP_KEY_ID_MAX 23
#define SUP_TENANT_ANONYMOUS "default" /* of requests without a key */

struct sup_grant {
    uint32_t refs; /* sup_grant_ref, _unref */
    char key_id[SUP_KEY_ID_MAX + 1]; /* "" = no key */
    char tenant[SUP_TENANT_MAX + 1];
    uint32_t weight; /* 1 to 1000 */
    bool admin;      /* loads, unloads, pulls; sees other tenants' figures */
    char **models;   /* NULL-ended ids, or beginnings that end in '*'; NULL = all */
    uint32_t endpoints; /* bits of enum sup_scope; 0 = all */
    uint64_t expires_unix_s; /* 0 = never */
    /* 0 = no limit */
    uint64_t requests_per_minute, tokens_per_minute, concurrency, tokens_per_day;
    uint32_t cache_percent; /* of each prompt cache, at most; 0 = no bound of its own */
};

/* From the vault's answer; checks lengths, characters and ranges. Errors: RC_FORMAT,
 * RC_NOMEM. One reference is the caller's. */
enum rc sup_grant_new(struct sup_grant **out, const Ipc__Grant *g, struct rc_err *err);
/* The one without a key: weight 1, everything allowed, admin. Errors: RC_NOMEM. */
enum rc sup_grant_anonymous(struct sup_grant **out, struct rc_err *err);
struct sup_grant *sup_grant_ref(struct sup_grant *g);
void sup_grant_unref(struct sup_grant **g); /* accepts NULL */

bool sup_grant_model(const struct sup_grant *g, const char *model_id);
bool sup_grant_scope(const struct sup_grant *g, enum sup_scope s);
/* Letters, digits, '-', '_' and '.', 1 to max bytes. */
bool sup_grant_word(const char *s, unsigned max);

#endif
