/* sup_cmd_help.c - `inferd help`. Tests: tests/supervisor/test_sup_cli_args.c */
#include <string.h>

#include "sup_cli.h"
#include "sup_conf.h"

enum { O_MARKDOWN };

const struct sup_opt sup_opts_help[] = {
    {"markdown", SUP_O_FLAG, NULL, "with config: as a documentation page", 0, 0},
    {0},
};

int sup_cmd_help_run(const struct sup_args *a)
{
    const struct sup_cmd *cmd;

    if (a->n_pos == 0) {
        sup_cli_help(stdout);
        return SUP_EXIT_OK;
    }
    if (strcmp(a->pos[0], "config") == 0) {
        if (a->v[O_MARKDOWN].set)
            sup_conf_markdown(stdout);
        else
            sup_conf_help(stdout);
        return SUP_EXIT_OK;
    }
    cmd = sup_cmd_find(a->pos[0]);
    if (!cmd)
        return sup_usage_error(a->cmd, "no command '%.60s'", a->pos[0]);
    sup_cmd_help(stdout, cmd);
    return SUP_EXIT_OK;
}
