/* wrk_main.c - entry of `inferd-worker`: which mode, with which words.
 *
 * Modes are a table; each owns its options. The mode and the sandbox come from
 * the command line alone, set by the launcher: nothing on the channel can change
 * them. Tests: tests/worker/test_wrk_serve.c
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "be.h"
#include "wrk_bench.h"
#include "wrk_device.h"
#include "wrk_doctor.h"
#include "wrk_sandbox.h"
#include "wrk_serve.h"
#include "wrk_start.h"
#include "wrk_verify.h"

#define CHANNEL_FD 3 /* SUP_WORKER_CHANNEL_FD, SUP_WORKER_ROOT_FD */
#define ROOT_FD 4
#define THREADS_MAX 1024

static const char usage[] =
    "usage: inferd-worker --serve --sandbox=strict|permissive|off [--threads=N] [DEVICE WORDS]\n"
    "           serves one model: channel on descriptor 3, model on descriptor 4\n"
    "       inferd-worker --doctor [--sandbox=MODE] [DEVICE WORDS]\n"
    "           says what holds on this machine, one JSON object a line\n"
    "       inferd-worker --bench PATH [--only SECTION,...] [--runs N] [--prompt N] [--gen N]\n"
    "           [--context N] [--seqs N] [--prefix N] [--speculation-tokens N] [--embed-batch N]\n"
    "           [--embed-tokens N] [--threads N] [--kv-mb N] [--batch-tokens N] [--cpu-level L]\n"
    "           [--f32-gemm G] [--kv-dtype D] [--sandbox MODE] [--progress 1] [DEVICE WORDS]\n"
    "           measures one model, prints one JSON object (inferd bench)\n"
    "       inferd-worker --version\n";

struct args {
    enum wrk_sandbox_mode sandbox;
    unsigned threads;
    struct wrk_device device;
};

static void print_usage(FILE *to)
{
    fprintf(to, "%s%s%sinferd starts this program; people rarely do.\n", usage, wrk_verify_usage,
            wrk_device_usage());
}

static int bad(const char *arg)
{
    fprintf(stderr, "inferd-worker: unknown or malformed argument '%s'\n", arg);
    print_usage(stderr);
    return WRK_EXIT_USAGE;
}

/* --sandbox=MODE, --threads=N and a device's words; index of the first bad argument, 0 = none. */
static int parse_common(int argc, char **argv, struct args *a)
{
    for (int i = 2; i < argc; i++) {
        char *end;

        if (strncmp(argv[i], "--sandbox=", 10) == 0) {
            if (!wrk_sandbox_mode_parse(argv[i] + 10, &a->sandbox))
                return i;
        } else if (strncmp(argv[i], "--threads=", 10) == 0) {
            unsigned long n = strtoul(argv[i] + 10, &end, 10);
            if (argv[i][10] < '0' || argv[i][10] > '9' || *end != '\0' || n > THREADS_MAX)
                return i;
            a->threads = (unsigned)n;
        } else if (!wrk_device_word(&a->device, argv[i])) {
            return i;
        }
    }
    return 0;
}

static int serve_main(int argc, char **argv)
{
    struct args a = {.sandbox = WRK_SANDBOX_STRICT};
    int i = parse_common(argc, argv, &a);
    struct wrk_serve_opts o;
    bool spin;

    if (i != 0)
        return bad(argv[i]);
    signal(SIGPIPE, SIG_IGN); /* a log line nobody reads is no reason to die */
    o = (struct wrk_serve_opts){
        .sandbox = a.sandbox,
        .n_threads = be_host_threads(a.threads, &spin), /* the sandbox hides the cgroup */
        .channel_fd = CHANNEL_FD,
        .root_fd = ROOT_FD,
        .device = a.device,
    };
    o.no_spin = !spin;
    return wrk_serve(&o);
}

static int doctor_main(int argc, char **argv)
{
    struct args a = {.sandbox = WRK_SANDBOX_STRICT};
    int i = parse_common(argc, argv, &a);
    bool spin;

    if (i != 0)
        return bad(argv[i]);
    wrk_device_env(&a.device);
    return wrk_doctor(a.sandbox, be_host_threads(a.threads, &spin), &a.device);
}

static int version_main(int argc, char **argv)
{
    if (argc > 2)
        return bad(argv[2]);
    puts("inferd-worker " INFERD_VERSION);
    return WRK_EXIT_OK;
}

static int help_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    print_usage(stdout);
    return WRK_EXIT_OK;
}

static const struct {
    const char *word;
    int (*run)(int argc, char **argv);
} modes[] = {
    {"--serve", serve_main},        {"--doctor", doctor_main},        {"--bench", wrk_bench},
    {"verify-kernels", wrk_verify}, {"--verify-kernels", wrk_verify}, {"--version", version_main},
    {"--help", help_main},
};

int main(int argc, char **argv)
{
    wrk_start_restore();
    for (size_t i = 0; argc > 1 && i < sizeof(modes) / sizeof(modes[0]); i++)
        if (strcmp(argv[1], modes[i].word) == 0)
            return modes[i].run(argc, argv);
    if (argc > 1)
        return bad(argv[1]);
    print_usage(stderr);
    return WRK_EXIT_USAGE;
}
