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

bool sup_deaths_forgiven(uint64_t ready_ms, uint64_t n_answered)
{
    return ready_ms >= SUP_ALIVE_RESETS_MS || n_answered >= SUP_ANSWERS_RESET;
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

/* ---------------------------------------------------------------- eviction */

static uint64_t within(uint64_t v, uint64_t least, uint64_t most)
{
    return v < least ? least : v > most ? most : v;
}

bool sup_shortage_none(const struct sup_shortage *s)
{
    for (int t = 0; t < SUP_TIERS; t++)
        if (s->bytes[t])
            return false;
    return s->workers == 0;
}

bool sup_evictable(const struct sup_resident *r)
{
    uint64_t stay = r->load_ms < SUP_STAY_MAX_MS ? r->load_ms * SUP_STAY_LOADS : SUP_STAY_MAX_MS;

    return r->idle && !r->pinned &&
           (r->age_ms >= within(stay, SUP_STAY_MIN_MS, SUP_STAY_MAX_MS) ||
            r->idle_ms >= within(r->load_ms, SUP_CALM_MIN_MS, SUP_CALM_MAX_MS));
}

/* How much of what is missing r would give: 0 = nothing, 1 = all of it. */
static double helps(const struct sup_resident *r, const struct sup_shortage *s)
{
    double most = s->workers ? 1.0 / (double)s->workers : 0;

    for (int t = 0; t < SUP_TIERS; t++) {
        double part = s->bytes[t] ? (double)r->bytes[t] / (double)s->bytes[t] : 0;

        part = part > 1 ? 1 : part;
        most = part > most ? part : most;
    }
    return most;
}

/* What losing it costs, for each part of the need it meets: the time to load it again,
 * weighed by how likely it is to be asked for soon. 50 ms: no load is free. */
static double loss(const struct sup_resident *r, const struct sup_shortage *s)
{
    return ((double)r->load_ms + 50) / (((double)r->idle_ms + 1000) * helps(r, s));
}

static void give(struct sup_shortage *s, const struct sup_resident *r)
{
    for (int t = 0; t < SUP_TIERS; t++)
        s->bytes[t] -= r->bytes[t] < s->bytes[t] ? r->bytes[t] : s->bytes[t];
    s->workers -= s->workers > 0;
}

static size_t cheapest(const struct sup_resident *r, size_t n, const struct sup_shortage *left,
                       const bool *out)
{
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < n; i++)
        if (!out[i] && sup_evictable(&r[i]) && helps(&r[i], left) > 0 &&
            (best == SIZE_MAX || loss(&r[i], left) < loss(&r[best], left)))
            best = i;
    return best;
}

/* Is the rest enough without i? */
static bool spare(const struct sup_resident *r, size_t n, const struct sup_shortage *s,
                  const bool *out, size_t i)
{
    struct sup_shortage left = *s;

    for (size_t k = 0; k < n; k++)
        if (out[k] && k != i)
            give(&left, &r[k]);
    return sup_shortage_none(&left);
}

size_t sup_evict_plan(const struct sup_resident *r, size_t n, const struct sup_shortage *s,
                      bool *out)
{
    struct sup_shortage left = *s;
    size_t n_out = 0, pick;

    for (size_t i = 0; i < n; i++)
        out[i] = false;
    while (!sup_shortage_none(&left) && (pick = cheapest(r, n, &left, out)) != SIZE_MAX) {
        out[pick] = true;
        n_out++;
        give(&left, &r[pick]);
    }
    if (!sup_shortage_none(&left)) {
        for (size_t i = 0; i < n; i++)
            out[i] = false;
        return 0;
    }
    for (size_t i = 0; i < n; i++) /* a large one may have made small ones needless */
        if (out[i] && spare(r, n, s, out, i)) {
            out[i] = false;
            n_out--;
        }
    return n_out;
}

uint64_t sup_keep_ms(bool pinned, uint64_t asked_ms, uint64_t server_s)
{
    if (pinned)
        return UINT64_MAX;
    if (asked_ms != UINT64_MAX)
        return asked_ms;
    return server_s ? server_s * 1000 : UINT64_MAX;
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

uint32_t sup_window_all(uint32_t max_seqs)
{
    return 2 * (sup_window_seqs(max_seqs).tasks + sup_window_pass(0).tasks +
                sup_window_text().tasks);
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

/* -------------------------------------------------------------------- pace */

void sup_pace_begin(struct sup_pace *p, uint64_t now_ms)
{
    p->last_ms = now_ms;
}

void sup_pace_end(struct sup_pace *p, uint64_t now_ms)
{
    double took = now_ms > p->last_ms ? (double)(now_ms - p->last_ms) : 0;

    p->last_ms = now_ms;
    p->every_ms = p->every_ms > 0 ? p->every_ms + (took - p->every_ms) / 8 : took;
}

uint32_t sup_pace_again_ms(const struct sup_pace *p, uint32_t n)
{
    double ms = p->every_ms * (double)n / 2;

    if (ms >= SUP_AGAIN_MAX_MS)
        return SUP_AGAIN_MAX_MS;
    return ms <= SUP_AGAIN_MIN_MS ? SUP_AGAIN_MIN_MS : (uint32_t)ms;
}
