/* sup_fleet_check_texts.c - limits inside what a worker says of texts: vectors, scores, what was
 * decided of them and extracted from them, the pieces they were cut into.
 *
 * Must never trust a count, an index, a float or a string that came from a worker: whoever writes
 * the answer indexes the request's lists with these numbers. Tests:
 * tests/supervisor/test_sup_fleet_check.c */
#include "sup_fleet_check_impl.h"

#include <math.h>
#include <string.h>

/* Finite means: exponent bits not all ones. On integers, so that the loop is one
 * the compiler vectorizes and no alignment is assumed. */
static bool floats_finite(const uint8_t *p, size_t n)
{
    uint32_t bad_bits = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t w;

        memcpy(&w, p + i * 4, 4);
        bad_bits |= (w & 0x7F800000u) == 0x7F800000u;
    }
    return !bad_bits;
}

static bool all_finite(const float *v, size_t n)
{
    return floats_finite((const uint8_t *)v, n);
}

/* ------------------------------------------------------------------ of items */

static enum rc check_errors(Ipc__ItemError *const *e, size_t n, uint32_t n_items,
                            struct rc_err *err)
{
    if (n > n_items)
        return sup_bad(err, "more errors than inputs");
    for (size_t i = 0; i < n; i++)
        if (e[i]->index >= n_items || !e[i]->error)
            return sup_bad(err, "an error names no input");
    for (size_t i = 0; i < n; i++)
        if (e[i]->error->stage[0] && !ipc_stage(e[i]->error->stage))
            return sup_bad(err, "an error of no known stage");
    return RC_OK;
}

/* ------------------------------------------------------------------- vectors */

static enum rc check_sparse(const Ipc__SparseVector *s, const Ipc__Loaded *model,
                            struct rc_err *err)
{
    if (s->n_ids != s->n_weights || (model && s->n_ids > model->ctx_tokens))
        return sup_bad(err, "Vectors: lexical weights of another number than their ids");
    if (!all_finite(s->weights, s->n_weights))
        return sup_bad(err, "Vectors: a lexical weight is not finite");
    for (size_t i = 0; i < s->n_ids; i++)
        if ((model && s->ids[i] >= model->vocab_size) || !(s->weights[i] > 0) ||
            (i > 0 && s->ids[i] <= s->ids[i - 1]))
            return sup_bad(err, "Vectors: a lexical weight or its id is out of range or order");
    return RC_OK;
}

static enum rc check_rows(const Ipc__TokenVectors *t, const Ipc__Loaded *model, struct rc_err *err)
{
    uint64_t dim = model ? model->token_dim : 0;

    if ((model && t->n > model->ctx_tokens) || (uint64_t)t->n * dim * 4 != t->data.len)
        return rc_fail(err, RC_FORMAT, "Vectors: %zu bytes for %u token vectors", t->data.len,
                       t->n);
    if (!floats_finite(t->data.data, t->data.len / 4))
        return sup_bad(err, "Vectors: a value of a token vector is not finite");
    return RC_OK;
}

enum rc sup_check_vectors(const struct sup_asked *a, const Ipc__Vectors *v,
                          const Ipc__Loaded *model, struct rc_err *err)
{
    bool dense = (a->outputs & IPC_OUT_DENSE) != 0;
    enum rc rc = RC_OK;

    if (v->n != a->n)
        return rc_fail(err, RC_FORMAT, "Vectors: %u rows for %u inputs", v->n, a->n);
    if (v->dim > SUP_DIM_MAX || (v->dim == 0 && dense && v->n_errors < v->n))
        return rc_fail(err, RC_FORMAT, "Vectors: dim %u", v->dim);
    if (dense ? (uint64_t)v->n * v->dim * 4 != v->data.len : v->data.len != 0)
        return rc_fail(err, RC_FORMAT, "Vectors: %zu bytes for %u x %u", v->data.len, v->n, v->dim);
    if ((v->n_n_tokens && v->n_n_tokens != v->n) || (v->n_truncated && v->n_truncated != v->n) ||
        (v->n_n_media_tokens && v->n_n_media_tokens != v->n))
        return sup_bad(err, "Vectors: a per-input list has another length");
    if (v->n_sparse != ((a->outputs & IPC_OUT_SPARSE) != 0 ? v->n : 0) ||
        v->n_token_vectors != ((a->outputs & IPC_OUT_TOKENS) != 0 ? v->n : 0))
        return sup_bad(err, "Vectors: other outputs than were asked for");
    if ((rc = check_errors(v->errors, v->n_errors, v->n, err)) != RC_OK) {
        rc_wrap(err, "Vectors");
        return rc;
    }
    if (!sup_identity_ok(v->model_identity))
        return sup_bad(err, "Vectors: an identity of other than 64 hexadecimal digits");
    if (!floats_finite(v->data.data, v->data.len / 4))
        return sup_bad(err, "Vectors: a value is not finite");
    for (size_t i = 0; i < v->n_sparse && rc == RC_OK; i++)
        rc = check_sparse(v->sparse[i], model, err);
    for (size_t i = 0; i < v->n_token_vectors && rc == RC_OK; i++)
        rc = check_rows(v->token_vectors[i], model, err);
    return rc;
}

/* -------------------------------------------------------------------- scores */

enum rc sup_check_scores(const struct sup_asked *a, const Ipc__Scores *s, const Ipc__Loaded *model,
                         struct rc_err *err)
{
    bool pairs = model && model->can_rerank;
    const struct {
        const float *v;
        size_t n;
    } lists[] = {{s->logits, s->n_logits},
                 {s->dense, s->n_dense},
                 {s->sparse, s->n_sparse},
                 {s->late, s->n_late}};
    enum rc rc;

    if (s->n_scores != a->n)
        return rc_fail(err, RC_FORMAT, "Scores: %zu for %u documents", s->n_scores, a->n);
    if (!all_finite(s->scores, s->n_scores))
        return sup_bad(err, "Scores: a score is not finite");
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (lists[i].n && (lists[i].n != a->n || pairs != (i == 0)))
            return rc_fail(err, RC_FORMAT, "Scores: list %zu has %zu for %u documents", i,
                           lists[i].n, a->n);
        if (!all_finite(lists[i].v, lists[i].n))
            return sup_bad(err, "Scores: a part of a score is not finite");
    }
    for (size_t i = 0; pairs && i < s->n_scores; i++)
        if (!(s->scores[i] >= 0 && s->scores[i] <= 1))
            return sup_bad(err, "Scores: a score is outside 0 to 1");
    if ((pairs && !s->n_logits) || (s->n_n_tokens && s->n_n_tokens != a->n) ||
        (s->n_truncated && s->n_truncated != a->n))
        return sup_bad(err, "Scores: a list of documents has another length");
    if (!sup_identity_ok(s->model_identity))
        return sup_bad(err, "Scores: an identity of other than 64 hexadecimal digits");
    if ((rc = check_errors(s->errors, s->n_errors, a->n, err)) != RC_OK)
        rc_wrap(err, "Scores");
    return rc;
}

/* -------------------------------------------------------------------- pieces */

enum rc sup_check_chunks(const struct sup_asked *a, const Ipc__Chunks *c, struct rc_err *err)
{
    if (c->n_pieces > a->n)
        return rc_fail(err, RC_FORMAT, "Chunks: %zu pieces, at most %u", c->n_pieces, a->n);
    for (size_t i = 0; i < c->n_pieces; i++) {
        const Ipc__ChunkPiece *p = c->pieces[i];

        if (p->start >= p->end || p->end > a->n_bytes || p->n_tokens > a->max_tokens)
            return rc_fail(err, RC_FORMAT, "Chunks: piece %zu is %u to %u, %u tokens", i, p->start,
                           p->end, p->n_tokens);
        if (i > 0 && (p->start <= c->pieces[i - 1]->start || p->end <= c->pieces[i - 1]->end))
            return rc_fail(err, RC_FORMAT, "Chunks: piece %zu is out of order", i);
    }
    return RC_OK;
}

/* ----------------------------------------------------------------- decisions */

static bool within(double v, double least, double most)
{
    return v >= least && v <= most; /* false for NaN */
}

static enum rc check_verdict(const Ipc__DecidedAnswer *v, uint32_t n_choices, bool multi,
                             struct rc_err *err)
{
    bool selected = v->status == 1, abstained = v->status == 3;

    if (v->n_similarities != n_choices)
        return rc_fail(err, RC_FORMAT, "Decided: %zu similarities for %u choices",
                       v->n_similarities, n_choices);
    for (size_t i = 0; i < v->n_similarities; i++)
        if (!within(v->similarities[i], -1, 1))
            return sup_bad(err, "Decided: a similarity is outside -1 to 1");
    if (!within(v->margin, 0, 2))
        return sup_bad(err, "Decided: a margin is outside 0 to 2");
    if (v->status < 1 || v->status > 3 || (v->status == 2 && !multi) ||
        (v->reason != 0) != abstained || v->reason > 3 || (multi && abstained && v->reason != 3))
        return rc_fail(err, RC_FORMAT, "Decided: status %u for reason %u", v->status, v->reason);
    if ((v->n_chosen > 0) != selected || v->n_chosen > (multi ? n_choices : 1))
        return rc_fail(err, RC_FORMAT, "Decided: %zu choices selected, status %u", v->n_chosen,
                       v->status);
    for (size_t i = 0; i < v->n_chosen; i++)
        if (v->chosen[i] >= n_choices || (i > 0 && v->chosen[i] <= v->chosen[i - 1]))
            return sup_bad(err, "Decided: a choice is out of range or order");
    return RC_OK;
}

enum rc sup_check_decided(const struct sup_asked *a, const Ipc__Decided *d,
                          const Ipc__Loaded *model, struct rc_err *err)
{
    enum rc rc = RC_OK;

    if (d->n_questions != a->n_questions || d->n_answers != (size_t)a->n * a->n_questions)
        return rc_fail(err, RC_FORMAT, "Decided: %zu answers to %zu questions, asked were %u of %u",
                       d->n_answers, d->n_questions, a->n, a->n_questions);
    if (!sup_identity_ok(d->model_identity) ||
        (strcmp(d->task_type, "CLUSTERING") != 0 && strcmp(d->task_type, "CLASSIFICATION") != 0))
        return sup_bad(err, "Decided: the model's identity or the task type is none");
    if (model && strcmp(d->model_identity, model->model_identity) != 0)
        return sup_bad(err, "Decided: another identity than the model was loaded with");
    if (d->dimensions == 0 || d->dimensions > SUP_DIM_MAX ||
        (a->dimensions && d->dimensions != a->dimensions))
        return rc_fail(err, RC_FORMAT, "Decided: dimensions %u", d->dimensions);
    for (uint32_t i = 0; i < a->n_questions; i++) {
        const Ipc__DecidedQuestion *q = d->questions[i];

        if (!q->prototype_set_hash[0] || !sup_identity_ok(q->prototype_set_hash))
            return sup_bad(err, "Decided: a hash of prototypes is none");
        if (q->n_thresholds != (a->multi[i] ? a->n_choices[i] : 0))
            return sup_bad(err, "Decided: thresholds are missing or too many");
        for (size_t k = 0; k < q->n_thresholds; k++)
            if (!within(q->thresholds[k], -1, 1))
                return sup_bad(err, "Decided: a threshold is outside -1 to 1");
    }
    for (size_t i = 0; i < d->n_answers && rc == RC_OK; i++)
        rc = check_verdict(d->answers[i], a->n_choices[i % a->n_questions],
                           a->multi[i % a->n_questions], err);
    return rc;
}

/* ----------------------------------------------------------------- extracted */

/* An item's text has n units, in which offsets count. */
struct text {
    uint32_t n;
    uint64_t *n_spans; /* of the answer so far */
};

static enum rc check_span(const Ipc__ExtractSpan *s, const struct text *t, struct rc_err *err)
{
    if (++*t->n_spans > IPC_EXTRACT_SPANS)
        return rc_fail(err, RC_FORMAT, "Extracted: more than %u spans", IPC_EXTRACT_SPANS);
    if (!s)
        return sup_bad(err, "Extracted: a span is missing");
    if (!(s->score >= 0 && s->score <= 1))
        return sup_bad(err, "Extracted: a score is outside 0 to 1");
    if (s->has_place ? s->start >= s->end || s->end > t->n : s->start || s->end)
        return rc_fail(err, RC_FORMAT, "Extracted: a span is %u to %u, its text has %u", s->start,
                       s->end, t->n);
    if (!ipc_utf8_valid(s->text.data, s->text.len) || (s->has_place && s->text.len > 4ull * t->n))
        return sup_bad(err, "Extracted: a span's text is too long or not UTF-8");
    return RC_OK;
}

static enum rc check_record(const Ipc__ExtractedRecord *r, const Ipc__ExtractSchema *schema,
                            const struct text *t, struct rc_err *err)
{
    const Ipc__ExtractRecord *asked;
    enum rc rc = RC_OK;

    if (r->record >= schema->n_records)
        return sup_bad(err, "Extracted: a record that was not asked for");
    asked = schema->records[r->record];
    if (r->n_values > asked->n_fields)
        return sup_bad(err, "Extracted: more values than fields");
    for (size_t i = 0; i < r->n_values && rc == RC_OK; i++) {
        const Ipc__ExtractedValue *v = r->values[i];

        if (v->field >= asked->n_fields || (asked->fields[v->field]->single && v->n_spans > 1))
            return sup_bad(err, "Extracted: a field that was not asked for, or two values of one");
        for (size_t k = 0; k < v->n_spans && rc == RC_OK; k++)
            rc = check_span(v->spans[k], t, err);
    }
    return rc;
}

static enum rc check_item(const Ipc__ExtractedItem *x, const Ipc__ExtractSchema *schema,
                          const struct text *t, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (size_t i = 0; i < x->n_entities && rc == RC_OK; i++) {
        if (x->entities[i]->label >= schema->n_entities)
            return sup_bad(err, "Extracted: a label that was not asked for");
        rc = check_span(x->entities[i]->span, t, err);
    }
    for (size_t i = 0; i < x->n_relations && rc == RC_OK; i++) {
        if (x->relations[i]->relation >= schema->n_relations)
            return sup_bad(err, "Extracted: a relation that was not asked for");
        if ((rc = check_span(x->relations[i]->head, t, err)) == RC_OK)
            rc = check_span(x->relations[i]->tail, t, err);
    }
    for (size_t i = 0; i < x->n_classes && rc == RC_OK; i++) {
        const Ipc__ExtractedClass *c = x->classes[i];

        if (c->task >= schema->n_classes || c->label >= schema->classes[c->task]->n_labels ||
            !(c->score >= 0 && c->score <= 1))
            return sup_bad(err, "Extracted: a class that was not asked for, or its score");
    }
    for (size_t i = 0; i < x->n_records && rc == RC_OK; i++)
        rc = check_record(x->records[i], schema, t, err);
    return rc;
}

static enum rc check_items(const struct sup_asked *a, const Ipc__Extract *q,
                           const Ipc__Extracted *x, struct rc_err *err)
{
    uint64_t n_spans = 0;
    enum rc rc = RC_OK;

    for (size_t i = 0; i < x->n_items && rc == RC_OK; i++) {
        uint32_t of = i < q->n_schema_of ? q->schema_of[i] : 0;
        /* a span may end with the dot that is put behind a text without one */
        const struct text t = {a->n_units[i] + 1, &n_spans};

        if (of >= q->n_schemas)
            return rc_fail(err, RC_FORMAT, "Extracted: input %zu has no schema", i);
        rc = check_item(x->items[i], q->schemas[of], &t, err);
    }
    return rc;
}

enum rc sup_check_extracted(const struct sup_asked *a, const Ipc__Extracted *x, struct rc_err *err)
{
    Ipc__Extract *q;
    enum rc rc;

    if (x->n_items != a->n)
        return rc_fail(err, RC_FORMAT, "Extracted: %zu items for %u inputs", x->n_items, a->n);
    if (!sup_identity_ok(x->model_identity))
        return sup_bad(err, "Extracted: an identity of other than 64 hexadecimal digits");
    if ((rc = check_errors(x->errors, x->n_errors, a->n, err)) != RC_OK) {
        rc_wrap(err, "Extracted");
        return rc;
    }
    if (!(q = ipc__extract__unpack(NULL, a->n_shape, a->shape)))
        return rc_fail(err, RC_NOMEM, "no memory to check what was extracted");
    rc = check_items(a, q, x, err);
    ipc__extract__free_unpacked(q, NULL);
    return rc;
}
