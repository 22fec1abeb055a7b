/* wrk_bench.c - load, prefill, decode and encode, timed inside the sandbox.
 *
 * Opens the path itself, then narrows itself like a serving worker: what is
 * measured is what serves. Prompt tokens are made up (the arithmetic does not
 * look), and so are the keys and values that decoding finds in the cache; decoding is
 * greedy with the worker's own sampler. Processor time stands beside the clock's: on a
 * shared machine it wanders less. Runs are printed one by one beside their median.
 * Never writes a file.
 * Tests: tests/worker/test_wrk_model_golden.c
 */
#include "wrk_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "wrk_engine.h"
#include "wrk_kstats.h"
#include "wrk_load.h"
#include "wrk_pages.h"
#include "wrk_sample.h"
#include "wrk_sandbox.h"
#include "wrk_serve.h"
#include "wrk_start.h"

#define RUNS_MAX 100
#define WARM_TOKENS 16 /* in the cache before decoding is timed, at least */

struct bench {
    const char *path, *cpu_level, *f32_gemm, *kv_dtype, *sandbox;
    uint64_t prompt, gen, context, seqs, threads, runs, embed_batch, embed_tokens, batch_tokens,
        kv_mb;
    struct wrk_device device;
    struct wrk_loaded model;
    struct wrk_sampler sampler;
    struct wrk_pages pages;
    struct wrk_table *table;
    int32_t *ids, *pos, *out_rows, *next;
    struct be_seq *part;
    struct be_sample_row *greedy;
};

static const struct option {
    const char *name;
    size_t at;    /* of a const char * or a uint64_t */
    uint64_t max; /* 0: a word */
} options[] = {
#define AT(f) offsetof(struct bench, f)
    {"--prompt", AT(prompt), 1u << 20},
    {"--gen", AT(gen), 1u << 20},
    {"--context", AT(context), 1u << 20},
    {"--seqs", AT(seqs), WRK_SEQS_MAX},
    {"--threads", AT(threads), 1024},
    {"--runs", AT(runs), RUNS_MAX},
    {"--batch-tokens", AT(batch_tokens), WRK_BATCH_MAX},
    {"--kv-mb", AT(kv_mb), 1u << 20},
    {"--embed-batch", AT(embed_batch), 4096},
    {"--embed-tokens", AT(embed_tokens), 1u << 16},
    {"--cpu-level", AT(cpu_level), 0},
    {"--f32-gemm", AT(f32_gemm), 0},
    {"--kv-dtype", AT(kv_dtype), 0},
    {"--sandbox", AT(sandbox), 0},
#undef AT
};

static enum rc set_option(struct bench *b, const struct option *o, const char *v,
                          struct rc_err *err)
{
    char *end = NULL;
    unsigned long long n;

    if (v == NULL || *v == '\0')
        return rc_fail(err, RC_INVALID, "%s needs a value", o->name);
    if (o->max == 0) {
        memcpy((char *)b + o->at, &v, sizeof(v));
        return RC_OK;
    }
    n = strtoull(v, &end, 10);
    if (v[0] < '0' || v[0] > '9' || *end != '\0' || n < 1 || n > o->max)
        return rc_fail(err, RC_INVALID, "%s '%s', expected 1 to %llu", o->name, v,
                       (unsigned long long)o->max);
    memcpy((char *)b + o->at, &(uint64_t){n}, sizeof(uint64_t));
    return RC_OK;
}

/* A word of the device's, or unknown. */
static enum rc set_device(struct bench *b, const char *arg, size_t len, const char *v,
                          struct rc_err *err)
{
    char name[32];
    bool known = false;

    if (len > 2 && len - 2 < sizeof(name)) {
        snprintf(name, sizeof(name), "%.*s", (int)len - 2, arg + 2);
        if (wrk_device_set(&b->device, name, v, &known))
            return RC_OK;
    }
    if (known)
        return rc_fail(err, RC_INVALID, "--%s: value '%s' is none of it; %s", name, v ? v : "",
                       wrk_device_usage());
    return rc_fail(err, RC_INVALID, "unknown argument '%s'", arg);
}

/* --name VALUE and --name=VALUE. */
static enum rc parse(struct bench *b, int argc, char **argv, struct rc_err *err)
{
    enum rc rc;

    for (int i = 2; i < argc; i++) {
        size_t len = strcspn(argv[i], "="), k = 0, n = sizeof(options) / sizeof(options[0]);
        const char *v = argv[i][len] == '=' ? argv[i] + len + 1 : NULL;

        if (argv[i][0] != '-' && b->path == NULL) {
            b->path = argv[i];
            continue;
        }
        while (k < n && (strlen(options[k].name) != len || strncmp(options[k].name, argv[i], len)))
            k++;
        const char *arg = argv[i];

        if (v == NULL && i + 1 < argc)
            v = argv[++i];
        if (k == n) {
            if ((rc = set_device(b, arg, len, v, err)) != RC_OK)
                return rc;
            continue;
        }
        if ((rc = set_option(b, &options[k], v, err)) != RC_OK)
            return rc;
    }
    if (b->context < WARM_TOKENS)
        return rc_fail(err, RC_INVALID, "--context %llu, expected at least %d",
                       (unsigned long long)b->context, WARM_TOKENS);
    return b->path != NULL ? RC_OK : rc_fail(err, RC_INVALID, "--bench needs the path of a model");
}

/* ------------------------------------------------------------------- decoding */

static int32_t made_up(const struct bench *b, uint64_t i)
{
    uint32_t vocab = mdl_info_get(b->model.mdl)->vocab_size;

    return (int32_t)((i * 7919u) % (vocab > 2000 ? vocab / 2 : vocab) + (vocab > 2000 ? 1000 : 0));
}

static enum rc host_pick(struct bench *b, uint32_t s, const float *row, struct rc_err *err)
{
    const struct wrk_sampling greedy = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1};

    return wrk_sample(&b->sampler, row, &greedy, NULL, NULL, &b->next[s], err);
}

/* The next token of each sequence, as serving picks it: on the device where it draws. */
static enum rc pick(struct bench *b, uint32_t n_seqs, const float *logits, struct rc_err *err)
{
    bool device = mdl_can_sample(b->model.mdl);
    const float *row = logits;
    enum rc rc = RC_OK;

    if (device)
        rc = mdl_sample(b->model.mdl, b->greedy, n_seqs, b->next, err);
    for (uint32_t s = 0; s < n_seqs && rc == RC_OK; s++) {
        if (device && b->next[s] >= 0)
            continue;
        if (device)
            rc = mdl_logits(b->model.mdl, s, &row, err);
        else
            row = logits + (size_t)s * b->sampler.n_vocab;
        if (rc == RC_OK)
            rc = host_pick(b, s, row, err);
    }
    return rc;
}

/* Pages for n rows of each of n_seqs sequences at pos0. */
static enum rc hold(struct bench *b, uint32_t n_seqs, uint32_t pos0, uint32_t n, struct rc_err *err)
{
    enum rc rc;

    for (uint32_t s = 0; s < n_seqs; s++) {
        if ((rc = wrk_table_hold(&b->table[s], &b->pages, pos0, n, err)) != RC_OK)
            return rc;
        b->part[s] = (struct be_seq){.row0 = s * n, .n_rows = n, .pos0 = pos0};
        for (uint32_t c = 0; c < b->pages.n_classes; c++)
            b->part[s].pages[c] = b->table[s].entry[c];
    }
    return RC_OK;
}

/* One pass: n rows of each of n_seqs sequences at pos0; last: picks each one's next token. */
static enum rc pass(struct bench *b, uint32_t n_seqs, uint32_t pos0, uint32_t n, bool last,
                    struct rc_err *err)
{
    struct mdl_batch m = {.ids = b->ids, .pos = b->pos, .seqs = b->part, .out_rows = b->out_rows};
    const float *logits = NULL;
    enum rc rc = hold(b, n_seqs, pos0, n, err);

    if (rc != RC_OK)
        return rc;
    m.n_seqs = n_seqs;
    for (uint32_t s = 0; s < n_seqs; s++) {
        for (uint32_t r = 0; r < n; r++, m.n_rows++) {
            b->ids[m.n_rows] = n == 1 ? b->next[s] : made_up(b, pos0 + r + 31 * s);
            b->pos[m.n_rows] = (int32_t)(pos0 + r);
        }
        if (last)
            b->out_rows[m.n_out++] = (int32_t)m.n_rows - 1;
    }
    rc = mdl_decode(b->model.mdl, &m, mdl_can_sample(b->model.mdl) ? NULL : &logits, err);
    return rc == RC_OK && last ? pick(b, n_seqs, logits, err) : rc;
}

static void close_tables(struct bench *b)
{
    for (uint64_t s = 0; b->table != NULL && s < b->seqs; s++)
        wrk_table_close(&b->table[s], &b->pages);
}

static enum rc prefill(struct bench *b, uint32_t n, double *out_s, struct rc_err *err)
{
    uint64_t t0;
    enum rc rc = wrk_table_open(&b->table[0], &b->pages, n, n, NULL, err);

    t0 = wrk_now_us();
    for (uint32_t pos = 0; pos < n && rc == RC_OK;) {
        uint32_t k = n - pos < b->pages.chunk ? n - pos : b->pages.chunk;

        rc = pass(b, 1, pos, k, pos + k == n, err);
        pos += k;
    }
    *out_s = (double)(wrk_now_us() - t0) * 1e-6;
    close_tables(b);
    return rc;
}

/* Of all threads of this process. */
static double cpu_s(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n tokens behind warm others. */
static enum rc decode(struct bench *b, uint32_t warm, uint32_t n, double *out_s, double *out_cpu_s,
                      struct rc_err *err)
{
    uint32_t seqs = (uint32_t)b->seqs;
    uint64_t t0 = 0;
    enum rc rc = RC_OK;

    for (uint32_t s = 0; s < seqs && rc == RC_OK; s++) {
        b->next[s] = made_up(b, s);
        rc = wrk_table_open(&b->table[s], &b->pages, warm + n, warm + n, NULL, err);
    }
    /* All but the last WARM_TOKENS of the context are made up. */
    for (uint32_t i = 0, k; i + WARM_TOKENS < warm && rc == RC_OK; i += k) {
        k = warm - WARM_TOKENS - i;
        if (k > b->pages.chunk / seqs)
            k = b->pages.chunk / seqs > 0 ? b->pages.chunk / seqs : 1;
        if ((rc = hold(b, seqs, i, k, err)) == RC_OK)
            rc = mdl_kv_fill(b->model.mdl, b->part, seqs, seqs * k, err);
    }
    for (uint32_t i = warm - WARM_TOKENS; i < warm + n && rc == RC_OK; i++) {
        if (i == warm) {
            t0 = wrk_now_us();
            *out_cpu_s = cpu_s();
        }
        rc = pass(b, seqs, i, 1, true, err);
    }
    *out_s = (double)(wrk_now_us() - t0) * 1e-6;
    *out_cpu_s = cpu_s() - *out_cpu_s;
    close_tables(b);
    return rc;
}

/* ------------------------------------------------------------------- encoding */

static enum rc encode(struct bench *b, double *out_s, struct rc_err *err)
{
    const struct mdl_info *info = mdl_info_get(b->model.mdl);
    uint32_t n = (uint32_t)b->embed_batch, len = (uint32_t)b->embed_tokens;
    int32_t *ids = calloc((size_t)n * len, sizeof(*ids));
    uint32_t *off = calloc((size_t)n + 1, sizeof(*off));
    float *out = calloc((size_t)n * info->embed_dim, sizeof(*out));
    uint64_t t0;
    enum rc rc;

    if (ids == NULL || off == NULL || out == NULL) {
        rc = rc_fail(err, RC_NOMEM, "%u inputs of %u tokens", n, len);
    } else {
        for (size_t i = 0; i < (size_t)n * len; i++)
            ids[i] = made_up(b, i);
        for (uint32_t i = 0; i <= n; i++)
            off[i] = i * len;
        t0 = wrk_now_us();
        rc = mdl_encode(b->model.mdl, n, ids, off, out, err);
        *out_s = (double)(wrk_now_us() - t0) * 1e-6;
    }
    free(ids);
    free(off);
    free(out);
    return rc;
}

/* -------------------------------------------------------------------- results */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* "NAME": median, "NAME_runs": all. */
static void put_rates(json_t *o, const char *name, double *rate, size_t n)
{
    json_t *runs = json_array();
    char key[64];

    for (size_t i = 0; i < n; i++)
        json_array_append_new(runs, json_real(rate[i]));
    snprintf(key, sizeof(key), "%s_runs", name);
    json_object_set_new(o, key, runs);
    qsort(rate, n, sizeof(*rate), by_value);
    json_object_set_new(o, name, json_real((rate[(n - 1) / 2] + rate[n / 2]) / 2));
}

/* "jit": ["kernel: state, ...", ...] */
static void put_report(json_t *o, const struct be_ctx *be)
{
    char *text = be_ctx_report(be), *save = NULL;
    json_t *lines = text ? json_array() : NULL;

    for (char *s = text ? strtok_r(text, "\n", &save) : NULL; s; s = strtok_r(NULL, "\n", &save))
        json_array_append_new(lines, json_string(s));
    if (lines)
        json_object_set_new(o, "jit", lines);
    free(text);
}

static void put_facts(json_t *o, const struct bench *b, double load_s)
{
    const struct mdl_info *i = mdl_info_get(b->model.mdl);
    struct be_stats s;
    struct be_kstats k;

    memset(&s, 0, sizeof(s));
    be_ctx_stats(b->model.be, &s);
    json_object_set_new(o, "load_ms", json_real(load_s * 1e3));
    json_object_set_new(o, "family", json_string(i->family));
    json_object_set_new(o, "quant", json_string(i->quant));
    json_object_set_new(o, "kernels", json_string(s.kernels));
    json_object_set_new(o, "f32_gemm", json_string(s.f32_gemm));
    json_object_set_new(o, "threads", json_integer(s.n_threads));
    json_object_set_new(o, "weight_bytes", json_integer((json_int_t)s.weight_bytes));
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)s.kv_bytes));
    json_object_set_new(o, "workspace_bytes", json_integer((json_int_t)s.workspace_bytes));
    json_object_set_new(o, "hot_allocs", json_integer((json_int_t)s.hot_allocs));
    json_object_set_new(o, "backend", json_string(wrk_device_backend(&b->device)));
    if (wrk_device_is_cpu(&b->device))
        return;
    json_object_set_new(o, "device", json_string(s.device));
    json_object_set_new(o, "device_bytes", json_integer((json_int_t)s.device_bytes));
    be_ctx_kstats(b->model.be, &k);
    json_object_set_new(o, "kernels", wrk_kstats_json(&k)); /* instead of the CPU's word */
    put_report(o, b->model.be);
}

/* One warm-up, then `runs` timed ones. */
static enum rc measure_generate(struct bench *b, json_t *o, struct rc_err *err)
{
    double p[RUNS_MAX], d[RUNS_MAX], cpu[RUNS_MAX], s, c = 0;
    enum rc rc;

    if ((rc = prefill(b, (uint32_t)b->prompt < 32 ? (uint32_t)b->prompt : 32, &s, err)) != RC_OK ||
        (rc = decode(b, WARM_TOKENS, 2, &s, &c, err)) != RC_OK)
        return rc;
    for (uint64_t i = 0; i < b->runs; i++) {
        if ((rc = prefill(b, (uint32_t)b->prompt, &s, err)) != RC_OK)
            return rc;
        p[i] = (double)b->prompt / s;
        if ((rc = decode(b, (uint32_t)b->context, (uint32_t)b->gen, &s, &c, err)) != RC_OK)
            return rc;
        d[i] = (double)(b->gen * b->seqs) / s;
        cpu[i] = c * 1e3 / (double)b->gen;
    }
    json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)b->prompt));
    json_object_set_new(o, "context_tokens", json_integer((json_int_t)b->context));
    json_object_set_new(o, "gen_tokens", json_integer((json_int_t)b->gen));
    json_object_set_new(o, "seqs", json_integer((json_int_t)b->seqs));
    put_rates(o, "prefill_tok_s", p, b->runs);
    put_rates(o, "decode_tok_s", d, b->runs);
    put_rates(o, "decode_step_cpu_ms", cpu, b->runs);
    /* of the token in the middle: the mean */
    json_object_set_new(
        o, "kv_read_bytes",
        json_integer(
            (json_int_t)(b->seqs * mdl_kv_read_bytes(b->model.mdl,
                                                     (uint32_t)(b->context + (b->gen - 1) / 2)))));
    return RC_OK;
}

static enum rc measure_encode(struct bench *b, json_t *o, struct rc_err *err)
{
    uint32_t most = mdl_info_get(b->model.mdl)->max_input_tokens;
    double t[RUNS_MAX], q[RUNS_MAX], s;
    enum rc rc;

    if (b->embed_tokens > most)
        return rc_fail(err, RC_INVALID, "--embed-tokens %llu, the model takes %u",
                       (unsigned long long)b->embed_tokens, most);
    if ((rc = encode(b, &s, err)) != RC_OK)
        return rc;
    for (uint64_t i = 0; i < b->runs; i++) {
        if ((rc = encode(b, &s, err)) != RC_OK)
            return rc;
        q[i] = (double)b->embed_batch / s;
        t[i] = (double)(b->embed_batch * b->embed_tokens) / s;
    }
    json_object_set_new(o, "embed_batch", json_integer((json_int_t)b->embed_batch));
    json_object_set_new(o, "embed_tokens", json_integer((json_int_t)b->embed_tokens));
    put_rates(o, "encode_seq_s", q, b->runs);
    put_rates(o, "encode_tok_s", t, b->runs);
    return RC_OK;
}

/* ------------------------------------------------------------------- the mode */

static enum rc prepare(struct bench *b, struct rc_err *err)
{
    const struct mdl_info *info = mdl_info_get(b->model.mdl);
    uint32_t rows = b->model.batch_tokens;
    uint64_t most = b->prompt > b->context + b->gen ? b->prompt : b->context + b->gen;
    enum rc rc;

    if (!info->can_generate)
        return RC_OK;
    if (most > info->ctx_tokens)
        return rc_fail(err, RC_INVALID, "%llu tokens, the model's context has %u",
                       (unsigned long long)most, info->ctx_tokens);
    b->table = calloc(b->seqs, sizeof(*b->table));
    b->part = calloc(b->seqs, sizeof(*b->part));
    b->next = calloc(b->seqs, sizeof(*b->next));
    b->out_rows = calloc(b->seqs, sizeof(*b->out_rows));
    b->greedy = calloc(b->seqs, sizeof(*b->greedy));
    b->ids = calloc(rows, sizeof(*b->ids));
    b->pos = calloc(rows, sizeof(*b->pos));
    if (b->table == NULL || b->part == NULL || b->next == NULL || b->out_rows == NULL ||
        b->greedy == NULL || b->ids == NULL || b->pos == NULL)
        return rc_fail(err, RC_NOMEM, "bench of %u rows", rows);
    if ((rc = wrk_sampler_init(&b->sampler, info->vocab_size, err)) != RC_OK)
        return rc;
    return wrk_pages_init(&b->pages, mdl_kv(b->model.mdl), info->ctx_tokens, rows, err);
}

static void bench_deinit(struct bench *b)
{
    close_tables(b);
    wrk_pages_deinit(&b->pages);
    wrk_sampler_deinit(&b->sampler);
    free(b->table);
    free(b->part);
    free(b->next);
    free(b->greedy);
    free(b->out_rows);
    free(b->ids);
    free(b->pos);
    wrk_unload(&b->model);
}

static enum rc run(struct bench *b, int root_fd, enum wrk_sandbox_mode mode, json_t *o,
                   struct rc_err *err)
{
    struct wrk_sandbox_report report;
    bool spin;
    struct wrk_load_opts lo = {
        .cpu_level = b->cpu_level,
        .f32_gemm = b->f32_gemm,
        .kv_dtype = b->kv_dtype,
        .n_threads = be_host_threads((unsigned)b->threads, &spin),
        .max_seqs = b->seqs > WRK_SEQS_DEFAULT ? (uint32_t)b->seqs : WRK_SEQS_DEFAULT,
        .batch_tokens = (uint32_t)b->batch_tokens,
        .kv_bytes = b->kv_mb << 20,
        .spec = WRK_SPEC_OFF,
        .seal = mode == WRK_SANDBOX_STRICT,
    };
    struct rc_err why = RC_ERR_INIT;
    uint64_t t0;
    enum rc rc;

    lo.no_spin = !spin;
    rc = wrk_device_enter(&b->device,
                          &(struct wrk_enter){mode, -1, root_fd, lo.n_threads, lo.no_spin}, &report,
                          &lo.be, &why, err);
    if (rc != RC_OK)
        return rc;
    if (!wrk_device_is_cpu(&b->device) && lo.be == NULL) {
        *err = why;
        rc_wrap(err, "backend '%s'", wrk_device_backend(&b->device));
        return why.code;
    }
    t0 = wrk_now_us();
    if ((rc = wrk_load(&b->model, root_fd, &lo, err)) != RC_OK)
        return rc;
    t0 = wrk_now_us() - t0;
    if ((rc = prepare(b, err)) != RC_OK)
        return rc;
    if (mdl_info_get(b->model.mdl)->can_generate && (rc = measure_generate(b, o, err)) != RC_OK)
        return rc;
    if (mdl_info_get(b->model.mdl)->can_embed && (rc = measure_encode(b, o, err)) != RC_OK)
        return rc;
    put_facts(o, b, (double)t0 * 1e-6);
    return RC_OK;
}

int wrk_bench(int argc, char **argv)
{
    struct bench b = {.prompt = 512,
                      .gen = 128,
                      .context = WARM_TOKENS,
                      .seqs = 1,
                      .runs = 3,
                      .embed_batch = 32,
                      .embed_tokens = 128,
                      .sandbox = "strict"};
    enum wrk_sandbox_mode mode = WRK_SANDBOX_STRICT;
    struct rc_err err = RC_ERR_INIT;
    json_t *o = json_object();
    enum rc rc = parse(&b, argc, argv, &err);
    int fd, status = WRK_EXIT_OK;

    wrk_device_env(&b.device);
    if (rc == RC_OK && !wrk_sandbox_mode_parse(b.sandbox, &mode))
        rc = rc_fail(&err, RC_INVALID, "--sandbox '%s', expected strict, permissive or off",
                     b.sandbox);
    if (rc != RC_OK) {
        status = WRK_EXIT_USAGE;
    } else if ((fd = open(b.path, O_RDONLY | O_CLOEXEC)) < 0) {
        rc_fail(&err, RC_IO, "%s: %s", b.path, strerror(errno));
        status = WRK_EXIT_FAULT;
    } else if ((rc = run(&b, fd, mode, o, &err)) != RC_OK) {
        status = WRK_EXIT_FAULT;
    }
    if (status == WRK_EXIT_OK) {
        char *s = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(7));

        printf("%s\n", s != NULL ? s : "{}");
        free(s);
        fflush(stdout);
    } else {
        fprintf(stderr, "inferd-worker: --bench: %s\n", err.msg);
    }
    json_decref(o);
    bench_deinit(&b);
    return status;
}
