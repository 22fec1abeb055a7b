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

/* What the side files make of an encoder of `width`: can_embed, embed_dim, the longest input (at
 * most what info says so far), the default prompt. */
void mdl_sbert_inform(struct mdl *m, const struct bert_sbert *st, uint32_t width);
/* [SEP]: what the tokenizer puts behind a text. RC_FORMAT when it puts nothing there. */
enum rc mdl_sbert_sep(const struct mdl *m, int32_t *out, struct rc_err *err);
/* Types of rows in pairs as BERT was trained: 1 behind the first sep of a sequence, else 0. */
void mdl_sbert_types(const struct mdl_pass *p, int32_t sep, int32_t *types);
/* As mdl_family.embed_tokens. */
enum rc mdl_sbert_tokens(const struct mdl *m, const struct bert_sbert *st, const char *text,
                         size_t n_bytes, const char *task_type, bool truncate, bool *truncated,
                         struct mdl_ids *out, struct rc_err *err);
/* Vectors of a pass from its last rows x to out [n_seqs, embed_dim]. pooled [n_seqs, width], host
 * the same. */
enum rc mdl_sbert_pool(struct mdl *m, const struct bert_sbert *st, const struct mdl_pass *p,
                       const struct be_tensor *x, struct be_tensor *pooled, float *host, float *out,
                       struct rc_err *err);
/* For the family's table: vectors of one width; two tokens, as short as a text can be, through
 * every head that there is. */
enum rc mdl_sbert_dims(const struct mdl *m, uint32_t dims, struct rc_err *err);
enum rc mdl_sbert_self_test(struct mdl *m, struct rc_err *err);

#endif
