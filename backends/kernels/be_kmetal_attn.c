/* be_kmetal_attn.c - the attention family as Metal text: right and plain, not yet fast.
 *
 * One SIMD group per (query row, head), whatever the kernel's schedule on CUDA: launched with
 * threadgroups of 32, x over the rows of all tiles (rows_tile each), y over the query heads, z over
 * the splits of split kernels; merge: x over the rows, y over the heads. The functions
 * stand in kx_attn.metal. Tests: tests/backends/test_be_kmetal.c
 */
#include "be_kfam_attn.h"

#include <string.h>

#include "be_kargs.h"
#include "be_kart_impl.h"

static enum rc text(struct be_ktext *out, const char *name, struct rc_err *err)
{
    const struct be_kart_file *f = be_kart_file_find(be_kart_files, name);

    if (!f)
        return rc_fail_what(err, RC_INTERNAL, name, "'%s' is not embedded in this build", name);
    be_ktext_add(out, "%.*s", (int)f->art.n_bytes, f->art.data);
    return RC_OK;
}

enum rc be_kattn_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    enum rc rc;

    for (uint32_t i = 0; i < be_kfam_attn.count(); i++)
        if (strcmp(be_kfam_attn.at(i)->lib, lib) == 0) {
            if ((rc = text(out, "kx_attn_math.h", err)) != RC_OK)
                return rc;
            return text(out, "kx_attn.metal", err);
        }
    return rc_fail(err, RC_NOT_FOUND, "no attention kernel is in library '%s'", lib);
}

static enum rc node(const struct be_kir *k, const struct be_kattn_geo *g, const struct be_knode *n,
                    struct be_ktext *out, struct rc_err *err)
{
    const char *packed = g->packed ? "true" : "false", *mma = g->mma ? "true" : "false",
               *base2 = g->packed && g->mma ? "true" : "false",
               *hf = k->desc.numerics == BE_KNUM_FAST ? "true" : "false";
    int in = (int)(4 * n->depth);

    switch (n->kind) {
    case BE_KN_LOOP:
        if (g->merge)
            be_ktext_add(out, "    for (kx_u i = 0u; i < a.n_splits; i++) {\n");
        else if (n->imm == BE_KA_SPLIT && g->split)
            be_ktext_add(out, "    {\n");
        else if (n->imm == BE_KA_SPLIT)
            be_ktext_add(out, "    for (v.split = v.lo / KX_SPLIT; v.split * KX_SPLIT < v.hi;"
                              " v.split++) {\n");
        else
            be_ktext_add(out,
                         "%*skx_atm_fresh(s);\n"
                         "%*sfor (s.key0 = %s / %uu * %uu; s.key0 < %s; s.key0 += %uu) {\n",
                         in, "", in, "", g->packed ? "v.lo" : "max(v.lo, v.split * KX_SPLIT)",
                         n->imm2, n->imm2,
                         g->packed ? "v.hi" : "min(v.hi, (v.split + 1u) * KX_SPLIT)", n->imm2);
        return RC_OK;
    case BE_KN_BARRIER:  /* lanes of a SIMD group go together */
    case BE_KN_LOAD_ACT: /* queries and keys are read where they are used */
    case BE_KN_STAGE_KV:
        return RC_OK;
    case BE_KN_QK:
        be_ktext_add(out, "%*skx_atm_qk(v, s, lane, %uu, %uu, %s, %s);\n", in, "", g->key_tile,
                     k->desc.kv_dtype, packed, hf);
        return RC_OK;
    case BE_KN_REL:
        be_ktext_add(out, "%*skx_atm_rel(v, a, s, lane, %uu);\n", in, "", g->key_tile);
        return RC_OK;
    case BE_KN_MASK:
        be_ktext_add(out, "%*skx_atm_mask(v, s, lane, %uu, %s);\n", in, "", g->key_tile, base2);
        return RC_OK;
    case BE_KN_ONLINE_SOFTMAX:
        be_ktext_add(out, "%*skx_atm_softmax(s, lane, %uu, %s, %s, %s);\n", in, "", g->key_tile,
                     mma, base2, hf);
        return RC_OK;
    case BE_KN_PV:
        be_ktext_add(out, "%*skx_atm_pv(v, s, lane, %uu, %uu, %s);\n", in, "", g->key_tile,
                     k->desc.kv_dtype, packed);
        return RC_OK;
    case BE_KN_SPLIT_STORE:
        be_ktext_add(out, "%*skx_atm_split(v, s, lane);\n", in, "");
        return RC_OK;
    case BE_KN_SPLIT_MERGE:
        if (g->merge)
            be_ktext_add(out, "%*skx_atm_part(a, s, vec, i, lane);\n", in, "");
        else
            be_ktext_add(out, "%*skx_atm_join(s, s.m, kx_atm_l(s.l));\n", in, "");
        return RC_OK;
    case BE_KN_REDUCE:
        be_ktext_add(out, "%*skx_atm_join(s, s.m, kx_atm_l(s.l));\n", in, "");
        return RC_OK;
    case BE_KN_STORE:
        be_ktext_add(out, "%*skx_atm_store(v, s, lane);\n", in, "");
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no Metal text", be_knode_name(n->kind));
    }
}

static void head(const struct be_kir *k, const struct be_kattn_geo *g, struct be_ktext *out)
{
    be_ktext_add(out,
                 "kernel void %s(constant %s &a [[buffer(0)]],\n"
                 "    uint3 at [[threadgroup_position_in_grid]],\n"
                 "    uint lane [[thread_index_in_simdgroup]])\n{\n    kx_mv v;\n    kx_ms s;\n",
                 k->name,
                 g->rel      ? "kx_attn_rel"
                 : g->packed ? "kx_attn_packed"
                             : "kx_attn");
    if (g->merge)
        be_ktext_add(out, "    ulong vec = ulong(at.x) * a.n_heads + at.y;\n\n"
                          "    v.row = at.x;\n    v.head = at.y;\n    v.n_heads = a.n_heads;\n"
                          "    v.hd = a.kv.head_dim;\n    v.out = a.out;\n    v.x_t = a.x_t;\n");
    else
        be_ktext_add(out, "\n    if (!kx_atm_open%s(v, a%s, at, %uu))\n        return;\n",
                     g->packed ? "_packed" : "", g->rel ? ".p" : "", k->sched.rows_tile);
    be_ktext_add(out, "    kx_atm_row(s);\n");
}

enum rc be_kattn_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    uint32_t open[8], n_open = 0;
    struct be_kattn_geo g;
    enum rc rc;

    be_kattn_geo_get(&k->desc, &k->sched, &g);
    head(k, &g, out);
    for (uint32_t i = 1; i < k->n_nodes; i++) {
        const struct be_knode *n = &k->node[i];

        while (n_open && open[n_open - 1] >= n->depth)
            be_ktext_add(out, "%*s}\n", (int)(4 * open[--n_open]), "");
        if ((rc = node(k, &g, n, out, err)) != RC_OK)
            return rc;
        if (n->kind == BE_KN_LOOP && n_open == 8)
            return rc_fail(err, RC_INTERNAL, "loops nested deeper than 8");
        if (n->kind == BE_KN_LOOP)
            open[n_open++] = n->depth;
    }
    while (n_open)
        be_ktext_add(out, "%*s}\n", (int)(4 * open[--n_open]), "");
    be_ktext_add(out, "}\n");
    return RC_OK;
}
