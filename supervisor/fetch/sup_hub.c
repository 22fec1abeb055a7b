/* sup_hub.c - the hub's JSON into a list of files. Its bytes are foreign.
 *
 * Tests: tests/supervisor/test_sup_hub.c, tests/fuzz/fuzz_hub.c
 */
#include "sup_hub.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sup_hub_deinit(struct sup_hub_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->file[i].path);
    free(l->file);
    memset(l, 0, sizeof(*l));
}

enum rc sup_hub_add(struct sup_hub_list *l, const char *path, uint64_t size, const char *sha256,
                    const char *blob, struct rc_err *err)
{
    struct sup_hub_file *f;

    if (l->n >= SUP_HUB_FILES)
        return rc_fail(err, RC_TOO_LARGE, "the repository lists more than %d files", SUP_HUB_FILES);
    if (!sup_fetch_path_ok(path))
        return rc_fail_what(err, RC_FORMAT, "rfilename",
                            "the repository lists '%.200s', which is no plain path inside it",
                            path);
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 32;

        if (!(f = realloc(l->file, cap * sizeof(*f))))
            return rc_fail(err, RC_NOMEM, "out of memory");
        l->file = f;
        l->cap = cap;
    }
    f = &l->file[l->n];
    memset(f, 0, sizeof(*f));
    if (!(f->path = strdup(path)))
        return rc_fail(err, RC_NOMEM, "out of memory");
    f->size = size;
    snprintf(f->sha256, sizeof(f->sha256), "%s", sha256 ? sha256 : "");
    snprintf(f->blob, sizeof(f->blob), "%s", blob ? blob : "");
    l->n++;
    return RC_OK;
}

static int file_cmp(const void *a, const void *b)
{
    return strcmp(((const struct sup_hub_file *)a)->path, ((const struct sup_hub_file *)b)->path);
}

enum rc sup_hub_sort(struct sup_hub_list *l, struct rc_err *err)
{
    if (l->n > 1)
        qsort(l->file, l->n, sizeof(*l->file), file_cmp);
    for (size_t i = 1; i < l->n; i++)
        if (strcmp(l->file[i - 1].path, l->file[i].path) == 0)
            return rc_fail_what(err, RC_FORMAT, "rfilename", "the repository lists '%.200s' twice",
                                l->file[i].path);
    return RC_OK;
}

struct sup_hub_file *sup_hub_find(struct sup_hub_list *l, const char *path)
{
    struct sup_hub_file key = {.path = (char *)(uintptr_t)path};

    return l->n ? bsearch(&key, l->file, l->n, sizeof(key), file_cmp) : NULL;
}

/* ------------------------------------------------------------------- parse */

static enum rc size_of(uint64_t *out, const json_t *o, const char *path, struct rc_err *err)
{
    const json_t *v = json_object_get(o, "size");

    if (!v || json_is_null(v)) {
        *out = SUP_SIZE_UNKNOWN;
        return RC_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return rc_fail_what(err, RC_FORMAT, "size", "the hub's size of '%.200s' is no whole number",
                            path);
    *out = (uint64_t)json_integer_value(v);
    return RC_OK;
}

static enum rc hash_of(const char **out, const json_t *o, const char *key, size_t n,
                       const char *path, struct rc_err *err)
{
    const json_t *v = json_object_get(o, key);

    *out = json_string_value(v);
    if (*out && strncmp(*out, "sha256:", 7) == 0)
        *out += 7;
    if (v && !json_is_null(v) && !sup_hex_ok(*out, n))
        return rc_fail_what(err, RC_FORMAT, key,
                            "the hub's %s of '%.200s' has to be %zu hexadecimal digits", key, path,
                            n);
    return RC_OK;
}

/* One of the list's entries. "lfs" holds size and hash of what a large file really is, and is
 * spelled in two ways. */
static enum rc sibling(struct sup_hub_list *l, const json_t *o, struct rc_err *err)
{
    const char *path = json_string_value(json_object_get(o, "rfilename"));
    const json_t *lfs = json_object_get(o, "lfs");
    const char *sha = NULL, *oid = NULL, *blob = NULL;
    uint64_t size, lfs_size;
    enum rc rc;

    if (!path)
        return rc_fail_what(err, RC_FORMAT, "rfilename",
                            "a file of the hub's list has no 'rfilename'");
    if (!json_is_object(lfs))
        lfs = NULL;
    if ((rc = size_of(&size, o, path, err)) != RC_OK ||
        (rc = size_of(&lfs_size, lfs, path, err)) != RC_OK ||
        (rc = hash_of(&sha, lfs, "sha256", 64, path, err)) != RC_OK ||
        (rc = hash_of(&oid, lfs, "oid", 64, path, err)) != RC_OK ||
        (rc = hash_of(&blob, lfs ? NULL : o, "blobId", 40, path, err)) != RC_OK)
        return rc;
    return sup_hub_add(l, path, lfs && lfs_size != SUP_SIZE_UNKNOWN ? lfs_size : size,
                       sha ? sha : oid, blob, err);
}

static enum rc parse(struct sup_hub_list *l, const json_t *o, struct rc_err *err)
{
    const char *commit = json_string_value(json_object_get(o, "sha"));
    const json_t *list = json_object_get(o, "siblings"), *e;
    enum rc rc;
    size_t i;

    if (!sup_hex_ok(commit, 40) && !sup_hex_ok(commit, 64))
        return rc_fail_what(err, RC_FORMAT, "sha",
                            "the hub names no commit ('sha' has to be 40 or 64 hexadecimal "
                            "digits)");
    snprintf(l->commit, sizeof(l->commit), "%s", commit);
    if (!json_is_array(list))
        return rc_fail_what(err, RC_FORMAT, "siblings",
                            "the hub lists no files ('siblings' has to be a list)");
    json_array_foreach(list, i, e)
    {
        if ((rc = sibling(l, e, err)) != RC_OK)
            return rc;
    }
    return sup_hub_sort(l, err);
}

enum rc sup_hub_parse(struct sup_hub_list *out, const char *json, size_t n, struct rc_err *err)
{
    struct sup_hub_list l = {0};
    json_error_t why;
    json_t *o;
    enum rc rc;

    if (n > SUP_HUB_JSON_BYTES)
        return rc_fail(err, RC_TOO_LARGE, "the hub's list has more than %u bytes",
                       SUP_HUB_JSON_BYTES);
    o = json_loadb(json, n, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(o))
        rc = parse(&l, o, err);
    else
        rc = rc_fail(err, RC_FORMAT, "the hub's answer is no JSON object: %.100s",
                     o ? "another kind of value" : why.text);
    json_decref(o);
    if (rc == RC_OK)
        *out = l;
    else
        sup_hub_deinit(&l);
    return rc;
}
