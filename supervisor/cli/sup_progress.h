/* sup_progress.h - a bar that follows the load of one model while a call waits. */
#ifndef INFERD_SUP_PROGRESS_H
#define INFERD_SUP_PROGRESS_H

#include <stdint.h>

#include "sup_client.h"
#include "sup_term.h"

struct sup_progress {
    struct sup_client *asker; /* a second connection: the first one waits */
    struct sup_bar bar;
    char label[128];
    const char *model;
    uint64_t next_ms;
};

/* Hangs itself on c's ticks. Does nothing when stderr is no terminal. */
void sup_progress_start(struct sup_progress *p, struct sup_client *c, const char *model);
/* sup_client_call without a limit of time, under a bar while the model is not ready yet. m NULL: no
 * bar. body NULL is RC_NOMEM: it could not be made. */
enum rc sup_progress_call(struct sup_client *c, const struct sup_model *m, const char *path,
                          const json_t *body, json_t **out, struct rc_err *err);
/* Removes the bar and lets go of c's ticks. A zeroed one is fine. */
void sup_progress_end(struct sup_progress *p, struct sup_client *c);

#endif
