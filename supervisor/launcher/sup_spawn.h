/* sup_spawn.h - the birth of processes: fork, and exec of a worker.
 *
 * Knows descriptors and signals; nothing of models or messages. The launcher is
 * single-threaded, yet between fork and exec only async-signal-safe calls are
 * made. Tests: tests/supervisor/test_sup_launcher.c
 */
#ifndef INFERD_SUP_SPAWN_H
#define INFERD_SUP_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "rc.h"

struct sup_conf;

struct sup_spawned {
    pid_t pid;
    int channel_fd; /* our end */
    int stderr_fd;  /* read end, non-blocking */
};

/* Opens the worker's program: conf->worker, or inferd-worker beside /proc/self/exe.
 * Held open for the server's life, so an upgrade on disk never mixes versions.
 * Errors: RC_NOT_FOUND, RC_IO. */
enum rc sup_spawn_find(int *out_exe_fd, const struct sup_conf *conf, struct rc_err *err);

/* Starts a worker on root_fd (borrowed); its words come from conf. probe: one that looks
 * at a model's files only, with one thread and no device.
 * Errors: RC_IO, RC_NOMEM, RC_TOO_LARGE; nothing is left open. */
enum rc sup_spawn_worker(struct sup_spawned *out, int exe_fd, int root_fd,
                         const struct sup_conf *conf, bool probe, struct rc_err *err);

/* For a child right after fork: die with the parent, own session (a terminal's
 * Ctrl-C is the launcher's business). False when the parent is gone already. */
bool sup_spawn_tie(pid_t parent);

#endif
