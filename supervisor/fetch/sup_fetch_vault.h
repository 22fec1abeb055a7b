/* sup_fetch_vault.h - the fetcher's questions to the vault: the secret of one origin.
 *
 * One question at a time, and the fetcher waits for its answer: the vault reads no disk for it.
 * That it gives none is an error and never "there is none": a pull without its secret would blame
 * the hub. Every copy of a secret is wiped but the caller's.
 * Tests: tests/supervisor/test_sup_fetch_vault.c, tests/e2e/pull_http.py
 */
#ifndef INFERD_SUP_FETCH_VAULT_H
#define INFERD_SUP_FETCH_VAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"
#include "sup_secret_limits.h"

#define SUP_FETCH_VAULT_MS 5000 /* it is waited for */

struct sup_fetch_vault {
    int fd; /* -1 = none, or it has gone */
    bool gone;
    unsigned wait_ms;
    uint64_t last_req;
};

/* fd: not owned; -1 = this server has no vault. */
void sup_fetch_vault_init(struct sup_fetch_vault *v, int fd);

/* secret: the header value that is kept for the URL's origin, NUL-ended; "" when none is kept or
 * there is no vault; the caller wipes it. Errors, with secret "": RC_BUSY: the vault gives no
 * answer within wait_ms, has gone, or cannot look now; RC_FORMAT: a value that cannot be sent. */
enum rc sup_fetch_vault_ask(struct sup_fetch_vault *v, const char *url,
                            char secret[SUP_SECRET_BYTES + 1], struct rc_err *err);
/* Takes one word that it says unasked: of keys, or an answer that came too late. */
void sup_fetch_vault_hear(struct sup_fetch_vault *v);

#endif
