/* test_sup_api_rerank.c - reranking in four shapes: request to frame, scores to answer. */
#define TEST_MODELS 5
#include "sup_api_test.h"
#include "sup_items.h"

#define OURS "/ai/v1/rerank"
#define MULTI "/ai/v1/rerank_multimodal"
#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void post(const char *path, const char *rest)
{
    char body[2048];

    fake_req_reset();
    snprintf(body, sizeof(body), "{%s}", rest);
    fake_post(path, body);
}

static const Ipc__Rerank *asked(const char *path, const char *rest)
{
    unsigned n = T.fleet.n_tickets;

    post(path, rest);
    if (T.fleet.n_tickets != n + 1)
        fail_msg("%s: %s", rest, fake_answer());
    return fake_ticket(n)->frame->rerank;
}

static float scores[] = {0.25f, 0.75f, 0.5f}, logits[] = {-1, 1, 0};
static uint32_t n_tokens[] = {5, 6, 7, 8};

static void play(Ipc__Scores *w)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    unsigned last = T.fleet.n_tickets - 1;

    fr.body_case = IPC__FRAME__BODY_SCORES;
    fr.scores = w;
    fake_play(last, &fr);
    fake_end(last, NULL, 0);
}

static Ipc__Scores of_pairs(size_t n)
{
    Ipc__Scores w = IPC__SCORES__INIT;

    w.scores = scores;
    w.logits = logits;
    w.n_tokens = n_tokens;
    w.n_scores = w.n_logits = w.n_n_tokens = n;
    return w;
}

static void play_pairs(size_t n)
{
    Ipc__Scores w = of_pairs(n);

    play(&w);
}

#define THREE "\"query\":\"q\",\"documents\":[\"a\",\"b\",\"c\"]"

static void test_a_request_becomes_a_frame(void **state)
{
    const Ipc__Rerank *q = asked(
        OURS,
        "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[\"a\",[{\"type\":\"text\","
        "\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"}],\"d\\u0000e\"],\"truncate\":true,"
        "\"model_identity\":\"" HEX "\",\"error_policy\":\"per_item\",\"timeout_ms\":1000");

    assert_string_equal(fake_ticket(0)->model, "ranker");
    assert_true(is(q->query, "q"));
    assert_int_equal(q->n_documents, 3);
    assert_true(is(q->documents[0], "a"));
    assert_true(is(q->documents[1], "b\nc"));
    assert_int_equal(q->documents[2].len, 3);
    assert_true(q->truncate && q->per_item);
    assert_string_equal(q->model_identity, HEX);
    assert_int_equal(q->n_weights, 0);
    assert_int_equal(q->deadline_us, 5000000 + 1000 * 1000);
    fake_fail(0, RC_CONFLICT, "another model", 0);
    assert_int_equal(T.req.status, 409);
    q = asked(OURS, "\"model\":\"ranker\",\"query\":\"q\",\"prompts\":[\"a\"]");
    assert_true(!q->truncate && !q->per_item);
    play_pairs(1);
    q = asked(OURS, "\"model\":\"m3\",\"query\":\"q\",\"prompts\":[\"a\"],\"weights\":{\"dense\":"
                    "0.4,\"colbert\":1}");
    assert_int_equal(q->n_weights, 3);
    assert_true(q->weights[0] == 0.4f && q->weights[1] == 0 && q->weights[2] == 1);
}

static void test_ours_in_the_order_of_the_request(void **state)
{
    asked(OURS, "\"model\":\"ranker\"," THREE);
    play_pairs(3);
    assert_string_equal(
        fake_answer(),
        "{\"object\":\"list\",\"data\":[{\"object\":\"rerank.score\",\"index\":0,\"score\":0.25},"
        "{\"object\":\"rerank.score\",\"index\":1,\"score\":0.75},{\"object\":\"rerank.score\","
        "\"index\":2,\"score\":0.5}],\"model\":\"ranker\",\"usage\":{\"prompt_tokens\":18,"
        "\"completion_tokens\":0,\"total_tokens\":18}}");
    post(OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[]");
    assert_has("\"data\":[],\"model\":\"ranker\",\"usage\":{\"prompt_tokens\":0,");
    asked(OURS, "\"model\":\"ranker\",\"top_n\":2,\"return_documents\":true,\"return_logits\":true,"
                "\"raw_scores\":true," THREE);
    play_pairs(3);
    assert_has("\"data\":[{\"object\":\"rerank.score\",\"index\":1,\"score\":1.0,\"logit\":1.0,"
               "\"document\":{\"text\":\"b\"}},{\"object\":\"rerank.score\",\"index\":2,\"score\":"
               "0.0,\"logit\":0.0,\"document\":{\"text\":\"c\"}}],");
}

static void test_kinds_of_an_embedder(void **state)
{
    static float sparse[] = {0.1f, 0.2f, 0.3f};
    protobuf_c_boolean cut[] = {0, 1, 0};
    Ipc__Scores w = of_pairs(3);

    w.n_logits = 0;
    w.dense = scores;
    w.sparse = w.late = sparse;
    w.n_dense = w.n_sparse = w.n_late = 3;
    w.query_tokens = 10;
    w.truncated = cut;
    w.n_truncated = 3;
    asked(OURS, "\"model\":\"m3\"," THREE);
    play(&w);
    assert_has("\"index\":1,\"score\":0.75,\"scores\":{\"dense\":0.75,\"sparse\":0.2,"
               "\"colbert\":0.2},\"truncated\":true}");
    assert_has("\"prompt_tokens\":48,"); /* 5 + 6 + 7 + 3 * 10 */
    post(OURS, "\"model\":\"m3\",\"return_logits\":true," THREE);
    assert_has("UNSUPPORTED_FEATURE");
}

static void test_per_item(void **state)
{
    Ipc__ItemError ie = IPC__ITEM_ERROR__INIT, *pie = &ie;
    Ipc__Error e = IPC__ERROR__INIT;
    Ipc__Scores w = of_pairs(3);

    e.code = RC_TOO_LARGE;
    e.message.data = (uint8_t *)(uintptr_t) "too long";
    e.message.len = 8;
    e.n = 600;
    e.limit = 512;
    ie.index = 1;
    ie.error = &e;
    w.errors = &pie;
    w.n_errors = 1;
    asked(OURS, "\"model\":\"ranker\",\"error_policy\":\"per_item\",\"query\":\"q\",\"documents\":["
                "\"a\",null,\"c\",\"d\"]");
    play(&w);
    assert_has(
        "\"index\":0,\"score\":0.25},{\"object\":\"rerank.score\",\"index\":3,\"score\":0.5}]");
    assert_has("\"errors\":[{\"index\":1,\"code\":\"INVALID_REQUEST\"");
    assert_has("{\"index\":2,\"code\":\"CONTENT_TOO_LARGE\",\"message\":\"too long\",\"stage\":"
               "\"text_inference\",\"retryable\":false,\"status\":413,\"n_tokens\":600,\"limit\":"
               "512}],\"summary\":{\"total\":4,\"succeeded\":2,\"failed\":2}}");
    post(OURS, "\"model\":\"ranker\",\"error_policy\":\"per_item\",\"query\":\"q\",\"documents\":["
               "7]");
    assert_has("\"data\":[]");
    assert_has("\"failed\":1}");
    asked(OURS, "\"model\":\"ranker\"," THREE); /* errors that were not asked for */
    play(&w);
    assert_int_equal(T.req.status, 500);
}

static void test_multimodal_reads_texts(void **state)
{
    const Ipc__Rerank *q =
        asked(MULTI,
              "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[{\"id\":\"x\",\"content\":[{"
              "\"type\":\"text\",\"text\":\"a\"}]},{\"content\":\"b\"}],\"return_documents\":true");

    assert_true(is(q->documents[0], "a") && is(q->documents[1], "b"));
    play_pairs(2);
    assert_has(
        "{\"object\":\"rerank.score\",\"index\":0,\"score\":0.25,\"id\":\"x\",\"document\":{"
        "\"text\":\"a\"}},{\"object\":\"rerank.score\",\"index\":1,\"score\":0.75,\"document\":"
        "{\"text\":\"b\"}}]");
}

static void test_numeric_frame(void **state)
{
    float row[3];

    fake_req_reset();
    fake_header("accept", SUP_NUMERIC_TYPE);
    fake_post(OURS, "{\"model\":\"ranker\"," THREE "}");
    play_pairs(3);
    assert_string_equal(T.req.type, SUP_NUMERIC_TYPE);
    assert_int_equal(T.req.answer.n, 24 + 12);
    assert_memory_equal(T.req.answer.p, "AFN1\2\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 24);
    memcpy(row, T.req.answer.p + 24, sizeof(row));
    assert_true(row[0] == 0.25f && row[1] == 0.75f && row[2] == 0.5f);
    fake_req_reset();
    fake_header("accept", SUP_NUMERIC_TYPE);
    fake_post(OURS, "{\"model\":\"ranker\",\"top_n\":1," THREE "}");
    play_pairs(3);
    assert_string_equal(T.req.type, "application/json");
}

static void test_results_of_cohere_and_jina(void **state)
{
    const Ipc__Rerank *q =
        asked("/v1/rerank", "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[\"a\",{\"text\":"
                            "\"b\"},\"c\"],\"top_n\":2,\"return_documents\":true,\"rank_fields\":["
                            "\"text\"],\"max_chunks_per_doc\":10,\"max_tokens_per_doc\":512");

    assert_true(is(q->documents[1], "b"));
    assert_true(q->truncate);
    play_pairs(3);
    assert_string_equal(
        fake_answer(),
        "{\"id\":\"abcdefghijklmnopqrstuvwxyz\",\"object\":\"list\",\"results\":[{\"index\":1,"
        "\"relevance_score\":0.75,\"document\":{\"text\":\"b\"}},{\"index\":2,\"relevance_score\":"
        "0.5,\"document\":{\"text\":\"c\"}}],\"model\":\"ranker\",\"usage\":{\"prompt_tokens\":18,"
        "\"completion_tokens\":0,\"total_tokens\":18},\"meta\":{\"api_version\":{\"version\":\"1\"}"
        ","
        "\"billed_units\":{\"search_units\":1}}}");
    q = asked("/v2/rerank", "\"model\":\"ranker\",\"truncation\":false," THREE);
    assert_false(q->truncate);
    play_pairs(3);
    assert_has("\"version\":\"2\"");
    assert_has("\"results\":[{\"index\":1,\"relevance_score\":0.75},{\"index\":2,");
    q = asked("/v2/rerank",
              "\"model\":\"ranker\",\"query\":\"q\",\"max_tokens_per_doc\":2,\"documents\":"
              "[\"one two three\",\"one  two \",\"a\",\"\"]");
    assert_true(is(q->documents[0], "one two") && is(q->documents[1], "one  two "));
    assert_true(is(q->documents[2], "a") && q->documents[3].len == 0);
    fake_fail(2, RC_BUSY, "full", 0);
    post("/v2/rerank", "\"model\":\"nothing\"," THREE);
    assert_int_equal(T.req.status, 404);
    assert_has("{\"error\":\"MODEL_NOT_FOUND\",\"message\":\"model");
    post("/v1/rerank", "\"model\":\"gemma\"," THREE);
    assert_has("{\"error\":\"INVALID_MODEL\",\"message\":\"model");
}

static void test_bare_array_of_tei(void **state)
{
    const Ipc__Rerank *q =
        asked("/rerank",
              "\"query\":\"q\",\"texts\":[\"a\",\"b\",\"c\"],\"return_text\":true,\"truncate\":"
              "true,\"truncation_direction\":\"Right\"");

    assert_string_equal(fake_ticket(0)->model, "ranker"); /* the only one made for it */
    assert_true(q->truncate);
    play_pairs(3);
    assert_string_equal(fake_answer(), "[{\"index\":1,\"score\":0.75,\"text\":\"b\"},{\"index\":2,"
                                       "\"score\":0.5,\"text\":\"c\"},{\"index\":0,\"score\":0.25,"
                                       "\"text\":\"a\"}]");
    asked("/rerank", "\"model\":\"org/minilm\",\"query\":\"q\",\"texts\":[\"a\"]");
    assert_string_equal(fake_ticket(1)->model, "org/minilm");
    fake_fail(1, RC_BUSY, "queue is full", 1000);
    assert_int_equal(T.req.status, 503);
    assert_has("{\"error\":\"queue is full\",\"error_type\":\"Overloaded\",\"code\":"
               "\"MODEL_RESOURCE_BUSY\",\"retryable\":true");
    asked("/rerank", "\"query\":\"q\",\"texts\":[\"a\",\"b\"],\"raw_scores\":true");
    play_pairs(2);
    assert_string_equal(fake_answer(),
                        "[{\"index\":1,\"score\":1.0},{\"index\":0,\"score\":-1.0}]");
    post("/rerank", "\"query\":\"q\",\"texts\":[]");
    assert_int_equal(T.req.status, 400);
    assert_has("{\"error\":\"field 'texts': got an empty array, expected a non-empty array\","
               "\"error_type\":\"Validation\"");
    T.fleet.n_models = 3;
    post("/rerank", "\"query\":\"q\",\"texts\":[\"a\"]");
    assert_has("field 'model': missing, and 0 models here were made for this task");
}

static void test_refusals_say_what_was_expected(void **state)
{
    static const struct {
        const char *path, *rest, *code, *says;
    } rows[] = {
        {OURS, "\"model\":\"ranker\",\"documents\":[\"a\"]", "INVALID_REQUEST", "'query': missing"},
        {OURS, "\"model\":\"ranker\",\"query\":7,\"documents\":[\"a\"]", "INVALID_REQUEST",
         "'query': got 7"},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\"", "INVALID_REQUEST", "'documents': missing"},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[],\"prompts\":[]",
         "INVALID_REQUEST", "got both"},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":\"a\"", "INVALID_REQUEST",
         "'documents': got \\\"a\\\""},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[\"a\",null]", "INVALID_REQUEST",
         "\"input_index\":1,\"stage\":\"parse\""},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[7]", "INVALID_REQUEST",
         "'documents[0]': got 7"},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[[]]", "INVALID_REQUEST",
         "got an empty array"},
        {OURS,
         "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[[{\"type\":\"image_url\","
         "\"image_url\":\"data:\"}]]",
         "MODEL_NOT_SUPPORTED", "pictures and sounds"},
        {OURS, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[[{\"type\":\"film\"}]]",
         "INVALID_REQUEST", "of type \\\"film\\\""},
        {OURS, "\"model\":\"ranker\",\"top_n\":0," THREE, "INVALID_REQUEST", "'top_n': got 0"},
        {OURS, "\"model\":\"ranker\",\"weights\":{\"dense\":1}," THREE, "UNSUPPORTED_FEATURE",
         "reads pairs"},
        {OURS, "\"model\":\"org/minilm\",\"weights\":{\"sparse\":1}," THREE, "UNSUPPORTED_FEATURE",
         "'weights.sparse'"},
        {OURS, "\"model\":\"m3\",\"weights\":{\"dense\":-1}," THREE, "INVALID_REQUEST",
         "'weights.dense': got -1"},
        {OURS, "\"model\":\"m3\",\"weights\":{\"dense\":0}," THREE, "INVALID_REQUEST", "not all 0"},
        {OURS, "\"model\":\"m3\",\"weights\":{\"dens\":1,\"dense\":1}," THREE, "INVALID_REQUEST",
         "\\\"colbert\\\""},
        {OURS, "\"model\":\"m3\",\"weights\":[1,1,1]," THREE, "INVALID_REQUEST", "an array of 3"},
        {OURS, "\"model\":\"gemma\"," THREE, "INVALID_MODEL", "does not score documents"},
        {OURS, THREE, "INVALID_REQUEST", "'model': missing"},
        {OURS,
         "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\","
         "\"7\",\"8\",\"9\"]",
         "CONTENT_TOO_LARGE", "got 9 documents, expected at most 8"},
        {MULTI, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[]", "INVALID_REQUEST",
         "'documents': got an empty array"},
        {MULTI, "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[\"a\"]", "INVALID_REQUEST",
         "'documents[0]': got \\\"a\\\""},
        {MULTI,
         "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[{\"content\":[{\"type\":\"media\"}]}"
         "]",
         "MODEL_NOT_SUPPORTED", "'documents[0].content[0]'"},
        {"/v2/rerank", "\"model\":\"ranker\",\"query\":\"q\",\"documents\":[]", "INVALID_REQUEST",
         "a non-empty array"},
        {"/v1/rerank", "\"model\":\"ranker\",\"rank_fields\":[\"title\"]," THREE,
         "UNSUPPORTED_FEATURE", "rank_fields"},
        {"/v1/rerank", "\"model\":\"ranker\",\"return_embeddings\":true," THREE,
         "UNSUPPORTED_FEATURE", "return_embeddings"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char code[64];

        post(rows[i].path, rows[i].rest);
        snprintf(code, sizeof(code), "{\"error\":\"%s\"", rows[i].code);
        assert_has(code);
        assert_has(rows[i].says);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
}

static void test_an_answer_of_another_shape_is_an_error(void **state)
{
    float nan_score[] = {0.25f, 0.5f, (float)(0.0 / 0.0)};
    Ipc__Scores w[4];

    for (size_t i = 0; i < 4; i++)
        w[i] = of_pairs(3);
    w[0].n_scores = 2;
    w[1].n_logits = 1;
    w[2].scores = nan_score;
    w[3].n_n_tokens = 4;
    for (size_t i = 0; i < 4; i++) {
        asked(OURS, "\"model\":\"ranker\"," THREE);
        play(&w[i]);
        assert_int_equal(T.req.status, 500);
        assert_has("INFERENCE_FAILED");
    }
    asked(OURS, "\"model\":\"ranker\",\"model_identity\":\"" HEX "\"," THREE);
    play_pairs(3);
    assert_int_equal(T.req.status, 409);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_request_becomes_a_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ours_in_the_order_of_the_request, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kinds_of_an_embedder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_per_item, setup, teardown),
        cmocka_unit_test_setup_teardown(test_multimodal_reads_texts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_numeric_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(test_results_of_cohere_and_jina, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bare_array_of_tei, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals_say_what_was_expected, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_answer_of_another_shape_is_an_error, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
