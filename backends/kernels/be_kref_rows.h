/* be_kref_rows.h - what the executors of row kernels share among themselves. Private. */
#ifndef INFERD_BE_KREF_ROWS_H
#define INFERD_BE_KREF_ROWS_H

#include "be_krows.h"

/* Blocks of 32 and 256 activations to int8, as be_cpu_refq.c; out_s: sums per 32 columns. */
void be_krow_ref_q8_0(const float *x, int8_t q[32], float *out_d, int32_t *out_s);
void be_krow_ref_q8_k(const float *x, int8_t q[256], float *out_d, int32_t out_s[8]);

enum rc be_krow_ref_embed(const struct be_kir *k, const struct kx_embed *a, struct rc_err *err);

#endif
