/* be_cpu_blas.c - the choice between our own f32 GEMM and OpenBLAS.
 * Tests: tests/backends/test_be_cpu_linear.c
 */
#include "be_cpu_blas.h"

#include <stdio.h>
#include <string.h>

enum rc be_cpu_blas_choose(struct be_cpu_ctx *c, const char *want, struct rc_err *err)
{
    if (want && strcmp(want, "auto") != 0 && strcmp(want, "own") != 0 &&
        strcmp(want, "openblas") != 0)
        return rc_fail_what(err, RC_INVALID, "f32_gemm",
                            "f32_gemm '%s': expected auto, own or openblas", want);
    snprintf(c->f32_gemm, sizeof(c->f32_gemm), "own");
    return RC_OK;
}
