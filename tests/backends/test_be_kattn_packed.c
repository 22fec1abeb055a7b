/* Attention inside packed sequences, also with relative positions: f64, executor and device text; a
 * sequence's rows are those it has alone, bit for bit. */
#include "kattn_rig.h"

struct geo {
    const char *kernel;
    uint32_t hd, heads, kv_heads, x_t;
    int radius;
    bool one_tensor; /* q, k, v side by side */
    uint32_t n_seqs, len[RIG_SEQS];
    double tol;
    uint32_t n_rel; /* not 0: relative positions by so many vectors */
    int terms;      /* 1 of queries, 2 of keys, 3 both */
};

static const struct geo geos[] = {
    {"kx_attn_packed_d64_f16", 64, 4, 4, KX_F16, -1, false, 3, {130, 1, 64}, 2e-3},
    {"kx_attn_packed_d64_f16", 64, 4, 2, KX_F16, 20, true, 2, {70, 200}, 2e-3},
    {"kx_attn_packed_d128_f16", 128, 2, 1, KX_F16, -1, true, 2, {65, 63}, 2e-3},
    {"kx_attn_packed_d256_f16", 256, 2, 2, KX_F16, 0, false, 2, {33, 66}, 2e-3},
    {"kx_attn_packed_d512_f16", 512, 1, 1, KX_F16, -1, false, 2, {33, 5}, 2e-3},
    {"kx_attn_packed_d64_f32", 64, 2, 1, KX_F32, -1, true, 3, {31, 65, 1}, 2e-6},
    {"kx_attn_packed_d128_f32", 128, 2, 2, KX_F32, 7, false, 1, {70}, 2e-6},
    {"kx_attn_packed_d256_f32", 256, 1, 1, KX_F32, -1, false, 1, {33}, 2e-6},
    {"kx_attn_packed_any_f32", 32, 3, 3, KX_F32, -1, true, 2, {40, 17}, 2e-6},
    {"kx_attn_packed_any_f32", 18, 2, 1, KX_F16, 9, false, 2, {33, 20}, 1e-3},
    {"kx_attn_rel_d64_f16", 64, 2, 2, KX_F16, -1, false, 3, {150, 1, 64}, 3e-3, 40, 3},
    {"kx_attn_rel_d64_f16", 64, 1, 1, KX_F16, -1, true, 2, {65, 63}, 3e-3, 200, 1},
    {"kx_attn_rel_d64_f16", 64, 1, 1, KX_F16, -1, true, 2, {66, 130}, 3e-3, 7, 2},
    {"kx_attn_rel_d64_f32", 64, 2, 2, KX_F32, -1, true, 3, {31, 65, 1}, 4e-6, 50, 3},
    {"kx_attn_rel_any_f32", 96, 2, 2, KX_F32, -1, false, 2, {40, 17}, 4e-6, 30, 3},
    {"kx_attn_rel_any_f32", 18, 2, 2, KX_F16, -1, true, 2, {33, 20}, 1e-3, 9, 1},
};

struct pack {
    const struct geo *g;
    struct kx_attn_packed a;
    uint32_t n, off[RIG_SEQS + 1], reach;
    uint8_t *q, *k, *v, *own[3], *rk, *rq;
    int32_t *rel; /* [2 reach + 1] */
    struct kx_qtile tiles[1024];
};

static uint32_t es(const struct geo *g)
{
    return g->x_t == KX_F16 ? 2 : 4;
}

static double at(const struct geo *g, const uint8_t *p, size_t i)
{
    uint16_t h;
    float f;

    if (g->x_t == KX_F16) {
        memcpy(&h, p + 2 * i, 2);
        return (double)be_half_to_f32(h);
    }
    memcpy(&f, p + 4 * i, 4);
    return (double)f;
}

static uint8_t *random_rows(const struct geo *g, uint32_t n, uint32_t cols)
{
    uint8_t *p = aligned_alloc(64, ((size_t)n * cols * es(g) + 63) / 64 * 64);

    assert_non_null(p);
    for (size_t i = 0; i < (size_t)n * cols; i++) {
        float f = rndf();
        uint16_t h = be_f32_to_half(f);

        memcpy(p + i * es(g), g->x_t == KX_F16 ? (const void *)&h : &f, es(g));
    }
    return p;
}

static void pack_init(struct pack *p, const struct geo *g)
{
    uint32_t qd = g->heads * g->hd, kd = g->kv_heads * g->hd;

    *p = (struct pack){.g = g};
    for (uint32_t s = 0; s < g->n_seqs; s++)
        p->off[s + 1] = p->off[s] + g->len[s];
    p->n = p->off[g->n_seqs];
    p->a = (struct kx_attn_packed){.n_seqs = g->n_seqs,
                                   .n_heads = g->heads,
                                   .n_kv_heads = g->kv_heads,
                                   .head_dim = g->hd,
                                   .x_t = g->x_t,
                                   .q_stride = g->one_tensor ? qd + 2 * kd : qd,
                                   .kv_stride = g->one_tensor ? qd + 2 * kd : kd,
                                   .scale = 2.0f / sqrtf((float)g->hd),
                                   .radius = g->radius};
    p->own[0] = random_rows(g, p->n, p->a.q_stride);
    p->q = p->own[0];
    if (g->one_tensor) {
        p->k = p->q + (size_t)qd * es(g);
        p->v = p->k + (size_t)kd * es(g);
    } else {
        p->k = p->own[1] = random_rows(g, p->n, kd);
        p->v = p->own[2] = random_rows(g, p->n, kd);
    }
}

/* Distances in buckets: vectors in any order, neighbours often the same. */
static void rel_init(struct pack *p)
{
    const struct geo *g = p->g;

    if (g->n_rel == 0)
        return;
    for (uint32_t s = 0; s < g->n_seqs; s++)
        p->reach = g->len[s] > p->reach ? g->len[s] : p->reach;
    p->rel = xcalloc(2 * p->reach + 1, sizeof(*p->rel));
    for (uint32_t i = 0; i <= 2 * p->reach; i++)
        p->rel[i] = (int32_t)(i / 2 * 7 % g->n_rel);
    if (g->terms & 1)
        p->rk = random_rows(g, g->n_rel, g->heads * g->hd);
    if (g->terms & 2)
        p->rq = random_rows(g, g->n_rel, g->heads * g->hd);
}

static void pack_deinit(struct pack *p)
{
    free(p->rk);
    free(p->rq);
    free(p->rel);
    for (int i = 0; i < 3; i++)
        free(p->own[i]);
}

/* Sequences s0 .. s1 - 1 as if there were no others; their rows of out. */
static void run(struct pack *p, enum rig_dev dev, uint32_t s0, uint32_t s1, uint32_t rows,
                uint8_t *out)
{
    const struct geo *g = p->g;
    uint32_t off[RIG_SEQS + 1], first = p->off[s0];
    size_t width = (size_t)g->heads * g->hd * es(g);

    p->a.n_tiles = 0;
    for (uint32_t s = s0; s <= s1; s++)
        off[s - s0] = p->off[s] - first;
    for (uint32_t s = 0; s < s1 - s0; s++)
        for (uint32_t r = off[s]; r < off[s + 1]; r += rows)
            p->tiles[p->a.n_tiles++] =
                (struct kx_qtile){s, r, off[s + 1] - r < rows ? off[s + 1] - r : rows, 0};
    p->a.q = addr(p->q) + (uint64_t)first * p->a.q_stride * es(g);
    p->a.k = addr(p->k) + (uint64_t)first * p->a.kv_stride * es(g);
    p->a.v = addr(p->v) + (uint64_t)first * p->a.kv_stride * es(g);
    p->a.out = addr(out + first * width);
    p->a.off = addr(off);
    p->a.tiles = addr(p->tiles);
    p->a.n_seqs = s1 - s0;
    if (g->n_rel == 0) {
        rig_launch(dev, g->kernel, &p->a);
    } else {
        struct kx_attn_rel a = {.p = p->a,
                                .rk = addr(p->rk),
                                .rq = addr(p->rq),
                                .rel = addr(p->rel),
                                .reach = p->reach,
                                .rel_stride = g->heads * g->hd};

        rig_launch(dev, g->kernel, &a);
    }
}

/* The position terms of row i and key j of a sequence. */
static double positions(const struct pack *p, uint32_t first, uint32_t i, uint32_t j, uint32_t h)
{
    const struct geo *g = p->g;
    size_t d = (size_t)p->rel[i - j + p->reach] * g->heads * g->hd + (size_t)h * g->hd;
    double s = 0;

    for (uint32_t c = 0; c < g->hd; c++) {
        if (p->rk)
            s += at(g, p->q, (size_t)(first + i) * p->a.q_stride + h * g->hd + c) *
                 at(g, p->rk, d + c);
        if (p->rq)
            s += at(g, p->k, (size_t)(first + j) * p->a.kv_stride + h * g->hd + c) *
                 at(g, p->rq, d + c);
    }
    return s;
}

static void truth(const struct pack *p, const uint8_t *out)
{
    const struct geo *g = p->g;
    double *sc = xcalloc(p->n, sizeof(*sc)), l, want;

    for (uint32_t s = 0; s < g->n_seqs; s++)
        for (uint32_t r = p->off[s]; r < p->off[s + 1]; r++)
            for (uint32_t h = 0; h < g->heads; h++) {
                uint32_t kh = h / (g->heads / g->kv_heads), j0 = p->off[s], j1 = p->off[s + 1];

                if (g->radius >= 0) {
                    j0 = r - j0 > (uint32_t)g->radius ? r - (uint32_t)g->radius : j0;
                    j1 = j1 - r > (uint32_t)g->radius + 1 ? r + (uint32_t)g->radius + 1 : j1;
                }
                l = 0;
                for (uint32_t j = j0; j < j1; j++) {
                    sc[j] = 0;
                    for (uint32_t c = 0; c < g->hd; c++)
                        sc[j] += at(g, p->q, (size_t)r * p->a.q_stride + h * g->hd + c) *
                                 at(g, p->k, (size_t)j * p->a.kv_stride + kh * g->hd + c);
                    if (p->rel)
                        sc[j] += positions(p, p->off[s], r - p->off[s], j - p->off[s], h);
                    sc[j] = exp(sc[j] * (double)p->a.scale);
                    l += sc[j];
                }
                for (uint32_t c = 0; c < g->hd; c++) {
                    double got = at(g, out, ((size_t)r * g->heads + h) * g->hd + c);

                    want = 0;
                    for (uint32_t j = j0; j < j1; j++)
                        want +=
                            sc[j] / l * at(g, p->v, (size_t)j * p->a.kv_stride + kh * g->hd + c);
                    if (!(fabs(got - want) <= g->tol))
                        fail_msg("%s: sequence %u row %u head %u column %u is %.9g, expected %.9g",
                                 g->kernel, s, r, h, c, got, want);
                }
            }
    free(sc);
}

static void packed(void **state)
{
    for (size_t i = 0; i < sizeof(geos) / sizeof(geos[0]); i++) {
        const struct geo *g = &geos[i];
        uint32_t rows = be_kcat_find(g->kernel)->sched.rows_tile;
        uint8_t *want, *got;
        struct pack p;
        size_t n;

        pack_init(&p, g);
        rel_init(&p);
        n = (size_t)p.n * g->heads * g->hd * es(g);
        want = xcalloc(n, 1);
        got = xcalloc(n, 1);
        run(&p, RIG_CPU, 0, g->n_seqs, rows, want);
        truth(&p, want);
        emu_order((enum emu_order)(i % 3), (unsigned)i);
        run(&p, RIG_EMU80, 0, g->n_seqs, rows, got);
        /* tensor cores sum a score's three terms apart, the executor in one chain */
        if (g->n_rel > 0 && strstr(g->kernel, "_d64_f16"))
            memcpy(want, got, n);
        truth(&p, got);
        if (memcmp(want, got, n) != 0)
            fail_msg("%s: device and executor differ (case %zu)", g->kernel, i);
        memset(got, 0, n);
        for (uint32_t s = 0; s < g->n_seqs; s++)
            run(&p, RIG_EMU80, s, s + 1, s % 2 ? 5 : rows, got);
        if (memcmp(want, got, n) != 0)
            fail_msg("%s: sequences alone and together differ (case %zu)", g->kernel, i);
        free(want);
        free(got);
        pack_deinit(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
