/* sup_xfer.h - several files at once, each in pieces, into a folder.
 *
 * At most SUP_XFER_FILES files and SUP_XFER_CONNS requests at a time. What breaks is tried again
 * (a piece at most `retries` times without a MiB of progress); what is not the file that was
 * announced (another size, another ETag midway, another hash) is fetched once more from its
 * beginning and then refused. A file gets its name after its hash was compared.
 * Tests: tests/e2e/pull.py
 */
#ifndef INFERD_SUP_XFER_H
#define INFERD_SUP_XFER_H

#include "sup_part.h"
#include "sup_req.h"

#define SUP_XFER_FILES 4
#define SUP_XFER_CONNS 8

struct sup_xfer_file {
    const char *path; /* below the folder */
    const char *url;
    uint64_t size;
    const char *sha256, *blob; /* as published; "" = not */
    const char *ident;         /* what makes this content this content: a hash, an ETag */
    char got[SUP_SHA256_HEX];  /* out */
};

struct sup_xfer_now {
    const char *file; /* one of those under way */
    uint32_t n, of;   /* files that are done, files */
    uint64_t done_bytes, total_bytes, bytes_per_s;
    bool hashing; /* nothing arrives any more, the rest is hashed */
};

struct sup_xfer {
    const struct sup_req_rules *rules;
    int dir_fd;
    unsigned retries;
    /* four times a second; false = the person wants no more of it */
    bool (*on_now)(void *user, const struct sup_xfer_now *now);
    void *user;
};

/* All of them, or the first failure. err may not be NULL. What has arrived stays.
 * Errors: as sup_req_finish and sup_part_write, RC_CONFLICT not what was announced. */
enum rc sup_xfer_run(const struct sup_xfer *x, CURLM *multi, struct sup_xfer_file *file, size_t n,
                     struct rc_err *err);

#endif
