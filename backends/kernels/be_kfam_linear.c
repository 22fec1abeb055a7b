/* be_kfam_linear.c - the linear family: which kernels exist, their launch geometry, their IR.
 *
 * Per format one library, linear_<format>, with kx_linear_<format>_<class>[_geglu] and, for
 * quantized formats, kx_repack_<format>. Classes: mv (1 row), ext (2 to 8), mm (9 and more), big
 * (65 and more; sm_80), all with the same bits, and any of them right for any number of rows.
 * The _geglu kernels take two parts to one output, the others one to three parts and any of the
 * other epilogues. f16 also has fast_mm and fast_few (products of halves on tensor cores), f32 has
 * tf32_mm and tf32_few (the same of floats rounded to tf32).
 *
 * Arithmetic: docs/kernels.md. Planes: be_klayout.c. Change freely: schedules. Change with care:
 * names (be_kplan.c spells them) and the tree (its order is the order of sums).
 * Tests: tests/backends/test_be_klinear.c
 */
#include "be_klinear.h"

#include <string.h>

#include "be_kargs.h"

static const struct be_klin_fmt fmts[] = {
    {BE_F32, "f32", BE_KLC_FLOAT, 4, 0, false, 0},   {BE_F16, "f16", BE_KLC_FLOAT, 2, 0, false, 0},
    {BE_BF16, "bf16", BE_KLC_FLOAT, 2, 0, false, 0}, {BE_Q4_0, "q4_0", BE_KLC_32, 16, 0, false, 8},
    {BE_Q4_1, "q4_1", BE_KLC_32, 16, 0, true, 0},    {BE_Q5_0, "q5_0", BE_KLC_32, 16, 4, false, 16},
    {BE_Q5_1, "q5_1", BE_KLC_32, 16, 4, true, 0},    {BE_Q8_0, "q8_0", BE_KLC_32, 32, 0, false, 0},
    {BE_Q4_K, "q4_k", BE_KLC_256, 16, 0, true, 0},   {BE_Q5_K, "q5_k", BE_KLC_256, 16, 4, true, 0},
    {BE_Q6_K, "q6_k", BE_KLC_256, 16, 8, false, 32},
};

const struct be_klin_fmt *be_klin_fmt_get(uint32_t dtype)
{
    for (size_t i = 0; i < sizeof(fmts) / sizeof(fmts[0]); i++)
        if ((uint32_t)fmts[i].dtype == dtype)
            return &fmts[i];
    return NULL;
}

/* ------------------------------------------------------------- geometry */

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Column tiles of all parts; a gated pair shares a tile, half of it each. */
static uint32_t col_tiles(const struct be_kentry *e, const struct kx_linear *a)
{
    uint32_t n = 0;

    if (e->desc.epi == KX_EPI_GEGLU)
        return ceil_div(a->n_out[0], e->sched.cols_tile / 2);
    for (uint32_t i = 0; i < a->n_parts; i++)
        n += ceil_div(a->n_out[i], e->sched.cols_tile);
    return n;
}

/* Blocks of a mat-vec beyond which each takes several tiles in turn, so that the row is staged
 * less often. */
#define MV_BLOCKS 2112u

static void grid_mv(const struct be_kentry *e, const void *args, struct be_kgrid *g)
{
    const struct kx_linear *a = args;
    uint32_t tiles = col_tiles(e, a), per = ceil_div(tiles, MV_BLOCKS), chunk, bytes;

    if (e->desc.act == BE_KACT_ANY) {
        chunk = e->sched.rows_tile == 1 ? BE_KLIN_MV_FLOATS : BE_KLIN_EXT_FLOATS;
        bytes = 4 * e->sched.rows_tile;
    } else {
        chunk = BE_KLIN_MV_CODES;
        bytes = 1;
    }
    chunk = a->k < chunk ? (a->k + 7) / 8 * 8 : chunk;
    g->x = ceil_div(tiles, per ? per : 1);
    if (be_dtype_block((enum be_dtype)e->desc.wfmt) == 32 && a->xq) {
        if (e->desc.epi != KX_EPI_GEGLU && tiles <= BE_KLIN_MV_FEW)
            g->x = tiles * BE_KLIN_MV_WIDE;
        if (e->desc.epi == KX_EPI_GEGLU && a->k >= BE_KLIN_MV_STREAM / 2 &&
            a->k <= BE_KLIN_MV_STREAM)
            g->x = 2 * tiles < BE_KLIN_MV_STAY ? 2 * tiles : BE_KLIN_MV_STAY;
    }
    g->y = e->desc.act == BE_KACT_ANY ? ceil_div(a->n, e->sched.rows_tile) : a->n;
    g->z = 1;
    g->threads = e->sched.threads;
    g->shared_bytes = bytes == 1 ? chunk / 32 * 40 : chunk * bytes;
}

static void grid_tile(const struct be_kentry *e, const void *args, struct be_kgrid *g)
{
    const struct kx_linear *a = args;

    g->x = col_tiles(e, a);
    g->y = ceil_div(a->n, e->sched.rows_tile);
    g->z = 1;
    g->threads = e->sched.threads;
    g->shared_bytes = e->sched.shared_bytes;
}

/* A thread takes one sub-block of 32 columns. */
static void grid_repack(const struct be_kentry *e, const void *args, struct be_kgrid *g)
{
    const struct kx_repack *a = args;

    g->x = ceil_div(a->k / 32, e->sched.threads);
    g->y = a->n_rows < 65535 ? a->n_rows : 65535;
    g->z = 1;
    g->threads = e->sched.threads;
    g->shared_bytes = 0;
}

/* -------------------------------------------------------------- catalog */

#define LINEAR(w, WFMT, ACT, KMULT, NUM, CLASS, suffix, EPI, RCLASS, RMIN, RMAX, THREADS, RT, CT,  \
               STAGES, SLICES, SHARED, ARCH, GRID)                                                 \
    {                                                                                              \
        .name = "kx_linear_" w "_" CLASS suffix, .lib = "linear_" w,                               \
        .desc = {.op = BE_KOP_LINEAR,                                                              \
                 .wfmt = WFMT,                                                                     \
                 .act = ACT,                                                                       \
                 .epi = EPI,                                                                       \
                 .out = (NUM) == BE_KNUM_TF32 ? BE_KACT_F32 : BE_KACT_ANY,                         \
                 .rows_class = RCLASS,                                                             \
                 .numerics = NUM,                                                                  \
                 .rows = {RMIN, RMAX, 1, 0},                                                       \
                 .k = {KMULT, 1u << 20, KMULT, 0},                                                 \
                 .n = {1, 1u << 24, 1, 0}},                                                        \
        .sched = {.threads = THREADS,                                                              \
                  .rows_tile = RT,                                                                 \
                  .cols_tile = CT,                                                                 \
                  .stages = STAGES,                                                                \
                  .slices = SLICES,                                                                \
                  .shared_bytes = SHARED},                                                         \
        .args_bytes = sizeof(struct kx_linear), .min_arch = ARCH, .production = true, .grid = GRID \
    }

#define BOTH(w, WFMT, ACT, KMULT, CLASS, RCLASS, RMIN, RMAX, ...)                                 \
    LINEAR(w, WFMT, ACT, KMULT, BE_KNUM_EXACT, CLASS, "", 0xff, RCLASS, RMIN, RMAX, __VA_ARGS__), \
        LINEAR(w, WFMT, ACT, KMULT, BE_KNUM_EXACT, CLASS, "_geglu", BE_EPI_GEGLU, RCLASS, RMIN,   \
               RMAX, __VA_ARGS__)

#define REPACK(w, WFMT, KMULT)                                                                 \
    {                                                                                          \
        .name = "kx_repack_" w, .lib = "linear_" w,                                            \
        .desc = {.op = BE_KOP_REPACK,                                                          \
                 .wfmt = WFMT,                                                                 \
                 .act = BE_KACT_ANY,                                                           \
                 .out = BE_KACT_ANY,                                                           \
                 .rows = {1, 1u << 24, 1, 0},                                                  \
                 .k = {KMULT, 1u << 20, KMULT, 0}},                                            \
        .sched = {.threads = 128, .rows_tile = 1, .cols_tile = 128, .stages = 1, .slices = 1}, \
        .args_bytes = sizeof(struct kx_repack), .min_arch = 75, .production = true,            \
        .grid = grid_repack                                                                    \
    }

/* EXT, MM, BIG: bytes of one stage (KXL_STAGE of kx_linear_tile.cu) of the tiles 16 x 8, 32 x 32
 * and 64 x 64; _N: how many stages. */
#define QUANT(w, WFMT, ACT, KMULT, EXT, EXT_N, MM, MM_N, BIG, BIG_N)                               \
    REPACK(w, WFMT, KMULT),                                                                        \
        BOTH(w, WFMT, ACT, KMULT, "mv", BE_KROWS_1, 1, 1, 128, 1, 16, 1, KX_SLICES,                \
             BE_KLIN_MV_CODES / 32 * 40, 75, grid_mv),                                             \
        BOTH(w, WFMT, ACT, KMULT, "ext", BE_KROWS_2_8, 2, 8, 32, 8, 16, EXT_N, KX_SLICES,          \
             (EXT) * (EXT_N), 75, grid_tile),                                                      \
        BOTH(w, WFMT, ACT, KMULT, "mm", BE_KROWS_9_64, 9, 64, 128, 32, 32, MM_N, KX_SLICES,        \
             (MM) * (MM_N), 75, grid_tile),                                                        \
        BOTH(w, WFMT, ACT, KMULT, "big", BE_KROWS_65, 65, 1u << 20, 256, 64, 64, BIG_N, KX_SLICES, \
             (BIG) * (BIG_N), 80, grid_tile)
#define STAGE_32(BW, BX, code, d, bits, s) \
    ((BW) * (8 * (code) + 8 * (d) + 8 * (bits)) + (BX) * (256 + 32 + (s)))
#define QUANT_32(w, WFMT, code, d, bits, s)                                          \
    QUANT(w, WFMT, BE_KACT_Q8_0, 32, STAGE_32(16, 8, code, d, bits, s), 4,           \
          STAGE_32(32, 32, code, d, bits, s), 2, STAGE_32(64, 64, code, d, bits, s), \
          (code) == 32 ? 2 : 3)
#define STAGE_256(BW, BX, bits, s) ((BW) * (128 + 16 + 16 + 8 * (bits)) + (BX) * (256 + 4 + (s)))
#define QUANT_256(w, WFMT, bits, s)                                                                \
    QUANT(w, WFMT, BE_KACT_Q8_K, 256, STAGE_256(16, 8, bits, s), 4, STAGE_256(32, 32, bits, s), 2, \
          STAGE_256(64, 64, bits, s), 3)

#define STAGE_F(BW, BX, code) ((BW) * (64 * (code) + 16) + (BX)*272)
#define FLOATS(w, WFMT, code)                                                                   \
    BOTH(w, WFMT, BE_KACT_ANY, 1, "mv", BE_KROWS_1, 1, 1, 128, 1, 16, 1, KX_SLICES,             \
         BE_KLIN_MV_FLOATS * 4, 75, grid_mv),                                                   \
        BOTH(w, WFMT, BE_KACT_ANY, 1, "ext", BE_KROWS_2_8, 2, 8, 128, 8, 16, 1, KX_SLICES,      \
             BE_KLIN_EXT_FLOATS * 32, 75, grid_mv),                                             \
        BOTH(w, WFMT, BE_KACT_ANY, 1, "mm", BE_KROWS_9_64, 9, 64, 256, 16, 32, 3, KX_SLICES,    \
             3 * STAGE_F(32, 16, code), 75, grid_tile),                                         \
        BOTH(w, WFMT, BE_KACT_ANY, 1, "big", BE_KROWS_65, 65, 1u << 20, 256, 64, 64,            \
             (code) == 4 ? 2 : 3, KX_SLICES, ((code) == 4 ? 2 : 3) * STAGE_F(64, 64, code), 80, \
             grid_tile)
/* stages of 128 bytes of columns: 64 halves or 32 floats */
#define FAST(w, WFMT, ACT, NUM, CLASS, ...)                     \
    LINEAR(w, WFMT, ACT, 1, NUM, CLASS, "", 0xff, __VA_ARGS__), \
        LINEAR(w, WFMT, ACT, 1, NUM, CLASS, "_geglu", BE_EPI_GEGLU, __VA_ARGS__)
#define FAST_FEW BE_KROWS_ANY, 1, 64, 64, 32, 16, 4, 1, 4 * 48 * 128
#define FAST_MM BE_KROWS_65, 65, 1u << 20, 128, 128, 128, 3, 1, 3 * 256 * 128, 80, grid_tile

/* Products of halves with wgmma, whole rows of 8 only; a library of its own: exactly sm_90. 4
 * stages of (128 + 256) rows of 128 bytes, 256 biases, barriers, and what aligns them. */
#define WG_SHARED (4 * 384 * 128 + 64 + 1024 + 1024)
/* One block for each multiprocessor of the largest sm_90; each takes tile after tile. */
#define WG_BLOCKS 132u
static void grid_wg(const struct be_kentry *e, const void *args, struct be_kgrid *g)
{
    uint64_t tiles;

    grid_tile(e, args, g);
    tiles = (uint64_t)g->x * g->y;
    g->x = tiles < WG_BLOCKS ? (uint32_t)tiles : WG_BLOCKS;
    g->y = 1;
}

static const struct be_kentry entries[] = {
    FLOATS("f32", BE_F32, 4),
    FLOATS("f16", BE_F16, 2),
    FLOATS("bf16", BE_BF16, 2),
    FAST("f16", BE_F16, BE_KACT_F16, BE_KNUM_FAST, "fast_few", FAST_FEW, 75, grid_tile),
    FAST("f16", BE_F16, BE_KACT_F16, BE_KNUM_FAST, "fast_mm", FAST_MM),
    FAST("f32", BE_F32, BE_KACT_F32, BE_KNUM_TF32, "tf32_few", FAST_FEW, 80, grid_tile),
    FAST("f32", BE_F32, BE_KACT_F32, BE_KNUM_TF32, "tf32_mm", FAST_MM),
    {.name = "kx_linear_f16_fast_wg",
     .lib = "linear_f16_wg",
     .desc = {.op = BE_KOP_LINEAR,
              .wfmt = BE_F16,
              .act = BE_KACT_F16,
              .epi = 0xff,
              .out = BE_KACT_ANY,
              .rows_class = BE_KROWS_65,
              .numerics = BE_KNUM_FAST,
              .rows = {65, 1u << 20, 1, 0},
              .k = {8, 1u << 20, 8, 0},
              .n = {1, 1u << 24, 1, 0}},
     .sched = {.threads = 256,
               .rows_tile = 128,
               .cols_tile = 256,
               .stages = 4,
               .slices = 1,
               .shared_bytes = WG_SHARED},
     .args_bytes = sizeof(struct kx_linear_wg),
     .min_arch = 90,
     .production = true,
     .grid = grid_wg},
    QUANT_32("q4_0", BE_Q4_0, 16, 2, 0, 0),
    QUANT_32("q4_1", BE_Q4_1, 16, 4, 0, 32),
    QUANT_32("q5_0", BE_Q5_0, 16, 2, 4, 0),
    QUANT_32("q5_1", BE_Q5_1, 16, 4, 4, 32),
    QUANT_32("q8_0", BE_Q8_0, 32, 2, 0, 0),
    QUANT_256("q4_k", BE_Q4_K, 0, 32),
    QUANT_256("q5_k", BE_Q5_K, 4, 32),
    QUANT_256("q6_k", BE_Q6_K, 8, 0),
};

static uint32_t count(void)
{
    return sizeof(entries) / sizeof(entries[0]);
}

static const struct be_kentry *at(uint32_t i)
{
    return i < count() ? &entries[i] : NULL;
}

/* ------------------------------------------------------------------- IR */

enum { X = 1, W0, W1, S0, S1, OUT }; /* values of the tree */

static void add(struct be_kir *k, uint8_t depth, uint8_t kind, uint8_t dst, uint8_t a, uint8_t b,
                uint32_t imm, uint32_t imm2)
{
    be_kir_add(
        k, (struct be_knode){
               .kind = kind, .depth = depth, .dst = dst, .a = a, .b = b, .imm = imm, .imm2 = imm2});
}

static void share(struct be_kir *k)
{
    k->node[k->n_nodes - 1].flags |= BE_KF_SHARED;
}

static void build_repack(struct be_kir *k)
{
    struct be_klayout l = {0};

    (void)be_klayout_get((enum be_dtype)k->desc.wfmt, k->desc.k.mult, &l);
    add(k, 0, BE_KN_GRID, 0, 0, 0, BE_KU_BLOCK, 0);
    add(k, 1, BE_KN_LOAD_BLOCK, W0, 0, 0, k->desc.wfmt, 0);
    for (uint32_t i = 0; i < l.n_planes; i++)
        add(k, 1, BE_KN_STORE, 0, W0, 0, BE_KACT_ANY, i);
}

static uint32_t step_of(const struct be_klin_fmt *f)
{
    return f->cls == BE_KLC_FLOAT ? KX_CHUNK : f->cls == BE_KLC_32 ? 32 : 256;
}

/* The sums: mat-vec stages the row only, tiles stage the weights too. */
static void build_loop(struct be_kir *k, const struct be_klin_fmt *f, bool geglu)
{
    bool fast = k->desc.numerics != BE_KNUM_EXACT,
         tile = k->sched.cols_tile >= 16 && k->sched.stages > 1;
    uint8_t mul = f->cls == BE_KLC_FLOAT ? fast ? BE_KN_MMA : BE_KN_FMA
                  : tile                 ? BE_KN_MMA
                                         : BE_KN_DP4A;
    uint32_t mma = mul != BE_KN_MMA                   ? 0
                   : k->desc.numerics == BE_KNUM_TF32 ? BE_KM_TF32_1688
                   : fast                             ? BE_KM_F16_16816
                                                      : BE_KM_S8_16832;

    add(k, 1, BE_KN_LOOP, 0, 0, 0, BE_KA_K, step_of(f));
    add(k, 2, BE_KN_LOAD_ACT, X, 0, 0, k->desc.act, 0);
    share(k);
    if (!tile)
        add(k, 2, BE_KN_BARRIER, 0, 0, 0, 0, 0);
    for (uint32_t i = 0; i < (geglu ? 2 : 1); i++) {
        add(k, 2, BE_KN_LOAD_BLOCK, (uint8_t)(W0 + i), 0, 0, k->desc.wfmt, i);
        if (tile)
            share(k);
    }
    if (tile)
        add(k, 2, BE_KN_BARRIER, 0, 0, 0, 0, 0);
    for (uint32_t i = 0; i < (geglu ? 2 : 1); i++)
        add(k, 2, mul, (uint8_t)(S0 + i), (uint8_t)(W0 + i), X, mma, 0);
    if (!tile)
        add(k, 2, BE_KN_BARRIER, 0, 0, 0, 0, 0);
}

static void build_linear(struct be_kir *k, const struct be_klin_fmt *f)
{
    bool geglu = k->desc.epi == BE_EPI_GEGLU;

    add(k, 0, BE_KN_GRID, 0, 0, 0, BE_KU_ELEM, 0);
    build_loop(k, f, geglu);
    for (uint8_t i = 0; i < (geglu ? 2 : 1); i++) {
        uint8_t s = (uint8_t)(S0 + i);

        add(k, 1, BE_KN_REDUCE, s, s, 0,
            k->desc.numerics != BE_KNUM_EXACT ? BE_KR_SUM : BE_KR_SLICES, BE_KA_K);
        add(k, 1, BE_KN_BIAS, s, s, 0, 0, i);
    }
    if (geglu) {
        add(k, 1, BE_KN_ACT, S0, S0, 0, BE_EPI_GELU_TANH, 0);
        add(k, 1, BE_KN_MUL, OUT, S0, S1, 0, 0);
    } else {
        add(k, 1, BE_KN_ACT, OUT, S0, 0, 0xff, 0);
        add(k, 1, BE_KN_ADD_RES, OUT, OUT, 0, 0, 0);
    }
    add(k, 1, BE_KN_STORE, 0, OUT, 0, k->desc.out, 0);
}

static enum rc build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    const struct be_klin_fmt *f = be_klin_fmt_get(e->desc.wfmt);

    if (!f || strlen(e->name) >= sizeof(out->name))
        return rc_fail(err, RC_INTERNAL, "kernel '%s': format %u is none of the linear family",
                       e->name, e->desc.wfmt);
    memset(out, 0, sizeof(*out));
    memcpy(out->name, e->name, strlen(e->name) + 1);
    out->desc = e->desc;
    out->sched = e->sched;
    if (e->desc.op == BE_KOP_REPACK)
        build_repack(out);
    else
        build_linear(out, f);
    return RC_OK;
}

/* ----------------------------------------------------------------- plan */

/* A reader of the tree: each take() wants one node and moves on. */
struct reader {
    const struct be_kir *k;
    uint32_t i;
    bool bad;
};

static const struct be_knode *take(struct reader *r, unsigned kind)
{
    static const struct be_knode none;

    if (r->bad || r->i >= r->k->n_nodes || r->k->node[r->i].kind != kind) {
        r->bad = true;
        return &none;
    }
    return &r->k->node[r->i++];
}

static bool take_if(struct reader *r, unsigned kind)
{
    if (!r->bad && r->i < r->k->n_nodes && r->k->node[r->i].kind == kind) {
        r->i++;
        return true;
    }
    return false;
}

static void read_repack(struct reader *r, struct be_klin_plan *p)
{
    p->kind = BE_KLK_REPACK;
    p->f = be_klin_fmt_get(take(r, BE_KN_LOAD_BLOCK)->imm);
    take(r, BE_KN_STORE);
    while (take_if(r, BE_KN_STORE))
        ;
}

static void read_linear(struct reader *r, struct be_klin_plan *p)
{
    const struct be_knode *n;
    bool staged;
    uint32_t parts = 1;

    take(r, BE_KN_LOOP);
    take(r, BE_KN_LOAD_ACT);
    staged = !take_if(r, BE_KN_BARRIER);
    p->f = be_klin_fmt_get(take(r, BE_KN_LOAD_BLOCK)->imm);
    if (take_if(r, BE_KN_LOAD_BLOCK))
        parts = 2;
    if (staged)
        take(r, BE_KN_BARRIER);
    p->kind = staged ? BE_KLK_TILE : BE_KLK_MV;
    for (uint32_t i = 0; i < parts; i++)
        if (!take_if(r, BE_KN_FMA) && !take_if(r, BE_KN_DP4A)) {
            uint32_t mma = take(r, BE_KN_MMA)->imm;

            if (mma == BE_KM_F16_16816 || mma == BE_KM_TF32_1688)
                p->kind = BE_KLK_FAST;
            p->tf32 = mma == BE_KM_TF32_1688;
        }
    if (!staged)
        take(r, BE_KN_BARRIER);
    for (uint32_t i = 0; i < parts; i++) {
        take(r, BE_KN_REDUCE);
        take(r, BE_KN_BIAS);
    }
    n = take(r, BE_KN_ACT);
    p->epi = n->imm;
    p->geglu = parts == 2;
    if (p->geglu)
        take(r, BE_KN_MUL);
    else
        take(r, BE_KN_ADD_RES);
    take(r, BE_KN_STORE);
}

enum rc be_klin_plan_get(const struct be_kir *k, struct be_klin_plan *out, struct rc_err *err)
{
    struct reader r = {.k = k};
    struct be_klin_plan p = {0};

    if (take(&r, BE_KN_GRID)->imm == BE_KU_BLOCK)
        read_repack(&r, &p);
    else
        read_linear(&r, &p);
    if (r.bad || r.i != k->n_nodes || !p.f)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': node %u %s has no place in a linear kernel",
                       k->name, r.i, r.i < k->n_nodes ? be_knode_name(k->node[r.i].kind) : "(end)");
    *out = p;
    return RC_OK;
}

const struct be_kfamily be_kfam_linear = {
    .name = "linear",
    .count = count,
    .at = at,
    .build = build,
    .run = be_klin_run,
    .cuda_lib = be_klin_cuda_lib,
    .cuda = be_klin_cuda,
    .metal_lib = be_klin_metal_lib,
    .metal = be_klin_metal,
};
