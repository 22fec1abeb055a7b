/* fuzz_torch.c - any bytes as a state dict of torch.save: parse, then take every
 * tensor that is offered.
 * room: mdl */
#include "mdl_file.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mdl_file *f = NULL;

    if (mdl_torch_parse(&f, data, size, NULL) != RC_OK)
        return 0;
    for (size_t i = 0; i < mdl_file_n_tensors(f); i++) {
        const struct mdl_tensor *x = mdl_file_tensor(f, i), *y = NULL;
        if ((const uint8_t *)x->data < data || (const uint8_t *)x->data + x->n_bytes > data + size)
            abort();
        mdl_file_take(f, x->name, x->n_dims, x->dims, &y, NULL);
    }
    mdl_file_close(&f);
    return 0;
}
