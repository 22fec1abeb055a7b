/* sup_puller.h - the side of a pull that touches the models folder, and never a stranger's byte.
 *
 * Opens the staging folder, forks the child that fetches into it (sup_pull.c, in its sandbox),
 * listens to what it tells, and publishes what it leaves after checking sizes and paths. A child
 * that dies leaves what has arrived. Tests: tests/e2e/pull.py
 */
#ifndef INFERD_SUP_PULLER_H
#define INFERD_SUP_PULLER_H

#include "sup_child.h"
#include "sup_pull.h"
#include "sup_receipt.h"
#include "sup_stage.h"

struct sup_puller {
    const char *models_dir;
    const char *sandbox; /* strict, permissive, off */
    bool offline;        /* only look at what is there */
    bool again;          /* fetch even what is there */
    /* whenever the child tells, and at least five times a second; false = stop it. The texts are
     * the child's: foreign. */
    bool (*on_now)(void *user, const char *stage, const struct sup_xfer_now *now);
    void *user;
};

struct sup_pulled {
    bool unchanged;
    struct sup_receipt receipt; /* to be freed */
};

/* ask: everything but have_commit, files_fd and on_now, which are set here.
 * Errors: those of sup_stage_open, sup_pull_run and sup_stage_publish; RC_CRASHED the child died;
 * RC_CANCELLED on_now said so; RC_NOT_FOUND offline and not there. */
enum rc sup_puller_run(const struct sup_puller *u, struct sup_pull *ask, struct sup_pulled *out,
                       struct rc_err *err);

/* The same in two steps, for who has other things to do meanwhile: between them, read the child's
 * frames from child.fd (sup_child.h). */
struct sup_puller_job {
    struct sup_child child;
    struct sup_stage stage;
    struct sup_receipt have;
    bool whole;
};
/* Not for u->offline. */
enum rc sup_puller_begin(struct sup_puller_job *j, const struct sup_puller *u, struct sup_pull *ask,
                         struct rc_err *err);
/* rc, unchanged: what the child said last, or why it is ended (*err says it then). Ends the child
 * in any case, and publishes after RC_OK. */
enum rc sup_puller_end(struct sup_puller_job *j, enum rc rc, bool unchanged, struct sup_pulled *out,
                       struct rc_err *err);

/* The receipt of an installed model, its files checked. Errors: RC_NOT_FOUND, RC_CONFLICT. */
enum rc sup_puller_installed(const char *models_dir, const char *dest, struct sup_receipt *out,
                             struct rc_err *err);

#endif
