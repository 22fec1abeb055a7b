/* wrk_stop.c - see wrk_stop.h. Pure: no I/O, memory only in wrk_stops_add.
 * Tests: tests/worker/test_wrk_stop.c
 */
#include "wrk_stop.h"

#include <stdlib.h>
#include <string.h>

enum rc wrk_stops_add(struct wrk_stops *s, const void *bytes, size_t n, struct rc_err *err)
{
    uint8_t *b;
    uint16_t *fail;

    if (n == 0)
        return rc_fail_what(err, RC_INVALID, "stop", "a stop string is empty");
    if (n > WRK_STOP_BYTES_MAX)
        return rc_fail_what(err, RC_TOO_LARGE, "stop", "a stop string of %zu bytes, at most %d", n,
                            WRK_STOP_BYTES_MAX);
    if (s->n == WRK_STOPS_MAX)
        return rc_fail_what(err, RC_TOO_LARGE, "stop", "more than %d stop strings", WRK_STOPS_MAX);
    b = malloc(n);
    fail = malloc(n * sizeof(*fail));
    if (b == NULL || fail == NULL) {
        free(b);
        free(fail);
        return rc_fail(err, RC_NOMEM, "stop string");
    }
    memcpy(b, bytes, n);
    fail[0] = 0;
    for (size_t i = 1; i < n; i++) {
        uint16_t k = fail[i - 1];

        while (k > 0 && b[i] != b[k])
            k = fail[k - 1];
        fail[i] = (uint16_t)(b[i] == b[k] ? k + 1 : 0);
    }
    s->pat[s->n].len = (uint16_t)n;
    s->pat[s->n].bytes = b;
    s->pat[s->n].fail = fail;
    s->n++;
    if (n > s->longest)
        s->longest = (uint32_t)n;
    return RC_OK;
}

void wrk_stops_deinit(struct wrk_stops *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        free(s->pat[i].bytes);
        free(s->pat[i].fail);
    }
    memset(s, 0, sizeof(*s));
}

size_t wrk_stop_push(const struct wrk_stops *s, struct wrk_stop_state *st, const void *bytes,
                     size_t n, size_t *hit_bytes)
{
    const uint8_t *b = bytes;

    *hit_bytes = 0;
    if (s->n == 0)
        return n;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t p = 0; p < s->n; p++) {
            uint16_t k = st->at[p];

            while (k > 0 && (k == s->pat[p].len || s->pat[p].bytes[k] != b[i]))
                k = s->pat[p].fail[k - 1];
            if (s->pat[p].bytes[k] == b[i])
                k++;
            st->at[p] = k;
            if (k == s->pat[p].len && k > *hit_bytes)
                *hit_bytes = k;
        }
        if (*hit_bytes > 0)
            return i + 1;
    }
    return n;
}

size_t wrk_stop_held(const struct wrk_stops *s, const struct wrk_stop_state *st)
{
    size_t most = 0;

    for (uint32_t p = 0; p < s->n; p++)
        if (st->at[p] > most)
            most = st->at[p];
    return most;
}
