/* The device text of attention on the emulated device: the executor's bits, one pass and
 * splits alike, whatever shares a launch. */
#include "kattn_rig.h"

/* |result - f64| over values below 1: f32 keys, and products of halves */
#define TOL_F32 2e-6
#define TOL_F16 2e-3

struct geo {
    uint32_t hd, heads, kv_heads, page, window;
    enum be_dtype kv;
    bool f16;
    uint32_t n_seqs, len[RIG_SEQS], rows[RIG_SEQS];
};

/* Lengths and rows around the edges of pages, tiles and splits; each head size with each type
 * of keys, groups of 1, 2, 4 and 8; windows inside a tile, over a split, of one key. */
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
    {64, 2, 1, 16, 0, BE_F16, false, 3, {32, 255, 1025}, {1, 2, 1}},
    {128, 1, 1, 16, 257, BE_F16, false, 3, {511, 512, 1024}, {1, 1, 2}},
};

static const char *lib_of(uint32_t hd, char buf[16])
{
    snprintf(buf, 16, hd == 64 || hd == 128 || hd == 256 || hd == 512 ? "d%u" : "any", hd);
    return buf;
}

static void geo_init(struct rig *r, const struct geo *g)
{
    rig_init(r, g->hd, g->heads, g->kv_heads, g->kv, g->page, g->window, g->n_seqs, g->len,
             g->rows);
    if (g->f16)
        rig_to_f16(r);
}

static void expect(struct rig *r, const char *what, const void *want, enum rig_dev dev,
                   const char *lib, bool split, uint32_t more, uint32_t tile_rows)
{
    void *got = rig_run(r, dev, lib, split, more, tile_rows);

    rig_same(r, what, want, got);
    free(got);
}

static void text_gives_the_executors_bits(void **state)
{
    for (size_t i = 0; i < sizeof(geos) / sizeof(geos[0]); i++) {
        char lib[16];
        struct rig r;
        void *ref;

        geo_init(&r, &geos[i]);
        lib_of(r.hd, lib);
        emu_order((enum emu_order)(i % 3), (unsigned)i);
        ref = rig_run(&r, RIG_CPU, lib, false, 0, 0);
        rig_check(&r, "executor", ref, r.f16 || r.kv != BE_F32 ? TOL_F16 : TOL_F32);
        expect(&r, "executor: one pass, splits", ref, RIG_CPU, lib, true, 1, 0);
        expect(&r, "executor, device in one pass", ref, RIG_EMU80, lib, false, 0, 0);
        expect(&r, "executor, device in splits", ref, RIG_EMU80, lib, true, i % 2, 0);
        free(ref);
        rig_deinit(&r);
    }
}

/* Tiles of one row, of three, of as many as fit; backwards and shuffled. */
static void rows_do_not_feel_their_neighbours(void **state)
{
    static const size_t some[] = {1, 2, 8, 11, 13};

    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        char lib[16];
        struct rig r;
        void *all;

        geo_init(&r, &geos[some[i]]);
        lib_of(r.hd, lib);
        emu_order(EMU_FORWARD, 0);
        all = rig_run(&r, RIG_EMU80, lib, false, 0, 0);
        emu_order(EMU_SHUFFLED, 3);
        expect(&r, "one pass, rows by themselves", all, RIG_EMU80, lib, false, 0, 1);
        emu_order(EMU_REVERSE, 0);
        expect(&r, "one pass, three rows together", all, RIG_EMU80, lib, false, 0, 3);
        expect(&r, "splits, rows by themselves", all, RIG_EMU80, lib, true, 0, 1);
        expect(&r, "splits, three rows together", all, RIG_EMU80, lib, true, 3, 3);
        free(all);
        rig_deinit(&r);
    }
}

/* Devices without cp.async take the plain kernels over every type of keys. */
static void an_old_device_has_kernels_for_all(void **state)
{
    static const size_t some[] = {2, 3, 10};

    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        struct rig r;
        void *ref;

        geo_init(&r, &geos[some[i]]);
        ref = rig_run(&r, RIG_CPU, "any", false, 0, 0);
        rig_check(&r, "executor", ref, r.kv != BE_F32 ? TOL_F16 : TOL_F32);
        expect(&r, "sm_75 in one pass", ref, RIG_EMU75, "any", false, 0, 0);
        expect(&r, "sm_75 in splits", ref, RIG_EMU75, "any", true, 0, 0);
        free(ref);
        rig_deinit(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_gives_the_executors_bits),
        cmocka_unit_test(rows_do_not_feel_their_neighbours),
        cmocka_unit_test(an_old_device_has_kernels_for_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
