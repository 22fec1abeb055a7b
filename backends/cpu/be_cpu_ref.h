/* be_cpu_ref.h - private: plain C pieces that other levels and tests reuse. */
#ifndef INFERD_BE_CPU_REF_H
#define INFERD_BE_CPU_REF_H

#include "be_cpu.h"

/* Element i of an F32, F16 or BF16 row. */
float be_cpu_ref_value(enum be_dtype t, const uint8_t *row, size_t i);
/* Quantize rows [r0, r1), engine.md 2.4. A row block that holds a NaN or infinity
 * gets scale NaN and codes 0, so its outputs are NaN and nothing overflows. */
void be_cpu_ref_quant_q8_0(struct be_cpu_act *a, uint32_t r0, uint32_t r1);
void be_cpu_ref_quant_q8_k(struct be_cpu_act *a, uint32_t r0, uint32_t r1);
/* Raw weight row times quantized row r. */
float be_cpu_ref_dot(enum be_dtype t, const uint8_t *row, const struct be_cpu_act *a, uint32_t r);
float be_cpu_ref_gelu_tanh(float z);
void be_cpu_ref_embed(const struct be_embed_args *a, uint32_t r0, uint32_t r1);
void be_cpu_ref_attn(const struct be_cpu_attn *a, void *scratch);
void be_cpu_ref_attn_rel(const struct be_cpu_attn *a, void *scratch); /* be_cpu_attn_rel_ref.c */
/* be_cpu_tower_ref.c */
void be_cpu_ref_act(const struct be_act_args *a, size_t i0, size_t i1);
void be_cpu_ref_glu(const struct be_glu_args *a, uint32_t r0, uint32_t r1);
void be_cpu_ref_attn_local(const struct be_attention_local_args *a, uint32_t r0, uint32_t r1);

#endif
