/* be_kref_repack.c - the file's blocks to the planes of be_klayout.c, on the CPU.
 *
 * Offsets of fields within a block: engine.md 2.3. Exact; pads planes with zeros.
 * Tests: tests/backends/test_be_klinear.c
 */
#include "be_klinear.h"

#include "be_kref.h"

struct dst {
    uint8_t *p[4];
    struct be_klayout lay;
};

/* Where the fields of a 32-value block are; 0 = none. */
static void block_32(const struct be_klin_fmt *f, const uint8_t *b, uint32_t i, const struct dst *d)
{
    unsigned n_d = f->min ? 4 : 2, qh = f->bits_bytes ? n_d : 0, qs = n_d + f->bits_bytes;

    memcpy(d->p[1] + (size_t)i * n_d, b, n_d);
    memcpy(d->p[0] + (size_t)i * f->code_bytes, b + qs, f->code_bytes);
    if (qh) {
        uint32_t word = 0;

        for (unsigned v = 0; v < 32; v++)
            word |= (uint32_t)(b[qh + v / 8] >> v % 8 & 1) << (8 * (v % 4) + v / 4);
        memcpy(d->p[2] + (size_t)i * 4, &word, 4);
    }
}

/* Packs 32 low nibbles. */
static void nibbles(const int *q, uint8_t *out)
{
    for (unsigned i = 0; i < 16; i++)
        out[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void q45_k(const struct be_klin_fmt *f, const uint8_t *b, uint32_t i, const struct dst *d)
{
    const uint8_t *s = b + 4, *qh = b + 16, *qs = f->bits_bytes ? b + 48 : b + 16;
    uint8_t *sub = d->p[2] + (size_t)i * 16;

    memcpy(d->p[1] + (size_t)i * 4, b, 4);
    for (unsigned j = 0; j < 8; j++) {
        uint32_t word = 0;
        int q[32];

        sub[2 * j] = j < 4 ? s[j] & 63 : (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        sub[2 * j + 1] = j < 4 ? s[j + 4] & 63 : (uint8_t)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
        for (unsigned v = 0; v < 32; v++) {
            q[v] = j % 2 ? qs[j / 2 * 32 + v] >> 4 : qs[j / 2 * 32 + v] & 15;
            word |= (uint32_t)(qh[v] >> j & 1) << (8 * (v % 4) + v / 4);
        }
        nibbles(q, d->p[0] + ((size_t)i * 8 + j) * 16);
        if (f->bits_bytes)
            memcpy(d->p[3] + ((size_t)i * 8 + j) * 4, &word, 4);
    }
}

static void q6_k(const uint8_t *b, uint32_t i, const struct dst *d)
{
    memcpy(d->p[1] + (size_t)i * 2, b + 208, 2);
    memcpy(d->p[2] + (size_t)i * 16, b + 192, 16);
    for (unsigned j = 0; j < 8; j++) {
        uint32_t word[2] = {0, 0};
        unsigned half = j / 4, s = j % 4;
        int q[32];

        for (unsigned v = 0; v < 32; v++) {
            unsigned lo = b[64 * half + 32 * (s & 1) + v], hi = b[128 + 32 * half + v] >> 2 * s & 3;

            q[v] = (int)(s < 2 ? lo & 15 : lo >> 4);
            word[v / 16] |= hi << (8 * (v % 4) + 2 * (v % 16 / 4));
        }
        nibbles(q, d->p[0] + ((size_t)i * 8 + j) * 16);
        memcpy(d->p[3] + ((size_t)i * 8 + j) * 8, word, 8);
    }
}

enum rc be_klin_repack(const struct be_klin_fmt *f, const void *args, struct rc_err *err)
{
    const struct kx_repack *a = args;
    uint32_t bs = be_dtype_block(f->dtype), bytes = be_dtype_block_bytes(f->dtype);
    struct dst d;

    if (!be_klayout_get(f->dtype, a->k, &d.lay))
        return rc_fail(err, RC_INVALID, "repacking %s: no layout for %u columns",
                       be_dtype_name(f->dtype), a->k);
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const uint8_t *src = KX_AT(const uint8_t, a->src) + (size_t)r * (a->k / bs) * bytes;

        for (uint32_t i = 0; i < d.lay.n_planes; i++) {
            d.p[i] = KX_AT(uint8_t, a->dst[i]) + ((size_t)a->row0 + r) * d.lay.row_bytes[i];
            memset(d.p[i], 0, d.lay.row_bytes[i]);
        }
        for (uint32_t b = 0; b < a->k / bs; b++, src += bytes) {
            if (f->cls == BE_KLC_32)
                block_32(f, src, b, &d);
            else if (f->dtype == BE_Q6_K)
                q6_k(src, b, &d);
            else
                q45_k(f, src, b, &d);
        }
    }
    return RC_OK;
}
