/* decide_ask.h - questions and artifacts written short, for the tests of decisions.
 * Include once per program.
 */
#ifndef TEST_WORKER_DECIDE_ASK_H
#define TEST_WORKER_DECIDE_ASK_H

#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "wrk_decide.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static inline ProtobufCBinaryData bytes(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* A question of up to four choices, for the life of the program. */
struct spec {
    uint32_t kind;
    const char *instructions;
    struct {
        const char *value, *description, *examples[4];
    } c[4];
    double threshold; /* WRK_MULTI */
    const char *calibration;
};
static inline Ipc__DecideQuestion *question(const struct spec *q)
{
    static struct {
        Ipc__DecideQuestion q;
        Ipc__DecideChoice c[4], *pc[4];
        ProtobufCBinaryData ex[4][4];
        double t[4];
    } bank[64], *b;
    static size_t next;

    b = &bank[next++ % N_OF(bank)];
    memset(b, 0, sizeof(*b));
    ipc__decide_question__init(&b->q);
    b->q.kind = q->kind;
    b->q.instructions = bytes(q->instructions);
    b->q.choices = b->pc;
    b->q.thresholds = b->t;
    for (size_t i = 0; i < 4 && q->c[i].value; i++) {
        Ipc__DecideChoice *c = b->pc[i] = &b->c[i];

        ipc__decide_choice__init(c);
        c->value = bytes(q->c[i].value);
        c->description = bytes(q->c[i].description ? q->c[i].description : "");
        c->examples = b->ex[i];
        while (c->n_examples < 4 && q->c[i].examples[c->n_examples]) {
            b->ex[i][c->n_examples] = bytes(q->c[i].examples[c->n_examples]);
            c->n_examples++;
        }
        b->q.n_choices++;
        b->t[i] = q->threshold;
    }
    if (q->kind == WRK_MULTI && !q->calibration)
        b->q.n_thresholds = b->q.n_choices;
    if (q->calibration)
        b->q.calibration_id = (char *)(uintptr_t)q->calibration;
    return &b->q;
}

#define IDENTITY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static const struct spec calibrated = {.kind = WRK_CHOICE,
                                       .instructions = "I",
                                       .calibration = "ok",
                                       .c = {{"a", "d", {NULL}}, {"b", "e", {NULL}}}};

/* An artifact with one thing replaced: what -> by. Static. */
static inline const char *artifact(const struct spec *q, const char *what, const char *by)
{
    static char text[4096], out[4096];
    uint8_t h[32];
    char hex[65], *at;

    wrk_set_hash(question(q), "CLUSTERING", 8, h);
    sodium_bin2hex(hex, sizeof(hex), h, sizeof(h));
    snprintf(text, sizeof(text),
             "{\"version\":1,\"method\":\"heldout-abstention-v1\",\"qualified\":true,\"binding\":{"
             "\"model_identity\":\"" IDENTITY "\",\"renderer_version\":\"instruction-category-v1\","
             "\"task_type\":\"CLUSTERING\",\"dimensions\":8,\"prototype_set_hash\":\"%s\","
             "\"labels\":[\"a\",\"b\"],\"mode\":\"%s\"},\"thresholds\":%s}",
             hex, q->kind == WRK_MULTI ? "multi" : "single",
             q->kind == WRK_MULTI ? "{\"similarity_thresholds\":{\"a\":0.25,\"b\":-1}}"
                                  : "{\"min_similarity\":0.5,\"min_margin\":0.125}");
    at = strstr(text, what);
    assert_non_null(at);
    snprintf(out, sizeof(out), "%.*s%s%s", (int)(at - text), text, by, at + strlen(what));
    return out;
}

#endif
