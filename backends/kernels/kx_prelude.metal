/* kx_prelude.metal - what generated Metal text may use: the names of kx_prelude.cu that
 * kx_math.h and the renderers need, in Metal's words.
 *
 * Put in front of every Metal library by kgen, before be_kargs.h. Compile with fast math off
 * and contraction off: a * b + c is rounded twice, kx_fma once. Written from the Metal Shading
 * Language specification; not compiled on the machines that build inferd.
 */
#include <metal_stdlib>
using namespace metal;

#define kx_p ulong
#define kx_u uint
#define KX_DEV static inline
#define KX_UNROLL _Pragma("unroll")
/* A device address held in a kx_p. */
#define KX_AT(type, p) (reinterpret_cast<device type *>(p))

KX_DEV float kx_fma(float a, float b, float c) { return fma(a, b, c); }
KX_DEV float kx_sqrt(float x) { return precise::sqrt(x); }
KX_DEV float kx_div(float a, float b) { return precise::divide(a, b); }
KX_DEV float kx_max(float a, float b) { return fmax(a, b); }
KX_DEV float kx_min(float a, float b) { return fmin(a, b); }
KX_DEV float kx_abs(float a) { return fabs(a); }
/* half to even; saturates, NaN is 0 */
KX_DEV int kx_rint(float x)
{
    return !(x == x) ? 0 : x >= 2147483648.0f ? 0x7fffffff : x <= -2147483648.0f ? (-0x7fffffff - 1) : int(rint(x));
}
KX_DEV float kx_round_away(float x) { return round(x); }
KX_DEV float kx_i2f(int i) { return float(i); }
KX_DEV int kx_f2i_bits(float f) { return as_type<int>(f); }
KX_DEV float kx_i2f_bits(int i) { return as_type<float>(i); }
KX_DEV float kx_h2f(ushort h) { return float(as_type<half>(h)); }
KX_DEV ushort kx_f2h(float f) { return as_type<ushort>(half(f)); }
KX_DEV float kx_bf2f(ushort h) { return as_type<float>(uint(h) << 16); }
KX_DEV int kx_dp4a(kx_u a, kx_u b, int c)
{
    char4 x = as_type<char4>(a), y = as_type<char4>(b);

    return c + int(x.x) * int(y.x) + int(x.y) * int(y.y) + int(x.z) * int(y.z) + int(x.w) * int(y.w);
}
