/* mdl_deberta_plan.c - a DeBERTa encoder's weights by name, and the memory of its passes.
 * Source: encoders.md 5.4. Tests: tests/models/test_mdl_deberta.c */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "mdl_deberta_impl.h"

/* name without ".weight" and ".bias"; D d_model, F d_ff; rows 0: LayerNorm of width cols */
static const struct {
    const char *name;
    size_t w, b;
    char rows, cols;
} layer_weights[] = {
#define AT(f) offsetof(struct deb_layer, f)
    {"attention.self.query_proj", AT(q_w), AT(q_b), 'D', 'D'},
    {"attention.self.key_proj", AT(k_w), AT(k_b), 'D', 'D'},
    {"attention.self.value_proj", AT(v_w), AT(v_b), 'D', 'D'},
    {"attention.output.dense", AT(o_w), AT(o_b), 'D', 'D'},
    {"attention.output.LayerNorm", AT(ln1_w), AT(ln1_b), 0, 'D'},
    {"intermediate.dense", AT(up_w), AT(up_b), 'F', 'D'},
    {"output.dense", AT(down_w), AT(down_b), 'D', 'F'},
    {"output.LayerNorm", AT(ln2_w), AT(ln2_b), 0, 'D'},
    /* where keys of positions are not shared: 'K' and 'Q' only with c2p and p2c */
    {"attention.self.pos_key_proj", AT(pos_k_w), AT(pos_k_b), 'K', 'D'},
    {"attention.self.pos_query_proj", AT(pos_q_w), AT(pos_q_b), 'Q', 'D'},
#undef AT
};

enum rc deb_plan_norm(struct mdl_plan *plan, const char *prefix, const char *stem, uint32_t n,
                      struct be_weight **w, struct be_weight **b, struct rc_err *err)
{
    char name[160];
    enum rc rc;

    snprintf(name, sizeof(name), "%s%s.weight", prefix, stem);
    if ((rc = mdl_plan_weight(plan, name, BE_USE_VECTOR, 1, n, 0, 0, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s%s.bias", prefix, stem);
    return mdl_plan_weight(plan, name, BE_USE_VECTOR, 1, n, 0, 0, b, err);
}

static enum rc plan_linear(struct mdl_plan *plan, const char *prefix, const char *stem,
                           uint32_t rows, uint32_t cols, struct be_weight **w, struct be_weight **b,
                           struct rc_err *err)
{
    char name[160];
    enum rc rc;

    snprintf(name, sizeof(name), "%s%s.weight", prefix, stem);
    if ((rc = mdl_plan_weight(plan, name, BE_USE_LINEAR, 2, rows, cols, 0, w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%s%s.bias", prefix, stem);
    return mdl_plan_weight(plan, name, BE_USE_VECTOR, 1, rows, 0, 0, b, err);
}

static enum rc plan_layer(struct mdl_deberta *e, struct mdl_plan *plan, const char *prefix,
                          uint32_t l, struct rc_err *err)
{
    char stem[112];
    bool own = e->relative && !e->share_att_key;

    for (size_t i = 0; i < sizeof(layer_weights) / sizeof(*layer_weights); i++) {
        char *at = (char *)&e->layer[l], rows = layer_weights[i].rows;
        struct be_weight **w = (struct be_weight **)(void *)(at + layer_weights[i].w);
        struct be_weight **b = (struct be_weight **)(void *)(at + layer_weights[i].b);
        enum rc rc;

        if ((rows == 'K' && !(own && e->c2p)) || (rows == 'Q' && !(own && e->p2c)))
            continue;
        snprintf(stem, sizeof(stem), "encoder.layer.%u.%s", l, layer_weights[i].name);
        rc = rows ? plan_linear(plan, prefix, stem, rows == 'F' ? e->d_ff : e->d_model,
                                layer_weights[i].cols == 'F' ? e->d_ff : e->d_model, w, b, err)
                  : deb_plan_norm(plan, prefix, stem, e->d_model, w, b, err);
        if (rc != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc plan_tables(struct mdl_deberta *e, struct mdl_plan *plan, const char *prefix,
                           struct rc_err *err)
{
    const struct {
        const char *name;
        uint32_t rows, cols;
        struct be_weight **slot;
    } tables[] = {
        {"embeddings.word_embeddings", e->info.vocab_size, e->d_embed, &e->word},
        {"embeddings.position_embeddings", e->info.bounded ? e->n_pos : 0, e->d_embed,
         &e->position},
        {"embeddings.token_type_embeddings", e->n_types, e->d_embed, &e->type},
        {"encoder.rel_embeddings", e->relative ? e->n_rel : 0, e->d_model, &e->rel_table},
    };
    char name[128];
    enum rc rc;

    for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
        if (tables[i].rows == 0)
            continue;
        snprintf(name, sizeof(name), "%s%s.weight", prefix, tables[i].name);
        if ((rc = mdl_plan_weight(plan, name, BE_USE_EMBED, 2, tables[i].rows, tables[i].cols, 0,
                                  tables[i].slot, err)) != RC_OK)
            return rc;
    }
    snprintf(name, sizeof(name), "%sembeddings.embed_proj.weight", prefix);
    if (e->d_embed != e->d_model && (rc = mdl_plan_weight(plan, name, BE_USE_LINEAR, 2, e->d_model,
                                                          e->d_embed, 0, &e->proj_w, err)) != RC_OK)
        return rc;
    if (e->relative && e->norm_rel &&
        (rc = deb_plan_norm(plan, prefix, "encoder.LayerNorm", e->d_model, &e->rel_ln_w,
                            &e->rel_ln_b, err)) != RC_OK)
        return rc;
    return deb_plan_norm(plan, prefix, "embeddings.LayerNorm", e->d_model, &e->ln_w, &e->ln_b, err);
}

enum rc mdl_deberta_plan(struct mdl_deberta *e, struct mdl_plan *plan, const char *prefix,
                         struct rc_err *err)
{
    enum rc rc = plan_tables(e, plan, prefix, err);

    for (uint32_t l = 0; rc == RC_OK && l < e->n_layers; l++)
        rc = plan_layer(e, plan, prefix, l, err);
    return rc == RC_OK && e->n_taps > 0 ? deb_conv_plan(e, plan, prefix, err) : rc;
}

/* ------------------------------------------------------------------- memory */

static int32_t *counted(int32_t *old, size_t n, int32_t step)
{
    int32_t *p;

    free(old);
    if ((p = malloc(n * sizeof(*p))))
        for (size_t i = 0; i < n; i++)
            p[i] = (int32_t)i * step;
    return p;
}

static enum rc plan_places(struct mdl_deberta *e, struct mdl_plan *plan, struct rc_err *err)
{
    enum rc rc;

    if (!e->relative)
        return RC_OK;
    if ((rc = mdl_plan_tensor(plan, e->n_rel, e->d_model, &e->places, err)) != RC_OK)
        return rc;
    for (uint32_t l = 0; l < e->n_layers; l++)
        if ((e->c2p &&
             (rc = mdl_plan_tensor(plan, e->n_rel, e->d_model, &e->layer[l].rk, err)) != RC_OK) ||
            (e->p2c &&
             (rc = mdl_plan_tensor(plan, e->n_rel, e->d_model, &e->layer[l].rq, err)) != RC_OK))
            return rc;
    return RC_OK;
}

enum rc mdl_deberta_fit(struct mdl_deberta *e, struct mdl_plan *plan, uint32_t rows, uint32_t seqs,
                        uint32_t longest, struct rc_err *err)
{
    uint32_t d = e->d_model;
    const struct {
        uint32_t rows, cols;
        struct be_tensor **slot;
    } want[] = {
        {rows + (e->n_taps > 0), d, &e->x}, /* the convolution's edges read a row of zeros */
        {rows, d, &e->t},
        {rows, d, &e->q},
        {rows, d, &e->k},
        {rows, d, &e->v},
        {rows, d, &e->att},
        {rows, e->d_ff, &e->ff},
        {e->d_embed != d ? rows : 0, e->d_embed, &e->words},
    };
    enum rc rc;

    e->rows = rows;
    e->longest = longest;
    e->placed = e->zeroed = false;
    e->zeros = counted(e->zeros, rows, 0);
    e->counts = counted(e->counts, e->n_rel, 1);
    e->rel = counted(e->rel, 2 * (size_t)longest - 1, 0);
    if (!e->zeros || !e->counts || !e->rel)
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", rows);
    deb_places(e, longest, e->rel);
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        if (want[i].rows > 0 &&
            (rc = mdl_plan_tensor(plan, want[i].rows, want[i].cols, want[i].slot, err)) != RC_OK)
            return rc;
    if ((rc = plan_places(e, plan, err)) != RC_OK)
        return rc;
    return e->n_taps > 0 ? deb_conv_fit(e, plan, seqs, err) : RC_OK;
}
