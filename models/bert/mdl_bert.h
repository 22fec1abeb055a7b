/* mdl_bert.h - private to models/bert: numbers and weights of an encoder of BERT's kind (BERT,
 * RoBERTa, XLM-RoBERTa). Facts: docs/models/bert.md, docs/models/bge-m3.md. */
#ifndef INFERD_MDL_BERT_H
#define INFERD_MDL_BERT_H

#include "mdl_impl.h"
#include "mdl_sbert.h"
#include "mdl_scorer.h"

#define BERT_MAX_LAYERS 128

struct bert_layer {
    struct be_weight *qkv_w[3], *qkv_b[3], *o_w, *o_b;
    struct be_weight *ln1_w, *ln1_b, *up_w, *up_b, *down_w, *down_b, *ln2_w, *ln2_b;
};

struct bert {
    uint32_t n_layers, d_model, n_heads, head_dim, d_ff, n_pos, n_types;
    float norm_eps;
    enum be_epi act;
    bool gguf;       /* names of GGUF */
    char prefix[16]; /* of the trunk in HF files: "", "bert.", "roberta." ... */
    bool gamma_beta; /* old names of LayerNorm's parameters */
    bool roberta;    /* classifiers are built as RoBERTa's */
    int32_t pad;     /* RoBERTa's kind in HF files: rows of this id stay at position pad, others
                        count from pad + 1; -1: every row counts, from 0 */
    int32_t sep;     /* a cross-encoder of BERT: rows behind the first of these are of type 1 */
    struct bert_sbert st;
    struct mdl_scorer head; /* of a cross-encoder */

    struct be_weight *word, *position, *type, *ln_w, *ln_b;
    struct be_weight *lex_w, *lex_b, *vec_w, *vec_b; /* BGE-M3's heads, or NULL */
    struct be_tensor *x, *t, *q, *k, *v, *att, *ff;
    struct be_tensor *lex, *own_vec; /* of heads that there are */
    int32_t *types;                  /* [rows of a pass] */
    int32_t *pos;                    /* the same, when pad >= 0 */
    struct bert_layer layer[BERT_MAX_LAYERS];
};

enum rc mdl_bert_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
/* mdl_bert_plan.c */
enum rc mdl_bert_plan(struct mdl *m, struct rc_err *err);
enum rc mdl_bert_fit(struct mdl *m, struct rc_err *err);
void mdl_bert_free(struct mdl *m);
/* mdl_bert_heads.c: from the rows of the last layer in b->x a weight and a vector for every row,
 * where the pass wants them. */
enum rc mdl_bert_tokens(struct mdl *m, struct bert *b, const struct mdl_pass *p,
                        struct rc_err *err);

#endif
