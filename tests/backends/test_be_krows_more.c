/* test_be_krows_more.c - the executors of embedding, gather, conversion, pooling and
 * arg-max against their definitions.
 *
 * Bounds: embedding, gather, conversion and arg-max exact; pooling 1e-6 of the largest value.
 */
#include "be_krows_test.h"

#include <ctype.h>

/* --------------------------------------------------------------------- embed */

static void put_bits(uint8_t *p, size_t word, unsigned bit, unsigned v, unsigned width)
{
    uint32_t w;

    memcpy(&w, p + word * 4, 4);
    w |= (v & ((1u << width) - 1)) << bit;
    memcpy(p + word * 4, &w, 4);
}

static void put_nibble(uint8_t *p, uint32_t c, unsigned v)
{
    p[c / 32 * 16 + c % 16] |= (uint8_t)((v & 15) << (c % 32 < 16 ? 0 : 4));
}

static unsigned nib(const uint8_t *qs, unsigned i)
{
    return i < 16 ? qs[i] & 15u : qs[i - 16] >> 4;
}

static unsigned bit(const uint8_t *qh, unsigned i)
{
    return (qh[i / 8] >> (i % 8)) & 1u;
}

/* A block of 32 at column c0 of a row to its planes, from the layouts of engine.md 2.3. */
static void plane_32(enum be_dtype t, const uint8_t *b, uint8_t *p[4], uint32_t c0)
{
    bool min = t == BE_Q4_1 || t == BE_Q5_1, five = t == BE_Q5_0 || t == BE_Q5_1;
    const uint8_t *qh = b + (min ? 4 : 2), *qs = qh + (five ? 4 : 0);

    memcpy(p[1] + c0 / 32 * (min ? 4 : 2), b, min ? 4 : 2);
    for (uint32_t i = 0; i < 32; i++) {
        if (t == BE_Q8_0)
            p[0][c0 + i] = b[2 + i];
        else
            put_nibble(p[0], c0 + i, nib(qs, i));
        if (five)
            put_bits(p[2], c0 / 32, 8 * (i % 4) + i / 4, bit(qh, i), 1);
    }
}

static void plane_256(enum be_dtype t, const uint8_t *b, uint8_t *p[4], uint32_t c0)
{
    const uint8_t *s = b + 4, *qs = b + (t == BE_Q5_K ? 48 : 16);

    if (t == BE_Q6_K) {
        memcpy(p[1] + c0 / 256 * 2, b + 208, 2);
        memcpy(p[2] + c0 / 256 * 16, b + 192, 16);
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t half = i / 128, g = i % 128 / 32, l = i % 32;
            unsigned v = b[64 * half + 32 * (g & 1) + l], hi = b[128 + 32 * half + l] >> 2 * g;

            put_nibble(p[0], c0 + i, g < 2 ? v : v >> 4);
            put_bits(p[3], (c0 + i) / 16, 8 * (i % 4) + i % 16 / 4 * 2, hi, 2);
        }
        return;
    }
    memcpy(p[1] + c0 / 256 * 4, b, 4);
    for (uint32_t j = 0; j < 8; j++) {
        p[2][c0 / 256 * 16 + 2 * j] =
            j < 4 ? s[j] & 63u : (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        p[2][c0 / 256 * 16 + 2 * j + 1] =
            j < 4 ? s[j + 4] & 63u : (uint8_t)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
    for (uint32_t i = 0; i < 256; i++) {
        unsigned v = qs[32 * (i / 64) + i % 32];

        put_nibble(p[0], c0 + i, i % 64 < 32 ? v : v >> 4);
        if (t == BE_Q5_K)
            put_bits(p[3], (c0 + i) / 32, 8 * (i % 4) + i % 32 / 4, b[16 + i % 32] >> (i / 32), 1);
    }
}

static void embed_case(enum be_dtype t, uint32_t k, uint32_t out_t, bool accumulate)
{
    static const int32_t ids[] = {4, 0, 3, 3, 1, 2, 4};
    uint32_t n = N_OF(ids), rows = 5, bs = be_dtype_block(t), bb = be_dtype_block_bytes(t);
    char name[32] = "kx_embed_";
    struct be_klayout l;
    size_t n_bytes;
    uint8_t *raw = random_blocks(t, rows, k, &n_bytes), *planes[4] = {0}, *out;
    float *v = xcalloc(k, sizeof(*v)), *want = xcalloc((size_t)n * k, sizeof(*want));
    struct kx_embed a = {.ids = at(ids), .n = n, .k = k, .out_t = out_t, .scale = 25.298221f};

    a.accumulate = accumulate;
    assert_true(be_klayout_get(t, k, &l));
    for (uint32_t i = 0; i < l.n_planes; i++) {
        planes[i] = xcalloc(rows, l.row_bytes[i]);
        a.w[i] = at(planes[i]);
    }
    for (uint32_t r = 0; r < rows; r++) {
        uint8_t *p[4];

        for (uint32_t i = 0; i < l.n_planes; i++)
            p[i] = planes[i] + (size_t)r * l.row_bytes[i];
        if (bs == 1)
            memcpy(p[0], raw + (size_t)r * k * bb, (size_t)k * bb);
        for (uint32_t b = 0; bs > 1 && b < k / bs; b++)
            (bs == 32 ? plane_32 : plane_256)(t, raw + ((size_t)r * (k / bs) + b) * bb, p, b * bs);
    }
    out = values(out_t, (size_t)n * k, accumulate ? 1.0f : 0.0f);
    a.out = at(out);
    for (uint32_t r = 0; r < n; r++) {
        be_dtype_to_f32(t, raw + (size_t)(uint32_t)ids[r] * (k / bs) * bb, v, k);
        for (uint32_t c = 0; c < k; c++) {
            float y = a.scale * v[c];

            if (accumulate)
                y = kx_act_get(a.out, out_t, (size_t)r * k + c) + y;
            want[(size_t)r * k + c] = out_t == KX_F16 ? kx_h2f(kx_f2h(y)) : y;
        }
    }
    for (size_t i = 0; be_dtype_name((uint32_t)t)[i]; i++)
        name[9 + i] = (char)tolower(be_dtype_name((uint32_t)t)[i]);
    run(name, &a);
    for (uint32_t i = 0; i < n * k; i++)
        expect(act(out, out_t, i), (double)want[i], 0, name, i / k, i % k);
    check_margin(out, elem(out_t), (size_t)n * k);
    for (int i = 0; i < 4; i++)
        free(planes[i]);
    free(out), free(want), free(v), free(raw);
}

static void embeddings_are_the_values_of_the_file(void **state)
{
    for (unsigned i = 0; i < N_TYPES * 4; i++) {
        enum be_dtype t = all_types[i % N_TYPES];

        embed_case(t, be_dtype_block(t) == 1 ? 1 : be_dtype_block(t), i / N_TYPES % 2,
                   i / N_TYPES > 1);
        embed_case(t, be_dtype_block(t) == 256 ? 768 : 640, i / N_TYPES % 2, i / N_TYPES > 1);
        if (be_dtype_block(t) == 1)
            embed_case(t, 333, i / N_TYPES % 2, i / N_TYPES > 1);
    }
}

/* ------------------------------------------------------- gather, convert, mul */

static void gathered_rows_are_copies(void **state)
{
    static const int32_t rows[] = {6, 0, 3, 3};
    static const uint32_t ks[] = {1, 3, 33, 640};

    for (unsigned i = 0; i < N_OF(ks) * 2; i++) {
        uint32_t k = ks[i / 2], t = i % 2;
        void *x = values(t, 7 * k, 2), *out = values(t, 4 * k, 0);
        struct kx_gather a = {at(x), at(rows), at(out), 4, k, t, 0};

        kx_act_put(at(x), t, 3 * k, -0.0f);
        kx_act_put(at(x), t, 6 * k, NAN);
        run("kx_gather", &a);
        for (uint32_t j = 0; j < 4 * k; j++)
            expect(act(out, t, j), act(x, t, (size_t)(uint32_t)rows[j / k] * k + j % k), 0,
                   "gather", j / k, j % k);
        assert_true(signbit(act(out, t, 2 * k)));
        check_margin(out, elem(t), 4 * k);
        free(out), free(x);
    }
}

static void conversions_round_to_nearest(void **state)
{
    static const uint32_t ns[] = {0, 1, 7, 8, 9, 2051};

    for (unsigned i = 0; i < N_OF(ns) * 2; i++) {
        uint32_t n = ns[i / 2], from = i % 2, to = !from;
        void *x = values(from, n, 70000), *out = values(to, n, 0);
        struct kx_convert a = {at(x), at(out), n, from, to};

        run("kx_convert", &a);
        for (uint32_t j = 0; j < n; j++) {
            float v = kx_act_get(at(x), from, j);

            expect(act(out, to, j), (double)(to == KX_F16 ? kx_h2f(kx_f2h(v)) : v), 0, "convert", 0,
                   j);
        }
        check_margin(out, elem(to), n);
        free(out), free(x);
    }
}

/* Every pair of types, beside the inputs and over the first; rounded once, to the result's type. */
static void products_of_elements(void **state)
{
    static const uint32_t ns[] = {0, 1, 7, 8, 9, 2051};

    for (unsigned i = 0; i < N_OF(ns) * 16; i++) {
        uint32_t n = ns[i / 16], xt = i & 1, yt = i >> 1 & 1, ot = i >> 2 & 1;
        bool over = i >> 3 & 1;
        void *x = values(xt, n, 4), *y = values(yt, n, 4), *out = over ? x : values(ot, n, 0);
        float *want = xcalloc(n + 1, sizeof(*want));
        struct kx_mul a = {at(x), at(y), at(out), n, xt, yt, ot, 0};

        for (uint32_t j = 0; j < n; j++) {
            float v = kx_act_get(at(x), xt, j) * kx_act_get(at(y), yt, j);

            want[j] = ot == KX_F16 ? kx_h2f(kx_f2h(v)) : v;
        }
        if (!over || ot == xt) {
            run("kx_mul", &a);
            for (uint32_t j = 0; j < n; j++)
                expect(act(out, ot, j), (double)want[j], 0, "mul", 0, j);
            check_margin(out, elem(ot), n);
        }
        if (!over)
            free(out);
        free(want), free(y), free(x);
    }
}

/* ----------------------------------------------------------------------- pool */

static double pooled(const void *x, uint32_t t, uint32_t k, uint32_t r0, uint32_t r1, uint32_t c,
                     unsigned kind)
{
    double sum = 0, n = r1 - r0, max = -INFINITY;

    for (uint32_t r = r0; r < r1; r++) {
        double v = act(x, t, (size_t)r * k + c);

        sum += kind == BE_POOL_WEIGHTED ? v * (r - r0 + 1) : v;
        max = v > max ? v : max;
    }
    switch (kind) {
    case BE_POOL_CLS:
        return act(x, t, (size_t)r0 * k + c);
    case BE_POOL_LAST:
        return act(x, t, (size_t)(r1 - 1) * k + c);
    case BE_POOL_MAX:
        return isnan(act(x, t, (size_t)r0 * k + c)) ? NAN : max;
    case BE_POOL_MEAN:
        return sum / n;
    case BE_POOL_MEAN_SQRT:
        return sum / sqrt(n);
    default:
        return sum / (n * (n + 1) / 2);
    }
}

static void pools_are_those_of_the_cpu(void **state)
{
    static const uint32_t off[] = {0, 1, 3, 11, 44, 300}, ks[] = {1, 33, 384};
    enum { SEQS = 5 };

    for (unsigned i = 0; i < N_OF(ks) * 2 * 6 * 2; i++) {
        uint32_t k = ks[i % N_OF(ks)], t = i / 3 % 2, kind = i / 6 % 6, ot = i / 36;
        void *x = values(t, (size_t)off[SEQS] * k, 2), *out = values(ot, SEQS * k, 0);
        struct kx_pool a = {at(x), at(off), at(out), SEQS, k, t, kind, ot, 0};

        if (kind == BE_POOL_MAX) {
            kx_act_put(at(x), t, 0, NAN);     /* alone in its sequence */
            kx_act_put(at(x), t, 2 * k, NAN); /* the second row: does not count */
            kx_act_put(at(x), t, 3 * k, INFINITY);
        }
        run("kx_pool", &a);
        for (uint32_t j = 0; j < SEQS * k; j++) {
            double want = pooled(x, t, k, off[j / k], off[j / k + 1], j % k, kind);

            expect(act(out, ot, j), want, ot == KX_F16 ? 1e-3 * (1 + fabs(want)) : 1e-5, "pool",
                   j / k, j % k);
        }
        check_margin(out, elem(ot), SEQS * k);
        free(out), free(x);
    }
}

/* --------------------------------------------------------------------- arg-max */

static int32_t argmax_of(const float *x, uint32_t k, uint32_t parts)
{
    int32_t out = -7;
    struct kx_best *part = xcalloc(parts, sizeof(*part));
    struct kx_argmax a = {at(x), at(&out), 1, k, KX_F32, 0, at(part), parts, 0};

    run("kx_argmax_part", &a);
    run("kx_argmax", &a);
    free(part);
    return out;
}

static void the_lowest_of_the_largest_wins(void **state)
{
    static const uint32_t parts[] = {1, 2, 7, 64, 130};
    float *x = values(KX_F32, 5000, 1);

    for (unsigned i = 0; i < N_OF(parts); i++) {
        uint32_t p = parts[i], k = 4999;

        x[4998] = 3;
        assert_int_equal(argmax_of(x, k, p), 4998);
        x[2047] = x[2048] = 3;
        assert_int_equal(argmax_of(x, k, p), 2047);
        x[0] = NAN;
        assert_int_equal(argmax_of(x, k, p), 2047);
        x[1] = INFINITY;
        assert_int_equal(argmax_of(x, k, p), 1);
        x[1] = x[0] = x[2047] = x[2048] = x[4998] = 0;
        assert_int_equal(argmax_of((const float[]){NAN, NAN, NAN}, 3, p), 0);
        assert_int_equal(argmax_of((const float[]){NAN, -INFINITY, -INFINITY}, 3, p), 1);
        assert_int_equal(argmax_of((const float[]){-0.0f, 0.0f}, 2, p), 0);
        assert_int_equal(argmax_of((const float[]){-5}, 1, p), 0);
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_the_values_of_the_file),
        cmocka_unit_test(gathered_rows_are_copies),
        cmocka_unit_test(conversions_round_to_nearest),
        cmocka_unit_test(products_of_elements),
        cmocka_unit_test(pools_are_those_of_the_cpu),
        cmocka_unit_test(the_lowest_of_the_largest_wins),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
