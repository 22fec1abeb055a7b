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

#define SUP_ALIVE_RESETS_MS 60000 /* a worker this old forgives earlier deaths */
#define SUP_WAIT_SHORT_MS 2000    /* tasks wait out a back-off up to this long */

/* streak >= 1: 100 ms, doubling to 30 s. */
uint64_t sup_death_backoff_ms(unsigned streak);
/* failures >= 1: 1 s, doubling to 30 s. */
uint64_t sup_load_backoff_ms(unsigned failures);
/* A load that failed so is tried again only when the files change or on request. */
bool sup_load_permanent(enum rc code);

/* ---------------------------------------------------------------- eviction */

struct sup_resident {
    bool idle;        /* ready, no task, nobody waits for it */
    uint64_t used_ms; /* last time a task ended or it became ready */
};
/* The longest idle one, or SIZE_MAX. Busy, loading and draining ones are never
 * chosen. */
size_t sup_evict_choose(const struct sup_resident *r, size_t n);

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
    bool delivered;  /* a frame of its answer has arrived */
    unsigned deaths; /* seen before this one */
    bool alone;      /* no other task in the worker */
};
enum sup_verdict sup_poison_judge(const struct sup_presence *p);

enum sup_turn { SUP_TURN_WAIT, SUP_TURN_SUSPECT, SUP_TURN_ALL };
/* What may be sent now. n_sent: tasks in the worker; trial: one of them is a
 * suspect that has delivered nothing; n_suspects waiting; deaths of the first. */
enum sup_turn sup_poison_turn(size_t n_sent, bool trial, size_t n_suspects, unsigned first_deaths);

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
/* May a task of so many units go, of a tenant that has `own` in the worker? */
bool sup_window_fits(const struct sup_window *out, uint64_t units, size_t own,
                     const struct sup_window_most *most);

#endif
