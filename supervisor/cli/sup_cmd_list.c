/* sup_cmd_list.c - `inferd list`: the server's models as a table or JSON.
 * Tests: tests/e2e/cli_models.py */
#include <stdlib.h>
#include <string.h>

#include "sup_common.h"
#include "sup_pull_cli.h"
#include "sup_term.h"

enum { O_SERVER, O_JSON, O_MODELS };

const struct sup_opt sup_opts_list[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"json", SUP_O_FLAG, NULL, "print the server's own list; of a folder one object per model", 0,
     0},
    {"models-dir", SUP_O_TEXT, "DIR", "list this folder and ask no server", 0, 0},
    {0},
};

#define N_COLUMNS 7

static const char *kind(const struct sup_model *m)
{
    if (m->can_generate && m->can_embed)
        return "chat, embed";
    if (m->can_generate || m->can_embed)
        return m->can_generate ? "chat" : "embed";
    return m->can_rerank ? "rerank" : m->can_extract ? "extract" : "-";
}

/* Cells of one model; two of them are made of numbers and live in num. */
static void row(const struct sup_model *m, const char **cell, char num[2][24])
{
    char b[16];

    snprintf(num[0], 24, "%s", m->bytes ? sup_bytes(m->bytes, b) : "-");
    if (m->can_embed && m->embed_dim)
        snprintf(num[1], 24, "%u dims", m->embed_dim);
    else if (m->ctx_tokens)
        snprintf(num[1], 24, "%u tokens", m->ctx_tokens);
    else
        snprintf(num[1], 24, "-");
    cell[0] = m->id;
    cell[1] = m->family[0] ? m->family : "-";
    cell[2] = kind(m);
    cell[3] = m->state;
    cell[4] = num[0];
    cell[5] = num[1];
    cell[6] = m->error;
}

static enum rc print_table(const struct sup_listing *l, struct rc_err *err)
{
    static const char *const columns[N_COLUMNS] = {"MODEL", "FAMILY", "KIND",      "STATE",
                                                   ">SIZE", ">LIMIT", "LAST ERROR"};
    const char **cells = calloc(l->n + 1, N_COLUMNS * sizeof(*cells));
    char(*nums)[2][24] = calloc(l->n + 1, sizeof(*nums));
    enum rc rc = RC_OK;

    if (!cells || !nums)
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; rc == RC_OK && i < l->n; i++)
        row(&l->m[i], cells + i * N_COLUMNS, nums[i]);
    if (rc == RC_OK)
        sup_table(stdout, columns, N_COLUMNS, cells, l->n);
    free(cells);
    free(nums);
    return rc;
}

int sup_cmd_list(const struct sup_args *a)
{
    struct sup_session s = {0};
    struct sup_listing l = {0};
    struct rc_err err = RC_ERR_INIT;
    json_t *body = NULL;
    enum rc rc;

    if (a->v[O_MODELS].set && a->v[O_SERVER].set)
        return sup_usage_error(a->cmd, "--server and --models-dir exclude each other");
    if (a->v[O_MODELS].set)
        return sup_local_list(a, a->v[O_MODELS].text, a->v[O_JSON].set);
    if ((rc = sup_session_open(&s, a, a->v[O_SERVER].text, NULL, &err)) != RC_OK)
        return sup_session_fail(a->cmd, &err);
    rc = sup_client_call(s.client, "/ai/v1/models", NULL, 60000, &body, &err);
    if (rc == RC_OK && a->v[O_JSON].set) {
        (void)json_dumpf(body, stdout, JSON_INDENT(2));
        puts("");
    } else if (rc == RC_OK && (rc = sup_listing_parse(&l, body, &err)) == RC_OK) {
        if (l.n)
            rc = print_table(&l, &err);
        else
            fputs("the server's models folder is empty\n", stderr);
    }
    sup_listing_deinit(&l);
    json_decref(body);
    sup_session_close(&s);
    return rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
}
