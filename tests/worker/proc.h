/* proc.h - a real inferd-worker behind a socketpair, for tests.
 *
 * Spawns as the launcher does: empty environment, /dev/null on 0, channel on 3,
 * model root on 4, errors to our stderr. Header-only: each test is one file.
 */
#ifndef TEST_WORKER_PROC_H
#define TEST_WORKER_PROC_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc.h"

struct proc {
    pid_t pid;
    int fd; /* our end of the channel */
};

/* root: path of a model file or directory. mute: errors go to /dev/null. */
static inline bool proc_start(struct proc *p, const char *exe, const char *sandbox,
                              const char *root, bool mute)
{
    int fds[2], null_fd, root_fd;
    char mode[64];

    *p = (struct proc){-1, -1};
    snprintf(mode, sizeof(mode), "--sandbox=%s", sandbox);
    if (ipc_pair(fds, NULL) != RC_OK)
        return false;
    if ((root_fd = open(root, O_RDONLY | O_CLOEXEC)) < 0)
        return false;
    if ((p->pid = fork()) == 0) {
        char *argv[] = {(char *)"inferd-worker", (char *)"--serve", mode, (char *)"--threads=2",
                        NULL};
        char *envp[] = {NULL};
        int ch = fcntl(fds[1], F_DUPFD, 10), rt = fcntl(root_fd, F_DUPFD, 10);

        null_fd = open("/dev/null", O_RDWR);
        dup2(null_fd, 0);
        if (mute)
            dup2(null_fd, 2);
        dup2(2, 1);
        dup2(ch, 3);
        dup2(rt, 4);
        execve(exe, argv, envp);
        _exit(127);
    }
    close(root_fd);
    close(fds[1]);
    p->fd = fds[0];
    return p->pid > 0;
}

/* Next frame, or NULL at the end of the stream; the wait is bounded only so that
 * a broken worker fails the test instead of hanging it. */
static inline Ipc__Frame *proc_next(struct proc *p)
{
    struct pollfd pfd = {.fd = p->fd, .events = POLLIN};
    ProtobufCMessage *m = NULL;

    if (poll(&pfd, 1, 120000) <= 0)
        return NULL;
    if (ipc_recv(p->fd, &ipc__frame__descriptor, &m, NULL, NULL, NULL) != RC_OK)
        return NULL;
    return (Ipc__Frame *)m;
}

/* Next frame of kind `body`; others (Stats, Log, Progress) are skipped. */
static inline Ipc__Frame *proc_want(struct proc *p, Ipc__Frame__BodyCase body)
{
    Ipc__Frame *f;

    while ((f = proc_next(p)) != NULL && f->body_case != body)
        ipc__frame__free_unpacked(f, NULL);
    return f;
}

static inline bool proc_send(struct proc *p, const Ipc__Frame *f)
{
    return ipc_send(p->fd, (const ProtobufCMessage *)f, NULL, 0, NULL) == RC_OK;
}

static inline bool proc_hello(struct proc *p, const Ipc__Budgets *b)
{
    Ipc__Hello h = IPC__HELLO__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;

    h.version = IPC_VERSION;
    h.budgets = (Ipc__Budgets *)b;
    h.backend = (char *)"cpu";
    f.body_case = IPC__FRAME__BODY_HELLO;
    f.hello = &h;
    return proc_send(p, &f);
}

/* Sends a message without fields. */
static inline bool proc_send_empty(struct proc *p, uint64_t task, Ipc__Frame__BodyCase body)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Drain drain = IPC__DRAIN__INIT;
    Ipc__Cancel cancel = IPC__CANCEL__INIT;
    Ipc__Load load = IPC__LOAD__INIT;
    Ipc__CacheBudget budget = IPC__CACHE_BUDGET__INIT;

    f.task = task;
    f.body_case = body;
    if (body == IPC__FRAME__BODY_DRAIN)
        f.drain = &drain;
    else if (body == IPC__FRAME__BODY_CANCEL)
        f.cancel = &cancel;
    else if (body == IPC__FRAME__BODY_CACHE_BUDGET)
        f.cache_budget = &budget;
    else
        f.load = &load;
    return proc_send(p, &f);
}

/* Closes the channel and reaps. Returns the status of waitpid. */
static inline int proc_end(struct proc *p)
{
    int status = -1;

    close(p->fd);
    waitpid(p->pid, &status, 0);
    return status;
}

/* Reaps without closing first: the worker must end by itself. */
static inline int proc_wait(struct proc *p)
{
    int status = -1;

    waitpid(p->pid, &status, 0);
    close(p->fd);
    return status;
}

#endif
