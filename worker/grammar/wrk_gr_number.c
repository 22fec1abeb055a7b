/* wrk_gr_number.c - numbers between bounds, digit by digit.
 *
 * A range of integers of one length splits at its first digit: where it equals the lower
 * bound's the rest is bounded below, where it equals the upper's above, in between it is
 * free. Decimals are integers of millionths with a point written in. Exact: what is
 * written satisfies the bounds as numbers, never only as rounded ones.
 * Tests: tests/worker/test_wrk_gr_schema.c
 */
#include "wrk_gr_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 18                      /* of an integer */
#define WHOLE_MAX 999999999999999999ll /* as many nines */
#define UNIT 1000000                   /* a bound of a number has at most six decimals */
#define UNIT_DIGITS 6u
#define DECIMAL_MAX 999999999999ll /* and is below 10^12 */

struct digits {
    struct sc *c;
    uint32_t point; /* digits behind the point, 0: no point is written */
};

static uint32_t digit_range(struct sc *c, char lo, char hi)
{
    return gr_set(c->b, &(struct gr_range){(unsigned char)lo, (unsigned char)hi}, 1, false);
}

static uint32_t dotted(const struct digits *d, uint32_t left, uint32_t node)
{
    return d->point > 0 && left == d->point ? GR_SEQ_OF(d->c->b, gr_str(d->c->b, "."), node) : node;
}

/* Any n digits. */
static uint32_t free_digits(const struct digits *d, uint32_t n)
{
    uint32_t behind = n < d->point ? n : d->point;

    if (d->point == 0 || n < d->point)
        return sc_digits(d->c, n, n);
    return GR_SEQ_OF(d->c->b, sc_digits(d->c, n - behind, n - behind), gr_str(d->c->b, "."),
                     sc_digits(d->c, behind, behind));
}

static bool all_are(const char *s, uint32_t n, char c)
{
    for (uint32_t i = 0; i < n; i++)
        if (s[i] != c)
            return false;
    return true;
}

/* The numbers lo..hi, both written with n digits. */
static uint32_t same_length(const struct digits *d, const char *lo, const char *hi, uint32_t n)
{
    static const char nines[] = "999999999999999999999999", zeros[] = "000000000000000000000000";
    struct gr_build *b = d->c->b;
    uint32_t kids[3], k = 0;

    if (n == 0)
        return gr_empty(b);
    if (all_are(lo, n, '0') && all_are(hi, n, '9'))
        return free_digits(d, n);
    if (lo[0] == hi[0])
        return dotted(
            d, n,
            GR_SEQ_OF(b, digit_range(d->c, lo[0], lo[0]), same_length(d, lo + 1, hi + 1, n - 1)));
    kids[k++] = GR_SEQ_OF(b, digit_range(d->c, lo[0], lo[0]), same_length(d, lo + 1, nines, n - 1));
    if (hi[0] - lo[0] > 1)
        kids[k++] = GR_SEQ_OF(b, digit_range(d->c, (char)(lo[0] + 1), (char)(hi[0] - 1)),
                              free_digits(d, n - 1));
    kids[k++] = GR_SEQ_OF(b, digit_range(d->c, hi[0], hi[0]), same_length(d, zeros, hi + 1, n - 1));
    return dotted(d, n, gr_alt(b, kids, k));
}

/* lo..hi, each with as many digits as it needs, at least one before the point. */
static uint32_t between(const struct digits *d, uint64_t lo, uint64_t hi)
{
    uint32_t kids[DIGITS + 8], k = 0;
    uint64_t least = 0, most = 9;
    char a[32], z[32];

    for (uint32_t i = 0; i < d->point; i++)
        most = most * 10 + 9;
    for (uint32_t n = d->point + 1; n <= DIGITS + 1 && least <= hi; n++) {
        uint64_t from = lo > least ? lo : least, to = hi < most ? hi : most;

        if (from <= to) {
            snprintf(a, sizeof(a), "%0*llu", (int)n, (unsigned long long)from);
            snprintf(z, sizeof(z), "%0*llu", (int)n, (unsigned long long)to);
            kids[k++] = same_length(d, a, z, n);
        }
        least = most + 1;
        most = most * 10 + 9;
    }
    return gr_alt(d->c->b, kids, k);
}

/* ---------------------------------------------------------------------- integers */

static bool number_at(struct sc *c, json_t *s, const char *key, json_t **out)
{
    *out = json_object_get(s, key);
    if (*out == NULL)
        return false;
    if (json_is_number(*out) && isfinite(json_number_value(*out)))
        return true;
    sc_fail(c, RC_INVALID, "InvalidSchema: '%s' must be a number", key);
    return false;
}

/* Beyond this a number with a point or an exponent need not be the one that was written. */
#define EXACT_REAL 9007199254740992.0 /* 2^53 */

static bool inexact(const json_t *v)
{
    return json_is_real(v) && fabs(json_real_value(v)) >= EXACT_REAL;
}

/* -1, 0, 1: i below, at, above r, which is exact. */
static int compare_real(int64_t i, double r)
{
    int64_t whole = (int64_t)r;

    if (i != whole)
        return i < whole ? -1 : 1;
    return (double)whole < r ? -1 : (double)whole > r;
}

bool sc_compare(struct sc *c, const json_t *a, const json_t *b, int *out)
{
    if (!json_is_number(a) || !json_is_number(b)) {
        sc_fail(c, RC_INVALID, "InvalidSchema: a bound must be a number");
        return false;
    }
    if (inexact(a) || inexact(b)) {
        sc_fail(c, RC_UNSUPPORTED,
                "%.17g is compared with another number: beyond 2^53 that is exact, and supported, "
                "only for numbers written without point and exponent",
                json_number_value(inexact(a) ? a : b));
        return false;
    }
    if (json_is_integer(a) && json_is_integer(b)) {
        int64_t x = json_integer_value(a), y = json_integer_value(b);

        *out = x < y ? -1 : x > y;
    } else if (json_is_integer(a)) {
        *out = compare_real(json_integer_value(a), json_real_value(b));
    } else if (json_is_integer(b)) {
        *out = -compare_real(json_integer_value(b), json_real_value(a));
    } else {
        *out =
            json_real_value(a) < json_real_value(b) ? -1 : json_real_value(a) > json_real_value(b);
    }
    return true;
}

/* The whole number at or above (up) or at or below v, clipped to what is written. */
static int64_t whole_bound(struct sc *c, const json_t *v, bool up, bool excluded)
{
    int64_t n;

    if (inexact(v) && fabs(json_real_value(v)) <= 1e18)
        sc_fail(c, RC_UNSUPPORTED,
                "a bound of %.17g is enforced only if it is written without point and exponent",
                json_real_value(v));
    if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else {
        double d = up ? ceil(json_real_value(v)) : floor(json_real_value(v));

        excluded = excluded && d == json_real_value(v);
        n = d > 1e18 ? WHOLE_MAX + 1 : d < -1e18 ? -WHOLE_MAX - 1 : (int64_t)d;
    }
    if (n > WHOLE_MAX)
        n = WHOLE_MAX + 1;
    if (n < -WHOLE_MAX)
        n = -WHOLE_MAX - 1;
    return excluded ? n + (up ? 1 : -1) : n;
}

static uint32_t nothing(struct sc *c, const char *what)
{
    sc_fail(c, RC_INVALID, "no %s lies between the bounds", what);
    return 0;
}

static uint32_t whole_range(struct sc *c, int64_t lo, int64_t hi)
{
    const struct digits d = {c, 0};
    uint32_t kids[2], k = 0;

    if (hi >= 0)
        kids[k++] = between(&d, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi);
    if (lo < 0)
        kids[k++] = GR_SEQ_OF(c->b, gr_str(c->b, "-"),
                              between(&d, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo));
    return gr_alt(c->b, kids, k);
}

static void check_multiple(struct sc *c, json_t *s, bool whole)
{
    json_t *m;

    if (number_at(c, s, "multipleOf", &m) && !(whole && json_number_value(m) == 1))
        sc_fail(c, RC_UNSUPPORTED, "'multipleOf' is not supported%s",
                whole ? ", except 1" : "; for whole numbers use type 'integer'");
}

uint32_t sc_integer(struct sc *c, json_t *s)
{
    int64_t lo = -WHOLE_MAX, hi = WHOLE_MAX, v;
    bool bounded = false;
    json_t *at;

    check_multiple(c, s, true);
    for (int k = 0; k < 4; k++) {
        static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                           "exclusiveMaximum"};

        if (!number_at(c, s, keys[k], &at))
            continue;
        bounded = true;
        v = whole_bound(c, at, k < 2, k % 2 == 1);
        if (k < 2)
            lo = v > lo ? v : lo;
        else
            hi = v < hi ? v : hi;
    }
    if (c->b->rc != RC_OK)
        return 0;
    if (!bounded)
        return sc_integer_any(c);
    return lo > hi ? nothing(c, "integer of at most 18 digits") : whole_range(c, lo, hi);
}

/* ---------------------------------------------------------------------- decimals */

struct bound {
    bool set, excluded;
    int64_t at; /* millionths */
};

/* Millionths of v; false: it has more decimals or digits than we compare exactly. */
static bool millionths(const json_t *v, int64_t *out)
{
    char text[64];
    const char *p = text;
    int64_t n = 0;
    int decimals = -1;
    bool minus;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        if (*out > DECIMAL_MAX || *out < -DECIMAL_MAX)
            return false;
        *out *= UNIT;
        return true;
    }
    if (fabs(json_real_value(v)) > (double)DECIMAL_MAX)
        return false;
    for (int k = 0; k <= 6; k++) { /* the shortest that reads back as the same number */
        snprintf(text, sizeof(text), "%.*f", k, json_real_value(v));
        if (strtod(text, NULL) == json_real_value(v))
            break;
    }
    if (strtod(text, NULL) != json_real_value(v))
        return false;
    minus = *p == '-';
    for (p += minus; *p != '\0'; p++) {
        if (*p == '.') {
            decimals = 0;
            continue;
        }
        n = n * 10 + (*p - '0');
        decimals += decimals >= 0;
    }
    for (decimals = decimals < 0 ? 0 : decimals; decimals < 6; decimals++)
        n *= 10;
    *out = minus ? -n : n;
    return true;
}

static void read_bound(struct sc *c, json_t *s, const char *key, bool lower, struct bound *b)
{
    bool excluded = strncmp(key, "ex", 2) == 0;
    json_t *v;
    int64_t at;

    if (!number_at(c, s, key, &v))
        return;
    if (!millionths(v, &at)) {
        sc_fail(c, RC_UNSUPPORTED,
                "'%s': bounds of numbers are enforced up to 12 digits and 6 decimals only", key);
        return;
    }
    if (b->set && (lower ? at < b->at : at > b->at))
        return;
    b->excluded = excluded || (b->set && at == b->at && b->excluded);
    b->set = true;
    b->at = at;
}

static uint32_t point_of(uint64_t a, uint64_t b)
{
    uint32_t digits = UNIT_DIGITS;

    while (digits > 0 && a % 10 == 0 && b % 10 == 0) {
        a /= 10;
        b /= 10;
        digits--;
    }
    return digits;
}

static uint32_t zeros(struct sc *c, uint32_t min)
{
    return gr_rep(c->b, gr_str(c->b, "0"), min, 12);
}

/* Numbers from lo to hi, none negative; GR_NONE: there are none. */
static uint32_t decimals(struct sc *c, struct bound lo, struct bound hi)
{
    struct gr_build *b = c->b;
    uint32_t kids[5], k = 0, point = point_of((uint64_t)lo.at, (uint64_t)hi.at);
    const struct digits d = {c, point}, w = {c, 0};
    uint64_t unit = 1, a, z, from, to;
    uint32_t dot = gr_str(b, point == 0 ? "." : "");

    if (lo.at > hi.at || (lo.at == hi.at && (lo.excluded || hi.excluded)))
        return GR_NONE;
    for (uint32_t i = point; i < UNIT_DIGITS; i++)
        unit *= 10;
    a = (uint64_t)lo.at / unit;
    z = (uint64_t)hi.at / unit;
    from = a + lo.excluded;
    if (z > 0 && from <= z - 1) /* and whatever digits follow */
        kids[k++] = GR_SEQ_OF(b, between(&d, from, z - 1),
                              point == 0 ? gr_opt(b, GR_SEQ_OF(b, dot, sc_digits(c, 1, 12)))
                                         : sc_digits(c, 0, 12));
    if (lo.excluded && a < z) /* just above the bound */
        kids[k++] = GR_SEQ_OF(b, between(&d, a, a), dot, sc_digits(c, 0, 5),
                              digit_range(c, '1', '9'), sc_digits(c, 0, 6));
    if (!hi.excluded) /* the bound itself */
        kids[k++] = GR_SEQ_OF(b, between(&d, z, z),
                              point == 0 ? gr_opt(b, GR_SEQ_OF(b, dot, zeros(c, 1))) : zeros(c, 0));
    /* with a point in the bounds, whole numbers may do without */
    from = ((uint64_t)lo.at + UNIT - 1) / UNIT + (lo.excluded && lo.at % UNIT == 0);
    to = (uint64_t)hi.at / UNIT;
    if (hi.excluded && hi.at % UNIT == 0)
        to = to > 0 ? to - 1 : 0;
    if (point > 0 && from <= to && !(to == 0 && hi.excluded && hi.at == 0))
        kids[k++] = between(&w, from, to);
    return k > 0 ? gr_alt(b, kids, k) : GR_NONE;
}

uint32_t sc_number(struct sc *c, json_t *s)
{
    struct bound lo = {0}, hi = {0}, zero = {.set = true}, up, down;
    uint32_t kids[2], k = 0, node;

    check_multiple(c, s, false);
    read_bound(c, s, "minimum", true, &lo);
    read_bound(c, s, "exclusiveMinimum", true, &lo);
    read_bound(c, s, "maximum", false, &hi);
    read_bound(c, s, "exclusiveMaximum", false, &hi);
    if (c->b->rc != RC_OK)
        return 0;
    if (!lo.set && !hi.set)
        return sc_number_any(c);
    if (!lo.set)
        lo = (struct bound){.at = -DECIMAL_MAX * UNIT};
    if (!hi.set)
        hi = (struct bound){.at = DECIMAL_MAX * UNIT};
    if (hi.at >= 0) {
        up = lo.at < 0 ? zero : lo;
        if ((node = decimals(c, up, hi)) != GR_NONE)
            kids[k++] = node;
    }
    if (lo.at < 0) { /* mirrored */
        down = hi.at >= 0 ? (struct bound){.excluded = true} : hi;
        down.at = -down.at;
        lo.at = -lo.at;
        if ((node = decimals(c, down, lo)) != GR_NONE)
            kids[k++] = GR_SEQ_OF(c->b, gr_str(c->b, "-"), node);
    }
    return k > 0 ? gr_alt(c->b, kids, k) : nothing(c, "number");
}
