/* sup_launcher.h - the tiny parent of all processes.
 *
 * Forks the roles (sup_role.h) before any listener exists, then answers the front's Ctl messages:
 * lists the models directory, opens a model (openat2 RESOLVE_BENEATH |
 * NO_MAGICLINKS), makes the socketpair, forks and execs inferd-worker with an
 * empty environment and only the listed descriptors, reaps, reports deaths.
 * Reads no byte from a peer but the front's Ctl frames, which it distrusts (the
 * front can name models and pids it was given, nothing else). SIGTERM/SIGINT:
 * asks the front to drain (CtlStop), waits the grace, kills. SIGHUP from a process: the
 * files that may change are read again (configuration, keys, credentials); from the kernel, when
 * the terminal went away, it is a SIGTERM.
 * Tests: tests/supervisor/test_sup_launcher.c
 */
#ifndef INFERD_SUP_LAUNCHER_H
#define INFERD_SUP_LAUNCHER_H

#include "rc.h"

struct sup_conf;

/* Descriptors of an exec'd worker: 0 /dev/null, 1 = 2 = the stderr pipe, and */
#define SUP_WORKER_CHANNEL_FD 3
#define SUP_WORKER_ROOT_FD 4
/* argv: inferd-worker --serve --sandbox=MODE --threads=N, and with another backend than the
 * processor its words: --backend=cuda --device=N ... (sup_spawn.c) */

/* Reads the configuration again, as at the start, for a SIGHUP: *out is the caller's. read NULL:
 * there is nothing to read. */
struct sup_conf_source {
    enum rc (*read)(void *user, struct sup_conf *out, struct rc_err *err);
    void *user;
};
/* Runs until shutdown; returns the process's exit status. Called by `serve`
 * with nothing open but the standard descriptors. conf's live options change at a SIGHUP. */
int sup_launcher_main(struct sup_conf *conf, const struct sup_conf_source *source);

#endif
