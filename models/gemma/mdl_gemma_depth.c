/* mdl_gemma_depth.c - a cache of any depth for measurements, without the prefill that
 * would make it, and what a token behind it reads.
 *
 * The numbers written are made up; their count, type and place are those of real ones.
 * Nothing that answers a request comes here. Tests: tests/models/test_mdl_gemma4.c
 */
#include "mdl_gemma.h"

#include <stdlib.h>

/* Layer l's query at pos sees so many positions. */
static uint64_t seen(const struct gemma *g, uint32_t l, uint32_t pos)
{
    uint64_t n = (uint64_t)pos + 1;

    return g->layer[l].kind == GEMMA_SLIDING && n > g->window ? g->window : n;
}

uint64_t mdl_gemma_kv_read(const struct mdl *m, uint32_t pos)
{
    const struct gemma *g = m->state;
    uint64_t n = 0;

    for (uint32_t l = 0; l < g->n_layers; l++) {
        const struct gemma_geo *geo = &g->geo[g->layer[l].kind];
        uint64_t row = 0; /* one head's key; widths are checked to be small */

        if (be_dtype_bytes(m->opts.kv_dtype, 1, geo->head_dim, &row))
            n += 2 * geo->n_kv_heads * row * seen(g, l, pos);
    }
    return n;
}

/* n rows of values in [-1, 1), another sequence for another seed. */
static enum rc made_up(struct mdl *m, struct be_tensor *t, uint32_t n, uint32_t width,
                       uint32_t seed, struct rc_err *err)
{
    float *x = malloc((size_t)n * width * sizeof(*x));
    enum rc rc;

    if (!x)
        return rc_fail(err, RC_NOMEM, "%u made-up rows of %u", n, width);
    for (size_t i = 0; i < (size_t)n * width; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    rc = be_tensor_write(m->be, t, 0, n, x, err);
    free(x);
    return rc;
}

enum rc mdl_gemma_kv_fill(struct mdl *m, const struct be_seq *seqs, uint32_t n_seqs,
                          uint32_t n_rows, struct rc_err *err)
{
    struct gemma *g = m->state;
    enum rc rc;

    if (n_rows > g->max_rows)
        return rc_fail(err, RC_LIMIT, "%u rows of a pass, at most %u", n_rows, g->max_rows);
    for (uint32_t l = 0; l < g->n_own; l++) {
        const struct gemma_geo *geo = &g->geo[g->layer[l].kind];
        uint32_t width = geo->n_kv_heads * geo->head_dim;
        struct be_kv_write_args a = {.kv = m->kv,
                                     .layer = g->layer[l].kv,
                                     .k = g->k[geo->buf],
                                     .v = g->v[geo->buf],
                                     .seqs = seqs,
                                     .n_seqs = n_seqs};

        if ((rc = made_up(m, g->k[geo->buf], n_rows, width, 2 * l, err)) != RC_OK ||
            (rc = made_up(m, g->v[geo->buf], n_rows, width, 2 * l + 1, err)) != RC_OK ||
            (rc = be_kv_write(m->be, &a, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}
