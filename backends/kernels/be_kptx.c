/* be_kptx.c - PTX as it is kept: what the compiler wrote, in fewer bytes.
 *
 * Without comments, blank lines and spare blanks, and with short names for what is local to an
 * entry: registers, labels, the one parameter. A third less to keep in the repository and for a
 * driver to read, and the same machine code (ptxas makes equal cubins of both). Names follow the
 * PTX manual, 4.4: a letter, or _ $ % and more, then letters, digits, _ $. None here is a type's or
 * an instruction's. Tests: tests/backends/test_be_kptx.c
 */
#include "be_kgen.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Registers as NVRTC numbers them, the longer word first; special ones (%tid) are others. */
static const struct {
    const char *word;
    char letter;
} regs[] = {
    {"rd", 'd'}, {"rs", 'h'}, {"fd", 'y'}, {"r", 'r'}, {"f", 'x'}, {"p", 'p'},
};

/* The only comment that stays: an instruction for newer devices (kx_prelude.cu, kx_wait). */
#define KEPT "griddepcontrol."

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* How many bytes at p, where a name may begin, *out stands for; 0: p keeps what it has. */
static size_t short_name(const char *p, char *out)
{
    static const char param[] = "_param_0";
    const size_t n_param = sizeof(param) - 1;
    size_t n = 0;

    for (size_t i = 0; *p == '%' && i < sizeof(regs) / sizeof(regs[0]); i++) {
        n = 1 + strlen(regs[i].word);
        *out = regs[i].letter;
        if (strncmp(p + 1, regs[i].word, n - 1) == 0 &&
            (isdigit((unsigned char)p[n]) || p[n] == '<'))
            return n;
    }
    *out = '$';
    if (strncmp(p, "$L__BB", 6) == 0)
        return 6;
    *out = 'a';
    for (n = 0; is_name(p[n]);)
        n++;
    return n > n_param && strncmp(p + n - n_param, param, n_param) == 0 ? n : 0;
}

/* In place: names only become shorter. */
static void shorten(char *line)
{
    char *to = line, c;

    for (const char *p = line; *p;) {
        size_t n = p > line && is_name(p[-1]) ? 0 : short_name(p, &c);

        *to++ = n ? c : *p;
        p += n ? n : 1;
    }
    *to = '\0';
}

void be_kptx_add(struct be_ktext *out, const char *p)
{
    while (*p) {
        size_t n = strcspn(p, "\n"), len = 0;
        char *line = malloc(n + 1);
        bool op;

        if (!line) {
            out->failed = true;
            return;
        }
        for (size_t i = 0; i < n; i++) {
            bool blank = p[i] == ' ' || p[i] == '\t';

            if (p[i] == '/' && i + 1 < n && p[i + 1] == '/' &&
                strncmp(p + i + 2, KEPT, sizeof(KEPT) - 1) != 0)
                break;
            if (!blank)
                line[len++] = p[i];
            else if (len > 0 && line[len - 1] != ' ')
                line[len++] = ' ';
        }
        while (len > 0 && line[len - 1] == ' ')
            len--;
        line[len] = '\0';
        op = line[0] != '.'; /* directives keep their blanks */
        for (char *c = line; op && (c = strstr(c, ", "));)
            memmove(c + 1, c + 2, strlen(c + 2) + 1);
        shorten(line);
        if (len > 0)
            be_ktext_add(out, "%s\n", line);
        free(line);
        p += n + (p[n] == '\n');
    }
}
