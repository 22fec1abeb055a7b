/* be_impl.h - for those who write a backend: the table behind be.h.
 *
 * A backend exports one const struct be_ops; be.c lists them and dispatches.
 * Read fail/ first when writing a new one.
 */
#ifndef INFERD_BE_IMPL_H
#define INFERD_BE_IMPL_H

#include "be.h"

struct be_ctx {
    const struct be_ops *ops;
    bool sealed;
    uint64_t moved; /* be_ctx_moved; written by be.c alone */
    /* a backend's own context begins with this struct */
};

struct be_ops {
    const char *name;
    enum rc (*ctx_new)(struct be_ctx **out, const struct be_opts *o, struct rc_err *err);
    void (*ctx_free)(struct be_ctx **ctx);
    void (*seal)(struct be_ctx *); /* optional: nothing is done */
    void (*stats)(const struct be_ctx *, struct be_stats *out);
    bool (*supports)(const struct be_ctx *, enum be_dtype, unsigned use);
    enum rc (*sync)(struct be_ctx *, struct rc_err *); /* optional: no-op */
    enum rc (*weight_new)(struct be_ctx *, const struct be_weight_desc *, struct be_weight **,
                          struct rc_err *);
    void (*weight_free)(struct be_ctx *, struct be_weight **);
    enum rc (*tensor_new)(struct be_ctx *, uint32_t, uint32_t, struct be_tensor **,
                          struct rc_err *);
    void (*tensor_free)(struct be_ctx *, struct be_tensor **);
    enum rc (*tensor_write)(struct be_ctx *, struct be_tensor *, uint32_t, uint32_t, const float *,
                            struct rc_err *);
    enum rc (*tensor_read)(struct be_ctx *, const struct be_tensor *, uint32_t, uint32_t, float *,
                           struct rc_err *);
    const float *(*tensor_view)(struct be_ctx *, const struct be_tensor *);
    enum rc (*kv_new)(struct be_ctx *, const struct be_kv_desc *, struct be_kv **, struct rc_err *);
    void (*kv_free)(struct be_ctx *, struct be_kv **);
    enum rc (*embed)(struct be_ctx *, const struct be_embed_args *, struct rc_err *);
    enum rc (*rms_norm)(struct be_ctx *, const struct be_rms_norm_args *, struct rc_err *);
    enum rc (*layer_norm)(struct be_ctx *, const struct be_layer_norm_args *, struct rc_err *);
    enum rc (*linear)(struct be_ctx *, const struct be_linear_args *, struct rc_err *);
    enum rc (*rope)(struct be_ctx *, const struct be_rope_args *, struct rc_err *);
    enum rc (*kv_write)(struct be_ctx *, const struct be_kv_write_args *, struct rc_err *);
    enum rc (*attention)(struct be_ctx *, const struct be_attention_args *, struct rc_err *);
    enum rc (*attention_packed)(struct be_ctx *, const struct be_attention_packed_args *,
                                struct rc_err *);
    enum rc (*spans)(struct be_ctx *, const struct be_spans_args *,
                     struct rc_err *); /* optional: the host computes them */
    enum rc (*gather)(struct be_ctx *, const struct be_gather_args *, struct rc_err *);
    enum rc (*softcap)(struct be_ctx *, const struct be_softcap_args *, struct rc_err *);
    enum rc (*scale)(struct be_ctx *, const struct be_scale_args *,
                     struct rc_err *); /* optional: RC_UNSUPPORTED */
    enum rc (*pool)(struct be_ctx *, const struct be_pool_args *, struct rc_err *);
    enum rc (*argmax)(struct be_ctx *, const struct be_argmax_args *, struct rc_err *);
    enum rc (*sample)(struct be_ctx *, const struct be_sample_args *,
                      struct rc_err *); /* optional: none */
    /* eyes and ears: all or none, optional: RC_UNSUPPORTED */
    enum rc (*act)(struct be_ctx *, const struct be_act_args *, struct rc_err *);
    enum rc (*glu)(struct be_ctx *, const struct be_glu_args *, struct rc_err *);
    enum rc (*affine)(struct be_ctx *, const struct be_affine_args *, struct rc_err *);
    enum rc (*rope2d)(struct be_ctx *, const struct be_rope2d_args *, struct rc_err *);
    enum rc (*unfold)(struct be_ctx *, const struct be_unfold_args *, struct rc_err *);
    enum rc (*conv1d)(struct be_ctx *, const struct be_conv1d_args *, struct rc_err *);
    enum rc (*attention_local)(struct be_ctx *, const struct be_attention_local_args *,
                               struct rc_err *);
    enum rc (*attention_rel)(struct be_ctx *, const struct be_attention_rel_args *,
                             struct rc_err *); /* optional: RC_UNSUPPORTED */
    void (*kstats)(const struct be_ctx *, struct be_kstats *out); /* optional: zeros */
    char *(*report)(const struct be_ctx *);                       /* optional: nothing to tell */
};

extern const struct be_ops be_cpu_ops, be_cuda_ops;

/* be_spans.c: spans of the words [i0, i1) of n, over rows that the host can read; a, b: of word 0. */
void be_spans_rows(const struct be_spans_args *args, const float *a, const float *b, const float *g,
                   uint32_t i0, uint32_t i1);

#endif
