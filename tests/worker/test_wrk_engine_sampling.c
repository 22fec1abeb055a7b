/* test_wrk_engine_sampling.c - every setting of a request reaches the draw, as its own.
 *
 * The engine's answers against a plain loop: the model's row for the sequence so far, the
 * sampler (which test_wrk_sample.c holds against arithmetic), the counts, one generator for each
 * choice. A setting that is not read, not undone, or another's shows as another token.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/fake_mdl.h"
#include "worker/engine_rig.h"
#include "wrk_engine_impl.h"

#define N 48  /* tokens of an answer */
#define TOP 3 /* likeliest tokens told beside each */
#define TASKS 24
#define CHOICES 3
#define PROMPT "the five boxing wizards jump quickly over 0123456789"

struct answer {
    int32_t ids[N];
    float lp[N];
    struct wrk_top top[N][TOP];
    uint32_t n, n_probs;
};
struct rig {
    struct mdl *m;
    struct wrk_engine *e;
    struct wrk_chan chan;
    int fd;
    struct answer a[TASKS][CHOICES];
    uint32_t n_done;
};
struct ask {
    const char *name;
    struct wrk_sampling s; /* 0 where the request says nothing */
    struct wrk_bias bias[3];
    bool unseeded, bare; /* bare: no log-probabilities */
    uint32_t choices;
};

static struct rig *rig_new(uint32_t max_seqs, bool device)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct wrk_engine_opts o = {.chan = &r->chan, .max_queue = TASKS};

    o.mdl = r->m = fake_new(512, max_seqs, 64);
    r->m->can_sample = device;
    o.max_seqs = max_seqs;
    o.batch_tokens = r->m->batch_tokens;
    r->fd = engine_channel(&r->chan);
    assert_int_equal(wrk_engine_new(&r->e, &o, NULL), RC_OK);
    return r;
}

static void rig_free(struct rig *r)
{
    wrk_engine_free(&r->e);
    close(r->chan.fd);
    close(r->fd);
    wrk_chan_deinit(&r->chan);
    free(r->m);
    free(r);
}

static void on_frame(void *user, const Ipc__Frame *f)
{
    struct rig *r = user;

    if (f->body_case == IPC__FRAME__BODY_DELTA) {
        const Ipc__Delta *d = f->delta;
        struct answer *a = &r->a[f->task][d->index];

        assert_true(d->index < CHOICES && a->n + d->n_tokens <= N);
        for (size_t i = 0; i < d->n_tokens; i++)
            a->ids[a->n++] = (int32_t)d->tokens[i];
        for (size_t i = 0; i < d->n_probs; i++, a->n_probs++) {
            a->lp[a->n_probs] = d->probs[i]->logprob;
            assert_int_equal(d->probs[i]->n_top, TOP);
            for (uint32_t k = 0; k < TOP; k++)
                a->top[a->n_probs][k] = (struct wrk_top){(int32_t)d->probs[i]->top[k]->token,
                                                         d->probs[i]->top[k]->logprob};
        }
        return;
    }
    if (f->body_case == IPC__FRAME__BODY_ERROR)
        fail_msg("task %llu: %.*s", (unsigned long long)f->task, (int)f->error->message.len,
                 (char *)f->error->message.data);
    r->n_done += f->body_case == IPC__FRAME__BODY_DONE;
}

static void submit(struct rig *r, uint64_t task, const struct ask *q)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    Ipc__LogitBias bias[3], *list[3];

    s.temperature = q->s.temperature;
    s.top_k = q->s.top_k;
    s.top_p = q->s.top_p;
    s.min_p = q->s.min_p;
    s.typical_p = q->s.typical_p;
    s.repetition_penalty = q->s.repetition_penalty;
    s.frequency_penalty = q->s.frequency_penalty;
    s.presence_penalty = q->s.presence_penalty;
    s.seed = q->s.seed;
    s.has_seed = !q->unseeded;
    for (s.n_logit_bias = 0; s.n_logit_bias < q->s.n_bias; s.n_logit_bias++) {
        Ipc__LogitBias *b = list[s.n_logit_bias] = &bias[s.n_logit_bias];

        ipc__logit_bias__init(b);
        b->token = q->bias[s.n_logit_bias].token;
        b->bias = q->bias[s.n_logit_bias].bias;
    }
    s.logit_bias = list;
    g.sampling = &s;
    g.kind = 2;
    g.prompt.data = (uint8_t *)(uintptr_t)PROMPT;
    g.prompt.len = strlen(PROMPT);
    g.max_tokens = N;
    g.n = q->choices;
    g.ignore_eos = g.return_token_ids = true;
    g.logprobs = !q->bare;
    g.top_logprobs = q->bare ? 0 : TOP;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    assert_int_equal(engine_submit(r->e, &f), RC_OK);
}

static void run(struct rig *r, uint32_t n_tasks)
{
    for (int guard = 20000; wrk_engine_busy(r->e); guard--) {
        assert_true(guard > 0);
        engine_step(r->e, &r->chan, r->fd, on_frame, r);
    }
    engine_step(r->e, &r->chan, r->fd, on_frame, r);
    assert_int_equal(r->n_done, n_tasks);
}

/* ------------------------------------------------------------------ reference */

static int32_t listed(const void *user, uint32_t c, uint32_t p)
{
    (void)c;
    return ((const int32_t *)user)[p];
}

static void plain(const struct ask *q, uint32_t choice, struct answer *out)
{
    struct mdl *m = fake_new(512, 1, 64);
    struct wrk_sampling p = q->s;
    struct wrk_bias bias[3];
    struct wrk_counts counts = {0};
    struct wrk_sampler sm;
    struct wrk_rng rng;
    int32_t seq[256] = {FAKE_BOS};
    float x[FAKE_VOCAB];
    uint32_t n = 1;

    memcpy(bias, q->bias, sizeof(bias));
    p.bias = bias;
    p.top_p = p.top_p > 0 ? p.top_p : 1;
    p.typical_p = p.typical_p > 0 ? p.typical_p : 1;
    p.repetition_penalty = p.repetition_penalty > 0 ? p.repetition_penalty : 1;
    for (const char *s = PROMPT; *s; s++)
        seq[n++] = FAKE_BYTE(*s);
    assert_int_equal(wrk_counts_init(&counts, FAKE_VOCAB, NULL), RC_OK);
    assert_int_equal(wrk_sampler_init(&sm, FAKE_VOCAB, NULL), RC_OK);
    wrk_rng_seed(&rng, p.seed + choice);
    for (uint32_t i = 0; i < n; i++)
        wrk_counts_add(&counts, seq[i], false);
    for (out->n = 0; out->n < N; out->n++) {
        uint32_t i = out->n;

        fake_row(m, listed, seq, n, x);
        assert_int_equal(wrk_sample(&sm, x, &p, &counts, &rng, &out->ids[i], NULL), RC_OK);
        assert_int_equal(wrk_logprobs(&sm, x, out->ids[i], TOP, &out->lp[i], out->top[i], NULL),
                         RC_OK);
        wrk_counts_add(&counts, out->ids[i], true);
        seq[n++] = out->ids[i];
    }
    wrk_sampler_deinit(&sm);
    wrk_counts_deinit(&counts);
    free(m);
}

static void equals(const struct ask *q, const struct answer *got, const struct answer *want)
{
    assert_int_equal(got->n, N);
    for (uint32_t i = 0; i < N; i++)
        if (got->ids[i] != want->ids[i])
            fail_msg("%s: token %u is %d, expected %d", q->name, i, got->ids[i], want->ids[i]);
    if (q->bare)
        return;
    assert_int_equal(got->n_probs, N);
    for (uint32_t i = 0; i < N; i++) {
        if (got->lp[i] != want->lp[i])
            fail_msg("%s: token %u: log-probability %g, expected %g", q->name, i,
                     (double)got->lp[i], (double)want->lp[i]);
        for (uint32_t k = 0; k < TOP; k++)
            if (got->top[i][k].token != want->top[i][k].token ||
                got->top[i][k].logprob != want->top[i][k].logprob)
                fail_msg("%s: token %u: likeliest %u is %d, expected %d", q->name, i, k,
                         got->top[i][k].token, want->top[i][k].token);
    }
}

/* ---------------------------------------------------------------------- tests */

/* base: a row that must be another answer: the setting is seen to do something */
#define Z FAKE_BYTE('z')
static const struct {
    struct ask q;
    int base;
} rows[] = {
    {{.name = "greedy"}, -1},
    {{.name = "temperature 1", .s = {.temperature = 1, .seed = 7}}, 0},
    {{.name = "another seed", .s = {.temperature = 1, .seed = 8}}, 1},
    {{.name = "temperature 3", .s = {.temperature = 3, .seed = 7}}, 1},
    {{.name = "top_k", .s = {.temperature = 3, .seed = 7, .top_k = 3}}, 3},
    {{.name = "top_p", .s = {.temperature = 3, .seed = 7, .top_p = 0.5f}}, 3},
    {{.name = "min_p", .s = {.temperature = 3, .seed = 7, .min_p = 0.3f}}, 3},
    {{.name = "typical_p", .s = {.temperature = 3, .seed = 7, .typical_p = 0.3f}}, 3},
    {{.name = "repetition", .s = {.repetition_penalty = 1.9f}}, 0},
    {{.name = "frequency", .s = {.frequency_penalty = 1.5f}}, 0},
    {{.name = "negative frequency", .s = {.frequency_penalty = -0.5f}}, 0},
    {{.name = "presence", .s = {.presence_penalty = 2}}, 0},
    {{.name = "presence, drawn", .s = {.temperature = 3, .seed = 7, .presence_penalty = -2}}, 3},
    {{.name = "biases",
      .s = {.temperature = 3, .seed = 7, .n_bias = 3},
      .bias = {{FAKE_BYTE('q'), 9}, {Z, -100}, {FAKE_VOCAB - 1, 30}}},
     3},
    {{.name = "greedy bias", .s = {.n_bias = 2}, .bias = {{FAKE_EOS, 1}, {Z, 7}}}, 0},
    {{.name = "all of them",
      .s = {.temperature = 1.6f,
            .seed = 99,
            .top_k = 60,
            .top_p = 0.97f,
            .min_p = 0.01f,
            .typical_p = 0.9f,
            .repetition_penalty = 1.2f,
            .frequency_penalty = 0.4f,
            .presence_penalty = 0.3f,
            .n_bias = 1},
      .bias = {{FAKE_BYTE('e'), 3}}},
     1},
};
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))
_Static_assert(N_ROWS < TASKS, "all at once");
static struct answer want[N_ROWS];

static void every_setting_decides_alone_and_in_company(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        plain(&rows[i].q, 0, &want[i]);
        if (rows[i].base >= 0 &&
            memcmp(want[i].ids, want[rows[i].base].ids, sizeof(want[i].ids)) == 0)
            fail_msg("%s changes nothing", rows[i].q.name);
    }
    for (uint32_t max_seqs = 1; max_seqs <= 5; max_seqs += 4) {
        struct rig *r = rig_new(max_seqs, false);

        for (size_t i = 0; i < N_ROWS; i++)
            submit(r, i + 1, &rows[i].q);
        run(r, N_ROWS);
        for (size_t i = 0; i < N_ROWS; i++)
            equals(&rows[i].q, &r->a[i + 1][0], &want[i]);
        rig_free(r);
    }
}

static void choices_have_generators_and_counts_of_their_own(void **state)
{
    struct rig *r = rig_new(2, false);
    struct ask q = {.name = "choices",
                    .s = {.temperature = 2, .seed = 40, .frequency_penalty = 1},
                    .choices = CHOICES};

    (void)state;
    submit(r, 1, &q);
    run(r, 1);
    for (uint32_t c = 0; c < CHOICES; c++) {
        static struct answer one;

        plain(&q, c, &one);
        equals(&q, &r->a[1][c], &one);
    }
    rig_free(r);
}

static void without_a_seed_no_two_are_alike(void **state)
{
    struct rig *r = rig_new(2, false);
    const struct ask q = {.name = "unseeded", .s = {.temperature = 3, .seed = 7}, .unseeded = true};
    static struct answer seeded;

    (void)state;
    plain(&q, 0, &seeded);
    submit(r, 1, &q);
    submit(r, 2, &q);
    run(r, 2);
    assert_memory_not_equal(r->a[1][0].ids, r->a[2][0].ids, sizeof(seeded.ids));
    assert_memory_not_equal(r->a[1][0].ids, seeded.ids, sizeof(seeded.ids));
    rig_free(r);
}

/* A device that draws is told what it can do, and is not asked for what it cannot. */
static void a_device_draws_only_what_it_can(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++)
        for (int bare = 0; bare < 2; bare++) {
            const struct wrk_sampling *s = &rows[i].q.s;
            bool can = bare && s->n_bias == 0 && s->typical_p == 0 && s->repetition_penalty == 0 &&
                       s->frequency_penalty == 0 && s->presence_penalty == 0;
            struct rig *r = rig_new(1, true);
            struct ask q = rows[i].q;
            struct be_sample_row *d = &r->m->drawn;

            q.bare = bare;
            submit(r, 1, &q);
            run(r, 1);
            if (r->e->draws.n_drawn != (can ? N : 0))
                fail_msg("%s, %sprobabilities: the device drew %llu", q.name, bare ? "no " : "",
                         (unsigned long long)r->e->draws.n_drawn);
            if (!can)
                equals(&q, &r->a[1][0], &want[i]);
            else if (d->temperature != s->temperature || d->top_k != s->top_k ||
                     d->top_p != (s->top_p > 0 ? s->top_p : 1) || d->min_p != s->min_p)
                fail_msg("%s: the device was told %g %u %g %g", q.name, (double)d->temperature,
                         d->top_k, (double)d->top_p, (double)d->min_p);
            rig_free(r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_decides_alone_and_in_company),
        cmocka_unit_test(choices_have_generators_and_counts_of_their_own),
        cmocka_unit_test(without_a_seed_no_two_are_alike),
        cmocka_unit_test(a_device_draws_only_what_it_can),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
