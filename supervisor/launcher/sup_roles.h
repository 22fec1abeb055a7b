/* sup_roles.h - private to the launcher: forks of roles and the channels between them. */
#ifndef INFERD_SUP_ROLES_H
#define INFERD_SUP_ROLES_H

#include <signal.h>
#include <sys/types.h>

#include "rc.h"
#include "sup_role.h"

struct sup_role_proc {
    pid_t pid;  /* 0 = not wanted here */
    int fd;     /* our end of its channel; -1 = none, or closed */
    int status; /* as of waitpid, once gone */
    bool gone;
    bool broken; /* what it said or did not read: being killed */
};

/* Makes every channel, then forks the wanted roles in order; mask: the signal mask they get.
 * close_fd: one more descriptor they must not keep. Errors: RC_IO; what was forked then dies
 * with the caller (parent-death signal). */
enum rc sup_roles_start(struct sup_role_proc procs[SUP_ROLE_COUNT], const struct sup_role *roles,
                        size_t n_roles, const struct sup_conf *conf, int close_fd,
                        const sigset_t *mask, struct rc_err *err);

#endif
