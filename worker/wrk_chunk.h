/* wrk_chunk.h - a text cut into pieces of so many tokens.
 *
 * Pure: the tokens of the whole text are given, nothing is read or kept. Linear in the text.
 * Page: docs/worker.md. Tests: tests/worker/test_wrk_chunk.c
 */
#ifndef INFERD_WRK_CHUNK_H
#define INFERD_WRK_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mdl_tok.h"
#include "rc.h"

struct wrk_chunk_ask {
    uint32_t target;  /* most tokens of a piece, >= 1 */
    uint32_t overlap; /* < target: at most so many tokens of a piece are in the next one too */
    uint32_t most;    /* pieces, >= 1; more are not made */
    const char *sep;  /* pieces end behind it where they can; UTF-8 */
    size_t n_sep;     /* 0 = none; at most WRK_CHUNK_SEP_MAX */
    bool sentences;   /* else behind sentences, where they can */
    const struct mdl_tok_stop *stop; /* asked now and then: RC_CANCELLED; or NULL */
};
#define WRK_CHUNK_SEP_MAX 256u

/* Code points [start, end) of the text. */
struct wrk_chunk_piece {
    uint32_t start, end, n_tokens;
};
struct wrk_chunks {
    struct wrk_chunk_piece *piece; /* of the caller, who frees it */
    uint32_t n;
    bool cut; /* the text goes on behind the last piece */
};

/* text is UTF-8, NULs allowed; offsets [2 * n_tokens] as mdl_tok_encode gives them. A text without
 * tokens has no pieces; else the first begins at 0, the last (unless cut) ends with the text, and
 * each begins where the one before ended, or earlier by the overlap. No piece begins with white
 * space unless a token is white space. Errors: RC_INVALID names the field; RC_NOMEM. A character
 * that takes more tokens than target is RC_INVALID too (n tokens, limit). RC_CANCELLED: stop said
 * so. */
enum rc wrk_chunk(struct wrk_chunks *out, const char *text, size_t n_bytes, const uint32_t *offsets,
                  size_t n_tokens, const struct wrk_chunk_ask *ask, struct rc_err *err);

#endif
