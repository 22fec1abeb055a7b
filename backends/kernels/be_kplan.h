/* be_kplan.h - which kernel of the catalog serves an operation, or why none does.
 *
 * The only place that knows it: the cuda backend asks here for every kernel it loads. Pure
 * functions of the request and the catalog: the same request gives the same plan on every machine,
 * and a plan is made while a model loads, never on the token path. A plan that names a kernel was
 * checked against that kernel's descriptor. A refusal has one reason; the backend then takes the
 * reference route or refuses the load.
 *
 * Names are a convention between planner and families:
 *   kx_linear_<format>_{mv,ext,mm,big}[_geglu]   kx_linear_<f16|bf16|f32>_fast_{few,mm}[_geglu]
 *   kx_repack_<format>   kx_embed_<format>   kx_attn_{d<dim>,any}_<kv>_{pass,split}
 *   kx_attn_merge   kx_attn_{packed,rel}_d<dim>_{f32,f16}   kx_attn_{packed,rel}_any_f32 (reads
 * both) kx_rope_kv   kx_<operation> for the rest Source: engine.md 1.2. Tests:
 * tests/backends/test_be_kplan.c
 */
#ifndef INFERD_BE_KPLAN_H
#define INFERD_BE_KPLAN_H

#include "be_kir.h"

enum be_kplan_why {
    BE_KPLAN_OK,
    BE_KPLAN_UNSUPPORTED_OP,     /* no family computes this, or not with this epilogue */
    BE_KPLAN_UNPROFITABLE_SHAPE, /* a dimension is 0 or outside what the kernel is made for */
    BE_KPLAN_WRONG_STORAGE,      /* format or row length that has no layout on a device */
    BE_KPLAN_MISSING_KERNEL,     /* should exist by its name, and does not */
    BE_KPLAN_BACKEND_DISABLED,
    BE_KPLAN_WHY_COUNT
};
const char *be_kplan_why_name(enum be_kplan_why w); /* "wrong_storage" */

enum be_kclass { BE_KCLASS_MV, BE_KCLASS_EXT, BE_KCLASS_MM, BE_KCLASS_BIG, BE_KCLASS_COUNT };
/* Rows 1, 2 to 8, 9 to 64, 65 and more. n > 0. */
enum be_kclass be_kplan_class(uint32_t n_rows);
/* The least number of rows of a class. */
uint32_t be_kplan_class_rows(enum be_kclass c);

struct be_kplan_req {
    enum be_kop op;
    enum be_dtype wfmt;     /* LINEAR EMBED REPACK: of the weight; QUANT: of the weight it is for */
    enum be_dtype kv_dtype; /* ATTN, KV_WRITE */
    enum be_epi epi;        /* LINEAR */
    enum be_knum numerics;  /* LINEAR: FAST = compute f16, TF32 = tf32; ATTN_REL: TF32. Others: ignored */
    enum be_kact act;       /* ATTN_PACKED, ATTN_REL: F32 or F16 */
    uint32_t rows, k, n;    /* rows of this launch; columns; outputs of a LINEAR */
    uint32_t head_dim, q_heads, kv_heads;
    bool split;    /* ATTN: partial results for the merge */
    bool fused_kv; /* ROPE: with the cache write of the turned keys */
    bool open;     /* a dimension that is 0 is not known yet: kernels for a range of it serve */
    uint32_t arch; /* the device's, 75 and up */
    bool disabled; /* this backend, or kernels as such, are switched off */
};
struct be_kplan {
    enum be_kplan_why why;
    char name[64]; /* the kernel that was looked for; "" = none has a name */
    /* for a range of shapes, and for this very shape; one may be NULL, both when why is not OK */
    const struct be_kentry *bucket, *exact;
};
void be_kplan_make(const struct be_kfamily *const *families, const struct be_kplan_req *r,
                   struct be_kplan *out);
/* The message of a refusal: "no kernel for linear Q4_K ...: wrong_storage". */
void be_kplan_text(const struct be_kplan_req *r, const struct be_kplan *p, char *buf, size_t n);

/* Copy of base made for this request only: k and n (LINEAR), head_dim and heads (attention),
 * k (rows) become constants. false: base does not serve the request, or nothing can be fixed. */
bool be_kplan_exact(const struct be_kentry *base, const struct be_kplan_req *r,
                    struct be_kentry *out);
/* Is it made for one shape: everything fixed that be_kplan_exact would fix? */
bool be_kplan_is_exact(const struct be_kentry *e);
/* Does an artifact of e run on a device of this architecture? */
bool be_kplan_runs_on(const struct be_kentry *e, uint32_t arch);
/* Does an entry made for a single shape or range serve the request? */
bool be_kplan_serves(const struct be_kentry *e, const struct be_kplan_req *r);

#endif
