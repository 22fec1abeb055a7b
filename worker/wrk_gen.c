/* wrk_gen.c - a Generate message judged: ranges, then tokens, then room.
 *
 * Ranges are a table. Never runs the model; never keeps a pointer into the
 * message. Tests: tests/worker/test_wrk_engine_texts.c
 */
#include "wrk_gen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ipc.h"
#include "wrk_out.h"

static enum rc check_number(const char *name, double v, double min, double max, struct rc_err *err)
{
    if (isfinite(v) && v >= min && v <= max)
        return RC_OK;
    return rc_fail_what(err, RC_INVALID, name, "%s is %g, expected %g to %g", name, v, min, max);
}

static enum rc read_sampling(struct wrk_sampling *s, const Ipc__Sampling *m, uint32_t n_vocab,
                             struct rc_err *err)
{
    const struct {
        const char *name;
        double v, min, max;
    } table[] = {
        {"temperature", m->temperature, 0, 100},
        {"top_p", m->top_p, 0, 1},
        {"min_p", m->min_p, 0, 1},
        {"typical_p", m->typical_p, 0, 1},
        {"repetition_penalty", m->repetition_penalty == 0 ? 1 : m->repetition_penalty, 0.01f, 100},
        {"frequency_penalty", m->frequency_penalty, -100, 100},
        {"presence_penalty", m->presence_penalty, -100, 100},
    };
    enum rc rc;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if ((rc = check_number(table[i].name, table[i].v, table[i].min, table[i].max, err)) !=
            RC_OK)
            return rc;
    if (m->n_logit_bias > WRK_BIAS_MAX)
        return rc_fail_what(err, RC_TOO_LARGE, "logit_bias",
                            "logit_bias has %zu entries, at most %d", m->n_logit_bias,
                            WRK_BIAS_MAX);
    if ((s->bias = calloc(m->n_logit_bias + 1, sizeof(*s->bias))) == NULL)
        return rc_fail(err, RC_NOMEM, "logit_bias");
    for (size_t i = 0; i < m->n_logit_bias; i++) {
        const Ipc__LogitBias *b = m->logit_bias[i];

        if (b->token >= n_vocab)
            return rc_fail_what(err, RC_INVALID, "logit_bias",
                                "logit_bias names token %u, the vocabulary has %u", b->token,
                                n_vocab);
        if ((rc = check_number("logit_bias", b->bias, -100, 100, err)) != RC_OK)
            return rc;
        s->bias[i] = (struct wrk_bias){b->token, b->bias};
    }
    s->n_bias = (uint32_t)m->n_logit_bias;
    s->temperature = m->temperature;
    s->top_k = m->top_k;
    s->top_p = m->top_p == 0 ? 1 : m->top_p;
    s->min_p = m->min_p;
    s->typical_p = m->typical_p == 0 ? 1 : m->typical_p;
    s->repetition_penalty = m->repetition_penalty == 0 ? 1 : m->repetition_penalty;
    s->frequency_penalty = m->frequency_penalty;
    s->presence_penalty = m->presence_penalty;
    s->seed = m->seed;
    if (!m->has_seed && getrandom(&s->seed, sizeof(s->seed), 0) != sizeof(s->seed))
        return rc_fail(err, RC_INTERNAL, "no random seed: getrandom failed");
    return RC_OK;
}

static enum rc read_stops(struct wrk_stops *s, const Ipc__Generate *m, struct rc_err *err)
{
    enum rc rc;

    for (size_t i = 0; i < m->n_stop; i++) {
        if (!ipc_utf8_valid(m->stop[i].data, m->stop[i].len))
            return rc_fail_what(err, RC_INVALID, "stop", "stop string %zu is not valid UTF-8", i);
        if ((rc = wrk_stops_add(s, m->stop[i].data, m->stop[i].len, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

/* Optional bytes of a message: absent ones are NULL. */
static const char *optional(const ProtobufCBinaryData *b)
{
    return b->len > 0 ? (const char *)b->data : NULL;
}

static const char *given(const char *s)
{
    return s != NULL && s[0] != '\0' ? s : NULL;
}

/* How the answer is told apart, by what was rendered and where the prompt ends. */
static enum rc set_talk(struct wrk_gen *g, const Ipc__Generate *m, const struct mdl *mdl,
                        struct rc_err *err)
{
    const struct mdl_info *info = mdl_info_get(mdl);

    g->talk.think = info->can_think;
    g->talk.calls = info->can_call_tools && m->tools.len > 0;
    g->talk.one_call = m->one_call;
    g->talk.within = WRK_MARK_NONE;
    if (!wrk_parse_on(&g->talk))
        return RC_OK;
    wrk_marks_find(&g->talk.marks, mdl_tok_get(mdl), info->vocab_size);
    /* the call's mark is put for the model, unless it may think first */
    if (g->talk.calls && m->tool_choice != 0 && !m->thinking) {
        g->talk.within = WRK_MARK_CALL;
        return mdl_ids_push(&g->prompt, g->talk.marks.id[WRK_MARK_CALL], err);
    }
    for (size_t i = g->prompt.n; i > 0; i--) {
        enum wrk_mark k = wrk_marks_of(&g->talk.marks, g->prompt.ids[i - 1]);

        if (k == WRK_MARK_NONE || k == WRK_MARK_QUOTE)
            continue;
        if (k == WRK_MARK_CHANNEL)
            g->talk.within = k;
        break;
    }
    return RC_OK;
}

static enum rc chat_prompt(struct wrk_gen *g, const Ipc__Generate *m, const struct mdl *mdl,
                           size_t limit, struct rc_err *err)
{
    struct mdl_chat_msg *msgs = calloc(m->n_messages + 1, sizeof(*msgs));
    const struct mdl_chat_opts opts = {.add_generation_prompt = true,
                                       .thinking = m->thinking,
                                       .tools = optional(&m->tools),
                                       .n_tools = m->tools.len,
                                       .max_tokens = limit};
    enum rc rc;

    if (msgs == NULL)
        return rc_fail(err, RC_NOMEM, "messages");
    for (size_t i = 0; i < m->n_messages; i++) {
        msgs[i].role = m->messages[i]->role;
        msgs[i].content = (const char *)m->messages[i]->content.data;
        msgs[i].n_bytes = m->messages[i]->content.len;
        if (msgs[i].content == NULL)
            msgs[i].content = "";
        msgs[i].reasoning = optional(&m->messages[i]->reasoning);
        msgs[i].n_reasoning = m->messages[i]->reasoning.len;
        msgs[i].tool_calls = optional(&m->messages[i]->tool_calls);
        msgs[i].n_tool_calls = m->messages[i]->tool_calls.len;
        msgs[i].tool_call_id = given(m->messages[i]->tool_call_id);
        msgs[i].name = given(m->messages[i]->name);
    }
    rc = mdl_chat(mdl, msgs, m->n_messages, &opts, &g->prompt, err);
    free(msgs);
    return rc == RC_OK ? set_talk(g, m, mdl, err) : rc;
}

static enum rc too_long(size_t n, size_t limit, struct rc_err *err)
{
    return rc_bound(rc_fail_what(err, RC_TOO_LARGE, "prompt",
                                 "the prompt has %zu tokens, at most %zu fit", n, limit),
                    n, limit, err);
}

static enum rc token_prompt(struct wrk_gen *g, const Ipc__Generate *m, uint32_t n_vocab,
                            size_t limit, struct rc_err *err)
{
    enum rc rc;

    if (m->n_prompt_tokens > limit)
        return too_long(m->n_prompt_tokens, limit, err);
    for (size_t i = 0; i < m->n_prompt_tokens; i++) {
        if (m->prompt_tokens[i] >= n_vocab)
            return rc_fail_what(err, RC_INVALID, "prompt",
                                "prompt token %zu is %u, the vocabulary has %u", i,
                                m->prompt_tokens[i], n_vocab);
        if ((rc = mdl_ids_push(&g->prompt, (int32_t)m->prompt_tokens[i], err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc tokenize(struct wrk_gen *g, const Ipc__Generate *m, const struct mdl *mdl,
                        size_t limit, struct rc_err *err)
{
    const struct mdl_tok_flags flags = {
        .add_special = true, .parse_special = true, .max_tokens = limit, .stop = mdl_stop(mdl)};
    uint32_t n_vocab = mdl_info_get(mdl)->vocab_size;
    enum rc rc;

    switch (m->kind) {
    case 1:
        if (!mdl_info_get(mdl)->has_chat_template)
            return rc_fail_what(err, RC_UNSUPPORTED, "messages",
                                "this model has no chat template: send a prompt");
        return chat_prompt(g, m, mdl, limit, err);
    case 2:
        rc = mdl_tok_encode(mdl_tok_get(mdl), m->prompt.len > 0 ? (const char *)m->prompt.data : "",
                            m->prompt.len, &flags, &g->prompt, err);
        /* a tokenizer may know more pieces than the model has vectors: such an id
         * would fail everyone in its pass */
        for (size_t i = 0; rc == RC_OK && i < g->prompt.n; i++)
            if (g->prompt.ids[i] < 0 || (uint32_t)g->prompt.ids[i] >= n_vocab)
                rc = rc_fail_what(err, RC_INVALID, "prompt",
                                  "token %zu of the prompt (%d) has no vector in this model, which "
                                  "has %u",
                                  i, g->prompt.ids[i], n_vocab);
        return rc;
    case 3:
        return token_prompt(g, m, n_vocab, limit, err);
    default:
        return rc_fail_what(err, RC_INVALID, "kind", "prompt kind %u, expected 1 to 3", m->kind);
    }
}

/* What echo gives back: a text prompt as it came, tokens as their text; and where
 * in that text each token begins. Tokens may end inside a character: what it has so
 * far stays in echo_detok, and the answer goes on from there. */
static enum rc prepare_echo(struct wrk_gen *g, const Ipc__Generate *m, const struct mdl_tok *tok,
                            struct rc_err *err)
{
    struct mdl_detok d;
    char piece[MDL_PIECE_MAX + 8];
    size_t n, cap = 0;
    uint32_t points = 0;

    mdl_detok_init(&d, tok, true);
    if (g->logprobs && (g->echo_offset = calloc(g->n_prompt, sizeof(uint32_t))) == NULL)
        return rc_fail(err, RC_NOMEM, "echo");
    for (uint32_t i = 0; i < g->n_prompt; i++) {
        if (g->echo_offset != NULL)
            g->echo_offset[i] = points;
        n = mdl_detok_push(&d, g->prompt.ids[i], piece, sizeof(piece));
        points += wrk_out_points(piece, n);
        if (m->kind == 2 || n == 0)
            continue;
        if (g->n_echo + n > cap) {
            char *p = realloc(g->echo_text, cap = (g->n_echo + n) * 2);
            if (p == NULL)
                return rc_fail(err, RC_NOMEM, "echo");
            g->echo_text = p;
        }
        memcpy(g->echo_text + g->n_echo, piece, n);
        g->n_echo += n;
    }
    g->echo_detok = d;
    if (m->kind == 2) {
        mdl_detok_init(&g->echo_detok, tok, true);
        if ((g->echo_text = malloc(m->prompt.len + 1)) == NULL)
            return rc_fail(err, RC_NOMEM, "echo");
        if (m->prompt.len > 0) /* an empty field has no address */
            memcpy(g->echo_text, m->prompt.data, m->prompt.len);
        g->n_echo = m->prompt.len;
    }
    return RC_OK;
}

static enum rc read_namespace(struct wrk_gen *g, const Ipc__Generate *m, struct rc_err *err)
{
    if (m->cache_ns.len == 0)
        return RC_OK;
    if (m->cache_ns.len != WRK_NS_BYTES)
        return rc_fail_what(err, RC_INVALID, "cache_ns", "cache_ns has %zu bytes, expected 0 or %d",
                            m->cache_ns.len, WRK_NS_BYTES);
    if ((m->cache_tenant.len != 0 && m->cache_tenant.len != WRK_NS_BYTES) ||
        m->cache_percent > 100 || (m->cache_percent > 0 && m->cache_tenant.len == 0))
        return rc_fail_what(err, RC_INVALID, "cache_tenant",
                            "cache_tenant has %zu bytes with %u percent, expected 0 or %d and at "
                            "most 100",
                            m->cache_tenant.len, m->cache_percent, WRK_NS_BYTES);
    memcpy(g->ns, m->cache_ns.data, WRK_NS_BYTES);
    if (m->cache_tenant.len != 0) {
        memcpy(g->owner.id, m->cache_tenant.data, WRK_NS_BYTES);
        g->owner.known = true;
        g->owner.percent = m->cache_percent;
    }
    g->cached = true;
    return RC_OK;
}

enum rc wrk_gen_init(struct wrk_gen *g, const Ipc__Generate *m, const struct mdl *mdl,
                     struct rc_err *err)
{
    const Ipc__Sampling none = IPC__SAMPLING__INIT;
    const struct mdl_info *info = mdl_info_get(mdl);
    uint32_t room;
    enum rc rc;

    if (!info->can_generate)
        return rc_fail_what(err, RC_UNSUPPORTED, "model", "this model does not generate text");
    g->n = m->n == 0 ? 1 : m->n;
    if (g->n > WRK_CHOICES_MAX)
        return rc_fail_what(err, RC_TOO_LARGE, "n", "n is %u, at most %d", m->n, WRK_CHOICES_MAX);
    if (m->max_tokens == 0)
        return rc_fail_what(err, RC_INVALID, "max_tokens", "max_tokens is 0, expected at least 1");
    if (m->top_logprobs > WRK_TOP_MAX)
        return rc_fail_what(err, RC_TOO_LARGE, "top_logprobs", "top_logprobs is %u, at most %d",
                            m->top_logprobs, WRK_TOP_MAX);
    g->logprobs = m->logprobs;
    g->n_top = m->logprobs ? m->top_logprobs : 0;
    g->echo = m->echo;
    g->ignore_eos = m->ignore_eos;
    g->ids_wanted = m->return_token_ids;
    g->stream = m->stream;
    if ((rc = read_sampling(&g->sampling, m->sampling != NULL ? m->sampling : &none,
                            info->vocab_size, err)) != RC_OK ||
        (rc = read_stops(&g->stops, m, err)) != RC_OK || (rc = read_namespace(g, m, err)) != RC_OK)
        return rc;
    /* one token of room for the answer */
    if ((rc = tokenize(g, m, mdl, info->ctx_tokens - 1, err)) != RC_OK)
        return rc;
    if (g->prompt.n == 0)
        return rc_fail_what(err, RC_INVALID, "prompt", "the prompt has no tokens");
    if (g->prompt.n > info->ctx_tokens - 1)
        return too_long(g->prompt.n, info->ctx_tokens - 1, err);
    g->n_prompt = (uint32_t)g->prompt.n;
    room = info->ctx_tokens - g->n_prompt;
    g->max_new = m->max_tokens < room ? m->max_tokens : room;
    return g->echo ? prepare_echo(g, m, mdl_tok_get(mdl), err) : RC_OK;
}

void wrk_gen_deinit(struct wrk_gen *g)
{
    mdl_ids_deinit(&g->prompt);
    wrk_stops_deinit(&g->stops);
    free(g->sampling.bias);
    free(g->echo_text);
    free(g->echo_offset);
    memset(g, 0, sizeof(*g));
}
