/* sup_launch.c - the launcher with the real front.
 *
 * Apart from sup_launcher.c so that tests can run the launcher with a front of
 * their own and need not link HTTP. Tests: tests/fault/ */
#include "sup_launcher.h"

#include "sup_front.h"
#include "sup_launcher_impl.h"

int sup_launcher_main(const struct sup_conf *conf)
{
    return sup_launcher_run(conf, sup_front_main);
}
