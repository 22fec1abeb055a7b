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

/* No new threads from now on: killed on violation. Call when the pool stands
 * and wrk_sandbox_apply has run (its no-new-privs is needed). Errors:
 * RC_UNSUPPORTED. */
enum rc wrk_sandbox_seal(struct rc_err *err);

/* "strict" "permissive" "off"; false for another word. */
bool wrk_sandbox_mode_parse(const char *word, enum wrk_sandbox_mode *out);

#endif
