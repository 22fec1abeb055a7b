/* wrk_parse.c - the marks of an answer and what lies between them (wrk_parse.h).
 *
 * Always true: every byte that comes in goes out as text, as thought or inside a call,
 * except the head and the last newline of a thought and marks out of place; what goes out
 * does not depend on how the bytes were cut. Tests: tests/worker/test_wrk_parse.c
 */
#include "wrk_parse.h"

#include <stdlib.h>
#include <string.h>

#include "mdl_tok.h"

static const char *const words[WRK_MARKS] = {
#define X(id, word) [WRK_MARK_##id] = word,
    WRK_MARK_MAP(X)
#undef X
};
static const char thought_head[] = "thought\n";
#define HEAD_BYTES (sizeof(thought_head) - 1)

const char *wrk_mark_word(enum wrk_mark m)
{
    return words[m];
}

void wrk_marks_find(struct wrk_marks *m, const struct mdl_tok *tok, uint32_t n_vocab)
{
    for (int i = 0; i < WRK_MARKS; i++) {
        m->id[i] = mdl_tok_find(tok, words[i], strlen(words[i]));
        if (m->id[i] >= 0 && (uint32_t)m->id[i] >= n_vocab)
            m->id[i] = -1;
    }
}

enum wrk_mark wrk_marks_of(const struct wrk_marks *m, int32_t token)
{
    for (int i = 0; i < WRK_MARKS; i++)
        if (m->id[i] == token && token >= 0)
            return (enum wrk_mark)i;
    return WRK_MARK_NONE;
}

enum rc wrk_parse_init(struct wrk_parse *p, const struct wrk_talk *talk,
                       const struct wrk_parse_out *out, struct rc_err *err)
{
    memset(p, 0, sizeof(*p));
    p->talk = talk;
    p->out = *out;
    if (talk->within == WRK_MARK_CHANNEL)
        p->state = WRK_THINKS;
    if (talk->within == WRK_MARK_CALL)
        p->state = WRK_CALLS;
    if (talk->calls && (p->raw = malloc(WRK_CALL_BYTES)) == NULL)
        return rc_fail(err, RC_NOMEM, "room for a tool call");
    return RC_OK;
}

void wrk_parse_deinit(struct wrk_parse *p)
{
    free(p->raw);
    memset(p, 0, sizeof(*p));
}

enum wrk_mark wrk_parse_mark_of(const struct wrk_parse *p, int32_t token)
{
    enum wrk_mark m = wrk_marks_of(&p->talk->marks, token);
    bool thought = m == WRK_MARK_CHANNEL || m == WRK_MARK_CHANNEL_END;

    return (thought ? p->talk->think : p->talk->calls) ? m : WRK_MARK_NONE;
}

/* --------------------------------------------------------------------- calls */

/* Held bytes as text, marks as they are spelled. */
static void give_back(struct wrk_parse *p)
{
    size_t from = 0;

    if (p->marked)
        p->out.text(p->out.user, words[WRK_MARK_CALL], strlen(words[WRK_MARK_CALL]));
    p->marked = false;
    for (size_t i = 0; i < p->n_raw; i++) {
        const char *word;

        if ((unsigned char)p->raw[i] < WRK_MARK_BYTE)
            continue;
        word = words[(unsigned char)p->raw[i] - WRK_MARK_BYTE];
        p->out.text(p->out.user, p->raw + from, i - from);
        p->out.text(p->out.user, word, strlen(word));
        from = i + 1;
    }
    p->out.text(p->out.user, p->raw + from, p->n_raw - from);
    p->n_raw = 0;
}

/* It is no call after all, whatever was told of it. */
static void no_call(struct wrk_parse *p)
{
    if (p->told)
        p->out.called(p->out.user, false);
    p->told = false;
    p->lost = true;
    give_back(p);
}

static bool begin_call(void *user, const char *name, size_t n)
{
    struct wrk_parse *p = user;

    if (p->n_calls == WRK_CALLS_MAX || !p->out.call(p->out.user, name, n))
        return false;
    p->n_calls++;
    p->told = true;
    return true;
}

static void tell_args(void *user, const char *s, size_t n)
{
    struct wrk_parse *p = user;

    p->out.args(p->out.user, s, n);
}

/* Bytes of a call, and how they are spelled as text. */
static void hold(struct wrk_parse *p, const char *s, size_t n, const char *spelled,
                 size_t n_spelled)
{
    const struct wrk_call_out to = {p, begin_call, tell_args};

    if (!p->lost && n_spelled > WRK_CALL_BYTES - p->n_spelled)
        no_call(p);
    if (p->lost) {
        p->out.text(p->out.user, spelled, n_spelled);
        return;
    }
    memcpy(p->raw + p->n_raw, s, n);
    p->n_raw += n;
    p->n_spelled += n_spelled;
    if (!wrk_call_read(&p->call, p->raw, p->n_raw, &to))
        no_call(p);
}

static void end_call(struct wrk_parse *p, bool closed)
{
    const struct wrk_call_out to = {p, begin_call, tell_args};

    p->state = WRK_SAYS;
    if (!p->lost && wrk_call_end(&p->call, &to)) {
        p->told = false;
        p->n_raw = 0;
        p->n_whole++;
        p->out.called(p->out.user, true);
        return;
    }
    if (!p->lost)
        no_call(p);
    if (closed)
        p->out.text(p->out.user, words[WRK_MARK_CALL_END], strlen(words[WRK_MARK_CALL_END]));
}

/* ------------------------------------------------------------------ thoughts */

static void think(struct wrk_parse *p, const char *s, size_t n)
{
    if (n == 0)
        return;
    if (p->newline)
        p->out.thought(p->out.user, "\n", 1);
    p->newline = s[n - 1] == '\n';
    if (n > p->newline)
        p->out.thought(p->out.user, s, n - p->newline);
}

/* The first bytes behind <|channel>: "thought\n" is dropped, anything else is thought. */
static void name_channel(struct wrk_parse *p, const char *s, size_t n)
{
    while (n > 0 && p->n_head < HEAD_BYTES && *s == thought_head[p->n_head]) {
        p->head[p->n_head++] = *s++;
        n--;
    }
    if (n == 0 && p->n_head < HEAD_BYTES)
        return;
    p->state = WRK_THINKS;
    if (p->n_head < HEAD_BYTES)
        think(p, p->head, p->n_head);
    think(p, s, n);
}

/* At any mark or end: what was begun is over. */
static void leave(struct wrk_parse *p, bool closed)
{
    if (p->state == WRK_CALLS)
        end_call(p, closed);
    if (p->state == WRK_NAMES_CHANNEL && p->n_head + 1 < HEAD_BYTES)
        think(p, p->head, p->n_head);
    p->newline = false;
    p->state = WRK_SAYS;
}

/* --------------------------------------------------------------------- stream */

void wrk_parse_mark(struct wrk_parse *p, enum wrk_mark m)
{
    if (m == WRK_MARK_QUOTE) {
        const char byte = (char)(WRK_MARK_BYTE + WRK_MARK_QUOTE);

        if (p->state == WRK_CALLS)
            hold(p, &byte, 1, words[m], strlen(words[m]));
        return;
    }
    leave(p, m == WRK_MARK_CALL_END);
    if (m == WRK_MARK_CALL) {
        p->state = WRK_CALLS;
        p->n_raw = p->n_spelled = 0;
        p->call = (struct wrk_call){.state = WRK_CALL_HEAD};
        p->lost = p->told = false;
        p->marked = true;
    } else if (m == WRK_MARK_CHANNEL) {
        p->state = WRK_NAMES_CHANNEL;
        p->n_head = 0;
    }
}

void wrk_parse_bytes(struct wrk_parse *p, const char *s, size_t n)
{
    switch (p->state) {
    case WRK_SAYS:
        p->out.text(p->out.user, s, n);
        return;
    case WRK_NAMES_CHANNEL:
        name_channel(p, s, n);
        return;
    case WRK_THINKS:
        think(p, s, n);
        return;
    case WRK_CALLS:
        hold(p, s, n, s, n);
        return;
    }
}

void wrk_parse_end(struct wrk_parse *p)
{
    leave(p, false);
}
