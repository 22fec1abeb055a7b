/* fuzz_tok_json.c - any bytes as a tokenizer.json; what loads is used on a text
 * with every trap in it.
 * room: mdl */
#include "mdl_tok.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "ab [CLS]  <a>a\xCC\x81\xE2\x96\x81\n\n\xF0\x9F\x8C\x88 Hello, wor\x01ld";
    struct mdl_tok *t = NULL;
    char *out = NULL;
    size_t n;

    if (mdl_tok_from_json(&t, (const char *)data, size, NULL) != RC_OK)
        return 0;
    for (unsigned k = 0; k < 8; k++) {
        const struct mdl_tok_flags flags = {k & 1, k & 2, k & 4, k == 7 ? 3 : 0};
        struct mdl_ids ids = {0};
        if (mdl_tok_encode(t, text, sizeof(text) - 1, &flags, &ids, NULL) == RC_OK &&
            mdl_tok_decode(t, ids.ids, ids.n, k & 1, &out, &n, NULL) == RC_OK)
            free(out);
        for (size_t i = 0; i < ids.n; i++)
            if (ids.ids[i] < 0 || (uint32_t)ids.ids[i] >= mdl_tok_vocab(t))
                abort();
        ids.n = 0;
        if (mdl_tok_encode_pair(t, text, 20, text + 20, sizeof(text) - 21, &flags, k & 1, NULL,
                                &ids, NULL) == RC_OK &&
            flags.max_tokens && ids.n > flags.max_tokens)
            abort();
        mdl_ids_deinit(&ids);
    }
    mdl_tok_free(&t);
    return 0;
}
