/* be_cpu.h - private to backends/cpu: the context, its objects, the pool and the
 * table of kernels.
 *
 * Shape of the room: be_cpu*.c hold drivers, which check arguments, cut the work
 * into items and hand those to the pool; a table of kernels (struct be_cpu_kern)
 * does the arithmetic of one item. Level "c" is be_cpu_ref.c, the oracle; the
 * faster ones are *_avx2.c and *_avx512.c, chosen at run time.
 *
 * Always true: an item's arithmetic never depends on which other items there are
 * or who runs them; kernels allocate nothing and touch only their outputs and
 * their thread's scratch.
 */
#ifndef INFERD_BE_CPU_H
#define INFERD_BE_CPU_H

#include "be.h"
#include "be_impl.h"

#define BE_CPU_MAX_THREADS 256
#define BE_CPU_UNIT 16          /* outputs of a linear that are computed together */
#define BE_CPU_GROUP 8          /* weight rows interleaved in a packed quantized matrix */
#define BE_CPU_ROWS 24          /* rows handed to a linear kernel at once, at most */
#define BE_CPU_TILE 8           /* activation rows interleaved by the quantizers */
#define BE_CPU_CHUNK 240        /* rows quantized at once: a multiple of ROWS and TILE */
#define BE_CPU_MAX_HEAD 512     /* head_dim limit of the fast attention */
#define BE_CPU_KEYS 64          /* keys of one attention tile; tiles start at multiples of it */
#define BE_CPU_VECS 48          /* query vectors (rows x heads) of one attention item, at most */
#define BE_CPU_SEQ_VECS 256     /* the same inside packed sequences, where also ... */
#define BE_CPU_SEQ_VALUES 49152 /* ... vectors x head_dim (in steps of 16) is at most this */
#define BE_CPU_ONE_PASS 512     /* keys that are summed without a cut */
#define BE_CPU_SPLIT 256        /* keys between two cuts, at least; a multiple of KEYS */
#define BE_CPU_SPLITS 32        /* cuts of a sequence, at most */
#define BE_CPU_PARTS (1u << 20) /* bytes for sums of cuts that threads share */
#define BE_CPU_LOCAL_KEYS 64    /* keys of local attention, at most */
#define BE_CPU_PIECE                                                      \
    1024 /* values handed to act and softcap at once, at most: a value is \
            always at the same vector lane */
#define BE_CPU_GRAIN                                                     \
    8192 /* values one thread should have before another is woken: about \
            2 us of work */
#define BE_CPU_ALIGN 64

enum be_cpu_mem { BE_CPU_MEM_WEIGHT, BE_CPU_MEM_KV, BE_CPU_MEM_WORK, BE_CPU_MEM_KINDS };

struct be_tensor {
    uint32_t cap_rows, n_cols;
    float *data;
    size_t n_bytes;
};

struct be_weight {
    char name[96];
    enum be_dtype dtype;
    uint64_t n_rows, n_cols;
    unsigned use;
    const uint8_t *raw; /* borrowed: the caller's bytes */
    size_t row_bytes;   /* of one raw row */
    float *vec;         /* BE_USE_VECTOR: n_cols values, else NULL */
    uint8_t *packed;    /* the kernels' own layout for linear, or NULL = raw is used */
    size_t vec_bytes, packed_bytes;
    size_t unit_bytes; /* bytes one unit of BE_CPU_UNIT outputs occupies */
};

struct be_cpu_kv_layer {
    uint32_t cls, n_kv_heads, head_dim;
    uint64_t off; /* bytes from a page's start */
};

/* A page holds, per layer and KV head, K as [head_dim][page_tokens] - so that one
 * load takes neighbouring keys - then V as [page_tokens][head_dim]. */
struct be_kv {
    uint32_t n_layers, n_classes, page_tokens, page_shift;
    enum be_dtype dtype;
    uint32_t elem; /* bytes */
    struct be_cpu_kv_layer *layers;
    size_t layers_bytes;
    uint32_t n_pages[BE_KV_CLASSES];
    uint64_t page_bytes[BE_KV_CLASSES];
    uint8_t *base[BE_KV_CLASSES];
    size_t base_bytes[BE_KV_CLASSES];
};

/* Quantized rows. Rows are grouped in tiles of BE_CPU_TILE (the last may have
 * fewer, m); inside a tile, block b of row i lies at index b * m + i. */
struct be_cpu_act {
    const float *x; /* rows of n_cols */
    uint32_t n, n_cols;
    /* blocks of 32 */
    int8_t *q0;
    float *d0;   /* scale, rounded through half */
    int32_t *s0; /* sum of the codes */
    /* blocks of 256 */
    int8_t *qk;
    float *dk;
    int16_t *bk; /* per block: 16 sums of 16 codes, then 8 sums of 32 */
};
#define BE_CPU_BK 24

static inline uint32_t be_cpu_tile_rows(uint32_t n, uint32_t start)
{
    return n - start < BE_CPU_TILE ? n - start : BE_CPU_TILE;
}

/* Item of attention: query rows [row0, row0 + n_rows) of one sequence, heads
 * [head0, head0 + n_heads) which all read KV head kv_head. Row i is position
 * pos0 + i and sees keys lo(i) <= key < hi(i). */
struct be_cpu_attn {
    const float *q;
    float *out;
    size_t ld; /* elements from row to row of q and out */
    uint32_t head_dim;
    float scale;
    /* what is visible: causal with window (0 = all), or packed with radius */
    bool causal;
    uint32_t window;
    int32_t radius;
    uint32_t n_keys; /* packed: keys of the sequence */
    /* keys in the cache */
    const struct be_kv *kv;
    const struct be_cpu_kv_layer *layer;
    const int32_t *pages;
    /* or plain rows */
    const float *k, *v;
    size_t ld_kv;
    /* the item */
    uint32_t row0, n_rows, pos0, head0, n_heads, kv_head;
    /* part of an item: keys [key0, key1) between two cuts, whose sums go to (or are
     * merged from) part; vector i's begin at part + i * ld_part. NULL = whole */
    float *part;
    size_t ld_part;
    uint32_t key0, key1;
    struct be_cpu_rel *rel; /* disentangled positions, or NULL */
};

/* Relative positions of a call of be_attention_rel, as one thread sees them. */
struct be_cpu_rel {
    const float *rk, *rq; /* rows of ld, either NULL */
    size_t ld;
    const int32_t *rel; /* of i - j + reach */
    uint32_t reach;
    uint32_t longest; /* rows of the longest sequence whose tables fit the scratch, or 0 */
    uint32_t n_cols;  /* runs of equal rel as far as that reaches */
    uint32_t rows;    /* of an item, at most */
    /* what the AVX2 kernel keeps from item to item of one head */
    uint32_t head; /* UINT32_MAX: nothing yet */
    int32_t *by_key, *by_row;
    float *tk, *tq, *p, *t;
};

/* Floats of scratch that an item with r takes. */
static inline size_t be_cpu_rel_floats(const struct be_cpu_rel *r, uint32_t dim)
{
    size_t wide = (dim + 15) / 16 * 16, rows = (r->rows + 7) / 8 * 8;

    return BE_CPU_KEYS * (dim + wide) + rows * (BE_CPU_KEYS + wide + dim) + 16 /* the tile */
           + 4 * ((size_t)r->longest + 32)                                     /* both maps */
           + 2 * dim * ((r->n_cols + 7) / 8 * 8 + 16)                          /* both tables */
           + 6 * 96 + BE_CPU_KEYS * (rows + 32);                               /* products */
}

/* Sums of one vector between two cuts: head_dim values, then maximum, then weights. */
#define BE_CPU_PART_COLS(dim) ((size_t)(dim) + 8)

/* lo and hi of the query at position pos. */
static inline void be_cpu_attn_range(const struct be_cpu_attn *a, uint32_t pos, uint32_t *lo,
                                     uint32_t *hi)
{
    *lo = 0;
    if (a->causal) {
        *hi = pos + 1;
        if (a->window > 0 && pos >= a->window)
            *lo = pos - a->window + 1;
    } else {
        *hi = a->n_keys;
        if (a->radius >= 0) {
            uint32_t r = (uint32_t)a->radius;

            if (pos > r)
                *lo = pos - r;
            if (a->n_keys - pos > r && pos + r + 1 < a->n_keys)
                *hi = pos + r + 1;
        }
    }
}

/* A long sum over cached keys is cut at multiples of the returned number of keys, the
 * pieces merged in order. It follows from what the one query sees, so that neither
 * neighbours, chunks of a prefill nor threads change a bit. */
static inline uint32_t be_cpu_attn_cut(const struct be_cpu_attn *a, uint32_t lo, uint32_t hi)
{
    uint32_t cut = BE_CPU_SPLIT;

    if (hi - lo <= BE_CPU_ONE_PASS)
        return UINT32_MAX;
    while ((hi - lo) / BE_CPU_SPLITS >= cut)
        cut *= 2;
    return cut;
}

/* K and V of key position p for the item's KV head: K element d is at
 * k[d * step_k], V is contiguous; elem bytes each. */
static inline void be_cpu_kv_at(const struct be_cpu_attn *a, uint32_t p, const uint8_t **k,
                                const uint8_t **v)
{
    const struct be_kv *kv = a->kv;
    size_t head = (size_t)a->layer->head_dim * kv->page_tokens * kv->elem;
    uint32_t in_page = p & (kv->page_tokens - 1);
    const uint8_t *page =
        kv->base[a->layer->cls] +
        (uint64_t)(uint32_t)a->pages[p >> kv->page_shift] * kv->page_bytes[a->layer->cls] +
        a->layer->off + 2 * head * a->kv_head;

    *k = page + (size_t)in_page * kv->elem;
    *v = page + head + (size_t)in_page * a->layer->head_dim * kv->elem;
}

struct be_cpu_rope {
    const int32_t *pos;
    float *x;
    uint32_t n_heads, head_dim, ld_head; /* elements from head to head of x */
    const float *norm_w;                 /* or NULL */
    float norm_eps;
    const float *freq; /* [head_dim / 2], or NULL = norm only */
};

/* What one level of kernels provides. Row functions work on rows [r0, r1). */
struct be_cpu_kern {
    const char *name;
    /* linear: bytes of the packed layout, 0 = none (raw rows are used) */
    size_t (*pack_bytes)(enum be_dtype t, uint64_t n_rows, uint64_t n_cols);
    /* packs units [u0, u1) of w from raw into packed */
    void (*pack)(const struct be_weight *w, size_t u0, size_t u1);
    void (*quant_q8_0)(struct be_cpu_act *a, uint32_t r0, uint32_t r1);
    void (*quant_q8_k)(struct be_cpu_act *a, uint32_t r0, uint32_t r1);
    /* out[i * ld + j] = x[r0 + i] . w[u0 * UNIT + j] for i < nr, j < nu * UNIT.
     * r0 is a multiple of BE_CPU_TILE, nr <= BE_CPU_ROWS; outputs past n_rows get 0. */
    void (*lin)(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                uint32_t r0, uint32_t nr, float *out, size_t ld);
    /* units that lin takes at once of a plain type and many rows: 1 to 4 */
    unsigned lin_units;
    /* Writes n outputs of one row: acc (and acc1, GEGLU) + bias, by epi. */
    void (*epi)(enum be_epi epi, const float *acc, const float *acc1, const float *bias, float *out,
                uint32_t n);
    void (*embed)(const struct be_embed_args *a, uint32_t r0, uint32_t r1);
    void (*rms_norm)(const struct be_rms_norm_args *a, uint32_t r0, uint32_t r1);
    void (*layer_norm)(const struct be_layer_norm_args *a, uint32_t r0, uint32_t r1);
    void (*rope)(const struct be_cpu_rope *a, uint32_t r0, uint32_t r1);
    void (*softcap)(float *x, size_t n, float cap);
    int32_t (*argmax)(const float *x, uint32_t n);
    /* values [i0, i1) of x, add and out */
    void (*act)(const struct be_act_args *a, size_t i0, size_t i1);
    void (*glu)(const struct be_glu_args *a, uint32_t r0, uint32_t r1);
    void (*attn_local)(const struct be_attention_local_args *a, uint32_t r0, uint32_t r1);
    /* spans that begin with words [i0, i1); a, b: rows of word 0 */
    void (*spans)(const struct be_spans_args *s, const float *a, const float *b, const float *g,
                  uint32_t i0, uint32_t i1);
    /* scratch: BE_CPU_SCRATCH bytes of the running thread */
    void (*attn)(const struct be_cpu_attn *a, void *scratch);
    /* an item of be_attention_rel: a->rel is set, of the running thread */
    void (*attn_rel)(const struct be_cpu_attn *a, void *scratch);
    /* merges n parts per vector, part k at part + k * PART_COLS; NULL = never cut */
    void (*attn_merge)(const struct be_cpu_attn *a, uint32_t n, void *scratch);
};

extern const struct be_cpu_kern be_cpu_kern_c;
#if defined(__x86_64__)
extern const struct be_cpu_kern be_cpu_kern_avx2;
extern const struct be_cpu_kern be_cpu_kern_avx512;
#endif

/* Bytes of a thread; an item of packed attention takes up to 705 KiB of them. */
#define BE_CPU_SCRATCH (1024u * 1024u)

struct be_cpu_pool;

struct be_cpu_freq { /* rotation frequencies, kept between calls */
    float theta, factor;
    uint32_t head_dim, n_pairs; /* head_dim 0 = empty */
    float f[BE_CPU_MAX_HEAD / 2];
};

struct be_cpu_ctx {
    struct be_ctx base;
    const struct be_cpu_kern *kern;
    struct be_cpu_pool *pool;
    unsigned n_threads;
    size_t workspace_limit; /* 0 = none */
    uint64_t mem[BE_CPU_MEM_KINDS];
    uint64_t hot_allocs, ops;
    bool openblas;
    char f32_gemm[64];
    uint8_t *scratch; /* n_threads x BE_CPU_SCRATCH */
    size_t scratch_bytes;
    float *parts; /* BE_CPU_PARTS bytes, or NULL with one thread */
    uint8_t *act; /* quantized activations of one chunk */
    size_t act_bytes;
    struct be_cpu_freq freq[4];
    unsigned next_freq;
};

static inline struct be_cpu_ctx *be_cpu(struct be_ctx *ctx)
{
    return (struct be_cpu_ctx *)(void *)ctx;
}

/* be_cpu_mem.c. Zeroed, aligned to BE_CPU_ALIGN; counted by kind. */
enum rc be_cpu_alloc(struct be_cpu_ctx *c, enum be_cpu_mem kind, uint64_t n_bytes, void *out,
                     const char *what, struct rc_err *err);
void be_cpu_free(struct be_cpu_ctx *c, enum be_cpu_mem kind, void *p, size_t n_bytes);

/* be_cpu_topo.c */
bool be_cpu_has(const char *level);
/* The two parsers, for tests: v2 "max 100000" / "50000 100000"; < 0 = no quota. */
double be_cpu_quota_v2(const char *text);
double be_cpu_quota_v1(const char *quota, const char *period);

/* be_cpu_pool.c: fork and join over n_threads - 1 helpers and the caller. */
typedef void be_cpu_job(void *arg, unsigned thread, size_t i0, size_t i1);
enum rc be_cpu_pool_new(struct be_cpu_pool **out, unsigned n_threads, bool spin,
                        struct rc_err *err);
void be_cpu_pool_free(struct be_cpu_pool **pool);
/* Runs fn over [0, n), cut in at most n_threads equal ranges of at least grain. */
void be_cpu_pool_run(struct be_cpu_pool *pool, size_t n, size_t grain, be_cpu_job *fn, void *arg);
/* The grain for rows of n_values. */
static inline size_t be_cpu_grain_rows(uint64_t n_values)
{
    return (size_t)(BE_CPU_GRAIN / (n_values + 1)) + 1;
}

/* be_cpu_weight.c, be_cpu_kv.c, be_cpu_linear.c, be_cpu_attn.c, be_cpu_rows.c, be_cpu_tower.c,
 * be_cpu_unfold.c */
bool be_cpu_supports(const struct be_ctx *, enum be_dtype, unsigned use);
enum rc be_cpu_weight_new(struct be_ctx *, const struct be_weight_desc *, struct be_weight **,
                          struct rc_err *);
void be_cpu_weight_free(struct be_ctx *, struct be_weight **);
enum rc be_cpu_kv_new(struct be_ctx *, const struct be_kv_desc *, struct be_kv **, struct rc_err *);
void be_cpu_kv_free(struct be_ctx *, struct be_kv **);
enum rc be_cpu_check_pages(const struct be_kv *kv, uint32_t cls, const struct be_seq *s,
                           uint32_t lo, uint32_t hi, const char *op, struct rc_err *err);
enum rc be_cpu_check_seqs(const struct be_seq *seqs, uint32_t n_seqs, const struct be_tensor *t,
                          const char *op, struct rc_err *err);
enum rc be_cpu_kv_write(struct be_ctx *, const struct be_kv_write_args *, struct rc_err *);
enum rc be_cpu_linear(struct be_ctx *, const struct be_linear_args *, struct rc_err *);
/* Bytes of quantized activations a tensor of this shape may need. */
uint64_t be_cpu_act_bytes(uint32_t n_rows, uint32_t n_cols);
/* be_cpu_attn_split.c: whether the keys of s, whose rows item describes as far as they
 * are common to all, can be shared by threads, and that work. */
bool be_cpu_attn_can_split(const struct be_cpu_ctx *c, const struct be_cpu_attn *item,
                           const struct be_seq *s, uint32_t n_heads);
void be_cpu_attn_split(struct be_cpu_ctx *c, const struct be_cpu_attn *item, const struct be_seq *s,
                       uint32_t n_heads);
enum rc be_cpu_attention(struct be_ctx *, const struct be_attention_args *, struct rc_err *);
enum rc be_cpu_attention_packed(struct be_ctx *, const struct be_attention_packed_args *,
                                struct rc_err *);
enum rc be_cpu_embed(struct be_ctx *, const struct be_embed_args *, struct rc_err *);
enum rc be_cpu_rms_norm(struct be_ctx *, const struct be_rms_norm_args *, struct rc_err *);
enum rc be_cpu_layer_norm(struct be_ctx *, const struct be_layer_norm_args *, struct rc_err *);
enum rc be_cpu_rope_op(struct be_ctx *, const struct be_rope_args *, struct rc_err *);
enum rc be_cpu_rope2d(struct be_ctx *, const struct be_rope2d_args *, struct rc_err *);
enum rc be_cpu_gather(struct be_ctx *, const struct be_gather_args *, struct rc_err *);
enum rc be_cpu_softcap(struct be_ctx *, const struct be_softcap_args *, struct rc_err *);
enum rc be_cpu_scale(struct be_ctx *, const struct be_scale_args *, struct rc_err *);
enum rc be_cpu_pool_op(struct be_ctx *, const struct be_pool_args *, struct rc_err *);
enum rc be_cpu_argmax(struct be_ctx *, const struct be_argmax_args *, struct rc_err *);
enum rc be_cpu_act(struct be_ctx *, const struct be_act_args *, struct rc_err *);
enum rc be_cpu_glu(struct be_ctx *, const struct be_glu_args *, struct rc_err *);
enum rc be_cpu_affine(struct be_ctx *, const struct be_affine_args *, struct rc_err *);
enum rc be_cpu_unfold(struct be_ctx *, const struct be_unfold_args *, struct rc_err *);
enum rc be_cpu_conv1d(struct be_ctx *, const struct be_conv1d_args *, struct rc_err *);
enum rc be_cpu_attention_local(struct be_ctx *, const struct be_attention_local_args *,
                               struct rc_err *);
/* be_cpu_attn_rel.c */
enum rc be_cpu_attention_rel(struct be_ctx *, const struct be_attention_rel_args *,
                             struct rc_err *);
enum rc be_cpu_spans(struct be_ctx *, const struct be_spans_args *,
                     struct rc_err *); /* be_cpu_spans.c */
/* Checks "tensor t holds n rows of n_cols" (n_cols 0 = any). */
enum rc be_cpu_check(const struct be_tensor *t, const char *op, const char *what, uint32_t n,
                     uint32_t n_cols, struct rc_err *err);
enum rc be_cpu_check_vec(const struct be_weight *w, const char *op, const char *what,
                         uint64_t n_cols, struct rc_err *err);

#endif
