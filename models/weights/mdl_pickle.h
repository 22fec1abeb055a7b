/* mdl_pickle.h - private to models/weights: what the pickle of a state dict says of its tensors. */
#ifndef INFERD_MDL_PICKLE_H
#define INFERD_MDL_PICKLE_H

#include "mdl_file.h"

struct mdl_storage_type {
    const char *dtype; /* safetensors' word */
    uint8_t bytes;
    int be; /* enum be_dtype, -1 not ours */
};
struct mdl_pickle_tensor {
    const char *name, *entry; /* in the pickle, not NUL-terminated; entry holds the numbers */
    size_t n_name, n_entry;
    const struct mdl_storage_type *type;
    uint64_t n_storage;       /* values of the entry, as the pickle has it */
    uint64_t first, n_values; /* the tensor's among them */
    uint64_t dims[MDL_MAX_DIMS];
    uint32_t n_dims; /* as many as it has: dims are the first MDL_MAX_DIMS */
    bool in_order;   /* row-major, nothing left out */
};

struct mdl_pickle;
/* The pickle stays in place as long as its tensors are asked for. Errors: RC_FORMAT (no pickle, cut
 * short, things put together in a way that torch.save does not), RC_UNSUPPORTED (an instruction or
 * a function that no state dict needs; another value than a dict), RC_TOO_LARGE, RC_NOMEM. `what`
 * names the file in messages and is borrowed likewise. */
enum rc mdl_pickle_read(struct mdl_pickle **out, const uint8_t *p, size_t n_bytes, const char *what,
                        struct rc_err *err);
void mdl_pickle_free(struct mdl_pickle **k);
/* Names of the state dict, and what the i-th is. RC_FORMAT, RC_UNSUPPORTED when it is no tensor. */
size_t mdl_pickle_n(const struct mdl_pickle *k);
enum rc mdl_pickle_tensor(const struct mdl_pickle *k, size_t i, struct mdl_pickle_tensor *out,
                          struct rc_err *err);

#endif
