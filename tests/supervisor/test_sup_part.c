/* test_sup_part.c - pieces that arrive in any order, pulls that end midway, maps that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "sup_part.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define BIG (2 * SUP_PIECE_BYTES + 100)

static char dir[256];
static int dir_fd;
static char block[1 << 20];

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "%s/part-XXXXXX", TEST_BUILD);
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

static void fill(struct sup_part *p, size_t i)
{
    while (p->piece[i].begin + p->piece[i].done < p->piece[i].end) {
        uint64_t left = p->piece[i].end - p->piece[i].begin - p->piece[i].done;

        assert_int_equal(
            sup_part_write(p, i, block, left < sizeof(block) ? left : sizeof(block), NULL), RC_OK);
    }
}

static void sums(struct sup_part *p, char sha[SUP_SHA256_HEX], char blob[SUP_SHA1_HEX])
{
    bool all = false;

    while (!all)
        assert_int_equal(sup_part_hash(p, 1 << 20, &all, NULL), RC_OK);
    sup_part_sums(p, sha, blob);
}

/* sha256sum and `git hash-object` of "hello\n" and of nothing */
static void hashes_are_those_of_the_tools(void **state)
{
    char sha[SUP_SHA256_HEX], blob[SUP_SHA1_HEX];
    struct sup_part p;
    struct stat st;

    (void)state;
    assert_int_equal(sup_part_open(&p, dir_fd, "a/b/hello", 6, ID, NULL), RC_OK);
    p.want_blob = true;
    assert_int_equal(p.n_pieces, 1);
    assert_int_equal(sup_part_write(&p, 0, "hel", 3, NULL), RC_OK);
    assert_int_equal(sup_part_write(&p, 0, "lo\n!", 4, NULL), RC_TOO_LARGE);
    assert_int_equal(sup_part_write(&p, 0, "lo\n", 3, NULL), RC_OK);
    sums(&p, sha, blob);
    assert_string_equal(sha, "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    assert_string_equal(blob, "ce013625030ba8dba906f756967f9e9ca394464a");
    assert_int_equal(fstatat(dir_fd, "a/b/hello", &st, 0), -1);
    assert_int_equal(sup_part_finish(&p, NULL), RC_OK);
    assert_int_equal(fstatat(dir_fd, "a/b/hello", &st, 0), 0);
    assert_int_equal(fstatat(dir_fd, "a/b/hello.part", &st, 0), -1);
    assert_int_equal(fstatat(dir_fd, "a/b/hello.part.map", &st, 0), -1);
    sup_part_close(&p);
    assert_int_equal(sup_part_open(&p, dir_fd, "empty", 0, ID, NULL), RC_OK);
    p.want_blob = true;
    sums(&p, sha, blob);
    assert_string_equal(blob, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    assert_int_equal(sup_part_finish(&p, NULL), RC_OK);
    sup_part_close(&p);
}

static void pieces_arrive_in_any_order_and_a_pull_goes_on(void **state)
{
    char one[SUP_SHA256_HEX], two[SUP_SHA256_HEX], blob[SUP_SHA1_HEX];
    struct sup_part p;
    bool all = true;

    (void)state;
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] = (char)(i * 7);
    assert_int_equal(sup_part_open(&p, dir_fd, "big", BIG, ID, NULL), RC_OK);
    assert_int_equal(p.n_pieces, 3);
    fill(&p, 2);
    assert_int_equal(sup_part_hash(&p, 1 << 20, &all, NULL), RC_OK);
    assert_false(all);
    assert_int_equal(p.hashed, 0); /* nothing without a gap yet */
    assert_int_equal(sup_part_write(&p, 0, block, 1000, NULL), RC_OK);
    assert_int_equal(sup_part_etag(&p, "\"e\"", NULL), RC_OK);
    sup_part_close(&p);

    assert_int_equal(sup_part_open(&p, dir_fd, "big", BIG, ID, NULL), RC_OK);
    assert_int_equal(p.resumed, 1100);
    assert_int_equal(p.piece[0].done, 1000);
    assert_string_equal(p.etag, "\"e\"");
    fill(&p, 1);
    /* the first piece began with the block's first 1000 bytes: go on with the same */
    fill(&p, 0);
    sums(&p, one, blob);
    assert_string_equal(blob, ""); /* nobody asked for it */
    sup_part_close(&p);

    assert_int_equal(sup_part_open(&p, dir_fd, "big", BIG, ID, NULL), RC_OK);
    assert_int_equal(p.resumed, BIG);
    sums(&p, two, blob); /* complete, and hashed all the same */
    assert_string_equal(one, two);
    assert_int_equal(sup_part_finish(&p, NULL), RC_OK);

    assert_int_equal(sup_part_open(&p, dir_fd, "big", BIG, ID, NULL), RC_OK);
    assert_int_equal(p.resumed, BIG); /* of a file that has its name already too */
    sums(&p, two, blob);
    assert_string_equal(one, two);
    sup_part_close(&p);
}

static void what_does_not_fit_is_thrown_away(void **state)
{
    struct sup_part p;
    int fd;

    (void)state;
    for (int row = 0; row < 6; row++) {
        uint64_t lie = BIG;

        assert_int_equal(sup_part_open(&p, dir_fd, "x", BIG, ID, NULL), RC_OK);
        fill(&p, 1);
        sup_part_close(&p);
        fd = openat(dir_fd, "x.part.map", O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0);
        if (row == 0) /* more than the piece */
            assert_int_equal(pwrite(fd, &lie, 8, 8 + 16 + SUP_SHA256_HEX + SUP_ETAG_MAX + 7), 8);
        if (row == 1) /* cut */
            assert_int_equal(ftruncate(fd, 100), 0);
        if (row == 2) /* another magic */
            assert_int_equal(pwrite(fd, "X", 1, 0), 1);
        close(fd);
        if (row == 3) { /* bytes that are not there */
            fd = openat(dir_fd, "x.part", O_RDWR | O_CLOEXEC);
            assert_int_equal(ftruncate(fd, 100), 0);
            close(fd);
        }
        assert_int_equal(sup_part_open(&p, dir_fd, "x", row == 4 ? BIG - 1 : BIG,
                                       row == 5 ? "another" : ID, NULL),
                         RC_OK);
        assert_int_equal(p.resumed, 0);
        assert_int_equal(sup_part_done(&p), 0);
        sup_part_close(&p);
    }
}

static void a_server_without_parts_gets_one_piece(void **state)
{
    struct sup_part p;

    (void)state;
    assert_int_equal(sup_part_open(&p, dir_fd, "y", BIG, ID, NULL), RC_OK);
    fill(&p, 0);
    assert_int_equal(sup_part_restart(&p, true, NULL), RC_OK);
    assert_int_equal(p.n_pieces, 1);
    assert_int_equal(p.piece[0].end, BIG);
    assert_int_equal(sup_part_done(&p), 0);
    sup_part_close(&p);
}

static void no_room_is_said_so(void **state)
{
    const struct rlimit small = {4096, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    struct rc_err err = RC_ERR_INIT;
    struct sup_part p;
    enum rc rc;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(sup_part_open(&p, dir_fd, "z", 100000, ID, NULL), RC_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rc = sup_part_write(&p, 0, block, 8192, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(rc, RC_LIMIT);
    assert_non_null(strstr(err.msg, "no room for 'z'"));
    sup_part_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hashes_are_those_of_the_tools, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pieces_arrive_in_any_order_and_a_pull_goes_on, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_thrown_away, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_server_without_parts_gets_one_piece, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_room_is_said_so, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
