/* be_kmetal_rows.c - the row family as Metal text: right and plain, not yet fast.
 *
 * The functions are in kx_rows.metal, which also says what a thread's place means for each; a
 * kernel only names its function. Tests: tests/backends/test_be_kmetal.c
 */
#include "be_krows.h"

#include <string.h>

#include "be_kart_impl.h"

enum rc be_krow_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    static const char *const files[] = {"kx_q8.metal", "kx_values.metal", "kx_rows.metal"};

    if (strcmp(lib, "rows") != 0 && strcmp(lib, "embed") != 0)
        return rc_fail(err, RC_INTERNAL, "library '%s' is none of family rows", lib);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const struct be_kart_file *f = be_kart_file_find(be_kart_files, files[i]);

        if (!f)
            return rc_fail(err, RC_INTERNAL, "'%s' is not embedded in this build", files[i]);
        be_ktext_add(out, "%.*s", (int)f->art.n_bytes, f->art.data);
    }
    return RC_OK;
}

static const char *const arg_types[BE_KROW_COUNT] = {
#define X(id, name, lib, op, type, threads) [BE_KROW_##id] = #type,
    BE_KROW_MAP(X)
#undef X
        [BE_KROW_EMBED] = "kx_embed",
};

enum rc be_krow_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    enum be_krow id = be_krow_of(k->name);

    if (id == BE_KROW_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family rows", k->name);
    be_ktext_add(out,
                 "\nkernel void %s(constant %s &a [[buffer(0)]], uint2 at "
                 "[[thread_position_in_grid]])\n{\n",
                 k->name, arg_types[id]);
    if (id == BE_KROW_EMBED)
        be_ktext_add(out, "    kxr_embed(a, at.x, at.y, %uu);\n}\n", k->desc.wfmt);
    else
        be_ktext_add(out, "    kxr_%s(a, at.x, at.y);\n}\n", k->name + 3);
    return RC_OK;
}
