/* wrk_bench_ask.c - the other end of an engine's channel: asks, steps, reads, counts.
 *
 * The engine is the one that serves, with its queue, batch, prompt cache and guesses; only
 * who asks is here, in the same process and thread. Requests are handed over as unpacked
 * frames, answers come through the channel. Time is the engine's steps alone.
 *
 * Always true: a task is in a[] from its submission until wrk_bench_clear; each ends once.
 * Tests: tests/worker/test_wrk_bench.c
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wrk_bench_impl.h"
#include "wrk_radix.h"

/* ------------------------------------------------------------------ lifetime */

enum rc wrk_bench_front_init(struct wrk_bench_front *f, const int fds[2],
                             const struct wrk_loaded *model, struct rc_err *err)
{
    f->model = model;
    f->fd = fds[1];
    return wrk_chan_init(&f->chan, fds[0], err);
}

void wrk_bench_front_deinit(struct wrk_bench_front *f)
{
    wrk_engine_free(&f->engine);
    wrk_chan_deinit(&f->chan);
}

static enum rc engine_new(struct wrk_bench_front *f, uint32_t spec_most, struct mdl *drafter,
                          bool fill_prompts, struct rc_err *err)
{
    const struct wrk_engine_opts o = {
        .mdl = f->model->mdl,
        .be = f->model->be,
        .chan = &f->chan,
        .max_seqs = f->model->max_seqs,
        .batch_tokens = f->model->batch_tokens,
        .max_queue = WRK_SEQS_MAX,
        .cache_bytes = UINT64_MAX, /* what running sequences leave: the server's default */
        .cache_min_tokens = WRK_BENCH_CACHE_TOKENS,
        .spec_most = spec_most,
        .drafter = spec_most > 0 ? drafter : NULL,
        .fill_prompts = fill_prompts,
    };

    wrk_engine_free(&f->engine);
    wrk_bench_clear(f);
    f->spec_rests = false;
    f->spec_gain = 0;
    return wrk_engine_new(&f->engine, &o, err);
}

enum rc wrk_bench_engine(struct wrk_bench_front *f, uint32_t spec_most, struct mdl *drafter,
                         struct rc_err *err)
{
    return engine_new(f, spec_most, drafter, false, err);
}

enum rc wrk_bench_engine_filled(struct wrk_bench_front *f, struct rc_err *err)
{
    return engine_new(f, 0, NULL, true, err);
}

void wrk_bench_engine_end(struct wrk_bench_front *f)
{
    wrk_engine_free(&f->engine);
}

/* -------------------------------------------------------------------- asking */

void wrk_bench_clear(struct wrk_bench_front *f)
{
    f->n_answers = f->n_started = f->n_ended = 0;
    f->n_tokens = 0;
}

/* The engine owns and frees what it is given, so it gets a copy of its own. */
static enum rc submit(struct wrk_bench_front *f, Ipc__Frame *m, struct rc_err *err)
{
    size_t n;
    uint8_t *packed;
    Ipc__Frame *copy;

    if (f->n_answers == WRK_SEQS_MAX)
        return rc_fail(err, RC_LIMIT, "more than %u tasks at once", WRK_SEQS_MAX);
    m->task = ++f->n_tasks;
    n = ipc__frame__get_packed_size(m);
    packed = malloc(n + 1);
    if (packed == NULL)
        return rc_fail(err, RC_NOMEM, "a request of %zu bytes", n);
    ipc__frame__pack(m, packed);
    copy = ipc__frame__unpack(NULL, n, packed);
    free(packed);
    if (copy == NULL)
        return rc_fail(err, RC_NOMEM, "a request of %zu bytes", n);
    f->a[f->n_answers++] = (struct wrk_bench_answer){
        .task = m->task, .begun_us = f->spent_us, .hash = 14695981039346656037u};
    return wrk_engine_submit(f->engine, copy, err);
}

enum rc wrk_bench_generate(struct wrk_bench_front *f, const struct wrk_bench_ask *q,
                           struct rc_err *err)
{
    uint8_t ns[WRK_NS_BYTES] = {0};
    Ipc__Frame m = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;

    s.temperature = q->temperature;
    s.seed = 1;
    s.has_seed = true;
    g.sampling = &s;
    g.kind = 3;
    g.prompt_tokens = (uint32_t *)(uintptr_t)q->ids;
    g.n_prompt_tokens = q->n;
    g.max_tokens = q->max_tokens;
    g.n = 1;
    g.ignore_eos = true;
    g.stream = true;
    g.return_token_ids = true;
    if (q->cached) {
        g.cache_ns.data = ns;
        g.cache_ns.len = sizeof(ns);
    }
    m.body_case = IPC__FRAME__BODY_GENERATE;
    m.generate = &g;
    return submit(f, &m, err);
}

enum rc wrk_bench_embed(struct wrk_bench_front *f, const struct wrk_bench_ask *q, uint32_t n,
                        struct rc_err *err)
{
    Ipc__EmbedInput *in = calloc(n, sizeof(*in)), **ptr = calloc(n, sizeof(Ipc__EmbedInput *));
    Ipc__Frame m = IPC__FRAME__INIT;
    Ipc__Embed e = IPC__EMBED__INIT;
    enum rc rc;

    if (in == NULL || ptr == NULL) {
        rc = rc_fail(err, RC_NOMEM, "%u texts", n);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            ipc__embed_input__init(&in[i]);
            in[i].is_tokens = true;
            in[i].tokens = (uint32_t *)(uintptr_t)q->ids;
            in[i].n_tokens = q->n;
            ptr[i] = &in[i];
        }
        e.inputs = ptr;
        e.n_inputs = n;
        m.body_case = IPC__FRAME__BODY_EMBED;
        m.embed = &e;
        rc = submit(f, &m, err);
    }
    free(in);
    free(ptr);
    return rc;
}

/* ------------------------------------------------------------------- reading */

static void on_delta(struct wrk_bench_front *f, struct wrk_bench_answer *a, const Ipc__Delta *d)
{
    if (d->n_tokens == 0)
        return;
    if (a->n == 0) {
        a->first_us = f->spent_us;
        f->n_started++;
    }
    for (size_t i = 0; i < d->n_tokens; i++) /* FNV-1a, a token at a time */
        a->hash = (a->hash ^ d->tokens[i]) * 1099511628211u;
    a->n += (uint32_t)d->n_tokens;
    f->n_tokens += d->n_tokens;
}

static void on_stats(struct wrk_bench_front *f, const Ipc__Stats *s)
{
    f->spec_rests = s->spec_rests;
    f->spec_gain = (double)s->spec_gain;
}

static void on_frame(struct wrk_bench_front *f, const Ipc__Frame *m)
{
    struct wrk_bench_answer *a = NULL;

    if (m->body_case == IPC__FRAME__BODY_STATS)
        on_stats(f, m->stats);
    for (uint32_t i = 0; i < f->n_answers; i++)
        if (f->a[i].task == m->task)
            a = &f->a[i];
    if (a == NULL || a->ended)
        return;
    switch (m->body_case) {
    case IPC__FRAME__BODY_DELTA:
        on_delta(f, a, m->delta);
        return;
    case IPC__FRAME__BODY_DONE:
        a->n_cached = m->done->cached_tokens;
        a->n_right = m->done->accepted_drafts;
        a->n_wrong = m->done->rejected_drafts;
        break;
    case IPC__FRAME__BODY_VECTORS:
        a->n = m->vectors->n;
        a->first_us = f->spent_us;
        break;
    case IPC__FRAME__BODY_ERROR:
        ipc_error_to(&a->err, m->error);
        break;
    default:
        return;
    }
    a->ended = true;
    f->n_ended++;
}

static enum rc read_all(struct wrk_bench_front *f, struct rc_err *err)
{
    struct pollfd p = {.fd = f->fd, .events = POLLIN};

    while (poll(&p, 1, 0) > 0) {
        ProtobufCMessage *msg = NULL;
        enum rc rc = ipc_recv(f->fd, &ipc__frame__descriptor, &msg, NULL, NULL, err);

        if (rc != RC_OK)
            return rc;
        on_frame(f, (const Ipc__Frame *)msg);
        protobuf_c_message_free_unpacked(msg, NULL);
    }
    return RC_OK;
}

/* All that was sent, and what the socket did not take at once. */
static enum rc take_answers(struct wrk_bench_front *f, struct rc_err *err)
{
    enum rc rc;

    do {
        if ((rc = read_all(f, err)) != RC_OK)
            return rc;
        rc = wrk_chan_flush(&f->chan, err);
    } while (rc == RC_AGAIN);
    return rc == RC_OK ? read_all(f, err) : rc;
}

/* Of all threads of this process. */
static uint64_t cpu_ns(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

enum rc wrk_bench_step(struct wrk_bench_front *f, struct rc_err *err)
{
    uint64_t cpu = cpu_ns(), begun = wrk_now_us();
    enum rc rc;

    if (f->stopped != NULL && f->stopped())
        return rc_fail(err, RC_CANCELLED, "interrupted");
    if ((rc = wrk_engine_step(f->engine, err)) != RC_OK)
        return rc;
    f->spent_us += wrk_now_us() - begun;
    f->spent_cpu_ns += cpu_ns() - cpu;
    return take_answers(f, err);
}

enum rc wrk_bench_wait(struct wrk_bench_front *f, struct rc_err *err)
{
    enum rc rc;

    while (f->n_ended < f->n_answers)
        if ((rc = wrk_bench_step(f, err)) != RC_OK)
            return rc;
    for (uint32_t i = 0; i < f->n_answers; i++)
        if (f->a[i].err.code != RC_OK)
            return rc_fail(err, f->a[i].err.code, "%s", f->a[i].err.msg);
    return RC_OK;
}

enum rc wrk_bench_cancel(struct wrk_bench_front *f, struct rc_err *err)
{
    enum rc rc;

    for (uint32_t i = 0; i < f->n_answers; i++)
        if (!f->a[i].ended && (rc = wrk_engine_cancel(f->engine, f->a[i].task, err)) != RC_OK)
            return rc;
    return take_answers(f, err);
}

enum rc wrk_bench_stats(struct wrk_bench_front *f, struct rc_err *err)
{
    enum rc rc = wrk_engine_stats(f->engine, 0, err);

    return rc == RC_OK ? take_answers(f, err) : rc;
}
