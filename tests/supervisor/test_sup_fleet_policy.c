/* test_sup_fleet_policy.c - the fleet's decisions, exhaustively where they are
 * finite, and the ledger's sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_fleet_policy.h"
#include "sup_ledger.h"

static void only_these_edges_are_legal(void **s)
{
    static const char *const legal[] = {
        "absent>starting",  "absent>failed",    "starting>loading", "starting>draining",
        "starting>cooling", "starting>failed",  "loading>ready",    "loading>draining",
        "loading>cooling",  "loading>failed",   "ready>busy",       "ready>draining",
        "ready>cooling",    "busy>ready",       "busy>draining",    "busy>cooling",
        "draining>absent",  "draining>cooling", "cooling>starting", "cooling>absent",
        "cooling>failed",   "failed>starting",  "failed>absent",
    };
    size_t n = 0;

    (void)s;
    for (int a = 0; a < SUP_SLOT_N; a++)
        for (int b = 0; b < SUP_SLOT_N; b++) {
            char edge[64];
            bool want = false;

            snprintf(edge, sizeof(edge), "%s>%s", sup_slot_state_name((enum sup_slot_state)a),
                     sup_slot_state_name((enum sup_slot_state)b));
            for (size_t i = 0; i < sizeof(legal) / sizeof(legal[0]); i++)
                want |= strcmp(legal[i], edge) == 0;
            n += want;
            if (sup_slot_edge_legal((enum sup_slot_state)a, (enum sup_slot_state)b) != want)
                fail_msg("%s", edge);
        }
    assert_int_equal(n, sizeof(legal) / sizeof(legal[0]));
    assert_false(sup_slot_edge_legal(SUP_SLOT_N, SUP_SLOT_ABSENT));
    assert_false(sup_slot_edge_legal(SUP_SLOT_ABSENT, SUP_SLOT_N));
    assert_string_equal(sup_slot_state_name(SUP_SLOT_N), "unknown");
}

static void back_off_doubles_to_thirty_seconds(void **s)
{
    static const uint64_t death[] = {0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000};
    static const uint64_t load[] = {0, 1000, 2000, 4000, 8000, 16000, 30000};

    (void)s;
    for (unsigned i = 0; i < 11; i++)
        assert_int_equal(sup_death_backoff_ms(i), death[i]);
    for (unsigned i = 0; i < 7; i++)
        assert_int_equal(sup_load_backoff_ms(i), load[i]);
    assert_int_equal(sup_death_backoff_ms(4000000000u), 30000);
    assert_int_equal(sup_load_backoff_ms(4000000000u), 30000);
}

static void every_code_is_permanent_or_passes(void **s)
{
    static const enum rc permanent[] = {RC_INVALID,   RC_FORMAT,        RC_UNSUPPORTED,
                                        RC_NOT_FOUND, RC_TOO_LARGE,     RC_LIMIT,
                                        RC_STATE,     RC_WEIGHT_ABSENT, RC_CONFLICT};

    (void)s;
#define X(name, value, text)                                                  \
    do {                                                                      \
        bool want = false;                                                    \
        for (size_t i = 0; i < sizeof(permanent) / sizeof(permanent[0]); i++) \
            want |= permanent[i] == RC_##name;                                \
        if (sup_load_permanent(RC_##name) != want)                            \
            fail_msg(#name);                                                  \
    } while (0);
    RC_MAP(X)
#undef X
}

static void the_longest_idle_goes_and_never_a_busy_one(void **s)
{
    struct sup_resident r[] = {{false, 1}, {true, 50}, {true, 20}, {true, 20}, {false, 0}};

    (void)s;
    assert_int_equal(sup_evict_choose(r, 5), 2);
    assert_int_equal(sup_evict_choose(r, 2), 1);
    assert_true(sup_evict_choose(r, 1) == SIZE_MAX);
    assert_true(sup_evict_choose(r, 0) == SIZE_MAX);
}

static void the_poison_rule(void **s)
{
    static const struct {
        struct sup_presence p;
        enum sup_verdict want;
    } rows[] = {
        /* delivered deaths alone */
        {{true, 0, true}, SUP_CRASHED},    {{true, 5, true}, SUP_CRASHED},
        {{true, 1, false}, SUP_CRASHED},   {{false, 0, true}, SUP_RETRY},
        {{false, 0, false}, SUP_RETRY},    {{false, 1, true}, SUP_POISONED},
        {{false, 1, false}, SUP_RETRY},    {{false, 2, true}, SUP_POISONED},
        {{false, 2, false}, SUP_POISONED},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (sup_poison_judge(&rows[i].p) != rows[i].want)
            fail_msg("row %zu", i);
}

static void suspects_go_one_at_a_time_and_before_others(void **s)
{
    static const struct {
        size_t n_sent;
        bool trial;
        size_t n_suspects;
        unsigned deaths;
        enum sup_turn want;
    } rows[] = {
        {0, false, 0, 0, SUP_TURN_ALL},     {7, false, 0, 0, SUP_TURN_ALL},
        {1, true, 0, 0, SUP_TURN_WAIT},     {1, true, 3, 1, SUP_TURN_WAIT},
        {0, false, 3, 1, SUP_TURN_SUSPECT}, {1, false, 3, 1, SUP_TURN_SUSPECT},
        {0, false, 1, 2, SUP_TURN_SUSPECT}, {1, false, 1, 2, SUP_TURN_WAIT},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (sup_poison_turn(rows[i].n_sent, rows[i].trial, rows[i].n_suspects, rows[i].deaths) !=
            rows[i].want)
            fail_msg("row %zu", i);
}

/* Plays the rule against every possible culprit: n tasks in a batch, one kills its
 * worker whenever it runs before its first frame. Nobody else is convicted. */
static void only_the_guilty_is_convicted(void **s)
{
    (void)s;
    for (unsigned n = 1; n <= 8; n++)
        for (unsigned guilty = 0; guilty < n; guilty++) {
            unsigned deaths[8] = {0}, left = n, worker_deaths = 0;
            bool done[8] = {false}, convicted[8] = {false};

            /* all at once first: the batch dies */
            for (unsigned i = 0; i < n; i++) {
                struct sup_presence p = {false, deaths[i], n == 1};

                assert_int_equal(sup_poison_judge(&p), SUP_RETRY);
                deaths[i]++;
            }
            worker_deaths++;
            while (left) {
                unsigned i = 0;

                while (done[i])
                    i++;
                assert_int_equal(sup_poison_turn(0, false, left, deaths[i]), SUP_TURN_SUSPECT);
                if (i == guilty) {
                    struct sup_presence p = {false, deaths[i], true};

                    worker_deaths++;
                    convicted[i] = sup_poison_judge(&p) == SUP_POISONED;
                    assert_true(convicted[i]);
                }
                done[i] = true;
                left--;
            }
            for (unsigned i = 0; i < n; i++)
                assert_int_equal(convicted[i], i == guilty);
            assert_int_equal(worker_deaths, 2);
        }
}

static void the_ledger_gives_all_or_nothing_and_takes_back_what_it_gave(void **s)
{
    struct sup_ledger l = {.limit = 100};
    struct sup_claim a = {40, 10, 10}, b = {30, 10, 0}, c = {1, 0, 0}, never = {50, 50, 1};
    struct sup_claim wrap = {UINT64_MAX, 2, 0};

    (void)s;
    assert_int_equal(sup_ledger_reserve(&l, &a), RC_OK);
    assert_int_equal(sup_ledger_reserve(&l, &b), RC_OK);
    assert_int_equal(sup_ledger_used(&l), 100);
    assert_int_equal(sup_ledger_reserve(&l, &c), RC_BUSY);
    assert_int_equal(sup_ledger_reserve(&l, &never), RC_LIMIT);
    assert_int_equal(sup_ledger_reserve(&l, &wrap), RC_LIMIT);
    assert_int_equal(sup_ledger_used(&l), 100);
    assert_true(sup_ledger_release(&l, &a));
    assert_int_equal(sup_ledger_used(&l), 40);
    assert_true(sup_ledger_release(&l, &a)); /* zeroed: a second time gives nothing */
    assert_int_equal(sup_ledger_used(&l), 40);
    assert_int_equal(sup_ledger_change(&l, &b, &(struct sup_claim){90, 0, 10}), RC_OK);
    assert_int_equal(sup_ledger_used(&l), 100);
    assert_int_equal(sup_ledger_change(&l, &b, &(struct sup_claim){90, 1, 10}), RC_LIMIT);
    assert_int_equal(b.weights, 90);
    assert_int_equal(sup_ledger_change(&l, &b, &(struct sup_claim){1, 0, 0}), RC_OK);
    assert_int_equal(sup_ledger_used(&l), 1);
    assert_true(sup_ledger_release(&l, &b));
    assert_int_equal(sup_ledger_used(&l), 0);
    struct sup_claim forged = {5, 0, 0};
    assert_false(sup_ledger_release(&l, &forged)); /* said, and never negative */
    assert_int_equal(sup_ledger_used(&l), 0);
}

static void random_claims_never_break_the_sum(void **s)
{
    struct sup_ledger l = {.limit = 1000};
    struct sup_claim held[16] = {{0}};
    unsigned seed = 12345, n_busy = 0;

    (void)s;
    for (int i = 0; i < 100000; i++) {
        struct sup_claim *c = &held[(seed = seed * 1103515245 + 12345) >> 16 & 15];
        uint64_t sum = 0;

        if (sup_claim_bytes(c)) {
            assert_true(sup_ledger_release(&l, c));
        } else {
            struct sup_claim want = {seed >> 3 & 127, seed >> 9 & 63, seed >> 12 & 63};

            if (sup_ledger_reserve(&l, &want) == RC_OK)
                *c = want;
            else
                n_busy++;
        }
        for (int k = 0; k < 16; k++)
            sum += sup_claim_bytes(&held[k]);
        assert_int_equal(sum, sup_ledger_used(&l));
        assert_true(sum <= l.limit);
    }
    assert_true(n_busy > 100);
}

static void the_machine_has_a_limit(void **s)
{
    uint64_t v = sup_memory_limit();

    (void)s;
    assert_true(v >= 64u << 20 && v < 1ull << 50);
}

/* units out, tasks out, of this tenant, units asked -> may it go */
static void windows_keep_a_worker_fed_and_no_more(void **s)
{
    const struct sup_window_most seqs = sup_window_seqs(8), one = sup_window_seqs(1),
                                 pass = sup_window_pass(4000), text = sup_window_text();
    const struct {
        const struct sup_window_most *most;
        uint64_t out;
        uint32_t tasks;
        size_t own;
        uint64_t units;
        bool fits;
    } rows[] = {
        {&seqs, 0, 0, 0, 1, true},
        {&seqs, 9, 9, 9, 1, true}, /* 8 and 2 ahead */
        {&seqs, 10, 10, 10, 1, false},
        {&seqs, 10, 10, 0, 1, false}, /* whoever it is: it would only wait in the worker */
        {&seqs, 6, 6, 6, 64, true},   /* counts as half of what runs: it is cut up there */
        {&seqs, 7, 7, 7, 64, false},
        {&one, 0, 0, 0, 64, true},
        {&one, 1, 1, 1, 1, true},
        {&one, 2, 2, 2, 1, false},
        {&pass, 0, 0, 0, 1u << 20, true},
        {&pass, 4000, 15, 15, 1, true}, /* a few, however long */
        {&pass, 3900, 16, 16, 100, true},
        {&pass, 3901, 16, 16, 100, false},
        {&pass, 3000, 16, 16, 1u << 20, true}, /* a large one counts as a quarter */
        {&pass, 3001, 16, 16, 1u << 20, false},
        {&pass, 4000, 200, 1, 1, true}, /* who has next to nothing there is not shut out */
        {&pass, 4000, 200, 2, 1, false},
        {&pass, 100, 256, 0, 1, false},
        {&text, 0, 63, 63, 1, true},
        {&text, 0, 64, 0, 1, false},
        {&text, 65536, 17, 17, 1, false},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_window out = {rows[i].tasks, rows[i].out};

        if (sup_window_fits(&out, rows[i].units, rows[i].own, rows[i].most) != rows[i].fits)
            fail_msg("row %zu", i);
        assert_true(rows[i].most->each >= 1 && rows[i].most->each <= rows[i].most->units);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_these_edges_are_legal),
        cmocka_unit_test(back_off_doubles_to_thirty_seconds),
        cmocka_unit_test(every_code_is_permanent_or_passes),
        cmocka_unit_test(the_longest_idle_goes_and_never_a_busy_one),
        cmocka_unit_test(the_poison_rule),
        cmocka_unit_test(suspects_go_one_at_a_time_and_before_others),
        cmocka_unit_test(only_the_guilty_is_convicted),
        cmocka_unit_test(the_ledger_gives_all_or_nothing_and_takes_back_what_it_gave),
        cmocka_unit_test(random_claims_never_break_the_sum),
        cmocka_unit_test(the_machine_has_a_limit),
        cmocka_unit_test(windows_keep_a_worker_fed_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
