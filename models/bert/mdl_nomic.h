/* mdl_nomic.h - private to models/bert: numbers and weights of a NomicBERT encoder.
 * Facts: docs/models/nomic-bert.md. */
#ifndef INFERD_MDL_NOMIC_H
#define INFERD_MDL_NOMIC_H

#include "mdl_impl.h"
#include "mdl_sbert.h"

#define NOMIC_MAX_LAYERS 128

struct nomic_layer {
    struct be_weight *qkv[3], *out, *ln1_w, *ln1_b;
    struct be_weight *up, *gate, *down, *ln2_w, *ln2_b;
};

struct nomic {
    uint32_t n_layers, d_model, n_heads, head_dim, d_ff, n_pos, n_types;
    float norm_eps, theta;
    bool gguf; /* names of GGUF */
    struct bert_sbert st;
    int32_t *zeros; /* type of every row of a pass */

    struct be_weight *word, *type, *ln_w, *ln_b;
    struct be_tensor *x, *t, *q, *k, *v, *att, *ff, *gate;
    struct nomic_layer layer[NOMIC_MAX_LAYERS];
};

/* mdl_nomic_cfg.c */
enum rc mdl_nomic_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
enum rc mdl_nomic_plan(struct mdl *m, struct rc_err *err);
enum rc mdl_nomic_fit(struct mdl *m, struct rc_err *err);
void mdl_nomic_free(struct mdl *m);

#endif
