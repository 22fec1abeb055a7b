/* test_sup_receipt.c - receipts of both versions, every bad one by name, and folders that differ
 * from theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "sup_receipt.h"

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define V2(artifacts)                                                                  \
    "{\"version\":2,\"source\":{\"owner\":\"a\",\"name\":\"b\",\"variant\":\"auto\"}," \
    "\"artifacts\":" artifacts "}"

static char dir[256];
static int dir_fd;

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "%s/receipt-XXXXXX", TEST_BUILD);
    if (!mkdtemp(dir))
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir_fd < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    char cmd[300];

    (void)state;
    close(dir_fd);
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    return system(cmd);
}

static void put(const char *name, const char *text)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void both_versions_are_read(void **state)
{
    const char *one = "{\"version\":1,\"artifacts\":[{\"path\":\"a/b.gguf\",\"size\":3}]}";
    const char *two = V2("[{\"path\":\"x\",\"size\":0,\"sha256\":\"" SHA "\"},"
                         "{\"path\":\"y\",\"size\":9007199254740993,\"sha256\":null}]");
    struct sup_receipt r = {0};

    (void)state;
    assert_int_equal(sup_receipt_parse(&r, one, strlen(one), NULL), RC_OK);
    assert_int_equal(r.version, 1);
    assert_string_equal(r.owner, "");
    assert_string_equal(r.file[0].path, "a/b.gguf");
    assert_int_equal(r.file[0].size, 3);
    sup_receipt_deinit(&r);
    assert_int_equal(sup_receipt_parse(&r, two, strlen(two), NULL), RC_OK);
    assert_int_equal(r.n_files, 2);
    assert_string_equal(r.name, "b");
    assert_string_equal(r.file[0].sha256, SHA);
    assert_string_equal(r.file[1].sha256, "");
    assert_true(r.file[1].size == 9007199254740993ull);
    sup_receipt_deinit(&r);
}

static void bad_ones_are_refused(void **state)
{
    static const struct {
        const char *text, *what;
        enum rc rc;
    } rows[] = {
        {"", "", RC_FORMAT},
        {"[]", "", RC_FORMAT},
        {"{\"version\":1,\"version\":1,\"artifacts\":[]}", "", RC_FORMAT},
        {"{}", "version", RC_FORMAT},
        {"{\"version\":true,\"artifacts\":[]}", "version", RC_FORMAT},
        {"{\"version\":1.0,\"artifacts\":[]}", "version", RC_FORMAT},
        {"{\"version\":3,\"artifacts\":[]}", "version", RC_UNSUPPORTED},
        {"{\"version\":0,\"artifacts\":[]}", "version", RC_UNSUPPORTED},
        {"{\"version\":1}", "artifacts", RC_FORMAT},
        {"{\"version\":1,\"artifacts\":[]}", "artifacts", RC_FORMAT},
        {"{\"version\":2,\"artifacts\":[{\"path\":\"x\",\"size\":1}]}", "source", RC_FORMAT},
        {"{\"version\":2,\"source\":{\"owner\":1,\"name\":\"b\",\"variant\":\"c\"}}", "owner",
         RC_FORMAT},
        {V2("[{\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"/x\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"a//b\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"a/./b\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"../b\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"a/..\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"a\\\\b\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"C:x\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"a\\u0000\",\"size\":1}]"), "", RC_FORMAT},
        {V2("[{\"path\":\"a\\u0007\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"a/b/c/d/e\",\"size\":1}]"), "path", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":true}]"), "size", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":1.5}]"), "size", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":-1}]"), "size", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":\"1\"}]"), "size", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":1,\"sha256\":\"00\"}]"), "sha256", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":1,\"sha256\":7}]"), "sha256", RC_FORMAT},
        {V2("[{\"path\":\"x\",\"size\":1},{\"path\":\"y\",\"size\":1},{\"path\":\"x\",\"size\":1}"
            "]"),
         "path", RC_FORMAT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_receipt r = {0};
        struct rc_err err = RC_ERR_INIT;
        enum rc rc = sup_receipt_parse(&r, rows[i].text, strlen(rows[i].text), &err);

        if (rc != rows[i].rc || strcmp(err.what, rows[i].what) != 0)
            fail_msg("%s: %s '%s' %s", rows[i].text, rc_name(rc), err.what, err.msg);
        assert_int_equal(r.n_files, 0);
    }
}

static void an_unknown_version_is_named(void **state)
{
    struct sup_receipt r = {0};
    struct rc_err err = RC_ERR_INIT;
    const char *text = "{\"version\":7,\"artifacts\":[]}";

    (void)state;
    assert_int_equal(sup_receipt_parse(&r, text, strlen(text), &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "receipt version 7 is not supported"));
}

static void what_is_written_is_read(void **state)
{
    struct sup_receipt r = {.owner = strdup("a"),
                            .name = strdup("b"),
                            .variant = strdup("gguf"),
                            .from = strdup("https://hub"),
                            .revision = strdup("main"),
                            .commit = strdup("c0"),
                            .format = strdup("gguf")};
    struct sup_receipt back = {0};

    (void)state;
    assert_int_equal(sup_receipt_add(&r, "m.gguf", 4, SHA, NULL), RC_OK);
    assert_int_equal(sup_receipt_add(&r, "config.json", 2, NULL, NULL), RC_OK);
    assert_int_equal(sup_receipt_load(&back, dir_fd, NULL), RC_NOT_FOUND);
    assert_int_equal(sup_receipt_save(&r, dir_fd, NULL), RC_OK);
    assert_int_equal(sup_receipt_load(&back, dir_fd, NULL), RC_OK);
    assert_string_equal(back.variant, "gguf");
    assert_string_equal(back.commit, "c0");
    assert_string_equal(back.from, "https://hub");
    assert_string_equal(back.file[0].sha256, SHA);
    assert_int_equal(back.file[1].size, 2);
    sup_receipt_deinit(&back);
    sup_receipt_deinit(&r);
}

static void the_other_programs_name_is_read_too(void **state)
{
    struct sup_receipt r = {0};

    (void)state;
    put(".antfly-download-complete.json",
        "{\"version\":1,\"artifacts\":[{\"path\":\"x\",\"size\":1}]}");
    assert_int_equal(sup_receipt_load(&r, dir_fd, NULL), RC_OK);
    sup_receipt_deinit(&r);
    assert_false(sup_receipt_unfinished(dir_fd));
    put(".antfly-download-in-progress", "{}");
    assert_true(sup_receipt_unfinished(dir_fd));
}

static void folders_are_held_to_their_receipt(void **state)
{
    struct sup_receipt r = {0};
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(sup_receipt_add(&r, "sub/f", 3, NULL, NULL), RC_OK);
    assert_int_equal(sup_receipt_check(&r, dir_fd, true, &err), RC_NOT_FOUND);
    assert_string_equal(err.what, "sub/f");
    assert_int_equal(mkdirat(dir_fd, "sub", 0755), 0);
    put("sub/f", "four");
    assert_int_equal(sup_receipt_check(&r, dir_fd, true, &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, "has 4 bytes, its receipt says 3"));
    put("sub/f", "abc");
    assert_int_equal(sup_receipt_check(&r, dir_fd, true, &err), RC_OK);
    put("real", "abc");
    assert_int_equal(unlinkat(dir_fd, "sub/f", 0), 0);
    assert_int_equal(symlinkat("../real", dir_fd, "sub/f"), 0);
    assert_int_equal(sup_receipt_check(&r, dir_fd, false, &err), RC_OK);
    assert_int_equal(sup_receipt_check(&r, dir_fd, true, &err), RC_NOT_FOUND);
    assert_int_equal(unlinkat(dir_fd, "sub/f", 0), 0);
    assert_int_equal(symlinkat("/etc/hostname", dir_fd, "sub/f"), 0);
    assert_int_equal(sup_receipt_check(&r, dir_fd, false, &err), RC_NOT_FOUND);
    assert_int_equal(unlinkat(dir_fd, "sub/f", 0), 0);
    assert_int_equal(mkfifoat(dir_fd, "sub/f", 0644), 0);
    assert_int_equal(sup_receipt_check(&r, dir_fd, false, &err), RC_CONFLICT);
    sup_receipt_deinit(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_versions_are_read),
        cmocka_unit_test(bad_ones_are_refused),
        cmocka_unit_test(an_unknown_version_is_named),
        cmocka_unit_test_setup_teardown(what_is_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_other_programs_name_is_read_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folders_are_held_to_their_receipt, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
