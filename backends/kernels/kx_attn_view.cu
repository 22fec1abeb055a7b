/* kx_attn_view.cu - what a block of an attention kernel works on: which query rows
 * and heads, which keys they see, where keys lie.
 *
 * A block has "rows" i: row i is query row (m0 + i) / gp of its tile, query head head0 +
 * (m0 + i) % gp. Keys are positions of the sequence: through the page table, or (pages == 0)
 * consecutive rows.
 */
struct kx_av {
    kx_p q, out, part_m, part_l, part_a;
    kx_p sums; /* one pass: a row's sums between two splits, f32 [rows, heads, head_dim] */
    kx_p k, v, pages, page_stride;
    kx_u scales_at, lg, slot0; /* log2 of page_tokens; the KV head's first slot in a page */
    kx_u row0, pos0, n, gp, head0, m0, n_heads, q_ld;
    kx_u n_keys, window; /* packed: keys; paged: window */
    int radius;
    kx_u klo, khi;  /* keys that some row of the block sees: only these are read */
    kx_u split, n_splits;
    kx_u x_t;
    float scale;
};

KX_DEV kx_u kx_av_lo(const struct kx_av *v, kx_u p)
{
    return v->pages ? kx_at_lo(p, v->window) : kx_at_lo_packed(p, v->radius);
}
KX_DEV kx_u kx_av_hi(const struct kx_av *v, kx_u p)
{
    return v->pages ? p + 1u : kx_at_hi_packed(p, v->radius, v->n_keys);
}
/* Is there a row i? */
KX_DEV int kx_av_has(const struct kx_av *v, kx_u i) { return v->m0 + i < v->n * v->gp; }
/* Keys [lo, hi) of row i; none where there is no row. */
KX_DEV void kx_av_span(const struct kx_av *v, kx_u i, kx_u *lo, kx_u *hi)
{
    kx_u p = v->pos0 + (v->m0 + i) / v->gp;
    int has = kx_av_has(v, i);

    *lo = has ? kx_av_lo(v, p) : 0u;
    *hi = has ? kx_av_hi(v, p) : 0u;
}
/* Index of (batch row, head) of row i. */
KX_DEV kx_p kx_av_vec(const struct kx_av *v, kx_u i)
{
    kx_u j = v->m0 + i;

    return (kx_p)(v->row0 + j / v->gp) * v->n_heads + v->head0 + j % v->gp;
}
/* First element of row i in q. */
KX_DEV kx_p kx_av_q(const struct kx_av *v, kx_u i, kx_u hd)
{
    kx_u j = v->m0 + i;

    return (kx_p)(v->row0 + j / v->gp) * v->q_ld + (v->head0 + j % v->gp) * hd;
}
/* After m0, gp, n, pos0 are set: the keys of rows 0 .. rows - 1. */
KX_DEV void kx_av_range(struct kx_av *v, kx_u rows)
{
    kx_u last = v->m0 + rows < v->n * v->gp ? v->m0 + rows : v->n * v->gp;

    v->klo = kx_av_lo(v, v->pos0 + v->m0 / v->gp);
    v->khi = kx_av_hi(v, v->pos0 + (last - 1u) / v->gp);
}
/* Paged. gp heads from head0 share a block; rows: rows of a block. False: nothing to do. */
KX_DEV int kx_av_open(struct kx_av *v, const struct kx_attn *a, kx_u tile, kx_u head0, kx_u gp, kx_u m0, kx_u rows)
{
    const struct kx_qtile *t = (const struct kx_qtile *)a->tiles + tile;
    const struct kx_seq *s = (const struct kx_seq *)a->seqs + t->seq;
    kx_u kvh = head0 / (a->n_heads / a->kv.n_kv_heads);

    v->q = a->q;
    v->out = a->out;
    v->part_m = a->part_m;
    v->part_l = a->part_l;
    v->part_a = a->part_a;
    v->sums = a->x_t == KX_F32 ? a->out : a->part_a;
    v->k = a->kv.k;
    v->v = a->kv.v;
    v->pages = a->pages + (kx_p)s->page0 * 4u;
    v->page_stride = a->kv.page_stride;
    v->scales_at = a->kv.scales_at;
    v->lg = (kx_u)kx_popc(a->kv.page_tokens - 1u);
    v->slot0 = kvh << v->lg;
    v->row0 = t->r0;
    v->pos0 = s->pos0 + (t->r0 - s->row0);
    v->n = t->n;
    v->gp = gp;
    v->head0 = head0;
    v->m0 = m0;
    v->n_heads = a->n_heads;
    v->q_ld = a->n_heads * a->kv.head_dim;
    v->n_keys = 0u;
    v->window = a->window;
    v->radius = -1;
    v->split = 0u;
    v->n_splits = a->n_splits;
    v->x_t = a->x_t;
    v->scale = a->scale;
    if (!kx_av_has(v, 0u))
        return 0;
    kx_av_range(v, rows);
    return 1;
}
/* Packed: one head. es: bytes of an element of q, k, v. */
KX_DEV int kx_av_open_packed(struct kx_av *v, const struct kx_attn_packed *a, kx_u tile, kx_u head, kx_u rows, kx_u es)
{
    const struct kx_qtile *t = (const struct kx_qtile *)a->tiles + tile;
    const kx_u *off = (const kx_u *)a->off + t->seq;
    kx_p first = (kx_p)off[0] * a->kv_stride + head / (a->n_heads / a->n_kv_heads) * a->head_dim;

    v->q = a->q;
    v->out = a->out;
    v->part_m = 0u;
    v->part_l = 0u;
    v->part_a = 0u;
    v->sums = 0u;
    v->k = a->k + first * es;
    v->v = a->v + first * es;
    v->pages = 0u;
    v->page_stride = (kx_p)a->kv_stride * es; /* bytes between two keys */
    v->scales_at = 0u;
    v->lg = 0u;
    v->slot0 = 0u;
    v->row0 = t->r0;
    v->pos0 = t->r0 - off[0];
    v->n = t->n;
    v->gp = 1u;
    v->head0 = head;
    v->m0 = 0u;
    v->n_heads = a->n_heads;
    v->q_ld = a->q_stride;
    v->n_keys = off[1] - off[0];
    v->window = 0u;
    v->radius = a->radius;
    v->split = 0u;
    v->n_splits = 1u;
    v->x_t = a->x_t;
    v->scale = a->scale;
    if (v->n == 0u)
        return 0;
    kx_av_range(v, rows);
    return 1;
}
/* Narrows a block to one split; false: its rows see none of it. */
KX_DEV int kx_av_to_split(struct kx_av *v, kx_u split)
{
    kx_u s0 = split * KX_SPLIT;

    v->split = split;
    v->klo = v->klo > s0 ? v->klo : s0;
    v->khi = v->khi < s0 + KX_SPLIT ? v->khi : s0 + KX_SPLIT;
    return v->klo < v->khi;
}
/* A page's address and the slot of key in it, counted over the page's heads. */
KX_DEV kx_p kx_av_page(const struct kx_av *v, kx_p base, kx_u key)
{
    return base + (kx_p)kx_ldg4((const kx_u *)v->pages + (key >> v->lg)) * v->page_stride;
}
KX_DEV kx_u kx_av_slot(const struct kx_av *v, kx_u key) { return v->slot0 + (key & ((1u << v->lg) - 1u)); }
/* From a plane (keys or values) to key's row of head_dim elements, row_bytes together. */
KX_DEV kx_p kx_av_off(const struct kx_av *v, kx_u key, kx_u row_bytes)
{
    if (v->pages)
        return kx_av_page(v, 0u, key) + (kx_p)kx_av_slot(v, key) * row_bytes;
    return (kx_p)key * v->page_stride;
}
/* key, or the nearest one that is read */
KX_DEV kx_u kx_av_clamp(const struct kx_av *v, kx_u key)
{
    kx_u k = key < v->klo ? v->klo : key;

    return k < v->khi ? k : v->khi - 1u;
}
/* The page's number (packed: 0) of keys key .. key + 15, a multiple of 16, which no page
 * parts; any page's where none of them is read. Without a branch, so that look-ups are on
 * their way together: one by one they cost more than the keys. */
KX_DEV kx_u kx_av_page16(const struct kx_av *v, kx_u key)
{
    return v->pages ? kx_ldg4((const kx_u *)v->pages + (kx_av_clamp(v, key) >> v->lg)) : 0u;
}
KX_DEV kx_p kx_av_off16(const struct kx_av *v, kx_u page, kx_u key, kx_u row_bytes)
{
    if (v->pages)
        return (kx_p)page * v->page_stride + (kx_p)(kx_av_slot(v, key) * row_bytes);
    return (kx_p)key * v->page_stride;
}
KX_DEV kx_p kx_av_row(const struct kx_av *v, kx_p base, kx_u key, kx_u row_bytes) { return base + kx_av_off(v, key, row_bytes); }
/* m and l of a row's split. */
KX_DEV void kx_av_part(const struct kx_av *v, kx_u i, float m, float l)
{
    kx_p at = kx_av_vec(v, i) * v->n_splits + v->split;

    ((float *)v->part_m)[at] = m + 0.0f; /* of -0 and 0 either is the larger */
    ((float *)v->part_l)[at] = l;
}
KX_DEV void kx_av_put(const struct kx_av *v, kx_p at, float x)
{
    if (v->x_t == KX_F16)
        ((unsigned short *)v->out)[at] = kx_f2h(x);
    else
        ((float *)v->out)[at] = x;
}
/* two neighbours, at even */
KX_DEV void kx_av_put2(const struct kx_av *v, kx_p at, float x, float y)
{
    if (v->x_t == KX_F16) {
        ((kx_u *)v->out)[at >> 1] = kx_f2h2(x, y);
    } else {
        struct kx_u2 w;

        w.x = (kx_u)kx_f2i_bits(x);
        w.y = (kx_u)kx_f2i_bits(y);
        ((struct kx_u2 *)v->out)[at >> 1] = w;
    }
}
/* All rows of a split block that sees nothing. */
KX_DEV void kx_av_empty(const struct kx_av *v, kx_u rows, kx_u hd, kx_u threads)
{
    kx_u i, c;

    for (i = kx_tid(); i < rows; i += threads)
        if (kx_av_has(v, i) && v->n_splits > 1u)
            kx_av_part(v, i, KX_AT_NONE, 0.0f);
    for (i = 0u; v->n_splits == 1u && i < rows; i++)
        for (c = kx_tid(); kx_av_has(v, i) && c < hd; c += threads)
            kx_av_put(v, kx_av_vec(v, i) * hd + c, 0.0f);
}
