/* wrk_pace.h - how many rows of prompts a pass may hold.
 *
 * Rows of prompts make everyone's next token late. The gap between two tokens is held
 * to about WRK_PACE_GAP times what it is without prompts (engine.md 4.2 allows four), from
 * measured times: a processor gets few rows, a GPU many. Without decoders a pass is held
 * to about a second, for who arrives or leaves is heard between passes. Answers do not depend on
 * it. Pure arithmetic. Tests: tests/worker/test_wrk_pace.c
 */
#ifndef INFERD_WRK_PACE_H
#define INFERD_WRK_PACE_H

#include <stdint.h>

#define WRK_PACE_GAP 3u      /* aimed at: times vary by a third */
#define WRK_PACE_LEAST 16u   /* rows: prompts always get on */
#define WRK_PACE_MOST 256u   /* rows */
#define WRK_PACE_UNKNOWN 32u /* rows, before anything was measured */

#define WRK_PACE_PASS_US 1000000 /* a pass of prompts alone */
#define WRK_PACE_ALONE_LEAST 128u
#define WRK_PACE_ALONE_UNKNOWN 256u

struct wrk_pace {
    double decode_us; /* a pass without prompts; 0 = not yet known */
    double row_us;    /* what a row of a prompt adds */
};

/* A pass took us. */
void wrk_pace_pass(struct wrk_pace *p, uint64_t us, uint32_t n_decode, uint32_t n_prompt);
/* Most rows of prompts beside decoders, and without any. */
uint32_t wrk_pace_rows(const struct wrk_pace *p);
uint32_t wrk_pace_rows_alone(const struct wrk_pace *p);

#endif
