/* wrk_bench_fit.c - what is measured with, before anything is: numbers, memory, made-up texts.
 *
 * A number that was given is taken or refused; one that was not is the default, lowered to
 * what the model's context and the KV cache hold. Tests: tests/worker/test_wrk_bench.c
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_bench_impl.h"

#define PROMPT_DEFAULT 512u
#define GEN_DEFAULT 128u
#define PREFIX_DEFAULT 2048u
#define EMBED_BATCH_DEFAULT 32u
#define EMBED_TOKENS_DEFAULT 128u

static uint64_t or_else(uint64_t given, uint64_t dflt, uint64_t most)
{
    return given != 0 ? given : dflt < most ? dflt : most;
}

static enum rc fit_generate(struct wrk_bench *b, struct rc_err *err)
{
    uint64_t ctx = b->info->ctx_tokens, most, page = mdl_kv(b->model.mdl)->page_tokens;
    struct wrk_bench_opts *o = &b->o;

    o->prompt = or_else(o->prompt, PROMPT_DEFAULT, ctx - 1);
    o->context = or_else(o->context, WRK_BENCH_CONTEXT, ctx / 2);
    most = ctx > o->context ? ctx - o->context : 1;
    o->gen = or_else(o->gen, GEN_DEFAULT, most > 1 ? most - 1 : 1);
    o->seqs = or_else(o->seqs, 1, 1);
    /* the prefix, what each request asks behind it, and a token of answer */
    most = ctx > page + 1 ? (ctx - page - 1) / page * page : 0;
    if (o->prefix > most)
        return rc_fail(err, RC_INVALID, "--prefix %llu, at most %llu fit the context of %llu",
                       (unsigned long long)o->prefix, (unsigned long long)most,
                       (unsigned long long)ctx);
    o->prefix = or_else(o->prefix, PREFIX_DEFAULT, most);
    if (o->prompt + 1 > ctx)
        return rc_fail(err, RC_INVALID, "--prompt %llu and a token of answer, the context has %llu",
                       (unsigned long long)o->prompt, (unsigned long long)ctx);
    if (o->context + o->gen + 1 > ctx)
        return rc_fail(err, RC_INVALID,
                       "--context %llu and --gen %llu, with the token between them: the model's "
                       "context has %llu",
                       (unsigned long long)o->context, (unsigned long long)o->gen,
                       (unsigned long long)ctx);
    return wrk_pages_init(&b->pages, mdl_kv(b->model.mdl), b->info->ctx_tokens,
                          b->model.batch_tokens, err);
}

static enum rc fit_embed(struct wrk_bench *b, struct rc_err *err)
{
    uint64_t most = b->info->max_input_tokens;
    struct wrk_bench_opts *o = &b->o;

    o->embed_batch = or_else(o->embed_batch, EMBED_BATCH_DEFAULT, EMBED_BATCH_DEFAULT);
    if (o->embed_tokens > most)
        return rc_fail(err, RC_INVALID, "--embed-tokens %llu, the model takes %llu",
                       (unsigned long long)o->embed_tokens, (unsigned long long)most);
    o->embed_tokens = or_else(o->embed_tokens, EMBED_TOKENS_DEFAULT, most);
    return RC_OK;
}

enum rc wrk_bench_fit(struct wrk_bench *b, struct rc_err *err)
{
    enum rc rc = RC_OK;

    b->info = mdl_info_get(b->model.mdl);
    if (b->o.runs == 0)
        b->o.runs = 3;
    b->n_ids = b->info->can_generate ? b->info->ctx_tokens : b->info->max_input_tokens;
    if ((b->ids = calloc((size_t)b->n_ids + 1, sizeof(*b->ids))) == NULL)
        return rc_fail(err, RC_NOMEM, "a prompt of %u tokens", b->n_ids);
    if (b->info->can_generate)
        rc = fit_generate(b, err);
    return rc == RC_OK && b->info->can_embed ? fit_embed(b, err) : rc;
}

void wrk_bench_deinit(struct wrk_bench *b)
{
    wrk_bench_front_deinit(&b->front);
    wrk_pages_deinit(&b->pages);
    free(b->ids);
    json_decref(b->out);
}

void wrk_bench_text(struct wrk_bench *b, uint32_t n, uint32_t salt)
{
    uint32_t vocab = b->info->vocab_size, from = vocab > 2000 ? 1000 : 0;
    uint32_t span = vocab > 2000 ? vocab / 2 : vocab;
    uint64_t x = (uint64_t)salt * 2654435761u;

    for (uint32_t i = 0; i < n && i < b->n_ids; i++)
        b->ids[i] = from + (uint32_t)((x + (uint64_t)i * 7919u) % span);
}

void wrk_bench_say(const struct wrk_bench *b, const char *fmt, ...)
{
    char line[80];
    va_list ap;

    if (b->o.progress == 0)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    fprintf(stderr, "\r%-76s\r%s", "", line);
    fflush(stderr);
}

void wrk_bench_not(struct wrk_bench *b, unsigned section, const char *fmt, ...)
{
    json_t *why = json_object_get(b->out, "not_applicable");
    char text[240];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (why == NULL) {
        why = json_object();
        json_object_set_new(b->out, "not_applicable", why);
    }
    json_object_set_new(why, wrk_bench_section_name(section), json_string(text));
}
