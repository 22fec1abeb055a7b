/* The device text of attention on the emulated device: the executor's bits, one pass and
 * splits alike, whatever shares a launch. */
#include "kattn_rig.h"

/* |result - f64| over values below 1: f32 keys, and products of halves */
#define TOL_F32 2e-6
#define TOL_F16 2e-3

static const char *lib_of(uint32_t hd, char buf[16])
{
    snprintf(buf, 16, hd == 64 || hd == 128 || hd == 256 || hd == 512 ? "d%u" : "any", hd);
    return buf;
}

static double tol_of(const struct rig *r)
{
    return r->f16 || r->kv != BE_F32 ? TOL_F16 : TOL_F32;
}

/* Executor, device in one pass and in splits: all the same bits, near the truth. */
static void all_ways(struct rig *r, const char *lib, enum rig_dev dev)
{
    void *ref = rig_run(r, RIG_CPU, lib, false, 0), *got;

    rig_check(r, "executor", ref, tol_of(r));
    got = rig_run(r, RIG_CPU, lib, true, 1);
    rig_same(r, "executor: one pass, splits", ref, got);
    free(got);
    got = rig_run(r, dev, lib, false, 0);
    rig_same(r, "executor, device in one pass", ref, got);
    free(got);
    got = rig_run(r, dev, lib, true, 0);
    rig_same(r, "executor, device in splits", ref, got);
    free(got);
    free(ref);
}

struct geo {
    uint32_t hd, heads, kv_heads, page, window;
    enum be_dtype kv;
    bool f16;
    uint32_t n_seqs, len[RIG_SEQS], rows[RIG_SEQS];
};

static const struct geo geos[] = {
    {64, 4, 2, 16, 0, BE_F16, false, 1, {1}, {1}},
    {64, 8, 1, 32, 0, BE_F16, false, 2, {257, 31}, {5, 31}},
    {64, 2, 2, 16, 40, BE_Q8_0, false, 2, {513, 65}, {2, 65}},
    {64, 4, 1, 64, 0, BE_F32, false, 2, {256, 33}, {17, 1}},
    {128, 8, 4, 16, 0, BE_F16, true, 2, {300, 70}, {64, 1}},
    {128, 2, 1, 128, 300, BE_Q8_0, true, 1, {600}, {17}},
    {128, 2, 1, 16, 1, BE_F32, false, 1, {300}, {33}},
    {256, 4, 1, 16, 0, BE_F16, false, 2, {530, 33}, {2, 33}},
    {256, 4, 4, 32, 512, BE_Q8_0, false, 1, {780}, {5}},
    {256, 2, 1, 16, 0, BE_F32, false, 1, {258}, {3}},
    {512, 2, 1, 16, 0, BE_F16, false, 2, {259, 20}, {5, 2}},
    {512, 1, 1, 32, 33, BE_Q8_0, false, 1, {300}, {5}},
    {512, 2, 2, 16, 0, BE_F32, false, 1, {40}, {18}},
    {80, 4, 2, 16, 0, BE_F16, false, 2, {260, 7}, {3, 7}},
    {6, 3, 1, 16, 5, BE_F32, false, 1, {290}, {40}},
    {96, 4, 4, 16, 0, BE_Q8_0, true, 1, {257}, {2}},
};

static void text_gives_the_executors_bits(void **state)
{
    for (size_t i = 0; i < sizeof(geos) / sizeof(geos[0]); i++) {
        const struct geo *g = &geos[i];
        struct rig r;
        char lib[16];

        rig_init(&r, g->hd, g->heads, g->kv_heads, g->kv, g->page, g->window, g->n_seqs, g->len,
                 g->rows);
        if (g->f16)
            rig_to_f16(&r);
        emu_order((enum emu_order)(i % 3), (unsigned)i);
        lib_of(g->hd, lib);
        print_message("head_dim %u %s\n", g->hd, be_dtype_name(g->kv));
        all_ways(&r, lib, RIG_EMU80);
        rig_deinit(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_gives_the_executors_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
