/* be_kref_embed.c - the CPU executor of the embedding kernels: elements of a weight in
 * planes (be_klayout.c), with the values of be_dtype_to_f32.
 *
 * Tests: tests/backends/test_be_krows.c (against be_dtype_to_f32 of the file's blocks)
 */
#include "be_kref_rows.h"

#include "be_kref.h"

/* One row of the matrix. */
struct planes {
    const uint8_t *p[4];
};

static unsigned nibble(const uint8_t *p, uint32_t c)
{
    uint8_t b = p[c / 32 * 16 + c % 16];

    return c % 32 < 16 ? b & 15u : b >> 4;
}

static unsigned fifth(const uint8_t *p, uint32_t c)
{
    uint32_t w;

    memcpy(&w, p + c / 32 * 4, 4);
    return w >> (8 * (c % 4) + c % 32 / 4) & 1u;
}

static unsigned high_two(const uint8_t *p, uint32_t c)
{
    uint32_t w;

    memcpy(&w, p + c / 16 * 4, 4);
    return w >> (8 * (c % 4) + c % 16 / 4 * 2) & 3u;
}

static float half_at(const uint8_t *p, uint32_t i)
{
    return be_load_half(p + 2 * (size_t)i);
}

static float value(enum be_dtype t, const struct planes *w, uint32_t c)
{
    const uint8_t *const *p = w->p;
    float f, d;

    switch (t) {
    case BE_F32:
        memcpy(&f, p[0] + 4 * (size_t)c, 4);
        return f;
    case BE_F16:
        return half_at(p[0], c);
    case BE_BF16:
        return be_bf16_to_f32(be_load_u16(p[0] + 2 * (size_t)c));
    case BE_Q4_0:
        return half_at(p[1], c / 32) * (float)((int)nibble(p[0], c) - 8);
    case BE_Q4_1:
        return half_at(p[1], c / 32 * 2) * (float)nibble(p[0], c) + half_at(p[1], c / 32 * 2 + 1);
    case BE_Q5_0:
        return half_at(p[1], c / 32) * (float)((int)(nibble(p[0], c) | fifth(p[2], c) << 4) - 16);
    case BE_Q5_1:
        return half_at(p[1], c / 32 * 2) * (float)(nibble(p[0], c) | fifth(p[2], c) << 4) +
               half_at(p[1], c / 32 * 2 + 1);
    case BE_Q8_0:
        return half_at(p[1], c / 32) * (float)(int8_t)p[0][c];
    case BE_Q4_K:
    case BE_Q5_K:
        d = half_at(p[1], c / 256 * 2) * (float)p[2][c / 32 * 2];
        f = half_at(p[1], c / 256 * 2 + 1) * (float)p[2][c / 32 * 2 + 1];
        return d * (float)(nibble(p[0], c) | (t == BE_Q5_K ? fifth(p[3], c) << 4 : 0)) - f;
    case BE_Q6_K:
        d = half_at(p[1], c / 256) * (float)(int8_t)p[2][c / 16];
        return d * (float)((int)(nibble(p[0], c) | high_two(p[3], c) << 4) - 32);
    }
    return 0;
}

enum rc be_krow_ref_embed(const struct be_kir *k, const struct kx_embed *a, struct rc_err *err)
{
    enum be_dtype t = (enum be_dtype)k->desc.wfmt;
    struct be_klayout l;

    if (!be_klayout_get(t, a->k, &l))
        return rc_fail(err, RC_INVALID,
                       "embed: rows of %u columns of %s, expected a multiple of %u", a->k,
                       be_dtype_name((uint32_t)t), be_dtype_block(t));
    for (uint32_t r = 0; r < a->n; r++) {
        uint64_t id = (uint32_t)KX_AT(const int32_t, a->ids)[r];
        struct planes w;

        for (unsigned i = 0; i < 4; i++)
            w.p[i] = i < l.n_planes ? KX_AT(const uint8_t, a->w[i]) + id * l.row_bytes[i] : NULL;
        for (uint32_t c = 0; c < a->k; c++) {
            uint64_t at = (uint64_t)r * a->k + c;
            float v = a->scale * value(t, &w, c);

            kx_act_put(a->out, a->out_t, at,
                       a->accumulate ? kx_act_get(a->out, a->out_t, at) + v : v);
        }
    }
    return RC_OK;
}
