/* sup_tools.h - tools and thinking in a request: fields to an Ipc__Generate.
 *
 * Shared by chat and responses, which spell some of this differently: `where` is the field
 * as the client wrote it. Tools, calls and choices are checked for form here; the worker
 * renders them and knows what a schema may say. Page: docs/tools.md.
 * Tests: tests/supervisor/test_sup_api_tools.c
 */
#ifndef INFERD_SUP_TOOLS_H
#define INFERD_SUP_TOOLS_H

#include "sup_gen.h"

#define SUP_TOOLS_MAX 128          /* functions of a request */
#define SUP_TOOLS_BYTES (1u << 20) /* of their JSON */
#define SUP_TOOL_NAME 64           /* bytes of a function's name */
#define SUP_CALL_ID 256            /* bytes of a call's id */

/* Rows of a table of fields; enumerators end in TOOLS, TOOL_CHOICE, PARALLEL, KWARGS. */
#define SUP_TOOL_FIELDS(X)                                                  \
    X(TOOLS, "tools", ANY, false, 0, 0, 0, "an array of at most 128 tools") \
    X(TOOL_CHOICE, "tool_choice", ANY, false, 0, 0, 0, SUP_TOOL_CHOICES)    \
    X(PARALLEL, "parallel_tool_calls", BOOL, false, 0, 1, 1, NULL)          \
    X(KWARGS, "chat_template_kwargs", OBJECT, false, 0, 0, 0, NULL)
#define SUP_TOOL_CHOICES "one of \"none\", \"auto\", \"required\" or a function by name"

/* "model 'm' does not support tool calling (field 'x')"; false. */
bool sup_tools_refuse(const struct sup_gen *g, const char *field, struct sup_fail *f);
/* May the model be given tools, calls or tools' answers? Unknown yet: the worker will say. */
bool sup_tools_may(const struct sup_gen *g, const char *field, struct sup_fail *f);

/* A function's name: 1 to 64 of letters, digits, '_', '-', '.'. */
bool sup_tool_name_ok(const json_t *name);

/* tools: an array of {"type": "function", "function": {...}} (flat: its members beside
 * "type"); choice: "none", "auto", "required" or a function by name; parallel false: one
 * call an answer. Any may be NULL. */
bool sup_tools_read(struct sup_gen *g, json_t *tools, json_t *choice, bool parallel, bool flat,
                    Ipc__Generate *q, struct sup_fail *f);

/* Compact JSON text in the call's memory; false: no memory, or over max bytes (names
 * field). */
bool sup_tools_text(struct sup_gen *g, const json_t *j, const char *field, size_t max,
                    ProtobufCBinaryData *out, struct sup_fail *f);

/* Is thinking wanted? effort: "none" .. "xhigh" or NULL; kwargs: chat_template_kwargs or
 * NULL, which wins. */
bool sup_thinking_read(struct sup_gen *g, const json_t *effort, const char *effort_field,
                       json_t *kwargs, Ipc__Generate *q, struct sup_fail *f);
/* A grammar binds the answer, which may also be calls, but not where a call must be.
 * format: what the client calls a shape of JSON. */
bool sup_tools_format(const Ipc__Generate *q, const char *format, struct sup_fail *f);

#endif
