/* test_sup_pass.c - a model is ready when its present worker has shown a forward pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_api_fake.h"

static int setup(void **state)
{
    fake_setup();
    T.fleet.models[0].pid = 100;
    T.fleet.models[0].loads = 1;
    return 0;
}

static int teardown(void **state)
{
    fake_teardown();
    return 0;
}

static unsigned ask(const char *model)
{
    fake_req_reset();
    T.req.query_model = model;
    fake_send_bytes("GET", "/readyz", "", 0);
    assert_true(T.req.done); /* a probe never waits */
    return T.req.status;
}

static void assert_has(const char *part)
{
    if (!strstr(fake_answer(), part))
        fail_msg("answer: %s\nlacks:  %s", fake_answer(), part);
}

static void play(unsigned ticket, Ipc__Frame__BodyCase body)
{
    Ipc__Frame fr = IPC__FRAME__INIT;

    fr.body_case = body; /* only its kind is looked at */
    fake_play(ticket, &fr);
}

static void wait_ms(unsigned ms)
{
    uint64_t end = uv_now(&T.front.loop) + ms;

    while (uv_now(&T.front.loop) < end) {
        uv_sleep(1);
        uv_update_time(&T.front.loop);
    }
}

static void test_unknown_and_unloaded(void **state)
{
    assert_int_equal(ask("nope"), 404);
    assert_has("\"error\":\"MODEL_NOT_FOUND\"");
    assert_int_equal(ask("org/minilm"), 503);
    assert_has("{\"status\":\"not_ready\",\"model\":\"org/minilm\",\"state\":\"absent\","
               "\"reason\":\"it is not loaded\"}");
    assert_int_equal(T.fleet.n_tickets, 0); /* nothing was loaded for it */
    assert_int_equal(T.fleet.n_loads, 0);
}

static void test_the_probe_starts_one_pass(void **state)
{
    const Ipc__Generate *q;

    assert_int_equal(ask("gemma"), 503);
    assert_has("its first forward pass has not ended");
    assert_int_equal(ask("gemma"), 503);
    assert_int_equal(T.fleet.n_tickets, 1);
    q = fake_ticket(0)->frame->generate;
    assert_int_equal(q->max_tokens, 1);
    assert_int_equal(q->n, 1);
    assert_true(fake_ticket(0)->task.deadline_us > 0);
    assert_int_equal(q->deadline_us, fake_ticket(0)->task.deadline_us);
    play(0, IPC__FRAME__BODY_DONE);
    fake_end(0, NULL, 0);
    assert_int_equal(ask("gemma"), 200);
    assert_string_equal(fake_answer(),
                        "{\"status\":\"ready\",\"model\":\"gemma\",\"state\":\"ready\"}");
    wait_ms(20);
    assert_int_equal(ask("gemma"), 200); /* and it stays: no second pass */
    assert_int_equal(T.fleet.n_tickets, 1);
    assert_true(sup_series_value(sup_series(T.front.metrics, SUP_M_PROBE_PASSES, "gemma", "ok")) ==
                1);
}

static void test_every_kind_of_model_is_tried(void **state)
{
    static const struct {
        const char *id;
        Ipc__Frame__BodyCase asks;
    } rows[] = {{"gemma", IPC__FRAME__BODY_GENERATE}, {"org/minilm", IPC__FRAME__BODY_EMBED},
                {"eg2", IPC__FRAME__BODY_EMBED},      {"ranker", IPC__FRAME__BODY_RERANK},
                {"m3", IPC__FRAME__BODY_EMBED},       {"gliner", IPC__FRAME__BODY_EXTRACT}};

    T.fleet.n_models = 6;
    for (unsigned i = 0; i < 6; i++) {
        T.fleet.models[i].state = "ready";
        T.fleet.models[i].pid = 100 + i;
        assert_int_equal(ask(rows[i].id), 503);
        assert_int_equal(T.fleet.n_tickets, i + 1);
        assert_int_equal(fake_ticket(i)->frame->body_case, rows[i].asks);
    }
    T.gemma.can_generate = false; /* able to nothing we know */
    fake_end(0, NULL, 0);
    T.fleet.models[0].pid = 7;
    assert_int_equal(ask("gemma"), 503);
    assert_has("could not begin: it has no task that could be tried");
}

static void test_a_clients_answer_counts(void **state)
{
    fake_post("/v1/completions", "{\"model\":\"gemma\",\"prompt\":\"a\"}");
    fake_delta(0, 0, "b", 0);
    fake_fail(0, RC_DEADLINE, "too slow", 0); /* which says nothing of the model */
    assert_int_equal(ask("gemma"), 200);
    assert_int_equal(T.fleet.n_tickets, 1);
}

static void test_a_tokenizer_is_no_pass(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Tokens t = IPC__TOKENS__INIT;

    fake_post("/ai/v1/tokenize", "{\"model\":\"gemma\",\"text\":\"a\"}");
    fr.body_case = IPC__FRAME__BODY_TOKENS;
    fr.tokens = &t;
    fake_play(0, &fr);
    fake_end(0, NULL, 0);
    assert_int_equal(ask("gemma"), 503);
}

static void test_a_new_worker_must_show_it_again(void **state)
{
    ask("gemma");
    play(0, IPC__FRAME__BODY_DELTA);
    fake_end(0, NULL, 0);
    assert_int_equal(ask("gemma"), 200);
    T.fleet.models[0].pid = 101;
    assert_int_equal(ask("gemma"), 503);
    assert_int_equal(T.fleet.n_tickets, 2);
    play(1, IPC__FRAME__BODY_DONE); /* within the second in which notes are not looked up */
    fake_end(1, NULL, 0);
    assert_int_equal(ask("gemma"), 200);
    T.fleet.models[0].state = "cooling";
    assert_int_equal(ask("gemma"), 503);
    assert_has("it is not loaded");
}

static void test_a_failure_is_told_and_tried_again(void **state)
{
    ask("gemma");
    fake_fail(0, RC_INTERNAL, "the device is lost", 0);
    assert_int_equal(ask("gemma"), 503);
    assert_has("\"reason\":\"its last forward pass failed: the device is lost\"");
    assert_int_equal(T.fleet.n_tickets, 1); /* not at once */
    wait_ms(SUP_PASS_RETRY_MS + 10);
    assert_int_equal(ask("gemma"), 503);
    assert_int_equal(T.fleet.n_tickets, 2);
    play(1, IPC__FRAME__BODY_DONE);
    fake_end(1, NULL, 0);
    assert_int_equal(ask("gemma"), 200);

    fake_req_reset();
    fake_post("/v1/completions", "{\"model\":\"gemma\",\"prompt\":\"a\"}");
    fake_fail(2, RC_CRASHED, "the worker died", 0);
    assert_int_equal(ask("gemma"), 503); /* a client's failure counts as well */
    assert_has("the worker died");
}

static void test_a_refused_pass(void **state)
{
    T.fleet.refuse = RC_BUSY;
    assert_int_equal(ask("gemma"), 503);
    assert_has("its first forward pass could not begin: refused by the fake");
    T.fleet.refuse = RC_OK;
    for (unsigned i = 0; i < 1000; i++) /* a flood of probes is no flood of attempts */
        assert_int_equal(ask("gemma"), 503);
    assert_has("could not begin");
    assert_int_equal(T.fleet.n_tickets, 0);
    assert_true(
        sup_series_value(sup_series(T.front.metrics, SUP_M_PROBE_PASSES, "gemma", "refused")) == 1);
    wait_ms(SUP_PASS_RETRY_MS);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(ask("gemma"), 503);
    assert_int_equal(T.fleet.n_tickets, 1);
    assert_true(fake_ticket(0)->task.probe);
    T.front.draining = true;
    assert_int_equal(ask("gemma"), 503);
    assert_has("shutting down");
}

static void test_rows_are_bounded(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    char id[32];

    fr.body_case = IPC__FRAME__BODY_DONE;
    ask("gemma"); /* its pass runs, and is cancelled when its row goes */
    for (unsigned i = 0; i < SUP_PASS_MODELS; i++) {
        snprintf(id, sizeof(id), "m%u", i);
        sup_pass_note(&T.front, id, &fr);
    }
    assert_int_equal(T.front.passes.n, SUP_PASS_MODELS);
    assert_true(T.fleet.tickets[0].cancelled);
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_unknown_and_unloaded),
        T_(test_the_probe_starts_one_pass),
        T_(test_every_kind_of_model_is_tried),
        T_(test_a_clients_answer_counts),
        T_(test_a_tokenizer_is_no_pass),
        T_(test_a_new_worker_must_show_it_again),
        T_(test_a_failure_is_told_and_tried_again),
        T_(test_a_refused_pass),
        T_(test_rows_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
