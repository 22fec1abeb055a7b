/* test_be_kdesc.c - canonical bytes, pinned ids and the overlap of descriptors. */
#include "be_test.h"

#include "be_kdesc.h"

static struct be_kdesc mv(void)
{
    return (struct be_kdesc){.op = BE_KOP_LINEAR,
                             .wfmt = BE_Q4_K,
                             .act = BE_KACT_Q8_K,
                             .epi = 0xff,
                             .out = BE_KACT_ANY,
                             .rows_class = BE_KROWS_1,
                             .rows = {1, 1, 1, 0},
                             .k = {256, 1 << 20, 256, 0},
                             .n = {1, 1 << 24, 1, 0}};
}

static void bytes_are_tags_lengths_values(void **state)
{
    struct be_kdesc d = mv();
    uint8_t b[BE_KDESC_MAX_BYTES];
    size_t n = be_kdesc_bytes(&d, b), at = 0;
    int last = 0;

    assert_int_equal(n, 13 * 3 + 7 * 18);
    while (at < n) {
        assert_true(b[at] > last);
        last = b[at];
        assert_true(b[at + 1] == 1 || b[at + 1] == 16);
        at += 2u + b[at + 1];
    }
    assert_int_equal(at, n);
    assert_int_equal(b[2], BE_KDESC_SCHEMA);
    assert_int_equal(b[5], BE_KOP_LINEAR);
}

/* An id names a kernel in manifests and caches: it may change with the schema only. */
static void ids_are_pinned(void **state)
{
    struct be_kdesc d = mv();
    char id[65];

    be_kdesc_id(&d, id);
    assert_string_equal(id, "d8f313a18f80f8f77790708e82d4397b9c105c613a0e91e716793bf1e9a79984");
    d.k.fixed = 1;
    be_kdesc_id(&d, id);
    assert_string_not_equal(id, "d8f313a18f80f8f77790708e82d4397b9c105c613a0e91e716793bf1e9a79984");
    be_khash_hex("abc", 3, id);
    assert_string_equal(id, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void every_field_changes_the_id(void **state)
{
    struct be_kdesc zero = {0};
    uint8_t *p = (uint8_t *)&zero, first[BE_KDESC_MAX_BYTES], b[BE_KDESC_MAX_BYTES];
    size_t n = be_kdesc_bytes(&zero, first);

    for (size_t i = 0; i < sizeof(zero); i++) {
        p[i] = 1;
        assert_int_equal(be_kdesc_bytes(&zero, b), n);
        assert_memory_not_equal(b, first, n);
        p[i] = 0;
    }
}

static void overlap(void **state)
{
    struct be_kdesc a = mv(), b = mv();

    assert_true(be_kdesc_overlaps(&a, &b));
    b.rows_class = BE_KROWS_2_8;
    assert_false(be_kdesc_overlaps(&a, &b));
    b.rows_class = BE_KROWS_ANY;
    assert_true(be_kdesc_overlaps(&a, &b));
    b.epi = BE_EPI_GEGLU; /* not among "any": it takes two parts */
    assert_false(be_kdesc_overlaps(&a, &b));
    b.epi = BE_EPI_ADD;
    assert_true(be_kdesc_overlaps(&a, &b) && be_kdesc_overlaps(&b, &a));
    b = mv();
    b.out = BE_KACT_F16;
    assert_true(be_kdesc_overlaps(&a, &b) && be_kdesc_overlaps(&b, &a));
    b.wfmt = BE_Q5_K;
    assert_false(be_kdesc_overlaps(&a, &b));
}

static void ranges_meet_on_a_common_multiple(void **state)
{
    static const struct {
        struct be_kdim a, b;
        bool meet;
    } rows[] = {
        {{1, 8, 1, 0}, {8, 9, 1, 0}, true},
        {{1, 8, 1, 0}, {9, 64, 1, 0}, false},
        {{0, 100, 6, 0}, {50, 70, 10, 0}, true},   /* 60 */
        {{10, 100, 6, 0}, {61, 89, 10, 0}, false}, /* 60 and 90 just miss */
        {{7, 7, 1, 1}, {1, 100, 2, 0}, false},
        {{0, 0, 0, 0}, {1, 100, 2, 0}, true}, /* one of them has no such dimension */
        {{1, UINT32_MAX, UINT32_MAX, 0}, {1, UINT32_MAX, UINT32_MAX - 1, 0}, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct be_kdesc a = mv(), b = mv();

        a.seq = rows[i].a;
        b.seq = rows[i].b;
        if (be_kdesc_overlaps(&a, &b) != rows[i].meet || be_kdesc_overlaps(&b, &a) != rows[i].meet)
            fail_msg("row %zu: expected %d", i, rows[i].meet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_tags_lengths_values),    cmocka_unit_test(ids_are_pinned),
        cmocka_unit_test(every_field_changes_the_id),       cmocka_unit_test(overlap),
        cmocka_unit_test(ranges_meet_on_a_common_multiple),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
