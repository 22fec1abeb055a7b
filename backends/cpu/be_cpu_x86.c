/* be_cpu_x86.c - the tables of the x86-64 levels: plain C where nothing is faster.
 * Tests: tests/backends/ (every test runs every level the processor has). */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#include "be_cpu_pack.h"
#include "be_cpu_ref.h"

static void lin_avx2(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                     uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    if (be_dtype_block(w->dtype) == 1)
        be_cpu_flin_avx2(w, a, u0, nu, r0, nr, out, ld);
    else
        be_cpu_qlin_avx2(w, a, u0, nu, r0, nr, out, ld);
}

static void lin_avx512(const struct be_weight *w, const struct be_cpu_act *a, size_t u0,
                       unsigned nu, uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    if (be_dtype_block(w->dtype) == 1)
        be_cpu_flin_avx512(w, a, u0, nu, r0, nr, out, ld);
    else
        be_cpu_qlin_avx512(w, a, u0, nu, r0, nr, out, ld);
}

#define SHARED                                                                                  \
    .pack_bytes = be_cpu_pack_bytes, .pack = be_cpu_pack, .quant_q8_0 = be_cpu_quant_q8_0_avx2, \
    .quant_q8_k = be_cpu_quant_q8_k_avx2, .epi = be_cpu_epi_avx2, .embed = be_cpu_ref_embed,    \
    .rms_norm = be_cpu_rms_norm_avx2, .layer_norm = be_cpu_layer_norm_avx2,                     \
    .rope = be_cpu_rope_avx2, .softcap = be_cpu_softcap_avx2, .argmax = be_cpu_argmax_avx2,     \
    .act = be_cpu_act_avx2, .glu = be_cpu_glu_avx2, .attn_local = be_cpu_attn_local_avx2,       \
    .spans = be_cpu_spans_avx2, .attn_rel = be_cpu_attn_rel_avx2, .attn = be_cpu_attn_avx2,     \
    .attn_merge = be_cpu_attn_merge_avx2

const struct be_cpu_kern be_cpu_kern_avx2 = {
    .name = "avx2", .lin = lin_avx2, .lin_units = 1, SHARED};
const struct be_cpu_kern be_cpu_kern_avx512 = {
    .name = "avx512", .lin = lin_avx512, .lin_units = 3, SHARED};

#endif
