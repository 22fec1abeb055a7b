/* sup_child.h - a forked process for one errand on the network.
 *
 * The child keeps its channel and the descriptors it is given, nothing else; it narrows itself
 * (sup_fetch_sandbox.h) before it reads a byte from anywhere, says which walls hold, later one
 * FetchDone, and is gone. It
 * dies with its parent. Tests: tests/e2e/pull.py, tests/e2e/remote_media.py
 */
#ifndef INFERD_SUP_CHILD_H
#define INFERD_SUP_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "fetch.pb-c.h"
#include "rc.h"
#include "sup_fetch_sandbox.h"

#define SUP_CHILD_CHANNEL 3
#define SUP_CHILD_FIRST 4 /* of the descriptors it is given, in their order */
#define SUP_CHILD_FDS 2

struct sup_child {
    pid_t pid; /* 0 = none */
    int fd;    /* our end of its channel; blocking */
};

/* main runs in the child and returns after it has said its word. Errors: RC_IO. */
enum rc sup_child_start(struct sup_child *c, void (*main)(void *user), void *user, const int *fds,
                        size_t n_fds, struct rc_err *err);
/* Kills it when it still lives, reaps it, closes the channel; its status as of waitpid. */
int sup_child_end(struct sup_child *c);

/* In the child: curl, then the sandbox (sup_fetch_sandbox.h), then its first word: FetchWalls. */
enum rc sup_child_narrow(const char *mode, enum sup_fetch_errand errand, int dir_fd,
                         const char *read_path, struct rc_err *err);
/* The words of FetchWalls; they borrow those of t. */
void sup_child_walls(Ipc__FetchWalls *out, const struct sup_walls_told *t);
/* In the child: its last word; fd: beside it, -1 = none. */
void sup_child_say(Ipc__FetchDone *d, enum rc rc, const struct rc_err *err, int fd);
/* In the parent: that word as a status; err has the child's message, which is foreign. */
enum rc sup_child_said(const Ipc__FetchDone *d, struct rc_err *err);

#endif
