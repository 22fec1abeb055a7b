/* sup_cmd_embed.c - `inferd embed`: texts to vectors, or how alike they are.
 *
 * Sends texts in requests of at most BATCH; a vector is printed as it comes, so a
 * long input needs no memory for all of them (but --similarity does, and is limited
 * to SIMILARITY_MAX texts). Tests: tests/e2e/cli_embed.py
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_common.h"
#include "sup_progress.h"
#include "sup_term.h"

#define BATCH 64
#define SIMILARITY_MAX 1000

enum { O_SERVER, O_MODELS_DIR, O_JSON, O_SIMILARITY, O_DIMENSIONS };

const struct sup_opt sup_opts_embed[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"json", SUP_O_FLAG, NULL, "one JSON object per text, or one for --similarity", 0, 0},
    {"similarity", SUP_O_FLAG, NULL, "print the cosine of each pair instead of vectors", 0, 0},
    {"dimensions", SUP_O_NUM, "N", "shorten the vectors, where the model can", 1, 65536},
    {0},
};

struct work {
    const struct sup_args *args;
    struct sup_client *client;
    const char *model;
    char *batch[BATCH];
    size_t n_batch;
    size_t n_done;
    struct sup_progress progress;
    /* --similarity */
    double *vec; /* [n_done, dim] */
    char **text;
    size_t dim;
};

static void print_number(double v)
{
    printf("%.9g", v);
}

static void print_vector(const struct work *w, const char *text, const json_t *vec)
{
    const json_t *x;
    size_t i;

    if (w->args->v[O_JSON].set) {
        json_t *o =
            json_pack("{s:i, s:s, s:O}", "index", (int)w->n_done, "text", text, "embedding", vec);
        char *s = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

        puts(s ? s : "{}");
        free(s);
        json_decref(o);
        return;
    }
    json_array_foreach(vec, i, x)
    {
        if (i)
            putchar(' ');
        print_number(json_number_value(x));
    }
    putchar('\n');
}

static enum rc keep_vector(struct work *w, size_t k, const json_t *vec, struct rc_err *err)
{
    size_t dim = json_array_size(vec);
    double *grown;
    char **texts;

    if (w->n_done >= SIMILARITY_MAX)
        return rc_fail(err, RC_TOO_LARGE, "--similarity takes at most %d texts", SIMILARITY_MAX);
    if (w->n_done > 0 && dim != w->dim)
        return rc_fail(err, RC_FORMAT, "the server gave vectors of %zu and of %zu numbers", w->dim,
                       dim);
    w->dim = dim;
    grown = realloc(w->vec, (w->n_done + 1) * dim * sizeof(*grown));
    if (grown)
        w->vec = grown;
    texts = realloc(w->text, (w->n_done + 1) * sizeof(*texts));
    if (texts)
        w->text = texts;
    if (!grown || !texts)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; i < dim; i++)
        grown[w->n_done * dim + i] = json_number_value(json_array_get(vec, i));
    texts[w->n_done] = w->batch[k];
    w->batch[k] = NULL; /* moved */
    return RC_OK;
}

static json_t *request(const struct work *w)
{
    json_t *input = json_array(), *body;

    for (size_t i = 0; i < w->n_batch; i++)
        if (json_array_append_new(input, json_string(w->batch[i])) != 0) {
            json_decref(input);
            return NULL;
        }
    body =
        json_pack("{s:s, s:o, s:s}", "model", w->model, "input", input, "encoding_format", "float");
    if (body && w->args->v[O_DIMENSIONS].set)
        json_object_set_new(body, "dimensions",
                            json_integer((json_int_t)w->args->v[O_DIMENSIONS].num));
    return body;
}

/* Sends the batch and prints or keeps its vectors. */
static enum rc flush(struct work *w, struct rc_err *err)
{
    json_t *body = request(w), *answer = NULL, *data;
    enum rc rc = RC_OK;

    if (!body)
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    if (rc == RC_OK)
        rc = sup_client_call(w->client, "/v1/embeddings", body, 0, &answer, err);
    sup_progress_end(&w->progress, w->client);
    data = json_object_get(answer, "data");
    if (rc == RC_OK && json_array_size(data) != w->n_batch)
        rc = rc_fail(err, RC_FORMAT, "the server gave %zu vectors for %zu texts",
                     json_array_size(data), w->n_batch);
    for (size_t k = 0; rc == RC_OK && k < w->n_batch; k++) {
        json_t *vec = json_object_get(json_array_get(data, k), "embedding");

        if (json_array_size(vec) == 0)
            rc = rc_fail(err, RC_FORMAT, "the server gave no vector for text %zu", w->n_done);
        else if (w->args->v[O_SIMILARITY].set)
            rc = keep_vector(w, k, vec, err);
        else
            print_vector(w, w->batch[k], vec);
        w->n_done += rc == RC_OK;
    }
    for (size_t k = 0; k < w->n_batch; k++) {
        free(w->batch[k]);
        w->batch[k] = NULL;
    }
    w->n_batch = 0;
    json_decref(answer);
    json_decref(body);
    return rc;
}

static enum rc add(struct work *w, const char *text, struct rc_err *err)
{
    char *copy = sup_valid_dup(text, strlen(text));

    if (!copy)
        return rc_fail(err, RC_NOMEM, "out of memory");
    w->batch[w->n_batch++] = copy;
    return w->n_batch == BATCH ? flush(w, err) : RC_OK;
}

static double cosine(const struct work *w, size_t a, size_t b)
{
    const double *x = w->vec + a * w->dim, *y = w->vec + b * w->dim;
    double xy = 0, xx = 0, yy = 0;

    for (size_t i = 0; i < w->dim; i++) {
        xy += x[i] * y[i];
        xx += x[i] * x[i];
        yy += y[i] * y[i];
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

static void similarity_json(const struct work *w)
{
    json_t *texts = json_array(), *rows = json_array(), *o;
    char *s;

    for (size_t i = 0; i < w->n_done; i++) {
        json_t *row = json_array();

        for (size_t j = 0; j < w->n_done; j++)
            json_array_append_new(row, json_real(cosine(w, i, j)));
        json_array_append_new(rows, row);
        json_array_append_new(texts, json_string(w->text[i]));
    }
    o = json_pack("{s:s, s:o, s:o}", "model", w->model, "texts", texts, "similarity", rows);
    s = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

/* One line per pair: readable for few texts, greppable for many. */
static void similarity_pairs(const struct work *w)
{
    for (size_t i = 0; i < w->n_done; i++)
        for (size_t j = i + 1; j < w->n_done; j++) {
            printf("%7.4f  ", cosine(w, i, j));
            sup_print_clean(stdout, w->text[i], false);
            fputs("  |  ", stdout);
            sup_print_clean(stdout, w->text[j], false);
            putchar('\n');
        }
}

static enum rc texts_of_stdin(struct work *w, struct rc_err *err)
{
    struct sup_lines in = {.fd = STDIN_FILENO};
    enum rc rc = RC_OK;
    char *line;
    int got;

    if (isatty(STDIN_FILENO) == 1)
        fputs("one text per line, Ctrl-D ends:\n", stderr);
    while (rc == RC_OK && (got = sup_line_read(&in, &line)) != 0) {
        if (got == -1)
            return rc_fail(err, RC_CANCELLED, "interrupted");
        if (got < 0)
            return rc_fail(err, RC_TOO_LARGE,
                           got == -2 ? "a line of stdin is longer than 1 MiB"
                                     : "stdin cannot be read");
        if (*line)
            rc = add(w, line, err);
        free(line);
    }
    return rc;
}

static enum rc run(struct work *w, struct sup_listing *l, struct rc_err *err)
{
    const struct sup_args *a = w->args;
    const struct sup_model *m = NULL;
    enum rc rc;

    if ((rc = sup_listing_choose(w->client, l, a->pos[0], true, &m, err)) != RC_OK)
        return rc;
    if (m->known && !m->can_embed)
        return rc_fail(err, RC_INVALID, "model '%.100s' (%s) gives no embeddings; try: inferd chat",
                       m->id, m->family);
    w->model = m->id;
    if (strcmp(m->state, "ready") != 0 && strcmp(m->state, "busy") != 0)
        sup_progress_start(&w->progress, w->client, m->id);
    for (int i = 1; i < a->n_pos && rc == RC_OK; i++)
        rc = add(w, a->pos[i], err);
    if (a->n_pos == 1 && rc == RC_OK)
        rc = texts_of_stdin(w, err);
    if (rc == RC_OK && w->n_batch)
        rc = flush(w, err);
    if (rc == RC_OK && a->v[O_SIMILARITY].set && w->n_done < 2)
        return rc_fail(err, RC_INVALID, "--similarity needs two texts or more");
    if (rc == RC_OK && a->v[O_SIMILARITY].set && a->v[O_JSON].set)
        similarity_json(w);
    else if (rc == RC_OK && a->v[O_SIMILARITY].set)
        similarity_pairs(w);
    return rc;
}

int sup_cmd_embed(const struct sup_args *a)
{
    struct work w = {.args = a};
    struct sup_session s = {0};
    struct sup_listing l = {0};
    struct rc_err err = RC_ERR_INIT;
    int status;

    sup_cli_catch_int();
    if (sup_session_open(&s, a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, &err) != RC_OK) {
        status = err.code == RC_INVALID || err.code == RC_CONFLICT
                     ? sup_usage_error(a->cmd, "%s", err.msg)
                     : sup_fail(a->cmd, &err);
    } else {
        w.client = s.client;
        status = run(&w, &l, &err) == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
        sup_progress_end(&w.progress, w.client);
    }
    for (size_t i = 0; i < w.n_batch; i++)
        free(w.batch[i]);
    for (size_t i = 0; w.text && i < w.n_done; i++)
        free(w.text[i]);
    free(w.text);
    free(w.vec);
    sup_listing_deinit(&l);
    sup_session_close(&s);
    return status;
}
