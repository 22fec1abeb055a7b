/* sup_remote.h - one remote file of a request: who may be asked, and the child that asks.
 *
 * Deny by default: a host has to be in media_hosts ("host", "*.example.com", "*"), by the name in
 * the URL; a redirect's host too. An address that is not public is connected only for a host in
 * media_private_hosts, named in full. Tests: tests/supervisor/test_sup_remote.c,
 * tests/e2e/remote_media.py
 */
#ifndef INFERD_SUP_REMOTE_H
#define INFERD_SUP_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "sup_child.h"

struct sup_conf;

#define SUP_REMOTE_HOPS 3

/* list: NULL-ended or NULL; origin: of sup_ref_origin. stars: may a row be a pattern? */
bool sup_remote_listed(char *const *list, const char *origin, bool stars);
/* May this URL be fetched under this configuration? Errors: RC_CONFLICT, with the reason. */
enum rc sup_remote_allowed(const struct sup_conf *conf, const char *url, struct rc_err *err);

/* Starts the child. It says FetchDone with type and bytes and, beside it, a sealed memory file.
 * Codes: RC_CONFLICT a rule, RC_TOO_LARGE, RC_DEADLINE, else the other side's fault. */
enum rc sup_remote_start(struct sup_child *c, const struct sup_conf *conf, const char *url,
                         uint64_t max_bytes, uint32_t timeout_ms, struct rc_err *err);

#endif
