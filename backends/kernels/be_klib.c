/* be_klib.c - the libraries of the catalog and the text of each: the shared words, then
 * its kernels.
 *
 * Deterministic: the same catalog gives the same bytes on every host. The shared texts
 * are those embedded from this folder, so what is compiled at run time is what stands
 * in the artifact. The emulated driver of the tests defines KX_EMU and its own words in
 * front, so kx_prelude.cu is skipped there. Tests: tests/backends/test_be_klib.c
 */
#include "be_kart_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------- libraries */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct be_klib *)a)->name, ((const struct be_klib *)b)->name);
}

/* Tensor cores and asynchronous copies are better on sm_80; the text has both ways. */
static bool gains_from_sm80(const struct be_kir *k)
{
    if (k->sched.stages > 1)
        return true;
    for (uint32_t i = 0; i < k->n_nodes && i < BE_KIR_MAX_NODES; i++)
        if (k->node[i].kind == BE_KN_MMA)
            return true;
    return false;
}

static enum rc add_entry(struct be_klib *list, size_t *n, const struct be_kfamily *f,
                         const struct be_kentry *e, struct rc_err *err)
{
    struct be_kir k = {0};
    size_t i = 0;
    enum rc rc;

    while (i < *n && strcmp(list[i].name, e->lib) != 0)
        i++;
    if (i == *n)
        list[(*n)++] = (struct be_klib){.name = e->lib, .family = f};
    if ((rc = f->build(e, &k, err)) != RC_OK) {
        rc_wrap(err, "kernel '%s'", e->name);
        return rc;
    }
    list[i].sm75 = list[i].sm75 || e->min_arch <= 75;
    list[i].sm90 = list[i].sm90 || e->min_arch == 90;
    list[i].sm80 = list[i].sm80 || (e->min_arch < 90 && (e->min_arch > 75 || gains_from_sm80(&k)));
    return RC_OK;
}

enum rc be_klib_list(const struct be_kfamily *const *families, struct be_klib **out, size_t *out_n,
                     struct rc_err *err)
{
    size_t n = 0, cap = 1;
    struct be_klib *list;
    enum rc rc = RC_OK;

    for (size_t f = 0; families[f]; f++)
        cap += families[f]->count();
    if (!(list = calloc(cap, sizeof(*list))))
        return rc_fail(err, RC_NOMEM, "out of memory for %zu kernel libraries", cap);
    for (size_t f = 0; families[f] && rc == RC_OK; f++)
        for (uint32_t i = 0; i < families[f]->count() && rc == RC_OK; i++)
            rc = add_entry(list, &n, families[f], families[f]->at(i), err);
    if (rc != RC_OK) {
        free(list);
        return rc;
    }
    qsort(list, n, sizeof(*list), by_name);
    *out = list;
    *out_n = n;
    return RC_OK;
}

void be_klib_ptx_name(const char *lib, unsigned arch, char *out, size_t n)
{
    snprintf(out, n, "cuda/%s.sm%u%s.ptx", lib, arch, arch == BE_KART_ONLY_ARCH ? "a" : "");
}

/* ------------------------------------------------------------- text */

static enum rc add_file(struct be_ktext *out, const char *name, struct rc_err *err)
{
    const struct be_kart_file *f = be_kart_file_find(be_kart_files, name);

    if (!f)
        return rc_fail_what(err, RC_INTERNAL, name, "'%s' is not embedded in this build", name);
    be_ktext_add(out, "%s", f->art.data);
    return RC_OK;
}

/* What guards a kernel inside the whole library's CUDA text. */
enum guard { ALWAYS, NEEDS_SM80, NOT_BETTER_ON_SM80 };

static enum rc add_kernel(const struct be_kfamily *f, const struct be_kentry *e, bool metal,
                          bool whole, struct be_ktext *out, struct rc_err *err)
{
    /* The schedule is the CUDA kernel's: a Metal renderer shares the work out in its own way, and
     * its limits are checked in the text (tests/backends/test_be_kmetal.c). */
    const struct be_ktarget *t = e->min_arch >= 90   ? &be_ktarget_sm90
                                 : e->min_arch >= 80 ? &be_ktarget_sm80
                                                     : &be_ktarget_sm75;
    enum guard guard = ALWAYS;
    struct be_kir k = {0};
    char id[65];
    enum rc rc;

    if ((rc = f->build(e, &k, err)) != RC_OK || (rc = be_kir_verify(&k, t, err)) != RC_OK)
        return rc;
    if (whole && !metal)
        guard = e->min_arch > 75 ? NEEDS_SM80 : gains_from_sm80(&k) ? ALWAYS : NOT_BETTER_ON_SM80;
    be_kdesc_id(&e->desc, id);
    be_ktext_add(out, "\n/* %s: %.16s */\n", e->name, id);
    if (guard == NEEDS_SM80)
        be_ktext_add(out, "#if KX_ARCH >= %u\n", e->min_arch * 10);
    else if (guard == NOT_BETTER_ON_SM80)
        be_ktext_add(out, "#ifndef " BE_KLIB_SM80_ONLY "\n");
    rc = metal ? f->metal(&k, out, err) : f->cuda(&k, out, err);
    if (rc != RC_OK) {
        rc_wrap(err, "kernel '%s'", e->name);
        return rc;
    }
    if (guard != ALWAYS)
        be_ktext_add(out, "#endif\n");
    return RC_OK;
}

static enum rc add_kernels(const struct be_kfamily *f, const char *lib,
                           const struct be_kentry *only, bool metal, struct be_ktext *out,
                           struct rc_err *err)
{
    enum rc rc;

    if (only)
        return add_kernel(f, only, metal, false, out, err);
    for (uint32_t i = 0; i < f->count(); i++)
        if (strcmp(f->at(i)->lib, lib) == 0 &&
            (rc = add_kernel(f, f->at(i), metal, true, out, err)) != RC_OK)
            return rc;
    return RC_OK;
}

static bool needs_wg(const struct be_kfamily *f, const char *lib)
{
    for (uint32_t i = 0; i < f->count(); i++)
        if (strcmp(f->at(i)->lib, lib) == 0 && f->at(i)->min_arch == BE_KART_ONLY_ARCH)
            return true;
    return false;
}

static enum rc cuda_head(bool wg, struct be_ktext *out, struct rc_err *err)
{
    enum rc rc;

    if ((rc = add_file(out, "be_kargs.h", err)) != RC_OK)
        return rc;
    be_ktext_add(out, "#ifndef KX_EMU\n");
    if ((rc = add_file(out, "kx_prelude.cu", err)) != RC_OK ||
        (wg && (rc = add_file(out, "kx_prelude_wg.cu", err)) != RC_OK))
        return rc;
    be_ktext_add(out, "#endif\n");
    return add_file(out, "kx_math.h", err);
}

static enum rc metal_head(struct be_ktext *out, struct rc_err *err)
{
    enum rc rc;

    if ((rc = add_file(out, "kx_prelude.metal", err)) != RC_OK ||
        (rc = add_file(out, "be_kargs.h", err)) != RC_OK)
        return rc;
    return add_file(out, "kx_math.h", err);
}

enum rc be_klib_text(const struct be_kfamily *const *families, const char *lib,
                     const struct be_kentry *only, bool metal, struct be_ktext *out,
                     struct rc_err *err)
{
    const struct be_kfamily *f = NULL;
    enum rc rc;

    for (size_t i = 0; families[i] && !f; i++)
        for (uint32_t j = 0; j < families[i]->count() && !f; j++)
            if (strcmp(families[i]->at(j)->lib, lib) == 0)
                f = families[i];
    if (!f)
        return rc_fail(err, RC_NOT_FOUND, "no kernel of the catalog is in library '%s'", lib);
    be_ktext_add(out, "/* %s.%s - generated by kgen; do not edit. */\n", lib,
                 metal ? "metal" : "cu");
    if ((rc = metal ? metal_head(out, err) : cuda_head(needs_wg(f, lib), out, err)) != RC_OK ||
        (rc = metal ? f->metal_lib(lib, out, err) : f->cuda_lib(lib, out, err)) != RC_OK ||
        (rc = add_kernels(f, lib, only, metal, out, err)) != RC_OK) {
        rc_wrap(err, "library '%s'", lib);
        return rc;
    }
    if (out->failed)
        return rc_fail(err, RC_NOMEM, "library '%s': out of memory for its text", lib);
    return RC_OK;
}

enum rc be_kcuda_text(const char *lib, const struct be_kentry *only, struct be_ktext *out,
                      struct rc_err *err)
{
    return be_klib_text(be_kfamilies, lib, only, false, out, err);
}

enum rc be_kmetal_text(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    return be_klib_text(be_kfamilies, lib, NULL, true, out, err);
}
