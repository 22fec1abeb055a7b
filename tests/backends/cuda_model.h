/* cuda_model.h - a decoder of two layers made of be.h calls, for the tests of the cuda
 * backend: its own weights and cache, one step at a time, no file. */
#ifndef INFERD_CUDA_MODEL_H
#define INFERD_CUDA_MODEL_H

#include "cuda_test.h"

enum { TM_D = 256, TM_V = 600, TM_HD = 64, TM_LAYERS = 2, TM_SEQS = 4, TM_PAGES = 32 };

struct tm {
    struct be_ctx *c;
    struct be_weight *embed, *norm, *q[TM_LAYERS], *k[TM_LAYERS], *v[TM_LAYERS], *o[TM_LAYERS],
        *gate[TM_LAYERS], *up[TM_LAYERS], *down[TM_LAYERS], *hnorm;
    struct be_tensor *x, *h, *tq, *tk, *tv, *att, *t, *ff, *logits;
    struct be_kv *kv;
    int32_t pages[TM_SEQS][TM_PAGES];
};

/* Every object in the order of making, so that tests can fail any of them. */
static inline enum rc tm_init(struct tm *m, struct be_ctx *c, struct rc_err *err)
{
    static float ones[TM_D];
    const struct be_kv_layer layers[TM_LAYERS] = {{0, 2, TM_HD}, {1, 2, TM_HD}};
    struct be_kv_desc d = {.n_layers = TM_LAYERS,
                           .n_classes = 2,
                           .page_tokens = 16,
                           .layers = layers,
                           .n_pages = {TM_SEQS * TM_PAGES, TM_SEQS * TM_PAGES},
                           .dtype = BE_F16};
    uint64_t seed = test_seed;
    enum rc rc = RC_OK;

    test_seed = 77;
    memset(m, 0, sizeof(*m));
    m->c = c;
#define TM_W(slot, type, rows, cols, use_)                  \
    if (rc == RC_OK) {                                      \
        size_t n_;                                          \
        uint8_t *p_ = random_blocks(type, rows, cols, &n_); \
        struct be_weight_desc w_ = {.name = #slot,          \
                                    .dtype = type,          \
                                    .n_rows = rows,         \
                                    .n_cols = cols,         \
                                    .data = p_,             \
                                    .n_bytes = n_,          \
                                    .use = use_};           \
        rc = be_weight_new(c, &w_, &m->slot, err);          \
        free(p_);                                           \
    }
#define TM_T(slot, rows, cols) \
    if (rc == RC_OK)           \
        rc = be_tensor_new(c, rows, cols, &m->slot, err);
    TM_W(embed, BE_Q8_0, TM_V, TM_D, BE_USE_EMBED | BE_USE_LINEAR)
    for (int i = 0; i < TM_D; i++)
        ones[i] = 1;
    if (rc == RC_OK) {
        struct be_weight_desc w = {.name = "norm",
                                   .dtype = BE_F32,
                                   .n_rows = 1,
                                   .n_cols = TM_D,
                                   .data = ones,
                                   .n_bytes = sizeof(ones),
                                   .use = BE_USE_VECTOR};

        rc = be_weight_new(c, &w, &m->norm, err);
        w.n_cols = TM_HD;
        w.n_bytes = TM_HD * 4;
        if (rc == RC_OK)
            rc = be_weight_new(c, &w, &m->hnorm, err);
    }
    for (int l = 0; l < TM_LAYERS; l++) {
        TM_W(q[l], BE_Q4_K, TM_D, TM_D, BE_USE_LINEAR)
        TM_W(k[l], BE_Q4_K, 128, TM_D, BE_USE_LINEAR)
        TM_W(v[l], BE_Q6_K, 128, TM_D, BE_USE_LINEAR)
        TM_W(o[l], BE_Q4_K, TM_D, TM_D, BE_USE_LINEAR)
        TM_W(gate[l], BE_Q4_0, 512, TM_D, BE_USE_LINEAR)
        TM_W(up[l], BE_Q4_0, 512, TM_D, BE_USE_LINEAR)
        TM_W(down[l], BE_F16, TM_D, 512, BE_USE_LINEAR)
    }
    TM_T(x, 64, TM_D)
    TM_T(h, 64, TM_D)
    TM_T(tq, 64, TM_D)
    TM_T(tk, 64, 128)
    TM_T(tv, 64, 128)
    TM_T(att, 64, TM_D)
    TM_T(t, 64, TM_D)
    TM_T(ff, 64, 512)
    TM_T(logits, 64, TM_V)
    if (rc == RC_OK)
        rc = be_kv_new(c, &d, &m->kv, err);
    for (int s = 0; s < TM_SEQS; s++)
        for (int p = 0; p < TM_PAGES; p++)
            m->pages[s][p] = p * TM_SEQS + s;
    test_seed = seed;
    return rc;
}

static inline void tm_deinit(struct tm *m)
{
    struct be_weight **w[] = {&m->embed, &m->norm, &m->hnorm};
    struct be_tensor **t[] = {&m->x,   &m->h, &m->tq, &m->tk,    &m->tv,
                              &m->att, &m->t, &m->ff, &m->logits};

    if (m->kv)
        be_kv_free(m->c, &m->kv);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        be_tensor_free(m->c, t[i]);
    for (int l = TM_LAYERS; l-- > 0;) {
        be_weight_free(m->c, &m->down[l]);
        be_weight_free(m->c, &m->up[l]);
        be_weight_free(m->c, &m->gate[l]);
        be_weight_free(m->c, &m->o[l]);
        be_weight_free(m->c, &m->v[l]);
        be_weight_free(m->c, &m->k[l]);
        be_weight_free(m->c, &m->q[l]);
    }
    for (size_t i = 0; i < sizeof(w) / sizeof(w[0]); i++)
        be_weight_free(m->c, w[i]);
}

static inline enum rc tm_linear(struct tm *m, const struct be_tensor *x, struct be_weight *w,
                                struct be_tensor *out, uint32_t n, struct rc_err *err)
{
    struct be_linear_args a = {.x = x, .n = n, .n_parts = 1};

    a.part[0].w = w;
    a.part[0].out = out;
    return be_linear(m->c, &a, err);
}

static inline enum rc tm_layer(struct tm *m, int l, uint32_t n, const int32_t *pos,
                               const struct be_seq *seqs, uint32_t n_seqs, struct rc_err *err)
{
    struct be_rms_norm_args norm = {.x = m->x, .w = m->norm, .out = m->h, .n = n, .eps = 1e-6f};
    struct be_linear_args qkv = {.x = m->h, .n = n, .n_parts = 3};
    struct be_linear_args glu = {.x = m->h, .n = n, .n_parts = 2, .epi = BE_EPI_GEGLU};
    struct be_rope_args rope = {.x = m->tq,
                                .pos = pos,
                                .n = n,
                                .n_heads = 4,
                                .head_dim = TM_HD,
                                .theta = 10000,
                                .factor = 1,
                                .norm_w = m->hnorm,
                                .norm_eps = 1e-6f};
    struct be_kv_write_args kw = {
        .kv = m->kv, .layer = (uint32_t)l, .k = m->tk, .v = m->tv, .seqs = seqs, .n_seqs = n_seqs};
    struct be_attention_args att = {.q = m->tq,
                                    .out = m->att,
                                    .kv = m->kv,
                                    .layer = (uint32_t)l,
                                    .n_heads = 4,
                                    .scale = 0.125f,
                                    .window = l ? 40 : 0,
                                    .seqs = seqs,
                                    .n_seqs = n_seqs};
    enum rc rc;

    qkv.part[0].w = m->q[l];
    qkv.part[0].out = m->tq;
    qkv.part[1].w = m->k[l];
    qkv.part[1].out = m->tk;
    qkv.part[2].w = m->v[l];
    qkv.part[2].out = m->tv;
    glu.part[0].w = m->gate[l];
    glu.part[0].out = m->ff;
    glu.part[1].w = m->up[l];
    if ((rc = be_rms_norm(m->c, &norm, err)) != RC_OK ||
        (rc = be_linear(m->c, &qkv, err)) != RC_OK || (rc = be_rope(m->c, &rope, err)) != RC_OK)
        return rc;
    rope.x = m->tk;
    rope.n_heads = 2;
    if ((rc = be_rope(m->c, &rope, err)) != RC_OK || (rc = be_kv_write(m->c, &kw, err)) != RC_OK ||
        (rc = be_attention(m->c, &att, err)) != RC_OK ||
        (rc = tm_linear(m, m->att, m->o[l], m->t, n, err)) != RC_OK)
        return rc;
    norm = (struct be_rms_norm_args){
        .x = m->t, .add = m->x, .w = m->norm, .out = m->x, .n = n, .eps = 1e-6f};
    if ((rc = be_rms_norm(m->c, &norm, err)) != RC_OK)
        return rc;
    norm = (struct be_rms_norm_args){.x = m->x, .w = m->norm, .out = m->h, .n = n, .eps = 1e-6f};
    if ((rc = be_rms_norm(m->c, &norm, err)) != RC_OK ||
        (rc = be_linear(m->c, &glu, err)) != RC_OK ||
        (rc = tm_linear(m, m->ff, m->down[l], m->t, n, err)) != RC_OK)
        return rc;
    norm = (struct be_rms_norm_args){
        .x = m->t, .add = m->x, .w = m->norm, .out = m->x, .n = n, .eps = 1e-6f};
    return be_rms_norm(m->c, &norm, err);
}

/* Sequences s0 .. s0 + n_seqs - 1, each `each` tokens from position pos0; all logits stay in
 * m->logits. */
static inline enum rc tm_step(struct tm *m, uint32_t s0, uint32_t n_seqs, uint32_t each,
                              uint32_t pos0, const int32_t *ids, struct rc_err *err)
{
    struct be_embed_args e = {
        .table = m->embed, .ids = ids, .n = n_seqs * each, .scale = 1, .out = m->x};
    struct be_seq seqs[TM_SEQS];
    int32_t pos[64];
    enum rc rc;

    for (uint32_t s = 0; s < n_seqs; s++) {
        seqs[s] = (struct be_seq){.row0 = s * each,
                                  .n_rows = each,
                                  .pos0 = pos0,
                                  .pages = {m->pages[s0 + s], m->pages[s0 + s]}};
        for (uint32_t i = 0; i < each; i++)
            pos[s * each + i] = (int32_t)(pos0 + i);
    }
    rc = be_embed(m->c, &e, err);
    for (int l = 0; rc == RC_OK && l < TM_LAYERS; l++)
        rc = tm_layer(m, l, e.n, pos, seqs, n_seqs, err);
    return rc == RC_OK ? tm_linear(m, m->x, m->embed, m->logits, e.n, err) : rc;
}

#endif
