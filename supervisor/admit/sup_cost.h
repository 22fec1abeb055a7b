/* sup_cost.h - what a request costs, in tokens.
 *
 * Before it runs: a guess from its bytes, its max_tokens and its files, made from the
 * task that is about to be sent. After: what the worker counted. The guess is charged
 * at once and the difference put right, so that it only decides who may begin.
 * Pure; sums stop at the largest number instead of wrapping. Page: docs/admission.md.
 * Tests: tests/supervisor/test_sup_cost.c
 */
#ifndef INFERD_SUP_COST_H
#define INFERD_SUP_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "inferd.pb-c.h"

#define SUP_COST_TEXT_BYTES 4 /* a token of text */
#define SUP_COST_PICTURE 256  /* tokens */
#define SUP_COST_SOUND 750    /* 30 seconds, the longest that is read */
#define SUP_COST_TEXT_WORK 16 /* so many tokens of tokenizing or chunking for one of a model's */

struct sup_cost {
    uint64_t prompt; /* or inputs; at least 1 */
    uint64_t answer; /* at most; 0 where there is none */
    uint64_t cached; /* of prompt, not computed; of answers that came */
};

uint64_t sup_cost_all(const struct sup_cost *c); /* prompt and answer */
/* Of a task that is about to be sent. */
struct sup_cost sup_cost_asked(const Ipc__Frame *task);
/* Of an answer's last frame. False: it says nothing of tokens, *out is untouched. */
bool sup_cost_told(const Ipc__Frame *answer, struct sup_cost *out);

#endif
