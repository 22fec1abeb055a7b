/* sup_pull.h - one model from its source into an open folder: list, choose, fetch, receipt.
 *
 * Runs in the fetcher, behind its sandbox: it reads strangers' JSON. Writes below files_fd only
 * and gives nothing its final name; who called it publishes (sup_stage.h).
 * Tests: tests/e2e/pull.py
 */
#ifndef INFERD_SUP_PULL_H
#define INFERD_SUP_PULL_H

#include "sup_ref.h"
#include "sup_xfer.h"

struct sup_pull {
    struct sup_ref ref;
    char hub[SUP_REF_MAX];             /* without a slash at its end */
    char secret[SUP_SECRET_BYTES + 1]; /* a header value for the hub's origin; "" = none */
    char have_commit[65]; /* of what is installed already; "" = nothing, or not whole */
    uint64_t max_artifact_bytes, max_model_bytes;
    unsigned retries;
    bool public_only; /* connect to addresses of the public internet only */
    bool served;      /* asked for over HTTP: messages say what the server's operator does */
    int files_fd;
    bool (*on_now)(void *user, const char *stage, const struct sup_xfer_now *now);
    void *user;
};

/* stage of on_now: "asking", "fetching", "hashing". *unchanged: the source has what is installed,
 * nothing was fetched. err may not be NULL. */
enum rc sup_pull_run(struct sup_pull *p, bool *unchanged, struct rc_err *err);

/* Checks an endpoint and cuts the slashes at its end: https, or http to this machine itself.
 * Errors: RC_INVALID, RC_TOO_LARGE. */
enum rc sup_pull_hub(char out[SUP_REF_MAX], const char *hub, struct rc_err *err);

#endif
