/* sup_front_sandbox.c - the seccomp allowlist of the process that talks to clients.
 *
 * After it is in place the front can use the descriptors it has, memory, clocks and
 * the loop; it cannot open, create or delete a file, make a socket, a process or
 * executable memory. What libraries may try in good faith (libuv reopens "/" when
 * descriptors run out, glibc looks for locale files) fails with an error; all else
 * kills the process.
 *
 * Under sanitizers only what the front itself must never do is forbidden (sup_walls.h).
 * Change with care: a row too few kills the server on a rare path, a row too many is a
 * way out. Tests: tests/supervisor/test_sup_front.c, test_sup_walls.c
 */
#include "sup_front_sandbox.h"

#include <errno.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <termios.h>

#include "sup_log.h"
#include "sup_walls.h"

/* The loop and its sockets. */
static const int allowed[] = {
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_pwait2),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(accept4),
    SCMP_SYS(accept),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendmsg),
    SCMP_SYS(recvfrom),
    SCMP_SYS(sendto),
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(pread64),
    SCMP_SYS(close),
    SCMP_SYS(shutdown),
    SCMP_SYS(fcntl),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),
    SCMP_SYS(listen),
    /* frames in memory files (ipc.c) */
    SCMP_SYS(memfd_create),
    SCMP_SYS(ftruncate),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(fstatfs),
    SCMP_SYS(lseek),
    /* memory; mmap and mprotect have rules of their own */
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    /* time, chance, locks, the end */
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_getres),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep),
    SCMP_SYS(getrandom),
    SCMP_SYS(futex),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(sched_yield),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getppid),
    SCMP_SYS(getrusage),
    SCMP_SYS(sysinfo),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(rseq),
    SCMP_SYS(membarrier),
};

/* Tried in good faith: refused, not fatal. */
static const int refused[] = {
    SCMP_SYS(open),      SCMP_SYS(openat),     SCMP_SYS(openat2),  SCMP_SYS(access),
    SCMP_SYS(faccessat), SCMP_SYS(faccessat2), SCMP_SYS(readlink), SCMP_SYS(readlinkat),
    SCMP_SYS(stat),      SCMP_SYS(lstat),      SCMP_SYS(statx),    SCMP_SYS(unlink),
    SCMP_SYS(unlinkat),  SCMP_SYS(prlimit64),  SCMP_SYS(getcwd),
};

/* What no build of the front may do. */
static const int fatal[] = {
    SCMP_SYS(execve),      SCMP_SYS(execveat),       SCMP_SYS(socket),
    SCMP_SYS(connect),     SCMP_SYS(bind),           SCMP_SYS(mount),
    SCMP_SYS(umount2),     SCMP_SYS(unshare),        SCMP_SYS(setns),
    SCMP_SYS(bpf),         SCMP_SYS(init_module),    SCMP_SYS(finit_module),
    SCMP_SYS(kexec_load),  SCMP_SYS(setuid),         SCMP_SYS(setgid),
    SCMP_SYS(keyctl),      SCMP_SYS(add_key),        SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup), SCMP_SYS(chroot),
    SCMP_SYS(pivot_root),
};

static const struct sup_walls_calls calls[] = {
    {SCMP_ACT_ALLOW, allowed, SUP_WALLS_COUNT(allowed)},
    {SCMP_ACT_ERRNO(EACCES), refused, SUP_WALLS_COUNT(refused)},
    {SCMP_ACT_KILL_PROCESS, fatal, SUP_WALLS_COUNT(fatal)},
};

static const struct sup_walls_arg args[] = {
    {SCMP_SYS(ioctl), 1, SUP_WALLS_EQ, FIONBIO},
    {SCMP_SYS(ioctl), 1, SUP_WALLS_EQ, FIONREAD},
    {SCMP_SYS(ioctl), 1, SUP_WALLS_EQ, TCGETS},
    /* sup_front_layers */
    {SCMP_SYS(prctl), 0, SUP_WALLS_EQ, PR_GET_SECCOMP},
    {SCMP_SYS(prctl), 0, SUP_WALLS_EQ, PR_GET_NO_NEW_PRIVS},
    {SCMP_SYS(prctl), 0, SUP_WALLS_EQ, PR_GET_DUMPABLE},
};

static const struct sup_walls_filter filter = {
    .otherwise = SCMP_ACT_KILL_PROCESS,
    .calls = calls,
    .n_calls = SUP_WALLS_COUNT(calls),
    .args = args,
    .n_args = SUP_WALLS_COUNT(args),
};

static const struct sup_walls_role role = {"front", "front_sandbox_off", "front_sandbox_missing"};

static const struct sup_walls_limits limits = {.files = 0};

/* Before anything is opened. */
static const struct sup_walls_step first[] = {
    {"rlimits", sup_walls_rlimits, &limits, SUP_WALLS_ALWAYS},
    {"no_new_privs", sup_walls_no_new_privs, NULL, SUP_WALLS_ALWAYS},
    {"not_dumpable", sup_walls_not_dumpable, NULL, 0},
};

/* When all is open. */
static const struct sup_walls_step last[] = {{"seccomp", sup_walls_seccomp, &filter, 0}};

enum rc sup_front_sandbox(const char *mode, struct rc_err *err)
{
    sup_walls_say_off(&role, mode);
    return sup_walls_raise(&role, mode, last, SUP_WALLS_COUNT(last), NULL, err);
}

void sup_front_layers(struct sup_walls_layer out[SUP_FRONT_LAYERS])
{
    out[0] = (struct sup_walls_layer){"not_dumpable", prctl(PR_GET_DUMPABLE) == 0};
    out[1] = (struct sup_walls_layer){"no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1};
    out[2] = (struct sup_walls_layer){"seccomp", prctl(PR_GET_SECCOMP) == 2 /* a filter */};
}

enum rc sup_front_limits(const char *mode, unsigned long long want, struct rc_err *err)
{
    struct rlimit files;
    enum rc rc;

    signal(SIGPIPE, SIG_IGN);
    if ((rc = sup_walls_raise(&role, mode, first, SUP_WALLS_COUNT(first), NULL, err)) != RC_OK)
        return rc;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= want)
        return RC_OK;
    files.rlim_cur = want < files.rlim_max ? (rlim_t)want : files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < want)
        SUP_LOG(SUP_WARN, "few_descriptors", SUP_I("have", files.rlim_cur), SUP_I("want", want),
                SUP_S("hint", "raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower "
                              "max_connections"));
    return RC_OK;
}
