/* test_sup_quota_file.c - what is used today outlives the process, and a broken file does no harm.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sodium.h>

#include "fleet_util.h"
#include "sup_quota_file.h"

#define NOON (20000ull * 86400 + 43200)

static struct sup_quota *q;
static struct sup_quota_file *f;
static uint64_t unix_s;

static void begin(void)
{
    assert_non_null(q = sup_quota_new(SUP_TENANTS_MAX));
    assert_int_equal(sup_quota_file_open(&f, tmp_dir, q, unix_s, NULL), RC_OK);
}

static void end(void)
{
    sup_quota_file_close(&f);
    sup_quota_free(&q);
}

static int setup(void **state)
{
    (void)state;
    MUST(sodium_init() >= 0);
    tmp_make();
    MUST(chmod(tmp_dir, 0700) == 0);
    unix_s = NOON;
    begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    end();
    tmp_remove();
    return 0;
}

/* True: the tenant may use n more of 100 a day. */
static bool use(const char *name, uint64_t n)
{
    const struct sup_limits l = {.tokens_per_day = 100};
    const struct sup_clock now = {.mono_us = 1000000, .unix_s = unix_s};
    struct sup_tenant *t = NULL;
    struct sup_quota_no no;
    bool ok;

    if (!sup_quota_enter(q, name, &l, &now, &t, &no))
        return false;
    ok = sup_quota_charge(t, n, 0, &now, &no);
    sup_quota_leave(q, &t);
    return ok;
}

static void restart(void)
{
    sup_quota_file_save(f, q, unix_s);
    end();
    begin();
}

static void a_day_goes_on_after_a_restart(void **state)
{
    (void)state;
    assert_true(use("a", 70) && use("b", 10));
    restart();
    assert_false(use("a", 31));
    assert_true(use("a", 30) && use("b", 90));
    restart();
    restart(); /* nothing new to write */
    assert_false(use("a", 1) || use("b", 1));
    unix_s += 86400;
    restart();
    assert_true(use("a", 100));
}

static void another_day_is_not_restored(void **state)
{
    (void)state;
    assert_true(use("a", 100));
    sup_quota_file_save(f, q, unix_s);
    end();
    unix_s += 86400;
    begin();
    assert_true(use("a", 100));
}

static void spoil(off_t at, const char *with, size_t n)
{
    int fd = open(tmp_path(SUP_QUOTA_FILE), O_RDWR | O_CLOEXEC);

    MUST(fd >= 0 && pwrite(fd, with, n, at) == (ssize_t)n && close(fd) == 0);
}

/* One place is spoilt: that of before counts. Both: zero. */
static void a_torn_write_costs_the_last_one(void **state)
{
    (void)state;
    assert_true(use("a", 60));
    sup_quota_file_save(f, q, unix_s); /* number 1, the second place */
    assert_true(use("a", 40));
    sup_quota_file_save(f, q, unix_s); /* number 2, the first place */
    end();
    spoil(70, "x", 1);
    begin();
    assert_false(use("a", 41));
    assert_true(use("a", 40));
    end();
    spoil(0, "xxxxxxxx", 8);
    MUST(truncate(tmp_path(SUP_QUOTA_FILE), 1000) == 0);
    begin();
    assert_true(use("a", 100));
    restart(); /* and it is written anew */
    assert_false(use("a", 1));
}

static void as_many_as_can_be_known_are_kept(void **state)
{
    char name[16];
    struct stat st;

    (void)state;
    for (int i = 0; i < SUP_TENANTS_MAX; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        assert_true(use(name, 60));
    }
    restart();
    assert_int_equal(sup_quota_tenants(q), SUP_TENANTS_MAX);
    for (int i = 0; i < SUP_TENANTS_MAX; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        assert_false(use(name, 41));
        assert_true(use(name, 40));
    }
    restart();
    MUST(stat(tmp_path(SUP_QUOTA_FILE), &st) == 0);
    assert_true(st.st_size < 1 << 20);
}

static void what_is_refused(void **state)
{
    struct sup_quota_file *other = NULL;

    (void)state;
    assert_int_equal(sup_quota_file_open(&other, tmp_dir, q, unix_s, NULL), RC_BUSY);
    sup_quota_file_close(&f);
    MUST(chmod(tmp_path(SUP_QUOTA_FILE), 0644) == 0);
    assert_int_equal(sup_quota_file_open(&other, tmp_dir, q, unix_s, NULL), RC_CONFLICT);
    MUST(unlink(tmp_path(SUP_QUOTA_FILE)) == 0);
    MUST(symlink("/dev/null", tmp_path(SUP_QUOTA_FILE)) == 0);
    assert_int_equal(sup_quota_file_open(&other, tmp_dir, q, unix_s, NULL), RC_IO);
    assert_int_equal(sup_quota_file_open(&other, "/nowhere", q, unix_s, NULL), RC_NOT_FOUND);
    assert_null(other);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_day_goes_on_after_a_restart),
        T(another_day_is_not_restored),
        T(a_torn_write_costs_the_last_one),
        T(as_many_as_can_be_known_are_kept),
        T(what_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
