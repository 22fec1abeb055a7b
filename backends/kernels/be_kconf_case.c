/* be_kconf_case.c - buffers, random values and kinds of input of a conformance case.
 *
 * Everything derives from one seed. A buffer is filled by its builder; kc_layout gives each its
 * place in one image, between guards, so that a launch needs one upload and one download. Tests:
 * tests/backends/test_be_kconf.c
 */
#include <math.h>

#include "be_kconf_impl.h"

uint32_t kc_rnd(struct kc_case *c)
{
    uint64_t z = (c->rng += 0x9E3779B97F4A7C15ull);

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ z >> 31) >> 16);
}

uint32_t kc_below(struct kc_case *c, uint32_t n)
{
    return n ? (uint32_t)((uint64_t)kc_rnd(c) * n >> 32) : 0;
}

/* Sum of 12 uniforms: normal enough, and the same on every machine (no libm). */
float kc_normal(struct kc_case *c)
{
    float s = -6.0f;

    for (unsigned i = 0; i < 12; i++)
        s += (float)(kc_rnd(c) >> 8) * 0x1p-24f;
    return s;
}

size_t kc_elem_bytes(enum kc_elem e)
{
    return e == KC_F32 || e == KC_I32 ? 4 : e == KC_F16 ? 2 : 1;
}

uint32_t kc_add(struct kc_case *c, size_t field, size_t n, enum kc_elem elem, enum kc_role role)
{
    struct kc_buf *b = &c->buf[c->n_bufs < KC_MAX_BUFS ? c->n_bufs : 0];

    if (c->n_bufs >= KC_MAX_BUFS) {
        c->overflow = true;
        return 0;
    }
    b->n = n * kc_elem_bytes(elem);
    b->elem = elem;
    b->role = role;
    /* room for at least one vector: a builder may write before it asks nomem */
    b->init = calloc(b->n + 64, 1);
    if (!b->init)
        c->nomem = true;
    kc_bind_also(c, field, c->n_bufs, 0);
    return c->n_bufs++;
}

void kc_bind_also(struct kc_case *c, size_t field, uint32_t buf, size_t off)
{
    if (c->n_binds >= KC_MAX_BINDS) {
        c->overflow = true;
        return;
    }
    c->bind[c->n_binds++] = (struct kc_bind){.field = (uint32_t)field, .buf = buf, .off = off};
}

int kc_bound(const struct kc_case *c, size_t field)
{
    for (uint32_t i = 0; i < c->n_binds; i++)
        if (c->bind[i].field == field)
            return (int)c->bind[i].buf;
    return -1;
}

void kc_deinit(struct kc_case *c)
{
    for (uint32_t i = 0; i < c->n_bufs; i++)
        free(c->buf[i].init);
    c->n_bufs = c->n_binds = 0;
}

/* --------------------------------------------------------------- values */

static void put(void *dst, uint32_t type, size_t i, float v)
{
    if (type == KX_F16)
        ((uint16_t *)dst)[i] = be_f32_to_half(v);
    else
        ((float *)dst)[i] = v;
}

/* One value of the kind. (r, i) in a matrix of cols columns. */
static float value(struct kc_case *c, uint32_t type, uint32_t r, uint32_t i, uint32_t cols)
{
    float x = kc_normal(c);
    uint32_t u;

    switch (c->input) {
    case KC_ZERO:
        return 0;
    case KC_ONE_HOT: /* first column, last column, then wandering */
        return i == (r == 0 ? 0 : r == 1 ? cols - 1 : r * 37u % cols) ? 1.0f : 0;
    case KC_NEG_ZERO:
        return -0.0f;
    case KC_DENORMAL:
        return x * (type == KX_F16 ? 3e-7f : 1e-40f);
    case KC_HUGE:
        return x * (type == KX_F16 ? 1.5e4f : 1e18f);
    case KC_NAN_INF: /* every other row; the rest must not notice */
        u = kc_below(c, cols < 64 ? cols : 64);
        if (r % 2 == 0 && u == 0)
            return r % 3 == 0 ? NAN : r % 3 == 1 ? INFINITY : -INFINITY;
        return x;
    case KC_EXTREME: /* 40 powers of two within one row, changing from block to block */
        x *= ldexpf(1, (int)((i / 32 * 7 + r) % 40) - 20);
        /* infinities have a kind of their own */
        return type == KX_F16 ? fmaxf(fminf(x, 65504.0f), -65504.0f) : x;
    case KC_SATURATED:
        return kc_rnd(c) & 1 ? 1.0f : -1.0f;
    default:
        return x;
    }
}

void kc_fill(struct kc_case *c, void *dst, uint32_t type, uint32_t rows, uint32_t cols)
{
    if (!dst)
        return;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < cols; i++)
            put(dst, type, (size_t)r * cols + i, value(c, type, r, i, cols));
}

void kc_fill_plain(struct kc_case *c, void *dst, uint32_t type, uint32_t rows, uint32_t cols,
                   float scale)
{
    if (!dst)
        return;
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        put(dst, type, i, kc_normal(c) * scale);
}

/* A block scale: ordinary ones give weights around 0.02. */
static uint16_t block_scale(struct kc_case *c, uint64_t block, bool k_quant)
{
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF};
    float d = (0.2f + (float)kc_below(c, 1024) / 1024) * (k_quant ? 0x1p-13f : 0x1p-9f);

    if (c->input == KC_EXTREME && block % 3 != 0)
        return odd[kc_below(c, sizeof(odd) / sizeof(odd[0]))];
    return be_f32_to_half(kc_rnd(c) & 1 ? d : -d);
}

void kc_fill_blocks(struct kc_case *c, enum be_dtype t, uint8_t *p, uint64_t rows, uint32_t cols)
{
    uint32_t bb = be_dtype_block_bytes(t), bs = be_dtype_block(t);
    uint64_t n = rows * (cols / bs);

    if (!p)
        return;
    if (bs == 1) {
        for (uint64_t i = 0; i < n; i++) {
            float v = kc_normal(c) * 0.05f;

            if (t == BE_F32)
                memcpy(p + 4 * i, &v, 4);
            else {
                uint16_t h = t == BE_F16 ? be_f32_to_half(v) : (uint16_t)(be_f32_to_bits(v) >> 16);

                memcpy(p + 2 * i, &h, 2);
            }
        }
        return;
    }
    for (uint64_t b = 0; b < n; b++, p += bb) {
        uint16_t d = block_scale(c, b, bs == 256), m = block_scale(c, b + 1, bs == 256);
        uint8_t all = b % 2 ? 0xFF : b % 4 ? 0x80 : 0; /* highest, lowest, middle code */

        for (uint32_t i = 0; i < bb; i++)
            p[i] = c->input == KC_SATURATED ? all : (uint8_t)kc_rnd(c);
        if (t == BE_Q6_K) {
            memcpy(p + 208, &d, 2);
            continue;
        }
        memcpy(p, &d, 2);
        if (t == BE_Q4_1 || t == BE_Q5_1 || t == BE_Q4_K || t == BE_Q5_K)
            memcpy(p + 2, &m, 2);
    }
}

uint32_t kc_tensor(struct kc_case *c, size_t field, uint32_t type, uint32_t rows, uint32_t cols,
                   enum kc_role role)
{
    uint32_t b = kc_add(c, field, (size_t)rows * cols, kc_elem_of(type), role);

    kc_fill(c, c->buf[b].init, type, rows, cols);
    return b;
}

uint32_t kc_type_count(uint8_t act)
{
    return act == BE_KACT_ANY ? 2 : 1;
}

uint32_t kc_type_at(uint8_t act, uint32_t i)
{
    if (act == BE_KACT_ANY)
        return i % 2 ? KX_F16 : KX_F32;
    return act == BE_KACT_F16 ? KX_F16 : KX_F32;
}

/* ---------------------------------------------------------------- image */

static size_t up(size_t n)
{
    return (n + 255) / 256 * 256;
}

size_t kc_layout(struct kc_case *c)
{
    size_t at = KC_GUARD;

    for (uint32_t i = 0; i < c->n_bufs; i++) {
        c->buf[i].at = at;
        at += up(c->buf[i].n) + KC_GUARD;
    }
    return at;
}

#define KC_GUARD_BYTE 0xC3

void kc_image(const struct kc_case *c, uint8_t *img, size_t n, uint8_t poison)
{
    memset(img, KC_GUARD_BYTE, n);
    for (uint32_t i = 0; i < c->n_bufs; i++) {
        const struct kc_buf *b = &c->buf[i];

        if (b->role == KC_OUT || b->role == KC_SCRATCH)
            memset(img + b->at, poison, b->n);
        else
            memcpy(img + b->at, b->init, b->n);
    }
}

void kc_args(const struct kc_case *c, uint64_t base, uint8_t out[KC_ARGS_BYTES])
{
    memcpy(out, c->args, KC_ARGS_BYTES);
    for (uint32_t i = 0; i < c->n_binds; i++) {
        kx_p p = base + c->buf[c->bind[i].buf].at + c->bind[i].off;

        memcpy(out + c->bind[i].field, &p, sizeof(p));
    }
}
