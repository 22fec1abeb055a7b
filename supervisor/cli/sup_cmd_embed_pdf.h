/* sup_cmd_embed_pdf.h - pages of a PDF as PNG, from inferd-pdf: a process of its own, in its own
 * sandbox, for each document (docs/media.md). Nothing of a document is read here. */
#ifndef INFERD_SUP_CMD_EMBED_PDF_H
#define INFERD_SUP_CMD_EMBED_PDF_H

#include <stddef.h>
#include <sys/types.h>

#include "rc.h"

struct sup_pdf {
    pid_t pid;
    int fd; /* its stdout */
    const char *path;
};

/* Errors: RC_NOT_FOUND the file, or the program beside this one; RC_INVALID no plain file; RC_IO.
 */
enum rc sup_pdf_open(struct sup_pdf *pdf, const char *path, struct rc_err *err);
/* The next page; *png NULL after the last (caller frees). Errors: RC_FORMAT what the program says
 * of the document, or an answer that it never gives; RC_CRASHED it was killed; RC_CANCELLED. */
enum rc sup_pdf_next(struct sup_pdf *pdf, char **png, size_t *n, struct rc_err *err);
/* Ends the program, whatever it does. A zeroed one is none. */
void sup_pdf_close(struct sup_pdf *pdf);

#endif
