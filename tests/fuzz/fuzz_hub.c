/* fuzz_hub.c - any bytes as a hub's list, then as the index of its shards. room: sup
 *
 * Always: refused with a reason, or a list whose paths stay inside; of what is chosen nothing is
 * hidden.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_hub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const variants[] = {"auto", "gguf", "gguf:Q8_0", "safetensors", "torch"};
    struct sup_hub_list l = {0};
    struct rc_err err = RC_ERR_INIT;
    const uint8_t *cut = memchr(data, '\n', n);
    size_t first = cut ? (size_t)(cut - data) : n;
    char format[64];
    bool index;

    if (sup_hub_parse(&l, (const char *)data, first, &err) != RC_OK) {
        if (err.code == RC_OK || !err.msg[0])
            abort();
        return 0;
    }
    if (sup_pick(&l, variants[n % 5], format, &index, &err) == RC_OK && cut)
        (void)sup_pick_shards(&l, (const char *)cut + 1, n - first - 1, &err);
    for (size_t i = 0; i < l.n; i++)
        if (!sup_fetch_path_ok(l.file[i].path) || (l.file[i].taken && l.file[i].path[0] == '.'))
            abort();
    sup_hub_deinit(&l);
    return 0;
}
