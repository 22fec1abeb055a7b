/* fuzz_ref.c - any text as a reference, as a URL and as an origin. room: sup
 *
 * Always: refused with a reason, or a reference whose folder is a valid model name.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_ref.h"
#include "sup_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct sup_ref r, again;
    struct rc_err err = RC_ERR_INIT;
    char origin[SUP_ORIGIN_MAX], *text = malloc(n + 1);

    if (!text)
        return 0;
    memcpy(text, data, n);
    text[n] = '\0';
    if (sup_ref_origin(text, origin) && strlen(origin) >= SUP_ORIGIN_MAX - 1)
        abort();
    if (sup_ref_parse(&r, text, NULL, NULL, &err) != RC_OK) {
        if (err.code == RC_OK || !err.msg[0])
            abort();
    } else if (!sup_id_valid(r.dest) || sup_ref_parse(&again, r.text, NULL, NULL, &err) != RC_OK ||
               strcmp(again.dest, r.dest) != 0) { /* written in full it means the same */
        abort();
    }
    free(text);
    return 0;
}
