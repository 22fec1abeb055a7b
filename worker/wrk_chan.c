/* wrk_chan.c - packing without allocating, queueing without blocking.
 *
 * Knows frames and one socket; knows nothing of tasks. Must never drop or
 * reorder a frame. Always true: if the queue is not empty, new frames go behind
 * it. Tests: tests/worker/test_wrk_chan.c
 */
#include "wrk_chan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define START_BYTES (256u << 10)
#define QUEUE_MAX (2 * IPC_BODY_MAX) /* never met: see wrk_chan.h */

enum rc wrk_chan_init(struct wrk_chan *c, int fd, struct rc_err *err)
{
    int flags = fcntl(fd, F_GETFL);

    memset(c, 0, sizeof(*c));
    c->fd = fd;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return rc_fail(err, RC_IO, "channel descriptor %d: %s", fd, strerror(errno));
    c->pack = malloc(START_BYTES);
    c->queue = malloc(START_BYTES);
    if (c->pack == NULL || c->queue == NULL) {
        wrk_chan_deinit(c);
        return rc_fail(err, RC_NOMEM, "channel buffers");
    }
    c->pack_cap = c->queue_cap = START_BYTES;
    return RC_OK;
}

void wrk_chan_deinit(struct wrk_chan *c)
{
    free(c->pack);
    free(c->queue);
    c->pack = c->queue = NULL;
    c->pack_cap = c->queue_cap = c->q_from = c->q_to = 0;
}

static enum rc grow(struct wrk_chan *c, uint8_t **buf, size_t *cap, size_t need, struct rc_err *err)
{
    size_t n = *cap;
    uint8_t *p;

    while (n < need)
        n *= 2;
    if (n == *cap)
        return RC_OK;
    if ((p = realloc(*buf, n)) == NULL)
        return rc_fail(err, RC_NOMEM, "an answer of %zu bytes", need);
    *buf = p;
    *cap = n;
    c->growths++;
    return RC_OK;
}

static enum rc enqueue(struct wrk_chan *c, size_t n, struct rc_err *err)
{
    size_t need = c->q_to + sizeof(n) + n;
    enum rc rc;

    if (need > QUEUE_MAX)
        return rc_fail(err, RC_NOMEM, "the front reads no answers: %zu bytes wait", c->q_to);
    if ((rc = grow(c, &c->queue, &c->queue_cap, need, err)) != RC_OK)
        return rc;
    memcpy(c->queue + c->q_to, &n, sizeof(n));
    memcpy(c->queue + c->q_to + sizeof(n), c->pack, n);
    c->q_to = need;
    return RC_OK;
}

enum rc wrk_chan_send(struct wrk_chan *c, const Ipc__Frame *f, struct rc_err *err)
{
    size_t n = ipc__frame__get_packed_size(f);
    enum rc rc;

    if (n > IPC_BODY_MAX)
        return rc_fail(err, RC_TOO_LARGE, "an answer of %zu bytes, a frame holds %llu", n,
                       (unsigned long long)IPC_BODY_MAX);
    if ((rc = grow(c, &c->pack, &c->pack_cap, n, err)) != RC_OK)
        return rc;
    ipc__frame__pack(f, c->pack);
    if (wrk_chan_waiting(c))
        return enqueue(c, n, err);
    rc = ipc_send_packed(c->fd, c->pack, n, NULL, 0, err);
    return rc == RC_AGAIN ? enqueue(c, n, err) : rc;
}

enum rc wrk_chan_flush(struct wrk_chan *c, struct rc_err *err)
{
    enum rc rc;

    while (wrk_chan_waiting(c)) {
        size_t n;

        memcpy(&n, c->queue + c->q_from, sizeof(n));
        rc = ipc_send_packed(c->fd, c->queue + c->q_from + sizeof(n), n, NULL, 0, err);
        if (rc != RC_OK)
            return rc;
        c->q_from += sizeof(n) + n;
    }
    c->q_from = c->q_to = 0;
    return RC_OK;
}

enum rc wrk_chan_recv(struct wrk_chan *c, Ipc__Frame **out, struct rc_err *err)
{
    ProtobufCMessage *m = NULL;
    enum rc rc = ipc_recv(c->fd, &ipc__frame__descriptor, &m, NULL, NULL, err);

    if (rc == RC_OK)
        *out = (Ipc__Frame *)m;
    return rc;
}

enum rc wrk_chan_error(struct wrk_chan *c, uint64_t task, const struct rc_err *why,
                       struct rc_err *err)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Error e;

    ipc_error_from(&e, why);
    f.task = task;
    f.body_case = IPC__FRAME__BODY_ERROR;
    f.error = &e;
    return wrk_chan_send(c, &f, err);
}
