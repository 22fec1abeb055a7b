/* test_wrk_serve.c - the real worker's conversation: legal messages in each
 * state, the null task, drain, closed channel, slow front, bad command lines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/proc.h"
#include "wrk_serve.h"

#define EXE TEST_BUILD "/inferd-worker"

static struct proc start(bool mute)
{
    struct proc p;
    Ipc__Frame *f;

    assert_true(proc_start(&p, EXE, "strict", TEST_SOURCE "/proto", mute));
    f = proc_want(&p, IPC__FRAME__BODY_READY);
    assert_non_null(f);
    assert_int_equal(f->ready->version, IPC_VERSION);
    assert_int_equal(f->ready->pid, p.pid);
    assert_true(f->ready->n_sandbox >= 10);
    ipc__frame__free_unpacked(f, NULL);
    return p;
}

static void send_echo(struct proc *p, uint64_t task, const char *data, size_t n)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;

    e.data.data = (uint8_t *)data;
    e.data.len = n;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_ECHO;
    f.echo = &e;
    assert_true(proc_send(p, &f));
}

static void echo_comes_back_inline_and_as_memfd(void **state)
{
    static char big[3 << 20];
    struct proc p = start(false);
    size_t sizes[] = {0, 1, 1000, IPC_INLINE_MAX - 64, IPC_INLINE_MAX, sizeof(big)};

    (void)state;
    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (char)(i * 31 >> 3);
    assert_true(proc_hello(&p, NULL));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        Ipc__Frame *f;

        send_echo(&p, 7 + i, big, sizes[i]);
        f = proc_want(&p, IPC__FRAME__BODY_ECHOED);
        assert_non_null(f);
        assert_int_equal(f->task, 7 + i);
        assert_int_equal(f->echoed->data.len, sizes[i]);
        if (sizes[i] > 0)
            assert_memory_equal(f->echoed->data.data, big, sizes[i]);
        ipc__frame__free_unpacked(f, NULL);
    }
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_DRAIN));
    assert_int_equal(proc_wait(&p), 0);
}

static void a_closed_channel_ends_the_worker(void **state)
{
    struct proc p = start(false);

    (void)state;
    assert_int_equal(proc_end(&p), 0);
}

/* What the front may not say, and when. */
static void illegal_messages_end_the_worker(void **state)
{
    static const struct {
        const char *name;
        bool hello;
        Ipc__Frame__BodyCase body;
    } cases[] = {
        {"load before hello", false, IPC__FRAME__BODY_LOAD},
        {"drain before hello", false, IPC__FRAME__BODY_DRAIN},
        {"cancel before load", true, IPC__FRAME__BODY_CANCEL},
        {"a cache's budget before load", true, IPC__FRAME__BODY_CACHE_BUDGET},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct proc p = start(true);
        int status;

        if (cases[i].hello)
            assert_true(proc_hello(&p, NULL));
        assert_true(proc_send_empty(&p, 0, cases[i].body));
        status = proc_wait(&p);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != WRK_EXIT_PROTOCOL)
            fail_msg("%s: status 0x%x", cases[i].name, status);
    }
}

static void second_hello_wrong_version_and_worker_words_end_it(void **state)
{
    struct proc p = start(true);
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Hello h = IPC__HELLO__INIT;
    Ipc__Stats s = IPC__STATS__INIT;

    (void)state;
    assert_true(proc_hello(&p, NULL));
    assert_true(proc_hello(&p, NULL));
    assert_int_equal(WEXITSTATUS(proc_wait(&p)), WRK_EXIT_PROTOCOL);

    p = start(true);
    h.version = IPC_VERSION + 1;
    f.body_case = IPC__FRAME__BODY_HELLO;
    f.hello = &h;
    assert_true(proc_send(&p, &f));
    assert_int_equal(WEXITSTATUS(proc_wait(&p)), WRK_EXIT_PROTOCOL);

    p = start(true);
    f.body_case = IPC__FRAME__BODY_STATS;
    f.stats = &s;
    assert_true(proc_send(&p, &f));
    assert_int_equal(WEXITSTATUS(proc_wait(&p)), WRK_EXIT_PROTOCOL);
}

static void garbage_on_the_channel_ends_the_worker(void **state)
{
    struct proc p = start(true);

    (void)state;
    assert_int_equal(send(p.fd, "not a frame", 11, MSG_NOSIGNAL), 11);
    assert_int_equal(WEXITSTATUS(proc_wait(&p)), WRK_EXIT_PROTOCOL);
}

/* The front sends much and reads nothing: answers must neither be lost nor
 * reordered, and the worker must not grow by what it has not read. */
static void a_front_that_does_not_read_loses_nothing(void **state)
{
    static char data[32 << 10];
    struct proc p = start(false);
    const uint64_t n = 400;
    uint64_t sent = 0, got = 0;

    (void)state;
    assert_true(proc_hello(&p, NULL));
    fcntl(p.fd, F_SETFL, fcntl(p.fd, F_GETFL) | O_NONBLOCK);
    while (got < n) {
        struct pollfd pfd = {.fd = p.fd, .events = POLLIN};
        Ipc__Frame f = IPC__FRAME__INIT;
        Ipc__Echo e = IPC__ECHO__INIT;
        ProtobufCMessage *m = NULL;

        e.data.data = (uint8_t *)data;
        e.data.len = sizeof(data);
        f.body_case = IPC__FRAME__BODY_ECHO;
        f.echo = &e;
        while (sent < n) { /* until the worker pushes back */
            f.task = sent + 1;
            if (ipc_send(p.fd, (ProtobufCMessage *)&f, NULL, 0, NULL) != RC_OK)
                break;
            sent++;
        }
        assert_true(poll(&pfd, 1, 120000) > 0);
        assert_int_equal(ipc_recv(p.fd, &ipc__frame__descriptor, &m, NULL, NULL, NULL), RC_OK);
        assert_int_equal(((Ipc__Frame *)m)->task, ++got);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    assert_int_equal(proc_end(&p), 0);
}

/* The device is the command line's: a front that believes in another is told so. */
static void a_front_that_asks_for_another_backend_is_told(void **state)
{
    struct proc p = start(true);
    Ipc__Frame f = IPC__FRAME__INIT, *a;
    Ipc__Hello h = IPC__HELLO__INIT;

    (void)state;
    h.version = IPC_VERSION;
    h.backend = (char *)"cuda";
    f.body_case = IPC__FRAME__BODY_HELLO;
    f.hello = &h;
    assert_true(proc_send(&p, &f));
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_LOAD));
    assert_non_null(a = proc_want(&p, IPC__FRAME__BODY_ERROR));
    assert_int_equal(a->error->code, RC_INVALID);
    assert_string_equal(a->error->what, "backend");
    ipc__frame__free_unpacked(a, NULL);
    assert_int_equal(proc_wait(&p), 0); /* it said why: status 0 */
}

static int run_with(const char *a, const char *b)
{
    pid_t pid = fork();
    int status = -1;

    if (pid == 0) {
        int null_fd = open("/dev/null", O_RDWR);
        dup2(null_fd, 1);
        dup2(null_fd, 2);
        execl(EXE, EXE, a, b, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void command_lines(void **state)
{
    (void)state;
    assert_int_equal(run_with("--version", NULL), 0);
    assert_int_equal(run_with("--help", NULL), 0);
    assert_int_equal(run_with(NULL, NULL), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--nonsense", NULL), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--version", "x"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--serve", "--sandbox=maybe"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--serve", "--threads=2x"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--serve", "--threads=-1"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--serve", "--backend=metal"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("--serve", "--jit=on"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("verify-kernels", "--arch=x"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("verify-kernels", "--backend=cpu"), WRK_EXIT_USAGE);
    assert_int_equal(run_with("verify-kernels", "--cuda-library=/not/there.so"), 1);
    assert_int_equal(run_with("--doctor", "--sandbox=off"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echo_comes_back_inline_and_as_memfd),
        cmocka_unit_test(a_closed_channel_ends_the_worker),
        cmocka_unit_test(illegal_messages_end_the_worker),
        cmocka_unit_test(a_front_that_asks_for_another_backend_is_told),
        cmocka_unit_test(second_hello_wrong_version_and_worker_words_end_it),
        cmocka_unit_test(garbage_on_the_channel_ends_the_worker),
        cmocka_unit_test(a_front_that_does_not_read_loses_nothing),
        cmocka_unit_test(command_lines),
    };

    if (access(EXE, X_OK) != 0) {
        printf("skipped: %s is not built\n", EXE);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
