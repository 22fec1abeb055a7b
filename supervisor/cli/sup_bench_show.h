/* sup_bench_show.h - what `inferd bench` measured, for people.
 * Tests: tests/supervisor/test_sup_cli_bench.c, tests/e2e/cli_bench.py */
#ifndef INFERD_SUP_BENCH_SHOW_H
#define INFERD_SUP_BENCH_SHOW_H

#include <jansson.h>
#include <stdio.h>

/* o: the worker's object (docs/bench.md). What it lacks is left out; nothing of it is
 * trusted: texts are cleaned, numbers that are none are 0. */
void sup_bench_show(FILE *to, const json_t *o);

#endif
