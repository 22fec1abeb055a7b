/* test_sup_metrics.c - numbers go in, valid Prometheus text comes out, and label
 * values from outside cannot make it grow without end. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_metrics.h"

static struct sup_metrics *m;

static int up(void **state)
{
    m = sup_metrics_new();
    return m ? 0 : -1;
}

static int down(void **state)
{
    sup_metrics_free(&m);
    sup_metrics_free(&m); /* NULL is fine */
    return m ? -1 : 0;
}

static char *text(void)
{
    size_t n = 0;
    char *t = sup_metrics_text(m, &n);

    assert_non_null(t);
    assert_int_equal(strlen(t), n);
    return t;
}

static void has(const char *want)
{
    char *t = text();

    if (!strstr(t, want))
        fail_msg("'%s' is not in:\n%s", want, t);
    free(t);
}

static void counters_and_gauges(void **state)
{
    struct sup_series *c = sup_series(m, SUP_M_HTTP_REQUESTS, "/v1/models", "200");
    struct sup_series *g = sup_series(m, SUP_M_HTTP_CONNS, NULL, NULL);

    sup_series_add(c, 1);
    sup_series_add(c, 2);
    sup_series_add(c, -5);  /* a counter never falls */
    sup_series_add(c, NAN); /* and never turns into nonsense */
    assert_true(sup_series_value(c) == 3);
    sup_series_set(g, 7);
    sup_series_add(g, -2);
    sup_series_set(g, INFINITY);
    assert_true(sup_series_value(g) == 5);
    assert_ptr_equal(c, sup_series(m, SUP_M_HTTP_REQUESTS, "/v1/models", "200"));
    has("# TYPE inferd_http_requests_total counter\n"
        "inferd_http_requests_total{route=\"/v1/models\",status=\"200\"} 3\n");
    has("# TYPE inferd_http_connections gauge\ninferd_http_connections 5\n");
}

static void unlabelled_series_exist_from_the_start(void **state)
{
    has("\ninferd_log_lines_dropped_total 0\n");
    has("# TYPE inferd_tasks_total counter\n# HELP"); /* labelled ones do not */
}

static void histograms_are_cumulative(void **state)
{
    struct sup_series *h = sup_series(m, SUP_M_TTFT, "m", NULL);

    sup_series_observe(h, 0.0005); /* a bound belongs to its bucket */
    sup_series_observe(h, 0.2);
    sup_series_observe(h, 60);
    sup_series_observe(h, 1e9);
    sup_series_observe(h, -1);
    sup_series_observe(h, NAN);
    assert_true(sup_series_value(h) == 5);
    has("inferd_time_to_first_token_seconds_bucket{model=\"m\",le=\"0.0005\"} 2\n");
    has("{model=\"m\",le=\"0.1\"} 2\n");
    has("{model=\"m\",le=\"0.25\"} 3\n");
    has("{model=\"m\",le=\"60\"} 4\n");
    has("{model=\"m\",le=\"+Inf\"} 5\n"
        "inferd_time_to_first_token_seconds_sum{model=\"m\"} 1000000060.2005\n"
        "inferd_time_to_first_token_seconds_count{model=\"m\"} 5\n");
}

static void operations_of_the_wrong_kind_do_nothing(void **state)
{
    struct sup_series *c = sup_series(m, SUP_M_STEPS, "m", NULL);

    sup_series_observe(c, 3);
    assert_true(sup_series_value(c) == 0);
}

static void label_values_are_escaped_and_valid(void **state)
{
    sup_series_add(sup_series(m, SUP_M_STEPS, "a\"b\\c\nd", NULL), 1);
    has("inferd_steps_total{model=\"a\\\"b\\\\c\\nd\"} 1\n");
    sup_series_add(sup_series(m, SUP_M_STEPS, "x\xff", NULL), 1);
    has("{model=\"x\xEF\xBF\xBD\"} 1\n");
    sup_series_add(sup_series(m, SUP_M_STEPS, NULL, NULL), 1);
    has("inferd_steps_total{model=\"\"} 1\n");
}

static void long_labels_are_cut_between_characters(void **state)
{
    char big[1000], want[400];

    for (int i = 0; i < 999; i += 3)
        memcpy(big + i, "\xE2\x82\xAC", 3);
    big[999] = '\0';
    sup_series_add(sup_series(m, SUP_M_STEPS, big, NULL), 1);
    snprintf(want, sizeof(want), "{model=\"%.255s\"} 1\n", big);
    has(want);
}

static void parts_of_labels_do_not_run_together(void **state)
{
    struct sup_series *a = sup_series(m, SUP_M_TASKS, "ab", "c");
    struct sup_series *b = sup_series(m, SUP_M_TASKS, "a", "bc");

    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(a, sup_series(m, SUP_M_TOKENS, "ab", "c"));
}

static void a_flood_of_label_values_ends_in_other(void **state)
{
    char b[16];
    size_t n = 0;

    for (int i = 0; i < 10000; i++) {
        snprintf(b, sizeof(b), "model%d", i);
        sup_series_add(sup_series(m, SUP_M_TASKS, b, "ok"), 1);
    }
    char *t = text();
    for (const char *p = t; (p = strstr(p, "inferd_tasks_total{")) != NULL; p++)
        n++;
    free(t);
    assert_int_equal(n, SUP_SERIES_MAX);
    has("{model=\"model510\",result=\"ok\"} 1\n");
    has("{model=\"other\",result=\"other\"} 9489\n"); /* nothing is lost */
    /* other metrics have their own room */
    sup_series_add(sup_series(m, SUP_M_STEPS, "model9999", NULL), 1);
    has("inferd_steps_total{model=\"model9999\"} 1\n");
}

static void no_registry_is_no_crash(void **state)
{
    struct sup_series *s = sup_series(NULL, SUP_M_TTFT, "x", NULL);

    assert_non_null(s);
    sup_series_observe(s, 1);
    sup_series_add(s, 1);
    sup_series_set(s, 1);
    assert_true(sup_series_value(s) == 0);
}

static void every_metric_is_documented(void **state)
{
    static const char *const names[] = {
#define X(id, name, kind, l1, l2, help) name,
        SUP_METRICS(X)
#undef X
    };
    FILE *f = fopen(TEST_SOURCE "/docs/operations.md", "r");
    char *page = calloc(1, 1 << 18);

    assert_non_null(page);
    if (!f)
        fail_msg("docs/operations.md is missing");
    assert_true(fread(page, 1, (1 << 18) - 1, f) > 0);
    fclose(f);
    for (size_t i = 0; i < SUP_M_COUNT; i++) {
        char cell[128];

        snprintf(cell, sizeof(cell), "| `%s` |", names[i]);
        if (!strstr(page, cell))
            fail_msg("docs/operations.md has no row for %s", names[i]);
    }
    free(page);
}

#define T(f) cmocka_unit_test_setup_teardown(f, up, down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(counters_and_gauges),
        T(unlabelled_series_exist_from_the_start),
        T(histograms_are_cumulative),
        T(operations_of_the_wrong_kind_do_nothing),
        T(label_values_are_escaped_and_valid),
        T(long_labels_are_cut_between_characters),
        T(parts_of_labels_do_not_run_together),
        T(a_flood_of_label_values_ends_in_other),
        cmocka_unit_test(no_registry_is_no_crash),
        cmocka_unit_test(every_metric_is_documented),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
