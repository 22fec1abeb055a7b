/* be_kcuda_attn.c - attention as CUDA text.
 *
 * The functions stand in kx_attn_*.cu, one per node of the IR; a library begins with the
 * constants they are compiled for. A kernel's body is the tree, node by node: split
 * kernels on tensor cores walk a split's keys twice, first scores, then values, so their
 * loop over tiles becomes two. Tests: tests/backends/test_be_kattn_emu.c
 */
#include "be_kfam_attn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "be_kargs.h"
#include "be_kart_impl.h"

static enum rc add_file(struct be_ktext *out, const char *name, struct rc_err *err)
{
    const struct be_kart_file *f = be_kart_file_find(be_kart_files, name);

    if (!f)
        return rc_fail_what(err, RC_INTERNAL, name, "'%s' is not embedded in this build", name);
    be_ktext_add(out, "%.*s", (int)f->art.n_bytes, f->art.data);
    return RC_OK;
}

/* Constants of a library, from one of its kernels of each arithmetic. */
static void add_simt(struct be_ktext *out, const struct be_kattn_geo *g)
{
    if (g->hd)
        be_ktext_add(out, "#define KX_SH(h) %uu\n", g->hd);
    else
        be_ktext_add(out, "#define KX_SH(h) (h)\n");
    be_ktext_add(out, "#define KX_SM %uu\n#define KX_SN %uu\n", g->m_rows,
                 ((g->hd ? g->hd : (uint32_t)BE_KATTN_MAX_DIM) + 63) / 64);
}

static void add_mma(struct be_ktext *out, const struct be_kattn_geo *g)
{
    be_ktext_add(out,
                 "#define KX_HD %uu\n#define KX_KT %uu\n#define KX_MT %uu\n#define KX_CW %uu\n"
                 "#define KX_KS %uu\n#define KX_NS %uu\n#define KX_AT_FAST %u\n",
                 g->hd, g->key_tile, g->mt, g->cw, g->stage_keys, g->stages, g->packed);
}

enum rc be_kattn_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    bool simt = false, mma = false, merge = false, rel = false, wg = false, tf32 = false;
    enum rc rc;

    for (uint32_t i = 0; i < be_kfam_attn.count(); i++) {
        const struct be_kentry *e = be_kfam_attn.at(i);
        struct be_kattn_geo g;

        if (strcmp(e->lib, lib) != 0)
            continue;
        be_kattn_geo_get(&e->desc, &e->sched, &g);
        merge = merge || g.merge;
        rel = rel || g.rel;
        wg = wg || g.wg;
        tf32 = tf32 || g.tf32;
        if (g.wg)
            be_ktext_add(out, "#define KX_WR %uu\n", g.m_rows);
        else if (g.mma && !mma)
            add_mma(out, &g);
        else if (!g.mma && !g.merge && !simt)
            add_simt(out, &g);
        mma = mma || g.mma;
        simt = simt || (!g.mma && !g.merge);
    }
    if (!simt && !mma && !merge)
        return rc_fail(err, RC_NOT_FOUND, "no attention kernel is in library '%s'", lib);
    if ((rc = add_file(out, "kx_attn_math.h", err)) != RC_OK)
        return rc;
    if (merge)
        return add_file(out, "kx_attn_merge.cu", err);
    if ((rc = add_file(out, "kx_attn_view.cu", err)) != RC_OK)
        return rc;
    if (wg)
        return add_file(out, "kx_attn_wg.cu", err);
    if (simt && (rc = add_file(out, "kx_attn_simt.cu", err)) != RC_OK)
        return rc;
    if (rel && (rc = add_file(out, "kx_attn_rel.cu", err)) != RC_OK)
        return rc;
    if (mma && (rc = add_file(out, "kx_attn_mma.cu", err)) != RC_OK)
        return rc;
    if (!mma || !rel)
        return RC_OK;
    return add_file(out, tf32 ? "kx_attn_rel_tf32.cu" : "kx_attn_rel_mma.cu", err);
}

/* ------------------------------------------------------------------- kernels */

/* What a node becomes. */
struct words {
    const struct be_kir *k;
    struct be_kattn_geo g;
    struct be_ktext *out;
    char group[80]; /* expression: query heads of a KV head */
    const char *pk; /* packed: the kx_attn_packed of the arguments */
    const char *ty; /* plain arithmetic: type of keys, rounding, vector loads */
    int q8, half, vec;
    uint32_t depth;
};

static void line(struct words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(struct words *w, const char *fmt, ...)
{
    char buf[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(buf, sizeof(buf), fmt, ap);
    va_end(ap);
    be_ktext_add(w->out, "%*s%s\n", (int)(4 * w->depth), "", buf);
}

/* Tiles and sequences are read before kx_wait: no kernel writes them. */
static void open_block(struct words *w)
{
    const char *rows = w->g.wg ? "KX_WR" : !w->g.mma ? "KX_SM" : w->g.split ? "16u" : "KX_MROWS";

    if (w->g.packed) {
        char es[64];

        snprintf(es, sizeof(es),
                 w->g.tf32  ? "4u"
                 : w->g.mma ? "2u"
                            : "%s.x_t == KX_F16 ? 2u : 4u",
                 w->pk);
        line(w, "if (!kx_av_open_packed(&v, &%s, kx_bx(), kx_by(), %s, %s))", w->pk, rows, es);
        line(w, "    return;");
        line(w, "kx_wait();");
        if (w->g.rel)
            line(w, "kx_ar_open(&r, &a, &v, kx_by(), %s);", es);
    } else if (!w->g.split) {
        /* late tiles see the most keys: first */
        line(w, "if (!kx_av_open(&v, &a, kx_gx() - 1u - kx_bx(), kx_by(), 1u, 0u, %s))", rows);
        line(w, "    return;");
        line(w, "kx_wait();");
    } else {
        line(w, "const kx_u group = %s, kvh = kx_by() %% a.kv.n_kv_heads;", w->group);
        be_ktext_add(w->out, "\n");
        line(w,
             "if (!kx_av_open(&v, &a, kx_bx(), kvh * group, group, kx_by() / a.kv.n_kv_heads * %s, "
             "%s))",
             rows, rows);
        line(w, "    return;");
        line(w, "kx_wait();");
        line(w, "if (!kx_av_to_split(&v, kx_bz())) {");
        line(w, "    kx_av_empty(&v, %s, %s, 128u);", rows,
             w->g.mma ? "KX_HD" : "KX_SH(a.kv.head_dim)");
        line(w, "    return;");
        line(w, "}");
    }
}

static enum rc node_mma_split(struct words *w, const struct be_knode *n, struct rc_err *err)
{
    const char *ring = "sm + 16u * KX_HB + KX_AS_SCORES", *sc = "sm + 16u * KX_HB";

    switch (n->kind) {
    case BE_KN_LOAD_ACT:
        line(w, "kx_as_open(&v, &s, %s, %d);", ring, w->q8);
        line(w, "kx_am_q(&v, sm, 16u);");
        return RC_OK;
    case BE_KN_LOOP: /* over the split: the grid; over tiles: scores here, values below */
    case BE_KN_BARRIER:
    case BE_KN_MASK: /* with the weights */
        return RC_OK;
    case BE_KN_STAGE_KV:
        line(w, "for (i = 0u; i < s.n; i++) {");
        line(w, "    kx_as_stage(&v, &s, %s, i, %d);", ring, w->q8);
        return RC_OK;
    case BE_KN_QK:
        line(w, "    kx_as_qk(&v, &s, sm, %s, i, v.scale);", sc);
        line(w, "}");
        return RC_OK;
    case BE_KN_ONLINE_SOFTMAX:
        line(w, "kx_as_softmax(&v, %s);", sc);
        return RC_OK;
    case BE_KN_PV:
        line(w, "for (; i < 2u * s.n; i++) {");
        line(w, "    kx_as_stage(&v, &s, %s, i, %d);", ring, w->q8);
        line(w, "    kx_as_pv(&v, &s, %s, i);", sc);
        line(w, "}");
        return RC_OK;
    case BE_KN_SPLIT_STORE:
        line(w, "kx_as_store(&v, &s, %s);", sc);
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no CUDA text", be_knode_name(n->kind));
    }
}

static void tile_loop(struct words *w, const char *tile)
{
    if (w->g.packed || w->g.split)
        line(w, "for (t = v.klo / %s; t * %s < v.khi; t++) {", tile, tile);
    else
        line(w,
             "for (t = (v.klo > sp * KX_SPLIT ? v.klo : sp * KX_SPLIT) / %s;"
             " t * %s < v.khi && t * %s < (sp + 1u) * KX_SPLIT; t++) {",
             tile, tile, tile);
}

static void split_loop(struct words *w, const char *fresh)
{
    if (!w->g.split)
        line(w, "for (sp = v.klo / KX_SPLIT; sp * KX_SPLIT < v.khi; sp++) {");
    w->depth += !w->g.split;
    line(w, "%s(&s);", fresh);
}

static enum rc node_mma(struct words *w, const struct be_knode *n, struct rc_err *err)
{
    const char *ring = "sm + KX_MROWS * KX_HB + 4u * KX_TILE_BYTES";

    switch (n->kind) {
    case BE_KN_LOAD_ACT:
        line(w, "kx_am_open(&v, &s);");
        line(w, "kx_am_begin(&v, sm + KX_MROWS * KX_HB, v.klo / KX_KT, %d);", w->q8);
        for (int b = 0; w->g.rel && b < 2; b++)
            line(w, "kx_ar_begin(&r, %s, v.klo / KX_KT%s);", ring, b ? " + 1u" : "");
        line(w, "kx_am_q(&v, sm, KX_MROWS);");
        if (w->g.packed)
            line(w, "kx_am_fresh(&s);");
        return RC_OK;
    case BE_KN_LOOP:
        if (n->imm == BE_KA_SPLIT) {
            split_loop(w, "kx_am_fresh");
        } else {
            tile_loop(w, "KX_KT");
            w->depth++;
        }
        return RC_OK;
    case BE_KN_BARRIER: /* kx_am_stage has them */
        return RC_OK;
    case BE_KN_STAGE_KV:
        line(w, "kx_am_stage(&v, &s, sm + KX_MROWS * KX_HB, t, %d);", w->q8);
        return RC_OK;
    case BE_KN_QK:
        line(w, "kx_am_qk(&s, sm);");
        return RC_OK;
    case BE_KN_REL:
        line(w, "kx_ar_mma(&v, &s, &r, sm, %s,", ring);
        line(w, "          (float *)(%s + 4u * KX_TILE_BYTES), t);", ring);
        return RC_OK;
    case BE_KN_MASK:
        line(w, "kx_am_mask(&s, KX_AT_SCALE(v.scale));");
        return RC_OK;
    case BE_KN_ONLINE_SOFTMAX:
        line(w, "kx_am_softmax(&s);");
        return RC_OK;
    case BE_KN_PV:
        line(w, "kx_am_pv(&s);");
        return RC_OK;
    case BE_KN_SPLIT_MERGE:
        line(w, "kx_am_fold(&v, &s, (sp + 1u) * KX_SPLIT >= v.khi);");
        return RC_OK;
    case BE_KN_REDUCE:
        line(w, "kx_am_sum(&s);");
        return RC_OK;
    case BE_KN_STORE:
        line(w, "kx_am_store(&v, &s);");
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no CUDA text", be_knode_name(n->kind));
    }
}

static enum rc node_tf32(struct words *w, const struct be_knode *n, struct rc_err *err)
{
    switch (n->kind) {
    case BE_KN_LOAD_ACT:
        line(w, "kx_am_open(&v, &s);");
        line(w, "kx_tr_open(&v, &r, &f, sm);");
        line(w, "kx_am_fresh(&s);");
        return RC_OK;
    case BE_KN_LOOP:
        tile_loop(w, "KX_KT");
        w->depth++;
        return RC_OK;
    case BE_KN_BARRIER: /* kx_tr_stage has it */
        return RC_OK;
    case BE_KN_STAGE_KV:
        line(w, "kx_tr_stage(&v, &s, &r, &f, t);");
        return RC_OK;
    case BE_KN_QK:
        line(w, "kx_tr_qk(&s, &f);");
        return RC_OK;
    case BE_KN_REL:
        line(w, "kx_tr_rel(&v, &s, &r, &f, t);");
        return RC_OK;
    case BE_KN_MASK:
        line(w, "kx_am_mask(&s, KX_AT_SCALE(v.scale));");
        return RC_OK;
    case BE_KN_ONLINE_SOFTMAX:
        line(w, "kx_am_softmax(&s);");
        return RC_OK;
    case BE_KN_PV:
        line(w, "kx_tr_pv(&s);");
        return RC_OK;
    case BE_KN_REDUCE:
        line(w, "kx_am_sum(&s);");
        return RC_OK;
    case BE_KN_STORE:
        line(w, "kx_am_store(&v, &s);");
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no CUDA text", be_knode_name(n->kind));
    }
}

/* The first tile, before which no products run on, stands in front of the loop. */
static void wg_tile(struct words *w, int first)
{
    line(w, "kx_aw_stage(&v, &s);");
    line(w, "kx_aw_qk(&s, %d);", first);
    line(w, "kx_aw_mask(&v, &s);");
    line(w, "kx_aw_softmax(&s);");
    line(w, "kx_aw_keep(&s, %d);", first);
}

static enum rc node_wg(struct words *w, const struct be_knode *n, struct rc_err *err)
{
    switch (n->kind) {
    case BE_KN_LOAD_ACT:
        line(w, "kx_aw_open(&v, &s, sm);");
        return RC_OK;
    case BE_KN_LOOP:
        wg_tile(w, 1);
        line(w, "for (t = v.klo / KX_WT + 1u; t * KX_WT < v.khi; t++) {");
        w->depth++;
        return RC_OK;
    case BE_KN_BARRIER: /* kx_aw_stage has it */
    case BE_KN_REDUCE:  /* kx_aw_store */
    case BE_KN_QK:      /* wg_tile has what follows a stage */
    case BE_KN_MASK:
    case BE_KN_ONLINE_SOFTMAX:
    case BE_KN_PV:
        return RC_OK;
    case BE_KN_STAGE_KV:
        wg_tile(w, 0);
        return RC_OK;
    case BE_KN_STORE:
        line(w, "kx_aw_store(&v, &s);");
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no CUDA text", be_knode_name(n->kind));
    }
}

static enum rc node_simt(struct words *w, const struct be_knode *n, struct rc_err *err)
{
    switch (n->kind) {
    case BE_KN_LOAD_ACT:
        line(w, "kx_sm_open(&v, &s, sm, KX_SH(%s), %d);",
             w->g.rel      ? "a.p.head_dim"
             : w->g.packed ? "a.head_dim"
                           : "a.kv.head_dim",
             w->half);
        if (w->g.packed)
            line(w, "kx_sm_fresh(&s);");
        return RC_OK;
    case BE_KN_LOOP:
        if (n->imm == BE_KA_SPLIT) {
            split_loop(w, "kx_sm_fresh");
        } else {
            tile_loop(w, "KX_ST");
            w->depth++;
        }
        return RC_OK;
    case BE_KN_BARRIER:  /* kx_sm_chunk has them */
    case BE_KN_STAGE_KV: /* by chunks, where they are used */
        return RC_OK;
    case BE_KN_QK:
        line(w, "kx_sm_qk(&v, &s, t, %s, %d);", w->ty, w->vec);
        return RC_OK;
    case BE_KN_REL:
        line(w, "kx_ar_simt(&v, &s, &r, %s, %d);", w->ty, w->vec);
        return RC_OK;
    case BE_KN_MASK:
        line(w, "kx_sm_mask(&s, v.scale);");
        return RC_OK;
    case BE_KN_ONLINE_SOFTMAX:
        line(w, "kx_sm_softmax(&s, %d);", w->half);
        return RC_OK;
    case BE_KN_PV:
        line(w, "kx_sm_pv(&v, &s, %s, %d);", w->ty, w->vec);
        return RC_OK;
    case BE_KN_SPLIT_STORE:
        line(w, "kx_sm_split(&v, &s);");
        return RC_OK;
    case BE_KN_SPLIT_MERGE:
        line(w, "kx_sm_fold(&v, &s, (sp + 1u) * KX_SPLIT >= v.khi);");
        return RC_OK;
    case BE_KN_REDUCE:
        line(w, "kx_sm_sum(&s);");
        return RC_OK;
    case BE_KN_STORE:
        line(w, "kx_sm_store(&v, &s, 0);");
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no CUDA text", be_knode_name(n->kind));
    }
}

static enum rc node_merge(struct words *w, const struct be_knode *n, struct rc_err *err)
{
    switch (n->kind) {
    case BE_KN_LOOP: /* kx_mg_splits has it */
        return RC_OK;
    case BE_KN_SPLIT_MERGE:
        line(w, "kx_mg_splits(&a, &s, vec, col, (float *)sm);");
        return RC_OK;
    case BE_KN_STORE:
        line(w, "kx_mg_store(&a, &s, vec, col);");
        return RC_OK;
    default:
        return rc_fail(err, RC_INTERNAL, "node %s has no CUDA text", be_knode_name(n->kind));
    }
}

/* Closes loops down to the depth of the next node. */
static void close_loops(struct words *w, const uint32_t *open, uint32_t *n_open, uint32_t depth)
{
    while (*n_open && open[*n_open - 1] >= depth) {
        --*n_open;
        w->depth--;
        line(w, "}");
    }
}

static enum rc body(struct words *w, struct rc_err *err)
{
    uint32_t open[8], n_open = 0;
    enum rc rc;

    for (uint32_t i = 1; i < w->k->n_nodes; i++) {
        const struct be_knode *n = &w->k->node[i];
        uint32_t depth = w->depth;

        close_loops(w, open, &n_open, n->depth);
        depth = w->depth;
        rc = w->g.merge               ? node_merge(w, n, err)
             : w->g.wg                ? node_wg(w, n, err)
             : w->g.tf32              ? node_tf32(w, n, err)
             : w->g.mma && w->g.split ? node_mma_split(w, n, err)
             : w->g.mma               ? node_mma(w, n, err)
                                      : node_simt(w, n, err);
        if (rc != RC_OK)
            return rc;
        if (w->depth > depth) {
            if (n_open == 8)
                return rc_fail(err, RC_INTERNAL, "loops nested deeper than 8");
            open[n_open++] = n->depth;
        }
    }
    close_loops(w, open, &n_open, 0);
    return RC_OK;
}

/* Blocks that a multiprocessor should hold, so registers a thread may use. */
static unsigned min_blocks(const struct be_kattn_geo *g)
{
    return g->mma || g->rel ? 2 : g->merge ? 8 : g->hd == 128 || (g->hd == 64 && g->packed) ? 3 : 2;
}

static const char *args_of(const struct be_kattn_geo *g)
{
    return g->rel ? "kx_attn_rel" : g->packed ? "kx_attn_packed" : "kx_attn";
}

static void head_counts(struct words *w)
{
    const struct be_kdesc *d = &w->k->desc;

    if (d->q_heads.fixed && d->kv_heads.fixed && d->kv_heads.max)
        snprintf(w->group, sizeof(w->group), "%uu", d->q_heads.max / d->kv_heads.max);
    else
        snprintf(w->group, sizeof(w->group), "a.n_heads / a.kv.n_kv_heads");
}

enum rc be_kattn_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    struct words w = {.k = k, .out = out, .depth = 1};
    enum rc rc;

    be_kattn_geo_get(&k->desc, &k->sched, &w.g);
    w.q8 = k->desc.kv_dtype == BE_Q8_0;
    w.half = !w.g.packed && k->desc.numerics == BE_KNUM_FAST;
    w.vec = w.g.hd != 0;
    w.pk = w.g.rel ? "a.p" : "a";
    w.ty = w.g.packed                   ? w.g.hd    ? "KX_S_F32"
                                          : w.g.rel ? "a.p.x_t"
                                                    : "a.x_t"
           : k->desc.kv_dtype == BE_F32 ? "KX_S_F32"
           : k->desc.kv_dtype == BE_F16 ? "KX_S_F16"
                                        : "KX_S_Q8";
    head_counts(&w);
    be_ktext_add(out, "KX_KERNEL(%s, %u, %u, struct %s, a)\n{\n", k->name, k->sched.threads,
                 min_blocks(&w.g), args_of(&w.g));
    line(&w, "KX_DYN_SHARED(sm);");
    if (w.g.merge) {
        line(&w, "kx_wait();");
        line(&w, "struct kx_mg s;");
        line(&w, "kx_p vec = (kx_p)kx_bx() * a.n_heads + kx_by();");
        line(&w, "kx_u col = kx_bz() * 128u + kx_tid();");
        be_ktext_add(out, "\n");
    } else {
        line(&w, "struct kx_av v;");
        if (w.g.rel)
            line(&w, "struct kx_ar r;");
        if (w.g.tf32)
            line(&w, "struct kx_tr f;");
        line(&w, "struct %s s;",
             w.g.wg      ? "kx_aw"
             : !w.g.mma  ? "kx_sm"
             : w.g.split ? "kx_as"
                         : "kx_am");
        line(&w, "kx_u %s;", w.g.mma && w.g.split ? "i" : w.g.packed || w.g.split ? "t" : "sp, t");
        if (!w.g.split)
            be_ktext_add(out, "\n");
        open_block(&w);
    }
    if ((rc = body(&w, err)) != RC_OK)
        return rc;
    be_ktext_add(out, "}\n");
    return RC_OK;
}
