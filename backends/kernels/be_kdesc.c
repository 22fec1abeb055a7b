/* be_kdesc.c - descriptors as canonical bytes, ids, overlap.
 *
 * One table names each field's tag and width, so bytes and comparison cannot drift.
 * A field's tag is never reused: an id once given out means the same for ever.
 * Tests: tests/backends/test_be_kdesc.c
 */
#include "be_kdesc.h"

#include <sodium.h>
#include <string.h>

struct field {
    uint8_t tag, dim; /* dim: 0 a byte, 1 a struct be_kdim */
    size_t at;
};

#define BYTE(tag, f)                         \
    {                                        \
        tag, 0, offsetof(struct be_kdesc, f) \
    }
#define DIM(tag, f)                          \
    {                                        \
        tag, 1, offsetof(struct be_kdesc, f) \
    }

/* tag 1 is the schema */
static const struct field fields[] = {
    BYTE(2, op),         BYTE(3, wfmt),    BYTE(4, act),      BYTE(5, epi),       BYTE(6, out),
    BYTE(7, rows_class), BYTE(8, mask),    BYTE(9, kv_paged), BYTE(10, kv_dtype), BYTE(11, softcap),
    BYTE(12, numerics),  BYTE(13, phase),  DIM(32, rows),     DIM(33, k),         DIM(34, n),
    DIM(35, head_dim),   DIM(36, q_heads), DIM(37, kv_heads), DIM(38, seq),
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static size_t put_u32(uint8_t *p, uint32_t v)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
    return 4;
}

static const struct be_kdim *dim_of(const struct be_kdesc *d, const struct field *f)
{
    return (const struct be_kdim *)((const char *)d + f->at);
}

size_t be_kdesc_bytes(const struct be_kdesc *d, uint8_t buf[BE_KDESC_MAX_BYTES])
{
    size_t n = 0;

    _Static_assert(3 + N_FIELDS * 18 <= BE_KDESC_MAX_BYTES, "all fields fit");
    buf[n++] = 1;
    buf[n++] = 1;
    buf[n++] = BE_KDESC_SCHEMA;
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];

        buf[n++] = f->tag;
        if (!f->dim) {
            buf[n++] = 1;
            buf[n++] = *((const uint8_t *)d + f->at);
        } else {
            const struct be_kdim *m = dim_of(d, f);

            buf[n++] = 16;
            n += put_u32(buf + n, m->min);
            n += put_u32(buf + n, m->max);
            n += put_u32(buf + n, m->mult);
            n += put_u32(buf + n, m->fixed);
        }
    }
    return n;
}

void be_khash_hex(const void *p, size_t n, char out[65])
{
    uint8_t h[crypto_hash_sha256_BYTES];

    crypto_hash_sha256(h, p, n);
    sodium_bin2hex(out, 65, h, sizeof(h));
}

void be_kdesc_id(const struct be_kdesc *d, char out[65])
{
    uint8_t buf[BE_KDESC_MAX_BYTES];

    be_khash_hex(buf, be_kdesc_bytes(d, buf), out);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;

        a = b;
        b = r;
    }
    return a;
}

/* Is there a value both serve? A dimension that one of them lacks (max 0) is no
 * reason to tell them apart. */
static bool dims_meet(const struct be_kdim *a, const struct be_kdim *b)
{
    uint64_t lo, hi, ma = a->mult ? a->mult : 1, mb = b->mult ? b->mult : 1, m;

    if (a->max == 0 || b->max == 0)
        return true;
    lo = a->min > b->min ? a->min : b->min;
    hi = a->max < b->max ? a->max : b->max;
    m = ma / gcd(ma, mb) * mb; /* below 2^64: both are 32-bit */
    return lo <= hi && hi / m * m >= lo;
}

static bool is_geglu(uint8_t epi)
{
    return epi == BE_EPI_GEGLU;
}

/* Values of a byte field: some have one value that stands for several. */
static bool bytes_meet(size_t at, uint8_t a, uint8_t b)
{
    if (a == b)
        return true;
    switch (at) {
    case offsetof(struct be_kdesc, epi):
        return (a == 0xff && !is_geglu(b)) || (b == 0xff && !is_geglu(a));
    case offsetof(struct be_kdesc, rows_class):
        return a == BE_KROWS_ANY || b == BE_KROWS_ANY;
    case offsetof(struct be_kdesc, act):
    case offsetof(struct be_kdesc, out):
        return a == BE_KACT_ANY || b == BE_KACT_ANY;
    default:
        return false;
    }
}

bool be_kdesc_overlaps(const struct be_kdesc *a, const struct be_kdesc *b)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];

        if (f->dim
                ? !dims_meet(dim_of(a, f), dim_of(b, f))
                : !bytes_meet(f->at, *((const uint8_t *)a + f->at), *((const uint8_t *)b + f->at)))
            return false;
    }
    return true;
}
