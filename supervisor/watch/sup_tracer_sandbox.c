/* sup_tracer_sandbox.c - the walls around the process that calls a collector.
 *
 * After them it can use its channels and make TCP connections. No file can be opened, no
 * process made, nothing listens. The address it connects to was found before, and of what a
 * collector answers it reads twelve bytes. Change with care: a row too few ends the server. Tests:
 * tests/e2e/traces.py
 */
#include "sup_tracer.h"

#include <errno.h>
#include <seccomp.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sup_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define FILES_MAX 32

static const int allowed[] = {
    /* channels and connections; socket has a rule of its own */
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendto),
    SCMP_SYS(sendmsg),
    SCMP_SYS(connect),
    SCMP_SYS(getsockopt),
    SCMP_SYS(shutdown),
    SCMP_SYS(close),
    SCMP_SYS(write),
    /* memory; mmap and mprotect have rules of their own */
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    /* time, locks, the end */
    SCMP_SYS(clock_gettime),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(getrandom),
    SCMP_SYS(futex),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(rseq),
};

/* Texts of errors may be looked for in files. */
static const int refused[] = {
    SCMP_SYS(open),
    SCMP_SYS(openat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(fstat),
};

/* What no build of the tracer may do. Not ptrace: AddressSanitizer looks for leaks with it. */
static const int fatal[] = {
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(bind),           SCMP_SYS(listen),
    SCMP_SYS(mount),  SCMP_SYS(unshare),  SCMP_SYS(setns),          SCMP_SYS(bpf),
    SCMP_SYS(setuid), SCMP_SYS(keyctl),   SCMP_SYS(io_uring_setup), SCMP_SYS(perf_event_open),
    SCMP_SYS(chroot),
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int add_rules(scmp_filter_ctx ctx, uint32_t action, const int *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int r = seccomp_rule_add(ctx, action, calls[i], 0);

        /* a call this architecture does not have needs no rule */
        if (r != 0 && r != -EDOM && r != -EACCES)
            return r;
    }
    return 0;
}

static int strict_rules(scmp_filter_ctx ctx)
{
    static const unsigned families[] = {AF_INET, AF_INET6};
    int r = add_rules(ctx, SCMP_ACT_ALLOW, allowed, COUNT(allowed));

    if (r == 0)
        r = add_rules(ctx, SCMP_ACT_ERRNO(EACCES), refused, COUNT(refused));
    for (size_t i = 0; r == 0 && i < COUNT(families); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
                             SCMP_A0(SCMP_CMP_EQ, families[i]));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
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
    r = SANITIZED ? add_rules(ctx, SCMP_ACT_KILL_PROCESS, fatal, COUNT(fatal)) : strict_rules(ctx);
    if (r == 0)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    return r;
}

enum rc sup_tracer_sandbox(const char *mode, struct rc_err *err)
{
    const struct rlimit none = {0, 0}, files = {FILES_MAX, FILES_MAX};
    int r;

    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (strcmp(mode, "off") == 0)
        return RC_OK;
    if (!SANITIZED)
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    r = install();
    if (r == 0)
        return RC_OK;
    if (strcmp(mode, "permissive") == 0) {
        SUP_LOG(SUP_WARN, "tracer_sandbox_missing", SUP_S("layer", "seccomp"),
                SUP_S("error", strerror(-r)));
        return RC_OK;
    }
    return rc_fail_what(err, RC_UNSUPPORTED, "sandbox",
                        "the tracer's seccomp filter cannot be had here: %s (sandbox=permissive "
                        "goes on without it)",
                        strerror(-r));
}
