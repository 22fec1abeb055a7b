/* be_klinear.h - what the parts of the linear family share: its formats, its kinds of
 * kernel, and the plan that a renderer reads out of an IR tree. Private to
 * be_kfam_linear.c, be_kref_linear*.c, be_kcuda_linear*.c, be_kmetal_linear.c.
 */
#ifndef INFERD_BE_KLINEAR_H
#define INFERD_BE_KLINEAR_H

#include "be_kir.h"

/* How a weight format is multiplied. */
enum be_klin_class {
    BE_KLC_FLOAT, /* fma over chunks of 8 columns */
    BE_KLC_32,    /* int8 blocks of 32 columns */
    BE_KLC_256    /* int8 superblocks of 256 columns, a scale per 32 (Q6_K: per 16) */
};
struct be_klin_fmt {
    enum be_dtype dtype;
    const char *word; /* "q4_0" */
    enum be_klin_class cls;
    uint32_t code_bytes; /* plane 0, per sub-block (floats: per value) */
    uint32_t bits_bytes; /* plane of high bits, per sub-block */
    bool min;            /* has a minimum */
    uint32_t zero;       /* subtracted from each code */
};
const struct be_klin_fmt *be_klin_fmt_get(uint32_t dtype);

/* Columns of the row that a mat-vec stages at a time. */
#define BE_KLIN_MV_CODES 16384u
/* Tiles of a mat-vec of 32-column blocks, codes given, up to which each is BE_KLIN_MV_WIDE blocks:
 * more would not run at once on the devices at hand. Of a gated one, from half of BE_KLIN_MV_STREAM
 * columns of x to all of them, BE_KLIN_MV_STAY blocks stay and take what comes (kx_linear_mv32.cu). */
#define BE_KLIN_MV_FEW 160u
#define BE_KLIN_MV_STREAM 2048u
#define BE_KLIN_MV_STAY 528u
#define BE_KLIN_MV_WIDE 4u /* blocks of a tile of few columns */
#define BE_KLIN_MV_FLOATS 4096u
#define BE_KLIN_EXT_FLOATS 1024u

enum be_klin_kind {
    BE_KLK_REPACK,
    BE_KLK_MV,   /* one row, or a few: weights from memory to registers, 8 lanes a weight row */
    BE_KLK_TILE, /* tiles through shared memory, sched says how large */
    BE_KLK_FAST  /* half or tf32 products on tensor cores */
};
/* What a tree of this family says, node by node. */
struct be_klin_plan {
    enum be_klin_kind kind;
    const struct be_klin_fmt *f;
    bool geglu, tf32;
    uint32_t epi; /* 0xff at run time */
};
/* RC_INTERNAL names the node that is not where it should be. */
enum rc be_klin_plan_get(const struct be_kir *k, struct be_klin_plan *out, struct rc_err *err);

enum rc be_klin_run(const struct be_kir *k, const void *args, struct rc_err *err);
enum rc be_klin_repack(const struct be_klin_fmt *f, const void *args, struct rc_err *err);
enum rc be_klin_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_klin_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);
enum rc be_klin_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_klin_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);

#endif
