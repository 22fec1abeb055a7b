/* wrk_serve.h - one worker's conversation, from Ready to exit.
 * Page: docs/worker.md. Tests: tests/worker/test_wrk_serve.c
 */
#ifndef INFERD_WRK_SERVE_H
#define INFERD_WRK_SERVE_H

#include "wrk_device.h"
#include "wrk_sandbox.h"

/* What the process ends with; the launcher reports it to the front. */
enum wrk_exit {
    WRK_EXIT_OK = 0,       /* drained, or the channel closed, or a load failed and said so */
    WRK_EXIT_FAULT = 1,    /* out of memory, input/output, weights that vanished */
    WRK_EXIT_USAGE = 2,    /* command line */
    WRK_EXIT_PROTOCOL = 3, /* the front broke the table of legal messages */
    WRK_EXIT_SANDBOX = 4,  /* strict, and a layer cannot be had */
};

struct wrk_serve_opts {
    enum wrk_sandbox_mode sandbox;
    unsigned n_threads; /* >= 1 */
    bool no_spin;       /* as in struct be_opts */
    int channel_fd, root_fd;
    struct wrk_device device;
};

/* Applies the sandbox, then serves until the channel closes, a drain ends or a
 * fault. Returns enum wrk_exit. */
int wrk_serve(const struct wrk_serve_opts *o);

#endif
