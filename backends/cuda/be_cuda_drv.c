/* be_cuda_drv.c - opening the CUDA driver, and its errors in our words.
 *
 * The library is opened once per process and file name and never closed: a driver
 * that has started its threads cannot be taken back. Nothing here touches a device
 * beyond cuInit. Tests: tests/backends/test_be_cuda_drv.c
 */
#include "be_cuda_drv.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One entry per opened file: the only state of this process that outlives a
 * context (the loader itself keeps the library as long). */
struct opened {
    struct be_cuda_drv drv;
    struct opened *next;
    char path[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *list;

#define DEFAULT_LIB "libcuda.so.1"

bool be_cuda_sticky(int code)
{
    switch (code) {
    case 4:   /* deinitialized */
    case 201: /* invalid context */
    case 214: /* uncorrectable ECC error */
    case 220: /* uncorrectable NVLink error */
    case 226: /* contained by the device's error containment */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 709: /* context is destroyed */
    case 710: /* device assert */
    case 714: /* hardware stack error */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid program counter */
    case 719: /* launch failed */
    case 999: /* unknown: nothing is known to work after it */
        return true;
    default:
        return false;
    }
}

static enum rc rc_of(int code)
{
    switch (code) {
    case 2:
        return RC_NOMEM;
    case 34:  /* stub library */
    case 100: /* no device */
    case 101: /* invalid device */
    case 200: /* invalid image */
    case 209: /* no binary for this GPU */
    case 218: /* invalid PTX */
    case 221: /* no JIT compiler */
    case 222: /* unsupported PTX version */
    case 223: /* JIT compilation disabled */
    case 801: /* not supported */
    case 802: /* system not ready */
    case 803: /* driver and library versions differ */
    case 804: /* compatibility not supported on this device */
        return RC_UNSUPPORTED;
    default:
        return RC_INTERNAL;
    }
}

enum rc be_cuda_check(const struct be_cuda_drv *d, int code, const char *doing, struct rc_err *err)
{
    const char *name = NULL, *text = NULL;

    if (code == 0)
        return RC_OK;
    if (d->error_name(code, &name) != 0 || !name)
        name = "unknown error";
    if (d->error_text(code, &text) != 0 || !text)
        text = "no text";
    return rc_fail_what(err, rc_of(code), name, "CUDA: %s: %s (%d): %s", doing, name, code, text);
}

static enum rc load(struct be_cuda_drv *d, const char *path, struct rc_err *err)
{
    static const struct {
        size_t at;
        const char *symbol;
        bool required;
    } symbols[] = {
#define X(req, name, sym, args) {offsetof(struct be_cuda_drv, name), sym, req},
        BE_CUDA_DRV_MAP(X)
#undef X
    };
    enum rc rc;

    d->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!d->lib)
        return rc_fail_what(err, RC_NOT_FOUND, "cuda driver",
                            "no CUDA driver: %s (it comes with the NVIDIA driver, package "
                            "libnvidia-compute or nvidia-driver-libs)",
                            dlerror());
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *p = dlsym(d->lib, symbols[i].symbol);

        if (!p && symbols[i].required) {
            rc = rc_fail_what(err, RC_UNSUPPORTED, symbols[i].symbol,
                              "the CUDA driver '%s' has no %s: it is too old (12.0 or newer is "
                              "expected)",
                              path, symbols[i].symbol);
            goto out;
        }
        memcpy((char *)d + symbols[i].at, &p, sizeof(p));
    }
    /* kernels are placed on the device when they are loaded, not by the first request */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    rc = be_cuda_check(d, d->init(0), "starting the driver (cuInit)", err);
    if (rc != RC_OK) {
        rc = rc == RC_NOMEM ? rc : RC_UNSUPPORTED;
        if (err)
            err->code = rc;
        goto out;
    }
    rc = be_cuda_check(d, d->driver_version(&d->version), "asking the driver's version", err);
out:
    if (rc != RC_OK)
        dlclose(d->lib);
    return rc;
}

enum rc be_cuda_drv_open(struct be_cuda_drv **out, struct rc_err *err)
{
    const char *path = getenv("INFERD_CUDA_LIBRARY");
    struct opened *o;
    size_t len;
    enum rc rc = RC_OK;

    if (!path || !*path)
        path = DEFAULT_LIB;
    len = strlen(path) + 1;
    pthread_mutex_lock(&lock);
    for (o = list; o && strcmp(o->path, path) != 0; o = o->next)
        ;
    if (!o) {
        o = calloc(1, sizeof(*o) + len);
        rc = o ? RC_OK : rc_fail(err, RC_NOMEM, "no memory for the CUDA driver's table");
        if (rc == RC_OK) {
            memcpy(o->path, path, len);
            rc = load(&o->drv, path, err);
        }
        if (rc == RC_OK) {
            o->next = list;
            list = o;
        } else {
            free(o);
        }
    }
    pthread_mutex_unlock(&lock);
    if (rc == RC_OK)
        *out = &o->drv;
    return rc;
}
