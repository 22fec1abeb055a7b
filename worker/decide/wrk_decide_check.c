/* wrk_decide_check.c - is a decision request in shape, and is its work bounded?
 *
 * The front has checked all of this; a worker believes nobody. What the request could need is
 * counted, whether or not some of it is kept already, so that an answer does not depend on it.
 * Tests: tests/worker/test_wrk_decide.c
 */
#include "wrk_decide_impl.h"

#include <math.h>

static enum rc too_much(struct rc_err *why, const char *what, uint64_t n, uint64_t limit)
{
    return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "questions",
                                 "%llu %s in one request, at most %llu", (unsigned long long)n,
                                 what, (unsigned long long)limit),
                    n, limit, why);
}

/* Lists that the front has checked; a worker believes nobody. */
static enum rc check_question(const Ipc__DecideQuestion *q, struct rc_err *why)
{
    bool multi = q->kind == WRK_MULTI, fitted = q->calibration_id[0] != '\0';

    if (q->kind != WRK_CHOICE && !multi)
        return rc_fail_what(why, RC_INVALID, "questions", "question kind %u", q->kind);
    if (q->n_choices < 2 || q->n_choices > IPC_DECIDE_CHOICES)
        return rc_fail_what(why, RC_INVALID, "questions", "%zu choices, expected 2 to %u",
                            q->n_choices, IPC_DECIDE_CHOICES);
    if (q->n_thresholds != (multi && !fitted ? q->n_choices : 0) ||
        (fitted && (q->has_min_similarity || q->has_min_margin)))
        return rc_fail_what(why, RC_INVALID, "questions",
                            "a question has %zu thresholds for %zu choices%s", q->n_thresholds,
                            q->n_choices, fitted ? " and a calibration" : "");
    for (size_t i = 0; i < q->n_choices; i++)
        if (q->choices[i]->n_examples > IPC_DECIDE_EXAMPLES)
            return rc_fail_what(why, RC_INVALID, "questions", "%zu examples, expected at most %u",
                                q->choices[i]->n_examples, IPC_DECIDE_EXAMPLES);
    for (size_t i = 0; i < q->n_thresholds; i++)
        if (!(fabs(q->thresholds[i]) <= 1))
            return rc_fail_what(why, RC_INVALID, "questions", "threshold %zu is outside -1 to 1",
                                i);
    return RC_OK;
}

/* All texts the request can need, whether or not some are known already. */
enum rc wrk_decide_check(const Ipc__Decide *m, struct rc_err *why)
{
    uint64_t texts = 0, bytes = 0;
    enum rc rc;

    if (m->n_questions < 1 || m->n_questions > IPC_DECIDE_QUESTIONS || m->n_inputs < 1 ||
        m->n_inputs > IPC_DECIDE_INPUTS)
        return rc_fail_what(why, RC_INVALID, "questions",
                            "%zu questions and %zu inputs, expected 1 to %u and 1 to %u",
                            m->n_questions, m->n_inputs, IPC_DECIDE_QUESTIONS, IPC_DECIDE_INPUTS);
    for (size_t i = 0; i < m->n_questions; i++) {
        const Ipc__DecideQuestion *q = m->questions[i];

        if ((rc = check_question(q, why)) != RC_OK)
            return rc;
        for (size_t k = 0; k < m->n_inputs; k++)
            bytes += wrk_render_bytes(q, WRK_RENDER_INPUT, m->inputs[k].len);
        texts += m->n_inputs;
        for (size_t c = 0; c < q->n_choices; c++) {
            uint32_t n = wrk_choice_texts(q->choices[c]);

            texts += n;
            for (uint32_t k = 0; k < n; k++) {
                enum wrk_render how;
                size_t len = wrk_choice_text(q->choices[c], k, &how).len;

                bytes += wrk_render_bytes(q, how, len);
            }
        }
    }
    if (texts > IPC_DECIDE_TEXTS)
        return too_much(why, "texts (inputs times questions, examples and descriptions)", texts,
                        IPC_DECIDE_TEXTS);
    if (bytes > IPC_DECIDE_BYTES)
        return too_much(why, "bytes of rendered texts", bytes, IPC_DECIDE_BYTES);
    return RC_OK;
}
