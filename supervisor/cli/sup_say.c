/* sup_say.c - how every command complains, and Ctrl-C.
 * Keeps the one thing a signal handler needs. Tests: tests/supervisor/test_sup_cli_args.c */
#include "sup_cli.h"

#include <signal.h>
#include <stdarg.h>

#include "sup_term.h"

static volatile sig_atomic_t n_int;

static void on_int(int sig)
{
    n_int++;
}

void sup_cli_catch_int(void)
{
    struct sigaction sa = {.sa_handler = on_int}; /* no SA_RESTART: reads return */

    sigemptyset(&sa.sa_mask);
    (void)sigaction(SIGINT, &sa, NULL);
}

bool sup_cli_interrupted(bool clear)
{
    bool was = n_int > 0;

    if (clear)
        n_int = 0;
    return was;
}

__attribute__((format(printf, 2, 0))) static int vcomplain(const struct sup_cmd *cmd,
                                                           const char *fmt, va_list ap)
{
    char msg[1024];

    vsnprintf(msg, sizeof(msg), fmt, ap);
    fprintf(stderr, "inferd%s%s: ", cmd ? " " : "", cmd ? cmd->name : "");
    sup_print_clean(stderr, msg, false);
    putc('\n', stderr);
    return SUP_EXIT_USAGE;
}

int sup_usage_error(const struct sup_cmd *cmd, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vcomplain(cmd, fmt, ap);
    va_end(ap);
    fprintf(stderr, "'inferd %s --help' explains.\n", cmd ? cmd->name : "");
    return SUP_EXIT_USAGE;
}

int sup_fail(const struct sup_cmd *cmd, const struct rc_err *err)
{
    if (err->code == RC_CANCELLED) {
        fputs("\ninterrupted\n", stderr);
        return SUP_EXIT_INT;
    }
    fprintf(stderr, "inferd %s: ", cmd->name);
    sup_print_clean(stderr, err->msg[0] ? err->msg : rc_text(err->code), false);
    putc('\n', stderr);
    return SUP_EXIT_FAIL;
}
