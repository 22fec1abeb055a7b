/* wrk_doctor.c - the sandbox and the kernels, tried on this machine, as JSON.
 *
 * The sandbox is applied in a child, so that its end (a kill by seccomp included)
 * can be told; checks of the backend run inside that child, behind the sandbox,
 * because that is where they must work. Prints nothing of a model or a request.
 * Tests: tests/worker/test_wrk_serve.c
 */
#include "wrk_doctor_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "be.h"

static void print_line(json_t *obj)
{
    char *s = obj != NULL ? json_dumps(obj, JSON_COMPACT) : NULL;

    if (s != NULL)
        printf("%s\n", s);
    free(s);
    json_decref(obj);
}

static void check(const char *name, bool ok, const char *detail)
{
    print_line(json_pack("{s:s, s:b, s:s}", "check", name, "ok", ok, "detail", detail));
}

/* A context as a worker would make it: its start-up self-checks run here. */
static bool facts(unsigned n_threads, const char *gemm, struct be_stats *out, struct rc_err *err)
{
    const struct be_opts o = {.backend = "cpu", .n_threads = n_threads, .f32_gemm = gemm};
    struct be_ctx *be = NULL;

    memset(out, 0, sizeof(*out));
    if (be_ctx_new(&be, &o, err) != RC_OK)
        return false;
    be_ctx_stats(be, out);
    be_ctx_free(&be);
    return true;
}

static bool backend(unsigned n_threads)
{
    struct rc_err err = RC_ERR_INIT;
    struct be_stats s, blas;
    char text[160];

    if (!facts(n_threads, NULL, &s, &err) || !facts(n_threads, "openblas", &blas, &err)) {
        check("kernels", false, err.msg);
        return false;
    }
    snprintf(text, sizeof(text), "%s, f32 products: %s", s.kernels, s.f32_gemm);
    check("kernels", true, text);
    /* A fault only where OpenBLAS is what would serve: our own loops are the default,
     * and then its self-check is a fact about this machine to know before asking. */
    snprintf(text, sizeof(text), "%s%s", blas.f32_gemm,
             strncmp(s.f32_gemm, "own", 3) == 0 ? "; not used unless asked for" : "");
    check("openblas", strstr(s.f32_gemm, "FAILED") == NULL, text);
    snprintf(text, sizeof(text), "%u (affinity and cgroup quota)", s.n_threads);
    check("threads", true, text);
    return true;
}

void wrk_doctor_say(const char *name, enum wrk_finding f, const char *fmt, ...)
{
    char text[600];
    va_list ap;
    json_t *o;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    o = json_pack("{s:s, s:b, s:s}", "check", name, "ok", f != WRK_FOUND_BAD, "detail", text);
    if (f == WRK_FOUND_NOTE)
        json_object_set_new(o, "note", json_true());
    print_line(o);
    fflush(stdout); /* what follows might be killed */
}

struct trial {
    enum wrk_sandbox_mode mode;
    unsigned n_threads;
};

static int child(void *arg)
{
    const struct trial *t = arg;
    struct wrk_sandbox_report r;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = wrk_sandbox_apply(t->mode, -1, -1, t->n_threads, &r, &err);
    bool ok = rc == RC_OK;

    for (size_t i = 0; i < r.n; i++) {
        json_t *o = json_pack("{s:s, s:b, s:s}", "layer", r.layer[i].name, "holds",
                              r.layer[i].holds, "detail", r.layer[i].detail);

        if (r.layer[i].optional)
            json_object_set_new(o, "optional", json_true());
        print_line(o);
    }
    check("sandbox", ok, ok ? "a worker can start in this mode" : err.msg);
    fflush(stdout); /* what follows might be killed */
    ok = ok && backend(t->n_threads);
    fflush(stdout);
    return ok ? 0 : 1;
}

int wrk_doctor_child(const char *name, int (*run)(void *arg), void *arg)
{
    int status = 0;
    pid_t pid;

    fflush(stdout);
    if ((pid = fork()) == 0) {
        status = run(arg);
        fflush(stdout);
        _exit(status);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        check(name, false, "the trial process could not be started");
        return -1;
    }
    if (WIFSIGNALED(status)) {
        wrk_doctor_say(name, WRK_FOUND_BAD, "the trial process was killed by signal %d (%s)%s",
                       WTERMSIG(status), strsignal(WTERMSIG(status)),
                       WTERMSIG(status) == SIGSYS ? ": a system call outside the allowlist" : "");
        return -1;
    }
    return WEXITSTATUS(status);
}

int wrk_doctor(enum wrk_sandbox_mode mode, unsigned n_threads, const struct wrk_device *device)
{
    int plain = wrk_doctor_child("sandbox", child, &(struct trial){mode, n_threads});
    int gpu = wrk_doctor_gpu(mode, device);

    return plain != 0 ? 1 : gpu != 0 ? 1 : 0;
}
