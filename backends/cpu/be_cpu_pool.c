/* be_cpu_pool.c - fork and join of one context's threads.
 *
 * The caller is thread 0; n_threads - 1 helpers wait for an epoch to change,
 * spinning some microseconds (a token has a hundred joins, and a wake-up by the
 * kernel costs more than most of the work), then parked on a futex. With spin
 * off - quota or CPUs below the threads - they park at once.
 *
 * Always true: a range goes to a fixed thread (first touch, caches); helpers only
 * read what the caller wrote before the epoch's release; the caller returns only
 * after each helper's release of `left`. Signals are blocked in helpers.
 * Tests: tests/backends/test_be_cpu_pool.c (also under tsan)
 */
#include "be_cpu.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 40 us on a 3 GHz core: longer than the gap between two linears. */
#define SPIN_ROUNDS 1500

struct helper {
    struct be_cpu_pool *pool;
    pthread_t thread;
    unsigned idx;
};

struct be_cpu_pool {
    /* written by the caller before it publishes an epoch */
    be_cpu_job *fn;
    void *arg;
    size_t n, step;
    unsigned n_threads, n_started;
    bool spin;
    struct helper *helpers;
    _Alignas(64) _Atomic uint32_t epoch;
    _Atomic uint32_t parked; /* helpers inside or about to enter futex_wait */
    _Alignas(64) _Atomic uint32_t left;
    _Atomic uint32_t caller_parked;
    _Atomic bool stop;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void run_range(struct be_cpu_pool *p, unsigned idx)
{
    size_t i0 = idx * p->step, i1 = i0 + p->step;

    if (i0 >= p->n)
        return;
    p->fn(p->arg, idx, i0, i1 < p->n ? i1 : p->n);
}

/* Returns the epoch that differs from seen. parked is raised before the last
 * look at the epoch, and the caller looks at parked after changing it (both
 * sequentially consistent), so no wake-up is lost. */
static uint32_t wait_epoch(struct be_cpu_pool *p, uint32_t seen)
{
    uint32_t e;

    for (unsigned i = 0; p->spin && i < SPIN_ROUNDS; i++) {
        e = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (e != seen)
            return e;
        pause_cpu();
    }
    atomic_fetch_add(&p->parked, 1);
    while ((e = atomic_load(&p->epoch)) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->parked, 1);
    return e;
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct be_cpu_pool *p = h->pool;
    uint32_t seen = 0;

    for (;;) {
        seen = wait_epoch(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_acquire))
            return NULL;
        run_range(p, h->idx);
        if (atomic_fetch_sub(&p->left, 1) == 1 && atomic_load(&p->caller_parked))
            futex_wake(&p->left, 1);
    }
}

static void wait_left(struct be_cpu_pool *p)
{
    uint32_t left;

    for (unsigned i = 0; p->spin && i < 4 * SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&p->left, memory_order_acquire) == 0)
            return;
        pause_cpu();
    }
    atomic_store(&p->caller_parked, 1);
    while ((left = atomic_load(&p->left)) != 0)
        futex_wait(&p->left, left);
    atomic_store(&p->caller_parked, 0);
}

static void publish(struct be_cpu_pool *p)
{
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->parked) > 0)
        futex_wake(&p->epoch, (int)p->n_threads);
}

void be_cpu_pool_run(struct be_cpu_pool *p, size_t n, size_t grain, be_cpu_job *fn, void *arg)
{
    size_t parts;

    if (n == 0)
        return;
    if (grain < 1)
        grain = 1;
    parts = (n + grain - 1) / grain;
    if (parts > p->n_threads)
        parts = p->n_threads;
    if (parts <= 1) {
        fn(arg, 0, 0, n);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    p->step = (n + parts - 1) / parts;
    atomic_store_explicit(&p->left, p->n_threads - 1, memory_order_relaxed);
    publish(p);
    run_range(p, 0);
    wait_left(p);
}

enum rc be_cpu_pool_new(struct be_cpu_pool **out, unsigned n_threads, bool spin, struct rc_err *err)
{
    struct be_cpu_pool *p = aligned_alloc(64, (sizeof(*p) + 63) / 64 * 64);
    sigset_t all, old;
    int bad = 0;

    if (!p)
        return rc_fail(err, RC_NOMEM, "thread pool: no memory");
    *p = (struct be_cpu_pool){.n_threads = n_threads, .spin = spin};
    if (n_threads > 1) {
        p->helpers = calloc(n_threads - 1, sizeof(*p->helpers));
        if (!p->helpers) {
            free(p);
            return rc_fail(err, RC_NOMEM, "thread pool: no memory for %u threads", n_threads);
        }
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (unsigned i = 0; i + 1 < n_threads && !bad; i++) {
        p->helpers[i] = (struct helper){.pool = p, .idx = i + 1};
        bad = pthread_create(&p->helpers[i].thread, NULL, helper_main, &p->helpers[i]);
        if (!bad)
            p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (bad) {
        unsigned started = p->n_started;

        be_cpu_pool_free(&p);
        return rc_fail(err, RC_NOMEM, "thread pool: could not start thread %u of %u (error %d)",
                       started + 2, n_threads, bad);
    }
    *out = p;
    return RC_OK;
}

void be_cpu_pool_free(struct be_cpu_pool **pool)
{
    struct be_cpu_pool *p = *pool;

    if (!p)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_release);
    publish(p);
    for (unsigned i = 0; i < p->n_started; i++)
        pthread_join(p->helpers[i].thread, NULL);
    free(p->helpers);
    free(p);
    *pool = NULL;
}
