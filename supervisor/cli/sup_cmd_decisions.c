/* sup_cmd_decisions.c - `inferd decisions`: a request to a running server, its answers for people,
 * and (--scores) labelled inputs to the samples that `inferd calibrate` takes.
 *
 * The server decides and checks; here a request is only read, sent and shown. A sample's state is
 * known by the SHA-256 of its text, so a text that stands twice is found out.
 * Tests: tests/e2e/decisions.py
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "sup_calibrate.h"
#include "sup_file.h"
#include "sup_common.h"
#include "sup_term.h"

#define PATH "/ai/v1/decisions"
#define REQUEST_BYTES (16u << 20)
#define LABELLED_BYTES (64u << 20)
#define BATCH 64

enum { O_SERVER, O_MODELS_DIR, O_REQUEST, O_JSON, O_SCORES };

const struct sup_opt sup_opts_decisions[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"request", SUP_O_TEXT, "FILE", "the request's JSON", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print the answer as the server gave it", 0, 0},
    {"scores", SUP_O_TEXT, "LABELLED", "print scores for 'inferd calibrate' instead", 0, 0},
    {0},
};

/* ---------------------------------------------------------------------- showing */

static void show_similarities(const json_t *list)
{
    const json_t *row;
    size_t i;

    json_array_foreach(list, i, row)
    {
        const char *value = json_string_value(json_object_get(row, "value"));

        fputs(i ? ", " : "    ", stdout);
        sup_print_clean(stdout, value ? value : "?", false);
        printf(" %.4f", json_number_value(json_object_get(row, "similarity")));
    }
    putchar('\n');
}

static void show_word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    sup_print_clean(stdout, s ? s : "", false);
}

static void show_answer(const json_t *a)
{
    const json_t *choices = json_object_get(a, "choices"), *one;
    size_t i;

    fputs("  ", stdout);
    show_word(a, "name");
    fputs(": ", stdout);
    if (json_is_string(json_object_get(a, "choice"))) {
        show_word(a, "choice");
    } else if (json_array_size(choices) > 0) {
        json_array_foreach(choices, i, one)
        {
            fputs(i ? ", " : "", stdout);
            sup_print_clean(stdout, json_string_value(one) ? json_string_value(one) : "?", false);
        }
    } else {
        show_word(a, "status");
        if (json_is_string(json_object_get(a, "abstention_reason"))) {
            fputs(" (", stdout);
            show_word(a, "abstention_reason");
            fputs(")", stdout);
        }
    }
    printf(", margin %.4f\n", json_number_value(json_object_get(a, "margin")));
    show_similarities(json_object_get(a, "similarities"));
}

static void show(const json_t *answer)
{
    const json_t *data = json_object_get(answer, "data"), *row, *a;
    size_t i, k;

    json_array_foreach(json_object_get(answer, "answers"), k, a) show_answer(a);
    json_array_foreach(data, i, row)
    {
        printf("%s[%zu] ", i ? "\n" : "", i);
        show_word(row, "id");
        putchar('\n');
        json_array_foreach(json_object_get(row, "answers"), k, a) show_answer(a);
    }
}

/* ----------------------------------------------------------------------- scores */

struct scoring {
    struct sup_client *client;
    json_t *request; /* one question, that accepts everything */
    json_t *labels;  /* its values */
    const char *mode;
    json_int_t dimensions; /* the request's, else the model's */
    bool told;             /* the binding */
    json_t *inputs, *rows; /* of this batch: what is sent, and the labelled lines */
    size_t line;
};

/* The question as it is, but nothing of what it accepts: scores are wanted of all. */
static enum rc one_question(struct scoring *w, struct rc_err *err)
{
    json_t *list = json_object_get(w->request, "questions"), *q = json_array_get(list, 0), *c;
    const char *type = json_string_value(json_object_get(q, "type"));
    bool multi;
    size_t i;

    if (json_array_size(list) != 1 || !type)
        return rc_fail(err, RC_INVALID, "--scores: expected a request with one question");
    multi = strcmp(type, "multi_choice") == 0;
    w->mode = multi ? "multi" : "single";
    json_object_del(q, "embedding_options");
    json_object_del(q, "similarity_thresholds");
    if (multi)
        json_object_set_new(q, "similarity_thresholds", json_integer(-1));
    json_object_del(w->request, "input");
    json_object_del(w->request, "inputs");
    w->labels = json_array();
    json_array_foreach(json_object_get(q, "choices"), i, c)
    {
        if (!json_is_string(json_object_get(c, "value")))
            return rc_fail(err, RC_INVALID, "--scores: choice %zu has no value", i);
        json_array_append(w->labels, json_object_get(c, "value"));
    }
    return RC_OK;
}

/* The vectors' size where the request does not say: the model's own. */
static enum rc find_dimensions(struct scoring *w, struct rc_err *err)
{
    const char *model = json_string_value(json_object_get(w->request, "model"));
    json_t *given = json_object_get(json_object_get(w->request, "embedding_options"), "dimensions");
    const struct sup_model *m = NULL;
    struct sup_listing l = {0};
    enum rc rc;

    w->dimensions = json_integer_value(given);
    if (w->dimensions > 0)
        return RC_OK;
    if (!model)
        return rc_fail(err, RC_INVALID, "the request names no model");
    if ((rc = sup_listing_choose(w->client, &l, model, SUP_KIND_EMBED, &m, err)) == RC_OK)
        w->dimensions = m->embed_dim;
    sup_listing_deinit(&l);
    return rc;
}

static enum rc tell_binding(struct scoring *w, const json_t *answer, const char *hash,
                            struct rc_err *err)
{
    json_t *task = json_object_get(json_object_get(w->request, "embedding_options"), "task_type");
    const char *identity = json_string_value(json_object_get(answer, "model_identity"));
    const char *renderer = json_string_value(json_object_get(answer, "renderer_version"));
    json_t *o;

    if (!identity)
        return rc_fail(err, RC_UNSUPPORTED,
                       "the server knows no identity of this model, so thresholds cannot be bound "
                       "to it");
    o = json_pack("{s:{s:s,s:s,s:s,s:I,s:s,s:O,s:s}}", "binding", "model_identity", identity,
                  "renderer_version", renderer ? renderer : "", "task_type",
                  json_is_string(task) ? json_string_value(task) : "CLUSTERING", "dimensions",
                  w->dimensions, "prototype_set_hash", hash, "labels", w->labels, "mode", w->mode);
    if (!o)
        return rc_fail(err, RC_NOMEM, "out of memory");
    sup_print_json(o);
    json_decref(o);
    w->told = true;
    return RC_OK;
}

/* 40, 20, 40 of a hundred, the same for the same text. */
static const char *split_of(const json_t *row, const unsigned char *sum)
{
    const char *given = json_string_value(json_object_get(row, "split"));
    unsigned k = (sum[0] * 256u + sum[1]) % 10;

    return given ? given : sup_split_names[k < 4 ? SUP_FIT : k < 6 ? SUP_VALIDATION : SUP_HOLDOUT];
}

static enum rc tell_sample(struct scoring *w, const json_t *row, const json_t *answer,
                           struct rc_err *err)
{
    const char *text = json_string_value(json_object_get(row, "input"));
    unsigned char sum[crypto_hash_sha256_BYTES];
    char hex[2 * sizeof(sum) + 1];
    json_t *scores = json_array(), *o;
    const json_t *s;
    size_t i;

    json_array_foreach(json_object_get(answer, "similarities"), i, s)
        json_array_append(scores, json_object_get(s, "similarity"));
    crypto_hash_sha256(sum, (const unsigned char *)text, strlen(text));
    sodium_bin2hex(hex, sizeof(hex), sum, sizeof(sum));
    o = json_pack("{s:s,s:s,s:o,s:O}", "state_sha256", hex, "split", split_of(row, sum), "scores",
                  scores, "labels", json_object_get(row, "labels"));
    if (!o)
        return rc_fail(err, RC_NOMEM, "out of memory");
    sup_print_json(o);
    json_decref(o);
    return RC_OK;
}

static enum rc flush(struct scoring *w, struct rc_err *err)
{
    json_t *answer = NULL, *data, *row;
    size_t n = json_array_size(w->rows), i;
    enum rc rc;

    if (n == 0)
        return RC_OK;
    json_object_set(w->request, "inputs", w->inputs);
    rc = sup_client_call(w->client, PATH, w->request, 0, &answer, err);
    data = json_object_get(answer, "data");
    if (rc == RC_OK && json_array_size(data) != n)
        rc = rc_fail(err, RC_FORMAT, "the server gave %zu answers to %zu inputs",
                     json_array_size(data), n);
    json_array_foreach(w->rows, i, row)
    {
        json_t *a = json_array_get(json_object_get(json_array_get(data, i), "answers"), 0);
        const char *hash = json_string_value(json_object_get(a, "prototype_set_hash"));

        if (rc == RC_OK && !hash)
            rc = rc_fail(err, RC_FORMAT, "the server gave no answer to input %zu", i);
        if (rc == RC_OK && !w->told)
            rc = tell_binding(w, answer, hash, err);
        if (rc == RC_OK)
            rc = tell_sample(w, row, a, err);
    }
    json_decref(answer);
    json_array_clear(w->inputs);
    json_array_clear(w->rows);
    return rc;
}

static enum rc take_line(struct scoring *w, const char *s, size_t n, struct rc_err *err)
{
    json_error_t why;
    json_t *row = json_loadb(s, n, JSON_REJECT_DUPLICATES, &why), *o;

    if (json_string_length(json_object_get(row, "input")) == 0 ||
        !json_is_array(json_object_get(row, "labels"))) {
        json_decref(row);
        return rc_fail(err, RC_INVALID,
                       "line %zu: expected {\"input\": TEXT, \"labels\": [VALUE...]}%s%.80s",
                       w->line, row ? "" : ": ", row ? "" : why.text);
    }
    o = json_pack("{s:O}", "input", json_object_get(row, "input"));
    json_array_append_new(w->inputs, o);
    json_array_append_new(w->rows, row);
    return json_array_size(w->rows) == BATCH ? flush(w, err) : RC_OK;
}

static enum rc score(struct scoring *w, const char *path, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc;

    if ((rc = one_question(w, err)) != RC_OK || (rc = find_dimensions(w, err)) != RC_OK ||
        (rc = sup_file_read(path, LABELLED_BYTES, true, &text, &n, err)) != RC_OK)
        return rc;
    w->inputs = json_array();
    w->rows = json_array();
    for (size_t at = 0; at < n && rc == RC_OK;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;

        w->line++;
        if (len > strspn(text + at, " \t\r"))
            rc = take_line(w, text + at, len, err);
        at += len + 1;
    }
    if (rc == RC_OK)
        rc = flush(w, err);
    if (rc == RC_OK && !w->told)
        rc = rc_fail(err, RC_INVALID, "'%.200s' has no labelled input", path);
    free(text);
    json_decref(w->inputs);
    json_decref(w->rows);
    return rc;
}

int sup_cmd_decisions(const struct sup_args *a)
{
    struct sup_session s = {0};
    struct scoring w = {0};
    struct rc_err err = RC_ERR_INIT;
    json_t *request = NULL, *answer = NULL;
    int status;
    enum rc rc;

    if (!a->v[O_REQUEST].set)
        return sup_usage_error(a->cmd, "name the request's file: --request FILE");
    sup_cli_catch_int();
    if ((rc = sup_file_json(a->v[O_REQUEST].text, REQUEST_BYTES, &request, &err)) != RC_OK) {
        status = sup_fail(a->cmd, &err);
    } else if (sup_session_open(&s, a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, &err) !=
               RC_OK) {
        status = sup_session_fail(a->cmd, &err);
    } else {
        w.client = s.client;
        w.request = request;
        if (a->v[O_SCORES].set)
            rc = score(&w, a->v[O_SCORES].text, &err);
        else if ((rc = sup_client_call(s.client, PATH, request, 0, &answer, &err)) == RC_OK &&
                 a->v[O_JSON].set)
            sup_print_json(answer);
        else if (rc == RC_OK)
            show(answer);
        status = rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
    }
    json_decref(w.labels);
    json_decref(answer);
    json_decref(request);
    sup_session_close(&s);
    return status;
}
