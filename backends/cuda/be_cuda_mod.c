/* be_cuda_mod.c - catalog entries become functions on the device.
 *
 * A library's PTX is taken from the embedded artifacts, the newest this device can
 * run, and compiled by the driver when the first kernel of it is asked for. All of
 * that happens while a model loads: after the seal it is refused and counted.
 * Tests: tests/backends/test_be_cuda_mem.c
 */
#include "be_cuda.h"

#include <stdio.h>
#include <string.h>

#include "be_kroute.h"

/* CUjit_option, CUfunction_attribute */
#define JIT_ERROR_LOG 5
#define JIT_ERROR_LOG_BYTES 6

static enum rc lib_load(struct be_cuda_ctx *c, const struct be_kart *a, cu_mod *out,
                        struct rc_err *err)
{
    char log[1024] = "";
    int opts[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof(log)};
    cu_mod mod = NULL;
    int code;
    enum rc rc;

    for (uint32_t i = 0; i < c->n_libs; i++)
        if (c->lib[i].art == a) {
            *out = c->lib[i].mod;
            return RC_OK;
        }
    if (c->n_libs == BE_CUDA_LIBS)
        return rc_fail(err, RC_INTERNAL, "kernel library '%s': more than %u of them", a->lib,
                       BE_CUDA_LIBS);
    code = c->d->mod_load(&mod, a->data, 2, opts, values);
    if (code != 0) {
        c->ks.wiring_failures++;
        rc = be_cuda_do(c, code, "loading a kernel library", err);
        rc_wrap(err, "'%s' (%.200s)", a->lib, log[0] ? log : "no log");
        return rc;
    }
    c->lib[c->n_libs++] = (struct be_cuda_lib){a, mod};
    *out = mod;
    return RC_OK;
}

static enum rc fn_load(struct be_cuda_ctx *c, const struct be_kentry *e, struct be_cuda_fn **out,
                       struct rc_err *err)
{
    bool exact = be_kplan_is_exact(e);
    struct be_kplan_req req = {.op = e->desc.op, .arch = c->arch};
    struct be_kplan plan = {.bucket = exact ? NULL : e, .exact = exact ? e : NULL};
    struct be_kroute_env env = {0}; /* the embedded set, nothing else */
    struct be_kroute route;
    struct be_cuda_fn *f;
    cu_mod mod = NULL;
    cu_fn fn = NULL;
    enum rc rc;

    for (uint32_t i = 0; i < c->n_fns; i++)
        if (c->fn[i].e == e) {
            *out = &c->fn[i];
            return RC_OK;
        }
    if (c->base.sealed) {
        c->ks.hot_compiles++;
        return rc_fail_what(err, RC_INTERNAL, e->name,
                            "kernel '%s' was not loaded before the context was sealed", e->name);
    }
    if (c->n_fns == BE_CUDA_FNS)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': more than %u of them", e->name, BE_CUDA_FNS);
    if (e->min_arch > c->arch)
        return rc_fail_what(err, RC_UNSUPPORTED, e->name,
                            "kernel '%s' needs sm_%u, this device is sm_%u", e->name, e->min_arch,
                            c->arch);
    if ((rc = be_kroute_resolve(&env, &req, &plan, &route, &c->ks, err)) != RC_OK)
        return rc;
    if (!route.art)
        return rc_fail_what(err, RC_UNSUPPORTED, e->name,
                            "kernel '%s' of library '%s' has no artifact for sm_%u in this build",
                            e->name, e->lib, c->arch);
    if ((rc = be_cuda_enter(c, err)) != RC_OK || (rc = lib_load(c, route.art, &mod, err)) != RC_OK)
        return rc;
    rc = be_cuda_do(c, c->d->mod_fn(&fn, mod, e->name), "finding a kernel", err);
    if (rc != RC_OK) {
        c->ks.wiring_failures++;
        rc_wrap(err, "'%s' in library '%s'", e->name, e->lib);
        return rc;
    }
    f = &c->fn[c->n_fns++];
    *f = (struct be_cuda_fn){.e = e, .fn = fn, .dyn_bytes = BE_CUDA_DYN};
    f->route = route.kind;
    *out = f;
    return RC_OK;
}

enum rc be_cuda_fn_get(struct be_cuda_ctx *c, const char *name, struct be_cuda_fn **out,
                       struct rc_err *err)
{
    const struct be_kentry *e = be_kcat_find(name);

    if (!e)
        return rc_fail_what(err, RC_UNSUPPORTED, name, "kernel '%s' is not in the catalog", name);
    return fn_load(c, e, out, err);
}

enum rc be_cuda_fn_try(struct be_cuda_ctx *c, const char *name, struct be_cuda_fn **out,
                       struct rc_err *err)
{
    const struct be_kentry *e = be_kcat_find(name);

    *out = NULL;
    if (!e || e->min_arch > c->arch)
        return RC_OK;
    return fn_load(c, e, out, err);
}

enum rc be_cuda_mod_init(struct be_cuda_ctx *c, struct rc_err *err)
{
    static const char *const rows[BE_CK_COUNT] = {
        [BE_CK_QUANT] = "kx_quant",
        [BE_CK_RMS_NORM] = "kx_rms_norm",
        [BE_CK_LAYER_NORM] = "kx_layer_norm",
        [BE_CK_ROPE] = "kx_rope",
        [BE_CK_ROPE_KV] = "kx_rope_kv",
        [BE_CK_KV_WRITE] = "kx_kv_write",
        [BE_CK_GATHER] = "kx_gather",
        [BE_CK_SOFTCAP] = "kx_softcap",
        [BE_CK_POOL] = "kx_pool",
        [BE_CK_ARGMAX_PART] = "kx_argmax_part",
        [BE_CK_ARGMAX] = "kx_argmax",
        [BE_CK_SAMPLE_PART] = "kx_sample_part",
        [BE_CK_SAMPLE] = "kx_sample",
    };
    enum rc rc;

    for (int i = 0; i < BE_CK_COUNT; i++)
        if ((rc = be_cuda_fn_get(c, rows[i], &c->k[i], err)) != RC_OK)
            return rc;
    return RC_OK;
}

void be_cuda_mod_end(struct be_cuda_ctx *c)
{
    while (c->n_libs > 0)
        (void)c->d->mod_unload(c->lib[--c->n_libs].mod);
    c->n_fns = 0;
}
