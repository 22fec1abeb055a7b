/* be_kconf_rows.c - conformance cases of the kernels that work on single rows.
 *
 * One builder per operation: buffers of the shape asked for, a variant (types, optional
 * operands, aliasing) and inputs of the case's kind. Tests: tests/backends/test_be_kconf.c
 */
#include <math.h>
#include <stdio.h>

#include "be_kconf_impl.h"

#define ALL_INPUTS ((1u << KC_INPUT_COUNT) - 1)

/* The struct inside c->args, and a field's place in it. */
#define ARGS(c, type) ((struct type *)(void *)(c)->args)
#define AT(type, field) offsetof(struct type, field)

#define SAY(c, ...) snprintf((c)->what, sizeof((c)->what), __VA_ARGS__)

static const char *type_name(uint32_t t)
{
    return t == KX_F16 ? "f16" : "f32";
}

static void reach(struct kc_case *c, uint32_t buf, uint32_t rows, uint32_t cols)
{
    c->reach_buf = buf;
    c->reach_rows = rows;
    c->reach_cols = cols;
}

static uint64_t work_rows(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->k * 8;
}

/* ---------------------------------------------------------------- quant */

/* Encodings an entry makes: as its descriptor says, or by the arguments. */
static uint32_t enc_count(const struct be_kdesc *d)
{
    return d->out == BE_KACT_ANY ? 2 : 1;
}

static uint32_t enc_at(const struct be_kdesc *d, uint32_t i)
{
    if (d->out == BE_KACT_ANY)
        return i % 2 ? KX_ENC_Q8_K : KX_ENC_Q8_0;
    return d->out == BE_KACT_Q8_K ? KX_ENC_Q8_K : KX_ENC_Q8_0;
}

/* Planes of rows of int8. */
static void add_codes(struct kc_case *c, size_t xq, size_t xd, size_t xs, uint32_t enc, uint32_t n,
                      uint32_t k)
{
    kc_add(c, xq, (size_t)n * k, KC_I8, KC_OUT);
    kc_add(c, xd, (size_t)n * (k / (enc == KX_ENC_Q8_K ? 256 : 32)), KC_F32, KC_OUT);
    kc_add(c, xs, (size_t)n * (k / 32), KC_I32, KC_OUT);
}

static uint32_t quant_variants(const struct be_kentry *e)
{
    return kc_type_count(e->desc.act) * enc_count(&e->desc);
}

static void quant_build(struct kc_case *c)
{
    struct kx_quant *a = ARGS(c, kx_quant);
    uint32_t x, block;

    a->enc = enc_at(&c->e->desc, c->variant);
    a->x_t = kc_type_at(c->e->desc.act, c->variant / enc_count(&c->e->desc));
    a->n = c->s.rows;
    block = a->enc == KX_ENC_Q8_K ? 256 : 32;
    a->k = (c->s.k + block - 1) / block * block;
    x = kc_tensor(c, AT(kx_quant, x), a->x_t, a->n, a->k, KC_IN);
    add_codes(c, AT(kx_quant, xq), AT(kx_quant, xd), AT(kx_quant, xs), a->enc, a->n, a->k);
    reach(c, x, a->n, a->k);
    SAY(c, "%s to %s", type_name(a->x_t), a->enc == KX_ENC_Q8_K ? "Q8_K" : "Q8_0");
}

/* ---------------------------------------------------------------- embed */

static uint32_t embed_variants(const struct be_kentry *e)
{
    return 2 * kc_type_count(e->desc.out);
}

static void embed_build(struct kc_case *c)
{
    struct kx_embed *a = ARGS(c, kx_embed);
    uint32_t n_rows = c->s.n, ids;
    int32_t *id;

    a->n = c->s.rows;
    a->k = c->s.k;
    a->out_t = kc_type_at(c->e->desc.out, c->variant / 2);
    a->accumulate = c->variant % 2;
    a->scale = c->variant % 2 ? 1.0f : 25.298221f; /* sqrt(640) */
    kc_weight(c, AT(kx_embed, w), (enum be_dtype)c->e->desc.wfmt, n_rows, a->k);
    ids = kc_add(c, AT(kx_embed, ids), a->n, KC_I32, KC_IN);
    id = kc_data(c, ids);
    for (uint32_t i = 0; id && i < a->n; i++) /* both ends, repeats, anything */
        id[i] = (int32_t)(i == 0 ? n_rows - 1 : i == 1 ? 0 : kc_below(c, n_rows));
    if (a->accumulate)
        kc_tensor(c, AT(kx_embed, out), a->out_t, a->n, a->k, KC_INOUT);
    else
        kc_add(c, AT(kx_embed, out), (size_t)a->n * a->k, kc_elem_of(a->out_t), KC_OUT);
    SAY(c, "out %s%s", type_name(a->out_t), a->accumulate ? " accumulate" : "");
}

/* ----------------------------------------------------------------- norms */

enum { ADD_NONE, ADD_OTHER, ADD_IS_OUT, X_IS_OUT, ADD_KINDS };

/* Outputs of a norm: the row as a tensor, as int8, as both (layer norm: a tensor). */
enum { OUT_TENSOR, OUT_BOTH, OUT_CODES, OUT_KINDS };
#define NORM_TWICE \
    4u /* cases of a scale, a second norm, both; each in both types, half with int8 */

static uint32_t norm_variants(const struct be_kentry *e)
{
    uint32_t n = ADD_KINDS * kc_type_count(e->desc.act);

    return e->desc.op == BE_KOP_RMS_NORM && e->desc.out == BE_KACT_ANY
               ? n + 2 * (OUT_KINDS - 1) + 2 * NORM_TWICE
               : n;
}

static void norm_build(struct kc_case *c)
{
    static const char *const words[] = {"", " + add", " + add into add", " into x"};
    const struct be_kdesc *d = &c->e->desc;
    struct kx_norm *a = ARGS(c, kx_norm);
    uint32_t base = ADD_KINDS * kc_type_count(d->act), add, b, kind = OUT_TENSOR, block = 1, twice;
    bool two = false;

    a->n = c->s.rows;
    a->k = c->s.k;
    if (c->variant < base) {
        add = c->variant % ADD_KINDS;
        a->x_t = kc_type_at(d->act, c->variant / ADD_KINDS);
        if (d->out == BE_KACT_Q8_0 || d->out == BE_KACT_Q8_K)
            kind = OUT_BOTH;
    } else if (c->variant >= base + 2 * (OUT_KINDS - 1)) {
        twice = c->variant - base - 2 * (OUT_KINDS - 1);
        a->x_t = kc_type_at(d->act, twice / NORM_TWICE);
        twice %= NORM_TWICE;
        add = twice % 2 ? ADD_OTHER : ADD_IS_OUT;
        kind = twice < 2 ? OUT_TENSOR : OUT_BOTH;
        a->scale = twice != 1 ? 0.625f : 0;
        two = twice > 0;
    } else { /* with int8: both encodings, with and without the tensor */
        add = c->variant % 2 ? ADD_OTHER : ADD_NONE;
        a->x_t = kc_type_at(d->act, c->variant / 2);
        kind = OUT_BOTH + (c->variant - base) / 2;
    }
    a->add_t = a->x_t;
    a->out_t = a->x_t;
    a->eps = 1e-6f;
    if (kind != OUT_TENSOR) {
        a->enc = enc_at(d, c->variant);
        block = a->enc == KX_ENC_Q8_K ? 256 : 32;
        a->k = (a->k + block - 1) / block * block;
    }
    b = kc_tensor(c, AT(kx_norm, x), a->x_t, a->n, a->k, add == X_IS_OUT ? KC_INOUT : KC_IN);
    if (add == X_IS_OUT)
        kc_bind_also(c, AT(kx_norm, out), b, 0);
    else if (a->k > 2) /* one or two values come out the same from many inputs */
        reach(c, b, a->n, a->k);
    kc_fill_plain(c, kc_data(c, kc_add(c, AT(kx_norm, w), a->k, KC_F32, KC_IN)), KX_F32, 1, a->k,
                  1);
    if (d->op == BE_KOP_LAYER_NORM)
        kc_fill_plain(c, kc_data(c, kc_add(c, AT(kx_norm, b), a->k, KC_F32, KC_IN)), KX_F32, 1,
                      a->k, 1);
    if (add == ADD_OTHER || add == ADD_IS_OUT) {
        b = kc_tensor(c, AT(kx_norm, add), a->add_t, a->n, a->k,
                      add == ADD_IS_OUT ? KC_INOUT : KC_IN);
        if (add == ADD_IS_OUT)
            kc_bind_also(c, AT(kx_norm, out), b, 0);
    }
    if ((add == ADD_NONE || add == ADD_OTHER) && kind != OUT_CODES)
        kc_add(c, AT(kx_norm, out), (size_t)a->n * a->k, kc_elem_of(a->out_t), KC_OUT);
    if (two && a->k <= KX_NORM_TWICE) {
        a->eps2 = 1e-5f;
        a->out2_t = a->out_t;
        kc_fill_plain(c, kc_data(c, kc_add(c, AT(kx_norm, w2), a->k, KC_F32, KC_IN)), KX_F32, 1,
                      a->k, 1);
        kc_add(c, AT(kx_norm, out2), (size_t)a->n * a->k, kc_elem_of(a->out2_t), KC_OUT);
    }
    if (kind != OUT_TENSOR)
        add_codes(c, AT(kx_norm, xq), AT(kx_norm, xd), AT(kx_norm, xs), a->enc, a->n, a->k);
    SAY(c, "%s%s%s%s%s", type_name(a->x_t), words[add], a->scale != 0 ? ", scaled" : "",
        a->w2 ? ", twice" : "",
        kind == OUT_TENSOR ? ""
        : block == 256     ? ", Q8_K"
                           : ", Q8_0");
}

/* ------------------------------------------------------------------ rope */

static uint32_t rope_variants(const struct be_kentry *e)
{
    return KC_ROPE_KINDS * kc_type_count(e->desc.act);
}

uint32_t kc_rope(struct kc_case *c, size_t at, int like, uint32_t kind, uint32_t type,
                 uint32_t rows, uint32_t heads, uint32_t head_dim)
{
    struct kx_rope *a = (struct kx_rope *)(void *)(c->args + at);
    uint32_t half = head_dim / 2, x;
    int32_t *pos;

    a->n = rows;
    a->n_heads = heads;
    a->head_dim = head_dim;
    a->x_t = type;
    a->eps = 1e-6f;
    x = kc_tensor(c, at + AT(kx_rope, x), type, rows, heads * head_dim, KC_INOUT);
    if (kind != KC_ROPE_TURN)
        kc_fill_plain(c, kc_data(c, kc_add(c, at + AT(kx_rope, w), head_dim, KC_F32, KC_IN)),
                      KX_F32, 1, head_dim, 1);
    if (like >= 0) {
        int p = kc_bound(c, (size_t)like + AT(kx_rope, pos));
        int f = kc_bound(c, (size_t)like + AT(kx_rope, freq));

        if (p >= 0)
            kc_bind_also(c, at + AT(kx_rope, pos), (uint32_t)p, 0);
        if (f >= 0)
            kc_bind_also(c, at + AT(kx_rope, freq), (uint32_t)f, 0);
        return x;
    }
    pos = kc_data(c, kc_add(c, at + AT(kx_rope, pos), rows, KC_I32, KC_IN));
    for (uint32_t i = 0; pos && i < rows; i++) /* position 0, the longest contexts, repeats */
        pos[i] = (int32_t)(i == 0 ? 0 : i == 1 ? 131071 : i == 2 ? 1 : kc_below(c, 1u << (i % 18)));
    if (kind != KC_ROPE_NORM) {
        double *f = kc_data(c, kc_add(c, at + AT(kx_rope, freq), (size_t)half * 8, KC_BYTE, KC_IN));
        double theta = kc_rnd(c) & 1 ? 1e6 : 1e4, factor = kc_rnd(c) & 1 ? 8 : 1;

        for (uint32_t i = 0; f && i < half; i++)
            f[i] = pow(theta, -2.0 * i / head_dim) / factor;
    }
    return x;
}

static void rope_build(struct kc_case *c)
{
    static const char *const words[] = {"norm and rotation", "rotation", "norm"};
    uint32_t kind = c->variant % KC_ROPE_KINDS;
    uint32_t type = kc_type_at(c->e->desc.act, c->variant / KC_ROPE_KINDS);

    kc_rope(c, 0, -1, kind, type, c->s.rows, c->s.q_heads, c->s.head_dim);
    SAY(c, "%s %s", type_name(type), words[kind]);
}

static uint64_t work_heads(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->q_heads * s->head_dim * 8;
}

/* -------------------------------------- gather, softcap, convert, mul */

static uint32_t act_variants(const struct be_kentry *e)
{
    return kc_type_count(e->desc.act);
}

static void gather_build(struct kc_case *c)
{
    struct kx_gather *a = ARGS(c, kx_gather);
    uint32_t n_src = c->s.rows + 3;
    int32_t *rows;

    a->n = c->s.rows;
    a->k = c->s.k;
    a->t = kc_type_at(c->e->desc.act, c->variant);
    kc_tensor(c, AT(kx_gather, x), a->t, n_src, a->k, KC_IN);
    rows = kc_data(c, kc_add(c, AT(kx_gather, rows), a->n, KC_I32, KC_IN));
    for (uint32_t i = 0; rows && i < a->n; i++)
        rows[i] = (int32_t)(i == 0 ? n_src - 1 : kc_below(c, n_src));
    kc_add(c, AT(kx_gather, out), (size_t)a->n * a->k, kc_elem_of(a->t), KC_OUT);
    SAY(c, "%s", type_name(a->t));
}

static void softcap_build(struct kc_case *c)
{
    struct kx_softcap *a = ARGS(c, kx_softcap);

    a->n = c->s.rows;
    a->k = c->s.k;
    a->t = kc_type_at(c->e->desc.act, c->variant);
    a->cap = 30.0f;
    kc_tensor(c, AT(kx_softcap, x), a->t, a->n, a->k, KC_INOUT);
    if (c->input == KC_RANDOM) { /* around the cap, where the function bends */
        float *x = kc_data(c, 0);

        for (size_t i = 0; a->t == KX_F32 && x && i < (size_t)a->n * a->k; i++)
            x[i] *= 25.0f;
    }
    SAY(c, "%s", type_name(a->t));
}

/* Types of x and y, with y at whole eights of its columns or not, and without y. */
static uint32_t scale_variants(const struct be_kentry *e)
{
    return 3 * kc_type_count(e->desc.act);
}

static void scale_build(struct kc_case *c)
{
    static const char *const words[] = {"a slice", "an odd slice", "a number"};
    struct kx_scale *a = ARGS(c, kx_scale);
    uint32_t kind = c->variant % 3;

    a->n = c->s.rows;
    a->k = c->s.k;
    a->x_t = a->y_t = kc_type_at(c->e->desc.act, c->variant / 3);
    a->scale = 0.7071f;
    kc_tensor(c, AT(kx_scale, x), a->x_t, a->n, a->k, KC_INOUT);
    if (kind < 2) {
        a->y_col = kind ? 3 : 16;
        a->y_k = (a->k + 31) / 8 * 8 + kind;
        kc_tensor(c, AT(kx_scale, y), a->y_t, a->n, a->y_k, KC_IN);
    }
    SAY(c, "%s by %s", type_name(a->x_t), words[kind]);
}

/* Type of both sides: f32 -> f16 and back. */
static uint32_t convert_variants(const struct be_kentry *e)
{
    return e->desc.act == BE_KACT_ANY ? 2 : 1;
}

static void convert_build(struct kc_case *c)
{
    struct kx_convert *a = ARGS(c, kx_convert);

    a->from_t = kc_type_at(c->e->desc.act, c->variant);
    a->to_t = a->from_t == KX_F32 ? KX_F16 : KX_F32;
    a->n = (uint64_t)c->s.rows * c->s.k;
    kc_tensor(c, AT(kx_convert, src), a->from_t, c->s.rows, c->s.k, KC_IN);
    kc_add(c, AT(kx_convert, dst), a->n, kc_elem_of(a->to_t), KC_OUT);
    reach(c, 0, c->s.rows, c->s.k);
    SAY(c, "%s to %s", type_name(a->from_t), type_name(a->to_t));
}

/* Types of both inputs and of the result; over an input of the result's type or beside them. */
static uint32_t mul_variants(const struct be_kentry *e)
{
    uint32_t n = kc_type_count(e->desc.act);

    return n * n * n + n;
}

static void mul_build(struct kc_case *c)
{
    struct kx_mul *a = ARGS(c, kx_mul);
    uint32_t t = kc_type_count(c->e->desc.act), v = c->variant, x;
    bool over = v < t;

    a->n = (uint64_t)c->s.rows * c->s.k;
    v = over ? v * (1 + t + t * t) : v - t;
    a->x_t = kc_type_at(c->e->desc.act, v % t);
    a->y_t = kc_type_at(c->e->desc.act, v / t % t);
    a->out_t = kc_type_at(c->e->desc.act, v / t / t % t);
    x = kc_tensor(c, AT(kx_mul, x), a->x_t, c->s.rows, c->s.k, over ? KC_INOUT : KC_IN);
    kc_tensor(c, AT(kx_mul, y), a->y_t, c->s.rows, c->s.k, KC_IN);
    if (over)
        kc_bind_also(c, AT(kx_mul, out), x, 0);
    else
        kc_add(c, AT(kx_mul, out), a->n, kc_elem_of(a->out_t), KC_OUT);
    SAY(c, "%s times %s to %s%s", type_name(a->x_t), type_name(a->y_t), type_name(a->out_t),
        over ? " in place" : "");
}

/* ------------------------------------------------------------------ pool */

static uint32_t pool_variants(const struct be_kentry *e)
{
    return (BE_POOL_LAST + 1) * kc_type_count(e->desc.act);
}

/* Cuts rows into sequences of varied length, none empty; their number. */
static uint32_t cut(struct kc_case *c, uint32_t rows, uint32_t want, uint32_t *off)
{
    uint32_t n = want < rows ? want : rows;

    if (off)
        for (uint32_t i = 0; i <= n; i++)
            off[i] = i == n ? rows : i <= 1 ? i : i + (rows - n) * (i - 1) / n;
    (void)c;
    return n;
}

static void pool_build(struct kc_case *c)
{
    struct kx_pool *a = ARGS(c, kx_pool);
    uint32_t rows = c->s.seq + c->s.rows, want = c->s.rows, off;
    static const char *const kinds[] = {"cls", "max", "mean", "mean-sqrt", "weighted", "last"};

    a->k = c->s.k;
    a->kind = c->variant % (BE_POOL_LAST + 1);
    a->x_t = kc_type_at(c->e->desc.act, c->variant / (BE_POOL_LAST + 1));
    kc_tensor(c, AT(kx_pool, x), a->x_t, rows, a->k, KC_IN);
    off = kc_add(c, AT(kx_pool, off), want + 1, KC_I32, KC_IN);
    a->n_seqs = cut(c, rows, want, kc_data(c, off));
    kc_add(c, AT(kx_pool, out), (size_t)a->n_seqs * a->k, KC_F32, KC_OUT);
    SAY(c, "%s %s", kinds[a->kind], type_name(a->x_t));
}

static uint64_t work_pool(const struct kc_shape *s)
{
    return (uint64_t)(s->rows + s->seq) * s->k * 4;
}

/* -------------------------------------------------------- argmax, sample */

static uint32_t argmax_variants(const struct be_kentry *e)
{
    return 2 * kc_type_count(e->desc.act);
}

/* Arguments of both launches, with x and part; part's buffer. */
static uint32_t argmax_args(struct kc_case *c, enum kc_role part_role)
{
    struct kx_argmax *a = ARGS(c, kx_argmax);
    static const uint32_t parts[] = {64, 1, 7, 300};
    bool ties = c->variant % 2;

    a->n = c->s.rows;
    a->k = c->s.k;
    a->x_t = kc_type_at(c->e->desc.act, c->variant / 2);
    a->parts = parts[kc_below(c, 4)];
    kc_tensor(c, AT(kx_argmax, x), a->x_t, a->n, a->k, KC_IN);
    if (ties && c->input == KC_RANDOM) { /* few values: the lowest index must win */
        for (size_t i = 0; kc_data(c, 0) && i < (size_t)a->n * a->k; i++)
            if (a->x_t == KX_F32)
                ((float *)kc_data(c, 0))[i] = (float)kc_below(c, 3);
            else
                ((uint16_t *)kc_data(c, 0))[i] = (uint16_t)(0x3C00 + kc_below(c, 3));
    }
    SAY(c, "%s, %u parts%s", type_name(a->x_t), a->parts, ties ? ", ties" : "");
    return kc_add(c, AT(kx_argmax, part), (size_t)a->n * a->parts * 2, KC_I32, part_role);
}

static void argmax_part_build(struct kc_case *c)
{
    argmax_args(c, KC_OUT);
}

/* The second launch; part by the executor of the first. */
static void argmax_build(struct kc_case *c)
{
    uint32_t part = argmax_args(c, KC_IN);
    struct kx_argmax a = *ARGS(c, kx_argmax);

    a.x = (kx_p)(uintptr_t)kc_data(c, 0);
    a.part = (kx_p)(uintptr_t)kc_data(c, part);
    if (!c->nomem && !kc_run_other(c, BE_KOP_ARGMAX_PART, -1, -1, &a))
        c->cannot = "no executor takes the first step";
    kc_add(c, AT(kx_argmax, out), a.n, KC_I32, KC_OUT);
}

/* Arguments of both launches but out; scratch's buffer. */
static uint32_t sample_args(struct kc_case *c, enum kc_role scratch_role)
{
    struct kx_sample *a = ARGS(c, kx_sample);
    struct kx_sample_row *row;

    a->n = c->s.rows;
    a->k = c->s.k;
    a->x_t = kc_type_at(c->e->desc.act, c->variant);
    a->scratch_row = (KX_SAMPLE_SCRATCH(a->k) + 255) / 256 * 256;
    kc_tensor(c, AT(kx_sample, x), a->x_t, a->n, a->k, KC_IN);
    row = kc_data(c, kc_add(c, AT(kx_sample, rows), a->n * sizeof(*row), KC_BYTE, KC_IN));
    for (uint32_t i = 0; row && i < a->n; i++) {
        static const float temps[] = {1, 0.7f, 0.1f, 2, 5}, ps[] = {1, 0.95f, 0.5f, 0.01f},
                           mins[] = {0, 0.05f, 0.3f, 1};
        static const uint32_t tops[] = {0, 1, 2, 40, 64, 256, KX_SAMPLE_TOP, KX_SAMPLE_TOP + 1};

        row[i] = (struct kx_sample_row){.inv_temperature = 1 / temps[kc_below(c, 5)],
                                        .top_p = ps[kc_below(c, 4)],
                                        .min_p = mins[kc_below(c, 4)],
                                        .u = (float)(kc_rnd(c) >> 8) * 0x1p-24f,
                                        .top_k = tops[kc_below(c, 8)]};
        if (i % 5 == 0)
            row[i].u = i % 2 ? 0 : 0x1.fffffep-1f;
        if (i % 7 == 6)
            row[i].inv_temperature = 0;
    }
    SAY(c, "%s", type_name(a->x_t));
    return kc_add(c, AT(kx_sample, scratch), a->n * a->scratch_row / 4, KC_I32, scratch_role);
}

static void sample_part_build(struct kc_case *c)
{
    sample_args(c, KC_PART);
}

/* The second launch; scratch by the executor of the first. */
static void sample_build(struct kc_case *c)
{
    uint32_t scratch = sample_args(c, KC_IN);
    struct kx_sample a = *ARGS(c, kx_sample);

    a.x = (kx_p)(uintptr_t)kc_data(c, 0);
    a.rows = (kx_p)(uintptr_t)kc_data(c, 1);
    a.scratch = (kx_p)(uintptr_t)kc_data(c, scratch);
    if (!c->nomem && !kc_run_other(c, BE_KOP_SAMPLE_PART, -1, -1, &a))
        c->cannot = "no executor takes the first step";
    kc_add(c, AT(kx_sample, out), a.n, KC_I32, KC_OUT);
}

const struct kc_builder kc_rows_builders[] = {
    {BE_KOP_QUANT,
     sizeof(struct kx_quant),
     quant_variants,
     quant_build,
     ALL_INPUTS,
     {.rows = 3, .k = 512},
     work_rows},
    {BE_KOP_EMBED,
     sizeof(struct kx_embed),
     embed_variants,
     embed_build,
     ALL_INPUTS,
     {.rows = 5, .k = 256, .n = 37},
     work_rows},
    {BE_KOP_RMS_NORM,
     sizeof(struct kx_norm),
     norm_variants,
     norm_build,
     ALL_INPUTS,
     {.rows = 3, .k = 512},
     work_rows},
    {BE_KOP_LAYER_NORM,
     sizeof(struct kx_norm),
     norm_variants,
     norm_build,
     ALL_INPUTS,
     {.rows = 3, .k = 384},
     work_rows},
    {BE_KOP_ROPE,
     sizeof(struct kx_rope),
     rope_variants,
     rope_build,
     ALL_INPUTS,
     {.rows = 5, .q_heads = 3, .head_dim = 64},
     work_heads},
    {BE_KOP_GATHER,
     sizeof(struct kx_gather),
     act_variants,
     gather_build,
     ALL_INPUTS,
     {.rows = 5, .k = 100},
     work_rows},
    {BE_KOP_SOFTCAP,
     sizeof(struct kx_softcap),
     act_variants,
     softcap_build,
     ALL_INPUTS,
     {.rows = 3, .k = 300},
     work_rows},
    {BE_KOP_SCALE,
     sizeof(struct kx_scale),
     scale_variants,
     scale_build,
     ALL_INPUTS,
     {.rows = 5, .k = 300},
     work_rows},
    {BE_KOP_CONVERT,
     sizeof(struct kx_convert),
     convert_variants,
     convert_build,
     ALL_INPUTS,
     {.rows = 3, .k = 300},
     work_rows},
    {BE_KOP_MUL,
     sizeof(struct kx_mul),
     mul_variants,
     mul_build,
     ALL_INPUTS,
     {.rows = 3, .k = 300},
     work_rows},
    {BE_KOP_POOL,
     sizeof(struct kx_pool),
     pool_variants,
     pool_build,
     ALL_INPUTS,
     {.rows = 3, .k = 100, .seq = 17},
     work_pool},
    {BE_KOP_ARGMAX_PART,
     sizeof(struct kx_argmax),
     argmax_variants,
     argmax_part_build,
     ALL_INPUTS,
     {.rows = 3, .k = 1000},
     work_rows},
    {BE_KOP_ARGMAX,
     sizeof(struct kx_argmax),
     argmax_variants,
     argmax_build,
     ALL_INPUTS,
     {.rows = 3, .k = 1000},
     work_rows},
    {BE_KOP_SAMPLE_PART,
     sizeof(struct kx_sample),
     act_variants,
     sample_part_build,
     ALL_INPUTS,
     {.rows = 7, .k = 1500},
     work_rows},
    {BE_KOP_SAMPLE,
     sizeof(struct kx_sample),
     act_variants,
     sample_build,
     ALL_INPUTS,
     {.rows = 7, .k = 1500},
     work_rows},
};
const uint32_t kc_n_rows_builders = sizeof(kc_rows_builders) / sizeof(kc_rows_builders[0]);
