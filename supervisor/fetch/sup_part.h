/* sup_part.h - a file that is arriving: NAME.part and, beside it, which of its bytes are there.
 *
 * A file is cut into pieces that arrive by themselves; NAME.part.map keeps how far each has come,
 * so that an ended pull goes on where it was, whoever ended it. The map is for one content (size
 * and identity); with another it is thrown away. What the map says is never the last word: the
 * whole file is hashed before it gets its name, bytes of an earlier pull included.
 * Tests: tests/supervisor/test_sup_part.c
 */
#ifndef INFERD_SUP_PART_H
#define INFERD_SUP_PART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nettle/sha1.h>
#include <nettle/sha2.h>

#include "rc.h"
#include "sup_receipt.h"

#define SUP_PIECE_BYTES (16ull << 20)
#define SUP_ETAG_MAX 256

struct sup_piece {
    uint64_t begin, end, done; /* done: bytes from begin on that are there */
    bool busy;
    unsigned tries;
    uint64_t tried_at; /* done, when tries was last 0 */
    uint64_t not_before_ms;
};

struct sup_part {
    const char *path; /* borrowed; below dir_fd */
    int dir_fd;
    int part_fd, map_fd; /* -1 = none */
    uint64_t size;
    char ident[SUP_SHA256_HEX];
    char etag[SUP_ETAG_MAX];
    bool whole; /* the server gives no parts: one piece */
    struct sup_piece *piece;
    size_t n_pieces;
    uint64_t hashed;
    struct sha256_ctx sha256;
    struct sha1_ctx blob; /* as git hashes a file */
    bool want_blob;       /* set it after _open, before _hash: a second hash costs time */
    uint64_t resumed;     /* bytes that were there when it was opened */
};

/* Opens or makes the two files (and the folders above them). ident: what makes this content this
 * content, at most 64 bytes. A whole file that is there already becomes a complete part.
 * Errors: RC_IO, RC_NOMEM. A zeroed part with both descriptors -1 is a valid argument to _close. */
enum rc sup_part_open(struct sup_part *p, int dir_fd, const char *path, uint64_t size,
                      const char *ident, struct rc_err *err);
void sup_part_close(struct sup_part *p);
/* Throws away what is there. whole: one piece from now on. */
enum rc sup_part_restart(struct sup_part *p, bool whole, struct rc_err *err);
/* n bytes behind what piece i has. Errors: RC_TOO_LARGE more than the piece, RC_LIMIT no room on
 * the disk, RC_IO. */
enum rc sup_part_write(struct sup_part *p, size_t i, const char *b, size_t n, struct rc_err *err);
/* Keeps the etag for later pulls. */
enum rc sup_part_etag(struct sup_part *p, const char *etag, struct rc_err *err);
uint64_t sup_part_done(const struct sup_part *p);
/* Hashes at most max bytes more of those that are there without a gap. *all: the file is whole
 * and hashed. */
enum rc sup_part_hash(struct sup_part *p, uint64_t max, bool *all, struct rc_err *err);
/* After *all: its hashes in hexadecimal; blob is "" unless want_blob. */
void sup_part_sums(struct sup_part *p, char sha256[SUP_SHA256_HEX], char blob[SUP_SHA1_HEX]);
enum rc sup_part_finish(struct sup_part *p, struct rc_err *err);

#endif
