/* sup_pieces.h - a text cut into pieces of so many words, without a model.
 *
 * Counts as the tokenizers of BERT begin: a word is one, each punctuation mark is one, each Chinese
 * character is one; a word of more than 100 characters is one for each hundred. In runs (as those
 * of GPT begin) marks that stand together are one, and so are digits.
 * Pure functions, one look at each byte. Tests: tests/supervisor/test_sup_pieces.c
 */
#ifndef INFERD_SUP_PIECES_H
#define INFERD_SUP_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUP_PIECE_TOKENS_MAX 65536u
#define SUP_PIECES_MAX 10000u

struct sup_piece {
    size_t from, to;     /* bytes, half open; no white space at either end */
    uint32_t start, end; /* the same in code points */
    uint32_t n_tokens;
};

struct sup_cutting {
    uint32_t target;       /* tokens of a piece: 1 to SUP_PIECE_TOKENS_MAX */
    uint32_t overlap;      /* tokens that a piece has in common with the one before: < target */
    uint32_t max;          /* pieces, at most SUP_PIECES_MAX */
    const char *separator; /* pieces end behind it where they can; "" = none */
    bool sentences;        /* else behind a sentence */
    bool runs;
};

/* Pieces of valid UTF-8 in order; out has room for how->max. *cut: there would be more.
 * *n_tokens: that were read. false: no memory. */
bool sup_pieces(const char *text, size_t n_bytes, const struct sup_cutting *how,
                struct sup_piece *out, uint32_t *n, bool *cut, uint64_t *n_tokens);

#endif
