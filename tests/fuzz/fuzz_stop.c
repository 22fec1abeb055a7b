/* fuzz_stop.c - stop strings against a search that looks everywhere.
 * room: wrk
 *
 * Input: up to three strings, each led by a length byte, then a text, cut into
 * pieces by its own bytes. What is found, and what may be released early, must
 * equal the plain search. Seeds: tests/fuzz/corpus/stop/
 */
#include <stdlib.h>
#include <string.h>

#include "wrk_stop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wrk_stops s = {0};
    struct wrk_stop_state st = {{0}};
    const uint8_t *pat[3];
    size_t len[3], n_pat = 0, fed = 0, hit = 0, released = 0, end = SIZE_MAX, longest = 0;

    while (n_pat < 3 && size > 0) {
        size_t n = data[0] % 12 + 1;

        if (n + 1 > size)
            break;
        pat[n_pat] = data + 1;
        len[n_pat++] = n;
        if (wrk_stops_add(&s, data + 1, n, NULL) != RC_OK)
            abort();
        data += n + 1;
        size -= n + 1;
    }
    for (size_t p = 0; p < n_pat; p++)
        for (size_t at = 0; at + len[p] <= size; at++)
            if (memcmp(data + at, pat[p], len[p]) == 0) {
                if (at + len[p] < end || (at + len[p] == end && len[p] > longest)) {
                    end = at + len[p];
                    longest = len[p];
                }
                break;
            }
    for (size_t at = 0; at < size && hit == 0;) {
        size_t n = data[at] % 7 + 1;

        if (n > size - at)
            n = size - at;
        fed += wrk_stop_push(&s, &st, data + at, n, &hit);
        at += n;
        if (hit == 0)
            released = fed - wrk_stop_held(&s, &st);
    }
    if (end == SIZE_MAX ? hit != 0 || fed != size : hit != longest || fed != end)
        abort();
    if (hit > 0 && released > fed - hit)
        abort(); /* a byte of the stop string was let go */
    wrk_stops_deinit(&s);
    return 0;
}
