/* test_sup_api_embed.c - embeddings: request to frame, vectors to answer. */
#include "sup_api_test.h"

static void embed(const char *path, const char *rest)
{
    char body[1024];

    fake_req_reset();
    snprintf(body, sizeof(body), "{\"model\":\"org/minilm\",%s}", rest);
    fake_post(path, body);
}

/* n rows of the vector (1, -0.5, 0.25, row); bad: index of a row that failed, or -1. */
static void play_vectors(unsigned ticket, uint32_t n, int bad)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Vectors w = IPC__VECTORS__INIT;
    Ipc__ItemError ie = IPC__ITEM_ERROR__INIT, *pie = &ie;
    Ipc__Error e = IPC__ERROR__INIT;
    float data[8 * 4];
    uint32_t n_tokens[8];
    protobuf_c_boolean truncated[8] = {0};

    for (uint32_t i = 0; i < n; i++) {
        const float row[4] = {1, -0.5f, 0.25f, (float)i};

        memcpy(data + i * 4, row, sizeof(row));
        n_tokens[i] = 3 + i;
        truncated[i] = i == 1;
    }
    if (bad >= 0) {
        ie.index = (uint32_t)bad;
        e.code = RC_TOO_LARGE;
        e.message.data = (uint8_t *)(uintptr_t) "too long";
        e.message.len = 8;
        e.n = 600;
        e.limit = 512;
        ie.error = &e;
        w.errors = &pie;
        w.n_errors = 1;
    }
    w.n = n;
    w.dim = 4;
    w.data.data = (uint8_t *)data;
    w.data.len = n * 4 * sizeof(float);
    w.n_tokens = n_tokens;
    w.n_n_tokens = n;
    w.truncated = truncated;
    w.n_truncated = n;
    fr.body_case = IPC__FRAME__BODY_VECTORS;
    fr.vectors = &w;
    fake_play(ticket, &fr);
    fake_end(ticket, NULL, 0);
}

static void test_forms_of_input(void **state)
{
    static const struct {
        const char *rest;
        unsigned n, n_tokens; /* of the last input; 0 = text */
    } rows[] = {
        {"\"input\":\"ab\"", 1, 0},
        {"\"input\":[\"a\",\"b\"]", 2, 0},
        {"\"input\":[1,2,3]", 1, 3},
        {"\"input\":[[1],[2,3]]", 2, 2},
        {"\"input\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]", 2, 0},
        {"\"input_tokens\":[1,2]", 1, 2},
        {"\"input_tokens\":[[1,2],[3]]", 2, 1},
    };
    const Ipc__Embed *q;

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        embed("/ai/v1/embed", rows[i].rest);
        q = fake_ticket(i)->frame->embed;
        assert_int_equal(q->n_inputs, rows[i].n);
        assert_int_equal(q->inputs[rows[i].n - 1]->n_tokens, rows[i].n_tokens);
        assert_int_equal(q->inputs[rows[i].n - 1]->is_tokens, rows[i].n_tokens > 0);
        play_vectors(i, rows[i].n, -1);
        assert_int_equal(T.req.status, 200);
    }
}

static void test_options(void **state)
{
    const Ipc__Embed *q;

    embed("/ai/v1/embed",
          "\"input\":\"a\",\"dimensions\":2,\"task_type\":\"CLUSTERING\",\"truncate\":"
          "true,\"input_type\":\"clustering\",\"user\":\"u\"");
    q = fake_ticket(0)->frame->embed;
    assert_int_equal(q->dimensions, 2);
    assert_string_equal(q->task_type, "CLUSTERING");
    assert_true(q->truncate && !q->per_item);
    play_vectors(0, 1, -1);
    embed("/ai/v1/embed", "\"input\":\"a\",\"input_type\":\"query\",\"error_policy\":\"per_item\"");
    q = fake_ticket(1)->frame->embed;
    assert_string_equal(q->task_type, "RETRIEVAL_QUERY");
    assert_true(q->per_item);
}

static void test_floats(void **state)
{
    embed("/v1/embeddings", "\"input\":[\"a\",\"b\"]");
    play_vectors(0, 2, -1);
    assert_string_equal(
        fake_answer(),
        "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,\"embedding\":[1.0,"
        "-0.5,0.25,0.0]},{\"object\":\"embedding\",\"index\":1,\"embedding\":[1.0,-0.5,0.25,1.0],"
        "\"truncated\":true}],\"model\":\"org/minilm\",\"usage\":{\"prompt_tokens\":7,"
        "\"total_tokens\":7}}");
}

static void test_base64(void **state)
{
    embed("/v1/embeddings", "\"input\":\"a\",\"encoding_format\":\"base64\"");
    play_vectors(0, 1, -1);
    assert_has("\"embedding\":\"AACAPwAAAL8AAIA+AAAAAA==\"}]");
}

static void embed_m3(const char *rest)
{
    char body[512];

    T.fleet.n_models = 5;
    fake_req_reset();
    snprintf(body, sizeof(body), "{\"model\":\"m3\",%s}", rest);
    fake_post("/ai/v1/embed", body);
}

/* One input's dense (1, 2, 3, 4), sparse {3: .5, 9: .25}, and two token vectors. */
static void play_kinds(unsigned outputs, size_t token_bytes)
{
    static float dense[] = {1, 2, 3, 4}, tokens[] = {1, 0, 0, 0, 0, 1, 0, 0}, wt[] = {0.5f, 0.25f};
    static uint32_t ids[] = {3, 9}, n_tokens[] = {5};
    Ipc__SparseVector s = IPC__SPARSE_VECTOR__INIT, *ps = &s;
    Ipc__TokenVectors t = IPC__TOKEN_VECTORS__INIT, *pt = &t;
    Ipc__Vectors w = IPC__VECTORS__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;
    unsigned last = T.fleet.n_tickets - 1;

    w.n = 1;
    w.n_tokens = n_tokens;
    w.n_n_tokens = 1;
    if (outputs & 1) {
        w.dim = 4;
        w.data.data = (uint8_t *)dense;
        w.data.len = sizeof(dense);
    }
    s.ids = ids;
    s.weights = wt;
    s.n_ids = s.n_weights = 2;
    w.sparse = &ps;
    w.n_sparse = outputs >> 1 & 1;
    t.n = 2;
    t.data.data = (uint8_t *)tokens;
    t.data.len = token_bytes;
    w.token_vectors = &pt;
    w.n_token_vectors = outputs >> 2 & 1;
    fr.body_case = IPC__FRAME__BODY_VECTORS;
    fr.vectors = &w;
    fake_play(last, &fr);
    fake_end(last, NULL, 0);
}

#define SPARSE "{\"indices\":[3,9],\"values\":[0.5,0.25]}"

static void test_outputs_of_one_pass(void **state)
{
    embed_m3("\"input\":\"a\",\"outputs\":[\"colbert\",\"dense\",\"sparse\"]");
    assert_int_equal(fake_ticket(0)->frame->embed->outputs, 7);
    play_kinds(7, 32);
    assert_has(
        "{\"object\":\"embedding\",\"index\":0,\"embedding\":[1.0,2.0,3.0,4.0],\"sparse\":" SPARSE
        ",\"colbert\":[[1.0,0.0,0.0,0.0],[0.0,1.0,0.0,0.0]]}");
    embed_m3("\"input\":\"a\",\"outputs\":[\"sparse\"]");
    play_kinds(2, 0);
    assert_has("\"index\":0,\"embedding\":" SPARSE "}]");
    embed_m3("\"input\":\"a\",\"outputs\":[\"colbert\"],\"encoding_format\":\"base64\"");
    play_kinds(4, 32);
    assert_has(
        "\"index\":0,\"colbert\":[\"AACAPwAAAAAAAAAAAAAAAA==\",\"AAAAAAAAgD8AAAAAAAAAAA==\"]}]");
    embed_m3("\"input\":\"a\",\"outputs\":[\"dense\"]");
    assert_int_equal(fake_ticket(3)->frame->embed->outputs, 0);
    play_kinds(1, 0);
    assert_has("\"embedding\":[1.0,2.0,3.0,4.0]}]");
}

static void test_outputs_that_cannot_be(void **state)
{
    static const char *const rows[][2] = {
        {"\"outputs\":[]", "got an empty array, expected an array of"},
        {"\"outputs\":\"sparse\"", "got \\\"sparse\\\", expected an array of"},
        {"\"outputs\":[\"dense\",\"dense\"]", "each at most once"},
        {"\"outputs\":[\"int8\"]", "got \\\"int8\\\""},
        {"\"outputs\":[7]", "got 7"},
        {"\"outputs\":[\"sparse\"],\"dimensions\":2", "'dimensions': only dense"},
    };
    static const struct {
        unsigned given;
        size_t token_bytes;
    } wrong[] = {{1, 0}, {7, 28}, {7, 0}, {3, 0}, {6, 32}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char rest[256];

        snprintf(rest, sizeof(rest), "\"input\":\"a\",%s", rows[i][0]);
        embed_m3(rest);
        assert_int_equal(T.req.status, 400);
        assert_has(rows[i][1]);
    }
    embed("/ai/v1/embed", "\"input\":\"a\",\"outputs\":[\"sparse\"]");
    assert_has("no lexical weights");
    embed("/ai/v1/embed", "\"input\":\"a\",\"outputs\":[\"colbert\"]");
    assert_has("no vectors of tokens");
    assert_int_equal(T.fleet.n_tickets, 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        embed_m3("\"input\":\"a\",\"outputs\":[\"colbert\",\"dense\",\"sparse\"]");
        play_kinds(wrong[i].given, wrong[i].token_bytes);
        assert_int_equal(T.req.status, 500);
    }
}

static void test_per_item(void **state)
{
    embed("/ai/v1/embed", "\"input\":[\"\",\"good\",7,\"long\",[1000],\"also\"],\"error_policy\":"
                          "\"per_item\"");
    assert_int_equal(fake_ticket(0)->frame->embed->n_inputs, 3);
    play_vectors(0, 3, 1);
    assert_int_equal(T.req.status, 200);
    assert_has("\"data\":[{\"object\":\"embedding\",\"index\":1,");
    assert_has("},{\"object\":\"embedding\",\"index\":5,");
    assert_has("\"errors\":[{\"index\":0,\"code\":\"INVALID_REQUEST\",\"message\":\"field "
               "'input[0]': got an empty string, expected a non-empty string\",\"stage\":\"parse\","
               "\"retryable\":false,\"status\":400},{\"index\":2,");
    assert_has("{\"index\":4,\"code\":\"INVALID_REQUEST\"");
    assert_has("{\"index\":3,\"code\":\"CONTENT_TOO_LARGE\",\"message\":\"too long\",\"stage\":"
               "\"text_inference\",\"retryable\":false,\"status\":413,\"n_tokens\":600,\"limit\":"
               "512}]");
    assert_has("\"summary\":{\"total\":6,\"succeeded\":2,\"failed\":4}");
}

static void test_per_item_all_bad(void **state)
{
    embed("/ai/v1/embed", "\"input\":[\"\",null],\"error_policy\":\"per_item\"");
    assert_int_equal(T.fleet.n_tickets, 0);
    assert_int_equal(T.req.status, 200);
    assert_has("\"data\":[],");
    assert_has("\"summary\":{\"total\":2,\"succeeded\":0,\"failed\":2}");
}

static void test_refusals(void **state)
{
    static const struct {
        const char *rest;
        unsigned status;
        const char *code, *part;
    } rows[] = {
        {"\"user\":\"x\"", 400, "INVALID_REQUEST", "field 'input': missing"},
        {"\"input\":\"\"", 400, "INVALID_REQUEST", "an empty string"},
        {"\"input\":[]", 400, "INVALID_REQUEST", "an empty array"},
        {"\"input\":[[]]", 400, "INVALID_REQUEST", "input[0]"},
        {"\"input\":[\"a\",\"\"]", 400, "INVALID_REQUEST", "\"input_index\":1,\"stage\":\"parse\""},
        {"\"input\":[\"a\",true]", 400, "INVALID_REQUEST", "input[1]"},
        {"\"input\":{\"type\":\"image_url\"}", 400, "UNSUPPORTED_FEATURE", "takes no pictures"},
        {"\"input\":{\"type\":\"media\",\"mime_type\":\"audio/wav\",\"data\":\"AAAA\"}", 400,
         "UNSUPPORTED_FEATURE", "takes no sound"},
        {"\"input\":[{\"content\":[]}]", 400, "UNSUPPORTED_FEATURE", "groups"},
        {"\"input\":[500]", 400, "INVALID_REQUEST", "from 0 to 499"},
        {"\"input\":[1,\"a\"]", 400, "INVALID_REQUEST", "input[1]"},
        {"\"input\":\"a\",\"input_tokens\":[1]", 400, "INVALID_REQUEST", "exactly one"},
        {"\"input_tokens\":\"a\"", 400, "INVALID_REQUEST", "input_tokens"},
        {"\"input_tokens\":[\"a\"]", 400, "INVALID_REQUEST", "input_tokens[0]"},
        {"\"input\":\"a\",\"dimensions\":0", 400, "INVALID_REQUEST", "dimensions"},
        {"\"input\":\"a\",\"dimensions\":5", 400, "INVALID_REQUEST", "from 1 to 4"},
        {"\"input\":\"a\",\"encoding_format\":\"int8\"", 400, "INVALID_REQUEST", "float|base64"},
        {"\"input\":\"a\",\"task_type\":\"X\"", 400, "INVALID_REQUEST", "task_type"},
        {"\"input\":\"a\",\"task_type\":\"CLUSTERING\",\"input_type\":\"query\"", 400,
         "INVALID_REQUEST", "contradicts"},
        {"\"input\":\"a\",\"model_identity\":\"00\"", 400, "INVALID_REQUEST",
         "64 lowercase hexadecimal digits"},
        {"\"input\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]", 413,
         "CONTENT_TOO_LARGE", "at most 8"},
    };
    char word[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        embed("/ai/v1/embeddings", rows[i].rest);
        if (!T.req.done || T.req.status != rows[i].status)
            print_error("%s: %u %s\n", rows[i].rest, T.req.status, fake_answer());
        assert_true(T.req.done);
        assert_int_equal(T.req.status, rows[i].status);
        snprintf(word, sizeof(word), "{\"error\":\"%s\"", rows[i].code);
        assert_has(word);
        assert_has(rows[i].part);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
    fake_req_reset();
    fake_post("/v1/embeddings", "{\"model\":\"gemma\",\"input\":\"a\"}");
    assert_int_equal(T.req.status, 400);
    assert_has("\"code\":\"INVALID_MODEL\"");
}

static void test_wrong_number_of_vectors(void **state)
{
    embed("/v1/embeddings", "\"input\":[\"a\",\"b\"]");
    play_vectors(0, 1, -1);
    assert_int_equal(T.req.status, 500);
    assert_has("INFERENCE_FAILED");
}

static void test_worker_names_the_item(void **state)
{
    struct rc_err err = RC_ERR_INIT;

    embed("/ai/v1/embed", "\"input\":[\"a\",\"b\"]");
    rc_fail_what(&err, RC_TOO_LARGE, "input", "input 1 has 600 tokens, the limit is 512");
    err.n = 600;
    err.limit = 512;
    err.item = 1;
    err.stage = IPC_STAGE_TEXT_RUN;
    fake_end(0, &err, 0);
    assert_int_equal(T.req.status, 413);
    assert_has("\"n_tokens\":600,\"limit\":512,\"input_index\":1,\"stage\":\"text_inference\"}");
}

static void test_large_answer(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Vectors w = IPC__VECTORS__INIT;
    const uint32_t n = 2048, dim = 384;
    float *data = malloc(n * dim * sizeof(*data));
    struct sup_json body = {0};
    json_t *j;

    T.conf.max_embed_inputs = n;
    T.minilm.embed_dim = dim;
    sup_json_str(&body, "{\"model\":\"org/minilm\",\"input\":[\"x\"");
    for (uint32_t i = 1; i < n; i++)
        sup_json_str(&body, ",\"x\"");
    sup_json_str(&body, "]}");
    for (uint32_t i = 0; i < n * dim; i++)
        data[i] = (float)((int)(i * 2654435761u) / 4294967296.0);
    fake_send_bytes("POST", "/v1/embeddings", body.p, body.n);
    w.n = n;
    w.dim = dim;
    w.data.data = (uint8_t *)data;
    w.data.len = n * dim * sizeof(*data);
    fr.body_case = IPC__FRAME__BODY_VECTORS;
    fr.vectors = &w;
    fake_play(0, &fr);
    fake_end(0, NULL, 0);
    assert_int_equal(T.req.status, 200);
    j = json_loadb(T.req.answer.p, T.req.answer.n, 0, NULL);
    assert_non_null(j);
    for (uint32_t i = 0; i < n; i += 511) {
        json_t *row = json_object_get(json_array_get(json_object_get(j, "data"), i), "embedding");

        assert_int_equal(json_array_size(row), dim);
        for (uint32_t k = 0; k < dim; k++)
            assert_true((float)json_number_value(json_array_get(row, k)) == data[i * dim + k]);
    }
    json_decref(j);
    free(data);
    sup_json_deinit(&body);
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_forms_of_input),
        T_(test_options),
        T_(test_floats),
        T_(test_base64),
        T_(test_outputs_of_one_pass),
        T_(test_outputs_that_cannot_be),
        T_(test_per_item),
        T_(test_per_item_all_bad),
        T_(test_refusals),
        T_(test_wrong_number_of_vectors),
        T_(test_worker_names_the_item),
        T_(test_large_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
