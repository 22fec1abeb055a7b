/* test_sup_api_models.c - lists, load and unload, probes, tokenize, detokenize, echo. */
#include "sup_api_test.h"

static void get(const char *path)
{
    fake_req_reset();
    fake_send_bytes("GET", path, "", 0);
}

static void assert_json(void)
{
    json_error_t e;
    json_t *j = json_loadb(T.req.answer.p, T.req.answer.n, JSON_REJECT_DUPLICATES, &e);

    if (!j)
        fail_msg("%s in %s", e.text, fake_answer());
    json_decref(j);
}

/* ----------------------------------------------------------------------- lists */

static void test_list(void **state)
{
    get("/v1/models");
    assert_int_equal(T.req.status, 200);
    assert_int_equal(T.fleet.n_rescans, 1);
    assert_json();
    assert_has(
        "{\"object\":\"list\",\"data\":[{\"id\":\"gemma\",\"object\":\"model\",\"created\":0,"
        "\"owned_by\":\"inferd\",\"state\":\"ready\"");
    assert_has("},{\"id\":\"org/minilm\",");
    assert_has("\"capabilities\":[\"chat\",\"completions\"],\"inputs\":[\"text\"],\"family\":"
               "\"gemma3\",\"quant\":\"Q4_K\",\"ctx_tokens\":8192");
}

static void test_full_list(void **state)
{
    T.fleet.models[1].last_error = "weight missing";
    T.fleet.models[1].state = "failed";
    T.fleet.models[1].retry_in_ms = 4000;
    get("/ai/v1/models");
    assert_json();
    assert_has("\"backends\":{\"native\":true,\"onnx\":false");
    assert_has("\"embedders\":{\"org/minilm\":{\"capabilities\":[\"embeddings\"],\"inputs\":"
               "[\"text\"]}},\"generators\":{\"gemma\":{");
    assert_has("\"last_error\":\"weight missing\",\"retry_in_ms\":4000");
    assert_has("\"deciders\":{}");
}

static void test_model_not_probed_yet(void **state)
{
    T.fleet.models[0].info = NULL;
    get("/ai/v1/models");
    assert_json();
    assert_has("\"generators\":{}");
}

static void test_get_one(void **state)
{
    static const char *const outside[] = {"..", "../../etc/passwd", "/etc/passwd", "a//b", ""};
    char path[128];

    get("/v1/models/org/minilm");
    assert_int_equal(T.req.status, 200);
    assert_has("{\"id\":\"org/minilm\",\"object\":\"model\"");
    get("/ai/v1/models/nope");
    assert_int_equal(T.req.status, 404);
    assert_has("{\"error\":\"MODEL_NOT_FOUND\",\"message\":\"model 'nope' not found\"");
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        snprintf(path, sizeof(path), "/v1/models/%s", outside[i]);
        get(path);
        assert_int_equal(T.req.status, 404);
        assert_has("\"code\":\"MODEL_NOT_FOUND\"");
    }
}

static void test_client_leaves_while_the_disk_is_read(void **state)
{
    T.fleet.hold_rescan = true;
    get("/v1/models");
    assert_false(T.req.done);
    T.req.abort_fn(T.req.abort_user);
    T.req.done = true;
    fake_rescan_end(&T.fleet); /* must not touch the request */
    assert_int_equal(T.req.status, 0);
}

/* ---------------------------------------------------------------- load, unload */

static void test_load(void **state)
{
    fake_post("/ai/v1/models/load", "{\"model\":\"org/minilm\"}");
    assert_false(T.req.done);
    assert_string_equal(T.fleet.load_id, "org/minilm");
    T.fleet.models[1].state = "ready";
    T.fleet.load_done(T.fleet.load_user, NULL);
    assert_string_equal(fake_answer(), "{\"object\":\"model.state\",\"model\":\"org/minilm\","
                                       "\"state\":\"ready\"}");
}

static void test_load_fails(void **state)
{
    static const struct {
        enum rc rc;
        unsigned status;
        const char *code;
    } rows[] = {{RC_FORMAT, 500, "MODEL_LOAD_FAILED"},
                {RC_INVALID, 500, "MODEL_LOAD_FAILED"},
                {RC_WEIGHT_ABSENT, 500, "MODEL_WEIGHTS_MISSING"},
                {RC_LIMIT, 507, "MODEL_RESOURCE_LIMIT"},
                {RC_WEIGHT_IO, 503, "MODEL_UNAVAILABLE"}};
    struct rc_err err;
    char word[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        fake_post("/ai/v1/models/load", "{\"model\":\"gemma\"}");
        rc_fail_what(&err, rows[i].rc, "blk.0.attn_q.weight", "bad");
        T.fleet.load_done(T.fleet.load_user, &err);
        assert_int_equal(T.req.status, rows[i].status);
        snprintf(word, sizeof(word), "{\"error\":\"%s\"", rows[i].code);
        assert_has(word);
        assert_has("blk.0.attn_q.weight");
    }
    fake_req_reset();
    T.fleet.load_rc = RC_BUSY;
    fake_post("/ai/v1/models/unload", "{\"model\":\"gemma\"}");
    assert_int_equal(T.req.status, 503);
}

static void test_client_leaves_during_a_load(void **state)
{
    fake_post("/ai/v1/models/load", "{\"model\":\"gemma\"}");
    T.req.abort_fn(T.req.abort_user);
    T.req.done = true;
    assert_int_equal(T.front.active, 1); /* the fleet still holds it */
    T.fleet.load_done(T.fleet.load_user, NULL);
    assert_int_equal(T.front.active, 0);
}

static void test_a_load_can_be_waited_for_too_long(void **state)
{
    fake_post("/ai/v1/models/load", "{\"model\":\"gemma\",\"timeout_ms\":1}");
    for (int i = 0; i < 10000 && !T.req.done; i++) {
        uv_run(&T.front.loop, UV_RUN_NOWAIT);
        uv_sleep(1);
    }
    assert_int_equal(T.req.status, 504);
    assert_has("DEADLINE_EXCEEDED");
    assert_has("while it waited for model 'gemma' to be loaded");
    assert_int_equal(T.front.active, 1); /* the load itself goes on */
    T.fleet.load_done(T.fleet.load_user, NULL);
    assert_int_equal(T.front.active, 0);
}

static void test_unload(void **state)
{
    fake_post("/ai/v1/models/unload", "{\"model\":\"gemma\"}");
    assert_int_equal(T.fleet.n_unloads, 1);
    T.fleet.models[0].state = "absent";
    T.fleet.load_done(T.fleet.load_user, NULL);
    assert_has("\"state\":\"absent\"");
}

/* ---------------------------------------------------------------------- probes */

static void test_probes(void **state)
{
    get("/healthz");
    assert_string_equal(fake_answer(), "{\"status\":\"ok\"}");
    get("/readyz");
    assert_int_equal(T.req.status, 200);
    assert_has("{\"status\":\"ready\",\"backends\":{\"native\":true");
    assert_has("\"models\":{\"embedders\":1,\"rerankers\":0,\"chunkers\":3,\"generators\":1");
    assert_json();
    get("/startupz");
    assert_int_equal(T.req.status, 200);
    assert_string_equal(fake_answer(), "{\"status\":\"started\"}");
    T.fleet.not_ready = T.fleet.not_started = true;
    get("/readyz");
    assert_int_equal(T.req.status, 503);
    assert_has("{\"status\":\"not_ready\",\"reason\":\"the first scan is not finished\"");
    get("/startupz");
    assert_int_equal(T.req.status, 503);
    get("/healthz");
    assert_int_equal(T.req.status, 200);
    T.fleet.not_ready = false;
    T.front.draining = true;
    get("/readyz");
    assert_int_equal(T.req.status, 503);
    assert_has("shutting down");
}

static void test_metrics(void **state)
{
    get("/metrics");
    assert_int_equal(T.req.status, 200);
    assert_string_equal(T.req.type, "text/plain; version=0.0.4; charset=utf-8");
    assert_has("inferd_tokens_total");
    get("/ai/v1/metrics");
    assert_int_equal(T.req.status, 200);
}

/* ---------------------------------------------------------------------- tokens */

static void test_tokenize(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Tokens t = IPC__TOKENS__INIT;
    uint32_t ids[] = {2, 77}, offsets[] = {0, 0, 0, 1};
    ProtobufCBinaryData pieces[] = {{5, (uint8_t *)(uintptr_t) "<bos>"},
                                    {2, (uint8_t *)(uintptr_t) "\xc3\xa4"}};

    fake_post("/ai/v1/tokenize", "{\"model\":\"gemma\",\"text\":\"\xc3\xa4\\u0000\"}");
    assert_int_equal(fake_ticket(0)->frame->tokenize->text.len, 3);
    assert_true(fake_ticket(0)->frame->tokenize->add_special);
    assert_true(fake_ticket(0)->frame->tokenize->parse_special);
    t.ids = ids;
    t.n_ids = 2;
    t.pieces = pieces;
    t.n_pieces = 2;
    t.offsets = offsets;
    t.n_offsets = 4;
    fr.body_case = IPC__FRAME__BODY_TOKENS;
    fr.tokens = &t;
    fake_play(0, &fr);
    fake_end(0, NULL, 0);
    assert_string_equal(fake_answer(), "{\"model\":\"gemma\",\"count\":2,\"tokens\":[2,77],"
                                       "\"pieces\":[\"<bos>\",\"\xc3\xa4\"],\"offsets\":[[0,0],[0,"
                                       "1]]}");
    fake_req_reset();
    fake_post("/ai/v1/tokenize", "{\"model\":\"gemma\",\"text\":\"\",\"add_special_tokens\":false,"
                                 "\"parse_special\":false}");
    assert_false(fake_ticket(1)->frame->tokenize->add_special);
    assert_false(fake_ticket(1)->frame->tokenize->parse_special);
}

static void test_tokenize_takes_a_bounded_text(void **state)
{
    char *body = calloc(1, (1 << 20) + 100);
    size_t n = (size_t)sprintf(body, "{\"model\":\"gemma\",\"text\":\"");

    memset(body + n, 'a', 1 << 20);
    memcpy(body + n + (1 << 20), "\"}", 3);
    fake_post("/ai/v1/tokenize", body);
    assert_int_equal(fake_ticket(0)->frame->tokenize->text.len, 1 << 20);
    fake_fail(0, RC_INVALID, "enough", 0);
    fake_req_reset();
    memcpy(body + n + (1 << 20), "a\"}", 4);
    fake_post("/ai/v1/tokenize", body);
    assert_int_equal(T.req.status, 413);
    assert_has("field 'text': got a string of 1048577 bytes, expected at most 1048576");
    free(body);
}

static void test_detokenize(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Text t = IPC__TEXT__INIT;

    fake_post("/ai/v1/detokenize",
              "{\"model\":\"gemma\",\"tokens\":[5,6],\"skip_special_tokens\":true}");
    assert_int_equal(fake_ticket(0)->frame->detokenize->n_tokens, 2);
    assert_true(fake_ticket(0)->frame->detokenize->skip_special);
    t.text.data = (uint8_t *)(uintptr_t) "a\xff";
    t.text.len = 2;
    fr.body_case = IPC__FRAME__BODY_TEXT;
    fr.text = &t;
    fake_play(0, &fr);
    fake_end(0, NULL, 0);
    assert_string_equal(fake_answer(), "{\"model\":\"gemma\",\"text\":\"a\xef\xbf\xbd\"}");
}

static void test_token_refusals(void **state)
{
    static const char *const rows[][3] = {
        {"/ai/v1/tokenize", "{\"model\":\"gemma\"}", "field 'text': missing"},
        {"/ai/v1/tokenize", "{\"model\":\"gemma\",\"text\":5}", "field 'text': got 5"},
        {"/ai/v1/tokenize", "{\"model\":\"gemma\",\"text\":\"a\",\"parse_special\":0}",
         "parse_special"},
        {"/ai/v1/detokenize", "{\"model\":\"gemma\",\"tokens\":[]}", "tokens"},
        {"/ai/v1/detokenize", "{\"model\":\"gemma\",\"tokens\":[1000]}", "tokens[0]"},
        {"/ai/v1/detokenize", "{\"model\":\"gemma\",\"tokens\":[1.5]}", "tokens[0]"},
        {"/ai/v1/detokenize", "{\"model\":\"gemma\",\"tokens\":\"a\"}", "tokens"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        fake_post(rows[i][0], rows[i][1]);
        assert_int_equal(T.req.status, 400);
        assert_has(rows[i][2]);
    }
}

static void test_echo(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;

    T.req.query_model = "gemma";
    fake_send_bytes("POST", "/ai/v1/echo", "a\0\xff{", 4);
    assert_int_equal(fake_ticket(0)->frame->echo->data.len, 4);
    fr.body_case = IPC__FRAME__BODY_ECHOED;
    fr.echoed = fake_ticket(0)->frame->echo;
    fake_play(0, &fr);
    fake_end(0, NULL, 0);
    assert_int_equal(T.req.status, 200);
    assert_string_equal(T.req.type, "application/octet-stream");
    assert_int_equal(T.req.answer.n, 4);
    assert_memory_equal(T.req.answer.p, "a\0\xff{", 4);

    fake_req_reset();
    fake_header("x-model", "gemma");
    fake_send_bytes("POST", "/ai/v1/echo", "", 0); /* nothing comes back as nothing */
    fr.echoed = fake_ticket(1)->frame->echo;
    fake_play(1, &fr);
    fake_end(1, NULL, 0);
    assert_int_equal(T.req.status, 200);
    assert_int_equal(T.req.answer.n, 0);

    fake_req_reset();
    fake_send_bytes("POST", "/ai/v1/echo", "x", 1);
    assert_int_equal(T.req.status, 400);
    fake_req_reset();
    T.req.query_model = "nope";
    fake_send_bytes("POST", "/ai/v1/echo", "x", 1);
    assert_int_equal(T.req.status, 404);
}

static void test_what_an_embedder_takes(void **state)
{
    T.fleet.n_models = 3;
    T.eg2.model_identity =
        (char *)(uintptr_t) "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    get("/v1/models/eg2");
    assert_has("\"capabilities\":[\"embeddings\",\"embedding_groups\"],\"inputs\":[\"text\","
               "\"image\",\"audio\"],");
    assert_has("\"model_identity\":\"0123456789abcdef0123456789abcdef0123456789abcdef"
               "0123456789abcdef\"");
    T.eg2.can_embed_sound = false;
    T.eg2.model_identity = (char *)(uintptr_t) "";
    get("/ai/v1/models");
    assert_has("\"eg2\":{\"capabilities\":[\"embeddings\",\"embedding_groups\"],\"inputs\":["
               "\"text\",\"image\"]}");
    assert_null(strstr(fake_answer(), "model_identity"));
}

/* ------------------------------------------------------- who may see and use what */

static struct sup_grant *narrow(const char *model)
{
    Ipc__Grant from = IPC__GRANT__INIT;
    char *models[] = {(char *)model};
    struct sup_grant *g = NULL;

    from.tenant = "acme";
    from.weight = 1;
    from.models = models;
    from.n_models = 1;
    assert_int_equal(sup_grant_new(&g, &from, NULL), RC_OK);
    return g;
}

static void test_models_outside_a_grant(void **state)
{
    static const struct {
        const char *method, *path, *body;
        unsigned status;
    } rows[] = {
        {"GET", "/v1/models/gemma", "", 403},
        {"GET", "/v1/models/org/minilm", "", 200},
        {"POST", "/v1/completions", "{\"model\":\"gemma\",\"prompt\":\"a\"}", 403},
        {"POST", "/ai/v1/models/load", "{\"model\":\"gemma\"}", 403},
        {"POST", "/ai/v1/tokenize", "{\"model\":\"gemma\",\"text\":\"a\"}", 403},
    };
    struct sup_grant *g = narrow("org/*");

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        T.req.grant = g;
        fake_send_bytes(rows[i].method, rows[i].path, rows[i].body, strlen(rows[i].body));
        if (T.req.status != rows[i].status)
            fail_msg("%s: %u %s", rows[i].path, T.req.status, fake_answer());
        if (rows[i].status == 403)
            assert_has("FORBIDDEN");
    }
    assert_int_equal(T.fleet.n_loads, 0);
    fake_req_reset();
    T.req.grant = g;
    fake_send_bytes("GET", "/v1/models", "", 0);
    assert_json();
    assert_null(strstr(fake_answer(), "gemma"));
    assert_has("org/minilm");
    sup_grant_unref(&g);
}

static void test_security(void **state)
{
    struct sup_grant *g = narrow("org/*");
    char text[128];

    get("/ai/v1/security");
    assert_int_equal(T.req.status, 200);
    assert_json();
    snprintf(
        text, sizeof(text),
        "\"processes\":[{\"role\":\"front\",\"pid\":%d,\"layers\":[{\"name\":\"not_dumpable\",",
        (int)getpid());
    assert_has(text);
    snprintf(text, sizeof(text),
             "]},{\"role\":\"launcher\",\"pid\":%d,\"layers\":[{\"name\":\"not_dumpable\",",
             (int)getppid());
    assert_has(text);
    assert_has(
        "{\"role\":\"worker\",\"pid\":7,\"model\":\"gemma\",\"layers\":[{\"name\":\"seccomp\","
        "\"holds\":true,\"detail\":\"a filter\"},{\"name\":\"landlock\",\"holds\":false,"
        "\"detail\":\"no \\\"such\\\" thing\"}]}");
    for (const char *const *none = (const char *const[]){"vault", "fetcher", "tracer", NULL}; *none;
         none++)
        assert_null(strstr(fake_answer(), *none));
    fake_req_reset();
    T.req.grant = g;
    fake_send_bytes("GET", "/ai/v1/security", "", 0);
    assert_json();
    assert_null(strstr(fake_answer(), "gemma"));
    sup_grant_unref(&g);
}

static void test_refusals_in_each_shape(void **state)
{
    static const struct {
        const char *path;
        enum sup_auth_is why;
        unsigned status;
        const char *has;
    } rows[] = {
        {"/v1/models", SUP_AUTH_NO_KEY, 401,
         "{\"error\":{\"message\":\"this server asks for an API key"},
        {"/v1/models", SUP_AUTH_BAD_KEY, 401, "\"type\":\"authentication_error\""},
        {"/ai/v1/models", SUP_AUTH_EXPIRED, 401, "{\"error\":\"UNAUTHENTICATED\",\"message\":"},
        {"/ai/v1/embed", SUP_AUTH_SCOPE, 403, "{\"error\":\"FORBIDDEN\",\"message\":"},
        {"/v1/embeddings", SUP_AUTH_SCOPE, 403, "\"type\":\"permission_error\""},
        {"/rerank", SUP_AUTH_NO_KEY, 401, "\"error_type\":"},
        {"/ai/v1/embed", SUP_AUTH_BUSY, 503, "\"retryable\":true"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        T.req.method = "GET";
        T.req.path = rows[i].path;
        sup_api_refuse(&T.req, &T.front, rows[i].why);
        assert_int_equal(T.req.status, rows[i].status);
        assert_has(rows[i].has);
    }
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_list),
        T_(test_full_list),
        T_(test_model_not_probed_yet),
        T_(test_get_one),
        T_(test_client_leaves_while_the_disk_is_read),
        T_(test_load),
        T_(test_load_fails),
        T_(test_client_leaves_during_a_load),
        T_(test_a_load_can_be_waited_for_too_long),
        T_(test_unload),
        T_(test_probes),
        T_(test_metrics),
        T_(test_tokenize),
        T_(test_tokenize_takes_a_bounded_text),
        T_(test_detokenize),
        T_(test_token_refusals),
        T_(test_echo),
        T_(test_what_an_embedder_takes),
        T_(test_models_outside_a_grant),
        T_(test_security),
        T_(test_refusals_in_each_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
