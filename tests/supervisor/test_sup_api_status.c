/* test_sup_api_status.c - failures to HTTP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "ipc.h"
#include "sup_json.h"
#include "sup_status.h"

static void fill(struct rc_err *err, enum rc rc)
{
    rc_fail(err, rc, "why");
}

static void test_every_rc(void **state)
{
    /* rc, retry_ms, loading -> status, code */
    static const struct {
        enum rc rc;
        uint32_t retry;
        bool loading;
        unsigned http;
        const char *code;
    } rows[] = {
        {RC_OK, 0, false, 500, "INFERENCE_FAILED"},
        {RC_INVALID, 0, false, 400, "INVALID_REQUEST"},
        {RC_INVALID, 500, false, 400, "INVALID_REQUEST"}, /* a 4xx is never retryable */
        {RC_INVALID, 0, true, 500, "MODEL_LOAD_FAILED"},
        {RC_FORMAT, 0, false, 500, "MODEL_LOAD_FAILED"},
        {RC_UNSUPPORTED, 0, false, 400, "UNSUPPORTED_FEATURE"},
        {RC_UNSUPPORTED, 0, true, 500, "MODEL_LOAD_FAILED"},
        {RC_NOMEM, 100, false, 503, "MODEL_RESOURCE_BUSY"},
        {RC_IO, 0, false, 500, "INFERENCE_FAILED"},
        {RC_NOT_FOUND, 0, false, 404, "MODEL_NOT_FOUND"},
        {RC_TOO_LARGE, 0, false, 413, "CONTENT_TOO_LARGE"},
        {RC_LIMIT, 0, false, 507, "MODEL_RESOURCE_LIMIT"},
        {RC_BUSY, 1000, false, 503, "MODEL_RESOURCE_BUSY"},
        {RC_CANCELLED, 0, false, 503, "SERVICE_UNAVAILABLE"},
        {RC_DEADLINE, 0, false, 504, "DEADLINE_EXCEEDED"},
        {RC_WEIGHT_ABSENT, 0, true, 500, "MODEL_WEIGHTS_MISSING"},
        {RC_WEIGHT_IO, 2000, false, 503, "MODEL_UNAVAILABLE"},
        {RC_UNLOADING, 10, false, 503, "SERVICE_UNAVAILABLE"},
        {RC_STATE, 0, false, 409, "CONFLICT"},
        {RC_CRASHED, 0, false, 500, "WORKER_CRASHED"},
        {RC_CRASHED, 4000, false, 503, "WORKER_CRASHED"}, /* crash loop: come back later */
        {RC_POISONED, 0, false, 500, "REQUEST_POISONED"},
        {RC_INTERNAL, 0, false, 500, "INFERENCE_FAILED"},
        {RC_CONFLICT, 0, false, 409, "CONFLICT"},
        {RC_CLOSED, 0, false, 500, "WORKER_CRASHED"},
        {RC_AGAIN, 0, false, 503, "MODEL_RESOURCE_BUSY"},
        {(enum rc)9999, 0, false, 500, "INFERENCE_FAILED"},
    };
    struct rc_err err;
    struct sup_fail f;
    unsigned seen = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fill(&err, rows[i].rc);
        sup_fail_rc(&f, &err, rows[i].retry, rows[i].loading);
        assert_string_equal(sup_code_word(f.code), rows[i].code);
        assert_int_equal(sup_fail_http(&f), rows[i].http);
        if (rows[i].http < 500)
            assert_int_equal(f.retry_ms, 0);
        seen |= rows[i].rc < 32 ? 1u << rows[i].rc : 0;
    }
#define X(name, value, text) assert_true(seen & 1u << (value)); /* no code was forgotten */
    RC_MAP(X)
#undef X
}

static void test_what_never_fits_and_what_makes_no_sense(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_json o = {0};
    struct sup_fail f;

    rc_bound(rc_fail_what(&err, RC_LIMIT, "workspace_mb", "too long"), 900, 100, &err);
    sup_fail_rc(&f, &err, 0, false);
    assert_int_equal(sup_fail_http(&f), 413);
    assert_string_equal(sup_code_word(f.code), "MODEL_RESOURCE_LIMIT");
    assert_int_equal(f.retry_ms, 0);
    sup_fail_tokens(&f, &o);
    sup_json_put(&o, "", 1);
    assert_string_equal(
        o.p, ",\"limit_name\":\"workspace_mb\",\"needed_bytes\":900,\"allowed_bytes\":100");
    sup_json_deinit(&o);
    rc_fail_what(&err, RC_FORMAT, "hidden_size", "config.json: 'hidden_size' is -1, expected 1");
    sup_fail_rc(&f, &err, 0, true);
    assert_string_equal(sup_code_word(f.code), "INVALID_MODEL_CONFIG");
    assert_int_equal(sup_fail_http(&f), 500);
}

static void test_refused_at_once(void **state)
{
    struct rc_err err;
    struct sup_fail f;

    fill(&err, RC_BUSY);
    sup_fail_refused(&f, &err);
    assert_string_equal(sup_code_word(f.code), "MODEL_RESOURCE_BUSY");
    assert_int_equal(f.code, SUP_E_OVERLOADED);
    assert_int_equal(f.retry_ms, 1000);
    fill(&err, RC_UNLOADING);
    sup_fail_refused(&f, &err);
    assert_int_equal(sup_fail_http(&f), 503);
    assert_int_equal(f.retry_ms, 1000);
    fill(&err, RC_NOT_FOUND);
    sup_fail_refused(&f, &err);
    assert_int_equal(sup_fail_http(&f), 404);
    assert_int_equal(f.retry_ms, 0);
}

static void assert_json(const struct sup_fail *f, bool openai, const char *want)
{
    struct sup_json o = {0};
    char text[1024];

    sup_fail_json(f, openai, &o);
    assert_false(o.failed);
    snprintf(text, sizeof(text), "%.*s", (int)o.n, o.p);
    assert_string_equal(text, want);
    sup_json_deinit(&o);
}

static void test_shapes(void **state)
{
    struct rc_err err;
    struct sup_fail f;

    sup_fail_set(&f, SUP_E_INVALID_REQUEST, "n", "field 'n': got \"x\"");
    assert_json(&f, true,
                "{\"error\":{\"message\":\"field 'n': got \\\"x\\\"\",\"type\":"
                "\"invalid_request_error\",\"param\":\"n\",\"code\":\"INVALID_REQUEST\","
                "\"retryable\":false}}");
    assert_json(&f, false,
                "{\"error\":\"INVALID_REQUEST\",\"message\":\"field 'n': got \\\"x\\\"\",\"param\":"
                "\"n\",\"retryable\":false}");
    fill(&err, RC_BUSY);
    sup_fail_rc(&f, &err, 1000, false);
    assert_json(&f, false,
                "{\"error\":\"MODEL_RESOURCE_BUSY\",\"message\":\"why\",\"retryable\":true,"
                "\"reason\":\"inference_capacity\",\"retry_after_ms\":1000}");
    fill(&err, RC_TOO_LARGE);
    err.n = 9000;
    err.limit = 8192;
    err.item = 3;
    err.stage = IPC_STAGE_SOUND;
    sup_fail_rc(&f, &err, 0, false);
    assert_json(&f, false,
                "{\"error\":\"CONTENT_TOO_LARGE\",\"message\":\"why\",\"retryable\":false,"
                "\"n_tokens\":9000,\"limit\":8192,\"input_index\":3,\"stage\":\"audio_decode\"}");
    err = RC_ERR_INIT;
    err.code = RC_POISONED;
    sup_fail_rc(&f, &err, 0, false);
    assert_json(&f, false,
                "{\"error\":\"REQUEST_POISONED\",\"message\":\"request was present at repeated "
                "worker deaths\",\"retryable\":false}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rc),
        cmocka_unit_test(test_what_never_fits_and_what_makes_no_sense),
        cmocka_unit_test(test_refused_at_once),
        cmocka_unit_test(test_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
