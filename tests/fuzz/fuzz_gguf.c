/* fuzz_gguf.c - any bytes as a GGUF file: parse, read every tensor that is
 * offered, ask for metadata, make a tokenizer and use it.
 * room: mdl */
#include "mdl_file.h"
#include "mdl_tok.h"

#include <stdlib.h>

static void ask(const struct mdl_file *f)
{
    static const char *const keys[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores",
                                       "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
                                       "general.alignment",     "a"};
    const char *s;
    uint64_t u;
    double d;
    bool b;
    size_t n, len;

    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
        mdl_gguf_u64(f, keys[k], &u);
        mdl_gguf_f64(f, keys[k], &d);
        mdl_gguf_bool(f, keys[k], &b);
        if (mdl_gguf_str(f, keys[k], &s, &len) && len)
            b = s[len - 1];
        for (size_t i = 0; mdl_gguf_arr(f, keys[k], &n) && i < n && i < 64; i++) {
            mdl_gguf_arr_u64(f, keys[k], i, &u);
            mdl_gguf_arr_f64(f, keys[k], i, &d);
            if (mdl_gguf_arr_str(f, keys[k], i, &s, &len) && len)
                b = s[len - 1];
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "ab <a> \xE2\x96\x81\n\n\xF0\x9F\x8C\x88 hello";
    const struct mdl_tok_flags flags = {.add_special = true, .offsets = true, .max_tokens = 64};
    struct mdl_file *f = NULL;
    struct mdl_tok *t = NULL;
    struct mdl_ids ids = {0};
    char *out = NULL;
    size_t n;

    if (mdl_gguf_parse(&f, data, size, NULL) != RC_OK)
        return 0;
    ask(f);
    for (size_t i = 0; i < mdl_file_n_tensors(f); i++) {
        const struct mdl_tensor *x = mdl_file_tensor(f, i), *y = NULL;
        if ((const uint8_t *)x->data < data || (const uint8_t *)x->data + x->n_bytes > data + size)
            abort();
        mdl_file_take(f, x->name, x->n_dims, x->dims, &y, NULL);
    }
    if (mdl_tok_from_gguf(&t, f, NULL) == RC_OK) {
        if (mdl_tok_encode(t, text, sizeof(text) - 1, &flags, &ids, NULL) == RC_OK &&
            mdl_tok_decode(t, ids.ids, ids.n, false, &out, &n, NULL) == RC_OK)
            free(out);
        mdl_tok_free(&t);
    }
    mdl_ids_deinit(&ids);
    mdl_file_close(&f);
    return 0;
}
