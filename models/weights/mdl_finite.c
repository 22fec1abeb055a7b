/* mdl_finite.c - are a tensor's scales finite?
 *
 * One Inf or NaN scale turns every answer into NaN, far from its cause; it is
 * refused here by name. Reads only scale bytes of quantized blocks, and every
 * value of float tensors, eight bytes a step: a sum of masked exponents carries
 * into the lane's sign bit exactly when the exponent is not all ones.
 * Tests: tests/models/test_mdl_file.c
 */
#include "mdl_file_impl.h"

#define F16_EXP 0x7C00u
#define BF16_EXP 0x7F80u

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return v;
}

static bool bad16(const uint8_t *p, uint32_t exp_mask)
{
    uint16_t v;

    memcpy(&v, p, 2);
    return (v & exp_mask) == exp_mask;
}

static bool bad32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, 4);
    return (v & 0x7F800000u) == 0x7F800000u;
}

/* Blocks of 32 bytes without a branch; then the place is looked for slowly. */
static bool all16(const uint8_t *p, uint64_t n, uint32_t exp_mask, uint64_t *bad)
{
    const uint64_t lanes = 0x0001000100010001ull, exps = exp_mask * lanes;
    const uint64_t top = 0x8000 * lanes, low = 0x7FFF * lanes;
    uint64_t i = 0;

    for (; i + 16 <= n; i += 16) {
        const uint8_t *q = p + 2 * i;
        uint64_t ok = ((~load64(q) & exps) + low) & ((~load64(q + 8) & exps) + low) &
                      ((~load64(q + 16) & exps) + low) & ((~load64(q + 24) & exps) + low);
        if ((ok & top) != top)
            break;
    }
    for (; i < n; i++)
        if (bad16(p + 2 * i, exp_mask)) {
            *bad = i;
            return false;
        }
    return true;
}

static bool all32(const uint8_t *p, uint64_t n, uint64_t *bad)
{
    const uint64_t exps = 0x7F8000007F800000ull, top = 0x8000000080000000ull;
    const uint64_t low = 0x7FFFFFFF7FFFFFFFull;
    uint64_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const uint8_t *q = p + 4 * i;
        uint64_t ok = ((~load64(q) & exps) + low) & ((~load64(q + 8) & exps) + low) &
                      ((~load64(q + 16) & exps) + low) & ((~load64(q + 24) & exps) + low);
        if ((ok & top) != top)
            break;
    }
    for (; i < n; i++)
        if (bad32(p + 4 * i)) {
            *bad = i;
            return false;
        }
    return true;
}

/* Where the half-precision scales of a block are; second 0xFFFF = none. */
static const struct {
    enum be_dtype t;
    uint16_t first, second;
} scale_at[] = {
    {BE_Q4_0, 0, 0xFFFF}, {BE_Q4_1, 0, 2}, {BE_Q5_0, 0, 0xFFFF}, {BE_Q5_1, 0, 2},
    {BE_Q8_0, 0, 0xFFFF}, {BE_Q4_K, 0, 2}, {BE_Q5_K, 0, 2},      {BE_Q6_K, 208, 0xFFFF},
};

bool mdl_finite(enum be_dtype t, const void *data, uint64_t n_bytes, uint64_t *bad_idx)
{
    const uint8_t *p = data;
    const struct mdl_dtype_row *row = mdl_dtype_row(t);

    if (t == BE_F32)
        return all32(p, n_bytes / 4, bad_idx);
    if (t == BE_F16)
        return all16(p, n_bytes / 2, F16_EXP, bad_idx);
    if (t == BE_BF16)
        return all16(p, n_bytes / 2, BF16_EXP, bad_idx);
    for (size_t k = 0; row && k < sizeof(scale_at) / sizeof(scale_at[0]); k++) {
        if (scale_at[k].t != t)
            continue;
        const uint8_t *a = p + scale_at[k].first;
        const uint8_t *b =
            p + (scale_at[k].second == 0xFFFF ? scale_at[k].first : scale_at[k].second);
        uint64_t n = n_bytes / row->bytes;
        for (uint64_t i = 0; i < n; i++, a += row->bytes, b += row->bytes)
            if (bad16(a, F16_EXP) || bad16(b, F16_EXP)) {
                *bad_idx = i;
                return false;
            }
        return true;
    }
    *bad_idx = 0;
    return false; /* a type without a row here is never called finite */
}
