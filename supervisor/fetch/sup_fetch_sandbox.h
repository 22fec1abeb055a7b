/* sup_fetch_sandbox.h - narrows the process that reads strangers' bytes from the network.
 *
 * After it the process can connect (TCP and UDP, no listening), read what TLS and name lookups
 * need, and write below one folder. It cannot start a program, see another process or open any
 * other file. There is no call that widens. Page: docs/pull.md.
 * Tests: tests/supervisor/test_sup_fetch_sandbox.c
 */
#ifndef INFERD_SUP_FETCH_SANDBOX_H
#define INFERD_SUP_FETCH_SANDBOX_H

#include <stdbool.h>

#include "rc.h"
#include "sup_walls.h"

#define SUP_FETCH_LAYERS 5

/* Errands of a child, and what each may. */
enum sup_fetch_errand { SUP_FETCH_MEDIA, SUP_FETCH_PULL, SUP_FETCH_COPY, SUP_FETCH_ERRANDS };
struct sup_fetch_policy {
    const char *errand;
    bool network; /* connect */
    bool writes;  /* below one folder */
};
extern const struct sup_fetch_policy sup_fetch_policies[SUP_FETCH_ERRANDS];
/* Names of the layers, in the order they are raised: of the keeper and of every child. */
extern const char *const sup_fetch_layers[SUP_FETCH_LAYERS];

/* dir_fd: the folder to write below, -1 = none: of an errand that writes. read_path: one more file
 * or folder to read, NULL = none. mode, out (may be NULL) and errors as of sup_walls_raise.
 * Call once, with one thread, after curl_global_init. */
enum rc sup_fetch_sandbox(const char *mode, enum sup_fetch_errand errand, int dir_fd,
                          const char *read_path, struct sup_walls_layer out[SUP_FETCH_LAYERS],
                          struct rc_err *err);

/* Of the process that forks those children and publishes what they leave: it writes below dir_fd
 * only, starts no program and listens nowhere. What it forbids holds for its children too. The
 * folder is meant, not its name: one that is mounted there later needs a restart. */
enum rc sup_fetch_sandbox_keeper(const char *mode, int dir_fd,
                                 struct sup_walls_layer out[SUP_FETCH_LAYERS], struct rc_err *err);

#endif
