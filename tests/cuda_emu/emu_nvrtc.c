/* emu_nvrtc.c - NVRTC's functions over the host compiler (INFERD_NVRTC_LIBRARY names the
 * same file as INFERD_CUDA_LIBRARY).
 *
 * A program is compiled once to see whether it can be, and for the compiler's words. What comes
 * out looks like PTX (entries with their arguments and bounds) and carries the source behind
 * it, so an image may be kept on disk and loaded by another process: emu_module.c compiles it
 * again there. "Machine code" (cubin) is the same text.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu_drv.h"

#define API __attribute__((visibility("default")))

enum { NVRTC_OK = 0, NVRTC_NOMEM = 1, NVRTC_INVALID = 3, NVRTC_COMPILATION = 6 };

struct program {
    char *src, *image;
    size_t n_src, n_image;
    char log[4096];
};

API int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 4;
    return NVRTC_OK;
}

API int nvrtcCreateProgram(struct program **out, const char *src, const char *name, int n,
                           const char *const *headers, const char *const *names)
{
    struct program *p = calloc(1, sizeof(*p));

    if (!p || !(p->src = strdup(src))) {
        free(p);
        return NVRTC_NOMEM;
    }
    p->n_src = strlen(src);
    *out = p;
    return NVRTC_OK;
}

API int nvrtcDestroyProgram(struct program **p)
{
    free((*p)->src);
    free((*p)->image);
    free(*p);
    *p = NULL;
    return NVRTC_OK;
}

/* "--gpu-architecture=compute_80", "sm_80" */
static unsigned arch_of(int n, const char *const *opts)
{
    for (int i = 0; i < n; i++) {
        const char *u = strncmp(opts[i], "--gpu-architecture=", 19) ? NULL : strrchr(opts[i], '_');

        if (u)
            return (unsigned)strtoul(u + 1, NULL, 10);
    }
    return 75;
}

API int nvrtcCompileProgram(struct program *p, int n, const char *const *opts)
{
    unsigned arch = arch_of(n, opts);
    int code = emu_fault("nvrtcCompileProgram");
    char lib[32];
    FILE *f;

    if (code != 0)
        return code;
    if (emu_text_load_as(p->src, p->n_src, arch, lib, p->log, sizeof(p->log)) != EMU_OK)
        return NVRTC_COMPILATION;
    free(p->image);
    if (!(f = open_memstream(&p->image, &p->n_image)))
        return NVRTC_NOMEM;
    fprintf(f, "//\n.version 8.4\n.target sm_%u\n.address_size 64\n", arch);
    for (const struct emu_kernel *k = emu_kernels(); k; k = k->next)
        if (strcmp(k->lib, lib) == 0)
            fprintf(f,
                    ".visible .entry %s(\n\t.param .align 8 .b8 %s_param_0[%zu]\n)\n.maxntid %u, "
                    "1, 1\n{\n\tret;\n}\n",
                    k->name, k->name, k->args_bytes, k->threads);
    fprintf(f, "%s%s", EMU_SOURCE_MARK, p->src);
    return fclose(f) == 0 ? NVRTC_OK : NVRTC_NOMEM;
}

static int image_size(const struct program *p, size_t *n)
{
    *n = p->n_image + 1;
    return p->image ? NVRTC_OK : NVRTC_INVALID;
}

static int image_copy(const struct program *p, char *to)
{
    if (!p->image)
        return NVRTC_INVALID;
    memcpy(to, p->image, p->n_image + 1);
    return NVRTC_OK;
}

API int nvrtcGetPTXSize(struct program *p, size_t *n)
{
    return image_size(p, n);
}

API int nvrtcGetPTX(struct program *p, char *to)
{
    return image_copy(p, to);
}

API int nvrtcGetCUBINSize(struct program *p, size_t *n)
{
    return image_size(p, n);
}

API int nvrtcGetCUBIN(struct program *p, char *to)
{
    return image_copy(p, to);
}

API int nvrtcGetProgramLogSize(struct program *p, size_t *n)
{
    *n = strlen(p->log) + 1;
    return NVRTC_OK;
}

API int nvrtcGetProgramLog(struct program *p, char *to)
{
    memcpy(to, p->log, strlen(p->log) + 1);
    return NVRTC_OK;
}
