/* wrk_sandbox_seccomp.c - which system calls a worker has after its start.
 *
 * One allowlist table; whatever is not in it kills the process (SIGSYS). Kinds of rows:
 * always, only with a model directory as root, only with a device or its kernel cache, and calls
 * libraries try in passing that are answered with an error instead of death. With a device what
 * is not in the table is refused with EPERM, and only the calls of `deadly` kill. Applied to all
 * threads (TSYNC). A second filter (wrk_sandbox_seal) forbids new threads once
 * the pool stands. How to find the call that killed a worker: docs/sandbox.md.
 *
 * Change with care: each new row is attack surface; say in the row what needs it.
 * Tests: tests/worker/test_wrk_sandbox.c
 */
#include "wrk_sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum when { ALWAYS, DIR_ROOT, DEVICE, CACHE };

/* One condition on one argument: (value & mask) == want; mask 0 = no condition. */
struct cond {
    unsigned arg;
    uint64_t mask, want;
};

#define SYS(x) SCMP_SYS(x), #x
#define ALL 0xffffffffffffffffull
/* int arguments: the upper half of the register may be anything */
#define INT 0xffffffffull
#define NS_FLAGS                                                                                  \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | \
     CLONE_NEWNET)
#define THREAD_FLAGS (CLONE_VM | CLONE_SIGHAND | CLONE_THREAD)
#define WRITE_FLAGS (O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND)

static const struct row {
    int nr;
    const char *name;
    enum when when;
    struct cond cond[2];
} rows[] = {
    /* channel, log pipe, memfds, weight files */
    {SYS(read), ALWAYS, {{0}}},
    {SYS(readv), ALWAYS, {{0}}},
    {SYS(pread64), ALWAYS, {{0}}},
    {SYS(write), ALWAYS, {{0}}},
    {SYS(writev), ALWAYS, {{0}}},
    {SYS(pwrite64), ALWAYS, {{0}}},
    {SYS(recvmsg), ALWAYS, {{0}}},
    {SYS(sendmsg), ALWAYS, {{0}}},
    {SYS(recvfrom), ALWAYS, {{0}}},
    {SYS(sendto), ALWAYS, {{0}}},
    {SYS(poll), ALWAYS, {{0}}},
    {SYS(ppoll), ALWAYS, {{0}}},
    {SYS(close), ALWAYS, {{0}}},
    {SYS(dup), ALWAYS, {{0}}},
    {SYS(lseek), ALWAYS, {{0}}},
    {SYS(fstat), ALWAYS, {{0}}},
    {SYS(newfstatat), ALWAYS, {{0}}}, /* glibc's fstat */
    {SYS(statx), ALWAYS, {{0}}},
    {SYS(fadvise64), ALWAYS, {{0}}},
    {SYS(memfd_create), ALWAYS, {{0}}},
    {SYS(fstatfs), ALWAYS, {{0}}}, /* ipc: is this memfd plain memory? */
    {SYS(ftruncate), ALWAYS, {{0}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_GETFD}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_SETFD}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_GETFL}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_SETFL}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_DUPFD_CLOEXEC}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_ADD_SEALS}}},
    {SYS(fcntl), ALWAYS, {{1, INT, F_GET_SEALS}}},
    /* opening for reading; Landlock decides where. openat2 hides its flags in
     * memory, so there Landlock alone forbids writing */
    {SYS(openat), DIR_ROOT, {{2, WRITE_FLAGS, O_RDONLY}}},
    {SYS(openat2), DIR_ROOT, {{0}}},
    {SYS(getdents64), DIR_ROOT, {{0}}},
    /* memory: never executable */
    {SYS(mmap), ALWAYS, {{2, PROT_EXEC, 0}}},
    {SYS(mprotect), ALWAYS, {{2, PROT_EXEC, 0}}},
    {SYS(munmap), ALWAYS, {{0}}},
    {SYS(mremap), ALWAYS, {{0}}},
    {SYS(madvise), ALWAYS, {{0}}},
    {SYS(brk), ALWAYS, {{0}}},
    /* threads, never processes */
    {SYS(clone), ALWAYS, {{0, THREAD_FLAGS | NS_FLAGS, THREAD_FLAGS}}},
    {SYS(set_robust_list), ALWAYS, {{0}}},
    {SYS(rseq), ALWAYS, {{0}}},
    {SYS(futex), ALWAYS, {{0}}},
    {SYS(sched_yield), ALWAYS, {{0}}},
    {SYS(sched_getaffinity), ALWAYS, {{0}}},
    {SYS(sched_setaffinity), ALWAYS, {{0, INT, 0}}}, /* pool threads pin themselves */
    {SYS(getcpu), ALWAYS, {{0}}},
    {SYS(membarrier), ALWAYS, {{0}}},
    {SYS(gettid), ALWAYS, {{0}}},
    {SYS(getpid), ALWAYS, {{0}}},
    {SYS(exit), ALWAYS, {{0}}},
    {SYS(exit_group), ALWAYS, {{0}}},
    {SYS(restart_syscall), ALWAYS, {{0}}},
    /* signals: our own handlers (weights that vanish), abort() */
    {SYS(rt_sigaction), ALWAYS, {{0}}},
    {SYS(rt_sigprocmask), ALWAYS, {{0}}},
    {SYS(rt_sigreturn), ALWAYS, {{0}}},
    {SYS(sigaltstack), ALWAYS, {{0}}},
    /* time and chance */
    {SYS(clock_gettime), ALWAYS, {{0}}},
    {SYS(clock_getres), ALWAYS, {{0}}},
    {SYS(clock_nanosleep), ALWAYS, {{0}}},
    {SYS(nanosleep), ALWAYS, {{0}}},
    {SYS(gettimeofday), ALWAYS, {{0}}},
    {SYS(getrandom), ALWAYS, {{0}}},
    {SYS(getrusage), ALWAYS, {{0}}},
    {SYS(sysinfo), ALWAYS, {{0}}}, /* glibc's qsort asks for physical pages */
    {SYS(prlimit64), ALWAYS, {{0, INT, 0}, {2, ALL, 0}}},        /* read our own only */
    {SYS(prctl), ALWAYS, {{0, INT, PR_SET_NAME}}},               /* thread names */
    {SYS(prctl), ALWAYS, {{0, INT, 0x53564d41}}},                /* PR_SET_VMA: heap names */
    {SYS(seccomp), ALWAYS, {{0, INT, SECCOMP_SET_MODE_FILTER}}}, /* only narrows */
    /* a driver: control of its nodes, its own wake-ups, questions about itself. ioctl cannot be
     * told apart by path here; what is open is what Landlock let through */
    {SYS(ioctl), DEVICE, {{0}}},
    {SYS(openat), DEVICE, {{2, O_CREAT | O_TRUNC | O_APPEND, 0}}},
    {SYS(getdents64), DEVICE, {{0}}},
    {SYS(readlink), DEVICE, {{0}}},
    {SYS(readlinkat), DEVICE, {{0}}},
    {SYS(access), DEVICE, {{0}}},
    {SYS(faccessat), DEVICE, {{0}}},
    {SYS(faccessat2), DEVICE, {{0}}},
    {SYS(statfs), DEVICE, {{0}}},
    {SYS(stat), DEVICE, {{0}}},
    {SYS(lstat), DEVICE, {{0}}},
    {SYS(mlock), DEVICE, {{0}}},
    {SYS(munlock), DEVICE, {{0}}},
    {SYS(mincore), DEVICE, {{0}}},
    {SYS(eventfd2), DEVICE, {{0}}},
    {SYS(pipe2), DEVICE, {{0}}},
    {SYS(epoll_create1), DEVICE, {{0}}},
    {SYS(epoll_ctl), DEVICE, {{0}}},
    {SYS(epoll_wait), DEVICE, {{0}}},
    {SYS(epoll_pwait), DEVICE, {{0}}},
    {SYS(uname), DEVICE, {{0}}},
    {SYS(getuid), DEVICE, {{0}}},
    {SYS(geteuid), DEVICE, {{0}}},
    {SYS(getgid), DEVICE, {{0}}},
    {SYS(getegid), DEVICE, {{0}}},
    {SYS(getppid), DEVICE, {{0}}},
    {SYS(get_mempolicy), DEVICE, {{0}}},
    {SYS(sched_getscheduler), DEVICE, {{0}}},
    {SYS(sched_getparam), DEVICE, {{0}}},
    {SYS(sched_get_priority_max), DEVICE, {{0}}},
    {SYS(sched_get_priority_min), DEVICE, {{0}}},
    {SYS(getrlimit), DEVICE, {{0}}},
    {SYS(pselect6), DEVICE, {{0}}},
    /* be_kcache.c: temporary file, fsync, rename, removal, time of use; Landlock says where */
    {SYS(openat), CACHE, {{2, O_ACCMODE | O_CREAT | O_EXCL, O_WRONLY | O_CREAT | O_EXCL}}},
    {SYS(fsync), CACHE, {{0}}},
    {SYS(renameat), CACHE, {{0}}},
    {SYS(unlinkat), CACHE, {{2, INT, 0}}},
    {SYS(utimensat), CACHE, {{0}}},
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* sanitizer runtimes: stack bounds, reports */
    {SYS(getrlimit), ALWAYS, {{0}}},
    {SYS(getuid), ALWAYS, {{0}}},
    {SYS(geteuid), ALWAYS, {{0}}},
    {SYS(getppid), ALWAYS, {{0}}},
    {SYS(mincore), ALWAYS, {{0}}},
    {SYS(msync), ALWAYS, {{0}}},
    {SYS(uname), ALWAYS, {{0}}},
#endif
};

/* Calls that libraries make in passing and survive without. */
static const struct {
    int nr;
    const char *name;
    int error;
} soft[] = {
    {SYS(clone3), ENOSYS}, /* its flags hide in memory: glibc falls back to clone */
    {SYS(open), EACCES},         {SYS(readlink), EACCES},  {SYS(readlinkat), EACCES},
    {SYS(access), EACCES},       {SYS(faccessat), EACCES}, {SYS(faccessat2), EACCES},
    {SYS(ioctl), ENOTTY}, /* isatty */
    {SYS(statfs), EACCES},       {SYS(mlock), EPERM},      {SYS(mlock2), EPERM},
    {SYS(set_mempolicy), EPERM}, {SYS(mbind), EPERM},
};

/* With a device too, these end the process: nothing honest tries them. */
static const struct {
    int nr;
    const char *name;
} deadly[] = {
    {SYS(execve)},      {SYS(execveat)},
    {SYS(fork)},        {SYS(vfork)},
    {SYS(ptrace)},      {SYS(process_vm_readv)},
    {SYS(setuid)},      {SYS(process_vm_writev)},
    {SYS(unshare)},     {SYS(setns)},
    {SYS(mount)},       {SYS(io_uring_setup)},
    {SYS(bpf)},         {SYS(userfaultfd)},
    {SYS(kexec_load)},  {SYS(keyctl)},
    {SYS(init_module)}, {SYS(perf_event_open)},
};

static bool applies(const struct wrk_sbx *s, enum when w)
{
    switch (w) {
    case DIR_ROOT:
        return s->root_is_dir;
    case DEVICE:
        return s->device != NULL;
    case CACHE:
        return s->device != NULL && s->device->rw_dir != NULL;
    default:
        return true;
    }
}

/* A row of the table grants this call as it is: no error for it then. */
static bool granted(const struct wrk_sbx *s, int nr)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].nr == nr && rows[i].cond[0].mask == 0 && applies(s, rows[i].when))
            return true;
    return false;
}

static int add_row(scmp_filter_ctx ctx, const struct row *r)
{
    struct scmp_arg_cmp cmp[2];
    unsigned n = 0;

    if (r->nr < 0)
        return 0; /* not a call of this architecture */
    for (unsigned i = 0; i < 2; i++)
        if (r->cond[i].mask != 0)
            cmp[n++] =
                SCMP_CMP(r->cond[i].arg, SCMP_CMP_MASKED_EQ, r->cond[i].mask, r->cond[i].want);
    return seccomp_rule_add_array(ctx, SCMP_ACT_ALLOW, r->nr, n, cmp);
}

bool wrk_sbx_seccomp(const struct wrk_sbx *s, char *detail)
{
    scmp_filter_ctx ctx = seccomp_init(s->device ? SCMP_ACT_ERRNO(EPERM) : SCMP_ACT_KILL_PROCESS);
    const char *step = "seccomp_init";
    unsigned n = 0;
    int e = ctx == NULL ? -ENOMEM : 0;

    if (e == 0) {
        step = "attributes (needs Linux 4.14)";
        if ((e = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS)) == 0 &&
            (e = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1)) == 0 &&
            (e = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_NNP, 0)) == 0)
            e = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* binary tree */
    }
    for (size_t i = 0; e == 0 && i < sizeof(rows) / sizeof(rows[0]); i++) {
        step = rows[i].name;
        if (!applies(s, rows[i].when))
            continue;
        if ((e = add_row(ctx, &rows[i])) == -EEXIST) /* a sanitizer asked for it too */
            e = 0;
        n++;
    }
    for (size_t i = 0; e == 0 && i < sizeof(soft) / sizeof(soft[0]); i++) {
        step = soft[i].name;
        if (s->device && soft[i].error == EPERM) /* what the filter does in any case */
            continue;
        if (soft[i].nr >= 0 && !granted(s, soft[i].nr))
            e = seccomp_rule_add(ctx, SCMP_ACT_ERRNO((unsigned)soft[i].error), soft[i].nr, 0);
    }
    for (size_t i = 0; e == 0 && s->device && i < sizeof(deadly) / sizeof(deadly[0]); i++) {
        step = deadly[i].name;
        if (deadly[i].nr >= 0)
            e = seccomp_rule_add(ctx, SCMP_ACT_KILL_PROCESS, deadly[i].nr, 0);
    }
    if (e == 0 && s->device) { /* a clone that makes no thread */
        step = "clone";
        e = seccomp_rule_add(ctx, SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    }
    if (e == 0 && !s->root_is_dir && !s->device) {
        /* a library that looks for /proc or /sys gets an error, not death */
        step = "openat";
        if ((e = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat), 1,
                                  SCMP_A2(SCMP_CMP_MASKED_EQ, WRITE_FLAGS, O_RDONLY))) == 0)
            e = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat2), 0);
    }
    /* tgkill to ourselves: abort() and raise() */
    if (e == 0) {
        step = "tgkill";
        e = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                             SCMP_A0(SCMP_CMP_EQ, (uint64_t)getpid()));
    }
    if (e == 0) {
        step = "seccomp_load";
        e = seccomp_load(ctx);
    }
    if (ctx != NULL)
        seccomp_release(ctx);
    if (e != 0) {
        snprintf(detail, WRK_DETAIL_MAX, "%s: %s", step, strerror(-e));
        return false;
    }
    snprintf(detail, WRK_DETAIL_MAX,
             s->device
                 ? "%u rules; anything else is refused, exec, fork and ptrace kill; ioctl is "
                   "allowed on what is open"
                 : "%u rules; anything else kills: sockets, exec, fork, ptrace, writing files",
             n);
    return true;
}

static enum rc seal(uint32_t action, struct rc_err *err)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog) != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "seccomp", "sealing the threads: %m");
    return RC_OK;
}

enum rc wrk_sandbox_seal(struct rc_err *err)
{
    return seal(SECCOMP_RET_KILL_PROCESS, err);
}

enum rc wrk_sandbox_seal_device(struct rc_err *err)
{
    return seal(SECCOMP_RET_ERRNO | EAGAIN, err);
}
