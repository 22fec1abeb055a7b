/* sup_vault.h - the process that knows the keys.
 *
 * Forked before anything listens; narrows itself (sup_vault_sandbox.h), reads its folder, then
 * answers over its channels by a table of what each peer may say; anything else ends that
 * channel. Knows no HTTP and no network. Its state is replaced as a whole by a reload; when
 * that fails the old one goes on. Tests: tests/supervisor/test_sup_vault.c, tests/e2e/keys.py
 */
#ifndef INFERD_SUP_VAULT_H
#define INFERD_SUP_VAULT_H

#include <stdbool.h>

struct sup_conf;
struct sup_role_fds;

/* Returns the process's exit status: 0 when the launcher's channel ends. */
int sup_vault_main(const struct sup_conf *conf, const struct sup_role_fds *fds);
/* Whether a configuration wants it: vault_dir is set. */
bool sup_vault_wanted(const struct sup_conf *conf);

#endif
