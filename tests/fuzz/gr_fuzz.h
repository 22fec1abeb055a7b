/* gr_fuzz.h - one text as a grammar: compiled, then walked over tokens that its own hash
 * picks. Aborts when a mask and a run disagree, when an answer cannot go on, or when a
 * bound is passed.
 */
#ifndef TEST_FUZZ_GR_FUZZ_H
#define TEST_FUZZ_GR_FUZZ_H

#include <stdlib.h>
#include <string.h>

#include "wrk_gr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const gr_words[] = {"{\"", "\":", "\",\"",    "\"}",  "true", "null",
                                       "  ",  "\n",  "12",       "0.5",  "-",    "\\n",
                                       "ab",  "abc", "aaaaaaaa", "日本", "\xe6"};
#define GR_WORDS (sizeof(gr_words) / sizeof(gr_words[0]))
#define GR_N (257 + (uint32_t)GR_WORDS)

/* 0 ends an answer, 1 + b is byte b, then words. */
static const char *gr_word(void *user, int32_t id, size_t *n)
{
    static char byte[1];

    (void)user;
    if (id >= 257) {
        *n = strlen(gr_words[id - 257]);
        return gr_words[id - 257];
    }
    byte[0] = (char)(id - 1);
    *n = id > 0;
    return byte;
}

static void gr_require(bool ok)
{
    if (!ok)
        abort();
}

static bool gr_has(const struct wrk_gr_mask *m, uint32_t token)
{
    if (m->bits != NULL)
        return (m->bits[token / 64] >> (token % 64) & 1) != 0;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->ids[i] == token)
            return true;
    return false;
}

/* Returns the bytes of a whole answer in out, 0: none came about. */
static size_t gr_fuzz(enum wrk_gr_kind kind, const uint8_t *data, size_t size, char *out,
                      size_t cap)
{
    static struct wrk_gr_store *s;
    static struct wrk_gr_vocab *v;
    static const int32_t eos[] = {0};
    struct wrk_gr_held *h = NULL;
    struct rc_err err = RC_ERR_INIT;
    struct wrk_gr_run run, copy = {0};
    struct wrk_gr_mask m;
    uint64_t x = 1469598103934665603ull;
    size_t at = 0, k;
    enum rc rc;

    if (s == NULL) {
        gr_require(wrk_gr_store_new(&s, NULL) == RC_OK);
        gr_require(wrk_gr_vocab_new(&v, GR_N, gr_word, NULL, eos, 1, NULL) == RC_OK);
        gr_require(wrk_gr_store_vocab(s, v, NULL) == RC_OK);
    }
    rc = wrk_gr_hold(s, &h, kind, (const char *)data, size, &err);
    if (rc != RC_OK) { /* in words, and of a kind that the API maps */
        gr_require(err.msg[0] != '\0' &&
                   (rc == RC_INVALID || rc == RC_UNSUPPORTED || rc == RC_TOO_LARGE));
        return 0;
    }
    gr_require(wrk_gr_run_init(&run, s, h, NULL) == RC_OK);
    for (size_t i = 0; i < size; i++)
        x = (x ^ data[i]) * 1099511628211ull;
    for (int step = 0; step < 24 && !wrk_gr_run_must_end(&run); step++) {
        uint32_t pick, token = 0, probe;

        gr_require(wrk_gr_run_mask(&run, &m, &err) == RC_OK && m.n > 0);
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        probe = (uint32_t)(x >> 33) % GR_N;
        pick = (uint32_t)(x >> 40) % m.n;
        gr_require(wrk_gr_run_copy(&copy, &run, NULL) == RC_OK);
        /* a mask that was cut may lack what the run takes, and never has what it does not */
        if (probe > 0) {
            bool takes = wrk_gr_run_accept(&copy, (int32_t)probe, NULL) == RC_OK;

            gr_require(takes == gr_has(&m, probe) || (takes && m.cut));
        }
        for (uint32_t t = 0; t < GR_N; t++)
            if (gr_has(&m, t) && pick-- == 0)
                token = t;
        if (token == 0) {
            gr_require(wrk_gr_run_may_end(&run));
            break;
        }
        gr_require(wrk_gr_run_accept(&run, (int32_t)token, NULL) == RC_OK);
        gr_word(NULL, (int32_t)token, &k);
        gr_require(at + k <= cap);
        memcpy(out + at, gr_word(NULL, (int32_t)token, &k), k);
        at += k;
    }
    if (!wrk_gr_run_may_end(&run))
        at = 0;
    wrk_gr_run_deinit(&copy);
    wrk_gr_run_deinit(&run);
    wrk_gr_release(s, &h);
    gr_require(wrk_gr_stats_get(s).bytes <
               WRK_GR_PROGS_BYTES + WRK_GR_MASKS_BYTES + wrk_gr_vocab_bytes(v));
    return at;
}

#endif
