/* sup_cmd_embed.c - `inferd embed`: texts, pictures and sounds to vectors, or how alike
 * they are.
 *
 * Sends them in requests of at most BATCH; a vector is printed as it comes, so a
 * long input needs no memory for all of them (but --similarity does, and is limited
 * to SIMILARITY_MAX). With --group all that is given makes one vector. Files are read
 * here and sent inside the request. Tests: tests/e2e/cli_embed.py
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_cmd_embed.h"
#include "sup_cmd_embed_pdf.h"
#include "sup_common.h"
#include "sup_progress.h"
#include "sup_term.h"

#define BATCH 64                /* also the parts of a group */
#define BATCH_BYTES (32u << 20) /* of files, before one more */
#define SIMILARITY_MAX 1000

enum {
    O_SERVER,
    O_MODELS_DIR,
    O_JSON,
    O_SIMILARITY,
    O_DIMENSIONS,
    O_TEXT,
    O_IMAGE,
    O_AUDIO,
    O_PDF,
    O_GROUP,
    O_TITLE,
    O_TASK,
    O_IDENTITY,
    O_OUTPUT
};

const struct sup_opt sup_opts_embed[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"json", SUP_O_FLAG, NULL, "one JSON object per vector, or one for --similarity", 0, 0},
    {"similarity", SUP_O_FLAG, NULL, "print the cosine of each pair instead of vectors", 0, 0},
    {"dimensions", SUP_O_NUM, "N", "shorten the vectors, where the model can", 1, 65536},
    {"text", SUP_O_TEXT, "TEXT", "the same as an argument TEXT; may be repeated", 0, 0},
    {"image", SUP_O_TEXT, "FILE", "a PNG, JPEG, GIF or WebP picture; may be repeated", 0, 0},
    {"audio", SUP_O_TEXT, "FILE", "a WAV, FLAC, Ogg or MP3 sound; may be repeated", 0, 0},
    {"pdf", SUP_O_TEXT, "FILE", "a vector for each page of a PDF, in order; may be repeated", 0, 0},
    {"group", SUP_O_FLAG, NULL, "one vector for all that is given, in its order", 0, 0},
    {"title", SUP_O_TEXT, "TEXT", "with --group: the document's title", 0, 0},
    {"task-type", SUP_O_TEXT, "NAME", "as in the API: RETRIEVAL_QUERY, CLUSTERING, ...", 0, 0},
    {"model-identity", SUP_O_TEXT, "HEX", "fail unless the model is of just these files", 0, 0},
    {"output", SUP_O_TEXT, "FILE", "write to this file instead of stdout", 0, 0, 'o'},
    {0},
};

struct work {
    const struct sup_args *args;
    struct sup_client *client;
    const char *model;
    struct sup_embed_item batch[BATCH];
    size_t n_batch;
    size_t batch_bytes; /* of files */
    size_t n_done;
    const struct sup_model *loading; /* until its first answer */
    /* --similarity */
    double *vec; /* [n_done, dim] */
    char **text;
    size_t dim;
};

static void print_number(double v)
{
    printf("%.9g", v);
}

/* {"index", "text" | "image" | "audio" | "group" | "pdf" and "page", "embedding",
 * "model_identity"?} */
static json_t *vector_json(const struct work *w, size_t k, json_t *vec, json_t *identity)
{
    json_t *o = json_object(), *group;

    json_object_set_new(o, "index", json_integer((json_int_t)w->n_done));
    if (w->args->v[O_GROUP].set) {
        group = json_array();
        for (size_t i = 0; i < w->n_batch; i++)
            json_array_append_new(group, json_pack("{s:s}", w->batch[i].kind, w->batch[i].label));
        json_object_set_new(o, "group", group);
    } else {
        json_object_set_new(o, w->batch[k].kind, json_string(w->batch[k].label));
        if (w->batch[k].page)
            json_object_set_new(o, "page", json_integer((json_int_t)w->batch[k].page));
    }
    json_object_set(o, "embedding", vec);
    if (json_is_string(identity))
        json_object_set(o, "model_identity", identity);
    return o;
}

static void print_vector(const struct work *w, size_t k, json_t *vec, json_t *identity)
{
    const json_t *x;
    size_t i;

    if (w->args->v[O_JSON].set) {
        json_t *o = vector_json(w, k, vec, identity);
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
        return rc_fail(err, RC_TOO_LARGE, "--similarity takes at most %d inputs", SIMILARITY_MAX);
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
    if (w->batch[k].page == 0) {
        texts[w->n_done] = w->batch[k].label;
        w->batch[k].label = NULL; /* moved */
    } else if (asprintf(&texts[w->n_done], "%s, page %u", w->batch[k].label, w->batch[k].page) <
               0) {
        return rc_fail(err, RC_NOMEM, "out of memory");
    }
    return RC_OK;
}

static void set_text(json_t *body, const char *key, const struct work *w, int opt)
{
    const char *given = w->args->v[opt].text;
    char *text = w->args->v[opt].set ? sup_valid_dup(given, strlen(given)) : NULL;

    if (text)
        json_object_set_new(body, key, json_string(text));
    free(text);
}

static json_t *request(const struct work *w)
{
    bool group = w->args->v[O_GROUP].set;
    json_t *list = json_array(), *body;

    for (size_t i = 0; i < w->n_batch; i++)
        if (json_array_append(list, w->batch[i].part) != 0) {
            json_decref(list);
            return NULL;
        }
    if (group) {
        list = json_pack("{s:o}", "content", list);
        set_text(list, "title", w, O_TITLE);
        list = json_pack("[o]", list);
    }
    body =
        json_pack("{s:s, s:o, s:s}", "model", w->model, "input", list, "encoding_format", "float");
    if (body && w->args->v[O_DIMENSIONS].set)
        json_object_set_new(body, "dimensions",
                            json_integer((json_int_t)w->args->v[O_DIMENSIONS].num));
    set_text(body, "task_type", w, O_TASK);
    set_text(body, "model_identity", w, O_IDENTITY);
    return body;
}

static void batch_empty(struct work *w)
{
    for (size_t k = 0; k < w->n_batch; k++)
        sup_embed_item_deinit(&w->batch[k]);
    w->n_batch = w->batch_bytes = 0;
}

/* Sends the batch and prints or keeps its vectors. */
static enum rc flush(struct work *w, struct rc_err *err)
{
    const size_t n = w->args->v[O_GROUP].set ? 1 : w->n_batch;
    json_t *body = request(w), *answer = NULL, *data;
    enum rc rc;

    rc = sup_progress_call(w->client, w->loading, "/v1/embeddings", body, &answer, err);
    w->loading = NULL;
    data = json_object_get(answer, "data");
    if (rc == RC_OK && json_array_size(data) != n)
        rc = rc_fail(err, RC_FORMAT, "the server gave %zu vectors for %zu inputs",
                     json_array_size(data), n);
    for (size_t k = 0; rc == RC_OK && k < n; k++) {
        json_t *vec = json_object_get(json_array_get(data, k), "embedding");

        if (json_array_size(vec) == 0)
            rc = rc_fail(err, RC_FORMAT, "the server gave no vector for input %zu", w->n_done);
        else if (w->args->v[O_SIMILARITY].set)
            rc = keep_vector(w, k, vec, err);
        else
            print_vector(w, k, vec, json_object_get(answer, "model_identity"));
        w->n_done += rc == RC_OK;
    }
    batch_empty(w);
    json_decref(answer);
    json_decref(body);
    return rc;
}

static bool is_full(const struct work *w)
{
    return w->n_batch == BATCH || w->batch_bytes >= BATCH_BYTES;
}

static enum rc added(struct work *w, const struct sup_embed_item *it, struct rc_err *err)
{
    w->n_batch++;
    w->batch_bytes += it->n_bytes;
    return is_full(w) && !w->args->v[O_GROUP].set ? flush(w, err) : RC_OK;
}

/* A text, or the file of that name. */
static enum rc add(struct work *w, const char *kind, const char *text, struct rc_err *err)
{
    bool group = w->args->v[O_GROUP].set;
    struct sup_embed_item *it = &w->batch[w->n_batch];
    enum rc rc;

    if (group && w->n_batch == BATCH)
        return rc_fail(err, RC_TOO_LARGE, "--group takes at most %d parts", BATCH);
    rc = strcmp(kind, "text") == 0 ? sup_embed_item_text(it, text, group, err)
                                   : sup_embed_item_file(it, kind, text, err);
    return rc == RC_OK ? added(w, it, err) : rc;
}

/* Each page of a document, as it comes. */
static enum rc add_pages(struct work *w, const char *path, struct rc_err *err)
{
    struct sup_pdf pdf = {0};
    char *png = NULL;
    size_t n = 0;
    enum rc rc = sup_pdf_open(&pdf, path, err);

    for (unsigned page = 1; rc == RC_OK; page++) {
        struct sup_embed_item *it = &w->batch[w->n_batch];

        if ((rc = sup_pdf_next(&pdf, &png, &n, err)) != RC_OK || png == NULL)
            break;
        rc = sup_embed_item_page(it, path, page, png, n, err);
        free(png);
        if (rc == RC_OK)
            rc = added(w, it, err);
    }
    sup_pdf_close(&pdf);
    return rc;
}

/* Texts and files as the command line has them. */
static enum rc add_given(struct work *w, bool *any, struct rc_err *err)
{
    static const char *const kinds[] = {
        [O_TEXT] = "text", [O_IMAGE] = "image", [O_AUDIO] = "audio", [O_PDF] = "pdf"};
    const struct sup_args *a = w->args;
    bool model = false;
    enum rc rc = RC_OK;

    *any = false;
    for (int i = 0; i < a->n_given && rc == RC_OK; i++) {
        int opt = a->given[i].opt;

        if (opt < 0 && !model) {
            model = true;
        } else if (opt < 0 || (opt >= O_TEXT && opt <= O_PDF)) {
            *any = true;
            rc = opt == O_PDF ? add_pages(w, a->given[i].text, err)
                              : add(w, opt < 0 ? "text" : kinds[opt], a->given[i].text, err);
        }
    }
    return rc;
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
            rc = add(w, "text", line, err);
        free(line);
    }
    return rc;
}

static enum rc run(struct work *w, struct sup_listing *l, struct rc_err *err)
{
    const struct sup_args *a = w->args;
    const struct sup_model *m = NULL;
    enum rc rc;
    bool any;

    if ((rc = sup_listing_choose(w->client, l, a->pos[0], SUP_KIND_EMBED, &m, err)) != RC_OK)
        return rc;
    if (m->known && !m->can_embed)
        return rc_fail(err, RC_INVALID, "model '%.100s' (%s) gives no embeddings; try: inferd chat",
                       m->id, m->family);
    w->model = m->id;
    w->loading = m;
    rc = add_given(w, &any, err);
    if (!any && rc == RC_OK)
        rc = texts_of_stdin(w, err);
    if (rc == RC_OK && w->n_batch)
        rc = flush(w, err);
    if (rc == RC_OK && a->v[O_SIMILARITY].set && w->n_done < 2)
        return rc_fail(err, RC_INVALID, "--similarity needs two texts or files, or more");
    if (rc == RC_OK && a->v[O_SIMILARITY].set && a->v[O_JSON].set)
        similarity_json(w);
    else if (rc == RC_OK && a->v[O_SIMILARITY].set)
        similarity_pairs(w);
    return rc;
}

/* NULL, or what is wrong with the options together. */
static const char *contradiction(const struct sup_args *a)
{
    bool any = a->n_pos > 1 || a->v[O_TEXT].set || a->v[O_IMAGE].set || a->v[O_AUDIO].set;

    if (a->v[O_GROUP].set && a->v[O_PDF].set)
        return "--group makes one vector, --pdf one for each page";
    if (a->v[O_TITLE].set && !a->v[O_GROUP].set)
        return "--title needs --group";
    if (a->v[O_GROUP].set && a->v[O_SIMILARITY].set)
        return "--group makes one vector: --similarity has nothing to compare";
    if (a->v[O_GROUP].set && !any)
        return "--group needs texts or files on the command line";
    return NULL;
}

/* What was written is in the file, or it is said. */
static enum rc output_end(const struct sup_args *a, struct rc_err *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return RC_OK;
    return rc_fail(err, RC_IO, "cannot write '%.200s': %s",
                   a->v[O_OUTPUT].set ? a->v[O_OUTPUT].text : "stdout", strerror(errno));
}

int sup_cmd_embed(const struct sup_args *a)
{
    struct work w = {.args = a};
    struct sup_session s = {0};
    struct sup_listing l = {0};
    struct rc_err err = RC_ERR_INIT;
    int status;

    if (contradiction(a))
        return sup_usage_error(a->cmd, "%s", contradiction(a));
    if (a->v[O_OUTPUT].set && !freopen(a->v[O_OUTPUT].text, "we", stdout)) {
        rc_fail(&err, RC_IO, "cannot write '%.200s': %s", a->v[O_OUTPUT].text, strerror(errno));
        return sup_fail(a->cmd, &err);
    }
    sup_cli_catch_int();
    if (sup_session_open(&s, a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, &err) != RC_OK) {
        status = sup_session_fail(a->cmd, &err);
    } else {
        w.client = s.client;
        status = run(&w, &l, &err) == RC_OK && output_end(a, &err) == RC_OK
                     ? SUP_EXIT_OK
                     : sup_fail(a->cmd, &err);
    }
    batch_empty(&w);
    for (size_t i = 0; w.text && i < w.n_done; i++)
        free(w.text[i]);
    free(w.text);
    free(w.vec);
    sup_listing_deinit(&l);
    sup_session_close(&s);
    return status;
}
