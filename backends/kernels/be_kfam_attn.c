/* be_kfam_attn.c - the attention family: which kernels there are, how they are cut and
 * launched, and their IR.
 *
 * Paged causal attention in one pass (prefill) and in splits (decode, verification), the
 * merge of splits, attention inside packed sequences and the same with relative positions. head_dim
 * 64, 128, 256 and 512 are compiled in: over f16 and int8 keys with tensor cores (sm_80 and later),
 * over f32 keys exactly. Kernels "any" take each other head_dim, and devices without cp.async, in
 * plain arithmetic. One pass and splits of the same library give the same bits; kernels of
 * different libraries need not.
 *
 * Always true: a tile's keys and the order of sums depend on head_dim and the type of keys
 * only. Tests: tests/backends/test_be_kattn*.c
 */
#include "be_kfam_attn.h"

#include <string.h>

#include "be_kargs.h"

/* ------------------------------------------------------------------ geometry */

/* Tensor cores, head_dim d: 16-row tiles of a warp, warps that share rows, keys of a tile, keys of
 * a split kernel's stage, its stages. 16 rows of 512 columns do not fit one warp's registers. */
#define MT(d) ((d) == 64 ? 2 : 1)
#define CW(d) ((d) == 512 ? 2 : 1)
#define KT(d) ((d) <= 128 ? 64 : (d) == 256 ? 32 : 16)
#define KS(d) ((d) >= 256 ? 32 : 64)
#define NS(d) ((d) == 512 ? 2 : 4)
#define PASS_ROWS(d) (16 * MT(d) * 4 / CW(d))
#define HALVES(keys, d) ((keys) * (d)*2)
#define RAW(keys, d) ((keys) * (d) + (keys) * (d) / 16) /* int8 codes and scales */
#define PASS_BYTES(d, q8)      \
    (HALVES(PASS_ROWS(d), d) + \
     ((q8) ? 2 * HALVES(KT(d), d) + 4 * RAW(KT(d), d) : 4 * HALVES(KT(d), d)))
#define SPLIT_BYTES(d, q8)       \
    (HALVES(16, d) + 16 * 1040 + \
     ((q8) ? NS(d) * RAW(KS(d), d) + HALVES(KS(d), d) : NS(d) * HALVES(KS(d), d)))
/* Plain arithmetic: queries; 32 keys of 64 columns; weights; three factors of a row */
#define SIMT_ROWS(d) ((d) == 64 ? 64 : (d) == 128 || (d) == 256 ? 32 : 16)
#define SIMT_BYTES(d, rows) \
    (4 * ((rows) * (((d) + 63) / 64 * 64 + 4) + 32 * 68 + (rows)*36 + 3 * (rows)))

/* wgmma, 64 columns: two warpgroups of 64 rows; four stages of 64 keys and values, and what aligns
 * them. */
#define WG_ROWS 128
#define WG_THREADS 256
#define WG_BYTES (4 * 2 * HALVES(64, 64) + 1024)

/* Relative positions: 16 rows a warp; behind the rest vectors by distance, on tensor cores of two
 * tiles and what they give, else a chunk of 64 columns of each. */
#define REL_MMA_ROWS 64
#define REL_MMA_BYTES(d) (HALVES(64, d) + 4 * HALVES(64, d) + 4 * HALVES(64, d) + 64 * 84 * 4)
#define REL_SIMT_BYTES(d, rows) (SIMT_BYTES(d, rows) + 2 * 4 * 68 * ((rows) + 31))
#define REL_ANY_DIM 128
/* tf32, 64 columns: two stages of 32 keys and values, three blocks of 32 vectors of both kinds, and
 * what they give. */
#define REL_TF32_BYTES (10 * 32 * 64 * 4 + 64 * 52 * 4)

void be_kattn_geo_get(const struct be_kdesc *d, const struct be_ksched *s, struct be_kattn_geo *out)
{
    uint32_t hd = d->head_dim.fixed ? d->head_dim.max : 0;

    *out = (struct be_kattn_geo){.packed = d->op == BE_KOP_ATTN_PACKED || d->op == BE_KOP_ATTN_REL,
                                 .rel = d->op == BE_KOP_ATTN_REL,
                                 .merge = d->op == BE_KOP_ATTN_MERGE,
                                 .split = d->phase == BE_KPHASE_SPLIT,
                                 .mma = hd && d->numerics != BE_KNUM_EXACT,
                                 .tf32 = d->numerics == BE_KNUM_TF32,
                                 .wg = s->threads == WG_THREADS,
                                 .hd = hd,
                                 .m_rows = s->cols_tile,
                                 .key_tile = s->key_tile,
                                 .mt = d->op == BE_KOP_ATTN_REL ? 1 : MT(hd),
                                 .cw = CW(hd),
                                 .stage_keys = KS(hd),
                                 .stages = NS(hd)};
}

/* -------------------------------------------------------------------- launch */

static uint32_t shared_of(const struct be_kentry *e, uint32_t hd)
{
    return e->desc.head_dim.fixed ? e->sched.shared_bytes : SIMT_BYTES(hd, e->sched.cols_tile);
}

static void grid_pass(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_attn *a = args;

    *out = (struct be_kgrid){a->n_tiles, a->n_heads, 1, BE_KATTN_THREADS,
                             shared_of(e, a->kv.head_dim)};
}

/* The rows of a tile and the heads of a group are spread over blocks of cols_tile pairs. A tile
 * holds at most n_rows - n_tiles + 1 rows, so decoding launches no empty blocks. */
static void grid_split(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_attn *a = args;
    uint32_t rows = a->n_rows - a->n_tiles + 1, pairs;

    if (rows > e->sched.rows_tile)
        rows = e->sched.rows_tile;
    pairs = rows * (a->n_heads / a->kv.n_kv_heads);
    *out = (struct be_kgrid){
        a->n_tiles, (pairs + e->sched.cols_tile - 1) / e->sched.cols_tile * a->kv.n_kv_heads,
        a->n_splits, BE_KATTN_THREADS, shared_of(e, a->kv.head_dim)};
}

static void grid_merge(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_attn *a = args;

    *out = (struct be_kgrid){a->n_rows, a->n_heads, (a->kv.head_dim + 127) / 128, BE_KATTN_THREADS,
                             e->sched.shared_bytes};
}

static void grid_packed(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_attn_packed *a = args;

    *out =
        (struct be_kgrid){a->n_tiles, a->n_heads, 1, e->sched.threads, shared_of(e, a->head_dim)};
}

static void grid_rel(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_attn_packed *a = &((const struct kx_attn_rel *)args)->p;

    *out =
        (struct be_kgrid){a->n_tiles, a->n_heads, 1, BE_KATTN_THREADS,
                          e->desc.head_dim.fixed ? e->sched.shared_bytes
                                                 : REL_SIMT_BYTES(a->head_dim, e->sched.cols_tile)};
}

/* ------------------------------------------------------------------- catalog */

#define COUNT             \
    {                     \
        1, 1u << 20, 1, 0 \
    }

#define FIXED(d) ((struct be_kdim){d, d, 1, 1})
#define ANY(step) ((struct be_kdim){step, BE_KATTN_MAX_DIM, step, 0})

#define SCHED_OF(threads_, rows, pairs, keys, stages_, bytes)                         \
    {                                                                                 \
        .threads = threads_, .rows_tile = rows, .cols_tile = pairs, .key_tile = keys, \
        .stages = stages_, .slices = KX_SLICES, .shared_bytes = bytes                 \
    }
#define SCHED(...) SCHED_OF(BE_KATTN_THREADS, __VA_ARGS__)
#define S_PASS(d, q8) SCHED(PASS_ROWS(d), PASS_ROWS(d), KT(d), 2, PASS_BYTES(d, q8))
#define S_SPLIT(d, q8) SCHED(16, 16, KT(d), NS(d), SPLIT_BYTES(d, q8))
#define S_SIMT(d, rows) SCHED(rows, SIMT_ROWS(d), 32, 1, SIMT_BYTES(d, SIMT_ROWS(d)))

#define PAGED(lib_, dim_, ty_, TY_, ph_, PH_, num_, arch_, grid_, ...)               \
    {                                                                                \
        .name = "kx_attn_" lib_ "_" ty_ "_" ph_, .lib = "attn_" lib_,                \
        .args_bytes = sizeof(struct kx_attn), .min_arch = arch_, .production = true, \
        .grid = grid_, .sched = __VA_ARGS__, .desc = {                               \
            .op = BE_KOP_ATTN,                                                       \
            .act = BE_KACT_ANY,                                                      \
            .out = BE_KACT_ANY,                                                      \
            .mask = BE_KMASK_CAUSAL_WINDOW,                                          \
            .kv_paged = 1,                                                           \
            .kv_dtype = TY_,                                                         \
            .numerics = num_,                                                        \
            .phase = PH_,                                                            \
            .rows = COUNT,                                                           \
            .head_dim = dim_,                                                        \
            .q_heads = COUNT,                                                        \
            .kv_heads = COUNT,                                                       \
            .seq = COUNT                                                             \
        }                                                                            \
    }
#define PASS(lib_, dim_, ty_, TY_, num_, arch_, ...) \
    PAGED(lib_, dim_, ty_, TY_, "pass", BE_KPHASE_ONE_PASS, num_, arch_, grid_pass, __VA_ARGS__)
#define SPLIT(lib_, dim_, ty_, TY_, num_, arch_, ...) \
    PAGED(lib_, dim_, ty_, TY_, "split", BE_KPHASE_SPLIT, num_, arch_, grid_split, __VA_ARGS__)
#define ROWS(kind_, op_, args_, grid_, mask_, lib_, dim_, ty_, act_, num_, arch_, ...)     \
    {                                                                                      \
        .name = "kx_attn_" kind_ "_" lib_ "_" ty_, .lib = "attn_" kind_ "_" lib_,          \
        .args_bytes = sizeof(args_), .min_arch = arch_, .production = true, .grid = grid_, \
        .sched = __VA_ARGS__, .desc = {                                                    \
            .op = op_,                                                                     \
            .act = act_,                                                                   \
            .out = act_,                                                                   \
            .mask = mask_,                                                                 \
            .numerics = num_,                                                              \
            .phase = BE_KPHASE_ONE_PASS,                                                   \
            .rows = COUNT,                                                                 \
            .head_dim = dim_,                                                              \
            .q_heads = COUNT,                                                              \
            .kv_heads = COUNT,                                                             \
            .seq = COUNT                                                                   \
        }                                                                                  \
    }
#define PACKED(...)                                                                              \
    ROWS("packed", BE_KOP_ATTN_PACKED, struct kx_attn_packed, grid_packed, BE_KMASK_BIDI_WINDOW, \
         __VA_ARGS__)
#define REL(...) \
    ROWS("rel", BE_KOP_ATTN_REL, struct kx_attn_rel, grid_rel, BE_KMASK_BIDI, __VA_ARGS__)
#define DIM(lib_, d)                                                                            \
    PASS(lib_, FIXED(d), "f32", BE_F32, BE_KNUM_EXACT, 75, S_SIMT(d, SIMT_ROWS(d))),            \
        SPLIT(lib_, FIXED(d), "f32", BE_F32, BE_KNUM_EXACT, 75, S_SIMT(d, 16)),                 \
        PASS(lib_, FIXED(d), "f16", BE_F16, BE_KNUM_FAST, 80, S_PASS(d, 0)),                    \
        SPLIT(lib_, FIXED(d), "f16", BE_F16, BE_KNUM_FAST, 80, S_SPLIT(d, 0)),                  \
        PASS(lib_, FIXED(d), "q8_0", BE_Q8_0, BE_KNUM_FAST, 80, S_PASS(d, 1)),                  \
        SPLIT(lib_, FIXED(d), "q8_0", BE_Q8_0, BE_KNUM_FAST, 80, S_SPLIT(d, 1)),                \
        PACKED(lib_, FIXED(d), "f32", BE_KACT_F32, BE_KNUM_EXACT, 75, S_SIMT(d, SIMT_ROWS(d))), \
        PACKED(lib_, FIXED(d), "f16", BE_KACT_F16, BE_KNUM_FAST, 80, S_PASS(d, 0))
#define ANY_DIM(step, ty_, TY_, num_)                                         \
    PASS("any", ANY(step), ty_, TY_, num_, 75, S_SIMT(BE_KATTN_MAX_DIM, 16)), \
        SPLIT("any", ANY(step), ty_, TY_, num_, 75, S_SIMT(BE_KATTN_MAX_DIM, 16))

static const struct be_kentry table[] = {
    DIM("d64", 64),
    DIM("d128", 128),
    DIM("d256", 256),
    DIM("d512", 512),
    ANY_DIM(2, "f32", BE_F32, BE_KNUM_EXACT),
    ANY_DIM(2, "f16", BE_F16, BE_KNUM_FAST),
    ANY_DIM(32, "q8_0", BE_Q8_0, BE_KNUM_FAST),
    PACKED("any", ANY(2), "f32", BE_KACT_ANY, BE_KNUM_EXACT, 75, S_SIMT(BE_KATTN_MAX_DIM, 16)),
    PACKED("d64_wg", FIXED(64), "f16", BE_KACT_F16, BE_KNUM_FAST, 90,
           SCHED_OF(WG_THREADS, WG_ROWS, WG_ROWS, 64, 4, WG_BYTES)),
    REL("d64", FIXED(64), "f32", BE_KACT_F32, BE_KNUM_EXACT, 80,
        SCHED(64, 64, 32, 1, REL_SIMT_BYTES(64, 64))),
    REL("d64", FIXED(64), "f16", BE_KACT_F16, BE_KNUM_FAST, 80,
        SCHED(REL_MMA_ROWS, REL_MMA_ROWS, KT(64), 2, REL_MMA_BYTES(64))),
    REL("d64_tf32", FIXED(64), "f32", BE_KACT_F32, BE_KNUM_TF32, 80,
        SCHED(64, 64, 32, 2, REL_TF32_BYTES)),
    REL("any", ((struct be_kdim){2, REL_ANY_DIM, 2, 0}), "f32", BE_KACT_ANY, BE_KNUM_EXACT, 75,
        SCHED(16, 16, 32, 1, REL_SIMT_BYTES(REL_ANY_DIM, 16))),
    {.name = "kx_attn_merge",
     .lib = "attn_merge",
     .args_bytes = sizeof(struct kx_attn),
     .min_arch = 75,
     .production = true,
     .grid = grid_merge,
     .sched = SCHED(1, 1, 32, 1, 2048),
     .desc = {.op = BE_KOP_ATTN_MERGE,
              .act = BE_KACT_ANY,
              .out = BE_KACT_ANY,
              .rows = COUNT,
              .head_dim = ANY(2),
              .q_heads = COUNT,
              .seq = COUNT}},
};

static uint32_t count(void)
{
    return sizeof(table) / sizeof(table[0]);
}

static const struct be_kentry *at(uint32_t i)
{
    return i < count() ? &table[i] : NULL;
}

/* ------------------------------------------------------------------------ IR */

enum { V_Q = 1, V_KV, V_S, V_P, V_A, V_OUT };

static void add(struct be_kir *k, uint8_t depth, uint8_t kind, uint8_t dst, uint8_t a, uint8_t b,
                uint8_t flags, uint32_t imm, uint32_t imm2)
{
    be_kir_add(k, (struct be_knode){.kind = kind,
                                    .depth = depth,
                                    .dst = dst,
                                    .a = a,
                                    .b = b,
                                    .flags = flags,
                                    .imm = imm,
                                    .imm2 = imm2});
}

/* One tile of keys; depth of its LOOP. */
static void add_tile(struct be_kir *k, uint8_t depth)
{
    uint8_t d = (uint8_t)(depth + 1);

    add(k, depth, BE_KN_LOOP, 0, 0, 0, 0, BE_KA_TILE, k->sched.key_tile);
    add(k, d, BE_KN_BARRIER, 0, 0, 0, 0, 0, 0);
    add(k, d, BE_KN_STAGE_KV, V_KV, 0, 0, BE_KF_SHARED, k->desc.kv_dtype, k->desc.kv_paged);
    add(k, d, BE_KN_BARRIER, 0, 0, 0, 0, 0, 0);
    add(k, d, BE_KN_QK, V_S, V_Q, V_KV, 0, k->desc.numerics, 0);
    if (k->desc.op == BE_KOP_ATTN_REL)
        add(k, d, BE_KN_REL, V_S, V_Q, V_KV, 0, k->desc.numerics, 0);
    add(k, d, BE_KN_MASK, V_S, V_S, 0, 0, k->desc.mask, 0);
    add(k, d, BE_KN_ONLINE_SOFTMAX, V_P, V_S, 0, BE_KF_SHARED, 0, 0);
    add(k, d, BE_KN_BARRIER, 0, 0, 0, 0, 0, 0);
    add(k, d, BE_KN_PV, V_A, V_P, V_KV, 0, k->desc.numerics, 0);
}

static enum rc build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    struct be_kir k = {.desc = e->desc, .sched = e->sched};
    size_t n = strlen(e->name);

    if (n >= sizeof(k.name))
        return rc_fail(err, RC_INTERNAL, "kernel name '%s': %zu characters, expected less than %zu",
                       e->name, n, sizeof(k.name));
    memcpy(k.name, e->name, n);
    add(&k, 0, BE_KN_GRID, 0, 0, 0, 0, BE_KU_HEAD_ROW, 0);
    if (e->desc.op == BE_KOP_ATTN_MERGE) {
        add(&k, 1, BE_KN_LOOP, 0, 0, 0, 0, BE_KA_SPLIT, 1);
        add(&k, 2, BE_KN_SPLIT_MERGE, V_OUT, 0, 0, 0, 0, 0);
        add(&k, 1, BE_KN_STORE, 0, V_OUT, 0, 0, e->desc.out, 0);
        *out = k;
        return RC_OK;
    }
    add(&k, 1, BE_KN_LOAD_ACT, V_Q, 0, 0, BE_KF_SHARED, e->desc.act, 0);
    if (e->desc.op == BE_KOP_ATTN_PACKED || e->desc.op == BE_KOP_ATTN_REL) {
        add_tile(&k, 1);
        add(&k, 1, BE_KN_REDUCE, V_OUT, V_A, 0, 0, BE_KR_SLICES, BE_KA_TILE);
        add(&k, 1, BE_KN_STORE, 0, V_OUT, 0, 0, e->desc.out, 0);
    } else {
        add(&k, 1, BE_KN_LOOP, 0, 0, 0, 0, BE_KA_SPLIT, KX_SPLIT);
        add_tile(&k, 2);
        if (e->desc.phase == BE_KPHASE_SPLIT) {
            add(&k, 2, BE_KN_SPLIT_STORE, 0, V_A, 0, 0, 0, 0);
        } else {
            add(&k, 2, BE_KN_SPLIT_MERGE, V_OUT, V_A, 0, 0, 0, 0);
            add(&k, 1, BE_KN_STORE, 0, V_OUT, 0, 0, e->desc.out, 0);
        }
    }
    *out = k;
    return RC_OK;
}

const struct be_kfamily be_kfam_attn = {
    .name = "attn",
    .count = count,
    .at = at,
    .build = build,
    .run = be_kattn_run,
    .cuda_lib = be_kattn_cuda_lib,
    .cuda = be_kattn_cuda,
    .metal_lib = be_kattn_metal_lib,
    .metal = be_kattn_metal,
};
