/* mdl_scorer.h - the head of a cross-encoder, for any encoder: from a sequence's rows to one logit.
 */
#ifndef INFERD_MDL_SCORER_H
#define INFERD_MDL_SCORER_H

#include "mdl_impl.h"

/* logit = w_l . norm(act(W_d h + b_d)) + b_l, h the pooled rows. The family sets numbers and plans
 * weights, whose names are its own. */
struct mdl_scorer {
    enum be_pool pool;
    enum be_epi epi; /* of the first product, */
    bool tanh;       /* or this behind it */
    float norm_eps;
    struct be_weight *dense_w, *dense_b, *logit_w, *logit_b; /* dense_b may be NULL */
    struct be_weight *norm_w;                  /* of a LayerNorm; NULL: there is none */
    struct be_tensor *pooled, *hidden, *logit; /* [seqs of a pass, .] */
};

/* config: of the classifier's matrix `name`, that it gives one number a pair (RC_UNSUPPORTED:
 * labels; one that is absent is the plan's to refuse); info says what the model does. */
enum rc mdl_scorer_config(struct mdl *m, const char *name, struct rc_err *err);
enum rc mdl_scorer_fit(struct mdl_scorer *s, struct mdl *m, struct rc_err *err);
/* Logits [n_seqs] of a pass, from its rows x [n_rows, d_model]. */
enum rc mdl_scorer_run(const struct mdl_scorer *s, struct mdl *m, const struct be_tensor *x,
                       const struct mdl_pass *p, float *out, struct rc_err *err);

#endif
