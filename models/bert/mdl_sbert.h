/* mdl_sbert.h - what sentence-transformers' side files say, for any encoder: how token vectors
 * become one, the longest input, prompts. Source: encoders.md 3. */
#ifndef INFERD_MDL_SBERT_H
#define INFERD_MDL_SBERT_H

#include "mdl_impl.h"

#define BERT_MAX_PROMPTS 64
#define BERT_MAX_POOLS 6
#define BERT_MAX_DENSE 4

/* A step y = act(x W^T + b) behind the pooling; its file joins the model's with the name of its
 * folder in front, or (inside) its tensors are in the model's own file. */
struct bert_dense {
    char path[48];
    bool inside;
    uint32_t n_in, n_out;
    bool bias, tanh; /* tanh, else no activation */
    struct be_weight *w, *b;
    struct be_tensor *out; /* [seqs of a pass, n_out] */
};

/* Side files: how token vectors become one vector, and words put in front. */
struct bert_sbert {
    uint32_t n_pools;
    enum be_pool pools[BERT_MAX_POOLS]; /* in the order their vectors are joined */
    uint32_t n_dense;
    struct bert_dense dense[BERT_MAX_DENSE];
    bool normalize;
    struct be_tensor *pooled, *joined; /* [seqs, d_model]; [seqs, n_pools * d_model] where needed */
    float *host;                       /* the same, widest */
    bool listed;      /* modules.json is there; without it the defaults above are meant */
    uint32_t max_seq; /* 0 = not said */
    size_t n_prompts;
    struct {
        char *name, *text;
    } prompts[BERT_MAX_PROMPTS];
    int default_prompt; /* index or -1 */
};

/* Of a GGUF file, whose keys begin with info.arch: the pooling key; what it means where no side
 * files are listed (vectors are divided by their length then: the format has no word for that, and
 * what reads it does so); RC_UNSUPPORTED for attention.causal; rows of a matrix in the file. */
enum sbert_gguf_pool {
    SBERT_POOL_NONE,
    SBERT_POOL_MEAN,
    SBERT_POOL_CLS,
    SBERT_POOL_LAST,
    SBERT_POOL_RANK
};
enum rc mdl_sbert_gguf_pooling(const struct mdl *m, enum sbert_gguf_pool *out, struct rc_err *err);
enum rc mdl_sbert_gguf_steps(struct bert_sbert *st, const struct mdl *m, struct rc_err *err);
/* The tensors dense_2 and dense_3 as steps without activation. RC_WEIGHT_ABSENT without them. */
enum rc mdl_sbert_gguf_dense(struct bert_sbert *st, const struct mdl *m, struct rc_err *err);
enum rc mdl_sbert_gguf_refuse_causal(const struct mdl *m, struct rc_err *err);
enum rc mdl_sbert_gguf_rows(const struct mdl *m, const char *name, uint32_t max, uint32_t *out,
                            struct rc_err *err);

enum rc mdl_sbert_load(struct bert_sbert *st, int root_fd, struct rc_err *err);
void mdl_sbert_deinit(struct bert_sbert *st);
/* What follows the encoder, in the order of opening a model: weights of the steps join m->file and
 * info.embed_dim is set; they are planned; memory of passes is; vectors of a pass, from its rows x
 * [n_rows, d_model], to out [n_seqs, embed_dim]. d_model is m->info's. */
enum rc mdl_sbert_join(struct bert_sbert *st, struct mdl *m, int root_fd, struct rc_err *err);
enum rc mdl_sbert_plan(struct bert_sbert *st, struct mdl *m, struct rc_err *err);
enum rc mdl_sbert_fit(struct bert_sbert *st, struct mdl *m, struct rc_err *err);
enum rc mdl_sbert_vectors(struct bert_sbert *st, struct mdl *m, const struct be_tensor *x,
                          const struct mdl_pass *p, float *out, struct rc_err *err);
/* All of that while a model is opened: loads st, joins its steps, and says to info what follows
 * from it: can_embed, the longest input (at most what info says so far), the default prompt.
 * inform: the last of these alone. */
enum rc mdl_sbert_config(struct bert_sbert *st, struct mdl *m, int root_fd, struct rc_err *err);
void mdl_sbert_inform(const struct bert_sbert *st, struct mdl *m);
/* [SEP]: what the tokenizer puts behind a text. RC_FORMAT when it puts nothing there. */
enum rc mdl_sbert_sep(const struct mdl *m, int32_t *out, struct rc_err *err);
/* Types of rows in pairs as BERT was trained: 1 behind the first sep of a sequence, else 0. */
void mdl_sbert_types(const struct mdl_pass *p, int32_t sep, int32_t *types);
/* For the family's table. tokens: of a text with the prompt in front, cut at its end where that is
 * allowed; what closes an input stays last. pair_tokens: the tokenizer's template. dims: vectors of
 * one width. */
enum rc mdl_sbert_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                         const char *task_type, bool truncate, bool *truncated, struct mdl_ids *out,
                         struct rc_err *err);
enum rc mdl_sbert_pair_tokens(const struct mdl *m, const char *query, size_t n_query,
                              const char *doc, size_t n_doc, bool truncate, bool *truncated,
                              struct mdl_ids *out, struct rc_err *err);
enum rc mdl_sbert_dims(const struct mdl *m, uint32_t dims, struct rc_err *err);
/* The prompt for a task type: NULL = none. RC_INVALID when the model has no such. */
enum rc mdl_sbert_prompt(const struct bert_sbert *st, const char *task_type, const char **out,
                         struct rc_err *err);

#endif
