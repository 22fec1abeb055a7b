/* mdl_tok_chars.h - character classes of the reference tokenizer library. */
#ifndef INFERD_MDL_TOK_CHARS_H
#define INFERD_MDL_TOK_CHARS_H

#include <stdbool.h>
#include <stdint.h>

bool tok_is_control(uint32_t cp);    /* dropped by BertNormalizer's clean_text */
bool tok_is_accent(uint32_t cp);     /* category Mn */
bool tok_is_mark(uint32_t cp);       /* category M*, dropped by StripAccents */
bool tok_is_letter(uint32_t cp);     /* \\p{L} of the reference's expressions */
bool tok_is_number(uint32_t cp);     /* \\p{N} of the reference's expressions */
bool tok_is_bert_punct(uint32_t cp); /* ASCII punctuation or category P* */
uint32_t tok_lower(uint32_t cp);     /* simple lower case */
uint32_t tok_combining(uint32_t cp); /* canonical combining class */
/* false: certainly decomposes to itself */
bool tok_decomposes(uint32_t cp, bool compat);
/* Does a grapheme cluster end between two characters? *state is libutf8proc's, 0 at first. */
bool tok_cluster_ends(uint32_t cp, uint32_t next, int32_t *state);

#endif
