/* mdl_zip.c - finds the entries of a zip archive without unpacking anything.
 *
 * torch.save writes every entry stored and aligned, so that a tensor can be read where it lies in
 * the mapped file; a library would copy it out. Only the directory at the end and each entry's own
 * header are read, those of zip64 too; what an entry holds is its reader's to check.
 * Always true: an entry's bytes lie inside the archive; names are unique.
 * Source: PKWARE APPNOTE 6.3.10, 4.3 and 4.5.3. Tests: tests/models/test_mdl_torch.c, fuzz:
 * tests/fuzz/fuzz_torch.c
 */
#include "mdl_zip.h"

#include <stdlib.h>
#include <string.h>

#include "mdl_file_impl.h"

#define END_BYTES 22u
#define END64_BYTES 56u
#define LOCATOR_BYTES 20u
#define ENTRY_BYTES 46u
#define LOCAL_BYTES 30u
#define MAX_COMMENT 65535u
#define MAX_ENTRIES (2u * MDL_MAX_TENSORS)

struct reader {
    const uint8_t *p;
    uint64_t n;
    const char *what;
    struct rc_err *err;
};

static enum rc bad(const struct reader *r, const char *why)
{
    return rc_fail(r->err, RC_FORMAT, "'%s' is not a sound zip archive: %s", r->what, why);
}

/* The record at the very end, behind which only its own comment may stand. */
static const uint8_t *find_end(const struct reader *r)
{
    uint64_t k;

    for (k = END_BYTES; k <= r->n && k <= END_BYTES + MAX_COMMENT; k++) {
        const uint8_t *e = r->p + (r->n - k);

        if (mdl_le(e, 4) == 0x06054b50 && mdl_le(e + 20, 2) == k - END_BYTES)
            return e;
    }
    return NULL;
}

/* Where the directory is and how many entries it has. */
static enum rc find_directory(const struct reader *r, uint64_t *at, uint64_t *n_bytes, uint64_t *n)
{
    const uint8_t *e = find_end(r), *l = e && e - r->p >= LOCATOR_BYTES ? e - LOCATOR_BYTES : NULL;
    uint64_t end64;

    if (!e)
        return bad(r, "it has no end record");
    if (mdl_le(e + 4, 2) != 0 || mdl_le(e + 6, 2) != 0)
        return rc_fail(r->err, RC_UNSUPPORTED, "'%s': a zip archive in several parts", r->what);
    *n = mdl_le(e + 10, 2);
    *n_bytes = mdl_le(e + 12, 4);
    *at = mdl_le(e + 16, 4);
    if (l && mdl_le(l, 4) == 0x07064b50) {
        end64 = mdl_le(l + 8, 8);
        if (r->n < END64_BYTES || end64 > r->n - END64_BYTES ||
            mdl_le(r->p + end64, 4) != 0x06064b50)
            return bad(r, "its zip64 end record is not where it says");
        *n = mdl_le(r->p + end64 + 32, 8);
        *n_bytes = mdl_le(r->p + end64 + 40, 8);
        *at = mdl_le(r->p + end64 + 48, 8);
    }
    if (*at > r->n || *n_bytes > r->n - *at)
        return bad(r, "its directory lies outside of it");
    if (*n > *n_bytes / ENTRY_BYTES || *n > MAX_ENTRIES)
        return bad(r, "more entries than its directory has room for, or than are allowed");
    return RC_OK;
}

/* The 64-bit forms of those of the three numbers that did not fit, in this order. */
static bool widen(const uint8_t *x, size_t n_extra, uint64_t *size, uint64_t *packed,
                  uint64_t *offset)
{
    uint64_t *const nums[] = {size, packed, offset};
    size_t i, k, len;

    for (; n_extra >= 4; x += 4 + len, n_extra -= 4 + len) {
        len = mdl_le(x + 2, 2);
        if (len > n_extra - 4)
            return false;
        if (mdl_le(x, 2) != 1)
            continue;
        for (i = k = 0; i < 3; i++)
            if (*nums[i] == UINT32_MAX) {
                if (len - k < 8)
                    return false;
                *nums[i] = mdl_le(x + 4 + k, 8);
                k += 8;
            }
        return true;
    }
    return *size != UINT32_MAX && *packed != UINT32_MAX && *offset != UINT32_MAX;
}

/* One line of the directory; *used is its length. */
static enum rc read_entry(const struct reader *r, const uint8_t *d, uint64_t left,
                          struct mdl_zip_entry *out, uint64_t *used)
{
    uint64_t size, packed, offset, n_name, n_extra, skip;
    char show[80];

    if (left < ENTRY_BYTES || mdl_le(d, 4) != 0x02014b50)
        return bad(r, "its directory is cut short");
    n_name = mdl_le(d + 28, 2);
    n_extra = mdl_le(d + 30, 2);
    *used = ENTRY_BYTES + n_name + n_extra + mdl_le(d + 32, 2);
    if (*used > left)
        return bad(r, "its directory is cut short");
    packed = mdl_le(d + 20, 4);
    size = mdl_le(d + 24, 4);
    offset = mdl_le(d + 42, 4);
    out->name = (const char *)d + ENTRY_BYTES;
    out->n_name = n_name;
    mdl_show(show, sizeof(show), out->name, n_name);
    if (!widen(d + ENTRY_BYTES + n_name, n_extra, &size, &packed, &offset))
        return bad(r, "an entry's 64-bit lengths are missing");
    if (mdl_le(d + 10, 2) != 0 || size != packed || (mdl_le(d + 8, 2) & 1))
        return rc_fail(r->err, RC_UNSUPPORTED,
                       "'%s': entry '%s' is compressed or encrypted; expected stored ones, as "
                       "torch.save writes them",
                       r->what, show);
    if (r->n < LOCAL_BYTES || offset > r->n - LOCAL_BYTES || mdl_le(r->p + offset, 4) != 0x04034b50)
        return bad(r, "an entry is not where the directory says");
    skip = LOCAL_BYTES + mdl_le(r->p + offset + 26, 2) + mdl_le(r->p + offset + 28, 2);
    if (skip > r->n - offset || size > r->n - offset - skip)
        return bad(r, "an entry is longer than what is left of the archive");
    out->data = r->p + offset + skip;
    out->n_bytes = size;
    return RC_OK;
}

static int compare(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int c = memcmp(a, b, n_a < n_b ? n_a : n_b);

    return c ? c : n_a < n_b ? -1 : n_a > n_b;
}

static int by_name(const void *a, const void *b)
{
    const struct mdl_zip_entry *x = a, *y = b;

    return compare(x->name, x->n_name, y->name, y->n_name);
}

const struct mdl_zip_entry *mdl_zip_find(const struct mdl_zip *z, const char *name, size_t n_name)
{
    const struct mdl_zip_entry key = {.name = name, .n_name = n_name};

    return z->n ? bsearch(&key, z->entries, z->n, sizeof(key), by_name) : NULL;
}

enum rc mdl_zip_read(struct mdl_zip *out, const uint8_t *p, size_t n_bytes, const char *what,
                     struct rc_err *err)
{
    const struct reader r = {.p = p, .n = n_bytes, .what = what, .err = err};
    struct mdl_zip z = {0};
    uint64_t at = 0, left = 0, n = 0, used = 0, i;
    enum rc rc = find_directory(&r, &at, &left, &n);

    if (rc != RC_OK)
        return rc;
    if (!(z.entries = calloc(n + 1, sizeof(*z.entries))))
        return rc_fail(err, RC_NOMEM, "no memory for %llu zip entries", (unsigned long long)n);
    for (i = 0; rc == RC_OK && i < n; i++, at += used, left -= used)
        if ((rc = read_entry(&r, p + at, left, &z.entries[i], &used)) != RC_OK)
            break;
    z.n = n;
    if (rc == RC_OK)
        qsort(z.entries, n, sizeof(*z.entries), by_name);
    for (i = 1; rc == RC_OK && i < n; i++)
        if (by_name(&z.entries[i - 1], &z.entries[i]) == 0)
            rc = bad(&r, "two entries have the same name");
    if (rc != RC_OK)
        mdl_zip_deinit(&z);
    else
        *out = z;
    return rc;
}

void mdl_zip_deinit(struct mdl_zip *z)
{
    free(z->entries);
    *z = (struct mdl_zip){0};
}
