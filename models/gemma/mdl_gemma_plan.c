/* mdl_gemma_plan.c - what a Gemma model holds: names and shapes of its weights, sizes of
 * its activations and of its cache.
 *
 * One table of names serves all generations; a row says when it applies. Layers that read
 * another layer's keys and values have no k_proj, v_proj, k_norm (a file may carry them:
 * they are not read) and no place in the cache. The table of per-layer embeddings stays in
 * the file (BE_USE_MAPPED): a token needs one row of it.
 * Source: gemma.md 2, 3, 10, 11; docs/models/gemma4.md. Tests: tests/models/test_mdl_gemma*.c
 */
#include "mdl_gemma.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ weights */

/* One row per weight of a layer; D/Q/K/F/N/P name widths, see width(). */
static const struct {
    const char *hf, *gguf;
    size_t at;
    char rows, cols; /* rows 0: a vector of cols; such vectors are norms */
    char when;       /* 0 always, 'k' own keys, 'v' own values, 'p' per-layer embeddings */
} layer_weights[] = {
#define AT(f) offsetof(struct gemma_layer, f)
    {"input_layernorm", "attn_norm", AT(attn_norm), 0, 'D', 0},
    {"self_attn.q_proj", "attn_q", AT(q), 'Q', 'D', 0},
    {"self_attn.k_proj", "attn_k", AT(k), 'K', 'D', 'k'},
    {"self_attn.v_proj", "attn_v", AT(v), 'K', 'D', 'v'},
    {"self_attn.q_norm", "attn_q_norm", AT(q_norm), 0, 'N', 0},
    {"self_attn.k_norm", "attn_k_norm", AT(k_norm), 0, 'N', 'k'},
    {"self_attn.o_proj", "attn_output", AT(o), 'D', 'Q', 0},
    {"post_attention_layernorm", "post_attention_norm", AT(post_attn_norm), 0, 'D', 0},
    {"pre_feedforward_layernorm", "ffn_norm", AT(ffn_norm), 0, 'D', 0},
    {"mlp.gate_proj", "ffn_gate", AT(gate), 'F', 'D', 0},
    {"mlp.up_proj", "ffn_up", AT(up), 'F', 'D', 0},
    {"mlp.down_proj", "ffn_down", AT(down), 'D', 'F', 0},
    {"post_feedforward_layernorm", "post_ffw_norm", AT(post_ffn_norm), 0, 'D', 0},
    {"per_layer_input_gate", "inp_gate", AT(ple_gate), 'P', 'D', 'p'},
    {"per_layer_projection", "proj", AT(ple_proj), 'D', 'P', 'p'},
    {"post_per_layer_input_norm", "post_norm", AT(ple_norm), 0, 'D', 'p'},
#undef AT
};

static uint64_t width(const struct gemma *g, const struct gemma_layer *l, char c)
{
    const struct gemma_geo *geo = &g->geo[l->kind];

    switch (c) {
    case 'Q':
        return (uint64_t)g->n_heads * geo->head_dim;
    case 'K':
        return (uint64_t)geo->n_kv_heads * geo->head_dim;
    case 'F':
        return l->d_ff;
    case 'N':
        return geo->head_dim;
    case 'P':
        return g->d_ple;
    default:
        return g->d_model;
    }
}

static bool applies(const struct gemma *g, const struct gemma_layer *l, char when)
{
    switch (when) {
    case 'k':
        return !l->shared;
    case 'v':
        return !l->shared && !g->geo[l->kind].k_eq_v;
    case 'p':
        return g->d_ple > 0;
    default:
        return true;
    }
}

/* One stored number. GGUF files may leave it out. */
static enum rc read_scalar(struct mdl *m, const struct gemma *g, uint32_t l, float *out,
                           struct rc_err *err)
{
    bool gguf = mdl_file_format(m->file) == MDL_GGUF;
    const uint64_t one[1] = {1};
    const struct mdl_tensor *t;
    char name[128];
    enum rc rc;

    if (gguf)
        snprintf(name, sizeof(name), "blk.%u.layer_output_scale.weight", l);
    else
        snprintf(name, sizeof(name), "%slayers.%u.layer_scalar", g->prefix, l);
    *out = 1;
    if (gguf && !mdl_file_find(m->file, name))
        return RC_OK;
    if ((rc = mdl_file_take(m->file, name, 1, one, &t, err)) != RC_OK)
        return rc;
    if (be_dtype_block(t->dtype) != 1)
        return rc_fail_what(err, RC_UNSUPPORTED, name, "tensor '%s': type %s, expected a float",
                            name, be_dtype_name(t->dtype));
    be_dtype_to_f32(t->dtype, t->data, out, 1);
    m->plan.n_params++;
    return RC_OK;
}

static enum rc plan_layer(struct mdl *m, struct gemma *g, uint32_t l, struct rc_err *err)
{
    bool gguf = mdl_file_format(m->file) == MDL_GGUF;
    struct gemma_layer *layer = &g->layer[l];
    char name[128];
    size_t i;
    enum rc rc;

    for (i = 0; i < sizeof(layer_weights) / sizeof(*layer_weights); i++) {
        struct be_weight **slot = (struct be_weight **)((char *)layer + layer_weights[i].at);
        uint64_t cols = width(g, layer, layer_weights[i].cols);

        if (!applies(g, layer, layer_weights[i].when))
            continue;
        if (gguf)
            snprintf(name, sizeof(name), "blk.%u.%s.weight", l, layer_weights[i].gguf);
        else
            snprintf(name, sizeof(name), "%slayers.%u.%s%s.weight", g->prefix, l,
                     layer_weights[i].when == 'p' && g->ple_prefix ? g->ple_prefix : "",
                     layer_weights[i].hf);
        rc = layer_weights[i].rows
                 ? mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2,
                                   width(g, layer, layer_weights[i].rows), cols, 0, slot, err)
                 : mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, cols, 0, g->norm_add, slot,
                                   err);
        if (rc != RC_OK)
            return rc;
    }
    layer->scalar = 1;
    return g->scalars ? read_scalar(m, g, l, &layer->scalar, err) : RC_OK;
}

enum rc mdl_gemma_plan_layers(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    uint32_t l;
    enum rc rc;

    for (l = 0; l < g->n_layers; l++)
        if ((rc = plan_layer(m, g, l, err)) != RC_OK)
            return rc;
    return RC_OK;
}

enum rc mdl_gemma_plan_one(struct mdl *m, const struct gemma *g, const char *hf, const char *gguf,
                           unsigned use, uint64_t rows, uint64_t cols, struct be_weight **slot,
                           struct rc_err *err)
{
    char name[96];

    if (mdl_file_format(m->file) == MDL_GGUF)
        snprintf(name, sizeof(name), "%s.weight", gguf);
    else
        snprintf(name, sizeof(name), "%s%s.weight", g->prefix, hf);
    return use & BE_USE_VECTOR
               ? mdl_plan_weight(&m->plan, name, use, 1, cols, 0, g->norm_add, slot, err)
               : mdl_plan_weight(&m->plan, name, use, 2, rows, cols, 0, slot, err);
}

enum rc mdl_gemma_plan(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    uint64_t all_ple = (uint64_t)g->n_layers * g->d_ple;
    char name[96];
    enum rc rc;

    if ((rc = mdl_gemma_plan_one(m, g, "embed_tokens", "token_embd",
                                 BE_USE_EMBED | (g->tied ? BE_USE_LINEAR : 0), m->info.vocab_size,
                                 g->d_model, &g->embed, err)) != RC_OK ||
        (rc = mdl_gemma_plan_layers(m, g, err)) != RC_OK ||
        (rc = mdl_gemma_plan_one(m, g, "norm", "output_norm", BE_USE_VECTOR, 1, g->d_model,
                                 &g->out_norm, err)) != RC_OK)
        return rc;
    if (g->d_ple > 0 &&
        ((rc = mdl_gemma_plan_one(m, g, "embed_tokens_per_layer", "per_layer_token_embd",
                                  BE_USE_EMBED | BE_USE_MAPPED, g->ple_vocab, all_ple,
                                  &g->ple_table, err)) != RC_OK ||
         (rc = mdl_gemma_plan_one(m, g, "per_layer_model_projection", "per_layer_model_proj",
                                  BE_USE_LINEAR, all_ple, g->d_model, &g->ple_model, err)) !=
             RC_OK ||
         (rc = mdl_gemma_plan_one(m, g, "per_layer_projection_norm", "per_layer_proj_norm",
                                  BE_USE_VECTOR, 1, g->d_ple, &g->ple_model_norm, err)) != RC_OK))
        return rc;
    if (g->tied)
        return RC_OK;
    /* beside the decoder: "language_model.model." has "language_model.lm_head." */
    snprintf(name, sizeof(name), "%slm_head.weight",
             strcmp(g->prefix, "language_model.model.") == 0 ? "language_model." : "");
    return mdl_plan_weight(&m->plan, mdl_file_format(m->file) == MDL_GGUF ? "output.weight" : name,
                           BE_USE_LINEAR, 2, m->info.vocab_size, g->d_model, 0, &g->head, err);
}

/* ---------------------------------------------------------------- the cache */

enum rc mdl_gemma_share(struct gemma *g, struct rc_err *err)
{
    /* Class 0 holds the global layers, class 1 the sliding ones; a model with one kind only
     * has one class. */
    static const enum gemma_kind order[] = {GEMMA_FULL, GEMMA_SLIDING};
    uint32_t n = 0, l, last[GEMMA_KINDS] = {UINT32_MAX, UINT32_MAX}, cls[GEMMA_KINDS] = {0, 0};
    bool seen[GEMMA_KINDS] = {false, false};

    for (l = 0; l < g->n_layers; l++) {
        g->geo[g->layer[l].kind].used = true;
        if (l < g->n_own)
            seen[g->layer[l].kind] = true;
    }
    for (l = 0; l < GEMMA_KINDS; l++)
        if (seen[order[l]])
            cls[order[l]] = n++;
    for (l = 0; l < g->n_layers; l++) {
        struct gemma_layer *w = &g->layer[l];

        w->cls = cls[w->kind];
        w->shared = l >= g->n_own;
        if (!w->shared)
            last[w->kind] = l;
        else if (last[w->kind] == UINT32_MAX)
            return rc_fail_what(err, RC_FORMAT, "num_kv_shared_layers",
                                "layer %u shares the keys of a %s layer below layer %u, and there "
                                "is none",
                                l, w->kind == GEMMA_FULL ? "global" : "sliding", g->n_own);
        w->kv = last[w->kind];
    }
    return RC_OK;
}

static enum rc fit_kv(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    struct be_kv_layer layers[GEMMA_MAX_LAYERS];
    struct mdl_kv_class cls[BE_KV_CLASSES] = {{0}};
    uint32_t l, c, want = m->opts.ctx_tokens;
    struct be_kv_desc d = {.n_layers = g->n_own,
                           .page_tokens = GEMMA_PAGE_TOKENS,
                           .layers = layers,
                           .dtype = m->opts.kv_dtype};
    enum rc rc;

    /* a backend that lacks Q8_0 says so when the cache is made */
    if (d.dtype != BE_F16 && d.dtype != BE_F32 && d.dtype != BE_Q8_0)
        return rc_fail(err, RC_INVALID, "the KV cache's type must be F16, F32 or Q8_0");
    for (l = 0; l < g->n_own; l++) {
        const struct gemma_layer *w = &g->layer[l];

        layers[l] = (struct be_kv_layer){.cls = w->cls,
                                         .n_kv_heads = g->geo[w->kind].n_kv_heads,
                                         .head_dim = g->geo[w->kind].head_dim};
        if (w->cls + 1 > d.n_classes)
            d.n_classes = w->cls + 1;
        /* A drafter looks one position further back than the next token's query does, from
         * one position earlier (gemma.md 4). */
        cls[w->cls].window = w->kind == GEMMA_SLIDING ? g->window + (m->opts.drafted ? 2 : 0) : 0;
    }
    for (c = 0; c < d.n_classes; c++)
        if ((cls[c].page_bytes = be_kv_page_bytes(&d, c)) == 0)
            return rc_fail(err, RC_LIMIT, "a page of the KV cache is beyond any memory");
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

/* ------------------------------------------------------------------- memory */

static enum rc fit_heads(struct mdl *m, struct gemma *g, uint32_t rows, struct rc_err *err)
{
    uint32_t n = 0, k;
    enum rc rc;

    for (k = 0; k < GEMMA_KINDS; k++) {
        struct gemma_geo *geo = &g->geo[k];
        uint32_t qw = g->n_heads * geo->head_dim, kw = geo->n_kv_heads * geo->head_dim;

        if (!geo->used)
            continue;
        if (n == 1 && geo->head_dim == g->geo[0].head_dim &&
            geo->n_kv_heads == g->geo[0].n_kv_heads) {
            geo->buf = 0;
            continue;
        }
        geo->buf = n++;
        if ((rc = mdl_plan_tensor(&m->plan, rows, qw, &g->q[geo->buf], err)) != RC_OK ||
            (rc = mdl_plan_tensor(&m->plan, rows, qw, &g->att[geo->buf], err)) != RC_OK)
            return rc;
        if (g->n_own > 0 &&
            ((rc = mdl_plan_tensor(&m->plan, rows, kw, &g->k[geo->buf], err)) != RC_OK ||
             (rc = mdl_plan_tensor(&m->plan, rows, kw, &g->v[geo->buf], err)) != RC_OK))
            return rc;
    }
    return RC_OK;
}

static enum rc fit_ff(struct mdl *m, struct gemma *g, uint32_t rows, struct rc_err *err)
{
    uint32_t have[GEMMA_MAX_FF], n = 0, l, i;
    enum rc rc;

    for (l = 0; l < g->n_layers; l++) {
        for (i = 0; i < n && have[i] != g->layer[l].d_ff; i++)
            ;
        g->layer[l].ff = i;
        if (i < n)
            continue;
        if (n == GEMMA_MAX_FF)
            return rc_fail_what(err, RC_UNSUPPORTED, "feed_forward_length",
                                "layer %u has feed-forward width %u: more than %d different ones",
                                l, g->layer[l].d_ff, GEMMA_MAX_FF);
        have[n++] = g->layer[l].d_ff;
        if ((rc = mdl_plan_tensor(&m->plan, rows, have[i], &g->ff[i], err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

enum rc mdl_gemma_fit_ones(struct mdl *m, struct gemma *g, struct rc_err *err)
{
    enum rc rc = RC_OK;
    uint32_t i;

    for (i = 0; rc == RC_OK && i < GEMMA_KINDS; i++)
        if (g->geo[i].used)
            rc = mdl_ones_init(&g->geo[i].ones, m->be, g->geo[i].head_dim, err);
    return rc;
}

enum rc mdl_gemma_fit_layers(struct mdl *m, struct gemma *g, uint32_t rows, struct rc_err *err)
{
    enum rc rc;

    if ((rc = mdl_plan_tensor(&m->plan, rows, g->d_model, &g->x, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, rows, g->d_model, &g->h, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, rows, g->d_model, &g->t, err)) != RC_OK ||
        (rc = fit_heads(m, g, rows, err)) != RC_OK || (rc = fit_ff(m, g, rows, err)) != RC_OK)
        return rc;
    if (g->d_ple > 0 &&
        ((rc = mdl_plan_tensor(&m->plan, rows, g->d_ple, &g->gate, err)) != RC_OK ||
         (rc = mdl_plan_tensor(&m->plan, rows, g->n_layers * g->d_ple, &g->ple, err)) != RC_OK ||
         (rc = mdl_plan_tensor(&m->plan, g->max_out, g->n_layers * g->d_ple, &g->tail_ple, err)) !=
             RC_OK))
        return rc;
    return g->v_norm ? mdl_gemma_fit_ones(m, g, err) : RC_OK;
}

/* Before the budgets have been asked: taken, not touched. */
static enum rc host_arrays(struct gemma *g, struct rc_err *err)
{
    g->tail_seqs = calloc(g->max_out, sizeof(*g->tail_seqs));
    g->tail_pos = calloc(g->max_out, sizeof(*g->tail_pos));
    g->row_no = calloc(g->max_rows, sizeof(*g->row_no));
    g->ple_ids = calloc(g->max_rows, sizeof(*g->ple_ids));
    if (!g->tail_seqs || !g->tail_pos || !g->row_no || !g->ple_ids)
        return rc_fail(err, RC_NOMEM, "no memory for the indices of %u rows", g->max_rows);
    return RC_OK;
}

const int32_t *mdl_gemma_row_no(struct gemma *g, uint32_t n)
{
    for (; g->n_row_no < n; g->n_row_no++)
        g->row_no[g->n_row_no] = (int32_t)g->n_row_no;
    return g->row_no;
}

enum rc mdl_gemma_fit(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    uint32_t rows, outs;
    enum rc rc;

    g->max_out = outs = m->opts.max_out > m->opts.max_seqs ? m->opts.max_out : m->opts.max_seqs;
    g->max_rows = rows = m->opts.batch_tokens > outs ? m->opts.batch_tokens : outs;
    if ((rc = host_arrays(g, err)) != RC_OK ||
        (rc = mdl_gemma_fit_layers(m, g, rows, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, outs, g->d_model, &g->tail_x, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, outs, g->d_model, &g->hidden, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, outs, m->info.vocab_size, &g->logits, err)) != RC_OK)
        return rc;
    return fit_kv(m, g, err);
}

void mdl_gemma_free(struct mdl *m)
{
    struct gemma *g = m->state;
    uint32_t i;

    for (i = 0; i < GEMMA_KINDS; i++)
        mdl_ones_deinit(&g->geo[i].ones, m->be);
    free(g->host_logits);
    free(g->tail_seqs);
    free(g->tail_pos);
    free(g->row_no);
    free(g->ple_ids);
    free(g);
    m->state = NULL;
}
