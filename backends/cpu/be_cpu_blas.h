/* be_cpu_blas.h - private: the choice between our own f32 GEMM and OpenBLAS. */
#ifndef INFERD_BE_CPU_BLAS_H
#define INFERD_BE_CPU_BLAS_H

#include "be_cpu.h"

/* Sets c->openblas and c->f32_gemm from the option ("auto", "own", "openblas",
 * NULL = auto). Errors: RC_INVALID another word. */
enum rc be_cpu_blas_choose(struct be_cpu_ctx *c, const char *want, struct rc_err *err);
/* As be_cpu_kern.lin, for raw F32 weights of a context with openblas set. */
void be_cpu_blas_lin(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                     uint32_t r0, uint32_t nr, float *out, size_t ld);

#endif
