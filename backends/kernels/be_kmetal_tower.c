/* be_kmetal_tower.c - the kernels of eyes and ears as Metal text: right and plain, not yet fast.
 *
 * The functions are in kx_tower.metal, which also says what a thread's place means for each; a
 * kernel only names its function. Tests: tests/backends/test_be_kmetal.c
 */
#include "be_ktower.h"

#include <string.h>

enum rc be_ktower_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    static const char *const files[] = {"kx_tower_args.h", "kx_tower.h", "kx_values.metal",
                                        "kx_tower.metal"};
    enum rc rc = RC_OK;

    if (strcmp(lib, BE_KTOWER_LIB) != 0)
        return rc_fail(err, RC_INTERNAL, "library '%s' is none of family tower", lib);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && rc == RC_OK; i++)
        rc = be_ktower_file(files[i], out, err);
    return rc;
}

enum rc be_ktower_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    static const char *const args[BE_KTOWER_COUNT] = {
#define X(id, name, op, type) [BE_KTOWER_##id] = #type,
        BE_KTOWER_MAP(X)
#undef X
    };
    enum be_ktower id = be_ktower_of(k->name);

    if (id == BE_KTOWER_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family tower", k->name);
    be_ktext_add(out,
                 "\nkernel void %s(constant %s &a [[buffer(0)]], uint2 at "
                 "[[thread_position_in_grid]])\n{\n    kxt_%s(a, at.x, at.y);\n}\n",
                 k->name, args[id], k->name + 3);
    return RC_OK;
}
