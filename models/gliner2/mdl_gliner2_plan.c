/* mdl_gliner2_plan.c - an extractor's weights by name, and the memory of its passes.
 *
 * The first matrix of out_project is taken in halves, of a span's start and of its end; the second
 * transposed: a field's vector goes through it once, instead of every span
 * (docs/models/gliner2.md). Source: encoders.md 6.5. Tests: tests/models/test_mdl_gliner2.c
 */
#include "mdl_gliner2.h"

#include <stdio.h>
#include <stdlib.h>

static enum rc linear(struct mdl *m, const char *stem, uint32_t rows, uint32_t cols,
                      struct be_weight **w, struct be_weight **b, struct rc_err *err)
{
    char name[128];
    enum rc rc;

    snprintf(name, sizeof(name), "%s.weight", stem);
    if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2, rows, cols, 0, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.bias", stem);
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, rows, 0, 0, b, err);
}

/* stem.0 [mid, in], stem.N [out, mid] */
static enum rc mlp(struct mdl *m, const char *stem, uint32_t in, uint32_t mid, uint32_t out, int n,
                   struct g2_mlp *to, struct rc_err *err)
{
    char name[128];
    enum rc rc;

    snprintf(name, sizeof(name), "%s.0", stem);
    if ((rc = linear(m, name, mid, in, &to->w0, &to->b0, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.%d", stem, n);
    return linear(m, name, out, mid, &to->w1, &to->b1, err);
}

/* A matrix of two inputs beside each other, as two. */
static enum rc halves(struct mdl *m, const char *name, uint32_t rows, uint32_t n_a, uint32_t n_b,
                      struct be_weight **a, struct be_weight **b, struct rc_err *err)
{
    enum rc rc = mdl_plan_columns(&m->plan, name, BE_USE_LINEAR, rows, n_a + n_b, 0, n_a, a, err);

    return rc != RC_OK
               ? rc
               : mdl_plan_columns(&m->plan, name, BE_USE_LINEAR, rows, n_a + n_b, n_a, n_b, b, err);
}

static enum rc vector(struct mdl *m, const char *name, uint32_t n, struct be_weight **w,
                      struct rc_err *err)
{
    return mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, n, 0, 0, w, err);
}

static enum rc plan_spans(struct mdl *m, struct g2 *g, struct rc_err *err)
{
#define LAYER "span_rep.span_rep_layer."
    uint32_t d = g->d;
    const uint64_t turned[2] = {d, 4ull * d};
    const uint64_t one = d;
    const struct mdl_tensor *t;
    enum rc rc;

    if ((rc = mlp(m, LAYER "project_start", d, 4 * d, d, 3, &g->start, err)) != RC_OK ||
        (rc = mlp(m, LAYER "project_end", d, 4 * d, d, 3, &g->end, err)) != RC_OK ||
        (rc = halves(m, LAYER "out_project.0.weight", 4 * d, d, d, &g->out_s, &g->out_e, err)) !=
            RC_OK ||
        (rc = vector(m, LAYER "out_project.0.bias", 4 * d, &g->out_b, err)) != RC_OK ||
        (rc = mdl_plan_turned(&m->plan, LAYER "out_project.3.weight", 2, turned, d, 4 * d, 1,
                              &g->out_turned, err)) != RC_OK ||
        (rc = mdl_file_take(m->file, LAYER "out_project.3.bias", 1, &one, &t, err)) != RC_OK)
        return rc;
    if (be_dtype_block(t->dtype) != 1)
        return rc_fail_what(err, RC_UNSUPPORTED, t->name, "tensor '%s': type %s is no vector's",
                            t->name, be_dtype_name(t->dtype));
    if (!(g->out_bias = malloc(d * sizeof(float))))
        return rc_fail(err, RC_NOMEM, "no memory for %u values", d);
    if (m->be)
        be_dtype_to_f32(t->dtype, t->data, g->out_bias, d);
    return RC_OK;
#undef LAYER
}

static enum rc plan_layer(struct mdl *m, struct g2_layer *l, uint32_t i, struct rc_err *err)
{
    char stem[96], name[128];
    const uint64_t bias = 3 * G2_SMALL;
    struct be_weight **const norms[4] = {&l->ln1_w, &l->ln1_b, &l->ln2_w, &l->ln2_b};
    static const char *const norm_names[4] = {"norm1.weight", "norm1.bias", "norm2.weight",
                                              "norm2.bias"};
    enum rc rc;

    snprintf(stem, sizeof(stem), "count_embed.transformer.transformer.layers.%u", i);
    snprintf(name, sizeof(name), "%s.self_attn.in_proj_weight", stem);
    if ((rc = mdl_plan_split(&m->plan, name, BE_USE_LINEAR, 3 * G2_SMALL, G2_SMALL, 3, l->in_w,
                             err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.self_attn.in_proj_bias", stem);
    if ((rc = mdl_plan_vectors(&m->plan, name, 1, &bias, 3, l->in_b, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.self_attn.out_proj", stem);
    if ((rc = linear(m, name, G2_SMALL, G2_SMALL, &l->o_w, &l->o_b, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.linear1", stem);
    if ((rc = linear(m, name, 2 * G2_SMALL, G2_SMALL, &l->up_w, &l->up_b, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s.linear2", stem);
    if ((rc = linear(m, name, G2_SMALL, 2 * G2_SMALL, &l->down_w, &l->down_b, err)) != RC_OK)
        return rc;
    for (int k = 0; rc == RC_OK && k < 4; k++) {
        snprintf(name, sizeof(name), "%s.%s", stem, norm_names[k]);
        rc = vector(m, name, G2_SMALL, norms[k], err);
    }
    return rc;
}

static enum rc plan_v2(struct mdl *m, struct g2 *g, struct rc_err *err)
{
#define STEM "count_embed.transformer."
    uint32_t d = g->d;
    enum rc rc;

    if ((rc = linear(m, STEM "in_projector", G2_SMALL, d, &g->in_w, &g->in_b, err)) != RC_OK ||
        (rc = halves(m, STEM "out_projector.0.weight", d, G2_SMALL, d, &g->mix_a, &g->mix_b,
                     err)) != RC_OK ||
        (rc = vector(m, STEM "out_projector.0.bias", d, &g->mix.b0, err)) != RC_OK ||
        (rc = linear(m, STEM "out_projector.2", d, d, &g->mix.w1, &g->mix.b1, err)) != RC_OK ||
        (rc = linear(m, STEM "out_projector.4", d, d, &g->last_w, &g->last_b, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; rc == RC_OK && i < G2_LAYERS; i++)
        rc = plan_layer(m, &g->layer[i], i, err);
    return rc;
#undef STEM
}

static enum rc plan_lstm(struct mdl *m, struct g2 *g, struct rc_err *err)
{
    uint32_t d = g->d;
    enum rc rc;

    if ((rc = halves(m, "count_embed.projector.0.weight", 4 * d, d, d, &g->mix_a, &g->mix_b,
                     err)) != RC_OK ||
        (rc = vector(m, "count_embed.projector.0.bias", 4 * d, &g->mix.b0, err)) != RC_OK)
        return rc;
    return linear(m, "count_embed.projector.2", d, 4 * d, &g->mix.w1, &g->mix.b1, err);
}

static enum rc plan_moe(struct mdl *m, struct g2 *g, struct rc_err *err)
{
    uint32_t d = g->d, n = G2_EXPERTS;
    const uint64_t w1[3] = {n, d, 2ull * d}, w2[3] = {n, 2ull * d, d}, b1[2] = {n, 2ull * d},
                   b2[2] = {n, d};
    enum rc rc;

    if ((rc = mlp(m, "count_embed.router", d, d, n, 2, &g->router, err)) != RC_OK ||
        (rc = mdl_plan_turned(&m->plan, "count_embed.w1", 3, w1, d, 2 * d, n, g->e_w1, err)) !=
            RC_OK ||
        (rc = mdl_plan_turned(&m->plan, "count_embed.w2", 3, w2, 2 * d, d, n, g->e_w2, err)) !=
            RC_OK ||
        (rc = mdl_plan_vectors(&m->plan, "count_embed.b1", 2, b1, n, g->e_b1, err)) != RC_OK)
        return rc;
    return mdl_plan_vectors(&m->plan, "count_embed.b2", 2, b2, n, g->e_b2, err);
}

static enum rc plan_count(struct mdl *m, struct g2 *g, struct rc_err *err)
{
    uint32_t d = g->d;
    enum rc rc;

    if ((rc = mdl_plan_weight(&m->plan, "count_embed.pos_embedding.weight", BE_USE_EMBED, 2,
                              MDL_EXTRACT_COUNTS, d, 0, &g->pos, err)) != RC_OK ||
        (rc = mdl_plan_weight(&m->plan, "count_embed.gru.weight_ih_l0", BE_USE_LINEAR, 2, 3 * d, d,
                              0, &g->ih_w, err)) != RC_OK ||
        (rc = mdl_plan_weight(&m->plan, "count_embed.gru.weight_hh_l0", BE_USE_LINEAR, 2, 3 * d, d,
                              0, &g->hh_w, err)) != RC_OK ||
        (rc = vector(m, "count_embed.gru.bias_ih_l0", 3 * d, &g->ih_b, err)) != RC_OK ||
        (rc = vector(m, "count_embed.gru.bias_hh_l0", 3 * d, &g->hh_b, err)) != RC_OK)
        return rc;
    return g->counting == G2_LSTM  ? plan_lstm(m, g, err)
           : g->counting == G2_MOE ? plan_moe(m, g, err)
                                   : plan_v2(m, g, err);
}

enum rc g2_plan(struct mdl *m, struct rc_err *err)
{
    struct g2 *g = m->state;
    uint32_t d = g->d;
    enum rc rc;

    if ((rc = mdl_deberta_plan(g->enc, &m->plan, "encoder.", err)) != RC_OK ||
        (rc = plan_spans(m, g, err)) != RC_OK ||
        (rc = mlp(m, "count_pred", d, 2 * d, MDL_EXTRACT_COUNTS, 2, &g->count, err)) != RC_OK ||
        (rc = mlp(m, "classifier", d, 2 * d, 1, 2, &g->cls, err)) != RC_OK)
        return rc;
    return plan_count(m, g, err);
}

/* ------------------------------------------------------------------- memory */

/* Host arrays, anew for every fit. */
static enum rc fit_host(struct mdl *m, struct g2 *g, struct rc_err *err)
{
    size_t pass = m->passes.max_rows, rows = g->rows, d = g->d;
    const struct {
        void *slot;
        size_t n, size;
    } want[] = {
        {&g->ids, pass, sizeof(int32_t)},
        {&g->gather, rows, sizeof(int32_t)},
        {&g->marks, pass * d, sizeof(float)},
        {&g->step, MDL_EXTRACT_COUNTS * 3 * d, sizeof(float)},
        {&g->count_logits, pass * MDL_EXTRACT_COUNTS, sizeof(float)},
        {&g->n_inst, pass, sizeof(uint32_t)},
        {&g->cls_logits, pass, sizeof(float)},
        {&g->state, rows * d, sizeof(float)},
        {&g->buf, rows * (4 * d + MDL_EXTRACT_COUNTS), sizeof(float)},
        {&g->buf2, rows * d, sizeof(float)},
        {&g->scores, G2_VECS * rows * g->width, sizeof(float)},
        {&g->scratch, (2 * rows + G2_VECS) * 4 * d, sizeof(float)},
        {&g->seg, rows + 1, sizeof(uint32_t)},
        {&g->query, rows, sizeof(struct g2_query)},
    };

    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        void **slot = want[i].slot;

        free(*slot);
        /* scratch is only touched where a device hides its tensors; untouched pages are free */
        if (!(*slot = calloc(want[i].n, want[i].size)))
            return rc_fail(err, RC_NOMEM, "no memory for passes of %zu rows", pass);
    }
    g->stepped = false;
    return RC_OK;
}

enum rc g2_fit(struct mdl *m, struct rc_err *err)
{
    struct g2 *g = m->state;
    uint32_t d = g->d, n, small = g->counting == G2_LSTM_V2 ? G2_SMALL : 0,
             moe = g->counting == G2_MOE ? G2_EXPERTS : 0;
    enum rc rc = mdl_passes_fit(m, err);

    if (rc != RC_OK)
        return rc;
    n = g->rows = m->passes.max_rows < G2_ROWS ? m->passes.max_rows : G2_ROWS;
    if (n < MDL_EXTRACT_COUNTS)
        n = g->rows = MDL_EXTRACT_COUNTS;
    const struct {
        uint32_t cols;
        struct be_tensor **slot;
    } want[] = {
        {d, &g->x},          {d, &g->y},
        {d, &g->z},          {4 * d, &g->hid},
        {4 * d, &g->a},      {4 * d, &g->b},
        {4 * d, &g->vec},    {3 * d, &g->gates},
        {2 * d, &g->mid},    {MDL_EXTRACT_COUNTS, &g->counts},
        {1, &g->one},        {small, &g->sx},
        {small, &g->sq},     {small, &g->sk},
        {small, &g->sv},     {small, &g->sa},
        {2 * small, &g->sf}, {moe, &g->router_out},
    };

    if ((rc = fit_host(m, g, err)) != RC_OK ||
        (rc = mdl_deberta_fit(g->enc, &m->plan, m->passes.max_rows, m->passes.max_seqs,
                              m->info.max_input_tokens, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        if (want[i].cols > 0 &&
            (rc = mdl_plan_tensor(&m->plan, n, want[i].cols, want[i].slot, err)) != RC_OK)
            return rc;
    m->info.ctx_tokens = m->info.max_input_tokens;
    return RC_OK;
}

void g2_free(struct mdl *m)
{
    struct g2 *g = m->state;

    mdl_deberta_free(&g->enc);
    free(g->ids);
    free(g->gather);
    free(g->marks);
    free(g->step);
    free(g->out_bias);
    free(g->count_logits);
    free(g->n_inst);
    free(g->cls_logits);
    free(g->state);
    free(g->buf);
    free(g->buf2);
    free(g->scores);
    free(g->scratch);
    free(g->seg);
    free(g->query);
    free(g);
    m->state = NULL;
}
