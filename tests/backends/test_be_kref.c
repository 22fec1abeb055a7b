/* test_be_kref.c - the executor's words give the device's bits at the edges, and the
 * shared functions are near the true ones. */
#include "be_test.h"

#include <limits.h>

#include "be_kref.h"

static void conversions_at_the_edges(void **state)
{
    static const struct {
        float x;
        int want;
    } rows[] = {
        {0.5f, 0},
        {1.5f, 2},
        {2.5f, 2},
        {-0.5f, 0},
        {-1.5f, -2},
        {8388609.0f, 8388609},
        {3e9f, INT_MAX},
        {-3e9f, INT_MIN},
        {NAN, 0},
        {INFINITY, INT_MAX},
        {-INFINITY, INT_MIN},
        {2147483520.0f, 2147483520},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (kx_rint(rows[i].x) != rows[i].want)
            fail_msg("kx_rint(%g) = %d, expected %d", rows[i].x, kx_rint(rows[i].x), rows[i].want);
    assert_int_equal(kx_f2h(NAN), 0x7fff);
    assert_int_equal(kx_f2h(-NAN), 0x7fff);
    assert_int_equal(kx_f2i_bits(kx_h2f(0xfe01)), 0x7fffffff);
    assert_int_equal(kx_f2h(65520.0f), 0x7c00);
    assert_int_equal(kx_f2h(65519.0f), 0x7bff);
    assert_int_equal(kx_f2h2(1.0f, -2.0f), 0xc0003c00);
    assert_true(kx_tf32(1 + 0x1p-11f) == 1 + 0x1p-10f && kx_tf32(-1 - 0x1p-11f) == -1 - 0x1p-10f);
    assert_true(kx_tf32(1 + 0x1.ffcp-12f) == 1 && kx_tf32(1 + 0x1p-10f) == 1 + 0x1p-10f);
    assert_true(kx_tf32(0x1.fffp127f) == INFINITY && kx_tf32(-INFINITY) == -INFINITY);
    assert_true(isnan(kx_tf32(NAN)) && kx_f2i_bits(kx_tf32(-0.0f)) == INT_MIN);
    for (unsigned h = 0; h < 0x7c00; h++)
        if (kx_f2h(kx_h2f((unsigned short)h)) != h)
            fail_msg("half %04x does not survive", h);
    assert_true(kx_round_away(2.5f) == 3.0f && kx_round_away(-2.5f) == -3.0f);
    assert_true(kx_max(NAN, 1.0f) == 1.0f && kx_min(1.0f, NAN) == 1.0f);
}

static void integer_dot(void **state)
{
    assert_int_equal(kx_dp4a(0x807f01ffu, 0x807f02feu, 10), 10 + 2 + 2 + 127 * 127 + 128 * 128);
}

/* The butterfly, written out: ((0+4)+(2+6)) + ((1+5)+(3+7)). */
static void fold_is_the_butterfly(void **state)
{
    for (int round = 0; round < 100; round++) {
        float s[KX_SLICES], want;

        fill(s, KX_SLICES, 1e3f);
        want = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        assert_true(kx_fold(s) == want);
    }
}

static void exponential(void **state)
{
    double worst = 0;

    for (float x = -87.2f; x < 88.6f; x += 0.00731f) {
        double want = exp((double)x), e = fabs(kx_exp(x) - want) / want;

        worst = e > worst ? e : worst;
    }
    if (worst > 4e-7)
        fail_msg("kx_exp: relative error %g", worst);
    assert_true(kx_exp(0.0f) == 1.0f);
    assert_true(kx_exp(-INFINITY) == 0.0f && kx_exp(INFINITY) == INFINITY);
    assert_true(isnan(kx_exp(NAN)));
}

static void activations(void **state)
{
    float f[3] = {1, 2, 3};
    unsigned short h[3] = {0};

    kx_act_put((kx_p)(uintptr_t)h, KX_F16, 2, 0.1f);
    assert_true(kx_act_get((kx_p)(uintptr_t)h, KX_F16, 2) == kx_h2f(kx_f2h(0.1f)));
    assert_int_equal(h[1], 0);
    kx_act_put((kx_p)(uintptr_t)f, KX_F32, 1, 0.1f);
    assert_true(kx_act_get((kx_p)(uintptr_t)f, KX_F32, 1) == 0.1f && f[2] == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_at_the_edges),
        cmocka_unit_test(integer_dot),
        cmocka_unit_test(fold_is_the_butterfly),
        cmocka_unit_test(exponential),
        cmocka_unit_test(activations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
