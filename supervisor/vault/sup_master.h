/* sup_master.h - the key that seals the credentials, and where it comes from.
 *
 * A file of 32 bytes, or of those in hex or base64: option vault_key_file, else the systemd
 * credential inferd-vault-key. A mounted Kubernetes secret is such a file (its links are
 * followed). It lives in locked memory. Tests: tests/supervisor/test_sup_secrets.c
 */
#ifndef INFERD_SUP_MASTER_H
#define INFERD_SUP_MASTER_H

#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_MASTER_BYTES 32u
#define SUP_MASTER_CREDENTIAL "inferd-vault-key"

/* file: the option's value or NULL/"": then $CREDENTIALS_DIRECTORY/inferd-vault-key, credentials
 * being that variable's value or NULL. *out is NULL when neither is there; else free with
 * sup_master_free. Errors: RC_NOT_FOUND, RC_IO, RC_CONFLICT (others may read or the group
 * write it), RC_FORMAT, RC_NOMEM. */
enum rc sup_master_read(uint8_t **out, const char *file, const char *credentials,
                        struct rc_err *err);
/* The two halves of that: who may not open files any more is handed one that another process
 * opened. *out_fd is -1 when there is none; out_path [cap] names it in messages. */
enum rc sup_master_open(int *out_fd, char *out_path, size_t cap, const char *file,
                        const char *credentials, struct rc_err *err);
/* fd: borrowed, at its beginning. */
enum rc sup_master_read_fd(uint8_t **out, int fd, const char *path, struct rc_err *err);
/* The 32 bytes out of what a file holds. Errors: RC_FORMAT. */
enum rc sup_master_parse(uint8_t out[SUP_MASTER_BYTES], const char *text, size_t n,
                         struct rc_err *err);
void sup_master_free(uint8_t **key);

#endif
