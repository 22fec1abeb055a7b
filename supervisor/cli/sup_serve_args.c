/* sup_serve_args.c - see sup_serve_args.h. Tests: tests/supervisor/test_sup_cli_args.c */
#include "sup_serve_args.h"

#include <stdlib.h>
#include <string.h>

/* Takes "--name" out of words; true if it was there before a "--". */
static bool take_flag(const char **w, int *n, const char *name)
{
    for (int i = 0; i < *n && strcmp(w[i], "--") != 0; i++)
        if (strcmp(w[i], name) == 0) {
            memmove(&w[i], &w[i + 1], (size_t)(*n - i - 1) * sizeof(*w));
            (*n)--;
            return true;
        }
    return false;
}

/* The same for "--name VALUE" and "--name=VALUE"; the last one wins. */
static enum rc take_value(const char **w, int *n, const char *name, const char **out,
                          struct rc_err *err)
{
    size_t len = strlen(name);

    for (int i = 0; i < *n && strcmp(w[i], "--") != 0;) {
        int used = strcmp(w[i], name) == 0 ? 2 : strncmp(w[i], name, len) == 0 && w[i][len] == '=';

        if (!used) {
            i++;
            continue;
        }
        if (used == 2 && i + 1 >= *n)
            return rc_fail_what(err, RC_INVALID, name, "option '%s' needs a value", name);
        *out = used == 2 ? w[i + 1] : w[i] + len + 1;
        memmove(&w[i], &w[i + used], (size_t)(*n - i - used) * sizeof(*w));
        *n -= used;
    }
    return RC_OK;
}

enum rc sup_serve_args_read(struct sup_serve_args *out, struct sup_conf *conf,
                            const struct sup_args *a, bool doctor, struct rc_err *err)
{
    const char **w = calloc((size_t)a->argc + 1, sizeof(*w));
    int n = a->argc, used = 0;
    enum rc rc = RC_OK;

    memset(out, 0, sizeof(*out));
    if (!w)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (int i = 0; i < n; i++)
        w[i] = a->argv[i];
    out->help = take_flag(w, &n, "--help") || take_flag(w, &n, "-h");
    if (out->help)
        goto out;
    out->config = sup_env(a->envp, "INFERD_CONFIG");
    if ((rc = take_value(w, &n, "--config", &out->config, err)) != RC_OK)
        goto out;
    if (doctor) {
        out->json = take_flag(w, &n, "--json");
        if ((rc = take_value(w, &n, "--server", &out->server, err)) != RC_OK)
            goto out;
    }
    rc = sup_conf_load(conf, out->config && *out->config ? out->config : NULL, a->envp, n,
                       (char *const *)w, &used, err);
    if (rc == RC_OK && used < n) {
        rc = rc_fail_what(err, RC_INVALID, w[used],
                          "unexpected argument '%.60s': options begin with --", w[used]);
        sup_conf_deinit(conf);
    }
out:
    free(w);
    return rc;
}
