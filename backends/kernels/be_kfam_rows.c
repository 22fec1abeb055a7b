/* be_kfam_rows.c - the family of kernels that treat each row by itself: catalog, launch
 * geometry and IR. Text, executor: be_kcuda_rows.c, be_kref_rows.c. Sums: be_krows.h.
 *
 * One kernel serves f32 and f16 rows (a word of its arguments says which), so there is one
 * entry per operation. A kernel whose block is made for a row takes its threads from the
 * row's length, never from the number of rows.
 * Tests: tests/backends/test_be_krows.c
 */
#include "be_krows.h"

#include <string.h>

#define ANY 0xff
#define DIM(lo, hi, m)                        \
    {                                         \
        .min = (lo), .max = (hi), .mult = (m) \
    }
#define ROWS DIM(1, 1u << 20, 1)
#define COLS(m) DIM(m, 1u << 20, m)

/* ------------------------------------------------------------ launch geometry */

static void grid_of(struct be_kgrid *out, uint64_t blocks, uint32_t threads)
{
    *out = (struct be_kgrid){.x = (uint32_t)blocks, .y = 1, .z = 1, .threads = threads};
}

/* a warp per 256 columns */
static void grid_quant(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_quant *a = args;

    grid_of(out, ((uint64_t)a->n * be_krow_blocks(a->k) + 3) / 4, 128);
}

/* Blocks for n rows: where there are more than a device runs at once, each takes several, so that
 * the weights are read once for all of them. */
static uint32_t row_blocks(uint32_t n)
{
    uint32_t each = n / 1024;

    return each < 2 ? n : (n + (each > 8 ? 8 : each) - 1) / (each > 8 ? 8 : each);
}

static void grid_rms_norm(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_norm *a = args;

    grid_of(out, row_blocks(a->n), 32 * be_krow_warps(a->k));
}

static void grid_layer_norm(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    grid_rms_norm(e, args, out);
}

static void grid_rope(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_rope *a = args;

    grid_of(out, a->n, 32 * be_krow_rope_warps(a->n_heads, a->head_dim));
}

static void grid_kv_write(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_kv_write *a = args;
    uint64_t units = 2ull * a->n * be_krow_blocks(a->kv.n_kv_heads * a->kv.head_dim);

    grid_of(out, (units + 3) / 4, 128);
}

static void grid_rope_kv(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_rope_kv *a = args;

    grid_of(out, a->q.n,
            32 * be_krow_rope_warps(a->q.n_heads + (a->v.x ? 2 : 1) * a->k.n_heads, a->q.head_dim));
}

static void grid_gather(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_gather *a = args;

    grid_of(out, a->n, 256);
}

static void grid_pool(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_pool *a = args;

    grid_of(out, (uint64_t)a->n_seqs * be_krow_blocks(a->k), 256);
}

static void grid_argmax_part(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_argmax *a = args;

    grid_of(out, (uint64_t)a->n * a->parts, 256);
}

static void grid_argmax(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_argmax *a = args;

    grid_of(out, a->n, 256);
}

static void grid_softcap(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_softcap *a = args;

    grid_of(out, ((uint64_t)a->n * a->k + 1023) / 1024, 128);
}

static void grid_scale(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_scale *a = args;

    grid_of(out, ((uint64_t)a->n * ((a->k + 7) / 8) + 127) / 128, 128);
}

static void grid_sample_part(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_sample *a = args;

    grid_of(out, (uint64_t)a->n * (a->k <= KX_SAMPLE_COLS ? KX_SAMPLE_PIECES(a->k) : 1), 512);
}

static void grid_sample(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_sample *a = args;

    grid_of(out, a->n, 1024);
}

static void grid_convert(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_convert *a = args;

    grid_of(out, (a->n + 1023) / 1024, 128);
}

static void grid_mul(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_mul *a = args;

    grid_of(out, (a->n + 1023) / 1024, 128);
}

static void grid_embed(const struct be_kentry *e, const void *args, struct be_kgrid *out)
{
    const struct kx_embed *a = args;

    grid_of(out, ((uint64_t)a->n * be_krow_blocks(a->k) + 3) / 4, 128);
}

/* -------------------------------------------------------------------- catalog */

#define ENTRY(suffix, name_, lib_, op_, type, threads_, shared, ...)                          \
    {                                                                                         \
        .name = "kx_" suffix, .lib = lib_, .args_bytes = sizeof(struct type), .min_arch = 75, \
        .production = true, .grid = grid_##name_,                                             \
        .sched = {.threads = threads_, .shared_bytes = shared},                               \
        .desc = {.op = op_, .out = BE_KACT_ANY, .rows = ROWS, __VA_ARGS__},                   \
    }

/* what differs from kernel to kernel: shared bytes, then parts of the descriptor */
#define PARTS_QUANT 0, .act = BE_KACT_ANY, .k = COLS(32)
#define PARTS_RMS_NORM 512, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_LAYER_NORM 512, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_ROPE \
    2048, .act = BE_KACT_ANY, .head_dim = DIM(2, KX_ROPE_HEAD, 2), .q_heads = DIM(1, 4096, 1)
#define PARTS_KV_WRITE                                                                       \
    0, .act = BE_KACT_ANY, .head_dim = DIM(1, KX_ROPE_HEAD, 1), .kv_heads = DIM(1, 4096, 1), \
       .kv_paged = 1, .kv_dtype = ANY
#define PARTS_ROPE_KV                                                                          \
    2048, .act = BE_KACT_ANY, .head_dim = DIM(2, KX_ROPE_HEAD, 2), .q_heads = DIM(1, 4096, 1), \
          .kv_heads = DIM(1, 4096, 1), .kv_paged = 1, .kv_dtype = ANY
#define PARTS_GATHER 0, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_POOL 8192, .act = BE_KACT_ANY, .k = COLS(1), .seq = DIM(1, 1u << 20, 1)
#define PARTS_ARGMAX_PART 256, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_ARGMAX 256, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_SOFTCAP 0, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_SCALE 0, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_SAMPLE_PART 33280, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_SAMPLE 41344, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_CONVERT 0, .act = BE_KACT_ANY, .k = COLS(1)
#define PARTS_MUL 0, .act = BE_KACT_ANY, .k = COLS(1)

#define EXPAND(...) ENTRY(__VA_ARGS__)
#define EMBED(fmt, word, block)                                                            \
    ENTRY("embed_" word, embed, "embed", BE_KOP_EMBED, kx_embed, 128, 0, .wfmt = BE_##fmt, \
          .k = COLS(block), .n = DIM(1, 1u << 24, 1))
static const struct be_kentry entries[] = {
#define X(id, name, lib, op, type, threads) EXPAND(#name, name, lib, op, type, threads, PARTS_##id),
    BE_KROW_MAP(X)
#undef X
        EMBED(F32, "f32", 1),
    EMBED(F16, "f16", 1),
    EMBED(BF16, "bf16", 1),
    EMBED(Q4_0, "q4_0", 32),
    EMBED(Q4_1, "q4_1", 32),
    EMBED(Q5_0, "q5_0", 32),
    EMBED(Q5_1, "q5_1", 32),
    EMBED(Q8_0, "q8_0", 32),
    EMBED(Q4_K, "q4_k", 256),
    EMBED(Q5_K, "q5_k", 256),
    EMBED(Q6_K, "q6_k", 256),
};
#define N_ENTRIES (sizeof(entries) / sizeof(entries[0]))

enum be_krow be_krow_of(const char *name)
{
    unsigned i = 0;

    if (strncmp(name, "kx_embed_", 9) == 0)
        return BE_KROW_EMBED;
    while (i < BE_KROW_EMBED && strcmp(entries[i].name, name) != 0)
        i++;
    return i < BE_KROW_EMBED ? (enum be_krow)i : BE_KROW_COUNT;
}

static uint32_t count(void)
{
    return N_ENTRIES;
}

static const struct be_kentry *at(uint32_t i)
{
    return i < N_ENTRIES ? &entries[i] : NULL;
}

/* ------------------------------------------------------------------------- IR */

/* kind, depth, dst, a, b, flags, imm, imm2 */
#define N(kind, ...)              \
    {                             \
        BE_KN_##kind, __VA_ARGS__ \
    }

static const struct be_knode quant[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),      N(LOAD_ACT, 1, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(QUANT_ACT, 1, 2, 1, 0, 0, KX_ENC_Q8_0, 0), N(QUANT_ACT, 1, 2, 1, 0, 0, KX_ENC_Q8_K, 0),
    N(STORE, 1, 0, 2, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode rms_norm[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ROW, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 256),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(REDUCE, 1, 2, 1, 0, 0, BE_KR_SUM_SQ, BE_KA_K),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 256),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(RMS_SCALE, 2, 3, 1, 2, 0, 0, 0),
    N(MUL, 2, 3, 3, 3, 0, 0, 0), /* by the weight vector */
    N(ADD_RES, 2, 3, 3, 0, 0, 0, 0),
    N(SCALE, 2, 3, 3, 0, 0, 0, 0),
    N(STORE, 2, 0, 3, 0, 0, BE_KACT_ANY, 0),
    N(REDUCE, 2, 5, 3, 0, 0, BE_KR_SUM_SQ, BE_KA_K), /* the second norm, where one is asked for */
    N(RMS_SCALE, 2, 3, 3, 5, 0, 0, 0),
    N(MUL, 2, 3, 3, 3, 0, 0, 0),
    N(STORE, 2, 0, 3, 0, 0, BE_KACT_ANY, 1),
    N(QUANT_ACT, 2, 4, 3, 0, 0, KX_ENC_Q8_0, 0),
    N(QUANT_ACT, 2, 4, 3, 0, 0, KX_ENC_Q8_K, 0),
    N(STORE, 2, 0, 4, 0, 0, BE_KACT_ANY, 2),
};

static const struct be_knode layer_norm[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ROW, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 256),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(ADD_RES, 2, 1, 1, 0, 0, 0, 0),
    N(REDUCE, 1, 2, 1, 0, 0, BE_KR_SUM, BE_KA_K),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 256),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(ADD_RES, 2, 1, 1, 0, 0, 0, 0),
    N(REDUCE, 1, 3, 1, 2, 0, BE_KR_SUM_SQ, BE_KA_K), /* of the distance from the mean */
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 256),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(ADD_RES, 2, 1, 1, 0, 0, 0, 0),
    N(LAYER_SCALE, 2, 4, 1, 3, 0, 0, 0),
    N(MUL, 2, 4, 4, 4, 0, 0, 0),
    N(BIAS, 2, 4, 4, 0, 0, 0, 0),
    N(STORE, 2, 0, 4, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode rope[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_HEAD_ROW, 0),  N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 64),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0), N(REDUCE, 1, 2, 1, 0, 0, BE_KR_SUM_SQ, BE_KA_K),
    N(RMS_SCALE, 1, 1, 1, 2, 0, 0, 0),          N(ROPE, 1, 3, 1, 0, 0, 0, 0),
    N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode kv_write[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),
    N(LOAD_ACT, 1, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(GATHER, 1, 2, 0, 0, 0, 0, 0), /* page and slot of the row's position */
    N(QUANT_ACT, 1, 3, 1, 0, 0, KX_ENC_Q8_0, 0),
    N(STORE, 1, 0, 3, 2, 0, BE_KACT_ANY, 0),
};

static const struct be_knode rope_kv[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ROW, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 64),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(REDUCE, 1, 2, 1, 0, 0, BE_KR_SUM_SQ, BE_KA_K),
    N(RMS_SCALE, 1, 1, 1, 2, 0, 0, 0),
    N(ROPE, 1, 3, 1, 0, 0, 0, 0),
    N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
    N(BARRIER, 1, 0, 0, 0, 0, 0, 0), /* the keys just stored are read again */
    N(LOAD_ACT, 1, 4, 0, 0, 0, BE_KACT_ANY, 0),
    N(GATHER, 1, 5, 0, 0, 0, 0, 0),
    N(QUANT_ACT, 1, 6, 4, 0, 0, KX_ENC_Q8_0, 0),
    N(STORE, 1, 0, 6, 5, 0, BE_KACT_ANY, 1),
};

static const struct be_knode gather[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ROW, 0),
    N(GATHER, 1, 1, 0, 0, 0, 0, 0),
    N(STORE, 1, 0, 1, 0, 0, BE_KACT_ANY, 0),
};

/* a unit: 256 columns of one sequence; rows in 8 interleaved slices, folded as be_kargs.h */
static const struct be_knode pool[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_ROWS, KX_SLICES),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(REDUCE, 1, 2, 1, 0, BE_KF_SHARED, BE_KR_SUM, BE_KA_ROWS),
    N(BARRIER, 1, 0, 0, 0, 0, 0, 0),
    N(POOL, 1, 3, 2, 0, 0, 0, 0),
    N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode argmax_part[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),          N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 2048),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),      N(ARGMAX, 2, 2, 1, 0, 0, 0, 0),
    N(REDUCE, 1, 3, 2, 0, 0, BE_KR_ARGMAX, BE_KA_K), N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode argmax[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ROW, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_PART, 256),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(ARGMAX, 2, 2, 1, 0, 0, 0, 0),
    N(REDUCE, 1, 3, 2, 0, 0, BE_KR_ARGMAX, BE_KA_PART),
    N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode softcap[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0),
    N(LOAD_ACT, 1, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(SOFTCAP, 1, 2, 1, 0, 0, 0, 0),
    N(STORE, 1, 0, 2, 0, 0, BE_KACT_ANY, 0),
};

/* a unit: eight columns of a row */
static const struct be_knode scale[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),
    N(LOAD_ACT, 1, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(LOAD_ACT, 1, 2, 0, 0, 0, BE_KACT_ANY, 0),
    N(SCALE, 1, 2, 2, 0, 0, 0, 0),
    N(MUL, 1, 3, 1, 2, 0, 0, 0),
    N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
};

/* a unit: a piece of KX_SAMPLE_SPAN columns; SAMPLE: its mass and its best, in order */
static const struct be_knode sample_part[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),          N(LOOP, 1, 0, 0, 0, 0, BE_KA_K, 512),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),      N(ARGMAX, 2, 2, 1, 0, 0, 0, 0),
    N(REDUCE, 1, 3, 2, 0, 0, BE_KR_ARGMAX, BE_KA_K), N(SAMPLE, 1, 4, 1, 3, 0, 0, 0),
    N(STORE, 1, 0, 4, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode sample[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ROW, 0),
    N(LOOP, 1, 0, 0, 0, 0, BE_KA_PART, 1024),
    N(LOAD_ACT, 2, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(ARGMAX, 2, 2, 1, 0, 0, 0, 0),
    N(REDUCE, 1, 3, 2, 0, 0, BE_KR_ARGMAX, BE_KA_PART),
    N(SAMPLE, 1, 4, 1, 3, 0, 0, 0),
    N(STORE, 1, 0, 4, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode convert[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0),
    N(LOAD_ACT, 1, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(STORE, 1, 0, 1, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode mul[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_ELEM, 0),      N(LOAD_ACT, 1, 1, 0, 0, 0, BE_KACT_ANY, 0),
    N(LOAD_ACT, 1, 2, 0, 0, 0, BE_KACT_ANY, 0), N(MUL, 1, 3, 1, 2, 0, 0, 0),
    N(STORE, 1, 0, 3, 0, 0, BE_KACT_ANY, 0),
};

static const struct be_knode embed[] = {
    N(GRID, 0, 0, 0, 0, 0, BE_KU_BLOCK, 0),
    N(LOAD_BLOCK, 1, 1, 0, 0, 0, 0, 0), /* format: build() */
    N(DEQUANT, 1, 2, 1, 0, 0, 0, 0),
    N(SCALE, 1, 2, 2, 0, 0, 0, 0),
    N(ADD_RES, 1, 2, 2, 0, 0, 0, 0),
    N(STORE, 1, 0, 2, 0, 0, BE_KACT_ANY, 0),
};

static const struct {
    const struct be_knode *node;
    size_t n;
} bodies[BE_KROW_COUNT] = {
#define X(id, name, lib, op, type, threads) [BE_KROW_##id] = {name, sizeof(name) / sizeof(name[0])},
    BE_KROW_MAP(X)
#undef X
        [BE_KROW_EMBED] = {embed, sizeof(embed) / sizeof(embed[0])},
};

/* e may be a copy of a catalog entry with fixed dimensions. */
static enum rc build(const struct be_kentry *e, struct be_kir *out, struct rc_err *err)
{
    enum be_krow id = be_krow_of(e->name);

    if (id == BE_KROW_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family rows", e->name);
    memset(out, 0, sizeof(*out));
    memcpy(out->name, e->name, strlen(e->name));
    out->desc = e->desc;
    out->sched = e->sched;
    for (size_t i = 0; i < bodies[id].n; i++) {
        struct be_knode n = bodies[id].node[i];

        if (n.kind == BE_KN_LOAD_BLOCK || n.kind == BE_KN_DEQUANT)
            n.imm = e->desc.wfmt;
        be_kir_add(out, n);
    }
    return RC_OK;
}

const struct be_kfamily be_kfam_rows = {
    .name = "rows",
    .count = count,
    .at = at,
    .build = build,
    .run = be_krow_run,
    .cuda_lib = be_krow_cuda_lib,
    .cuda = be_krow_cuda,
    .metal_lib = be_krow_metal_lib,
    .metal = be_krow_metal,
};
