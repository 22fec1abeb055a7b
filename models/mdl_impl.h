/* mdl_impl.h - for those who write a model family: the table behind mdl.h.
 *
 * A family exports one const struct mdl_family; mdl.c lists them and finds one by
 * the architecture word of the file. Opening is two-phase: `config` reads numbers,
 * `plan` names every weight it needs (found, shape-checked, type-checked), `fit`
 * sizes activations and KV cache against the budgets; only when all three agree
 * does mdl_plan_build commit memory, and only after `self_test` is the model
 * handed out. With plan.be == NULL (mdl_probe) nothing but headers is touched.
 *
 * Never here: devices, sampling, requests. Tests: tests/models/test_mdl_open.c
 */
#ifndef INFERD_MDL_IMPL_H
#define INFERD_MDL_IMPL_H

#include <jansson.h>

#include "mdl.h"
#include "mdl_file.h"

#define MDL_MAX_EOS 16
#define MDL_MAX_CONFIG_BYTES (4u << 20)
#define MDL_MAX_TOKENIZER_BYTES (128u << 20)

/* ---------------------------------------------------------------- the plan */

struct mdl_plan_weight {
    const struct mdl_tensor *t;
    struct be_weight **slot;
    void *owned; /* f32 copy when add != 0; the columns when only some are taken */
    float add;   /* added to every value at load (norms stored as w-1) */
    float (*map)(float v, float arg); /* instead: what a value becomes at load; NULL = none */
    float map_arg;
    uint64_t rows, cols;   /* as a matrix, when its shape has more dimensions; 0 = as it is */
    uint32_t col0, n_cols; /* of a matrix, the columns taken; n_cols 0 = all */
    uint32_t row0, n_rows; /* the same of rows */
    uint32_t turn_rows,
        turn_cols; /* what it is made of, taken as this and transposed; 0 = as it is */
    unsigned use;
};
struct mdl_plan_tensor {
    struct be_tensor **slot;
    uint32_t rows, cols;
};
/* All a model will hold on its device. Slots point into the family's state, which
 * must not move between plan and free. */
struct mdl_plan {
    const struct mdl_file *file;
    struct be_ctx *be; /* NULL while probing */
    struct mdl_plan_weight *w;
    size_t n_w, cap_w;
    struct mdl_plan_tensor *t;
    size_t n_t, cap_t;
    uint64_t weight_bytes, tensor_bytes, n_params; /* planned, exact */
    uint64_t resident_bytes; /* built: the backend's own and the file's it reads on */
};

/* The weight `name` with this shape (n_dims 1: d0 values; 2: [d0, d1]). Errors:
 * RC_WEIGHT_ABSENT, RC_FORMAT (shape), RC_UNSUPPORTED (type on this backend). */
enum rc mdl_plan_weight(struct mdl_plan *p, const char *name, unsigned use, uint32_t n_dims,
                        uint64_t d0, uint64_t d1, float add, struct be_weight **slot,
                        struct rc_err *err);
/* Columns col0 .. col0 + n_cols - 1 of the matrix `name` [d0, d1], for a product with a part
 * of its input. RC_UNSUPPORTED when they do not begin and end with blocks. */
enum rc mdl_plan_columns(struct mdl_plan *p, const char *name, unsigned use, uint64_t d0,
                         uint64_t d1, uint32_t col0, uint32_t n_cols, struct be_weight **slot,
                         struct rc_err *err);
/* The matrix `name` [d0, d1] as n_parts weights of d0 / n_parts rows each (d0 is a multiple). */
enum rc mdl_plan_split(struct mdl_plan *p, const char *name, unsigned use, uint64_t d0, uint64_t d1,
                       uint32_t n_parts, struct be_weight **slots, struct rc_err *err);
/* The tensor `name` of n_parts matrices [rows, cols], one behind the other, as n_parts weights
 * [cols, rows]: transposed, for files that hold them input-major. dims: as in mdl_plan_shaped; with
 * n_parts > 1 the first is n_parts. RC_UNSUPPORTED block types. */
enum rc mdl_plan_turned(struct mdl_plan *p, const char *name, uint32_t n_dims, const uint64_t *dims,
                        uint32_t rows, uint32_t cols, uint32_t n_parts, struct be_weight **slots,
                        struct rc_err *err);
/* The vector `name` [n], or the rows of the matrix [n_parts, n], as n_parts vectors. */
enum rc mdl_plan_vectors(struct mdl_plan *p, const char *name, uint32_t n_dims,
                         const uint64_t *dims, uint32_t n_parts, struct be_weight **slots,
                         struct rc_err *err);
/* The vector `name` [n] whose values go through map(value, arg) at load. */
enum rc mdl_plan_mapped(struct mdl_plan *p, const char *name, uint64_t n,
                        float (*map)(float v, float arg), float arg, struct be_weight **slot,
                        struct rc_err *err);
/* A tensor of up to MDL_MAX_DIMS dimensions, used as the matrix [rows, cols] of as many values. */
enum rc mdl_plan_shaped(struct mdl_plan *p, const char *name, unsigned use, uint32_t n_dims,
                        const uint64_t *dims, uint64_t rows, uint64_t cols, struct be_weight **slot,
                        struct rc_err *err);
enum rc mdl_plan_tensor(struct mdl_plan *p, uint32_t rows, uint32_t cols, struct be_tensor **slot,
                        struct rc_err *err);
/* Any planned matrix of a block type? */
bool mdl_plan_is_quantized(const struct mdl_plan *p);
/* Dominant weight type by bytes, "Q4_K". */
void mdl_plan_quant(const struct mdl_plan *p, char *out, size_t cap);
enum rc mdl_plan_build_tensors(struct mdl_plan *p, struct rc_err *err);
void mdl_plan_free_tensors(struct mdl_plan *p); /* and forgets them */
enum rc mdl_plan_build_weights(struct mdl_plan *p, const struct mdl_opts *o, struct rc_err *err);
/* Frees what was built (slots become NULL) and the plan's own memory. */
void mdl_plan_free(struct mdl_plan *p);

/* A vector of ones, for norms without a weight: in no file, so not of the plan. Made once, by fit;
 * be NULL (probing): nothing is. */
struct mdl_ones {
    struct be_weight *w; /* [n] */
    float *v;
};
enum rc mdl_ones_init(struct mdl_ones *o, struct be_ctx *be, uint32_t n, struct rc_err *err);
void mdl_ones_deinit(struct mdl_ones *o, struct be_ctx *be);

/* ----------------------------------------------------------------- KV pages */

struct mdl_kv_class {
    uint32_t window;     /* 0 = all positions */
    uint64_t page_bytes; /* all layers of the class */
};
/* Counts pages from the budget. want_ctx tokens of one sequence must fit in every
 * class, else the context is lowered to what fits; below 64 tokens (or want_ctx
 * when smaller): RC_LIMIT. chunk = most new tokens of one pass. */
enum rc mdl_kv_fit(struct mdl_kv_geometry *out, uint32_t *out_ctx, uint32_t page_tokens,
                   const struct mdl_kv_class *cls, uint32_t n_classes, uint64_t kv_bytes,
                   uint32_t want_ctx, uint32_t chunk, uint32_t max_seqs, struct rc_err *err);
/* Most pages one sequence of n tokens holds at a time in a class. */
uint64_t mdl_kv_seq_pages(uint32_t page_tokens, uint32_t window, uint32_t chunk, uint64_t n);

/* ------------------------------------------------------------------- models */

/* Of an encoder: bounds and host memory of a pass (mdl_passes.c). */
struct mdl_passes {
    uint32_t max_rows, max_seqs;
    uint32_t *offsets; /* [max_seqs + 1] */
    int32_t *pos;      /* [max_rows] */
};
/* One pass: whole sequences, packed. */
struct mdl_pass {
    uint32_t n_rows, n_seqs, n_media;
    const uint32_t *offsets;              /* [n_seqs + 1], from 0 */
    const int32_t *ids, *pos;             /* [n_rows]; pos counts from 0 in each sequence */
    const struct mdl_encode_media *media; /* of this pass; their rows count from row0 */
    uint32_t row0;
    float *weights, *vectors; /* of mdl_encode_tokens, from this pass's first row; or NULL */
};

struct mdl {
    const struct mdl_family *fam;
    struct mdl_file *file;
    struct mdl_tok *tok;
    struct be_ctx *be;
    struct mdl_opts opts;
    struct mdl_info info;
    struct mdl_plan plan;
    struct mdl *target; /* of a drafter; NULL otherwise, and while probing */
    struct be_kv *kv;
    struct mdl_kv_geometry geo;
    int32_t eos[MDL_MAX_EOS];
    size_t n_eos;
    struct mdl_passes passes;
    uint32_t n_out; /* rows of logits of the last pass; 0 before any, or after one that failed */
    const struct mdl_tok_stop *stop; /* for mdl_tok_flags; NULL: never asked */
    bool (*encode_stop)(void *user); /* see mdl_set_encode_stop */
    void *encode_stop_user;
    void *state;                    /* the family's own */
    const struct bert_sbert *sbert; /* of an embedder with side files, in its state (mdl_sbert.h) */
    /* Golden tests look at the residual stream after each layer; NULL otherwise. */
    void (*trace)(void *user, uint32_t layer, const struct be_tensor *x, uint32_t n_rows);
    void *trace_user;
};

/* What mdl_media_image and mdl_media_sound make: rows of numbers for a tower. */
struct mdl_media {
    uint32_t n_tokens;       /* soft tokens */
    bool is_sound;           /* else a picture */
    uint32_t n_rows, n_cols; /* patches x numbers of a patch, or frames x mel bands */
    uint32_t grid_w, grid_h; /* of a picture, in patches */
    float *x;                /* [n_rows, n_cols], owned */
};

/* Where the numbers come from while opening; borrowed for that call only. */
struct mdl_src {
    int root_fd;
    json_t *config; /* config.json, NULL for GGUF */
};

struct mdl_family {
    const char *name;
    const char *const *hf_archs;   /* config.json "architectures" / "model_type" */
    const char *const *gguf_archs; /* general.architecture; NULL-ended lists */
    const char *gguf_refusal;      /* or why GGUF files of gguf_archs are refused */
    const char *recipe;            /* of an embedder: names how vectors are computed, for mdl_info's
                                      identity; another name when they would change */
    const char *const
        *more_files; /* with recipe: NULL-ended list of further files in the identity */
    enum rc (*config)(struct mdl *, const struct mdl_src *, struct rc_err *);
    enum rc (*plan)(struct mdl *, struct rc_err *);
    enum rc (*fit)(struct mdl *, struct rc_err *);
    /* Optional: makes passes smaller when activations did not fit the backend's
     * workspace; false when they are as small as they may be. fit runs again. */
    bool (*shrink)(struct mdl *);
    enum rc (*self_test)(struct mdl *, struct rc_err *);
    void (*free)(struct mdl *); /* the state; weights and tensors are the plan's */
    /* optional, by capability: RC_UNSUPPORTED when NULL */
    enum rc (*decode)(struct mdl *, const struct mdl_batch *, const float **, struct rc_err *);
    /* With decode: the tensor that holds the last pass's logits, and a host buffer of as many
     * rows where the host cannot read it (else NULL). */
    const struct be_tensor *(*logits)(const struct mdl *, float **host);
    /* With decode: see mdl_kv_read_bytes and mdl_kv_fill. */
    uint64_t (*kv_read)(const struct mdl *, uint32_t);
    enum rc (*kv_fill)(struct mdl *, const struct be_seq *, uint32_t, uint32_t, struct rc_err *);
    /* With decode: the tensor of hidden rows behind the last pass's logits (optional). */
    const struct be_tensor *(*hidden)(const struct mdl *);
    /* A drafter: has no tokenizer, and m->target when it is opened. */
    bool is_drafter;
    enum rc (*draft)(struct mdl *, const struct mdl_draft_seq *, uint32_t, uint32_t, int32_t *,
                     struct rc_err *);
    enum rc (*chat)(const struct mdl *, const struct mdl_chat_msg *, size_t,
                    const struct mdl_chat_opts *, struct mdl_ids *, struct rc_err *);
    enum rc (*embed_tokens)(const struct mdl *, const char *, size_t, const char *, bool, bool *,
                            struct mdl_ids *, struct rc_err *);
    /* Of a cross-encoder (info.can_rerank): see mdl_pair_tokens. */
    enum rc (*pair_tokens)(const struct mdl *, const char *, size_t, const char *, size_t, bool,
                           bool *, struct mdl_ids *, struct rc_err *);
    /* A pass of mdl_encode over checked sequences, to out [n_seqs, mdl_encode_dim]; its fit begins
     * with mdl_passes_fit. Asked for weights or vectors only where info says so. */
    enum rc (*encode)(struct mdl *, const struct mdl_pass *, float *, struct rc_err *);
    /* Optional: media and ordered inputs. check_media, of a call before its first pass: every
     * placeholder has its medium, every medium its placeholders. */
    enum rc (*media_image)(const struct mdl *, const struct mdl_image *, struct mdl_media **,
                           struct rc_err *);
    enum rc (*media_sound)(const struct mdl *, const struct mdl_sound *, struct mdl_media **,
                           struct rc_err *);
    enum rc (*embed_ordered)(const struct mdl *, const struct mdl_embed_input *, struct mdl_ids *,
                             uint32_t *, struct rc_err *);
    enum rc (*check_media)(const struct mdl *, uint32_t, const int32_t *, const uint32_t *,
                           const struct mdl_encode_media *, uint32_t, struct rc_err *);
    bool (*is_placeholder)(const struct mdl *, int32_t); /* NULL: no id is */
    enum rc (*dims_check)(const struct mdl *, uint32_t, struct rc_err *);
    /* Of info.can_extract: a pass of mdl_extract over checked sequences, the first of them number
     * `first` to those who hear; its fit begins with mdl_passes_fit. */
    enum rc (*extract)(struct mdl *, uint32_t first, uint32_t n, const struct mdl_extract_in *,
                       const struct mdl_extract_out *, struct rc_err *);
};

extern const struct mdl_family mdl_gemma3, mdl_gemma4, mdl_gemma4_drafter, mdl_bert, mdl_modernbert,
    mdl_nomic, mdl_eg1, mdl_eg2, mdl_deberta, mdl_gliner2;

/* mdl_identity.c: mdl_info's identity, 64 hex digits. Reads all weights: reports progress as stage
 * "identity". Errors: those of reading the side files. */
enum rc mdl_identity(const struct mdl *m, int root_fd, const char *recipe, char out[65],
                     struct rc_err *err);

/* mdl_passes.c. fit: sizes m->passes from opts.batch_tokens, opts.encode_rows and
 * info.max_input_tokens, again after shrink, which halves the rows down to those that are needed
 * and then takes from the inputs too (as in mdl_family). more: rows that are only wished for.
 * run: mdl_encode_with, for a family that has encode; media only where it has check_media. */
enum rc mdl_passes_fit(struct mdl *m, struct rc_err *err);
bool mdl_passes_shrink(struct mdl *m);
bool mdl_passes_more(const struct mdl *m);
void mdl_passes_deinit(struct mdl_passes *p);
enum rc mdl_passes_run(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *offsets,
                       const struct mdl_encode_media *media, uint32_t n_media, float *out,
                       float *weights, float *vectors, struct rc_err *err);
/* Ids of one sequence of a call: as many as an input may have, each in the vocabulary; RC_INVALID.
 * bad: returns rc, about sequence s of the call (err->item). */
enum rc mdl_passes_check(const struct mdl *m, const int32_t *ids, uint32_t n, struct rc_err *err);
enum rc mdl_passes_bad(uint32_t s, enum rc rc, struct rc_err *err);
/* mdl_passes_extract.c: mdl_extract, for a family that has extract. */
enum rc mdl_passes_extract(struct mdl *m, uint32_t n, const struct mdl_extract_in *in,
                           const struct mdl_extract_out *out, struct rc_err *err);
/* self_test of an encoder: two tokens, as short as a text can be, through every head there is. */
enum rc mdl_passes_self_test(struct mdl *m, struct rc_err *err);
/* x / max(|x|, 1e-12); gives |x|. The sum in f64, in order, so that it depends on x alone. */
double mdl_normalize(float *x, uint32_t n);

/* mdl_ops.c. out = what every head of every sequence says to x, before the output's product: x
 * through three matrices (their biases may be NULL), q and k turned by their positions where theta
 * is not 0, attention within each sequence, |q - k| <= radius (-1: all of it), scores /
 * sqrt(head_dim). x [n, any], others [n, n_heads * head_dim]; out may be none of the others. pos
 * [n] is read only with theta; offsets [n_seqs + 1] from 0 to n. */
struct mdl_heads {
    const struct be_tensor *x;
    struct be_weight *w[3], *b[3]; /* of q, k, v */
    struct be_tensor *q, *k, *v, *out;
    uint32_t n_heads, head_dim;
    int32_t radius;
    float theta;
    const int32_t *pos;
    const uint32_t *offsets;
    uint32_t n_seqs;
};
enum rc mdl_attend(struct be_ctx *be, const struct mdl_heads *h, struct rc_err *err);
/* out = epi(x W^T + bias), bias or NULL; out = norm(x) * w, or add + that. n rows. */
enum rc mdl_dense(struct be_ctx *be, const struct be_tensor *x, const struct be_weight *w,
                  const struct be_weight *bias, struct be_tensor *out, uint32_t n, enum be_epi epi,
                  struct rc_err *err);
enum rc mdl_rms_norm(struct be_ctx *be, const struct be_tensor *x, const struct be_weight *w,
                     const struct be_tensor *add, struct be_tensor *out, uint32_t n, float eps,
                     struct rc_err *err);

/* Between two layers of an encoding pass: RC_CANCELLED when mdl_set_encode_stop's hook says so. */
enum rc mdl_encode_stopped(const struct mdl *m, struct rc_err *err);

/* Adds an end-of-answer id once; ids outside the vocabulary are ignored. */
void mdl_eos_add(struct mdl *m, int64_t id);

/* ------------------------------------------------------------------- config
 * Readers for numbers that a file claims. A value of another kind or outside
 * [min, max] is RC_FORMAT, naming field, value and range; null counts as absent.
 * `what` says where the object lives, for messages ("config.json"). */
#define MDL_REQUIRED INT64_MIN
enum rc mdl_cfg_u32(const json_t *obj, const char *what, const char *key, uint32_t min,
                    uint32_t max, int64_t dflt, uint32_t *out, struct rc_err *err);
/* Finite and in (0, max], or dflt (NAN: required). */
enum rc mdl_cfg_pos(const json_t *obj, const char *what, const char *key, double max, double dflt,
                    float *out, struct rc_err *err);
enum rc mdl_cfg_bool(const json_t *obj, const char *what, const char *key, bool dflt, bool *out,
                     struct rc_err *err);
/* NULL in *out when absent; borrowed from obj. */
enum rc mdl_cfg_str(const json_t *obj, const char *what, const char *key, const char **out,
                    struct rc_err *err);
/* "gelu" and its kin; absent: "gelu". RC_UNSUPPORTED for others, by name. */
enum rc mdl_cfg_gelu(const json_t *obj, const char *what, const char *key, enum be_epi *out,
                     struct rc_err *err);
/* No more pieces in the tokenizer than rows in the table of vocab_size: RC_FORMAT. */
enum rc mdl_cfg_vocab(const struct mdl *m, uint32_t vocab_size, struct rc_err *err);
/* Parses a side file that must hold a JSON object. *out NULL when it is absent and
 * not required. Caller json_decrefs. */
enum rc mdl_cfg_load(int root_fd, const char *name, bool required, json_t **out,
                     struct rc_err *err);
/* The same for GGUF keys. */
enum rc mdl_gguf_cfg_u32(const struct mdl_file *f, const char *key, uint32_t min, uint32_t max,
                         int64_t dflt, uint32_t *out, struct rc_err *err);
enum rc mdl_gguf_cfg_pos(const struct mdl_file *f, const char *key, double max, double dflt,
                         float *out, struct rc_err *err);

#endif
