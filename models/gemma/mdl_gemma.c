/* mdl_gemma.c - Gemma 3 and 4 text: the forward pass, and the two families' tables.
 *
 * Always true: after the last keys are written, only the rows whose logits are wanted are
 * carried on (a row never depends on another row's later half). In Gemma 4's smaller
 * models the upper layers have no keys of their own, so a prompt's rows leave early.
 * The pass allocates nothing and knows no device. Weights and memory: mdl_gemma_plan.c;
 * a layer: mdl_gemma_layer.c.
 * Source: gemma.md 2 and 3; docs/models/gemma3.md, gemma4.md.
 * Tests: tests/models/test_mdl_gemma*.c
 */
#include "mdl_gemma.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Output rows as rows of their own; neighbours of one sequence stay together. */
static enum rc tail_rows(struct gemma *g, const struct mdl_batch *b, struct gemma_rows *r,
                         struct rc_err *err)
{
    uint32_t i, s, n = 0, last_s = 0;

    for (i = 0; i < b->n_out; i++) {
        uint32_t row = (uint32_t)b->out_rows[i];
        struct be_seq *last = n > 0 ? &g->tail_seqs[n - 1] : NULL;

        for (s = 0; s < b->n_seqs; s++)
            if (row >= b->seqs[s].row0 && row - b->seqs[s].row0 < b->seqs[s].n_rows)
                break;
        if (s == b->n_seqs)
            return rc_fail(err, RC_INVALID, "output row %u belongs to no sequence", row);
        g->tail_pos[i] = b->pos[row];
        if (last && last_s == s && last->pos0 + last->n_rows == (uint32_t)b->pos[row]) {
            last->n_rows++;
            continue;
        }
        last_s = s;
        g->tail_seqs[n] = b->seqs[s];
        g->tail_seqs[n].row0 = i;
        g->tail_seqs[n].n_rows = 1;
        g->tail_seqs[n++].pos0 = (uint32_t)b->pos[row];
    }
    *r = (struct gemma_rows){.x = g->tail_x,
                             .ple = g->tail_ple,
                             .n = b->n_out,
                             .n_seqs = n,
                             .pos = g->tail_pos,
                             .seqs = g->tail_seqs};
    return RC_OK;
}

static enum rc take_tail(struct mdl *m, struct gemma *g, const struct mdl_batch *b,
                         struct gemma_rows *r, struct rc_err *err)
{
    struct be_gather_args a = {.x = g->x, .rows = b->out_rows, .n = b->n_out, .out = g->tail_x};
    enum rc rc = be_gather(m->be, &a, err);

    if (rc != RC_OK)
        return rc;
    if (g->d_ple > 0) {
        a.x = g->ple;
        a.out = g->tail_ple;
        if ((rc = be_gather(m->be, &a, err)) != RC_OK)
            return rc;
    }
    return tail_rows(g, b, r, err);
}

/* Every row is an output row, in order: a step of decoding. */
static bool all_wanted(const struct mdl_batch *b)
{
    uint32_t i;

    for (i = 0; i < b->n_out && b->out_rows[i] == (int32_t)i; i++)
        ;
    return b->n_out == b->n_rows && i == b->n_out;
}

static enum rc head(struct mdl *m, struct gemma *g, const struct gemma_rows *r,
                    const float **logits, struct rc_err *err)
{
    struct be_rms_norm_args norm = {
        .x = r->x, .w = g->out_norm, .out = g->hidden, .n = r->n, .eps = g->norm_eps};
    struct be_softcap_args cap = {.x = g->logits, .n = r->n, .cap = g->softcap};
    enum rc rc;

    if ((rc = be_rms_norm(m->be, &norm, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->hidden, g->tied ? g->embed : g->head, NULL, g->logits, r->n,
                        BE_EPI_NONE, err)) != RC_OK ||
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
    rc = be_tensor_read(m->be, g->logits, 0, r->n, g->host_logits, err);
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

/* Token vectors, what was injected over them, and the per-layer embeddings of both. */
static enum rc embed(struct mdl *m, struct gemma *g, const struct mdl_batch *b, struct rc_err *err)
{
    struct be_embed_args e = {
        .table = g->embed, .ids = b->ids, .n = b->n_rows, .scale = g->embed_scale, .out = g->x};
    const int32_t *ids = b->ids;
    uint32_t i;
    enum rc rc;

    if (b->n_soft > 0) {
        memcpy(g->ple_ids, b->ids, b->n_rows * sizeof(*g->ple_ids));
        for (i = 0; i < b->n_soft; i++)
            g->ple_ids[b->soft[i].row] = g->pad;
        ids = e.ids = g->ple_ids;
    }
    if ((rc = be_embed(m->be, &e, err)) != RC_OK)
        return rc;
    for (i = 0; i < b->n_soft; i++)
        if ((rc = be_tensor_write(m->be, g->x, b->soft[i].row, 1, b->soft[i].x, err)) != RC_OK)
            return rc;
    return g->d_ple > 0 ? mdl_gemma_ple(m, g, ids, b->n_rows, err) : RC_OK;
}

static const struct be_tensor *hidden_get(const struct mdl *m)
{
    return ((const struct gemma *)m->state)->hidden;
}

static enum rc forward(struct mdl *m, const struct mdl_batch *b, const float **logits,
                       struct rc_err *err)
{
    struct gemma *g = m->state;
    struct gemma_rows r = {.x = g->x,
                           .ple = g->ple,
                           .n = b->n_rows,
                           .n_seqs = b->n_seqs,
                           .pos = b->pos,
                           .seqs = b->seqs};
    bool whole = all_wanted(b);
    uint32_t l, last_own = g->n_own - 1;
    enum rc rc;

    if ((rc = embed(m, g, b, err)) != RC_OK)
        return rc;
    for (l = 0; l < g->n_layers; l++) {
        bool leave = l == last_own && !whole, with_query = !leave;

        if (!g->layer[l].shared && (rc = mdl_gemma_keys(m, g, l, &r, with_query, err)) != RC_OK)
            return rc;
        if (leave && b->n_out == 0)
            return RC_OK;
        if ((leave && (rc = take_tail(m, g, b, &r, err)) != RC_OK) ||
            ((leave || g->layer[l].shared) && (rc = mdl_gemma_query(m, g, l, &r, err)) != RC_OK) ||
            (rc = mdl_gemma_attend(m, g, l, m->kv, g->window, &r, err)) != RC_OK ||
            (rc = mdl_gemma_finish(m, g, l, &r, err)) != RC_OK)
            return rc;
        if (m->trace)
            m->trace(m->trace_user, l, r.x, r.n);
    }
    return head(m, g, &r, logits, err);
}

static enum rc check_soft(const struct mdl *m, const struct gemma *g, const struct mdl_batch *b,
                          struct rc_err *err)
{
    uint32_t i, k;

    if (b->n_soft > 0 && g->media_sees_all)
        return rc_fail_what(err, RC_UNSUPPORTED, "use_bidirectional_attention",
                            "this model's pictures see themselves in both directions: its media "
                            "are not supported");
    for (i = 0; i < b->n_soft; i++) {
        if (b->soft[i].row >= b->n_rows)
            return rc_fail(err, RC_INVALID, "a vector for row %u of a pass of %u rows",
                           b->soft[i].row, b->n_rows);
        for (k = 0; k < m->info.d_model; k++)
            if (!isfinite(b->soft[i].x[k]))
                return rc_fail(err, RC_INVALID, "the vector for row %u is not finite at %u",
                               b->soft[i].row, k);
    }
    return RC_OK;
}

static enum rc decode(struct mdl *m, const struct mdl_batch *b, const float **logits,
                      struct rc_err *err)
{
    const struct gemma *g = m->state;
    uint32_t i;
    enum rc rc;

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
    if ((rc = check_soft(m, g, b, err)) != RC_OK)
        return rc;
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

static const char *const gemma3_hf[] = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration",
                                        "gemma3_text", "gemma3", NULL};
static const char *const gemma3_gguf[] = {"gemma3", NULL};

const struct mdl_family mdl_gemma3 = {
    .name = "gemma3",
    .hf_archs = gemma3_hf,
    .gguf_archs = gemma3_gguf,
    .config = mdl_gemma_config,
    .plan = mdl_gemma_plan,
    .fit = mdl_gemma_fit,
    .self_test = self_test,
    .free = mdl_gemma_free,
    .decode = decode,
    .logits = logits_get,
    .kv_read = mdl_gemma_kv_read,
    .kv_fill = mdl_gemma_kv_fill,
    .chat = mdl_gemma_chat,
};

static const char *const gemma4_hf[] = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
                                        "gemma4_text", "gemma4", NULL};
static const char *const gemma4_gguf[] = {"gemma4", NULL};

const struct mdl_family mdl_gemma4 = {
    .name = "gemma4",
    .hf_archs = gemma4_hf,
    .gguf_archs = gemma4_gguf,
    .config = mdl_gemma4_config,
    .plan = mdl_gemma_plan,
    .fit = mdl_gemma_fit,
    .self_test = self_test,
    .free = mdl_gemma_free,
    .decode = decode,
    .logits = logits_get,
    .kv_read = mdl_gemma_kv_read,
    .kv_fill = mdl_gemma_kv_fill,
    .hidden = hidden_get,
    .chat = mdl_gemma4_chat,
};
