/* wrk_spec.c - see wrk_spec.h. Change freely: trial, probe, weights; answers do not depend
 * on them. */
#include "wrk_spec.h"

#define WEIGHT 0.1 /* of the newest pass */
#define GRAM_LONG 3u
#define GRAM_SHORT 2u

static uint32_t class_of(uint32_t n)
{
    uint32_t c = 0;

    while (n > 1 && c + 1 < WRK_SPEC_CLASSES) {
        n >>= 1;
        c++;
    }
    return c;
}

static bool known(const struct wrk_spec_meter *m)
{
    return m->n_plain >= WRK_SPEC_TRIAL && m->n_spec >= WRK_SPEC_TRIAL;
}

uint32_t wrk_spec_want(struct wrk_spec *s, uint32_t n)
{
    struct wrk_spec_meter *m;
    uint32_t k;
    bool probe, pays;

    if (n == 0 || (s->mode != WRK_SPEC_LOOKUP && s->mode != WRK_SPEC_MTP))
        return 0;
    k = WRK_SPEC_ROWS / n;
    k = k < s->most ? k : s->most;
    m = &s->meter[s->last_class = class_of(n)];
    if (m->n_plain < WRK_SPEC_TRIAL)
        return 0;
    if (m->n_spec < WRK_SPEC_TRIAL)
        return k;
    probe = ++m->tick % WRK_SPEC_PROBE == 0;
    pays = m->spec_us < m->plain_us;
    return pays != probe ? k : 0;
}

static void mean(double *m, double v, uint32_t *n)
{
    *m = *n == 0 ? v : *m + WEIGHT * (v - *m);
    *n += *n < WRK_SPEC_TRIAL;
}

void wrk_spec_pass(struct wrk_spec *s, uint64_t us, uint32_t n, uint32_t n_drafted,
                   uint32_t n_tokens)
{
    struct wrk_spec_meter *m = &s->meter[class_of(n)];
    double cost = n_tokens > 0 ? (double)us * n / n_tokens : (double)us;

    if (n == 0 || s->mode == WRK_SPEC_OFF)
        return;
    if (n_drafted > 0)
        mean(&m->spec_us, cost, &m->n_spec);
    else
        mean(&m->plain_us, cost, &m->n_plain);
}

bool wrk_spec_rests(const struct wrk_spec *s)
{
    const struct wrk_spec_meter *m = &s->meter[s->last_class];

    return known(m) && m->spec_us >= m->plain_us;
}

double wrk_spec_gain(const struct wrk_spec *s)
{
    const struct wrk_spec_meter *m = &s->meter[s->last_class];

    return known(m) && m->spec_us > 0 ? m->plain_us / m->spec_us : 0;
}

uint32_t wrk_spec_next(uint32_t n, uint32_t n_ok)
{
    uint32_t k = n_ok == n ? 2 * n : n_ok + 1;

    return k < 1 ? 1 : k > WRK_SPEC_MOST ? WRK_SPEC_MOST : k;
}

/* -------------------------------------------------------------------- lookup */

static uint32_t follow(const struct wrk_text *t, uint32_t n, uint32_t gram, uint32_t k,
                       int32_t *out)
{
    uint32_t least = n > WRK_SPEC_REACH ? n - WRK_SPEC_REACH : 0;

    if (n <= gram)
        return 0;
    for (uint32_t end = n - 1; end >= least + gram; end--) { /* of an earlier run: below end */
        uint32_t same = 0, got = 0;

        while (same < gram && wrk_text_at(t, end - 1 - same) == wrk_text_at(t, n - 1 - same))
            same++;
        if (same < gram)
            continue;
        /* behind the end of the text the guess goes on with itself: a loop stays one */
        for (; got < k; got++)
            out[got] = end + got < n ? wrk_text_at(t, end + got) : out[end + got - n];
        return got;
    }
    return 0;
}

uint32_t wrk_spec_lookup(const struct wrk_text *t, uint32_t n, uint32_t k, int32_t *out)
{
    uint32_t got = follow(t, n, GRAM_LONG, k, out);

    return got > 0 ? got : follow(t, n, GRAM_SHORT, k, out);
}
