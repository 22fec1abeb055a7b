/* wrk_bench.c - the bench mode: one model loaded and measured inside the sandbox.
 *
 * Opens the path itself, then narrows itself like a serving worker: what is measured is
 * what serves, engine, batch, prompt cache and all. Prints one JSON object; never writes a
 * file. Ctrl-C ends it after the step at hand, with what was measured until then. The
 * front's end of the channel takes the place of stdin, which the sandbox leaves open.
 * Page: docs/bench.md. Tests: tests/worker/test_wrk_model_golden.c, tests/e2e/cli_bench.py
 */
#include "wrk_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wrk_bench_impl.h"
#include "wrk_kstats.h"
#include "wrk_sandbox.h"
#include "wrk_serve.h"
#include "wrk_start.h"

#define EXIT_INTERRUPTED 130 /* as of a program that SIGINT ended */

/* ---------------------------------------------------------------------- Ctrl-C */

static volatile sig_atomic_t n_interrupts;

static void on_interrupt(int sig)
{
    (void)sig;
    if (++n_interrupts > 3) /* a pass may take long: who insists is heard */
        _exit(EXIT_INTERRUPTED);
}

static bool interrupted(void)
{
    return n_interrupts > 0;
}

/* -------------------------------------------------------------------- the facts */

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

static void put_facts(const struct wrk_bench *b)
{
    const struct mdl_info *i = b->info;
    json_t *o = b->out;
    struct be_stats s;
    struct be_kstats k;

    memset(&s, 0, sizeof(s));
    be_ctx_stats(b->model.be, &s);
    json_object_set_new(o, "family", json_string(i->family));
    json_object_set_new(o, "quant", json_string(i->quant));
    json_object_set_new(o, "kernels", json_string(s.kernels));
    json_object_set_new(o, "f32_gemm", json_string(s.f32_gemm));
    json_object_set_new(o, "threads", json_integer(s.n_threads));
    json_object_set_new(o, "runs", json_integer((json_int_t)b->o.runs));
    json_object_set_new(o, "ctx_tokens", json_integer(i->ctx_tokens));
    json_object_set_new(o, "weight_bytes", json_integer((json_int_t)s.weight_bytes));
    json_object_set_new(o, "kv_bytes", json_integer((json_int_t)s.kv_bytes));
    json_object_set_new(o, "workspace_bytes", json_integer((json_int_t)s.workspace_bytes));
    json_object_set_new(o, "hot_allocs", json_integer((json_int_t)s.hot_allocs));
    json_object_set_new(o, "backend", json_string(wrk_device_backend(&b->o.device)));
    if (wrk_device_is_cpu(&b->o.device))
        return;
    json_object_set_new(o, "device", json_string(s.device));
    json_object_set_new(o, "device_bytes", json_integer((json_int_t)s.device_bytes));
    be_ctx_kstats(b->model.be, &k);
    json_object_set_new(o, "kernels", wrk_kstats_json(&k)); /* instead of the CPU's word */
    put_report(o, b->model.be);
}

/* --------------------------------------------------------------------- sections */

static const struct {
    unsigned section;
    bool embeds; /* of models that embed; else of those that generate */
    enum rc (*run)(struct wrk_bench *b, struct rc_err *err);
} sections[] = {
    {WRK_BENCH_PROMPT, false, wrk_bench_prompt},
    {WRK_BENCH_DECODE, false, wrk_bench_decode},
    {WRK_BENCH_BATCH, false, wrk_bench_batch},
    {WRK_BENCH_PREFIX, false, wrk_bench_prefix},
    {WRK_BENCH_SPECULATION, false, wrk_bench_speculation},
    {WRK_BENCH_EMBED | WRK_BENCH_BATCH, true, wrk_bench_embed_all},
};

static enum rc measure(struct wrk_bench *b, struct rc_err *err)
{
    const struct mdl_info *i = b->info;
    enum rc rc;

    for (size_t k = 0; k < sizeof(sections) / sizeof(sections[0]); k++) {
        unsigned s = sections[k].section & b->o.sections;

        if (s == 0 || (sections[k].embeds ? !i->can_embed : !i->can_generate))
            continue;
        if ((rc = sections[k].run(b, err)) != RC_OK)
            return rc;
    }
    for (unsigned s = 1; s < WRK_BENCH_ALL; s *= 2) {
        bool has = s == WRK_BENCH_EMBED   ? i->can_embed
                   : s == WRK_BENCH_BATCH ? i->can_embed || i->can_generate
                                          : i->can_generate;

        if ((s & b->o.sections) != 0 && !has)
            wrk_bench_not(b, s,
                          s == WRK_BENCH_EMBED ? "the model makes no embeddings"
                                               : "the model does not generate text");
    }
    return RC_OK;
}

/* --------------------------------------------------------------------- the mode */

static uint32_t seqs_wanted(const struct wrk_bench_opts *o)
{
    uint32_t n = o->seqs > WRK_SEQS_DEFAULT ? (uint32_t)o->seqs : WRK_SEQS_DEFAULT;

    return (o->sections & WRK_BENCH_BATCH) != 0 && n < WRK_BENCH_TOGETHER ? WRK_BENCH_TOGETHER : n;
}

/* The sandbox, and a device's context on the way. */
static enum rc enter(struct wrk_bench *b, int chan_fd, int root_fd, enum wrk_sandbox_mode mode,
                     struct wrk_load_opts *lo, struct rc_err *err)
{
    struct wrk_sandbox_report report;
    struct rc_err why = RC_ERR_INIT;
    enum rc rc = wrk_device_enter(
        &b->o.device, &(struct wrk_enter){mode, chan_fd, root_fd, lo->n_threads, lo->no_spin},
        &report, &lo->be, &why, err);

    if (rc == RC_OK && !wrk_device_is_cpu(&b->o.device) && lo->be == NULL) {
        rc_wrap(&why, "backend '%s'", wrk_device_backend(&b->o.device));
        *err = why;
        rc = why.code;
    }
    return rc;
}

static enum rc run(struct wrk_bench *b, int fds[2], int root_fd, enum wrk_sandbox_mode mode,
                   struct rc_err *err)
{
    bool spin, guess = (b->o.sections & WRK_BENCH_SPECULATION) != 0;
    struct wrk_load_opts lo = {
        .cpu_level = b->o.cpu_level,
        .f32_gemm = b->o.f32_gemm,
        .kv_dtype = b->o.kv_dtype,
        .n_threads = be_host_threads((unsigned)b->o.threads, &spin),
        .max_seqs = seqs_wanted(&b->o),
        .batch_tokens = (uint32_t)b->o.batch_tokens,
        .kv_bytes = b->o.kv_mb << 20,
        .spec = guess ? 0 : WRK_SPEC_OFF,
        .spec_most = (uint32_t)b->o.spec_tokens,
        .seal = mode == WRK_SANDBOX_STRICT,
    };
    uint64_t t0;
    enum rc rc;

    lo.no_spin = !spin;
    if ((rc = enter(b, fds[0], root_fd, mode, &lo, err)) != RC_OK)
        return rc;
    wrk_bench_say(b, "loading");
    t0 = wrk_now_us();
    if ((rc = wrk_load(&b->model, root_fd, &lo, err)) != RC_OK)
        return rc;
    json_object_set_new(b->out, "load_ms", json_real((double)(wrk_now_us() - t0) * 1e-3));
    if ((rc = wrk_bench_fit(b, err)) != RC_OK ||
        (rc = wrk_bench_front_init(&b->front, fds, &b->model, err)) != RC_OK)
        return rc;
    b->front.stopped = interrupted;
    rc = measure(b, err);
    put_facts(b);
    return rc;
}

/* Both ends of the channel; the front's as descriptor 0. */
static enum rc channel(int fds[2], struct rc_err *err)
{
    enum rc rc = ipc_pair(fds, err);

    if (rc != RC_OK)
        return rc;
    if (dup2(fds[1], STDIN_FILENO) < 0)
        return rc_fail(err, RC_IO, "the channel's end as stdin: %s", strerror(errno));
    close(fds[1]);
    fds[1] = STDIN_FILENO;
    return RC_OK;
}

static void print_json(const json_t *o)
{
    char *s = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(7));

    printf("%s\n", s != NULL ? s : "{}");
    free(s);
    fflush(stdout);
}

static int status_of(enum rc rc)
{
    return rc == RC_OK ? WRK_EXIT_OK : rc == RC_CANCELLED ? EXIT_INTERRUPTED : WRK_EXIT_FAULT;
}

int wrk_bench(int argc, char **argv)
{
    struct wrk_bench *b = calloc(1, sizeof(*b)); /* the answers are too many for a stack */
    struct sigaction sa = {.sa_handler = on_interrupt};
    enum wrk_sandbox_mode mode = WRK_SANDBOX_STRICT;
    struct rc_err err = RC_ERR_INIT;
    int root_fd, fds[2] = {-1, -1}, status;
    enum rc rc;

    if (b == NULL || (b->out = json_object()) == NULL) {
        free(b);
        fputs("inferd-worker: --bench: out of memory\n", stderr);
        return WRK_EXIT_FAULT;
    }
    rc = wrk_bench_parse(&b->o, argc, argv, &err);
    wrk_device_env(&b->o.device);
    if (rc == RC_OK && b->o.sandbox != NULL && !wrk_sandbox_mode_parse(b->o.sandbox, &mode))
        rc = rc_fail(&err, RC_INVALID, "--sandbox '%.100s', expected strict, permissive or off",
                     b->o.sandbox);
    if (rc != RC_OK) {
        status = WRK_EXIT_USAGE;
    } else if ((root_fd = open(b->o.path, O_RDONLY | O_CLOEXEC)) < 0) {
        rc = rc_fail(&err, RC_IO, "%.300s: %s", b->o.path, strerror(errno));
        status = WRK_EXIT_FAULT;
    } else {
        sigemptyset(&sa.sa_mask);
        sigaction(SIGINT, &sa, NULL);
        if ((rc = channel(fds, &err)) == RC_OK)
            rc = run(b, fds, root_fd, mode, &err);
        status = rc == RC_INVALID ? WRK_EXIT_USAGE : status_of(rc);
    }
    wrk_bench_say(b, "%s", "");
    if (status == EXIT_INTERRUPTED)
        json_object_set_new(b->out, "interrupted", json_true());
    if (status == WRK_EXIT_OK || status == EXIT_INTERRUPTED)
        print_json(b->out);
    else
        fprintf(stderr, "inferd-worker: --bench: %s\n", err.msg);
    wrk_bench_deinit(b);
    wrk_unload(&b->model);
    free(b);
    return status;
}
