/* sup_launcher_impl.h - the launcher with another front, for tests. */
#ifndef INFERD_SUP_LAUNCHER_IMPL_H
#define INFERD_SUP_LAUNCHER_IMPL_H

#include "sup_conf.h"

/* front runs in the forked child; its return value is the child's exit status. */
typedef int (*sup_front_fn)(const struct sup_conf *conf, int ctl_fd);

int sup_launcher_run(const struct sup_conf *conf, sup_front_fn front);

#endif
