/* test_be_kcache.c - the disk cache of compiled kernels: what is stored comes back, and
 * whatever was done to a file in between is a miss, never a wrong kernel. */
#include "be_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "be_kjit.h"

#define OKAY(call) assert_int_equal((call), RC_OK)

static const uint8_t key_a[32] = {1, 2, 3}, key_b[32] = {9, 9}, key_c[32] = {0xff};
static char dir[64];

static int rm(const char *path, const struct stat *st, int flag, struct FTW *f)
{
    return remove(path);
}

static int fresh(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/kcache-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int gone(void **state)
{
    chmod(dir, 0700);
    return nftw(dir, rm, 8, FTW_DEPTH | FTW_PHYS);
}

static struct be_kcache *opened(uint64_t cap)
{
    struct be_kcache *c = NULL;

    OKAY(be_kcache_open(&c, dir, cap, NULL));
    return c;
}

static struct be_kcache_stats stats(const struct be_kcache *c)
{
    struct be_kcache_stats s;

    be_kcache_stats(c, &s);
    return s;
}

static void path_of(char out[256], const uint8_t key[32], const char *kind)
{
    size_t n = (size_t)snprintf(out, 256, "%s/", dir);

    for (int i = 0; i < 32; i++)
        n += (size_t)snprintf(out + n, 256 - n, "%02x", key[i]);
    snprintf(out + n, 256 - n, ".%s", kind);
}

static void put_s(struct be_kcache *c, const uint8_t key[32], const char *s)
{
    OKAY(be_kcache_put(c, key, BE_KC_PTX, s, strlen(s), NULL));
}

static enum rc get(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind, char *out,
                   size_t cap)
{
    uint8_t *p = NULL;
    size_t n = 0;
    enum rc rc = be_kcache_get(c, key, kind, &p, &n, NULL);

    if (rc == RC_OK) {
        assert_true(n < cap);
        memcpy(out, p, n);
        out[n] = '\0';
    } else {
        assert_null(p);
    }
    free(p);
    return rc;
}

static unsigned files_in(const char *d)
{
    DIR *h = opendir(d);
    unsigned n = 0;

    assert_non_null(h);
    for (struct dirent *e; (e = readdir(h)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(h);
    return n;
}

/* --------------------------------------------------------------------- plain */

static void what_is_put_comes_back_also_in_another_process_life(void **state)
{
    struct be_kcache *c = opened(0);
    char text[64], path[256];
    struct stat st;

    assert_int_equal(get(c, key_a, BE_KC_PTX, text, sizeof(text)), RC_NOT_FOUND);
    put_s(c, key_a, "// ptx");
    OKAY(be_kcache_put(c, key_a, BE_KC_CUBIN, "\177ELF", 4, NULL));
    OKAY(be_kcache_put(c, key_b, BE_KC_PTX, "", 0, NULL)); /* nothing is something */
    be_kcache_close(&c);
    assert_null(c);

    c = opened(0);
    OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text)));
    assert_string_equal(text, "// ptx");
    OKAY(get(c, key_a, BE_KC_CUBIN, text, sizeof(text)));
    assert_string_equal(text, "\177ELF");
    OKAY(get(c, key_b, BE_KC_PTX, text, sizeof(text)));
    assert_string_equal(text, "");
    assert_int_equal(get(c, key_c, BE_KC_PTX, text, sizeof(text)), RC_NOT_FOUND);
    assert_int_equal(get(c, key_a, BE_KC_QUALIFIED, text, sizeof(text)), RC_NOT_FOUND);
    assert_int_equal(stats(c).hits, 3);
    assert_int_equal(stats(c).misses, 2);
    assert_int_equal(stats(c).corruptions, 0);
    assert_int_equal(stats(c).bytes, 88 * 3 + 6 + 4);
    path_of(path, key_a, "ptx");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 88 + 6);
    put_s(c, key_a, "// newer"); /* replaces */
    OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text)));
    assert_string_equal(text, "// newer");
    be_kcache_del(c, key_a, BE_KC_PTX);
    assert_int_equal(get(c, key_a, BE_KC_PTX, text, sizeof(text)), RC_NOT_FOUND);
    assert_int_equal(be_kcache_put(c, key_a, (enum be_kcache_kind)9, "x", 1, NULL), RC_INVALID);
    be_kcache_close(&c);
}

static void the_header_is_the_one_on_the_page(void **state)
{
    struct be_kcache *c = opened(0);
    uint8_t h[88 + 3];
    char path[256];
    int fd;
    /* SHA-256 of "abc", FIPS 180-2 */
    static const uint8_t sum[8] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea};

    put_s(c, key_a, "abc");
    path_of(path, key_a, "ptx");
    assert_true((fd = open(path, O_RDONLY)) >= 0);
    assert_int_equal(read(fd, h, sizeof(h)), sizeof(h));
    close(fd);
    assert_memory_equal(h, "INFKJIT\n\1\0\0\0\1\0\0\0\3\0\0\0\0\0\0\0", 24);
    assert_memory_equal(h + 24, key_a, 32);
    assert_memory_equal(h + 56, sum, sizeof(sum));
    assert_memory_equal(h + 88, "abc", 3);
    be_kcache_close(&c);
}

/* -------------------------------------------------------------------- faults */

static void cut(const char *path)
{
    assert_int_equal(truncate(path, 90), 0);
}
static void cut_in_the_header(const char *path)
{
    assert_int_equal(truncate(path, 40), 0);
}
static void empty(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}
static void longer(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND);

    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}
static void flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    uint8_t b;

    assert_int_equal(pread(fd, &b, 1, at), 1);
    b ^= 1;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}
static void flip_magic(const char *path)
{
    flip(path, 0);
}
static void flip_abi(const char *path)
{
    flip(path, 8);
}
static void flip_kind(const char *path)
{
    flip(path, 12);
}
static void flip_padding(const char *path)
{
    flip(path, 14);
}
static void flip_length(const char *path)
{
    flip(path, 16);
}
static void huge_length(const char *path)
{
    flip(path, 23);
}
static void flip_key(const char *path)
{
    flip(path, 24);
}
static void flip_hash(const char *path)
{
    flip(path, 60);
}
static void flip_payload(const char *path)
{
    flip(path, 89);
}
static void writable_by_the_group(const char *path)
{
    assert_int_equal(chmod(path, 0620), 0);
}
static void writable_by_all(const char *path)
{
    assert_int_equal(chmod(path, 0602), 0);
}
static void a_link(const char *path)
{
    char to[300];

    snprintf(to, sizeof(to), "%s.real", path);
    assert_int_equal(rename(path, to), 0);
    assert_int_equal(symlink(to, path), 0);
}
static void a_pipe(const char *path)
{
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
}
static void larger_than_any(const char *path)
{
    assert_int_equal(truncate(path, (64 << 20) + 89), 0);
}

static const struct {
    const char *what;
    void (*harm)(const char *path);
} harms[] = {
    {"a truncated payload", cut},
    {"a truncated header", cut_in_the_header},
    {"an empty file", empty},
    {"a byte too many", longer},
    {"another magic", flip_magic},
    {"another version", flip_abi},
    {"another kind", flip_kind},
    {"padding that is not zero", flip_padding},
    {"another length", flip_length},
    {"a length of 2^56", huge_length},
    {"another key", flip_key},
    {"a wrong hash", flip_hash},
    {"a changed payload", flip_payload},
    {"a file the group may write", writable_by_the_group},
    {"a file all may write", writable_by_all},
    {"a symbolic link to a good entry", a_link},
    {"a pipe", a_pipe},
    {"a file larger than any artifact", larger_than_any},
};

static void each_harm_is_deleted_counted_and_a_miss(void **state)
{
    for (size_t i = 0; i < sizeof(harms) / sizeof(harms[0]); i++) {
        struct be_kcache *c = opened(0);
        char path[256], text[64];
        struct stat st;

        put_s(c, key_a, "payload");
        path_of(path, key_a, "ptx");
        harms[i].harm(path);
        if (get(c, key_a, BE_KC_PTX, text, sizeof(text)) != RC_NOT_FOUND ||
            stats(c).corruptions != 1 || stats(c).misses != 1 || stats(c).hits != 0 ||
            lstat(path, &st) == 0)
            fail_msg("%s was not deleted, counted and missed", harms[i].what);
        put_s(c, key_a, "again"); /* and the place is free */
        OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text)));
        assert_string_equal(text, "again");
        be_kcache_close(&c);
    }
}

static void a_folder_in_an_entrys_place_stays_and_is_a_miss(void **state)
{
    struct be_kcache *c = opened(0);
    char path[256], text[8];

    path_of(path, key_a, "ptx");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(get(c, key_a, BE_KC_PTX, text, sizeof(text)), RC_NOT_FOUND);
    assert_int_equal(be_kcache_put(c, key_a, BE_KC_PTX, "x", 1, NULL), RC_IO);
    assert_int_equal(files_in(dir), 1); /* no temporary file is left */
    be_kcache_close(&c);
}

static void a_directory_that_others_can_write_is_refused(void **state)
{
    static const unsigned modes[] = {0720, 0702, 0777};
    struct be_kcache *c = NULL;
    struct rc_err e = RC_ERR_INIT;
    char path[128];

    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(chmod(dir, modes[i]), 0);
        assert_int_equal(be_kcache_open(&c, dir, 0, &e), RC_INVALID);
        assert_non_null(strstr(e.msg, dir));
        assert_null(c);
    }
    assert_int_equal(chmod(dir, 0700), 0);
    snprintf(path, sizeof(path), "%s/link", dir);
    assert_int_equal(symlink("/tmp", path), 0);
    assert_int_equal(be_kcache_open(&c, path, 0, &e), RC_IO);
    snprintf(path, sizeof(path), "%s/file", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(be_kcache_open(&c, path, 0, &e), RC_IO);
    snprintf(path, sizeof(path), "%s/none/below", dir);
    assert_int_equal(be_kcache_open(&c, path, 0, &e), RC_IO);
}

static void a_directory_that_is_missing_is_made_for_its_owner_alone(void **state)
{
    struct be_kcache *c = NULL;
    struct stat st;
    char path[128];

    snprintf(path, sizeof(path), "%s/new", dir);
    OKAY(be_kcache_open(&c, path, 0, NULL));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    be_kcache_close(&c);
}

/* ---------------------------------------------------------------- room on disk */

static void aged(const uint8_t key[32], int seconds)
{
    char path[256];
    struct timespec t[2];

    path_of(path, key, "ptx");
    clock_gettime(CLOCK_REALTIME, &t[0]);
    t[0].tv_sec -= seconds;
    t[1] = t[0];
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void the_least_recently_used_goes_first(void **state)
{
    struct be_kcache *c = opened(300); /* three of 98 bytes */
    char text[64];

    put_s(c, key_a, "aaaaaaaaaa");
    put_s(c, key_b, "bbbbbbbbbb");
    aged(key_a, 500);
    aged(key_b, 400);
    OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text))); /* a is used: now b is the oldest */
    put_s(c, key_c, "cccccccccc");
    assert_int_equal(stats(c).evictions, 0);
    put_s(c, (const uint8_t[32]){7}, "dddddddddd");
    assert_int_equal(stats(c).evictions, 1);
    assert_int_equal(get(c, key_b, BE_KC_PTX, text, sizeof(text)), RC_NOT_FOUND);
    OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text)));
    OKAY(get(c, key_c, BE_KC_PTX, text, sizeof(text)));
    assert_true(stats(c).bytes <= 300);
    be_kcache_close(&c);
    c = opened(150); /* a smaller cap holds from the start */
    assert_int_equal(files_in(dir), 1);
    assert_int_equal(stats(c).evictions, 2);
    be_kcache_close(&c);
}

static void an_entry_larger_than_the_cap_is_not_stored(void **state)
{
    struct be_kcache *c = opened(100);
    char big[200] = "x", text[8];

    put_s(c, key_a, "small");
    assert_int_equal(be_kcache_put(c, key_b, BE_KC_PTX, big, sizeof(big), NULL), RC_LIMIT);
    OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text))); /* and pushes nobody out */
    be_kcache_close(&c);
}

static void strangers_in_the_directory_are_left_alone(void **state)
{
    struct be_kcache *c;
    char path[128];

    snprintf(path, sizeof(path), "%s/README", dir);
    close(open(path, O_CREAT | O_WRONLY, 0644));
    assert_int_equal(truncate(path, 100000), 0);
    c = opened(200);
    put_s(c, key_a, "a");
    put_s(c, key_b, "b");
    put_s(c, key_c, "c");
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(stats(c).evictions, 1);
    be_kcache_close(&c);
}

static void temporary_files_older_than_a_day_are_reclaimed(void **state)
{
    static const struct {
        const char *name;
        int age;
    } temp[] = {{".tmp-old", 90000}, {".tmp-young", 80000}};
    struct be_kcache *c;
    char path[128];

    for (int i = 0; i < 2; i++) {
        struct timespec t[2];
        int fd;

        snprintf(path, sizeof(path), "%s/%s", dir, temp[i].name);
        fd = open(path, O_CREAT | O_WRONLY, 0600);
        assert_int_equal(write(fd, "12345", 5), 5);
        close(fd);
        clock_gettime(CLOCK_REALTIME, &t[0]);
        t[0].tv_sec -= temp[i].age;
        t[1] = t[0];
        assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
    }
    c = opened(0);
    assert_int_equal(stats(c).stale_temps, 1);
    assert_int_equal(stats(c).temp_bytes, 5);
    assert_int_equal(files_in(dir), 1);
    be_kcache_close(&c);
}

/* In a child: the limit would hold for the rest of the test too. */
static void a_full_disk_is_an_error_and_leaves_nothing(void **state)
{
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct be_kcache *c = NULL;
        struct rlimit l = {200, 200};
        char big[300] = "x", text[8];
        struct rc_err e = RC_ERR_INIT;

        if (be_kcache_open(&c, dir, 0, NULL) != RC_OK || setrlimit(RLIMIT_FSIZE, &l) != 0)
            _exit(1);
        /* SIGXFSZ would kill us here */
        if (be_kcache_put(c, key_a, BE_KC_PTX, big, sizeof(big), &e) != RC_LIMIT)
            _exit(2);
        if (be_kcache_put(c, key_b, BE_KC_PTX, "ok", 2, &e) != RC_OK ||
            get(c, key_b, BE_KC_PTX, text, sizeof(text)) != RC_OK)
            _exit(3);
        _exit(files_in(dir) == 1 ? 0 : 4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_directory_that_cannot_be_written_is_an_error(void **state)
{
    struct be_kcache *c = opened(0);
    struct rc_err e = RC_ERR_INIT;
    char text[8];

    put_s(c, key_a, "a");
    if (geteuid() == 0) { /* root writes anywhere: take the directory away instead */
        char path[256];

        path_of(path, key_a, "ptx");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(dir), 0);
        assert_int_equal(be_kcache_put(c, key_b, BE_KC_PTX, "x", 1, &e), RC_IO);
        assert_int_equal(get(c, key_b, BE_KC_PTX, text, sizeof(text)), RC_NOT_FOUND);
        assert_int_equal(mkdir(dir, 0700), 0);
    } else {
        assert_int_equal(chmod(dir, 0500), 0);
        assert_int_equal(be_kcache_put(c, key_b, BE_KC_PTX, "x", 1, &e), RC_IO);
        OKAY(get(c, key_a, BE_KC_PTX, text, sizeof(text))); /* what is there serves */
    }
    assert_int_equal(stats(c).stores, 1);
    be_kcache_close(&c);
}

/* --------------------------------------------------------------- many processes */

#define KIDS 4
#define ROUNDS 40

/* Each process writes and reads the same few keys under a cap that fits half of them:
 * what is read is always whole, and of its key. */
static int kid(unsigned seed)
{
    struct be_kcache *c = NULL;
    char text[64], want[64];

    if (be_kcache_open(&c, dir, 4 * 100, NULL) != RC_OK)
        return 1;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint8_t key[32] = {(uint8_t)((seed + i) % 8)};
        enum rc rc;

        snprintf(want, sizeof(want), "kernel %u", key[0]);
        rc = be_kcache_put(c, key, BE_KC_PTX, want, strlen(want), NULL);
        if (rc != RC_OK)
            return 2;
        rc = get(c, key, BE_KC_PTX, text, sizeof(text));
        if (rc != RC_NOT_FOUND && (rc != RC_OK || strcmp(text, want) != 0))
            return 3;
    }
    if (stats(c).corruptions != 0)
        return 4;
    be_kcache_close(&c);
    return 0;
}

static void processes_share_a_directory(void **state)
{
    struct be_kcache *c;
    pid_t pid[KIDS];

    for (unsigned i = 0; i < KIDS; i++) {
        assert_true((pid[i] = fork()) >= 0);
        if (pid[i] == 0)
            _exit(kid(i * 3));
    }
    for (unsigned i = 0; i < KIDS; i++) {
        int status = 0;

        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    c = opened(4 * 100);
    assert_int_equal(stats(c).temp_bytes, 0);
    assert_true(stats(c).bytes <= 400);
    be_kcache_close(&c);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, fresh, gone)
    const struct CMUnitTest tests[] = {
        T(what_is_put_comes_back_also_in_another_process_life),
        T(the_header_is_the_one_on_the_page),
        T(each_harm_is_deleted_counted_and_a_miss),
        T(a_folder_in_an_entrys_place_stays_and_is_a_miss),
        T(a_directory_that_others_can_write_is_refused),
        T(a_directory_that_is_missing_is_made_for_its_owner_alone),
        T(the_least_recently_used_goes_first),
        T(an_entry_larger_than_the_cap_is_not_stored),
        T(strangers_in_the_directory_are_left_alone),
        T(temporary_files_older_than_a_day_are_reclaimed),
        T(a_full_disk_is_an_error_and_leaves_nothing),
        T(a_directory_that_cannot_be_written_is_an_error),
        T(processes_share_a_directory),
    };

    return cmocka_run_group_tests_name("be_kcache", tests, NULL, NULL);
}
