/* be_kconf_impl.h - what the parts of the conformance runner share: a case, its
 * buffers, the kinds of input. Private to be_kconf*.c. */
#ifndef INFERD_BE_KCONF_IMPL_H
#define INFERD_BE_KCONF_IMPL_H

#include <stdlib.h>
#include <string.h>

#include "be_half.h"
#include "be_kargs.h"
#include "be_kconf.h"

#define KC_MAX_BUFS 24
#define KC_MAX_BINDS 40
#define KC_ARGS_BYTES 1024
#define KC_GUARD 512 /* bytes in front of and behind each buffer that must stay as they are */

enum kc_role {
    KC_IN,     /* unchanged by the launch */
    KC_OUT,    /* every element written */
    KC_INOUT,  /* read and written (in place, accumulated) */
    KC_PART,   /* written in part: what the oracle leaves alone stays as it was */
    KC_SCRATCH /* anything */
};
enum kc_elem { KC_BYTE, KC_I8, KC_I32, KC_F16, KC_F32 };

/* Kinds of input. */
#define KC_INPUT_MAP(X)     \
    X(RANDOM, "random")     \
    X(ZERO, "zero")         \
    X(ONE_HOT, "one-hot")   \
    X(NEG_ZERO, "-0")       \
    X(DENORMAL, "denormal") \
    X(HUGE, "huge")         \
    X(NAN_INF, "NaN+inf")   \
    X(EXTREME, "extreme")   \
    X(SATURATED, "saturated")
enum kc_input {
#define X(name, text) KC_##name,
    KC_INPUT_MAP(X)
#undef X
        KC_INPUT_COUNT
};

struct kc_shape {
    uint32_t rows, k, n, head_dim, q_heads, kv_heads, seq;
};

struct kc_buf {
    uint8_t *init; /* contents before the launch; outputs are poisoned by the runner */
    size_t n;
    size_t at; /* in the image */
    enum kc_role role;
    enum kc_elem elem;
};
struct kc_bind {
    uint32_t field; /* of the argument struct */
    uint32_t buf;
    size_t off;
};

struct kc_case {
    const struct be_kentry *e;
    const struct be_kfamily *fam;
    const struct be_kfamily *const *families;
    struct kc_shape s;
    enum kc_input input;
    uint32_t variant; /* meaning is the builder's; < kc_variants() */
    uint64_t rng;
    _Alignas(16) uint8_t args[KC_ARGS_BYTES];
    struct kc_buf buf[KC_MAX_BUFS];
    struct kc_bind bind[KC_MAX_BINDS];
    uint32_t n_bufs, n_binds;
    bool nomem, overflow; /* checked once, after building */
    const char *cannot;   /* why this case cannot be built: fails it */
    char what[96];        /* the variant in words */
    /* rows of one input that map to rows of the outputs (0 = no such mapping): a changed
     * element of row r may change outputs of row r only */
    uint32_t reach_rows, reach_cols;
    uint32_t reach_buf;
    uint32_t reach_sums; /* not 0: the buffer with the sums of 32 codes, which follow a change */
};

/* A buffer of n elements bound to the field at offset `field` of the argument struct; its
 * index. contents start as zero. */
uint32_t kc_add(struct kc_case *c, size_t field, size_t n, enum kc_elem elem, enum kc_role role);
/* The same buffer (from byte off on) under another field. */
void kc_bind_also(struct kc_case *c, size_t field, uint32_t buf, size_t off);
static inline void *kc_data(struct kc_case *c, uint32_t buf)
{
    return c->buf[buf].init;
}
size_t kc_elem_bytes(enum kc_elem e);

uint32_t kc_rnd(struct kc_case *c);
uint32_t kc_below(struct kc_case *c, uint32_t n); /* [0, n) */
float kc_normal(struct kc_case *c);
/* rows x cols of the case's kind; type KX_F32 or KX_F16. */
void kc_fill(struct kc_case *c, void *dst, uint32_t type, uint32_t rows, uint32_t cols);
/* As kc_fill, always of kind RANDOM. */
void kc_fill_plain(struct kc_case *c, void *dst, uint32_t type, uint32_t rows, uint32_t cols,
                   float scale);
/* Random valid blocks of a matrix; kinds EXTREME and SATURATED shape scales and codes. */
void kc_fill_blocks(struct kc_case *c, enum be_dtype t, uint8_t *p, uint64_t rows, uint32_t cols);
/* A tensor: kc_add + kc_fill. */
uint32_t kc_tensor(struct kc_case *c, size_t field, uint32_t type, uint32_t rows, uint32_t cols,
                   enum kc_role role);
static inline enum kc_elem kc_elem_of(uint32_t type)
{
    return type == KX_F16 ? KC_F16 : KC_F32;
}

/* The i-th choice among what an enum be_kact says: ANY has both types. */
uint32_t kc_type_count(uint8_t act);
uint32_t kc_type_at(uint8_t act, uint32_t i);

/* Builders, one per operation and argument struct: the number of variants and one case. */
struct kc_builder {
    uint8_t op;
    uint32_t args_bytes;
    uint32_t (*variants)(const struct be_kentry *e);
    void (*build)(struct kc_case *c);
    uint32_t inputs;      /* bit per enum kc_input that has a defined result */
    struct kc_shape base; /* wanted sizes of an ordinary case */
    uint64_t (*work)(const struct kc_shape *s); /* multiply-adds of the oracle, roughly */
};
const struct kc_builder *kc_builder_get(uint8_t op, uint32_t args_bytes);
extern const struct kc_builder kc_rows_builders[], kc_linear_builders[], kc_attn_builders[],
    kc_tower_builders[];
extern const uint32_t kc_n_rows_builders, kc_n_linear_builders, kc_n_attn_builders,
    kc_n_tower_builders;

/* Weight planes of a random matrix of type t, bound to four consecutive kx_p fields at
 * `field`; made by the executor of the repack kernel. */
void kc_weight(struct kc_case *c, size_t field, enum be_dtype t, uint32_t rows, uint32_t cols);
/* Activations x (rows x k, kind of the case) as int8, bound to xq xd xs by the executor of the
 * quant kernel; enc KX_ENC_*. */
void kc_quantized(struct kc_case *c, size_t f_xq, size_t f_xd, size_t f_xs, uint32_t enc,
                  uint32_t rows, uint32_t k);

/* Runs the executor of the first kernel of op whose weight format and output fit (-1: any); args
 * with host addresses. false: there is none, or it failed. */
bool kc_run_other(struct kc_case *c, uint8_t op, int wfmt, int out, const void *args);

/* One kx_rope at byte offset `at` of the arguments: x, positions, and by kind norm weight and
 * rotation (KC_ROPE_*). like: the kx_rope at that offset has the same positions and angles; -1 =
 * none has. Returns the buffer of x. */
enum { KC_ROPE_BOTH, KC_ROPE_TURN, KC_ROPE_NORM, KC_ROPE_KINDS };
uint32_t kc_rope(struct kc_case *c, size_t at, int like, uint32_t kind, uint32_t type,
                 uint32_t rows, uint32_t heads, uint32_t head_dim);
/* The buffer bound to a field, or -1. */
int kc_bound(const struct kc_case *c, size_t field);

/* A frozen picture of all buffers with guards; the runner's unit of upload and comparison. */
size_t kc_layout(struct kc_case *c);
void kc_image(const struct kc_case *c, uint8_t *img, size_t n, uint8_t poison);
void kc_args(const struct kc_case *c, uint64_t base, uint8_t out[KC_ARGS_BYTES]);
void kc_deinit(struct kc_case *c);

#define KC_MAX_SHAPES 96
struct kc_plan {
    struct kc_shape s[KC_MAX_SHAPES];
    uint32_t n;
};
/* w brought into the descriptor's ranges, unless it is there already or (but for the first) costs
 * more than budget multiply-adds. */
void kc_plan_add(struct kc_plan *p, const struct kc_builder *b, const struct be_kdesc *d,
                 struct kc_shape w, uint64_t budget);
/* The builder's base first; then one dimension leaves it at a time. */
void kc_plan_shapes(struct kc_plan *p, const struct kc_builder *b, const struct be_kentry *e,
                    bool quick);

struct kc_runner {
    const struct be_kconf_opts *o;
    const struct be_kfamily *const *families;
    const struct be_kfamily *fam;
    struct be_kir ir;
    struct be_kconf_row *row;
    struct be_kconf_tol tol;
    uint8_t *ref, *got, *got2; /* images; grown as needed */
    size_t cap;
    uint64_t dev;
    size_t dev_cap;
};
/* Oracle and two launches of a built case. RC_FORMAT: the kernel is wrong, err says where. */
enum rc kc_one_case(struct kc_runner *r, struct kc_case *c, struct rc_err *err);
/* A changed element of row r changes outputs of that row, and of no other, on the device as by the
 * oracle. c has just passed. */
enum rc kc_reach(struct kc_runner *r, struct kc_case *c, struct rc_err *err);

#endif
