/* test_sup_cli_term.c - a hostile model cannot drive the terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_term.h"

static const struct {
    const char *why, *in, *out;
} rows[] = {
    {"plain text", "Hello,\n\tworld", "Hello,\n\tworld"},
    {"colour", "a\x1b[31mred\x1b[0mb", "aredb"},
    {"cursor and erase", "a\x1b[2J\x1b[H\x1b[10Ab", "ab"},
    {"title, ended by BEL",
     "a\x1b]0;title\x07"
     "b",
     "ab"},
    {"clipboard, ended by ST", "a\x1b]52;c;aGk=\x1b\\b", "ab"},
    {"device control", "a\x1bPq#0;2;0;0;0\x1b\\b", "ab"},
    {"private message and APC", "a\x1b^x\x1b\\\x1b_y\x1b\\b", "ab"},
    {"two-byte sequences",
     "a\x1b"
     "c\x1b"
     "7\x1b=b",
     "ab"},
    {"character set", "a\x1b(0b", "ab"},
    {"backspaces that overwrite", "safe\b\b\b\bevil", "safeevil"},
    {"carriage return that overwrites", "safe\revil", "safeevil"},
    {"bell, delete, NUL-like",
     "a\x07\x7f\x01\x0e\x0f"
     "b",
     "ab"},
    {"8-bit CSI as a code point",
     "a\xc2\x9b"
     "31mb",
     "ab"},
    {"8-bit OSC as a code point",
     "a\xc2\x9d"
     "0;t\xc2\x9c"
     "b",
     "ab"},
    {"other C1",
     "a\xc2\x85\xc2\x8d"
     "b",
     "ab"},
    {"8-bit CSI as a raw byte",
     "a\x9b"
     "31mb",
     "a\xef\xbf\xbd"
     "31mb"},
    {"directional overrides",
     "a\xe2\x80\xae"
     "b\xe2\x81\xa6"
     "c",
     "abc"},
    {"invalid UTF-8", "a\xff\xc3(", "a\xef\xbf\xbd\xef\xbf\xbd("},
    {"emoji and accents", "\xc3\xa9\xf0\x9f\x98\x80", "\xc3\xa9\xf0\x9f\x98\x80"},
    {"a newline ends an unfinished sequence", "a\x1b]0;gone\nback", "a\nback"},
    {"ESC inside CSI begins anew", "a\x1b[3\x1b[1mb", "ab"},
    {"a sequence inside a sequence", "a\x1b\x1b[31mb", "ab"},
};

static void foreign_text_is_cleaned_however_it_is_cut(void **state)
{
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        size_t n = strlen(rows[r].in);

        for (size_t a = 0; a <= n; a++)
            for (size_t b = a; b <= n; b++) {
                struct sup_clean c = {0};
                char out[1024];
                size_t m = sup_clean(&c, rows[r].in, a, out);

                m += sup_clean(&c, rows[r].in + a, b - a, out + m);
                m += sup_clean(&c, rows[r].in + b, n - b, out + m);
                out[m] = '\0';
                if (strcmp(out, rows[r].out) != 0)
                    fail_msg("%s, cut at %zu and %zu: got '%s'", rows[r].why, a, b, out);
            }
    }
}

static void nothing_else_gets_through(void **state)
{
    unsigned seed = 1;

    for (int round = 0; round < 2000; round++) {
        struct sup_clean c = {0};
        char in[64], out[3 * 64 + 16];

        for (size_t i = 0; i < sizeof(in); i++) {
            seed = seed * 1103515245u + 12345u;
            in[i] = (char)(seed >> 16);
            if (seed & 0x40000000)
                in[i] = "\x1b[]\x9b\xc2P\\;m"[(seed >> 8) % 10];
        }
        size_t m = sup_clean(&c, in, sizeof(in), out);
        assert_true(m <= sizeof(out));
        for (size_t i = 0; i < m; i++) {
            unsigned char u = (unsigned char)out[i];

            assert_true(u >= 0x20 || u == '\n' || u == '\t');
            assert_true(u != 0x7F);
            if (u == 0xC2 && i + 1 < m)
                assert_true((unsigned char)out[i + 1] >= 0xA0);
        }
    }
}

static void an_endless_sequence_swallows_little(void **state)
{
    struct sup_clean c = {0};
    char in[1000], out[3 * 1000 + 16];

    memset(in, 'x', sizeof(in));
    memcpy(in, "\x1b]", 2);
    size_t m = sup_clean(&c, in, sizeof(in), out);
    assert_true(m >= 700);
}

static void widths(void **state)
{
    assert_int_equal(sup_width('a'), 1);
    assert_int_equal(sup_width(0x301), 0);
    assert_int_equal(sup_width(0x4E2D), 2);
    assert_int_equal(sup_width(0x1F600), 2);
    assert_int_equal(sup_text_width("a\xe4\xb8\xad", 4), 3);
}

static void tables_are_aligned_and_clean(void **state)
{
    static const char *const columns[] = {"NAME", ">SIZE", "NOTE"};
    static const char *const cells[] = {
        "a", "1", "x\x1b[31m\ny", "\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad", "100", ""};
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    sup_table(f, columns, 3, cells, 2);
    fclose(f);
    assert_string_equal(text, "NAME    SIZE  NOTE\n"
                              "a          1  x y\n"
                              "\xe4\xb8\xad\xe4\xb8\xad\xe4\xb8\xad   100  \n");
    free(text);
}

static void sizes(void **state)
{
    char b[16];

    assert_string_equal(sup_bytes(0, b), "0 B");
    assert_string_equal(sup_bytes(1023, b), "1023 B");
    assert_string_equal(sup_bytes(1536, b), "1.5 KiB");
    assert_string_equal(sup_bytes(UINT64_MAX, b), "16.0 EiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(foreign_text_is_cleaned_however_it_is_cut),
        cmocka_unit_test(nothing_else_gets_through),
        cmocka_unit_test(an_endless_sequence_swallows_little),
        cmocka_unit_test(widths),
        cmocka_unit_test(tables_are_aligned_and_clean),
        cmocka_unit_test(sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
