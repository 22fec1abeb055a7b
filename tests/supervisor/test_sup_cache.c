/* test_sup_cache.c - namespaces of the prompt cache, and the dealing of its budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "sup_cache.h"

static void a_namespace_depends_on_each_field_and_nothing_else(void **state)
{
    static const struct {
        const char *tenant, *key;
        size_t n_key;
    } rows[] = {
        {"default", "", 0},     {"default", "a", 1},   {"default", "ab", 2}, {"default", "a\0b", 3},
        {"defaulta", "", 0},    {"defaul", "t", 1},    {"", "default", 7},   {"", "", 0},
        {"default", "a\0c", 3}, {"default", "a\0", 2},
    };
    struct sup_cache_secret s = {{1, 2, 3}}, other = {{1, 2, 4}};
    uint8_t ns[10][SUP_CACHE_NS_BYTES], again[SUP_CACHE_NS_BYTES];

    (void)state;
    for (int i = 0; i < 10; i++) {
        sup_cache_ns(ns[i], &s, rows[i].tenant, rows[i].key, rows[i].n_key);
        sup_cache_ns(again, &s, rows[i].tenant, rows[i].key, rows[i].n_key);
        assert_memory_equal(ns[i], again, sizeof(again));
        sup_cache_ns(again, &other, rows[i].tenant, rows[i].key, rows[i].n_key);
        assert_memory_not_equal(ns[i], again, sizeof(again));
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(ns[i], ns[k], sizeof(ns[i]));
    }
}

static void every_start_has_another_secret(void **state)
{
    struct sup_cache_secret a = {{0}}, b = {{0}};

    (void)state;
    assert_int_equal(sup_cache_secret_new(&a, NULL), RC_OK);
    assert_int_equal(sup_cache_secret_new(&b, NULL), RC_OK);
    assert_memory_not_equal(&a, &b, sizeof(a));
}

static void the_budget_is_dealt_by_demand_and_never_exceeded(void **state)
{
    static const struct {
        const char *what;
        uint64_t total, cap[3], demand[3], want[3];
    } rows[] = {
        {"no total: all of each cache", 0, {10, 20, 30}, {1, 0, 0}, {10, 20, 30}},
        {"more than all can use", 1000, {10, 20, 30}, {1, 0, 0}, {10, 20, 30}},
        {"nobody asks: evenly", 300, {1000, 1000, 1000}, {0, 0, 0}, {100, 100, 100}},
        {"half evenly, half by demand", 600, {1000, 1000, 1000}, {0, 1, 2}, {100, 200, 300}},
        {"what one cannot use goes to the others",
         600,
         {1000, 40, 1000},
         {1, 8, 1},
         {280, 40, 280}},
        {"one alone", 600, {1000, 0, 0}, {0, 5, 0}, {600, 0, 0}},
        {"an absurd demand",
         1ull << 40,
         {UINT64_MAX, 5, UINT64_MAX},
         {UINT64_MAX, 1, 0},
         {UINT64_MAX, UINT64_MAX, UINT64_MAX}},
    };

    (void)state;
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct sup_cache_share w[3];
        uint64_t sum = 0;

        for (int i = 0; i < 3; i++)
            w[i] = (struct sup_cache_share){rows[r].cap[i], rows[r].demand[i], 7};
        sup_cache_deal(w, 3, rows[r].total);
        for (int i = 0; i < 3; i++) {
            if (rows[r].want[0] != UINT64_MAX && w[i].bytes + 2 < rows[r].want[i])
                fail_msg("%s: worker %d gets %llu", rows[r].what, i,
                         (unsigned long long)w[i].bytes);
            assert_true(w[i].bytes <= rows[r].cap[i]);
            sum += w[i].bytes;
        }
        if (rows[r].total > 0)
            assert_true(sum <= rows[r].total);
    }
    sup_cache_deal(NULL, 0, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_namespace_depends_on_each_field_and_nothing_else),
        cmocka_unit_test(every_start_has_another_secret),
        cmocka_unit_test(the_budget_is_dealt_by_demand_and_never_exceeded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
