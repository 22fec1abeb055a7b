/* sup_walls.h - what the sandboxes of the supervisor's processes are built of.
 *
 * A role's sandbox is a table of steps in the order they are taken, and the tables those take:
 * calls and their arguments for seccomp, paths for Landlock. Here is how a step is taken; which
 * ones, and why, stands in the role's own file (sup_front_sandbox.c, sup_vault_sandbox.c,
 * sup_fetch_sandbox.c, sup_tracer_sandbox.c). There is no step that widens.
 *
 * Sanitizers need threads, files and ptrace: under them only rows that kill are taken from a
 * filter, and a process stays dumpable. Change with care: all processes of the server at once.
 * Tests: tests/supervisor/test_sup_walls.c, test_sup_walls_told.c
 */
#ifndef INFERD_SUP_WALLS_H
#define INFERD_SUP_WALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_WALLS_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define SUP_WALLS_MAX 16 /* steps of a role */

/* ------------------------------------------------------------------- steps */

enum {
    SUP_WALLS_OPTIONAL = 1, /* strict goes on without it */
    SUP_WALLS_ALWAYS = 2,   /* taken with sandbox=off too */
};

struct sup_walls_step {
    const char *name; /* of the layer, in messages and in /ai/v1/security */
    /* 0, or the errno that says why it cannot be had. how: the step's table or NULL */
    int (*raise)(const void *how);
    const void *how;
    unsigned bits;
};

/* Whose walls they are, in messages, and the events of its log. */
struct sup_walls_role {
    const char *word; /* of SUP_ROLES */
    const char *off, *missing;
};

/* What came of a step. */
struct sup_walls_layer {
    const char *name;
    bool holds;
};

/* Takes the steps in their order. mode: conf->sandbox; strict: the first step that is not optional
 * and fails ends it; permissive: logs what is missing and goes on; off: takes SUP_WALLS_ALWAYS ones
 * only. out: [n], may be NULL; all rows are written in any case. Errors (strict only):
 * RC_UNSUPPORTED, naming the layer. */
enum rc sup_walls_raise(const struct sup_walls_role *role, const char *mode,
                        const struct sup_walls_step *steps, size_t n, struct sup_walls_layer *out,
                        struct rc_err *err);
/* Logs that the mode is off, when it is: once in a process's life. */
void sup_walls_say_off(const struct sup_walls_role *role, const char *mode);

/* What a process tells another of its layers, and how that one checks it: it is foreign there. */
struct sup_walls_told {
    uint32_t pid;
    char *const *held, *const *missing;
    size_t n_held, n_missing;
};
/* names: [n]; the told ones point into it and into the layers. pid: of the caller. */
void sup_walls_tell(const struct sup_walls_layer *layers, size_t n, char *names[SUP_WALLS_MAX],
                    struct sup_walls_told *out);
/* A process number, SUP_WALLS_MAX layers at most, each a word of at most 40 bytes. */
bool sup_walls_told_ok(const struct sup_walls_told *t);

/* how: NULL */
int sup_walls_not_dumpable(const void *how); /* no ptrace, no /proc/self/mem, no core */
int sup_walls_no_new_privs(const void *how);
int sup_walls_no_capabilities(const void *how);
/* An own network with nothing in it. Not with a user namespace: in one, every file would seem to
 * be ours. Needs CAP_SYS_ADMIN. */
int sup_walls_no_network(const void *how);

/* how: struct sup_walls_limits. Never a core dump. */
struct sup_walls_limits {
    unsigned files; /* descriptors, at most; 0 = as they are */
    bool no_processes;
};
int sup_walls_rlimits(const void *how);

/* ---------------------------------------------------------------- landlock */

enum {
    SUP_WALLS_READ = 1,    /* files and lists of folders */
    SUP_WALLS_CHANGE = 2,  /* and write, make, truncate and remove files */
    SUP_WALLS_FOLDERS = 4, /* make folders */
    SUP_WALLS_MOVE = 8,    /* remove folders, rename between them */
    SUP_WALLS_DEVICE = 16, /* read and write what is there; no lists */
};

struct sup_walls_path {
    const char *path; /* NULL: fd is meant */
    int fd;           /* -1: no row */
    unsigned may;     /* bits above, below this path */
    bool must;        /* that it is absent is an error; else the row is left out */
};

/* how: struct sup_walls_files. All other files are closed, and what the kernel's version can
 * fence: listening, devices' ioctls, abstract sockets and signals to others. */
struct sup_walls_files {
    const struct sup_walls_path *path;
    size_t n;
    bool connects; /* TCP connections stay possible */
};
int sup_walls_landlock(const void *how);

/* ----------------------------------------------------------------- seccomp */

/* Calls of one verdict, whatever their arguments: SCMP_ACT_*. */
struct sup_walls_calls {
    uint32_t verdict;
    const int *call; /* SCMP_SYS(name); one that this architecture lacks is left out */
    size_t n;
};
/* A call that is allowed when (its argument & mask) == value. */
struct sup_walls_arg {
    int call;
    unsigned arg;
    uint64_t mask, value;
};
#define SUP_WALLS_EQ UINT64_MAX /* the mask of all of it */

/* how: struct sup_walls_filter. Where not all else is allowed, memory is (never to be executed),
 * and a signal to the process itself: abort(). */
struct sup_walls_filter {
    uint32_t otherwise; /* SCMP_ACT_* */
    const struct sup_walls_calls *calls;
    size_t n_calls;
    const struct sup_walls_arg *args;
    size_t n_args;
};
int sup_walls_seccomp(const void *how);

#endif
