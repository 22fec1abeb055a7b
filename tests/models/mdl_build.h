/* mdl_build.h - writes small model files in memory, for tests: little-endian
 * numbers, GGUF strings, safetensors. Grows without limit, aborts without memory.
 */
#ifndef INFERD_TESTS_MDL_BUILD_H
#define INFERD_TESTS_MDL_BUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct out {
    uint8_t *p;
    size_t n;
};

static inline void put(struct out *o, const void *s, size_t n)
{
    o->p = realloc(o->p, o->n + n + 1);
    if (!o->p)
        abort();
    if (n)
        memcpy(o->p + o->n, s, n);
    o->n += n;
}

static inline void put32(struct out *o, uint32_t v)
{
    put(o, &v, 4);
}

static inline void put64(struct out *o, uint64_t v)
{
    put(o, &v, 8);
}

static inline void put_str(struct out *o, const char *s)
{
    put64(o, strlen(s));
    put(o, s, strlen(s));
}

static inline void pad(struct out *o, size_t align)
{
    while (o->n % align)
        put(o, "", 1);
}

static inline void gguf_head(struct out *o, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    put(o, "GGUF", 4);
    put32(o, version);
    put64(o, n_tensors);
    put64(o, n_kv);
}

static inline void kv_u32(struct out *o, const char *key, uint32_t v)
{
    put_str(o, key);
    put32(o, 4);
    put32(o, v);
}

static inline void kv_bool(struct out *o, const char *key, int v)
{
    put_str(o, key);
    put32(o, 7);
    put(o, v ? "\1" : "\0", 1);
}

static inline void kv_str(struct out *o, const char *key, const char *s)
{
    put_str(o, key);
    put32(o, 8);
    put_str(o, s);
}

static inline void kv_arr(struct out *o, const char *key, uint32_t type, uint64_t n)
{
    put_str(o, key);
    put32(o, 9);
    put32(o, type);
    put64(o, n);
}

static inline void tensor_info(struct out *o, const char *name, uint32_t n_dims, uint64_t d0,
                               uint64_t d1, uint32_t type, uint64_t offset)
{
    put_str(o, name);
    put32(o, n_dims);
    if (n_dims > 0)
        put64(o, d0);
    for (uint32_t i = 1; i < n_dims; i++)
        put64(o, d1);
    put32(o, type);
    put64(o, offset);
}

static inline void safetensors(struct out *o, const char *json, size_t n_data)
{
    put64(o, strlen(json));
    put(o, json, strlen(json));
    for (size_t i = 0; i < n_data; i++)
        put(o, "", 1);
}

#endif
