/* sup_cmd_bench.c - `inferd bench`: runs inferd-worker's bench mode on one model.
 *
 * No byte of a model is read here: this file checks the words and executes the worker;
 * sup_bench_show.c shows what it measured. Page: docs/bench.md. Tests: tests/e2e/cli_bench.py
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sup_bench_show.h"
#include "sup_cli.h"
#include "sup_local.h"
#include "sup_term.h"

#define WORD_MAX 1024
#define TIMEOUT_S 3600 /* a slow machine, a large model, a hundred runs */
#define WORKER_USAGE 2 /* its exit status: enum wrk_exit */

enum { O_JSON, O_WORKER, O_PASSED };

const struct sup_opt sup_opts_bench[] = {
    {"json", SUP_O_FLAG, NULL, "print what the worker measured, every run", 0, 0},
    {"worker", SUP_O_TEXT, "PATH", "inferd-worker (default: beside inferd)", 0, 0},
    /* from here on passed to the worker */
    {"only", SUP_O_TEXT, "SECTION,...",
     "of prompt, decode, batch, prefix, spec, embed (default all)", 0, 0},
    {"runs", SUP_O_NUM, "N", "measured runs after a warm-up (default 3)", 1, 100},
    {"prompt", SUP_O_NUM, "N", "tokens of the prompt (default 512)", 1, 1 << 20},
    {"gen", SUP_O_NUM, "N", "tokens to generate (default 128)", 1, 1 << 20},
    {"context", SUP_O_NUM, "N", "tokens in the cache before them (default 16)", 16, 1 << 20},
    {"seqs", SUP_O_NUM, "N", "sequences of section decode (default 1)", 1, 256},
    {"prefix", SUP_O_NUM, "N", "tokens that two prompts share (default 2048)", 64, 1 << 20},
    {"speculation-tokens", SUP_O_NUM, "N", "guesses in a pass (default 4)", 1, 8},
    {"embed-batch", SUP_O_NUM, "N", "texts of one embedding call (default 32)", 1, 4096},
    {"embed-tokens", SUP_O_NUM, "N", "tokens of each text (default 128)", 1, 1 << 16},
    {"threads", SUP_O_NUM, "N", "compute threads (default: what the cgroup allows)", 1, 1024},
    {"cpu-level", SUP_O_TEXT, "WORD", "kernels: auto, c, avx2, avx512", 0, 0},
    {"f32-gemm", SUP_O_TEXT, "WORD", "f32 products: auto, own, openblas", 0, 0},
    {"kv-dtype", SUP_O_TEXT, "WORD", "KV cache: f16, f32, q8_0 (cuda)", 0, 0},
    {"kv-mb", SUP_O_NUM, "N", "MiB of KV cache (default 512)", 1, 1 << 20},
    {"batch-tokens", SUP_O_NUM, "N", "rows of one prefill chunk (default 512)", 1, 8192},
    {"backend", SUP_O_TEXT, "WORD", "cpu, cuda (default cpu)", 0, 0},
    {"device", SUP_O_NUM, "N", "which GPU (default 0)", 0, 63},
    {"compute", SUP_O_TEXT, "WORD", "float weights: exact_f32, tf32, f16", 0, 0},
    {"jit", SUP_O_TEXT, "MODE", "off, guarded, exact, profile (default off)", 0, 0},
    {"jit-cache-dir", SUP_O_TEXT, "PATH", "folder of compiled kernels (default none)", 0, 0},
    {"cuda-library", SUP_O_TEXT, "PATH", "driver library (default libcuda.so.1)", 0, 0},
    {"nvrtc-library", SUP_O_TEXT, "PATH", "compiler library (default libnvrtc.so)", 0, 0},
    {"sandbox", SUP_O_TEXT, "MODE", "strict, permissive, off (default strict)", 0, 0},
    {0},
};
#define N_OPTS (sizeof(sup_opts_bench) / sizeof(sup_opts_bench[0]) - 1)

static enum rc check_path(const char *path, struct rc_err *err)
{
    struct stat st;
    size_t n = strlen(path);

    if (stat(path, &st) != 0)
        return rc_fail_what(err, RC_NOT_FOUND, path, "model '%.300s': %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && n > 5 && strcmp(path + n - 5, ".gguf") == 0))
        return RC_OK;
    return rc_fail_what(err, RC_INVALID, path,
                        "model '%.300s': expected a .gguf file or a folder with config.json and "
                        ".safetensors",
                        path);
}

/* usage: the worker took exception to a word. */
static enum rc measure(const struct sup_args *a, char **text, bool *usage, struct rc_err *err)
{
    char path[4096], words[N_OPTS][1100];
    char *argv[N_OPTS + 5];
    int n = 0, status = 0;
    enum rc rc;

    if ((rc = check_path(a->pos[0], err)) != RC_OK ||
        (rc = sup_worker_path(path, sizeof(path), a->v[O_WORKER].text, err)) != RC_OK)
        return rc;
    argv[n++] = (char *)(uintptr_t) "inferd-worker";
    argv[n++] = (char *)(uintptr_t) "--bench";
    for (size_t i = O_PASSED; i < N_OPTS; i++)
        if (a->v[i].set) {
            if (strlen(a->v[i].text) > WORD_MAX)
                return rc_fail_what(err, RC_TOO_LARGE, sup_opts_bench[i].name,
                                    "--%s has %zu bytes, at most %d", sup_opts_bench[i].name,
                                    strlen(a->v[i].text), WORD_MAX);
            snprintf(words[i], sizeof(words[i]), "--%s=%s", sup_opts_bench[i].name, a->v[i].text);
            argv[n++] = words[i];
        }
    if (isatty(STDERR_FILENO) == 1 && !sup_term_dumb())
        argv[n++] = (char *)(uintptr_t) "--progress=1";
    argv[n++] = (char *)(uintptr_t)a->pos[0];
    argv[n] = NULL;
    if ((rc = sup_worker_run(path, argv, TIMEOUT_S, text, &status, err)) != RC_OK)
        return rc;
    *usage = WIFEXITED(status) && WEXITSTATUS(status) == WORKER_USAGE;
    if (WIFSIGNALED(status))
        return rc_fail(err, RC_CRASHED, "inferd-worker was killed by signal %d (%s)",
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (status != 0) /* it has said why on stderr */
        return rc_fail(err, RC_INTERNAL, "inferd-worker ended with status %d", WEXITSTATUS(status));
    return RC_OK;
}

int sup_cmd_bench(const struct sup_args *a)
{
    struct rc_err err = RC_ERR_INIT;
    bool usage = false;
    char *text = NULL;
    json_t *o = NULL;
    enum rc rc;

    sup_cli_catch_int();
    if (isatty(STDERR_FILENO) == 1 && sup_term_dumb())
        fputs("measuring ...\n", stderr);
    rc = measure(a, &text, &usage, &err);
    /* interrupted: what was measured until then is shown all the same */
    if (text && *text && !(o = json_loads(text, 0, NULL)) && rc == RC_OK)
        rc = rc_fail(&err, RC_FORMAT, "inferd-worker printed no JSON: %.200s", text);
    if (o && a->v[O_JSON].set)
        fputs(text, stdout);
    else if (o)
        sup_bench_show(stdout, o);
    json_decref(o);
    free(text);
    if (usage) /* it has said why on stderr */
        return SUP_EXIT_USAGE;
    return rc == RC_OK ? SUP_EXIT_OK : sup_fail(a->cmd, &err);
}
