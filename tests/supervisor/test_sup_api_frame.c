/* test_sup_api_frame.c - framed attachments and base64: foreign bytes, each rule once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sup_api_frame.h"
#include "sup_media.h"

/* Two attachments, "image/png" "abc" and "a/b" "", behind the metadata "{}". */
static const uint8_t whole[] = "AFATT001\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"
                               "\x09\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0"
                               "\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                               "{}image/pngabca/b";
#define N (sizeof(whole) - 1)

/* Read from memory of just its size, for the sanitizer to see a byte too many. */
static bool read_copy(struct sup_api_frame *fr, const uint8_t *p, size_t n, uint8_t **copy,
                      struct sup_fail *f)
{
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    memcpy(*copy, p, n);
    return sup_api_frame_read(fr, *copy, n, f);
}

static void check_whole(const struct sup_api_frame *fr)
{
    assert_int_equal(fr->n_att, 2);
    assert_int_equal(fr->att[0].n_mime, 9);
    assert_memory_equal(fr->att[0].mime, "image/png", 9);
    assert_int_equal(fr->att[0].n_bytes, 3);
    assert_memory_equal(fr->att[0].data, "abc", 3);
    assert_memory_equal(fr->att[1].mime, "a/b", 3);
    assert_int_equal(fr->att[1].n_bytes, 0);
}

static void a_whole_frame(void **state)
{
    struct sup_api_frame fr = {0};
    struct sup_fail f;
    uint8_t *copy;

    (void)state;
    assert_true(read_copy(&fr, whole, N, &copy, &f));
    assert_int_equal(fr.n_meta, 2);
    assert_memory_equal(fr.meta, "{}", 2);
    check_whole(&fr);
    assert_true(sup_api_frame_own(&fr));
    memset(copy, 'z', N);
    free(copy);
    check_whole(&fr);
    assert_true(sup_api_frame_own(&fr));
    sup_api_frame_deinit(&fr);
    sup_api_frame_deinit(&fr);
}

static void every_cut_and_every_byte_more(void **state)
{
    struct sup_api_frame fr = {0};
    struct sup_fail f;
    uint8_t *copy, longer[N + 1];

    (void)state;
    for (size_t n = 0; n < N; n++) {
        assert_false(read_copy(&fr, whole, n, &copy, &f));
        assert_int_equal(f.code, SUP_E_INVALID_REQUEST);
        assert_null(fr.att);
        free(copy);
    }
    memcpy(longer, whole, N);
    longer[N] = 0;
    assert_false(read_copy(&fr, longer, N + 1, &copy, &f));
    assert_non_null(strstr(f.err.msg, "behind the last attachment is 1"));
    free(copy);
}

static void bad_words(void **state)
{
    static const struct {
        size_t at, n;
        uint8_t byte;
        enum sup_code code;
        const char *part;
    } rows[] = {
        {0, 1, 'B', SUP_E_INVALID_REQUEST, "AFATT001"},
        {7, 1, '2', SUP_E_INVALID_REQUEST, "AFATT001"},
        {8, 8, 0xFF, SUP_E_CONTENT_TOO_LARGE, "length of the metadata is 18446744073709551615"},
        {11, 1, 1, SUP_E_CONTENT_TOO_LARGE, "at most 16777216"},
        {8, 1, 3, SUP_E_INVALID_REQUEST, "attachment 1 is 3 + 0 bytes, 2 are left"},
        {16, 4, 0xFF, SUP_E_CONTENT_TOO_LARGE, "at most 1024"},
        {16, 1, 5, SUP_E_INVALID_REQUEST, "at least 82"},
        {20, 1, 1, SUP_E_INVALID_REQUEST, "reserved word is 1"},
        {23, 1, 0x80, SUP_E_INVALID_REQUEST, "reserved word"},
        {24, 1, 0, SUP_E_INVALID_REQUEST, "attachment 0 has 0 bytes of MIME"},
        {25, 1, 5, SUP_E_INVALID_REQUEST, "expected 1 to 1024"},
        {24, 4, 0xFF, SUP_E_INVALID_REQUEST, "attachment 0 has 4294967295"},
        {28, 1, 1, SUP_E_INVALID_REQUEST, "the reserved word 1"},
        {32, 8, 0xFF, SUP_E_INVALID_REQUEST, "18446744073709551615 bytes"},
        {39, 1, 0x80, SUP_E_INVALID_REQUEST, "attachment 0 is 9 +"},
        {48, 1, 1, SUP_E_INVALID_REQUEST, "attachment 1 is 3 + 1 bytes, 3 are left"},
    };
    struct sup_api_frame fr = {0};
    uint8_t bytes[N], *copy;
    struct sup_fail f;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        memcpy(bytes, whole, N);
        memset(bytes + rows[i].at, rows[i].byte, rows[i].n);
        assert_false(read_copy(&fr, bytes, N, &copy, &f));
        if (f.code != rows[i].code || !strstr(f.err.msg, rows[i].part))
            fail_msg("row %zu: %d %s", i, f.code, f.err.msg);
        free(copy);
    }
}

/* A frame of n_meta bytes of JSON and n_att files of no bytes, each with n_mime bytes of type. */
static bool reads(size_t n_meta, uint32_t n_att, uint32_t n_mime, struct sup_fail *f)
{
    size_t n = 24 + n_meta + (size_t)n_att * (16 + n_mime);
    uint8_t *p = calloc(1, n);
    struct sup_api_frame fr = {0};
    uint64_t meta = n_meta;
    bool ok;

    assert_non_null(p);
    memcpy(p, "AFATT001", 8);
    memcpy(p + 8, &meta, 8);
    memcpy(p + 16, &n_att, 4);
    for (uint32_t i = 0; i < n_att; i++)
        memcpy(p + 24 + (size_t)i * 16, &n_mime, 4);
    memset(p + 24 + (size_t)n_att * 16, ' ', n_meta);
    memset(p + 24 + (size_t)n_att * 16 + n_meta, 'm', (size_t)n_att * n_mime);
    ok = sup_api_frame_read(&fr, p, n, f);
    if (ok) {
        assert_int_equal(fr.n_att, n_att);
        sup_api_frame_deinit(&fr);
    }
    free(p);
    return ok;
}

static void both_sides_of_each_limit(void **state)
{
    static const struct {
        size_t n_meta;
        uint32_t n_att, n_mime;
        bool taken;
        enum sup_code code; /* of the refusal */
    } rows[] = {
        {2, SUP_FRAME_ATTACHMENTS_MAX, 1, true},
        {2, SUP_FRAME_ATTACHMENTS_MAX + 1, 1, false, SUP_E_CONTENT_TOO_LARGE},
        {2, 1, SUP_FRAME_MIME_MAX, true},
        {2, 1, SUP_FRAME_MIME_MAX + 1, false, SUP_E_INVALID_REQUEST},
        {2, 1, 0, false, SUP_E_INVALID_REQUEST},
        {SUP_FRAME_META_MAX, 1, 1, true},
        {SUP_FRAME_META_MAX + 1, 1, 1, false, SUP_E_CONTENT_TOO_LARGE},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_fail f = {0};
        bool ok = reads(rows[i].n_meta, rows[i].n_att, rows[i].n_mime, &f);

        if (ok != rows[i].taken || (!ok && f.code != rows[i].code))
            fail_msg("row %zu: %d %s", i, f.code, f.err.msg);
    }
}

static void no_attachment_at_all(void **state)
{
    static const uint8_t bytes[] = "AFATT001\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{}";
    struct sup_api_frame fr = {0};
    struct sup_fail f;

    (void)state;
    assert_true(sup_api_frame_read(&fr, bytes, sizeof(bytes) - 1, &f));
    assert_int_equal(fr.n_att, 0);
    assert_true(sup_api_frame_own(&fr));
    sup_api_frame_deinit(&fr);
}

/* ------------------------------------------------------------------- base64 */

static void base64_is_strict(void **state)
{
    static const struct {
        const char *text, *bytes; /* NULL = refused */
        size_t n;                 /* of bytes, or where */
    } rows[] = {
        {"", "", 0},
        {"QQ==", "A", 1},
        {"QUI=", "AB", 2},
        {"QUJD", "ABC", 3},
        {"QUJDRA==", "ABCD", 4},
        {"+/+/", "\xfb\xff\xbf", 3},
        {"AAAA", "\0\0\0", 3},
        {"Q", NULL, 1},
        {"QQ", NULL, 2},
        {"QQ=", NULL, 2},
        {"QQ===", NULL, 2},
        {"Q===", NULL, 1},
        {"=", NULL, 0},
        {"====", NULL, 0},
        {"QR==", NULL, 1},
        {"QUJ=", NULL, 2},
        {"QQ==QQ==", NULL, 2},
        {"QUJDQ", NULL, 5},
        {"QUJD\nQUJD", NULL, 4},
        {"QUJ D", NULL, 3},
        {"QU-_", NULL, 2},
        {"QUJDQUJ\xc3", NULL, 7},
    };
    char text[16];
    size_t n, bad;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool ok;

        snprintf(text, sizeof(text), "%s", rows[i].text);
        n = bad = 999;
        ok = sup_base64_decode(text, strlen(text), &n, &bad);
        if (ok != (rows[i].bytes != NULL) || (ok ? n : bad) != rows[i].n)
            fail_msg("\"%s\": %d, %zu bytes, bad at %zu", rows[i].text, ok, n, bad);
        if (ok)
            assert_memory_equal(text, rows[i].bytes, n);
    }
}

static void mime_types(void **state)
{
    static const char *const rows[][2] = {
        {"image/png", "image/png"},
        {" IMAGE/Png ; q=\"/\"", "image/png"},
        {"image/svg+xml", "image/svg+xml"},
        {"audio/x-wav;", "audio/x-wav"},
        {"image", NULL},
        {"image/", NULL},
        {"/png", NULL},
        {"image/png/x", NULL},
        {"image/p ng", NULL},
        {"image/*", NULL},
        {"", NULL},
        {";", NULL},
        {"image/png, image/gif", NULL},
        {"image/\xc3\xa4", NULL},
    };
    char out[SUP_MIME_BYTES], big[300];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(sup_mime_plain(rows[i][0], strlen(rows[i][0]), out), rows[i][1] != NULL);
        if (rows[i][1])
            assert_string_equal(out, rows[i][1]);
    }
    memset(big, 'a', sizeof(big));
    big[3] = '/';
    assert_true(sup_mime_plain(big, SUP_MIME_BYTES - 1, out));
    assert_false(sup_mime_plain(big, SUP_MIME_BYTES, out));
    assert_false(sup_mime_plain("image/\0ng", 9, out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_frame),
        cmocka_unit_test(every_cut_and_every_byte_more),
        cmocka_unit_test(bad_words),
        cmocka_unit_test(no_attachment_at_all),
        cmocka_unit_test(both_sides_of_each_limit),
        cmocka_unit_test(base64_is_strict),
        cmocka_unit_test(mime_types),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
