/* sup_history.h - the lines typed in earlier sessions of `inferd chat`. */
#ifndef INFERD_SUP_HISTORY_H
#define INFERD_SUP_HISTORY_H

#include "sup_edit.h"

/* Lines of earlier sessions: $XDG_STATE_HOME/inferd/history, else below
 * ~/.local/state. Mode 0600, one line each with \n and \\ written out, at most
 * SUP_EDIT_HISTORY lines after a start and 1 MiB ever. A missing HOME, a file of
 * somebody else or a link there means: no history. */
struct sup_history {
    char path[4096]; /* "" = off */
};
void sup_history_open(struct sup_history *h, struct sup_edit *e, char *const *envp);
/* Lines over 4096 bytes are not kept. */
void sup_history_add(const struct sup_history *h, const char *line);

#endif
