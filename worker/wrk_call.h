/* wrk_call.h - one call of a tool, read while it is written: Gemma 4's syntax to JSON.
 *
 * Bytes come in as the model writes them, cut anywhere between characters; the name is
 * told as soon as it is known, and the arguments piece by piece, each whole characters.
 * Always true: what was told is the beginning of one JSON object and never all of it
 * before wrk_call_end has said that this is a call, so arguments that do not parse are
 * of no call. Allocates nothing. Private to wrk_parse.c.
 */
#ifndef INFERD_WRK_CALL_H
#define INFERD_WRK_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WRK_CALL_JSON (512u << 10) /* bytes of its arguments as JSON */
#define WRK_CALL_NAME 64u          /* bytes of a name: letters, digits, _ . - */
#define WRK_CALL_DEPTH \
    256u /* at least what a grammar of calls writes: objects and lists inside each other */

struct wrk_call {
    enum wrk_call_state {
        WRK_CALL_HEAD,      /* call:NAME{ */
        WRK_CALL_FIRST_KEY, /* or the object's end */
        WRK_CALL_KEY,
        WRK_CALL_IN_KEY,
        WRK_CALL_IN_QUOTED_KEY,
        WRK_CALL_COLON,
        WRK_CALL_FIRST_ITEM, /* or the list's end */
        WRK_CALL_VALUE,
        WRK_CALL_IN_STRING,
        WRK_CALL_IN_WORD, /* a number, true, false, null */
        WRK_CALL_NEXT,    /* a comma or an end */
        WRK_CALL_DONE,
    } state;
    uint32_t n_open; /* objects and lists that are open, the arguments' own first */
    uint8_t list[WRK_CALL_DEPTH / 8]; /* a bit each: it is a list */
    size_t at;                        /* bytes read */
    size_t from;                      /* where the word, or blanks inside a key, begin */
    bool blanks;                      /* of a key: told if it goes on behind them */
    size_t n_name, n_json;            /* n_json: told */
};

struct wrk_call_out {
    void *user;
    bool (*begin)(void *user, const char *name, size_t n); /* false: it shall be no call */
    void (*args)(void *user, const char *s, size_t n);
};

/* c is zeroed where a call begins. raw: all its bytes so far, n of them, behind its mark;
 * quotes are the byte of their mark (wrk_parse.h). false: it is malformed, or over a limit. */
bool wrk_call_read(struct wrk_call *c, const char *raw, size_t n, const struct wrk_call_out *to);
/* Its bytes are over. true: it was whole, and the last of its arguments is told. */
bool wrk_call_end(struct wrk_call *c, const struct wrk_call_out *to);

bool wrk_call_name_ok(const char *s, size_t n);

#endif
