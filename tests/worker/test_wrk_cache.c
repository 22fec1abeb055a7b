/* test_wrk_cache.c - prompt cache, single flight and parking inside the engine.
 *
 * The scripted model reads every token back through the page tables (fake_mdl.h), so a
 * page that is not what computing would have written changes the answer. Each answer
 * is compared, to the bit, with the one a fresh engine gives to that request alone
 * and without a cache.
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

/* ---------------------------------------------------------- failing allocations */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FAILS_ALLOCATIONS 1
static unsigned fail_at, n_allocs; /* fail_at 0 = never; 1 = the next */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
static bool failing(void)
{
    n_allocs++;
    return fail_at > 0 && --fail_at == 0;
}
void *malloc(size_t n)
{
    return failing() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t m)
{
    return failing() ? NULL : __libc_calloc(n, m);
}
#endif

/* ------------------------------------------------------------------------ rig */

#define TASKS 256
#define ANSWER 640
struct answer {
    uint32_t ids[ANSWER], n, cached, prompt_tokens, n_echo;
    float lp[ANSWER];
    enum rc rc;
    bool ended;
};
struct rig {
    struct mdl *m;
    struct wrk_engine *e;
    struct wrk_chan chan;
    int fd;
    struct answer a[TASKS];
};
struct ask {
    int32_t ids[2048];
    uint32_t n, max_new, choices;
    uint8_t ns; /* 0 = no cache */
    float temperature;
    bool echo;
    uint64_t deadline_us;
};

static struct rig *rig_new(struct mdl *m, uint64_t budget)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct wrk_engine_opts o = {.mdl = m,
                                .chan = &r->chan,
                                .max_seqs = m->max_seqs,
                                .batch_tokens = m->batch_tokens,
                                .max_queue = TASKS,
                                .cache_bytes = budget,
                                .cache_min_tokens = 20};
    r->m = m;
    r->fd = engine_channel(&r->chan);
    assert_int_equal(wrk_engine_new(&r->e, &o, NULL), RC_OK);
    return r;
}

static void check_books(const struct rig *r)
{
    const char *why = wrk_radix_fault(&r->e->radix);

    if (why != NULL)
        fail_msg("%s", why);
}

/* Idle: pages and books are at their idle values exactly. */
static void rig_free(struct rig *r)
{
    const struct wrk_pages *p = &r->e->pages;

    assert_false(wrk_engine_busy(r->e));
    assert_int_equal(r->e->n_seqs, 0);
    check_books(r);
    assert_int_equal(wrk_pages_used_bytes(p), 0);
    for (uint32_t c = 0; c < p->n_classes; c++) {
        assert_int_equal(p->cls[c].n_reserved + p->cls[c].n_shared + p->cls[c].n_cached_held, 0);
        assert_int_equal(p->cls[c].n_free + p->cls[c].n_cached, p->cls[c].n_pages);
    }
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
    struct answer *a = &r->a[f->task];

    assert_true(f->task < TASKS);
    assert_false(a->ended);
    if (f->body_case == IPC__FRAME__BODY_DELTA) {
        for (size_t i = 0; i < f->delta->n_probs && !f->delta->is_prompt; i++)
            a->lp[a->n + i] = f->delta->probs[i]->logprob;
        a->n_echo += f->delta->is_prompt ? (uint32_t)f->delta->n_probs : 0;
        for (size_t i = 0; i < f->delta->n_tokens; i++)
            a->ids[a->n++] = f->delta->tokens[i];
        return;
    }
    a->ended = true;
    if (f->body_case == IPC__FRAME__BODY_ERROR) {
        a->rc = (enum rc)f->error->code;
        return;
    }
    assert_int_equal(f->body_case, IPC__FRAME__BODY_DONE);
    a->cached = f->done->cached_tokens;
    a->prompt_tokens = f->done->prompt_tokens;
}

static void step(struct rig *r)
{
    engine_step(r->e, &r->chan, r->fd, on_frame, r);
}

static void run(struct rig *r)
{
    for (int guard = 50000; wrk_engine_busy(r->e); guard--) {
        assert_true(guard > 0);
        step(r);
    }
    step(r); /* what the last step sent */
}

static void submit(struct rig *r, uint64_t task, const struct ask *q)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    uint8_t ns[WRK_NS_BYTES];

    memset(ns, q->ns, sizeof(ns));
    s.temperature = q->temperature;
    s.seed = 11;
    s.has_seed = true;
    g.sampling = &s;
    g.kind = 3;
    g.prompt_tokens = (uint32_t *)q->ids;
    g.n_prompt_tokens = q->n;
    g.max_tokens = q->max_new;
    g.n = q->choices;
    g.logprobs = g.return_token_ids = g.ignore_eos = true;
    g.echo = q->echo;
    g.stream = true;
    g.deadline_us = q->deadline_us;
    g.cache_ns.data = ns;
    g.cache_ns.len = q->ns != 0 ? sizeof(ns) : 0;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    assert_int_equal(engine_submit(r->e, &f), RC_OK);
}

static uint32_t rnd = 5;
static uint32_t below(uint32_t n)
{
    rnd = rnd * 1664525u + 1013904223u;
    return (rnd >> 8) % n;
}

/* n tokens; those of one `stem` begin alike for `common` tokens. */
static struct ask ask_of(uint32_t stem, uint32_t common, uint32_t own, uint32_t n, uint32_t max_new)
{
    struct ask q = {.n = n, .max_new = max_new, .ns = 1};

    for (uint32_t i = 0; i < n; i++)
        q.ids[i] = FAKE_BYTE('a' + (i < common ? (stem * 7 + i * i) % 26 : (own * 5 + i * 3) % 26));
    return q;
}

/* The answer a fresh engine gives to this alone, cold. */
static void cold(const struct ask *q, struct answer *out)
{
    struct rig *r = rig_new(fake_new(2048, 1, 512), 0);
    struct ask plain = *q;

    plain.ns = 0;
    plain.deadline_us = 0;
    submit(r, 1, &plain);
    run(r);
    *out = r->a[1];
    assert_int_equal(out->cached, 0);
    rig_free(r);
}

static void equals_cold(const struct rig *r, uint32_t task, const struct ask *q)
{
    struct answer want;
    const struct answer *got = &r->a[task];

    cold(q, &want);
    assert_true(got->ended);
    assert_int_equal(got->rc, RC_OK);
    assert_int_equal(got->n, want.n);
    assert_int_equal(got->n_echo, want.n_echo);
    for (uint32_t i = 0; i < want.n; i++)
        if (got->ids[i] != want.ids[i] || got->lp[i] != want.lp[i])
            fail_msg("task %u token %u: %u, cold %u", task, i, got->ids[i], want.ids[i]);
}

/* ---------------------------------------------------------------------- tests */

static void a_known_prompt_is_not_computed_again(void **st)
{
    static const uint32_t lens[] = {20, 32, 33, 100, 333, 1500};

    (void)st;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct rig *r = rig_new(fake_new(2048, 4, 64), UINT64_MAX);
        struct ask q = ask_of(1, lens[i], 0, lens[i], 30);
        uint32_t before;

        submit(r, 1, &q);
        run(r);
        before = r->m->n_rows;
        submit(r, 2, &q);
        run(r);
        equals_cold(r, 1, &q);
        equals_cold(r, 2, &q);
        assert_int_equal(r->a[1].cached, 0);
        assert_int_equal(r->a[2].cached, (lens[i] - 1) / 16 * 16);
        assert_int_equal(r->m->n_rows - before, lens[i] - r->a[2].cached + 29);
        assert_int_equal(r->e->radix.stats.hit_tokens, r->a[2].cached);
        assert_int_equal(r->e->radix.stats.miss_tokens, 2 * lens[i] - r->a[2].cached);
        rig_free(r);
    }
}

static void a_conversation_goes_on_from_its_last_answer(void **st)
{
    struct rig *r = rig_new(fake_new(2048, 4, 48), UINT64_MAX);
    struct ask q = ask_of(2, 100, 0, 100, 50);

    (void)st;
    for (uint32_t turn = 1; turn <= 8; turn++) {
        struct answer *a = &r->a[turn];

        submit(r, turn, &q);
        run(r);
        equals_cold(r, turn, &q);
        /* all but the last token of the answer are rows of the cache */
        if (turn > 1)
            assert_int_equal(a->cached, (q.n - 31) / 16 * 16);
        for (uint32_t i = 0; i < a->n; i++)
            q.ids[q.n++] = (int32_t)a->ids[i];
        for (uint32_t i = 0; i < 30; i++)
            q.ids[q.n++] = FAKE_BYTE('a' + (turn + i) % 26);
    }
    rig_free(r);
}

static void namespaces_share_nothing_and_the_uncached_leave_nothing(void **st)
{
    struct rig *r = rig_new(fake_new(1024, 4, 64), UINT64_MAX);
    struct ask q = ask_of(3, 200, 0, 200, 4);

    (void)st;
    q.ns = 0;
    submit(r, 1, &q);
    run(r);
    assert_int_equal(r->e->radix.n_used, 0);
    assert_int_equal(r->e->radix.stats.lookups, 0);
    for (uint32_t t = 2; t <= 7; t++) {
        q.ns = (uint8_t)(t % 3);
        submit(r, t, &q);
        run(r);
        assert_int_equal(r->a[t].cached, t > 4 && t % 3 != 0 ? 192 : 0);
        equals_cold(r, t, &q);
    }
    q = ask_of(3, 19, 0, 19, 4); /* below the least length */
    submit(r, 8, &q);
    submit(r, 9, &q);
    run(r);
    assert_int_equal(r->a[9].cached, 0);
    rig_free(r);
}

static void a_prefix_that_many_want_is_computed_once(void **st)
{
    struct rig *r = rig_new(fake_new(2048, 16, 64), UINT64_MAX);
    struct ask q[16];

    (void)st;
    for (uint32_t i = 0; i < 16; i++) {
        q[i] = ask_of(4, 512, i, 540, 8);
        q[i].temperature = i % 2 ? 0.8f : 0;
        submit(r, i + 1, &q[i]);
    }
    run(r);
    for (uint32_t i = 0; i < 16; i++) {
        equals_cold(r, i + 1, &q[i]);
        assert_int_equal(r->a[i + 1].cached, i == 0 ? 0 : 512);
    }
    /* the prefix once, each one's end, and seven more rows of each answer */
    assert_int_equal(r->m->n_rows, 512 + 16 * 28 + 16 * 7);
    rig_free(r);
}

static void who_waits_for_a_cancelled_one_goes_on_alone(void **st)
{
    (void)st;
    for (uint32_t when = 0; when < 8; when++) {
        struct rig *r = rig_new(fake_new(2048, 8, 64), UINT64_MAX);
        struct ask q[4];

        for (uint32_t i = 0; i < 4; i++) {
            q[i] = ask_of(5, 400, i, 430, 20);
            if (i == 1)
                q[i].deadline_us = wrk_now_us() + 60000000;
            submit(r, i + 1, &q[i]);
        }
        for (uint32_t k = 0; k < when; k++)
            step(r);
        assert_int_equal(wrk_engine_cancel(r->e, 1, NULL), RC_OK);
        step(r);
        assert_int_equal(r->a[1].rc, RC_CANCELLED); /* within one step */
        if (when == 3) {
            assert_int_equal(wrk_engine_cancel(r->e, 3, NULL), RC_OK); /* while it waits */
            step(r);
            assert_int_equal(r->a[3].rc, RC_CANCELLED);
        }
        check_books(r);
        run(r);
        for (uint32_t i = 1; i < 4; i++)
            if (when != 3 || i != 2)
                equals_cold(r, i + 1, &q[i]);
        rig_free(r);
    }
}

/* Every request fits alone, together they want many times the pool. */
static void a_small_pool_parks_and_everybody_ends(void **st)
{
    (void)st;
    for (uint32_t round = 0; round < 4; round++) {
        struct mdl *m = fake_new(2048, 6, 40);
        struct rig *r;
        struct ask q[10];
        int guard = 50000;

        m->geo.cls[1].n_pages = round < 2 ? 52 : 80; /* 832 or 1,280 tokens */
        m->geo.cls[0].n_pages = 60;
        r = rig_new(m, round % 2 ? UINT64_MAX : 0);
        for (uint32_t i = 0; i < 10; i++) {
            q[i] = ask_of(i, 30, i, 30 + i * 11, i % 5 == 4 ? 40 : 600 + i);
            q[i].temperature = i % 3 ? 0.7f : 0;
            submit(r, i + 1, &q[i]);
        }
        for (; wrk_engine_busy(r->e) && guard > 0; guard--) {
            step(r);
            check_books(r);
        }
        assert_true(guard > 0);
        step(r);
        assert_true(r->e->n_parked > 0);
        for (uint32_t i = 0; i < 10; i++)
            equals_cold(r, i + 1, &q[i]);
        rig_free(r);
    }
}

/* A sequence that is parked where a page ends has all its rows in the cache: it goes on with
 * its last token, and nothing is computed again. One row more or less is another page. */
static void parked_at_every_place_of_a_page(void **st)
{
    (void)st;
    for (uint32_t k = 0; k < FAKE_PAGE; k++) {
        struct mdl *m = fake_new(2048, 2, 64);
        struct ask q[2] = {ask_of(1, 0, 1, 40, 540), ask_of(2, 0, 2, 300, 300)};
        struct rig *r;
        struct wrk_seq *elder, *young;

        m->geo.cls[1].n_pages = 69; /* all that the elder may need does not fit beside the other */
        r = rig_new(m, UINT64_MAX);
        elder = &r->e->seq[0];
        young = &r->e->seq[1];
        q[1].temperature = k % 2 ? 0.7f : 0;
        submit(r, 1, &q[0]);
        step(r);
        submit(r, 2, &q[1]);
        do
            step(r);
        while (young->n_new < 2 || young->pos % FAKE_PAGE != k);
        assert_int_equal(r->e->n_parked, 0);
        wrk_seq_grow(r->e, elder, 600);
        assert_true(young->parked && !elder->parked);
        assert_int_equal(young->n_fill % FAKE_PAGE, k);
        while (young->parked) /* until the elder ends */
            step(r);
        /* the step that gave it pages has also run: the last page's rest was computed again,
         * and where there was none the token behind it was fed at once */
        assert_int_equal(young->pos, young->n_fill + (k == 0));
        assert_true(young->decoding);
        run(r);
        assert_int_equal(r->e->n_parked, 1);
        equals_cold(r, 1, &q[0]);
        equals_cold(r, 2, &q[1]);
        rig_free(r);
    }
}

static void a_budget_that_falls_is_heeded_at_once(void **st)
{
    struct rig *r = rig_new(fake_new(1024, 4, 64), UINT64_MAX);
    struct ask q = ask_of(6, 300, 0, 300, 10), other = ask_of(7, 300, 0, 300, 10);

    (void)st;
    submit(r, 1, &q);
    submit(r, 2, &other);
    run(r);
    assert_true(r->e->radix.used_bytes > 20 * 64);
    wrk_engine_cache_budget(r->e, 20 * 64);
    assert_true(r->e->radix.used_bytes <= 20 * 64);
    wrk_engine_cache_budget(r->e, 0);
    assert_int_equal(r->e->radix.used_bytes, 0);
    submit(r, 3, &q);
    run(r);
    assert_int_equal(r->a[3].cached, 0);
    assert_int_equal(r->e->radix.used_bytes, 0);
    wrk_engine_cache_budget(r->e, UINT64_MAX);
    submit(r, 4, &q);
    run(r);
    submit(r, 5, &q);
    for (int i = 0; i < 3; i++)
        step(r);
    wrk_engine_cache_budget(r->e, 0); /* while it is in use */
    run(r);
    assert_int_equal(r->a[5].cached, 288);
    equals_cold(r, 5, &q);
    assert_int_equal(r->e->radix.used_bytes, 0);
    rig_free(r);
}

static void echo_with_log_probabilities_computes_every_row(void **st)
{
    struct rig *r = rig_new(fake_new(1024, 4, 64), UINT64_MAX);
    struct ask q = ask_of(8, 200, 0, 200, 5);

    (void)st;
    submit(r, 1, &q);
    run(r);
    q.echo = true;
    submit(r, 2, &q);
    run(r);
    assert_int_equal(r->a[2].cached, 0);
    assert_int_equal(r->a[2].n_echo, 200);
    equals_cold(r, 2, &q);
    rig_free(r);
}

/* Conversations that branch, meet, are cut and come back, in a pool that is too small
 * for them: cached = cold, beside seven others = alone. */
static void random_conversations_equal_cold_ones(void **st)
{
    struct mdl *m = fake_new(2048, 8, 72);
    struct rig *r;
    static struct ask q[TASKS];
    uint32_t cut = 0, cached = 0;

    (void)st;
    m->geo.cls[1].n_pages = 150;
    m->geo.cls[0].n_pages = 90;
    r = rig_new(m, 8000);
    for (uint32_t t = 1; t < TASKS; t++) {
        uint32_t from = t > 1 ? 1 + below(t - 1) : 0;

        if (from > 0 && r->a[from].ended && r->a[from].rc == RC_OK && below(3) > 0 &&
            q[from].n + r->a[from].n < 900) { /* a turn after an earlier one */
            q[t] = q[from];
            for (uint32_t i = 0; i < r->a[from].n; i++)
                q[t].ids[q[t].n++] = (int32_t)r->a[from].ids[i];
            for (uint32_t i = below(60); i > 0; i--)
                q[t].ids[q[t].n++] = FAKE_BYTE('a' + below(26));
        } else {
            q[t] = ask_of(below(3), 20 + below(300), t, 20 + below(400), 0);
        }
        q[t].max_new = below(16) == 0 ? 500 : 1 + below(100);
        q[t].ns = (uint8_t)below(3);
        q[t].temperature = below(2) ? 0.9f : 0;
        submit(r, t, &q[t]);
        for (uint32_t k = below(12); k > 0; k--)
            step(r);
        if (below(12) == 0) {
            uint32_t victim = 1 + below(t);

            cut += !r->a[victim].ended;
            assert_int_equal(wrk_engine_cancel(r->e, victim, NULL), RC_OK);
        }
        if (below(20) == 0)
            wrk_engine_cache_budget(r->e, below(16000));
        check_books(r);
    }
    run(r);
    for (uint32_t t = 1; t < TASKS; t++) {
        assert_true(r->a[t].ended);
        if (r->a[t].rc == RC_CANCELLED)
            continue;
        equals_cold(r, t, &q[t]);
        cached += r->a[t].cached;
    }
    assert_true(cached > 1000 && cut > 3);
    assert_true(r->e->radix.stats.evicted[WRK_EVICT_SPACE] > 0);
    assert_true(r->e->radix.stats.evicted[WRK_EVICT_BUDGET] > 0);
    assert_true(r->e->n_parked > 0);
    rig_free(r);
}

/* Without room for the prefix nobody waits for long: all compute it, side by side. */
static void a_cache_without_room_holds_nobody_up(void **st)
{
    struct rig *r = rig_new(fake_new(2048, 8, 256), 6 * 128);
    struct ask q[8];

    (void)st;
    for (uint32_t i = 0; i < 8; i++) {
        q[i] = ask_of(9, 1024, i, 1040, 1);
        submit(r, i + 1, &q[i]);
    }
    run(r);
    for (uint32_t i = 0; i < 8; i++)
        equals_cold(r, i + 1, &q[i]);
    assert_true(r->e->radix.used_bytes <= 6 * 128);
    /* one and another alone, then the other six together */
    assert_true(r->m->n_passes <= 5 + 5 + 6 * 1040 / 256 + 8);
    rig_free(r);
}

/* On a slow machine a pass beside decoders has room for one prompt only: they take turns. */
static void a_short_prompt_takes_turns_with_a_long_one(void **st)
{
    (void)st;
    for (uint32_t slot = 1; slot < 3; slot++) {
        struct rig *r = rig_new(fake_new(2048, 16, 512), 0);
        struct ask decoder = ask_of(1, 5, 1, 5, 600), big = ask_of(2, 2000, 2, 2000, 1),
                   small = ask_of(3, 64, 3, 64, 1);
        uint32_t passes = 0;

        submit(r, 1, &decoder);
        step(r);
        submit(r, 2, slot == 1 ? &small : &big);
        submit(r, 3, slot == 1 ? &big : &small);
        for (uint32_t t = slot + 1; !r->a[t].ended; passes++) {
            r->e->pace = (struct wrk_pace){.decode_us = 1, .row_us = 1}; /* 16 rows */
            step(r);
        }
        assert_in_range(passes, 64 / WRK_PACE_LEAST, 2 * 64 / WRK_PACE_LEAST + 2);
        assert_false(r->a[slot == 1 ? 3 : 2].ended);
        run(r);
        equals_cold(r, slot + 1, &small);
        rig_free(r);
    }
}

static void many_choices_hold_nobody_up(void **st)
{
    struct rig *r = rig_new(fake_new(1024, 4, 64), 0);
    struct ask many = ask_of(1, 40, 1, 40, 40), one = ask_of(2, 40, 2, 40, 20);
    int steps = 0;

    (void)st;
    many.choices = 12;
    submit(r, 1, &many);
    for (int i = 0; i < 3; i++)
        step(r);
    for (uint32_t t = 2; t < 5; t++)
        submit(r, t, &one);
    for (; !r->a[4].ended; steps++)
        step(r);
    assert_false(r->a[1].ended);
    assert_true(steps < 40 + 2 * 20 + 8); /* a slot comes free, and no second round */
    run(r);
    assert_int_equal(r->a[1].n, 12 * 40);
    equals_cold(r, 4, &one);
    rig_free(r);
}

/* Admission fails at each of its allocations: the task hears it, the books stay right, and the
 * same request is answered afterwards. */
static void a_failed_allocation_ends_one_task_only(void **st)
{
    (void)st;
#ifdef FAILS_ALLOCATIONS
    struct rig *r = rig_new(fake_new(1024, 4, 64), UINT64_MAX);
    struct ask q = ask_of(10, 300, 0, 300, 300);
    uint32_t task = 1, failed = 0;

    submit(r, task, &q);
    run(r);
    for (unsigned k = 1; k < 60 && failed < 100; k++) {
        bool fired;

        submit(r, ++task, &q);
        fail_at = k;
        while (wrk_engine_busy(r->e) && fail_at > 0 && !r->a[task].ended)
            if (wrk_engine_step(r->e, NULL) != RC_OK)
                fail_msg("allocation %u ended the worker", k);
        fired = fail_at == 0;
        fail_at = 0;
        run(r);
        assert_true(r->a[task].ended);
        assert_true(r->a[task].rc == RC_OK || r->a[task].rc == RC_NOMEM ||
                    r->a[task].rc == RC_BUSY);
        failed += r->a[task].rc == RC_NOMEM;
        check_books(r);
        if (!fired)
            break;
    }
    assert_true(failed >= 5); /* tables, the answer, its text */
    submit(r, ++task, &q);
    run(r);
    assert_int_equal(r->a[task].cached, 288);
    equals_cold(r, task, &q);
    rig_free(r);
#else
    skip(); /* the sanitizer owns malloc */
#endif
}

/* Growing what is reserved, keeping checkpoints and ending included. */
static void steps_allocate_nothing(void **st)
{
    (void)st;
#ifdef FAILS_ALLOCATIONS
    struct rig *r = rig_new(fake_new(2048, 4, 64), UINT64_MAX);
    struct ask q[2] = {ask_of(11, 1200, 0, 1200, 1), ask_of(12, 100, 0, 100, 600)};
    unsigned seen = 0;

    submit(r, 1, &q[1]);
    for (int i = 0; i < 4; i++)
        step(r);
    submit(r, 2, &q[0]);
    step(r); /* admitted */
    while (wrk_engine_busy(r->e)) {
        unsigned before = n_allocs;

        assert_int_equal(wrk_engine_step(r->e, NULL), RC_OK);
        seen += n_allocs - before;
        step(r); /* and one whose frames are read */
    }
    assert_int_equal(seen, 0);
    assert_true(r->a[1].ended && r->a[2].ended && r->a[1].n == 600);
    assert_true(r->e->radix.used_bytes > 0);
    rig_free(r);
#else
    skip(); /* the sanitizer owns malloc */
#endif
}

static void a_namespace_of_another_length_is_refused(void **st)
{
    struct wrk_gen g = {.n = 0};
    struct mdl *m = fake_new(256, 1, 16);
    Ipc__Generate q = IPC__GENERATE__INIT;
    uint32_t ids[] = {20, 21};
    struct rc_err err = RC_ERR_INIT;

    (void)st;
    q.kind = 3;
    q.prompt_tokens = ids;
    q.n_prompt_tokens = 2;
    q.max_tokens = 1;
    q.cache_ns.data = (uint8_t *)ids;
    q.cache_ns.len = 8;
    assert_int_equal(wrk_gen_init(&g, &q, m, &err), RC_INVALID);
    assert_string_equal(err.what, "cache_ns");
    wrk_gen_deinit(&g);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_known_prompt_is_not_computed_again),
        cmocka_unit_test(a_conversation_goes_on_from_its_last_answer),
        cmocka_unit_test(namespaces_share_nothing_and_the_uncached_leave_nothing),
        cmocka_unit_test(a_prefix_that_many_want_is_computed_once),
        cmocka_unit_test(who_waits_for_a_cancelled_one_goes_on_alone),
        cmocka_unit_test(a_small_pool_parks_and_everybody_ends),
        cmocka_unit_test(parked_at_every_place_of_a_page),
        cmocka_unit_test(a_budget_that_falls_is_heeded_at_once),
        cmocka_unit_test(echo_with_log_probabilities_computes_every_row),
        cmocka_unit_test(random_conversations_equal_cold_ones),
        cmocka_unit_test(a_cache_without_room_holds_nobody_up),
        cmocka_unit_test(a_short_prompt_takes_turns_with_a_long_one),
        cmocka_unit_test(many_choices_hold_nobody_up),
        cmocka_unit_test(a_failed_allocation_ends_one_task_only),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(a_namespace_of_another_length_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
