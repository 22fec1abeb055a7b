/* sup_auth.h - the front's side of the vault: whose is this key?
 *
 * Answers from a cache (sup_auth_cache.h) or asks the vault over its channel, one question
 * per key at a time however many requests bring it. A key is kept in its question until the
 * channel has taken it, then wiped. What the vault says is checked; a
 * breach or the end of its channel ends the front (and with it the server).
 * One thread (the loop's). Tests: tests/supervisor/test_sup_auth.c, tests/e2e/keys.py
 */
#ifndef INFERD_SUP_AUTH_H
#define INFERD_SUP_AUTH_H

#include <stdbool.h>
#include <uv.h>

#include "rc.h"
#include "sup_http.h"

#define SUP_AUTH_KEY_MAX 256u /* bytes of a key that is looked at */
#define SUP_AUTH_ASKS 4096u   /* questions open at a time; then 503 */

struct sup_auth;
struct sup_conf;
struct sup_metrics;
struct sup_walls_told;

/* vault_fd: owned; -1 = no vault (then no key is read). on_lost: the vault's channel is
 * gone. Errors: RC_NOMEM, RC_IO, RC_INTERNAL. */
enum rc sup_auth_new(struct sup_auth **out, uv_loop_t *loop, int vault_fd,
                     const struct sup_conf *conf, struct sup_metrics *metrics,
                     void (*on_lost)(void *user), void *user, struct rc_err *err);
/* Closes its handles; call before the loop runs out. Nothing is asked after it. */
void sup_auth_stop(struct sup_auth *a);
/* After the loop has run out. */
void sup_auth_free(struct sup_auth **a);

/* The members ask and forget of struct sup_http_keys, with the sup_auth as user. ask NULL:
 * nobody needs a key here. */
struct sup_http_keys sup_auth_keys(struct sup_auth *a);
/* There is no vault, or its first state is known. */
bool sup_auth_ready(const struct sup_auth *a);
/* The layers of its sandbox that the vault said it has, borrowed until the next turn; pid 0: it
 * has said nothing yet; false: there is no vault. */
bool sup_auth_vault_walls(const struct sup_auth *a, struct sup_walls_told *out);
size_t sup_auth_keys_loaded(const struct sup_auth *a);
/* Whether the audit log could be written last: while it cannot, acts of administrators are
 * refused (and still told to it, so that it is seen when it works again). */
bool sup_auth_audit_ok(const struct sup_auth *a);
/* One act of an administrator, for the vault's audit log. fields: a JSON object. Without a
 * vault (or a NULL: tests) it goes to the log alone. */
void sup_auth_audit(struct sup_auth *a, const char *act, const char *who, const char *fields);

#endif
