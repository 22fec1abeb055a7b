/* sup_hub.h - what a hub says a repository holds, and which of it is fetched.
 *
 * A list of files comes from the hub's JSON (foreign) or from a folder. sup_pick chooses one set
 * of weights and the small files beside it; of sharded safetensors the index is fetched first and
 * its shards are added by sup_pick_shards.
 * Always true of a list: paths are those of sup_fetch_path_ok, none twice; hashes are hexadecimal.
 * Tests: tests/supervisor/test_sup_hub.c, tests/fuzz/fuzz_hub.c
 */
#ifndef INFERD_SUP_HUB_H
#define INFERD_SUP_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "sup_receipt.h"

#define SUP_HUB_JSON_BYTES (16u << 20)
#define SUP_HUB_FILES 50000 /* of a repository */
#define SUP_HUB_INDEX "model.safetensors.index.json"
#define SUP_SIZE_UNKNOWN UINT64_MAX

struct sup_hub_file {
    char *path;
    uint64_t size;
    char sha256[SUP_SHA256_HEX]; /* "" = none was published */
    char blob[SUP_SHA1_HEX];     /* git's hash of the file, where there is no other */
    bool taken;                  /* by sup_pick */
};

struct sup_hub_list {
    char commit[65];
    struct sup_hub_file *file; /* sorted by path */
    size_t n, cap;
};

/* The hub's answer of /api/models/OWNER/NAME/revision/REVISION?blobs=true.
 * Files whose paths leave the folder are refused, not skipped: who lists them means harm.
 * Errors: RC_FORMAT, RC_TOO_LARGE, RC_NOMEM. */
enum rc sup_hub_parse(struct sup_hub_list *out, const char *json, size_t n, struct rc_err *err);
/* Adds one file; the list has to be sorted with sup_hub_sort before it is used. */
enum rc sup_hub_add(struct sup_hub_list *l, const char *path, uint64_t size, const char *sha256,
                    const char *blob, struct rc_err *err);
/* Sorts; RC_FORMAT when a path is there twice. */
enum rc sup_hub_sort(struct sup_hub_list *l, struct rc_err *err);
void sup_hub_deinit(struct sup_hub_list *l);
struct sup_hub_file *sup_hub_find(struct sup_hub_list *l, const char *path);

/* Marks what is to be fetched and says the format: "gguf:Q4_K_M", "safetensors", "torch".
 * variant "auto": GGUF by preference, then safetensors, then torch. Any other has to be there.
 * index: set when SUP_HUB_INDEX is among the files and its shards are not yet chosen.
 * Errors: RC_NOT_FOUND, with what there is in the message; RC_INVALID a variant we cannot run. */
enum rc sup_pick(struct sup_hub_list *l, const char *variant, char format[64], bool *index,
                 struct rc_err *err);
/* Marks the shards that the index names. Errors: RC_FORMAT, RC_NOT_FOUND one is not listed. */
enum rc sup_pick_shards(struct sup_hub_list *l, const char *json, size_t n, struct rc_err *err);

#endif
