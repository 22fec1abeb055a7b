/* mdl_deberta_impl.h - private to models/deberta: numbers, weights and memory of the encoder. */
#ifndef INFERD_MDL_DEBERTA_IMPL_H
#define INFERD_MDL_DEBERTA_IMPL_H

#include "mdl_deberta.h"

#define DEB_MAX_LAYERS 128
#define DEB_MAX_CONV 15 /* taps */

struct deb_layer {
    struct be_weight *q_w, *q_b, *k_w, *k_b, *v_w, *v_b, *o_w, *o_b;
    struct be_weight *ln1_w, *ln1_b, *up_w, *up_b, *down_w, *down_b, *ln2_w, *ln2_b;
    /* of the table of places; with share_att_key those above */
    struct be_weight *pos_k_w, *pos_k_b, *pos_q_w, *pos_q_b;
    struct be_tensor *rk, *rq; /* [n_rel, d_model], of the layer; NULL: no such term */
};

struct mdl_deberta {
    struct mdl_deberta_info info;
    uint32_t d_model, n_layers, n_heads, head_dim, d_ff, d_embed, n_pos, n_types;
    float norm_eps, scale;
    enum be_epi act;
    /* positions */
    bool relative, c2p, p2c, share_att_key, norm_rel;
    uint32_t n_buckets; /* 0: none, each distance has its place */
    uint32_t max_rel, n_rel;
    /* convolution behind the first layer */
    uint32_t n_taps; /* 0: none */
    bool conv_tanh;
    enum be_epi conv_act;

    struct be_weight *word, *position, *type, *proj_w, *ln_w, *ln_b;
    struct be_weight *rel_table, *rel_ln_w, *rel_ln_b;
    struct be_weight *conv_w, *conv_b, *conv_ln_w, *conv_ln_b;
    struct be_tensor *x, *t, *q, *k, *v, *att, *ff, *words, *places;
    struct be_tensor *padded, *windows, *conv, *conv_rows;
    bool placed, zeroed;     /* rk and rq hold their numbers; x ends with zeros */
    uint32_t rows, longest;  /* of a pass, of a sequence */
    int32_t *rel;            /* [2 * longest - 1] */
    int32_t *zeros, *counts; /* [rows], all 0; [n_rel], 0, 1, ... */
    int32_t *at;             /* [padded rows], for the convolution */
    struct deb_layer layer[DEB_MAX_LAYERS];
};

/* mdl_deberta_places.c: rel of distances -(longest - 1) .. longest - 1. */
void deb_places(const struct mdl_deberta *e, uint32_t longest, int32_t *rel);
/* Position keys and queries of all layers. */
enum rc deb_place_layers(struct mdl_deberta *e, struct be_ctx *be, struct rc_err *err);
/* mdl_deberta_conv.c: act(conv(x)) to conv_rows, where there is a convolution. */
enum rc deb_conv_plan(struct mdl_deberta *e, struct mdl_plan *plan, const char *prefix,
                      struct rc_err *err);
enum rc deb_conv_fit(struct mdl_deberta *e, struct mdl_plan *plan, uint32_t seqs,
                     struct rc_err *err);
enum rc deb_conv(struct mdl_deberta *e, struct be_ctx *be, const struct mdl_pass *p,
                 struct rc_err *err);
/* mdl_deberta_plan.c: prefix stem.weight and stem.bias of a LayerNorm. */
enum rc deb_plan_norm(struct mdl_plan *plan, const char *prefix, const char *stem, uint32_t n,
                      struct be_weight **w, struct be_weight **b, struct rc_err *err);

#endif
