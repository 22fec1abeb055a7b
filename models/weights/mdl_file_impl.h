/* mdl_file_impl.h - private face of the weights room.
 *
 * What the parsers (mdl_gguf.c, mdl_safetensors.c, mdl_torch.c ...) and the opener
 * (mdl_file.c) share: the struct behind struct mdl_file, the tensor table with
 * its hash, maps, and small hash and string helpers. Never included outside
 * models/weights and models/tokenizers. Tests: tests/models/test_mdl_*.c
 */
#ifndef INFERD_MDL_FILE_IMPL_H
#define INFERD_MDL_FILE_IMPL_H

#include "mdl_file.h"

#include <string.h>

#define MDL_MAX_SHARDS 1024
#define MDL_MAX_KV 65536
#define MDL_MAX_NAME 512 /* bytes of a tensor name */

/* One mapped (or borrowed) file. */
struct mdl_map {
    const uint8_t *p;
    size_t n_bytes;
    int fd;         /* -1: memory borrowed from the caller, never unmapped */
    int64_t mtime_s, mtime_ns; /* when it was mapped */
    char name[128]; /* for messages */
};

/* A tensor whose dtype this build cannot use: kept by name, so that taking it
 * says why. */
struct mdl_skipped {
    const char *name;
    char dtype[16];
    const void *data; /* of integer types, for mdl_file_ints; else NULL */
    uint64_t n_values;
};

struct mdl_gguf_kv {
    const char *key; /* in the mapping, not NUL-terminated */
    uint32_t n_key;
    uint32_t type, arr_type;
    const uint8_t *p; /* the value; of an array its first element */
    uint64_t n;       /* elements of an array, bytes of a string */
    uint64_t *marks;  /* string arrays: position of every MDL_MARK-th element */
};
#define MDL_MARK 4

struct mdl_seed {
    uint64_t a, b;
};

/* Open addressing over indices + 1; 0 is empty. */
struct mdl_hash {
    uint32_t *slots;
    uint32_t mask;
    struct mdl_seed seed;
};

struct mdl_file {
    enum mdl_format format;
    struct mdl_map *maps;
    size_t n_maps;
    struct mdl_tensor *tensors;
    uint32_t *map_of; /* per tensor, index into maps */
    size_t n_tensors, cap_tensors;
    struct mdl_skipped *skipped;
    size_t n_skipped, cap_skipped;
    struct mdl_hash by_name;
    struct mdl_gguf_kv *kvs;
    size_t n_kvs;
    struct mdl_hash by_key;
    uint64_t data_bytes;
};

/* Keyed by a per-process secret: a file cannot choose names that collide. */
struct mdl_seed mdl_hash_seed(void);
static inline uint64_t mdl_mix(uint64_t x, uint64_t y)
{
    __uint128_t m = (__uint128_t)x * y;

    return (uint64_t)m ^ (uint64_t)(m >> 64);
}
static inline uint64_t mdl_hash_bytes(struct mdl_seed seed, const void *p,
                                      size_t n)
{
    const uint8_t *s = (const uint8_t *)p;
    uint64_t h = seed.a ^ n, v;

    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&v, s, 8);
        h = mdl_mix(h ^ v, seed.b);
    }
    if (n >= 4) { /* overlapping words: no loop over single bytes */
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        v = (uint64_t)hi << 32 | lo;
    } else {
        v = n ? (uint64_t)s[0] << 16 | (uint64_t)s[n / 2] << 8 | s[n - 1] : 0;
    }
    return mdl_mix(h ^ v, 0x9E3779B97F4A7C15ull ^ seed.b);
}
/* Slots for n entries, at most half full. */
enum rc mdl_hash_init(struct mdl_hash *h, size_t n, struct rc_err *err);
void mdl_hash_deinit(struct mdl_hash *h);

/* The little-endian number of n <= 8 bytes at p, which may lie anywhere. */
static inline uint64_t mdl_le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;

    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

struct mdl_file *mdl_file_alloc(enum mdl_format format);
/* Appends; the name is copied. n_dims <= MDL_MAX_DIMS is the caller's to check. */
enum rc mdl_file_add(struct mdl_file *f, const struct mdl_tensor *t,
                     const char *name, size_t n_name, uint32_t map,
                     struct rc_err *err);
enum rc mdl_file_skip(struct mdl_file *f, const char *name, size_t n_name,
                      const char *dtype, const void *data, uint64_t n_values,
                      struct rc_err *err);
/* Builds the name table; RC_FORMAT for a name given twice. */
enum rc mdl_file_index(struct mdl_file *f, struct rc_err *err);

bool mdl_file_has_skipped(const struct mdl_file *f, const char *name);

/* Header and table of maps[map]; used for one file and for each shard. */
enum rc mdl_safetensors_read(struct mdl_file *f, uint32_t map,
                             struct rc_err *err);
enum rc mdl_gguf_read(struct mdl_file *f, uint32_t map, struct rc_err *err);
/* The tensors of a state dict of torch.save. */
enum rc mdl_torch_read(struct mdl_file *f, uint32_t map, struct rc_err *err);
/* Shards named by the text of model.safetensors.index.json. */
enum rc mdl_shards_open(struct mdl_file *f, int root_fd, const char *json,
                        size_t n_bytes, struct rc_err *err);

/* Opens name below root_fd for reading, never outside of it; *out_size is the
 * size of the regular file found. */
enum rc mdl_side_open(int root_fd, const char *name, int *out_fd,
                      uint64_t *out_size, struct rc_err *err);
/* Maps a whole file read-only as the next of f->maps; fd ownership moves to f
 * on success only. */
enum rc mdl_map_add(struct mdl_file *f, int fd, uint64_t size, const char *name,
                    struct rc_err *err);

/* Every scale (or value, for float types) finite? *bad_idx is the first bad
 * block (or value). */
bool mdl_finite(enum be_dtype t, const void *data, uint64_t n_bytes,
                uint64_t *bad_idx);

/* dtype table, independent of the backend's code. */
struct mdl_dtype_row {
    uint32_t id, block, bytes;
    const char *name;
};
const struct mdl_dtype_row *mdl_dtype_row(uint32_t id); /* NULL: not ours */

/* n printable bytes of a foreign string for a message; others become '?'. */
const char *mdl_show(char *buf, size_t cap, const char *s, size_t n);

#endif
