/* be_kcuda_rows_text.h - CUDA text of each row kernel, node by node of its IR (be_kfam_rows.c).
 *
 * Included by be_kcuda_rows.c only. The renderer writes signature, dimensions (k; hd, heads,
 * kv_heads) and the braces of the kernel.
 */
#ifndef INFERD_BE_KCUDA_ROWS_TEXT_H
#define INFERD_BE_KCUDA_ROWS_TEXT_H

#include "be_krows.h"

/* clang-format off */

static const struct be_krow_step quant_steps[] = {
    {BE_KN_GRID,
        "    const kx_u blocks = (k + 255u) / 256u, unit = kx_bx() * 4u + kx_tid() / 32u;\n"
        "    const kx_u row = unit / blocks, c = unit % blocks * 256u + kx_tid() % 32u * 8u;\n"
        "    struct kx_u2 q;\n"
        "    float v[8], d;\n"
        "    int s;\n"
        "    if (row >= a.n)\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(v, a.x, a.x_t, (unsigned long long)row * k, c, k);\n"},
    {BE_KN_QUANT_ACT,
        "    if (a.enc == KX_ENC_Q8_0)\n"
        "        kx_q8_0(v, &q, &d, &s);\n"},
    {BE_KN_QUANT_ACT,
        "    else\n"
        "        kx_q8_k(v, &q, &d, &s);\n"},
    {BE_KN_STORE,
        "    kx_q8_st(q, d, s, a.enc, a.xq, a.xd, a.xs, row, c, k);\n"},
};

static const struct be_krow_step rms_norm_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED float part[4][32];\n"
        "    const kx_u blocks = (k + 255u) / 256u, warps = blocks > 32u ? 32u : blocks, step = warps * 256u;\n"
        "    const kx_u lane8 = kx_tid() % 32u * 8u;\n"
        "    kx_u turn = 0u;\n"
        "    float v[8], w[8], r[8], w2[8];\n"
        "    if (step >= k) { /* a row is one block a warp: the weights stay */\n"
        "        kx_ld8(w, a.w, KX_F32, 0, kx_tid() * 8u, k);\n"
        "        if (a.w2)\n"
        "            kx_ld8(w2, a.w2, KX_F32, 0, kx_tid() * 8u, k);\n"
        "    }\n"
        "    kx_wait();\n"
        "    for (kx_u row = kx_bx(); row < a.n; row += kx_gx()) {\n"
        "        const unsigned long long at = (unsigned long long)row * k;\n"
        "        float f, sum = 0.0f;\n"},
    {BE_KN_LOOP,
        "        for (kx_u c = kx_tid() * 8u; c - lane8 < k; c += step) {\n"},
    {BE_KN_LOAD_ACT,
        "            kx_ld8(v, a.x, a.x_t, at, c, k);\n"
        "            if (step >= k && a.add) /* asked for before the sum is known */\n"
        "                kx_ld8(r, a.add, a.add_t, at, c, k);\n"
        "            sum = kx_sq8(v, sum);\n"
        "        }\n"},
    {BE_KN_REDUCE,
        "        f = kx_inv_rms(kx_block_sum(sum, part[turn], warps), k, a.eps);\n"},
    {BE_KN_LOOP,
        "        for (kx_u c = kx_tid() * 8u; c - lane8 < k; c += step) {\n"},
    {BE_KN_LOAD_ACT,
        "            if (step < k) {\n"
        "                kx_ld8(v, a.x, a.x_t, at, c, k);\n"
        "                kx_ld8(w, a.w, KX_F32, 0, c, k);\n"
        "                if (a.add)\n"
        "                    kx_ld8(r, a.add, a.add_t, at, c, k);\n"
        "            }\n"},
    {BE_KN_RMS_SCALE,
        "            KX_UNROLL\n"
        "            for (int i = 0; i < 8; i++)\n"
        "                v[i] = v[i] * f;\n"},
    {BE_KN_MUL,
        "            KX_UNROLL\n"
        "            for (int i = 0; i < 8; i++)\n"
        "                v[i] = v[i] * w[i];\n"},
    {BE_KN_ADD_RES,
        "            if (a.add) {\n"
        "                KX_UNROLL\n"
        "                for (int i = 0; i < 8; i++)\n"
        "                    v[i] = r[i] + v[i];\n"
        "            }\n"},
    {BE_KN_SCALE,
        "            if (a.scale != 0.0f) {\n"
        "                kx_round8(v, a.out_t);\n"
        "                KX_UNROLL\n"
        "                for (int i = 0; i < 8; i++)\n"
        "                    v[i] = v[i] * a.scale;\n"
        "            }\n"},
    {BE_KN_STORE,
        "            if (a.out)\n"
        "                kx_st8(v, a.out, a.out_t, at, c, k);\n"},
    {BE_KN_REDUCE,
        "            if (a.w2) { /* step >= k: every thread is here once */\n"
        "                kx_round8(v, a.out_t);\n"
        "                f = kx_inv_rms(kx_block_sum(kx_sq8(v, 0.0f), part[2u + turn], warps), k, a.eps2);\n"},
    {BE_KN_RMS_SCALE,
        "                KX_UNROLL\n"
        "                for (int i = 0; i < 8; i++)\n"
        "                    v[i] = v[i] * f;\n"},
    {BE_KN_MUL,
        "                KX_UNROLL\n"
        "                for (int i = 0; i < 8; i++)\n"
        "                    v[i] = v[i] * w2[i];\n"},
    {BE_KN_STORE,
        "                if (a.out2)\n"
        "                    kx_st8(v, a.out2, a.out2_t, at, c, k);\n"
        "            }\n"},
    {BE_KN_QUANT_ACT,
        "            if (a.xq) {\n"
        "                struct kx_u2 q;\n"
        "                float d;\n"
        "                int s;\n"
        "                kx_round8(v, a.w2 ? a.out2_t : a.out_t);\n"
        "                if (a.enc == KX_ENC_Q8_0)\n"
        "                    kx_q8_0(v, &q, &d, &s);\n"},
    {BE_KN_QUANT_ACT,
        "                else\n"
        "                    kx_q8_k(v, &q, &d, &s);\n"},
    {BE_KN_STORE,
        "                kx_q8_st(q, d, s, a.enc, a.xq, a.xd, a.xs, row, c, k);\n"
        "            }\n"
        "        }\n"
        "        turn = 1u - turn;\n"
        "    }\n"},
};

static const struct be_krow_step layer_norm_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED float part[4][32];\n"
        "    const kx_u blocks = (k + 255u) / 256u, warps = blocks > 32u ? 32u : blocks, step = warps * 256u;\n"
        "    const kx_u lane8 = kx_tid() % 32u * 8u;\n"
        "    kx_u turn = 0u;\n"
        "    float v[8], r[8], w[8], b[8];\n"
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        b[i] = 0.0f;\n"
        "    if (step >= k) { /* as in kx_rms_norm */\n"
        "        kx_ld8(w, a.w, KX_F32, 0, kx_tid() * 8u, k);\n"
        "        if (a.b)\n"
        "            kx_ld8(b, a.b, KX_F32, 0, kx_tid() * 8u, k);\n"
        "    }\n"
        "    kx_wait();\n"
        "    for (kx_u row = kx_bx(); row < a.n; row += kx_gx()) {\n"
        "        const unsigned long long at = (unsigned long long)row * k;\n"
        "        float mean, f, sum = 0.0f, dev = 0.0f;\n"},
    {BE_KN_LOOP,
        "        for (kx_u c = kx_tid() * 8u; c - lane8 < k; c += step) {\n"},
    {BE_KN_LOAD_ACT,
        "            kx_ld8(v, a.x, a.x_t, at, c, k);\n"},
    {BE_KN_ADD_RES,
        "            if (a.add) {\n"
        "                kx_ld8(r, a.add, a.add_t, at, c, k);\n"
        "                KX_UNROLL\n"
        "                for (int i = 0; i < 8; i++)\n"
        "                    v[i] = v[i] + r[i];\n"
        "            }\n"
        "            KX_UNROLL\n"
        "            for (int i = 0; i < 8; i++)\n"
        "                sum = sum + v[i];\n"
        "        }\n"},
    {BE_KN_REDUCE,
        "        mean = kx_div(kx_block_sum(sum, part[turn], warps), (float)k);\n"},
    {BE_KN_LOOP,
        "        for (kx_u c = kx_tid() * 8u; c - lane8 < k; c += step) {\n"},
    {BE_KN_LOAD_ACT,
        "            if (step < k) {\n"
        "                kx_ld8(v, a.x, a.x_t, at, c, k);\n"},
    {BE_KN_ADD_RES,
        "                if (a.add) {\n"
        "                    kx_ld8(r, a.add, a.add_t, at, c, k);\n"
        "                    KX_UNROLL\n"
        "                    for (int i = 0; i < 8; i++)\n"
        "                        v[i] = v[i] + r[i];\n"
        "                }\n"
        "            }\n"
        "            KX_UNROLL\n"
        "            for (kx_u i = 0; i < 8u; i++) {\n"
        "                const float t = c + i < k ? v[i] - mean : 0.0f;\n"
        "                dev = kx_fma(t, t, dev);\n"
        "            }\n"
        "        }\n"},
    {BE_KN_REDUCE,
        "        f = kx_inv_rms(kx_block_sum(dev, part[2u + turn], warps), k, a.eps);\n"
        "        turn = 1u - turn;\n"},
    {BE_KN_LOOP,
        "        for (kx_u c = kx_tid() * 8u; c - lane8 < k; c += step) {\n"},
    {BE_KN_LOAD_ACT,
        "            if (step < k) {\n"
        "                kx_ld8(v, a.x, a.x_t, at, c, k);\n"
        "                kx_ld8(w, a.w, KX_F32, 0, c, k);\n"
        "                if (a.b)\n"
        "                    kx_ld8(b, a.b, KX_F32, 0, c, k);\n"},
    {BE_KN_ADD_RES,
        "                if (a.add) {\n"
        "                    kx_ld8(r, a.add, a.add_t, at, c, k);\n"
        "                    KX_UNROLL\n"
        "                    for (int i = 0; i < 8; i++)\n"
        "                        v[i] = v[i] + r[i];\n"
        "                }\n"
        "            }\n"},
    {BE_KN_LAYER_SCALE,
        "            KX_UNROLL\n"
        "            for (int i = 0; i < 8; i++)\n"
        "                v[i] = (v[i] - mean) * f;\n"},
    {BE_KN_MUL,
        "            KX_UNROLL\n"
        "            for (int i = 0; i < 8; i++)\n"
        "                v[i] = v[i] * w[i];\n"},
    {BE_KN_BIAS,
        "            KX_UNROLL\n"
        "            for (int i = 0; i < 8; i++)\n"
        "                v[i] = v[i] + b[i];\n"},
    {BE_KN_STORE,
        "            kx_st8(v, a.out, a.out_t, at, c, k);\n"
        "        }\n"
        "    }\n"},
};

static const struct be_krow_step rope_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED float cs[256], sn[256];\n"
        "    const kx_u half = hd / 2u, warps = kx_rope_warps(heads, half), row = kx_bx();\n"
        "    float u[8], v[8], f = 1.0f;\n"
        "    if (a.freq)\n"
        "        kx_rope_angles(cs, sn, a.pos, a.freq, row, half, warps * 32u);\n"
        "    kx_wait(); /* positions are nobody's work */\n"
        "    kx_sync();\n"
        "    for (kx_u h = kx_tid() / 32u; h < heads; h += warps) {\n"
        "        const unsigned long long at = ((unsigned long long)row * heads + h) * hd;\n"},
    {BE_KN_LOOP,
     ""},
    {BE_KN_LOAD_ACT,
        "        kx_head_ld(u, v, a.x, a.x_t, at, half);\n"},
    {BE_KN_REDUCE,
        "        if (a.w)\n"
        "            f = kx_inv_rms(kx_head_sq(u, v), hd, a.eps);\n"},
    {BE_KN_RMS_SCALE,
        "        if (a.w)\n"
        "            kx_head_scale(u, v, f, a.w, half);\n"},
    {BE_KN_ROPE,
        "        if (a.freq)\n"
        "            kx_head_turn(u, v, cs, sn, half);\n"},
    {BE_KN_STORE,
        "        kx_head_st(u, v, a.x, a.x_t, at, half);\n"
        "    }\n"},
};

static const struct be_krow_step kv_write_steps[] = {
    {BE_KN_GRID,
        "    const kx_u width = heads * hd, blocks = (width + 255u) / 256u, unit = kx_bx() * 4u + kx_tid() / 32u;\n"
        "    const kx_u row = unit / (2u * blocks), vs = unit % (2u * blocks) / blocks; /* 0 = keys, 1 = values */\n"
        "    const kx_u c = unit % blocks * 256u + kx_tid() % 32u * 8u;\n"
        "    struct kx_u2 q;\n"
        "    struct kx_place place;\n"
        "    float v[8], d = 0.0f;\n"
        "    int s;\n"
        "    if (row >= a.n)\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(v, vs ? a.v : a.k, a.x_t, (unsigned long long)row * width, c, width);\n"},
    {BE_KN_GATHER,
        "    place = kx_kv_place(&a, row);\n"},
    {BE_KN_QUANT_ACT,
        "    q.x = q.y = 0u;\n"
        "    if (a.kv.dtype == 8u)\n"
        "        kx_q8_0(v, &q, &d, &s);\n"},
    {BE_KN_STORE,
        "    kx_kv_st8(&a.kv, vs ? a.kv.v : a.kv.k, place, c, width, v, q, d);\n"},
};

static const struct be_krow_step rope_kv_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED float cs[256], sn[256];\n"
        "    const kx_u half = hd / 2u, all = heads + (a.v.x ? 2u : 1u) * kv_heads, warps = kx_rope_warps(all, half), row = kx_bx();\n"
        "    const kx_u width = kv_heads * hd, blocks = (width + 255u) / 256u;\n"
        "    float u[8], v[8], f = 1.0f;\n"
        "    if (a.q.freq)\n"
        "        kx_rope_angles(cs, sn, a.q.pos, a.q.freq, row, half, warps * 32u);\n"
        "    kx_wait(); /* positions are nobody's work */\n"
        "    kx_sync();\n"
        "    for (kx_u h = kx_tid() / 32u; h < all; h += warps) {\n"
        "        const int is_q = h < heads, is_v = h >= heads + kv_heads;\n"
        "        const kx_p x = is_q ? a.q.x : is_v ? a.v.x : a.k.x, w = is_q ? a.q.w : is_v ? a.v.w : a.k.w;\n"
        "        const kx_u x_t = is_q ? a.q.x_t : is_v ? a.v.x_t : a.k.x_t;\n"
        "        const unsigned long long at = (is_q ? (unsigned long long)row * heads + h : (unsigned long long)row * kv_heads + (h - heads - (is_v ? kv_heads : 0u))) * hd;\n"},
    {BE_KN_LOOP,
     ""},
    {BE_KN_LOAD_ACT,
        "        kx_head_ld(u, v, x, x_t, at, half);\n"},
    {BE_KN_REDUCE,
        "        if (w)\n"
        "            f = kx_inv_rms(kx_head_sq(u, v), hd, is_q ? a.q.eps : is_v ? a.v.eps : a.k.eps);\n"},
    {BE_KN_RMS_SCALE,
        "        if (w)\n"
        "            kx_head_scale(u, v, f, w, half);\n"},
    {BE_KN_ROPE,
        "        if (a.q.freq && !is_v)\n"
        "            kx_head_turn(u, v, cs, sn, half);\n"},
    {BE_KN_STORE,
        "        kx_head_st(u, v, x, x_t, at, half);\n"
        "    }\n"},
    {BE_KN_BARRIER,
        "    kx_sync();\n"},
    {BE_KN_LOAD_ACT,
        "    for (kx_u unit = kx_tid() / 32u; unit < 2u * blocks; unit += warps) {\n"
        "        const kx_u vs = unit / blocks, c = unit % blocks * 256u + kx_tid() % 32u * 8u;\n"
        "        struct kx_place place;\n"
        "        struct kx_u2 q;\n"
        "        float d = 0.0f;\n"
        "        int s;\n"
        "        kx_ld8(v, vs ? a.w.v : a.w.k, a.w.x_t, (unsigned long long)row * width, c, width);\n"},
    {BE_KN_GATHER,
        "        place = kx_kv_place(&a.w, row);\n"},
    {BE_KN_QUANT_ACT,
        "        q.x = q.y = 0u;\n"
        "        if (a.w.kv.dtype == 8u)\n"
        "            kx_q8_0(v, &q, &d, &s);\n"},
    {BE_KN_STORE,
        "        kx_kv_st8(&a.w.kv, vs ? a.w.kv.v : a.w.kv.k, place, c, width, v, q, d);\n"
        "    }\n"},
};

static const struct be_krow_step gather_steps[] = {
    {BE_KN_GRID,
        "    const kx_u row = kx_bx();\n"
        "    float v[8];\n"},
    {BE_KN_GATHER,
        "    for (kx_u c = kx_tid() * 8u; c < k; c += 2048u) {\n"
        "        kx_ld8(v, a.x, a.t, (unsigned long long)(kx_u)((const int *)a.rows)[row] * k, c, k);\n"},
    {BE_KN_STORE,
        "        kx_st8(v, a.out, a.t, (unsigned long long)row * k, c, k);\n"
        "    }\n"},
};

static const struct be_krow_step pool_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED float part[8][256];\n"
        "    const kx_u blocks = (k + 255u) / 256u, seq = kx_bx() / blocks, c0 = kx_bx() % blocks * 256u;\n"
        "    const kx_u lane8 = kx_tid() % 32u * 8u, slice = kx_tid() / 32u, c = c0 + kx_tid();\n"
        "    const kx_u r0 = ((const kx_u *)a.off)[seq], r1 = ((const kx_u *)a.off)[seq + 1u], t = r1 - r0;\n"
        "    const int is_max = a.kind == 1u, one = a.kind == 0u || a.kind == 5u;\n"
        "    float v[8], s[8], y;\n"
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        s[i] = is_max ? -kx_i2f_bits(0x7f800000) : 0.0f;\n"},
    {BE_KN_LOOP,
        "    for (kx_u r = r0 + slice; !one && r < r1; r += 8u) {\n"},
    {BE_KN_LOAD_ACT,
        "        kx_ld8(v, a.x, a.x_t, (unsigned long long)r * k, c0 + lane8, k);\n"
        "        KX_UNROLL\n"
        "        for (int i = 0; i < 8; i++) {\n"
        "            if (is_max)\n"
        "                s[i] = v[i] > s[i] ? v[i] : s[i];\n"
        "            else\n"
        "                s[i] = kx_fma(a.kind == 4u ? (float)(r - r0 + 1u) : 1.0f, v[i], s[i]);\n"
        "        }\n"
        "    }\n"},
    {BE_KN_REDUCE,
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        part[slice][lane8 + (kx_u)i] = s[i];\n"},
    {BE_KN_BARRIER,
        "    kx_sync();\n"},
    {BE_KN_POOL,
        "    if (c >= k)\n"
        "        return;\n"
        "    if (one)\n"
        "        y = kx_get(a.x, a.x_t, (unsigned long long)(a.kind == 0u ? r0 : r1 - 1u) * k + c);\n"
        "    else if (is_max) {\n"
        "        y = part[0][kx_tid()];\n"
        "        for (int i = 1; i < 8; i++)\n"
        "            y = part[i][kx_tid()] > y ? part[i][kx_tid()] : y;\n"
        "        v[0] = kx_get(a.x, a.x_t, (unsigned long long)r0 * k + c);\n"
        "        y = v[0] == v[0] ? y : v[0]; /* be_cpu: nothing is above a first NaN */\n"
        "    } else {\n"
        "        const float *p = &part[0][kx_tid()];\n"
        "        y = ((p[0] + p[1024]) + (p[512] + p[1536])) + ((p[256] + p[1280]) + (p[768] + p[1792]));\n"
        "        if (a.kind == 2u)\n"
        "            y = kx_div(y, (float)t);\n"
        "        else if (a.kind == 3u)\n"
        "            y = kx_div(y, kx_sqrt((float)t));\n"
        "        else\n"
        "            y = kx_div(y, (float)((unsigned long long)t * (t + 1ull) / 2ull));\n"
        "    }\n"},
    {BE_KN_STORE,
        "    kx_put(a.out, a.out_t, (unsigned long long)seq * k + c, y);\n"},
};

static const struct be_krow_step argmax_part_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED struct kx_best sh[32];\n"
        "    const kx_u row = kx_bx() / a.parts, part = kx_bx() % a.parts;\n"
        "    const kx_u span = ((k + a.parts - 1u) / a.parts + 7u) / 8u * 8u, lo = part * span;\n"
        "    const kx_u hi = lo >= k ? lo : k - lo < span ? k : lo + span;\n"
        "    struct kx_best b = kx_none();\n"
        "    float v[8];\n"},
    {BE_KN_LOOP,
        "    for (kx_u c = lo + kx_tid() * 8u; c < hi; c += 2048u) {\n"},
    {BE_KN_LOAD_ACT,
        "        kx_ld8(v, a.x, a.x_t, (unsigned long long)row * k, c, k);\n"},
    {BE_KN_ARGMAX,
        "        KX_UNROLL\n"
        "        for (kx_u i = 0; i < 8u; i++)\n"
        "            if (c + i < hi)\n"
        "                b = kx_better(b, v[i], (int)(c + i));\n"
        "    }\n"},
    {BE_KN_REDUCE,
        "    b = kx_block_best(b, sh, 8u);\n"},
    {BE_KN_STORE,
        "    if (kx_tid() == 0u)\n"
        "        ((struct kx_best *)a.part)[(unsigned long long)row * a.parts + part] = b;\n"},
};

static const struct be_krow_step argmax_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED struct kx_best sh[32];\n"
        "    const kx_u row = kx_bx();\n"
        "    struct kx_best b = kx_none();\n"
        "    (void)k;\n"},
    {BE_KN_LOOP,
        "    for (kx_u p = kx_tid(); p < a.parts; p += 256u) {\n"},
    {BE_KN_LOAD_ACT,
        "        const struct kx_best o = ((const struct kx_best *)a.part)[(unsigned long long)row * a.parts + p];\n"},
    {BE_KN_ARGMAX,
        "        b = kx_better(b, o.v, o.i);\n"
        "    }\n"},
    {BE_KN_REDUCE,
        "    b = kx_block_best(b, sh, 8u);\n"},
    {BE_KN_STORE,
        "    if (kx_tid() == 0u)\n"
        "        ((int *)a.out)[row] = b.i == 0x7fffffff ? 0 : b.i;\n"},
};

static const struct be_krow_step softcap_steps[] = {
    {BE_KN_GRID,
        "    const unsigned long long all = (unsigned long long)a.n * k, at = ((unsigned long long)kx_bx() * 128u + kx_tid()) * 8u;\n"
        "    const kx_u left = at >= all ? 0u : all - at < 8u ? (kx_u)(all - at) : 8u;\n"
        "    float v[8];\n"
        "    if (left == 0u)\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(v, a.x, a.t, at, 0u, left);\n"},
    {BE_KN_SOFTCAP,
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        v[i] = a.cap * kx_tanh(kx_div(v[i], a.cap));\n"},
    {BE_KN_STORE,
        "    kx_st8(v, a.x, a.t, at, 0u, left);\n"},
};

static const struct be_krow_step scale_steps[] = {
    {BE_KN_GRID,
        "    const kx_u each = (k + 7u) / 8u, unit = kx_bx() * 128u + kx_tid(), row = unit / each, c = unit % each * 8u;\n"
        "    const unsigned long long at = (unsigned long long)row * k, from = (unsigned long long)row * a.y_k + a.y_col;\n"
        "    float v[8], y[8];\n"
        "    if (row >= a.n)\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(v, a.x, a.x_t, at, c, k);\n"},
    {BE_KN_LOAD_ACT,
        "    if (a.y == 0u || (a.y_k | a.y_col) % 8u != 0u) { /* nothing to read, or not at whole eights */\n"
        "        KX_UNROLL\n"
        "        for (kx_u i = 0; i < 8u; i++)\n"
        "            y[i] = a.y != 0u && c + i < k ? kx_get(a.y, a.y_t, from + c + i) : 1.0f;\n"
        "    } else\n"
        "        kx_ld8(y, a.y, a.y_t, from, c, k);\n"},
    {BE_KN_SCALE,
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        y[i] = a.scale * y[i];\n"},
    {BE_KN_MUL,
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        v[i] = v[i] * y[i];\n"},
    {BE_KN_STORE,
        "    kx_st8(v, a.x, a.x_t, at, c, k);\n"},
};

static const struct be_krow_step sample_part_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED struct kx_best s[4096], shb[32];\n"
        "    KX_SHARED float part[2][32];\n"
        "    const kx_u pieces = KX_SAMPLE_PIECES(k), span = KX_SAMPLE_SPAN(k), list = KX_SAMPLE_LIST(k);\n"
        "    const kx_u row = kx_bx() / pieces, piece = kx_bx() % pieces, lo = piece * span, m = k - lo < span ? k - lo : span;\n"
        "    struct kx_best b = kx_none();\n"
        "    float w = 0.0f, bad = 0.0f;\n"
        "    if (k <= KX_SAMPLE_COLS) {\n"
        "        const struct kx_sample_row r = ((const struct kx_sample_row *)a.rows)[row];\n"
        "        const int kind = kx_sample_kind(r, k);\n"},
    {BE_KN_LOOP,
        "        for (kx_u i = kx_tid(); i < span; i += 512u) {\n"
        "            struct kx_best e = kx_none();\n"},
    {BE_KN_LOAD_ACT,
        "            if (i < m) {\n"
        "                e.v = kx_get(a.x, a.x_t, (unsigned long long)row * k + lo + i);\n"
        "                e.i = (int)(lo + i);\n"
        "                bad = kx_abs(e.v) <= KX_FLT_MAX ? bad : 1.0f;\n"
        "            }\n"
        "            s[i] = e;\n"},
    {BE_KN_ARGMAX,
        "            b = kx_better(b, e.v, e.i);\n"
        "        }\n"},
    {BE_KN_REDUCE,
        "        b = kx_block_best(b, shb, 16u);\n"
        "        bad = kx_block_sum(bad, part[0], 16u);\n"},
    {BE_KN_SAMPLE,
        "        if (kind == 2 || kind == 3)\n"
        "            for (kx_u i = kx_tid(); i < m; i += 512u)\n"
        "                w = w + kx_weight(s[i].v, b.v, r.inv_temperature);\n"
        "        w = kx_block_sum(w, part[1], 16u);\n"
        "        if (bad == 0.0f && (kind == 1 || kind == 2)) {\n"
        "            struct kx_best *to = (struct kx_best *)kx_list(&a, row, piece, k);\n"
        "            kx_sort(s, span, 512u, 0);\n"
        "            for (kx_u i = kx_tid(); i < list; i += 512u)\n"
        "                to[i] = s[i];\n"
        "        }\n"},
    {BE_KN_STORE,
        "        if (kx_tid() == 0u) {\n"
        "            struct kx_piece *h = (struct kx_piece *)((unsigned char *)a.scratch + (unsigned long long)row * a.scratch_row) + piece;\n"
        "            h->max = b.v;\n"
        "            h->arg = b.i;\n"
        "            h->sum = bad == 0.0f ? w : 0.0f;\n"
        "            h->bad = bad == 0.0f ? 0u : 1u;\n"
        "        }\n"
        "    }\n"},
};

static const struct be_krow_step sample_steps[] = {
    {BE_KN_GRID,
        "    KX_SHARED struct kx_best s[4096], shb[32];\n"
        "    KX_SHARED double sum[1024];\n"
        "    KX_SHARED int sh[32];\n"
        "    const kx_u row = kx_bx(), pieces = k <= KX_SAMPLE_COLS ? KX_SAMPLE_PIECES(k) : 0u;\n"
        "    const struct kx_sample_row r = ((const struct kx_sample_row *)a.rows)[row];\n"
        "    const struct kx_piece *h = (const struct kx_piece *)((const unsigned char *)a.scratch + (unsigned long long)row * a.scratch_row);\n"
        "    const int kind = pieces == 0u ? 4 : kx_sample_kind(r, k);\n"
        "    struct kx_best b = kx_none();\n"
        "    int bad = 0, id = -1;\n"},
    {BE_KN_LOOP,
        "    for (kx_u p = kx_tid(); p < pieces; p += 1024u) {\n"},
    {BE_KN_LOAD_ACT,
        "        const struct kx_piece o = h[p];\n"
        "        bad = o.bad ? 1 : bad;\n"},
    {BE_KN_ARGMAX,
        "        b = kx_better(b, o.max, o.arg);\n"
        "    }\n"},
    {BE_KN_REDUCE,
        "    b = kx_block_best(b, shb, 32u);\n"
        "    bad = kx_block_min(-bad, sh);\n"},
    {BE_KN_SAMPLE,
        "    if (!bad && kind == 0)\n"
        "        id = b.i;\n"
        "    else if (!bad && kind == 3)\n"
        "        id = kx_draw_all(&a, row, k, r, h, b.v, sum, sh);\n"
        "    else if (!bad && kind != 4) {\n"
        "        double total = 0.0;\n"
        "        if (kind == 2) {\n"
        "            if (kx_tid() < pieces)\n"
        "                sum[kx_tid()] = (double)(h[kx_tid()].sum * kx_weight(h[kx_tid()].max, b.v, r.inv_temperature));\n"
        "            kx_scan(sum, pieces);\n"
        "            total = sum[pieces - 1u];\n"
        "            kx_sync();\n"
        "        }\n"
        "        id = kx_draw_few(&a, row, k, r, kind, b.v, total, s, sum, sh, shb);\n"
        "    }\n"},
    {BE_KN_STORE,
        "    if (kx_tid() == 0u)\n"
        "        ((int *)a.out)[row] = id;\n"},
};

static const struct be_krow_step convert_steps[] = {
    {BE_KN_GRID,
        "    const unsigned long long at = ((unsigned long long)kx_bx() * 128u + kx_tid()) * 8u;\n"
        "    const kx_u left = at >= a.n ? 0u : a.n - at < 8u ? (kx_u)(a.n - at) : 8u;\n"
        "    float v[8];\n"
        "    if (left == 0u)\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(v, a.src, a.from_t, at, 0u, left);\n"},
    {BE_KN_STORE,
        "    kx_st8(v, a.dst, a.to_t, at, 0u, left);\n"},
};

static const struct be_krow_step mul_steps[] = {
    {BE_KN_GRID,
        "    const unsigned long long at = ((unsigned long long)kx_bx() * 128u + kx_tid()) * 8u;\n"
        "    const kx_u left = at >= a.n ? 0u : a.n - at < 8u ? (kx_u)(a.n - at) : 8u;\n"
        "    float v[8], w[8];\n"
        "    if (left == 0u)\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(v, a.x, a.x_t, at, 0u, left);\n"},
    {BE_KN_LOAD_ACT,
        "    kx_ld8(w, a.y, a.y_t, at, 0u, left);\n"},
    {BE_KN_MUL,
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        v[i] = v[i] * w[i];\n"},
    {BE_KN_STORE,
        "    kx_st8(v, a.out, a.out_t, at, 0u, left);\n"},
};

static const struct be_krow_step embed_steps[] = {
    {BE_KN_GRID,
        "    const kx_u blocks = (k + 255u) / 256u, unit = kx_bx() * 4u + kx_tid() / 32u;\n"
        "    const kx_u row = unit / blocks, c = unit % blocks * 256u + kx_tid() % 32u * 8u;\n"
        "    const unsigned long long at = (unsigned long long)row * k;\n"
        "    float v[8], o[8];\n"
        "    kx_u id;\n"
        "    if (row >= a.n || c >= k)\n"
        "        return;\n"},
    {BE_KN_LOAD_BLOCK,
        "    id = (kx_u)((const int *)a.ids)[row];\n"},
    {BE_KN_DEQUANT,
     ""},
    {BE_KN_SCALE,
        "    KX_UNROLL\n"
        "    for (int i = 0; i < 8; i++)\n"
        "        v[i] = a.scale * v[i];\n"},
    {BE_KN_ADD_RES,
        "    if (a.accumulate) {\n"
        "        kx_ld8(o, a.out, a.out_t, at, c, k);\n"
        "        KX_UNROLL\n"
        "        for (int i = 0; i < 8; i++)\n"
        "            v[i] = o[i] + v[i];\n"
        "    }\n"},
    {BE_KN_STORE,
        "    kx_st8(v, a.out, a.out_t, at, c, k);\n"},
};

/* clang-format on */

#endif
