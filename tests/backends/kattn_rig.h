/* kattn_rig.h - paged and packed inputs for tests of the attention kernels, the f64
 * reference, and one way to run a kernel: on the CPU executor or on the emulated device.
 *
 * Every cache row that no sequence holds is NaN (int8: NaN scales), pages lie in shuffled
 * order, pages a window has let go are -1.
 */
#ifndef KATTN_RIG_H
#define KATTN_RIG_H

#include "be_test.h"
#include "emu.h"

#include "be_kargs.h"
#include "be_kart.h"

#define RIG_SEQS 4

struct rig {
    uint32_t hd, heads, kv_heads, page, window, n_seqs, n_rows;
    enum be_dtype kv;
    bool f16; /* activations */
    struct kx_seq seq[RIG_SEQS];
    struct kx_attn a;
    uint8_t *k, *v;      /* cache */
    float *fk[RIG_SEQS]; /* exact values of the cache, [pos, kv_head, hd] */
    float *fv[RIG_SEQS];
    void *q;
    int32_t *pages;
    struct kx_qtile *tiles;
};

static inline uint64_t addr(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static inline void put_value(struct rig *r, uint8_t *plane, int32_t page, uint32_t head,
                             uint32_t slot, const float *x, float *exact)
{
    uint8_t *pg = plane + (size_t)page * r->a.kv.page_stride;
    size_t row = (size_t)head * r->page + slot;

    for (uint32_t c = 0; c < r->hd; c++) {
        if (r->kv == BE_F32) {
            memcpy(pg + (row * r->hd + c) * 4, &x[c], 4);
            exact[c] = x[c];
        } else if (r->kv == BE_F16) {
            uint16_t h = be_f32_to_half(x[c]);

            memcpy(pg + (row * r->hd + c) * 2, &h, 2);
            exact[c] = be_half_to_f32(h);
        } else {
            uint16_t d = be_f32_to_half(0.01f + 0.0001f * (float)(c / 32 + row % 7));
            int8_t q = (int8_t)lrintf(x[c] * 100);

            pg[row * r->hd + c] = (uint8_t)q;
            memcpy(pg + r->a.kv.scales_at + (row * r->hd + c) / 32 * 2, &d, 2);
            exact[c] = be_half_to_f32(be_f32_to_half((float)q * be_half_to_f32(d)));
        }
    }
}

/* Sequence s holds len[s] positions, the last n_rows[s] of them are this pass's rows. */
static inline void rig_init(struct rig *r, uint32_t hd, uint32_t heads, uint32_t kv_heads,
                            enum be_dtype kv, uint32_t page, uint32_t window, uint32_t n_seqs,
                            const uint32_t *len, const uint32_t *n_rows)
{
    size_t plane, rows = (size_t)kv_heads * page;
    uint32_t n_pages = 2, at = 0, used = 0;
    float *x = xcalloc(hd, sizeof(float));

    *r = (struct rig){.hd = hd,
                      .heads = heads,
                      .kv_heads = kv_heads,
                      .page = page,
                      .window = window,
                      .n_seqs = n_seqs,
                      .kv = kv};
    for (uint32_t s = 0; s < n_seqs; s++)
        n_pages += (len[s] + page - 1) / page;
    r->pages = xcalloc(n_pages + n_seqs, sizeof(*r->pages));
    for (uint32_t i = 0; i < n_pages + n_seqs; i++)
        r->pages[i] = -1;
    r->a.kv = (struct kx_kv){.scales_at = (uint32_t)(rows * hd),
                             .dtype = kv,
                             .page_tokens = page,
                             .n_kv_heads = kv_heads,
                             .head_dim = hd};
    r->a.kv.page_stride = kv == BE_F32   ? rows * hd * 4
                          : kv == BE_F16 ? rows * hd * 2
                                         : rows * hd + rows * hd / 16;
    r->a.kv.page_stride = (r->a.kv.page_stride + 271) / 256 * 256;
    plane = n_pages * r->a.kv.page_stride;
    r->k = aligned_alloc(256, plane);
    r->v = aligned_alloc(256, plane);
    assert_true(r->k && r->v);
    memset(r->k, 0xFF, plane); /* NaN in each type, as a scale too */
    memset(r->v, 0xFF, plane);
    for (uint32_t s = 0; s < n_seqs; s++) {
        struct kx_seq *q = &r->seq[s];

        *q = (struct kx_seq){r->n_rows, n_rows[s], len[s] - n_rows[s], at};
        r->n_rows += n_rows[s];
        r->fk[s] = xcalloc((size_t)len[s] * kv_heads * hd, sizeof(float));
        r->fv[s] = xcalloc((size_t)len[s] * kv_heads * hd, sizeof(float));
        for (uint32_t pg = 0; pg * page < len[s]; pg++, used++)
            if (!window || (pg + 1) * page + window > q->pos0 + 1)
                r->pages[at + pg] = (int32_t)(n_pages - 1 - used);
        for (uint32_t p = 0; p < len[s]; p++)
            for (uint32_t h = 0; h < kv_heads && r->pages[at + p / page] >= 0; h++)
                for (int w = 0; w < 2; w++) {
                    fill(x, hd, w ? 1.0f : 0.7f);
                    put_value(r, w ? r->v : r->k, r->pages[at + p / page], h, p % page, x,
                              (w ? r->fv : r->fk)[s] + ((size_t)p * kv_heads + h) * hd);
                }
        at += (len[s] + page - 1) / page + 1;
    }
    free(x);
    r->q = aligned_alloc(16, ((size_t)r->n_rows * heads * hd * 4 + 15) / 16 * 16);
    assert_non_null(r->q);
    fill(r->q, (size_t)r->n_rows * heads * hd, 1.5f);
    r->tiles = xcalloc(r->n_rows, sizeof(*r->tiles));
    r->a.kv.k = addr(r->k);
    r->a.kv.v = addr(r->v);
    r->a.q = addr(r->q);
    r->a.seqs = addr(r->seq);
    r->a.pages = addr(r->pages);
    r->a.tiles = addr(r->tiles);
    r->a.n_rows = r->n_rows;
    r->a.n_heads = heads;
    r->a.window = window;
    r->a.scale = 1.0f / sqrtf((float)hd);
}

/* Queries and results as f16. */
static inline void rig_to_f16(struct rig *r)
{
    size_t n = (size_t)r->n_rows * r->heads * r->hd;
    uint16_t *h = r->q;

    for (size_t i = 0; i < n; i++) {
        float f;

        memcpy(&f, (const char *)r->q + 4 * i, 4);
        h[i] = be_f32_to_half(f);
    }
    r->a.x_t = KX_F16;
    r->f16 = true;
}

static inline void rig_deinit(struct rig *r)
{
    for (uint32_t s = 0; s < r->n_seqs; s++) {
        free(r->fk[s]);
        free(r->fv[s]);
    }
    free(r->k);
    free(r->v);
    free(r->q);
    free(r->pages);
    free(r->tiles);
}

static inline void rig_tiles(struct rig *r, uint32_t rows)
{
    r->a.n_tiles = 0;
    for (uint32_t s = 0; s < r->n_seqs; s++)
        for (uint32_t i = 0; i < r->seq[s].n_rows; i += rows)
            r->tiles[r->a.n_tiles++] =
                (struct kx_qtile){s, r->seq[s].row0 + i,
                                  r->seq[s].n_rows - i < rows ? r->seq[s].n_rows - i : rows, 0};
}

static inline uint32_t rig_splits(const struct rig *r)
{
    uint32_t n = 1;

    for (uint32_t s = 0; s < r->n_seqs; s++)
        if ((r->seq[s].pos0 + r->seq[s].n_rows + 255) / 256 > n)
            n = (r->seq[s].pos0 + r->seq[s].n_rows + 255) / 256;
    return n;
}

/* Result i as f32. */
static inline float rig_out(const struct rig *r, const void *out, size_t i)
{
    uint16_t h;
    float f;

    if (r->f16) {
        memcpy(&h, (const char *)out + 2 * i, 2);
        return be_half_to_f32(h);
    }
    memcpy(&f, (const char *)out + 4 * i, 4);
    return f;
}

/* f64 over the exact cached values. */
static inline void rig_check(const struct rig *r, const char *what, const void *out, double tol)
{
    double *acc = xcalloc(r->hd, sizeof(*acc)), *sc;

    for (uint32_t s = 0; s < r->n_seqs; s++) {
        sc = xcalloc(r->seq[s].pos0 + r->seq[s].n_rows, sizeof(*sc));
        for (uint32_t i = 0; i < r->seq[s].n_rows * r->heads; i++) {
            uint32_t row = r->seq[s].row0 + i / r->heads, h = i % r->heads,
                     p = r->seq[s].pos0 + i / r->heads, g = h / (r->heads / r->kv_heads),
                     lo = r->window && p + 1 > r->window ? p + 1 - r->window : 0;
            size_t at = ((size_t)row * r->heads + h) * r->hd;
            double m = -INFINITY, l = 0;

            memset(acc, 0, r->hd * sizeof(*acc));
            for (uint32_t j = lo; j <= p; j++) {
                sc[j] = 0;
                for (uint32_t c = 0; c < r->hd; c++)
                    sc[j] += (double)rig_out(r, r->q, at + c) *
                             r->fk[s][((size_t)j * r->kv_heads + g) * r->hd + c];
                sc[j] *= (double)r->a.scale;
                m = fmax(m, sc[j]);
            }
            for (uint32_t j = lo; j <= p; j++) {
                l += exp(sc[j] - m);
                for (uint32_t c = 0; c < r->hd; c++)
                    acc[c] += exp(sc[j] - m) * r->fv[s][((size_t)j * r->kv_heads + g) * r->hd + c];
            }
            for (uint32_t c = 0; c < r->hd; c++) {
                double got = (double)rig_out(r, out, at + c);

                if (!(fabs(got - acc[c] / l) <= tol))
                    fail_msg("%s: sequence %u row %u head %u column %u is %.9g, expected %.9g "
                             "(head_dim %u, %u keys, window %u, seed %llu)",
                             what, s, row, h, c, got, acc[c] / l, r->hd, p + 1, r->window,
                             (unsigned long long)test_seed);
            }
        }
        free(sc);
    }
    free(acc);
}

enum rig_dev { RIG_CPU, RIG_EMU75, RIG_EMU80 };

/* Text of a library to the emulated device, once. */
static inline void rig_load(const char *lib, enum rig_dev dev)
{
    static char loaded[32][32];
    struct be_ktext t = {0};
    char key[32];
    unsigned i;

    snprintf(key, sizeof(key), "%s.%d", lib, dev);
    for (i = 0; loaded[i][0]; i++)
        if (strcmp(loaded[i], key) == 0)
            return;
    assert_true(i < 31);
    OK(be_kcuda_text(lib, NULL, &t, err));
    emu_load_text(t.p, dev == RIG_EMU80 ? 80 : 75);
    be_ktext_deinit(&t);
    snprintf(loaded[i], sizeof(loaded[i]), "%s", key);
}

static inline void rig_launch(enum rig_dev dev, const char *name, const void *args)
{
    const struct be_kentry *e = be_kcat_find(name);
    struct be_kgrid g;

    if (!e)
        fail_msg("no kernel '%s'", name);
    if (dev == RIG_CPU) {
        const struct be_kfamily *f = be_kcat_family(e);
        struct be_kir *k = xcalloc(1, sizeof(*k));

        OK(f->build(e, k, err));
        OK(f->run(k, args, err));
        free(k);
        return;
    }
    rig_load(e->lib, dev);
    e->grid(e, args, &g);
    emu_run_arch(name, dev == RIG_EMU80 ? 80 : 75, args, e->args_bytes, &g);
}

/* One pass, or splits and their merge, into fresh memory the caller frees. lib: "d64" "any".
 * more_splits that nobody sees; tile_rows 0: as many as the kernel takes. */
static inline void *rig_run(struct rig *r, enum rig_dev dev, const char *lib, bool split,
                            uint32_t more_splits, uint32_t tile_rows)
{
    static const char *const types[] = {[BE_F32] = "f32", [BE_F16] = "f16", [BE_Q8_0] = "q8_0"};
    size_t n = (size_t)r->n_rows * r->heads, es = r->f16 ? 2 : 4;
    void *out = aligned_alloc(16, (n * r->hd * es + 15) / 16 * 16);
    float *m, *l, *a;
    char name[64];

    assert_non_null(out);
    memset(out, 0xFF, n * r->hd * es);
    snprintf(name, sizeof(name), "kx_attn_%s_%s_%s", lib, types[r->kv], split ? "split" : "pass");
    assert_non_null(be_kcat_find(name));
    rig_tiles(r, tile_rows ? tile_rows : be_kcat_find(name)->sched.rows_tile);
    r->a.out = addr(out);
    r->a.n_splits = split ? rig_splits(r) + more_splits : 1;
    m = xcalloc(n * r->a.n_splits, sizeof(float));
    l = xcalloc(n * r->a.n_splits, sizeof(float));
    a = aligned_alloc(16, (n * r->a.n_splits * r->hd * sizeof(float) + 15) / 16 * 16);
    assert_non_null(a);
    memset(m, 0xFF, n * r->a.n_splits * sizeof(float));
    memset(l, 0xFF, n * r->a.n_splits * sizeof(float));
    memset(a, 0xFF, n * r->a.n_splits * r->hd * sizeof(float));
    r->a.part_m = addr(m);
    r->a.part_l = addr(l);
    r->a.part_a = addr(a);
    rig_launch(dev, name, &r->a);
    if (split && r->a.n_splits > 1)
        rig_launch(dev, "kx_attn_merge", &r->a);
    free(m);
    free(l);
    free(a);
    return out;
}

static inline void rig_same(const struct rig *r, const char *what, const void *a, const void *b)
{
    size_t n = (size_t)r->n_rows * r->heads * r->hd, es = r->f16 ? 2 : 4;

    for (size_t i = 0; i < n; i++)
        if (memcmp((const char *)a + i * es, (const char *)b + i * es, es) != 0)
            fail_msg("%s: row %zu head %zu column %zu: %.9g and %.9g (head_dim %u, window %u)",
                     what, i / r->hd / r->heads, i / r->hd % r->heads, i % r->hd,
                     (double)rig_out(r, a, i), (double)rig_out(r, b, i), r->hd, r->window);
}

#endif
