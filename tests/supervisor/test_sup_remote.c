/* test_sup_remote.c - which hosts a configuration lets requests name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "sup_conf.h"
#include "sup_remote.h"

static void hosts_are_matched_by_name(void **state)
{
    static const struct {
        const char *row, *origin;
        int stars, want;
    } rows[] = {
        {"img.example.com", "https://img.example.com:443", 1, 1},
        {"IMG.example.com", "https://img.example.com:8443", 1, 1},
        {"img.example.com", "https://ximg.example.com:443", 1, 0},
        {"img.example.com", "https://img.example.com.evil.org:443", 1, 0},
        {"*.example.com", "https://a.example.com:443", 1, 1},
        {"*.example.com", "https://a.b.example.com:443", 1, 1},
        {"*.example.com", "https://example.com:443", 1, 0},
        {"*.example.com", "https://evilexample.com:443", 1, 0},
        {"*.example.com", "https://.example.com:443", 1, 0},
        {"*", "https://anything.org:443", 1, 1},
        {"*", "https://anything.org:443", 0, 0},
        {"*.example.com", "https://a.example.com:443", 0, 0},
        {"[::1]", "http://[::1]:80", 0, 1},
        {"127.0.0.1", "http://127.0.0.1:9000", 0, 1},
        {"127.0.0.1", "http://127.0.0.11:9000", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *list[] = {(char *)(uintptr_t) "other", (char *)(uintptr_t)rows[i].row, NULL};

        if (sup_remote_listed(list, rows[i].origin, rows[i].stars) != (bool)rows[i].want)
            fail_msg("%s and %s", rows[i].row, rows[i].origin);
    }
    assert_false(sup_remote_listed(NULL, "https://a:443", true));
}

static void urls_that_are_refused_say_why(void **state)
{
    static const struct {
        const char *url, *says; /* NULL: allowed */
    } rows[] = {
        {"https://img.example.com/a.png", NULL},
        {"https://img.example.com:444/a.png?x#y", NULL},
        {"HTTPS://IMG.EXAMPLE.COM/a", NULL},
        {"http://127.0.0.1/a.png", NULL}, /* whether its address may be met is found out later */
        {"http://img.example.com/a.png", "over https only"},
        {"https://other.example.com/a.png", "media_hosts"},
        {"https://user@img.example.com/a.png", "user name"},
        {"https://img.example.com\\@evil.org/", "no plain"},
        {"https://img.example.com /", "no plain"},
        {"https://", "no plain"},
        {"ftp://img.example.com/a", "no plain"},
    };
    char *hosts[] = {(char *)(uintptr_t) "img.example.com", (char *)(uintptr_t) "127.0.0.1", NULL};
    struct sup_conf conf = {.media_hosts = hosts};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        enum rc rc = sup_remote_allowed(&conf, rows[i].url, &err);

        if (rc != (rows[i].says ? RC_CONFLICT : RC_OK) ||
            (rows[i].says && !strstr(err.msg, rows[i].says)))
            fail_msg("%s: %s %s", rows[i].url, rc_name(rc), err.msg);
    }
    conf.media_hosts = NULL;
    assert_int_equal(sup_remote_allowed(&conf, rows[0].url, NULL), RC_CONFLICT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_matched_by_name),
        cmocka_unit_test(urls_that_are_refused_say_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
