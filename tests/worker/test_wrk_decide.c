/* test_wrk_decide.c - whole Decide tasks over the scripted model. What they are made of:
 * test_wrk_decide_rule.c, test_wrk_protos.c.
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

#include "worker/decide_ask.h"
#include "worker/fake_mdl.h"
#include "worker/engine_rig.h"
#include "wrk_decide_impl.h"

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

/* Counted from the request, before anything is rendered. */
static void the_work_of_a_request_is_bounded(void **state)
{
    Ipc__Decide d = IPC__DECIDE__INIT;
    Ipc__DecideQuestion *q[IPC_DECIDE_QUESTIONS];
    ProtobufCBinaryData in[IPC_DECIDE_INPUTS];
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    for (size_t i = 0; i < N_OF(q); i++)
        q[i] = question(&route); /* of four texts */
    for (size_t i = 0; i < N_OF(in); i++)
        in[i] = bytes("a");
    d.questions = q;
    d.inputs = in;
    d.n_inputs = N_OF(in);
    d.n_questions = 31; /* 31 * (128 + 4) = 4092 */
    assert_int_equal(wrk_decide_check(&d, &err), RC_OK);
    d.n_questions = 32;
    assert_int_equal(wrk_decide_check(&d, &err), RC_TOO_LARGE);
    assert_true(err.n == 4224 && err.limit == IPC_DECIDE_TEXTS);
    d.n_questions = 1;
    in[0].len = IPC_DECIDE_BYTES; /* only its length is looked at */
    assert_int_equal(wrk_decide_check(&d, &err), RC_TOO_LARGE);
    assert_true(err.n > IPC_DECIDE_BYTES && err.limit == IPC_DECIDE_BYTES);
    d.n_inputs = IPC_DECIDE_INPUTS + 1;
    assert_int_equal(wrk_decide_check(&d, &err), RC_INVALID);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_formulas),
        cmocka_unit_test(alone_batched_and_cached_are_the_same),
        cmocka_unit_test(a_waiter_that_leaves_and_an_owner_that_leaves),
        cmocka_unit_test(failures_name_the_text),
        cmocka_unit_test(the_work_of_a_request_is_bounded),
        cmocka_unit_test(wherever_it_is_stopped_nothing_stays),
        cmocka_unit_test(an_artifact_of_the_models_folder_decides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
