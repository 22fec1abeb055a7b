/* kx_tower.h - what one value of eyes and ears is, wherever it is computed.
 *
 * As kx_math.h, which stands in front of it: the same text in library "tower" and in the CPU
 * executor (be_kref_tower.c), so that both have the same bits. Nothing here reads memory.
 */
/* x / (1 + e^-g) */
KX_DEV float kx_gate(float x, float g)
{
    return kx_div(x, 1.0f + kx_exp(-g));
}

/* kind: enum be_act_kind. NaN stays NaN: no comparison holds for it. */
KX_DEV float kx_act1(kx_u kind, float x, float lo, float hi)
{
    if (kind == 0u)
        return x < 0.0f ? 0.0f : x;
    if (kind == 1u)
        return kx_gate(x, x);
    if (kind == 2u)
        return kx_gelu_tanh(x);
    return x < lo ? lo : x > hi ? hi : x;
}

/* A score of attention over the last rows, from its two products. */
KX_DEV float kx_local_score(float by_key, float by_place, float k_scale, float cap)
{
    return cap * kx_tanh(kx_div(kx_fma(by_key, k_scale, by_place), cap));
}
