/* sup_common.h - what the client commands share: which server, reading lines. */
#ifndef INFERD_SUP_COMMON_H
#define INFERD_SUP_COMMON_H

#include "sup_cli.h"
#include "sup_client.h"
#include "sup_local.h"

/* The server a command talks to, and how it came to be. A zeroed one is a valid
 * argument to _close. */
struct sup_session {
    struct sup_client *client;
    struct sup_local local; /* pid 0 when the server is not ours */
};

/* server: --server's value or NULL (then INFERD_SERVER, then the default);
 * models_dir: --models-dir's value or NULL. Both set is RC_CONFLICT. */
enum rc sup_session_open(struct sup_session *s, const struct sup_args *a, const char *server,
                         const char *models_dir, struct rc_err *err);
/* Says why it could not be opened; the exit status: of wrong options that of usage. */
int sup_session_fail(const struct sup_cmd *cmd, const struct rc_err *err);
void sup_session_close(struct sup_session *s);

/* A command that is one talk with a server: opens the session, runs it, says what failed, closes.
 * The exit status. */
int sup_session_run(const struct sup_args *a, const char *server, const char *models_dir,
                    enum rc (*run)(const struct sup_args *a, struct sup_client *client,
                                   struct sup_listing *l, struct rc_err *err));
/* One line of JSON on stdout; numbers read back as they were. */
void sup_print_json(const json_t *o);

/* A copy with every byte that is no UTF-8 replaced by U+FFFD; NULL = no memory. */
char *sup_valid_dup(const char *s, size_t n);
/* One line from a descriptor without its end. *out is freed by the caller.
 * Returns 1 a line, 0 end of input, -1 interrupted by Ctrl-C, -2 line over 1 MiB,
 * -3 out of memory or read error. Keeps what it read ahead in *r. */
struct sup_lines {
    int fd;
    char b[4096];
    size_t at, n;
};
int sup_line_read(struct sup_lines *r, char **out);

#endif
