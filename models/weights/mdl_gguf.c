/* mdl_gguf.c - reads a GGUF header (v2, v3) and answers metadata questions.
 *
 * A cursor that can never pass the end of the map reads everything; no count or
 * length is believed before it is compared with the bytes that are left. Layout:
 * engine.md 2.1. Never touches tensor data. String arrays keep the place of every
 * fourth element so that any is found in a few steps.
 * Tests: tests/models/test_mdl_gguf.c, fuzz: tests/fuzz/fuzz_gguf.c
 */
#include "mdl_file_impl.h"

#include <stdlib.h>

#define MAX_ARRAY (1u << 30)
#define GGUF_NAME_MAX 63

enum {
    T_U8,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STR,
    T_ARR,
    T_U64,
    T_I64,
    T_F64,
    T_N
};

static const uint8_t type_bytes[T_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Types that exist but that no kernel here reads, and ids that were withdrawn:
 * only names for messages. */
static const struct {
    uint32_t id;
    const char *name;
} other_types[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"}, {41, "Q1_0"},    {42, "Q2_0"},
};

struct cur {
    const uint8_t *base;
    size_t at, n;
};

static bool take(struct cur *c, void *out, size_t n)
{
    if (n > c->n - c->at)
        return false;
    memcpy(out, c->base + c->at, n);
    c->at += n;
    return true;
}

static bool take_str(struct cur *c, const char **s, uint64_t *n)
{
    if (!take(c, n, 8) || *n > c->n - c->at || *n > (1u << 30))
        return false;
    *s = (const char *)c->base + c->at;
    c->at += *n;
    return true;
}

static enum rc cut_short(struct rc_err *err, const struct cur *c, const char *where)
{
    return rc_fail(err, RC_FORMAT, "GGUF: the file ends inside %s (byte %zu of %zu)", where, c->at,
                   c->n);
}

static enum rc read_array(struct cur *c, struct mdl_gguf_kv *kv, const char *key,
                          struct rc_err *err)
{
    const char *s;
    uint64_t len;

    if (!take(c, &kv->arr_type, 4) || !take(c, &kv->n, 8))
        return cut_short(err, c, "an array header");
    if (kv->arr_type >= T_N || kv->arr_type == T_ARR)
        return rc_fail_what(err, RC_FORMAT, key,
                            "GGUF: key '%s': arrays of type %u are not allowed", key, kv->arr_type);
    uint64_t least = kv->arr_type == T_STR ? 8 : type_bytes[kv->arr_type];
    if (kv->n > MAX_ARRAY || kv->n > (c->n - c->at) / least)
        return rc_fail_what(err, RC_FORMAT, key,
                            "GGUF: key '%s': an array of %llu elements does not fit the %zu bytes "
                            "that are left",
                            key, (unsigned long long)kv->n, c->n - c->at);
    kv->p = c->base + c->at;
    if (kv->arr_type != T_STR) {
        c->at += kv->n * least;
        return RC_OK;
    }
    kv->marks = malloc((kv->n / MDL_MARK + 1) * sizeof(*kv->marks));
    if (!kv->marks)
        return rc_fail(err, RC_NOMEM, "GGUF: no memory to index key '%s'", key);
    for (uint64_t i = 0; i < kv->n; i++) {
        if (i % MDL_MARK == 0)
            kv->marks[i / MDL_MARK] = c->at;
        if (!take_str(c, &s, &len))
            return cut_short(err, c, "an array of strings");
    }
    return RC_OK;
}

static enum rc read_kv(struct mdl_file *f, struct cur *c, struct rc_err *err)
{
    struct mdl_gguf_kv *kv = &f->kvs[f->n_kvs];
    char show[80];
    uint64_t n;

    if (!take_str(c, &kv->key, &n))
        return cut_short(err, c, "a metadata key");
    if (n == 0 || n > 65535)
        return rc_fail(err, RC_FORMAT, "GGUF: a metadata key of %llu bytes, expected 1 to 65535",
                       (unsigned long long)n);
    kv->n_key = (uint32_t)n;
    mdl_show(show, sizeof(show), kv->key, n);
    if (!take(c, &kv->type, 4))
        return cut_short(err, c, "a metadata type");
    f->n_kvs++; /* from here on its marks are freed with the file */
    if (kv->type >= T_N)
        return rc_fail_what(err, RC_FORMAT, show, "GGUF: key '%s': unknown value type %u", show,
                            kv->type);
    if (kv->type == T_ARR)
        return read_array(c, kv, show, err);
    if (kv->type == T_STR) {
        const char *s;
        if (!take_str(c, &s, &kv->n))
            return cut_short(err, c, "a metadata string");
        kv->p = (const uint8_t *)s;
        return RC_OK;
    }
    kv->p = c->base + c->at;
    if (type_bytes[kv->type] > c->n - c->at)
        return cut_short(err, c, "a metadata value");
    c->at += type_bytes[kv->type];
    return RC_OK;
}

static uint32_t *key_slot(const struct mdl_file *f, const char *key, size_t n)
{
    uint32_t i = (uint32_t)mdl_hash_bytes(f->by_key.seed, key, n) & f->by_key.mask, s;

    while ((s = f->by_key.slots[i]) != 0 &&
           (f->kvs[s - 1].n_key != n || memcmp(f->kvs[s - 1].key, key, n) != 0))
        i = (i + 1) & f->by_key.mask;
    return &f->by_key.slots[i];
}

static enum rc index_keys(struct mdl_file *f, struct rc_err *err)
{
    char show[80];
    enum rc rc;

    if ((rc = mdl_hash_init(&f->by_key, f->n_kvs, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < f->n_kvs; i++) {
        uint32_t *slot = key_slot(f, f->kvs[i].key, f->kvs[i].n_key);
        if (*slot)
            return rc_fail(err, RC_FORMAT, "GGUF: key '%s' appears twice",
                           mdl_show(show, sizeof(show), f->kvs[i].key, f->kvs[i].n_key));
        *slot = (uint32_t)i + 1;
    }
    return RC_OK;
}

static enum rc dtype_refused(uint32_t id, const char *name, struct rc_err *err)
{
    for (size_t i = 0; i < sizeof(other_types) / sizeof(other_types[0]); i++)
        if (other_types[i].id == id)
            return rc_fail_what(err, RC_UNSUPPORTED, name,
                                "tensor '%s' has type %s, not supported (use F32, F16, BF16, Q4_0, "
                                "Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K)",
                                name, other_types[i].name);
    return rc_fail_what(err, RC_UNSUPPORTED, name,
                        "tensor '%s' has type number %u, which is unknown or was removed", name,
                        id);
}

/* One entry of the tensor table; *sum is the aligned end of the one before. */
static enum rc read_tensor(struct mdl_file *f, struct cur *c, uint64_t align, uint64_t *sum,
                           struct mdl_tensor *t, const char **name, uint64_t *n_name,
                           struct rc_err *err)
{
    const struct mdl_dtype_row *row;
    int64_t ne[MDL_MAX_DIMS];
    uint64_t n_values = 1, offset;
    uint32_t id;
    char show[80];

    if (!take_str(c, name, n_name) || !take(c, &t->n_dims, 4))
        return cut_short(err, c, "the tensor table");
    mdl_show(show, sizeof(show), *name, *n_name);
    if (*n_name == 0 || *n_name > GGUF_NAME_MAX)
        return rc_fail(err, RC_FORMAT, "GGUF: tensor name '%s': %llu bytes, expected 1 to %d", show,
                       (unsigned long long)*n_name, GGUF_NAME_MAX);
    if (t->n_dims > MDL_MAX_DIMS)
        return rc_fail_what(err, RC_FORMAT, show, "tensor '%s': %u dimensions, at most %d", show,
                            t->n_dims, MDL_MAX_DIMS);
    if (!take(c, ne, 8 * (size_t)t->n_dims) || !take(c, &id, 4) || !take(c, &offset, 8))
        return cut_short(err, c, "the tensor table");
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (ne[i] < 0 || __builtin_mul_overflow(n_values, (uint64_t)ne[i], &n_values) ||
            n_values > INT64_MAX)
            return rc_fail_what(
                err, RC_FORMAT, show,
                "tensor '%s': dimension %u is %lld: negative, or the product is too "
                "large",
                show, i, (long long)ne[i]);
        t->dims[t->n_dims - 1 - i] = (uint64_t)ne[i];
    }
    if (!(row = mdl_dtype_row(id)))
        return dtype_refused(id, show, err);
    t->dtype = (enum be_dtype)id;
    if (row->block > 1 && (t->n_dims == 0 || ne[0] % row->block != 0))
        return rc_fail_what(err, RC_FORMAT, show,
                            "tensor '%s': rows of %lld values are no multiple of %s's block of %u",
                            show, t->n_dims ? (long long)ne[0] : 1LL, row->name, row->block);
    if (__builtin_mul_overflow(n_values / row->block, (uint64_t)row->bytes, &t->n_bytes))
        return rc_fail_what(err, RC_FORMAT, show, "tensor '%s': its size overflows", show);
    if (offset != *sum)
        return rc_fail_what(err, RC_FORMAT, show,
                            "tensor '%s': offset %llu, expected %llu (the tensors before it)", show,
                            (unsigned long long)offset, (unsigned long long)*sum);
    t->data = (const void *)(uintptr_t)offset; /* made a pointer once data_start is known */
    if (t->n_bytes > UINT64_MAX - (align - 1) ||
        __builtin_add_overflow(offset, (t->n_bytes + align - 1) & ~(align - 1), sum))
        return rc_fail_what(err, RC_FORMAT, show, "tensor '%s': its end overflows", show);
    return RC_OK;
}

static enum rc read_header(struct cur *c, uint64_t *n_tensors, uint64_t *n_kv, struct rc_err *err)
{
    uint8_t magic[4];
    uint32_t version;
    char show[8];

    if (!take(c, magic, 4) || memcmp(magic, "GGUF", 4) != 0)
        return rc_fail(err, RC_FORMAT, "not a GGUF file: it starts with '%s'",
                       mdl_show(show, sizeof(show), (const char *)c->base, c->n < 4 ? c->n : 4));
    if (!take(c, &version, 4))
        return cut_short(err, c, "the header");
    if (version != 0 && (version & 0xFFFF) == 0)
        return rc_fail(
            err, RC_UNSUPPORTED,
            "GGUF: version 0x%08x looks byte-swapped: a big-endian file, or a machine of "
            "other endianness",
            version);
    if (version == 1)
        return rc_fail(err, RC_UNSUPPORTED, "GGUF version 1 is no longer read, convert the file");
    if (version != 2 && version != 3)
        return rc_fail(err, RC_UNSUPPORTED, "GGUF version %u, this build reads 2 and 3", version);
    if (!take(c, n_tensors, 8) || !take(c, n_kv, 8))
        return cut_short(err, c, "the header");
    /* the smallest key-value takes 14 bytes, the smallest tensor entry 25 */
    if (*n_kv > MDL_MAX_KV || *n_kv > (c->n - c->at) / 14)
        return rc_fail(err, RC_FORMAT,
                       "GGUF: %llu metadata keys do not fit (limit %d, file %zu bytes)",
                       (unsigned long long)*n_kv, MDL_MAX_KV, c->n);
    if (*n_tensors > MDL_MAX_TENSORS || *n_tensors > (c->n - c->at) / 25)
        return rc_fail(err, RC_FORMAT, "GGUF: %llu tensors do not fit (limit %d, file %zu bytes)",
                       (unsigned long long)*n_tensors, MDL_MAX_TENSORS, c->n);
    return RC_OK;
}

static enum rc read_alignment(const struct mdl_file *f, uint64_t *align, struct rc_err *err)
{
    const struct mdl_gguf_kv *kv;
    uint32_t slot = *key_slot(f, "general.alignment", 17), v;

    *align = 32;
    if (!slot)
        return RC_OK;
    kv = &f->kvs[slot - 1];
    v = 0;
    if (kv->type == T_U32)
        memcpy(&v, kv->p, 4);
    if (v == 0 || (v & (v - 1)) != 0 || v > (1u << 20))
        return rc_fail(
            err, RC_FORMAT,
            "GGUF: general.alignment must be a 32-bit power of two up to 1048576, got %u", v);
    *align = v;
    return RC_OK;
}

enum rc mdl_gguf_read(struct mdl_file *f, uint32_t map, struct rc_err *err)
{
    const struct mdl_map *m = &f->maps[map];
    struct cur c = {m->p, 0, m->n_bytes};
    uint64_t n_tensors = 0, n_kv = 0, align = 32, sum = 0, n_name, start, n_split;
    const char *name;
    enum rc rc;

    if ((rc = read_header(&c, &n_tensors, &n_kv, err)) != RC_OK)
        return rc;
    f->kvs = calloc(n_kv + 1, sizeof(*f->kvs));
    if (!f->kvs)
        return rc_fail(err, RC_NOMEM, "GGUF: no memory for %llu keys", (unsigned long long)n_kv);
    for (uint64_t i = 0; i < n_kv; i++)
        if ((rc = read_kv(f, &c, err)) != RC_OK)
            return rc;
    if ((rc = index_keys(f, err)) != RC_OK || (rc = read_alignment(f, &align, err)) != RC_OK)
        return rc;
    if (mdl_gguf_u64(f, "split.count", &n_split) && n_split > 1)
        return rc_fail(err, RC_UNSUPPORTED,
                       "GGUF: this is one part of a model split into %llu files; join them first "
                       "(llama-gguf-split --merge)",
                       (unsigned long long)n_split);
    for (uint64_t i = 0; i < n_tensors; i++) {
        struct mdl_tensor t = {0};
        if ((rc = read_tensor(f, &c, align, &sum, &t, &name, &n_name, err)) != RC_OK ||
            (rc = mdl_file_add(f, &t, name, n_name, map, err)) != RC_OK)
            return rc;
    }
    start = (c.at + align - 1) & ~(align - 1);
    for (size_t i = 0; i < f->n_tensors; i++) {
        struct mdl_tensor *t = &f->tensors[i];
        uint64_t offset = (uint64_t)(uintptr_t)t->data;
        if (start > m->n_bytes || offset > m->n_bytes - start ||
            t->n_bytes > m->n_bytes - start - offset)
            return rc_fail_what(err, RC_FORMAT, t->name,
                                "tensor '%s': bytes %llu to %llu of the data, but the file ends at "
                                "%llu",
                                t->name, (unsigned long long)offset,
                                (unsigned long long)(offset + t->n_bytes),
                                (unsigned long long)(m->n_bytes > start ? m->n_bytes - start : 0));
        t->data = m->p + start + offset;
    }
    return RC_OK;
}

/* ----------------------------------------------------------------- questions */

static const struct mdl_gguf_kv *kv_find(const struct mdl_file *f, const char *key)
{
    uint32_t slot = f->by_key.slots ? *key_slot(f, key, strlen(key)) : 0;

    return slot ? &f->kvs[slot - 1] : NULL;
}

static bool as_u64(uint32_t type, const uint8_t *p, uint64_t *out)
{
    int64_t s = 0;

    *out = 0;
    switch (type) {
    case T_U8:
    case T_U16:
    case T_U32:
    case T_U64:
        memcpy(out, p, type_bytes[type]);
        return true;
    case T_I8:
        s = (int8_t)p[0];
        break;
    case T_I16: {
        int16_t v;
        memcpy(&v, p, 2);
        s = v;
        break;
    }
    case T_I32: {
        int32_t v;
        memcpy(&v, p, 4);
        s = v;
        break;
    }
    case T_I64:
        memcpy(&s, p, 8);
        break;
    default:
        return false;
    }
    *out = (uint64_t)s;
    return s >= 0;
}

static bool as_f64(uint32_t type, const uint8_t *p, double *out)
{
    float v;

    if (type == T_F64) {
        memcpy(out, p, 8);
        return true;
    }
    if (type != T_F32)
        return false;
    memcpy(&v, p, 4);
    *out = v;
    return true;
}

bool mdl_gguf_u64(const struct mdl_file *f, const char *key, uint64_t *out)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);
    uint64_t v;

    if (!kv || !as_u64(kv->type, kv->p, &v))
        return false;
    *out = v;
    return true;
}

bool mdl_gguf_f64(const struct mdl_file *f, const char *key, double *out)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);

    return kv && as_f64(kv->type, kv->p, out);
}

bool mdl_gguf_bool(const struct mdl_file *f, const char *key, bool *out)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);

    if (!kv || kv->type != T_BOOL)
        return false;
    *out = kv->p[0] != 0;
    return true;
}

bool mdl_gguf_str(const struct mdl_file *f, const char *key, const char **s, size_t *n_bytes)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);

    if (!kv || kv->type != T_STR)
        return false;
    *s = (const char *)kv->p;
    *n_bytes = kv->n;
    return true;
}

bool mdl_gguf_arr(const struct mdl_file *f, const char *key, size_t *n)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);

    if (!kv || kv->type != T_ARR)
        return false;
    *n = kv->n;
    return true;
}

bool mdl_gguf_arr_str(const struct mdl_file *f, const char *key, size_t i, const char **s,
                      size_t *n_bytes)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);
    const uint8_t *p;
    uint64_t len;

    if (!kv || kv->type != T_ARR || kv->arr_type != T_STR || i >= kv->n)
        return false;
    p = f->maps[0].p + kv->marks[i / MDL_MARK];
    for (size_t k = 0;; k++) { /* lengths were checked when the file was read */
        memcpy(&len, p, 8);
        if (k == i % MDL_MARK)
            break;
        p += 8 + len;
    }
    *s = (const char *)p + 8;
    *n_bytes = len;
    return true;
}

bool mdl_gguf_arr_f64(const struct mdl_file *f, const char *key, size_t i, double *out)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);

    return kv && kv->type == T_ARR && i < kv->n && type_bytes[kv->arr_type] &&
           as_f64(kv->arr_type, kv->p + i * type_bytes[kv->arr_type], out);
}

bool mdl_gguf_arr_u64(const struct mdl_file *f, const char *key, size_t i, uint64_t *out)
{
    const struct mdl_gguf_kv *kv = kv_find(f, key);
    uint64_t v;

    if (!kv || kv->type != T_ARR || i >= kv->n || !type_bytes[kv->arr_type])
        return false;
    const uint8_t *p = kv->p + i * type_bytes[kv->arr_type];
    if (kv->arr_type == T_BOOL)
        v = p[0] != 0;
    else if (!as_u64(kv->arr_type, p, &v))
        return false;
    *out = v;
    return true;
}
