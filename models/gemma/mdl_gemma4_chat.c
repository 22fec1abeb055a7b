/* mdl_gemma4_chat.c - Gemma 4's chat format, rendered straight to token ids.
 *
 * <bos> then turns <|turn> ROLE "\n" ... <turn|> "\n" (system, user, model). The system turn
 * also holds <|think|> and the declarations of tools; an assistant's message holds its
 * reasoning, its calls, what the tools answered and its text, and a run of such messages
 * is one turn. Control tokens are put in by id; what people or tools wrote is encoded with
 * special tokens switched off, so a typed "<turn|>" stays text. Whatever lies between two
 * control tokens goes to the tokenizer in one stretch, as the reference does, because
 * merges cross it. Never renders the template text a checkpoint carries.
 * Values and declarations: mdl_gemma4_tool.c.
 * Source: gemma.md 13.2. Tests: tests/models/test_mdl_gemma4_chat.c
 */
#include "mdl_gemma4_chat.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------- stretches */

void g4_text(struct g4_chat *c, const char *s, size_t n)
{
    size_t need;
    char *p;

    if (n == 0 || c->rc != RC_OK)
        return;
    if (__builtin_add_overflow(c->n, n, &need) || need > SIZE_MAX / 2) {
        c->rc = rc_fail(c->o.err, RC_TOO_LARGE, "a message is too long");
        return;
    }
    if (need > c->cap) {
        if (!(p = realloc(c->buf, need * 2))) {
            c->rc = rc_fail(c->o.err, RC_NOMEM, "no memory for a message of %zu bytes", need);
            return;
        }
        c->buf = p;
        c->cap = need * 2;
    }
    memcpy(c->buf + c->n, s, n);
    c->n = need;
}

void g4_str(struct g4_chat *c, const char *s)
{
    g4_text(c, s, strlen(s));
}

static void flush(struct g4_chat *c)
{
    size_t n = c->n;

    c->n = 0;
    if (c->rc == RC_OK && n > 0)
        c->rc = mdl_gemma_chat_text(&c->o, c->buf, n);
}

void g4_token(struct g4_chat *c, enum g4_tok t)
{
    const struct gemma *g = c->o.m->state;

    flush(c);
    if (c->rc != RC_OK)
        return;
    c->rc = g->tok[t] >= 0 ? mdl_gemma_chat_id(&c->o, g->tok[t])
                           : rc_fail_what(c->o.err, RC_UNSUPPORTED, "model",
                                          "this model's tokenizer has no %s token", g4_word(t));
}

void g4_fail(struct g4_chat *c, const char *what, const char *fmt, ...)
{
    char msg[200];
    va_list ap;

    if (c->rc != RC_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    c->rc = rc_fail_what(c->o.err, RC_INVALID, what, "%s", msg);
}

size_t g4_enter(struct g4_chat *c, const char *key, size_t i)
{
    static const char more[] = "...";
    size_t was = c->n_where, n = key ? strnlen(key, 41) : 0;
    const char *text;
    char part[64];

    if (was >= sizeof(more) - 1 && strcmp(c->where + was - (sizeof(more) - 1), more) == 0)
        return was;
    if (n == 41) /* a long name, up to a character's end */
        for (n = 40; n > 0 && ((unsigned char)key[n] & 0xc0) == 0x80; n--)
            ;
    if (key)
        snprintf(part, sizeof(part), "%s%.*s%s", was ? "." : "", (int)n, key, key[n] ? "~" : "");
    else
        snprintf(part, sizeof(part), "[%zu]", i);
    /* there is always room for the dots: a piece that would take it becomes them */
    text = strlen(part) + sizeof(more) > sizeof(c->where) - was ? more : part;
    n = strlen(text);
    memcpy(c->where + was, text, n + 1);
    c->n_where = was + n;
    return was;
}

void g4_leave(struct g4_chat *c, size_t was)
{
    c->n_where = was;
    c->where[was] = '\0';
}

static const char *const words[G4_TOKENS] = {
#define X(id, word) [G4_##id] = word,
    G4_TOKEN_MAP(X)
#undef X
};

const char *g4_word(enum g4_tok t)
{
    return words[t];
}

void mdl_gemma4_chat_init(struct mdl *m, struct gemma *g)
{
    unsigned i;

    _Static_assert(G4_TOKENS <= sizeof(g->tok) / sizeof(g->tok[0]), "a token has no place");
    for (i = 0; i < G4_TOKENS; i++) {
        g->tok[i] = mdl_tok_find(m->tok, words[i], strlen(words[i]));
        if (g->tok[i] >= (int32_t)m->info.vocab_size)
            g->tok[i] = -1;
    }
    m->info.has_chat_template = g->tok[G4_TURN] >= 0 && g->tok[G4_TURN_END] >= 0;
    m->info.can_call_tools = m->info.has_chat_template;
    for (i = 0; i < G4_TOKENS; i++)
        if (g->tok[i] < 0)
            m->info.can_call_tools = false;
    m->info.can_think = m->info.has_chat_template && g->tok[G4_THINK] >= 0 &&
                        g->tok[G4_CHANNEL] >= 0 && g->tok[G4_CHANNEL_END] >= 0;
}

/* ------------------------------------------------------------------ messages */

enum role { SYSTEM, USER, MODEL, TOOL, UNKNOWN };

static enum role role_of(const struct mdl_chat_msg *m)
{
    if (strcmp(m->role, "system") == 0 || strcmp(m->role, "developer") == 0)
        return SYSTEM;
    if (strcmp(m->role, "user") == 0)
        return USER;
    if (strcmp(m->role, "assistant") == 0)
        return MODEL;
    return strcmp(m->role, "tool") == 0 ? TOOL : UNKNOWN;
}

static void bad(struct g4_chat *c, size_t i, const char *why)
{
    if (c->rc != RC_OK)
        return;
    g4_fail(c, "messages", "messages[%zu]: %s", i, why);
    if (c->o.err)
        c->o.err->item = (int32_t)i;
}

static void check_roles(struct g4_chat *c)
{
    bool answers = false; /* may a tool's answer stand here? */
    size_t i;

    if (c->n_msgs == 0)
        g4_fail(c, "messages", "messages: expected at least one");
    for (i = 0; i < c->n_msgs; i++) {
        const struct mdl_chat_msg *m = &c->msgs[i];
        enum role r = role_of(m);

        if (r == UNKNOWN)
            bad(c, i, "this role is not known to the model (system, user, assistant, tool)");
        if (r == TOOL && !answers)
            bad(c, i, "a tool's message must follow an assistant message with tool calls");
        if (r != MODEL && (m->n_tool_calls || m->n_reasoning))
            bad(c, i, "only an assistant message has tool calls or reasoning");
        if (c->rc != RC_OK)
            return;
        if (r != TOOL)
            answers = r == MODEL && m->n_tool_calls > 0;
    }
}

static void trimmed(struct g4_chat *c, const char *s, size_t n)
{
    if (n == 0)
        return;
    mdl_gemma_trim(&s, &n);
    g4_text(c, s, n);
}

static const char *find(const char *s, size_t n, const char *word)
{
    return n ? memmem(s, n, word, strlen(word)) : NULL;
}

/* A model's text without what it thought: <|channel> .. <channel|> spans go. */
static void without_thoughts(struct g4_chat *c, const char *s, size_t n)
{
    static const char open[] = "<|channel>", close[] = "<channel|>";
    char *kept = NULL;
    size_t len = 0;

    if (!find(s, n, close) && !find(s, n, open)) {
        trimmed(c, s, n);
        return;
    }
    if (!(kept = malloc(n + 1))) {
        c->rc = rc_fail(c->o.err, RC_NOMEM, "no memory for a message of %zu bytes", n);
        return;
    }
    while (n > 0) {
        const char *end = find(s, n, close);
        size_t part = end ? (size_t)(end - s) : n;
        const char *cut = find(s, part, open);
        size_t keep = cut ? (size_t)(cut - s) : part;

        memcpy(kept + len, s, keep);
        len += keep;
        part += end ? sizeof(close) - 1 : 0;
        s += part;
        n -= part;
    }
    trimmed(c, kept, len);
    free(kept);
}

static void open_turn(struct g4_chat *c, const char *role)
{
    g4_token(c, G4_TURN);
    g4_str(c, role);
    g4_str(c, "\n");
}

static void close_turn(struct g4_chat *c)
{
    g4_token(c, G4_TURN_END);
    g4_str(c, "\n");
}

static void thought(struct g4_chat *c, const char *s, size_t n)
{
    g4_token(c, G4_CHANNEL);
    g4_str(c, "thought\n");
    g4_text(c, s, n);
    if (n > 0)
        g4_str(c, "\n");
    g4_token(c, G4_CHANNEL_END);
}

/* Name of the function that a tool's message answers. */
static const char *answered(const json_t *calls, const struct mdl_chat_msg *m)
{
    const char *name = m->name ? m->name : "unknown";
    size_t i;

    for (i = 0; m->tool_call_id && i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const char *id = json_string_value(json_object_get(call, "id"));

        if (id && strcmp(id, m->tool_call_id) == 0)
            name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
    }
    return name;
}

static void put_answer(struct g4_chat *c, const char *name, const struct mdl_chat_msg *m)
{
    g4_token(c, G4_RESPONSE);
    g4_str(c, "response:");
    g4_str(c, name);
    g4_str(c, "{value:");
    g4_quoted(c, m->content, m->n_bytes);
    g4_str(c, "}");
    g4_token(c, G4_RESPONSE_END);
}

/* Calls of message i and the answers right after it; how many of those. */
static size_t put_calls(struct g4_chat *c, size_t i)
{
    const struct mdl_chat_msg *m = &c->msgs[i];
    json_t *calls;
    size_t k, was;

    was = g4_enter(c, "messages", 0);
    g4_enter(c, NULL, i);
    g4_enter(c, "tool_calls", 0);
    calls = g4_calls_parse(c, m->tool_calls, m->n_tool_calls);
    for (k = 0; k < json_array_size(calls); k++)
        g4_call(c, json_array_get(calls, k), k);
    g4_leave(c, was);
    if (c->rc == RC_INVALID && c->o.err)
        c->o.err->item = (int32_t)i;
    for (k = i + 1; k < c->n_msgs && role_of(&c->msgs[k]) == TOOL; k++)
        put_answer(c, answered(calls, &c->msgs[k]), &c->msgs[k]);
    json_decref(calls);
    return k - i - 1;
}

/* Reasoning is kept after the last user message; before it only where asked for, and only
 * beside calls. */
static bool keeps_reasoning(const struct g4_chat *c, size_t i)
{
    const struct mdl_chat_msg *m = &c->msgs[i];

    return m->n_reasoning > 0 &&
           (i >= c->after_user || (c->opts->preserve_thinking && m->n_tool_calls > 0));
}

/* An assistant's message; says what the turn ends with. */
static enum g4_tail put_model(struct g4_chat *c, size_t i)
{
    const struct mdl_chat_msg *m = &c->msgs[i];
    enum g4_tail tail = G4_TAIL_TEXT;

    if (keeps_reasoning(c, i))
        thought(c, m->reasoning, m->n_reasoning);
    if (m->n_tool_calls)
        tail = put_calls(c, i) ? G4_TAIL_ANSWER : G4_TAIL_CALL;
    if (m->n_bytes > 0) {
        if (tail == G4_TAIL_ANSWER)
            tail = G4_TAIL_TEXT;
        without_thoughts(c, m->content, m->n_bytes);
    }
    if (tail == G4_TAIL_CALL) /* the answer is to come: the model stops here */
        g4_token(c, G4_RESPONSE);
    return tail;
}

static void put_system(struct g4_chat *c, const struct mdl_chat_msg *sys)
{
    open_turn(c, "system");
    if (c->opts->thinking) {
        g4_token(c, G4_THINK);
        g4_str(c, "\n");
    }
    if (sys)
        trimmed(c, sys->content, sys->n_bytes);
    if (c->opts->n_tools)
        g4_tools(c, c->opts->tools, c->opts->n_tools);
    close_turn(c);
}

static void put_messages(struct g4_chat *c, size_t i)
{
    enum g4_tail tail = G4_TAIL_CLOSED;

    for (; i < c->n_msgs; i++) {
        const struct mdl_chat_msg *m = &c->msgs[i];
        enum role r = role_of(m);

        if (r == TOOL)
            continue; /* stands with the calls it answers */
        if (r == MODEL) {
            if (tail == G4_TAIL_CLOSED)
                open_turn(c, "model");
            flush(c);
            if (c->rc == RC_OK)
                c->item = i;
            tail = put_model(c, i);
            continue;
        }
        if (tail != G4_TAIL_CLOSED)
            close_turn(c);
        if (c->rc == RC_OK)
            c->item = i;
        open_turn(c, r == USER ? "user" : "system");
        trimmed(c, m->content, m->n_bytes);
        close_turn(c);
        tail = G4_TAIL_CLOSED;
    }
    if (tail == G4_TAIL_TEXT) {
        close_turn(c);
        tail = G4_TAIL_CLOSED;
    }
    c->tail = tail;
}

/* Where the model goes on: a turn of its own, or the one a tool's answer lies in. */
static void put_prompt(struct g4_chat *c)
{
    const struct gemma *g = c->o.m->state;

    if (c->tail == G4_TAIL_CALL) /* the answer is missing: nothing to go on with */
        return;
    if (c->tail == G4_TAIL_ANSWER) {
        if (c->opts->thinking) {
            g4_token(c, G4_CHANNEL);
            g4_str(c, "thought\n");
        }
        return;
    }
    open_turn(c, "model");
    if (g->empty_thought && !c->opts->thinking)
        thought(c, "", 0);
}

static enum rc render(struct g4_chat *c)
{
    const struct gemma *g = c->o.m->state;
    const struct mdl_chat_msg *sys = NULL;
    size_t i;

    check_roles(c);
    if (c->rc != RC_OK)
        return c->rc;
    for (i = 0; i < c->n_msgs; i++)
        if (role_of(&c->msgs[i]) == USER)
            c->after_user = i + 1;
    if (role_of(&c->msgs[0]) == SYSTEM)
        sys = &c->msgs[0];
    c->rc = mdl_gemma_chat_id(&c->o, g->bos);
    if (sys || c->opts->thinking || c->opts->n_tools)
        put_system(c, sys);
    c->started = c->rc == RC_OK;
    put_messages(c, sys ? 1 : 0);
    if (c->opts->add_generation_prompt)
        put_prompt(c);
    flush(c);
    return c->rc;
}

enum rc mdl_gemma4_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                        const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err)
{
    struct g4_chat c = {
        .o = {.m = m, .ids = out, .start = out->n, .max_tokens = opts->max_tokens, .err = err},
        .msgs = msgs,
        .n_msgs = n,
        .opts = opts};
    enum rc rc;

    if (!m->info.has_chat_template)
        return rc_fail_what(err, RC_UNSUPPORTED, "model",
                            "this model's tokenizer has no chat turns (<|turn>)");
    if ((rc = render(&c)) != RC_OK) {
        out->n = c.o.start; /* the caller's earlier ids stay, ours go */
        if (err && err->item < 0 && c.started)
            err->item = (int32_t)c.item;
    }
    free(c.buf);
    return rc;
}
