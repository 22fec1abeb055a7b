/* wrk_sandbox.c - the order of a worker's narrowing, and what strict means.
 *
 * A table of layers applied top to bottom; the layers live in
 * wrk_sandbox_{process,landlock,seccomp}.c. Must never be asked to relax
 * anything: there is no call that widens. Always true: the report names every
 * layer, held or not; strict returns an error when a required one does not hold.
 * Change with care: the order. Namespaces and capabilities come before the
 * parent-death signal and dumpable because a change of credentials resets both;
 * no_new_privs comes before Landlock and seccomp, which need it.
 * Tests: tests/worker/test_wrk_sandbox.c, page: docs/sandbox.md
 */
#include "wrk_sandbox.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "wrk_sandbox_impl.h"

static const struct {
    const char *name;
    bool (*apply)(const struct wrk_sbx *s, char *detail);
    bool optional; /* defence in depth: strict does not ask for it */
} layers[WRK_SBX_N] = {
    [WRK_SBX_THREAD] = {"single-thread", wrk_sbx_thread, false},
    [WRK_SBX_FDS] = {"descriptors", wrk_sbx_fds, false},
    [WRK_SBX_ENV] = {"environment", wrk_sbx_env, false},
    [WRK_SBX_NETNS] = {"namespaces", wrk_sbx_netns, true},
    [WRK_SBX_CAPS] = {"capabilities", wrk_sbx_caps, false},
    [WRK_SBX_LIMITS] = {"limits", wrk_sbx_limits, false},
    [WRK_SBX_DUMP] = {"no-dump", wrk_sbx_dump, false},
    [WRK_SBX_PARENT] = {"parent-death", wrk_sbx_parent, false},
    [WRK_SBX_NNP] = {"no-new-privs", wrk_sbx_nnp, false},
    [WRK_SBX_LANDLOCK] = {"landlock", wrk_sbx_landlock, false},
    [WRK_SBX_DEVICE] = {"device", NULL, false},
    [WRK_SBX_SECCOMP] = {"seccomp", wrk_sbx_seccomp, false},
};

enum rc wrk_sandbox_apply_but(uint32_t skip, enum wrk_sandbox_mode mode, int channel_fd,
                              int root_fd, unsigned n_threads,
                              const struct wrk_sandbox_device *device,
                              struct wrk_sandbox_report *report, struct rc_err *err)
{
    struct wrk_sbx s = {
        .channel_fd = channel_fd, .root_fd = root_fd, .n_threads = n_threads, .device = device};
    struct stat st;
    enum rc rc = RC_OK;

    memset(report, 0, sizeof(*report));
    if (root_fd >= 0 && fstat(root_fd, &st) != 0)
        return rc_fail(err, RC_IO, "model root descriptor %d: %m", root_fd);
    s.root_is_dir = root_fd >= 0 && S_ISDIR(st.st_mode);
    for (size_t i = 0; i < WRK_SBX_N; i++) {
        struct wrk_layer *l = &report->layer[report->n];

        if (i == WRK_SBX_DEVICE) {
            if (device)
                device->open(device->user);
            continue;
        }
        report->n++;
        l->name = layers[i].name;
        l->optional = layers[i].optional;
        if (mode == WRK_SANDBOX_OFF || (skip & (1u << i)) != 0)
            snprintf(l->detail, sizeof(l->detail), "not applied: %s",
                     mode == WRK_SANDBOX_OFF ? "sandbox=off" : "left out by a test");
        else
            l->holds = layers[i].apply(&s, l->detail);
        if (mode == WRK_SANDBOX_STRICT && !l->holds && !layers[i].optional &&
            (skip & (1u << i)) == 0 && rc == RC_OK)
            rc = rc_fail_what(err, RC_UNSUPPORTED, l->name,
                              "sandbox=strict: layer '%s' cannot be had: %s", l->name, l->detail);
        /* a half-sandboxed strict worker must not go on to the next layer and
         * die there without a word: the caller reports and exits */
        if (rc != RC_OK)
            break;
    }
    return rc;
}

enum rc wrk_sandbox_apply(enum wrk_sandbox_mode mode, int channel_fd, int root_fd,
                          unsigned n_threads, struct wrk_sandbox_report *report, struct rc_err *err)
{
    return wrk_sandbox_apply_but(0, mode, channel_fd, root_fd, n_threads, NULL, report, err);
}

enum rc wrk_sandbox_apply_device(enum wrk_sandbox_mode mode, int channel_fd, int root_fd,
                                 unsigned n_threads, const struct wrk_sandbox_device *device,
                                 struct wrk_sandbox_report *report, struct rc_err *err)
{
    return wrk_sandbox_apply_but(0, mode, channel_fd, root_fd, n_threads, device, report, err);
}

bool wrk_sandbox_mode_parse(const char *word, enum wrk_sandbox_mode *out)
{
    static const char *const words[] = {
        [WRK_SANDBOX_STRICT] = "strict",
        [WRK_SANDBOX_PERMISSIVE] = "permissive",
        [WRK_SANDBOX_OFF] = "off",
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (enum wrk_sandbox_mode)i;
            return true;
        }
    return false;
}
