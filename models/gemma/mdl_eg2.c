/* mdl_eg2.c - EmbeddingGemma 2: the forward pass and the family's table.
 *
 *   x = x0 = table[id] * sqrt(d_model), media rows as their tower gives them
 *   x += post_attn_norm(o(attention(attn_norm(x))));  x += post_ffn_norm(ffn(ffn_norm(x)))
 *   x += ple_norm(ple_proj(gelu(ple_gate(x)) * norm(x0 M[layer]^T)));  x *= layer_scalar
 *   vector = project(mean over all tokens of out_norm(x)), divided by its length
 *
 * over packed sequences, two-way attention, no padding. Source: gemma.md 8; the projection
 * commutes with the mean and is made once a sequence, behind it.
 * Always true: a sequence's vector is the same bytes alone, in a batch, or when a big batch was
 * cut into several passes; passes allocate nothing; a stopped pass leaves nothing behind.
 * Tests: tests/models/test_mdl_eg2*.c
 */
#include "mdl_eg2.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pass {
    struct mdl *m;
    struct eg2 *g;
    const struct mdl_pass *in;
    uint32_t n; /* rows: in's, or one of each sequence once they are pooled */
};

static struct be_tensor *buf(const struct eg2 *g, size_t role)
{
    return g->buf[g->buf_of[role]];
}

static enum rc project(const struct pass *p, const struct be_tensor *x, const struct be_weight *w,
                       struct be_tensor *out, enum be_epi epi, struct rc_err *err)
{
    return mdl_dense(p->m->be, x, w, NULL, out, p->n, epi, err);
}

/* out = norm(x) * w, or add to the residual stream */
static enum rc norm(const struct pass *p, const struct be_tensor *x, const struct be_weight *w,
                    const struct be_tensor *add, struct be_tensor *out, float eps,
                    struct rc_err *err)
{
    return mdl_rms_norm(p->m->be, x, w, add, out, p->n, eps, err);
}

/* Norm of each head, then rotation; theta 0 = the norm alone. */
static enum rc heads(const struct pass *p, struct be_tensor *x, uint32_t n_heads,
                     const struct gemma_geo *geo, const struct be_weight *w, float theta,
                     struct rc_err *err)
{
    struct be_rope_args a = {.x = x,
                             .pos = p->in->pos,
                             .n = p->n,
                             .n_heads = n_heads,
                             .head_dim = geo->head_dim,
                             .theta = theta,
                             .factor = 1,
                             .norm_w = w,
                             .norm_eps = p->g->text.norm_eps};

    return be_rope(p->m->be, &a, err);
}

static enum rc attention(const struct pass *p, const struct gemma_layer *w, struct rc_err *err)
{
    struct eg2 *g = p->g;
    const struct gemma_geo *geo = &g->text.geo[w->kind];
    struct be_tensor *h = buf(g, EG2_H), *q = buf(g, EG2_Q + w->kind), *k = buf(g, EG2_K + w->kind),
                     *v = buf(g, EG2_V + w->kind);
    struct be_linear_args qkv = {.x = h, .n = p->n, .n_parts = 3, .epi = BE_EPI_NONE};
    struct be_attention_packed_args a = {
        .q = q,
        .k = k,
        .v = v,
        .out = buf(g, EG2_ATT + w->kind),
        .offsets = p->in->offsets,
        .n_seqs = p->in->n_seqs,
        .n_heads = g->text.n_heads,
        .n_kv_heads = geo->n_kv_heads,
        .head_dim = geo->head_dim,
        .scale = 1,
        .radius = w->kind == GEMMA_SLIDING ? (int32_t)g->text.window : -1};
    enum rc rc;

    qkv.part[0].w = w->q;
    qkv.part[0].out = q;
    qkv.part[1].w = w->k;
    qkv.part[1].out = k;
    qkv.part[2].w = w->v;
    qkv.part[2].out = v;
    if ((rc = norm(p, g->x, w->attn_norm, NULL, h, g->text.norm_eps, err)) != RC_OK ||
        (rc = be_linear(p->m->be, &qkv, err)) != RC_OK ||
        (rc = heads(p, q, g->text.n_heads, geo, w->q_norm, geo->theta, err)) != RC_OK ||
        (rc = heads(p, k, geo->n_kv_heads, geo, w->k_norm, geo->theta, err)) != RC_OK ||
        (rc = heads(p, v, geo->n_kv_heads, geo, geo->ones.w, 0, err)) != RC_OK ||
        (rc = be_attention_packed(p->m->be, &a, err)) != RC_OK ||
        (rc = project(p, a.out, w->o, buf(g, EG2_T), BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return norm(p, buf(g, EG2_T), w->post_attn_norm, g->x, g->x, g->text.norm_eps, err);
}

static enum rc feed_forward(const struct pass *p, const struct gemma_layer *w, struct rc_err *err)
{
    struct eg2 *g = p->g;
    struct be_linear_args glu = {.x = buf(g, EG2_H), .n = p->n, .n_parts = 2, .epi = BE_EPI_GEGLU};
    enum rc rc;

    glu.part[0].w = w->gate;
    glu.part[0].out = buf(g, EG2_FF);
    glu.part[1].w = w->up;
    if ((rc = norm(p, g->x, w->ffn_norm, NULL, buf(g, EG2_H), g->text.norm_eps, err)) != RC_OK ||
        (rc = be_linear(p->m->be, &glu, err)) != RC_OK ||
        (rc = project(p, buf(g, EG2_FF), w->down, buf(g, EG2_T), BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return norm(p, buf(g, EG2_T), w->post_ffn_norm, g->x, g->x, g->text.norm_eps, err);
}

/* The layer's own input: its rows of the projection are scaled by d_model^-0.5 before the norm;
 * the norm's eps is all that sees that factor, and takes it. */
static enum rc own_input(const struct pass *p, uint32_t l, struct rc_err *err)
{
    struct eg2 *g = p->g;
    const struct gemma_layer *w = &g->text.layer[l];
    struct be_tensor *gate = buf(g, EG2_GATE), *ple = buf(g, EG2_PLE);
    struct be_scale_args mul = {.x = gate, .y = ple, .n = p->n, .scale = 1};
    struct be_scale_args scale = {.x = g->x, .n = p->n, .scale = w->scalar};
    enum rc rc;

    if ((rc = project(p, g->x0, g->ple_ctx[l], ple, BE_EPI_NONE, err)) != RC_OK ||
        (rc = norm(p, ple, g->text.ple_model_norm, NULL, ple,
                   g->text.norm_eps * (float)g->text.d_model, err)) != RC_OK ||
        (rc = project(p, g->x, w->ple_gate, gate, BE_EPI_GELU_TANH, err)) != RC_OK ||
        (rc = be_scale(p->m->be, &mul, err)) != RC_OK ||
        (rc = project(p, gate, w->ple_proj, buf(g, EG2_T), BE_EPI_NONE, err)) != RC_OK ||
        (rc = norm(p, buf(g, EG2_T), w->ple_norm, g->x, g->x, g->text.norm_eps, err)) != RC_OK)
        return rc;
    return w->scalar != 1 ? be_scale(p->m->be, &scale, err) : RC_OK;
}

static enum rc layers(const struct pass *p, struct rc_err *err)
{
    uint32_t l;
    enum rc rc;

    for (l = 0; l < p->g->text.n_layers; l++) {
        if ((rc = mdl_encode_stopped(p->m, err)) != RC_OK ||
            (rc = attention(p, &p->g->text.layer[l], err)) != RC_OK ||
            (rc = feed_forward(p, &p->g->text.layer[l], err)) != RC_OK ||
            (rc = own_input(p, l, err)) != RC_OK)
            return rc;
        if (p->m->trace)
            p->m->trace(p->m->trace_user, l, p->g->x, p->n);
    }
    return RC_OK;
}

static enum rc pool(const struct pass *p, float *out, struct rc_err *err)
{
    struct eg2 *g = p->g;
    struct be_tensor *h = buf(g, EG2_H);
    uint32_t n_seqs = p->in->n_seqs, s, dim = p->m->info.embed_dim;
    struct be_pool_args mean = {.x = h,
                                .offsets = p->in->offsets,
                                .n_seqs = n_seqs,
                                .kind = BE_POOL_MEAN,
                                .out = g->pooled};
    struct pass vectors = {.m = p->m, .g = g, .in = p->in, .n = n_seqs};
    double length;
    enum rc rc;

    if ((rc = norm(p, g->x, g->text.out_norm, NULL, h, g->text.norm_eps, err)) != RC_OK ||
        (rc = be_pool(p->m->be, &mean, err)) != RC_OK ||
        (rc = project(&vectors, g->pooled, g->project, g->out, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_tensor_read(p->m->be, g->out, 0, n_seqs, out, err)) != RC_OK)
        return rc;
    for (s = 0; s < n_seqs; s++) {
        length = mdl_normalize(out + (size_t)s * dim, dim);
        if (!isfinite(length) || length == 0)
            return rc_fail(err, RC_INTERNAL, "sequence %u: a vector of length %g", s, length);
    }
    return RC_OK;
}

/* One medium's soft tokens into its rows of the input, unscaled. */
static enum rc place(const struct pass *p, const struct mdl_encode_media *e, struct rc_err *err)
{
    struct eg2 *g = p->g;
    struct mdl *m = p->m;
    const struct mdl_media *media = e->media;
    uint32_t row = e->row - p->in->row0;
    enum rc rc;

    rc = media->is_sound ? mdl_g4_audio_pass(g->ears, m->be, media, g->soft, m->encode_stop,
                                             m->encode_stop_user, err)
                         : mdl_g4_vision_pass(g->eyes, m->be, media, g->soft, m->encode_stop,
                                              m->encode_stop_user, err);
    if (rc != RC_OK ||
        (rc = be_tensor_write(m->be, g->x, row, media->n_tokens, g->soft, err)) != RC_OK)
        return rc;
    return be_tensor_write(m->be, g->x0, row, media->n_tokens, g->soft, err);
}

static enum rc embed(const struct pass *p, struct rc_err *err)
{
    const struct mdl_pass *in = p->in;
    struct eg2 *g = p->g;
    struct be_embed_args e = {.table = g->text.embed,
                              .ids = g->ids,
                              .n = p->n,
                              .scale = (float)sqrt((double)g->text.d_model),
                              .out = g->x};
    uint32_t i;
    enum rc rc;

    memcpy(g->ids, in->ids, p->n * sizeof(*g->ids));
    for (i = 0; i < in->n_media; i++)
        memset(g->ids + (in->media[i].row - in->row0), 0,
               in->media[i].media->n_tokens * sizeof(*g->ids));
    if ((rc = be_embed(p->m->be, &e, err)) != RC_OK)
        return rc;
    e.out = g->x0; /* stays as it is while layers work on x */
    rc = be_embed(p->m->be, &e, err);
    for (i = 0; rc == RC_OK && i < in->n_media; i++)
        rc = place(p, &in->media[i], err);
    return rc;
}

static enum rc encode(struct mdl *m, const struct mdl_pass *in, float *out, struct rc_err *err)
{
    const struct pass p = {.m = m, .g = m->state, .in = in, .n = in->n_rows};
    enum rc rc;

    if ((rc = embed(&p, err)) != RC_OK || (rc = layers(&p, err)) != RC_OK)
        return rc;
    return pool(&p, out, err);
}

/* -------------------------------------------------------------------- media */

static bool is_placeholder(const struct mdl *m, int32_t id)
{
    const struct eg2 *g = m->state;

    return id == g->tok[EG2_IMAGE] || id == g->tok[EG2_SOUND] ||
           (id >= 0 && id == g->tok[EG2_VIDEO]);
}

/* Does the medium fit the rows from r on? */
static bool fits(const struct eg2 *g, const struct mdl_encode_media *e, const int32_t *ids,
                 uint32_t r, uint32_t end)
{
    int32_t soft = g->tok[e->media->is_sound ? EG2_SOUND : EG2_IMAGE];
    uint32_t i;

    if (e->row != r || !(e->media->is_sound ? (const void *)g->ears : (const void *)g->eyes) ||
        e->media->n_tokens == 0 || e->media->n_tokens > end - r)
        return false;
    for (i = 0; i < e->media->n_tokens; i++)
        if (ids[r + i] != soft)
            return false;
    return true;
}

/* Every placeholder has its medium and every medium its placeholders, in order; a list of ids
 * from a client has no media, and a placeholder there would mean nothing. */
static enum rc check_media(const struct mdl *m, uint32_t n_seqs, const int32_t *ids,
                           const uint32_t *offsets, const struct mdl_encode_media *media,
                           uint32_t n_media, struct rc_err *err)
{
    const struct eg2 *g = m->state;
    uint32_t s, r, k = 0;

    for (s = 0; s < n_seqs; s++)
        for (r = offsets[s]; r < offsets[s + 1]; r++) {
            if (!is_placeholder(m, ids[r]))
                continue;
            if (k == n_media || !fits(g, &media[k], ids, r, offsets[s + 1])) {
                rc_fail(err, RC_INVALID,
                        "sequence %u: token %d in row %u stands for a picture, a sound or a video, "
                        "and none of that size is given there",
                        s, ids[r], r);
                if (err)
                    err->item = (int32_t)s;
                return RC_INVALID;
            }
            r += media[k++].media->n_tokens - 1;
        }
    if (k < n_media)
        return rc_fail(err, RC_INVALID, "medium %u of %u has no placeholders in row %u", k, n_media,
                       media[k].row);
    return RC_OK;
}

static enum rc no_tower(const char *what, struct rc_err *err)
{
    return rc_fail_what(err, RC_UNSUPPORTED, what, "this checkpoint has no %s tower", what);
}

static enum rc media_image(const struct mdl *m, const struct mdl_image *img, struct mdl_media **out,
                           struct rc_err *err)
{
    const struct eg2 *g = m->state;

    return g->eyes ? mdl_g4_vision_media(g->eyes, img, out, err) : no_tower("vision", err);
}

static enum rc media_sound(const struct mdl *m, const struct mdl_sound *snd, struct mdl_media **out,
                           struct rc_err *err)
{
    const struct eg2 *g = m->state;

    return g->ears ? mdl_g4_audio_media(g->ears, snd, out, err) : no_tower("audio", err);
}

/* Matryoshka sizes of the published checkpoint, 512, 256 and 128 of 768, are two thirds, a third
 * and a sixth; no file says them, so the rule stands for checkpoints of other widths too. */
enum rc mdl_gemma_dims_check(const struct mdl *m, uint32_t dims, struct rc_err *err)
{
    uint32_t full = m->info.embed_dim, sixth = full % 6 == 0 ? full / 6 : 0;

    if (dims == full ||
        (dims > 0 && sixth > 0 && (dims == sixth || dims == 2 * sixth || dims == 4 * sixth)))
        return RC_OK;
    if (sixth == 0)
        return rc_fail_what(err, RC_INVALID, "dimensions",
                            "dimensions %u: this model only gives %u", dims, full);
    return rc_fail_what(err, RC_INVALID, "dimensions",
                        "dimensions %u: this model gives %u, %u, %u or %u", dims, full, 4 * sixth,
                        2 * sixth, sixth);
}

/* The shortest input: the tokens of an empty text. */
static enum rc self_test(struct mdl *m, struct rc_err *err)
{
    const struct eg2 *g = m->state;
    const int32_t ids[2] = {g->tok[EG2_BOS], g->tok[EG2_EOS]};
    const uint32_t offsets[2] = {0, 2};
    float *out = calloc(m->info.embed_dim, sizeof(float));
    enum rc rc;

    if (!out)
        return rc_fail(err, RC_NOMEM, "no memory for a vector");
    rc = mdl_encode(m, 1, ids, offsets, out, err);
    free(out);
    if (rc == RC_INTERNAL) /* of the pass's own kind: the numbers are the file's */
        rc_fail(err, rc = RC_FORMAT, "the model's first vector is not finite");
    return rc;
}

static const char *const hf_archs[] = {"EmbeddingGemma2Model", "embedding_gemma2", NULL};
static const char *const gguf_archs[] = {"gemma-embedding2", NULL};

const struct mdl_family mdl_eg2 = {
    .name = "embeddinggemma2",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .gguf_refusal = "EmbeddingGemma 2 is read from safetensors only (config.json, tokenizer.json, "
                    "model.safetensors); convert it back, or fetch the original",
    .recipe = "embeddinggemma2-f32-mean-v1",
    .config = mdl_eg2_config,
    .plan = mdl_eg2_plan,
    .fit = mdl_eg2_fit,
    .shrink = mdl_passes_shrink,
    .self_test = self_test,
    .free = mdl_eg2_free,
    .embed_tokens = mdl_eg2_embed_tokens,
    .encode = encode,
    .media_image = media_image,
    .media_sound = media_sound,
    .check_media = check_media,
    .embed_ordered = mdl_eg2_embed_ordered,
    .is_placeholder = is_placeholder,
    .dims_check = mdl_gemma_dims_check,
};
