/* be_cuda_nvrtc.c - NVRTC, NVIDIA's run-time compiler, opened when it is there.
 *
 * Optional: without it nothing is compiled and bundled kernels run. As the driver it
 * is opened once per file name and stays. Tests: tests/backends/test_be_cuda_drv.c
 */
#include "be_cuda_drv.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct opened {
    struct be_cuda_nvrtc n;
    struct opened *next;
    char path[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *list;

/* newest first: an image of a newer compiler needs no newer driver as long as the
 * driver's major version is not older, which loading finds out */
static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
                                    "libnvrtc.so", NULL};

#define COMPILE_ERROR 6 /* NVRTC_ERROR_COMPILATION */

static enum rc bind(struct be_cuda_nvrtc *n, const char *path, struct rc_err *err)
{
    int (*version)(int *, int *) = NULL;
    const struct {
        const char *symbol;
        void *at;
        bool required;
    } symbols[] = {
        {"nvrtcVersion", &version, true},
        {"nvrtcCreateProgram", &n->create, true},
        {"nvrtcDestroyProgram", &n->destroy, true},
        {"nvrtcCompileProgram", &n->compile, true},
        {"nvrtcGetPTXSize", &n->ptx_size, true},
        {"nvrtcGetPTX", &n->ptx, true},
        {"nvrtcGetCUBINSize", &n->cubin_size, false},
        {"nvrtcGetCUBIN", &n->cubin, false},
        {"nvrtcGetProgramLogSize", &n->log_size, true},
        {"nvrtcGetProgramLog", &n->log, true},
    };

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *p = dlsym(n->lib, symbols[i].symbol);

        if (!p && symbols[i].required)
            return rc_fail_what(err, RC_UNSUPPORTED, symbols[i].symbol, "NVRTC '%s' has no %s",
                                path, symbols[i].symbol);
        memcpy(symbols[i].at, &p, sizeof(p));
    }
    if (version(&n->major, &n->minor) != 0)
        return rc_fail(err, RC_UNSUPPORTED, "NVRTC '%s' does not tell its version", path);
    return RC_OK;
}

static enum rc load(struct opened **out, const char *path, struct rc_err *err)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    struct opened *o;
    enum rc rc;

    if (!lib)
        return rc_fail_what(err, RC_NOT_FOUND, "nvrtc", "no NVRTC: %s", dlerror());
    o = calloc(1, sizeof(*o) + strlen(path) + 1);
    if (!o) {
        dlclose(lib);
        return rc_fail(err, RC_NOMEM, "no memory for NVRTC's table");
    }
    memcpy(o->path, path, strlen(path) + 1);
    o->n.lib = lib;
    if ((rc = bind(&o->n, path, err)) != RC_OK) {
        dlclose(lib);
        free(o);
        return rc;
    }
    o->next = list;
    list = o;
    *out = o;
    return RC_OK;
}

enum rc be_cuda_nvrtc_open(struct be_cuda_nvrtc **out, struct rc_err *err)
{
    const char *one = getenv("INFERD_NVRTC_LIBRARY");
    const char *const only[] = {one, NULL};
    const char *const *try = one && *one ? only : names;
    struct opened *o = NULL;
    enum rc rc = RC_NOT_FOUND;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; rc != RC_OK && try[i]; i++) {
        for (o = list; o && strcmp(o->path, try[i]) != 0; o = o->next)
            ;
        rc = o ? RC_OK : load(&o, try[i], err);
    }
    pthread_mutex_unlock(&lock);
    if (rc == RC_OK)
        *out = &o->n;
    return rc;
}

static void read_log(const struct be_cuda_nvrtc *n, void *prog, char *log, size_t cap)
{
    size_t len = 0;
    char *all;

    if (cap == 0)
        return;
    log[0] = '\0';
    if (n->log_size(prog, &len) != 0 || len == 0 || len > ((size_t)64 << 20))
        return;
    all = calloc(1, len + 1);
    if (all && n->log(prog, all) == 0)
        snprintf(log, cap, "%s", all);
    free(all);
}

enum rc be_cuda_nvrtc_build(const struct be_cuda_nvrtc *n, const char *src, const char *const *opts,
                            uint32_t n_opts, bool cubin, uint8_t **out, size_t *out_n, char *log,
                            size_t log_cap, struct rc_err *err)
{
    void *prog = NULL;
    uint8_t *image = NULL;
    size_t len = 0;
    int code;
    enum rc rc = RC_OK;

    if (cubin && (!n->cubin || !n->cubin_size))
        return rc_fail(err, RC_UNSUPPORTED, "NVRTC %d.%d makes no device images", n->major,
                       n->minor);
    if ((code = n->create(&prog, src, "inferd.cu", 0, NULL, NULL)) != 0)
        return rc_fail(err, RC_INTERNAL, "NVRTC refused the source (error %d)", code);
    code = n->compile(prog, (int)n_opts, opts);
    read_log(n, prog, log, log_cap);
    if (code != 0) {
        rc = rc_fail(err, code == COMPILE_ERROR ? RC_FORMAT : RC_INTERNAL,
                     "NVRTC %d.%d (%s): error %d: %.300s", n->major, n->minor,
                     n_opts > 0 ? opts[0] : "", code, log_cap > 0 ? log : "");
        goto out;
    }
    code = cubin ? n->cubin_size(prog, &len) : n->ptx_size(prog, &len);
    if (code != 0 || len == 0 || len > ((size_t)64 << 20)) {
        rc = rc_fail(err, RC_INTERNAL, "NVRTC: an image of %zu bytes (error %d)", len, code);
        goto out;
    }
    if (!(image = malloc(len + 1))) {
        rc = rc_fail(err, RC_NOMEM, "no memory for an image of %zu bytes", len);
        goto out;
    }
    image[len] = 0;
    code = cubin ? n->cubin(prog, (char *)image) : n->ptx(prog, (char *)image);
    if (code != 0) {
        rc = rc_fail(err, RC_INTERNAL, "NVRTC does not give its image (error %d)", code);
        goto out;
    }
    *out = image;
    *out_n = len;
    image = NULL;
out:
    free(image);
    (void)n->destroy(&prog);
    return rc;
}

enum rc be_cuda_nvrtc_compile(const struct be_cuda_nvrtc *n, const char *src, const char *arch,
                              uint8_t **out, size_t *out_n, char *log, size_t log_cap,
                              struct rc_err *err)
{
    char arch_opt[48];
    /* as the checked-in PTX: products are rounded before they are added */
    const char *const opts[] = {arch_opt, "--fmad=false"};

    snprintf(arch_opt, sizeof(arch_opt), "--gpu-architecture=%s", arch);
    return be_cuda_nvrtc_build(n, src, opts, 2, strncmp(arch, "sm_", 3) == 0, out, out_n, log,
                               log_cap, err);
}
