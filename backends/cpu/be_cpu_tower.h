/* be_cpu_tower.h - private to backends/cpu: operations of eyes and ears, and the table of their
 * kernels, which has two levels ("c" and AVX2). */
#ifndef INFERD_BE_CPU_TOWER_H
#define INFERD_BE_CPU_TOWER_H

#include "be_cpu.h"

#define BE_CPU_LOCAL_KEYS 64 /* of local attention, at most */
#define BE_CPU_CONV_TAPS 64

/* Row functions work on rows [r0, r1). */
struct be_cpu_tower {
    /* values [i0, i1) of x, add and out */
    void (*act)(const struct be_act_args *a, size_t i0, size_t i1);
    void (*glu)(const struct be_glu_args *a, uint32_t r0, uint32_t r1);
    void (*attn_local)(const struct be_attention_local_args *a, uint32_t r0, uint32_t r1);
};

extern const struct be_cpu_tower be_cpu_tower_c;
#if defined(__x86_64__)
extern const struct be_cpu_tower be_cpu_tower_avx2;
#endif

/* be_cpu_tower.c */
enum rc be_cpu_act(struct be_ctx *, const struct be_act_args *, struct rc_err *);
enum rc be_cpu_glu(struct be_ctx *, const struct be_glu_args *, struct rc_err *);
enum rc be_cpu_affine(struct be_ctx *, const struct be_affine_args *, struct rc_err *);
enum rc be_cpu_conv1d(struct be_ctx *, const struct be_conv1d_args *, struct rc_err *);
enum rc be_cpu_attention_local(struct be_ctx *, const struct be_attention_local_args *,
                               struct rc_err *);
/* be_cpu_unfold.c */
enum rc be_cpu_unfold(struct be_ctx *, const struct be_unfold_args *, struct rc_err *);

#endif
