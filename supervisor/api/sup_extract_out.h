/* sup_extract_out.h - one input's findings on their way into the answer.
 *
 * sup_extract_join.c makes entities of the ends of relations, sup_extract_out.c writes.
 */
#ifndef INFERD_SUP_EXTRACT_OUT_H
#define INFERD_SUP_EXTRACT_OUT_H

#include "sup_extract.h"

struct sup_told_entity {
    const char *label;
    const Ipc__ExtractSpan *span;
};

struct sup_told_relation {
    const char *type;
    uint32_t source, target;
    float score;
};

/* One input's findings while they are told. */
struct sup_telling {
    struct sup_json *o;
    const struct sup_extract_opts *opts;
    const json_t *plan;
    const Ipc__ExtractedItem *item;
    struct sup_told_entity *ents;
    struct sup_told_relation *rels;
    uint32_t n_ents, n_found, n_rels; /* n_found: entities that the model found as such */
    bool asked;                       /* for entities */
};

static inline const char *sup_plan_text(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static inline const json_t *sup_plan_list(const struct sup_telling *t, const char *key)
{
    return json_object_get(t->plan, key);
}

/* Entities and relations of t->item, whose indexes were checked, to t->ents and t->rels, which the
 * caller frees whatever comes of it. false: *f. */
bool sup_telling_collect(struct sup_telling *t, struct sup_fail *f);

#endif
