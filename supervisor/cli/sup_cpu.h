/* sup_cpu.h - the processor and the limits around this process, read from /proc and
 * /sys. Facts only; what they mean is doctor's. */
#ifndef INFERD_SUP_CPU_H
#define INFERD_SUP_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "x86-64: avx2 fma f16c avx512f ..." - of the features that kernels use. */
void sup_cpu_features(char *out, size_t cap);
/* Processors in our affinity mask. */
unsigned sup_cpu_affinity(void);
/* The tightest limits on the way to the cgroup's root. false: no limit found.
 * quota: processors, like 1.5. */
bool sup_cgroup_cpu(double *quota);
bool sup_cgroup_memory(uint64_t *bytes);
uint64_t sup_memory_total(void); /* of the machine; 0 unknown */

#endif
