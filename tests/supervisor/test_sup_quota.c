/* test_sup_quota.c - both sides of each limit, with a clock of our own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "sup_quota.h"

#define NOON (20000ull * 86400 + 43200)

static struct sup_quota *q;
static struct sup_clock now;
static struct sup_quota_no no;

static int setup(void **state)
{
    q = sup_quota_new(SUP_TENANTS_MAX);
    now = (struct sup_clock){.mono_us = 1000000, .unix_s = NOON};
    memset(&no, 0, sizeof(no));
    return 0;
}

static int teardown(void **state)
{
    sup_quota_free(&q);
    sup_quota_free(&q);
    return 0;
}

static struct sup_tenant *enter(const char *tenant, const struct sup_limits *l)
{
    struct sup_tenant *t = NULL;

    sup_quota_enter(q, tenant, l, &now, &t, &no);
    return t;
}

static void pass_ms(uint64_t ms)
{
    now.mono_us += ms * 1000;
}

static void test_no_limits(void **state)
{
    const struct sup_limits none = {0};
    struct sup_quota_left r, t;
    struct sup_tenant *x;

    for (int i = 0; i < 10000; i++) {
        x = enter("a", &none);
        assert_non_null(x);
        assert_true(sup_quota_charge(x, 1u << 30, 0, &now, &no));
    }
    sup_quota_show(q, "a", &now, &r, &t);
    assert_true(r.limit == 0 && t.limit == 0);
    assert_string_equal(sup_tenant_label(x), "a");
    assert_string_equal(sup_quota_label(q, "a"), "a");
    sup_quota_show(q, "never heard of", &now, &r, &t);
    assert_true(r.limit == 0 && t.limit == 0);
    assert_int_equal(sup_quota_tenants(q), 1);
}

static void test_requests_a_minute(void **state)
{
    const struct sup_limits l = {.requests_per_minute = 3};
    struct sup_quota_left r, tok;
    struct sup_tenant *t = NULL;

    for (int i = 0; i < 3; i++) {
        assert_non_null(t = enter("a", &l));
        sup_quota_leave(q, &t);
    }
    assert_null(enter("a", &l));
    assert_int_equal(no.why, SUP_QUOTA_REQUESTS);
    assert_string_equal(no.what, "requests_per_minute");
    assert_int_equal(no.limit, 3);
    assert_true(no.retry_ms >= 20000 && no.retry_ms <= 20001);
    assert_non_null(enter("b", &l)); /* another tenant's is another bucket */
    pass_ms(no.retry_ms - 2);
    assert_null(enter("a", &l)); /* a moment too early */
    assert_int_equal(no.retry_ms, 1000);
    pass_ms(2);
    assert_non_null(t = enter("a", &l)); /* at the time that was told */
    assert_null(enter("a", &l));
    sup_quota_show(q, "a", &now, &r, &tok);
    assert_true(r.limit == 3 && r.left == 0);
    assert_true(r.reset_ms >= 59000 && r.reset_ms <= 60001);
    pass_ms(600000); /* more than a minute's worth is never there */
    for (int i = 0; i < 3; i++)
        assert_non_null(enter("a", &l));
    assert_null(enter("a", &l));
}

static void test_what_was_refused_costs_nothing(void **state)
{
    const struct sup_limits l = {.requests_per_minute = 60};

    for (int i = 0; i < 60; i++)
        assert_non_null(enter("a", &l));
    for (int i = 0; i < 1000; i++)
        assert_null(enter("a", &l));
    pass_ms(1001);
    assert_non_null(enter("a", &l));
    assert_null(enter("a", &l));
}

static void test_concurrency(void **state)
{
    const struct sup_limits l = {.concurrency = 2};
    struct sup_tenant *a = enter("a", &l), *b = enter("a", &l);

    assert_true(a && b);
    assert_null(enter("a", &l));
    assert_int_equal(no.why, SUP_QUOTA_CONCURRENCY);
    assert_int_equal(no.retry_ms, 1000);
    assert_true(no.need == 3 && no.limit == 2);
    sup_quota_leave(q, &a);
    assert_null(a);
    assert_non_null(enter("a", &l));
}

static void test_tokens_a_minute(void **state)
{
    const struct sup_limits l = {.tokens_per_minute = 600};
    struct sup_tenant *t = enter("a", &l);
    struct sup_quota_left r, tok;

    assert_true(sup_quota_charge(t, 600, 0, &now, &no)); /* all of it at once */
    assert_false(sup_quota_charge(t, 1, 0, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_TOKENS);
    assert_int_equal(no.retry_ms, 1000); /* 100 ms, told as a second */
    assert_false(sup_quota_charge(t, 300, 0, &now, &no));
    assert_true(no.retry_ms >= 30000 && no.retry_ms <= 30001);
    assert_null(enter("a", &l)); /* before its body is read: not even one token is left */
    assert_int_equal(no.why, SUP_QUOTA_TOKENS);
    pass_ms(30001);
    sup_quota_show(q, "a", &now, &r, &tok);
    assert_true(tok.limit == 600 && tok.left == 300 && r.limit == 0);
    assert_true(tok.reset_ms >= 29999 && tok.reset_ms <= 30001);
    assert_true(sup_quota_charge(t, 300, 0, &now, &no));
}

static void test_what_never_fits(void **state)
{
    struct sup_limits l = {.tokens_per_minute = 600};
    struct sup_tenant *t = enter("a", &l);

    assert_false(sup_quota_charge(t, 601, 0, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_NEVER);
    assert_true(no.retry_ms == 0 && no.need == 601 && no.limit == 600);
    assert_string_equal(no.what, "tokens_per_minute");
    /* in parts: together they never fit, though each would */
    assert_true(sup_quota_charge(t, 400, 0, &now, &no));
    assert_false(sup_quota_charge(t, 201, 400, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_NEVER);
    assert_true(sup_quota_charge(t, 200, 400, &now, &no));
    assert_false(sup_quota_charge(t, UINT64_MAX, UINT64_MAX, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_NEVER);
    l = (struct sup_limits){.tokens_per_day = 1000};
    t = enter("b", &l);
    assert_false(sup_quota_charge(t, 1001, 0, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_NEVER);
    assert_string_equal(no.what, "tokens_per_day");
    assert_true(sup_quota_charge(t, 1000, 0, &now, &no));
}

static void test_the_guess_is_put_right(void **state)
{
    const struct sup_limits l = {.tokens_per_minute = 600, .tokens_per_day = 10000};
    struct sup_tenant *t = enter("a", &l);
    struct sup_quota_left r, tok;

    assert_true(sup_quota_charge(t, 500, 0, &now, &no));
    sup_quota_settle(t, 500, now.unix_s, 100, &now);
    sup_quota_show(q, "a", &now, &r, &tok);
    assert_int_equal(tok.left, 500);
    sup_quota_settle(t, 0, now.unix_s, 1100, &now); /* more than the bucket holds: a debt */
    sup_quota_show(q, "a", &now, &r, &tok);
    assert_int_equal(tok.left, 0);
    assert_null(enter("a", &l));
    assert_true(no.retry_ms >= 60100 && no.retry_ms <= 60101);
    pass_ms(60101);
    assert_non_null(enter("a", &l));
    sup_quota_settle(t, 5000, now.unix_s, 0, &now); /* never below nothing */
    sup_quota_show(q, "a", &now, &r, &tok);
    assert_int_equal(tok.left, 600);
}

static void test_tokens_a_day(void **state)
{
    const struct sup_limits l = {.tokens_per_day = 1000};
    struct sup_tenant *t = enter("a", &l);

    assert_true(sup_quota_charge(t, 999, 0, &now, &no));
    assert_true(sup_quota_charge(t, 1, 0, &now, &no));
    assert_false(sup_quota_charge(t, 1, 0, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_DAY);
    assert_int_equal(no.retry_ms, 43200 * 1000); /* until midnight, UTC */
    assert_null(enter("a", &l));
    assert_int_equal(no.why, SUP_QUOTA_DAY);
    now.unix_s += 43199;
    assert_null(enter("a", &l));
    assert_int_equal(no.retry_ms, 1000);
    now.unix_s += 1;
    assert_non_null(enter("a", &l));
    assert_true(sup_quota_charge(t, 600, 0, &now, &no));
    sup_quota_settle(t, 1000, NOON, 1, &now); /* yesterday's guess changes nothing today */
    assert_true(sup_quota_charge(t, 400, 0, &now, &no));
    assert_false(sup_quota_charge(t, 1, 0, &now, &no));
    now.unix_s -= 86400; /* a clock set back gives no new day */
    assert_false(sup_quota_charge(t, 1, 0, &now, &no));
    assert_int_equal(no.why, SUP_QUOTA_DAY);
}

static void test_two_keys_of_one_tenant(void **state)
{
    const struct sup_limits small = {.requests_per_minute = 2}, large = {.requests_per_minute = 10};

    assert_non_null(enter("a", &small));
    assert_non_null(enter("a", &small));
    assert_null(enter("a", &small));
    for (int i = 0; i < 8; i++) /* what the small one used is used */
        assert_non_null(enter("a", &large));
    assert_null(enter("a", &large));
}

static void test_table_is_bounded(void **state)
{
    const struct sup_limits l = {.requests_per_minute = 1};
    struct sup_tenant *t, *held;
    char name[16];

    sup_quota_free(&q);
    q = sup_quota_new(3);
    assert_non_null(held = enter("held", &l));
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        assert_non_null(t = enter(name, &l));
        sup_quota_leave(q, &t);
    }
    assert_int_equal(sup_quota_tenants(q), 3);
    assert_null(enter("t4", &l));         /* remembered */
    assert_null(enter("held", &l));       /* in work: never forgotten */
    assert_non_null(t = enter("t0", &l)); /* forgotten: begins anew, in place of t3 */
    assert_non_null(enter("t9", &l));     /* in place of t4 */
    assert_null(enter("full", &l));       /* all three are in work */
    assert_int_equal(no.why, SUP_QUOTA_TENANTS);
    assert_int_equal(no.retry_ms, 1000);
    sup_quota_leave(q, &held);
    assert_non_null(enter("full", &l));
}

static void test_labels_are_bounded(void **state)
{
    const struct sup_limits none = {0};
    struct sup_tenant *t;
    char name[16];

    for (int i = 0; i < SUP_TENANT_LABELS + 5; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        t = enter(name, &none);
        assert_string_equal(sup_tenant_label(t), i < SUP_TENANT_LABELS ? name : "other");
        assert_string_equal(sup_quota_label(q, name), sup_tenant_label(t));
    }
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_no_limits),
        T_(test_requests_a_minute),
        T_(test_what_was_refused_costs_nothing),
        T_(test_concurrency),
        T_(test_tokens_a_minute),
        T_(test_what_never_fits),
        T_(test_the_guess_is_put_right),
        T_(test_tokens_a_day),
        T_(test_two_keys_of_one_tenant),
        T_(test_table_is_bounded),
        T_(test_labels_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
