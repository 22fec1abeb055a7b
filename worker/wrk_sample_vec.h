/* wrk_sample_vec.h - passes over a row of logits. Private to the sampler. */
#ifndef INFERD_WRK_SAMPLE_VEC_H
#define INFERD_WRK_SAMPLE_VEC_H

#include <stdbool.h>
#include <stdint.h>

#define WRK_VEC_BLOCK 1024u

bool wrk_vec_finite(const float *x, uint32_t n);
float wrk_vec_max(const float *x, uint32_t n);                  /* n >= 1, finite */
uint32_t wrk_vec_find(const float *x, uint32_t n, float value); /* lowest index */
/* exp(x) for x <= 0, relative error < 1e-6; 0 below -87. One value, same bits as
 * the row versions. */
float wrk_vec_exp1(float x);
/* x = exp((x - max) / t); the sum in *out_total. */
void wrk_vec_softmax(float *x, uint32_t n, float max, float t, double *out_total);
/* sum of exp(x - max), x untouched. */
double wrk_vec_sum_exp(const float *x, uint32_t n, float max);
/* sum of those >= least. */
double wrk_vec_sum_from(const float *x, uint32_t n, float least);
/* Ids of those >= least, ascending, into out (room for n); returns how many. */
uint32_t wrk_vec_from(const float *x, uint32_t n, float least, uint32_t *out);

/* Minus infinity where the bit (i % 64 of word i / 64) is not set. */
void wrk_vec_mask(float *x, uint32_t n, const uint64_t *bits);

#endif
