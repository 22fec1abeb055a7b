/* mdl_safetensors.c - reads safetensors headers, of one file or of shards.
 *
 * File: u64 header length, that many bytes of JSON, then data. Each entry's
 * dtype, shape and data_offsets must agree and entries must not overlap; gaps
 * are harmless. Types no kernel reads (I64 buffers ...) are kept by name only.
 * Never touches tensor data.
 * Tests: tests/models/test_mdl_safetensors.c, fuzz: tests/fuzz/fuzz_safetensors.c
 */
#include "mdl_file_impl.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#define HEADER_MAX (100u << 20)

static const struct {
    const char *name;
    uint8_t bytes;
    int be; /* enum be_dtype, -1 not ours */
} st_types[] = {
    {"F32", 4, BE_F32}, {"F16", 2, BE_F16}, {"BF16", 2, BE_BF16}, {"F64", 8, -1},
    {"I64", 8, -1},     {"I32", 4, -1},     {"I16", 2, -1},       {"I8", 1, -1},
    {"U64", 8, -1},     {"U32", 4, -1},     {"U16", 2, -1},       {"U8", 1, -1},
    {"BOOL", 1, -1},    {"F8_E4M3", 1, -1}, {"F8_E5M2", 1, -1},   {"F8_E8M0", 1, -1},
    {"C64", 8, -1},
};

struct range {
    uint64_t begin, end;
    const char *name; /* borrowed from the JSON */
};

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static enum rc check_overlaps(struct range *r, size_t n, struct rc_err *err)
{
    char a[80], b[80];

    qsort(r, n, sizeof(*r), by_begin);
    for (size_t i = 1; i < n; i++)
        if (r[i].begin < r[i - 1].end)
            return rc_fail_what(err, RC_FORMAT, r[i].name, "tensors '%s' and '%s' overlap",
                                mdl_show(a, sizeof(a), r[i - 1].name, strlen(r[i - 1].name)),
                                mdl_show(b, sizeof(b), r[i].name, strlen(r[i].name)));
    return RC_OK;
}

static enum rc read_offsets(const json_t *e, const char *show, uint64_t area, struct range *r,
                            struct rc_err *err)
{
    const json_t *off = json_object_get(e, "data_offsets");
    const json_t *b = json_array_get(off, 0), *z = json_array_get(off, 1);

    if (json_array_size(off) != 2 || !json_is_integer(b) || !json_is_integer(z) ||
        json_integer_value(b) < 0 || json_integer_value(z) < 0)
        return rc_fail_what(err, RC_FORMAT, show,
                            "tensor '%s': data_offsets must be two whole numbers", show);
    r->begin = (uint64_t)json_integer_value(b);
    r->end = (uint64_t)json_integer_value(z);
    if (r->begin > r->end || r->end > area)
        return rc_fail_what(err, RC_FORMAT, show,
                            "tensor '%s': data_offsets [%llu,%llu] outside the %llu bytes of data",
                            show, (unsigned long long)r->begin, (unsigned long long)r->end,
                            (unsigned long long)area);
    return RC_OK;
}

static enum rc read_entry(struct mdl_file *f, uint32_t map, const char *name, const json_t *e,
                          uint64_t start, struct range *r, struct rc_err *err)
{
    const struct mdl_map *m = &f->maps[map];
    const json_t *shape = json_object_get(e, "shape");
    const char *dtype = json_string_value(json_object_get(e, "dtype"));
    struct mdl_tensor t = {0};
    uint64_t n_values = 1, n_bytes;
    char show[80];
    size_t k = 0, n_types = sizeof(st_types) / sizeof(st_types[0]);
    enum rc rc;

    mdl_show(show, sizeof(show), name, strlen(name));
    if (!dtype || !json_is_array(shape))
        return rc_fail_what(err, RC_FORMAT, show, "tensor '%s': needs dtype, shape, data_offsets",
                            show);
    if ((rc = read_offsets(e, show, m->n_bytes - start, r, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0 ||
            __builtin_mul_overflow(n_values, (uint64_t)json_integer_value(d), &n_values))
            return rc_fail_what(
                err, RC_FORMAT, show,
                "tensor '%s': dimension %zu is not a whole number, or the product is "
                "too large",
                show, i);
        if (i < MDL_MAX_DIMS)
            t.dims[i] = (uint64_t)json_integer_value(d);
    }
    while (k < n_types && strcmp(st_types[k].name, dtype) != 0)
        k++;
    if (k == n_types) /* its size cannot be checked; it can never be taken */
        return mdl_file_skip(f, name, strlen(name), dtype, NULL, 0, err);
    if (__builtin_mul_overflow(n_values, (uint64_t)st_types[k].bytes, &n_bytes) ||
        n_bytes != r->end - r->begin)
        return rc_fail_what(
            err, RC_FORMAT, show, "tensor '%s': %llu values of %s do not fill %llu bytes", show,
            (unsigned long long)n_values, dtype, (unsigned long long)(r->end - r->begin));
    if (st_types[k].be < 0) {
        bool ints = strcmp(dtype, "I64") == 0 || strcmp(dtype, "I32") == 0;

        return mdl_file_skip(f, name, strlen(name), dtype, ints ? m->p + start + r->begin : NULL,
                             ints ? n_values : 0, err);
    }
    if (json_array_size(shape) > MDL_MAX_DIMS)
        return mdl_file_skip(f, name, strlen(name), "of 5+ dims", NULL, 0, err);
    t.n_dims = (uint32_t)json_array_size(shape);
    t.dtype = (enum be_dtype)st_types[k].be;
    t.n_bytes = n_bytes;
    t.data = m->p + start + r->begin;
    return mdl_file_add(f, &t, name, strlen(name), map, err);
}

enum rc mdl_safetensors_read(struct mdl_file *f, uint32_t map, struct rc_err *err)
{
    const struct mdl_map *m = &f->maps[map];
    struct range *ranges = NULL;
    json_t *root = NULL, *e;
    json_error_t je;
    uint64_t n_header;
    const char *name;
    size_t n = 0;
    enum rc rc = RC_OK;

    if (m->n_bytes < 8)
        return rc_fail(err, RC_FORMAT, "'%s' is not safetensors: only %zu bytes", m->name,
                       m->n_bytes);
    n_header = mdl_le(m->p, 8);
    if (n_header > HEADER_MAX || n_header > m->n_bytes - 8)
        return rc_fail(
            err, RC_FORMAT,
            "'%s' is not safetensors: a header of %llu bytes, at most %llu possible", m->name,
            (unsigned long long)n_header,
            (unsigned long long)(m->n_bytes - 8 < HEADER_MAX ? m->n_bytes - 8 : HEADER_MAX));
    root = json_loadb((const char *)m->p + 8, n_header, JSON_REJECT_DUPLICATES, &je);
    if (!root || !json_is_object(root)) {
        rc = rc_fail(err, RC_FORMAT, "'%s': its header is not a JSON object: %s", m->name,
                     root ? "another kind of value" : je.text);
        goto out;
    }
    ranges = calloc(json_object_size(root) + 1, sizeof(*ranges));
    if (!ranges) {
        rc = rc_fail(err, RC_NOMEM, "no memory for %zu tensors", json_object_size(root));
        goto out;
    }
    json_object_foreach(root, name, e)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        ranges[n].name = name;
        if ((rc = read_entry(f, map, name, e, 8 + n_header, &ranges[n], err)) != RC_OK)
            goto out;
        n += ranges[n].begin != ranges[n].end;
    }
    rc = check_overlaps(ranges, n, err);
out:
    free(ranges);
    json_decref(root);
    return rc;
}

/* ------------------------------------------------------------------- shards */

static enum rc open_shard(struct mdl_file *f, int root_fd, const char *name, struct rc_err *err)
{
    uint64_t size = 0;
    int fd = -1;
    enum rc rc;

    for (size_t i = 0; i < f->n_maps; i++)
        if (strcmp(f->maps[i].name, name) == 0)
            return RC_OK;
    if (f->n_maps >= MDL_MAX_SHARDS)
        return rc_fail(err, RC_FORMAT, "more than %d weight files", MDL_MAX_SHARDS);
    if (strlen(name) >= sizeof(f->maps[0].name))
        return rc_fail(err, RC_FORMAT, "a weight file name of %zu bytes, at most %zu", strlen(name),
                       sizeof(f->maps[0].name) - 1);
    if ((rc = mdl_side_open(root_fd, name, &fd, &size, err)) != RC_OK)
        return rc;
    if ((rc = mdl_map_add(f, fd, size, name, err)) != RC_OK) {
        close(fd);
        return rc;
    }
    if ((rc = mdl_safetensors_read(f, (uint32_t)f->n_maps - 1, err)) != RC_OK)
        rc_wrap(err, "weight file '%s'", name);
    return rc;
}

enum rc mdl_shards_open(struct mdl_file *f, int root_fd, const char *json, size_t n_bytes,
                        struct rc_err *err)
{
    json_error_t je;
    json_t *root = json_loadb(json, n_bytes, JSON_REJECT_DUPLICATES, &je);
    json_t *map = json_object_get(root, "weight_map"), *v;
    const char *tensor;
    char show[80];
    enum rc rc = RC_OK;

    if (!json_is_object(map) || json_object_size(map) == 0) {
        rc = rc_fail(err, RC_FORMAT, "model.safetensors.index.json: %s",
                     root ? "no weight_map in it" : je.text);
        goto out;
    }
    json_object_foreach(map, tensor, v)
    {
        const char *name = json_string_value(v);
        if (!name || !*name) {
            rc = rc_fail(err, RC_FORMAT,
                         "model.safetensors.index.json: tensor '%s' has no file name",
                         mdl_show(show, sizeof(show), tensor, strlen(tensor)));
            goto out;
        }
        if ((rc = open_shard(f, root_fd, name, err)) != RC_OK)
            goto out;
    }
    if ((rc = mdl_file_index(f, err)) != RC_OK)
        goto out;
    json_object_foreach(map, tensor, v)
    {
        const struct mdl_tensor *t = mdl_file_find(f, tensor);
        if (t && strcmp(f->maps[f->map_of[t - f->tensors]].name, json_string_value(v)) != 0)
            t = NULL;
        if (!t && !mdl_file_has_skipped(f, tensor)) {
            rc = rc_fail_what(err, RC_WEIGHT_ABSENT, tensor,
                              "the index puts tensor '%s' in '%s', which does not hold it",
                              mdl_show(show, sizeof(show), tensor, strlen(tensor)),
                              json_string_value(v));
            goto out;
        }
    }
out:
    json_decref(root);
    return rc;
}
