/* mdl_gemma4_draft.c - Gemma 4's drafter ("assistant", MTP): a few query-only layers that
 * guess the target's next tokens.
 *
 *   u = pre . [target_table[token] * sqrt(B), h]     h: the target's row, later its own
 *   the layers, with the target's keys and values, all steps at the token's position
 *   z = norm(u);  token = argmax(head(z));  h = post . z
 *
 * The layers are Gemma 4's (mdl_gemma_layer.c). The head is the own token table: all of it,
 * or, where the checkpoint has clusters and the host can read what the device computes,
 * the tokens of the best clusters only. pre is kept as two halves, so nothing needs to be
 * put side by side. Allocates nothing after it is opened; keeps nothing between calls.
 * Source: gemma.md 4, 11.4; engine.md 5.1. Tests: tests/models/test_mdl_gemma4_draft.c
 */
#include "mdl_gemma.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOP 256 /* clusters looked into */

struct gemma_draft {
    uint32_t d_target; /* B */
    bool ordered;      /* clusters in the file */
    uint32_t n_clusters, top_clusters, per_cluster;
    int32_t *order; /* token ids, cluster by cluster [vocab] */
    struct be_weight *pre_token, *pre_hidden, *post, *centroids;
    struct be_tensor *token, *h;   /* [max_seqs, B] */
    struct be_tensor *near, *rows; /* scores of clusters; vectors of the best ones' tokens */
    int32_t *ids, *pos, *out_rows, *picked; /* host: [max_seqs] thrice, [top * per_cluster] */
    struct be_seq *seqs;
};

/* -------------------------------------------------------------------- config */

static enum rc misfit(struct rc_err *err, const char *key, const char *what, uint32_t have,
                      uint32_t want)
{
    return rc_fail_what(err, RC_FORMAT, key, "the drafter has %s %u, its target %u", what, have,
                        want);
}

/* Heads, window and tables must be the target's; each layer is told which one it reads. */
static enum rc join(struct mdl *m, struct gemma *g, struct gemma_draft *d, struct rc_err *err)
{
    const struct gemma *t = m->target->state;
    uint32_t k, l;

    if (strcmp(m->target->fam->name, "gemma4") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "architecture",
                            "a Gemma 4 drafter does not fit a %s model", m->target->fam->name);
    if (d->d_target != t->d_model)
        return misfit(err, "backbone_hidden_size", "rows of", d->d_target, t->d_model);
    if (m->info.vocab_size != m->target->info.vocab_size)
        return misfit(err, "vocab_size", "a vocabulary of", m->info.vocab_size,
                      m->target->info.vocab_size);
    if (g->window != t->window)
        return misfit(err, "sliding_window", "a window of", g->window, t->window);
    for (k = 0; k < GEMMA_KINDS; k++) {
        if (!g->geo[k].used)
            continue;
        if (g->geo[k].head_dim != t->geo[k].head_dim)
            return misfit(err, "head_dim", "heads of", g->geo[k].head_dim, t->geo[k].head_dim);
        /* the keys are the target's, whatever number the drafter's files give */
        if (g->n_heads % t->geo[k].n_kv_heads != 0)
            return rc_fail_what(err, RC_FORMAT, "num_attention_heads",
                                "%u query heads of the drafter do not divide into its target's %u "
                                "key/value heads",
                                g->n_heads, t->geo[k].n_kv_heads);
    }
    for (l = 0; l < g->n_layers; l++) {
        uint32_t source = t->n_own;

        while (source > 0 && t->layer[source - 1].kind != g->layer[l].kind)
            source--;
        if (source == 0)
            return rc_fail_what(err, RC_FORMAT, "layer_types",
                                "layer %u of the drafter reads a kind of layer its target lacks",
                                l);
        g->layer[l].kv = t->layer[source - 1].kv;
        g->layer[l].cls = t->layer[source - 1].cls;
    }
    return RC_OK;
}

static enum rc hf(struct mdl *m, struct gemma *g, struct gemma_draft *d, const json_t *c,
                  struct rc_err *err)
{
    const json_t *text = json_object_get(c, "text_config");
    bool tied;
    enum rc rc;

    if (!json_is_object(text))
        return rc_fail_what(err, RC_FORMAT, "text_config", "config.json: 'text_config' is missing");
    if ((rc = mdl_gemma4_from_hf(g, text, true, err)) != RC_OK ||
        (rc = mdl_gemma_hf_prefix(m, g, err)) != RC_OK ||
        (rc = mdl_gemma_hf_vocab(m, g, text, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, "config.json", "backbone_hidden_size", 1, GEMMA_MAX_WIDTH,
                          MDL_REQUIRED, &d->d_target, err)) != RC_OK ||
        (rc = mdl_cfg_bool(c, "config.json", "use_ordered_embeddings", false, &d->ordered, err)) !=
            RC_OK ||
        (rc = mdl_cfg_bool(c, "config.json", "tie_word_embeddings", true, &tied, err)) != RC_OK)
        return rc;
    if (!tied)
        return rc_fail_what(err, RC_UNSUPPORTED, "tie_word_embeddings",
                            "config.json: a drafter with a head of its own is not supported");
    if (!d->ordered)
        return RC_OK;
    if ((rc = mdl_cfg_u32(c, "config.json", "num_centroids", 1, m->info.vocab_size, MDL_REQUIRED,
                          &d->n_clusters, err)) != RC_OK ||
        (rc = mdl_cfg_u32(c, "config.json", "centroid_intermediate_top_k", 1,
                          d->n_clusters < MAX_TOP ? d->n_clusters : MAX_TOP, MDL_REQUIRED,
                          &d->top_clusters, err)) != RC_OK)
        return rc;
    if (m->info.vocab_size % d->n_clusters != 0)
        return rc_fail_what(err, RC_FORMAT, "num_centroids",
                            "config.json: %u tokens do not divide into %u clusters",
                            m->info.vocab_size, d->n_clusters);
    d->per_cluster = m->info.vocab_size / d->n_clusters;
    return RC_OK;
}

static enum rc gguf(struct mdl *m, struct gemma *g, struct gemma_draft *d, struct rc_err *err)
{
    enum rc rc;

    snprintf(g->gguf, sizeof(g->gguf), "gemma4-assistant");
    if ((rc = mdl_gemma4_from_gguf(m, g, true, err)) != RC_OK ||
        (rc = mdl_gemma_gguf_vocab(m, err)) != RC_OK)
        return rc;
    return mdl_gguf_cfg_u32(m->file, "gemma4-assistant.embedding_length_out", 1, GEMMA_MAX_WIDTH,
                            MDL_REQUIRED, &d->d_target, err);
}

static enum rc config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct gemma_draft *d;
    struct gemma *g = NULL;
    uint32_t l;
    enum rc rc;

    if ((rc = mdl_gemma4_new(m, &g, err)) != RC_OK)
        return rc;
    if (!(g->draft = d = calloc(1, sizeof(*d))))
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    if ((rc = src->config ? hf(m, g, d, src->config, err) : gguf(m, g, d, err)) != RC_OK)
        return rc;
    if (g->d_ple > 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "hidden_size_per_layer_input",
                            "a drafter with per-layer embeddings is not supported");
    g->softcap = 0; /* its logits are never capped */
    g->v_norm = false;
    g->tied = true;
    for (l = 0; l < g->n_layers; l++) {
        g->layer[l].shared = true;
        g->geo[g->layer[l].kind].used = true;
    }
    m->info.can_draft = true;
    m->info.train_ctx_tokens = g->train_ctx;
    m->info.n_layers = g->n_layers;
    m->info.d_model = g->d_model;
    return m->target ? join(m, g, d, err) : RC_OK;
}

/* ---------------------------------------------------------------------- plan */

static enum rc plan(struct mdl *m, struct rc_err *err)
{
    bool is_gguf = mdl_file_format(m->file) == MDL_GGUF;
    const char *pre = is_gguf ? "nextn.pre_projection.weight" : "pre_projection.weight";
    struct gemma *g = m->state;
    struct gemma_draft *d = g->draft;
    uint64_t both = 2 * (uint64_t)d->d_target;
    enum rc rc;

    if ((rc = mdl_gemma_plan_one(m, g, "embed_tokens", "token_embd", BE_USE_LINEAR | BE_USE_EMBED,
                                 m->info.vocab_size, g->d_model, &g->embed, err)) != RC_OK ||
        (rc = mdl_gemma_plan_layers(m, g, err)) != RC_OK ||
        (rc = mdl_gemma_plan_one(m, g, "norm", "output_norm", BE_USE_VECTOR, 1, g->d_model,
                                 &g->out_norm, err)) != RC_OK ||
        (rc = mdl_plan_columns(&m->plan, pre, BE_USE_LINEAR, g->d_model, both, 0, d->d_target,
                               &d->pre_token, err)) != RC_OK ||
        (rc = mdl_plan_columns(&m->plan, pre, BE_USE_LINEAR, g->d_model, both, d->d_target,
                               d->d_target, &d->pre_hidden, err)) != RC_OK ||
        (rc = mdl_plan_weight(
             &m->plan, is_gguf ? "nextn.post_projection.weight" : "post_projection.weight",
             BE_USE_LINEAR, 2, d->d_target, g->d_model, 0, &d->post, err)) != RC_OK ||
        !d->ordered)
        return rc;
    if (!(d->order = malloc((size_t)m->info.vocab_size * sizeof(*d->order))))
        return rc_fail(err, RC_NOMEM, "no memory for the order of %u tokens", m->info.vocab_size);
    if ((rc = mdl_file_ints(m->file, "masked_embedding.token_ordering", m->info.vocab_size,
                            m->info.vocab_size, d->order, err)) != RC_OK)
        return rc;
    return mdl_plan_weight(&m->plan, "masked_embedding.centroids.weight", BE_USE_LINEAR, 2,
                           d->n_clusters, g->d_model, 0, &d->centroids, err);
}

static enum rc fit(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    struct gemma_draft *d = g->draft;
    uint32_t n = m->opts.max_seqs, picked = d->top_clusters * d->per_cluster;
    enum rc rc;

    g->max_out = g->max_rows = n;
    d->ids = calloc(n, sizeof(*d->ids));
    d->pos = calloc(n, sizeof(*d->pos));
    d->out_rows = calloc(n, sizeof(*d->out_rows));
    d->seqs = calloc(n, sizeof(*d->seqs));
    d->picked = calloc(picked ? picked : 1, sizeof(*d->picked));
    if (!d->ids || !d->pos || !d->out_rows || !d->seqs || !d->picked)
        return rc_fail(err, RC_NOMEM, "no memory for the indices of %u sequences", n);
    if ((rc = mdl_gemma_fit_layers(m, g, n, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, n, g->d_model, &g->hidden, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, n, m->info.vocab_size, &g->logits, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, n, d->d_target, &d->token, err)) != RC_OK ||
        (rc = mdl_plan_tensor(&m->plan, n, d->d_target, &d->h, err)) != RC_OK || !d->ordered ||
        (rc = mdl_plan_tensor(&m->plan, n, d->n_clusters, &d->near, err)) != RC_OK)
        return rc;
    return mdl_plan_tensor(&m->plan, picked, g->d_model, &d->rows, err);
}

static void drafter_free(struct mdl *m)
{
    struct gemma *g = m->state;
    struct gemma_draft *d = g->draft;

    if (d) {
        free(d->order);
        free(d->ids);
        free(d->pos);
        free(d->out_rows);
        free(d->picked);
        free(d->seqs);
        free(d);
    }
    mdl_gemma_free(m);
}

/* ----------------------------------------------------------------- one round */

/* u = pre . [token, h] into x. */
static enum rc enter(struct mdl *m, struct gemma *g, uint32_t n, struct rc_err *err)
{
    const struct gemma *t = m->target->state;
    struct gemma_draft *d = g->draft;
    struct be_embed_args e = {
        .table = t->embed, .ids = d->ids, .n = n, .scale = t->embed_scale, .out = d->token};
    struct be_linear_args add = {.x = d->h, .n = n, .n_parts = 1, .epi = BE_EPI_ADD};
    enum rc rc;

    add.part[0].w = d->pre_hidden;
    add.part[0].out = g->x;
    if ((rc = be_embed(m->be, &e, err)) != RC_OK ||
        (rc = mdl_dense(m->be, d->token, d->pre_token, NULL, g->x, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return be_linear(m->be, &add, err);
}

static enum rc layers(struct mdl *m, struct gemma *g, uint32_t n, struct rc_err *err)
{
    struct gemma_draft *d = g->draft;
    const struct gemma_rows r = {.x = g->x, .n = n, .n_seqs = n, .pos = d->pos, .seqs = d->seqs};
    struct be_rms_norm_args norm = {
        .x = g->x, .w = g->out_norm, .out = g->hidden, .n = n, .eps = g->norm_eps};
    uint32_t l;
    enum rc rc;

    for (l = 0; l < g->n_layers; l++) {
        /* the newest cached key and those up to a window before it: one more than the
         * target's own query would see from there */
        if ((rc = mdl_gemma_query(m, g, l, &r, err)) != RC_OK ||
            (rc = mdl_gemma_attend(m, g, l, m->target->kv, g->window + 1, &r, err)) != RC_OK ||
            (rc = mdl_gemma_finish(m, g, l, &r, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, g->x, n);
    }
    return be_rms_norm(m->be, &norm, err);
}

/* Tokens of the best clusters of one row of scores; returns how many. */
static uint32_t pick(const struct gemma_draft *d, const float *score, int32_t *out)
{
    uint32_t best[MAX_TOP], n = 0, c, i, k;

    for (c = 0; c < d->n_clusters; c++) {
        for (i = n; i > 0 && score[c] > score[best[i - 1]]; i--)
            if (i < d->top_clusters)
                best[i] = best[i - 1];
        if (i < d->top_clusters) {
            best[i] = c;
            if (n < d->top_clusters)
                n++;
        }
    }
    for (c = 0, k = 0; c < n; c++)
        for (i = 0; i < d->per_cluster; i++)
            out[k++] = d->order[best[c] * d->per_cluster + i];
    return k;
}

/* The best token among those of the best clusters; the lowest id on ties. */
static enum rc best_picked(struct mdl *m, struct gemma *g, uint32_t row, int32_t *out,
                           struct rc_err *err)
{
    struct gemma_draft *d = g->draft;
    const float *z = be_tensor_view(m->be, g->hidden) + (size_t)row * g->d_model, *v;
    uint32_t i, k, n;
    struct be_embed_args e = {.table = g->embed, .ids = d->picked, .scale = 1, .out = d->rows};
    float top = -INFINITY;
    enum rc rc;

    n = pick(d, be_tensor_view(m->be, d->near) + (size_t)row * d->n_clusters, d->picked);
    e.n = n;
    if ((rc = be_embed(m->be, &e, err)) != RC_OK || (rc = be_sync(m->be, err)) != RC_OK)
        return rc;
    v = be_tensor_view(m->be, d->rows);
    *out = d->picked[0];
    for (i = 0; i < n; i++, v += g->d_model) {
        float s = 0;

        for (k = 0; k < g->d_model; k++)
            s += z[k] * v[k];
        if (s > top || (s == top && d->picked[i] < *out)) {
            top = s;
            *out = d->picked[i];
        }
    }
    return RC_OK;
}

/* ids: the next tokens, from hidden. */
static enum rc choose(struct mdl *m, struct gemma *g, uint32_t n, struct rc_err *err)
{
    struct gemma_draft *d = g->draft;
    struct be_argmax_args a = {.x = g->logits, .n = n, .out_ids = d->ids};
    uint32_t i;
    enum rc rc;

    if (!d->ordered || !be_tensor_view(m->be, g->hidden)) {
        if ((rc = mdl_dense(m->be, g->hidden, g->embed, NULL, g->logits, n, BE_EPI_NONE, err)) !=
            RC_OK)
            return rc;
        return be_argmax(m->be, &a, err);
    }
    if ((rc = mdl_dense(m->be, g->hidden, d->centroids, NULL, d->near, n, BE_EPI_NONE, err)) !=
            RC_OK ||
        (rc = be_sync(m->be, err)) != RC_OK)
        return rc;
    for (i = 0; i < n; i++)
        if ((rc = best_picked(m, g, i, &d->ids[i], err)) != RC_OK)
            return rc;
    return RC_OK;
}

static enum rc draft(struct mdl *m, const struct mdl_draft_seq *seqs, uint32_t n, uint32_t k,
                     int32_t *out_ids, struct rc_err *err)
{
    struct gemma *g = m->state;
    struct gemma_draft *d = g->draft;
    struct be_gather_args h = {
        .x = m->target->fam->hidden(m->target), .rows = d->out_rows, .n = n, .out = d->h};
    uint32_t i, step;
    enum rc rc;

    for (i = 0; i < n; i++) {
        d->ids[i] = seqs[i].token;
        d->pos[i] = (int32_t)seqs[i].n_cached;
        d->out_rows[i] = (int32_t)seqs[i].out_row;
        d->seqs[i] = (struct be_seq){.row0 = i, .n_rows = 1, .pos0 = seqs[i].n_cached - 1};
        memcpy(d->seqs[i].pages, seqs[i].pages, sizeof(d->seqs[i].pages));
    }
    if ((rc = be_gather(m->be, &h, err)) != RC_OK)
        return rc;
    for (step = 0; step < k; step++) {
        if ((rc = enter(m, g, n, err)) != RC_OK || (rc = layers(m, g, n, err)) != RC_OK ||
            (rc = choose(m, g, n, err)) != RC_OK)
            return rc;
        for (i = 0; i < n; i++)
            out_ids[(size_t)i * k + step] = d->ids[i];
        if (step + 1 < k &&
            (rc = mdl_dense(m->be, g->hidden, d->post, NULL, d->h, n, BE_EPI_NONE, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* One guess after the target's first token, whose key its own self-test left in page 0. */
static enum rc self_test(struct mdl *m, struct rc_err *err)
{
    struct gemma *g = m->state;
    int32_t page = 0, out;
    struct mdl_draft_seq s = {.token = 0, .n_cached = 1};
    float *z;
    uint32_t i;
    enum rc rc;

    for (i = 0; i < BE_KV_CLASSES; i++)
        s.pages[i] = &page;
    if ((rc = draft(m, &s, 1, 2, (int32_t[2]){0}, err)) != RC_OK ||
        (rc = draft(m, &s, 1, 1, &out, err)) != RC_OK)
        return rc;
    if (!(z = malloc(g->d_model * sizeof(*z))))
        return rc_fail(err, RC_NOMEM, "no memory for %u values", g->d_model);
    rc = be_tensor_read(m->be, g->hidden, 0, 1, z, err);
    for (i = 0; rc == RC_OK && i < g->d_model; i++)
        if (!isfinite(z[i]))
            rc = rc_fail(err, RC_FORMAT, "the drafter's first row is not finite (value %u)", i);
    free(z);
    return rc;
}

static const char *const hf_archs[] = {"Gemma4AssistantForCausalLM", "gemma4_assistant", NULL};
static const char *const gguf_archs[] = {"gemma4-assistant", NULL};

const struct mdl_family mdl_gemma4_drafter = {
    .name = "gemma4_assistant",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .is_drafter = true,
    .config = config,
    .plan = plan,
    .fit = fit,
    .self_test = self_test,
    .free = drafter_free,
    .draft = draft,
};
