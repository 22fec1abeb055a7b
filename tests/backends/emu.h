/* emu.h - running device kernels in a test, without a device.
 *
 *   emu_run("kx_linear_q4_0_mv", &args, sizeof(args), &grid)
 * runs the text of that kernel (as checked in, compiled into libcuda_emu.so) on arrays of this
 * process and fails the test, saying where, if the kernel breaks a rule. emu_run_arch
 * chooses the text of sm_75 or sm_80; emu_load_text compiles a text the test made;
 * emu_try returns the error instead of failing. emu_order changes the order of blocks,
 * warps and lanes: results must not depend on it, so a test runs twice (a missing barrier hides in
 * one order and shows in another). Skips (exit 77) when the emulator was not built.
 */
#ifndef INFERD_TEST_EMU_H
#define INFERD_TEST_EMU_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../cuda_emu/emu_dev.h"
#include "be_kir.h"

#define EMU_LIBRARY TEST_BUILD "/tests/cuda_emu/libcuda_emu.so"

static inline void *emu_sym(const char *name)
{
    static void *lib;
    void *p;

    if (!lib && access(EMU_LIBRARY, R_OK)) {
        printf("skipped: %s was not built\n", EMU_LIBRARY);
        exit(77);
    }
    if (!lib && !(lib = dlopen(EMU_LIBRARY, RTLD_NOW | RTLD_GLOBAL)))
        fail_msg("%s", dlerror());
    if (!(p = dlsym(lib, name)))
        fail_msg("%s", dlerror());
    return p;
}

static inline enum emu_error emu_try(const char *name, unsigned arch, const void *args, size_t n,
                                     const struct be_kgrid *g, char *err, size_t cap)
{
    enum emu_error (*launch)(const char *, unsigned, const void *, size_t,
                             const struct emu_geometry *, char *, size_t);
    struct emu_geometry e = {g->x, g->y, g->z, g->threads, g->shared_bytes};

    *(void **)&launch = emu_sym("emu_launch");
    return launch(name, arch, args, n, &e, err, cap);
}

static inline void emu_run_arch(const char *name, unsigned arch, const void *args, size_t n,
                                const struct be_kgrid *g)
{
    char err[512] = "";

    if (emu_try(name, arch, args, n, g, err, sizeof(err)) != EMU_OK)
        fail_msg("%s", err);
}

static inline void emu_run(const char *name, const void *args, size_t n, const struct be_kgrid *g)
{
    emu_run_arch(name, 80, args, n, g);
}

static inline void emu_order(enum emu_order o, unsigned seed)
{
    void (*set)(enum emu_order, unsigned);

    *(void **)&set = emu_sym("emu_order_set");
    set(o, seed);
}

/* Compiles a library's whole text (be_kcuda_text) for the emulator, as sm_<arch>; its
 * kernels then run by name, before those of the same name compiled in. */
static inline void emu_load_text(const char *text, unsigned arch)
{
    char err[4096] = "";
    enum emu_error (*load)(const char *, size_t, unsigned, char *, size_t);

    *(void **)&load = emu_sym("emu_text_load");
    if (load(text, strlen(text), arch, err, sizeof(err)) != EMU_OK)
        fail_msg("%s", err);
}

#endif
