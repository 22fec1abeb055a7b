/* fuzz_tok_encode.c - any bytes as a text, on the golden tokenizers. Checks
 * more than memory: ids in range, offsets in order and inside the text, no
 * special id from user content, streaming output no longer than allowed, whole
 * and streamed decoding of the same length where the text is UTF-8.
 * room: mdl. First byte: bits 0 and 5 to 7 tokenizer, 1 add_special, 2 parse_special, 3
 * offsets, 4 a bound of 16 tokens. Seeds: the rest is text. */
#include "mdl_tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mdl_tok *load(const char *dir)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_tok *t = NULL;
    char path[512];
    static char buf[1 << 20];

    snprintf(path, sizeof(path), TEST_GOLDEN "/%s/tokenizer.json", dir);
    FILE *fp = fopen(path, "rb");
    size_t n = fp ? fread(buf, 1, sizeof(buf), fp) : 0;
    if (!fp || mdl_tok_from_json(&t, buf, n, &err) != RC_OK) {
        fprintf(stderr, "%s: %s\n", path, err.msg);
        abort();
    }
    fclose(fp);
    return t;
}

static void check(const struct mdl_tok *t, const struct mdl_ids *v, const struct mdl_tok_flags *f,
                  size_t n_text)
{
    char part[MDL_PIECE_MAX + 8], *whole = NULL;
    struct mdl_detok d;
    size_t n = 0, at = 0, k;

    if (f->max_tokens && v->n > f->max_tokens)
        abort();
    for (size_t i = 0; i < v->n; i++) {
        if (v->ids[i] < 0 || (uint32_t)v->ids[i] >= mdl_tok_vocab(t))
            abort();
        if (f->offsets &&
            (v->offsets[2 * i] > v->offsets[2 * i + 1] || v->offsets[2 * i + 1] > n_text))
            abort();
        /* unknown words are the one special id that plain text may become */
        if (!f->add_special && !f->parse_special && mdl_tok_is_special(t, v->ids[i])) {
            size_t len;
            const char *p = mdl_tok_piece(t, v->ids[i], &len);
            if ((len != 5 || (memcmp(p, "[UNK]", 5) != 0 && memcmp(p, "<unk>", 5) != 0)) &&
                (len != 13 || memcmp(p, "<|endoftext|>", 13) != 0))
                abort();
        }
    }
    if (mdl_tok_decode(t, v->ids, v->n, false, &whole, &n, NULL) != RC_OK)
        abort();
    mdl_detok_init(&d, t, false);
    for (size_t i = 0; i <= v->n; i++) {
        k = i < v->n ? mdl_detok_push(&d, v->ids[i], part, sizeof(part))
                     : mdl_detok_flush(&d, part, sizeof(part));
        /* encoded text holds whole characters only: the two decoders agree */
        if (at + k > n || memcmp(whole + at, part, k) != 0)
            abort();
        at += k;
    }
    if (at != n)
        abort();
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const dirs[] = {"gemma3_text", "minilm", "bge-m3",     "reranker",
                                       "gliner2",     "clip",   "clap-fused", "embeddinggemma2"};
    static struct mdl_tok *toks[8];
    struct mdl_ids v = {0};

    if (!toks[0]) {
        for (size_t i = 0; i < 8; i++)
            toks[i] = load(dirs[i]);
    }
    if (size == 0)
        return 0;
    const struct mdl_tok *t = toks[((data[0] & 1) | (data[0] >> 4 & 14)) & 7];
    const struct mdl_tok_flags f = {data[0] & 2, data[0] & 4, data[0] & 8, data[0] & 16 ? 16 : 0};
    if (mdl_tok_encode(t, (const char *)data + 1, size - 1, &f, &v, NULL) == RC_OK)
        check(t, &v, &f, size - 1);
    else if (v.n != 0)
        abort();
    mdl_ids_deinit(&v);
    return 0;
}
