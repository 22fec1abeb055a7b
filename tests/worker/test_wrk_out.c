/* test_wrk_out.c - thoughts and calls of a choice on their way to the front: streamed and
 * gathered alike, with stop strings, log-probabilities and ends of every kind.
 * Plain text is tested through the engine (test_wrk_engine.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <poll.h>
#include <unistd.h>
#include <cmocka.h>

#include "ipc.h"
#include "worker/fake_mdl.h"
#include "worker/marks.h"
#include "wrk_out.h"

struct heard {
    char text[4096], think[4096], calls[4096];
    size_t n_text, n_think, n_calls;
    uint32_t n_probs, n_tokens, n_deltas, n_parts, think_tokens, finish;
    bool in_call; /* its parts come, and no text between them */
};

static void take(char *to, size_t *n, const ProtobufCBinaryData *b)
{
    assert_true(ipc_utf8_valid(b->data, b->len));
    assert_true(*n + b->len < 4096);
    if (b->len > 0)
        memcpy(to + *n, b->data, b->len);
    *n += b->len;
    to[*n] = '\0';
}

static void read_all(int fd, struct heard *h)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    while (poll(&p, 1, 0) > 0) {
        ProtobufCMessage *msg = NULL;
        const Ipc__Delta *d;
        char head[32];

        assert_int_equal(ipc_recv(fd, &ipc__frame__descriptor, &msg, NULL, NULL, NULL), RC_OK);
        d = ((Ipc__Frame *)msg)->delta;
        assert_int_equal(h->finish, 0);
        take(h->think, &h->n_think, &d->reasoning);
        take(h->text, &h->n_text, &d->text);
        assert_false(h->in_call && d->text.len > 0 && !(d->call != NULL && d->call->broken));
        if (d->call != NULL) {
            h->n_parts++;
            assert_true((d->call->name.len > 0) != h->in_call);
            h->in_call = !d->call->ended;
            assert_true(d->call->ended || !d->call->broken);
            if (d->call->name.len > 0) {
                ProtobufCBinaryData b = {0, (uint8_t *)head};

                b.len = (size_t)snprintf(head, sizeof(head), "#%u ", d->call->index);
                take(h->calls, &h->n_calls, &b);
            }
            take(h->calls, &h->n_calls, &d->call->name);
            take(h->calls, &h->n_calls, &d->call->arguments);
            if (d->call->ended)
                take(h->calls, &h->n_calls,
                     &(ProtobufCBinaryData){1, (uint8_t *)(d->call->broken ? "!" : ";")});
        }
        h->n_probs += (uint32_t)d->n_probs;
        h->n_tokens += (uint32_t)d->n_tokens;
        h->think_tokens += d->reasoning_tokens;
        h->finish = d->finish;
        h->n_deltas++;
        protobuf_c_message_free_unpacked(msg, NULL);
    }
}

static const struct kase {
    const char *name, *said, *stop, *text, *think, *calls;
    uint32_t end, finish, think_tokens; /* end: as the engine says; finish: as it is told */
    bool one_call;
    const char *streamed; /* the calls of a stream, if others: ! ends a void one */
} cases[] = {
    {"text", "ab", NULL, "ab", "", "", 1, 1, 0, false},
    {"a thought and text", CH "thought\nhm\n" CE "ab", NULL, "ab", "hm", "", 1, 1, 13, false},
    {"a thought cut off", CH "thought\nhm", NULL, "", "hm", "", 2, 2, 11, false},
    {"a call", TC "call:f{a:" Q "x" Q "}" TE, NULL, "", "", "#0 f{\"a\":\"x\"};", 1, 3, 0, false},
    {"text and two calls", "ok" TC "call:f{}" TE TC "call:g{}" TE, NULL, "ok", "", "#0 f{};#1 g{};",
     1, 3, 0, false},
    {"a call, then the limit", TC "call:f{}" TE "a", NULL, "a", "", "#0 f{};", 2, 2, 0, false},
    {"only one call", "ok" TC "call:f{}" TE TC "call:g{}" TE, NULL, "ok", "", "#0 f{};", 1, 3, 0,
     true},
    {"a call cut off is text", TC "call:f{a:" Q "x", NULL, "<|tool_call>call:f{a:<|\"|>x", "", "",
     2, 2, 0, false, "#0 f{\"a\":\"x!"},
    {"a call cut off in its head", TC "call:", NULL, "<|tool_call>call:", "", "", 2, 2, 0, false},
    {"a good call behind a void one", TC "call:f{a:,}" TE TC "call:g{}" TE, NULL,
     "<|tool_call>call:f{a:,}<tool_call|>", "", "#0 g{};", 1, 3, 0, false, "#0 f{\"a\":!#1 g{};"},
    {"a stop behind a void call", "o" TC "call:f{,STOP", "STOP", "o<|tool_call>call:f{,", "", "", 1,
     1, 0, false, "#0 f{!"},
    {"malformed is text", TC "call:f{" TE "x", NULL, "<|tool_call>call:f{<tool_call|>x", "", "", 1,
     1, 0, false, "#0 f{!"},
    {"a stop in a thought is none", CH "thought\naSTOPb" CE "c", "STOP", "c", "aSTOPb", "", 1, 1,
     16, false},
    {"a stop in a call is none", TC "call:f{a:" Q "STOP" Q "}" TE, "STOP", "", "",
     "#0 f{\"a\":\"STOP\"};", 1, 3, 0, false},
    {"a stop in text", "aSTOPb", "STOP", "a", "", "", 1, 1, 0, false},
    {"a stop begun before a thought goes on behind it", "aST" CH "thought\nh" CE "OPb", "STOP", "a",
     "h", "", 1, 1, 11, false},
    {"a stop that does not complete", "aST" TC "call:f{}" TE, "STOP", "aST", "", "#0 f{};", 1, 3, 0,
     true},
    {"a stop does not reach over a call", "aST" TC "call:f{}" TE "OPb", "STOP", "aSTOPb", "",
     "#0 f{};", 1, 3, 0, false},
    {"a stop does not reach over a void call", "aST" TC "call:f{]" TE "STOPb", "STOP",
     "aST<|tool_call>call:f{]<tool_call|>", "", "", 1, 1, 0, false, "#0 f{!"},
    {"a stop in what is given back", TC "call:STOP" TE "x", "STOP", "<|tool_call>call:", "", "", 1,
     1, 0, false},
    {"a character cut by a mark", "a\xc3" CH "thought\n\xc3" CE "b", NULL,
     "a\xef\xbf\xbd"
     "b",
     "\xef\xbf\xbd", "", 1, 1, 11, false},
};

static void hear(const struct kase *k, bool stream, bool logprobs, bool ids, struct heard *h)
{
    struct mdl *m = fake_new(64, 1, 8);
    struct wrk_stops stops = {0};
    struct wrk_talk talk = {
        .think = true, .calls = true, .one_call = k->one_call, .within = WRK_MARK_NONE};
    static struct wrk_delta scratch;
    struct wrk_out o = {.tok = mdl_tok_get(m),
                        .stops = &stops,
                        .talk = &talk,
                        .task = 1,
                        .stream = stream,
                        .logprobs = logprobs,
                        .ids_wanted = ids};
    struct wrk_chan chan;
    uint32_t n = 0;
    int fds[2];

    memset(h, 0, sizeof(*h));
    assert_int_equal(ipc_pair(fds, NULL), RC_OK);
    assert_int_equal(wrk_chan_init(&chan, fds[0], NULL), RC_OK);
    wrk_marks_find(&talk.marks, o.tok, FAKE_VOCAB);
    if (k->stop != NULL)
        assert_int_equal(wrk_stops_add(&stops, k->stop, strlen(k->stop), NULL), RC_OK);
    assert_int_equal(wrk_out_init(&o, 100, NULL), RC_OK);
    for (const char *s = k->said; *s != '\0' && !o.stopped; s++, n++) {
        int32_t token =
            *s != '\1' ? FAKE_BYTE(*s) : FAKE_MARK0 + (int32_t)(strchr("cdturq", s[1]) - "cdturq");

        s += *s == '\1';
        wrk_out_push(&o, token, false, -1, NULL);
        assert_int_equal(wrk_out_send(&o, &scratch, &chan, o.stopped ? 1 : 0, NULL), RC_OK);
        read_all(fds[1], h);
    }
    if (!o.stopped)
        assert_int_equal(wrk_out_send(&o, &scratch, &chan, k->end, NULL), RC_OK);
    read_all(fds[1], h);
    assert_int_equal(h->n_tokens, ids ? n : 0);
    assert_true(h->n_deltas <= n + 8); /* as the front counts */
    wrk_out_deinit(&o);
    wrk_chan_deinit(&chan);
    wrk_stops_deinit(&stops);
    close(fds[0]);
    close(fds[1]);
    free(m);
}

static void streamed_and_gathered_are_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int how = 0; how < 8; how++) {
            const struct kase *k = &cases[i];
            const char *calls = how & 1 && k->streamed != NULL ? k->streamed : k->calls;
            struct heard h;

            hear(k, how & 1, how & 2, how & 4, &h);
            if (strcmp(h.text, k->text) != 0 || strcmp(h.think, k->think) != 0 ||
                strcmp(h.calls, calls) != 0)
                fail_msg("%s (%d): text '%s' thought '%s' calls '%s'", k->name, how, h.text,
                         h.think, h.calls);
            if (h.finish != k->finish || h.think_tokens != k->think_tokens)
                fail_msg("%s (%d): finish %u, %u tokens of thought", k->name, how, h.finish,
                         h.think_tokens);
            assert_true((h.n_probs > 0) == ((how & 2) != 0));
        }
}

/* A stream tells a call while it is written, and not before. */
static void a_call_is_told_as_it_comes(void **state)
{
    static const struct kase k = {"a call", TC "call:f{a:" Q "abcdefgh" Q ",b:[1,22]}" TE,
                                  .end = 1};
    struct heard h;

    (void)state;
    hear(&k, true, false, true, &h);
    assert_string_equal(h.calls, "#0 f{\"a\":\"abcdefgh\",\"b\":[1,22]};");
    assert_int_equal(h.n_parts, 20); /* all but the head, digits and the brace that ends it */
    hear(&k, false, false, true, &h);
    assert_int_equal(h.n_parts, 1);
}

/* What is not streamed is sent when it is whole, whatever lists were asked for: until then a
 * crash of the worker can be hidden from the client. */
static void what_is_not_streamed_comes_whole(void **state)
{
    static const struct kase k = {"text", "abcdefghijklmnopqrstuvwxyz", .end = 2};
    struct heard h;

    (void)state;
    for (int how = 0; how < 4; how++) {
        hear(&k, false, how & 1, how & 2, &h);
        assert_string_equal(h.text, k.said);
        assert_int_equal(h.n_deltas, 1);
        hear(&k, true, how & 1, how & 2, &h);
        assert_true(h.n_deltas > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_and_gathered_are_alike),
        cmocka_unit_test(a_call_is_told_as_it_comes),
        cmocka_unit_test(what_is_not_streamed_comes_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
