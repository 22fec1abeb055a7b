/* test_mdl_gliner2.c - GLiNER2 models: the equality contract over mixed prompts, passes that are
 * cut, passes that are stopped, what is refused. Numbers: tests/worker/test_wrk_extract_golden.c.
 */
#include "mdl_test.h"

#define DIR TEST_GOLDEN "/gliner2"
#define N_SEQS 12
#define MOST_IDS 160

static struct be_ctx *be;

/* Made-up sequences: prompts of fields and of classes, words of one to three tokens. */
struct made {
    int32_t ids[N_SEQS][MOST_IDS];
    uint32_t marks[N_SEQS][32], words[N_SEQS][MOST_IDS];
    struct mdl_extract_prompt prompts[N_SEQS][4];
    struct mdl_extract_in in[N_SEQS];
};

static uint32_t seed = 7;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static void make(struct made *m, uint32_t vocab)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        uint32_t n = 0, n_marks = 0, n_prompts = 1 + rnd(4), n_words = s == 3 ? 0 : 1 + rnd(30);

        for (uint32_t p = 0; p < n_prompts; p++) {
            uint32_t fields = 1 + rnd(5);

            m->prompts[s][p] = (struct mdl_extract_prompt){.mark = n_marks,
                                                           .n_fields = fields,
                                                           .is_classes = rnd(3) == 0,
                                                           .n_most = 1 + rnd(20)};
            for (uint32_t f = 0; f <= fields; f++) {
                m->marks[s][n_marks++] = n;
                n += 2 + rnd(2);
            }
        }
        for (uint32_t w = 0; w < n_words; w++) {
            m->words[s][w] = n;
            n += 1 + rnd(3);
        }
        m->words[s][n_words] = n;
        assert_true(n <= MOST_IDS);
        for (uint32_t i = 0; i < n; i++)
            m->ids[s][i] = (int32_t)rnd(vocab);
        m->in[s] = (struct mdl_extract_in){m->ids[s],     n,         m->marks[s], n_marks,
                                           m->prompts[s], n_prompts, m->words[s], n_words};
    }
}

/* What was heard of each sequence, in an order of its own. */
struct heard {
    uint64_t hash[N_SEQS];
    uint32_t n_calls[N_SEQS];
    uint32_t width;
    const struct made *made;
    uint32_t from; /* number of the first sequence */
};

static enum rc hear(struct heard *h, uint32_t seq, uint64_t place, const float *x, size_t n)
{
    uint64_t v = 0xcbf29ce484222325ull ^ place;

    for (size_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, &x[i], sizeof(u));
        v = (v ^ u) * 0x100000001b3ull;
    }
    h->hash[seq] += v * 0x9e3779b97f4a7c15ull; /* calls of several prompts come in turn */
    h->n_calls[seq]++;
    return RC_OK;
}

static enum rc on_classes(void *user, uint32_t s, uint32_t p, const float *x, struct rc_err *err)
{
    struct heard *h = user;

    s += h->from;
    return hear(h, s, 1000 + p, x, h->made->prompts[s][p].n_fields);
}

static enum rc on_count(void *user, uint32_t s, uint32_t p, const float *x, uint32_t n,
                        struct rc_err *err)
{
    struct heard *h = user;

    return hear(h, s + h->from, 2000 + p * 100 + n, x, MDL_EXTRACT_COUNTS);
}

static enum rc on_spans(void *user, uint32_t s, uint32_t p, uint32_t t, uint32_t f, const float *x,
                        struct rc_err *err)
{
    struct heard *h = user;

    s += h->from;
    assert_true(t < h->made->prompts[s][p].n_most);
    return hear(h, s, 100000 + p * 10000 + t * 100 + f, x,
                (size_t)h->made->in[s].n_words * h->width);
}

static void extract(struct mdl *m, struct heard *h, const struct made *made, uint32_t s, uint32_t n)
{
    const struct mdl_extract_out out = {h, on_classes, on_count, on_spans};

    h->width = mdl_info_get(m)->span_words;
    h->made = made;
    h->from = s;
    need_ok(mdl_extract(m, n, made->in + s, &out, err));
}

static void alone_and_in_any_batch_it_is_the_same(void **state)
{
    static const char *const dirs[] = {DIR, TEST_GOLDEN "/gliner2-lstm",
                                       TEST_GOLDEN "/gliner2-moe"};
    static struct made made;

    (void)state;
    for (size_t d = 0; d < 3; d++) {
        struct mdl_opts big = {.batch_tokens = 2048, .max_seqs = 8, .ctx_tokens = 200},
                        small = {.batch_tokens = 200, .max_seqs = 8, .ctx_tokens = 200};
        struct mdl *a = open_model(dirs[d], be, &big), *b = open_model(dirs[d], be, &small);
        struct heard all = {0}, cut = {0}, one = {0};
        uint32_t spans = 0;

        assert_int_equal(mdl_info_get(a)->max_input_tokens, 200);
        assert_int_equal(mdl_encode_rows(b), 200);
        make(&made, mdl_info_get(a)->vocab_size);
        extract(a, &all, &made, 0, N_SEQS);
        extract(b, &cut, &made, 0, N_SEQS);
        for (uint32_t s = 0; s < N_SEQS; s++)
            extract(b, &one, &made, s, 1);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            assert_true(all.n_calls[s] >= made.in[s].n_prompts);
            assert_int_equal(all.n_calls[s], one.n_calls[s]);
            assert_true(all.hash[s] == cut.hash[s]);
            assert_true(all.hash[s] == one.hash[s]);
            spans += all.n_calls[s] - made.in[s].n_prompts;
        }
        assert_true(spans > 50);
        mdl_close(&a);
        mdl_close(&b);
    }
}

static bool at_once(void *user)
{
    ++*(int *)user;
    return true;
}

static void a_pass_is_stopped_between_layers(void **state)
{
    static struct made made;
    struct mdl_opts o = {.batch_tokens = 512, .max_seqs = 8, .ctx_tokens = 512};
    struct mdl *m = open_model(DIR, be, &o);
    struct heard h = {0}, again = {0};
    const struct mdl_extract_out out = {&h, on_classes, on_count, on_spans};
    int asked = 0;

    (void)state;
    make(&made, mdl_info_get(m)->vocab_size);
    h.made = &made;
    mdl_set_encode_stop(m, at_once, &asked);
    assert_int_equal(mdl_extract(m, 2, made.in, &out, NULL), RC_CANCELLED);
    assert_int_equal(asked, 1);
    mdl_set_encode_stop(m, NULL, NULL);
    memset(&h, 0, sizeof(h));
    extract(m, &h, &made, 0, 2);
    extract(m, &again, &made, 0, 2);
    assert_true(h.hash[0] == again.hash[0] && h.n_calls[0] > 0);
    mdl_close(&m);
}

static void bad_sequences_are_refused_before_anything_is_computed(void **state)
{
    static struct made made;
    struct mdl_opts o = {.batch_tokens = 512, .max_seqs = 8, .ctx_tokens = 512};
    struct mdl *m = open_model(DIR, be, &o);
    struct heard h = {0};
    const struct mdl_extract_out out = {&h, on_classes, on_count, on_spans};

    (void)state;
    for (int i = 0; i < 8; i++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_extract_in *in = &made.in[1];

        make(&made, mdl_info_get(m)->vocab_size);
        h.made = &made;
        switch (i) {
        case 0:
            made.ids[1][0] = (int32_t)mdl_info_get(m)->vocab_size;
            break;
        case 1:
            made.marks[1][0] = in->n_ids;
            break;
        case 2:
            made.prompts[1][0].n_fields = in->n_marks;
            break;
        case 3:
            made.prompts[1][0].n_fields = 0;
            break;
        case 4:
            made.words[1][in->n_words] = in->n_ids + 1;
            break;
        case 5:
            made.words[1][0] = in->n_ids;
            break;
        case 6:
            in->n_ids = 0;
            break;
        case 7:
            in->n_words = MDL_EXTRACT_WORDS + 1;
            break;
        }
        assert_int_equal(mdl_extract(m, 3, made.in, &out, &err), RC_INVALID);
        assert_int_equal(err.item, 1);
        assert_int_equal(h.n_calls[0], 0);
    }
    mdl_close(&m);
}

static void models_are_refused_by_name(void **state)
{
    static const struct {
        const char *file, *key, *value;
        enum rc rc;
        const char *what, *says;
    } cases[] = {
        {"config.json", "architecture", "\"boundary\"", RC_UNSUPPORTED, "architecture",
         "architecture 'boundary' of GLiNER2"},
        {"config.json", "counting_layer", "\"count_cnn\"", RC_UNSUPPORTED, "counting_layer",
         "'count_cnn'"},
        {"config.json", "max_width", "0", RC_FORMAT, "max_width", "max_width"},
        {"encoder_config/config.json", "model_type", "\"modernbert\"", RC_UNSUPPORTED, "model_type",
         "an encoder of type 'modernbert'"},
        {"encoder_config/config.json", "hidden_size", "32", RC_FORMAT, "", "shape"},
        {"config.json", "counting_layer", "\"count_lstm\"", RC_WEIGHT_ABSENT,
         "count_embed.projector.0.weight", "count_embed.projector.0.weight"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_info info;
        char dir[256];
        enum rc rc;
        int fd;

        tdir_new(dir, DIR);
        tdir_set(dir, cases[i].file, cases[i].key, cases[i].value);
        fd = open_root(dir);
        rc = mdl_probe(&info, fd, &err);
        if (rc != cases[i].rc)
            fail_msg("%s %s: %s (%s)", cases[i].key, cases[i].value, rc_name(rc), err.msg);
        if (cases[i].what[0])
            assert_string_equal(err.what, cases[i].what);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].says);
        close(fd);
        tdir_rm(dir);
    }
}

static void a_model_tells_what_it_can(void **state)
{
    struct mdl_info info;
    int fd = open_root(DIR);

    (void)state;
    need_ok(mdl_probe(&info, fd, err));
    close(fd);
    assert_true(info.can_extract && !info.can_embed && !info.can_rerank && !info.can_generate);
    assert_string_equal(info.family, "gliner2");
    assert_int_equal(info.span_words, 8);
    assert_int_equal(info.max_input_tokens, 8192);
}

static void a_small_workspace_makes_inputs_shorter(void **state)
{
    struct mdl_opts o = {.batch_tokens = 512, .max_seqs = 8, .workspace_bytes = 24u << 20};
    struct mdl *m = open_model(DIR, be, &o);

    (void)state;
    assert_true(mdl_info_get(m)->max_input_tokens < 8192);
    assert_true(mdl_info_get(m)->max_input_tokens >= 1024);
    assert_int_equal(mdl_info_get(m)->ctx_tokens, mdl_info_get(m)->max_input_tokens);
    mdl_close(&m);
}

struct longest {
    float score;
};

static enum rc on_longest(void *user, uint32_t s, uint32_t p, uint32_t t, uint32_t f,
                          const float *x, struct rc_err *err)
{
    ((struct longest *)user)->score = x[0];
    return RC_OK;
}

static enum rc on_nothing(void *user, uint32_t s, uint32_t p, const float *x, uint32_t n,
                          struct rc_err *err)
{
    return RC_OK;
}

/* The score of a word of so many rows, behind a prompt of one field. */
static float score_of_word(struct mdl *m, uint32_t n_rows)
{
    static int32_t ids[2304];
    static const uint32_t marks[2] = {0, 2};
    const struct mdl_extract_prompt prompt = {.mark = 0, .n_fields = 1, .n_most = 1};
    const uint32_t words[2] = {4, 4 + n_rows};
    struct longest got = {NAN};
    const struct mdl_extract_out out = {&got, NULL, on_nothing, on_longest};
    const struct mdl_extract_in in = {ids, 2304, marks, 2, &prompt, 1, words, 1};

    /* what comes late in the word is of another kind than what comes first */
    for (uint32_t i = 0; i < 2304; i++)
        ids[i] = i < 2052 ? 40 + (int32_t)(i % 3) : 70 + (int32_t)(i % 50);
    need_ok(mdl_extract(m, 1, &in, &out, err));
    return got.score;
}

/* A device hides its rows, and 2048 of them are read back at a time: a longer word is pooled whole,
 * as on the processor. */
static void words_of_any_length_are_pooled_whole(void **state)
{
    static const char *const dirs[] = {TEST_GOLDEN "/gliner2-lstm", TEST_GOLDEN "/gliner2-moe"};
    const struct mdl_opts o = {.batch_tokens = 512, .max_seqs = 8, .ctx_tokens = 2304};
    const struct be_opts cpu = {.backend = "cpu", .n_threads = 2};
    struct be_ctx *ref = NULL;

    (void)state;
    need_ok(be_ctx_new(&ref, &cpu, err));
    for (size_t i = 0; i < 2; i++) {
        struct mdl *m = open_model(dirs[i], be, &o), *r = open_model(dirs[i], ref, &o);
        float whole = score_of_word(r, 2300), cut = score_of_word(r, 2048), got;

        mdl_close(&r);
        got = score_of_word(m, 2300);
        mdl_close(&m);
        if (!(fabsf(whole - cut) > 0.02f && fabsf(got - whole) < 0.002f))
            fail_msg("%s: %g, cut %g; here %g", dirs[i], (double)whole, (double)cut, (double)got);
    }
    be_ctx_free(&ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_in_any_batch_it_is_the_same),
        cmocka_unit_test(a_pass_is_stopped_between_layers),
        cmocka_unit_test(bad_sequences_are_refused_before_anything_is_computed),
        cmocka_unit_test(models_are_refused_by_name),
        cmocka_unit_test(a_model_tells_what_it_can),
        cmocka_unit_test(a_small_workspace_makes_inputs_shorter),
        cmocka_unit_test(words_of_any_length_are_pooled_whole),
    };
    int rc;

    need_dir(DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
