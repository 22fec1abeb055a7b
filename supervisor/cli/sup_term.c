/* sup_term.c - see sup_term.h. Knows nothing of models or HTTP.
 *
 * Always true: no byte below 0x20 but \n and \t, no 0x7F, no C1 control and no ESC
 * leaves sup_clean. An unfinished sequence swallows at most SEQ_MAX characters and
 * never a newline, so a hostile model cannot make the rest of its answer vanish.
 * Tests: tests/supervisor/test_sup_cli_term.c
 */
#include "sup_term.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "sup_text.h"

#define SEQ_MAX 256

enum { TEXT, ESC, CSI, STRING, STRING_ESC };

/* Overrides and isolates that make a line read otherwise than it is. */
static bool is_bidi(uint32_t cp)
{
    return (cp >= 0x202A && cp <= 0x202E) || (cp >= 0x2066 && cp <= 0x2069);
}

/* True when cp is text to be printed. ECMA-48: CSI ends at 0x40..0x7E; OSC, DCS,
 * SOS, PM and APC end at BEL or ST (ESC \). */
static bool keep(struct sup_clean *c, uint32_t cp)
{
    if (c->state != TEXT && (++c->length > SEQ_MAX || cp == '\n'))
        c->state = TEXT;
    switch (c->state) {
    case ESC:
        if (cp == '[')
            c->state = CSI;
        else if (cp == ']' || cp == 'P' || cp == 'X' || cp == '^' || cp == '_')
            c->state = STRING;
        else if (cp == 0x1B)
            c->state = ESC;
        else if (cp < 0x20 || cp > 0x2F) /* intermediates go on */
            c->state = TEXT;
        return false;
    case CSI:
        if (cp == 0x1B)
            c->state = ESC;
        else if (cp >= 0x40 && cp <= 0x7E)
            c->state = TEXT;
        return false;
    case STRING:
        if (cp == 0x07 || cp == 0x9C)
            c->state = TEXT;
        else if (cp == 0x1B)
            c->state = STRING_ESC;
        return false;
    case STRING_ESC:
        c->state = cp == '\\' ? TEXT : STRING;
        return false;
    default:
        break;
    }
    if (cp == 0x1B || cp == 0x9B || cp == 0x9D || cp == 0x90 || cp == 0x98 || cp == 0x9E ||
        cp == 0x9F) {
        c->state = cp == 0x1B ? ESC : cp == 0x9B ? CSI : STRING;
        c->length = 0;
        return false;
    }
    if (cp == '\n' || cp == '\t')
        return true;
    return cp >= 0x20 && cp != 0x7F && !(cp >= 0x80 && cp < 0xA0) && !is_bidi(cp);
}

size_t sup_clean(struct sup_clean *c, const char *in, size_t n, char *out)
{
    size_t m = 0, i = 0;
    uint32_t cp;

    while (i < n || c->n_part > 0) {
        if (c->n_part > 0 || sup_text_is_partial(in + i, n - i)) {
            /* gather a character that was cut between two pieces */
            while (i < n && (c->n_part == 0 || sup_text_is_partial(c->part, c->n_part)))
                c->part[c->n_part++] = in[i++];
            if (sup_text_is_partial(c->part, c->n_part))
                return m;
            size_t used = sup_text_next(c->part, c->n_part, &cp, NULL);
            c->n_part -= (unsigned)used;
            memmove(c->part, c->part + used, c->n_part);
        } else {
            i += sup_text_next(in + i, n - i, &cp, NULL);
        }
        if (keep(c, cp))
            m += sup_text_put(cp, out + m);
    }
    return m;
}

void sup_print_clean(FILE *to, const char *s, bool newlines)
{
    struct sup_clean c = {0};
    char out[3 * 256 + 16];
    size_t n = strlen(s);

    while (n > 0) {
        size_t take = n < 256 ? n : 256, m = sup_clean(&c, s, take, out);

        for (size_t i = 0; i < m && !newlines; i++)
            if (out[i] == '\n' || out[i] == '\t')
                out[i] = ' ';
        (void)fwrite(out, 1, m, to);
        s += take;
        n -= take;
    }
    if (c.n_part)
        fputs("\xEF\xBF\xBD", to);
}

int sup_width(uint32_t cp)
{
    static const struct {
        uint32_t first, last;
        int width;
    } rows[] = {
        /* combining marks, joiners, selectors */
        {0x0300, 0x036F, 0},
        {0x0483, 0x0489, 0},
        {0x0591, 0x05BD, 0},
        {0x0610, 0x061A, 0},
        {0x064B, 0x065F, 0},
        {0x0900, 0x0902, 0},
        {0x093C, 0x093C, 0},
        {0x0E34, 0x0E3A, 0},
        {0x1AB0, 0x1AFF, 0},
        {0x1DC0, 0x1DFF, 0},
        {0x200B, 0x200F, 0},
        {0x20D0, 0x20FF, 0},
        {0xFE00, 0xFE0F, 0},
        {0xFE20, 0xFE2F, 0},
        {0xFEFF, 0xFEFF, 0},
        {0xE0100, 0xE01EF, 0},
        /* East Asian wide and emoji */
        {0x1100, 0x115F, 2},
        {0x2E80, 0x303E, 2},
        {0x3041, 0x33FF, 2},
        {0x3400, 0x4DBF, 2},
        {0x4E00, 0x9FFF, 2},
        {0xA000, 0xA4CF, 2},
        {0xAC00, 0xD7A3, 2},
        {0xF900, 0xFAFF, 2},
        {0xFE30, 0xFE4F, 2},
        {0xFF00, 0xFF60, 2},
        {0xFFE0, 0xFFE6, 2},
        {0x1F300, 0x1F64F, 2},
        {0x1F680, 0x1F6FF, 2},
        {0x1F900, 0x1FAFF, 2},
        {0x20000, 0x3FFFD, 2},
    };

    if (cp < 0x20 || cp == 0x7F)
        return 0;
    for (size_t i = 0; cp >= 0x300 && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (cp >= rows[i].first && cp <= rows[i].last)
            return rows[i].width;
    return 1;
}

size_t sup_text_width(const char *s, size_t n)
{
    size_t w = 0, i = 0;
    uint32_t cp;

    while (i < n) {
        i += sup_text_next(s + i, n - i, &cp, NULL);
        w += (size_t)sup_width(cp);
    }
    return w;
}

void sup_table(FILE *to, const char *const *columns, size_t n_columns, const char *const *cells,
               size_t n_rows)
{
    size_t width[16] = {0};

    if (n_columns > 16)
        return;
    for (size_t c = 0; c < n_columns; c++) {
        width[c] = strlen(columns[c] + (columns[c][0] == '>'));
        for (size_t r = 0; r < n_rows; r++) {
            const char *s = cells[r * n_columns + c];
            size_t w = sup_text_width(s, strlen(s));

            width[c] = w > width[c] ? w : width[c];
        }
    }
    for (size_t r = 0; r <= n_rows; r++) {
        for (size_t c = 0; c < n_columns; c++) {
            bool right = columns[c][0] == '>';
            const char *s = r ? cells[(r - 1) * n_columns + c] : columns[c] + right;
            size_t pad = width[c] - sup_text_width(s, strlen(s));

            if (right)
                fprintf(to, "%*s", (int)pad, "");
            sup_print_clean(to, s, false);
            if (c + 1 < n_columns)
                fprintf(to, "%*s", (int)(right ? 0 : pad) + 2, "");
        }
        putc('\n', to);
    }
}

const char *sup_bytes(uint64_t n, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    int u = 0;

    while (v >= 1024 && u < 6) {
        v /= 1024;
        u++;
    }
    snprintf(out, 16, u && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
    return out;
}

bool sup_term_dumb(void)
{
    const char *term = getenv("TERM");

    return !term || !*term || strcmp(term, "dumb") == 0;
}

void sup_bar_start(struct sup_bar *b, const char *label)
{
    b->on = isatty(STDERR_FILENO) == 1 && !sup_term_dumb();
    b->drawn = false;
    b->label = label;
}

void sup_bar_set(struct sup_bar *b, uint64_t done, uint64_t total, const char *note)
{
    struct winsize ws = {0};
    unsigned cells, full;
    char b1[16], b2[16];

    if (!b->on)
        return;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) != 0 || ws.ws_col < 20)
        ws.ws_col = 80;
    fputs("\r\x1b[K", stderr);
    sup_print_clean(stderr, b->label, false);
    if (total > 0) {
        cells = ws.ws_col > 70 ? 30 : 10;
        done = done > total ? total : done;
        full = (unsigned)((double)done / (double)total * cells);
        fputs(" [", stderr);
        for (unsigned i = 0; i < cells; i++)
            putc(i < full ? '#' : '.', stderr);
        fprintf(stderr, "] %3.0f %% %s of %s", 100.0 * (double)done / (double)total,
                sup_bytes(done, b1), sup_bytes(total, b2));
    }
    if (note && *note) {
        putc(' ', stderr);
        sup_print_clean(stderr, note, false);
    }
    fflush(stderr);
    b->drawn = true;
}

void sup_bar_end(struct sup_bar *b)
{
    if (b->drawn) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
    }
    b->drawn = false;
}
