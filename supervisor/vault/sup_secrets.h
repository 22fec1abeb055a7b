/* sup_secrets.h - credentials for other machines, sealed on disk, one for each origin.
 *
 * credentials.json holds, for each origin, a header value sealed with XChaCha20-Poly1305 under
 * the master key. The origin is authenticated with it: a sealed value that is moved to another
 * origin's row does not open. Opened values lie in one block of locked memory.
 * Tests: tests/supervisor/test_sup_secrets.c, tests/fuzz/fuzz_secrets.c
 */
#ifndef INFERD_SUP_SECRETS_H
#define INFERD_SUP_SECRETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "sup_json.h"
#include "sup_master.h"
#include "sup_secret_limits.h"

#define SUP_SECRETS_MAX 256u
#define SUP_SECRETS_FILE_BYTES (8u << 20)
#define SUP_SECRET_NONCE 24u
#define SUP_SECRET_TAG 16u

/* As it lies on disk. */
struct sup_sealed {
    char *origin; /* scheme://host:port */
    uint64_t created_s, rotated_s;
    uint8_t nonce[SUP_SECRET_NONCE];
    uint8_t *box; /* [n_box], SUP_SECRET_TAG more than the value */
    size_t n_box;
};

/* Sorted by origin. A zeroed one is empty. */
struct sup_secrets {
    struct sup_sealed *row;
    size_t n;
    /* after _open: */
    uint8_t *plain; /* sodium_malloc: all values, one behind the other; NULL = not opened */
    size_t *at;     /* [n + 1] where each begins */
};

/* "https://Example.org" to "https://example.org:443". Errors: RC_INVALID: another scheme than
 * http and https, user names, a path, a port out of range. */
enum rc sup_origin_parse(char out[SUP_ORIGIN_MAX], const char *text, struct rc_err *err);

/* The file's text, still sealed. Errors: RC_FORMAT, RC_TOO_LARGE, RC_NOMEM. */
enum rc sup_secrets_parse(struct sup_secrets *out, const char *text, size_t n, struct rc_err *err);
/* credentials.json of a folder; none = empty. Errors: as of sup_vault_dir_read and _parse. */
enum rc sup_secrets_load(struct sup_secrets *out, int dir_fd, const char *dir, struct rc_err *err);
void sup_secrets_print(const struct sup_secrets *s, struct sup_json *out);
void sup_secrets_deinit(struct sup_secrets *s);

/* Opens every value. Errors: RC_CONFLICT: one does not open (another master key, or changed on
 * disk), what = its origin; RC_NOMEM. */
enum rc sup_secrets_open(struct sup_secrets *s, const uint8_t master[SUP_MASTER_BYTES],
                         struct rc_err *err);
/* Of an opened set: borrowed; NULL: none is kept for exactly this origin. */
const uint8_t *sup_secrets_get(const struct sup_secrets *s, const char *origin, size_t *n);

/* Seals a value for an origin, replacing what was there. Errors: RC_LIMIT, RC_INVALID (length,
 * or control characters in it), RC_NOMEM. */
enum rc sup_secrets_set(struct sup_secrets *s, const char *origin, const void *value, size_t n,
                        uint64_t now_s, const uint8_t master[SUP_MASTER_BYTES], struct rc_err *err);
/* false: there was none. */
bool sup_secrets_remove(struct sup_secrets *s, const char *origin);
/* Seals every value of an opened set anew. Errors: RC_NOMEM. */
enum rc sup_secrets_reseal(struct sup_secrets *s, const uint8_t master[SUP_MASTER_BYTES],
                           struct rc_err *err);

#endif
