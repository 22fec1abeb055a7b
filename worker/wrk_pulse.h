/* wrk_pulse.h - a thread that says the process lives while the others compute.
 *
 * Sends Beat every WRK_BEAT_MS while there is work, with a number that rises as the work
 * goes on: so the front tells a process that stands still (no Beat at all) from one whose
 * work stands still (Beat, and the number stays) from one in a long pass (the number
 * rises with every operation). Idle, the thread sleeps without a clock.
 * Page: docs/worker.md. Tests: tests/worker/test_wrk_pulse.c
 */
#ifndef INFERD_WRK_PULSE_H
#define INFERD_WRK_PULSE_H

#include <stdbool.h>
#include <stdint.h>

#include "rc.h"

#define WRK_BEAT_MS 1000u

struct be_ctx;
struct wrk_pulse;

/* channel_fd is borrowed, and must be non-blocking. Makes one thread, so before the sandbox
 * is sealed and after it was applied. Errors: RC_NOMEM, RC_INTERNAL no thread. */
enum rc wrk_pulse_start(struct wrk_pulse **out, int channel_fd, struct rc_err *err);
/* Joins the thread; before what _watch named is freed. Accepts NULL. */
void wrk_pulse_stop(struct wrk_pulse **p);

/* The three below are the serving thread's, and accept NULL. */

/* Is there work? Cheap when the answer is the same as last time. */
void wrk_pulse_work(struct wrk_pulse *p, bool work);
/* Something was done that is no operation of the backend. */
void wrk_pulse_moved(struct wrk_pulse *p);
/* Count the backend's operations from now on (borrowed; NULL = none). */
void wrk_pulse_watch(struct wrk_pulse *p, const struct be_ctx *be);

#endif
