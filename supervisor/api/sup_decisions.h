/* sup_decisions.h - a decision request between its reading and its answer.
 * Tests: tests/supervisor/test_sup_api_decisions.c */
#ifndef INFERD_SUP_DECISIONS_H
#define INFERD_SUP_DECISIONS_H

#include "sup_call.h"

enum { SUP_DECIDE_CHOICE = 1, SUP_DECIDE_MULTI = 2 }; /* DecideQuestion.kind */

struct sup_decisions {
    struct sup_call call;
    json_t *questions; /* checked; held for the names of the answer */
    json_t *ids;       /* of inputs, null where there is none; NULL: a single input */
    uint32_t n_inputs, n_questions;
    struct sup_json out;
};

/* Every question of the checked request into q (memory of the call). false: *f. */
bool sup_decisions_questions(struct sup_call *c, json_t *questions, Ipc__Decide *q,
                             struct sup_fail *f);
/* The answer's JSON. */
void sup_decisions_write(struct sup_decisions *d, const Ipc__Decided *w);

#endif
