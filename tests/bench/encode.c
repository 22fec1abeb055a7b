/* encode.c - how long an embedder takes from token ids to the vector, and what it holds meanwhile
 * (target bench-encode; no test).
 *
 *   bench-encode FOLDER THREADS RUNS tokens N       made-up ids
 *   bench-encode FOLDER THREADS RUNS seqs N COUNT   COUNT sequences of N of them
 *   bench-encode FOLDER THREADS RUNS image W H      a made-up picture, its marks around it
 *   bench-encode FOLDER THREADS RUNS sound SAMPLES  a made-up sound
 *
 * Prints JSON: medians of the wall clock and of the process's CPU time (one thread on a busy
 * machine: read that), every run, bytes of weights and workspace. Media are resized and cut to
 * patches before the clock starts. tests/bench/eg2.py and encoders.py compare with peers.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mdl.h"

#define MAX_RUNS 1000
#define MAX_SEQS 256

struct input {
    struct mdl_ids ids;
    struct mdl_encode_media media;
    uint32_t n_media;
};

static struct rc_err err = RC_ERR_INIT;

static void check(enum rc rc)
{
    if (rc == RC_OK)
        return;
    fprintf(stderr, "bench-encode: %s\n", err.msg);
    exit(1);
}

static double now(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void made_up_tokens(struct mdl *m, uint32_t n, struct input *out)
{
    uint32_t vocab = mdl_info_get(m)->vocab_size;

    out->ids.ids = malloc(n * sizeof(*out->ids.ids));
    out->ids.n = n;
    for (uint32_t i = 0; out->ids.ids && i < n; i++)
        out->ids.ids[i] = (int32_t)((i * 7919u + 10) % (vocab - vocab / 4));
}

static struct mdl_media *made_up_image(struct mdl *m, uint32_t w, uint32_t h)
{
    struct mdl_image img = {.width = w, .height = h, .stride = 3 * (size_t)w, .n_channels = 3};
    struct mdl_media *media = NULL;
    uint8_t *px = malloc(img.stride * h);

    for (size_t i = 0; px && i < img.stride * h; i++)
        px[i] = (uint8_t)(i * 2654435761u >> 13);
    img.pixels = px;
    check(mdl_media_image(m, &img, &media, &err));
    free(px);
    return media;
}

static struct mdl_media *made_up_sound(struct mdl *m, size_t n)
{
    struct mdl_sound snd = {.rate = mdl_info_get(m)->sound_rate, .n = n};
    struct mdl_media *media = NULL;
    float *pcm = malloc(n * sizeof(*pcm));

    for (size_t i = 0; pcm && i < n; i++)
        pcm[i] = 0.3f * sinf(0.05f * (float)i) + 1e-4f * (float)(i * 2654435761u >> 22);
    snd.pcm = pcm;
    check(mdl_media_sound(m, &snd, &media, &err));
    free(pcm);
    return media;
}

static void as_input(struct mdl *m, struct mdl_media *media, struct input *out)
{
    const struct mdl_embed_part part = {.media = media};
    const struct mdl_embed_input in = {.parts = &part, .n_parts = 1};

    out->media.media = media;
    out->n_media = 1;
    check(mdl_embed_ordered(m, &in, &out->ids, &out->media.row, &err));
}

static void print_runs(const char *name, const double *x, int n)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < n; i++)
        printf("%s%.2f", i ? ", " : "", x[i]);
    printf("], ");
}

/* So that a peer's numbers can be told to be the same. */
static void print_values(const char *name, const float *x, uint32_t n)
{
    printf("\"%s\": [", name);
    for (uint32_t i = 0; i < n; i++)
        printf("%s%.6f", i ? ", " : "", (double)x[i]);
    printf("], ");
}

int main(int argc, char **argv)
{
    static double wall[MAX_RUNS], cpu[MAX_RUNS];
    struct be_opts bo = {.backend = "cpu"};
    struct mdl_opts mo = {.batch_tokens = 1, .max_seqs = 1};
    struct be_ctx *be = NULL;
    struct be_stats st;
    struct mdl *m = NULL;
    struct input in = {0};
    uint32_t offsets[MAX_SEQS + 1] = {0}, n_seqs = 1;
    float *out;
    int runs, fd;

    if (argc < 6 || (runs = atoi(argv[3])) < 1 || runs > MAX_RUNS) {
        fprintf(stderr, "bench-encode: see the head of tests/bench/encode.c\n");
        return 2;
    }
    bo.n_threads = (unsigned)atoi(argv[2]);
    if (strcmp(argv[4], "seqs") == 0 && argc > 6) {
        n_seqs = (uint32_t)atoi(argv[6]);
        if (n_seqs < 1 || n_seqs > MAX_SEQS || atoi(argv[5]) < 1 || atoi(argv[5]) > 1 << 14) {
            fprintf(stderr, "bench-encode: 1 to %d sequences of 1 to 16384 tokens\n", MAX_SEQS);
            return 2;
        }
        mo.batch_tokens = n_seqs * (uint32_t)atoi(argv[5]);
    }
    fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(be_ctx_new(&be, &bo, &err));
    check(mdl_open(&m, fd, be, &mo, &err));
    if (strcmp(argv[4], "image") == 0 && argc > 6)
        as_input(m, made_up_image(m, (uint32_t)atoi(argv[5]), (uint32_t)atoi(argv[6])), &in);
    else if (strcmp(argv[4], "sound") == 0)
        as_input(m, made_up_sound(m, (size_t)atol(argv[5])), &in);
    else
        made_up_tokens(m, n_seqs * (uint32_t)atoi(argv[5]), &in);
    for (uint32_t s = 1; s <= n_seqs; s++)
        offsets[s] = (uint32_t)in.ids.n / n_seqs * s;
    out = malloc((size_t)n_seqs * mdl_encode_dim(m) * sizeof(float));
    if (!out || !in.ids.ids) {
        fprintf(stderr, "bench-encode: no memory\n");
        return 1;
    }
    be_ctx_seal(be);
    for (int r = -1; r < runs; r++) { /* the first warms up */
        double w = now(CLOCK_MONOTONIC), c = now(CLOCK_PROCESS_CPUTIME_ID);

        check(mdl_encode_with(m, n_seqs, in.ids.ids, offsets, &in.media, in.n_media, out, &err));
        if (r < 0)
            continue;
        wall[r] = now(CLOCK_MONOTONIC) - w;
        cpu[r] = now(CLOCK_PROCESS_CPUTIME_ID) - c;
    }
    be_ctx_stats(be, &st);
    printf("{");
    print_runs("ms_runs", wall, runs);
    print_runs("cpu_ms_runs", cpu, runs);
    print_values("first", out, mdl_encode_dim(m) < 4 ? mdl_encode_dim(m) : 4);
    printf("\"ms\": %.2f, \"cpu_ms\": %.2f, \"tokens\": %u, \"threads\": %u, \"kernels\": \"%s\", "
           "\"weight_bytes\": %llu, \"workspace_bytes\": %llu, \"media_bytes\": %llu, "
           "\"hot_allocs\": %llu}\n",
           median(wall, runs), median(cpu, runs), offsets[n_seqs], st.n_threads, st.kernels,
           (unsigned long long)st.weight_bytes, (unsigned long long)st.workspace_bytes,
           in.n_media ? (unsigned long long)mdl_media_bytes(in.media.media) : 0ull,
           (unsigned long long)st.hot_allocs);
    free(out);
    free(in.ids.ids);
    mdl_media_free((struct mdl_media **)(uintptr_t)&in.media.media);
    mdl_close(&m);
    be_ctx_free(&be);
    close(fd);
    return 0;
}
