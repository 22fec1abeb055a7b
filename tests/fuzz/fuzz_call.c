/* fuzz_call.c - what a model says, cut in two ways: heard alike, and calls are JSON.
 * room: wrk
 *
 * Input: bytes; 0xf8 to 0xfd are marks, higher ones become spaces. The parser must tell the
 * same whether fed byte by byte or in long pieces; every call's arguments must be what
 * jansson reads as an object. Seeds: tests/fuzz/corpus/call/
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
    char *s;
    size_t n, cap;
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
static void on_json(void *u, const char *s, size_t n)
{
    add(u, s, n);
}
static bool on_call(void *u, const char *name, size_t n_name, const char *body, size_t n)
{
    struct heard json = {0};
    size_t told = wrk_call_json(body, n, on_json, &json), named;
    bool utf8 = true;
    json_error_t why;
    json_t *j;

    if (told == 0 || told != json.n || n_name == 0 || n_name > WRK_CALL_NAME)
        abort();
    for (named = 0; named < json.n; named++)
        utf8 = utf8 && (unsigned char)json.s[named] < 0x80;
    /* bytes that are not UTF-8 never come out of a tokenizer; jansson takes no U+0000 in
     * keys and no number beyond a double, JSON does */
    utf8 = utf8 && memchr(body, 0, n) == NULL;
    j = json_loadb(json.s, json.n, 0, &why);
    if (utf8 && !json_is_object(j) && json_error_code(&why) != json_error_numeric_overflow)
        abort();
    json_decref(j);
    put(u, 'N', name, n_name);
    put(u, 'J', json.s, json.n);
    free(json.s);
    return true;
}

static void hear(struct heard *h, const char *s, size_t n, size_t piece, enum wrk_mark within)
{
    struct wrk_talk talk = {.think = true, .calls = true, .within = within};
    const struct wrk_parse_out out = {h, on_text, on_thought, on_call};
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
    }
    free(a.s);
    free(b.s);
    free(s);
    return 0;
}
