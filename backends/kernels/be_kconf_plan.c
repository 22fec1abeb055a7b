/* be_kconf_plan.c - which shapes a kernel is tried on, and how near it must come.
 *
 * Change freely: the lists of sizes. A bound other than "the same bits" needs its reason. Tests:
 * tests/backends/test_be_kconf.c
 */
#include "be_kconf_impl.h"

/* ------------------------------------------------------------ tolerance */

/* Products of f16 and of tf32 values (11 significant bits each) are exact in f32; what differs is
 * the order (and the width of the intermediate sum) in which a tensor core adds them: at most k / 2
 * roundings of 2^-23 relative to the largest partial sum; tf32, 8 columns at a time, k (1 + 1/8)
 * truncations of 2^-23, 3.5e-4 at the 2,560 columns of the longest case. */
static const struct {
    uint8_t op, numerics;
    struct be_kconf_tol tol;
} tols[] = {
    {BE_KOP_LINEAR,
     BE_KNUM_FAST,
     {1e-6, 1e-3,
      "tensor cores add f16 products in their own order; an f16 output rounds to 2^-11"}},
    {BE_KOP_LINEAR,
     BE_KNUM_TF32,
     {1e-6, 5e-4,
      "x and weights are rounded to tf32 in both (10 bits: at most 2^-10 + 2^-22 of the sum of |x "
      "w| "
      "from exact products); tensor cores add the products in their own order"}},
    {BE_KOP_ATTN,
     BE_KNUM_FAST,
     {1e-6, 2e-3,
      "scores from tensor cores differ in their last bits, which may move a softmax "
      "weight by one rounding to f16 (2^-11)"}},
    {BE_KOP_ATTN_PACKED, BE_KNUM_FAST, {1e-6, 2e-3, "as for paged attention"}},
    {BE_KOP_ATTN_REL, BE_KNUM_FAST, {1e-6, 2e-3, "as for paged attention"}},
    {BE_KOP_ATTN_REL,
     BE_KNUM_TF32,
     {1e-6, 2e-3, "as for paged attention: a weight may move by one rounding to tf32 (2^-11)"}},
};

struct be_kconf_tol be_kconf_tol_get(const struct be_kdesc *d)
{
    bool attn = d->op == BE_KOP_ATTN || d->op == BE_KOP_ATTN_PACKED || d->op == BE_KOP_ATTN_REL;

    /* attention of any head width is computed in plain arithmetic */
    for (size_t i = 0; i < sizeof(tols) / sizeof(tols[0]); i++)
        if (tols[i].op == d->op && tols[i].numerics == d->numerics && (!attn || d->head_dim.fixed))
            return tols[i].tol;
    return (struct be_kconf_tol){0, 0, "the same bits"};
}

/* --------------------------------------------------------------- shapes */

static uint32_t pick(const struct be_kdim *d, uint32_t want)
{
    uint32_t mult = d->mult ? d->mult : 1, v;

    if (want < 1)
        want = 1;
    if (d->max == 0)
        return want;
    if (d->fixed || d->min == d->max)
        return d->min;
    v = want < d->min ? d->min : want;
    v = (v + mult - 1) / mult * mult;
    if (v > d->max)
        v = d->max / mult * mult;
    return v < d->min ? d->min : v;
}

static struct kc_shape pick_all(const struct be_kdesc *d, const struct kc_shape *w)
{
    return (struct kc_shape){.rows = pick(&d->rows, w->rows),
                             .k = pick(&d->k, w->k),
                             .n = pick(&d->n, w->n),
                             .head_dim = pick(&d->head_dim, w->head_dim),
                             .q_heads = pick(&d->q_heads, w->q_heads),
                             .kv_heads = pick(&d->kv_heads, w->kv_heads),
                             .seq = pick(&d->seq, w->seq)};
}

static uint32_t rows_of_class(uint8_t c, uint32_t want)
{
    static const uint32_t lo[] = {1, 1, 2, 9, 65}, hi[] = {UINT32_MAX, 1, 8, 64, UINT32_MAX};

    if (c > BE_KROWS_65)
        return want;
    return want < lo[c] ? lo[c] : want > hi[c] ? hi[c] : want;
}

void kc_plan_add(struct kc_plan *p, const struct kc_builder *b, const struct be_kdesc *d,
                 struct kc_shape w, uint64_t budget)
{
    struct kc_shape s;

    w.rows = rows_of_class(d->rows_class, w.rows);
    s = pick_all(d, &w);
    if (b->work(&s) > budget && p->n > 0)
        return;
    for (uint32_t i = 0; i < p->n; i++)
        if (memcmp(&p->s[i], &s, sizeof(s)) == 0)
            return;
    if (p->n < KC_MAX_SHAPES)
        p->s[p->n++] = s;
}

#define VARY(field, ...)                                             \
    do {                                                             \
        const uint32_t v_[] = {__VA_ARGS__};                         \
        for (size_t i_ = 0; i_ < sizeof(v_) / sizeof(v_[0]); i_++) { \
            struct kc_shape w_ = *base;                              \
            w_.field = v_[i_];                                       \
            kc_plan_add(p, b, d, w_, budget);                        \
        }                                                            \
    } while (0)

/* One dimension leaves the base at a time; the base comes first. */
void kc_plan_shapes(struct kc_plan *p, const struct kc_builder *b, const struct be_kentry *e,
                    bool quick)
{
    const struct be_kdesc *d = &e->desc;
    const struct kc_shape *base = &b->base;
    uint32_t rt = e->sched.rows_tile, ct = e->sched.cols_tile, kt = e->sched.key_tile;
    uint64_t budget = quick ? 400000 : 25000000;

    p->n = 0;
    kc_plan_add(p, b, d, *base, budget);
    kc_plan_add(p, b, d, (struct kc_shape){1, 1, 1, 1, 1, 1, 1}, budget);
    if (quick) {
        VARY(rows, rt + 1, 2 * rt + 1);
        VARY(n, ct + 1, 3);
        VARY(k, 2 * base->k + 1);
        VARY(seq, kt + 1, KX_SPLIT + 1);
        return;
    }
    /* all at once: several tiles each way, with tails */
    kc_plan_add(p, b, d, (struct kc_shape){2 * rt + 1, 640, 2 * ct + 1, 64, 8, 4, 700}, budget);
    kc_plan_add(p, b, d, (struct kc_shape){130, 1280, 200, 128, 4, 1, 520}, budget);
    kc_plan_add(p, b, d, (struct kc_shape){70, 2304, 129, 256, 4, 4, 300}, budget);
    VARY(rows, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 66, 100, 129, rt - (rt > 1), rt,
         rt + 1, 2 * rt, 2 * rt + 1);
    VARY(n, 2, 3, 7, 8, 31, 33, 64, 65, 127, 129, 257, 1000, ct - (ct > 1), ct, ct + 1, 2 * ct + 1,
         3 * ct);
    VARY(k, 2, 3, 8, 31, 33, 64, 96, 255, 257, 320, 512, 640, 769, 1024, 1152, 2048, 2049, 2560);
    VARY(head_dim, 16, 32, 64, 96, 128, 256, 512);
    VARY(q_heads, 2, 4, 8, 16);
    VARY(kv_heads, 2, 4, 8);
    VARY(seq, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 700, 1025,
         kt - (kt > 1), kt, kt + 1);
}
