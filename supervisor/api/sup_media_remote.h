/* sup_media_remote.h - the remote files of a request, before its endpoint starts.
 *
 * After admission and the choice of the model, every http(s) URL that stands where the body
 * names a file ("image_url", and "url" of a part of type "media") is fetched; then it reads
 * "attachment:INDEX" like any other file. Off when media_hosts is empty: such URLs then reach
 * sup_media_read, which refuses them. Tests: tests/e2e/remote_media.py
 */
#ifndef INFERD_SUP_MEDIA_REMOTE_H
#define INFERD_SUP_MEDIA_REMOTE_H

#include "sup_call.h"

#define SUP_REMOTE_FILES 16 /* of one request; the same URL twice is one file */

struct sup_media_remote;

/* Looks for URLs. *out is NULL when there is none. true: nothing to wait for, or waiting (*out
 * set): ready is called once, from the loop, with f NULL when all are there. false: *f. */
bool sup_media_remote_start(struct sup_media_remote **out, struct sup_call *c,
                            void (*ready)(struct sup_call *c, const struct sup_fail *f),
                            struct sup_fail *f);
/* What it holds of the front's bytes (sup_call_hold). */
uint64_t sup_media_remote_held(const struct sup_media_remote *r);
/* Cancels what is under way and frees what came; accepts NULL inside. */
void sup_media_remote_free(struct sup_media_remote **r);

#endif
