/* sup_responses.h - private to POST /v1/responses: what its two files share.
 *
 * sup_responses.c turns the request into the messages of a chat and submits it;
 * sup_responses_out.c turns Delta and Done frames into a response object or its events.
 */
#ifndef INFERD_SUP_RESPONSES_H
#define INFERD_SUP_RESPONSES_H

#include "sup_gen.h"

enum sup_item { SUP_ITEM_NONE, SUP_ITEM_REASONING, SUP_ITEM_MESSAGE, SUP_ITEM_CALL };

struct sup_resp {
    struct sup_gen g;
    int64_t created;
    struct sup_json tail;  /* of the response object: what repeats the request */
    struct sup_json items; /* the output so far, rows of "output" */
    struct sup_json cur;   /* text or arguments of the open item, escaped */
    struct sup_json name;  /* of the open call, escaped */
    enum sup_item open;
    uint32_t n_items, n_calls, finish; /* finish: as in Delta */
    uint64_t n_events, reasoning_tokens;
};

/* struct sup_call_ops members. */
void sup_resp_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr);
void sup_resp_finish(struct sup_call *c);
void sup_resp_deinit(struct sup_call *c);

#endif
