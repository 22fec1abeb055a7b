/* wrk_sample.h - from a row of logits to one token, and log-probabilities.
 *
 * Order: logit_bias; repetition, then frequency and presence penalties; a grammar's mask;
 * greedy if
 * temperature is 0, else temperature, top_k, top_p, min_p, typical_p, and one draw. The draw
 * walks the kept tokens in order of their id, so the result depends on the row,
 * the settings and the generator alone - never on the batch. Ties in top_k and
 * top_p go to the lower id. Log-probabilities are of the raw row: before bias,
 * penalties and temperature, over the whole vocabulary.
 * No allocation after wrk_sampler_init / wrk_counts_init; one thread per sampler.
 * Tests: tests/worker/test_wrk_sample.c
 */
#ifndef INFERD_WRK_SAMPLE_H
#define INFERD_WRK_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "wrk_gr.h"

#define WRK_TOP_MAX 64
#define WRK_BIAS_MAX 1024

struct wrk_bias {
    uint32_t token;
    float bias;
};
/* Checked settings of one request. */
struct wrk_sampling {
    float temperature;        /* 0 = greedy */
    uint32_t top_k;           /* 0 = off */
    float top_p;              /* (0, 1); 1 = off */
    float min_p;              /* [0, 1]; 0 = off */
    float typical_p;          /* (0, 1); 1 = off */
    float repetition_penalty; /* > 0; 1 = off */
    float frequency_penalty, presence_penalty;
    uint64_t seed;
    struct wrk_bias *bias;
    uint32_t n_bias;
};
bool wrk_sampling_has_penalty(const struct wrk_sampling *s);

/* xoshiro256**, seeded with splitmix64. Source: Blackman & Vigna 2021. */
struct wrk_rng {
    uint64_t s[4];
};
void wrk_rng_seed(struct wrk_rng *r, uint64_t seed);
double wrk_rng_unit(struct wrk_rng *r); /* [0, 1), 53 bits */

/* How often a choice has seen each token; only for requests with penalties. */
struct wrk_counts {
    struct wrk_count {
        int32_t token;      /* -1 = free */
        uint32_t generated; /* times generated; 0 = only in the prompt */
    } * slot;
    uint32_t cap, n; /* cap: a power of two; n: used slots */
};
/* Room for max_distinct tokens. Errors: RC_NOMEM. */
enum rc wrk_counts_init(struct wrk_counts *c, uint32_t max_distinct, struct rc_err *err);
void wrk_counts_deinit(struct wrk_counts *c);
void wrk_counts_add(struct wrk_counts *c, int32_t token, bool generated);

/* Scratch for one vocabulary, shared by all sequences of a worker. */
struct wrk_sampler {
    uint32_t n_vocab, n_row;
    float *row;     /* adjusted logits, then weights: n_row of them */
    uint32_t *cand; /* candidates, by id */
    float *part;    /* their weights, for selection */
};
enum rc wrk_sampler_init(struct wrk_sampler *s, uint32_t n_vocab, struct rc_err *err);
void wrk_sampler_deinit(struct wrk_sampler *s);

/* counts may be NULL when no penalty is set. Errors: RC_INTERNAL: the row holds a
 * value that is not finite. */
enum rc wrk_sample(struct wrk_sampler *s, const float *logits, const struct wrk_sampling *p,
                   const struct wrk_counts *counts, struct wrk_rng *rng, int32_t *out,
                   struct rc_err *err);
/* The same among the tokens a grammar allows (at least one): as if the others' logits were
 * minus infinity. mask NULL: all. */
enum rc wrk_sample_allowed(struct wrk_sampler *s, const float *logits, const struct wrk_sampling *p,
                           const struct wrk_counts *counts, const struct wrk_gr_mask *mask,
                           struct wrk_rng *rng, int32_t *out, struct rc_err *err);

struct wrk_top {
    int32_t token;
    float logprob;
};
/* ln p of token, and of the n_top likeliest (ties: lower id first) in descending
 * order. Errors: RC_INTERNAL as above. */
enum rc wrk_logprobs(const struct wrk_sampler *s, const float *logits, int32_t token,
                     uint32_t n_top, float *out_logprob, struct wrk_top *out_top,
                     struct rc_err *err);

#endif
