/* wrk_decide_answer.c - vectors of inputs and prototypes to verdicts, verdicts to a Decided.
 * Tests: tests/worker/test_wrk_decide.c
 */
#include "wrk_decide_impl.h"

#include <stdlib.h>

#include <sodium.h>

static void judge(const struct wrk_decide *d, uint32_t input, uint32_t question, double *s,
                  struct wrk_verdict *v)
{
    const struct wrk_asked *a = &d->asked[question];
    const float *state = d->state + ((size_t)input * d->n_questions + question) * d->dim;
    uint32_t n = (uint32_t)a->q->n_choices;

    for (uint32_t c = 0; c < n; c++)
        s[c] = wrk_cosine(state, a->set->vec + (size_t)c * d->dim, d->dim);
    if (a->q->kind == WRK_MULTI)
        wrk_decide_multi(s, n, &a->accept, v);
    else
        wrk_decide_choice(s, n, &a->accept, v);
}

/* Room for one answer of the message. */
struct slot {
    Ipc__DecidedAnswer msg;
    double s[IPC_DECIDE_CHOICES];
    struct wrk_verdict v;
};

enum rc wrk_decide_send(struct wrk_engine *e, const struct wrk_task *t, struct rc_err *err)
{
    struct wrk_decide *d = t->decide;
    uint32_t n = d->n_inputs * d->n_questions;
    struct slot *slot = calloc(n, sizeof(*slot));
    Ipc__DecidedAnswer **ptr = calloc(n, sizeof(Ipc__DecidedAnswer *));
    Ipc__DecidedQuestion q[IPC_DECIDE_QUESTIONS], *qptr[IPC_DECIDE_QUESTIONS];
    char hash[IPC_DECIDE_QUESTIONS][2 * WRK_SET_HASH_BYTES + 1];
    Ipc__Decided m = IPC__DECIDED__INIT;
    Ipc__Frame f = IPC__FRAME__INIT;
    enum rc rc = RC_NOMEM;

    if (slot == NULL || ptr == NULL) {
        rc_fail(err, RC_NOMEM, "%u answers", n);
        goto out;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct slot *k = &slot[i];

        judge(d, i / d->n_questions, i % d->n_questions, k->s, &k->v);
        ipc__decided_answer__init(&k->msg);
        k->msg.n_similarities = d->asked[i % d->n_questions].q->n_choices;
        k->msg.similarities = k->s;
        k->msg.margin = k->v.margin;
        k->msg.status = k->v.status;
        k->msg.reason = k->v.reason;
        k->msg.n_chosen = k->v.n_chosen;
        k->msg.chosen = k->v.chosen;
        ptr[i] = &k->msg;
    }
    for (uint32_t i = 0; i < d->n_questions; i++) {
        struct wrk_asked *a = &d->asked[i];

        sodium_bin2hex(hash[i], sizeof(hash[i]), a->hash, sizeof(a->hash));
        ipc__decided_question__init(&q[i]);
        q[i].prototype_set_hash = hash[i];
        q[i].n_thresholds = a->q->kind == WRK_MULTI ? a->q->n_choices : 0;
        q[i].thresholds = a->accept.threshold;
        qptr[i] = &q[i];
    }
    m.n_answers = n;
    m.answers = ptr;
    m.n_questions = d->n_questions;
    m.questions = qptr;
    m.model_identity = (char *)e->info->identity;
    m.task_type = (char *)d->task_type;
    m.dimensions = d->dim;
    m.input_tokens = d->n_tokens;
    f.task = t->id;
    f.body_case = IPC__FRAME__BODY_DECIDED;
    f.decided = &m;
    rc = wrk_chan_send(e->o.chan, &f, err);
out:
    free(slot);
    free(ptr);
    return rc;
}
