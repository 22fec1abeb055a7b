/* test_wrk_spec.c - guesses ahead must not show: every answer is the one plain decoding
 * gives, token by token and log-probability by log-probability.
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

/* ------------------------------------------------------------------------ rig */

#define TASKS 16
#define ANSWER 400
struct answer {
    uint32_t ids[ANSWER], n, finish, right, wrong, n_text;
    float lp[ANSWER];
    char text[2048];
    enum rc rc;
    bool ended;
};
struct rig {
    struct mdl *m, *drafter;
    struct wrk_engine *e;
    struct wrk_chan chan;
    int fd;
    bool free_will; /* the engine decides when to guess */
    struct answer a[TASKS];
};
struct ask {
    const char *prompt, *stop, *regex;
    uint32_t max_new, choices, top_k, spec, most; /* spec, most: the request's own */
    uint64_t seed;
    float temperature, repetition;
    bool ids_only, cached, eos;
};

static struct rig *rig_new(struct mdl *m, uint32_t most, bool drafter, uint32_t wrong_of_8)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct wrk_engine_opts o = {.mdl = m,
                                .chan = &r->chan,
                                .max_seqs = m->max_seqs,
                                .batch_tokens = m->batch_tokens,
                                .max_queue = TASKS,
                                .cache_bytes = 1 << 20,
                                .cache_min_tokens = 20,
                                .spec_most = most};
    m->max_out = most > 0 ? wrk_spec_rows(m->max_seqs) : 0;
    r->m = m;
    if (drafter) {
        o.drafter = r->drafter = calloc(1, sizeof(*m));
        r->drafter->target = m;
        r->drafter->wrong_of_8 = wrong_of_8;
    }
    r->fd = engine_channel(&r->chan);
    assert_int_equal(wrk_engine_new(&r->e, &o, NULL), RC_OK);
    return r;
}

static void rig_free(struct rig *r)
{
    assert_false(wrk_engine_busy(r->e));
    assert_int_equal(wrk_pages_used_bytes(&r->e->pages), 0);
    assert_null(wrk_radix_fault(&r->e->radix));
    if (r->drafter != NULL)
        assert_int_equal(r->drafter->n_row_wrong, 0);
    wrk_engine_free(&r->e);
    close(r->chan.fd);
    close(r->fd);
    wrk_chan_deinit(&r->chan);
    free(r->m);
    free(r->drafter);
    free(r);
}

static void on_frame(void *user, const Ipc__Frame *f)
{
    struct rig *r = user;
    struct answer *a = &r->a[f->task];

    assert_true(f->task < TASKS);
    assert_false(a->ended);
    if (f->body_case == IPC__FRAME__BODY_DELTA) {
        const Ipc__Delta *d = f->delta;

        assert_true(a->n + d->n_tokens <= ANSWER && a->n_text + d->text.len < sizeof(a->text));
        for (size_t i = 0; i < d->n_probs; i++)
            a->lp[a->n + i] = d->probs[i]->logprob;
        for (size_t i = 0; i < d->n_tokens; i++)
            a->ids[a->n++] = d->tokens[i];
        if (d->text.len > 0)
            memcpy(a->text + a->n_text, d->text.data, d->text.len);
        a->n_text += (uint32_t)d->text.len;
        a->finish = d->finish != 0 ? d->finish : a->finish;
        return;
    }
    a->ended = true;
    if (f->body_case == IPC__FRAME__BODY_ERROR) {
        a->rc = (enum rc)f->error->code;
        print_message("task %llu: %.*s\n", (unsigned long long)f->task, (int)f->error->message.len,
                      (char *)f->error->message.data);
        return;
    }
    assert_int_equal(f->body_case, IPC__FRAME__BODY_DONE);
    a->right = f->done->accepted_drafts;
    a->wrong = f->done->rejected_drafts;
}

static void step(struct rig *r)
{
    for (uint32_t c = 0; c < WRK_SPEC_CLASSES && !r->free_will; c++) /* guessing always pays */
        r->e->spec.meter[c] = (struct wrk_spec_meter){1e9, 1, WRK_SPEC_TRIAL, WRK_SPEC_TRIAL, 0};
    engine_step(r->e, &r->chan, r->fd, on_frame, r);
}

static void run(struct rig *r)
{
    for (int guard = 20000; wrk_engine_busy(r->e); guard--) {
        assert_true(guard > 0);
        step(r);
    }
    step(r);
}

static void submit(struct rig *r, uint64_t task, const struct ask *q)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    ProtobufCBinaryData stop = {0};
    uint8_t ns[WRK_NS_BYTES] = {3};

    s.temperature = q->temperature;
    s.top_k = q->top_k;
    s.repetition_penalty = q->repetition;
    s.seed = q->seed;
    s.has_seed = true;
    g.sampling = &s;
    g.kind = 2;
    g.prompt.data = (uint8_t *)q->prompt;
    g.prompt.len = strlen(q->prompt);
    g.max_tokens = q->max_new;
    g.n = q->choices > 0 ? q->choices : 1;
    g.logprobs = !q->ids_only;
    g.return_token_ids = g.stream = true;
    g.speculation = q->spec;
    g.speculation_tokens = q->most;
    g.ignore_eos = !q->eos && q->regex == NULL;
    if (q->cached) {
        g.cache_ns.data = ns;
        g.cache_ns.len = sizeof(ns);
    }
    if (q->stop != NULL) {
        stop.data = (uint8_t *)q->stop;
        stop.len = strlen(q->stop);
        g.stop = &stop;
        g.n_stop = 1;
    }
    if (q->regex != NULL) {
        g.grammar_kind = WRK_GR_REGEX;
        g.grammar.data = (uint8_t *)q->regex;
        g.grammar.len = strlen(q->regex);
    }
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    assert_int_equal(engine_submit(r->e, &f), RC_OK);
}

static void equals(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->rc, RC_OK);
    assert_int_equal(b->rc, RC_OK);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(a->ids[0]));
    assert_memory_equal(a->lp, b->lp, a->n * sizeof(a->lp[0]));
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->finish, b->finish);
}

/* The answer of an engine that never guesses. */
static void plain(const struct ask *q, const int32_t *script, bool device, struct answer *out)
{
    struct mdl *m = fake_new(1024, 1, 128);
    struct ask mine = *q;
    struct rig *r;

    mine.spec = mine.most = 0;
    m->script = script;
    m->can_sample = device;
    r = rig_new(m, 0, false, 0);
    submit(r, 1, &mine);
    run(r);
    *out = r->a[1];
    assert_int_equal(out->right + out->wrong, 0);
    rig_free(r);
}

#define PROMPT "once upon a time there was a long enough prompt"

/* ---------------------------------------------------------------------- tests */

static const struct ask asks[] = {
    {.prompt = PROMPT, .max_new = 64},
    {.prompt = PROMPT, .max_new = 65, .temperature = 0.9f, .seed = 5},
    {.prompt = "b" PROMPT, .max_new = 50, .temperature = 0.2f, .seed = 6, .top_k = 2},
    {.prompt = "c" PROMPT, .max_new = 40, .repetition = 1.3f},
    {.prompt = "d" PROMPT, .max_new = 33, .regex = "[a-f]{5,400}"},
    {.prompt = "e" PROMPT, .max_new = 1},
    {.prompt = "f" PROMPT, .max_new = 2, .ids_only = true},
    {.prompt = "g" PROMPT, .max_new = 60, .ids_only = true, .temperature = 1.1f, .top_k = 3},
};
#define N_ASKS (sizeof(asks) / sizeof(asks[0]))

static void answers_with_guesses_equal_plain_ones(void **s)
{
    (void)s;
    for (uint32_t k = 1; k <= 8; k = k < 4 ? k + 1 : 2 * k)
        for (uint32_t wrong = 0; wrong <= 8; wrong += 4)
            for (size_t i = 0; i < N_ASKS; i++) {
                static struct answer want;
                struct rig *r = rig_new(fake_new(1024, 4, 128), k, true, wrong);

                plain(&asks[i], NULL, false, &want);
                submit(r, 1, &asks[i]);
                run(r);
                equals(&r->a[1], &want);
                if (i == 0 && wrong == 0) { /* greedy, and the drafter knows: k + 1 a pass */
                    assert_true(r->a[1].right >= 64 * k / (k + 1) - k);
                    assert_int_equal(r->a[1].wrong, 0);
                }
                if (i == 0 && wrong == 8)
                    assert_int_equal(r->a[1].right, 0);
                rig_free(r);
            }
}

static void beside_others_and_from_the_cache(void **s)
{
    struct rig *r = rig_new(fake_new(1024, 4, 40), 4, true, 3);
    static struct answer want[N_ASKS];

    (void)s;
    for (size_t i = 0; i < N_ASKS; i++)
        plain(&asks[i], NULL, false, &want[i]);
    for (int again = 0; again < 2; again++) {
        memset(r->a, 0, sizeof(r->a));
        for (size_t i = 0; i < N_ASKS; i++) {
            struct ask q = asks[i];

            q.cached = true;
            submit(r, i + 1, &q);
        }
        run(r);
        for (size_t i = 0; i < N_ASKS; i++)
            equals(&r->a[i + 1], &want[i]);
    }
    assert_true(r->e->spec.n_accepted > 50);
    assert_true(r->e->radix.stats.hits > 0);
    rig_free(r);
}

/* The device draws: also the rows of guesses that come to nothing. */
static void drawn_on_a_device(void **s)
{
    (void)s;
    for (uint32_t give_back = 0; give_back < 2; give_back++)
        for (size_t i = 6; i < N_ASKS; i++) {
            static struct answer want;
            struct mdl *m = fake_new(1024, 2, 128);
            struct rig *r;

            m->can_sample = true;
            m->give_back = give_back != 0 ? FAKE_BYTE('q') : -1;
            plain(&asks[i], NULL, true, &want);
            r = rig_new(m, 4, true, 2);
            submit(r, 1, &asks[i]);
            run(r);
            if (give_back == 0) /* the host's walk over the candidates differs from this fake's */
                equals(&r->a[1], &want);
            assert_int_equal(r->a[1].n, want.n);
            assert_true(r->e->draws.n_drawn > 0);
            rig_free(r);
        }
}

static int32_t looped[1024];

/* A text that repeats itself: what was said before is what comes. */
static void what_was_said_before_is_looked_up(void **s)
{
    const struct ask q = {.prompt = PROMPT, .max_new = 200};
    static struct answer want;
    struct mdl *m = fake_new(1024, 2, 128);
    struct rig *r;

    (void)s;
    for (int i = 0; i < 1024; i++)
        looped[i] = FAKE_BYTE('a' + i % 7);
    plain(&q, looped, false, &want);
    m->script = looped;
    r = rig_new(m, 4, false, 0);
    submit(r, 1, &q);
    run(r);
    equals(&r->a[1], &want);
    assert_true(r->a[1].right > 150);
    /* each guess was one or the other, in the last pass too */
    assert_int_equal(r->a[1].right + r->a[1].wrong, r->e->spec.n_drafted);
    assert_int_equal(r->a[1].right, r->e->spec.n_accepted);
    assert_true(r->m->n_passes < 70);
    rig_free(r);
}

/* An end, a stop string and the last token allowed come inside a guess. */
static void ends_inside_a_guess(void **s)
{
    const struct ask eos = {.prompt = PROMPT, .max_new = 200, .eos = true},
                     stop = {.prompt = PROMPT, .max_new = 200, .stop = "efgab"};
    static struct answer want;

    (void)s;
    for (int i = 0; i < 1024; i++)
        looped[i] = FAKE_BYTE('a' + i % 7);
    for (uint32_t at = 60; at < 72; at++) {
        int32_t script[1024];

        memcpy(script, looped, sizeof(script));
        script[at] = FAKE_EOS;
        for (int drafter = 0; drafter < 2; drafter++)
            for (int i = 0; i < 3; i++) {
                const struct ask end = {.prompt = PROMPT, .max_new = at - 40};
                const struct ask *q = i == 0 ? &eos : i == 1 ? &stop : &end;
                struct mdl *m = fake_new(1024, 2, 128);
                struct rig *r;

                plain(q, script, false, &want);
                m->script = script;
                r = rig_new(m, 8, drafter, 0);
                submit(r, 1, q);
                run(r);
                equals(&r->a[1], &want);
                assert_int_equal(want.finish, i < 2 ? 1 : 2);
                rig_free(r);
            }
    }
}

/* Few pages: sequences are parked and go on, guesses and all. */
static void parked_and_gone_on(void **s)
{
    static struct answer want[6];
    struct mdl *m = fake_new(1024, 6, 64);
    struct rig *r;

    (void)s;
    for (uint32_t c = 0; c < m->geo.n_classes; c++)
        m->geo.cls[c].n_pages = 70;
    r = rig_new(m, 4, true, 2);
    for (uint32_t i = 0; i < 6; i++) {
        const char *const prompts[] = {"a" PROMPT, "b" PROMPT, "c" PROMPT,
                                       "d" PROMPT, "e" PROMPT, "f" PROMPT};
        const struct ask q = {.prompt = prompts[i], .max_new = 390, .cached = i % 2 == 0};

        plain(&q, NULL, false, &want[i]);
        submit(r, i + 1, &q);
    }
    run(r);
    assert_true(r->e->n_parked > 0);
    for (uint32_t i = 0; i < 6; i++)
        equals(&r->a[i + 1], &want[i]);
    rig_free(r);
}

/* A request says how it is guessed for, and k; its neighbours are not asked. */
static void requests_choose_for_themselves(void **s)
{
    static const struct {
        uint32_t spec, most;
        bool drafter;
        uint32_t least_right, most_right, most_calls; /* of answers of 64, and of the drafter */
    } rows[] = {
        {0, 0, true, 40, 64, 64},
        {WRK_SPEC_OFF, 0, true, 0, 0, 0},
        {WRK_SPEC_LOOKUP, 0, true, 0, 0, 0}, /* nothing in this text comes twice */
        {WRK_SPEC_MTP, 0, true, 40, 64, 64},
        {WRK_SPEC_MTP, 1, true, 30, 32, 64},
        {0, 2, true, 38, 44, 64},
        {WRK_SPEC_LOOKUP, 8, false, 0, 0, 0},
        {WRK_SPEC_OFF, 8, false, 0, 0, 0},
    };
    static struct answer want, beside_want;
    struct ask q = asks[0];

    (void)s;
    plain(&asks[0], NULL, false, &want);
    plain(&asks[1], NULL, false, &beside_want);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int beside = 0; beside < 2; beside++) {
            struct rig *r = rig_new(fake_new(1024, 2, 128), 4, rows[i].drafter, 0);

            q.spec = rows[i].spec;
            q.most = rows[i].most;
            submit(r, 1, &q);
            if (beside)
                submit(r, 2, &asks[1]);
            run(r);
            equals(&r->a[1], &want);
            if (r->a[1].right < rows[i].least_right || r->a[1].right > rows[i].most_right)
                fail_msg("row %zu: %u guesses were right", i, r->a[1].right);
            if (!beside && rows[i].drafter && r->drafter->n_draft_calls > rows[i].most_calls)
                fail_msg("row %zu: the drafter was asked %u times", i, r->drafter->n_draft_calls);
            if (beside) {
                equals(&r->a[2], &beside_want);
                assert_true(!rows[i].drafter || r->a[2].right > 0);
            }
            rig_free(r);
        }
}

/* Where the text repeats itself a lookup is right, also beside a drafter that never is. */
static void a_lookup_can_be_asked_for_where_there_is_a_drafter(void **s)
{
    const struct ask q = {.prompt = PROMPT, .max_new = 200, .spec = WRK_SPEC_LOOKUP, .most = 3};
    static struct answer want;
    struct mdl *m = fake_new(1024, 2, 128);
    struct rig *r;

    (void)s;
    for (int i = 0; i < 1024; i++)
        looped[i] = FAKE_BYTE('a' + i % 7);
    plain(&q, looped, false, &want);
    m->script = looped;
    r = rig_new(m, 8, true, 8);
    submit(r, 1, &q);
    run(r);
    equals(&r->a[1], &want);
    assert_true(r->a[1].right > 120 && r->a[1].right <= 150); /* three of four, at most */
    assert_int_equal(r->drafter->n_draft_calls, 0);
    rig_free(r);
}

static void what_the_engine_has_not_is_refused(void **s)
{
    static const struct {
        uint32_t spec, most, engine;
        bool drafter, taken;
    } rows[] = {
        {WRK_SPEC_MTP, 0, 4, false, false},
        {WRK_SPEC_MTP, 0, 0, false, false},
        {WRK_SPEC_LOOKUP, 0, 0, false, false},
        {4, 0, 4, true, false},
        {0, 9, 4, true, false},
        {WRK_SPEC_OFF, 8, 0, false, true},
        {0, 8, 0, false, true},
        {WRK_SPEC_MTP, 8, 4, true, true},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig *r = rig_new(fake_new(1024, 2, 128), rows[i].engine, rows[i].drafter, 0);
        struct ask q = asks[0];

        q.spec = rows[i].spec;
        q.most = rows[i].most;
        submit(r, 1, &q);
        run(r);
        if (r->a[1].rc != (rows[i].taken ? RC_OK : RC_INVALID) || !r->a[1].ended)
            fail_msg("row %zu: %s", i, rc_name(r->a[1].rc));
        rig_free(r);
    }
}

static void a_failing_drafter_is_given_up(void **s)
{
    static struct answer want;
    struct rig *r = rig_new(fake_new(1024, 2, 128), 4, true, 0);
    struct ask q = asks[1];

    (void)s;
    plain(&asks[1], NULL, false, &want);
    submit(r, 1, &asks[1]);
    for (int i = 0; i < 6; i++)
        step(r);
    assert_true(r->drafter->n_draft_calls > 0);
    r->drafter->fail_pass = true;
    run(r);
    equals(&r->a[1], &want);
    assert_int_equal(r->e->spec.mode, WRK_SPEC_LOOKUP);
    r->a[1] = (struct answer){0}; /* nor is a later request refused that asks for it */
    q.spec = WRK_SPEC_MTP;
    submit(r, 1, &q);
    run(r);
    equals(&r->a[1], &want);
    rig_free(r);
}

/* The drafter's file shrank: as with the model's own, nobody reads on. */
static void a_drafter_whose_weights_vanish_ends_the_worker(void **s)
{
    struct rig *r = rig_new(fake_new(1024, 2, 128), 4, true, 0);

    (void)s;
    submit(r, 1, &asks[0]);
    step(r);
    r->drafter->fail_guard = true;
    assert_int_equal(wrk_engine_step(r->e, NULL), RC_WEIGHT_IO);
    assert_false(wrk_engine_busy(r->e));
    rig_free(r);
}

/* Pearson's statistic of tokens drawn with guesses against those expected: the first tokens
 * of many seeds, of which the drafter guesses one that is likely. */
static void what_is_drawn_keeps_its_distribution(void **s)
{
    struct ask q = {.prompt = "x", .max_new = 3, .temperature = 4, .top_k = 4};
    uint32_t seen[FAKE_VOCAB] = {0}, plain_seen[FAKE_VOCAB] = {0}, kinds = 0;
    double chi2 = 0;

    (void)s;
    for (uint32_t seed = 0; seed < 3000; seed++) {
        struct rig *r;

        q.seed = seed;
        r = rig_new(fake_new(64, 1, 16), 2, true, 0);
        submit(r, 1, &q);
        run(r);
        seen[r->a[1].ids[1]]++;
        rig_free(r);
        q.seed = 1000000 + seed; /* others: two samples of one distribution */
        r = rig_new(fake_new(64, 1, 16), 0, false, 0);
        submit(r, 1, &q);
        run(r);
        plain_seen[r->a[1].ids[1]]++;
        rig_free(r);
    }
    for (int v = 0; v < FAKE_VOCAB; v++) {
        double a = seen[v], b = plain_seen[v];

        if (a + b < 10)
            continue;
        kinds++;
        chi2 += (a - b) * (a - b) / (a + b);
    }
    assert_true(kinds > 4);
    /* far beyond the 99.9 % point of chi-square at these degrees of freedom */
    if (chi2 > kinds + 3.1 * sqrt(2.0 * kinds) + 6)
        fail_msg("chi-square %.1f with %u kinds of tokens", chi2, kinds);
}

/* -------------------------------------------------------------- the arithmetic */

static void guessing_stops_where_it_does_not_pay(void **state)
{
    struct wrk_spec s = {.mode = WRK_SPEC_LOOKUP, .most = 4};
    uint32_t n_spec = 0;

    (void)state;
    for (int i = 0; i < 2000; i++) {
        uint32_t k = wrk_spec_want(&s, 1);

        n_spec += k > 0;
        wrk_spec_pass(&s, k > 0 ? 300 : 100, 1, k, k > 0 ? 2 : 1);
    }
    assert_true(wrk_spec_rests(&s));
    assert_true(n_spec < 2000 / WRK_SPEC_PROBE + 2 * WRK_SPEC_TRIAL);
    assert_true(n_spec >= 2000 / WRK_SPEC_PROBE);
    for (int i = 0; i < 4000; i++) { /* now it does: one pass in 64 finds out */
        uint32_t k = wrk_spec_want(&s, 1);

        wrk_spec_pass(&s, k > 0 ? 150 : 100, 1, k, k > 0 ? 3 : 1);
    }
    assert_false(wrk_spec_rests(&s));
    assert_true(wrk_spec_gain(&s) > 1.9 && wrk_spec_gain(&s) < 2.1);
    assert_int_equal(wrk_spec_want(&s, 64), 0); /* no rows left for so many */
    s.mode = WRK_SPEC_OFF;
    assert_int_equal(wrk_spec_want(&s, 1), 0);
}

static void lookups_find_the_last_place(void **state)
{
    const int32_t a[] = {1, 2, 3, 9, 8, 1, 2, 3, 7, 6, 5}, b[] = {4, 1, 2, 3};
    const struct wrk_text t = {a, b, 11};
    int32_t out[8];

    (void)state;
    assert_int_equal(wrk_spec_lookup(&t, 15, 4, out), 4);
    assert_int_equal(out[0], 7); /* not 9: the later place */
    assert_int_equal(out[3], 4);
    assert_int_equal(wrk_spec_lookup(&t, 12, 4, out), 0);
    assert_int_equal(wrk_spec_lookup(&t, 2, 4, out), 0);
    assert_int_equal(wrk_spec_lookup(&t, 0, 4, out), 0);
    assert_int_equal(
        wrk_spec_lookup(&(struct wrk_text){(int32_t[]){5, 6, 5, 6}, NULL, 4}, 4, 5, out),
        5); /* a loop goes on */
    assert_int_equal(out[0], 5);
    assert_int_equal(out[4], 5);
    assert_int_equal(wrk_spec_next(4, 4), 8);
    assert_int_equal(wrk_spec_next(8, 8), 8);
    assert_int_equal(wrk_spec_next(4, 0), 1);
    assert_int_equal(wrk_spec_next(4, 2), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_with_guesses_equal_plain_ones),
        cmocka_unit_test(beside_others_and_from_the_cache),
        cmocka_unit_test(drawn_on_a_device),
        cmocka_unit_test(what_was_said_before_is_looked_up),
        cmocka_unit_test(ends_inside_a_guess),
        cmocka_unit_test(parked_and_gone_on),
        cmocka_unit_test(requests_choose_for_themselves),
        cmocka_unit_test(a_lookup_can_be_asked_for_where_there_is_a_drafter),
        cmocka_unit_test(what_the_engine_has_not_is_refused),
        cmocka_unit_test(a_failing_drafter_is_given_up),
        cmocka_unit_test(a_drafter_whose_weights_vanish_ends_the_worker),
        cmocka_unit_test(what_is_drawn_keeps_its_distribution),
        cmocka_unit_test(guessing_stops_where_it_does_not_pay),
        cmocka_unit_test(lookups_find_the_last_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
