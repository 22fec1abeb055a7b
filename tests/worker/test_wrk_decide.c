/* test_wrk_decide.c - decisions by similarity: rules, rendering, hashes, artifacts, the cache of
 * prototypes, and whole Decide tasks over the scripted model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <sodium.h>

#include "worker/fake_mdl.h"
#include "worker/engine_rig.h"
#include "wrk_decide.h"
#include "wrk_engine_impl.h"
#include "wrk_protos.h"

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static ProtobufCBinaryData bytes(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* ---------------------------------------------------------------------- rules */

static void a_choice_is_selected_or_says_why_not(void **state)
{
    static const struct {
        const char *name;
        double s[3];
        bool has_sim, has_margin;
        double sim, margin;
        enum wrk_decide_status status;
        enum wrk_decide_reason reason;
        uint32_t chosen;
        double want_margin;
    } rows[] = {
        {"the best", {0.1, 0.7, 0.3}, false, false, 0, 0, WRK_SELECTED, 0, 1, 0.4},
        {"negative similarities", {-0.9, -0.5, -0.7}, false, false, 0, 0, WRK_SELECTED, 0, 1, 0.2},
        {"equal ones tie", {0.5, 0.2, 0.5}, false, false, 0, 0, WRK_ABSTAINED, WRK_TIE, 0, 0},
        {"a tie is at most 1e-6",
         {0.5, 0.5 - 1e-6, 0},
         false,
         false,
         0,
         0,
         WRK_ABSTAINED,
         WRK_TIE,
         0,
         1e-6},
        {"above it is none", {0.5, 0.5 - 2e-6, 0}, false, false, 0, 0, WRK_SELECTED, 0, 0, 2e-6},
        {"a tie comes before low similarity",
         {0.5, 0.5, 0},
         true,
         true,
         0.9,
         2,
         WRK_ABSTAINED,
         WRK_TIE,
         0,
         0},
        {"similarity below",
         {0.5, 0.25, 0},
         true,
         false,
         0.5000001,
         0,
         WRK_ABSTAINED,
         WRK_LOW_SIMILARITY,
         0,
         0.25},
        {"similarity equal", {0.5, 0.25, 0}, true, false, 0.5, 0, WRK_SELECTED, 0, 0, 0.25},
        {"similarity comes before margin",
         {0.5, 0.25, 0},
         true,
         true,
         0.6,
         1,
         WRK_ABSTAINED,
         WRK_LOW_SIMILARITY,
         0,
         0.25},
        {"margin below",
         {0.5, 0.25, 0},
         true,
         true,
         0.5,
         0.26,
         WRK_ABSTAINED,
         WRK_LOW_MARGIN,
         0,
         0.25},
        {"margin equal", {0.5, 0.25, 0}, true, true, 0.5, 0.25, WRK_SELECTED, 0, 0, 0.25},
        {"the widest margin", {1, -1, -1}, false, true, 0, 2, WRK_SELECTED, 0, 0, 2},
        {"a bound that is not given is none",
         {-0.5, -0.75, -1},
         false,
         false,
         1,
         2,
         WRK_SELECTED,
         0,
         0,
         0.25},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct wrk_accept a = {.has_min_similarity = rows[i].has_sim,
                               .min_similarity = rows[i].sim,
                               .has_min_margin = rows[i].has_margin,
                               .min_margin = rows[i].margin};
        struct wrk_verdict v;

        wrk_decide_choice(rows[i].s, 3, &a, &v);
        if (v.status != rows[i].status || v.reason != rows[i].reason ||
            fabs(v.margin - rows[i].want_margin) > 1e-9 ||
            v.n_chosen != (rows[i].status == WRK_SELECTED) ||
            (v.n_chosen && v.chosen[0] != rows[i].chosen))
            fail_msg("%s: status %d reason %d margin %g", rows[i].name, v.status, v.reason,
                     v.margin);
    }
}

static void multi_choice_accepts_what_reaches_its_threshold(void **state)
{
    static const struct {
        const char *name;
        double s[3], t[3];
        bool has_margin;
        double margin;
        enum wrk_decide_status status;
        uint32_t n, chosen[3];
        double want_margin;
    } rows[] = {
        {"all at -1", {-1, 0, 0.5}, {-1, -1, -1}, false, 0, WRK_SELECTED, 3, {0, 1, 2}, 0},
        {"none at 1", {0.9, 0, 0.5}, {1, 1, 1}, false, 0, WRK_EMPTY, 0, {0}, 0.1},
        {"each by its own", {0.5, 0.5, 0.5}, {0.6, 0.4, 0.5}, false, 0, WRK_SELECTED, 2, {1, 2}, 0},
        {"a margin that is too small withholds the set",
         {0.5, 0.75, 0},
         {0.25, 0.25, 0.25},
         true,
         0.26,
         WRK_ABSTAINED,
         0,
         {0},
         0.25},
        {"a margin that is met",
         {0.5, 0.75, 0},
         {0.25, 0.25, 0.25},
         true,
         0.25,
         WRK_SELECTED,
         2,
         {0, 1},
         0.25},
        {"nothing accepted, margin met",
         {0, 0, 0},
         {0.5, 0.5, 0.5},
         true,
         0.5,
         WRK_EMPTY,
         0,
         {0},
         0.5},
        {"nothing accepted, margin not met",
         {0, 0, 0},
         {0.5, 0.5, 0.5},
         true,
         0.6,
         WRK_ABSTAINED,
         0,
         {0},
         0.5},
        {"the widest margin", {-1, -1, -1}, {1, 1, 1}, true, 2, WRK_EMPTY, 0, {0}, 2},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        struct wrk_accept a = {.has_min_margin = rows[i].has_margin, .min_margin = rows[i].margin};
        struct wrk_verdict v;

        memcpy(a.threshold, rows[i].t, sizeof(rows[i].t));
        wrk_decide_multi(rows[i].s, 3, &a, &v);
        if (v.status != rows[i].status || v.n_chosen != rows[i].n ||
            memcmp(v.chosen, rows[i].chosen, rows[i].n * sizeof(uint32_t)) != 0 ||
            fabs(v.margin - rows[i].want_margin) > 1e-9 ||
            v.reason != (v.status == WRK_ABSTAINED ? WRK_LOW_MARGIN : WRK_NO_REASON))
            fail_msg("%s: status %d, %u chosen, margin %g", rows[i].name, v.status, v.n_chosen,
                     v.margin);
    }
}

static void vectors_are_normalized_one_by_one(void **state)
{
    /* the long one counts no more than the short one */
    static const float two[4] = {100, 0, 0, 0.01f}, away[4] = {1, 0, -1, 0};
    static const float nan[2] = {NAN, 1}, zero[2] = {0, 0}, inf[2] = {INFINITY, 0};
    static const float big[2] = {3e38f, 3e38f};
    float out[2];

    (void)state;
    assert_int_equal(wrk_centroid(two, 2, 2, out, NULL), RC_OK);
    assert_true(fabs((double)out[0] - sqrt(0.5)) < 1e-7 && fabs((double)out[1] - sqrt(0.5)) < 1e-7);
    assert_int_equal(wrk_centroid(away, 2, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(nan, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(zero, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(inf, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_centroid(zero, 1, 2, out, NULL), RC_INTERNAL);
    assert_int_equal(wrk_unit(big, 2, out, NULL), RC_OK);
    assert_true(wrk_cosine(out, out, 2) <= 1 && wrk_cosine(out, out, 2) > 1 - 1e-6);
    out[0] = out[1] = 0.8f; /* longer than 1 */
    assert_true(wrk_cosine(out, out, 2) == 1);
    assert_true(wrk_cosine(out, (const float[]){-0.8f, -0.8f}, 2) == -1);
}

/* ------------------------------------------------------------------ rendering */

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
static Ipc__DecideQuestion *question(const struct spec *q)
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

static void texts_are_rendered_as_the_renderer_says(void **state)
{
    Ipc__DecideQuestion *q = question(&(struct spec){
        .kind = WRK_CHOICE,
        .instructions = "Do it.",
        .c = {{"v", NULL, {"e1", "e2"}}, {"w", "a d", {NULL}}, {"x", NULL, {NULL}}}});
    static const char *const want[] = {
        "Instruction: Do it.\nInput: e1", "Instruction: Do it.\nInput: e2",
        "Instruction: Do it.\nCategory: a d", "Instruction: Do it.\nCategory: x"};
    size_t at = 0;

    (void)state;
    for (size_t c = 0; c < q->n_choices; c++)
        for (uint32_t i = 0; i < wrk_choice_texts(q->choices[c]); i++, at++) {
            enum wrk_render how;
            ProtobufCBinaryData text = wrk_choice_text(q->choices[c], i, &how);
            uint8_t out[64];

            assert_int_equal(wrk_render_bytes(q, how, text.len), strlen(want[at]));
            wrk_render(q, how, text, out);
            assert_memory_equal(out, want[at], strlen(want[at]));
        }
    assert_int_equal(at, 4);
}

static void a_set_hash_is_of_what_makes_the_vectors(void **state)
{
    const struct spec base = {.kind = WRK_CHOICE,
                              .instructions = "I",
                              .c = {{"a", NULL, {"12", "3"}}, {"b", "d", {NULL}}}};
    const struct spec same[] = {
        {.kind = WRK_MULTI,
         .instructions = "I",
         .threshold = 0.5,
         .c = {{"a", NULL, {"12", "3"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"z", "unread", {"12", "3"}}, {"y", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"12", "3"}}, {"d", NULL, {NULL}}}},
    };
    const struct spec other[] = {
        {.kind = WRK_CHOICE,
         .instructions = "J",
         .c = {{"a", NULL, {"12", "3"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"1", "23"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"3", "12"}}, {"b", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"12", "3"}}, {"b", NULL, {"d"}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"a", NULL, {"12"}}, {"b", NULL, {"3"}}, {"c", "d", {NULL}}}},
        {.kind = WRK_CHOICE,
         .instructions = "I",
         .c = {{"b", "d", {NULL}}, {"a", NULL, {"12", "3"}}}},
    };
    uint8_t h[32], k[32];
    char hex[65];

    (void)state;
    wrk_set_hash(question(&base), "CLUSTERING", 256, h);
    sodium_bin2hex(hex, sizeof(hex), h, sizeof(h));
    /* computed by hand with Python's hashlib from the description in wrk_decide.h */
    assert_string_equal(hex, "08c5248b44ee05269bea8799679761ec6406268a87dbd07c6ae49d902c299eaf");
    for (size_t i = 0; i < N_OF(same); i++) {
        wrk_set_hash(question(&same[i]), "CLUSTERING", 256, k);
        assert_memory_equal(h, k, 32);
    }
    for (size_t i = 0; i < N_OF(other); i++) {
        wrk_set_hash(question(&other[i]), "CLUSTERING", 256, k);
        assert_memory_not_equal(h, k, 32);
    }
    wrk_set_hash(question(&base), "CLASSIFICATION", 256, k);
    assert_memory_not_equal(h, k, 32);
    wrk_set_hash(question(&base), "CLUSTERING", 128, k);
    assert_memory_not_equal(h, k, 32);
}

/* --------------------------------------------------------------------- cache */

static struct wrk_proto *get(struct wrk_protos *p, int key, uint32_t n, uint32_t dim,
                             const void *user)
{
    uint8_t k[WRK_PROTOS_KEY] = {0};
    struct wrk_proto *s = NULL;

    memcpy(k, &key, sizeof(key));
    assert_int_equal(wrk_protos_get(p, k, n, dim, user, &s, NULL), RC_OK);
    assert_true(p->n <= WRK_PROTOS_MAX && p->bytes <= WRK_PROTOS_BYTES);
    return s;
}
static void filled(struct wrk_protos *p, int key, uint32_t n, uint32_t dim)
{
    struct wrk_proto *s = get(p, key, n, dim, p);

    wrk_protos_filled(p, s);
    wrk_protos_put(p, &s, p);
}

static void sets_are_kept_within_both_bounds_longest_unused_goes(void **state)
{
    struct wrk_protos p = {0};
    struct wrk_proto *s, *held;
    int a = 1;

    (void)state;
    for (int i = 0; i < 300; i++)
        filled(&p, i, 2, 4);
    assert_int_equal(p.n, WRK_PROTOS_MAX);
    s = get(&p, 299, 2, 4, &a);
    assert_int_equal(s->state, WRK_PROTO_READY);
    wrk_protos_put(&p, &s, &a);
    assert_null(s);
    held = get(&p, 44, 2, 4, &a); /* the oldest there is, in use now: it stays */
    assert_int_equal(held->state, WRK_PROTO_READY);
    for (int i = 300; i < 600; i++)
        filled(&p, i, 2, 4);
    assert_int_equal(get(&p, 44, 2, 4, &a)->state, WRK_PROTO_READY);
    s = get(&p, 299, 2, 4, &a); /* gone, and taken by us */
    assert_int_equal(s->state, WRK_PROTO_FILLING);
    wrk_protos_put(&p, &s, &a); /* given up: nothing is left of it */
    assert_int_equal(p.n, WRK_PROTOS_MAX - 1);
    wrk_protos_deinit(&p);

    memset(&p, 0, sizeof(p));
    for (int i = 0; i < 10; i++) /* 192 KiB each: five fit */
        filled(&p, i, 64, 768);
    assert_int_equal(p.n, 5);
    s = get(&p, 100, 64, 8192, &a); /* larger than the whole: its user's alone */
    assert_false(s->kept);
    assert_int_equal(p.n, 5);
    wrk_protos_filled(&p, s);
    wrk_protos_put(&p, &s, &a);
    assert_int_equal(p.n, 5);
    wrk_protos_deinit(&p);
    assert_int_equal(p.bytes, 0);
}

static void one_fills_the_others_wait_and_inherit(void **state)
{
    struct wrk_protos p = {0};
    struct wrk_proto *a, *b, *c;
    int ua = 1, ub = 2, uc = 3;

    (void)state;
    a = get(&p, 1, 2, 4, &ua);
    b = get(&p, 1, 2, 4, &ub);
    c = get(&p, 1, 2, 4, &uc);
    assert_ptr_equal(a, b);
    assert_ptr_equal(a->owner, &ua);
    assert_int_equal(p.n_waits, 2);
    wrk_protos_put(&p, &b, &ub); /* a waiter leaves: the owner's fill goes on */
    assert_int_equal(a->state, WRK_PROTO_FILLING);
    assert_ptr_equal(a->owner, &ua);
    assert_false(wrk_protos_take(c, &uc));
    wrk_protos_put(&p, &a, &ua); /* the owner leaves: a waiter takes over, once */
    assert_int_equal(c->state, WRK_PROTO_VACANT);
    assert_true(wrk_protos_take(c, &uc));
    assert_false(wrk_protos_take(c, &ub));
    assert_ptr_equal(c->owner, &uc);
    wrk_protos_filled(&p, c);
    wrk_protos_put(&p, &c, &uc);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.n_fills, 1);
    assert_int_equal(get(&p, 1, 2, 4, &ua)->state, WRK_PROTO_READY);
    assert_int_equal(p.n_hits, 1);
    wrk_protos_deinit(&p);
}

/* ------------------------------------------------------------------ artifacts */

#define IDENTITY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static const struct spec calibrated = {.kind = WRK_CHOICE,
                                       .instructions = "I",
                                       .calibration = "ok",
                                       .c = {{"a", "d", {NULL}}, {"b", "e", {NULL}}}};

/* An artifact with one thing replaced: what -> by. Static. */
static const char *artifact(const struct spec *q, const char *what, const char *by)
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

static enum rc parse(const struct spec *q, const char *text, struct wrk_accept *a,
                     struct rc_err *err)
{
    struct wrk_binding b = {.model_identity = IDENTITY, .task_type = "CLUSTERING", .dimensions = 8};
    uint8_t h[32];

    b.question = question(q);
    wrk_set_hash(b.question, "CLUSTERING", 8, h);
    b.set_hash = h;
    return wrk_calibration_parse(text, strlen(text), "ok", &b, a, err);
}

static void an_artifact_is_believed_only_for_what_it_was_made(void **state)
{
    struct spec multi = calibrated;
    static const struct {
        const char *what, *by, *says;
        bool multi;
    } rows[] = {
        {"{", "", "no JSON", false},
        {"{", "[{", "no JSON", false},
        {"\"version\":1", "\"version\":2", "version 1", false},
        {"\"version\":1", "\"version\":true", "version 1", false},
        {"heldout-abstention-v1", "other", "heldout-abstention-v1", false},
        {"\"qualified\":true", "\"qualified\":false", "not qualified", false},
        {"\"qualified\":true", "\"x\":true", "not qualified", false},
        {"\"qualified\":true", "\"qualified\":1", "not qualified", false},
        {"0011", "0012", "model identity", false},
        {"instruction-category-v1", "instruction-category-v2", "renderer", false},
        {"CLUSTERING", "CLASSIFICATION", "task type", false},
        {"\"dimensions\":8", "\"dimensions\":4", "4 dimensions", false},
        {"\"dimensions\":8", "\"dimensions\":8.0", "dimensions", false},
        {"_hash\":\"", "_hash\":\"0", "prototypes", false},
        {"[\"a\",\"b\"]", "[\"b\",\"a\"]", "label 0", false},
        {"[\"a\",\"b\"]", "[\"a\"]", "1 labels", false},
        {"[\"a\",\"b\"]", "[\"a\",\"b\",\"c\"]", "3 labels", false},
        {"[\"a\",\"b\"]", "\"a\"", "labels", false},
        {"[\"a\",\"b\"]", "[\"a\",2]", "label 1", false},
        {"single", "multi", "kind of question", false},
        {"\"mode\"", "\"m\"", "binding.mode", false},
        {"\"binding\"", "\"b\"", "'binding' is missing", false},
        {"\"thresholds\"", "\"t\"", "'thresholds' is missing", false},
        {"0.125", "2.5", "min_margin", false},
        {"0.125", "-0.5", "min_margin", false},
        {"0.125", "\"0.1\"", "min_margin", false},
        {"\"min_similarity\":0.5", "\"min_similarity\":1.5", "min_similarity", false},
        {"\"min_similarity\":0.5,", "", "min_similarity", false},
        {"multi", "single", "kind of question", true},
        {"\"b\":-1", "\"c\":-1", "threshold 'b'", true},
        {",\"b\":-1", "", "one for each label", true},
        {"-1}", "-1.25}", "threshold 'b'", true},
        {"-1}", "-1,\"c\":0}", "one for each label", true},
    };
    struct wrk_accept a;
    struct rc_err err;

    (void)state;
    multi.kind = WRK_MULTI;
    assert_int_equal(parse(&calibrated, artifact(&calibrated, "{", "{"), &a, NULL), RC_OK);
    assert_true(a.has_min_similarity && a.min_similarity == 0.5 && a.has_min_margin &&
                a.min_margin == 0.125);
    assert_int_equal(parse(&multi, artifact(&multi, "{", "{"), &a, NULL), RC_OK);
    assert_true(a.threshold[0] == 0.25 && a.threshold[1] == -1 && !a.has_min_margin);
    for (size_t i = 0; i < N_OF(rows); i++) {
        const struct spec *q = rows[i].multi ? &multi : &calibrated;

        err = RC_ERR_INIT;
        if (parse(q, artifact(q, rows[i].what, rows[i].by), &a, &err) != RC_INVALID ||
            !strstr(err.msg, rows[i].says) || strcmp(err.what, "calibration_id") != 0)
            fail_msg("'%s' by '%s': %s", rows[i].what, rows[i].by, err.msg);
    }
}

/* ---------------------------------------------------------------------- tasks */

struct answer {
    enum rc rc; /* RC_AGAIN: none yet */
    struct rc_err err;
    Ipc__Frame *f;
};
struct rig {
    struct mdl *m;
    struct wrk_engine *e;
    struct wrk_chan chan;
    int fd, root;
    struct answer a[8];
    Ipc__Stats stats;
};

static void on_frame(void *user, const Ipc__Frame *f)
{
    struct rig *r = user;
    uint8_t buf[65536];

    if (f->body_case == IPC__FRAME__BODY_STATS) {
        r->stats = *f->stats;
        return;
    }
    assert_true(f->task < N_OF(r->a) && r->a[f->task].rc == RC_AGAIN);
    if (f->body_case == IPC__FRAME__BODY_ERROR) {
        ipc_error_to(&r->a[f->task].err, f->error);
        r->a[f->task].rc = r->a[f->task].err.code;
        return;
    }
    assert_int_equal(f->body_case, IPC__FRAME__BODY_DECIDED);
    assert_true(ipc__frame__get_packed_size(f) <= sizeof(buf));
    r->a[f->task].f = ipc__frame__unpack(NULL, ipc__frame__pack(f, buf), buf);
    r->a[f->task].rc = RC_OK;
}

static struct rig *rig_new(void)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct wrk_engine_opts o = {
        .max_seqs = 2, .batch_tokens = 64, .max_queue = 64, .has_root = true};

    r->m = fake_new(64, 2, 64);
    snprintf(r->m->info.identity, sizeof(r->m->info.identity), "%s", IDENTITY);
    r->fd = engine_channel(&r->chan);
    o.mdl = r->m;
    o.chan = &r->chan;
    o.root_fd = r->root = open(TEST_BUILD, O_RDONLY | O_DIRECTORY);
    assert_true(r->root >= 0);
    assert_int_equal(wrk_engine_new(&r->e, &o, NULL), RC_OK);
    for (size_t i = 0; i < N_OF(r->a); i++)
        r->a[i].rc = RC_AGAIN;
    return r;
}
static void rig_free(struct rig *r)
{
    for (size_t i = 0; i < N_OF(r->a); i++)
        if (r->a[i].f)
            ipc__frame__free_unpacked(r->a[i].f, NULL);
    wrk_engine_free(&r->e);
    close(r->chan.fd);
    wrk_chan_deinit(&r->chan);
    close(r->fd);
    close(r->root);
    free(r->m);
    free(r);
}
static void step(struct rig *r)
{
    engine_step(r->e, &r->chan, r->fd, on_frame, r);
}
static void run(struct rig *r)
{
    for (int i = 0; wrk_engine_busy(r->e); i++) {
        assert_true(i < 10000);
        step(r);
    }
    assert_int_equal(wrk_engine_stats(r->e, 0, NULL), RC_OK);
    engine_read(r->fd, on_frame, r);
}

struct ask {
    const struct spec *q[4];
    const char *input[4], *task_type, *identity;
    uint32_t dims;
    uint64_t deadline_us;
};
static void ask(struct rig *r, uint64_t task, const struct ask *a)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Decide d = IPC__DECIDE__INIT;
    Ipc__DecideQuestion *q[4];
    ProtobufCBinaryData in[4];

    d.questions = q;
    d.inputs = in;
    for (; d.n_questions < 4 && a->q[d.n_questions]; d.n_questions++)
        q[d.n_questions] = question(a->q[d.n_questions]);
    for (; d.n_inputs < 4 && a->input[d.n_inputs]; d.n_inputs++)
        in[d.n_inputs] = bytes(a->input[d.n_inputs]);
    d.dimensions = a->dims;
    d.deadline_us = a->deadline_us;
    if (a->task_type)
        d.task_type = (char *)(uintptr_t)a->task_type;
    if (a->identity)
        d.model_identity = (char *)(uintptr_t)a->identity;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_DECIDE;
    f.decide = &d;
    assert_int_equal(engine_submit(r->e, &f), RC_OK);
}

/* What the scripted model says of a rendered text, cut and normalized. */
static void vector(const char *instructions, const char *word, const char *text, uint32_t dim,
                   double *v)
{
    char s[256];
    int32_t ids[256];
    float f[8];
    double sum = 0;
    uint32_t n = 0;

    snprintf(s, sizeof(s), "Instruction: %s\n%s: %s", instructions, word, text);
    for (; s[n]; n++)
        ids[n] = FAKE_BYTE(s[n]);
    fake_vector(ids, n, f);
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)f[i] * (double)f[i];
    for (uint32_t i = 0; i < dim; i++)
        v[i] = (double)f[i] / sqrt(sum);
}
static double dot(const double *a, const double *b, uint32_t dim)
{
    double s = 0, aa = 0, bb = 0;

    for (uint32_t i = 0; i < dim; i++) {
        s += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    return s / sqrt(aa * bb);
}

static const struct spec route = {
    .kind = WRK_CHOICE,
    .instructions = "R",
    .c = {{"a", "unread", {"reset", "log in"}}, {"b", "bills", {NULL}}, {"c", NULL, {NULL}}}};
static const struct spec twins = {
    .kind = WRK_CHOICE, .instructions = "T", .c = {{"a", "same", {NULL}}, {"b", "same", {NULL}}}};
static const struct spec tags = {
    .kind = WRK_MULTI,
    .instructions = "R",
    .threshold = -1,
    .c = {{"x", NULL, {"reset", "log in"}}, {"y", "bills", {NULL}}, {"c", NULL, {NULL}}}};

static void answers_are_those_of_the_formulas(void **state)
{
    struct rig *r = rig_new();
    const struct ask q = {.q = {&route, &twins, &tags}, .input = {"help", "pay"}, .dims = 5};
    const Ipc__Decided *d;

    (void)state;
    ask(r, 1, &q);
    run(r);
    assert_int_equal(r->a[1].rc, RC_OK);
    d = r->a[1].f->decided;
    assert_int_equal(d->n_answers, 6);
    assert_int_equal(d->dimensions, 5);
    assert_string_equal(d->task_type, "CLUSTERING");
    assert_string_equal(d->model_identity, IDENTITY);
    for (uint32_t i = 0; i < 2; i++) {
        const Ipc__DecidedAnswer *a = d->answers[i * 3];
        double in[5], e1[5], e2[5], p[3][5], want, best = -2;
        uint32_t at = 0;

        vector("R", "Input", q.input[i], 5, in);
        vector("R", "Input", "reset", 5, e1);
        vector("R", "Input", "log in", 5, e2);
        vector("R", "Category", "bills", 5, p[1]);
        vector("R", "Category", "c", 5, p[2]);
        for (int k = 0; k < 5; k++)
            p[0][k] = (e1[k] + e2[k]) / 2;
        for (uint32_t c = 0; c < 3; c++) {
            want = dot(in, p[c], 5);
            assert_true(fabs(a->similarities[c] - want) < 1e-6);
            assert_true(d->answers[i * 3 + 2]->similarities[c] == a->similarities[c]);
            at = want > best ? c : at;
            best = want > best ? want : best;
        }
        assert_int_equal(a->status, WRK_SELECTED);
        assert_int_equal(a->chosen[0], at);
        assert_int_equal(d->answers[i * 3 + 1]->status, WRK_ABSTAINED);
        assert_int_equal(d->answers[i * 3 + 1]->reason, WRK_TIE);
        assert_int_equal(d->answers[i * 3 + 2]->n_chosen, 3);
    }
    assert_string_equal(d->questions[0]->prototype_set_hash, d->questions[2]->prototype_set_hash);
    assert_int_equal(d->questions[0]->n_thresholds, 0);
    assert_int_equal(d->questions[2]->n_thresholds, 3);
    /* bytes of the six rendered inputs: 22 + 1 of instructions and the text */
    assert_int_equal(d->input_tokens, 3 * (22 + 4) + 3 * (22 + 3));
    /* the first and the third question share a set, which is computed once */
    assert_int_equal(r->stats.proto_fills, 2);
    assert_int_equal(r->stats.proto_sets, 2);
    assert_true(r->stats.proto_bytes > 0 && r->stats.workspace_bytes == r->stats.proto_bytes);
    rig_free(r);
}

/* Bits do not depend on neighbours, on what was kept or on the batch. */
static void alone_batched_and_cached_are_the_same(void **state)
{
    struct rig *r = rig_new(), *cold;
    const struct ask q = {.q = {&route, &tags}, .input = {"help", "pay"}},
                     one = {.q = {&route}, .input = {"pay"}};

    (void)state;
    for (uint64_t t = 1; t <= 4; t++)
        ask(r, t, &q);
    run(r);
    assert_int_equal(r->stats.proto_fills, 1);
    assert_int_equal(r->stats.proto_waits, 6); /* both questions of three requests */
    ask(r, 5, &q);
    ask(r, 6, &one);
    run(r);
    assert_int_equal(r->stats.proto_fills, 1);
    assert_int_equal(r->stats.proto_hits, 3);
    cold = rig_new();
    ask(cold, 6, &one);
    run(cold);
    for (uint64_t t = 1; t <= 5; t++) {
        const Ipc__Decided *a = r->a[1].f->decided, *b = r->a[t].f->decided;

        for (size_t i = 0; i < 4; i++)
            assert_memory_equal(a->answers[i]->similarities, b->answers[i]->similarities,
                                3 * sizeof(double));
        assert_int_equal(a->input_tokens, b->input_tokens);
    }
    assert_memory_equal(r->a[6].f->decided->answers[0]->similarities,
                        r->a[1].f->decided->answers[2]->similarities, 3 * sizeof(double));
    assert_memory_equal(r->a[6].f->decided->answers[0]->similarities,
                        cold->a[6].f->decided->answers[0]->similarities, 3 * sizeof(double));
    rig_free(cold);
    rig_free(r);
}

static void a_waiter_that_leaves_and_an_owner_that_leaves(void **state)
{
    struct rig *r = rig_new();
    const struct ask q = {.q = {&route}, .input = {"help", "pay", "more", "texts"}};
    struct ask late = q;

    (void)state;
    /* the owner's fill goes on without its waiter */
    ask(r, 1, &q);
    ask(r, 2, &q);
    step(r);
    assert_int_equal(r->a[1].rc, RC_AGAIN);
    assert_int_equal(wrk_engine_cancel(r->e, 2, NULL), RC_OK);
    run(r);
    assert_int_equal(r->a[1].rc, RC_OK);
    assert_int_equal(r->a[2].rc, RC_CANCELLED);
    assert_int_equal(r->stats.proto_fills, 1);
    rig_free(r);

    /* an owner that is cancelled: the first waiter computes, the second still waits */
    r = rig_new();
    for (uint64_t t = 1; t <= 3; t++)
        ask(r, t, &q);
    step(r);
    assert_int_equal(wrk_engine_cancel(r->e, 1, NULL), RC_OK);
    run(r);
    assert_int_equal(r->a[1].rc, RC_CANCELLED);
    assert_int_equal(r->a[2].rc, RC_OK);
    assert_int_equal(r->a[3].rc, RC_OK);
    assert_int_equal(r->stats.proto_fills, 1);
    assert_memory_equal(r->a[2].f->decided->answers[3]->similarities,
                        r->a[3].f->decided->answers[3]->similarities, 3 * sizeof(double));
    rig_free(r);

    /* the same with an owner whose time is over */
    r = rig_new();
    late.deadline_us = wrk_now_us() + 3000;
    ask(r, 1, &late);
    ask(r, 2, &q);
    step(r);
    usleep(5000);
    run(r);
    assert_true(r->a[1].rc == RC_DEADLINE);
    assert_int_equal(r->a[2].rc, RC_OK);
    assert_int_equal(r->stats.proto_sets, 1);
    rig_free(r);

    /* and one whose input fails it: the set is the waiter's */
    r = rig_new();
    late = q;
    late.input[3] = "????????????????????????????????????????????????????????????????";
    ask(r, 1, &late);
    ask(r, 2, &q);
    run(r);
    assert_int_equal(r->a[1].rc, RC_TOO_LARGE);
    assert_int_equal(r->a[1].err.item, 3);
    assert_int_equal(r->a[2].rc, RC_OK);
    rig_free(r);
}

static void failures_name_the_text(void **state)
{
    static const struct spec long_example = {
        .kind = WRK_CHOICE,
        .instructions = "I",
        .c = {{"a", NULL, {"x", "y"}},
              {"b",
               NULL,
               {"z", "an example that is longer than the model can take, by far and far"}}}};
    static const struct spec long_description = {
        .kind = WRK_CHOICE,
        .instructions = "I",
        .c = {{"a", NULL, {"x", "y"}},
              {"b", "longer than the model can take, by far and far and away", {NULL}}}};
    static const struct spec gone = {.kind = WRK_CHOICE,
                                     .instructions = "I",
                                     .calibration = "nowhere",
                                     .c = {{"a", NULL, {NULL}}, {"b", NULL, {NULL}}}};
    static const struct spec escape = {.kind = WRK_CHOICE,
                                       .instructions = "I",
                                       .calibration = "../x",
                                       .c = {{"a", NULL, {NULL}}, {"b", NULL, {NULL}}}};
    static const struct spec lonely = {
        .kind = WRK_CHOICE, .instructions = "I", .c = {{"a", NULL, {NULL}}}};
    static const struct spec nokind = {
        .kind = 3, .instructions = "I", .c = {{"a", NULL, {NULL}}, {"b", NULL, {NULL}}}};
    static const struct spec far = {.kind = WRK_MULTI,
                                    .instructions = "I",
                                    .threshold = 1.5,
                                    .c = {{"a", NULL, {NULL}}, {"b", NULL, {NULL}}}};
    static const struct {
        struct ask q;
        enum rc rc;
        const char *says;
        int item;
    } rows[] = {
        {{.q = {&route, &long_example}, .input = {"a"}},
         RC_TOO_LARGE,
         "question 1, choice 1, example 1",
         -1},
        {{.q = {&long_description}, .input = {"a"}},
         RC_TOO_LARGE,
         "question 0, choice 1, description 0",
         -1},
        {{.q = {&route, &tags},
          .input = {"a", "b", "a text that is longer than the model can take, by far"}},
         RC_TOO_LARGE,
         "input 2, rendered for question 0",
         2},
        {{.q = {&gone}, .input = {"a"}}, RC_INVALID, "question 0: calibration 'nowhere'", -1},
        {{.q = {&route, &escape}, .input = {"a"}}, RC_INVALID, "question 1: calibration_id", -1},
        {{.q = {&route}, .input = {"a"}, .dims = 9}, RC_INVALID, "at most 8", -1},
        {{.q = {&route}, .input = {"a"}, .identity = "ff"}, RC_CONFLICT, IDENTITY, -1},
        {{.q = {&lonely}, .input = {"a"}}, RC_INVALID, "1 choices", -1},
        {{.q = {&nokind}, .input = {"a"}}, RC_INVALID, "kind 3", -1},
        {{.q = {&far}, .input = {"a"}}, RC_INVALID, "threshold 0", -1},
        {{.q = {NULL}, .input = {"a"}}, RC_INVALID, "0 questions", -1},
        {{.q = {&route}, .input = {NULL}}, RC_INVALID, "0 inputs", -1},
    };
    struct rig *r;

    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        r = rig_new();
        ask(r, 1, &rows[i].q);
        run(r);
        if (r->a[1].rc != rows[i].rc || !strstr(r->a[1].err.msg, rows[i].says) ||
            r->a[1].err.item != rows[i].item)
            fail_msg("row %zu: %s: %s (item %d)", i, rc_name(r->a[1].rc), r->a[1].err.msg,
                     r->a[1].err.item);
        assert_int_equal(r->stats.proto_sets, 0); /* no reservation is left behind */
        assert_int_equal(r->stats.proto_bytes, 0);
        rig_free(r);
    }
    r = rig_new(); /* a failing pass, and a model that embeds nothing */
    r->m->fail_pass = true;
    ask(r, 1, &(struct ask){.q = {&route}, .input = {"a"}});
    run(r);
    assert_int_equal(r->a[1].rc, RC_INTERNAL);
    r->m->info.can_embed = false;
    ask(r, 2, &(struct ask){.q = {&route}, .input = {"a"}});
    run(r);
    assert_int_equal(r->a[2].rc, RC_UNSUPPORTED);
    rig_free(r);
}

static struct {
    unsigned n, at;
} stop;

static bool ask_in_test(void *user)
{
    (void)user;
    return ++stop.n == stop.at;
}

/* Asked before each question and in long texts. */
static void wherever_it_is_stopped_nothing_stays(void **state)
{
    enum rc rc = RC_AGAIN;

    (void)state;
    for (stop.at = 1; rc != RC_OK; stop.at++) {
        struct rig *r = rig_new();

        stop.n = 0;
        r->e->stop.ask = ask_in_test;
        ask(r, 1, &(struct ask){.q = {&route, &twins}, .input = {"a"}});
        run(r);
        rc = r->a[1].rc;
        assert_true(rc == RC_OK ? stop.at == 3 : rc == RC_DEADLINE);
        assert_int_equal(r->stats.proto_sets, rc == RC_OK ? 2 : 0);
        assert_int_equal(r->e->queued_bytes, 0);
        rig_free(r);
    }
}

static void an_artifact_of_the_models_folder_decides(void **state)
{
    static const char dir[] = TEST_BUILD "/calibrations",
                      path[] = TEST_BUILD "/calibrations/ok.json";
    struct rig *r = rig_new();
    const char *text = artifact(&calibrated, "\"min_similarity\":0.5", "\"min_similarity\":1");
    FILE *f;

    (void)state;
    (void)mkdir(dir, 0777);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    ask(r, 1, &(struct ask){.q = {&calibrated}, .input = {"a"}});
    run(r);
    assert_int_equal(r->a[1].rc, RC_OK);
    assert_int_equal(r->a[1].f->decided->answers[0]->reason, WRK_LOW_SIMILARITY);
    ask(r, 2, &(struct ask){.q = {&calibrated}, .input = {"a"}, .dims = 4}); /* made for 8 */
    run(r);
    assert_int_equal(r->a[2].rc, RC_INVALID);
    r->m->info.identity[0] = '\0'; /* a model that is not known is bound to nothing */
    ask(r, 3, &(struct ask){.q = {&calibrated}, .input = {"a"}});
    run(r);
    assert_int_equal(r->a[3].rc, RC_INVALID);
    assert_non_null(strstr(r->a[3].err.msg, "identity is not known"));
    assert_int_equal(truncate(path, 2 << 20), 0);
    ask(r, 4, &(struct ask){.q = {&calibrated}, .input = {"a"}});
    run(r);
    assert_int_equal(r->a[4].rc, RC_INVALID);
    unlink(path);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    ask(r, 5, &(struct ask){.q = {&calibrated}, .input = {"a"}});
    run(r);
    assert_int_equal(r->a[5].rc, RC_INVALID);
    unlink(path);
    rmdir(dir);
    rig_free(r);
}

static void a_single_file_has_no_calibrations(void **state)
{
    char path[] = TEST_BUILD "/single-XXXXXX";
    const struct wrk_binding b = {.model_identity = IDENTITY, .task_type = "CLUSTERING"};
    struct wrk_accept a;
    struct rc_err err = RC_ERR_INIT;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(wrk_calibration_read(fd, "ok", &b, &a, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "single file"));
    assert_int_equal(wrk_calibration_read(-1, "ok", &b, &a, &err), RC_INVALID);
    assert_int_equal(wrk_calibration_read(fd, "a/b", &b, &a, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "letters, digits"));
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_is_selected_or_says_why_not),
        cmocka_unit_test(multi_choice_accepts_what_reaches_its_threshold),
        cmocka_unit_test(vectors_are_normalized_one_by_one),
        cmocka_unit_test(texts_are_rendered_as_the_renderer_says),
        cmocka_unit_test(a_set_hash_is_of_what_makes_the_vectors),
        cmocka_unit_test(sets_are_kept_within_both_bounds_longest_unused_goes),
        cmocka_unit_test(one_fills_the_others_wait_and_inherit),
        cmocka_unit_test(an_artifact_is_believed_only_for_what_it_was_made),
        cmocka_unit_test(answers_are_those_of_the_formulas),
        cmocka_unit_test(alone_batched_and_cached_are_the_same),
        cmocka_unit_test(a_waiter_that_leaves_and_an_owner_that_leaves),
        cmocka_unit_test(failures_name_the_text),
        cmocka_unit_test(wherever_it_is_stopped_nothing_stays),
        cmocka_unit_test(an_artifact_of_the_models_folder_decides),
        cmocka_unit_test(a_single_file_has_no_calibrations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
