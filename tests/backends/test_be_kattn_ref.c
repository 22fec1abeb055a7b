/* The executor of the attention kernels: against f64 at many lengths, long contexts, and
 * its splits against its single pass; a row without keys; misuse. */
#include "kattn_rig.h"

#include "be_kref.h"
#include "kx_attn_math.h"

static void check(uint32_t hd, uint32_t heads, uint32_t kv_heads, enum be_dtype kv, uint32_t len,
                  uint32_t rows, uint32_t window)
{
    bool fixed = hd == 64 || hd == 128 || hd == 256 || hd == 512;
    char lib[16];
    struct rig r;
    void *pass, *split;

    snprintf(lib, sizeof(lib), fixed ? "d%u" : "any", hd);
    rig_init(&r, hd, heads, kv_heads, kv, 16, window, 1, &len, &rows);
    pass = rig_run(&r, RIG_CPU, lib, false, 0, 0);
    split = rig_run(&r, RIG_CPU, lib, true, len % 3, 0);
    rig_check(&r, lib, pass, kv == BE_F32 ? 2e-6 : 2e-3);
    rig_same(&r, "one pass, splits", pass, split);
    free(pass);
    free(split);
    rig_deinit(&r);
}

static void lengths(void **state)
{
    static const uint32_t lens[] = {1, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025};
    static const uint32_t rows[] = {1, 2, 5, 17, 64, 65};
    static const uint32_t dims[] = {64, 128, 256, 512, 16, 80};
    static const enum be_dtype kinds[] = {BE_F32, BE_F16, BE_Q8_0};
    static const uint32_t windows[] = {0, 1, 33, 255, 256, 257, 600};
    unsigned n = 0;

    for (size_t l = 0; l < sizeof(lens) / sizeof(lens[0]); l++)
        for (size_t q = 0; q < sizeof(rows) / sizeof(rows[0]); q++, n++) {
            uint32_t hd = dims[n % 6], group = 1u << n % 4;
            enum be_dtype kv = kinds[n % 3];

            if (rows[q] > lens[l] || (kv == BE_Q8_0 && hd % 32))
                continue;
            /* whole tiles of long rows take a while in plain C */
            check(hd, rows[q] > 16 ? 1 : group, 1, kv, lens[l], rows[q], windows[n % 7]);
        }
}

static void long_contexts(void **state)
{
    check(64, 2, 1, BE_F16, 2003, 5, 0);
    check(128, 1, 1, BE_F32, 4095, 2, 0);
    check(64, 1, 1, BE_Q8_0, 8191, 1, 0);
    check(64, 1, 1, BE_F16, 32768, 1, 0);
    check(256, 1, 1, BE_F16, 32768, 1, 512);
}

/* kx_attn_math.h has an e^x of its own for what cannot be positive. */
static void exp_of_negatives_has_the_bits_of_exp(void **state)
{
    for (uint32_t u = 0x80000000u; u <= 0xFF800000u; u += 97) {
        float x = be_bits_to_f32(u), a = kx_at_exp(x), b = kx_exp(x);

        if (memcmp(&a, &b, sizeof(a)) != 0)
            fail_msg("e^%a is %a, expected %a", (double)x, (double)a, (double)b);
    }
    assert_true(isnan(kx_at_exp(NAN)) && kx_at_exp(-INFINITY) == 0 && kx_at_exp(0) == 1);
}

/* No position sees nothing, but a draft that is rolled back may leave a row of a part array
 * empty: zeros then, never NaN. */
static void nothing_seen_is_zero(void **state)
{
    float m[4], l[4] = {0}, a[4 * 8], out[2 * 8];
    struct kx_attn k = {.kv = {.head_dim = 8, .n_kv_heads = 1},
                        .out = addr(out),
                        .part_m = addr(m),
                        .part_l = addr(l),
                        .part_a = addr(a),
                        .n_rows = 2,
                        .n_heads = 1,
                        .n_splits = 2};

    memset(a, 0xFF, sizeof(a));
    for (int i = 0; i < 4; i++)
        m[i] = -INFINITY;
    l[3] = 2;
    m[3] = 1;
    for (int i = 24; i < 32; i++)
        a[i] = 3;
    rig_launch(RIG_CPU, "kx_attn_merge", &k);
    for (int i = 0; i < 8; i++) {
        assert_float_equal(out[i], 0, 0);
        assert_float_equal(out[8 + i], 1.5, 0);
    }
}

static void misuse_is_named(void **state)
{
    const struct be_kentry *e = be_kcat_find("kx_attn_d64_f16_pass");
    struct be_kir *k = xcalloc(1, sizeof(*k));
    struct be_ktext t = {0};
    uint32_t one = 1;
    struct rig r;

    rig_init(&r, 64, 1, 1, BE_F16, 16, 0, 1, &one, &one);
    rig_tiles(&r, 1);
    OK(be_kfam_attn.build(e, k, err));
    r.a.kv.head_dim = 128;
    FAILS(RC_INVALID, be_kfam_attn.run(k, &r.a, err));
    r.a.kv.head_dim = 64;
    r.a.kv.dtype = BE_F32;
    FAILS(RC_INVALID, be_kfam_attn.run(k, &r.a, err));
    r.a.kv.dtype = BE_F16;
    k->node[1].kind = BE_KN_POOL;
    FAILS(RC_INTERNAL, be_kfam_attn.run(k, &r.a, err));
    FAILS(RC_INTERNAL, be_kfam_attn.cuda(k, &t, err));
    FAILS(RC_INTERNAL, be_kfam_attn.metal(k, &t, err));
    FAILS(RC_NOT_FOUND, be_kfam_attn.cuda_lib("rows", &t, err));
    FAILS(RC_NOT_FOUND, be_kfam_attn.metal_lib("rows", &t, err));
    be_ktext_deinit(&t);
    rig_deinit(&r);
    free(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(exp_of_negatives_has_the_bits_of_exp),
        cmocka_unit_test(nothing_seen_is_zero),
        cmocka_unit_test(misuse_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
