/* sup_pull_impl.h - what the sources of a pull share (sup_pull.c, sup_pull_source.c). */
#ifndef INFERD_SUP_PULL_IMPL_H
#define INFERD_SUP_PULL_IMPL_H

#include "sup_hub.h"
#include "sup_pull.h"

struct sup_pull_job {
    struct sup_pull *p;
    CURLM *multi;
    struct sup_req_rules rules;
    struct sup_hub_list list; /* commit: of a single file, a hash of its URL and ETag */
    char format[64];
};

/* Each fills list and format, or says that nothing changed. */
enum rc sup_pull_from_url(struct sup_pull_job *j, bool *unchanged, struct rc_err *err);
enum rc sup_pull_from_file(struct sup_pull_job *j, bool *unchanged, struct rc_err *err);
/* Copies what a list from a folder has. */
enum rc sup_pull_copy(struct sup_pull_job *j, struct rc_err *err);

#endif
