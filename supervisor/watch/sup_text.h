/* sup_text.h - reading UTF-8 that nobody vouches for.
 *
 * One decoder for all who print foreign text: the log, the metrics' labels, the
 * commands' terminal output. Pure functions. Tests: tests/supervisor/test_sup_log.c
 */
#ifndef INFERD_SUP_TEXT_H
#define INFERD_SUP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUP_TEXT_BAD 0xFFFDu

/* The code point at s (n >= 1 bytes are there). Returns the bytes it takes, at
 * least 1. *cp = SUP_TEXT_BAD and 1 byte for anything that is no shortest-form
 * UTF-8 of a scalar value; *ok (may be NULL) tells that from a real U+FFFD. */
size_t sup_text_next(const char *s, size_t n, uint32_t *cp, bool *ok);
/* Writes cp as UTF-8 (1..4 bytes) to out; returns how many. */
size_t sup_text_put(uint32_t cp, char out[4]);
/* True when the bytes at s may become a character once more bytes arrive. */
bool sup_text_is_partial(const char *s, size_t n);

#endif
