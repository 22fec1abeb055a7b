/* be_kcache.c - compiled kernels and their records on disk.
 *
 * One file per (key, kind), `<64 hex digits>.<kind>`: an 88-byte header, then the payload.
 * A cache is a convenience: whatever is wrong with an entry makes it a miss, whatever is
 * wrong with the directory an error the caller may live with. Several processes may share
 * a directory: entries appear by rename only, and one that vanishes under a reader is a miss.
 *
 * Always true: every check of type, owner and mode is made on the open handle; no symbolic
 * link is followed; a name is either absent or a whole entry. Change with care: the header
 * (BE_KC_ABI). Source: engine.md 1.5. Tests: tests/backends/test_be_kcache.c; fuzz_kcache.c
 */
#include "be_kjit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BE_KC_ABI 1u
#define HEADER_BYTES 88u
#define PAYLOAD_MAX (64ull << 20)
#define CAP_DEFAULT (1ull << 30)
#define TEMP_PREFIX ".tmp-"
#define TEMP_STALE_S (24 * 3600)
#define ENTRIES_MAX 65536u
#define NAME_BYTES 80u

static const uint8_t magic[8] = {'I', 'N', 'F', 'K', 'J', 'I', 'T', '\n'};

struct be_kcache {
    int dir_fd;
    uint64_t cap;
    struct be_kcache_stats st;
};

struct entry {
    char name[NAME_BYTES];
    struct timespec mtime;
    uint64_t size;
};

static const char *kind_word(enum be_kcache_kind k)
{
    static const char *const words[] = {NULL, "ptx", "cubin", "qualified", "quarantine"};

    return (unsigned)k < sizeof(words) / sizeof(words[0]) ? words[k] : NULL;
}

/* -------------------------------------------------------------------- format */

static void put_le(uint8_t *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;

    for (size_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static void header(uint8_t h[HEADER_BYTES], const uint8_t key[32], enum be_kcache_kind kind,
                   const void *p, size_t n)
{
    memset(h, 0, HEADER_BYTES);
    memcpy(h, magic, sizeof(magic));
    put_le(h + 8, BE_KC_ABI, 4);
    h[12] = (uint8_t)kind;
    put_le(h + 16, n, 8);
    memcpy(h + 24, key, 32);
    crypto_hash_sha256(h + 56, p, n);
}

enum rc be_kcache_parse(const uint8_t *p, size_t n, const uint8_t key[32], enum be_kcache_kind kind,
                        const uint8_t **payload, size_t *payload_n, struct rc_err *err)
{
    uint8_t sum[32];
    uint64_t len;

    if (n < HEADER_BYTES)
        return rc_fail(err, RC_FORMAT, "cache entry: %zu bytes, the header has %u", n,
                       HEADER_BYTES);
    if (memcmp(p, magic, sizeof(magic)) != 0)
        return rc_fail(err, RC_FORMAT, "cache entry: wrong magic");
    if (get_le(p + 8, 4) != BE_KC_ABI)
        return rc_fail(err, RC_FORMAT, "cache entry: version %" PRIu64 ", expected %u",
                       get_le(p + 8, 4), BE_KC_ABI);
    if (p[12] != (uint8_t)kind || p[13] || p[14] || p[15])
        return rc_fail(err, RC_FORMAT, "cache entry: kind %u, expected %u", p[12], (unsigned)kind);
    len = get_le(p + 16, 8);
    if (len > PAYLOAD_MAX || len != n - HEADER_BYTES)
        return rc_fail(err, RC_FORMAT,
                       "cache entry: payload of %" PRIu64 " bytes, the file has %zu", len,
                       n - HEADER_BYTES);
    if (memcmp(p + 24, key, 32) != 0)
        return rc_fail(err, RC_FORMAT, "cache entry: another key than its name");
    crypto_hash_sha256(sum, p + HEADER_BYTES, len);
    if (memcmp(p + 56, sum, 32) != 0)
        return rc_fail(err, RC_FORMAT, "cache entry: the payload does not match its hash");
    *payload = p + HEADER_BYTES;
    *payload_n = (size_t)len;
    return RC_OK;
}

/* ----------------------------------------------------------------- directory */

static bool is_entry(const char *name)
{
    size_t n = strspn(name, "0123456789abcdef");

    if (n != 64 || name[n] != '.')
        return false;
    for (unsigned k = BE_KC_PTX; k <= BE_KC_QUARANTINE; k++)
        if (strcmp(name + n + 1, kind_word((enum be_kcache_kind)k)) == 0)
            return true;
    return false;
}

static bool entry_name(char out[NAME_BYTES], const uint8_t key[32], enum be_kcache_kind kind)
{
    char hex[65];

    if (!kind_word(kind))
        return false;
    sodium_bin2hex(hex, sizeof(hex), key, 32);
    snprintf(out, NAME_BYTES, "%s.%s", hex, kind_word(kind));
    return true;
}

static bool add_entry(struct entry **list, size_t *n, size_t *cap, const char *name,
                      const struct stat *st)
{
    if (*n == ENTRIES_MAX)
        return false;
    if (*n == *cap) {
        size_t more = *cap ? *cap * 2 : 64;
        struct entry *p = realloc(*list, more * sizeof(*p));

        if (!p)
            return false;
        *list = p;
        *cap = more;
    }
    snprintf((*list)[*n].name, NAME_BYTES, "%.79s", name);
    (*list)[*n].mtime = st->st_mtim;
    (*list)[*n].size = st->st_size > 0 ? (uint64_t)st->st_size : 0;
    (*n)++;
    return true;
}

static void see_temp(struct be_kcache *c, const char *name, const struct stat *st)
{
    time_t now = time(NULL);

    if (now > st->st_mtime && now - st->st_mtime > TEMP_STALE_S &&
        unlinkat(c->dir_fd, name, 0) == 0)
        c->st.stale_temps++;
    else
        c->st.temp_bytes += st->st_size > 0 ? (uint64_t)st->st_size : 0;
}

/* Lists the entries (NULL: only counts them), reclaims stale temporary files. Counts are
 * made anew: other processes write here too. */
static enum rc scan(struct be_kcache *c, struct entry **out, size_t *out_n, struct rc_err *err)
{
    int fd = openat(c->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct entry *list = NULL;
    size_t n = 0, cap = 0;
    struct dirent *e;
    struct stat st;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return rc_fail(err, RC_IO, "kernel cache: reading the directory: %s", strerror(errno));
    }
    c->st.bytes = c->st.temp_bytes = 0;
    while ((e = readdir(d)) != NULL) {
        bool temp = strncmp(e->d_name, TEMP_PREFIX, strlen(TEMP_PREFIX)) == 0;

        if ((!temp && !is_entry(e->d_name)) ||
            fstatat(c->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (temp) {
            see_temp(c, e->d_name, &st);
            continue;
        }
        c->st.bytes += st.st_size > 0 ? (uint64_t)st.st_size : 0;
        if (out && !add_entry(&list, &n, &cap, e->d_name, &st))
            break;
    }
    closedir(d);
    if (out) {
        *out = list;
        *out_n = n;
    }
    return RC_OK;
}

static int older_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->mtime.tv_sec != y->mtime.tv_sec)
        return x->mtime.tv_sec < y->mtime.tv_sec ? -1 : 1;
    if (x->mtime.tv_nsec != y->mtime.tv_nsec)
        return x->mtime.tv_nsec < y->mtime.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Removes the least recently used entries until `extra` more bytes fit. `keep` is spared. */
static enum rc make_room(struct be_kcache *c, uint64_t extra, const char *keep, struct rc_err *err)
{
    struct entry *list = NULL;
    size_t n = 0;
    enum rc rc = scan(c, &list, &n, err);

    if (rc == RC_OK && c->st.bytes + extra > c->cap) {
        qsort(list, n, sizeof(*list), older_first);
        for (size_t i = 0; i < n && c->st.bytes + extra > c->cap; i++) {
            if (keep && strcmp(list[i].name, keep) == 0)
                continue;
            if (unlinkat(c->dir_fd, list[i].name, 0) == 0)
                c->st.evictions++;
            else if (errno != ENOENT)
                continue;
            c->st.bytes -= list[i].size;
        }
    }
    free(list);
    return rc;
}

enum rc be_kcache_open(struct be_kcache **out, const char *dir, uint64_t cap_bytes,
                       struct rc_err *err)
{
    struct be_kcache *c = NULL;
    struct stat st;
    enum rc rc;
    int fd;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return rc_fail_what(err, RC_IO, dir, "kernel cache '%s': %s", dir, strerror(errno));
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return rc_fail_what(err, RC_IO, dir,
                            errno == ENOTDIR || errno == ELOOP
                                ? "kernel cache '%s': not a directory (links are not followed)"
                                : "kernel cache '%s': it cannot be opened",
                            dir);
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
        rc = rc_fail_what(err, RC_INVALID, dir,
                          "kernel cache '%s': mode %03o, owner %u: expected a directory of user %u "
                          "that nobody else can write (0700)",
                          dir, (unsigned)st.st_mode & 0777, (unsigned)st.st_uid,
                          (unsigned)geteuid());
        goto out;
    }
    if (!(c = calloc(1, sizeof(*c)))) {
        rc = rc_fail(err, RC_NOMEM, "kernel cache: no memory");
        goto out;
    }
    c->dir_fd = fd;
    fd = -1;
    c->cap = cap_bytes ? cap_bytes : CAP_DEFAULT;
    if ((rc = make_room(c, 0, NULL, err)) == RC_OK) {
        *out = c;
        c = NULL;
    }
out:
    if (fd >= 0)
        close(fd);
    be_kcache_close(&c);
    return rc;
}

void be_kcache_close(struct be_kcache **c)
{
    if (!c || !*c)
        return;
    close((*c)->dir_fd);
    free(*c);
    *c = NULL;
}

void be_kcache_stats(const struct be_kcache *c, struct be_kcache_stats *out)
{
    *out = c->st;
}

/* ------------------------------------------------------------------- reading */

static enum rc miss(struct be_kcache *c, struct rc_err *err)
{
    c->st.misses++;
    return rc_fail(err, RC_NOT_FOUND, "kernel cache: no such entry");
}

static enum rc corrupt(struct be_kcache *c, const char *name, struct rc_err *err)
{
    c->st.corruptions++;
    unlinkat(c->dir_fd, name, 0); /* a folder of that name stays, and stays a miss */
    return miss(c, err);
}

static bool read_all(int fd, uint8_t *p, size_t n)
{
    while (n > 0) {
        ssize_t r = read(fd, p, n);

        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        p += r;
        n -= (size_t)r;
    }
    return true;
}

enum rc be_kcache_get(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind,
                      uint8_t **out, size_t *n, struct rc_err *err)
{
    char name[NAME_BYTES];
    const uint8_t *payload;
    uint8_t *buf = NULL;
    size_t payload_n, size;
    struct stat st;
    enum rc rc;
    int fd;

    if (!entry_name(name, key, kind))
        return rc_fail(err, RC_INVALID, "kernel cache: kind %d is unknown", (int)kind);
    /* NONBLOCK: a pipe somebody put there must not stop us */
    fd = openat(c->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? miss(c, err) : corrupt(c, name, err);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 022) != 0 || st.st_size < (off_t)HEADER_BYTES ||
        (uint64_t)st.st_size > HEADER_BYTES + PAYLOAD_MAX) {
        rc = corrupt(c, name, err);
        goto out;
    }
    size = (size_t)st.st_size;
    if (!(buf = malloc(size))) {
        rc = rc_fail(err, RC_NOMEM, "kernel cache: no memory for an entry of %zu bytes", size);
        goto out;
    }
    if (!read_all(fd, buf, size) ||
        be_kcache_parse(buf, size, key, kind, &payload, &payload_n, NULL) != RC_OK) {
        rc = corrupt(c, name, err);
        goto out;
    }
    futimens(fd, NULL); /* used now; if that fails the entry merely looks older */
    memmove(buf, payload, payload_n);
    c->st.hits++;
    *out = buf;
    *n = payload_n;
    buf = NULL;
    rc = RC_OK;
out:
    free(buf);
    close(fd);
    return rc;
}

/* ------------------------------------------------------------------- writing */

static bool write_all(int fd, const void *p, size_t n)
{
    const uint8_t *at = p;

    while (n > 0) {
        ssize_t r = write(fd, at, n);

        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        at += r;
        n -= (size_t)r;
    }
    return true;
}

/* Exclusive, so two processes never write one temporary file. */
static int temp_open(struct be_kcache *c, char name[NAME_BYTES])
{
    uint64_t r;
    int fd = -1;

    for (int i = 0; i < 8 && fd < 0; i++) {
        if (getrandom(&r, sizeof(r), 0) != (ssize_t)sizeof(r))
            return -1;
        snprintf(name, NAME_BYTES, TEMP_PREFIX "%016" PRIx64, r);
        fd = openat(c->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -1;
    }
    return fd;
}

static enum rc store(struct be_kcache *c, const char *name, const uint8_t h[HEADER_BYTES],
                     const void *p, size_t n, struct rc_err *err)
{
    char temp[NAME_BYTES];
    const char *step = "creating a temporary file";
    int fd = temp_open(c, temp);
    bool ok = false;

    if (fd >= 0) {
        step = "writing";
        ok = write_all(fd, h, HEADER_BYTES) && write_all(fd, p, n);
        if (ok) {
            step = "fsync";
            ok = fsync(fd) == 0;
        }
        if (close(fd) != 0)
            ok = false;
    }
    if (ok) {
        step = "rename";
        ok = renameat(c->dir_fd, temp, c->dir_fd, name) == 0;
    }
    if (!ok) {
        int e = errno;

        if (fd >= 0)
            unlinkat(c->dir_fd, temp, 0);
        return rc_fail(err, RC_IO, "kernel cache: %s: %s", step, strerror(e));
    }
    fsync(c->dir_fd); /* the entry is whole either way; a crash may only lose it */
    return RC_OK;
}

/* Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which a library cannot catch. */
static bool over_file_limit(uint64_t bytes)
{
    struct rlimit l;

    return getrlimit(RLIMIT_FSIZE, &l) == 0 && l.rlim_cur != RLIM_INFINITY && bytes > l.rlim_cur;
}

enum rc be_kcache_put(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind,
                      const void *p, size_t n, struct rc_err *err)
{
    uint64_t total = (uint64_t)n + HEADER_BYTES;
    uint8_t h[HEADER_BYTES];
    char name[NAME_BYTES];
    enum rc rc;

    if (!entry_name(name, key, kind))
        return rc_fail(err, RC_INVALID, "kernel cache: kind %d is unknown", (int)kind);
    if (n > PAYLOAD_MAX)
        return rc_fail(err, RC_TOO_LARGE, "kernel cache: an entry of %zu bytes, at most %llu", n,
                       (unsigned long long)PAYLOAD_MAX);
    if (total > c->cap || over_file_limit(total))
        return rc_fail(err, RC_LIMIT,
                       "kernel cache: an entry of %" PRIu64
                       " bytes fits neither its cap nor the limit of a file's size",
                       total);
    header(h, key, kind, p, n);
    if ((rc = make_room(c, total, NULL, err)) != RC_OK ||
        (rc = store(c, name, h, p, n, err)) != RC_OK)
        return rc;
    c->st.stores++;
    return make_room(c, 0, name, err); /* others may have stored meanwhile */
}

void be_kcache_del(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind)
{
    char name[NAME_BYTES];

    if (entry_name(name, key, kind))
        unlinkat(c->dir_fd, name, 0);
}
