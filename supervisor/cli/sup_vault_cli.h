/* sup_vault_cli.h - what `inferd keys`, `inferd credentials` and `inferd pull` share: the folder,
 * its lock, the master key, the audit log, times as people write them, and the word to a running
 * server. */
#ifndef INFERD_SUP_VAULT_CLI_H
#define INFERD_SUP_VAULT_CLI_H

#include "sup_cli.h"
#include "sup_json.h"
#include "sup_secret_limits.h"

/* One command's stay in the folder. A zeroed one with fds -1 is valid for _leave. */
struct sup_vault_stay {
    int dir_fd, lock_fd;
    char *path;   /* of the folder */
    char who[64]; /* "user:1000", for the audit log */
};

/* --vault-dir's value or NULL: then INFERD_VAULT_DIR, then the file of --config or
 * INFERD_CONFIG. change: takes the lock. make: creates the folder. Errors: as of
 * sup_vault_dir.h, RC_INVALID where no folder is named. */
enum rc sup_vault_enter(struct sup_vault_stay *s, const struct sup_args *a, const char *vault_dir,
                        const char *config, bool change, bool make, struct rc_err *err);
void sup_vault_leave(struct sup_vault_stay *s);
/* The master key: key_file's value or NULL, then INFERD_VAULT_KEY_FILE, then the file of config or
 * INFERD_CONFIG, then $CREDENTIALS_DIRECTORY. *out: NULL where none is named, else for
 * sup_master_free. Errors: as of sup_master_read and sup_conf_load. */
enum rc sup_vault_master(uint8_t **out, const struct sup_args *a, const char *key_file,
                         const char *config, struct rc_err *err);
/* How the vault that a command names keeps its secrets for one machine. NULL: as above. */
struct sup_vault_names {
    const char *dir, *key_file, *config;
};
/* secret: the header value that is kept for an origin, "" = none is kept; the caller wipes it. No
 * other row is opened. must: that no folder or no master key is named is an error, else it is as if
 * none were kept. Errors: as above, RC_CONFLICT another master key. */
enum rc sup_vault_credential(char secret[SUP_SECRET_BYTES + 1], const struct sup_args *a,
                             const struct sup_vault_names *names, const char *origin, bool must,
                             struct rc_err *err);
/* A line of the audit log, before the act: what cannot be noted is not done. */
enum rc sup_vault_note(const struct sup_vault_stay *s, const char *act, const char *fields,
                       struct rc_err *err);
/* "90", "90s", "15m", "12h", "30d", "2w" in seconds. */
bool sup_duration_parse(const char *s, uint64_t *out_s);
/* The same from now, "2027-01-31" or "2027-01-31T12:00:00Z"; "never" = 0. */
bool sup_moment_parse(const char *s, uint64_t now_s, uint64_t *out_s);
/* Sends SIGHUP to the process of --pid-file, or says on stderr how to. */
enum rc sup_vault_hup(const char *pid_file, struct rc_err *err);

#endif
