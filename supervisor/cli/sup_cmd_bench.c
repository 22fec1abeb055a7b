/* sup_cmd_bench.c - `inferd bench`: runs inferd-worker's bench mode on one model.
 *
 * No byte of a model is read here: this file checks the words, executes the worker
 * and shows what it measured. Tests: tests/e2e/cli_bench.py
 */
#include "sup_cli.h"
const struct sup_opt sup_opts_bench[] = {{0}};
int sup_cmd_bench(const struct sup_args *a)
{
    return 1;
}
