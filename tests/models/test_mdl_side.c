/* test_mdl_side.c - names that try to leave the model directory, sizes that are
 * too large, and things that are no files. */
#include "mdl_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "mdl_build.h"

static char dir[64], outside[96];

static void write_file(int fd, const char *name, const char *text)
{
    int f = openat(fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(f >= 0);
    assert_int_equal(write(f, text, strlen(text)), (ssize_t)strlen(text));
    close(f);
}

static int setup(void **state)
{
    static int root;

    strcpy(dir, "/tmp/test_mdl_side.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(outside, sizeof(outside), "%s.secret", dir);
    write_file(AT_FDCWD, outside, "secret");
    root = open(dir, O_RDONLY | O_DIRECTORY);
    write_file(root, "config.json", "{\"a\":1}");
    write_file(root, "empty", "");
    assert_int_equal(mkdirat(root, "sub", 0700), 0);
    write_file(root, "sub/inner.json", "inner");
    assert_int_equal(mkfifoat(root, "fifo", 0600), 0);
    assert_int_equal(symlinkat("config.json", root, "link-inside"), 0);
    assert_int_equal(symlinkat(outside, root, "link-outside"), 0);
    assert_int_equal(symlinkat("..", root, "up"), 0);
    assert_int_equal(symlinkat("loop", root, "loop"), 0);
    *state = &root;
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"config.json", "empty", "sub/inner.json", "fifo",
                                        "link-inside", "up",    "link-outside",   "loop"};
    int root = *(int *)*state;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlinkat(root, names[i], 0);
    unlinkat(root, "sub", AT_REMOVEDIR);
    close(root);
    unlink(outside);
    return rmdir(dir);
}

static void files_below_the_root_are_read(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    int root = *(int *)*state;
    char *s = NULL;
    size_t n = 0;

    assert_int_equal(mdl_side_read(root, "config.json", 7, &s, &n, &err), RC_OK);
    assert_string_equal(s, "{\"a\":1}");
    assert_int_equal(n, 7);
    free(s);
    assert_int_equal(mdl_side_read(root, "sub/inner.json", 100, &s, &n, &err), RC_OK);
    assert_string_equal(s, "inner");
    free(s);
    assert_int_equal(mdl_side_read(root, "link-inside", 100, &s, &n, &err), RC_OK);
    free(s);
    assert_int_equal(mdl_side_read(root, "empty", 100, &s, &n, &err), RC_OK);
    assert_int_equal(n, 0);
    assert_string_equal(s, "");
    free(s);
}

static void anything_else_is_refused(void **state)
{
    int root = *(int *)*state;
    char up[128];
    const struct {
        const char *name;
        size_t max;
        enum rc rc;
    } rows[] = {
        {"absent.json", 100, RC_NOT_FOUND},
        {"config.json/x", 100, RC_NOT_FOUND},
        {"config.json", 6, RC_TOO_LARGE},
        {"link-outside", 100, RC_IO},
        {up, 100, RC_IO},
        {"up/x", 100, RC_IO},
        {"/etc/passwd", 10000, RC_IO},
        {"loop", 100, RC_IO},
        {"fifo", 100, RC_IO},
        {"sub", 100, RC_IO},
        {".", 100, RC_IO},
    };

    snprintf(up, sizeof(up), "../%s", strrchr(outside, '/') + 1);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        char *s = NULL;
        size_t n = 0;
        enum rc rc = mdl_side_read(root, rows[i].name, rows[i].max, &s, &n, &err);
        if (rc != rows[i].rc)
            fail_msg("%s: %s (%s), expected %s", rows[i].name, rc_name(rc), err.msg,
                     rc_name(rows[i].rc));
        assert_null(s);
        assert_string_equal(err.what, rows[i].name);
    }
}

static void a_single_file_root_has_no_side_files(void **state)
{
    int fd = openat(*(int *)*state, "config.json", O_RDONLY);
    char *s = NULL;
    size_t n = 0;

    assert_int_equal(mdl_side_read(fd, "config.json", 100, &s, &n, NULL), RC_NOT_FOUND);
    close(fd);
}

/* From here on openat2 does not exist, as on kernels before 5.6. Last test. */
static void without_openat2_no_link_is_followed(void **state)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    struct rc_err err = RC_ERR_INIT;
    char *s = NULL;
    size_t n = 0;

    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0);
    assert_int_equal(syscall(SYS_openat2, -1, "", NULL, 0), -1);
    assert_int_equal(errno, ENOSYS);
    assert_int_equal(mdl_side_read(*(int *)*state, "sub/inner.json", 100, &s, &n, &err), RC_OK);
    assert_string_equal(s, "inner");
    free(s);
    s = NULL;
    anything_else_is_refused(state);
    assert_int_equal(mdl_side_read(*(int *)*state, "link-inside", 100, &s, &n, &err), RC_IO);
    assert_int_equal(mdl_side_read(*(int *)*state, "sub//inner.json", 100, &s, &n, &err), RC_IO);
    assert_int_equal(mdl_side_read(*(int *)*state, "sub/../config.json", 100, &s, &n, &err), RC_IO);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_below_the_root_are_read),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(a_single_file_root_has_no_side_files),
        cmocka_unit_test(without_openat2_no_link_is_followed),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
