/* mdl_zip.h - private to models/weights: the stored entries of a zip archive that is in memory. */
#ifndef INFERD_MDL_ZIP_H
#define INFERD_MDL_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "rc.h"

struct mdl_zip_entry {
    const char *name; /* in the archive, not NUL-terminated */
    size_t n_name;
    const uint8_t *data; /* in the archive */
    uint64_t n_bytes;
};
struct mdl_zip {
    struct mdl_zip_entry *entries; /* ascending by name */
    size_t n;
};

/* The archive stays in place as long as entries are used. Errors: RC_FORMAT (no archive, a length
 * or an offset that leads out of it, a name given twice), RC_UNSUPPORTED (compressed, encrypted, in
 * several parts: torch writes none of these), RC_NOMEM. `what` names the file in messages. */
enum rc mdl_zip_read(struct mdl_zip *out, const uint8_t *p, size_t n_bytes, const char *what,
                     struct rc_err *err);
void mdl_zip_deinit(struct mdl_zip *z);
/* NULL when absent. */
const struct mdl_zip_entry *mdl_zip_find(const struct mdl_zip *z, const char *name, size_t n_name);

#endif
