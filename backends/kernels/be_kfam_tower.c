/* be_kfam_tower.c - the family of kernels for eyes and ears: catalog, launch geometry, IR.
 *
 * One kernel serves f32 and f16 rows, so there is one entry per operation of be.h. Text and
 * executor: be_kcuda_tower.c, be_kmetal_tower.c, be_kref_tower.c.
 * Tests: tests/backends/test_be_ktower.c
 */
#include "be_ktower.h"

#include <string.h>

#define DIM(lo, hi, m)                        \
    {                                         \
        .min = (lo), .max = (hi), .mult = (m) \
    }
#define COLS DIM(1, 1u << 20, 1)

/* ------------------------------------------------------------ launch geometry */

static void grid_of(struct be_kgrid *out, uint64_t units, uint32_t per_block)
{
    *out = (struct be_kgrid){.x = (uint32_t)((units + per_block - 1) / per_block),
                             .y = 1,
                             .z = 1,
                             .threads = BE_KTOWER_THREADS};
}

/* A thread an element. */
#define GRID(name, type, units)                                                                \
    static void grid_##name(const struct be_kentry *e, const void *args, struct be_kgrid *out) \
    {                                                                                          \
        const struct type *a = args;                                                           \
                                                                                               \
        grid_of(out, (units), BE_KTOWER_THREADS);                                              \
    }
GRID(act, kx_act, (uint64_t)a->n * a->k)
GRID(glu, kx_glu, (uint64_t)a->n * a->k)
GRID(affine, kx_affine, (uint64_t)a->n * a->k)
GRID(unfold, kx_unfold, (uint64_t)a->n * a->k)
GRID(conv1d, kx_conv1d, (uint64_t)a->n * a->k)
GRID(rope2d, kx_rope2d, (uint64_t)a->n * a->n_heads * (a->head_dim / 2)) /* a thread a pair */

/* a warp a head of a row */
static void grid_attn_local(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_attn_local *a = args;

    grid_of(out, (uint64_t)a->n * a->n_heads, BE_KTOWER_THREADS / 32);
}

/* -------------------------------------------------------------------- catalog */

#define DIMS_ACT .k = COLS
#define DIMS_GLU .k = COLS
#define DIMS_AFFINE .k = COLS
#define DIMS_ROPE2D .head_dim = DIM(4, KX_ROPE_HEAD, 4), .q_heads = DIM(1, 4096, 1)
#define DIMS_UNFOLD .k = COLS
#define DIMS_CONV1D .k = COLS, .seq = DIM(1, BE_KTOWER_TAPS, 1)
#define DIMS_ATTN_LOCAL \
    .head_dim = DIM(1, KX_ROPE_HEAD, 1), .q_heads = DIM(1, 4096, 1), .seq = DIM(1, KX_LOCAL_KEYS, 1)

#define ENTRY(suffix, name_, op_, type, ...)                                           \
    {                                                                                  \
        .name = "kx_" suffix, .lib = BE_KTOWER_LIB, .args_bytes = sizeof(struct type), \
        .min_arch = 75, .production = true, .grid = grid_##name_,                      \
        .sched = {.threads = BE_KTOWER_THREADS},                                       \
        .desc = {.op = op_,                                                            \
                 .act = BE_KACT_ANY,                                                   \
                 .out = BE_KACT_ANY,                                                   \
                 .rows = DIM(1, 1u << 24, 1),                                          \
                 __VA_ARGS__},                                                         \
    }
#define EXPAND(...) ENTRY(__VA_ARGS__)
static const struct be_kentry entries[] = {
#define X(id, name, op, type) EXPAND(#name, name, op, type, DIMS_##id),
    BE_KTOWER_MAP(X)
#undef X
};

enum be_ktower be_ktower_of(const char *name)
{
    unsigned i = 0;

    while (i < BE_KTOWER_COUNT && strcmp(entries[i].name, name) != 0)
        i++;
    return (enum be_ktower)i;
}

static uint32_t count(void)
{
    return BE_KTOWER_COUNT;
}

static const struct be_kentry *at(uint32_t i)
{
    return i < BE_KTOWER_COUNT ? &entries[i] : NULL;
}

/* ------------------------------------------------------------------------- IR */

/* kind, depth, dst, a, b, flags, imm, imm2 */
#define N(kind, ...)              \
    {                             \
        BE_KN_##kind, __VA_ARGS__ \
    }
#define LOAD(depth, dst) N(LOAD_ACT, depth, dst, 0, 0, 0, BE_KACT_ANY, 0)
#define STORE(a) N(STORE, 1, 0, a, 0, 0, BE_KACT_ANY, 0)

static const struct be_knode act[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0), LOAD(1, 1),
    N(UNARY, 1, 2, 1, 0, 0, 0xff, 0), /* which: at run time */
    N(ADD_RES, 1, 2, 2, 0, 0, 0, 0),       STORE(2),
};

static const struct be_knode glu[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0), LOAD(1, 1), LOAD(1, 2),
    N(GATE, 1, 3, 1, 2, 0, 0, 0),          STORE(3),
};

static const struct be_knode affine[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0),
    LOAD(1, 1),
    N(BIAS, 1, 2, 1, 0, 0, 0, 0), /* less a vector */
    N(MUL, 1, 2, 2, 2, 0, 0, 0),  /* by a vector */
    STORE(2),
};

static const struct be_knode rope2d[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_HEAD_ROW, 0),
    LOAD(1, 1),
    N(ROPE, 1, 2, 1, 0, 0, 0, 0),
    STORE(2),
};

static const struct be_knode unfold[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0),
    N(GATHER, 1, 1, 0, 0, 0, 0, 0), /* the pixel, or 0 outside */
    STORE(1),
};

static const struct be_knode conv1d[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_ROWS, 1), /* taps: the rows before and the own */
    LOAD(2, 1),
    N(LOAD_BLOCK, 2, 2, 0, 0, 0, BE_F32, 0),
    N(FMA, 2, 3, 1, 2, 0, 0, 0),
    STORE(3),
};

/* Two loops over the keys: what the second weighs with is known when the first is through. */
static const struct be_knode attn_local[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_HEAD_ROW, 0),
    LOAD(1, 1),
    N(SCALE, 1, 1, 1, 0, 0, 0, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_ROWS, 1),
    LOAD(2, 2),
    N(QK, 2, 3, 1, 2, 0, 0, 0),
    N(REL, 2, 3, 1, 2, 0, 0, 0),
    N(SOFTCAP, 2, 3, 3, 0, 0, 0, 0),
    N(REDUCE, 1, 4, 3, 0, 0, BE_KR_MAX, BE_KA_ROWS),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_ROWS, 1),
    LOAD(2, 5),
    N(ONLINE_SOFTMAX, 2, 6, 3, 4, 0, 0, 0),
    N(PV, 2, 7, 6, 5, 0, 0, 0),
    STORE(7),
};

static const struct {
    const struct be_knode *node;
    size_t n;
} bodies[BE_KTOWER_COUNT] = {
#define X(id, name, op, type) [BE_KTOWER_##id] = {name, sizeof(name) / sizeof(name[0])},
    BE_KTOWER_MAP(X)
#undef X
};

/* e may be a copy of a catalog entry with fixed dimensions. */
static enum rc build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    enum be_ktower id = be_ktower_of(e->name);

    if (id == BE_KTOWER_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family tower", e->name);
    memset(out, 0, sizeof(*out));
    memcpy(out->name, e->name, strlen(e->name));
    out->desc = e->desc;
    out->sched = e->sched;
    for (size_t i = 0; i < bodies[id].n; i++)
        be_kir_add(out, bodies[id].node[i]);
    return RC_OK;
}

const struct be_kfamily be_kfam_tower = {
    .name = "tower",
    .count = count,
    .at = at,
    .build = build,
    .run = be_ktower_run,
    .cuda_lib = be_ktower_cuda_lib,
    .cuda = be_ktower_cuda,
    .metal_lib = be_ktower_metal_lib,
    .metal = be_ktower_metal,
};
