/* cuda_test.h - contexts of the cuda backend on the emulated driver (tests/cuda_emu).
 * A test that includes it is skipped where the emulator was not built. */
#ifndef INFERD_CUDA_TEST_H
#define INFERD_CUDA_TEST_H

#include <unistd.h>

#include "be_test.h"
#include "be_kart.h"

#define EMU_DRIVER TEST_BUILD "/tests/cuda_emu/libcuda_emu.so"

/* A driver named by the environment (a real one, on a machine with a GPU) is kept. Stale
 * artifacts are kgen --check's to report: nothing of them would run here. */
static inline void cuda_need(void)
{
    struct rc_err e = RC_ERR_INIT;

    if (be_kart_verify(&e) != RC_OK) {
        printf("skipped: %s\n", e.msg);
        exit(77);
    }
    if (getenv("INFERD_CUDA_LIBRARY"))
        return;
    if (access(EMU_DRIVER, R_OK)) {
        printf("skipped: %s was not built\n", EMU_DRIVER);
        exit(77);
    }
    setenv("INFERD_CUDA_LIBRARY", EMU_DRIVER, 1);
}

static inline struct be_ctx *cuda_ctx_opts(const struct be_opts *o)
{
    struct be_ctx *c = NULL;

    OK(be_ctx_new(&c, o, err));
    return c;
}

/* fuse, graphs: with fusions, with captured graphs. */
static inline struct be_ctx *cuda_ctx(bool fuse, bool graphs, const char *compute)
{
    struct be_opts o = {.backend = "cuda", .compute = compute};

    setenv("INFERD_CUDA_FUSE", fuse ? "1" : "0", 1);
    setenv("INFERD_CUDA_GRAPHS", graphs ? "1" : "0", 1);
    return cuda_ctx_opts(&o);
}

static inline float *read_all(struct be_ctx *c, const struct be_tensor *t, uint32_t n_rows,
                              uint32_t n_cols)
{
    float *x = xcalloc((size_t)n_rows * n_cols, sizeof(float));

    OK(be_tensor_read(c, t, 0, n_rows, x, err));
    return x;
}

/* Both contexts run body; results of cuda (got) are compared by the caller. */
static inline struct be_kstats kstats_of(const struct be_ctx *c)
{
    struct be_kstats k;

    be_ctx_kstats(c, &k);
    return k;
}

static inline struct be_stats stats_of(const struct be_ctx *c)
{
    struct be_stats s;

    be_ctx_stats(c, &s);
    return s;
}

#endif
