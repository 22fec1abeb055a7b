/* test_wrk_extract_golden.c - extraction against the reference, from words to answers: ids, places,
 * counts, logits and decisions of tiny GLiNER2 models (tests/golden/README.md).
 * INFERD_GLINER2_DIRS: other folders of such files, apart by colons. */
#include "models/mdl_test.h"
#include "worker/extract_ask.h"

#define TOL_LOGIT test_tol(1e-4, 5e-2, 2e-2) /* of counts, classes, spans */
#define TOL_SCORE test_tol(1e-4, 4e-4, 4e-4)
#define MARGIN test_tol(1e-5, 4e-4, 4e-4) /* decisions nearer to a threshold mean nothing */

static struct be_ctx *be;

/* ------------------------------------------------------------------ full tensors */

struct full {
    char *bytes;
    json_t *head;
    const char *data;
};

static struct full full_open(const char *dir)
{
    struct full f = {0};
    char path[512];
    uint64_t n = 0;
    FILE *in;
    long size;

    snprintf(path, sizeof(path), "%s/golden.safetensors", dir);
    assert_non_null(in = fopen(path, "rb"));
    fseek(in, 0, SEEK_END);
    size = ftell(in);
    rewind(in);
    assert_non_null(f.bytes = malloc((size_t)size));
    assert_int_equal(fread(f.bytes, 1, (size_t)size, in), size);
    fclose(in);
    memcpy(&n, f.bytes, sizeof(n));
    assert_non_null(f.head = json_loadb(f.bytes + 8, n, 0, NULL));
    f.data = f.bytes + 8 + n;
    return f;
}

static void full_close(struct full *f)
{
    json_decref(f->head);
    free(f->bytes);
}

/* The tensor a summary points to; NULL without one. */
static const float *full_of(const struct full *f, const json_t *summary)
{
    const char *name = json_string_value(json_object_get(summary, "golden"));
    const json_t *t = name ? json_object_get(f->head, name) : NULL;

    return t ? (const float *)(const void *)(f->data + json_integer_value(json_array_get(
                                                           json_object_get(t, "data_offsets"), 0)))
             : NULL;
}

/* ------------------------------------------------------------------------ a call */

#define MOST 16 /* views of a call */

struct call {
    struct wrk_schema *s[MOST];
    struct wrk_view v[MOST];
    struct wrk_finds f[MOST];
    struct wrk_reader r[MOST];
    struct mdl_extract_in in[MOST];
    int32_t *ids[MOST];
    uint32_t *words[MOST];
    bool ran[MOST][64];
    uint32_t n, width;
    /* of the first sequence, what is expected of every number */
    const json_t *tasks;
    const struct full *full;
    double worst;
    uint64_t hash[MOST];
};

static void near(struct call *c, double got, double want, const char *what)
{
    double d = fabs(got - want);

    c->worst = d > c->worst ? d : c->worst;
    if (!(d <= TOL_LOGIT))
        fail_msg("%s is %.7g, expected %.7g", what, got, want);
}

static void mix(uint64_t *h, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, &x[i], sizeof(u));
        *h = (*h ^ u) * 0x100000001b3ull;
    }
}

static enum rc on_classes(void *user, uint32_t seq, uint32_t p, const float *x, struct rc_err *err)
{
    struct call *c = user;
    const json_t *want = json_object_get(json_array_get(c->tasks, p), "logits");

    mix(&c->hash[seq], x, c->s[seq]->ask[p].n_fields);
    c->ran[seq][p] = true;
    for (size_t i = 0; seq == 0 && i < json_array_size(want); i++)
        near(c, x[i], json_number_value(json_array_get(want, i)), "a class' logit");
    return wrk_read_classes(&c->r[seq], p, x, err);
}

static enum rc on_count(void *user, uint32_t seq, uint32_t p, const float *x, uint32_t n,
                        struct rc_err *err)
{
    struct call *c = user;
    const json_t *t = json_array_get(c->tasks, p), *want = json_object_get(t, "count_logits");

    mix(&c->hash[seq], x, MDL_EXTRACT_COUNTS);
    c->ran[seq][p] = n > 0;
    for (size_t i = 0; seq == 0 && i < json_array_size(want); i++)
        near(c, x[i], json_number_value(json_array_get(want, i)), "a count's logit");
    if (seq == 0 && json_object_get(t, "count"))
        assert_int_equal(n, json_integer_value(json_object_get(t, "count")));
    return RC_OK;
}

static enum rc on_spans(void *user, uint32_t seq, uint32_t p, uint32_t t, uint32_t f,
                        const float *x, struct rc_err *err)
{
    struct call *c = user;
    uint32_t w = c->in[seq].n_words, fields = c->s[seq]->ask[p].n_fields;
    const float *want =
        c->full && seq == 0
            ? full_of(c->full, json_object_get(json_array_get(c->tasks, p), "span_logits"))
            : NULL;

    mix(&c->hash[seq], x, (size_t)w * c->width);
    for (uint32_t i = 0; want && i < w; i++)
        for (uint32_t k = 0; k < c->width && i + k < w; k++)
            near(c, x[i * c->width + k], want[(((size_t)t * fields + f) * w + i) * c->width + k],
                 "a span's logit");
    return wrk_read_field(&c->r[seq], p, t, f, x, c->width, err);
}

static void add(struct call *c, struct mdl *m, const Ipc__ExtractSchema *s, const char *text,
                size_t n_bytes, uint32_t max_words, float threshold)
{
    uint32_t i = c->n++, k = 0;
    const struct mdl_tok *tok = mdl_tok_get(m);
    size_t n;

    c->width = mdl_info_get(m)->span_words;
    need_ok(wrk_schema_check(s, err));
    need_ok(wrk_schema_new(&c->s[i], s, tok, NULL, 4096, err));
    need_ok(wrk_view_init(&c->v[i], text, n_bytes, max_words, tok, NULL, 4096, err));
    n = c->s[i]->ids.n + c->v[i].ids.n;
    c->ids[i] = malloc(n * sizeof(int32_t));
    c->words[i] = malloc((c->s[i]->n_prefix + c->v[i].w.n + 1) * sizeof(uint32_t));
    assert_true(c->ids[i] && c->words[i]);
    memcpy(c->ids[i], c->s[i]->ids.ids, c->s[i]->ids.n * sizeof(int32_t));
    memcpy(c->ids[i] + c->s[i]->ids.n, c->v[i].ids.ids, c->v[i].ids.n * sizeof(int32_t));
    for (; k < c->s[i]->n_prefix; k++)
        c->words[i][k] = c->s[i]->prefix[k];
    for (size_t w = 0; w <= c->v[i].w.n; w++)
        c->words[i][k + w] = (uint32_t)c->s[i]->ids.n + c->v[i].row[w];
    c->in[i] = (struct mdl_extract_in){.ids = c->ids[i],
                                       .n_ids = (uint32_t)n,
                                       .marks = c->s[i]->marks,
                                       .n_marks = c->s[i]->n_marks,
                                       .prompts = c->s[i]->ask,
                                       .n_prompts = c->s[i]->n_prompts,
                                       .words = c->words[i],
                                       .n_words = k + (uint32_t)c->v[i].w.n};
    c->r[i] = (struct wrk_reader){c->s[i], &c->v[i], threshold, &c->f[i]};
}

static void run(struct call *c, struct mdl *m)
{
    const struct mdl_extract_out out = {c, on_classes, on_count, on_spans};

    need_ok(mdl_extract(m, c->n, c->in, &out, err));
}

static void drop(struct call *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        wrk_schema_free(&c->s[i]);
        wrk_view_deinit(&c->v[i]);
        wrk_finds_deinit(&c->f[i]);
        wrk_reader_deinit(&c->r[i]);
        free(c->ids[i]);
        free(c->words[i]);
    }
    *c = (struct call){0};
}

/* --------------------------------------------------------------------------- cases */

static void expect(json_t *got, const json_t *want, const char *name)
{
    if (!say_same(got, want, TOL_SCORE)) {
        char *a = json_dumps(got, JSON_COMPACT), *b = json_dumps(want, JSON_COMPACT);

        fail_msg("case %s: found\n%s\nexpected\n%s", name, a, b);
    }
    json_decref(got);
}

static void same_list(const json_t *want, const char *name, const char *what,
                      uint32_t (*get)(const struct call *, size_t), const struct call *c, size_t n)
{
    if (!want)
        return;
    assert_int_equal(json_array_size(want), n);
    for (size_t i = 0; i < n; i++)
        if (get(c, i) != json_integer_value(json_array_get(want, i)))
            fail_msg("case %s: %s %zu is %u, expected %d", name, what, i, get(c, i),
                     (int)json_integer_value(json_array_get(want, i)));
}

static uint32_t get_id(const struct call *c, size_t i)
{
    return (uint32_t)c->ids[0][i];
}
static uint32_t get_word(const struct call *c, size_t i)
{
    return c->words[0][i];
}
static uint32_t get_start(const struct call *c, size_t i)
{
    return c->v[0].w.w[i].start;
}
static uint32_t get_end(const struct call *c, size_t i)
{
    return c->v[0].w.w[i].end;
}

static void check_input(const struct call *c, const json_t *j, const char *name)
{
    const json_t *marks = json_object_get(j, "schema_positions");
    size_t k = 0;

    same_list(json_object_get(j, "input_ids"), name, "id", get_id, c, c->in[0].n_ids);
    same_list(json_object_get(j, "word_first_positions"), name, "word", get_word, c,
              c->in[0].n_words);
    same_list(json_object_get(j, "char_starts"), name, "start", get_start, c, c->v[0].w.n);
    same_list(json_object_get(j, "char_ends"), name, "end", get_end, c, c->v[0].w.n);
    for (size_t p = 0; p < json_array_size(marks); p++)
        for (size_t i = 0; i < json_array_size(json_array_get(marks, p)); i++)
            assert_int_equal(c->in[0].marks[k++],
                             json_integer_value(json_array_get(json_array_get(marks, p), i)));
    assert_true(!marks || k == c->in[0].n_marks);
}

static double number(const json_t *j, const char *key, double dflt)
{
    const json_t *v = json_object_get(j, key);

    return json_is_number(v) ? json_number_value(v) : dflt;
}

/* Labels of attribute groups are labels of the prompt too, in their order of names. */
static json_t *schema_of(const json_t *j)
{
    json_t *s = json_deep_copy(json_object_get(j, "schema"));

    if (json_object_get(s, "entity_attributes")) {
        json_t *e = json_object_get(s, "entities");

        json_array_append_new(e, json_string("employee"));
        json_array_append_new(e, json_string("founder"));
        json_array_append_new(e, json_string("tone: bad"));
        json_array_append_new(e, json_string("tone: good"));
    }
    return s;
}

static double check_case(struct mdl *m, const json_t *j, const struct full *full, bool dflt)
{
    const char *name = json_string_value(json_object_get(j, "name"));
    const json_t *text = json_object_get(j, "text");
    float threshold = dflt ? 0.5f : (float)number(j, "threshold", 0.5);
    json_t *spec = schema_of(j);
    Ipc__ExtractSchema *s = ask_schema_of(spec);
    static struct call c;
    struct wrk_finds all = {0};
    double worst;

    add(&c, m, s, json_string_value(text), json_string_length(text),
        (uint32_t)number(j, "max_len", 0), threshold);
    c.tasks = json_object_get(j, "tasks");
    c.full = full;
    if (json_object_get(j, "input_ids"))
        check_input(&c, j, name);
    run(&c, m);
    need_ok(wrk_finds_merge(&all, c.f, c.v, 1, c.s[0], json_string_value(text),
                            json_string_length(text), false, err));
    if (!json_object_get(spec, "entity_attributes") &&
        number(j, dflt ? "margin_default" : "margin", 1) >= MARGIN)
        expect(say_all(&all, c.s[0], c.ran[0], c.v[0].text),
               json_object_get(j, dflt ? "result_default_threshold" : "result"), name);
    wrk_finds_deinit(&all);
    worst = c.worst;
    drop(&c);
    ipc__extract_schema__free_unpacked(s, NULL);
    json_decref(spec);
    return worst;
}

static void check_words(const json_t *list)
{
    char *low = NULL;
    size_t cap = 0, n;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *text = json_object_get(c, "text"),
                     *want = json_object_get(c, "words");
        const char *t = json_string_value(text);
        struct wrk_words w = {0};

        need_ok(wrk_words_split(t, json_string_length(text), NULL, &w, err));
        assert_int_equal(w.n, json_array_size(want));
        for (size_t k = 0; k < w.n; k++) {
            const json_t *x = json_array_get(want, k), *word = json_array_get(x, 0);

            need_ok(wrk_lower(t + w.w[k].at, w.w[k].to - w.w[k].at, &low, &cap, &n, err));
            assert_int_equal(n, json_string_length(word));
            assert_memory_equal(low, json_string_value(word), n);
            assert_int_equal(w.w[k].start, json_integer_value(json_array_get(x, 1)));
            assert_int_equal(w.w[k].end, json_integer_value(json_array_get(x, 2)));
        }
        wrk_words_deinit(&w);
    }
    free(low);
}

/* A text in windows. */
static void check_long(struct mdl *m, const json_t *j)
{
    const json_t *text = json_object_get(j, "text");
    const char *t = json_string_value(text);
    const struct wrk_window_size z = {(uint32_t)number(j, "chunk_size", 0),
                                      (uint32_t)number(j, "chunk_overlap", 0)};
    size_t n_bytes = json_string_length(text);
    Ipc__ExtractSchema *s;
    struct wrk_words w = {0};
    struct wrk_finds all = {0};
    static struct call c;
    bool ran[64] = {0};
    char *dotted = malloc(n_bytes + 2);

    if (!json_object_get(j, "result")) {
        free(dotted);
        return;
    }
    assert_non_null(dotted);
    memcpy(dotted, t, n_bytes);
    dotted[n_bytes] = '.';
    s = ask_schema_of(j);
    need_ok(wrk_words_split(t, n_bytes, NULL, &w, err));
    for (uint32_t i = 0; i < wrk_windows((uint32_t)w.n, &z); i++) {
        uint32_t first, n;

        wrk_window((uint32_t)w.n, &z, i, &first, &n);
        add(&c, m, s, t + w.w[first].at, w.w[first + n - 1].to - w.w[first].at, z.words,
            (float)number(j, "threshold", 0.5));
        c.v[i].at0 = w.w[first].at;
        c.v[i].point0 = w.w[first].start;
    }
    run(&c, m);
    for (uint32_t i = 0; i < c.n; i++)
        ran[0] = ran[0] || c.ran[i][0];
    need_ok(wrk_finds_merge(&all, c.f, c.v, c.n, c.s[0], t, n_bytes, false, err));
    expect(say_all(&all, c.s[0], ran, dotted), json_object_get(j, "result"), "long_text");
    wrk_finds_deinit(&all);
    wrk_words_deinit(&w);
    drop(&c);
    free(dotted);
    ipc__extract_schema__free_unpacked(s, NULL);
}

/* Two different requests in one batch give what they give alone, to the byte. */
static void check_batch(struct mdl *m, const json_t *j)
{
    const json_t *texts = json_object_get(j, "texts"), *schemas = json_object_get(j, "schemas"),
                 *results = json_object_get(j, "results");
    Ipc__ExtractSchema *s[MOST];
    static struct call c, one;

    for (uint32_t i = 0; i < json_array_size(results); i++) {
        json_t *spec = json_pack("{s:O}", "entities", json_array_get(schemas, i));

        s[i] = ask_schema_of(spec);
        json_decref(spec);
        add(&c, m, s[i], json_string_value(json_array_get(texts, i)),
            json_string_length(json_array_get(texts, i)), 0, (float)number(j, "threshold", 0.5));
    }
    run(&c, m);
    for (uint32_t i = 0; i < c.n; i++) {
        expect(say_all(&c.f[i], c.s[i], c.ran[i], c.v[i].text), json_array_get(results, i),
               "batch");
        add(&one, m, s[i], json_string_value(json_array_get(texts, i)),
            json_string_length(json_array_get(texts, i)), 0, 0.5f);
        run(&one, m);
        assert_true(one.hash[0] == c.hash[i]);
        drop(&one);
    }
    drop(&c);
    for (uint32_t i = 0; i < json_array_size(results); i++)
        ipc__extract_schema__free_unpacked(s[i], NULL);
}

static void check_folder(const char *dir)
{
    struct mdl_opts o = {.batch_tokens = 512, .max_seqs = 8, .ctx_tokens = 1024};
    struct mdl *m;
    struct full full;
    json_t *j, *list;
    double worst = 0;

    need_dir(dir);
    m = open_model(dir, be, &o);
    full = full_open(dir);
    j = load_json(dir, "cases.json");
    list = json_object_get(j, "cases");
    assert_true(json_array_size(list) > 0);
    check_words(json_object_get(j, "word_split"));
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int dflt = 0; dflt < 2; dflt++) {
            double d = check_case(m, json_array_get(list, i), &full, dflt != 0);

            worst = d > worst ? d : worst;
        }
    check_long(m, json_object_get(j, "long_text"));
    if (json_object_get(json_object_get(j, "batch"), "results"))
        check_batch(m, json_object_get(j, "batch"));
    print_message("%s: largest difference of a logit %.2g\n", dir, worst);
    full_close(&full);
    json_decref(j);
    mdl_close(&m);
}

static void count_lstm_v2_agrees(void **state)
{
    (void)state;
    check_folder(TEST_GOLDEN "/gliner2");
}

static void count_lstm_agrees(void **state)
{
    (void)state;
    check_folder(TEST_GOLDEN "/gliner2-lstm");
}

static void count_lstm_moe_agrees(void **state)
{
    (void)state;
    check_folder(TEST_GOLDEN "/gliner2-moe");
}

static void other_folders_agree(void **state)
{
    char dirs[1024], *save = NULL;
    const char *list = getenv("INFERD_GLINER2_DIRS");

    (void)state;
    snprintf(dirs, sizeof(dirs), "%s", list ? list : "");
    for (char *d = strtok_r(dirs, ":", &save); d; d = strtok_r(NULL, ":", &save))
        check_folder(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(count_lstm_v2_agrees),
        cmocka_unit_test(count_lstm_agrees),
        cmocka_unit_test(count_lstm_moe_agrees),
        cmocka_unit_test(other_folders_agree),
    };
    int rc;

    need_dir(TEST_GOLDEN "/gliner2");
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
