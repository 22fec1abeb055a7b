/* sup_doctor.h - findings of `inferd doctor`, shared by its files.
 * A finding is ok, a note (no judgement), a warning, or a failure: something that
 * `inferd serve` needs and does not have. */
#ifndef INFERD_SUP_DOCTOR_H
#define INFERD_SUP_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>

#include "sup_conf.h"

enum sup_finding { SUP_FOUND_OK, SUP_FOUND_NOTE, SUP_FOUND_WARN, SUP_FOUND_FAIL };

struct sup_doctor {
    bool json;
    json_t *list; /* with json: the findings */
    const char *group;
    unsigned n[4]; /* by enum sup_finding */
    bool gpu;      /* its heading was printed */
};

/* A heading; later findings belong to it. */
void sup_doctor_group(struct sup_doctor *d, const char *title);
void sup_doctor_say(struct sup_doctor *d, enum sup_finding f, const char *name, const char *fmt,
                    ...) __attribute__((format(printf, 4, 5)));

void sup_doctor_machine(struct sup_doctor *d, const struct sup_conf *c);
void sup_doctor_worker(struct sup_doctor *d, const struct sup_conf *c);
void sup_doctor_models(struct sup_doctor *d, const struct sup_conf *c);
void sup_doctor_vault(struct sup_doctor *d, const struct sup_conf *c);
void sup_doctor_network(struct sup_doctor *d, const struct sup_conf *c, const char *server);

#endif
