/* fuzz_gr_calls.c - any bytes as tools whose call is required; what comes out is what the
 * parser of answers reads.
 * room: wrk
 * Seeds: tests/fuzz/corpus/gr_calls/
 */
#include "gr_fuzz.h"

#include "worker/call_ref.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char call = (char)(WRK_MARK_BYTE + WRK_MARK_CALL),
               call_end = (char)(WRK_MARK_BYTE + WRK_MARK_CALL_END);
    char out[1024], *at = out, *end;
    size_t n = gr_fuzz(WRK_GR_CALLS, data, size, out, sizeof(out)), left = n;

    while (left > 0) {
        size_t name = 0, n_name = 0, body = 0, n_body = 0;

        gr_require((end = memchr(at, call_end, left)) != NULL);
        if (memchr(at, '\0', (size_t)(end - at)) == NULL &&
            call_ref_split(at, (size_t)(end - at), &name, &n_name, &body, &n_body))
            gr_require(call_ref_json(at + body, n_body, NULL, NULL) > 0);
        left -= (size_t)(end - at) + 1;
        at = end + 1;
        if (left > 0)
            gr_require(*at++ == call && --left > 0);
    }
    return 0;
}
