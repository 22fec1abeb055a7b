/* be_cpu_spans.c - driver of scores of spans: checks shapes, splits first words over the pool.
 *
 * A span's score never depends on the cut, nor on how many others are asked for.
 * Tests: tests/backends/test_be_cpu_spans.c
 */
#include "be_cpu.h"

struct job {
    const struct be_cpu_kern *kern;
    const struct be_spans_args *s;
};

static void range(void *arg, unsigned thread, size_t i0, size_t i1)
{
    const struct job *j = arg;
    size_t from = (size_t)j->s->row * j->s->n_cols;

    j->kern->spans(j->s, j->s->a->data + from, j->s->b->data + from,
                   j->s->g->data + (size_t)j->s->g_row * j->s->n_cols, (uint32_t)i0, (uint32_t)i1);
}

enum rc be_cpu_spans(struct be_ctx *ctx, const struct be_spans_args *s, struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct job job = {.kern = c->kern, .s = s};
    uint32_t rows, vecs;
    enum rc rc;

    c->ops++;
    if (__builtin_add_overflow(s->row, s->n, &rows) ||
        __builtin_add_overflow(s->g_row, s->n_g, &vecs))
        return rc_fail(err, RC_INVALID, "spans: %u rows from row %u, %u vectors from row %u", s->n,
                       s->row, s->n_g, s->g_row);
    if ((rc = be_cpu_check(s->a, "spans", "a", rows, s->n_cols, err)) != RC_OK ||
        (rc = be_cpu_check(s->b, "spans", "b", rows, s->n_cols, err)) != RC_OK ||
        (rc = be_cpu_check(s->g, "spans", "g", vecs, s->n_cols, err)) != RC_OK)
        return rc;
    be_cpu_pool_run(c->pool, s->n, be_cpu_grain_rows((uint64_t)s->n_cols * s->width * (s->n_g + 1)),
                    range, &job);
    return RC_OK;
}
