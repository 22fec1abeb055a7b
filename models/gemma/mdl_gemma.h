/* mdl_gemma.h - private to models/gemma: the numbers and weights of a Gemma 3
 * text model. Source of the facts: docs/models/gemma3.md. */
#ifndef INFERD_MDL_GEMMA_H
#define INFERD_MDL_GEMMA_H

#include "mdl_impl.h"

#define GEMMA_MAX_LAYERS 256
#define GEMMA_MAX_HEAD 512 /* what the backend rotates */
#define GEMMA_PAGE_TOKENS 32

enum gemma_kind { GEMMA_FULL, GEMMA_SLIDING };

struct gemma_layer {
    enum gemma_kind kind;
    uint32_t cls; /* KV class */
    struct be_weight *attn_norm, *post_attn_norm, *ffn_norm, *post_ffn_norm;
    struct be_weight *q, *k, *v, *o, *q_norm, *k_norm;
    struct be_weight *gate, *up, *down;
};

struct gemma {
    uint32_t n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, window, train_ctx;
    float norm_eps, score_scale, embed_scale;
    float softcap;                  /* 0 = none */
    float theta[2], rope_factor[2]; /* by enum gemma_kind */
    float norm_add;                 /* 1 for safetensors (w - 1 stored), 0 for GGUF */
    bool tied;
    char prefix[32]; /* of HF tensor names, dot included */
    int32_t bos, turn_start, turn_end;
    uint32_t max_rows, max_out;

    struct be_weight *embed, *head, *out_norm; /* head NULL when tied */
    struct be_tensor *x, *h, *q, *k, *v, *att, *ff, *t;
    struct be_tensor *tail_x, *tail_att, *logits;
    float *host_logits; /* where the device's memory cannot be viewed */
    struct gemma_layer layer[GEMMA_MAX_LAYERS];
};

enum rc mdl_gemma_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
enum rc mdl_gemma_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                       bool add_generation_prompt, size_t max_tokens, struct mdl_ids *out,
                       struct rc_err *err);

#endif
