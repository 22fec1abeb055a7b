/* test_sup_stage.c - models appear and go as a whole; folders of a person's own stay. */
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

#include "sup_stage.h"

static char dir[256];

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "%s/stage-XXXXXX", TEST_BUILD);
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    char cmd[300];

    (void)state;
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
    return system(cmd);
}

static bool there(const char *path)
{
    char full[600];
    struct stat st;

    snprintf(full, sizeof(full), "%s/%s", dir, path);
    return lstat(full, &st) == 0;
}

static void put_at(int fd, const char *name, const char *text)
{
    int f = openat(fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    assert_true(f >= 0);
    assert_int_equal(write(f, text, strlen(text)), strlen(text));
    close(f);
}

static void put(const char *path, const char *text)
{
    char cmd[1200], full[600];

    snprintf(full, sizeof(full), "%s/%s", dir, path);
    snprintf(cmd, sizeof(cmd), "mkdir -p \"$(dirname '%s')\"", full);
    assert_int_equal(system(cmd), 0);
    put_at(AT_FDCWD, full, text);
}

static void write_receipt(struct sup_stage *s, const char *path, uint64_t size)
{
    struct sup_receipt r = {.owner = strdup("a"),
                            .name = strdup("b"),
                            .variant = strdup("auto"),
                            .from = strdup("hub"),
                            .revision = strdup("main"),
                            .commit = strdup("c"),
                            .format = strdup("gguf")};

    assert_int_equal(sup_receipt_add(&r, path, size, NULL, NULL), RC_OK);
    assert_int_equal(sup_receipt_save(&r, s->files_fd, NULL), RC_OK);
    sup_receipt_deinit(&r);
}

static void pull(const char *file, const char *text)
{
    struct sup_receipt got = {0};
    struct rc_err err = RC_ERR_INIT;
    struct sup_stage s;

    assert_int_equal(sup_stage_open(&s, dir, "a/b", &err), RC_OK);
    assert_true(sup_receipt_unfinished(s.files_fd));
    put_at(s.files_fd, file, text);
    write_receipt(&s, file, strlen(text));
    if (sup_stage_publish(&s, &got, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_string_equal(got.file[0].path, file);
    sup_receipt_deinit(&got);
    sup_stage_close(&s, false);
}

static void a_model_appears_as_a_whole_and_is_replaced_as_one(void **state)
{
    (void)state;
    pull("one.gguf", "x");
    assert_true(there("a/b/one.gguf"));
    assert_false(there("a/b/" SUP_UNFINISHED_NAME));
    assert_false(there(SUP_STAGING_DIR));
    put("a/b/calibrations/mine.json", "{}");
    pull("two.gguf", "yy");
    assert_true(there("a/b/two.gguf"));
    assert_false(there("a/b/one.gguf"));
    assert_true(there("a/b/calibrations/mine.json"));
    assert_false(there(SUP_STAGING_DIR));
}

static void what_is_not_whole_gets_no_name(void **state)
{
    struct sup_receipt got = {0};
    struct rc_err err = RC_ERR_INIT;
    struct sup_stage s;

    (void)state;
    pull("one.gguf", "x");
    assert_int_equal(sup_stage_open(&s, dir, "a/b", &err), RC_OK);
    assert_int_equal(sup_stage_publish(&s, &got, &err), RC_NOT_FOUND); /* no receipt */
    write_receipt(&s, "two.gguf", 5);
    assert_int_equal(sup_stage_publish(&s, &got, &err), RC_NOT_FOUND);
    put_at(s.files_fd, "two.gguf", "four");
    assert_int_equal(sup_stage_publish(&s, &got, &err), RC_CONFLICT);
    assert_int_equal(unlinkat(s.files_fd, "two.gguf", 0), 0);
    assert_int_equal(symlinkat("/etc/hostname", s.files_fd, "two.gguf"), 0);
    assert_int_equal(sup_stage_publish(&s, &got, &err), RC_NOT_FOUND);
    sup_stage_close(&s, true);
    assert_true(there("a/b/one.gguf")); /* the model that was there is as it was */
    assert_true(there(SUP_STAGING_DIR));
}

static void one_pull_at_a_time(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_stage s, second, other;

    (void)state;
    assert_int_equal(sup_stage_open(&s, dir, "a/b", &err), RC_OK);
    assert_int_equal(sup_stage_open(&second, dir, "a/b", &err), RC_BUSY);
    assert_int_equal(sup_stage_remove(dir, "a/b", &err), RC_BUSY);
    assert_int_equal(sup_stage_open(&other, dir, "a/c", &err), RC_OK);
    sup_stage_close(&other, false);
    sup_stage_close(&s, true);
    assert_int_equal(sup_stage_open(&second, dir, "a/b", &err), RC_OK);
    sup_stage_close(&second, false);
    assert_false(there(SUP_STAGING_DIR));
}

static void folders_of_a_persons_own_stay(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_stage s;

    (void)state;
    put("a/b/config.json", "{}");
    assert_int_equal(sup_stage_open(&s, dir, "a/b", &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, "was not pulled"));
    assert_int_equal(sup_stage_remove(dir, "a/b", &err), RC_CONFLICT);
    assert_true(there("a/b/config.json"));
}

static void links_lead_nowhere(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_receipt got = {0};
    struct sup_stage s;
    char path[600];

    (void)state;
    snprintf(path, sizeof(path), "%s/a", dir);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(sup_stage_open(&s, dir, "a/b", &err), RC_CONFLICT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sup_stage_open(&s, dir, "a/b", &err), RC_OK);
    put_at(s.files_fd, "x", "x");
    write_receipt(&s, "x", 1);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_not_equal(sup_stage_publish(&s, &got, &err), RC_OK);
    sup_stage_close(&s, false);
}

static void models_are_removed(void **state)
{
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(sup_stage_remove(dir, "a/b", &err), RC_NOT_FOUND);
    pull("one.gguf", "x");
    put("a/b/deep/er/file", "x");
    put("a/other/config.json", "{}");
    assert_int_equal(sup_stage_remove(dir, "a/b", &err), RC_OK);
    assert_false(there("a/b"));
    assert_true(there("a/other/config.json"));
    assert_false(there(SUP_STAGING_DIR));
    assert_int_equal(sup_stage_remove("/nowhere/at/all", "a/b", &err), RC_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_model_appears_as_a_whole_and_is_replaced_as_one, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_whole_gets_no_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_pull_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(folders_of_a_persons_own_stay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(links_lead_nowhere, set_up, tear_down),
        cmocka_unit_test_setup_teardown(models_are_removed, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
