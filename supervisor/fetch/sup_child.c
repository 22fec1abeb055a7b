/* sup_child.c - fork, descriptors, last words.
 *
 * Change with care: code between fork and sandbox. Tests: tests/e2e/pull.py */
#include "sup_child.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc.h"

/* 0 to 2 are nothing, 3 the channel, then those given, and no other is open. */
static bool only(int channel, const int *fds, size_t n_fds)
{
    int high[1 + SUP_CHILD_FDS], null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0 || n_fds > SUP_CHILD_FDS)
        return false;
    for (size_t i = 0; i <= n_fds; i++)
        if ((high[i] = fcntl(i ? fds[i - 1] : channel, F_DUPFD_CLOEXEC, 64)) < 0)
            return false;
    for (int i = 0; i < 3; i++)
        if (dup2(null, i) < 0)
            return false;
    for (size_t i = 0; i <= n_fds; i++)
        if (dup2(high[i], SUP_CHILD_CHANNEL + (int)i) < 0)
            return false;
    return syscall(SYS_close_range, (unsigned)(SUP_CHILD_FIRST + n_fds), ~0u, 0u) == 0;
}

static _Noreturn void be(void (*main)(void *user), void *user, pid_t parent, int channel,
                         const int *fds, size_t n_fds)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    signal(SIGINT, SIG_IGN); /* the parent decides what Ctrl-C means */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (!only(channel, fds, n_fds))
        _exit(1);
    (void)unsetenv("HF_TOKEN");
    main(user);
    _exit(0);
}

enum rc sup_child_start(struct sup_child *c, void (*main)(void *user), void *user, const int *fds,
                        size_t n_fds, struct rc_err *err)
{
    pid_t parent = getpid();
    int pair[2];
    enum rc rc = ipc_pair(pair, err);

    if (rc != RC_OK)
        return rc;
    fflush(NULL);
    if ((c->pid = fork()) == 0)
        be(main, user, parent, pair[1], fds, n_fds);
    close(pair[1]);
    c->fd = pair[0];
    if (c->pid < 0) {
        c->pid = 0;
        close(c->fd);
        return rc_fail(err, RC_IO, "the process that fetches cannot be started: %s",
                       strerror(errno));
    }
    return RC_OK;
}

int sup_child_end(struct sup_child *c)
{
    int status = 0;

    if (!c->pid)
        return 0;
    close(c->fd); /* one that has said its word is past reading it */
    if (waitpid(c->pid, &status, WNOHANG) == 0) {
        (void)kill(c->pid, SIGKILL);
        while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    c->pid = 0;
    return status;
}

void sup_child_walls(Ipc__FetchWalls *out, const struct sup_walls_told *t)
{
    out->pid = t->pid;
    out->held = (char **)(uintptr_t)t->held;
    out->n_held = t->n_held;
    out->missing = (char **)(uintptr_t)t->missing;
    out->n_missing = t->n_missing;
}

static void say_walls(const struct sup_walls_layer *layers)
{
    char *names[SUP_WALLS_MAX];
    struct sup_walls_told told;
    Ipc__FetchWalls w = IPC__FETCH_WALLS__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    sup_walls_tell(layers, SUP_FETCH_LAYERS, names, &told);
    sup_child_walls(&w, &told);
    m.body_case = IPC__FETCH__BODY_WALLS;
    m.walls = &w;
    (void)ipc_send(SUP_CHILD_CHANNEL, &m.base, NULL, 0, NULL);
}

enum rc sup_child_narrow(const char *mode, enum sup_fetch_errand errand, int dir_fd,
                         const char *read_path, struct rc_err *err)
{
    struct sup_walls_layer layers[SUP_FETCH_LAYERS];
    enum rc rc;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return rc_fail(err, RC_INTERNAL, "libcurl cannot start");
    if ((rc = sup_fetch_sandbox(mode, errand, dir_fd, read_path, layers, err)) == RC_OK)
        say_walls(layers);
    return rc;
}

void sup_child_say(Ipc__FetchDone *d, enum rc rc, const struct rc_err *err, int fd)
{
    Ipc__Fetch m = IPC__FETCH__INIT;

    d->code = (uint32_t)rc;
    d->message.data = (uint8_t *)(uintptr_t)err->msg;
    d->message.len = strlen(err->msg);
    m.body_case = IPC__FETCH__BODY_DONE;
    m.done = d;
    (void)ipc_send(SUP_CHILD_CHANNEL, &m.base, fd >= 0 ? &fd : NULL, fd >= 0, NULL);
}

enum rc sup_child_said(const Ipc__FetchDone *d, struct rc_err *err)
{
    size_t n = d->message.len < sizeof(err->msg) ? d->message.len : sizeof(err->msg) - 1;
    enum rc rc = rc_from_wire(d->code);

    if (rc == RC_OK)
        return RC_OK;
    if (!ipc_utf8_valid(d->message.data, n))
        n = 0;
    return rc_fail(err, rc, "%.*s", (int)n, n ? (const char *)d->message.data : "");
}
