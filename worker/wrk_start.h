/* wrk_start.h - one thread at main().
 *
 * OpenBLAS starts its threads in a library constructor, before main(). Landlock
 * and capabilities are per thread, so such a thread would stay outside the
 * sandbox. wrk_start.c runs before every constructor (.preinit_array) and shows
 * them a single processor; wrk_start_restore undoes that as main's first act.
 * Tests: tests/worker/test_wrk_sandbox.c (layer "single-thread")
 */
#ifndef INFERD_WRK_START_H
#define INFERD_WRK_START_H

/* Gives the process its processors back. Referencing it links the early hook. */
void wrk_start_restore(void);

/* Threads of this process now; 0 when /proc cannot say. Before the sandbox. */
unsigned wrk_start_count_threads(void);

#endif
