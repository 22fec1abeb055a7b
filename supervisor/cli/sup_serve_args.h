/* sup_serve_args.h - the command line of `serve` and `doctor`: the server's options
 * and a few words of the command's own, which are taken out first. */
#ifndef INFERD_SUP_SERVE_ARGS_H
#define INFERD_SUP_SERVE_ARGS_H

#include "sup_cli.h"
#include "sup_conf.h"

struct sup_serve_args {
    bool help, json;
    const char *config; /* --config or INFERD_CONFIG */
    const char *server; /* --server; only where asked for */
};

/* Reads a->argv. doctor: --json and --server are known too. Errors: RC_INVALID and
 * those of sup_conf_load. With help set, *conf is not filled. */
enum rc sup_serve_args_read(struct sup_serve_args *out, struct sup_conf *conf,
                            const struct sup_args *a, bool doctor, struct rc_err *err);

#endif
