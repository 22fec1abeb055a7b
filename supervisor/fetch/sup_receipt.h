/* sup_receipt.h - what a model's folder says of how it came: its files, their sizes and hashes.
 *
 * Written as the last file of a fetched folder, version 2:
 *   {"version": 2, "source": {"owner": S, "name": S, "variant": S}, "from": S, "revision": S,
 *    "commit": S, "format": S, "artifacts": [{"path": S, "size": N, "sha256": S or null}]}
 * Versions 1 (no source, no hashes) and 2 are read, under our own name and under that of the
 * program people come from; keys we do not know are ignored, everything else is strict.
 * Always true of a receipt that was read: every path stays inside the folder, none is there
 * twice, sizes are whole numbers. Tests: tests/supervisor/test_sup_receipt.c,
 * tests/fuzz/fuzz_receipt.c
 */
#ifndef INFERD_SUP_RECEIPT_H
#define INFERD_SUP_RECEIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_RECEIPT_NAME ".inferd-download-complete.json"
#define SUP_RECEIPT_BYTES (1u << 20)
#define SUP_RECEIPT_FILES 4096
#define SUP_FETCH_PATH_MAX 512 /* of one file below its folder */
#define SUP_FETCH_DEPTH 4
#define SUP_SHA256_HEX 65
#define SUP_SHA1_HEX 41

struct sup_artifact {
    char *path;
    uint64_t size;
    char sha256[SUP_SHA256_HEX]; /* "" = not known */
};

struct sup_receipt {
    int version;
    /* of version 1 all empty */
    char *owner, *name, *variant, *from, *revision, *commit, *format;
    struct sup_artifact *file;
    size_t n_files;
};

/* True for a path of 1 to SUP_FETCH_DEPTH plain parts: relative, no empty part, no "." or "..",
 * no backslash, no drive, no control character, UTF-8, at most SUP_FETCH_PATH_MAX bytes. */
bool sup_fetch_path_ok(const char *path);
/* n lower-case hexadecimal digits and nothing more. */
bool sup_hex_ok(const char *s, size_t n);

/* Errors: RC_UNSUPPORTED another version, RC_FORMAT, RC_TOO_LARGE, RC_NOMEM. */
enum rc sup_receipt_parse(struct sup_receipt *out, const char *text, size_t n, struct rc_err *err);
/* The receipt of an open folder. Errors also: RC_NOT_FOUND there is none, RC_IO. */
enum rc sup_receipt_load(struct sup_receipt *out, int dir_fd, struct rc_err *err);
/* Writes version 2 as SUP_RECEIPT_NAME, replacing one that is there. RC_IO, RC_NOMEM. */
enum rc sup_receipt_save(const struct sup_receipt *r, int dir_fd, struct rc_err *err);
void sup_receipt_deinit(struct sup_receipt *r);

/* Takes copies of the strings. */
enum rc sup_receipt_add(struct sup_receipt *r, const char *path, uint64_t size, const char *sha256,
                        struct rc_err *err);

/* Is each file there, a regular one of its size? plain: also reached through no symbolic link.
 * Errors: RC_NOT_FOUND, RC_CONFLICT another size, with the path in err->what. */
enum rc sup_receipt_check(const struct sup_receipt *r, int dir_fd, bool plain, struct rc_err *err);
/* One file opened for reading, below the folder. Errors as of _check. */
enum rc sup_receipt_open(const struct sup_artifact *a, int dir_fd, bool plain, int *out_fd,
                         struct rc_err *err);
/* True when a fetch into this folder began and did not end: a mark of ours or of the program
 * people come from. */
bool sup_receipt_unfinished(int dir_fd);
#define SUP_UNFINISHED_NAME ".inferd-download-in-progress"

#endif
