/* fuzz_gr_regex.c - any bytes as a regular expression; what comes out is valid UTF-8.
 * room: wrk
 * Seeds: tests/fuzz/corpus/gr_regex/
 */
#include "gr_fuzz.h"

#include "ipc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[1024];
    size_t n = gr_fuzz(WRK_GR_REGEX, data, size, out, sizeof(out));

    gr_require(ipc_utf8_valid(out, n));
    return 0;
}
