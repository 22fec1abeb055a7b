/* wrk_ext_read.c - what scores of spans mean: entities, relations, records, classes.
 *
 * Entities and list fields: the best spans that do not overlap. A relation's ends and a single
 * field: the first span that is good enough, leftmost and then shortest, as the reference picks
 * them. Choices: the score of the word that spells one. Two spans overlap in characters exactly
 * where they share a word.
 * Tests: tests/worker/test_wrk_extract_read.c, test_wrk_extract_golden.c
 */
#include "wrk_extract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct wrk_cell {
    float score;
    uint32_t word, n; /* words word .. word + n - 1 of the view */
};

/* ----------------------------------------------------------------------- finds */

static enum rc room(void **list, size_t n, size_t *cap, size_t size, struct rc_err *err)
{
    size_t more = *cap ? 2 * *cap : 16;
    void *p;

    if (n < *cap)
        return RC_OK;
    if (n >= WRK_FINDS_MAX)
        return rc_bound(rc_fail_what(err, RC_TOO_LARGE, "threshold",
                                     "more than %u things found in one text; a higher threshold "
                                     "finds fewer",
                                     WRK_FINDS_MAX),
                        n + 1, WRK_FINDS_MAX, err);
    if ((p = realloc(*list, more * size)) == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for %zu things found", more);
    *list = p;
    *cap = more;
    return RC_OK;
}

#define ADD(name, type, list, count, limit)                                                 \
    enum rc wrk_finds_##name(struct wrk_finds *f, const struct type *x, struct rc_err *err) \
    {                                                                                       \
        enum rc rc = room((void **)&f->list, f->count, &f->limit, sizeof(*x), err);         \
                                                                                            \
        if (rc == RC_OK)                                                                    \
            f->list[f->count++] = *x;                                                       \
        return rc;                                                                          \
    }
ADD(entity, wrk_entity, entity, n_entities, cap_entities)
ADD(relation, wrk_relation, relation, n_relations, cap_relations)
ADD(record, wrk_record, record, n_records, cap_records)
ADD(value, wrk_value, value, n_values, cap_values)
ADD(class, wrk_class, cls, n_classes, cap_classes)
#undef ADD

void wrk_finds_deinit(struct wrk_finds *f)
{
    free(f->entity);
    free(f->relation);
    free(f->record);
    free(f->value);
    free(f->cls);
    *f = (struct wrk_finds){0};
}

void wrk_reader_deinit(struct wrk_reader *r)
{
    free(r->cell);
    free(r->taken);
    r->cell = NULL;
    r->taken = NULL;
    r->n = r->cap = 0;
}

/* ----------------------------------------------------------------------- cells */

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* A logit below it has a score below the threshold for certain: saves most of the exponentials. */
static float surely_below(float threshold)
{
    if (!(threshold > 0))
        return -INFINITY;
    return threshold < 1 ? logf(threshold / (1 - threshold)) - 0.01f : 8;
}

static enum rc push_cell(struct wrk_reader *r, float score, uint32_t word, uint32_t n,
                         struct rc_err *err)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 256;
        struct wrk_cell *p = realloc(r->cell, cap * sizeof(*p));

        if (p == NULL)
            return rc_fail(err, RC_NOMEM, "no memory for %zu spans", cap);
        r->cell = p;
        r->cap = cap;
    }
    r->cell[r->n++] = (struct wrk_cell){score, word, n};
    return RC_OK;
}

/* Spans of the text above the threshold, in scan order; only the first of them that the patterns
 * accept, if `first`. */
static enum rc cells(struct wrk_reader *r, const float *logits, uint32_t width, float threshold,
                     struct wrk_patterns *patterns, bool first, struct rc_err *err)
{
    const struct wrk_view *v = r->view;
    uint32_t n = (uint32_t)v->w.n;
    float below = surely_below(threshold);
    enum rc rc;

    r->n = 0;
    logits += (size_t)r->schema->n_prefix * width;
    for (uint32_t i = 0; i < n; i++, logits += width)
        for (uint32_t k = 0; k < width && i + k < n; k++) {
            bool good;
            float score;

            if (!(logits[k] >= below) || !((score = sigmoid(logits[k])) >= threshold))
                continue;
            if ((rc = wrk_patterns_accept(patterns, v->text + v->w.w[i].at,
                                          v->w.w[i + k].to - v->w.w[i].at, r->stop, &good, err)) !=
                RC_OK)
                return rc;
            if (!good)
                continue;
            if ((rc = push_cell(r, score, i, k + 1, err)) != RC_OK || first)
                return rc;
        }
    return RC_OK;
}

static int better(const void *a, const void *b)
{
    const struct wrk_cell *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->word != y->word)
        return x->word < y->word ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* Keeps the best ones that do not overlap, best first; the best alone, if `single`. */
static enum rc finalise(struct wrk_reader *r, bool single, struct rc_err *err)
{
    size_t kept = 0;

    if (r->n > 1)
        qsort(r->cell, r->n, sizeof(*r->cell), better);
    if (single || r->n <= 1) {
        r->n = r->n > 0;
        return RC_OK;
    }
    if (r->taken == NULL && (r->taken = malloc(r->view->w.n)) == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for %zu words", r->view->w.n);
    memset(r->taken, 0, r->view->w.n);
    for (size_t i = 0; i < r->n; i++) {
        const struct wrk_cell c = r->cell[i];
        uint32_t k = 0;

        while (k < c.n && !r->taken[c.word + k])
            k++;
        if (k < c.n)
            continue;
        memset(r->taken + c.word, 1, c.n);
        r->cell[kept++] = c;
    }
    r->n = kept;
    return RC_OK;
}

static struct wrk_span span_of(const struct wrk_reader *r, const struct wrk_cell *c)
{
    const struct wrk_word *a = &r->view->w.w[c->word], *b = &r->view->w.w[c->word + c->n - 1];

    return (struct wrk_span){.score = c->score,
                             .placed = true,
                             .dotted = r->view->dotted && b->to == r->view->n_bytes,
                             .start = a->start,
                             .end = b->end,
                             .at = a->at,
                             .to = b->to};
}

/* --------------------------------------------------------------------- classes */

/* Probabilities in place. */
static void activate(float *p, size_t n, bool softmax)
{
    float most = p[0], sum = 0;

    for (size_t i = 1; i < n; i++)
        most = p[i] > most ? p[i] : most;
    for (size_t i = 0; i < n; i++) {
        p[i] = softmax ? expf(p[i] - most) : sigmoid(p[i]);
        sum += p[i];
    }
    for (size_t i = 0; softmax && i < n; i++)
        p[i] /= sum;
}

enum rc wrk_read_classes(struct wrk_reader *r, uint32_t prompt, const float *logits,
                         struct rc_err *err)
{
    uint32_t task = r->schema->prompt[prompt].of, best = 0;
    const Ipc__ExtractClasses *k = r->schema->s->classes[task];
    float *p = malloc(k->n_labels * sizeof(*p));
    size_t before = r->out->n_classes;
    enum rc rc = RC_OK;

    if (p == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for %zu classes", k->n_labels);
    memcpy(p, logits, k->n_labels * sizeof(*p));
    activate(p, k->n_labels, k->activation == 0 ? !k->multi_label : k->activation == 2);
    for (uint32_t i = 0; i < k->n_labels && rc == RC_OK; i++) {
        best = p[i] > p[best] ? i : best;
        if (k->multi_label && p[i] >= k->threshold)
            rc = wrk_finds_class(r->out, &(struct wrk_class){task, i, p[i]}, err);
    }
    if (rc == RC_OK && r->out->n_classes == before)
        rc = wrk_finds_class(r->out, &(struct wrk_class){task, best, p[best]}, err);
    free(p);
    return rc;
}

/* ---------------------------------------------------------------------- fields */

static float threshold_of(const struct wrk_reader *r, bool has, float own)
{
    return has ? own : r->threshold;
}

static enum rc read_entity(struct wrk_reader *r, uint32_t label, const float *logits,
                           uint32_t width, struct rc_err *err)
{
    const Ipc__ExtractField *f = r->schema->s->entities[label];
    enum rc rc =
        cells(r, logits, width, threshold_of(r, f->has_threshold, f->threshold), NULL, false, err);

    if (rc == RC_OK)
        rc = finalise(r, f->single, err);
    for (size_t i = 0; rc == RC_OK && i < r->n; i++)
        rc = wrk_finds_entity(r->out, &(struct wrk_entity){label, span_of(r, &r->cell[i])}, err);
    return rc;
}

static enum rc read_relation(struct wrk_reader *r, uint32_t of, uint32_t field, const float *logits,
                             uint32_t width, struct rc_err *err)
{
    const Ipc__ExtractRelation *q = r->schema->s->relations[of];
    enum rc rc =
        cells(r, logits, width, threshold_of(r, q->has_threshold, q->threshold), NULL, true, err);

    if (rc != RC_OK)
        return rc;
    if (field == 0) {
        r->has_head = r->n > 0;
        if (r->has_head)
            r->head = span_of(r, &r->cell[0]);
        return RC_OK;
    }
    if (!r->has_head || r->n == 0)
        return RC_OK;
    return wrk_finds_relation(r->out, &(struct wrk_relation){of, r->head, span_of(r, &r->cell[0])},
                              err);
}

static enum rc add_value(struct wrk_reader *r, uint32_t field, const struct wrk_span *s,
                         struct rc_err *err)
{
    r->any = true;
    return wrk_finds_value(r->out, &(struct wrk_value){field, *s}, err);
}

/* Choices that are spelled by the same word are one: the first of them stands for all. */
static enum rc read_choices(struct wrk_reader *r, uint32_t prompt, uint32_t field,
                            const Ipc__ExtractField *f, const float *logits, uint32_t width,
                            float threshold, struct rc_err *err)
{
    const struct wrk_schema *s = r->schema;
    struct wrk_span best = {.score = -1};
    uint32_t i = 0, from;
    enum rc rc = RC_OK;

    while (i < s->n_choices && (s->choice[i].prompt != prompt || s->choice[i].field != field))
        i++;
    for (from = i; rc == RC_OK && i < from + f->n_choices; i++) {
        struct wrk_span x = {.choice = s->choice[i].idx,
                             .score = sigmoid(logits[(size_t)s->choice[i].word * width])};
        uint32_t k = from;

        while (s->choice[k].word != s->choice[i].word)
            k++;
        if (f->single && x.score > best.score)
            best = x;
        if (!f->single && k == i && x.score >= threshold)
            rc = add_value(r, field, &x, err);
    }
    return f->single && best.score >= threshold ? add_value(r, field, &best, err) : rc;
}

static enum rc read_value(struct wrk_reader *r, uint32_t prompt, uint32_t field,
                          const float *logits, uint32_t width, struct rc_err *err)
{
    const struct wrk_schema *s = r->schema;
    uint32_t of = s->prompt[prompt].of, k = field;
    const Ipc__ExtractField *f = s->s->records[of]->fields[field];
    float threshold = threshold_of(r, f->has_threshold, f->threshold);
    enum rc rc;

    if (f->n_choices > 0)
        return read_choices(r, prompt, field, f, logits, width, threshold, err);
    for (uint32_t i = 0; i < of; i++)
        k += (uint32_t)s->s->records[i]->n_fields;
    rc = cells(r, logits, width, threshold, s->patterns[k], f->single, err);
    if (rc == RC_OK)
        rc = finalise(r, f->single, err);
    for (size_t i = 0; rc == RC_OK && i < r->n; i++) {
        struct wrk_span x = span_of(r, &r->cell[i]);

        rc = add_value(r, field, &x, err);
    }
    return rc;
}

enum rc wrk_read_field(struct wrk_reader *r, uint32_t prompt, uint32_t instance, uint32_t field,
                       const float *logits, uint32_t width, struct rc_err *err)
{
    const struct wrk_prompt *p = &r->schema->prompt[prompt];
    uint32_t last = r->schema->ask[prompt].n_fields - 1;
    enum rc rc;

    if (p->kind == WRK_ENTITIES)
        return instance == 0 ? read_entity(r, field, logits, width, err) : RC_OK;
    if (p->kind == WRK_RELATIONS)
        return read_relation(r, p->of, field, logits, width, err);
    if (field == 0) {
        r->any = false;
        r->from = (uint32_t)r->out->n_values;
    }
    if ((rc = read_value(r, prompt, field, logits, width, err)) != RC_OK || field < last || !r->any)
        return rc;
    return wrk_finds_record(
        r->out, &(struct wrk_record){p->of, r->from, (uint32_t)r->out->n_values - r->from}, err);
}
