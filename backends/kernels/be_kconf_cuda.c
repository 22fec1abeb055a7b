/* be_kconf_cuda.c - the CUDA driver as a device of the conformance runner.
 *
 * Its own context and stream beside those of a backend: nothing here is used while a model runs.
 * Kernels are the embedded PTX; a library is loaded when its first kernel is asked for. Tests:
 * tests/backends/test_be_kconf_cuda.c
 */
#include <stdio.h>

#include "be_cuda_drv.h"
#include "be_kargs.h"
#include "be_kart.h"
#include "be_kconf_impl.h"

#define MAX_LIBS 128

/* numbers of the driver's interface */
#define ATTR_CC_MAJOR 75
#define ATTR_CC_MINOR 76
#define JIT_ERROR_LOG 5
#define JIT_ERROR_LOG_BYTES 6
#define FN_MAX_DYNAMIC_SHARED 8
#define DEFAULT_SHARED (48u * 1024)

struct be_kconf_cuda {
    struct be_cuda_drv *d;
    int device;
    uint32_t arch;
    cu_ctx ctx;
    cu_stream stream;
    uint32_t n_libs;
    struct {
        const struct be_kart *art;
        cu_mod mod;
    } lib[MAX_LIBS];
    char name[128];
};

static enum rc dev_alloc(void *user, size_t n, uint64_t *out, struct rc_err *err)
{
    struct be_kconf_cuda *c = user;
    cu_ptr p = 0;
    enum rc rc = be_cuda_check(c->d, c->d->mem_alloc(&p, n), "allocating a conformance case", err);

    if (rc == RC_OK)
        *out = p;
    return rc;
}

static void dev_free(void *user, uint64_t at)
{
    struct be_kconf_cuda *c = user;

    (void)c->d->mem_free(at);
}

static enum rc wait(struct be_kconf_cuda *c, int code, const char *doing, struct rc_err *err)
{
    if (code == 0)
        code = c->d->stream_sync(c->stream);
    return be_cuda_check(c->d, code, doing, err);
}

static enum rc dev_upload(void *user, uint64_t dst, const void *src, size_t n, struct rc_err *err)
{
    struct be_kconf_cuda *c = user;

    return wait(c, c->d->h2d(dst, src, n, c->stream), "uploading a conformance case", err);
}

static enum rc dev_download(void *user, void *dst, uint64_t src, size_t n, struct rc_err *err)
{
    struct be_kconf_cuda *c = user;

    return wait(c, c->d->d2h(dst, src, n, c->stream), "downloading a conformance case", err);
}

static enum rc lib_get(struct be_kconf_cuda *c, const struct be_kentry *e, cu_mod *out,
                       struct rc_err *err)
{
    static const int opts[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    char log[2048] = "";
    void *vals[] = {log, (void *)(uintptr_t)sizeof(log)};
    const struct be_kart *art;
    cu_mod mod = NULL;
    int code;

    if (!(art = be_kart_entry(e->lib, e->name, c->arch)))
        return rc_fail(err, RC_UNSUPPORTED, "kernel '%s' is in no PTX of library '%s' for sm_%u",
                       e->name, e->lib, c->arch);
    for (uint32_t i = 0; i < c->n_libs; i++)
        if (c->lib[i].art == art) {
            *out = c->lib[i].mod;
            return RC_OK;
        }
    if (c->n_libs == MAX_LIBS)
        return rc_fail(err, RC_INTERNAL, "more than %d kernel libraries", MAX_LIBS);
    code = c->d->mod_load(&mod, art->data, 2, (int *)opts, vals);
    if (code != 0) {
        enum rc rc = be_cuda_check(c->d, code, "loading kernels", err);

        rc_wrap(err, "library '%s' (sm_%u): %.200s", e->lib, art->arch, log);
        return rc == RC_NOMEM || be_cuda_sticky(code) ? rc : RC_FORMAT;
    }
    c->lib[c->n_libs].art = art;
    c->lib[c->n_libs++].mod = mod;
    *out = mod;
    return RC_OK;
}

static enum rc dev_launch(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                          const void *args, size_t n_bytes, struct rc_err *err)
{
    struct be_kconf_cuda *c = user;
    void *params[] = {(void *)args};
    struct kx_linear_wg wg;
    cu_mod mod = NULL;
    cu_fn fn = NULL;
    int code;
    enum rc rc;

    if (n_bytes == sizeof(wg) && e->desc.op == BE_KOP_LINEAR) {
        memcpy(&wg, args, sizeof(wg));
        if ((rc = be_cuda_maps(c->d, &wg, err)) != RC_OK)
            return rc;
        params[0] = &wg;
    }
    if ((rc = lib_get(c, e, &mod, err)) != RC_OK)
        return rc;
    if (c->d->mod_fn(&fn, mod, e->name) != 0)
        return rc_fail(err, RC_FORMAT, "library '%s' for sm_%u has no kernel '%s'", e->lib, c->arch,
                       e->name);
    if (g->shared_bytes > DEFAULT_SHARED &&
        (code = c->d->fn_set(fn, FN_MAX_DYNAMIC_SHARED, (int)g->shared_bytes)) != 0)
        return be_cuda_check(c->d, code, "asking for shared memory", err);
    code = c->d->launch(fn, g->x, g->y, g->z, g->threads, 1, 1, g->shared_bytes, c->stream, params,
                        NULL);
    rc = wait(c, code, "running a kernel", err);
    /* a refused launch is that kernel's fault, a sticky error ends the run */
    if (rc != RC_OK) {
        rc_wrap(err, "%s: grid %u x %u x %u, %u threads, %u shared bytes", e->name, g->x, g->y,
                g->z, g->threads, g->shared_bytes);
        if (!be_cuda_sticky(code) && code != 0)
            rc = RC_FORMAT;
    }
    return rc;
}

enum rc be_kconf_cuda_open(struct be_kconf_cuda **out, int device, uint32_t arch,
                           struct be_kconf_dev *dev, struct rc_err *err)
{
    struct be_kconf_cuda *c = NULL;
    int n = 0, major = 0, minor = 0, dev_id = 0, code;
    uint32_t own;
    char name[96] = "";
    enum rc rc;

    if ((rc = be_kart_verify(err)) != RC_OK)
        return rc;
    if (!(c = calloc(1, sizeof(*c))))
        return rc_fail(err, RC_NOMEM, "no memory for a conformance device");
    if ((rc = be_cuda_drv_open(&c->d, err)) != RC_OK)
        goto out;
    if ((code = c->d->device_count(&n)) != 0) {
        rc = be_cuda_check(c->d, code, "counting devices", err);
        goto out;
    }
    if (device < 0 || device >= n) {
        rc = rc_fail(err, RC_NOT_FOUND, "device %d, expected 0 to %d", device, n - 1);
        goto out;
    }
    if ((code = c->d->device_get(&dev_id, device)) != 0 ||
        (code = c->d->device_name(name, sizeof(name), dev_id)) != 0 ||
        (code = c->d->device_attr(&major, ATTR_CC_MAJOR, dev_id)) != 0 ||
        (code = c->d->device_attr(&minor, ATTR_CC_MINOR, dev_id)) != 0 ||
        (code = c->d->primary_retain(&c->ctx, dev_id)) != 0) {
        rc = be_cuda_check(c->d, code, "opening the device", err);
        goto out;
    }
    c->device = dev_id;
    if ((code = c->d->ctx_set(c->ctx)) != 0 || (code = c->d->stream_new(&c->stream, 1)) != 0) {
        rc = be_cuda_check(c->d, code, "opening a stream", err);
        goto out;
    }
    own = (uint32_t)(major * 10 + minor);
    c->arch = arch && arch < own ? arch : own;
    if (c->arch < own)
        snprintf(c->name, sizeof(c->name), "%s (sm_%u, kernels up to sm_%u)", name, own, c->arch);
    else
        snprintf(c->name, sizeof(c->name), "%s (sm_%u)", name, own);
    *dev = (struct be_kconf_dev){.user = c,
                                 .name = c->name,
                                 .arch = c->arch,
                                 .alloc = dev_alloc,
                                 .free = dev_free,
                                 .upload = dev_upload,
                                 .download = dev_download,
                                 .launch = dev_launch};
    *out = c;
    c = NULL;
out:
    be_kconf_cuda_close(&c);
    return rc;
}

void be_kconf_cuda_close(struct be_kconf_cuda **cp)
{
    struct be_kconf_cuda *c = *cp;

    if (!c)
        return;
    for (uint32_t i = 0; i < c->n_libs; i++)
        (void)c->d->mod_unload(c->lib[i].mod);
    if (c->stream)
        (void)c->d->stream_free(c->stream);
    if (c->ctx)
        (void)c->d->primary_release(c->device);
    free(c);
    *cp = NULL;
}
