/* sup_common.c - see sup_common.h. Tests: tests/supervisor/test_sup_cli_local.c */
#include "sup_common.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_text.h"

#define LINE_MAX_BYTES (1u << 20)

enum rc sup_session_open(struct sup_session *s, const struct sup_args *a, const char *server,
                         const char *models_dir, struct rc_err *err)
{
    enum rc rc;

    memset(s, 0, sizeof(*s));
    if (server && models_dir)
        return rc_fail(err, RC_CONFLICT,
                       "--server names a running server and --models-dir starts a private one: "
                       "give one of the two");
    if (models_dir) {
        fprintf(stderr, "starting a private server for '%s' ...\n", models_dir);
        if ((rc = sup_local_start(&s->local, models_dir, err)) != RC_OK)
            return rc;
        server = s->local.server;
    }
    if (!server)
        server = sup_env(a->envp, "INFERD_SERVER");
    rc = sup_client_new(&s->client, server && *server ? server : SUP_SERVER_DEFAULT, err);
    if (rc != RC_OK)
        sup_session_close(s);
    return rc;
}

int sup_session_fail(const struct sup_cmd *cmd, const struct rc_err *err)
{
    return err->code == RC_INVALID || err->code == RC_CONFLICT
               ? sup_usage_error(cmd, "%s", err->msg)
               : sup_fail(cmd, err);
}

void sup_session_close(struct sup_session *s)
{
    sup_client_free(&s->client);
    if (s->local.dir[0])
        sup_local_stop(&s->local);
}

int sup_session_run(const struct sup_args *a, const char *server, const char *models_dir,
                    enum rc (*run)(const struct sup_args *a, struct sup_client *client,
                                   struct sup_listing *l, struct rc_err *err))
{
    struct sup_session s = {0};
    struct sup_listing l = {0};
    struct rc_err err = RC_ERR_INIT;
    int status;

    sup_cli_catch_int();
    if (sup_session_open(&s, a, server, models_dir, &err) != RC_OK)
        status = sup_session_fail(a->cmd, &err);
    else
        status = run(a, s.client, &l, &err) == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
    sup_listing_deinit(&l);
    sup_session_close(&s);
    return status;
}

void sup_print_json(const json_t *o)
{
    char *s = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17));

    puts(s ? s : "{}");
    free(s);
}

char *sup_valid_dup(const char *s, size_t n)
{
    char *out = malloc(n * 3 + 1);
    size_t m = 0, i = 0;
    uint32_t cp;

    while (out && i < n) {
        i += sup_text_next(s + i, n - i, &cp, NULL);
        if (cp) /* a NUL would end the text */
            m += sup_text_put(cp, out + m);
    }
    if (out)
        out[m] = '\0';
    return out;
}

int sup_line_read(struct sup_lines *r, char **out)
{
    char *line = NULL, *grown, *end;
    size_t n = 0, take;
    ssize_t got;

    for (;;) {
        if (r->at == r->n) {
            got = read(r->fd, r->b, sizeof(r->b));
            if (got < 0 && errno == EINTR && !sup_cli_interrupted(false))
                continue;
            if (got < 0) {
                free(line);
                return errno == EINTR ? -1 : -3;
            }
            r->at = 0;
            r->n = (size_t)got;
            if (got == 0) { /* a last line without its end is a line */
                *out = line;
                return line ? 1 : 0;
            }
        }
        end = memchr(r->b + r->at, '\n', r->n - r->at);
        take = (end ? (size_t)(end - r->b) : r->n) - r->at;
        if (n + take > LINE_MAX_BYTES) {
            free(line);
            return -2;
        }
        if (!(grown = realloc(line, n + take + 1))) {
            free(line);
            return -3;
        }
        line = grown;
        memcpy(line + n, r->b + r->at, take);
        n += take;
        line[n] = '\0';
        r->at += take + (end != NULL);
        if (end) {
            if (n && line[n - 1] == '\r')
                line[n - 1] = '\0';
            *out = line;
            return 1;
        }
    }
}
