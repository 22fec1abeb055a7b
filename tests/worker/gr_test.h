/* gr_test.h - a store with a small vocabulary, and texts tried against grammars. */
#ifndef TEST_WORKER_GR_TEST_H
#define TEST_WORKER_GR_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "wrk_gr.h"

/* Tokens: 0 ends the answer, 1 and 2 have no text, 3 + b is byte b, then pieces. */
#define GR_EOS 0
#define GR_BYTE(b) (3 + (int32_t)(unsigned char)(b))
static const char *const gr_pieces[] = {
    "{\"",          "\":",      "\", \"",
    "\"}",          "true",     "false",
    "null",         "hello",    " world",
    "\n",           "\n  ",     "  ",
    "12",           "3.14",     "-",
    "\\n",          "\\u00",    "ab",
    "abc",          "abcdef",   "\":{\"",
    "}]",           "[[",       "é",
    "日本",         "\xe6\x97", "\xa5",
    "aaaaaaaa",     "\"a\"",    ": 1",
    "}}}}",         "]]]]",     "date",
    "2024",         "-02-",     "name",
    "\"name\": \"", "x\"y",     "\xf0\x9f\x98\x80",
    "hello", /* a second token of the same text */
};
#define GR_N_PIECES (sizeof(gr_pieces) / sizeof(gr_pieces[0]))
#define GR_VOCAB (259 + (uint32_t)GR_N_PIECES)

static const char *gr_bytes(void *user, int32_t id, size_t *n)
{
    static char byte[2];

    (void)user;
    *n = 0;
    if (id >= 259) {
        *n = strlen(gr_pieces[id - 259]);
        return gr_pieces[id - 259];
    }
    if (id < 3)
        return "";
    byte[0] = (char)(id - 3);
    *n = 1;
    return byte;
}

struct gr_rig {
    struct wrk_gr_store *s;
    struct wrk_gr_vocab *v;
};

static inline struct gr_rig gr_rig_new(void)
{
    static const int32_t eos[] = {GR_EOS};
    struct gr_rig r = {0};

    assert_int_equal(wrk_gr_store_new(&r.s, NULL), RC_OK);
    assert_int_equal(wrk_gr_vocab_new(&r.v, GR_VOCAB, gr_bytes, NULL, eos, 1, NULL), RC_OK);
    assert_int_equal(wrk_gr_store_vocab(r.s, r.v, NULL), RC_OK);
    return r;
}

static inline void gr_rig_free(struct gr_rig *r)
{
    wrk_gr_store_free(&r->s);
    wrk_gr_vocab_free(&r->v);
}

static inline bool gr_allowed(const struct wrk_gr_mask *m, int32_t token)
{
    if (m->bits != NULL)
        return (m->bits[token / 64] >> (token % 64) & 1) != 0;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->ids[i] == (uint32_t)token)
            return true;
    return false;
}

/* 1: text is a whole answer; 0: one could begin so; -1: none does. */
static inline int gr_try(struct gr_rig *r, enum wrk_gr_kind kind, const char *grammar,
                         const char *text)
{
    struct rc_err err = RC_ERR_INIT;
    struct wrk_gr_held *h = NULL;
    struct wrk_gr_run run;
    int out = -1;

    if (wrk_gr_hold(r->s, &h, kind, grammar, strlen(grammar), &err) != RC_OK)
        fail_msg("%s: %s", grammar, err.msg);
    assert_int_equal(wrk_gr_run_init(&run, r->s, h, NULL), RC_OK);
    if (wrk_gr_run_accept_bytes(&run, text, strlen(text), NULL) == RC_OK)
        out = wrk_gr_run_may_end(&run);
    wrk_gr_run_deinit(&run);
    wrk_gr_release(r->s, &h);
    return out;
}

struct gr_case {
    const char *grammar;
    const char *yes[12], *no[12]; /* whole answers; what is none */
};

static inline void gr_check_cases(enum wrk_gr_kind kind, const struct gr_case *c, size_t n)
{
    struct gr_rig r = gr_rig_new();

    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < 12 && c[i].yes[k] != NULL; k++)
            if (gr_try(&r, kind, c[i].grammar, c[i].yes[k]) != 1)
                fail_msg("%s must take '%s'", c[i].grammar, c[i].yes[k]);
        for (size_t k = 0; k < 12 && c[i].no[k] != NULL; k++)
            if (gr_try(&r, kind, c[i].grammar, c[i].no[k]) == 1)
                fail_msg("%s must not take '%s'", c[i].grammar, c[i].no[k]);
    }
    gr_rig_free(&r);
}

struct gr_refusal {
    const char *grammar;
    enum rc rc;
    const char *says; /* a part of the message */
};

static inline void gr_check_refusals(enum wrk_gr_kind kind, const struct gr_refusal *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct rc_err err = RC_ERR_INIT;
        struct wrk_gr_prog *p = NULL;
        enum rc rc = wrk_gr_compile(&p, kind, c[i].grammar, strlen(c[i].grammar), &err);

        if (rc != c[i].rc || strstr(err.msg, c[i].says) == NULL)
            fail_msg("%.200s: %s '%s', expected %s '%s'", c[i].grammar, rc_name(rc), err.msg,
                     rc_name(c[i].rc), c[i].says);
        assert_null(p);
    }
}

/* xorshift: the same walk every time. */
static inline uint32_t gr_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 32);
}

/* A random answer of at most n tokens into out (NUL-ended); false: it was cut. Every mask
 * is compared with trying each token. */
static inline bool gr_walk(struct gr_rig *r, enum wrk_gr_kind kind, const char *grammar,
                           uint64_t *seed, uint32_t n, char *out, size_t cap, bool compare)
{
    struct rc_err err = RC_ERR_INIT;
    struct wrk_gr_held *h = NULL;
    struct wrk_gr_run run, copy = {0};
    size_t at = 0, k;
    bool ended = false;

    if (wrk_gr_hold(r->s, &h, kind, grammar, strlen(grammar), &err) != RC_OK)
        fail_msg("%s: %s", grammar, err.msg);
    assert_int_equal(wrk_gr_run_init(&run, r->s, h, NULL), RC_OK);
    for (uint32_t step = 0; step < n && !ended; step++) {
        struct wrk_gr_mask m;
        uint32_t pick, count = 0;
        int32_t token = -1;
        const char *s;

        if (wrk_gr_run_must_end(&run)) {
            ended = true;
            break;
        }
        assert_int_equal(wrk_gr_run_mask(&run, &m, NULL), RC_OK);
        assert_true(m.n > 0);
        for (int32_t t = 0; t < (int32_t)GR_VOCAB; t++)
            count += gr_allowed(&m, t);
        assert_int_equal(count, m.n);
        for (int32_t t = 0; compare && t < (int32_t)GR_VOCAB; t++) {
            bool ok;

            assert_int_equal(wrk_gr_run_copy(&copy, &run, NULL), RC_OK);
            ok =
                t == GR_EOS ? wrk_gr_run_may_end(&run) : wrk_gr_run_accept(&copy, t, NULL) == RC_OK;
            if (ok != gr_allowed(&m, t))
                fail_msg("%s behind '%.*s': token %d is %s by the mask", grammar, (int)at, out, t,
                         ok ? "forbidden" : "allowed");
        }
        pick = gr_random(seed) % m.n;
        for (int32_t t = 0; t < (int32_t)GR_VOCAB; t++)
            if (gr_allowed(&m, t) && pick-- == 0) {
                token = t;
                break;
            }
        if (token == GR_EOS) {
            ended = true;
            break;
        }
        s = gr_bytes(NULL, token, &k);
        assert_true(at + k + 1 < cap);
        memcpy(out + at, s, k);
        at += k;
        assert_int_equal(wrk_gr_run_accept(&run, token, NULL), RC_OK);
    }
    out[at] = '\0';
    wrk_gr_run_deinit(&copy);
    wrk_gr_run_deinit(&run);
    wrk_gr_release(r->s, &h);
    return ended;
}

#endif
