/* wrk_device.c - see wrk_device.h.
 *
 * Two tables: the words, and what a driver may touch of the file system. The second is
 * data for wrk_sandbox_landlock.c; a path that does not exist on this machine grants
 * nothing. Change freely: both tables, a row with its reason.
 * Tests: tests/worker/test_wrk_device.c
 */
#include "wrk_device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda/be_cuda_drv.h"

#define DEVICES_MAX 63
#define PATHS_MAX 48

static const char *const w_backend[] = {"cpu", "cuda", NULL};
static const char *const w_compute[] = {"exact_f32", "tf32", "f16", NULL};
static const char *const w_jit[] = {"off", "guarded", "exact", "profile", NULL};

#define AT(f) offsetof(struct wrk_device, f)
static const struct {
    const char *name;
    size_t at; /* of a const char *, or with max of a uint64_t */
    uint64_t max;
    const char *const *words; /* NULL: any text */
} table[] = {
    {"backend", AT(backend), 0, w_backend},
    {"device", AT(device), DEVICES_MAX, NULL},
    {"compute", AT(compute), 0, w_compute},
    {"jit", AT(jit), 0, w_jit},
    {"jit-cache-dir", AT(jit_cache_dir), 0, NULL},
    {"jit-cache-bytes", AT(jit_cache_bytes), 1ull << 40, NULL},
    {"workspace-bytes", AT(workspace_bytes), 1ull << 40, NULL},
    {"cuda-library", AT(cuda_library), 0, NULL},
    {"nvrtc-library", AT(nvrtc_library), 0, NULL},
};
#undef AT

const char *wrk_device_usage(void)
{
    return "device words: --backend=cpu|cuda --device=N --compute=exact_f32|tf32|f16\n"
           "           --jit=off|guarded|exact|profile --jit-cache-dir=PATH\n"
           "           --jit-cache-bytes=N --workspace-bytes=N --cuda-library=PATH\n"
           "           --nvrtc-library=PATH\n";
}

static bool listed(const char *const *words, const char *s)
{
    for (; words && *words; words++)
        if (strcmp(*words, s) == 0)
            return true;
    return words == NULL;
}

bool wrk_device_set(struct wrk_device *d, const char *name, const char *value, bool *known)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *at = (char *)d + table[i].at, *end = NULL;
        unsigned long long n;

        if (strcmp(table[i].name, name) != 0)
            continue;
        *known = true;
        if (!value || !*value)
            return false;
        if (table[i].max == 0) {
            if (listed(table[i].words, value)) {
                memcpy(at, &value, sizeof(value));
                return true;
            }
            return false;
        }
        n = strtoull(value, &end, 10);
        if (*value < '0' || *value > '9' || *end != '\0' || n > table[i].max)
            return false;
        memcpy(at, &(uint64_t){n}, sizeof(uint64_t));
        return true;
    }
    *known = false;
    return false;
}

bool wrk_device_word(struct wrk_device *d, const char *arg)
{
    const char *eq = strchr(arg, '=');
    char name[32];
    bool known;

    if (strncmp(arg, "--", 2) != 0 || !eq || (size_t)(eq - arg) - 2 >= sizeof(name))
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)(eq - arg) - 2, arg + 2);
    return wrk_device_set(d, name, eq + 1, &known);
}

void wrk_device_env(struct wrk_device *d)
{
    const char *cuda = getenv("INFERD_CUDA_LIBRARY"), *nvrtc = getenv("INFERD_NVRTC_LIBRARY");

    /* copies: the sandbox wipes the environment itself; they live as long as the process */
    if (!d->cuda_library && cuda && *cuda)
        d->cuda_library = strdup(cuda);
    if (!d->nvrtc_library && nvrtc && *nvrtc)
        d->nvrtc_library = strdup(nvrtc);
}

const char *wrk_device_backend(const struct wrk_device *d)
{
    return d->backend ? d->backend : "cpu";
}

bool wrk_device_is_cpu(const struct wrk_device *d)
{
    return strcmp(wrk_device_backend(d), "cpu") == 0;
}

static bool jit_on(const struct wrk_device *d)
{
    return d->jit && strcmp(d->jit, "off") != 0;
}

void wrk_device_opts(const struct wrk_device *d, struct be_opts *o)
{
    o->backend = wrk_device_backend(d);
    o->device = (int)d->device;
    if (d->workspace_bytes)
        o->workspace_bytes = d->workspace_bytes;
    o->compute = d->compute;
    o->jit = d->jit;
    o->jit_cache_dir = d->jit_cache_dir;
    o->jit_cache_bytes = d->jit_cache_bytes;
}

/* --------------------------------------------------------------------- paths */

/* Read by the loader and the driver. Of /proc only what names no other process. */
static const char *const read_only[] = {
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/local/lib",
    "/usr/local/cuda",
    "/usr/local/nvidia",
    "/opt/cuda",
    "/run/opengl-driver", /* NixOS */
    "/etc/ld.so.cache",
    "/etc/nvidia",
    "/usr/share/nvidia",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/devices",
    "/proc/modules",
    "/proc/filesystems",
    "/proc/driver/nvidia",
    "/proc/driver/nvidia-uvm",
    "/proc/driver/nvidia-caps",
    "/proc/sys/vm",
    "/sys/bus", /* which devices and memory this machine has, and where */
    "/sys/class",
    "/sys/devices",
    "/sys/module",
    "/dev/zero",
    "/dev/urandom",
};
static const char *const nodes[] = {
    "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps",
    "/dev/null",      "/proc/self/task", /* cuInit names its threads there, and fails (304) when it
                                            may not; the filter that follows lets nothing be opened
                                            for writing */
};
/* What a driver opens later than at its start: to be there before the filter forbids
 * mapping code. One that is missing is one that is not needed, or is missed by name. */
static const char *const early[] = {
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
};

struct paths {
    const char *list[PATHS_MAX + DEVICES_MAX + 2];
    size_t n;
    char text[DEVICES_MAX + 1][24];
    char dir[2][PATH_MAX];
};

static void add(struct paths *p, const char *s)
{
    if (p->n + 1 < sizeof(p->list) / sizeof(p->list[0]))
        p->list[p->n++] = s;
}

static void add_folder_of(struct paths *p, char buf[PATH_MAX], const char *file)
{
    const char *slash = file ? strrchr(file, '/') : NULL;

    if (!slash || slash == file || (size_t)(slash - file) >= PATH_MAX)
        return;
    snprintf(buf, PATH_MAX, "%.*s", (int)(slash - file), file);
    add(p, buf);
}

/* --------------------------------------------------------------------- opening */

struct opening {
    const struct wrk_device *d;
    const struct wrk_enter *in;
    struct be_ctx *be;
    struct rc_err *why;
};

void wrk_device_export(const struct wrk_device *d)
{
    if (d->cuda_library)
        setenv("INFERD_CUDA_LIBRARY", d->cuda_library, 1);
    if (d->nvrtc_library)
        setenv("INFERD_NVRTC_LIBRARY", d->nvrtc_library, 1);
}

/* NVRTC finds its second half (libnvrtc-builtins) by a name of its version when it first
 * compiles: let it do so now. */
static void warm_compiler(void)
{
    static const char text[] = "extern \"C\" __global__ void inferd_warm() {}\n";
    struct be_cuda_nvrtc *n = NULL;
    uint8_t *image = NULL;
    size_t size = 0;
    char log[256];

    if (be_cuda_nvrtc_open(&n, NULL) == RC_OK)
        (void)be_cuda_nvrtc_compile(n, text, "compute_75", &image, &size, log, sizeof(log), NULL);
    free(image);
}

static void open_libraries(const struct wrk_device *d)
{
    size_t n = sizeof(early) / sizeof(early[0]);

    for (size_t i = 0; i < n; i++)
        (void)dlopen(early[i], RTLD_NOW | RTLD_LOCAL);
    if (jit_on(d))
        warm_compiler();
}

/* Between Landlock and the system call filter. */
static void open_device(void *user)
{
    struct opening *o = user;
    struct be_opts opts = {.n_threads = o->in->n_threads, .no_spin = o->in->no_spin};

    wrk_device_opts(o->d, &opts);
    if (o->in->mode == WRK_SANDBOX_OFF) { /* else the environment is empty here */
        unsetenv("INFERD_CUDA_LIBRARY");
        unsetenv("INFERD_NVRTC_LIBRARY");
    }
    wrk_device_export(o->d);
    setenv("CUDA_CACHE_DISABLE", "1", 1); /* it would want to write below a home */
    open_libraries(o->d);
    if (be_ctx_new(&o->be, &opts, o->why) == RC_OK)
        return;
    o->be = NULL;
    if (o->why->code == RC_NOT_FOUND) /* to a client that means: no such model */
        o->why->code = RC_UNSUPPORTED;
}

enum rc wrk_device_enter(const struct wrk_device *d, const struct wrk_enter *in,
                         struct wrk_sandbox_report *report, struct be_ctx **out_be,
                         struct rc_err *why, struct rc_err *err)
{
    struct opening o = {.d = d, .in = in, .why = why};
    struct wrk_sandbox_device sd = {.open = open_device, .user = &o};
    struct paths *ro, *rw;
    enum rc rc;

    *out_be = NULL;
    if (wrk_device_is_cpu(d))
        return wrk_sandbox_apply(in->mode, in->channel_fd, in->root_fd, in->n_threads, report, err);
    if (jit_on(d) &&
        d->jit_cache_dir) /* a rule needs a place; be_kjit says what is wrong with it */
        (void)mkdir(d->jit_cache_dir, 0700);
    if (!(ro = calloc(2, sizeof(*ro))))
        return rc_fail(err, RC_NOMEM, "no memory for the device's paths");
    rw = ro + 1;
    for (size_t i = 0; i < sizeof(read_only) / sizeof(read_only[0]); i++)
        add(ro, read_only[i]);
    add_folder_of(ro, ro->dir[0], d->cuda_library);
    add_folder_of(ro, ro->dir[1], d->nvrtc_library);
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
        add(rw, nodes[i]);
    /* the driver looks at every device before it takes one */
    for (unsigned i = 0; i <= DEVICES_MAX; i++) {
        snprintf(rw->text[i], sizeof(rw->text[i]), "/dev/nvidia%u", i);
        add(rw, rw->text[i]);
    }
    sd.read_only = ro->list;
    sd.nodes = rw->list;
    sd.rw_dir = jit_on(d) ? d->jit_cache_dir : NULL;
    rc = wrk_sandbox_apply_device(in->mode, in->channel_fd, in->root_fd, in->n_threads, &sd, report,
                                  err);
    free(ro);
    if (rc != RC_OK)
        be_ctx_free(&o.be);
    *out_be = o.be;
    return rc;
}
