/* test_sup_api_decisions.c - decisions: request to frame, refusals in words, frame to answer. */
#include "sup_api_test.h"

#define PATH "/ai/v1/decisions"
#define Q(rest) "{\"name\":\"r\",\"instructions\":\"I\"," rest "}"
#define AB "\"choices\":[{\"value\":\"a\"},{\"value\":\"b\",\"description\":\"d\"}]"
#define CHOICE Q("\"type\":\"choice\"," AB)
#define MULTI(rest) Q("\"type\":\"multi_choice\"," AB rest)

static void post(const char *rest)
{
    static char body[8192];

    fake_req_reset();
    snprintf(body, sizeof(body), "{\"model\":\"org/minilm\",%s}", rest);
    fake_post(PATH, body);
}

static const Ipc__Decide *asked(const char *rest)
{
    unsigned n = T.fleet.n_tickets;

    post(rest);
    if (T.fleet.n_tickets != n + 1)
        fail_msg("%s: %s", rest, fake_answer());
    return fake_ticket(n)->frame->decide;
}

static void test_a_request_becomes_a_frame(void **state)
{
    const Ipc__Decide *d = asked(
        "\"input\":\"text\",\"embedding_options\":{\"task_type\":\"CLASSIFICATION\",\"dimensions\":"
        "3},"
        "\"model_identity\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","
        "\"timeout_ms\":1000,\"questions\":["
        "{\"name\":\"r\",\"type\":\"choice\",\"instructions\":\"Route.\",\"choices\":["
        "{\"value\":\"a\",\"description\":\"x\",\"examples\":[\"1\",\"22\"]},{\"value\":\"b\"},"
        "{\"value\":\"c\",\"description\":null,\"examples\":null}],"
        "\"embedding_options\":{\"min_similarity\":-0.5,\"min_margin\":0}},"
        "{\"name\":\"t\",\"type\":\"multi_choice\",\"instructions\":\"Tag.\",\"choices\":["
        "{\"value\":\"a\"},{\"value\":\"b\"}],\"similarity_thresholds\":{\"b\":1,\"a\":-1},"
        "\"embedding_options\":{\"min_margin\":2}},"
        "{\"name\":\"u\",\"type\":\"multi_choice\",\"instructions\":\"Tag.\",\"choices\":["
        "{\"value\":\"a\"},{\"value\":\"b\"}],\"similarity_thresholds\":0.25},"
        "{\"name\":\"v\",\"type\":\"multi_choice\",\"instructions\":\"Tag.\",\"choices\":["
        "{\"value\":\"a\"},{\"value\":\"b\"}],\"embedding_options\":{\"calibration_id\":\"Ab_1-\"}}"
        "]");

    (void)state;
    assert_int_equal(d->n_inputs, 1);
    assert_true(is(d->inputs[0], "text"));
    assert_string_equal(d->task_type, "CLASSIFICATION");
    assert_int_equal(d->dimensions, 3);
    assert_int_equal(strlen(d->model_identity), 64);
    assert_int_equal(d->deadline_us, 5000000 + 1000 * 1000);
    assert_int_equal(d->n_questions, 4);
    assert_int_equal(d->questions[0]->kind, 1);
    assert_true(is(d->questions[0]->instructions, "Route."));
    assert_int_equal(d->questions[0]->n_choices, 3);
    assert_int_equal(d->questions[0]->choices[0]->n_examples, 2);
    assert_true(is(d->questions[0]->choices[0]->examples[1], "22"));
    assert_true(is(d->questions[0]->choices[0]->description, "x"));
    assert_true(is(d->questions[0]->choices[2]->value, "c"));
    assert_true(d->questions[0]->has_min_similarity && d->questions[0]->min_similarity == -0.5);
    assert_true(d->questions[0]->has_min_margin && d->questions[0]->min_margin == 0);
    assert_int_equal(d->questions[0]->n_thresholds, 0);
    assert_int_equal(d->questions[1]->kind, 2);
    assert_true(d->questions[1]->thresholds[0] == -1 && d->questions[1]->thresholds[1] == 1);
    assert_true(d->questions[1]->has_min_margin && d->questions[1]->min_margin == 2);
    assert_int_equal(d->questions[2]->n_thresholds, 2);
    assert_true(d->questions[2]->thresholds[1] == 0.25);
    assert_string_equal(d->questions[3]->calibration_id, "Ab_1-");
    assert_int_equal(d->questions[3]->n_thresholds, 0);
    fake_fail(0, RC_CONFLICT, "another model", 0);
    assert_int_equal(T.req.status, 409);
}

static void test_refusals_say_what_was_expected(void **state)
{
    static const struct {
        const char *rest, *says;
    } rows[] = {
        {"\"input\":\"t\"", "'questions': missing"},
        {"\"input\":\"t\",\"questions\":[]", "1 to 64 questions"},
        {"\"input\":\"t\",\"questions\":[3]", "'questions[0]': got 3"},
        {"\"questions\":[" CHOICE "]", "expected it or 'inputs'"},
        {"\"input\":\"t\",\"inputs\":[{\"input\":\"t\"}],\"questions\":[" CHOICE "]", "got both"},
        {"\"input\":\"\",\"questions\":[" CHOICE "]",
         "got an empty string, expected a string of 1"},
        {"\"input\":[\"t\"],\"questions\":[" CHOICE "]", "'input': got an array"},
        {"\"inputs\":[],\"questions\":[" CHOICE "]", "'inputs': got an empty array"},
        {"\"inputs\":{},\"questions\":[" CHOICE "]", "'inputs': got an object"},
        {"\"inputs\":[{\"input\":\"t\"},{\"id\":\"x\"}],\"questions\":[" CHOICE "]",
         "'inputs[1].input': missing"},
        {"\"inputs\":[\"t\"],\"questions\":[" CHOICE "]", "'inputs[0]': got"},
        {"\"inputs\":[{\"id\":3,\"input\":\"t\"}],\"questions\":[" CHOICE "]", "'inputs[0].id'"},
        {"\"inputs\":[{\"text\":\"t\"}],\"questions\":[" CHOICE "]",
         "'inputs[0].text': not a field"},
        {"\"input\":\"t\",\"threshold\":1,\"questions\":[" CHOICE "]", "'threshold': not a field"},
        {"\"input\":\"t\",\"questions\":[" CHOICE "," CHOICE "]",
         "'questions[1].name': another question"},
        {"\"input\":\"t\",\"questions\":[" CHOICE "],\"embedding_options\":{\"min_margin\":1}",
         "'embedding_options.min_margin': not a field"},
        {"\"input\":\"t\",\"questions\":[" CHOICE "],\"embedding_options\":{\"dimensions\":5}",
         "1 to 4"},
        {"\"input\":\"t\",\"questions\":[" CHOICE
         "],\"embedding_options\":{\"task_type\":\"RETRIEVAL_QUERY\"}",
         "CLUSTERING|CLASSIFICATION"},
        {"\"input\":\"t\",\"questions\":[" CHOICE "],\"model_identity\":\"0A\"", "64 lowercase"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"score\",\"levels\":[]") "]",
         "trained deciders only"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"predicate\"") "]",
         "trained deciders only"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"guess\"," AB) "]", "choice|multi_choice"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"choice\"") "]",
         "'questions[0].choices': missing"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"choice\",\"levels\":[]," AB) "]",
         "levels"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"choices\":[{\"value\":\"a\"}]") "]",
         "2 to 64 choices"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"choices\":[{\"value\":\"a\"},{\"value\":\"a\"}]") "]",
         "choices[1].value': another choice"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"choices\":[{\"value\":\"a\"},{\"value\":\"\"}]") "]",
         "choices[1].value': got an empty"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"choices\":[{\"value\":\"a\"},7]") "]",
         "'questions[0].choices[1]': got 7"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"choices\":[{\"value\":\"a\"},{\"value\":\"b\",\"x\":1}]") "]",
         "choices[1].x': not a field"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"choice\",\"choices\":[{\"value\":\"a\","
                                             "\"examples\":[]},{\"value\":\"b\"}]") "]",
         "1 to 32"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"choice\",\"choices\":[{\"value\":\"a\","
                                             "\"examples\":[\"\"]},{\"value\":\"b\"}]") "]",
         "examples[0]': got an empty string"},
        {"\"input\":\"t\",\"questions\":[{\"type\":\"choice\",\"instructions\":\"I\"," AB "}]",
         "name': missing"},
        {"\"input\":\"t\",\"questions\":[{\"type\":\"choice\",\"name\":\"n\"," AB "}]",
         "instructions': missing"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"choice\",\"min_margin\":1," AB) "]",
         "min_margin': not a field"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"embedding_options\":{\"min_margin\":3}," AB) "]",
         "a number from 0 to 2"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"embedding_options\":{\"min_similarity\":-1.5}," AB) "]",
         "a number from -1 to 1"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"embedding_options\":{\"task_type\":\"CLUSTERING\"}," AB) "]",
         "task_type': not a field"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"embedding_options\":{\"calibration_id\":\"a/b\"}," AB) "]",
         "letters, digits"},
        {"\"input\":\"t\",\"questions\":[" Q("\"type\":\"choice\",\"embedding_options\":{"
                                             "\"calibration_id\":\"a\",\"min_margin\":1}," AB) "]",
         "expected no other"},
        {"\"input\":\"t\",\"questions\":[" Q(
             "\"type\":\"choice\",\"similarity_thresholds\":0.5," AB) "]",
         "belongs to type multi_choice"},
        {"\"input\":\"t\",\"questions\":[" MULTI("") "]", "similarity_thresholds': missing"},
        {"\"input\":\"t\",\"questions\":[" MULTI(",\"similarity_thresholds\":1.5") "]",
         "a number from -1 to 1"},
        {"\"input\":\"t\",\"questions\":[" MULTI(",\"similarity_thresholds\":\"x\"") "]",
         "one for every value"},
        {"\"input\":\"t\",\"questions\":[" MULTI(",\"similarity_thresholds\":{\"a\":0}") "]",
         "similarity_thresholds.b': got null"},
        {"\"input\":\"t\",\"questions\":[" MULTI(
             ",\"similarity_thresholds\":{\"a\":0,\"b\":0,\"c\":0}") "]",
         "no values of this question"},
        {"\"input\":\"t\",\"questions\":[" MULTI(
             ",\"similarity_thresholds\":0,\"embedding_options\":{\"min_similarity\":0}") "]",
         "belongs to type choice"},
        {"\"input\":\"t\",\"questions\":[" MULTI(
             ",\"similarity_thresholds\":0,\"embedding_options\":{\"calibration_id\":\"a\"}") "]",
         "expected no other"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        post(rows[i].rest);
        if (T.req.status != 400 || !strstr(fake_answer(), "\"error\":\"INVALID_REQUEST\""))
            fail_msg("%s: %u %s", rows[i].rest, T.req.status, fake_answer());
        assert_has(rows[i].says);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
    fake_req_reset();
    fake_post(PATH, "{\"model\":\"gemma\",\"input\":\"t\",\"questions\":[" CHOICE "]}");
    assert_has("INVALID_MODEL");
}

/* {"input": n bytes of é, a question whose instructions have m bytes, k inputs of both} */
static char *large(size_t n_chars, size_t n_instructions, unsigned n_inputs, unsigned n_questions)
{
    char *body =
             calloc(1, 1000 + n_inputs * (2 * n_chars + 32) + n_questions * (n_instructions + 200)),
         *at = body;

    at += sprintf(at, "{\"model\":\"org/minilm\",\"inputs\":[");
    for (unsigned i = 0; i < n_inputs; i++) {
        at += sprintf(at, "%s{\"input\":\"", i ? "," : "");
        for (size_t k = 0; k < n_chars; k++)
            at += sprintf(at, "\xc3\xa9");
        at += sprintf(at, "\"}");
    }
    at += sprintf(at, "],\"questions\":[");
    for (unsigned i = 0; i < n_questions; i++) {
        at += sprintf(at, "%s{\"name\":\"%u\",\"type\":\"choice\"," AB ",\"instructions\":\"",
                      i ? "," : "", i);
        memset(at, 'i', n_instructions);
        at += n_instructions;
        at += sprintf(at, "\"}");
    }
    sprintf(at, "]}");
    return body;
}

static void test_bounds_of_the_work(void **state)
{
    static const struct {
        size_t chars, instructions;
        unsigned inputs, questions, status;
        const char *says;
    } rows[] = {
        {1, 1, 62, 64, 0, ""},                      /* 64 * (62 + 2) = 4096 texts */
        {1, 1, 63, 64, 413, "4160 texts to embed"}, /* one input more */
        {1, 1, 129, 1, 400, "1 to 128"},
        {1, 1, 1, 65, 400, "1 to 64 questions"},
        {1048577, 1, 1, 1, 400, "1048576 characters"}, /* characters are counted, not bytes */
        {1048576, 1, 1, 1, 0, ""},
        {262144, 1, 2, 64, 413, "expected at most 67108864"}, /* 64 MiB and the words around */
        {1, 300000, 62, 4, 413, "bytes of rendered texts"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *body = large(rows[i].chars, rows[i].instructions, rows[i].inputs, rows[i].questions);
        unsigned n = T.fleet.n_tickets;

        fake_req_reset();
        fake_post(PATH, body);
        free(body);
        if (rows[i].status) {
            if (T.req.status != rows[i].status)
                fail_msg("row %zu: %u %s", i, T.req.status, fake_answer());
            assert_has(rows[i].says);
            continue;
        }
        if (T.fleet.n_tickets != n + 1)
            fail_msg("row %zu: %u %s", i, T.req.status, fake_answer());
        assert_int_equal(fake_ticket(n)->frame->decide->n_inputs, rows[i].inputs);
        fake_fail(n, RC_TOO_LARGE, "too long", 0);
        assert_int_equal(T.req.status, 413);
    }
}

/* Answers for n inputs to (choice, multi): selected "b" and {a}, or what abstains. */
static void play(unsigned ticket, uint32_t n_inputs, bool abstain, const char *identity)
{
    static const char hash[] = "00000000000000000000000000000000000000000000000000000000000000ff";
    Ipc__DecidedAnswer a = IPC__DECIDED_ANSWER__INIT, b = IPC__DECIDED_ANSWER__INIT, *al[8];
    Ipc__DecidedQuestion qa = IPC__DECIDED_QUESTION__INIT, qb = IPC__DECIDED_QUESTION__INIT,
                         *ql[2] = {&qa, &qb};
    double sim[2] = {0.1, 0.30000000000000004}, thr[2] = {-1, 0.5};
    uint32_t second = 1, first = 0;
    Ipc__Decided d = IPC__DECIDED__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;

    a.similarities = b.similarities = sim;
    a.n_similarities = b.n_similarities = 2;
    a.margin = 0.2;
    b.margin = 0.25;
    a.chosen = &second;
    b.chosen = &first;
    a.status = b.status = abstain ? 3 : 1;
    a.n_chosen = b.n_chosen = !abstain;
    a.reason = abstain ? 1 : 0;
    b.reason = abstain ? 3 : 0;
    qa.prototype_set_hash = qb.prototype_set_hash = (char *)(uintptr_t)hash;
    qb.thresholds = thr;
    qb.n_thresholds = 2;
    for (uint32_t i = 0; i < n_inputs; i++) {
        al[2 * i] = &a;
        al[2 * i + 1] = &b;
    }
    d.answers = al;
    d.n_answers = 2 * n_inputs;
    d.questions = ql;
    d.n_questions = 2;
    d.input_tokens = 77;
    d.model_identity = (char *)(uintptr_t)identity;
    fr.body_case = IPC__FRAME__BODY_DECIDED;
    fr.decided = &d;
    fake_play(ticket, &fr);
    fake_end(ticket, NULL, 0);
}

#define BOTH                                                                \
    "\"questions\":[" CHOICE                                                \
    ",{\"name\":\"t\",\"type\":\"multi_choice\",\"instructions\":\"I\"," AB \
    ",\"embedding_options\":{\"calibration_id\":\"c1\"}}]"
#define HASH \
    "\"prototype_set_hash\":\"00000000000000000000000000000000000000000000000000000000000000ff\""
#define HEAD                                                                                    \
    "\"decision_method\":\"embedding_similarity\",\"similarity_metric\":\"cosine\","            \
    "\"similarities\":[{\"value\":\"a\",\"similarity\":0.1},{\"value\":\"b\",\"similarity\":0." \
    "30000000000000004}],"

static void test_answers_of_one_input(void **state)
{
    (void)state;
    asked("\"input\":\"t\"," BOTH);
    play(0, 1, false, "");
    assert_int_equal(T.req.status, 200);
    assert_string_equal(
        fake_answer(),
        "{\"model\":\"org/minilm\",\"renderer_version\":\"instruction-category-v1\",\"answers\":["
        "{\"name\":\"r\",\"type\":\"choice\"," HEAD "\"margin\":0.2,\"status\":\"selected\"," HASH
        ",\"choice\":\"b\"},"
        "{\"name\":\"t\",\"type\":\"multi_choice\"," HEAD
        "\"margin\":0.25,\"status\":\"selected\"," HASH
        ",\"choices\":[\"a\"],\"similarity_thresholds\":{\"a\":-1.0,\"b\":0.5},\"calibration_id\":"
        "\"c1\"}],"
        "\"usage\":{\"input_tokens\":77,\"output_tokens\":0}}");
    asked("\"input\":\"t\"," BOTH);
    play(1, 1, true, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    assert_has("\"model_identity\":"
               "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\"renderer");
    assert_has("\"status\":\"abstained\"," HASH ",\"choice\":null,\"abstention_reason\":\"tie\"}");
    assert_has(
        "\"choices\":[],\"similarity_thresholds\":{\"a\":-1.0,\"b\":0.5},\"calibration_id\":\"c1\","
        "\"abstention_reason\":\"min_margin\"}]");
    assert_null(strstr(fake_answer(), "probabilit"));
    assert_null(strstr(fake_answer(), "confidence"));
}

static void test_answers_of_a_batch(void **state)
{
    json_t *j;

    (void)state;
    asked("\"inputs\":[{\"input\":\"t\",\"id\":\"x\\\"1\"},{\"input\":\"t\"},{\"input\":\"u\","
          "\"id\":\"\"}]," BOTH);
    play(0, 3, false, "");
    assert_int_equal(T.req.status, 200);
    j = json_loads(fake_answer(), 0, NULL);
    assert_non_null(j);
    assert_null(json_object_get(j, "answers"));
    assert_int_equal(json_array_size(json_object_get(j, "data")), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *row = json_array_get(json_object_get(j, "data"), i);

        assert_int_equal(json_integer_value(json_object_get(row, "input_index")), i);
        assert_int_equal(json_array_size(json_object_get(row, "answers")), 2);
    }
    json_decref(j);
    assert_has("{\"input_index\":0,\"id\":\"x\\\"1\",\"answers\"");
    assert_has("{\"input_index\":1,\"answers\"");
    assert_has("{\"input_index\":2,\"id\":\"\",\"answers\"");
}

static void test_an_answer_of_another_shape_is_an_error(void **state)
{
    (void)state;
    asked("\"input\":\"t\"," BOTH);
    play(0, 2, false, "");
    assert_int_equal(T.req.status, 500);
    assert_has("INFERENCE_FAILED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_request_becomes_a_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals_say_what_was_expected, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bounds_of_the_work, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_of_one_input, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_of_a_batch, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_answer_of_another_shape_is_an_error, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
