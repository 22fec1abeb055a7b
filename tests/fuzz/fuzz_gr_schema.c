/* fuzz_gr_schema.c - any bytes as a JSON Schema; what comes out whole is JSON.
 * room: wrk
 * Seeds: tests/fuzz/corpus/gr_schema/
 */
#include "gr_fuzz.h"

#include <jansson.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[1024];
    size_t n = gr_fuzz(WRK_GR_SCHEMA, data, size, out, sizeof(out));
    json_t *v;

    if (n == 0)
        return 0;
    v = json_loadb(out, n, JSON_DECODE_ANY, NULL);
    gr_require(v != NULL);
    json_decref(v);
    return 0;
}
