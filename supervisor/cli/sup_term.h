/* sup_term.h - what may reach a person's terminal.
 *
 * A model's text is foreign: it must not move the cursor, set the title, write the
 * clipboard or hide what was printed. sup_clean drops escape sequences and control
 * characters (all but newline and tab), directional overrides and what is no UTF-8;
 * it keeps state between pieces, so a sequence cut in two is still dropped.
 * Also: widths, tables, a progress bar. Tests: tests/supervisor/test_sup_cli_term.c
 */
#ifndef INFERD_SUP_TERM_H
#define INFERD_SUP_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct sup_clean {
    char part[4]; /* an unfinished character */
    unsigned n_part;
    unsigned state, length; /* inside an escape sequence, and for how long */
};

/* Writes the harmless rest of in to out (room for 3 * n + 16 bytes); returns its
 * length. */
size_t sup_clean(struct sup_clean *c, const char *in, size_t n, char *out);
/* Cleans and prints a whole text. newlines: keep them, else print a blank. */
void sup_print_clean(FILE *to, const char *s, bool newlines);
/* Columns a code point takes: 0, 1 or 2. */
int sup_width(uint32_t cp);
size_t sup_text_width(const char *s, size_t n);

/* Rows of cells with aligned columns. A cell whose column name begins with '>' is
 * right-aligned (the '>' is not printed). All cells are cleaned. */
void sup_table(FILE *to, const char *const *columns, size_t n_columns, const char *const *cells,
               size_t n_rows);
/* "1.2 GiB" into out. */
const char *sup_bytes(uint64_t n, char out[16]);

/* True when the terminal moves no cursor: TERM is "dumb" or missing. Nothing here
 * ever colours, so NO_COLOR needs no answer. */
bool sup_term_dumb(void);

/* A bar on stderr when that is a terminal that moves its cursor, else nothing. done/total 0 =
 * unknown. */
struct sup_bar {
    bool on, drawn;
    const char *label;
};
void sup_bar_start(struct sup_bar *b, const char *label);
void sup_bar_set(struct sup_bar *b, uint64_t done, uint64_t total, const char *note);
void sup_bar_end(struct sup_bar *b); /* removes it */

#endif
