/* be_knvrtc.c - the run-time compiler as kgen uses it.
 *
 * Only kgen comes here: a worker compiles through its backend (backends/cuda/). The
 * library and its builtins are opened by full path, so no LD_LIBRARY_PATH is needed.
 * Tests: tests/backends/test_be_kgen.c, skipped without INFERD_NVRTC_LIBRARY.
 */
#include "be_kgen.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc_prog *prog;

struct be_knvrtc {
    void *lib, *builtins;
    char version[32];
    int (*get_version)(int *major, int *minor);
    int (*create)(prog *, const char *src, const char *name, int, const char *const *,
                  const char *const *);
    int (*destroy)(prog *);
    int (*compile)(prog, int, const char *const *);
    int (*ptx_size)(prog, size_t *);
    int (*ptx)(prog, char *);
    int (*log_size)(prog, size_t *);
    int (*log)(prog, char *);
    const char *(*error)(int);
};

static enum rc bind(struct be_knvrtc *n, const char *path, struct rc_err *err)
{
    const struct {
        const char *name;
        void *at;
    } names[] = {
        {"nvrtcVersion", &n->get_version},        {"nvrtcCreateProgram", &n->create},
        {"nvrtcDestroyProgram", &n->destroy},     {"nvrtcCompileProgram", &n->compile},
        {"nvrtcGetPTXSize", &n->ptx_size},        {"nvrtcGetPTX", &n->ptx},
        {"nvrtcGetProgramLogSize", &n->log_size}, {"nvrtcGetProgramLog", &n->log},
        {"nvrtcGetErrorString", &n->error},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *p = dlsym(n->lib, names[i].name);

        if (!p)
            return rc_fail(err, RC_UNSUPPORTED, "'%s' has no %s", path, names[i].name);
        memcpy(names[i].at, &p, sizeof(p));
    }
    return RC_OK;
}

/* The library looks for its builtins by bare name; loaded first by path, it finds them. */
static void open_builtins(struct be_knvrtc *n, const char *path, int major, int minor)
{
    const char *slash = strrchr(path, '/');
    char full[4200];
    int len;

    if (!slash)
        return;
    len = snprintf(full, sizeof(full), "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - path), path,
                   major, minor);
    if (len > 0 && (size_t)len < sizeof(full))
        n->builtins = dlopen(full, RTLD_NOW | RTLD_GLOBAL);
}

/* nvrtcVersion leaves out the patch level; the PTX it writes has it. */
static enum rc full_version(struct be_knvrtc *n, int major, int minor, struct rc_err *err)
{
    char *ptx = NULL, want[32];
    const char *v;
    size_t size;
    enum rc rc;

    rc = be_knvrtc_compile(n, "version.cu", "extern \"C\" __global__ void kx_v(int *p) { *p = 1; }",
                           NULL, 0, &ptx, &size, err);
    if (rc != RC_OK)
        return rc;
    snprintf(want, sizeof(want), ", V%d.%d.", major, minor);
    v = strstr(ptx, want);
    if (v)
        snprintf(n->version, sizeof(n->version), "NVRTC %.*s", (int)strcspn(v + 3, "\r\n"), v + 3);
    else
        snprintf(n->version, sizeof(n->version), "NVRTC %d.%d", major, minor);
    free(ptx);
    return RC_OK;
}

enum rc be_knvrtc_open(struct be_knvrtc **out, const char *path, struct rc_err *err)
{
    struct be_knvrtc *n = calloc(1, sizeof(*n));
    int major = 0, minor = 0;
    enum rc rc;

    if (!n)
        return rc_fail(err, RC_NOMEM, "out of memory");
    n->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!n->lib) {
        rc = rc_fail(err, RC_NOT_FOUND, "cannot load the compiler: %s", dlerror());
        goto out;
    }
    if ((rc = bind(n, path, err)) != RC_OK)
        goto out;
    if (n->get_version(&major, &minor) != 0) {
        rc = rc_fail(err, RC_UNSUPPORTED, "'%s' does not say its version", path);
        goto out;
    }
    open_builtins(n, path, major, minor);
    if ((rc = full_version(n, major, minor, err)) != RC_OK)
        goto out;
    *out = n;
    n = NULL;
out:
    be_knvrtc_close(&n);
    return rc;
}

void be_knvrtc_close(struct be_knvrtc **n)
{
    if (!*n)
        return;
    if ((*n)->lib)
        dlclose((*n)->lib);
    if ((*n)->builtins)
        dlclose((*n)->builtins);
    free(*n);
    *n = NULL;
}

const char *be_knvrtc_version(const struct be_knvrtc *n)
{
    return n->version;
}

static enum rc compile_failed(struct be_knvrtc *n, prog p, const char *name, int status,
                              struct rc_err *err)
{
    size_t size = 0;
    char *log = NULL;
    enum rc rc;

    if (n->log_size(p, &size) == 0 && size > 1 && (log = calloc(1, size + 1)))
        n->log(p, log);
    rc = rc_fail(err, RC_INTERNAL, "compiling '%s': %s\n%s", name, n->error(status),
                 log ? log : "no log");
    free(log);
    return rc;
}

enum rc be_knvrtc_compile(struct be_knvrtc *n, const char *name, const char *src,
                          const char *const *opts, int n_opts, char **out, size_t *out_n,
                          struct rc_err *err)
{
    prog p = NULL;
    char *ptx = NULL;
    size_t size = 0;
    int status;
    enum rc rc = RC_OK;

    if ((status = n->create(&p, src, name, 0, NULL, NULL)) != 0)
        return rc_fail(err, RC_INTERNAL, "compiling '%s': %s", name, n->error(status));
    if ((status = n->compile(p, n_opts, opts)) != 0) {
        rc = compile_failed(n, p, name, status, err);
        goto out;
    }
    if ((status = n->ptx_size(p, &size)) != 0 || size == 0) {
        rc = rc_fail(err, RC_INTERNAL, "compiling '%s': no PTX: %s", name, n->error(status));
        goto out;
    }
    if (!(ptx = calloc(1, size + 1))) {
        rc = rc_fail(err, RC_NOMEM, "compiling '%s': out of memory for %zu bytes", name, size);
        goto out;
    }
    if ((status = n->ptx(p, ptx)) != 0) {
        rc = rc_fail(err, RC_INTERNAL, "compiling '%s': no PTX: %s", name, n->error(status));
        goto out;
    }
    *out_n = strlen(ptx);
    *out = ptx;
    ptx = NULL;
out:
    free(ptx);
    n->destroy(&p);
    return rc;
}
