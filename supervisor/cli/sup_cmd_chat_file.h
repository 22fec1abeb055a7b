/* sup_cmd_chat_file.h - the files of `inferd chat`: texts for the prompt, saved
 * conversations, the lines typed in earlier sessions. */
#ifndef INFERD_SUP_CMD_CHAT_FILE_H
#define INFERD_SUP_CMD_CHAT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "rc.h"
#include "sup_edit.h"

/* All of a regular file of at most max bytes, NUL-ended, caller frees; "~/" is HOME.
 * Errors: RC_NOT_FOUND, RC_IO, RC_INVALID (no regular file), RC_TOO_LARGE, RC_NOMEM;
 * with text set also RC_FORMAT: no UTF-8 or a zero byte, with its place. */
enum rc sup_chat_file_read(const char *path, size_t max, bool text, char **out, size_t *out_n,
                           struct rc_err *err);
/* Replaces the file as a whole: written beside it (mode 0600), then renamed. What is
 * there already must be a regular file. Errors: RC_IO, RC_INVALID, RC_TOO_LARGE. */
enum rc sup_chat_file_write(const char *path, const char *s, size_t n, struct rc_err *err);

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
