/* test_be_krows_emu.c - device text of the row kernels on the emulated device, where the
 * conformance cases are too small: blocks that take several rows, a whole vocabulary.
 * Executor and text must give the same bits.
 */
#include "be_krows_test.h"

#include "emu.h"

static void run_emu(const char *name, const void *args)
{
    const struct be_kentry *e = be_kcat_find(name);
    struct be_kgrid g = {0};

    assert_non_null(e);
    e->grid(e, args, &g);
    emu_run(name, args, e->args_bytes, &g);
}

/* More rows than blocks: the next row may not disturb the sums of the one before. */
static void many_rows_share_a_block(void **state)
{
    uint32_t n = 2100, k = 520, all = n * k;
    float *x = values(KX_F32, all, 2), *w = values(KX_F32, k, 1), *b = values(KX_F32, k, 1);
    float *out[2] = {values(KX_F32, all, 0), values(KX_F32, all, 0)};

    for (unsigned i = 0; i < 4; i++) {
        const char *name = i & 1 ? "kx_layer_norm" : "kx_rms_norm";
        struct kx_norm a = {.x = at(x), .w = at(w), .b = at(b), .n = n, .k = k, .eps = 1e-6f};

        emu_order(i & 2 ? EMU_REVERSE : EMU_FORWARD, 1);
        a.add = i & 2 ? a.x : 0;
        a.out = at(out[0]);
        run(name, &a);
        a.out = at(out[1]);
        run_emu(name, &a);
        assert_memory_equal(out[0], out[1], all * sizeof(float));
        check_margin(out[1], 4, all);
    }
    free(out[0]), free(out[1]), free(b), free(w), free(x);
}

static void a_vocabulary_is_drawn_from(void **state)
{
    uint32_t k = 262144, n = 3;
    float *x = values(KX_F32, (size_t)n * k, 6);
    struct kx_sample_row r[] = {
        {.inv_temperature = 1.25f, .top_p = 0.95f, .top_k = 64, .u = 0.7f},
        {.inv_temperature = 200, .top_p = 0.9f, .u = 0.3f},
        {.inv_temperature = 1, .top_p = 1, .min_p = 0.02f, .u = 0.999f},
    };
    int32_t out[2][3] = {{-7, -7, -7}, {-7, -7, -7}};
    struct kx_sample a = {.x = at(x),
                          .rows = at(r),
                          .n = n,
                          .k = k,
                          .scratch_row = (KX_SAMPLE_SCRATCH(k) + 15) / 16 * 16};

    for (int i = 0; i < 2; i++) {
        a.scratch = at(values(KX_F32, (size_t)n * a.scratch_row / 4, 0));
        a.out = at(out[i]);
        (i ? run_emu : run)("kx_sample_part", &a);
        (i ? run_emu : run)("kx_sample", &a);
        free(KX_AT(void, a.scratch));
    }
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(out[0][i], out[1][i]);
    assert_true(out[0][0] >= 0 && out[0][1] >= 0 && out[0][2] >= 0);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_rows_share_a_block),
        cmocka_unit_test(a_vocabulary_is_drawn_from),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
