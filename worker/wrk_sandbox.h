/* wrk_sandbox.h - a worker narrows itself before it reads a byte.
 *
 * Layers, in the order they are applied: descriptors (only listed ones open),
 * empty environment check, rlimits, not dumpable + no core, parent-death signal,
 * no new privileges, network namespace (where allowed), Landlock (read-only on
 * the model root, nothing else), seccomp allowlist (kill on violation).
 * Must never be relaxed by anything that arrives on the channel: the mode is an
 * argv word set by the launcher. Tests: tests/worker/test_wrk_sandbox.c,
 * tests/e2e (evil worker build).
 */
#ifndef INFERD_WRK_SANDBOX_H
#define INFERD_WRK_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

#include "rc.h"

enum wrk_sandbox_mode {
    WRK_SANDBOX_STRICT,     /* any layer missing = refuse to start */
    WRK_SANDBOX_PERMISSIVE, /* apply what can be had, report the rest */
    WRK_SANDBOX_OFF,        /* tests and debuggers only */
};

struct wrk_layer {
    const char *name; /* "seccomp", ... */
    bool holds;
    bool optional;    /* strict does not ask for it */
    char detail[192]; /* why it holds or not, and what to do */
};
#define WRK_LAYERS_MAX 16
struct wrk_sandbox_report {
    struct wrk_layer layer[WRK_LAYERS_MAX];
    size_t n;
};

/* channel_fd, root_fd (-1 = none) and stderr stay open. n_threads bounds the
 * number of processes/threads the worker may have: call before the thread pool
 * starts (clone of threads is allowed by seccomp, fork is not).
 * Errors: RC_UNSUPPORTED in strict mode, naming the layer; the report is filled
 * in any case. */
enum rc wrk_sandbox_apply(enum wrk_sandbox_mode mode, int channel_fd, int root_fd,
                          unsigned n_threads, struct wrk_sandbox_report *report,
                          struct rc_err *err);

/* What a worker needs that computes on a device with a driver of its own; lists end with
 * NULL, and a path that does not exist grants nothing. With it, Landlock grants these paths;
 * limits leave locked memory alone and allow 1024 open files; the filter allows ioctl on any
 * descriptor that is open (it cannot tell devices apart: Landlock says which can be opened),
 * and what it does not know is refused with EPERM instead of a kill, because nobody can list
 * what each version of a driver tries. Processes, exec, sockets and executable memory stay
 * closed. */
struct wrk_sandbox_device {
    const char *const *read_only; /* read below these */
    const char *const *nodes;     /* read, write, ioctl */
    const char *rw_dir;           /* files made, replaced and removed in it; NULL = none */
    /* Opens the driver; called after Landlock and before the filter, in every mode. */
    void (*open)(void *user);
    void *user;
};
enum rc wrk_sandbox_apply_device(enum wrk_sandbox_mode mode, int channel_fd, int root_fd,
                                 unsigned n_threads, const struct wrk_sandbox_device *device,
                                 struct wrk_sandbox_report *report, struct rc_err *err);

/* No new threads from now on: killed on violation. Call when the pool stands
 * and wrk_sandbox_apply has run (its no-new-privs is needed). Errors:
 * RC_UNSUPPORTED. */
enum rc wrk_sandbox_seal(struct rc_err *err);
/* The same for a worker with a device: EAGAIN on violation, for a driver to survive. */
enum rc wrk_sandbox_seal_device(struct rc_err *err);

/* "strict" "permissive" "off"; false for another word. */
bool wrk_sandbox_mode_parse(const char *word, enum wrk_sandbox_mode *out);

#endif
