/* be_cpu_qlin_avx2.c - int8 products of packed weights with AVX2. See be_cpu_qlin.h.
 * Tests: tests/backends/test_be_cpu_linear.c */
#include "be_cpu_x86.h"

#if defined(__x86_64__)

#define QLIN_VNNI 0
#include "be_cpu_qlin.h"

void be_cpu_qlin_avx2(const struct be_weight *w, const struct be_cpu_act *a, size_t u0, unsigned nu,
                      uint32_t r0, uint32_t nr, float *out, size_t ld)
{
    qlin(w, a, u0, nu, r0, nr, out, ld);
}

#endif
