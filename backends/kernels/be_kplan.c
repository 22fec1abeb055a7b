/* be_kplan.c - the planner.
 *
 * can it run (operation, format, row length), then by name the kernel of the row class,
 * then should it run (its descriptor's ranges, the device). See be_kplan.h.
 * Tests: tests/backends/test_be_kplan.c
 */
#include "be_kplan.h"

#include "be_kart.h"

#include <stdio.h>
#include <string.h>

static const char *const whys[BE_KPLAN_WHY_COUNT] = {
    "ok",
    "unsupported_op",
    "unprofitable_shape",
    "wrong_storage",
    "missing_kernel",
    "backend_disabled",
};

const char *be_kplan_why_name(enum be_kplan_why w)
{
    return (unsigned)w < BE_KPLAN_WHY_COUNT ? whys[w] : "unknown";
}

enum be_kclass be_kplan_class(uint32_t n_rows)
{
    return n_rows <= 1    ? BE_KCLASS_MV
           : n_rows <= 8  ? BE_KCLASS_EXT
           : n_rows <= 64 ? BE_KCLASS_MM
                          : BE_KCLASS_BIG;
}

uint32_t be_kplan_class_rows(enum be_kclass c)
{
    static const uint32_t least[BE_KCLASS_COUNT] = {1, 2, 9, 65};

    return (unsigned)c < BE_KCLASS_COUNT ? least[c] : 0;
}

/* The products' kernels: of each numerics and class, the word in their names. A class may have
 * several rows, the best first: the first that exists for the format, and that the device and the
 * shape can use, serves. Numerics other than exact have words for floats only. */
static const struct {
    enum be_knum numerics;
    enum be_kclass cls;
    const char *word;
} products[] = {
    {BE_KNUM_EXACT, BE_KCLASS_MV, "mv"},      {BE_KNUM_EXACT, BE_KCLASS_EXT, "ext"},
    {BE_KNUM_EXACT, BE_KCLASS_MM, "mm"},      {BE_KNUM_EXACT, BE_KCLASS_BIG, "big"},
    {BE_KNUM_FAST, BE_KCLASS_MV, "fast_few"}, {BE_KNUM_FAST, BE_KCLASS_EXT, "fast_few"},
    {BE_KNUM_FAST, BE_KCLASS_MM, "fast_few"}, {BE_KNUM_FAST, BE_KCLASS_BIG, "fast_mm"},
    {BE_KNUM_TF32, BE_KCLASS_MV, "tf32_few"}, {BE_KNUM_TF32, BE_KCLASS_EXT, "tf32_few"},
    {BE_KNUM_TF32, BE_KCLASS_MM, "tf32_few"}, {BE_KNUM_TF32, BE_KCLASS_BIG, "tf32_mm"},
    {BE_KNUM_FAST, BE_KCLASS_BIG, "fast_wg"},
};
#define N_PRODUCTS (sizeof(products) / sizeof(products[0]))

/* Operations whose kernel has one name, and which dimensions a launch must have. */
enum { ROWS = 1, K = 2, N = 4, HEAD = 8, QH = 16, KVH = 32 };
static const struct {
    const char *name; /* NULL: made by name_of */
    uint8_t dims;
} ops[] = {
    [BE_KOP_QUANT] = {"kx_quant", ROWS | K},
    [BE_KOP_REPACK] = {NULL, ROWS | K},
    [BE_KOP_LINEAR] = {NULL, ROWS | K | N},
    [BE_KOP_EMBED] = {NULL, ROWS | K},
    [BE_KOP_RMS_NORM] = {"kx_rms_norm", ROWS | K},
    [BE_KOP_LAYER_NORM] = {"kx_layer_norm", ROWS | K},
    [BE_KOP_ROPE] = {"kx_rope", ROWS | HEAD | QH},
    [BE_KOP_KV_WRITE] = {"kx_kv_write", ROWS | HEAD | KVH},
    [BE_KOP_ATTN] = {NULL, ROWS | HEAD | QH | KVH},
    [BE_KOP_ATTN_MERGE] = {"kx_attn_merge", ROWS | HEAD | QH},
    [BE_KOP_ATTN_PACKED] = {NULL, ROWS | HEAD | QH | KVH},
    [BE_KOP_GATHER] = {"kx_gather", ROWS | K},
    [BE_KOP_SOFTCAP] = {"kx_softcap", ROWS | K},
    [BE_KOP_POOL] = {"kx_pool", ROWS | K},
    [BE_KOP_ARGMAX] = {"kx_argmax", ROWS | K},
    [BE_KOP_SAMPLE] = {"kx_sample", ROWS | K},
    [BE_KOP_CONVERT] = {"kx_convert", ROWS | K},
    [BE_KOP_ARGMAX_PART] = {"kx_argmax_part", ROWS | K},
    [BE_KOP_SAMPLE_PART] = {"kx_sample_part", ROWS | K},
    [BE_KOP_MUL] = {"kx_mul", ROWS | K},
    [BE_KOP_SCALE] = {"kx_scale", ROWS | K},
    [BE_KOP_ATTN_REL] = {NULL, ROWS | HEAD | QH | KVH},
    [BE_KOP_ACT] = {"kx_act", ROWS | K},
    [BE_KOP_GLU] = {"kx_glu", ROWS | K},
    [BE_KOP_AFFINE] = {"kx_affine", ROWS | K},
    [BE_KOP_ROPE2D] = {"kx_rope2d", ROWS | HEAD | QH},
    [BE_KOP_UNFOLD] = {"kx_unfold", ROWS | K},
    [BE_KOP_CONV1D] = {"kx_conv1d", ROWS | K},
    [BE_KOP_ATTN_LOCAL] = {"kx_attn_local", ROWS | HEAD | QH},
};
#define N_OPS (sizeof(ops) / sizeof(ops[0]))

static bool op_known(unsigned op)
{
    return op > 0 && op < N_OPS && ops[op].dims;
}

/* "q4_k" of "Q4_K" */
static void fmt_word(enum be_dtype t, char out[16])
{
    const char *s = be_dtype_name(t);
    size_t i = 0;

    for (; s[i] && i < 15; i++)
        out[i] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] - 'A' + 'a' : s[i]);
    out[i] = '\0';
}

/* Attention inside packed sequences: kernels by type of their rows. */
static bool is_packed(unsigned op)
{
    return op == BE_KOP_ATTN_PACKED || op == BE_KOP_ATTN_REL;
}

static bool uses_weight(unsigned op)
{
    return op == BE_KOP_LINEAR || op == BE_KOP_EMBED || op == BE_KOP_REPACK || op == BE_KOP_QUANT;
}

static bool uses_kv(const struct be_kplan_req *r)
{
    return r->op == BE_KOP_ATTN || r->op == BE_KOP_KV_WRITE ||
           (r->op == BE_KOP_ROPE && r->fused_kv);
}

static bool has_zero_dim(const struct be_kplan_req *r)
{
    uint8_t d = ops[r->op].dims;

    if (r->open) /* but the rows of a product, which say its class */
        return r->op == BE_KOP_LINEAR && !r->rows;
    return ((d & ROWS) && !r->rows) || ((d & K) && !r->k) || ((d & N) && !r->n) ||
           ((d & HEAD) && !r->head_dim) || ((d & QH) && !r->q_heads) ||
           ((d & KVH || r->fused_kv) && !r->kv_heads);
}

static bool has_storage(const struct be_kplan_req *r)
{
    if (uses_weight(r->op)) {
        if (!be_dtype_known(r->wfmt) || r->k % be_dtype_block(r->wfmt))
            return false;
        if (r->op == BE_KOP_QUANT && be_dtype_block(r->wfmt) == 1)
            return false; /* products of floats take floats */
    }
    if (uses_kv(r)) {
        if (r->kv_dtype != BE_F32 && r->kv_dtype != BE_F16 && r->kv_dtype != BE_Q8_0)
            return false;
        if (r->head_dim % be_dtype_block(r->kv_dtype))
            return false;
    }
    return true;
}

static bool op_possible(const struct be_kplan_req *r)
{
    if (!op_known(r->op))
        return false;
    if ((r->op == BE_KOP_LINEAR && (unsigned)r->epi > BE_EPI_GEGLU) ||
        (r->fused_kv && r->op != BE_KOP_ROPE))
        return false;
    if (is_packed(r->op) && r->act != BE_KACT_F32 && r->act != BE_KACT_F16)
        return false;
    /* heads of queries share those of keys evenly */
    if ((r->op == BE_KOP_ATTN || is_packed(r->op)) && r->kv_heads && r->q_heads % r->kv_heads)
        return false;
    return true;
}

static void linear_name(const struct be_kplan_req *r, const char *word, char out[64])
{
    char fmt[16];

    fmt_word(r->wfmt, fmt);
    snprintf(out, 64, "kx_linear_%s_%s%s", fmt, word, r->epi == BE_EPI_GEGLU ? "_geglu" : "");
}

/* Of every operation but LINEAR. dim: how attention's name says for which head_dim it is made. */
enum dim { DIM_ONE, DIM_WG, DIM_TF32, DIM_ANY };
static void name_of(const struct be_kplan_req *r, enum dim of, char out[64])
{
    char fmt[16], kv[16], dim[16];

    fmt_word(r->wfmt, fmt);
    fmt_word(r->kv_dtype, kv);
    snprintf(dim, sizeof(dim), of == DIM_ANY ? "any" : "d%u%s", r->head_dim,
             of == DIM_WG     ? "_wg"
             : of == DIM_TF32 ? "_tf32"
                              : "");
    switch (r->op) {
    case BE_KOP_REPACK:
        snprintf(out, 64, "kx_repack_%s", fmt);
        break;
    case BE_KOP_EMBED:
        snprintf(out, 64, "kx_embed_%s", fmt);
        break;
    case BE_KOP_ATTN:
        snprintf(out, 64, "kx_attn_%s_%s_%s", dim, kv, r->split ? "split" : "pass");
        break;
    case BE_KOP_ATTN_PACKED:
    case BE_KOP_ATTN_REL:
        /* the one for any head_dim reads rows of both types */
        snprintf(out, 64, "kx_attn_%s_%s_%s", r->op == BE_KOP_ATTN_REL ? "rel" : "packed", dim,
                 r->act == BE_KACT_F16 && of != DIM_ANY ? "f16" : "f32");
        break;
    default:
        snprintf(out, 64, "%s%s", ops[r->op].name,
                 r->op == BE_KOP_ROPE && r->fused_kv ? "_kv" : "");
        break;
    }
}

/* ------------------------------------------------------------- serving */

bool be_kplan_runs_on(const struct be_kentry *e, uint32_t arch)
{
    return e->min_arch == BE_KART_ONLY_ARCH ? arch == BE_KART_ONLY_ARCH : e->min_arch <= arch;
}

static bool in_dim(const struct be_kplan_req *r, const struct be_kdim *d, uint32_t v)
{
    if (v == 0 && r->open)
        return !d->fixed;
    return d->max == 0 || (v >= d->min && v <= d->max && (d->mult <= 1 || v % d->mult == 0));
}

static bool rows_class_fits(uint8_t c, uint32_t rows)
{
    switch (c) {
    case BE_KROWS_1:
        return rows == 1;
    case BE_KROWS_2_8:
        return rows >= 2 && rows <= 8;
    case BE_KROWS_9_64:
        return rows >= 9 && rows <= 64;
    case BE_KROWS_65:
        return rows >= 65;
    default:
        return true;
    }
}

static bool rows_fit(const struct be_kentry *e, const struct be_kplan_req *r)
{
    return !(ops[r->op].dims & ROWS) ||
           (in_dim(r, &e->desc.rows, r->rows) && rows_class_fits(e->desc.rows_class, r->rows));
}

/* The other dimensions; the name settled the rest. */
static bool cols_fit(const struct be_kentry *e, const struct be_kplan_req *r)
{
    const struct be_kdesc *d = &e->desc;
    uint8_t dims = ops[r->op].dims;

    return (!(dims & K) || in_dim(r, &d->k, r->k)) && (!(dims & N) || in_dim(r, &d->n, r->n)) &&
           (!(dims & HEAD) || in_dim(r, &d->head_dim, r->head_dim)) &&
           (!(dims & QH) || in_dim(r, &d->q_heads, r->q_heads)) &&
           (!(dims & KVH || r->fused_kv) || in_dim(r, &d->kv_heads, r->kv_heads));
}

static bool formats_fit(const struct be_kentry *e, const struct be_kplan_req *r)
{
    const struct be_kdesc *d = &e->desc;

    if (d->op != r->op)
        return false;
    if ((r->op == BE_KOP_LINEAR || r->op == BE_KOP_EMBED || r->op == BE_KOP_REPACK) &&
        d->wfmt != r->wfmt)
        return false;
    if (r->op == BE_KOP_LINEAR &&
        (d->epi == 0xff ? r->epi == BE_EPI_GEGLU : d->epi != (uint8_t)r->epi))
        return false;
    if (r->op == BE_KOP_LINEAR && d->numerics != r->numerics)
        return false;
    if (r->op == BE_KOP_ATTN &&
        (d->kv_dtype != r->kv_dtype || (d->phase == BE_KPHASE_SPLIT) != r->split))
        return false;
    if (r->op == BE_KOP_ROPE && (d->kv_paged != 0) != r->fused_kv)
        return false;
    if (is_packed(r->op) && d->act != BE_KACT_ANY && d->act != r->act)
        return false;
    return true;
}

bool be_kplan_serves(const struct be_kentry *e, const struct be_kplan_req *r)
{
    return op_possible(r) && formats_fit(e, r) && rows_fit(e, r) && cols_fit(e, r);
}

static const struct be_kentry *find(const struct be_kfamily *const *families, const char *name)
{
    for (size_t f = 0; families[f]; f++)
        for (uint32_t i = 0; i < families[f]->count(); i++)
            if (strcmp(families[f]->at(i)->name, name) == 0)
                return families[f]->at(i);
    return NULL;
}

bool be_kplan_is_exact(const struct be_kentry *e)
{
    const struct be_kdesc *d = &e->desc;

    switch (d->op) {
    case BE_KOP_LINEAR:
        return d->k.fixed && d->n.fixed;
    case BE_KOP_ATTN:
    case BE_KOP_ATTN_PACKED:
    case BE_KOP_ATTN_REL:
        return d->head_dim.fixed && d->q_heads.fixed && d->kv_heads.fixed;
    default:
        return d->k.fixed || d->head_dim.fixed;
    }
}

static const struct be_kentry *find_exact(const struct be_kfamily *const *families,
                                          const struct be_kplan_req *r)
{
    for (size_t f = 0; families[f]; f++) {
        for (uint32_t i = 0; i < families[f]->count(); i++) {
            const struct be_kentry *e = families[f]->at(i);

            if (e->production && be_kplan_runs_on(e, r->arch) && be_kplan_is_exact(e) &&
                be_kplan_serves(e, r))
                return e;
        }
    }
    return NULL;
}

/* The entry of that name, if this device and shape may use it. */
static enum be_kplan_why try_name(const struct be_kfamily *const *families,
                                  const struct be_kplan_req *r, bool any_rows, struct be_kplan *out)
{
    const struct be_kentry *e = find(families, out->name);

    if (!e || !e->production || !be_kplan_runs_on(e, r->arch) || !formats_fit(e, r))
        return BE_KPLAN_MISSING_KERNEL;
    if (!cols_fit(e, r) || !(any_rows || rows_fit(e, r)))
        return BE_KPLAN_UNPROFITABLE_SHAPE;
    out->bucket = e;
    return BE_KPLAN_OK;
}

/* The last kernel of class c that serves: those that need a newer device come later and have the
 * same bits. *why: of the one that comes first, when none does. */
static bool try_class(const struct be_kfamily *const *families, const struct be_kplan_req *r,
                      enum be_kclass c, enum be_kplan_why *why, struct be_kplan *out)
{
    for (size_t i = N_PRODUCTS; i-- > 0;) {
        enum be_kplan_why w;

        if (products[i].numerics != r->numerics || products[i].cls != c)
            continue;
        linear_name(r, products[i].word, out->name);
        if ((w = try_name(families, r, true, out)) == BE_KPLAN_OK)
            return true;
        *why = w;
    }
    return false;
}

/* The name that should have been there. */
static void own_name(const struct be_kplan_req *r, struct be_kplan *out)
{
    size_t i = 0;

    while (i + 1 < N_PRODUCTS &&
           (products[i].numerics != r->numerics || products[i].cls != be_kplan_class(r->rows)))
        i++;
    linear_name(r, products[i].word, out->name);
}

/* Its class's kernel, else a neighbour's, the smaller first: each is right for any number of rows.
 */
static enum be_kplan_why try_classes(const struct be_kfamily *const *families,
                                     const struct be_kplan_req *r, struct be_kplan *out)
{
    int own = (int)be_kplan_class(r->rows);
    enum be_kplan_why why = BE_KPLAN_MISSING_KERNEL, first = why;

    for (int i = 0; i < BE_KCLASS_COUNT; i++) {
        if (try_class(families, r, (enum be_kclass)(i <= own ? own - i : i), &why, out))
            return BE_KPLAN_OK;
        first = i == 0 || why == BE_KPLAN_UNPROFITABLE_SHAPE ? why : first;
    }
    own_name(r, out);
    return first;
}

/* Other numerics than exact are a permission, not a demand; but their bits differ, and a row's bits
 * may not depend on how many rows stand beside it: a weight is multiplied so at all row counts or
 * at none. */
static enum be_kplan_why try_linear(const struct be_kfamily *const *families,
                                    const struct be_kplan_req *r, struct be_kplan_req *eff,
                                    struct be_kplan *out)
{
    if (r->numerics != BE_KNUM_EXACT && be_dtype_block(r->wfmt) == 1 &&
        try_classes(families, r, out) == BE_KPLAN_OK)
        return BE_KPLAN_OK;
    eff->numerics = BE_KNUM_EXACT;
    return try_classes(families, eff, out);
}

static enum be_kplan_why try_all(const struct be_kfamily *const *families,
                                 const struct be_kplan_req *r, struct be_kplan_req *eff,
                                 struct be_kplan *out)
{
    enum be_kplan_why why;

    if (r->op == BE_KOP_LINEAR)
        return try_linear(families, r, eff, out);
    /* what only this device has, or what was permitted, comes first */
    if (r->op == BE_KOP_ATTN_PACKED || (r->op == BE_KOP_ATTN_REL && r->numerics == BE_KNUM_TF32)) {
        name_of(r, r->op == BE_KOP_ATTN_REL ? DIM_TF32 : DIM_WG, out->name);
        if (try_name(families, r, false, out) == BE_KPLAN_OK)
            return BE_KPLAN_OK;
    }
    name_of(r, DIM_ONE, out->name);
    why = try_name(families, r, false, out);
    if (why == BE_KPLAN_OK || (r->op != BE_KOP_ATTN && !is_packed(r->op)))
        return why;
    name_of(r, DIM_ANY, out->name);
    return try_name(families, r, false, out);
}

void be_kplan_make(const struct be_kfamily *const *families, const struct be_kplan_req *r,
                   struct be_kplan *out)
{
    struct be_kplan_req eff = *r;

    *out = (struct be_kplan){.why = BE_KPLAN_OK};
    if (r->disabled)
        out->why = BE_KPLAN_BACKEND_DISABLED;
    else if (!op_possible(r))
        out->why = BE_KPLAN_UNSUPPORTED_OP;
    else if (has_zero_dim(r))
        out->why = BE_KPLAN_UNPROFITABLE_SHAPE;
    else if (!has_storage(r))
        out->why = BE_KPLAN_WRONG_STORAGE;
    if (out->why != BE_KPLAN_OK)
        return;
    out->why = try_all(families, r, &eff, out);
    out->exact = find_exact(families, &eff);
    if (out->exact && out->bucket && be_kplan_is_exact(out->bucket))
        out->exact = NULL; /* nothing more exact than the kernel itself */
    if (out->exact && !out->bucket) {
        out->why = BE_KPLAN_OK;
        snprintf(out->name, sizeof(out->name), "%s", out->exact->name);
    }
}

void be_kplan_text(const struct be_kplan_req *r, const struct be_kplan *p, char *buf, size_t n)
{
    if (p->why == BE_KPLAN_OK)
        snprintf(buf, n, "%s", p->name);
    else if (uses_weight(r->op))
        snprintf(buf, n, "no kernel %s for %s weights, %u rows, %u columns, %u outputs: %s",
                 p->name, be_dtype_name(r->wfmt), r->rows, r->k, r->n, be_kplan_why_name(p->why));
    else
        snprintf(buf, n,
                 "no kernel %s for operation %d, %u rows, %u columns, %u/%u heads of %u: %s",
                 p->name, (int)r->op, r->rows, r->k, r->q_heads, r->kv_heads, r->head_dim,
                 be_kplan_why_name(p->why));
}

/* ------------------------------------------------------------- exact shapes */

static bool fix(struct be_kdim *d, uint32_t v)
{
    if (d->max == 0 || d->fixed)
        return false;
    *d = (struct be_kdim){v, v, d->mult, 1};
    return true;
}

bool be_kplan_exact(const struct be_kentry *base, const struct be_kplan_req *r,
                    struct be_kentry *out)
{
    struct be_kentry e = *base;
    bool any = false;

    if (!be_kplan_serves(base, r))
        return false;
    switch (r->op) {
    case BE_KOP_ATTN:
    case BE_KOP_ATTN_MERGE:
    case BE_KOP_ATTN_PACKED:
    case BE_KOP_ATTN_REL:
    case BE_KOP_ROPE:
    case BE_KOP_KV_WRITE:
        any |= fix(&e.desc.head_dim, r->head_dim);
        if (ops[r->op].dims & QH)
            any |= fix(&e.desc.q_heads, r->q_heads);
        if (ops[r->op].dims & KVH)
            any |= fix(&e.desc.kv_heads, r->kv_heads);
        break;
    case BE_KOP_LINEAR:
        any |= fix(&e.desc.n, r->n);
        any |= fix(&e.desc.k, r->k);
        break;
    default:
        any |= fix(&e.desc.k, r->k);
        break;
    }
    if (any)
        *out = e;
    return any;
}
