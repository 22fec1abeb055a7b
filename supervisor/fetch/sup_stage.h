/* sup_stage.h - where a model is put together, and how it appears as a whole.
 *
 * MODELS/.inferd-staging/KEY/ belongs to one destination: files/ becomes the model's folder in one
 * rename, so nobody ever sees half of it; what was there before is exchanged in the same step and
 * removed afterwards. The folder is locked while a pull has it open. It stays after a failure, so
 * that the next pull goes on. Names that begin with a dot are no models (sup_scan.h).
 * Tests: tests/supervisor/test_sup_stage.c
 */
#ifndef INFERD_SUP_STAGE_H
#define INFERD_SUP_STAGE_H

#include <stdbool.h>

#include "rc.h"
#include "sup_receipt.h"

#define SUP_STAGING_DIR ".inferd-staging"

struct sup_stage {
    int models_fd, dir_fd, files_fd; /* -1 = none */
    char key[40];
    char dest[512];
};

/* Makes what is missing and locks it. Errors: RC_BUSY another pull of the same model runs,
 * RC_CONFLICT what is at dest was not pulled, RC_NOT_FOUND no models folder, RC_IO. */
enum rc sup_stage_open(struct sup_stage *s, const char *models_dir, const char *dest,
                       struct rc_err *err);
/* Checks files/ against its receipt (out, to be freed) and gives it its name. Calibrations a
 * person made for the model that was there are kept. */
enum rc sup_stage_publish(struct sup_stage *s, struct sup_receipt *out, struct rc_err *err);
/* keep: leave what has arrived. A zeroed stage must have its descriptors -1. */
void sup_stage_close(struct sup_stage *s, bool keep);

/* A folder below the models folder, opened without following links; -1 with errno. */
int sup_stage_folder(int models_fd, const char *dest);
/* The model of an open folder disappears at once; then its files do. Errors: RC_NOT_FOUND,
 * RC_CONFLICT it was not pulled (no receipt), RC_BUSY it is being pulled, RC_IO. */
enum rc sup_stage_remove(const char *models_dir, const char *dest, struct rc_err *err);
/* Everything below an open folder, following no links; false with errno. */
bool sup_stage_empty(int dir_fd, int depth);

#endif
