/* mdl_sbert.h - what sentence-transformers' side files say, for any encoder: how token vectors
 * become one, the longest input, prompts. Source: encoders.md 3. */
#ifndef INFERD_MDL_SBERT_H
#define INFERD_MDL_SBERT_H

#include "mdl_impl.h"

#define BERT_MAX_PROMPTS 64
#define BERT_MAX_POOLS 6

/* Side files: how token vectors become one vector, and words put in front. */
struct bert_sbert {
    uint32_t n_pools;
    enum be_pool pools[BERT_MAX_POOLS]; /* in the order their vectors are joined */
    bool normalize;
    bool listed;      /* modules.json is there; without it the defaults above are meant */
    uint32_t max_seq; /* 0 = not said */
    size_t n_prompts;
    struct {
        char *name, *text;
    } prompts[BERT_MAX_PROMPTS];
    int default_prompt; /* index or -1 */
};

enum rc mdl_sbert_load(struct bert_sbert *st, int root_fd, struct rc_err *err);
void mdl_sbert_deinit(struct bert_sbert *st);
/* The prompt for a task type: NULL = none. RC_INVALID when the model has no such. */
enum rc mdl_sbert_prompt(const struct bert_sbert *st, const char *task_type, const char **out,
                         struct rc_err *err);

#endif
