/* be_kconf_linear.c - conformance cases of the products of weights and of repacking.
 *
 * Weights are random valid blocks as a file has them, brought into the device's
 * planes by the executor of the repack kernel, which has cases of its own. Tests:
 * tests/backends/test_be_kconf.c
 */
#include <stdio.h>

#include "be_kconf_impl.h"

#define ARGS(c, type) ((struct type *)(void *)(c)->args)
#define AT(type, field) offsetof(struct type, field)

#define SAY(c, ...) snprintf((c)->what, sizeof((c)->what), __VA_ARGS__)

bool kc_run_other(struct kc_case *c, uint8_t op, int wfmt, int out, const void *args)
{
    for (uint32_t f = 0; c->families[f]; f++)
        for (uint32_t i = 0; i < c->families[f]->count(); i++) {
            const struct be_kentry *e = c->families[f]->at(i);
            struct be_kir *ir;
            bool ok;

            if (e->desc.op != op || (wfmt >= 0 && e->desc.wfmt != wfmt) ||
                (out >= 0 && e->desc.out != out && e->desc.out != BE_KACT_ANY))
                continue;
            if (!(ir = calloc(1, sizeof(*ir))))
                return false;
            ok = c->families[f]->build(e, ir, NULL) == RC_OK &&
                 c->families[f]->run(ir, args, NULL) == RC_OK;
            free(ir);
            return ok;
        }
    return false;
}

/* A type whose plane is the file's matrix, rows padded, needs no kernel. */
static bool copy_rows(const struct be_klayout *lay, const uint8_t *raw, uint64_t n,
                      const struct kx_repack *a)
{
    size_t row = n / a->n_rows;

    if (lay->n_planes != 1 || lay->row_bytes[0] < row || lay->row_bytes[0] - row >= 16)
        return false;
    for (uint32_t r = 0; r < a->n_rows; r++)
        memcpy((uint8_t *)(uintptr_t)a->dst[0] + (size_t)r * lay->row_bytes[0], raw + r * row, row);
    return true;
}

void kc_weight(struct kc_case *c, size_t field, enum be_dtype t, uint32_t rows, uint32_t cols)
{
    struct kx_repack a = {.n_rows = rows, .k = cols};
    struct be_klayout lay = {0};
    uint64_t n = 0;
    uint8_t *raw;

    if (!be_klayout_get(t, cols, &lay) || !be_dtype_bytes(t, rows, cols, &n)) {
        c->cannot = "its descriptor allows columns that have no layout";
        return;
    }
    if (!(raw = aligned_alloc(256, (n + 256) / 256 * 256))) {
        c->nomem = true;
        return;
    }
    kc_fill_blocks(c, t, raw, rows, cols);
    a.src = (kx_p)(uintptr_t)raw;
    for (uint32_t i = 0; i < lay.n_planes; i++) {
        uint32_t b =
            kc_add(c, field + i * sizeof(kx_p), (size_t)rows * lay.row_bytes[i], KC_BYTE, KC_IN);

        a.dst[i] = (kx_p)(uintptr_t)kc_data(c, b);
    }
    if (!c->nomem && !kc_run_other(c, BE_KOP_REPACK, t, -1, &a) && !copy_rows(&lay, raw, n, &a))
        c->cannot = "no executor repacks its weights";
    free(raw);
}

void kc_quantized(struct kc_case *c, size_t f_xq, size_t f_xd, size_t f_xs, uint32_t enc,
                  uint32_t rows, uint32_t k)
{
    uint32_t block = enc == KX_ENC_Q8_K ? 256 : 32;
    uint32_t q = kc_add(c, f_xq, (size_t)rows * k, KC_I8, KC_IN);
    uint32_t d = kc_add(c, f_xd, (size_t)rows * (k / block), KC_F32, KC_IN);
    uint32_t s = kc_add(c, f_xs, (size_t)rows * (k / 32), KC_I32, KC_IN);
    float *x = calloc((size_t)rows * k + 1, sizeof(*x));
    struct kx_quant a = {.x = (kx_p)(uintptr_t)x,
                         .xq = (kx_p)(uintptr_t)kc_data(c, q),
                         .xd = (kx_p)(uintptr_t)kc_data(c, d),
                         .xs = (kx_p)(uintptr_t)kc_data(c, s),
                         .x_t = KX_F32,
                         .enc = enc,
                         .n = rows,
                         .k = k};

    if (!x)
        c->nomem = true;
    if (!c->nomem) {
        kc_fill(c, x, KX_F32, rows, k);
        if (!kc_run_other(c, BE_KOP_QUANT, -1, enc == KX_ENC_Q8_K ? BE_KACT_Q8_K : BE_KACT_Q8_0,
                          &a))
            c->cannot = "no executor quantizes its activations";
    }
    free(x);
}

/* --------------------------------------------------------------- linear */

static bool is_float(uint8_t wfmt)
{
    return wfmt == BE_F32 || wfmt == BE_F16 || wfmt == BE_BF16;
}

/* Epilogues an entry serves. */
static uint32_t epi_count(const struct be_kdesc *d)
{
    return d->epi == 0xff ? 4 : 1;
}

static uint32_t linear_variants(const struct be_kentry *e)
{
    /* epilogue x parts (GEGLU: always two); types and biases change along */
    return epi_count(&e->desc) * (e->desc.epi == KX_EPI_GEGLU ? 2 : 3) *
           kc_type_count(e->desc.act) * kc_type_count(e->desc.out);
}

static void linear_build(struct kc_case *c)
{
    static const char *const names[] = {"none", "gelu-erf", "gelu-tanh", "add", "geglu"};
    const struct be_kdesc *d = &c->e->desc;
    struct kx_linear *a = ARGS(c, kx_linear);
    uint32_t v = c->variant, bias;
    bool own = false;

    a->epi = d->epi == 0xff ? v % 4 : d->epi;
    v /= epi_count(d);
    a->n_parts = a->epi == KX_EPI_GEGLU ? 2 : 1 + v % 3;
    bias = v % 2 || a->epi == KX_EPI_GELU_ERF;
    v /= a->epi == KX_EPI_GEGLU ? 2 : 3;
    a->x_t = kc_type_at(d->act, v);
    a->out_t = kc_type_at(d->out, v / kc_type_count(d->act));
    a->n = c->s.rows;
    a->k = c->s.k;
    if (is_float(d->wfmt)) {
        uint32_t x = kc_tensor(c, AT(kx_linear, x), a->x_t, a->n, a->k, KC_IN);

        if (a->n_parts == 1 || a->epi == KX_EPI_GEGLU) {
            c->reach_buf = x;
            c->reach_rows = a->n;
            c->reach_cols = a->k;
        }
    } else if (d->rows_class == BE_KROWS_1 && (c->variant + c->variant / 4) % 2) {
        /* the kernel makes the codes itself */
        c->reach_buf = kc_tensor(c, AT(kx_linear, x), a->x_t, a->n, a->k, KC_IN);
        c->reach_rows = a->n;
        c->reach_cols = a->k;
        own = true;
    } else {
        bool kq = be_dtype_block((enum be_dtype)d->wfmt) == 256;

        c->reach_buf = c->n_bufs; /* the codes; scales and sums follow */
        c->reach_sums = c->n_bufs + 2;
        c->reach_rows = a->n;
        c->reach_cols = a->k;
        kc_quantized(c, AT(kx_linear, xq), AT(kx_linear, xd), AT(kx_linear, xs),
                     kq ? KX_ENC_Q8_K : KX_ENC_Q8_0, a->n, a->k);
    }
    for (uint32_t i = 0; i < a->n_parts; i++) {
        /* parts of unequal width, as queries and keys are */
        uint32_t n = i == 0 || a->epi == KX_EPI_GEGLU ? c->s.n : (c->s.n + i) / (i + 1);

        if (d->n.fixed || d->n.mult > 1)
            n = c->s.n;
        a->n_out[i] = n;
        kc_weight(c, AT(kx_linear, w[i]), (enum be_dtype)d->wfmt, n, a->k);
        if (bias)
            kc_fill_plain(c, kc_data(c, kc_add(c, AT(kx_linear, b[i]), n, KC_F32, KC_IN)), KX_F32,
                          1, n, 1);
        if (i == 1 && a->epi == KX_EPI_GEGLU)
            break; /* one output */
        if (a->epi == KX_EPI_ADD)
            kc_fill_plain(c,
                          kc_data(c, kc_add(c, AT(kx_linear, out[i]), (size_t)a->n * n,
                                            kc_elem_of(a->out_t), KC_INOUT)),
                          a->out_t, a->n, n, 1);
        else
            kc_add(c, AT(kx_linear, out[i]), (size_t)a->n * n, kc_elem_of(a->out_t), KC_OUT);
    }
    if (d->rows_class == BE_KROWS_1 && a->n_parts == 1 && c->variant % 3 == 0) {
        a->mul_t = a->out_t;
        a->mul_scale = 0.75f;
        kc_fill_plain(
            c, kc_data(c, kc_add(c, AT(kx_linear, mul), a->n_out[0], kc_elem_of(a->mul_t), KC_IN)),
            a->mul_t, 1, a->n_out[0], 1);
    }
    SAY(c, "%s%s%s, %u part(s)%s, %s to %s", names[a->epi], a->mul ? ", times a row" : "",
        own ? ", codes of its own" : "", a->n_parts, bias ? ", bias" : "",
        a->x_t == KX_F16 ? "f16" : "f32", a->out_t == KX_F16 ? "f16" : "f32");
}

static uint64_t work_linear(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->k * s->n;
}

/* --------------------------------------------------------------- repack */

static uint32_t repack_variants(const struct be_kentry *e)
{
    return 2;
}

/* Variant 1: rows in the middle of a larger matrix; the others must stay. */
static void repack_build(struct kc_case *c)
{
    struct kx_repack *a = ARGS(c, kx_repack);
    enum be_dtype t = (enum be_dtype)c->e->desc.wfmt;
    struct be_klayout lay = {0};
    uint64_t n = 0;
    uint32_t all, src;

    a->n_rows = c->s.rows;
    a->k = c->s.k;
    a->row0 = c->variant ? 3 : 0;
    all = a->row0 + a->n_rows + (c->variant ? 2 : 0);
    if (!be_klayout_get(t, a->k, &lay) || !be_dtype_bytes(t, a->n_rows, a->k, &n)) {
        c->cannot = "its descriptor allows columns that have no layout";
        return;
    }
    src = kc_add(c, AT(kx_repack, src), n, KC_BYTE, KC_IN);
    kc_fill_blocks(c, t, kc_data(c, src), a->n_rows, a->k);
    for (uint32_t i = 0; i < lay.n_planes; i++) {
        uint32_t b = kc_add(c, AT(kx_repack, dst) + i * sizeof(kx_p),
                            (size_t)all * lay.row_bytes[i], KC_BYTE, KC_PART);

        if (kc_data(c, b))
            memset(kc_data(c, b), 0x77, (size_t)all * lay.row_bytes[i]);
    }
    SAY(c, "%s", c->variant ? "rows in the middle" : "whole");
}

static uint64_t work_repack(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->k * 4;
}

const struct kc_builder kc_linear_builders[] = {
    {BE_KOP_LINEAR,
     sizeof(struct kx_linear),
     linear_variants,
     linear_build,
     (1u << KC_INPUT_COUNT) - 1,
     {.rows = 3, .k = 256, .n = 40},
     work_linear},
    {BE_KOP_LINEAR, /* the same; a device adds its maps when it launches */
     sizeof(struct kx_linear_wg),
     linear_variants,
     linear_build,
     (1u << KC_INPUT_COUNT) - 1,
     {.rows = 3, .k = 256, .n = 40},
     work_linear},
    {BE_KOP_REPACK,
     sizeof(struct kx_repack),
     repack_variants,
     repack_build,
     1u << KC_RANDOM | 1u << KC_EXTREME | 1u << KC_SATURATED,
     {.rows = 5, .k = 512},
     work_repack},
};
const uint32_t kc_n_linear_builders = sizeof(kc_linear_builders) / sizeof(kc_linear_builders[0]);
