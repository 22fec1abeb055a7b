/* be_kconf_tower.c - conformance cases of the kernels of eyes and ears.
 *
 * One builder per operation, as in be_kconf_rows.c: buffers of the shape asked for, a variant and
 * inputs of the case's kind. Tests: tests/backends/test_be_kconf.c
 */
#include <math.h>
#include <stdio.h>

#include "be_kconf_impl.h"
#include "be_ktower.h"

#define ALL_INPUTS ((1u << KC_INPUT_COUNT) - 1)
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

static uint64_t work(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->k * 16;
}

static void vector(struct kc_case *c, size_t field, uint32_t n)
{
    kc_fill_plain(c, kc_data(c, kc_add(c, field, n, KC_F32, KC_IN)), KX_F32, 1, n, 1);
}

/* ------------------------------------------------------------ act, glu, affine */

enum { TO_OTHER, TO_X, ADD_OTHER, ADD_TO_SUM, ACT_PLACES };

/* Every function at every place, in both types; then a clamp that is open on one side. */
static uint32_t act_variants(const struct be_kentry *e)
{
    return ((BE_ACT_CLAMP + 1) * ACT_PLACES + 2) * kc_type_count(e->desc.act);
}

static void act_build(struct kc_case *c)
{
    static const char *const kinds[] = {"relu", "silu", "gelu", "clamp"};
    static const char *const places[] = {"", " in place", " + add", " + add into add"};
    struct kx_act *a = ARGS(c, kx_act);
    uint32_t types = kc_type_count(c->e->desc.act), v = c->variant / types, x, add, place;

    a->n = c->s.rows;
    a->k = c->s.k;
    a->x_t = a->add_t = a->out_t = kc_type_at(c->e->desc.act, c->variant);
    a->lo = -0.25f;
    a->hi = 0.5f;
    a->kind = v / ACT_PLACES;
    place = v % ACT_PLACES;
    if (a->kind > BE_ACT_CLAMP) {
        a->kind = BE_ACT_CLAMP;
        a->lo = place ? a->lo : -INFINITY;
        a->hi = place ? INFINITY : a->hi;
        place = TO_OTHER;
    }
    x = kc_tensor(c, AT(kx_act, x), a->x_t, a->n, a->k, place == TO_X ? KC_INOUT : KC_IN);
    if (place == TO_X)
        kc_bind_also(c, AT(kx_act, out), x, 0);
    if (place >= ADD_OTHER) {
        add = kc_tensor(c, AT(kx_act, add), a->add_t, a->n, a->k,
                        place == ADD_TO_SUM ? KC_INOUT : KC_IN);
        if (place == ADD_TO_SUM)
            kc_bind_also(c, AT(kx_act, out), add, 0);
    }
    if (place == TO_OTHER || place == ADD_OTHER)
        kc_add(c, AT(kx_act, out), (size_t)a->n * a->k, kc_elem_of(a->out_t), KC_OUT);
    SAY(c, "%s %s%s", type_name(a->x_t), kinds[a->kind], places[place]);
}

static uint32_t type_variants(const struct be_kentry *e)
{
    return kc_type_count(e->desc.act);
}

static void glu_build(struct kc_case *c)
{
    struct kx_glu *a = ARGS(c, kx_glu);

    a->n = c->s.rows;
    a->k = c->s.k;
    a->x_t = a->out_t = kc_type_at(c->e->desc.act, c->variant);
    kc_tensor(c, AT(kx_glu, x), a->x_t, a->n, 2 * a->k, KC_IN);
    kc_add(c, AT(kx_glu, out), (size_t)a->n * a->k, kc_elem_of(a->out_t), KC_OUT);
    reach(c, 0, a->n, 2 * a->k);
    SAY(c, "%s", type_name(a->x_t));
}

static void affine_build(struct kc_case *c)
{
    struct kx_affine *a = ARGS(c, kx_affine);

    a->n = c->s.rows;
    a->k = c->s.k;
    a->x_t = kc_type_at(c->e->desc.act, c->variant);
    kc_tensor(c, AT(kx_affine, x), a->x_t, a->n, a->k, KC_INOUT);
    vector(c, AT(kx_affine, sub), a->k);
    vector(c, AT(kx_affine, mul), a->k);
    SAY(c, "%s", type_name(a->x_t));
}

/* ---------------------------------------------------------------------- rope2d */

static void positions(struct kc_case *c, size_t field, uint32_t n, uint32_t turn)
{
    int32_t *pos = kc_data(c, kc_add(c, field, n, KC_I32, KC_IN));

    for (uint32_t i = 0; pos && i < n; i++) /* 0, a far one, and those of pictures */
        pos[i] = (int32_t)((i + turn) % 5 == 0   ? 0
                           : (i + turn) % 5 == 1 ? 131071
                                                 : kc_below(c, 512));
}

static void rope2d_build(struct kc_case *c)
{
    struct kx_rope2d *a = ARGS(c, kx_rope2d);
    uint32_t pairs;
    double *f;

    a->n = c->s.rows;
    a->n_heads = c->s.q_heads;
    a->head_dim = c->s.head_dim;
    a->x_t = kc_type_at(c->e->desc.act, c->variant);
    pairs = a->head_dim / 4;
    kc_tensor(c, AT(kx_rope2d, x), a->x_t, a->n, a->n_heads * a->head_dim, KC_INOUT);
    positions(c, AT(kx_rope2d, pos_x), a->n, 0);
    positions(c, AT(kx_rope2d, pos_y), a->n, 2);
    f = kc_data(c, kc_add(c, AT(kx_rope2d, freq), (size_t)pairs * 8, KC_BYTE, KC_IN));
    for (uint32_t i = 0; f && i < pairs; i++) /* tables hold f32 */
        f[i] = (float)pow(100, -2.0 * i / (a->head_dim / 2));
    SAY(c, "%s", type_name(a->x_t));
}

static uint64_t work_heads(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->q_heads * s->head_dim * 16;
}

/* ---------------------------------------------------------------------- unfold */

/* Windows: lines, columns, strides, margins, order of values; whether x begins behind the top. */
static const struct {
    uint32_t k_h, k_w, stride_h, stride_w, pad_h, pad_w, ch_first, cut;
} windows[] = {
    {3, 3, 2, 2, 1, 1, 1, 0}, {3, 3, 2, 2, 1, 1, 1, 1}, {1, 4, 1, 4, 0, 0, 0, 0},
    {3, 2, 1, 3, 2, 1, 0, 1}, {5, 1, 3, 1, 4, 0, 1, 0}, {1, 1, 1, 1, 0, 0, 0, 1},
};
#define N_WINDOWS (sizeof(windows) / sizeof(windows[0]))

static uint32_t unfold_variants(const struct be_kentry *e)
{
    return (uint32_t)N_WINDOWS * kc_type_count(e->desc.act);
}

static void unfold_build(struct kc_case *c)
{
    struct kx_unfold *a = ARGS(c, kx_unfold);
    uint32_t types = kc_type_count(c->e->desc.act), w = c->variant / types % N_WINDOWS, lines;

    a->x_t = a->out_t = kc_type_at(c->e->desc.act, c->variant);
    a->k_h = windows[w].k_h;
    a->k_w = windows[w].k_w;
    a->stride_h = windows[w].stride_h;
    a->stride_w = windows[w].stride_w;
    a->pad_h = windows[w].pad_h;
    a->pad_w = windows[w].pad_w;
    a->ch_first = windows[w].ch_first;
    a->n_ch = 1 + c->s.k / (a->k_h * a->k_w) % 130;
    a->k = a->k_h * a->k_w * a->n_ch;
    a->width = 4 + c->s.k % 9;
    a->height = 7 + c->s.rows % 5;
    a->n_x = (a->width + 2 * a->pad_w - a->k_w) / a->stride_w + 1;
    lines = (a->height + 2 * a->pad_h - a->k_h) / a->stride_h + 1;
    if (windows[w].cut) { /* the later lines of windows, and of x only what they touch */
        a->line = lines / 2;
        a->x_line = a->line * a->stride_h > a->pad_h ? a->line * a->stride_h - a->pad_h : 0;
        lines -= a->line;
    }
    a->n = lines * a->n_x;
    kc_tensor(c, AT(kx_unfold, x), a->x_t, (a->height - a->x_line) * a->width, a->n_ch, KC_IN);
    kc_add(c, AT(kx_unfold, out), (size_t)a->n * a->k, kc_elem_of(a->out_t), KC_OUT);
    SAY(c, "%s, %u x %u of %u values by %u, %u from line %u of %u x %u", type_name(a->x_t), a->k_h,
        a->k_w, a->n_ch, a->stride_h, a->stride_w, a->x_line, a->height, a->width);
}

/* --------------------------------------------------- along the rows before */

static void conv1d_build(struct kc_case *c)
{
    struct kx_conv1d *a = ARGS(c, kx_conv1d);

    a->n = c->s.rows;
    a->k = c->s.k;
    a->taps = c->s.seq;
    a->x_t = a->out_t = kc_type_at(c->e->desc.act, c->variant);
    kc_tensor(c, AT(kx_conv1d, x), a->x_t, a->n, a->k, KC_IN);
    vector(c, AT(kx_conv1d, w), a->k * a->taps);
    kc_add(c, AT(kx_conv1d, out), (size_t)a->n * a->k, kc_elem_of(a->out_t), KC_OUT);
    SAY(c, "%s, %u taps", type_name(a->x_t), a->taps);
}

static uint64_t work_conv1d(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->k * s->seq;
}

static void attn_local_build(struct kc_case *c)
{
    struct kx_attn_local *a = ARGS(c, kx_attn_local);
    uint32_t wide = c->s.q_heads * c->s.head_dim;
    static const size_t rows[] = {AT(kx_attn_local, q), AT(kx_attn_local, k), AT(kx_attn_local, v)};

    a->n = c->s.rows;
    a->n_heads = c->s.q_heads;
    a->head_dim = c->s.head_dim;
    a->n_keys = c->s.seq;
    a->x_t = a->rel_t = a->out_t = kc_type_at(c->e->desc.act, c->variant);
    a->k_scale = 1.3132f;
    a->cap = 50;
    for (size_t i = 0; i < 3; i++)
        kc_tensor(c, rows[i], a->x_t, a->n, wide, KC_IN);
    kc_fill_plain(c,
                  kc_data(c, kc_add(c, AT(kx_attn_local, rel), (size_t)a->n_keys * wide,
                                    kc_elem_of(a->rel_t), KC_IN)),
                  a->rel_t, a->n_keys, wide, 1);
    vector(c, AT(kx_attn_local, q_scale), a->head_dim);
    kc_add(c, AT(kx_attn_local, out), (size_t)a->n * wide, kc_elem_of(a->out_t), KC_OUT);
    /* no reach: the first row has one key, which has all the weight whatever its query says */
    SAY(c, "%s, %u keys", type_name(a->x_t), a->n_keys);
}

static uint64_t work_local(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->q_heads * s->head_dim * s->seq * 3;
}

#define BUILDER(op, type, variants, name, work, ...)                                     \
    {                                                                                    \
        op, sizeof(struct type), variants, name##_build, ALL_INPUTS, {__VA_ARGS__}, work \
    }
const struct kc_builder kc_tower_builders[] = {
    BUILDER(BE_KOP_ACT, kx_act, act_variants, act, work, .rows = 3, .k = 300),
    BUILDER(BE_KOP_GLU, kx_glu, type_variants, glu, work, .rows = 3, .k = 300),
    BUILDER(BE_KOP_AFFINE, kx_affine, type_variants, affine, work, .rows = 3, .k = 300),
    BUILDER(BE_KOP_ROPE2D, kx_rope2d, type_variants, rope2d, work_heads, .rows = 5, .q_heads = 3,
            .head_dim = 64),
    BUILDER(BE_KOP_UNFOLD, kx_unfold, unfold_variants, unfold, work, .rows = 3, .k = 72),
    BUILDER(BE_KOP_CONV1D, kx_conv1d, type_variants, conv1d, work_conv1d, .rows = 7, .k = 70,
            .seq = 5),
    BUILDER(BE_KOP_ATTN_LOCAL, kx_attn_local, type_variants, attn_local, work_local, .rows = 17,
            .q_heads = 3, .head_dim = 40, .seq = 12),
};
const uint32_t kc_n_tower_builders = sizeof(kc_tower_builders) / sizeof(kc_tower_builders[0]);
