/* sup_vault_sandbox.c - the walls around the process that holds the secrets.
 *
 * After them it can talk over the channels it has, read and replace files in one folder, and
 * nothing else: no socket, no process, no executable memory. Change with care: a row too few
 * kills the server on a rare path. Tests: tests/supervisor/test_sup_vault.c, test_sup_walls.c
 */
#include "sup_vault_sandbox.h"

#include <errno.h>
#include <seccomp.h>

#include "sup_walls.h"

static const int allowed[] = {
    /* channels */
    SCMP_SYS(poll),
    SCMP_SYS(ppoll),
    SCMP_SYS(recvmsg),
    SCMP_SYS(sendmsg),
    SCMP_SYS(close),
    /* files of the folder */
    SCMP_SYS(openat),
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(statx),
    SCMP_SYS(lseek),
    SCMP_SYS(fsync),
    SCMP_SYS(ftruncate),
    SCMP_SYS(renameat),
    SCMP_SYS(renameat2),
    SCMP_SYS(unlinkat),
    SCMP_SYS(fcntl),
    SCMP_SYS(fstatfs),
    SCMP_SYS(geteuid),
    /* memory; mmap and mprotect have rules of their own */
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    SCMP_SYS(mlock),
    SCMP_SYS(munlock),
    /* time, chance, locks, the end */
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

/* Files that libraries open by absolute name: /etc/localtime and the like. */
static const int refused[] = {SCMP_SYS(open), SCMP_SYS(stat)};

/* What no build of the vault may do. */
static const int fatal[] = {
    SCMP_SYS(execve),         SCMP_SYS(execveat), SCMP_SYS(socket),
    SCMP_SYS(connect),        SCMP_SYS(bind),     SCMP_SYS(mount),
    SCMP_SYS(unshare),        SCMP_SYS(setns),    SCMP_SYS(bpf),
    SCMP_SYS(setuid),         SCMP_SYS(keyctl),   SCMP_SYS(perf_event_open),
    SCMP_SYS(io_uring_setup), SCMP_SYS(chroot),
};

static const struct sup_walls_calls calls[] = {
    {SCMP_ACT_ALLOW, allowed, SUP_WALLS_COUNT(allowed)},
    {SCMP_ACT_ERRNO(EACCES), refused, SUP_WALLS_COUNT(refused)},
    {SCMP_ACT_KILL_PROCESS, fatal, SUP_WALLS_COUNT(fatal)},
};

static const struct sup_walls_filter filter = {
    .otherwise = SCMP_ACT_KILL_PROCESS, .calls = calls, .n_calls = SUP_WALLS_COUNT(calls)};

static const struct sup_walls_role role = {"vault", "vault_sandbox_off", "vault_sandbox_missing"};

static const struct sup_walls_limits limits = {.files = 32, .no_processes = true};

enum rc sup_vault_sandbox(const char *mode, int dir_fd,
                          struct sup_walls_layer out[SUP_VAULT_LAYERS], struct rc_err *err)
{
    const struct sup_walls_path folder = {.fd = dir_fd, .may = SUP_WALLS_CHANGE};
    const struct sup_walls_files files = {.path = &folder, .n = 1};
    const struct sup_walls_step steps[SUP_VAULT_LAYERS] = {
        {"not_dumpable", sup_walls_not_dumpable, NULL, 0},
        {"rlimits", sup_walls_rlimits, &limits, 0},
        {"network_namespace", sup_walls_no_network, NULL, SUP_WALLS_OPTIONAL},
        {"no_capabilities", sup_walls_no_capabilities, NULL, 0},
        {"no_new_privs", sup_walls_no_new_privs, NULL, 0},
        {"landlock", sup_walls_landlock, &files, 0},
        {"seccomp", sup_walls_seccomp, &filter, 0},
    };

    sup_walls_say_off(&role, mode);
    return sup_walls_raise(&role, mode, steps, SUP_VAULT_LAYERS, out, err);
}
