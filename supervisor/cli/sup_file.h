/* sup_file.h - files that a command reads as a whole, and those it writes. */
#ifndef INFERD_SUP_FILE_H
#define INFERD_SUP_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "rc.h"

/* All of a regular file of at most max bytes, NUL-ended, caller frees; "~/" is HOME.
 * Errors: RC_NOT_FOUND, RC_IO, RC_INVALID (no regular file), RC_TOO_LARGE, RC_NOMEM;
 * with text set also RC_FORMAT: no UTF-8 or a zero byte, with its place. */
enum rc sup_file_read(const char *path, size_t max, bool text, char **out, size_t *out_n,
                      struct rc_err *err);
/* The same of what is open, a pipe too; path is for messages. Errors: RC_IO, RC_TOO_LARGE,
 * RC_NOMEM. */
enum rc sup_file_read_fd(int fd, const char *path, size_t max, char **out, size_t *out_n,
                         struct rc_err *err);
/* A text file as above, or for "-" what stdin holds. */
enum rc sup_file_input(const char *path, size_t max, char **out, size_t *out_n, struct rc_err *err);
/* A JSON object from such; caller decrefs. Also RC_INVALID: no JSON, with line and column, or
 * another kind of value. *out is NULL or what was read in any case. */
enum rc sup_file_json(const char *path, size_t max, json_t **out, struct rc_err *err);
/* Replaces the file as a whole: written beside it, then renamed. What is there already must
 * be a regular file. Errors: RC_IO, RC_INVALID, RC_TOO_LARGE. */
enum rc sup_file_write(const char *path, const char *s, size_t n, mode_t mode, struct rc_err *err);
/* All n bytes, or false with errno. */
bool sup_file_put(int fd, const char *s, size_t n);

#endif
