/* sup_gen.c - Delta and Done frames to one JSON answer or to SSE chunks.
 *
 * A stream's chunk is: an envelope built once per request, the escaped text, a
 * fixed end; nothing is allocated per token once the buffers have grown. Always
 * true: a chat choice's first chunk carries its role, its last its finish_reason;
 * [DONE] is the last event of a stream that went well and never of one that did
 * not. Change with care: the bytes of a chunk (test_sup_api_gen.c has them exact).
 */
#include "sup_gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sup_http.h"
#include "sup_log.h"
#include "sup_spans.h"

static const char *const finish_words[] = {"null", "\"stop\"", "\"length\"", "\"tool_calls\""};

static const char *finish_word(uint32_t finish)
{
    return finish_words[finish < 4 ? finish : 1];
}

/* 16 hexadecimal digits, different for each request: FNV-1a of its id and time. */
static uint64_t answer_id(const struct sup_req *req)
{
    uint64_t h = 0xcbf29ce484222325u, t = sup_req_start_us(req);

    for (const char *p = sup_req_id(req); *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    for (int i = 0; i < 8; i++, t >>= 8)
        h = (h ^ (t & 255)) * 0x100000001b3u;
    return h;
}

/* Up to where the choices begin: {"id":...,"choices": */
static void write_head(struct sup_gen *g, struct sup_json *o, const char *object)
{
    sup_json_fmt(o, "{\"id\":\"%s-%016llx\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                 g->chat ? "chatcmpl" : "cmpl", (unsigned long long)g->answer, object,
                 (long long)time(NULL));
    sup_json_quoted(o, g->call.model);
    sup_json_str(o, ",\"system_fingerprint\":\"inferd-" INFERD_VERSION "\"");
}

bool sup_gen_open(struct sup_gen *g, struct sup_fail *f)
{
    g->choices = calloc((size_t)g->n * g->n_prompts, sizeof(*g->choices));
    g->prompt_ids = calloc(g->n_prompts, sizeof(*g->prompt_ids));
    g->answer = answer_id(g->call.req);
    if (g->stream) {
        sup_json_str(&g->head, "data: ");
        write_head(g, &g->head, g->chat ? "chat.completion.chunk" : "text_completion");
        sup_call_sse(&g->call);
    } else {
        write_head(g, &g->head, g->chat ? "chat.completion" : "text_completion");
    }
    sup_json_str(&g->head, ",\"choices\":[");
    if (!g->choices || !g->prompt_ids || g->head.failed) {
        sup_fail_set(f, SUP_E_MODEL_RESOURCE_BUSY, "", "no memory for the answer");
        return false;
    }
    return true;
}

static void choice_deinit(struct sup_choice *ch)
{
    sup_json_deinit(&ch->text);
    sup_json_deinit(&ch->ids);
    sup_json_deinit(&ch->reasoning);
    sup_json_deinit(&ch->calls);
    sup_probs_deinit(&ch->probs);
}

void sup_gen_deinit(struct sup_call *c)
{
    struct sup_gen *g = (struct sup_gen *)c;

    for (size_t i = 0; g->choices && i < (size_t)g->n * g->n_prompts; i++)
        choice_deinit(&g->choices[i]);
    for (size_t i = 0; g->prompt_ids && i < g->n_prompts; i++)
        sup_json_deinit(&g->prompt_ids[i]);
    free(g->choices);
    free(g->prompt_ids);
    choice_deinit(&g->news);
    sup_json_deinit(&g->head);
    sup_json_deinit(&g->buf);
}

static void add_ids(struct sup_json *o, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (o->n)
            sup_json_put(o, ",", 1);
        sup_json_u64(o, ids[i]);
    }
}

static void put_out(struct sup_json *o, const struct sup_json *from)
{
    if (from->failed)
        o->failed = true;
    sup_json_put(o, from->p, from->n);
}

void sup_gen_call_id(const struct sup_gen *g, uint32_t choice, uint32_t call, char out[32])
{
    snprintf(out, 32, "call_%016llx%04x%04x", (unsigned long long)g->answer, choice & 0xFFFF,
             call & 0xFFFF);
}

/* {"index":i,"id":..,"type":"function","function":{"name":"..","arguments":" */
static void call_head(const struct sup_gen *g, uint32_t choice, uint32_t call,
                      const Ipc__CallPart *p, bool indexed, struct sup_json *o)
{
    char id[32];

    sup_gen_call_id(g, choice, call, id);
    sup_json_put(o, "{", 1);
    if (indexed)
        sup_json_fmt(o, "\"index\":%u,", call);
    sup_json_fmt(o, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"", id);
    sup_json_text(o, p->name.data, p->name.len);
    sup_json_str(o, "\",\"arguments\":\"");
}

/* A piece of a call, for an answer told whole: rows of "tool_calls". A call is begun by its
 * name alone, so that a worker gone wrong makes no broken JSON; one that is none goes. */
static void add_call(struct sup_gen *g, struct sup_choice *ch, const Ipc__CallPart *p)
{
    struct sup_json *o = &ch->calls;

    if (p->name.len) {
        if (ch->in_call)
            sup_json_str(o, "\"}}");
        ch->call_at = o->n;
        if (ch->n_calls)
            sup_json_put(o, ",", 1);
        call_head(g, (uint32_t)(ch - g->choices), ch->n_calls++, p, false, o);
        ch->in_call = true;
    }
    if (!ch->in_call)
        return;
    sup_json_text(o, p->arguments.data, p->arguments.len);
    if (!p->ended)
        return;
    ch->in_call = false;
    if (p->broken) {
        o->n = ch->call_at;
        ch->n_calls--;
    } else {
        sup_json_str(o, "\"}}");
    }
}

static void add_news(struct sup_gen *g, struct sup_choice *to, const Ipc__Delta *d)
{
    sup_json_text(&to->reasoning, d->reasoning.data, d->reasoning.len);
    sup_json_text(&to->text, d->text.data, d->text.len);
    if (g->return_ids)
        add_ids(&to->ids, d->tokens, d->n_tokens);
    if (g->logprobs)
        sup_probs_add(&to->probs, g->chat, g->return_ids, d->probs, d->n_probs);
}

static void add_whole(struct sup_gen *g, struct sup_choice *ch, const Ipc__Delta *d)
{
    add_news(g, ch, d);
    if (g->chat && d->call)
        add_call(g, ch, d->call);
}

/* ------------------------------------------------------------------- streaming */

static void chunk_begin(struct sup_gen *g, uint32_t idx)
{
    put_out(&g->buf, &g->head);
    sup_json_str(&g->buf, "{\"index\":");
    sup_json_u64(&g->buf, idx);
}

static void chunk_role(struct sup_gen *g, uint32_t idx)
{
    chunk_begin(g, idx);
    sup_json_str(&g->buf, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                          "\"finish_reason\":null}]}\n\n");
}

static void chunk_news(struct sup_gen *g, uint32_t idx)
{
    struct sup_json *o = &g->buf;

    chunk_begin(g, idx);
    sup_json_str(o, g->chat ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
    put_out(o, &g->news.text);
    sup_json_str(o, g->chat ? "\"},\"logprobs\":" : "\",\"logprobs\":");
    sup_probs_write(&g->news.probs, g->chat, g->return_ids, g->logprobs, g->top_logprobs, o);
    sup_json_str(o, ",\"finish_reason\":null");
    if (g->return_ids) {
        sup_json_str(o, ",\"token_ids\":[");
        put_out(o, &g->news.ids);
        sup_json_put(o, "]", 1);
    }
    sup_json_str(o, "}]}\n\n");
}

static void chunk_reasoning(struct sup_gen *g, uint32_t idx)
{
    chunk_begin(g, idx);
    sup_json_str(&g->buf, ",\"delta\":{\"reasoning_content\":\"");
    put_out(&g->buf, &g->news.reasoning);
    sup_json_str(&g->buf, "\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

static void chunk_call_begin(struct sup_gen *g, uint32_t idx)
{
    chunk_begin(g, idx);
    sup_json_str(&g->buf, ",\"delta\":{\"tool_calls\":[");
}

static void chunk_call_end(struct sup_gen *g)
{
    sup_json_str(&g->buf, "\"}}]},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
}

/* The name first, with empty arguments, then the pieces. One that turns out to be no call stays
 * without its end: its text comes behind it, as content. */
static void chunk_call(struct sup_gen *g, uint32_t idx, const Ipc__CallPart *p)
{
    struct sup_choice *ch = &g->choices[idx];

    if (p->name.len) {
        chunk_call_begin(g, idx);
        call_head(g, idx, ch->n_calls++, p, true, &g->buf);
        chunk_call_end(g);
        ch->in_call = true;
    }
    if (ch->in_call && p->arguments.len) {
        chunk_call_begin(g, idx);
        sup_json_fmt(&g->buf, "{\"index\":%u,\"function\":{\"arguments\":\"", ch->n_calls - 1);
        sup_json_text(&g->buf, p->arguments.data, p->arguments.len);
        chunk_call_end(g);
    }
    if (p->ended)
        ch->in_call = false;
}

static void chunk_finish(struct sup_gen *g, uint32_t idx, uint32_t finish)
{
    chunk_begin(g, idx);
    sup_json_str(&g->buf, g->chat ? ",\"delta\":{}" : ",\"text\":\"\"");
    sup_json_fmt(&g->buf, ",\"logprobs\":null,\"finish_reason\":%s}]}\n\n", finish_word(finish));
}

static void stream_delta(struct sup_gen *g, uint32_t idx, const Ipc__Delta *d)
{
    struct sup_choice *ch = &g->choices[idx];

    sup_json_reset(&g->buf);
    sup_json_reset(&g->news.text);
    sup_json_reset(&g->news.ids);
    sup_json_reset(&g->news.reasoning);
    sup_probs_reset(&g->news.probs);
    if (g->chat && !ch->role_sent) {
        ch->role_sent = true;
        chunk_role(g, idx);
    }
    add_news(g, &g->news, d);
    if (g->chat && g->news.reasoning.n)
        chunk_reasoning(g, idx);
    if (g->chat && d->call && d->call->broken)
        chunk_call(g, idx, d->call);
    if (g->news.text.n || g->news.ids.n || g->news.probs.tokens.n)
        chunk_news(g, idx);
    if (g->chat && d->call && !d->call->broken)
        chunk_call(g, idx, d->call);
    if (d->finish)
        chunk_finish(g, idx, d->finish);
    sup_call_write(&g->call, &g->buf);
}

/* --------------------------------------------------------------------- the end */

static double per_second(uint64_t n, uint64_t us)
{
    return us ? (double)n * 1e6 / (double)us : 0;
}

static void write_usage(struct sup_gen *g, struct sup_json *o)
{
    const uint64_t total = g->prompt_tokens + g->completion_tokens;
    const uint64_t fresh =
        g->prompt_tokens > g->cached_tokens ? g->prompt_tokens - g->cached_tokens : 0;

    sup_json_fmt(o,
                 ",\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":"
                 "%llu,\"cached_prompt_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":"
                 "%llu},\"completion_tokens_details\":{\"accepted_prediction_tokens\":%llu,"
                 "\"rejected_prediction_tokens\":%llu}}",
                 (unsigned long long)g->prompt_tokens, (unsigned long long)g->completion_tokens,
                 (unsigned long long)total, (unsigned long long)g->cached_tokens,
                 (unsigned long long)g->cached_tokens, (unsigned long long)g->right_drafts,
                 (unsigned long long)g->wrong_drafts);
    sup_json_fmt(o,
                 ",\"timings\":{\"queue_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f,"
                 "\"prefill_tokens_per_second\":%.2f,\"decode_tokens_per_second\":%.2f}",
                 (double)g->queue_us / 1e3, (double)g->prefill_us / 1e3, (double)g->decode_us / 1e3,
                 per_second(fresh, g->prefill_us), per_second(g->completion_tokens, g->decode_us));
}

static void prompt_ids(struct sup_json *o, const char *before, const struct sup_json *ids)
{
    sup_json_str(o, before);
    put_out(o, ids);
    sup_json_put(o, "]", 1);
}

/* "content": what was said, null where calls take its place; then thoughts and calls. */
static void write_message(const struct sup_choice *ch, struct sup_json *o)
{
    sup_json_str(o, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (ch->n_calls && !ch->text.n) {
        sup_json_str(o, "null");
    } else {
        sup_json_put(o, "\"", 1);
        put_out(o, &ch->text);
        sup_json_put(o, "\"", 1);
    }
    if (ch->reasoning.n) {
        sup_json_str(o, ",\"reasoning_content\":\"");
        put_out(o, &ch->reasoning);
        sup_json_put(o, "\"", 1);
    }
    if (ch->n_calls) {
        sup_json_str(o, ",\"tool_calls\":[");
        put_out(o, &ch->calls);
        sup_json_str(o, ch->in_call ? "\"}}]" : "]");
    }
    sup_json_str(o, ",\"refusal\":null},\"logprobs\":");
}

static void write_choice(struct sup_gen *g, uint32_t idx, struct sup_json *o)
{
    struct sup_choice *ch = &g->choices[idx];

    sup_json_str(o, idx ? ",{\"index\":" : "{\"index\":");
    sup_json_u64(o, idx);
    if (g->chat) {
        write_message(ch, o);
    } else {
        sup_json_str(o, ",\"text\":\"");
        put_out(o, &ch->text);
        sup_json_str(o, "\",\"logprobs\":");
    }
    sup_probs_write(&ch->probs, g->chat, g->return_ids, g->logprobs, g->top_logprobs, o);
    sup_json_fmt(o, ",\"finish_reason\":%s", finish_word(ch->finish ? ch->finish : 1));
    if (g->return_ids) {
        prompt_ids(o, ",\"token_ids\":[", &ch->ids);
        if (!g->chat)
            prompt_ids(o, ",\"prompt_token_ids\":[", &g->prompt_ids[idx / g->n]);
    }
    sup_json_put(o, "}", 1);
}

static void finish_whole(struct sup_gen *g)
{
    struct sup_json *o = &g->buf;

    sup_json_reset(o);
    put_out(o, &g->head);
    for (uint32_t i = 0; i < g->n * g->n_prompts; i++)
        write_choice(g, i, o);
    sup_json_put(o, "]", 1);
    if (g->return_ids && g->chat)
        prompt_ids(o, ",\"prompt_token_ids\":[", &g->prompt_ids[0]);
    write_usage(g, o);
    sup_json_put(o, "}", 1);
    sup_call_reply(&g->call, o);
}

static void finish_stream(struct sup_gen *g)
{
    struct sup_json *o = &g->buf;

    sup_json_reset(o);
    for (uint32_t i = 0; i < g->n * g->n_prompts; i++)
        if (!g->choices[i].finish)
            chunk_finish(g, i, 1);
    if (g->include_usage || g->return_ids) {
        put_out(o, &g->head);
        sup_json_put(o, "]", 1);
        if (g->return_ids && g->chat)
            prompt_ids(o, ",\"prompt_token_ids\":[", &g->prompt_ids[0]);
        for (uint32_t i = 0; g->return_ids && !g->chat && i < g->n_prompts; i++)
            prompt_ids(o, i ? ",[" : ",\"prompt_token_ids\":[[", &g->prompt_ids[i]);
        if (g->return_ids && !g->chat)
            sup_json_put(o, "]", 1);
        if (g->include_usage)
            write_usage(g, o);
        sup_json_str(o, "}\n\n");
    }
    sup_json_str(o, "data: [DONE]\n\n");
    sup_call_write(&g->call, o);
    sup_call_end(&g->call);
}

/* ---------------------------------------------------------------------- frames */

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void sup_gen_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_gen *g = (struct sup_gen *)c;

    if (fr->body_case == IPC__FRAME__BODY_DELTA && fr->delta->index < g->n) {
        uint32_t idx = part * g->n + fr->delta->index;

        if (fr->delta->finish)
            g->choices[idx].finish = fr->delta->finish;
        if (g->stream)
            stream_delta(g, idx, fr->delta);
        else
            add_whole(g, &g->choices[idx], fr->delta);
    } else if (fr->body_case == IPC__FRAME__BODY_DONE) {
        const Ipc__Done *d = fr->done;

        g->prompt_tokens += d->prompt_tokens;
        g->completion_tokens += d->completion_tokens;
        g->cached_tokens += d->cached_tokens;
        g->right_drafts += d->accepted_drafts;
        g->wrong_drafts += d->rejected_drafts;
        /* prompts of one request run side by side */
        g->queue_us = max_u64(g->queue_us, d->queue_us);
        g->prefill_us = max_u64(g->prefill_us, d->prefill_us);
        g->decode_us = max_u64(g->decode_us, d->decode_us);
        if (g->return_ids)
            add_ids(&g->prompt_ids[part], d->prompt_token_ids, d->n_prompt_token_ids);
    }
}

void sup_gen_log(const struct sup_gen *g)
{
    const struct sup_call *c = &g->call;

    SUP_LOG(SUP_DEBUG, "generated", SUP_S("id", c->req ? sup_req_id(c->req) : NULL),
            SUP_S("model", c->model_id), SUP_I("prompt_tokens", g->prompt_tokens),
            SUP_I("cached_tokens", g->cached_tokens),
            SUP_I("completion_tokens", g->completion_tokens), SUP_I("queue_us", g->queue_us),
            SUP_I("prefill_us", g->prefill_us), SUP_I("decode_us", g->decode_us));
}

void sup_gen_facts(struct sup_gen *g)
{
    struct sup_facts *f =
        sup_call_facts(&g->call, g->chat ? "chat" : "text_completion", g->prompt_tokens);

    if (!f)
        return;
    f->has_output = true;
    f->output_tokens = g->completion_tokens;
    f->cached_tokens = g->cached_tokens;
    f->queue_us = g->queue_us;
    f->prefill_us = g->prefill_us;
    f->decode_us = g->decode_us;
}

void sup_gen_finish(struct sup_call *c)
{
    struct sup_gen *g = (struct sup_gen *)c;

    sup_gen_log(g);
    sup_gen_facts(g);
    if (g->stream)
        finish_stream(g);
    else
        finish_whole(g);
}
