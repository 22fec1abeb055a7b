/* be_kmetal_attn.c - attention as Metal text. */
#include "be_kfam_attn.h"

enum rc be_kattn_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "library '%s' has no Metal text", lib);
}

enum rc be_kattn_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "kernel '%s' has no Metal text", k->name);
}
