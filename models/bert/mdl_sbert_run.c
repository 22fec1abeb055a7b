/* mdl_sbert_run.c - what follows an encoder, as its side files say (mdl_sbert.c): pooling, Dense
 * steps, normalising; and what stands in front of a text.
 *
 * Always true: a sequence's vector depends on its own rows alone; passes allocate nothing.
 * Source: encoders.md 3, gemma.md 9. Tests: tests/models/test_mdl_bert*.c, test_mdl_eg1*.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdl_sbert.h"

enum rc mdl_sbert_join(struct bert_sbert *st, struct mdl *m, int root_fd, struct rc_err *err)
{
    static const char *const files[] = {"model.safetensors", "pytorch_model.bin"};
    uint32_t dim = m->info.d_model * st->n_pools, i, k;
    char name[96], prefix[64];
    enum rc rc;

    for (i = 0; i < st->n_dense; i++) {
        const struct bert_dense *d = &st->dense[i];

        if (d->n_in != dim)
            return rc_fail_what(err, RC_FORMAT, "in_features",
                                "Dense step '%s': in_features %u, what comes before gives %u",
                                d->path, d->n_in, dim);
        snprintf(prefix, sizeof(prefix), "%s.", d->path);
        rc = d->inside ? RC_OK : RC_NOT_FOUND;
        for (k = 0; rc == RC_NOT_FOUND && k < 2; k++) {
            snprintf(name, sizeof(name), "%s/%s", d->path, files[k]);
            rc = mdl_file_beside(m->file, root_fd, name, prefix, err);
        }
        if (rc == RC_NOT_FOUND)
            return rc_fail_what(err, RC_WEIGHT_ABSENT, d->path,
                                "the Dense step '%s' has neither %s nor %s", d->path, files[0],
                                files[1]);
        if (rc != RC_OK)
            return rc;
        dim = d->n_out;
    }
    m->info.embed_dim = dim;
    return RC_OK;
}

enum rc mdl_sbert_plan(struct bert_sbert *st, struct mdl *m, struct rc_err *err)
{
    char name[96];
    uint32_t i;
    enum rc rc;

    for (i = 0; i < st->n_dense; i++) {
        struct bert_dense *d = &st->dense[i];

        snprintf(name, sizeof(name), "%s%s.weight", d->path, d->inside ? "" : ".linear");
        if ((rc = mdl_plan_weight(&m->plan, name, BE_USE_LINEAR, 2, d->n_out, d->n_in, 0, &d->w,
                                  err)) != RC_OK)
            return rc;
        snprintf(name, sizeof(name), "%s.linear.bias", d->path);
        if (d->bias && (rc = mdl_plan_weight(&m->plan, name, BE_USE_VECTOR, 1, d->n_out, 0, 0,
                                             &d->b, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

enum rc mdl_sbert_fit(struct bert_sbert *st, struct mdl *m, struct rc_err *err)
{
    uint32_t seqs = m->passes.max_seqs, wide = m->info.d_model * st->n_pools, i;
    enum rc rc;

    free(st->host);
    if (!(st->host = calloc((size_t)seqs * (wide + m->info.d_model), sizeof(float))))
        return rc_fail(err, RC_NOMEM, "no memory for %u vectors", seqs);
    if ((rc = mdl_plan_tensor(&m->plan, seqs, m->info.d_model, &st->pooled, err)) != RC_OK ||
        (st->n_dense > 0 && st->n_pools > 1 &&
         (rc = mdl_plan_tensor(&m->plan, seqs, wide, &st->joined, err)) != RC_OK))
        return rc;
    for (i = 0; rc == RC_OK && i < st->n_dense; i++)
        rc = mdl_plan_tensor(&m->plan, seqs, st->dense[i].n_out, &st->dense[i].out, err);
    return rc;
}

/* The pools side by side, to out [n_seqs, n_pools * d_model]; rows [n_seqs, d_model] is scratch. */
static enum rc pool(struct bert_sbert *st, struct mdl *m, const struct be_tensor *x,
                    const struct mdl_pass *p, float *rows, float *out, struct rc_err *err)
{
    struct be_pool_args a = {.x = x, .offsets = p->offsets, .n_seqs = p->n_seqs, .out = st->pooled};
    size_t d = m->info.d_model, dim = d * st->n_pools;
    uint32_t i, s;
    enum rc rc;

    for (i = 0; i < st->n_pools; i++) {
        a.kind = st->pools[i];
        if ((rc = be_pool(m->be, &a, err)) != RC_OK ||
            (rc = be_tensor_read(m->be, st->pooled, 0, p->n_seqs, rows, err)) != RC_OK)
            return rc;
        for (s = 0; s < p->n_seqs; s++)
            memcpy(out + s * dim + i * d, rows + s * d, d * sizeof(float));
    }
    return RC_OK;
}

static enum rc dense(struct bert_sbert *st, struct mdl *m, const struct be_tensor *x, uint32_t n,
                     float *out, struct rc_err *err)
{
    uint32_t i;
    enum rc rc;

    for (i = 0; i < st->n_dense; i++) {
        const struct bert_dense *d = &st->dense[i];
        const struct be_softcap_args tanh_1 = {.x = d->out, .n = n, .cap = 1};

        if ((rc = mdl_dense(m->be, x, d->w, d->b, d->out, n, BE_EPI_NONE, err)) != RC_OK ||
            (d->tanh && (rc = be_softcap(m->be, &tanh_1, err)) != RC_OK))
            return rc;
        x = d->out;
    }
    return be_tensor_read(m->be, x, 0, n, out, err);
}

enum rc mdl_sbert_vectors(struct bert_sbert *st, struct mdl *m, const struct be_tensor *x,
                          const struct mdl_pass *p, float *out, struct rc_err *err)
{
    size_t dim = m->info.embed_dim, d = m->info.d_model;
    float *joined = st->host + p->n_seqs * d;
    uint32_t s;
    enum rc rc = pool(st, m, x, p, st->host, st->n_dense > 0 ? joined : out, err);

    if (rc == RC_OK && st->n_dense > 0 && st->n_pools > 1)
        rc = be_tensor_write(m->be, st->joined, 0, p->n_seqs, joined, err);
    if (rc == RC_OK && st->n_dense > 0)
        rc = dense(st, m, st->n_pools > 1 ? st->joined : st->pooled, p->n_seqs, out, err);
    for (s = 0; rc == RC_OK && st->normalize && s < p->n_seqs; s++)
        mdl_normalize(out + s * dim, (uint32_t)dim);
    return rc;
}

/* ------------------------------------------------------------------- tokens */

/* More tokens than any input may have, so that a count in a message is exact for
 * every text that a request can carry. */
#define COUNT_BOUND (8u << 20)

enum rc mdl_sbert_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                         const char *task_type, bool truncate, bool *truncated, struct mdl_ids *out,
                         struct rc_err *err)
{
    struct mdl_tok_flags flags = {.add_special = true, .max_tokens = COUNT_BOUND, .stop = m->stop};
    size_t start = out->n, limit = m->info.max_input_tokens, n, n_prompt;
    const char *prompt = NULL;
    char *joined = NULL;
    enum rc rc;

    if ((rc = mdl_sbert_prompt(m->sbert, task_type, &prompt, err)) != RC_OK)
        return rc;
    if (prompt && *prompt) {
        n_prompt = strlen(prompt);
        if (n_bytes > SIZE_MAX - n_prompt - 1 || !(joined = malloc(n_prompt + n_bytes + 1)))
            return rc_fail(err, RC_NOMEM, "no memory for a text of %zu bytes", n_bytes);
        memcpy(joined, prompt, n_prompt);
        if (n_bytes)
            memcpy(joined + n_prompt, text, n_bytes);
        text = joined;
        n_bytes += n_prompt;
    }
    rc = mdl_tok_encode(m->tok, text, n_bytes, &flags, out, err);
    free(joined);
    if (rc != RC_OK) {
        out->n = start;
        return rc;
    }
    n = out->n - start;
    if (n > limit && !truncate) {
        out->n = start;
        return rc_bound(rc_fail_what(err, RC_TOO_LARGE, "input",
                                     "the input has %zu tokens, this model takes %zu", n, limit),
                        n, limit, err);
    }
    if (n > limit) { /* cut the text's end, keep the closing [SEP] */
        out->ids[start + limit - 1] = out->ids[out->n - 1];
        out->n = start + limit;
    }
    if (truncated)
        *truncated = n > limit;
    return RC_OK;
}
