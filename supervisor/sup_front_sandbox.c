/* sup_front_sandbox.c - the seccomp allowlist of the process that talks to clients.
 *
 * After it is in place the front can use the descriptors it has, memory, clocks and
 * the loop; it cannot open, create or delete a file, make a socket, a process or
 * executable memory. What libraries may try in good faith (libuv reopens "/" when
 * descriptors run out, glibc looks for locale files) fails with an error; all else
 * kills the process.
 *
 * Sanitizers need threads, files and ptrace: under them only what the front itself
 * must never do is forbidden. Change with care: a row too few kills the server on a
 * rare path, a row too many is a way out. Tests: tests/supervisor/test_sup_front.c
 */
#include "sup_front_sandbox.h"

#include <errno.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include "sup_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

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

static int rules(scmp_filter_ctx ctx, uint32_t action, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int r = seccomp_rule_add(ctx, action, calls[i], 0);

        /* a call this architecture does not have needs no rule */
        if (r != 0 && r != -EDOM && r != -EACCES)
            return r;
    }
    return 0;
}

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int strict_rules(scmp_filter_ctx ctx)
{
    static const unsigned long ioctls[] = {FIONBIO, FIONREAD, TCGETS};
    static const int asks[] = {PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS, PR_GET_DUMPABLE};
    int r = rules(ctx, SCMP_ACT_ALLOW, allowed, COUNT(allowed));

    if (r == 0)
        r = rules(ctx, SCMP_ACT_ERRNO(EACCES), refused, COUNT(refused));
    for (size_t i = 0; r == 0 && i < COUNT(ioctls); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                             SCMP_A1_32(SCMP_CMP_EQ, (uint32_t)ioctls[i], 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    for (size_t i = 0; r == 0 && i < COUNT(asks); i++) /* sup_front_layers */
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1,
                             SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)asks[i]));
    if (r == 0) /* abort() */
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                             SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
    return r;
}

static int install(void)
{
    scmp_filter_ctx ctx = seccomp_init(SANITIZED ? SCMP_ACT_ALLOW : SCMP_ACT_KILL_PROCESS);
    int r;

    if (!ctx)
        return -ENOMEM;
    r = SANITIZED ? rules(ctx, SCMP_ACT_KILL_PROCESS, fatal, COUNT(fatal)) : strict_rules(ctx);
    if (r == 0)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    return r;
}

enum rc sup_front_sandbox(const char *mode, struct rc_err *err)
{
    int r;

    if (strcmp(mode, "off") == 0) {
        SUP_LOG(SUP_WARN, "front_sandbox_off", SUP_S("why", "sandbox=off"));
        return RC_OK;
    }
    r = install();
    if (r == 0)
        return RC_OK;
    if (strcmp(mode, "permissive") == 0) {
        SUP_LOG(SUP_WARN, "front_sandbox_missing", SUP_S("layer", "seccomp"),
                SUP_S("error", strerror(-r)));
        return RC_OK;
    }
    return rc_fail_what(err, RC_UNSUPPORTED, "sandbox",
                        "the front's seccomp filter cannot be had here: %s (sandbox=permissive "
                        "goes on without it)",
                        strerror(-r));
}

void sup_front_layers(struct sup_front_layer out[SUP_FRONT_LAYERS])
{
    out[0] = (struct sup_front_layer){"not_dumpable", prctl(PR_GET_DUMPABLE) == 0};
    out[1] = (struct sup_front_layer){"no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1};
    out[2] = (struct sup_front_layer){"seccomp", prctl(PR_GET_SECCOMP) == 2 /* a filter */};
}

void sup_front_limits(const char *mode, unsigned long long want)
{
    const struct rlimit none = {0, 0};
    struct rlimit files;

    signal(SIGPIPE, SIG_IGN);
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!SANITIZED && strcmp(mode, "off") != 0)
        prctl(PR_SET_DUMPABLE, 0);
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= want)
        return;
    files.rlim_cur = want < files.rlim_max ? (rlim_t)want : files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < want)
        SUP_LOG(SUP_WARN, "few_descriptors", SUP_I("have", files.rlim_cur), SUP_I("want", want),
                SUP_S("hint", "raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower "
                              "max_connections"));
}
