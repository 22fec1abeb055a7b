/* wrk_stop.h - stop strings in a stream of text, across any cut.
 *
 * Knuth-Morris-Pratt, one automaton per string, a byte at a time, so the answer
 * does not depend on how tokens cut the text. The first string to complete wins;
 * of those that complete at the same byte, the longest (it began first). Text that
 * could be the start of a stop string must be held back by the caller.
 * Source: Knuth, Morris, Pratt 1977. Tests: tests/worker/test_wrk_stop.c
 */
#ifndef INFERD_WRK_STOP_H
#define INFERD_WRK_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define WRK_STOPS_MAX 16
#define WRK_STOP_BYTES_MAX 4096

/* Of one request; shared by its choices. */
struct wrk_stops {
    uint32_t n, longest;
    struct {
        uint16_t len;
        uint16_t *fail; /* fail[i]: longest proper border of the first i+1 bytes */
        uint8_t *bytes;
    } pat[WRK_STOPS_MAX];
};
/* Of one choice. Zeroed is the start. */
struct wrk_stop_state {
    uint16_t at[WRK_STOPS_MAX];
};

/* Adds a copy. Empty strings are refused. Errors: RC_INVALID, RC_TOO_LARGE (err
 * says which limit), RC_NOMEM. */
enum rc wrk_stops_add(struct wrk_stops *s, const void *bytes, size_t n, struct rc_err *err);
void wrk_stops_deinit(struct wrk_stops *s);

/* Feeds n bytes. Returns how many were taken: all of them, or up to and with the
 * byte that completed a stop string (*hit_bytes = its length, else 0). */
size_t wrk_stop_push(const struct wrk_stops *s, struct wrk_stop_state *st, const void *bytes,
                     size_t n, size_t *hit_bytes);
/* How many of the bytes fed last may still become a stop string. */
size_t wrk_stop_held(const struct wrk_stops *s, const struct wrk_stop_state *st);

#endif
