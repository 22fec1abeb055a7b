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

/* Gemma's layers work in tensors of the text model: here they share memory. */
static void lend(struct eg2 *g)
{
    struct gemma *t = &g->text;

    t->h = buf(g, EG2_H);
    t->t = buf(g, EG2_T);
    t->ff[0] = buf(g, EG2_FF);
    for (uint32_t k = 0; k < GEMMA_KINDS; k++) {
        t->geo[k].buf = k;
        t->q[k] = buf(g, EG2_Q + k);
        t->k[k] = buf(g, EG2_K + k);
        t->v[k] = buf(g, EG2_V + k);
        t->att[k] = buf(g, EG2_ATT + k);
    }
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

/* The layer's own input: its rows of the projection are scaled by d_model^-0.5 before the norm;
 * the norm's eps is all that sees that factor, and takes it. */
static enum rc own_input(const struct pass *p, uint32_t l, struct rc_err *err)
{
    struct eg2 *g = p->g;
    const struct gemma_layer *w = &g->text.layer[l];
    struct be_tensor *gate = buf(g, EG2_GATE), *ple = buf(g, EG2_PLE);
    struct be_scale_args mul = {.x = gate, .y = ple, .n = p->n, .scale = 1};
    struct be_scale_args scale = {.x = g->text.x, .n = p->n, .scale = w->scalar};
    enum rc rc;

    if ((rc = project(p, g->x0, g->ple_ctx[l], ple, BE_EPI_NONE, err)) != RC_OK ||
        (rc = norm(p, ple, g->text.ple_model_norm, NULL, ple,
                   g->text.norm_eps * (float)g->text.d_model, err)) != RC_OK ||
        (rc = project(p, g->text.x, w->ple_gate, gate, BE_EPI_GELU_TANH, err)) != RC_OK ||
        (rc = be_scale(p->m->be, &mul, err)) != RC_OK ||
        (rc = project(p, gate, w->ple_proj, buf(g, EG2_T), BE_EPI_NONE, err)) != RC_OK ||
        (rc = norm(p, buf(g, EG2_T), w->ple_norm, g->text.x, g->text.x, g->text.norm_eps, err)) !=
            RC_OK)
        return rc;
    return w->scalar != 1 ? be_scale(p->m->be, &scale, err) : RC_OK;
}

static enum rc layers(const struct pass *p, struct rc_err *err)
{
    struct gemma *t = &p->g->text;
    const struct gemma_rows r = {.x = t->x, .n = p->n, .pos = p->in->pos};
    uint32_t l;
    enum rc rc;

    lend(p->g);
    for (l = 0; l < t->n_layers; l++) {
        if ((rc = mdl_encode_stopped(p->m, err)) != RC_OK ||
            (rc = mdl_gemma_project(p->m, t, l, &r, true, err)) != RC_OK ||
            (rc = mdl_gemma_attend_packed(p->m, t, l, t->window, p->in, err)) != RC_OK ||
            (rc = mdl_gemma_feed(p->m, t, l, &r, err)) != RC_OK ||
            (rc = own_input(p, l, err)) != RC_OK)
            return rc;
        if (p->m->trace)
            p->m->trace(p->m->trace_user, l, t->x, p->n);
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

    if ((rc = norm(p, g->text.x, g->text.out_norm, NULL, h, g->text.norm_eps, err)) != RC_OK ||
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
        (rc = be_tensor_write(m->be, g->text.x, row, media->n_tokens, g->soft, err)) != RC_OK)
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
                              .out = g->text.x};
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
