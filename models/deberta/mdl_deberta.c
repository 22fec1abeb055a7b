/* mdl_deberta.c - the family deberta: DeBERTa-v2 and v3 as a cross-encoder of one logit, or as an
 * embedder with sentence-transformers' side files.
 *
 *   logit = w_c . act(W_p h0 + b_p) + b_c          h0: the sequence's first row
 *
 * The encoder is the part of mdl_deberta.h. Always true: a sequence's numbers are the same bytes
 * alone, in a batch, or in several passes. Source: encoders.md 5; docs/models/deberta.md.
 * Tests: tests/models/test_mdl_deberta*.c
 */
#include "mdl_deberta.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_sbert.h"
#include "mdl_scorer.h"

struct deberta {
    struct mdl_deberta *enc;
    struct bert_sbert st;
    char prefix[16];
    int32_t sep; /* pairs of a model with token types: rows behind the first are of type 1 */
    struct mdl_scorer head;
    int32_t *types; /* [rows of a pass], where sep >= 0 */
};

#define MAX_TOKENS 4096u /* of an input, whatever the files say: place tables grow with it */
#define NO_LIMIT 1e9     /* a tokenizer without a bound says an integer of 31 digits */

/* ------------------------------------------------------------------- opening */

/* A bound of this build's that the files do not have is told with the model. */
static void set_limit(struct mdl_info *i, uint32_t limit)
{
    if (limit > MAX_TOKENS)
        snprintf(i->note, sizeof(i->note), "inputs of %u tokens are taken, the files allow %u",
                 MAX_TOKENS, limit);
    i->max_input_tokens = limit < MAX_TOKENS ? limit : MAX_TOKENS;
}

/* The longest input. Relative positions have no end, they are clamped: where the input has no
 * table of positions the tokenizer's own bound counts, and n_pos only where that says nothing. */
static enum rc read_limit(struct mdl *m, const struct mdl_deberta_info *i, int root_fd,
                          struct rc_err *err)
{
    const char *file = "tokenizer_config.json";
    uint32_t limit = i->n_pos;
    char *text = NULL;
    size_t n = 0;
    json_t *j;
    double said;
    enum rc rc = mdl_side_read(root_fd, file, MDL_MAX_CONFIG_BYTES, &text, &n, err);

    if (rc != RC_OK && rc != RC_NOT_FOUND)
        return rc;
    j = rc == RC_OK ? json_loadb(text, n, JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    free(text);
    if (rc == RC_OK && !j)
        return rc_fail_what(err, RC_FORMAT, file, "%s is not JSON", file);
    said = json_number_value(json_object_get(j, "model_max_length"));
    if (said >= 2 && said < NO_LIMIT && (!i->bounded || said < limit))
        limit = (uint32_t)said;
    json_decref(j);
    m->info.train_ctx_tokens = i->n_pos;
    set_limit(&m->info, limit);
    return RC_OK;
}

static enum rc read_pool_act(struct deberta *d, const json_t *c, struct rc_err *err)
{
    const char *act = NULL;
    enum rc rc = mdl_cfg_str(c, "config.json", "pooler_hidden_act", &act, err);

    if (rc == RC_OK && act && strcmp(act, "tanh") == 0) {
        d->head.tanh = true;
        return RC_OK;
    }
    return rc != RC_OK ? rc
                       : mdl_cfg_gelu(c, "config.json", "pooler_hidden_act", &d->head.epi, err);
}

/* Pairs in, one logit out: the file decides how many there are. */
static enum rc as_scorer(struct mdl *m, struct deberta *d, const json_t *c, struct rc_err *err)
{
    enum rc rc = mdl_scorer_config(m, "classifier.weight", err);

    d->head.pool = BE_POOL_CLS;
    if (rc == RC_OK && mdl_deberta_info(d->enc)->n_types > 1)
        rc = mdl_sbert_sep(m, &d->sep, err);
    if (rc != RC_OK)
        return rc;
    return read_pool_act(d, c, err);
}

static enum rc config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct deberta *d = calloc(1, sizeof(*d));
    const struct mdl_deberta_info *i;
    enum rc rc;

    if (!d)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = d; /* freed by mdl_close */
    d->sep = -1;
    if ((rc = mdl_deberta_config(&d->enc, src->config, "config.json", err)) != RC_OK)
        return rc;
    i = mdl_deberta_info(d->enc);
    if ((rc = mdl_cfg_vocab(m, i->vocab_size, err)) != RC_OK)
        return rc;
    if (mdl_file_find(m->file, "deberta.embeddings.word_embeddings.weight"))
        snprintf(d->prefix, sizeof(d->prefix), "deberta.");
    m->info.vocab_size = i->vocab_size;
    m->info.n_layers = i->n_layers;
    m->info.d_model = i->d_model;
    if ((rc = read_limit(m, i, src->root_fd, err)) != RC_OK)
        return rc;
    return strstr(m->info.arch, "ForSequenceClassification")
               ? as_scorer(m, d, src->config, err)
               : mdl_sbert_config(&d->st, m, src->root_fd, err);
}

static enum rc plan(struct mdl *m, struct rc_err *err)
{
    struct deberta *d = m->state;
    uint32_t n = m->info.d_model;
    const struct {
        const char *name;
        unsigned use;
        uint32_t n_dims, d0, d1;
        struct be_weight **slot;
    } head[] = {{"pooler.dense.weight", BE_USE_LINEAR, 2, n, n, &d->head.dense_w},
                {"pooler.dense.bias", BE_USE_VECTOR, 1, n, 0, &d->head.dense_b},
                {"classifier.weight", BE_USE_LINEAR, 2, 1, n, &d->head.logit_w},
                {"classifier.bias", BE_USE_VECTOR, 1, 1, 0, &d->head.logit_b}};
    enum rc rc = mdl_deberta_plan(d->enc, &m->plan, d->prefix, err);

    if (rc == RC_OK && m->info.can_embed)
        rc = mdl_sbert_plan(&d->st, m, err);
    for (size_t i = 0; rc == RC_OK && m->info.can_rerank && i < sizeof(head) / sizeof(*head); i++)
        rc = mdl_plan_weight(&m->plan, head[i].name, head[i].use, head[i].n_dims, head[i].d0,
                             head[i].d1, 0, head[i].slot, err);
    return rc;
}

static enum rc fit(struct mdl *m, struct rc_err *err)
{
    struct deberta *d = m->state;
    uint32_t rows, seqs;
    enum rc rc = mdl_passes_fit(m, err);

    if (rc != RC_OK)
        return rc;
    rows = m->passes.max_rows;
    seqs = m->passes.max_seqs;
    free(d->types);
    d->types = calloc(d->sep >= 0 ? rows : 1, sizeof(*d->types));
    if (!d->types)
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    if ((rc = mdl_deberta_fit(d->enc, &m->plan, rows, seqs, m->info.max_input_tokens, err)) !=
            RC_OK ||
        (m->info.can_embed && (rc = mdl_sbert_fit(&d->st, m, err)) != RC_OK))
        return rc;
    if (m->info.can_rerank && (rc = mdl_scorer_fit(&d->head, m, err)) != RC_OK)
        return rc;
    m->info.ctx_tokens = m->info.max_input_tokens;
    return RC_OK;
}

static void deberta_free(struct mdl *m)
{
    struct deberta *d = m->state;

    mdl_deberta_free(&d->enc);
    mdl_sbert_deinit(&d->st);
    free(d->types);
    free(d);
    m->state = NULL;
}

/* -------------------------------------------------------------------- passes */

static enum rc encode(struct mdl *m, const struct mdl_pass *p, float *out, struct rc_err *err)
{
    struct deberta *d = m->state;
    const struct be_tensor *x = NULL;
    enum rc rc;

    if (d->sep >= 0)
        mdl_sbert_types(p, d->sep, d->types);
    if ((rc = mdl_deberta_run(d->enc, m, p, d->sep >= 0 ? d->types : NULL, &x, err)) != RC_OK)
        return rc;
    return m->info.can_rerank ? mdl_scorer_run(&d->head, m, x, p, out, err)
                              : mdl_sbert_vectors(&d->st, m, x, p, out, err);
}

static const char *const hf_archs[] = {"DebertaV2Model", "DebertaV2ForMaskedLM",
                                       "DebertaV2ForSequenceClassification", "deberta-v2", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mdl_family mdl_deberta = {
    .name = "deberta",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "deberta-f32-sbert-v1",
    .config = config,
    .plan = plan,
    .fit = fit,
    .shrink = mdl_passes_shrink,
    .self_test = mdl_passes_self_test,
    .free = deberta_free,
    .embed_tokens = mdl_sbert_tokens,
    .pair_tokens = mdl_sbert_pair_tokens,
    .encode = encode,
    .dims_check = mdl_sbert_dims,
};
