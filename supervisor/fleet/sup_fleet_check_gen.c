/* sup_fleet_check_gen.c - limits inside what a worker says of a text that it writes: pieces of
 * choices, their tokens and calls, and the end.
 *
 * Must never trust a count, an index, a float or a string that came from a worker: what it may say
 * in all is what was asked for. Tests: tests/supervisor/test_sup_fleet_check.c */
#include "sup_fleet_check_impl.h"

#include <math.h>

#include "ipc.h"

#define TOP_MAX 64
#define DELTAS_SLACK 8 /* per choice: held-back text, the finish */
#define DELTA_TEXT_MAX (1u << 20)
#define CALLS_MAX 64      /* of one choice */
#define TOKEN_BYTES 1280u /* packed, of one token or alternative: a piece and its frame */

static enum rc check_probs(const struct sup_asked *a, const Ipc__Delta *d, uint32_t vocab,
                           struct rc_err *err)
{
    for (size_t i = 0; i < d->n_probs; i++) {
        const Ipc__TokenProb *p = d->probs[i];

        if (p->token >= vocab || !isfinite(p->logprob))
            return sup_bad(err, "Delta: a token or its logprob is out of range");
        if (p->n_top > a->top_logprobs || p->n_top > TOP_MAX)
            return sup_bad(err, "Delta: more alternatives than were asked for");
        for (size_t k = 0; k < p->n_top; k++)
            if (p->top[k]->token >= vocab || !isfinite(p->top[k]->logprob))
                return sup_bad(err, "Delta: an alternative is out of range");
    }
    return RC_OK;
}

/* What all deltas of an answer may weigh together. While a reader is paused they are
 * kept, so this is what one task can make the front hold. */
static uint64_t answer_bytes_max(const struct sup_asked *a, const Ipc__Loaded *model)
{
    uint64_t per_token = (uint64_t)TOKEN_BYTES * (a->logprobs ? 2 + a->top_logprobs : 1);
    uint64_t n = a->max_tokens + DELTAS_SLACK, ctx = model ? model->ctx_tokens : 0;

    if (a->echo)
        n += a->n_prompt < ctx ? a->n_prompt : ctx;
    return a->n * (n * per_token + (a->echo ? a->n_prompt : 0));
}

static enum rc check_call(const struct sup_asked *a, const Ipc__CallPart *c, struct rc_err *err)
{
    if (!a->tools)
        return sup_bad(err, "Delta: a tool was called, none was given");
    if (c->index >= CALLS_MAX || c->name.len > SUP_W_NAME_BYTES ||
        !ipc_utf8_valid(c->name.data, c->name.len))
        return sup_bad(err, "Delta: a call's number or name is out of range");
    if (c->arguments.len > DELTA_TEXT_MAX || !ipc_utf8_valid(c->arguments.data, c->arguments.len))
        return sup_bad(err, "Delta: a call's arguments are too long or not UTF-8");
    if (c->broken && !(c->ended && a->stream))
        return sup_bad(err, "Delta: a call that is none, and it was not sent in pieces");
    return RC_OK;
}

enum rc sup_check_delta(struct sup_asked *a, const Ipc__Delta *d, const Ipc__Loaded *model,
                        struct rc_err *err)
{
    uint32_t vocab = model ? model->vocab_size : 0;
    enum rc rc;

    if (d->index >= a->n)
        return rc_fail(err, RC_FORMAT, "Delta: choice %u of %u", d->index, a->n);
    if (a->finished && (a->finished[d->index / 64] >> (d->index % 64) & 1))
        return rc_fail(err, RC_FORMAT, "Delta: choice %u had finished", d->index);
    if (d->finish > 3 || (d->finish == 3 && !a->tools))
        return rc_fail(err, RC_FORMAT, "Delta: finish %u", d->finish);
    if (!ipc_utf8_valid(d->text.data, d->text.len))
        return sup_bad(err, "Delta: text is not UTF-8");
    if (!ipc_utf8_valid(d->reasoning.data, d->reasoning.len))
        return sup_bad(err, "Delta: reasoning is not UTF-8");
    if ((d->reasoning.len || d->reasoning_tokens) && !(model && model->can_think))
        return sup_bad(err, "Delta: a model that does not think has a thought");
    if (d->reasoning_tokens > a->max_tokens)
        return sup_bad(err, "Delta: more tokens of thought than were asked for");
    if (d->call && (rc = check_call(a, d->call, err)) != RC_OK)
        return rc;
    if (!sup_tokens_ok(d->tokens, d->n_tokens, vocab))
        return sup_bad(err, "Delta: a token is outside the vocabulary");
    if (d->is_prompt && !a->echo)
        return sup_bad(err, "Delta: the prompt was not asked for");
    a->answer_bytes += protobuf_c_message_get_packed_size(&d->base);
    if (a->answer_bytes > answer_bytes_max(a, model))
        return sup_bad(err, "Delta: the answer is larger than it can be");
    if (!d->is_prompt) {
        /* also when tokens are not told: one delta is at least one step */
        if (++a->n_deltas > (uint64_t)a->n * (a->max_tokens + DELTAS_SLACK) ||
            d->text.len > DELTA_TEXT_MAX || d->reasoning.len > DELTA_TEXT_MAX)
            return sup_bad(err, "Delta: more text than was asked for");
        a->n_tokens += d->n_tokens > d->n_probs ? d->n_tokens : d->n_probs;
        if (a->n_tokens > (uint64_t)a->n * a->max_tokens)
            return sup_bad(err, "Delta: more tokens than were asked for");
    }
    if (d->finish && a->finished)
        a->finished[d->index / 64] |= 1ull << (d->index % 64);
    return check_probs(a, d, vocab, err);
}

enum rc sup_check_done(const struct sup_asked *a, const Ipc__Done *d, const Ipc__Loaded *model,
                       struct rc_err *err)
{
    uint32_t vocab = model ? model->vocab_size : 0;

    if (d->n_prompt_token_ids > (model ? model->ctx_tokens : 0))
        return sup_bad(err, "Done: more prompt tokens than the model takes");
    if (d->prompt_tokens > (model ? model->ctx_tokens : 0))
        return sup_bad(err, "Done: more tokens in the prompt than the model takes");
    if (d->cached_tokens > d->prompt_tokens)
        return sup_bad(err, "Done: more cached tokens than prompt tokens");
    if (d->accepted_drafts > d->completion_tokens)
        return sup_bad(err, "Done: more accepted drafts than tokens");
    for (uint32_t i = 0; a->finished && i < a->n; i++)
        if (!(a->finished[i / 64] >> (i % 64) & 1))
            return rc_fail(err, RC_FORMAT, "Done: choice %u has not finished", i);
    if (!sup_tokens_ok(d->prompt_token_ids, d->n_prompt_token_ids, vocab))
        return sup_bad(err, "Done: a token is outside the vocabulary");
    return RC_OK;
}
