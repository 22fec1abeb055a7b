/* test_wrk_sample.c - the sampler against a reference that sorts everything, its
 * distribution, its independence of everything but its inputs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_sample.h"
#include "wrk_sample_vec.h"

#define SEED 20260101u

static const struct wrk_sampling greedy = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1};

static uint32_t lcg_state = SEED;
static uint32_t lcg(void)
{
    lcg_state = lcg_state * 1664525u + 1013904223u;
    return lcg_state >> 8;
}
static float normal(void)
{
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += (float)lcg() / 16777216.0f;
    return s - 6;
}

/* ---------------------------------------------------------------- reference */

struct ref {
    double p;
    uint32_t id;
};
static int by_p(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}
static int by_id(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}
/* Locally typical: by distance of -ln p from the entropy, until the mass is reached. */
static double surprise[20001];
static int by_surprise(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    double dx = surprise[x->id], dy = surprise[y->id];

    if (dx != dy)
        return dx < dy ? -1 : 1;
    return by_id(a, b);
}
static uint32_t typical(struct ref *r, uint32_t n, double mass, double *edge)
{
    double sum = 0, entropy = 0, cum = 0;
    uint32_t k = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += r[i].p;
    for (uint32_t i = 0; i < n; i++)
        entropy -= r[i].p > 0 ? r[i].p / sum * log(r[i].p / sum) : 0;
    for (uint32_t i = 0; i < n; i++)
        surprise[r[i].id] = fabs(-log(r[i].p / sum) - entropy);
    qsort(r, n, sizeof(*r), by_surprise);
    for (; k < n && cum < mass * sum; k++) {
        cum += r[k].p;
        if (fabs(cum / sum - mass) < *edge)
            *edge = fabs(cum / sum - mass);
    }
    /* two tokens on either side of the expected surprise may be equally far from it */
    if (k < n && surprise[r[k].id] - surprise[r[k - 1].id] < 1e-5 && r[k].p != r[k - 1].p)
        *edge = 0;
    return k;
}

/* Kept tokens with probabilities, ascending id. *edge: how close a filter's
 * decision was (smaller = closer), so that rounding cannot fail the test. */
static uint32_t reference(const float *x, uint32_t n, const struct wrk_sampling *p, struct ref *r,
                          double *edge)
{
    double max = x[0], sum = 0, cum = 0, kept = 0;
    uint32_t m = n, k = 0;

    *edge = 1;
    for (uint32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++) {
        r[i].id = i;
        r[i].p = exp((double)((x[i] - (float)max) / p->temperature));
    }
    qsort(r, n, sizeof(*r), by_p);
    if (p->top_k > 0 && p->top_k < n)
        m = p->top_k;
    for (uint32_t i = 0; i < m; i++)
        sum += r[i].p;
    if (p->top_p < 1) {
        for (k = 0; k < m && cum < p->top_p * sum; k++) {
            cum += r[k].p;
            if (fabs(cum / sum - p->top_p) < *edge)
                *edge = fabs(cum / sum - p->top_p);
        }
        m = k;
    }
    for (k = 0; k < m; k++) {
        double d = fabs(r[k].p / r[0].p - p->min_p);
        if (p->min_p > 0 && d < *edge)
            *edge = d;
        if (r[k].p < p->min_p * r[0].p)
            break;
    }
    m = k;
    if (p->typical_p < 1)
        m = typical(r, m, p->typical_p, edge);
    for (uint32_t i = 0; i < m; i++)
        kept += r[i].p;
    for (uint32_t i = 0; i < m; i++)
        r[i].p /= kept;
    qsort(r, m, sizeof(*r), by_id);
    return m;
}

static void draws_equal_the_reference(void **state)
{
    static const struct {
        float t, top_p, min_p;
        uint32_t top_k;
        float typical_p; /* 0 = off */
    } cases[] = {
        {1, 1, 0, 0},
        {0.7f, 1, 0, 0},
        {1, 0.9f, 0, 0},
        {1, 0.5f, 0, 0},
        {1, 1, 0.05f, 0},
        {1, 1, 0, 40},
        {1, 0.95f, 0, 64},
        {1, 0.95f, 0.02f, 64},
        {2.5f, 0.99f, 0, 0},
        {0.05f, 0.9f, 0, 0},
        {1, 0.999f, 0, 1500},
        {1, 1, 0, 2},
        {1, 0.0001f, 0, 0},
        {1, 1, 1, 0},
        {100, 0.7f, 0, 0},
        {1, 0.8f, 0.3f, 0},
        {1e-30f, 1, 0, 0},
        {1, 1, 0, 100000},
        {1, 0.9f, 0, 3000},
        {1, 1, 0, 9000},
        {1, 0.7f, 0, 12000},
        {1, 1, 0, 0, 0.9f},
        {0.7f, 1, 0, 0, 0.2f},
        {1, 0.9f, 0, 0, 0.5f},
        {1, 1, 0, 40, 0.6f},
        {1, 0.9f, 0.02f, 64, 0.95f},
        {2.5f, 1, 0.05f, 0, 0.4f},
        {1, 1, 0, 0, 1e-6f},
        {1e-30f, 1, 0, 0, 0.5f},
    };
    static const uint32_t sizes[] = {1, 2, 7, 64, 65, 1000, 1024, 1025, 4099, 20001};
    static float x[20001];
    static struct ref r[20001];
    unsigned compared = 0;

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
            struct wrk_sampler sm;
            struct wrk_sampling p = greedy;
            uint32_t n = sizes[s], m;
            double edge;

            p.temperature = cases[c].t;
            p.top_p = cases[c].top_p;
            p.min_p = cases[c].min_p;
            p.typical_p = cases[c].typical_p > 0 ? cases[c].typical_p : 1;
            p.top_k = cases[c].top_k;
            assert_int_equal(wrk_sampler_init(&sm, n, NULL), RC_OK);
            for (int round = 0; round < (n > 5000 ? 3 : 20); round++) {
                struct wrk_rng a, b;
                double u, cum = 0, gap = 1;
                int32_t got = -1, want = -1;

                for (uint32_t i = 0; i < n; i++) /* ties in every other round */
                    x[i] = round % 2 ? normal() * 3 : (float)(lcg() % 12);
                m = reference(x, n, &p, r, &edge);
                wrk_rng_seed(&a, lcg());
                b = a;
                u = wrk_rng_unit(&b);
                for (uint32_t i = 0; i < m; i++) {
                    cum += r[i].p;
                    if (fabs(cum - u) < gap)
                        gap = fabs(cum - u);
                    if (want < 0 && u < cum)
                        want = (int32_t)r[i].id;
                }
                assert_int_equal(wrk_sample(&sm, x, &p, NULL, &a, &got, NULL), RC_OK);
                if (edge < 1e-5 || gap < 1e-5 || want < 0)
                    continue;
                compared++;
                if (got != want)
                    fail_msg("n %u case %zu round %d seed %u: got %d want %d (kept %u)", n, c,
                             round, SEED, got, want, m);
            }
            wrk_sampler_deinit(&sm);
        }
    assert_true(compared > 2000);
}

static void frequencies_follow_the_distribution(void **state)
{
    /* chi-square, 9 degrees of freedom: 27.9 is the 0.1 % point; fixed seed */
    const float x[10] = {0, 1, 2, 0.5f, -1, 1.5f, 0.2f, -2, 0.9f, 1.1f};
    struct wrk_sampling p = greedy;
    struct wrk_sampler sm;
    struct wrk_rng rng;
    double z = 0, chi = 0;
    int hits[10] = {0};
    const int n = 20000;

    (void)state;
    p.temperature = 1;
    assert_int_equal(wrk_sampler_init(&sm, 10, NULL), RC_OK);
    wrk_rng_seed(&rng, 7);
    for (int i = 0; i < n; i++) {
        int32_t t = -1;
        assert_int_equal(wrk_sample(&sm, x, &p, NULL, &rng, &t, NULL), RC_OK);
        assert_in_range(t, 0, 9);
        hits[t]++;
    }
    for (int i = 0; i < 10; i++)
        z += exp(x[i]);
    for (int i = 0; i < 10; i++) {
        double want = n * exp(x[i]) / z;
        chi += (hits[i] - want) * (hits[i] - want) / want;
    }
    assert_true(chi < 27.9);
    wrk_sampler_deinit(&sm);
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    float x[100] = {0};
    struct wrk_sampler sm;
    int32_t t = -1;

    (void)state;
    x[70] = x[31] = x[90] = 5;
    assert_int_equal(wrk_sampler_init(&sm, 100, NULL), RC_OK);
    assert_int_equal(wrk_sample(&sm, x, &greedy, NULL, NULL, &t, NULL), RC_OK);
    assert_int_equal(t, 31);
    wrk_sampler_deinit(&sm);
}

static void bias_and_penalties_move_tokens(void **state)
{
    static const struct {
        const char *name;
        float rep, freq, pres, bias5;
        int32_t want;
    } cases[] = {
        {"nothing set", 1, 0, 0, 0, 3},
        {"bias lifts token 5", 1, 0, 0, 20, 5},
        {"repetition pushes 3 (10/2 = 5) below 4 (9)", 2, 0, 0, 0, 4},
        {"frequency: 3 was generated 3 times, 10 - 3*0.5 = 8.5", 1, 0.5f, 0, 0, 4},
        {"frequency too small: 10 - 3*0.2 = 9.4", 1, 0.2f, 0, 0, 3},
        {"presence counts once: 10 - 1.5", 1, 0, 1.5f, 0, 4},
        {"presence ignores the prompt: token 4 was only there", 1, 0, 1.5f, 0, 4},
        {"negative penalties invite", 1, 0, -2, 0, 3},
    };
    const float x[8] = {-5, 0, 1, 10, 9, -4, 2, 3};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct wrk_bias b = {5, cases[i].bias5};
        struct wrk_sampling p = greedy;
        struct wrk_counts counts = {0};
        struct wrk_sampler sm;
        int32_t t = -1;

        p.repetition_penalty = cases[i].rep;
        p.frequency_penalty = cases[i].freq;
        p.presence_penalty = cases[i].pres;
        p.bias = &b;
        p.n_bias = 1;
        assert_int_equal(wrk_counts_init(&counts, 8, NULL), RC_OK);
        for (int k = 0; k < 3; k++)
            wrk_counts_add(&counts, 3, true);
        if (strstr(cases[i].name, "prompt"))
            wrk_counts_add(&counts, 4, false);
        assert_int_equal(wrk_sampler_init(&sm, 8, NULL), RC_OK);
        assert_int_equal(wrk_sample(&sm, x, &p, &counts, NULL, &t, NULL), RC_OK);
        if (t != cases[i].want)
            fail_msg("%s: %d, expected %d", cases[i].name, t, cases[i].want);
        wrk_sampler_deinit(&sm);
        wrk_counts_deinit(&counts);
    }
}

/* Two tokens, of which the first was said once; the second wins when the first falls below. */
static void penalties_come_behind_the_bias_and_know_the_sign(void **state)
{
    static const struct {
        const char *name;
        float x0, x1, bias, rep, freq, pres;
        int32_t want;
    } cases[] = {
        {"below zero a repeat is multiplied: -1 * 2", -1, -1.5f, 0, 2, 0, 0, 1},
        {"and a penalty below 1 lifts it: -1 * 0.5", -1, -0.6f, 0, 0.5f, 0, 0, 0},
        {"above zero it lifts too: 1 / 0.5", 1, 1.9f, 0, 0.5f, 0, 0, 0},
        {"the bias is part of what is penalised: (10 - 12) * 2 = -4", 10, -5, -12, 2, 0, 0, 0},
        {"the same from below: (-1 + 9) / 2 = 4", -1, 5, 9, 2, 0, 0, 1},
        {"frequency behind repetition: 8 / 2 - 1 = 3", 8, 3.2f, 0, 2, 1, 0, 1},
        {"presence behind repetition: 8 / 2 - 1 = 3", 8, 2.8f, 0, 2, 0, 1, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const float x[2] = {cases[i].x0, cases[i].x1};
        struct wrk_bias b = {0, cases[i].bias};
        struct wrk_sampling p = greedy;
        struct wrk_counts counts = {0};
        struct wrk_sampler sm;
        int32_t t = -1;

        p.repetition_penalty = cases[i].rep;
        p.frequency_penalty = cases[i].freq;
        p.presence_penalty = cases[i].pres;
        p.bias = &b;
        p.n_bias = 1;
        assert_int_equal(wrk_counts_init(&counts, 2, NULL), RC_OK);
        wrk_counts_add(&counts, 0, true);
        assert_int_equal(wrk_sampler_init(&sm, 2, NULL), RC_OK);
        assert_int_equal(wrk_sample(&sm, x, &p, &counts, NULL, &t, NULL), RC_OK);
        if (t != cases[i].want)
            fail_msg("%s: %d, expected %d", cases[i].name, t, cases[i].want);
        wrk_sampler_deinit(&sm);
        wrk_counts_deinit(&counts);
    }
}

static void counts_hold_all_distinct_tokens(void **state)
{
    struct wrk_counts c = {0};
    uint32_t seen = 0;

    (void)state;
    assert_int_equal(wrk_counts_init(&c, 1000, NULL), RC_OK);
    for (int round = 0; round < 3; round++)
        for (int32_t t = 0; t < 1000; t++)
            wrk_counts_add(&c, t * 257, true);
    assert_int_equal(c.n, 1000);
    for (uint32_t i = 0; i < c.cap; i++)
        if (c.slot[i].token >= 0) {
            assert_int_equal(c.slot[i].generated, 3);
            seen++;
        }
    assert_int_equal(seen, 1000);
    wrk_counts_deinit(&c);
}

static void rows_that_are_not_finite_are_refused(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct wrk_sampler sm;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(wrk_sampler_init(&sm, 33, NULL), RC_OK);
    for (size_t i = 0; i < 3; i++)
        for (uint32_t at = 0; at < 33; at += 16) {
            float x[33] = {0}, lp;
            int32_t t = -1;

            x[at] = bad[i];
            assert_int_equal(wrk_sample(&sm, x, &greedy, NULL, NULL, &t, &err), RC_INTERNAL);
            assert_int_equal(wrk_logprobs(&sm, x, 0, 0, &lp, NULL, &err), RC_INTERNAL);
            assert_int_equal(t, -1);
        }
    wrk_sampler_deinit(&sm);
}

static void logprobs_are_log_softmax(void **state)
{
    static float x[4099];
    static struct ref r[4099];
    struct wrk_sampling one = greedy;
    struct wrk_sampler sm;
    struct wrk_top top[WRK_TOP_MAX];
    float lp;
    double edge;

    (void)state;
    one.temperature = 1;
    assert_int_equal(wrk_sampler_init(&sm, 4099, NULL), RC_OK);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4099; i++)
            x[i] = round % 2 ? normal() * 4 : (float)(lcg() % 30);
        reference(x, 4099, &one, r, &edge); /* ascending id, probabilities */
        for (int k = 0; k <= WRK_TOP_MAX; k += 16) {
            int32_t tok = (int32_t)(lcg() % 4099);

            assert_int_equal(wrk_logprobs(&sm, x, tok, (uint32_t)k, &lp, top, NULL), RC_OK);
            assert_true(fabs(lp - log(r[tok].p)) < 2e-5);
            for (int j = 0; j < k; j++) {
                assert_true(fabs(top[j].logprob - log(r[top[j].token].p)) < 2e-5);
                if (j > 0) /* descending; equal values by ascending id */
                    assert_true(x[top[j].token] < x[top[j - 1].token] ||
                                (x[top[j].token] == x[top[j - 1].token] &&
                                 top[j].token > top[j - 1].token));
            }
            if (k > 0) {
                uint32_t above = 0;
                for (int i = 0; i < 4099; i++)
                    above += x[i] > x[top[k - 1].token];
                assert_true(above < (uint32_t)k);
            }
        }
    }
    wrk_sampler_deinit(&sm);
}

static void exp_is_within_a_millionth(void **state)
{
    (void)state;
    assert_true(wrk_vec_exp1(0) == 1.0f);
    assert_true(wrk_vec_exp1(-1000) == 0.0f);
    assert_true(wrk_vec_exp1(-INFINITY) == 0.0f);
    for (double x = 0; x > -87; x -= 0.00317) {
        double want = exp((double)(float)x), got = wrk_vec_exp1((float)x);
        if (fabs(got - want) > 1e-6 * want)
            fail_msg("exp(%g) = %g, expected %g", x, got, want);
    }
}

static void same_seed_same_draws(void **state)
{
    struct wrk_rng a, b, c;
    int differ = 0;

    (void)state;
    wrk_rng_seed(&a, 42);
    wrk_rng_seed(&b, 42);
    wrk_rng_seed(&c, 43);
    for (int i = 0; i < 1000; i++) {
        double x = wrk_rng_unit(&a);
        assert_true(x >= 0 && x < 1);
        assert_true(x == wrk_rng_unit(&b));
        differ += x != wrk_rng_unit(&c);
    }
    assert_true(differ > 990);
}

/* A mask equals logits of minus infinity, in both its forms. */
static void a_mask_takes_the_others_away(void **state)
{
    enum { N = 1000 };
    static float x[N], low[N];
    static uint64_t bits[(N + 63) / 64];
    static uint32_t ids[N];
    struct wrk_sampler s;
    struct wrk_counts counts = {0};
    struct wrk_bias bias[] = {{3, 5}, {500, -3}};

    (void)state;
    assert_int_equal(wrk_sampler_init(&s, N, NULL), RC_OK);
    assert_int_equal(wrk_counts_init(&counts, 64, NULL), RC_OK);
    for (int i = 0; i < 40; i++)
        wrk_counts_add(&counts, (int32_t)(lcg() % N), i % 2 == 0);
    for (int turn = 0; turn < 400; turn++) {
        struct wrk_sampling p = greedy;
        struct wrk_gr_mask m = {0};
        struct wrk_rng rng[3];
        bool penal = turn % 3 == 0;
        int32_t got[3];

        memset(bits, 0, sizeof(bits));
        for (uint32_t i = 0; i < N; i++) {
            x[i] = normal() * 3;
            low[i] = -1e30f;
            if (lcg() % (turn % 2 == 0 ? 3 : 300) != 0 && i != 77)
                continue;
            bits[i / 64] |= 1ull << (i % 64);
            ids[m.n++] = i;
            low[i] = x[i];
        }
        p.temperature = turn % 5 == 0 ? 0 : 0.8f;
        p.top_k = turn % 4 == 1 ? 20 : 0;
        p.top_p = turn % 4 == 2 ? 0.7f : 1;
        p.min_p = turn % 7 == 3 ? 0.05f : 0;
        p.repetition_penalty = penal ? 1.4f : 1;
        p.presence_penalty = penal ? 0.5f : 0;
        p.bias = bias;
        p.n_bias = penal ? 2 : 0;
        for (int k = 0; k < 3; k++) {
            m.ids = k == 1 ? ids : NULL;
            m.bits = k == 2 ? bits : NULL;
            wrk_rng_seed(&rng[k], (uint64_t)turn);
            assert_int_equal(wrk_sample_allowed(&s, k == 0 ? low : x, &p, penal ? &counts : NULL,
                                                k == 0 ? NULL : &m, &rng[k], &got[k], NULL),
                             RC_OK);
        }
        assert_true((bits[got[1] / 64] >> (got[1] % 64) & 1) != 0);
        assert_int_equal(got[1], got[0]);
        assert_int_equal(got[2], got[0]);
        assert_memory_equal(&rng[1], &rng[2], sizeof(rng[1])); /* one draw each */
    }
    wrk_counts_deinit(&counts);
    wrk_sampler_deinit(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_equal_the_reference),
        cmocka_unit_test(frequencies_follow_the_distribution),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(bias_and_penalties_move_tokens),
        cmocka_unit_test(penalties_come_behind_the_bias_and_know_the_sign),
        cmocka_unit_test(counts_hold_all_distinct_tokens),
        cmocka_unit_test(rows_that_are_not_finite_are_refused),
        cmocka_unit_test(logprobs_are_log_softmax),
        cmocka_unit_test(exp_is_within_a_millionth),
        cmocka_unit_test(same_seed_same_draws),
        cmocka_unit_test(a_mask_takes_the_others_away),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
