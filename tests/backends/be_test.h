/* be_test.h - what the tests of backends share: random values, random valid
 * blocks of every type, contexts of every level this processor has, comparison.
 *
 * Everything is seeded: a failure prints seed, place and both values.
 */
#ifndef INFERD_BE_TEST_H
#define INFERD_BE_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "be.h"
#include "be_half.h"

static const enum be_dtype all_types[] = {
#define X(name, id, n, b) BE_##name,
    BE_DTYPE_MAP(X)
#undef X
};
#define N_TYPES (sizeof(all_types) / sizeof(all_types[0]))

static const char *const all_levels[] = {"c", "avx2", "avx512"};
#define N_LEVELS 3

static uint64_t test_seed = 1;

static inline uint32_t rnd(void)
{
    test_seed = test_seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(test_seed >> 33);
}

/* Uniform in [-1, 1). */
static inline float rndf(void)
{
    return (float)(int32_t)(rnd() & 0xFFFFFF) * 0x1p-23f - 1.0f;
}

static inline void fill(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rndf() * scale;
}

static inline void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    assert_non_null(p);
    return p;
}

/* Any bits in the codes, finite scales: what a checked file may hold. */
static inline uint8_t *random_blocks(enum be_dtype t, uint64_t rows, uint64_t cols, size_t *out_n)
{
    uint64_t n = 0;
    uint8_t *p;
    uint32_t bb = be_dtype_block_bytes(t);

    assert_true(be_dtype_bytes(t, rows, cols, &n));
    p = xcalloc(n, 1);
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)rnd();
    for (uint64_t o = 0; o < n; o += bb) {
        float v = rndf();
        uint16_t h = be_f32_to_half(v * 0.02f), h2 = be_f32_to_half(rndf() * 0.02f);

        switch (t) {
        case BE_F32:
            memcpy(p + o, &v, 4);
            break;
        case BE_F16:
            h = be_f32_to_half(v);
            memcpy(p + o, &h, 2);
            break;
        case BE_BF16:
            h = (uint16_t)(be_f32_to_bits(v) >> 16);
            memcpy(p + o, &h, 2);
            break;
        case BE_Q6_K:
            memcpy(p + o + 208, &h, 2);
            break;
        case BE_Q4_1:
        case BE_Q5_1:
        case BE_Q4_K:
        case BE_Q5_K:
            memcpy(p + o + 2, &h2, 2);
            memcpy(p + o, &h, 2);
            break;
        default:
            memcpy(p + o, &h, 2);
            break;
        }
    }
    *out_n = n;
    return p;
}

/* A context, or NULL when this processor lacks the level. */
static inline struct be_ctx *make_ctx(const char *level, unsigned threads)
{
    struct be_opts o = {.backend = "cpu", .n_threads = threads, .cpu_level = level};
    struct rc_err err = RC_ERR_INIT;
    struct be_ctx *ctx = NULL;
    enum rc rc = be_ctx_new(&ctx, &o, &err);

    if (rc == RC_UNSUPPORTED) {
        print_message("[ note     ] %s\n", err.msg);
        return NULL;
    }
    if (rc != RC_OK)
        fail_msg("be_ctx_new(%s): %s", level, err.msg);
    return ctx;
}

#define OK(call)                                                   \
    do {                                                           \
        struct rc_err err_ = RC_ERR_INIT, *err = &err_;            \
        enum rc rc_ = (call);                                      \
        if (rc_ != RC_OK)                                          \
            fail_msg("%s: %s: %s", #call, rc_name(rc_), err_.msg); \
    } while (0)

#define FAILS(code, call)                                                        \
    do {                                                                         \
        struct rc_err err_ = RC_ERR_INIT, *err = &err_;                          \
        enum rc rc_ = (call);                                                    \
        if (rc_ != (code))                                                       \
            fail_msg("%s: %s, expected %s", #call, rc_name(rc_), rc_name(code)); \
        assert_true(strlen(err_.msg) > 0);                                       \
    } while (0)

static inline struct be_tensor *tensor(struct be_ctx *c, uint32_t rows, uint32_t cols,
                                       const float *src)
{
    struct be_tensor *t = NULL;

    OK(be_tensor_new(c, rows, cols, &t, err));
    if (src)
        OK(be_tensor_write(c, t, 0, rows, src, err));
    return t;
}

static inline struct be_weight *weight(struct be_ctx *c, enum be_dtype t, uint64_t rows,
                                       uint64_t cols, const void *data, unsigned use)
{
    struct be_weight_desc d = {
        .name = "w", .dtype = t, .n_rows = rows, .n_cols = cols, .data = data, .use = use};
    uint64_t n = 0;
    struct be_weight *w = NULL;

    assert_true(be_dtype_bytes(t, rows, cols, &n));
    d.n_bytes = n;
    OK(be_weight_new(c, &d, &w, err));
    return w;
}

static inline struct be_weight *vector(struct be_ctx *c, const float *v, uint64_t n)
{
    return weight(c, BE_F32, 1, n, v, BE_USE_VECTOR);
}

/* |a - b| <= abs + rel * |b|; NaN equals NaN, infinities must be equal. */
static inline void assert_near(const char *what, const float *a, const float *b, size_t n,
                               double abs_tol, double rel_tol)
{
    for (size_t i = 0; i < n; i++) {
        if ((isnan(a[i]) && isnan(b[i])) || a[i] == b[i])
            continue;
        if (!(fabs((double)a[i] - b[i]) <= abs_tol + rel_tol * fabs((double)b[i])))
            fail_msg("%s: [%zu] is %.9g, expected %.9g (seed %llu)", what, i, (double)a[i],
                     (double)b[i], (unsigned long long)test_seed);
    }
}

/* Same bits. */
static inline void assert_same(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0)
            fail_msg("%s: [%zu] is %.9g (%08x), expected the bits of %.9g (%08x)", what, i,
                     (double)a[i], be_f32_to_bits(a[i]), (double)b[i], be_f32_to_bits(b[i]));
}

#endif
