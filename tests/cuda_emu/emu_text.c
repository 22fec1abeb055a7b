/* emu_text.c - text to a kernel at run time, with the host compiler.
 *
 * Serves tests of renderers (no build step between text and run) and the emulated NVRTC. Text is
 * written to a fresh directory under TMPDIR, compiled to a shared object as the build
 * compiles checked-in libraries (EMU_CC: the whole command), opened for good and removed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emu_dev.h"

static int put(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    size_t w;

    if (!f)
        return -1;
    w = fwrite(text, 1, n, f);
    return fclose(f) == 0 && w == n ? 0 : -1;
}

static void read_back(const char *path, char *err, size_t cap)
{
    FILE *f = fopen(path, "r");
    size_t n = 0;

    if (!cap)
        return;
    if (f) {
        n = fread(err, 1, cap - 1, f);
        fclose(f);
    }
    err[n] = '\0';
}

/* Opens the generated libraries, built beside this one. A program that was started with
 * RTLD_LOCAL must still show them our symbols. */
static __attribute__((constructor)) void kernels_open(void)
{
    Dl_info me;
    char path[4096];
    const char *slash;

    if (!dladdr((void *)kernels_open, &me) || !me.dli_fname ||
        !(slash = strrchr(me.dli_fname, '/')))
        return;
    snprintf(path, sizeof(path), "%.*s/libcuda_emu_kernels.so", (int)(slash - me.dli_fname),
             me.dli_fname);
    if (!dlopen(me.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) ||
        (access(path, R_OK) == 0 && !dlopen(path, RTLD_NOW)))
        fprintf(stderr, "cuda_emu: %s\n", dlerror());
}

enum emu_error emu_text_load_as(const char *text, size_t n, unsigned arch, char lib[32], char *err,
                                size_t cap)
{
    static unsigned serial;
    const char *tmp = getenv("TMPDIR");
    char dir[256], cu[300], so[300], log[300], cmd[4096];
    enum emu_error e = EMU_OK;
    unsigned text_arch = arch == 90 ? 90 : arch >= 80 ? 80 : 75; /* those that text knows */
    int status;

    snprintf(lib, 32, "text%u_sm%u", ++serial, arch);
    snprintf(dir, sizeof(dir), "%s/kx-emu-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        snprintf(err, cap, "cannot make %s", dir);
        return EMU_E_ARG;
    }
    snprintf(cu, sizeof(cu), "%s/text.cu", dir);
    snprintf(so, sizeof(so), "%s/text.so", dir);
    snprintf(log, sizeof(log), "%s/log", dir);
    snprintf(cmd, sizeof(cmd), "%s -DKX_ARCH=%u0 -DKX_EMU_LIB=%s -shared -o %s %s >%s 2>&1", EMU_CC,
             text_arch, lib, so, cu, log);
    if (put(cu, text, n) != 0) {
        snprintf(err, cap, "cannot write %s", cu);
        e = EMU_E_ARG;
    } else if ((status = system(cmd)) != 0) {
        read_back(log, err, cap);
        e = EMU_E_ARG;
    } else if (!dlopen(so, RTLD_NOW)) {
        snprintf(err, cap, "%s", dlerror());
        e = EMU_E_ARG;
    }
    unlink(cu);
    unlink(so);
    unlink(log);
    rmdir(dir);
    return e;
}

enum emu_error emu_text_load(const char *text, size_t n, unsigned arch, char *err, size_t cap)
{
    char lib[32];

    return emu_text_load_as(text, n, arch, lib, err, cap);
}
