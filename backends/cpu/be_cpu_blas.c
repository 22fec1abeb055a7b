/* be_cpu_blas.c - f32 products through OpenBLAS, on request and on probation.
 *
 * Some releases are wrong on some processors, and none promises that a row's bits
 * are free of the shape it is computed in. So when asked for, OpenBLAS must first
 * pass a check at start: right against f64, and the same bits for a row whatever
 * the number of rows (1..BE_CPU_ROWS) and columns (units of 16) around it. If it
 * fails, our own kernel is used and stats.f32_gemm says so.
 *
 * "auto" is our own: on Zen 3 it is the faster one at every shape measured
 * (docs/backend-cpu.md), it packs at load and needs no buffers.
 * OpenBLAS runs on one thread per call (our pool splits the work); it maps its own
 * buffers when a thread first enters it, which hot_allocs does not see.
 * Tests: tests/backends/test_be_cpu_linear.c
 */
#include "be_cpu_blas.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_K 1536
#define CHECK_N 64
#define ABS_TOL_PER_K 2e-7

static void gemm(uint32_t m, uint32_t n, uint32_t k, const float *x, size_t ldx, const float *w,
                 float *out, size_t ld)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                x, (blasint)ldx, w, (blasint)k, 0.0f, out, (blasint)ld);
}

void be_cpu_blas_lin(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                     uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    size_t row = u0 * BE_CPU_UNIT, n = (size_t)nu * BE_CPU_UNIT;

    if (n > w->n_rows - row) {
        n = w->n_rows - row;
        for (uint32_t i = 0; i < nr; i++)
            memset(out + i * ld + n, 0, (nu * BE_CPU_UNIT - n) * sizeof(float));
    }
    gemm(nr, (uint32_t)n, a->n_cols, a->x + (size_t)r0 * a->n_cols, a->n_cols,
         (const float *)(const void *)(w->raw + row * w->row_bytes), out, ld);
}

static bool right(uint32_t k, const float *x, const float *w, const float *y)
{
    for (uint32_t i = 0; i < BE_CPU_ROWS; i++) {
        for (uint32_t j = 0; j < CHECK_N; j++) {
            double sum = 0;

            for (uint32_t d = 0; d < k; d++)
                sum += (double)x[i * k + d] * w[j * k + d];
            if (!(fabs(y[i * CHECK_N + j] - sum) <= ABS_TOL_PER_K * k))
                return false;
        }
    }
    return true;
}

/* Any part of the product alone has the bits it has in the whole. */
static bool invariant(uint32_t k, const float *x, const float *w, const float *y, float *part)
{
    for (uint32_t m = 1; m <= BE_CPU_ROWS; m++) {
        for (uint32_t n = BE_CPU_UNIT; n <= CHECK_N; n += BE_CPU_UNIT) {
            uint32_t r = BE_CPU_ROWS - m, c = CHECK_N - n;

            gemm(m, n, k, x + (size_t)r * k, k, w + (size_t)c * k, part, n);
            for (uint32_t i = 0; i < m; i++)
                if (memcmp(part + i * n, y + (r + i) * CHECK_N + c, n * sizeof(float)) != 0)
                    return false;
        }
    }
    return true;
}

/* NULL = passed, else what went wrong. */
static const char *self_check(void)
{
    static const uint32_t ks[] = {1, 17, 64, 384, 1000, CHECK_K};
    const char *why = "no memory";
    float *x = malloc(sizeof(float) * BE_CPU_ROWS * CHECK_K);
    float *w = malloc(sizeof(float) * CHECK_N * CHECK_K);
    float *y = malloc(sizeof(float) * BE_CPU_ROWS * CHECK_N * 2);
    uint32_t seed = 1;

    if (!x || !w || !y)
        goto out;
    for (uint32_t i = 0; i < BE_CPU_ROWS * CHECK_K; i++)
        x[i] = (float)(int32_t)(seed = seed * 1664525u + 1013904223u) * 0x1p-31f;
    for (uint32_t i = 0; i < CHECK_N * CHECK_K; i++)
        w[i] = (float)(int32_t)(seed = seed * 1664525u + 1013904223u) * 0x1p-31f;
    why = NULL;
    for (size_t i = 0; !why && i < sizeof(ks) / sizeof(ks[0]); i++) {
        gemm(BE_CPU_ROWS, CHECK_N, ks[i], x, ks[i], w, y, CHECK_N);
        if (!right(ks[i], x, w, y))
            why = "wrong results";
        else if (!invariant(ks[i], x, w, y, y + BE_CPU_ROWS * CHECK_N))
            why = "rows depend on their batch";
    }
out:
    free(x);
    free(w);
    free(y);
    return why;
}

enum rc be_cpu_blas_choose(struct be_cpu_ctx *c, const char *want, struct rc_err *err)
{
    const char *why;

    snprintf(c->f32_gemm, sizeof(c->f32_gemm), "own");
    if (!want || strcmp(want, "auto") == 0 || strcmp(want, "own") == 0)
        return RC_OK;
    if (strcmp(want, "openblas") != 0)
        return rc_fail_what(err, RC_INVALID, "f32_gemm",
                            "f32_gemm '%s': expected auto, own or openblas", want);
    openblas_set_num_threads(1);
    why = self_check();
    c->openblas = !why;
    if (why)
        snprintf(c->f32_gemm, sizeof(c->f32_gemm), "own (OPENBLAS FAILED: %s)", why);
    else
        snprintf(c->f32_gemm, sizeof(c->f32_gemm), "openblas (self-check passed)");
    return RC_OK;
}
