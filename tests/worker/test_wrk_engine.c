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

#include "worker/engine_ask.h"
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
    run_long.deadline_us = wrk_now_us() + 300000; /* begins well before, ends long after */
    generate(&r, 1, &run_long);
    generate(&r, 2, &late);
    generate(&r, 3, &ok);
    step(&r);
    assert_int_equal(r.a[2].rc, RC_DEADLINE);
    assert_non_null(strstr(r.a[2].err.msg, "while it was queued"));
    usleep(310000);
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
        {"the other end of an answer", "ab|cd|<eot>", {0}, "abcd", 50, 1, 3, false},
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
        {"both ignored", "a|<eot>|<eos>|c", {0}, "ac", 4, 2, 4, true},
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
                } else if (strcmp(s, "<eot>") == 0) {
                    script[n++] = FAKE_EOT;
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
