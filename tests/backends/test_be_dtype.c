/* test_be_dtype.c - type table, exact block values and the activation quantizers
 * against the vectors of engine.md 2.5. */
#include "be_test.h"

#include "../../backends/cpu/be_cpu_ref.h"

struct vec {
    enum be_dtype t;
    int f2; /* offset of the second half, -1 = none */
    int f1;
    double first, second, mid, last, sum, wsum;
};

static const struct vec vecs[] = {
    {BE_Q4_0, -1, 0, -0.2999268, 0.1999512, -0.2999268, 0, -2.0994873, -51.7873535},
    {BE_Q4_1, 2, 0, 1.54837, 0.4486389, 0.9485168, 1.248444, 26.0535889, 423.935669},
    {BE_Q5_0, -1, 0, 0.8997803, -0.1999512, 1.399658, 0.09997559, 1.49963379, 11.1972656},
    {BE_Q5_1, 2, 0, 1.948273, 2.448151, 1.948273, 0.5486145, 52.0472412, 815.640015},
    {BE_Q8_0, -1, 0, 8.497925, 12.19702, -9.097778, -4.798828, -17.5957031, -807.802734},
    {BE_Q4_K, 2, 0, 31.60611, -2.485565, 42.30469, 4.892609, 5453.24121, 758289.558},
    {BE_Q5_K, 2, 0, 81.194, -2.485565, 104.6895, 10.89114, 11629.333, 1603543.95},
    {BE_Q6_K, -1, 208, -143.0651, 169.5586, -35.09143, -5.998535, 461.087402, 78422.8491},
};

static void value_near(const char *what, double a, double b)
{
    if (fabs(a - b) > 1e-6 * fabs(b) + 1e-9)
        fail_msg("%s: %.9g, expected %.9g", what, a, b);
}

static void blocks_have_the_reference_values(void **state)
{
    for (size_t v = 0; v < sizeof(vecs) / sizeof(vecs[0]); v++) {
        const struct vec *c = &vecs[v];
        uint8_t b[256];
        float x[256];
        uint32_t n = be_dtype_block(c->t), bytes = be_dtype_block_bytes(c->t);
        const uint16_t h1 = 0x2E66, h2 = 0x2A3D;
        double sum = 0, wsum = 0;

        for (uint32_t k = 0; k < bytes; k++)
            b[k] = (uint8_t)(37 * k + 11);
        memcpy(b + c->f1, &h1, 2);
        if (c->f2 >= 0)
            memcpy(b + c->f2, &h2, 2);
        be_dtype_to_f32(c->t, b, x, n);
        for (uint32_t i = 0; i < n; i++) {
            sum += x[i];
            wsum += (double)x[i] * (i + 1);
        }
        value_near(be_dtype_name(c->t), x[0], c->first);
        value_near(be_dtype_name(c->t), x[1], c->second);
        value_near(be_dtype_name(c->t), x[n / 2], c->mid);
        value_near(be_dtype_name(c->t), x[n - 1], c->last);
        value_near(be_dtype_name(c->t), sum, c->sum);
        value_near(be_dtype_name(c->t), wsum, c->wsum);
    }
}

static void two_byte_floats_widen_exactly(void **state)
{
    for (uint32_t u = 0; u < 65536; u++) {
        uint16_t h = (uint16_t)u;
        int e = (h >> 10) & 31, m = h & 1023;
        double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        float x, y;
        uint32_t bits = u << 16;

        be_dtype_to_f32(BE_F16, &h, &x, 1);
        if (e == 31)
            assert_true(m ? isnan(x) : isinf(x) && !!signbit(x) == (h >> 15));
        else
            assert_true(x == (float)(h >> 15 ? -v : v));
        if (!isnan(x))
            assert_int_equal(be_f32_to_half(x), h);
        be_dtype_to_f32(BE_BF16, &h, &y, 1);
        assert_memory_equal(&y, &bits, 4);
    }
    /* narrowing: ties to even, overflow to infinity, below half the least to 0 */
    assert_int_equal(be_f32_to_half(65519.99f), 0x7BFF);
    assert_int_equal(be_f32_to_half(65520.0f), 0x7C00);
    assert_int_equal(be_f32_to_half(1.00048828125f), 0x3C00);
    assert_int_equal(be_f32_to_half(1.00146484375f), 0x3C02);
    assert_int_equal(be_f32_to_half(0x1p-25f), 0);
    assert_int_equal(be_f32_to_half(0x1.8p-25f), 1);
    assert_int_equal(be_f32_to_half(-0x1p-24f), 0x8001);
}

static void table_refuses_nonsense(void **state)
{
    uint64_t n = 77;

    assert_false(be_dtype_known(4));
    assert_false(be_dtype_known(UINT32_MAX));
    assert_true(be_dtype_known(30));
    assert_string_equal(be_dtype_name(12), "Q4_K");
    assert_string_equal(be_dtype_name(99), "unknown");
    assert_false(be_dtype_bytes(BE_Q4_0, 1, 33, &n));
    assert_false(be_dtype_bytes(BE_Q4_K, 1, 128, &n));
    assert_false(be_dtype_bytes(BE_F32, UINT64_MAX / 8, 4, &n));
    assert_false(be_dtype_bytes(BE_F32, 1, UINT64_MAX / 2, &n));
    assert_false(be_dtype_bytes((enum be_dtype)99, 1, 1, &n));
    assert_int_equal(n, 77);
    assert_true(be_dtype_bytes(BE_Q6_K, 3, 512, &n));
    assert_int_equal(n, 3 * 2 * 210);
    assert_true(be_dtype_bytes(BE_F16, 0, 5, &n));
    assert_int_equal(n, 0);
}

static void act_new(struct be_cpu_act *a, const float *x, uint32_t n, uint32_t cols)
{
    *a = (struct be_cpu_act){.x = x, .n = n, .n_cols = cols};
    a->q0 = xcalloc((size_t)n * cols, 1);
    a->d0 = xcalloc((size_t)n * cols / 32, sizeof(float));
    a->s0 = xcalloc((size_t)n * cols / 32, sizeof(int32_t));
    a->qk = xcalloc((size_t)n * cols, 1);
    a->dk = xcalloc((size_t)n * cols / 256 + 1, sizeof(float));
    a->bk = xcalloc(((size_t)n * cols / 256 + 1) * BE_CPU_BK, sizeof(int16_t));
}

static void act_free(struct be_cpu_act *a)
{
    free(a->q0);
    free(a->d0);
    free(a->s0);
    free(a->qk);
    free(a->dk);
    free(a->bk);
}

static void activations_quantize_as_the_reference(void **state)
{
    static const uint8_t q8_0[32] = {0x85, 0xf8, 0x6b, 0xe0, 0x53, 0xc8, 0x3c, 0xb1,
                                     0x24, 0x99, 0x0c, 0x7f, 0xf4, 0x67, 0xdc, 0x4f,
                                     0xc4, 0x38, 0xad, 0x20, 0x95, 0x08, 0x7b, 0xf0,
                                     0x63, 0xd8, 0x4b, 0xc0, 0x34, 0xa9, 0x1c, 0x91};
    static const int8_t q8_k[8] = {123, 8, -107, 32, -83, 56, -60, 79};
    static const int bsums[4] = {-158, 95, -158, 94};
    struct be_cpu_act a;
    float x[256];

    for (int i = 0; i < 256; i++)
        x[i] = (float)((29 * i) % 64 - 31) / 16;
    act_new(&a, x, 1, 256);
    be_cpu_ref_quant_q8_0(&a, 0, 1);
    be_cpu_ref_quant_q8_k(&a, 0, 1);
    assert_memory_equal(a.q0, q8_0, 32);
    assert_int_equal(be_f32_to_half(a.d0[0]), 0x2408);
    value_near("Q8_K d", a.dk[0], -0.0157480314);
    assert_memory_equal(a.qk, q8_k, 8);
    for (int g = 0; g < 16; g++)
        assert_int_equal(a.bk[g], bsums[g % 4]);
    for (int g = 0; g < 8; g++)
        assert_int_equal(a.bk[16 + g], bsums[(2 * g) % 4] + bsums[(2 * g + 1) % 4]);
    act_free(&a);
}

static void odd_activations_are_survived(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    struct be_cpu_act a;
    float x[256] = {0};

    act_new(&a, x, 1, 256);
    be_cpu_ref_quant_q8_0(&a, 0, 1);
    be_cpu_ref_quant_q8_k(&a, 0, 1);
    assert_true(a.d0[0] == 0 && a.dk[0] == 0 && a.qk[7] == 0 && a.bk[3] == 0);
    for (size_t i = 0; i < 3; i++) {
        x[100] = odd[i];
        be_cpu_ref_quant_q8_0(&a, 0, 1);
        be_cpu_ref_quant_q8_k(&a, 0, 1);
        assert_true(a.d0[0] == 0 && isnan(a.d0[3]) && isnan(a.dk[0]));
        assert_int_equal(a.q0[100], 0);
    }
    for (int i = 0; i < 256; i++)
        x[i] = i % 2 ? 1e-44f : 3.4e38f; /* subnormal beside the largest */
    be_cpu_ref_quant_q8_0(&a, 0, 1);
    be_cpu_ref_quant_q8_k(&a, 0, 1);
    assert_int_equal(a.q0[0], 127);
    for (int i = 0; i < 256; i++)
        x[i] = 1e-44f;
    be_cpu_ref_quant_q8_0(&a, 0, 1);
    be_cpu_ref_quant_q8_k(&a, 0, 1);
    assert_true(a.d0[0] == 0 && a.dk[0] == 0);
    act_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_have_the_reference_values),
        cmocka_unit_test(two_byte_floats_widen_exactly),
        cmocka_unit_test(table_refuses_nonsense),
        cmocka_unit_test(activations_quantize_as_the_reference),
        cmocka_unit_test(odd_activations_are_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
