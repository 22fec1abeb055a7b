/* test_sup_front.c - what the front's sandbox lets through, refuses and kills. Each
 * row runs in a forked child that applies the filter and then tries one thing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "ipc.h"
#include "sup_front_sandbox.h"
#include "sup_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static int pair[2];

/* Exit status of a child: 0 = worked, 10 = refused with an errno. */
static int try_open(void)
{
    return open("/etc/passwd", O_RDONLY) < 0 && errno == EACCES ? 10 : 0;
}
static int try_create(void)
{
    return open("/tmp/inferd-front-test", O_WRONLY | O_CREAT, 0600) < 0 && errno == EACCES ? 10 : 0;
}
static int try_unlink(void)
{
    return unlink("/tmp/inferd-front-test-absent") < 0 && errno == EACCES ? 10 : 0;
}
static int try_inet(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) < 0 ? 10 : 0;
}
static int try_unix(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? 10 : 0;
}
static int try_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "/nowhere"};

    return connect(pair[0], (struct sockaddr *)&a, sizeof(a)) < 0 ? 10 : 0;
}
static int try_exec(void)
{
    char *argv[] = {(char *)"true", NULL}, *envp[] = {NULL};

    execve("/bin/true", argv, envp);
    return 10;
}
static int try_fork(void)
{
    pid_t p = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

    if (p == 0)
        syscall(SYS_exit, 0);
    return p < 0 ? 10 : 0;
}
static int try_ptrace(void)
{
    return ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) < 0 ? 10 : 0;
}
static int try_kill(void)
{
    return kill(getppid(), 0) < 0 ? 10 : 0;
}
static int try_exec_memory(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
               ? 10
               : 0;
}
static int try_mprotect_exec(void)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return mprotect(p, 4096, PROT_READ | PROT_EXEC) != 0 ? 10 : 0;
}
static int try_setuid(void)
{
    return syscall(SYS_setuid, 0) != 0 ? 10 : 0;
}
static int try_io_uring(void)
{
    return syscall(425 /* io_uring_setup */, 8, NULL) < 0 ? 10 : 0;
}
static int try_abort(void)
{
    abort();
}

static void on_timer(uv_timer_t *t)
{
    *(int *)t->data = 1;
    uv_close((uv_handle_t *)t, NULL);
}

/* What serving takes: the loop, frames small and large both ways, a log line. */
static int try_work(void)
{
    static uv_loop_t loop; /* made before the filter, see row_child */
    uv_timer_t t;
    int fired = 0;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Echo e = IPC__ECHO__INIT;
    size_t sizes[] = {10, 300000, 20 << 20};
    struct rc_err err = RC_ERR_INIT;

    if (loop.data == NULL) {
        uv_loop_init(&loop);
        loop.data = &loop;
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        ProtobufCMessage *m = NULL;

        f.body_case = IPC__FRAME__BODY_ECHO;
        f.echo = &e;
        e.data.len = sizes[i];
        e.data.data = calloc(1, sizes[i]);
        if (ipc_send(pair[0], &f.base, NULL, 0, &err) != RC_OK ||
            ipc_recv(pair[1], &ipc__frame__descriptor, &m, NULL, NULL, &err) != RC_OK)
            return 20;
        free(e.data.data);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    uv_timer_init(&loop, &t);
    t.data = &fired;
    uv_timer_start(&t, on_timer, 5, 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    SUP_LOG(SUP_INFO, "sandboxed_work", SUP_I("n", 1));
    return fired ? 0 : 21;
}

enum want { WORKS, REFUSED, KILLED };

static int row_child(int (*fn)(void), const char *mode)
{
    struct rc_err err = RC_ERR_INIT;
    pid_t pid;
    int status;

    fflush(NULL);
    if ((pid = fork()) == 0) {
        sup_log_init(SUP_WARN);
        if (fn == try_work)
            try_work();
        (void)sup_front_limits(mode, 100, NULL);
        if (sup_front_sandbox(mode, &err) != RC_OK)
            _exit(90);
        _exit(fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void the_filter_does_what_the_page_says(void **s)
{
    static const struct {
        const char *sentence;
        int (*fn)(void);
        enum want want;
        bool always; /* also under a sanitizer */
    } rows[] = {
        {"serving works", try_work, WORKS, true},
        {"opening a file is refused", try_open, REFUSED, false},
        {"creating a file is refused", try_create, REFUSED, false},
        {"deleting a file is refused", try_unlink, REFUSED, false},
        {"an INET socket kills", try_inet, KILLED, true},
        {"a Unix socket kills", try_unix, KILLED, true},
        {"connecting kills", try_connect, KILLED, true},
        {"exec kills", try_exec, KILLED, true},
        {"fork kills", try_fork, KILLED, false},
        {"ptrace kills", try_ptrace, KILLED, false},
        {"signalling another process kills", try_kill, KILLED, false},
        {"executable memory kills", try_exec_memory, KILLED, false},
        {"making memory executable kills", try_mprotect_exec, KILLED, false},
        {"setuid kills", try_setuid, KILLED, true},
        {"io_uring kills", try_io_uring, KILLED, true},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int status;

        if (SANITIZED && !rows[i].always)
            continue;
        status = row_child(rows[i].fn, "strict");
        print_message("%s: status 0x%x\n", rows[i].sentence, (unsigned)status);
        if (rows[i].want == KILLED)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
        else
            assert_true(WIFEXITED(status) &&
                        WEXITSTATUS(status) == (rows[i].want == WORKS ? 0 : 10));
    }
}

/* The table above means something only if each thing works without the filter. */
static void without_the_filter_these_things_work(void **s)
{
    static int (*const fns[])(void) = {try_work, try_open,        try_inet,
                                       try_unix, try_exec_memory, try_mprotect_exec};

    (void)s;
    for (size_t i = 0; i < sizeof(fns) / sizeof(fns[0]); i++) {
        int status = row_child(fns[i], "off");

        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void an_abort_still_looks_like_one(void **s)
{
    int status = row_child(try_abort, "strict");

    (void)s;
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void limits_are_in_place(void **s)
{
    pid_t pid;
    int status;

    (void)s;
    fflush(NULL);
    if ((pid = fork()) == 0) {
        struct rlimit r;
        int bad = 0;

        (void)sup_front_limits("strict", 200, NULL);
        getrlimit(RLIMIT_CORE, &r);
        bad |= r.rlim_max != 0;
        bad |= (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) << 1;
        if (!SANITIZED)
            bad |= (prctl(PR_GET_DUMPABLE) != 0) << 2;
        getrlimit(RLIMIT_NOFILE, &r);
        bad |= (r.rlim_cur < 200) << 3;
        bad |= (signal(SIGPIPE, SIG_IGN) != SIG_IGN) << 4;
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_filter_does_what_the_page_says),
        cmocka_unit_test(without_the_filter_these_things_work),
        cmocka_unit_test(an_abort_still_looks_like_one),
        cmocka_unit_test(limits_are_in_place),
    };
    if (ipc_pair(pair, NULL) != RC_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
