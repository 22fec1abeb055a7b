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

static void a_life_that_was_of_use_forgives_the_deaths_before(void **s)
{
    (void)s;
    assert_false(sup_deaths_forgiven(0, 0));
    assert_false(sup_deaths_forgiven(59999, 7));
    assert_true(sup_deaths_forgiven(60000, 0));
    assert_true(sup_deaths_forgiven(0, 8));
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

/* Idle for a minute, loaded for an hour, 10 bytes; changed from there. */
static struct sup_resident idle_one(void)
{
    return (struct sup_resident){
        .idle = true, .idle_ms = 60000, .age_ms = 3600000, .load_ms = 500, .bytes = {10, 0}};
}

static void who_may_be_evicted(void **s)
{
    static const struct {
        const char *what;
        bool idle, pinned;
        uint64_t idle_ms, age_ms, load_ms;
        bool want;
    } rows[] = {
        {"long idle", true, false, 60000, 3600000, 500, true},
        {"busy", false, false, 60000, 3600000, 500, false},
        {"pinned", true, true, 60000, 3600000, 500, false},
        {"just loaded, just used", true, false, 0, 0, 500, false},
        {"one short of its stay", true, false, 0, 1999, 500, false},
        {"its stay is over: at once", true, false, 0, 2000, 500, true},
        {"just loaded, idle for what a load takes", true, false, 500, 600, 500, true},
        {"just loaded, idle a little less", true, false, 499, 600, 500, false},
        {"a quick load stays a second", true, false, 99, 999, 1, false},
        {"a quick load, idle for a tenth", true, false, 100, 101, 1, true},
        {"a slow load stays eight seconds", true, false, 0, 7999, 60000, false},
        {"a slow load, its stay is over", true, false, 0, 8000, 60000, true},
        {"a slow load, idle for two seconds", true, false, 2000, 2001, 60000, true},
        {"times beyond all bounds", true, false, UINT64_MAX, UINT64_MAX, UINT64_MAX, true},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_resident r = {.idle = rows[i].idle,
                                 .pinned = rows[i].pinned,
                                 .idle_ms = rows[i].idle_ms,
                                 .age_ms = rows[i].age_ms,
                                 .load_ms = rows[i].load_ms};

        if (sup_evictable(&r) != rows[i].want)
            fail_msg("%s", rows[i].what);
    }
}

/* The plan as a word: one letter for each that goes. */
static const char *plan(const struct sup_resident *r, size_t n, uint64_t host, uint64_t device,
                        size_t workers)
{
    static char word[16];
    struct sup_shortage s = {{host, device}, workers};
    bool out[8];
    size_t k = sup_evict_plan(r, n, &s, out), at = 0;

    for (size_t i = 0; i < n; i++)
        if (out[i])
            word[at++] = (char)('a' + i);
    word[at] = '\0';
    assert_int_equal(k, at);
    return word;
}

static void those_go_whose_loss_costs_least(void **s)
{
    struct sup_resident r[4];

    (void)s;
    for (int i = 0; i < 4; i++)
        r[i] = idle_one();
    assert_string_equal(plan(r, 4, 0, 0, 0), "");  /* nothing is missing */
    assert_string_equal(plan(r, 4, 5, 0, 0), "a"); /* alike: the first */
    assert_string_equal(plan(r, 0, 5, 0, 0), "");
    r[2].idle_ms = 120000;
    assert_string_equal(plan(r, 4, 5, 0, 0), "c"); /* the longest idle */
    assert_string_equal(plan(r, 4, 0, 0, 1), "c"); /* also for a place */
    r[2].load_ms = 50000;
    assert_string_equal(plan(r, 4, 5, 0, 0), "a"); /* not when it is dear to load */
    r[3].bytes[0] = 100;
    assert_string_equal(plan(r, 4, 100, 0, 0), "d"); /* one large one before ten small */
    assert_string_equal(plan(r, 4, 130, 0, 0), "abcd");
    assert_string_equal(plan(r, 4, 131, 0, 0), ""); /* not enough: nobody goes for nothing */
    r[3].idle = false;
    assert_string_equal(plan(r, 4, 100, 0, 0), "");
    assert_string_equal(plan(r, 4, 30, 0, 0), "abc");
    assert_string_equal(plan(r, 4, 5, 0, 3), "abc"); /* three places, although one has the bytes */
    r[1].pinned = true;
    assert_string_equal(plan(r, 4, 30, 0, 0), "");
}

static void a_large_one_makes_small_ones_needless(void **s)
{
    struct sup_resident r[3] = {idle_one(), idle_one(), idle_one()};

    (void)s;
    r[0].load_ms = 1; /* goes first, and is not enough; then only the large one is */
    r[1].load_ms = 100000;
    r[1].bytes[0] = 50;
    r[2].bytes[0] = 1;
    assert_string_equal(plan(r, 3, 45, 0, 0), "b");
}

static void tiers_are_apart(void **s)
{
    struct sup_resident r[3] = {idle_one(), idle_one(), idle_one()};

    (void)s;
    r[1].bytes[SUP_TIER_DEVICE] = 7;
    assert_string_equal(plan(r, 3, 0, 7, 0), "b"); /* the others have nothing of it */
    assert_string_equal(plan(r, 3, 0, 8, 0), "");
    r[2].bytes[SUP_TIER_DEVICE] = 1;
    assert_string_equal(plan(r, 3, 0, 8, 0), "bc");
}

static void keep_alive_is_the_servers_the_requests_or_for_ever(void **s)
{
    (void)s;
    assert_true(sup_keep_ms(false, UINT64_MAX, 300) == 300000);
    assert_true(sup_keep_ms(false, UINT64_MAX, 0) == UINT64_MAX);
    assert_true(sup_keep_ms(false, 0, 300) == 0);
    assert_true(sup_keep_ms(false, 5000, 0) == 5000);
    assert_true(sup_keep_ms(true, 0, 1) == UINT64_MAX);
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

static struct sup_claim claim(uint64_t weights, uint64_t kv, uint64_t work, uint64_t device)
{
    return (struct sup_claim){{{weights, kv, work}, {device, 0, 0}}};
}

static enum rc reserve(struct sup_ledger *l, struct sup_claim c)
{
    return sup_ledger_reserve(l, &c);
}

static void the_ledger_gives_all_or_nothing_and_takes_back_what_it_gave(void **s)
{
    struct sup_ledger l = {.limit = {100, 10}};
    struct sup_claim a = claim(40, 10, 10, 0), b = claim(30, 10, 0, 10);
    struct sup_claim more = claim(90, 0, 10, 10), too_much = claim(90, 1, 10, 0);
    struct sup_claim little = claim(1, 0, 0, 0), forged = claim(5, 0, 0, 0);
    enum sup_tier tight = SUP_TIER_HOST;

    (void)s;
    assert_int_equal(sup_ledger_reserve(&l, &a), RC_OK);
    assert_int_equal(sup_ledger_reserve(&l, &b), RC_OK);
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_HOST), 100);
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_DEVICE), 10);
    assert_int_equal(reserve(&l, claim(1, 0, 0, 0)), RC_BUSY);
    assert_int_equal(reserve(&l, claim(0, 0, 0, 1)), RC_BUSY);
    assert_int_equal(reserve(&l, claim(50, 50, 1, 0)), RC_LIMIT);
    assert_int_equal(reserve(&l, claim(UINT64_MAX, 2, 0, 0)), RC_LIMIT);
    assert_int_equal(sup_ledger_ask(&l, &(struct sup_claim){{{1, 0, 0}, {11, 0, 0}}}, &tight),
                     RC_LIMIT); /* never beats not now, whichever tier comes first */
    assert_int_equal(tight, SUP_TIER_DEVICE);
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_HOST), 100);
    assert_true(sup_ledger_release(&l, &a));
    assert_true(sup_claim_is_zero(&a));
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_HOST), 40);
    assert_true(sup_ledger_release(&l, &a)); /* zeroed: a second time gives nothing */
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_HOST), 40);
    assert_int_equal(sup_ledger_change(&l, &b, &more, NULL), RC_OK);
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_HOST), 100);
    assert_int_equal(sup_ledger_change(&l, &b, &too_much, &tight), RC_LIMIT);
    assert_int_equal(tight, SUP_TIER_HOST);
    assert_int_equal(b.tier[SUP_TIER_HOST].weights, 90);
    assert_int_equal(sup_ledger_change(&l, &b, &little, NULL), RC_OK);
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_HOST), 1);
    assert_int_equal(sup_ledger_used(&l, SUP_TIER_DEVICE), 0);
    assert_true(sup_ledger_release(&l, &b));
    assert_true(sup_claim_is_zero(&l.used));
    assert_false(sup_ledger_release(&l, &forged)); /* said, and never negative */
    assert_true(sup_claim_is_zero(&l.used));
}

static void a_limit_may_become_known_late(void **s)
{
    struct sup_ledger l = {.limit = {100, UINT64_MAX}};
    struct sup_claim a = claim(0, 0, 0, 1000);

    (void)s;
    assert_int_equal(reserve(&l, claim(0, 0, 0, UINT64_MAX)), RC_LIMIT); /* no number of bytes */
    assert_int_equal(sup_ledger_reserve(&l, &a), RC_OK);
    sup_ledger_limit(&l, SUP_TIER_DEVICE, 800); /* what stands, stands */
    assert_int_equal(l.limit[SUP_TIER_DEVICE], 1000);
    assert_int_equal(reserve(&l, claim(0, 0, 0, 1)), RC_BUSY);
    assert_true(sup_ledger_release(&l, &a));
    assert_string_equal(sup_tier_name(SUP_TIER_HOST), "host");
    assert_string_equal(sup_tier_name(SUP_TIER_DEVICE), "device");
    assert_string_equal(sup_tier_name(SUP_TIERS), "unknown");
}

static void random_claims_never_break_the_sum(void **s)
{
    struct sup_ledger l = {.limit = {1000, 500}};
    struct sup_claim held[16] = {0};
    unsigned seed = 12345, n_busy = 0;

    (void)s;
    for (int i = 0; i < 100000; i++) {
        struct sup_claim *c = &held[(seed = seed * 1103515245 + 12345) >> 16 & 15];
        uint64_t sum[SUP_TIERS] = {0};

        if (!sup_claim_is_zero(c)) {
            assert_true(sup_ledger_release(&l, c));
        } else {
            struct sup_claim want =
                claim(seed >> 3 & 127, seed >> 9 & 63, seed >> 12 & 63, seed >> 5 & 127);

            if (sup_ledger_reserve(&l, &want) == RC_OK)
                *c = want;
            else
                n_busy++;
        }
        for (int t = 0; t < SUP_TIERS; t++) {
            for (int k = 0; k < 16; k++)
                sum[t] += sup_claim_bytes(&held[k], (enum sup_tier)t);
            assert_int_equal(sum[t], sup_ledger_used(&l, (enum sup_tier)t));
            assert_true(sum[t] <= l.limit[t]);
        }
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
    assert_int_equal(sup_window_all(8), 2 * (264 + 256 + 64));
}

static void a_full_queue_says_when_half_of_it_has_ended(void **s)
{
    struct sup_pace p = {0};
    uint64_t now = 5000;

    (void)s;
    assert_int_equal(sup_pace_again_ms(&p, 256), SUP_AGAIN_MIN_MS); /* nothing is known */
    sup_pace_begin(&p, now);
    for (int i = 0; i < 40; i++)
        sup_pace_end(&p, now += 4000);
    assert_int_equal(sup_pace_again_ms(&p, 6), 12000);
    assert_int_equal(sup_pace_again_ms(&p, 0), SUP_AGAIN_MIN_MS);
    assert_int_equal(sup_pace_again_ms(&p, 30), SUP_AGAIN_MAX_MS);
    assert_int_equal(sup_pace_again_ms(&p, UINT32_MAX), SUP_AGAIN_MAX_MS);
    sup_pace_begin(&p, now += 3600000); /* an idle hour is no slow task */
    sup_pace_end(&p, now += 4000);
    assert_int_equal(sup_pace_again_ms(&p, 6), 12000);
    for (int i = 0; i < 60; i++)
        sup_pace_end(&p, now += 10); /* it has become fast: forgotten after some dozens */
    assert_int_equal(sup_pace_again_ms(&p, 6), SUP_AGAIN_MIN_MS);
    sup_pace_end(&p, now - 50); /* a clock that went back */
    assert_int_equal(sup_pace_again_ms(&p, 6), SUP_AGAIN_MIN_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_these_edges_are_legal),
        cmocka_unit_test(back_off_doubles_to_thirty_seconds),
        cmocka_unit_test(a_life_that_was_of_use_forgives_the_deaths_before),
        cmocka_unit_test(every_code_is_permanent_or_passes),
        cmocka_unit_test(who_may_be_evicted),
        cmocka_unit_test(those_go_whose_loss_costs_least),
        cmocka_unit_test(a_large_one_makes_small_ones_needless),
        cmocka_unit_test(tiers_are_apart),
        cmocka_unit_test(keep_alive_is_the_servers_the_requests_or_for_ever),
        cmocka_unit_test(the_poison_rule),
        cmocka_unit_test(suspects_go_one_at_a_time_and_before_others),
        cmocka_unit_test(only_the_guilty_is_convicted),
        cmocka_unit_test(the_ledger_gives_all_or_nothing_and_takes_back_what_it_gave),
        cmocka_unit_test(a_limit_may_become_known_late),
        cmocka_unit_test(random_claims_never_break_the_sum),
        cmocka_unit_test(the_machine_has_a_limit),
        cmocka_unit_test(a_full_queue_says_when_half_of_it_has_ended),
        cmocka_unit_test(windows_keep_a_worker_fed_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
