/* test_sup_vault_dir.c - the vault's folder: whose it must be, whole replacements, the lock;
 * and the audit log in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "fleet_util.h"
#include "sup_audit.h"
#include "sup_vault_dir.h"

static int dir_fd;

static int setup(void **state)
{
    (void)state;
    tmp_make();
    MUST(chmod(tmp_dir, 0700) == 0);
    assert_int_equal(sup_vault_dir_open(&dir_fd, tmp_dir, false, NULL), RC_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close(dir_fd);
    tmp_remove();
    return 0;
}

static char *content(const char *name, size_t max, enum rc want)
{
    struct rc_err err = RC_ERR_INIT;
    char *b = NULL;
    size_t n = 0;

    if (sup_vault_dir_read(dir_fd, name, max, &b, &n, &err) != want)
        fail_msg("%s: %s", name, err.msg);
    return b;
}

static void a_folder_that_others_see_is_refused(void **state)
{
    static const struct {
        mode_t mode;
        enum rc want;
    } rows[] = {{0700, RC_OK}, {0500, RC_OK}, {0750, RC_CONFLICT}, {0701, RC_CONFLICT}};
    struct rc_err err = RC_ERR_INIT;
    int fd;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        MUST(chmod(tmp_dir, rows[i].mode) == 0);
        fd = -1;
        assert_int_equal(sup_vault_dir_open(&fd, tmp_dir, false, &err), rows[i].want);
        if (fd >= 0)
            close(fd);
    }
    assert_non_null(strstr(err.msg, "chmod 700"));
    MUST(chmod(tmp_dir, 0700) == 0);
    assert_int_equal(sup_vault_dir_open(&fd, tmp_path("absent"), false, &err), RC_NOT_FOUND);
    assert_int_equal(sup_vault_dir_open(&fd, tmp_path("made"), true, &err), RC_OK);
    close(fd);
}

static void what_may_be_read(void **state)
{
    char *b;

    (void)state;
    assert_null(content("absent", 10, RC_OK));
    tmp_write("f", "12345");
    MUST(chmod(tmp_path("f"), 0600) == 0);
    b = content("f", 5, RC_OK);
    assert_string_equal(b, "12345");
    free(b);
    content("f", 4, RC_TOO_LARGE);
    MUST(chmod(tmp_path("f"), 0640) == 0);
    content("f", 5, RC_CONFLICT);
    MUST(symlink("f", tmp_path("link")) == 0);
    content("link", 5, RC_IO);
    MUST(mkfifo(tmp_path("pipe"), 0600) == 0);
    content("pipe", 5, RC_INVALID);
    tmp_mkdir("folder");
    MUST(chmod(tmp_path("folder"), 0700) == 0);
    content("folder", 5, RC_INVALID);
}

static void a_file_is_replaced_as_a_whole(void **state)
{
    struct stat st;
    char *b;

    (void)state;
    tmp_write("f.new", "left by a crash");
    assert_int_equal(sup_vault_dir_replace(dir_fd, "f", "one", 3, NULL), RC_OK);
    assert_int_equal(sup_vault_dir_replace(dir_fd, "f", "two", 3, NULL), RC_OK);
    b = content("f", 10, RC_OK);
    assert_string_equal(b, "two");
    free(b);
    MUST(stat(tmp_path("f"), &st) == 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(access(tmp_path("f.new"), F_OK), -1);
}

/* In a child with a limit on file sizes, which fails like a full disk. */
static int as_on_a_full_disk(int (*fn)(void))
{
    int status;
    pid_t pid;

    fflush(NULL);
    if ((pid = fork()) == 0) {
        const struct rlimit small = {20, 20};

        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &small);
        _exit(fn());
    }
    MUST(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int replace_large(void)
{
    char big[100] = "";

    return sup_vault_dir_replace(dir_fd, "f", big, sizeof(big), NULL) == RC_IO ? 0 : 1;
}

static int audit_line(void)
{
    return sup_audit_write(dir_fd, 0, "act", "who", "", 1000, NULL) == RC_IO ? 0 : 1;
}

static void a_full_disk_changes_nothing(void **state)
{
    struct stat st;
    char *b;

    (void)state;
    assert_int_equal(sup_vault_dir_replace(dir_fd, "f", "old", 3, NULL), RC_OK);
    assert_int_equal(as_on_a_full_disk(replace_large), 0);
    b = content("f", 10, RC_OK);
    assert_string_equal(b, "old");
    free(b);
    assert_int_equal(access(tmp_path("f.new"), F_OK), -1);
    assert_int_equal(as_on_a_full_disk(audit_line), 0);
    MUST(stat(tmp_path(SUP_VAULT_AUDIT), &st) == 0);
    assert_int_equal(st.st_size, 0); /* no half line */
}

static void one_change_at_a_time(void **state)
{
    int a = -1, status;
    pid_t pid;

    (void)state;
    assert_int_equal(sup_vault_dir_lock(&a, dir_fd, NULL), RC_OK);
    fflush(NULL);
    if ((pid = fork()) == 0) {
        int b = -1;

        close(a); /* the parent's stays */
        _exit(sup_vault_dir_lock(&b, dir_fd, NULL) == RC_OK ? 0 : 1);
    }
    usleep(200000);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0); /* it waits */
    close(a);
    MUST(waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
}

static void audit_lines(void **state)
{
    char *b, big[SUP_AUDIT_LINE + 1];

    (void)state;
    assert_int_equal(
        sup_audit_write(dir_fd, 86400, "key.create", "user:\"1\"\n", ",\"key\":\"k\"", 4000, NULL),
        RC_OK);
    memset(big, ' ', sizeof(big));
    big[SUP_AUDIT_LINE] = '\0';
    assert_int_equal(sup_audit_write(dir_fd, 0, "x", "y", big, 4000, NULL), RC_OK);
    b = content(SUP_VAULT_AUDIT, 4000, RC_OK);
    assert_string_equal(
        b,
        "{\"time\":\"1970-01-02T00:00:00Z\",\"act\":\"key.create\",\"who\":\"user:\\\"1\\\"\\n\","
        "\"key\":\"k\"}\n"
        "{\"time\":\"1970-01-01T00:00:00Z\",\"act\":\"x\",\"who\":\"y\",\"fields\":\"too "
        "long\"}\n");
    free(b);
}

static void the_audit_log_is_bounded(void **state)
{
    struct stat now, old;

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(sup_audit_write(dir_fd, i, "act", "who", "", 1000, NULL), RC_OK);
    MUST(stat(tmp_path(SUP_VAULT_AUDIT), &now) == 0);
    MUST(stat(tmp_path(SUP_VAULT_AUDIT_OLD), &old) == 0);
    assert_true(now.st_size > 0 && now.st_size <= 1000 && old.st_size > 900 && old.st_size <= 1000);
    MUST(chmod(tmp_path(SUP_VAULT_AUDIT), 0644) == 0);
    assert_int_equal(sup_audit_write(dir_fd, 0, "act", "who", "", 1000, NULL), RC_CONFLICT);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_folder_that_others_see_is_refused),
        T(what_may_be_read),
        T(a_file_is_replaced_as_a_whole),
        T(a_full_disk_changes_nothing),
        T(one_change_at_a_time),
        T(audit_lines),
        T(the_audit_log_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
