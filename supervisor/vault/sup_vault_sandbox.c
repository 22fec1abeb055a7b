/* sup_vault_sandbox.c - the walls around the process that holds the secrets.
 *
 * After them it can talk over the channels it has, read and replace files in one folder, and
 * nothing else: no socket, no process, no executable memory. Change with care: a row too few
 * kills the server on a rare path. Tests: tests/supervisor/test_sup_vault_sandbox.c
 * Source of the Landlock part: Documentation/userspace-api/landlock.rst (ABI 1 to 5).
 */
#include "sup_vault_sandbox.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sup_log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define FILES_MAX 32
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif

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

/* What no build of the vault may do. */
static const int fatal[] = {
    SCMP_SYS(execve),         SCMP_SYS(execveat), SCMP_SYS(socket),
    SCMP_SYS(connect),        SCMP_SYS(bind),     SCMP_SYS(mount),
    SCMP_SYS(unshare),        SCMP_SYS(setns),    SCMP_SYS(bpf),
    SCMP_SYS(setuid),         SCMP_SYS(keyctl),   SCMP_SYS(perf_event_open),
    SCMP_SYS(io_uring_setup), SCMP_SYS(chroot),
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
    int r = add_rules(ctx, SCMP_ACT_ALLOW, allowed, COUNT(allowed));

    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0) /* abort() */
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                             SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
    if (r == 0) /* library files opened by absolute name: /etc/localtime and the like */
        r = add_rules(ctx, SCMP_ACT_ERRNO(EACCES), (int[]){SCMP_SYS(open), SCMP_SYS(stat)}, 2);
    return r;
}

static bool layer_seccomp(int dir_fd)
{
    scmp_filter_ctx ctx = seccomp_init(SANITIZED ? SCMP_ACT_ALLOW : SCMP_ACT_KILL_PROCESS);
    int r;

    (void)dir_fd;
    if (!ctx)
        return false;
    r = SANITIZED ? add_rules(ctx, SCMP_ACT_KILL_PROCESS, fatal, COUNT(fatal)) : strict_rules(ctx);
    if (r == 0)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    errno = -r;
    return r == 0;
}

static bool layer_landlock(int dir_fd)
{
    const uint64_t files = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                           LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                           LANDLOCK_ACCESS_FS_READ_DIR;
    const long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    /* files, ports, and what may be reached beyond the own fence: abstract sockets, signals */
    uint64_t attr[3] = {(1ULL << 13) - 1, 3, 3};
    struct landlock_path_beneath_attr rule = {.allowed_access = files, .parent_fd = dir_fd};
    int fd, e;
    bool ok;

    if (abi < 1)
        return false;
    attr[0] |=
        (abi >= 2 ? 1ULL << 13 : 0) | (abi >= 3 ? 1ULL << 14 : 0) | (abi >= 5 ? 1ULL << 15 : 0);
    if (abi >= 3)
        rule.allowed_access |= LANDLOCK_ACCESS_FS_TRUNCATE;
    fd = (int)syscall(SYS_landlock_create_ruleset, attr,
                      (abi >= 6   ? 3
                       : abi >= 4 ? 2
                                  : 1) *
                          sizeof(attr[0]),
                      0);
    if (fd < 0)
        return false;
    ok = syscall(SYS_landlock_add_rule, fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0 &&
         syscall(SYS_landlock_restrict_self, fd, 0) == 0;
    e = errno;
    close(fd);
    errno = e;
    return ok;
}

static bool layer_netns(int dir_fd)
{
    (void)dir_fd;
    /* not with a user namespace: in one, every file would seem to be ours */
    return unshare(CLONE_NEWNET) == 0;
}

static bool layer_caps(int dir_fd)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    (void)dir_fd;
    return syscall(SYS_capset, &head, none) == 0;
}

static bool layer_limits(int dir_fd)
{
    const struct rlimit none = {0, 0}, files = {FILES_MAX, FILES_MAX};

    (void)dir_fd;
    return setrlimit(RLIMIT_CORE, &none) == 0 && setrlimit(RLIMIT_NOFILE, &files) == 0 &&
           (SANITIZED || setrlimit(RLIMIT_NPROC, &none) == 0);
}

static bool layer_dump(int dir_fd)
{
    (void)dir_fd;
    return SANITIZED || prctl(PR_SET_DUMPABLE, 0) == 0;
}

static bool layer_nnp(int dir_fd)
{
    (void)dir_fd;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

/* In the order they are applied. */
static const struct {
    const char *name;
    bool (*apply)(int dir_fd);
    bool optional;
} layers[SUP_VAULT_LAYERS] = {
    {"not_dumpable", layer_dump, false},      {"rlimits", layer_limits, false},
    {"network_namespace", layer_netns, true}, {"no_capabilities", layer_caps, false},
    {"no_new_privs", layer_nnp, false},       {"landlock", layer_landlock, false},
    {"seccomp", layer_seccomp, false},
};

enum rc sup_vault_sandbox(const char *mode, int dir_fd,
                          struct sup_vault_layer out[SUP_VAULT_LAYERS], struct rc_err *err)
{
    bool off = strcmp(mode, "off") == 0, strict = strcmp(mode, "strict") == 0;

    if (off)
        SUP_LOG(SUP_WARN, "vault_sandbox_off", SUP_S("why", "sandbox=off"));
    for (size_t i = 0; i < SUP_VAULT_LAYERS; i++) {
        out[i] = (struct sup_vault_layer){layers[i].name, !off && layers[i].apply(dir_fd),
                                          layers[i].optional};
        if (off || out[i].holds || out[i].optional)
            continue;
        if (strict)
            return rc_fail_what(err, RC_UNSUPPORTED, "sandbox",
                                "the vault's layer '%s' cannot be had here: %s "
                                "(sandbox=permissive goes on without it)",
                                layers[i].name, strerror(errno));
        SUP_LOG(SUP_WARN, "vault_sandbox_missing", SUP_S("layer", layers[i].name),
                SUP_S("error", strerror(errno)));
    }
    return RC_OK;
}
