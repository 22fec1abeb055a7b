/* fuzz_call.c - what a model says, cut in two ways: heard alike, and calls are JSON.
 * room: wrk
 *
 * Input: bytes; 0xf8 to 0xfd are marks, higher ones become spaces. The parser must tell the
 * same whether fed byte by byte or in long pieces; every call's arguments must be what
 * jansson reads as an object, and those of a void call what it does not read; a call is
 * whole just when the simple reader of the tests (call_ref.h) says so. Seeds:
 * tests/fuzz/corpus/call/
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "../worker/call_ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
    char *s;
    size_t n, cap;
    size_t args; /* where the arguments of the call at work begin */
};

static void add(struct heard *h, const char *s, size_t n)
{
    if (h->n + n > h->cap) {
        h->cap = (h->n + n) * 2;
        if (!(h->s = realloc(h->s, h->cap)))
            abort();
    }
    if (n > 0)
        memcpy(h->s + h->n, s, n);
    h->n += n;
}

/* Each byte with its kind, so that pieces do not matter. */
static void put(struct heard *h, char kind, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        add(h, &kind, 1);
        add(h, s + i, 1);
    }
}
static void on_text(void *u, const char *s, size_t n)
{
    put(u, 'T', s, n);
}
static void on_thought(void *u, const char *s, size_t n)
{
    put(u, 'H', s, n);
}
static bool on_call(void *u, const char *name, size_t n)
{
    struct heard *h = u;

    if (!wrk_call_name_ok(name, n))
        abort();
    put(h, 'N', name, n);
    h->args = h->n;
    return true;
}
static void on_args(void *u, const char *s, size_t n)
{
    put(u, 'J', s, n);
}
static void on_called(void *u, bool whole)
{
    struct heard *h = u;
    size_t n = (h->n - h->args) / 2;
    char *json = malloc(n + 1);
    bool ascii = true;
    json_error_t why;
    json_t *j;

    if (json == NULL)
        abort();
    for (size_t i = 0; i < n; i++) {
        json[i] = h->s[h->args + 2 * i + 1];
        ascii = ascii && (unsigned char)json[i] < 0x80;
    }
    json[n] = '\0';
    j = json_loadb(json, n, 0, &why);
    /* bytes that are not UTF-8 never come out of a tokenizer; jansson takes no U+0000 in
     * keys and no number beyond a double, JSON does */
    if (whole ? ascii && !json_is_object(j) && strstr(json, "\\u0000") == NULL &&
                    json_error_code(&why) != json_error_numeric_overflow
              : j != NULL)
        abort();
    json_decref(j);
    free(json);
    put(h, whole ? 'W' : 'V', "", 1);
}

/* What stands between a call's marks, read whole. */
static bool is_call(const char *s, size_t n)
{
    size_t name = 0, n_name = 0, body = 0, n_body = 0;

    return call_ref_split(s, n, &name, &n_name, &body, &n_body) &&
           call_ref_json(s + body, n_body, NULL, NULL) > 0;
}

static void hear(struct heard *h, const char *s, size_t n, size_t piece, enum wrk_mark within)
{
    struct wrk_talk talk = {.think = true, .calls = true, .within = within};
    const struct wrk_parse_out out = {h, on_text, on_thought, on_call, on_args, on_called};
    struct wrk_parse p;
    size_t from = 0;

    if (wrk_parse_init(&p, &talk, &out, NULL) != RC_OK)
        abort();
    for (size_t i = 0; i < n; i++) {
        bool mark = (unsigned char)s[i] >= WRK_MARK_BYTE;

        if (from < i && (mark || i - from == piece)) {
            wrk_parse_bytes(&p, s + from, i - from);
            from = i;
        }
        if (mark) {
            wrk_parse_mark(&p, (enum wrk_mark)((unsigned char)s[i] - WRK_MARK_BYTE));
            from = i + 1;
        }
    }
    if (from < n)
        wrk_parse_bytes(&p, s + from, n - from);
    wrk_parse_end(&p);
    wrk_parse_deinit(&p);
}

/* Both readers agree on the first call of s, where s begins inside one. Only that call is
 * heard: one without a name leaves no trace, and a later one would pass for it. */
static void check_first(const char *s, size_t n)
{
    struct heard h = {0};
    size_t end = 0;
    bool first = false;

    while (end < n && ((unsigned char)s[end] < WRK_MARK_BYTE ||
                       (unsigned char)s[end] == WRK_MARK_BYTE + WRK_MARK_QUOTE))
        end++;
    hear(&h, s, end < n && (unsigned char)s[end] != WRK_MARK_BYTE + WRK_MARK_CALL ? end + 1 : end,
         SIZE_MAX, WRK_MARK_CALL);
    for (size_t i = 0; i + 1 < h.n && !first; i += 2)
        first = h.s[i] == 'W';
    if (is_call(s, end) != first)
        abort();
    free(h.s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum wrk_mark within = size == 0          ? WRK_MARK_NONE
                           : data[0] % 3 == 0 ? WRK_MARK_NONE
                           : data[0] % 3 == 1 ? WRK_MARK_CHANNEL
                                              : WRK_MARK_CALL;
    struct heard a = {0}, b = {0};
    char *s = malloc(size + 1);

    if (s == NULL)
        abort();
    for (size_t i = 0; i < size; i++)
        s[i] = data[i] >= WRK_MARK_BYTE + WRK_MARKS ? ' ' : (char)data[i];
    if (size > 1) {
        hear(&a, s + 1, size - 1, 1, within);
        hear(&b, s + 1, size - 1, SIZE_MAX, within);
        if (a.n != b.n || (a.n > 0 && memcmp(a.s, b.s, a.n) != 0))
            abort();
        if (within == WRK_MARK_CALL)
            check_first(s + 1, size - 1);
    }
    free(a.s);
    free(b.s);
    free(s);
    return 0;
}
