/* sup_cmd_chunk.c - `inferd chunk`: a text cut into pieces, by the server.
 * Tests: tests/e2e/cli_texts.py */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_common.h"
#include "sup_file.h"
#include "sup_progress.h"
#include "sup_term.h"

#define PATH "/ai/v1/chunk"
#define FILE_BYTES (16u << 20)

enum {
    O_SERVER,
    O_MODELS_DIR,
    O_JSON,
    O_MODEL,
    O_TARGET,
    O_OVERLAP,
    O_MAX,
    O_SEPARATOR,
    O_SENTENCES
};

const struct sup_opt sup_opts_chunk[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"json", SUP_O_FLAG, NULL, "one JSON object per piece", 0, 0},
    {"model", SUP_O_TEXT, "NAME", "whose tokens count (default fixed: words)", 0, 0, 'm'},
    {"target", SUP_O_NUM, "N", "tokens of a piece (default 500)", 1, 65536},
    {"overlap", SUP_O_NUM, "N", "tokens that pieces have in common (default 50)", 0, 65535},
    {"max", SUP_O_NUM, "N", "pieces at most (default 10000)", 1, 10000},
    {"separator", SUP_O_TEXT, "TEXT", "end pieces behind it (default: an empty line)", 0, 0},
    {"sentences", SUP_O_FLAG, NULL, "else behind a sentence", 0, 0},
    {0},
};

static json_t *request(const struct sup_args *a, const char *text)
{
    json_t *body = json_pack("{s:s, s:{s:s, s:I, s:{s:b}}}", "input", text, "config", "model",
                             a->v[O_MODEL].set ? a->v[O_MODEL].text : "fixed", "max_chunks",
                             a->v[O_MAX].set ? (json_int_t)a->v[O_MAX].num : (json_int_t)10000,
                             "text", "sentences", (int)a->v[O_SENTENCES].set);
    json_t *t = json_object_get(json_object_get(body, "config"), "text");

    if (a->v[O_TARGET].set)
        json_object_set_new(t, "target_tokens", json_integer((json_int_t)a->v[O_TARGET].num));
    if (a->v[O_OVERLAP].set)
        json_object_set_new(t, "overlap_tokens", json_integer((json_int_t)a->v[O_OVERLAP].num));
    if (a->v[O_SEPARATOR].set)
        json_object_set_new(t, "separator", json_string(a->v[O_SEPARATOR].text));
    return body;
}

static void show(const json_t *answer)
{
    const json_t *data = json_object_get(answer, "data"), *c;
    size_t i;

    json_array_foreach(data, i, c)
    {
        const char *text = json_string_value(json_object_get(c, "text"));

        printf("%s[%zu] %lld to %lld, %lld tokens\n", i ? "\n" : "", i,
               (long long)json_integer_value(json_object_get(c, "start_char")),
               (long long)json_integer_value(json_object_get(c, "end_char")),
               (long long)json_integer_value(json_object_get(c, "n_tokens")));
        sup_print_clean(stdout, text ? text : "", true);
        putchar('\n');
    }
}

static void print_each(const json_t *answer)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(answer, "data"), i, c) sup_print_json(c);
}

/* The model whose tokens count, if it is listed; NULL: the fixed chunker, or the server says why.
 */
static const struct sup_model *whose(const struct sup_args *a, struct sup_client *client,
                                     struct sup_listing *l)
{
    if (!a->v[O_MODEL].set || sup_listing_get(client, l, NULL) != RC_OK)
        return NULL;
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->m[i].id, a->v[O_MODEL].text) == 0)
            return &l->m[i];
    return NULL;
}

static enum rc run(const struct sup_args *a, struct sup_client *client, struct sup_listing *l,
                   struct rc_err *err)
{
    const char *path = a->n_pos ? a->pos[0] : "-";
    json_t *body = NULL, *answer = NULL;
    char *text = NULL, *valid = NULL;
    size_t n = 0;
    enum rc rc = sup_file_input(path, FILE_BYTES, &text, &n, err);

    if (rc == RC_OK && (valid = sup_valid_dup(text, n)) != NULL)
        body = request(a, valid);
    if (rc == RC_OK)
        rc = sup_progress_call(client, whose(a, client, l), PATH, body, &answer, err);
    if (rc == RC_OK && a->v[O_JSON].set)
        print_each(answer);
    else if (rc == RC_OK)
        show(answer);
    if (rc == RC_OK && json_is_true(json_object_get(answer, "truncated")))
        fputs("the text goes on: --max pieces were made\n", stderr);
    free(text);
    free(valid);
    json_decref(body);
    json_decref(answer);
    return rc;
}

int sup_cmd_chunk(const struct sup_args *a)
{
    return sup_session_run(a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, run);
}
