/* test_wrk_engine.c - the batcher over a scripted model whose cache is real.
 *
 * Every generated answer is compared with what the model's function gives for that
 * sequence alone, so pages, batches, chunks and neighbours must not show.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "fail/be_fail.h"
#include "worker/fake_mdl.h"
#include "worker/engine_rig.h"
#include "wrk_engine.h"
#include "wrk_gr.h"
#include "wrk_pace.h"

/* ------------------------------------------------------- counted allocations */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
static volatile bool counting;
static volatile unsigned counted;
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
void *malloc(size_t n)
{
    counted += counting;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t m)
{
    counted += counting;
    return __libc_calloc(n, m);
}
void *realloc(void *p, size_t n)
{
    counted += counting;
    return __libc_realloc(p, n);
}
#endif

/* --------------------------------------------------------------------- rig */

#define TASKS 64
#define CHOICES 4
struct choice {
    char text[8192];
    size_t n_text;
    int32_t probs[2048], ids[2048];
    float lp[2048];
    uint32_t offset[2048], n_probs, n_ids, finish, n_deltas, n_top;
    bool has_lp[2048];
    char echo[512];
    size_t n_echo;
    uint32_t n_echo_probs;
};
struct answer {
    struct choice c[CHOICES];
    uint32_t ended; /* last frames seen */
    enum rc rc;
    struct rc_err err;
    uint32_t prompt_tokens, completion_tokens, order;
    float vec[256];
    uint32_t n_vec, dim, n_bad, bad[16];
    bool truncated[64];
};
struct rig {
    struct mdl *m;
    struct wrk_engine *e;
    struct wrk_chan *chan; /* the engine keeps its address */
    int fd;
    struct answer *a;
    uint32_t n_ended;
};

static struct rig rig_new_full(struct mdl *m, struct be_ctx *be, uint32_t max_queue,
                               enum rc (*listen)(void *, struct rc_err *), void *user)
{
    struct rig r = {.m = m};
    struct wrk_engine_opts o = {
        .mdl = m,
        .be = be,
        .max_seqs = m->max_seqs,
        .batch_tokens = m->batch_tokens,
        .max_queue = max_queue,
        .listen = listen,
        .listen_user = user,
    };

    r.chan = calloc(1, sizeof(*r.chan));
    r.fd = engine_channel(r.chan);
    o.chan = r.chan;
    assert_int_equal(wrk_engine_new(&r.e, &o, NULL), RC_OK);
    r.a = calloc(TASKS, sizeof(*r.a));
    return r;
}
static struct rig rig_new_heard(struct mdl *m, uint32_t max_queue,
                                enum rc (*listen)(void *, struct rc_err *), void *user)
{
    return rig_new_full(m, NULL, max_queue, listen, user);
}
static struct rig rig_new_on(struct mdl *m, struct be_ctx *be, uint32_t max_queue)
{
    return rig_new_full(m, be, max_queue, NULL, NULL);
}
static struct rig rig_new(struct mdl *m, uint32_t max_queue)
{
    return rig_new_heard(m, max_queue, NULL, NULL);
}
static void rig_free(struct rig *r)
{
    wrk_engine_free(&r->e);
    close(r->chan->fd);
    wrk_chan_deinit(r->chan);
    free(r->chan);
    close(r->fd);
    free(r->m);
    free(r->a);
}

static void on_delta(struct answer *a, const Ipc__Delta *d)
{
    struct choice *c = &a->c[d->index];

    c->n_deltas++;
    if (d->is_prompt) {
        if (d->text.len > 0)
            memcpy(c->echo + c->n_echo, d->text.data, d->text.len);
        c->n_echo += d->text.len;
        c->n_echo_probs += (uint32_t)d->n_probs;
    } else if (d->text.len > 0) {
        assert_true(ipc_utf8_valid(d->text.data, d->text.len));
        memcpy(c->text + c->n_text, d->text.data, d->text.len);
        c->n_text += d->text.len;
    }
    for (size_t i = 0; i < d->n_probs; i++) {
        c->probs[c->n_probs] = (int32_t)d->probs[i]->token;
        c->lp[c->n_probs] = d->probs[i]->logprob;
        c->has_lp[c->n_probs] = d->probs[i]->has_logprob;
        c->n_top = (uint32_t)d->probs[i]->n_top;
        c->offset[c->n_probs++] = d->probs[i]->text_offset;
    }
    for (size_t i = 0; i < d->n_tokens; i++)
        c->ids[c->n_ids++] = (int32_t)d->tokens[i];
    assert_int_equal(c->finish, 0); /* nothing after the end */
    c->finish = d->finish;
}

static void on_vectors(struct answer *a, const Ipc__Vectors *v)
{
    a->n_vec = v->n;
    a->dim = v->dim;
    assert_int_equal(v->data.len, v->n * v->dim * sizeof(float));
    memcpy(a->vec, v->data.data, v->data.len);
    for (size_t i = 0; i < v->n_errors; i++)
        a->bad[a->n_bad++] = v->errors[i]->index;
    for (size_t i = 0; i < v->n_truncated; i++)
        a->truncated[i] = v->truncated[i];
}

static void on_frame(void *user, const Ipc__Frame *f)
{
    struct rig *r = user;
    struct answer *a;

    assert_true(f->task < TASKS);
    a = &r->a[f->task];
    assert_int_equal(a->ended, 0);
    if (f->body_case == IPC__FRAME__BODY_DELTA) {
        on_delta(a, f->delta);
    } else if (f->body_case != IPC__FRAME__BODY_STATS) {
        a->ended++;
        a->order = r->n_ended++;
        if (f->body_case == IPC__FRAME__BODY_ERROR) {
            ipc_error_to(&a->err, f->error);
            a->rc = a->err.code;
        } else if (f->body_case == IPC__FRAME__BODY_DONE) {
            a->prompt_tokens = f->done->prompt_tokens;
            a->completion_tokens = f->done->completion_tokens;
        } else if (f->body_case == IPC__FRAME__BODY_VECTORS) {
            on_vectors(a, f->vectors);
        } else if (f->body_case == IPC__FRAME__BODY_TOKENS) {
            a->completion_tokens = (uint32_t)f->tokens->n_ids;
        } else if (f->body_case == IPC__FRAME__BODY_TEXT) {
            memcpy(a->c[0].text, f->text->text.data, f->text->text.len);
            a->c[0].n_text = f->text->text.len;
        }
    }
}

static void read_all(struct rig *r)
{
    engine_read(r->fd, on_frame, r);
}

static void step(struct rig *r)
{
    engine_step(r->e, r->chan, r->fd, on_frame, r);
}
static void run(struct rig *r)
{
    int guard = 20000;

    while (wrk_engine_busy(r->e) && guard-- > 0)
        step(r);
    assert_true(guard > 0);
}

static enum rc submit(struct rig *r, const Ipc__Frame *f)
{
    return engine_submit(r->e, f);
}

struct gen {
    const char *prompt;
    uint32_t max_tokens, n, top, top_k;
    float temperature;
    uint64_t seed, deadline_us;
    const char *stop[4];
    bool logprobs, echo, ignore_eos, ids, stream;
    float repetition;
    enum wrk_gr_kind grammar_kind;
    const char *grammar;
};
static enum rc generate(struct rig *r, uint64_t task, const struct gen *g)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate m = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    ProtobufCBinaryData stops[4];

    s.temperature = g->temperature;
    s.top_k = g->top_k;
    s.seed = g->seed;
    s.has_seed = true;
    s.repetition_penalty = g->repetition;
    m.sampling = &s;
    m.kind = 2;
    m.prompt.data = (uint8_t *)g->prompt;
    m.prompt.len = strlen(g->prompt);
    m.max_tokens = g->max_tokens;
    m.n = g->n;
    m.logprobs = g->logprobs;
    m.top_logprobs = g->top;
    m.echo = g->echo;
    m.ignore_eos = g->ignore_eos;
    m.return_token_ids = g->ids;
    m.stream = g->stream;
    m.deadline_us = g->deadline_us;
    m.grammar_kind = g->grammar_kind;
    m.grammar.data = (uint8_t *)g->grammar;
    m.grammar.len = g->grammar != NULL ? strlen(g->grammar) : 0;
    m.stop = stops;
    for (; m.n_stop < 4 && g->stop[m.n_stop] != NULL; m.n_stop++) {
        stops[m.n_stop].data = (uint8_t *)g->stop[m.n_stop];
        stops[m.n_stop].len = strlen(g->stop[m.n_stop]);
    }
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &m;
    return submit(r, &f);
}

/* ---------------------------------------------------------------- reference */

static int32_t listed(const void *user, uint32_t c, uint32_t p)
{
    (void)c;
    return ((const int32_t *)user)[p];
}
/* Greedy tokens and their log-probabilities, straight from the function. */
static void alone(const struct mdl *m, const char *prompt, uint32_t n, int32_t *out, double *lp)
{
    static int32_t seq[4096];
    static float x[FAKE_VOCAB];
    uint32_t len = 0;

    seq[len++] = FAKE_BOS;
    for (const char *p = prompt; *p != 0; p++)
        seq[len++] = FAKE_BYTE(*p);
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        int best = 0;

        fake_row(m, listed, seq, len, x);
        for (int v = 0; v < FAKE_VOCAB; v++) {
            best = x[v] > x[best] ? v : best;
            sum += exp((double)x[v]);
        }
        out[i] = seq[len++] = best;
        lp[i] = (double)x[best] - log(sum);
    }
}
static void equals_alone(const struct rig *r, uint32_t task, const char *prompt, uint32_t n)
{
    int32_t want[512];
    double lp[512];
    const struct choice *c = &r->a[task].c[0];

    alone(r->m, prompt, n, want, lp);
    assert_int_equal(r->a[task].rc, RC_OK);
    assert_int_equal(r->a[task].completion_tokens, n);
    assert_int_equal(c->n_probs, n);
    for (uint32_t i = 0; i < n; i++) {
        if (c->probs[i] != want[i])
            fail_msg("task %u token %u: %d, alone %d", task, i, c->probs[i], want[i]);
        assert_true(fabs(c->lp[i] - lp[i]) < 1e-4);
    }
}

static const char *long_text(uint32_t n, uint32_t seed)
{
    static char bank[64][2048];
    static int next;
    char *s = bank[next++ % 64];

    for (uint32_t i = 0; i < n; i++)
        s[i] = (char)('a' + (seed = seed * 1664525u + 1013904223u) % 26);
    s[n] = 0;
    return s;
}

/* -------------------------------------------------------------------- tests */

static void greedy_equals_the_model_alone(void **state)
{
    static const uint32_t lens[] = {0, 1, 14, 15, 16, 31, 100, 333};

    (void)state;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct rig r = rig_new(fake_new(512, 4, 64), 8);
        struct gen g = {.prompt = long_text(lens[i], 5), .max_tokens = 70, .logprobs = true};

        assert_int_equal(generate(&r, 1, &g), RC_OK);
        run(&r);
        equals_alone(&r, 1, g.prompt, 70);
        assert_int_equal(r.a[1].prompt_tokens, lens[i] + 1);
        assert_int_equal(r.a[1].c[0].finish, 2);
        rig_free(&r);
    }
}

static void concurrent_answers_equal_those_alone_to_the_bit(void **state)
{
    struct rig one, many = rig_new(fake_new(1024, 8, 96), 64);
    struct gen g[20];

    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        g[i] = (struct gen){.prompt = long_text(i * 37 % 300, i),
                            .max_tokens = 20 + i * 7 % 50,
                            .temperature = i % 3 == 0 ? 0 : 0.9f,
                            .seed = i,
                            .repetition = i % 4 == 1 ? 1.3f : 1,
                            .logprobs = true,
                            .top = 3,
                            .stream = i % 2};
        assert_int_equal(generate(&many, i + 1, &g[i]), RC_OK);
        if (i % 3 == 2)
            step(&many); /* arrivals between steps */
    }
    run(&many);
    for (uint32_t i = 0; i < 20; i++) {
        struct choice *a, *b = &many.a[i + 1].c[0];

        one = rig_new(fake_new(1024, 1, 512), 4);
        assert_int_equal(generate(&one, 1, &g[i]), RC_OK);
        run(&one);
        a = &one.a[1].c[0];
        assert_int_equal(b->n_probs, g[i].max_tokens);
        assert_int_equal(a->n_probs, b->n_probs);
        assert_memory_equal(a->probs, b->probs, a->n_probs * sizeof(int32_t));
        assert_memory_equal(a->lp, b->lp, a->n_probs * sizeof(float));
        assert_int_equal(a->n_text, b->n_text);
        assert_memory_equal(a->text, b->text, a->n_text);
        rig_free(&one);
    }
    rig_free(&many);
}

static void a_small_cache_serves_everyone_in_order(void **state)
{
    struct mdl *m = fake_new(256, 8, 32);
    struct rig r;

    (void)state;
    m->geo.cls[1].n_pages = 16; /* one full context and nothing more */
    m->geo.cls[0].n_pages = 16;
    r = rig_new(m, 64);
    for (uint32_t i = 1; i <= 12; i++) {
        struct gen g = {
            .prompt = long_text(100, i), .max_tokens = 60 + i, .logprobs = true, .stream = true};
        assert_int_equal(generate(&r, i, &g), RC_OK);
    }
    run(&r);
    for (uint32_t i = 1; i <= 12; i++) {
        assert_int_equal(r.a[i].rc, RC_OK);
        assert_int_equal(r.a[i].completion_tokens, 60 + i);
        assert_int_equal(r.a[i].order, i - 1);
    }
    rig_free(&r);
}

static void what_cannot_fit_is_refused_before_any_work(void **state)
{
    struct mdl *m = fake_new(256, 4, 32);
    struct rig r;
    struct gen fits = {.prompt = long_text(254, 1), .max_tokens = 1000},
               over = {.prompt = long_text(255, 1), .max_tokens = 1},
               pages = {.prompt = long_text(150, 1), .max_tokens = 100};

    (void)state;
    r = rig_new(m, 64);
    assert_int_equal(generate(&r, 1, &over), RC_OK);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_TOO_LARGE);
    assert_int_equal(r.a[1].err.n, 256);
    assert_int_equal(r.a[1].err.limit, 255);
    assert_int_equal(m->n_passes, 0);
    assert_int_equal(generate(&r, 2, &fits), RC_OK);
    run(&r);
    assert_int_equal(r.a[2].completion_tokens, 1); /* what the context leaves */
    assert_int_equal(r.a[2].c[0].finish, 2);
    rig_free(&r);

    m = fake_new(256, 4, 32);
    m->geo.cls[1].n_pages = 10; /* 160 tokens */
    r = rig_new(m, 64);
    assert_int_equal(generate(&r, 1, &pages), RC_OK);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_LIMIT);
    assert_int_equal(m->n_passes, 0);
    rig_free(&r);
}

static void cancel_frees_within_one_step_and_touches_no_other(void **state)
{
    struct rig r = rig_new(fake_new(512, 2, 64), 64);
    struct gen a = {.prompt = "aaaa", .max_tokens = 400, .stream = true},
               b = {.prompt = "bbbb", .max_tokens = 100, .logprobs = true},
               c = {.prompt = "cccc", .max_tokens = 50, .logprobs = true};
    uint32_t seen;

    (void)state;
    generate(&r, 1, &a);
    generate(&r, 2, &b);
    generate(&r, 3, &c); /* waits for a slot */
    generate(&r, 4, &a); /* waits and is cancelled there */
    for (int i = 0; i < 10; i++)
        step(&r);
    seen = r.a[1].c[0].n_deltas;
    assert_true(seen > 5);
    assert_int_equal(wrk_engine_cancel(r.e, 4, NULL), RC_OK);
    assert_int_equal(wrk_engine_cancel(r.e, 1, NULL), RC_OK);
    assert_int_equal(wrk_engine_cancel(r.e, 1, NULL), RC_OK); /* idempotent */
    assert_int_equal(wrk_engine_cancel(r.e, 77, NULL), RC_OK);
    read_all(&r);
    assert_int_equal(r.a[1].rc, RC_CANCELLED);
    assert_int_equal(r.a[4].rc, RC_CANCELLED);
    run(&r);
    assert_int_equal(r.a[1].c[0].n_deltas, seen);
    assert_int_equal(r.a[4].c[0].n_deltas, 0);
    equals_alone(&r, 2, "bbbb", 100);
    equals_alone(&r, 3, "cccc", 50);
    rig_free(&r);
}

static void deadlines_hold_in_the_queue_and_while_running(void **state)
{
    struct rig r = rig_new(fake_new(2048, 1, 64), 64);
    struct gen run_long = {.prompt = "x", .max_tokens = 2000, .stream = true},
               late = {.prompt = "y", .max_tokens = 5, .deadline_us = 1},
               ok = {.prompt = "z", .max_tokens = 5, .logprobs = true};

    (void)state;
    run_long.deadline_us = wrk_now_us() + 20000;
    generate(&r, 1, &run_long);
    generate(&r, 2, &late);
    generate(&r, 3, &ok);
    step(&r);
    assert_int_equal(r.a[2].rc, RC_DEADLINE);
    assert_non_null(strstr(r.a[2].err.msg, "while it was queued"));
    usleep(30000);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_DEADLINE);
    assert_non_null(strstr(r.a[1].err.msg, "generating"));
    equals_alone(&r, 3, "z", 5);
    rig_free(&r);
}

static void the_queue_has_an_end(void **state)
{
    struct rig r = rig_new(fake_new(512, 2, 64), 3);
    struct gen g = {.prompt = "q", .max_tokens = 4};

    (void)state;
    for (uint32_t i = 1; i <= 5; i++)
        assert_int_equal(generate(&r, i, &g), RC_OK);
    read_all(&r);
    assert_int_equal(r.a[4].rc, RC_BUSY);
    assert_int_equal(r.a[5].rc, RC_BUSY);
    assert_int_equal(generate(&r, 3, &g), RC_STATE); /* number in use */
    assert_int_equal(generate(&r, 0, &g), RC_STATE);
    run(&r);
    for (uint32_t i = 1; i <= 3; i++)
        assert_int_equal(r.a[i].completion_tokens, 4);
    rig_free(&r);
}

static void choices_are_the_single_requests_of_their_seeds(void **state)
{
    struct rig r = rig_new(fake_new(512, 3, 64), 8);
    struct gen g = {
        .prompt = "many", .max_tokens = 40, .n = 4, .temperature = 1, .seed = 9, .ids = true};

    (void)state;
    generate(&r, 1, &g);
    run(&r);
    assert_int_equal(r.a[1].completion_tokens, 160);
    assert_int_equal(r.a[1].prompt_tokens, 5);
    for (uint32_t i = 0; i < 4; i++) {
        struct gen s = g;
        struct choice *c = &r.a[1].c[i];

        s.n = 1;
        s.seed = 9 + i;
        generate(&r, 10 + i, &s);
        run(&r);
        assert_int_equal(c->n_ids, 40);
        assert_memory_equal(c->ids, r.a[10 + i].c[0].ids, 40 * sizeof(int32_t));
        if (i > 0)
            assert_memory_not_equal(c->ids, r.a[1].c[0].ids, 40 * sizeof(int32_t));
    }
    rig_free(&r);
}

static void echo_tells_the_prompt_and_its_probabilities(void **state)
{
    static const uint32_t lens[] = {0, 1, 2, 40, 200};

    (void)state;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct rig r = rig_new(fake_new(512, 6, 64), 8);
        struct gen other = {.prompt = "other", .max_tokens = 90, .logprobs = true};
        struct gen g = {.prompt = long_text(lens[i], 3),
                        .max_tokens = 3,
                        .echo = true,
                        .logprobs = true,
                        .top = 2};
        struct choice *c = &r.a[2].c[0];
        int32_t seq[256] = {FAKE_BOS};
        float x[FAKE_VOCAB];

        generate(&r, 1, &other);
        generate(&r, 2, &g);
        run(&r);
        assert_int_equal(c->n_echo, lens[i]);
        assert_memory_equal(c->echo, g.prompt, lens[i]);
        assert_int_equal(c->n_echo_probs, lens[i] + 1);
        assert_int_equal(c->n_probs, lens[i] + 4);
        assert_false(c->has_lp[0]);
        assert_int_equal(c->probs[0], FAKE_BOS);
        for (uint32_t k = 1; k <= lens[i]; k++) {
            double sum = 0;

            fake_row(r.m, listed, seq, k, x);
            seq[k] = FAKE_BYTE(g.prompt[k - 1]);
            for (int v = 0; v < FAKE_VOCAB; v++)
                sum += exp((double)x[v]);
            assert_int_equal(c->probs[k], seq[k]);
            assert_true(c->has_lp[k]);
            assert_true(fabs(c->lp[k] - ((double)x[seq[k]] - log(sum))) < 1e-4);
            assert_int_equal(c->offset[k], k - 1);
        }
        assert_int_equal(c->offset[lens[i] + 1], lens[i]);
        equals_alone(&r, 1, "other", 90);
        rig_free(&r);
    }
}

/* Scripted answers: what of the text is seen, and why it ended. */
static void text_ends_as_it_should(void **state)
{
    static const struct {
        const char *name, *pieces; /* pieces separated by '|' */
        const char *stop[4], *want;
        uint32_t max_tokens, finish, n_tokens;
        bool ignore_eos;
    } cases[] = {
        {"end of answer", "ab|cd|<eos>", {0}, "abcd", 50, 1, 3, false},
        {"length", "ab|cd|ef|gh", {0}, "abcdef", 3, 2, 3, false},
        {"stop inside a piece", "ab|cSTOPd|e", {"STOP"}, "abc", 50, 1, 2, false},
        {"stop over three pieces", "a|S|TO|Pz|q", {"STOP"}, "a", 50, 1, 4, false},
        {"a stop that does not complete is given back",
         "a|ST|OX|<eos>",
         {"STOP"},
         "aSTOX",
         50,
         1,
         4,
         false},
        {"held text is given back at the end", "a|STO|<eos>", {"STOP"}, "aSTO", 50, 1, 3, false},
        {"held text is given back at the limit", "a|STO|P", {"STOP"}, "aSTO", 2, 2, 2, false},
        {"prefix of another", "x|ab|c", {"abc", "ab"}, "x", 50, 1, 2, false},
        {"character over two pieces",
         "\xe2\x82|\xac!|<eos>",
         {0},
         "\xe2\x82\xac!",
         50,
         1,
         3,
         false},
        {"character cut by the limit", "a|\xf0\x9f|\x98\x80", {0}, "a\xef\xbf\xbd", 2, 2, 2, false},
        {"character cut by the end", "a|\xf0\x9f|<eos>", {0}, "a\xef\xbf\xbd", 50, 1, 3, false},
        {"CJK stop over pieces",
         "\xe5\xa7|\x8b\xe7\xb5|\x82|z",
         {"\xe7\xb5\x82"},
         "\xe5\xa7\x8b",
         50,
         1,
         3,
         false},
        {"ignored end", "a|<eos>|b|c", {0}, "abc", 4, 2, 4, true},
        {"stop at once", "STOP|x", {"STOP"}, "", 50, 1, 1, false},
    };

    (void)state;
    for (int stream = 0; stream < 2; stream++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct mdl *m = fake_new(64, 2, 32);
            char buf[256], *p = buf, *save = NULL;
            int32_t script[64] = {0};
            uint32_t n = 1, piece = 0; /* after "<bos>P": positions 1.. */
            struct rig r;
            struct choice *c;
            struct gen g = {.prompt = "P",
                            .max_tokens = cases[i].max_tokens,
                            .ignore_eos = cases[i].ignore_eos,
                            .logprobs = true,
                            .ids = true,
                            .stream = stream};

            memcpy(g.stop, cases[i].stop, sizeof(g.stop));
            strcpy(buf, cases[i].pieces);
            for (char *s = strtok_r(p, "|", &save); s != NULL; s = strtok_r(NULL, "|", &save)) {
                if (strcmp(s, "<eos>") == 0) {
                    script[n++] = FAKE_EOS;
                } else {
                    m->tok.piece[piece] = s;
                    script[n++] = FAKE_PIECE0 + (int32_t)piece++;
                }
            }
            for (; n < 64; n++)
                script[n] = FAKE_EOS;
            m->script = script;
            r = rig_new(m, 4);
            c = &r.a[1].c[0];
            generate(&r, 1, &g);
            run(&r);
            if (c->n_text != strlen(cases[i].want) || memcmp(c->text, cases[i].want, c->n_text))
                fail_msg("%s (stream %d): '%.*s', expected '%s'", cases[i].name, stream,
                         (int)c->n_text, c->text, cases[i].want);
            if (c->finish != cases[i].finish || r.a[1].completion_tokens != cases[i].n_tokens ||
                c->n_ids != cases[i].n_tokens)
                fail_msg("%s (stream %d): finish %u, %u tokens, %u ids", cases[i].name, stream,
                         c->finish, r.a[1].completion_tokens, c->n_ids);
            assert_true(c->n_probs <= cases[i].n_tokens);
            rig_free(&r);
        }
}

static void a_bad_row_ends_its_task_alone(void **state)
{
    struct mdl *m = fake_new(512, 4, 64);
    struct rig r;
    struct gen good = {.prompt = "good", .max_tokens = 60, .logprobs = true},
               bad = {.prompt = "bad\xc8", .max_tokens = 60};

    (void)state;
    m->bad_after = FAKE_BYTE(0xc8);
    r = rig_new(m, 8);
    generate(&r, 1, &good);
    generate(&r, 2, &bad);
    run(&r);
    assert_int_equal(r.a[2].rc, RC_INTERNAL);
    assert_non_null(strstr(r.a[2].err.msg, "token 1 of choice 0"));
    equals_alone(&r, 1, "good", 60);
    m->fail_pass = true; /* a pass that fails ends what was in it; the engine lives */
    generate(&r, 3, &good);
    run(&r);
    assert_int_equal(r.a[3].rc, RC_INTERNAL);
    m->fail_pass = false;
    generate(&r, 4, &good);
    run(&r);
    equals_alone(&r, 4, "good", 60);
    rig_free(&r);
}

static void weights_that_vanish_are_told_to_all(void **state)
{
    struct mdl *m = fake_new(512, 1, 64);
    struct rig r = rig_new(m, 8);
    struct gen g = {.prompt = "p", .max_tokens = 50};
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    generate(&r, 1, &g);
    generate(&r, 2, &g);
    step(&r);
    m->fail_guard = true;
    assert_int_equal(wrk_engine_step(r.e, &err), RC_WEIGHT_IO);
    read_all(&r);
    assert_int_equal(r.a[1].rc, RC_WEIGHT_IO);
    assert_int_equal(r.a[2].rc, RC_WEIGHT_IO);
    assert_false(wrk_engine_busy(r.e));
    rig_free(&r);
}

static void prompts_leave_room_for_decodes_and_for_each_other(void **state)
{
    struct mdl *m = fake_new(2048, 8, 512);
    struct rig r = rig_new(m, 32);
    struct gen d = {.prompt = "decoder", .max_tokens = 200, .logprobs = true},
               big = {.prompt = long_text(2000, 1), .max_tokens = 1},
               small = {.prompt = "tiny", .max_tokens = 1};
    uint32_t before;

    (void)state;
    generate(&r, 1, &d);
    step(&r);
    step(&r);
    for (uint32_t i = 2; i < 6; i++)
        generate(&r, i, &big);
    step(&r);
    generate(&r, 6, &small);
    before = m->n_passes;
    while (!r.a[6].ended)
        step(&r);
    /* four prompts of 2000 tokens are in front: a fair share brings it in soon */
    assert_true(m->n_passes - before <= 8);
    run(&r);
    assert_true(m->most_prompt_rows_while_decoding <= WRK_PACE_MOST);
    equals_alone(&r, 1, "decoder", 200);
    rig_free(&r);
}

static void decoding_allocates_nothing(void **state)
{
#ifdef COUNTS_ALLOCATIONS
    struct rig r = rig_new(fake_new(2048, 8, 64), 32);
    void *volatile spare;

    (void)state;
    for (uint32_t i = 1; i <= 8; i++) {
        struct gen g = {.prompt = long_text(20 * i, i),
                        .max_tokens = 600,
                        .temperature = i % 2 ? 0.8f : 0,
                        .repetition = i % 3 ? 1.1f : 1,
                        .logprobs = i % 4 == 0,
                        .top = 5,
                        .ids = i % 2,
                        .stream = i < 6,
                        .stop = {"never seen", "nor this"}};
        generate(&r, i, &g);
    }
    for (int i = 0; i < 20; i++)
        step(&r);
    for (int i = 0; i < 300; i++) {
        counting = true;
        assert_int_equal(wrk_engine_step(r.e, NULL), RC_OK);
        assert_int_equal(wrk_engine_stats(r.e, 0, NULL), RC_OK);
        counting = false;
        read_all(&r);
        assert_int_equal(wrk_chan_flush(r.chan, NULL), RC_OK);
    }
    assert_int_equal(counted, 0);
    assert_int_equal(r.chan->growths, 0);
    counting = true; /* the counter itself works */
    free((void *)(spare = malloc(1)));
    counting = false;
    assert_int_equal(counted, 1);
    rig_free(&r);
#else
    (void)state;
    skip();
#endif
}

/* ---------------------------------------------------------------- embedding */

struct embed {
    const char *text[32];
    uint32_t dims;
    bool per_item, truncate;
};
static void embed(struct rig *r, uint64_t task, const struct embed *q)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Embed m = IPC__EMBED__INIT;
    Ipc__EmbedInput in[32], *ptr[32];

    m.inputs = ptr;
    m.dimensions = q->dims;
    m.per_item = q->per_item;
    m.truncate = q->truncate;
    for (; m.n_inputs < 32 && q->text[m.n_inputs] != NULL; m.n_inputs++) {
        ipc__embed_input__init(&in[m.n_inputs]);
        in[m.n_inputs].text.data = (uint8_t *)q->text[m.n_inputs];
        in[m.n_inputs].text.len = strlen(q->text[m.n_inputs]);
        ptr[m.n_inputs] = &in[m.n_inputs];
    }
    f.task = task;
    f.body_case = IPC__FRAME__BODY_EMBED;
    f.embed = &m;
    assert_int_equal(submit(r, &f), RC_OK);
}
static void vector_of(const char *text, size_t cut, float *v)
{
    int32_t ids[512];
    uint32_t n = 0;

    for (; text[n] != 0 && n < cut; n++)
        ids[n] = FAKE_BYTE(text[n]);
    fake_vector(ids, n, v);
}

static void vectors_come_back_in_request_order(void **state)
{
    struct rig r = rig_new(fake_new(64, 2, 64), 64);
    struct gen g = {.prompt = "beside", .max_tokens = 40, .logprobs = true};
    struct embed q[5];

    (void)state;
    memset(q, 0, sizeof(q));
    generate(&r, 40, &g);
    for (uint32_t t = 0; t < 5; t++) {
        for (uint32_t i = 0; i < 30; i++)
            q[t].text[i] = i % 7 == 0   ? "short"
                           : i % 7 == 1 ? "a text in the middle of lengths"
                           : i % 7 == 2 ? "x"
                           : i % 7 == 3 ? "one that is as long as it may be, "
                                          "sixty-four to the last"
                                        : "another of some length";
        embed(&r, t + 1, &q[t]);
    }
    run(&r);
    for (uint32_t t = 0; t < 5; t++) {
        assert_int_equal(r.a[t + 1].rc, RC_OK);
        assert_int_equal(r.a[t + 1].n_vec, 30);
        for (uint32_t i = 0; i < 30; i++) {
            float v[8];
            vector_of(q[t].text[i], 64, v);
            assert_memory_equal(r.a[t + 1].vec + i * 8, v, sizeof(v));
        }
    }
    assert_true(r.m->n_encodes < 150); /* batched */
    assert_true(r.m->most_encode_rows > 32);
    equals_alone(&r, 40, "beside", 40);
    rig_free(&r);
}

static void item_errors_stay_with_their_item(void **state)
{
    static char over[80];
    struct rig r = rig_new(fake_new(64, 2, 64), 64);
    struct embed q = {.text = {"fine", "!bad", over, "?nan", "good"}, .per_item = true};
    float v[8];

    (void)state;
    memset(over, 'o', 70);
    embed(&r, 1, &q);
    q.per_item = false;
    embed(&r, 2, &q);
    q.truncate = true;
    q.text[1] = "ok";
    q.text[3] = "ok";
    embed(&r, 3, &q);
    q.text[0] = "?nan";
    embed(&r, 4, &q);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_OK);
    assert_int_equal(r.a[1].n_bad, 3);
    assert_int_equal(r.a[1].bad[0], 1);
    assert_int_equal(r.a[1].bad[1], 2);
    assert_int_equal(r.a[1].bad[2], 3);
    vector_of("good", 64, v);
    assert_memory_equal(r.a[1].vec + 4 * 8, v, sizeof(v));
    for (int i = 8; i < 4 * 8; i++)
        assert_true(r.a[1].vec[i] == 0);
    assert_int_equal(r.a[2].rc, RC_INVALID);
    assert_int_equal(r.a[2].err.item, 1);
    assert_int_equal(r.a[3].rc, RC_OK);
    assert_true(r.a[3].truncated[2]);
    vector_of(over, 64, v);
    assert_memory_equal(r.a[3].vec + 2 * 8, v, sizeof(v));
    assert_int_equal(r.a[4].rc, RC_INTERNAL);
    assert_int_equal(r.a[4].err.item, 0);
    rig_free(&r);
}

static void cut_vectors_have_length_one(void **state)
{
    struct rig r = rig_new(fake_new(64, 2, 64), 8);
    struct embed q = {.text = {"abc", "def"}, .dims = 5}, over = {.text = {"abc"}, .dims = 9};

    (void)state;
    embed(&r, 1, &q);
    embed(&r, 2, &over);
    run(&r);
    assert_int_equal(r.a[1].dim, 5);
    for (int k = 0; k < 2; k++) {
        double sum = 0;
        for (int i = 0; i < 5; i++)
            sum += (double)r.a[1].vec[k * 5 + i] * r.a[1].vec[k * 5 + i];
        assert_true(fabs(sum - 1) < 1e-6);
    }
    assert_int_equal(r.a[2].rc, RC_INVALID);
    assert_string_equal(r.a[2].err.what, "dimensions");
    rig_free(&r);
}

static void requests_out_of_range_are_refused_by_name(void **state)
{
    static const struct {
        const char *what;
        uint32_t n, top, max_tokens;
        float temperature, top_p, min_p, rep, typical_p;
        uint32_t bias_token, kind;
    } cases[] = {
        {"n", 129, 0, 5, 0, 0, 0, 0, 0, 0, 2},
        {"top_logprobs", 1, 65, 5, 0, 0, 0, 0, 0, 0, 2},
        {"max_tokens", 1, 0, 0, 0, 0, 0, 0, 0, 0, 2},
        {"temperature", 1, 0, 5, NAN, 0, 0, 0, 0, 0, 2},
        {"temperature", 1, 0, 5, -1, 0, 0, 0, 0, 0, 2},
        {"top_p", 1, 0, 5, 0, 1.5f, 0, 0, 0, 0, 2},
        {"min_p", 1, 0, 5, 0, 0, -0.1f, 0, 0, 0, 2},
        {"repetition_penalty", 1, 0, 5, 0, 0, 0, INFINITY, 0, 0, 2},
        {"logit_bias", 1, 0, 5, 0, 0, 0, 0, 0, FAKE_VOCAB, 2},
        {"typical_p", 1, 0, 5, 0, 0, 0, 0, 1.5f, 0, 2},
        {"kind", 1, 0, 5, 0, 0, 0, 0, 0, 0, 9},
        {"prompt", 1, 0, 5, 0, 0, 0, 0, 0, 0, 3},
    };
    struct rig r = rig_new(fake_new(64, 2, 64), 64);

    (void)state;
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Ipc__Frame f = IPC__FRAME__INIT;
        Ipc__Generate m = IPC__GENERATE__INIT;
        Ipc__Sampling s = IPC__SAMPLING__INIT;
        Ipc__LogitBias b = IPC__LOGIT_BIAS__INIT, *bp = &b;

        b.token = cases[i].bias_token;
        s.temperature = cases[i].temperature;
        s.top_p = cases[i].top_p;
        s.min_p = cases[i].min_p;
        s.typical_p = cases[i].typical_p;
        s.repetition_penalty = cases[i].rep;
        s.n_logit_bias = 1;
        s.logit_bias = &bp;
        m.sampling = &s;
        m.kind = cases[i].kind;
        m.prompt.data = (uint8_t *)"hi";
        m.prompt.len = 2;
        m.n = cases[i].n;
        m.max_tokens = cases[i].max_tokens;
        m.logprobs = true;
        m.top_logprobs = cases[i].top;
        f.task = i + 1;
        f.body_case = IPC__FRAME__BODY_GENERATE;
        f.generate = &m;
        assert_int_equal(submit(&r, &f), RC_OK);
        run(&r);
        if (r.a[i + 1].rc == RC_OK || strcmp(r.a[i + 1].err.what, cases[i].what) != 0)
            fail_msg("case %u: %s names '%s', expected '%s'", i, rc_name(r.a[i + 1].rc),
                     r.a[i + 1].err.what, cases[i].what);
    }
    assert_int_equal(r.m->n_passes, 0);
    rig_free(&r);
}

static void a_piece_without_a_vector_fails_its_request_alone(void **state)
{
    struct rig r = rig_new(fake_new(64, 2, 64), 8);
    struct gen good = {.prompt = "hi", .max_tokens = 20, .logprobs = true},
               bad = {.prompt = "a\x01", .max_tokens = 5};

    (void)state;
    generate(&r, 1, &good);
    step(&r);
    generate(&r, 2, &bad);
    run(&r);
    assert_int_equal(r.a[2].rc, RC_INVALID);
    assert_string_equal(r.a[2].err.what, "prompt");
    equals_alone(&r, 1, "hi", 20);
    rig_free(&r);
}

/* While a text is read the engine listens here: looks at what others got, then
 * cancels. */
static struct {
    struct rig *r;
    unsigned n_calls, cancel_at;
    uint32_t passes; /* at the last call */
} ear;

static enum rc listen_in_test(void *user, struct rc_err *err)
{
    struct gen late = {.prompt = "late", .max_tokens = 3, .logprobs = true};

    assert_ptr_equal(user, &ear);
    ear.passes = ear.r->m->n_passes;
    if (++ear.n_calls == 1)
        generate(ear.r, 5, &late);
    if (ear.n_calls != ear.cancel_at)
        return RC_AGAIN;
    assert_int_equal(wrk_engine_cancel(ear.r->e, 2, err), RC_OK);
    return wrk_engine_cancel(ear.r->e, 3, err); /* the next in the list goes at once */
}

static void a_long_text_neither_stops_others_nor_hides_its_cancel(void **state)
{
    static char slow[12] = "\x02\x02\x02\x02\x02\x02\x02\x02\x02\x02\x02";
    struct rig r = rig_new_heard(fake_new(512, 3, 64), 64, listen_in_test, &ear);
    struct gen a = {.prompt = "aaaa", .max_tokens = 100, .logprobs = true},
               b = {.prompt = "bbbb", .max_tokens = 5, .logprobs = true},
               timed = {.prompt = slow, .max_tokens = 5};
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Tokenize t = IPC__TOKENIZE__INIT;
    uint32_t before;

    (void)state;
    ear.r = &r;
    ear.n_calls = 0;
    ear.cancel_at = 6;
    generate(&r, 1, &a);
    step(&r);
    before = r.m->n_passes;
    t.text.data = (uint8_t *)slow;
    t.text.len = 11;
    f.task = 2;
    f.body_case = IPC__FRAME__BODY_TOKENIZE;
    f.tokenize = &t;
    submit(&r, &f);
    generate(&r, 3, &b);
    step(&r); /* reads the whole text, or would */
    assert_int_equal(ear.n_calls, 6);
    assert_int_equal(ear.passes - before, 5); /* one between two calls */
    assert_int_equal(r.a[2].rc, RC_CANCELLED);
    assert_int_equal(r.a[3].rc, RC_CANCELLED);
    run(&r);
    equals_alone(&r, 1, "aaaa", 100);
    equals_alone(&r, 5, "late", 3); /* came while the text was read */
    assert_int_equal(r.a[2].ended, 1);

    ear.cancel_at = 0;
    timed.deadline_us = wrk_now_us() + 60000;
    generate(&r, 6, &timed);
    step(&r);
    assert_int_equal(r.a[6].rc, RC_DEADLINE);
    f.task = 7; /* and without either, the text is read to its end */
    submit(&r, &f);
    run(&r);
    assert_int_equal(r.a[7].rc, RC_OK);
    assert_int_equal(r.a[7].completion_tokens, 11);
    rig_free(&r);
}

static void tokenize_and_detokenize(void **state)
{
    struct rig r = rig_new(fake_new(64, 2, 64), 8);
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Tokenize t = IPC__TOKENIZE__INIT;
    Ipc__Detokenize d = IPC__DETOKENIZE__INIT;
    uint32_t ids[] = {FAKE_BYTE('h'), FAKE_BYTE('i')}, bad[] = {FAKE_VOCAB};

    (void)state;
    t.text.data = (uint8_t *)"hello";
    t.text.len = 5;
    t.add_special = true;
    f.task = 1;
    f.body_case = IPC__FRAME__BODY_TOKENIZE;
    f.tokenize = &t;
    submit(&r, &f);
    d.tokens = ids;
    d.n_tokens = 2;
    f.task = 2;
    f.body_case = IPC__FRAME__BODY_DETOKENIZE;
    f.detokenize = &d;
    submit(&r, &f);
    d.tokens = bad;
    d.n_tokens = 1;
    f.task = 3;
    submit(&r, &f);
    run(&r);
    assert_int_equal(r.a[1].completion_tokens, 6);
    assert_int_equal(r.a[2].c[0].n_text, 2);
    assert_memory_equal(r.a[2].c[0].text, "hi", 2);
    assert_int_equal(r.a[3].rc, RC_INVALID);
    rig_free(&r);
}

/* ------------------------------------------------------------ draws on a device */

static struct mdl *drawing(int32_t give_back)
{
    struct mdl *m = fake_new(1024, 8, 96);

    m->can_sample = true;
    m->give_back = give_back;
    return m;
}

/* What a request asks decides where it is drawn; who shares its passes does not. */
static void the_device_draws_the_same_alone_and_in_company(void **state)
{
    struct rig one, many = rig_new(drawing(-1), 64);
    struct gen g[12];

    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        g[i] = (struct gen){.prompt = long_text(i * 37 % 300, i),
                            .max_tokens = 20 + i * 7 % 50,
                            .temperature = i % 3 == 0 ? 0 : 0.9f,
                            .top_k = 9,
                            .seed = i,
                            .repetition = i % 4 == 1 ? 1.3f : 1,
                            .logprobs = i % 5 == 2,
                            .ids = true};
        assert_int_equal(generate(&many, i + 1, &g[i]), RC_OK);
    }
    run(&many);
    assert_true(many.m->n_draws > 0 && many.m->n_host_rows > 0);
    for (uint32_t i = 0; i < 12; i++) {
        bool host = g[i].logprobs || i % 4 == 1;
        struct choice *a, *b = &many.a[i + 1].c[0];

        one = rig_new(drawing(-1), 4);
        assert_int_equal(generate(&one, 1, &g[i]), RC_OK);
        run(&one);
        a = &one.a[1].c[0];
        assert_int_equal(a->n_ids, g[i].max_tokens);
        assert_int_equal(b->n_ids, a->n_ids);
        assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof(int32_t));
        assert_int_equal(one.m->n_draws, host ? 0 : g[i].max_tokens);
        assert_int_equal(one.m->n_host_rows, 0);
        rig_free(&one);
    }
    rig_free(&many);
}

/* Greedy has one answer, and a row that is given back goes on from the same generator. */
static void rows_the_device_gives_back_are_drawn_by_the_host(void **state)
{
    struct gen greedy = {.prompt = "some words", .max_tokens = 60, .ids = true},
               warm = {.prompt = "some words",
                       .max_tokens = 60,
                       .ids = true,
                       .temperature = 0.8f,
                       .seed = 7};
    struct rig plain = rig_new(fake_new(1024, 8, 96), 8), none = rig_new(drawing(-2), 8),
               some = rig_new(drawing('e' + 16), 8);

    (void)state;
    generate(&plain, 1, &greedy);
    generate(&plain, 2, &warm);
    generate(&none, 1, &greedy);
    generate(&none, 2, &warm);
    generate(&some, 1, &greedy);
    run(&plain);
    run(&none);
    run(&some);
    for (uint32_t t = 1; t <= 2; t++) {
        assert_int_equal(none.a[t].c[0].n_ids, 60);
        assert_memory_equal(none.a[t].c[0].ids, plain.a[t].c[0].ids, 60 * sizeof(int32_t));
    }
    assert_int_equal(plain.m->n_draws, 0);
    assert_int_equal(none.m->n_host_rows, 120);
    assert_memory_equal(some.a[1].c[0].ids, plain.a[1].c[0].ids, 60 * sizeof(int32_t));
    assert_true(some.m->n_draws == 60 && some.m->n_host_rows < 60);
    rig_free(&plain);
    rig_free(&none);
    rig_free(&some);
}

static void a_temperature_too_cold_for_a_device_is_the_hosts(void **state)
{
    struct gen g = {.prompt = "some words", .max_tokens = 10, .ids = true, .temperature = 1e-30f},
               greedy = {.prompt = "some words", .max_tokens = 10, .ids = true};
    struct rig r = rig_new(drawing(-1), 8);

    (void)state;
    generate(&r, 1, &g);
    run(&r);
    assert_int_equal(r.m->n_draws, 0);
    generate(&r, 2, &greedy);
    run(&r);
    assert_memory_equal(r.a[1].c[0].ids, r.a[2].c[0].ids, 10 * sizeof(int32_t));
    rig_free(&r);
}

static void a_bad_row_on_the_device_ends_its_task_alone(void **state)
{
    struct mdl *m = drawing(-1);
    struct gen good = {.prompt = "good", .max_tokens = 60, .logprobs = true},
               bad = {.prompt = "bad\xc8", .max_tokens = 60};
    struct rig r;

    (void)state;
    m->bad_after = FAKE_BYTE(0xc8);
    r = rig_new(m, 8);
    generate(&r, 1, &good);
    generate(&r, 2, &bad);
    run(&r);
    assert_int_equal(r.a[2].rc, RC_INTERNAL);
    assert_non_null(strstr(r.a[2].err.msg, "not finite"));
    equals_alone(&r, 1, "good", 60);
    rig_free(&r);
}

/* be_sync says again that the context is gone: the worker ends, and tells no task that it
 * failed, so that the front may try it elsewhere. */
static void a_lost_device_ends_the_worker_not_the_tasks(void **state)
{
    static const struct be_fail_plan lost = {.op_at = 1, .n_op_fails = 1000, .op_rc = RC_INTERNAL};
    const struct be_opts o = {.backend = "fail", .n_threads = 1};
    struct gen g = {.prompt = "p", .max_tokens = 5};
    struct rc_err err = RC_ERR_INIT;
    struct mdl *m = fake_new(512, 4, 64);
    struct be_ctx *be = NULL;
    struct rig r;

    (void)state;
    assert_int_equal(be_ctx_new(&be, &o, &err), RC_OK);
    r = rig_new_on(m, be, 8);
    m->fail_pass = true;
    generate(&r, 1, &g);
    run(&r); /* the device lives: the task fails */
    assert_int_equal(r.a[1].rc, RC_INTERNAL);
    generate(&r, 2, &g);
    be_fail_set(be, &lost);
    assert_int_equal(wrk_engine_step(r.e, &err), RC_INTERNAL);
    assert_non_null(strstr(err.msg, "the device is lost: pass of"));
    read_all(&r);
    assert_int_equal(r.a[2].ended, 0);
    rig_free(&r);
    be_ctx_free(&be);
}

/* ------------------------------------------------------------------ grammars */

static bool only(const struct choice *c, const char *letters)
{
    return strspn(c->text, letters) == c->n_text;
}

/* The same bytes alone, in company and on a device, where a grammar's rows are the
 * host's; whole unless they were cut. */
static void grammars_hold_alone_and_in_company(void **state)
{
    static const struct {
        enum wrk_gr_kind kind;
        const char *grammar, *letters, *last; /* what a whole answer ends with */
    } rows[] = {
        {WRK_GR_REGEX, "[a-f]{5,20}!", "abcdef!", "!"},
        {WRK_GR_GBNF, "root ::= \"<\" [0-9]+ \">\"", "<0123456789>", ">"},
        {WRK_GR_SCHEMA, "{\"type\":\"integer\",\"minimum\":10,\"maximum\":3000}", "0123456789", ""},
        {WRK_GR_NONE, NULL, NULL, NULL},
        {WRK_GR_SCHEMA, "{\"enum\":[true,false]}", "truefals", "e"},
    };
    struct rig many = rig_new(fake_new(600, 8, 64), 64), device = rig_new(drawing(-1), 64), one;
    uint32_t whole = 0;
    struct gen g[15];

    (void)state;
    for (uint32_t i = 0; i < 15; i++) {
        g[i] = (struct gen){.prompt = long_text(i * 37 % 200, i),
                            .max_tokens = i == 0 ? 3 : 40,
                            .temperature = i % 4 == 0 ? 0 : 1,
                            .seed = i,
                            .repetition = i % 4 == 1 ? 1.3f : 1,
                            .logprobs = i % 5 == 2,
                            .ids = true,
                            .n = i == 5 ? 2 : 1,
                            .grammar_kind = rows[i % 5].kind,
                            .grammar = rows[i % 5].grammar};
        assert_int_equal(generate(&many, i + 1, &g[i]), RC_OK);
        assert_int_equal(generate(&device, i + 1, &g[i]), RC_OK);
    }
    run(&many);
    run(&device);
    assert_true(device.m->n_draws > 0 && device.m->n_host_rows > 0);
    for (uint32_t i = 0; i < 15; i++) {
        const char *last = rows[i % 5].last;
        const struct choice *b = &many.a[i + 1].c[0];

        assert_int_equal(many.a[i + 1].rc, RC_OK);
        if (last == NULL)
            continue; /* drawn on the device: other bits of the generator */
        assert_string_equal(device.a[i + 1].c[0].text, b->text);
        one = rig_new(fake_new(600, 8, 64), 4);
        assert_int_equal(generate(&one, 1, &g[i]), RC_OK);
        run(&one);
        assert_string_equal(one.a[1].c[0].text, b->text);
        assert_int_equal(one.a[1].c[0].n_ids, b->n_ids);
        assert_memory_equal(one.a[1].c[0].ids, b->ids, b->n_ids * sizeof(int32_t));
        assert_string_equal(one.a[1].c[1].text, many.a[i + 1].c[1].text);
        rig_free(&one);
        assert_true(only(b, rows[i % 5].letters));
        assert_int_equal(b->finish, i == 0 ? 2 : b->finish);
        if (b->finish == 1) {
            whole++;
            assert_string_equal(b->text + b->n_text - strlen(last), last);
        }
        for (uint32_t k = 0; k < b->n_probs; k++)
            assert_true(b->lp[k] <= 0);
    }
    assert_true(whole >= 8);
    rig_free(&many);
    rig_free(&device);
}

static void bad_grammars_fail_their_task_alone(void **state)
{
    struct rig r = rig_new(fake_new(200, 4, 64), 64);
    const struct gen rows[] = {
        {.prompt = "a", .max_tokens = 5, .grammar_kind = WRK_GR_REGEX, .grammar = "("},
        {.prompt = "a", .max_tokens = 5, .grammar_kind = (enum wrk_gr_kind)9, .grammar = "x"},
        {.prompt = "a",
         .max_tokens = 5,
         .grammar_kind = WRK_GR_SCHEMA,
         .grammar = "{\"minItems\":2000000}"},
        {.prompt = "a", .max_tokens = 5, .grammar_kind = WRK_GR_SCHEMA, .grammar = "{\"not\":{}}"},
        {.prompt = "a",
         .max_tokens = 5,
         .grammar_kind = WRK_GR_REGEX,
         .grammar = "x",
         .ignore_eos = true},
        {.prompt = "a", .max_tokens = 5, .grammar_kind = WRK_GR_REGEX, .grammar = "xyz"},
    };

    (void)state;
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(generate(&r, i + 1, &rows[i]), RC_OK);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_INVALID);
    assert_string_equal(r.a[1].err.what, "regex");
    assert_int_equal(r.a[2].rc, RC_INVALID);
    assert_int_equal(r.a[3].rc, RC_INVALID); /* a bad grammar, not a long request */
    assert_int_equal(r.a[4].rc, RC_UNSUPPORTED);
    assert_string_equal(r.a[4].err.what, "response_format.json_schema.schema");
    assert_string_equal(r.a[5].err.what, "ignore_eos");
    assert_int_equal(r.a[6].rc, RC_OK);
    assert_string_equal(r.a[6].c[0].text, "xyz");
    assert_int_equal(r.a[6].c[0].finish, 1);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_equals_the_model_alone),
        cmocka_unit_test(concurrent_answers_equal_those_alone_to_the_bit),
        cmocka_unit_test(a_small_cache_serves_everyone_in_order),
        cmocka_unit_test(what_cannot_fit_is_refused_before_any_work),
        cmocka_unit_test(cancel_frees_within_one_step_and_touches_no_other),
        cmocka_unit_test(deadlines_hold_in_the_queue_and_while_running),
        cmocka_unit_test(the_queue_has_an_end),
        cmocka_unit_test(choices_are_the_single_requests_of_their_seeds),
        cmocka_unit_test(echo_tells_the_prompt_and_its_probabilities),
        cmocka_unit_test(text_ends_as_it_should),
        cmocka_unit_test(a_bad_row_ends_its_task_alone),
        cmocka_unit_test(weights_that_vanish_are_told_to_all),
        cmocka_unit_test(prompts_leave_room_for_decodes_and_for_each_other),
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(vectors_come_back_in_request_order),
        cmocka_unit_test(item_errors_stay_with_their_item),
        cmocka_unit_test(cut_vectors_have_length_one),
        cmocka_unit_test(requests_out_of_range_are_refused_by_name),
        cmocka_unit_test(a_piece_without_a_vector_fails_its_request_alone),
        cmocka_unit_test(a_long_text_neither_stops_others_nor_hides_its_cancel),
        cmocka_unit_test(tokenize_and_detokenize),
        cmocka_unit_test(the_device_draws_the_same_alone_and_in_company),
        cmocka_unit_test(rows_the_device_gives_back_are_drawn_by_the_host),
        cmocka_unit_test(a_temperature_too_cold_for_a_device_is_the_hosts),
        cmocka_unit_test(a_bad_row_on_the_device_ends_its_task_alone),
        cmocka_unit_test(a_lost_device_ends_the_worker_not_the_tasks),
        cmocka_unit_test(grammars_hold_alone_and_in_company),
        cmocka_unit_test(bad_grammars_fail_their_task_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
