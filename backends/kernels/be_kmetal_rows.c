/* be_kmetal_rows.c - Metal text of the row kernels. */
#include "be_krows.h"

enum rc be_krow_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "library '%s' has no Metal text", lib);
}

enum rc be_krow_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "kernel '%s' has no Metal text", k->name);
}
