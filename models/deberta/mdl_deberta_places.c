/* mdl_deberta_places.c - relative positions: which place of the table a distance has, and what
 * the table gives in every layer. Made once, at load.
 * Source: encoders.md 5.2, 5.3. Tests: tests/models/test_mdl_deberta.c */
#include <math.h>

#include "mdl_deberta_impl.h"

/* In f32, in the reference's order: a bucket's edge may depend on it. The logarithm of the whole
 * range is taken of a number that was rounded from f64, as the reference does. */
static int32_t bucket(const struct mdl_deberta *e, int32_t x)
{
    int32_t mid = (int32_t)e->n_buckets / 2, a = x < 0 ? -x : x;
    float ratio, log_pos;

    if (e->n_buckets == 0 || a <= mid)
        return x;
    ratio = logf((float)a / (float)mid) / logf((float)((e->max_rel - 1) / (double)mid));
    log_pos = ceilf(ratio * (float)(mid - 1)) + (float)mid;
    return x < 0 ? -(int32_t)log_pos : (int32_t)log_pos;
}

void deb_places(const struct mdl_deberta *e, uint32_t longest, int32_t *rel)
{
    int32_t n = (int32_t)longest, span = (int32_t)e->n_rel / 2;

    for (int32_t x = 1 - n; x < n; x++) {
        int32_t at = bucket(e, x) + span;

        rel[x + n - 1] = at < 0 ? 0 : at >= 2 * span ? 2 * span - 1 : at;
    }
}

enum rc deb_place_layers(struct mdl_deberta *e, struct be_ctx *be, struct rc_err *err)
{
    struct be_embed_args table = {
        .table = e->rel_table, .ids = e->counts, .n = e->n_rel, .scale = 1, .out = e->places};
    struct be_layer_norm_args ln = {.x = e->places,
                                    .w = e->rel_ln_w,
                                    .b = e->rel_ln_b,
                                    .out = e->places,
                                    .n = e->n_rel,
                                    .eps = e->norm_eps};
    enum rc rc;

    if (!e->relative)
        return RC_OK;
    if ((rc = be_embed(be, &table, err)) != RC_OK ||
        (e->norm_rel && (rc = be_layer_norm(be, &ln, err)) != RC_OK))
        return rc;
    for (uint32_t l = 0; l < e->n_layers; l++) {
        struct deb_layer *w = &e->layer[l];
        bool own = !e->share_att_key;

        if (e->c2p &&
            (rc = mdl_dense(be, e->places, own ? w->pos_k_w : w->k_w, own ? w->pos_k_b : w->k_b,
                            w->rk, e->n_rel, BE_EPI_NONE, err)) != RC_OK)
            return rc;
        if (e->p2c &&
            (rc = mdl_dense(be, e->places, own ? w->pos_q_w : w->q_w, own ? w->pos_q_b : w->q_b,
                            w->rq, e->n_rel, BE_EPI_NONE, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}
