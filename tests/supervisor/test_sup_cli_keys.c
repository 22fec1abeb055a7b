/* test_sup_cli_keys.c - times as people write them on the command line of keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_vault_cli.h"

static void durations(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        uint64_t s;
    } rows[] = {
        {"0", true, 0},
        {"90", true, 90},
        {"90s", true, 90},
        {"15m", true, 900},
        {"24h", true, 86400},
        {"30d", true, 2592000},
        {"2w", true, 1209600},
        {"", false, 0},
        {"d", false, 0},
        {"-1d", false, 0},
        {"1.5h", false, 0},
        {"1 h", false, 0},
        {"1y", false, 0},
        {"1hh", false, 0},
        {"1h ", false, 0},
        {"365000d", true, 31536000000},
        {"365001d", false, 0},
        {"999999999999w", false, 0},
        {"9999999999999", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t s = 7;

        if (sup_duration_parse(rows[i].text, &s) != rows[i].ok)
            fail_msg("'%s' judged wrongly", rows[i].text);
        assert_true(s == (rows[i].ok ? rows[i].s : 7));
    }
}

static void moments(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        uint64_t s;
    } rows[] = {
        {"never", true, 0},
        {"1d", true, 1000 + 86400},
        {"2027-01-31", true, 1801353600},
        {"2027-01-31T12:00:00Z", true, 1801396800},
        {"2027-01-31T12:00:00", false, 0},
        {"2027-13-31", false, 0},
        {"2027-01-31x", false, 0},
        {"1960-01-01", false, 0},
        {"soon", false, 0},
        {"", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t s = 7;

        if (sup_moment_parse(rows[i].text, 1000, &s) != rows[i].ok)
            fail_msg("'%s' judged wrongly", rows[i].text);
        if (rows[i].ok)
            assert_true(s == rows[i].s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations),
        cmocka_unit_test(moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
