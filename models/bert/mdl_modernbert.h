/* mdl_modernbert.h - private to models/bert: numbers and weights of a ModernBERT encoder.
 * Facts: docs/models/modernbert.md. */
#ifndef INFERD_MDL_MODERNBERT_H
#define INFERD_MDL_MODERNBERT_H

#include "mdl_impl.h"
#include "mdl_sbert.h"
#include "mdl_scorer.h"

#define MODERNBERT_MAX_LAYERS 128

struct modernbert_layer {
    bool slides;                                     /* sees |q - k| <= radius only */
    struct be_weight *attn_norm, *qkv[3], *attn_out; /* attn_norm: NULL in the first layer */
    struct be_weight *mlp_norm, *wi[2], *mlp_out;    /* wi: what is activated, its gate */
};

struct modernbert {
    uint32_t n_layers, d_model, n_heads, head_dim, d_ff, n_pos, radius;
    float norm_eps, theta_full, theta_slides;
    bool gguf;      /* names of GGUF */
    char prefix[8]; /* "" or "model."; of Hugging Face's names */
    struct bert_sbert st;
    struct mdl_scorer head; /* of a cross-encoder */
    bool score_bias;

    struct be_weight *word, *embed_norm, *final_norm;
    struct be_tensor *x, *h, *q, *k, *v, *att, *ff, *gate;
    struct modernbert_layer layer[MODERNBERT_MAX_LAYERS];
};

/* mdl_modernbert_cfg.c */
enum rc mdl_modernbert_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
/* mdl_modernbert_gguf.c */
enum rc mdl_modernbert_from_gguf(struct mdl *m, struct modernbert *b, struct rc_err *err);
enum rc mdl_modernbert_plan(struct mdl *m, struct rc_err *err);
enum rc mdl_modernbert_fit(struct mdl *m, struct rc_err *err);
void mdl_modernbert_free(struct mdl *m);

#endif
