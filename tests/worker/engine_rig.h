/* engine_rig.h - an engine at one end of a channel, the test at the other: what the tests of
 * the engine share. Include after fake_mdl.h.
 */
#ifndef TEST_WORKER_ENGINE_RIG_H
#define TEST_WORKER_ENGINE_RIG_H

#include <poll.h>

#include "ipc.h"
#include "wrk_engine.h"

/* Makes the channel; returns the test's end. */
static inline int engine_channel(struct wrk_chan *chan)
{
    int fds[2];

    assert_int_equal(ipc_pair(fds, NULL), RC_OK);
    assert_int_equal(wrk_chan_init(chan, fds[0], NULL), RC_OK);
    return fds[1];
}

static inline void engine_read(int fd, void (*on_frame)(void *, const Ipc__Frame *), void *user)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    while (poll(&p, 1, 0) > 0) {
        ProtobufCMessage *msg = NULL;

        assert_int_equal(ipc_recv(fd, &ipc__frame__descriptor, &msg, NULL, NULL, NULL), RC_OK);
        on_frame(user, (const Ipc__Frame *)msg);
        protobuf_c_message_free_unpacked(msg, NULL);
    }
}

/* One step, and all that it sent. */
static inline void engine_step(struct wrk_engine *e, struct wrk_chan *chan, int fd,
                               void (*on_frame)(void *, const Ipc__Frame *), void *user)
{
    assert_int_equal(wrk_engine_step(e, NULL), RC_OK);
    do
        engine_read(fd, on_frame, user);
    while (wrk_chan_flush(chan, NULL) == RC_AGAIN);
    engine_read(fd, on_frame, user);
}

/* Frames are packed and unpacked, as they would be: the engine owns its copy. */
static inline enum rc engine_submit(struct wrk_engine *e, const Ipc__Frame *f)
{
    size_t n = ipc__frame__get_packed_size(f);
    uint8_t *buf = malloc(n + 1);
    Ipc__Frame *copy;

    ipc__frame__pack(f, buf);
    copy = ipc__frame__unpack(NULL, n, buf);
    free(buf);
    assert_non_null(copy);
    return wrk_engine_submit(e, copy, NULL);
}

#endif
