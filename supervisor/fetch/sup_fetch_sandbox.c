/* sup_fetch_sandbox.c - Landlock for files, seccomp for the rest.
 *
 * Raw system calls and our own copies of Landlock's structures, so that a binary built on old
 * headers uses what a new kernel offers. Threads are allowed, because curl looks names up in one;
 * processes are not. What libraries try in good faith (netlink, a name service's socket) fails
 * with an error; what only an attacker wants kills.
 * Source: Documentation/userspace-api/landlock.rst. Tests:
 * tests/supervisor/test_sup_fetch_sandbox.c
 */
#include "sup_fetch_sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---------------------------------------------------------------- landlock */

#define FS_WRITE_FILE (1ull << 1)
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_REMOVE_FILE (1ull << 5)
#define FS_REMOVE_DIR (1ull << 4)
#define FS_MAKE_DIR (1ull << 7)
#define FS_MAKE_REG (1ull << 8)
#define FS_ABI1 ((1ull << 13) - 1)
#define FS_REFER (1ull << 13)
#define FS_TRUNCATE (1ull << 14)
#define FS_IOCTL_DEV (1ull << 15)
#define NET_BIND 1ull
#define SCOPE_ALL 3ull

struct ruleset_attr {
    uint64_t fs, net, scoped;
};
struct path_attr {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

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

static bool grant_fd(int ruleset, int fd, uint64_t rights)
{
    struct path_attr rule = {.allowed = rights, .parent_fd = fd};
    struct stat st;

    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rule.allowed &= FS_READ_FILE | FS_WRITE_FILE | FS_TRUNCATE;
    return syscall(SYS_landlock_add_rule, ruleset, 1, &rule, 0) == 0;
}

static bool grant(int ruleset, const char *path)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    bool ok;

    if (fd < 0)
        return true; /* not on this machine */
    ok = grant_fd(ruleset, fd, FS_READ_FILE | FS_READ_DIR);
    close(fd);
    return ok;
}

/* What a child's start needs on top: libraries that name lookups load, and /dev/null. */
static const char *const start[] = {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"};

static bool grant_start(int ruleset)
{
    int null = open("/dev/null", O_PATH | O_CLOEXEC);
    bool ok = null >= 0 && grant_fd(ruleset, null, FS_READ_FILE | FS_WRITE_FILE);

    if (null >= 0)
        close(null);
    for (size_t i = 0; ok && i < COUNT(start); i++)
        ok = grant(ruleset, start[i]);
    return ok;
}

static int landlock(int dir_fd, const char *read_path, bool network, bool keeper)
{
    struct ruleset_attr attr = {.fs = FS_ABI1};
    uint64_t dir_rights =
        FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG;
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1u);
    size_t attr_bytes = sizeof(attr.fs);
    int fd, e;
    bool ok;

    if (abi < 1)
        return abi < 0 ? errno : ENOSYS;
    attr.fs |=
        (abi >= 2 ? FS_REFER : 0) | (abi >= 3 ? FS_TRUNCATE : 0) | (abi >= 5 ? FS_IOCTL_DEV : 0);
    if (abi >= 3)
        dir_rights |= FS_TRUNCATE;
    if (keeper) /* renames from the staging folder, and removal of what was there */
        dir_rights |= FS_REMOVE_DIR | (abi >= 2 ? FS_REFER : 0);
    if (abi >= 4) {
        attr.net = NET_BIND;
        attr_bytes = 2 * sizeof(uint64_t);
    }
    if (abi >= 6) {
        attr.scoped = SCOPE_ALL;
        attr_bytes = 3 * sizeof(uint64_t);
    }
    if ((fd = (int)syscall(SYS_landlock_create_ruleset, &attr, attr_bytes, 0)) < 0)
        return errno;
    ok = dir_fd < 0 || grant_fd(fd, dir_fd, dir_rights);
    if (ok && read_path)
        ok = grant(fd, read_path);
    if (ok && keeper)
        ok = grant_start(fd);
    for (size_t i = 0; ok && network && i < COUNT(lookups); i++)
        ok = grant(fd, lookups[i]);
    ok = ok && syscall(SYS_landlock_restrict_self, fd, 0) == 0;
    e = errno;
    close(fd);
    return ok ? 0 : e;
}

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

static const int fatal[] = {
    SCMP_SYS(execve),      SCMP_SYS(execveat),
    SCMP_SYS(fork),        SCMP_SYS(vfork),
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

static int strict_rules(scmp_filter_ctx ctx, bool network)
{
    static const unsigned long ioctls[] = {FIONBIO, FIONREAD, TCGETS};
    static const int families[] = {AF_INET, AF_INET6};
    int r = rules(ctx, SCMP_ACT_ALLOW, allowed, COUNT(allowed));

    for (size_t i = 0; r == 0 && network && i < COUNT(families); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
                             SCMP_A0_32(SCMP_CMP_EQ, (uint32_t)families[i], 0));
    if (r == 0) /* curl's threads wake its loop with one */
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1,
                             SCMP_A0_32(SCMP_CMP_EQ, (uint32_t)AF_UNIX, 0));
    for (size_t i = 0; r == 0 && i < COUNT(ioctls); i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                             SCMP_A1_32(SCMP_CMP_EQ, (uint32_t)ioctls[i], 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0) /* a thread is fine, a process is not; glibc falls back from clone3 */
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    if (r == 0) /* abort() */
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                             SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
    return r == 0 ? rules(ctx, SCMP_ACT_KILL_PROCESS, fatal, COUNT(fatal)) : r;
}

/* Everything else is allowed: its children narrow themselves further. */
static int keeper_filter(void)
{
    static const int own[] = {SCMP_SYS(fork), SCMP_SYS(vfork)};
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int r = ctx ? 0 : -ENOMEM;

    for (size_t i = 0; r == 0 && i < COUNT(fatal); i++)
        if (fatal[i] != own[0] && fatal[i] != own[1])
            r = rules(ctx, SCMP_ACT_KILL_PROCESS, &fatal[i], 1);
    if (r == 0)
        r = seccomp_load(ctx);
    if (ctx)
        seccomp_release(ctx);
    return -r;
}

static int filter(bool network)
{
    scmp_filter_ctx ctx = seccomp_init(SANITIZED ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EPERM));
    int r;

    if (!ctx)
        return ENOMEM;
    r = SANITIZED ? rules(ctx, SCMP_ACT_KILL_PROCESS, fatal, COUNT(fatal))
                  : strict_rules(ctx, network);
    if (r == 0)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    return -r;
}

/* --------------------------------------------------------------- all of it */

/* Name lookups load what nsswitch.conf names; afterwards no library can be mapped. */
static void warm_up(void)
{
    struct addrinfo *a = NULL;

    if (getaddrinfo("localhost", NULL, NULL, &a) == 0)
        freeaddrinfo(a);
}

static enum rc apply(const char *mode, int dir_fd, const char *read_path, bool network, bool keeper,
                     char missing[128], struct rc_err *err)
{
    const struct rlimit none = {0, 0};
    bool strict = strcmp(mode, "strict") == 0;
    int bad_landlock, bad_seccomp;

    if (missing)
        missing[0] = '\0';
    if (strcmp(mode, "off") == 0)
        return RC_OK;
    if (network && !keeper)
        warm_up();
    (void)setrlimit(RLIMIT_CORE, &none);
    if (!SANITIZED)
        (void)prctl(PR_SET_DUMPABLE, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return rc_fail(err, RC_UNSUPPORTED, "no_new_privs: %s", strerror(errno));
    bad_landlock = landlock(dir_fd, read_path, network, keeper);
    if (bad_landlock && strict)
        return rc_fail_what(err, RC_UNSUPPORTED, "sandbox",
                            "the fetcher's files cannot be fenced in (Landlock: %s); "
                            "sandbox permissive goes on without it",
                            strerror(bad_landlock));
    bad_seccomp = keeper ? keeper_filter() : filter(network);
    if (bad_seccomp && strict)
        return rc_fail_what(err, RC_UNSUPPORTED, "sandbox",
                            "the fetcher's seccomp filter cannot be had: %s; sandbox permissive "
                            "goes on without it",
                            strerror(bad_seccomp));
    if (missing)
        snprintf(missing, 128, "%s%s%s", bad_landlock ? "landlock" : "",
                 bad_landlock && bad_seccomp ? ", " : "", bad_seccomp ? "seccomp" : "");
    return RC_OK;
}

enum rc sup_fetch_sandbox_keeper(const char *mode, int dir_fd, char missing[128],
                                 struct rc_err *err)
{
    return apply(mode, dir_fd, NULL, true, true, missing, err);
}

enum rc sup_fetch_sandbox(const char *mode, int dir_fd, const char *read_path, bool network,
                          char missing[128], struct rc_err *err)
{
    return apply(mode, dir_fd, read_path, network, false, missing, err);
}
