/* mdl_gemma.h - private to models/gemma: the numbers and weights of a Gemma 3 or 4
 * text model and of Gemma 4's drafter. One struct and one forward pass serve all: what
 * a generation lacks is 0 or NULL here. EmbeddingGemma, 1 and 2, keep their text model's in the
 * same struct and run its layers without a cache (mdl_eg1.c, mdl_eg2.h).
 * Source of the facts: docs/models/gemma3.md, docs/models/gemma4.md. */
#ifndef INFERD_MDL_GEMMA_H
#define INFERD_MDL_GEMMA_H

#include "mdl_impl.h"

#define GEMMA_MAX_LAYERS 256
#define GEMMA_MAX_HEAD 512 /* what the backend rotates */
#define GEMMA_MAX_FF 4     /* different widths of the feed-forward half */
#define GEMMA_PAGE_TOKENS 32
#define GEMMA_MAX_WIDTH (1u << 17)
#define GEMMA_MAX_CTX (1u << 24)
#define GEMMA_PATTERN 6 /* Gemma 3: every sixth layer is global */

enum gemma_kind { GEMMA_FULL, GEMMA_SLIDING, GEMMA_KINDS };

/* What all layers of one kind share. */
struct gemma_geo {
    uint32_t n_kv_heads, head_dim;
    uint32_t n_pairs; /* that turn; 0 = all */
    float theta, factor;
    bool k_eq_v;  /* no v_proj: v is k before its norm and rotation */
    uint32_t buf; /* which of q, k, v, att below */
    bool used;
    struct mdl_ones ones; /* [head_dim], for v's norm without weight; made by fit */
};

struct gemma_layer {
    enum gemma_kind kind;
    uint32_t cls;      /* KV class */
    uint32_t kv;       /* layer of the cache: its own, or the one it reads */
    bool shared;       /* reads another layer's keys and values and has none */
    uint32_t d_ff, ff; /* width, and which of ff[] holds it */
    float scalar;      /* of the layer's output; 1 = none */
    struct be_weight *attn_norm, *post_attn_norm, *ffn_norm, *post_ffn_norm;
    struct be_weight *q, *k, *v, *o, *q_norm, *k_norm;
    struct be_weight *gate, *up, *down;
    struct be_weight *ple_gate, *ple_proj, *ple_norm;
};

struct gemma {
    uint32_t n_layers, d_model, n_heads, window, train_ctx;
    struct gemma_geo geo[GEMMA_KINDS];
    float norm_eps, score_scale, embed_scale;
    float softcap;  /* 0 = none */
    float norm_add; /* 1 where w - 1 is stored (Gemma 3 safetensors) */
    bool tied;
    bool v_norm;         /* an RMS norm without weight on v */
    bool scalars;        /* layer_scalar tensors */
    bool media_sees_all; /* tokens of one picture see each other: media cannot be injected yet */
    uint32_t d_ple, ple_vocab; /* per-layer embeddings: width (0 = none), rows of their table */
    uint32_t n_own;            /* layers 0 .. n_own - 1 have keys and values of their own */
    char prefix[32];           /* of HF tensor names, dot included */
    const char *ple_prefix;    /* of those of a layer's own input, within its; NULL = none */
    char gguf[24];             /* of GGUF keys: the architecture word */
    int32_t bos, pad;
    int32_t turn_start, turn_end;
    int32_t tok[12];    /* Gemma 4's control tokens, see mdl_gemma4_chat.h */
    bool empty_thought; /* without thinking, answers begin with an empty thought */
    uint32_t max_rows, max_out;

    struct be_weight *embed, *head, *out_norm; /* head NULL when tied */
    struct be_weight *ple_table, *ple_model, *ple_model_norm;
    struct be_tensor *x, *h, *t, *ple, *gate;
    struct be_tensor *q[GEMMA_KINDS], *k[GEMMA_KINDS], *v[GEMMA_KINDS], *att[GEMMA_KINDS];
    struct be_tensor *ff[GEMMA_MAX_FF];
    struct be_tensor *tail_x, *tail_ple, *hidden, *logits;
    float *host_logits;         /* where the device's memory cannot be viewed */
    struct be_seq *tail_seqs;   /* [max_out] */
    int32_t *tail_pos, *row_no; /* [max_out], [max_rows]: 0, 1, 2 ..., see mdl_gemma_row_no */
    uint32_t n_row_no;          /* of them that are written */
    int32_t *ple_ids;           /* [max_rows]: ids, pad where something was injected */
    struct gemma_draft *draft;  /* of a drafter, see mdl_gemma4_draft.c */
    struct gemma_layer layer[GEMMA_MAX_LAYERS];
};

/* Rows on their way through the layers. */
struct gemma_rows {
    struct be_tensor *x, *ple;
    uint32_t n, n_seqs;
    const int32_t *pos;
    const struct be_seq *seqs;
};

/* mdl_gemma_plan.c */
enum rc mdl_gemma_plan(struct mdl *m, struct rc_err *err);
enum rc mdl_gemma_plan_layers(struct mdl *m, struct gemma *g, struct rc_err *err);
/* A weight beside the layers, by its name after the prefix (hf) or in a GGUF. */
enum rc mdl_gemma_plan_one(struct mdl *m, const struct gemma *g, const char *hf, const char *gguf,
                           unsigned use, uint64_t rows, uint64_t cols, struct be_weight **slot,
                           struct rc_err *err);
enum rc mdl_gemma_fit(struct mdl *m, struct rc_err *err);
/* 0, 1, 2 .. n - 1, n <= max_rows; written when first asked for. Of a decoder, not of its drafter.
 */
const int32_t *mdl_gemma_row_no(struct gemma *g, uint32_t n);
/* Activations of the layers for so many rows; and their NULL-able parts. */
enum rc mdl_gemma_fit_layers(struct mdl *m, struct gemma *g, uint32_t rows, struct rc_err *err);
/* Vectors of ones as wide as the heads of each kind in use. */
enum rc mdl_gemma_fit_ones(struct mdl *m, struct gemma *g, struct rc_err *err);
void mdl_gemma_free(struct mdl *m);

/* mdl_gemma_layer.c: parts of a layer. project: keys and values of the rows to k and v, with_query
 * also their queries to q; keys: into the cache too. query: queries alone, where keys are there or
 * another layer's. attend: kv is the cache (of the drafter: its target's); packed: rows see each
 * other, sliding layers |q - k| <= radius. feed: from the attention's output to the residual stream
 * behind the feed-forward half; finish: to the end of the layer. */
enum rc mdl_gemma_project(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                          bool with_query, struct rc_err *err);
enum rc mdl_gemma_attend_packed(struct mdl *m, struct gemma *g, uint32_t l, uint32_t radius,
                                const struct mdl_pass *p, struct rc_err *err);
enum rc mdl_gemma_feed(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                       struct rc_err *err);
enum rc mdl_gemma_keys(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                       bool with_query, struct rc_err *err);
enum rc mdl_gemma_query(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                        struct rc_err *err);
enum rc mdl_gemma_attend(struct mdl *m, struct gemma *g, uint32_t l, struct be_kv *kv,
                         uint32_t window, const struct gemma_rows *r, struct rc_err *err);
enum rc mdl_gemma_finish(struct mdl *m, struct gemma *g, uint32_t l, const struct gemma_rows *r,
                         struct rc_err *err);
enum rc mdl_gemma_ple(struct mdl *m, struct gemma *g, const int32_t *ids, uint32_t n,
                      struct rc_err *err);

/* mdl_gemma_depth.c: kv_read and kv_fill of mdl_impl.h */
uint64_t mdl_gemma_kv_read(const struct mdl *m, uint32_t pos);
enum rc mdl_gemma_kv_fill(struct mdl *m, const struct be_seq *seqs, uint32_t n_seqs,
                          uint32_t n_rows, struct rc_err *err);

/* mdl_gemma_cfg.c */
enum rc mdl_gemma_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
/* Of config.json; two_way: an encoder whose rows see each other in both directions, else none. */
enum rc mdl_gemma3_from_hf(struct mdl *m, struct gemma *g, const struct mdl_src *src, bool two_way,
                           struct rc_err *err);
/* Of GGUF metadata, whose keys begin with info.arch. */
enum rc mdl_gemma3_from_gguf(struct mdl *m, struct gemma *g, struct rc_err *err);
enum rc mdl_gemma_check(struct mdl *m, const struct gemma *g, struct rc_err *err);
enum rc mdl_gemma_hf_prefix(struct mdl *m, struct gemma *g, struct rc_err *err);
enum rc mdl_gemma_hf_vocab(struct mdl *m, struct gemma *g, const json_t *c, struct rc_err *err);
enum rc mdl_gemma_hf_eos(struct mdl *m, const struct mdl_src *src, const json_t *text,
                         struct rc_err *err);
enum rc mdl_gemma_hf_tied(const struct mdl_src *src, const json_t *c, struct gemma *g,
                          struct rc_err *err);
enum rc mdl_gemma_hf_kinds(struct gemma *g, const json_t *types, struct rc_err *err);
/* The same from layer_types of c, or where it has none from its pattern. */
enum rc mdl_gemma_hf_layers(struct gemma *g, const json_t *c, struct rc_err *err);
enum rc mdl_gemma_gguf_vocab(struct mdl *m, struct rc_err *err);
void mdl_gemma_gguf_eos(struct mdl *m);
/* Which layers have which cache: fills cls, kv, shared for n_own own layers. RC_FORMAT when
 * a sharing layer has no layer of its kind to read. */
enum rc mdl_gemma_share(struct gemma *g, struct rc_err *err);
/* mdl_eg2.c: of EmbeddingGemma's kind, sizes that a vector may be cut to. */
enum rc mdl_gemma_dims_check(const struct mdl *m, uint32_t dims, struct rc_err *err);
/* mdl_gemma_chat.c */
enum rc mdl_gemma_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                       const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err);
struct gemma_chat_out {
    const struct mdl *m;
    struct mdl_ids *ids;
    size_t start, max_tokens; /* 0 = no bound */
    struct rc_err *err;
};
enum rc mdl_gemma_chat_id(const struct gemma_chat_out *o, int32_t id);
/* Encodes with special tokens switched off. */
enum rc mdl_gemma_chat_text(const struct gemma_chat_out *o, const char *text, size_t n);
/* White space off both ends, as Python's str.strip sees it. */
void mdl_gemma_trim(const char **text, size_t *n);

/* mdl_gemma4_cfg.c, mdl_gemma4_gguf.c, mdl_gemma4_chat.c. drafter: every layer reads the
 * target's keys. */
enum rc mdl_gemma4_new(struct mdl *m, struct gemma **out, struct rc_err *err);
enum rc mdl_gemma4_from_hf(struct gemma *g, const json_t *c, bool drafter, struct rc_err *err);
enum rc mdl_gemma4_from_gguf(struct mdl *m, struct gemma *g, bool drafter, struct rc_err *err);
/* Heads as the files give them, layer by layer; here they differ between kinds only, and
 * anything else is refused. */
struct gemma_heads {
    uint32_t head_dim, n_kv_heads;
};
enum rc mdl_gemma4_fold(struct gemma *g, const struct gemma_heads *p, struct rc_err *err);
/* per_layer_config of c, where there is one: layers whose heads differ from those in p. */
enum rc mdl_gemma4_hf_per_layer(const struct gemma *g, const json_t *c, struct gemma_heads *p,
                                struct rc_err *err);
enum rc mdl_gemma4_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
/* Finds the control tokens; what the model can do in chat goes to m->info. */
void mdl_gemma4_chat_init(struct mdl *m, struct gemma *g);
enum rc mdl_gemma4_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                        const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err);

#endif
