/* wrk_chan.h - the worker's end of the channel: frames in, frames out.
 *
 * Sending never blocks: what the socket does not take waits in a queue, and the
 * loop neither steps nor reads while anything waits, so the queue is bounded by
 * the output of one step or one command. One pack buffer and one queue buffer
 * are made at start and grow only beyond it; growths are counted (hot path: 0).
 * Tests: tests/worker/test_wrk_chan.c
 */
#ifndef INFERD_WRK_CHAN_H
#define INFERD_WRK_CHAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc.h"
#include "rc.h"

struct wrk_chan {
    int fd;
    uint8_t *pack, *queue;
    size_t pack_cap, queue_cap;
    size_t q_from, q_to; /* bytes [q_from, q_to) wait: {size_t n, body}... */
    uint64_t growths;
};

/* Makes fd non-blocking; fd stays the caller's. Errors: RC_NOMEM, RC_IO. */
enum rc wrk_chan_init(struct wrk_chan *c, int fd, struct rc_err *err);
void wrk_chan_deinit(struct wrk_chan *c);

/* Sends or queues. Errors: RC_CLOSED, RC_TOO_LARGE (nothing sent; the caller may
 * answer something smaller), RC_NOMEM, RC_IO. */
enum rc wrk_chan_send(struct wrk_chan *c, const Ipc__Frame *f, struct rc_err *err);
/* Tries to empty the queue: RC_OK empty, RC_AGAIN still waiting, else as send. */
enum rc wrk_chan_flush(struct wrk_chan *c, struct rc_err *err);
static inline bool wrk_chan_waiting(const struct wrk_chan *c)
{
    return c->q_to > c->q_from;
}

/* One frame from the front; RC_AGAIN when there is none. Free with
 * ipc__frame__free_unpacked(f, NULL). Errors as ipc_recv. */
enum rc wrk_chan_recv(struct wrk_chan *c, Ipc__Frame **out, struct rc_err *err);

/* Sends why as the Error frame that ends task (0 = the worker itself). */
enum rc wrk_chan_error(struct wrk_chan *c, uint64_t task, const struct rc_err *why,
                       struct rc_err *err);

#endif
