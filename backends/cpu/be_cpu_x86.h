/* be_cpu_x86.h - private: vector kernels of the x86-64 levels, for their tables. */
#ifndef INFERD_BE_CPU_X86_H
#define INFERD_BE_CPU_X86_H

#include "be_cpu.h"

#if defined(__x86_64__)

/* be_cpu_qlin_avx2.c, be_cpu_qlin_avx512.c: packed block types */
void be_cpu_qlin_avx2(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                      uint32_t r0, uint32_t nr, float *out, size_t ld);
void be_cpu_qlin_avx512(const struct be_weight *w, const struct be_cpu_act *a, size_t u0,
                        unsigned nu, uint32_t r0, uint32_t nr, float *out, size_t ld);
/* be_cpu_flin_avx2.c: packed F32, F16, BF16 */
void be_cpu_flin_avx2(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                      uint32_t r0, uint32_t nr, float *out, size_t ld);
/* be_cpu_flin_avx512.c: the same, bit for bit */
void be_cpu_flin_avx512(const struct be_weight *w, const struct be_cpu_act *a, size_t u0,
                        unsigned nu, uint32_t r0, uint32_t nr, float *out, size_t ld);
/* be_cpu_quant_avx2.c */
void be_cpu_quant_q8_0_avx2(struct be_cpu_act *a, uint32_t r0, uint32_t r1);
void be_cpu_quant_q8_k_avx2(struct be_cpu_act *a, uint32_t r0, uint32_t r1);
/* be_cpu_rows_avx2.c */
void be_cpu_epi_avx2(enum be_epi epi, const float *acc, const float *acc1, const float *bias,
                     float *out, uint32_t n);
void be_cpu_rms_norm_avx2(const struct be_rms_norm_args *a, uint32_t r0, uint32_t r1);
void be_cpu_layer_norm_avx2(const struct be_layer_norm_args *a, uint32_t r0, uint32_t r1);
void be_cpu_rope_avx2(const struct be_cpu_rope *a, uint32_t r0, uint32_t r1);
void be_cpu_softcap_avx2(float *x, size_t n, float cap);
int32_t be_cpu_argmax_avx2(const float *x, uint32_t n);
/* be_cpu_tower_avx2.c */
void be_cpu_act_avx2(const struct be_act_args *a, size_t i0, size_t i1);
void be_cpu_glu_avx2(const struct be_glu_args *a, uint32_t r0, uint32_t r1);
void be_cpu_attn_local_avx2(const struct be_attention_local_args *a, uint32_t r0, uint32_t r1);
/* be_cpu_spans_avx2.c */
void be_cpu_spans_avx2(const struct be_spans_args *s, const float *a, const float *b,
                       const float *g, uint32_t i0, uint32_t i1);
/* be_cpu_attn_avx2.c; be_cpu_attn_seq_avx2.c: items of plain rows */
void be_cpu_attn_avx2(const struct be_cpu_attn *a, void *scratch);
void be_cpu_attn_seq_avx2(const struct be_cpu_attn *a, void *scratch);
/* be_cpu_attn_rel_avx2.c: an item; what positions add to a tile of scores of it */
void be_cpu_attn_rel_avx2(const struct be_cpu_attn *a, void *scratch);
void be_cpu_attn_rel_tile_avx2(const struct be_cpu_attn *a, uint32_t t0, uint32_t n, float *s);
void be_cpu_attn_merge_avx2(const struct be_cpu_attn *a, uint32_t n, void *scratch);

#endif
#endif
