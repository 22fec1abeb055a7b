/* sup_fleet_policy.c - the decisions; see the header for the rules.
 * Knows nothing of libuv, processes or messages. Change freely: the numbers.
 * Tests: tests/supervisor/test_sup_fleet_policy.c */
#include "sup_fleet_policy.h"

static const char *const state_words[] = {
#define X(name, word) word,
    SUP_SLOT_STATES(X)
#undef X
};

const char *sup_slot_state_name(enum sup_slot_state s)
{
    return (unsigned)s < SUP_SLOT_N ? state_words[s] : "unknown";
}

#define B(name) (1u << SUP_SLOT_##name)

/* from -> set of states that may follow. DRAINING never leads back to READY: a
 * draining worker is not resurrected. */
static const unsigned edges[SUP_SLOT_N] = {
    [SUP_SLOT_ABSENT] = B(STARTING) | B(FAILED),
    [SUP_SLOT_STARTING] = B(LOADING) | B(DRAINING) | B(COOLING) | B(FAILED),
    [SUP_SLOT_LOADING] = B(READY) | B(DRAINING) | B(COOLING) | B(FAILED),
    [SUP_SLOT_READY] = B(BUSY) | B(DRAINING) | B(COOLING),
    [SUP_SLOT_BUSY] = B(READY) | B(DRAINING) | B(COOLING),
    [SUP_SLOT_DRAINING] = B(ABSENT) | B(COOLING),
    [SUP_SLOT_COOLING] = B(STARTING) | B(ABSENT) | B(FAILED),
    [SUP_SLOT_FAILED] = B(STARTING) | B(ABSENT),
};

bool sup_slot_edge_legal(enum sup_slot_state from, enum sup_slot_state to)
{
    return (unsigned)from < SUP_SLOT_N && (unsigned)to < SUP_SLOT_N && (edges[from] >> to & 1);
}

static uint64_t doubled(uint64_t base, unsigned n, uint64_t cap)
{
    if (n == 0)
        return 0;
    for (unsigned i = 1; i < n && base < cap; i++)
        base *= 2;
    return base < cap ? base : cap;
}

uint64_t sup_death_backoff_ms(unsigned streak)
{
    return doubled(100, streak, 30000);
}

uint64_t sup_load_backoff_ms(unsigned failures)
{
    return doubled(1000, failures, 30000);
}

bool sup_load_permanent(enum rc code)
{
    switch (code) {
    case RC_INVALID:
    case RC_FORMAT:
    case RC_UNSUPPORTED:
    case RC_TOO_LARGE:
    case RC_LIMIT:
    case RC_NOT_FOUND:
    case RC_WEIGHT_ABSENT:
    case RC_STATE:
    case RC_CONFLICT:
        return true;
    default:
        return false;
    }
}

size_t sup_evict_choose(const struct sup_resident *r, size_t n)
{
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < n; i++)
        if (r[i].idle && (best == SIZE_MAX || r[i].used_ms < r[best].used_ms))
            best = i;
    return best;
}

enum sup_verdict sup_poison_judge(const struct sup_presence *p)
{
    if (p->delivered)
        return SUP_CRASHED;
    if (p->deaths == 0)
        return SUP_RETRY;
    return p->alone || p->deaths >= 2 ? SUP_POISONED : SUP_RETRY;
}

enum sup_turn sup_poison_turn(size_t n_sent, bool trial, size_t n_suspects, unsigned first_deaths)
{
    if (trial)
        return SUP_TURN_WAIT;
    if (n_suspects == 0)
        return SUP_TURN_ALL;
    return first_deaths >= 2 && n_sent > 0 ? SUP_TURN_WAIT : SUP_TURN_SUSPECT;
}

#define TASKS_OUT 256 /* in a worker, of one kind */

struct sup_window_most sup_window_seqs(uint32_t max_seqs)
{
    uint32_t ahead = 1 + max_seqs / 8;

    return (struct sup_window_most){.tasks = TASKS_OUT + max_seqs,
                                    .units = (uint64_t)max_seqs + ahead,
                                    .each = max_seqs > 1 ? max_seqs / 2 : 1};
}

struct sup_window_most sup_window_pass(uint64_t tokens)
{
    return (struct sup_window_most){
        .tasks = TASKS_OUT, .least = 16, .own = 2, .units = tokens, .each = tokens / 4};
}

struct sup_window_most sup_window_text(void)
{
    return (struct sup_window_most){
        .tasks = 64, .least = 16, .own = 2, .units = 65536, .each = 16384};
}

bool sup_window_fits(const struct sup_window *out, uint64_t units, size_t own,
                     const struct sup_window_most *most)
{
    if (out->tasks >= most->tasks)
        return false;
    if (out->tasks < most->least || own < most->own)
        return true;
    return out->units + (units < most->each ? units : most->each) <= most->units;
}
