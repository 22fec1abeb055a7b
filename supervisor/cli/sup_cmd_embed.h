/* sup_cmd_embed.h - what `inferd embed` sends: a text, or a file inside the request. */
#ifndef INFERD_SUP_CMD_EMBED_H
#define INFERD_SUP_CMD_EMBED_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "rc.h"

struct sup_embed_item {
    const char *kind; /* "text", "image", "audio" */
    char *label;      /* the text, or the file's name */
    json_t *part;     /* of the request's input */
    size_t n_bytes;   /* of the file */
};

/* object: a content part, as groups have them, and not a bare string. */
enum rc sup_embed_item_text(struct sup_embed_item *it, const char *text, bool object,
                            struct rc_err *err);
/* kind "image" or "audio": the file must begin like one that servers take.
 * Errors: as reading it, RC_FORMAT. */
enum rc sup_embed_item_file(struct sup_embed_item *it, const char *kind, const char *path,
                            struct rc_err *err);
void sup_embed_item_deinit(struct sup_embed_item *it);

#endif
