/* sup_vault_cli.c - the folder of keys from the command line; sup_vault_cli.h.
 * Tests: tests/supervisor/test_sup_cli_keys.c, tests/e2e/keys.py */
#include "sup_vault_cli.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sup_audit.h"
#include "sup_conf.h"
#include "sup_file.h"
#include "sup_vault_dir.h"

#define DURATION_MAX (1000ull * 365 * 86400)

static enum rc find_dir(char **out, const struct sup_args *a, const char *vault_dir,
                        const char *config, struct rc_err *err)
{
    struct sup_conf conf;
    int used = 0;
    enum rc rc;

    if (!vault_dir)
        vault_dir = sup_env(a->envp, "INFERD_VAULT_DIR");
    if (vault_dir && *vault_dir)
        return (*out = strdup(vault_dir)) ? RC_OK : rc_fail(err, RC_NOMEM, "out of memory");
    if (!config)
        config = sup_env(a->envp, "INFERD_CONFIG");
    if (config && *config) {
        if ((rc = sup_conf_load(&conf, config, a->envp, 0, NULL, &used, err)) != RC_OK)
            return rc;
        if (*conf.vault_dir)
            *out = strdup(conf.vault_dir);
        sup_conf_deinit(&conf);
        if (*out)
            return RC_OK;
    }
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
