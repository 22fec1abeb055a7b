/* be.h - what a model may ask of a device.
 *
 * A model family is straight-line calls of the operations below, in the order of
 * a stream, on opaque tensors; it never sees device memory. A backend is one
 * const table (be_impl.h); choice is by name. All matrices are row-major; a
 * "row" is one token. Activations are f32. Integer inputs (ids, positions, page
 * tables) are host arrays read before the call returns.
 *
 * The equality contract every backend keeps: an output row depends only on that
 * row's own inputs and on the operation's shape class - never on how many other
 * rows, sequences or threads share the call. Reductions run in an order fixed by
 * the row's own length.
 *
 * Memory: weights, tensors and KV caches are made at load; after be_ctx_seal any
 * further allocation is counted in be_stats.hot_allocs (tests hold it at 0).
 * Thread rule: one thread per context. Errors every op may return: RC_INVALID
 * (our own misuse of shapes, checked because shapes come from files),
 * RC_UNSUPPORTED, RC_NOMEM, RC_INTERNAL.
 * Knows nothing of model names or sockets. Tests: tests/backends/.
 */
#ifndef INFERD_BE_H
#define INFERD_BE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

/* Values are ggml's type ids, so a GGUF file's number is our number. */
#define BE_DTYPE_MAP(X)                                \
    /*  name, id, values per block, bytes per block */ \
    X(F32, 0, 1, 4)                                    \
    X(F16, 1, 1, 2)                                    \
    X(Q4_0, 2, 32, 18)                                 \
    X(Q4_1, 3, 32, 20)                                 \
    X(Q5_0, 6, 32, 22)                                 \
    X(Q5_1, 7, 32, 24)                                 \
    X(Q8_0, 8, 32, 34)                                 \
    X(Q4_K, 12, 256, 144)                              \
    X(Q5_K, 13, 256, 176)                              \
    X(Q6_K, 14, 256, 210)                              \
    X(BF16, 30, 1, 2)

enum be_dtype {
#define X(name, id, n, b) BE_##name = id,
    BE_DTYPE_MAP(X)
#undef X
};

/* True for a type of the table above. Accepts any integer. */
bool be_dtype_known(uint32_t id);
const char *be_dtype_name(uint32_t id);   /* "Q4_K"; "type 99" never: "unknown" */
uint32_t be_dtype_block(enum be_dtype t); /* values per block */
uint32_t be_dtype_block_bytes(enum be_dtype t);
/* Bytes of n_rows x n_cols; false when n_cols is no multiple of the block or the
 * product overflows. */
bool be_dtype_bytes(enum be_dtype t, uint64_t n_rows, uint64_t n_cols, uint64_t *out_bytes);
/* Exact values of n consecutive elements (n a multiple of the block). Plain C,
 * evaluated left to right in f32 without contraction; the oracle of all faster
 * paths. Source: engine.md 2.3. */
void be_dtype_to_f32(enum be_dtype t, const void *src, float *dst, size_t n);

struct be_ctx;    /* a device and its memory */
struct be_weight; /* immutable matrix [n_rows, n_cols] or vector [1, n_cols] */
struct be_tensor; /* f32 activations [cap_rows, n_cols] */
struct be_kv;     /* paged key/value cache of all layers */

struct be_opts {
    const char *backend;    /* "cpu" "cuda" */
    int device;             /* index, 0 for cpu */
    unsigned n_threads;     /* 0 = be_host_threads */
    bool no_spin;           /* more threads than the quota bears: park, never spin.
                               Set from be_host_threads where a sandbox will hide the
                               cgroup's files from be_ctx_new */
    size_t workspace_bytes; /* upper bound of activations and scratch; 0 = none */
    const char *cpu_level;  /* "auto" "c" "avx2" "avx512"; NULL = auto */
    const char *f32_gemm;   /* "auto" "own" "openblas"; NULL = auto */
    /* devices with generated kernels only (cuda) */
    const char *compute;       /* products of float weights: "exact_f32" (NULL), "tf32" (f32
                                  weights only), "f16", which also keeps activations in f16 */
    const char *jit;           /* "off" (NULL) "guarded" "exact" "profile" */
    const char *jit_cache_dir; /* NULL = none: what is compiled is compiled anew */
    uint64_t jit_cache_bytes;  /* cap of that directory; 0 = 1 GiB */
};

struct be_stats {
    uint64_t weight_bytes, kv_bytes, workspace_bytes;
    uint64_t hot_allocs; /* allocations after be_ctx_seal */
    uint64_t ops;        /* operations run */
    unsigned n_threads;
    char kernels[32];            /* "avx2" */
    char f32_gemm[64];           /* "own" or "openblas (self-check passed)" ... */
    char device[64];             /* "NVIDIA H200 (sm_90, driver 580.159)"; "" for cpu */
    uint64_t device_bytes;       /* of arenas on the device; 0 for cpu */
    uint64_t device_total_bytes; /* memory of the device; 0 for cpu */
};

/* How operations reached the device (backends with generated kernels; all 0 for
 * cpu). Source: engine.md 1.6, 1.7. */
enum be_kroute_kind {
    BE_KROUTE_JIT,       /* exact run-time compiled winner */
    BE_KROUTE_EXACT,     /* bundled, made for this very shape */
    BE_KROUTE_BUCKET,    /* bundled, made for a range of shapes */
    BE_KROUTE_LIBRARY,   /* a vendor's, where a backend has one */
    BE_KROUTE_HAND,      /* hand-written */
    BE_KROUTE_REFERENCE, /* computed by the CPU: a fallback */
    BE_KROUTE_COUNT
};
const char *
be_kroute_name(enum be_kroute_kind k); /* "jit" "exact" "bucket" "library" "hand" "reference" */

#define BE_KSTAT_FORMATS 12
struct be_kstats {
    uint64_t dispatch[BE_KROUTE_COUNT];
    /* linear dispatches by weight format, in the order of BE_DTYPE_MAP */
    uint64_t by_format[BE_KSTAT_FORMATS];
    uint64_t missing_artifacts; /* a planned kernel that is not in the artifact set */
    uint64_t wiring_failures;   /* planned and present, yet not launched */
    uint64_t decode_fallbacks, slow_fallbacks;
    uint64_t fused; /* operations that a fusion saved */
    uint64_t graph_captures, graph_replays, graph_evictions, stream_steps;
    uint64_t syncs, h2d_bytes, d2h_bytes;
    uint64_t jit_compiles, jit_failures, jit_hits, jit_misses, jit_corrupt, jit_stores,
        jit_evictions, jit_quarantined, jit_active;
    uint64_t hot_compiles; /* compilations after be_ctx_seal; tests hold it at 0 */
};

/* Compute threads for this process: wanted, or (0) the processors it may use (affinity),
 * lowered by the cgroup's CPU quota (v2 cpu.max, v1 cpu.cfs_*), at least 1. *out_spin:
 * may that many threads busy-wait? Reads files: call before a sandbox. */
unsigned be_host_threads(unsigned wanted, bool *out_spin);

/* Makes a context of the named backend. Errors: RC_NOT_FOUND unknown backend
 * (the message lists those in this build), RC_UNSUPPORTED a cpu_level this
 * processor lacks, RC_NOMEM. */
enum rc be_ctx_new(struct be_ctx **out, const struct be_opts *o, struct rc_err *err);
void be_ctx_free(struct be_ctx **ctx);
/* From now on every allocation is a hot-path fault, see above. */
void be_ctx_seal(struct be_ctx *ctx);
void be_ctx_stats(const struct be_ctx *ctx, struct be_stats *out);
/* Rises with every operation, copy and weight that was begun. Any thread may ask: this is how
 * a watchdog tells a long pass from one that stands still. */
uint64_t be_ctx_moved(const struct be_ctx *ctx);
/* Zeros for a backend without generated kernels. */
void be_ctx_kstats(const struct be_ctx *ctx, struct be_kstats *out);
/* What was decided while the model loaded, a line each, for people (run-time compiled kernels:
 * name, state, speed-up, reason). NULL = nothing to tell. Caller frees. */
char *be_ctx_report(const struct be_ctx *ctx);
enum rc be_sync(struct be_ctx *ctx, struct rc_err *err);
/* The name the context was made by, "cpu". */
const char *be_ctx_backend(const struct be_ctx *ctx);
/* NULL-ended list of backend names in this build. */
const char *const *be_names(void);

/* ------------------------------------------------------------------ weights */

enum be_use {
    BE_USE_LINEAR = 1, /* right side of be_linear */
    BE_USE_EMBED = 2,  /* row gather by be_embed */
    BE_USE_VECTOR = 4, /* norm weight or bias; widened to f32 */
    BE_USE_MAPPED = 8, /* with EMBED alone: the table stays where desc.data lies (a mapped
                          file); rows are fetched from there as they are asked for, and no
                          device ever holds a copy of the whole */
};

struct be_weight_desc {
    const char *name; /* for messages; copied */
    enum be_dtype dtype;
    uint64_t n_rows, n_cols;
    const void *data; /* n_rows x n_cols packed; stays mapped and unchanged as
                         long as the weight lives (the backend may borrow it) */
    size_t n_bytes;
    unsigned use; /* enum be_use, or'ed (tied embedding: LINEAR|EMBED) */
};

/* Errors: RC_UNSUPPORTED for a (dtype, use) pair this backend lacks. */
enum rc be_weight_new(struct be_ctx *ctx, const struct be_weight_desc *d, struct be_weight **out,
                      struct rc_err *err);
void be_weight_free(struct be_ctx *ctx, struct be_weight **w);
/* Asked for the whole model before any weight is made. */
bool be_supports(const struct be_ctx *ctx, enum be_dtype t, unsigned use);

/* ------------------------------------------------------------------ tensors */

enum rc be_tensor_new(struct be_ctx *ctx, uint32_t cap_rows, uint32_t n_cols,
                      struct be_tensor **out, struct rc_err *err);
void be_tensor_free(struct be_ctx *ctx, struct be_tensor **t);
enum rc be_tensor_write(struct be_ctx *ctx, struct be_tensor *t, uint32_t row, uint32_t n_rows,
                        const float *src, struct rc_err *err);
enum rc be_tensor_read(struct be_ctx *ctx, const struct be_tensor *t, uint32_t row, uint32_t n_rows,
                       float *dst, struct rc_err *err);
/* Borrowed host pointer to row 0, good until the next op on the tensor; NULL
 * when the device's memory cannot be read by the host (then use _read). */
const float *be_tensor_view(struct be_ctx *ctx, const struct be_tensor *t);

/* ------------------------------------------------------------------ KV cache */

#define BE_KV_CLASSES 4

/* Layers of one class share window and page tables. A page of class c holds
 * page_tokens consecutive positions of every layer of that class. */
struct be_kv_layer {
    uint32_t cls;
    uint32_t n_kv_heads, head_dim;
};
struct be_kv_desc {
    uint32_t n_layers, n_classes, page_tokens; /* page_tokens: 16..256, power of 2 */
    const struct be_kv_layer *layers;
    uint32_t n_pages[BE_KV_CLASSES];
    enum be_dtype dtype; /* BE_F16 or BE_F32; cuda also BE_Q8_0 */
};
enum rc be_kv_new(struct be_ctx *ctx, const struct be_kv_desc *d, struct be_kv **out,
                  struct rc_err *err);
void be_kv_free(struct be_ctx *ctx, struct be_kv **kv);
/* Bytes of one page of class cls; 0 on overflow or nonsense. */
uint64_t be_kv_page_bytes(const struct be_kv_desc *d, uint32_t cls);

/* n_rows consecutive new tokens of one sequence: rows row0.. of the batch are
 * positions pos0.. . pages[c][p / page_tokens] is the page of position p in
 * class c, or -1 for positions a windowed class has let go. */
struct be_seq {
    uint32_t row0, n_rows, pos0;
    const int32_t *pages[BE_KV_CLASSES];
};

/* ---------------------------------------------------------------- operations */

/* out[r] = scale * table[ids[r]]  (accumulate: out[r] += ...).
 * ids host [n]; each 0 <= id < table rows, else RC_INVALID. */
struct be_embed_args {
    const struct be_weight *table;
    const int32_t *ids;
    uint32_t n;
    float scale;
    bool accumulate;
    struct be_tensor *out;
};
enum rc be_embed(struct be_ctx *, const struct be_embed_args *, struct rc_err *);

/* out = norm(x) * w, or out = add + norm(x) * w.  norm(x) = x / sqrt(mean(x^2)
 * + eps) over n_cols, f32 (sums in f64 or a fixed tree).  out may be x or add.
 * w holds the factor itself: a family whose file stores w-1 adds 1 at load.
 * Source: Zhang & Sennrich 2019, eq. 4. */
struct be_rms_norm_args {
    const struct be_tensor *x;
    const struct be_weight *w;
    const struct be_tensor *add; /* or NULL */
    struct be_tensor *out;
    uint32_t n;
    float eps;
};
enum rc be_rms_norm(struct be_ctx *, const struct be_rms_norm_args *, struct rc_err *);

/* out = (z - mean(z)) / sqrt(var(z) + eps) * w + b, z = x (+ add); population
 * variance; b NULL = 0.  Source: Ba et al. 2016. */
struct be_layer_norm_args {
    const struct be_tensor *x, *add;
    const struct be_weight *w, *b;
    struct be_tensor *out;
    uint32_t n;
    float eps;
};
enum rc be_layer_norm(struct be_ctx *, const struct be_layer_norm_args *, struct rc_err *);

enum be_epi {
    BE_EPI_NONE,      /* out = x W^T + b */
    BE_EPI_GELU_ERF,  /* out = gelu(x W^T + b), 0.5 z (1 + erf(z / sqrt 2)) */
    BE_EPI_GELU_TANH, /* the tanh form */
    BE_EPI_ADD,       /* out += x W^T + b */
    BE_EPI_GEGLU,     /* two parts: part[0].out = gelu_tanh(x W0^T) * (x W1^T) */
};
/* Up to three products that share x (QKV; gate and up). W [n_out_i, n_in].
 * Quantized W: x is quantized once to int8 blocks (Q8_0 for 32-value types, Q8_K
 * for 256-value types), as in engine.md 2.4. F32/F16/BF16 W: f32 products.
 * No out may overlap x or another part's out: parts run side by side. */
struct be_linear_args {
    const struct be_tensor *x;
    uint32_t n;
    uint32_t n_parts;
    struct {
        const struct be_weight *w, *b; /* b or NULL */
        struct be_tensor *out;
    } part[3];
    enum be_epi epi;
};
enum rc be_linear(struct be_ctx *, const struct be_linear_args *, struct rc_err *);

/* In place on x [n, n_heads * head_dim]: optional RMS norm of each head (norm_w
 * [head_dim], or NULL), then half-split rotation by angle pos / factor *
 * theta^(-2i/head_dim): pairs (i, i + head_dim/2). n_pairs > 0: only pairs i < n_pairs
 * turn, the others stay as they are ("proportional" rotation; the exponent's denominator
 * is head_dim all the same). pos host [n]. theta 0 = norm only.
 * Source: Su et al. 2021; NeoX pairing; gemma.md 3.1. */
struct be_rope_args {
    struct be_tensor *x;
    const int32_t *pos;
    uint32_t n, n_heads, head_dim;
    float theta, factor;
    uint32_t n_pairs; /* 0 = all head_dim / 2 */
    const struct be_weight *norm_w;
    float norm_eps;
};
enum rc be_rope(struct be_ctx *, const struct be_rope_args *, struct rc_err *);

/* Writes k, v [n, n_kv_heads * head_dim] at the sequences' positions. */
struct be_kv_write_args {
    struct be_kv *kv;
    uint32_t layer;
    const struct be_tensor *k, *v;
    const struct be_seq *seqs;
    uint32_t n_seqs;
};
enum rc be_kv_write(struct be_ctx *, const struct be_kv_write_args *, struct rc_err *);

/* Causal attention of new rows over the cache (which already holds them).
 * q, out [n, n_heads * head_dim], may not overlap. window W > 0: only keys with
 * pos - W < key <= pos. Grouped heads: query head h reads kv head
 * h / (n_heads / n_kv_heads). Scores and softmax f32; scale multiplies q.k.
 * Source: Vaswani et al. 2017, 3.2.1; Ainslie et al. 2023. */
struct be_attention_args {
    const struct be_tensor *q;
    struct be_tensor *out;
    const struct be_kv *kv;
    uint32_t layer, n_heads;
    float scale;
    uint32_t window;
    const struct be_seq *seqs;
    uint32_t n_seqs;
};
enum rc be_attention(struct be_ctx *, const struct be_attention_args *, struct rc_err *);

/* Attention inside packed sequences without a cache (encoders). Sequence s is
 * rows offsets[s] .. offsets[s+1]-1. q, out [n, n_heads*head_dim]; k, v
 * [n, n_kv_heads*head_dim]. radius >= 0: only |q - k| <= radius. */
struct be_attention_packed_args {
    const struct be_tensor *q, *k, *v;
    struct be_tensor *out;
    const uint32_t *offsets;
    uint32_t n_seqs, n_heads, n_kv_heads, head_dim;
    float scale;
    int32_t radius; /* -1 = all */
};
enum rc be_attention_packed(struct be_ctx *, const struct be_attention_packed_args *,
                            struct rc_err *);

/* The same with disentangled relative positions (DeBERTa). For a head, i and j rows of a sequence:
 *   score[i][j] = (q_i . k_j + q_i . rk[d] + k_j . rq[d]) * scale,  d = rel[i - j + reach]
 * rk, rq [n_rel, n_heads*head_dim], either NULL: without that term. rel host [2 * reach + 1], each
 * < n_rel; a sequence has at most reach + 1 rows. No n x n memory: computed in tiles.
 * Source: He et al. 2021, eq. 4; encoders.md 5.3. */
struct be_attention_rel_args {
    const struct be_tensor *q, *k, *v, *rk, *rq;
    struct be_tensor *out;
    const int32_t *rel;
    uint32_t reach, n_rel;
    const uint32_t *offsets;
    uint32_t n_seqs, n_heads, head_dim;
    float scale;
};
enum rc be_attention_rel(struct be_ctx *, const struct be_attention_rel_args *, struct rc_err *);

/* Scores of spans of 1 to width rows, of the n rows from `row` on:
 *   out[q][i][k] = sum over columns of max(a[row + i] + b[row + i + k], 0) * g[q],  i + k < n
 * and -INFINITY for i + k >= n. g[q] is row g_row + q of g; a, b, g have n_cols columns; out host
 * [n_g, n, width]. The sums of rows of a and b are never all in memory. scratch host
 * [(2 n + n_g) * columns]: where the host cannot read the tensors. */
struct be_spans_args {
    const struct be_tensor *a, *b, *g;
    uint32_t n_cols, row, n, width, g_row, n_g;
    float *out, *scratch;
};
enum rc be_spans(struct be_ctx *, const struct be_spans_args *, struct rc_err *);

/* out[i] = x[rows[i]]; rows host [n]. */
struct be_gather_args {
    const struct be_tensor *x;
    const int32_t *rows;
    uint32_t n;
    struct be_tensor *out;
};
enum rc be_gather(struct be_ctx *, const struct be_gather_args *, struct rc_err *);

/* x = cap * tanh(x / cap), in place. */
struct be_softcap_args {
    struct be_tensor *x;
    uint32_t n;
    float cap;
};
enum rc be_softcap(struct be_ctx *, const struct be_softcap_args *, struct rc_err *);

/* x[r][c] *= scale * y[r][y_col + c] for all columns of x, in place; y NULL: x *= scale.
 * Two products, each rounded to f32. y [n, >= y_col + columns of x], not x.
 * Errors: RC_UNSUPPORTED when the backend has none. */
struct be_scale_args {
    struct be_tensor *x;
    const struct be_tensor *y; /* or NULL */
    uint32_t y_col, n;
    float scale;
};
enum rc be_scale(struct be_ctx *, const struct be_scale_args *, struct rc_err *);

/* Pools packed sequences: out[s] from rows offsets[s]..offsets[s+1]-1 (never
 * empty). kinds as in sentence-transformers; weighted: weights 1..T. */
enum be_pool {
    BE_POOL_CLS,
    BE_POOL_MAX,
    BE_POOL_MEAN,
    BE_POOL_MEAN_SQRT, /* sum / sqrt(count) */
    BE_POOL_WEIGHTED,
    BE_POOL_LAST,
};
struct be_pool_args {
    const struct be_tensor *x;
    const uint32_t *offsets;
    uint32_t n_seqs;
    enum be_pool kind;
    struct be_tensor *out;
};
enum rc be_pool(struct be_ctx *, const struct be_pool_args *, struct rc_err *);

/* out_ids[i] = index of the largest x[i][.], the lowest index on ties; NaN never
 * wins. out_ids host [n]. */
struct be_argmax_args {
    const struct be_tensor *x;
    uint32_t n;
    int32_t *out_ids;
};
enum rc be_argmax(struct be_ctx *, const struct be_argmax_args *, struct rc_err *);

/* Draws one id per row of logits on the device, as worker/wrk_sample.c defines it: scale by 1 /
 * temperature, keep the top_k largest, softmax, keep the smallest set of mass >= top_p, drop what
 * is below min_p times the largest, draw with u. temperature 0: arg-max. out_ids host [n]; -1: this
 * row needs the host (its top_p set may not fit the device's candidates, or it holds a value that
 * is not finite, which the host reports). A row's id depends on that row alone. Errors:
 * RC_UNSUPPORTED when the backend has none (ask be_can_sample first). */
struct be_sample_row {
    float temperature, top_p, min_p;
    uint32_t top_k; /* 0 = all */
    float u;        /* the row's one draw, [0, 1) */
};
struct be_sample_args {
    const struct be_tensor *x;
    uint32_t n;
    const struct be_sample_row *rows;
    int32_t *out_ids;
};
bool be_can_sample(const struct be_ctx *);
enum rc be_sample(struct be_ctx *, const struct be_sample_args *, struct rc_err *);

/* ------------------------------------------------- operations of eyes and ears
 * What the towers of models that see and hear need beside the above. A backend has all of them
 * or none: RC_UNSUPPORTED where it has none, which be_can_towers tells beforehand. True of a
 * backend that has be_scale too, which towers call as well. */
bool be_can_towers(const struct be_ctx *);

/* out = f(x), or out = add + f(x), value by value; out may be x or add. NaN stays NaN. */
enum be_act_kind {
    BE_ACT_RELU,      /* max(x, 0) */
    BE_ACT_SILU,      /* x / (1 + exp(-x)) */
    BE_ACT_GELU_TANH, /* as BE_EPI_GELU_TANH */
    BE_ACT_CLAMP,     /* lo <= hi; either may be infinite */
};
struct be_act_args {
    const struct be_tensor *x;
    const struct be_tensor *add; /* or NULL */
    struct be_tensor *out;
    uint32_t n;
    enum be_act_kind kind;
    float lo, hi; /* BE_ACT_CLAMP */
};
enum rc be_act(struct be_ctx *, const struct be_act_args *, struct rc_err *);

/* out[r][c] = x[r][c] / (1 + exp(-x[r][c + columns of out])); x has twice out's columns.
 * Source: Dauphin et al. 2017. */
struct be_glu_args {
    const struct be_tensor *x;
    struct be_tensor *out;
    uint32_t n;
};
enum rc be_glu(struct be_ctx *, const struct be_glu_args *, struct rc_err *);

/* x[r][c] = (x[r][c] - sub[c]) * mul[c], in place. */
struct be_affine_args {
    struct be_tensor *x;
    const struct be_weight *sub, *mul;
    uint32_t n;
};
enum rc be_affine(struct be_ctx *, const struct be_affine_args *, struct rc_err *);

/* Rotation by two positions, in place on x [n, n_heads * head_dim]: the first half of every head
 * turns by pos_x, the second by pos_y, each as be_rope turns a head of head_dim / 2 (theta > 0,
 * factor 1). head_dim a multiple of 4; pos_x, pos_y host [n]. Source: gemma.md 5.2. */
struct be_rope2d_args {
    struct be_tensor *x;
    const int32_t *pos_x, *pos_y;
    uint32_t n, n_heads, head_dim;
    float theta;
};
enum rc be_rope2d(struct be_ctx *, const struct be_rope2d_args *, struct rc_err *);

/* Windows of a picture as rows, so that be_linear convolves (im2col). The picture has `height`
 * lines of `width` pixels of n_ch values; x holds lines x_line.. of it, packed, a row being a
 * pixel (x has n_ch columns) or a line (width * n_ch). Row out_row + (l - line) * n_x + i of out, l
 * in [line, line + n_lines) and i in [0, n_x), n_x = (width + 2 pad_w - k_w) / stride_w + 1, is the
 * window whose corner is line l * stride_h - pad_h and column i * stride_w - pad_w: k_h * k_w *
 * n_ch values in the order (line, column, channel), or (channel, line, column) if ch_first.
 * Outside of the picture is 0. The lines that windows touch must be among the rows of x. */
struct be_unfold_args {
    const struct be_tensor *x;
    struct be_tensor *out; /* not x */
    uint32_t width, height, n_ch, x_line;
    uint32_t k_h, k_w, stride_h, stride_w, pad_h, pad_w;
    bool ch_first;
    uint32_t line, n_lines;
    uint32_t out_row;
};
enum rc be_unfold(struct be_ctx *, const struct be_unfold_args *, struct rc_err *);

/* Each column by itself along the rows, looking back: out[t][c] = sum over j < k of
 * w[c * k + j] * x[t - (k - 1) + j][c], rows before the first being 0. w is a vector of
 * columns * k, 1 <= k <= 64; out not x. */
struct be_conv1d_args {
    const struct be_tensor *x;
    struct be_tensor *out;
    const struct be_weight *w;
    uint32_t n, k;
};
enum rc be_conv1d(struct be_ctx *, const struct be_conv1d_args *, struct rc_err *);

/* Attention of each of n rows over itself and the n_keys - 1 rows before it, with a vector for
 * every distance: with u = q * q_scale (a vector of head_dim, the same for all heads),
 *   score(t, d) = cap * tanh((k_scale * u_t . k_(t-d) + u_t . rel_d) / cap),  d < n_keys, d <= t
 * softmax over d, weighted sum of v. q, k, v, out [n, n_heads * head_dim], rel [n_keys, same];
 * out is none of the others. n_keys <= 64, cap > 0. Source: gemma.md 6.2; Dai et al. 2019, 3.3. */
struct be_attention_local_args {
    const struct be_tensor *q, *k, *v, *rel;
    struct be_tensor *out;
    const struct be_weight *q_scale;
    uint32_t n, n_heads, head_dim, n_keys;
    float k_scale, cap;
};
enum rc be_attention_local(struct be_ctx *, const struct be_attention_local_args *,
                           struct rc_err *);

#endif
