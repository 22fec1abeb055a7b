/* be_kjit.h - run-time compilation: modes, states, cache, quarantine.
 *
 * Modes: off (nothing is compiled), guarded (compile, check against the CPU executor on
 * this device, time against the bundled kernel, use what is right and faster), exact
 * (as guarded, and a planned exact kernel that does not qualify fails the load),
 * profile (guarded's work, never activated: reports what would win). All of it happens while a
 * model loads, inside a time budget; be_ctx_seal ends it: after that a compilation is an error and
 * counted (hot_compiles). A kernel that fails to compile, crashes the check or is wrong is
 * quarantined by key in the cache directory and not tried again, and so is one during whose trial
 * the process died twice. States: missing queued compiling
 * validating tuning eligible active rejected quarantined. Cache: engine.md 1.5 (88-byte header,
 * 0600 in 0700, temp + fsync + rename, corrupt = delete, count, miss; LRU to a byte cap; stale
 * temps reclaimed). The device is reached through struct be_kjit_dev, so all of it is tested
 * without one. Tests: tests/backends/test_be_kjit*.c; fuzz_kcache.c
 */
#ifndef INFERD_BE_KJIT_H
#define INFERD_BE_KJIT_H

#include "be_kir.h"

enum be_kjit_mode { BE_KJIT_OFF, BE_KJIT_GUARDED, BE_KJIT_EXACT, BE_KJIT_PROFILE };
enum be_kjit_state {
    BE_KJ_MISSING,
    BE_KJ_QUEUED,
    BE_KJ_COMPILING,
    BE_KJ_VALIDATING,
    BE_KJ_TUNING,
    BE_KJ_ELIGIBLE,
    BE_KJ_ACTIVE,
    BE_KJ_REJECTED,
    BE_KJ_QUARANTINED
};
bool be_kjit_mode_parse(const char *s, enum be_kjit_mode *out); /* NULL = off */

/* What the subsystem needs of a device. compile: NVRTC (source, NUL-terminated, to PTX or cubin;
 * log on failure; opts are complete, "--gpu-architecture=sm_90" first); load/unload: module from
 * image; check: run entry from module against the CPU executor on the conformance inputs, RC_OK and
 * the largest errors, which be_kjit judges (0 for what is exact); time: median seconds of one
 * launch of the module's kernel (fn NULL: of the bundled one, whose entry is passed) on the shape.
 * All may fail; RC_INTERNAL from load/check/time means the device is lost. render: the entry's
 * text, NULL = be_kcuda_text. */
struct be_kjit_dev {
    void *user;
    const char *compiler_id; /* "nvrtc 12.4" ; NULL = no compiler here */
    const char *device_id;   /* "NVIDIA H200|sm_90|driver 580.159" */
    uint32_t arch;
    enum rc (*compile)(void *user, const char *src, size_t n, const char *const *opts,
                       uint32_t n_opts, uint8_t **out_image, size_t *out_n, char *log,
                       size_t log_cap, struct rc_err *err);
    enum rc (*load)(void *user, const uint8_t *image, size_t n, const char *entry, void **out_fn,
                    struct rc_err *err);
    void (*unload)(void *user, void *fn);
    enum rc (*check)(void *user, const struct be_kentry *e, void *fn, double *out_abs,
                     double *out_rel, struct rc_err *err);
    enum rc (*time)(void *user, const struct be_kentry *e, void *fn, double *out_seconds,
                    struct rc_err *err);
    enum rc (*render)(void *user, const struct be_kentry *e, struct be_ktext *out,
                      struct rc_err *err);
};
struct be_kjit_opts {
    enum be_kjit_mode mode;
    const char *cache_dir; /* NULL: no cache */
    uint64_t cache_bytes;  /* 0 = 1 GiB */
    uint64_t budget_ms;    /* 0 = 300000; looked at before each kernel and each measurement */
};
struct be_kjit;
enum rc be_kjit_new(struct be_kjit **out, const struct be_kjit_opts *o,
                    const struct be_kjit_dev *dev, struct rc_err *err);
void be_kjit_free(struct be_kjit **j);
/* A shape the model will ask for: exact is base with its dimensions fixed (copied). Queued until
 * be_kjit_run. */
enum rc be_kjit_want(struct be_kjit *j, const struct be_kentry *base, const struct be_kentry *exact,
                     struct rc_err *err);
/* Compiles, checks and times what is queued, until done or out of budget. Mode exact:
 * RC_UNSUPPORTED naming the first kernel that did not qualify. */
enum rc be_kjit_run(struct be_kjit *j, struct rc_err *err);
void be_kjit_seal(struct be_kjit *j);
/* The active function for that exact descriptor, or NULL. Never compiles. */
void *be_kjit_get(const struct be_kjit *j, const struct be_kdesc *exact);
enum be_kjit_state be_kjit_state_get(const struct be_kjit *j, const struct be_kdesc *exact);
const char *be_kjit_state_name(enum be_kjit_state s);
/* Sets the jit_* fields and hot_compiles. */
void be_kjit_stats(const struct be_kjit *j, struct be_kstats *io);
/* One line per wanted kernel: name, state, speed-up, errors. Caller frees. */
char *be_kjit_report(const struct be_kjit *j);

/* ---- the cache by itself */
enum be_kcache_kind { BE_KC_PTX = 1, BE_KC_CUBIN = 2, BE_KC_QUALIFIED = 3, BE_KC_QUARANTINE = 4 };
struct be_kcache;
struct be_kcache_stats {
    uint64_t hits, misses, corruptions, stores, evictions, stale_temps, temp_bytes, bytes;
};
enum rc be_kcache_open(struct be_kcache **out, const char *dir, uint64_t cap_bytes,
                       struct rc_err *err);
void be_kcache_close(struct be_kcache **c);
enum rc be_kcache_get(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind,
                      uint8_t **out, size_t *n,
                      struct rc_err *err); /* RC_NOT_FOUND = miss; caller frees */
enum rc be_kcache_put(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind,
                      const void *p, size_t n, struct rc_err *err);
void be_kcache_stats(const struct be_kcache *c, struct be_kcache_stats *out);
/* Header and payload of one cache file (the parser of foreign bytes, fuzzed). */
enum rc be_kcache_parse(const uint8_t *p, size_t n, const uint8_t key[32], enum be_kcache_kind kind,
                        const uint8_t **payload, size_t *payload_n, struct rc_err *err);
void be_kcache_del(struct be_kcache *c, const uint8_t key[32], enum be_kcache_kind kind);

#endif
