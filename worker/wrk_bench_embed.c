/* wrk_bench_embed.c - texts a second of a model that embeds, by how many come in one request.
 * Tests: tests/worker/test_wrk_bench.c
 */
#include "wrk_bench_impl.h"

/* One request of n texts of len tokens. */
static enum rc embed(struct wrk_bench *b, uint32_t n, uint32_t len, uint64_t *us,
                     struct rc_err *err)
{
    const struct wrk_bench_ask q = {.ids = b->ids, .n = len};
    struct wrk_bench_front *f = &b->front;
    uint64_t begun = f->spent_us;
    enum rc rc;

    wrk_bench_clear(f);
    if ((rc = wrk_bench_embed(f, &q, n, err)) != RC_OK || (rc = wrk_bench_wait(f, err)) != RC_OK)
        return rc;
    *us = f->spent_us - begun > 0 ? f->spent_us - begun : 1;
    return RC_OK;
}

/* A warm-up and the runs. */
static enum rc embed_runs(struct wrk_bench *b, uint32_t n, uint32_t len, json_t *o,
                          struct wrk_bench_runs *texts, struct rc_err *err)
{
    struct wrk_bench_runs tokens = {.n = 0};
    uint64_t us;
    enum rc rc = embed(b, n, len, &us, err);

    texts->n = 0;
    for (uint64_t i = 0; i < b->o.runs && rc == RC_OK; i++) {
        if ((rc = embed(b, n, len, &us, err)) != RC_OK)
            break;
        wrk_bench_add(texts, n * 1e6 / (double)us);
        wrk_bench_add(&tokens, (double)n * len * 1e6 / (double)us);
    }
    if (rc != RC_OK)
        return rc;
    wrk_bench_put(o, "encode_seq_s", texts);
    wrk_bench_put(o, "encode_tok_s", &tokens);
    return RC_OK;
}

static enum rc scaling(struct wrk_bench *b, uint32_t len, struct rc_err *err)
{
    json_t *rows = json_array();
    double one = 0;
    enum rc rc = RC_OK;

    json_object_set_new(b->out, "embed_scaling", rows);
    for (uint32_t n = 1; n <= WRK_BENCH_TOGETHER && rc == RC_OK; n *= 2) {
        json_t *row = json_object();
        struct wrk_bench_runs r;

        wrk_bench_say(b, "measuring: %u texts in one request", n);
        json_array_append_new(rows, row);
        json_object_set_new(row, "texts", json_integer(n));
        if ((rc = embed_runs(b, n, len, row, &r, err)) != RC_OK)
            break;
        one = n == 1 ? wrk_bench_median(&r) : one;
        if (one > 0)
            json_object_set_new(row, "scaling", json_real(wrk_bench_median(&r) / one));
    }
    return rc;
}

enum rc wrk_bench_embed_all(struct wrk_bench *b, struct rc_err *err)
{
    uint32_t n = (uint32_t)b->o.embed_batch, len = (uint32_t)b->o.embed_tokens;
    struct wrk_bench_runs r;
    enum rc rc = wrk_bench_engine(&b->front, 0, NULL, err);

    if (rc != RC_OK)
        return rc;
    wrk_bench_text(b, len, 0);
    json_object_set_new(b->out, "embed_tokens", json_integer(len));
    if ((b->o.sections & WRK_BENCH_EMBED) != 0) {
        wrk_bench_say(b, "measuring: %u texts of %u tokens", n, len);
        json_object_set_new(b->out, "embed_batch", json_integer(n));
        if ((rc = embed_runs(b, n, len, b->out, &r, err)) != RC_OK)
            return rc;
    }
    return (b->o.sections & WRK_BENCH_BATCH) != 0 ? scaling(b, len, err) : RC_OK;
}
