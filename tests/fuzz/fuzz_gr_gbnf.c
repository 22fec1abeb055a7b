/* fuzz_gr_gbnf.c - any bytes as a grammar in GBNF; what comes out is valid UTF-8.
 * room: wrk
 * Seeds: tests/fuzz/corpus/gr_gbnf/
 */
#include "gr_fuzz.h"

#include "ipc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[1024];
    size_t n = gr_fuzz(WRK_GR_GBNF, data, size, out, sizeof(out));

    gr_require(ipc_utf8_valid(out, n));
    return 0;
}
