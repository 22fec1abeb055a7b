/* wrk_decide.h - decisions by similarity: what is rendered, hashed, measured and ruled.
 *
 * A question has choices; every choice has a prototype, a unit vector: the normalized
 * centroid of its examples' vectors, each normalized first, or the vector of its description.
 * An input is asked by the cosine of its vector with each prototype. Here are the parts that
 * know no task and no channel; wrk_decide.c puts them together. Page: docs/decisions.md.
 * Source of the rules: http-api.md 2.5. Tests: tests/worker/test_wrk_decide_rule.c
 */
#ifndef INFERD_WRK_DECIDE_H
#define INFERD_WRK_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc.h"
#include "rc.h"

#define WRK_DECIDE_TIE 1e-6 /* a margin not above it is a tie */
#define WRK_SET_HASH_BYTES 32

enum wrk_decide_kind { WRK_CHOICE = 1, WRK_MULTI = 2 }; /* as on the wire */
enum wrk_decide_status { WRK_SELECTED = 1, WRK_EMPTY = 2, WRK_ABSTAINED = 3 };
enum wrk_decide_reason { WRK_NO_REASON, WRK_TIE, WRK_LOW_SIMILARITY, WRK_LOW_MARGIN };

/* ------------------------------------------------------------------- rendering */

/* What a text is to its question. */
enum wrk_render { WRK_RENDER_INPUT, WRK_RENDER_CATEGORY };

/* Bytes of a rendered text, and the text into out (room for as many, no NUL):
 *   Instruction: {instructions}\nInput: {text}         inputs and examples
 *   Instruction: {instructions}\nCategory: {text}      descriptions */
size_t wrk_render_bytes(const Ipc__DecideQuestion *q, enum wrk_render how, size_t n_text);
void wrk_render(const Ipc__DecideQuestion *q, enum wrk_render how, ProtobufCBinaryData text,
                uint8_t *out);
/* How many texts make the prototype of a choice (>= 1), the i-th of them and how it is
 * rendered. A choice without examples and description is described by its value. */
uint32_t wrk_choice_texts(const Ipc__DecideChoice *c);
ProtobufCBinaryData wrk_choice_text(const Ipc__DecideChoice *c, uint32_t i, enum wrk_render *how);

/* SHA-256 of the set of prototypes a question has: of these fields, each behind its length as
 * 8 bytes little-endian, numbers as 8 bytes little-endian:
 *   the renderer's name, the task type in force, the dimensions, the number of choices, and for
 *   every choice in order the number of its texts and every rendered text (before the task's
 *   prefix).
 * Values and the kind of question are not in it (vectors do not depend on them), thresholds
 * neither; the model's identity is bound beside it. */
void wrk_set_hash(const Ipc__DecideQuestion *q, const char *task_type, uint32_t dim,
                  uint8_t out[WRK_SET_HASH_BYTES]);

/* --------------------------------------------------------------------- vectors */

/* v / |v| into out (may be v). RC_INTERNAL: a value is not finite, or the length is 0. */
enum rc wrk_unit(const float *v, uint32_t dim, float *out, struct rc_err *err);
/* The normalized centroid of 1 to IPC_DECIDE_EXAMPLES vectors [n, dim], each normalized first.
 * Errors as wrk_unit. */
enum rc wrk_centroid(const float *v, uint32_t n, uint32_t dim, float *out, struct rc_err *err);
/* Cosine of two unit vectors, clamped to [-1, 1]. Sums in double, in order. */
double wrk_cosine(const float *a, const float *b, uint32_t dim);

/* ----------------------------------------------------------------------- rules */

/* What decides about acceptance: the request's, or an artifact's. */
struct wrk_accept {
    bool has_min_similarity, has_min_margin;
    double min_similarity, min_margin;
    double threshold[IPC_DECIDE_CHOICES]; /* WRK_MULTI */
};
struct wrk_verdict {
    enum wrk_decide_status status;
    enum wrk_decide_reason reason;
    double margin;
    uint32_t n_chosen, chosen[IPC_DECIDE_CHOICES];
};
/* The best of n >= 2 similarities, or why it is not good enough: a tie, then min_similarity,
 * then min_margin; what is equal to a bound is accepted. */
void wrk_decide_choice(const double *s, uint32_t n, const struct wrk_accept *a,
                       struct wrk_verdict *out);
/* Those at or above their threshold; the margin is the distance to the nearest threshold. */
void wrk_decide_multi(const double *s, uint32_t n, const struct wrk_accept *a,
                      struct wrk_verdict *out);

/* ---------------------------------------------------------------- calibrations */

/* What an artifact must have been made for. */
struct wrk_binding {
    const char *model_identity; /* "" = not known: no artifact can be bound to the model */
    const char *task_type;
    uint32_t dimensions;
    const uint8_t *set_hash;
    const Ipc__DecideQuestion *question; /* its kind, its values in order */
};
#define WRK_CALIBRATION_BYTES (1u << 20)
/* Reads calibrations/ID.json below the model's folder root_fd and gives the thresholds in it.
 * Errors, all RC_INVALID and in words: no such artifact, not an artifact, not qualified, made
 * for something else; RC_NOMEM. */
enum rc wrk_calibration_read(int root_fd, const char *id, const struct wrk_binding *b,
                             struct wrk_accept *out, struct rc_err *err);
/* The same from its text. */
enum rc wrk_calibration_parse(const char *text, size_t n_bytes, const char *id,
                              const struct wrk_binding *b, struct wrk_accept *out,
                              struct rc_err *err);

#endif
