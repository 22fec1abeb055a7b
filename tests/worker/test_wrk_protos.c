/* test_wrk_protos.c - the table of prototype sets: its bounds, single flight, who inherits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_protos.h"

static struct wrk_proto *get(struct wrk_protos *p, int key, uint32_t n, uint32_t dim,
                             const void *user)
{
    uint8_t k[WRK_PROTOS_KEY] = {0};
    struct wrk_proto *s = NULL;

    memcpy(k, &key, sizeof(key));
    assert_int_equal(wrk_protos_get(p, k, n, dim, user, &s, NULL), RC_OK);
    assert_true(p->n <= WRK_PROTOS_MAX && p->bytes <= WRK_PROTOS_BYTES);
    return s;
}
static void filled(struct wrk_protos *p, int key, uint32_t n, uint32_t dim)
{
    struct wrk_proto *s = get(p, key, n, dim, p);

    wrk_protos_filled(p, s);
    wrk_protos_put(p, &s, p);
}

static void sets_are_kept_within_both_bounds_longest_unused_goes(void **state)
{
    struct wrk_protos p = {0};
    struct wrk_proto *s, *held;
    int a = 1;

    (void)state;
    for (int i = 0; i < 300; i++)
        filled(&p, i, 2, 4);
    assert_int_equal(p.n, WRK_PROTOS_MAX);
    s = get(&p, 299, 2, 4, &a);
    assert_int_equal(s->state, WRK_PROTO_READY);
    wrk_protos_put(&p, &s, &a);
    assert_null(s);
    held = get(&p, 44, 2, 4, &a); /* the oldest there is, in use now: it stays */
    assert_int_equal(held->state, WRK_PROTO_READY);
    for (int i = 300; i < 600; i++)
        filled(&p, i, 2, 4);
    assert_int_equal(get(&p, 44, 2, 4, &a)->state, WRK_PROTO_READY);
    s = get(&p, 299, 2, 4, &a); /* gone, and taken by us */
    assert_int_equal(s->state, WRK_PROTO_FILLING);
    wrk_protos_put(&p, &s, &a); /* given up: nothing is left of it */
    assert_int_equal(p.n, WRK_PROTOS_MAX - 1);
    wrk_protos_deinit(&p);

    memset(&p, 0, sizeof(p));
    for (int i = 0; i < 10; i++) /* 192 KiB each: five fit */
        filled(&p, i, 64, 768);
    assert_int_equal(p.n, 5);
    s = get(&p, 100, 64, 8192, &a); /* larger than the whole: its user's alone */
    assert_false(s->kept);
    assert_int_equal(p.n, 5);
    wrk_protos_filled(&p, s);
    wrk_protos_put(&p, &s, &a);
    assert_int_equal(p.n, 5);
    wrk_protos_deinit(&p);
    assert_int_equal(p.bytes, 0);
}

static void one_fills_the_others_wait_and_inherit(void **state)
{
    struct wrk_protos p = {0};
    struct wrk_proto *a, *b, *c;
    int ua = 1, ub = 2, uc = 3;

    (void)state;
    a = get(&p, 1, 2, 4, &ua);
    b = get(&p, 1, 2, 4, &ub);
    c = get(&p, 1, 2, 4, &uc);
    assert_ptr_equal(a, b);
    assert_ptr_equal(a->owner, &ua);
    assert_int_equal(p.n_waits, 2);
    wrk_protos_put(&p, &b, &ub); /* a waiter leaves: the owner's fill goes on */
    assert_int_equal(a->state, WRK_PROTO_FILLING);
    assert_ptr_equal(a->owner, &ua);
    assert_false(wrk_protos_take(c, &uc));
    wrk_protos_put(&p, &a, &ua); /* the owner leaves: a waiter takes over, once */
    assert_int_equal(c->state, WRK_PROTO_VACANT);
    assert_true(wrk_protos_take(c, &uc));
    assert_false(wrk_protos_take(c, &ub));
    assert_ptr_equal(c->owner, &uc);
    wrk_protos_filled(&p, c);
    wrk_protos_put(&p, &c, &uc);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.n_fills, 1);
    assert_int_equal(get(&p, 1, 2, 4, &ua)->state, WRK_PROTO_READY);
    assert_int_equal(p.n_hits, 1);
    wrk_protos_deinit(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_kept_within_both_bounds_longest_unused_goes),
        cmocka_unit_test(one_fills_the_others_wait_and_inherit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
