/* wrk_gr_string.c - strings: lengths, patterns, formats.
 *
 * A length counts characters, however they are escaped. A pattern is looked for
 * anywhere in the string, as JSON Schema says; its characters are written as they stand
 * or in their shortest escape. Formats are tables of patterns, each a part of what its
 * RFC allows that every validator accepts. Tests: tests/worker/test_wrk_gr_schema.c
 */
#include "wrk_gr_json.h"

#include <string.h>

#define HOUR "(?:[01][0-9]|2[0-3])"
#define SIXTY "[0-5][0-9]"
#define ZONE "(?:Z|[+-]" HOUR ":" SIXTY ")"
#define TIME HOUR ":" SIXTY ":" SIXTY "(?:\\.[0-9]{1,6})?" ZONE
/* years 1000 to 9999; February 29 in leap years */
#define LEAP                                                              \
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|[2468][048]" \
    "|[3579][26])00)"
#define DATE                                                                 \
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0" \
    "[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,3}"
#define H16 "[0-9a-f]{1,4}"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(?:[0-9]{1,4}W|[0-9]{1,4}D(?:T[0-9]{1,4}H)?|T[0-9]{1,4}[HMS])$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,16})?@" LABEL "(?:\\." LABEL
              "){0,2}\\.[A-Za-z]{2,16}$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^" OCTET "(?:\\." OCTET "){3}$"},
    {"ipv6", "^(?:" H16 "(?::" H16 "){7}|::(?:" H16 "(?::" H16 "){0,5})?|" H16 "::(?:" H16
             "(?::" H16 "){0,4})?)$"},
    {"uri", "^(?:https?|ftp)://" HOST "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]{0,64}){0,8}"
            "(?:\\?[A-Za-z0-9._~=&-]{0,128})?(?:#[A-Za-z0-9._~-]{0,64})?$"},
};

static uint32_t quoted(struct sc *c, uint32_t inside)
{
    uint32_t quote = sc_quote(c);

    return GR_SEQ_OF(c->b, quote, inside, quote);
}

static uint32_t of_format(struct sc *c, const json_t *v)
{
    const char *name = json_string_value(v);

    for (size_t i = 0; name != NULL && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, name) == 0)
            return quoted(c, gr_regex(c->b, formats[i].pattern, strlen(formats[i].pattern), true));
    sc_fail(
        c, RC_UNSUPPORTED,
        "format '%.40s' is not supported, expected date, time, date-time, duration, uuid, email, "
        "hostname, ipv4, ipv6 or uri",
        name != NULL ? name : "(no string)");
    return 0;
}

uint32_t sc_text(struct sc *c, json_t *s)
{
    json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
    uint32_t min = sc_count(c, s, "minLength", 0, true),
             max = sc_count(c, s, "maxLength", GR_INF, false);
    bool length = min > 0 || max != GR_INF;

    if ((pattern != NULL) + (format != NULL) + length > 1)
        sc_fail(c, RC_UNSUPPORTED,
                "'pattern', 'format' and lengths of one string are not supported "
                "together: say the length in the pattern");
    if (min > max)
        sc_fail(c, RC_INVALID, "'minLength' is %u and 'maxLength' %u", min, max);
    if (pattern != NULL && !json_is_string(pattern))
        sc_fail(c, RC_INVALID, "InvalidSchema: 'pattern' must be a string");
    if (c->b->rc != RC_OK)
        return 0;
    if (format != NULL)
        return of_format(c, format);
    if (pattern != NULL)
        return quoted(
            c, gr_regex(c->b, json_string_value(pattern), json_string_length(pattern), true));
    return length ? quoted(c, gr_rep(c->b, sc_char(c), min, max)) : sc_string(c);
}
