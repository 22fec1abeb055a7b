/* mdl_tok.h - text to token ids and back.
 *
 * Kinds: WordPiece (BERT), SentencePiece-style BPE with byte fallback (Gemma), Unigram
 * (XLM-R, DeBERTa), byte-level BPE (RoBERTa, CLIP), from tokenizer.json or, but for the
 * last, from GGUF metadata. Ids and offsets equal those of the
 * `tokenizers` library 0.23; its character classes are tables of ours, Unicode
 * decomposition and case come from libutf8proc. BPE merges run on a heap over
 * linked pieces. Bad UTF-8 is refused here with RC_INVALID, err->n = byte offset. Immutable after
 * load: any thread may encode. Source of the rules: encoders.md 2, gemma.md 12. Neither logs nor
 * exits. Tests: tests/models/test_mdl_tok_*.c, fuzz: tests/fuzz/fuzz_tok*.c
 */
#ifndef INFERD_MDL_TOK_H
#define INFERD_MDL_TOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

struct mdl_file;
struct mdl_tok;

/* Growing arrays owned by the caller; zeroed is empty; mdl_ids_deinit frees. */
struct mdl_ids {
    int32_t *ids;
    uint32_t *offsets; /* 2 per id, code points of the input, half open; NULL
                          unless asked for */
    size_t n, cap;
};
void mdl_ids_deinit(struct mdl_ids *v);
enum rc mdl_ids_push(struct mdl_ids *v, int32_t id, struct rc_err *err);

/* From the text of a tokenizer.json. */
enum rc mdl_tok_from_json(struct mdl_tok **out, const char *json, size_t n_bytes,
                          struct rc_err *err);
/* From GGUF metadata (tokenizer.ggml.model = "llama", "gemma4", "bert" or "t5"; others are
 * RC_UNSUPPORTED by name). */
enum rc mdl_tok_from_gguf(struct mdl_tok **out, const struct mdl_file *f, struct rc_err *err);
void mdl_tok_free(struct mdl_tok **t);

/* Asked now and then, at the latest every few thousand steps of work, while a long
 * text is taken: true ends the call with RC_CANCELLED. ask may do other work. */
struct mdl_tok_stop {
    bool (*ask)(void *user);
    void *user;
};

struct mdl_tok_flags {
    bool add_special;                /* the post-processor's template: <bos>, [CLS] .. [SEP] */
    bool parse_special;              /* special tokens written in the text become their ids;
                                        false: they are plain text (user content) */
    bool offsets;                    /* fill out->offsets */
    size_t max_tokens;               /* 0 = no bound; more tokens -> RC_TOO_LARGE, err->n the
                                        count so far, err->limit the bound. Stops early. */
    const struct mdl_tok_stop *stop; /* or NULL */
};

/* Appends to *out (which may already hold ids). text is UTF-8, NULs allowed. */
enum rc mdl_tok_encode(const struct mdl_tok *t, const char *text, size_t n_bytes,
                       const struct mdl_tok_flags *flags, struct mdl_ids *out, struct rc_err *err);

/* A and B by the file's template for pairs (flags->add_special is taken for granted), appended to
 * *out; offsets count in the text that a token is of. max_tokens > 0: over it, specials included,
 * longest first is cut when truncate allows (*truncated; encoders.md 2.6), else RC_TOO_LARGE.
 * RC_UNSUPPORTED when the file has no such template. */
enum rc mdl_tok_encode_pair(const struct mdl_tok *t, const char *a, size_t n_a, const char *b,
                            size_t n_b, const struct mdl_tok_flags *flags, bool truncate,
                            bool *truncated, struct mdl_ids *out, struct rc_err *err);

uint32_t mdl_tok_vocab(const struct mdl_tok *t); /* ids are < this */
/* Vocabulary spelling of a token (as in the file), NULL for an unused id. */
const char *mdl_tok_piece(const struct mdl_tok *t, int32_t id, size_t *n_bytes);
/* Bytes the token adds to decoded text behind another token (a byte piece gives
 * one raw byte, U+2581 becomes a space, a WordPiece continuation loses ##, another
 * WordPiece token begins with a space, cleaned up). Special tokens give ""
 * when skip_special. *out is borrowed from the tokenizer. */
const char *mdl_tok_bytes(const struct mdl_tok *t, int32_t id, bool skip_special, size_t *n_bytes);
/* Whole decoding as the reference does it (WordPiece: spaces and clean-up;
 * byte runs that are not UTF-8 give one U+FFFD per byte). Caller frees *out.
 * RC_INVALID for an id outside the vocabulary. */
enum rc mdl_tok_decode(const struct mdl_tok *t, const int32_t *ids, size_t n, bool skip_special,
                       char **out, size_t *n_bytes, struct rc_err *err);

bool mdl_tok_is_special(const struct mdl_tok *t, int32_t id);
/* The id of a token spelled exactly so, or -1. */
int32_t mdl_tok_find(const struct mdl_tok *t, const char *piece, size_t n_bytes);
int32_t mdl_tok_bos(const struct mdl_tok *t); /* -1 when none */
int32_t mdl_tok_eos(const struct mdl_tok *t);

/* Streaming decoder of one sequence: feed ids, get whole UTF-8 characters; an
 * incomplete tail is held back. Concatenation equals mdl_tok_decode, but a run of
 * byte pieces that begins well and ends badly has shown its good characters. Fixed size, no
 * allocation. */
struct mdl_detok {
    const struct mdl_tok *tok;
    bool skip_special;
    bool started; /* WordPiece spacing */
    unsigned char held[8];
    uint32_t n_held;
};
void mdl_detok_init(struct mdl_detok *d, const struct mdl_tok *t, bool skip_special);
/* Writes at most cap bytes; a piece is never longer than MDL_PIECE_MAX + 8. */
#define MDL_PIECE_MAX 1024
size_t mdl_detok_push(struct mdl_detok *d, int32_t id, char *out, size_t cap);
/* At the end: the held bytes as one U+FFFD per byte. */
size_t mdl_detok_flush(struct mdl_detok *d, char *out, size_t cap);

#endif
