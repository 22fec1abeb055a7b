/* be_kcuda_linear.c - the linear family as CUDA text.
 *
 * The texts are files of this folder, kx_linear_*.cu, embedded as they are: what is
 * generated is the words (KXL_*) in front of each that say format, tile and shape. Which
 * text serves a tree is decided by its nodes (be_klin_plan_get), so a tree that says
 * something else is refused. Tests: tests/backends/test_be_klinear.c
 */
#include "be_klinear.h"

#include <string.h>

#include "be_kargs.h"
#include "be_kart_impl.h"

/* Every word that a kernel's text may find defined anew. */
static const char *const words[] = {"NAME",  "TAG",    "K",  "COLS", "GEGLU", "ROWS",
                                    "CHUNK", "STAGES", "MT", "NT",   "WY",    "WX",
                                    "MINB",  "TW",     "TX", "TF32", NULL};

static enum rc text(struct be_ktext *out, const char *name, struct rc_err *err)
{
    const struct be_kart_file *f = be_kart_file_find(be_kart_files, name);

    if (!f)
        return rc_fail_what(err, RC_INTERNAL, name, "'%s' is not embedded in this build", name);
    be_ktext_add(out, "%.*s", (int)f->art.n_bytes, f->art.data);
    return RC_OK;
}

static void word(struct be_ktext *out, const char *name, uint32_t v, const char *suffix)
{
    be_ktext_add(out, "#define KXL_%s %u%s\n", name, v, suffix);
}

enum rc be_klin_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    const struct be_klin_fmt *f = NULL;
    enum rc rc;

    for (uint32_t i = 0; i < be_kfam_linear.count() && !f; i++)
        if (strcmp(be_kfam_linear.at(i)->lib, lib) == 0)
            f = be_klin_fmt_get(be_kfam_linear.at(i)->desc.wfmt);
    if (!f)
        return rc_fail(err, RC_NOT_FOUND, "library '%s' is none of the linear family", lib);
    word(out, "CODE", f->code_bytes, "");
    word(out, "BITS", f->bits_bytes, "");
    word(out, "MIN", f->min, "");
    word(out, "ZERO", f->zero, "");
    word(out, "SUPER", f->cls == BE_KLC_256, "");
    word(out, "BF16", f->dtype == BE_BF16, "");
    be_ktext_add(out, "#define KXL_CAT_(a, b) a##b\n#define KXL_CAT(a, b) KXL_CAT_(a, b)\n");
    if (f->cls != BE_KLC_FLOAT && (rc = text(out, "kx_q8.cu", err)) != RC_OK)
        return rc;
    return text(out, "kx_linear_lib.cu", err);
}

static void common(const struct be_kir *k, const struct be_klin_plan *p, struct be_ktext *out)
{
    const char *tag = strrchr(k->name, '_');

    for (const char *const *w = words; *w; w++)
        be_ktext_add(out, "#undef KXL_%s\n", *w);
    be_ktext_add(out, "#define KXL_NAME %s\n", k->name);
    /* _mm, _mm_geglu: what follows the format */
    for (tag = k->name + strlen("kx_linear_") + strlen(p->f->word); *tag && *tag != '_';)
        tag++;
    be_ktext_add(out, "#define KXL_TAG %s\n", tag);
    if (k->desc.k.fixed)
        be_ktext_add(out, "#define KXL_K(k) %uu\n", k->desc.k.max);
    else
        be_ktext_add(out, "#define KXL_K(k) (k)\n");
    word(out, "COLS", p->geglu ? k->sched.cols_tile / 2 : k->sched.cols_tile, "u");
    word(out, "GEGLU", p->geglu, "");
}

/* Warps of a tile: MT x 16 weight rows by NT x 8 rows of x each, WY x WX of them. */
struct shape {
    uint32_t cols, rows, mt, nt, wy, wx, min_blocks;
};
static const struct shape shapes[] = {
    {16, 8, 1, 1, 1, 1, 8},
    {32, 32, 1, 2, 2, 2, 2},
    {64, 64, 2, 2, 2, 4, 1},
};

static enum rc tile(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const struct shape *s = &shapes[i];

        if (s->cols != k->sched.cols_tile || s->rows != k->sched.rows_tile ||
            k->sched.threads != 32 * s->wy * s->wx)
            continue;
        word(out, "MT", s->mt, "");
        word(out, "NT", s->nt, "");
        word(out, "WY", s->wy, "");
        word(out, "WX", s->wx, "");
        word(out, "MINB", s->min_blocks, "");
        word(out, "STAGES", k->sched.stages, "");
        return text(out, "kx_linear_tile.cu", err);
    }
    return rc_fail(err, RC_INTERNAL, "tile of %u columns by %u rows with %u threads: no such text",
                   k->sched.cols_tile, k->sched.rows_tile, k->sched.threads);
}

/* As above for floats: a warp holds 4 TX rows of x by 8 TW weight rows, or tensor-core tiles. */
static enum rc float_tile(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    word(out, "TW", k->sched.cols_tile / 8, "");
    word(out, "TX", k->sched.rows_tile / 4, "");
    word(out, "MINB", k->sched.cols_tile == 64 ? 1 : 3, "");
    word(out, "STAGES", k->sched.stages, "");
    return text(out, "kx_linear_ftile.cu", err);
}

static enum rc fast(const struct be_kir *k, const struct be_klin_plan *p, struct be_ktext *out,
                    struct rc_err *err)
{
    bool wide = k->sched.cols_tile == 128;

    if (k->sched.cols_tile == 256)
        return text(out, "kx_linear_wg.cu", err);
    word(out, "MT", wide ? 4 : 1, "");
    word(out, "NT", wide ? 8 : 2, "");
    word(out, "WY", wide ? 2 : 1, "");
    word(out, "WX", 2, "");
    word(out, "MINB", wide ? 2 : 8, "");
    word(out, "STAGES", k->sched.stages, "");
    word(out, "TF32", p->tf32, "");
    return text(out, "kx_linear_fast.cu", err);
}

static enum rc mat_vec(const struct be_kir *k, const struct be_klin_plan *p, struct be_ktext *out,
                       struct rc_err *err)
{
    if (p->f->cls == BE_KLC_32)
        return text(out, "kx_linear_mv32.cu", err);
    if (p->f->cls == BE_KLC_256)
        return text(out, "kx_linear_mv256.cu", err);
    word(out, "ROWS", k->sched.rows_tile, "");
    word(out, "CHUNK", k->sched.rows_tile == 1 ? BE_KLIN_MV_FLOATS : BE_KLIN_EXT_FLOATS, "u");
    return text(out, "kx_linear_mvf.cu", err);
}

static enum rc repack(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    enum rc rc;

    be_ktext_add(out,
                 "#define KXL_U8 unsigned char\n#define KXL_U32 kx_u\n"
                 "#define KXL_BYTE(v) ((unsigned char)(v))\n"
                 "#define KXL_ARGS(type) const struct type *\n#define KXL_A(field) (a->field)\n");
    if ((rc = text(out, "kx_linear_repack.cu", err)) != RC_OK)
        return rc;
    be_ktext_add(out,
                 "\nKX_KERNEL(%s, %u, 4, struct kx_repack, a)\n{\n"
                 "    for (kx_u r = kx_by(); r < a.n_rows; r += 65535u)\n"
                 "        kxl_repack(&a, kx_bx() * %uu + kx_tid(), r);\n}\n",
                 k->name, k->sched.threads, k->sched.threads);
    return RC_OK;
}

enum rc be_klin_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    struct be_klin_plan p;
    enum rc rc;

    if ((rc = be_klin_plan_get(k, &p, err)) != RC_OK)
        return rc;
    common(k, &p, out);
    switch (p.kind) {
    case BE_KLK_REPACK:
        return repack(k, out, err);
    case BE_KLK_MV:
        return mat_vec(k, &p, out, err);
    case BE_KLK_TILE:
        return p.f->cls == BE_KLC_FLOAT ? float_tile(k, out, err) : tile(k, out, err);
    case BE_KLK_FAST:
        return fast(k, &p, out, err);
    }
    return rc_fail(err, RC_INTERNAL, "kernel '%s': no CUDA text for it", k->name);
}
