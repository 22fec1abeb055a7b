/* sup_extract_join.c - the ends of relations among the entities of a text.
 *
 * Ends are spans of text of their own: each is told as the entity that stands there, and one where
 * none stands becomes an entity. Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_out.h"

#include <stdlib.h>
#include <string.h>

#define OWN_LABEL "entity"  /* of an end that is no entity and whose relation names none */
#define WORK_MAX 100000000u /* comparisons of spans for one input: a tenth of a second */

static uint32_t overlap(const Ipc__ExtractSpan *a, const Ipc__ExtractSpan *b)
{
    uint32_t from = a->start > b->start ? a->start : b->start,
             to = a->end < b->end ? a->end : b->end;

    return a->has_place && b->has_place && to > from ? to - from : 0;
}

static bool same_place(const Ipc__ExtractSpan *a, const Ipc__ExtractSpan *b)
{
    if (!a->has_place || !b->has_place)
        return a->has_place == b->has_place && a->text.len == b->text.len &&
               memcmp(a->text.data, b->text.data, a->text.len) == 0;
    return a->start == b->start && a->end == b->end;
}

/* The entity that an end is: one of just its place, else that which shares most with it, else a
 * new one. UINT32_MAX: there is one, of another label than the relation takes. */
static uint32_t end_entity(struct sup_telling *t, const Ipc__ExtractSpan *span, const char *label)
{
    const char *want = label ? label : t->asked ? NULL : OWN_LABEL;
    uint32_t best = UINT32_MAX, most = 0;
    bool other = false;

    for (uint32_t i = 0; i < t->n_ents; i++) {
        const struct sup_told_entity *x = &t->ents[i];
        bool fits = !want || strcmp(x->label, want) == 0;
        uint32_t shared = overlap(x->span, span);

        if (fits && same_place(x->span, span))
            return i;
        if (i >= t->n_found || shared == 0)
            continue;
        other |= !fits;
        if (fits && shared > most) {
            most = shared;
            best = i;
        }
    }
    if (best != UINT32_MAX || other)
        return best;
    t->ents[t->n_ents] = (struct sup_told_entity){want ? want : OWN_LABEL, span};
    return t->n_ents++;
}

/* A relation that stands there already keeps the better score. */
static void keep_relation(struct sup_telling *t, const struct sup_told_relation *r)
{
    for (uint32_t i = 0; i < t->n_rels; i++) {
        struct sup_told_relation *x = &t->rels[i];

        if (x->source == r->source && x->target == r->target && strcmp(x->type, r->type) == 0) {
            if (r->score > x->score)
                x->score = r->score;
            return;
        }
    }
    t->rels[t->n_rels++] = *r;
}

/* By the first row of its type whose ends it has. */
static void take_relation(struct sup_telling *t, const Ipc__ExtractedRelation *w)
{
    const json_t *row;
    size_t k;

    json_array_foreach(sup_plan_list(t, "relations"), k, row)
    {
        const uint32_t before = t->n_ents;
        struct sup_told_relation r = {.type = sup_plan_text(row, "type")};

        if ((uint32_t)json_integer_value(json_object_get(row, "i")) != w->relation)
            continue;
        r.source = end_entity(t, w->head, sup_plan_text(row, "source"));
        if (r.source != UINT32_MAX)
            r.target = end_entity(t, w->tail, sup_plan_text(row, "target"));
        if (r.source != UINT32_MAX && r.target != UINT32_MAX) {
            r.score = w->head->score < w->tail->score ? w->head->score : w->tail->score;
            keep_relation(t, &r);
            return;
        }
        t->n_ents = before;
    }
}

bool sup_telling_collect(struct sup_telling *t, struct sup_fail *f)
{
    const Ipc__ExtractedItem *w = t->item;
    const uint64_t ends = 2 * (uint64_t)w->n_relations, ents = w->n_entities + ends;

    if (ends * ents > WORK_MAX) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "",
                     "%zu relations between %zu entities in one text, expected fewer: raise the "
                     "threshold or send shorter texts",
                     w->n_relations, w->n_entities);
        return false;
    }
    t->ents = calloc((size_t)ents + 1, sizeof(*t->ents));
    t->rels = calloc(w->n_relations + 1, sizeof(*t->rels));
    if (!t->ents || !t->rels)
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < w->n_entities; i++)
        t->ents[t->n_ents++] = (struct sup_told_entity){
            json_string_value(json_array_get(sup_plan_list(t, "entities"), w->entities[i]->label)),
            w->entities[i]->span};
    t->n_found = t->n_ents;
    for (size_t i = 0; i < w->n_relations; i++)
        take_relation(t, w->relations[i]);
    return true;
}
