/* wrk_doctor_gpu.c - what of a GPU's software is on this machine, and whether a worker with
 * one can live in its sandbox.
 *
 * Runs in children of the doctor: a driver may end the process, and opening one changes it.
 * What is missing is a fault only where the words ask for a GPU; else it is told as a note.
 * Tests: tests/e2e/cli_doctor.py, tests/e2e/device_emulated.py
 */
#include "wrk_doctor_impl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/be_cuda_drv.h"

struct trial {
    enum wrk_sandbox_mode mode;
    const struct wrk_device *d;
};

/* A GPU that nobody asked for may be missing. */
static enum wrk_finding found(const struct wrk_device *d, bool ok)
{
    return ok ? WRK_FOUND_OK : wrk_device_is_cpu(d) ? WRK_FOUND_NOTE : WRK_FOUND_BAD;
}

/* CUdevice_attribute */
#define ATTR_MAJOR 75
#define ATTR_MINOR 76
#define DEVICES_SHOWN 16

static void nodes(const struct wrk_device *d, bool emulated)
{
    static const char *const fixed[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    char path[32], missing[160] = "";
    const char *list[3] = {fixed[0], fixed[1], path};

    if (emulated) {
        wrk_doctor_say("gpu nodes", WRK_FOUND_OK, "not needed by this driver");
        return;
    }
    snprintf(path, sizeof(path), "/dev/nvidia%llu", (unsigned long long)d->device);
    for (int i = 0; i < 3; i++)
        if (access(list[i], R_OK | W_OK) != 0) {
            size_t n = strlen(missing);

            snprintf(missing + n, sizeof(missing) - n, "%s%s (%s)", n ? ", " : "", list[i],
                     strerror(errno));
        }
    if (*missing)
        wrk_doctor_say("gpu nodes", found(d, false),
                       "%s: is the kernel module loaded (nvidia-modprobe -u -c=0), and may this "
                       "user read and write it?",
                       missing);
    else
        wrk_doctor_say("gpu nodes", WRK_FOUND_OK, "%s, %s, %s can be read and written", fixed[0],
                       fixed[1], path);
}

static void one_device(const struct wrk_device *d, const struct be_cuda_drv *drv, int i)
{
    char name[96] = "", what[16];
    int dev = 0, major = 0, minor = 0;
    size_t bytes = 0;
    bool ok = drv->device_get(&dev, i) == 0 && drv->device_name(name, sizeof(name), dev) == 0 &&
              drv->device_attr(&major, ATTR_MAJOR, dev) == 0 &&
              drv->device_attr(&minor, ATTR_MINOR, dev) == 0 && drv->device_mem(&bytes, dev) == 0;

    name[sizeof(name) - 1] = '\0';
    snprintf(what, sizeof(what), "gpu %d", i);
    if (!ok)
        wrk_doctor_say(what, found(d, false), "the driver does not tell what it is");
    else if (major * 10 + minor < 75)
        wrk_doctor_say(what, found(d, false),
                       "%s (sm_%d%d): sm_75 (Turing, 2018) or newer is expected", name, major,
                       minor);
    else
        wrk_doctor_say(what, WRK_FOUND_OK, "%s (sm_%d%d), %.1f GiB%s", name, major, minor,
                       (double)bytes / (double)(1ull << 30),
                       (uint64_t)i == d->device ? "; option 'device' names it" : "");
}

static void compiler(const struct wrk_device *d)
{
    bool jit = d->jit && strcmp(d->jit, "off") != 0;
    struct rc_err err = RC_ERR_INIT;
    struct be_cuda_nvrtc *n = NULL;

    if (be_cuda_nvrtc_open(&n, &err) == RC_OK)
        wrk_doctor_say("gpu compiler", WRK_FOUND_NOTE, "NVRTC %d.%d%s", n->major, n->minor,
                       jit ? "" : "; not used: jit is off");
    else if (jit)
        wrk_doctor_say("gpu compiler", found(d, false),
                       "%s; jit needs it: package cuda-nvrtc-12-x or pip's nvidia-cuda-nvrtc-cu12, "
                       "and option nvrtc_library where the loader does not find it",
                       err.msg);
    else
        wrk_doctor_say("gpu compiler", WRK_FOUND_NOTE, "%s; only jit needs it", err.msg);
}

static int facts(void *arg)
{
    const struct wrk_device *d = ((struct trial *)arg)->d;
    struct rc_err err = RC_ERR_INIT;
    struct be_cuda_drv *drv = NULL;
    int n = 0;

    wrk_device_export(d);
    if (be_cuda_drv_open(&drv, &err) != RC_OK) {
        wrk_doctor_say("gpu driver", found(d, false), "%s", err.msg);
        return 1;
    }
    wrk_doctor_say("gpu driver", WRK_FOUND_OK, "%s, CUDA %d.%d",
                   d->cuda_library ? d->cuda_library : "libcuda.so.1", drv->version / 1000,
                   drv->version % 1000 / 10);
    nodes(d, d->cuda_library != NULL);
    if (drv->device_count(&n) != 0 || n <= 0) {
        wrk_doctor_say("gpu", found(d, false), "the driver sees no device");
        return 1;
    }
    for (int i = 0; i < n && i < DEVICES_SHOWN; i++)
        one_device(d, drv, i);
    if (d->device >= (uint64_t)n) {
        wrk_doctor_say("gpu", found(d, false), "device %llu is asked for, the driver sees %d",
                       (unsigned long long)d->device, n);
        return 1;
    }
    if (!d->cuda_library) {
        bool have = dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_NOW) != NULL;

        wrk_doctor_say("gpu ptx", found(d, have),
                       have ? "libnvidia-ptxjitcompiler.so.1: the driver can load our kernels"
                            : "no libnvidia-ptxjitcompiler.so.1: the driver cannot load kernels; "
                              "package libnvidia-compute or nvidia-driver-libs");
    }
    compiler(d);
    return 0;
}

/* As a serving worker: the device's sandbox, then an operation behind it. */
static int sandboxed(void *arg)
{
    const struct trial *trial = arg;
    const struct wrk_device *d = trial->d;
    struct wrk_device as = *d; /* also where the configuration says cpu: could it be? */
    const struct wrk_enter in = {
        .mode = trial->mode, .channel_fd = -1, .root_fd = -1, .n_threads = 1};
    struct rc_err why = RC_ERR_INIT, err = RC_ERR_INIT;
    struct wrk_sandbox_report r;
    struct be_ctx *be = NULL;
    struct be_tensor *t = NULL;
    struct be_stats s;
    const float in_v[4] = {1, 2, 3, 4};
    int32_t best = -1;
    struct be_argmax_args a = {.n = 1, .out_ids = &best};

    as.backend = "cuda";
    as.jit = NULL;
    if (wrk_device_enter(&as, &in, &r, &be, &why, &err) != RC_OK) {
        wrk_doctor_say("gpu sandbox", found(d, false), "%s", err.msg);
        return 1;
    }
    if (be == NULL) {
        wrk_doctor_say("gpu sandbox", found(d, false), "no context behind Landlock: %s", why.msg);
        return 1;
    }
    for (size_t i = 0; i < r.n; i++)
        if (strcmp(r.layer[i].name, "landlock") == 0 || strcmp(r.layer[i].name, "seccomp") == 0)
            wrk_doctor_say(r.layer[i].name[0] == 'l' ? "gpu landlock" : "gpu seccomp",
                           found(d, r.layer[i].holds), "%s", r.layer[i].detail);
    be_ctx_stats(be, &s);
    if (be_tensor_new(be, 1, 4, &t, &err) != RC_OK ||
        be_tensor_write(be, t, 0, 1, in_v, &err) != RC_OK ||
        (a.x = t, be_argmax(be, &a, &err)) != RC_OK || best != 3) {
        wrk_doctor_say("gpu sandbox", found(d, false), "an operation behind the sandbox: %s",
                       err.msg[0] ? err.msg : "a wrong result");
        return 1;
    }
    wrk_doctor_say("gpu sandbox", WRK_FOUND_OK, "%s computes behind it", s.device);
    be_tensor_free(be, &t);
    be_ctx_free(&be);
    return 0;
}

int wrk_doctor_gpu(enum wrk_sandbox_mode mode, const struct wrk_device *d)
{
    struct trial t = {mode, d};
    int status = wrk_doctor_child("gpu driver", facts, &t);

    if (status == 0)
        status = wrk_doctor_child("gpu sandbox", sandboxed, &t);
    return wrk_device_is_cpu(d) ? 0 : status;
}
