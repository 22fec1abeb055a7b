/* test_wrk_sandbox.c - every attempt of the evil worker fails as docs/sandbox.md
 * says, and what it attempted comes within reach when its layer is left out.
 *
 * A row that only failed would also pass with the attempt broken; so each has a
 * second run without the layers that stop it, with a different outcome.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "wrk_sandbox_impl.h"

#define EXE TEST_BUILD "/tests/evil-worker"
#define L(x) (1u << WRK_SBX_##x)
#define KILLED (-SIGSYS)
#define ERR(e) (100 + (e))

/* bits of the evil worker's mask that give it a device, and a kernel cache with it */
#define DEVICE (1u << 31)
#define CACHE (DEVICE | 1u << 30)

static char dir[64], file[96], cache[64], sock_name[64];
static bool root_user, have_netns;

/* Exit status of the attempt, or minus the signal. */
static int run(const char *attempt, const char *root, uint32_t skip)
{
    char mask[16];
    int status = 0;
    pid_t pid;

    snprintf(mask, sizeof(mask), "%u", skip);
    if ((pid = fork()) == 0) {
        int null_fd = open("/dev/null", O_RDWR);

        dup2(null_fd, 2);
        dup2(null_fd, 77);
        setenv("EVIL_SECRET", "hunter2", 1);
        setenv("EVIL_SOCK", sock_name, 1);
        setenv("EVIL_CACHE", cache, 1);
        setenv("EVIL_MEDIA", TEST_SOURCE "/tests/worker/media", 1);
        execl(EXE, EXE, attempt, root, mask, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void make_root(void)
{
    int fd;

    snprintf(file, sizeof(file), "%s/inside.txt", dir);
    if ((fd = open(file, O_CREAT | O_WRONLY | O_TRUNC, 0600)) >= 0) {
        dprintf(fd, "weights");
        close(fd);
    }
}

/* full: with all layers. Then the layers in `without` are left out. */
static const struct row {
    const char *attempt;
    int full;
    uint32_t without;
    int then;
} rows[] = {
    /* files */
    {"open_outside", ERR(EACCES), L(LANDLOCK), 0},
    {"open_dotdot", ERR(EACCES), L(LANDLOCK), 0},
    {"open2_outside", ERR(EACCES), L(LANDLOCK), 0},
    {"self_mem", ERR(EACCES), L(LANDLOCK) | L(DUMP) | L(CAPS), 0},
    {"write_model", KILLED, L(SECCOMP), ERR(EACCES)},
    {"write_model", KILLED, L(SECCOMP) | L(LANDLOCK), 0},
    {"create_in_model", KILLED, L(SECCOMP), ERR(EACCES)},
    {"create_in_model", KILLED, L(SECCOMP) | L(LANDLOCK), 0},
    {"create2_in_model", ERR(EACCES), L(LANDLOCK), 0},
    {"unlink_in_model", KILLED, L(SECCOMP), ERR(EACCES)},
    {"unlink_in_model", KILLED, L(SECCOMP) | L(LANDLOCK), 0},
    /* network and other processes */
    {"inet_socket", KILLED, L(SECCOMP), 0},
    {"tcp_connect", KILLED, L(SECCOMP), ERR(EACCES)},
    {"tcp_connect", KILLED, L(SECCOMP) | L(LANDLOCK) | L(NETNS), ERR(ECONNREFUSED)},
    {"abstract_socket", KILLED, L(SECCOMP) | L(LANDLOCK) | L(NETNS), 0},
    {"ptrace_parent", KILLED, L(SECCOMP), ERR(EPERM)},
    {"kill_parent", KILLED, L(SECCOMP) | L(LANDLOCK), 0},
    {"pin_parent", KILLED, L(SECCOMP) | L(CAPS), 0},
    /* code and processes */
    {"exec_sh", KILLED, L(SECCOMP), ERR(EACCES)},
    {"exec_sh", KILLED, L(SECCOMP) | L(LANDLOCK), 0},
    {"fork_bomb", KILLED, L(SECCOMP), 0},
    {"vfork_once", KILLED, L(SECCOMP), 0},
    {"map_exec", KILLED, L(SECCOMP), 0},
    {"protect_exec", KILLED, L(SECCOMP), 0},
    {"memfd_exec", KILLED, L(SECCOMP), 0},
    {"new_thread_after_seal", KILLED, L(SECCOMP), KILLED}, /* the seal is a filter of its own */
    /* attributes */
    {"make_dumpable", KILLED, L(SECCOMP), 0},
    {"is_dumpable", KILLED, L(SECCOMP), ERR(EPERM)},
    {"is_dumpable", KILLED, L(SECCOMP) | L(DUMP), 0},
    {"outlives_parent", KILLED, L(SECCOMP), ERR(EPERM)},
    {"outlives_parent", KILLED, L(SECCOMP) | L(PARENT), 0},
    {"gains_privs", KILLED, L(SECCOMP) | L(LANDLOCK), ERR(EPERM)},
    {"gains_privs", KILLED, L(SECCOMP) | L(LANDLOCK) | L(NNP), 0},
    {"has_secret_env", ERR(ENOENT), L(ENV), 0},
    {"has_stray_fd", ERR(EBADF), L(FDS), 0},
    {"big_memfd", ERR(EFBIG), L(LIMITS), 0},
    {"early_thread", 1, L(THREAD), 0},
    /* what work needs goes on working */
    {"open_inside", 0, L(LANDLOCK), 0},
    {"new_thread", 0, L(SECCOMP), 0},
    {"honest_work", 0, L(SECCOMP), 0},
    {"decodes_media", 0, L(SECCOMP), 0},
};

static void check(const char *attempt, const char *root, uint32_t skip, int want)
{
    int got = run(attempt, root, skip);

    if (got != want)
        fail_msg("%s on %s without 0x%x: %d, expected %d", attempt, root == dir ? "dir" : "file",
                 skip, got, want);
}

static void each_attempt_fails_and_its_layer_is_why(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
#if defined(__SANITIZE_THREAD__)
        if (strcmp(rows[i].attempt, "early_thread") == 0)
            continue; /* two threads are allowed there: one is the runtime's */
#endif
        make_root();
        check(rows[i].attempt, dir, 0, rows[i].full);
        check(rows[i].attempt, dir, rows[i].without, rows[i].then);
    }
}

static void a_file_as_root_leaves_nothing_to_open(void **state)
{
    (void)state;
    make_root();
    check("open_outside", file, 0, ERR(EACCES));
    check("open_outside", file, L(LANDLOCK), ERR(EACCES)); /* seccomp alone */
    check("open_outside", file, L(SECCOMP), ERR(EACCES));  /* Landlock alone */
    check("open_outside", file, L(LANDLOCK) | L(SECCOMP), 0);
    check("open2_outside", file, 0, ERR(EACCES));
    check("create_in_model", file, 0, KILLED);
    check("honest_work", file, 0, 0);
    check("decodes_media", file, 0, 0); /* nothing is opened for it */
}

/* With a device a worker may do what a driver needs, and what a sandbox is for stays shut.
 * What the filter does not know is refused there, not killed. */
static void a_device_opens_what_a_driver_needs_and_no_more(void **state)
{
    static const struct {
        const char *attempt;
        uint32_t with;
        int want;
    } table[] = {
        {"was_opened", DEVICE, 0},
        {"was_opened", 0, 1},
        {"uses_device", DEVICE, ERR(ENOTTY)}, /* the call arrived */
        {"uses_device", 0, KILLED},
        {"other_device", DEVICE, ERR(EACCES)},
        {"other_device", DEVICE | L(LANDLOCK), 0},
        {"keeps_kernels", CACHE, 0},
        {"keeps_kernels", DEVICE, ERR(EACCES)},
        {"keeps_kernels", DEVICE | L(LANDLOCK), ERR(EPERM)}, /* the filter alone */
        {"folder_in_cache", CACHE, ERR(EPERM)},
        {"folder_in_cache", CACHE | L(SECCOMP), ERR(EACCES)},
        {"excl_in_model", CACHE, ERR(EACCES)},
        {"excl_in_model", DEVICE, ERR(EPERM)},
        {"excl_in_model", 0, KILLED},
        {"open_outside", CACHE, ERR(EACCES)},
        {"open2_outside", CACHE, ERR(EACCES)},
        {"write_model", CACHE, ERR(EACCES)},
        {"create_in_model", CACHE, ERR(EPERM)},
        {"create2_in_model", CACHE, ERR(EACCES)},
        {"unlink_in_model", CACHE, ERR(EACCES)},
        {"unlink_in_model", DEVICE, ERR(EPERM)},
        {"inet_socket", DEVICE, ERR(EPERM)},
        {"abstract_socket", DEVICE, ERR(EPERM)},
        {"kill_parent", DEVICE, ERR(EPERM)},
        {"exec_sh", DEVICE, KILLED},
        {"fork_bomb", DEVICE, KILLED},
        {"vfork_once", DEVICE, KILLED},
        {"ptrace_parent", DEVICE, KILLED},
        {"uses_io_uring", DEVICE, KILLED},
        {"new_user_ns", DEVICE, KILLED},
        {"map_exec", DEVICE, ERR(EPERM)},
        {"protect_exec", DEVICE, ERR(EPERM)},
        {"memfd_exec", DEVICE, ERR(EPERM)},
        {"make_dumpable", DEVICE, ERR(EPERM)},
        {"has_secret_env", DEVICE, ERR(ENOENT)},
        {"has_stray_fd", DEVICE, ERR(EBADF)},
        {"big_memfd", DEVICE, ERR(EFBIG)},
        {"open_inside", DEVICE, 0},
        {"new_thread", DEVICE, 0},
        {"new_thread_after_device_seal", DEVICE, ERR(EAGAIN)},
        {"honest_work", CACHE, 0},
    };
    int fd;

    (void)state;
    if ((fd = open("/dev/full", O_RDWR)) < 0)
        skip();
    close(fd);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        make_root();
        check(table[i].attempt, dir, table[i].with, table[i].want);
    }
    check("open_outside", file, DEVICE, ERR(EACCES));
    check("uses_device", file, DEVICE, ERR(ENOTTY));
    check("keeps_kernels", file, CACHE, 0);
}

static void root_loses_its_capabilities(void **state)
{
    (void)state;
    if (!root_user)
        skip();
    check("has_caps", dir, L(SECCOMP), ERR(EPERM));
    check("has_caps", dir, L(SECCOMP) | L(CAPS), 0);
    check("set_uid", dir, 0, KILLED);
    check("set_uid", dir, L(SECCOMP), ERR(EPERM));
    check("set_uid", dir, L(SECCOMP) | L(CAPS), 0);
}

static void cores_are_off(void **state)
{
    struct rlimit r;

    (void)state;
    if (getrlimit(RLIMIT_CORE, &r) != 0 || r.rlim_max == 0)
        skip();
    check("can_dump_core", dir, 0, ERR(EPERM));
    check("can_dump_core", dir, L(LIMITS), 0);
}

static void the_network_is_its_own(void **state)
{
    (void)state;
    if (!have_netns)
        skip();
    check("shares_network", dir, L(SECCOMP) | L(LANDLOCK), ERR(EPERM));
    check("shares_network", dir, L(SECCOMP) | L(LANDLOCK) | L(NETNS), 0);
    /* without the other two, an own network still reaches nobody */
    check("abstract_socket", dir, L(SECCOMP) | L(LANDLOCK), ERR(ECONNREFUSED));
    check("tcp_connect", dir, L(SECCOMP) | L(LANDLOCK), ERR(ENETUNREACH));
}

static void calls_outside_the_list_kill(void **state)
{
    (void)state;
    check("uses_io_uring", dir, 0, KILLED);
    check("new_user_ns", dir, 0, KILLED);
}

static void landlock_scopes_signals_and_sockets(void **state)
{
    (void)state;
    if (syscall(444, NULL, 0, 1) < 6) /* landlock_create_ruleset: the ABI */
        skip();
    check("kill_parent", dir, L(SECCOMP), ERR(EPERM));
    check("abstract_socket", dir, L(SECCOMP) | L(NETNS), ERR(EPERM));
}

static void modes_are_words(void **state)
{
    enum wrk_sandbox_mode m;

    (void)state;
    assert_true(wrk_sandbox_mode_parse("strict", &m) && m == WRK_SANDBOX_STRICT);
    assert_true(wrk_sandbox_mode_parse("permissive", &m) && m == WRK_SANDBOX_PERMISSIVE);
    assert_true(wrk_sandbox_mode_parse("off", &m) && m == WRK_SANDBOX_OFF);
    assert_false(wrk_sandbox_mode_parse("", &m));
    assert_false(wrk_sandbox_mode_parse("Strict", &m));
}

static int setup(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int n = snprintf(sock_name, sizeof(sock_name), "inferd-evil-%d", (int)getpid());

    (void)state;
    strcpy(dir, "/tmp/inferd-evil-XXXXXX");
    strcpy(cache, "/tmp/inferd-evic-XXXXXX");
    if (mkdtemp(dir) == NULL || mkdtemp(cache) == NULL || fd < 0)
        return -1;
    memcpy(a.sun_path + 1, sock_name, (size_t)n);
    if (bind(fd, (struct sockaddr *)&a,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) != 0 ||
        listen(fd, 64) != 0)
        return -1;
    root_user = geteuid() == 0;
    have_netns = run("shares_network", dir, L(SECCOMP) | L(LANDLOCK)) == ERR(EPERM);
    return 0;
}

static int teardown(void **state)
{
    char path[128];

    (void)state;
    unlink(file);
    snprintf(path, sizeof(path), "%s/new.txt", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/new2.txt", dir);
    unlink(path);
    return rmdir(dir) | rmdir(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_attempt_fails_and_its_layer_is_why),
        cmocka_unit_test(a_file_as_root_leaves_nothing_to_open),
        cmocka_unit_test(a_device_opens_what_a_driver_needs_and_no_more),
        cmocka_unit_test(root_loses_its_capabilities),
        cmocka_unit_test(cores_are_off),
        cmocka_unit_test(the_network_is_its_own),
        cmocka_unit_test(calls_outside_the_list_kill),
        cmocka_unit_test(landlock_scopes_signals_and_sockets),
        cmocka_unit_test(modes_are_words),
    };

    if (access(EXE, X_OK) != 0) {
        printf("skipped: %s is not built\n", EXE);
        return 77;
    }
    if (syscall(444, NULL, 0, 1) < 1) {
        printf("skipped: this kernel has no Landlock, strict cannot hold (inferd doctor)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, setup, teardown);
}
