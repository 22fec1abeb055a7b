/* be_kmetal_linear.c - the linear family as Metal text: right and plain, not yet fast.
 *
 * One lane per output element, whatever the class of rows, from kx_linear.metal; launched
 * with x over the columns of all parts (repacking: the sub-blocks of a row) and y over the rows.
 * Tests: tests/backends/test_be_kmetal.c
 */
#include "be_klinear.h"

#include <string.h>

#include "be_kart_impl.h"

static enum rc text(struct be_ktext *out, const char *name, struct rc_err *err)
{
    const struct be_kart_file *f = be_kart_file_find(be_kart_files, name);

    if (!f)
        return rc_fail_what(err, RC_INTERNAL, name, "'%s' is not embedded in this build", name);
    be_ktext_add(out, "%.*s", (int)f->art.n_bytes, f->art.data);
    return RC_OK;
}

enum rc be_klin_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    const struct be_klin_fmt *f = NULL;
    enum rc rc;

    for (uint32_t i = 0; i < be_kfam_linear.count() && !f; i++)
        if (strcmp(be_kfam_linear.at(i)->lib, lib) == 0)
            f = be_klin_fmt_get(be_kfam_linear.at(i)->desc.wfmt);
    if (!f)
        return rc_fail(err, RC_NOT_FOUND, "library '%s' is none of the linear family", lib);
    be_ktext_add(out,
                 "#define KXL_CODE %u\n#define KXL_BITS %u\n#define KXL_MIN %u\n"
                 "#define KXL_ZERO %u\n#define KXL_SUPER %u\n#define KXL_BF16 %u\n"
                 "#define KXL_QUANT %u\n",
                 f->code_bytes, f->bits_bytes, f->min, f->zero, f->cls == BE_KLC_256,
                 f->dtype == BE_BF16, f->cls != BE_KLC_FLOAT);
    if (f->cls != BE_KLC_FLOAT && (rc = text(out, "kx_q8.metal", err)) != RC_OK)
        return rc;
    return text(out, "kx_linear.metal", err);
}

enum rc be_klin_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    struct be_klin_plan p;
    enum rc rc;

    if ((rc = be_klin_plan_get(k, &p, err)) != RC_OK)
        return rc;
    if (p.kind == BE_KLK_REPACK) {
        be_ktext_add(out,
                     "#define KXL_K(k) (k)\n#define KXL_U8 device uchar\n"
                     "#define KXL_U32 device kx_u\n#define KXL_BYTE(v) (uchar(v))\n"
                     "#define KXL_ARGS(type) constant type &\n#define KXL_A(field) (a.field)\n");
        if ((rc = text(out, "kx_linear_repack.cu", err)) != RC_OK)
            return rc;
    }
    be_ktext_add(
        out,
        "\nkernel void %s(constant %s &a [[buffer(0)]], uint2 at [[thread_position_in_grid]])\n"
        "{\n    %s(a, at.x, at.y%s);\n}\n",
        k->name, p.kind == BE_KLK_REPACK ? "kx_repack" : "kx_linear",
        p.kind == BE_KLK_REPACK ? "kxl_repack"
        : p.geglu               ? "kxl_gated"
                                : "kxl_element",
        p.kind == BE_KLK_REPACK ? ""
        : p.tf32                ? ", true"
                                : ", false");
    return RC_OK;
}
