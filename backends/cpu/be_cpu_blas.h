/* be_cpu_blas.h - private: the choice between our own f32 GEMM and OpenBLAS. */
#ifndef INFERD_BE_CPU_BLAS_H
#define INFERD_BE_CPU_BLAS_H

#include "be_cpu.h"

/* Sets c->openblas and c->f32_gemm from the option ("auto", "own", "openblas",
 * NULL = auto). Errors: RC_INVALID another word. */
enum rc be_cpu_blas_choose(struct be_cpu_ctx *c, const char *want, struct rc_err *err);

#endif
