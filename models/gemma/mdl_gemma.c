/* mdl_gemma.c - Gemma 3 text: its weights, its memory and its forward pass.
 *
 * Layer:  x += post_attn_norm(attn(attn_norm(x)));  x += post_ffn_norm(ffn(ffn_norm(x)))
 * with RMS norms before and after each half, RMS norms on q and k per head, GeGLU,
 * five sliding layers for one global one, tied head. The pass is straight-line
 * calls on rows; it allocates nothing and knows no device.
 *
 * Always true: after the last layer's keys are written, only the rows whose logits
 * are wanted are carried on (a row never depends on another row's later half).
 * Source: gemma.md 2; docs/models/gemma3.md. Tests: tests/models/test_mdl_gemma*.c
 */
#include "mdl_gemma.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ weights */

/* One row per weight of a layer; D/Q/K/F/N name widths, see width(). */
static const struct {
    const char *hf, *gguf;
    size_t at;
    char rows, cols; /* rows 0: a vector of cols; such vectors are norms */
} layer_weights[] = {
#define AT(f) offsetof(struct gemma_layer, f)
    {"input_layernorm", "attn_norm", AT(attn_norm), 0, 'D'},
    {"self_attn.q_proj", "attn_q", AT(q), 'Q', 'D'},
    {"self_attn.k_proj", "attn_k", AT(k), 'K', 'D'},
    {"self_attn.v_proj", "attn_v", AT(v), 'K', 'D'},
    {"self_attn.q_norm", "attn_q_norm", AT(q_norm), 0, 'N'},
    {"self_attn.k_norm", "attn_k_norm", AT(k_norm), 0, 'N'},
    {"self_attn.o_proj", "attn_output", AT(o), 'D', 'Q'},
    {"post_attention_layernorm", "post_attention_norm", AT(post_attn_norm), 0, 'D'},
    {"pre_feedforward_layernorm", "ffn_norm", AT(ffn_norm), 0, 'D'},
    {"mlp.gate_proj", "ffn_gate", AT(gate), 'F', 'D'},
    {"mlp.up_proj", "ffn_up", AT(up), 'F', 'D'},
    {"mlp.down_proj", "ffn_down", AT(down), 'D', 'F'},
    {"post_feedforward_layernorm", "post_ffw_norm", AT(post_ffn_norm), 0, 'D'},
#undef AT
};

static uint64_t width(const struct gemma *g, char c)
{
    switch (c) {
    case 'Q':
        return (uint64_t)g->n_heads * g->head_dim;
    case 'K':
        return (uint64_t)g->n_kv_heads * g->head_dim;
    case 'F':
        return g->d_ff;
    case 'N':
        return g->head_dim;
    default:
        return g->d_model;
    }
}

static enum rc plan_layer(struct mdl *m, struct gemma *g, uint32_t l, struct rc_err *err)
{
    bool gguf = mdl_file_format(m->file) == MDL_GGUF;
    char name[128];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(layer_weights) / sizeof(*layer_weights); i++) {
        struct be_weight **slot = (struct be_weight **)((char *)&g->layer[l] + layer_weights[i].at);
        uint64_t cols = width(g, layer_weights[i].cols);

        if (gguf)
            snprintf(name, sizeof(name), "blk.%u.%s.weight", l, layer_weights[i].gguf);
        else
            snprintf(name, sizeof(name), "%slayers.%u.%s.weight", g->prefix, l,
                     layer_weights[i].hf);
        rc = layer_weights[i].rows
                 ? mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2,
                                   width(g, layer_weights[i].rows), cols, 0, slot, err)
                 : mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, cols, 0, g->norm_add, slot,
                                   err);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc plan(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    bool gguf = mdl_file_format(m->file) == MDL_GGUF;
    char name[96];
    uint32_t l;
    enum rc rc;

    snprintf(name, sizeof(name), "%s%s", gguf ? "token_embd" : g->prefix,
             gguf ? ".weight" : "embed_tokens.weight");
    if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_EMBED | (g->tied ? BE_USE_LINEAR : 0), 2,
                              m->info.vocab_size, g->d_model, 0, &g->embed, err)) != RC_OK)
        return rc;
    for (l = 0; l < g->n_layers; l++)
        if ((rc = plan_layer(m, g, l, err)) != RC_OK)
            return rc;
    snprintf(name, sizeof(name), "%s%s", gguf ? "output_norm" : g->prefix,
             gguf ? ".weight" : "norm.weight");
    if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, g->d_model, 0, g->norm_add,
                              &g->out_norm, err)) != RC_OK ||
        g->tied)
        return rc;
    /* beside the decoder: "language_model.model." has "language_model.lm_head." */
    snprintf(name, sizeof(name), "%slm_head.weight",
             strcmp(g->prefix, "language_model.model.") == 0 ? "language_model." : "");
    return mdl_plan_weight(&m->plan, gguf ? "output.weight" : name, BE_USE_LINEAR, 2,
                           m->info.vocab_size, g->d_model, 0, &g->head, err);
}

/* ------------------------------------------------------------------- memory */

/* Class 0 holds the global layers, class 1 the sliding ones; a model with one kind
 * only has one class. */
static uint32_t number_classes(struct gemma *g, uint32_t *windows)
{
    static const enum gemma_kind order[] = {GEMMA_FULL, GEMMA_SLIDING};
    uint32_t n = 0, l, k;

    for (k = 0; k < 2; k++) {
        bool seen = false;

        for (l = 0; l < g->n_layers; l++)
            if (g->layer[l].kind == order[k]) {
                g->layer[l].cls = n;
                seen = true;
            }
        if (seen)
            windows[n++] = order[k] == GEMMA_SLIDING ? g->window : 0;
    }
    return n;
}

static enum rc fit_kv(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    struct be_kv_layer layers[GEMMA_MAX_LAYERS];
    struct mdl_kv_class cls[BE_KV_CLASSES] = {{0}};
    uint32_t windows[BE_KV_CLASSES], l, c, want = m->opts.ctx_tokens;
    struct be_kv_desc d = {.n_layers = g->n_layers,
                           .page_tokens = GEMMA_PAGE_TOKENS,
                           .layers = layers,
                           .dtype = m->opts.kv_dtype};
    enum rc rc;

    /* a backend that lacks Q8_0 says so when the cache is made */
    if (d.dtype != BE_F16 && d.dtype != BE_F32 && d.dtype != BE_Q8_0)
        return rc_fail(err, RC_INVALID, "the KV cache's type must be F16, F32 or Q8_0");
    d.n_classes = number_classes(g, windows);
    for (l = 0; l < g->n_layers; l++)
        layers[l] = (struct be_kv_layer){
            .cls = g->layer[l].cls, .n_kv_heads = g->n_kv_heads, .head_dim = g->head_dim};
    for (c = 0; c < d.n_classes; c++) {
        cls[c].window = windows[c];
        if ((cls[c].page_bytes = be_kv_page_bytes(&d, c)) == 0)
            return rc_fail(err, RC_LIMIT, "a page of the KV cache is beyond any memory");
    }
    if (want == 0 || want > g->train_ctx)
        want = g->train_ctx;
    if ((rc = mdl_kv_fit(&m->geo, &m->info.ctx_tokens, d.page_tokens, cls, d.n_classes,
                         m->opts.kv_bytes, want, g->max_rows, m->opts.max_seqs, err)) != RC_OK)
        return rc;
    m->info.max_input_tokens = m->info.ctx_tokens;
    for (c = 0; c < d.n_classes; c++)
        d.n_pages[c] = m->geo.cls[c].n_pages;
    if ((rc = be_kv_new(m->be, &d, &m->kv, err)) != RC_OK)
        rc_wrap(err, "KV cache");
    return rc;
}

static enum rc fit(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    uint32_t qw = g->n_heads * g->head_dim, kw = g->n_kv_heads * g->head_dim, rows, outs;
    enum rc rc;

    g->max_out = outs = m->opts.max_seqs;
    g->max_rows = rows = m->opts.batch_tokens > outs ? m->opts.batch_tokens : outs;
    {
        const struct {
            uint32_t rows, cols;
            struct be_tensor **slot;
        } want[] = {
            {rows, g->d_model, &g->x},
            {rows, g->d_model, &g->h},
            {rows, qw, &g->q},
            {rows, kw, &g->k},
            {rows, kw, &g->v},
            {rows, qw, &g->att},
            {rows, g->d_ff, &g->ff},
            {rows, g->d_model, &g->t},
            {outs, qw, &g->tail_att},
            {outs, g->d_model, &g->tail_x},
            {outs, m->info.vocab_size, &g->logits},
        };
        size_t i;

        for (i = 0; i < sizeof(want) / sizeof(*want); i++)
            if ((rc = mdl_plan_tensor(&m->plan, want[i].rows, want[i].cols, want[i].slot, err)) !=
                RC_OK)
                return rc;
    }
    return fit_kv(m, g, err);
}

/* ------------------------------------------------------------- forward pass */

/* Keys and values of layer l into the cache, attention over it into g->att. */
static enum rc attend(struct mdl *m, struct gemma *g, uint32_t l, const struct mdl_batch *b,
                      bool keys_only, struct rc_err *err)
{
    struct gemma_layer *w = &g->layer[l];
    struct be_rms_norm_args norm = {
        .x = g->x, .w = w->attn_norm, .out = g->h, .n = b->n_rows, .eps = g->norm_eps};
    struct be_linear_args qkv = {.x = g->h, .n = b->n_rows, .n_parts = 3, .epi = BE_EPI_NONE};
    struct be_rope_args rope = {.x = g->q,
                                .pos = b->pos,
                                .n = b->n_rows,
                                .n_heads = g->n_heads,
                                .head_dim = g->head_dim,
                                .theta = g->theta[w->kind],
                                .factor = g->rope_factor[w->kind],
                                .norm_w = w->q_norm,
                                .norm_eps = g->norm_eps};
    struct be_kv_write_args kv = {
        .kv = m->kv, .layer = l, .k = g->k, .v = g->v, .seqs = b->seqs, .n_seqs = b->n_seqs};
    struct be_attention_args att = {.q = g->q,
                                    .out = g->att,
                                    .kv = m->kv,
                                    .layer = l,
                                    .n_heads = g->n_heads,
                                    .scale = g->score_scale,
                                    .window = w->kind == GEMMA_SLIDING ? g->window : 0,
                                    .seqs = b->seqs,
                                    .n_seqs = b->n_seqs};
    enum rc rc;

    qkv.part[0].w = w->k;
    qkv.part[0].out = g->k;
    qkv.part[1].w = w->v;
    qkv.part[1].out = g->v;
    qkv.part[2].w = w->q;
    qkv.part[2].out = g->q;
    if (keys_only)
        qkv.n_parts = 2;
    if ((rc = be_rms_norm(m->be, &norm, err)) != RC_OK ||
        (rc = be_linear(m->be, &qkv, err)) != RC_OK ||
        (!keys_only && (rc = be_rope(m->be, &rope, err)) != RC_OK))
        return rc;
    rope.x = g->k;
    rope.n_heads = g->n_kv_heads;
    rope.norm_w = w->k_norm;
    if ((rc = be_rope(m->be, &rope, err)) != RC_OK || (rc = be_kv_write(m->be, &kv, err)) != RC_OK)
        return rc;
    return keys_only ? RC_OK : be_attention(m->be, &att, err);
}

static enum rc project(struct be_ctx *be, const struct be_tensor *x, const struct be_weight *w,
                       struct be_tensor *out, uint32_t n, struct rc_err *err)
{
    struct be_linear_args a = {.x = x, .n = n, .n_parts = 1, .epi = BE_EPI_NONE};

    a.part[0].w = w;
    a.part[0].out = out;
    return be_linear(be, &a, err);
}

/* x += post_attn_norm(o(att)), then the feed-forward half. */
static enum rc finish_layer(struct mdl *m, struct gemma *g, uint32_t l, struct be_tensor *x,
                            struct be_tensor *att, uint32_t n, struct rc_err *err)
{
    struct gemma_layer *w = &g->layer[l];
    struct be_rms_norm_args norm = {
        .x = g->t, .w = w->post_attn_norm, .add = x, .out = x, .n = n, .eps = g->norm_eps};
    struct be_linear_args glu = {.x = g->h, .n = n, .n_parts = 2, .epi = BE_EPI_GEGLU};
    enum rc rc;

    if ((rc = project(m->be, att, w->o, g->t, n, err)) != RC_OK ||
        (rc = be_rms_norm(m->be, &norm, err)) != RC_OK)
        return rc;
    norm = (struct be_rms_norm_args){
        .x = x, .w = w->ffn_norm, .out = g->h, .n = n, .eps = g->norm_eps};
    glu.part[0].w = w->gate;
    glu.part[0].out = g->ff;
    glu.part[1].w = w->up;
    if ((rc = be_rms_norm(m->be, &norm, err)) != RC_OK ||
        (rc = be_linear(m->be, &glu, err)) != RC_OK ||
        (rc = project(m->be, g->ff, w->down, g->t, n, err)) != RC_OK)
        return rc;
    norm = (struct be_rms_norm_args){
        .x = g->t, .w = w->post_ffn_norm, .add = x, .out = x, .n = n, .eps = g->norm_eps};
    return be_rms_norm(m->be, &norm, err);
}

/* The rows whose logits are wanted, gathered out of the last layer's middle. */
static enum rc take_tail(struct mdl *m, struct gemma *g, const struct mdl_batch *b,
                         struct rc_err *err)
{
    struct be_gather_args a = {.x = g->att, .rows = b->out_rows, .n = b->n_out, .out = g->tail_att};
    enum rc rc = be_gather(m->be, &a, err);

    if (rc != RC_OK)
        return rc;
    a.x = g->x;
    a.out = g->tail_x;
    return be_gather(m->be, &a, err);
}

static enum rc head(struct mdl *m, struct gemma *g, uint32_t n, const float **logits,
                    struct rc_err *err)
{
    struct be_rms_norm_args norm = {
        .x = g->tail_x, .w = g->out_norm, .out = g->h, .n = n, .eps = g->norm_eps};
    struct be_softcap_args cap = {.x = g->logits, .n = n, .cap = g->softcap};
    enum rc rc;

    if ((rc = be_rms_norm(m->be, &norm, err)) != RC_OK ||
        (rc = project(m->be, g->h, g->tied ? g->embed : g->head, g->logits, n, err)) != RC_OK ||
        (g->softcap > 0 && (rc = be_softcap(m->be, &cap, err)) != RC_OK))
        return rc;
    if (!logits) /* who draws from them or reads them waits */
        return RC_OK;
    if (!g->host_logits) {
        if ((rc = be_sync(m->be, err)) != RC_OK)
            return rc;
        *logits = be_tensor_view(m->be, g->logits);
        return RC_OK;
    }
    rc = be_tensor_read(m->be, g->logits, 0, n, g->host_logits, err);
    *logits = g->host_logits;
    return rc;
}

static const struct be_tensor *logits_get(const struct mdl *m, float **host)
{
    const struct gemma *g = m->state;

    if (host)
        *host = g->host_logits;
    return g->logits;
}

static enum rc forward(struct mdl *m, const struct mdl_batch *b, const float **logits,
                       struct rc_err *err)
{
    struct gemma *g = m->state;
    struct be_embed_args e = {
        .table = g->embed, .ids = b->ids, .n = b->n_rows, .scale = g->embed_scale, .out = g->x};
    uint32_t l, last = g->n_layers - 1;
    enum rc rc;

    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    for (l = 0; l < last; l++) {
        if ((rc = attend(m, g, l, b, false, err)) != RC_OK ||
            (rc = finish_layer(m, g, l, g->x, g->att, b->n_rows, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, g->x, b->n_rows);
    }
    if ((rc = attend(m, g, last, b, b->n_out == 0, err)) != RC_OK || b->n_out == 0)
        return rc;
    if ((rc = take_tail(m, g, b, err)) != RC_OK ||
        (rc = finish_layer(m, g, last, g->tail_x, g->tail_att, b->n_out, err)) != RC_OK)
        return rc;
    if (m->trace)
        m->trace(m->trace_user, last, g->tail_x, b->n_out);
    return head(m, g, b->n_out, logits, err);
}

static enum rc decode(struct mdl *m, const struct mdl_batch *b, const float **logits,
                      struct rc_err *err)
{
    const struct gemma *g = m->state;
    uint32_t i;

    if (b->n_rows == 0 || b->n_rows > g->max_rows || b->n_seqs == 0 || b->n_seqs > b->n_rows ||
        b->n_out > g->max_out)
        return rc_fail(err, RC_INVALID,
                       "a pass of %u rows, %u sequences, %u outputs; at most %u rows and %u "
                       "outputs",
                       b->n_rows, b->n_seqs, b->n_out, g->max_rows, g->max_out);
    for (i = 0; i < b->n_rows; i++)
        if (b->ids[i] < 0 || b->ids[i] >= (int32_t)m->info.vocab_size || b->pos[i] < 0 ||
            b->pos[i] >= (int32_t)m->info.ctx_tokens)
            return rc_fail(err, RC_INVALID,
                           "row %u: token %d at position %d; expected tokens below %u and "
                           "positions below %u",
                           i, b->ids[i], b->pos[i], m->info.vocab_size, m->info.ctx_tokens);
    for (i = 0; i < b->n_out; i++)
        if (b->out_rows[i] < 0 || b->out_rows[i] >= (int32_t)b->n_rows)
            return rc_fail(err, RC_INVALID, "output row %d of a pass of %u rows", b->out_rows[i],
                           b->n_rows);
    return forward(m, b, logits, err);
}

/* One token at position 0 in page 0 of every class, before anyone owns a page. */
static enum rc self_test(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    int32_t page = 0, id = g->bos, pos = 0, out = 0;
    struct be_seq seq = {.n_rows = 1};
    struct mdl_batch b = {.n_rows = 1,
                          .n_seqs = 1,
                          .n_out = 1,
                          .ids = &id,
                          .pos = &pos,
                          .seqs = &seq,
                          .out_rows = &out};
    const float *logits = NULL;
    uint32_t i;
    enum rc rc;

    if (!be_tensor_view(m->be, g->logits) &&
        !(g->host_logits = malloc((size_t)g->max_out * m->info.vocab_size * sizeof(float))))
        return rc_fail(err, RC_NOMEM, "no memory for %u rows of logits", g->max_out);
    for (i = 0; i < BE_KV_CLASSES; i++)
        seq.pages[i] = &page;
    if ((rc = decode(m, &b, &logits, err)) != RC_OK)
        return rc;
    for (i = 0; i < m->info.vocab_size; i++)
        if (!isfinite(logits[i]))
            return rc_fail(err, RC_FORMAT, "the model's first logits are not finite (token %u)", i);
    return RC_OK;
}

static void gemma_free(struct mdl *m)
{
    struct gemma *g = m->state;

    free(g->host_logits);
    free(g);
    m->state = NULL;
}

static const char *const hf_archs[] = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration",
                                       "gemma3_text", "gemma3", NULL};
static const char *const gguf_archs[] = {"gemma3", NULL};

const struct mdl_family mdl_gemma3 = {
    .name = "gemma3",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .config = mdl_gemma_config,
    .plan = plan,
    .fit = fit,
    .self_test = self_test,
    .free = gemma_free,
    .decode = decode,
    .logits = logits_get,
    .chat = mdl_gemma_chat,
};
