/* fuzz_receipt.c - any bytes as a receipt. room: sup
 *
 * Always: refused with a reason, or a receipt whose paths stay inside their folder.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_receipt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sup_receipt r = {0};
    struct rc_err err = RC_ERR_INIT;

    if (sup_receipt_parse(&r, (const char *)data, n, &err) != RC_OK) {
        if (err.code == RC_OK || !err.msg[0] || r.n_files != 0)
            abort();
        return 0;
    }
    if ((r.version != 1 && r.version != 2) || r.n_files == 0)
        abort();
    for (size_t i = 0; i < r.n_files; i++)
        if (!sup_fetch_path_ok(r.file[i].path) || r.file[i].path[0] == '/' ||
            strstr(r.file[i].path, "../") || strchr(r.file[i].path, '\\'))
            if (!strstr(r.file[i].path, "..")) /* "a../b" is a plain name */
                abort();
    sup_receipt_deinit(&r);
    return 0;
}
