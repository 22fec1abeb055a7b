/* sup_extract_parts.c - inputs of an extraction whose options differ are tasks of their own.
 * Tests: tests/supervisor/test_sup_api_extract.c
 */
#include "sup_extract_parts.h"

#include <stdlib.h>

bool sup_extract_part_find(struct sup_extract_reading *r, const struct sup_extract_opts *o,
                           uint32_t *out)
{
    for (uint32_t p = 0; p < r->e->n_parts; p++)
        if (r->opts[p].threshold == o->threshold && r->opts[p].flat == o->flat &&
            r->opts[p].bytes == o->bytes) {
            *out = p;
            return true;
        }
    if (r->e->n_parts == SUP_PARTS_MAX) {
        sup_fail_set(r->f, SUP_E_CONTENT_TOO_LARGE, "inputs",
                     "field 'inputs': more than %u different sets of options", SUP_PARTS_MAX);
        return false;
    }
    *out = r->e->n_parts;
    r->opts[r->e->n_parts++] = *o;
    return true;
}

static bool submit_part(struct sup_extract_reading *r, uint32_t p, Ipc__Extract *q)
{
    struct sup_extract *e = r->e;
    struct sup_extract_part *part = &e->parts[p];
    Ipc__Frame frame = IPC__FRAME__INIT;

    part->at = calloc(e->n_inputs, sizeof(*part->at));
    q->inputs = sup_call_alloc(&e->call, e->n_inputs * sizeof(*q->inputs));
    q->schema_of = sup_call_alloc(&e->call, e->n_inputs * sizeof(*q->schema_of));
    if (!part->at || !q->inputs || !q->schema_of)
        return sup_fail_no_memory(r->f);
    for (uint32_t i = 0; i < e->n_inputs; i++)
        if (r->part_of[i] == p) {
            q->inputs[part->n] = r->texts[i];
            q->schema_of[part->n] = e->inputs[i].schema;
            part->at[part->n++] = i;
        }
    q->n_inputs = q->n_schema_of = q->n_item_of = part->n;
    q->item_of = part->at;
    q->schemas = r->schemas;
    q->n_schemas = r->n_schemas;
    q->threshold = r->opts[p].threshold;
    q->byte_offsets = r->opts[p].bytes;
    q->flat = r->opts[p].flat;
    q->per_item = e->per_item;
    q->deadline_us = e->call.deadline_us;
    frame.body_case = IPC__FRAME__BODY_EXTRACT;
    frame.extract = q;
    return sup_call_submit(&e->call, p, &frame, r->f);
}

/* A part whose inputs are all bad has nothing to do: the parts behind it move up. */
static void drop_empty_parts(struct sup_extract_reading *r)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->e->n_parts; p++) {
        bool used = false;

        for (uint32_t i = 0; i < r->e->n_inputs; i++)
            if (r->part_of[i] == p) {
                used = true;
                r->part_of[i] = n;
            }
        if (used)
            r->opts[n++] = r->opts[p];
    }
    r->e->n_parts = n;
}

bool sup_extract_submit(struct sup_extract_reading *r, char *identity)
{
    struct sup_extract *e = r->e;

    if (e->n_sent == 0) {
        sup_extract_finish(&e->call); /* per_item, and none was in order */
        return true;
    }
    drop_empty_parts(r);
    if (!(e->parts = calloc(e->n_parts, sizeof(*e->parts))))
        return sup_fail_no_memory(r->f);
    if (!sup_call_parts(&e->call, e->n_parts, r->f))
        return false;
    for (uint32_t p = 0; p < e->n_parts; p++) {
        Ipc__Extract q = IPC__EXTRACT__INIT;

        if (identity)
            q.model_identity = identity;
        if (!submit_part(r, p, &q))
            return false;
    }
    return true;
}
