/* test_sup_pressure.c - requests waiting, running and the KV cache in use, as scraped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_api_fake.h"

static int setup(void **state)
{
    fake_setup();
    return 0;
}

static int teardown(void **state)
{
    fake_teardown();
    return 0;
}

static void assert_line(const char *line)
{
    char want[256];

    fake_req_reset();
    fake_send_bytes("GET", "/metrics", "", 0);
    snprintf(want, sizeof(want), "\n%s\n", line);
    if (!strstr(fake_answer(), want))
        fail_msg("no line '%s'", line);
}

static void test_nothing_used(void **state)
{
    assert_line("vllm:num_requests_waiting 0");
    assert_line("vllm:num_requests_running 0");
    assert_line("vllm:kv_cache_usage_perc 0");
    assert_null(strstr(fake_answer(), "inferd_requests_waiting{")); /* no series per file on disk */
}

static void test_a_generator(void **state)
{
    struct sup_series *run = sup_series(T.front.metrics, SUP_M_SEQS, "gemma", "running");

    T.gemma.kv_bytes = 1000;
    T.fleet.models[0].loads = 1;
    T.fleet.models[0].active_tasks = 5;
    sup_series_set(run, 2);
    sup_series_set(sup_series(T.front.metrics, SUP_M_KV_USED, "gemma", NULL), 250);
    assert_line("inferd_requests_waiting{model=\"gemma\"} 3");
    assert_line("inferd_requests_running{model=\"gemma\"} 2");
    assert_line("inferd_kv_used_ratio{model=\"gemma\"} 0.25");
    assert_line("vllm:num_requests_waiting 3");
    assert_line("vllm:num_requests_running 2");
    assert_line("vllm:kv_cache_usage_perc 0.25");
    assert_line("vllm:gpu_cache_usage_perc 0.25");
    sup_series_set(run, 9); /* choices of one request decode on their own; old by a second */
    assert_line("inferd_requests_running{model=\"gemma\"} 5");
    assert_line("vllm:num_requests_waiting 0");
}

static void test_an_encoder_and_a_load(void **state)
{
    T.fleet.models[1].active_tasks = 4; /* waits for its load */
    assert_line("inferd_requests_waiting{model=\"org/minilm\"} 4");
    T.fleet.models[1].state = "busy";
    assert_line("inferd_requests_waiting{model=\"org/minilm\"} 0");
    assert_line("inferd_requests_running{model=\"org/minilm\"} 4");
    assert_null(strstr(fake_answer(), "inferd_kv_used_ratio{model=\"org/minilm\"}"));
    T.fleet.models[0].active_tasks = 1;
    assert_line("vllm:num_requests_running 4");
    assert_line("vllm:num_requests_waiting 1"); /* of both models */
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_nothing_used),
        T_(test_a_generator),
        T_(test_an_encoder_and_a_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
