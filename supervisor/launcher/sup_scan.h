/* sup_scan.h - what below the models directory is a model, and opening one.
 *
 * A folder with config.json and weights in safetensors (one *.safetensors or
 * model.safetensors.index.json) is a model; so is every *.gguf file. Its id is its
 * path below the models directory. A drafter (IPC_DRAFTER_DIR in a model's folder) is part of
 * that model: its weights count with it. Skipped: names that begin with a dot, are not
 * UTF-8 or hold control characters; mmproj*; links that lead outside. A link to a folder that
 * stays inside is a model if the folder is; what else lies in that folder has no second id. Bounds: SUP_SCAN_DEPTH levels,
 * SUP_SCAN_MODELS models, SUP_SCAN_ENTRIES directory entries.
 * Tests: tests/supervisor/test_sup_launcher.c
 */
#ifndef INFERD_SUP_SCAN_H
#define INFERD_SUP_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

#define SUP_ID_MAX 1024
#define SUP_SCAN_DEPTH 6
#define SUP_SCAN_MODELS 10000
#define SUP_SCAN_ENTRIES 200000
#define SUP_IDENTITY_BYTES 32

struct sup_scan_model {
    char *id;
    bool is_dir;
    uint64_t bytes; /* of weight files */
    uint8_t identity[SUP_IDENTITY_BYTES];
};

struct sup_scan {
    struct sup_scan_model *model; /* sorted by id */
    size_t n, cap;
    bool truncated; /* a bound was met; the list is not whole */
};

/* True for a path of plain parts: not empty, no leading or trailing '/', no "." or
 * ".." or empty part, no control character, UTF-8, at most SUP_ID_MAX bytes. */
bool sup_id_valid(const char *id);

/* Errors: RC_NOT_FOUND / RC_IO when the directory cannot be opened, RC_NOMEM. */
enum rc sup_scan_run(struct sup_scan *out, const char *models_dir, struct rc_err *err);
void sup_scan_deinit(struct sup_scan *s);

/* Opens the model `id` (read-only, close-on-exec) without ever leaving models_dir,
 * and says what it is now. Errors: RC_INVALID bad id, RC_NOT_FOUND none such or
 * not a model, RC_IO. */
enum rc sup_scan_open(int *out_fd, struct sup_scan_model *out_facts, const char *models_dir,
                      const char *id, struct rc_err *err);

#endif
