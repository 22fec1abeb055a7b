/* mdl_ops.c - operations of be.h in the shape that families mostly call them in: a product with one
 * matrix, an RMS norm, the self-attention of an encoder's layer. Nothing else: what is particular
 * to a family is called as it is. Source of attention: Vaswani et al. 2017, 3.2; of rotation: Su et
 * al. 2021. Tests: those of every family. */
#include <math.h>

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

static enum rc turn(struct be_ctx *be, const struct mdl_heads *h, struct be_tensor *x,
                    struct rc_err *err)
{
    const struct be_rope_args a = {.x = x,
                                   .pos = h->pos,
                                   .n = h->offsets[h->n_seqs],
                                   .n_heads = h->n_heads,
                                   .head_dim = h->head_dim,
                                   .theta = h->theta,
                                   .factor = 1};

    return h->theta != 0 ? be_rope(be, &a, err) : RC_OK;
}

enum rc mdl_attend(struct be_ctx *be, const struct mdl_heads *h, struct rc_err *err)
{
    const struct be_linear_args qkv = {
        .x = h->x,
        .n = h->offsets[h->n_seqs],
        .n_parts = 3,
        .part = {{.w = h->w[0], .b = h->b[0], .out = h->q},
                 {.w = h->w[1], .b = h->b[1], .out = h->k},
                 {.w = h->w[2], .b = h->b[2], .out = h->v}},
        .epi = BE_EPI_NONE,
    };
    const struct be_attention_packed_args a = {
        .q = h->q,
        .k = h->k,
        .v = h->v,
        .out = h->out,
        .offsets = h->offsets,
        .n_seqs = h->n_seqs,
        .n_heads = h->n_heads,
        .n_kv_heads = h->n_heads,
        .head_dim = h->head_dim,
        .scale = (float)(1 / sqrt((double)h->head_dim)),
        .radius = h->radius,
    };
    enum rc rc;

    if ((rc = be_linear(be, &qkv, err)) != RC_OK || (rc = turn(be, h, h->q, err)) != RC_OK ||
        (rc = turn(be, h, h->k, err)) != RC_OK)
        return rc;
    return be_attention_packed(be, &a, err);
}
