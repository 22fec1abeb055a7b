/* fuzz_tok_charsmap.c - any bytes as a precompiled character map, used on a text. Checks
 * that what comes out is UTF-8 and that its places lie in the text.
 * room: mdl. First byte: length of the text that follows; the rest is the map. */
#include "mdl_tok_impl.h"

#include <stdlib.h>

static bool utf8(const char *s, size_t n)
{
    uint32_t cp;
    size_t k;

    for (size_t i = 0; i < n; i += k)
        if (!(k = tok_utf8(s + i, n - i, &cp)))
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tok_norm k = {.kind = TOK_NORM_PRECOMPILED};
    struct tok_text in = {0}, out = {0};
    const char *text = (const char *)data + 1;
    uint32_t cp;
    size_t n, len;

    if (size < 1 || size - 1 < data[0])
        return 0;
    n = data[0];
    if (tok_charsmap_new(&k.map, data + 1 + n, size - 1 - n, NULL) != RC_OK)
        return 0;
    for (size_t i = 0; i < n; i++) /* any bytes, any length */
        tok_charsmap_find(k.map, text + i, n - i, &len);
    for (size_t i = 0; i < n && utf8(text, n); i += len) {
        len = tok_utf8(text + i, n - i, &cp);
        if (tok_text_push(&in, true, text + i, len, (uint32_t)i, (uint32_t)(i + len), NULL) !=
            RC_OK)
            abort();
    }
    if (tok_norm_run(&k, &in, &out, true, NULL, NULL) == RC_OK) {
        if (!utf8(out.s, out.n))
            abort();
        for (size_t i = 0; i < out.n; i++)
            if (out.src[2 * i] >= out.src[2 * i + 1] || out.src[2 * i + 1] > n ||
                (i && out.src[2 * i] < out.src[2 * i - 2]))
                abort();
    }
    tok_text_deinit(&in);
    tok_text_deinit(&out);
    tok_charsmap_free(&k.map);
    return 0;
}
