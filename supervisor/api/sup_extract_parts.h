/* sup_extract_parts.h - a request for extraction while it is read, and the tasks it becomes. */
#ifndef INFERD_SUP_EXTRACT_PARTS_H
#define INFERD_SUP_EXTRACT_PARTS_H

#include "sup_extract.h"

/* A request while it is read; of the call's memory. */
struct sup_extract_reading {
    struct sup_extract *e;
    struct sup_fail *f;
    bool strict;                           /* schema_version 2 */
    const struct sup_extract_words *words; /* of an older route, or NULL */
    Ipc__ExtractSchema **schemas;
    size_t n_schemas;
    ProtobufCBinaryData *texts; /* [n_inputs] */
    uint32_t *part_of;          /* [n_inputs]; UINT32_MAX: a bad input */
    struct sup_extract_opts opts[SUP_PARTS_MAX];
};

/* The task that takes inputs of these options; a new one where there is none. false: *r->f. */
bool sup_extract_part_find(struct sup_extract_reading *r, const struct sup_extract_opts *o,
                           uint32_t *out);
/* Everything is read: a task for each set of options; identity: the model's that is asked for, or
 * NULL. false: *r->f. */
bool sup_extract_submit(struct sup_extract_reading *r, char *identity);

#endif
