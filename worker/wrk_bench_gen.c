/* wrk_bench_gen.c - prompts, decoding alone and together, prompts with a known beginning.
 *
 * Prompts are made up: the arithmetic does not look. Where decoding alone is measured, so is
 * what the cache holds of them. Decoding is greedy, and an end token does not end it. What is
 * measured goes through the engine as a client's request does. Tests: tests/worker/test_wrk_bench.c
 */
#include <stdio.h>
#include <string.h>

#include "wrk_bench_impl.h"

#define WARM_TOKENS 128u /* of a prompt, before prompts are timed */
/* Sequences do not end their prompts in one pass: the first decode while the last still read */
#define SLACK 64u

static double per_s(uint64_t n, uint64_t us)
{
    return (double)n * 1e6 / (double)us;
}

/* A prompt in b->ids and one token behind it. *us: until the token was there. */
static enum rc first_token(struct wrk_bench *b, uint32_t n, bool cached, uint64_t *us,
                           uint32_t *n_cached, struct rc_err *err)
{
    const struct wrk_bench_ask q = {.ids = b->ids, .n = n, .max_tokens = 1, .cached = cached};
    struct wrk_bench_front *f = &b->front;
    enum rc rc;

    wrk_bench_clear(f);
    if ((rc = wrk_bench_generate(f, &q, err)) != RC_OK || (rc = wrk_bench_wait(f, err)) != RC_OK)
        return rc;
    *us = f->a[0].first_us > f->a[0].begun_us ? f->a[0].first_us - f->a[0].begun_us : 1;
    if (n_cached != NULL)
        *n_cached = f->a[0].n_cached;
    return RC_OK;
}

enum rc wrk_bench_prompt(struct wrk_bench *b, struct rc_err *err)
{
    struct wrk_bench_runs rate = {.n = 0}, ttft = {.n = 0};
    uint32_t n = (uint32_t)b->o.prompt;
    uint64_t us;
    enum rc rc;

    wrk_bench_say(b, "measuring: prompt of %u tokens", n);
    wrk_bench_text(b, n, 0);
    if ((rc = wrk_bench_engine(&b->front, 0, NULL, err)) != RC_OK ||
        (rc = first_token(b, n < WARM_TOKENS ? n : WARM_TOKENS, false, &us, NULL, err)) != RC_OK)
        return rc;
    for (uint64_t i = 0; i < b->o.runs; i++) {
        if ((rc = first_token(b, n, false, &us, NULL, err)) != RC_OK)
            return rc;
        wrk_bench_add(&rate, per_s(n, us));
        wrk_bench_add(&ttft, (double)us * 1e-3);
    }
    json_object_set_new(b->out, "prompt_tokens", json_integer(n));
    wrk_bench_put(b->out, "prefill_tok_s", &rate);
    wrk_bench_put(b->out, "ttft_ms", &ttft);
    return RC_OK;
}

/* ------------------------------------------------------------------ decoding */

/* Most tokens of one of n sequences that decode `steps` together. */
static uint32_t most_new(const struct wrk_bench *b, uint32_t n, uint32_t steps)
{
    uint32_t want = steps + 1 + (n > 1 ? SLACK : 0);
    uint32_t room = b->info->ctx_tokens - (uint32_t)b->o.context;

    return want < room ? want : room;
}

/* Do the KV pages hold n sequences of n_tokens at once? need and have are of the class of
 * layers that is shortest. */
static bool fits(const struct wrk_bench *b, uint32_t n, uint32_t n_tokens, uint64_t *need,
                 uint64_t *have)
{
    double worst = 0;

    for (uint32_t c = 0; c < b->pages.n_classes; c++) {
        uint64_t pages = (uint64_t)wrk_pages_need(&b->pages, c, n_tokens, 0) * n;
        double part = (double)pages / b->pages.cls[c].n_pages;

        if (part <= worst)
            continue;
        worst = part;
        *need = pages * b->pages.cls[c].page_bytes;
        *have = (uint64_t)b->pages.cls[c].n_pages * b->pages.cls[c].page_bytes;
    }
    return worst <= 1;
}

/* Prompts into the prompt cache, so that they are known when decoding is timed. */
static enum rc learn(struct wrk_bench *b, uint32_t n, struct rc_err *err)
{
    uint32_t len = (uint32_t)b->o.context;
    uint64_t us;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && len >= WRK_BENCH_CACHE_TOKENS && rc == RC_OK; i++) {
        wrk_bench_text(b, len, i + 1);
        rc = first_token(b, len, true, &us, NULL, err);
    }
    return rc;
}

struct decoded {
    double tok_s;  /* of all; 0: one was at its end before all had begun */
    double cpu_ms; /* of all threads, for a step */
};

/* n sequences decode `steps` tokens each behind the context, all in every step. */
static enum rc together(struct wrk_bench *b, uint32_t n, uint32_t steps, struct decoded *d,
                        struct rc_err *err)
{
    struct wrk_bench_front *f = &b->front;
    uint64_t begun, cpu, had, got;
    enum rc rc = RC_OK;

    wrk_bench_clear(f);
    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        const struct wrk_bench_ask q = {.ids = b->ids,
                                        .n = (uint32_t)b->o.context,
                                        .max_tokens = most_new(b, n, steps),
                                        .cached = true};

        wrk_bench_text(b, q.n, i + 1);
        rc = wrk_bench_generate(f, &q, err);
    }
    while (rc == RC_OK && f->n_started < n && f->n_ended == 0)
        rc = wrk_bench_step(f, err);
    begun = f->spent_us;
    cpu = f->spent_cpu_ns;
    had = f->n_tokens;
    *d = (struct decoded){0, 0};
    while (rc == RC_OK && f->n_ended == 0 && f->n_tokens - had < (uint64_t)n * steps)
        rc = wrk_bench_step(f, err);
    if (rc != RC_OK)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        if (f->a[i].err.code != RC_OK)
            return rc_fail(err, f->a[i].err.code, "%s", f->a[i].err.msg);
    if ((got = f->n_tokens - had) > 0) {
        d->tok_s = per_s(got, f->spent_us > begun ? f->spent_us - begun : 1);
        d->cpu_ms = (double)(f->spent_cpu_ns - cpu) * 1e-6 * n / (double)got;
    }
    return wrk_bench_cancel(f, err);
}

/* A warm-up, then the runs. r->n 0: they never decoded all at once. cpu: NULL = not asked. */
static enum rc decode_runs(struct wrk_bench *b, uint32_t n, uint32_t steps,
                           struct wrk_bench_runs *r, struct wrk_bench_runs *cpu, struct rc_err *err)
{
    struct decoded d;
    enum rc rc;

    r->n = 0;
    if ((rc = learn(b, n, err)) != RC_OK ||
        (rc = together(b, n, steps < 4 ? steps : 4, &d, err)) != RC_OK)
        return rc;
    for (uint64_t i = 0; i < b->o.runs; i++) {
        if ((rc = together(b, n, steps, &d, err)) != RC_OK)
            return rc;
        if (d.tok_s <= 0)
            continue;
        wrk_bench_add(r, d.tok_s);
        if (cpu != NULL)
            wrk_bench_add(cpu, d.cpu_ms);
    }
    return RC_OK;
}

/* What a step of n sequences reads of the cache: in the middle of gen, which is the mean. */
static uint64_t kv_read(const struct wrk_bench *b, uint32_t n, uint32_t gen)
{
    return n * mdl_kv_read_bytes(b->model.mdl, (uint32_t)b->o.context + (gen - 1) / 2);
}

enum rc wrk_bench_decode(struct wrk_bench *b, struct rc_err *err)
{
    uint32_t n = (uint32_t)b->o.seqs, gen = (uint32_t)b->o.gen;
    uint32_t len = (uint32_t)b->o.context + most_new(b, n, gen) - 1;
    struct wrk_bench_runs r, cpu = {.n = 0};
    uint64_t need, have;
    enum rc rc;

    wrk_bench_say(b, "measuring: decoding %u tokens", gen);
    if (!fits(b, n, len, &need, &have))
        return rc_fail(err, RC_LIMIT,
                       "--seqs %u of %u tokens need %.1f MiB of KV cache at once, %.1f are there: "
                       "raise --kv-mb",
                       n, len, (double)need / 1048576, (double)have / 1048576);
    if ((rc = wrk_bench_engine_filled(&b->front, err)) != RC_OK ||
        (rc = decode_runs(b, n, gen, &r, &cpu, err)) != RC_OK)
        return rc;
    if (r.n == 0)
        return rc_fail(err, RC_LIMIT,
                       "--seqs %u with --context %llu: their prompts took longer than %u tokens of "
                       "the first one, so all never decoded at once: raise --kv-mb or --gen",
                       n, (unsigned long long)b->o.context, most_new(b, n, gen));
    json_object_set_new(b->out, "context_tokens", json_integer((json_int_t)b->o.context));
    json_object_set_new(b->out, "gen_tokens", json_integer(gen));
    json_object_set_new(b->out, "seqs", json_integer(n));
    wrk_bench_put(b->out, "decode_tok_s", &r);
    wrk_bench_put(b->out, "decode_step_cpu_ms", &cpu);
    json_object_set_new(b->out, "kv_read_bytes", json_integer((json_int_t)kv_read(b, n, gen)));
    return RC_OK;
}

/* --------------------------------------------------------------------- batch */

/* A row of what does not fit. need 0: they fit, and yet were never all there. */
static void put_misfit(json_t *row, uint32_t n, uint32_t len, uint64_t need, uint64_t have)
{
    char why[200];

    if (need > 0)
        snprintf(why, sizeof(why), "%u x %u tokens need %.1f MiB of KV cache, %.1f are there", n,
                 len, (double)need / 1048576, (double)have / 1048576);
    else
        snprintf(why, sizeof(why), "%u prompts took too long to decode all at once", n);
    json_object_set_new(row, "fits", json_false());
    json_object_set_new(row, "why", json_string(why));
}

enum rc wrk_bench_batch(struct wrk_bench *b, struct rc_err *err)
{
    uint32_t steps =
        (uint32_t)b->o.gen < WRK_BENCH_BATCH_STEPS ? (uint32_t)b->o.gen : WRK_BENCH_BATCH_STEPS;
    json_t *rows = json_array();
    struct wrk_bench_runs r;
    double one = 0;
    enum rc rc;

    json_object_set_new(b->out, "batch_context_tokens", json_integer((json_int_t)b->o.context));
    json_object_set_new(b->out, "batch_steps", json_integer(steps));
    json_object_set_new(b->out, "batch", rows);
    if ((rc = wrk_bench_engine(&b->front, 0, NULL, err)) != RC_OK)
        return rc;
    for (uint32_t n = 1; n <= WRK_BENCH_TOGETHER; n *= 2) {
        uint32_t len = (uint32_t)b->o.context + most_new(b, n, steps) - 1;
        uint64_t need = 0, have = 0;
        json_t *row;
        bool fit = fits(b, n, len, &need, &have);

        wrk_bench_say(b, "measuring: %u sequences together", n);
        if (fit && (rc = decode_runs(b, n, steps, &r, NULL, err)) != RC_OK)
            return rc;
        row = json_object();
        json_array_append_new(rows, row);
        json_object_set_new(row, "seqs", json_integer(n));
        if (!fit || r.n == 0) {
            put_misfit(row, n, len, fit ? 0 : need, have);
            continue;
        }
        one = n == 1 ? wrk_bench_median(&r) : one;
        json_object_set_new(row, "fits", json_true());
        wrk_bench_put(row, "decode_tok_s", &r);
        if (one > 0)
            json_object_set_new(row, "scaling", json_real(wrk_bench_median(&r) / one));
    }
    return RC_OK;
}

/* -------------------------------------------------------------------- prefix */

/* A prompt that begins with the prefix of this run; behind it, what this request alone asks. */
static void with_prefix(struct wrk_bench *b, uint32_t run, uint32_t who)
{
    uint32_t n = (uint32_t)b->o.prefix, own = b->pages.page_tokens;

    wrk_bench_text(b, own, 1000003 + 2 * run + who);
    memcpy(b->ids + n, b->ids, own * sizeof(*b->ids));
    wrk_bench_text(b, n, 2000003 + run);
}

enum rc wrk_bench_prefix(struct wrk_bench *b, struct rc_err *err)
{
    struct wrk_bench_runs cold = {.n = 0}, hit = {.n = 0}, ratio = {.n = 0};
    uint32_t n = (uint32_t)b->o.prefix, all = n + b->pages.page_tokens, n_cached = 0;
    uint64_t first, second;
    json_t *o;
    enum rc rc;

    if (n < WRK_BENCH_CACHE_TOKENS) {
        wrk_bench_not(
            b, WRK_BENCH_PREFIX,
            "a context of %u tokens has no room for a prompt that is cached (%u at least)",
            b->info->ctx_tokens, WRK_BENCH_CACHE_TOKENS);
        return RC_OK;
    }
    if ((rc = wrk_bench_engine(&b->front, 0, NULL, err)) != RC_OK)
        return rc;
    wrk_bench_text(b, WRK_BENCH_CACHE_TOKENS, 0);
    if ((rc = first_token(b, WRK_BENCH_CACHE_TOKENS, false, &first, NULL, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < b->o.runs; i++) {
        uint32_t got = 0;

        wrk_bench_say(b, "measuring: prefix of %u tokens, run %u", n, i + 1);
        with_prefix(b, i, 0);
        if ((rc = first_token(b, all, true, &first, NULL, err)) != RC_OK)
            return rc;
        with_prefix(b, i, 1);
        if ((rc = first_token(b, all, true, &second, &got, err)) != RC_OK)
            return rc;
        n_cached = i == 0 || got < n_cached ? got : n_cached;
        wrk_bench_add(&cold, (double)first * 1e-3);
        wrk_bench_add(&hit, (double)second * 1e-3);
        wrk_bench_add(&ratio, (double)second / (double)first);
    }
    o = json_object();
    json_object_set_new(o, "prefix_tokens", json_integer(n));
    json_object_set_new(o, "prompt_tokens", json_integer(all));
    json_object_set_new(o, "cached_tokens", json_integer(n_cached)); /* of the worst run */
    wrk_bench_put(o, "cold_ttft_ms", &cold);
    wrk_bench_put(o, "hit_ttft_ms", &hit);
    wrk_bench_put(o, "ratio", &ratio);
    json_object_set_new(b->out, "prefix", o);
    return RC_OK;
}
