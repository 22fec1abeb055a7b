/* sup_cmd_serve.c - `inferd serve`: reads the configuration, hands over to the
 * launcher. Opens nothing of its own that would outlive this function.
 * Tests: tests/supervisor/test_sup_cli_args.c, every tests/e2e script */
#include "sup_serve_args.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_launcher.h"
#include "sup_log.h"

static enum rc read_again(void *user, struct sup_conf *out, struct rc_err *err)
{
    struct sup_serve_args s;

    return sup_serve_args_read(&s, out, user, false, err);
}

/* A configuration that cannot be used is a usage error: 2, so that a service
 * manager can be told not to try again. */
int sup_cmd_serve(const struct sup_args *a)
{
    struct sup_serve_args s;
    struct sup_conf conf;
    struct rc_err err = RC_ERR_INIT;
    struct sup_args again = *a;
    const struct sup_conf_source source = {read_again, &again};
    int status;

    if (sup_serve_args_read(&s, &conf, a, false, &err) != RC_OK)
        return sup_usage_error(a->cmd, "%s", err.msg);
    if (s.help) {
        sup_cmd_help(stdout, a->cmd);
        return SUP_EXIT_OK;
    }
    if (isatty(STDERR_FILENO) == 1 && *conf.host)
        fprintf(stderr, "inferd %s serves '%s' on %s port %llu; Ctrl-C ends\n", INFERD_VERSION,
                conf.models_dir, conf.host, (unsigned long long)conf.port);
    else if (isatty(STDERR_FILENO) == 1)
        fprintf(stderr, "inferd %s serves '%s' on %s; Ctrl-C ends\n", INFERD_VERSION,
                conf.models_dir, conf.unix_socket);
    sup_log_init(sup_level_parse(conf.log_level));
    status = sup_launcher_main(&conf, &source);
    sup_conf_deinit(&conf);
    return status;
}
