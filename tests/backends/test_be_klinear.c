/* test_be_klinear.c - the linear family: is its arithmetic right, and is the device's text that
 * arithmetic to the bit?
 *
 * The executor is checked against sums in f64 over be_dtype_to_f32 and the exact activations
 * (tolerance at the top), the CUDA text (emulated, sm_75 and sm_80) against the executor by memcmp.
 * Since mat-vec, small batch and mat-mat are all compared with the same executor, their rows are
 * equal to each other.
 */
#include "be_test.h"
#include "emu.h"

#include <float.h>
#include <math.h>

#include "be_half.h"
#include "be_kargs.h"
#include "be_klinear.h"

/* relative to the sum of absolute products: rounding of at most k / 8 / block fmas and the fold */
#define TOL_EXACT 2e-6
#define TOL_FAST 2e-4
#define TOL_TF32 (0x1p-10 + 0x1p-22 + 2e-6) /* both factors are off by at most 2^-11 */

struct job {
    const struct be_klin_fmt *f;
    uint32_t n, k, n_parts, n_out[3], epi, x_t, out_t;
    bool bias;
    struct kx_linear a;
    void *mem[40];
    uint32_t n_mem;
    uint8_t *raw[3];
    float *x, *out[3];
};

static void *mem(struct job *j, size_t n)
{
    void *p = aligned_alloc(256, (n + 511) / 256 * 256);

    assert_non_null(p);
    assert_true(j->n_mem < 40);
    memset(p, 0, (n + 511) / 256 * 256);
    return j->mem[j->n_mem++] = p;
}

static float uniform(void)
{
    return (float)(int)(rnd() % 20001 - 10000) / 10000.0f;
}

static kx_p addr(const void *p)
{
    return (kx_p)(uintptr_t)p;
}

static void put_half(uint8_t *p, float f)
{
    uint16_t h = be_f32_to_half(f);

    memcpy(p, &h, 2);
}

/* Random blocks with scales of ordinary size. */
static void fill_raw(enum be_dtype t, uint8_t *p, size_t n_blocks)
{
    uint32_t bytes = be_dtype_block_bytes(t);

    for (size_t b = 0; b < n_blocks; b++, p += bytes) {
        if (bytes <= 4) {
            float f = uniform();

            if (t == BE_F32)
                memcpy(p, &f, 4);
            else if (t == BE_F16)
                put_half(p, f);
            else
                memcpy(p, (char *)&f + 2, 2);
            continue;
        }
        for (uint32_t i = 0; i < bytes; i++)
            p[i] = (uint8_t)rnd();
        put_half(t == BE_Q6_K ? p + 208 : p, uniform() / (bytes > 64 ? 512 : 16));
        if (t == BE_Q4_1 || t == BE_Q5_1 || t == BE_Q4_K || t == BE_Q5_K)
            put_half(p + 2, uniform() / 16);
    }
}

static void run_entry(const char *name, const void *args)
{
    const struct be_kentry *e = be_kcat_find(name);
    struct be_kir k;
    struct rc_err err = RC_ERR_INIT;

    assert_non_null(e);
    if (be_kfam_linear.build(e, &k, &err) != RC_OK || be_kfam_linear.run(&k, args, &err) != RC_OK)
        fail_msg("%s: %s", name, err.msg);
}

static void make_weight(struct job *j, uint32_t part)
{
    enum be_dtype t = j->f->dtype;
    uint32_t n = j->n_out[part], bs = be_dtype_block(t);
    struct kx_repack a = {.n_rows = n, .k = j->k};
    struct be_klayout l;
    uint64_t bytes;
    char name[64];

    assert_true(be_dtype_bytes(t, n, j->k, &bytes) && be_klayout_get(t, j->k, &l));
    j->raw[part] = mem(j, bytes);
    fill_raw(t, j->raw[part], (size_t)n * (j->k / bs));
    a.src = addr(j->raw[part]);
    for (uint32_t i = 0; i < l.n_planes; i++)
        a.dst[i] = j->a.w[part][i] = addr(mem(j, (size_t)n * l.row_bytes[i]));
    snprintf(name, sizeof(name), "kx_repack_%s", j->f->word);
    if (bs > 1)
        run_entry(name, &a);
    else
        for (uint32_t r = 0; r < n; r++)
            memcpy((uint8_t *)(uintptr_t)a.dst[0] + (size_t)r * l.row_bytes[0],
                   j->raw[part] + (size_t)r * j->k * be_dtype_block_bytes(t),
                   (size_t)j->k * be_dtype_block_bytes(t));
}

/* Activations: floats, or codes with scales; x gets their exact values either way. */
static void activations(struct job *j)
{
    uint32_t bs = be_dtype_block(j->f->dtype), block = bs == 1 ? 1 : bs;
    int8_t *q = mem(j, (size_t)j->n * j->k);
    float *d = mem(j, (size_t)j->n * j->k / block * 4);
    int32_t *s = mem(j, ((size_t)j->n * j->k / 32 + 1) * 4);
    uint16_t *h = mem(j, (size_t)j->n * j->k * 2);

    j->x = mem(j, (size_t)j->n * j->k * 4);
    for (size_t i = 0; i < (size_t)j->n * j->k; i++) {
        if (bs == 1) {
            h[i] = be_f32_to_half(uniform());
            j->x[i] = j->x_t == KX_F16 ? be_half_to_f32(h[i]) : uniform();
            continue;
        }
        if (i % block == 0)
            d[i / block] = be_half_to_f32(be_f32_to_half(uniform() / 50));
        q[i] = (int8_t)(rnd() % 255 - 127);
        s[i / 32] += q[i];
        j->x[i] = d[i / block] * (float)q[i];
    }
    j->a.x = addr(j->x_t == KX_F16 ? (void *)h : (void *)j->x);
    j->a.xq = addr(q);
    j->a.xd = addr(d);
    j->a.xs = addr(s);
}

static size_t out_bytes(const struct job *j, uint32_t part)
{
    return (size_t)j->n * j->n_out[part] * (j->out_t == KX_F16 ? 2 : 4);
}

static void make(struct job *j)
{
    j->a = (struct kx_linear){.n = j->n,
                              .k = j->k,
                              .n_parts = j->n_parts,
                              .epi = j->epi,
                              .x_t = j->x_t,
                              .out_t = j->out_t};
    activations(j);
    for (uint32_t i = 0; i < j->n_parts; i++) {
        j->a.n_out[i] = j->n_out[i];
        make_weight(j, i);
        if (j->bias) {
            float *b = mem(j, j->n_out[i] * 4);

            for (uint32_t c = 0; c < j->n_out[i]; c++)
                b[c] = uniform();
            j->a.b[i] = addr(b);
        }
        j->out[i] = mem(j, out_bytes(j, i));
        for (size_t e = 0; e < (size_t)j->n * j->n_out[i]; e++) {
            if (j->out_t == KX_F16)
                put_half((uint8_t *)j->out[i] + 2 * e, uniform());
            else
                j->out[i][e] = uniform();
        }
        j->a.out[i] = addr(j->out[i]);
    }
}

static void drop(struct job *j)
{
    for (uint32_t i = 0; i < j->n_mem; i++)
        free(j->mem[i]);
    j->n_mem = 0;
}

/* ------------------------------------------------------ executor against f64 */

static double product(const struct job *j, uint32_t part, uint32_t row, uint32_t col,
                      double *out_abs)
{
    enum be_dtype t = j->f->dtype;
    uint32_t bytes = j->k / be_dtype_block(t) * be_dtype_block_bytes(t);
    float *w = malloc(j->k * sizeof(*w));
    double sum = 0;

    assert_non_null(w);
    be_dtype_to_f32(t, j->raw[part] + (size_t)col * bytes, w, j->k);
    *out_abs = 0;
    for (uint32_t i = 0; i < j->k; i++) {
        double p = (double)w[i] * (double)j->x[(size_t)row * j->k + i];

        sum += p;
        *out_abs += fabs(p);
    }
    free(w);
    if (j->bias)
        sum += (double)((const float *)(uintptr_t)j->a.b[part])[col];
    return sum;
}

static double gelu(uint32_t epi, double z)
{
    if (epi == KX_EPI_GELU_ERF)
        return 0.5 * z * (1 + erf(z / sqrt(2)));
    return 0.5 * z * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}

static void check_executor(struct job *j, const char *name, double tol)
{
    uint32_t n_outs = j->epi == KX_EPI_GEGLU ? 1 : j->n_parts;
    float *before[3];

    for (uint32_t p = 0; p < n_outs; p++) {
        before[p] = mem(j, out_bytes(j, p));
        memcpy(before[p], j->out[p], out_bytes(j, p));
    }
    run_entry(name, &j->a);
    for (uint32_t p = 0; p < n_outs; p++)
        for (uint32_t e = 0; e < j->n * j->n_out[p]; e++) {
            uint32_t r = e / j->n_out[p], c = e % j->n_out[p];
            double mag, mag2 = 0, want = product(j, p, r, c, &mag), got, old;

            if (j->epi == KX_EPI_GEGLU) {
                double up = product(j, 1, r, c, &mag2);

                mag = mag * fabs(up) + fabs(want) * mag2;
                want = gelu(KX_EPI_GELU_TANH, want) * up;
            } else if (j->epi == KX_EPI_GELU_ERF || j->epi == KX_EPI_GELU_TANH) {
                want = gelu(j->epi, want);
            }
            old = j->out_t == KX_F16 ? (double)be_half_to_f32(((uint16_t *)before[p])[e])
                                     : (double)before[p][e];
            got = j->out_t == KX_F16 ? (double)be_half_to_f32(((uint16_t *)j->out[p])[e])
                                     : (double)j->out[p][e];
            if (j->epi == KX_EPI_ADD)
                want += old;
            mag = (mag + 1) * tol + (j->out_t == KX_F16 ? fabs(want) * 6e-4 + 1e-7 : 0);
            if (!(fabs(got - want) <= mag))
                fail_msg(
                    "%s part %u row %u column %u (n %u k %u epilogue %u): %.9g, expected %.9g, "
                    "tolerance %g, seed %llu",
                    name, p, r, c, j->n, j->k, j->epi, got, want, mag,
                    (unsigned long long)test_seed);
        }
    for (uint32_t p = 0; p < n_outs; p++)
        memcpy(j->out[p], before[p], out_bytes(j, p));
}

/* ------------------------------------------------------ device against executor */

static void check_device(struct job *j, const struct be_kentry *e, unsigned arch)
{
    uint32_t n_outs = j->epi == KX_EPI_GEGLU ? 1 : j->n_parts;
    struct kx_linear dev = j->a;
    uint8_t *got[3];
    struct be_kgrid g;

    if (e->min_arch > arch)
        return;
    for (uint32_t p = 0; p < n_outs; p++) {
        got[p] = mem(j, out_bytes(j, p) + 64);
        memcpy(got[p], j->out[p], out_bytes(j, p));
        memset(got[p] + out_bytes(j, p), 0x5a, 64);
        dev.out[p] = addr(got[p]);
    }
    e->grid(e, &dev, &g);
    emu_run_arch(e->name, arch, &dev, sizeof(dev), &g);
    run_entry(e->name, &j->a);
    for (uint32_t p = 0; p < n_outs; p++) {
        for (uint32_t i = 0; i < 64; i++)
            if (got[p][out_bytes(j, p) + i] != 0x5a)
                fail_msg("%s wrote behind its output", e->name);
        if (memcmp(got[p], j->out[p], out_bytes(j, p)) == 0)
            continue;
        for (uint32_t i = 0; i < j->n * j->n_out[p]; i++) {
            uint32_t w = j->out_t == KX_F16 ? 2 : 4;
            double a = 0, b = 0;

            if (memcmp(got[p] + i * w, (uint8_t *)j->out[p] + i * w, w) == 0)
                continue;
            if (w == 4) {
                a = (double)((float *)(void *)got[p])[i];
                b = (double)j->out[p][i];
            }
            fail_msg("%s sm_%u part %u row %u column %u (n %u k %u epilogue %u): %.9g, executor "
                     "%.9g, seed %llu",
                     e->name, arch, p, i / j->n_out[p], i % j->n_out[p], j->n, j->k, j->epi, a, b,
                     (unsigned long long)test_seed);
        }
    }
}

static const char *const classes[] = {"mv",       "ext",     "mm",       "big",
                                      "fast_few", "fast_mm", "tf32_few", "tf32_mm"};
#define N_CLASSES (sizeof(classes) / sizeof(classes[0]))

static const struct be_kentry *entry(const struct be_klin_fmt *f, unsigned cls, bool geglu)
{
    char name[64];

    snprintf(name, sizeof(name), "kx_linear_%s_%s%s", f->word, classes[cls], geglu ? "_geglu" : "");
    return be_kcat_find(name);
}

struct shape {
    uint32_t n, k, n_parts, n_out[3];
};

/* rows by class; columns around the tiles; k in blocks of the type */
static const struct shape shapes[N_CLASSES][3] = {
    {{1, 1, 1, {3}}, {1, 20, 3, {17, 5, 16}}, {1, 80, 2, {40, 33}}},
    {{2, 1, 1, {3}}, {5, 20, 3, {17, 5, 16}}, {8, 13, 2, {16, 33}}},
    {{9, 1, 1, {3}}, {33, 20, 3, {33, 5, 32}}, {40, 13, 2, {32, 33}}},
    {{65, 1, 1, {3}}, {66, 20, 3, {65, 5, 64}}, {65, 11, 2, {64, 33}}},
    {{1, 1, 1, {3}}, {33, 20, 3, {33, 5, 16}}, {40, 13, 2, {32, 36}}},
    {{65, 1, 1, {3}}, {66, 20, 3, {129, 5, 8}}, {129, 13, 2, {128, 36}}},
    {{1, 1, 1, {3}}, {33, 20, 3, {33, 5, 16}}, {40, 13, 2, {32, 36}}},
    {{65, 1, 1, {3}}, {66, 20, 3, {129, 5, 8}}, {129, 13, 2, {128, 36}}},
};

static void one(const struct be_klin_fmt *f, unsigned cls, unsigned i, bool geglu, bool exec)
{
    static const uint32_t epis[] = {KX_EPI_NONE, KX_EPI_GELU_ERF, KX_EPI_GELU_TANH, KX_EPI_ADD};
    const struct shape *s = &shapes[cls][i];
    const bool half = cls == 4 || cls == 5, tf32 = cls > 5;
    const struct be_kentry *e = entry(f, cls, geglu);
    struct job j = {.f = f,
                    .n = s->n,
                    .k = s->k * (f->cls == BE_KLC_256  ? 256
                                 : f->cls == BE_KLC_32 ? 32
                                                       : 8),
                    .n_parts = geglu ? 2 : s->n_parts,
                    .epi = geglu ? KX_EPI_GEGLU : epis[(i + cls) % 4],
                    .bias = i % 2,
                    .x_t = half || (!tf32 && f->cls == BE_KLC_FLOAT && i == 2) ? KX_F16 : KX_F32,
                    .out_t = i == 2 && !tf32 ? KX_F16 : KX_F32};

    if (!e)
        return;
    if (f->cls == BE_KLC_256 && s->k > 1)
        j.k = (s->k / 2 + 1) * 256; /* 10 and 40 halves: ends in the middle of the slices */
    if (f->cls == BE_KLC_FLOAT && i == 1)
        j.k = 1003;
    memcpy(j.n_out, s->n_out, sizeof(j.n_out));
    if (geglu)
        j.n_out[1] = j.n_out[0];
    make(&j);
    if (exec)
        check_executor(&j, e->name, tf32 ? TOL_TF32 : half ? TOL_FAST : TOL_EXACT);
    else {
        check_device(&j, e, 75);
        check_device(&j, e, 80);
    }
    drop(&j);
}

static void each(bool exec)
{
    for (uint32_t t = 0; t < 40; t++) {
        const struct be_klin_fmt *f = be_klin_fmt_get(t);

        for (unsigned cls = 0; f && cls < N_CLASSES; cls++)
            for (unsigned i = 0; i < 3; i++) {
                one(f, cls, i, false, exec);
                one(f, cls, i, true, exec);
            }
    }
}

static void executor_is_right(void **state)
{
    each(true);
}

static void device_is_the_executor(void **state)
{
    each(false);
}

static void repack_is_the_executor(void **state)
{
    for (uint32_t t = 0; t < 40; t++) {
        const struct be_klin_fmt *f = be_klin_fmt_get(t);
        uint32_t k, rows = 3;
        struct be_klayout l;
        struct job j = {.f = f};
        struct kx_repack a, b;
        struct be_kgrid g;
        char name[64];
        uint64_t bytes;
        uint8_t *raw;

        if (!f || f->cls == BE_KLC_FLOAT)
            continue;
        k = f->cls == BE_KLC_32 ? 32 * 21 : 256 * 3;
        assert_true(be_klayout_get(f->dtype, k, &l) && be_dtype_bytes(f->dtype, rows, k, &bytes));
        raw = mem(&j, bytes + 1);
        raw++; /* any alignment */
        fill_raw(f->dtype, raw, bytes / be_dtype_block_bytes(f->dtype));
        a = (struct kx_repack){.src = addr(raw), .row0 = 1, .n_rows = rows, .k = k};
        b = a;
        for (uint32_t i = 0; i < l.n_planes; i++) {
            a.dst[i] =
                addr(memset(mem(&j, (rows + 2) * l.row_bytes[i]), 7, (rows + 2) * l.row_bytes[i]));
            b.dst[i] =
                addr(memset(mem(&j, (rows + 2) * l.row_bytes[i]), 7, (rows + 2) * l.row_bytes[i]));
        }
        snprintf(name, sizeof(name), "kx_repack_%s", f->word);
        run_entry(name, &a);
        be_kcat_find(name)->grid(be_kcat_find(name), &b, &g);
        emu_run(name, &b, sizeof(b), &g);
        for (uint32_t i = 0; i < l.n_planes; i++)
            for (uint32_t c = 0; c < (rows + 2) * l.row_bytes[i]; c++)
                if (((uint8_t *)(uintptr_t)a.dst[i])[c] != ((uint8_t *)(uintptr_t)b.dst[i])[c])
                    fail_msg("%s plane %u byte %u of row %u", name, i, c % l.row_bytes[i],
                             c / l.row_bytes[i]);
        drop(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executor_is_right),
        cmocka_unit_test(repack_is_the_executor),
        cmocka_unit_test(device_is_the_executor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
