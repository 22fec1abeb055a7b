/* wrk_load.c - defaults, backend, sealed threads, model.
 *
 * Always true: on the processor the thread pool stands and new threads are forbidden
 * before the first byte of a model is parsed. A device's driver may make threads while
 * kernels are loaded, so there they are forbidden when the model stands. Tests:
 * tests/worker/test_wrk_model_golden.c
 */
#include "wrk_load.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc.h"
#include "wrk_log.h"
#include "wrk_sandbox.h"

static const char *word(const char *s)
{
    return s != NULL && s[0] != '\0' ? s : NULL;
}

static uint32_t bounded(uint32_t v, uint32_t dflt, uint32_t max)
{
    return v == 0 ? dflt : v > max ? max : v;
}

static enum rc kv_type(const char *s, bool device, struct mdl_opts *out, struct rc_err *err)
{
    out->kv_dtype = BE_F16;
    if (word(s) == NULL || strcmp(s, "auto") == 0)
        out->kv_auto = true;
    else if (strcmp(s, "f32") == 0)
        out->kv_dtype = BE_F32;
    else if (strcmp(s, "q8_0") == 0 && device)
        out->kv_dtype = BE_Q8_0;
    else if (strcmp(s, "f16") != 0)
        return rc_fail_what(err, RC_INVALID, "kv_dtype", "kv_dtype '%s', expected auto, f16%s", s,
                            device ? ", f32 or q8_0" : " or f32");
    return RC_OK;
}

/* The drafter's folder below the model's, -1 = none. */
static enum rc find_drafter(int *fd, int root_fd, const struct wrk_load_opts *o, struct rc_err *err)
{
    struct stat st;

    *fd = -1;
    if (o->spec == WRK_SPEC_OFF || o->spec == WRK_SPEC_LOOKUP)
        return RC_OK;
    /* a sandboxed worker whose model is one file has no openat to ask with */
    if (fstat(root_fd, &st) == 0 && !S_ISDIR(st.st_mode))
        errno = ENOTDIR;
    else if ((*fd = openat(root_fd, IPC_DRAFTER_DIR,
                           O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) >= 0)
        return RC_OK;
    if (o->spec == WRK_SPEC_MTP)
        return rc_fail_what(err, RC_NOT_FOUND, IPC_DRAFTER_DIR,
                            "speculation is 'mtp', and the drafter's folder '%s' in the model's "
                            "cannot be opened (%s): put it there, or set speculation to auto",
                            IPC_DRAFTER_DIR, strerror(errno));
    if (errno != ENOENT && errno != ENOTDIR) /* a model without one is nothing to tell */
        wrk_log("speculation: folder '%s' cannot be opened, drafts are looked up: %s",
                IPC_DRAFTER_DIR, strerror(errno));
    return RC_OK;
}

/* What the target leaves of a budget; 0 = none was told, so an empty rest is one byte. */
static uint64_t rest(uint64_t budget, uint64_t used)
{
    return budget == 0 ? 0 : budget > used ? budget - used : 1;
}

static enum rc open_drafter(struct wrk_loaded *l, int fd, const struct wrk_load_opts *o,
                            const struct mdl_opts *target, struct rc_err *err)
{
    const struct mdl_info *i = mdl_info_get(l->mdl);
    const struct mdl_opts m = {.max_seqs = target->max_seqs,
                               .weight_bytes = rest(target->weight_bytes, i->weight_bytes),
                               .workspace_bytes = rest(target->workspace_bytes, i->workspace_bytes),
                               .progress = target->progress,
                               .progress_user = target->progress_user};
    struct rc_err why = RC_ERR_INIT;
    enum rc rc = mdl_open_drafter(&l->drafter, fd, l->mdl, &m, &why);

    if (rc == RC_OK)
        return RC_OK;
    rc_wrap(&why, "drafter in '%s'", IPC_DRAFTER_DIR);
    if (o->spec == WRK_SPEC_MTP) {
        if (err != NULL)
            *err = why;
        return rc;
    }
    wrk_log("speculation: no drafter, drafts are looked up: %s", why.msg);
    return RC_OK;
}

enum rc wrk_load(struct wrk_loaded *out, int root_fd, const struct wrk_load_opts *o,
                 struct rc_err *err)
{
    struct wrk_loaded l = {.max_seqs = bounded(o->max_seqs, WRK_SEQS_DEFAULT, WRK_SEQS_MAX),
                           .batch_tokens =
                               bounded(o->batch_tokens, WRK_BATCH_DEFAULT, WRK_BATCH_MAX)};
    const struct be_opts be = {
        .backend = "cpu",
        .n_threads = o->n_threads,
        .no_spin = o->no_spin,
        .workspace_bytes = o->workspace_bytes,
        .cpu_level = word(o->cpu_level),
        .f32_gemm = word(o->f32_gemm),
    };
    struct mdl_opts m = {
        .ctx_tokens = o->ctx_tokens,
        .kv_bytes = o->kv_bytes != 0 ? o->kv_bytes : WRK_KV_DEFAULT,
        .weight_bytes = o->weight_bytes,
        .workspace_bytes = o->workspace_bytes,
        .progress = o->progress,
        .progress_user = o->user,
    };
    bool device = o->be != NULL;
    int drafter_fd = -1;
    enum rc rc;

    l.be = o->be;
    if (l.batch_tokens < l.max_seqs) /* every sequence has a row in every pass */
        l.batch_tokens = l.max_seqs;
    m.max_seqs = l.max_seqs;
    l.spec_most =
        o->spec == WRK_SPEC_OFF ? 0 : bounded(o->spec_most, WRK_SPEC_DEFAULT, WRK_SPEC_MOST);
    m.max_out = l.spec_most > 0 ? wrk_spec_rows(l.max_seqs) : 0;
    m.batch_tokens = l.batch_tokens;
    m.encode_rows = device ? WRK_ENCODE_ROWS : 0; /* few rows leave most of a device idle */
    if ((rc = kv_type(o->kv_dtype, device, &m, err)) != RC_OK)
        goto out;
    if ((rc = find_drafter(&drafter_fd, root_fd, o, err)) != RC_OK)
        goto out;
    m.drafted = drafter_fd >= 0;
    if (!device && (rc = be_ctx_new(&l.be, &be, err)) != RC_OK)
        goto out;
    if (o->seal && !device && (rc = wrk_sandbox_seal(err)) != RC_OK)
        goto out;
    if ((rc = mdl_open(&l.mdl, root_fd, l.be, &m, err)) != RC_OK)
        goto out;
    if (drafter_fd >= 0 && (rc = open_drafter(&l, drafter_fd, o, &m, err)) != RC_OK)
        goto out;
    be_ctx_seal(l.be);
    if (o->seal && device)
        rc = wrk_sandbox_seal_device(err);
out:
    if (drafter_fd >= 0)
        close(drafter_fd);
    if (rc == RC_OK)
        *out = l;
    else
        wrk_unload(&l);
    return rc;
}

void wrk_unload(struct wrk_loaded *l)
{
    mdl_close(&l->drafter);
    mdl_close(&l->mdl);
    if (l->be != NULL)
        be_ctx_free(&l->be);
}
