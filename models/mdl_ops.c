/* mdl_ops.c - operations of be.h in the shape that families mostly call them in: a product with one
 * matrix, an RMS norm. Nothing else: what has more parts is called as it is.
 * Tests: those of every family. */
#include "mdl_impl.h"

enum rc mdl_dense(struct be_ctx *be, const struct be_tensor *x, const struct be_weight *w,
                  const struct be_weight *bias, struct be_tensor *out, uint32_t n, enum be_epi epi,
                  struct rc_err *err)
{
    struct be_linear_args a = {.x = x, .n = n, .n_parts = 1, .epi = epi};

    a.part[0].w = w;
    a.part[0].b = bias;
    a.part[0].out = out;
    return be_linear(be, &a, err);
}

enum rc mdl_rms_norm(struct be_ctx *be, const struct be_tensor *x, const struct be_weight *w,
                     const struct be_tensor *add, struct be_tensor *out, uint32_t n, float eps,
                     struct rc_err *err)
{
    struct be_rms_norm_args a = {.x = x, .w = w, .add = add, .out = out, .n = n, .eps = eps};

    return be_rms_norm(be, &a, err);
}
