/* be_dtype.c - the element types: names, block sizes, exact values.
 *
 * be_dtype_to_f32 is the oracle of every faster path: plain C, evaluated left to
 * right in f32 without contraction, from the layouts of engine.md 2.3. It knows
 * nothing of devices. Sizes come from files, so products are checked.
 * Tests: tests/backends/test_be_dtype.c
 */
#include "be.h"

#include "be_half.h"

struct row {
    enum be_dtype id;
    const char *name;
    uint32_t block, bytes;
};

static const struct row rows[] = {
#define X(name, id, n, b) {BE_##name, #name, n, b},
    BE_DTYPE_MAP(X)
#undef X
};

static const struct row *find(uint32_t id)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if ((uint32_t)rows[i].id == id)
            return &rows[i];
    return NULL;
}

bool be_dtype_known(uint32_t id)
{
    return find(id) != NULL;
}

const char *be_dtype_name(uint32_t id)
{
    const struct row *r = find(id);

    return r ? r->name : "unknown";
}

uint32_t be_dtype_block(enum be_dtype t)
{
    const struct row *r = find((uint32_t)t);

    return r ? r->block : 0;
}

uint32_t be_dtype_block_bytes(enum be_dtype t)
{
    const struct row *r = find((uint32_t)t);

    return r ? r->bytes : 0;
}

bool be_dtype_bytes(enum be_dtype t, uint64_t n_rows, uint64_t n_cols, uint64_t *out_bytes)
{
    const struct row *r = find((uint32_t)t);
    uint64_t row_bytes, all;

    if (!r || n_cols % r->block != 0)
        return false;
    if (__builtin_mul_overflow(n_cols / r->block, (uint64_t)r->bytes, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, n_rows, &all))
        return false;
    *out_bytes = all;
    return true;
}

static unsigned nib(const uint8_t *qs, unsigned i)
{
    return i < 16 ? qs[i] & 15u : qs[i - 16] >> 4;
}

static void block_q4_0(const uint8_t *b, float *x)
{
    float d = be_load_half(b);

    for (unsigned i = 0; i < 32; i++)
        x[i] = d * (float)((int)nib(b + 2, i) - 8);
}

static void block_q4_1(const uint8_t *b, float *x)
{
    float d = be_load_half(b), m = be_load_half(b + 2);

    for (unsigned i = 0; i < 32; i++)
        x[i] = d * (float)nib(b + 4, i) + m;
}

static void block_q5_0(const uint8_t *b, float *x)
{
    float d = be_load_half(b);

    for (unsigned i = 0; i < 32; i++) {
        unsigned q = nib(b + 6, i) | ((b[2 + i / 8] >> (i % 8)) & 1u) << 4;

        x[i] = d * (float)((int)q - 16);
    }
}

static void block_q5_1(const uint8_t *b, float *x)
{
    float d = be_load_half(b), m = be_load_half(b + 2);

    for (unsigned i = 0; i < 32; i++) {
        unsigned q = nib(b + 8, i) | ((b[4 + i / 8] >> (i % 8)) & 1u) << 4;

        x[i] = d * (float)q + m;
    }
}

static void block_q8_0(const uint8_t *b, float *x)
{
    float d = be_load_half(b);

    for (unsigned i = 0; i < 32; i++)
        x[i] = d * (float)(int8_t)b[2 + i];
}

/* 6-bit scale and min number j of a Q4_K/Q5_K block. */
static void scale_min(const uint8_t *s, unsigned j, unsigned *sc, unsigned *m)
{
    if (j < 4) {
        *sc = s[j] & 63u;
        *m = s[j + 4] & 63u;
    } else {
        *sc = (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
        *m = (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
    }
}

static void block_q45_k(const uint8_t *b, float *x, bool five)
{
    float d = be_load_half(b), dmin = be_load_half(b + 2);
    const uint8_t *qh = b + 16, *qs = five ? b + 48 : b + 16;

    for (unsigned i = 0; i < 256; i++) {
        unsigned v = qs[32 * (i / 64) + i % 32], q = i % 64 < 32 ? v & 15u : v >> 4, sc, m;

        if (five)
            q += 16u * ((qh[i % 32] >> (i / 32)) & 1u);
        scale_min(b + 4, i / 32, &sc, &m);
        x[i] = d * (float)sc * (float)q - dmin * (float)m;
    }
}

static void block_q4_k(const uint8_t *b, float *x)
{
    block_q45_k(b, x, false);
}

static void block_q5_k(const uint8_t *b, float *x)
{
    block_q45_k(b, x, true);
}

static void block_q6_k(const uint8_t *b, float *x)
{
    float d = be_load_half(b + 208);

    for (unsigned i = 0; i < 256; i++) {
        unsigned half = i / 128, s = (i % 128) / 32, l = i % 32;
        unsigned v = b[64 * half + 32 * (s & 1) + l], lo = s < 2 ? v & 15u : v >> 4;
        unsigned hi = (b[128 + 32 * half + l] >> (2 * s)) & 3u;

        x[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((int)(lo | hi << 4) - 32);
    }
}

void be_dtype_to_f32(enum be_dtype t, const void *src, float *dst, size_t n)
{
    const uint8_t *b = src;
    void (*block)(const uint8_t *, float *) = NULL;

    switch (t) {
    case BE_F32:
        if (n > 0)
            memcpy(dst, src, n * sizeof(float));
        return;
    case BE_F16:
        for (size_t i = 0; i < n; i++)
            dst[i] = be_load_half(b + 2 * i);
        return;
    case BE_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = be_bf16_to_f32(be_load_u16(b + 2 * i));
        return;
    case BE_Q4_0:
        block = block_q4_0;
        break;
    case BE_Q4_1:
        block = block_q4_1;
        break;
    case BE_Q5_0:
        block = block_q5_0;
        break;
    case BE_Q5_1:
        block = block_q5_1;
        break;
    case BE_Q8_0:
        block = block_q8_0;
        break;
    case BE_Q4_K:
        block = block_q4_k;
        break;
    case BE_Q5_K:
        block = block_q5_k;
        break;
    case BE_Q6_K:
        block = block_q6_k;
        break;
    }
    if (!block)
        return;
    for (size_t i = 0; i < n / be_dtype_block(t); i++, b += be_dtype_block_bytes(t))
        block(b, dst + i * be_dtype_block(t));
}
