/* sup_roles.c - birth of the roles: channels first, then one fork each.
 *
 * Always true: a child keeps its own ends and nothing else; no role is forked after the
 * front, so no listener is ever inherited. Tests: tests/supervisor/test_sup_launcher.c
 */
#include "sup_roles.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc.h"
#include "sup_spawn.h"

#define LAUNCHER SUP_ROLE_COUNT /* its row and column among the ends */
#define ENDS (SUP_ROLE_COUNT + 1)

static const char *const names[SUP_ROLE_COUNT] = {
#define X(id, word) [SUP_ROLE_##id] = word,
    SUP_ROLES(X)
#undef X
};

const char *sup_role_name(enum sup_role_id id)
{
    return id < SUP_ROLE_COUNT ? names[id] : "?";
}

/* end[a][b]: the descriptor by which a talks to b, or -1. */
struct ends {
    int end[ENDS][ENDS];
};

static enum rc join(struct ends *e, int a, int b, struct rc_err *err)
{
    int pair[2];
    enum rc rc;

    if (e->end[a][b] >= 0)
        return RC_OK;
    if ((rc = ipc_pair(pair, err)) != RC_OK)
        return rc;
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    fcntl(pair[1], F_SETFL, O_NONBLOCK);
    e->end[a][b] = pair[0];
    e->end[b][a] = pair[1];
    return RC_OK;
}

static void close_all_but(struct ends *e, int keep)
{
    for (int a = 0; a < ENDS; a++)
        for (int b = 0; b < ENDS; b++)
            if (a != keep && e->end[a][b] >= 0) {
                close(e->end[a][b]);
                e->end[a][b] = -1;
            }
}

static unsigned wanted_bits(const struct sup_role *roles, size_t n, const struct sup_conf *conf)
{
    unsigned bits = 0;

    for (size_t i = 0; i < n; i++)
        if (!roles[i].wanted || roles[i].wanted(conf))
            bits |= 1u << roles[i].id;
    return bits;
}

static enum rc make_ends(struct ends *e, const struct sup_role *roles, size_t n, unsigned wanted,
                         struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (int a = 0; a < ENDS; a++)
        for (int b = 0; b < ENDS; b++)
            e->end[a][b] = -1;
    for (size_t i = 0; rc == RC_OK && i < n; i++) {
        if (!(wanted & 1u << roles[i].id))
            continue;
        rc = join(e, LAUNCHER, (int)roles[i].id, err);
        for (int b = 0; rc == RC_OK && b < SUP_ROLE_COUNT; b++)
            if (roles[i].peers & wanted & 1u << b)
                rc = join(e, (int)roles[i].id, b, err);
    }
    return rc;
}

/* The child's life. */
static _Noreturn void be(const struct sup_role *r, struct ends *e, const struct sup_conf *conf,
                         pid_t parent, int close_fd, const sigset_t *mask)
{
    struct sup_role_fds fds = {.launcher = e->end[r->id][LAUNCHER]};
    int status;

    if (!sup_spawn_tie(parent))
        _exit(126);
    close_all_but(e, (int)r->id);
    close(close_fd);
    for (int b = 0; b < SUP_ROLE_COUNT; b++)
        fds.peer[b] = e->end[r->id][b];
    /* stopping is the launcher's word, not a signal's */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    status = r->main(conf, &fds);
    /* Landlock hides /proc from the others, without which LeakSanitizer, called by exit, fails;
     * what they leak is found by their unit tests. */
    if (r->id == SUP_ROLE_FRONT)
        exit(status);
    _exit(status);
}

enum rc sup_roles_start(struct sup_role_proc procs[SUP_ROLE_COUNT], const struct sup_role *roles,
                        size_t n_roles, const struct sup_conf *conf, int close_fd,
                        const sigset_t *mask, struct rc_err *err)
{
    unsigned wanted = wanted_bits(roles, n_roles, conf);
    pid_t self = getpid();
    struct ends e;
    enum rc rc;

    for (int i = 0; i < SUP_ROLE_COUNT; i++)
        procs[i] = (struct sup_role_proc){.fd = -1};
    if ((rc = make_ends(&e, roles, n_roles, wanted, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < n_roles; i++) {
        struct sup_role_proc *p = &procs[roles[i].id];

        if (!(wanted & 1u << roles[i].id))
            continue;
        p->fd = e.end[LAUNCHER][roles[i].id];
        if ((p->pid = fork()) == 0)
            be(&roles[i], &e, conf, self, close_fd, mask);
        if (p->pid < 0)
            return rc_fail(err, RC_IO, "fork of the %s: %s", names[roles[i].id], strerror(errno));
    }
    close_all_but(&e, LAUNCHER);
    return RC_OK;
}
