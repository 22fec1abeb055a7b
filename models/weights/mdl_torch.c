/* mdl_torch.c - the tensors of a state dict that torch.save wrote.
 *
 * The file is a zip archive (mdl_zip.c) with a pickle that says names, shapes and which entry holds
 * each tensor's numbers (mdl_pickle.c). Tensors are views into the mapped file.
 * Always true: a tensor's numbers lie inside its entry; tensors that are not in the order of their
 * numbers are refused.
 * Source: torch/serialization.py of 2.11. Tests: tests/models/test_mdl_torch.c, fuzz:
 * tests/fuzz/fuzz_torch.c
 */
#include "mdl_file_impl.h"
#include "mdl_pickle.h"
#include "mdl_zip.h"

#define MAX_PICKLE (16u << 20)

/* "archive/data.pkl": its folder, with the slash; entries of all tensors are below it. */
static const struct mdl_zip_entry *find_pickle(const struct mdl_zip *z, size_t *n_folder)
{
    static const char name[] = "data.pkl";
    size_t i, n = sizeof(name) - 1;

    for (i = 0; i < z->n; i++) {
        const struct mdl_zip_entry *e = &z->entries[i];

        if (e->n_name > n && memcmp(e->name + e->n_name - n, name, n) == 0 &&
            memchr(e->name, '/', e->n_name) == e->name + e->n_name - n - 1) {
            *n_folder = e->n_name - n;
            return e;
        }
    }
    return NULL;
}

/* The entry folder + dir + key. */
static const struct mdl_zip_entry *find_entry(const struct mdl_zip *z,
                                              const struct mdl_zip_entry *pickle, size_t n_folder,
                                              const char *dir, const char *key, size_t n_key)
{
    char name[512];
    size_t n_dir = strlen(dir);

    if (n_folder + n_dir + n_key > sizeof(name))
        return NULL;
    memcpy(name, pickle->name, n_folder);
    memcpy(name + n_folder, dir, n_dir);
    memcpy(name + n_folder + n_dir, key, n_key);
    return mdl_zip_find(z, name, n_folder + n_dir + n_key);
}

static enum rc add_tensor(struct mdl_file *f, uint32_t map, const struct mdl_zip *z,
                          const struct mdl_zip_entry *pickle, size_t n_folder,
                          const struct mdl_pickle_tensor *t, struct rc_err *err)
{
    const struct mdl_zip_entry *e = find_entry(z, pickle, n_folder, "data/", t->entry, t->n_entry);
    const struct mdl_storage_type *type = t->type;
    struct mdl_tensor out = {0};
    uint64_t end, bytes;
    const uint8_t *data;
    char show[80];

    mdl_show(show, sizeof(show), t->name, t->n_name);
    if (!e)
        return rc_fail_what(err, RC_FORMAT, show, "tensor '%s': its numbers are not in the archive",
                            show);
    if (!t->in_order && t->n_values > 0)
        return rc_fail_what(err, RC_UNSUPPORTED, show,
                            "tensor '%s': a view whose numbers are not in order (a transposed "
                            "one?); save it with .contiguous()",
                            show);
    if (__builtin_add_overflow(t->first, t->n_values, &end) || end > t->n_storage ||
        __builtin_mul_overflow(end, (uint64_t)type->bytes, &bytes) || bytes > e->n_bytes)
        return rc_fail_what(err, RC_FORMAT, show,
                            "tensor '%s': %llu numbers from number %llu on of a storage of %llu in "
                            "%llu bytes",
                            show, (unsigned long long)t->n_values, (unsigned long long)t->first,
                            (unsigned long long)t->n_storage, (unsigned long long)e->n_bytes);
    data = e->data + t->first * type->bytes;
    if (type->be < 0 || t->n_dims > MDL_MAX_DIMS) {
        bool ints = strcmp(type->dtype, "I64") == 0 || strcmp(type->dtype, "I32") == 0;

        return mdl_file_skip(f, t->name, t->n_name, type->be < 0 ? type->dtype : "of 5+ dims",
                             ints ? data : NULL, ints ? t->n_values : 0, err);
    }
    memcpy(out.dims, t->dims, sizeof(out.dims));
    out.n_dims = t->n_dims;
    out.dtype = (enum be_dtype)type->be;
    out.n_bytes = t->n_values * type->bytes;
    out.data = data;
    return mdl_file_add(f, &out, t->name, t->n_name, map, err);
}

static enum rc check_bytes(const struct mdl_map *m, const struct mdl_zip *z,
                           const struct mdl_zip_entry *pickle, size_t n_folder, struct rc_err *err)
{
    const struct mdl_zip_entry *order =
        find_entry(z, pickle, n_folder, "", "byteorder", strlen("byteorder"));

    if (pickle->n_bytes > MAX_PICKLE)
        return rc_fail(err, RC_TOO_LARGE, "'%s': a pickle of %llu bytes, at most %u allowed",
                       m->name, (unsigned long long)pickle->n_bytes, MAX_PICKLE);
    if (order && (order->n_bytes != 6 || memcmp(order->data, "little", 6) != 0))
        return rc_fail(err, RC_UNSUPPORTED, "'%s': numbers that are not little-endian", m->name);
    return RC_OK;
}

enum rc mdl_torch_read(struct mdl_file *f, uint32_t map, struct rc_err *err)
{
    const struct mdl_map *m = &f->maps[map];
    const struct mdl_zip_entry *pickle;
    struct mdl_pickle *k = NULL;
    struct mdl_zip z = {0};
    size_t n_folder = 0, i;
    enum rc rc;

    if (m->n_bytes >= 2 && m->p[0] == 0x80)
        return rc_fail(err, RC_UNSUPPORTED,
                       "'%s' is a torch file of before 1.6, which is no zip archive: save it again",
                       m->name);
    if ((rc = mdl_zip_read(&z, m->p, m->n_bytes, m->name, err)) != RC_OK)
        return rc;
    if (!(pickle = find_pickle(&z, &n_folder))) {
        rc = rc_fail(err, RC_FORMAT, "'%s': a zip archive without data.pkl, not one of torch.save",
                     m->name);
        goto out;
    }
    if ((rc = check_bytes(m, &z, pickle, n_folder, err)) != RC_OK ||
        (rc = mdl_pickle_read(&k, pickle->data, pickle->n_bytes, m->name, err)) != RC_OK)
        goto out;
    for (i = 0; rc == RC_OK && i < mdl_pickle_n(k); i++) {
        struct mdl_pickle_tensor t;

        if ((rc = mdl_pickle_tensor(k, i, &t, err)) == RC_OK)
            rc = add_tensor(f, map, &z, pickle, n_folder, &t, err);
    }
out:
    mdl_pickle_free(&k);
    mdl_zip_deinit(&z);
    return rc;
}
