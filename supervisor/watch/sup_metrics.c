/* sup_metrics.c - series in memory, Prometheus text when asked.
 *
 * Knows numbers and label values; knows nothing of HTTP or of who scrapes.
 * Always true: a metric never has more than SUP_SERIES_MAX series, whatever label
 * values arrive (the last one is "other"); a counter never falls by _add; text is
 * valid UTF-8. Never fails towards its caller: without memory, numbers go to a
 * sink. One thread. Tests: tests/supervisor/test_sup_metrics.c
 */
#include "sup_metrics.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_text.h"

#define LABEL_MAX_BYTES 256
#define N_SLOTS 1024 /* hash chains; a power of two */

enum kind { COUNTER, GAUGE, HISTOGRAM };

struct metric {
    const char *name;
    enum kind kind;
    const char *label[2];
    const char *help;
};

static const struct metric metrics[SUP_M_COUNT] = {
#define X(id, name, kind, l1, l2, help) {name, kind, {l1, l2}, help},
    SUP_METRICS(X)
#undef X
};

/* Upper bounds in seconds: from a health probe to a slow load. */
static const double bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                0.25,   0.5,   1,      2.5,   5,    10,    30,   60};
#define N_BOUNDS (sizeof(bounds) / sizeof(bounds[0]))

struct hist {
    uint64_t bucket[N_BOUNDS + 1]; /* not cumulative; the last is +Inf */
    uint64_t count;
};

struct sup_series {
    enum sup_metric id;
    uint32_t hash;
    double value; /* sum of a histogram */
    struct hist *hist;
    struct sup_series *next_hash, *next; /* chain; order of birth */
    size_t n1;                           /* bytes of the first label */
    char labels[];                       /* l1 NUL l2 NUL */
};

struct sup_metrics {
    struct sup_series *slot[N_SLOTS];
    struct {
        struct sup_series *first, *last;
        size_t n;
    } of[SUP_M_COUNT];
};

/* Where numbers go when there is no memory for a series: written, never read. */
static struct sup_series sink;

/* Copies at most LABEL_MAX_BYTES, replacing what is no UTF-8, so that equal keys
 * are equal text. out has room for 3 bytes per input byte. */
static size_t label_clean(char *out, const char *s)
{
    size_t n = s ? strnlen(s, LABEL_MAX_BYTES) : 0, i = 0, m = 0;

    while (i < n) {
        uint32_t cp;

        if (s[n] != '\0' && sup_text_is_partial(s + i, n - i))
            break;
        i += sup_text_next(s + i, n - i, &cp, NULL);
        m += sup_text_put(cp, out + m);
    }
    return m;
}

static uint32_t fnv(uint32_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return (h ^ 0xFFu) * 16777619u; /* ends the string: "a","b" is not "ab","" */
}

static struct sup_series *find(const struct sup_metrics *m, enum sup_metric id, uint32_t hash,
                               const char *l1, size_t n1, const char *l2, size_t n2)
{
    struct sup_series *s = m->slot[hash % N_SLOTS];

    for (; s; s = s->next_hash)
        if (s->id == id && s->hash == hash && s->n1 == n1 && memcmp(s->labels, l1, n1) == 0 &&
            strlen(s->labels + n1 + 1) == n2 && memcmp(s->labels + n1 + 1, l2, n2) == 0)
            return s;
    return NULL;
}

static struct sup_series *series_new(struct sup_metrics *m, enum sup_metric id, uint32_t hash,
                                     const char *l1, size_t n1, const char *l2, size_t n2)
{
    struct sup_series *s = calloc(1, sizeof(*s) + n1 + n2 + 2);

    if (!s)
        return NULL;
    if (metrics[id].kind == HISTOGRAM && !(s->hist = calloc(1, sizeof(*s->hist)))) {
        free(s);
        return NULL;
    }
    s->id = id;
    s->hash = hash;
    s->n1 = n1;
    memcpy(s->labels, l1, n1);
    memcpy(s->labels + n1 + 1, l2, n2);
    s->next_hash = m->slot[hash % N_SLOTS];
    m->slot[hash % N_SLOTS] = s;
    if (m->of[id].last)
        m->of[id].last->next = s;
    else
        m->of[id].first = s;
    m->of[id].last = s;
    m->of[id].n++;
    return s;
}

static struct sup_series *find_or_make(struct sup_metrics *m, enum sup_metric id, const char *l1,
                                       size_t n1, const char *l2, size_t n2, size_t limit)
{
    uint32_t h = fnv(fnv(2166136261u ^ (uint32_t)id, l1, n1), l2, n2);
    struct sup_series *s = find(m, id, h, l1, n1, l2, n2);

    if (s || m->of[id].n >= limit)
        return s;
    return series_new(m, id, h, l1, n1, l2, n2);
}

struct sup_series *sup_series(struct sup_metrics *m, enum sup_metric id, const char *l1,
                              const char *l2)
{
    char b1[LABEL_MAX_BYTES * 3], b2[LABEL_MAX_BYTES * 3];
    const char *o1, *o2;
    struct sup_series *s;
    size_t n1, n2;

    if (!m || (unsigned)id >= SUP_M_COUNT)
        return &sink;
    n1 = metrics[id].label[0] ? label_clean(b1, l1) : 0;
    n2 = metrics[id].label[1] ? label_clean(b2, l2) : 0;
    s = find_or_make(m, id, b1, n1, b2, n2, SUP_SERIES_MAX - 1);
    if (s)
        return s;
    o1 = metrics[id].label[0] ? "other" : "";
    o2 = metrics[id].label[1] ? "other" : "";
    s = find_or_make(m, id, o1, strlen(o1), o2, strlen(o2), SUP_SERIES_MAX);
    return s ? s : &sink;
}

struct sup_metrics *sup_metrics_new(void)
{
    struct sup_metrics *m = calloc(1, sizeof(*m));

    /* A metric without labels has its one series from the start, so that a
     * counter that never moved is seen as 0 and not as missing. */
    for (unsigned id = 0; m && id < SUP_M_COUNT; id++)
        if (!metrics[id].label[0] && sup_series(m, (enum sup_metric)id, NULL, NULL) == &sink)
            sup_metrics_free(&m);
    return m;
}

void sup_metrics_free(struct sup_metrics **m)
{
    if (!*m)
        return;
    for (unsigned id = 0; id < SUP_M_COUNT; id++)
        for (struct sup_series *s = (*m)->of[id].first, *next; s; s = next) {
            next = s->next;
            free(s->hist);
            free(s);
        }
    free(*m);
    *m = NULL;
}

void sup_series_add(struct sup_series *s, double v)
{
    if (s == &sink || !isfinite(v) || (metrics[s->id].kind == COUNTER && v < 0))
        return;
    s->value += v;
}

void sup_series_set(struct sup_series *s, double v)
{
    if (s != &sink && isfinite(v))
        s->value = v;
}

void sup_series_observe(struct sup_series *s, double v)
{
    size_t i = 0;

    if (!s->hist || !isfinite(v))
        return;
    v = v < 0 ? 0 : v;
    while (i < N_BOUNDS && v > bounds[i])
        i++;
    s->hist->bucket[i]++;
    s->hist->count++;
    s->value += v;
}

double sup_series_value(const struct sup_series *s)
{
    return s->hist ? (double)s->hist->count : s->value;
}

/* -------------------------------------------------------------------- text */

static void put_escaped(FILE *to, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\' || *s == '"')
            fprintf(to, "\\%c", *s);
        else if (*s == '\n')
            fputs("\\n", to);
        else
            putc(*s, to);
    }
}

/* {a="..",b="..",le=".."} or nothing. */
static void put_labels(FILE *to, const struct sup_series *s, const char *le)
{
    const struct metric *m = &metrics[s->id];
    const char *value[2] = {s->labels, s->labels + s->n1 + 1};
    char open = '{';

    for (int i = 0; i < 2 && m->label[i]; i++) {
        fprintf(to, "%c%s=\"", open, m->label[i]);
        put_escaped(to, value[i]);
        putc('"', to);
        open = ',';
    }
    if (le) {
        fprintf(to, "%cle=\"%s\"", open, le);
        open = ',';
    }
    if (open == ',')
        putc('}', to);
}

static void put_number(FILE *to, double v)
{
    char b[40];

    /* the shortest of two forms that reads back as the same number */
    snprintf(b, sizeof(b), "%.15g", v);
    if (strtod(b, NULL) != v)
        snprintf(b, sizeof(b), "%.17g", v);
    fprintf(to, " %s\n", b);
}

static void put_hist(FILE *to, const struct sup_series *s)
{
    const char *name = metrics[s->id].name;
    uint64_t sum = 0;
    char le[24];

    for (size_t i = 0; i <= N_BOUNDS; i++) {
        sum += s->hist->bucket[i];
        if (i < N_BOUNDS)
            snprintf(le, sizeof(le), "%g", bounds[i]);
        fprintf(to, "%s_bucket", name);
        put_labels(to, s, i < N_BOUNDS ? le : "+Inf");
        fprintf(to, " %llu\n", (unsigned long long)sum);
    }
    fprintf(to, "%s_sum", name);
    put_labels(to, s, NULL);
    put_number(to, s->value);
    fprintf(to, "%s_count", name);
    put_labels(to, s, NULL);
    fprintf(to, " %llu\n", (unsigned long long)s->hist->count);
}

char *sup_metrics_text(const struct sup_metrics *m, size_t *n_bytes)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    bool bad;

    if (!to)
        return NULL;
    for (unsigned id = 0; id < SUP_M_COUNT; id++) {
        fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", metrics[id].name, metrics[id].help,
                metrics[id].name, kinds[metrics[id].kind]);
        for (const struct sup_series *s = m->of[id].first; s; s = s->next) {
            if (s->hist) {
                put_hist(to, s);
                continue;
            }
            fputs(metrics[id].name, to);
            put_labels(to, s, NULL);
            put_number(to, s->value);
        }
    }
    bad = ferror(to) != 0;
    if (fclose(to) != 0 || bad) {
        free(text);
        return NULL;
    }
    if (n_bytes)
        *n_bytes = n;
    return text;
}
