/* test_sup_cli_local.c - a private server that cannot be had is refused in true words.
 * One that can: tests/e2e/cli_chat.py, cli_embed.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sup_local.h"

static void a_bad_folder_is_named(void **state)
{
    struct sup_local l;
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(sup_local_start(&l, "/nowhere/models", &err), RC_NOT_FOUND);
    assert_string_equal(err.msg, "models folder '/nowhere/models': No such file or directory");
    assert_int_equal(sup_local_start(&l, "/dev/null", &err), RC_INVALID);
    assert_string_equal(err.msg, "models folder '/dev/null': is no folder");
    sup_local_stop(&l); /* nothing was started: nothing to stop */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_bad_folder_is_named)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
