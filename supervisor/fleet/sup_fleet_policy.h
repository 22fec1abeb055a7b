/* sup_fleet_policy.h - when, whom and how long: the fleet's decisions as pure
 * functions of numbers. No clocks, no processes, no memory.
 * Tests: tests/supervisor/test_sup_fleet_policy.c
 */
#ifndef INFERD_SUP_FLEET_POLICY_H
#define INFERD_SUP_FLEET_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rc.h"
#include "sup_ledger.h"

/* ------------------------------------------------------------------ states */

#define SUP_SLOT_STATES(X)  \
    X(ABSENT, "absent")     \
    X(STARTING, "starting") \
    X(LOADING, "loading")   \
    X(READY, "ready")       \
    X(BUSY, "busy")         \
    X(DRAINING, "draining") \
    X(COOLING, "cooling")   \
    X(FAILED, "failed")

enum sup_slot_state {
#define X(name, word) SUP_SLOT_##name,
    SUP_SLOT_STATES(X)
#undef X
        SUP_SLOT_N
};

const char *sup_slot_state_name(enum sup_slot_state s);
bool sup_slot_edge_legal(enum sup_slot_state from, enum sup_slot_state to);

/* ---------------------------------------------------------------- back-off */

/* Deaths in a row are a crash loop only if little came of the lives between them: a worker that
 * lived this long, or answered so many requests, forgives those before it. */
#define SUP_ALIVE_RESETS_MS 60000
#define SUP_ANSWERS_RESET 8
bool sup_deaths_forgiven(uint64_t ready_ms, uint64_t n_answered);
#define SUP_WAIT_SHORT_MS 2000 /* tasks wait out a back-off up to this long */

/* streak >= 1: 100 ms, doubling to 30 s. */
uint64_t sup_death_backoff_ms(unsigned streak);
/* failures >= 1: 1 s, doubling to 30 s. */
uint64_t sup_load_backoff_ms(unsigned failures);
/* A load that failed so is tried again only when the files change or on request. */
bool sup_load_permanent(enum rc code);

/* ---------------------------------------------------------------- eviction */

/* A model that was just loaded stays until its load has paid off: for SUP_STAY_LOADS times what
 * the load took. It may go earlier once it has been idle for as long as its load took: then
 * waiting on costs more than loading it again would. So two models that take turns change
 * places at most a fifth of the time, and one that nobody asks for is not waited for. */
#define SUP_STAY_LOADS 4
#define SUP_STAY_MIN_MS 1000
#define SUP_STAY_MAX_MS 8000 /* below FLEET_ROOM_WAIT_MS: who waits gets its turn */
#define SUP_CALM_MIN_MS 100
#define SUP_CALM_MAX_MS 2000

struct sup_resident {
    bool idle;        /* ready, no task, nobody waits for it */
    bool pinned;      /* stays in any case */
    uint64_t idle_ms; /* since a task ended or it became ready */
    uint64_t age_ms;  /* since it became ready */
    uint64_t load_ms; /* what its load took */
    uint64_t bytes[SUP_TIERS];
};
struct sup_shortage { /* what a load lacks, after those on their way out have gone */
    uint64_t bytes[SUP_TIERS];
    size_t workers;
};
bool sup_shortage_none(const struct sup_shortage *s);
/* May it go now for another? */
bool sup_evictable(const struct sup_resident *r);
/* Chooses whom to evict: out[i] for each of n. Those go first whose loss costs least: a short
 * load, long idle, much freed. The number chosen; 0 when all that may go are not enough: then
 * none goes. */
size_t sup_evict_plan(const struct sup_resident *r, size_t n, const struct sup_shortage *s,
                      bool *out);

/* When an idle model is unloaded, ms after its last task; UINT64_MAX = never. asked_ms: of its
 * last request (UINT64_MAX = it said nothing). */
uint64_t sup_keep_ms(bool pinned, uint64_t asked_ms, uint64_t server_s);

/* ------------------------------------------------------------------ poison
 *
 * Who killed the worker cannot be seen, only who was there. The rule:
 *  1. A task that had delivered something ends with CRASHED.
 *  2. Any other becomes a suspect and is tried again - suspects go first, one at a
 *     time: the next is sent when the one before has delivered its first frame or
 *     ended; ordinary tasks wait until no suspect is left.
 *  3. A suspect that sees a second death alone in the worker is convicted:
 *     POISONED. If others were still streaming beside it, it is tried once more in
 *     an empty worker, and a third death convicts it in any case.
 * So an innocent neighbour is never convicted, and nobody is run more than three
 * times. */
enum sup_verdict { SUP_RETRY, SUP_CRASHED, SUP_POISONED };

struct sup_presence {
    bool delivered;  /* its reader may have something of its answer */
    unsigned deaths; /* seen before this one */
    bool alone;      /* no other task in the worker */
};
enum sup_verdict sup_poison_judge(const struct sup_presence *p);

enum sup_turn { SUP_TURN_WAIT, SUP_TURN_SUSPECT, SUP_TURN_ALL };
/* What may be sent now. n_sent: tasks in the worker; trial: one of them is a
 * suspect that has delivered nothing; n_suspects waiting; deaths of the first. */
enum sup_turn sup_poison_turn(size_t n_sent, bool trial, size_t n_suspects, unsigned first_deaths);

/* -------------------------------------------------------------------- pace
 *
 * When a refused request should come again: the queue's own speed says it. A queue that is full
 * of n ends one task every so often; by the time told, half of what is in it has ended. */
struct sup_pace {     /* zeros at first */
    uint64_t last_ms; /* the last end, or when the queue was last empty */
    double every_ms;  /* between ends while there was work, a mean that forgets; 0 = not known */
};
#define SUP_AGAIN_MIN_MS 1000
#define SUP_AGAIN_MAX_MS 60000
/* A queue that was empty has a task. */
void sup_pace_begin(struct sup_pace *p, uint64_t now_ms);
/* A task was answered. */
void sup_pace_end(struct sup_pace *p, uint64_t now_ms);
/* From SUP_AGAIN_MIN_MS to SUP_AGAIN_MAX_MS. */
uint32_t sup_pace_again_ms(const struct sup_pace *p, uint32_t n);

/* ----------------------------------------------------------------- windows
 *
 * How much of one kind of work is in a worker at once. Units: sequences, or tokens. A task
 * counts as at most `each`, so that a large one does not shut the door behind it. */
struct sup_window {
    uint32_t tasks;
    uint64_t units;
};
struct sup_window_most {
    uint32_t tasks;       /* never more */
    uint32_t least, own;  /* so many tasks always, and of one tenant */
    uint64_t units, each; /* each <= units */
};
/* Sequences: those that decode together and a few that are tokenized meanwhile. */
struct sup_window_most sup_window_seqs(uint32_t max_seqs);
/* Encoders: tokens of the pass that runs and of the next. */
struct sup_window_most sup_window_pass(uint64_t tokens);
struct sup_window_most sup_window_text(void);
/* Tasks a worker may hold: twice what the three let in together, for what was just cancelled may
 * still be there. */
uint32_t sup_window_all(uint32_t max_seqs);
/* May a task of so many units go, of a tenant that has `own` in the worker? */
bool sup_window_fits(const struct sup_window *out, uint64_t units, size_t own,
                     const struct sup_window_most *most);

#endif
