/* be_cuda_lt.h - the library route: dense f16 products by cuBLASLt, when it is there.
 *
 * Optional: opened at run time, never needed for correctness, counted as
 * BE_KROUTE_LIBRARY. Used only where the configuration says compute = f16; exact f32,
 * quantized weights and few rows of anything else stay with our own kernels.
 *
 * The equality contract: one algorithm per (k, n_out, epilogue) is pinned when the model
 * loads, from the heuristic for the most rows, without split-K or another
 * reduction scheme, and serves every row count; so a row's sums are taken in the
 * same order alone and in a batch. A plan that cuBLASLt would refuse for
 * some row count is no plan.
 *
 * One thread per object. INFERD_CUBLASLT_LIBRARY names another file.
 * Tests: tests/backends/test_be_cuda_lt.c (a stand-in library), tests/device/.
 */
#ifndef INFERD_BE_CUDA_LT_H
#define INFERD_BE_CUDA_LT_H

#include "be_cuda_drv.h"

struct be_cuda_lt;
struct be_cuda_lt_plan;

/* Needs a current context. Errors: RC_NOT_FOUND no library (names what was tried),
 * RC_UNSUPPORTED a symbol is missing, RC_NOMEM, RC_INTERNAL. */
enum rc be_cuda_lt_open(struct be_cuda_lt **out, struct rc_err *err);
void be_cuda_lt_close(struct be_cuda_lt **lt);
/* "cuBLASLt 13.1.0 (libcublasLt.so.13)" */
const char *be_cuda_lt_name(const struct be_cuda_lt *lt);

/* Scratch every run may use: the caller allocates it on the device. */
#define BE_CUDA_LT_WORKSPACE (32u << 20)

/* Plans out[n, n_out] = x[n, k] W[n_out, k]^T (+ bias) (+ out), all f16, sums f32, for every
 * 1 <= n <= max_rows. The same plan is returned for the same question. Errors:
 * RC_UNSUPPORTED no algorithm fits the contract; RC_LIMIT more than 64 plans. */
enum rc be_cuda_lt_plan_get(struct be_cuda_lt *lt, uint32_t k, uint32_t n_out, uint32_t max_rows,
                            bool bias, bool add, const struct be_cuda_lt_plan **out,
                            struct rc_err *err);
/* One product on the stream; may be captured. bias: n_out f16 values, or 0. Allocates
 * nothing of ours. */
enum rc be_cuda_lt_run(struct be_cuda_lt *lt, const struct be_cuda_lt_plan *p, uint32_t n, cu_ptr x,
                       cu_ptr w, cu_ptr bias, cu_ptr out, cu_ptr workspace, cu_stream stream,
                       struct rc_err *err);

#endif
