/* extract.c - how long an extractor takes from texts and labels to what it found (target
 * bench-extract; no test).
 *
 *   bench-extract FOLDER THREADS RUNS THRESHOLD LABELS < TEXTS
 *
 * LABELS apart by commas; TEXTS a line each, all read in one call, as entities of every label. A
 * run is all of it: prompts, words, tokens, the network, reading. Prints JSON: every run's wall
 * clock and CPU time, rows of the longest sequence, and what was found: [text, label, start, end,
 * score]. tests/bench/gliner2.py compares with the gliner2 package.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wrk_extract.h"

#define MAX_TEXTS 64
#define MAX_LABELS 32
#define MAX_RUNS 1000
#define MAX_BYTES (1 << 20)
#define MAX_ROWS 4096u /* of a sequence */

static struct rc_err err = RC_ERR_INIT;

static void check(enum rc rc)
{
    if (rc == RC_OK)
        return;
    fprintf(stderr, "bench-extract: %s\n", err.msg);
    exit(1);
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "bench-extract: no memory\n");
        exit(1);
    }
    return p;
}

static double now(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

struct job {
    struct mdl *m;
    float threshold;
    char *text[MAX_TEXTS];
    uint32_t n;
    Ipc__ExtractSchema ask;
    Ipc__ExtractField label[MAX_LABELS], *labels[MAX_LABELS];
    /* of a run */
    struct wrk_schema *schema;
    struct wrk_view view[MAX_TEXTS];
    struct wrk_finds found[MAX_TEXTS];
    struct wrk_reader reader[MAX_TEXTS];
    struct mdl_extract_in in[MAX_TEXTS];
    uint32_t rows;
};

static void read_labels(struct job *j, char *list)
{
    ipc__extract_schema__init(&j->ask);
    for (char *s = strtok(list, ","); s && j->ask.n_entities < MAX_LABELS; s = strtok(NULL, ",")) {
        Ipc__ExtractField *f = &j->label[j->ask.n_entities];

        ipc__extract_field__init(f);
        f->name = (ProtobufCBinaryData){strlen(s), (uint8_t *)s};
        j->labels[j->ask.n_entities++] = f;
    }
    j->ask.entities = j->labels;
    check(wrk_schema_check(&j->ask, &err));
}

static void read_texts(struct job *j)
{
    static char buf[MAX_BYTES];
    size_t n = fread(buf, 1, sizeof(buf) - 1, stdin);

    for (char *s = strtok(buf, "\n"); n > 0 && s && j->n < MAX_TEXTS; s = strtok(NULL, "\n"))
        j->text[j->n++] = s;
    if (j->n == 0) {
        fprintf(stderr, "bench-extract: no texts\n");
        exit(2);
    }
}

static enum rc on_count(void *user, uint32_t seq, uint32_t p, const float *x, uint32_t n,
                        struct rc_err *e)
{
    return RC_OK;
}

static enum rc on_classes(void *user, uint32_t seq, uint32_t p, const float *x, struct rc_err *e)
{
    return wrk_read_classes(&((struct job *)user)->reader[seq], p, x, e);
}

static enum rc on_spans(void *user, uint32_t seq, uint32_t p, uint32_t t, uint32_t f,
                        const float *x, struct rc_err *e)
{
    struct job *j = user;

    return wrk_read_field(&j->reader[seq], p, t, f, x, mdl_info_get(j->m)->span_words, e);
}

/* Prompts and words of text i as the model takes them. */
static void add(struct job *j, uint32_t i)
{
    const struct wrk_schema *s = j->schema;
    struct wrk_view *v = &j->view[i];
    int32_t *ids;
    uint32_t *words;
    size_t n;

    check(wrk_view_init(v, j->text[i], strlen(j->text[i]), 0, mdl_tok_get(j->m), NULL, MAX_ROWS,
                        &err));
    n = s->ids.n + v->ids.n;
    ids = need(malloc(n * sizeof(*ids)));
    words = need(malloc((s->n_prefix + v->w.n + 1) * sizeof(*words)));
    memcpy(ids, s->ids.ids, s->ids.n * sizeof(*ids));
    memcpy(ids + s->ids.n, v->ids.ids, v->ids.n * sizeof(*ids));
    for (uint32_t k = 0; k < s->n_prefix; k++)
        words[k] = s->prefix[k];
    for (size_t w = 0; w <= v->w.n; w++)
        words[s->n_prefix + w] = (uint32_t)s->ids.n + v->row[w];
    j->in[i] = (struct mdl_extract_in){.ids = ids,
                                       .n_ids = (uint32_t)n,
                                       .marks = s->marks,
                                       .n_marks = s->n_marks,
                                       .prompts = s->ask,
                                       .n_prompts = s->n_prompts,
                                       .words = words,
                                       .n_words = s->n_prefix + (uint32_t)v->w.n};
    j->reader[i] = (struct wrk_reader){s, v, j->threshold, &j->found[i]};
    j->rows = (uint32_t)n > j->rows ? (uint32_t)n : j->rows;
}

static void run(struct job *j, struct wrk_finds *all)
{
    const struct mdl_extract_out out = {j, on_classes, on_count, on_spans};

    check(wrk_schema_new(&j->schema, &j->ask, mdl_tok_get(j->m), NULL, MAX_ROWS, &err));
    for (uint32_t i = 0; i < j->n; i++)
        add(j, i);
    check(mdl_extract(j->m, j->n, j->in, &out, &err));
    for (uint32_t i = 0; i < j->n; i++)
        check(wrk_finds_merge(&all[i], &j->found[i], &j->view[i], 1, j->schema, j->text[i],
                              strlen(j->text[i]), false, &err));
}

static void drop(struct job *j, struct wrk_finds *all)
{
    for (uint32_t i = 0; i < j->n; i++) {
        wrk_finds_deinit(&all[i]);
        wrk_finds_deinit(&j->found[i]);
        wrk_reader_deinit(&j->reader[i]);
        wrk_view_deinit(&j->view[i]);
        free((void *)(uintptr_t)j->in[i].ids);
        free((void *)(uintptr_t)j->in[i].words);
    }
    wrk_schema_free(&j->schema);
}

static void print_runs(const char *name, const double *x, int n)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < n; i++)
        printf("%s%.2f", i ? ", " : "", x[i]);
    printf("], ");
}

static void print_found(const struct job *j, const struct wrk_finds *all)
{
    const char *sep = "";

    printf("\"rows\": %u, \"found\": [", j->rows);
    for (uint32_t i = 0; i < j->n; i++)
        for (size_t k = 0; k < all[i].n_entities; k++, sep = ", ") {
            const struct wrk_entity *x = &all[i].entity[k];

            printf("%s[%u, %u, %u, %u, %.6f]", sep, i, x->label, x->span.start, x->span.end,
                   (double)x->span.score);
        }
    printf("], ");
}

int main(int argc, char **argv)
{
    static double wall[MAX_RUNS], cpu[MAX_RUNS];
    static struct wrk_finds all[MAX_TEXTS];
    static struct job j;
    struct be_opts bo = {.backend = "cpu"};
    struct mdl_opts mo = {.batch_tokens = 1u << 14, .max_seqs = MAX_TEXTS, .ctx_tokens = MAX_ROWS};
    struct be_ctx *be = NULL;
    struct be_stats st;
    int runs, fd;

    if (argc != 6 || (runs = atoi(argv[3])) < 1 || runs > MAX_RUNS) {
        fprintf(stderr, "bench-extract: see the head of tests/bench/extract.c\n");
        return 2;
    }
    bo.n_threads = (unsigned)atoi(argv[2]);
    j.threshold = (float)atof(argv[4]);
    read_labels(&j, argv[5]);
    read_texts(&j);
    fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(be_ctx_new(&be, &bo, &err));
    check(mdl_open(&j.m, fd, be, &mo, &err));
    printf("{");
    for (int r = -1; r < runs; r++) { /* the first warms up */
        double w = now(CLOCK_MONOTONIC), c = now(CLOCK_PROCESS_CPUTIME_ID);

        run(&j, all);
        if (r >= 0) {
            wall[r] = now(CLOCK_MONOTONIC) - w;
            cpu[r] = now(CLOCK_PROCESS_CPUTIME_ID) - c;
        } else {
            print_found(&j, all);
        }
        drop(&j, all);
    }
    be_ctx_stats(be, &st);
    print_runs("ms_runs", wall, runs);
    print_runs("cpu_ms_runs", cpu, runs);
    printf("\"threads\": %u, \"kernels\": \"%s\"}\n", st.n_threads, st.kernels);
    mdl_close(&j.m);
    be_ctx_free(&be);
    close(fd);
    return 0;
}
