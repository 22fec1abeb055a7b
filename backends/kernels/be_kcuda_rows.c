/* be_kcuda_rows.c - CUDA text of the row kernels: the functions of libraries "rows" and
 * "embed", and the renderer.
 *
 * A kernel's text is a list of pieces, one per node of its IR, in the IR's order
 * (be_kcuda_rows_text.h); the renderer walks both and refuses a node the list does not have. Fixed
 * dimensions become constants. The order of sums is that of be_krows.h. Tests:
 * tests/backends/test_be_krows.c
 */
#include "be_krows.h"

#include <ctype.h>
#include <string.h>

#include "be_kcuda_rows_text.h"

/* clang-format off */

static const char lib_common[] =
    "KX_DEV float kx_get(kx_p x, kx_u t, unsigned long long i)\n"
    "{\n"
    "    return t == KX_F16 ? kx_h2f(((const unsigned short *)x)[i]) : ((const float *)x)[i];\n"
    "}\n"
    "KX_DEV void kx_put(kx_p x, kx_u t, unsigned long long i, float v)\n"
    "{\n"
    "    if (t == KX_F16)\n"
    "        ((unsigned short *)x)[i] = kx_f2h(v);\n"
    "    else\n"
    "        ((float *)x)[i] = v;\n"
    "}\n"
    "/* Columns c .. c + 7 of a row that begins at element at; past k they are 0. */\n"
    "KX_DEV void kx_ld8(float *v, kx_p x, kx_u t, unsigned long long at, kx_u c, kx_u k)\n"
    "{\n"
    "    if (k % 8u != 0u) {\n"
    "        KX_UNROLL\n"
    "        for (kx_u i = 0; i < 8u; i++)\n"
    "            v[i] = c + i < k ? kx_get(x, t, at + c + i) : 0.0f;\n"
    "    } else if (c >= k) {\n"
    "        KX_UNROLL\n"
    "        for (kx_u i = 0; i < 8u; i++)\n"
    "            v[i] = 0.0f;\n"
    "    } else if (t == KX_F16) {\n"
    "        const struct kx_u4 h = *(const struct kx_u4 *)((const unsigned short *)x + at + c);\n"
    "        v[0] = kx_h2f((unsigned short)h.x);\n"
    "        v[1] = kx_h2f((unsigned short)(h.x >> 16));\n"
    "        v[2] = kx_h2f((unsigned short)h.y);\n"
    "        v[3] = kx_h2f((unsigned short)(h.y >> 16));\n"
    "        v[4] = kx_h2f((unsigned short)h.z);\n"
    "        v[5] = kx_h2f((unsigned short)(h.z >> 16));\n"
    "        v[6] = kx_h2f((unsigned short)h.w);\n"
    "        v[7] = kx_h2f((unsigned short)(h.w >> 16));\n"
    "    } else {\n"
    "        const struct kx_f4 p = *(const struct kx_f4 *)((const float *)x + at + c);\n"
    "        const struct kx_f4 q = *(const struct kx_f4 *)((const float *)x + at + c + 4u);\n"
    "        v[0] = p.x;\n"
    "        v[1] = p.y;\n"
    "        v[2] = p.z;\n"
    "        v[3] = p.w;\n"
    "        v[4] = q.x;\n"
    "        v[5] = q.y;\n"
    "        v[6] = q.z;\n"
    "        v[7] = q.w;\n"
    "    }\n"
    "}\n"
    "/* Eight values to 32 (16) aligned bytes. */\n"
    "KX_DEV void kx_put8(void *p, kx_u t, const float *v)\n"
    "{\n"
    "    if (t == KX_F16) {\n"
    "        struct kx_u4 h;\n"
    "        h.x = kx_f2h2(v[0], v[1]);\n"
    "        h.y = kx_f2h2(v[2], v[3]);\n"
    "        h.z = kx_f2h2(v[4], v[5]);\n"
    "        h.w = kx_f2h2(v[6], v[7]);\n"
    "        *(struct kx_u4 *)p = h;\n"
    "    } else {\n"
    "        struct kx_f4 a, b;\n"
    "        a.x = v[0];\n"
    "        a.y = v[1];\n"
    "        a.z = v[2];\n"
    "        a.w = v[3];\n"
    "        b.x = v[4];\n"
    "        b.y = v[5];\n"
    "        b.z = v[6];\n"
    "        b.w = v[7];\n"
    "        ((struct kx_f4 *)p)[0] = a;\n"
    "        ((struct kx_f4 *)p)[1] = b;\n"
    "    }\n"
    "}\n"
    "KX_DEV void kx_st8(const float *v, kx_p x, kx_u t, unsigned long long at, kx_u c, kx_u k)\n"
    "{\n"
    "    if (k % 8u != 0u) {\n"
    "        KX_UNROLL\n"
    "        for (kx_u i = 0; i < 8u; i++)\n"
    "            if (c + i < k)\n"
    "                kx_put(x, t, at + c + i, v[i]);\n"
    "    } else if (c < k) {\n"
    "        if (t == KX_F16)\n"
    "            kx_put8((unsigned short *)x + at + c, t, v);\n"
    "        else\n"
    "            kx_put8((float *)x + at + c, t, v);\n"
    "    }\n"
    "}\n";

static const char lib_rows[] =
    "#define KX_FLT_MAX 3.402823466e+38f\n"
    "\n"
    "/* What a tensor of type t would hold. */\n"
    "KX_DEV void kx_round8(float *v, kx_u t)\n"
    "{\n"
    "    if (t == KX_F16) {\n"
    "        KX_UNROLL\n"
    "        for (int i = 0; i < 8; i++)\n"
    "            v[i] = kx_h2f(kx_f2h(v[i]));\n"
    "    }\n"
    "}\n"
    "KX_DEV float kx_lanes_sum(float v)\n"
    "{\n"
    "    v = v + kx_shfl_xor_f(v, 16);\n"
    "    v = v + kx_shfl_xor_f(v, 8);\n"
    "    v = v + kx_shfl_xor_f(v, 4);\n"
    "    v = v + kx_shfl_xor_f(v, 2);\n"
    "    return v + kx_shfl_xor_f(v, 1);\n"
    "}\n"
    "/* Over all threads of a block of so many warps; part: 32 floats of shared memory that\n"
    " * nothing else uses. */\n"
    "KX_DEV float kx_block_sum(float v, float *part, kx_u warps)\n"
    "{\n"
    "    const kx_u lane = kx_tid() % 32u;\n"
    "    v = kx_lanes_sum(v);\n"
    "    if (lane == 0u)\n"
    "        part[kx_tid() / 32u] = v;\n"
    "    kx_sync();\n"
    "    return kx_lanes_sum(lane < warps ? part[lane] : 0.0f);\n"
    "}\n"
    "KX_DEV float kx_sq8(const float *v, float s)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        s = kx_fma(v[i], v[i], s);\n"
    "    return s;\n"
    "}\n"
    "KX_DEV float kx_inv_rms(float sum, kx_u k, float eps)\n"
    "{\n"
    "    return kx_div(1.0f, kx_sqrt(kx_div(sum, (float)k) + eps));\n"
    "}\n"
    "KX_DEV struct kx_u2 kx_pack8(const int *c)\n"
    "{\n"
    "    struct kx_u2 q;\n"
    "    q.x = ((kx_u)c[0] & 255u) | ((kx_u)c[1] & 255u) << 8 | ((kx_u)c[2] & 255u) << 16 | (kx_u)c[3] << 24;\n"
    "    q.y = ((kx_u)c[4] & 255u) | ((kx_u)c[5] & 255u) << 8 | ((kx_u)c[6] & 255u) << 16 | (kx_u)c[7] << 24;\n"
    "    return q;\n"
    "}\n"
    "/* Four lanes hold a block of 32 (be_cpu_refq.c, block_q8_0): a lane's codes, the block's scale\n"
    " * and sum of codes. */\n"
    "KX_DEV void kx_q8_0(const float *v, struct kx_u2 *q, float *d, int *s)\n"
    "{\n"
    "    float m = 0.0f, id;\n"
    "    int c[8], bad;\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        m = kx_abs(v[i]) <= KX_FLT_MAX ? kx_max(m, kx_abs(v[i])) : kx_i2f_bits(0x7f800000);\n"
    "    m = kx_max(m, kx_shfl_xor_f(m, 1));\n"
    "    m = kx_max(m, kx_shfl_xor_f(m, 2));\n"
    "    bad = !(m <= KX_FLT_MAX);\n"
    "    m = kx_div(m, 127.0f);\n"
    "    id = m != 0.0f ? kx_div(1.0f, m) : 0.0f;\n"
    "    if (!(id <= KX_FLT_MAX))\n"
    "        id = 0.0f;\n"
    "    *s = 0;\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++) {\n"
    "        c[i] = (int)kx_round_away(bad ? 0.0f : v[i] * id);\n"
    "        *s += c[i];\n"
    "    }\n"
    "    *s += kx_shfl_xor_i(*s, 1);\n"
    "    *s += kx_shfl_xor_i(*s, 2);\n"
    "    *q = kx_pack8(c);\n"
    "    *d = bad ? kx_i2f_bits(0x7fc00000) : kx_h2f(kx_f2h(m));\n"
    "}\n"
    "/* A warp holds a block of 256 (block_q8_k); *s as above, of 32 columns. */\n"
    "KX_DEV void kx_q8_k(const float *v, struct kx_u2 *q, float *d, int *s)\n"
    "{\n"
    "    float m = 0.0f, w, big = 0.0f, is;\n"
    "    int c[8], bad = 0, dead;\n"
    "    kx_u who;\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++) {\n"
    "        if (!(kx_abs(v[i]) <= KX_FLT_MAX))\n"
    "            bad = 1;\n"
    "        else if (kx_abs(v[i]) > m) {\n"
    "            m = kx_abs(v[i]);\n"
    "            big = v[i];\n"
    "        }\n"
    "    }\n"
    "    w = bad ? kx_i2f_bits(0x7f800000) : m;\n"
    "    w = kx_max(w, kx_shfl_xor_f(w, 16));\n"
    "    w = kx_max(w, kx_shfl_xor_f(w, 8));\n"
    "    w = kx_max(w, kx_shfl_xor_f(w, 4));\n"
    "    w = kx_max(w, kx_shfl_xor_f(w, 2));\n"
    "    w = kx_max(w, kx_shfl_xor_f(w, 1));\n"
    "    bad = !(w <= KX_FLT_MAX);\n"
    "    who = kx_ballot(m == w);\n"
    "    big = kx_shfl_f(big, kx_popc((who & (0u - who)) - 1u) & 31);\n"
    "    is = kx_div(-127.0f, big);\n"
    "    dead = bad || w == 0.0f || !(kx_abs(is) <= KX_FLT_MAX);\n"
    "    *s = 0;\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++) {\n"
    "        const int r = kx_rint(dead ? 0.0f : is * v[i]);\n"
    "        c[i] = r > 127 ? 127 : r;\n"
    "        *s += c[i];\n"
    "    }\n"
    "    *s += kx_shfl_xor_i(*s, 1);\n"
    "    *s += kx_shfl_xor_i(*s, 2);\n"
    "    *q = kx_pack8(c);\n"
    "    *d = bad ? kx_i2f_bits(0x7fc00000) : dead ? 0.0f : kx_div(1.0f, is);\n"
    "}\n"
    "/* Columns c .. c + 7 of row as int8. */\n"
    "KX_DEV void kx_q8_st(const struct kx_u2 q, float d, int s, kx_u enc, kx_p xq, kx_p xd, kx_p xs, kx_u row, kx_u c, kx_u k)\n"
    "{\n"
    "    if (c >= k)\n"
    "        return;\n"
    "    *(struct kx_u2 *)((signed char *)xq + (unsigned long long)row * k + c) = q;\n"
    "    if (c % 32u == 0u)\n"
    "        ((int *)xs)[(unsigned long long)row * (k / 32u) + c / 32u] = s;\n"
    "    if (enc == KX_ENC_Q8_0 && c % 32u == 0u)\n"
    "        ((float *)xd)[(unsigned long long)row * (k / 32u) + c / 32u] = d;\n"
    "    if (enc == KX_ENC_Q8_K && c % 256u == 0u)\n"
    "        ((float *)xd)[(unsigned long long)row * (k / 256u) + c / 256u] = d;\n"
    "}\n"
    "\n"
    "/* ---- heads: a warp has one; lane l holds the pairs (i, i + half), i = l, l + 32 ... */\n"
    "KX_DEV void kx_head_ld(float *u, float *v, kx_p x, kx_u t, unsigned long long at, kx_u half)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (kx_u j = 0; j < 8u; j++) {\n"
    "        const kx_u i = kx_tid() % 32u + 32u * j;\n"
    "        u[j] = i < half ? kx_get(x, t, at + i) : 0.0f;\n"
    "        v[j] = i < half ? kx_get(x, t, at + half + i) : 0.0f;\n"
    "    }\n"
    "}\n"
    "KX_DEV float kx_head_sq(const float *u, const float *v)\n"
    "{\n"
    "    float s = 0.0f;\n"
    "    KX_UNROLL\n"
    "    for (int j = 0; j < 8; j++) {\n"
    "        s = kx_fma(u[j], u[j], s);\n"
    "        s = kx_fma(v[j], v[j], s);\n"
    "    }\n"
    "    return kx_lanes_sum(s);\n"
    "}\n"
    "KX_DEV void kx_head_scale(float *u, float *v, float f, kx_p w, kx_u half)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (kx_u j = 0; j < 8u; j++) {\n"
    "        const kx_u i = kx_tid() % 32u + 32u * j;\n"
    "        if (i < half) {\n"
    "            u[j] = u[j] * f * ((const float *)w)[i];\n"
    "            v[j] = v[j] * f * ((const float *)w)[half + i];\n"
    "        }\n"
    "    }\n"
    "}\n"
    "KX_DEV void kx_head_turn(float *u, float *v, const float *cs, const float *sn, kx_u half)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (kx_u j = 0; j < 8u; j++) {\n"
    "        const kx_u i = kx_tid() % 32u + 32u * j;\n"
    "        if (i < half) {\n"
    "            const float a = u[j], b = v[j];\n"
    "            u[j] = kx_fma(a, cs[i], -(b * sn[i]));\n"
    "            v[j] = kx_fma(b, cs[i], a * sn[i]);\n"
    "        }\n"
    "    }\n"
    "}\n"
    "KX_DEV void kx_head_st(const float *u, const float *v, kx_p x, kx_u t, unsigned long long at, kx_u half)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (kx_u j = 0; j < 8u; j++) {\n"
    "        const kx_u i = kx_tid() % 32u + 32u * j;\n"
    "        if (i < half) {\n"
    "            kx_put(x, t, at + i, u[j]);\n"
    "            kx_put(x, t, at + half + i, v[j]);\n"
    "        }\n"
    "    }\n"
    "}\n"
    "KX_DEV kx_u kx_rope_warps(kx_u heads, kx_u half)\n"
    "{\n"
    "    const kx_u need = (half + 31u) / 32u, w = heads > need ? heads : need;\n"
    "    return w > 16u ? 16u : w;\n"
    "}\n"
    "/* Angles of one row, for a block of n threads. */\n"
    "KX_DEV void kx_rope_angles(float *cs, float *sn, kx_p pos, kx_p freq, kx_u row, kx_u half, kx_u n)\n"
    "{\n"
    "    const double p = (double)(float)((const int *)pos)[row];\n"
    "    for (kx_u i = kx_tid(); i < half; i += n)\n"
    "        kx_sincos((float)(p * ((const double *)freq)[i]), &sn[i], &cs[i]);\n"
    "}\n"
    "\n"
    "/* ---- key/value cache */\n"
    "struct kx_place { /* page -1: nowhere */\n"
    "    int page;\n"
    "    kx_u slot;\n"
    "};\n"
    "KX_DEV struct kx_place kx_kv_place(const struct kx_kv_write *a, kx_u row)\n"
    "{\n"
    "    const struct kx_seq s = ((const struct kx_seq *)a->seqs)[((const kx_u *)a->row_seq)[row]];\n"
    "    const kx_u p = s.pos0 + (row - s.row0);\n"
    "    struct kx_place at;\n"
    "    at.page = ((const int *)a->pages)[s.page0 + p / a->kv.page_tokens];\n"
    "    at.slot = p % a->kv.page_tokens;\n"
    "    return at;\n"
    "}\n"
    "KX_DEV void kx_kv_st1(const struct kx_kv *kv, kx_p page, kx_u slot, kx_u c, float v)\n"
    "{\n"
    "    const kx_u line = c / kv->head_dim * kv->page_tokens + slot;\n"
    "    kx_put(page, kv->dtype, (unsigned long long)line * kv->head_dim + c % kv->head_dim, v);\n"
    "}\n"
    "/* Columns c .. c + 7 of a row of width columns; q, d: their codes and scale (q8_0). */\n"
    "KX_DEV void kx_kv_st8(const struct kx_kv *kv, kx_p base, struct kx_place at, kx_u c, kx_u width, const float *v, const struct kx_u2 q, float d)\n"
    "{\n"
    "    const kx_p page = base + (unsigned long long)(kx_u)at.page * kv->page_stride;\n"
    "    unsigned long long to;\n"
    "    if (at.page < 0 || c >= width)\n"
    "        return;\n"
    "    if (kv->head_dim % 8u != 0u) { /* a lane's columns may belong to two heads */\n"
    "        KX_UNROLL\n"
    "        for (kx_u i = 0; i < 8u; i++)\n"
    "            if (c + i < width)\n"
    "                kx_kv_st1(kv, page, at.slot, c + i, v[i]);\n"
    "        return;\n"
    "    }\n"
    "    to = (unsigned long long)(c / kv->head_dim * kv->page_tokens + at.slot) * kv->head_dim + c % kv->head_dim;\n"
    "    if (kv->dtype == 8u) {\n"
    "        *(struct kx_u2 *)((signed char *)page + to) = q;\n"
    "        if (c % 32u == 0u)\n"
    "            *(unsigned short *)((signed char *)page + kv->scales_at + to / 32u * 2u) = kx_f2h(d);\n"
    "    } else if (kv->dtype == 1u)\n"
    "        kx_put8((unsigned short *)page + to, KX_F16, v);\n"
    "    else\n"
    "        kx_put8((float *)page + to, KX_F32, v);\n"
    "}\n"
    "/* ---- arg-max: the larger value, of equals the lower index; NaN never */\n"
    "KX_DEV struct kx_best kx_better(struct kx_best a, float v, int i)\n"
    "{\n"
    "    if (v > a.v || (v == a.v && i < a.i)) {\n"
    "        a.v = v;\n"
    "        a.i = i;\n"
    "    }\n"
    "    return a;\n"
    "}\n"
    "/* Over a block of 256 threads; sh: 8 of shared memory. Thread 0 has the answer. */\n"
    "KX_DEV struct kx_best kx_block_best(struct kx_best b, struct kx_best *sh)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (int m = 16; m; m /= 2)\n"
    "        b = kx_better(b, kx_shfl_xor_f(b.v, m), kx_shfl_xor_i(b.i, m));\n"
    "    if (kx_tid() % 32u == 0u)\n"
    "        sh[kx_tid() / 32u] = b;\n"
    "    kx_sync();\n"
    "    KX_UNROLL\n"
    "    for (int w = 0; w < 8; w++)\n"
    "        b = kx_better(b, sh[w].v, sh[w].i);\n"
    "    return b;\n"
    "}\n";

static const char lib_embed[] =
    "/* ---- rows of a matrix in planes (be_klayout.c): columns c .. c + 7 of row id, exactly\n"
    " * be_dtype_to_f32 */\n"
    "KX_DEV const unsigned char *kx_plane(kx_p w, kx_u id, kx_u row_bytes)\n"
    "{\n"
    "    return (const unsigned char *)w + (unsigned long long)id * ((row_bytes + 15u) / 16u * 16u);\n"
    "}\n"
    "KX_DEV float kx_half_at(const unsigned char *p, kx_u i)\n"
    "{\n"
    "    return kx_h2f(((const unsigned short *)p)[i]);\n"
    "}\n"
    "/* 4-bit codes */\n"
    "KX_DEV void kx_nibbles(int *q, kx_p w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const struct kx_u2 b = *(const struct kx_u2 *)(kx_plane(w, id, k / 2u) + c / 32u * 16u + c % 16u);\n"
    "    const kx_u sh = c % 32u < 16u ? 0u : 4u;\n"
    "    KX_UNROLL\n"
    "    for (kx_u i = 0; i < 4u; i++) {\n"
    "        q[i] = (int)(b.x >> (8u * i + sh) & 15u);\n"
    "        q[4u + i] = (int)(b.y >> (8u * i + sh) & 15u);\n"
    "    }\n"
    "}\n"
    "/* + 16 * the fifth bits */\n"
    "KX_DEV void kx_fifth(int *q, kx_p w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const kx_u b = *(const kx_u *)(kx_plane(w, id, k / 8u) + c / 32u * 4u) >> (c % 32u / 4u);\n"
    "    KX_UNROLL\n"
    "    for (kx_u i = 0; i < 8u; i++)\n"
    "        q[i] += (int)(b >> (8u * (i % 4u) + i / 4u) & 1u) * 16;\n"
    "}\n"
    "KX_DEV void kx_get8_f32(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    kx_ld8(v, w[0], KX_F32, (unsigned long long)id * ((k + 3u) / 4u * 4u), c, k);\n"
    "}\n"
    "KX_DEV void kx_get8_f16(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    kx_ld8(v, w[0], KX_F16, (unsigned long long)id * ((k + 7u) / 8u * 8u), c, k);\n"
    "}\n"
    "KX_DEV void kx_get8_bf16(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const unsigned char *p = kx_plane(w[0], id, 2u * k);\n"
    "    if (c + 8u <= k) { /* rows are 16-byte aligned, so is any eight of them */\n"
    "        const struct kx_u4 b = *(const struct kx_u4 *)(p + 2u * c);\n"
    "        v[0] = kx_bf2f((unsigned short)b.x);\n"
    "        v[1] = kx_bf2f((unsigned short)(b.x >> 16));\n"
    "        v[2] = kx_bf2f((unsigned short)b.y);\n"
    "        v[3] = kx_bf2f((unsigned short)(b.y >> 16));\n"
    "        v[4] = kx_bf2f((unsigned short)b.z);\n"
    "        v[5] = kx_bf2f((unsigned short)(b.z >> 16));\n"
    "        v[6] = kx_bf2f((unsigned short)b.w);\n"
    "        v[7] = kx_bf2f((unsigned short)(b.w >> 16));\n"
    "        return;\n"
    "    }\n"
    "    KX_UNROLL\n"
    "    for (kx_u i = 0; i < 8u; i++)\n"
    "        v[i] = c + i < k ? kx_bf2f(((const unsigned short *)p)[c + i]) : 0.0f;\n"
    "}\n"
    "KX_DEV void kx_get8_q4_0(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const float d = kx_half_at(kx_plane(w[1], id, k / 16u), c / 32u);\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        v[i] = d * (float)(q[i] - 8);\n"
    "}\n"
    "KX_DEV void kx_get8_q4_1(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const unsigned char *p = kx_plane(w[1], id, k / 8u);\n"
    "    const float d = kx_half_at(p, c / 32u * 2u), m = kx_half_at(p, c / 32u * 2u + 1u);\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        v[i] = d * (float)q[i] + m;\n"
    "}\n"
    "KX_DEV void kx_get8_q5_0(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const float d = kx_half_at(kx_plane(w[1], id, k / 16u), c / 32u);\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    kx_fifth(q, w[2], id, c, k);\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        v[i] = d * (float)(q[i] - 16);\n"
    "}\n"
    "KX_DEV void kx_get8_q5_1(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const unsigned char *p = kx_plane(w[1], id, k / 8u);\n"
    "    const float d = kx_half_at(p, c / 32u * 2u), m = kx_half_at(p, c / 32u * 2u + 1u);\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    kx_fifth(q, w[2], id, c, k);\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        v[i] = d * (float)q[i] + m;\n"
    "}\n"
    "KX_DEV void kx_get8_q8_0(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const struct kx_u2 b = *(const struct kx_u2 *)(kx_plane(w[0], id, k) + c);\n"
    "    const float d = kx_half_at(kx_plane(w[1], id, k / 16u), c / 32u);\n"
    "    KX_UNROLL\n"
    "    for (kx_u i = 0; i < 4u; i++) {\n"
    "        v[i] = d * (float)(signed char)(b.x >> 8u * i);\n"
    "        v[4u + i] = d * (float)(signed char)(b.y >> 8u * i);\n"
    "    }\n"
    "}\n"
    "/* Q4_K and Q5_K: codes to values */\n"
    "KX_DEV void kx_k_values(float *v, const int *q, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const unsigned char *p = kx_plane(w[1], id, k / 64u), *s = kx_plane(w[2], id, k / 16u) + c / 32u * 2u;\n"
    "    const float d = kx_half_at(p, c / 256u * 2u), dmin = kx_half_at(p, c / 256u * 2u + 1u);\n"
    "    const float ds = d * (float)s[0], dm = dmin * (float)s[1];\n"
    "    KX_UNROLL\n"
    "    for (int i = 0; i < 8; i++)\n"
    "        v[i] = ds * (float)q[i] - dm;\n"
    "}\n"
    "KX_DEV void kx_get8_q4_k(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    kx_k_values(v, q, w, id, c, k);\n"
    "}\n"
    "KX_DEV void kx_get8_q5_k(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    kx_fifth(q, w[3], id, c, k);\n"
    "    kx_k_values(v, q, w, id, c, k);\n"
    "}\n"
    "KX_DEV void kx_get8_q6_k(float *v, const kx_p *w, kx_u id, kx_u c, kx_u k)\n"
    "{\n"
    "    const kx_u b = *(const kx_u *)(kx_plane(w[3], id, k / 4u) + c / 16u * 4u) >> (c % 16u / 4u * 2u);\n"
    "    const float d = kx_half_at(kx_plane(w[1], id, k / 128u), c / 256u);\n"
    "    const float ds = d * (float)((const signed char *)kx_plane(w[2], id, k / 16u))[c / 16u];\n"
    "    int q[8];\n"
    "    kx_nibbles(q, w[0], id, c, k);\n"
    "    KX_UNROLL\n"
    "    for (kx_u i = 0; i < 8u; i++)\n"
    "        v[i] = ds * (float)(q[i] + (int)(b >> (8u * (i % 4u) + i / 4u * 2u) & 3u) * 16 - 32);\n"
    "}\n";

/* clang-format on */

static const struct be_krow_text texts[BE_KROW_COUNT] = {
#define X(id, name, lib, op, type, threads) \
    [BE_KROW_##id] = {name##_steps, sizeof(name##_steps) / sizeof(name##_steps[0])},
    BE_KROW_MAP(X)
#undef X
        [BE_KROW_EMBED] = {embed_steps, sizeof(embed_steps) / sizeof(embed_steps[0])},
};

static const char *const arg_types[BE_KROW_COUNT] = {
#define X(id, name, lib, op, type, threads) [BE_KROW_##id] = #type,
    BE_KROW_MAP(X)
#undef X
        [BE_KROW_EMBED] = "kx_embed",
};

enum rc be_krow_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    bool embeds = strcmp(lib, "embed") == 0;

    if (!embeds && strcmp(lib, "rows") != 0)
        return rc_fail(err, RC_INTERNAL, "library '%s' is none of family rows", lib);
    be_ktext_add(out, "\n%s%s", lib_common, embeds ? lib_embed : lib_rows);
    return RC_OK;
}

/* A dimension as a constant of the kernel: its value where the descriptor fixes it. */
static void add_dim(struct be_ktext *out, const char *name, const char *field,
                    const struct be_kdim *d)
{
    if (d->fixed)
        be_ktext_add(out, "    const kx_u %s = %uu;\n", name, d->max);
    else
        be_ktext_add(out, "    const kx_u %s = %s;\n", name, field);
}

static void add_dims(struct be_ktext *out, enum be_krow id, const struct be_kdesc *d)
{
    switch (id) {
    case BE_KROW_ROPE:
        add_dim(out, "hd", "a.head_dim", &d->head_dim);
        add_dim(out, "heads", "a.n_heads", &d->q_heads);
        break;
    case BE_KROW_ROPE_KV:
        add_dim(out, "hd", "a.q.head_dim", &d->head_dim);
        add_dim(out, "heads", "a.q.n_heads", &d->q_heads);
        add_dim(out, "kv_heads", "a.k.n_heads", &d->kv_heads);
        break;
    case BE_KROW_KV_WRITE:
        add_dim(out, "hd", "a.kv.head_dim", &d->head_dim);
        add_dim(out, "heads", "a.kv.n_kv_heads", &d->kv_heads);
        break;
    case BE_KROW_CONVERT:
        break;
    default:
        add_dim(out, "k", "a.k", &d->k);
        break;
    }
}

/* The format's word in the names of functions. */
static void add_dequant(struct be_ktext *out, uint32_t fmt)
{
    const char *s = be_dtype_name(fmt);
    char word[16] = "";

    for (size_t i = 0; s[i] && i + 1 < sizeof(word); i++)
        word[i] = (char)tolower((unsigned char)s[i]);
    be_ktext_add(out, "    kx_get8_%s(v, a.w, id, c, k);\n", word);
}

enum rc be_krow_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    enum be_krow id = be_krow_of(k->name);
    const struct be_krow_text *t;

    if (id == BE_KROW_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family rows", k->name);
    t = &texts[id];
    be_ktext_add(out, "KX_KERNEL(%s, %u, 1, struct %s, a)\n{\n", k->name, k->sched.threads,
                 arg_types[id]);
    add_dims(out, id, &k->desc);
    for (uint32_t i = 0; i < k->n_nodes; i++) {
        if (i >= t->n_steps || t->step[i].kind != k->node[i].kind)
            return rc_fail(err, RC_INTERNAL, "node %u %s of '%s' has no CUDA text, expected %s", i,
                           be_knode_name(k->node[i].kind), k->name,
                           i < t->n_steps ? be_knode_name(t->step[i].kind) : "the end");
        be_ktext_add(out, "%s", t->step[i].text);
        if (k->node[i].kind == BE_KN_DEQUANT)
            add_dequant(out, k->node[i].imm);
    }
    if (t->n_steps != k->n_nodes)
        return rc_fail(err, RC_INTERNAL, "'%s' ends after %u nodes, its CUDA text has %u", k->name,
                       k->n_nodes, t->n_steps);
    be_ktext_add(out, "}\n");
    return RC_OK;
}
