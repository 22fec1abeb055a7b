/* sup_receipt.c - reads, writes and checks receipts; hashes nothing itself.
 *
 * Change with care: what the parser refuses. A receipt lies in a folder anybody may have made.
 * Tests: tests/supervisor/test_sup_receipt.c, tests/fuzz/fuzz_receipt.c
 */
#include "sup_receipt.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc.h"

static const char *const names[] = {SUP_RECEIPT_NAME, ".antfly-download-complete.json"};
static const char *const unfinished[] = {SUP_UNFINISHED_NAME, ".antfly-download-in-progress"};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

bool sup_fetch_path_ok(const char *path)
{
    size_t n = strnlen(path, SUP_FETCH_PATH_MAX + 1);
    int depth = 0;

    if (n == 0 || n > SUP_FETCH_PATH_MAX || !ipc_utf8_valid(path, n))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < 0x20 || path[i] == 0x7F || path[i] == '\\')
            return false;
    if (n > 1 && isalpha((unsigned char)path[0]) && path[1] == ':')
        return false;
    for (const char *p = path; p; depth++) {
        const char *end = strchr(p, '/');
        size_t len = end ? (size_t)(end - p) : strlen(p);

        if (len == 0 || len > 255 || (len == 1 && p[0] == '.') ||
            (len == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p = end ? end + 1 : NULL;
    }
    return depth <= SUP_FETCH_DEPTH;
}

bool sup_hex_ok(const char *s, size_t n)
{
    if (!s || strlen(s) != n)
        return false;
    return strspn(s, "0123456789abcdef") == n;
}

void sup_receipt_deinit(struct sup_receipt *r)
{
    for (size_t i = 0; i < r->n_files; i++)
        free(r->file[i].path);
    free(r->file);
    free(r->owner);
    free(r->name);
    free(r->variant);
    free(r->from);
    free(r->revision);
    free(r->commit);
    free(r->format);
    memset(r, 0, sizeof(*r));
}

enum rc sup_receipt_add(struct sup_receipt *r, const char *path, uint64_t size, const char *sha256,
                        struct rc_err *err)
{
    struct sup_artifact *a;

    if (r->n_files >= SUP_RECEIPT_FILES)
        return rc_fail(err, RC_TOO_LARGE, "more than %d files", SUP_RECEIPT_FILES);
    if (r->n_files % 16 == 0) {
        a = realloc(r->file, (r->n_files + 16) * sizeof(*a));
        if (!a)
            return rc_fail(err, RC_NOMEM, "out of memory");
        r->file = a;
    }
    a = &r->file[r->n_files];
    if (!(a->path = strdup(path)))
        return rc_fail(err, RC_NOMEM, "out of memory");
    a->size = size;
    snprintf(a->sha256, sizeof(a->sha256), "%s", sha256 ? sha256 : "");
    r->n_files++;
    return RC_OK;
}

/* ------------------------------------------------------------------- parse */

static enum rc artifact(struct sup_receipt *r, const json_t *o, size_t i, struct rc_err *err)
{
    const char *path = json_string_value(json_object_get(o, "path")), *sha = NULL;
    const json_t *size = json_object_get(o, "size"), *h = json_object_get(o, "sha256");

    if (!path || !sup_fetch_path_ok(path))
        return rc_fail_what(err, RC_FORMAT, "path",
                            "artifact %zu of the receipt: 'path' has to be a plain path inside "
                            "the folder",
                            i);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
        return rc_fail_what(err, RC_FORMAT, "size",
                            "artifact %zu of the receipt: 'size' has to be a whole number, not "
                            "negative",
                            i);
    if (r->version > 1 && h && !json_is_null(h)) {
        sha = json_string_value(h);
        if (!sup_hex_ok(sha, SUP_SHA256_HEX - 1))
            return rc_fail_what(err, RC_FORMAT, "sha256",
                                "artifact %zu of the receipt: 'sha256' has to be null or 64 "
                                "lower-case hexadecimal digits",
                                i);
    }
    return sup_receipt_add(r, path, (uint64_t)json_integer_value(size), sha, err);
}

static int path_cmp(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum rc no_twins(const struct sup_receipt *r, struct rc_err *err)
{
    const char **p = malloc((r->n_files + 1) * sizeof(*p));
    enum rc rc = RC_OK;

    if (!p)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (size_t i = 0; i < r->n_files; i++)
        p[i] = r->file[i].path;
    qsort(p, r->n_files, sizeof(*p), path_cmp);
    for (size_t i = 1; rc == RC_OK && i < r->n_files; i++)
        if (strcmp(p[i - 1], p[i]) == 0)
            rc = rc_fail_what(err, RC_FORMAT, "path", "the receipt lists '%.200s' twice", p[i]);
    free(p);
    return rc;
}

/* A text of a receipt, or "" where it is optional and absent. */
static enum rc text_of(char **out, const json_t *o, const char *key, bool needed,
                       struct rc_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *s = json_string_value(v);

    if ((needed && !s) || (v && !s && !json_is_null(v)) || (s && strlen(s) > 4096))
        return rc_fail_what(err, RC_FORMAT, key,
                            "'%s' of the receipt has to be a text of at most 4096 bytes", key);
    if (!(*out = strdup(s ? s : "")))
        return rc_fail(err, RC_NOMEM, "out of memory");
    return RC_OK;
}

static enum rc source(struct sup_receipt *r, const json_t *o, struct rc_err *err)
{
    const json_t *src = r->version > 1 ? json_object_get(o, "source") : NULL;
    const bool two = r->version > 1;
    const struct {
        char **to;
        const json_t *from;
        const char *key;
        bool needed;
    } rows[] = {
        {&r->owner, src, "owner", two},
        {&r->name, src, "name", two},
        {&r->variant, src, "variant", two},
        {&r->from, two ? o : NULL, "from", false},
        {&r->revision, two ? o : NULL, "revision", false},
        {&r->commit, two ? o : NULL, "commit", false},
        {&r->format, two ? o : NULL, "format", false},
    };
    enum rc rc = RC_OK;

    if (two && !json_is_object(src))
        return rc_fail_what(err, RC_FORMAT, "source",
                            "'source' of the receipt has to be an object");
    for (size_t i = 0; rc == RC_OK && i < COUNT(rows); i++)
        rc = text_of(rows[i].to, rows[i].from, rows[i].key, rows[i].needed, err);
    return rc;
}

static enum rc parse(struct sup_receipt *r, const json_t *o, struct rc_err *err)
{
    const json_t *v = json_object_get(o, "version"), *list = json_object_get(o, "artifacts"), *e;
    enum rc rc;
    size_t i;

    if (!json_is_integer(v))
        return rc_fail_what(err, RC_FORMAT, "version",
                            "'version' of the receipt has to be a whole number");
    if (json_integer_value(v) != 1 && json_integer_value(v) != 2)
        return rc_fail_what(err, RC_UNSUPPORTED, "version",
                            "receipt version %" JSON_INTEGER_FORMAT " is not supported (1 and 2 "
                            "are)",
                            json_integer_value(v));
    r->version = (int)json_integer_value(v);
    if ((rc = source(r, o, err)) != RC_OK)
        return rc;
    if (!json_is_array(list) || json_array_size(list) == 0 ||
        json_array_size(list) > SUP_RECEIPT_FILES)
        return rc_fail_what(err, RC_FORMAT, "artifacts",
                            "'artifacts' of the receipt has to be a list of 1 to %d files",
                            SUP_RECEIPT_FILES);
    json_array_foreach(list, i, e)
    {
        if ((rc = artifact(r, e, i, err)) != RC_OK)
            return rc;
    }
    return no_twins(r, err);
}

enum rc sup_receipt_parse(struct sup_receipt *out, const char *text, size_t n, struct rc_err *err)
{
    struct sup_receipt r = {0};
    json_error_t why;
    json_t *o;
    enum rc rc;

    if (n > SUP_RECEIPT_BYTES)
        return rc_fail(err, RC_TOO_LARGE, "the receipt has %zu bytes, at most %u", n,
                       SUP_RECEIPT_BYTES);
    o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(o)) {
        json_decref(o);
        return rc_fail(err, RC_FORMAT, "the receipt is no JSON object: line %d: %.100s", why.line,
                       o ? "another kind of value" : why.text);
    }
    rc = parse(&r, o, err);
    json_decref(o);
    if (rc == RC_OK)
        *out = r;
    else
        sup_receipt_deinit(&r);
    return rc;
}

/* ------------------------------------------------------------------- files */

static int open_in(int dir_fd, const char *path, bool plain)
{
    /* O_NONBLOCK: a FIFO with a file's name must not hang the reader */
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS |
                                      (plain ? RESOLVE_NO_SYMLINKS : 0u)};
    int fd;

    do
        fd = (int)syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));
    while (fd < 0 && (errno == EINTR || errno == EAGAIN));
    return fd;
}

static enum rc read_all(int fd, char *b, size_t cap, size_t *n, struct rc_err *err)
{
    ssize_t got;

    for (*n = 0; *n < cap; *n += (size_t)got) {
        got = read(fd, b + *n, cap - *n);
        if (got < 0 && errno == EINTR)
            got = 0;
        else if (got < 0)
            return rc_fail(err, RC_IO, "the receipt cannot be read: %s", strerror(errno));
        else if (got == 0)
            break;
    }
    return RC_OK;
}

enum rc sup_receipt_load(struct sup_receipt *out, int dir_fd, struct rc_err *err)
{
    struct stat st;
    char *text = NULL;
    size_t n = 0;
    enum rc rc;
    int fd = -1;

    for (size_t i = 0; fd < 0 && i < COUNT(names); i++)
        fd = open_in(dir_fd, names[i], true);
    if (fd < 0)
        return rc_fail(err, RC_NOT_FOUND, "the folder has no receipt");
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        rc = rc_fail(err, RC_FORMAT, "the receipt is no regular file");
    else if (!(text = malloc(SUP_RECEIPT_BYTES + 1)))
        rc = rc_fail(err, RC_NOMEM, "out of memory");
    else if ((rc = read_all(fd, text, SUP_RECEIPT_BYTES + 1, &n, err)) == RC_OK)
        rc = sup_receipt_parse(out, text, n, err);
    free(text);
    close(fd);
    return rc;
}

static json_t *to_json(const struct sup_receipt *r)
{
    json_t *list = json_array();
    json_t *o =
        json_pack("{s:i, s:{s:s, s:s, s:s}, s:s, s:s, s:s, s:s}", "version", 2, "source", "owner",
                  r->owner, "name", r->name, "variant", r->variant, "from", r->from, "revision",
                  r->revision, "commit", r->commit, "format", r->format);

    for (size_t i = 0; list && i < r->n_files; i++)
        if (json_array_append_new(list,
                                  json_pack("{s:s, s:I, s:s?}", "path", r->file[i].path, "size",
                                            (json_int_t)r->file[i].size, "sha256",
                                            r->file[i].sha256[0] ? r->file[i].sha256 : NULL)) != 0)
            break;
    if (!o || !list || json_array_size(list) != r->n_files ||
        json_object_set(o, "artifacts", list) != 0) {
        json_decref(o);
        o = NULL;
    }
    json_decref(list);
    return o;
}

enum rc sup_receipt_save(const struct sup_receipt *r, int dir_fd, struct rc_err *err)
{
    json_t *o = to_json(r);
    char *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    size_t n = text ? strlen(text) : 0;
    enum rc rc = RC_OK;
    int fd = -1;

    json_decref(o);
    if (!text)
        return rc_fail(err, RC_NOMEM, "no memory for the receipt, or a name that is no UTF-8");
    if (n > SUP_RECEIPT_BYTES)
        rc = rc_fail(err, RC_TOO_LARGE, "the receipt would have %zu bytes, at most %u", n,
                     SUP_RECEIPT_BYTES);
    else if ((fd = openat(dir_fd, SUP_RECEIPT_NAME,
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644)) < 0 ||
             write(fd, text, n) != (ssize_t)n || fsync(fd) != 0)
        rc = rc_fail(err, RC_IO, "the receipt cannot be written: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    free(text);
    return rc;
}

enum rc sup_receipt_open(const struct sup_artifact *a, int dir_fd, bool plain, int *out_fd,
                         struct rc_err *err)
{
    int fd = open_in(dir_fd, a->path, plain);
    struct stat st;

    if (fd < 0)
        return rc_fail_what(err, RC_NOT_FOUND, a->path, "'%.200s' of the receipt: %s", a->path,
                            strerror(errno));
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == a->size) {
        *out_fd = fd;
        return RC_OK;
    }
    close(fd);
    if (!S_ISREG(st.st_mode))
        return rc_fail_what(err, RC_CONFLICT, a->path, "'%.200s' is no regular file", a->path);
    return rc_fail_what(err, RC_CONFLICT, a->path,
                        "'%.200s' has %" PRIu64 " bytes, its receipt says %" PRIu64, a->path,
                        (uint64_t)st.st_size, a->size);
}

enum rc sup_receipt_check(const struct sup_receipt *r, int dir_fd, bool plain, struct rc_err *err)
{
    enum rc rc = RC_OK;
    int fd;

    for (size_t i = 0; rc == RC_OK && i < r->n_files; i++)
        if ((rc = sup_receipt_open(&r->file[i], dir_fd, plain, &fd, err)) == RC_OK)
            close(fd);
    return rc;
}

bool sup_receipt_unfinished(int dir_fd)
{
    for (size_t i = 0; i < COUNT(unfinished); i++)
        if (faccessat(dir_fd, unfinished[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return true;
    return false;
}
