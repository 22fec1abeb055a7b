/* sup_local.h - other programs of ours: a private server, a run of inferd-worker.
 * Tests: tests/supervisor/test_sup_cli_local.c, tests/e2e/cli_chat.py */
#ifndef INFERD_SUP_LOCAL_H
#define INFERD_SUP_LOCAL_H

#include <stdbool.h>
#include <sys/types.h>

#include "rc.h"

struct sup_client;

/* A server for one command: on a Unix socket in a folder only we can enter, gone
 * when this process is. */
struct sup_local {
    pid_t pid;
    char dir[64];     /* holds the socket and the log; removed at the end */
    char server[128]; /* unix:PATH */
};

/* Starts `inferd serve --models-dir models_dir` (options of the environment apply)
 * and waits until it is ready. Errors: RC_IO with the end of its log. */
enum rc sup_local_start(struct sup_local *l, const char *models_dir, struct rc_err *err);
void sup_local_stop(struct sup_local *l);

/* Path of a program beside this one, be it there or not. Errors: RC_IO. */
enum rc sup_beside_path(char *out, size_t cap, const char *program, struct rc_err *err);
/* Path of inferd-worker: conf's choice, else beside this program. */
enum rc sup_worker_path(char *out, size_t cap, const char *configured, struct rc_err *err);
/* Runs it with argv (argv[0] is set here) and gives its stdout (NUL-ended, at most
 * 4 MiB, caller frees). *status as from waitpid. The worker gets an empty
 * environment. stderr is ours. Ctrl-C is passed on: who ends in time and in order ends with
 * RC_CANCELLED and *out as otherwise, where *out stays what it was for other errors.
 * Errors: RC_NOT_FOUND, RC_IO, RC_CANCELLED, RC_DEADLINE, RC_TOO_LARGE. */
enum rc sup_worker_run(const char *path, char *const *argv, unsigned timeout_s, char **out,
                       int *status, struct rc_err *err);

#endif
