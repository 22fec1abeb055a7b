/* kx_tower_args.h - the argument structs of the kernels of eyes and ears (be_kfam_tower.c).
 *
 * As be_kargs.h, which stands in front of it: plain C, CUDA C and Metal at once. Only library
 * "tower" carries this text, so a change here makes no other library stale. Meaning of the
 * fields: be.h.
 */
#ifndef INFERD_KX_TOWER_ARGS_H
#define INFERD_KX_TOWER_ARGS_H

struct kx_act { /* out = f(x), or add + f(x), of k columns; add 0 = none; out may be x or add */
    kx_p x, add, out;
    kx_u n, k, x_t, add_t, out_t, kind; /* kind: enum be_act_kind */
    float lo, hi;
};
struct kx_glu { /* x [n, 2 k], out [n, k] */
    kx_p x, out;
    kx_u n, k, x_t, out_t;
};
struct kx_affine { /* x [n, k] in place; sub, mul f32 [k] */
    kx_p x, sub, mul;
    kx_u n, k, x_t, pad;
};
struct kx_rope2d {        /* x [n, n_heads, head_dim] in place */
    kx_p x, pos_x, pos_y; /* positions int32 [n] */
    kx_p freq;            /* f64 [head_dim / 4], as kx_rope has it for a head of head_dim / 2 */
    kx_u n, n_heads, head_dim, x_t;
};
/* n windows of k = k_h * k_w * n_ch values from window 0 of line `line` on, n_x to a line; out
 * is the place of the first */
struct kx_unfold {
    kx_p x, out;
    kx_u n, k, x_t, out_t;
    kx_u width, height, n_ch, x_line;
    kx_u k_h, k_w, stride_h, stride_w, pad_h, pad_w;
    kx_u ch_first, line, n_x, pad;
};
struct kx_conv1d { /* x, out [n, k]; w f32 [k, taps] */
    kx_p x, w, out;
    kx_u n, k, taps, x_t, out_t, pad;
};
#define KX_LOCAL_KEYS 64u
/* q, k, v, out [n, n_heads, head_dim], rel [n_keys, n_heads, head_dim], q_scale f32 [head_dim].
 * x_t: of q, k and v. n_keys <= KX_LOCAL_KEYS, head_dim <= KX_ROPE_HEAD. */
struct kx_attn_local {
    kx_p q, k, v, rel, q_scale, out;
    kx_u n, n_heads, head_dim, n_keys, x_t, rel_t, out_t;
    float k_scale, cap;
    kx_u pad;
};

#endif
