/* sup_cmd_verify.c - `inferd verify-kernels`: becomes inferd-worker verify-kernels.
 *
 * It takes minutes and prints a line per kernel, so the worker takes this process over
 * instead of being collected. Tests: tests/e2e/device_emulated.py, tests/device/run
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sup_cli.h"
#include "sup_local.h"

#define WORD_MAX 4096

enum { O_WORKER, O_QUICK, O_PASSED };

const struct sup_opt sup_opts_verify[] = {
    {"worker", SUP_O_TEXT, "PATH", "inferd-worker (default: beside inferd)", 0, 0},
    {"quick", SUP_O_FLAG, NULL, "few small cases of each kernel", 0, 0},
    /* from here on passed to the worker with their values */
    {"backend", SUP_O_TEXT, "WORD", "cuda (the only one with generated kernels)", 0, 0},
    {"device", SUP_O_NUM, "N", "which GPU (default 0)", 0, 63},
    {"arch", SUP_O_NUM, "N", "kernels for at most sm_N, 75 or 80 (default: the GPU's)", 75, 999},
    {"only", SUP_O_TEXT, "TEXT", "kernels whose name or library has this part", 0, 0},
    {"seed", SUP_O_NUM, "N", "of the random inputs (default 1)", 1, 1e9},
    {"markdown", SUP_O_TEXT, "PATH", "write the report as a page", 0, 0},
    {"cuda-library", SUP_O_TEXT, "PATH", "driver library (default libcuda.so.1)", 0, 0},
    {0},
};
#define N_OPTS (sizeof(sup_opts_verify) / sizeof(sup_opts_verify[0]) - 1)

int sup_cmd_verify(const struct sup_args *a)
{
    char path[WORD_MAX], words[N_OPTS][WORD_MAX + 32];
    char *argv[N_OPTS + 4] = {(char *)(uintptr_t) "inferd-worker",
                              (char *)(uintptr_t) "verify-kernels"};
    struct rc_err err = RC_ERR_INIT;
    size_t n = 2;

    if (sup_worker_path(path, sizeof(path), a->v[O_WORKER].text, &err) != RC_OK)
        return sup_fail(a->cmd, &err);
    if (a->v[O_QUICK].set)
        argv[n++] = (char *)(uintptr_t) "--quick";
    for (size_t i = O_PASSED; i < N_OPTS; i++) {
        if (!a->v[i].set)
            continue;
        if (strlen(a->v[i].text) > WORD_MAX) {
            rc_fail_what(&err, RC_TOO_LARGE, sup_opts_verify[i].name,
                         "--%s has %zu bytes, at most %d", sup_opts_verify[i].name,
                         strlen(a->v[i].text), WORD_MAX);
            return sup_fail(a->cmd, &err);
        }
        snprintf(words[i], sizeof(words[i]), "--%s=%s", sup_opts_verify[i].name, a->v[i].text);
        argv[n++] = words[i];
    }
    argv[n] = NULL;
    fflush(stdout);
    execv(path, argv);
    rc_fail_what(&err, RC_IO, "worker", "'%.300s' cannot be executed: %s", path, strerror(errno));
    return sup_fail(a->cmd, &err);
}
