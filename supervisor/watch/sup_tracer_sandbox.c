/* sup_tracer_sandbox.c - the walls around the process that calls a collector.
 *
 * After them it can use its channels and make TCP connections. No file can be opened, no
 * process made, nothing listens. The address it connects to was found before, and of what a
 * collector answers it reads twelve bytes. Change with care: a row too few ends the server. Tests:
 * tests/e2e/traces.py, tests/supervisor/test_sup_walls.c
 */
#include "sup_tracer.h"

#include <errno.h>
#include <seccomp.h>
#include <sys/socket.h>

#include "sup_walls.h"

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

static const struct sup_walls_calls calls[] = {
    {SCMP_ACT_ALLOW, allowed, SUP_WALLS_COUNT(allowed)},
    {SCMP_ACT_ERRNO(EACCES), refused, SUP_WALLS_COUNT(refused)},
    {SCMP_ACT_KILL_PROCESS, fatal, SUP_WALLS_COUNT(fatal)},
};

static const struct sup_walls_arg args[] = {
    {SCMP_SYS(socket), 0, SUP_WALLS_EQ, AF_INET},
    {SCMP_SYS(socket), 0, SUP_WALLS_EQ, AF_INET6},
};

static const struct sup_walls_filter filter = {
    .otherwise = SCMP_ACT_KILL_PROCESS,
    .calls = calls,
    .n_calls = SUP_WALLS_COUNT(calls),
    .args = args,
    .n_args = SUP_WALLS_COUNT(args),
};

static const struct sup_walls_role role = {"tracer", "tracer_sandbox_off",
                                           "tracer_sandbox_missing"};

static const struct sup_walls_limits limits = {.files = 32};

const char *const sup_tracer_layers[SUP_TRACER_LAYERS] = {"rlimits", "no_new_privs", "not_dumpable",
                                                          "seccomp"};

enum rc sup_tracer_sandbox(const char *mode, struct sup_walls_layer out[SUP_TRACER_LAYERS],
                           struct rc_err *err)
{
    const struct sup_walls_step steps[SUP_TRACER_LAYERS] = {
        {sup_tracer_layers[0], sup_walls_rlimits, &limits, SUP_WALLS_ALWAYS},
        {sup_tracer_layers[1], sup_walls_no_new_privs, NULL, SUP_WALLS_ALWAYS},
        {sup_tracer_layers[2], sup_walls_not_dumpable, NULL, 0},
        {sup_tracer_layers[3], sup_walls_seccomp, &filter, 0},
    };

    sup_walls_say_off(&role, mode);
    return sup_walls_raise(&role, mode, steps, SUP_TRACER_LAYERS, out, err);
}
