/* wrk_sandbox_process.c - the layers that are attributes of a process.
 *
 * Descriptors, environment, rlimits, namespaces, capabilities, dumpable,
 * parent-death signal, no_new_privs. Each function applies one and reads it back
 * where the kernel lets it. Never touches the channel or the model root.
 * Change freely: the table of rlimits. Tests: tests/worker/test_wrk_sandbox.c
 */
#include "wrk_sandbox_impl.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc.h"
#include "wrk_start.h"

extern char **environ;

__attribute__((format(printf, 2, 3))) static void say(char *detail, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, WRK_DETAIL_MAX, fmt, ap);
    va_end(ap);
}

bool wrk_sbx_thread(const struct wrk_sbx *s, char *detail)
{
    unsigned n = wrk_start_count_threads();

    (void)s;
#if defined(__SANITIZE_THREAD__)
    /* ThreadSanitizer keeps a background thread of its own */
    if (n == 2) {
        say(detail, "one thread, and ThreadSanitizer's own");
        return true;
    }
#endif
    if (n == 0)
        say(detail, "/proc/self/task cannot be read: mount /proc");
    else if (n == 1)
        say(detail, "no thread exists that the per-thread layers could miss");
    else
        say(detail, "%u threads already run: a library started them before main()", n);
    return n == 1;
}

bool wrk_sbx_fds(const struct wrk_sbx *s, char *detail)
{
    int keep[2] = {s->channel_fd, s->root_fd};
    unsigned from = 3; /* 0, 1, 2: /dev/null and the log pipe */

    if (keep[0] > keep[1]) {
        keep[0] = s->root_fd;
        keep[1] = s->channel_fd;
    }
    for (int i = 0; i < 2; i++) {
        if (keep[i] < (int)from)
            continue;
        if ((unsigned)keep[i] > from &&
            syscall(SYS_close_range, from, (unsigned)keep[i] - 1, 0) != 0)
            goto no;
        from = (unsigned)keep[i] + 1;
    }
    if (syscall(SYS_close_range, from, ~0u, 0) != 0)
        goto no;
    say(detail, "open: 0-2, channel %d, model root %d", s->channel_fd, s->root_fd);
    return true;
no:
    say(detail, "close_range: %s (needs Linux 5.9)", strerror(errno));
    return false;
}

bool wrk_sbx_env(const struct wrk_sbx *s, char *detail)
{
    size_t n = 0;

    (void)s;
    for (char **e = environ; e != NULL && *e != NULL; e++, n++)
        explicit_bzero(*e, strlen(*e)); /* secrets of a careless parent */
    if (n == 0) {
        say(detail, "came empty");
        return true;
    }
    clearenv();
    say(detail, "%zu variables wiped", n);
    return true;
}

bool wrk_sbx_netns(const struct wrk_sbx *s, char *detail)
{
    const int ns = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;

    (void)s;
    if (unshare(ns) == 0) {
        say(detail, "own network, IPC and UTS namespaces");
        return true;
    }
    if (unshare(CLONE_NEWUSER | ns) == 0) {
        say(detail, "own user, network, IPC and UTS namespaces");
        return true;
    }
    say(detail, "unshare: %s; optional, seccomp kills socket calls in any case", strerror(errno));
    return false;
}

bool wrk_sbx_caps(const struct wrk_sbx *s, char *detail)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[2] = {{0}};

    (void)s;
    /* without CAP_SETPCAP the bounding set stays; no_new_privs makes it moot */
    for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
        prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &h, d) != 0) {
        say(detail, "capset: %s", strerror(errno));
        return false;
    }
    h.pid = 0;
    if (syscall(SYS_capget, &h, d) != 0 || d[0].effective || d[0].permitted || d[0].inheritable ||
        d[1].effective || d[1].permitted || d[1].inheritable) {
        say(detail, "capabilities remain after capset");
        return false;
    }
    say(detail, "none");
    return true;
}

bool wrk_sbx_limits(const struct wrk_sbx *s, char *detail)
{
    /* FSIZE cannot be 0: it also bounds ftruncate of a memfd, which carries big
     * answers; no file can be opened for writing in any case. NPROC counts per
     * user, so it would depend on strangers: seccomp forbids new processes. */
    const rlim_t files = s->device ? 1024 : 256; /* a driver opens each device several times */
    const struct {
        int what;
        const char *name;
        rlim_t max;
    } table[] = {
        {RLIMIT_CORE, "core", 0},         {RLIMIT_FSIZE, "fsize", IPC_BODY_MAX},
        {RLIMIT_NOFILE, "nofile", files}, {RLIMIT_MSGQUEUE, "msgqueue", 0},
        {RLIMIT_RTPRIO, "rtprio", 0},     {RLIMIT_MEMLOCK, "memlock", 0},
    };
    /* staging memory is locked by the driver */
    const size_t n = sizeof(table) / sizeof(table[0]) - (s->device ? 1 : 0);

    for (size_t i = 0; i < n; i++) {
        struct rlimit want = {table[i].max, table[i].max}, have;

        if (getrlimit((__rlimit_resource_t)table[i].what, &have) == 0 &&
            have.rlim_max < want.rlim_max)
            want.rlim_cur = want.rlim_max = have.rlim_max;
        if (setrlimit((__rlimit_resource_t)table[i].what, &want) != 0) {
            say(detail, "setrlimit(%s): %s", table[i].name, strerror(errno));
            return false;
        }
    }
    say(detail, "core 0, open files %u, %sfile size %llu MiB (memfd)", (unsigned)files,
        s->device ? "" : "locked memory 0, ", (unsigned long long)(IPC_BODY_MAX >> 20));
    return true;
}

bool wrk_sbx_dump(const struct wrk_sbx *s, char *detail)
{
    (void)s;
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0) {
        say(detail, "prctl(PR_SET_DUMPABLE): %s", strerror(errno));
        return false;
    }
    say(detail, "not dumpable: no core, no ptrace, no /proc/PID/mem by the same user");
    return true;
}

bool wrk_sbx_parent(const struct wrk_sbx *s, char *detail)
{
    int sig = 0;

    (void)s;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0 ||
        prctl(PR_GET_PDEATHSIG, &sig, 0, 0, 0) != 0 || sig != SIGKILL) {
        say(detail, "prctl(PR_SET_PDEATHSIG): %s", strerror(errno));
        return false;
    }
    say(detail, "SIGKILL when the parent dies");
    return true;
}

bool wrk_sbx_nnp(const struct wrk_sbx *s, char *detail)
{
    (void)s;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) {
        say(detail, "prctl(PR_SET_NO_NEW_PRIVS): %s", strerror(errno));
        return false;
    }
    say(detail, "set");
    return true;
}
