/* sup_edit.c - see sup_edit.h.
 *
 * Two halves: a line with a cursor that understands bytes as keys (testable), and
 * the drawing of it. Always true: the cursor is at a character's first byte;
 * n <= SUP_EDIT_MAX_BYTES; text never holds a control character but \n and \t.
 * The caller's terminal settings are back after every line, also after Ctrl-C.
 * Tests: tests/supervisor/test_sup_cli_edit.c
 */
#include "sup_edit.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "sup_term.h"
#include "sup_text.h"

struct sup_edit {
    char *b;
    size_t n, cap, cur;
    char esc[16]; /* an escape sequence that is coming in */
    size_t n_esc;
    bool pasting;
    char *hist[SUP_EDIT_HISTORY];
    size_t n_hist, at_hist; /* at_hist == n_hist: the new line */
    char *draft;            /* the new line while history is shown */
};

struct sup_edit *sup_edit_new(void)
{
    struct sup_edit *e = calloc(1, sizeof(*e));

    if (e && !(e->b = calloc(1, e->cap = 256))) {
        free(e);
        return NULL;
    }
    return e;
}

void sup_edit_free(struct sup_edit **e)
{
    if (!*e)
        return;
    for (size_t i = 0; i < (*e)->n_hist; i++)
        free((*e)->hist[i]);
    free((*e)->draft);
    free((*e)->b);
    free(*e);
    *e = NULL;
}

const char *sup_edit_text(const struct sup_edit *e, size_t *cursor)
{
    if (cursor)
        *cursor = e->cur;
    return e->b;
}

void sup_edit_reset(struct sup_edit *e)
{
    e->n = e->cur = e->n_esc = 0;
    e->b[0] = '\0';
    e->pasting = false;
    e->at_hist = e->n_hist;
    free(e->draft);
    e->draft = NULL;
}

void sup_edit_remember(struct sup_edit *e)
{
    char *copy;

    if (e->n == 0 || (e->n_hist && strcmp(e->hist[e->n_hist - 1], e->b) == 0) ||
        !(copy = strdup(e->b)))
        return;
    if (e->n_hist == SUP_EDIT_HISTORY) {
        free(e->hist[0]);
        memmove(e->hist, e->hist + 1, (SUP_EDIT_HISTORY - 1) * sizeof(e->hist[0]));
        e->n_hist--;
    }
    e->hist[e->n_hist++] = copy;
}

static bool insert(struct sup_edit *e, const char *s, size_t n)
{
    if (n > SUP_EDIT_MAX_BYTES - e->n)
        return false;
    if (e->n + n + 1 > e->cap) {
        size_t cap = (e->n + n + 1) * 2;
        char *grown = realloc(e->b, cap);

        if (!grown)
            return false;
        e->b = grown;
        e->cap = cap;
    }
    memmove(e->b + e->cur + n, e->b + e->cur, e->n - e->cur + 1);
    memcpy(e->b + e->cur, s, n);
    e->n += n;
    e->cur += n;
    return true;
}

void sup_edit_recall(struct sup_edit *e, const char *line)
{
    for (const char *s = line; *s; s++) /* as keys would not have let it in */
        if (((unsigned char)*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7F)
            return;
    sup_edit_reset(e);
    if (insert(e, line, strlen(line)))
        sup_edit_remember(e);
    sup_edit_reset(e);
}

/* Start of the character before / behind at. */
static size_t back(const struct sup_edit *e, size_t at)
{
    do
        at -= at > 0;
    while (at > 0 && ((unsigned char)e->b[at] & 0xC0) == 0x80);
    return at;
}

static size_t forth(const struct sup_edit *e, size_t at)
{
    do
        at += at < e->n;
    while (at < e->n && ((unsigned char)e->b[at] & 0xC0) == 0x80);
    return at;
}

static void cut(struct sup_edit *e, size_t from, size_t to)
{
    memmove(e->b + from, e->b + to, e->n - to + 1);
    e->n -= to - from;
    e->cur = from;
}

static void cut_word(struct sup_edit *e)
{
    size_t at = e->cur;

    while (at > 0 && e->b[at - 1] == ' ')
        at--;
    while (at > 0 && e->b[at - 1] != ' ')
        at--;
    cut(e, at, e->cur);
}

static void show_history(struct sup_edit *e, size_t at)
{
    const char *s;

    if (at > e->n_hist || at == e->at_hist)
        return;
    if (e->at_hist == e->n_hist) {
        free(e->draft);
        e->draft = strdup(e->b);
    }
    s = at < e->n_hist ? e->hist[at] : e->draft ? e->draft : "";
    e->at_hist = at;
    cut(e, 0, e->n);
    (void)insert(e, s, strlen(s));
}

/* A whole sequence behind ESC. */
static void sequence(struct sup_edit *e, const char *s)
{
    static const struct {
        const char *seq;
        unsigned char same_as;
    } keys[] = {
        {"[A", 16}, {"[B", 14}, {"[C", 6},  {"[D", 2},  {"[H", 1}, {"[F", 5},
        {"OA", 16}, {"OB", 14}, {"OC", 6},  {"OD", 2},  {"OH", 1}, {"OF", 5},
        {"[1~", 1}, {"[4~", 5}, {"[7~", 1}, {"[8~", 5},
    };

    if (strcmp(s, "[200~") == 0)
        e->pasting = true;
    else if (strcmp(s, "[201~") == 0)
        e->pasting = false;
    else if (strcmp(s, "[3~") == 0 && e->cur < e->n)
        cut(e, e->cur, forth(e, e->cur));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(s, keys[i].seq) == 0)
            (void)sup_edit_key(e, keys[i].same_as);
}

static int escape(struct sup_edit *e, unsigned char c)
{
    char s[sizeof(e->esc)];
    bool csi = e->n_esc > 1 && e->esc[1] == '[';

    e->esc[e->n_esc++] = (char)c;
    if (e->n_esc == 2 && (c == '[' || c == 'O'))
        return 2;
    if (csi && (c < 0x40 || c > 0x7E) && e->n_esc < sizeof(e->esc) - 1)
        return 2;
    memcpy(s, e->esc + 1, e->n_esc - 1);
    s[e->n_esc - 1] = '\0';
    e->n_esc = 0;
    sequence(e, s);
    return 2;
}

int sup_edit_key(struct sup_edit *e, unsigned char c)
{
    if (e->n_esc > 0)
        return escape(e, c);
    if (c == 0x1B) {
        e->esc[e->n_esc++] = (char)c;
        return 2;
    }
    if (e->pasting && (c == '\r' || c == '\n'))
        return insert(e, "\n", 1) ? 2 : -2;
    if (c >= 0x20 && c != 0x7F)
        return insert(e, (const char *)&c, 1) ? 2 : -2;
    if (e->pasting)
        return c == '\t' ? (insert(e, "\t", 1) ? 2 : -2) : 2;
    switch (c) {
    case '\r':
    case '\n':
        return 1;
    case 3:
        return -1;
    case 4:
        if (e->n == 0)
            return 0;
        if (e->cur < e->n)
            cut(e, e->cur, forth(e, e->cur));
        break;
    case '\t':
        return insert(e, "    ", 4) ? 2 : -2;
    case 1:
        e->cur = 0;
        break;
    case 5:
        e->cur = e->n;
        break;
    case 2:
        e->cur = back(e, e->cur);
        break;
    case 6:
        e->cur = forth(e, e->cur);
        break;
    case 8:
    case 0x7F: {
        size_t end = e->cur;

        cut(e, back(e, end), end);
        break;
    }
    case 11:
        cut(e, e->cur, e->n);
        break;
    case 21:
        cut(e, 0, e->cur);
        break;
    case 23:
        cut_word(e);
        break;
    case 16:
        if (e->at_hist > 0)
            show_history(e, e->at_hist - 1);
        break;
    case 14:
        show_history(e, e->at_hist + 1);
        break;
    case 12:
        fputs("\x1b[H\x1b[2J", stderr);
        break;
    default:
        break;
    }
    return 2;
}

/* ------------------------------------------------------------------- drawing */

/* Width of [from, to); newlines and tabs are drawn as one mark. */
static size_t columns(const struct sup_edit *e, size_t from, size_t to)
{
    size_t w = 0;
    uint32_t cp;

    while (from < to) {
        from += sup_text_next(e->b + from, to - from, &cp, NULL);
        w += cp == '\n' || cp == '\t' ? 1 : (size_t)sup_width(cp);
    }
    return w;
}

static void draw(const struct sup_edit *e, const char *prompt)
{
    struct winsize ws = {0};
    size_t room, from = 0, to = e->cur, w;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) != 0 || ws.ws_col < 10)
        ws.ws_col = 80;
    room = ws.ws_col - strlen(prompt) - 1;
    /* drop characters on the left until the cursor is inside the row */
    for (w = columns(e, 0, e->cur); w >= room && from < e->cur;) {
        size_t next = forth(e, from);

        w -= columns(e, from, next);
        from = next;
    }
    while (to < e->n && w + columns(e, to, forth(e, to)) < room) {
        w += columns(e, to, forth(e, to));
        to = forth(e, to);
    }
    fprintf(stderr, "\r%s", prompt);
    for (size_t i = from; i < to; i++)
        putc(e->b[i] == '\n' ? '|' : e->b[i] == '\t' ? ' ' : e->b[i], stderr);
    w = strlen(prompt) + columns(e, from, e->cur);
    fprintf(stderr, "\x1b[K\r\x1b[%zuC", w);
    fflush(stderr);
}

/* More keys are waiting: do not draw in between (a paste of a megabyte). */
static bool more(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static int read_keys(struct sup_edit *e, const char *prompt)
{
    int got = 2;

    while (got == 2) {
        unsigned char c;
        ssize_t r;

        if (!more())
            draw(e, prompt);
        r = read(STDIN_FILENO, &c, 1);
        if (r < 0 && errno == EINTR)
            continue; /* a resize, or an interrupt sent from elsewhere */
        if (r <= 0)
            return r < 0 ? -3 : 0;
        got = sup_edit_key(e, c);
    }
    return got;
}

int sup_edit_line(struct sup_edit *e, const char *prompt, char **out)
{
    struct termios before, raw;
    int got;

    sup_edit_reset(e);
    if (tcgetattr(STDIN_FILENO, &before) != 0)
        return -3;
    raw = before;
    raw.c_iflag &= ~(tcflag_t)(ICRNL | IXON | INLCR | ISTRIP);
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) != 0)
        return -3;
    fputs("\x1b[?2004h", stderr);
    got = read_keys(e, prompt);
    e->cur = e->n;
    draw(e, prompt);
    fputs("\x1b[?2004l\n", stderr);
    fflush(stderr);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    if (got == 1) {
        sup_edit_remember(e);
        *out = strdup(e->b);
        return *out ? 1 : -3;
    }
    return got;
}
