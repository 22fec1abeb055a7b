/* mdl_tok.c - birth and death of a tokenizer, UTF-8 writing, characters for bytes.
 * Tests: tests/models/test_mdl_tok.c
 */
#include "mdl_tok_impl.h"

#include <stdlib.h>

struct mdl_tok *tok_alloc(void)
{
    struct mdl_tok *t = calloc(1, sizeof(*t));

    if (t) {
        t->bos = t->eos = -1;
        t->bpe.unk = t->wp.unk = t->uni.unk = -1;
    }
    return t;
}

void mdl_tok_free(struct mdl_tok **tp)
{
    struct mdl_tok *t = *tp;

    *tp = NULL;
    if (!t)
        return;
    tok_vocab_deinit(&t->vocab);
    tok_trie_deinit(&t->raw);
    tok_trie_deinit(&t->normed);
    tok_bpe_deinit(&t->bpe);
    tok_unigram_deinit(&t->uni);
    for (uint32_t i = 0; i < TOK_MAX_STEPS; i++)
        tok_charsmap_free(&t->norms[i].map);
    free(t->text.arena);
    free(t->text.at);
    free(t->first.arena);
    free(t->first.at);
    free(t);
}

size_t tok_utf8_put(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

/* Printable Latin-1 bytes stand for themselves, the 68 others for U+0100 on. */
static bool byte_is_printable(unsigned b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

size_t tok_byte_char(char *out, uint8_t b)
{
    uint32_t cp = b <= 32 ? 256u + b : b <= 160 ? 256u + 33 + (b - 127u) : 256u + 67;

    return tok_utf8_put(out, byte_is_printable(b) ? b : cp);
}

int tok_char_byte(uint32_t cp)
{
    if (cp < 256)
        return byte_is_printable(cp) ? (int)cp : -1;
    cp -= 256;
    return cp <= 32 ? (int)cp : cp <= 66 ? (int)(cp - 33 + 127) : cp == 67 ? 173 : -1;
}
