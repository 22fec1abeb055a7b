/* sup_responses_out.c - an answer as a response object, or as the events of one.
 *
 * Both come from the same items: a thought, a message, a call, one open at a time; without
 * a stream the events are simply not written. Always true: what was added is done before
 * the next is added, and the last event holds the whole response. Nothing is sent before
 * the worker's first word, so a refusal is still a plain error.
 * Tests: tests/supervisor/test_sup_api_responses.c, tests/e2e/openai_python.py
 */
#include "sup_responses.h"

#include <stdio.h>
#include <string.h>

#include "sup_http.h"
#include "sup_log.h"

static void put(struct sup_json *o, const struct sup_json *from)
{
    if (from->failed)
        o->failed = true;
    sup_json_put(o, from->p, from->n);
}

/* rs_..., msg_..., fc_...: an item's id, by its place. */
static void item_id(const struct sup_resp *r, char out[40])
{
    static const char *const kinds[] = {"", "rs", "msg", "fc"};

    snprintf(out, 40, "%s_%016llx%04x", kinds[r->open], (unsigned long long)r->g.answer,
             r->n_items & 0xFFFF);
}

/* ------------------------------------------------------------------------ items */

/* The open item; whole: with what it holds, else as it begins. */
static void write_item(const struct sup_resp *r, bool whole, const char *status, struct sup_json *o)
{
    char id[40];

    item_id(r, id);
    sup_json_fmt(o, "{\"id\":\"%s\",\"type\":", id);
    if (r->open == SUP_ITEM_CALL) {
        sup_gen_call_id(&r->g, 0, r->n_calls - 1, id);
        sup_json_fmt(o, "\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\",\"name\":\"",
                     status, id);
        put(o, &r->name);
        sup_json_str(o, "\",\"arguments\":\"");
        if (whole)
            put(o, &r->cur);
        sup_json_str(o, "\"}");
        return;
    }
    if (r->open == SUP_ITEM_REASONING)
        sup_json_fmt(o, "\"reasoning\",\"status\":\"%s\",\"summary\":[],\"content\":[", status);
    else
        sup_json_fmt(o, "\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[",
                     status);
    if (whole) {
        sup_json_str(o, r->open == SUP_ITEM_REASONING ? "{\"type\":\"reasoning_text\",\"text\":\""
                                                      : "{\"type\":\"output_text\",\"text\":\"");
        put(o, &r->cur);
        sup_json_str(o, r->open == SUP_ITEM_REASONING ? "\"}"
                                                      : "\",\"annotations\":[],\"logprobs\":[]}");
    }
    sup_json_str(o, "]}");
}

static void write_usage(const struct sup_resp *r, struct sup_json *o)
{
    const struct sup_gen *g = &r->g;

    sup_json_fmt(o,
                 "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},"
                 "\"output_tokens\":%llu,\"output_tokens_details\":{\"reasoning_tokens\":%llu},"
                 "\"total_tokens\":%llu}",
                 (unsigned long long)g->prompt_tokens, (unsigned long long)g->cached_tokens,
                 (unsigned long long)g->completion_tokens, (unsigned long long)r->reasoning_tokens,
                 (unsigned long long)(g->prompt_tokens + g->completion_tokens));
}

static void write_response(const struct sup_resp *r, bool over, struct sup_json *o)
{
    bool cut = over && r->finish == 2;

    sup_json_fmt(o,
                 "{\"id\":\"resp_%016llx\",\"object\":\"response\",\"created_at\":%lld,"
                 "\"status\":\"%s\",\"background\":false,\"error\":null,\"incomplete_details\":%s,"
                 "\"model\":",
                 (unsigned long long)r->g.answer, (long long)r->created,
                 !over ? "in_progress"
                 : cut ? "incomplete"
                       : "completed",
                 cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    sup_json_quoted(o, r->g.call.model);
    sup_json_str(o, ",\"output\":[");
    put(o, &r->items);
    sup_json_str(o, "]");
    put(o, &r->tail);
    sup_json_str(o, ",\"usage\":");
    if (over)
        write_usage(r, o);
    else
        sup_json_str(o, "null");
    sup_json_put(o, "}", 1);
}

/* ----------------------------------------------------------------------- events */

/* event: T, data: {"type":T,"sequence_number":n - and then what the caller writes. */
static struct sup_json *event(struct sup_resp *r, const char *type)
{
    struct sup_json *o = &r->g.buf;

    sup_json_fmt(o, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%llu", type, type,
                 (unsigned long long)r->n_events++);
    return o;
}

static void event_end(struct sup_resp *r)
{
    sup_json_str(&r->g.buf, "}\n\n");
}

/* Of the open item: its id, its place and, for texts, the place of its only part. */
static struct sup_json *item_event(struct sup_resp *r, const char *type)
{
    struct sup_json *o = event(r, type);
    char id[40];

    item_id(r, id);
    sup_json_fmt(o, ",\"item_id\":\"%s\",\"output_index\":%u%s", id, r->n_items,
                 r->open == SUP_ITEM_CALL ? "" : ",\"content_index\":0");
    return o;
}

static void event_response(struct sup_resp *r, const char *type, bool over)
{
    struct sup_json *o = event(r, type);

    sup_json_str(o, ",\"response\":");
    write_response(r, over, o);
    event_end(r);
}

static void event_item(struct sup_resp *r, const char *type, bool whole, const char *status)
{
    struct sup_json *o = event(r, type);

    sup_json_fmt(o, ",\"output_index\":%u,\"item\":", r->n_items);
    write_item(r, whole, status, o);
    event_end(r);
}

static void event_part(struct sup_resp *r, const char *type, bool whole)
{
    struct sup_json *o = item_event(r, type);

    sup_json_str(o, ",\"part\":{\"type\":\"output_text\",\"text\":\"");
    if (whole)
        put(o, &r->cur);
    sup_json_str(o, "\",\"annotations\":[],\"logprobs\":[]}");
    event_end(r);
}

/* "delta", "text" or "arguments": the piece at the end of cur from `from` on. */
static void event_text(struct sup_resp *r, const char *type, const char *key, size_t from)
{
    struct sup_json *o = item_event(r, type);

    sup_json_fmt(o, ",\"%s\":\"", key);
    if (r->cur.n > from)
        sup_json_put(o, r->cur.p + from, r->cur.n - from);
    sup_json_str(o, r->open == SUP_ITEM_MESSAGE ? "\",\"logprobs\":[]" : "\"");
    if (r->open == SUP_ITEM_CALL && from == 0 && strcmp(key, "arguments") == 0) {
        sup_json_str(o, ",\"name\":\"");
        put(o, &r->name);
        sup_json_put(o, "\"", 1);
    }
    event_end(r);
}

/* ------------------------------------------------------------------------ steps */

static const struct {
    const char *delta, *done, *key;
} words[] = {
    [SUP_ITEM_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done",
                            "text"},
    [SUP_ITEM_MESSAGE] = {"response.output_text.delta", "response.output_text.done", "text"},
    [SUP_ITEM_CALL] = {"response.function_call_arguments.delta",
                       "response.function_call_arguments.done", "arguments"},
};

static void close_item(struct sup_resp *r, const char *status)
{
    if (r->open == SUP_ITEM_NONE)
        return;
    if (r->g.stream) {
        event_text(r, words[r->open].done, words[r->open].key, 0);
        if (r->open == SUP_ITEM_MESSAGE)
            event_part(r, "response.content_part.done", true);
        event_item(r, "response.output_item.done", true, status);
    }
    if (r->n_items)
        sup_json_put(&r->items, ",", 1);
    write_item(r, true, status, &r->items);
    if (r->cur.failed || r->name.failed)
        r->items.failed = true;
    r->n_items++;
    r->open = SUP_ITEM_NONE;
}

static void open_item(struct sup_resp *r, enum sup_item kind)
{
    if (r->open == kind && kind != SUP_ITEM_CALL)
        return;
    close_item(r, "completed");
    r->open = kind;
    sup_json_reset(&r->cur);
    if (!r->g.stream)
        return;
    event_item(r, "response.output_item.added", false, "in_progress");
    if (kind == SUP_ITEM_MESSAGE)
        event_part(r, "response.content_part.added", false);
}

static void add_text(struct sup_resp *r, const ProtobufCBinaryData *text)
{
    size_t from = r->cur.n;

    if (!text->len)
        return;
    sup_json_text(&r->cur, text->data, text->len);
    if (r->g.stream)
        event_text(r, words[r->open].delta, "delta", from);
}

/* A call is begun by its name alone, whatever a worker gone wrong sends. */
static void add_call(struct sup_resp *r, const Ipc__CallPart *p)
{
    if (p->name.len) {
        close_item(r, "completed");
        sup_json_reset(&r->name);
        sup_json_text(&r->name, p->name.data, p->name.len);
        r->n_calls++;
        open_item(r, SUP_ITEM_CALL);
    }
    if (r->open != SUP_ITEM_CALL)
        return;
    add_text(r, &p->arguments);
    if (p->ended) /* no call after all: what was sent of it cannot be taken back */
        close_item(r, p->broken ? "incomplete" : "completed");
}

static void begin(struct sup_resp *r)
{
    sup_json_reset(&r->g.buf);
    if (!r->g.stream || r->n_events)
        return;
    event_response(r, "response.created", false);
    event_response(r, "response.in_progress", false);
}

void sup_resp_frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    struct sup_resp *r = (struct sup_resp *)c;
    const Ipc__Delta *d = fr->delta;

    if (fr->body_case != IPC__FRAME__BODY_DELTA) {
        sup_gen_frame(c, part, fr);
        return;
    }
    begin(r);
    r->reasoning_tokens += d->reasoning_tokens;
    if (d->reasoning.len) {
        open_item(r, SUP_ITEM_REASONING);
        add_text(r, &d->reasoning);
    }
    if (d->call && d->call->broken)
        add_call(r, d->call);
    if (d->text.len) {
        open_item(r, SUP_ITEM_MESSAGE);
        add_text(r, &d->text);
    }
    if (d->call && !d->call->broken)
        add_call(r, d->call);
    if (d->finish)
        r->finish = d->finish;
    if (r->g.stream && r->g.buf.n)
        sup_call_write(c, &r->g.buf);
}

void sup_resp_finish(struct sup_call *c)
{
    struct sup_resp *r = (struct sup_resp *)c;

    sup_gen_log(&r->g);
    sup_gen_facts(&r->g);
    begin(r);
    if (r->open == SUP_ITEM_NONE && r->n_items == 0)
        open_item(r, SUP_ITEM_MESSAGE); /* an answer without a word is one still */
    close_item(r, r->finish == 2 ? "incomplete" : "completed");
    if (!r->g.stream) {
        write_response(r, true, &r->g.buf);
        sup_call_reply(c, &r->g.buf);
        return;
    }
    event_response(r, r->finish == 2 ? "response.incomplete" : "response.completed", true);
    sup_call_write(c, &r->g.buf);
    sup_call_end(c);
}

void sup_resp_deinit(struct sup_call *c)
{
    struct sup_resp *r = (struct sup_resp *)c;

    sup_json_deinit(&r->tail);
    sup_json_deinit(&r->items);
    sup_json_deinit(&r->cur);
    sup_json_deinit(&r->name);
    sup_gen_deinit(c);
}
