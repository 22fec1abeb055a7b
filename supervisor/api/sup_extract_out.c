/* sup_extract_out.c - what a worker found to the answer of an extraction.
 *
 * Frames were checked where they came in (sup_fleet_check.c); an index is held against the plan
 * once more where it is used.
 * Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_out.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ writing */

static void put_text(struct sup_json *o, ProtobufCBinaryData text)
{
    sup_json_str(o, "\"");
    sup_json_text(o, text.data, text.len);
    sup_json_str(o, "\"");
}

static void put_place(struct sup_json *o, const Ipc__ExtractSpan *s)
{
    if (s->has_place)
        sup_json_fmt(o, ",\"start\":%u,\"end\":%u", s->start, s->end);
}

static void put_score(struct sup_json *o, float score)
{
    sup_json_str(o, ",\"score\":");
    sup_json_f32(o, score);
}

static void put_entity(struct sup_telling *t, uint32_t i)
{
    const struct sup_told_entity *x = &t->ents[i];

    sup_json_fmt(t->o, "{\"id\":\"e%u\",\"local_id\":\"e%u\",\"label\":", i, i);
    sup_json_quoted(t->o, x->label);
    sup_json_str(t->o, ",\"text\":");
    put_text(t->o, x->span->text);
    put_place(t->o, x->span);
    put_score(t->o, x->span->score);
    sup_json_str(t->o, "}");
}

static void put_entities(struct sup_telling *t)
{
    sup_json_str(t->o, ",\"entities\":[");
    for (uint32_t i = 0; i < t->n_ents; i++) {
        sup_json_str(t->o, i ? "," : "");
        put_entity(t, i);
    }
    sup_json_str(t->o, "]");
}

static void put_end(struct sup_json *o, const char *key, uint32_t i)
{
    sup_json_fmt(o, ",\"%s\":{\"entity_index\":%u,\"id\":\"e%u\"}", key, i, i);
}

static void put_relations(struct sup_telling *t)
{
    sup_json_str(t->o, ",\"relations\":[");
    for (uint32_t i = 0; i < t->n_rels; i++) {
        sup_json_str(t->o, i ? ",{\"type\":" : "{\"type\":");
        sup_json_quoted(t->o, t->rels[i].type);
        put_end(t->o, "source", t->rels[i].source);
        put_end(t->o, "target", t->rels[i].target);
        put_score(t->o, t->rels[i].score);
        sup_json_str(t->o, "}");
    }
    sup_json_str(t->o, "]");
}

/* The ends themselves, as /ai/v1/recognize has them. */
static void put_pairs(struct sup_telling *t)
{
    sup_json_str(t->o, ",\"relations\":[");
    for (uint32_t i = 0; i < t->n_rels; i++) {
        sup_json_str(t->o, i ? ",{\"label\":" : "{\"label\":");
        sup_json_quoted(t->o, t->rels[i].type);
        sup_json_str(t->o, ",\"head\":");
        put_entity(t, t->rels[i].source);
        sup_json_str(t->o, ",\"tail\":");
        put_entity(t, t->rels[i].target);
        put_score(t->o, t->rels[i].score);
        sup_json_str(t->o, "}");
    }
    sup_json_str(t->o, "]");
}

static int best_class(const void *a, const void *b)
{
    const Ipc__ExtractedClass *x = *(Ipc__ExtractedClass *const *)a,
                              *y = *(Ipc__ExtractedClass *const *)b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->label > y->label) - (x->label < y->label);
}

static void put_classes(struct sup_telling *t)
{
    sup_json_str(t->o, ",\"classifications\":[");
    for (size_t i = 0; i < t->item->n_classes; i++) {
        const Ipc__ExtractedClass *c = t->item->classes[i];
        const json_t *task = json_array_get(sup_plan_list(t, "classes"), c->task);

        sup_json_str(t->o, i ? ",{\"name\":" : "{\"name\":");
        sup_json_quoted(t->o, sup_plan_text(task, "name"));
        sup_json_str(t->o, ",\"label\":");
        sup_json_quoted(
            t->o, json_string_value(json_array_get(json_object_get(task, "labels"), c->label)));
        put_score(t->o, c->score);
        sup_json_str(t->o, "}");
    }
    sup_json_str(t->o, "]");
}

static void put_value(struct sup_telling *t, const Ipc__ExtractSpan *s)
{
    sup_json_str(t->o, "{\"value\":");
    put_text(t->o, s->text);
    if (t->opts->confidence)
        put_score(t->o, s->score);
    if (t->opts->spans)
        put_place(t->o, s);
    sup_json_str(t->o, "}");
}

static void put_field(struct sup_telling *t, const json_t *field, const Ipc__ExtractedValue *v)
{
    const size_t n = v ? v->n_spans : 0;
    bool first = true;

    sup_json_quoted(t->o, sup_plan_text(field, "name"));
    if (!json_is_true(json_object_get(field, "list"))) {
        sup_json_str(t->o, n ? ":" : ":null");
        if (n)
            put_value(t, v->spans[0]);
        return;
    }
    sup_json_str(t->o, ":[");
    for (size_t i = 0; i < n; i++) {
        if (v->spans[i]->again && !t->opts->spans) /* without offsets it says nothing new */
            continue;
        sup_json_str(t->o, first ? "" : ",");
        first = false;
        put_value(t, v->spans[i]);
    }
    sup_json_str(t->o, "]");
}

static void put_record(struct sup_telling *t, const json_t *fields, const Ipc__ExtractedRecord *w)
{
    const json_t *field;
    size_t k;

    sup_json_str(t->o, "{");
    json_array_foreach(fields, k, field)
    {
        const Ipc__ExtractedValue *v = NULL;

        for (size_t i = 0; i < w->n_values && !v; i++)
            if (w->values[i]->field == k)
                v = w->values[i];
        sup_json_str(t->o, k ? "," : "");
        put_field(t, field, v);
    }
    sup_json_str(t->o, "}");
}

static void put_structures(struct sup_telling *t)
{
    const json_t *record;
    size_t k;

    sup_json_str(t->o, ",\"structures\":{");
    json_array_foreach(sup_plan_list(t, "records"), k, record)
    {
        bool first = true;

        sup_json_str(t->o, k ? "," : "");
        sup_json_quoted(t->o, sup_plan_text(record, "name"));
        sup_json_str(t->o, ":[");
        for (size_t i = 0; i < t->item->n_records; i++) {
            if (t->item->records[i]->record != k)
                continue;
            sup_json_str(t->o, first ? "" : ",");
            first = false;
            put_record(t, json_object_get(record, "fields"), t->item->records[i]);
        }
        sup_json_str(t->o, "]");
    }
    sup_json_str(t->o, "}");
}

/* ------------------------------------------------------------------- checks */

static bool span_ok(const Ipc__ExtractSpan *s)
{
    return s && s->score >= 0 && s->score <= 1 && (!s->has_place || s->start <= s->end);
}

/* Is every index one of the plan? */
static bool item_ok(const Ipc__ExtractedItem *w, const json_t *plan)
{
    const size_t n_ents = json_array_size(json_object_get(plan, "entities")),
                 n_rels = json_array_size(json_object_get(plan, "relations"));
    bool ok = true;

    for (size_t i = 0; ok && i < w->n_entities; i++)
        ok = w->entities[i]->label < n_ents && span_ok(w->entities[i]->span);
    for (size_t i = 0; ok && i < w->n_relations; i++)
        ok = w->relations[i]->relation < n_rels && span_ok(w->relations[i]->head) &&
             span_ok(w->relations[i]->tail);
    for (size_t i = 0; ok && i < w->n_classes; i++) {
        const json_t *task = json_array_get(json_object_get(plan, "classes"), w->classes[i]->task);

        ok = task && w->classes[i]->label < json_array_size(json_object_get(task, "labels")) &&
             w->classes[i]->score >= 0 && w->classes[i]->score <= 1;
    }
    for (size_t i = 0; ok && i < w->n_records; i++) {
        const json_t *record =
            json_array_get(json_object_get(plan, "records"), w->records[i]->record);

        ok = record != NULL;
        for (size_t k = 0; ok && k < w->records[i]->n_values; k++) {
            const Ipc__ExtractedValue *v = w->records[i]->values[k];

            ok = v->field < json_array_size(json_object_get(record, "fields"));
            for (size_t s = 0; ok && s < v->n_spans; s++)
                ok = span_ok(v->spans[s]);
        }
    }
    return ok;
}

/* -------------------------------------------------------------------- whole */

static void put_item(enum sup_extract_form form, struct sup_telling *t)
{
    if (form == SUP_EXTRACT_CLASSIFY) {
        qsort(t->item->classes, t->item->n_classes, sizeof(*t->item->classes), best_class);
        sup_json_str(t->o, ",\"object\":\"classification\"");
        put_classes(t);
        return;
    }
    if (form == SUP_EXTRACT_RECOGNIZE) {
        sup_json_str(t->o, ",\"object\":\"recognition\"");
        put_entities(t);
        put_pairs(t);
        return;
    }
    put_entities(t);
    put_relations(t);
    put_classes(t);
    put_structures(t);
}

static bool tell(struct sup_extract *e, uint32_t at, const Ipc__ExtractedItem *w,
                 struct sup_fail *f)
{
    struct sup_extract_input *in = &e->inputs[at];
    struct sup_telling t = {.o = &in->out, .opts = &in->opts, .item = w};
    bool ok;

    t.plan = json_array_get(e->plans, in->schema);
    t.asked = json_array_size(sup_plan_list(&t, "entities")) > 0;
    if (!item_ok(w, t.plan)) {
        sup_fail_set(f, SUP_E_INFERENCE_FAILED, "",
                     "the worker found what input %u was not asked for", at);
        return false;
    }
    if ((ok = sup_telling_collect(&t, f))) {
        sup_json_fmt(t.o, "{\"index\":%u", at);
        if (in->id) {
            sup_json_str(t.o, ",\"id\":");
            sup_json_quoted(t.o, json_string_value(in->id));
        }
        put_item(e->form, &t);
        sup_json_str(t.o, "}");
        e->n_tokens += w->n_tokens;
    } else {
        f->err.item = (int32_t)at;
        f->err.stage = IPC_STAGE_TEXT_RUN;
    }
    free(t.ents);
    free(t.rels);
    return ok;
}

bool sup_extract_found(struct sup_extract *e, struct sup_extract_part *part,
                       const Ipc__Extracted *w, struct sup_fail *f)
{
    bool *failed = calloc(part->n, sizeof(*failed)), ok;

    if (!failed)
        return sup_fail_no_memory(f);
    ok = !part->answered && w->n_items == part->n &&
         sup_item_rows(w->errors, w->n_errors, part->n, e->per_item, failed);
    if (!ok)
        sup_fail_set(f, SUP_E_INFERENCE_FAILED, "", "the worker gave %zu findings for %u inputs",
                     w->n_items, part->n);
    part->answered = true;
    ok = ok && sup_pin_kept(e->identity, w->model_identity, f);
    for (uint32_t k = 0; ok && k < part->n; k++)
        ok = failed[k] || tell(e, part->at[k], w->items[k], f);
    if (ok) {
        sup_item_notes(&e->errors, w->errors, w->n_errors, part->at);
        memcpy(e->had_identity, w->model_identity, strnlen(w->model_identity, 64));
    }
    free(failed);
    return ok;
}

void sup_extract_answer(struct sup_extract *e)
{
    const struct sup_items_end end = {
        .model = e->call.model,
        .identity = e->had_identity,
        .n_tokens = e->n_tokens,
        .completion = true,
        .errors = e->per_item ? &e->errors : NULL,
        .n_inputs = e->n_inputs,
    };
    struct sup_json *o = &e->out;
    bool first = true;

    sup_json_fmt(o, "{\"object\":\"%s\",\"data\":[",
                 e->form == SUP_EXTRACT_ALL ? "extraction" : "list");
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        if (e->inputs[i].out.failed)
            o->failed = true;
        if (e->inputs[i].out.n == 0)
            continue;
        sup_json_str(o, first ? "" : ",");
        first = false;
        sup_json_put(o, e->inputs[i].out.p, e->inputs[i].out.n);
    }
    sup_call_facts(&e->call, "extract", e->n_tokens);
    sup_items_end(o, &end);
}
