/* wrk_bench_stat.c - median and spread of some runs, and their JSON.
 * Tests: tests/worker/test_wrk_bench.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_bench_impl.h"

void wrk_bench_add(struct wrk_bench_runs *r, double v)
{
    if (r->n < WRK_BENCH_RUNS)
        r->v[r->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static struct wrk_bench_runs sorted(const struct wrk_bench_runs *r)
{
    struct wrk_bench_runs s = *r;

    qsort(s.v, s.n, sizeof(s.v[0]), by_value);
    return s;
}

double wrk_bench_median(const struct wrk_bench_runs *r)
{
    struct wrk_bench_runs s = sorted(r);

    return s.n > 0 ? (s.v[(s.n - 1) / 2] + s.v[s.n / 2]) / 2 : 0;
}

double wrk_bench_spread(const struct wrk_bench_runs *r)
{
    struct wrk_bench_runs s = sorted(r);
    double median = wrk_bench_median(r);

    return s.n > 0 && median != 0 ? (s.v[s.n - 1] - s.v[0]) / median : 0;
}

void wrk_bench_put(json_t *o, const char *name, const struct wrk_bench_runs *r)
{
    json_t *runs = json_array();
    char key[64];

    for (uint32_t i = 0; i < r->n; i++)
        json_array_append_new(runs, json_real(r->v[i]));
    json_object_set_new(o, name, json_real(wrk_bench_median(r)));
    snprintf(key, sizeof(key), "%s_spread", name);
    json_object_set_new(o, key, json_real(wrk_bench_spread(r)));
    snprintf(key, sizeof(key), "%s_runs", name);
    json_object_set_new(o, key, runs);
}
