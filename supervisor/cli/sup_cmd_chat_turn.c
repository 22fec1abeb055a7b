/* sup_cmd_chat_turn.c - one question, one streamed answer.
 *
 * Foreign text goes through sup_clean before it reaches the terminal; what goes back
 * to the server is the text as it came. A question whose answer failed is taken back,
 * one that was stopped stays with the part that came.
 * Tests: tests/e2e/cli_chat.py, tests/supervisor/test_sup_cli_talk.c (fitting)
 */
#include "sup_cmd_chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sup_progress.h"
#include "sup_sse.h"
#include "sup_term.h"

#define ANSWER_MAX_BYTES (4u << 20)
#define MAX_TOKENS_DEFAULT 512
#define TEMPERATURE_DEFAULT 0.7

struct choice {
    char *text;
    size_t n, cap;
    char finish[24];
};

/* The first choice is shown as it comes, the others behind it. */
struct answer {
    struct sup_chat *chat;
    struct choice *choices;
    size_t n_choices, n_bytes; /* bytes: of all */
    struct sup_progress progress;
    struct sup_sse sse;
    struct sup_clean clean;
    struct timespec begin;
    double first_s, last_s;
    bool begun, at_line_start, no_memory;
    struct sup_turn turn;
    struct rc_err error; /* code set when the stream carried one */
};

static double since(const struct timespec *t)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - t->tv_sec) + (double)(now.tv_nsec - t->tv_nsec) / 1e9;
}

static bool keep(struct answer *a, struct choice *ch, const char *s, size_t n)
{
    if (n > ANSWER_MAX_BYTES - a->n_bytes)
        return false;
    if (ch->n + n + 1 > ch->cap) {
        size_t cap = (ch->n + n + 1) * 2;
        char *grown = realloc(ch->text, cap);

        if (!grown)
            return false;
        ch->text = grown;
        ch->cap = cap;
    }
    memcpy(ch->text + ch->n, s, n);
    ch->n += n;
    a->n_bytes += n;
    ch->text[ch->n] = '\0';
    return true;
}

/* A foreign text without what would drive the terminal, to stdout. */
static bool print(struct answer *a, const char *s, size_t n)
{
    char *out = malloc(3 * n + 16);
    size_t m;

    if (!out)
        return false;
    m = sup_clean(&a->clean, s, n, out);
    if (m) {
        (void)fwrite(out, 1, m, stdout);
        (void)fflush(stdout);
        a->at_line_start = out[m - 1] == '\n';
    }
    free(out);
    return true;
}

static bool hear(struct answer *a, struct choice *ch, const char *s)
{
    size_t n = strlen(s);

    if (!*s)
        return true;
    a->last_s = since(&a->begin);
    if (!a->begun) {
        a->begun = true;
        a->first_s = a->last_s;
        sup_progress_end(&a->progress, a->chat->client);
    }
    if (!keep(a, ch, s, n) || (ch == a->choices && !a->chat->json && !print(a, s, n)))
        a->no_memory = true;
    return !a->no_memory;
}

static bool on_choice(struct answer *a, const json_t *choice)
{
    json_int_t idx = json_integer_value(json_object_get(choice, "index"));
    struct choice *ch;
    const char *s;

    if (idx < 0 || (uint64_t)idx >= a->n_choices)
        return true;
    ch = &a->choices[idx];
    s = json_string_value(json_object_get(choice, "finish_reason"));
    if (s)
        snprintf(ch->finish, sizeof(ch->finish), "%s", s);
    s = json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    return !s || hear(a, ch, s);
}

static uint64_t count(const json_t *usage, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(usage, key));

    return v > 0 ? (uint64_t)v : 0;
}

static bool on_event(void *user, const char *event, const char *data, size_t n)
{
    struct answer *a = user;
    json_t *j, *choice, *usage;
    bool go = true;
    size_t i;

    if (strcmp(data, "[DONE]") == 0)
        return true;
    j = json_loadb(data, n, JSON_ALLOW_NUL, NULL);
    if (!j) {
        rc_fail(&a->error, RC_FORMAT, "the server sent an event that is no JSON");
        return false;
    }
    if (strcmp(event, "error") == 0 || json_object_get(j, "error")) {
        a->error = RC_ERR_INIT;
        a->error.code = RC_INTERNAL;
        if (!sup_client_error_body(j, &a->error))
            snprintf(a->error.msg, sizeof(a->error.msg), "the server reported an error");
        json_decref(j);
        return false;
    }
    json_array_foreach(json_object_get(j, "choices"), i, choice)
    {
        go = go && on_choice(a, choice);
    }
    usage = json_object_get(j, "usage");
    if (json_is_object(usage)) {
        a->turn.prompt_tokens = count(usage, "prompt_tokens");
        a->turn.completion_tokens = count(usage, "completion_tokens");
        a->turn.cached_tokens =
            count(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
    json_decref(j);
    return go;
}

static bool on_bytes(void *user, const char *s, size_t n)
{
    struct answer *a = user;

    return sup_sse_feed(&a->sse, s, n);
}

uint64_t sup_chat_max_tokens(const struct sup_chat *c)
{
    uint64_t n = sup_chat_set_num(&c->set, SUP_SET_max_tokens, MAX_TOKENS_DEFAULT);

    /* an answer may not claim so much of a small context that no question fits */
    return c->ctx_tokens && n > c->ctx_tokens / 2 ? (c->ctx_tokens + 1) / 2 : n;
}

static json_t *request(const struct sup_chat *c)
{
    json_t *messages = sup_talk_json(&c->talk);
    json_t *body = messages ? json_pack("{s:s, s:o, s:b, s:{s:b}}", "model", c->model, "messages",
                                        messages, "stream", 1, "stream_options", "include_usage", 1)
                            : NULL;

    if (!body || !sup_chat_set_send(&c->set, body) ||
        json_object_set_new(body, "max_tokens", json_integer((json_int_t)sup_chat_max_tokens(c))) !=
            0 ||
        (!c->set.v[SUP_SET_temperature] &&
         json_object_set_new(body, "temperature", json_real(TEMPERATURE_DEFAULT)) != 0)) {
        json_decref(body);
        return NULL;
    }
    return body;
}

static enum rc stream(struct sup_chat *c, struct answer *a, struct rc_err *err)
{
    json_t *body = request(c);
    enum rc rc;

    if (!body)
        return rc_fail(err, RC_NOMEM, "out of memory");
    (void)clock_gettime(CLOCK_MONOTONIC, &a->begin);
    if (!c->warm && !c->json)
        sup_progress_start(&a->progress, c->client, c->model);
    rc = sup_client_stream(c->client, "/v1/chat/completions", body, on_bytes, a, err);
    sup_progress_end(&a->progress, c->client);
    json_decref(body);
    if (rc == RC_OK && a->no_memory)
        return rc_fail(err, RC_TOO_LARGE, "the answer is larger than this program keeps");
    if (rc == RC_OK && a->error.code != RC_OK) {
        if (err)
            *err = a->error;
        return a->error.code;
    }
    for (size_t i = 0; rc == RC_OK && i < a->n_choices; i++)
        if (!a->choices[i].finish[0])
            return rc_fail(err, RC_CLOSED, "the stream ended before the answer did");
    return rc;
}

static void note_dropped(const struct sup_chat *c, unsigned n)
{
    if (n && c->ctx_tokens == 0)
        fprintf(stderr, "[the conversation is over %u MiB: forgot the oldest %s]\n",
                SUP_TALK_MAX_BYTES >> 20, n == 1 ? "turn" : "turns");
    else if (n) /* also when quiet: never silent */
        fprintf(stderr, "[the context of %llu tokens is full: forgot the oldest %s]\n",
                (unsigned long long)c->ctx_tokens, n == 1 ? "turn" : "turns");
}

/* Several choices: a list of them all; "content" is the first in any case. */
static void print_json(const struct sup_chat *c, const struct answer *a)
{
    const struct choice *first = &a->choices[0];
    json_t *list = a->n_choices > 1 ? json_array() : NULL;
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f}", "model", c->model, "content",
                          first->text ? first->text : "", "finish_reason", a->turn.finish,
                          "prompt_tokens", (json_int_t)a->turn.prompt_tokens, "cached_tokens",
                          (json_int_t)a->turn.cached_tokens, "completion_tokens",
                          (json_int_t)a->turn.completion_tokens, "first_token_s", a->turn.first_s,
                          "tokens_per_s", a->turn.rate);
    char *s;

    for (size_t i = 0; list && i < a->n_choices; i++)
        (void)json_array_append_new(list, json_pack("{s:s, s:s}", "content",
                                                    a->choices[i].text ? a->choices[i].text : "",
                                                    "finish_reason", a->choices[i].finish));
    if (list)
        (void)json_object_set_new(o, "choices", list);
    s = json_dumps(o, JSON_COMPACT);
    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

/* The choices behind the first, each on lines of its own. */
static void print_others(struct answer *a)
{
    for (size_t i = 1; i < a->n_choices; i++) {
        const struct choice *ch = &a->choices[i];

        if (!a->chat->quiet)
            fprintf(stderr, "[choice %zu of %zu: %s]\n", i + 1, a->n_choices,
                    ch->finish[0] ? ch->finish : "stopped");
        a->clean = (struct sup_clean){0};
        a->at_line_start = false;
        if (ch->n)
            (void)print(a, ch->text, ch->n);
        if (!a->at_line_start)
            puts("");
        (void)fflush(stdout);
    }
}

void sup_chat_stats_line(const struct sup_turn *t, char *out, size_t cap)
{
    char cached[40] = "";

    if (t->cached_tokens)
        snprintf(cached, sizeof(cached), " (%llu cached)", (unsigned long long)t->cached_tokens);
    snprintf(out, cap, "%llu prompt%s + %llu answer tokens, first after %.2f s, %.1f tokens/s, %s",
             (unsigned long long)t->prompt_tokens, cached, (unsigned long long)t->completion_tokens,
             t->first_s, t->rate, t->finish[0] ? t->finish : "unknown end");
}

/* Tokens of the choice that stays; the server counts all of them together. */
static uint64_t share_of_first(const struct answer *a)
{
    if (a->n_choices == 1 || a->n_bytes == 0)
        return a->turn.completion_tokens;
    return (uint64_t)((double)a->turn.completion_tokens * (double)a->choices[0].n /
                      (double)a->n_bytes) +
           1;
}

/* The answer is whole, or was stopped by Ctrl-C. */
static enum rc settle(struct sup_chat *c, struct answer *a, bool stopped, struct rc_err *err)
{
    struct choice *first = &a->choices[0];
    char line[160];

    if (stopped)
        snprintf(first->finish, sizeof(first->finish), "stopped");
    memcpy(a->turn.finish, first->finish, sizeof(a->turn.finish));
    a->turn.first_s = a->first_s;
    a->turn.total_s = a->last_s;
    if (a->turn.completion_tokens > 1 && a->last_s > a->first_s)
        a->turn.rate = (double)(a->turn.completion_tokens - 1) / (a->last_s - a->first_s);
    if (!c->json && !a->at_line_start)
        puts("");
    (void)fflush(stdout);
    if (c->json)
        print_json(c, a);
    else
        print_others(a);
    (void)fflush(stdout);
    if (first->n == 0 && stopped) {
        sup_talk_pop(&c->talk);
    } else if (!sup_talk_add(&c->talk, false, first->text ? first->text : "")) {
        sup_talk_pop(&c->talk);
        return rc_fail(err, RC_NOMEM, "out of memory");
    } else if (!stopped) {
        sup_talk_settle(&c->talk, a->turn.prompt_tokens, share_of_first(a));
    }
    c->warm = true;
    c->last = a->turn;
    c->n_turns++;
    c->sum_prompt += a->turn.prompt_tokens;
    c->sum_completion += a->turn.completion_tokens;
    sup_chat_stats_line(&a->turn, line, sizeof(line));
    if (stopped && !c->quiet)
        fputs("[stopped]\n", stderr);
    else if (!c->quiet && !c->json)
        fprintf(stderr, "[%s]\n", line);
    return RC_OK;
}

static void answer_deinit(struct answer *a)
{
    sup_sse_deinit(&a->sse);
    for (size_t i = 0; a->choices && i < a->n_choices; i++)
        free(a->choices[i].text);
    free(a->choices);
}

enum rc sup_chat_ask(struct sup_chat *c, bool *stopped, struct rc_err *err)
{
    struct answer a;
    enum rc rc;

    *stopped = false;
    note_dropped(c, sup_talk_fit(&c->talk, c->ctx_tokens, sup_chat_max_tokens(c)));
    for (;;) {
        struct rc_err e = RC_ERR_INIT;

        memset(&a, 0, sizeof(a));
        a.chat = c;
        a.at_line_start = true;
        a.n_choices = sup_chat_set_num(&c->set, SUP_SET_n, 1);
        a.choices = calloc(a.n_choices, sizeof(*a.choices));
        sup_sse_init(&a.sse, on_event, &a);
        rc = a.choices ? stream(c, &a, &e) : rc_fail(&e, RC_NOMEM, "out of memory");
        *stopped = rc == RC_CANCELLED;
        if (rc == RC_OK || *stopped) {
            rc = settle(c, &a, *stopped, err);
            answer_deinit(&a);
            return rc;
        }
        bool full = e.limit > 0 && !a.begun;
        if (!a.at_line_start)
            puts("");
        answer_deinit(&a);
        if (full && c->ctx_tokens == 0)
            c->ctx_tokens = e.limit;
        /* our estimate was too low: the server knows better */
        if (full && sup_talk_drop_oldest(&c->talk)) {
            note_dropped(c, 1);
            continue;
        }
        sup_talk_pop(&c->talk);
        if (err)
            *err = e;
        return rc;
    }
}
