/* be_cpu_inline.h - private: how the vector kernels are told to the compiler. Bounds are constants
 * once a function is part of its caller, and only fully unrolled do sums live in registers. */
#ifndef INFERD_BE_CPU_INLINE_H
#define INFERD_BE_CPU_INLINE_H

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
/* Of loops that run on: fewer steps of pointers beside the sums, 5 % of an encoder's products. */
#define UNROLL_4 _Pragma("GCC unroll 4")

#endif
