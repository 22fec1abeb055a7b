/* mdl_passes.c - a call of mdl_encode, cut into passes that fit.
 *
 * Checks the sequences of a call, takes as many whole ones as the memory of a pass holds, and has
 * the family run them, until all are done. Knows no family's arithmetic.
 * Always true: nothing is computed for a call with a bad sequence in it; a sequence is never cut
 * over two passes; one input of max_input_tokens always fits, and that is what the model takes
 * unless the workspace is too small for it: then less, and info says so.
 * Tests: tests/models/test_mdl_bert.c, test_mdl_eg2.c
 */
#include "mdl_impl.h"

#include <math.h>
#include <stdlib.h>

#define MAX_SEQS 1024
#define MAX_ROWS (1u << 20) /* no family takes inputs of more tokens */
#define LEAST_INPUT 64u     /* a workspace for less is refused */

/* batch_tokens, but never less than one input of full length (else no input of that length could
 * ever be served). */
static uint32_t rows_needed(const struct mdl *m)
{
    uint32_t rows = m->opts.batch_tokens;

    if (rows < m->info.max_input_tokens)
        rows = m->info.max_input_tokens;
    return rows < MAX_ROWS ? rows : MAX_ROWS;
}

bool mdl_passes_more(const struct mdl *m)
{
    return m->passes.max_rows > rows_needed(m);
}

enum rc mdl_passes_fit(struct mdl *m, struct rc_err *err)
{
    struct mdl_passes *p = &m->passes;
    uint32_t rows = rows_needed(m);

    if (rows < m->opts.encode_rows)
        rows = m->opts.encode_rows < MAX_ROWS ? m->opts.encode_rows : MAX_ROWS;
    mdl_passes_deinit(p);
    p->max_rows = rows;
    p->max_seqs = rows / 2 < MAX_SEQS ? rows / 2 : MAX_SEQS;
    p->offsets = calloc((size_t)p->max_seqs + 1, sizeof(*p->offsets));
    p->pos = calloc(p->max_rows, sizeof(*p->pos));
    if (!p->offsets || !p->pos)
        return rc_fail(err, RC_NOMEM, "no memory for passes of %u rows", p->max_rows);
    return RC_OK;
}

bool mdl_passes_shrink(struct mdl *m)
{
    uint32_t most = m->info.max_input_tokens;

    if (mdl_passes_more(m)) {
        m->opts.encode_rows = m->passes.max_rows / 2;
        return true;
    }
    m->opts.encode_rows = 0; /* not even all that are needed fit */
    if (m->passes.max_rows > most) {
        m->opts.batch_tokens = m->passes.max_rows / 2;
        return true;
    }
    if (most <= LEAST_INPUT) /* shorter inputs rather than none */
        return false;
    most -= most / 8;
    m->info.max_input_tokens = most > LEAST_INPUT ? most : LEAST_INPUT;
    m->opts.batch_tokens = m->info.max_input_tokens;
    return true;
}

void mdl_passes_deinit(struct mdl_passes *p)
{
    free(p->offsets);
    free(p->pos);
    *p = (struct mdl_passes){0};
}

enum rc mdl_passes_check(const struct mdl *m, const int32_t *ids, uint32_t n, struct rc_err *err)
{
    if (n == 0 || n > m->info.max_input_tokens)
        return rc_fail(err, RC_INVALID, "%u rows, expected 1 to %u", n, m->info.max_input_tokens);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= (int32_t)m->info.vocab_size)
            return rc_fail(err, RC_INVALID, "token %d, expected 0 to %u", ids[i],
                           m->info.vocab_size - 1);
    return RC_OK;
}

enum rc mdl_passes_bad(uint32_t s, enum rc rc, struct rc_err *err)
{
    rc_wrap(err, "sequence %u", s);
    if (err)
        err->item = (int32_t)s;
    return rc;
}

/* Sequences s .. s + n_seqs - 1 of the call, as many as fit, and their media: those that `from`
 * begins with. */
static void next(struct mdl_passes *own, uint32_t s, uint32_t n_seqs, const int32_t *ids,
                 const uint32_t *offsets, const struct mdl_encode_media *from, uint32_t n_media,
                 struct mdl_pass *out)
{
    uint32_t first = offsets[s], k, r;

    *out = (struct mdl_pass){
        .offsets = own->offsets, .pos = own->pos, .ids = ids + first, .media = from, .row0 = first};
    for (k = 0; s + k < n_seqs && k < own->max_seqs && offsets[s + k + 1] - first <= own->max_rows;
         k++) {
        own->offsets[k + 1] = offsets[s + k + 1] - first;
        for (r = own->offsets[k]; r < own->offsets[k + 1]; r++)
            own->pos[r] = (int32_t)(r - own->offsets[k]);
    }
    out->n_seqs = k;
    out->n_rows = own->offsets[k];
    while (out->n_media < n_media && from[out->n_media].row - first < out->n_rows)
        out->n_media++;
}

enum rc mdl_passes_run(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *offsets,
                       const struct mdl_encode_media *media, uint32_t n_media, float *out,
                       float *weights, float *vectors, struct rc_err *err)
{
    struct mdl_pass p;
    uint32_t s;
    enum rc rc = RC_OK;

    for (s = 0; s < n_seqs; s++) {
        uint32_t n = offsets[s + 1] > offsets[s] ? offsets[s + 1] - offsets[s] : 0;

        if ((rc = mdl_passes_check(m, ids + offsets[s], n, err)) != RC_OK)
            return mdl_passes_bad(s, rc, err);
    }
    if (m->fam->check_media)
        rc = m->fam->check_media(m, n_seqs, ids, offsets, media, n_media, err);
    for (s = 0; rc == RC_OK && s < n_seqs; s += p.n_seqs) {
        next(&m->passes, s, n_seqs, ids, offsets, media, n_media, &p);
        p.weights = weights ? weights + p.row0 : NULL;
        p.vectors = vectors ? vectors + (size_t)p.row0 * m->info.token_dim : NULL;
        rc = m->fam->encode(m, &p, out + (size_t)s * mdl_encode_dim(m), err);
        if (n_media > 0)
            media += p.n_media;
        n_media -= p.n_media;
    }
    return rc;
}

static enum rc check_finite(const float *v, size_t n, const char *what, struct rc_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return rc_fail(err, RC_FORMAT, "the model's first %s is not finite (value %zu)", what,
                           i);
    return RC_OK;
}

enum rc mdl_passes_self_test(struct mdl *m, struct rc_err *err)
{
    const int32_t ids[2] = {0, (int32_t)m->info.vocab_size - 1};
    const uint32_t offsets[2] = {0, 2};
    size_t dim = mdl_encode_dim(m), n_vec = 2 * (size_t)m->info.token_dim;
    float *out = calloc(dim + 2 + n_vec, sizeof(float)), *weights, *vectors;
    enum rc rc;

    if (!out)
        return rc_fail(err, RC_NOMEM, "no memory for a vector");
    weights = out + dim;
    vectors = weights + 2;
    rc = mdl_encode_tokens(m, 1, ids, offsets, out, m->info.can_sparse ? weights : NULL,
                           n_vec ? vectors : NULL, err);
    if (rc == RC_OK)
        rc = check_finite(out, dim, m->info.can_rerank ? "logit" : "vector", err);
    if (rc == RC_OK)
        rc = check_finite(weights, 2 + n_vec, "token's weight or vector", err);
    free(out);
    return rc;
}

double mdl_normalize(float *x, uint32_t n)
{
    double sum = 0, length;
    uint32_t i;

    for (i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    length = sqrt(sum);
    for (i = 0; i < n; i++)
        x[i] = (float)(x[i] / (length < 1e-12 ? 1e-12 : length));
    return length;
}
