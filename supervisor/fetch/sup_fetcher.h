/* sup_fetcher.h - the role that runs errands on the network for the front.
 *
 * Holds the right to write below the models folder and to fork; reads no stranger's byte itself:
 * each errand is a child of its own (sup_child.h), and one that dies is one failed errand. The
 * front's word is checked against the configuration again. Secrets come from the vault, one
 * origin at a time, and only for pulls from the configured hub.
 * Tests: tests/e2e/remote_media.py, tests/e2e/pull_http.py
 */
#ifndef INFERD_SUP_FETCHER_H
#define INFERD_SUP_FETCHER_H

#include <stdbool.h>

struct sup_conf;
struct sup_role_fds;

#define SUP_FETCH_CHILDREN 16 /* errands at a time */
#define SUP_FETCH_WAITING 256 /* files that wait for one of them to end */
#define SUP_FETCH_PULLS 2     /* of the errands, pulls */

/* Returns the process's exit status. */
int sup_fetcher_main(const struct sup_conf *conf, const struct sup_role_fds *fds);
/* Is there anything to fetch under this configuration? */
bool sup_fetcher_wanted(const struct sup_conf *conf);

#endif
