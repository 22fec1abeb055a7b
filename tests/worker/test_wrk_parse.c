/* test_wrk_parse.c - what a model says, told apart at every possible cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "ipc.h"
#include "mdl_tok.h"
#include "worker/call_ref.h"
#include "worker/marks.h"
#include "wrk_parse.h"

/* the marks are found by name at load; here they have numbers */
int32_t mdl_tok_find(const struct mdl_tok *t, const char *piece, size_t n)
{
    (void)t;
    for (int i = 0; i < WRK_MARKS; i++)
        if (strlen(wrk_mark_word((enum wrk_mark)i)) == n &&
            memcmp(wrk_mark_word((enum wrk_mark)i), piece, n) == 0)
            return 100 + i;
    return -1;
}

struct heard {
    char all[4096]; /* T{text} H{thought} C{name|json} in order, like kinds joined; ! a void call */
    size_t n;
    char kind;
    bool full; /* no room for calls */
};

static void add(struct heard *h, char kind, const char *s, size_t n)
{
    if (n == 0)
        return;
    assert_true(h->n + n + 8 < sizeof(h->all));
    if (h->kind != kind) {
        h->n += (size_t)sprintf(h->all + h->n, "%s%c{", h->kind != 0 ? "}" : "", kind);
        h->kind = kind;
    }
    memcpy(h->all + h->n, s, n);
    h->n += n;
    h->all[h->n] = '\0';
}

static void on_text(void *u, const char *s, size_t n)
{
    add(u, 'T', s, n);
}
static void on_thought(void *u, const char *s, size_t n)
{
    add(u, 'H', s, n);
}
static bool on_call(void *u, const char *name, size_t n)
{
    struct heard *h = u;

    if (h->full)
        return false;
    if (h->kind == 'C')
        h->kind = 'x'; /* the next call stands apart */
    add(h, 'C', name, n);
    add(h, 'C', "|", 1);
    return true;
}
static void on_args(void *u, const char *s, size_t n)
{
    assert_true(ipc_utf8_valid(s, n));
    add(u, 'C', s, n);
}
static void on_called(void *u, bool whole)
{
    if (!whole)
        add(u, 'C', "!", 1);
}
#define OUT(h)                                                \
    {                                                         \
        (h), on_text, on_thought, on_call, on_args, on_called \
    }

static const struct kase {
    const char *name, *said, *heard;
    enum wrk_mark within; /* what the prompt ended in */
} cases[] = {
    {"text alone", "Hello {world}", "T{Hello {world}}", WRK_MARK_NONE},
    {"a thought, then text", CH "thought\nHm.\n" CE "Yes", "H{Hm.}T{Yes}", WRK_MARK_NONE},
    {"only the last newline of a thought is its end's", CH "thought\na\n\n" CE "b", "H{a\n}T{b}",
     WRK_MARK_NONE},
    {"an empty thought", CH "thought\n" CE "b", "T{b}", WRK_MARK_NONE},
    {"a thought of another name keeps it", CH "though" CE "b", "H{though}T{b}", WRK_MARK_NONE},
    {"a channel without a name", CH "\nplan\n" CE "b", "H{\nplan}T{b}", WRK_MARK_NONE},
    {"a thought that never ends", CH "thought\nab\n", "H{ab}", WRK_MARK_NONE},
    {"the prompt began the thought", "Hm\n" CE "Yes", "H{Hm}T{Yes}", WRK_MARK_CHANNEL},
    {"a call", TC "call:f{a:1}" TE, "C{f|{\"a\":1}}", WRK_MARK_NONE},
    {"a call without arguments", TC "call:now{}" TE, "C{now|{}}", WRK_MARK_NONE},
    {"the prompt began the call", "call:f{a:true}" TE, "C{f|{\"a\":true}}", WRK_MARK_CALL},
    {"every kind of value",
     TC "call:f.g-h_1{a:" Q "x" Q ",b:-1.5e+3,c:false,d:null,e:[1," Q Q ",[]],f:{g:{}}}" TE,
     "C{f.g-h_1|{\"a\":\"x\",\"b\":-1.5e+3,\"c\":false,\"d\":null,\"e\":[1,\"\",[]],\"f\":{\"g\":{}"
     "}}}",
     WRK_MARK_NONE},
    {"what a string may hold", TC "call:f{a:" Q "q\"\\\n}{,:\xc3\xa9" Q "}" TE,
     "C{f|{\"a\":\"q\\\"\\\\\\n}{,:\xc3\xa9\"}}", WRK_MARK_NONE},
    {"control characters", TC "call:f{a:" Q "\x02\t" Q "}" TE, "C{f|{\"a\":\"\\u0002\\t\"}}",
     WRK_MARK_NONE},
    {"keys between quotes, white space", TC "call:f{ " Q "a b" Q " : 1 , c : [ 1 , 2 ] }" TE,
     "C{f|{\"a b\":1,\"c\":[1,2]}}", WRK_MARK_NONE},
    {"two calls", TC "call:f{a:1}" TE TC "call:g{}" TE, "C{f|{\"a\":1}}C{g|{}}", WRK_MARK_NONE},
    {"thought, text, call", CH "thought\nh\n" CE "t" TC "call:f{}" TE TR, "H{h}T{t}C{f|{}}",
     WRK_MARK_NONE},
    {"a call that only the end of the answer ends", TC "call:f{a:1}", "C{f|{\"a\":1}}",
     WRK_MARK_NONE},
    {"a call that is cut off is text", TC "call:f{a:" Q "x",
     "C{f|{\"a\":\"x!}T{<|tool_call>call:f{a:<|\"|>x}", WRK_MARK_NONE},
    {"malformed: no brace", TC "call:f" TE "!", "T{<|tool_call>call:f<tool_call|>!}",
     WRK_MARK_NONE},
    {"malformed: a bare word", TC "call:f{a:x}" TE,
     "C{f|{\"a\":!}T{<|tool_call>call:f{a:x}<tool_call|>}", WRK_MARK_NONE},
    {"malformed: a comma too many", TC "call:f{a:1,}" TE,
     "C{f|{\"a\":1,!}T{<|tool_call>call:f{a:1,}<tool_call|>}", WRK_MARK_NONE},
    {"malformed: a number JSON has not", TC "call:f{a:01}" TE,
     "C{f|{\"a\":!}T{<|tool_call>call:f{a:01}<tool_call|>}", WRK_MARK_NONE},
    {"malformed: bytes behind the brace", TC "call:f{}x" TE,
     "C{f|{!}T{<|tool_call>call:f{}x<tool_call|>}", WRK_MARK_NONE},
    {"malformed: closed twice", TC "call:f{a:[1]]}" TE,
     "C{f|{\"a\":[1]!}T{<|tool_call>call:f{a:[1]]}<tool_call|>}", WRK_MARK_NONE},
    {"malformed, begun by the prompt", "kall" TE, "T{kall<tool_call|>}", WRK_MARK_CALL},
    {"a name with a blank", TC "call:f g{}" TE, "T{<|tool_call>call:f g{}<tool_call|>}",
     WRK_MARK_NONE},
    {"a void call, then a good one", TC "call:f{a:[}" TE TC "call:f{b:2}" TE,
     "C{f|{\"a\":[!}T{<|tool_call>call:f{a:[}<tool_call|>}C{f|{\"b\":2}}", WRK_MARK_NONE},
    {"a void call, begun by the prompt", "call:f{a:" Q "\n",
     "C{f|{\"a\":\"\\n!}T{call:f{a:<|\"|>\n}", WRK_MARK_CALL},
    {"blanks inside a bare key are its own, those behind it are not", TC "call:f{ a  b\t:1}" TE,
     "C{f|{\"a  b\":1}}", WRK_MARK_NONE},
    {"characters of many bytes",
     TC "call:f{\xe6\x97\xa5:" Q "\xf0\x9f\x98\x80\"\xe6\x9c\xac" Q "}" TE,
     "C{f|{\"\xe6\x97\xa5\":\"\xf0\x9f\x98\x80\\\"\xe6\x9c\xac\"}}", WRK_MARK_NONE},
    {"a quote inside a bare key", TC "call:f{a" Q "b:1}" TE,
     "C{f|{\"a!}T{<|tool_call>call:f{a<|\"|>b:1}<tool_call|>}", WRK_MARK_NONE},
    {"a call inside a thought ends it", CH "thought\nh" TC "call:f{}" TE "x", "H{h}C{f|{}}T{x}",
     WRK_MARK_NONE},
    {"marks out of place are dropped", "a" CE "b" TE "c" Q "d" TR "e", "T{abcde}", WRK_MARK_NONE},
    {"spelled marks are text", "<|tool_call>call:f{}<tool_call|>",
     "T{<|tool_call>call:f{}<tool_call|>}", WRK_MARK_NONE},
};

static void begin(struct wrk_parse *p, struct wrk_talk *talk, struct heard *h, enum wrk_mark within)
{
    const struct wrk_parse_out out = OUT(h);

    memset(h, 0, sizeof(*h));
    *talk = (struct wrk_talk){.think = true, .calls = true, .within = within};
    wrk_marks_find(&talk->marks, NULL, 200);
    assert_int_equal(wrk_parse_init(p, talk, &out, NULL), RC_OK);
}

static void finish(struct wrk_parse *p, struct heard *h)
{
    wrk_parse_end(p);
    wrk_parse_deinit(p);
    if (h->kind != 0)
        strcpy(h->all + h->n, "}");
}

/* Feeds a script; a cut behind every character whose last byte's bit of mask is set. */
static void feed(struct wrk_parse *p, const char *s, uint64_t mask)
{
    size_t n = strlen(s), from = 0;

    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\1') {
            int32_t token = 100 + (int32_t)(strchr("cdturq", s[i + 1]) - "cdturq");
            enum wrk_mark m = wrk_parse_mark_of(p, token);

            if (i > from)
                wrk_parse_bytes(p, s + from, i - from);
            assert_int_not_equal(m, WRK_MARK_NONE);
            wrk_parse_mark(p, m);
            from = ++i + 1;
        } else if (mask >> (i % 64) & 1 && ((unsigned char)s[i + 1] & 0xc0) != 0x80) {
            wrk_parse_bytes(p, s + from, i + 1 - from);
            from = i + 1;
        }
    }
    if (n > from)
        wrk_parse_bytes(p, s + from, n - from);
}

static void every_cut_is_heard_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct kase *k = &cases[i];
        size_t n = strlen(k->said);

        /* one cut at each place, two cuts at each pair, all, none */
        for (size_t a = 0; a <= n + 1; a++)
            for (size_t b = a; b <= n + 1; b++) {
                uint64_t mask = a == n + 1 ? UINT64_MAX : (1ull << a % 64) | (1ull << b % 64);
                struct wrk_talk talk;
                struct wrk_parse p;
                struct heard h;

                begin(&p, &talk, &h, k->within);
                feed(&p, k->said, mask);
                finish(&p, &h);
                if (strcmp(h.all, k->heard) != 0)
                    fail_msg("%s: cut %zu, %zu: heard %s, expected %s", k->name, a, b, h.all,
                             k->heard);
            }
    }
}

static void depth_is_bounded(void **state)
{
    char said[1024];
    (void)state;

    for (unsigned depth = WRK_CALL_DEPTH - 2; depth <= WRK_CALL_DEPTH; depth++) {
        struct wrk_talk talk;
        struct wrk_parse p;
        struct heard h;
        size_t n = (size_t)sprintf(said, TC "call:f{a:");

        for (unsigned i = 0; i < depth; i++)
            said[n++] = '[';
        for (unsigned i = 0; i < depth; i++)
            said[n++] = ']';
        sprintf(said + n, "}" TE);
        begin(&p, &talk, &h, WRK_MARK_NONE);
        feed(&p, said, 0);
        finish(&p, &h);
        assert_int_equal(strstr(h.all, "!}T{") == NULL, depth < WRK_CALL_DEPTH);
    }
}

static void count_text(void *u, const char *s, size_t n)
{
    (void)s;
    *(size_t *)u += n;
}
static bool count_call(void *u, const char *name, size_t n)
{
    (void)u, (void)name, (void)n;
    return true;
}
static void ignore_args(void *u, const char *s, size_t n)
{
    (void)u, (void)s, (void)n;
}
static void never_whole(void *u, bool whole)
{
    (void)u;
    assert_false(whole);
}

static void a_call_too_long_loses_no_byte(void **state)
{
    static char chunk[4096];
    struct wrk_talk talk = {.think = true, .calls = true, .within = WRK_MARK_NONE};
    size_t got = 0, sent = 0;
    const struct wrk_parse_out out = {&got,       count_text,  count_text,
                                      count_call, ignore_args, never_whole};
    struct wrk_parse p;
    (void)state;

    memset(chunk, 'x', sizeof(chunk));
    assert_int_equal(wrk_parse_init(&p, &talk, &out, NULL), RC_OK);
    wrk_parse_mark(&p, WRK_MARK_CALL);
    wrk_parse_bytes(&p, "call:f{a:", 9);
    wrk_parse_mark(&p, WRK_MARK_QUOTE);
    for (unsigned i = 0; i < WRK_CALL_BYTES / sizeof(chunk) + 2; i++, sent += sizeof(chunk))
        wrk_parse_bytes(&p, chunk, sizeof(chunk));
    wrk_parse_mark(&p, WRK_MARK_QUOTE);
    wrk_parse_bytes(&p, "}", 1);
    wrk_parse_mark(&p, WRK_MARK_CALL_END);
    wrk_parse_end(&p);
    assert_int_equal(got, sent + strlen("<|tool_call>call:f{a:<|\"|><|\"|>}<tool_call|>"));
    wrk_parse_deinit(&p);
}

static void calls_beyond_the_limit_are_text(void **state)
{
    struct wrk_talk talk;
    struct wrk_parse p;
    struct heard h;
    (void)state;

    begin(&p, &talk, &h, WRK_MARK_NONE);
    for (unsigned i = 0; i <= WRK_CALLS_MAX; i++)
        feed(&p, TC "call:f{}" TE, 0);
    assert_int_equal(p.n_calls, WRK_CALLS_MAX);
    assert_int_equal(p.n_whole, WRK_CALLS_MAX);
    finish(&p, &h);
    assert_non_null(strstr(h.all, "T{<|tool_call>call:f{}<tool_call|>}"));

    begin(&p, &talk, &h, WRK_MARK_NONE);
    h.full = true;
    feed(&p, TC "call:f{}" TE, 0);
    finish(&p, &h);
    assert_string_equal(h.all, "T{<|tool_call>call:f{}<tool_call|>}");
}

static void collect(void *u, const char *s, size_t n)
{
    add(u, 'J', s, n);
}

/* Bodies made of the syntax's own pieces, right and wrong: what is told in pieces is what
 * the whole says, and a void call's arguments never are a whole object. */
static void pieces_are_the_whole(void **state)
{
    static const char *const parts[] = {"a",  ":",   ",", "{",      "}",         "[",    "]",
                                        " ",  "\n",  "1", "-2.5e3", Q "x\"\n" Q, "true", "null",
                                        "a:", "a:1", Q,   "0",      "{a:",       "[1"};
    uint32_t seed = 7, n_whole = 0, n_void = 0;
    (void)state;

    for (unsigned turn = 0; turn < 30000; turn++) {
        char said[512] = "call:f{", raw[512];
        size_t name, n_name, body = 0, n_body = 0, n = 0;
        struct heard h, ref = {.n = 0};
        struct wrk_talk talk;
        struct wrk_parse p;
        bool whole;

        for (unsigned k = seed >> 16 & 7; k-- > 0;) {
            seed = seed * 1664525u + 1013904223u;
            strcat(said, parts[(seed >> 16) % (sizeof(parts) / sizeof(parts[0]))]);
        }
        seed = seed * 1664525u + 1013904223u;
        strcat(said, "}");
        for (const char *s = said; *s != '\0'; s++)
            raw[n++] = *s == '\1' ? (s++, (char)(WRK_MARK_BYTE + WRK_MARK_QUOTE)) : *s;
        whole = call_ref_split(raw, n, &name, &n_name, &body, &n_body) &&
                call_ref_json(raw + body, n_body, NULL, NULL) > 0;
        begin(&p, &talk, &h, WRK_MARK_CALL);
        feed(&p, said, seed & 1 ? UINT64_MAX : seed);
        wrk_parse_mark(&p, WRK_MARK_CALL_END);
        finish(&p, &h);
        if (whole) {
            n_whole++;
            call_ref_json(raw + body, n_body, collect, &ref);
            assert_memory_equal(h.all, "C{f|", 4);
            assert_string_equal(h.all + 4, strcat(ref.all + 2, "}"));
        } else {
            char *told = strstr(h.all, "!}T{");
            json_t *j;

            n_void++;
            assert_non_null(strstr(h.all, "T{call:f{"));
            assert_memory_equal(h.all + strlen(h.all) - 13, "<tool_call|>}", 13);
            if (told != NULL) {
                *told = '\0';
                assert_memory_equal(h.all, "C{f|", 4);
                assert_null(j = json_loads(h.all + 4, 0, NULL));
                json_decref(j);
            }
        }
    }
    assert_true(n_whole > 1000 && n_void > 1000);
}

static void only_what_was_asked_is_told_apart(void **state)
{
    struct wrk_talk talk = {.think = true, .within = WRK_MARK_NONE};
    struct wrk_parse p = {.talk = &talk};
    (void)state;

    wrk_marks_find(&talk.marks, NULL, 200);
    assert_int_equal(wrk_parse_mark_of(&p, 100 + WRK_MARK_CALL), WRK_MARK_NONE);
    assert_int_equal(wrk_parse_mark_of(&p, 100 + WRK_MARK_CHANNEL), WRK_MARK_CHANNEL);
    assert_int_equal(wrk_parse_mark_of(&p, -1), WRK_MARK_NONE);
    talk.think = false;
    assert_false(wrk_parse_on(&talk));
    assert_false(wrk_parse_on(NULL));
    /* an id the model has no vector for is no mark */
    wrk_marks_find(&talk.marks, NULL, 100);
    assert_int_equal(talk.marks.id[WRK_MARK_CALL], -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_is_heard_alike),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(a_call_too_long_loses_no_byte),
        cmocka_unit_test(calls_beyond_the_limit_are_text),
        cmocka_unit_test(only_what_was_asked_is_told_apart),
        cmocka_unit_test(pieces_are_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
