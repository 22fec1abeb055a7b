/* sup_cmd_rerank.c - `inferd rerank`: documents in the order of how well they answer a query.
 *
 * Documents are arguments, or the lines of files and of stdin. One request: scores of
 * different requests would be comparable too, but a list longer than the server takes is better
 * cut by a search first. Tests: tests/e2e/cli_texts.py
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_common.h"
#include "sup_file.h"
#include "sup_progress.h"
#include "sup_term.h"

#define PATH "/ai/v1/rerank"
#define FILE_BYTES (16u << 20)

enum { O_SERVER, O_MODELS_DIR, O_JSON, O_FILE, O_TOP, O_RAW, O_TRUNCATE };

const struct sup_opt sup_opts_rerank[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print the answer as the server gave it", 0, 0},
    {"file", SUP_O_TEXT, "FILE", "a document in each line; '-' is stdin; may be repeated", 0, 0},
    {"top", SUP_O_NUM, "N", "only the best N", 1, 1000000},
    {"raw", SUP_O_FLAG, NULL, "logits instead of scores from 0 to 1", 0, 0},
    {"truncate", SUP_O_FLAG, NULL, "cut what is too long instead of refusing it", 0, 0},
    {0},
};

static enum rc add_document(json_t *docs, const char *text, size_t n, struct rc_err *err)
{
    char *valid = sup_valid_dup(text, n);
    int failed = valid ? json_array_append_new(docs, json_string(valid)) : -1;

    free(valid);
    return failed ? rc_fail(err, RC_NOMEM, "out of memory") : RC_OK;
}

static enum rc add_lines(json_t *docs, const char *path, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc = sup_file_input(path, FILE_BYTES, &text, &n, err);

    for (size_t at = 0; rc == RC_OK && at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;

        if (len > strspn(text + at, " \t\r"))
            rc = add_document(docs, text + at, len - (text[at + len - 1] == '\r'), err);
        at += len + 1;
    }
    free(text);
    return rc;
}

static enum rc add_given(const struct sup_args *a, json_t *docs, struct rc_err *err)
{
    enum rc rc = RC_OK;
    int pos = 0;

    for (int i = 0; i < a->n_given && rc == RC_OK; i++) {
        if (a->given[i].opt == O_FILE)
            rc = add_lines(docs, a->given[i].text, err);
        else if (a->given[i].opt < 0 && pos++ >= 2) /* behind the model and the query */
            rc = add_document(docs, a->given[i].text, strlen(a->given[i].text), err);
    }
    if (rc == RC_OK && a->n_pos == 2 && !a->v[O_FILE].set)
        rc = add_lines(docs, "-", err);
    if (rc == RC_OK && json_array_size(docs) == 0)
        rc = rc_fail(err, RC_INVALID, "there is no document");
    return rc;
}

static void show(const json_t *answer, const json_t *docs)
{
    static const char *const columns[] = {">RANK", ">SCORE", ">DOCUMENT#", "DOCUMENT"};
    const json_t *data = json_object_get(answer, "data"), *row;
    size_t n = json_array_size(data), i;
    const char **cells = calloc(n + 1, 4 * sizeof(*cells));
    char(*num)[3][24] = calloc(n + 1, sizeof(*num));

    json_array_foreach(cells && num ? data : NULL, i, row)
    {
        json_int_t at = json_integer_value(json_object_get(row, "index"));
        const char *text = json_string_value(json_array_get(docs, (size_t)at));

        snprintf(num[i][0], 24, "%zu", i + 1);
        snprintf(num[i][1], 24, "%.4f", json_number_value(json_object_get(row, "score")));
        snprintf(num[i][2], 24, "%lld", (long long)at);
        for (int k = 0; k < 3; k++)
            cells[i * 4 + (size_t)k] = num[i][k];
        cells[i * 4 + 3] = text ? text : "?";
    }
    if (cells && num)
        sup_table(stdout, columns, 4, cells, n);
    free(cells);
    free(num);
}

static enum rc run(const struct sup_args *a, struct sup_client *client, struct sup_listing *l,
                   struct rc_err *err)
{
    const struct sup_model *m = NULL;
    json_t *docs = json_array(), *body = NULL, *answer = NULL;
    char *query = sup_valid_dup(a->pos[1], strlen(a->pos[1]));
    enum rc rc;

    if ((rc = sup_listing_choose(client, l, a->pos[0], SUP_KIND_RERANK, &m, err)) == RC_OK &&
        (rc = add_given(a, docs, err)) == RC_OK) {
        body = json_pack("{s:s, s:s, s:O, s:I, s:b, s:b}", "model", m->id, "query",
                         query ? query : "", "documents", docs, "top_n",
                         a->v[O_TOP].set ? (json_int_t)a->v[O_TOP].num
                                         : (json_int_t)json_array_size(docs),
                         "raw_scores", (int)a->v[O_RAW].set, "truncate", (int)a->v[O_TRUNCATE].set);
        rc = sup_progress_call(client, m, PATH, body, &answer, err);
    }
    if (rc == RC_OK && a->v[O_JSON].set)
        sup_print_json(answer);
    else if (rc == RC_OK)
        show(answer, docs);
    free(query);
    json_decref(docs);
    json_decref(body);
    json_decref(answer);
    return rc;
}

int sup_cmd_rerank(const struct sup_args *a)
{
    return sup_session_run(a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, run);
}
