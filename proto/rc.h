/* rc.h - status codes and the error that travels with them.
 *
 * One table holds name, wire value and text, so the three cannot drift. The
 * values cross process borders in ipc Error frames: never renumber, only add.
 * The supervisor alone maps codes to HTTP (supervisor/api/sup_status.c).
 *
 * Convention everywhere: a call that can fail returns enum rc and takes
 * struct rc_err *err last, which may be NULL. Who detects fills it with rc_fail;
 * who passes it on may add where with rc_wrap. Outputs are written on success
 * only. Tests: tests/proto/test_rc.c
 */
#ifndef INFERD_RC_H
#define INFERD_RC_H

#include <stdarg.h>
#include <stdint.h>

#define RC_MAP(X)                                                              \
    X(OK, 0, "ok")                                                             \
    X(INVALID, 1, "invalid argument")                                          \
    X(FORMAT, 2, "malformed model file")                                       \
    X(UNSUPPORTED, 3, "not supported")                                         \
    X(NOMEM, 4, "out of memory")                                               \
    X(IO, 5, "input/output error")                                             \
    X(NOT_FOUND, 6, "not found")                                               \
    X(TOO_LARGE, 7, "over a fixed limit")                                      \
    X(LIMIT, 8, "can never fit the configured resources")                      \
    X(BUSY, 9, "resources busy, try again later")                              \
    X(CANCELLED, 10, "cancelled by the caller")                                \
    X(DEADLINE, 11, "deadline passed")                                         \
    X(WEIGHT_ABSENT, 12, "weight missing from the checkpoint")                 \
    X(WEIGHT_IO, 13, "weight could not be read")                               \
    X(UNLOADING, 14, "model is being unloaded")                                \
    X(STATE, 15, "not legal in this state")                                    \
    X(CRASHED, 16, "worker died")                                              \
    X(POISONED, 17, "request was present at repeated worker deaths")           \
    X(INTERNAL, 18, "internal error")                                          \
    X(CONFLICT, 19, "conflicts with the current state")                        \
    X(CLOSED, 20, "peer closed the channel")                                   \
    X(AGAIN, 21, "no data yet")

enum rc {
#define X(name, value, text) RC_##name = value,
    RC_MAP(X)
#undef X
};

/* msg: a full sentence for people (thing, value, expectation), valid UTF-8.
 * what: machine-readable subject - a tensor, field or file name - or "".
 * n, limit: the count seen and the bound it broke, 0 when not about a bound.
 * item: 0-based index of the failing input of a batch, -1 when none.
 * stage: where that input failed, a constant (ipc_stage), NULL when not said. */
struct rc_err {
    enum rc code;
    int32_t item;
    uint64_t n, limit;
    const char *stage;
    char what[128];
    char msg[512];
};

#define RC_ERR_INIT ((struct rc_err){ .item = -1 })

/* "OK", "INVALID", ...; "UNKNOWN" for a value outside the table. */
const char *rc_name(enum rc code);
/* The table's text; never NULL. */
const char *rc_text(enum rc code);
/* The code for a wire value; RC_INTERNAL for an unknown one. */
enum rc rc_from_wire(uint32_t value);

/* Fills err (when not NULL) with code and the formatted message; clears what, n,
 * limit and sets item to -1. Long messages are cut at a UTF-8 boundary.
 * Returns code. */
enum rc rc_fail(struct rc_err *err, enum rc code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, and names the subject (field, tensor, file). */
enum rc rc_fail_what(struct rc_err *err, enum rc code, const char *what,
                     const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds the numbers of a bound that was broken to what rc_fail or rc_fail_what, in the place of
 * code, has just filled. Returns code. */
enum rc rc_bound(enum rc code, uint64_t n, uint64_t limit, struct rc_err *err);
/* Puts "prefix: " in front of the message. err may be NULL. */
void rc_wrap(struct rc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
