/* test_be_kjit.c - run-time compilation with a device that does what the test says: every
 * state, every failure, what is kept on disk and what is not tried twice. */
#include "be_test.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "be_kjit.h"

#define OKAY(call) assert_int_equal((call), RC_OK)

static char dir[64];

/* A device of words: what each call answers, and how often it was called. */
struct fake {
    struct be_kjit_dev dev;
    enum rc compile_rc, load_rc, check_rc, time_rc, render_rc;
    const char *source, *image, *log;
    size_t source_bytes; /* more than source has: filled up */
    double abs_err;
    double base_s, new_s[16]; /* seconds of the bundled kernel; of the new one, call by call */
    unsigned compiles, loads, unloads, checks, base_times, new_times, slow_ms;
    bool die_in_check;
    char opts[128];
};

static enum rc f_compile(void *user, const char *src, size_t n, const char *const *opts,
                         uint32_t n_opts, uint8_t **out, size_t *out_n, char *log, size_t log_cap,
                         struct rc_err *err)
{
    struct fake *f = user;

    f->compiles++;
    assert_int_equal(strlen(src), n);
    assert_true(log_cap <= 64 << 10);
    f->opts[0] = '\0';
    for (uint32_t i = 0; i < n_opts; i++)
        snprintf(f->opts + strlen(f->opts), sizeof(f->opts) - strlen(f->opts), "%s ", opts[i]);
    snprintf(log, log_cap, "%s", f->log ? f->log : "");
    if (f->compile_rc != RC_OK)
        return rc_fail(err, f->compile_rc, "no kernel today");
    *out_n = strlen(f->image);
    *out = (uint8_t *)strdup(f->image);
    return RC_OK;
}

static enum rc f_load(void *user, const uint8_t *image, size_t n, const char *entry, void **out_fn,
                      struct rc_err *err)
{
    struct fake *f = user;

    f->loads++;
    if (f->load_rc != RC_OK)
        return rc_fail(err, f->load_rc, "cannot load");
    assert_int_equal(n, strlen(f->image));
    assert_memory_equal(image, f->image, n);
    *out_fn = strdup(entry);
    return RC_OK;
}

static void f_unload(void *user, void *fn)
{
    struct fake *f = user;

    f->unloads++;
    free(fn);
}

static enum rc f_check(void *user, const struct be_kentry *e, void *fn, double *out_abs,
                       double *out_rel, struct rc_err *err)
{
    struct fake *f = user;

    f->checks++;
    assert_string_equal(fn, e->name);
    if (f->die_in_check)
        _exit(9);
    *out_abs = f->abs_err;
    *out_rel = f->abs_err / 2;
    return f->check_rc == RC_OK ? RC_OK : rc_fail(err, f->check_rc, "cannot check");
}

static enum rc f_time(void *user, const struct be_kentry *e, void *fn, double *out_s,
                      struct rc_err *err)
{
    struct fake *f = user;

    if (f->slow_ms)
        usleep(f->slow_ms * 1000);
    if (f->time_rc != RC_OK)
        return rc_fail(err, f->time_rc, "cannot time");
    if (fn)
        *out_s = f->new_s[f->new_times++ % 16];
    else
        *out_s = f->base_s, f->base_times++;
    return RC_OK;
}

static enum rc f_render(void *user, const struct be_kentry *e, struct be_ktext *out,
                        struct rc_err *err)
{
    struct fake *f = user;

    if (f->render_rc != RC_OK)
        return rc_fail(err, f->render_rc, "no words");
    be_ktext_add(out, "// %s %s\n", e->name, f->source);
    while (out->n < f->source_bytes && !out->failed)
        be_ktext_add(out, "%4096s", "");
    return RC_OK;
}

static struct fake fake(void)
{
    struct fake f = {
        .dev = {.compiler_id = "nvrtc 12.4",
                .device_id = "Fake|sm_90|driver 1",
                .arch = 90,
                .compile = f_compile,
                .load = f_load,
                .unload = f_unload,
                .check = f_check,
                .time = f_time,
                .render = f_render},
        .source = "body",
        .image = "// ptx",
        .base_s = 2,
    };

    for (int i = 0; i < 16; i++)
        f.new_s[i] = 1;
    return f;
}

static struct be_kentry entry(const char *name, uint32_t k)
{
    struct be_kentry e = {.name = name, .lib = "linear_q4_0", .min_arch = 75, .args_bytes = 8};

    e.desc.op = BE_KOP_LINEAR;
    e.desc.wfmt = BE_Q4_0;
    e.desc.k = (struct be_kdim){k ? k : 32, k ? k : 65536, 32, k != 0};
    e.sched.threads = 128;
    return e;
}

struct rig {
    struct fake f;
    struct be_kjit *j;
    struct be_kentry base, exact;
};

static void start(struct rig *r, enum be_kjit_mode mode, bool cached)
{
    struct be_kjit_opts o = {.mode = mode, .cache_dir = cached ? dir : NULL};

    r->f.dev.user = &r->f;
    if (!r->base.name) {
        r->base = entry("kx_bucket", 0);
        r->exact = entry("kx_exact", 640);
    }
    OKAY(be_kjit_new(&r->j, &o, &r->f.dev, NULL));
    OKAY(be_kjit_want(r->j, &r->base, &r->exact, NULL));
}

static enum be_kjit_state state_now(const struct rig *r)
{
    return be_kjit_state_get(r->j, &r->exact.desc);
}

static struct be_kstats counts(const struct rig *r)
{
    struct be_kstats s = {0};

    be_kjit_stats(r->j, &s);
    return s;
}

static void stop(struct rig *r)
{
    be_kjit_free(&r->j);
    assert_null(r->j);
    assert_int_equal(r->f.loads - (r->f.load_rc != RC_OK ? r->f.loads : 0), r->f.unloads);
    r->f.compiles = r->f.loads = r->f.unloads = r->f.checks = r->f.new_times = r->f.base_times = 0;
}

static void settles(struct rig *r, enum be_kjit_state want, const char *reason)
{
    char *text = be_kjit_report(r->j);

    assert_non_null(text);
    if (state_now(r) != want || !strstr(text, reason))
        fail_msg("state %s, expected %s; report: %s, expected '%s'",
                 be_kjit_state_name(state_now(r)), be_kjit_state_name(want), text, reason);
    free(text);
    if (want == BE_KJ_ACTIVE)
        assert_string_equal(be_kjit_get(r->j, &r->exact.desc), "kx_exact");
    else
        assert_null(be_kjit_get(r->j, &r->exact.desc));
}

static int rm(const char *path, const struct stat *st, int flag, struct FTW *f)
{
    return remove(path);
}
static int fresh(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/kjit-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}
static int gone(void **state)
{
    return nftw(dir, rm, 8, FTW_DEPTH | FTW_PHYS);
}

/* --------------------------------------------------------------------- modes */

static void modes_are_words(void **state)
{
    enum be_kjit_mode m = BE_KJIT_EXACT;

    assert_true(be_kjit_mode_parse(NULL, &m));
    assert_int_equal(m, BE_KJIT_OFF);
    assert_true(be_kjit_mode_parse("guarded", &m));
    assert_int_equal(m, BE_KJIT_GUARDED);
    assert_true(be_kjit_mode_parse("exact", &m));
    assert_int_equal(m, BE_KJIT_EXACT);
    assert_true(be_kjit_mode_parse("profile", &m));
    assert_int_equal(m, BE_KJIT_PROFILE);
    assert_true(be_kjit_mode_parse("off", &m));
    assert_int_equal(m, BE_KJIT_OFF);
    assert_false(be_kjit_mode_parse("on", &m));
    assert_string_equal(be_kjit_state_name(BE_KJ_QUARANTINED), "quarantined");
    assert_string_equal(be_kjit_state_name((enum be_kjit_state)99), "unknown");
}

static void off_does_nothing(void **state)
{
    struct rig r = {.f = fake()};

    start(&r, BE_KJIT_OFF, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_MISSING, "");
    assert_int_equal(r.f.compiles, 0);
    stop(&r);
}

static void guarded_uses_what_is_right_and_faster(void **state)
{
    struct rig r = {.f = fake()};

    start(&r, BE_KJIT_GUARDED, true);
    assert_int_equal(state_now(&r), BE_KJ_QUEUED);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "kx_exact: active, x2.000 (worst x2.000)");
    assert_int_equal(r.f.compiles, 1);
    assert_int_equal(r.f.checks, 1);
    assert_int_equal(r.f.new_times, 2 + 5); /* warm-ups and pairs */
    assert_int_equal(r.f.base_times, 2 + 5);
    assert_string_equal(r.f.opts, "--gpu-architecture=sm_90 --fmad=false ");
    assert_int_equal(counts(&r).jit_active, 1);
    assert_int_equal(counts(&r).jit_compiles, 1);
    assert_int_equal(counts(&r).jit_stores, 2 + 1); /* image, record; the trial's mark */
    OKAY(be_kjit_run(r.j, NULL));                   /* nothing is left to do */
    assert_int_equal(r.f.compiles, 1);
    stop(&r);
}

static void profile_measures_and_activates_nothing(void **state)
{
    struct rig r = {.f = fake()};

    start(&r, BE_KJIT_PROFILE, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ELIGIBLE, "kx_exact: eligible, x2.000");
    assert_int_equal(r.f.unloads, 1);
    stop(&r);
}

static void exact_fails_the_load_without_its_kernel(void **state)
{
    struct rig r = {.f = fake()};
    struct rc_err e = RC_ERR_INIT;

    start(&r, BE_KJIT_EXACT, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "");
    stop(&r);
    r.exact = entry("kx_exact", 1280);
    r.f.new_s[4] = 2;
    start(&r, BE_KJIT_EXACT, true);
    assert_int_equal(be_kjit_run(r.j, &e), RC_UNSUPPORTED);
    assert_string_equal(e.what, "kx_exact");
    assert_non_null(strstr(e.msg, "rejected: not faster"));
    stop(&r);
}

static void a_kernel_is_wanted_once(void **state)
{
    struct rig r = {.f = fake()};
    struct be_kentry other = entry("kx_other", 96);

    start(&r, BE_KJIT_GUARDED, false);
    OKAY(be_kjit_want(r.j, &r.base, &r.exact, NULL));
    OKAY(be_kjit_want(r.j, &r.base, &other, NULL));
    OKAY(be_kjit_run(r.j, NULL));
    assert_int_equal(r.f.compiles, 2);
    assert_string_equal(be_kjit_get(r.j, &other.desc), "kx_other");
    stop(&r);
}

static void nothing_compiles_after_the_seal(void **state)
{
    struct rig r = {.f = fake()};
    struct be_kentry late = entry("kx_late", 96);

    start(&r, BE_KJIT_GUARDED, false);
    OKAY(be_kjit_run(r.j, NULL));
    be_kjit_seal(r.j);
    assert_int_equal(counts(&r).hot_compiles, 0);
    assert_int_equal(be_kjit_want(r.j, &r.base, &late, NULL), RC_STATE);
    OKAY(be_kjit_want(r.j, &r.base, &r.exact, NULL)); /* it is there */
    assert_int_equal(be_kjit_run(r.j, NULL), RC_STATE);
    assert_int_equal(counts(&r).hot_compiles, 1);
    assert_int_equal(r.f.compiles, 1);
    assert_string_equal(be_kjit_get(r.j, &r.exact.desc), "kx_exact");
    stop(&r);
}

/* ------------------------------------------------------------------- refusals */

static void slow_in_one_pair_of_five_is_not_faster(void **state)
{
    struct rig r = {.f = fake()};

    r.f.new_s[3] = 1.99; /* x1.005 */
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_REJECTED, "not faster: x2.000, worst x1.005");
    assert_int_equal(counts(&r).jit_quarantined, 0);
    assert_int_equal(r.f.unloads, 1);
    stop(&r);
    /* the verdict is kept: no compilation, no measurement */
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_REJECTED, "worst x1.005 (stored)");
    assert_int_equal(r.f.compiles + r.f.loads + r.f.new_times, 0);
    stop(&r);
}

static void warm_ups_do_not_count(void **state)
{
    struct rig r = {.f = fake()};

    r.f.new_s[0] = r.f.new_s[1] = 50;
    start(&r, BE_KJIT_GUARDED, false);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "");
    stop(&r);
}

static void no_text(struct fake *f)
{
    f->render_rc = RC_UNSUPPORTED;
}
static void long_text(struct fake *f)
{
    f->source_bytes = (16u << 20) + 1;
}
static void no_compiler(struct fake *f)
{
    f->dev.compiler_id = NULL;
}
static void bad_text(struct fake *f)
{
    f->compile_rc = RC_FORMAT;
    f->log = "line 7: what is\nkx_foo?";
}
static void no_memory(struct fake *f)
{
    f->compile_rc = RC_NOMEM;
}
static void no_load(struct fake *f)
{
    f->load_rc = RC_UNSUPPORTED;
}
static void no_room(struct fake *f)
{
    f->load_rc = RC_NOMEM;
}
static void lost_in_load(struct fake *f)
{
    f->load_rc = RC_INTERNAL;
}
static void wrong(struct fake *f)
{
    f->abs_err = 1e-7;
}
static void not_a_number(struct fake *f)
{
    f->abs_err = NAN;
}
static void no_check(struct fake *f)
{
    f->check_rc = RC_UNSUPPORTED;
}
static void lost_in_check(struct fake *f)
{
    f->check_rc = RC_INTERNAL;
}
static void lost_in_time(struct fake *f)
{
    f->time_rc = RC_INTERNAL;
}
static void no_time(struct fake *f)
{
    f->base_s = 0;
}
static void zero_time(struct fake *f)
{
    for (int i = 0; i < 16; i++)
        f->new_s[i] = 0;
}

static const struct failure {
    const char *what;
    void (*set)(struct fake *f);
    enum be_kjit_state state;
    const char *reason;
    enum rc run_rc;
} failures[] = {
    {"a text that cannot be made", no_text, BE_KJ_REJECTED, "no text: no words", RC_OK},
    {"a text over 16 MiB", long_text, BE_KJ_REJECTED, "at most 16777216", RC_OK},
    {"no compiler here", no_compiler, BE_KJ_REJECTED, "there is no compiler", RC_OK},
    {"a text that does not compile", bad_text, BE_KJ_QUARANTINED,
     "does not compile: no kernel today: line 7: what is kx_foo?", RC_OK},
    {"a compiler out of memory", no_memory, BE_KJ_REJECTED, "no kernel today", RC_OK},
    {"an image that does not load", no_load, BE_KJ_QUARANTINED, "loading: cannot load", RC_OK},
    {"no device memory for the image", no_room, BE_KJ_REJECTED, "loading", RC_OK},
    {"a device lost in loading", lost_in_load, BE_KJ_QUARANTINED, "loading", RC_INTERNAL},
    {"a wrong result", wrong, BE_KJ_QUARANTINED, "wrong: largest error 1e-07, expected at most 0",
     RC_OK},
    {"a result that is no number", not_a_number, BE_KJ_QUARANTINED, "wrong", RC_OK},
    {"a check that cannot be made", no_check, BE_KJ_QUARANTINED, "check: cannot check", RC_OK},
    {"a device lost in the check", lost_in_check, BE_KJ_QUARANTINED, "check", RC_INTERNAL},
    {"a device lost in timing", lost_in_time, BE_KJ_QUARANTINED, "timing", RC_INTERNAL},
    {"a bundled kernel that took no time", no_time, BE_KJ_REJECTED, "are not numbers", RC_OK},
    {"a new kernel that took no time", zero_time, BE_KJ_REJECTED, "are not numbers", RC_OK},
};

static void each_failure_leaves_the_bundled_kernel_and_is_remembered(void **state)
{
    for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
        const struct failure *t = &failures[i];
        struct rig r = {.f = fake()};
        struct rc_err e = RC_ERR_INIT;
        char source[32];

        snprintf(source, sizeof(source), "case %zu", i);
        r.f.source = source;
        t->set(&r.f);
        start(&r, BE_KJIT_GUARDED, true);
        if (be_kjit_run(r.j, &e) != t->run_rc)
            fail_msg("%s: %s", t->what, e.msg);
        if (t->run_rc != RC_OK)
            assert_string_equal(e.what, "kx_exact");
        settles(&r, t->state, t->reason);
        assert_int_equal(counts(&r).jit_quarantined, t->state == BE_KJ_QUARANTINED);
        assert_int_equal(counts(&r).jit_active, 0);
        stop(&r);
        if (t->state != BE_KJ_QUARANTINED)
            continue;
        /* quarantined for this device and driver: not tried again, even if it would work */
        r.f = fake();
        r.f.source = source;
        start(&r, BE_KJIT_GUARDED, true);
        OKAY(be_kjit_run(r.j, NULL));
        settles(&r, BE_KJ_QUARANTINED, t->reason);
        assert_int_equal(r.f.compiles + r.f.loads, 0);
        stop(&r);
        r.f.dev.device_id = "Fake|sm_90|driver 2"; /* a new driver is a new chance */
        start(&r, BE_KJIT_GUARDED, true);
        OKAY(be_kjit_run(r.j, NULL));
        settles(&r, BE_KJ_ACTIVE, "");
        stop(&r);
    }
}

static void half_operands_have_a_tolerance(void **state)
{
    struct rig r = {.f = fake()};

    r.base = entry("kx_bucket", 0);
    r.exact = entry("kx_exact", 640);
    r.exact.desc.numerics = BE_KNUM_FAST;
    r.f.abs_err = 0.0015;
    start(&r, BE_KJIT_GUARDED, false);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "errors 0.0015 abs");
    stop(&r);
    r.f.abs_err = 0.0025;
    start(&r, BE_KJIT_GUARDED, false);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_QUARANTINED, "expected at most 0.002");
    stop(&r);
}

static void a_budget_that_is_spent_leaves_the_rest_queued(void **state)
{
    struct be_kjit_opts o = {.mode = BE_KJIT_GUARDED, .budget_ms = 1};
    struct rig r = {.f = fake(), .base = entry("kx_bucket", 0), .exact = entry("kx_exact", 640)};
    struct be_kentry more = entry("kx_more", 96);

    r.f.dev.user = &r.f;
    r.f.slow_ms = 2;
    OKAY(be_kjit_new(&r.j, &o, &r.f.dev, NULL));
    OKAY(be_kjit_want(r.j, &r.base, &r.exact, NULL));
    OKAY(be_kjit_want(r.j, &r.base, &more, NULL));
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_QUEUED, "out of budget");
    assert_int_equal(be_kjit_state_get(r.j, &more.desc), BE_KJ_QUEUED);
    assert_int_equal(r.f.compiles, 1); /* the second was not begun */
    OKAY(be_kjit_run(r.j, NULL));      /* nor by another run: one budget for a load */
    assert_int_equal(r.f.compiles, 1);
    stop(&r);
}

/* ----------------------------------------------------------------------- keys */

static void a_winner_is_taken_from_the_cache(void **state)
{
    struct rig r = {.f = fake()};

    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    stop(&r);
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "stored");
    assert_int_equal(r.f.compiles + r.f.checks + r.f.new_times, 0);
    assert_int_equal(r.f.loads, 1);
    assert_int_equal(counts(&r).jit_hits, 2);
    stop(&r);
}

static void new_source(struct rig *r)
{
    r->f.source = "bodz";
}
static void new_compiler(struct rig *r)
{
    r->f.dev.compiler_id = "nvrtc 12.5";
}
static void new_arch(struct rig *r)
{
    r->f.dev.arch = 80;
}
static void new_device(struct rig *r)
{
    r->f.dev.device_id = "Other|sm_90|driver 1";
}
static void new_schedule(struct rig *r)
{
    r->exact.sched.cols_tile = 8;
}
static void new_shape(struct rig *r)
{
    r->exact.desc.k = (struct be_kdim){672, 672, 32, 1};
}
static void new_baseline(struct rig *r)
{
    r->base.sched.threads = 256;
}
static void nothing(struct rig *r)
{
}

static const struct {
    const char *what;
    void (*change)(struct rig *r);
    unsigned compiles, checks; /* of the second life */
} changes[] = {
    {"one letter of the text", new_source, 1, 1},
    {"the compiler", new_compiler, 1, 1},
    {"the architecture", new_arch, 1, 1},
    {"the schedule", new_schedule, 1, 1},
    {"the shape", new_shape, 1, 1},
    /* the image stays good, the verdict does not */
    {"the device", new_device, 0, 1},
    {"the bundled kernel", new_baseline, 0, 1},
    {"nothing", nothing, 0, 0},
};

static void a_change_changes_the_key_it_belongs_to(void **state)
{
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct rig r = {.f = fake()};

        gone(NULL);
        assert_int_equal(fresh(NULL), 0);
        start(&r, BE_KJIT_GUARDED, true);
        OKAY(be_kjit_run(r.j, NULL));
        stop(&r);
        changes[i].change(&r);
        start(&r, BE_KJIT_GUARDED, true);
        OKAY(be_kjit_run(r.j, NULL));
        if (r.f.compiles != changes[i].compiles || r.f.checks != changes[i].checks)
            fail_msg("%s changed: %u compilations, expected %u; %u checks, expected %u",
                     changes[i].what, r.f.compiles, changes[i].compiles, r.f.checks,
                     changes[i].checks);
        settles(&r, BE_KJ_ACTIVE, "");
        stop(&r);
    }
}

static void spoil(const char *suffix)
{
    DIR *d = opendir(dir);
    char path[400];
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');

        if (!dot || strcmp(dot + 1, suffix) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        assert_int_equal(truncate(path, 89), 0);
        n++;
    }
    closedir(d);
    assert_int_equal(n, 1);
}

static void a_spoilt_entry_costs_time_only(void **state)
{
    static const struct {
        const char *suffix;
        unsigned compiles, checks;
    } cases[] = {{"ptx", 1, 0}, {"qualified", 0, 1}};
    struct rig r = {.f = fake()};

    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    stop(&r);
    for (size_t i = 0; i < 2; i++) {
        spoil(cases[i].suffix);
        start(&r, BE_KJIT_GUARDED, true);
        OKAY(be_kjit_run(r.j, NULL));
        settles(&r, BE_KJ_ACTIVE, "");
        assert_int_equal(counts(&r).jit_corrupt, 1);
        assert_int_equal(r.f.compiles, cases[i].compiles);
        assert_int_equal(r.f.checks, cases[i].checks);
        stop(&r);
    }
}

static void a_cache_that_cannot_be_used_is_said_and_lived_with(void **state)
{
    struct rig r = {.f = fake()};
    char was[64];

    snprintf(was, sizeof(was), "%s", dir);
    assert_int_equal(chmod(dir, 0777), 0);
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "cache: kernel cache '");
    stop(&r);
    assert_int_equal(chmod(was, 0700), 0);
}

static void binary_images_are_kept_too(void **state)
{
    struct rig r = {.f = fake()};

    r.f.image = "\177ELFcubin";
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    stop(&r);
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_ACTIVE, "stored");
    assert_int_equal(r.f.compiles, 0);
    stop(&r);
}

/* ------------------------------------------------------------------- the worst */

static void one_life(void)
{
    struct rig r = {.f = fake()};
    int status = 0;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        r.f.die_in_check = true;
        start(&r, BE_KJIT_GUARDED, true);
        be_kjit_run(r.j, NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 9);
}

static void a_kernel_that_kills_the_process_twice_is_left_alone(void **state)
{
    struct rig r = {.f = fake()};

    one_life();
    one_life();
    start(&r, BE_KJIT_GUARDED, true);
    OKAY(be_kjit_run(r.j, NULL));
    settles(&r, BE_KJ_QUARANTINED, "the process died in 2 trials of it");
    stop(&r);
}

static void one_death_may_be_bad_luck(void **state)
{
    struct rig r = {.f = fake()};

    one_life();
    for (int i = 0; i < 2; i++) { /* and is forgotten after a trial that ended */
        start(&r, BE_KJIT_GUARDED, true);
        OKAY(be_kjit_run(r.j, NULL));
        settles(&r, BE_KJ_ACTIVE, "");
        stop(&r);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, fresh, gone)
    const struct CMUnitTest tests[] = {
        T(modes_are_words),
        T(off_does_nothing),
        T(guarded_uses_what_is_right_and_faster),
        T(profile_measures_and_activates_nothing),
        T(exact_fails_the_load_without_its_kernel),
        T(a_kernel_is_wanted_once),
        T(nothing_compiles_after_the_seal),
        T(slow_in_one_pair_of_five_is_not_faster),
        T(warm_ups_do_not_count),
        T(each_failure_leaves_the_bundled_kernel_and_is_remembered),
        T(half_operands_have_a_tolerance),
        T(a_budget_that_is_spent_leaves_the_rest_queued),
        T(a_winner_is_taken_from_the_cache),
        T(a_change_changes_the_key_it_belongs_to),
        T(a_spoilt_entry_costs_time_only),
        T(a_cache_that_cannot_be_used_is_said_and_lived_with),
        T(binary_images_are_kept_too),
        T(a_kernel_that_kills_the_process_twice_is_left_alone),
        T(one_death_may_be_bad_luck),
    };

    return cmocka_run_group_tests_name("be_kjit", tests, NULL, NULL);
}
