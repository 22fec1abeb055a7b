/* wrk_decide.c - Decide tasks: questions and inputs to texts, vectors to answers.
 *
 * A Decide task embeds in rounds, each an embedding task of its own to wrk_embed.c: the first
 * has every input rendered for every question and the prototypes that nobody has yet, later ones
 * what another task had reserved and left. In between it waits for prototypes that others
 * compute. It is complete when its inputs have vectors and all its sets are ready.
 *
 * Always true: who fills a set never waits for another, so somebody always gets on; a task that
 * ends in whatever way puts its sets back; a text is never cut to fit. What it costs is bounded:
 * IPC_DECIDE_TEXTS texts of IPC_DECIDE_BYTES together (wrk_decide_check.c). Answers:
 * wrk_decide_answer.c.
 * Tests: tests/worker/test_wrk_decide.c (a scripted model)
 */
#include "wrk_decide_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#define TASK_DEFAULT "CLUSTERING"

void wrk_decide_free(struct wrk_engine *e, struct wrk_task *t)
{
    struct wrk_decide *d = t->decide;

    if (d == NULL)
        return;
    for (uint32_t i = 0; d->asked != NULL && i < d->n_questions; i++)
        wrk_protos_put(&e->protos, &d->asked[i].set, t);
    if (d->frame != NULL) {
        ipc__frame__free_unpacked(d->frame, NULL);
        e->queued_bytes -= d->frame_bytes;
    }
    free(d->asked);
    free(d->state);
    free(d);
    t->decide = NULL;
}

/* -------------------------------------------------------------------- opening */

/* Which prefix: a task that is asked for must be the model's; the default one need not. */
static enum rc find_prefix(const struct wrk_engine *e, struct wrk_decide *d, struct rc_err *why)
{
    struct mdl_ids ids = {0};
    bool cut = false;
    enum rc rc;

    d->task_type = d->prefix_of = d->m->task_type[0] != '\0' ? d->m->task_type : TASK_DEFAULT;
    rc = mdl_embed_tokens(e->o.mdl, "a", 1, d->prefix_of, false, &cut, &ids, why);
    mdl_ids_deinit(&ids);
    if (rc == RC_INVALID && strcmp(why->what, "task_type") == 0 &&
        strcmp(d->task_type, TASK_DEFAULT) == 0) {
        d->prefix_of = "";
        *why = RC_ERR_INIT;
        return RC_OK;
    }
    return rc;
}

static enum rc accept_of(struct wrk_engine *e, const struct wrk_decide *d, struct wrk_asked *a,
                         struct rc_err *why)
{
    const Ipc__DecideQuestion *q = a->q;
    const struct wrk_binding b = {.model_identity = e->info->identity,
                                  .task_type = d->task_type,
                                  .dimensions = d->dim,
                                  .set_hash = a->hash,
                                  .question = q};

    if (q->calibration_id[0] != '\0')
        return wrk_calibration_read(e->o.has_root ? e->o.root_fd : -1, q->calibration_id, &b,
                                    &a->accept, why);
    a->accept.has_min_similarity = q->has_min_similarity;
    a->accept.min_similarity = q->min_similarity;
    a->accept.has_min_margin = q->has_min_margin;
    a->accept.min_margin = q->min_margin;
    for (size_t i = 0; i < q->n_thresholds; i++)
        a->accept.threshold[i] = q->thresholds[i];
    return RC_OK;
}

/* The key of a set: its hash beside the model's identity. */
static void key_of(const struct wrk_engine *e, const struct wrk_asked *a, uint8_t *out)
{
    crypto_hash_sha256_state h;

    crypto_hash_sha256_init(&h);
    crypto_hash_sha256_update(&h, (const uint8_t *)e->info->identity, sizeof(e->info->identity));
    crypto_hash_sha256_update(&h, a->hash, sizeof(a->hash));
    crypto_hash_sha256_final(&h, out);
}

/* ------------------------------------------------------------------ the texts */

static enum rc push(Ipc__Embed *m, const Ipc__DecideQuestion *q, enum wrk_render how,
                    ProtobufCBinaryData text, struct rc_err *why)
{
    Ipc__EmbedInput *in = malloc(sizeof(*in));
    size_t n = wrk_render_bytes(q, how, text.len);

    if (in == NULL)
        return rc_fail(why, RC_NOMEM, "a text");
    ipc__embed_input__init(in);
    m->inputs[m->n_inputs++] = in; /* freed with the frame from here on */
    if ((in->text.data = malloc(n)) == NULL)
        return rc_fail(why, RC_NOMEM, "a text of %zu bytes", n);
    in->text.len = n;
    wrk_render(q, how, text, in->text.data);
    return RC_OK;
}

static enum rc push_prototypes(Ipc__Embed *m, const Ipc__DecideQuestion *q, struct rc_err *why)
{
    enum rc rc = RC_OK;

    for (size_t c = 0; c < q->n_choices && rc == RC_OK; c++)
        for (uint32_t k = 0; k < wrk_choice_texts(q->choices[c]) && rc == RC_OK; k++) {
            enum wrk_render how;
            ProtobufCBinaryData text = wrk_choice_text(q->choices[c], k, &how);

            rc = push(m, q, how, text, why);
        }
    return rc;
}

/* Is this set to be computed by us, and nobody before it in the list does? */
static bool ours(const struct wrk_decide *d, uint32_t i, const struct wrk_task *t)
{
    const struct wrk_proto *s = d->asked[i].set;

    if (s->state != WRK_PROTO_FILLING || s->owner != t)
        return false;
    for (uint32_t k = 0; k < i; k++)
        if (d->asked[k].set == s)
            return false;
    return true;
}

/* An Embed frame with the texts of the next round, as if one had come: wrk_embed.c reads it
 * and frees it. */
static enum rc next_round(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    struct wrk_decide *d = t->decide;
    Ipc__Frame *f = malloc(sizeof(*f));
    Ipc__Embed *m = malloc(sizeof(*m));
    enum rc rc = RC_OK;

    if (f == NULL || m == NULL) {
        free(f);
        free(m);
        return rc_fail(why, RC_NOMEM, "a round of texts");
    }
    ipc__frame__init(f);
    ipc__embed__init(m);
    f->body_case = IPC__FRAME__BODY_EMBED;
    f->embed = m;
    m->dimensions = d->dim;
    m->task_type = strdup(d->prefix_of);
    m->inputs = malloc(IPC_DECIDE_TEXTS * sizeof(Ipc__EmbedInput *));
    if (m->task_type == NULL || m->inputs == NULL)
        rc = rc_fail(why, RC_NOMEM, "a round of texts");
    for (uint32_t i = 0; !d->has_states && i < d->n_inputs && rc == RC_OK; i++)
        for (uint32_t k = 0; k < d->n_questions && rc == RC_OK; k++)
            rc = push(m, d->asked[k].q, WRK_RENDER_INPUT, d->m->inputs[i], why);
    for (uint32_t i = 0; i < d->n_questions && rc == RC_OK; i++) {
        d->asked[i].first = WRK_NO_TEXT;
        if (!ours(d, i, t))
            continue;
        d->asked[i].first = (uint32_t)m->n_inputs;
        rc = push_prototypes(m, d->asked[i].q, why);
    }
    if (rc != RC_OK) {
        ipc__frame__free_unpacked(f, NULL);
        return rc;
    }
    t->frame = f;
    t->frame_bytes = ipc__frame__get_packed_size(f);
    e->queued_bytes += t->frame_bytes;
    t->prepared = false;
    return RC_OK;
}

/* ------------------------------------------------------------------ preparing */

static enum rc decide_open(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    const Ipc__Decide *m = t->frame->decide;
    uint8_t key[WRK_PROTOS_KEY];
    struct wrk_decide *d;
    enum rc rc;

    if ((rc = wrk_embed_asked(e, m->model_identity, m->dimensions, why)) != RC_OK ||
        (rc = wrk_decide_check(m, why)) != RC_OK)
        return rc;
    if ((t->decide = d = calloc(1, sizeof(*d))) == NULL)
        return rc_fail(why, RC_NOMEM, "a decision");
    d->frame = t->frame; /* its bytes stay counted as the queue's */
    d->frame_bytes = t->frame_bytes;
    t->frame = NULL;
    t->frame_bytes = 0;
    d->m = m;
    d->n_inputs = (uint32_t)m->n_inputs;
    d->n_questions = (uint32_t)m->n_questions;
    d->dim = m->dimensions != 0 ? m->dimensions : e->info->embed_dim;
    d->asked = calloc(d->n_questions, sizeof(*d->asked));
    d->state = calloc((size_t)d->n_inputs * d->n_questions * d->dim, sizeof(float));
    if (d->asked == NULL || d->state == NULL)
        return rc_fail(why, RC_NOMEM, "%u vectors of %u values", d->n_inputs * d->n_questions,
                       d->dim);
    if ((rc = find_prefix(e, d, why)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < d->n_questions; i++) {
        struct wrk_asked *a = &d->asked[i];

        if (e->stop.ask(e->stop.user)) /* megabytes to hash, or an artifact of one to parse */
            return rc_fail(why, RC_CANCELLED, "stopped");
        a->q = m->questions[i];
        a->first = WRK_NO_TEXT;
        wrk_set_hash(a->q, d->task_type, d->dim, a->hash);
        if ((rc = accept_of(e, d, a, why)) != RC_OK) {
            rc_wrap(why, "question %u", i);
            return rc;
        }
    }
    for (uint32_t i = 0; i < d->n_questions; i++) {
        struct wrk_asked *a = &d->asked[i];

        key_of(e, a, key);
        if ((rc = wrk_protos_get(&e->protos, key, (uint32_t)a->q->n_choices, d->dim, t, &a->set,
                                 why)) != RC_OK)
            return rc;
    }
    return next_round(e, t, why);
}

enum rc wrk_decide_prepare(struct wrk_engine *e, struct wrk_task *t, size_t *budget,
                           struct rc_err *why)
{
    enum rc rc;

    if (t->decide == NULL && (rc = decide_open(e, t, why)) != RC_OK)
        return rc;
    if ((rc = wrk_embed_prepare(e, t, budget, why)) != RC_OK)
        wrk_decide_explain(t, why);
    return rc;
}

void wrk_decide_explain(const struct wrk_task *t, struct rc_err *why)
{
    const struct wrk_decide *d = t->decide;
    uint32_t at, n_states;

    if (d == NULL || why->item < 0)
        return;
    at = (uint32_t)why->item;
    n_states = d->has_states ? 0 : d->n_inputs * d->n_questions;
    why->item = -1;
    if (at < n_states) {
        why->item = (int32_t)(at / d->n_questions);
        rc_wrap(why, "input %u, rendered for question %u", at / d->n_questions,
                at % d->n_questions);
        return;
    }
    for (uint32_t i = d->n_questions; i-- > 0;) {
        const struct wrk_asked *a = &d->asked[i];
        uint32_t left = at - a->first, c = 0;

        if (a->first == WRK_NO_TEXT || at < a->first)
            continue;
        while (c + 1 < a->q->n_choices && left >= wrk_choice_texts(a->q->choices[c]))
            left -= wrk_choice_texts(a->q->choices[c++]);
        rc_wrap(why, "question %u, choice %u, %s %u", i, c,
                a->q->choices[c]->n_examples > 0 ? "example" : "description", left);
        snprintf(why->what, sizeof(why->what), "questions");
        return;
    }
}

/* ------------------------------------------------------------------ answering */

static enum rc take_states(struct wrk_decide *d, const struct wrk_embed *m, struct rc_err *why)
{
    const float *v = wrk_embed_vectors(m);
    uint32_t n = d->n_inputs * d->n_questions;

    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)i * d->dim;
        enum rc rc = wrk_unit(v + at, d->dim, d->state + at, why);

        if (rc != RC_OK) {
            why->item = (int32_t)i;
            return rc;
        }
        d->n_tokens += wrk_embed_tokens(m, i);
    }
    return RC_OK;
}

static enum rc take_prototypes(struct wrk_engine *e, struct wrk_asked *a, uint32_t dim,
                               const struct wrk_embed *m, struct rc_err *why)
{
    const float *v = wrk_embed_vectors(m) + (size_t)a->first * dim;
    uint32_t at = a->first;
    enum rc rc;

    for (uint32_t c = 0; c < a->q->n_choices; c++) {
        uint32_t n = wrk_choice_texts(a->q->choices[c]);

        if ((rc = wrk_centroid(v, n, dim, a->set->vec + (size_t)c * dim, why)) != RC_OK) {
            why->item = (int32_t)at;
            return rc;
        }
        v += (size_t)n * dim;
        at += n;
    }
    wrk_protos_filled(&e->protos, a->set);
    return RC_OK;
}

void wrk_decide_embedded(struct wrk_engine *e, struct wrk_task *t)
{
    struct wrk_decide *d = t->decide;
    struct rc_err why = RC_ERR_INIT;
    enum rc rc = d->has_states ? RC_OK : take_states(d, t->embed, &why);

    for (uint32_t i = 0; i < d->n_questions && rc == RC_OK; i++)
        if (d->asked[i].first != WRK_NO_TEXT)
            rc = take_prototypes(e, &d->asked[i], d->dim, t->embed, &why);
    if (rc != RC_OK) {
        wrk_decide_explain(t, &why);
        d->failed = why;
    }
    d->has_states = true;
    for (uint32_t i = 0; i < d->n_questions; i++)
        d->asked[i].first = WRK_NO_TEXT;
    wrk_embed_free(e, &t->embed);
}

static bool complete(const struct wrk_decide *d)
{
    for (uint32_t i = 0; i < d->n_questions; i++)
        if (d->asked[i].set->state != WRK_PROTO_READY)
            return false;
    return d->has_states;
}

/* Sets whose owner is gone are ours now: another round. */
static enum rc take_over(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    bool any = false;

    for (uint32_t i = 0; i < t->decide->n_questions; i++)
        if (wrk_protos_take(t->decide->asked[i].set, t))
            any = true;
    return any ? next_round(e, t, why) : RC_OK;
}

enum rc wrk_decide_step(struct wrk_engine *e, struct rc_err *err)
{
    struct wrk_task *next;

    for (struct wrk_task *t = e->tasks; t != NULL; t = next) {
        struct rc_err why = RC_ERR_INIT;
        struct wrk_decide *d = t->decide;
        enum rc rc;

        next = t->next;
        /* one at work has texts of this round, read or not */
        if (d == NULL || t->embed != NULL || !t->prepared)
            continue;
        why = d->failed;
        rc = why.code;
        if (rc == RC_OK && !complete(d)) {
            if ((rc = take_over(e, t, &why)) == RC_OK)
                continue;
        } else if (rc == RC_OK) {
            rc = wrk_decide_send(e, t, &why);
        }
        if ((rc = wrk_task_sent(e, t, rc, &why, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}
