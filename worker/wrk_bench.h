/* wrk_bench.h - how fast one model runs in this process. Page: docs/worker.md */
#ifndef INFERD_WRK_BENCH_H
#define INFERD_WRK_BENCH_H

/* argv[2..]: PATH and options, see the usage text of wrk_main.c. Prints one JSON
 * object on stdout. Returns enum wrk_exit. */
int wrk_bench(int argc, char **argv);

#endif
