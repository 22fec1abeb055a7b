/* sup_cli.h - the operator's commands: one table, one file per command.
 *
 * A command is a row of sup_cmds (sup_cli.c): words, help, options and a function.
 * Parsing and --help both come from the row, so they cannot drift. Data goes to
 * stdout, talk for people to stderr. Commands speak HTTP to a server or execute
 * inferd-worker; none reads a byte of a model.
 * Tests: tests/supervisor/test_sup_cli_args.c, tests/e2e/cli_*.py
 */
#ifndef INFERD_SUP_CLI_H
#define INFERD_SUP_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rc.h"

enum sup_exit { SUP_EXIT_OK = 0, SUP_EXIT_FAIL = 1, SUP_EXIT_USAGE = 2, SUP_EXIT_INT = 130 };

enum sup_opt_kind {
    SUP_O_FLAG, /* --name */
    SUP_O_TEXT, /* --name TEXT */
    SUP_O_NUM,  /* --name N, a whole number in min..max */
    SUP_O_REAL, /* --name X, in min..max */
};

struct sup_opt {
    const char *name; /* without the dashes; NULL ends a table */
    enum sup_opt_kind kind;
    const char *arg; /* word for the value in the help */
    const char *help;
    double min, max;
    char letter; /* "-m" is --model; 0 = none */
};

#define SUP_OPTS_MAX 32
#define SUP_POS_MAX 4096

struct sup_cmd;

/* A value as it came: options that may be repeated, and arguments between them. */
struct sup_given {
    int opt; /* index in cmd->opts; -1 = an argument */
    const char *text;
};

/* One parsed command line. Strings are borrowed from argv. */
struct sup_args {
    const struct sup_cmd *cmd;
    int argc; /* the words behind the command, untouched */
    char **argv;
    char **envp;
    struct {
        bool set;
        const char *text;
        double num;
    } v[SUP_OPTS_MAX]; /* as in cmd->opts */
    const char **pos;
    int n_pos;
    struct sup_given *given; /* in the order of the words */
    int n_given;
};

struct sup_cmd {
    const char *name;
    const char *usage;   /* words behind the name */
    const char *summary; /* one line of `inferd help` */
    const char *text;    /* paragraphs of --help */
    const char *examples;
    const struct sup_opt *opts; /* ended by {0}; NULL = the command reads argv itself */
    int min_pos, max_pos;
    int (*run)(const struct sup_args *a);
    void (*more_help)(FILE *to); /* optional */
};

extern const struct sup_cmd sup_cmds[]; /* ended by {0} */

/* The whole program. Returns the exit status. */
int sup_cli_main(int argc, char **argv, char **envp);
const struct sup_cmd *sup_cmd_find(const char *name);
void sup_cmd_help(FILE *to, const struct sup_cmd *cmd);
void sup_cli_help(FILE *to);
/* Fills *a from argc words. On RC_INVALID err says what is wrong with which word.
 * *help is set when --help or -h was among them. Free with sup_args_deinit. */
enum rc sup_args_parse(struct sup_args *a, const struct sup_cmd *cmd, int argc, char **argv,
                       bool *help, struct rc_err *err);
void sup_args_deinit(struct sup_args *a);
/* "inferd NAME: MESSAGE" on stderr; returns SUP_EXIT_USAGE with a pointer to the
 * help / SUP_EXIT_FAIL. Control characters in the message are not printed. */
int sup_usage_error(const struct sup_cmd *cmd, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int sup_fail(const struct sup_cmd *cmd, const struct rc_err *err);

/* Value of a variable in envp, or NULL. */
const char *sup_env(char *const *envp, const char *name);

/* Ctrl-C: counts instead of ending the program. Set by sup_cli_catch_int. */
void sup_cli_catch_int(void);
/* True when Ctrl-C came since the last call with clear = true. */
bool sup_cli_interrupted(bool clear);

int sup_cmd_serve(const struct sup_args *a);
int sup_cmd_chat(const struct sup_args *a);
int sup_cmd_embed(const struct sup_args *a);
int sup_cmd_decisions(const struct sup_args *a);
int sup_cmd_rerank(const struct sup_args *a);
int sup_cmd_extract(const struct sup_args *a);
int sup_cmd_chunk(const struct sup_args *a);
int sup_cmd_calibrate(const struct sup_args *a);
int sup_cmd_list(const struct sup_args *a);
int sup_cmd_load(const struct sup_args *a);
int sup_cmd_unload(const struct sup_args *a);
int sup_cmd_keys(const struct sup_args *a);
int sup_cmd_credentials(const struct sup_args *a);
int sup_cmd_doctor(const struct sup_args *a);
int sup_cmd_bench(const struct sup_args *a);
int sup_cmd_verify(const struct sup_args *a);
int sup_cmd_pull(const struct sup_args *a);
int sup_cmd_rm(const struct sup_args *a);
int sup_cmd_check(const struct sup_args *a);
int sup_cmd_version(const struct sup_args *a);
int sup_cmd_help_run(const struct sup_args *a);
extern const struct sup_opt sup_opts_chat[], sup_opts_embed[], sup_opts_decisions[],
    sup_opts_calibrate[], sup_opts_list[], sup_opts_load[], sup_opts_bench[], sup_opts_verify[],
    sup_opts_version[], sup_opts_help[], sup_opts_keys[], sup_opts_credentials[], sup_opts_pull[],
    sup_opts_rm[], sup_opts_check[], sup_opts_rerank[], sup_opts_extract[], sup_opts_chunk[];

#endif
