/* test_sup_walls_told.c - what processes tell each other of their layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "sup_walls.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* What a process tells of its layers comes out as it went in, and lies are seen. */
static void layers_are_told(void **state)
{
    struct sup_walls_layer l[SUP_WALLS_MAX];
    char *names[SUP_WALLS_MAX], *many[SUP_WALLS_MAX + 1];
    static char word[SUP_WALLS_MAX][8], longest[42];
    struct sup_walls_told t, lie;

    (void)state;
    for (unsigned i = 0; i < SUP_WALLS_MAX; i++) {
        snprintf(word[i], sizeof(word[i]), "l%u", i);
        l[i] = (struct sup_walls_layer){word[i], i % 3 == 0};
    }
    for (size_t n = 0; n <= SUP_WALLS_MAX; n++) {
        sup_walls_tell(l, n, names, &t);
        assert_int_equal(t.pid, getpid());
        assert_int_equal(t.n_held, (n + 2) / 3);
        assert_int_equal(t.n_held + t.n_missing, n);
        for (size_t i = 0; i < t.n_held; i++)
            assert_string_equal(t.held[i], word[3 * i]);
        for (size_t i = 0; i < t.n_missing; i++)
            assert_string_equal(t.missing[i], word[3 * (i / 2) + 1 + i % 2]);
        assert_true(sup_walls_told_ok(&t));
    }
    lie = t, lie.pid = 0;
    assert_false(sup_walls_told_ok(&lie));
    for (size_t i = 0; i < COUNT(many); i++)
        many[i] = word[0];
    lie = t, lie.held = many, lie.n_held = SUP_WALLS_MAX, lie.n_missing = 0;
    assert_true(sup_walls_told_ok(&lie));
    lie.n_missing = 1;
    assert_false(sup_walls_told_ok(&lie));
    lie.n_held = SUP_WALLS_MAX + 1, lie.n_missing = 0;
    assert_false(sup_walls_told_ok(&lie));
    lie.n_held = 1;
    memset(longest, 'a', 40);
    many[0] = longest;
    assert_true(sup_walls_told_ok(&lie));
    longest[40] = 'a';
    assert_false(sup_walls_told_ok(&lie));
    for (const char *const *bad = (const char *const[]){"", "a b", "A", "a\"", "\xc3\xa4", NULL};
         *bad; bad++) {
        snprintf(longest, sizeof(longest), "%s", *bad);
        assert_false(sup_walls_told_ok(&lie));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_are_told)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
