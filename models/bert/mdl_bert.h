/* mdl_bert.h - private to models/bert: numbers and weights of a BERT encoder.
 * Facts: docs/models/bert.md. */
#ifndef INFERD_MDL_BERT_H
#define INFERD_MDL_BERT_H

#include "mdl_impl.h"
#include "mdl_sbert.h"

#define BERT_MAX_LAYERS 128

struct bert_layer {
    struct be_weight *q_w, *q_b, *k_w, *k_b, *v_w, *v_b, *o_w, *o_b;
    struct be_weight *ln1_w, *ln1_b, *up_w, *up_b, *down_w, *down_b, *ln2_w, *ln2_b;
};

struct bert {
    uint32_t n_layers, d_model, n_heads, head_dim, d_ff, n_pos, n_types;
    float norm_eps;
    enum be_epi act;
    char prefix[8];  /* "" or "bert." */
    bool gamma_beta; /* old names of LayerNorm's parameters */
    struct bert_sbert st;

    struct be_weight *word, *position, *type, *ln_w, *ln_b;
    struct be_tensor *x, *t, *q, *k, *v, *att, *ff, *pooled;
    float *host_pooled; /* [seqs of a pass, d_model] */
    int32_t *zeros;     /* [rows of a pass] */
    struct bert_layer layer[BERT_MAX_LAYERS];
};

enum rc mdl_bert_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
enum rc mdl_bert_embed_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                              const char *task_type, bool truncate, bool *truncated,
                              struct mdl_ids *out, struct rc_err *err);

#endif
