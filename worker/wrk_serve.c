/* wrk_serve.c - the table of legal messages and the loop around it.
 *
 * States of a worker: FRESH (only Hello), HELLOD (Load), READY and BUSY (tasks),
 * DRAINING (finishes, takes nothing). A message in a state its row does not name
 * ends the worker: a front that breaks the table cannot be trusted with the rest.
 * Must never block on anything but poll(): sends queue, steps are bounded.
 *
 * Always true: between two steps every waiting frame of the front (up to
 * FRAMES_PER_TURN) has been read, so a cancel takes effect within one step; while
 * answers wait for a slow front nothing steps and nothing is read.
 * Tests: tests/worker/test_wrk_serve.c
 */
#include "wrk_serve.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wrk_chan.h"
#include "wrk_log.h"

#define FRAMES_PER_TURN 64

enum state {
    FRESH = 1,
    HELLOD = 2,
    READY = 4,
    BUSY = 8,
    DRAINING = 16,
};

struct wrk {
    const struct wrk_serve_opts *o;
    struct wrk_chan chan;
    enum state state;
    bool stop; /* flush what waits, then exit with `status` */
    int status;
};

/* ----------------------------------------------------------------- handlers */

static enum rc on_hello(struct wrk *w, const Ipc__Frame *f, struct rc_err *err)
{
    const Ipc__Hello *h = f->hello;

    if (h->version != IPC_VERSION)
        return rc_fail(err, RC_STATE,
                       "the front speaks protocol %u, this worker %u: install "
                       "inferd and inferd-worker of one version",
                       h->version, IPC_VERSION);
    w->state = HELLOD;
    return RC_OK;
}

static enum rc on_load(struct wrk *w, const Ipc__Frame *f, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;

    rc_fail(&why, RC_UNSUPPORTED, "this build has no model family");
    w->stop = true;
    return wrk_chan_error(&w->chan, f->task, &why, err);
}

static enum rc on_echo(struct wrk *w, const Ipc__Frame *f, struct rc_err *err)
{
    Ipc__Frame out = IPC__FRAME__INIT;

    out.task = f->task;
    out.body_case = IPC__FRAME__BODY_ECHOED;
    out.echoed = f->echo;
    return wrk_chan_send(&w->chan, &out, err);
}

static enum rc on_cancel(struct wrk *w, const Ipc__Frame *f, struct rc_err *err)
{
    (void)w;
    (void)f;
    (void)err;
    return RC_OK; /* no task outlives its handler yet */
}

static enum rc on_drain(struct wrk *w, const Ipc__Frame *f, struct rc_err *err)
{
    (void)f;
    (void)err;
    w->state = DRAINING;
    w->stop = true;
    return RC_OK;
}

static const struct wrk_cmd {
    Ipc__Frame__BodyCase body;
    const char *name;
    unsigned while_state;
    enum rc (*run)(struct wrk *w, const Ipc__Frame *f, struct rc_err *err);
} wrk_cmds[] = {
    /* message                      allowed while                      handler */
    {IPC__FRAME__BODY_HELLO, "Hello", FRESH, on_hello},
    {IPC__FRAME__BODY_LOAD, "Load", HELLOD, on_load},
    {IPC__FRAME__BODY_ECHO, "Echo", HELLOD | READY | BUSY, on_echo},
    {IPC__FRAME__BODY_CANCEL, "Cancel", READY | BUSY | DRAINING, on_cancel},
    {IPC__FRAME__BODY_DRAIN, "Drain", HELLOD | READY | BUSY | DRAINING, on_drain},
};

static const char *state_name(enum state s)
{
    return s == FRESH    ? "fresh"
           : s == HELLOD ? "hello'd"
           : s == READY  ? "ready"
           : s == BUSY   ? "busy"
                         : "draining";
}

static enum rc dispatch(struct wrk *w, const Ipc__Frame *f, struct rc_err *err)
{
    for (size_t i = 0; i < sizeof(wrk_cmds) / sizeof(wrk_cmds[0]); i++) {
        const struct wrk_cmd *c = &wrk_cmds[i];

        if (c->body != f->body_case)
            continue;
        if ((c->while_state & w->state) == 0)
            return rc_fail(err, RC_STATE, "message %s is not legal while %s", c->name,
                           state_name(w->state));
        return c->run(w, f, err);
    }
    return rc_fail(err, RC_STATE, "message %d is not for a worker", (int)f->body_case);
}

/* --------------------------------------------------------------------- loop */

/* Reads what waits; RC_AGAIN = nothing more. */
static enum rc drain_channel(struct wrk *w, struct rc_err *err)
{
    for (int i = 0; i < FRAMES_PER_TURN && !w->stop && !wrk_chan_waiting(&w->chan); i++) {
        Ipc__Frame *f = NULL;
        enum rc rc = wrk_chan_recv(&w->chan, &f, err);

        if (rc != RC_OK)
            return rc;
        rc = dispatch(w, f, err);
        ipc__frame__free_unpacked(f, NULL);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc loop(struct wrk *w, struct rc_err *err)
{
    enum rc rc;

    while (!w->stop || wrk_chan_waiting(&w->chan)) {
        bool blocked = wrk_chan_waiting(&w->chan);
        struct pollfd p = {.fd = w->chan.fd, .events = blocked ? POLLOUT : POLLIN};

        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            return rc_fail(err, RC_IO, "poll: %s", strerror(errno));
        if (blocked) {
            if ((rc = wrk_chan_flush(&w->chan, err)) != RC_OK && rc != RC_AGAIN)
                return rc;
            continue;
        }
        if (p.revents != 0 && (rc = drain_channel(w, err)) != RC_OK && rc != RC_AGAIN)
            return rc;
    }
    return RC_OK;
}

static enum rc send_ready(struct wrk *w, const struct wrk_sandbox_report *r, struct rc_err *err)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Ready ready = IPC__READY__INIT;
    Ipc__Layer layers[WRK_LAYERS_MAX], *ptr[WRK_LAYERS_MAX];

    for (size_t i = 0; i < r->n; i++) {
        ipc__layer__init(&layers[i]);
        layers[i].name = (char *)r->layer[i].name;
        layers[i].holds = r->layer[i].holds;
        layers[i].detail = (char *)r->layer[i].detail;
        ptr[i] = &layers[i];
    }
    ready.version = IPC_VERSION;
    ready.pid = (uint32_t)getpid();
    ready.n_sandbox = r->n;
    ready.sandbox = ptr;
    f.body_case = IPC__FRAME__BODY_READY;
    f.ready = &ready;
    return wrk_chan_send(&w->chan, &f, err);
}

/* Maps what ended the loop to an exit status; says why unless it is expected. */
static int ended(struct wrk *w, enum rc rc, const struct rc_err *err)
{
    if (rc == RC_OK || rc == RC_CLOSED)
        return w->status;
    wrk_log("ends: %s: %s", rc_name(rc), err->msg);
    return rc == RC_STATE || rc == RC_FORMAT || rc == RC_TOO_LARGE ? WRK_EXIT_PROTOCOL
                                                                   : WRK_EXIT_FAULT;
}

int wrk_serve(const struct wrk_serve_opts *o)
{
    struct wrk w = {.o = o, .state = FRESH};
    struct wrk_sandbox_report report;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    rc = wrk_sandbox_apply(o->sandbox, o->channel_fd, o->root_fd, o->n_threads, &report, &err);
    if (rc != RC_OK) {
        wrk_log("%s", err.msg);
        return WRK_EXIT_SANDBOX;
    }
    if ((rc = wrk_chan_init(&w.chan, o->channel_fd, &err)) == RC_OK &&
        (rc = send_ready(&w, &report, &err)) == RC_OK)
        rc = loop(&w, &err);
    w.status = ended(&w, rc, &err);
    wrk_chan_deinit(&w.chan);
    return w.status;
}
