/* be_ktower.h - what the files of family be_kfam_tower share: the kernels of eyes and ears.
 *
 * A value of an output is computed by one thread from what it needs (attention over the last
 * rows: by a warp, lane l having columns l, l + 32 ..., sums over columns as a butterfly of 32
 * lanes), so no result depends on how many rows share a launch. Private.
 * Tests: tests/backends/test_be_ktower.c
 */
#ifndef INFERD_BE_KTOWER_H
#define INFERD_BE_KTOWER_H

#include "be_kargs.h"
#include "be_kir.h"
#include "kx_tower_args.h"

/* id, name, operation, argument struct */
#define BE_KTOWER_MAP(X)                        \
    X(ACT, act, BE_KOP_ACT, kx_act)             \
    X(GLU, glu, BE_KOP_GLU, kx_glu)             \
    X(AFFINE, affine, BE_KOP_AFFINE, kx_affine) \
    X(ROPE2D, rope2d, BE_KOP_ROPE2D, kx_rope2d) \
    X(UNFOLD, unfold, BE_KOP_UNFOLD, kx_unfold) \
    X(CONV1D, conv1d, BE_KOP_CONV1D, kx_conv1d) \
    X(ATTN_LOCAL, attn_local, BE_KOP_ATTN_LOCAL, kx_attn_local)

enum be_ktower {
#define X(id, name, op, type) BE_KTOWER_##id,
    BE_KTOWER_MAP(X)
#undef X
        BE_KTOWER_COUNT
};
/* The kernel's number; BE_KTOWER_COUNT: none of ours. */
enum be_ktower be_ktower_of(const char *name);

#define BE_KTOWER_LIB "tower"
#define BE_KTOWER_THREADS 128u
#define BE_KTOWER_TAPS 64u /* of a convolution, and keys of attention over the last rows */

enum rc be_ktower_run(const struct be_kir *k, const void *args, struct rc_err *err);
enum rc be_ktower_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_ktower_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);
enum rc be_ktower_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_ktower_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);
/* The text of an embedded file. */
enum rc be_ktower_file(const char *name, struct be_ktext *out, struct rc_err *err);

#endif
