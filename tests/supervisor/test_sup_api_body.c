/* test_sup_api_body.c - our reader of bodies takes exactly what jansson takes, and
 * makes the same tree of it. Messages and bounds: test_sup_api_fields.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sup_fields.h"

static unsigned n_taken, n_refused;

/* Bodies with integers over 64 bits are left out: jansson refuses them. */
static void compare(const char *body, size_t n)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY;
    char *exact = malloc(n + 1); /* so that a sanitizer sees each byte too far */
    struct sup_fail f = {0};
    json_t *a, *b;
    json_error_t e;

    memcpy(exact, body, n);
    a = sup_body_parse(exact, n, &f);
    b = json_loadb(exact, n, flags, &e);
    free(exact);
    if (!b && json_error_code(&e) == json_error_numeric_overflow) {
        json_decref(a);
        return;
    }
    if (b && !json_is_object(b)) {
        json_decref(b);
        b = NULL;
    }
    if (!a != !b)
        fail_msg("%.*s: %s", (int)n, body, a ? "taken, jansson refuses it" : f.err.msg);
    if (a && !json_equal(a, b))
        fail_msg("%.*s: another tree", (int)n, body);
    *(a ? &n_taken : &n_refused) += 1;
    json_decref(a);
    json_decref(b);
}

static const char *const seeds[] = {
    "{\"model\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9 \\ud83d\\ude00\"}]}",
    " { \"a\" : [ 1 , -0 , 1.5e+3 , -2E-2 , true , false , null , { } , [ ] ] }\r\n\t",
    "{\"\":\"\",\"a\":\"\\\"\\\\\\/"
    "\\b\\f\\n\\r\\t\\u0000\",\"b\":\"\xf0\x9f\x98\x80\xc3\xa9\x7f\"}",
    "{\"n\":9223372036854775807,\"m\":-9223372036854775808,\"z\":0.1,\"y\":1e-400}",
    "{\"a\":{\"b\":{\"c\":[[[[0]]]]}},\"d\":\"\\ufeff\\u07ff\\u0800\\uffff\"}",
};
#define N_SEEDS (sizeof(seeds) / sizeof(seeds[0]))

static void whole_and_cut(void **state)
{
    for (size_t i = 0; i < N_SEEDS; i++)
        for (size_t n = 1; n <= strlen(seeds[i]); n++)
            compare(seeds[i], n);
    assert_int_equal(n_taken, N_SEEDS + 3); /* one ends in three bytes of white space */
    for (unsigned c = 0; c < 256; c++) {
        char one[] = "{\"a?\":\"?\\?\"}";

        for (size_t at = 0; at < sizeof(one) - 1; at++) {
            char copy[sizeof(one)];

            memcpy(copy, one, sizeof(one));
            copy[at] = (char)c;
            compare(copy, sizeof(one) - 1);
        }
    }
}

/* Strings are read eight bytes at a time: every byte at every place of a longer one. */
static void long_strings(void **state)
{
    char copy[48];

    for (size_t n = 6; n < 30; n++)
        for (size_t at = 0; at < n; at++)
            for (unsigned c = 0; c < 256; c += c < 0x23 || c > 0x5A ? 1 : 7) {
                memset(copy, at & 1 ? 'n' : 0x21, sizeof(copy));
                memcpy(copy, "{\"a\":\"", 6);
                copy[6 + at] = (char)c;
                memcpy(copy + 6 + n, "\"}", 2);
                compare(copy, n + 8);
            }
}

/* Thousands of small damages: bytes changed, left out, doubled, pieces swapped. */
static void damaged(void **state)
{
    static const char bytes[] = "{}[]:,\"\\ue0123456789.-+truefalsn \n\x1f\x80\xed\xa0";
    uint32_t x = 2463534242u;
    char b[256];

    n_taken = n_refused = 0;
    for (int round = 0; round < 60000; round++) {
        const char *seed = seeds[round % N_SEEDS];
        size_t n = strlen(seed);

        memcpy(b, seed, n);
        for (unsigned k = 0; k <= round % 3u; k++) {
            size_t at;

            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            at = x % n;
            if ((x >> 16) % 4 == 0) {
                memmove(b + at, b + at + 1, n - at - 1);
                n--;
            } else if ((x >> 16) % 4 == 1) {
                memmove(b + at + 1, b + at, n - at);
                n++;
            } else {
                b[at] = bytes[(x >> 18) % (sizeof(bytes) - 1)];
            }
        }
        compare(b, n);
    }
    assert_true(n_taken > 1000 && n_refused > 1000);
}

static void long_numbers(void **state)
{
    char body[6000] = "{\"a\":0.", *end;

    for (size_t n = 90; n < 5500; n = n * 3 / 2) {
        memset(body + 7, '3', n);
        end = body + 7 + n;
        strcpy(end, "}");
        compare(body, strlen(body));
        strcpy(end, "e-9}");
        compare(body, strlen(body));
        strcpy(end, "e}");
        compare(body, strlen(body));
    }
}

static void integers_over_64_bits_are_reals(void **state)
{
    static const char body[] = "{\"a\":18446744073709551616,\"b\":-9223372036854775809,\"c\":7}";
    struct sup_fail f;
    json_t *j = sup_body_parse(body, sizeof(body) - 1, &f);

    assert_non_null(j);
    assert_true(json_real_value(json_object_get(j, "a")) == 18446744073709551616.0);
    assert_true(json_is_real(json_object_get(j, "b")));
    assert_true(json_is_integer(json_object_get(j, "c")));
    json_decref(j);
}

/* {"a":[1,1,...]}: 320 bytes are counted for the object, 97 for its member, 144 for the array and
 * 48 for each value. The most that fits is taken, and not one more. */
static void the_most_values(void **state)
{
    const size_t most = (SUP_BODY_TREE - 320 - 97 - 144) / 48;

    (void)state;
    for (size_t n = most; n <= most + 1; n++) {
        size_t at = 6, len = at + 2 * n + 1;
        char *body = malloc(len);
        struct sup_fail f = {0};
        json_t *j;

        assert_non_null(body);
        memcpy(body, "{\"a\":[", 6);
        for (size_t i = 0; i < n; i++, at += 2)
            memcpy(body + at, "1,", 2);
        memcpy(body + at - 1, "]}", 2);
        j = sup_body_parse(body, len, &f);
        free(body);
        if (n > most) {
            assert_null(j);
            assert_int_equal(f.code, SUP_E_CONTENT_TOO_LARGE);
        } else {
            assert_non_null(j);
            assert_int_equal(json_array_size(json_object_get(j, "a")), n);
        }
        json_decref(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_and_cut),
        cmocka_unit_test(long_strings),
        cmocka_unit_test(damaged),
        cmocka_unit_test(long_numbers),
        cmocka_unit_test(integers_over_64_bits_are_reals),
        cmocka_unit_test(the_most_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
