/* mdl_gliner2_count.c - vectors of fields, one for each instance.
 *
 * A GRU goes a step for every instance, from the field's own state and with the step's position as
 * input; three kinds of projection follow, by the model. Rows are fields; only count_lstm_v2 lets
 * the fields of one prompt see each other.
 * Always true: a row's numbers do not depend on which other prompts are computed with it.
 * Source: encoders.md 6.5; Cho et al. 2014 for the GRU (gates r, z, n as PyTorch orders them).
 * Tests: tests/models/test_mdl_gliner2.c
 */
#include "mdl_gliner2.h"

#include <math.h>
#include <string.h>

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* What the 20 positions give the gates: once for the model. */
static enum rc make_steps(struct mdl *m, struct g2 *g, struct rc_err *err)
{
    int32_t ids[MDL_EXTRACT_COUNTS];
    struct be_embed_args e = {
        .table = g->pos, .ids = ids, .n = MDL_EXTRACT_COUNTS, .scale = 1, .out = g->x};
    enum rc rc;

    for (int i = 0; i < MDL_EXTRACT_COUNTS; i++)
        ids[i] = i;
    if ((rc = be_embed(m->be, &e, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->x, g->ih_w, g->ih_b, g->gates, MDL_EXTRACT_COUNTS, BE_EPI_NONE,
                        err)) != RC_OK)
        return rc;
    rc = be_tensor_read(m->be, g->gates, 0, MDL_EXTRACT_COUNTS, g->step, err);
    g->stepped = rc == RC_OK;
    return rc;
}

enum rc g2_count_step(struct mdl *m, uint32_t t, uint32_t n, float *state, struct rc_err *err)
{
    struct g2 *g = m->state;
    size_t d = g->d;
    const float *in = g->step + (size_t)t * 3 * d;
    enum rc rc;

    if (!g->stepped && (rc = make_steps(m, g, err)) != RC_OK)
        return rc;
    if ((rc = be_tensor_write(m->be, g->x, 0, n, state, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->x, g->hh_w, g->hh_b, g->gates, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_tensor_read(m->be, g->gates, 0, n, g->buf, err)) != RC_OK)
        return rc;
    for (size_t i = 0; i < n; i++) {
        const float *h = g->buf + i * 3 * d;
        float *s = state + i * d;

        for (size_t c = 0; c < d; c++) {
            float r = sigmoid(in[c] + h[c]), z = sigmoid(in[d + c] + h[d + c]);
            float new = tanhf(in[2 * d + c] + r * h[2 * d + c]);

            s[c] = (1 - z) * new + z *s[c];
        }
    }
    return RC_OK;
}

/* out = w1 relu(a x + b y + b0) + b1, by way of mid. */
static enum rc mix(struct mdl *m, struct g2 *g, const struct be_tensor *x,
                   const struct be_tensor *y, struct be_tensor *mid, uint32_t n_mid, uint32_t n,
                   struct be_tensor *out, struct rc_err *err)
{
    enum rc rc;

    if ((rc = mdl_dense(m->be, x, g->mix_a, g->mix.b0, mid, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = mdl_dense(m->be, y, g->mix_b, NULL, mid, n, BE_EPI_ADD, err)) != RC_OK ||
        (rc = g2_relu(m, mid, n, n_mid, err)) != RC_OK)
        return rc;
    return mdl_dense(m->be, mid, g->mix.w1, g->mix.b1, out, n, BE_EPI_NONE, err);
}

/* ------------------------------------------------------------------ count_lstm_v2 */

static enum rc layer(struct mdl *m, struct g2 *g, const struct g2_layer *w, uint32_t n,
                     const uint32_t *seg, uint32_t n_seg, struct rc_err *err)
{
    const struct mdl_heads heads = {
        .x = g->sx,
        .w = {w->in_w[0], w->in_w[1], w->in_w[2]},
        .b = {w->in_b[0], w->in_b[1], w->in_b[2]},
        .q = g->sq,
        .k = g->sk,
        .v = g->sv,
        .out = g->sa,
        .n_heads = G2_HEADS,
        .head_dim = G2_SMALL / G2_HEADS,
        .radius = -1,
        .offsets = seg,
        .n_seqs = n_seg,
    };
    struct be_layer_norm_args ln = {
        .x = g->sq, .add = g->sx, .w = w->ln1_w, .b = w->ln1_b, .out = g->sx, .n = n, .eps = 1e-5f};
    enum rc rc;

    if ((rc = mdl_attend(m->be, &heads, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->sa, w->o_w, w->o_b, g->sq, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_layer_norm(m->be, &ln, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->sx, w->up_w, w->up_b, g->sf, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = g2_relu(m, g->sf, n, 2 * G2_SMALL, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->sf, w->down_w, w->down_b, g->sq, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    ln.w = w->ln2_w;
    ln.b = w->ln2_b;
    return be_layer_norm(m->be, &ln, err);
}

static enum rc project_v2(struct mdl *m, struct g2 *g, uint32_t n, const float *state,
                          const float *fields, const uint32_t *seg, uint32_t n_seg,
                          struct be_tensor **out, struct rc_err *err)
{
    enum rc rc;

    for (size_t i = 0; i < (size_t)n * g->d; i++)
        g->buf2[i] = state[i] + fields[i];
    if ((rc = be_tensor_write(m->be, g->x, 0, n, g->buf2, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->x, g->in_w, g->in_b, g->sx, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < G2_LAYERS; i++)
        if ((rc = layer(m, g, &g->layer[i], n, seg, n_seg, err)) != RC_OK)
            return rc;
    if ((rc = mix(m, g, g->sx, g->x, g->y, g->d, n, g->z, err)) != RC_OK ||
        (rc = g2_relu(m, g->z, n, g->d, err)) != RC_OK)
        return rc;
    *out = g->y;
    return mdl_dense(m->be, g->z, g->last_w, g->last_b, g->y, n, BE_EPI_NONE, err);
}

/* ------------------------------------------------------------------------- others */

static enum rc project_lstm(struct mdl *m, struct g2 *g, uint32_t n, const float *state,
                            const float *fields, struct be_tensor **out, struct rc_err *err)
{
    enum rc rc;

    if ((rc = be_tensor_write(m->be, g->x, 0, n, state, err)) != RC_OK ||
        (rc = be_tensor_write(m->be, g->y, 0, n, fields, err)) != RC_OK)
        return rc;
    *out = g->z;
    return mix(m, g, g->x, g->y, g->hid, 4 * g->d, n, g->z, err);
}

static void softmax(float *p, uint32_t n)
{
    float most = p[0], sum = 0;

    for (uint32_t i = 1; i < n; i++)
        most = p[i] > most ? p[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i] = expf(p[i] - most);
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* All experts, weighted by the gates. */
static enum rc project_moe(struct mdl *m, struct g2 *g, uint32_t n, const float *state,
                           struct be_tensor **out, struct rc_err *err)
{
    size_t d = g->d;
    float *sum = g->buf2, *one = g->buf, *gates = g->buf + (size_t)n * d;
    enum rc rc;

    if ((rc = be_tensor_write(m->be, g->x, 0, n, state, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->x, g->router.w0, g->router.b0, g->y, n, BE_EPI_GELU_ERF, err)) !=
            RC_OK ||
        (rc = mdl_dense(m->be, g->y, g->router.w1, g->router.b1, g->router_out, n, BE_EPI_NONE,
                        err)) != RC_OK ||
        (rc = be_tensor_read(m->be, g->router_out, 0, n, gates, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        softmax(gates + (size_t)i * G2_EXPERTS, G2_EXPERTS);
    memset(sum, 0, n * d * sizeof(*sum));
    for (uint32_t e = 0; e < G2_EXPERTS; e++) {
        if ((rc = mdl_dense(m->be, g->x, g->e_w1[e], g->e_b1[e], g->mid, n, BE_EPI_GELU_ERF,
                            err)) != RC_OK ||
            (rc = mdl_dense(m->be, g->mid, g->e_w2[e], g->e_b2[e], g->y, n, BE_EPI_NONE, err)) !=
                RC_OK ||
            (rc = be_tensor_read(m->be, g->y, 0, n, one, err)) != RC_OK)
            return rc;
        for (size_t i = 0; i < n; i++)
            for (size_t c = 0; c < d; c++)
                sum[i * d + c] += gates[i * G2_EXPERTS + e] * one[i * d + c];
    }
    *out = g->z;
    return be_tensor_write(m->be, g->z, 0, n, sum, err);
}

enum rc g2_count_project(struct mdl *m, uint32_t n, const float *state, const float *fields,
                         const uint32_t *seg, uint32_t n_seg, struct be_tensor **out,
                         struct rc_err *err)
{
    struct g2 *g = m->state;

    return g->counting == G2_LSTM  ? project_lstm(m, g, n, state, fields, out, err)
           : g->counting == G2_MOE ? project_moe(m, g, n, state, out, err)
                                   : project_v2(m, g, n, state, fields, seg, n_seg, out, err);
}
