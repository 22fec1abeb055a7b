/* sup_vault_dir.h - the folder of keys, credentials and the audit log.
 *
 * Everything in it is ours alone: the folder and its files belong to the user that runs us and
 * nobody else may read them, or they are refused. A file is replaced as a whole (written
 * beside it, synced, renamed, folder synced): a reader sees the old one or the new one.
 * Changes take a lock; readers need none. Tests: tests/supervisor/test_sup_vault_dir.c
 */
#ifndef INFERD_SUP_VAULT_DIR_H
#define INFERD_SUP_VAULT_DIR_H

#include <stdbool.h>
#include <stddef.h>

#include "rc.h"

#define SUP_VAULT_KEYS "keys.json"
#define SUP_VAULT_SECRETS "credentials.json"
#define SUP_VAULT_AUDIT "audit.jsonl"
#define SUP_VAULT_AUDIT_OLD "audit.jsonl.1"

/* make: creates the folder with mode 0700 when it is not there. Errors: RC_NOT_FOUND, RC_IO,
 * RC_CONFLICT (another owner, open to others). */
enum rc sup_vault_dir_open(int *out_fd, const char *path, bool make, struct rc_err *err);
/* Held until *lock_fd is closed. Waits at most 10 s. Errors: RC_BUSY, RC_IO. */
enum rc sup_vault_dir_lock(int *lock_fd, int dir_fd, struct rc_err *err);
/* All of a file, NUL-ended, caller wipes and frees; *out is NULL when there is none. Errors:
 * RC_INVALID (no regular file), RC_CONFLICT (another owner, open to
 * others), RC_TOO_LARGE, RC_IO, RC_NOMEM. */
enum rc sup_vault_dir_read(int dir_fd, const char *name, size_t max, char **out, size_t *out_n,
                           struct rc_err *err);
/* Errors: RC_IO (disk full, no right); then the old file is as it was. */
enum rc sup_vault_dir_replace(int dir_fd, const char *name, const void *bytes, size_t n,
                              struct rc_err *err);
/* The same checks for a file that is open already. */
enum rc sup_vault_file_check(int fd, const char *name, struct rc_err *err);

#endif
