/* mdl_deberta_conv.c - the convolution that deberta-v2-xlarge and xxlarge have beside their first
 * layer: x = LN(x + act(conv(embeddings))).
 *
 * Sequences are laid out with zeros between them, so that no window reads a neighbour's rows; a
 * window is then one row of a matrix product. Source: encoders.md 5.3.
 * Tests: tests/models/test_mdl_deberta.c */
#include <stdio.h>
#include <stdlib.h>

#include "mdl_deberta_impl.h"

enum rc deb_conv_plan(struct mdl_deberta *e, struct mdl_plan *plan, const char *prefix,
                      struct rc_err *err)
{
    const uint64_t dims[3] = {e->d_model, e->d_model, e->n_taps};
    char name[128];
    enum rc rc;

    if (plan->be && !be_can_towers(plan->be))
        return rc_fail_what(err, RC_UNSUPPORTED, "conv_kernel_size",
                            "DeBERTa with a convolution is not supported on backend '%s'",
                            be_ctx_backend(plan->be));
    snprintf(name, sizeof(name), "%sencoder.conv.conv.weight", prefix);
    if ((rc = mdl_plan_shaped(plan, name, BE_USE_LINEAR, 3, dims, e->d_model,
                              (uint64_t)e->d_model * e->n_taps, &e->conv_w, err)) != RC_OK)
        return rc;
    snprintf(name, sizeof(name), "%sencoder.conv.conv.bias", prefix);
    if ((rc = mdl_plan_weight(plan, name, BE_USE_VECTOR, 1, e->d_model, 0, 0, &e->conv_b, err)) !=
        RC_OK)
        return rc;
    return deb_plan_norm(plan, prefix, "encoder.conv.LayerNorm", e->d_model, &e->conv_ln_w,
                         &e->conv_ln_b, err);
}

enum rc deb_conv_fit(struct mdl_deberta *e, struct mdl_plan *plan, uint32_t seqs,
                     struct rc_err *err)
{
    uint32_t pad = e->n_taps / 2, n = e->rows + (seqs + 1) * pad;
    enum rc rc;

    free(e->at);
    if (!(e->at = calloc(n, sizeof(*e->at))))
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", e->rows);
    if ((rc = mdl_plan_tensor(plan, n, e->d_model, &e->padded, err)) != RC_OK ||
        (rc = mdl_plan_tensor(plan, n, e->d_model * e->n_taps, &e->windows, err)) != RC_OK ||
        (rc = mdl_plan_tensor(plan, n, e->d_model, &e->conv, err)) != RC_OK)
        return rc;
    return mdl_plan_tensor(plan, e->rows, e->d_model, &e->conv_rows, err);
}

/* Places of rows with `pad` zero rows before every sequence and behind the last. */
static uint32_t spread(struct mdl_deberta *e, const struct mdl_pass *p, uint32_t pad)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < p->n_seqs; s++) {
        for (uint32_t i = 0; i < pad; i++)
            e->at[n++] = (int32_t)e->rows;
        for (uint32_t r = p->offsets[s]; r < p->offsets[s + 1]; r++)
            e->at[n++] = (int32_t)r;
    }
    for (uint32_t i = 0; i < pad; i++)
        e->at[n++] = (int32_t)e->rows;
    return n;
}

enum rc deb_conv(struct mdl_deberta *e, struct be_ctx *be, const struct mdl_pass *p,
                 struct rc_err *err)
{
    uint32_t pad = e->n_taps / 2, n = spread(e, p, pad);
    struct be_gather_args g = {.x = e->x, .rows = e->at, .n = n, .out = e->padded};
    struct be_unfold_args u = {.x = e->padded,
                               .out = e->windows,
                               .width = n,
                               .height = 1,
                               .n_ch = e->d_model,
                               .k_h = 1,
                               .k_w = e->n_taps,
                               .stride_h = 1,
                               .stride_w = 1,
                               .ch_first = true,
                               .n_lines = 1};
    struct be_softcap_args tanh = {.x = e->conv_rows, .n = p->n_rows, .cap = 1};
    enum rc rc;

    if (!e->zeroed) {
        float *zeros = calloc(e->d_model, sizeof(float)); /* once, at load */

        if (!zeros)
            return rc_fail(err, RC_NOMEM, "no memory for a row");
        rc = be_tensor_write(be, e->x, e->rows, 1, zeros, err);
        free(zeros);
        if (rc != RC_OK)
            return rc;
        e->zeroed = true;
    }
    if ((rc = be_gather(be, &g, err)) != RC_OK || (rc = be_unfold(be, &u, err)) != RC_OK ||
        (rc = mdl_dense(be, e->windows, e->conv_w, e->conv_b, e->conv, n - 2 * pad, e->conv_act,
                        err)) != RC_OK)
        return rc;
    /* a row's window begins where `pad` zeros for each sequence so far were put */
    for (uint32_t s = 0; s < p->n_seqs; s++)
        for (uint32_t r = p->offsets[s]; r < p->offsets[s + 1]; r++)
            e->at[r] = (int32_t)(r + s * pad);
    g = (struct be_gather_args){.x = e->conv, .rows = e->at, .n = p->n_rows, .out = e->conv_rows};
    if ((rc = be_gather(be, &g, err)) != RC_OK)
        return rc;
    return e->conv_tanh ? be_softcap(be, &tanh, err) : RC_OK;
}
