/* sup_pull_cli.h - what the commands about models on this disk share: pull, rm, verify, list. */
#ifndef INFERD_SUP_PULL_CLI_H
#define INFERD_SUP_PULL_CLI_H

#include "sup_cli.h"

/* --models-dir's value, else INFERD_MODELS_DIR, else "models". */
const char *sup_pull_models_dir(const struct sup_args *a, const char *given);
/* `inferd list --models-dir`: the folder's models and where they came from; no server is asked. */
int sup_local_list(const struct sup_args *a, const char *models_dir, bool json);

#endif
