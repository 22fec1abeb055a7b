/* sup_embed.h - between the files of the embedding endpoint.
 *
 * sup_embed.c has the fields and the order of things, sup_embed_in.c turns `input`
 * into the worker's message, sup_embed_out.c its vectors into an answer.
 * Tests: tests/supervisor/test_sup_api_embed.c, test_sup_api_embed_media.c
 */
#ifndef INFERD_SUP_EMBED_H
#define INFERD_SUP_EMBED_H

#include "sup_call.h"
#include "sup_items.h"

#define SUP_GROUPS_MAX 64u      /* of one request */
#define SUP_GROUP_PARTS_MAX 64u /* of one group */

struct sup_embed {
    struct sup_call call;
    bool base64, per_item;
    bool numeric;          /* the client takes the numeric frame; in `out`: it is one */
    const char *task;      /* task_type or "", until start has returned */
    uint32_t dimensions;   /* asked for; 0 = the model's own */
    unsigned outputs;      /* IPC_OUT_..., at least one */
    char identity[64 + 1]; /* asked for; "" = any */
    uint32_t n_inputs, n_sent;
    uint32_t *at; /* [n_sent] index in the request */
    uint64_t media_bytes;
    bool groups, has_media;
    struct sup_json out; /* the answer */
    struct sup_item_errors errors;
};

/* All inputs that are in order into q; the others fail the request or, per_item, become
 * entries of errors[]. tokens_only: the field is input_tokens. */
bool sup_embed_inputs(struct sup_embed *e, json_t *input, bool tokens_only, Ipc__Embed *q,
                      struct sup_fail *f);
/* The answer into e->out, or false: the worker's vectors are not what was asked for. */
bool sup_embed_answer(struct sup_embed *e, const Ipc__Vectors *w, struct sup_fail *f);
/* The answer when no input was in order. */
void sup_embed_answer_none(struct sup_embed *e);

#endif
