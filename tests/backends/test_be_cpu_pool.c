/* test_be_cpu_pool.c - the thread pool and what decides its size. Run under tsan
 * too: short, but thousands of joins with and without spinning. */
#include "be_test.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "../../backends/cpu/be_cpu.h"

struct marks {
    uint32_t *count;
    uint64_t sum;
    size_t grain;
    unsigned threads_seen;
};

static void mark(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct marks *m = arg;

    assert_true(i0 < i1);
    for (size_t i = i0; i < i1; i++)
        m->count[i]++; /* plain writes: two threads on one index would race */
    if (thread > 0)
        __atomic_fetch_or(&m->threads_seen, 1u << thread, __ATOMIC_RELAXED);
}

static void each_index_runs_once(void **state)
{
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 100, 1001};

    for (unsigned n_threads = 1; n_threads <= 5; n_threads++) {
        for (int spin = 0; spin < 2; spin++) {
            struct be_cpu_pool *p = NULL;

            OK(be_cpu_pool_new(&p, n_threads, spin, err));
            for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                for (size_t grain = 0; grain < 12; grain += 5) {
                    struct marks m = {.count = xcalloc(sizes[s], sizeof(uint32_t))};

                    be_cpu_pool_run(p, sizes[s], grain, mark, &m);
                    for (size_t i = 0; i < sizes[s]; i++)
                        assert_int_equal(m.count[i], 1);
                    free(m.count);
                }
            }
            be_cpu_pool_free(&p);
            assert_null(p);
        }
    }
}

struct chain {
    uint64_t in[64], out[64];
};

static void step(void *arg, unsigned thread, size_t i0, size_t i1)
{
    struct chain *c = arg;

    for (size_t i = i0; i < i1; i++)
        c->out[i] = c->in[(i + 1) % 64] * 6364136223846793005ull + i; /* another's value */
}

/* Each round reads what other threads wrote in the last: a lost release or a join
 * that returns early changes the result. Pauses let helpers park. */
static void rounds_see_each_other(void **state)
{
    struct chain a = {.in = {1}}, b = {.in = {1}};
    struct be_cpu_pool *p = NULL, *one = NULL;

    OK(be_cpu_pool_new(&p, 4, true, err));
    OK(be_cpu_pool_new(&one, 1, true, err));
    for (int r = 0; r < 3000; r++) {
        be_cpu_pool_run(p, 64, 1, step, &a);
        memcpy(a.in, a.out, sizeof(a.in));
        be_cpu_pool_run(one, 64, 1, step, &b);
        memcpy(b.in, b.out, sizeof(b.in));
        if (r % 500 == 499)
            usleep(2000);
    }
    assert_memory_equal(a.out, b.out, sizeof(a.out));
    be_cpu_pool_free(&p);
    be_cpu_pool_free(&one);
}

static void quotas_are_read(void **state)
{
    assert_true(be_cpu_quota_v2("max 100000\n") < 0);
    assert_true(be_cpu_quota_v2("50000 100000\n") == 0.5);
    assert_true(be_cpu_quota_v2("400000 100000") == 4);
    assert_true(be_cpu_quota_v2("") < 0);
    assert_true(be_cpu_quota_v2("50000") < 0);
    assert_true(be_cpu_quota_v2("50000 0") < 0);
    assert_true(be_cpu_quota_v1("-1\n", "100000\n") < 0);
    assert_true(be_cpu_quota_v1("150000\n", "100000\n") == 1.5);
    assert_true(be_cpu_quota_v1("x", "y") < 0);
}

static void affinity_bounds_the_threads(void **state)
{
    cpu_set_t all, one;
    bool spin;
    unsigned n;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    n = be_host_threads(0, &spin);
    assert_true(n >= 1 && n <= (unsigned)CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(be_host_threads(0, &spin), 1);
    assert_int_equal(be_host_threads(3, &spin), 3); /* asked for: given, but */
    assert_false(spin);                            /* never spinning */
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static void levels_are_chosen_by_name(void **state)
{
    struct be_opts o = {.backend = "cpu", .n_threads = 1, .cpu_level = "mmx"};
    struct be_ctx *c = NULL;
    struct be_stats st;

    FAILS(RC_UNSUPPORTED, be_ctx_new(&c, &o, err));
    o.cpu_level = "c";
    OK(be_ctx_new(&c, &o, err));
    be_ctx_stats(c, &st);
    assert_string_equal(st.kernels, "c");
    assert_int_equal(st.n_threads, 1);
    be_ctx_free(&c);
    o.cpu_level = "auto";
    o.n_threads = BE_CPU_MAX_THREADS + 1;
    FAILS(RC_INVALID, be_ctx_new(&c, &o, err));
    o.n_threads = 1;
    o.device = 1;
    FAILS(RC_NOT_FOUND, be_ctx_new(&c, &o, err));
    o.device = 0;
    o.backend = "tpu";
    FAILS(RC_NOT_FOUND, be_ctx_new(&c, &o, err));
    assert_null(c);
    be_ctx_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_index_runs_once),      cmocka_unit_test(rounds_see_each_other),
        cmocka_unit_test(quotas_are_read),           cmocka_unit_test(affinity_bounds_the_threads),
        cmocka_unit_test(levels_are_chosen_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
