/* test_wrk_engine_rerank.c - documents scored against a query, and what one pass gives of every
 * token. The scripted model's logits, weights and vectors are functions of ids alone, so each
 * answer is computed here again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/engine_ask.h"

#define DOCS 24

struct scored {
    bool got;
    size_t n, n_logits, n_dense, n_sparse, n_late, n_bad;
    float score[DOCS], logit[DOCS], dense[DOCS], sparse[DOCS], late[DOCS];
    uint32_t n_tokens[DOCS], query_tokens, bad[DOCS];
    bool cut[DOCS];
};
static struct scored got[TASKS];
static Ipc__Vectors *vectors[TASKS];

static void copy(float *to, size_t *n_to, const float *v, size_t n)
{
    assert_true(n <= DOCS);
    *n_to = n;
    if (n > 0)
        memcpy(to, v, n * sizeof(*v));
}

static void take(void *user, const Ipc__Frame *f)
{
    struct scored *g = &got[f->task];
    const Ipc__Scores *s = f->scores;
    uint8_t *buf;
    size_t n;

    if (f->body_case == IPC__FRAME__BODY_VECTORS) {
        n = ipc__vectors__get_packed_size(f->vectors);
        buf = malloc(n + 1);
        ipc__vectors__pack(f->vectors, buf);
        vectors[f->task] = ipc__vectors__unpack(NULL, n, buf);
        free(buf);
        ((struct rig *)user)->a[f->task].ended++;
        return;
    }
    if (f->body_case != IPC__FRAME__BODY_SCORES) {
        on_frame(user, f);
        return;
    }
    assert_false(g->got);
    g->got = true;
    copy(g->score, &g->n, s->scores, s->n_scores);
    copy(g->logit, &g->n_logits, s->logits, s->n_logits);
    copy(g->dense, &g->n_dense, s->dense, s->n_dense);
    copy(g->sparse, &g->n_sparse, s->sparse, s->n_sparse);
    copy(g->late, &g->n_late, s->late, s->n_late);
    for (size_t i = 0; i < s->n_n_tokens; i++) {
        g->n_tokens[i] = s->n_tokens[i];
        g->cut[i] = s->truncated[i];
    }
    for (size_t i = 0; i < s->n_errors; i++)
        g->bad[g->n_bad++] = s->errors[i]->index;
    g->query_tokens = s->query_tokens;
}

static void run_all(struct rig *r)
{
    int guard = 5000;

    while (wrk_engine_busy(r->e) && guard-- > 0)
        engine_step(r->e, r->chan, r->fd, take, r);
    assert_true(guard > 0);
}

struct ask {
    const char *query, *doc[DOCS];
    float weight[3];
    bool weights, truncate, per_item;
    uint64_t deadline_us;
    const char *identity;
};

static void rerank(struct rig *r, uint64_t task, const struct ask *q)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Rerank m = IPC__RERANK__INIT;
    ProtobufCBinaryData docs[DOCS];

    m.query.data = (uint8_t *)q->query;
    m.query.len = strlen(q->query);
    m.documents = docs;
    for (; m.n_documents < DOCS && q->doc[m.n_documents] != NULL; m.n_documents++) {
        docs[m.n_documents].data = (uint8_t *)q->doc[m.n_documents];
        docs[m.n_documents].len = strlen(q->doc[m.n_documents]);
    }
    m.weights = (float *)q->weight;
    m.n_weights = q->weights ? 3 : 0;
    m.truncate = q->truncate;
    m.per_item = q->per_item;
    m.deadline_us = q->deadline_us;
    m.model_identity = (char *)(q->identity != NULL ? q->identity : "");
    f.task = task;
    f.body_case = IPC__FRAME__BODY_RERANK;
    f.rerank = &m;
    assert_int_equal(submit(r, &f), RC_OK);
}

static struct mdl *cross(void)
{
    struct mdl *m = fake_new(64, 2, 64);

    m->info.can_rerank = true;
    m->info.can_embed = m->info.can_generate = false;
    m->info.embed_dim = 0;
    return m;
}
static struct mdl *embedder(void)
{
    struct mdl *m = fake_new(64, 2, 64);

    m->info.can_sparse = true;
    m->info.token_dim = FAKE_TOKEN_DIM;
    return m;
}

static void no_rows(struct mdl *m)
{
    m->info.can_sparse = false;
    m->info.token_dim = 0;
}

static int setup(void **state)
{
    (void)state;
    memset(got, 0, sizeof(got));
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < TASKS; i++) {
        if (vectors[i] != NULL)
            ipc__vectors__free_unpacked(vectors[i], NULL);
        vectors[i] = NULL;
    }
    return 0;
}

/* ------------------------------------------------------------- cross-encoders */

static float logit_of(const char *query, const char *doc)
{
    int32_t ids[256];
    uint32_t n = 0;

    for (const char *p = query; *p != 0; p++)
        ids[n++] = FAKE_BYTE(*p);
    ids[n++] = FAKE_EOT;
    for (const char *p = doc; *p != 0; p++)
        ids[n++] = FAKE_BYTE(*p);
    return fake_logit(ids, n);
}

static void pairs_have_their_logits_in_the_order_of_the_documents(void **state)
{
    struct rig r = rig_new(cross(), 8);
    struct ask a = {.query = "who",
                    .doc = {"a document of some length, fifty characters at least", "x", "",
                            "middle sized one", "x"}},
               b = {.query = "another question",
                    .doc = {"yes", "no", "a rather long answer to it"}};

    (void)state;
    rerank(&r, 1, &a);
    rerank(&r, 2, &b);
    run_all(&r);
    for (int t = 1; t <= 2; t++) {
        const struct ask *q = t == 1 ? &a : &b;
        const struct scored *g = &got[t];

        assert_int_equal(g->n, t == 1 ? 5 : 3);
        assert_int_equal(g->n_logits, g->n);
        assert_int_equal(g->n_dense + g->n_sparse + g->n_late, 0);
        for (size_t i = 0; i < g->n; i++) {
            float want = logit_of(q->query, q->doc[i]);

            assert_true(g->logit[i] == want);
            assert_true(g->score[i] == (float)(1 / (1 + exp(-(double)want))));
            assert_int_equal(g->n_tokens[i], strlen(q->query) + 1 + strlen(q->doc[i]));
        }
    }
    assert_true(got[1].score[1] == got[1].score[4]); /* its neighbours do not matter */
    assert_true(r.m->n_encodes < 8);                 /* both tasks' pairs share passes */
    rig_free(&r);
}

static void a_long_pair_is_cut_or_refused(void **state)
{
    static char over[100];
    struct rig r = rig_new(cross(), 8);
    struct ask q = {.query = "why", .doc = {"short", over, "!bad", "not finite?"}};

    (void)state;
    memset(over, 'o', 90);
    rerank(&r, 1, &q);
    q.truncate = q.per_item = true;
    rerank(&r, 2, &q);
    run_all(&r);
    assert_int_equal(r.a[1].rc, RC_TOO_LARGE);
    assert_string_equal(r.a[1].err.what, "documents");
    assert_int_equal(r.a[1].err.item, 1);
    assert_int_equal(r.a[1].err.n, 94);
    assert_int_equal(r.a[1].err.limit, 64);
    assert_int_equal(got[2].n, 4);
    assert_true(got[2].cut[1] && !got[2].cut[0]);
    assert_int_equal(got[2].n_tokens[1], 64);
    assert_int_equal(got[2].n_bad, 2);
    assert_true(got[2].bad[0] == 2 && got[2].bad[1] == 3);
    assert_true(got[2].score[2] == 0 && got[2].score[3] == 0 && got[2].score[0] > 0);
    rig_free(&r);
}

static void what_a_model_cannot_is_refused_by_name(void **state)
{
    static const struct {
        const char *what;
        struct ask q;
        enum rc rc;
        int model; /* 0 cross-encoder, 1 embedder of all, 2 of dense vectors only, 3 neither */
    } cases[] = {
        {"weights", {"q", {"d"}, {1, 0, 0}, true}, RC_UNSUPPORTED, 0},
        {"documents", {"q", {NULL}}, RC_INVALID, 0},
        {"model_identity", {.query = "q", .doc = {"d"}, .identity = "ab"}, RC_CONFLICT, 0},
        {"weights", {"q", {"d"}, {1, -1, 0}, true}, RC_INVALID, 1},
        {"weights", {"q", {"d"}, {0, 0, 0}, true}, RC_INVALID, 1},
        {"weights", {"q", {"d"}, {NAN, 0, 0}, true}, RC_INVALID, 1},
        {"weights", {"q", {"d"}, {1, 1, 0}, true}, RC_UNSUPPORTED, 2},
        {"weights", {"q", {"d"}, {1, 0, 1}, true}, RC_UNSUPPORTED, 2},
        {"model", {"q", {"d"}}, RC_UNSUPPORTED, 3},
        {"query", {"!q", {"d"}}, RC_INVALID, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mdl *m = cases[i].model == 0 ? cross() : embedder();
        struct rig r;

        if (cases[i].model >= 2)
            no_rows(m);
        if (cases[i].model == 3) {
            m->info.can_embed = false;
            m->info.embed_dim = 0;
        }
        r = rig_new(m, 8);
        rerank(&r, 1, &cases[i].q);
        run_all(&r);
        if (r.a[1].rc != cases[i].rc || strcmp(r.a[1].err.what, cases[i].what) != 0)
            fail_msg("case %zu: %s names '%s'", i, rc_name(r.a[1].rc), r.a[1].err.what);
        assert_int_equal(r.m->n_encodes, 0);
        rig_free(&r);
    }
}

static void a_query_too_often_read_is_refused(void **state)
{
    struct rig r = rig_new(cross(), 8);
    struct ask q = {.doc = {"1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",  "9",  "10", "11", "12",
                            "13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24"},
                    .truncate = true};
    char *text = malloc((12u << 20) + 1);

    (void)state;
    memset(text, 'q', 12u << 20);
    text[12u << 20] = 0;
    q.query = text;
    rerank(&r, 1, &q);
    run_all(&r);
    assert_int_equal(r.a[1].rc, RC_TOO_LARGE);
    assert_string_equal(r.a[1].err.what, "query");
    free(text);
    rig_free(&r);
}

/* ------------------------------------------------------------------ embedders */

static void ids_of(const char *s, int32_t *ids, uint32_t *n)
{
    for (*n = 0; s[*n] != 0; ++*n)
        ids[*n] = FAKE_BYTE(s[*n]);
}

static double dense_of(const char *a, const char *b)
{
    int32_t x[64], y[64];
    uint32_t n, k;
    float u[8], v[8];
    double sum = 0, uu = 0, vv = 0;

    ids_of(a, x, &n);
    ids_of(b, y, &k);
    fake_vector(x, n, u);
    fake_vector(y, k, v);
    for (int i = 0; i < 8; i++) {
        sum += (double)u[i] * (double)v[i];
        uu += (double)u[i] * (double)u[i];
        vv += (double)v[i] * (double)v[i];
    }
    return sum / sqrt(uu * vv);
}

static bool has(const char *s, int b)
{
    return b != 0 && strchr(s, b) != NULL;
}

static double sparse_of(const char *a, const char *b)
{
    double sum = 0;

    for (int c = 1; c < 256; c++)
        if (has(a, c) && has(b, c))
            sum += (double)fake_weight(FAKE_BYTE(c)) * (double)fake_weight(FAKE_BYTE(c));
    return sum;
}

/* The first row is left out on both sides. */
static double late_of(const char *q, const char *d)
{
    double sum = 0;
    uint32_t n = 0;

    for (const char *p = q + 1; *q != 0 && *p != 0; p++, n++) {
        double best = -2;

        for (const char *x = d + 1; *d != 0 && *x != 0; x++) {
            float u[FAKE_TOKEN_DIM], v[FAKE_TOKEN_DIM];
            double s = 0;

            fake_token_vector(FAKE_BYTE(*p), u);
            fake_token_vector(FAKE_BYTE(*x), v);
            for (int k = 0; k < FAKE_TOKEN_DIM; k++)
                s += (double)u[k] * (double)v[k];
            best = s > best ? s : best;
        }
        sum += best > -2 ? best : 0;
    }
    return n > 0 ? sum / n : 0;
}

static void an_embedder_scores_by_the_kinds_it_has(void **state)
{
    static const float weights[][3] = {
        {0, 0, 0}, {1, 0, 0}, {0, 2, 0}, {0, 0, 3}, {0.4f, 0.2f, 0.4f}};
    struct rig r = rig_new(embedder(), 16);
    struct ask q = {.query = "the question",
                    .doc = {"the answer", "q", "something quite different", "the question",
                            "and one more, which is long"}};

    (void)state;
    for (uint32_t t = 0; t < 5; t++) {
        q.weights = t > 0;
        memcpy(q.weight, weights[t], sizeof(q.weight));
        rerank(&r, t + 1, &q);
    }
    run_all(&r);
    for (uint32_t t = 0; t < 5; t++) {
        const struct scored *g = &got[t + 1];
        double w[3] = {1, 1, 1};

        for (int k = 0; k < 3 && t > 0; k++)
            w[k] = (double)weights[t][k];
        assert_int_equal(g->n, 5);
        assert_int_equal(g->n_logits, 0);
        assert_int_equal(g->n_dense, w[0] > 0 ? 5 : 0);
        assert_int_equal(g->n_sparse, w[1] > 0 ? 5 : 0);
        assert_int_equal(g->n_late, w[2] > 0 ? 5 : 0);
        assert_int_equal(g->query_tokens, 12);
        for (int i = 0; i < 5; i++) {
            double d = dense_of(q.query, q.doc[i]), s = sparse_of(q.query, q.doc[i]),
                   l = late_of(q.query, q.doc[i]);

            assert_true(w[0] == 0 || fabs(g->dense[i] - d) < 1e-6);
            assert_true(w[1] == 0 || fabs(g->sparse[i] - s) < 1e-6);
            assert_true(w[2] == 0 || fabs(g->late[i] - l) < 1e-6);
            assert_true(
                fabs(g->score[i] - (w[0] * d + w[1] * s + w[2] * l) / (w[0] + w[1] + w[2])) < 1e-6);
            assert_int_equal(g->n_tokens[i], strlen(q.doc[i]));
        }
    }
    assert_true(sparse_of("the question", "the answer") > 0.1);
    rig_free(&r);
}

static void a_model_of_dense_vectors_computes_nothing_else(void **state)
{
    struct mdl *m = embedder();
    struct rig r;
    struct ask q = {.query = "question", .doc = {"answer", "?", "other"}, .per_item = true};

    (void)state;
    no_rows(m);
    r = rig_new(m, 16);
    rerank(&r, 1, &q);
    q.query = "?"; /* whose vector is not finite: nothing can be scored */
    rerank(&r, 2, &q);
    run_all(&r);
    assert_int_equal(r.m->n_token_passes, 0);
    assert_true(fabs(got[1].score[0] - dense_of("question", "answer")) < 1e-6);
    assert_int_equal(got[1].n_dense, 3);
    assert_int_equal(got[1].n_bad, 1);
    assert_int_equal(got[1].bad[0], 1);
    assert_true(got[1].score[1] == 0);
    assert_false(got[2].got);
    assert_int_equal(r.a[2].rc, RC_INTERNAL);
    assert_string_equal(r.a[2].err.what, "query");
    rig_free(&r);
}

/* -------------------------------------------------------- outputs of one pass */

static void embed(struct rig *r, uint64_t task, const char *const *text, uint32_t n,
                  uint32_t outputs, bool per_item)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Embed m = IPC__EMBED__INIT;
    Ipc__EmbedInput in[DOCS], *ptr[DOCS];

    m.inputs = ptr;
    m.n_inputs = n;
    m.outputs = outputs;
    m.per_item = per_item;
    for (uint32_t i = 0; i < n; i++) {
        ipc__embed_input__init(&in[i]);
        in[i].text.data = (uint8_t *)text[i];
        in[i].text.len = strlen(text[i]);
        ptr[i] = &in[i];
    }
    f.task = task;
    f.body_case = IPC__FRAME__BODY_EMBED;
    f.embed = &m;
    assert_int_equal(submit(r, &f), RC_OK);
}

static void one_pass_gives_all_that_was_asked_for(void **state)
{
    static const char *const text[] = {"banana bread", "x", "a longer text with many tokens"};
    struct rig r = rig_new(embedder(), 16);

    (void)state;
    for (uint32_t outputs = 0; outputs < 8; outputs++)
        embed(&r, outputs + 1, text, 3, outputs, false);
    run_all(&r);
    for (uint32_t outputs = 0; outputs < 8; outputs++) {
        const Ipc__Vectors *v = vectors[outputs + 1];
        unsigned want = outputs == 0 ? 1 : outputs;

        assert_non_null(v);
        assert_int_equal(v->data.len, (want & 1) != 0 ? 3 * 8 * 4 : 0);
        assert_int_equal(v->n_sparse, (want & 2) != 0 ? 3 : 0);
        assert_int_equal(v->n_token_vectors, (want & 4) != 0 ? 3 : 0);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t n_ids = 0;
            int32_t ids[64];
            uint32_t n;
            float x[8];

            ids_of(text[i], ids, &n);
            fake_vector(ids, n, x);
            if ((want & 1) != 0)
                assert_memory_equal(v->data.data + i * sizeof(x), x, sizeof(x));
            for (int c = 1; c < 256 && (want & 2) != 0; c++) {
                if (!has(text[i], c) || !(fake_weight(FAKE_BYTE(c)) > 0))
                    continue;
                assert_int_equal(v->sparse[i]->ids[n_ids], FAKE_BYTE(c));
                assert_true(v->sparse[i]->weights[n_ids++] == fake_weight(FAKE_BYTE(c)));
            }
            if ((want & 2) != 0)
                assert_int_equal(v->sparse[i]->n_ids, n_ids);
            if ((want & 4) == 0)
                continue;
            assert_int_equal(v->token_vectors[i]->n, n - 1);
            for (uint32_t k = 0; k + 1 < n; k++) {
                float y[FAKE_TOKEN_DIM];

                fake_token_vector(ids[k + 1], y);
                assert_memory_equal(v->token_vectors[i]->data.data + k * sizeof(y), y, sizeof(y));
            }
        }
    }
    rig_free(&r);
}

static void outputs_that_are_missing_or_not_finite_are_told(void **state)
{
    static const char *const text[] = {"fine", "a~b", "good"};
    struct mdl *m = embedder();
    struct rig r = rig_new(m, 16);

    (void)state;
    embed(&r, 1, text, 3, 3, true);
    embed(&r, 2, text, 3, 2, false);
    embed(&r, 3, text, 3, 8, false);
    run_all(&r);
    assert_int_equal(vectors[1]->n_errors, 1);
    assert_int_equal(vectors[1]->errors[0]->index, 1);
    assert_int_equal(vectors[1]->sparse[1]->n_ids, 0);
    assert_true(vectors[1]->sparse[0]->n_ids > 0 && vectors[1]->sparse[2]->n_ids > 0);
    assert_int_equal(r.a[2].rc, RC_INTERNAL);
    assert_int_equal(r.a[2].err.item, 1);
    assert_int_equal(r.a[3].rc, RC_INVALID);
    rig_free(&r);
    m = embedder();
    no_rows(m);
    r = rig_new(m, 16);
    embed(&r, 4, text, 1, 2, false);
    embed(&r, 5, text, 1, 4, false);
    run_all(&r);
    for (int t = 4; t <= 5; t++) {
        assert_int_equal(r.a[t].rc, RC_UNSUPPORTED);
        assert_string_equal(r.a[t].err.what, "outputs");
    }
    rig_free(&r);
}

/* The vectors of one answer are counted before anything is computed. */
static void an_answer_of_too_many_token_vectors_is_refused(void **state)
{
    const char *text[DOCS];
    struct mdl *m = fake_new(512, 2, 512);
    struct rig r;

    (void)state;
    m->info.token_dim = 16384; /* 64 KiB a token: 1,024 of them are an answer */
    r = rig_new(m, 16);
    for (int i = 0; i < 3; i++)
        text[i] = long_text(400, (uint32_t)i + 1);
    embed(&r, 1, text, 3, 4, false);
    while (r.a[1].ended == 0)
        engine_step(r.e, r.chan, r.fd, take, &r);
    assert_int_equal(r.a[1].rc, RC_LIMIT);
    assert_string_equal(r.a[1].err.what, "token_vectors");
    assert_int_equal(r.a[1].err.item, 2);
    assert_int_equal(r.a[1].err.n, 1200ull * 65536);
    assert_int_equal(r.a[1].err.limit, 64u << 20);
    assert_int_equal(r.m->n_encodes, 0);
    rig_free(&r);
}

/* A pass that is stopped leaves nothing of its rows; the others' scores are as ever. */
static struct rig *heard;
static enum rc cancel_one(void *user, struct rc_err *err)
{
    return *(int *)user > 0 && (*(int *)user)-- == 1 ? wrk_engine_cancel(heard->e, 1, err) : RC_OK;
}

static void a_cancel_in_a_pass_leaves_the_others_scores(void **state)
{
    int countdown = 2;
    struct mdl *m = embedder();
    struct rig r = rig_new_heard(m, 8, cancel_one, &countdown);
    struct ask q = {.query = "the question", .doc = {"the answer", "another"}};

    (void)state;
    heard = &r;
    m->n_layers = 4;
    m->layer_us = 25000;
    rerank(&r, 1, &q);
    rerank(&r, 2, &q);
    run_all(&r);
    assert_int_equal(r.a[1].rc, RC_CANCELLED);
    assert_int_equal(m->n_stopped, 1);
    assert_int_equal(got[2].n, 2);
    for (int i = 0; i < 2; i++)
        assert_true(fabs(got[2].late[i] - late_of(q.query, q.doc[i])) < 1e-6);
    rig_free(&r);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(pairs_have_their_logits_in_the_order_of_the_documents),
        T(a_long_pair_is_cut_or_refused),
        T(what_a_model_cannot_is_refused_by_name),
        T(a_query_too_often_read_is_refused),
        T(an_embedder_scores_by_the_kinds_it_has),
        T(a_model_of_dense_vectors_computes_nothing_else),
        T(one_pass_gives_all_that_was_asked_for),
        T(outputs_that_are_missing_or_not_finite_are_told),
        T(an_answer_of_too_many_token_vectors_is_refused),
        T(a_cancel_in_a_pass_leaves_the_others_scores),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
