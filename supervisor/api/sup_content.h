/* sup_content.h - a text where content parts may stand.
 *
 * Endpoints that read texts only: a picture or a sound there is refused by name and never
 * skipped. Tests: tests/supervisor/test_sup_api_rerank.c, test_sup_api_extract.c
 */
#ifndef INFERD_SUP_CONTENT_H
#define INFERD_SUP_CONTENT_H

#include "sup_call.h"

/* A non-empty text: a string, a text part ({"text"} without a type too) or an array of text parts
 * and strings, joined by newlines. Borrowed from the tree or of the call's memory. false: *f, which
 * for files is media (SUP_E_...). */
bool sup_content_text(struct sup_call *c, json_t *j, const char *name, enum sup_code media,
                      ProtobufCBinaryData *out, struct sup_fail *f);

#endif
