/* sup_fetch_sandbox.c - the walls around who reads strangers' bytes, and around who starts them.
 *
 * Threads are allowed, because curl looks names up in one; processes are not. What libraries try
 * in good faith (netlink, a name service's socket) fails with an error; what only an attacker
 * wants kills. Tests: tests/supervisor/test_sup_fetch_sandbox.c, test_sup_walls.c
 */
#include "sup_fetch_sandbox.h"

#include <errno.h>
#include <netdb.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>

#include "sup_walls.h"

const struct sup_fetch_policy sup_fetch_policies[SUP_FETCH_ERRANDS] = {
    [SUP_FETCH_MEDIA] = {"media", true, false},
    [SUP_FETCH_PULL] = {"pull", true, true},
    [SUP_FETCH_COPY] = {"copy", false, true}, /* of a file: of `inferd pull` */
};

const char *const sup_fetch_layers[SUP_FETCH_LAYERS] = {"rlimits", "not_dumpable", "no_new_privs",
                                                        "landlock", "seccomp"};

/* ---------------------------------------------------------------- landlock */

/* Certificates and the files of name lookups. Absent ones are left out. */
static const char *const lookups[] = {
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/lib/ssl",
    "/usr/local/share/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/etc/localtime",
};

/* What a child's start needs on top: libraries that name lookups load, and
 * /dev/null. */
static const char *const start[] = {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"};

/* ----------------------------------------------------------------- seccomp */

static const int allowed[] = {
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(pread64),
    SCMP_SYS(pwrite64),
    SCMP_SYS(close),
    SCMP_SYS(lseek),
    SCMP_SYS(fsync),
    SCMP_SYS(fdatasync),
    SCMP_SYS(ftruncate),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(stat),
    SCMP_SYS(lstat),
    SCMP_SYS(statx),
    SCMP_SYS(fstatfs),
    SCMP_SYS(statfs),
    SCMP_SYS(open),
    SCMP_SYS(openat),
    SCMP_SYS(openat2),
    SCMP_SYS(access),
    SCMP_SYS(faccessat),
    SCMP_SYS(faccessat2),
    SCMP_SYS(getdents64),
    SCMP_SYS(readlink),
    SCMP_SYS(readlinkat),
    SCMP_SYS(mkdirat),
    SCMP_SYS(unlinkat),
    SCMP_SYS(renameat),
    SCMP_SYS(renameat2),
    SCMP_SYS(fcntl),
    SCMP_SYS(dup),
    SCMP_SYS(fadvise64),
    SCMP_SYS(getcwd),
    SCMP_SYS(memfd_create),
    /* sockets; socket itself has a rule of its own */
    SCMP_SYS(connect),
    SCMP_SYS(sendto),
    SCMP_SYS(recvfrom),
    SCMP_SYS(sendmsg),
    SCMP_SYS(sendmmsg),
    SCMP_SYS(recvmsg),
    SCMP_SYS(shutdown),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(select),
    SCMP_SYS(pselect6),
    SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(eventfd2),
    SCMP_SYS(pipe2),
    /* memory, threads, time, the end */
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    SCMP_SYS(futex),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(get_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(membarrier),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_getres),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep),
    SCMP_SYS(time),
    SCMP_SYS(getrandom),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getppid),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(getgid),
    SCMP_SYS(getegid),
    SCMP_SYS(getrusage),
    SCMP_SYS(sysinfo),
    SCMP_SYS(uname),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(rt_sigtimedwait),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
};

/* Of the keeper too. */
static const int fatal[] = {
    SCMP_SYS(execve),      SCMP_SYS(execveat),
    SCMP_SYS(ptrace),      SCMP_SYS(process_vm_readv),
    SCMP_SYS(mount),       SCMP_SYS(umount2),
    SCMP_SYS(unshare),     SCMP_SYS(setns),
    SCMP_SYS(bpf),         SCMP_SYS(process_vm_writev),
    SCMP_SYS(init_module), SCMP_SYS(finit_module),
    SCMP_SYS(kexec_load),  SCMP_SYS(setuid),
    SCMP_SYS(setgid),      SCMP_SYS(keyctl),
    SCMP_SYS(add_key),     SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd), SCMP_SYS(chroot),
    SCMP_SYS(pivot_root),  SCMP_SYS(io_uring_setup),
    SCMP_SYS(listen),      SCMP_SYS(accept),
    SCMP_SYS(accept4),
};

static const int forks[] = {SCMP_SYS(fork), SCMP_SYS(vfork)};
static const int unknown[] = {SCMP_SYS(clone3)}; /* glibc falls back to clone */

static const struct sup_walls_calls child_calls[] = {
    {SCMP_ACT_ALLOW, allowed, SUP_WALLS_COUNT(allowed)},
    {SCMP_ACT_ERRNO(ENOSYS), unknown, SUP_WALLS_COUNT(unknown)},
    {SCMP_ACT_KILL_PROCESS, fatal, SUP_WALLS_COUNT(fatal)},
    {SCMP_ACT_KILL_PROCESS, forks, SUP_WALLS_COUNT(forks)},
};

/* The first N_NETWORK of them with a network only. */
#define N_NETWORK 2
static const struct sup_walls_arg child_args[] = {
    {SCMP_SYS(socket), 0, SUP_WALLS_EQ, AF_INET},
    {SCMP_SYS(socket), 0, SUP_WALLS_EQ, AF_INET6},
    /* curl's threads wake its loop with one */
    {SCMP_SYS(socketpair), 0, SUP_WALLS_EQ, AF_UNIX},
    {SCMP_SYS(ioctl), 1, SUP_WALLS_EQ, FIONBIO},
    {SCMP_SYS(ioctl), 1, SUP_WALLS_EQ, FIONREAD},
    {SCMP_SYS(ioctl), 1, SUP_WALLS_EQ, TCGETS},
    /* a thread is fine, a process is not */
    {SCMP_SYS(clone), 0, CLONE_THREAD, CLONE_THREAD},
};

/* Its children narrow themselves further. */
static const struct sup_walls_calls keeper_calls[] = {
    {SCMP_ACT_KILL_PROCESS, fatal, SUP_WALLS_COUNT(fatal)}};
static const struct sup_walls_filter keeper_filter = {
    .otherwise = SCMP_ACT_ALLOW, .calls = keeper_calls, .n_calls = SUP_WALLS_COUNT(keeper_calls)};

/* --------------------------------------------------------------- all of it */

/* Name lookups load what nsswitch.conf names; afterwards no library can be mapped. */
static void warm_up(void)
{
    struct addrinfo *a = NULL;

    if (getaddrinfo("localhost", NULL, NULL, &a) == 0)
        freeaddrinfo(a);
}

static const struct sup_walls_role role = {"fetcher", "fetcher_sandbox_off",
                                           "fetcher_sandbox_missing"};

static const struct sup_walls_limits limits = {.files = 0};

static enum rc raise_all(const char *mode, const struct sup_walls_files *files,
                         const struct sup_walls_filter *filter,
                         struct sup_walls_layer out[SUP_FETCH_LAYERS], struct rc_err *err)
{
    const struct sup_walls_step steps[SUP_FETCH_LAYERS] = {
        {sup_fetch_layers[0], sup_walls_rlimits, &limits, 0},
        {sup_fetch_layers[1], sup_walls_not_dumpable, NULL, 0},
        {sup_fetch_layers[2], sup_walls_no_new_privs, NULL, 0},
        {sup_fetch_layers[3], sup_walls_landlock, files, 0},
        {sup_fetch_layers[4], sup_walls_seccomp, filter, 0},
    };

    return sup_walls_raise(&role, mode, steps, SUP_FETCH_LAYERS, out, err);
}

/* The folder, and what each of a list may be read. */
#define PATHS_MAX (3 + SUP_WALLS_COUNT(start) + SUP_WALLS_COUNT(lookups))

static void add_paths(struct sup_walls_path path[PATHS_MAX], size_t *n, const char *const *list,
                      size_t n_list)
{
    for (size_t i = 0; i < n_list; i++)
        path[(*n)++] = (struct sup_walls_path){.path = list[i], .may = SUP_WALLS_READ};
}

enum rc sup_fetch_sandbox_keeper(const char *mode, int dir_fd,
                                 struct sup_walls_layer out[SUP_FETCH_LAYERS], struct rc_err *err)
{
    /* renames out of the staging folder, and removal of what was there */
    struct sup_walls_path path[PATHS_MAX] = {
        {.fd = dir_fd, .may = SUP_WALLS_CHANGE | SUP_WALLS_FOLDERS | SUP_WALLS_MOVE},
        {.path = "/dev/null", .may = SUP_WALLS_DEVICE, .must = true},
    };
    struct sup_walls_files files = {.path = path, .n = 2, .connects = true};

    add_paths(path, &files.n, start, SUP_WALLS_COUNT(start));
    add_paths(path, &files.n, lookups, SUP_WALLS_COUNT(lookups));
    sup_walls_say_off(&role, mode);
    return raise_all(mode, &files, &keeper_filter, out, err);
}

enum rc sup_fetch_sandbox(const char *mode, enum sup_fetch_errand errand, int dir_fd,
                          const char *read_path, struct sup_walls_layer out[SUP_FETCH_LAYERS],
                          struct rc_err *err)
{
    const bool network = sup_fetch_policies[errand].network;
    struct sup_walls_path path[PATHS_MAX] = {
        {.fd = sup_fetch_policies[errand].writes ? dir_fd : -1,
         .may = SUP_WALLS_CHANGE | SUP_WALLS_FOLDERS},
        {.path = read_path, .fd = -1, .may = SUP_WALLS_READ},
    };
    struct sup_walls_files files = {.path = path, .n = 2, .connects = true};
    const struct sup_walls_filter filter = {
        .otherwise = SCMP_ACT_ERRNO(EPERM),
        .calls = child_calls,
        .n_calls = SUP_WALLS_COUNT(child_calls),
        .args = child_args + (network ? 0 : N_NETWORK),
        .n_args = SUP_WALLS_COUNT(child_args) - (network ? 0 : N_NETWORK),
    };

    if (network) {
        add_paths(path, &files.n, lookups, SUP_WALLS_COUNT(lookups));
        if (strcmp(mode, "off") != 0)
            warm_up();
    }
    return raise_all(mode, &files, &filter, out, err);
}
