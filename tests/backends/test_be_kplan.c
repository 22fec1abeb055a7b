/* test_be_kplan.c - which kernel serves an operation, or why none; and the shapes that
 * are compiled in for the run-time compiler. */
#include "be_ktest.h"

#include "be_kplan.h"

#define COLS(m)          \
    {                    \
        m, 1 << 20, m, 0 \
    }
#define OUTS             \
    {                    \
        1, 1 << 24, 1, 0 \
    }
#define HEADS         \
    {                 \
        1, 4096, 1, 0 \
    }
#define FIX(v)     \
    {              \
        v, v, 1, 1 \
    }
#define E(name_, arch, ...)                                                               \
    {                                                                                     \
        .name = name_, .lib = "x", .min_arch = arch, .production = true, .grid = kt_grid, \
        .desc = {                                                                         \
            __VA_ARGS__                                                                   \
        }                                                                                 \
    }
#define LIN(name_, arch, fmt, rc, lo, hi, m, ...)                                   \
    E(name_, arch, .op = BE_KOP_LINEAR, .wfmt = fmt, .epi = 0xff, .rows_class = rc, \
      .rows = {lo, hi, 1, 0}, .k = COLS(m), .n = OUTS, __VA_ARGS__)
#define ANY_ROWS 1, 1 << 20

static const struct be_kentry entries[] = {
    LIN("kx_linear_q4_k_mv", 75, BE_Q4_K, BE_KROWS_1, 1, 1, 256),
    LIN("kx_linear_q4_k_ext", 75, BE_Q4_K, BE_KROWS_2_8, 2, 8, 256),
    LIN("kx_linear_q4_k_mm", 75, BE_Q4_K, BE_KROWS_9_64, 9, 64, 256),
    LIN("kx_linear_q4_k_big", 80, BE_Q4_K, BE_KROWS_65, 65, 1 << 20, 256),
    LIN("kx_linear_q5_0_ext", 75, BE_Q5_0, BE_KROWS_2_8, 2, 8, 32),
    E("kx_linear_q4_k_mv_geglu", 75, .op = BE_KOP_LINEAR, .wfmt = BE_Q4_K, .epi = BE_EPI_GEGLU,
      .rows = {1, 1, 1, 0}, .k = COLS(256), .n = OUTS),
    E("kx_q4_k_mv_2560", 75, .op = BE_KOP_LINEAR, .wfmt = BE_Q4_K, .epi = 0xff,
      .rows_class = BE_KROWS_1, .rows = {1, 1, 1, 0}, .k = FIX(2560), .n = FIX(2048)),
    LIN("kx_linear_f16_mm", 75, BE_F16, BE_KROWS_ANY, 9, 1 << 20, 1),
    LIN("kx_linear_f16_mv", 75, BE_F16, BE_KROWS_1, 1, 1, 1),
    LIN("kx_linear_bf16_mv", 75, BE_BF16, BE_KROWS_1, 1, 1, 1),
    LIN("kx_linear_bf16_fast_few", 80, BE_BF16, BE_KROWS_ANY, 1, 64, 1, .numerics = BE_KNUM_FAST),
    LIN("kx_linear_bf16_fast_mm", 80, BE_BF16, BE_KROWS_ANY, 65, 1 << 20, 8,
        .numerics = BE_KNUM_FAST),
    LIN("kx_linear_f16_fast_mm", 80, BE_F16, BE_KROWS_ANY, 9, 1 << 20, 8, .numerics = BE_KNUM_FAST),
    LIN("kx_linear_f32_mm", 75, BE_F32, BE_KROWS_ANY, 1, 1 << 20, 1),
    LIN("kx_linear_f32_tf32_few", 80, BE_F32, BE_KROWS_ANY, 1, 64, 1, .numerics = BE_KNUM_TF32),
    LIN("kx_linear_f32_tf32_mm", 80, BE_F32, BE_KROWS_ANY, 65, 1 << 20, 1,
        .numerics = BE_KNUM_TF32),
    E("kx_q8_0_mv_64", 75, .op = BE_KOP_LINEAR, .wfmt = BE_Q8_0, .epi = 0xff,
      .rows_class = BE_KROWS_1, .rows = {1, 1, 1, 0}, .k = FIX(64), .n = FIX(64)),
    E("kx_attn_d64_f16_pass", 80, .op = BE_KOP_ATTN, .kv_dtype = BE_F16,
      .phase = BE_KPHASE_ONE_PASS, .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(64), .q_heads = HEADS,
      .kv_heads = HEADS),
    E("kx_attn_any_f16_pass", 75, .op = BE_KOP_ATTN, .kv_dtype = BE_F16,
      .phase = BE_KPHASE_ONE_PASS, .rows = {ANY_ROWS, 1, 0}, .head_dim = {2, 512, 2, 0},
      .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_d64_f16_split", 80, .op = BE_KOP_ATTN, .kv_dtype = BE_F16, .phase = BE_KPHASE_SPLIT,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(64), .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_packed_d64_f32", 75, .op = BE_KOP_ATTN_PACKED, .act = BE_KACT_F32,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(64), .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_packed_d128_f16", 80, .op = BE_KOP_ATTN_PACKED, .act = BE_KACT_F16,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(128), .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_packed_d256_f16", 80, .op = BE_KOP_ATTN_PACKED, .act = BE_KACT_F16,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(256), .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_packed_d256_wg_f16", 90, .op = BE_KOP_ATTN_PACKED, .act = BE_KACT_F16,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(256), .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_packed_any_f32", 75, .op = BE_KOP_ATTN_PACKED, .act = BE_KACT_ANY,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = {2, 512, 2, 0}, .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_rel_d64_f16", 80, .op = BE_KOP_ATTN_REL, .act = BE_KACT_F16,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(64), .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_attn_rel_d64_tf32_f32", 80, .op = BE_KOP_ATTN_REL, .act = BE_KACT_F32,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = FIX(64), .q_heads = HEADS, .kv_heads = HEADS,
      .numerics = BE_KNUM_TF32),
    E("kx_attn_rel_any_f32", 75, .op = BE_KOP_ATTN_REL, .act = BE_KACT_ANY,
      .rows = {ANY_ROWS, 1, 0}, .head_dim = {2, 128, 2, 0}, .q_heads = HEADS, .kv_heads = HEADS),
    E("kx_rms_norm", 75, .op = BE_KOP_RMS_NORM, .rows = {ANY_ROWS, 1, 0}, .k = {1, 8192, 1, 0}),
    E("kx_quant", 75, .op = BE_KOP_QUANT, .rows = {ANY_ROWS, 1, 0}, .k = COLS(32)),
    E("kx_embed_q8_0", 75, .op = BE_KOP_EMBED, .wfmt = BE_Q8_0, .rows = {ANY_ROWS, 1, 0},
      .k = COLS(32)),
    E("kx_repack_q8_0", 75, .op = BE_KOP_REPACK, .wfmt = BE_Q8_0, .rows = {ANY_ROWS, 1, 0},
      .k = COLS(32)),
    E("kx_rope", 75, .op = BE_KOP_ROPE, .rows = {ANY_ROWS, 1, 0}, .head_dim = {2, 512, 2, 0},
      .q_heads = HEADS),
    E("kx_rope_kv", 75, .op = BE_KOP_ROPE, .kv_paged = 1, .rows = {ANY_ROWS, 1, 0},
      .head_dim = {2, 512, 2, 0}, .q_heads = HEADS, .kv_heads = HEADS),
    {.name = "kx_gather",
     .lib = "x",
     .min_arch = 75,
     .production = false,
     .grid = kt_grid,
     .desc = {.op = BE_KOP_GATHER, .k = COLS(1)}},
};

static uint32_t count(void)
{
    return sizeof(entries) / sizeof(entries[0]);
}
static const struct be_kentry *at(uint32_t i)
{
    return &entries[i];
}
static const struct be_kfamily fam = {.name = "all", .count = count, .at = at};
static const struct be_kfamily *const fams[] = {&fam, NULL};

#define L(fmt, r, k_, n_, ...)                                                                 \
    {                                                                                          \
        .op = BE_KOP_LINEAR, .wfmt = fmt, .rows = r, .k = k_, .n = n_, .arch = 90, __VA_ARGS__ \
    }
#define A(hd, qh, kvh, ...) AK(BE_F16, hd, qh, kvh, __VA_ARGS__)
#define AK(kv, hd, qh, kvh, ...)                                                     \
    {                                                                                \
        .op = BE_KOP_ATTN, .kv_dtype = kv, .rows = 7, .head_dim = hd, .q_heads = qh, \
        .kv_heads = kvh, .arch = 90, __VA_ARGS__                                     \
    }
#define PK(op_, hd, ...)                                                                           \
    {                                                                                              \
        .op = op_, .rows = 7, .head_dim = hd, .q_heads = 4, .kv_heads = 4, .arch = 90, __VA_ARGS__ \
    }
#define P(hd, ...) PK(BE_KOP_ATTN_PACKED, hd, __VA_ARGS__)
#define REL(hd, ...) PK(BE_KOP_ATTN_REL, hd, __VA_ARGS__)

static const struct {
    const char *what;
    struct be_kplan_req r;
    enum be_kplan_why why;
    const char *bucket, *exact;
} rows[] = {
    {"one row is a mat-vec", L(BE_Q4_K, 1, 256, 7), 0, "kx_linear_q4_k_mv", NULL},
    {"2 rows are a small batch", L(BE_Q4_K, 2, 256, 7), 0, "kx_linear_q4_k_ext", NULL},
    {"8 rows too", L(BE_Q4_K, 8, 256, 7), 0, "kx_linear_q4_k_ext", NULL},
    {"9 rows are a mat-mat", L(BE_Q4_K, 9, 256, 7), 0, "kx_linear_q4_k_mm", NULL},
    {"64 rows too", L(BE_Q4_K, 64, 256, 7), 0, "kx_linear_q4_k_mm", NULL},
    {"65 rows are big", L(BE_Q4_K, 65, 256, 7), 0, "kx_linear_q4_k_big", NULL},
    {"big on an old device",
     {.op = BE_KOP_LINEAR, .wfmt = BE_Q4_K, .rows = 65, .k = 256, .n = 7, .arch = 75},
     0,
     "kx_linear_q4_k_mm",
     NULL},
    {"a class without a kernel takes its neighbour's", L(BE_Q5_0, 99, 32, 7), 0,
     "kx_linear_q5_0_ext", NULL},
    {"or the next larger", L(BE_Q5_0, 1, 32, 7), 0, "kx_linear_q5_0_ext", NULL},
    {"bundled for the very shape", L(BE_Q4_K, 1, 2560, 2048), 0, "kx_linear_q4_k_mv",
     "kx_q4_k_mv_2560"},
    {"not for its neighbour", L(BE_Q4_K, 1, 2560, 2049), 0, "kx_linear_q4_k_mv", NULL},
    {"exact without a bucket", L(BE_Q8_0, 1, 64, 64), 0, NULL, "kx_q8_0_mv_64"},
    {"a run-time epilogue", L(BE_Q4_K, 1, 256, 7, .epi = BE_EPI_ADD), 0, "kx_linear_q4_k_mv", NULL},
    {"geglu has a kernel of its own", L(BE_Q4_K, 1, 256, 7, .epi = BE_EPI_GEGLU), 0,
     "kx_linear_q4_k_mv_geglu", NULL},
    {"which may be missing", L(BE_Q5_0, 2, 32, 7, .epi = BE_EPI_GEGLU), BE_KPLAN_MISSING_KERNEL,
     NULL, NULL},
    {"unknown epilogue", L(BE_Q4_K, 1, 256, 7, .epi = 9), BE_KPLAN_UNSUPPORTED_OP, NULL, NULL},
    {"no rows", L(BE_Q4_K, 0, 256, 7), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"no columns", L(BE_Q4_K, 1, 0, 7), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"no outputs", L(BE_Q4_K, 1, 256, 0), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"columns off the block", L(BE_Q4_K, 1, 128, 7), BE_KPLAN_WRONG_STORAGE, NULL, NULL},
    {"unknown format", L(4, 1, 256, 7), BE_KPLAN_WRONG_STORAGE, NULL, NULL},
    {"format without a kernel", L(BE_Q5_K, 1, 256, 7), BE_KPLAN_MISSING_KERNEL, NULL, NULL},
    {"columns past the kernel's range", L(BE_Q4_K, 1, 1 << 21, 7), BE_KPLAN_UNPROFITABLE_SHAPE,
     NULL, NULL},
    {"switched off", L(BE_Q4_K, 1, 256, 7, .disabled = true), BE_KPLAN_BACKEND_DISABLED, NULL,
     NULL},
    {"floats, exact", L(BE_F16, 9, 64, 7), 0, "kx_linear_f16_mm", NULL},
    {"floats, fast", L(BE_F16, 9, 64, 7, .numerics = BE_KNUM_FAST), 0, "kx_linear_f16_fast_mm",
     NULL},
    {"fast for one row means fast for all", L(BE_F16, 1, 64, 7, .numerics = BE_KNUM_FAST), 0,
     "kx_linear_f16_fast_mm", NULL},
    {"fast where it does not fit", L(BE_F16, 9, 63, 7, .numerics = BE_KNUM_FAST), 0,
     "kx_linear_f16_mm", NULL},
    {"nor for one row", L(BE_F16, 1, 63, 7, .numerics = BE_KNUM_FAST), 0, "kx_linear_f16_mv", NULL},
    {"fast, few rows", L(BE_BF16, 1, 64, 7, .numerics = BE_KNUM_FAST), 0, "kx_linear_bf16_fast_few",
     NULL},
    {"fast, 64 rows are few", L(BE_BF16, 64, 64, 7, .numerics = BE_KNUM_FAST), 0,
     "kx_linear_bf16_fast_few", NULL},
    {"fast, many rows", L(BE_BF16, 65, 64, 7, .numerics = BE_KNUM_FAST), 0,
     "kx_linear_bf16_fast_mm", NULL},
    {"fast, many rows, only few fits", L(BE_BF16, 65, 63, 7, .numerics = BE_KNUM_FAST), 0,
     "kx_linear_bf16_fast_few", NULL},
    {"fast on an old device",
     {.op = BE_KOP_LINEAR,
      .wfmt = BE_F16,
      .rows = 9,
      .k = 64,
      .n = 7,
      .numerics = BE_KNUM_FAST,
      .arch = 75},
     0,
     "kx_linear_f16_mm",
     NULL},
    {"tf32, one row", L(BE_F32, 1, 64, 7, .numerics = BE_KNUM_TF32), 0, "kx_linear_f32_tf32_few",
     NULL},
    {"tf32, many rows", L(BE_F32, 65, 64, 7, .numerics = BE_KNUM_TF32), 0, "kx_linear_f32_tf32_mm",
     NULL},
    {"tf32 is for f32 weights alone", L(BE_F16, 9, 64, 7, .numerics = BE_KNUM_TF32), 0,
     "kx_linear_f16_mm", NULL},
    {"and never for others", L(BE_F32, 9, 64, 7), 0, "kx_linear_f32_mm", NULL},
    {"fast never touches quantized weights", L(BE_Q4_K, 9, 256, 7, .numerics = BE_KNUM_FAST), 0,
     "kx_linear_q4_k_mm", NULL},
    {"attention with its head_dim compiled in", A(64, 8, 2), 0, "kx_attn_d64_f16_pass", NULL},
    {"in splits", A(64, 8, 2, .split = true), 0, "kx_attn_d64_f16_split", NULL},
    {"any head_dim", A(80, 8, 2), 0, "kx_attn_any_f16_pass", NULL},
    {"any on an old device",
     {.op = BE_KOP_ATTN,
      .kv_dtype = BE_F16,
      .rows = 7,
      .head_dim = 64,
      .q_heads = 8,
      .kv_heads = 2,
      .arch = 75},
     0,
     "kx_attn_any_f16_pass",
     NULL},
    {"any in splits is missing", A(80, 8, 2, .split = true), BE_KPLAN_MISSING_KERNEL, NULL, NULL},
    {"odd head_dim", A(81, 8, 2), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"uneven groups", A(64, 8, 3), BE_KPLAN_UNSUPPORTED_OP, NULL, NULL},
    {"no keys' heads", A(64, 8, 0), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"cache type", AK(BE_Q4_0, 64, 8, 2), BE_KPLAN_WRONG_STORAGE, NULL, NULL},
    {"int8 cache off its block", AK(BE_Q8_0, 80, 8, 2), BE_KPLAN_WRONG_STORAGE, NULL, NULL},
    {"int8 cache without a kernel", AK(BE_Q8_0, 64, 8, 2), BE_KPLAN_MISSING_KERNEL, NULL, NULL},
    {"packed", P(64), 0, "kx_attn_packed_d64_f32", NULL},
    {"packed, any head_dim", P(48), 0, "kx_attn_packed_any_f32", NULL},
    {"packed halves, a kernel of their own", P(128, .act = BE_KACT_F16), 0,
     "kx_attn_packed_d128_f16", NULL},
    {"packed halves take the kernel for any head_dim, never that of floats",
     P(64, .act = BE_KACT_F16), 0, "kx_attn_packed_any_f32", NULL},
    {"packed halves, what only sm_90 has", P(256, .act = BE_KACT_F16), 0,
     "kx_attn_packed_d256_wg_f16", NULL},
    {"packed halves on a newer device",
     {.op = BE_KOP_ATTN_PACKED,
      .act = BE_KACT_F16,
      .rows = 7,
      .head_dim = 256,
      .q_heads = 4,
      .kv_heads = 4,
      .arch = 100},
     0,
     "kx_attn_packed_d256_f16",
     NULL},
    {"packed halves on an old device",
     {.op = BE_KOP_ATTN_PACKED,
      .act = BE_KACT_F16,
      .rows = 7,
      .head_dim = 128,
      .q_heads = 4,
      .kv_heads = 4,
      .arch = 75},
     0,
     "kx_attn_packed_any_f32",
     NULL},
    {"relative positions", REL(64, .act = BE_KACT_F16), 0, "kx_attn_rel_d64_f16", NULL},
    {"relative positions, floats", REL(64), 0, "kx_attn_rel_any_f32", NULL},
    {"relative positions, tf32", REL(64, .numerics = BE_KNUM_TF32), 0, "kx_attn_rel_d64_tf32_f32",
     NULL},
    {"relative positions, tf32 permitted and not there", REL(48, .numerics = BE_KNUM_TF32), 0,
     "kx_attn_rel_any_f32", NULL},
    {"relative positions, wide heads", REL(256), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"packed, odd head_dim", P(81), BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"packed, int8 rows", P(64, .act = BE_KACT_Q8_0), BE_KPLAN_UNSUPPORTED_OP, NULL, NULL},
    {"norm", {.op = BE_KOP_RMS_NORM, .rows = 1, .k = 640, .arch = 75}, 0, "kx_rms_norm", NULL},
    {"norm too wide",
     {.op = BE_KOP_RMS_NORM, .rows = 1, .k = 8193, .arch = 75},
     BE_KPLAN_UNPROFITABLE_SHAPE,
     NULL,
     NULL},
    {"quantization for blocks of 256",
     {.op = BE_KOP_QUANT, .wfmt = BE_Q4_K, .rows = 1, .k = 512, .arch = 75},
     0,
     "kx_quant",
     NULL},
    {"quantization for floats",
     {.op = BE_KOP_QUANT, .wfmt = BE_F16, .rows = 1, .k = 512, .arch = 75},
     BE_KPLAN_WRONG_STORAGE,
     NULL,
     NULL},
    {"embedding",
     {.op = BE_KOP_EMBED, .wfmt = BE_Q8_0, .rows = 3, .k = 64, .arch = 75},
     0,
     "kx_embed_q8_0",
     NULL},
    {"repacking",
     {.op = BE_KOP_REPACK, .wfmt = BE_Q8_0, .rows = 3, .k = 64, .arch = 75},
     0,
     "kx_repack_q8_0",
     NULL},
    {"rotation",
     {.op = BE_KOP_ROPE, .rows = 3, .head_dim = 64, .q_heads = 4, .arch = 75},
     0,
     "kx_rope",
     NULL},
    {"rotation and cache write in one",
     {.op = BE_KOP_ROPE,
      .fused_kv = true,
      .kv_dtype = BE_F16,
      .rows = 3,
      .head_dim = 64,
      .q_heads = 4,
      .kv_heads = 2,
      .arch = 75},
     0,
     "kx_rope_kv",
     NULL},
    {"without keys",
     {.op = BE_KOP_ROPE,
      .fused_kv = true,
      .kv_dtype = BE_F16,
      .rows = 3,
      .head_dim = 64,
      .q_heads = 4,
      .arch = 75},
     BE_KPLAN_UNPROFITABLE_SHAPE,
     NULL,
     NULL},
    {"no such fusion",
     {.op = BE_KOP_RMS_NORM, .fused_kv = true, .rows = 3, .k = 64, .arch = 75},
     BE_KPLAN_UNSUPPORTED_OP,
     NULL,
     NULL},
    {"a candidate is never picked",
     {.op = BE_KOP_GATHER, .rows = 3, .k = 64, .arch = 75},
     BE_KPLAN_MISSING_KERNEL,
     NULL,
     NULL},
    {"columns not known yet", L(BE_Q4_K, 1, 0, 0, .open = true), 0, "kx_linear_q4_k_mv", NULL},
    {"the rows say the class, so they must be known", L(BE_Q4_K, 0, 256, 7, .open = true),
     BE_KPLAN_UNPROFITABLE_SHAPE, NULL, NULL},
    {"what is made for one shape does not serve an open one", L(BE_Q8_0, 1, 64, 0, .open = true),
     BE_KPLAN_MISSING_KERNEL, NULL, NULL},
    {"heads of queries not known yet", A(64, 0, 2, .open = true), 0, "kx_attn_d64_f16_pass", NULL},
    {"what is known is still checked", A(81, 0, 2, .open = true), BE_KPLAN_UNPROFITABLE_SHAPE, NULL,
     NULL},
    {"a head_dim compiled in does not serve an open one", A(0, 8, 2, .open = true), 0,
     "kx_attn_any_f16_pass", NULL},
    {"unknown operation", {.op = 99, .rows = 1, .arch = 90}, BE_KPLAN_UNSUPPORTED_OP, NULL, NULL},
    {"no operation", {.rows = 1, .arch = 90}, BE_KPLAN_UNSUPPORTED_OP, NULL, NULL},
};

static bool is(const struct be_kentry *e, const char *name)
{
    return e ? name && strcmp(e->name, name) == 0 : !name;
}

static void plans(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct be_kplan p;
        char text[256];

        be_kplan_make(fams, &rows[i].r, &p);
        if (p.why != rows[i].why || !is(p.bucket, rows[i].bucket) || !is(p.exact, rows[i].exact))
            fail_msg("%s: %s, bucket %s, exact %s (asked for '%s')", rows[i].what,
                     be_kplan_why_name(p.why), p.bucket ? p.bucket->name : "none",
                     p.exact ? p.exact->name : "none", p.name);
        be_kplan_text(&rows[i].r, &p, text, sizeof(text));
        if (p.why != BE_KPLAN_OK && !strstr(text, be_kplan_why_name(p.why)))
            fail_msg("%s: message '%s'", rows[i].what, text);
    }
}

static void classes(void **state)
{
    static const struct {
        uint32_t n;
        enum be_kclass c;
    } c[] = {{1, BE_KCLASS_MV},  {2, BE_KCLASS_EXT},  {8, BE_KCLASS_EXT},         {9, BE_KCLASS_MM},
             {64, BE_KCLASS_MM}, {65, BE_KCLASS_BIG}, {UINT32_MAX, BE_KCLASS_BIG}};

    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++)
        assert_int_equal(be_kplan_class(c[i].n), c[i].c);
    for (int k = 0; k < BE_KCLASS_COUNT; k++) {
        uint32_t least = be_kplan_class_rows((enum be_kclass)k);

        assert_int_equal(be_kplan_class(least), k);
        assert_true(k == 0 || be_kplan_class(least - 1) == (enum be_kclass)(k - 1));
    }
}

static const struct be_kentry *by_name(const char *name)
{
    for (uint32_t i = 0; i < count(); i++)
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    fail_msg("no entry '%s'", name);
    return NULL;
}

static void exact_copies_have_fixed_dimensions(void **state)
{
    struct be_kplan_req r = L(BE_Q4_K, 1, 768, 2048), a = A(64, 8, 2),
                        n = {.op = BE_KOP_RMS_NORM, .rows = 1, .k = 640, .arch = 75};
    struct be_kentry e, again;
    char id[65], id2[65];

    assert_true(be_kplan_exact(&entries[0], &r, &e));
    assert_string_equal(e.name, entries[0].name);
    assert_true(e.desc.k.fixed && e.desc.k.min == 768 && e.desc.k.max == 768 &&
                e.desc.k.mult == 256);
    assert_true(e.desc.n.fixed && e.desc.n.max == 2048 && !e.desc.rows.fixed);
    be_kdesc_id(&entries[0].desc, id);
    be_kdesc_id(&e.desc, id2);
    assert_string_not_equal(id, id2);
    assert_true(be_kplan_serves(&e, &r));
    assert_true(be_kdesc_overlaps(&e.desc, &entries[0].desc));
    r.n = 2047;
    assert_false(be_kplan_serves(&e, &r));
    assert_false(be_kplan_exact(&e, &r, &again)); /* made for another shape */
    r.n = 2048;
    assert_false(be_kplan_exact(&e, &r, &again)); /* nothing left to fix */
    r.rows = 2;
    assert_false(be_kplan_exact(&entries[0], &r, &again)); /* another row class */
    assert_true(be_kplan_exact(by_name("kx_attn_any_f16_pass"), &a, &e));
    assert_true(e.desc.q_heads.fixed && e.desc.q_heads.max == 8 && e.desc.kv_heads.max == 2);
    assert_true(be_kplan_exact(by_name("kx_rms_norm"), &n, &e));
    assert_true(e.desc.k.fixed && e.desc.k.max == 640);
}

static void every_refusal_has_a_name(void **state)
{
    for (int w = 0; w < BE_KPLAN_WHY_COUNT; w++)
        assert_string_not_equal(be_kplan_why_name(w), "unknown");
    assert_string_equal(be_kplan_why_name(BE_KPLAN_WRONG_STORAGE), "wrong_storage");
    assert_string_equal(be_kplan_why_name(BE_KPLAN_WHY_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),
        cmocka_unit_test(classes),
        cmocka_unit_test(exact_copies_have_fixed_dimensions),
        cmocka_unit_test(every_refusal_has_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
