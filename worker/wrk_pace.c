/* wrk_pace.c - two running means and a quotient.
 *
 * Small chunks cost more a row than large ones, so the cost of a row is taken from the
 * passes at hand and follows the chunk; no clock is read here.
 * Tests: tests/worker/test_wrk_pace.c
 */
#include "wrk_pace.h"

#define WEIGHT 0.25 /* of the newest pass */

static void mean(double *m, double v)
{
    *m = *m == 0 ? v : *m + WEIGHT * (v - *m);
}

void wrk_pace_pass(struct wrk_pace *p, uint64_t us, uint32_t n_decode, uint32_t n_prompt)
{
    double t = us > 0 ? (double)us : 1;

    if (n_prompt == 0 && n_decode > 0)
        mean(&p->decode_us, t);
    else if (n_prompt > 0 && n_decode == 0)
        mean(&p->row_us, t / n_prompt);
    else if (n_prompt > 0 && p->decode_us > 0)
        mean(&p->row_us, (t > p->decode_us ? t - p->decode_us : 1) / n_prompt);
}

uint32_t wrk_pace_rows(const struct wrk_pace *p)
{
    double rows;

    if (p->decode_us == 0 || p->row_us == 0)
        return WRK_PACE_UNKNOWN;
    rows = (WRK_PACE_GAP - 1) * p->decode_us / p->row_us;
    return rows <= WRK_PACE_LEAST  ? WRK_PACE_LEAST
           : rows >= WRK_PACE_MOST ? WRK_PACE_MOST
                                   : (uint32_t)rows;
}

uint32_t wrk_pace_rows_alone(const struct wrk_pace *p)
{
    double rows;

    if (p->row_us == 0)
        return WRK_PACE_ALONE_UNKNOWN;
    rows = WRK_PACE_PASS_US / p->row_us;
    return rows <= WRK_PACE_ALONE_LEAST ? WRK_PACE_ALONE_LEAST
           : rows >= UINT32_MAX         ? UINT32_MAX
                                        : (uint32_t)rows;
}
