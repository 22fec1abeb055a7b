/* sup_part.c - pieces on disk.
 *
 * Always true: the map never says that a byte is there before it was written; a piece's done is
 * at most its length. Change with care: the order of the two writes.
 * Tests: tests/supervisor/test_sup_part.c
 */
#include "sup_part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAP_MAGIC "IFDMAP1"
#define HASH_BLOCK (256u << 10)

struct map_head {
    char magic[8];
    uint64_t size, piece_bytes;
    char ident[SUP_SHA256_HEX], etag[SUP_ETAG_MAX];
};

static enum rc io(const struct sup_part *p, const char *doing, struct rc_err *err)
{
    int e = errno;

    if (e == ENOSPC || e == EDQUOT || e == EFBIG)
        return rc_fail_what(err, RC_LIMIT, p->path,
                            "no room for '%.200s': %s; what has arrived is kept, so that the "
                            "same pull goes on once there is",
                            p->path, strerror(e));
    return rc_fail_what(err, RC_IO, p->path, "'%.200s' cannot be %s: %s", p->path, doing,
                        strerror(e));
}

static void name_of(const struct sup_part *p, const char *tail, char out[SUP_FETCH_PATH_MAX + 16])
{
    snprintf(out, SUP_FETCH_PATH_MAX + 16, "%s%s", p->path, tail);
}

static enum rc folders(const struct sup_part *p, struct rc_err *err)
{
    char path[SUP_FETCH_PATH_MAX + 1];

    snprintf(path, sizeof(path), "%s", p->path);
    for (char *s = strchr(path, '/'); s; s = strchr(s + 1, '/')) {
        *s = '\0';
        if (mkdirat(p->dir_fd, path, 0755) != 0 && errno != EEXIST)
            return io(p, "made", err);
        *s = '/';
    }
    return RC_OK;
}

static enum rc cut(struct sup_part *p, bool whole, struct rc_err *err)
{
    uint64_t each = whole || p->size < 2 * SUP_PIECE_BYTES ? p->size : SUP_PIECE_BYTES;
    uint64_t n = each ? (p->size + each - 1) / each : 0;

    free(p->piece);
    p->n_pieces = 0;
    p->whole = whole;
    if (!(p->piece = calloc((size_t)n + 1, sizeof(*p->piece))))
        return rc_fail(err, RC_NOMEM, "out of memory");
    p->n_pieces = (size_t)n;
    for (size_t i = 0; i < p->n_pieces; i++) {
        p->piece[i].begin = i * each;
        p->piece[i].end = p->size - i * each < each ? p->size : (i + 1) * each;
    }
    return RC_OK;
}

static void hash_start(struct sup_part *p)
{
    char head[32];
    int n = snprintf(head, sizeof(head), "blob %" PRIu64, p->size) + 1; /* its NUL is part of it */

    p->hashed = 0;
    sha256_init(&p->sha256);
    sha1_init(&p->blob);
    sha1_update(&p->blob, (size_t)n, (const uint8_t *)head);
}

static enum rc map_head_write(struct sup_part *p, struct rc_err *err)
{
    struct map_head h = {.magic = MAP_MAGIC, .size = p->size};

    h.piece_bytes = p->n_pieces ? p->piece[0].end : 0;
    memcpy(h.ident, p->ident, sizeof(h.ident));
    memcpy(h.etag, p->etag, sizeof(h.etag));
    return pwrite(p->map_fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) ? RC_OK
                                                                     : io(p, "written", err);
}

static enum rc map_piece_write(struct sup_part *p, size_t i, struct rc_err *err)
{
    off_t at = (off_t)(sizeof(struct map_head) + i * sizeof(uint64_t));

    return pwrite(p->map_fd, &p->piece[i].done, sizeof(uint64_t), at) == (ssize_t)sizeof(uint64_t)
               ? RC_OK
               : io(p, "written", err);
}

enum rc sup_part_restart(struct sup_part *p, bool whole, struct rc_err *err)
{
    enum rc rc = cut(p, whole, err);

    if (rc != RC_OK)
        return rc;
    hash_start(p);
    p->etag[0] = '\0';
    memset(p->etag, 0, sizeof(p->etag));
    if (ftruncate(p->part_fd, 0) != 0 || ftruncate(p->map_fd, 0) != 0)
        return io(p, "emptied", err);
    rc = map_head_write(p, err);
    for (size_t i = 0; rc == RC_OK && i < p->n_pieces; i++)
        rc = map_piece_write(p, i, err);
    return rc;
}

/* What an earlier pull left; false = nothing that fits. */
static bool map_read(struct sup_part *p, uint64_t have)
{
    struct map_head h;

    if (pread(p->map_fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h) ||
        memcmp(h.magic, MAP_MAGIC, sizeof(h.magic)) != 0 || h.size != p->size ||
        h.piece_bytes != (p->n_pieces ? p->piece[0].end : 0) ||
        memcmp(h.ident, p->ident, sizeof(h.ident)) != 0 ||
        memchr(h.etag, 0, sizeof(h.etag)) == NULL)
        return false;
    for (size_t i = 0; i < p->n_pieces; i++) {
        struct sup_piece *x = &p->piece[i];

        if (pread(p->map_fd, &x->done, sizeof(x->done), (off_t)(sizeof(h) + i * sizeof(x->done))) !=
                (ssize_t)sizeof(x->done) ||
            x->done > x->end - x->begin || (x->done && x->begin + x->done > have))
            return false;
        p->resumed += x->done;
        x->tried_at = x->done;
    }
    memcpy(p->etag, h.etag, sizeof(p->etag));
    return true;
}

/* A file that got its name in an earlier pull is a part again, with all its bytes. */
static bool adopt(struct sup_part *p, const char *part_name)
{
    struct stat st;

    if (fstatat(p->dir_fd, p->path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size == p->size &&
        renameat(p->dir_fd, p->path, p->dir_fd, part_name) == 0)
        return true;
    (void)unlinkat(p->dir_fd, p->path, 0);
    return false;
}

static enum rc all_there(struct sup_part *p, struct rc_err *err)
{
    enum rc rc = map_head_write(p, err);

    for (size_t i = 0; rc == RC_OK && i < p->n_pieces; i++) {
        p->piece[i].done = p->piece[i].tried_at = p->piece[i].end - p->piece[i].begin;
        rc = map_piece_write(p, i, err);
    }
    p->resumed = p->size;
    return rc;
}

enum rc sup_part_open(struct sup_part *p, int dir_fd, const char *path, uint64_t size,
                      const char *ident, struct rc_err *err)
{
    char part[SUP_FETCH_PATH_MAX + 16], map[SUP_FETCH_PATH_MAX + 16];
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat st;
    enum rc rc;
    bool adopted;

    memset(p, 0, sizeof(*p));
    p->path = path;
    p->dir_fd = dir_fd;
    p->size = size;
    p->part_fd = p->map_fd = -1;
    snprintf(p->ident, sizeof(p->ident), "%s", ident);
    name_of(p, ".part", part);
    name_of(p, ".part.map", map);
    if ((rc = folders(p, err)) != RC_OK)
        return rc;
    adopted = adopt(p, part);
    if ((p->part_fd = openat(dir_fd, part, flags, 0644)) < 0 ||
        (p->map_fd = openat(dir_fd, map, flags, 0600)) < 0 || fstat(p->part_fd, &st) != 0)
        return io(p, "opened", err);
    if ((rc = cut(p, false, err)) != RC_OK)
        return rc;
    hash_start(p);
    if (adopted)
        return all_there(p, err);
    if (!map_read(p, (uint64_t)st.st_size)) {
        p->resumed = 0;
        return sup_part_restart(p, false, err);
    }
    return RC_OK;
}

void sup_part_close(struct sup_part *p)
{
    if (p->part_fd >= 0)
        close(p->part_fd);
    if (p->map_fd >= 0)
        close(p->map_fd);
    p->part_fd = p->map_fd = -1;
    free(p->piece);
    p->piece = NULL;
    p->n_pieces = 0;
}

enum rc sup_part_write(struct sup_part *p, size_t i, const char *b, size_t n, struct rc_err *err)
{
    struct sup_piece *x = &p->piece[i];

    if (n > x->end - x->begin - x->done)
        return rc_fail_what(err, RC_TOO_LARGE, p->path, "more bytes of '%.200s' came than it has",
                            p->path);
    while (n) {
        ssize_t w = pwrite(p->part_fd, b, n, (off_t)(x->begin + x->done));

        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return io(p, "written", err);
        x->done += (uint64_t)w;
        b += w;
        n -= (size_t)w;
    }
    return map_piece_write(p, i, err);
}

enum rc sup_part_etag(struct sup_part *p, const char *etag, struct rc_err *err)
{
    snprintf(p->etag, sizeof(p->etag), "%s", etag);
    return map_head_write(p, err);
}

uint64_t sup_part_done(const struct sup_part *p)
{
    uint64_t n = 0;

    for (size_t i = 0; i < p->n_pieces; i++)
        n += p->piece[i].done;
    return n;
}

/* First byte that is not there. */
static uint64_t frontier(const struct sup_part *p)
{
    for (size_t i = 0; i < p->n_pieces; i++)
        if (p->piece[i].begin + p->piece[i].done < p->piece[i].end)
            return p->piece[i].begin + p->piece[i].done;
    return p->size;
}

enum rc sup_part_hash(struct sup_part *p, uint64_t max, bool *all, struct rc_err *err)
{
    uint64_t to = frontier(p);
    uint8_t *b;
    enum rc rc = RC_OK;

    *all = to == p->size && p->hashed == p->size;
    if (to == p->hashed)
        return RC_OK;
    if (to - p->hashed > max)
        to = p->hashed + max;
    if (!(b = malloc(HASH_BLOCK)))
        return rc_fail(err, RC_NOMEM, "out of memory");
    while (p->hashed < to) {
        size_t want = to - p->hashed < HASH_BLOCK ? (size_t)(to - p->hashed) : HASH_BLOCK;
        ssize_t got = pread(p->part_fd, b, want, (off_t)p->hashed);

        if (got <= 0) {
            rc = io(p, "read", err);
            break;
        }
        sha256_update(&p->sha256, (size_t)got, b);
        if (p->want_blob)
            sha1_update(&p->blob, (size_t)got, b);
        p->hashed += (uint64_t)got;
    }
    free(b);
    *all = p->hashed == p->size;
    return rc;
}

static void hex(char *out, const uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
}

void sup_part_sums(struct sup_part *p, char sha256[SUP_SHA256_HEX], char blob[SUP_SHA1_HEX])
{
    uint8_t a[SHA256_DIGEST_SIZE], b[SHA1_DIGEST_SIZE];

    sha256_digest(&p->sha256, sizeof(a), a);
    sha1_digest(&p->blob, sizeof(b), b);
    hex(sha256, a, sizeof(a));
    blob[0] = '\0';
    if (p->want_blob)
        hex(blob, b, sizeof(b));
    hash_start(p);
}

enum rc sup_part_finish(struct sup_part *p, struct rc_err *err)
{
    char part[SUP_FETCH_PATH_MAX + 16], map[SUP_FETCH_PATH_MAX + 16];

    name_of(p, ".part", part);
    name_of(p, ".part.map", map);
    /* the name must not be older than the bytes */
    if (fsync(p->part_fd) != 0 || renameat(p->dir_fd, part, p->dir_fd, p->path) != 0)
        return io(p, "finished", err);
    if (unlinkat(p->dir_fd, map, 0) != 0)
        return io(p, "finished", err);
    sup_part_close(p);
    return RC_OK;
}
