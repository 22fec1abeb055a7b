/* sup_edit.h - one edited line on a terminal, with history.
 *
 * Small on purpose (no library): arrows, Home, End, Ctrl-A/E/B/F/K/U/W/L/P/N,
 * backspace, delete, pasted text (bracketed, so a pasted newline does not send).
 * The terminal is in raw mode only while a line is read. One row; a long line
 * scrolls sideways. Tests: tests/supervisor/test_sup_cli_edit.c, tests/e2e/cli_chat.py
 */
#ifndef INFERD_SUP_EDIT_H
#define INFERD_SUP_EDIT_H

#include <stddef.h>

#define SUP_EDIT_MAX_BYTES (1u << 20)
#define SUP_EDIT_HISTORY 200

struct sup_edit;

struct sup_edit *sup_edit_new(void); /* NULL when out of memory */
void sup_edit_free(struct sup_edit **e);
/* Prints prompt (ASCII) on stderr and reads a line from stdin. *out is freed by the
 * caller. Returns 1 a line, 0 end of input (Ctrl-D on an empty line), -1 Ctrl-C,
 * -2 over SUP_EDIT_MAX_BYTES, -3 failure. */
int sup_edit_line(struct sup_edit *e, const char *prompt, char **out);

/* The line itself, without a terminal: for tests. Returns as sup_edit_line, or 2 for
 * "go on". */
int sup_edit_key(struct sup_edit *e, unsigned char byte);
const char *sup_edit_text(const struct sup_edit *e, size_t *cursor);
void sup_edit_reset(struct sup_edit *e);
void sup_edit_remember(struct sup_edit *e);
/* Puts a line of an earlier session into the history; too long ones and ones with
 * control characters are passed over. */
void sup_edit_recall(struct sup_edit *e, const char *line);

#endif
