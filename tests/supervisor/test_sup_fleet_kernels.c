/* test_sup_fleet_kernels.c - a worker's running totals become counters that outlive it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sup_fleet_impl.h"

static double value(struct sup_fleet *f, enum sup_metric id, const char *label)
{
    return sup_series_value(sup_series(f->metrics, id, "m", label));
}

static void totals_of_two_lives_add_up(void **state)
{
    uint64_t dispatch[6] = {1, 2, 3, 4, 5, 6}, format[11] = {[7] = 70, [10] = 100};
    Ipc__KernelStats k = IPC__KERNEL_STATS__INIT;
    struct sup_fleet f = {.metrics = sup_metrics_new()};
    struct worker w = {.f = &f};

    (void)state;
    k.dispatch = dispatch;
    k.n_dispatch = 6;
    k.by_format = format;
    k.n_by_format = 11;
    k.slow_fallbacks = 1;
    k.graph_replays = 8;
    k.h2d_bytes = 1000;
    k.jit_corrupt = 2;
    k.hot_compiles = 3;
    k.jit_active = 9;
    worker_kernels(&w, "m", &k);
    worker_kernels(&w, "m", &k); /* the same again is no rise */
    assert_true(value(&f, SUP_M_KERNEL_DISPATCHES, "jit") == 1);
    assert_true(value(&f, SUP_M_KERNEL_DISPATCHES, "reference") == 6);
    assert_true(value(&f, SUP_M_KERNEL_PRODUCTS, "Q4_K") == 70);
    assert_true(value(&f, SUP_M_KERNEL_PRODUCTS, "BF16") == 100);
    assert_true(value(&f, SUP_M_KERNEL_FALLBACKS, "slow") == 1);
    assert_true(value(&f, SUP_M_DEVICE_STEPS, "replayed") == 8);
    assert_true(value(&f, SUP_M_DEVICE_COPIES, "to_device") == 1000);
    assert_true(value(&f, SUP_M_JIT_CACHE, "corrupt") == 2);
    assert_true(value(&f, SUP_M_JIT, "hot_compile") == 3);
    assert_true(value(&f, SUP_M_JIT_KERNELS, "active") == 9);

    w = (struct worker){.f = &f}; /* the next worker counts from 0 */
    k.h2d_bytes = 10;
    k.jit_active = 1;
    worker_kernels(&w, "m", &k);
    assert_true(value(&f, SUP_M_DEVICE_COPIES, "to_device") == 1010);
    assert_true(value(&f, SUP_M_KERNEL_DISPATCHES, "jit") == 2);
    assert_true(value(&f, SUP_M_JIT_KERNELS, "active") == 1);
    sup_metrics_free(&f.metrics);
}

static void a_worker_that_lies_adds_nothing_it_may_not(void **state)
{
    uint64_t many[64];
    Ipc__KernelStats k = IPC__KERNEL_STATS__INIT;
    struct sup_fleet f = {.metrics = sup_metrics_new()};
    struct worker w = {.f = &f};

    (void)state;
    for (int i = 0; i < 64; i++)
        many[i] = 5;
    k.dispatch = k.by_format = many; /* longer than any table */
    k.n_dispatch = k.n_by_format = 64;
    k.syncs = 100;
    worker_kernels(&w, "m", &k);
    assert_true(value(&f, SUP_M_KERNEL_DISPATCHES, "reference") == 5);
    k.n_dispatch = 1; /* shorter */
    k.syncs = 1;      /* falls */
    worker_kernels(&w, "m", &k);
    assert_true(value(&f, SUP_M_DEVICE_SYNCS, NULL) == 100);
    assert_true(value(&f, SUP_M_KERNEL_DISPATCHES, "jit") == 5);
    sup_metrics_free(&f.metrics);
}

static void files_that_a_worker_decoded(void **state)
{
    Ipc__Stats s = IPC__STATS__INIT;
    struct sup_fleet f = {.metrics = sup_metrics_new()};
    struct worker w = {.f = &f};

    (void)state;
    s.media_decoded = 3;
    s.media_refused = 1;
    s.media_decode_us = 2500000;
    s.media_bytes = 77;
    worker_media(&w, "m", &s);
    worker_media(&w, "m", &s);
    assert_true(value(&f, SUP_M_MEDIA, "decoded") == 3);
    assert_true(value(&f, SUP_M_MEDIA, "refused") == 1);
    assert_true(value(&f, SUP_M_MEDIA_SECONDS, NULL) == 2.5);
    assert_true(value(&f, SUP_M_MEDIA_BYTES, NULL) == 77);
    worker_media_none(&w, "m"); /* it died: what it held is gone, what it did is not */
    assert_true(value(&f, SUP_M_MEDIA_BYTES, NULL) == 0);
    w = (struct worker){.f = &f};
    s.media_decoded = 2;
    worker_media(&w, "m", &s);
    assert_true(value(&f, SUP_M_MEDIA, "decoded") == 5);
    sup_metrics_free(&f.metrics);
}

static void passes_of_an_encoder(void **state)
{
    Ipc__Stats s = IPC__STATS__INIT;
    struct sup_fleet f = {.metrics = sup_metrics_new()};
    struct worker w = {.f = &f};

    (void)state;
    s.embed_passes = 10;
    s.embed_waits = 4;
    s.embed_wait_us = 500000;
    worker_passes(&w, "m", &s);
    worker_passes(&w, "m", &s);
    assert_true(value(&f, SUP_M_EMBED_PASSES, "some") == 4);
    assert_true(value(&f, SUP_M_EMBED_PASSES, "none") == 6);
    assert_true(value(&f, SUP_M_EMBED_WAIT_SECONDS, NULL) == 0.5);
    s.embed_waits = 11; /* more than there were */
    worker_passes(&w, "m", &s);
    assert_true(value(&f, SUP_M_EMBED_PASSES, "some") == 4);
    w = (struct worker){.f = &f};
    s.embed_passes = 1;
    s.embed_waits = 0;
    worker_passes(&w, "m", &s);
    assert_true(value(&f, SUP_M_EMBED_PASSES, "none") == 7);
    sup_metrics_free(&f.metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_of_two_lives_add_up),
        cmocka_unit_test(a_worker_that_lies_adds_nothing_it_may_not),
        cmocka_unit_test(files_that_a_worker_decoded),
        cmocka_unit_test(passes_of_an_encoder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
