/* test_sup_addr.c - the first and last address of every special block, and their neighbours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <cmocka.h>

#include "sup_addr.h"

static bool is_public(const char *text)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    char back[SUP_ADDR_TEXT];

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return sup_addr_public((struct sockaddr *)&v4, sizeof(v4));
    if (inet_pton(AF_INET6, text, &v6.sin6_addr) != 1)
        fail_msg("%s is no address", text);
    sup_addr_text((struct sockaddr *)&v6, sizeof(v6), back);
    assert_true(back[0] != '\0');
    return sup_addr_public((struct sockaddr *)&v6, sizeof(v6));
}

static void addresses_of_everybody(void **state)
{
    static const char *const rows[] = {
        "1.0.0.0",         "8.8.8.8",          "9.255.255.255",   "11.0.0.0",
        "100.63.255.255",  "100.128.0.0",      "126.255.255.255", "128.0.0.0",
        "169.253.255.255", "169.255.0.0",      "172.15.255.255",  "172.32.0.0",
        "192.0.1.0",       "192.0.3.0",        "192.167.255.255", "192.169.0.0",
        "198.17.255.255",  "198.20.0.0",       "203.0.112.255",   "203.0.114.0",
        "223.255.255.255", "2606:4700::1111",  "2a00:1450::1",    "2001:4860:4860::8888",
        "::ffff:8.8.8.8",  "64:ff9b::808:808", "2002:808:808::1", "2001:200::1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!is_public(rows[i]))
            fail_msg("%s was refused", rows[i]);
}

static void addresses_of_somebody(void **state)
{
    static const char *const rows[] = {
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.0",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.0.0",
        "169.254.169.254",
        "169.254.255.255",
        "172.16.0.0",
        "172.31.255.255",
        "192.0.0.0",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.0",
        "192.168.255.255",
        "198.18.0.0",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.255",
        "224.0.0.0",
        "239.255.255.255",
        "240.0.0.0",
        "255.255.255.255",
        /* IPv6 */
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.1.2.3",
        "::ffff:169.254.169.254",
        "::ffff:0:7f00:1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "100::1",
        "2001::1",
        "2001:0:53aa:64c::",
        "2001:1ff::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a00:1::1",
        "2002:a9fe:a9fe::",
        "2620:4f:8000::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (is_public(rows[i]))
            fail_msg("%s was taken for public", rows[i]);
}

static void what_is_no_whole_address_is_not_public(void **state)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_scope_id = 2};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    char text[SUP_ADDR_TEXT] = "x";

    (void)state;
    v4.sin_addr.s_addr = htonl(0x08080808);
    assert_true(sup_addr_public((struct sockaddr *)&v4, sizeof(v4)));
    assert_false(sup_addr_public((struct sockaddr *)&v4, 4));
    assert_int_equal(inet_pton(AF_INET6, "2606:4700::1111", &v6.sin6_addr), 1);
    assert_false(sup_addr_public((struct sockaddr *)&v6, sizeof(v6))); /* has a scope */
    assert_false(sup_addr_public((struct sockaddr *)&un, sizeof(un)));
    sup_addr_text((struct sockaddr *)&un, sizeof(un), text);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_of_everybody),
        cmocka_unit_test(addresses_of_somebody),
        cmocka_unit_test(what_is_no_whole_address_is_not_public),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
