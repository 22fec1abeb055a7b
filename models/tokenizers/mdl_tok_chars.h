/* mdl_tok_chars.h - character classes of the reference tokenizer library. */
#ifndef INFERD_MDL_TOK_CHARS_H
#define INFERD_MDL_TOK_CHARS_H

#include <stdbool.h>
#include <stdint.h>

bool tok_is_control(uint32_t cp);    /* dropped by BertNormalizer's clean_text */
bool tok_is_accent(uint32_t cp);     /* category Mn */
bool tok_is_mark(uint32_t cp);       /* category M*, dropped by StripAccents */
bool tok_is_bert_punct(uint32_t cp); /* ASCII punctuation or category P* */
uint32_t tok_lower(uint32_t cp);     /* simple lower case */
uint32_t tok_combining(uint32_t cp); /* canonical combining class */
bool tok_decomposes(uint32_t cp);    /* false: certainly decomposes to itself */

#endif
