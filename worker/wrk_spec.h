/* wrk_spec.h - when to guess tokens ahead, how many, and from what.
 *
 * A pass over a token and k drafts tells the k + 1 next tokens if all drafts are right, and
 * costs more than a pass over the token alone. Every row's token is chosen exactly as plain
 * decoding would choose it - its own settings, its own generator, one draw a token - and a
 * draft counts only while it is the token so chosen. For drafts that are no random
 * variables this is the rejection sampling of Leviathan et al. 2023 (accept with
 * probability p(draft), else draw from the rest), and stronger: the answer is plain
 * decoding's, byte for byte, at any temperature.
 *
 * Here is the arithmetic around it: a running mean of what a token costs with and without
 * drafts, by how many sequences decode, decides whether they pay; while they do not, they
 * are tried again in one pass of WRK_SPEC_PROBE. No clock, no model.
 * Page: docs/speculation.md. Tests: tests/worker/test_wrk_spec.c
 */
#ifndef INFERD_WRK_SPEC_H
#define INFERD_WRK_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "wrk_radix.h"

#define WRK_SPEC_MOST 8u     /* drafts of one sequence in a pass */
#define WRK_SPEC_ROWS 16u    /* drafts of all sequences in a pass */
#define WRK_SPEC_REACH 4096u /* tokens back that a lookup goes */
#define WRK_SPEC_TRIAL 6u    /* passes of each kind before one is preferred */
#define WRK_SPEC_PROBE 64u   /* one pass in so many is of the kind not preferred */
#define WRK_SPEC_CLASSES 5u  /* 1, 2-3, 4-7, 8-15, 16 and more sequences */

enum wrk_spec_mode { /* in force; Budgets.speculation also has 0 = auto */
                     WRK_SPEC_OFF = 1,
                     WRK_SPEC_LOOKUP = 2, /* what followed the same tokens before */
                     WRK_SPEC_MTP = 3,    /* the model's own drafter */
};

/* Rows of logits a pass of max_seqs sequences may want. */
static inline uint32_t wrk_spec_rows(uint32_t max_seqs)
{
    return max_seqs + WRK_SPEC_ROWS;
}

struct wrk_spec {
    enum wrk_spec_mode mode;
    uint32_t most; /* drafts of one sequence, 1..WRK_SPEC_MOST */
    struct wrk_spec_meter {
        double plain_us, spec_us; /* a token of one sequence, without and with drafts */
        uint32_t n_plain, n_spec, tick;
    } meter[WRK_SPEC_CLASSES];
    uint32_t last_class;
    uint64_t n_passes, n_drafted, n_accepted;
};

/* Drafts each of n decoding sequences may have in the coming pass; 0 = plain. */
uint32_t wrk_spec_want(struct wrk_spec *s, uint32_t n);
/* A pass without prompts took us, its drafting included; n sequences got n_tokens. */
void wrk_spec_pass(struct wrk_spec *s, uint64_t us, uint32_t n, uint32_t n_drafted,
                   uint32_t n_tokens);
/* Is drafting off where decoding happened last, and what a plain token costs over a drafted
 * one there (1 = the same; 0 = not known yet). */
bool wrk_spec_rests(const struct wrk_spec *s);
double wrk_spec_gain(const struct wrk_spec *s);
/* The next number for a sequence that had n drafts and got n_ok of them right. */
uint32_t wrk_spec_next(uint32_t n, uint32_t n_ok);

/* Up to k tokens that followed the last place where the n tokens of a text ended alike:
 * on three tokens, else on two. Returns how many. */
uint32_t wrk_spec_lookup(const struct wrk_text *t, uint32_t n, uint32_t k, int32_t *out);

#endif
