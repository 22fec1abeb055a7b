/* wrk_ext_merge.c - what the windows of a document found, as one answer.
 *
 * Spans move to where their window begins. Entities of a label: the better one of two that overlap
 * stays; relations and records that are equal but for their scores are one, with the better score;
 * a task's class is the surest one, classes of a multi-label task are joined. A single window's
 * answer stays as it is.
 * Always true: spans of a label are in the order of the text where there were several windows.
 * Tests: tests/worker/test_wrk_extract_read.c, test_wrk_extract_golden.c
 */
#include "wrk_extract.h"

#include <stdlib.h>
#include <string.h>

struct doc {
    const char *text;
    size_t n_bytes;
};

/* Bytes of the character at i. */
static uint32_t char_bytes(const struct doc *d, size_t i)
{
    uint32_t n = 1;

    while (i + n < d->n_bytes && ((uint8_t)d->text[i + n] & 0xC0) == 0x80)
        n++;
    return n;
}

/* The dot is no part of the document: what ends with it ends one character further there, whatever
 * that is, and one beyond the end of the last window. */
static void move(struct wrk_span *s, const struct wrk_view *v, const struct doc *d)
{
    if (!s->placed)
        return;
    s->start += v->point0;
    s->end += v->point0;
    s->at += v->at0;
    s->to += v->at0;
    if (s->dotted && s->to <= d->n_bytes)
        s->to += char_bytes(d, s->to - 1) - 1;
}

static void move_all(struct wrk_finds *f, const struct wrk_view *v, const struct doc *d)
{
    for (size_t i = 0; i < f->n_entities; i++)
        move(&f->entity[i].span, v, d);
    for (size_t i = 0; i < f->n_relations; i++) {
        move(&f->relation[i].head, v, d);
        move(&f->relation[i].tail, v, d);
    }
    for (size_t i = 0; i < f->n_values; i++)
        move(&f->value[i].span, v, d);
}

/* ------------------------------------------------------------------- entities */

static int in_text(const void *a, const void *b)
{
    const struct wrk_entity *x = a, *y = b;

    if (x->span.start != y->span.start)
        return x->span.start < y->span.start ? -1 : 1;
    return x->span.end < y->span.end ? -1 : x->span.end > y->span.end;
}

static int by_label(const void *a, const void *b)
{
    const struct wrk_entity *x = a, *y = b;

    return x->label != y->label ? x->label < y->label ? -1 : 1 : in_text(a, b);
}

/* All windows' entities in out: label by label the best, in the order of the text. */
static enum rc join_entities(struct wrk_finds *f, const struct wrk_schema *s, struct rc_err *err)
{
    size_t from = 0, left = 0;
    enum rc rc;

    if (f->n_entities > 1)
        qsort(f->entity, f->n_entities, sizeof(*f->entity), by_label);
    while (from < f->n_entities) {
        uint32_t label = f->entity[from].label;
        size_t to = from, n;

        while (to < f->n_entities && f->entity[to].label == label)
            to++;
        if ((rc = wrk_entities_thin(f->entity + from, to - from, &n, err)) != RC_OK)
            return rc;
        if (s->s->entities[label]->single)
            n = 1;
        memmove(f->entity + left, f->entity + from, n * sizeof(*f->entity));
        left += n;
        from = to;
    }
    f->n_entities = left;
    return RC_OK;
}

/* -------------------------------------------------------------- equal but scores */

static bool same_span(const struct wrk_span *a, const struct wrk_span *b)
{
    return a->placed == b->placed &&
           (a->placed ? a->start == b->start && a->end == b->end : a->choice == b->choice);
}

static float greater(float a, float b)
{
    return a > b ? a : b;
}

static bool same_relation(const struct wrk_relation *a, const struct wrk_relation *b)
{
    return a->relation == b->relation && same_span(&a->head, &b->head) &&
           same_span(&a->tail, &b->tail);
}

static bool same_record(const struct wrk_finds *f, const struct wrk_record *a,
                        const struct wrk_finds *g, const struct wrk_record *b)
{
    if (a->record != b->record || a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (f->value[a->from + i].field != g->value[b->from + i].field ||
            !same_span(&f->value[a->from + i].span, &g->value[b->from + i].span))
            return false;
    return true;
}

static float score_of_record(const struct wrk_finds *f, const struct wrk_record *a)
{
    float most = 0;

    for (uint32_t i = 0; i < a->n; i++)
        most = greater(most, f->value[a->from + i].span.score);
    return most;
}

/* Where things of an answer stand, by what makes two of them equal. */
struct places {
    uint32_t *slot; /* index + 1; 0 = free. More slots than things */
    size_t mask;
};

static enum rc places_init(struct places *p, size_t n, struct rc_err *err)
{
    size_t size = 16;

    while (size < 2 * n)
        size *= 2;
    p->mask = size - 1;
    if ((p->slot = calloc(size, sizeof(*p->slot))) == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for places of %zu things", n);
    return RC_OK;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccdull;
}

static uint64_t mix_span(uint64_t h, const struct wrk_span *s)
{
    return s->placed ? mix(mix(h, s->start), s->end) : mix(h, s->choice);
}

static uint64_t hash_record(const struct wrk_finds *f, const struct wrk_record *a)
{
    uint64_t h = mix(a->record, a->n);

    for (uint32_t i = 0; i < a->n; i++)
        h = mix_span(mix(h, f->value[a->from + i].field), &f->value[a->from + i].span);
    return h;
}

/* What one window found of relation, record or task number `id`, which are in order there: *at is
 * the first not yet joined. Out has classes of task `id` from `from` on. */
struct joint {
    struct wrk_finds *out;
    const struct wrk_finds *in;
    struct places *places; /* of out's relations, or of its records */
    uint32_t id;
    size_t from, *at;
};

static enum rc join_relations(const struct joint *j, struct rc_err *err)
{
    struct wrk_finds *out = j->out;
    struct places *p = j->places;
    enum rc rc = RC_OK;

    for (; rc == RC_OK && *j->at < j->in->n_relations; ++*j->at) {
        const struct wrk_relation *x = &j->in->relation[*j->at];
        uint64_t h = mix_span(mix_span(mix(0, x->relation), &x->head), &x->tail);
        struct wrk_relation *old = NULL;

        if (x->relation != j->id)
            break;
        for (h ^= h >> 32; p->slot[h & p->mask] != 0 && old == NULL; h++)
            if (same_relation(&out->relation[p->slot[h & p->mask] - 1], x))
                old = &out->relation[p->slot[h & p->mask] - 1];
        if (old == NULL) {
            if ((rc = wrk_finds_relation(out, x, err)) == RC_OK)
                p->slot[h & p->mask] = (uint32_t)out->n_relations;
        } else if (greater(x->head.score, x->tail.score) >
                   greater(old->head.score, old->tail.score)) {
            *old = *x;
        }
    }
    return rc;
}

static enum rc add_record(struct wrk_finds *out, const struct wrk_finds *in,
                          const struct wrk_record *x, struct rc_err *err)
{
    const struct wrk_record add = {x->record, (uint32_t)out->n_values, x->n};
    enum rc rc = RC_OK;

    for (uint32_t v = 0; rc == RC_OK && v < x->n; v++)
        rc = wrk_finds_value(out, &in->value[x->from + v], err);
    return rc == RC_OK ? wrk_finds_record(out, &add, err) : rc;
}

static enum rc join_records(const struct joint *j, struct rc_err *err)
{
    const struct wrk_finds *in = j->in;
    struct wrk_finds *out = j->out;
    struct places *p = j->places;
    enum rc rc = RC_OK;

    for (; rc == RC_OK && *j->at < in->n_records; ++*j->at) {
        const struct wrk_record *x = &in->record[*j->at], *old = NULL;
        uint64_t h;

        if (x->record != j->id)
            break;
        h = hash_record(in, x);
        for (h ^= h >> 32; p->slot[h & p->mask] != 0 && old == NULL; h++)
            if (same_record(out, &out->record[p->slot[h & p->mask] - 1], in, x))
                old = &out->record[p->slot[h & p->mask] - 1];
        if (old == NULL) {
            if ((rc = add_record(out, in, x, err)) == RC_OK)
                p->slot[h & p->mask] = (uint32_t)out->n_records;
        } else if (score_of_record(in, x) > score_of_record(out, old)) {
            memcpy(out->value + old->from, in->value + x->from, x->n * sizeof(*in->value));
        }
    }
    return rc;
}

static enum rc join_classes(const struct joint *j, bool multi, struct rc_err *err)
{
    struct wrk_finds *out = j->out;
    enum rc rc = RC_OK;

    for (; rc == RC_OK && *j->at < j->in->n_classes; ++*j->at) {
        const struct wrk_class *x = &j->in->cls[*j->at];
        size_t k = j->from;

        if (x->task != j->id)
            break;
        while (k < out->n_classes && multi && out->cls[k].label != x->label)
            k++;
        if (k == out->n_classes)
            rc = wrk_finds_class(out, x, err);
        else if (x->score > out->cls[k].score)
            out->cls[k] = *x;
    }
    return rc;
}

/* All windows' things of one kind (0 relations, 1 records, 2 classes), one id after the other.
 * at: [n], for the cursors. */
static enum rc join_kind(struct joint *j, const struct wrk_finds *in, uint32_t n, size_t *at,
                         int kind, const struct wrk_schema *s, struct rc_err *err)
{
    struct wrk_finds *out = j->out;
    size_t ids = kind == 0 ? s->s->n_relations : kind == 1 ? s->s->n_records : s->s->n_classes;
    enum rc rc = RC_OK;

    memset(at, 0, n * sizeof(*at));
    for (j->id = 0; j->id < ids; j->id++) {
        j->from = out->n_classes;
        for (uint32_t i = 0; rc == RC_OK && i < n; i++) {
            j->in = &in[i];
            j->at = &at[i];
            rc = kind == 0   ? join_relations(j, err)
                 : kind == 1 ? join_records(j, err)
                             : join_classes(j, s->s->classes[j->id]->multi_label, err);
        }
    }
    return rc;
}

static enum rc join(struct wrk_finds *out, const struct wrk_finds *in, uint32_t n, size_t *at,
                    const struct wrk_schema *s, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (int kind = 0; kind < 3 && rc == RC_OK; kind++) {
        struct places places = {0};
        struct joint j = {.out = out, .places = &places};
        size_t most = 0;

        for (uint32_t i = 0; i < n; i++)
            most += kind == 0 ? in[i].n_relations : kind == 1 ? in[i].n_records : 0;
        if ((rc = places_init(&places, most, err)) == RC_OK)
            rc = join_kind(&j, in, n, at, kind, s, err);
        free(places.slot);
    }
    for (uint32_t i = 0; rc == RC_OK && i < n; i++)
        for (size_t k = 0; rc == RC_OK && k < in[i].n_entities; k++)
            rc = wrk_finds_entity(out, &in[i].entity[k], err);
    return rc == RC_OK ? join_entities(out, s, err) : rc;
}

/* A model tells of several prompts in turn: things [n, size], which begin with their id, come
 * together by it, those of one in their order. */
static enum rc regroup(void *things, size_t n, size_t size, size_t n_ids, struct rc_err *err)
{
    size_t *at = calloc(n_ids + 1, sizeof(*at));
    char *copy = malloc(n * size + 1), *list = things;
    uint32_t id;

    if (at == NULL || copy == NULL) {
        free(at);
        free(copy);
        return rc_fail(err, RC_NOMEM, "no memory for %zu things found", n);
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&id, list + i * size, sizeof(id));
        at[id + 1]++;
    }
    for (size_t i = 1; i <= n_ids; i++)
        at[i] += at[i - 1];
    if (n > 0)
        memcpy(copy, list, n * size);
    for (size_t i = 0; i < n; i++) {
        memcpy(&id, copy + i * size, sizeof(id));
        memcpy(list + at[id]++ * size, copy + i * size, size);
    }
    free(at);
    free(copy);
    return RC_OK;
}

static enum rc regroup_all(struct wrk_finds *f, const Ipc__ExtractSchema *s, struct rc_err *err)
{
    enum rc rc = regroup(f->relation, f->n_relations, sizeof(*f->relation), s->n_relations, err);

    if (rc == RC_OK)
        rc = regroup(f->record, f->n_records, sizeof(*f->record), s->n_records, err);
    return rc == RC_OK ? regroup(f->entity, f->n_entities, sizeof(*f->entity), s->n_entities, err)
                       : rc;
}

enum rc wrk_finds_merge(struct wrk_finds *out, struct wrk_finds *in, const struct wrk_view *views,
                        uint32_t n, const struct wrk_schema *s, const char *text, size_t n_bytes,
                        bool flat, struct rc_err *err)
{
    const struct doc d = {text, n_bytes};
    size_t *at;
    enum rc rc;

    for (uint32_t i = 0; i < n; i++) {
        move_all(&in[i], &views[i], &d);
        if ((rc = regroup_all(&in[i], s->s, err)) != RC_OK)
            return rc;
    }
    if (n == 1) {
        *out = in[0];
        in[0] = (struct wrk_finds){0};
    } else {
        if ((at = malloc(n * sizeof(*at))) == NULL)
            return rc_fail(err, RC_NOMEM, "no memory for %u windows", n);
        rc = join(out, in, n, at, s, err);
        free(at);
        if (rc != RC_OK)
            return rc;
    }
    return flat ? wrk_entities_thin(out->entity, out->n_entities, &out->n_entities, err) : RC_OK;
}
