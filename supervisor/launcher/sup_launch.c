/* sup_launch.c - the launcher with the real roles.
 *
 * Apart from sup_launcher.c so that tests can run the launcher with roles of
 * their own and need not link HTTP. Tests: tests/fault/ */
#include "sup_launcher.h"

#include "sup_fetcher.h"
#include "sup_front.h"
#include "sup_launcher_impl.h"
#include "sup_tracer.h"
#include "sup_vault.h"

/* In the order of the forks; the front, which opens the listeners, is last. */
static const struct sup_role roles[] = {
    /* main, id, peers, wanted */
    {sup_vault_main, SUP_ROLE_VAULT, SUP_ROLE_BIT(FRONT) | SUP_ROLE_BIT(FETCHER), sup_vault_wanted},
    {sup_fetcher_main, SUP_ROLE_FETCHER, SUP_ROLE_BIT(FRONT), sup_fetcher_wanted},
    {sup_tracer_main, SUP_ROLE_TRACER, SUP_ROLE_BIT(FRONT), sup_tracer_wanted},
    {sup_front_main, SUP_ROLE_FRONT, 0, NULL},
};

int sup_launcher_main(struct sup_conf *conf, const struct sup_conf_source *source)
{
    return sup_launcher_run(conf, source, roles, sizeof(roles) / sizeof(roles[0]));
}
