/* wrk_bench_impl.h - private to the bench mode: words, the other end of an engine, sections.
 *
 * wrk_bench_opts.c reads the command line; wrk_bench_ask.c is the front of an engine;
 * wrk_bench_gen.c, wrk_bench_spec.c and wrk_bench_embed.c measure and write JSON;
 * wrk_bench_stat.c does the arithmetic; wrk_bench.c loads and puts them in order.
 * Page: docs/bench.md. Tests: tests/worker/test_wrk_bench.c
 */
#ifndef INFERD_WRK_BENCH_IMPL_H
#define INFERD_WRK_BENCH_IMPL_H

#include <jansson.h>

#include "wrk_device.h"
#include "wrk_engine.h"
#include "wrk_load.h"
#include "wrk_pages.h"

#define WRK_BENCH_RUNS 100u        /* most runs of one figure */
#define WRK_BENCH_TOGETHER 32u     /* sequences or texts, in powers of two */
#define WRK_BENCH_CONTEXT 16u      /* tokens in the cache before decoding is timed, at least */
#define WRK_BENCH_BATCH_STEPS 32u  /* steps of one size of the batch */
#define WRK_BENCH_CACHE_TOKENS 64u /* prompts below are not cached, as in a server */

enum wrk_bench_section {
    WRK_BENCH_PROMPT = 1,
    WRK_BENCH_DECODE = 2,
    WRK_BENCH_BATCH = 4,
    WRK_BENCH_PREFIX = 8,
    WRK_BENCH_SPECULATION = 16,
    WRK_BENCH_EMBED = 32,
    WRK_BENCH_ALL = 63,
};

/* Numbers are 0 where nothing was said. */
struct wrk_bench_opts {
    const char *path, *only, *cpu_level, *f32_gemm, *kv_dtype, *sandbox;
    uint64_t prompt, gen, context, prefix, seqs, threads, runs, embed_batch, embed_tokens,
        batch_tokens, kv_mb, spec_tokens, progress;
    unsigned sections; /* enum wrk_bench_section, or'ed */
    struct wrk_device device;
};

/* --name VALUE and --name=VALUE. Errors: RC_INVALID, naming word, value and expectation. */
enum rc wrk_bench_parse(struct wrk_bench_opts *o, int argc, char **argv, struct rc_err *err);
/* "prompt,batch" */
enum rc wrk_bench_only(const char *list, unsigned *out, struct rc_err *err);
const char *wrk_bench_section_name(unsigned section);

/* ------------------------------------------------------------------ arithmetic */

struct wrk_bench_runs {
    double v[WRK_BENCH_RUNS];
    uint32_t n;
};
void wrk_bench_add(struct wrk_bench_runs *r, double v);
/* Of an even number the mean of the two in the middle; 0 of none. */
double wrk_bench_median(const struct wrk_bench_runs *r);
/* (most - least) / median; 0 where the median is 0. */
double wrk_bench_spread(const struct wrk_bench_runs *r);
/* "NAME": median, "NAME_spread", "NAME_runs": [all, in order]. */
void wrk_bench_put(json_t *o, const char *name, const struct wrk_bench_runs *r);

/* ---------------------------------------------------------- the front of an engine */

/* What came of one task; times are of the engine's steps (see wrk_bench_step). */
struct wrk_bench_answer {
    uint64_t task, begun_us, first_us; /* first_us 0 = nothing came yet */
    uint32_t n;                        /* tokens of it, or vectors */
    uint32_t n_cached, n_right, n_wrong;
    uint64_t hash; /* of its tokens */
    bool ended;
    struct rc_err err; /* code RC_OK: ended well */
};

struct wrk_bench_front {
    const struct wrk_loaded *model;
    int fd; /* the front's end */
    struct wrk_chan chan;
    struct wrk_engine *engine;
    uint64_t n_tasks, spent_us, spent_cpu_ns;
    uint32_t n_answers, n_started, n_ended;
    uint64_t n_tokens;                       /* of all answers */
    struct wrk_bench_answer a[WRK_SEQS_MAX]; /* since the last wrk_bench_clear */
    bool spec_rests;                         /* as the engine's last Stats say */
    double spec_gain;
    bool (*stopped)(void); /* somebody presses Ctrl-C; NULL: nobody can */
};

/* fds: of ipc_pair, [0] the worker's end. They stay the caller's. */
enum rc wrk_bench_front_init(struct wrk_bench_front *f, const int fds[2],
                             const struct wrk_loaded *model, struct rc_err *err);
void wrk_bench_front_deinit(struct wrk_bench_front *f);
/* A fresh engine with an empty prompt cache, that guesses (spec_most > 0) with the drafter
 * or from the text. The one before is gone. */
enum rc wrk_bench_engine(struct wrk_bench_front *f, uint32_t spec_most, struct mdl *drafter,
                         struct rc_err *err);
/* As that, without guesses, and prompts are made up in the cache instead of computed, all but
 * their last rows: whoever asks decodes behind a long prompt at once, and learns nothing of it. */
enum rc wrk_bench_engine_filled(struct wrk_bench_front *f, struct rc_err *err);
void wrk_bench_engine_end(struct wrk_bench_front *f);

struct wrk_bench_ask {
    const uint32_t *ids; /* prompt, or one text */
    uint32_t n;
    uint32_t max_tokens; /* all are made: an end token does not end it */
    bool cached;         /* reads and fills the prompt cache */
    float temperature;
};
/* Forgets all answers, which have ended; the next task is a[0]. */
void wrk_bench_clear(struct wrk_bench_front *f);
enum rc wrk_bench_generate(struct wrk_bench_front *f, const struct wrk_bench_ask *q,
                           struct rc_err *err);
/* One task of n texts, each as q says. */
enum rc wrk_bench_embed(struct wrk_bench_front *f, const struct wrk_bench_ask *q, uint32_t n,
                        struct rc_err *err);
/* One step of the engine, and what it sent. Its time is counted in spent_us, that of all
 * threads in spent_cpu_ns; reading the answers is not: in a server another process does it. Errors:
 * RC_CANCELLED, the engine's. */
enum rc wrk_bench_step(struct wrk_bench_front *f, struct rc_err *err);
/* Steps until all answers ended. Errors: as a step, and the first answer's own. */
enum rc wrk_bench_wait(struct wrk_bench_front *f, struct rc_err *err);
/* Cancels what runs and waits for its end. */
enum rc wrk_bench_cancel(struct wrk_bench_front *f, struct rc_err *err);
/* spec_rests and spec_gain, now. */
enum rc wrk_bench_stats(struct wrk_bench_front *f, struct rc_err *err);

/* --------------------------------------------------------------------- sections */

struct wrk_bench {
    struct wrk_bench_opts o;
    struct wrk_loaded model;
    const struct mdl_info *info;
    struct wrk_pages pages; /* for arithmetic: the engine has its own */
    struct wrk_bench_front front;
    uint32_t *ids; /* room for a prompt of the whole context, or a text */
    uint32_t n_ids;
    json_t *out;
};

/* Memory, and numbers nobody gave: defaults, lowered to what the model holds. Errors:
 * RC_INVALID numbers that were given and do not fit, RC_NOMEM. */
enum rc wrk_bench_fit(struct wrk_bench *b, struct rc_err *err);
void wrk_bench_deinit(struct wrk_bench *b);
/* Tokens of the salt-th made-up text, in b->ids. */
void wrk_bench_text(struct wrk_bench *b, uint32_t n, uint32_t salt);
/* Says on stderr what is measured, if asked to. */
void wrk_bench_say(const struct wrk_bench *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* "not_applicable": {SECTION: why} */
void wrk_bench_not(struct wrk_bench *b, unsigned section, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Each writes what it measured into b->out. */
enum rc wrk_bench_prompt(struct wrk_bench *b, struct rc_err *err);
enum rc wrk_bench_decode(struct wrk_bench *b, struct rc_err *err);
enum rc wrk_bench_batch(struct wrk_bench *b, struct rc_err *err);
enum rc wrk_bench_prefix(struct wrk_bench *b, struct rc_err *err);
enum rc wrk_bench_speculation(struct wrk_bench *b, struct rc_err *err);
enum rc wrk_bench_embed_all(struct wrk_bench *b, struct rc_err *err);

#endif
