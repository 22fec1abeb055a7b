/* sup_spawn.c - how a worker comes to life.
 *
 * The child gets an empty environment and exactly the descriptors 0 to 4 of
 * sup_launcher.h. SIGTERM and SIGINT are ignored across exec: a service manager
 * that signals the whole group must not cut streams that may still finish; the
 * launcher ends workers with SIGKILL, their channel's end, or its own death.
 * Change with care: child_run may call async-signal-safe functions only.
 * Tests: tests/supervisor/test_sup_launcher.c
 */
#include "sup_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_conf.h"
#include "sup_launcher.h"

#define EXE_FD 5        /* behind the worker's own; closed by exec */
#define HIGH_FD 64      /* sources are moved above the targets first */
#define OOM_ADJ "500\n" /* a worker goes before the supervisor does */

enum rc sup_spawn_find(int *out_exe_fd, const struct sup_conf *conf, struct rc_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    int fd;

    if (conf->worker && conf->worker[0]) {
        snprintf(path, sizeof(path), "%s", conf->worker);
    } else {
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
        char *slash;

        if (n <= 0)
            return rc_fail(err, RC_IO, "/proc/self/exe: %s", strerror(errno));
        path[n] = '\0';
        slash = strrchr(path, '/');
        if (!slash || (size_t)(slash + 1 - path) + sizeof("inferd-worker") > sizeof(path))
            return rc_fail(err, RC_IO, "the path of this program is too long");
        memcpy(slash + 1, "inferd-worker", sizeof("inferd-worker"));
    }
    if ((fd = open(path, O_PATH | O_CLOEXEC)) < 0)
        return rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "worker",
                            "the worker program '%s' cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || faccessat(AT_FDCWD, path, X_OK, 0) != 0) {
        close(fd);
        return rc_fail_what(err, RC_IO, "worker", "the worker program '%s' is not executable",
                            path);
    }
    *out_exe_fd = fd;
    return RC_OK;
}

bool sup_spawn_tie(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return false;
    /* the parent may have died before prctl: then no signal ever comes */
    if (getppid() != parent)
        return false;
    (void)setsid();
    return true;
}

struct plan {
    pid_t parent;
    int null_fd, err_fd, channel_fd, root_fd, exe_fd;
    char *const *argv;
};

/* Only what signal-safety(7) allows, and direct system calls. */
static void child_run(const struct plan *p)
{
    static char *const empty_env[] = {NULL};
    const int src[] = {p->null_fd, p->err_fd, p->err_fd, p->channel_fd, p->root_fd};
    int high[5], exe, adj;
    sigset_t none;

    if (!sup_spawn_tie(p->parent))
        _exit(126);
    /* /proc/self/oom_score_adj is ours to write only while dumpable; exec resets
     * the flag anyway. Best effort. */
    (void)prctl(PR_SET_DUMPABLE, 1);
    if ((adj = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)) >= 0) {
        ssize_t r = write(adj, OOM_ADJ, sizeof(OOM_ADJ) - 1);

        (void)r;
    }
    for (int i = 0; i < 5; i++)
        if ((high[i] = fcntl(src[i], F_DUPFD_CLOEXEC, HIGH_FD)) < 0)
            _exit(126);
    if ((exe = fcntl(p->exe_fd, F_DUPFD_CLOEXEC, HIGH_FD)) < 0)
        _exit(126);
    for (int i = 0; i < 5; i++)
        if (dup2(high[i], i) < 0)
            _exit(126);
    if (dup3(exe, EXE_FD, O_CLOEXEC) < 0 || syscall(SYS_close_range, EXE_FD + 1, ~0u, 0) != 0)
        _exit(126);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    syscall(SYS_execveat, EXE_FD, "", p->argv, empty_env, AT_EMPTY_PATH);
    _exit(127);
}

static void close_all(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* The words of a worker's command line. The device is named here and not on the channel: the
 * worker opens its driver before its last filter, and nothing a peer says may choose a library. */
#define WORDS_MAX 16
struct words {
    char *argv[WORDS_MAX + 1];
    size_t n, used;
    bool over;
    char text[3 * PATH_MAX + 1024];
};

__attribute__((format(printf, 2, 3))) static void word(struct words *w, const char *fmt, ...)
{
    size_t room = sizeof(w->text) - w->used;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(w->text + w->used, room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room || w->n == WORDS_MAX) {
        w->over = true;
        return;
    }
    w->argv[w->n++] = w->text + w->used;
    w->used += (size_t)n + 1;
}

static void word_of(struct words *w, const char *name, const char *value)
{
    if (value && *value)
        word(w, "--%s=%s", name, value);
}

static void make_words(struct words *w, const struct sup_conf *c, bool probe)
{
    word(w, "inferd-worker");
    word(w, "--serve");
    word(w, "--sandbox=%s", c->sandbox);
    word(w, "--threads=%llu", probe ? 1ull : (unsigned long long)c->threads);
    if (probe || !c->backend || strcmp(c->backend, "cpu") == 0)
        return;
    word_of(w, "backend", c->backend);
    word(w, "--device=%llu", (unsigned long long)c->device);
    word(w, "--workspace-bytes=%llu", (unsigned long long)c->workspace_mb << 20);
    word_of(w, "compute", c->compute);
    word_of(w, "jit", c->jit);
    word_of(w, "jit-cache-dir", c->jit_cache_dir);
    word(w, "--jit-cache-bytes=%llu", (unsigned long long)c->jit_cache_bytes);
    word_of(w, "cuda-library", c->cuda_library);
    word_of(w, "nvrtc-library", c->nvrtc_library);
}

enum rc sup_spawn_worker(struct sup_spawned *out, int exe_fd, int root_fd,
                         const struct sup_conf *conf, bool probe, struct rc_err *err)
{
    struct words *w = calloc(1, sizeof(*w));
    int pair[2] = {-1, -1}, pipe_fd[2] = {-1, -1}, null_fd = -1;
    struct plan plan;
    enum rc rc = RC_OK;
    pid_t pid;

    if (!w)
        return rc_fail(err, RC_NOMEM, "no memory to start a worker");
    make_words(w, conf, probe);
    if (w->over) {
        rc = rc_fail(err, RC_TOO_LARGE, "the paths of the device's options are too long");
        goto out;
    }
    if ((rc = ipc_pair(pair, err)) != RC_OK)
        goto out;
    /* Both ends never block: lines are lost rather than a worker held up. */
    if (pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) != 0 ||
        (null_fd = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0) {
        rc = rc_fail(err, RC_IO, "starting a worker: %s", strerror(errno));
        goto out;
    }
    plan = (struct plan){getpid(), null_fd, pipe_fd[1], pair[1], root_fd, exe_fd, w->argv};
    if ((pid = fork()) < 0) {
        rc = rc_fail(err, errno == ENOMEM ? RC_NOMEM : RC_IO, "fork: %s", strerror(errno));
        goto out;
    }
    if (pid == 0)
        child_run(&plan);
    *out = (struct sup_spawned){pid, pair[0], pipe_fd[0]};
    pair[0] = pipe_fd[0] = -1;
out:
    close_all(pair, 2);
    close_all(pipe_fd, 2);
    close_all(&null_fd, 1);
    free(w);
    return rc;
}
