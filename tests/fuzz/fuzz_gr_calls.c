/* fuzz_gr_calls.c - any bytes as an answer of several parts; the calls that come out of it are
 * what the parser of answers reads.
 * room: wrk
 * Seeds: tests/fuzz/corpus/gr_calls/
 */
#include "gr_fuzz.h"

#include "../worker/call_ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char mark[] = {(char)(WRK_MARK_BYTE + WRK_MARK_CHANNEL_END),
                         (char)(WRK_MARK_BYTE + WRK_MARK_CALL),
                         (char)(WRK_MARK_BYTE + WRK_MARK_CALL_END)};
    char out[1024], *at = out, *end;
    size_t n = gr_fuzz(WRK_GR_TALK, data, size, out, sizeof(out)), left;

    if (n == 0)
        return 0;
    if ((end = memchr(out, mark[0], n)) != NULL) /* a thought comes first */
        at = end + 1;
    left = n - (size_t)(at - out);
    if (data[1] != 'c') { /* else the first call's mark is not written */
        if (left == 0 || *at != mark[1])
            return 0;
        at++;
        left--;
    }
    while (left > 0) {
        size_t name = 0, n_name = 0, body = 0, n_body = 0;

        gr_require((end = memchr(at, mark[2], left)) != NULL);
        if (memchr(at, '\0', (size_t)(end - at)) == NULL &&
            call_ref_split(at, (size_t)(end - at), &name, &n_name, &body, &n_body))
            gr_require(call_ref_json(at + body, n_body, NULL, NULL) > 0);
        left -= (size_t)(end - at) + 1;
        at = end + 1;
        if (left > 0)
            gr_require(*at++ == mark[1] && --left > 0);
    }
    return 0;
}
