/* be_krows.h - what the files of family be_kfam_rows share: which kernels there are, and
 * the numbers that device text, executor and launch geometry must agree on.
 *
 * A row is taken in blocks of 256 columns: warp w of the row's block takes blocks w,
 * w + warps ..., lane l of it columns 8 l .. 8 l + 7 of each. Sums over a row: each lane its
 * columns in ascending order, lanes as a butterfly (16, 8, 4, 2, 1), warps as a butterfly of 32
 * with zeros for those that are not there. warps depends on the row's length alone, so a row has
 * the same bits in every launch. Private. Tests: tests/backends/test_be_krows*.c
 */
#ifndef INFERD_BE_KROWS_H
#define INFERD_BE_KROWS_H

#include "be_kargs.h"
#include "be_kir.h"

/* id, name, library, operation, argument struct, most threads of a block. */
#define BE_KROW_MAP(X)                                                      \
    X(QUANT, quant, "rows", BE_KOP_QUANT, kx_quant, 128)                    \
    X(RMS_NORM, rms_norm, "rows", BE_KOP_RMS_NORM, kx_norm, 1024)           \
    X(LAYER_NORM, layer_norm, "rows", BE_KOP_LAYER_NORM, kx_norm, 1024)     \
    X(ROPE, rope, "rows", BE_KOP_ROPE, kx_rope, 512)                        \
    X(KV_WRITE, kv_write, "rows", BE_KOP_KV_WRITE, kx_kv_write, 128)        \
    X(ROPE_KV, rope_kv, "rows", BE_KOP_ROPE, kx_rope_kv, 512)            \
    X(GATHER, gather, "rows", BE_KOP_GATHER, kx_gather, 256)                \
    X(SOFTCAP, softcap, "rows", BE_KOP_SOFTCAP, kx_softcap, 128)            \
    X(SCALE, scale, "rows", BE_KOP_SCALE, kx_scale, 128)                    \
    X(POOL, pool, "rows", BE_KOP_POOL, kx_pool, 256)                        \
    X(ARGMAX_PART, argmax_part, "rows", BE_KOP_ARGMAX_PART, kx_argmax, 256) \
    X(ARGMAX, argmax, "rows", BE_KOP_ARGMAX, kx_argmax, 256)                \
    X(SAMPLE_PART, sample_part, "rows", BE_KOP_SAMPLE_PART, kx_sample, 512) \
    X(SAMPLE, sample, "rows", BE_KOP_SAMPLE, kx_sample, 1024)               \
    X(CONVERT, convert, "rows", BE_KOP_CONVERT, kx_convert, 128)            \
    X(MUL, mul, "rows", BE_KOP_MUL, kx_mul, 128)

enum be_krow {
#define X(id, name, lib, op, type, threads) BE_KROW_##id,
    BE_KROW_MAP(X)
#undef X
        BE_KROW_EMBED, /* kx_embed_<format>, one for each */
    BE_KROW_COUNT
};
/* The kernel's number; BE_KROW_COUNT: none of ours. */
enum be_krow be_krow_of(const char *name);

/* Blocks of 256 columns, and warps of the block that takes a row. */
static inline uint32_t be_krow_blocks(uint32_t k)
{
    return (k + 255) / 256;
}
static inline uint32_t be_krow_warps(uint32_t k)
{
    uint32_t b = be_krow_blocks(k);

    return b < 1 ? 1 : b > 32 ? 32 : b;
}
/* Warps of the block that turns a row's heads: enough to make the angles at once. */
static inline uint32_t be_krow_rope_warps(uint32_t n_heads, uint32_t head_dim)
{
    uint32_t w = (head_dim / 2 + 31) / 32;

    w = n_heads > w ? n_heads : w;
    return w < 1 ? 1 : w > 16 ? 16 : w;
}

/* Columns of each part of an arg-max: a multiple of 8. */
static inline uint32_t be_krow_argmax_span(uint32_t k, uint32_t parts)
{
    return ((k + parts - 1) / parts + 7) / 8 * 8;
}

enum rc be_krow_run(const struct be_kir *k, const void *args, struct rc_err *err);
enum rc be_krow_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_krow_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);
/* Functions that read and write values of rows, for the libraries of other families too. */
void be_krow_cuda_values(struct be_ktext *out);
enum rc be_krow_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_krow_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);

/* One node's text: node i of the IR must be of kind step[i].kind. */
struct be_krow_step {
    uint8_t kind;
    const char *text;
};
struct be_krow_text {
    const struct be_krow_step *step;
    uint32_t n_steps;
};

#endif
