/* be_kconf_attn.c - conformance cases of the key/value cache and of attention.
 *
 * Sequences of different length share a launch; their pages lie in shuffled order, what a
 * window has let go is page -1, and every cache row that no sequence holds is NaN: a kernel that
 * lets it in shows it. Tests: tests/backends/test_be_kconf.c
 */
#include <math.h>
#include <stdio.h>

#include "be_kconf_impl.h"

#define ARGS(c, type) ((struct type *)(void *)(c)->args)
#define AT(type, field) offsetof(struct type, field)

#define SAY(c, ...) snprintf((c)->what, sizeof((c)->what), __VA_ARGS__)

#define MAX_SEQS 4

/* Rows and context of the sequences of a pass. */
struct pass {
    uint32_t n_seqs, n_rows, window;
    struct kx_seq seq[MAX_SEQS];
    uint32_t len[MAX_SEQS]; /* keys: pos0 + n_rows */
    uint32_t n_pages, page_tokens;
    int32_t *pages; /* all tables, in host memory */
    uint32_t n_table;
};

static uint32_t max_len(const struct pass *p)
{
    uint32_t m = 0;

    for (uint32_t i = 0; i < p->n_seqs; i++)
        m = p->len[i] > m ? p->len[i] : m;
    return m;
}

/* rows new rows among n_seqs sequences; the first ends at position len, the others at
 * their own places. */
static bool pass_init(struct kc_case *c, struct pass *p, uint32_t n_seqs, uint32_t rows,
                      uint32_t len, uint32_t window, uint32_t page_tokens)
{
    uint32_t row = 0, at = 0, used = 0;

    *p = (struct pass){.window = window, .page_tokens = page_tokens, .n_rows = rows};
    p->n_seqs = n_seqs < rows ? n_seqs : rows;
    p->n_seqs = p->n_seqs > MAX_SEQS ? MAX_SEQS : p->n_seqs;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct kx_seq *s = &p->seq[i];
        uint32_t left = p->n_seqs - 1 - i;

        s->row0 = row;
        s->n_rows = left == 0 ? rows - row : i == 0 ? (rows - left + 1) / 2 : 1;
        row += s->n_rows;
        p->len[i] = i == 0 ? len : i == 1 ? s->n_rows : 1 + kc_below(c, len + 3);
        if (p->len[i] < s->n_rows)
            p->len[i] = s->n_rows;
        s->pos0 = p->len[i] - s->n_rows;
        s->page0 = at;
        at += (p->len[i] + page_tokens - 1) / page_tokens + 1; /* and one that is never read */
    }
    p->n_table = at;
    p->n_pages = at + 2;
    if (!(p->pages = malloc(at * sizeof(*p->pages)))) {
        c->nomem = true;
        return false;
    }
    for (uint32_t i = 0; i < at; i++)
        p->pages[i] = -1;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct kx_seq *s = &p->seq[i];

        for (uint32_t pg = 0; pg * page_tokens < p->len[i]; pg++) {
            bool gone = window && (pg + 1) * page_tokens + window <= s->pos0 + 1;

            if (!gone) /* from the top down, odd and even apart: never its own index */
                p->pages[s->page0 + pg] = (int32_t)(p->n_pages - 1 - used);
            used++;
        }
    }
    return true;
}

static size_t kv_row_bytes(uint32_t dtype, uint32_t head_dim)
{
    return dtype == BE_F32   ? (size_t)head_dim * 4
           : dtype == BE_F16 ? (size_t)head_dim * 2
                             : head_dim;
}

static enum kc_elem kv_elem(uint32_t dtype)
{
    return dtype == BE_F32 ? KC_F32 : dtype == BE_F16 ? KC_F16 : KC_BYTE;
}

/* Types an entry's cache may have: one, or any of three. */
static uint32_t kv_types(const struct be_kdesc *d)
{
    return d->kv_dtype == 0xff ? 3 : 1;
}

static uint32_t kv_type_at(const struct be_kdesc *d, uint32_t i, uint32_t head_dim)
{
    static const uint32_t all[] = {BE_F16, BE_Q8_0, BE_F32};
    uint32_t t = d->kv_dtype == 0xff ? all[i % 3] : d->kv_dtype;

    return t == BE_Q8_0 && head_dim % 32 ? BE_F16 : t;
}

/* The two caches, every value NaN (q8_0: NaN scales). */
static void kv_init(struct kc_case *c, struct kx_kv *kv, uint32_t dtype, size_t f_k, size_t f_v,
                    const struct pass *p, enum kc_role role, uint32_t bufs[2])
{
    size_t rows, data;

    kv->dtype = dtype;
    kv->page_tokens = p->page_tokens;
    kv->n_kv_heads = c->s.kv_heads;
    kv->head_dim = c->s.head_dim;
    rows = (size_t)kv->n_kv_heads * kv->page_tokens;
    data = rows * kv_row_bytes(kv->dtype, kv->head_dim);
    kv->scales_at = (uint32_t)((data + 255) / 256 * 256);
    kv->page_stride = kv->scales_at;
    if (kv->dtype == BE_Q8_0)
        kv->page_stride += (rows * (kv->head_dim / 32) * 2 + 255) / 256 * 256;
    kv->page_stride += 256; /* pages need not touch */
    for (unsigned i = 0; i < 2; i++) {
        bufs[i] = kc_add(c, i ? f_v : f_k,
                         p->n_pages * kv->page_stride / kc_elem_bytes(kv_elem(kv->dtype)),
                         kv_elem(kv->dtype), role);
        if (kc_data(c, bufs[i])) /* 0xff..: NaN in f32 and f16, and as a scale */
            memset(kc_data(c, bufs[i]), 0xFF, c->buf[bufs[i]].n);
    }
}

/* Writes one row of head_dim values into the cache the plain way. */
static void kv_put(uint8_t *base, const struct kx_kv *kv, uint32_t page, uint32_t head,
                   uint32_t slot, const float *x)
{
    size_t row = (size_t)head * kv->page_tokens + slot;
    uint8_t *pg = base + page * kv->page_stride,
            *p = pg + row * kv_row_bytes(kv->dtype, kv->head_dim);

    if (kv->dtype == BE_F32) {
        memcpy(p, x, kv->head_dim * sizeof(*x));
        return;
    }
    if (kv->dtype == BE_F16) {
        for (uint32_t i = 0; i < kv->head_dim; i++) {
            uint16_t h = be_f32_to_half(x[i]);

            memcpy(p + 2 * i, &h, 2);
        }
        return;
    }
    for (uint32_t b = 0; b < kv->head_dim / 32; b++) {
        float top = 0, d;
        uint16_t h;

        for (uint32_t i = 0; i < 32; i++)
            top = fabsf(x[32 * b + i]) > top ? fabsf(x[32 * b + i]) : top;
        d = top / 127;
        h = be_f32_to_half(d);
        memcpy(pg + kv->scales_at + (row * (kv->head_dim / 32) + b) * 2, &h, 2);
        for (uint32_t i = 0; i < 32; i++)
            p[32 * b + i] =
                (uint8_t)(int8_t)(d > 0 && d < INFINITY ? lrintf(x[32 * b + i] / d) : 0);
    }
}

/* Keys and values of every position a sequence holds. */
static void kv_fill(struct kc_case *c, const struct kx_kv *kv, const struct pass *p,
                    const uint32_t bufs[2])
{
    enum kc_input kind = c->input;
    float *x = malloc(kv->head_dim * sizeof(*x));

    if (!x)
        c->nomem = true;
    /* NaN and infinity come through the queries only: a cache row is checked before it is written
     */
    if (kind == KC_NAN_INF)
        c->input = KC_RANDOM;
    for (uint32_t i = 0; i < p->n_seqs && !c->nomem; i++)
        for (uint32_t pos = 0; pos < p->len[i]; pos++) {
            int32_t page = p->pages[p->seq[i].page0 + pos / p->page_tokens];

            for (uint32_t h = 0; page >= 0 && h < kv->n_kv_heads; h++)
                for (unsigned w = 0; w < 2; w++) {
                    kc_fill(c, x, KX_F32, 1, kv->head_dim);
                    for (uint32_t d = 0; kv->dtype != BE_F32 && d < kv->head_dim; d++)
                        x[d] = fmaxf(fminf(x[d], 65504.0f), -65504.0f); /* what half can hold */
                    kv_put(kc_data(c, bufs[w]), kv, (uint32_t)page, h, pos % p->page_tokens, x);
                }
        }
    c->input = kind;
    free(x);
}

static void put_pass(struct kc_case *c, const struct pass *p, size_t f_seqs, size_t f_pages)
{
    uint32_t s = kc_add(c, f_seqs, p->n_seqs * sizeof(p->seq[0]), KC_BYTE, KC_IN);
    uint32_t t = kc_add(c, f_pages, p->n_table, KC_I32, KC_IN);

    if (kc_data(c, s))
        memcpy(kc_data(c, s), p->seq, p->n_seqs * sizeof(p->seq[0]));
    if (kc_data(c, t))
        memcpy(kc_data(c, t), p->pages, p->n_table * sizeof(*p->pages));
}

static uint32_t page_tokens(uint32_t v)
{
    static const uint32_t t[] = {32, 16, 64, 128};

    return t[v % 4];
}

/* -------------------------------------------------------------- kv write */

static uint32_t kv_write_variants(const struct be_kentry *e)
{
    return 2 * kv_types(&e->desc) * kc_type_count(e->desc.act);
}

/* The kx_kv_write at byte offset `at`; k_also, v_also: its keys and values are in those buffers
 * already (or -1). */
static void kv_write_at(struct kc_case *c, size_t at, int k_also, int v_also)
{
    struct kx_kv_write *a = (struct kx_kv_write *)(void *)(c->args + at);
    uint32_t width = c->s.kv_heads * c->s.head_dim, v = c->variant / 2, bufs[2], *row_seq;
    const struct be_kdesc *d = &c->e->desc;
    struct pass p;

    if (!pass_init(c, &p, c->variant % 2 ? 3 : 1, c->s.rows, c->s.rows + 13, 0,
                   page_tokens(c->variant)))
        return;
    a->n = p.n_rows;
    a->x_t = kc_type_at(d->act, v / kv_types(d));
    kv_init(c, &a->kv, kv_type_at(d, v, c->s.head_dim), at + AT(kx_kv_write, kv.k),
            at + AT(kx_kv_write, kv.v), &p, KC_PART, bufs);
    if (k_also >= 0)
        kc_bind_also(c, at + AT(kx_kv_write, k), (uint32_t)k_also, 0);
    else
        kc_tensor(c, at + AT(kx_kv_write, k), a->x_t, a->n, width, KC_IN);
    if (v_also >= 0)
        kc_bind_also(c, at + AT(kx_kv_write, v), (uint32_t)v_also, 0);
    else
        kc_tensor(c, at + AT(kx_kv_write, v), a->x_t, a->n, width, KC_IN);
    put_pass(c, &p, at + AT(kx_kv_write, seqs), at + AT(kx_kv_write, pages));
    row_seq = kc_data(c, kc_add(c, at + AT(kx_kv_write, row_seq), a->n, KC_I32, KC_IN));
    for (uint32_t i = 0; row_seq && i < p.n_seqs; i++)
        for (uint32_t r = 0; r < p.seq[i].n_rows; r++)
            row_seq[p.seq[i].row0 + r] = i;
    SAY(c, "%u sequence(s), pages of %u, %s into %s", p.n_seqs, p.page_tokens,
        a->x_t == KX_F16 ? "f16" : "f32", be_dtype_name(a->kv.dtype));
    free(p.pages);
}

static void kv_write_build(struct kc_case *c)
{
    kv_write_at(c, 0, -1, -1);
}

/* Rotation of queries and keys, and the write of the turned keys, in one kernel. */
static void rope_kv_build(struct kc_case *c)
{
    const struct be_kdesc *d = &c->e->desc;
    uint32_t type = kc_type_at(d->act, c->variant / 2 / kv_types(d));
    uint32_t kind = c->variant % KC_ROPE_KINDS;
    uint32_t k;
    int v = -1;

    kc_rope(c, AT(kx_rope_kv, q), -1, kind, type, c->s.rows, c->s.q_heads, c->s.head_dim);
    k = kc_rope(c, AT(kx_rope_kv, k), AT(kx_rope_kv, q), kind, type, c->s.rows, c->s.kv_heads,
                c->s.head_dim);
    if (c->variant / 2 % 2) /* values have a norm too */
        v = (int)kc_rope(c, AT(kx_rope_kv, v), AT(kx_rope_kv, v), KC_ROPE_NORM, type, c->s.rows,
                         c->s.kv_heads, c->s.head_dim);
    kv_write_at(c, AT(kx_rope_kv, w), (int)k, v);
}

static uint64_t work_kv_write(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->kv_heads * s->head_dim * 16;
}

/* ------------------------------------------------------- paged attention */

static uint32_t attn_variants(const struct be_kentry *e)
{
    return 4 * kv_types(&e->desc) * kc_type_count(e->desc.act);
}

static uint32_t q_heads_of(const struct kc_case *c)
{
    uint32_t h = c->s.q_heads;

    /* query heads are a multiple of key heads */
    return h % c->s.kv_heads ? (h / c->s.kv_heads + 1) * c->s.kv_heads : h;
}

static void put_tiles(struct kc_case *c, size_t field, const struct kx_qtile *t, uint32_t n)
{
    uint32_t b = kc_add(c, field, n * sizeof(*t), KC_BYTE, KC_IN);

    if (kc_data(c, b))
        memcpy(kc_data(c, b), t, n * sizeof(*t));
}

/* Query tiles of rows_tile rows; the number. t has room for one per row. */
static uint32_t tiles_of(uint32_t rows_tile, uint32_t seq, uint32_t row0, uint32_t n_rows,
                         struct kx_qtile *t)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < n_rows; r += rows_tile)
        t[n++] = (struct kx_qtile){
            .seq = seq, .r0 = row0 + r, .n = n_rows - r < rows_tile ? n_rows - r : rows_tile};
    return n;
}

static void attn_build(struct kc_case *c)
{
    const struct be_kdesc *d = &c->e->desc;
    struct kx_attn *a = ARGS(c, kx_attn);
    uint32_t rt = c->e->sched.rows_tile ? c->e->sched.rows_tile : 1, v = c->variant % 4, bufs[2];
    uint32_t rows = c->s.rows, len = c->s.seq > rows ? c->s.seq : rows, n = 0, q;
    struct kx_qtile *tiles;
    struct pass p;
    size_t parts;

    a->window = d->mask == BE_KMASK_CAUSAL ? 0 : v == 0 ? 19 : v == 1 ? 1 : v == 2 ? 300 : len + 5;
    if (!pass_init(c, &p, 1 + v, rows, len, a->window, page_tokens(v)))
        return;
    a->x_t = kc_type_at(d->act, c->variant / 4 / kv_types(d));
    a->n_rows = rows;
    a->n_heads = q_heads_of(c);
    a->scale = 1 / sqrtf((float)c->s.head_dim);
    a->n_splits = (max_len(&p) + KX_SPLIT - 1) / KX_SPLIT + (v == 3); /* one that nobody sees */
    kv_init(c, &a->kv, kv_type_at(d, c->variant / 4, c->s.head_dim), AT(kx_attn, kv.k),
            AT(kx_attn, kv.v), &p, KC_IN, bufs);
    kv_fill(c, &a->kv, &p, bufs);
    q = kc_tensor(c, AT(kx_attn, q), a->x_t, rows, a->n_heads * c->s.head_dim, KC_IN);
    put_pass(c, &p, AT(kx_attn, seqs), AT(kx_attn, pages));
    if ((tiles = calloc(rows, sizeof(*tiles)))) {
        for (uint32_t i = 0; i < p.n_seqs; i++)
            n += tiles_of(rt, i, p.seq[i].row0, p.seq[i].n_rows, tiles + n);
        put_tiles(c, AT(kx_attn, tiles), tiles, n);
        free(tiles);
    } else {
        c->nomem = true;
    }
    a->n_tiles = n;
    if (d->phase == BE_KPHASE_SPLIT && a->n_splits > 1) { /* an only split is the row itself */
        parts = (size_t)rows * a->n_heads * a->n_splits;
        kc_add(c, AT(kx_attn, part_m), parts, KC_F32, KC_OUT);
        kc_add(c, AT(kx_attn, part_l), parts, KC_F32, KC_OUT);
        kc_add(c, AT(kx_attn, part_a), parts * c->s.head_dim, KC_F32, KC_PART);
    } else {
        kc_add(c, AT(kx_attn, out), (size_t)rows * a->n_heads * c->s.head_dim, kc_elem_of(a->x_t),
               KC_OUT);
        if (d->phase == BE_KPHASE_ONE_PASS && a->x_t == KX_F16) /* sums between splits */
            kc_add(c, AT(kx_attn, part_a), (size_t)rows * a->n_heads * c->s.head_dim, KC_F32,
                   KC_SCRATCH);
        c->reach_buf = q;
        c->reach_rows = rows;
        c->reach_cols = a->n_heads * c->s.head_dim;
        /* a row with one key has that key's value, whatever the query */
        if (a->window == 1 || p.n_seqs > 1 || p.seq[0].pos0 == 0)
            c->reach_rows = 0;
    }
    SAY(c, "%u sequence(s), pages of %u, window %u, %s", p.n_seqs, p.page_tokens, a->window,
        a->x_t == KX_F16 ? "f16" : "f32");
    free(p.pages);
}

static uint64_t work_attn(const struct kc_shape *s)
{
    uint64_t len = s->seq > s->rows ? s->seq : s->rows, heads = s->q_heads + s->kv_heads;

    return (uint64_t)s->rows * heads * s->head_dim * len * 2;
}

/* ----------------------------------------------------------------- merge */

static uint32_t merge_variants(const struct be_kentry *e)
{
    return 2 * kc_type_count(e->desc.act);
}

/* Parts as split kernels leave them: unseen ones first, last and between. */
static void merge_build(struct kc_case *c)
{
    struct kx_attn *a = ARGS(c, kx_attn);
    uint32_t hd = c->s.head_dim, n_splits = 1 + (c->s.seq - 1) / KX_SPLIT + c->variant % 2;
    size_t parts, unseen = 0;
    float *m, *l, *acc;

    a->n_rows = c->s.rows;
    a->n_heads = c->s.q_heads;
    a->n_splits = n_splits;
    a->kv.head_dim = hd;
    a->kv.n_kv_heads = c->s.q_heads;
    a->kv.dtype = BE_F16;
    a->x_t = kc_type_at(c->e->desc.out, c->variant / 2);
    parts = (size_t)a->n_rows * a->n_heads * n_splits;
    m = kc_data(c, kc_add(c, AT(kx_attn, part_m), parts, KC_F32, KC_IN));
    l = kc_data(c, kc_add(c, AT(kx_attn, part_l), parts, KC_F32, KC_IN));
    acc = kc_data(c, kc_add(c, AT(kx_attn, part_a), parts * hd, KC_F32, KC_IN));
    for (size_t i = 0; m && l && acc && i < parts; i++) {
        bool seen = n_splits == 1 || i % n_splits == n_splits / 2 || kc_below(c, 3);

        m[i] = seen ? kc_normal(c) * 20 : -INFINITY;
        l[i] = seen ? 1 + fabsf(kc_normal(c)) * 50 : 0;
        unseen += !seen;
        if (seen)
            kc_fill(c, acc + i * hd, KX_F32, 1, hd);
        else
            memset(acc + i * hd, 0xFF, hd * sizeof(*acc));
    }
    kc_add(c, AT(kx_attn, out), (size_t)a->n_rows * a->n_heads * hd, kc_elem_of(a->x_t), KC_OUT);
    SAY(c, "%u splits, %zu unseen, %s", n_splits, unseen, a->x_t == KX_F16 ? "f16" : "f32");
}

static uint64_t work_merge(const struct kc_shape *s)
{
    return (uint64_t)s->rows * s->q_heads * s->head_dim * (s->seq / KX_SPLIT + 1) * 4;
}

/* ---------------------------------------------------------------- packed */

static uint32_t packed_variants(const struct be_kentry *e)
{
    return 4 * kc_type_count(e->desc.act);
}

static void packed_build(struct kc_case *c)
{
    const struct be_kdesc *d = &c->e->desc;
    struct kx_attn_packed *a = ARGS(c, kx_attn_packed);
    uint32_t v = c->variant % 4, rt = c->e->sched.rows_tile ? c->e->sched.rows_tile : 1, n = 0;
    uint32_t hd = c->s.head_dim, rows = c->s.rows, qd, kd, *off, want = v == 1 ? 4 : v == 3 ? 2 : 1;
    struct kx_qtile *tiles;

    rows = d->seq.max ? rows : c->s.seq > rows ? c->s.seq : rows;
    a->x_t = kc_type_at(d->act, c->variant / 4);
    a->n_heads = q_heads_of(c);
    a->n_kv_heads = c->s.kv_heads;
    a->head_dim = hd;
    a->scale = 1 / sqrtf((float)hd);
    a->radius = d->mask == BE_KMASK_BIDI_WINDOW ? (int)(v * v * 8) : -1;
    qd = a->n_heads * hd;
    kd = a->n_kv_heads * hd;
    if (v >= 2) { /* one packed tensor */
        uint32_t all = qd + 2 * kd,
                 b = kc_tensor(c, AT(kx_attn_packed, q), a->x_t, rows, all, KC_IN);
        size_t es = kc_elem_bytes(kc_elem_of(a->x_t));

        a->q_stride = a->kv_stride = all;
        kc_bind_also(c, AT(kx_attn_packed, k), b, qd * es);
        kc_bind_also(c, AT(kx_attn_packed, v), b, (qd + kd) * es);
    } else {
        a->q_stride = qd;
        a->kv_stride = kd;
        kc_tensor(c, AT(kx_attn_packed, q), a->x_t, rows, qd, KC_IN);
        kc_tensor(c, AT(kx_attn_packed, k), a->x_t, rows, kd, KC_IN);
        kc_tensor(c, AT(kx_attn_packed, v), a->x_t, rows, kd, KC_IN);
    }
    kc_add(c, AT(kx_attn_packed, out), (size_t)rows * qd, kc_elem_of(a->x_t), KC_OUT);
    a->n_seqs = want < rows ? want : rows;
    off = kc_data(c, kc_add(c, AT(kx_attn_packed, off), a->n_seqs + 1, KC_I32, KC_IN));
    tiles = calloc(rows, sizeof(*tiles));
    if (off && tiles) {
        for (uint32_t i = 0; i <= a->n_seqs; i++) /* the first short, the rest about equal */
            off[i] = i == a->n_seqs ? rows
                     : i <= 1       ? i
                                    : i + (rows - a->n_seqs) * (i - 1) / a->n_seqs;
        for (uint32_t i = 0; i < a->n_seqs; i++)
            n += tiles_of(rt, i, off[i], off[i + 1] - off[i], tiles + n);
        put_tiles(c, AT(kx_attn_packed, tiles), tiles, n);
    } else {
        c->nomem = true;
    }
    free(tiles);
    a->n_tiles = n;
    SAY(c, "%u sequence(s), radius %d, %s, %s", a->n_seqs, a->radius,
        v >= 2 ? "one tensor" : "three tensors", a->x_t == KX_F16 ? "f16" : "f32");
}

/* Relative positions: both terms or one; distances in buckets, so that vectors repeat. */
static void rel_build(struct kc_case *c)
{
    struct kx_attn_rel *a = ARGS(c, kx_attn_rel);
    uint32_t v, cols, n_rel, *rel;

    packed_build(c);
    v = c->variant % 4;
    cols = a->p.n_heads * c->s.head_dim;
    a->p.radius = -1;
    a->reach = (c->s.rows > c->s.seq ? c->s.rows : c->s.seq) + v;
    a->rel_stride = cols + (v == 1 ? 8 : 0);
    n_rel = a->reach + 1;
    if (v != 2)
        kc_tensor(c, AT(kx_attn_rel, rk), a->p.x_t, n_rel, a->rel_stride, KC_IN);
    if (v != 3)
        kc_tensor(c, AT(kx_attn_rel, rq), a->p.x_t, n_rel, a->rel_stride, KC_IN);
    /* a score of numbers so far apart has a last bit of more than 1, and tensor cores move it */
    if (c->e->desc.numerics == BE_KNUM_TF32 && c->input == KC_EXTREME)
        a->p.scale *= 0x1p-40f;
    rel = kc_data(c, kc_add(c, AT(kx_attn_rel, rel), 2 * (size_t)a->reach + 1, KC_I32, KC_IN));
    for (uint32_t i = 0; rel && i <= 2 * a->reach; i++)
        rel[i] = i / 2;
    SAY(c, "%u sequence(s), terms of %s, %s, %s", a->p.n_seqs,
        v == 2   ? "keys"
        : v == 3 ? "queries"
                 : "both",
        v >= 2 ? "one tensor" : "three tensors", a->p.x_t == KX_F16 ? "f16" : "f32");
}

static uint64_t work_rel(const struct kc_shape *s)
{
    return 3 * work_attn(s);
}

#define ALL_INPUTS ((1u << KC_INPUT_COUNT) - 1)

const struct kc_builder kc_attn_builders[] = {
    {BE_KOP_KV_WRITE,
     sizeof(struct kx_kv_write),
     kv_write_variants,
     kv_write_build,
     ALL_INPUTS,
     {.rows = 5, .kv_heads = 2, .head_dim = 64},
     work_kv_write},
    {BE_KOP_ROPE,
     sizeof(struct kx_rope_kv),
     kv_write_variants,
     rope_kv_build,
     ALL_INPUTS,
     {.rows = 5, .q_heads = 3, .kv_heads = 2, .head_dim = 64},
     work_kv_write},
    {BE_KOP_ATTN,
     sizeof(struct kx_attn),
     attn_variants,
     attn_build,
     ALL_INPUTS,
     {.rows = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64, .seq = 41},
     work_attn},
    {BE_KOP_ATTN_MERGE,
     sizeof(struct kx_attn),
     merge_variants,
     merge_build,
     1u << KC_RANDOM | 1u << KC_ZERO | 1u << KC_HUGE | 1u << KC_DENORMAL,
     {.rows = 3, .q_heads = 3, .head_dim = 64, .seq = 700},
     work_merge},
    {BE_KOP_ATTN_PACKED,
     sizeof(struct kx_attn_packed),
     packed_variants,
     packed_build,
     ALL_INPUTS & ~(1u << KC_NAN_INF),
     {.rows = 21, .q_heads = 4, .kv_heads = 4, .head_dim = 64, .seq = 21},
     work_attn},
    {BE_KOP_ATTN_REL,
     sizeof(struct kx_attn_rel),
     packed_variants,
     rel_build,
     ALL_INPUTS & ~(1u << KC_NAN_INF),
     {.rows = 21, .q_heads = 2, .kv_heads = 2, .head_dim = 64, .seq = 21},
     work_rel},
};
const uint32_t kc_n_attn_builders = sizeof(kc_attn_builders) / sizeof(kc_attn_builders[0]);
