/* wrk_out.c - holding back, gathering and sending the text of one choice.
 *
 * Always true: text[0 .. n_text - n_held) is decided and whole characters; probs
 * are in token order. Must never send a byte of a completed stop string, nor take
 * back what it sent. Tests: tests/worker/test_wrk_engine.c (text_ends_as_it_should)
 */
#include "wrk_out.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_MAX (MDL_PIECE_MAX + 8)
#define GATHER_IDS 4096u
#define PROBS_SPARE 64u

uint32_t wrk_out_points(const char *s, size_t n_bytes)
{
    uint32_t n = 0;

    for (size_t i = 0; i < n_bytes; i++)
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

static enum rc talk_init(struct wrk_out *o, struct rc_err *err);
static void judge(struct wrk_out *o, size_t n_new);

enum rc wrk_out_init(struct wrk_out *o, uint32_t max_tokens, struct rc_err *err)
{
    mdl_detok_init(&o->detok, o->tok, true);
    o->cap_text = (o->stream ? 0 : WRK_OUT_GATHER) + o->stops->longest + 2 * PIECE_MAX;
    if (wrk_parse_on(o->talk)) /* a call may come back as text */
        o->cap_text += WRK_CALL_BYTES + PIECE_MAX;
    o->text = malloc(o->cap_text);
    if (o->logprobs) {
        /* a held byte belongs to one token at least; tokens without text ride along */
        o->cap_prob = o->stops->longest + PROBS_SPARE;
        o->prob = malloc(o->cap_prob * sizeof(*o->prob));
        o->top = malloc(((size_t)o->cap_prob * o->n_top + 1) * sizeof(*o->top));
    }
    if (o->ids_wanted) {
        o->cap_ids = max_tokens < GATHER_IDS ? max_tokens : GATHER_IDS;
        o->ids = malloc(((size_t)o->cap_ids + 1) * sizeof(*o->ids));
    }
    if (o->text == NULL || (o->logprobs && (o->prob == NULL || o->top == NULL)) ||
        (o->ids_wanted && o->ids == NULL)) {
        wrk_out_deinit(o);
        return rc_fail(err, RC_NOMEM, "text buffers of an answer");
    }
    return wrk_parse_on(o->talk) ? talk_init(o, err) : RC_OK;
}

void wrk_out_deinit(struct wrk_out *o)
{
    free(o->text);
    free(o->prob);
    free(o->top);
    free(o->ids);
    free(o->think);
    free(o->calls);
    wrk_parse_deinit(&o->parse);
    o->think = o->calls = NULL;
    o->n_think = o->n_calls_bytes = 0;
    o->n_calls = o->n_think_tokens = 0;
    o->text = NULL;
    o->prob = NULL;
    o->top = NULL;
    o->ids = NULL;
    o->n_text = o->n_held = 0;
    o->n_prob = o->n_ids = 0;
}

/* Runs new bytes at the end of text through the stop strings. */
static void judge(struct wrk_out *o, size_t n_new)
{
    size_t hit = 0, took;

    o->n_text += n_new;
    o->n_points += wrk_out_points(o->text + o->n_text - n_new, n_new);
    took = wrk_stop_push(o->stops, &o->stop, o->text + o->n_text - n_new, n_new, &hit);
    if (hit > 0) {
        o->n_text -= n_new - took + hit;
        o->n_held = 0;
        o->stopped = true;
        return;
    }
    o->n_held = wrk_stop_held(o->stops, &o->stop);
}

/* ---------------------------------------------------- thoughts and calls apart */

static void on_text(void *user, const char *s, size_t n)
{
    struct wrk_out *o = user;

    if (o->stopped || n == 0)
        return;
    memcpy(o->text + o->n_text, s, n);
    o->n_fed += n;
    judge(o, n);
}

static void on_thought(void *user, const char *s, size_t n)
{
    struct wrk_out *o = user;

    if (o->stopped || n > o->cap_think - o->n_think)
        return;
    memcpy(o->think + o->n_think, s, n);
    o->n_think += n;
}

static void put_call(struct wrk_out *o, const char *s, size_t n)
{
    memcpy(o->calls + o->n_calls_bytes, s, n);
    o->n_calls_bytes += n;
}

static bool on_call(void *user, const char *name, size_t n)
{
    struct wrk_out *o = user;

    if (o->stopped || o->n_calls == WRK_CALLS_MAX ||
        n + WRK_CALL_JSON > WRK_OUT_CALLS - o->n_calls_bytes)
        return false;
    /* what could begin a stop string is over: text behind the call never stands before it */
    o->n_held = 0;
    o->stop = (struct wrk_stop_state){0};
    put_call(o, name, n);
    o->call[o->n_calls++] = (struct wrk_out_call){.index = o->n_begun++, .n_name = (uint32_t)n};
    return true;
}

/* The call at work; a new row when what there was of it is sent. */
static struct wrk_out_call *this_call(struct wrk_out *o)
{
    if (o->n_calls == 0)
        o->call[o->n_calls++] = (struct wrk_out_call){.index = o->n_begun - 1};
    return &o->call[o->n_calls - 1];
}

static void on_args(void *user, const char *s, size_t n)
{
    struct wrk_out *o = user;

    this_call(o)->n_args += (uint32_t)n;
    put_call(o, s, n);
}

static void on_called(void *user, bool whole)
{
    struct wrk_out *o = user;
    struct wrk_out_call *k = this_call(o);

    k->ended = true;
    k->broken = !whole;
    if (!whole && (k->n_name > 0 || !o->stream)) { /* none of it was sent */
        o->n_calls_bytes -= k->n_name + k->n_args;
        o->n_begun--;
        o->n_calls--;
    } else if (!whole) {
        o->text_behind = true;
    }
    if (whole && o->talk->one_call)
        o->stopped = true;
}

static enum rc talk_init(struct wrk_out *o, struct rc_err *err)
{
    const struct wrk_parse_out to = {o, on_text, on_thought, on_call, on_args, on_called};

    o->cap_think = WRK_OUT_GATHER + 2 * PIECE_MAX;
    o->think = malloc(o->cap_think);
    o->calls = o->talk->calls ? malloc(WRK_OUT_CALLS) : NULL;
    if (o->think == NULL || (o->talk->calls && o->calls == NULL) ||
        wrk_parse_init(&o->parse, o->talk, &to, NULL) != RC_OK) {
        wrk_out_deinit(o);
        return rc_fail(err, RC_NOMEM, "text buffers of an answer");
    }
    return RC_OK;
}

/* A token's text or mark; returns the bytes of text it brought. */
static size_t push_talk(struct wrk_out *o, int32_t token)
{
    enum wrk_mark m = wrk_parse_mark_of(&o->parse, token);
    size_t before = o->n_fed;
    bool thinks = wrk_parse_thinks(&o->parse);
    char piece[PIECE_MAX];

    if (m == WRK_MARK_NONE) {
        size_t n = mdl_detok_push(&o->detok, token, piece, sizeof(piece));

        if (n > 0)
            wrk_parse_bytes(&o->parse, piece, n);
    } else {
        if (mdl_detok_flush(&o->detok, piece, sizeof(piece)) > 0)
            wrk_parse_bytes(&o->parse, "\xef\xbf\xbd", 3);
        wrk_parse_mark(&o->parse, m);
    }
    o->n_think_tokens += thinks || wrk_parse_thinks(&o->parse);
    return o->n_fed - before;
}

void wrk_out_push(struct wrk_out *o, int32_t token, bool end_token, float logprob,
                  const struct wrk_top *top)
{
    uint64_t start = o->n_sent + o->n_text;
    uint32_t offset = o->n_points;
    size_t n = 0;

    if (o->ids_wanted)
        o->ids[o->n_ids++] = (uint32_t)token;
    if (end_token)
        return;
    if (wrk_parse_on(o->talk)) {
        n = push_talk(o, token);
    } else {
        n = mdl_detok_push(&o->detok, token, o->text + o->n_text, o->cap_text - o->n_text);
        judge(o, n);
    }
    if (!o->logprobs)
        return;
    o->prob[o->n_prob] = (struct wrk_prob){
        .token = token,
        .has_logprob = true,
        .logprob = logprob,
        .offset = offset,
        .start = start,
        .end = start + n,
    };
    if (o->n_top > 0)
        memcpy(o->top + (size_t)o->n_prob * o->n_top, top, o->n_top * sizeof(*top));
    o->n_prob++;
}

/* Puts n probs from `from` into a Delta. */
static void put_probs(const struct wrk_out *o, struct wrk_delta *s, Ipc__Delta *d, uint32_t from,
                      uint32_t n)
{
    size_t bytes;

    for (uint32_t i = 0; i < n; i++) {
        const struct wrk_prob *p = &o->prob[from + i];
        const struct wrk_top *t = o->top + (size_t)(from + i) * o->n_top;
        Ipc__TokenProb *out = &s->prob[i];

        ipc__token_prob__init(out);
        out->token = (uint32_t)p->token;
        out->logprob = p->logprob;
        out->has_logprob = p->has_logprob;
        out->text_offset = p->offset;
        out->piece.data = (uint8_t *)mdl_tok_bytes(o->tok, p->token, false, &bytes);
        out->piece.len = out->piece.data != NULL ? bytes : 0;
        out->n_top = p->has_logprob ? o->n_top : 0;
        out->top = &s->top_ptr[i * WRK_TOP_MAX];
        for (uint32_t k = 0; k < out->n_top; k++) {
            Ipc__TopProb *q = &s->top[i * WRK_TOP_MAX + k];

            ipc__top_prob__init(q);
            q->token = (uint32_t)t[k].token;
            q->logprob = t[k].logprob;
            q->piece.data = (uint8_t *)mdl_tok_bytes(o->tok, t[k].token, false, &bytes);
            q->piece.len = q->piece.data != NULL ? bytes : 0;
            out->top[k] = q;
        }
        s->prob_ptr[i] = out;
    }
    d->n_probs = n;
    d->probs = s->prob_ptr;
}

static void drop_probs(struct wrk_out *o, uint32_t n)
{
    if (n == 0)
        return;
    o->n_prob -= n;
    memmove(o->prob, o->prob + n, o->n_prob * sizeof(*o->prob));
    if (o->n_top > 0)
        memmove(o->top, o->top + (size_t)n * o->n_top,
                (size_t)o->n_prob * o->n_top * sizeof(*o->top));
}

static enum rc send_delta(const struct wrk_out *o, struct wrk_chan *c, Ipc__Delta *d,
                          struct rc_err *err)
{
    Ipc__Frame f = IPC__FRAME__INIT;

    d->index = o->index;
    f.task = o->task;
    f.body_case = IPC__FRAME__BODY_DELTA;
    f.delta = d;
    return wrk_chan_send(c, &f, err);
}

/* Probs that may travel: those whose text is decided; all when the list is full,
 * because tokens without text may come without end. */
static uint32_t probs_due(const struct wrk_out *o, uint64_t decided)
{
    uint32_t n = 0;

    while (n < o->n_prob && o->prob[n].end <= decided)
        n++;
    return n == 0 && o->n_prob == o->cap_prob ? o->n_prob : n;
}

/* At the end: what a multi-byte character left behind becomes one U+FFFD; of a
 * completed stop string's tokens none is told. */
static void settle(struct wrk_out *o)
{
    if (!o->stopped) {
        char rest[PIECE_MAX];

        bool cut = mdl_detok_flush(&o->detok, rest, sizeof(rest)) > 0;

        if (wrk_parse_on(o->talk)) {
            if (cut)
                wrk_parse_bytes(&o->parse, "\xef\xbf\xbd", 3);
            wrk_parse_end(&o->parse);
        } else if (cut) {
            memcpy(o->text + o->n_text, "\xef\xbf\xbd", 3);
            judge(o, 3);
        }
        o->n_held = 0;
    }
    if (o->stopped) {
        uint64_t end = o->n_sent + o->n_text;

        while (o->n_prob > 0 && o->prob[o->n_prob - 1].start >= end &&
               o->prob[o->n_prob - 1].end > end)
            o->n_prob--;
    }
}

/* How many of the next bytes travel in one Delta: whole characters. */
static size_t piece_of(const char *s, size_t n)
{
    if (n <= WRK_OUT_CALL_PIECE)
        return n;
    for (n = WRK_OUT_CALL_PIECE; ((unsigned char)s[n] & 0xc0) == 0x80; n--)
        ;
    return n;
}

/* Rows of calls that may be sent: without a stream, only whole ones. */
static uint32_t calls_due(const struct wrk_out *o)
{
    return o->n_calls - (o->n_calls > 0 && !o->stream && !o->call[o->n_calls - 1].ended);
}

/* The first n rows of calls, each in pieces. d, which has all else that is due, goes with
 * the first piece; with the last where its text stands behind a void call. */
static enum rc send_calls(struct wrk_out *o, uint32_t n, struct wrk_chan *c, const Ipc__Delta *d,
                          struct rc_err *err)
{
    const char *at = o->calls;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; i < n && rc == RC_OK; i++) {
        Ipc__CallPart part = IPC__CALL_PART__INIT;
        size_t left = o->call[i].n_args;

        part.index = o->call[i].index;
        part.name.data = (uint8_t *)(uintptr_t)at;
        part.name.len = o->call[i].n_name;
        at += o->call[i].n_name;
        do {
            Ipc__Delta one = IPC__DELTA__INIT;
            bool first = at == o->calls + o->call[0].n_name, last;

            part.arguments.data = (uint8_t *)(uintptr_t)at;
            part.arguments.len = piece_of(at, left);
            at += part.arguments.len;
            left -= part.arguments.len;
            part.ended = left == 0 && o->call[i].ended;
            part.broken = left == 0 && o->call[i].broken;
            last = left == 0 && i + 1 == n;
            if (o->text_behind ? last : first)
                one = *d;
            one.call = &part;
            rc = send_delta(o, c, &one, err);
            part.name.len = 0;
        } while (left > 0 && rc == RC_OK);
    }
    o->n_calls_bytes -= (size_t)(at - o->calls);
    memmove(o->calls, at, o->n_calls_bytes);
    o->n_calls -= n;
    memmove(o->call, o->call + n, o->n_calls * sizeof(*o->call));
    o->text_behind = false;
    return rc;
}

/* No room for what the next token brings, of those lists that were asked for. */
static bool full(const struct wrk_out *o)
{
    return (o->logprobs && o->n_prob >= o->cap_prob) || (o->ids_wanted && o->n_ids >= o->cap_ids);
}

enum rc wrk_out_send(struct wrk_out *o, struct wrk_delta *s, struct wrk_chan *c, uint32_t finish,
                     struct rc_err *err)
{
    Ipc__Delta d = IPC__DELTA__INIT;
    size_t n_text;
    uint32_t n_prob, n_calls;
    enum rc rc = RC_OK;

    if (finish != 0)
        settle(o);
    n_text = o->n_text - o->n_held;
    n_prob = finish != 0 ? o->n_prob : probs_due(o, o->n_sent + n_text);
    n_calls = calls_due(o);
    if (finish == 0 && n_text == 0 && n_prob == 0 && o->n_ids == 0 && o->n_think == 0 &&
        n_calls == 0)
        return RC_OK;
    /* nobody sees a part of it: while nothing was sent, a crash can still be hidden */
    if (finish == 0 && !o->stream && n_text < WRK_OUT_GATHER && n_prob < WRK_DELTA_PROBS &&
        o->n_think < WRK_OUT_GATHER && n_calls == 0 && !full(o))
        return RC_OK;
    while (n_prob > WRK_DELTA_PROBS) {
        put_probs(o, s, &d, 0, WRK_DELTA_PROBS);
        if ((rc = send_delta(o, c, &d, err)) != RC_OK)
            return rc;
        drop_probs(o, WRK_DELTA_PROBS);
        n_prob -= WRK_DELTA_PROBS;
    }
    put_probs(o, s, &d, 0, n_prob);
    d.text.data = (uint8_t *)o->text;
    d.text.len = n_text;
    d.tokens = o->ids;
    d.n_tokens = o->n_ids;
    d.reasoning.data = (uint8_t *)o->think;
    d.reasoning.len = o->n_think;
    d.reasoning_tokens = o->n_think_tokens;
    finish = finish == 1 && o->parse.n_whole > 0 ? 3 : finish;
    if (n_calls == 0) {
        d.finish = finish;
        rc = send_delta(o, c, &d, err);
    } else {
        Ipc__Delta last = IPC__DELTA__INIT;

        last.finish = finish;
        rc = send_calls(o, n_calls, c, &d, err);
        if (rc == RC_OK && finish != 0)
            rc = send_delta(o, c, &last, err);
    }
    o->n_think = 0;
    o->n_think_tokens = 0;
    drop_probs(o, n_prob);
    o->n_text -= n_text;
    memmove(o->text, o->text + n_text, o->n_text);
    o->n_sent += n_text;
    o->n_ids = 0;
    return rc;
}

/* --------------------------------------------------------------------- echo */

static enum rc send_prompt(struct wrk_out *o, struct wrk_delta *s, struct wrk_chan *c,
                           const char *text, size_t n_bytes, struct rc_err *err)
{
    Ipc__Delta d = IPC__DELTA__INIT;
    enum rc rc;

    d.is_prompt = true;
    d.text.data = (uint8_t *)text;
    d.text.len = n_bytes;
    put_probs(o, s, &d, 0, o->n_prob);
    rc = send_delta(o, c, &d, err);
    o->n_prob = 0;
    return rc;
}

enum rc wrk_out_echo(struct wrk_out *o, struct wrk_delta *s, struct wrk_chan *c, const char *text,
                     size_t n_bytes, struct rc_err *err)
{
    o->n_points = wrk_out_points(text, n_bytes);
    return send_prompt(o, s, c, text, n_bytes, err);
}

void wrk_out_push_prompt(struct wrk_out *o, int32_t token, bool has_logprob, float logprob,
                         const struct wrk_top *top, uint32_t offset)
{
    o->prob[o->n_prob] = (struct wrk_prob){
        .token = token,
        .has_logprob = has_logprob,
        .logprob = logprob,
        .offset = offset,
    };
    if (has_logprob && o->n_top > 0)
        memcpy(o->top + (size_t)o->n_prob * o->n_top, top, o->n_top * sizeof(*top));
    o->n_prob++;
}

enum rc wrk_out_send_prompt(struct wrk_out *o, struct wrk_delta *s, struct wrk_chan *c,
                            struct rc_err *err)
{
    return o->n_prob > 0 ? send_prompt(o, s, c, NULL, 0, err) : RC_OK;
}
