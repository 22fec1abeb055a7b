/* test_sup_retry_after.c - when a machine that was asked wants to be asked again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_retry_after.h"

#define NOW 784111777 /* Sun, 06 Nov 1994 08:49:37 GMT */

static const struct {
    const char *what, *value;
    int64_t want; /* -1 = refused */
} rows[] = {
    {"seconds", "120", 120},
    {"no time", "0", 0},
    {"the most seconds", "4294967295", UINT32_MAX},
    {"more seconds than are counted", "4294967296", UINT32_MAX},
    {"far more of them", "99999999999999999999999999", UINT32_MAX},
    {"now, as an IMF date", "Sun, 06 Nov 1994 08:49:37 GMT", 0},
    {"a second later", "Sun, 06 Nov 1994 08:49:38 GMT", 1},
    {"a second ago", "Sun, 06 Nov 1994 08:49:36 GMT", 0},
    {"long ago", "Thu, 01 Jan 1970 00:00:00 GMT", 0},
    {"the next day", "Mon, 07 Nov 1994 08:49:37 GMT", 86400},
    {"over a leap day", "Thu, 29 Feb 1996 00:00:00 GMT", 41440223},
    {"as RFC 850 has it", "Sunday, 06-Nov-94 08:50:37 GMT", 60},
    {"a year of two digits in the next century", "Thursday, 06-Nov-03 08:49:37 GMT", 283996800},
    {"49 years ago, before the epoch", "Sunday, 06-Nov-45 08:49:37 GMT", -1},
    {"50 years ahead", "Sunday, 06-Nov-44 08:49:37 GMT", 1577923200},
    {"as asctime has it", "Sun Nov  6 08:49:47 1994", 10},
    {"a leap second", "Sat, 31 Dec 1994 23:59:60 GMT", 4806623},
    {"the last year", "Fri, 31 Dec 9999 23:59:59 GMT", UINT32_MAX},
    {"nothing", "", -1},
    {"a word", "soon", -1},
    {"a minus", "-1", -1},
    {"a plus", "+1", -1},
    {"a fraction", "1.5", -1},
    {"seconds and more", "12 s", -1},
    {"hexadecimal", "0x10", -1},
    {"another zone", "Sun, 06 Nov 1994 08:49:38 CET", -1},
    {"a date and more", "Sun, 06 Nov 1994 08:49:38 GMT;", -1},
    {"a date without a zone", "Sun, 06 Nov 1994 08:49:38", -1},
    {"a thirteenth month", "Sun, 06 Foo 1994 08:49:38 GMT", -1},
    {"the 30th of February", "Wed, 30 Feb 1994 08:49:38 GMT", -1},
    {"the 29th of a year without", "Wed, 29 Feb 1995 08:49:38 GMT", -1},
    {"day 0", "Wed, 00 Mar 1995 08:49:38 GMT", -1},
    {"hour 24", "Sun, 06 Nov 1994 24:00:00 GMT", -1},
    {"minute 60", "Sun, 06 Nov 1994 08:60:00 GMT", -1},
    {"second 61", "Sun, 06 Nov 1994 08:00:61 GMT", -1},
    {"a sign inside", "Sun, -6 Nov 1994 08:49:38 GMT", -1},
    {"before the epoch", "Wed, 31 Dec 1969 23:59:59 GMT", -1},
    {"a very long text", "Sunnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", -1},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t got = 77;
        bool ok = sup_retry_after(rows[i].value, NOW, &got);

        if (ok != (rows[i].want >= 0) || (ok ? got != rows[i].want : got != 77))
            fail_msg("%s (\"%s\"): got %s, %u", rows[i].what, rows[i].value, ok ? "a time" : "none",
                     got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
