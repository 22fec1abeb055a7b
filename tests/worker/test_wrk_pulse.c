/* test_wrk_pulse.c - beats come while there is work, whatever the working thread does, and
 * tell whether it goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "be.h"
#include "ipc.h"
#include "wrk_pulse.h"

struct rig {
    int fd[2]; /* the front's, the worker's */
    struct wrk_pulse *p;
};

static struct rig start(void)
{
    struct rig r = {.p = NULL};

    assert_int_equal(ipc_pair(r.fd, NULL), RC_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fcntl(r.fd[i], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(wrk_pulse_start(&r.p, r.fd[1], NULL), RC_OK);
    return r;
}

static void end(struct rig *r)
{
    wrk_pulse_stop(&r->p);
    assert_null(r->p);
    wrk_pulse_stop(&r->p); /* accepts NULL */
    close(r->fd[0]);
    close(r->fd[1]);
}

/* The next beat's number; -1 when none comes in time. */
static int64_t beat(struct rig *r, int within_ms)
{
    struct pollfd p = {.fd = r->fd[0], .events = POLLIN};
    ProtobufCMessage *m = NULL;
    int64_t moved;

    if (poll(&p, 1, within_ms) != 1)
        return -1;
    assert_int_equal(ipc_recv(r->fd[0], &ipc__frame__descriptor, &m, NULL, NULL, NULL), RC_OK);
    assert_int_equal(((Ipc__Frame *)m)->body_case, IPC__FRAME__BODY_BEAT);
    assert_int_equal(((Ipc__Frame *)m)->task, 0);
    moved = (int64_t)((Ipc__Frame *)m)->beat->moved;
    protobuf_c_message_free_unpacked(m, NULL);
    return moved;
}

static void beats_come_only_while_there_is_work(void **state)
{
    struct rig r = start();
    int64_t a, b;

    (void)state;
    assert_int_equal(beat(&r, 1500), -1);
    wrk_pulse_work(r.p, true);
    wrk_pulse_work(r.p, true);
    a = beat(&r, 10000);
    assert_true(a >= 0);
    b = beat(&r, 10000); /* this thread does nothing at all meanwhile */
    assert_int_equal(a, b);
    wrk_pulse_moved(r.p);
    assert_int_equal(beat(&r, 10000), a + 1);
    wrk_pulse_work(r.p, false);
    assert_int_equal(beat(&r, 1500), -1);
    wrk_pulse_work(r.p, true); /* and again */
    assert_int_equal(beat(&r, 10000), a + 1);
    end(&r);
}

static void operations_of_the_backend_count(void **state)
{
    const struct be_opts o = {.backend = "cpu", .n_threads = 1};
    struct rig r = start();
    struct be_tensor *t = NULL;
    struct be_ctx *be = NULL;
    float x[4] = {1, 2, 3, 4};
    int64_t a;

    (void)state;
    assert_int_equal(be_ctx_new(&be, &o, NULL), RC_OK);
    assert_int_equal(be_tensor_new(be, 1, 4, &t, NULL), RC_OK);
    wrk_pulse_watch(r.p, be);
    wrk_pulse_work(r.p, true);
    a = beat(&r, 10000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(be_tensor_write(be, t, 0, 1, x, NULL), RC_OK);
    assert_int_equal(beat(&r, 10000), a + 1000);
    wrk_pulse_watch(r.p, NULL);
    be_tensor_free(be, &t);
    be_ctx_free(&be);
    assert_int_equal(beat(&r, 10000), 0); /* none counts any more */
    end(&r);
}

static void a_full_or_closed_channel_is_no_trouble(void **state)
{
    struct rig r = start();
    char junk[512] = {0};

    (void)state;
    while (write(r.fd[1], junk, sizeof(junk)) > 0)
        ;
    wrk_pulse_work(r.p, true);
    usleep(1300 * 1000);
    while (read(r.fd[0], junk, sizeof(junk)) > 0)
        ;
    assert_true(beat(&r, 10000) >= 0);
    close(r.fd[0]);
    r.fd[0] = -1;
    usleep(1300 * 1000); /* SIGPIPE would end this program */
    end(&r);
}

static void without_a_pulse_nothing_happens(void **state)
{
    (void)state;
    wrk_pulse_work(NULL, true);
    wrk_pulse_moved(NULL);
    wrk_pulse_watch(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beats_come_only_while_there_is_work),
        cmocka_unit_test(operations_of_the_backend_count),
        cmocka_unit_test(a_full_or_closed_channel_is_no_trouble),
        cmocka_unit_test(without_a_pulse_nothing_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
