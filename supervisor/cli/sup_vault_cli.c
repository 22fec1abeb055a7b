/* sup_vault_cli.c - the folder of keys from the command line; sup_vault_cli.h.
 * Tests: tests/supervisor/test_sup_cli_keys.c, tests/e2e/keys.py */
#include "sup_vault_cli.h"

#include <errno.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sup_audit.h"
#include "sup_conf.h"
#include "sup_file.h"
#include "sup_master.h"
#include "sup_secrets.h"
#include "sup_vault_dir.h"

#define DURATION_MAX (1000ull * 365 * 86400)

/* *out: NULL where none is named. */
static enum rc find_dir(char **out, const struct sup_args *a, const char *vault_dir,
                        const char *config, struct rc_err *err)
{
    struct sup_conf conf;
    int used = 0;
    enum rc rc = RC_OK;

    if (!vault_dir)
        vault_dir = sup_env(a->envp, "INFERD_VAULT_DIR");
    if (vault_dir && *vault_dir)
        return (*out = strdup(vault_dir)) ? RC_OK : rc_fail(err, RC_NOMEM, "out of memory");
    if (!config)
        config = sup_env(a->envp, "INFERD_CONFIG");
    if (config && *config) {
        if ((rc = sup_conf_load(&conf, config, a->envp, 0, NULL, &used, err)) != RC_OK)
            return rc;
        if (*conf.vault_dir && !(*out = strdup(conf.vault_dir)))
            rc = rc_fail(err, RC_NOMEM, "out of memory");
        sup_conf_deinit(&conf);
    }
    return rc;
}

static enum rc no_dir(struct rc_err *err)
{
    return rc_fail_what(err, RC_INVALID, "vault-dir",
                        "no folder of keys is named: say --vault-dir DIR, or set "
                        "INFERD_VAULT_DIR, or vault_dir in the file of --config");
}

enum rc sup_vault_enter(struct sup_vault_stay *s, const struct sup_args *a, const char *vault_dir,
                        const char *config, bool change, bool make, struct rc_err *err)
{
    enum rc rc;

    *s = (struct sup_vault_stay){.dir_fd = -1, .lock_fd = -1};
    snprintf(s->who, sizeof(s->who), "user:%u", (unsigned)getuid());
    if ((rc = find_dir(&s->path, a, vault_dir, config, err)) != RC_OK ||
        (rc = s->path ? RC_OK : no_dir(err)) != RC_OK ||
        (rc = sup_vault_dir_open(&s->dir_fd, s->path, make, err)) != RC_OK)
        return rc;
    return change ? sup_vault_dir_lock(&s->lock_fd, s->dir_fd, err) : RC_OK;
}

void sup_vault_leave(struct sup_vault_stay *s)
{
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    free(s->path);
    *s = (struct sup_vault_stay){.dir_fd = -1, .lock_fd = -1};
}

enum rc sup_vault_note(const struct sup_vault_stay *s, const char *act, const char *fields,
                       struct rc_err *err)
{
    enum rc rc = sup_audit_write(s->dir_fd, time(NULL), act, s->who, fields, SUP_AUDIT_BYTES, err);

    if (rc != RC_OK)
        rc_wrap(err, "nothing was changed, because it could not be noted");
    return rc;
}

/* ------------------------------------------------------------- one credential */

enum rc sup_vault_master(uint8_t **out, const struct sup_args *a, const char *key_file,
                         const char *config, struct rc_err *err)
{
    struct sup_conf conf = {0};
    int used = 0;
    enum rc rc = RC_OK;

    *out = NULL;
    if (!config)
        config = sup_env(a->envp, "INFERD_CONFIG");
    if (!key_file)
        key_file = sup_env(a->envp, "INFERD_VAULT_KEY_FILE");
    if (!key_file && config && *config) {
        if ((rc = sup_conf_load(&conf, config, a->envp, 0, NULL, &used, err)) != RC_OK)
            return rc;
        key_file = conf.vault_key_file;
    }
    rc = sup_master_read(out, key_file, sup_env(a->envp, "CREDENTIALS_DIRECTORY"), err);
    sup_conf_deinit(&conf);
    return rc;
}

/* The others' values stay sealed. */
static enum rc open_one(char secret[SUP_SECRET_BYTES + 1], struct sup_secrets *s,
                        const char *origin, const uint8_t *master, struct rc_err *err)
{
    const uint8_t *value;
    size_t n = 0;
    enum rc rc;

    for (size_t i = s->n; i-- > 0;)
        if (strcmp(s->row[i].origin, origin) != 0)
            (void)sup_secrets_remove(s, s->row[i].origin);
    if ((rc = sup_secrets_open(s, master, err)) != RC_OK ||
        !(value = sup_secrets_get(s, origin, &n)))
        return rc;
    if (n > SUP_SECRET_BYTES)
        return rc_fail(err, RC_FORMAT, "the credential for %s has %zu bytes, at most %u", origin, n,
                       SUP_SECRET_BYTES);
    memcpy(secret, value, n);
    secret[n] = '\0';
    return RC_OK;
}

enum rc sup_vault_credential(char secret[SUP_SECRET_BYTES + 1], const struct sup_args *a,
                             const struct sup_vault_names *names, const char *origin, bool must,
                             struct rc_err *err)
{
    struct sup_secrets s = {0};
    uint8_t *master = NULL;
    char *path = NULL;
    int dir_fd = -1;
    enum rc rc;

    secret[0] = '\0';
    if (sodium_init() < 0)
        return rc_fail(err, RC_INTERNAL, "libsodium cannot start");
    if ((rc = find_dir(&path, a, names->dir, names->config, err)) != RC_OK || !path) {
        rc = rc == RC_OK && must ? no_dir(err) : rc;
        goto out;
    }
    if ((rc = sup_vault_master(&master, a, names->key_file, names->config, err)) != RC_OK ||
        !master) {
        if (rc == RC_OK && must)
            rc = rc_fail_what(err, RC_INVALID, "key-file",
                              "no master key is named: say --key-file FILE, or set "
                              "INFERD_VAULT_KEY_FILE, or vault_key_file in the file of --config");
        goto out;
    }
    if ((rc = sup_vault_dir_open(&dir_fd, path, false, err)) == RC_OK &&
        (rc = sup_secrets_load(&s, dir_fd, path, err)) == RC_OK)
        rc = open_one(secret, &s, origin, master, err);
out:
    sup_secrets_deinit(&s);
    sup_master_free(&master);
    if (dir_fd >= 0)
        close(dir_fd);
    free(path);
    return rc;
}

/* ------------------------------------------------------------------ times */

bool sup_duration_parse(const char *s, uint64_t *out)
{
    static const struct {
        char unit;
        uint64_t s;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 604800}};
    uint64_t v = 0, by = 1;
    size_t n = strspn(s, "0123456789");

    if (n == 0 || n > 12 || (s[n] && s[n + 1]))
        return false;
    for (size_t i = 0; i < n; i++)
        v = v * 10 + (uint64_t)(s[i] - '0');
    if (s[n]) {
        by = 0;
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
            if (units[i].unit == s[n])
                by = units[i].s;
    }
    if (!by || v > DURATION_MAX / by)
        return false;
    *out = v * by;
    return true;
}

bool sup_moment_parse(const char *s, uint64_t now_s, uint64_t *out)
{
    struct tm tm = {0};
    const char *end;
    time_t t;

    if (strcmp(s, "never") == 0) {
        *out = 0;
        return true;
    }
    if (sup_duration_parse(s, out)) {
        *out += now_s;
        return true;
    }
    end = strptime(s, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (!end || *end) {
        memset(&tm, 0, sizeof(tm));
        end = strptime(s, "%Y-%m-%d", &tm);
    }
    if (!end || *end || (t = timegm(&tm)) <= 0)
        return false;
    *out = (uint64_t)t;
    return true;
}

enum rc sup_vault_hup(const char *pid_file, struct rc_err *err)
{
    char *text = NULL, *end;
    size_t n = 0;
    long pid;
    enum rc rc;

    if (!pid_file) {
        fputs("A running server hears of it by SIGHUP: kill -HUP PID (of 'inferd serve'), or "
              "systemctl reload inferd.\n",
              stderr);
        return RC_OK;
    }
    if ((rc = sup_file_read(pid_file, 64, true, &text, &n, err)) != RC_OK)
        return rc;
    errno = 0;
    pid = strtol(text, &end, 10);
    if (errno || end == text || *(end + strspn(end, " \n")) || pid <= 1)
        rc = rc_fail(err, RC_INVALID, "'%.200s' holds no process number", pid_file);
    else if (kill((pid_t)pid, SIGHUP) != 0)
        rc = rc_fail(err, RC_IO,
                     "telling process %ld of it: %s; the change is made, the running "
                     "server does not know it yet",
                     pid, strerror(errno));
    free(text);
    return rc;
}
