/* sup_doctor_worker.c - what `inferd-worker --doctor` says: each layer of the sandbox,
 * kernels, the self-check of f32 products. The worker's lines are foreign here: a line
 * of unknown form is shown as a warning, not trusted. Tests: tests/e2e/cli_doctor.py */
#include "sup_doctor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "sup_local.h"

/* One line. missing: what a layer that does not hold is. */
static void line(struct sup_doctor *d, const char *s, size_t n, enum sup_finding missing)
{
    json_t *o = json_loadb(s, n, 0, NULL);
    const char *layer = json_string_value(json_object_get(o, "layer"));
    const char *check = json_string_value(json_object_get(o, "check"));
    const char *detail = json_string_value(json_object_get(o, "detail"));
    const json_t *good = json_object_get(o, layer ? "holds" : "ok");

    /* a library that fails its self-check is replaced by our own code: slower, not
     * wrong. Only the sandbox is needed. */
    if (check && strcmp(check, "sandbox") != 0)
        missing = SUP_FOUND_WARN;
    /* a layer that strict can do without, such as namespaces where they are forbidden */
    if (json_is_true(json_object_get(o, "optional")))
        missing = SUP_FOUND_WARN;

    if (check && strncmp(check, "gpu", 3) == 0 && !d->gpu) {
        sup_doctor_group(d, "GPU");
        d->gpu = true;
    }
    if (json_is_true(json_object_get(o, "note")) && check) {
        sup_doctor_say(d, SUP_FOUND_NOTE, check, "%s", detail ? detail : "");
        json_decref(o);
        return;
    }
    if ((!layer && !check) || !json_is_boolean(good))
        sup_doctor_say(d, SUP_FOUND_WARN, "worker", "said: %.*s", (int)(n < 200 ? n : 200), s);
    else
        sup_doctor_say(d, json_is_true(good) ? SUP_FOUND_OK : missing, layer ? layer : check, "%s",
                       detail ? detail : "");
    json_decref(o);
}

void sup_doctor_worker(struct sup_doctor *d, const struct sup_conf *c)
{
    bool strict = strcmp(c->sandbox, "strict") == 0;
    char path[4096], *text = NULL, word[5][4200];
    char *argv[12] = {(char *)"inferd-worker", (char *)"--doctor", (char *)"--sandbox=strict"};
    const struct {
        const char *name, *value;
    } words[] = {
        {"backend", c->backend},
        {"compute", c->compute},
        {"jit", c->jit},
        {"cuda-library", c->cuda_library},
        {"nvrtc-library", c->nvrtc_library},
    };
    size_t n_argv = 3;
    char device[32];
    struct rc_err err = RC_ERR_INIT;
    unsigned n = 0;
    int status = 0;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (words[i].value && *words[i].value) {
            snprintf(word[i], sizeof(word[i]), "--%s=%s", words[i].name, words[i].value);
            argv[n_argv++] = word[i];
        }
    snprintf(device, sizeof(device), "--device=%llu", (unsigned long long)c->device);
    argv[n_argv++] = device;
    argv[n_argv] = NULL;
    sup_doctor_group(d, "Worker and sandbox");
    if (!strict)
        sup_doctor_say(d, SUP_FOUND_WARN, "sandbox",
                       "set to '%s': a worker starts even where a layer is missing", c->sandbox);
    if (sup_worker_path(path, sizeof(path), c->worker, &err) != RC_OK ||
        sup_worker_run(path, argv, 60, &text, &status, &err) != RC_OK) {
        sup_doctor_say(d, SUP_FOUND_FAIL, "inferd-worker", "%s", err.msg);
        free(text);
        return;
    }
    sup_doctor_say(d, SUP_FOUND_NOTE, "inferd-worker", "%s", path);
    for (char *s = text; *s; n++) {
        size_t len = strcspn(s, "\n");

        if (len)
            line(d, s, len, strict ? SUP_FOUND_FAIL : SUP_FOUND_WARN);
        s += len + (s[len] == '\n');
    }
    if (WIFSIGNALED(status))
        sup_doctor_say(d, SUP_FOUND_FAIL, "inferd-worker", "was killed by signal %d (%s)",
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (n == 0)
        sup_doctor_say(d, SUP_FOUND_FAIL, "inferd-worker", "ended with status %d and said nothing",
                       WEXITSTATUS(status));
    free(text);
}
