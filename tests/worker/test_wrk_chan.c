/* test_wrk_chan.c - frames out of a full socket: none lost, none reordered, no
 * allocation below the start sizes, bounds kept.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "wrk_chan.h"

static enum rc send_echo(struct wrk_chan *c, uint64_t task, size_t n, struct rc_err *err)
{
    static uint8_t data[4 << 20];
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;

    memset(data, (int)task, n);
    e.data.data = data;
    e.data.len = n;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_ECHOED;
    f.echoed = &e;
    return wrk_chan_send(c, &f, err);
}

/* Receives one frame and checks task and content. */
static void expect_echo(int fd, uint64_t task, size_t n)
{
    ProtobufCMessage *m = NULL;
    Ipc__Frame *f;

    assert_int_equal(ipc_recv(fd, &ipc__frame__descriptor, &m, NULL, NULL, NULL), RC_OK);
    f = (Ipc__Frame *)m;
    assert_int_equal(f->task, task);
    assert_int_equal(f->echoed->data.len, n);
    for (size_t i = 0; i < n; i += 1 + n / 7)
        assert_int_equal(f->echoed->data.data[i], (uint8_t)task);
    protobuf_c_message_free_unpacked(m, NULL);
}

static size_t size_of(uint64_t task)
{
    return task % 10 == 3 ? 100000 : task % 10 == 7 ? 0 : task * 97 % 50000;
}

static void a_full_socket_loses_and_reorders_nothing(void **state)
{
    struct wrk_chan c;
    struct rc_err err = RC_ERR_INIT;
    uint64_t got = 0, n = 1500;
    int fds[2];
    enum rc rc;

    (void)state;
    assert_int_equal(ipc_pair(fds, NULL), RC_OK);
    assert_int_equal(wrk_chan_init(&c, fds[0], NULL), RC_OK);
    for (uint64_t t = 1; t <= n; t++)
        assert_int_equal(send_echo(&c, t, size_of(t), &err), RC_OK);
    assert_true(wrk_chan_waiting(&c));
    assert_true(c.growths > 0);
    do { /* the reader takes one, the writer may go on: as between loop and front */
        got++;
        expect_echo(fds[1], got, size_of(got));
        rc = wrk_chan_flush(&c, &err);
        assert_true(rc == RC_OK || rc == RC_AGAIN);
    } while (got < n);
    assert_false(wrk_chan_waiting(&c));
    wrk_chan_deinit(&c);
    close(fds[0]);
    close(fds[1]);
}

static void small_frames_never_grow_a_buffer(void **state)
{
    struct wrk_chan c;
    int fds[2];

    (void)state;
    assert_int_equal(ipc_pair(fds, NULL), RC_OK);
    assert_int_equal(wrk_chan_init(&c, fds[0], NULL), RC_OK);
    for (uint64_t t = 1; t <= 1000; t++) {
        assert_int_equal(send_echo(&c, t, t % 900, NULL), RC_OK);
        expect_echo(fds[1], t, t % 900);
    }
    assert_int_equal(c.growths, 0);
    wrk_chan_deinit(&c);
    close(fds[0]);
    close(fds[1]);
}

static void a_gone_reader_is_told(void **state)
{
    struct wrk_chan c;
    struct rc_err err = RC_ERR_INIT;
    int fds[2];
    Ipc__Frame *f = NULL;

    (void)state;
    assert_int_equal(ipc_pair(fds, NULL), RC_OK);
    assert_int_equal(wrk_chan_init(&c, fds[0], NULL), RC_OK);
    assert_int_equal(wrk_chan_recv(&c, &f, &err), RC_AGAIN);
    close(fds[1]);
    assert_int_equal(send_echo(&c, 1, 10, &err), RC_CLOSED);
    assert_int_equal(wrk_chan_recv(&c, &f, &err), RC_CLOSED);
    wrk_chan_deinit(&c);
    wrk_chan_deinit(&c); /* harmless */
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_socket_loses_and_reorders_nothing),
        cmocka_unit_test(small_frames_never_grow_a_buffer),
        cmocka_unit_test(a_gone_reader_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
