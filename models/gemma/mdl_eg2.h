/* mdl_eg2.h - private to models/gemma: the numbers and weights of an EmbeddingGemma 2 encoder.
 * Source of the facts: docs/models/embeddinggemma2.md. */
#ifndef INFERD_MDL_EG2_H
#define INFERD_MDL_EG2_H

#include "mdl_g4_towers.h"
#include "mdl_gemma.h"
#include "mdl_sbert.h"

#define EG2_MAX_LAYERS 128
#define EG2_MAX_WIDTH (1u << 16)
#define EG2_MAX_TOKENS 8192u /* of one input, whatever the checkpoint's positions */
#define EG2_PREFIX "language_model."
#define EG2_MAX_PIXELS (64u << 20) /* of one picture as it is given */

/* Tokens with a meaning; -1 = this tokenizer has none. */
enum eg2_token {
    EG2_BOS,
    EG2_EOS,
    EG2_IMAGE_BEGIN,
    EG2_IMAGE,
    EG2_IMAGE_END,
    EG2_SOUND_BEGIN,
    EG2_SOUND,
    EG2_SOUND_END,
    EG2_VIDEO,
    EG2_TOKENS
};

/* Activations of a layer; the last four once for each kind. */
enum eg2_role {
    EG2_H, /* normed rows */
    EG2_T, /* what goes to the residual stream */
    EG2_FF,
    EG2_GATE, /* the gate of the layer's own input, and */
    EG2_PLE,  /* that input */
    EG2_Q,
    EG2_K = EG2_Q + GEMMA_KINDS,
    EG2_V = EG2_K + GEMMA_KINDS,
    EG2_ATT = EG2_V + GEMMA_KINDS,
    EG2_ROLES = EG2_ATT + GEMMA_KINDS
};

struct eg2 {
    /* The text model's numbers and weights, as Gemma 4's are kept. Sliding layers see
     * |q - k| <= window; its tensors but x are those below, which share memory. */
    struct gemma text;
    int32_t tok[EG2_TOKENS];
    struct bert_sbert st;
    struct mdl_g4_vision *eyes; /* NULL = the checkpoint has none */
    struct mdl_g4_audio *ears;

    struct be_weight *project;
    struct be_weight *ple_ctx[EG2_MAX_LAYERS]; /* per_layer_model_projection, a layer each */
    /* x0: the input embeddings, that each layer's own are projected from. The others share buffers
     * where their lives do not overlap. */
    struct be_tensor *x0, *pooled, *out;
    struct be_tensor *buf[EG2_ROLES];
    uint32_t buf_of[EG2_ROLES];
    int32_t *ids; /* [rows of a pass]: those looked up, 0 where media stand */
    float *soft;  /* [most soft tokens of one medium, d_model] */
};

/* mdl_eg2_cfg.c */
enum rc mdl_eg2_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
/* mdl_eg2_plan.c */
enum rc mdl_eg2_plan(struct mdl *m, struct rc_err *err);
enum rc mdl_eg2_fit(struct mdl *m, struct rc_err *err);
void mdl_eg2_free(struct mdl *m);
/* mdl_eg2_tokens.c */
/* Prompts of the side files are those of this build; RC_UNSUPPORTED otherwise. */
enum rc mdl_eg2_check_prompts(const struct bert_sbert *st, struct rc_err *err);
enum rc mdl_eg2_embed_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                             const char *task_type, bool truncate, bool *truncated,
                             struct mdl_ids *out, struct rc_err *err);
enum rc mdl_eg2_embed_ordered(const struct mdl *m, const struct mdl_embed_input *in,
                              struct mdl_ids *out, uint32_t *rows, struct rc_err *err);

#endif
