/* sup_role.h - the processes the launcher forks before anything listens.
 *
 * A role is a row: its name, its main, whom it talks to, whether this configuration wants
 * it. Rows stand in the order of the forks (sup_launch.c); the front is last, because it
 * opens the listeners. A role narrows itself in its main, before it reads a byte from
 * anyone. When one of them ends, whichever it is, all of them end.
 *
 * To add one: a word in SUP_ROLES and a row in sup_launch.c. Tests: test_sup_launcher.c
 */
#ifndef INFERD_SUP_ROLE_H
#define INFERD_SUP_ROLE_H

#include <stdbool.h>

struct sup_conf;

/* X(id, word in logs) */
#define SUP_ROLES(X)      \
    X(VAULT, "vault")     \
    X(FETCHER, "fetcher") \
    X(TRACER, "tracer")   \
    X(FRONT, "front")

enum sup_role_id {
#define X(id, word) SUP_ROLE_##id,
    SUP_ROLES(X)
#undef X
        SUP_ROLE_COUNT
};
#define SUP_ROLE_BIT(id) (1u << SUP_ROLE_##id)

/* What a role is born with, besides the standard descriptors. All are non-blocking
 * SOCK_SEQPACKET ends (ipc.h); -1 = no such channel. */
struct sup_role_fds {
    int launcher;
    int peer[SUP_ROLE_COUNT]; /* by enum sup_role_id */
};

struct sup_role {
    /* Runs in the forked child; its value is the child's exit status. SIGTERM, SIGINT and
     * SIGHUP are ignored there: the launcher's word and the end of its channel count. */
    int (*main)(const struct sup_conf *conf, const struct sup_role_fds *fds);
    enum sup_role_id id;
    unsigned peers; /* bits 1 << enum sup_role_id; one of the two rows names the other */
    bool (*wanted)(const struct sup_conf *conf); /* NULL = always */
};

const char *sup_role_name(enum sup_role_id id);

#endif
