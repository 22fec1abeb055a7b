/* test_sup_fair.c - turns between tenants: order, shares by weight, nobody starves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_fair.h"

static struct sup_fair f;

static int setup(void **state)
{
    memset(&f, 0, sizeof(f));
    return 0;
}

static int teardown(void **state)
{
    sup_fair_deinit(&f);
    return 0;
}

/* The next one, taken and over at once. */
static struct sup_fair_item *pop(void)
{
    struct sup_fair_item *it = sup_fair_first(&f);

    if (it) {
        sup_fair_take(&f, it);
        sup_fair_leave(&f, it);
    }
    return it;
}

static void push(struct sup_fair_item *it, const char *tenant, uint32_t weight, uint64_t cost)
{
    memset(it, 0, sizeof(*it));
    assert_true(sup_fair_push(&f, it, tenant, weight, cost));
}

static void test_one_tenant_is_first_in_first_out(void **state)
{
    struct sup_fair_item it[50];

    for (int i = 0; i < 50; i++)
        push(&it[i], "a", 1, (uint64_t)(50 - i));
    for (int i = 0; i < 50; i++)
        assert_ptr_equal(pop(), &it[i]);
    assert_null(pop());
    assert_int_equal(f.n_waiting, 0);
}

static void test_a_newcomer_goes_before_a_flood(void **state)
{
    struct sup_fair_item flood[100], b[2];

    for (int i = 0; i < 100; i++)
        push(&flood[i], "a", 1, 10);
    for (int i = 0; i < 20; i++)
        assert_ptr_equal(pop(), &flood[i]);
    push(&b[0], "b", 1, 10);
    push(&b[1], "b", 1, 10);
    assert_ptr_equal(pop(), &b[0]);
    assert_ptr_equal(pop(), &flood[20]);
    assert_ptr_equal(pop(), &b[1]);
    while (pop())
        ;
}

static void test_being_away_saves_nothing_up(void **state)
{
    struct sup_fair_item a[100], b[20];
    int of_b = 0;

    push(&b[0], "b", 1, 1);
    assert_ptr_equal(pop(), &b[0]);
    for (int i = 0; i < 100; i++)
        push(&a[i], "a", 1, 100);
    for (int i = 0; i < 50; i++)
        pop(); /* a was alone: that is not held against it */
    for (int i = 0; i < 20; i++)
        push(&b[i], "b", 1, 100);
    for (int i = 0; i < 20; i++) {
        const struct sup_fair_item *it = pop();

        of_b += it >= b && it < b + 20;
    }
    assert_true(of_b >= 10 && of_b <= 11);
    while (pop())
        ;
    /* nobody waits: a stranger begins where the last one stood, not at nothing */
    push(&a[0], "a", 1, 100);
    push(&b[0], "stranger", 1, 100);
    push(&b[1], "stranger", 1, 100);
    push(&a[1], "a", 1, 100);
    of_b = 0;
    for (int i = 0; i < 2; i++) {
        const struct sup_fair_item *it = pop();

        of_b += it >= b && it < b + 20;
    }
    assert_int_equal(of_b, 1);
    while (pop())
        ;
}

static void test_leaving_while_waiting(void **state)
{
    struct sup_fair_item a[3], b;

    for (int i = 0; i < 3; i++)
        push(&a[i], "a", 1, 5);
    push(&b, "b", 1, 5);
    sup_fair_leave(&f, &a[1]);
    sup_fair_leave(&f, &a[1]); /* again: no matter */
    sup_fair_leave(&f, &b);
    assert_ptr_equal(pop(), &a[0]);
    assert_ptr_equal(pop(), &a[2]);
    assert_null(sup_fair_first(&f));
}

static void test_the_truth_counts(void **state)
{
    struct sup_fair_item a[3], b[3];

    for (int i = 0; i < 3; i++) {
        push(&a[i], "a", 1, 100);
        push(&b[i], "b", 1, 100);
    }
    assert_ptr_equal(sup_fair_first(&f), &b[0]); /* of equals who came last */
    sup_fair_take(&f, &b[0]);
    sup_fair_take(&f, &a[0]);
    sup_fair_settle(&f, &b[0], 10); /* it was cheap: the same tenant again */
    assert_ptr_equal(sup_fair_first(&f), &b[1]);
    sup_fair_settle(&f, &a[0], 5);
    assert_ptr_equal(sup_fair_first(&f), &a[1]);
    sup_fair_settle(&f, &a[1], 0); /* of one that waits there is no truth yet */
    assert_ptr_equal(sup_fair_first(&f), &a[1]);
    sup_fair_settle(&f, &a[0], 500); /* the truth is told once */
    assert_ptr_equal(sup_fair_first(&f), &a[1]);
    sup_fair_take(&f, &a[1]);
    sup_fair_settle(&f, &a[1], 500); /* this one was dear */
    assert_ptr_equal(sup_fair_first(&f), &b[1]);
    for (int i = 0; i < 3; i++) {
        sup_fair_leave(&f, &a[i]);
        sup_fair_leave(&f, &b[i]);
    }
}

/* Ten guesses a hundred times too high are out when a stranger comes: it is not put behind
 * what they will turn out to be. */
static void test_high_guesses_do_not_hold_up_a_newcomer(void **state)
{
    struct sup_fair_item a[40], b[3];
    int turns = 0;

    for (int i = 0; i < 40; i++)
        push(&a[i], "a", 1, 1000);
    for (int i = 0; i < 10; i++)
        sup_fair_take(&f, &a[i]);
    for (int i = 0; i < 3; i++)
        push(&b[i], "b", 1, 10);
    for (int i = 0; i < 10; i++) {
        sup_fair_settle(&f, &a[i], 10);
        sup_fair_leave(&f, &a[i]);
    }
    for (int of_b = 0; of_b < 3; turns++) {
        const struct sup_fair_item *it = pop();

        of_b += it >= b && it < b + 3;
    }
    assert_true(turns <= 4);
    while (pop())
        ;
}

static void test_views(void **state)
{
    struct sup_fair_item a[3], b;
    const struct sup_fair_flow *at = NULL;
    struct sup_fair_view v;
    unsigned n = 0;

    for (int i = 0; i < 3; i++)
        push(&a[i], "a", 7, 1);
    push(&b, "b", 1, 1);
    sup_fair_take(&f, &a[0]);
    while ((at = sup_fair_next(&f, at, &v)))
        n += v.tenant[0] == 'a' ? 100 + (unsigned)v.n_waiting * 10 + (unsigned)v.n_taken : 1;
    assert_int_equal(n, 122);
    assert_false(sup_fair_find(&f, "c", &v));
    assert_true(sup_fair_find(&f, "b", &v) && v.n_waiting == 1 && v.newest == &b);
    sup_fair_of(&a[2], &v);
    assert_true(v.weight == 7 && v.newest == &a[2]);
    for (int i = 0; i < 3; i++)
        sup_fair_leave(&f, &a[i]);
    sup_fair_leave(&f, &b);
    assert_null(sup_fair_next(&f, NULL, &v));
    assert_false(sup_fair_find(&f, "b", &v)); /* remembered, and has nothing */
}

static void test_memory_of_idle_tenants_is_bounded(void **state)
{
    struct sup_fair_item it;
    char name[16];

    for (int i = 0; i < 4 * SUP_FAIR_IDLE_MAX; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        push(&it, name, 1, 1);
        assert_ptr_equal(pop(), &it);
    }
    assert_int_equal(f.n_idle, SUP_FAIR_IDLE_MAX);
    assert_int_equal(f.n_flows, SUP_FAIR_IDLE_MAX);
    memset(&it, 0, sizeof(it));
    assert_false(sup_fair_push(&f, &it, /* longer than a tenant's name can be */
                               "0123456789012345678901234567890123456789012345678901234567890123",
                               1, 1));
}

/* ------------------------------------------------------------- the properties */

#define TENANTS 6
#define QUEUED 8

static uint64_t rng = 1;
static uint32_t rnd(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

/* Tenants who always want more get shares by weight, whatever their requests cost, and
 * whether costs were guessed well or not. */
static void shares(uint64_t seed, bool guesses_are_bad)
{
    static const uint32_t weights[TENANTS] = {1, 1, 2, 3, 5, 10};
    static const uint32_t costs[TENANTS] = {10, 2000, 300, 50, 700, 120};
    struct sup_fair_item it[TENANTS][QUEUED];
    double got[TENANTS] = {0}, all = 0, sum = 0;
    char name[2] = "a";

    rng = seed;
    for (int k = 0; k < TENANTS; k++)
        for (int i = 0; i < QUEUED; i++) {
            name[0] = (char)('a' + k);
            push(&it[k][i], name, weights[k], 1 + rnd(2 * costs[k]));
        }
    while (all < 3e6) {
        struct sup_fair_item *first = sup_fair_first(&f);
        size_t k = (size_t)(first - it[0]) / QUEUED;
        uint64_t truth = guesses_are_bad ? 1 + rnd(3 * costs[k]) : first->cost;

        sup_fair_take(&f, first);
        sup_fair_settle(&f, first, truth);
        sup_fair_leave(&f, first);
        got[k] += (double)truth;
        all += (double)truth;
        name[0] = (char)('a' + (char)k);
        push(first, name, weights[k], 1 + rnd(2 * costs[k]));
    }
    for (int k = 0; k < TENANTS; k++)
        sum += weights[k];
    for (int k = 0; k < TENANTS; k++) {
        double want = weights[k] / sum, is = got[k] / all;

        if (is < want * 0.95 || is > want * 1.05)
            fail_msg("seed %llu, tenant %d: share %.4f, expected %.4f", (unsigned long long)seed, k,
                     is, want);
    }
    while (pop())
        ;
}

static void test_shares_by_weight(void **state)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        shares(seed, false);
        shares(seed, true);
    }
}

/* Random comings and goings: whoever waits is served before the others got more than its
 * due: no request waits longer than it takes to give each other tenant what its own weight
 * allows, and one more request. */
static void test_nobody_starves(void **state)
{
    enum { N = 40 };
    struct sup_fair_item it[N], *out[4] = {0};
    unsigned waited[N] = {0}, n_out = 0, worst = 0;
    char name[8];

    rng = 7;
    memset(it, 0, sizeof(it));
    for (int step = 0; step < 200000; step++) {
        uint32_t i = rnd(N);

        if (!it[i].flow) { /* 8 tenants; the first floods */
            snprintf(name, sizeof(name), "t%u", i < N / 2 ? 0 : 1 + i % 7);
            push(&it[i], name, 1 + i % 3, 1 + rnd(100));
            waited[i] = 0;
        } else if (rnd(20) == 0) {
            for (unsigned k = 0; k < 4; k++)
                if (out[k] == &it[i]) {
                    out[k] = NULL;
                    n_out--;
                }
            sup_fair_leave(&f, &it[i]);
        }
        if (n_out < 4 && sup_fair_first(&f)) {
            struct sup_fair_item *first = sup_fair_first(&f);

            sup_fair_take(&f, first);
            for (unsigned k = 0; k < 4; k++)
                if (!out[k]) {
                    out[k] = first;
                    n_out++;
                    break;
                }
            for (unsigned k = 0; k < N; k++)
                if (it[k].waiting && ++waited[k] > worst)
                    worst = waited[k];
        }
        for (unsigned k = 0; k < 4; k++)
            if (out[k] && rnd(4) == 0) {
                sup_fair_settle(&f, out[k], 1 + rnd(150));
                sup_fair_leave(&f, out[k]);
                out[k] = NULL;
                n_out--;
            }
    }
    assert_true(worst < 400); /* turns; a flood's own line is 20 long, costs differ by 150 */
    for (unsigned k = 0; k < N; k++)
        sup_fair_leave(&f, &it[k]);
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_one_tenant_is_first_in_first_out),
        T_(test_a_newcomer_goes_before_a_flood),
        T_(test_being_away_saves_nothing_up),
        T_(test_leaving_while_waiting),
        T_(test_the_truth_counts),
        T_(test_high_guesses_do_not_hold_up_a_newcomer),
        T_(test_views),
        T_(test_memory_of_idle_tenants_is_bounded),
        T_(test_shares_by_weight),
        T_(test_nobody_starves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
