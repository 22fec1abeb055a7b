/* test_wrk_engine_texts.c - tasks that are texts: embeddings, what is refused, long ones, and
 * the questions of the tokenizer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/engine_ask.h"
#include "wrk_engine_impl.h"

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

static void a_pass_takes_as_many_rows_as_the_model_has_room_for(void **state)
{
    static const struct {
        uint32_t encode_rows, n_passes, most;
    } rows[] = {{0, 8, 16}, {64, 2, 64}, {200, 1, 128}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mdl *m = fake_new(16, 2, 8);
        struct embed q = {0};
        struct rig r;

        m->encode_rows = rows[i].encode_rows;
        r = rig_new(m, 8);
        for (int k = 0; k < 16; k++)
            q.text[k] = "8 tokens";
        embed(&r, 1, &q);
        run(&r);
        assert_int_equal(r.a[1].rc, RC_OK);
        assert_int_equal(r.m->n_encodes, rows[i].n_passes);
        assert_int_equal(r.m->most_encode_rows, rows[i].most);
        rig_free(&r);
    }
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

/* While clients come back a pass waits for all of them; for nobody else, and not for long. */
static void a_pass_waits_for_those_just_answered(void **state)
{
    struct rig r = rig_new(fake_new(64, 2, 64), 64);
    struct embed q = {.text = {"one text"}}, full = {.text = {0}};
    struct gen g = {.prompt = "beside", .max_tokens = 3};

    (void)state;
    for (int i = 0; i < 9; i++)
        full.text[i] = "a text of fifteen";
    r.e->o.embed_wait_ms = 10000;
    embed(&r, 1, &q);
    step(&r);
    assert_int_equal(r.m->n_encodes, 1); /* nothing was before it */
    r.e->pass_us = 10000000;             /* as if it had taken so long */
    embed(&r, 2, &q);
    step(&r);
    assert_int_equal(r.m->n_encodes, 2); /* everybody is back */
    embed(&r, 3, &q);
    embed(&r, 4, &q);
    step(&r);
    assert_int_equal(r.m->n_encodes, 3);
    r.e->pass_us = 10000000;
    embed(&r, 5, &q);
    for (int i = 0; i < 3; i++)
        step(&r);
    assert_int_equal(r.m->n_encodes, 3); /* one of two is missing */
    assert_int_equal(wrk_engine_rest_ms(r.e), 1);
    embed(&r, 6, &q);
    step(&r);
    assert_int_equal(r.m->n_encodes, 4);
    assert_int_equal(wrk_engine_rest_ms(r.e), 0);
    assert_true(r.a[5].ended && r.a[6].ended);
    r.e->pass_us = 10000000;
    embed(&r, 7, &full); /* a full pass needs nobody */
    step(&r);
    assert_int_equal(r.m->n_encodes, 5);
    run(&r);
    embed(&r, 8, &q);
    embed(&r, 9, &q);
    step(&r);
    r.e->pass_us = 10000000;
    embed(&r, 10, &q);
    step(&r);
    assert_false(r.a[10].ended);
    generate(&r, 11, &g); /* who generates is not kept waiting */
    step(&r);
    assert_true(r.a[10].ended);
    run(&r);
    embed(&r, 12, &q);
    embed(&r, 13, &q);
    step(&r);
    r.e->pass_us = 10000000;
    embed(&r, 14, &q);
    step(&r);
    assert_false(r.a[14].ended);
    r.e->pass_end_us -= 10000000; /* the time is over */
    step(&r);
    assert_true(r.a[14].ended);
    assert_int_equal(r.e->n_embed_waits, 3);
    rig_free(&r);
}

static void a_text_is_cut_into_pieces(void **state)
{
    struct rig r = rig_new(fake_new(64, 2, 64), 8);
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Chunk c = IPC__CHUNK__INIT;

    (void)state;
    c.text.data = (uint8_t *)"One. Tw\xc3\xb6!";
    c.text.len = 10;
    c.target_tokens = 6;
    c.max_chunks = 3;
    c.sentences = true;
    f.task = 1;
    f.body_case = IPC__FRAME__BODY_CHUNK;
    f.chunk = &c;
    submit(&r, &f);
    c.max_chunks = 1;
    f.task = 2;
    submit(&r, &f);
    c.overlap_tokens = 6;
    f.task = 3;
    submit(&r, &f);
    c.overlap_tokens = 0;
    c.text.data = (uint8_t *)"\x02\x02\x02\x02\x02\x02";
    c.text.len = 6;
    c.deadline_us = wrk_now_us() + 40000;
    f.task = 4;
    submit(&r, &f);
    run(&r);
    assert_int_equal(r.a[1].completion_tokens, 2);
    assert_int_equal(r.a[1].prompt_tokens, 10);
    assert_int_equal(r.a[1].n_tokens[0], 5);
    assert_int_equal(r.a[1].n_tokens[1], 5);
    assert_int_equal(r.a[1].n_media[1], 5);
    assert_false(r.a[1].truncated[0]);
    assert_int_equal(r.a[2].completion_tokens, 1);
    assert_true(r.a[2].truncated[0]);
    assert_int_equal(r.a[3].rc, RC_INVALID);
    assert_string_equal(r.a[3].err.what, "overlap_tokens");
    assert_int_equal(r.a[4].rc, RC_DEADLINE);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_come_back_in_request_order),
        cmocka_unit_test(item_errors_stay_with_their_item),
        cmocka_unit_test(a_pass_takes_as_many_rows_as_the_model_has_room_for),
        cmocka_unit_test(cut_vectors_have_length_one),
        cmocka_unit_test(requests_out_of_range_are_refused_by_name),
        cmocka_unit_test(a_piece_without_a_vector_fails_its_request_alone),
        cmocka_unit_test(a_long_text_neither_stops_others_nor_hides_its_cancel),
        cmocka_unit_test(tokenize_and_detokenize),
        cmocka_unit_test(a_pass_waits_for_those_just_answered),
        cmocka_unit_test(a_text_is_cut_into_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
