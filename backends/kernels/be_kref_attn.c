/* be_kref_attn.c - the attention kernels run on the CPU: the oracle.
 *
 * Walks the tree once per (query row, head), in the device's order of sums: bit for bit for
 * plain arithmetic; over f16 and int8 keys the products of halves are summed in f32,
 * ascending, where tensor cores round in their own way. Keys and values are read only where the
 * mask lets a row see them. Tests: tests/backends/test_be_kattn_ref.c
 */
#include "be_kfam_attn.h"

#include "be_kref.h"
#include "kx_attn_math.h"

/* One (row, head). */
struct unit {
    const struct be_kir *k;
    struct be_kattn_geo g;
    const struct kx_attn *a;         /* paged and merge, else NULL */
    const struct kx_attn_packed *pk; /* packed, else NULL */
    const struct kx_attn_rel *rel;   /* with relative positions, else NULL */
    const int32_t *pages;
    uint32_t row, head, kv_head, hd, seq_row0; /* packed: first row of the sequence */
    uint32_t lo, hi;                           /* keys it sees */
    uint32_t split, key0;
    bool half; /* products of halves */
    bool tf32; /* products of floats rounded to tf32 */
    bool base2;
    float q[BE_KATTN_MAX_DIM], v[BE_KATTN_MAX_DIM];
    float s[64];
    float m, l[8], a_sum[BE_KATTN_MAX_DIM]; /* of the split */
    float bm, bl, b_sum[BE_KATTN_MAX_DIM];  /* of the row */
};

/* A factor of a product. */
static float rounded(const struct unit *u, float x)
{
    return u->half ? kx_h2f(kx_f2h(x)) : u->tf32 ? kx_tf32(x) : x;
}

static float e_to(const struct unit *u, float x)
{
    return u->base2 ? exp2f(x) : kx_exp(x);
}

/* Row of keys (or values) of position p, as f32. */
static void load_paged(const struct unit *u, kx_p plane, uint32_t p, float *out)
{
    const struct kx_kv *kv = &u->a->kv;
    uint64_t slot = (uint64_t)u->kv_head * kv->page_tokens + p % kv->page_tokens;
    kx_p page = plane + (kx_p)(uint32_t)u->pages[p / kv->page_tokens] * kv->page_stride;

    for (uint32_t c = 0; c < u->hd; c++) {
        uint64_t at = slot * u->hd + c;

        if (kv->dtype == BE_F32)
            out[c] = KX_AT(const float, page)[at];
        else if (kv->dtype == BE_F16)
            out[c] = kx_h2f(KX_AT(const unsigned short, page)[at]);
        else
            out[c] =
                rounded(u, (float)KX_AT(const int8_t, page)[at] *
                               kx_h2f(KX_AT(const unsigned short, page + kv->scales_at)[at / 32]));
    }
}

static void load_key(struct unit *u, bool value, uint32_t p, float *out)
{
    if (u->a) {
        load_paged(u, value ? u->a->kv.v : u->a->kv.k, p, out);
        return;
    }
    for (uint32_t c = 0; c < u->hd; c++)
        out[c] = rounded(
            u, kx_act_get(value ? u->pk->v : u->pk->k, u->pk->x_t,
                          (uint64_t)(u->seq_row0 + p) * u->pk->kv_stride + u->kv_head * u->hd + c));
}

static bool sees(const struct unit *u, uint32_t j)
{
    return u->key0 + j >= u->lo && u->key0 + j < u->hi;
}

/* -------------------------------------------------------------------- nodes */

static void do_qk(struct unit *u)
{
    for (uint32_t j = 0; j < u->g.key_tile; j++) {
        u->s[j] = 0;
        if (!sees(u, j))
            continue;
        load_key(u, false, u->key0 + j, u->v);
        for (uint32_t c = 0; c < u->hd; c++)
            u->s[j] = kx_fma(u->q[c], u->v[c], u->s[j]);
    }
}

/* The chain of each score goes on: column by column, first the query's term. */
static void do_rel(struct unit *u)
{
    const struct kx_attn_rel *r = u->rel;

    for (uint32_t j = 0; j < u->g.key_tile; j++) {
        uint32_t i = u->row - u->seq_row0;
        uint64_t at;

        if (!sees(u, j))
            continue;
        load_key(u, false, u->key0 + j, u->v);
        at = (uint64_t)KX_AT(const uint32_t, r->rel)[i + r->reach - (u->key0 + j)] * r->rel_stride +
             (uint64_t)u->head * u->hd;
        for (uint32_t c = 0; c < u->hd; c++) {
            if (r->rk)
                u->s[j] =
                    kx_fma(u->q[c], rounded(u, kx_act_get(r->rk, u->pk->x_t, at + c)), u->s[j]);
            if (r->rq)
                u->s[j] =
                    kx_fma(u->v[c], rounded(u, kx_act_get(r->rq, u->pk->x_t, at + c)), u->s[j]);
        }
    }
}

static void do_mask(struct unit *u)
{
    float scale = u->a ? u->a->scale : u->pk->scale;

    if (u->base2)
        scale = scale * 1.44269504f;
    for (uint32_t j = 0; j < u->g.key_tile; j++)
        u->s[j] = sees(u, j) ? u->s[j] * scale : KX_AT_NONE;
}

static void do_softmax(struct unit *u)
{
    float t = KX_AT_NONE, mm, c, x;

    for (uint32_t j = 0; j < u->g.key_tile; j++)
        t = kx_max(t, u->s[j]);
    mm = kx_max(u->m, t);
    c = u->m == mm ? 1.0f : e_to(u, u->m - mm);
    x = mm == KX_AT_NONE ? 0.0f : mm;
    u->m = mm;
    for (uint32_t i = 0; i < 8; i++)
        u->l[i] = u->l[i] * c;
    for (uint32_t j = 0; j < u->g.key_tile; j++) {
        uint32_t part = u->g.mma ? KX_AT_PART_MMA(j) : KX_AT_PART_SIMT(j);

        u->s[j] = e_to(u, u->s[j] - x);
        u->l[part] = u->l[part] + u->s[j];
        u->s[j] = rounded(u, u->s[j]);
    }
    for (uint32_t d = 0; d < u->hd; d++)
        u->a_sum[d] = u->a_sum[d] * c;
}

static void do_pv(struct unit *u)
{
    for (uint32_t j = 0; j < u->g.key_tile; j++) {
        if (!sees(u, j))
            continue;
        load_key(u, true, u->key0 + j, u->v);
        for (uint32_t c = 0; c < u->hd; c++)
            u->a_sum[c] = kx_fma(u->s[j], u->v[c], u->a_sum[c]);
    }
}

static void do_fresh(struct unit *u)
{
    u->m = KX_AT_NONE;
    memset(u->l, 0, sizeof(u->l));
    memset(u->a_sum, 0, sizeof(u->a_sum));
}

static void join(struct unit *u, float m, float l, const float *a)
{
    float wo, wn;

    if (l == 0)
        return;
    if (u->bl == 0) {
        u->bm = m;
        u->bl = l;
        memcpy(u->b_sum, a, u->hd * sizeof(float));
        return;
    }
    kx_at_fold(&u->bm, &u->bl, m, l, &wo, &wn);
    for (uint32_t c = 0; c < u->hd; c++)
        u->b_sum[c] = kx_fma(a[c], wn, u->b_sum[c] * wo);
}

static uint64_t part_at(const struct unit *u, uint32_t split)
{
    return ((uint64_t)u->row * u->a->n_heads + u->head) * u->a->n_splits + split;
}

static void do_store(struct unit *u)
{
    float inv = u->bl == 0 ? 0.0f : kx_div(1.0f, u->bl);
    uint32_t n_heads = u->a ? u->a->n_heads : u->pk->n_heads;
    uint64_t at = ((uint64_t)u->row * n_heads + u->head) * u->hd;

    for (uint32_t c = 0; c < u->hd; c++)
        kx_act_put(u->a ? u->a->out : u->pk->out, u->a ? u->a->x_t : u->pk->x_t, at + c,
                   kx_at_done(u->b_sum[c], inv));
}

static void do_split_store(struct unit *u)
{
    uint64_t at = part_at(u, u->split);
    float l = kx_fold(u->l);

    if (u->a->n_splits == 1) {
        join(u, u->m, l, u->a_sum);
        do_store(u);
        return;
    }
    KX_AT(float, u->a->part_m)[at] = u->m + 0.0f;
    KX_AT(float, u->a->part_l)[at] = l;
    if (l != 0)
        memcpy(KX_AT(float, u->a->part_a) + at * u->hd, u->a_sum, u->hd * sizeof(float));
}

static void do_merge(struct unit *u)
{
    if (u->g.merge) {
        uint64_t at = part_at(u, u->split);

        join(u, KX_AT(const float, u->a->part_m)[at], KX_AT(const float, u->a->part_l)[at],
             KX_AT(const float, u->a->part_a) + at * u->hd);
    } else {
        join(u, u->m, kx_fold(u->l), u->a_sum);
    }
}

static void load_q(struct unit *u)
{
    uint32_t ld = u->a ? u->a->n_heads * u->hd : u->pk->q_stride;

    for (uint32_t c = 0; c < u->hd; c++)
        u->q[c] = rounded(u, kx_act_get(u->a ? u->a->q : u->pk->q, u->a ? u->a->x_t : u->pk->x_t,
                                        (uint64_t)u->row * ld + u->head * u->hd + c));
}

/* --------------------------------------------------------------------- tree */

static enum rc walk(struct unit *u, uint32_t i, uint32_t end, struct rc_err *err);

static uint32_t end_of(const struct be_kir *k, uint32_t i)
{
    uint32_t j = i + 1;

    while (j < k->n_nodes && k->node[j].depth > k->node[i].depth)
        j++;
    return j;
}

static enum rc walk_loop(struct unit *u, uint32_t i, struct rc_err *err)
{
    const struct be_knode *n = &u->k->node[i];
    uint32_t end = end_of(u->k, i), n_splits, lo = u->lo, hi = u->hi;
    enum rc rc = RC_OK;

    if (n->imm == BE_KA_SPLIT) {
        /* split kernels also say of splits that a row does not see that they are empty */
        n_splits = u->g.merge || u->g.split ? u->a->n_splits : (u->hi + KX_SPLIT - 1) / KX_SPLIT;
        for (u->split = 0; rc == RC_OK && u->split < n_splits; u->split++)
            rc = walk(u, i + 1, end, err);
        return rc;
    }
    if (n->imm != BE_KA_TILE)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': the executor knows no loop over axis %u",
                       u->k->name, n->imm);
    do_fresh(u);
    if (!u->g.packed) {
        uint32_t s0 = u->split * KX_SPLIT;

        lo = lo > s0 ? lo : s0;
        hi = hi < s0 + KX_SPLIT ? hi : s0 + KX_SPLIT;
    }
    for (u->key0 = lo / n->imm2 * n->imm2; rc == RC_OK && u->key0 < hi; u->key0 += n->imm2)
        rc = walk(u, i + 1, end, err);
    return rc;
}

static enum rc walk(struct unit *u, uint32_t i, uint32_t end, struct rc_err *err)
{
    enum rc rc;

    for (; i < end; i = end_of(u->k, i)) {
        switch (u->k->node[i].kind) {
        case BE_KN_GRID:
            if ((rc = walk(u, i + 1, end, err)) != RC_OK)
                return rc;
            break;
        case BE_KN_LOOP:
            if ((rc = walk_loop(u, i, err)) != RC_OK)
                return rc;
            break;
        case BE_KN_BARRIER:  /* one unit, one thread */
        case BE_KN_STAGE_KV: /* keys are read where they are used */
            break;
        case BE_KN_LOAD_ACT:
            load_q(u);
            break;
        case BE_KN_QK:
            do_qk(u);
            break;
        case BE_KN_REL:
            do_rel(u);
            break;
        case BE_KN_MASK:
            do_mask(u);
            break;
        case BE_KN_ONLINE_SOFTMAX:
            do_softmax(u);
            break;
        case BE_KN_PV:
            do_pv(u);
            break;
        case BE_KN_SPLIT_STORE:
            do_split_store(u);
            break;
        case BE_KN_SPLIT_MERGE:
            do_merge(u);
            break;
        case BE_KN_REDUCE:
            join(u, u->m, kx_fold(u->l), u->a_sum);
            break;
        case BE_KN_STORE:
            do_store(u);
            break;
        default:
            return rc_fail(err, RC_INTERNAL, "kernel '%s': the executor knows no node %s",
                           u->k->name, be_knode_name(u->k->node[i].kind));
        }
    }
    return RC_OK;
}

static enum rc run_row(struct unit *u, uint32_t n_heads, uint32_t n_kv_heads, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (u->head = 0; rc == RC_OK && u->head < n_heads; u->head++) {
        u->kv_head = u->head / (n_heads / n_kv_heads);
        u->bm = KX_AT_NONE;
        u->bl = 0;
        memset(u->b_sum, 0, sizeof(u->b_sum));
        rc = walk(u, 0, u->k->n_nodes, err);
    }
    return rc;
}

static enum rc run_paged(struct unit *u, struct rc_err *err)
{
    const struct kx_attn *a = u->a;
    enum rc rc = RC_OK;

    for (uint32_t t = 0; t < a->n_tiles; t++) {
        const struct kx_qtile *tile = KX_AT(const struct kx_qtile, a->tiles) + t;
        const struct kx_seq *s = KX_AT(const struct kx_seq, a->seqs) + tile->seq;

        u->pages = KX_AT(const int32_t, a->pages) + s->page0;
        for (uint32_t r = 0; rc == RC_OK && r < tile->n; r++) {
            uint32_t p = s->pos0 + (tile->r0 + r - s->row0);

            u->row = tile->r0 + r;
            u->lo = kx_at_lo(p, a->window);
            u->hi = p + 1;
            rc = run_row(u, a->n_heads, a->kv.n_kv_heads, err);
        }
    }
    return rc;
}

static enum rc run_merge(struct unit *u, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (u->row = 0; rc == RC_OK && u->row < u->a->n_rows; u->row++)
        rc = run_row(u, u->a->n_heads, u->a->kv.n_kv_heads, err);
    return rc;
}

static enum rc run_packed(struct unit *u, struct rc_err *err)
{
    const struct kx_attn_packed *a = u->pk;
    enum rc rc = RC_OK;

    for (uint32_t t = 0; t < a->n_tiles; t++) {
        const struct kx_qtile *tile = KX_AT(const struct kx_qtile, a->tiles) + t;
        const uint32_t *off = KX_AT(const uint32_t, a->off) + tile->seq;

        u->seq_row0 = off[0];
        for (uint32_t r = 0; rc == RC_OK && r < tile->n; r++) {
            uint32_t p = tile->r0 + r - off[0];

            u->row = tile->r0 + r;
            u->lo = kx_at_lo_packed(p, a->radius);
            u->hi = kx_at_hi_packed(p, a->radius, off[1] - off[0]);
            rc = run_row(u, a->n_heads, a->n_kv_heads, err);
        }
    }
    return rc;
}

enum rc be_kattn_run(const struct be_kir *k, const void *args, struct rc_err *err)
{
    struct unit u = {.k = k};
    uint32_t hd;

    be_kattn_geo_get(&k->desc, &k->sched, &u.g);
    if (u.g.rel)
        u.rel = args;
    if (u.g.packed)
        u.pk = u.g.rel ? &u.rel->p : args;
    else
        u.a = args;
    hd = u.g.packed ? u.pk->head_dim : u.a->kv.head_dim;
    if (hd == 0 || hd > BE_KATTN_MAX_DIM || (u.g.hd && hd != u.g.hd) || u.g.key_tile > 64)
        return rc_fail(err, RC_INVALID, "kernel '%s': head_dim %u, expected %u", k->name, hd,
                       u.g.hd ? u.g.hd : BE_KATTN_MAX_DIM);
    if (!u.g.packed && !u.g.merge && u.a->kv.dtype != k->desc.kv_dtype)
        return rc_fail(err, RC_INVALID, "kernel '%s': keys of type %u, expected %u", k->name,
                       u.a->kv.dtype, k->desc.kv_dtype);
    u.hd = hd;
    u.half = k->desc.numerics == BE_KNUM_FAST;
    u.tf32 = k->desc.numerics == BE_KNUM_TF32;
    u.base2 = u.g.mma && u.g.packed;
    return u.g.packed ? run_packed(&u, err) : u.g.merge ? run_merge(&u, err) : run_paged(&u, err);
}
