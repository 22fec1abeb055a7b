/* be_cuda_mod.c - what the planner names becomes a function on the device.
 *
 * No file of this room knows a kernel's name: each says what it has to compute (be_kplan_req), and
 * keeps the function. A library's PTX is taken from the embedded artifacts, the newest this device
 * can run, and compiled by the driver when the first kernel of it is asked for. All of that happens
 * while a model loads: after the seal it is refused and counted. Tests:
 * tests/backends/test_be_cuda_mem.c
 */
#include "be_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be_kroute.h"

/* CUjit_option, CUfunction_attribute */
#define JIT_ERROR_LOG 5
#define JIT_ERROR_LOG_BYTES 6

/* Text for older devices carries the two instructions of overlapping launches as comments
 * (kx_prelude.cu). */
#define OVERLAP "//griddepcontrol."
#define WAIT "griddepcontrol.wait"

/* A copy of that text for sm_90 with the comments made instructions; NULL: no memory. */
static char *overlapping(const struct be_kart *a)
{
    char *s = malloc(a->n_bytes + 1), *p;

    if (!s)
        return NULL;
    memcpy(s, a->data, a->n_bytes + 1);
    if ((p = strstr(s, ".target sm_")))
        memcpy(p + 11, "90", 2);
    for (p = s; (p = strstr(p, OVERLAP)); p += sizeof(OVERLAP) - 1)
        memcpy(p, "  ", 2);
    return s;
}

/* Does the entry of that text wait for the kernel before it? */
static bool entry_waits(const char *text, const char *name)
{
    char mark[128];
    const char *p, *end, *wait;

    snprintf(mark, sizeof(mark), ".entry %s(", name);
    if (!(p = strstr(text, mark)))
        return false;
    end = strstr(p + 1, ".entry ");
    wait = strstr(p, WAIT);
    return wait && (!end || wait < end);
}

static enum rc lib_load(struct be_cuda_ctx *c, const struct be_kart *a, cu_mod *out,
                        struct rc_err *err)
{
    char log[1024] = "";
    int opts[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof(log)};
    bool patch = c->overlap && a->arch < 90 && strstr(a->data, OVERLAP);
    char *text = NULL;
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
    if (patch && !(text = overlapping(a)))
        return rc_fail(err, RC_NOMEM, "kernel library '%s': no memory for its text", a->lib);
    code = c->d->mod_load(&mod, text ? text : a->data, 2, opts, values);
    free(text);
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

struct be_cuda_fn *be_cuda_fn_of(struct be_cuda_ctx *c, const struct be_kentry *e)
{
    for (uint32_t i = 0; i < c->n_fns; i++)
        if (strcmp(c->fn[i].e->name, e->name) == 0)
            return &c->fn[i];
    return NULL;
}

/* What the route leads to. */
static enum rc fn_load(struct be_cuda_ctx *c, const struct be_kroute *route,
                       struct be_cuda_fn **out, struct rc_err *err)
{
    const struct be_kentry *e = route->entry;
    cu_mod mod = NULL;
    cu_fn fn = NULL;
    enum rc rc;

    if (c->n_fns == BE_CUDA_FNS)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': more than %u of them", e->name, BE_CUDA_FNS);
    if ((rc = be_cuda_enter(c, err)) != RC_OK || (rc = lib_load(c, route->art, &mod, err)) != RC_OK)
        return rc;
    rc = be_cuda_do(c, c->d->mod_fn(&fn, mod, e->name), "finding a kernel", err);
    if (rc != RC_OK) {
        c->ks.wiring_failures++;
        rc_wrap(err, "'%s' in library '%s'", e->name, e->lib);
        return rc;
    }
    *out = &c->fn[c->n_fns++];
    **out = (struct be_cuda_fn){.e = e,
                                .fn = fn,
                                .dyn_bytes = BE_CUDA_DYN,
                                .route = route->kind,
                                .waits = c->overlap && entry_waits(route->art->data, e->name)};
    return RC_OK;
}

enum rc be_cuda_fn_plan(struct be_cuda_ctx *c, const struct be_kplan_req *r,
                        struct be_cuda_fn **out, struct rc_err *err)
{
    struct be_kplan_req req = *r;
    struct be_kroute_env env = {0}; /* the embedded set, nothing else */
    struct be_kroute route;
    struct be_kplan plan;
    struct be_cuda_fn *f;
    char text[256];
    enum rc rc;

    req.arch = c->arch;
    be_kplan_make(be_kfamilies, &req, &plan);
    if (plan.why != BE_KPLAN_OK) {
        c->ks.missing_artifacts += plan.why == BE_KPLAN_MISSING_KERNEL;
        be_kplan_text(&req, &plan, text, sizeof(text));
        return rc_fail_what(err, RC_UNSUPPORTED, plan.name, "%s on sm_%u", text, c->arch);
    }
    if ((f = be_cuda_fn_of(c, plan.exact ? plan.exact : plan.bucket))) {
        *out = f;
        return RC_OK;
    }
    if (c->base.sealed) {
        c->ks.hot_compiles++;
        return rc_fail_what(err, RC_INTERNAL, plan.name,
                            "kernel '%s' was not loaded before the context was sealed", plan.name);
    }
    if ((rc = be_kroute_resolve(&env, &req, &plan, &route, &c->ks, err)) != RC_OK)
        return rc;
    if (!route.art)
        return rc_fail_what(err, RC_UNSUPPORTED, plan.name,
                            "kernel '%s' has no artifact for sm_%u in this build", plan.name,
                            c->arch);
    if ((f = be_cuda_fn_of(c, route.entry))) {
        *out = f;
        return RC_OK;
    }
    return fn_load(c, &route, out, err);
}

enum rc be_cuda_mod_init(struct be_cuda_ctx *c, struct rc_err *err)
{
    /* for rows of any length and heads of any size */
    static const struct be_kplan_req rows[BE_CK_COUNT] = {
#define ROWS(o, ...) {.op = BE_KOP_##o, .open = true, __VA_ARGS__}
        [BE_CK_QUANT] = ROWS(QUANT, .wfmt = BE_Q8_0),
        [BE_CK_RMS_NORM] = ROWS(RMS_NORM),
        [BE_CK_LAYER_NORM] = ROWS(LAYER_NORM),
        [BE_CK_ROPE] = ROWS(ROPE),
        [BE_CK_ROPE_KV] = ROWS(ROPE, .fused_kv = true),
        [BE_CK_KV_WRITE] = ROWS(KV_WRITE),
        [BE_CK_GATHER] = ROWS(GATHER),
        [BE_CK_SOFTCAP] = ROWS(SOFTCAP),
        [BE_CK_SCALE] = ROWS(SCALE),
        [BE_CK_POOL] = ROWS(POOL),
        [BE_CK_ARGMAX_PART] = ROWS(ARGMAX_PART),
        [BE_CK_ARGMAX] = ROWS(ARGMAX),
        [BE_CK_SAMPLE_PART] = ROWS(SAMPLE_PART),
        [BE_CK_SAMPLE] = ROWS(SAMPLE),
        [BE_CK_MUL] = ROWS(MUL),
#undef ROWS
    };
    enum rc rc;

    for (int i = 0; i < BE_CK_COUNT; i++)
        if ((rc = be_cuda_fn_plan(c, &rows[i], &c->k[i], err)) != RC_OK)
            return rc;
    return RC_OK;
}

void be_cuda_mod_end(struct be_cuda_ctx *c)
{
    while (c->n_libs > 0)
        (void)c->d->mod_unload(c->lib[--c->n_libs].mod);
    c->n_fns = 0;
}
