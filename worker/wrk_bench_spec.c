/* wrk_bench_spec.c - what guessing tokens ahead gains: the same answers, plain and guessed.
 *
 * Two texts: one that repeats itself, answered greedily - lookups' best case - and prose,
 * drawn at temperature 1 with a fixed seed, where nothing repeats. Each is answered without
 * guesses and then by engines that guess, from the text (lookup) and with the model's own
 * drafter where it has one (mtp). The engine decides as in a server how many to guess and
 * when to stop: its first answer is the warm-up in which it learns what guesses cost, and
 * what it says then - that plain decoding is faster here - is told too.
 * Tests: tests/worker/test_wrk_bench.c
 */
#include <string.h>

#include "wrk_bench_impl.h"

#define TEXT_TOKENS 256u /* most of a prompt */

static const struct text {
    const char *name;
    float temperature;
    bool again; /* from the start, until the prompt is full */
    const char *words;
} texts[] = {
    {"repeating", 0, true,
     "Row: the quick brown fox jumps over the lazy dog, then sleeps until noon.\n"},
    {"prose", 1, false,
     "The harbour had been quiet all winter. When the ice broke in March the first boats came back "
     "with little more than stories, and the people of the town listened to them because there was "
     "nothing else to buy. Old Marten mended nets behind the chapel, as his mother had done, and "
     "told anyone who stopped that the herring would return with the south wind. Nobody quite "
     "believed him, yet every morning somebody climbed the hill to look at the water. On the ninth "
     "day a girl came running down with her shoes in her hand, and behind her the bells began to "
     "ring. What she had seen from the hill was"},
};
#define N_TEXTS (sizeof(texts) / sizeof(texts[0]))

struct measured {
    struct wrk_bench_runs rate;
    uint64_t hash, n_right, n_wrong;
};

/* Its tokens into b->ids. */
static enum rc tokens(struct wrk_bench *b, const struct text *t, uint32_t most, uint32_t *out,
                      struct rc_err *err)
{
    const struct mdl_tok_flags flags = {.add_special = true}, bare = {.add_special = false};
    const struct mdl_tok *tok = mdl_tok_get(b->model.mdl);
    struct mdl_ids ids = {0};
    enum rc rc = mdl_tok_encode(tok, t->words, strlen(t->words), &flags, &ids, err);

    while (rc == RC_OK && t->again && ids.n < most) {
        size_t had = ids.n;

        rc = mdl_tok_encode(tok, t->words, strlen(t->words), &bare, &ids, err);
        if (rc == RC_OK && ids.n == had)
            rc = rc_fail(err, RC_INTERNAL, "a text without tokens");
    }
    *out = 0;
    for (size_t i = 0; rc == RC_OK && i < ids.n && i < most; i++) {
        if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= b->info->vocab_size)
            rc = rc_fail(err, RC_INTERNAL, "token %d of a text, the vocabulary has %u", ids.ids[i],
                         b->info->vocab_size);
        b->ids[(*out)++] = (uint32_t)ids.ids[i];
    }
    mdl_ids_deinit(&ids);
    return rc;
}

/* Runs of one answer on the engine at hand, after a warm-up. */
static enum rc answer(struct wrk_bench *b, const struct text *t, uint32_t n, uint32_t gen,
                      struct measured *m, struct rc_err *err)
{
    const struct wrk_bench_ask q = {
        .ids = b->ids, .n = n, .max_tokens = gen + 1, .temperature = t->temperature};
    struct wrk_bench_front *f = &b->front;
    enum rc rc;

    memset(m, 0, sizeof(*m));
    for (uint64_t i = 0; i <= b->o.runs; i++) {
        const struct wrk_bench_answer *a = &f->a[0];
        uint64_t us;

        wrk_bench_clear(f);
        if ((rc = wrk_bench_generate(f, &q, err)) != RC_OK ||
            (rc = wrk_bench_wait(f, err)) != RC_OK)
            return rc;
        /* the warm-up's too: where guesses do not pay there are none later */
        m->n_right += a->n_right;
        m->n_wrong += a->n_wrong;
        if (i == 0)
            continue;
        us = f->spent_us - a->first_us;
        wrk_bench_add(&m->rate, (double)gen * 1e6 / (double)(us > 0 ? us : 1));
        m->hash = a->hash;
    }
    return RC_OK;
}

static void put_case(json_t *rows, const char *mode, const struct text *t, uint32_t gen,
                     const struct measured *plain, const struct measured *spec,
                     const struct wrk_bench_front *f)
{
    double was = wrk_bench_median(&plain->rate), is = wrk_bench_median(&spec->rate);
    uint64_t offered = spec->n_right + spec->n_wrong;
    json_t *o = json_object();

    json_array_append_new(rows, o);
    json_object_set_new(o, "mode", json_string(mode));
    json_object_set_new(o, "text", json_string(t->name));
    json_object_set_new(o, "gen_tokens", json_integer(gen));
    wrk_bench_put(o, "plain_tok_s", &plain->rate);
    wrk_bench_put(o, "spec_tok_s", &spec->rate);
    json_object_set_new(o, "gain", json_real(was > 0 ? is / was : 0));
    json_object_set_new(o, "offered", json_integer((json_int_t)offered));
    json_object_set_new(o, "accepted", json_integer((json_int_t)spec->n_right));
    json_object_set_new(o, "acceptance",
                        json_real(offered > 0 ? (double)spec->n_right / (double)offered : 0));
    json_object_set_new(o, "rests", json_boolean(f->spec_rests));
    json_object_set_new(o, "gain_metered", json_real(f->spec_gain));
    json_object_set_new(o, "same_tokens", json_boolean(plain->hash == spec->hash));
}

static enum rc guessed(struct wrk_bench *b, const struct text *t, uint32_t n, uint32_t gen,
                       struct mdl *drafter, const struct measured *plain, struct rc_err *err)
{
    const char *mode = drafter != NULL ? "mtp" : "lookup";
    struct measured spec;
    enum rc rc;

    wrk_bench_say(b, "measuring: guessing ahead, %s, %s", mode, t->name);
    if ((rc = wrk_bench_engine(&b->front, b->model.spec_most, drafter, err)) != RC_OK ||
        (rc = answer(b, t, n, gen, &spec, err)) != RC_OK ||
        (rc = wrk_bench_stats(&b->front, err)) != RC_OK)
        return rc;
    put_case(json_object_get(b->out, "speculation"), mode, t, gen, plain, &spec, &b->front);
    return RC_OK;
}

enum rc wrk_bench_speculation(struct wrk_bench *b, struct rc_err *err)
{
    uint32_t gen = (uint32_t)b->o.gen, ctx = b->info->ctx_tokens, most;
    enum rc rc = RC_OK;

    if (gen > ctx / 2)
        gen = ctx / 2;
    most = ctx - gen - 1 < TEXT_TOKENS ? ctx - gen - 1 : TEXT_TOKENS;
    json_object_set_new(b->out, "speculation_tokens", json_integer(b->model.spec_most));
    json_object_set_new(b->out, "speculation", json_array());
    for (size_t i = 0; i < N_TEXTS && rc == RC_OK; i++) {
        const struct text *t = &texts[i];
        struct measured plain;
        uint32_t n;

        wrk_bench_say(b, "measuring: guessing ahead, plain, %s", t->name);
        if ((rc = tokens(b, t, most, &n, err)) != RC_OK ||
            (rc = wrk_bench_engine(&b->front, 0, NULL, err)) != RC_OK ||
            (rc = answer(b, t, n, gen, &plain, err)) != RC_OK)
            return rc;
        if (b->model.drafter != NULL)
            rc = guessed(b, t, n, gen, b->model.drafter, &plain, err);
        if (rc == RC_OK)
            rc = guessed(b, t, n, gen, NULL, &plain, err);
    }
    return rc;
}
