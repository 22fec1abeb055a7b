/* sup_cmd_load.c - `inferd load` and `inferd unload`.
 * Tests: tests/e2e/cli_models.py */
#include <stdlib.h>
#include <string.h>

#include "sup_common.h"
#include "sup_progress.h"

enum { O_SERVER, O_JSON };

const struct sup_opt sup_opts_load[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"json", SUP_O_FLAG, NULL, "print the server's answer", 0, 0},
    {0},
};

static int run(const struct sup_args *a, bool load)
{
    struct sup_session s = {0};
    struct sup_progress p = {0};
    struct rc_err err = RC_ERR_INIT;
    json_t *body = NULL, *answer = NULL;
    const char *state;
    enum rc rc;

    sup_cli_catch_int();
    if (sup_session_open(&s, a, a->v[O_SERVER].text, NULL, &err) != RC_OK)
        return sup_session_fail(a->cmd, &err);
    if (!(body = json_pack("{s:s}", "model", a->pos[0]))) {
        rc = rc_fail(&err, RC_INVALID, "the model's name is no UTF-8");
        goto out;
    }
    if (load)
        sup_progress_start(&p, s.client, a->pos[0]);
    /* the server has its own limit on a load */
    rc = sup_client_call(s.client, load ? "/ai/v1/models/load" : "/ai/v1/models/unload", body, 0,
                         &answer, &err);
    sup_progress_end(&p, s.client);
    if (rc != RC_OK)
        goto out;
    state = json_string_value(json_object_get(answer, "state"));
    if (a->v[O_JSON].set) {
        (void)json_dumpf(answer, stdout, JSON_COMPACT);
        puts("");
    } else {
        sup_print_clean(stdout, a->pos[0], false);
        fputs(": ", stdout);
        sup_print_clean(stdout, state ? state : load ? "loaded" : "unloaded", false);
        puts("");
    }
out:
    json_decref(answer);
    json_decref(body);
    sup_session_close(&s);
    return rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
}

int sup_cmd_load(const struct sup_args *a)
{
    return run(a, true);
}

int sup_cmd_unload(const struct sup_args *a)
{
    return run(a, false);
}
