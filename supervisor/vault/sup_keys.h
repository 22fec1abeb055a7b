/* sup_keys.h - API keys as they are kept: never the key, only what recognizes it.
 *
 * A key is "inf_" ID "_" SECRET: ID names it in logs and commands, SECRET is 256 random bits.
 * What is kept is BLAKE2b-256 of the whole key under a salt of its own. The key is as random
 * as the hash, so trying keys against a stolen file is as hopeless as trying hashes, and a
 * slow password hash would only slow the server down. After a rotation the old secret is
 * good until its grace is over.
 *
 * Pure but for memory, chance and the clock that is given. Tests:
 * tests/supervisor/test_sup_keys.c, tests/fuzz/fuzz_keys.c
 */
#ifndef INFERD_SUP_KEYS_H
#define INFERD_SUP_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "sup_json.h"
#include "vault.pb-c.h"

#define SUP_KEYS_MAX 10000u
#define SUP_KEYS_FILE_BYTES (32u << 20)
#define SUP_KEY_PREFIX "inf_"
#define SUP_KEY_ID_CHARS 12u
#define SUP_KEY_SECRET_BYTES 32u
#define SUP_KEY_TEXT 64u /* bytes of a key with its NUL, more than enough */
#define SUP_KEY_NAME_MAX 100u
#define SUP_KEY_LIMIT_MAX 1000000000000u /* of each number a key may be limited to */

struct sup_key_hash {
    uint8_t salt[32], hash[32];
};

struct sup_key {
    char id[SUP_KEY_ID_CHARS + 1];
    char *tenant, *name; /* name: for people; never NULL, may be "" */
    uint32_t weight;
    bool admin;
    char **models; /* [n_models] */
    size_t n_models;
    uint32_t endpoints;                                  /* bits of SUP_SCOPES; 0 = all */
    uint64_t created_s, expires_s, revoked_s, rotated_s; /* unix; 0 = never */
    uint64_t requests_per_minute, tokens_per_minute, concurrency, tokens_per_day;
    uint32_t cache_percent;
    struct sup_key_hash now, old;
    uint64_t old_until_s; /* old is good before that; 0 = there is none */
};

/* Sorted by id. A zeroed one is empty. */
struct sup_keys {
    struct sup_key *key;
    size_t n, cap;
};

/* The file's text. Checks every field as strictly as the command line does. Errors:
 * RC_FORMAT (which key, which field), RC_TOO_LARGE, RC_NOMEM. *out is written on success. */
enum rc sup_keys_parse(struct sup_keys *out, const char *text, size_t n, struct rc_err *err);
/* keys.json of a folder (sup_vault_dir.h; dir names it in messages); none = empty. Errors: as
 * of sup_vault_dir_read and _parse. */
enum rc sup_keys_load(struct sup_keys *out, int dir_fd, const char *dir, struct rc_err *err);
void sup_keys_print(const struct sup_keys *k, struct sup_json *out);
/* One key as people see it: no salt, no hash. now_s decides "state". */
void sup_key_json(const struct sup_key *k, uint64_t now_s, struct sup_json *out);
/* "active" "expired" "revoked" */
const char *sup_key_state(const struct sup_key *k, uint64_t now_s);
void sup_keys_deinit(struct sup_keys *k);
void sup_key_deinit(struct sup_key *k);

struct sup_key *sup_keys_find(const struct sup_keys *k, const char *id);
/* Ranges and characters of everything a person gives. Errors: RC_INVALID, what = the field. */
enum rc sup_key_check(const struct sup_key *k, struct rc_err *err);
/* A new id and secret for *k, whose other fields are set; text is the key, to be shown once
 * and wiped. Moves *k in. Errors: RC_LIMIT (SUP_KEYS_MAX), RC_INVALID, RC_NOMEM. */
enum rc sup_keys_add(struct sup_keys *keys, struct sup_key *k, char text[SUP_KEY_TEXT],
                     struct rc_err *err);
/* A new secret; the old one is good for grace_s more. */
void sup_key_rotate(struct sup_key *k, uint64_t now_s, uint64_t grace_s, char text[SUP_KEY_TEXT]);

/* Whose is it? The same work whether the id is known or not. OK: *out, and *until_s: when
 * this secret ends, 0 = never. Errors: RC_NOT_FOUND (unknown, or revoked), RC_DEADLINE. */
enum rc sup_keys_check(const struct sup_keys *keys, const void *text, size_t n, uint64_t now_s,
                       const struct sup_key **out, uint64_t *until_s);
/* Borrows from k. */
void sup_key_grant(const struct sup_key *k, uint64_t until_s, Ipc__Grant *out);

#endif
