/* sup_link.h - the front's side of the fetcher: errands with answers that come later.
 *
 * Every errand gets exactly one done, unless it is cancelled. What the fetcher says is checked:
 * an answer to nothing that was asked, a file without seals or of another size, or the end of the
 * channel end the link, and with it the server. One thread (the loop's).
 * Tests: tests/supervisor/test_sup_link.c, tests/e2e/remote_media.py
 */
#ifndef INFERD_SUP_LINK_H
#define INFERD_SUP_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "rc.h"

struct sup_link;
struct sup_metrics;
struct sup_walls_told;

#define SUP_LINK_ERRANDS 1024

struct sup_link_progress {
    const char *file, *stage; /* foreign */
    uint32_t n, of;
    uint64_t done_bytes, total_bytes, bytes_per_s;
};
struct sup_link_done {
    enum rc code;
    struct rc_err err; /* of another code than RC_OK */
    /* of a file: a mapping that belongs to the callee (sup_link_unmap), and its type */
    void *data;
    size_t n_data;
    const char *type; /* of a pull: the commit */
    /* of a pull */
    const char *name;
    uint64_t bytes;
    bool unchanged;
};
/* Either may be called from inside the loop only, never from a call below. */
struct sup_link_cb {
    void (*progress)(void *user, const struct sup_link_progress *p); /* optional */
    void (*done)(void *user, struct sup_link_done *d);
    void *user;
};

/* fd: owned; -1 = no fetcher (then every errand is refused). Errors: RC_NOMEM, RC_IO. */
enum rc sup_link_new(struct sup_link **out, uv_loop_t *loop, int fd, struct sup_metrics *metrics,
                     void (*on_lost)(void *user), void *user, struct rc_err *err);
/* Closes its handles; call before the loop runs out. */
void sup_link_stop(struct sup_link *l);
void sup_link_free(struct sup_link **l);

/* id: for sup_link_cancel; never 0. Errors: RC_UNSUPPORTED no fetcher, RC_BUSY, RC_NOMEM. */
enum rc sup_link_media(struct sup_link *l, const char *url, uint64_t max_bytes, uint32_t timeout_ms,
                       const struct sup_link_cb *cb, uint64_t *id, struct rc_err *err);
enum rc sup_link_pull(struct sup_link *l, const char *reference, bool again,
                      const struct sup_link_cb *cb, uint64_t *id, struct rc_err *err);
/* Nothing is called for it any more. An id that is gone is fine. */
void sup_link_cancel(struct sup_link *l, uint64_t id);
void sup_link_unmap(void *data, size_t n);

/* The fetcher's own walls (errand NULL; pid 0: it has said nothing yet), then those of each child
 * that has said so: errand "media" or "pull". Borrowed for the call. None without a fetcher. */
void sup_link_each_process(const struct sup_link *l,
                           void (*each)(void *user, const char *errand,
                                        const struct sup_walls_told *walls),
                           void *user);

#endif
