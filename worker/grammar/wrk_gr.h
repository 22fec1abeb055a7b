/* wrk_gr.h - answers that obey a grammar.
 *
 * A JSON Schema, a GBNF text or a regular expression is compiled once into a program:
 * rules that are automata over bytes and call each other. A run is where one answer
 * stands in it: a set of stacks. Its mask says which tokens of the vocabulary may come
 * next; masks and programs are cached and shared by all runs of the same grammar.
 *
 * Always true: every token a mask allows leaves a run that can still be completed by
 * some bytes; the mask of a run depends on the grammar, the vocabulary and the tokens
 * accepted, never on what was cached or on other runs; every table is bounded, and
 * what does not fit is refused when compiled or, while running, takes choices away,
 * never adds one. Knows nothing of models, requests or sampling. One thread per store.
 * Page: docs/structured-output.md. Tests: tests/worker/test_wrk_gr*.c, fuzz_gr_*.c
 */
#ifndef INFERD_WRK_GR_H
#define INFERD_WRK_GR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"

/* ------------------------------------------------------------------ grammars */

enum wrk_gr_kind { /* wire values: Generate.grammar_kind */
                   WRK_GR_NONE = 0,
                   WRK_GR_JSON = 1,   /* any JSON object; the text is empty */
                   WRK_GR_SCHEMA = 2, /* JSON Schema */
                   WRK_GR_GBNF = 3,
                   WRK_GR_REGEX = 4, /* the whole answer matches */
                   WRK_GR_TALK = 5,  /* thoughts, calls of tools, one of the others
                                        (wrk_gr_talk.c): the worker asks for it */
};

#define WRK_GR_TEXT_MAX (1u << 20) /* bytes of one grammar */

struct wrk_gr_prog;
/* Cost is bounded in steps, memory and nesting, whatever the text. Errors: RC_INVALID
 * (malformed: says where), RC_UNSUPPORTED (a keyword or construct, by name),
 * RC_TOO_LARGE (a limit, with its value), RC_NOMEM. what: the API's field. */
enum rc wrk_gr_compile(struct wrk_gr_prog **out, enum wrk_gr_kind kind, const char *text,
                       size_t n_bytes, struct rc_err *err);
void wrk_gr_prog_free(struct wrk_gr_prog **p);
size_t wrk_gr_prog_bytes(const struct wrk_gr_prog *p);

/* ---------------------------------------------------------------- vocabulary */

struct wrk_gr_vocab;
/* bytes(user, id) gives what token id adds to the text (n 0: never allowed: a special
 * or unused id), borrowed until the next call. eos: ids that end an answer. Costs some
 * 12 bytes per node of the trie. Errors: RC_NOMEM. */
enum rc wrk_gr_vocab_new(struct wrk_gr_vocab **out, uint32_t n_vocab,
                         const char *(*bytes)(void *user, int32_t id, size_t *n), void *user,
                         const int32_t *eos, size_t n_eos, struct rc_err *err);
void wrk_gr_vocab_free(struct wrk_gr_vocab **v);
size_t wrk_gr_vocab_bytes(const struct wrk_gr_vocab *v);

/* --------------------------------------------------------------------- masks */

/* Which tokens may come next: their ids, ascending, or a bit for each of the
 * vocabulary (bit id % 64 of word id / 64) when they are many. */
struct wrk_gr_mask {
    uint32_t n; /* tokens allowed */
    const uint32_t *ids;
    const uint64_t *bits; /* one of the two is NULL */
    bool cut;             /* tokens may be missing: a bound was met (wrk_gr_stats.masks_cut) */
};

/* --------------------------------------------------------------------- store */

/* Programs, masks and scratch of one model. */
struct wrk_gr_store;
struct wrk_gr_stats {
    uint64_t compiled, compile_us, refused; /* grammars */
    uint64_t prog_hits;                     /* grammar was compiled already */
    uint64_t mask_hits, mask_misses, mask_us, masks_cut;
    uint64_t bytes; /* of programs, masks and the vocabulary, now */
};
#define WRK_GR_PROGS_BYTES (32u << 20) /* programs kept that nobody runs */
#define WRK_GR_USED_BYTES (128u << 20) /* programs in all: beyond, RC_BUSY */
#define WRK_GR_MASKS_BYTES (32u << 20) /* masks kept */

enum rc wrk_gr_store_new(struct wrk_gr_store **out, struct rc_err *err);
void wrk_gr_store_free(struct wrk_gr_store **s); /* after its runs and holders */
/* Borrowed; once, before the first run. */
enum rc wrk_gr_store_vocab(struct wrk_gr_store *s, const struct wrk_gr_vocab *v,
                           struct rc_err *err);
struct wrk_gr_stats wrk_gr_stats_get(const struct wrk_gr_store *s);

/* One user of a compiled grammar. Errors: those of wrk_gr_compile; RC_BUSY. */
struct wrk_gr_held;
enum rc wrk_gr_hold(struct wrk_gr_store *s, struct wrk_gr_held **out, enum wrk_gr_kind kind,
                    const char *text, size_t n_bytes, struct rc_err *err);
void wrk_gr_release(struct wrk_gr_store *s, struct wrk_gr_held **h);

/* ---------------------------------------------------------------------- runs */

/* Where one answer stands. Zeroed is a valid argument to deinit. */
struct wrk_gr_run {
    struct wrk_gr_store *store;
    struct wrk_gr_held *held; /* borrowed; NULL: no grammar */
    uint32_t *at;             /* the set of stacks, flat (wrk_gr_mach.c) */
    uint32_t n_at, cap_at;
    struct wrk_gr_entry *mask; /* of this place, once prepared */
};
enum rc wrk_gr_run_init(struct wrk_gr_run *r, struct wrk_gr_store *s, struct wrk_gr_held *h,
                        struct rc_err *err);
/* The same place in another run (a draft is tried on a copy). */
enum rc wrk_gr_run_copy(struct wrk_gr_run *to, const struct wrk_gr_run *from, struct rc_err *err);
void wrk_gr_run_deinit(struct wrk_gr_run *r);

/* Finds or computes the mask, so that wrk_gr_run_mask is a look. */
enum rc wrk_gr_run_prepare(struct wrk_gr_run *r, struct rc_err *err);
/* Valid until the run moves. Errors: RC_UNSUPPORTED: no token of this vocabulary goes
 * on; RC_NOMEM. */
enum rc wrk_gr_run_mask(struct wrk_gr_run *r, struct wrk_gr_mask *out, struct rc_err *err);
/* Moves behind a token's text. Errors: RC_INVALID: the grammar does not allow it. */
enum rc wrk_gr_run_accept(struct wrk_gr_run *r, int32_t token, struct rc_err *err);
enum rc wrk_gr_run_accept_bytes(struct wrk_gr_run *r, const void *bytes, size_t n,
                                struct rc_err *err);
bool wrk_gr_run_may_end(const struct wrk_gr_run *r);  /* a complete answer stands here */
bool wrk_gr_run_must_end(const struct wrk_gr_run *r); /* and nothing can follow */

#endif
