/* test_sup_ref.c - what a reference may look like, where its model goes, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "sup_ref.h"
#include "sup_scan.h"

static void references_that_are_read(void **state)
{
    static const struct {
        const char *text;
        enum sup_ref_kind kind;
        const char *dest, *variant, *revision, *full;
    } rows[] = {
        {"google/gemma-3-270m", SUP_REF_HUB, "google/gemma-3-270m", "auto", "main",
         "google/gemma-3-270m@main"},
        {"hf:a/b", SUP_REF_HUB, "a/b", "auto", "main", "a/b@main"},
        {"a/b:gguf:Q8_0", SUP_REF_HUB, "a/b--gguf-Q8_0", "gguf:Q8_0", "main", "a/b:gguf:Q8_0@main"},
        {"a/b:auto", SUP_REF_HUB, "a/b", "auto", "main", "a/b@main"},
        {"a/b@refs/pr/1", SUP_REF_HUB, "a/b", "auto", "refs/pr/1", "a/b@refs/pr/1"},
        {"a/b:Q4_K_M@v1.0", SUP_REF_HUB, "a/b--Q4_K_M", "Q4_K_M", "v1.0", "a/b:Q4_K_M@v1.0"},
        {"bge-m3", SUP_REF_HUB, "BAAI/bge-m3", "auto", "main", "BAAI/bge-m3@main"},
        {"Gemma4-E2B", SUP_REF_HUB, "google/gemma-4-E2B-it-qat-q4_0-gguf", "auto", "main",
         "google/gemma-4-E2B-it-qat-q4_0-gguf@main"},
        {"https://x.org/a/b.gguf?d=1", SUP_REF_URL, "local/b", "auto", "main",
         "https://x.org/a/b.gguf?d=1"},
        {"http://127.0.0.1:80/b.gguf", SUP_REF_URL, "local/b", "auto", "main",
         "http://127.0.0.1:80/b.gguf"},
        {"file:/m/x.gguf", SUP_REF_FILE, "local/x", "auto", "main", "file:/m/x.gguf"},
        {"file:///m/folder/", SUP_REF_FILE, "local/folder", "auto", "main", "file:/m/folder"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_ref r;
        struct rc_err err = RC_ERR_INIT;

        if (sup_ref_parse(&r, rows[i].text, NULL, NULL, &err) != RC_OK)
            fail_msg("%s: %s", rows[i].text, err.msg);
        assert_int_equal(r.kind, rows[i].kind);
        assert_string_equal(r.dest, rows[i].dest);
        assert_string_equal(r.variant, rows[i].variant);
        assert_string_equal(r.revision, rows[i].revision);
        assert_string_equal(r.text, rows[i].full);
        assert_true(sup_id_valid(r.dest));
    }
}

static void references_that_are_refused(void **state)
{
    static const struct {
        const char *text, *variant, *revision, *what;
    } rows[] = {
        {"", NULL, NULL, "reference"},
        {"gpt", NULL, NULL, "reference"},
        {"a b/c", NULL, NULL, "reference"},
        {"a/b\n", NULL, NULL, "reference"},
        {"a/\xc3\xa9", NULL, NULL, "reference"},
        {"x:a/b", NULL, NULL, "reference"},
        {"x@a/b", NULL, NULL, "reference"},
        {"/b", NULL, NULL, "owner"},
        {"../b", NULL, NULL, "owner"},
        {"-x/b", NULL, NULL, "owner"},
        {"a/", NULL, NULL, "name"},
        {"a/..", NULL, NULL, "name"},
        {"a/b/c", NULL, NULL, "name"},
        {"a/b%2f", NULL, NULL, "name"},
        {"a/b:", NULL, NULL, "variant"},
        {"a/b:../x", NULL, NULL, "variant"},
        {"a/b:x/y", NULL, NULL, "variant"},
        {"a/b@", NULL, NULL, "revision"},
        {"a/b@../x", NULL, NULL, "revision"},
        {"a/b@x//y", NULL, NULL, "revision"},
        {"a/b@x/", NULL, NULL, "revision"},
        {"a/b@a@b", NULL, NULL, "revision"},
        {"a/b:gguf", "safetensors", NULL, "variant"},
        {"a/b@v1", NULL, "v2", "revision"},
        {"a/b", "", NULL, "variant"},
        {"a/b", NULL, "", "revision"},
        {"https://", NULL, NULL, "url"},
        {"https://user@x.org/a.gguf", NULL, NULL, "url"},
        {"https://x.org:0/a.gguf", NULL, NULL, "url"},
        {"https://x.org:99999/a.gguf", NULL, NULL, "url"},
        {"https://x.org/a.safetensors", NULL, NULL, "url"},
        {"https://x.org/.gguf", NULL, NULL, "url"},
        {"https://x.org/a%2e.gguf", NULL, NULL, "url"},
        {"http://x.org/a.gguf", NULL, NULL, "url"},
        {"https://x.org/a.gguf", NULL, "v1", "revision"},
        {"https://x.org/a.gguf", "gguf", NULL, "variant"},
        {"file:", NULL, NULL, "path"},
        {"file:/", NULL, NULL, "path"},
        {"file:a.gguf", NULL, NULL, "path"},
        {"file:/a/..", NULL, NULL, "path"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_ref r;
        struct rc_err err = RC_ERR_INIT;

        if (sup_ref_parse(&r, rows[i].text, rows[i].variant, rows[i].revision, &err) == RC_OK)
            fail_msg("'%s' was taken", rows[i].text);
        if (err.code != RC_INVALID || strcmp(err.what, rows[i].what) != 0)
            fail_msg("'%s': %s: %s", rows[i].text, err.what, err.msg);
    }
}

static void what_is_too_long_is_refused(void **state)
{
    static char text[SUP_REF_MAX * 2];
    struct sup_ref r;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    text[1] = '/';
    assert_int_equal(sup_ref_parse(&r, text, NULL, NULL, &err), RC_TOO_LARGE);
    text[200] = '\0';
    assert_int_equal(sup_ref_parse(&r, text, NULL, NULL, &err), RC_INVALID);
    text[2 + 96] = '\0';
    assert_int_equal(sup_ref_parse(&r, text, NULL, NULL, &err), RC_OK);
}

static void origins(void **state)
{
    static const struct {
        const char *url, *origin; /* NULL: none */
        int safe;
    } rows[] = {
        {"https://Hub.Example/x", "https://hub.example:443", 1},
        {"https://h:8443/x", "https://h:8443", 1},
        {"http://127.0.0.1:9/x", "http://127.0.0.1:9", 1},
        {"http://[::1]:9/x", "http://[::1]:9", 1},
        {"http://localhost", "http://localhost:80", 1},
        {"http://10.0.0.1/x", "http://10.0.0.1:80", 0},
        {"http://127.0.0.1.evil.org/", "http://127.0.0.1.evil.org:80", 0},
        {"https://a@b/x", NULL, 0},
        {"https://a\\@b/x", NULL, 0},
        {"https://a/b c", NULL, 0},
        {"https://[::1/x", NULL, 0},
        {"https://h:/x", NULL, 0},
        {"https://h:1x/", NULL, 0},
        {"ftp://h/", NULL, 0},
        {"//h/", NULL, 0},
        {"https:///x", NULL, 0},
        {"https://h%41/x", NULL, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char out[SUP_ORIGIN_MAX];
        bool ok = sup_ref_origin(rows[i].url, out);

        if (ok != (rows[i].origin != NULL) || (ok && strcmp(out, rows[i].origin) != 0))
            fail_msg("%s: %s", rows[i].url, ok ? out : "none");
        if (ok)
            assert_int_equal(sup_ref_origin_safe(out), rows[i].safe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_that_are_read),
        cmocka_unit_test(references_that_are_refused),
        cmocka_unit_test(what_is_too_long_is_refused),
        cmocka_unit_test(origins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
