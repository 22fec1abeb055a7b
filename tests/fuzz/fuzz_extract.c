/* fuzz_extract.c - any bytes as a text, as an extraction schema, and as a validator. room: wrk
 *
 * Input: a byte that says how many of the following are a packed ExtractSchema, in eighths; the
 * rest is the text. Always: words lie in the text, in order and apart, with space between them;
 * lower case is UTF-8; a schema is accepted or refused with a reason; a view has a row for each of
 * its words.
 */
#include <stdlib.h>
#include <string.h>

#include "wrk_extract.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define CHECK(x)     \
    do {             \
        if (!(x))    \
            abort(); \
    } while (0)

static void words(const char *text, size_t n)
{
    struct wrk_words w = {0};
    struct rc_err err = RC_ERR_INIT;
    uint32_t at = 0, point = 0;
    char *low = NULL;
    size_t cap = 0, k;

    if (wrk_words_split(text, n, NULL, &w, &err) != RC_OK) {
        CHECK(err.msg[0] != '\0' && (err.code != RC_INVALID || !ipc_utf8_valid(text, n)));
        wrk_words_deinit(&w);
        return;
    }
    CHECK(ipc_utf8_valid(text, n));
    for (size_t i = 0; i <= w.n; i++) {
        const struct wrk_word end = {w.n_points, w.n_points, (uint32_t)n, (uint32_t)n};
        const struct wrk_word *x = i < w.n ? &w.w[i] : &end;
        const char *gap = text + at;
        size_t n_gap = x->at - at;

        CHECK(x->at >= at && x->to <= n && x->start >= point && x->end >= x->start);
        CHECK((x->end - x->start) <= x->to - x->at);
        if (i < w.n)
            CHECK(x->to > x->at && x->end > x->start);
        if (n_gap > 0)
            wrk_strip(&gap, &n_gap);
        CHECK(n_gap == 0); /* only space between words */
        at = x->to;
        point = x->end;
        if (i < w.n) {
            CHECK(wrk_lower(text + x->at, x->to - x->at, &low, &cap, &k, NULL) == RC_OK);
            CHECK(ipc_utf8_valid(low, k));
        }
    }
    free(low);
    wrk_words_deinit(&w);
}

static void schema(const uint8_t *data, size_t n, const char *text, size_t n_text)
{
    Ipc__ExtractSchema *s = ipc__extract_schema__unpack(NULL, n, data);
    struct rc_err err = RC_ERR_INIT;
    enum rc rc;

    if (s == NULL)
        return;
    rc = wrk_schema_check(s, &err);
    CHECK(rc == RC_OK ||
          (err.msg[0] != '\0' && err.what[0] != '\0' && ipc_utf8_valid(err.msg, strlen(err.msg))));
    for (size_t i = 0; rc == RC_OK && i < s->n_records; i++)
        for (size_t f = 0; f < s->records[i]->n_fields; f++) {
            const Ipc__ExtractField *q = s->records[i]->fields[f];
            struct wrk_patterns *p = NULL;
            bool accepts;

            if (q->n_patterns == 0 ||
                wrk_patterns_new(&p, q->patterns, q->n_patterns, &err) != RC_OK)
                continue;
            wrk_patterns_accept(p, text, ipc_utf8_valid(text, n_text) ? n_text : 0, NULL, &accepts, &err);
            wrk_patterns_free(&p);
        }
    ipc__extract_schema__free_unpacked(s, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    size_t k;

    if (n < 1)
        return -1;
    k = (n - 1) * (data[0] % 9) / 8;
    words((const char *)data + 1 + k, n - 1 - k);
    schema(data + 1, k, (const char *)data + 1 + k, n - 1 - k);
    return 0;
}
