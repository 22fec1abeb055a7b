/* sup_launcher_impl.h - the launcher with other roles, for tests. */
#ifndef INFERD_SUP_LAUNCHER_IMPL_H
#define INFERD_SUP_LAUNCHER_IMPL_H

#include <stddef.h>

#include "sup_conf.h"
#include "sup_launcher.h"
#include "sup_role.h"

/* roles: in the order of the forks, each id at most once, with SUP_ROLE_FRONT. */
int sup_launcher_run(struct sup_conf *conf, const struct sup_conf_source *source,
                     const struct sup_role *roles, size_t n_roles);

#endif
