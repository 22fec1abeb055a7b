/* be_cuda.h - private to backends/cuda: the context, its memory, the command list
 * and what the files of this room offer each other.
 *
 * Shape of the room: be_cuda_drv/nvrtc open libraries; be_cuda_mem hands out device
 * memory; be_cuda_mod turns catalog entries into loaded functions; be_cuda_weight, _kv
 * and be_cuda.c make objects; be_cuda_linear, _attn, _rows check an operation and append
 * commands; be_cuda_stage holds the host arrays of those commands; be_cuda_cmd launches the list,
 * be_cuda_graph as a captured graph; be_cuda_read brings results back.
 *
 * Always true: a command's arguments hold device addresses only, fixed from load on, so
 * equal lists are equal bytes; after be_ctx_seal nothing is allocated, loaded or
 * compiled; after a sticky error every call fails.
 */
#ifndef INFERD_BE_CUDA_H
#define INFERD_BE_CUDA_H

#include "be.h"
#include "be_cuda_drv.h"
#include "be_impl.h"
#include "be_kargs.h"
#include "be_kplan.h"

#define BE_CUDA_ALIGN 256u
#define BE_CUDA_CMDS 2048u             /* commands of one list */
#define BE_CUDA_ARGS (768u << 10)      /* their arguments */
#define BE_CUDA_MAPPED_COLS (1u << 17) /* longest row of a table that stays on the host */
#define BE_CUDA_STAGE (4u << 20)       /* host arrays of one list */
#define BE_CUDA_READ (4u << 20)        /* pinned bytes of one read back */
#define BE_CUDA_LOAD (8u << 20)        /* one buffer of a weight's upload */
#define BE_CUDA_SEQS 4096u             /* sequences of one operation */
#define BE_CUDA_GRAPHS 32u             /* captured lists kept */
#define BE_CUDA_SMALL_ROWS 8u          /* rows of a sequence that still count as decoding */
#define BE_CUDA_FNS 256u               /* loaded kernels */
#define BE_CUDA_F16_COLS 32768u        /* wider tensors stay f32 with compute = f16 */
#define BE_CUDA_LIBS 64u               /* loaded modules */
/* dynamic shared memory no kernel has to ask for: 48 KiB less what may be static */
#define BE_CUDA_DYN (32u << 10)

enum be_cuda_kind { BE_CUDA_WEIGHT, BE_CUDA_KV, BE_CUDA_WORK, BE_CUDA_UPLOAD, BE_CUDA_KINDS };

struct be_cuda_block; /* one cuMemAlloc */
struct be_cuda_mem {
    cu_ptr p; /* 0 = none */
    uint64_t n;
    struct be_cuda_block *block;
};

struct be_cuda_fn {
    const struct be_kentry *e;
    cu_fn fn;
    uint32_t dyn_bytes; /* dynamic shared memory it was allowed so far */
    enum be_kroute_kind route;
    bool waits; /* calls kx_wait: may begin while the kernel before it runs */
};

struct be_tensor {
    uint32_t cap_rows, n_cols;
    struct be_cuda_mem mem; /* f32 sized, also when it holds f16 */
    uint32_t type;          /* KX_F32, KX_F16: what it holds now */
    uint64_t version;       /* counts writes */
    uint64_t gen;           /* list in which command cmd wrote it last */
    uint32_t cmd;
};

struct be_weight {
    char name[96];
    enum be_dtype dtype, stored; /* in the file, on the device */
    uint64_t n_rows, n_cols;
    unsigned use;
    uint32_t n_planes;
    struct be_cuda_mem plane[4];
    struct be_cuda_mem vec; /* BE_USE_VECTOR: f32 */
    const uint8_t *mapped;  /* BE_USE_MAPPED: the caller's rows; embed reads f32 ones */
    /* what the planner named for this matrix; of numerics but exact, NULL: none */
    struct be_cuda_fn *lin[BE_KNUM_COUNT][BE_KCLASS_COUNT][2]; /* [numerics][class][geglu] */
    struct be_cuda_fn *embed;
    /* run-time compiled kernels of this shape, by class and gate (be_cuda_jit.c) */
    bool jit_wanted[2];
    uint32_t jit_gen;
    struct be_cuda_fn *jit[BE_KCLASS_COUNT][2];
};

struct be_cuda_layer {
    uint32_t cls, n_kv_heads, head_dim, scales_at;
    uint64_t k_off, v_off; /* bytes from a page's start */
    struct be_cuda_fn *pass, *split;
};

struct be_kv {
    uint32_t n_layers, n_classes, page_tokens, page_shift;
    enum be_dtype dtype;
    struct be_cuda_layer *layers;
    uint32_t n_pages[BE_KV_CLASSES];
    uint64_t page_bytes[BE_KV_CLASSES];
    struct be_cuda_mem base[BE_KV_CLASSES];
};

/* -------------------------------------------------------------- command list */

struct be_cuda_ctx;
struct be_cuda_cmd { /* a launch */
    struct be_cuda_fn *fn;
    uint32_t args_at, args_bytes;
    struct be_kgrid grid;
    uint32_t pad;
};

struct be_cuda_list {
    struct be_cuda_cmd *cmd; /* [BE_CUDA_CMDS] */
    uint8_t *args;           /* [BE_CUDA_ARGS] */
    uint32_t n, args_used;
    uint64_t gen; /* number of this list, from 1 */
    bool early;   /* a first part of the pass was launched; until the next wait */
};

/* The sequences of an operation over the cache, as they lie in staging. */
#define BE_CUDA_TABS 8
#define BE_CUDA_TILES 6
struct be_cuda_tab {
    const struct be_kv *kv;
    uint32_t cls, n_seqs, window;
    bool write;                 /* kv_write's: from the page of the first new position on */
    uint32_t n_rows;            /* last row + 1 */
    uint32_t seqs_at, pages_at; /* offsets in staging */
    uint32_t row_seq_at;        /* 0 = not made */
    uint32_t n_tiles;
    struct {
        uint32_t rows, at, n, seq0, seq1;
        bool small;
    } tiles[BE_CUDA_TILES];
};

#define BE_CUDA_INTERNED 8
struct be_cuda_stage {
    uint8_t *host[2]; /* pinned */
    cu_event done[2]; /* its upload has ended */
    bool pending[2];
    unsigned cur;
    uint32_t used;
    struct be_cuda_mem dev;
    /* arrays of this list that may be asked for again */
    struct {
        uint32_t at, n_bytes;
    } same[BE_CUDA_INTERNED];
    uint32_t n_same;
    struct be_cuda_tab tab[BE_CUDA_TABS];
    uint32_t n_tabs, next_tab;
    struct { /* tiles of packed sequences whose offsets lie at off */
        cu_ptr off;
        uint32_t n_seqs, rows, at, n;
    } packed;
};

struct be_cuda_graphs; /* be_cuda_graph.c */

/* Rows quantized to int8, of one encoding; which tensor's they are. */
struct be_cuda_act {
    struct be_cuda_mem mem;
    bool wanted; /* some weight needs this encoding */
    const struct be_tensor *x;
    uint64_t version, gen;
    uint32_t n;
    uint32_t last_use; /* command that read or wrote the buffer last */
};

struct be_cuda_freq {
    float theta, factor;
    uint32_t head_dim, n_pairs;
    struct be_cuda_mem mem;
};
#define BE_CUDA_FREQS 8

/* Attention without a cache, with and without relative positions. */
#define BE_CUDA_PACKED 8
struct be_cuda_packed {
    enum be_kop op;
    uint32_t head_dim, type;
    struct be_cuda_fn *fn;
};

/* kernels every model may need */
enum be_cuda_k {
    BE_CK_QUANT,
    BE_CK_RMS_NORM,
    BE_CK_LAYER_NORM,
    BE_CK_ROPE,
    BE_CK_ROPE_KV,
    BE_CK_KV_WRITE,
    BE_CK_GATHER,
    BE_CK_SOFTCAP,
    BE_CK_SCALE,
    BE_CK_POOL,
    BE_CK_ARGMAX_PART,
    BE_CK_ARGMAX,
    BE_CK_SAMPLE_PART,
    BE_CK_SAMPLE,
    BE_CK_MUL,
    BE_CK_COUNT
};

struct be_cuda_lib {
    const struct be_kart *art;
    cu_mod mod;
};

struct be_cuda_ctx {
    struct be_ctx base;
    const struct be_cuda_drv *d;
    int device;
    cu_ctx cu;
    cu_stream stream;
    uint32_t arch, n_sm;
    char device_name[64];
    size_t device_total; /* bytes of its memory */
    bool lost;
    char lost_why[256];
    bool f16, tf32;          /* opts.compute */
    bool no_fuse, no_graphs; /* INFERD_CUDA_FUSE=0, INFERD_CUDA_GRAPHS=0 */
    bool overlap;            /* kernels of a list overlap (unless INFERD_CUDA_OVERLAP=0) */

    /* memory */
    struct be_cuda_block *blocks[BE_CUDA_KINDS];
    uint64_t mem[BE_CUDA_KINDS], device_bytes, workspace_limit, hot_allocs, ops;
    struct { /* uploads of weights; gone at the seal */
        uint8_t *host[2];
        cu_event done[2];
        bool pending[2];
        struct be_cuda_mem raw[2];
        unsigned cur;
    } load;

    /* kernels */
    struct be_cuda_lib lib[BE_CUDA_LIBS];
    uint32_t n_libs;
    struct be_cuda_fn fn[BE_CUDA_FNS];
    uint32_t n_fns;
    struct be_cuda_fn *k[BE_CK_COUNT];
    struct be_cuda_packed packed[BE_CUDA_PACKED];
    struct be_cuda_fn *merge; /* attention partials */

    struct be_cuda_list list;
    struct be_cuda_stage stage;
    struct be_cuda_graphs *graphs;
    struct be_cuda_jit *jit; /* NULL = off */
    uint8_t *read;           /* pinned [BE_CUDA_READ] */

    /* scratch */
    struct be_cuda_act act[2]; /* by KX_ENC_* */
    uint64_t act_want[2];
    struct be_cuda_mem part; /* attention partials */
    struct be_cuda_mem pair; /* gate and up of two formats, f32 */
    struct be_cuda_mem pick; /* arg-max, sampling */
    struct be_cuda_freq freq[BE_CUDA_FREQS];

    struct be_kstats ks;
};

static inline struct be_cuda_ctx *be_cuda(struct be_ctx *ctx)
{
    return (struct be_cuda_ctx *)(void *)ctx;
}

static inline uint64_t be_cuda_up(uint64_t n)
{
    return (n + BE_CUDA_ALIGN - 1) & ~(uint64_t)(BE_CUDA_ALIGN - 1);
}

/* Place of a type in BE_DTYPE_MAP; BE_KSTAT_FORMATS when unknown. */
unsigned be_cuda_fmt(enum be_dtype t);

/* ---- be_cuda.c */
/* Judges a driver's answer; a sticky error loses the context. */
enum rc be_cuda_do(struct be_cuda_ctx *c, int code, const char *doing, struct rc_err *err);
/* RC_INTERNAL when the context is lost; else makes it the thread's. */
enum rc be_cuda_enter(struct be_cuda_ctx *c, struct rc_err *err);

/* ---- be_cuda_mem.c */
enum rc be_cuda_alloc(struct be_cuda_ctx *c, enum be_cuda_kind kind, uint64_t n_bytes,
                      struct be_cuda_mem *out, const char *what, struct rc_err *err);
void be_cuda_free(struct be_cuda_ctx *c, enum be_cuda_kind kind, struct be_cuda_mem *m);
enum rc be_cuda_host_alloc(struct be_cuda_ctx *c, uint64_t n_bytes, void *out, const char *what,
                           struct rc_err *err);
void be_cuda_host_free(struct be_cuda_ctx *c, void *p);
void be_cuda_mem_end(struct be_cuda_ctx *c); /* whatever is left */

/* ---- be_cuda_mod.c */
/* The kernel that the planner names for r on this device (r->arch is not read), loaded.
 * Errors: RC_UNSUPPORTED no such kernel, or no artifact of it in this build; RC_INTERNAL asked for
 * after the seal. */
enum rc be_cuda_fn_plan(struct be_cuda_ctx *c, const struct be_kplan_req *r,
                        struct be_cuda_fn **out, struct rc_err *err);
/* The loaded function of that entry or of a copy of it; NULL: none. */
struct be_cuda_fn *be_cuda_fn_of(struct be_cuda_ctx *c, const struct be_kentry *e);
enum rc be_cuda_mod_init(struct be_cuda_ctx *c, struct rc_err *err);
void be_cuda_mod_end(struct be_cuda_ctx *c);

/* ---- be_cuda_weight.c */
bool be_cuda_supports(const struct be_ctx *, enum be_dtype, unsigned use);
enum rc be_cuda_weight_new(struct be_ctx *, const struct be_weight_desc *, struct be_weight **,
                           struct rc_err *);
void be_cuda_weight_free(struct be_ctx *, struct be_weight **);
void be_cuda_load_end(struct be_cuda_ctx *c); /* frees the upload buffers */
/* Host bytes to the device through the pinned upload buffers; returns when src may go. */
enum rc be_cuda_upload(struct be_cuda_ctx *c, cu_ptr dst, const void *src, uint64_t n,
                       struct rc_err *err);
/* All of tensor t, as be_cpu_check; of a vector. */
enum rc be_cuda_check_tensor(const struct be_tensor *t, const char *op, const char *what,
                             uint32_t n, uint32_t n_cols, struct rc_err *err);
enum rc be_cuda_check_vec(const struct be_weight *w, const char *op, const char *what,
                          uint64_t n_cols, struct rc_err *err);

/* ---- be_cuda_kv.c */
enum rc be_cuda_kv_new(struct be_ctx *, const struct be_kv_desc *, struct be_kv **,
                       struct rc_err *);
void be_cuda_kv_free(struct be_ctx *, struct be_kv **);
struct kx_kv be_cuda_kv_args(const struct be_kv *kv, const struct be_cuda_layer *l);

/* ---- be_cuda_stage.c */
enum rc be_cuda_stage_init(struct be_cuda_ctx *c, struct rc_err *err);
void be_cuda_stage_end(struct be_cuda_ctx *c);
void be_cuda_stage_reset(struct be_cuda_ctx *c); /* after the list was launched */
/* Room for n bytes; host pointer, *at its offset. NULL: be_cuda_room was not asked. */
void *be_cuda_stage_take(struct be_cuda_ctx *c, uint32_t n_bytes, uint32_t *at);
/* A copy of src in staging, shared with an equal one of this list. */
enum rc be_cuda_stage_put(struct be_cuda_ctx *c, const void *src, uint64_t n_bytes, cu_ptr *out,
                          struct rc_err *err);
/* The sequences as a table for kv_write, or for attention with that window (0 = none), their
 * positions counted from a multiple of KX_SPLIT. Pages that are needed are checked. */
enum rc be_cuda_stage_seqs(struct be_cuda_ctx *c, const struct be_kv *kv, uint32_t cls,
                           const struct be_seq *seqs, uint32_t n_seqs, bool write, uint32_t window,
                           const char *op, struct be_cuda_tab **out, struct rc_err *err);
/* Bytes of staging those calls take at most, for be_cuda_room. */
uint64_t be_cuda_stage_seq_bytes(const struct be_kv *kv, const struct be_seq *seqs, uint32_t n_seqs,
                                 bool write, uint32_t window);
/* Tiles of at most rows rows over the sequences with at most (small) or more than
 * BE_CUDA_SMALL_ROWS rows; seq0..seq1 bound the sequences. */
enum rc be_cuda_stage_tiles(struct be_cuda_ctx *c, struct be_cuda_tab *t, uint32_t rows, bool small,
                            uint32_t seq0, uint32_t seq1, cu_ptr *out, uint32_t *out_n,
                            struct rc_err *err);
enum rc be_cuda_stage_row_seq(struct be_cuda_ctx *c, struct be_cuda_tab *t, cu_ptr *out,
                              struct rc_err *err);

static inline cu_ptr be_cuda_stage_addr(const struct be_cuda_ctx *c, uint32_t at)
{
    return c->stage.dev.p + at;
}

/* ---- be_cuda_cmd.c */
enum rc be_cuda_list_init(struct be_cuda_ctx *c, struct rc_err *err);
void be_cuda_list_end(struct be_cuda_ctx *c);
/* Appends a launch of f with its arguments; nothing when its grid is empty. */
enum rc be_cuda_push(struct be_cuda_ctx *c, struct be_cuda_fn *f, const void *args,
                     struct rc_err *err);
/* Launches f at once, past the list, and counts no dispatch: loading and trials. */
enum rc be_cuda_run(struct be_cuda_ctx *c, struct be_cuda_fn *f, const void *args,
                    struct rc_err *err);
/* Takes the last n commands back. */
void be_cuda_pop(struct be_cuda_ctx *c, uint32_t n);
/* Makes room for n_cmds commands and stage_bytes of staging, launching what is pending if need be,
 * or because a first part of the pass is long enough. RC_INVALID when it could never fit. */
enum rc be_cuda_room(struct be_cuda_ctx *c, uint32_t n_cmds, uint64_t stage_bytes, const char *op,
                     struct rc_err *err);
/* Launches what is pending; does not wait. */
enum rc be_cuda_flush(struct be_cuda_ctx *c, struct rc_err *err);
/* Before an object goes: launches what may name it and waits; failures show later. */
void be_cuda_settle(struct be_cuda_ctx *c);
/* Waits for the stream. */
enum rc be_cuda_wait(struct be_cuda_ctx *c, struct rc_err *err);
/* Launches every command of the list on the stream. */
enum rc be_cuda_list_launch(struct be_cuda_ctx *c, struct rc_err *err);
/* The last command wrote t. */
void be_cuda_wrote(struct be_cuda_ctx *c, struct be_tensor *t, uint32_t type);
/* The arguments of command i, for fusions. */
static inline void *be_cuda_args(struct be_cuda_ctx *c, uint32_t i)
{
    return c->list.args + c->list.cmd[i].args_at;
}

/* ---- be_cuda_graph.c */
enum rc be_cuda_graphs_init(struct be_cuda_ctx *c, struct rc_err *err);
void be_cuda_graphs_end(struct be_cuda_ctx *c);
/* Runs the list as a graph when it is known; *done false: the caller launches it. */
enum rc be_cuda_graph_run(struct be_cuda_ctx *c, bool *done, struct rc_err *err);

/* ---- be_cuda_jit.c */
enum rc be_cuda_jit_new(struct be_cuda_ctx *c, const struct be_opts *o, struct rc_err *err);
void be_cuda_jit_free(struct be_cuda_ctx *c);
void be_cuda_jit_seal(struct be_cuda_ctx *c);
char *be_cuda_jit_report(const struct be_cuda_ctx *c);
void be_cuda_jit_stats(const struct be_cuda_ctx *c, struct be_kstats *io);
/* Remembers the product (glu: the gated pair) for the next run; while loading only. */
enum rc be_cuda_jit_want(struct be_cuda_ctx *c, struct be_weight *w, bool glu, struct rc_err *err);
/* Compiles, checks and times what is wanted. Mode exact: fails the load. */
enum rc be_cuda_jit_run(struct be_cuda_ctx *c, struct rc_err *err);
/* The winner, or NULL. */
struct be_cuda_fn *be_cuda_jit_fn(struct be_cuda_ctx *c, struct be_weight *w, enum be_kclass cls,
                                  bool glu);

/* ---- be_cuda_linear.c */
enum rc be_cuda_linear(struct be_ctx *, const struct be_linear_args *, struct rc_err *);
/* Loads the kernels that products of this matrix need. */
enum rc be_cuda_linear_load(struct be_cuda_ctx *c, struct be_weight *w, struct rc_err *err);
/* Room for quantized rows of a tensor of this shape. */
enum rc be_cuda_act_reserve(struct be_cuda_ctx *c, uint32_t cap_rows, uint32_t n_cols,
                            struct rc_err *err);

/* ---- be_cuda_attn.c */
enum rc be_cuda_attention(struct be_ctx *, const struct be_attention_args *, struct rc_err *);
enum rc be_cuda_attention_rel(struct be_ctx *, const struct be_attention_rel_args *,
                              struct rc_err *);
enum rc be_cuda_attention_packed(struct be_ctx *, const struct be_attention_packed_args *,
                                 struct rc_err *);

/* ---- be_cuda_rows.c */
enum rc be_cuda_embed(struct be_ctx *, const struct be_embed_args *, struct rc_err *);
enum rc be_cuda_rms_norm(struct be_ctx *, const struct be_rms_norm_args *, struct rc_err *);
enum rc be_cuda_layer_norm(struct be_ctx *, const struct be_layer_norm_args *, struct rc_err *);
enum rc be_cuda_rope(struct be_ctx *, const struct be_rope_args *, struct rc_err *);
enum rc be_cuda_kv_write(struct be_ctx *, const struct be_kv_write_args *, struct rc_err *);
enum rc be_cuda_gather(struct be_ctx *, const struct be_gather_args *, struct rc_err *);
enum rc be_cuda_softcap(struct be_ctx *, const struct be_softcap_args *, struct rc_err *);
enum rc be_cuda_scale(struct be_ctx *, const struct be_scale_args *, struct rc_err *);
enum rc be_cuda_pool(struct be_ctx *, const struct be_pool_args *, struct rc_err *);

/* At most BE_CUDA_SEQS sequences whose rows lie in t. */
enum rc be_cuda_check_seqs(const struct be_seq *seqs, uint32_t n_seqs, const struct be_tensor *t,
                           const char *op, struct rc_err *err);

/* ---- be_cuda_read.c */
enum rc be_cuda_tensor_write(struct be_ctx *, struct be_tensor *, uint32_t, uint32_t, const float *,
                             struct rc_err *);
enum rc be_cuda_tensor_read(struct be_ctx *, const struct be_tensor *, uint32_t, uint32_t, float *,
                            struct rc_err *);
enum rc be_cuda_pick_init(struct be_cuda_ctx *c, struct rc_err *err);
enum rc be_cuda_argmax(struct be_ctx *, const struct be_argmax_args *, struct rc_err *);
enum rc be_cuda_sample(struct be_ctx *, const struct be_sample_args *, struct rc_err *);

#endif
