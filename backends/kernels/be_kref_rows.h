/* be_kref_rows.h - what the executors of row kernels share among themselves. Private. */
#ifndef INFERD_BE_KREF_ROWS_H
#define INFERD_BE_KREF_ROWS_H

#include "be_krows.h"

/* Blocks of 32 and 256 activations to int8, as be_cpu_refq.c; out_s: sums per 32 columns. */
void be_krow_ref_q8_0(const float *x, int8_t q[32], float *out_d, int32_t *out_s);
void be_krow_ref_q8_k(const float *x, int8_t q[256], float *out_d, int32_t out_s[8]);
/* Row r of values x as int8, as struct kx_quant has it. */
void be_krow_ref_quant(const float *x, uint32_t enc, kx_p xq, kx_p xd, kx_p xs, uint64_t r,
                       uint32_t k);

/* Sums over 32 lanes and over the threads of a block, in the order of be_krows.h. */
float be_krow_ref_lanes_sum(const float v[32]);
float be_krow_ref_block_sum(const float *v, uint32_t warps);
enum rc be_krow_ref_embed(const struct be_kir *k, const struct kx_embed *a, struct rc_err *err);
/* first: the launch of kx_sample_part. */
enum rc be_krow_ref_sample(const struct kx_sample *a, bool first, struct rc_err *err);

#endif
